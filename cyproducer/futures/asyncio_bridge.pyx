"""Passes outcomes of records to an asyncio loop: one entry per batch, one wake-up for many batches.

Owns the asyncio futures that follow ``RecordFuture``s, until they are set, and one reader per loop, which
sets them. Does not own the outcomes (``delivery``) or passing a completed batch from the sender thread to the
loop (``futures/loop_inbox``).

All futures of a batch form a group, because a batch completes as a whole. Everything here runs on the loop's
thread; no other thread is involved.
"""

import asyncio
import weakref

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from cpython.weakref cimport PyWeakref_GetRef
from libc.stdint cimport int32_t, uintptr_t

cimport cython

from cyproducer.base.forks import in_child
from cyproducer.base.named_tuples cimport new_named, set_field
from cyproducer.base.sync cimport cyp_peek64
from cyproducer.base.wakeup_fd import channel
from cyproducer.futures.delivery cimport (
    FAILED,
    PENDING,
    Delivery,
    RecordFuture,
    as_int,
    delivery_of,
    delivery_ref,
    delivery_unref,
    fresh,
    place_of,
)
from cyproducer.futures.loop_inbox cimport (
    announce_to,
    inbox_close,
    inbox_disown,
    inbox_new,
    inbox_pop,
    inbox_unref,
)

cdef extern from "<unistd.h>" nogil:
    int c_close "close"(int fd)
    ssize_t c_read "read"(int fd, void* into, size_t size)

cdef object Future = asyncio.Future

cdef enum:
    # A turn of the loop takes as long as sending a few records, or some tens of records if outcomes have
    # arrived.
    MOST_FOLLOWED = 4096
    SOME_FOLLOWED = 256

#: For each loop that follows records of any producer, its ``LoopInbox``.
cdef object inboxes = weakref.WeakKeyDictionary()


cdef LoopInbox inbox_of(object loop):
    cdef LoopInbox inbox
    # Two loops may be new at once.
    with cython.critical_section(inboxes):
        inbox = inboxes.get(loop)
        if inbox is None:
            inbox = new_inbox(loop)
    return inbox


cdef LoopInbox new_inbox(object loop):
    cdef LoopInbox abandoned
    cdef LoopInbox inbox
    # Futures refer to their loop: those that a closed loop left pending would keep it alive.
    for other in list(inboxes):
        if other.is_closed():
            abandoned = inboxes.pop(other)
            abandoned.close()
            abandoned.groups.clear()
    inbox = LoopInbox(loop)
    inboxes[loop] = inbox
    return inbox


def deliver(loop not None):
    """Sets the futures of the running ``loop`` whose batches have completed, without waiting for its next
    turn."""
    cdef LoopInbox inbox = inboxes.get(loop)
    if inbox is not None:
        inbox.deliver()


def disown():
    """Forgets the parent's loops in a forked child."""
    cdef LoopInbox inbox
    for inbox in list(inboxes.values()):
        inbox_disown(inbox.entries)
        inbox.close()
        inbox.groups.clear()
    inboxes.clear()


in_child(disown)


cdef class Group:
    """The futures of one loop that follow records of one batch."""

    def __dealloc__(self):
        if self.delivery != NULL:
            delivery_unref(self.delivery)


cdef class LoopInbox:
    """The groups of one loop, and the descriptor through which the loop is woken up.

    The descriptor stays registered until the loop is closed.
    """

    def __cinit__(self, loop):
        self.groups = {}
        self.read_fd, self.write_fd = channel()
        self.entries = inbox_new(self.write_fd)
        if self.entries == NULL:
            raise MemoryError("no memory for the inbox of a loop")
        loop.add_reader(self.read_fd, self._announced)

    def __dealloc__(self):
        if self.entries != NULL:
            self.close()
            inbox_unref(self.entries)

    cdef void close(self) noexcept:
        """Stops all announcements. For a loop that will not run again."""
        inbox_close(self.entries)
        if self.read_fd >= 0:
            c_close(self.read_fd)
            if self.write_fd != self.read_fd:
                c_close(self.write_fd)
        self.read_fd = -1

    def _announced(self):
        """Called when batches have completed."""
        cdef char[512] announcements
        # Non-blocking, and a call of deliver() may have emptied the inbox already.
        c_read(self.read_fd, announcements, sizeof(announcements))
        self.deliver()

    cdef int deliver(self) except -1:
        cdef Delivery* d
        cdef Group group
        while True:
            d = inbox_pop(self.entries)
            if d == NULL:
                return 0
            try:
                group = self.groups.pop(<uintptr_t>d, None)
            finally:
                delivery_unref(d)
            while group is not None:
                group.outcomes._settle(group)
                group = group.other


cdef class LoopOutcomes:
    """The asyncio futures of one loop that follow records, of any producer.

    Call ``follow`` on the loop's thread. Holds a weak reference to the loop, so that it can be a value in a
    mapping that has loops as weak keys.
    """

    def __init__(self, loop, kind=None, bint without_metadata=False):
        """
        Args:
            loop: the asyncio loop.
            kind: the named tuple that futures get as their result: (topic, partition, TopicPartition, offset,
                timestamp, timestamp type, None). None: ``RecordMetadata``.
            without_metadata: whether the result of the futures is None instead.
        """
        self.loop = weakref.ref(loop)
        self.inbox = inbox_of(loop)
        self.makes_own = (
            getattr(loop.create_future, "__func__", None) is asyncio.BaseEventLoop.create_future
        )
        self.kind = kind
        self.without_metadata = without_metadata

    def serves(self, loop):
        """Whether this object is for ``loop``."""
        return self._serves(loop)

    cpdef bint due(self) noexcept:
        """Whether the loop should have a turn before another record is sent.

        Otherwise, a task that only sends would keep the loop from running other tasks, and all outcomes would
        stay in memory.
        """
        return self.followed >= MOST_FOLLOWED or (
            self.followed >= SOME_FOLLOWED and cyp_peek64(&self.inbox.entries.length) != 0
        )

    def had_a_turn(self):
        """Notes that the loop has run since the last record."""
        self.followed = 0

    cdef bint _serves(self, object loop) except -1:
        cdef PyObject* alive = NULL
        if self.inbox.read_fd < 0 or PyWeakref_GetRef(self.loop, &alive) <= 0:
            return False
        Py_DECREF(<object>alive)
        return alive == <PyObject*>loop

    def follow(self, RecordFuture record not None):
        """Returns an asyncio future that gets the outcome of ``record``. Cancelling it has no other effect.

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
        cdef Group first
        cdef Group group
        cdef uintptr_t key
        cdef Delivery* d
        cdef int32_t index
        cdef int announced
        while record._state() == PENDING:
            d = delivery_of(record, &index)
            key = <uintptr_t>d
            first = self.inbox.groups.get(key)
            group = first
            while group is not None and group.outcomes is not self:
                group = group.other
            if group is not None:
                group.records.append(record)
                group.futures.append(future)
                return 0
            record._refuse_foreign()
            group = Group.__new__(Group)
            group.outcomes = self
            group.other = first
            group.records = [record]
            group.futures = [future]
            group.delivery = d
            delivery_ref(group.delivery)
            self.inbox.groups[key] = group
            if first is not None:
                # The batch will be announced to this loop anyway.
                return 0
            announced = announce_to(group.delivery, self.inbox.entries)
            if announced > 0:
                return 0
            del self.inbox.groups[key]
            if announced < 0:
                raise MemoryError("no memory to follow a record")
        self._set(record, future)
        return 0

    cdef int _settle(self, Group group) except -1:
        """Sets the futures of a group whose batch has completed."""
        cdef Py_ssize_t i
        self.followed = 0
        for i in range(len(group.futures)):
            try:
                # Some futures stay pending: a batch that was split completes in parts.
                self._join(<RecordFuture>group.records[i], group.futures[i])
            except asyncio.InvalidStateError:
                # It was cancelled.
                pass
        return 0

    cdef int _set(self, RecordFuture record, object future) except -1:
        cdef Delivery* d
        cdef int32_t index
        cdef tuple made
        if record._state() == FAILED:
            future.set_exception(fresh(record._error()))
        elif self.without_metadata:
            future.set_result(None)
        elif self.kind is None:
            future.set_result(record._metadata())
        else:
            d = delivery_of(record, &index)
            made = new_named(self.kind, 7)
            set_field(made, 0, record.topic)
            set_field(made, 1, d.partition)
            set_field(made, 2, place_of(record.topic, d.partition))
            set_field(made, 3, d.base_offset + index if d.base_offset >= 0 else -1)
            set_field(made, 4, as_int(d.log_append_ms if d.log_append_ms >= 0 else record.timestamp_ms))
            set_field(made, 5, 1 if d.log_append_ms >= 0 else 0)
            set_field(made, 6, None)
            future.set_result(made)
        return 0
