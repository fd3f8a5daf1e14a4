"""The product in a simulated world: all parts of a ``KafkaProducer`` except its threads.

Owns the wiring, sending records and recording their outcomes. Does not own the expected outcomes (``check``).
Runs on one thread: the sender in ``step()``, callbacks between its steps.
"""

import contextlib
import logging
import random
import selectors
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from unittest import mock

from cyproducer import errors
from cyproducer._runtime import wire
from cyproducer.base.user_thread import user_thread
from cyproducer.clients.network_client import NetworkClient
from cyproducer.config import ProducerConfig
from cyproducer.control.partitioners import PartitionerSpec, resolve_partitioner
from cyproducer.futures.completion import CompletionQueue
from cyproducer.futures.delivery import RecordFuture
from cyproducer.send.send_path import SendPath
from cyproducer.structs import RecordMetadata
from tests.simulation.credentials import Tasks
from tests.simulation.network import Names, Network
from tests.simulation.world import World, WorldSelector

ENOUGH_BYTES = 4096
"""Upper bound for the memory of a record of a history, including that of its batch."""


@dataclass(eq=False)
class Sent:
    """A record that ``send()`` accepted, and its outcome."""

    number: int
    topic: str
    partition: int | None
    value: bytes
    sent_ns: int
    future: RecordFuture
    #: The topic's metadata was missing.
    parked: bool
    #: Whether closing the client completed it.
    by_close: bool = False
    done_ns: int = 0
    calls: int = 0
    metadata: RecordMetadata | None = None
    error: BaseException | None = None

    @property
    def maybe_written(self) -> bool:
        """Whether the error says that the record may be in the log; True if it does not say."""
        return getattr(self.error, "maybe_written", None) is not False


class Complaints(logging.Handler):
    """Collects log messages with a traceback: each of them is a bug of the product."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.DEBUG if world.tracing else logging.WARNING)
        self._world = world
        self.found: list[str] = []

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        """Collects what the product logs in this block."""
        logger = logging.getLogger("cyproducer")
        propagate, level = logger.propagate, logger.level
        logger.propagate = False
        logger.setLevel(self.level)
        logger.addHandler(self)
        try:
            # A history has one thread: log lines are handled immediately.
            with mock.patch.object(user_thread, "put_line", lambda job: job()):
                yield
        finally:
            logger.removeHandler(self)
            logger.propagate = propagate
            logger.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            kind, error, _ = record.exc_info
            self.found.append(f"{record.getMessage()}: {kind.__name__ if kind else ''}: {error}")
            self._world.say(f"client logs a traceback: {logging.Formatter().format(record)}")
        elif self._world.tracing:
            self._world.say(f"client logs: {record.getMessage()}")


class Client:
    """See the module. ``config``: a producer's options; ``step_ms``: see ``WorldSelector``."""

    def __init__(
        self,
        world: World,
        network: Network,
        config: ProducerConfig,
        seed: int,
        step_ms: float = 0.0,
        selector: selectors.BaseSelector | None = None,
        records: list[Sent] | None = None,
    ) -> None:
        """``records``: gets the records, whose numbers are their places in it; clients may share it."""
        self.world = world
        self.config = config
        self.records: list[Sent] = [] if records is None else records
        self.open: list[Sent] = []
        self.closing = False
        #: Values that send() rejected for lack of memory, or of a partition: they must not be in any log.
        self.turned_away: list[bytes] = []
        #: Whether topics may lose partitions.
        self.shrinks = False
        #: Called with each acknowledged record.
        self.on_acknowledged: Callable[[Sent], object] = lambda sent: None
        self.completions = CompletionQueue()
        self.complaints = Complaints(world)
        self.selector = selector or WorldSelector(world, step_ms)
        spec = resolve_partitioner(
            config.partitioner, config.partitioner_ignore_keys, config.partitioner_rack_aware
        )
        assert isinstance(spec, PartitionerSpec)
        self.accumulator, self.sender = wire(
            config, world.clock, self.selector, self.completions, spec, seed, compression_thread=False
        )
        self.pool = self.accumulator.pool
        self.tasks = Tasks(world, self.sender.request_control)
        self.control = NetworkClient(
            config,
            self.sender,
            world.clock,
            rng=random.Random(seed).random,
            open_socket=network.open_socket,
            resolver=Names(self.sender.request_control),
            background=self.tasks,
        )
        self.sender.attach_control(self.control, self.control.fates)
        self.accumulator.on_topic_needed = self.control.want_topic
        transactions = self.control.transaction_client
        on_refused = None if transactions is None else transactions.note_refused
        self.path = SendPath()
        self.path._open_path(self.accumulator, config.max_request_size, config.max_block_ms, None, on_refused)
        # Waiting for memory would take real time, in which no memory is released: this path never waits.
        self.hasty_path = SendPath()
        self.hasty_path._open_path(self.accumulator, config.max_request_size, 0.0, None, on_refused)
        world.after_step.append(self.run_callbacks)

    # Sending

    def send(self, topic: str, value: bytes, key: bytes | None, partition: int | None) -> None:
        """Sends a record. Its value starts with its number."""
        value = b"%d:%b" % (len(self.records), value)
        has_memory = self.has_memory
        try:
            self.accept(topic, value, key, partition, has_memory)
        except errors.BufferExhaustedError:
            assert not has_memory, f"{self.pool.used_bytes} bytes are used, and send() found none"
            self.turned_away.append(value)
            self.world.say(f"no memory for a record of {len(value)} bytes")
            return
        except errors.UnknownTopicOrPartitionError:
            assert partition is not None
            assert self.shrinks, f"send() found no partition {partition}"
            self.turned_away.append(value)
            self.world.say(f"no partition {partition} for a record")
            return
        except errors.KafkaError as error:
            # The cluster has permanently refused a producer id.
            if self.accumulator.refusal is None:
                raise AssertionError(f"send() raised {error!r}") from error

    @property
    def has_memory(self) -> bool:
        """Whether ``send()`` certainly finds memory. One record may always be parked."""
        parked = self.accumulator.parked_records
        return self.pool.used_bytes + ENOUGH_BYTES <= self.config.buffer_memory and (
            not parked or self.accumulator.parking_bytes >= ENOUGH_BYTES
        )

    def accept(
        self, topic: str, value: bytes, key: bytes | None, partition: int | None, has_memory: bool
    ) -> Sent:
        """Sends a record whose value has its number; raises what ``send()`` raises."""
        parked = self.accumulator.parked_records
        path = self.path if has_memory else self.hasty_path
        future = path.send(topic, value, key, partition=partition)
        number = len(self.records)
        parked = self.accumulator.parked_records - parked
        sent = Sent(number, topic, partition, value, self.world.now_ns, future, bool(parked))
        self.records.append(sent)
        self.open.append(sent)
        if self.world.tracing:
            self.world.say(f"send {number} to {topic}-{partition}, {len(value)} bytes")
        future.add_both(self._done, sent)
        return sent

    def _done(self, sent: Sent, outcome: RecordMetadata | BaseException) -> None:
        sent.calls += 1
        sent.done_ns = self.world.now_ns
        sent.by_close = self.closing
        self.open.remove(sent)
        if isinstance(outcome, BaseException):
            sent.error = outcome
            self.world.say(f"{sent.number} fails, maybe_written={sent.maybe_written}: {outcome}")
        else:
            sent.metadata = outcome
            self.world.say(f"{sent.number} acknowledged: {outcome.partition} at {outcome.offset}")
            self.on_acknowledged(sent)

    def run_callbacks(self) -> None:
        # run_next() on an empty queue waits for a short time: too slow for each step.
        while any(sent.future.is_done for sent in self.open) and self.completions.run_next(0):
            pass

    def flush(self) -> None:
        """Flushes, and looks once a millisecond whether that is done: then every record has an outcome."""
        if self.closing:
            return
        if not self.accumulator.flush(0):
            self.world.after(1.0, self.flush)
            return
        self.world.say("flush() returns")
        self.check_outcomes("flush() returns")

    def check_outcomes(self, what: str) -> None:
        left = self.pending
        assert not left, f"{what}, and records {left} have no outcome"

    @property
    def pending(self) -> list[int]:
        """The numbers of the records without an outcome."""
        return [sent.number for sent in self.open if not sent.future.is_done]

    # Running

    def step(self) -> None:
        """Runs one step of the sender, which may sleep as long as it wants."""
        self.sender.run_once(1e12)
        self.run_callbacks()

    def close(self) -> None:
        """Closes like ``KafkaProducer.close(0)``: incomplete records fail."""
        self.closing = True
        self.world.say("close")
        self.accumulator.close()
        error = errors.ProducerClosedError("the producer was closed before the record was acknowledged")
        assert self.sender.abort(error) == 0, "a batch is left after abort()"
        self.check_outcomes("close(0) returns")
        self.sender.release()
        self.selector.close()
        self.control.close()
        self.run_callbacks()
        self.completions.close()
