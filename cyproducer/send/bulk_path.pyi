from collections.abc import Iterable, Sequence
from typing import Any

from typing_extensions import Buffer, TypeVar, disjoint_base

from cyproducer.futures.bulk_future import BulkFuture
from cyproducer.send.send_path import SendPath

_K = TypeVar("_K", contravariant=True, default=Any)
_V = TypeVar("_V", contravariant=True, default=Any)
_Headers = Sequence[tuple[str, Buffer | None]]

@disjoint_base
class BulkPath(SendPath[_K, _V]):
    """The base class of ``KafkaProducer`` with ``send_arrow()`` and ``send_many()``. Thread-safe."""
    def send_arrow(
        self,
        topic: str,
        data: Any,
        *,
        key: str | None = None,
        value: str | None = "value",
        headers: str | None = None,
        partition: int | str | None = None,
        timestamp: int | str | None = None,
    ) -> BulkFuture:
        """Accepts the rows of a table and returns one future for all of them; see docs/columnar.md.

        ``data``: any object with ``__arrow_c_stream__`` or ``__arrow_c_array__``, such as tables of pyarrow,
        polars, pandas, DuckDB and DataFusion. A stream is read to its end and kept in memory before any row
        is sent: if it does not fit into memory, call this method for each of its batches.

        ``value``, ``key``, ``headers``: names of columns, or None. Values and keys are binary or string
        columns, including large, view, fixed-size and dictionary variants; headers are lists of (key, value)
        structs. ``partition``: a number for all rows, or the name of a column of whole numbers; for null (for
        float64 also NaN) the partitioner chooses. ``timestamp``: milliseconds for all rows, or the name of a
        column of timestamps, dates, or int64 or uint64 milliseconds; null means now.

        Blocks while the topic's metadata is missing, while it is refreshed because a partition is missing,
        and while ``buffer_memory`` is full: each time up to ``max_block_ms``.

        Raises, before any row is sent, ``TypeError`` and ``ValueError`` for invalid columns and rows,
        ``RecordTooLargeError``, ``UnknownTopicOrPartitionError``, ``InvalidTopicError``,
        ``KafkaTimeoutError`` if no metadata arrives, ``ProducerClosedError``. Errors that are raised later,
        such as ``BufferExhaustedError``, have the attributes ``accepted``, the number of accepted rows, and
        ``future``, the future of those rows.
        """
    def send_many(
        self,
        topic: str,
        values: Sequence[_V | None],
        keys: Sequence[_K | None] | None = None,
        *,
        headers: _Headers | Sequence[_Headers | None] | None = None,
        partition: int | Iterable[int | None] | None = None,
        timestamp_ms: int | Iterable[int | None] | None = None,
    ) -> BulkFuture:
        """Accepts many records and returns one future for all of them; like ``send_arrow``, for sequences.

        ``values``, ``keys``: sequences of the same length, of bytes, other contiguous buffers or None, or of
        objects that the producer's serializers accept; errors name items by their index. Other threads can
        run during the call: a list that they change is read as by a ``for`` loop. ``headers``: a list of
        (str, bytes or None) pairs for all records, or a sequence with such a list or None for each record.
        ``partition``: an int for all records, or a sequence of int or None (the partitioner chooses).
        ``timestamp_ms``: an int for all records, or a sequence of int or None (now). Interceptors,
        serializers and a custom partitioner are called for all rows before any row is sent; interceptors must
        not change the topic (``ValueError``). See ``send_arrow`` for the rest, including errors.
        """
    def _accept_many(
        self,
        given: tuple[Any, Any, Any, Any, Any],
        topic: Any,
        values: Any,
        keys: Any,
        headers: Any,
        partition: Any,
        timestamp_ms: Any,
    ) -> BulkFuture: ...
    def _before_bulk(self, method: str, keyed: bool, valued: bool) -> bool: ...
    def _wait_for_topic(self, name: str, timeout_s: float) -> object: ...
