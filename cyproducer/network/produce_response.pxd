from libc.stdint cimport int32_t, int64_t

from cyproducer.accumulator.structures cimport Batch
from cyproducer.network.transport cimport Transport
from cyproducer.network.produce_codec cimport Outcome, Request
from cyproducer.network.send_loop cimport SendLoop


cdef class Answers(SendLoop):
    cdef bint _frames(self, Transport* transport, int64_t now) except -1 nogil
    cdef bint _is_plain(self, Request* r, const unsigned char* frame, int64_t size) noexcept nogil
    cdef int _frame(
        self, Transport* transport, Request* r, const unsigned char* frame, int64_t size, int64_t now
    ) except -1 nogil
    cdef int _pass_on(
        self, Transport* transport, Request* r, const unsigned char* frame, int64_t size, int64_t now
    ) except -1
    cdef int _malformed(self, Transport* transport, Request* r, int64_t size) except -1
    cdef int _refused(self, const Request* r, int32_t i) except -1
    cdef int _acknowledge(self, Request* r) except -1 nogil
    cdef int _complete_unsettled(self, Batch* b, const Outcome* o) except -1 nogil
