"""A broker's side of authentication: which requests a connection may carry, and when its session ends.

Owns the sessions of connections, the faults of authentications, and a record of both for the checks. Does not
own the mechanisms (``tests.scripted.scripted_sasl``), framing or the order of requests (``model_broker``).

Like a real broker, it closes a connection unread that carries anything else between the handshake and the end
of the authentication, or after its session has ended (KIP-368). An ended session can still be renewed. A
handshake within a second of the last authentication is an ordinary request: error 34, or the end of the
connection if the session has ended.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.scripted import scripted_wire as wire_format
from tests.scripted.scripted_sasl import ILLEGAL_STATE, Exchange, RefusedError, SaslServer, SaslState
from tests.scripted.scripted_wire import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from tests.simulation.world import NS_PER_MS, World

if TYPE_CHECKING:
    from tests.simulation.model_broker import Conversation
    from tests.simulation.network import Wire

HASTE_MS = 1000.0
"""Connections authenticate again no sooner than this."""
FAULTS = ("refuse", "unsupported", "illegal", "hang", "cut")
"""The password is refused, the mechanism is not enabled, there is no SASL, no answer, a cut connection."""
KINDS = FIRST, AGAIN = "authentication", "re-authentication"


def bearer(accepted: bool) -> Callable[[str], Exchange]:
    """The broker's side of OAUTHBEARER."""

    def exchange(mechanism: str) -> Exchange:
        message = yield b""
        assert message.startswith(b"n,,\x01auth=Bearer token"), message
        if not accepted:
            assert (yield b'{"status":"invalid_token"}') == b"\x01"
            raise RefusedError("the token is not valid")

    return exchange


@dataclass
class SaslManners:
    """How brokers authenticate clients in a history."""

    server: SaslServer
    #: Takes the place of the server while credentials are refused.
    refusing: SaslServer
    #: How late a refusal is sent.
    refusal_ms: tuple[float, float] = (0.0, 0.0)


@dataclass(eq=False)
class Term:
    """A session as the client knows it: from the response that began it."""

    wire: "Wire"
    told_ns: int
    lifetime_ms: int


@dataclass
class Late:
    """A request that came after the session's end; ``term`` is the last one that the client knew."""

    key: int
    begun_ns: int
    term: Term | None


class SaslGate:
    """The authentication of all connections in a history, with a record of it."""

    def __init__(self, world: World, manners: SaslManners) -> None:
        self.world = world
        self.manners = manners
        #: The faults of each broker's authentications now.
        self.faults: dict[int, set[str]] = defaultdict(set)
        #: What no client may do at any time.
        self.trespasses: list[str] = []
        self.late: list[Late] = []
        self.terms: list[Term] = []
        #: For each broker, when the client learnt that it is refused, unless it was accepted since then.
        self.refused_ns: dict[int, int] = {}
        #: Broker, and how long after such a refusal the client connected to it.
        self.retries: list[tuple[int, float]] = []
        #: Whether a client has learnt that it is not accepted on a new connection.
        self.refused_first = False

    def heal(self) -> None:
        self.faults.clear()


class Session:
    """The authentication of one connection."""

    def __init__(self, gate: SaslGate, conversation: "Conversation") -> None:
        self.gate = gate
        self.world = gate.world
        self.conversation = conversation
        self.wire = conversation.wire
        self.node = conversation.broker.node
        self._state = SaslState()
        self._server = gate.manners.server
        self._asked_versions = False
        self._done_ns = 0
        self._ends_ns = 0
        self._term: Term | None = None
        if self.node in gate.refused_ns:
            gate.retries.append((self.node, (self.world.now_ns - gate.refused_ns[self.node]) / NS_PER_MS))

    @property
    def _kind(self) -> str:
        return AGAIN if self._state.authenticated else FIRST

    def see(self, key: int) -> None:
        """A request has arrived; others may still be before it."""
        conversation = self.conversation
        if key == SASL_HANDSHAKE and self._state.authenticated and (conversation.busy or conversation.queue):
            self.world.count("re-authentications behind other requests")

    def admits(self, key: int, begun_ns: int) -> bool:
        """Whether the broker reads a request; else it closes the connection."""
        state, now_ns = self._state, self.world.now_ns
        if state.between:
            return key == SASL_AUTHENTICATE or self._trespass(key, "in the middle of an authentication")
        if not state.authenticated:
            if key == API_VERSIONS and not self._asked_versions:
                self._asked_versions = True
                return True
            return key == SASL_HANDSHAKE or self._trespass(key, "before the authentication")
        if key == SASL_AUTHENTICATE:
            return self._trespass(key, "without a handshake")
        has_ended = bool(self._ends_ns) and now_ns > self._ends_ns
        if key == SASL_HANDSHAKE:
            if now_ns - self._done_ns >= HASTE_MS * NS_PER_MS:
                return True
            self._trespass(key, f"{(now_ns - self._done_ns) / NS_PER_MS:.0f} ms after an authentication")
            return not has_ended
        if has_ended:
            self.world.say(f"{self.wire}: its session has ended")
            self.world.count("connections closed at the end of their session")
            self.gate.late.append(Late(key, begun_ns, self._term))
        return not has_ended

    def _trespass(self, key: int, when: str) -> bool:
        self.gate.trespasses.append(f"{self.wire}: a request with API key {key} {when}")
        return False

    def handle(self, header: wire_format.Header) -> None:
        """Handles a SaslHandshake or SaslAuthenticate request."""
        faults = self.gate.faults[self.node]
        for fault in ("cut", "hang"):
            # Not always with the first request, so that some come between the rounds.
            if fault in faults and self.world.chance(0.5):
                self._note(fault)
                if fault == "cut":
                    self.conversation.hang_up()
                return
        if header.api_key == SASL_HANDSHAKE:
            self._handshake(header, faults)
        else:
            self._authenticate(header)

    def _note(self, what: str) -> None:
        self.world.say(f"{self.wire}: {self._kind}: {what}")
        self.world.count(f"{self._kind}: {what}")

    def _handshake(self, header: wire_format.Header, faults: set[str]) -> None:
        mechanism = wire_format.read_sasl_handshake(header)
        server = self.gate.manners.refusing if "refuse" in faults else self.gate.manners.server
        too_soon = self._state.authenticated and self.world.now_ns - self._done_ns < HASTE_MS * NS_PER_MS
        if "illegal" in faults or too_soon:
            server = SaslServer(mechanisms=())
        elif "unsupported" in faults:
            server = SaslServer(mechanisms=("GSSAPI",))
        self._server = server
        code, names = self._state.handshake(server, mechanism)
        response = wire_format.write_sasl_handshake(header.version, header.correlation_id, names, code)
        if not code:
            self.conversation.answer(response)
            return
        self._note({ILLEGAL_STATE: "illegal"}.get(code, "unsupported"))
        self._refuse(response, closes=code != ILLEGAL_STATE)

    def _authenticate(self, header: wire_format.Header) -> None:
        message = wire_format.read_sasl_authenticate(header)
        kind = self._kind
        code, text, reply, lifetime_ms = self._state.authenticate(self._server, message)
        if header.version == 0:
            lifetime_ms = 0
        response = wire_format.write_sasl_authenticate(
            header.version, header.correlation_id, reply, lifetime_ms, code, text
        )
        if code:
            self._note("refuse")
            delay_ms = self.world.between(self.gate.manners.refusal_ms)
            self.world.after(delay_ms, self._refuse, response)
        elif self._state.between:
            self.conversation.answer(response)
        else:
            self.world.say(f"{self.wire}: {kind} succeeds, for {lifetime_ms} ms")
            self._done_ns = self.world.now_ns
            self._ends_ns = self._done_ns + lifetime_ms * NS_PER_MS if lifetime_ms else 0
            self.conversation.answer(response, then=lambda: self._told(kind, lifetime_ms))

    def _told(self, kind: str, lifetime_ms: int) -> None:
        """The client knows that it is accepted."""
        self.world.count(f"{kind}: succeed")
        self.gate.refused_ns.pop(self.node, None)
        self._term = Term(self.wire, self.world.now_ns, lifetime_ms)
        self.gate.terms.append(self._term)

    def _refuse(self, response: bytes, closes: bool = True) -> None:
        conversation = self.conversation
        if conversation.life != conversation.broker.life or conversation.is_gone:
            return
        if not closes:
            conversation.answer(response, then=self._told_refusal)
            return
        self.wire.send(response, then=self._told_refusal)
        conversation.finish()

    def _told_refusal(self) -> None:
        self.gate.refused_ns[self.node] = self.world.now_ns
        self.gate.refused_first |= not self._state.authenticated
