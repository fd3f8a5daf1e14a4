from libc.stdint cimport int64_t

from cyproducer.accumulator.structures cimport Batch, Partition
from cyproducer.wire.produce_codec cimport Request
from cyproducer.sender.sender cimport Sender


cdef str topic_name(const Partition* p)
cdef int expire_batches(Sender sender, int64_t now) except -1 nogil
cdef int batch_removed(Sender sender, Batch* b) except -1
cdef int batch_purged(Sender sender, Batch* b, object error) except -1
cdef int batch_failed(
    Sender sender, Batch* b, int error_code, object message, object cause, bint written, dict culprits=*
) except -1
cdef int give_up_request(Sender sender, Request* r, object cause) except -1
cdef int batch_progress(Sender sender, Partition* p, int64_t acknowledged_id) except -1
