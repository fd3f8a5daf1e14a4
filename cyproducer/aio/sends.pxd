from cyproducer.send.send_path cimport SendPath
from cyproducer.futures.asyncio_bridge cimport LoopOutcomes


cdef class Sends:
    cdef public SendPath path
    cdef public LoopOutcomes outcomes
    cdef set ending
    cpdef object attempt(
        self, object topic, object value, object key, object partition, object timestamp_ms, object headers
    )
