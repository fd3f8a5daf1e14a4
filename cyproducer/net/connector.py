"""Opens and closes connections to brokers: name resolution, connecting, the handshake, idle connections.

Carries out the decisions of ``control.node_states`` on the sockets that it opens, and performs the
ApiVersions handshake. Does not decide which broker is needed (``network_client``), and does not read or write
(``sender``).

Runs with the loop lock held; ``diagnosis`` and ``any_ready`` may be called from any thread.
"""

from __future__ import annotations

import errno
import math
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cyproducer import errors
from cyproducer.base.clock import Clock
from cyproducer.base.log import Log
from cyproducer.base.unpatched import Socket
from cyproducer.config import ProducerConfig
from cyproducer.config.option_kinds import split_server
from cyproducer.control.node_states import Address, Connections, ConnectionState, cause_text
from cyproducer.errors.error_code import ErrorCode
from cyproducer.net.blocking_tasks import Background, Task
from cyproducer.net.connection import Connection
from cyproducer.net.dns import Resolver, ResolveRequest
from cyproducer.net.handshake_stage import Stage, Waiting
from cyproducer.net.loop import Loop
from cyproducer.net.pending_requests import OnBroken, OnResponse, PendingRequest
from cyproducer.version import VERSION
from cyproducer.wire import protocol
from cyproducer.wire.messages import API_VERSIONS, METADATA, PRODUCE, SASL_AUTHENTICATE, SASL_HANDSHAKE
from cyproducer.wire.responses import ApiVersionsResponse
from cyproducer.wire.schema import Api
from cyproducer.wire.versions import fallback_for, is_too_old, lacking, negotiate

if TYPE_CHECKING:
    from cyproducer.config.option_kinds import Hidden
    from cyproducer.config.proxy import Proxy
    from cyproducer.net.authentication import Authentication
    from cyproducer.security.sasl import Conversation
    from cyproducer.security.tls_context import TlsContext
    from cyproducer.security.tokens import Token, Tokens
    from cyproducer.wire.sasl_api import SaslAuthenticateResponse, SaslHandshakeResponse


#: Connections opened within this time after a reload began wait for the reloaded certificates; later ones use
#: the certificates loaded before.
PATIENCE_WITH_RELOAD_MS = 5000.0
#: The longest delay before fetching credentials again after a failure, while the old session or token is
#: still valid.
RETRY_CREDENTIALS_MS = 1000.0
#: Errors after which retrying soon would not help, and might lock the account.
AUTHENTICATION_ERRORS = (
    errors.SaslAuthenticationFailedError,
    errors.UnsupportedSaslMechanismError,
    errors.IllegalSaslStateError,
)
#: The name of this client in the handshake (KIP-511).
SOFTWARE_NAME = "cyproducer"


class Handshake:
    """The state of a connection's handshake."""

    __slots__ = ("address", "authentication", "offered", "stage", "stages", "versions")

    def __init__(self, address: Address) -> None:
        self.address = address
        #: None without SASL, and before the authentication begins.
        self.authentication: Authentication | None = None
        #: The stages before Kafka's protocol: those left, and the current one, which is None once Kafka's
        #: protocol has begun.
        self.stages: Iterator[Stage] = iter(())
        self.stage: Stage | None = None
        #: API -> the version to use. After the handshake, APIs that the broker does not support are missing;
        #: so is ApiVersions if the broker's versions are assumed.
        self.versions = {API_VERSIONS: FIRST_VERSION}
        #: The highest version of ApiVersions that the broker offers; 0: unknown.
        self.offered = 0


FIRST_VERSION = 4
"""The version of a connection's first ApiVersions request: brokers before 4.4 would refuse the next one."""
WITH_IDENTITY = 5
"""The version of ApiVersions that says which broker this client expects (KIP-1242)."""

LARGE = 100_000
"""The size in bytes from which a metadata response is decoded on another thread: 2,000 partitions, 4 ms."""


class Connector:
    """All connections of one producer. Brokers have their node ids; bootstrap addresses have negative ids."""

    def __init__(
        self,
        config: ProducerConfig,
        loop: Loop,
        clock: Clock,
        rng: Callable[[], float],
        on_failure: Callable[[BaseException, float], None],
        *,
        on_features: Callable[[ApiVersionsResponse, float], object] = lambda response, now_ms: None,
        on_authenticated: Callable[[], object] = lambda: None,
        cluster_id: Callable[[], str | None] = lambda: None,
        open_socket: Callable[[Address], socket.socket] | None = None,
        resolver: Resolver | None = None,
        background: Background | None = None,
    ) -> None:
        """
        Args:
            config: the producer's options.
            loop: reads and writes the connections.
            clock: the loop's clock.
            rng: returns a float in [0, 1), for jitter and the choice among brokers.
            on_failure: called for each failure, with the error and the time in milliseconds.
            on_features: called with each broker's ApiVersions response, and the time in milliseconds.
            on_authenticated: called when a broker has accepted this client's credentials.
            cluster_id: returns the id of the cluster whose brokers this client expects; None: not checked.
            open_socket: creates a non-blocking, connecting socket; for tests and simulators.
            resolver: for tests and simulators.
            background: for simulators.
        """
        self._config = config
        self._log = Log("cyproducer", config.client_id)
        #: Runs calls that may block on separate threads, until ``close()``.
        self.background = background or Background(loop.request_control)
        # Rarely needed modules are imported here, not on the sender's thread: after a fork during an import,
        # no thread of the child would finish importing the module.
        #: None: connections go to the brokers directly.
        self._proxy: Proxy | None = None
        if config.proxy is not None:
            from cyproducer.config.proxy import parse_proxy
            from cyproducer.net import proxy

            self._proxy_stage = proxy.ProxyStage
            self._proxy = parse_proxy(config.proxy)
        self._cluster_id = cluster_id
        # Responses that are being decoded on other threads.
        self._decoding: list[tuple[Task[Any], Connection, PendingRequest]] = []
        # Node id -> the pending call of ``broker_address``, and node id -> the address to connect to.
        self._mappings: dict[int, Task[tuple[str, int]]] = {}
        self._targets: dict[int, tuple[str, int]] = {}
        #: None: connections are not encrypted.
        self._tls: TlsContext | None = None
        self._reload: Task[None] | None = None
        self._reload_began_ms = 0.0
        self._told_slow = False
        self._warned_too_old = False
        #: Creates the conversation of a SASL mechanism with a host; None without SASL.
        self._converse: Callable[[str], Conversation] | None = None
        #: None for mechanisms without tokens.
        self._tokens: Tokens | None = None
        self._fetch: Task[Token] | None = None
        self._fetch_from_ms = -math.inf
        if config.security_protocol.startswith("SASL"):
            from cyproducer.net import authentication
            from cyproducer.security import sasl

            self._make_authentication = authentication.Authentication
            credentials = sasl.SharedCredentials(config, clock, rng)
            self._tokens = credentials.tokens
            self._converse = partial(sasl.converse, config, credentials)
        if config.security_protocol in ("SSL", "SASL_SSL"):
            # Imported here: ssl takes longer to import than everything else.
            from cyproducer.net import tls_handshake
            from cyproducer.security import tls_context

            self._tls_handshake = tls_handshake
            self._tls = tls_context.TlsContext(config)
        self._loop = loop
        self._clock = clock
        self._rng = rng
        self._on_failure = on_failure
        self._on_features = on_features
        self._on_authenticated = on_authenticated
        self._open_socket = open_socket or self._connect
        self._resolver = resolver or Resolver(loop.request_control)
        # The look-ups in flight, with the node id of each.
        self._resolving: dict[ResolveRequest, int] = {}
        # The versions to assume for brokers that close the connection on an ApiVersions request.
        self._assumed: dict[int, tuple[int, int]] | None = None
        #: By node and address: while connecting, a node may have several connections, one of which is kept.
        self.connections: dict[tuple[int, Address], Connection] = {}
        self.states = Connections(
            rng,
            reconnect_backoff_ms=config.reconnect_backoff_ms,
            reconnect_backoff_max_ms=config.reconnect_backoff_max_ms,
            authentication_backoff_ms=config.authentication_backoff_ms,
            setup_timeout_ms=config.socket_connection_setup_timeout_ms,
            setup_timeout_max_ms=config.socket_connection_setup_timeout_max_ms,
            connections_max_idle_ms=config.connections_max_idle_ms,
        )
        self.bootstrap = [-1 - i for i in range(len(config.bootstrap_addresses))]
        for node_id, (host, port) in zip(self.bootstrap, config.bootstrap_addresses, strict=True):
            self.states.add(node_id, host, port, bootstrap=True)

    # Any thread

    def any_ready(self) -> bool:
        """Whether any connection has completed its handshake."""
        return any(connection.ready for connection in list(self.connections.values()))

    def diagnosis(self) -> str:
        """Describes failing addresses with their errors, pending look-ups and throttling; may be empty."""
        now_ms = self._clock.monotonic_ns() / 1e6
        parts = [self.states.diagnosis(now_ms)]
        parts += [f"still looking up {each.host}:{each.port}" for each in list(self._resolving)]
        for connection in list(self.connections.values()):
            wait_ms = connection.throttled_ms(now_ms)
            if wait_ms > 0:
                parts.append(f"{connection.where} throttles this client for another {wait_ms / 1000:.1f} s")
        return "; ".join(part for part in parts if part)

    def free(self, now_ms: float) -> list[Connection]:
        """Returns the connections that can take a request now: ready, and not throttled."""
        return [
            c
            for c in list(self.connections.values())
            if c.ready and not c.held and c.throttled_ms(now_ms) <= 0
        ]

    def throttled_ms(self, now_ms: float) -> float:
        """Returns the milliseconds until the first broker ends its throttling; infinity if none throttles."""
        waits = [c.throttled_ms(now_ms) for c in list(self.connections.values()) if c.ready]
        return min((wait for wait in waits if wait > 0), default=math.inf)

    # Opening

    def tick(self, now_ms: float) -> float:
        """Handles resolved names, fails attempts that timed out, and closes idle connections.

        Returns the milliseconds until the next event is due.
        """
        self._take_mappings(now_ms)
        self._take_resolutions(now_ms)
        self._take_decoded(now_ms)
        for connection in list(self.connections.values()):
            stage = connection.handshake.stage
            if isinstance(stage, Waiting) and stage.task.done:
                self._advance(connection, now_ms)
        for node_id, address, cause in self.states.timed_out(now_ms):
            if address is None:
                self._give_up_look_up(node_id, cause, now_ms)
            elif (node_id, address) in self.connections:
                late = self.connections[node_id, address]
                authentication = late.handshake.authentication
                if authentication is not None and authentication.waits_for:
                    cause += f", waiting for {authentication.waits_for}"
                self._loop.close_connection(late, errors.KafkaTimeoutError(cause))
        for node_id in self.states.due(now_ms):
            self.connect_to(node_id, now_ms)
        self._close_idle(now_ms)
        renewal_ms = self._authenticate_again(now_ms) if self._converse is not None else math.inf
        return min(renewal_ms, self.states.next_event_ms(now_ms))

    def connect_to(self, node_id: int, now_ms: float) -> None:
        """Begins to connect, unless the node is unknown, in backoff, or already connecting or connected."""
        if node_id not in self.states or self.states.connect_delay_ms(node_id, now_ms) > 0:
            return
        host, port = self.states.endpoint(node_id)
        if self.states.needs_addresses(node_id):
            canonical = (
                node_id < 0 and self._config.client_dns_lookup == "resolve_canonical_bootstrap_servers_only"
            )
            self.states.begin_resolve(node_id, now_ms)
            hook = self._config.broker_address
            if hook is not None and node_id >= 0:
                self._mappings[node_id] = self.background.start(partial(mapped, hook, host, port))
            else:
                self._look_up(node_id, host, port, canonical, now_ms)
            return
        address = self.states.begin_connect(node_id, now_ms)
        where = f"{host}:{port}" if str(address) == f"{host}:{port}" else f"{host}:{port} ({address})"
        try:
            sock = self._open_socket(address)
        except OSError as error:
            advice = self.states.advice(node_id, bool(self._config.broker_address))
            self.states.failed(node_id, address, error, now_ms, advice=advice)
            self._on_failure(_placed(error, where, advice), now_ms)
            return
        connection = self._loop.open_connection(sock, node_id, where)
        connection.handshake = Handshake(address)
        self.connections[node_id, address] = connection

    def connection_for(
        self, node_id: int | None, candidates: Sequence[int], now_ms: float
    ) -> tuple[Connection | None, float | None]:
        """Returns a free connection to a node, or to any broker; if there is none, begins to connect.

        If it returns no connection, the second value is the number of milliseconds until the next attempt,
        unless an event occurs earlier; None if the node is unknown, or in backoff after a failure.

        Args:
            node_id: the node; None: any broker.
            candidates: the nodes to connect to if any broker will do.
            now_ms: the current time.
        """
        free = [each for each in self.free(now_ms) if node_id in (None, each.node_id)]
        if free:
            return min(free, key=lambda c: (c.in_flight, self._rng())), 0
        if node_id is not None:
            return None, self._reach(node_id, now_ms)
        # If all connected brokers throttle this client, another broker might not.
        return None, min(self._seek(candidates, now_ms), self.throttled_ms(now_ms))

    def _reach(self, node_id: int, now_ms: float) -> float | None:
        """Connects to a node that has no free connection.

        Returns the milliseconds until the next attempt, unless an event occurs earlier; None if the node is
        unknown, or in backoff after a failure.
        """
        if node_id not in self.states:
            return None
        state = self.states.state(node_id, now_ms)
        if state is ConnectionState.BACKING_OFF:
            return None
        if state is ConnectionState.DISCONNECTED:
            self.connect_to(node_id, now_ms)
        return min(self.throttled_ms(now_ms), self.states.next_event_ms(now_ms))

    def _look_up(self, node_id: int, host: str, port: int, canonical: bool, now_ms: float) -> None:
        """Looks up the host, or the proxy's host instead: a proxy looks up the broker's host itself."""
        self._targets[node_id] = (host, port)
        if self._proxy is not None:
            host, port, canonical = self._proxy.host, self._proxy.port, False
        self._resolving[self._resolver.resolve(host, port, canonical)] = node_id
        # For a literal address, the answer is already available.
        self._take_resolutions(now_ms)

    def _take_mappings(self, now_ms: float) -> None:
        """Continues with the addresses that ``broker_address`` has returned."""
        for node_id, task in [(node_id, task) for node_id, task in self._mappings.items() if task.done]:
            del self._mappings[node_id]
            if not self._is_resolving(node_id, now_ms):
                continue
            if task.result is not None:
                self._look_up(node_id, *task.result, False, now_ms)
                continue
            host, port = self.states.endpoint(node_id)
            error = errors.NameResolutionError(f"broker_address failed for {host}:{port}: {task.error!r}")
            self._fail_look_up(node_id, error, now_ms, advise=False)

    def _is_resolving(self, node_id: int, now_ms: float) -> bool:
        """Whether a node still waits for its addresses: it may have been removed and re-added meanwhile."""
        return node_id in self.states and self.states.state(node_id, now_ms) is ConnectionState.RESOLVING

    def _fail_look_up(
        self, node_id: int, error: errors.NameResolutionError, now_ms: float, advise: bool = True
    ) -> None:
        host, port = self.states.endpoint(node_id)
        advice = self.states.advice(node_id, bool(self._config.broker_address)) if advise else ""
        self.states.resolution_failed(node_id, error, now_ms, advice=advice)
        self._on_failure(_placed(error, f"{host}:{port}", advice), now_ms)

    def _seek(self, candidates: Sequence[int], now_ms: float) -> float:
        """Connects to one of these nodes; if that takes too long, also to the next one, in parallel.

        Returns the milliseconds until the next attempt, unless an event occurs earlier.
        """
        start = int(self._rng() * len(candidates))
        order = [*candidates[start:], *candidates[:start]]
        delay_ms = math.inf
        for _ in order:
            node_id, delay_ms = self.states.seek(order, now_ms)
            if node_id is None:
                break
            self.connect_to(node_id, now_ms)
        return delay_ms

    def _give_up_look_up(self, node_id: int, cause: str, now_ms: float) -> None:
        """Fails a look-up that timed out. Its thread continues; a new request joins the same look-up."""
        self._forget_look_ups(node_id)
        error = errors.NameResolutionError(f"{self.states.endpoint(node_id)[0]!r}: {cause}")
        self._fail_look_up(node_id, error, now_ms)

    def _forget_look_ups(self, node_id: int) -> None:
        self._mappings.pop(node_id, None)
        for request in [each for each, of in self._resolving.items() if of == node_id]:
            del self._resolving[request]

    def _take_resolutions(self, now_ms: float) -> None:
        for answer in self._resolver.poll():
            node_id = self._resolving.pop(answer.request, None)
            if node_id is None or not self._is_resolving(node_id, now_ms):
                continue
            if answer.error is not None:
                self._fail_look_up(node_id, answer.error, now_ms)
            else:
                self.states.resolved(node_id, answer.addresses)
                self.connect_to(node_id, now_ms)

    def _connect(self, address: Address) -> socket.socket:
        sock = Socket(address.family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            for option in self._config.socket_options:
                sock.setsockopt(*option)
            for size, name in (
                (self._config.send_buffer_bytes, socket.SO_SNDBUF),
                (self._config.receive_buffer_bytes, socket.SO_RCVBUF),
            ):
                if size is not None:
                    sock.setsockopt(socket.SOL_SOCKET, name, size)
            code = sock.connect_ex(address.sockaddr)
            if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
                raise OSError(code, os.strerror(code))
        except BaseException:
            sock.close()
            raise
        return sock

    # The handshake

    def on_socket_ready(self, connection: Connection, now_ms: float) -> None:
        """Handles a connect that succeeded or failed, or a socket that is ready during the handshake."""
        if connection.connected:
            if connection.handshake.stage is not None:
                self._advance(connection, now_ms)
            else:
                self._loop.flush_connection(connection)
            return
        node_id, address = connection.node_id, connection.handshake.address
        code = connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._loop.close_connection(connection, OSError(code, os.strerror(code)))
            return
        self._loop.connected(connection)
        self._close_quietly(node_id, self.states.connected(node_id, address, now_ms))
        connection.handshake.stages = self._stages(connection)
        self._advance(connection, now_ms)

    def _advance(self, connection: Connection, now_ms: float) -> None:
        """Runs the stages until one must wait; after the last one, begins Kafka's protocol."""
        handshake = connection.handshake
        try:
            while handshake.stage is None or (writes := handshake.stage.step(connection.sock)) is None:
                handshake.stage = next(handshake.stages, None)
                if handshake.stage is None:
                    break
                self._loop.set_raw(connection, True)
            else:
                self._loop.watch_write(connection, writes)
                return
        except (OSError, errors.KafkaError) as error:
            self._loop.close_connection(connection, error)
            return
        self._loop.set_raw(connection, False)
        self._loop.watch_write(connection, False)
        if self._assumed is None:
            self._ask_versions(connection)
            return
        try:
            self._hand_over(connection, self._assumed, now_ms)
        except errors.KafkaError as error:
            self._loop.close_connection(connection, error)

    def _stages(self, connection: Connection) -> Iterator[Stage]:
        """Yields a connection's stages in order. Code after a ``yield`` runs when its stage is complete."""
        if self._proxy is not None:
            yield self._proxy_stage(self._proxy, *self._targets[connection.node_id])
        if self._tls is None:
            return
        self._take_reload()
        now_ms = self._clock.monotonic_ns() / 1e6
        if self._reload is None and self._tls.has_files:
            self._reload = self.background.start(self._tls.reload)
            self._reload_began_ms = now_ms
        # If a function that returns the key's password hangs, it must not block all new connections.
        if self._reload is not None and now_ms - self._reload_began_ms < PATIENCE_WITH_RELOAD_MS:
            yield Waiting(self._reload)
            self._take_reload()
        host, _ = self.states.endpoint(connection.node_id)
        stage = self._tls_handshake.TlsHandshake(self._config, self._tls.context, connection.where, host)
        yield stage
        session = stage.session(self._config.ssl_without_gil)
        if session.slow_because and self._config.ssl_without_gil and not self._told_slow:
            self._told_slow = True
            self._log.warning(
                "TLS goes through Python's ssl module, which is slower: %s", session.slow_because
            )
        connection.use_tls(session)

    def _take_reload(self) -> None:
        """Takes note of a finished reload of the certificates; logs its error if it failed."""
        if self._reload is None or not self._reload.done:
            return
        if self._reload.error is not None:
            self._log.error("connecting with the certificates read before: %s", self._reload.error)
        self._reload = None

    def _ask_versions(self, connection: Connection) -> None:
        self.request(connection, API_VERSIONS, encode_api_versions, self._on_versions)

    def _on_versions(
        self, connection: Connection, version: int, response: ApiVersionsResponse, now_ms: float
    ) -> None:
        """Handles the ApiVersions response: repeats the request in another version, or ends this exchange.

        Raises:
            KafkaError: the response is an error, or there is no common version.
        """
        highest = response.api_versions.get(API_VERSIONS.key, (0, 0))[1]
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION and version > 0:
            # The response has version 0 and lists the supported versions (KIP-511); old brokers list none.
            connection.handshake.versions[API_VERSIONS] = max(0, min(highest, version - 1))
            self._ask_versions(connection)
            return
        if response.error_code:
            raise errors.for_code(response.error_code)(f"{connection.where} rejected the ApiVersions request")
        connection.handshake.offered = highest
        self._hand_over(connection, response.api_versions, now_ms)
        connection.handshake.versions[API_VERSIONS] = version
        self._on_features(response, now_ms)
        self._close_bootstrap(connection)

    def _hand_over(self, connection: Connection, versions: dict[int, tuple[int, int]], now_ms: float) -> None:
        """Ends the ApiVersions exchange: the connection becomes ready, or begins SASL authentication."""
        connection.handshake.versions = negotiate(versions)
        if is_too_old(versions) and not self._warned_too_old:
            self._warned_too_old = True
            self._log.warning(
                "%s is older than %s, the oldest version that is supported: requests may fail there, and "
                "not say why; upgrade it",
                connection.where,
                PRODUCE.since,
            )
        if self._converse is None:
            self._confirm(connection, now_ms)
            return
        for api in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
            if api not in connection.handshake.versions:
                plain = self._config.security_protocol.removeprefix("SASL_")
                if api.key in versions:
                    raise errors.IncompatibleBrokerVersion(lacking(api, versions))
                raise errors.IncompatibleBrokerVersion(
                    f"{connection.where} has no SASL, as it does not offer {api.name}: set "
                    f"security_protocol={plain!r}"
                )
        connection.handshake.authentication = self._authentication(connection, self._converse)
        connection.handshake.authentication.begin()

    def _authentication(
        self, connection: Connection, converse: Callable[[str], Conversation]
    ) -> Authentication:
        def send_handshake(mechanism: str) -> None:
            encode = protocol.framing(protocol.encode_sasl_handshake, mechanism)
            # From here on, the broker closes the connection if it receives any other request.
            self._loop.hold(connection, True)
            self.request(connection, SASL_HANDSHAKE, encode, self._on_sasl_handshake)

        def send_authenticate(message: Hidden[bytes]) -> None:
            assert connection.handshake.authentication is not None
            connection.handshake.authentication.asked_ms = self._clock.monotonic_ns() / 1e6

            def encode(version: int, number: int, client_id: str) -> bytes:
                return protocol.encode_sasl_authenticate(version, number, client_id, message.reveal())

            self.request(connection, SASL_AUTHENTICATE, encode, self._on_sasl_authenticate)

        return self._make_authentication(
            self._config,
            connection.where,
            partial(converse, self._broker_name(connection)),
            self.background,
            self._rng,
            send_handshake,
            send_authenticate,
        )

    def _broker_name(self, connection: Connection) -> str:
        """Returns the host name of a broker for SASL: as configured or advertised, or its canonical name.

        Never the host of a proxy, or the one that ``broker_address`` returns: these change only the address
        to connect to.
        """
        if connection.node_id < 0 and self._proxy is None:
            address: Address = connection.handshake.address
            return address.name
        host, _ = self.states.endpoint(connection.node_id)
        return host

    def _on_sasl_handshake(
        self, connection: Connection, version: int, response: SaslHandshakeResponse, now_ms: float
    ) -> None:
        """Handles the SaslHandshake response. Raises KafkaError if the broker rejects the mechanism."""
        authentication = connection.handshake.authentication
        assert authentication is not None
        authentication.on_handshake(response)

    def _on_sasl_authenticate(
        self, connection: Connection, version: int, response: SaslAuthenticateResponse, now_ms: float
    ) -> None:
        """Handles a SaslAuthenticate response. Raises KafkaError if the broker refuses this client."""
        authentication = connection.handshake.authentication
        assert authentication is not None
        if not authentication.on_authenticate(response, now_ms):
            return
        self._loop.hold(connection, False)
        if not connection.ready:
            self._confirm(connection, now_ms)
        self._on_authenticated()
        self._close_bootstrap(connection)

    def _authenticate_again(self, now_ms: float) -> float:
        """Continues authentications and begins those that are due; returns the ms until the next step."""
        due_ms = self._fetch_token(now_ms)
        for connection in list(self.connections.values()):
            authentication = connection.handshake.authentication
            if authentication is None:
                continue
            try:
                due_ms = min(due_ms, self._renew(connection, authentication, now_ms))
            except errors.KafkaError as error:
                self._loop.close_connection(connection, error)
        return due_ms - now_ms

    def _fetch_token(self, now_ms: float) -> float:
        """Fetches a new token before the current one expires; returns when that is due.

        Does nothing while there is no connection: the next authentication fetches a token if necessary.
        """
        if self._fetch is not None and self._fetch.done:
            if (error := self._fetch.error) is not None:
                self._log.warning("getting a new token failed: %s: %s", type(error).__name__, error)
            self._fetch = None
            # If the task fetched nothing, a new token is still due: another thread is calling the provider,
            # or no thread could be started.
            self._fetch_from_ms = now_ms + RETRY_CREDENTIALS_MS
        if self._tokens is None or self._fetch is not None or not self.any_ready():
            return math.inf
        due_ms = max(self._tokens.refresh_at_ms, self._fetch_from_ms)
        if now_ms < due_ms:
            return due_ms
        self._fetch = self.background.start(self._tokens.current)
        return math.inf

    def _renew(self, connection: Connection, authentication: Authentication, now_ms: float) -> float:
        """Continues an authentication, or renews a session; returns when the next step is due.

        The credentials are fetched while the old session is still valid. The connection is held only during
        the requests themselves, and once the old session has ended.
        """
        if authentication.waits_for_task:
            try:
                authentication.resume()
            except errors.KafkaError as error:
                valid = connection.ready and now_ms < authentication.ends_at_ms
                if not (valid and authentication.unsent):
                    raise
                self._log.warning("%s; trying again, as the session still lasts", error)
                left_ms = authentication.ends_at_ms - now_ms
                authentication.renew_at_ms = now_ms + min(RETRY_CREDENTIALS_MS, max(50.0, left_ms / 4))
        if not connection.ready:
            return math.inf
        begin_ms = max(authentication.renew_at_ms, authentication.may_begin_ms())
        if now_ms >= begin_ms:
            authentication.renew_at_ms = begin_ms = math.inf
            authentication.begin()
        if now_ms < authentication.ends_at_ms:
            return min(begin_ms, authentication.ends_at_ms)
        self._loop.hold(connection, True)
        if not authentication.unsent:
            return begin_ms
        # A session can end before the broker allows a new one to begin: see LEAST_INTERVAL_MS.
        waiting_since_ms = max(authentication.ends_at_ms, authentication.may_begin_ms())
        limit_ms = waiting_since_ms + self._config.request_timeout_ms
        if now_ms >= limit_ms:
            raise errors.KafkaTimeoutError(
                f"{connection.where}: its SASL session expired {now_ms - authentication.ends_at_ms:.0f} ms "
                f"ago, and it still waits for {authentication.waits_for or 'the credentials'} for a new one"
            )
        return min(begin_ms, limit_ms)

    def _confirm(self, connection: Connection, now_ms: float) -> None:
        """Completes the handshake, if the broker is the one that this client expects (KIP-1242).

        Only brokers since 4.4 check that, and only of authenticated clients.
        """
        cluster_id = self._cluster_id()
        if connection.node_id < 0 or cluster_id is None or connection.handshake.offered < WITH_IDENTITY:
            self._finish(connection, now_ms)
            return
        encode = protocol.framing(encode_api_versions, cluster_id, connection.node_id)
        answered = partial(self._on_confirmed, cluster_id)
        self.request(connection, API_VERSIONS, encode, answered, version=WITH_IDENTITY)

    def _on_confirmed(
        self,
        cluster_id: str,
        connection: Connection,
        version: int,
        response: ApiVersionsResponse,
        now_ms: float,
    ) -> None:
        """Handles a broker's answer to ``_confirm``. Raises KafkaError if it is another broker."""
        if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            raise errors.RebootstrapRequiredError(
                f"{connection.where} is not node {connection.node_id} of cluster {cluster_id!r}: its name, a "
                "proxy or a load balancer leads elsewhere; if that is intended: "
                "metadata_cluster_check_enable=False"
            )
        self._finish(connection, now_ms)
        self._close_bootstrap(connection)

    def _finish(self, connection: Connection, now_ms: float) -> None:
        """Completes the handshake: from now on, batches can be sent to the broker."""
        chosen = connection.handshake.versions
        node_id = connection.node_id
        self._close_quietly(node_id, self.states.ready(node_id, connection.handshake.address, now_ms))
        if node_id < 0:
            self._stop_seeking(node_id, now_ms)
        self._loop.ready(connection, chosen[PRODUCE])
        self._loop.request_control()

    def know(self, node_id: int, host: str, port: int) -> None:
        """Adds a broker; if its address has changed, closes its connection first."""
        if node_id in self.states and self.states.endpoint(node_id) != (host, port):
            self.drop(node_id)
        self.states.add(node_id, host, port)

    # Requests other than Produce

    def request(
        self,
        connection: Connection,
        api: Api,
        encode: protocol.Encode,
        on_response: OnResponse,
        on_broken: OnBroken = lambda connection, cause, now_ms: None,
        *,
        version: int | None = None,
        decode: protocol.Decode | None = None,
    ) -> None:
        """Sends a request. Calls either ``on_response`` or ``on_broken``, once.

        Calls ``on_broken`` before returning if the socket fails immediately.

        Args:
            connection: the connection to send on. It is not closed as idle before the response arrives.
            api: the kind of request.
            encode: encodes the request. If it raises, nothing is sent.
            on_response: receives the response. If it raises KafkaError, the connection is closed.
            on_broken: receives the reason if the connection is closed before the response arrives, or because
                the response could not be decoded.
            version: the version of the request and its response; None: as agreed on with the broker.
            decode: decodes the response; None: the decoder in ``DECODERS``.
        """
        if version is None:
            version = connection.handshake.versions[api]
        number = connection.next_correlation_id()
        frame = encode(version, number, self._config.client_id)
        connection.send(api.key, version, number, frame, self._clock.monotonic_ns())
        connection.pending[number] = PendingRequest(
            api, version, decode or protocol.DECODERS[api], on_response, on_broken
        )
        self._loop.flush_connection(connection)

    def on_frame(self, connection: Connection, number: int, frame: bytes, now_ms: float) -> None:
        """Passes a response to the callback of the request with this correlation id."""
        request = connection.pending[number]
        if request.api is METADATA and len(frame) >= LARGE:
            # 100,000 partitions take 200 ms, in which this thread would not send anything.
            task = self.background.start(partial(request.decode, request.version, frame))
            if task.error is None:
                del connection.pending[number]
                self._decoding.append((task, connection, request))
                return
        try:
            response = request.decode(request.version, frame)
            # Only after decoding: otherwise on_broken() would not be called if decoding fails.
            del connection.pending[number]
            self._respond(connection, request, response, now_ms)
        except errors.KafkaError as error:
            self._loop.close_connection(connection, error)

    def _respond(self, connection: Connection, request: PendingRequest, response: Any, now_ms: float) -> None:
        if request.version >= request.api.client_throttles:
            connection.throttle(response.throttle_time_ms, now_ms)
        request.on_response(connection, request.version, response, now_ms)

    def _take_decoded(self, now_ms: float) -> None:
        """Passes on the responses that another thread has decoded. Their connections may be closed by now."""
        for entry in [each for each in self._decoding if each[0].done]:
            self._decoding.remove(entry)
            task, connection, request = entry
            try:
                if task.error is not None:
                    raise task.error
                self._respond(connection, request, task.result, now_ms)
            except errors.KafkaError as error:
                self._loop.close_connection(connection, error)
                if task.error is not None:
                    request.on_broken(connection, error, now_ms)

    def fail_pending(self, connection: Connection, cause: Exception, now_ms: float) -> None:
        """Calls ``on_broken`` for the pending requests of a closed connection, in the order of sending."""
        failed = list(connection.pending.values())
        connection.pending.clear()
        for request in failed:
            request.on_broken(connection, cause, now_ms)

    # Closing

    def _close_bootstrap(self, connection: Connection) -> None:
        """Closes bootstrap connections without pending requests, if this connection replaces them."""
        if not connection.ready or connection.node_id < 0:
            return
        for spare in list(self.connections.values()):
            if spare.node_id < 0 and spare.ready and not spare.pending:
                self._loop.close_connection(spare, None)

    def _close_quietly(self, node_id: int, addresses: Iterable[Address]) -> None:
        """Closes connections that are no longer needed, for example because another one was faster.

        This does not count as a failure.
        """
        for address in addresses:
            spare = self.connections.pop((node_id, address), None)
            if spare is not None:
                self._loop.close_connection(spare, None)

    def _stop_seeking(self, found: int, now_ms: float) -> None:
        """Ends the attempts to reach the other bootstrap servers, after one has responded."""
        for node_id in self.bootstrap:
            if node_id != found and self.states.state(node_id, now_ms) in (
                ConnectionState.RESOLVING,
                ConnectionState.CONNECTING,
                ConnectionState.HANDSHAKING,
            ):
                self._forget_look_ups(node_id)
                self._close_quietly(node_id, self.states.closed(node_id))

    def drop(self, node_id: int, why: str = "is no longer in the metadata", retire: bool = False) -> None:
        """Forgets a broker, and closes its connection if there is one.

        ``retire``: keeps its backoff; see ``Connections.retire``.
        """
        self._forget_look_ups(node_id)
        for connection in [each for each in self.connections.values() if each.node_id == node_id]:
            self._loop.close_connection(connection, errors.KafkaConnectionError(f"{connection.where} {why}"))
        if retire:
            self.states.retire(node_id)
        else:
            self.states.remove(node_id)

    def on_broken(self, connection: Connection, cause: Exception | None, now_ms: float) -> Exception | None:
        """Handles a closed connection. Returns the failure; None if closed on purpose (``cause`` is None)."""
        try:
            return self._broken(connection, cause, now_ms)
        finally:
            # The stages and the connection refer to each other: otherwise, only the garbage collector would
            # free its TLS session.
            handshake = connection.handshake
            if handshake.stage is not None:
                handshake.stage.release()
            handshake.stage, handshake.stages = None, iter(())

    def _broken(self, connection: Connection, cause: Exception | None, now_ms: float) -> Exception | None:
        node_id, address = connection.node_id, connection.handshake.address
        if self.connections.get((node_id, address)) is not connection:
            return None
        del self.connections[node_id, address]
        if node_id not in self.states or isinstance(cause, errors.ProducerClosedError):
            return None
        if cause is None:
            self._close_quietly(node_id, self.states.closed(node_id))
            return None
        self._log.info("connection to node %d at %s ended: %s", node_id, connection.where, cause)
        setting_up = connection.connected and not self.states.is_ready(node_id)
        handshake = connection.handshake
        says_more = handshake.stage is not None or (
            handshake.authentication is not None and handshake.authentication.failed
        )
        if setting_up and not says_more and type(cause) is errors.KafkaConnectionError:
            # The loop's generic error for a closed socket. Every other cause, including the error of a stage
            # or of the credentials, is more specific.
            cause = self._hung_up(connection)
        elif isinstance(cause, errors.TlsError) and connection.tls is not None:
            cause = self._explained(connection)
        if setting_up and (isinstance(cause, errors.TlsError) or refuses_credentials(connection, cause)):
            self._loop.count_failed_authentication()
        advice = ""
        if not connection.connected or (
            isinstance(cause, errors.KafkaTimeoutError) and connection.handshake.authentication is None
        ):
            advice = self.states.advice(node_id, bool(self._config.broker_address))
        others = self.states.failed(
            node_id,
            address,
            cause,
            now_ms,
            try_next_address=not refuses_credentials(connection, cause),
            advice=advice,
        )
        self._close_quietly(node_id, others)
        return _placed(cause, connection.where, advice)

    def _hung_up(self, connection: Connection) -> Exception:
        """Returns the error for a connection that the peer closed during the handshake.

        The peer is not Kafka, expects another protocol, or is a very old broker.
        """
        if connection.handshake.authentication is not None:
            return errors.BrokerProtocolError(
                f"{connection.where} closed the connection during the authentication by "
                f"{self._config.sasl_mechanism}"
            )
        if self._config.api_version is not None and self._assumed is None:
            try:
                self._assumed = fallback_for(self._config.api_version)
            except errors.KafkaError as error:
                return error
        if connection.tls is not None:
            return errors.BrokerProtocolError(
                f"{connection.where} closed the connection after the TLS handshake: does it ask for a client "
                "certificate (ssl_certfile), or is it a SASL_SSL listener?"
            )
        protocol = self._config.security_protocol
        return errors.BrokerProtocolError(
            f"{connection.where} closed the connection during the handshake: is it a Kafka broker with a "
            f"{protocol} listener on this port? If it expects TLS, set "
            f"security_protocol={protocol.replace('PLAINTEXT', 'SSL')!r}"
        )

    def _explained(self, connection: Connection) -> Exception:
        """Returns the error for a TLS session that ended by an alert, or by data invalid for OpenSSL."""
        from cyproducer.security.tls_errors import explain

        assert connection.tls is not None
        host, _ = self.states.endpoint(connection.node_id)
        reason = connection.tls.reason() or "unknown error"
        return errors.TlsError(explain(reason, connection.where, host, self._config, established=True))

    def _close_idle(self, now_ms: float) -> None:
        ready = {each.node_id: each for each in self.connections.values() if each.ready}
        for node_id, connection in ready.items():
            if connection.last_used_ns:
                self.states.active(node_id, connection.last_used_ns / 1e6)
        for node_id in self.states.idle(now_ms):
            connection = ready[node_id]
            if connection.in_flight == 0 and not connection.pending:
                self._log.debug("closing the idle connection to %s", connection.where)
                self._loop.close_connection(connection, None)
            else:
                # The connection awaits a response. Counts as active now: otherwise, it would be due again
                # immediately, and the loop would spin.
                self.states.active(node_id, now_ms)

    def close(self) -> None:
        """Ends name resolution. Must be called after the loop has ended and all connections are closed."""
        self._resolver.close()
        self.background.close()


def encode_api_versions(
    version: int, number: int, client_id: str, cluster_id: str | None = None, node_id: int = -1
) -> bytes:
    """Encodes an ApiVersions request."""
    return protocol.encode_api_versions(
        version, number, client_id, SOFTWARE_NAME, VERSION, cluster_id, node_id
    )


def refuses_credentials(connection: Connection, cause: BaseException) -> bool:
    """Whether a connection ended because the broker does not accept this client's credentials."""
    return connection.handshake.authentication is not None and isinstance(cause, AUTHENTICATION_ERRORS)


def was_accepted(connection: Connection) -> bool:
    """Whether a connection was authenticated before it ended."""
    authentication = connection.handshake.authentication
    return authentication is not None and authentication.was_accepted


def mapped(hook: Callable[[str, int], object], host: str, port: int) -> tuple[str, int]:
    """Calls ``broker_address``, and validates its result."""
    found = hook(host, port)
    if isinstance(found, str):
        return split_server(found)[1]
    match found:
        case (str() as to_host, int() as to_port) if to_host and 0 < to_port < 65536:
            return to_host, to_port
    raise TypeError(f"it returned {found!r}: it must return (host, port) or 'host:port'")


def _placed(cause: Exception, where: str, advice: str = "") -> Exception:
    """Returns the cause if it names the address and there is no advice, else a new error that adds both."""
    if where in str(cause) and not advice:
        return cause
    kept = isinstance(cause, (errors.KafkaTimeoutError, errors.NameResolutionError))
    kind = type(cause) if kept else errors.KafkaConnectionError
    text = str(cause.args[0]) if isinstance(cause, errors.KafkaError) and cause.args else cause_text(cause)
    if where not in text:
        text = f"{where}: {text}"
    error = kind(f"{text}; {advice}" if advice else text)
    error.__cause__ = cause
    return error
