from collections.abc import Callable, Iterable, Mapping
from types import GenericAlias
from typing import Any, Generic

from typing_extensions import Buffer, TypeVar, disjoint_base

from cyproducer.accumulator.buffer_pool import Ticket
from cyproducer.accumulator.record_accumulator import RecordAccumulator
from cyproducer.control.cluster_view import ClusterView
from cyproducer.futures.delivery import RecordFuture
from cyproducer.send.extensions import Extensions
from cyproducer.structs import ProducerRecord

# Types of keys and values, as in cyproducer.types: Any if a program does not specify them.
_K = TypeVar("_K", contravariant=True, default=Any)
_V = TypeVar("_V", contravariant=True, default=Any)

@disjoint_base
class LastTopic:
    """See ``send_path.pxd``."""

class WouldBlock(Exception):
    """``send()`` would block. ``what`` is the reason: "memory" (of ``size`` bytes), "callbacks", "metadata"
    (too many records already wait for it), "partition" (the metadata must be refreshed), or "topic" (a custom
    partitioner needs its metadata).

    ``arguments``: those for ``_send_at_once``, if the record was already serialized; else None.
    """

    what: str
    size: int
    arguments: tuple[Any, Any, Any, Any, Any, Any] | None
    def __init__(self, what: str, size: int = 0) -> None: ...

@disjoint_base
class SendPath(Generic[_K, _V]):
    """The base class of ``KafkaProducer`` that implements ``send()``. Thread-safe."""

    may_be_empty: bool
    def __class_getitem__(cls, types: Any) -> GenericAlias: ...
    def send(
        self,
        topic: str,
        value: _V | None = None,
        key: _K | None = None,
        headers: Iterable[tuple[str, Buffer | None]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture:
        """Accepts a record and returns its future; the record is sent in the background.

        ``value`` and ``key``: bytes, any contiguous buffer except numpy scalars (copied before the call
        returns), or None; any type if a serializer is configured. A record needs at least one of the two: a
        key without a value is a tombstone. ``headers``: a list of (str, bytes or None); names can repeat.
        ``partition``: None lets the partitioner choose. ``timestamp_ms``: milliseconds since the epoch;
        default: now. Within a batch, now is the last kernel tick, up to 4 ms ago on most systems.

        Blocks up to ``max_block_ms`` while ``buffer_memory`` is full, and while ``max_pending_callbacks``
        records wait for their callbacks (but not in a callback). Missing metadata does not block: the record
        is parked with other records of its topic, also up to ``max_block_ms``. If ``partition`` is not in the
        metadata, the metadata is refreshed once, and the record is refused if the partition is still missing;
        ``KafkaTimeoutError`` if no broker responds within ``max_block_ms``.

        Raises ``TypeError`` or ``ValueError`` for invalid arguments, ``InvalidTopicError``,
        ``BufferExhaustedError`` (a ``KafkaTimeoutError``) and ``ProducerClosedError``. Later errors, and
        ``RecordTooLargeError``, are reported by the future. Thread-safe.
        """
    def send_all(
        self, records: Iterable[ProducerRecord | Mapping[str, Any] | tuple[Any, ...]]
    ) -> list[RecordFuture]:
        """Sends several records and returns their futures, in order.

        Each record is a ``ProducerRecord``, a tuple in the same order, or a mapping with its field names.
        Never raises because of a record: its future holds the error that ``send`` would have raised. Blocks
        whenever ``send`` would.
        """
    def _open_path(
        self,
        accumulator: RecordAccumulator,
        max_request_size: int,
        max_block_ms: float,
        extensions: Extensions | None,
        on_refused: Callable[[Exception], object] | None = None,
    ) -> None: ...
    def _note_refused(self, error: Exception) -> None: ...
    def _refresh_topic(self, name: str, timeout_s: float) -> object: ...
    def _reopen(self) -> None: ...
    def _send_serialized(
        self, topic: Any, value: Any, key: Any, headers: Any, partition: Any, timestamp_ms: Any
    ) -> RecordFuture: ...
    def _send_at_once(
        self,
        topic: Any,
        value: Any,
        key: Any,
        headers: Any,
        partition: Any,
        timestamp_ms: Any,
        ticket: Ticket | None,
    ) -> RecordFuture: ...
    def _no_partition(self, topic: str, partition: int) -> BaseException: ...
    def _exhausted(self, size: int, topic: str) -> BaseException: ...
    def _wait_for_parking(self, topic: str, size: int, timeout_s: float) -> None: ...
    def _why_no_metadata(self, topic: str, within: str) -> str: ...
    def _wait_for_callbacks(self, topic: str, timeout_s: float) -> None: ...
    def _intercepted(self, record: ProducerRecord) -> ProducerRecord: ...
    def _extended_at_once(self, record: ProducerRecord) -> RecordFuture: ...
    def _follow(self, record: ProducerRecord, future: RecordFuture) -> RecordFuture: ...
    def _acknowledge(self, record: ProducerRecord, outcome: BaseException) -> None: ...
    def _accept(
        self,
        record: ProducerRecord,
        topic: Any,
        value: Any,
        key: Any,
        headers: Any,
        partition: Any,
        timestamp_ms: Any,
    ) -> RecordFuture: ...
    def _view_of(self, topic: str, timeout_s: float) -> ClusterView: ...
