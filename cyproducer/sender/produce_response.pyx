"""Reads responses from a connection and completes the batches that they acknowledge.

Owns reading, matching responses to requests by correlation id, and completing batches. Does not decide what
happens to a rejected batch (``batch_errors``). Responses to requests other than Produce are passed to the
control plane.

Runs with the loop lock held, and without the GIL unless a decision is needed. Code that needs Python
variables is in separate functions: Cython makes such a function take the GIL when it returns, even if it did
not need it before.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t

from cyproducer.accumulator.structures cimport (
    AHEAD,
    GATE_OPEN,
    Batch,
    Partition,
    prefetch_batch,
    prefetch_partition,
)
from cyproducer.base.sync cimport cyp_change32, cyp_load32, cyp_note8, cyp_peek64, cyp_prefetch
from cyproducer.sender.batch_errors cimport batch_failed, batch_progress, give_up_request, topic_name
from cyproducer.net.connection cimport Connection
from cyproducer.net.connection_errors cimport unmatched, wrong_length
from cyproducer.wire.produce_codec cimport (
    Endpoints,
    Outcome,
    Request,
    client_throttles,
    free_request,
    names_leader,
    parse_produce,
    record_errors,
)
from cyproducer.sender.sender cimport Sender
from cyproducer.net.transport cimport (
    FRAME_BAD_SIZE,
    FRAME_READY,
    IO_AGAIN,
    Transport,
    transport_consume,
    transport_frame,
    transport_pop_awaiting,
    transport_receive,
    transport_throttle,
)
from cyproducer.records.big_endian cimport get_u32

from cyproducer.base.text import printable
from cyproducer.errors import KafkaProtocolError
from cyproducer.base.log import Log

log = Log("cyproducer")


cdef int read_responses(Sender sender, Transport* transport, int64_t now) except -1 nogil:
    """Reads the available bytes and handles each complete frame."""
    cdef int64_t n
    while True:
        n = transport_receive(transport)
        if n == IO_AGAIN:
            # Reading from TLS may have produced bytes to send.
            return sender.write(transport, now) if transport.unsent else 0
        if n < 0:
            if transport.unsent:
                # Sends TLS's alert, which reports the reason. Whether it arrives does not matter.
                transport.push(transport)
            return sender.connection_broken(transport, n)
        if not transport.held:
            transport.last_used_ns = now
        if not handle_frames(sender, transport, now):
            return 0
        if transport.tls != NULL:
            # A read returns one TLS record at most, and the poller does not see bytes that OpenSSL holds.
            continue
        if transport.inbox_used < transport.inbox_room and n < transport.inbox_room - transport.inbox_used:
            # A read that did not fill the buffer has emptied the socket; the poller reports new bytes.
            return 0


cdef bint handle_frames(Sender sender, Transport* transport, int64_t now) except -1 nogil:
    """Handles the complete frames in the inbox; returns whether to continue reading from the connection."""
    cdef int64_t at = 0
    cdef int64_t size
    cdef const uint8_t* frame
    cdef int result
    cdef int fd = transport.fd
    cdef bint awaited
    cdef Request* r
    while True:
        result = transport_frame(transport, at, &frame, &size)
        if result != FRAME_READY:
            break
        r = transport.first_awaiting
        awaited = r != NULL and <int32_t>get_u32(frame) == r.correlation_id
        if not awaited and sender.unanswered:
            # librdkafka's mock cluster responds to Produce requests even with acks=0.
            at += 4 + size
            continue
        if sender.driven and (not awaited or not is_plain_success(sender, r, frame, size)):
            sender.defer(transport)
            break
        if not awaited or r.unwritten:
            with gil:
                sender.close_connection(<Connection>transport.owner, unmatched(transport, frame, size))
            return False
        transport_pop_awaiting(transport)
        transport.traffic.responses += 1
        handle_response(sender, transport, r, frame, size, now)
        if sender.transport_of(fd) != transport:
            return False
        at += 4 + size
    if result == FRAME_BAD_SIZE:
        if sender.driven:
            sender.defer(transport)
        else:
            with gil:
                sender.close_connection(
                    <Connection>transport.owner, wrong_length(transport, at)
                )
            return False
    transport_consume(transport, at)
    return not transport.deferred


cdef bint is_plain_success(
    Sender sender, Request* r, const unsigned char* frame, int64_t size
) noexcept nogil:
    """Whether a response acknowledges every batch of the request, and no decision is needed."""
    cdef int32_t throttle_ms = 0
    cdef int32_t i
    cdef Endpoints endpoints
    if r.api_key != 0 or r.unwritten:
        return False
    if parse_produce(r, frame, size, sender.outcomes, &throttle_ms, &endpoints) != 0 or throttle_ms:
        return False
    for i in range(r.count):
        if sender.outcomes[i].error_code != 0 or r.batches[i].partition.gate != GATE_OPEN:
            return False
    return True


cdef int handle_response(
    Sender sender, Transport* transport, Request* r, const unsigned char* frame, int64_t size, int64_t now
) except -1 nogil:
    """Handles the response to ``r``, which it frees."""
    cdef int32_t throttle_ms = 0
    cdef int32_t i
    cdef int rc
    cdef Outcome* o
    cdef Endpoints endpoints
    cdef bint learned = False
    if r.api_key != 0:
        with gil:
            pass_to_control(sender, transport, r, frame, size, now)
        return 0
    rc = parse_produce(r, frame, size, sender.outcomes, &throttle_ms, &endpoints)
    if rc != 0 or throttle_ms < 0:
        throttle_ms = 0
    cyp_change32(&transport.in_flight, -1)
    sender.request_done(transport, now - r.sent_ns, throttle_ms, now)
    if throttle_ms > 0 and client_throttles(r):
        transport_throttle(transport, throttle_ms, now)
    if rc != 0:
        with gil:
            malformed_response(sender, transport, r, size)
        return 0
    acknowledge_batches(sender, r)
    for i in range(r.count):
        o = &sender.outcomes[i]
        if o.error_code != 0:
            with gil:
                if not learned and names_leader(o):
                    learned = True
                    learn_leaders(sender, transport, r, &endpoints)
                batch_refused(sender, r, i)
    free_request(r)
    return 0


cdef int learn_leaders(Sender sender, Transport* transport, Request* r, const Endpoints* endpoints) except -1:
    """Reports all leaders that a response names to the control plane, before the batches are handled."""
    cdef int32_t i
    cdef Outcome* o
    cdef Partition* p
    leaders = []
    for i in range(r.count):
        o = &sender.outcomes[i]
        if names_leader(o):
            p = r.batches[i].partition
            leaders.append((topic_name(p), p.index, o.leader_id, o.leader_epoch))
    where = None
    if endpoints.data != NULL:
        where = PyBytes_FromStringAndSize(<const char*>endpoints.data, endpoints.size)
    try:
        sender.control.on_leaders(<Connection>transport.owner, leaders, where)
    except Exception:
        log.exception("applying the leaders of a Produce response failed")
    return 0


cdef int pass_to_control(
    Sender sender, Transport* transport, Request* r, const unsigned char* frame, int64_t size, int64_t now
) except -1:
    """Passes a response to the control plane, which sent the request."""
    number = r.correlation_id
    free_request(r)
    body = PyBytes_FromStringAndSize(<const char*>frame, size)
    return sender.call_control(
        sender.control.on_frame, <Connection>transport.owner, (number, body, now / 1e6)
    )


cdef int malformed_response(Sender sender, Transport* transport, Request* r, int64_t size) except -1:
    cause = KafkaProtocolError(
        f"the Produce v{r.version} response of {(<Connection>transport.owner).where}, {size} bytes, is "
        "malformed"
    )
    give_up_request(sender, r, cause)
    sender.close_connection(<Connection>transport.owner, cause)
    return 0


cdef int batch_refused(Sender sender, const Request* r, int32_t i) except -1:
    cdef const Outcome* o = &sender.outcomes[i]
    message = None
    if o.message_size >= 0:
        message = printable(o.message[:o.message_size].decode("utf-8", "replace"))
    culprits = record_errors(r, o, r.batches[i].count) if o.record_error_count else {}
    return batch_failed(sender, r.batches[i], o.error_code, message, None, True, culprits)


cdef int acknowledge_batches(Sender sender, Request* r) except -1 nogil:
    """Completes the acknowledged batches, including abandoned ones, whose records have already failed."""
    cdef Outcome* o
    cdef Batch* b
    cdef Partition* p
    cdef bint awaited = False
    cdef int32_t count = 0
    cdef int32_t i
    for i in range(r.count):
        if i + 2 * AHEAD < r.count:
            prefetch_batch(r.batches[i + 2 * AHEAD])
        if i + AHEAD < r.count:
            b = r.batches[i + AHEAD]
            prefetch_partition(b.partition)
            cyp_prefetch(b.delivery, 1)
            cyp_prefetch(b.data, 1)
        o = &sender.outcomes[i]
        if o.error_code != 0:
            continue
        b = r.batches[i]
        p = b.partition
        awaited = sender.driven or cyp_load32(&b.delivery.waiting) > 0
        # No lock: only the thread that holds the loop lock writes this field.
        cyp_note8(&p.awaited, awaited)
        if p.gate != GATE_OPEN:
            acknowledge_held(sender, b, o)
            continue
        sender.accumulator.acknowledge(b, o.base_offset, o.log_append_ms)
        sender.drained[count] = b
        count += 1
    sender.accumulator.account(sender.drained, count)
    # `incomplete` is read without the lock: it is only a hint.
    if r.count == 1 and awaited and cyp_peek64(&sender.accumulator.c.incomplete) == 0:
        sender.lone += 1
    else:
        sender.lone = min(sender.lone, 0)
    return 0


cdef int acknowledge_held(Sender sender, Batch* b, const Outcome* o) except -1 nogil:
    """Completes a batch of a held-back partition, and lets ``batch_progress`` decide how it continues."""
    cdef Partition* p = b.partition
    cdef int64_t first_record = b.first_record
    sender.accumulator.complete(b, o.base_offset, o.log_append_ms)
    with gil:
        batch_progress(sender, p, first_record)
    return 0


cdef int resume_deferred(Sender sender, int64_t now) except -1 nogil:
    """Continues with the connections that a thread in ``get()`` has deferred."""
    cdef int i = 0
    cdef Transport* transport
    sender.deferred = False
    while i < sender.transport_count:
        transport = sender.transports[i]
        if not transport.deferred:
            i += 1
            continue
        # Handling a connection can close connections and move others in the array: restarts from the first.
        transport.deferred = False
        i = 0
        if transport.failure:
            sender.connection_broken(transport, transport.failure)
        elif handle_frames(sender, transport, now) and transport.tls != NULL:
            # The thread in get() stopped reading while OpenSSL may still have held bytes.
            read_responses(sender, transport, now)
    return 0
