"""A connection's bytes: requests written in order, frames read whole. Without the GIL.

Owns: the queue of requests, partial writes, the receive buffer, and the check of a frame's length before
anything is allocated for it. Does not own: connecting, what a frame means, or when to write.

A request's memory, and with it its batches' buffers, stays until its answer is there or the connection is
closed *and* no write of it is under way: ``writev`` reads the batches where they are.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memmove

from cyproducer.buffers.meters cimport count_traffic
from cyproducer.buffers.sync cimport cyp_after, cyp_ms_ns
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
    #ifndef MSG_NOSIGNAL          /* macOS: the socket is made with SO_NOSIGPIPE, as Python does */
    #define MSG_NOSIGNAL 0
    #endif
    """

cdef enum:
    MOST_PARTS = 512          # slices per sendmsg; IOV_MAX is 1024 on Linux and macOS
    FIRST_INBOX = 8192
    KEPT_INBOX = 65536        # how large an inbox may stay: Produce responses hardly need more
    MOST_THROTTLE_MS = 60_000


cdef int64_t send_plain(Link* link, const iovec* parts, int count) noexcept nogil:
    cdef msghdr message
    cdef ssize_t n
    message = msghdr(msg_iov=<iovec*>parts, msg_iovlen=count)
    while True:
        n = sendmsg(link.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
        if n >= 0:
            return n
        if errno == EINTR:
            continue
        if errno == EAGAIN:
            return IO_AGAIN
        link.sys_errno = errno
        return IO_ERROR


cdef int64_t receive_plain(Link* link, uint8_t* into, int64_t room) noexcept nogil:
    cdef ssize_t n
    while True:
        n = recv(link.fd, into, room, MSG_DONTWAIT)
        if n > 0:
            return n
        if n == 0:
            return IO_CLOSED
        if errno == EINTR:
            continue
        if errno == EAGAIN:
            return IO_AGAIN
        link.sys_errno = errno
        return IO_ERROR


cdef Link* link_new(int fd, int32_t node_id, int64_t receive_max) noexcept nogil:
    """A connection over a connected or connecting socket, which stays the caller's; NULL: no memory."""
    cdef Link* link = <Link*>calloc(1, sizeof(Link))
    if link != NULL:
        link.fd = fd
        link.node_id = node_id
        link.receive_max = receive_max
        link.send = send_plain
        link.receive = receive_plain
    return link


cdef void link_free(Link* link) noexcept nogil:
    """Frees a connection whose requests were all popped."""
    free(link.inbox)
    free(link)


cdef int32_t link_next_id(Link* link) noexcept nogil:
    """The correlation id for the next request; they count up from 1 and wrap after 2147483647."""
    link.correlation_id = link.correlation_id + 1 if link.correlation_id < 0x7FFFFFFF else 1
    return link.correlation_id


cdef void link_push(Link* link, Request* r, bint answered) noexcept nogil:
    """Queues a request for writing; ``answered``: a response will come (not to Produce under acks=0)."""
    r.answered = answered
    r.next_out = NULL
    r.next_awaiting = NULL
    if link.last_out != NULL:
        link.last_out.next_out = r
    else:
        link.first_out = r
    link.last_out = r
    if answered:
        if link.last_awaiting != NULL:
            link.last_awaiting.next_awaiting = r
        else:
            link.first_awaiting = r
        link.last_awaiting = r


cdef Request* link_pop_awaiting(Link* link) noexcept nogil:
    """The oldest request that awaits its answer, taken out; NULL where there is none."""
    cdef Request* r = link.first_awaiting
    if r != NULL:
        link.first_awaiting = r.next_awaiting
        if r.next_awaiting == NULL:
            link.last_awaiting = NULL
    return r


cdef Request* link_pop_written(Link* link) noexcept nogil:
    """A request that is written and gets no answer, taken out; NULL where there is none."""
    cdef Request* r = link.first_written
    if r != NULL:
        link.first_written = r.next_out
    return r


cdef Request* link_pop_unwritten(Link* link) noexcept nogil:
    """A request that is not written whole and gets no answer; for a connection that is closed."""
    cdef Request* r
    while link.first_out != NULL:
        r = link.first_out
        link.first_out = r.next_out
        if not r.answered:
            return r
    link.last_out = NULL
    return NULL


cdef int64_t link_flush(Link* link, int64_t now) noexcept nogil:
    """Writes what the socket takes of the queued requests; 0 when all is written, else an Io."""
    cdef iovec gathered[MOST_PARTS]
    cdef Request* r
    cdef int count
    cdef int i
    cdef int64_t n
    while link.first_out != NULL:
        count = 0
        r = link.first_out
        while r != NULL and count < MOST_PARTS:
            i = r.part_at
            while i < r.part_count and count < MOST_PARTS:
                gathered[count] = r.parts[i]
                count += 1
                i += 1
            r = r.next_out
        n = link.send(link, gathered, count)
        if n < 0:
            return n
        link.last_used_ns = now
        link.traffic.out_bytes += n
        while n > 0:
            r = link.first_out
            if n >= r.unwritten:
                n -= r.unwritten
                r.unwritten = 0
                link.traffic.requests += 1
                link.traffic.request_bytes += r.size
                link.traffic.request_peak = max(link.traffic.request_peak, r.size)
                link.first_out = r.next_out
                if r.next_out == NULL:
                    link.last_out = NULL
                if not r.answered:
                    r.next_out = link.first_written
                    link.first_written = r
                continue
            r.unwritten -= n
            while n >= <int64_t>r.parts[r.part_at].iov_len:
                n -= r.parts[r.part_at].iov_len
                r.part_at += 1
            r.parts[r.part_at].iov_base = <uint8_t*>r.parts[r.part_at].iov_base + n
            r.parts[r.part_at].iov_len -= n
            n = 0
    return 0


cdef int64_t link_receive(Link* link) noexcept nogil:
    """Reads once into the inbox; bytes read, or an Io. The inbox has room for at least one byte after."""
    cdef int64_t n
    cdef uint8_t* grown
    if link.inbox_used == link.inbox_room:
        n = FIRST_INBOX if link.inbox_room == 0 else link.inbox_room * 2
        # link_frame() has refused lengths above receive_max, so this ends.
        grown = <uint8_t*>realloc(link.inbox, n)
        if grown == NULL:
            link.sys_errno = 12   # ENOMEM
            return IO_ERROR
        link.inbox = grown
        link.inbox_room = n
    n = link.receive(link, link.inbox + link.inbox_used, link.inbox_room - link.inbox_used)
    if n > 0:
        link.inbox_used += n
        link.traffic.in_bytes += n
    return n


cdef FrameResult link_frame(Link* link, int64_t at, const uint8_t** frame, int64_t* size) noexcept nogil:
    """The frame that starts at ``at`` in the inbox, without its length, if it is there whole."""
    cdef int64_t length
    if link.inbox_used - at < 4:
        return FRAME_NONE
    length = <int32_t>get_u32(link.inbox + at)
    if length < 4 or length > link.receive_max:
        return FRAME_BAD_SIZE
    if link.inbox_used - at - 4 < length:
        return FRAME_NONE
    frame[0] = link.inbox + at + 4
    size[0] = length
    return FRAME_READY


cdef void report_traffic(Accumulator* a, Link* link, int64_t now) noexcept nogil:
    """Adds what went through the connection to the meters. The accumulator's lock is held."""
    if link.traffic.out_bytes or link.traffic.in_bytes or link.traffic.responses:
        count_traffic(&a.meters, &link.node.meter if link.node != NULL else NULL, &link.traffic, now)


cdef void link_consume(Link* link, int64_t size) noexcept nogil:
    """Drops the first ``size`` bytes of the inbox, and the memory that only a large response needed."""
    cdef uint8_t* smaller
    link.inbox_used -= size
    if link.inbox_used > 0 and size > 0:
        memmove(link.inbox, link.inbox + size, link.inbox_used)
    # Only where something was dropped: of a large response that comes in, the inbox holds little at first.
    if size > 0 and link.inbox_room > KEPT_INBOX and link.inbox_used <= FIRST_INBOX // 2:
        smaller = <uint8_t*>realloc(link.inbox, FIRST_INBOX)
        if smaller != NULL:
            link.inbox = smaller
            link.inbox_room = FIRST_INBOX


cdef void link_throttle(Link* link, int64_t throttle_ms, int64_t now) noexcept nogil:
    """The broker wants no requests for so long; never shortens what it asked for before.

    A minute is believed. Brokers ask for 11 s at most unless their quota windows are changed, and a wrong
    answer could say 24 days; one that means it does not read the connection meanwhile anyway.
    """
    link.throttled_until_ns = max(
        link.throttled_until_ns, cyp_after(now, cyp_ms_ns(min(throttle_ms, MOST_THROTTLE_MS)))
    )


cdef int64_t throttled_until(Link** links, int count, int64_t until, int64_t now) noexcept nogil:
    """When the first broker that throttles now may be sent something again; ``until`` at the latest.

    New work for it wakes nobody meanwhile, so that the sender has to look by itself then.
    """
    cdef int i
    for i in range(count):
        if links[i].throttled_until_ns > now:
            until = min(until, links[i].throttled_until_ns)
    return until
