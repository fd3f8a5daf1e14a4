"""Gets bearer tokens from providers written for other clients, and caches them while they are fresh.

Owns the accepted forms of providers and of what they return (duck typing), and when a token is fetched again.
Does not own what is sent to a broker (``sasl``). A provider is users' code and may block, so it is called on
background threads only.

- kafka-python: an object with ``token()``, and optionally ``extensions()``, which returns a dict.
- aiokafka: the same with ``async def token()``.
- confluent-kafka's ``oauth_cb``: a callable that takes a string and returns ``(token, expiry)``, or
  ``(token, expiry, principal, extensions)``.

``token()`` may also return such a tuple. The expiry is in seconds since 1970, or in milliseconds, as from
AWS's signer. Without one, the expiry in the token is used if the token is a JWT (RFC 7519).
"""

import asyncio
import base64
import inspect
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cyproducer.base.clock import Clock
from cyproducer.base.log import Log
from cyproducer.base.unpatched import allocate_lock
from cyproducer.config.option_kinds import Hidden, Secret

_TOKEN = re.compile(r"[-_~+/.A-Za-z0-9]+=*")
_EXTENSION = re.compile(r"[A-Za-z]+")
#: Expiries above this are milliseconds: in seconds, this is the year 5138.
_LAST_SECOND = 1e11
#: Expiries above this are meaningless, and may not be representable as floats.
_MOST = 1e18
#: A token is fetched again after 80 to 85 % of its lifetime, or this long before its expiry if that is
#: earlier and leaves at least ``_LEAST_S``.
_BEFORE_END_S = 300.0
_LEAST_S = 60.0
#: The time to the next attempt, if fetching fails and the old token is still valid.
_RETRY_S = 10.0


class Token(NamedTuple):
    """A token and the extensions that go with it (KIP-342). Shows neither.

    ``expires_s``: the expiry, in seconds since 1970; None if that is unknown.
    """

    text: Secret
    extensions: Mapping[str, str]
    expires_s: float | None = None

    def __repr__(self) -> str:
        return "Token(***)"


def fetch(provider: Any) -> Token:
    """Calls the provider. Raises TypeError or ValueError, without the token in the message, if the provider
    returns no token."""
    given, expires_s, extensions = _parts(_asked(provider))
    if hasattr(provider, "extensions"):
        others = provider.extensions() or {}
        extensions = others if extensions is None else extensions
    if not isinstance(given.reveal(), str):
        raise TypeError(
            f"the token provider returned {type(given.reveal()).__name__}: it must return a string"
        )
    text = Secret(given.reveal().strip())
    if not _TOKEN.fullmatch(text.reveal()):
        raise ValueError("the token provider returned text that is no bearer token (RFC 6750)")
    extensions = extensions or {}
    for name, value in dict(extensions).items():
        if not _EXTENSION.fullmatch(name) or name == "auth" or "\x01" in str(value):
            raise ValueError(f"the token provider returned the invalid extension {name!r}")
    if expires_s is None:
        expires_s = expiry_of(text.reveal())
    return Token(text, {name: str(value) for name, value in dict(extensions).items()}, expires_s)


def _asked(provider: Any) -> Any:
    found = provider.token() if hasattr(provider, "token") else provider("")
    return asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found


def _parts(found: Any) -> tuple[Hidden[Any], float | None, Any]:
    """Returns the token, its expiry, and its extensions or None. Raises nothing: its variables contain the
    token."""
    if not isinstance(found, tuple):
        return Hidden(found), None, None
    ends = _seconds(found[1]) if len(found) >= 2 else None
    return Hidden(found[0] if found else None), ends, (found[3] or {}) if len(found) >= 4 else None


async def _awaited(found: Any) -> Any:
    return await found


def _seconds(expiry: Any) -> float | None:
    if isinstance(expiry, bool) or not isinstance(expiry, int | float) or not 0 < expiry < _MOST:
        return None
    return expiry / 1000 if expiry > _LAST_SECOND else expiry


def expiry_of(text: str) -> float | None:
    """Returns the claim ``exp`` of a JWT, in seconds; None if there is none. Does not verify the
    signature."""
    parts = text.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
    return _seconds(claims.get("exp")) if isinstance(claims, dict) else None


class _Call:
    """A call of the provider, and what it raised."""

    error: BaseException | None = None


class Tokens:
    """The token of one producer, fetched again before it expires. Thread-safe.

    A token whose expiry is unknown is not kept: each authentication gets its own.
    """

    def __init__(
        self,
        provider: Any,
        clock: Clock,
        rng: Callable[[], float],
        source: str = "its provider",
        client_id: str | None = None,
    ) -> None:
        """
        Args:
            provider: supplies tokens.
            clock: the source of the time.
            rng: returns a float in [0, 1), so that not all producers call their providers at once.
            source: the provider's name, for messages.
            client_id: the producer's client id, for log lines.
        """
        self.source = source
        self._log = Log("cyproducer", client_id)
        self._provider = provider
        self._clock = clock
        self._rng = rng
        self._lock = allocate_lock()  # one call of the provider at a time
        self._token: Token | None = None
        self._ends_ms = -math.inf
        self._rejected: Secret | None = None
        self._call: _Call | None = None
        #: The time at which ``current`` is due to be called, so that the next authentication need not wait:
        #: on the clock, in milliseconds. Infinity if no call is due. Any thread may read it.
        self.refresh_at_ms = math.inf

    def current(self) -> Token:
        """Returns the token; fetches another one if it is due. Blocks. Raises what the provider raises.

        If fetching fails, and the old token has not expired, returns the old token.
        """
        if not self._lock.acquire(blocking=False):
            # Another thread is calling the provider, which may hang. The old token may still be valid.
            token = self._token
            if token is not None and token.text != self._rejected and self._now_ms() < self._ends_ms:
                return token
            call = self._call
            self._lock.acquire()
            if call is not None and call.error is not None:
                # The threads that waited for a call share its outcome. Otherwise each would call the provider
                # in turn, and the last one for a connection that has failed long ago.
                self._lock.release()
                raise call.error
        try:
            token = self._token
            if token is not None and token.text == self._rejected:
                token = None
            if token is not None and self._now_ms() < self.refresh_at_ms:
                return token
            call = self._call = _Call()
            try:
                fetched = fetch(self._provider)
            except BaseException as error:
                # Also asyncio's CancelledError: the next attempt must wait in any case.
                call.error = error
                now_ms = self._now_ms()
                if token is None or now_ms >= self._ends_ms:
                    self._token, self.refresh_at_ms = None, math.inf
                    raise
                self.refresh_at_ms = now_ms + _RETRY_S * 1000
                self._log.warning(
                    "getting a new token failed, the old one is good for another %.0f s: %s: %s",
                    (self._ends_ms - now_ms) / 1000,
                    type(error).__name__,
                    error,
                )
                return token
            self._keep(fetched)
            return fetched
        finally:
            self._call = None
            self._lock.release()

    def reject(self, token: Token) -> None:
        """Marks a token that a broker has refused, so that it is not used again. Does not block."""
        self._rejected = token.text

    def _now_ms(self) -> float:
        return self._clock.monotonic_ns() / 1e6

    def _keep(self, token: Token) -> None:
        left_s = -math.inf if token.expires_s is None else token.expires_s - self._clock.unix_ms() / 1000
        # An expired token is not an error: it may be valid for a broker whose clock differs from this
        # machine's.
        if left_s <= 0:
            self._token, self.refresh_at_ms = None, math.inf
            return
        wait_s = left_s * (0.8 + 0.05 * self._rng())
        if left_s > _BEFORE_END_S + _LEAST_S:
            wait_s = min(wait_s, left_s - _BEFORE_END_S)
        now_ms = self._now_ms()
        # The expiry is set first: a thread that does not wait for the lock reads both.
        self._ends_ms = now_ms + left_s * 1000
        self._token = token
        self.refresh_at_ms = now_ms + wait_s * 1000
