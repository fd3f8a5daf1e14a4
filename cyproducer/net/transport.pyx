"""Writes queued requests to a socket in order, and reads complete frames from it, without the GIL.

Owns the queue of requests, partial writes, the receive buffer, and the check of a frame's length before
memory is allocated for it. Does not own connecting, the meaning of frames, or the decision when to write.

The memory of a request, including its batches' buffers, stays allocated until its response has arrived or the
connection is closed *and* no write of it is in progress: ``sendmsg`` reads directly from the batches.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memmove, memset

from cyproducer.base.meters cimport Meter, count_traffic
from cyproducer.base.sync cimport cyp_after, cyp_ms_ns, cyp_note64
from cyproducer.records.big_endian cimport get_u32

cdef extern from "<sys/socket.h>" nogil:
    cdef struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int fd, const msghdr* message, int flags)
    ssize_t recv(int fd, void* into, size_t room, int flags)
    int MSG_NOSIGNAL
    int MSG_DONTWAIT

cdef extern from *:
    """
    #ifndef MSG_NOSIGNAL          /* macOS: Python creates sockets with SO_NOSIGPIPE */
    #define MSG_NOSIGNAL 0
    #endif
    """

cdef enum:
    MOST_PARTS = 512          # slices per sendmsg; IOV_MAX is 1024 on Linux and macOS
    FIRST_INBOX = 8192
    KEPT_INBOX = 65536        # a larger inbox shrinks after use: Produce responses hardly need more
    MOST_THROTTLE_MS = 60_000


cdef int64_t send_plain(Transport* transport, const iovec* parts, int count) noexcept nogil:
    cdef msghdr message
    cdef ssize_t n
    # The kernel reads every field: it would interpret uninitialised memory as an address or control data, and
    # the call would fail with EINVAL.
    memset(&message, 0, sizeof(message))
    message.msg_iov = <iovec*>parts
    message.msg_iovlen = count
    while True:
        n = sendmsg(transport.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
        if n >= 0:
            return n
        if errno == EINTR:
            continue
        if errno == EAGAIN:
            return IO_AGAIN
        transport.sys_errno = errno
        return IO_ERROR


cdef int64_t receive_plain(Transport* transport, uint8_t* into, int64_t room) noexcept nogil:
    cdef ssize_t n
    while True:
        n = recv(transport.fd, into, room, MSG_DONTWAIT)
        if n > 0:
            return n
        if n == 0:
            return IO_CLOSED
        if errno == EINTR:
            continue
        if errno == EAGAIN:
            return IO_AGAIN
        transport.sys_errno = errno
        return IO_ERROR


cdef Transport* transport_new(int fd, int32_t node_id, int64_t receive_max) noexcept nogil:
    """Creates a connection over the caller's connected or connecting socket; NULL if out of memory."""
    cdef Transport* transport = <Transport*>calloc(1, sizeof(Transport))
    if transport != NULL:
        transport.fd = fd
        transport.node_id = node_id
        transport.receive_max = receive_max
        transport.send = send_plain
        transport.receive = receive_plain
    return transport


cdef void transport_free(Transport* transport) noexcept nogil:
    """Frees a connection. The caller has popped all of its requests."""
    free(transport.inbox)
    free(transport)


cdef int32_t transport_next_id(Transport* transport) noexcept nogil:
    """Returns the correlation id for the next request; ids start at 1 and wrap to 1 after 2147483647."""
    transport.correlation_id = transport.correlation_id + 1 if transport.correlation_id < 0x7FFFFFFF else 1
    return transport.correlation_id


cdef void transport_push(Transport* transport, Request* r, bint answered) noexcept nogil:
    """Queues a request for writing. ``answered``: expects a response, as all but Produce with acks=0 do."""
    r.answered = answered
    r.next_out = NULL
    r.next_awaiting = NULL
    if transport.last_out != NULL:
        transport.last_out.next_out = r
    else:
        transport.first_out = r
    transport.last_out = r
    if answered:
        if transport.last_awaiting != NULL:
            transport.last_awaiting.next_awaiting = r
        else:
            transport.first_awaiting = r
        transport.last_awaiting = r


cdef Request* transport_pop_awaiting(Transport* transport) noexcept nogil:
    """Removes and returns the oldest request that awaits a response; NULL if there is none."""
    cdef Request* r = transport.first_awaiting
    if r != NULL:
        transport.first_awaiting = r.next_awaiting
        if r.next_awaiting == NULL:
            transport.last_awaiting = NULL
    return r


cdef Request* transport_pop_written(Transport* transport) noexcept nogil:
    """Removes and returns a written request that gets no response; NULL if there is none.

    Returns NULL while encrypted bytes are unsent: some of them may belong to that request.
    """
    cdef Request* r
    if transport.unsent and transport.state != BROKEN:
        return NULL
    r = transport.first_written
    if r != NULL:
        transport.first_written = r.next_out
    return r


cdef Request* transport_pop_any(Transport* transport) noexcept nogil:
    """Removes and returns a request of a closed connection, first those that get no response.

    NULL if there is none.
    """
    cdef Request* r
    while transport.first_out != NULL:
        r = transport.first_out
        transport.first_out = r.next_out
        if not r.answered:
            return r
    transport.last_out = NULL
    r = transport_pop_written(transport)
    return transport_pop_awaiting(transport) if r == NULL else r


cdef int64_t transport_flush(Transport* transport, int64_t now) noexcept nogil:
    """Writes as much of the queued requests as the socket accepts; returns 0 when all is written, else an Io.

    Over TLS, a request counts as written once its bytes are encrypted: the peer may have received any part of
    it. But this function does not return 0 before the socket has accepted all bytes.
    """
    cdef iovec gathered[MOST_PARTS]
    cdef Request* r
    cdef int count
    cdef int i
    cdef int64_t n
    if transport.unsent:
        n = transport.push(transport)
        if n < 0:
            return n
    while transport.first_out != NULL:
        count = 0
        r = transport.first_out
        while r != NULL and count < MOST_PARTS:
            i = r.part_at
            while i < r.part_count and count < MOST_PARTS:
                gathered[count] = r.parts[i]
                count += 1
                i += 1
            r = r.next_out
        n = transport.send(transport, gathered, count)
        if n < 0:
            return n
        if not transport.held:
            # Renewing the session does not count as use: otherwise, the connection would never become idle.
            transport.last_used_ns = now
        transport.traffic.out_bytes += n
        while n > 0:
            r = transport.first_out
            if n >= r.unwritten:
                n -= r.unwritten
                r.unwritten = 0
                transport.traffic.requests += 1
                transport.traffic.request_bytes += r.size
                transport.traffic.request_peak = max(transport.traffic.request_peak, r.size)
                transport.first_out = r.next_out
                if r.next_out == NULL:
                    transport.last_out = NULL
                if not r.answered:
                    r.next_out = transport.first_written
                    transport.first_written = r
                continue
            r.unwritten -= n
            while n >= <int64_t>r.parts[r.part_at].iov_len:
                n -= r.parts[r.part_at].iov_len
                r.part_at += 1
            r.parts[r.part_at].iov_base = <uint8_t*>r.parts[r.part_at].iov_base + n
            r.parts[r.part_at].iov_len -= n
            n = 0
    return IO_AGAIN if transport.unsent else 0


cdef int64_t transport_receive(Transport* transport) noexcept nogil:
    """Reads once into the inbox, which grows first if it is full; returns the bytes read, or an Io."""
    cdef int64_t n
    cdef int64_t whole
    cdef uint8_t* grown
    if transport.inbox_used == transport.inbox_room:
        n = FIRST_INBOX if transport.inbox_room == 0 else transport.inbox_room * 2
        if transport.inbox_used >= KEPT_INBOX:
            # For a large response, allocates no more than its size.
            whole = 4 + <int64_t>get_u32(transport.inbox)
            if transport.inbox_used < whole < n:
                n = whole
        # transport_frame() has rejected lengths above receive_max, so the growth is bounded.
        grown = <uint8_t*>realloc(transport.inbox, n)
        if grown == NULL:
            transport.sys_errno = 12   # ENOMEM
            return IO_ERROR
        transport.inbox = grown
        cyp_note64(&transport.inbox_room, n)
    n = transport.receive(
        transport, transport.inbox + transport.inbox_used, transport.inbox_room - transport.inbox_used
    )
    if n > 0:
        transport.inbox_used += n
        transport.traffic.in_bytes += n
    return n


cdef FrameResult transport_frame(
    Transport* transport, int64_t at, const uint8_t** frame, int64_t* size
) noexcept nogil:
    """Finds the frame that starts at ``at`` in the inbox, if it is complete; excludes the size prefix."""
    cdef int64_t length
    if transport.inbox_used - at < 4:
        return FRAME_NONE
    length = <int32_t>get_u32(transport.inbox + at)
    if length < 4 or length > transport.receive_max:
        return FRAME_BAD_SIZE
    if transport.inbox_used - at - 4 < length:
        return FRAME_NONE
    frame[0] = transport.inbox + at + 4
    size[0] = length
    return FRAME_READY


cdef void report_traffic(Accumulator* a, Transport* transport, int64_t now) noexcept nogil:
    """Adds the connection's traffic to the meters. The caller holds the accumulator's lock."""
    cdef Meter* meter
    if transport.traffic.out_bytes or transport.traffic.in_bytes or transport.traffic.responses:
        meter = &transport.node.meter if transport.node != NULL else NULL
        count_traffic(&a.meters, meter, &transport.traffic, now)


cdef void transport_consume(Transport* transport, int64_t size) noexcept nogil:
    """Drops the first ``size`` bytes of the inbox, and shrinks it after a large response."""
    cdef uint8_t* smaller
    transport.inbox_used -= size
    if transport.inbox_used > 0 and size > 0:
        memmove(transport.inbox, transport.inbox + size, transport.inbox_used)
    # Only if bytes were dropped: at the start of a large response, a grown inbox also holds only a few bytes.
    if size > 0 and transport.inbox_room > KEPT_INBOX and transport.inbox_used <= FIRST_INBOX // 2:
        smaller = <uint8_t*>realloc(transport.inbox, FIRST_INBOX)
        if smaller != NULL:
            transport.inbox = smaller
            cyp_note64(&transport.inbox_room, FIRST_INBOX)


cdef void transport_throttle(Transport* transport, int64_t throttle_ms, int64_t now) noexcept nogil:
    """Stops sending requests to the broker for this long; never shortens an earlier throttle time.

    The throttle time is capped at one minute. Brokers throttle for at most 11 s unless their quota windows
    are changed, and a faulty response could request 24 days. A broker that really throttles longer does not
    read from the connection in the meantime anyway.
    """
    cdef int64_t until = cyp_after(now, cyp_ms_ns(min(throttle_ms, MOST_THROTTLE_MS)))
    cyp_note64(&transport.throttled_until_ns, max(transport.throttled_until_ns, until))


cdef int64_t throttled_until(Transport** transports, int count, int64_t until, int64_t now) noexcept nogil:
    """Returns when the first throttling broker accepts requests again, at most ``until``.

    New work for a throttling broker does not wake up the sender, so the sender must wake up on its own then.
    """
    cdef int i
    for i in range(count):
        if transports[i].throttled_until_ns > now:
            until = min(until, transports[i].throttled_until_ns)
    return until
