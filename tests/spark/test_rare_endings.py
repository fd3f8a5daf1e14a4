"""What is counted and closed where something has gone wrong before: refused batches, errors of closing."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cyproducer.errors import KafkaError, MessageSizeTooLargeError
from cyproducer.producer import KafkaProducer
from cyproducer.spark import sharing
from cyproducer.spark.dead_letters import CUT_BYTES, DeadLetters
from cyproducer.spark.sending import TaskWriter, write_all
from cyproducer.spark.sharing import SharedConfig, close_all, shared_producer
from cyproducer.testing import EmbeddedBroker
from tests.spark.writing import PLAIN, Picky, values


@pytest.fixture
def producer(broker: EmbeddedBroker) -> Iterator[KafkaProducer]:
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        yield producer


def config(broker: EmbeddedBroker, **more: int) -> SharedConfig:
    return SharedConfig({"bootstrap_servers": broker.bootstrap_servers, **more})


# Summaries


def test_bytes_of_a_refused_batch_are_counted_with_its_halves_alone(
    broker: EmbeddedBroker, producer: KafkaProducer
) -> None:
    broker.create_topic("halves-dead", 1)
    picky: Any = Picky(producer)
    dead = DeadLetters(producer, "halves-dead")
    summary = write_all(TaskWriter(picky, PLAIN, "halves", dead), [values(b"1", b"22", b"333", b"4444")])
    assert sorted(picky.taken) == [b"1", b"22", b"333", b"4444"]
    assert summary.bytes == 10


def test_a_task_without_rows_has_a_latency_that_compares(producer: KafkaProducer) -> None:
    summary = write_all(TaskWriter(producer, PLAIN, "no rows", None), [values()])
    assert (summary.rows, summary.p99_ms) == (0, 0.0)


# Dead letters


class Refusing:
    """A producer whose topic takes no record above ``CUT_BYTES`` bytes, which its own limit allows."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(max_request_size=1 << 20, delivery_timeout_ms=1000)
        self.sent: list[tuple[int, list[tuple[str, bytes | None]]]] = []

    def partitions_for(self, topic: str) -> set[int]:
        return {0}

    def flush(self, timeout: float) -> None:
        pass

    def send(self, topic: str, value: bytes, key: bytes | None, headers: Any) -> Any:
        self.sent.append((len(value), headers))

        def get() -> SimpleNamespace:
            if len(value) > CUT_BYTES:
                raise MessageSizeTooLargeError(topic)
            return SimpleNamespace(topic=topic, partition=0, offset=len(self.sent))

        return SimpleNamespace(get=get)


def test_a_dead_letter_that_is_cut_twice_tells_its_size_once() -> None:
    refusing: Any = Refusing()
    letters = DeadLetters(refusing, "dead")
    value = bytes(2 << 20)
    letters.send("t", 3, values(value), PLAIN, [ValueError("too large")])
    assert letters.finish() == 1
    (first, _), (second, headers) = refusing.sent
    assert 1 << 19 < first < 1 << 20
    assert CUT_BYTES // 2 < second <= CUT_BYTES
    assert headers == [
        ("cyproducer.error.topic", b"t"),
        ("cyproducer.error.partition", b"3"),
        ("cyproducer.error.class", b"ValueError"),
        ("cyproducer.error.message", b"too large"),
        ("cyproducer.error.bytes", b"%d" % len(value)),
    ]


# Shared producers


def test_a_task_that_takes_an_idle_producer_stops_the_timer_that_would_close_it(
    broker: EmbeddedBroker,
) -> None:
    """Else the timer of the first pause would cut the next one short."""
    with shared_producer(config(broker)):
        pass
    (shared,) = sharing._shared.values()
    timer = shared.timer
    assert timer is not None
    assert not timer.finished.is_set()
    with shared_producer(config(broker)):
        assert timer.finished.is_set()
        assert shared.timer is None
    assert shared.timer is not None


def test_one_producer_that_fails_to_close_keeps_no_other_open(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[KafkaProducer] = []
    close = KafkaProducer.close

    def failing(self: KafkaProducer, timeout: float | None = None) -> None:
        close(self, 0)
        closed.append(self)
        if len(closed) < 3:
            raise KafkaError(f"number {len(closed)}")

    monkeypatch.setattr(KafkaProducer, "close", failing)
    made = []
    for linger_ms in (1, 2, 3):
        with shared_producer(config(broker, linger_ms=linger_ms)) as producer:
            made.append(producer)
    with pytest.raises(KafkaError, match="number 1"):
        close_all()
    assert closed == made
    assert sharing._shared == {}
