"""``MockProducer``: a ``KafkaProducer`` without a network, for tests of programs that send records.

Owns the history of sent records, which of them were committed, the order and the offsets of outcomes, and the
exceptions that a test requests. Does not own checking and serializing records, futures or callbacks: these
are ``KafkaProducer``'s own, with its accumulator. Transactions are also its own (``mock_transactions``). Only
the sender is missing: each record is a separate batch, and the test, or ``send()`` itself, sets the outcome
of the batch (``outcomes``).

``MockRuntime.lock`` guards the history, the topics and all outcomes. No callback runs while it is held.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, cast

from cyproducer._consumer_offsets import read_group, read_offsets
from cyproducer._runtime import Runtime
from cyproducer.clients.network_client import NetworkClient
from cyproducer.config import ProducerConfig, hide
from cyproducer.control.cluster_view import ClusterView, TopicView
from cyproducer.control.partitioners import CustomPartitioner, PartitionerSpec
from cyproducer.control.transaction_calls import Ending, State
from cyproducer.errors import IllegalStateError, KafkaTimeoutError, ProducerFencedError
from cyproducer.futures.bulk_future import BulkFuture
from cyproducer.futures.delivery import RecordFuture
from cyproducer.producer import KafkaProducer, ProducerRecord, _from_options
from cyproducer.records.row_source import is_header_list
from cyproducer.structs import OffsetAndMetadata, TopicPartition
from cyproducer.testing.mock_transactions import NODE, MockTransactions
from cyproducer.testing.outcomes import acknowledge_oldest, fail_oldest, oldest

if TYPE_CHECKING:
    from typing_extensions import Buffer, Unpack

    from cyproducer.types import Headers, K, ProducerOptions, V
else:
    K = V = Any

UNLIMITED = 1 << 40
"""The limit of buffer memory and of pending callbacks. With a lower limit, ``send()`` would wait for a sender
that does not exist."""


_IN_TRANSACTION = (
    State.IN_TRANSACTION,
    State.PREPARING,
    State.PREPARED,
    State.COMMITTING,
    State.ABORTABLE_ERROR,
    State.ABORTING,
)

Positions = dict[str, dict[TopicPartition, OffsetAndMetadata]]
"""Group id -> the next offset to read of each partition."""


class MockRecord(ProducerRecord):
    """A record as it was given to ``send()``, equal to the ``ProducerRecord`` with the same fields.

    ``serialized_key`` and ``serialized_value`` are the bytes that would have been sent to Kafka, or None.
    ``future`` is the future that ``send()`` or ``send_many()`` returned; ``future.partition`` is the chosen
    partition.
    """

    serialized_key: bytes | None
    serialized_value: bytes | None
    future: RecordFuture | BulkFuture


class _Client:
    """The methods of ``NetworkClient`` that a producer uses. All of them return at once. Thread-safe."""

    def __init__(self, runtime: MockRuntime, transactions: MockTransactions | None) -> None:
        self._topics = runtime.topics
        self._apply = runtime.apply
        self._closed = False
        self.view = ClusterView({}, {}, None, None)
        self.transaction_client = transactions
        self.telemetry = None

    def wait_for_topic(self, name: str, timeout_s: float) -> ClusterView:
        self._apply(name)
        views = {name: TopicView(dict.fromkeys(range(self._topics[name]), NODE), False)}
        return ClusterView({}, views, None, None)

    def refresh_topic(self, name: str, timeout_s: float) -> None:
        """Does nothing: the test has set the partitions."""

    def wait_ready(self, timeout_s: float) -> None:
        """Always ready."""

    def bootstrap_connected(self) -> bool:
        return not self._closed

    def diagnosis(self) -> str:
        return "a MockProducer has no broker"

    def close(self) -> None:
        self._closed = True


class MockRuntime(Runtime):
    """A producer's runtime without a sender thread: a record has no outcome until a call sets one."""

    def __init__(
        self,
        config: ProducerConfig,
        partitioner: PartitionerSpec | CustomPartitioner,
        topics: dict[str, int],
    ) -> None:
        """
        Args:
            config: the producer's options.
            partitioner: the partitioner that the option ``partitioner`` selects.
            topics: name -> number of partitions, shared with the producer; grows with every topic used.
        """
        # Reentrant: a signal handler or a finalizer may send.
        self.lock = threading.RLock()
        self.topics = topics
        #: (topic, partition) -> the next offset.
        self._offsets: dict[tuple[str, int], int] = {}
        # One record per batch, and no call waits.
        alone = copy.copy(config)
        limits = {"batch_size": 0, "buffer_memory": UNLIMITED, "max_pending_callbacks": UNLIMITED}
        alone._values = config._values | limits
        super().__init__(alone, partitioner)
        self.accumulator.on_topic_needed = self.apply
        #: None without a transactional id.
        self.transactions: MockTransactions | None = None
        if config.transactional_id is not None:
            self.transactions = MockTransactions(config, self.sender, self.lock)
        self.client = cast(NetworkClient, _Client(self, self.transactions))
        for name in topics:
            self.apply(name)

    def start(self) -> None:
        """Starts no thread."""

    def apply(self, name: str) -> None:
        """Passes the topic's partitions to the accumulator; a topic that is not in ``topics`` gets one."""
        with self.lock:
            self.sender.apply_topic(name, b"", [NODE] * self.topics.setdefault(name, 1))

    def acknowledge(self) -> bool:
        """Acknowledges the oldest record; returns False if there is none."""
        with self.lock:
            place = oldest(self.accumulator)
            if place is None:
                return False
            offset = self._offsets.get(place, 0)
            acknowledge_oldest(self.accumulator, offset)
            self._offsets[place] = offset + 1
            return True

    def fail(self, error: BaseException) -> bool:
        """Fails the oldest record; returns False if there is none."""
        with self.lock:
            if oldest(self.accumulator) is None:
                return False
            fail_oldest(self.accumulator, error)
            if self.transactions is not None:
                self.transactions.fail(error)
            return True

    def acknowledge_all(self) -> None:
        """Acknowledges every record."""
        while self.acknowledge():
            pass

    def flush(self, timeout_s: float) -> str | None:
        """Acknowledges every record and waits for the callbacks."""
        self.acknowledge_all()
        return super().flush(timeout_s)

    def end_transaction(self, ending: Ending, timeout_s: float) -> Any:
        """Acknowledges every record before a commit, as the brokers do."""
        if ending != "abort" and self.accumulator.refusal is None:
            self.acknowledge_all()
        return super().end_transaction(ending, timeout_s)

    def close(self, timeout_s: float, unasked: bool = False) -> int:
        """Acknowledges every record. With a timeout of 0, the records fail, because a sender would not have
        enough time.

        An open transaction is aborted.
        """
        if self.transactions is not None and not self.closed:
            self.transactions.report_close(self.transactions.begin_close())
        if timeout_s > 0:
            self.acknowledge_all()
        return super().close(timeout_s, unasked)

    def _end(self) -> None:
        with self.lock:
            super()._end()


class MockProducer(KafkaProducer[K, V]):
    """A ``KafkaProducer`` that keeps its records instead of sending them. Needs no broker and no network.

    Options, arguments, checks, serializers, interceptors, partitioners, futures and errors are those of
    ``KafkaProducer``. No call waits: buffer memory is not limited, and a topic that is not in ``partitions``
    gets one partition. ``send_arrow()`` is not available. Thread-safe.

    With a ``transactional_id``, it supports transactions. The calls that are allowed in each state, and the
    errors, are those of ``KafkaProducer``, and the coordinator agrees at once. A commit acknowledges the
    pending records, an abort fails them. See `history`, `uncommitted`, `aborted` and `fence`.

    After a fork, the child has a copy of the history. The pending records belong only to the parent.

    Args:
        auto_complete: Whether ``send()`` acknowledges the record before it returns. If not, records stay
            pending until `complete_next`, `error_next`, ``flush()`` or ``close()``.
        partitions: Topic name -> number of partitions; see `set_partitions`.
        configs: ``KafkaProducer``'s options.

    Attributes:
        send_exception: Unless None, ``send()`` and ``send_many()`` raise it instead of accepting a record.
        flush_exception: Unless None, ``flush()`` raises it instead of acknowledging the pending records.
        init_transactions_exception: Unless None, ``init_transactions()`` raises it and does nothing else. The
            attributes below work in the same way.
        begin_transaction_exception: For ``begin_transaction()``.
        send_offsets_to_transaction_exception: For ``send_offsets_to_transaction()``.
        commit_transaction_exception: For ``commit_transaction()``.
        abort_transaction_exception: For ``abort_transaction()``.
        prepare_transaction_exception: For ``prepare_transaction()``.
    """

    # send() itself would append the record without the mock's knowledge.
    _accepts = True

    def __init__(
        self,
        *,
        auto_complete: bool = True,
        partitions: Mapping[str, int] | None = None,
        **configs: Unpack[ProducerOptions[K, V]],
    ) -> None:
        configs = hide(configs)
        self.auto_complete = auto_complete
        self.send_exception: BaseException | None = None
        self.flush_exception: BaseException | None = None
        self.init_transactions_exception: BaseException | None = None
        self.begin_transaction_exception: BaseException | None = None
        self.send_offsets_to_transaction_exception: BaseException | None = None
        self.commit_transaction_exception: BaseException | None = None
        self.abort_transaction_exception: BaseException | None = None
        self.prepare_transaction_exception: BaseException | None = None
        self._topics: dict[str, int] = {}
        for name, number in (partitions or {}).items():
            self._topics[name] = _checked(name, number)
        self._history: list[MockRecord] = []
        self._uncommitted: list[MockRecord] = []
        self._aborted: list[MockRecord] = []
        self._committed_offsets: Positions = {}
        self._uncommitted_offsets: Positions = {}
        self._sent_offsets = False
        self._commits = 0
        #: How the last transaction ended, until the next one begins.
        self._ended_by: Ending | None = None
        super().__init__(**configs)

    def _new_runtime(self) -> MockRuntime:
        return MockRuntime(self.config, self._partitioner, self._topics)

    @property
    def _mock(self) -> MockRuntime:
        return cast(MockRuntime, self._runtime)

    # The test's side

    def history(self) -> list[MockRecord]:
        """Returns the accepted records in order, failed ones included.

        With a ``transactional_id``, returns only the records of committed transactions.
        """
        with self._mock.lock:
            return list(self._history)

    def uncommitted(self) -> list[MockRecord]:
        """Returns the accepted records of the open transaction in order; empty if none is open."""
        with self._mock.lock:
            return list(self._uncommitted)

    def aborted(self) -> list[MockRecord]:
        """Returns the accepted records of aborted transactions in order."""
        with self._mock.lock:
            return list(self._aborted)

    def clear(self) -> None:
        """Removes the records from the history, including uncommitted and aborted ones, and group offsets.

        Pending records stay pending, and record offsets are not reset. An open transaction stays open.
        """
        with self._mock.lock:
            for kept in (self._history, self._uncommitted, self._aborted):
                kept.clear()
            self._committed_offsets.clear()
            self._uncommitted_offsets.clear()
            self._sent_offsets = False

    def fence(self) -> None:
        """Simulates a newer producer that takes over the ``transactional_id``.

        Pending records fail, and each later call, including ``send()``, raises ``ProducerFencedError``.
        Raises ``IllegalStateError`` before ``init_transactions()``.
        """
        transactions = self._mock.transactions
        if transactions is None or not self.transaction_initialized:
            raise IllegalStateError("fence() before init_transactions(): there is nothing to take over")
        transactions.fail(
            ProducerFencedError(f"the test has fenced transactional id {self.config.transactional_id!r}")
        )

    @property
    def transaction_initialized(self) -> bool:
        """Whether ``init_transactions()`` has succeeded."""
        return self._state() not in (State.UNINITIALIZED, State.INITIALIZING)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open: begun, and not committed, aborted or fenced."""
        return self._state() in _IN_TRANSACTION

    @property
    def transaction_committed(self) -> bool:
        """Whether the last transaction was committed, and no other one has begun since."""
        return self._ended_by == "commit"

    @property
    def transaction_aborted(self) -> bool:
        """Whether the last transaction was aborted, and no other one has begun since."""
        return self._ended_by == "abort"

    @property
    def commit_count(self) -> int:
        """The number of committed transactions."""
        return self._commits

    @property
    def sent_offsets(self) -> bool:
        """Whether ``send_offsets_to_transaction()`` has added offsets to the last transaction."""
        return self._sent_offsets

    @property
    def committed_offsets(self) -> Positions:
        """The offsets of committed transactions: {group id: {TopicPartition: offset}}."""
        with self._mock.lock:
            return copy.deepcopy(self._committed_offsets)

    @property
    def uncommitted_offsets(self) -> Positions:
        """The offsets that the open transaction would commit, in the same form."""
        with self._mock.lock:
            return copy.deepcopy(self._uncommitted_offsets)

    def _state(self) -> State:
        transactions = self._mock.transactions
        return State.UNINITIALIZED if transactions is None else transactions.machine.state

    def complete_next(self) -> bool:
        """Acknowledges the oldest pending record and waits for its callbacks.

        Returns False if no record is pending. Raises ``KafkaTimeoutError`` if the callbacks have not returned
        within ``max_block_ms``. Does not wait if a callback calls it.
        """
        return self._called_back(self._mock.acknowledge())

    def error_next(self, error: BaseException) -> bool:
        """Fails the oldest pending record with ``error``; otherwise like `complete_next`."""
        if not isinstance(error, BaseException):
            raise TypeError(f"error: must be an exception, not {error!r}")
        return self._called_back(self._mock.fail(error))

    def _called_back(self, found: bool) -> bool:
        callbacks = self._mock.callbacks
        if found and not callbacks.is_current() and not callbacks.wait_idle(self.config.max_block_ms / 1000):
            raise KafkaTimeoutError(
                f"the record's callbacks did not return within max_block_ms={self.config.max_block_ms:g}"
            )
        return found

    def set_partitions(self, topic: str, number: int) -> None:
        """Sets the number of a topic's partitions. Can be called at any time."""
        with self._mock.lock:
            self._topics[topic] = _checked(topic, number)
            self._mock.apply(topic)

    # The program's side

    async def send_async(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture:
        """Calls ``send()``, which never waits."""
        return self.send(topic, value, key, headers, partition, timestamp_ms)

    def _accept(
        self,
        record: ProducerRecord,
        topic: str,
        value: Any,
        key: Any,
        headers: Any,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> RecordFuture:
        runtime = self._mock
        with runtime.lock:
            if self.send_exception is not None:
                raise self.send_exception
            future = super()._accept(record, topic, value, key, headers, partition, timestamp_ms)
            # A record that was refused, for example because it is too large, was not accepted.
            if not future.failed():
                self._keep(record, key, value, future)
                if self.auto_complete:
                    runtime.acknowledge_all()
        return future

    def _keep(
        self,
        record: ProducerRecord,
        key: Buffer | None,
        value: Buffer | None,
        future: RecordFuture | BulkFuture,
    ) -> None:
        kept = MockRecord(*record)
        kept.serialized_key = None if key is None else bytes(key)
        kept.serialized_value = None if value is None else bytes(value)
        kept.future = future
        transactions = self._mock.transactions
        if transactions is None:
            self._history.append(kept)
        else:
            transactions.note_accepted(record.topic)
            self._uncommitted.append(kept)

    def _accept_many(
        self,
        given: tuple[Any, Any, Any, Any, Any],
        topic: str,
        values: Any,
        keys: Any,
        headers: Any,
        partition: Any,
        timestamp_ms: Any,
    ) -> BulkFuture:
        runtime = self._mock
        with runtime.lock:
            if self.send_exception is not None:
                raise self.send_exception
            future = super()._accept_many(given, topic, values, keys, headers, partition, timestamp_ms)
            of_all = given[2] is not None and is_header_list(given[2])
            for row in range(len(future)):
                value, key, own, number, time_ms = (
                    column[row] if isinstance(column, list) else column for column in given
                )
                record = ProducerRecord(topic, value, key, given[2] if of_all else own, number, time_ms)
                self._keep(record, None if keys is None else keys[row], values[row], future)
            if self.auto_complete:
                runtime.acknowledge_all()
        return future

    def send_arrow(self, *arguments: Any, **options: Any) -> NoReturn:
        """Raises ``IllegalStateError``: the rows of a table are not Python objects that could be kept."""
        raise IllegalStateError("a MockProducer has no send_arrow(): test with an EmbeddedBroker")

    def flush(self, timeout: float | None = None) -> None:
        """Acknowledges every pending record, and waits for the callbacks."""
        if self.flush_exception is not None:
            raise self.flush_exception
        super().flush(timeout)

    def init_transactions(self, timeout: float | None = None) -> None:
        """``KafkaProducer.init_transactions``, which succeeds at once."""
        self._raise(self.init_transactions_exception)
        super().init_transactions(timeout)

    def begin_transaction(self) -> None:
        """``KafkaProducer.begin_transaction``."""
        self._raise(self.begin_transaction_exception)
        with self._mock.lock:
            super().begin_transaction()
            self._ended_by = None
            self._sent_offsets = False
            # A forked child has those of its parent.
            self._uncommitted.clear()
            self._uncommitted_offsets.clear()

    def send_offsets_to_transaction(self, offsets: Any, group: Any, timeout: float | None = None) -> None:
        """``KafkaProducer.send_offsets_to_transaction``, which every group accepts at once."""
        self._raise(self.send_offsets_to_transaction_exception)
        positions = read_offsets(offsets)
        # Do not hold the lock here, because this call may log a warning.
        super().send_offsets_to_transaction(positions, group, timeout)
        with self._mock.lock:
            if positions:
                self._sent_offsets = True
                self._uncommitted_offsets.setdefault(read_group(group).group_id, {}).update(positions)

    def _end(self, method: str, ending: Ending, timeout: float | None) -> Any:
        self._raise(getattr(self, f"{method}_exception"))
        result = super()._end(method, ending, timeout)
        if ending != "prepare":
            self._settle(ending)
        return result

    def _settle(self, ending: Ending) -> None:
        """Notes that the transaction was committed or aborted."""
        with self._mock.lock:
            self._ended_by = ending
            if ending == "commit":
                self._commits += 1
                self._history.extend(self._uncommitted)
                for group_id, positions in self._uncommitted_offsets.items():
                    self._committed_offsets.setdefault(group_id, {}).update(positions)
            else:
                self._aborted.extend(self._uncommitted)
            self._uncommitted.clear()
            self._uncommitted_offsets.clear()

    def _raise(self, error: BaseException | None) -> None:
        if error is not None and not self._closed:
            raise error

    def close(self, timeout: float | None = None) -> None:
        """Acknowledges every pending record, or aborts an open transaction, and closes the producer."""
        before = self._state()
        super().close(timeout)
        if before in _IN_TRANSACTION and not self.in_transaction:
            # A commit that has timed out continues.
            self._settle("commit" if before is State.COMMITTING else "abort")

    def metrics(self, raw: bool = False) -> dict[Any, Any]:
        """Returns an empty dict: there is nothing to measure."""
        return {}

    def __reduce__(self) -> tuple[Any, ...]:
        kind, options = super().__reduce__()[1]
        mine = {"auto_complete": self.auto_complete, "partitions": dict(self._topics)}
        return _from_options, (kind, options | mine)


def _checked(topic: str, partitions: int) -> int:
    if partitions < 1:
        raise ValueError(f"partitions of topic {topic!r}: {partitions}, must be at least 1")
    return partitions
