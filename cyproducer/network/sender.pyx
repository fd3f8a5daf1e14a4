"""What the control plane does to the send loop: connections, topics, expiry, the end.

Owns: opening and closing connections (and handing their requests back), telling the accumulator what metadata
said, and failing everything at the end. Does not own: the loop's step (``send_loop``), nor any decision.

Everything here runs in the sender's turn, with the GIL: called by ``NetworkClient`` from inside a step, or by
``close()`` after the loop has ended.
"""

import os
import selectors

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t
from libc.math cimport INFINITY
from libc.stdlib cimport realloc

from cyproducer.accumulator.parked_records cimport (
    apply_topic,
    fail_overdue,
    fail_parked,
    forget_topic,
    waiting_topics,
)
from cyproducer.base.meters cimport CONNECTED, DISCONNECTED, PRODUCE_REQUESTS, Meters, meters_turn
from cyproducer.accumulator.ready_partitions cimport has_work
from cyproducer.accumulator.structures cimport GATE_OPEN, OPEN, SEALED, SEALING, Batch, Node, Partition
from cyproducer.base.sync cimport (
    FAR_NS,
    cyp_after,
    cyp_ms_ns,
    cyp_store32,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)
from cyproducer.accumulator.topology cimport TopicInfo, make_node
from cyproducer.network.connection cimport Connection, make_connection
from cyproducer.network.transport cimport (
    BROKEN,
    READY,
    Transport,
    transport_pop_awaiting,
    transport_pop_unwritten,
    transport_pop_written,
    report_traffic,
)
from cyproducer.network.batch_errors cimport topic_name
from cyproducer.network.produce_codec cimport Endpoints, Outcome, Request, names_leader
from cyproducer.network.send_loop cimport retire
from cyproducer.network.loop_ownership cimport Turns

from cyproducer.errors import KafkaConnectionError, KafkaTimeoutError, told
from cyproducer.user_thread import Log

log = Log("cyproducer")


cdef class Sender(Turns):
    """The loop over one selector, with everything that is not its happy path. See ``SendLoop``."""

    def attach_control(self, control):
        """Names who decides; once, before the first step."""
        self.control = control

    def open_connection(self, sock, int32_t node_id, str where):
        """Watches a connecting, non-blocking socket; ``on_socket_ready`` tells when it has an outcome."""
        cdef Connection connection = make_connection(sock, node_id, where, self.receive_max)
        cdef Transport** grown = <Transport**>realloc(self.transports, sizeof(Transport*) * (self.transport_count + 1))
        if grown == NULL:
            raise MemoryError("no memory for a connection")
        self.transports = grown
        self.poller.selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
        connection.transport.wants_write = True
        self.transports[self.transport_count] = connection.transport
        self.transport_count += 1
        self.connections.append(connection)
        return connection

    def connected(self, Connection connection not None):
        """The socket is connected: frames may go. It takes no Produce requests yet."""
        connection.transport.wants_write = False
        connection.transport.connected = True
        self._count_connection(CONNECTED)
        self.poller.watch_write(connection.transport.fd, False)

    def ready(self, Connection connection not None, int produce_version):
        """The handshake is over: batches for the broker go out on this connection."""
        cdef Node* node = make_node(&self.accumulator.c, connection.node_id)
        connection.transport.produce_version = <int16_t>produce_version
        connection.transport.node = node
        connection.transport.state = READY
        pthread_mutex_lock(&self.accumulator.c.lock)
        node.transport = connection.transport
        node.takes = 1
        pthread_mutex_unlock(&self.accumulator.c.lock)

    cdef int _count_connection(self, int which) except -1:
        """A connection was made or has ended."""
        cdef Meters* meters = &self.accumulator.c.meters
        pthread_mutex_lock(&self.accumulator.c.lock)
        meters_turn(meters, self.clock.now_ns())
        meters.all.total[which] += 1
        pthread_mutex_unlock(&self.accumulator.c.lock)
        return 0

    def flush_connection(self, Connection connection not None):
        """Writes what ``Connection.send`` queued."""
        if connection.transport.state != BROKEN:
            self._write(connection.transport, self.clock.now_ns())

    cpdef object close_connection(self, Connection connection, object cause):
        """Closes the socket and hands every unanswered request back; ``cause``: an exception, or None.

        None where it is closed on purpose, with nothing in flight. Idempotent.
        """
        cdef Transport* transport = connection.transport
        cdef Request* r
        cdef int i
        if transport.state == BROKEN:
            return
        was_ready = transport.state == READY
        transport.state = BROKEN
        i = self.connections.index(connection)
        del self.connections[i]
        for i in range(i, self.transport_count - 1):
            self.transports[i] = self.transports[i + 1]
        self.transport_count -= 1
        if transport.connected:
            self._count_connection(DISCONNECTED)
        try:
            self.poller.selector.unregister(connection.sock)
        except (KeyError, ValueError, OSError):
            log.debug("socket of %r was not registered", connection)
        # Only now, with the socket gone, can no write read the batches any more.
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
        r = transport_pop_unwritten(transport)
        while r != NULL:
            self._give_up(r, reason)
            r = transport_pop_unwritten(transport)
        r = transport_pop_written(transport)
        while r != NULL:
            self._give_up(r, reason)
            r = transport_pop_written(transport)
        r = transport_pop_awaiting(transport)
        while r != NULL:
            self._give_up(r, reason)
            r = transport_pop_awaiting(transport)
        cyp_store32(&self.attention, 1)

    cdef int _learn_leaders(self, Transport* transport, Request* r, const Endpoints* endpoints) except -1:
        """Tells the control plane of all leaders that a response names, before its batches come back."""
        cdef int32_t i
        cdef Outcome* o
        cdef Partition* p
        leaders = []
        for i in range(r.count):
            o = &self.outcomes[i]
            if names_leader(o):
                p = r.batches[i].partition
                leaders.append((topic_name(p), p.index, o.leader_id, o.leader_epoch))
        where = None
        if endpoints.data != NULL:
            where = PyBytes_FromStringAndSize(<const char*>endpoints.data, endpoints.size)
        try:
            self.control.on_leaders(<Connection>transport.owner, leaders, where)
        except Exception:
            log.exception("taking leaders from a response failed")
        return 0

    def close_overdue(self, double now_ms):
        """Closes connections whose oldest request has had no answer for request_timeout_ms.

        Returns the milliseconds until the next could be due.
        """
        cdef int64_t now = cyp_ms_ns(now_ms)
        cdef int64_t first = FAR_NS
        cdef Connection connection
        for connection in list(self.connections):
            r = connection.transport.first_awaiting
            if r == NULL:
                # acks=0 awaits nothing: there it is the write that must end.
                r = connection.transport.first_out
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
        """The ids of brokers that have batches to send and no connection that takes them."""
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

    def apply_topic(self, str name, bytes topic_id, list leaders):
        """A topic's partitions: ``leaders[i]`` is the broker of partition i, -1 without one."""
        apply_topic(self.accumulator, self.accumulator.topic(name), topic_id, leaders)

    def fail_beyond(self, str name, int count):
        """Fails what is queued for a topic's partitions from ``count`` on: they are no more.

        Returns whether a batch could not be failed yet, since a thread is compressing it.
        """
        cdef TopicInfo state = self.accumulator.topic(name)
        cdef Partition* p
        cdef Batch* b
        cdef int i
        busy = False
        for i in range(count, state.c.partition_room):
            p = state.c.partitions[i]
            while True:
                pthread_mutex_lock(&self.accumulator.c.lock)
                b = p.first
                if b != NULL and b.state == OPEN:
                    # No append may fill it any more and hand it to its thread.
                    b.state = SEALED
                pthread_mutex_unlock(&self.accumulator.c.lock)
                if b == NULL:
                    break
                if b.state == SEALING:
                    busy = True
                    break
                self.accumulator.fail(b, self.control.on_batch_gone(self._facts(b)))
                if p.gate != GATE_OPEN:
                    self._progress(p, -1)
        return busy

    def forget_topic(self, str name):
        """The topic's metadata was dropped."""
        cdef TopicInfo state = self.accumulator.topics.get(name)
        if state is not None:
            forget_topic(self.accumulator, state)

    def topic_used_ms(self, str name):
        """When a batch of the topic was last begun, or a record of it parked; 0: never."""
        cdef TopicInfo state = self.accumulator.topics.get(name)
        return 0.0 if state is None else state.c.last_used_ns / 1e6

    def fail_overdue(self, error_of, double now_ms):
        """Fails the records that have waited for metadata until ``now_ms``, with ``error_of(topic)``.

        Returns (topic, records, error) for each topic that lost some.
        """
        return fail_overdue(self.accumulator, error_of, cyp_ms_ns(now_ms))

    def fail_parked(self, str name, error, double before_ms=INFINITY):
        """Fails the topic's records that wait for metadata and whose time is up; returns how many."""
        cdef TopicInfo state = self.accumulator.topics.get(name)
        return 0 if state is None else fail_parked(self.accumulator, state, error, cyp_ms_ns(before_ms))

    def parked_topics(self):
        """The names of the topics that records wait for."""
        return waiting_topics(self.accumulator)

    def refuse_all(self, error):
        """Fails every record, those to come too: the cluster will take none from this producer.

        Returns how many batches are left, which application threads compress right now: call it again.
        """
        self.accumulator.refusal = error
        self.accumulator.close()
        self._fail_rest(error)
        return self.accumulator.c.incomplete

    cdef int _fail_rest(self, object error) except -1:
        """Fails what waits, for metadata or in a queue, and gives up on what is on the wire."""
        cdef Batch* b
        absent, unknown = told(error, False), told(error, True)
        for name in self.parked_topics():
            self.fail_parked(name, absent)
        while True:
            b = self.accumulator.overdue(FAR_NS)
            if b == NULL:
                return 0
            if b.in_request:
                self.accumulator.abandon(b, unknown)
            else:
                self.accumulator.fail(b, unknown if b.ambiguous else absent)

    def abort(self, error):
        """Fails everything that is not complete, in flight or not, and closes every connection.

        A batch that an application thread compresses right now is failed once that thread is done with it.
        """
        for connection in list(self.connections):
            self.close_connection(connection, error)
        self._fail_rest(error)
        return self.accumulator.c.incomplete

    def release(self):
        """Closes the wake-up descriptor; the loop has ended and no step will follow."""
        cdef int32_t written_to
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
        """What the sender does, as a dict of totals since the start; ``metric_snapshot`` has all else there is."""
        return {
            "requests": self.accumulator.c.meters.all.total[PRODUCE_REQUESTS],
            "wakeups": self.wakeups,
            "drives": self.drives,
            "left_alone": self.left_alone,
            "connections": self.transport_count,
            "received_room": sum([(<Connection>c).transport.inbox_room for c in self.connections]),
            "in_flight": sum([(<Connection>c).transport.in_flight for c in self.connections]),
        }
