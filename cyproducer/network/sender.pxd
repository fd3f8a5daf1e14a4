from cyproducer.network.connection cimport Connection
from cyproducer.network.outcomes cimport Outcomes


cdef class Sender(Outcomes):
    cpdef object close_connection(self, Connection connection, object cause)
