"""Outcomes as ``concurrent.futures`` and asyncio have them.

Owns: refusing waits that could never end. Does not own: the outcome (``delivery``, ``bulk_future``), nor the
thread that passes it on. A module of its own because ``concurrent.futures`` and asyncio take long to import.
Any thread may call anything.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from cyproducer.base.durations import duration, waitable

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger("cyproducer")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Outcome(Protocol[T_co]):
    """A ``RecordFuture`` or a ``BulkFuture``."""

    @property
    def is_done(self) -> bool: ...
    @property
    def exception(self) -> BaseException | None: ...
    def get(self, timeout: float | None = None) -> T_co: ...
    def add_callback(self, f: Callable[..., object]) -> object: ...
    def add_errback(self, f: Callable[..., object]) -> object: ...
    def add_both(self, f: Callable[..., object]) -> object: ...
    def _refuse_wait(self, what: str) -> None: ...


class ConcurrentFuture(Future[T]):
    """What ``as_concurrent()`` returns.

    It is set by a callback. So in a callback, or in a forked child, nothing would ever set it: there the
    record itself is asked, which knows its outcome or refuses to wait.
    """

    def __init__(self, record: Outcome[T]) -> None:
        super().__init__()
        self._record = record

    def result(self, timeout: float | None = None) -> T:
        """The metadata, or raises the record's error; see ``RecordFuture.get`` for what else it raises.

        ``timeout``: seconds (None: as long as it takes); ``TimeoutError`` when they are over.
        """
        seconds = waitable(duration("timeout", timeout))
        if self._record.is_done:
            return self._record.get()
        self._record._refuse_wait("result()")
        return super().result(seconds)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The record's error, or None where it was acknowledged; waits as ``result`` does."""
        seconds = waitable(duration("timeout", timeout))
        if self._record.is_done:
            return self._record.exception
        self._record._refuse_wait("exception()")
        return super().exception(seconds)


def concurrent(record: Outcome[T]) -> ConcurrentFuture[T]:
    """The outcome as a future that runs from the start: an accepted record is not taken back."""
    future = ConcurrentFuture(record)
    future.set_running_or_notify_cancel()
    record.add_callback(future.set_result)
    record.add_errback(future.set_exception)
    return future


async def awaited(record: Outcome[Any]) -> Any:
    """The outcome on whichever loop is running."""
    # Who awaits has imported it, who takes a concurrent future may do without.
    import asyncio

    if record.is_done:
        return record.get(0)
    record._refuse_wait("await")
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def arrived(outcome: Any) -> None:
        try:
            loop.call_soon_threadsafe(_deliver, future, outcome)
        except RuntimeError:
            log.debug("the event loop was closed before its record completed")

    record.add_both(arrived)
    return await future


def _deliver(future: "asyncio.Future[Any]", outcome: Any) -> None:
    """Sets an asyncio future, unless its task gave up meanwhile. Runs on the loop's thread."""
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
