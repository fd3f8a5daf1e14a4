"""Adapts outcomes to ``concurrent.futures`` and asyncio.

Refuses waits that could never end. Does not own the outcome (``delivery``, ``bulk_future``) or the thread
that passes it on. It is a separate module because ``concurrent.futures`` and asyncio take long to import.
Every function can be called by any thread.
"""

import logging
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from cyproducer.base.durations import duration, waitable
from cyproducer.base.greenlets import look_for_hubs
from cyproducer.errors import KafkaTimeoutError
from cyproducer.futures.asyncio_bridge import LoopOutcomes
from cyproducer.futures.delivery import RecordFuture

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger("cyproducer")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

#: For each event loop, the records that its tasks await.
_awaited: "weakref.WeakKeyDictionary[Any, LoopOutcomes]" = weakref.WeakKeyDictionary()


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
    """The result of ``as_concurrent()``.

    A callback sets it. So it would never be set while another callback waits for it, or in a forked child. In
    these cases it queries the record's own future, which knows the outcome or refuses to wait.
    """

    def __init__(self, record: Outcome[T]) -> None:
        super().__init__()
        self._record = record

    def result(self, timeout: float | None = None) -> T:
        """Returns the metadata, or raises the record's error; see ``RecordFuture.get`` for other errors.

        ``timeout``: seconds (None: no limit); raises ``TimeoutError`` when it expires.
        """
        seconds = waitable(duration("timeout", timeout))
        if self._record.is_done:
            return self._record.get()
        self._record._refuse_wait("result()")
        if look_for_hubs():
            # A callback sets this future on another thread, and eventlet's locks do not wake waiters from
            # another thread.
            try:
                return self._record.get(seconds)
            except KafkaTimeoutError:
                if self._record.is_done:
                    raise
                raise TimeoutError from None
        return super().result(seconds)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The record's error, or None if it was acknowledged; waits like ``result``."""
        seconds = waitable(duration("timeout", timeout))
        if self._record.is_done:
            return self._record.exception
        self._record._refuse_wait("exception()")
        if look_for_hubs():
            with suppress(Exception):
                self._record.get(seconds)
            if not self._record.is_done:
                raise TimeoutError
            return self._record.exception
        return super().exception(seconds)


def concurrent(record: Outcome[T]) -> ConcurrentFuture[T]:
    """The outcome as a future that is running from the start: an accepted record can't be cancelled."""
    future = ConcurrentFuture(record)
    future.set_running_or_notify_cancel()
    record.add_callback(future.set_result)
    record.add_errback(future.set_exception)
    return future


async def awaited(record: Outcome[Any]) -> Any:
    """Awaits the outcome on the running event loop."""
    # A caller that awaits has imported asyncio; one that uses a concurrent future may not need it.
    import asyncio

    if record.is_done:
        return record.get(0)
    record._refuse_wait("await")
    loop = asyncio.get_running_loop()
    if isinstance(record, RecordFuture):
        outcomes = _awaited.get(loop)
        if outcomes is None:
            outcomes = _awaited[loop] = LoopOutcomes(loop)
        return await outcomes.follow(record)
    future = loop.create_future()

    def arrived(outcome: Any) -> None:
        try:
            loop.call_soon_threadsafe(_deliver, future, outcome)
        except RuntimeError:
            log.debug("the event loop was closed before its record completed")

    record.add_both(arrived)
    return await future


def _deliver(future: "asyncio.Future[Any]", outcome: Any) -> None:
    """Sets an asyncio future, unless its task was cancelled meanwhile. Runs on the event loop's thread."""
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
