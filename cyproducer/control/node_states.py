"""The connection state of each broker: when to connect, to which address, and when to stop trying.

Owns the state of each node, its addresses, backoff, deadlines, and the history of failures for error
messages. Does not own sockets, name resolution, the handshake or the clock: callers report events and ask
what to do next. Used with the loop lock held; not thread-safe.

    state          event                    next state
    DISCONNECTED   begin_resolve            RESOLVING
    RESOLVING      resolved                 DISCONNECTED (may connect at once)
    RESOLVING      resolution_failed        BACKING_OFF
    DISCONNECTED   begin_connect            CONNECTING
    CONNECTING     begin_connect            CONNECTING: the next address, in parallel to the first
    CONNECTING     connected                HANDSHAKING
    HANDSHAKING    ready                    READY
    CONNECTING,    failed, another          the state of the other attempt
    HANDSHAKING    attempt in progress
    CONNECTING,    failed, address left     DISCONNECTED (may try the next address at once)
    HANDSHAKING    failed, none left        BACKING_OFF
    READY          failed                   BACKING_OFF
    READY, any     closed (on purpose)      DISCONNECTED
    BACKING_OFF    backoff time is over     DISCONNECTED

Attempts run in parallel (RFC 8305, "happy eyeballs"). The next one begins when an attempt has had no outcome
for ``STAGGER_MS``, or at once when one fails. For a normal node the first address that is connected wins. For
a *bootstrap* node the first address that completes its handshake wins, because it is not known yet whether a
broker listens there. ``connected`` and ``ready`` return the other addresses, whose attempts must be closed.
Those have not failed: they are tried again if the winner's handshake fails. ``seek`` staggers in the same way
among nodes, if any one of several will do.
"""

import enum
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from cyproducer.control.retry import ExponentialBackoff

#: How long an attempt runs alone before the next one begins in parallel: the Connection Attempt Delay of RFC
#: 8305, section 5, a little above the recommended 250 ms.
STAGGER_MS = 300
#: The shortest idle timeout: with 0, every connection would be closed before its first request.
SHORTEST_IDLE_MS = 100


class ConnectionState(enum.Enum):
    """The state of a node's connection."""

    DISCONNECTED = "disconnected"
    RESOLVING = "resolving"
    CONNECTING = "connecting"
    HANDSHAKING = "handshaking"
    READY = "ready"
    BACKING_OFF = "backing off"


_UNDER_WAY = (ConnectionState.RESOLVING, ConnectionState.CONNECTING, ConnectionState.HANDSHAKING)


class Address(NamedTuple):
    """One socket address of a host name."""

    #: The name for TLS verification and authentication: the host, or its canonical name (KIP-235).
    name: str
    #: ``socket.AF_INET`` or ``AF_INET6``.
    family: int
    #: The argument of ``socket.connect``.
    sockaddr: tuple[Any, ...]

    def __str__(self) -> str:
        host, port = self.sockaddr[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Failure:
    """The last failure at one address, and how often it occurred in a row."""

    __slots__ = ("advice", "at_ms", "cause", "times")

    def __init__(self, cause: str, at_ms: float, advice: str) -> None:
        self.cause = cause
        self.advice = advice
        self.at_ms = at_ms
        self.times = 1


class _Attempt:
    """A connection to one address that is being set up."""

    __slots__ = ("deadline_ms", "handshaking", "timeout_ms")

    def __init__(self, timeout_ms: float, now_ms: float) -> None:
        self.timeout_ms = timeout_ms
        self.deadline_ms = now_ms + timeout_ms
        self.handshaking = False


class _Node:
    __slots__ = (
        "addresses",
        "attempts",
        "begun_ms",
        "bootstrap",
        "connected_to",
        "failures",
        "host",
        "last_active_ms",
        "left",
        "lookup",
        "next_at_ms",
        "port",
        "reached",
        "retry_at_ms",
        "rounds",
        "state",
        "unreachable",
    )

    def __init__(self, host: str, port: int, bootstrap: bool) -> None:
        self.host = host
        self.port = port
        self.bootstrap = bootstrap
        self.state = ConnectionState.DISCONNECTED
        #: Addresses of this round; empty: the name must be resolved.
        self.addresses: tuple[Address, ...] = ()
        #: The addresses of this round that have not been tried.
        self.left: list[Address] = []
        #: The addresses that are being tried.
        self.attempts: dict[Address, _Attempt] = {}
        #: The name lookup, while RESOLVING.
        self.lookup: _Attempt | None = None
        #: The address of the connection, while READY.
        self.connected_to: Address | None = None
        #: When the lookup or the first of the attempts began.
        self.begun_ms = -math.inf
        #: When the next address may be tried in parallel.
        self.next_at_ms = -math.inf
        #: Failed rounds in a row (a round: all addresses, or a lost connection).
        self.rounds = 0
        #: Whether a round has failed to connect since the last connection.
        self.unreachable = False
        #: Whether a handshake was ever completed.
        self.reached = False
        self.retry_at_ms = -math.inf
        self.last_active_ms = 0.0
        #: The last failure by address; None is the key of failures without one, such as name resolution.
        self.failures: dict[Address | None, _Failure] = {}

    def has_winner(self) -> bool:
        """Returns whether one attempt has already won, so that no other is begun in parallel."""
        return not self.bootstrap and any(attempt.handshaking for attempt in self.attempts.values())

    def follow_attempts(self) -> None:
        """Sets the state to that of the most advanced attempt."""
        if not self.attempts:
            self.state = ConnectionState.DISCONNECTED
        elif any(attempt.handshaking for attempt in self.attempts.values()):
            self.state = ConnectionState.HANDSHAKING
        else:
            self.state = ConnectionState.CONNECTING

    def others_than(self, address: Address) -> list[Address]:
        """Gives up the attempts at other addresses and returns those. They may be tried again."""
        others = [each for each in self.attempts if each != address]
        for each in others:
            del self.attempts[each]
        self.left = [each for each in self.addresses if each in others or each in self.left]
        return others

    def end(self, state: ConnectionState) -> list[Address]:
        """Ends the round; returns the addresses of attempts that were still in progress."""
        others = list(self.attempts)
        self.state = state
        self.addresses = ()
        self.left = []
        self.attempts = {}
        self.lookup = None
        self.connected_to = None
        return others


def cause_text(cause: str | BaseException) -> str:
    """Describes a failure: the message, or the name of the class if there is no message."""
    if isinstance(cause, OSError) and cause.strerror:
        text = str(cause.strerror)
        # "Connection refused" becomes lower case for the middle of a sentence; "SSL: ..." must stay as it is.
        return text[0].lower() + text[1:] if text[1:2].islower() else text
    return str(cause) or type(cause).__name__


class Connections:
    """All nodes and their connection states; times are milliseconds on the caller's clock."""

    def __init__(
        self,
        random: Callable[[], float],
        *,
        reconnect_backoff_ms: float = 50,
        reconnect_backoff_max_ms: float = 1_000,
        authentication_backoff_ms: float = 30_000,
        setup_timeout_ms: float = 10_000,
        setup_timeout_max_ms: float = 30_000,
        connections_max_idle_ms: float = 540_000,
    ) -> None:
        """
        Args:
            random: returns a float in [0, 1), for jitter.
            reconnect_backoff_ms: wait after the first failed round, doubled after each further one.
            reconnect_backoff_max_ms: longest of these waits.
            authentication_backoff_ms: least wait after a broker has refused this client.
            setup_timeout_ms: time to connect and to complete the handshake, doubled after each failed
                round (KIP-601).
            setup_timeout_max_ms: longest setup time.
            connections_max_idle_ms: an idle connection is closed after this time, at least
                ``SHORTEST_IDLE_MS``; if negative, never.
        """
        self._random = random
        self._backoff = ExponentialBackoff(reconnect_backoff_ms, reconnect_backoff_max_ms)
        self._refused_backoff = ExponentialBackoff(authentication_backoff_ms, authentication_backoff_ms)
        self._setup_timeout = ExponentialBackoff(setup_timeout_ms, setup_timeout_max_ms)
        self._max_idle_ms = (
            math.inf if connections_max_idle_ms < 0 else max(connections_max_idle_ms, SHORTEST_IDLE_MS)
        )
        self._nodes: dict[int, _Node] = {}
        #: Retired nodes, which may come back; see ``retire``.
        self._retired: dict[int, _Node] = {}
        #: Host and port of each broker that has refused this client -> when to try again. A bootstrap server
        #: and the broker behind it are two nodes.
        self._refused: dict[tuple[str, int], float] = {}

    def add(self, node_id: int, host: str, port: int, *, bootstrap: bool = False) -> bool:
        """Adds a node, or changes its address.

        Args:
            node_id: the node.
            host: its host.
            port: its port.
            bootstrap: whether the first complete handshake decides among its addresses; see the module.

        Returns:
            Whether the node is new or has moved. The caller must close the connection of a node that moved;
            its state starts again.
        """
        node = self._nodes.get(node_id)
        if node is not None and (node.host, node.port) == (host, port):
            return False
        known = self._retired.pop(node_id, None)
        if known is None or (known.host, known.port) != (host, port):
            known = _Node(host, port, bootstrap)
        self._nodes[node_id] = known
        return True

    def retire(self, node_id: int) -> None:
        """Removes a node like ``remove``, but keeps its backoff in case it comes back at the same address.

        For a rebootstrap: if a cluster names brokers that are unreachable, it is asked again at the pace of
        their backoff, not in a loop.
        """
        node = self._nodes.pop(node_id, None)
        if node is None:
            return
        node.end(
            ConnectionState.BACKING_OFF
            if node.state is ConnectionState.BACKING_OFF
            else ConnectionState.DISCONNECTED
        )
        # Reachability must be checked again: the same address may belong to another host now.
        node.unreachable = False
        self._retired[node_id] = node

    def remove(self, node_id: int) -> None:
        """Removes a node; the caller closes its connection. An unknown node is not an error."""
        self._nodes.pop(node_id, None)

    def __contains__(self, node_id: int) -> bool:
        return node_id in self._nodes

    def state(self, node_id: int, now_ms: float) -> ConnectionState:
        """Returns the node's state.

        Raises:
            KeyError: the node is unknown; this applies to all methods with a ``node_id``.
        """
        node = self._nodes[node_id]
        if node.state is ConnectionState.BACKING_OFF and now_ms >= node.retry_at_ms:
            node.state = ConnectionState.DISCONNECTED
        if node.state is ConnectionState.DISCONNECTED and self._refused:
            retry_at_ms = self._refused.get((node.host, node.port), -math.inf)
            if now_ms < retry_at_ms:
                node.end(ConnectionState.BACKING_OFF)
                node.retry_at_ms = retry_at_ms
        return node.state

    def endpoint(self, node_id: int) -> tuple[str, int]:
        """Returns the host and port that the node was added with."""
        node = self._nodes[node_id]
        return node.host, node.port

    def is_ready(self, node_id: int) -> bool:
        """Returns whether requests may be sent to the node; False if it is unknown."""
        node = self._nodes.get(node_id)
        return node is not None and node.state is ConnectionState.READY

    def connect_delay_ms(self, node_id: int, now_ms: float) -> float:
        """Returns the time until a connection attempt may begin: 0 for now; infinity if there is nothing to
        wait for, because a connection is up or every possible attempt is in progress."""
        node = self._nodes[node_id]
        state = self.state(node_id, now_ms)
        if state is ConnectionState.DISCONNECTED:
            return 0.0
        if state is ConnectionState.BACKING_OFF:
            return node.retry_at_ms - now_ms
        if node.attempts and node.left and not node.has_winner():
            return max(0.0, node.next_at_ms - now_ms)
        return math.inf

    def due(self, now_ms: float) -> list[int]:
        """Returns the nodes whose next address must now be tried in parallel."""
        return [
            node_id
            for node_id, node in list(self._nodes.items())
            if node.attempts and self.connect_delay_ms(node_id, now_ms) <= 0
        ]

    def seek(self, node_ids: Iterable[int], now_ms: float) -> tuple[int | None, float]:
        """Returns which of these nodes to connect to, if any of them will do; prefers the first possible one.

        Returns:
            The node to connect to now, or None; and the time until the next one may be connected to, as far
            as that depends on attempts in progress.
        """
        nodes = [(node_id, self._nodes[node_id]) for node_id in node_ids if node_id in self._nodes]
        idle = [
            node_id for node_id, node in nodes if self.state(node_id, now_ms) is ConnectionState.DISCONNECTED
        ]
        if not idle:
            return None, math.inf
        begun_ms = max((node.begun_ms for _, node in nodes if node.state in _UNDER_WAY), default=-math.inf)
        wait_ms = max(0.0, begun_ms + STAGGER_MS - now_ms)
        return (None, wait_ms) if wait_ms else (idle[0], 0.0)

    def needs_addresses(self, node_id: int) -> bool:
        """Returns whether the name must be resolved (again) before ``begin_connect``.

        Every round resolves the name again, since a broker that failed may be back elsewhere (KIP-602).
        """
        return not self._nodes[node_id].addresses

    def begin_resolve(self, node_id: int, now_ms: float) -> None:
        """A name lookup begins; it may take as long as setting up a connection.

        Raises:
            RuntimeError: the node is not in a state to connect.
        """
        self._expect(node_id, now_ms, ConnectionState.DISCONNECTED)
        node = self._nodes[node_id]
        node.state = ConnectionState.RESOLVING
        node.begun_ms = now_ms
        node.lookup = self._attempt(node, now_ms)

    def resolved(self, node_id: int, addresses: Iterable[Address]) -> None:
        """Sets the addresses of a name, in the order in which to try them.

        Raises:
            ValueError: there are none.
        """
        node = self._nodes[node_id]
        found = tuple(dict.fromkeys(addresses))
        if not found:
            raise ValueError(f"no addresses for {node.host}:{node.port}: at least one is needed")
        if node.state is ConnectionState.RESOLVING:
            node.state = ConnectionState.DISCONNECTED
            node.lookup = None
        node.addresses = found
        node.left = list(found)
        # An address that the name no longer has would only mislead a reader of the diagnosis.
        node.failures = {key: value for key, value in node.failures.items() if key in found}

    def resolution_failed(
        self, node_id: int, cause: str | BaseException, now_ms: float, *, advice: str = ""
    ) -> None:
        """The name could not be resolved: backs off."""
        node = self._nodes[node_id]
        self._note(node, None, cause, now_ms, advice)
        node.unreachable = True
        self._back_off(node, now_ms)

    def begin_connect(self, node_id: int, now_ms: float) -> Address:
        """Starts an attempt and returns the address to connect to.

        Raises:
            RuntimeError: the node is not in a state to connect, or has no addresses.
        """
        node = self._nodes[node_id]
        state = self.state(node_id, now_ms)
        if self.connect_delay_ms(node_id, now_ms) > 0:
            raise RuntimeError(f"cannot connect to node {node_id}: it is {state.value}, not disconnected")
        if not node.left:
            raise RuntimeError(f"cannot connect to node {node_id}: {node.host!r} has not been resolved")
        if not node.attempts:
            node.begun_ms = now_ms
        address = node.left.pop(0)
        node.attempts[address] = self._attempt(node, now_ms)
        node.next_at_ms = now_ms + STAGGER_MS
        node.follow_attempts()
        return address

    def _attempt(self, node: _Node, now_ms: float) -> _Attempt:
        # The first attempt gets the first timeout, as the first failure gets the first backoff.
        return _Attempt(self._setup_timeout.delay_ms(node.rounds + 1, self._random), now_ms)

    def connected(self, node_id: int, address: Address, now_ms: float) -> list[Address]:
        """The socket is connected; TLS, SASL and ApiVersions follow within the same setup timeout.

        Returns:
            The addresses whose attempts have lost; the caller closes them.
        """
        node = self._nodes[node_id]
        attempt = self._expect_attempt(node_id, address, now_ms, ConnectionState.CONNECTING)
        attempt.handshaking = True
        node.state = ConnectionState.HANDSHAKING
        return [] if node.bootstrap else node.others_than(address)

    def ready(self, node_id: int, address: Address, now_ms: float) -> list[Address]:
        """The handshake is complete: forgets failures and backoff.

        Returns:
            As for ``connected``.
        """
        node = self._nodes[node_id]
        self._expect_attempt(node_id, address, now_ms, ConnectionState.HANDSHAKING)
        others = node.others_than(address)
        node.attempts = {}
        node.connected_to = address
        node.state = ConnectionState.READY
        node.last_active_ms = now_ms
        node.rounds = 0
        node.unreachable = False
        node.reached = True
        node.failures.clear()
        self._refused.pop((node.host, node.port), None)
        return others

    def active(self, node_id: int, now_ms: float) -> None:
        """Something was sent or received: the idle time starts again."""
        self._nodes[node_id].last_active_ms = now_ms

    def failed(
        self,
        node_id: int,
        address: Address,
        cause: str | BaseException,
        now_ms: float,
        *,
        try_next_address: bool = True,
        advice: str = "",
    ) -> list[Address]:
        """An attempt failed or an established connection broke; the caller closes the socket.

        Args:
            node_id: the node.
            address: which of its addresses.
            cause: what happened; a text or the exception.
            now_ms: the current time.
            try_next_address: False if other addresses would fail too and trying them would do harm, for
                example after a rejected password.
            advice: what to do about it, for the diagnosis.

        Returns:
            The addresses whose attempts are given up too; the caller closes them.
        """
        node = self._nodes[node_id]
        if node.connected_to == address:
            self._note(node, address, cause, now_ms, advice)
            return self._back_off(node, now_ms, refused=not try_next_address)
        if node.attempts.pop(address, None) is None:
            return []
        self._note(node, address, cause, now_ms, advice)
        if try_next_address and (node.attempts or node.left):
            node.next_at_ms = now_ms
            node.follow_attempts()
            return []
        node.unreachable = True
        return self._back_off(node, now_ms, refused=not try_next_address)

    def closed(self, node_id: int) -> list[Address]:
        """The connection was closed, or the attempt given up, on purpose: not a failure, no backoff.

        Returns:
            The addresses of attempts in progress; the caller closes them.
        """
        return self._nodes[node_id].end(ConnectionState.DISCONNECTED)

    def timed_out(self, now_ms: float) -> list[tuple[int, Address | None, str]]:
        """Returns the attempts that took too long, each with the cause to pass to ``failed``.

        An entry without an address is a name lookup; pass its cause to ``resolution_failed``.
        """
        late: list[tuple[int, Address | None, str]] = []
        for node_id, node in self._nodes.items():
            # Most nodes of a large cluster are not connected to, and this is called in each tick.
            if node.state is ConnectionState.DISCONNECTED:
                continue
            if node.lookup is not None and now_ms >= node.lookup.deadline_ms:
                late.append((node_id, None, f"name resolution took over {node.lookup.timeout_ms:.0f} ms"))
            for address, attempt in node.attempts.items():
                if now_ms >= attempt.deadline_ms:
                    what = "completed handshake" if attempt.handshaking else "connection"
                    late.append((node_id, address, f"no {what} within {attempt.timeout_ms:.0f} ms"))
        return late

    def idle(self, now_ms: float) -> list[int]:
        """Ready nodes without traffic for ``connections_max_idle_ms``: close them, then call ``closed``."""
        return [
            node_id
            for node_id, node in self._nodes.items()
            if node.state is ConnectionState.READY and now_ms - node.last_active_ms >= self._max_idle_ms
        ]

    def next_event_ms(self, now_ms: float) -> float:
        """Returns the time until a timeout, the next address, the end of a backoff or an idle close is due;
        infinity for never."""
        due_ms = math.inf
        for node in self._nodes.values():
            if node.state is ConnectionState.DISCONNECTED:
                continue
            if node.lookup is not None:
                due_ms = min(due_ms, node.lookup.deadline_ms)
            for attempt in node.attempts.values():
                due_ms = min(due_ms, attempt.deadline_ms)
            if node.attempts and node.left and not node.has_winner():
                due_ms = min(due_ms, node.next_at_ms)
            if node.state is ConnectionState.READY:
                due_ms = min(due_ms, node.last_active_ms + self._max_idle_ms)
            elif node.state is ConnectionState.BACKING_OFF and node.retry_at_ms > now_ms:
                # A backoff that is over is not an event: if no one needs the node, 0 would spin the loop.
                due_ms = min(due_ms, node.retry_at_ms)
        return max(0.0, due_ms - now_ms)

    def all_failing(self, node_ids: Iterable[int]) -> bool:
        """Returns whether connecting to each of these nodes has failed: time to rebootstrap (KIP-899).

        A lost connection alone does not count: brokers restart, and close idle connections. A failed attempt
        since then does. False if there are no nodes, or if one of them is unknown here and so was never
        tried.
        """
        none = True
        for node_id in node_ids:
            node = self._nodes.get(node_id)
            if node is None or not node.unreachable:
                # Most often the first one: this is called in each tick, and there may be 1,000 nodes.
                return False
            none = False
        return not none

    def advice(self, node_id: int, mapped: bool) -> str:
        """Says what to do if a node cannot be reached: nothing for one that was, or that users configured.

        The addresses that brokers advertise are the commonest mistake in a cluster's configuration, and the
        user has never seen them.

        Args:
            node_id: the node.
            mapped: whether ``broker_address`` is set.
        """
        node = self._nodes.get(node_id)
        if node is None or node.bootstrap or node.reached:
            return ""
        if any(n.bootstrap and (n.host, n.port) == (node.host, node.port) for n in self._nodes.values()):
            return ""
        return (
            f"broker {node_id} advertises {node.host}:{node.port}"
            + (", which broker_address maps" if mapped else "")
            + ": this host must be able to resolve and reach it. Correct advertised.listeners in the "
            f"broker's configuration, or {'what broker_address returns' if mapped else 'set broker_address'}"
        )

    def diagnosis(self, now_ms: float) -> str:
        """Describes each failing node, with each address and its last failure; empty if none fails.

        For example: ``broker1:9092 (127.0.0.1:9092): connection refused 3 times, last 0.2 s ago``. A node
        that has not failed yet is described if an attempt is in progress.
        """
        lines = []

        def where(node: _Node, address: Address | None) -> str:
            name = f"{node.host}:{node.port}"
            return name if address is None or str(address) == name else f"{name} ({address})"

        # Copies: a calling thread reads while the sender thread adds and removes.
        # A bootstrap server and the broker behind it are two nodes with the same failures to report.
        for node in list(self._nodes.values()):
            for address, failure in list(node.failures.items()):
                times = "" if failure.times == 1 else f" {failure.times} times, last"
                ago = f"{max(0.0, now_ms - failure.at_ms) / 1000:.1f} s ago"
                advice = f"; {failure.advice}" if failure.advice else ""
                lines.append(f"{where(node, address)}: {failure.cause}{times} {ago}{advice}")
            for address, attempt in list(node.attempts.items()):
                if address not in node.failures and not node.reached:
                    what = "connected, and no answer for" if attempt.handshaking else "connecting for"
                    took_ms = now_ms - (attempt.deadline_ms - attempt.timeout_ms)
                    lines.append(f"{where(node, address)}: {what} {took_ms / 1000:.1f} s")
        return "; ".join(dict.fromkeys(lines))

    def _expect(self, node_id: int, now_ms: float, state: ConnectionState) -> None:
        actual = self.state(node_id, now_ms)
        if actual is not state:
            raise RuntimeError(f"node {node_id} is {actual.value}, it must be {state.value} for this event")

    def _expect_attempt(
        self, node_id: int, address: Address, now_ms: float, state: ConnectionState
    ) -> _Attempt:
        attempt = self._nodes[node_id].attempts.get(address)
        if attempt is None:
            self._expect(node_id, now_ms, state)
            raise RuntimeError(f"node {node_id} is not being connected to at {address}")
        if attempt.handshaking is not (state is ConnectionState.HANDSHAKING):
            actual = ConnectionState.HANDSHAKING if attempt.handshaking else ConnectionState.CONNECTING
            raise RuntimeError(
                f"node {node_id} is {actual.value} at {address}, it must be {state.value} for this event"
            )
        return attempt

    @staticmethod
    def _note(
        node: _Node, address: Address | None, cause: str | BaseException, now_ms: float, advice: str
    ) -> None:
        text = cause_text(cause)
        known = node.failures.get(address)
        if known is not None and known.cause == text:
            known.times += 1
            known.at_ms = now_ms
            known.advice = advice
        else:
            node.failures[address] = _Failure(text, now_ms, advice)

    def _back_off(self, node: _Node, now_ms: float, refused: bool = False) -> list[Address]:
        node.rounds += 1
        delay_ms = self._backoff.delay_ms(node.rounds, self._random)
        if refused:
            # Trying it again soon would do harm as well.
            delay_ms = max(delay_ms, self._refused_backoff.delay_ms(1, self._random))
            self._refused[node.host, node.port] = now_ms + delay_ms
        node.retry_at_ms = now_ms + delay_ms
        return node.end(ConnectionState.BACKING_OFF)
