from cyproducer.sender.sender cimport Sender


cdef int run_until_stopped(Sender sender) except -1
cdef bint may_stand_by(Sender sender) noexcept nogil
