"""Tests the sharing of producers: one per configuration, drained after use, closed when idle."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cyproducer.producer import KafkaProducer
from cyproducer.spark import sharing
from cyproducer.spark.sharing import SharedConfig, close_all, shared_producer
from cyproducer.testing import EmbeddedBroker
from tests.forked import Child, needs_fork
from tools.harness.until import PATIENCE_S, until


@pytest.fixture(scope="module", autouse=True)
def _topic(broker: EmbeddedBroker) -> None:
    broker.create_topic("t", 2)


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    close_all()
    assert sharing._shared == {}


def config(broker: EmbeddedBroker, **more: int) -> SharedConfig:
    return SharedConfig({"bootstrap_servers": broker.bootstrap_servers, **more})


def test_equal_configurations_share_a_producer_and_others_do_not(broker: EmbeddedBroker) -> None:
    with (
        shared_producer(config(broker)) as first,
        shared_producer(config(broker)) as second,
        shared_producer(config(broker, linger_ms=1)) as third,
    ):
        assert second is first
        assert third is not first
    with shared_producer(config(broker)) as again:
        assert again is first


def test_without_a_with_block_the_error_says_how_to_use_it(broker: EmbeddedBroker) -> None:
    lent: Any = shared_producer(config(broker))
    with pytest.raises(
        AttributeError, match=r"no 'send': use it in a with block, as in 'with shared_producer"
    ):
        lent.send("t", b"v")
    made: Any = {"bootstrap_servers": broker.bootstrap_servers}
    with pytest.raises(TypeError, match=r"called with dict: must be a SharedConfig"):
        shared_producer(made)


def test_all_records_have_an_outcome_when_the_block_ends(broker: EmbeddedBroker) -> None:
    with shared_producer(config(broker, linger_ms=30_000)) as producer:
        future = producer.send("t", b"v")
        assert not future.is_done
    assert future.succeeded()


def test_an_idle_producer_is_closed_and_one_in_use_is_not(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "IDLE_S", 0.05)
    closed = threading.Event()
    close = KafkaProducer.close

    def closing(self: KafkaProducer, *given: float | None) -> None:
        close(self, *given)
        closed.set()

    monkeypatch.setattr(KafkaProducer, "close", closing)
    with shared_producer(config(broker)):
        with shared_producer(config(broker)):
            pass
        assert not closed.wait(0.2)
    assert closed.wait(PATIENCE_S)
    until(lambda: not sharing._shared, "the producer being forgotten")


def test_a_task_in_time_keeps_an_idle_producer_open(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    due: list[Callable[[], None]] = []

    class Timer(threading.Timer):
        """A timer that fires when the test calls its function."""

        def start(self) -> None:
            due.append(self.run_out)

        def run_out(self) -> None:
            if not self.finished.is_set():
                self.function(*self.args)

    monkeypatch.setattr(threading, "Timer", Timer)
    with shared_producer(config(broker)) as first:
        pass
    with shared_producer(config(broker)) as second:
        assert second is first
        for run_out in due:
            run_out()
        assert second.send("t", b"v").get(PATIENCE_S).topic == "t"
    with shared_producer(config(broker)) as third:
        assert third is first


def test_the_producer_is_not_reused_after_an_exception(broker: EmbeddedBroker) -> None:
    with pytest.raises(ZeroDivisionError), shared_producer(config(broker)) as first:
        raise ZeroDivisionError
    with shared_producer(config(broker)) as second:
        assert second is not first


def test_a_generator_that_is_closed_early_leaves_nothing_unsent(broker: EmbeddedBroker) -> None:
    sent = []

    def send() -> Iterator[None]:
        with shared_producer(config(broker, linger_ms=30_000)) as producer:
            sent.append(producer.send("t", b"v"))
            yield

    generator = send()
    next(generator)
    assert not sent[0].is_done
    del generator
    assert sent[0].succeeded()


@needs_fork
def test_a_forked_child_creates_its_own_producer_while_the_parent_holds_the_lock(
    broker: EmbeddedBroker,
) -> None:
    with shared_producer(config(broker)), sharing._lock:

        def own() -> list[int]:
            with shared_producer(config(broker)) as producer:
                users = [shared.users for shared in sharing._shared.values()]
                producer.send("t", b"child").get(PATIENCE_S)
                return users

        assert Child(own).outcome() == [1]


def test_a_producer_in_use_still_works_after_close_all(broker: EmbeddedBroker) -> None:
    with shared_producer(config(broker)) as producer:
        close_all()
        assert producer.send("t", b"v").get(PATIENCE_S).topic == "t"


def test_a_timer_that_fires_while_a_task_takes_the_producer_closes_nothing(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer's thread has already passed the point at which it can be cancelled."""
    due: list[Callable[[], None]] = []

    class Timer(threading.Timer):
        def start(self) -> None:
            due.append(lambda: self.function(*self.args))

    monkeypatch.setattr(threading, "Timer", Timer)
    with shared_producer(config(broker)) as first:
        pass
    with shared_producer(config(broker)) as second:
        assert second is first
        due[0]()
        assert second.send("t", b"v").get(PATIENCE_S).topic == "t"
        with shared_producer(config(broker)) as third:
            assert third is first
    due[-1]()
    assert sharing._shared == {}
