"""Authentication and authorization of an embedded cluster.

Owns the SASL requests, the principal of a connection, the end of its session, and the table of rights. Does
not own the messages of the mechanisms (``authentication``) or TLS (``tls``).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker.world import NS_PER_MS
from cyproducer.wire.messages import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE

if TYPE_CHECKING:
    from cyproducer.testing.broker.authentication import Exchange, Validator
    from cyproducer.testing.broker.server import Call, Connection

ANONYMOUS: Final = "User:ANONYMOUS"
BEFORE: Final = (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE)
"""The requests that a connection is allowed to send before it is authenticated."""

#: The numbers of operations (KIP-140).
OPERATIONS: Final = {
    "READ": 3,
    "WRITE": 4,
    "CREATE": 5,
    "DELETE": 6,
    "ALTER": 7,
    "DESCRIBE": 8,
    "CLUSTER_ACTION": 9,
    "DESCRIBE_CONFIGS": 10,
    "ALTER_CONFIGS": 11,
    "IDEMPOTENT_WRITE": 12,
}
#: The operations that a kind of resource has.
OF: Final = {
    "topic": ("READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
    "group": ("READ", "DELETE", "DESCRIBE"),
    "cluster": (
        "CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS",
        "IDEMPOTENT_WRITE",
    ),
    "transactional_id": ("WRITE", "DESCRIBE"),
}  # fmt: skip
_IMPLY: Final = {
    "DESCRIBE": ("READ", "WRITE", "DELETE", "ALTER"),
    "DESCRIBE_CONFIGS": ("ALTER_CONFIGS",),
}
"""Operation -> the operations that also allow it."""


class Right(NamedTuple):
    """Allows or denies a principal an operation on a resource. ``name`` can end with "*"."""

    allows: bool
    principal: str
    operation: str
    kind: str
    name: str

    def concerns(self, kind: str, name: str) -> bool:
        if self.kind != kind:
            return False
        if self.name.endswith("*"):
            return name.startswith(self.name[:-1])
        return name == self.name


class Session:
    """The state of a connection's authentication."""

    __slots__ = ("ends_ns", "exchange", "mechanism")

    def __init__(self) -> None:
        self.mechanism: str | None = None
        self.exchange: Exchange | None = None
        #: The end of the session in the world's time; None: the session does not end.
        self.ends_ns: int | None = None


class Access:
    """The access rules of one cluster. See ``EmbeddedBroker`` for the arguments."""

    def __init__(
        self,
        users: Mapping[str, str] | None = None,
        mechanisms: Sequence[str] = (),
        validator: "Validator | None" = None,
        session_ms: int = 0,
    ) -> None:
        self.users = dict(users or {})
        self.mechanisms = list(mechanisms)
        self.validator = validator
        self.session_ms = session_ms
        self.rights: list[Right] = []

    # Authentication

    @property
    def anonymous(self) -> str | None:
        """The principal of a connection that has not authenticated; None: authentication is required."""
        return None if self.mechanisms else ANONYMOUS

    def connected(self, connection: "Connection") -> None:
        """Handles a new connection: without SASL, the client certificate determines its principal."""
        if self.mechanisms:
            connection.session = Session()
            return
        certificate = connection.transport.peer_certificate()
        if certificate:
            names = [f"{_SHORT.get(key, key)}={value}" for ((key, value),) in certificate["subject"]]
            connection.principal = "User:" + ",".join(reversed(names))

    def admits(self, call: "Call") -> bool:
        """Whether a connection is allowed to send this request now; otherwise, the caller closes it."""
        session: Session | None = call.connection.session
        if session is None or call.api in BEFORE:
            return True
        if call.connection.principal is None:
            return False
        return session.ends_ns is None or call.world.now_ns < session.ends_ns

    def handshake(self, call: "Call") -> Any:
        """Answers SaslHandshake."""
        session: Session | None = call.connection.session
        response = SASL_HANDSHAKE.response
        if session is None:
            return response(ErrorCode.ILLEGAL_SASL_STATE, [])
        if call.request.mechanism not in self.mechanisms:
            call.connection.is_last = True
            return response(ErrorCode.UNSUPPORTED_SASL_MECHANISM, self.mechanisms)
        # Imported here, as below: it takes long, and most brokers have no SASL.
        from cyproducer.testing.broker import authentication

        session.mechanism = call.request.mechanism
        session.exchange = authentication.exchange(session.mechanism, self.users, self.validator)
        return response(ErrorCode.NO_ERROR, self.mechanisms)

    def authenticate(self, call: "Call") -> Any:
        """Answers SaslAuthenticate."""
        session: Session | None = call.connection.session
        if session is None or session.exchange is None:
            call.connection.is_last = True
            text = "SaslAuthenticate request received without a SaslHandshake"
            return _authenticated(ErrorCode.ILLEGAL_SASL_STATE, text)
        if code := call.fault():
            call.connection.is_last = True
            return _authenticated(code, "the test has asked for this")
        from cyproducer.testing.broker.authentication import Denied

        try:
            answer = session.exchange.send(call.request.auth_bytes)
        except Denied as error:
            # A connection whose authentication has failed is closed after the response.
            call.connection.is_last = True
            return _authenticated(ErrorCode.SASL_AUTHENTICATION_FAILED, str(error))
        if session.mechanism == "OAUTHBEARER" and answer:
            # The token was refused: the failure follows.
            return _authenticated(ErrorCode.NO_ERROR, None, answer)
        if answer[:2] == b"r=":
            return _authenticated(ErrorCode.NO_ERROR, None, answer)
        try:
            next(session.exchange)
        except StopIteration as done:
            name = done.value
        principal = f"User:{name}"
        if call.connection.principal not in (None, principal):
            call.connection.is_last = True
            text = f"Cannot change principals during re-authentication from {call.connection.principal}"
            return _authenticated(ErrorCode.SASL_AUTHENTICATION_FAILED, text)
        call.connection.principal = principal
        session.exchange = None
        if self.session_ms:
            session.ends_ns = call.world.now_ns + self.session_ms * NS_PER_MS
        return _authenticated(ErrorCode.NO_ERROR, None, answer, self.session_ms)

    # Rights

    def allows(self, principal: str, operation: str, kind: str, name: str) -> bool:
        """Whether a principal is allowed to do this; see ``Call.allowed``.

        As with Kafka's ``allow.everyone.if.no.acl.found``, a resource without any right is open to all.
        """
        if not self.rights:
            return True
        found = [right for right in self.rights if right.concerns(kind, name)]
        if not found:
            return True
        mine = [right for right in found if right.principal in (principal, "*", "User:*")]
        if any(not right.allows and right.operation in (operation, "ALL") for right in mine):
            return False
        enough = (operation, "ALL", *_IMPLY.get(operation, ()))
        return any(right.allows and right.operation in enough for right in mine)

    def operations(self, principal: str, kind: str, name: str) -> int:
        """Returns the operations that a principal is allowed, as a bit field (KIP-430)."""
        return sum(1 << OPERATIONS[each] for each in OF[kind] if self.allows(principal, each, kind, name))


def _authenticated(code: int, text: str | None, answer: bytes = b"", session_ms: int = 0) -> Any:
    return SASL_AUTHENTICATE.response(code, text, answer, session_ms)


_SHORT: Final = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
}
HANDLERS: Final[Mapping[Any, Callable[["Call"], Any]]] = {
    SASL_HANDSHAKE: lambda call: call.cluster.access.handshake(call),
    SASL_AUTHENTICATE: lambda call: call.cluster.access.authenticate(call),
}
