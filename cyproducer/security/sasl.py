"""SASL mechanisms as conversations: what to send, what to compute, and when it is over.

Owns the messages of each mechanism. Does not own the requests that carry them or their order
(``network/authentication``). A mechanism is a generator: it yields a ``Send`` and gets the broker's reply,
or yields a ``Compute`` and gets its result; it returns when the broker has accepted the client, as far as the
mechanism can know. It does no I/O itself and reads no clock.

A ``Compute`` may block or run users' code: the driver calls it on another thread.
"""

import hashlib
import json
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple

from cyproducer.config import ProducerConfig
from cyproducer.config.values import Secret, called, revealed
from cyproducer.errors import KafkaConfigurationError, SaslAuthenticationFailedError
from cyproducer.security.scram import Scram
from cyproducer.security.tokens import Token, fetch

#: More iterations of SCRAM's hash are computed on another thread: these take 6 ms with SHA-256.
QUICK_ITERATIONS = 16384


class Send(NamedTuple):
    """Bytes for the broker; the reply is its message. ``note``: what to add if the broker refuses them."""

    message: bytes
    note: str = ""


class Compute(NamedTuple):
    """A call to make on another thread; the reply is its result. Messages say what it ``waits_for``."""

    function: Callable[[], Any]
    waits_for: str = "the credentials"


Conversation = Generator[Send | Compute, Any, None]


class SaltedPasswords:
    """The hashed passwords of earlier SCRAM exchanges, so that a reconnection does not hash again.

    Keys are hashes, too: the passwords themselves are not kept here. For one thread.
    """

    def __init__(self) -> None:
        self._found: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self._found.get(key)

    def put(self, key: bytes, salted: bytes) -> None:
        if len(self._found) >= 16:
            self._found.clear()
        self._found[key] = salted


def prepare(config: ProducerConfig) -> None:
    """Imports what the mechanism needs. Raises KafkaConfigurationError if it is not installed."""
    if config.sasl_mechanism == "GSSAPI":
        import cyproducer.security.gssapi  # noqa: F401


def converse(config: ProducerConfig, salted: SaltedPasswords, host: str) -> Conversation:
    """Returns the conversation of ``sasl_mechanism`` with one broker; ``host`` is its name."""
    mechanism = config.sasl_mechanism
    if mechanism == "PLAIN":
        return plain(config)
    if mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        return scram(config, mechanism, salted)
    if mechanism == "OAUTHBEARER":
        return oauthbearer(config)
    if mechanism == "GSSAPI":
        from cyproducer.security import gssapi  # see ``prepare``

        return gssapi.converse(config, host)
    raise KafkaConfigurationError(f"sasl_mechanism={mechanism!r}: not supported by this version yet")


def _credentials(config: ProducerConfig) -> Generator[Compute, Any, tuple[str, str]]:
    """User and password. Callables are called on another thread."""
    user, password = config.sasl_plain_username, config.sasl_plain_password
    if callable(user) or callable(password):
        found: tuple[str, str] = yield Compute(partial(_call, user, password))
        return found
    return _call(user, password)


def _call(user: Any, password: Secret | Callable[[], str] | None) -> tuple[str, str]:
    return called(user) if callable(user) else user, revealed(password) or ""


def plain(config: ProducerConfig) -> Conversation:
    """PLAIN (RFC 4616): the password in clear text."""
    user, password = yield from _credentials(config)
    if "\0" in user or "\0" in password:
        raise SaslAuthenticationFailedError("PLAIN: a user name or password cannot contain a zero byte")
    yield Send(f"\0{user}\0{password}".encode())


def scram(config: ProducerConfig, mechanism: str, salted: SaltedPasswords) -> Conversation:
    """SCRAM-SHA-256 or SCRAM-SHA-512."""
    user, password = yield from _credentials(config)
    exchange = Scram(mechanism, user, password, token=config.sasl_delegation_token)
    exchange.read_first((yield Send(exchange.first())))
    described = repr((mechanism, user, password, exchange.salt, exchange.iterations))
    key = hashlib.sha256(described.encode()).digest()
    hashed = salted.get(key)
    if hashed is None:
        if exchange.iterations > QUICK_ITERATIONS:
            hashed = yield Compute(exchange.salted_password)
        else:
            hashed = exchange.salted_password()
        salted.put(key, hashed)
    exchange.read_final((yield Send(exchange.final(hashed))))


def oauthbearer(config: ProducerConfig) -> Conversation:
    """OAUTHBEARER (RFC 7628), with a token from the provider for each authentication."""
    token: Token = yield Compute(partial(fetch, config.sasl_oauth_token_provider))
    extensions = "".join(f"\x01{name}={value}" for name, value in token.extensions.items())
    reply = yield Send(f"n,,\x01auth=Bearer {token.text}{extensions}\x01\x01".encode())
    if reply:
        # An error, which the client acknowledges; then the broker ends the exchange (section 3.2.3).
        yield Send(b"\x01", f"the broker's reason is {_error_of(reply)}")


def _error_of(reply: bytes) -> str:
    """What a server's error message says, for people."""
    try:
        found = json.loads(reply)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return "not readable"
    parts = [
        f"{name} {found[name]!r}" for name in ("status", "scope", "openid-configuration") if name in found
    ]
    return ", ".join(parts)[:500] or "not given"
