"""Connects through a proxy: SOCKS5 (RFC 1928, 1929) or HTTP CONNECT (RFC 9110, section 9.3.6).

Owns the exchange with the proxy on a connected socket, as a stage. Does not own connecting to the proxy
(``connector``) or the later protocols: TLS and Kafka, with the broker's name. Reads only the proxy's own
bytes.

With every scheme, the proxy resolves the broker's name: often, only the proxy can.
"""

import base64
import socket
from collections.abc import Generator
from typing import NamedTuple

from cyproducer.base.text import MOST_TEXT, printable
from cyproducer.config.option_kinds import Hidden
from cyproducer.config.proxy import Proxy
from cyproducer.errors import KafkaConnectionError
from cyproducer.net.handshake_stage import send_some

#: More bytes of headers than any proxy needs.
MOST_HEADERS = 16384

_SOCKS_REPLIES = {
    1: "general failure",
    2: "connection not allowed by its rules",
    3: "network unreachable",
    4: "host unreachable",
    5: "connection refused",
    6: "connection timed out",
    7: "it does not support CONNECT",
    8: "it does not support this type of address",
}


class _Read(NamedTuple):
    """Requests this many bytes; or, if ``headers``, everything up to an empty line."""

    size: int
    headers: bool = False


Exchange = Generator[bytes | _Read, bytes, None]


def _checked(host: str) -> str:
    """Returns a host name in the form for the proxy.

    Raises KafkaConnectionError if it is invalid. Brokers can advertise any text, and a line break would forge
    a header.
    """
    try:
        name = host if host.isascii() else host.encode("idna").decode()
    except UnicodeError:
        name = ""
    if not 0 < len(name) <= 255 or any(each <= " " or each == "\x7f" for each in name):
        raise KafkaConnectionError(f"{host[:100]!r} is no host name")
    return name


def _socks5(proxy: Proxy, host: str, port: int) -> Exchange:
    host = _checked(host)
    methods = b"\x00\x02" if proxy.user is not None else b"\x00"
    yield b"\x05" + bytes([len(methods)]) + methods
    version, method = yield _Read(2)
    if version != 5:
        raise KafkaConnectionError(f"the proxy {proxy!r} does not answer in SOCKS5")
    if method == 2 and proxy.user is not None:
        yield _user_and_password(proxy.user.encode(), proxy.password.reveal().encode())
        _, status = yield _Read(2)
        if status:
            raise KafkaConnectionError(f"the proxy {proxy!r} refuses the user and password in proxy_url")
    elif method == 0xFF:
        wanted = "other credentials" if proxy.user is not None else "a user and password in proxy_url"
        raise KafkaConnectionError(f"the proxy {proxy!r} wants {wanted}")
    elif method:
        raise KafkaConnectionError(f"the proxy {proxy!r} chose the unknown method {method}")
    yield b"\x05\x01\x00" + _socks_address(host) + port.to_bytes(2, "big")
    _, reply, _, kind = yield _Read(4)
    if reply:
        why = _SOCKS_REPLIES.get(reply, f"error {reply}")
        raise KafkaConnectionError(f"the proxy {proxy!r} cannot connect to {host}:{port}: {why}")
    # The address that the proxy connected from is not needed.
    if kind == 3:
        (length,) = yield _Read(1)
        yield _Read(length + 2)
    else:
        yield _Read({1: 4, 4: 16}.get(kind, 4) + 2)


def _user_and_password(user: bytes, password: bytes) -> bytes:
    return bytes([1, len(user)]) + user + bytes([len(password)]) + password


def _socks_address(host: str) -> bytes:
    for kind, family in ((1, socket.AF_INET), (4, socket.AF_INET6)):
        try:
            return bytes([kind]) + socket.inet_pton(family, host)
        except OSError:
            continue
    name = host.encode("ascii")
    return bytes([3, len(name)]) + name


def _http_connect(proxy: Proxy, host: str, port: int) -> Exchange:
    host = _checked(host)
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    yield _connect_request(proxy, target)
    headers = yield _Read(MOST_HEADERS, headers=True)
    status = headers.partition(b"\r\n")[0].decode("latin-1")
    words = status.split(" ", 2)
    if not words[0].startswith("HTTP/") or len(words) < 2 or not words[1].isdigit():
        raise KafkaConnectionError(f"the proxy {proxy!r} does not answer in HTTP")
    if words[1] == "407":
        wanted = "refuses" if proxy.user is not None else "wants"
        raise KafkaConnectionError(f"the proxy {proxy!r} {wanted} a user and password in proxy_url")
    if not words[1].startswith("2"):
        text = printable(" ".join(words[1:]), MOST_TEXT)
        raise KafkaConnectionError(f"the proxy {proxy!r} cannot connect to {target}: {text}")


def _connect_request(proxy: Proxy, target: str) -> bytes:
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.user is not None:
        credentials = base64.b64encode(f"{proxy.user}:{proxy.password.reveal()}".encode()).decode()
        lines.append(f"Proxy-Authorization: Basic {credentials}")
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


class ProxyStage:
    """A ``Stage``: requests a connection to a broker from the proxy at the other end of the socket."""

    def __init__(self, proxy: Proxy, host: str, port: int) -> None:
        self._proxy = proxy
        make = _socks5 if proxy.scheme.startswith("socks") else _http_connect
        self._exchange = make(proxy, host, port)
        #: Hidden, because it may contain the credentials.
        self._unsent = Hidden(b"")
        self._wanted = _Read(0)
        self._received = b""
        self._continue(None)

    def _continue(self, data: bytes | None) -> bool:
        """Passes the requested data to the exchange; returns whether the exchange is complete."""
        try:
            asked = next(self._exchange) if data is None else self._exchange.send(data)
            while isinstance(asked, bytes):
                self._unsent = Hidden(self._unsent.reveal() + asked)
                asked = next(self._exchange)
        except StopIteration:
            return True
        self._wanted, self._received = asked, b""
        return False

    def step(self, sock: socket.socket) -> bool | None:
        """See ``Stage.step``."""
        try:
            return self._step(sock)
        except ConnectionError as error:
            raise KafkaConnectionError(f"the proxy {self._proxy!r} closed the connection") from error

    def _step(self, sock: socket.socket) -> bool | None:
        while True:
            # A memoryview, because its repr() in a traceback's frames does not show the bytes.
            self._unsent = Hidden(bytes(send_some(sock, memoryview(self._unsent.reveal()))))
            if self._unsent.reveal():
                return True
            try:
                data = self._read(sock)
            except BlockingIOError:
                return False
            if not data:
                raise KafkaConnectionError(f"the proxy {self._proxy!r} closed the connection")
            self._received += data
            if self._complete() and self._continue(self._received):
                return None

    def _complete(self) -> bool:
        if not self._wanted.headers:
            return len(self._received) == self._wanted.size
        if self._received.endswith(b"\r\n\r\n"):
            return True
        if len(self._received) > self._wanted.size:
            raise KafkaConnectionError(
                f"the proxy {self._proxy!r} sent more than {MOST_HEADERS} bytes of headers"
            )
        return False

    def _read(self, sock: socket.socket) -> bytes:
        """Reads what is wanted and not a byte further: later bytes come from the broker."""
        if not self._wanted.headers:
            return sock.recv(self._wanted.size - len(self._received))
        seen = sock.recv(4096, socket.MSG_PEEK)
        # The empty line may have begun in the bytes read before.
        before = self._received[-3:]
        end = (before + seen).find(b"\r\n\r\n")
        return sock.recv(len(seen) if end < 0 else end + 4 - len(before))

    def release(self) -> None:
        """See ``Stage.release``."""
