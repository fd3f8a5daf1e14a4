"""``cyproducer.confluent.Producer``: what its methods do, beside what confluent-kafka documents."""

import gc
import pickle
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from cyproducer import KafkaProducer
from cyproducer.confluent import (
    TIMESTAMP_CREATE_TIME,
    KafkaError,
    KafkaException,
    Message,
    Producer,
)
from tests.confluent.conftest import Make
from tests.forked import in_child, needs_fork
from tests.scripted.producing import WAIT_S
from tests.scripted.scripted_broker import METADATA, PRODUCE, Act, ScriptedCluster
from tools.harness.until import Running, until_blocked


class Reports:
    """A delivery callback that keeps what it gets."""

    def __init__(self) -> None:
        self.errors: list[KafkaError | None] = []
        self.messages: list[Message] = []
        self.threads: set[int] = set()

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        self.errors.append(error)
        self.messages.append(message)
        self.threads.add(threading.get_ident())


def test_a_report_has_the_record_and_its_place(cluster: ScriptedCluster, make: Make) -> None:
    reports = Reports()
    producer = make()
    before_ms = int(time.time() * 1000)
    producer.produce("orders", "pàid", key="7", headers={"trace": "1", "none": None}, on_delivery=reports)
    producer.produce("orders", b"sent", callback=reports, timestamp=1234, headers=[("a", b"x"), ("a", b"y")])
    assert producer.flush(WAIT_S) == 0
    first, second = reports.messages
    assert (first.topic(), first.partition(), first.offset()) == ("orders", 0, 0)
    assert (first.key(), first.value()) == (b"7", "pàid".encode())
    assert first.headers() == [("trace", b"1"), ("none", None)]
    assert first.error() is None
    assert reports.errors == [None, None]
    kind, at_ms = first.timestamp()
    assert kind == TIMESTAMP_CREATE_TIME
    assert before_ms - 10 <= at_ms
    latency = first.latency()
    assert latency is not None
    assert 0 < latency < WAIT_S
    assert (second.offset(), second.key(), second.timestamp()) == (1, None, (TIMESTAMP_CREATE_TIME, 1234))
    assert len(first) == len("pàid".encode())
    records = cluster.topics["orders"].partitions[0].records
    assert [(r.key, r.value) for r in records] == [(b"7", "pàid".encode()), (None, b"sent")]
    assert records[1].headers == (("a", b"x"), ("a", b"y"))


def test_a_record_may_have_neither_key_nor_value(cluster: ScriptedCluster, make: Make) -> None:
    producer = make()
    producer.produce("orders")
    assert producer.flush(WAIT_S) == 0
    (record,) = cluster.topics["orders"].partitions[0].records
    assert (record.key, record.value) == (None, None)
    with (
        KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as other,
        pytest.raises(ValueError, match="needs a value or a key"),
    ):
        other.send("orders")


def test_callbacks_run_in_poll_on_the_calling_thread_and_in_order(make: Make) -> None:
    reports = Reports()
    producer = make({"on_delivery": reports, "batch.size": 300})
    for number in range(200):
        producer.produce("orders", b"%d" % number)
    deadline = time.monotonic() + WAIT_S
    served = 0
    while served < 200 and time.monotonic() < deadline:
        assert reports.messages == [] or served
        served += producer.poll(0.1)
    assert [message.offset() for message in reports.messages] == list(range(200))
    assert reports.threads == {threading.get_ident()}
    assert not [t.name for t in threading.enumerate() if t.name.startswith("cyproducer-callbacks")]


def test_a_poll_without_events_ends_with_its_timeout(make: Make) -> None:
    producer = make()
    began = time.monotonic()
    assert producer.poll(0.2) == 0
    assert time.monotonic() - began >= 0.2
    assert producer.poll(0) == 0


def test_a_poll_without_a_timeout_waits_for_a_report(
    cluster: ScriptedCluster, held: threading.Event, make: Make
) -> None:
    reports = Reports()
    producer = make()
    producer.produce("orders", b"1", on_delivery=reports)
    cluster.wait_for_requests(PRODUCE, 1)
    assert producer.poll(0.01) == 0
    threading.Timer(0.05, held.set).start()
    assert producer.poll() == 1
    assert len(reports.messages) == 1


def test_an_exception_in_a_callback_leaves_the_later_ones(make: Make) -> None:
    seen: list[int | None] = []

    def raising(error: KafkaError | None, message: Message) -> None:
        seen.append(message.offset())
        if len(seen) == 2:
            raise RuntimeError("from the callback")

    producer = make({"on_delivery": raising, "linger.ms": 1000})
    for _ in range(4):
        producer.produce("orders", b"1")
    with pytest.raises(RuntimeError, match="from the callback"):
        producer.flush(WAIT_S)
    assert seen == [0, 1]
    assert len(producer) == 2
    assert producer.poll(0) == 2
    assert seen == [0, 1, 2, 3]
    assert len(producer) == 0


def test_a_callback_may_produce_and_poll(make: Make) -> None:
    producer = make()
    seen: list[bytes] = []

    def again(error: KafkaError | None, message: Message) -> None:
        seen.append(message.value())
        if len(seen) < 3:
            producer.produce("orders", b"%d" % len(seen), on_delivery=again)
            producer.flush(WAIT_S)

    producer.produce("orders", b"0", on_delivery=again)
    assert producer.flush(WAIT_S) == 0
    assert seen == [b"0", b"1", b"2"]


def test_only_errors_are_reported_if_the_program_wants_that(cluster: ScriptedCluster, make: Make) -> None:
    reports = Reports()
    producer = make({"delivery.report.only.error": "true", "on_delivery": reports})
    producer.produce("orders", b"1")
    assert producer.flush(WAIT_S) == 0
    assert reports.messages == []
    cluster.topics["orders"].partitions[0].error = 29
    producer.produce("orders", b"2")
    assert producer.flush(WAIT_S) == 0
    assert reports.errors == [KafkaError.TOPIC_AUTHORIZATION_FAILED]


def test_the_own_callback_of_a_record_comes_before_the_common_one(make: Make) -> None:
    common, own = Reports(), Reports()
    producer = make({"on_delivery": common})
    producer.produce("orders", b"1", on_delivery=own)
    producer.produce("orders", b"2")
    assert producer.flush(WAIT_S) == 0
    assert [m.value() for m in own.messages] == [b"1"]
    assert [m.value() for m in common.messages] == [b"2"]


# The queue


def test_a_full_queue_raises_at_once(held: threading.Event, make: Make) -> None:
    producer = make({"queue.buffering.max.messages": 3})
    for _ in range(3):
        producer.produce("orders", b"1")
    with pytest.raises(BufferError, match=r"Queue full: 3 records \(queue\.buffering\.max\.messages\)"):
        producer.produce("orders", b"1")
    assert len(producer) == 3
    held.set()
    assert producer.flush(WAIT_S) == 0
    producer.produce("orders", b"1")


def test_reports_that_nobody_polls_fill_the_queue(cluster: ScriptedCluster, make: Make) -> None:
    producer = make({"queue.buffering.max.messages": 2, "on_delivery": lambda *_: None})
    for _ in range(2):
        producer.produce("orders", b"1")
    cluster.wait_for(lambda: len(cluster.topics["orders"].values) == 2)
    with pytest.raises(BufferError):
        producer.produce("orders", b"1")
    assert producer.flush(WAIT_S) == 0
    producer.produce("orders", b"1")


def test_full_memory_raises_at_once(make: Make) -> None:
    producer = make({"queue.buffering.max.kbytes": 4, "message.max.bytes": 2000}, alone=True)

    def fill() -> None:
        for _ in range(10):
            producer.produce("orders", bytes(900))

    with pytest.raises(BufferError, match=r"queue\.buffering\.max\.kbytes"):
        fill()
    assert 0 < len(producer) < 10


def test_flush_returns_what_is_left(held: threading.Event, make: Make) -> None:
    producer = make()
    producer.produce("orders", b"1")
    producer.produce("orders", b"2", on_delivery=lambda *_: None)
    assert producer.flush(0.05) == 2
    held.set()
    assert producer.flush() == 0


def test_a_producer_is_true_when_it_is_empty(make: Make) -> None:
    producer = make()
    assert len(producer) == 0
    assert producer


# Errors


@pytest.mark.parametrize(
    ("code", "becomes"),
    [
        (29, KafkaError.TOPIC_AUTHORIZATION_FAILED),
        (87, KafkaError.INVALID_RECORD),
        (10, KafkaError.MSG_SIZE_TOO_LARGE),
    ],
)
def test_a_broker_s_error_is_reported_with_its_code(
    cluster: ScriptedCluster, make: Make, code: int, becomes: int
) -> None:
    reports = Reports()
    cluster.topics["orders"].partitions[0].error = code
    producer = make({"on_delivery": reports})
    producer.produce("orders", b"1")
    assert producer.flush(WAIT_S) == 0
    (error,) = reports.errors
    assert error is not None
    assert error.code() == becomes
    assert error.str().startswith("Broker: ")
    (message,) = reports.messages
    assert message.error() == error
    assert (message.partition(), message.offset(), message.latency()) == (0, None, None)


def test_a_record_that_reaches_no_broker_times_out(make: Make) -> None:
    reports = Reports()
    producer = make({"message.timeout.ms": 50, "on_delivery": reports}, alone=True)
    producer.produce("orders", b"1")
    assert producer.flush(WAIT_S) == 0
    (error,) = reports.errors
    assert error is not None
    assert error == KafkaError._MSG_TIMED_OUT
    assert error.name() == "_MSG_TIMED_OUT"
    assert "Message timed out" in error.str()
    assert "connection refused" in error.str()
    assert (error.retriable(), error.fatal(), error.txn_requires_abort()) == (True, False, False)


def test_a_topic_that_stays_unknown(cluster: ScriptedCluster, make: Make) -> None:
    reports = Reports()
    producer = make({"message.timeout.ms": 100, "on_delivery": reports})
    producer.produce("missing", b"1")
    assert producer.flush(WAIT_S) == 0
    assert reports.errors == [KafkaError._UNKNOWN_TOPIC]


def test_a_partition_that_does_not_exist(cluster: ScriptedCluster, make: Make) -> None:
    reports = Reports()
    producer = make({"on_delivery": reports})
    # Before the metadata is known it can only be reported.
    producer.produce("orders", b"1", partition=1)
    assert producer.flush(WAIT_S) == 0
    assert reports.errors == [KafkaError._UNKNOWN_PARTITION]
    asked = len(cluster.received(METADATA))
    with pytest.raises(KafkaException) as caught:
        producer.produce("orders", b"1", partition=1)
    assert caught.value.args[0].code() == KafkaError._UNKNOWN_PARTITION
    # It may be new, so the metadata is asked for.
    cluster.wait_for_requests(METADATA, asked + 1)
    assert len(producer) == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"value": bytes(2000)}, KafkaError.MSG_SIZE_TOO_LARGE),
        ({"topic": "no topic"}, KafkaError.TOPIC_EXCEPTION),
        ({"partition": -2}, KafkaError._INVALID_ARG),
        ({"timestamp": -1}, KafkaError._INVALID_ARG),
    ],
)
def test_what_produce_refuses(make: Make, arguments: dict[str, Any], code: int) -> None:
    producer = make({"message.max.bytes": 1000})
    producer.produce("orders", b"1")
    assert producer.flush(WAIT_S) == 0
    with pytest.raises(KafkaException) as caught:
        producer.produce(**({"topic": "orders", "value": b"1"} | arguments))
    assert caught.value.args[0].code() == code
    assert len(producer) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"value": 1},
        {"key": ["x"]},
        {"topic": None},
        {"partition": "0"},
        {"headers": "ab"},
        {"headers": ["ab"]},
        {"headers": {"a": 1}},
        {"headers": [(b"a", b"1")]},
    ],
)
def test_wrong_types(make: Make, arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        make().produce(**({"topic": "orders"} | arguments))


def test_text_that_is_no_unicode_is_refused(make: Make) -> None:
    with pytest.raises(UnicodeEncodeError):
        make().produce("orders", "\ud800")


# Batches


def test_a_batch_is_accepted_but_for_what_is_refused(cluster: ScriptedCluster, make: Make) -> None:
    common, own = Reports(), Reports()
    producer = make({"message.max.bytes": 1000})
    messages: list[dict[str, Any]] = [
        {"value": "a", "key": "k", "headers": {"h": b"1"}, "timestamp": 5},
        {"value": bytes(2000)},
        {"value": b"b", "callback": own, "partition": 0},
        {},
    ]
    assert producer.produce_batch("orders", messages, on_delivery=common) == 3
    assert [message.get("_error") for message in messages] == [
        None,
        KafkaError.MSG_SIZE_TOO_LARGE,
        None,
        None,
    ]
    assert producer.flush(WAIT_S) == 0
    assert [m.value() for m in common.messages] == [b"a", None]
    assert [m.value() for m in own.messages] == [b"b"]
    records = cluster.topics["orders"].partitions[0].records
    assert (records[0].headers, records[0].timestamp) == ((("h", b"1"),), 5)


def test_a_batch_that_does_not_fit(make: Make) -> None:
    producer = make({"queue.buffering.max.messages": 2}, alone=True)
    messages: list[dict[str, Any]] = [{"value": b"1"} for _ in range(3)]
    assert producer.produce_batch("orders", messages) == 2
    assert messages[2]["_error"] == KafkaError._QUEUE_FULL


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (({"value": b"1"},), "messages must be a list"),
        ([{"value": b"1"}, "x"], "Message at index 1 must be a dict"),
        ([{"value": 1}], "Message value at index 0 must be bytes or str"),
        ([{"key": []}], "Message key at index 0 must be bytes or str"),
        ([{"partition": "1"}], "Message partition at index 0 must be int"),
    ],
)
def test_a_batch_of_a_wrong_type_sends_nothing(make: Make, messages: Any, text: str) -> None:
    producer = make()
    with pytest.raises(TypeError, match=text):
        producer.produce_batch("orders", messages)
    assert len(producer) == 0


# Purging


def test_purging_the_queue_reports_the_records(make: Make) -> None:
    reports = Reports()
    producer = make({"on_delivery": reports}, alone=True)
    producer.produce("orders", b"1")
    producer.purge(in_queue=False)
    assert producer.flush(0.01) == 1
    producer.purge(in_flight=False)
    assert producer.flush(0) == 0
    assert reports.errors == [KafkaError._PURGE_QUEUE]
    assert reports.messages[0].partition() is None


def test_purging_what_is_in_flight_and_what_waits_behind_it(
    cluster: ScriptedCluster, held: threading.Event, make: Make
) -> None:
    reports = Reports()
    producer = make({"on_delivery": reports, "max.in.flight": 1})
    producer.produce("orders", b"flight")
    cluster.wait_for_requests(PRODUCE, 1)
    producer.produce("orders", b"queue")
    producer.purge(in_flight=False)
    assert producer.flush(0) == 1
    assert reports.errors == [KafkaError._PURGE_QUEUE]
    assert [message.value() for message in reports.messages] == [b"queue"]
    producer.purge(in_queue=False)
    assert producer.flush(0) == 0
    assert reports.errors[1:] == [KafkaError._PURGE_INFLIGHT]
    held.set()
    # It goes on: the sequence of the purged batch is in use.
    producer.produce("orders", b"later")
    assert producer.flush(WAIT_S) == 0
    assert reports.errors[2:] == [None]
    assert cluster.topics["orders"].values == [b"flight", b"later"]


# The cluster


def test_list_topics_describes_the_cluster(cluster: ScriptedCluster, make: Make) -> None:
    cluster.create_topic("more", 3)
    found = make().list_topics(timeout=WAIT_S)
    assert sorted(found.topics) == ["more", "orders"]
    (broker,) = found.brokers.values()
    assert f"{broker.host}:{broker.port}" == cluster.nodes[broker.id].address
    partition = found.topics["more"].partitions[2]
    assert (partition.id, partition.leader, partition.error) == (2, broker.id, None)
    assert broker.id in partition.replicas
    assert broker.id in partition.isrs
    assert found.topics["more"].error is None
    assert found.orig_broker_name is not None
    assert cluster.nodes[broker.id].address in found.orig_broker_name


def test_cluster_id_is_that_of_the_metadata(cluster: ScriptedCluster, make: Make) -> None:
    producer = make()
    described = producer.list_topics(timeout=WAIT_S).cluster_id
    assert described
    assert producer.cluster_id(WAIT_S) == described
    # It needs no description of the topics.
    assert cluster.received(METADATA)[-1].topics == []


def test_list_topics_of_one_topic_creates_none(cluster: ScriptedCluster, make: Make) -> None:
    producer = make()
    assert list(producer.list_topics("orders", WAIT_S).topics) == ["orders"]
    missing = producer.list_topics("missing", WAIT_S).topics["missing"]
    assert missing.error == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert "missing" not in cluster.topics


def test_list_topics_between_records(cluster: ScriptedCluster, make: Make) -> None:
    producer = make()
    for number in range(20):
        cluster.create_topic(f"t{number}")
        producer.produce(f"t{number}", b"1")
        assert f"t{number}" in producer.list_topics(timeout=WAIT_S).topics
    assert producer.flush(WAIT_S) == 0


def test_list_topics_asks_again_after_a_lost_connection(cluster: ScriptedCluster, make: Make) -> None:
    producer = make()
    producer.list_topics(timeout=WAIT_S)
    cluster.act(METADATA, Act(drop=True))
    assert "orders" in producer.list_topics(timeout=WAIT_S).topics


def test_list_topics_of_an_old_broker_may_create_a_topic(cluster: ScriptedCluster, make: Make) -> None:
    for node in cluster.nodes.values():
        node.versions[METADATA] = (0, 3)
    cluster.auto_create = 1
    assert list(make().list_topics("new", WAIT_S).topics) == ["new"]
    assert "new" in cluster.topics


def test_list_topics_without_a_broker(make: Make) -> None:
    with pytest.raises(KafkaException, match="connection refused") as caught:
        make(alone=True).list_topics(timeout=0.3)
    assert caught.value.args[0].code() == KafkaError._TRANSPORT
    with pytest.raises(KafkaException):
        make().list_topics("no topic", 1)


# The end


def test_close_delivers_and_reports(cluster: ScriptedCluster, make: Make) -> None:
    reports = Reports()
    with make({"linger.ms": 10_000, "on_delivery": reports}) as producer:
        producer.produce("orders", b"1")
    assert reports.errors == [None]
    assert cluster.topics["orders"].values == [b"1"]
    assert producer.close() is True
    assert len(producer) == 0
    for call in (
        lambda: producer.produce("orders", b"1"),
        lambda: producer.produce_batch("orders", []),
        producer.poll,
        producer.flush,
        producer.purge,
        producer.list_topics,
        producer.begin_transaction,
        lambda: producer.set_sasl_credentials("a", "b"),
    ):
        with pytest.raises(RuntimeError, match="Producer has been closed"):
            call()


def test_close_delivers_and_ends_even_if_callbacks_raise(cluster: ScriptedCluster, make: Make) -> None:
    seen: list[bytes] = []

    def raising(error: KafkaError | None, message: Message) -> None:
        seen.append(message.value())
        raise RuntimeError(f"from callback {len(seen)}")

    producer = make({"on_delivery": raising, "linger.ms": 0, "batch.size": 1})
    engine = producer.kafka_producer
    for value in (b"1", b"2", b"3"):
        producer.produce("orders", value)
    with pytest.raises(RuntimeError, match="from callback 1"):
        producer.close()
    assert seen == cluster.topics["orders"].values == [b"1", b"2", b"3"]
    assert "closed" in repr(engine)
    with pytest.raises(RuntimeError, match="Producer has been closed"):
        producer.poll(0)


def test_after_a_purge_records_of_the_same_topic_are_sent(cluster: ScriptedCluster, make: Make) -> None:
    producer = make()
    producer.produce("later", b"1")
    producer.purge()
    assert producer.flush(0) == 0
    cluster.create_topic("later")
    producer.produce("later", b"2")
    assert producer.flush(WAIT_S) == 0
    assert cluster.topics["later"].values == [b"2"]


def test_a_purge_waits_for_a_batch_that_is_being_compressed(
    cluster: ScriptedCluster, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    compressing, go_on = threading.Event(), threading.Event()

    class Slow:
        codec_id = 1

        def compress(self, data: memoryview) -> bytes:
            compressing.set()
            assert go_on.wait(WAIT_S)
            return bytes(data)

    monkeypatch.setattr("cyproducer.records.compression.compressor_for", lambda *_: Slow())
    reports = Reports()
    producer = make({"compression.type": "gzip", "batch.size": 1000, "linger.ms": 1000})
    assert producer.kafka_producer.partitions_for("orders")
    producer.produce("orders", bytes(600), b"k", 0, reports)
    filling = Running(producer.produce, "orders", bytes(600), b"k", 0, reports)
    assert compressing.wait(WAIT_S)
    purge = Running(producer.purge)
    until_blocked(purge.thread)
    assert purge.running
    go_on.set()
    filling.outcome()
    purge.outcome()
    producer.poll(0)
    assert len(reports.errors) == 2


def test_a_producer_whose_constructor_was_not_called_is_closed() -> None:
    class Careless(Producer):
        def __init__(self) -> None:
            pass

    producer = Careless()
    assert len(producer) == 0
    assert producer.close()
    with pytest.raises(RuntimeError, match="Producer has been closed"):
        producer.produce("orders", b"1")


def test_a_producer_may_be_closed_while_produce_reads_its_arguments(make: Make) -> None:
    """Another thread may close it at any moment. Here ``produce()`` itself calls the code that does."""
    producer = make({})

    class Closing(dict[str, bytes]):
        def items(self) -> Any:
            producer.close()
            return super().items()

    with pytest.raises(RuntimeError, match="Producer has been closed"):
        producer.produce("orders", b"1", headers=Closing(a=b"b"))
    assert producer._path() is None


def test_a_producer_is_collected_with_its_engine(cluster: ScriptedCluster) -> None:
    gc.disable()
    try:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        producer.produce("orders", b"1", on_delivery=lambda *_: None)
        engine = weakref.ref(producer.kafka_producer)
        del producer
        assert engine() is None
    finally:
        gc.enable()
    # What was accepted is delivered.
    cluster.wait_for(lambda: cluster.topics["orders"].values == [b"1"])


def test_several_threads_may_poll_and_produce(make: Make) -> None:
    reports = Reports()
    producer = make({"on_delivery": reports, "queue.buffering.max.messages": 500})
    ended = threading.Event()

    def poll() -> None:
        while not ended.is_set():
            producer.poll(0.01)

    def produce() -> None:
        for number in range(1000):
            while True:
                try:
                    producer.produce("orders", b"%d" % number)
                    break
                except BufferError:
                    producer.poll(0.01)

    pollers = [threading.Thread(target=poll) for _ in range(2)]
    senders = [threading.Thread(target=produce) for _ in range(2)]
    for thread in (*pollers, *senders):
        thread.start()
    for thread in senders:
        thread.join()
    assert producer.flush(WAIT_S) == 0
    ended.set()
    for thread in pollers:
        thread.join()
    assert sorted(m.offset() or 0 for m in reports.messages) == list(range(2000))


@needs_fork
def test_a_child_of_a_fork_has_a_producer_of_its_own(
    cluster: ScriptedCluster, held: threading.Event, make: Make
) -> None:
    reports = Reports()
    producer = make({"on_delivery": reports})
    producer.produce("orders", b"parent")
    cluster.wait_for_requests(PRODUCE, 1)

    def child() -> list[bytes]:
        assert len(producer) == 0
        assert producer.flush(1) == 0
        producer.produce("orders", b"child")
        assert producer.flush(WAIT_S) == 0
        return [message.value() for message in reports.messages]

    assert in_child(child) == [b"child"]
    held.set()
    assert producer.flush(WAIT_S) == 0
    assert [message.value() for message in reports.messages] == [b"parent"]


@needs_fork
def test_a_fork_while_a_thread_looks_for_events(make: Make) -> None:
    told: list[KafkaError] = []
    producer = make({"error_cb": told.append}, alone=True)

    def child() -> bool:
        deadline = time.monotonic() + WAIT_S
        while not told and time.monotonic() < deadline:
            producer.poll(0.05)
        return bool(told)

    # As if another thread held it.
    with producer._events._lock:
        assert in_child(child)


# Objects


def test_messages_are_made_changed_compared_and_pickled() -> None:
    error = KafkaError(KafkaError._MSG_TIMED_OUT, "late", retriable=True)
    message = Message("t", 1, 2, b"k", b"v", [("h", b"1")], error, (1, 5), 0.5, 3, 1)
    assert (message.topic(), message.partition(), message.offset()) == ("t", 1, 2)
    assert (message.timestamp(), message.latency(), message.leader_epoch()) == ((1, 5), 0.5, 3)
    again = pickle.loads(pickle.dumps(message))
    assert again == message
    assert again.error().str() == "late"
    again.set_value({"any": "object"})
    assert (again.value(), again == message) == ({"any": "object"}, False)
    for setter, getter in (
        (again.set_key, again.key),
        (again.set_topic, again.topic),
        (again.set_headers, again.headers),
        (again.set_error, again.error),
    ):
        setter("new")
        assert getter() == "new"
    empty = Message()
    assert (empty.partition(), empty.offset(), empty.latency(), len(empty), bool(empty)) == (
        None, None, None, 0, True,
    )  # fmt: skip
    assert message != 1
    with pytest.raises(TypeError):
        hash(message)
    with pytest.raises(TypeError):
        Message.topic(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="timestamp"):
        Message(timestamp="now")  # type: ignore[arg-type]


def test_to_poll_without_waiting_costs_no_sleep(cluster: ScriptedCluster, make: Make) -> None:
    # Programs call it for every record. Even a wait of no time takes 50 us, in which the thread does not run.
    reports = Reports()
    producer = make({"linger.ms": 60_000})
    for only_reports in (True, False):
        if not only_reports:
            producer = make({"linger.ms": 60_000, "error_cb": print})
        before = slept()
        for _ in range(2000):
            producer.produce("orders", b"x", on_delivery=reports)
            producer.poll(0)
        assert slept() - before < 1000
    producer.flush(0)


def slept() -> int:
    """How often this thread has given up its processor to wait."""
    status = Path("/proc/thread-self/status")
    if not status.exists():
        pytest.skip("needs /proc to count waits")
    (found,) = [line for line in status.read_text().splitlines() if line.startswith("voluntary_ctxt")]
    return int(found.split()[1])
