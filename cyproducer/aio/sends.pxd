from cyproducer.callers.send_path cimport SendPath
from cyproducer.futures.loop_outcomes cimport LoopOutcomes


cdef class Sends:
    cdef public SendPath path
    cdef public LoopOutcomes outcomes
    cdef set ending
    cpdef object attempt(
        self, object topic, object value, object key, object partition, object timestamp_ms, object headers
    )
