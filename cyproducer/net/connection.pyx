"""The control plane's view of a connection: the socket, and sending requests other than Produce.

Owns the socket object and the ``Transport``, its C counterpart. Does not decide when a connection is opened
or closed. Used only with the loop lock held, except for reading its properties.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t

from cyproducer.base.sync cimport cyp_ms_ns, cyp_peek32, cyp_peek64
from cyproducer.net.transport cimport (
    READY,
    transport_free,
    transport_new,
    transport_next_id,
    transport_push,
    transport_throttle,
)
from cyproducer.wire.produce_codec cimport Request, whole_request
from cyproducer.net.tls_transport cimport TlsSession, attach_tls


cdef class Connection:
    """One socket to a broker, or to a bootstrap address (then ``node_id`` is negative)."""

    def __dealloc__(self):
        if self.transport != NULL:
            transport_free(self.transport)

    def next_correlation_id(self):
        """Returns the correlation id for the next request."""
        return transport_next_id(self.transport)

    def send(self, int16_t api_key, int16_t version, int32_t correlation_id, bytes frame, int64_t now_ns):
        """Queues a whole frame, size prefix included; the control plane gets the response as a frame."""
        cdef Request* r = whole_request(
            api_key, version, correlation_id,
            <const uint8_t*>PyBytes_AS_STRING(frame), PyBytes_GET_SIZE(frame),
        )
        if r == NULL:
            raise MemoryError(f"no memory for a request of {len(frame)} bytes")
        r.sent_ns = now_ns
        transport_push(self.transport, r, True)

    def throttle(self, int32_t throttle_ms, double now_ms):
        """Stops sending requests to the broker for this long; never shortens an earlier throttle time."""
        transport_throttle(self.transport, throttle_ms, cyp_ms_ns(now_ms))

    def throttled_ms(self, double now_ms):
        """Returns the remaining throttle time in milliseconds; 0 if this client is not throttled."""
        return max(0.0, cyp_peek64(&self.transport.throttled_until_ns) / 1e6 - now_ms)

    def use_tls(self, TlsSession session not None):
        """Sends and receives through an established TLS session from now on."""
        attach_tls(self.transport, session)
        self.tls = session

    def end_tls(self):
        """Sends close_notify, if the socket accepts it, and frees the session's objects.

        The connection sends and receives nothing afterwards.
        """
        from cyproducer.net.tls_handshake import end_session

        end_session(self.tls, self.sock if self.transport.unsent == 0 else None)

    @property
    def connected(self):
        """Whether the socket is connected: the handshake has begun."""
        return bool(self.transport.connected)

    @property
    def ready(self):
        """Whether Produce requests can be sent on this connection: the handshake is complete."""
        return cyp_peek32(&self.transport.state) == READY

    @property
    def held(self):
        """Whether the connection is re-authenticating, and carries no other requests."""
        return bool(self.transport.held)

    @property
    def in_flight(self):
        """The number of Produce requests without a response."""
        return self.transport.in_flight

    @property
    def unsent(self):
        """The number of encrypted bytes that the socket has not accepted yet; 0 without TLS."""
        return self.transport.unsent

    @property
    def last_used_ns(self):
        """When bytes were last sent or received (ns), not counting authentication; 0 if never."""
        return self.transport.last_used_ns

    def __repr__(self):
        return f"<Connection to node {self.node_id} at {self.where}>"


cdef Connection make_connection(object sock, int32_t node_id, str where, int64_t receive_max):
    """Creates a connection over a non-blocking socket."""
    cdef Connection connection = Connection.__new__(Connection)
    connection.sock = sock
    connection.node_id = node_id
    connection.where = where
    connection.pending = {}
    connection.transport = transport_new(sock.fileno(), node_id, receive_max)
    if connection.transport == NULL:
        raise MemoryError("no memory for a connection")
    connection.transport.owner = <void*>connection
    return connection
