from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from cyproducer.base.meters cimport Traffic
from cyproducer.accumulator.structures cimport Accumulator, Node
from cyproducer.wire.produce_codec cimport Request, iovec

cdef enum LinkState:
    CONNECTING = 0            # the control plane connects it and does the handshake
    READY = 1                 # accepts Produce requests
    BROKEN = 2                # closed or being closed; the attempts of its requests fail

cdef enum Io:
    IO_AGAIN = -1             # the socket would block
    IO_CLOSED = -2            # the peer closed the connection
    IO_ERROR = -3             # see Transport.sys_errno
    IO_TLS = -4               # see TlsSession.reason()

# How bytes are sent and received: over a plain socket, or over TLS (``tls_transport``).
# Both return the number of bytes transferred (more than 0), or an Io.
ctypedef int64_t (*SendFunction)(Transport* transport, const iovec* parts, int count) noexcept nogil
ctypedef int64_t (*ReceiveFunction)(Transport* transport, uint8_t* into, int64_t room) noexcept nogil
# Writes encrypted bytes that the socket did not accept before; returns 0 when all are written, else an Io.
ctypedef int64_t (*PushFunction)(Transport* transport) noexcept nogil

# A connection to a broker. Used by one thread at a time: the one that holds the loop lock.
cdef struct Transport:
    int fd
    int32_t state             # a LinkState
    int32_t node_id           # -1 and below: a bootstrap address
    Node* node                # NULL for a bootstrap address
    void* owner               # the Connection, borrowed: it frees this
    SendFunction send
    ReceiveFunction receive
    PushFunction push         # NULL: not TLS
    void* tls                 # a Tls of tls_transport, borrowed from the Connection; NULL: not TLS
    int64_t unsent            # bytes that `send` has encrypted and that the socket has not accepted yet
    bint raw                  # the control plane reads and writes the socket: for a proxy, or to set up TLS
    int sys_errno             # of the last IO_ERROR
    bint deferred             # the sender thread must handle the frames in the inbox, or `failure`
    int64_t failure           # an Io that a thread in get() received; 0: none
    int16_t produce_version
    bint held                 # accepts no Produce requests now: it is re-authenticating
    bint connected            # connecting has succeeded, so closing it counts as a disconnect
    bint wants_write          # the selector watches for writability
    int32_t correlation_id    # of the last request
    int32_t in_flight         # Produce requests without a response
    int64_t last_used_ns
    int64_t throttled_until_ns    # the broker accepts no requests before this time (KIP-219)
    Request* first_out        # the first request that is not completely written yet
    Request* last_out
    Request* first_written    # completely written and without a response (acks=0): finished
    Request* first_awaiting   # written or being written; the responses arrive in this order
    Request* last_awaiting
    uint8_t* inbox            # received bytes; the first frame begins at the start
    int64_t inbox_room
    int64_t inbox_used
    int64_t receive_max       # longest response; receive_message_max_bytes once the state is READY
    Traffic traffic           # not yet added to the meters; see report_traffic

cdef enum FrameResult:
    FRAME_NONE = 0            # more bytes are needed
    FRAME_READY = 1
    FRAME_BAD_SIZE = 2        # invalid length: too large, or too small for a header

cdef int64_t send_plain(Transport* transport, const iovec* parts, int count) noexcept nogil
cdef int64_t receive_plain(Transport* transport, uint8_t* into, int64_t room) noexcept nogil
cdef Transport* transport_new(int fd, int32_t node_id, int64_t receive_max) noexcept nogil
cdef void transport_free(Transport* transport) noexcept nogil
cdef int32_t transport_next_id(Transport* transport) noexcept nogil
cdef void transport_push(Transport* transport, Request* r, bint answered) noexcept nogil
cdef Request* transport_pop_written(Transport* transport) noexcept nogil
cdef Request* transport_pop_any(Transport* transport) noexcept nogil
cdef Request* transport_pop_awaiting(Transport* transport) noexcept nogil
cdef int64_t transport_flush(Transport* transport, int64_t now) noexcept nogil
cdef int64_t transport_receive(Transport* transport) noexcept nogil
cdef FrameResult transport_frame(
    Transport* transport, int64_t at, const uint8_t** frame, int64_t* size
) noexcept nogil
cdef void transport_throttle(Transport* transport, int64_t throttle_ms, int64_t now) noexcept nogil
cdef int64_t throttled_until(Transport** transports, int count, int64_t until, int64_t now) noexcept nogil
cdef void report_traffic(Accumulator* a, Transport* transport, int64_t now) noexcept nogil
cdef void transport_consume(Transport* transport, int64_t size) noexcept nogil
