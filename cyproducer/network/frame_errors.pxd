from libc.stdint cimport int64_t, uint8_t

from cyproducer.network.link cimport Link

cdef object socket_error(Link* link, int64_t why)
cdef object unmatched(Link* link, const uint8_t* frame, int64_t size)
cdef object wrong_length(Link* link, int64_t at, int64_t receive_max)
