from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, Self, TypeVar, final, overload

from cyproducer.errors import BulkSendError
from cyproducer.futures.delivery import WithDefault
from cyproducer.structs import OffsetRange, RecordMetadata

_A = TypeVar("_A")
_B = TypeVar("_B")

@final
class RowOffsets:
    """The position of each row: a table of (partition: int32, offset: int64), in the order of the rows.

    Libraries that read Arrow data accept it (``__arrow_c_array__``): ``pyarrow.record_batch(rows)``,
    ``polars.DataFrame(rows)``. ``partitions`` and ``offsets`` are the same columns as memoryviews. The offset
    of a row that failed is null in the table and -1 in ``offsets``. Without acknowledgements (``acks=0``)
    every offset is -1 in both. Immutable.
    """
    def __init__(self, partitions: bytes, offsets: bytes, valid: bytes | None, nulls: int) -> None: ...
    def __len__(self) -> int: ...
    @property
    def partitions(self) -> memoryview[int]:
        """Each row's partition, as a memoryview of int32."""
    @property
    def offsets(self) -> memoryview[int]:
        """Each row's offset, as a memoryview of int64."""
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...

@final
class BulkMetadata:
    """The positions of the rows of a call. Immutable.

    ``topic``; ``count``: how many rows were acknowledged; ``ranges``: a list of ``OffsetRange`` (partition,
    first offset, records), sorted, adjacent ones joined; ``rows()``: each row separately.
    """

    topic: str
    count: int
    ranges: list[OffsetRange]
    def __init__(self, topic: str, ranges: list[OffsetRange], rows: RowOffsets | None) -> None: ...
    def rows(self) -> RowOffsets:
        """The ``RowOffsets``, created by the first call: 12 bytes per row."""

@final
class BulkFuture:
    """The outcome of all rows of one ``send_arrow()`` or ``send_many()``, which may still be pending.

    Works like ``RecordFuture``, with ``BulkMetadata`` as the metadata and ``BulkSendError`` as the error. It
    is done when every row has an outcome, and has failed if any row has failed. Thread-safe.
    """
    @property
    def topic(self) -> str: ...
    @property
    def is_done(self) -> bool:
        """Whether the outcome of every row is known; does not block."""
    def is_complete(self) -> bool:
        """The same as ``is_done``, as a method."""
    def done(self) -> bool:
        """The same as ``is_done``, under the name that asyncio and concurrent.futures use."""
    def succeeded(self) -> bool:
        """Whether every row was acknowledged."""
    def failed(self) -> bool:
        """Whether every row has an outcome, and some have permanently failed."""
    def retriable(self) -> bool:
        """Whether sending the failed rows again, as new records, may succeed."""
    @property
    def value(self) -> BulkMetadata | None:
        """The ``BulkMetadata``, or None while pending or if rows failed."""
    @property
    def exception(self) -> BaseException | None:
        """The ``BulkSendError`` if rows failed, or None."""
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def get(self, timeout: float | None = None) -> BulkMetadata:
        """Waits until every row has an outcome, up to ``timeout`` seconds (None: no limit).

        Returns the ``BulkMetadata``. Raises ``BulkSendError`` if rows failed, with the rows and the reasons,
        or ``KafkaTimeoutError`` if ``timeout`` expires first: the rows stay accepted. The wait is always
        bounded by ``delivery_timeout_ms``. Raises ``IllegalStateError`` instead of waiting in a callback of
        the same producer, and in a forked child for rows that the parent sent; ``ValueError`` for a
        ``timeout`` that is negative or NaN.
        """
    def _each(self, sizes: bytes, timestamp_ms: int) -> list[RecordMetadata | None]: ...
    def _called(self) -> str: ...
    def _refuse_wait(self, what: str) -> None: ...
    def _follow(self, outcome: object) -> None: ...
    @overload
    def add_callback(self, f: WithDefault[BulkMetadata], **kwargs: Any) -> Self:
        """Calls ``f(*args, metadata, **kwargs)`` once every row is acknowledged; returns this future.

        ``f`` runs on the callback thread, or on the calling thread if the outcome is already known; see
        ``RecordFuture.add_callback``.
        """
    @overload
    def add_callback(self, f: Callable[[BulkMetadata], object], **kwargs: Any) -> Self: ...
    @overload
    def add_callback(self, f: Callable[[_A, BulkMetadata], object], a: _A, /, **kwargs: Any) -> Self: ...
    @overload
    def add_callback(
        self, f: Callable[[_A, _B, BulkMetadata], object], a: _A, b: _B, /, **kwargs: Any
    ) -> Self: ...
    @overload
    def add_callback(
        self, f: Callable[..., object], a: Any, b: Any, c: Any, /, *args: Any, **kwargs: Any
    ) -> Self: ...
    @overload
    def add_errback(self, f: WithDefault[BulkSendError], **kwargs: Any) -> Self:
        """Calls ``f(*args, error, **kwargs)`` once every row has an outcome and some have failed."""
    @overload
    def add_errback(self, f: Callable[[BulkSendError], object], **kwargs: Any) -> Self: ...
    @overload
    def add_errback(self, f: Callable[[_A, BulkSendError], object], a: _A, /, **kwargs: Any) -> Self: ...
    @overload
    def add_errback(
        self, f: Callable[[_A, _B, BulkSendError], object], a: _A, b: _B, /, **kwargs: Any
    ) -> Self: ...
    @overload
    def add_errback(
        self, f: Callable[..., object], a: Any, b: Any, c: Any, /, *args: Any, **kwargs: Any
    ) -> Self: ...
    @overload
    def add_both(self, f: WithDefault[BulkMetadata | BulkSendError], **kwargs: Any) -> Self:
        """Calls ``f(*args, metadata_or_error, **kwargs)`` either way; see ``add_callback``."""
    @overload
    def add_both(self, f: Callable[[BulkMetadata | BulkSendError], object], **kwargs: Any) -> Self: ...
    @overload
    def add_both(
        self, f: Callable[[_A, BulkMetadata | BulkSendError], object], a: _A, /, **kwargs: Any
    ) -> Self: ...
    @overload
    def add_both(
        self, f: Callable[[_A, _B, BulkMetadata | BulkSendError], object], a: _A, b: _B, /, **kwargs: Any
    ) -> Self: ...
    @overload
    def add_both(
        self, f: Callable[..., object], a: Any, b: Any, c: Any, /, *args: Any, **kwargs: Any
    ) -> Self: ...
    def as_concurrent(self) -> Future[BulkMetadata]:
        """The outcome as a ``concurrent.futures.Future``; see ``RecordFuture.as_concurrent``."""
    def __await__(self) -> Generator[Any, None, BulkMetadata]: ...
