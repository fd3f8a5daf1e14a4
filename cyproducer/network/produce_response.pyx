"""Answers: from bytes that a broker has sent to batches that are acknowledged.

Owns: reading, matching answers to requests, completing batches. Does not own: what becomes of a batch that a
broker refuses (``batch_errors``), nor any frame that does not answer a Produce request (the control plane).

In the sender's turn. Without the GIL, as long as there is nothing to decide. What has Python variables is in
functions of its own: Cython has those take the GIL when they return, whether they needed it before or not.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, uint8_t

from cyproducer.accumulator.structures cimport GATE_OPEN, Partition
from cyproducer.base.sync cimport cyp_load32
from cyproducer.network.connection cimport Connection
from cyproducer.network.frame_errors cimport unmatched, wrong_length
from cyproducer.network.transport cimport (
    FRAME_BAD_SIZE,
    FRAME_READY,
    IO_AGAIN,
    transport_consume,
    transport_frame,
    transport_pop_awaiting,
    transport_receive,
    transport_throttle,
)
from cyproducer.network.produce_codec cimport (
    Endpoints,
    Outcome,
    client_throttles,
    free_request,
    names_leader,
    parse_produce,
    record_errors,
)
from cyproducer.records.big_endian cimport get_u32

from cyproducer.errors import KafkaProtocolError


cdef class Answers(SendLoop):
    """The loop, and what it does with what brokers send. See ``SendLoop``."""

    cdef int _read(self, Transport* transport, int64_t now) except -1 nogil:
        """Reads what is there and handles each whole frame."""
        cdef int64_t n
        while True:
            n = transport_receive(transport)
            if n == IO_AGAIN:
                return 0
            if n < 0:
                return self._broken(transport, n)
            transport.last_used_ns = now
            if not self._frames(transport, now):
                return 0
            if transport.inbox_used < transport.inbox_room and n < transport.inbox_room - transport.inbox_used:
                # A read that did not fill its room has emptied the socket; more will be announced.
                return 0

    cdef bint _frames(self, Transport* transport, int64_t now) except -1 nogil:
        """Handles the whole frames that were received; whether to read on from the connection."""
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
            if not awaited and self.settings.acks == 0:
                # librdkafka's mock cluster answers Produce requests that ask for no answer.
                at += 4 + size
                continue
            if self.driven and (not awaited or not self._is_plain(r, frame, size)):
                self._leave(transport)
                break
            if not awaited or r.unwritten:
                with gil:
                    self.close_connection(<Connection>transport.owner, unmatched(transport, frame, size))
                return False
            transport_pop_awaiting(transport)
            transport.traffic.responses += 1
            self._frame(transport, r, frame, size, now)
            if self._transport_of(fd) != transport:
                return False
            at += 4 + size
        if result == FRAME_BAD_SIZE:
            if self.driven:
                self._leave(transport)
            else:
                with gil:
                    self.close_connection(<Connection>transport.owner, wrong_length(transport, at, self.receive_max))
                return False
        transport_consume(transport, at)
        return not transport.left_over

    cdef bint _is_plain(self, Request* r, const unsigned char* frame, int64_t size) noexcept nogil:
        """Whether a response acknowledges all it is asked to, and nobody has to decide anything."""
        cdef int32_t throttle_ms = 0
        cdef int32_t i
        cdef Endpoints endpoints
        if r.api_key != 0 or r.unwritten:
            return False
        if parse_produce(r, frame, size, self.outcomes, &throttle_ms, &endpoints) != 0 or throttle_ms:
            return False
        for i in range(r.count):
            if self.outcomes[i].error_code != 0 or r.batches[i].partition.gate != GATE_OPEN:
                return False
        return True

    cdef int _frame(
        self, Transport* transport, Request* r, const unsigned char* frame, int64_t size, int64_t now
    ) except -1 nogil:
        """Handles the answer to ``r``, which it frees."""
        cdef int32_t throttle_ms = 0
        cdef int32_t i
        cdef int rc
        cdef Outcome* o
        cdef Endpoints endpoints
        cdef bint learned = False
        if r.api_key != 0:
            with gil:
                self._pass_on(transport, r, frame, size, now)
            return 0
        rc = parse_produce(r, frame, size, self.outcomes, &throttle_ms, &endpoints)
        if rc != 0 or throttle_ms < 0:
            throttle_ms = 0
        transport.in_flight -= 1
        self._answered(transport, now - r.sent_ns, throttle_ms, now)
        if throttle_ms > 0 and client_throttles(r):
            transport_throttle(transport, throttle_ms, now)
        if rc != 0:
            with gil:
                self._malformed(transport, r, size)
            return 0
        self._acknowledge(r)
        for i in range(r.count):
            o = &self.outcomes[i]
            if o.error_code != 0:
                with gil:
                    if not learned and names_leader(o):
                        learned = True
                        self._learn_leaders(transport, r, &endpoints)
                    self._refused(r, i)
        free_request(r)
        return 0

    cdef int _pass_on(
        self, Transport* transport, Request* r, const unsigned char* frame, int64_t size, int64_t now
    ) except -1:
        """An answer to a request of the control plane's."""
        key, version = r.api_key, r.version
        free_request(r)
        body = PyBytes_FromStringAndSize(<const char*>frame, size)
        return self._tell(self.control.on_frame, <Connection>transport.owner, (key, version, body, now / 1e6))

    cdef int _malformed(self, Transport* transport, Request* r, int64_t size) except -1:
        cause = KafkaProtocolError(
            f"the Produce v{r.version} response of {(<Connection>transport.owner).where}, {size} bytes, is "
            "malformed"
        )
        self._give_up(r, cause)
        self.close_connection(<Connection>transport.owner, cause)
        return 0

    cdef int _refused(self, const Request* r, int32_t i) except -1:
        cdef const Outcome* o = &self.outcomes[i]
        message = None
        if o.message_size >= 0:
            message = o.message[:o.message_size].decode("utf-8", "replace")
        named = record_errors(r, o) if o.record_error_count else ()
        return self._resolve(r.batches[i], o.error_code, message, None, True, named)

    cdef int _acknowledge(self, Request* r) except -1 nogil:
        """Completes the batches that were acknowledged, also those whose records had to fail before."""
        cdef Outcome* o
        cdef Batch* b
        cdef Partition* p
        cdef bint awaited = False
        cdef int32_t count = 0
        cdef int32_t i
        for i in range(r.count):
            o = &self.outcomes[i]
            if o.error_code != 0:
                continue
            b = r.batches[i]
            p = b.partition
            awaited = self.driven or cyp_load32(&b.delivery.waiting) > 0
            # No lock: only the sender writes it.
            p.awaited = awaited
            if p.gate != GATE_OPEN:
                self._complete_unsettled(b, o)
                continue
            self.accumulator.acknowledge(b, o.base_offset, o.log_append_ms)
            self.drained[count] = b
            count += 1
        self.accumulator.account(self.drained, count)
        # Read without the lock: it is a hint.
        if r.count == 1 and awaited and self.accumulator.c.incomplete == 0:
            self.lone += 1
        else:
            self.lone = min(self.lone, 0)
        return 0

    cdef int _complete_unsettled(self, Batch* b, const Outcome* o) except -1 nogil:
        """The same for one whose partition the control plane has in hand, and is told."""
        cdef Partition* p = b.partition
        cdef int64_t first_record = b.first_record
        self.accumulator.complete(b, o.base_offset, o.log_append_ms)
        with gil:
            self._progress(p, first_record)
        return 0

    cdef int _go_on(self, int64_t now) except -1 nogil:
        """Goes on with what was left over."""
        cdef int i = 0
        cdef Transport* transport
        self.left_over = False
        while i < self.transport_count:
            transport = self.transports[i]
            if not transport.left_over:
                i += 1
                continue
            # What happens may break connections, and move others here.
            transport.left_over = False
            i = 0
            if transport.failure:
                self._broken(transport, transport.failure)
            else:
                self._frames(transport, now)
        return 0
