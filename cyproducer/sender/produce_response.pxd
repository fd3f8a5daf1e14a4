from libc.stdint cimport int64_t

from cyproducer.sender.sender cimport Sender
from cyproducer.net.transport cimport Transport


cdef int read_responses(Sender sender, Transport* transport, int64_t now) except -1 nogil
cdef int resume_deferred(Sender sender, int64_t now) except -1 nogil
