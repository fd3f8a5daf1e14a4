"""The state of the connection to each broker: when to connect, to which address, when to give up.

Owns per-node states, addresses, backoff, deadlines and the history of failures that errors quote. Does
not own sockets, name resolution, the handshake or the clock: it is told what happened and answers what
to do. Used by whoever holds the sender's turn; not thread-safe.

    state          event                    next state
    DISCONNECTED   begin_connect            CONNECTING
    CONNECTING     connected                HANDSHAKING
    HANDSHAKING    ready                    READY
    CONNECTING,    failed, address left     DISCONNECTED (may try the next address at once)
    HANDSHAKING    failed, none left        BACKING_OFF
    READY          failed                   BACKING_OFF
    READY, any     closed (on purpose)      DISCONNECTED
    BACKING_OFF    its time is over         DISCONNECTED
"""

import enum
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from cyproducer.control.retry import ExponentialBackoff

#: The least time that a connection is kept: closed at once, none would live to see its first request.
SHORTEST_IDLE_MS = 100


class ConnectionState(enum.Enum):
    """Where a node's connection stands."""

    DISCONNECTED = "disconnected"
    CONNECTING = "connecting"
    HANDSHAKING = "handshaking"
    READY = "ready"
    BACKING_OFF = "backing off"


_SETTING_UP = (ConnectionState.CONNECTING, ConnectionState.HANDSHAKING)


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


class _Node:
    __slots__ = (
        "addresses",
        "attempts",
        "deadline_ms",
        "failures",
        "host",
        "last_active_ms",
        "port",
        "retry_at_ms",
        "setup_timeout_ms",
        "state",
        "tried",
        "unreachable",
    )

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.state = ConnectionState.DISCONNECTED
        #: Addresses of this round and how many of them were tried; empty: the name wants resolving.
        self.addresses: tuple[Address, ...] = ()
        self.tried = 0
        #: Rounds (all addresses, or a lost connection) that failed in a row.
        self.attempts = 0
        #: Whether a round failed to make a connection since there was one.
        self.unreachable = False
        self.retry_at_ms = -math.inf
        self.deadline_ms = math.inf
        self.setup_timeout_ms = 0.0
        self.last_active_ms = 0.0
        #: Last failures, by address; under None those that have none, such as name resolution.
        self.failures: dict[Address | None, _Failure] = {}


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

    def add(self, node_id: int, host: str, port: int) -> bool:
        """Makes a node known, or takes over its new address.

        Returns:
            Whether the node is new or moved. The connection of one that moved is the caller's to close,
            its state starts afresh.
        """
        node = self._nodes.get(node_id)
        if node is not None and (node.host, node.port) == (host, port):
            return False
        known = self._retired.pop(node_id, None)
        if known is None or (known.host, known.port) != (host, port):
            known = _Node(host, port)
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
        if node.state is not ConnectionState.BACKING_OFF:
            node.state = ConnectionState.DISCONNECTED
        node.addresses = ()
        node.deadline_ms = math.inf
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
        """How long until a connection may be begun: 0 for now, infinity where one is up or under way."""
        state = self.state(node_id, now_ms)
        if state is ConnectionState.DISCONNECTED:
            return 0.0
        if state is ConnectionState.BACKING_OFF:
            return self._nodes[node_id].retry_at_ms - now_ms
        return math.inf

    def needs_addresses(self, node_id: int) -> bool:
        """Whether the name has to be resolved (again) before ``begin_connect``.

        Every round resolves anew, since a broker that failed may have come back elsewhere (KIP-602).
        """
        return not self._nodes[node_id].addresses

    def resolved(self, node_id: int, addresses: Iterable[Address]) -> None:
        """Takes the addresses of a name, in the order in which to try them.

        Raises:
            ValueError: there are none.
        """
        node = self._nodes[node_id]
        found = tuple(dict.fromkeys(addresses))
        if not found:
            raise ValueError(f"no addresses for {node.host}:{node.port}: at least one is needed")
        node.addresses = found
        node.tried = 0
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
        if state is not ConnectionState.DISCONNECTED:
            raise RuntimeError(f"cannot connect to node {node_id}: it is {state.value}, not disconnected")
        if not node.addresses:
            raise RuntimeError(f"cannot connect to node {node_id}: {node.host!r} has not been resolved")
        node.tried += 1
        node.state = ConnectionState.CONNECTING
        # A first try gets the first timeout, as the first failure gets the first backoff.
        node.setup_timeout_ms = self._setup_timeout.delay_ms(node.attempts + 1, self._random)
        node.deadline_ms = now_ms + node.setup_timeout_ms
        return node.addresses[node.tried - 1]

    def connected(self, node_id: int, now_ms: float) -> None:
        """The socket is connected; TLS, SASL and ApiVersions follow within the same setup timeout."""
        self._expect(node_id, now_ms, ConnectionState.CONNECTING)
        self._nodes[node_id].state = ConnectionState.HANDSHAKING

    def ready(self, node_id: int, now_ms: float) -> None:
        """The handshake is over: failures and backoff are forgotten."""
        self._expect(node_id, now_ms, ConnectionState.HANDSHAKING)
        node = self._nodes[node_id]
        node.state = ConnectionState.READY
        node.deadline_ms = math.inf
        node.last_active_ms = now_ms
        node.attempts = 0
        node.unreachable = False
        node.failures.clear()

    def active(self, node_id: int, now_ms: float) -> None:
        """Something was sent or received: the idle time starts anew."""
        self._nodes[node_id].last_active_ms = now_ms

    def failed(
        self,
        node_id: int,
        cause: str | BaseException,
        now_ms: float,
        *,
        try_next_address: bool = True,
    ) -> None:
        """An attempt failed or an established connection broke; the socket is the caller's to close.

        Args:
            node_id: the node.
            cause: what happened; words, or the exception.
            now_ms: the time.
            try_next_address: False where other addresses would fail alike and trying them would harm,
                such as after a refused password.
        """
        node = self._nodes[node_id]
        if node.state not in (*_SETTING_UP, ConnectionState.READY):
            return
        self._note(node, node.addresses[node.tried - 1], cause, now_ms)
        if node.state in _SETTING_UP and try_next_address and node.tried < len(node.addresses):
            node.state = ConnectionState.DISCONNECTED
            node.deadline_ms = math.inf
            return
        if node.state in _SETTING_UP:
            node.unreachable = True
        self._back_off(node, now_ms)

    def closed(self, node_id: int) -> None:
        """The connection was closed on purpose: no failure, no backoff."""
        node = self._nodes[node_id]
        node.state = ConnectionState.DISCONNECTED
        node.addresses = ()
        node.deadline_ms = math.inf

    def timed_out(self, now_ms: float) -> list[tuple[int, str]]:
        """Nodes whose setup took too long, each with the cause to hand to ``failed``."""
        return [
            (
                node_id,
                f"no {'connection' if node.state is ConnectionState.CONNECTING else 'completed handshake'} "
                f"within {node.setup_timeout_ms:.0f} ms",
            )
            for node_id, node in self._nodes.items()
            if now_ms >= node.deadline_ms
        ]

    def idle(self, now_ms: float) -> list[int]:
        """Ready nodes without traffic for ``connections_max_idle_ms``: to be closed, then ``closed``."""
        return [
            node_id
            for node_id, node in self._nodes.items()
            if node.state is ConnectionState.READY and now_ms - node.last_active_ms >= self._max_idle_ms
        ]

    def next_event_ms(self, now_ms: float) -> float:
        """How long until a timeout, the end of a backoff or an idle close is due; infinity for never."""
        due_ms = math.inf
        for node in self._nodes.values():
            if node.state in _SETTING_UP:
                due_ms = min(due_ms, node.deadline_ms)
            elif node.state is ConnectionState.READY:
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

    @staticmethod
    def _note(node: _Node, address: Address | None, cause: str | BaseException, now_ms: float) -> None:
        text = cause_text(cause)
        known = node.failures.get(address)
        if known is not None and known.cause == text:
            known.times += 1
            known.at_ms = now_ms
        else:
            node.failures[address] = _Failure(text, now_ms)

    def _back_off(self, node: _Node, now_ms: float) -> None:
        node.attempts += 1
        node.state = ConnectionState.BACKING_OFF
        node.retry_at_ms = now_ms + self._backoff.delay_ms(node.attempts, self._random)
        node.addresses = ()
        node.deadline_ms = math.inf
