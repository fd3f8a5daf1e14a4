from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from cyproducer.accumulator.structures cimport Batch

cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void* iov_base
        size_t iov_len

# What stays the same for all Produce requests of a producer.
cdef struct ProduceSettings:
    const char* client_id         # UTF-8; borrowed from the sender
    int32_t client_id_size
    const char* transactional_id  # NULL: none
    int32_t transactional_id_size
    int16_t acks
    int32_t timeout_ms

# A request on its way: the frame's own bytes and the batches', in the order in which they are written.
cdef struct Request:
    Request* next_out             # in the queue to be written, then in Transport.first_written
    Request* next_awaiting        # in the queue of those whose answers are to come
    bint answered                 # whether an answer will come (not to Produce under acks=0)
    int16_t api_key
    int16_t version
    int32_t correlation_id
    int64_t sent_ns
    uint8_t* frame                # everything but the batches; owned
    iovec* parts                  # slices of frame and of batches' data; owned
    int32_t part_count
    int32_t part_at               # the first part that is not written whole
    int64_t size                  # bytes in all
    int64_t unwritten             # of these
    Batch** batches               # sorted by topic, then partition; owned, as are the batches
    uint8_t* ids                  # version 13: each batch's topic id as it was sent; behind the batches
    int32_t count

# What a response says of one batch.
cdef struct Outcome:
    int64_t base_offset
    int64_t log_append_ms
    int32_t leader_id             # KIP-951: the new leader, -1 where it is not told
    int32_t leader_epoch
    int32_t message_size          # -1: no message
    const char* message           # points into the response
    int16_t error_code
    int16_t seen                  # whether the response has the batch at all
    const uint8_t* record_errors  # KIP-467: records that the broker names, in the response; not decoded yet
    const uint8_t* record_errors_end
    int64_t record_error_count

# Where the brokers are that the outcomes name as leaders (KIP-951); not decoded yet.
cdef struct Endpoints:
    const uint8_t* data           # points into the response; NULL where it tells none
    int64_t size

cdef Request* encode_produce(
    const ProduceSettings* settings, int16_t version, int32_t correlation_id, Batch** batches, int32_t count
) noexcept nogil
cdef Request* whole_request(int16_t api_key, int16_t version, int32_t correlation_id, const uint8_t* frame,
                            int64_t size) noexcept nogil
cdef void free_request(Request* r) noexcept nogil
cdef int parse_produce(
    const Request* r, const uint8_t* frame, int64_t size, Outcome* outcomes, int32_t* throttle_ms,
    Endpoints* endpoints
) noexcept nogil
cdef list record_errors(const Request* r, const Outcome* o)
cdef bint names_leader(const Outcome* o) noexcept nogil
cdef bint client_throttles(const Request* r) noexcept nogil
