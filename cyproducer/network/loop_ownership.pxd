from cyproducer.network.sender cimport Sender


cdef int run_until_stopped(Sender sender) except -1
