from libc.stdint cimport int32_t, int64_t

from cyproducer.futures.delivery cimport CompletionList, Delivery, DriveFunction


cdef class CompletionQueue:
    cdef CompletionList entries
    cdef object start             # called once, when the first callback is registered
    cdef public object diagnosis  # None, or a weak reference to a function: returns why nothing completes
    cdef object lent              # the object that entries.drive_context points to
    cdef void lend(self, object owner, DriveFunction drive)
    cdef void take_back(self)
    cdef Delivery* _pop(self) noexcept nogil
    cdef int _run(self, Delivery* d) except -1
    cdef void _catch_up(self, int64_t records) noexcept nogil
    cdef int64_t _low(self) noexcept nogil
    cdef bint in_callback(self) noexcept nogil
    cdef bint wait_for_room(self, int64_t deadline, const int32_t* closed) except -1


cdef list in_order(list futures)
