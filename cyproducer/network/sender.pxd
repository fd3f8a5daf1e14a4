from cyproducer.network.connection cimport Connection
from cyproducer.network.send_loop cimport SendLoop


cdef class Sender(SendLoop):
    cpdef object close_connection(self, Connection connection, object cause)
