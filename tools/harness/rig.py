"""The inside of a producer, without a producer: accumulator, send path and sender, stepped by hand.

``Rig`` wires the production objects to a manual clock, a selector and socket pairs. At their other ends it
plays the brokers, with the independent codec of ``reference_records``. Nothing runs unless a test steps, and
no time passes unless a test advances it, so a test can create any order of events.

    with Rig({"t": [1, 1, 2]}) as rig:          # topic t: partitions 0 and 1 on broker 1, 2 on broker 2
        future = rig.send("t", b"value")
        request, = rig.requests()               # the requests that reached the brokers, decoded
        rig.answer(request)                     # or rig.answer(request, error=7), rig.cut(1)
        assert future.get(0).offset == 0

Only one thread may step; other threads may send.
"""

import math
import selectors
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, cast

from cyproducer.accumulator.buffer_pool import BufferPool
from cyproducer.accumulator.record_accumulator import RecordAccumulator
from cyproducer.base.clock import ManualClock
from cyproducer.control.batch_fate import Decision, Failure, FatePolicy
from cyproducer.control.idempotence import BatchFacts, Fate, Idempotence, Verdict
from cyproducer.control.log_limit import LogLimit
from cyproducer.control.metadata import ClusterMetadata
from cyproducer.control.retry import ExponentialBackoff, RetryPolicy
from cyproducer.errors import KafkaTimeoutError, ProducerClosedError, for_code
from cyproducer.futures.completion import CompletionQueue
from cyproducer.futures.delivery import RecordFuture
from cyproducer.net.connection import Connection
from cyproducer.net.tls_transport import TlsSession
from cyproducer.records.compression import compressor_for
from cyproducer.send.bulk_path import BulkPath
from cyproducer.send.extensions import Extensions
from cyproducer.sender.sender import Sender
from tools.harness.accumulator_options import accumulator_options
from tools.harness.reference_records import (
    Batch,
    PartitionResponse,
    ProduceRequest,
    Record,
    Topic,
    decode_batches,
    decode_produce_request,
    encode_produce_response,
)

Place = tuple[str, int]
"""A topic's name and a partition's number."""
HookResult = tuple[float | None, BaseException | None]
"""When to retry, or None and the error of the records."""

START_NS = 1_000_000_000_000


@dataclass(eq=False)
class Seen:
    """A Produce request as a broker received it."""

    peer: "Peer"
    request: ProduceRequest
    batches: dict[Place, Batch]

    @property
    def node(self) -> int:
        return self.peer.node

    @property
    def places(self) -> list[Place]:
        return list(self.batches)

    def values(self, partition: int | None = None) -> list[bytes | None]:
        """The values of its records in order: all, or those of one partition."""
        found = [batch for (_, index), batch in self.batches.items() if partition in (None, index)]
        return [record.value for batch in found for record in batch.records]


@dataclass(eq=False)
class Peer:
    """A broker's end of a connection."""

    node: int
    sock: Any  # a socket, or a TlsEnd
    connection: Connection
    received: bytearray = field(default_factory=bytearray)


class Control:
    """A simple replacement for the control plane that the sender asks about connections and metadata."""

    def __init__(self, rig: "Rig") -> None:
        self.rig = rig
        #: The result of ``tick``: with 0 every step calls it.
        self.delay_ms = 0.0
        self.ticks = 0
        self.broken: list[tuple[int, BaseException | None]] = []
        #: The arguments of ``on_leaders``.
        self.leaders: list[tuple[int, list[tuple[str, int, int, int]], bytes | None]] = []

    def tick(self, now_ms: float) -> float:
        sender = self.rig.sender
        self.ticks += 1
        sender.close_overdue(now_ms)
        for name in sender.parked_topics():
            sender.fail_parked(name, KafkaTimeoutError(f"no metadata of {name}"), now_ms)
        if self.rig.auto_connect:
            for node in sender.nodes_without_connection():
                self.rig.connect(node)
        return self.delay_ms

    def on_socket_ready(self, connection: Connection, now_ms: float) -> None:
        raise AssertionError("a socket pair is connected from the start")

    def on_frame(self, connection: Connection, number: int, frame: bytes, now_ms: float) -> None:
        raise AssertionError("the sender sends only Produce requests")

    def on_broken(self, connection: Connection, cause: BaseException | None, now_ms: float) -> None:
        self.broken.append((connection.node_id, cause))
        self.rig.peers.pop(connection.node_id).sock.close()

    def on_leaders(
        self, connection: Connection, leaders: list[tuple[str, int, int, int]], endpoints: bytes | None
    ) -> None:
        self.leaders.append((connection.node_id, leaders, endpoints))


class _NoMetadata:
    """The metadata that ``FatePolicy`` needs: partitions have leaders, and updates are counted."""

    def __init__(self) -> None:
        self.updates = 0

    def request_update(self, reason: str) -> None:
        self.updates += 1

    def leader(self, topic: str, partition: int) -> int | None:
        return 1

    def partition_count(self, topic: str) -> int | None:
        return 1

    def is_gone(self, topic: str, partition: int) -> bool:
        return False


class NotedFates(FatePolicy):
    """The product's decisions about batches, recorded, and with a hook for tests that want other decisions.

    The backoff is 100 ms, without jitter.
    """

    def __init__(self, delivery_timeout_ms: float, transactional: bool = False) -> None:
        self.retry = RetryPolicy(math.inf, delivery_timeout_ms, ExponentialBackoff(100, 100))
        self.idempotence = Idempotence(transactional)
        self.metadata = _NoMetadata()
        super().__init__(
            self.retry,
            self.idempotence,
            cast(ClusterMetadata, self.metadata),
            LogLimit(lambda *line: None),
            lambda: 0.5,
            lambda known: known or "nothing is known",
        )
        #: The failed attempts: place, error code, attempts.
        self.failures: list[tuple[Place, int, int]] = []
        #: Decides instead, if set, given topic, partition, attempts, error and time.
        self.hook: Callable[..., HookResult] | None = None
        #: Called before a batch is declared overdue.
        self.on_expire: Callable[[], object] | None = None

    def decide(self, batch: BatchFacts, failure: Failure, written: bool, now_ms: float) -> Decision:
        self.failures.append(((batch.topic, batch.partition), failure.code, batch.attempts))
        if self.hook is None:
            return super().decide(batch, failure, written, now_ms)
        place = f"{batch.topic}-{batch.partition}"
        error = failure.cause or for_code(failure.code)(failure.message or place)
        at_ms, final = self.hook(batch.topic, batch.partition, batch.attempts, error, now_ms)
        if at_ms is None:
            return Decision(Verdict(Fate.FAIL, error=final))
        return Decision(Verdict(Fate.RETRY, at_ms))

    def expire(self, batch: BatchFacts, on_wire: bool, now_ms: float) -> Decision:
        if self.on_expire is not None:
            self.on_expire()
        return super().expire(batch, on_wire, now_ms)


def _places(names: Mapping[str, Any]) -> Callable[[str], int]:
    found = {name: number for number, name in enumerate(names, 1)}
    return lambda name: found.get(name, 0)


class Rig:
    """See the module. Options are the producer's; ``topics`` has the leaders by partition (-1: none).

    ``compressor``: or the name of a codec. ``settings``: those of single topics, as (linger_ms, acks,
    compressor). ``tls``: given the broker's end of a socket pair, returns the producer's session, and the
    broker's end of it (``TlsEnd``).
    """

    def __init__(
        self,
        topics: Mapping[str, Sequence[int]] | None = None,
        *,
        buffer_memory: int = 32 << 20,
        batch_size: int = 16384,
        linger_ms: float = 0,
        stream_linger_ms: float = 0,
        compressor: Any = None,
        settings: Mapping[str, tuple[float, int, Any]] | None = None,
        compression_thread: bool = False,
        spec: Any = None,
        adaptive: bool = True,
        availability_timeout_ms: float = 0,
        single_broker_ms: float = 30_000,
        seed: int = 1,
        idempotent: bool = False,
        ordered: bool = False,
        acks: int = -1,
        max_in_flight: int = 5,
        max_request_size: int = 1 << 20,
        far_request_size: int | None = None,
        max_block_ms: float = 60_000,
        request_timeout_ms: float = 30_000,
        delivery_timeout_ms: float = 120_000,
        produce_version: int = 9,
        auto_connect: bool = True,
        receive_max: int = 1 << 20,
        extensions: Extensions | None = None,
        completions: CompletionQueue | None = None,
        selector: selectors.BaseSelector | None = None,
        samples: int = 2,
        sample_window_ms: float = 30_000,
        tls: Callable[[socket.socket], tuple[TlsSession, Any]] | None = None,
        transactional_id: str | None = None,
    ) -> None:
        self.clock = ManualClock(START_NS)
        self.pool = BufferPool(buffer_memory)
        self.completions = completions or CompletionQueue()
        options = accumulator_options(
            transactional_id=transactional_id,
            acks=acks,
            batch_size=batch_size,
            linger_ms=linger_ms,
            enable_idempotence=idempotent or transactional_id is not None,
            partitioner_adaptive_partitioning_enable=adaptive,
            partitioner_availability_timeout_ms=availability_timeout_ms,
            partitioner_single_broker_ms=single_broker_ms,
            max_in_flight_requests_per_connection=max_in_flight,
            max_request_size=max_request_size,
            far_request_size=far_request_size or max_request_size,
            request_timeout_ms=request_timeout_ms,
            delivery_timeout_ms=delivery_timeout_ms,
            receive_message_max_bytes=receive_max,
            metrics_num_samples=samples,
            metrics_sample_window_ms=sample_window_ms,
        )
        self.accumulator = RecordAccumulator(
            options,
            self.pool,
            self.clock,
            self.completions,
            ordered=ordered,
            stream_linger_ms=stream_linger_ms,
            compressor=compressor_for(compressor) if isinstance(compressor, str) else compressor,
            topics=list((settings or {}).values()),
            place_of=_places(settings) if settings else None,
            # Off by default: a test steps the sender by hand, and this thread goes on by itself.
            compression_thread=compression_thread,
            spec=spec,
            seed=seed,
        )
        self.selector = selector or selectors.DefaultSelector()
        self.sender = Sender(options, self.accumulator, self.selector, self.clock)
        self.control = Control(self)
        self.fates = NotedFates(delivery_timeout_ms, transactional_id is not None)
        self.sender.attach_control(self.control, self.fates)
        self.path = BulkPath()
        self.path._open_path(self.accumulator, max_request_size, max_block_ms, extensions)
        self.produce_version = produce_version
        self.tls = tls
        self.auto_connect = auto_connect
        self.peers: dict[int, Peer] = {}
        #: Requests without a response.
        self.pending: list[Seen] = []
        #: The records that the brokers have acknowledged.
        self.log: dict[Place, list[Record]] = {}
        self._unseen: list[Seen] = []
        self._closed = False
        for name, leaders in (topics or {}).items():
            self.sender.apply_topic(name, b"", list(leaders))

    # The producer's side

    def send(self, topic: str, value: Any = None, key: Any = None, **options: Any) -> RecordFuture:
        """``send()``, with the arguments of ``SendPath.send``."""
        return self.path.send(topic, value, key, **options)

    def step(self, max_wait_ms: float = 0.0) -> None:
        """Runs one step of the sender."""
        self.sender.run_once(max_wait_ms)

    def advance_ms(self, ms: float) -> None:
        """Advances the time, and runs one step."""
        self.clock.advance_ms(ms)
        self.step()

    def run_callbacks(self) -> None:
        """Runs the callbacks that are due."""
        while self.completions.run_next(0):
            pass

    # The brokers' side

    def connect(self, node: int) -> Peer:
        """Gives the sender a connection to a broker that is ready for requests."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        connection = self.sender.open_connection(ours, node, f"broker-{node}")
        self.sender.connected(connection)
        end: Any = theirs
        if self.tls is not None:
            session, end = self.tls(theirs)
            connection.use_tls(session)
        self.sender.ready(connection, self.produce_version)
        self.peers[node] = Peer(node, end, connection)
        return self.peers[node]

    def requests(self) -> list[Seen]:
        """Steps until nothing more arrives; returns the requests that arrived since the last call."""
        idle = 0
        while idle < 2:
            self.step()
            # Part of a TLS record is nothing that a broker could see.
            arriving = self._receive() or any(peer.connection.unsent for peer in self.peers.values())
            idle = 0 if arriving else idle + 1
        found, self._unseen = self._unseen, []
        return found

    def _receive(self) -> int:
        total = 0
        for peer in list(self.peers.values()):
            try:
                while data := peer.sock.recv(1 << 20):
                    peer.received += data
                    total += len(data)
            except BlockingIOError:
                pass
            while len(peer.received) >= 4:
                size = 4 + int.from_bytes(peer.received[:4], "big")
                if len(peer.received) < size:
                    break
                request = decode_produce_request(bytes(peer.received[:size]))
                del peer.received[:size]
                seen = Seen(peer, request, {})
                for topic, partitions in request.topics:
                    for index, data_of in partitions:
                        (batch,) = decode_batches(data_of or b"")
                        seen.batches[str(topic), index] = batch
                self.pending.append(seen)
                self._unseen.append(seen)
        return total

    def answer(
        self,
        seen: Seen,
        error: int = 0,
        errors: Mapping[Place, int] | None = None,
        log_append_time_ms: int = -1,
        step: bool = True,
        record_errors: Mapping[Place, Sequence[tuple[int, str | None]]] | None = None,
        throttle_ms: int = 0,
    ) -> None:
        """Responds to a request, with ``error`` for all or ``errors`` for single partitions; then steps.

        ``record_errors``: the records named as the cause, as (place in the batch, message).
        """
        topics: dict[str, list[PartitionResponse]] = {}
        for place, batch in seen.batches.items():
            code = (errors or {}).get(place, error)
            log = self.log.setdefault(place, [])
            offset = -1
            if code == 0:
                offset = len(log)
                log.extend(batch.records)
            topics.setdefault(place[0], []).append(
                PartitionResponse(
                    place[1],
                    code,
                    offset,
                    log_append_time_ms,
                    record_errors=(record_errors or {}).get(place, ()),
                )
            )
        self.respond(seen, list(topics.items()), throttle_ms, step=step)

    def respond(
        self,
        seen: Seen,
        topics: Sequence[tuple[Topic, Sequence[PartitionResponse]]],
        throttle_ms: int = 0,
        endpoints: Sequence[tuple[int, str, int, str | None]] = (),
        edit: Callable[[bytes], bytes] = bytes,
        step: bool = True,
    ) -> None:
        """Responds to a request with anything; then steps. ``edit``: changes the response's bytes."""
        self.pending.remove(seen)
        version, number = seen.request.api_version, seen.request.correlation_id
        seen.peer.sock.sendall(edit(encode_produce_response(version, number, topics, throttle_ms, endpoints)))
        if step:
            self.step()

    def answer_all(self) -> None:
        """Responds to requests until no more arrive, in order for each connection."""
        while self.requests() or self.pending:
            for seen in list(self.pending):
                self.answer(seen)

    def cut(self, node: int) -> None:
        """The broker closes its connection."""
        self.peers[node].sock.shutdown(socket.SHUT_RDWR)
        self.pending = [seen for seen in self.pending if seen.node != node]
        self.step()

    def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        """The values of the acknowledged records, in the order of their offsets."""
        return [record.value for record in self.log.get((topic, partition), [])]

    # The end

    def close(self) -> None:
        """Fails the remaining records and closes every descriptor. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.accumulator.close()
        self.sender.abort(ProducerClosedError("the rig was closed"))
        self.sender.release()
        self.selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
