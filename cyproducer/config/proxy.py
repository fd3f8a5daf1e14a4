"""Reads the URL of a proxy. Does not own the exchange with it (``net/proxy``). A pure function."""

from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from cyproducer.config.option_kinds import Secret

DEFAULT_PORTS = {"socks5": 1080, "socks5h": 1080, "http": 8080}


class Proxy(NamedTuple):
    """A proxy's address, and the credentials for it."""

    scheme: str
    host: str
    port: int
    user: str | None
    password: Secret

    def __repr__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"


def parse_proxy(url: str | Secret) -> Proxy:
    """Reads ``scheme://[user:password@]host[:port]``. Raises ValueError, whose text omits the URL."""
    found = _parsed(url.reveal() if isinstance(url, Secret) else url)
    if isinstance(found, str):
        raise ValueError(found)
    return found


def _parsed(url: str) -> Proxy | str:
    """The proxy, or what is wrong. Never raises, because its local variables contain the password."""
    if not url.isascii():
        # Bytes of environment variables that are not valid UTF-8 become lone surrogates, which can't be
        # encoded.
        try:
            url.encode()
        except UnicodeEncodeError:
            return "it is not valid UTF-8"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "it has no valid host and port"
    if parts.scheme not in DEFAULT_PORTS:
        return f"its scheme must be one of {', '.join(DEFAULT_PORTS)}"
    host = parts.hostname or ""
    if not host or parts.path not in ("", "/") or parts.query or parts.fragment:
        return "it must have a host, a port, and nothing else behind them"
    if not host.isprintable():
        return "its host has a control character"
    user = unquote(parts.username) if parts.username is not None else None
    password = unquote(parts.password or "")
    if user is not None and parts.scheme.startswith("socks"):
        for text, what in ((user, "user"), (password, "password")):
            if not 1 <= len(text.encode()) <= 255:
                return f"SOCKS5's {what} must have 1 to 255 bytes"
    return Proxy(parts.scheme, host, port or DEFAULT_PORTS[parts.scheme], user, Secret(password))
