from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, Protocol, Self, TypeVar, final, overload, type_check_only

from cyproducer.errors import KafkaError
from cyproducer.structs import RecordMetadata

_T = TypeVar("_T", contravariant=True)
_A = TypeVar("_A")
_B = TypeVar("_B")

@type_check_only
class WithDefault(Protocol[_T]):
    """A callback such as ``lambda metadata, i=i: ...``: mypy rejects this lambda if a Callable is expected.

    A callback with a required keyword-only argument has no type here: pass a ``functools.partial``.
    """

    def __call__(self, outcome: _T, default: Any = ..., /) -> object: ...

def renew_lock() -> None: ...
def failed_future(topic: str, error: BaseException) -> RecordFuture: ...

@final
class RecordFuture:
    """The outcome of one record, which may still be pending.

    Has the API of kafka-python's ``FutureRecordMetadata`` (``get``, ``add_callback``, ``add_errback``,
    ``add_both``, ``chain``, ``succeeded``, ``failed``, ``retriable``, ``is_done``, ``value``, ``exception``),
    and more: it can be awaited or converted with ``as_concurrent()``, and has the record's ``topic`` and
    ``partition``. Thread-safe.

    Not tracked by the cyclic garbage collector: a cycle through a callback ends when its record completes.
    """
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int | None:
        """The record's partition; None if it is not chosen yet, or the record was refused before that."""
    @property
    def is_done(self) -> bool:
        """Whether the outcome is known; does not block."""
    def is_complete(self) -> bool:
        """The same as ``is_done``, as a method (the producer API proposal's name)."""
    def done(self) -> bool:
        """The same as ``is_done``, under the name that asyncio and concurrent.futures use."""
    def succeeded(self) -> bool:
        """Whether the broker acknowledged the record."""
    def failed(self) -> bool:
        """Whether the record has permanently failed."""
    def retriable(self) -> bool:
        """Whether the record failed, and sending it again, as a new record, may succeed."""
    @property
    def value(self) -> RecordMetadata | None:
        """The ``RecordMetadata``, or None while pending or after a failure."""
    @property
    def exception(self) -> BaseException | None:
        """The exception that the record failed with, or None."""
    def _called(self) -> str: ...
    def _refuse_wait(self, what: str) -> None: ...
    def get(self, timeout: float | None = None) -> RecordMetadata:
        """Waits for the outcome, up to ``timeout`` seconds (None: no limit).

        Returns the ``RecordMetadata``. Raises the record's own error, or ``KafkaTimeoutError`` if ``timeout``
        expires first: the record stays accepted and may still be delivered. The wait is always bounded by
        ``delivery_timeout_ms``. Raises ``IllegalStateError`` instead of waiting in a callback of the same
        producer, and in a forked child for a record that the parent sent; ``ValueError`` for a ``timeout``
        that is negative or NaN.
        """
    @overload
    def add_callback(self, f: WithDefault[RecordMetadata], **kwargs: Any) -> Self:
        """Calls ``f(*args, metadata, **kwargs)`` once the record is acknowledged; returns this future.

        Callbacks run on their own thread, in the order of a partition's records, or on the calling thread if
        the outcome is already known. An exception in a callback is logged and does not stop the others. A
        future can have several callbacks.
        """
    @overload
    def add_callback(self, f: Callable[[RecordMetadata], object], **kwargs: Any) -> Self: ...
    @overload
    def add_callback(self, f: Callable[[_A, RecordMetadata], object], a: _A, /, **kwargs: Any) -> Self: ...
    @overload
    def add_callback(
        self, f: Callable[[_A, _B, RecordMetadata], object], a: _A, b: _B, /, **kwargs: Any
    ) -> Self: ...
    @overload
    def add_callback(
        self, f: Callable[..., object], a: Any, b: Any, c: Any, /, *args: Any, **kwargs: Any
    ) -> Self: ...
    # A record that send_all() refused may have another error, such as TypeError. With a wider type here, type
    # checkers would reject callbacks that are annotated with KafkaError.
    @overload
    def add_errback(self, f: WithDefault[KafkaError], **kwargs: Any) -> Self:
        """Calls ``f(*args, exception, **kwargs)`` once the record has failed; see ``add_callback``."""
    @overload
    def add_errback(self, f: Callable[[KafkaError], object], **kwargs: Any) -> Self: ...
    @overload
    def add_errback(self, f: Callable[[_A, KafkaError], object], a: _A, /, **kwargs: Any) -> Self: ...
    @overload
    def add_errback(
        self, f: Callable[[_A, _B, KafkaError], object], a: _A, b: _B, /, **kwargs: Any
    ) -> Self: ...
    @overload
    def add_errback(
        self, f: Callable[..., object], a: Any, b: Any, c: Any, /, *args: Any, **kwargs: Any
    ) -> Self: ...
    @overload
    def add_both(self, f: WithDefault[RecordMetadata | KafkaError], **kwargs: Any) -> Self:
        """Calls ``f(*args, metadata_or_exception, **kwargs)`` either way; see ``add_callback``."""
    @overload
    def add_both(self, f: Callable[[RecordMetadata | KafkaError], object], **kwargs: Any) -> Self: ...
    @overload
    def add_both(
        self, f: Callable[[_A, RecordMetadata | KafkaError], object], a: _A, /, **kwargs: Any
    ) -> Self: ...
    @overload
    def add_both(
        self, f: Callable[[_A, _B, RecordMetadata | KafkaError], object], a: _A, b: _B, /, **kwargs: Any
    ) -> Self: ...
    @overload
    def add_both(
        self, f: Callable[..., object], a: Any, b: Any, c: Any, /, *args: Any, **kwargs: Any
    ) -> Self: ...
    def chain(self, future: Any) -> Self:
        """Passes the outcome to another future, of kafka-python or ``concurrent.futures``."""
    def as_concurrent(self) -> Future[RecordMetadata]:
        """The outcome as a ``concurrent.futures.Future``, for ``wait()`` and ``as_completed()``.

        It is running from the start (``cancel()`` has no effect): an accepted record can't be cancelled.
        """
    def __await__(self) -> Generator[Any, None, RecordMetadata]: ...
