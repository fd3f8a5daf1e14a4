"""The state of the connection to each broker: when to connect, to which address, when to give up.

Owns per-node states, addresses, backoff, deadlines and the history of failures that errors quote. Does
not own sockets, name resolution, the handshake or the clock: it is told what happened and answers what
to do. Used by whoever holds the sender's turn; not thread-safe.

    state          event                    next state
    DISCONNECTED   begin_resolve            RESOLVING
    RESOLVING      resolved                 DISCONNECTED (may connect at once)
    RESOLVING      resolution_failed        BACKING_OFF
    DISCONNECTED   begin_connect            CONNECTING
    CONNECTING     begin_connect            CONNECTING: the next address beside the first
    CONNECTING     connected                HANDSHAKING
    HANDSHAKING    ready                    READY
    CONNECTING,    failed, another under    as that is
    HANDSHAKING    way
    CONNECTING,    failed, address left     DISCONNECTED (may try the next address at once)
    HANDSHAKING    failed, none left        BACKING_OFF
    READY          failed                   BACKING_OFF
    READY, any     closed (on purpose)      DISCONNECTED
    BACKING_OFF    its time is over         DISCONNECTED

Attempts go side by side (RFC 8305, "happy eyeballs"): where one has had no outcome for ``STAGGER_MS``, the
next is begun, and at once where one fails. Of one node's addresses the first that is connected wins; of a
*bootstrap* node's the first whose handshake is over, since nobody knows yet whether a broker listens there.
The others are given back by ``connected`` and ``ready``, to be closed, and have not failed: they are tried
again where the winner's handshake fails. Among nodes, where one of several is wanted, ``seek`` staggers
likewise.
"""

import enum
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from cyproducer.control.retry import ExponentialBackoff

#: How long an attempt is alone, before the next is begun beside it: the Connection Attempt Delay of RFC 8305,
#: section 5, a little above the 250 ms that it recommends.
STAGGER_MS = 300
#: The least time that a connection is kept: closed at once, none would live to see its first request.
SHORTEST_IDLE_MS = 100


class ConnectionState(enum.Enum):
    """Where a node's connection stands."""

    DISCONNECTED = "disconnected"
    RESOLVING = "resolving"
    CONNECTING = "connecting"
    HANDSHAKING = "handshaking"
    READY = "ready"
    BACKING_OFF = "backing off"


_UNDER_WAY = (ConnectionState.RESOLVING, ConnectionState.CONNECTING, ConnectionState.HANDSHAKING)


class Address(NamedTuple):
    """One socket address a host name stands for."""

    #: The name to verify and to authenticate as: the host, or its canonical name (KIP-235).
    name: str
    #: ``socket.AF_INET`` or ``AF_INET6``.
    family: int
    #: What ``socket.connect`` takes.
    sockaddr: tuple[Any, ...]

    def __str__(self) -> str:
        host, port = self.sockaddr[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Failure:
    """The last failure at one address, and how often it came in a row."""

    __slots__ = ("at_ms", "cause", "times")

    def __init__(self, cause: str, at_ms: float) -> None:
        self.cause = cause
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
        #: Addresses of this round; empty: the name wants resolving.
        self.addresses: tuple[Address, ...] = ()
        #: Those of them that are still to be tried.
        self.left: list[Address] = []
        #: Those that are being tried.
        self.attempts: dict[Address, _Attempt] = {}
        #: The look-up of the name, while it is RESOLVING.
        self.lookup: _Attempt | None = None
        #: Where it is READY.
        self.connected_to: Address | None = None
        #: When the look-up was begun, or the first of the attempts.
        self.begun_ms = -math.inf
        #: When the next address may be tried beside those that are.
        self.next_at_ms = -math.inf
        #: Rounds (all addresses, or a lost connection) that failed in a row.
        self.rounds = 0
        #: Whether a round failed to make a connection since there was one.
        self.unreachable = False
        self.retry_at_ms = -math.inf
        self.last_active_ms = 0.0
        #: Last failures, by address; under None those that have none, such as name resolution.
        self.failures: dict[Address | None, _Failure] = {}

    def has_winner(self) -> bool:
        """Whether one of the attempts is the one that goes on: no other is begun beside it."""
        return not self.bootstrap and any(attempt.handshaking for attempt in self.attempts.values())

    def follow_attempts(self) -> None:
        """Sets the state to that of the attempt that is furthest."""
        if not self.attempts:
            self.state = ConnectionState.DISCONNECTED
        elif any(attempt.handshaking for attempt in self.attempts.values()):
            self.state = ConnectionState.HANDSHAKING
        else:
            self.state = ConnectionState.CONNECTING

    def others_than(self, address: Address) -> list[Address]:
        """Gives up the attempts at other addresses, which may be tried again."""
        others = [each for each in self.attempts if each != address]
        for each in others:
            del self.attempts[each]
        self.left = [each for each in self.addresses if each in others or each in self.left]
        return others

    def end(self, state: ConnectionState) -> list[Address]:
        """The round is over; returns the addresses of attempts that were still under way."""
        others = list(self.attempts)
        self.state = state
        self.addresses = ()
        self.left = []
        self.attempts = {}
        self.lookup = None
        self.connected_to = None
        return others


def cause_text(cause: str | BaseException) -> str:
    """A failure in words: no class names where the message says enough, and the class where it doesn't."""
    if isinstance(cause, OSError) and cause.strerror:
        text = str(cause.strerror)
        # "Connection refused" reads better amid a sentence in lower case; "SSL: ..." must stay as it is.
        return text[0].lower() + text[1:] if text[1:2].islower() else text
    return str(cause) or type(cause).__name__


class Connections:
    """All nodes and their connection states; times are milliseconds on the caller's clock."""

    def __init__(
        self,
        random: Callable[[], float],
        *,
        reconnect_backoff_ms: float = 50,
        reconnect_backoff_max_ms: float = 30_000,
        setup_timeout_ms: float = 10_000,
        setup_timeout_max_ms: float = 30_000,
        connections_max_idle_ms: float = 540_000,
    ) -> None:
        """
        Args:
            random: returns a float in [0, 1), for jitter.
            reconnect_backoff_ms: wait after the first failed round, doubled for each further one.
            reconnect_backoff_max_ms: longest such wait.
            setup_timeout_ms: time to connect and to complete the handshake, doubled for each failed
                round (KIP-601).
            setup_timeout_max_ms: longest such time.
            connections_max_idle_ms: an idle connection is closed after this long, ``SHORTEST_IDLE_MS`` at
                least; below 0 never.
        """
        self._random = random
        self._backoff = ExponentialBackoff(reconnect_backoff_ms, reconnect_backoff_max_ms)
        self._setup_timeout = ExponentialBackoff(setup_timeout_ms, setup_timeout_max_ms)
        self._max_idle_ms = (
            math.inf if connections_max_idle_ms < 0 else max(connections_max_idle_ms, SHORTEST_IDLE_MS)
        )
        self._nodes: dict[int, _Node] = {}
        #: Nodes that may come back as they were; see ``retire``.
        self._retired: dict[int, _Node] = {}

    def add(self, node_id: int, host: str, port: int, *, bootstrap: bool = False) -> bool:
        """Makes a node known, or takes over its new address.

        Args:
            node_id: the node.
            host: its host.
            port: its port.
            bootstrap: whether a handshake is what decides among its addresses; see the module.

        Returns:
            Whether the node is new or moved. The connection of one that moved is the caller's to close,
            its state starts afresh.
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
        """Forgets a node like ``remove``, but for its backoff, should it come back at the same address.

        So it is with a rebootstrap: a cluster that names brokers nobody can reach is asked again at the
        pace of their backoff, not in a loop.
        """
        node = self._nodes.pop(node_id, None)
        if node is None:
            return
        node.end(
            ConnectionState.BACKING_OFF
            if node.state is ConnectionState.BACKING_OFF
            else ConnectionState.DISCONNECTED
        )
        # Whether it can be reached is to be found out anew: it may be the same address of another host.
        node.unreachable = False
        self._retired[node_id] = node

    def remove(self, node_id: int) -> None:
        """Forgets a node; closing its connection is the caller's. An unknown node is no error."""
        self._nodes.pop(node_id, None)

    def __contains__(self, node_id: int) -> bool:
        return node_id in self._nodes

    def state(self, node_id: int, now_ms: float) -> ConnectionState:
        """The node's state.

        Raises:
            KeyError: the node is unknown; so for all methods that name one.
        """
        node = self._nodes[node_id]
        if node.state is ConnectionState.BACKING_OFF and now_ms >= node.retry_at_ms:
            node.state = ConnectionState.DISCONNECTED
        return node.state

    def endpoint(self, node_id: int) -> tuple[str, int]:
        """Host and port the node was added with."""
        node = self._nodes[node_id]
        return node.host, node.port

    def is_ready(self, node_id: int) -> bool:
        """Whether requests may be sent to the node; False where it is unknown."""
        node = self._nodes.get(node_id)
        return node is not None and node.state is ConnectionState.READY

    def connect_delay_ms(self, node_id: int, now_ms: float) -> float:
        """How long until a connection may be begun: 0 for now, infinity where that is not to be waited for,
        since one is up, or all that can be tried is being tried."""
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
        """Nodes being connected to whose next address is to be tried beside the others."""
        return [
            node_id
            for node_id, node in list(self._nodes.items())
            if node.attempts and self.connect_delay_ms(node_id, now_ms) <= 0
        ]

    def seek(self, node_ids: Iterable[int], now_ms: float) -> tuple[int | None, float]:
        """Which of these nodes to connect to, where any of them will do; the first that can be comes first.

        Returns:
            The node to begin with now, or None; and how long until the next one may be, as far as that
            depends on attempts under way.
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
        """Whether the name has to be resolved (again) before ``begin_connect``.

        Every round resolves anew, since a broker that failed may have come back elsewhere (KIP-602).
        """
        return not self._nodes[node_id].addresses

    def begin_resolve(self, node_id: int, now_ms: float) -> None:
        """The name is being looked up, for as long as a connection may take to be set up.

        Raises:
            RuntimeError: the node is not in a state to connect.
        """
        self._expect(node_id, now_ms, ConnectionState.DISCONNECTED)
        node = self._nodes[node_id]
        node.state = ConnectionState.RESOLVING
        node.begun_ms = now_ms
        node.lookup = self._attempt(node, now_ms)

    def resolved(self, node_id: int, addresses: Iterable[Address]) -> None:
        """Takes the addresses of a name, in the order in which to try them.

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
        # An address the name no longer stands for would only mislead whoever reads the diagnosis.
        node.failures = {key: value for key, value in node.failures.items() if key in found}

    def resolution_failed(self, node_id: int, cause: str | BaseException, now_ms: float) -> None:
        """The name could not be resolved: backs off."""
        node = self._nodes[node_id]
        self._note(node, None, cause, now_ms)
        node.unreachable = True
        self._back_off(node, now_ms)

    def begin_connect(self, node_id: int, now_ms: float) -> Address:
        """Starts an attempt and says which address to connect to.

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
        # A first try gets the first timeout, as the first failure gets the first backoff.
        return _Attempt(self._setup_timeout.delay_ms(node.rounds + 1, self._random), now_ms)

    def connected(self, node_id: int, address: Address, now_ms: float) -> list[Address]:
        """The socket is connected; TLS, SASL and ApiVersions follow within the same setup timeout.

        Returns:
            The addresses whose attempts this one has won against: theirs are to be closed.
        """
        node = self._nodes[node_id]
        attempt = self._expect_attempt(node_id, address, now_ms, ConnectionState.CONNECTING)
        attempt.handshaking = True
        node.state = ConnectionState.HANDSHAKING
        return [] if node.bootstrap else node.others_than(address)

    def ready(self, node_id: int, address: Address, now_ms: float) -> list[Address]:
        """The handshake is over: failures and backoff are forgotten.

        Returns:
            As ``connected`` does.
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
        node.failures.clear()
        return others

    def active(self, node_id: int, now_ms: float) -> None:
        """Something was sent or received: the idle time starts anew."""
        self._nodes[node_id].last_active_ms = now_ms

    def failed(
        self,
        node_id: int,
        address: Address,
        cause: str | BaseException,
        now_ms: float,
        *,
        try_next_address: bool = True,
    ) -> list[Address]:
        """An attempt failed or an established connection broke; the socket is the caller's to close.

        Args:
            node_id: the node.
            address: which of its addresses.
            cause: what happened; words, or the exception.
            now_ms: the time.
            try_next_address: False where other addresses would fail alike and trying them would harm,
                such as after a refused password.

        Returns:
            The addresses whose attempts are given up with this one: theirs are to be closed.
        """
        node = self._nodes[node_id]
        if node.connected_to == address:
            self._note(node, address, cause, now_ms)
            return self._back_off(node, now_ms)
        if node.attempts.pop(address, None) is None:
            return []
        self._note(node, address, cause, now_ms)
        if try_next_address and (node.attempts or node.left):
            node.next_at_ms = now_ms
            node.follow_attempts()
            return []
        node.unreachable = True
        return self._back_off(node, now_ms)

    def closed(self, node_id: int) -> list[Address]:
        """The connection was closed, or the attempt given up, on purpose: no failure, no backoff.

        Returns:
            The addresses of attempts under way: theirs are to be closed.
        """
        return self._nodes[node_id].end(ConnectionState.DISCONNECTED)

    def timed_out(self, now_ms: float) -> list[tuple[int, Address | None, str]]:
        """Attempts that took too long, each with the cause to hand to ``failed``.

        Without an address it is a look-up, and ``resolution_failed`` is to be told.
        """
        late: list[tuple[int, Address | None, str]] = []
        for node_id, node in self._nodes.items():
            if node.lookup is not None and now_ms >= node.lookup.deadline_ms:
                late.append((node_id, None, f"name resolution took over {node.lookup.timeout_ms:.0f} ms"))
            for address, attempt in node.attempts.items():
                if now_ms >= attempt.deadline_ms:
                    what = "completed handshake" if attempt.handshaking else "connection"
                    late.append((node_id, address, f"no {what} within {attempt.timeout_ms:.0f} ms"))
        return late

    def idle(self, now_ms: float) -> list[int]:
        """Ready nodes without traffic for ``connections_max_idle_ms``: to be closed, then ``closed``."""
        return [
            node_id
            for node_id, node in self._nodes.items()
            if node.state is ConnectionState.READY and now_ms - node.last_active_ms >= self._max_idle_ms
        ]

    def next_event_ms(self, now_ms: float) -> float:
        """How long until a timeout, the next address, the end of a backoff or an idle close is due; infinity
        for never."""
        due_ms = math.inf
        for node in self._nodes.values():
            if node.lookup is not None:
                due_ms = min(due_ms, node.lookup.deadline_ms)
            for attempt in node.attempts.values():
                due_ms = min(due_ms, attempt.deadline_ms)
            if node.attempts and node.left and not node.has_winner():
                due_ms = min(due_ms, node.next_at_ms)
            if node.state is ConnectionState.READY:
                due_ms = min(due_ms, node.last_active_ms + self._max_idle_ms)
            elif node.state is ConnectionState.BACKING_OFF and node.retry_at_ms > now_ms:
                # A backoff that is over is no event: nobody may want the node, and 0 would spin the loop.
                due_ms = min(due_ms, node.retry_at_ms)
        return max(0.0, due_ms - now_ms)

    def all_failing(self, node_ids: Iterable[int]) -> bool:
        """Whether no connection to any of these nodes could be made: time to rebootstrap (KIP-899).

        A connection that was lost says nothing yet: brokers restart, and close what was idle. What counts
        is an attempt that failed since. False where there are no nodes, or where one of them is unknown
        here and so was never tried.
        """
        nodes = [self._nodes.get(node_id) for node_id in node_ids]
        return bool(nodes) and all(node is not None and node.unreachable for node in nodes)

    def diagnosis(self, now_ms: float) -> str:
        """Each node that is in trouble, with each address and its last failure; empty without trouble.

        For example: ``broker1:9092 (127.0.0.1:9092): connection refused 3 times, last 0.2 s ago``.
        """
        lines = []
        # Copies: a caller's thread asks, while the sender's adds and forgets.
        # A bootstrap server and the broker behind it are two nodes with one story to tell.
        for node in list(self._nodes.values()):
            for address, failure in list(node.failures.items()):
                where = f"{node.host}:{node.port}"
                if address is not None and str(address) != where:
                    where += f" ({address})"
                times = "" if failure.times == 1 else f" {failure.times} times, last"
                ago = f"{max(0.0, now_ms - failure.at_ms) / 1000:.1f} s ago"
                lines.append(f"{where}: {failure.cause}{times} {ago}")
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
    def _note(node: _Node, address: Address | None, cause: str | BaseException, now_ms: float) -> None:
        text = cause_text(cause)
        known = node.failures.get(address)
        if known is not None and known.cause == text:
            known.times += 1
            known.at_ms = now_ms
        else:
            node.failures[address] = _Failure(text, now_ms)

    def _back_off(self, node: _Node, now_ms: float) -> list[Address]:
        node.rounds += 1
        node.retry_at_ms = now_ms + self._backoff.delay_ms(node.rounds, self._random)
        return node.end(ConnectionState.BACKING_OFF)
