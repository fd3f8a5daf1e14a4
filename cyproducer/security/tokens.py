"""Gets bearer tokens from the providers that users of other clients have, by duck typing.

Owns the shapes of providers and of what they return. Does not own when a token is needed
(``network/authentication``). Called on a thread of its own: a provider is users' code, and may block.

- kafka-python: an object with ``token()``, and perhaps ``extensions()``, a dict.
- aiokafka: the same with ``async def token()``.
- confluent-kafka's ``oauth_cb``: a callable that takes a string and returns ``(token, expiry)``, or
  ``(token, expiry, principal, extensions)``.
"""

import asyncio
import inspect
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

_TOKEN = re.compile(r"[-_~+/.A-Za-z0-9]+=*")
_EXTENSION = re.compile(r"[A-Za-z]+")


class Token(NamedTuple):
    """A token and the extensions that go with it (KIP-342). Shows neither."""

    text: str
    extensions: Mapping[str, str]

    def __repr__(self) -> str:
        return "Token(***)"


def fetch(provider: Any) -> Token:
    """Calls the provider. Raises TypeError or ValueError, without the token, if it returns none."""
    found = provider.token() if hasattr(provider, "token") else provider("")
    if inspect.isawaitable(found):
        found = asyncio.run(_awaited(found))
    extensions: Any = {}
    if hasattr(provider, "extensions"):
        extensions = provider.extensions() or {}
    if isinstance(found, tuple):
        if len(found) >= 4:
            extensions = found[3] or {}
        found = found[0] if found else None
    if not isinstance(found, str):
        raise TypeError(f"the token provider returned {type(found).__name__}: it must return a string")
    text = found.strip()
    if not _TOKEN.fullmatch(text):
        raise ValueError("the token provider returned text that is no bearer token (RFC 6750)")
    for name, value in dict(extensions).items():
        if not _EXTENSION.fullmatch(name) or name == "auth" or "\x01" in str(value):
            raise ValueError(f"the token provider returned the invalid extension {name!r}")
    return Token(text, {name: str(value) for name, value in dict(extensions).items()})


async def _awaited(found: Any) -> Any:
    return await found
