"""Fuzz target in Python: what brokers, proxies and configuration files say before Kafka's protocol begins.

Each input goes to one parser: SASL's replies through ``Authentication``, a proxy's answers, TLS's handshake,
``sasl.jaas.config``, properties files, proxy URLs. For any input:

- a parser returns a result or raises its documented error, nothing else;
- the error's text is printable, and has no part of a password or token;
- a parser ends: it does not wait for more than it was given, and reads nothing for ever.

Half of the inputs are valid messages, changed in a few places.
"""

from __future__ import annotations

import base64
import socket
from collections.abc import Callable
from typing import Any, cast

from cyproducer import errors
from cyproducer.base.clock import ManualClock
from cyproducer.config import ProducerConfig, jaas, properties
from cyproducer.config.option_kinds import Hidden, Refused, Secret
from cyproducer.config.proxy import Proxy, parse_proxy
from cyproducer.net.authentication import Authentication
from cyproducer.net.blocking_tasks import Background, Task
from cyproducer.net.proxy import ProxyStage
from cyproducer.net.tls_handshake import TlsHandshake
from cyproducer.security.sasl import SharedCredentials, converse
from cyproducer.wire.sasl_api import SaslAuthenticateResponse, SaslHandshakeResponse
from tests.fuzz.fuzz_rig import Choices
from tests.scripted.tls_pair import AUTHORITY

UNFORESEEN = ("IndexError", "KeyError", "TypeError", "ValueError", "UnicodeE", "UnicodeD", "RecursionError")
USER, SECRET = "alice", "Jgbt9-Xq2ZwvK"
WHERE = "broker-1:9092"
CONTEXT = AUTHORITY.client()
#: Codes of SASL, and none.
CODES = (0, 0, 0, 33, 34, 58, -1, 12345)
LIFETIMES = (0, 0, 1, 60_000, -1, -(2**63), 2**63 - 1)


def rest(choices: Choices) -> bytes:
    """All that is left of the input."""
    choices.at, found = len(choices.data), choices.data[choices.at :]
    return found


def changed(valid: bytes, choices: Choices) -> bytes:
    """A valid message with bytes replaced, removed, inserted or repeated; or only what the input has."""
    count = choices.byte() % 5
    if count == 4:
        return choices.some(choices.byte())
    made = bytearray(valid)
    for _ in range(count):
        at, size = choices.two() % (len(made) + 1), choices.byte() % 5
        if choices.byte() % 2:
            made[at : at + size] = choices.some(choices.byte() % 5)
        else:
            made[at:at] = made[at // 2 : at // 2 + 3 * size]
    return bytes(made)


def check_text(error: BaseException, named: str = "") -> None:
    """Checks that a message is for people, names this, and has no piece of the secret."""
    text = str(error)
    assert named in text, f"{text!r} does not name {named}"
    # ``Authentication`` reports an error that nobody has foreseen with its class.
    assert not any(name in text for name in UNFORESEEN), f"{text!r} is not documented"
    assert not isinstance(error, UnicodeError), repr(error)
    assert text.isprintable(), f"{text!r} is not printable"
    assert len(text) < 2500, f"a message of {len(text)} characters"
    assert not shows_secret(text), f"{text!r} has a part of the secret"


def shows_secret(text: str) -> bool:
    return any(SECRET[at : at + 4].lower() in text.lower() for at in range(len(SECRET) - 3))


# SASL


class Provider:
    """Has the secret as its token."""

    def token(self) -> str:
        return SECRET


class Now:
    """Runs tasks at once, in place of ``Background``."""

    def start(self, function: Callable[[], Any]) -> Task[Any]:
        task: Task[Any] = Task()
        # What takes seconds: SCRAM's iterations.
        slow = getattr(function, "__name__", "") == "salted_password"
        task.result = Hidden(bytes(32)) if slow else function()
        task.done = True
        return task


MECHANISMS = {
    "PLAIN": {"sasl_plain_username": USER, "sasl_plain_password": SECRET},
    "SCRAM-SHA-256": {"sasl_plain_username": USER, "sasl_plain_password": SECRET},
    "SCRAM-SHA-512": {"sasl_plain_username": USER, "sasl_plain_password": SECRET},
    "OAUTHBEARER": {"sasl_oauth_token_provider": Provider()},
}
CONFIGS = [
    ProducerConfig(security_protocol="SASL_SSL", **cast(Any, {**cast(Any, options), "sasl_mechanism": name}))
    for name, options in MECHANISMS.items()
]


def sasl(choices: Choices) -> bool:
    """Authenticates with a broker that says what the input says; returns whether it was refused."""
    config = CONFIGS[choices.byte() % len(CONFIGS)]
    sent: list[bytes] = []
    credentials = SharedCredentials(config, ManualClock(), lambda: 0.5)
    authentication = Authentication(
        config,
        WHERE,
        lambda: converse(config, credentials, "broker-1"),
        cast(Background, Now()),
        lambda: 0.5,
        lambda mechanism: None,
        lambda message: sent.append(message.reveal()),
    )
    try:
        authentication.begin()
        while authentication.waits_for_task:
            authentication.resume()
        names = [choices.some(3).decode("latin-1") for _ in range(choices.byte() % 4)]
        authentication.on_handshake(SaslHandshakeResponse(CODES[choices.byte() % len(CODES)], names))
        for _ in range(4):
            code = CODES[choices.byte() % len(CODES)]
            text = choices.some(choices.byte() % 40).decode("utf-8", "replace") or None
            lifetime = LIFETIMES[choices.byte() % len(LIFETIMES)]
            reply = changed(valid_reply(sent, choices), choices)
            response = SaslAuthenticateResponse(code, text, reply, lifetime)
            if authentication.on_authenticate(response, 1000.0):
                assert authentication.renew_at_ms >= 1000.0
                assert authentication.ends_at_ms >= authentication.renew_at_ms
                return False
            while authentication.waits_for_task:
                authentication.resume()
    except errors.KafkaError as error:
        check_text(error, WHERE)
        return True
    raise AssertionError(f"{len(sent)} messages, and no end")


def valid_reply(sent: list[bytes], choices: Choices) -> bytes:
    """A broker's reply to the last message, as far as it can be made without the password."""
    last = sent[-1]
    if last.startswith(b"n,,n="):
        nonce = last.partition(b"r=")[2].partition(b",")[0]
        return b"r=" + nonce + FIRST[choices.byte() % len(FIRST)]
    if last.startswith(b"n,,\x01auth"):
        return b'{"status": "invalid_token", "scope": "kafka", "openid-configuration": "https://idp/"}'
    if last.startswith(b"c=biws"):
        return b"v=" + base64.b64encode(bytes(32))
    return b""


#: How SCRAM's first message of a server goes on behind the client's nonce.
FIRST = (
    b"x,s=c2FsdA==,i=4096",
    b"x,s=c2FsdA==,i=100000",
    b",s=c2FsdA==,i=4096",
    b"x,e=other-error",
    b"x,m=x,s=c2FsdA==,i=4096",
    b"x,s=c2FsdA==,i=99999999",
)


# What is exchanged on a socket


class Peer:
    """A socket whose other end says what the input says, in pieces, and then closes the connection."""

    def __init__(self, choices: Choices, answer: bytes) -> None:
        self._choices, self.answer = choices, answer
        self.calls = 0
        self.sent = b""

    def send(self, data: bytes, flags: int = 0) -> int:
        self.calls += 1
        if self._choices.byte() % 4 == 3:
            raise BlockingIOError
        size = 1 + self._choices.byte() if self._choices else len(data)
        self.sent += data[:size]
        return min(size, len(data))

    def recv(self, size: int, flags: int = 0) -> bytes:
        self.calls += 1
        assert size > 0 or not self.answer, "a read of nothing looks like the end"
        kind = self._choices.byte() % 16
        if kind == 15:
            raise BlockingIOError
        if kind == 14:
            raise ConnectionResetError
        found = self.answer[: min(size, 1 + self._choices.byte()) if self._choices else size]
        if not flags & socket.MSG_PEEK:
            self.answer = self.answer[len(found) :]
        return found


PROXIES = (
    Proxy("socks5", "proxy", 1080, USER, Secret(SECRET)),
    Proxy("http", "proxy", 8080, USER, Secret(SECRET)),
    Proxy("socks5h", "proxy", 1080, None, Secret("")),
    Proxy("http", "proxy", 8080, None, Secret("")),
)
HOSTS = ("kafka.example", "10.0.0.1", "::1", "bücher.example", "a b", "", "x" * 300, "h\r\nX: y", "\ud800")
BEHIND = b"of the broker"


def proxied(choices: Choices) -> bool:
    proxy = PROXIES[choices.byte() % len(PROXIES)]
    host = HOSTS[choices.byte() % len(HOSTS)]
    if proxy.scheme == "http":
        valid = b"HTTP/1.1 200 OK\r\nVia: x\r\n\r\n"
    else:
        login = b"\x05\x02\x01\x00" if proxy.user is not None else b"\x05\x00"
        valid = login + (b"\x05\x00\x00\x01" + bytes(6), b"\x05\x00\x00\x03\x01h\x00\x50")[choices.byte() % 2]
    honest = not choices.byte() % 8
    answer = valid if honest else changed(valid, choices)
    peer = Peer(choices, answer + BEHIND)
    try:
        stage = ProxyStage(proxy, host, 9092)
        run(stage.step, peer, len(answer))
    except errors.KafkaConnectionError as error:
        check_text(error)
        return True
    except OSError:
        return True
    assert not honest or peer.answer == BEHIND, f"{peer.answer!r} is left"
    return False


def handshake(choices: Choices) -> bool:
    """TLS's handshake with a server that sends anything but a handshake."""
    record = bytes([choices.byte(), 3, 3]) + choices.two().to_bytes(2)
    answer = record + rest(choices) if choices.byte() % 2 else rest(choices)
    stage = TlsHandshake(CONFIGS[0], CONTEXT, WHERE, "localhost")
    try:
        run(stage.step, Peer(choices, answer), len(answer))
    except errors.KafkaConnectionError as error:
        check_text(error, WHERE)
        return True
    finally:
        stage.release()
    raise AssertionError("no server could answer that")


def run(step: Callable[[Any], bool | None], peer: Peer, size: int) -> None:
    """Takes steps until the stage is complete."""
    while step(peer) is not None:
        assert peer.calls < 3000 + 20 * size, "the stage does not end"


# Texts of users


JAAS = f'a.ScramLoginModule required username=\'{USER}\' // who\n password="{SECRET}" x="\\101\\n";'
PROPERTIES = (
    b'# x\nsecurity.protocol = SASL_SSL\nsasl.jaas.config: C required \\\n  a="\\u00e4\\ud83d\\ude00\\t";\r\n'
)
URLS = (
    f"socks5://{USER}:{SECRET}@proxy:1080",
    f"http://{USER}:{SECRET}@[::1]:8080/",
    f"socks5h://{SECRET}%40@proxy",
)


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def login(choices: Choices) -> bool:
    try:
        found = jaas.parse(Secret(text_of(changed(JAAS.encode(), choices))))
    except Refused as error:
        check_text(error)
        return True
    assert found.name
    return False


def entries(choices: Choices) -> bool:
    data = changed(PROPERTIES, choices)
    for name, value in properties.parse(data).items():
        for text in (name, value):
            assert text == text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass"), repr(
                text
            )
        written = f"{escaped(name)}={escaped(value)}"
        assert properties.parse(written.encode()) == {name: value}, f"{written!r} is read as something else"
    return False


def escaped(text: str) -> str:
    """An entry's name or value, with every character as Java's ``Properties.store`` could write it."""
    units = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def urls(choices: Choices) -> bool:
    url = text_of(changed(URLS[choices.byte() % len(URLS)].encode(), choices))
    try:
        found = parse_proxy(url)
    except ValueError as error:
        check_text(error)
        return True
    assert shows_secret(found.host) or not shows_secret(repr(found))
    assert 0 < found.port < 65536
    # What is accepted can be sent.
    peer = Peer(Choices(b""), b"")
    try:
        run(ProxyStage(found, "kafka", 9092).step, peer, 0)
    except errors.KafkaConnectionError as error:
        # Unless the input has moved the secret into the host, which is shown.
        if not shows_secret(found.host):
            check_text(error)
    assert peer.sent
    return False


PARSERS = (sasl, proxied, handshake, login, entries, urls)


def play(data: bytes) -> bool:
    """Plays one input; returns whether it was refused. Raises AssertionError on a finding."""
    choices = Choices(data)
    return PARSERS[choices.byte() % len(PARSERS)](choices)
