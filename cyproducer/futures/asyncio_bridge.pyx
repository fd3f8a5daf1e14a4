"""Passes outcomes of records to an asyncio loop: one callback per batch, one wake-up for many batches.

Owns the asyncio futures that follow ``RecordFuture``s, until they are set. Does not own the outcomes
(``delivery``) or the thread that reports them (``futures/callback_thread``).

All futures of a batch form a group, and only the group's first record has a callback: a batch completes as a
whole. The callback thread appends the group to ``arrived``, and wakes up the loop unless a wake-up is already
on its way:

    callback thread                      loop's thread
    arrived gets a group                 wake-up: woken = False
    woken? -> done                       empties arrived, sets the futures
    woken = True, wake up the loop

Both columns run with the GIL, and each line is one step under it. So a group that the loop's thread does not
see in ``arrived`` finds ``woken`` False, and causes another wake-up. ``groups`` belongs to the loop's thread.
"""

import asyncio
import logging
import weakref
from collections import deque

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from cpython.weakref cimport PyWeakref_GetRef
from libc.stdint cimport uintptr_t

from cyproducer.base.named_tuples cimport new_named, set_field
from cyproducer.futures.delivery cimport (
    FAILED,
    PENDING,
    Delivery,
    RecordFuture,
    as_int,
    delivery_ref,
    delivery_unref,
    fresh,
    place_of,
)

log = logging.getLogger("cyproducer")

cdef object Future = asyncio.Future

cdef enum:
    # A turn of the loop takes as long as a few records, or some tens of them if outcomes have arrived.
    MOST_FOLLOWED = 4096
    SOME_FOLLOWED = 256


cdef class Group:
    """The futures of one loop that follow records of one batch. A callback of its first record."""

    def __dealloc__(self):
        if self.delivery != NULL:
            delivery_unref(self.delivery)

    def __call__(self, outcome):
        self.outcomes.arrive(self)


cdef class LoopOutcomes:
    """The asyncio futures of one loop that follow records, of any producer.

    ``follow`` is for the loop's thread. Refers to the loop weakly, so that a map from loops may hold it.
    """

    def __init__(self, loop, kind=None, bint without_metadata=False):
        """
        Args:
            loop: the asyncio loop.
            kind: the named tuple that futures get as their result: (topic, partition, TopicPartition, offset,
                timestamp, timestamp type, None). None: ``RecordMetadata``.
            without_metadata: their result is None.
        """
        self.loop = weakref.ref(loop)
        self.makes_own = (
            getattr(loop.create_future, "__func__", None) is asyncio.BaseEventLoop.create_future
        )
        self.kind = kind
        self.without_metadata = without_metadata
        self.groups = {}
        self.arrived = deque()

    def serves(self, loop):
        """Whether this is for ``loop``."""
        return self._serves(loop)

    cpdef bint due(self) noexcept:
        """Whether the loop should have a turn before another record is sent.

        A task that only sends would keep it from running other tasks, and all outcomes would stay in memory.
        """
        return self.followed >= MOST_FOLLOWED or (self.woken and self.followed >= SOME_FOLLOWED)

    def had_a_turn(self):
        """Notes that the loop has run since the last record."""
        self.followed = 0

    cdef bint _serves(self, object loop) except -1:
        cdef PyObject* alive = NULL
        if PyWeakref_GetRef(self.loop, &alive) <= 0:
            return False
        Py_DECREF(<object>alive)
        return alive == <PyObject*>loop

    def follow(self, RecordFuture record not None):
        """Returns an asyncio future that gets the outcome of ``record``. Cancelling it changes nothing else.

        Raises ``IllegalStateError`` in a forked child, for a record that the parent sent.
        """
        return self._follow(record)

    cdef object _follow(self, RecordFuture record):
        cdef object loop = self.loop()
        # create_future() of asyncio's own loops is a Python function that does this.
        cdef object future = Future(loop=loop) if self.makes_own else loop.create_future()
        self._join(record, future)
        self.followed += 1
        return future

    cdef int _join(self, RecordFuture record, object future) except -1:
        """Sets ``future`` if the outcome is known; else adds it to the group of the record's batch."""
        cdef Group group
        cdef uintptr_t key
        if record._state() != PENDING:
            self._set(record, future)
            return 0
        key = <uintptr_t>record.delivery
        group = self.groups.get(key)
        if group is not None:
            group.records.append(record)
            group.futures.append(future)
            return 0
        group = Group.__new__(Group)
        group.outcomes = self
        group.records = [record]
        group.futures = [future]
        group.delivery = record.delivery
        delivery_ref(group.delivery)
        # Before the callback is added, which runs at once if the batch completes meanwhile.
        self.groups[key] = group
        try:
            record.add_both(group)
        except BaseException:
            del self.groups[key]
            raise
        return 0

    cdef int arrive(self, Group group) except -1:
        """Hands a completed group to the loop's thread. Runs on any thread."""
        cdef object loop
        self.arrived.append(group)
        if self.woken:
            return 0
        self.woken = True
        loop = self.loop()
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._deliver)
                return 0
            except RuntimeError:
                log.debug("the event loop was closed before its records completed")
        # Nothing will ever run on that loop again.
        self.groups.clear()
        self.arrived.clear()
        return 0

    def _deliver(self):
        """Sets the futures of all groups that have arrived. Runs on the loop's thread."""
        cdef Group group
        cdef Py_ssize_t i
        self.woken = False
        self.followed = 0
        while self.arrived:
            group = self.arrived.popleft()
            self.groups.pop(<uintptr_t>group.delivery, None)
            for i in range(len(group.futures)):
                future = group.futures[i]
                try:
                    # Some are for later: a batch that was divided completes in parts.
                    self._join(<RecordFuture>group.records[i], future)
                except asyncio.InvalidStateError:
                    # It was cancelled.
                    pass

    cdef int _set(self, RecordFuture record, object future) except -1:
        cdef Delivery* d
        cdef tuple made
        if record._state() == FAILED:
            future.set_exception(fresh(record._error()))
        elif self.without_metadata:
            future.set_result(None)
        elif self.kind is None:
            future.set_result(record._metadata())
        else:
            d = record.delivery
            made = new_named(self.kind, 7)
            set_field(made, 0, record.topic)
            set_field(made, 1, d.partition)
            set_field(made, 2, place_of(record.topic, d.partition))
            set_field(made, 3, d.base_offset + record.index if d.base_offset >= 0 else -1)
            set_field(made, 4, as_int(d.log_append_ms if d.log_append_ms >= 0 else record.timestamp_ms))
            set_field(made, 5, 1 if d.log_append_ms >= 0 else 0)
            set_field(made, 6, None)
            future.set_result(made)
        return 0
