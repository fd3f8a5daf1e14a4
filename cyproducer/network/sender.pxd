from cyproducer.network.connection cimport Connection
from cyproducer.network.loop_ownership cimport Turns


cdef class Sender(Turns):
    cdef int _count_connection(self, int which) except -1
    cdef int _fail_rest(self, object error) except -1
    cpdef object close_connection(self, Connection connection, object cause)
