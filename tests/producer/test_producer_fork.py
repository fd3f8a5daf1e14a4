"""Producers in forked children: each process sends its own records, and only those."""

import asyncio
import gc
import os
import ssl
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from cyproducer import errors
from cyproducer.futures.delivery import RecordFuture
from cyproducer.producer import KafkaProducer
from cyproducer.testing import EmbeddedBroker
from tests.forked import Child, descriptors, in_child, needs_fork, needs_proc, own_threads, tasks
from tests.reading import PARTITIONS, read_back
from tests.scripted.producing import WAIT_S, no_produce, options, producing
from tests.scripted.scripted_broker import PRODUCE, Act, Received, ScriptedCluster
from tests.scripted.scripted_sasl import SaslServer
from tools.harness.tls import Authority, TlsEnd
from tools.harness.until import until

pytestmark = needs_fork


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(brokers=2) as broker:
        yield broker


@pytest.mark.slow
@pytest.mark.parametrize("compression", [None, "lz4"])
def test_children_of_a_process_that_sends_at_full_speed_send_their_own_records(
    broker: EmbeddedBroker, compression: str | None
) -> None:
    topic = f"busy-{compression}"
    broker.create_topic(topic, PARTITIONS)
    rounds, stop = 40, threading.Event()
    sent: list[list[tuple[bytes, RecordFuture]]] = [[] for _ in range(3)]
    with producing(bootstrap_servers=broker.bootstrap_servers, compression_type=compression) as producer:

        def keep_sending(number: int) -> None:
            mine = sent[number]
            while not stop.is_set() and len(mine) < 50_000:
                value = b"%d %d" % (number, len(mine))
                future = producer.send(topic, value)
                mine.append((value, future))
                if len(mine) % 1000 == 0:
                    # Callbacks and waits too: their locks may be held at any moment.
                    future.add_callback(lambda metadata: None).get(WAIT_S)

        def send_as_a_child(number: int) -> list[int]:
            futures = [producer.send(topic, b"child %d %d" % (number, i)) for i in range(20)]
            offsets = [future.get(WAIT_S).offset for future in futures]
            producer.close()
            return offsets

        threads = [threading.Thread(target=keep_sending, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        try:
            for round_ in range(rounds):
                assert len(in_child(lambda number=round_: send_as_a_child(number))) == 20  # type: ignore[misc]
        finally:
            stop.set()
            for thread in threads:
                thread.join(WAIT_S)
        producer.flush(WAIT_S)
    values = [value for mine in sent for value, _ in mine]
    assert all(future.succeeded() for mine in sent for _, future in mine)
    values += [b"child %d %d" % (round_, i) for round_ in range(rounds) for i in range(20)]
    assert read_back(broker, topic, len(values)) == Counter(values)


def test_a_child_does_not_send_the_parents_accepted_records() -> None:
    with (
        ScriptedCluster(orders=1, later=1) as cluster,
        producing(cluster, linger_ms=60_000, delivery_timeout_ms=120_000) as producer,
    ):
        producer.partitions_for("orders")
        lingering = producer.send("orders", b"parent")
        cluster.topics["later"].first_errors.extend([5] * 3)
        parked = producer.send("later", b"parent")

        def send() -> list[int]:
            future = producer.send("orders", b"child")
            producer.flush(WAIT_S)
            producer.close()
            return [future.get(0).offset]

        assert in_child(send) == [0]
        assert cluster.topics["orders"].values == [b"child"]
        producer.flush(WAIT_S)
        assert lingering.get(0).offset == 1
        assert parked.succeeded()
        assert cluster.topics["orders"].values == [b"child", b"parent"]
        assert cluster.topics["later"].values == [b"parent"]


@needs_proc
def test_a_child_that_never_sends_has_no_thread_and_none_of_the_parents_descriptors() -> None:
    with ScriptedCluster(3, orders=6) as cluster:
        before = descriptors()
        with producing(cluster) as producer:
            for partition in range(6):
                producer.send("orders", b"1", partition=partition).add_callback(lambda metadata: None)
            producer.flush(WAIT_S)
            connections = {
                fd: what
                for fd, what in descriptors().items()
                if fd in {c.sock.fileno() for c in producer._runtime.client._connector.connections.values()}
            }
            assert len(connections) == 3

            def look() -> tuple[dict[int, str], list[str], bool]:
                assert not producer._running
                names = own_threads()
                # OpenTelemetry's SDK, if a test has used it in this process, runs a thread in each child. The
                # system still lists a thread for a moment after it was joined.
                until(lambda: tasks() == 1, "the end of all threads but the main one")
                return descriptors(), names, "open" in repr(producer)

            inherited, names, is_open = in_child(look)
            assert (names, is_open) == ([], True)
            # The scripted brokers' ends of the connections are also in this process, so the child has them.
            assert not set(connections.values()) & set(inherited.values())
            assert not [what for fd, what in inherited.items() if "event" in what and fd not in before]
            # The parent continues with the very same connections.
            assert producer.send("orders", b"2", partition=0).get(WAIT_S).offset == 1
            assert [len(node.connections) for node in cluster.nodes.values()].count(1) >= 2


@needs_proc
def test_a_closed_producer_leaves_nothing_in_the_child_that_used_it() -> None:
    with ScriptedCluster(3, orders=6) as cluster, producing(cluster) as producer:
        producer.send("orders", b"1").get(WAIT_S)

        def use() -> tuple[set[int], list[str]]:
            before = set(descriptors())
            producer.send("orders", b"child").add_callback(lambda metadata: None).get(WAIT_S)
            assert len(own_threads()) == 2
            producer.close()
            return set(descriptors()) - before, own_threads()

        assert in_child(use) == (set(), [])


def test_a_child_may_not_wait_for_a_pending_record_of_the_parent() -> None:
    with ScriptedCluster(orders=1, late=1) as cluster, producing(cluster) as producer:
        acknowledged = producer.send("orders", b"0")
        acknowledged.get(WAIT_S)
        held = threading.Event()
        cluster.act(PRODUCE, Act(hold=held))
        called: list[Any] = []
        pending = producer.send("orders", b"1").add_callback(called.append)
        cluster.topics["late"].first_errors.extend([5] * 1000)
        parked = producer.send("late", b"2")
        concurrent = pending.as_concurrent()

        async def await_it() -> object:
            return await pending

        def ask() -> int:
            waits: list[Callable[[], object]] = [
                pending.get,
                lambda: pending.get(0),
                parked.get,
                lambda: pending.add_callback(print),
                lambda: pending.add_both(print),
                pending.as_concurrent,
                concurrent.result,
                concurrent.exception,
                lambda: asyncio.run(await_it()),
            ]
            for wait in waits:
                with pytest.raises(errors.IllegalStateError, match="belongs to the parent process"):
                    wait()
            assert not pending.is_done
            assert acknowledged.get().offset == 0
            producer.send("orders", b"child").get(WAIT_S)
            producer.close()
            assert called == []
            return len(waits)

        cluster.wait_for_requests(PRODUCE, 2)
        assert in_child(ask) == 9
        held.set()
        cluster.topics["late"].first_errors.clear()
        offset = pending.get(WAIT_S).offset
        assert concurrent.result(WAIT_S).offset == offset
        assert parked.get(WAIT_S).offset == 0
        producer.flush(WAIT_S)
        assert [metadata.offset for metadata in called] == [offset]


def test_a_child_can_wait_although_threads_of_the_parent_were_waiting() -> None:
    partitions = 100

    def parents_wait(received: Received) -> Act | None:
        values = [record.value for batch in received.batches.values() for record in batch.records]
        return Act(silent=True) if b"parent" in values else None

    with (
        ScriptedCluster(orders=partitions) as cluster,
        producing(cluster, request_timeout_ms=60_000, delivery_timeout_ms=120_000) as producer,
    ):
        producer.partitions_for("orders")
        cluster.script = lambda received: parents_wait(received) if received.api_key == PRODUCE else None
        futures = [producer.send("orders", b"parent", partition=i) for i in range(partitions)]
        entered = threading.Semaphore(0)

        def wait(future: RecordFuture) -> None:
            entered.release()
            with pytest.raises(errors.ProducerClosedError):
                future.get()

        threads = [threading.Thread(target=wait, args=(future,)) for future in futures]
        for thread in threads:
            thread.start()
        for _ in threads:
            entered.acquire()

        def send() -> int:
            for i in range(400):
                producer.send("orders", b"child", partition=i % partitions).get(WAIT_S)
            producer.close()
            return i

        assert in_child(send) == 399
        producer.close(0)
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()


def test_due_callbacks_run_only_in_the_parent(cluster: ScriptedCluster) -> None:
    release, running = threading.Event(), threading.Event()
    seen: list[int] = []

    def slow(metadata: Any) -> None:
        running.set()
        assert release.wait(WAIT_S)
        seen.append(metadata.offset)

    with producing(cluster) as producer:
        producer.send("orders", b"0").add_callback(slow)
        assert running.wait(WAIT_S)
        due = producer.send("orders", b"1").add_callback(slow)
        due.get(WAIT_S)

        def send() -> list[int]:
            release.set()
            producer.send("orders", b"2").add_callback(slow)
            producer.flush(WAIT_S)
            producer.close()
            return seen

        assert in_child(send) == [2]
        release.set()
        producer.flush(WAIT_S)
        assert seen == [0, 1]


def test_a_fork_in_a_callback_gives_a_child_that_can_send_and_wait(cluster: ScriptedCluster) -> None:
    results: list[object] = []
    done = threading.Event()

    with producing(cluster) as producer:

        def send() -> list[int]:
            futures = [producer.send("orders", b"child") for _ in range(3)]
            producer.flush(WAIT_S)
            producer.close()
            return [future.get(0).offset for future in futures]

        def fork(metadata: Any) -> None:
            try:
                results.append(in_child(send))
            finally:
                done.set()

        producer.send("orders", b"parent").add_callback(fork)
        assert done.wait(WAIT_S * 2)
        assert results == [[1, 2, 3]]
        assert producer.send("orders", b"parent").get(WAIT_S).offset == 4


def test_a_fork_in_a_serializer_sends_the_record_from_both(cluster: ScriptedCluster) -> None:
    children: list[Child] = []

    def serialize(value: Any) -> bytes:
        if value == "fork":
            child = Child(lambda: producer.send("orders", "child").get(WAIT_S).offset)
            children.append(child)
            assert child.outcome() == 1
        return str(value).encode()

    with producing(cluster, value_serializer=serialize) as producer:
        producer.send("orders", "parent").get(WAIT_S)
        assert producer.send("orders", "fork").get(WAIT_S).offset == 2
    assert cluster.topics["orders"].values == [b"parent", b"child", b"fork"]


@pytest.mark.slow
def test_a_grandchild_sends_too_whether_or_not_the_child_did(producer: KafkaProducer) -> None:
    producer.send("orders", b"parent").get(WAIT_S)

    def send() -> int:
        offset = producer.send("orders", b"descendant").get(WAIT_S).offset
        producer.close()
        return offset

    def send_in_both() -> list[int]:
        first = producer.send("orders", b"child").get(WAIT_S).offset
        second = in_child(send)
        third = producer.send("orders", b"child").get(WAIT_S).offset
        producer.close()
        return [first, second, third]

    assert in_child(lambda: in_child(send)) == 1
    assert in_child(send_in_both) == [2, 3, 4]
    assert producer.send("orders", b"parent").get(WAIT_S).offset == 5


def test_a_closed_producer_stays_closed_in_the_child(producer: KafkaProducer) -> None:
    producer.send("orders", b"parent").get(WAIT_S)
    producer.close()

    def use() -> tuple[str, int, list[str]]:
        with pytest.raises(errors.ProducerClosedError):
            producer.send("orders", b"child")
        with pytest.raises(errors.ProducerClosedError):
            producer.partitions_for("orders")
        producer.flush(0)
        producer.close()
        return repr(producer), len(producer.metrics()), own_threads()

    said, groups, names = in_child(use)
    assert "closed" in said
    assert groups > 0
    assert names == []


def test_closing_in_the_child_does_not_close_the_parents_producer(producer: KafkaProducer) -> None:
    pending = producer.send("orders", b"parent", partition=0)

    def close() -> list[str]:
        producer.close()
        with pytest.raises(errors.ProducerClosedError):
            producer.send("orders", b"child")
        return own_threads()

    assert in_child(close) == []
    assert pending.get(WAIT_S).offset == 0
    assert "open" in repr(producer)


class Numbering:
    """A partitioner, an interceptor and a serializer that identify their process."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def on_send(self, record: Any) -> Any:
        self.calls.append(os.getpid())
        return record


def test_the_childs_interceptors_are_copies_of_the_parents_objects(cluster: ScriptedCluster) -> None:
    interceptor = Numbering()
    with producing(cluster, interceptors=[interceptor]) as producer:
        producer.send("orders", b"parent").get(WAIT_S)

        def send() -> list[int]:
            producer.send("orders", b"child").get(WAIT_S)
            producer.close()
            return [*interceptor.calls, os.getpid()]

        parent, child, pid = in_child(send)
        assert (parent, child) == (os.getpid(), pid)
        assert interceptor.calls == [parent]


def test_a_child_forked_while_another_thread_closes_has_a_closed_producer(cluster: ScriptedCluster) -> None:
    producer = KafkaProducer(**options(cluster))
    producer.partitions_for("orders")
    cluster.script = no_produce
    producer.send("orders", b"parent")
    cluster.wait_for_requests(PRODUCE, 1)
    closing = threading.Thread(target=producer.close)
    closing.start()
    while not producer._runtime.accumulator.closed:
        pass

    def use() -> str:
        with pytest.raises(errors.ProducerClosedError):
            producer.send("orders", b"child")
        producer.flush()
        producer.close()
        return repr(producer)

    assert "closed" in in_child(use)
    producer.close(0)
    closing.join(WAIT_S)
    assert not closing.is_alive()


class WatchedSession(ssl.SSLObject):
    """A client's TLS session that notes each use through Python."""

    uses: ClassVar[list[tuple[int, int, str]]] = []
    """The process, the session's id, and the attribute."""

    def __getattribute__(self, name: str) -> Any:
        WatchedSession.uses.append((os.getpid(), id(self), name))
        return super().__getattribute__(name)


@pytest.mark.parametrize("without_gil", [True, False])
@pytest.mark.slow
def test_a_child_authenticates_over_tls_and_leaves_the_parents_sessions_alone(without_gil: bool) -> None:
    authority = Authority()
    context = authority.client()
    context.sslobject_class = WatchedSession
    given = {
        "security_protocol": "SASL_SSL",
        "ssl_context": context,
        "ssl_without_gil": without_gil,
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "secret",
    }
    sasl = SaslServer()
    WatchedSession.uses.clear()
    with (
        ScriptedCluster(tls=authority.server(), sasl=sasl, orders=1) as cluster,
        producing(cluster, **given) as producer,
    ):
        assert producer.send("orders", b"parent").get(WAIT_S).offset == 0
        slow = producer.metrics()["producer-metrics"]["tls-connection-slow-count"]
        assert (slow == 0) is without_gil
        inherited = {id(each): weakref.ref(each) for each in gc.get_objects() if type(each) is WatchedSession}
        assert inherited

        def send_as_a_child() -> tuple[int, list[str], bool]:
            offset = producer.send("orders", b"child").get(WAIT_S).offset
            producer.close()
            gc.collect()
            mine = [(session, name) for pid, session, name in WatchedSession.uses if pid == os.getpid()]
            touched = [name for session, name in mine if session in inherited]
            assert mine
            return offset, touched, all(session() is not None for session in inherited.values())

        assert in_child(send_as_a_child) == (1, [], True)
        assert producer.send("orders", b"parent").get(WAIT_S).offset == 2
        # The parent's two records came over one connection, without anything between them.
        (of_parent,) = {each.connection for each in cluster.received(PRODUCE)[::2]}
        (of_child,) = {each.connection for each in cluster.received(PRODUCE)[1::2]}
        assert of_child is not of_parent
        assert not of_parent.closed
        for connection in (of_parent, of_child):
            assert isinstance(connection.sock, TlsEnd)
            assert connection.sock.failure is None
