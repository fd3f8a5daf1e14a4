"""Tests the writer for ``writeStream.foreach()``. Needs no Spark."""

import pickle
from typing import Any

import pytest

from cyproducer.errors import InvalidRecordError, KafkaConfigurationError
from cyproducer.producer import KafkaProducer
from cyproducer.spark import RowsFailedError, foreach_writer
from cyproducer.testing import EmbeddedBroker
from tests.integration.consume import Fetched, read_all
from tests.spark.test_rows import rows


def written(broker: EmbeddedBroker, topic: str | None, given: list[Any], **more: Any) -> None:
    """Writes one epoch, as Spark does with an unpickled copy."""
    writer = foreach_writer(topic, bootstrap_servers=broker.bootstrap_servers, **more)
    copy: Any = pickle.loads(pickle.dumps(writer))
    assert copy.open(0, 7)
    error = None
    try:
        for row in given:
            copy.process(row)
    except Exception as raised:
        error = raised
        raise
    finally:
        copy.close(error)


def headers_of(record: Fetched) -> dict[str, bytes | None]:
    return dict(record.headers)


@pytest.fixture(scope="module", autouse=True)
def _topic(broker: EmbeddedBroker) -> None:
    broker.create_topic("bad", 1)


def test_every_column_is_written(broker: EmbeddedBroker) -> None:
    broker.create_topic("every", 2)
    fields = ["topic", "key", "value", "headers", "partition", "timestamp"]
    (row,) = rows(fields, ("every", "k", b"v", [("a", b"1")], 1, 1_700_000_000_000))
    written(broker, None, [row])
    (found,) = read_all(broker.bootstrap_servers, "every", 1)
    assert (found.partition, found.key, found.value) == (1, b"k", b"v")
    assert found.timestamp_ms == 1_700_000_000_000
    assert headers_of(found) == {"a": b"1"}


def test_a_row_is_sent_before_the_epoch_ends(broker: EmbeddedBroker) -> None:
    """In real-time mode an epoch takes minutes."""
    broker.create_topic("soon", 1)
    writer = foreach_writer("soon", bootstrap_servers=broker.bootstrap_servers)
    writer.open(0, 0)
    (row,) = rows(["value"], ("1",))
    writer.process(row)
    assert [r.value for r in read_all(broker.bootstrap_servers, "soon", 1)] == [b"1"]
    writer.close(None)


@pytest.mark.parametrize("name", ["linger_ms", "linger.ms"])
def test_linger_is_0_unless_it_is_given(name: str) -> None:
    servers = {"bootstrap_servers": "127.0.0.1:1"}
    assert foreach_writer("t", **servers)._config.config["linger_ms"] == 0
    given: dict[str, Any] = {name: 5}
    assert foreach_writer("t", **servers, **given)._config.config["linger_ms"] == 5


def test_close_returns_when_every_row_is_acknowledged(broker: EmbeddedBroker) -> None:
    broker.create_topic("all", 3)
    hour_ms = 3_600_000
    # A close that did not flush would take an hour.
    written(
        broker,
        "all",
        rows(["value"], *((str(number),) for number in range(500))),
        linger_ms=hour_ms,
        delivery_timeout_ms=2 * hour_ms,
    )
    found = read_all(broker.bootstrap_servers, "all", 500)
    assert sorted(int(r.value or b"-1") for r in found) == list(range(500))


@pytest.mark.parametrize(
    ("row", "error", "says"),
    [
        (rows(["value", "size"], ("v", 1)), TypeError, "has the field 'size'"),
        (rows(["key"], ("k",)), TypeError, "no field 'value', only key"),
        (rows(["value", "partition"], ("v", 9)), RowsFailedError, "topic 'bad'"),
        (rows(["value"], ("v" * 5000,)), RowsFailedError, "RecordTooLargeError"),
    ],
)
def test_a_row_that_cannot_be_written_fails_the_task(
    broker: EmbeddedBroker, row: list[Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        written(broker, "bad", row, max_request_size=3000, max_block_ms=1000)


def test_rows_that_cannot_be_sent_become_dead_letters(broker: EmbeddedBroker) -> None:
    broker.create_topic("some", 1)
    broker.create_topic("dead", 1)
    given = rows(
        ["topic", "key", "value", "headers"],
        ("some", "1", "good", None),
        ("some", "2", "x" * 5000, [("a", "b")]),
        (None, "3", "no topic", None),
        ("missing", "4", "no such topic", None),
    )
    written(broker, None, given, dead_letter_topic="dead", max_request_size=3000, max_block_ms=1000)
    assert [r.key for r in read_all(broker.bootstrap_servers, "some", 1)] == [b"1"]
    dead = read_all(broker.bootstrap_servers, "dead", 3)
    large, without, lost = sorted(dead, key=lambda each: each.key or b"")
    assert (large.key, without.key, lost.key, lost.value) == (b"2", b"3", b"4", b"no such topic")
    assert headers_of(large)["cyproducer.error.class"] == b"RecordTooLargeError"
    assert headers_of(large)["a"] == b"b"
    assert headers_of(lost)["cyproducer.error.topic"] == b"missing"


def test_after_an_error_close_waits_for_nothing_and_the_next_task_has_a_new_producer(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("failed", 1)
    (row,) = rows(["value"], ("1",))
    with monkeypatch.context() as patch:
        patch.setattr(KafkaProducer, "flush", lambda *given: pytest.fail("waits"))
        writer = foreach_writer("failed", bootstrap_servers=broker.bootstrap_servers)
        writer.open(0, 0)
        failed = writer._producer
        writer.process(row)
        writer.close(ValueError("of the query"))
    writer.open(0, 0)
    assert writer._producer is not failed
    writer.close(None)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"acks": 1}, "needs an idempotent producer"),
        ({"value_serializer": str.encode}, "value_serializer"),
        ({"lingerms": 1}, "linger_ms"),
    ],
)
def test_options_are_checked_on_the_driver(given: dict[str, Any], says: str) -> None:
    with pytest.raises(KafkaConfigurationError, match=says):
        foreach_writer("t", bootstrap_servers="127.0.0.1:1", **given)


def test_a_row_is_a_dead_letter_only_if_it_is_refused_alone_too(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker refuses a whole batch because of one bad record."""
    broker.create_topic("refused", 1)
    broker.create_topic("refused-dead", 1)
    send = KafkaProducer.send
    tries: list[Any] = []

    class Refused:
        topic, partition, is_done = "refused", 0, False

        def get(self) -> None:
            error = InvalidRecordError("refused")
            error.maybe_written = False
            raise error

    def send_first(producer: KafkaProducer, topic: str, value: Any, *rest: Any) -> Any:
        tries.append(value)
        if topic == "refused" and (value == b"bad" or tries.count(value) == 1):
            return Refused()
        return send(producer, topic, value, *rest)

    monkeypatch.setattr(KafkaProducer, "send", send_first)
    written(broker, "refused", rows(["value"], ("good",), ("bad",)), dead_letter_topic="refused-dead")
    assert [r.value for r in read_all(broker.bootstrap_servers, "refused", 1)] == [b"good"]
    assert [r.value for r in read_all(broker.bootstrap_servers, "refused-dead", 1)] == [b"bad"]
