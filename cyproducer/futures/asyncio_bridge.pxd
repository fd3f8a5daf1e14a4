from libc.stdint cimport int32_t

from cyproducer.futures.delivery cimport Delivery, RecordFuture
from cyproducer.futures.loop_inbox cimport Inbox


cdef class Group:
    cdef LoopOutcomes outcomes
    cdef Group other              # another group of the same batch, of other LoopOutcomes
    cdef list records
    cdef list futures
    # A reference is held, so that its address is not reused for another batch.
    cdef Delivery* delivery


cdef class LoopInbox:
    cdef Inbox* entries
    cdef dict groups              # address of a Delivery -> Group
    cdef int read_fd              # -1 once closed
    cdef int write_fd             # may be the same as read_fd
    cdef void close(self) noexcept
    cdef int deliver(self) except -1


cdef class LoopOutcomes:
    cdef object loop              # a weak reference
    cdef LoopInbox inbox
    cdef type kind                # of the metadata; None: RecordMetadata
    cdef bint without_metadata
    cdef int32_t followed         # records since the loop had a turn
    cdef bint makes_own           # whether the loop creates asyncio's own futures
    cdef object __weakref__
    cpdef bint due(self) noexcept
    cdef bint _serves(self, object loop) except -1
    cdef object _follow(self, RecordFuture record)
    cdef int _join(self, RecordFuture record, object future) except -1
    cdef int _settle(self, Group group) except -1
    cdef int _set(self, RecordFuture record, object future) except -1
