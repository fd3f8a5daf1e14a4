from cyproducer.network.connection cimport Connection
from cyproducer.network.outcomes cimport Outcomes


cdef class Sender(Outcomes):
    cdef int _fail_rest(self, object error) except -1
    cpdef object close_connection(self, Connection connection, object cause)
