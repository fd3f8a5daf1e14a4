"""The scripted broker's side of SASL: PLAIN and SCRAM, as a state machine per connection.

Written from RFC 4616 and RFC 5802; shares no code with the package. Does no I/O.
"""

import base64
import functools
import hashlib
import hmac
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
UNSUPPORTED_MECHANISM, ILLEGAL_STATE, FAILED = 33, 34, 58

Exchange = Generator[bytes, bytes, None]

#: Servers use the same salt for everyone: a password is hashed once per run.
salted_password = functools.lru_cache(hashlib.pbkdf2_hmac)


class RefusedError(Exception):
    """The client is not who it says. The text is the broker's message."""


@dataclass
class SaslServer:
    """What the broker accepts. Shared by all connections of a cluster."""

    users: dict[str, str] = field(default_factory=lambda: {"alice": "secret"})
    mechanisms: tuple[str, ...] = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    iterations: int = 4096
    lifetime_ms: int = 0
    own: Callable[[str], Exchange] | None = None
    """Makes the exchange of a mechanism instead of the ones below."""
    tries: list[str] = field(default_factory=list)
    """The mechanism of each exchange that a client began."""

    def begin(self, mechanism: str) -> Exchange:
        self.tries.append(mechanism)
        if self.own is not None:
            return self.own(mechanism)
        return self._plain() if mechanism == "PLAIN" else self._scram(mechanism)

    def _plain(self) -> Exchange:
        _, user, password = (yield b"").split(b"\0")
        if self.users.get(user.decode()) != password.decode():
            raise RefusedError("Authentication failed: Invalid username or password")

    def _scram(self, mechanism: str) -> Exchange:
        name = HASHES[mechanism]
        first = (yield b"").decode()
        assert first.startswith("n,,"), first
        bare = first[3:]
        fields = dict(part.split("=", 1) for part in bare.split(","))
        user = fields["n"].replace("=2C", ",").replace("=3D", "=")
        if user not in self.users:
            raise RefusedError("Authentication failed: Invalid user credentials")
        salt, nonce = b"a salt of the server", fields["r"] + "server"
        server_first = f"r={nonce},s={base64.b64encode(salt).decode()},i={self.iterations}"
        final = (yield server_first.encode()).decode()
        without_proof, _, proof = final.rpartition(",p=")
        assert without_proof == f"c=biws,r={nonce}", final
        salted = salted_password(name, self.users[user].encode(), salt, self.iterations)
        signed = f"{bare},{server_first},{without_proof}".encode()
        stored = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
        signature = hmac.digest(stored, signed, name)
        key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        if hashlib.new(name, key).digest() != stored:
            raise RefusedError("Authentication failed: Invalid user credentials")
        server = hmac.digest(hmac.digest(salted, b"Server Key", name), signed, name)
        yield b"v=" + base64.b64encode(server)


class SaslState:
    """The state of one connection."""

    def __init__(self) -> None:
        self._exchange: Exchange | None = None
        self.authenticated = False

    @property
    def between(self) -> bool:
        """Whether a handshake was made, and no request but an authentication may come."""
        return self._exchange is not None

    def handshake(self, server: SaslServer, mechanism: str) -> tuple[int, tuple[str, ...]]:
        """Returns the error code and the mechanisms of the response."""
        if mechanism not in server.mechanisms:
            return (UNSUPPORTED_MECHANISM if server.mechanisms else ILLEGAL_STATE), server.mechanisms
        self._exchange = server.begin(mechanism)
        next(self._exchange)
        return 0, server.mechanisms

    def authenticate(self, server: SaslServer, message: bytes) -> tuple[int, str | None, bytes, int]:
        """Returns error code, message, bytes and lifetime of the response."""
        assert self._exchange is not None, "SaslAuthenticate without SaslHandshake"
        try:
            reply = self._exchange.send(message)
        except RefusedError as error:
            self._exchange = None
            return FAILED, str(error), b"", 0
        except StopIteration:
            reply = b""
            self._exchange = None
            self.authenticated = True
        else:
            if reply.startswith(b"v="):
                self._exchange = None
                self.authenticated = True
        return 0, None, reply, server.lifetime_ms if self.authenticated else 0
