"""The span of a single record: ``send()`` and ``send_async()``."""

import asyncio
import threading
import weakref
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv.attributes import error_attributes, server_attributes
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode

from cyproducer import errors
from cyproducer.futures.delivery import RecordFuture
from cyproducer.opentelemetry import CyproducerInstrumentor, tracing
from cyproducer.producer import KafkaProducer, ProducerRecord
from cyproducer.version import VERSION
from tests.forked import own_threads
from tests.opentelemetry.spans import Spans, context_of, failed, traceparent
from tests.scripted.producing import WAIT_S, options, producing
from tests.scripted.scripted_broker import PRODUCE, Act, ScriptedCluster
from tools.harness.until import until

TOPIC_AUTHORIZATION_FAILED = 29
Sender = Callable[..., RecordFuture]


def sync(producer: KafkaProducer) -> Sender:
    return producer.send


def from_asyncio(producer: KafkaProducer) -> Sender:
    def sending(*args: Any, **kwargs: Any) -> RecordFuture:
        return asyncio.run(producer.send_async(*args, **kwargs))

    return sending


both_ways = pytest.mark.parametrize("way", [sync, from_asyncio])


def sent_headers(cluster: ScriptedCluster) -> list[list[tuple[str, bytes | None]]]:
    """The headers of the records that the broker has."""
    partitions = cluster.topics["orders"].partitions
    return [list(record.headers) for partition in partitions for record in partition.records]


@both_ways
def test_a_span_describes_the_record_and_ends_with_its_outcome(
    cluster: ScriptedCluster, producer: KafkaProducer, spans: Spans, way: Callable[[KafkaProducer], Sender]
) -> None:
    send, held = way(producer), threading.Event()
    cluster.act(PRODUCE, Act(hold=held))
    with spans.provider.get_tracer("test").start_as_current_span("order") as order:
        future = send("orders", b"tea", b"7", partition=1)
    (outer,) = spans.ended
    held.set()
    future.get(WAIT_S)
    producer.flush(WAIT_S)

    span = spans.ended[1]
    (node,) = cluster.nodes.values()
    assert (span.name, span.kind) == ("send orders", SpanKind.PRODUCER)
    assert span.attributes == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "1",
        "messaging.kafka.message.key": "7",
        "messaging.kafka.offset": 0,
        "messaging.kafka.cluster.id": "scripted",
        "messaging.client.id": "shop",
        "server.address": node.host,
        "server.port": node.port,
    }
    assert span.status.status_code is StatusCode.UNSET
    assert span.events == ()
    assert span.links == ()
    assert span.parent == order.get_span_context()
    assert span.end_time is not None
    assert outer.end_time is not None
    assert span.end_time > outer.end_time
    scope = span.instrumentation_scope
    assert scope is not None
    assert (scope.name, scope.version, scope.schema_url) == (
        "cyproducer.opentelemetry",
        VERSION,
        "https://opentelemetry.io/schemas/1.44.0",
    )


def test_the_names_of_the_attributes_are_those_of_the_convention() -> None:
    known = {
        name
        for module in (messaging_attributes, error_attributes, server_attributes)
        for name in vars(module).values()
        if isinstance(name, str)
    }
    mine = {
        value
        for value in vars(tracing).values()
        if isinstance(value, str) and value.startswith(("messaging.", "server.", "error."))
    }
    assert len(mine) == 14
    # Packages of older conventions lack the cluster's id.
    assert mine - known <= {"messaging.kafka.cluster.id"}


@both_ways
def test_the_context_goes_into_the_headers_after_the_program_s_own(
    cluster: ScriptedCluster, producer: KafkaProducer, spans: Spans, way: Callable[[KafkaProducer], Sender]
) -> None:
    mine = [("a", b"1"), ("a", None)]
    way(producer)("orders", b"tea", headers=mine)
    way(producer)("orders", b"tea")
    producer.flush(WAIT_S)

    assert mine == [("a", b"1"), ("a", None)]
    first, second = (("traceparent", traceparent(context_of(span))) for span in spans.ended)
    assert sorted(sent_headers(cluster), key=len) == [[second], [("a", b"1"), ("a", None), first]]


def test_a_partition_that_was_chosen_after_the_call_is_in_the_span(
    cluster: ScriptedCluster, producer: KafkaProducer, spans: Spans
) -> None:
    # The first record is parked until the metadata arrives, the second one is placed at once.
    for key in (b"parked", b"placed"):
        future = producer.send("orders", b"tea", key)
        metadata = future.get(WAIT_S)
        producer.flush(WAIT_S)
        attributes = spans.ended[-1].attributes
        assert attributes is not None
        assert attributes["messaging.destination.partition.id"] == str(metadata.partition)
        assert attributes["messaging.kafka.offset"] == metadata.offset


def test_the_server_is_the_broker_that_leads_the_partition(spans: Spans) -> None:
    with (
        ScriptedCluster(nodes=2, orders=2) as cluster,
        producing(cluster, bootstrap_servers=cluster.bootstrap_servers[:1]) as producer,
    ):
        leader = list(cluster.nodes.values())[1]
        cluster.move_leader("orders", 1, leader.id)
        producer.send("orders", b"tea", partition=1).get(WAIT_S)
        producer.flush(WAIT_S)
        attributes = spans.only().attributes
        assert attributes is not None
        assert attributes["server.port"] == leader.port


@pytest.mark.parametrize(
    ("key", "shown"),
    [(b"7", "7"), (bytearray(b"7"), "7"), (memoryview(b"7"), "7"), (b"\xff", None), (None, None), (b"", "")],
)
def test_a_key_is_shown_if_it_is_text(
    producer: KafkaProducer, spans: Spans, key: Any, shown: str | None
) -> None:
    producer.send("orders", b"tea", key)
    producer.flush(WAIT_S)
    assert (spans.only().attributes or {}).get("messaging.kafka.message.key") == shown


@pytest.mark.parametrize(
    ("key", "shown"), [("7", "7"), (7, "7"), ((7,), None), pytest.param(1 << 20_000, None, id="long")]
)
def test_a_key_is_shown_as_it_was_before_serialization(
    cluster: ScriptedCluster, spans: Spans, key: Any, shown: str | None
) -> None:
    with producing(cluster, key_serializer=lambda _: b"\xff") as producer:
        producer.send("orders", b"tea", key)
        producer.flush(WAIT_S)
    assert (spans.only().attributes or {}).get("messaging.kafka.message.key") == shown


class Topic(str, Enum):  # noqa: UP042
    ORDERS = "orders"


def test_the_topic_may_be_an_enum(producer: KafkaProducer, spans: Spans) -> None:
    producer.send(Topic.ORDERS, b"tea")
    producer.flush(WAIT_S)
    span = spans.only()
    assert span.name == "send orders"
    assert (span.attributes or {})["messaging.destination.name"] == "orders"


def test_a_tombstone_is_marked(producer: KafkaProducer, spans: Spans) -> None:
    producer.send("orders", None, b"7")
    producer.flush(WAIT_S)
    assert (spans.only().attributes or {})["messaging.kafka.message.tombstone"] is True


def test_without_acknowledgements_there_is_no_offset(cluster: ScriptedCluster, spans: Spans) -> None:
    with producing(cluster, acks=0, enable_idempotence=False) as producer:
        producer.send("orders", b"tea").get(WAIT_S)
        producer.flush(WAIT_S)
    attributes = spans.only().attributes or {}
    assert "messaging.kafka.offset" not in attributes
    assert "messaging.destination.partition.id" in attributes


# Failures


@both_ways
def test_a_record_that_the_broker_refuses_fails_its_span(
    cluster: ScriptedCluster, producer: KafkaProducer, spans: Spans, way: Callable[[KafkaProducer], Sender]
) -> None:
    cluster.act(PRODUCE, Act(error=TOPIC_AUTHORIZATION_FAILED))
    future = way(producer)("orders", b"tea", partition=1)
    producer.flush(WAIT_S)

    span, error = spans.only(), future.exception
    assert error is not None
    assert failed(span) == ("TopicAuthorizationFailedError", str(error))
    attributes = span.attributes or {}
    assert attributes["messaging.destination.partition.id"] == "1"
    assert "messaging.kafka.offset" not in attributes


def test_a_record_that_is_refused_at_once_ends_its_span_before_send_returns(
    cluster: ScriptedCluster, spans: Spans
) -> None:
    with producing(cluster, max_request_size=1000) as producer:
        assert producer.send("orders", bytes(2000)).failed()
        assert failed(spans.only())[0] == "RecordTooLargeError"
    assert spans.threads == [threading.current_thread()]


@both_ways
@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"topic": "orders"}, "ValueError"),
        ({"topic": "orders", "value": "text"}, "TypeError"),
        ({"topic": "no such/topic", "value": b"tea"}, "InvalidTopicError"),
        ({"topic": 5, "value": b"tea"}, "TypeError"),
        ({"topic": "orders", "value": b"tea", "headers": {"a": b"1"}}, "TypeError"),
        ({"topic": "orders", "value": b"tea", "headers": 5}, "TypeError"),
        ({"topic": "orders", "value": b"tea", "headers": [5]}, "TypeError"),
        ({"topic": "orders", "value": b"tea", "headers": [(5, b"1")]}, "TypeError"),
        ({"topic": "orders", "value": b"tea", "headers": [("traceparent", 5)]}, "TypeError"),
        ({"topic": "orders", "value": b"tea", "partition": "1"}, "TypeError"),
        ({"topic": "orders", "value": b"tea", "partition": 1 << 20_000}, "ValueError"),
    ],
)
def test_a_call_that_raises_fails_its_span_and_raises_the_same_as_without_one(
    producer: KafkaProducer,
    spans: Spans,
    way: Callable[[KafkaProducer], Sender],
    arguments: dict[str, Any],
    kind: str,
) -> None:
    with pytest.raises(Exception) as traced:  # noqa: PT011
        way(producer)(**arguments)
    with suppress_instrumentation(), pytest.raises(type(traced.value)) as untraced:
        way(producer)(**arguments)
    assert str(traced.value) == str(untraced.value)
    assert failed(spans.only())[0] == kind


def test_a_closed_producer_fails_the_span(producer: KafkaProducer, spans: Spans) -> None:
    producer.close()
    with pytest.raises(errors.ProducerClosedError):
        producer.send("orders", b"tea")
    assert failed(spans.only())[0] == "ProducerClosedError"


def test_a_producer_without_a_constructor_says_so(spans: Spans) -> None:
    with pytest.raises(errors.ProducerClosedError, match="constructor"):
        KafkaProducer.__new__(KafkaProducer).send("orders", b"tea")
    assert spans.ended == []


def test_a_cancelled_task_fails_the_span(cluster: ScriptedCluster, spans: Spans) -> None:
    held = threading.Event()

    async def cancelled(producer: KafkaProducer) -> None:
        async def forever() -> None:
            while True:
                await producer.send_async("orders", bytes(1000))

        task = asyncio.create_task(forever())
        while not producer._runtime.accumulator.pool.waiting_threads:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with producing(cluster, buffer_memory=32 << 10, batch_size=4096) as producer:
        producer.send("orders", b"tea").get(WAIT_S)
        producer.flush(WAIT_S)
        cluster.act(PRODUCE, *[Act(hold=held)] * 5)
        asyncio.run(cancelled(producer))
        # After the first one, only the call that waited for memory has ended.
        assert failed(spans.ended[1])[0] == "CancelledError"
        assert len(spans.ended) == 2
        held.set()
        producer.flush(WAIT_S)


# Contexts in headers


CREATED = (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
OWN_CONTEXT = ("traceparent", b"00-%032x-%016x-01" % CREATED)


@both_ways
def test_a_context_of_the_program_s_own_is_kept_and_linked(
    cluster: ScriptedCluster, producer: KafkaProducer, spans: Spans, way: Callable[[KafkaProducer], Sender]
) -> None:
    with spans.provider.get_tracer("test").start_as_current_span("order"):
        way(producer)("orders", b"tea", headers=[OWN_CONTEXT, ("a", b"1")])
    producer.flush(WAIT_S)

    span = next(span for span in spans.ended if span.name == "send orders")
    assert sent_headers(cluster) == [[OWN_CONTEXT, ("a", b"1")]]
    # The convention: such a span only describes the transport.
    assert span.kind is SpanKind.CLIENT
    assert [(link.context.trace_id, link.context.span_id) for link in span.links] == [CREATED]


def test_headers_that_can_be_read_only_once_are_kept(
    cluster: ScriptedCluster, producer: KafkaProducer, spans: Spans
) -> None:
    producer.send("orders", b"tea", headers=iter([OWN_CONTEXT, ("a", b"1")]), partition=0)
    producer.send("orders", b"tea", headers=iter([("a", b"1")]), partition=0)
    producer.flush(WAIT_S)
    header = ("traceparent", traceparent(context_of(spans.ended[1])))
    assert sent_headers(cluster) == [[OWN_CONTEXT, ("a", b"1")], [("a", b"1"), header]]


def test_a_malformed_context_is_replaced(
    cluster: ScriptedCluster, producer: KafkaProducer, spans: Spans
) -> None:
    producer.send("orders", b"tea", headers=[("traceparent", b"\xff"), ("a", b"1"), ("traceparent", None)])
    producer.flush(WAIT_S)
    span = spans.only()
    assert span.kind is SpanKind.PRODUCER
    assert sent_headers(cluster) == [[("a", b"1"), ("traceparent", traceparent(context_of(span)))]]


def test_the_configured_propagator_writes_the_headers(
    cluster: ScriptedCluster, producer: KafkaProducer, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", W3CBaggagePropagator())
    token = context.attach(baggage.set_baggage("shop", "7"))
    try:
        with spans.provider.get_tracer("test").start_as_current_span("order"):
            # Baggage is no context that the record was created in, and the current span is none of its own.
            producer.send("orders", b"tea", headers=[("baggage", b"old=1")])
    finally:
        context.detach(token)
    producer.flush(WAIT_S)
    assert sent_headers(cluster) == [[("baggage", b"shop=7")]]
    # The record may be acknowledged before the block ends.
    assert {span.kind for span in spans.ended} == {SpanKind.INTERNAL, SpanKind.PRODUCER}


# What is not recorded


def test_an_unsampled_record_carries_its_context_and_makes_no_span(
    cluster: ScriptedCluster, producer: KafkaProducer
) -> None:
    spans = Spans(ALWAYS_OFF)
    CyproducerInstrumentor().instrument(tracer_provider=spans.provider)
    try:
        for _ in range(3):
            producer.send("orders", b"tea").get(WAIT_S)
    finally:
        CyproducerInstrumentor().uninstrument()
    assert spans.ended == []
    for ((name, value),) in sent_headers(cluster):
        assert name == "traceparent"
        assert value is not None
        # Bit 0 is "sampled".
        assert int(value[-2:], 16) & 1 == 0
    # Nothing waits for the outcome either.
    assert [name for name in own_threads() if "callback" in name] == []


def test_without_an_sdk_nothing_changes(cluster: ScriptedCluster) -> None:
    seen: list[ProducerRecord] = []

    class Watching:
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            seen.append(record)
            return record

    CyproducerInstrumentor().instrument(tracer_provider=NoOpTracerProvider())
    try:
        with producing(cluster, interceptors=[Watching()]) as producer:
            producer.send("orders", b"tea").get(WAIT_S)
    finally:
        CyproducerInstrumentor().uninstrument()
    assert seen == [ProducerRecord("orders", b"tea")]
    assert sent_headers(cluster) == [[]]


@both_ways
def test_suppressed_calls_make_no_span(
    cluster: ScriptedCluster, producer: KafkaProducer, spans: Spans, way: Callable[[KafkaProducer], Sender]
) -> None:
    with suppress_instrumentation():
        way(producer)("orders", b"tea").get(WAIT_S)
    producer.flush(WAIT_S)
    assert spans.ended == []
    assert sent_headers(cluster) == [[]]


# Threads


def test_spans_end_on_the_callback_thread_before_the_program_s_callbacks(
    cluster: ScriptedCluster, producer: KafkaProducer, spans: Spans
) -> None:
    ended: list[int] = []
    threads: list[threading.Thread] = []
    held = threading.Event()
    cluster.act(PRODUCE, Act(hold=held), Act(error=TOPIC_AUTHORIZATION_FAILED))
    for _ in range(2):
        future = producer.send("orders", b"tea")

        def called(_: object) -> None:
            ended.append(len(spans.ended))
            threads.append(threading.current_thread())

        future.add_both(called)
        held.set()
        producer.flush(WAIT_S)
    assert ended == [1, 2]
    assert spans.threads == threads
    assert all("callback" in thread.name for thread in threads)


def test_a_producer_that_is_dropped_is_not_kept_by_its_spans(cluster: ScriptedCluster, spans: Spans) -> None:
    held = threading.Event()
    producer = KafkaProducer(**options(cluster))
    producer.send("orders", b"tea")
    producer.flush(WAIT_S)
    cluster.act(PRODUCE, Act(hold=held))
    producer.send("orders", b"cake")
    cluster.wait_for_requests(PRODUCE, 2)
    gone = weakref.ref(producer)
    del producer
    assert gone() is None
    held.set()
    until(lambda: len(spans.ended) == 2, "the end of the second span")


def test_no_producer_span_is_current_afterwards(producer: KafkaProducer, spans: Spans) -> None:
    producer.send("orders", b"tea")
    assert trace.get_current_span() is trace.INVALID_SPAN
