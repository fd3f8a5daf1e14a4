"""Runs the sender loop: drains ready batches, sends them and completes them, one step at a time.

Owns the step (which batches go into a request, writing, waiting for events), opening and closing connections,
and the operations that the control plane calls: apply metadata, fail records, shut down. Other modules
contain functions over the sender's state: ``produce_response`` handles responses, ``batch_errors`` handles
batches that did not succeed, ``loop_ownership`` decides which thread runs the loop. Does not make decisions
about connections, metadata, errors or retries: the control plane (``network_client``), which is called with
the GIL, makes them. Does not create sockets, the selector or the clock: they are passed in.

A step runs with ``loop_lock`` held; so does every method that the control plane calls, unless it says "any
thread".

The happy path of a step never takes the GIL: drain batches, checksum, write, wait, read, complete. A thread
that requests the GIL while another thread runs a busy ``send()`` loop gets it only after the interpreter's
switch interval, 5 ms, in which that loop appends tens of thousands of records: taking the GIL once per batch
would halve the throughput. Compressing a batch that is due before it is full does take the GIL.
"""

import heapq
import os
import selectors

from libc.math cimport INFINITY
from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t
from libc.stdlib cimport free, realloc

from cyproducer.accumulator.compression_thread cimport leave_uncompressed, stop_compressing
from cyproducer.accumulator.buffer_pool cimport MOST_KEPT, WINDOW_NS
from cyproducer.accumulator.far_brokers cimport is_far, note_answer
from cyproducer.accumulator.parked_records cimport (
    apply_topic,
    fail_overdue,
    fail_parked,
    forget_topic,
    next_parked_deadline,
    waiting_topics,
)
from cyproducer.accumulator.ready_partitions cimport (
    drain,
    expire_linger,
    first_linger_end,
    has_work,
    hurry,
    refresh,
    stop_appends,
    withdraw,
)
from cyproducer.accumulator.record_accumulator cimport RecordAccumulator
from cyproducer.accumulator.sequences cimport forget_gap, refresh_all, set_identity
from cyproducer.accumulator.structures cimport (
    AHEAD,
    ASLEEP,
    AWAKE,
    GATE_OPEN,
    OPEN,
    SEALED,
    SEALING,
    Accumulator,
    Batch,
    Node,
    Partition,
    Topic,
    prefetch_records,
)
from cyproducer.accumulator.partition_table cimport TopicInfo, make_node
from cyproducer.base.clock cimport Clock, duration_of
from cyproducer.base.greenlets cimport broadcast
from cyproducer.base.meters cimport (
    CONNECTED,
    DISCONNECTED,
    FAILED_AUTHENTICATIONS,
    PRODUCE_REQUESTS,
    RECORDS_FAILED,
    count_answer,
)
from cyproducer.base.sync cimport (
    FAR_NS,
    cyp_after,
    cyp_change32,
    cyp_change64,
    cyp_load32,
    cyp_load_pointer,
    cyp_lock_queued,
    cyp_ms_ns,
    cyp_mutex_init,
    cyp_peek32,
    cyp_peek64,
    cyp_note32,
    cyp_note64,
    cyp_store32,
    cyp_swap32,
    pthread_mutex_destroy,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)
from cyproducer.sender.batch_errors cimport (
    batch_failed,
    batch_purged,
    batch_removed,
    expire_batches,
    give_up_request,
)
from cyproducer.net.connection cimport Connection, make_connection
from cyproducer.net.connection_errors cimport socket_error
from cyproducer.sender.loop_ownership cimport may_stand_by, run_until_stopped
from cyproducer.net.poller cimport MOST_READY, Poller, Ready
from cyproducer.wire.produce_codec cimport Request, encode_produce, free_request
from cyproducer.sender.produce_response cimport read_responses, resume_deferred
from cyproducer.net.transport cimport (
    BROKEN,
    CONNECTING,
    IO_AGAIN,
    READY,
    Transport,
    report_traffic,
    throttled_until,
    transport_flush,
    transport_next_id,
    transport_pop_any,
    transport_pop_written,
    transport_push,
)
from cyproducer.net.tls_transport cimport Tls, reason_of_failure
from cyproducer.net.waker cimport retire, wake_sender
from cyproducer.records.record_batch cimport put_batch_header

from cyproducer.errors import KafkaConnectionError, KafkaTimeoutError, told
from cyproducer.base.log import Log
from cyproducer.base.wakeup_fd import channel

cdef extern from "<unistd.h>" nogil:
    ssize_t c_read "read"(int fd, void* data, size_t size)

log = Log("cyproducer")


cdef class Sender:
    """The sender loop over one selector. The caller passes ``selector`` and ``clock``, and can run single
    steps itself. ``options``: a ``ProducerConfig``, or any object with the attributes that are read below.

    ``attach_control`` sets the control plane, which the loop calls for every decision: ``NetworkClient``
    describes each call.
    """

    def __cinit__(self):
        cyp_mutex_init(&self.loop_lock)
        self.wake_read_fd = -1
        self.waker.fd = -1
        if not self.make_room(FIRST_BATCHES):
            raise MemoryError("no memory for a sender")

    def __init__(
        self,
        options,
        RecordAccumulator accumulator not None,
        selector,
        Clock clock not None,
    ):
        cdef double request_timeout_ms = options.request_timeout_ms
        cdef int32_t i
        self.accumulator = accumulator
        self.clock = clock
        self.poller = Poller(selector)
        self.client_id = options.client_id.encode()
        self.settings.client_id = self.client_id
        self.settings.client_id_size = <int32_t>len(self.client_id)
        self.transactional_id = (getattr(options, "transactional_id", None) or "").encode()
        if self.transactional_id:
            self.settings.transactional_id = self.transactional_id
            self.settings.transactional_id_size = <int32_t>len(self.transactional_id)
            self.attributes = TRANSACTIONAL
            accumulator.c.refusing = 1
        for i in range(accumulator.c.settings_count):
            self.unanswered |= accumulator.c.settings[i].acks == 0
        self.highest_produce = NO_CAP
        # The broker's timeout is shorter than ours, so that its error response, which is more specific than a
        # local timeout, arrives in time.
        self.settings.timeout_ms = <int32_t>min(request_timeout_ms - min(request_timeout_ms / 10, 1000), 1e9)
        self.max_in_flight_requests = options.max_in_flight_requests_per_connection
        self.max_request_size = options.max_request_size
        self.far_request_size = options.far_request_size
        self.request_timeout_ns = cyp_ms_ns(request_timeout_ms)
        self.delivery_timeout_ns = cyp_ms_ns(options.delivery_timeout_ms)
        self.receive_max = options.receive_message_max_bytes
        self.connections = []
        self.backing_off = []
        self.wake_read_fd, self.waker.fd = channel()
        selector.register(self.wake_read_fd, selectors.EVENT_READ)
        accumulator.wake_context = &self.waker
        accumulator.wake_function = wake_sender

    def __dealloc__(self):
        free(self.transports)
        free(self.drained)
        free(self.outcomes)
        pthread_mutex_destroy(&self.loop_lock)

    def wake(self):
        """Wakes up the loop if it waits for events. Any thread."""
        wake_sender(&self.waker)

    def request_control(self):
        """Makes the next step call the control plane, and wakes up the loop. Any thread."""
        cyp_store32(&self.attention, 1)
        wake_sender(&self.waker)

    # Running

    def run(self):
        """Runs steps until ``stop()``. An exception from a step is a bug: it is logged, and ends the loop."""
        run_until_stopped(self)

    def run_once(self, max_wait_ms=0.0):
        """Runs one step, which waits for events up to ``max_wait_ms`` milliseconds."""
        cdef int64_t wait = cyp_ms_ns(duration_of("max_wait_ms", max_wait_ms, "milliseconds"))
        with nogil:
            pthread_mutex_lock(&self.loop_lock)
            try:
                self.step(wait)
            finally:
                pthread_mutex_unlock(&self.loop_lock)

    def may_stand_by(self):
        """Whether the loop can be left to threads that wait for a record. Called only between two steps."""
        return may_stand_by(self)

    def stop(self):
        """Makes ``run()`` return after the current step. Any thread."""
        cyp_store32(&self.stopping, 1)
        self.wake()

    # The loop

    cdef int step(self, int64_t max_wait_ns) except -1 nogil:
        cdef Ready ready[MOST_READY]
        cdef int n
        cdef int i
        cdef Transport* transport
        cdef uint64_t drained_wakeups
        cdef int64_t until
        cdef int64_t now = self.clock.now_ns()
        if self.deferred:
            resume_deferred(self, now)
        if cyp_load32(&self.attention) or now >= self.next_control_ns:
            if self.driven:
                self.deferred = True
                return 0
            with gil:
                self.call_tick(now)
            now = self.clock.now_ns()
        if now >= self.next_expiry_ns:
            expire_batches(self, now)
            if self.deferred:
                return 0
        pthread_mutex_lock(&self.accumulator.c.lock)
        expire_linger(&self.accumulator.c, now)
        pthread_mutex_unlock(&self.accumulator.c.lock)
        i = 0
        while i < self.transport_count:
            transport = self.transports[i]
            if transport.state == READY:
                self.fill(transport, now)
            # If fill() closed this connection, the next one has moved to this index.
            if i < self.transport_count and self.transports[i] == transport:
                i += 1
        until = throttled_until(self.transports, self.transport_count, self.next_control_ns, now)
        until = min(until, cyp_after(now, max_wait_ns))
        n = self.poller.wait(self.sleep_until(until, now) - now, ready)
        cyp_store32(&self.accumulator.c.sleeping, AWAKE)
        now = self.clock.now_ns()
        for i in range(n):
            if ready[i].fd == self.wake_read_fd:
                cyp_change64(&self.wakeups, 1)
                # One read empties an eventfd; a pipe may hold several wake-ups.
                while c_read(self.wake_read_fd, &drained_wakeups, 8) > 0:
                    if self.wake_read_fd == self.waker.fd:
                        break
                continue
            transport = self.transport_of(ready[i].fd)
            if transport == NULL:
                continue
            if transport.state == CONNECTING and (transport.wants_write or transport.raw):
                if self.driven:
                    self.defer(transport)
                    continue
                with gil:
                    self.call_control(self.control.on_socket_ready, <Connection>transport.owner, (now / 1e6,))
                continue
            if ready[i].events & 2:
                self.write(transport, now)
                transport = self.transport_of(ready[i].fd)
            if ready[i].events & 1 and transport != NULL:
                read_responses(self, transport, now)
        return 0

    cdef Transport* transport_of(self, int fd) noexcept nogil:
        cdef int i
        for i in range(self.transport_count):
            if self.transports[i].fd == fd:
                return self.transports[i]
        return NULL

    cdef int64_t sleep_until(self, int64_t until, int64_t now) noexcept nogil:
        """Returns the time until which to wait for events, at most ``until``; ``now`` if there is work.

        One critical section checks for work and sets ``sleeping``: an append either happens before it and is
        seen here, or happens after it and sees ``sleeping``.
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
                    # Notify the control plane once while there is work. It connects, and backs off after
                    # failures.
                    n.takes = 0
                    cyp_store32(&self.attention, 1)
                    work = True
                elif n.takes:
                    work = True
                elif n.waiting_since_ns == 0:
                    n.waiting_since_ns = now
            n = n.next
        if a.parked_anew:
            # The new record's deadline may be the earliest of all.
            a.parked_anew = 0
            cyp_store32(&self.attention, 1)
            work = True
        if a.joining.first != NULL or (a.ending and a.incomplete == 0 and a.parked == 0 and a.on_wire == 0):
            # The control plane adds the partitions to the transaction, or ends the transaction.
            a.ending = 0
            cyp_store32(&self.attention, 1)
            work = True
        until = min(until, first_linger_end(a))
        self.next_expiry_ns = FAR_NS
        if self.delivery_timeout_ns < FAR_NS - now:
            # A batch that is created while the sender sleeps might not wake it up: one without a leader or
            # connection does not.
            self.next_expiry_ns = now + self.delivery_timeout_ns
            if a.oldest != NULL:
                self.next_expiry_ns = a.oldest.created_ns + self.delivery_timeout_ns
                if self.next_expiry_ns <= now and a.oldest.state == SEALING:
                    # The batch can't fail before it is compressed, and the end of the compression might not
                    # wake up the sender either.
                    self.next_expiry_ns = now + COMPRESSING_NS
        until = min(until, self.next_expiry_ns)
        if work:
            until = now
        else:
            a.sleeping_until_ns = until
            cyp_store32(&a.sleeping, ASLEEP)
        pthread_mutex_unlock(&a.lock)
        return until

    # Sending

    cdef bint make_room(self, int32_t wanted) noexcept nogil:
        """Makes room for ``wanted`` batches in a request, or for ``MOST_BATCHES``.

        Returns False without memory; then the room is what it was.
        """
        cdef Batch** drained
        cdef Outcome* outcomes
        cdef int32_t room = FIRST_BATCHES
        while room < min(wanted, MOST_BATCHES):
            room *= 2
        drained = <Batch**>realloc(self.drained, room * sizeof(Batch*))
        if drained == NULL:
            return False
        self.drained = drained
        outcomes = <Outcome*>realloc(self.outcomes, room * sizeof(Outcome))
        if outcomes == NULL:
            return False
        self.outcomes = outcomes
        self.room = room
        return True

    cdef int fill(self, Transport* transport, int64_t now) except -1 nogil:
        """Encodes and writes requests while there are ready batches and the connection accepts requests."""
        cdef Request* r
        cdef Batch* b
        cdef int32_t count
        cdef int32_t ready
        cdef int32_t i
        cdef bint answered
        cdef int fd = transport.fd
        cdef Node* node = transport.node
        cdef bint throttled = transport.held or transport.throttled_until_ns > now
        while (
            not throttled
            and transport.in_flight < self.max_in_flight_requests
            and transport.first_out == NULL
            and transport.unsent == 0
        ):
            cyp_lock_queued(&self.accumulator.c.lock, &self.accumulator.c.queued)
            ready = node.sendable.count + node.gathering.count
            if ready > self.room and self.room < MOST_BATCHES:
                # Without memory the request has fewer batches.
                self.make_room(ready)
            count = drain(
                &self.accumulator.c, node,
                self.far_request_size if is_far(node) else self.max_request_size,
                self.drained, self.room, now,
            )
            pthread_mutex_unlock(&self.accumulator.c.lock)
            if count == 0:
                break
            for i in range(count):
                if i + AHEAD < count:
                    prefetch_records(self.drained[i + AHEAD].data)
                b = self.drained[i]
                if b.state == SEALING:
                    self.accumulator.compress(b)
                    b.state = SEALED
                put_batch_header(
                    b.data, b.size, b.codec | self.attributes, b.count, b.base_timestamp, b.max_timestamp,
                    b.producer_id, b.producer_epoch, b.base_sequence,
                )
            r = encode_produce(
                &self.settings, min(transport.produce_version, self.highest_produce),
                transport_next_id(transport), self.drained, count,
            )
            if r == NULL:
                with gil:
                    for i in range(count):
                        batch_failed(
                            self, self.drained[i], 0, None, MemoryError("no memory for a request"), False
                        )
                self.request_done(transport, -1, 0, now)
                continue
            r.sent_ns = now
            answered = r.acks != 0
            transport_push(transport, r, answered)
            # The control plane closes connections with overdue requests: its next tick must not be later than
            # this request's timeout.
            self.tick_by(cyp_after(now, self.request_timeout_ns))
            # Read without the pool's lock, as it is only a hint.
            if cyp_peek64(&self.accumulator.pool.in_use) >= MOST_KEPT:
                # It gives memory back once this is over.
                self.tick_by(now + WINDOW_NS)
            cyp_change32(&transport.in_flight, answered)
            self.write(transport, now)
            if self.transport_of(fd) != transport:
                return 0
        pthread_mutex_lock(&self.accumulator.c.lock)
        node.takes = (
            not throttled
            and transport.in_flight < self.max_in_flight_requests
            and transport.first_out == NULL
            and transport.unsent == 0
        )
        report_traffic(&self.accumulator.c, transport, now)
        pthread_mutex_unlock(&self.accumulator.c.lock)
        return 0

    cdef int write(self, Transport* transport, int64_t now) except -1 nogil:
        """Writes as much as the socket accepts; if bytes are left, watches the socket for writability."""
        cdef int64_t rc = transport_flush(transport, now)
        cdef Request* r = transport_pop_written(transport)
        cdef int32_t i
        while r != NULL:
            # acks=0: there is no response, so the batches are complete once the kernel has the bytes.
            self.request_done(transport, -1, 0, now)
            for i in range(r.count):
                self.accumulator.complete(r.batches[i], -1, -1)
            free_request(r)
            r = transport_pop_written(transport)
        if rc == 0 or rc == IO_AGAIN:
            if transport.wants_write != (rc != 0):
                transport.wants_write = rc != 0
                self.poller.watch_write(transport.fd, transport.wants_write)
            return 0
        return self.connection_broken(transport, reason_of_failure(transport, rc))

    cdef int connection_broken(self, Transport* transport, int64_t failure) except -1 nogil:
        """Handles a read or write that ended the connection; ``failure``: an ``Io``."""
        if self.driven:
            # The first failure is the reason.
            if transport.failure == 0:
                transport.failure = failure
            self.defer(transport)
            return 0
        with gil:
            self.close_connection(<Connection>transport.owner, socket_error(transport, failure))
        return 0

    cdef void defer(self, Transport* transport) noexcept nogil:
        """On a thread in ``get()``: leaves work that needs the GIL or a decision to the sender thread.

        The control plane runs only on the sender thread: Ctrl-C on a main thread must not interrupt it
        halfway.
        """
        transport.deferred = True
        self.deferred = True

    cdef int request_done(
        self, Transport* transport, int64_t latency_ns, int64_t throttle_ms, int64_t now
    ) noexcept nogil:
        """Counts a request as finished; records that accumulated while it was in flight can be sent now.

        ``latency_ns`` is -1 if it got no response. Called before its batches are completed, so that a thread
        that waits for them finds the request in the metrics.
        """
        pthread_mutex_lock(&self.accumulator.c.lock)
        transport.node.answered += 1
        self.accumulator.c.meters.answered_ns = now
        if latency_ns >= 0:
            count_answer(&self.accumulator.c.meters, &transport.node.meter, latency_ns, throttle_ms)
            note_answer(transport.node, latency_ns, now)
        report_traffic(&self.accumulator.c, transport, now)
        pthread_mutex_unlock(&self.accumulator.c.lock)
        return 0

    # Calling the control plane

    cdef int call_tick(self, int64_t now) except -1:
        """Calls the control plane's tick, and releases the partitions whose backoff has elapsed."""
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
            log.exception("the control plane failed; retrying in 1 s")
            delay_ms = 1000.0
        cyp_note64(&self.next_control_ns, cyp_after(now, cyp_ms_ns(min(delay_ms, 3.6e6))))
        if self.backing_off:
            self.tick_by(<int64_t>self.backing_off[0][0])
        self.tick_by(next_parked_deadline(self.accumulator))
        return 0

    cdef void tick_by(self, int64_t when) noexcept nogil:
        """Makes the control plane's next tick due at ``when`` (ns) at the latest. With the loop lock held."""
        if when < self.next_control_ns:
            cyp_note64(&self.next_control_ns, when)

    cdef int call_control(self, object method, Connection connection, tuple arguments) except -1:
        """Calls the control plane about a connection. If the call raises, the connection is closed."""
        try:
            method(connection, *arguments)
        except Exception as error:
            log.exception("the control plane failed for %r; closing this connection", connection)
            self.close_connection(connection, KafkaConnectionError(
                f"{connection.where}: {type(error).__name__}: {error}"
            ))
        return 0

    def attach_control(self, control, fates):
        """Sets the objects that make the decisions. Must be called before the first step.

        ``control``: a ``NetworkClient``, for connections and metadata. ``fates``: a ``FatePolicy``, for
        batches that did not succeed.
        """
        self.control = control
        self.fates = fates

    # Connections

    def open_connection(self, sock, int32_t node_id, str where):
        """Registers a connecting, non-blocking socket; ``on_socket_ready`` is called when connecting ends."""
        # Until the handshake and the authentication are complete, only short responses are expected.
        cdef int64_t most = min(self.receive_max, <int64_t>MOST_BEFORE_READY)
        cdef Connection connection = make_connection(sock, node_id, where, most)
        cdef size_t room = sizeof(Transport*) * (self.transport_count + 1)
        cdef Transport** grown = <Transport**>realloc(self.transports, room)
        if grown == NULL:
            raise MemoryError("no memory for a connection")
        self.transports = grown
        self.poller.selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
        connection.transport.wants_write = True
        self.transports[self.transport_count] = connection.transport
        cyp_change32(&self.transport_count, 1)
        self.connections.append(connection)
        return connection

    def connected(self, Connection connection not None):
        """Marks the socket as connected: frames can be sent, but no Produce requests yet."""
        connection.transport.connected = True
        self.accumulator.add(CONNECTED, 1)
        self.watch_write(connection, False)

    def watch_write(self, Connection connection not None, bint on):
        """Sets whether ``on_socket_ready`` is called when the socket is writable."""
        connection.transport.wants_write = on
        self.poller.watch_write(connection.transport.fd, on)

    def set_raw(self, Connection connection not None, bint on):
        """Sets whether the control plane reads and writes the socket itself. If so, ``on_socket_ready`` is
        called when the socket is ready, and no frames are read."""
        connection.transport.raw = on

    def hold(self, Connection connection not None, bint on):
        """Sets whether Produce requests wait for now. Requests sent earlier still get their responses."""
        connection.transport.held = on
        if not on:
            self.request_control()

    def ready(self, Connection connection not None, int produce_version):
        """Marks the handshake as complete: the broker's batches are sent on this connection."""
        cdef Node* node = make_node(&self.accumulator.c, connection.node_id)
        connection.transport.produce_version = <int16_t>produce_version
        connection.transport.node = node
        connection.transport.receive_max = self.receive_max
        cyp_note32(&connection.transport.state, READY)
        pthread_mutex_lock(&self.accumulator.c.lock)
        node.transport = connection.transport
        node.takes = 1
        pthread_mutex_unlock(&self.accumulator.c.lock)

    def count_failed_authentication(self):
        """Counts a connection that ended because the client or the broker rejected the other."""
        self.accumulator.add(FAILED_AUTHENTICATIONS, 1)

    def flush_connection(self, Connection connection not None):
        """Writes the requests that ``Connection.send`` queued."""
        if connection.transport.state != BROKEN:
            self.write(connection.transport, self.clock.now_ns())

    cpdef object close_connection(self, Connection connection, object cause):
        """Closes the socket and fails the attempt of every request without a response.

        ``cause``: an exception; None if it is closed on purpose, with nothing in flight. Idempotent.
        """
        cdef Transport* transport = connection.transport
        cdef Request* r
        cdef int i
        if transport.state == BROKEN:
            return
        was_ready = transport.state == READY
        cyp_note32(&transport.state, BROKEN)
        i = self.connections.index(connection)
        del self.connections[i]
        for i in range(i, self.transport_count - 1):
            self.transports[i] = self.transports[i + 1]
        cyp_change32(&self.transport_count, -1)
        if transport.connected:
            self.accumulator.add(DISCONNECTED, 1)
        try:
            self.poller.selector.unregister(connection.sock)
        except (KeyError, ValueError, OSError):
            log.debug("socket of %r was not registered", connection)
        if connection.tls is not None:
            connection.end_tls()
        # No write can read the batches once the socket is closed.
        connection.sock.close()
        pthread_mutex_lock(&self.accumulator.c.lock)
        report_traffic(&self.accumulator.c, transport, self.clock.now_ns())
        if was_ready:
            if transport.node.transport == transport:
                transport.node.transport = NULL
                transport.node.takes = 1
            transport.node.answered = transport.node.sent
        pthread_mutex_unlock(&self.accumulator.c.lock)
        self.control.on_broken(connection, cause, self.clock.now_ns() / 1e6)
        reason = cause
        if reason is None:
            reason = KafkaConnectionError(f"{connection.where}: closed by this client")
        r = transport_pop_any(transport)
        while r != NULL:
            give_up_request(self, r, reason)
            r = transport_pop_any(transport)
        cyp_store32(&self.attention, 1)

    def close_overdue(self, double now_ms):
        """Closes connections whose oldest request has had no response for request_timeout_ms.

        Returns the milliseconds until the next request could time out.
        """
        cdef int64_t now = cyp_ms_ns(now_ms)
        cdef int64_t first = FAR_NS
        cdef Connection connection
        for connection in list(self.connections):
            r = connection.transport.first_awaiting
            if r == NULL:
                # With acks=0 there is no response to wait for: the write must finish in time.
                r = connection.transport.first_out
            if r == NULL and connection.transport.unsent:
                # Over TLS, a request counts as written once it is encrypted.
                r = connection.transport.first_written
            if r == NULL:
                continue
            if now - r.sent_ns >= self.request_timeout_ns:
                self.close_connection(connection, KafkaTimeoutError(
                    f"{connection.where} did not answer within request_timeout_ms="
                    f"{self.request_timeout_ns // 1_000_000}"
                ))
            else:
                first = min(first, cyp_after(r.sent_ns, self.request_timeout_ns))
        return (first - now) / 1e6

    def nodes_without_connection(self):
        """Returns the ids of the brokers with batches to send but without a connection."""
        cdef Node* n
        wanting = []
        pthread_mutex_lock(&self.accumulator.c.lock)
        n = self.accumulator.c.nodes
        while n != NULL:
            if n.transport == NULL and has_work(n):
                wanting.append(n.id)
            n = n.next
        pthread_mutex_unlock(&self.accumulator.c.lock)
        return wanting

    def apply_topic(self, str name, bytes topic_id, list leaders, in_rack=()):
        """Sets a topic's partitions: ``leaders[i]`` is the leader of partition i, -1 if it has none.

        ``in_rack``: the leaders that records without a key prefer, those in the client's rack (KIP-1123).
        """
        apply_topic(self.accumulator, self.accumulator.topic(name), topic_id, leaders, in_rack)

    def fail_beyond(self, str name, int count):
        """Fails the queued batches of a topic's partitions from ``count`` on, which no longer exist.

        Returns whether a batch could not be failed yet because a thread is compressing it.
        """
        cdef TopicInfo state = self.accumulator.topic(name)
        cdef Partition* p
        cdef Batch* b
        cdef bint sealing
        cdef int i
        busy = False
        for i in range(count, state.c.partition_room):
            p = state.c.partitions[i]
            while True:
                pthread_mutex_lock(&self.accumulator.c.lock)
                b = p.first
                if b != NULL and b.state == OPEN:
                    # Seals it, so that no append can fill it: the appending thread would start compressing.
                    stop_appends(&self.accumulator.c, p)
                    b.state = SEALED
                # Under the lock: there the compressing thread says that the batch is sealed. Who sees it must
                # see the compressed records, too.
                sealing = b != NULL and b.state == SEALING
                pthread_mutex_unlock(&self.accumulator.c.lock)
                if b == NULL:
                    break
                if sealing:
                    busy = True
                    break
                batch_removed(self, b)
        return busy

    def forget_topic(self, str name):
        """Forgets a topic whose metadata was dropped."""
        cdef TopicInfo state = self.accumulator.topics.get(name)
        if state is not None:
            forget_topic(self.accumulator, state)

    def topic_used_ms(self, str name):
        """Returns when a batch of the topic was last created, or one of its records parked; 0 if never."""
        cdef TopicInfo state = self.accumulator.topics.get(name)
        return 0.0 if state is None else state.c.last_used_ns / 1e6

    def fail_overdue(self, error_of, double now_ms):
        """Fails the parked records whose deadline is not after ``now_ms``, with ``error_of(topic)``.

        Returns (topic, records, error) for each topic with failed records.
        """
        return fail_overdue(self.accumulator, error_of, cyp_ms_ns(now_ms))

    def fail_parked(self, str name, error, double before_ms=INFINITY):
        """Fails the topic's parked records whose deadline is at or before ``before_ms``; returns how many."""
        cdef TopicInfo state = self.accumulator.topics.get(name)
        return 0 if state is None else fail_parked(self.accumulator, state, error, cyp_ms_ns(before_ms))

    def parked_topics(self):
        """Returns the names of the topics that have parked records."""
        return waiting_topics(self.accumulator)

    def refuse_all(self, error):
        """Fails every record, including later ones: the cluster accepts none from this producer.

        Returns how many batches remain because application threads are compressing them. If any do, it must
        be called again.
        """
        self.accumulator.refusal = error
        self.accumulator.close()
        return self.fail_waiting(error)

    def fail_waiting(self, error):
        """Fails every record accepted so far; later ones are still accepted.

        Returns how many batches remain because application threads are compressing them. If any do, it must
        be called again.
        """
        cdef Batch* b
        absent, unknown = told(error, False), told(error, True)
        for name in self.parked_topics():
            self.fail_parked(name, absent)
        while True:
            # The parked records and queued batches fail, those in flight are abandoned.
            b = self.accumulator.overdue(FAR_NS)
            if b == NULL:
                return cyp_peek64(&self.accumulator.c.incomplete)
            if b.in_request:
                self.accumulator.abandon(b, unknown)
            else:
                self.accumulator.fail(b, unknown if b.ambiguous else absent)

    def purge(self, bint queued, bint in_flight, error):
        """Fails the records that wait to be sent, or those in flight, or both, with copies of ``error``.

        Skips batches that an application thread is compressing at this moment. Returns whether there are any:
        then it must be called again.
        """
        cdef Batch* b
        cdef bint compressing = False
        if queued:
            for name in self.parked_topics():
                self.fail_parked(name, told(error, False))
        while True:
            b = self.accumulator.unfinished_batch(queued, in_flight, &compressing)
            if b == NULL:
                return compressing
            batch_purged(self, b, error)

    def abort(self, error):
        """Closes every connection and fails every incomplete batch, in flight or not.

        A batch that another thread is compressing fails once that thread has finished. Returns how many
        batches remain.
        """
        leave_uncompressed(&self.accumulator.c)
        for connection in list(self.connections):
            self.close_connection(connection, error)
        return self.fail_waiting(error)

    def release(self):
        """Closes the wake-up descriptors. Must be called after the loop has ended."""
        cdef int32_t written_to
        with nogil:
            stop_compressing(&self.accumulator.c)
        self.accumulator.wake_function = NULL
        try:
            self.poller.selector.unregister(self.wake_read_fd)
        except (KeyError, ValueError, OSError):
            log.debug("the selector was closed before the sender")
        with nogil:
            written_to = retire(&self.waker)
        descriptors = {self.wake_read_fd, written_to}
        self.wake_read_fd = -1
        for fd in descriptors:
            os.close(fd)

    def counters(self):
        """Returns the sender's own counters as a dict; ``metric_snapshot`` has all others. Thread-safe."""
        cdef Connection connection
        cdef const Tls* tls
        cdef int32_t encrypted = 0
        cdef int32_t slow = 0
        cdef int32_t in_flight = 0
        cdef int64_t received_room = 0
        # A copy, which also keeps the transports: the loop opens and closes connections meanwhile. Without a
        # GIL, a list that gets shorter between the looks at its length and at its last item: an IndexError.
        for connection in list(self.connections):
            tls = <const Tls*>cyp_load_pointer(&connection.transport.tls)
            encrypted += tls != NULL
            slow += tls != NULL and tls.library == NULL
            in_flight += cyp_peek32(&connection.transport.in_flight)
            received_room += cyp_peek64(&connection.transport.inbox_room)
        pthread_mutex_lock(&self.accumulator.c.lock)
        requests = self.accumulator.c.meters.all.total[PRODUCE_REQUESTS]
        pthread_mutex_unlock(&self.accumulator.c.lock)
        return {
            "requests": requests,
            "wakeups": cyp_peek64(&self.wakeups),
            "drives": cyp_load32(&self.drives),
            "left_alone": cyp_peek64(&self.left_alone),
            "connections": cyp_peek32(&self.transport_count),
            "tls_connections": encrypted,
            "tls_connections_slow": slow,
            "received_room": received_room,
            "in_flight": in_flight,
        }

    # Operations for the control plane

    cdef Partition* find_partition(self, str topic, int partition) except NULL:
        cdef TopicInfo state = self.accumulator.topic(topic)
        if not 0 <= partition < state.c.partition_room:
            raise IndexError(f"{topic}-{partition}: no such partition")
        return state.c.partitions[partition]

    def set_identity(self, int64_t producer_id, int epoch):
        """Sets the producer id and epoch of new batches. With -1, requests an id, for which they wait."""
        set_identity(&self.accumulator.c, producer_id, <int16_t>epoch)
        if producer_id < 0:
            self.request_control()

    # Transactions

    def begin_transaction(self):
        """Begins a transaction, to which the records belong from now on; ``send()`` accepts records again.

        ``take_joining`` returns their partitions.
        """
        cdef Accumulator* a = &self.accumulator.c
        self.accumulator.refusal = None
        self.accumulator.unplaced = None
        pthread_mutex_lock(&a.lock)
        a.transaction += 1
        a.adds_partitions = 1
        a.wrote = 0
        self.failed_before = a.meters.all.total[RECORDS_FAILED]
        cyp_note32(&a.refusing, a.closed)
        pthread_mutex_unlock(&a.lock)

    def open_transaction(self, bint adds_partitions, int highest_produce):
        """Allows the batches of the transaction to be sent.

        ``adds_partitions``: only to partitions that were added, see ``partitions_added``; otherwise to all.
        ``highest_produce``: the highest version of Produce requests.
        """
        cdef Accumulator* a = &self.accumulator.c
        self.highest_produce = <int16_t>highest_produce
        if adds_partitions:
            return
        pthread_mutex_lock(&a.lock)
        a.adds_partitions = 0
        refresh_all(a)
        pthread_mutex_unlock(&a.lock)

    def refuse_records(self, error not None):
        """Accepts no records from now on: ``send()`` raises copies of ``error``."""
        cdef Accumulator* a = &self.accumulator.c
        if not a.closed:
            self.accumulator.refusal = error
        pthread_mutex_lock(&a.lock)
        cyp_note32(&a.refusing, 1)
        # Threads in await_parking() stop waiting.
        broadcast(&a.progress)
        pthread_mutex_unlock(&a.lock)

    def set_hurry(self, bint on):
        """Sets whether batches are sent without lingering, as in a ``flush()``."""
        cdef Accumulator* a = &self.accumulator.c
        pthread_mutex_lock(&a.lock)
        a.flushing += 1 if on else -1
        if on:
            hurry(a)
        pthread_mutex_unlock(&a.lock)

    def take_joining(self):
        """Returns the partitions to add to the transaction, as (topic, partition); each one only once."""
        cdef Accumulator* a = &self.accumulator.c
        cdef Partition* p
        found = []
        while True:
            pthread_mutex_lock(&a.lock)
            p = a.joining.first
            if p != NULL:
                withdraw(a, p)
                p.joining = a.transaction
            pthread_mutex_unlock(&a.lock)
            if p == NULL:
                return found
            found.append((p.topic.name[:p.topic.name_size].decode(), p.index))

    def partitions_added(self, partitions):
        """Allows batches to these partitions, as (topic, partition), which the transaction now includes."""
        cdef Partition* p
        for topic, index in partitions:
            p = self.find_partition(topic, index)
            pthread_mutex_lock(&self.accumulator.c.lock)
            p.joined = self.accumulator.c.transaction
            refresh(&self.accumulator.c, p)
            pthread_mutex_unlock(&self.accumulator.c.lock)

    def is_drained(self):
        """Whether no record waits for its outcome and no Produce request for its response.

        If not, the control plane is called as soon as that is the case.
        """
        cdef Accumulator* a = &self.accumulator.c
        pthread_mutex_lock(&a.lock)
        drained = a.incomplete == 0 and a.parked == 0 and a.on_wire == 0
        a.ending = not drained
        pthread_mutex_unlock(&a.lock)
        return drained

    def has_written(self):
        """Whether a batch of the current transaction was put into a request."""
        return bool(self.accumulator.c.wrote)

    def has_lost(self):
        """Whether a record of the current transaction has failed."""
        return self.accumulator.c.meters.all.total[RECORDS_FAILED] > self.failed_before

    @property
    def unplaced(self):
        """The error of the current transaction's last record without a partition; None if there is none."""
        return self.accumulator.unplaced

    def written_offsets(self):
        """Returns (topic, partition) -> (first, last) offset of the current transaction's records.

        Any thread may call, once all records are acknowledged.
        """
        cdef Accumulator* a = &self.accumulator.c
        cdef bint written
        cdef TopicInfo state
        cdef Partition* p
        cdef int32_t i
        cdef int64_t first = -1
        cdef int64_t last = -1
        found = {}
        for name, state in list(self.accumulator.topics.items()):
            for i in range(state.c.partition_room):
                # The sender may be replacing the topic's array of partitions at this moment.
                pthread_mutex_lock(&a.lock)
                p = state.c.partitions[i]
                written = p.written_in == a.transaction and a.transaction > 0
                if written:
                    first = p.first_offset
                    last = p.last_offset
                pthread_mutex_unlock(&a.lock)
                if written:
                    found[name, i] = first, last
        return found

    def reopen_partitions(self):
        """Opens the gates of all partitions after an aborted transaction, when no batch is unsettled."""
        cdef Accumulator* a = &self.accumulator.c
        cdef Topic* t
        cdef int32_t i
        pthread_mutex_lock(&a.lock)
        t = a.topics
        while t != NULL:
            for i in range(t.partition_room):
                t.partitions[i].gate = GATE_OPEN
                forget_gap(t.partitions[i])
            t = t.next
        refresh_all(a)
        pthread_mutex_unlock(&a.lock)

    def set_next_sequence(self, str topic, int partition, int32_t sequence):
        """Sets a partition's next sequence, for tests; returns False while a batch is unsettled."""
        cdef Partition* p = self.find_partition(topic, partition)
        if p.unsettled_count:
            return False
        p.next_sequence = sequence
        return True
