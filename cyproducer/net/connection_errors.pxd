from libc.stdint cimport int64_t, uint8_t

from cyproducer.net.transport cimport Transport

cdef object socket_error(Transport* transport, int64_t why)
cdef object unmatched(Transport* transport, const uint8_t* frame, int64_t size)
cdef object wrong_length(Transport* transport, int64_t at)
