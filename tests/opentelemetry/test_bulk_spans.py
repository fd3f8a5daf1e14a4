"""The one span of ``send_many()``, ``send_arrow()`` and ``send_all()``."""

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.trace import SpanKind, StatusCode

from cyproducer import errors
from cyproducer.futures.bulk_future import BulkFuture
from cyproducer.producer import KafkaProducer, ProducerRecord
from tests.opentelemetry.spans import Spans, context_of, failed, traceparent
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import PRODUCE, Act, ScriptedCluster

TOPIC_AUTHORIZATION_FAILED = 29
OWN_CONTEXT = ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


def many(producer: KafkaProducer, **options: Any) -> BulkFuture:
    return producer.send_many("orders", [b"tea", b"cake", b"milk"], **options)


def arrow(producer: KafkaProducer, **options: Any) -> BulkFuture:
    return producer.send_arrow("orders", pa.table({"value": [b"tea", b"cake", b"milk"]}), **options)


both_kinds = pytest.mark.parametrize("rows", [many, arrow])


def sent_headers(cluster: ScriptedCluster, topic: str = "orders") -> list[list[tuple[str, bytes | None]]]:
    return [list(r.headers) for partition in cluster.topics[topic].partitions for r in partition.records]


# Columns


@both_kinds
def test_rows_have_one_span_which_ends_with_the_last_outcome(
    cluster: ScriptedCluster, producer: KafkaProducer, spans: Spans, rows: Any
) -> None:
    held = threading.Event()
    cluster.act(PRODUCE, Act(hold=held))
    future = rows(producer, partition=1)
    assert spans.ended == []
    held.set()
    future.get(WAIT_S)
    producer.flush(WAIT_S)

    span = spans.only()
    (node,) = cluster.nodes.values()
    # CLIENT: the rows are sent as they are, so this span is not the context they were created in.
    assert (span.name, span.kind) == ("send orders", SpanKind.CLIENT)
    assert span.attributes == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "1",
        "messaging.batch.message_count": 3,
        "messaging.client.id": "shop",
        "server.address": node.host,
        "server.port": node.port,
    }
    assert span.status.status_code is StatusCode.UNSET
    assert sent_headers(cluster) == [[], [], []]
    assert "callback" in spans.threads[0].name


def test_a_column_of_partitions_is_not_a_partition(producer: KafkaProducer, spans: Spans) -> None:
    table = pa.table({"value": [b"tea", b"cake"], "where": [0, 1]})
    producer.send_arrow("orders", table, partition="where")
    producer.flush(WAIT_S)
    attributes = spans.only().attributes or {}
    assert "messaging.destination.partition.id" not in attributes
    assert attributes["messaging.batch.message_count"] == 2


@both_kinds
def test_rows_that_the_broker_refuses_fail_the_span_with_their_own_error(
    cluster: ScriptedCluster, producer: KafkaProducer, spans: Spans, rows: Any
) -> None:
    cluster.act(PRODUCE, Act(error=TOPIC_AUTHORIZATION_FAILED))
    future = rows(producer, partition=1)
    producer.flush(WAIT_S)
    assert isinstance(future.exception, errors.BulkSendError)
    assert failed(spans.only()) == ("TopicAuthorizationFailedError", str(future.exception))


def test_rows_with_several_errors_fail_the_span_with_the_error_of_the_call(
    cluster: ScriptedCluster, producer: KafkaProducer, spans: Spans
) -> None:
    producer.send_many("orders", [b"tea"]).get(WAIT_S)
    both = {("orders", 0): TOPIC_AUTHORIZATION_FAILED, ("orders", 1): 87}
    cluster.script = lambda received: Act(error=both) if received.api_key == PRODUCE else None
    producer.send_arrow("orders", pa.table({"value": [b"a", b"b"], "where": [0, 1]}), partition="where")
    producer.flush(WAIT_S)
    assert failed(spans.ended[1])[0] == "BulkSendError"


@both_kinds
def test_rows_that_are_refused_fail_the_span(producer: KafkaProducer, spans: Spans, rows: Any) -> None:
    with pytest.raises(errors.UnknownTopicOrPartitionError) as caught:
        rows(producer, partition=7)
    span = spans.only()
    assert failed(span) == ("UnknownTopicOrPartitionError", str(caught.value))
    assert (span.attributes or {})["messaging.batch.message_count"] == 0


def test_a_call_that_stops_halfway_counts_the_accepted_rows(cluster: ScriptedCluster, spans: Spans) -> None:
    held = threading.Event()
    with producing(cluster, buffer_memory=32 << 10, batch_size=4096, max_block_ms=200) as producer:
        producer.send("orders", b"tea").get(WAIT_S)
        producer.flush(WAIT_S)
        cluster.act(PRODUCE, *[Act(hold=held)] * 5)
        with pytest.raises(errors.BufferExhaustedError) as caught:
            producer.send_many("orders", [bytes(1000)] * 100)
        held.set()
    accepted = caught.value.accepted
    assert accepted
    assert (spans.ended[1].attributes or {})["messaging.batch.message_count"] == accepted
    assert failed(spans.ended[1])[0] == "BufferExhaustedError"


@both_kinds
def test_wrong_arguments_are_refused_as_without_a_span(
    producer: KafkaProducer, spans: Spans, rows: Any
) -> None:
    with pytest.raises(TypeError, match="colour"):
        rows(producer, colour="red")
    assert failed(spans.only())[0] == "TypeError"


# send_all()


def test_send_all_has_one_span_whose_context_all_records_carry(
    cluster: ScriptedCluster, producer: KafkaProducer, spans: Spans
) -> None:
    mine: list[tuple[str, bytes | None]] = [("a", b"1")]
    held = threading.Event()
    cluster.act(PRODUCE, Act(hold=held))
    records = [
        ProducerRecord("orders", b"tea", headers=mine, partition=0),
        ("orders", b"cake", None, None, 0),
        {"topic": "orders", "value": b"milk", "partition": 0},
    ]
    with spans.provider.get_tracer("test").start_as_current_span("order") as order:
        producer.send_all(iter(records))  # type: ignore[arg-type]
    assert len(spans.ended) == 1
    held.set()
    producer.flush(WAIT_S)

    span = spans.ended[1]
    (node,) = cluster.nodes.values()
    assert (span.name, span.kind, span.parent) == (
        "send orders",
        SpanKind.PRODUCER,
        order.get_span_context(),
    )
    assert span.attributes == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.batch.message_count": 3,
        "messaging.client.id": "shop",
        "server.address": node.host,
        "server.port": node.port,
    }
    header = ("traceparent", traceparent(context_of(span)))
    assert sent_headers(cluster) == [[("a", b"1"), header], [header], [header]]
    assert mine == [("a", b"1")]
    assert len(spans.ended) == 2


def test_send_all_to_several_topics_names_none(
    cluster: ScriptedCluster, producer: KafkaProducer, spans: Spans
) -> None:
    producer.send_all([("orders", b"tea"), ("bills", b"3.50")])
    producer.flush(WAIT_S)
    span = spans.only()
    assert span.name == "send"
    assert "messaging.destination.name" not in (span.attributes or {})


def test_send_all_links_to_the_contexts_of_the_program_s_own(
    cluster: ScriptedCluster, producer: KafkaProducer, spans: Spans
) -> None:
    producer.send_all([("orders", b"tea", None, [OWN_CONTEXT], 0), ("orders", b"cake", None, None, 0)])
    producer.flush(WAIT_S)
    span = spans.only()
    assert [traceparent(link.context) for link in span.links] == [OWN_CONTEXT[1]]
    header = ("traceparent", traceparent(context_of(span)))
    assert sent_headers(cluster) == [[OWN_CONTEXT], [header]]


def test_send_all_fails_its_span_if_a_record_fails(
    cluster: ScriptedCluster, producer: KafkaProducer, spans: Spans
) -> None:
    producer.send_all([("orders", b"tea"), ("orders",), (), ("orders", b"cake", None, {"a": b"1"})])
    producer.flush(WAIT_S)
    span = spans.ended[-1]
    kind, description = failed(span)
    assert kind == "ValueError"
    assert description is not None
    assert description.startswith("3 of 4 records failed, the first: a record needs a value or a key")
    assert (span.attributes or {})["messaging.batch.message_count"] == 4


def test_send_all_of_nothing_ends_its_span(producer: KafkaProducer, spans: Spans) -> None:
    assert producer.send_all([]) == []
    span = spans.only()
    assert (span.attributes or {})["messaging.batch.message_count"] == 0
    assert span.status.status_code is StatusCode.UNSET


def test_an_iterable_that_raises_fails_the_span_after_its_first_records(
    cluster: ScriptedCluster, producer: KafkaProducer, spans: Spans
) -> None:
    def broken() -> Iterator[ProducerRecord]:
        yield ProducerRecord("orders", b"tea", partition=0)
        # Its own span: it is not one of the records.
        producer.send("bills", b"3.50")
        raise ConnectionResetError("the shop has closed")

    with pytest.raises(ConnectionResetError):
        producer.send_all(broken())
    producer.flush(WAIT_S)
    by_name = {span.name: span for span in spans.ended}
    assert sorted(by_name) == ["send", "send bills"]
    assert failed(by_name["send"]) == ("ConnectionResetError", "the shop has closed")
    assert cluster.topics["orders"].values == [b"tea"]
