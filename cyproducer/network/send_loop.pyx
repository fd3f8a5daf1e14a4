"""The send loop: from ready batches to acknowledged ones, one ``run_once()`` after the other.

Owns: the step, that is what goes into a request, writing, and waiting for events. Does not own: what comes
back (``produce_response``), nor decisions that are not a matter of course (connections, metadata, errors, retries):
the control plane (``network_client.py``) makes them, called with the GIL, and uses ``sender`` for it. Nor time and
sockets: both come in from outside.

Who runs it: whoever holds the turn, see ``loop_ownership``.

The happy path of a step holds no GIL at all: take batches, checksum, write, wait, read, complete. A thread
that asks for the GIL beside a busy ``send()`` loop gets it after the interpreter's switch interval, 5 ms, in
which that loop makes tens of thousands of records: asking once a batch would halve the throughput.
"""

import heapq
import os
import selectors

from libc.stdint cimport uint64_t
from libc.stdlib cimport free

from cyproducer.accumulator.parked_records cimport next_parked_deadline
from cyproducer.futures.driving cimport Driver
from cyproducer.base.meters cimport count_answer
from cyproducer.accumulator.ready_partitions cimport drain, expire_linger, has_work, refresh
from cyproducer.accumulator.structures cimport (
    ASLEEP,
    AWAKE,
    SEALED,
    SEALING,
    Accumulator,
    Partition,
)
from cyproducer.base.sync cimport (
    FAR_NS,
    cyp_add32,
    cyp_after,
    cyp_load32,
    cyp_lock_queued,
    cyp_ms_ns,
    cyp_store32,
    cyp_swap32,
    pthread_mutex_destroy,
    cyp_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)
from cyproducer.network.frame_errors cimport socket_error
from cyproducer.network.transport cimport (
    CONNECTING,
    IO_AGAIN,
    READY,
    transport_flush,
    transport_next_id,
    transport_pop_written,
    transport_push,
    report_traffic,
    throttled_until,
)
from cyproducer.network.poller cimport MOST_READY
from cyproducer.network.produce_codec cimport Endpoints, encode_produce, free_request
from cyproducer.records.record_batch cimport put_batch_header

from cyproducer.errors import KafkaConnectionError
from cyproducer.user_thread import Log

cdef extern from "<unistd.h>" nogil:
    ssize_t c_write "write"(int fd, const void* data, size_t size)
    ssize_t c_read "read"(int fd, void* data, size_t size)

cdef extern from "<sched.h>" nogil:
    int sched_yield()

log = Log("cyproducer")


cdef void wake_sender(void* waker) noexcept nogil:
    """Ends the sender's wait for events. Any thread, with or without the GIL.

    ``waker``: the sender's. Counted before the descriptor is read: see ``retire``.
    """
    cdef Waker* w = <Waker*>waker
    cdef uint64_t one = 1
    cdef int32_t fd
    cyp_add32(&w.users, 1)
    fd = cyp_load32(&w.fd)
    if fd >= 0:
        # Never blocks: the descriptor is non-blocking.
        c_write(fd, &one, 8)
    cyp_add32(&w.users, -1)


cdef int32_t retire(Waker* w) noexcept nogil:
    """Has nobody wake the sender any more; returns the descriptor, which may be closed now.

    1. A thread without the GIL reads the descriptor.  2. It is closed.  3. Another thread opens a file, which
    gets its number.  4. The first one writes into that. So what is between 1 and 4 is counted, and waited
    for: a few instructions, unless their thread is suspended.
    """
    cdef int32_t fd = cyp_swap32(&w.fd, -1)
    while cyp_load32(&w.users) > 0:
        sched_yield()
    return fd


cdef class SendLoop(Driver):
    """The loop over one selector. ``selector`` and ``clock`` come from the caller, which may step by hand.

    ``control`` is told of what needs a decision: ``tick``, ``on_socket_ready``, ``on_frame``,
    ``on_broken``, ``on_batch_error``; see ``NetworkClient`` for what each means.
    """

    def __cinit__(self):
        cyp_mutex_init(&self.turn)
        self.wake_read_fd = -1
        self.waker.fd = -1

    def __init__(
        self,
        RecordAccumulator accumulator not None,
        selector,
        Clock clock not None,
        *,
        str client_id,
        int acks,
        int max_in_flight,
        int64_t max_request_size,
        double request_timeout_ms,
        double delivery_timeout_ms,
        int64_t receive_max,
    ):
        self.accumulator = accumulator
        self.clock = clock
        self.poller = Poller(selector)
        self.client_id = client_id.encode()
        self.settings.client_id = self.client_id
        self.settings.client_id_size = <int32_t>len(self.client_id)
        self.settings.acks = <int16_t>acks
        # The broker's patience ends before ours, so that its answer, which says more than none, arrives.
        self.settings.timeout_ms = <int32_t>min(request_timeout_ms - min(request_timeout_ms / 10, 1000), 1e9)
        self.max_in_flight = max_in_flight
        self.max_request_size = max_request_size
        self.request_timeout_ns = cyp_ms_ns(request_timeout_ms)
        self.delivery_timeout_ns = cyp_ms_ns(delivery_timeout_ms)
        self.receive_max = receive_max
        self.connections = []
        self.backing_off = []
        if hasattr(os, "eventfd"):
            self.wake_read_fd = self.waker.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self.wake_read_fd, self.waker.fd = os.pipe()
            os.set_blocking(self.wake_read_fd, False)
            os.set_blocking(self.waker.fd, False)
        selector.register(self.wake_read_fd, selectors.EVENT_READ)
        accumulator.wake_context = &self.waker
        accumulator.wake_function = wake_sender

    def __dealloc__(self):
        free(self.transports)
        pthread_mutex_destroy(&self.turn)

    def wake(self):
        """Ends the wait for events. Any thread."""
        wake_sender(&self.waker)

    def request_control(self):
        """Has the control plane called in the next step, which begins at once. Any thread."""
        cyp_store32(&self.attention, 1)
        wake_sender(&self.waker)

    # The loop

    cdef int step(self, int64_t max_wait_ns) except -1 nogil:
        cdef Ready ready[MOST_READY]
        cdef int n
        cdef int i
        cdef Transport* transport
        cdef uint64_t drained_wakeups
        cdef int64_t until
        cdef int64_t now = self.clock.now_ns()
        if self.left_over:
            self._go_on(now)
        if cyp_load32(&self.attention) or now >= self.next_control_ns:
            if self.driven:
                self.left_over = True
                return 0
            with gil:
                self._control(now)
            now = self.clock.now_ns()
        if now >= self.next_expiry_ns:
            self._expire(now)
            if self.left_over:
                return 0
        pthread_mutex_lock(&self.accumulator.c.lock)
        expire_linger(&self.accumulator.c, now)
        pthread_mutex_unlock(&self.accumulator.c.lock)
        i = 0
        while i < self.transport_count:
            transport = self.transports[i]
            if transport.state == READY:
                self._fill(transport, now)
            # _fill may have broken this connection, which moves the next one here.
            if i < self.transport_count and self.transports[i] == transport:
                i += 1
        until = throttled_until(self.transports, self.transport_count, self.next_control_ns, now)
        until = min(until, cyp_after(now, max_wait_ns))
        n = self.poller.wait(self._sleep_until(until, now) - now, ready)
        cyp_store32(&self.accumulator.c.sleeping, AWAKE)
        now = self.clock.now_ns()
        for i in range(n):
            if ready[i].fd == self.wake_read_fd:
                self.wakeups += 1
                # An eventfd is empty after one read, a pipe may hold several wake-ups.
                while c_read(self.wake_read_fd, &drained_wakeups, 8) > 0:
                    if self.wake_read_fd == self.waker.fd:
                        break
                continue
            transport = self._transport_of(ready[i].fd)
            if transport == NULL:
                continue
            if transport.state == CONNECTING and transport.wants_write:
                if self.driven:
                    self._leave(transport)
                    continue
                with gil:
                    self._tell(self.control.on_socket_ready, <Connection>transport.owner, (now / 1e6,))
                continue
            if ready[i].events & 2:
                self._write(transport, now)
                transport = self._transport_of(ready[i].fd)
            if ready[i].events & 1 and transport != NULL:
                self._read(transport, now)
        return 0

    cdef Transport* _transport_of(self, int fd) noexcept nogil:
        cdef int i
        for i in range(self.transport_count):
            if self.transports[i].fd == fd:
                return self.transports[i]
        return NULL

    cdef int64_t _sleep_until(self, int64_t until, int64_t now) noexcept nogil:
        """Until when to wait for events, ``until`` at the latest; ``now`` where there is work already.

        The look for work and the note that the sender sleeps are one critical section: an append either
        comes before and is seen here, or after and sees the note.
        """
        cdef Accumulator* a = &self.accumulator.c
        cdef Node* n
        cdef bint work = cyp_load32(&self.attention) != 0
        pthread_mutex_lock(&a.lock)
        n = a.nodes
        while n != NULL:
            if not has_work(n):
                if n.transport == NULL:
                    n.takes = 1
            else:
                if n.takes and n.transport == NULL:
                    # The control plane is told once for as long as there is work; it connects, and takes
                    # its time between failures.
                    n.takes = 0
                    cyp_store32(&self.attention, 1)
                    work = True
                elif n.takes:
                    work = True
                elif n.waiting_since_ns == 0:
                    n.waiting_since_ns = now
            n = n.next
        if a.parked_anew:
            # Its deadline may be the first of all.
            a.parked_anew = 0
            cyp_store32(&self.attention, 1)
            work = True
        if a.lingering.first != NULL:
            until = min(until, cyp_after(a.lingering.first.first.created_ns, a.stream_linger_ns))
        self.next_expiry_ns = FAR_NS
        if self.delivery_timeout_ns < FAR_NS - now:
            # A batch that is begun meanwhile may wake nobody: it has no leader, or no connection yet.
            self.next_expiry_ns = now + self.delivery_timeout_ns
            if a.oldest != NULL:
                self.next_expiry_ns = a.oldest.created_ns + self.delivery_timeout_ns
                if self.next_expiry_ns <= now and a.oldest.state == SEALING:
                    # It fails once it is compressed, which need not wake anybody either.
                    self.next_expiry_ns = now + COMPRESSING_NS
        until = min(until, self.next_expiry_ns)
        if work:
            until = now
        else:
            a.sleeping_until_ns = until
            cyp_store32(&a.sleeping, ASLEEP)
        pthread_mutex_unlock(&a.lock)
        return until

    # Out

    cdef int _fill(self, Transport* transport, int64_t now) except -1 nogil:
        """Makes and writes requests while there are ready batches and the connection takes them."""
        cdef Request* r
        cdef Batch* b
        cdef int32_t count
        cdef int32_t i
        cdef int fd = transport.fd
        cdef Node* node = transport.node
        cdef bint throttled = transport.throttled_until_ns > now
        while not throttled and transport.in_flight < self.max_in_flight and transport.first_out == NULL:
            cyp_lock_queued(&self.accumulator.c.lock, &self.accumulator.c.queued)
            count = drain(
                &self.accumulator.c, node, self.max_request_size, self.drained, MOST_BATCHES, now
            )
            pthread_mutex_unlock(&self.accumulator.c.lock)
            if count == 0:
                break
            for i in range(count):
                b = self.drained[i]
                if b.state == SEALING:
                    with gil:
                        self.accumulator.compress(b)
                    b.state = SEALED
                put_batch_header(
                    b.data, b.size, b.codec, b.count, b.base_timestamp, b.max_timestamp,
                    b.producer_id, b.producer_epoch, b.base_sequence,
                )
            r = encode_produce(
                &self.settings, transport.produce_version, transport_next_id(transport),
                self.drained, count,
            )
            if r == NULL:
                with gil:
                    for i in range(count):
                        self._resolve(
                            self.drained[i], 0, None, MemoryError("no memory for a request"), False
                        )
                self._answered(transport, -1, 0, now)
                continue
            r.sent_ns = now
            transport_push(transport, r, self.settings.acks != 0)
            # The control plane looks for requests that are overdue, and must not sleep past this one.
            self.next_control_ns = min(self.next_control_ns, cyp_after(now, self.request_timeout_ns))
            transport.in_flight += self.settings.acks != 0
            self._write(transport, now)
            if self._transport_of(fd) != transport:
                return 0
        pthread_mutex_lock(&self.accumulator.c.lock)
        node.takes = not throttled and transport.in_flight < self.max_in_flight and transport.first_out == NULL
        report_traffic(&self.accumulator.c, transport, now)
        pthread_mutex_unlock(&self.accumulator.c.lock)
        return 0

    cdef int _write(self, Transport* transport, int64_t now) except -1 nogil:
        """Writes what the socket takes, and watches it for more room where something is left."""
        cdef int64_t rc = transport_flush(transport, now)
        cdef Request* r = transport_pop_written(transport)
        cdef int32_t i
        while r != NULL:
            # acks=0: what the kernel took is all there is to know.
            self._answered(transport, -1, 0, now)
            for i in range(r.count):
                self.accumulator.complete(r.batches[i], -1, -1)
            free_request(r)
            r = transport_pop_written(transport)
        if rc == 0 or rc == IO_AGAIN:
            if transport.wants_write != (rc != 0):
                transport.wants_write = rc != 0
                self.poller.watch_write(transport.fd, transport.wants_write)
            return 0
        return self._broken(transport, rc)

    cdef int _broken(self, Transport* transport, int64_t failure) except -1 nogil:
        """The socket gave an Io that ends the connection."""
        if self.driven:
            transport.failure = failure
            self._leave(transport)
            return 0
        with gil:
            self.close_connection(<Connection>transport.owner, socket_error(transport, failure))
        return 0

    cdef void _leave(self, Transport* transport) noexcept nogil:
        """On a thread in ``get()``: leaves what needs the GIL, or a decision, to the sender's thread.

        The control plane runs nowhere else: a Ctrl-C in a main thread must not end it half-way.
        """
        transport.left_over = True
        self.left_over = True

    cdef int _answered(self, Transport* transport, int64_t latency_ns, int64_t throttle_ms, int64_t now) noexcept nogil:
        """A request of the connection is over: what gathered meanwhile may go.

        ``latency_ns`` -1: it got no answer. Before its batches are completed, so that whoever waits for them
        finds it in the metrics.
        """
        pthread_mutex_lock(&self.accumulator.c.lock)
        transport.node.answered += 1
        self.accumulator.c.meters.answered_ns = now
        if latency_ns >= 0:
            count_answer(&self.accumulator.c.meters, &transport.node.meter, latency_ns, throttle_ms)
        report_traffic(&self.accumulator.c, transport, now)
        pthread_mutex_unlock(&self.accumulator.c.lock)
        return 0

    # What `produce_response` does

    cdef int _read(self, Transport* transport, int64_t now) except -1 nogil:
        """Reads what is there and handles each whole frame."""
        return 0

    cdef int _go_on(self, int64_t now) except -1 nogil:
        """Goes on with what ``_leave()`` has left over."""
        return 0

    cdef int _learn_leaders(self, Transport* transport, Request* r, const Endpoints* endpoints) except -1:
        """A response names new leaders; ``Sender`` tells of them."""
        raise NotImplementedError("a SendLoop is used through Sender")

    cpdef object close_connection(self, Connection connection, object cause):
        """Closes a socket and hands its requests back; ``Sender`` does it."""
        raise NotImplementedError("a SendLoop is used through Sender")

    # What needs a decision

    cdef int _control(self, int64_t now) except -1:
        """Calls the control plane, and lets partitions send again whose backoff is over."""
        cdef Partition* p
        cdef double delay_ms
        cyp_swap32(&self.attention, 0)
        while self.backing_off and self.backing_off[0][0] <= now:
            p = <Partition*><size_t>heapq.heappop(self.backing_off)[2]
            pthread_mutex_lock(&self.accumulator.c.lock)
            if p.retry_at_ns <= now:
                p.retry_at_ns = 0
                refresh(&self.accumulator.c, p)
            pthread_mutex_unlock(&self.accumulator.c.lock)
        try:
            delay_ms = self.control.tick(now / 1e6)
        except Exception:
            log.exception("the control plane failed; it is tried again in a second")
            delay_ms = 1000.0
        self.next_control_ns = cyp_after(now, cyp_ms_ns(min(delay_ms, 3.6e6)))
        if self.backing_off:
            self.next_control_ns = min(self.next_control_ns, <int64_t>self.backing_off[0][0])
        self.next_control_ns = min(self.next_control_ns, next_parked_deadline(self.accumulator))
        return 0

    cdef int _tell(self, object method, Connection connection, tuple arguments) except -1:
        """Calls the control plane about a connection. Where that raises, the connection is the one to go."""
        try:
            method(connection, *arguments)
        except Exception as error:
            log.exception("the control plane failed over %r, which is closed", connection)
            self.close_connection(connection, KafkaConnectionError(f"{connection.where}: {error!r}"))
        return 0

    # What ``batch_errors`` does

    cdef int _expire(self, int64_t now) except -1 nogil:
        """Fails the batches whose delivery_timeout_ms has run out."""
        return 0

    cdef int _progress(self, Partition* p, int64_t acknowledged_id) except -1:
        """Tells the control plane that a batch of a partition that it holds back came to its end."""
        return 0

    cdef int _resolve(
        self, Batch* b, int error_code, object message, object cause, bint written, object named=()
    ) except -1:
        """A batch came back without success: does with it what the control plane decides.

        ``error_code``: the broker's, or 0 where ``cause`` says what happened instead. ``written``: the
        request was written whole, so that the broker may have it. ``named``: the records that the broker
        refuses it for, as (place in the batch, message or None).
        """
        return 0

    cdef int _give_up(self, Request* r, object cause) except -1:
        """A Produce request will not be answered; frees it."""
        return 0
