"""``send_async()``: sends from asyncio without ever blocking the loop.

Owns waiting in a task wherever ``send()`` would block, and leaving the queue if the task is cancelled. Does
not own accepting a record (``send/send_path``), which runs the same code as for ``send()``. Everything runs
on the thread of the task's loop.

Waiting for memory, the usual reason to wait, needs no thread: a task holds a ``Ticket`` in the pool's queue,
and the thread that frees memory writes to a descriptor that the loop watches. The rare reasons (slow
callbacks, an unknown partition, a custom partitioner's topic without metadata) are waited for in the loop's
executor.

This is a module of its own because asyncio takes a long time to import.
"""

import asyncio
import os
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cyproducer.accumulator.buffer_pool import BufferPool, Ticket
from cyproducer.base.clock import monotonic_s
from cyproducer.base.wakeup_fd import channel
from cyproducer.errors import BrokerResponseError
from cyproducer.futures.delivery import RecordFuture, failed_future
from cyproducer.send.send_path import WouldBlock

if TYPE_CHECKING:
    from cyproducer.producer import KafkaProducer, ProducerRecord


Arguments = tuple[Any, Any, Any, Any, Any, Any]
"""The arguments of ``send()``, in its order."""


class Line:
    """The tasks of one loop that wait for memory of one producer, in order of arrival."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: BufferPool) -> None:
        self._loop = loop
        self._pool = pool
        self._waiting: deque[tuple[Ticket, asyncio.Future[None]]] = deque()
        #: The descriptors that announce granted tickets, while tasks wait: (read from, write to).
        self._fds: tuple[int, int] | None = None

    @property
    def empty(self) -> bool:
        """Whether no task waits."""
        return not self._waiting

    async def wait(self, size: int, timeout_s: float) -> Ticket:
        """Returns a ticket that was granted ``size`` bytes.

        Raises:
            TimeoutError: the bytes were not granted within ``timeout_s`` seconds.
        """
        if self._fds is None:
            self._fds = channel()
            self._loop.add_reader(self._fds[0], self._announced)
        announced = self._loop.create_future()
        ticket = Ticket(self._pool, size, self._fds[1])
        place = ticket, announced
        self._waiting.append(place)
        try:
            if not ticket.granted:
                async with asyncio.timeout(timeout_s):
                    await announced
            return ticket
        except BaseException:
            # The next waiter gets the place, or the bytes if they were granted at the last moment.
            ticket.cancel()
            raise
        finally:
            with suppress(ValueError):
                self._waiting.remove(place)
            if not self._waiting:
                self._close()

    def _announced(self) -> None:
        """Called when tickets were granted. Tickets are granted in order."""
        if self._fds is not None:
            with suppress(BlockingIOError):
                os.read(self._fds[0], 4096)
        for ticket, announced in self._waiting:
            if not ticket.granted:
                break
            if not announced.done():
                announced.set_result(None)

    def _close(self) -> None:
        """Closes the descriptors. No task waits, so no thread writes: no ticket is pending any more."""
        if self._fds is not None:
            fds, self._fds = self._fds, None
            self._loop.remove_reader(fds[0])
            for fd in {*fds}:
                os.close(fd)


async def send_async(producer: "KafkaProducer", record: "ProducerRecord") -> RecordFuture:
    """Implements ``KafkaProducer.send_async``."""
    if producer._extensions is None:
        try:
            return await accepted(producer, record, extended=False)
        except Exception as error:
            producer._note_refused(error)
            raise
    record = producer._intercepted(record)
    try:
        future = await accepted(producer, record, extended=True)
    except BaseException as error:
        if isinstance(error, Exception):
            producer._note_refused(error)
        producer._acknowledge(record, error)
        raise
    return producer._follow(record, future)


async def waited(producer: "KafkaProducer", record: "ProducerRecord", reason: WouldBlock) -> RecordFuture:
    """Gets a record accepted that would have blocked, due to ``reason``. The producer has no interceptors."""
    try:
        return await accepted(producer, record, extended=producer._extensions is not None, reason=reason)
    except Exception as error:
        producer._note_refused(error)
        raise


async def accepted(
    producer: "KafkaProducer", record: "ProducerRecord", *, extended: bool, reason: WouldBlock | None = None
) -> RecordFuture:
    """Gets a record accepted, awaiting whatever blocks it.

    ``extended``: the producer's serializers and its custom partitioner run first. ``reason``: what blocks the
    record, if known.
    """
    loop = asyncio.get_running_loop()
    deadline = monotonic_s() + producer.config.max_block_ms / 1000
    arguments: Arguments = record
    while True:
        if reason is None:
            try:
                if extended:
                    return producer._extended_at_once(record)
                return producer._send_at_once(*arguments, None)
            except WouldBlock as blocked:
                reason = blocked
        if reason.what != "topic":
            break
        reason = None
        try:
            await loop.run_in_executor(
                None, producer._view_of, record.topic, max(0.0, deadline - monotonic_s())
            )
        except BrokerResponseError as error:
            producer._note_refused(error)
            return failed_future(record.topic, error)
    arguments = reason.arguments or arguments
    topic, partition = arguments[0], arguments[4]
    asked = False
    while True:
        left_s = max(0.0, deadline - monotonic_s())
        ticket = None
        if reason.what == "memory":
            ticket = await _memory(producer, loop, reason.size, topic, left_s)
        elif reason.what == "callbacks":
            await loop.run_in_executor(None, producer._wait_for_callbacks, topic, left_s)
        elif reason.what == "metadata":
            await loop.run_in_executor(None, producer._wait_for_parking, topic, reason.size, left_s)
        elif asked:
            raise producer._no_partition(topic, partition)
        else:
            await loop.run_in_executor(None, producer._refresh_topic, topic, left_s)
            asked = True
        try:
            return producer._send_at_once(*arguments, ticket)
        except WouldBlock as blocked:
            reason = blocked


async def _memory(
    producer: "KafkaProducer", loop: asyncio.AbstractEventLoop, size: int, topic: str, timeout_s: float
) -> Ticket:
    line = producer._lines.get(loop)
    if line is None:
        line = producer._lines[loop] = Line(loop, producer._runtime.accumulator.pool)
    try:
        return await line.wait(size, timeout_s)
    except TimeoutError:
        raise producer._exhausted(size, topic) from None
    finally:
        # A line refers to its loop, which would otherwise live as long as the producer.
        if line.empty and producer._lines.get(loop) is line:
            del producer._lines[loop]
