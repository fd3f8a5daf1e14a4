"""Defines the gate's workloads: parts of a record's path, stepped by hand in one thread.

Runs as a program inside valgrind (``counting`` starts it); callgrind writes one file per workload and size.
Nothing reads a clock, uses random numbers or waits: the rig provides the time, hashes have a fixed seed, and
garbage collection is off. So two runs count the same instructions, except for effects of the kernel's
results.

Each workload first reaches a steady state with uncounted records: the topic's metadata is known, the
partitions know the producer, and buffers have their final size.
"""

import asyncio
import ctypes
import gc
import importlib
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from cyproducer.aio.sends import Sends
from cyproducer.confluent.reports import ProducePath, ReportQueue
from cyproducer.control.cluster_view import ClusterView, TopicView
from cyproducer.control.partitioners import CustomPartitioner
from cyproducer.futures.asyncio_bridge import LoopOutcomes
from cyproducer.futures.completion import CompletionQueue
from cyproducer.send.bulk_path import BulkPath
from cyproducer.send.extensions import Extensions
from cyproducer.structs import RecordMetadata
from tools.harness.reference_produce import PartitionResponse, decode_produce_request, encode_produce_response
from tools.harness.rig import Rig

TOPIC = "gate"
PARTITIONS = 3
SMALL_PARTITIONS = 200
VALUE = b"x" * 100
BATCH_SIZE = 131072
PRODUCE_VERSION = 9
MAX_REQUEST_SIZE = 1 << 20
MAX_BLOCK_MS = 60_000
COLUMN_ROWS = 10_000
"""Rows of one columnar call."""


class Callgrind:
    """Controls callgrind; see ``callgrind.c``."""

    def __init__(self, library: Path) -> None:
        # PyDLL keeps the GIL: releasing and acquiring it would be counted.
        self._library = ctypes.PyDLL(str(library))

    def begin(self) -> None:
        self._library.gate_instrument()

    @contextmanager
    def counted(self) -> Iterator[None]:
        toggle = self._library.gate_toggle
        toggle()
        try:
            yield
        finally:
            toggle()

    def write(self, name: str) -> None:
        self._library.gate_dump(ctypes.c_char_p(name.encode()))


class Broker:
    """The broker's end of the rig's connection. Acknowledges without parsing batches, which would be slow."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.received = bytearray()
        self.offset = 0

    def answer(self) -> bool:
        """Acknowledges all complete requests. Returns whether any data arrived, even part of a request."""
        (peer,) = self.rig.peers.values()
        got = False
        try:
            while data := peer.sock.recv(1 << 20):
                self.received += data
                got = True
        except BlockingIOError:
            pass
        while len(self.received) >= 4:
            size = 4 + struct.unpack_from(">i", self.received)[0]
            if len(self.received) < size:
                break
            request = decode_produce_request(bytes(self.received[:size]))
            del self.received[:size]
            topics = [
                (name, [PartitionResponse(index, base_offset=self.offset) for index, _ in partitions])
                for name, partitions in request.topics
            ]
            self.offset += 1_000_000
            peer.sock.sendall(encode_produce_response(request.api_version, request.correlation_id, topics))
        return got


class Workload:
    """A rig in its steady state. ``send`` and ``steps`` can be counted."""

    def __init__(
        self,
        partitions: int,
        extensions: Extensions | None = None,
        completions: CompletionQueue | None = None,
    ) -> None:
        self.rig = Rig(
            {TOPIC: [1] * partitions},
            completions=completions,
            buffer_memory=256 << 20,
            batch_size=BATCH_SIZE,
            idempotent=True,
            produce_version=PRODUCE_VERSION,
            extensions=extensions,
        )
        machine = self.rig.fates.idempotence
        assert machine.want()
        machine.granted(1, 0)
        self.rig.sender.set_identity(1, 0)
        # As in the product, where the control plane rarely has to be called.
        self.rig.control.delay_ms = 1e9
        self.rig.connect(1)
        self.broker = Broker(self.rig)

    def send(self, records: int) -> None:
        send = self.rig.path.send
        for _ in repeat(None, records):
            send(TOPIC, VALUE)

    def send_one_to_each(self, partitions: int) -> None:
        for partition in range(partitions):
            self.rig.path.send(TOPIC, VALUE, partition=partition)

    def steps(self, callgrind: Callgrind | None = None) -> None:
        """Runs until all records are sent and acknowledged. Counts only the sender's own steps."""
        self.rig.accumulator.flush(0)
        idle = 0
        while idle < 2:
            if callgrind is None:
                self.rig.step()
            else:
                with callgrind.counted():
                    self.rig.step()
            idle = 0 if self.broker.answer() else idle + 1
            self.rig.accumulator.flush(0)
        assert self.rig.accumulator.incomplete_batches == 0


def send(callgrind: Callgrind) -> Callable[[int], None]:
    work = Workload(PARTITIONS)

    def run(records: int) -> None:
        with callgrind.counted():
            work.send(records)
        work.steps()

    run(records=20_000)
    return run


# bytes.strip returns what it gets: the cheapest function.
def extended(**given: Any) -> Callable[[Callgrind], Callable[[int], None]]:
    """``send()`` with what ``Extensions`` takes; the callbacks of interceptors are counted, too."""

    def prepare(callgrind: Callgrind) -> Callable[[int], None]:
        work = Workload(PARTITIONS, Extensions(**given))

        def run(records: int) -> None:
            with callgrind.counted():
                work.send(records)
            work.steps()
            with callgrind.counted():
                work.rig.run_callbacks()

        run(records=20_000)
        return run

    return prepare


def callback(callgrind: Callgrind) -> Callable[[int], None]:
    """``send()``, ``add_callback()`` with a function, and calling it."""
    work = Workload(PARTITIONS)

    def run(records: int) -> None:
        send = work.rig.path.send
        with callgrind.counted():
            for _ in repeat(None, records):
                send(TOPIC, VALUE).add_callback(id)
        work.steps()
        with callgrind.counted():
            work.rig.run_callbacks()

    run(records=20_000)
    return run


def delivery_report(callgrind: Callgrind) -> Callable[[int], None]:
    """``produce()`` of ``cyproducer.confluent`` with a callback, and ``poll()``, which calls it."""
    queue = ReportQueue()
    work = Workload(PARTITIONS, completions=queue)
    path = ProducePath()
    path._open(work.rig.path, on_delivery=None, only_errors=False, most=0, only_reports=True)
    path._use_queue(queue)

    def called(error: Any, message: Any) -> None:
        pass

    def run(records: int) -> None:
        with callgrind.counted():
            for _ in repeat(None, records):
                path.produce(TOPIC, VALUE, on_delivery=called)
        work.steps()
        with callgrind.counted():
            path.poll(0)

    run(records=20_000)
    return run


class Loop:
    """The part of an asyncio loop that futures and their outcomes use."""

    _announced: Callable[[], object]

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def add_reader(self, fd: int, function: Callable[[], object]) -> None:
        self._announced = function

    def run(self) -> None:
        """Does what a loop does once the descriptor is readable."""
        self._announced()


def asyncio_future(callgrind: Callgrind) -> Callable[[int], None]:
    """``AIOKafkaProducer.send()`` without its coroutine, and setting the future."""
    work = Workload(PARTITIONS)
    loop = Loop()
    outcomes = LoopOutcomes(loop, RecordMetadata)  # type: ignore[arg-type]
    sends = Sends(set())
    sends.path, sends.outcomes = work.rig.path, outcomes

    def run(records: int) -> None:
        attempt = sends.attempt
        with callgrind.counted():
            for _ in repeat(None, records):
                attempt(TOPIC, VALUE, None, None, None, None)
        work.steps()
        with callgrind.counted():
            loop.run()

    run(records=20_000)
    return run


def rows(callgrind: Callgrind, extensions: Extensions | None = None, **columns: Any) -> Callable[[int], None]:
    """``send_many()`` of as many rows as one call of ``columnar`` has."""
    work = Workload(PARTITIONS)
    path = BulkPath[Any, Any]()
    path._open_path(work.rig.accumulator, MAX_REQUEST_SIZE, MAX_BLOCK_MS, extensions)
    values = [VALUE] * COLUMN_ROWS

    def run(records: int) -> None:
        with callgrind.counted():
            for _ in repeat(None, records // COLUMN_ROWS):
                path.send_many(TOPIC, values, **columns)
        work.steps()

    run(records=4 * COLUMN_ROWS)
    return run


def rows_with_headers(callgrind: Callgrind) -> Callable[[int], None]:
    return rows(callgrind, headers=[[("trace", b"%016d" % row)] for row in range(COLUMN_ROWS)])


def serialized_rows(callgrind: Callgrind) -> Callable[[int], None]:
    return rows(callgrind, Extensions(value_serializer=bytes.strip))


def partitioner(callgrind: Callgrind) -> Callable[[int], None]:
    """``send()`` with a custom partitioner."""
    path = Partitioned()
    work = Workload(PARTITIONS)
    extensions = Extensions(custom=CustomPartitioner(lambda key, every, available: every[0]))
    extensions.use(path)
    path._open_path(work.rig.accumulator, MAX_REQUEST_SIZE, MAX_BLOCK_MS, extensions)

    def run(records: int) -> None:
        with callgrind.counted():
            for _ in repeat(None, records):
                path.send(TOPIC, VALUE)
        work.steps()

    run(records=20_000)
    return run


class Partitioned(BulkPath[Any, Any]):
    """A path that knows the cluster."""

    view = ClusterView({}, {TOPIC: TopicView(dict.fromkeys(range(PARTITIONS), 1), False)}, None, None)

    def _view_of(self, topic: str, timeout_s: float) -> ClusterView:
        return self.view


class Passive:
    """An interceptor that does nothing."""

    def on_send(self, record: Any) -> Any:
        return record

    def on_acknowledgement(self, metadata: Any, exception: BaseException | None) -> None:
        return None


def sender(callgrind: Callgrind) -> Callable[[int], None]:
    work = Workload(PARTITIONS)

    def run(records: int) -> None:
        work.send(records)
        work.steps(callgrind)

    run(records=20_000)
    return run


def sender_of_single_records(callgrind: Callgrind) -> Callable[[int], None]:
    """Sends batches of one record each, to count the cost of a batch."""
    work = Workload(SMALL_PARTITIONS)

    def run(records: int) -> None:
        for _ in range(records // SMALL_PARTITIONS):
            work.send_one_to_each(SMALL_PARTITIONS)
            work.steps(callgrind)

    run(records=2 * SMALL_PARTITIONS)
    return run


def columnar(callgrind: Callgrind) -> Callable[[int], None]:
    """Sends rows in columns."""
    path = BulkPath()
    rows = arrow_rows()
    work = Workload(PARTITIONS)
    path._open_path(work.rig.accumulator, MAX_REQUEST_SIZE, MAX_BLOCK_MS, None)

    def run(records: int) -> None:
        with callgrind.counted():
            for _ in repeat(None, records // COLUMN_ROWS):
                path.send_arrow(TOPIC, rows, value="value")
        work.steps()

    run(records=4 * COLUMN_ROWS)
    return run


@cache
def arrow_rows() -> Any:
    """Returns the rows of one call."""
    try:
        pyarrow = importlib.import_module("pyarrow")
    except ModuleNotFoundError as error:
        raise NotImplementedError("pyarrow isn't installed") from error
    return pyarrow.record_batch({"value": pyarrow.array([VALUE] * COLUMN_ROWS, type=pyarrow.binary())})


WORKLOADS: dict[str, tuple[Callable[[Callgrind], Callable[[int], None]], int]] = {
    "send": (send, 20_000),
    "send, a serializer": (extended(value_serializer=bytes.strip), 20_000),
    "send, a callback": (callback, 20_000),
    "send, an interceptor": (extended(interceptors=[Passive()]), 20_000),
    "send, a partitioner": (partitioner, 20_000),
    "confluent, a callback": (delivery_report, 20_000),
    "asyncio": (asyncio_future, 20_000),
    "send_many": (rows, 40_000),
    "send_many, headers": (rows_with_headers, 40_000),
    "send_many, a serializer": (serialized_rows, 40_000),
    "sender": (sender, 40_000),
    "sender of single records": (sender_of_single_records, 2_000),
    "columnar": (columnar, 40_000),
}
"""Name -> the function that prepares it, and N. It runs with N and with 2 N records; the difference
counts."""


def main(arguments: list[str]) -> int:
    callgrind = Callgrind(Path(arguments[0]))
    gc.disable()
    with suppress(NotImplementedError):
        # Imported first: importing takes ten times as long under instrumentation.
        arrow_rows()
    callgrind.begin()
    for name, (prepare, records) in WORKLOADS.items():
        try:
            run = prepare(callgrind)
        except NotImplementedError as reason:
            print(f"{name}: {reason}", flush=True)
            continue
        # Discards what the preparation counted.
        callgrind.write("preparation")
        for times in (1, 2):
            run(times * records)
            callgrind.write(f"{name}|{times * records}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
