from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t

from cyproducer.accumulator.structures cimport Batch, Partition

cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void* iov_base
        size_t iov_len

# The fields that are the same in all Produce requests of a producer.
cdef struct ProduceSettings:
    const char* client_id         # UTF-8; borrowed from the sender
    int32_t client_id_size
    const char* transactional_id  # NULL: none
    int32_t transactional_id_size
    int32_t timeout_ms

# A request in flight: slices of the frame and of the batches, in the order in which they are written.
cdef struct Request:
    Request* next_out             # in the queue to be written, then in Transport.first_written
    Request* next_awaiting        # in the queue of requests that await a response
    bint answered                 # whether the broker will respond (not to Produce with acks=0)
    int16_t acks                  # Produce: the acks of its topics
    int16_t api_key
    int16_t version
    int32_t correlation_id
    int64_t sent_ns
    uint8_t* frame                # everything except the batches; owned
    iovec* parts                  # slices of frame and of batches' data; owned
    int32_t part_count
    int32_t part_at               # the first part that is not completely written
    int64_t size                  # total bytes
    int64_t unwritten             # how many of these are not written yet
    Batch** batches               # sorted by topic, then partition; the array and the batches are owned
    uint64_t* keys                # what `batches` are sorted by; same allocation, and so the next
    uint8_t* ids                  # version 13: each batch's topic id as sent
    int32_t count

# A response's result for one batch.
cdef struct Outcome:
    int64_t base_offset
    int64_t log_append_ms
    int32_t leader_id             # KIP-951: the new leader, -1 if the response does not name one
    int32_t leader_epoch
    int32_t message_size          # -1: no message
    const char* message           # points into the response
    int16_t error_code
    int16_t seen                  # whether the response contains the batch
    const uint8_t* record_errors  # KIP-467: the rejected records; points into the response, not decoded yet
    const uint8_t* record_errors_end
    int64_t record_error_count

# The addresses of the brokers that the outcomes name as leaders (KIP-951); not decoded yet.
cdef struct Endpoints:
    const uint8_t* data           # points into the response; NULL if the response has none
    int64_t size

cdef uint64_t key_of(const Partition* p) noexcept nogil
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
cdef dict record_errors(const Request* r, const Outcome* o, int32_t records)
cdef bint names_leader(const Outcome* o) noexcept nogil
cdef bint client_throttles(const Request* r) noexcept nogil
