"""``AIOProducer``: confluent-kafka's asynchronous producer on top of ``Producer``, without its thread pool.

Owns the asyncio futures of records, waiting for room as a task, and the producer's life on a loop. Does not
own accepting records or their reports (``reports``). Does not own the calls for transactions and the cluster
(``producer``), each of which runs on its own thread.

The sender thread adds completed batches to the queue of reports, and writes to a descriptor that the loop
watches: one wake-up for all batches that arrived together. The loop's thread then sets their futures. Methods
must be called on the thread of the loop on which the producer was created.
"""

import asyncio
import functools
import inspect
import logging
import os
import weakref
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from cyproducer._asyncio_thread import in_thread
from cyproducer.base.clock import monotonic_s
from cyproducer.base.durations import waitable
from cyproducer.base.text import line_prefix
from cyproducer.base.wakeup_fd import channel
from cyproducer.confluent.cluster_metadata import ClusterMetadata
from cyproducer.confluent.configuration import hide
from cyproducer.confluent.errors import KafkaError, KafkaException
from cyproducer.confluent.producer import Producer, deadline_of
from cyproducer.confluent.reports import Message, ReportQueue

log = logging.getLogger("cyproducer")

__all__ = ["AIOProducer"]

_SLICE_S: Final = 0.1
"""The interval at which a wait, or a producer with event callbacks, checks for events that wake no loop."""
_EVENTS: Final = ("error_cb", "throttle_cb", "stats_cb")


class _LoopProducer(Producer):
    """A producer whose reports are asyncio futures, which are set on its loop's thread."""

    def __init__(self, conf: Mapping[str, Any], wake_fd: int) -> None:
        self._wake_fd = wake_fd
        super().__init__(conf)

    def _use_queue(self, queue: ReportQueue) -> None:
        if self._queue is not None:
            raise RuntimeError(
                "this AIOProducer was made before a fork: its loop belongs to the parent. Make another one"
            )
        queue.wake_through(self._wake_fd)
        super()._use_queue(queue)

    def _serve(self) -> int:
        """Leaves the reports to the loop's thread. Transactional calls get here on other threads."""
        return 0

    def flush(self, timeout: float = -1) -> int:
        """Waits for outcomes, not for their reports: transactional calls use it on their own threads."""
        return 0 if self._engine()._runtime.accumulator.flush(timeout) else max(1, self._outstanding())

    def look_for_events(self) -> None:
        """Runs the event callbacks that are due."""
        engine = self._engine()
        self._events.serve(engine._runtime, self._outstanding())

    def raise_fatal(self) -> None:
        """See ``Events.raise_fatal``."""
        self._events.raise_fatal(self._engine()._runtime)

    def end(self) -> None:
        """Closes the producer. Records without an outcome fail."""
        engine = self._engine()
        self._shut()
        self._events.close()
        engine.close(engine.config.close_timeout_ms / 1000)


class AIOProducer:
    """confluent-kafka's ``AIOProducer``: ``produce()`` returns a future of the record's ``Message``.

    Args:
        producer_conf: options with librdkafka's names, as for ``Producer``. ``error_cb``, ``throttle_cb`` and
            ``stats_cb`` may be coroutine functions, and are called on the loop. ``on_delivery`` is ignored,
            with a warning.
        max_workers: ignored: there is no thread pool.
        executor: ignored.
        batch_size: ignored: a record enters its batch immediately; ``batch.size`` bounds batches in bytes.
        buffer_timeout: ignored: ``linger.ms`` sets how long a batch waits for further records.

    Must be created and used on one running loop; otherwise raises RuntimeError. Raises the errors of
    ``Producer``. ``async with`` closes it. ``docs/migration.md`` lists the differences from confluent-kafka.
    """

    def __init__(
        self,
        producer_conf: Mapping[str, Any],
        max_workers: int = 4,
        executor: Executor | None = None,
        batch_size: int = 1000,
        buffer_timeout: float = 1.0,
    ) -> None:
        if not isinstance(producer_conf, Mapping):
            raise TypeError(f"producer_conf: must be a dict, not {type(producer_conf).__name__}")
        # First, because tracebacks keep this variable in their frames.
        producer_conf = hide(producer_conf)
        self._loop = asyncio.get_running_loop()
        on_loop = _Callbacks()
        for name in _EVENTS:
            if callable(producer_conf.get(name)):
                producer_conf[name] = functools.partial(on_loop.call, producer_conf[name])
        #: Set when the next reports arrive: tasks wait for it.
        self._pulse: asyncio.Future[None] | None = None
        #: Reports that poll() has not returned yet.
        self._unpolled = 0
        #: Held by the task that waits for room; other tasks wait behind it.
        self._turn = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        self._ticks: asyncio.TimerHandle | None = None
        fds = channel()
        try:
            self._producer = _LoopProducer(producer_conf, fds[1])
        except BaseException:
            _close(fds)
            raise
        config = self._producer.kafka_producer.config
        self._client_id = config.client_id
        self._room_s = config.max_block_ms / 1000
        if producer_conf.get("on_delivery") is not None:
            text = "on_delivery has no effect in an AIOProducer: produce() returns a future for each record"
            log.warning(line_prefix(self._client_id) + text)
        # Closes the descriptors once the sender can no longer write. Also for a producer that is never
        # closed.
        assert self._producer._queue is not None
        self._finish = weakref.finalize(self, _finish, self._producer._queue, fds)
        self._reader = fds[0]
        self._loop.add_reader(self._reader, self._reported)
        if self._producer._events.wanted:
            self._tick()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __len__(self) -> int:
        """Returns the number of records whose future is not set; 0 after ``close()``."""
        return self._producer._outstanding()

    def __bool__(self) -> bool:
        return True

    @property
    def kafka_producer(self) -> Any:
        """The underlying ``KafkaProducer``, for ``metrics()``."""
        return self._producer.kafka_producer

    # Records

    async def produce(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int = -1,
        timestamp: int = 0,
        headers: Any = None,
    ) -> "asyncio.Future[Message]":
        """Accepts a record, which is sent in the background; returns the future of its ``Message``.

        The arguments are those of ``Producer.produce``. Waits only if ``queue.buffering.max.messages`` or
        ``queue.buffering.max.kbytes`` is reached, for up to ``message.timeout.ms``; then the future fails
        with ``_QUEUE_FULL``. The future raises ``KafkaException``, also for a record that is rejected.
        Cancelling it has no effect on the record. If the task is cancelled, the record is not sent.

        Raises TypeError for an argument of the wrong type, RuntimeError after ``close()`` or on another loop.
        """
        # The future takes the place of a callback: see _resolve().
        future: Any = self._here("produce").create_future()
        accept = functools.partial(
            self._producer.produce, topic, value, key, partition, future, timestamp=timestamp, headers=headers
        )
        try:
            if self._turn.locked() or not self._accepts(accept):
                async with self._turn:
                    await self._when_there_is_room(accept)
        except KafkaException as error:
            future.set_exception(error)
            return future  # type: ignore[no-any-return]
        # A report may have been due before the queue could announce it.
        if self._producer._queue is not None and self._producer._queue.due:
            self._loop.call_soon(self._resolve)
        return future  # type: ignore[no-any-return]

    def _accepts(self, accept: Callable[[], None]) -> bool:
        """Returns False if there is no room for the record."""
        try:
            accept()
        except BufferError:
            return False
        return True

    async def _when_there_is_room(self, accept: Callable[[], None]) -> None:
        deadline = monotonic_s() + waitable(self._room_s)
        while True:
            try:
                return accept()
            except BufferError as error:
                left = deadline - monotonic_s()
                if left <= 0:
                    full = KafkaError(KafkaError._QUEUE_FULL, str(error), retriable=True)
                    raise KafkaException(full) from error
                await self._next_reports(min(left, _SLICE_S))

    async def poll(self, timeout: float = 0) -> int:
        """Waits up to ``timeout`` seconds (below 0: forever) for records to complete.

        Returns how many completed since the last call. Futures are set without it. Raises ``KafkaException``
        once if the producer can't run further transactions and no other call has raised this error.
        """
        self._here("poll")
        deadline = deadline_of(timeout)
        while True:
            self._resolve()
            self._producer.raise_fatal()
            left = deadline - monotonic_s()
            if self._unpolled or left <= 0:
                found, self._unpolled = self._unpolled, 0
                return found
            await self._next_reports(min(left, _SLICE_S))

    async def flush(self, timeout: float = -1) -> int:
        """Sends everything immediately and waits up to ``timeout`` seconds (below 0: forever) for all
        futures.

        Returns ``len()``, which is 0 if every record was delivered or has failed. Raises the errors of
        ``poll()``.
        """
        self._here("flush")
        return await self._flush(timeout)

    async def _flush(self, timeout: float) -> int:
        deadline = deadline_of(timeout)
        accumulator = self._producer.kafka_producer._runtime.accumulator
        while True:
            self._resolve()
            self._producer.raise_fatal()
            left = deadline - monotonic_s()
            if not len(self) or left <= 0:
                return len(self)
            # Includes the records accepted in the meantime.
            accumulator.flush(0)
            await self._next_reports(min(left, _SLICE_S))

    async def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Drops records: see ``Producer.purge``. Their futures raise ``_PURGE_QUEUE`` or
        ``_PURGE_INFLIGHT``."""
        await self._call("purge", in_queue, in_flight, blocking)

    # The cluster

    async def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """Requests the metadata of topics: see ``Producer.list_topics``."""
        return await self._call("list_topics", topic, timeout)  # type: ignore[no-any-return]

    async def cluster_id(self, timeout: float = -1) -> str | None:
        """Asks a broker for the cluster's id: see ``Producer.cluster_id``."""
        return await self._call("cluster_id", timeout)  # type: ignore[no-any-return]

    async def set_sasl_credentials(self, username: str, password: str) -> None:
        """Sets the credentials for future connections: see ``Producer.set_sasl_credentials``."""
        self._here("set_sasl_credentials")
        self._producer.set_sasl_credentials(username, password)

    # Transactions

    async def init_transactions(self, timeout: float = -1) -> None:
        """See ``Producer.init_transactions``, which also documents the errors of transactional calls."""
        await self._call("init_transactions", timeout)

    async def begin_transaction(self) -> None:
        """See ``Producer.begin_transaction``."""
        await self._call("begin_transaction")

    async def send_offsets_to_transaction(
        self, positions: list[Any], group_metadata: object, timeout: float = -1
    ) -> None:
        """See ``Producer.send_offsets_to_transaction``."""
        await self._call("send_offsets_to_transaction", positions, group_metadata, timeout)

    async def commit_transaction(self, timeout: float = -1) -> None:
        """See ``Producer.commit_transaction``. The futures of its records are set when this returns."""
        await self._call("commit_transaction", timeout)

    async def abort_transaction(self, timeout: float = -1) -> None:
        """See ``Producer.abort_transaction``. The futures of its records are set when this returns."""
        await self._call("abort_transaction", timeout)

    # The end

    async def close(self) -> None:
        """Waits until all futures are set, then closes the producer; an open transaction is aborted.

        ``message.timeout.ms`` bounds the wait. May be called several times. If the task is cancelled, the
        producer continues to close in the background.
        """
        if self._closing is None:
            self._here("close")
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await self._flush(-1)
        finally:
            if self._ticks is not None:
                self._ticks.cancel()
            await in_thread(self._named("close"), self._producer.end)
            self._resolve()
            self._loop.remove_reader(self._reader)
            self._finish()

    # On the loop's thread

    def _here(self, method: str) -> asyncio.AbstractEventLoop:
        """Returns the running loop, or raises if a method may not be called on it."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            raise RuntimeError(f"{method}() on another loop than the one on which the AIOProducer was made")
        if self._closing is not None:
            raise RuntimeError(f"{method}(): Producer has been closed")
        return loop

    async def _call(self, method: str, *arguments: Any) -> Any:
        self._here(method)
        try:
            return await in_thread(self._named(method), getattr(self._producer, method), *arguments)
        finally:
            self._resolve()

    def _named(self, method: str) -> str:
        """Returns the name of a method's thread."""
        return f"cyproducer-aio-{method} | {self._client_id}"

    def _reported(self) -> None:
        """Called when batches have completed."""
        with suppress(BlockingIOError):
            os.read(self._reader, 4096)
        self._resolve()

    def _resolve(self) -> None:
        """Sets the futures of the records whose outcome is known, and wakes the waiting tasks."""
        if self._producer._queue is None or not (resolved := self._producer._resolve()):
            return
        self._unpolled += resolved
        pulse, self._pulse = self._pulse, None
        if pulse is not None:
            pulse.set_result(None)

    async def _next_reports(self, seconds: float) -> None:
        """Waits for reports, up to ``seconds``."""
        if self._pulse is None:
            self._pulse = self._loop.create_future()
        # Unlike wait_for(), this does not cancel the future, which other tasks may be awaiting.
        await asyncio.wait([self._pulse], timeout=seconds)

    def _tick(self) -> None:
        try:
            self._producer.look_for_events()
        except Exception:
            log.exception("%slooking for events failed", line_prefix(self._client_id))
        self._ticks = self._loop.call_later(_SLICE_S, self._tick)


class _Callbacks:
    """Calls the application's functions, and runs its coroutine functions as tasks of the running loop."""

    def __init__(self) -> None:
        # A loop keeps only weak references to its tasks.
        self._tasks: set[asyncio.Future[Any]] = set()

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        outcome = function(*arguments)
        if inspect.isawaitable(outcome):
            task = asyncio.ensure_future(_await(outcome))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


async def _await(outcome: Awaitable[Any]) -> None:
    try:
        await outcome
    except Exception:
        log.exception("a callback of an AIOProducer raised")


def _finish(queue: ReportQueue, fds: tuple[int, int]) -> None:
    queue.wake_through(-1)
    _close(fds)


def _close(fds: tuple[int, int]) -> None:
    for fd in {*fds}:
        os.close(fd)
