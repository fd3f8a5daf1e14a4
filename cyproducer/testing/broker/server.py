"""The sockets of an embedded cluster: nodes, connections, and the dispatch of requests to handlers.

Owns listening, framing, the order of a connection's requests, versions, and sending responses. Does not own
the meaning of a request (``cluster.HANDLERS``) or any state of the cluster (``cluster``). Everything runs on
the thread of one ``Loop``.

As in Kafka, a connection handles one request at a time: the next request is handled once the response to the
current one is written. A request that waits (Fetch, JoinGroup) blocks the requests behind it.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from cyproducer.base.clock import monotonic_ns, unix_ms
from cyproducer.errors import KafkaProtocolError
from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker.fetch_sessions import Sessions
from cyproducer.testing.broker.loop import Listener, Loop, Protocol, Transport
from cyproducer.testing.broker.world import NS_PER_MS, World
from cyproducer.wire.messages import API_VERSIONS
from cyproducer.wire.requests import RequestHeader, decode_request, read_header
from cyproducer.wire.schema import Api

if TYPE_CHECKING:
    import ssl

    from cyproducer.testing.broker.cluster import EmbeddedCluster

log = logging.getLogger("cyproducer.testing")

HOST: Final = "127.0.0.1"
LARGEST_FRAME: Final = 100 << 20
"""``socket.request.max.bytes``"""

LATER: Final = object()
"""The return value of a handler that calls ``Call.answer()`` itself, now or later."""


class LoopWorld(World):
    """Real time, which a test can advance, and events on a loop."""

    def __init__(self, loop: Loop) -> None:
        self._offset_ns = unix_ms() * NS_PER_MS - monotonic_ns()
        super().__init__(monotonic_ns(), self._real_ns())
        self._loop = loop
        #: When the loop runs the events; None: there is no alarm.
        self._alarm_ns: int | None = None

    def _real_ns(self) -> int:
        return monotonic_ns() + self._offset_ns

    def touch(self) -> None:
        """Sets ``now_ns`` to the real time. Must be called first in each iteration of the loop."""
        self.now_ns = max(self.now_ns, self._real_ns())

    def advance(self, delay_ms: float) -> None:
        """Moves time forward, and runs the events that are due."""
        self._offset_ns += int(delay_ms * NS_PER_MS)
        self._run()

    def at(self, when_ns: int, act: Callable[..., object], *args: Any) -> int:
        when_ns = super().at(when_ns, act, *args)
        self._schedule()
        return when_ns

    def _schedule(self) -> None:
        due_ns = self.next_ns
        if due_ns is None or (self._alarm_ns is not None and self._alarm_ns <= due_ns):
            return
        self._alarm_ns = due_ns
        self._loop.set_alarm((due_ns - self._real_ns()) / 1e9, self._run)

    def _run(self) -> None:
        self._clear_alarm()
        self.touch()
        try:
            self.run_due()
        finally:
            # Other events must run even if this one raises.
            self._schedule()

    def close(self) -> None:
        """Cancels all events."""
        self.over = True
        self._events.clear()
        self._clear_alarm()

    def _clear_alarm(self) -> None:
        self._alarm_ns = None
        self._loop.clear_alarm()


class Call:
    """A request, its connection, and the methods that respond to it."""

    __slots__ = ("api", "connection", "header", "is_over", "node", "request", "seen")

    def __init__(self, connection: "Connection", api: Api, header: RequestHeader, request: Any) -> None:
        self.connection = connection
        self.node = connection.node
        self.api = api
        self.header = header
        self.request = request
        self.is_over = False
        #: The fault rules that have applied to this request; see ``faults``.
        self.seen: dict[Any, int] = {}

    @property
    def version(self) -> int:
        return self.header.version

    @property
    def cluster(self) -> "EmbeddedCluster":
        return self.node.cluster

    @property
    def world(self) -> LoopWorld:
        return self.node.cluster.world

    @property
    def principal(self) -> str:
        """The principal that sent the request, such as "User:alice"."""
        return self.connection.principal or "User:ANONYMOUS"

    def fault(self, topic: str | None = None, partition: int | None = None) -> int:
        """Returns the error code that the test has requested; 0 if there is none."""
        return self.cluster.faults.code(self, topic, partition)

    def allowed(self, operation: str, kind: str, name: str) -> bool:
        """Whether the principal is allowed to do this. ``kind`` is "topic", "group", "transactional_id" or
        "cluster"."""
        return self.cluster.access.allows(self.principal, operation, kind, name)

    def answer(self, response: Any) -> None:
        """Sends the response; None: the request ends without one. Only the first call has an effect."""
        if not self.is_over:
            self.is_over = True
            self.connection.respond(self, response)

    def hang_up(self) -> None:
        """Closes the connection at once, without a response."""
        self.is_over = True
        self.connection.cut()


Handler = Callable[[Call], Any]
"""Returns the response, or ``LATER``."""


class Connection(Protocol):
    """A node's end of one connection."""

    def __init__(self, node: "Node") -> None:
        self.node = node
        #: None until the connection is authenticated, if authentication is required.
        self.principal = node.cluster.access.anonymous
        #: The state of an authentication: owned by ``access`` and ``authentication``.
        self.session: Any = None
        self.is_gone = False
        #: The connection is closed after the next response.
        self.is_last = False
        self._transport: Transport | None = None
        self._inbox = bytearray()
        self._queue: deque[bytes] = deque()
        self._busy = False

    @property
    def transport(self) -> Transport:
        assert self._transport is not None
        return self._transport

    def connection_made(self, transport: Transport) -> None:
        self._transport = transport
        self.node.connections.add(self)
        self.node.cluster.access.connected(self)

    def connection_lost(self) -> None:
        self.is_gone = True
        self._queue.clear()
        self.node.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        inbox = self._inbox
        inbox += data
        start = 0
        while len(inbox) - start >= 4:
            size = int.from_bytes(inbox[start : start + 4], "big", signed=True)
            if not 0 <= size <= LARGEST_FRAME:
                log.warning("node %d closes a connection: a frame of %d bytes", self.node.id, size)
                self.cut()
                return
            if len(inbox) - start - 4 < size:
                break
            self._queue.append(bytes(memoryview(inbox)[start + 4 : start + 4 + size]))
            start += 4 + size
        if start:
            del inbox[:start]
        self._go_on()

    def _go_on(self) -> None:
        world = self.node.cluster.world
        world.touch()
        while self._queue and not self._busy and not self.is_gone:
            self._busy = True
            self._handle(self._queue.popleft())

    def _handle(self, frame: bytes) -> None:
        cluster = self.node.cluster
        try:
            header = read_header(frame)
            api = cluster.apis.get(header.api_key)
            lowest, highest = cluster.versions.get(header.api_key, (0, -1))
            if api is None or not lowest <= header.version <= highest:
                self._refuse_version(header)
                return
            # librdkafka sends Metadata requests with trailing bytes.
            _, request = decode_request(api, frame, whole=False)
        except KafkaProtocolError as error:
            log.warning("node %d closes a connection: %s", self.node.id, error)
            self.cut()
            return
        call = Call(self, api, header, request)
        if not cluster.access.admits(call):
            self.cut()
            return
        if cluster.faults.cuts(call, before=True):
            self.cut()
            return
        try:
            response = cluster.handlers[api](call)
            if response is not LATER:
                call.answer(response)
        except Exception:
            log.exception("node %d: %s v%d failed", self.node.id, api.name, header.version)
            self.cut()

    def _refuse_version(self, header: RequestHeader) -> None:
        # A client must be able to learn the versions of a broker that is older than the client (KIP-511).
        if header.api_key == API_VERSIONS.key:
            response = self.node.cluster.api_versions(ErrorCode.UNSUPPORTED_VERSION)
            self._send(API_VERSIONS.encode_response(0, header.correlation_id, response))
            return
        log.warning("node %d closes a connection: %s is not supported", self.node.id, header)
        self.cut()

    def respond(self, call: Call, response: Any) -> None:
        """Sends a response, after the node's delay. None: there is no response."""
        cluster = self.node.cluster
        if self.is_gone:
            return
        if cluster.faults.cuts(call, before=False):
            self.cut()
            return
        if response is None:
            self._finish(0)
            return
        throttle_ms = cluster.faults.throttle_ms(call)
        if throttle_ms and "throttle_time_ms" in response._fields:
            response = response._replace(throttle_time_ms=throttle_ms)
        cluster.note(call, response)
        try:
            frame = call.api.encode_response(call.version, call.header.correlation_id, response)
        except (TypeError, ValueError):
            # Often, the request of another connection leads to this response, and must not fail.
            log.exception("node %d: a response to %s v%d", self.node.id, call.api.name, call.version)
            self.cut()
            return
        if self.node.delay_ms:
            cluster.world.after(self.node.delay_ms, self._send, frame, throttle_ms)
        else:
            self._send(frame, throttle_ms)

    def _send(self, frame: bytes, throttle_ms: int = 0) -> None:
        if not self.is_gone:
            self.transport.write(frame)
            if self.is_last:
                self.is_gone = True
                self.transport.close()
                return
            self._finish(throttle_ms)

    def _finish(self, throttle_ms: int) -> None:
        """Allows the next request to be handled; for a throttled client, after ``throttle_ms`` (KIP-219)."""
        if throttle_ms:
            self.node.cluster.world.after(throttle_ms, self._finish, 0)
            return
        self._busy = False
        if self._queue:
            # Do not call it directly: the calls of many requests would nest.
            self.node.cluster.loop.call_soon(self._go_on)

    def cut(self) -> None:
        """Closes the connection without sending buffered data."""
        self.is_gone = True
        self._queue.clear()
        if self._transport is not None:
            self._transport.abort()


class Node:
    """One broker of the cluster."""

    def __init__(
        self, cluster: "EmbeddedCluster", node_id: int, port: int = 0, rack: str | None = None
    ) -> None:
        self.cluster = cluster
        self.id = node_id
        self.rack = rack
        self.host = HOST
        self.port = port
        self.is_up = False
        #: A model's broker can be paused; this one never is.
        self.paused_until_ns = 0
        self.delay_ms = 0.0
        self.connections: set[Connection] = set()
        self.fetch_sessions = Sessions()
        self._listener: Listener | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def start(self, tls: "ssl.SSLContext | None") -> None:
        """Listens, on the same port as before if there was one. Raises ``OSError`` if it is taken."""
        self._listener = self.cluster.loop.listen(lambda: self._connection(tls), self.host, self.port)
        self.port = self._listener.port
        self.is_up = True

    def _connection(self, tls: "ssl.SSLContext | None") -> Protocol:
        if tls is None:
            return Connection(self)
        from cyproducer.testing.broker.tls import TlsConnection

        return TlsConnection(tls, Connection(self))

    def stop(self) -> None:
        """Closes all connections, and refuses new ones."""
        self.is_up = False
        self.fetch_sessions.clear()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in list(self.connections):
            connection.cut()
