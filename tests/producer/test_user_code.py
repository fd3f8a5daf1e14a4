"""Users' code that a sender triggers must not stop a producer: log handlers, reporters, finalizers."""

import gc
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cyproducer.base.text import line_prefix
from cyproducer.base.user_thread import DRAIN_S, NAME, user_thread
from cyproducer.errors import DeliveryTimeoutError, IllegalStateError, KafkaError
from cyproducer.producer import KafkaProducer
from tests.forked import in_child, needs_fork
from tests.scripted.producing import WAIT_S, CollectingSelector, no_produce, options, producing
from tests.scripted.scripted_broker import PRODUCE, Act, ScriptedCluster
from tools.harness.until import until

NOT_ENOUGH_REPLICAS, INVALID_TOPIC = 19, 17


class Handler(logging.Handler):
    """Calls ``act`` for the first line, with its lock held, as handlers are called. Records all lines."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__(logging.WARNING)
        self.act = act
        self.called = threading.Event()
        self.returned = threading.Event()
        self.raised: BaseException | None = None
        self.lines: list[logging.LogRecord] = []
        self.threads: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record)
        self.threads.append(threading.current_thread().name)
        if self.called.is_set():
            return
        self.called.set()
        try:
            self.act()
        except BaseException as error:
            self.raised = error
            raise
        finally:
            self.returned.set()


@contextmanager
def handling(act: Callable[[], object] = lambda: None) -> Iterator[Handler]:
    """A handler for the package's log lines; when the context ends, none of them is still being handled."""
    handler = Handler(act)
    logger = logging.getLogger("cyproducer")
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        assert user_thread.drain(WAIT_S)


# Log handlers


def test_a_handler_may_send_through_the_producer_that_logs() -> None:
    sent = []
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        with handling(lambda: sent.append(producer.send("orders", b"a line").get(WAIT_S))) as handler:
            cluster.act(PRODUCE, Act(error=NOT_ENOUGH_REPLICAS))
            assert producer.send("orders", b"1").get(WAIT_S).offset == 0
            assert handler.returned.wait(WAIT_S)
        assert handler.raised is None
        assert sent[0].offset == 1


def test_a_handler_may_flush() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        with handling(producer.flush) as handler:
            cluster.act(PRODUCE, Act(error=NOT_ENOUGH_REPLICAS))
            future = producer.send("orders", b"1")
            assert handler.returned.wait(WAIT_S)
            assert future.succeeded()
        assert handler.raised is None


def test_a_handler_may_close() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        with handling(producer.close) as handler:
            cluster.act(PRODUCE, Act(error=NOT_ENOUGH_REPLICAS))
            future = producer.send("orders", b"1")
            assert handler.returned.wait(WAIT_S)
            assert future.succeeded()
        assert handler.raised is None


def test_a_handler_may_wait_for_a_lock_that_a_sending_thread_holds() -> None:
    lock = threading.Lock()

    def act() -> None:
        with lock:
            pass

    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer, handling(act) as handler:
        cluster.act(PRODUCE, Act(error=NOT_ENOUGH_REPLICAS))
        with lock:
            future = producer.send("orders", b"1")
            assert handler.called.wait(WAIT_S)
            assert future.get(WAIT_S).offset == 0
            assert not handler.returned.is_set()


@pytest.mark.slow
def test_a_handlers_exception_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def act() -> None:
        raise SystemExit("not my day")

    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer, handling(act) as handler:
        for offset in range(2):
            cluster.act(PRODUCE, Act(error=NOT_ENOUGH_REPLICAS))
            assert producer.send("orders", b"1").get(WAIT_S).offset == offset
            # The next line of that kind follows after a second.
            until(lambda: len(handler.lines) > offset, "the next line")  # noqa: B023
    assert "not my day" in capsys.readouterr().err


@pytest.mark.slow
def test_delivery_timeout_ms_holds_if_a_handler_never_returns() -> None:
    end = threading.Event()
    times = {"delivery_timeout_ms": 700, "request_timeout_ms": 300}
    with ScriptedCluster(orders=2) as cluster, handling(end.wait) as handler:
        try:
            with producing(cluster, **times) as producer:
                cluster.act(PRODUCE, Act(error=NOT_ENOUGH_REPLICAS))
                producer.send("orders", b"0", partition=0).get(WAIT_S)
                assert handler.called.wait(WAIT_S)
                cluster.script = no_produce
                began = time.monotonic()
                late = [producer.send("orders", b"1", partition=index % 2) for index in range(10)]
                for future in late:
                    with pytest.raises(DeliveryTimeoutError):
                        future.get(WAIT_S)
                # And in time: a wait for the handler would have lasted for WAIT_S.
                assert time.monotonic() - began < WAIT_S / 2
                cluster.script = lambda received: None
                producer.send("orders", b"2").get(WAIT_S)
                began = time.monotonic()
                producer.close()
                assert time.monotonic() - began < DRAIN_S + WAIT_S / 2
            assert not handler.returned.is_set()
        finally:
            end.set()


@pytest.mark.parametrize("what", ["flush", "close"])
@pytest.mark.slow
def test_a_handler_does_not_deadlock_with_a_callback_that_logs(what: str) -> None:
    """The callback logs, and needs the lock of the handler that waits for the callback."""
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        with handling(getattr(producer, what)) as handler:
            cluster.act(PRODUCE, Act(error=NOT_ENOUGH_REPLICAS))
            called = threading.Event()

            def callback(metadata: Any) -> None:
                assert handler.called.wait(WAIT_S)
                logging.getLogger("cyproducer").warning("called back")
                called.set()

            producer.send("orders", b"1").add_callback(callback)
            assert handler.returned.wait(WAIT_S)
            assert called.wait(WAIT_S)
        if what == "flush":
            assert isinstance(handler.raised, IllegalStateError)
            assert "callbacks have not returned" in str(handler.raised)
        else:
            # As with any close(): callbacks that have not returned in time keep running.
            assert handler.raised is None
            assert producer._runtime.closed


def test_close_waits_for_the_log_lines_of_its_producer() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:

        def act() -> None:
            until(lambda: not producer._runtime.thread.is_alive(), "the end of the sender")

        with handling(act) as handler:
            cluster.act(PRODUCE, Act(error=NOT_ENOUGH_REPLICAS))
            producer.send("orders", b"1").get(WAIT_S)
            assert handler.called.wait(WAIT_S)
            cluster.act(PRODUCE, Act(error=INVALID_TOPIC))
            assert producer.send("orders", b"1").as_concurrent().exception(WAIT_S) is not None
            producer.close()
            assert [line.levelname for line in handler.lines] == ["WARNING", "ERROR"]


@pytest.mark.slow
def test_batches_that_fail_for_one_reason_give_one_line_and_a_count() -> None:
    # Nothing else wakes the sender up for a minute.
    given = {"linger_ms": 20, "request_timeout_ms": 60_000}
    with ScriptedCluster(orders=50) as cluster, producing(cluster, **given) as producer:
        producer.partitions_for("orders")
        with handling() as handler:
            cluster.act(PRODUCE, *[Act(error=INVALID_TOPIC)] * 50)
            futures = [producer.send("orders", b"1", partition=index // 2) for index in range(100)]
            producer.flush(WAIT_S)
            assert all(future.failed() for future in futures)
            counted = re.compile(
                r"\[producer .*\] 2 records for orders-.* \(and (\d+) more like it, of (\d+) records, in the "
            )

            def told() -> int:
                counts = [counted.match(line.getMessage()) for line in list(handler.lines)]
                assert all(int(count[2]) == 2 * int(count[1]) for count in counts if count)
                return len(counts) + sum(int(count[1]) for count in counts if count)

            # Held-back lines are reported without a further one.
            until(lambda: told() == 50, "all batches")
            # Two reports, if the batches fail within a second.
            assert len(handler.lines) < 10


def test_a_log_record_has_the_values_of_the_sender_thread() -> None:
    made: list[str] = []
    factory = logging.getLogRecordFactory()

    def noting(*args: Any, **options: Any) -> logging.LogRecord:
        made.append(threading.current_thread().name)
        return factory(*args, **options)

    logging.setLogRecordFactory(noting)
    try:
        with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer, handling() as handler:
            before = logging.makeLogRecord({})
            cluster.act(PRODUCE, Act(error=INVALID_TOPIC))
            future = producer.send("orders", b"1")
            producer.close()
            after = logging.makeLogRecord({})
            assert future.failed()
            # close() drains the lines.
            (line,) = handler.lines
            sender = producer._runtime.thread
    finally:
        logging.setLogRecordFactory(factory)
    assert line.getMessage().startswith(
        f"{line_prefix(producer.config.client_id)}1 record for orders-0 failed: "
    )
    assert (line.levelname, line.args, line.name) == ("ERROR", (), "cyproducer")
    assert (line.thread, line.threadName) == (sender.ident, sender.name)
    assert before.created <= line.created <= after.created
    assert 0 <= line.msecs < 1000
    assert before.relativeCreated <= line.relativeCreated <= after.relativeCreated
    assert set(handler.threads) == set(made) - {threading.current_thread().name} == {NAME}


# Metric reporters


class Reporter:
    """A metric reporter that calls ``act`` when it is notified of a topic's first metric."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act
        self.called = threading.Event()
        self.thread = ""
        self.told: list[str] = []

    def metric_change(self, metric: Any) -> None:
        if "topic" in metric.metric_name.group:
            self.told.append("change")
            if not self.called.is_set():
                self.thread = threading.current_thread().name
                self.called.set()
                self.act()

    def close(self) -> None:
        self.told.append("close")


@pytest.mark.slow
def test_a_reporter_that_never_returns_stops_nothing() -> None:
    end = threading.Event()
    reporter = Reporter(end.wait)
    with ScriptedCluster(orders=1) as cluster:
        try:
            with producing(cluster, metric_reporters=[reporter]) as producer:
                assert producer.send("orders", b"1").get(WAIT_S).offset == 0
                assert reporter.called.wait(WAIT_S)
                assert producer.send("orders", b"2").get(WAIT_S).offset == 1
                began = time.monotonic()
                producer.close()
                # close_timeout_ms is 1000 here.
                assert time.monotonic() - began < WAIT_S / 2
        finally:
            end.set()
    assert user_thread.drain(WAIT_S)
    assert reporter.thread == NAME
    # The notification in progress comes before close().
    assert reporter.told[-1] == "close"
    assert reporter.told.count("close") == 1


def test_a_reporter_may_flush_and_close() -> None:
    def act() -> None:
        producer.flush()
        producer.close()

    reporter = Reporter(act)
    with ScriptedCluster(orders=1) as cluster, producing(cluster, metric_reporters=[reporter]) as producer:
        future = producer.send("orders", b"1")
        until(lambda: "close" in reporter.told, "its end")
        assert future.succeeded()


# Finalizers


@contextmanager
def collecting() -> Iterator[Callable[[], None]]:
    """The yielded function makes a sender with a ``CollectingSelector`` run the garbage collector."""
    CollectingSelector.collect.clear()
    CollectingSelector.collected.clear()

    def collect() -> None:
        CollectingSelector.collect.set()
        # Wakes the sender up, as it waits for events.
        for producer in collectors:
            producer._runtime.sender.wake()
        assert CollectingSelector.collected.wait(WAIT_S)

    gc.disable()
    try:
        yield collect
    finally:
        gc.enable()
        collectors.clear()


collectors: list[KafkaProducer] = []


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("get", lambda producer, pending: pending.get(WAIT_S)),
        ("flush", lambda producer, pending: producer.flush(WAIT_S)),
        ("close", lambda producer, pending: producer.close(WAIT_S)),
        ("send", lambda producer, pending: producer.send("orders", bytes(15_000))),
        ("send_many", lambda producer, pending: producer.send_many("missing", [b"1"])),
        ("partitions_for", lambda producer, pending: producer.partitions_for("missing")),
        ("partition", lambda producer, pending: producer.send("orders", b"1", partition=7)),
    ],
)
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.slow
def test_a_finalizer_on_a_sender_thread_may_not_wait(
    own: bool, name: str, call: Callable[[KafkaProducer, Any], object]
) -> None:
    with (
        ScriptedCluster(orders=1) as cluster,
        producing(cluster, selector=CollectingSelector, buffer_memory=30_000) as collector,
        producing(cluster, buffer_memory=30_000, max_block_ms=WAIT_S * 1000) as other,
        collecting() as collect,
    ):
        collectors.append(collector)
        producer = collector if own else other
        producer.partitions_for("orders")
        cluster.script = no_produce
        pending = producer.send("orders", bytes(10_000))
        cluster.wait_for_requests(PRODUCE, 1)
        is_refused_in_a_finalizer(lambda: call(producer, pending), collect)


def test_a_finalizer_on_a_sender_thread_may_not_wait_for_the_first_broker() -> None:
    with (
        ScriptedCluster(orders=1) as cluster,
        ScriptedCluster(orders=1) as silent,
        producing(cluster, selector=CollectingSelector) as collector,
        collecting() as collect,
    ):
        silent.script = lambda received: Act(silent=True)
        collectors.append(collector)
        with producing(silent) as producer:
            is_refused_in_a_finalizer(lambda: producer.wait_ready(WAIT_S), collect)


def is_refused_in_a_finalizer(call: Callable[[], object], collect: Callable[[], None]) -> None:
    outcomes: list[BaseException | None] = []

    class Finalized:
        def __del__(self) -> None:
            assert threading.current_thread().name.startswith("cyproducer-sender")
            try:
                call()
                outcomes.append(None)
            except KafkaError as error:
                outcomes.append(error)

    cycle: list[Any] = [Finalized()]
    cycle.append(cycle)
    del cycle
    collect()
    (outcome,) = outcomes
    assert isinstance(outcome, IllegalStateError), outcome
    assert "the sender thread" in str(outcome)


def test_a_finalizer_on_a_sender_thread_may_read_a_done_future() -> None:
    outcomes: list[int] = []

    class Finalized:
        def __del__(self) -> None:
            outcomes.append(future.get().offset)
            sent.append(collector.send("orders", b"2"))

    sent: list[Any] = []
    with (
        ScriptedCluster(orders=1) as cluster,
        producing(cluster, selector=CollectingSelector) as collector,
        collecting() as collect,
    ):
        collectors.append(collector)
        future = collector.send("orders", b"1")
        future.get(WAIT_S)
        cycle: list[Any] = [Finalized()]
        cycle.append(cycle)
        del cycle
        collect()
        assert outcomes == [0]
        assert sent[0].get(WAIT_S).offset == 1


def test_a_producer_collected_on_anothers_sender_thread_does_not_block_it() -> None:
    with (
        ScriptedCluster(orders=1) as cluster,
        ScriptedCluster(slow=1) as slow,
        producing(cluster, selector=CollectingSelector) as collector,
        collecting() as collect,
    ):
        collectors.append(collector)
        collector.partitions_for("orders")
        slow.script = no_produce
        producer = KafkaProducer(**options(slow, close_timeout_ms=3 * WAIT_S * 1000))
        thread = producer._runtime.thread
        pending = producer.send("slow", b"1")
        (request,) = slow.wait_for_requests(PRODUCE, 1)
        cycle: list[Any] = [producer]
        cycle.append(cycle)
        del cycle, producer
        collect()
        assert collector.send("orders", b"1").get(WAIT_S).offset == 0
        assert not pending.is_done
        assert thread.is_alive()
        slow.script = lambda received: None
        # The record is resent on another connection and acknowledged: the producer is still drained.
        request.connection.close()
        assert pending.get(WAIT_S).topic == "slow"
        thread.join(WAIT_S)
        assert not thread.is_alive()


# Forks


@needs_fork
def test_a_forked_child_has_its_own_user_thread() -> None:
    end = threading.Event()
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer, handling(end.wait) as handler:
        try:
            cluster.act(PRODUCE, Act(error=NOT_ENOUGH_REPLICAS))
            producer.send("orders", b"1").get(WAIT_S)
            assert handler.called.wait(WAIT_S)

            def send() -> tuple[int, list[str]]:
                logging.getLogger("cyproducer").removeHandler(handler)
                with handling() as mine:
                    producer.send("orders", b"2").get(WAIT_S)
                    producer.close(WAIT_S)
                return len(mine.lines), mine.threads

            cluster.act(PRODUCE, Act(error=NOT_ENOUGH_REPLICAS))
            assert in_child(send) == (1, [NAME])
        finally:
            end.set()
