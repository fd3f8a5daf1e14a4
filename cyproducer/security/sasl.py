"""SASL mechanisms as conversations: what to send, what to compute, and when it is over.

Owns the messages of each mechanism. Does not own the requests that carry them or their order
(``net/authentication``). A mechanism is a generator: it yields a ``Send`` and gets the broker's reply,
or yields a ``Compute`` and gets its result; it returns when the broker has accepted the client, as far as the
mechanism can know. It does no I/O itself and reads no clock.

A ``Compute`` may block or run users' code: the driver calls it on another thread.
"""

import hashlib
import json
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple

from cyproducer.base.clock import Clock
from cyproducer.config import ProducerConfig
from cyproducer.config.option_kinds import Hidden, Secret, called, hidden
from cyproducer.errors import SaslAuthenticationFailedError
from cyproducer.security.scram import Scram
from cyproducer.security.tokens import Token, Tokens

#: If SCRAM's hash needs more iterations than this, it is computed on another thread. These take 6 ms with
#: SHA-256.
QUICK_ITERATIONS = 16384


class Send:
    """Bytes for the broker; the reply is the broker's message. Shows no credentials.

    ``note``: added to the error if the broker refuses the bytes. ``on_refusal``: called in that case; it must
    not block.
    """

    __slots__ = ("hidden", "note", "on_refusal")

    def __init__(
        self, message: bytes, note: str = "", on_refusal: Callable[[], object] | None = None
    ) -> None:
        self.hidden = Hidden(message)
        self.note = note
        self.on_refusal = on_refusal

    @property
    def message(self) -> bytes:
        """The bytes."""
        return self.hidden.reveal()


class Compute(NamedTuple):
    """A call to make on another thread; the reply is its result. ``waits_for``: what the call waits for, for
    messages."""

    function: Callable[[], Any]
    waits_for: str = "the credentials"


Conversation = Generator[Send | Compute, Any, None]


SaltedPasswords = dict[bytes, Hidden[bytes]]
"""The hashed passwords of earlier SCRAM exchanges, so that a reconnection does not hash again.

The keys are also hashes: the passwords themselves are not kept here. For one thread.
"""


class SharedCredentials:
    """What the conversations of one producer share."""

    def __init__(self, config: ProducerConfig, clock: Clock, rng: Callable[[], float]) -> None:
        """Raises KafkaConfigurationError if an option's file cannot be used, or a package is missing."""
        self.salted: SaltedPasswords = {}
        #: None for mechanisms without tokens.
        self.tokens: Tokens | None = None
        # Imported here: few programs need these modules, and their own imports take long.
        if config.sasl_mechanism == "GSSAPI":
            import cyproducer.security.gssapi  # noqa: F401
        elif (provider := _provider(config)) is not None:
            url = config.sasl_oauthbearer_token_endpoint_url
            self.tokens = Tokens(provider, clock, rng, url or "its provider", config.client_id)


def _provider(config: ProducerConfig) -> Any:
    """Returns the token provider; None for mechanisms without tokens."""
    if config.sasl_mechanism == "AWS_MSK_IAM":
        from cyproducer.security.aws import AwsTokens

        return AwsTokens(config)
    if config.sasl_mechanism != "OAUTHBEARER":
        return None
    if config.sasl_oauthbearer_token_endpoint_url is not None:
        from cyproducer.security.oidc import OidcTokens

        return OidcTokens(config)
    return config.sasl_oauth_token_provider


def wire_mechanism(config: ProducerConfig) -> str:
    """Returns the mechanism that is requested from the broker."""
    mechanism = str(config.sasl_mechanism)
    return "OAUTHBEARER" if mechanism == "AWS_MSK_IAM" else mechanism


def converse(config: ProducerConfig, credentials: SharedCredentials, host: str) -> Conversation:
    """Returns the conversation of ``sasl_mechanism`` with one broker; ``host`` is its name."""
    mechanism = config.sasl_mechanism
    if mechanism == "PLAIN":
        return plain(config)
    if mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        return scram(config, mechanism, credentials.salted)
    if mechanism == "GSSAPI":
        from cyproducer.security import gssapi  # see ``SharedCredentials``

        return gssapi.converse(config, host)
    assert credentials.tokens is not None, mechanism
    return oauthbearer(credentials.tokens)


def _credentials(config: ProducerConfig) -> Generator[Compute, Any, tuple[str, Secret]]:
    """Returns user and password. Callables are called on another thread."""
    user, password = config.sasl_plain_username, config.sasl_plain_password
    if callable(user) or callable(password):
        found: tuple[str, Secret] = yield Compute(partial(_call, user, password))
        return found
    return _call(user, password)


def _call(user: Any, password: Secret | Callable[[], str] | None) -> tuple[str, Secret]:
    return called(user) if callable(user) else user, hidden(password) or Secret("")


def plain(config: ProducerConfig) -> Conversation:
    """PLAIN (RFC 4616): the password in clear text."""
    user, password = yield from _credentials(config)
    if "\0" in user or "\0" in password.reveal():
        raise SaslAuthenticationFailedError("PLAIN: a user name or password cannot contain a zero byte")
    yield Send(f"\0{user}\0{password.reveal()}".encode())


def scram(config: ProducerConfig, mechanism: str, salted: SaltedPasswords) -> Conversation:
    """SCRAM-SHA-256 or SCRAM-SHA-512."""
    user, password = yield from _credentials(config)
    exchange = Scram(mechanism, user, password, token=config.sasl_delegation_token)
    exchange.read_first((yield Send(exchange.first())))
    # In one expression: the stack frames of an error must not contain the password.
    key = hashlib.sha256(
        repr((mechanism, user, password.reveal(), exchange.salt, exchange.iterations)).encode()
    ).digest()
    hashed = salted.get(key)
    if hashed is None:
        if exchange.iterations > QUICK_ITERATIONS:
            hashed = yield Compute(exchange.salted_password)
        else:
            hashed = exchange.salted_password()
        if len(salted) >= 16:
            salted.clear()
        salted[key] = hashed
    exchange.read_final((yield Send(exchange.final(hashed))))


def oauthbearer(tokens: Tokens) -> Conversation:
    """OAUTHBEARER (RFC 7628)."""
    token: Token = yield Compute(tokens.current, f"a token from {tokens.source}")
    extensions = "".join(f"\x01{name}={value}" for name, value in token.extensions.items())
    reject = partial(tokens.reject, token)
    # Brokers may also refuse a token immediately, without the error that is read below.
    reply = yield Send(
        f"n,,\x01auth=Bearer {token.text.reveal()}{extensions}\x01\x01".encode(), on_refusal=reject
    )
    if reply:
        reject()
        # The reply is an error, which the client acknowledges; then the broker ends the exchange (section
        # 3.2.3).
        yield Send(b"\x01", f"the broker's reason is {_error_of(reply)}")


def _error_of(reply: bytes) -> str:
    """Returns the content of a server's error message as readable text."""
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
