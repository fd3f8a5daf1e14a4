"""Connections through proxies: SOCKS5 and HTTP CONNECT, and what is said when they refuse."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cyproducer import KafkaProducer
from cyproducer.config import ProducerConfig
from cyproducer.config.option_kinds import Secret
from cyproducer.config.proxy import Proxy, parse_proxy
from cyproducer.errors import KafkaConfigurationError, KafkaConnectionError, KafkaTimeoutError
from cyproducer.net.proxy import MOST_HEADERS, ProxyStage
from tests.scripted.scripted_broker import ScriptedCluster
from tools.harness.tls import Authority

QUICK: dict[str, Any] = {"max_block_ms": 3000, "reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 50}
NAME = "broker.only.the.proxy.knows"


# The exchange, with a proxy that is scripted byte by byte


Script = list[tuple[bytes, bytes]]
"""What the proxy must receive, and what it answers then."""


def goes_through(proxy: Proxy, host: str, script: Script, bytewise: bool = False) -> bytes:
    """Runs the stage against the script; returns what is left to read for those who come after it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        stage = ProxyStage(proxy, host, 9092)
        done: bool | None = stage.step(ours)
        for expected, answer in script:
            assert theirs.recv(len(expected) + 100) == expected
            for piece in [answer[i : i + 1] for i in range(len(answer))] if bytewise else [answer]:
                assert done is not None
                theirs.sendall(piece)
                done = stage.step(ours)
        assert done is None, done
        try:
            return ours.recv(1000)
        except BlockingIOError:
            return b""


def socks(user: str | None = None, password: str = "") -> Proxy:
    return Proxy("socks5", "proxy", 1080, user, Secret(password))


def http(user: str | None = None, password: str = "") -> Proxy:
    return Proxy("http", "proxy", 8080, user, Secret(password))


CONNECTED = b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00"


@pytest.mark.parametrize("bytewise", [False, True])
@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("kafka.example", b"\x03\x0dkafka.example"),
        ("10.1.2.3", b"\x01\x0a\x01\x02\x03"),
        ("2001:db8::1", b"\x04\x20\x01\x0d\xb8" + bytes(11) + b"\x01"),
        ("bücher.example", b"\x03\x16xn--bcher-kva.example"[:1] + b"\x15xn--bcher-kva.example"),
    ],
)
@pytest.mark.parametrize(
    "answer",
    [
        CONNECTED,
        b"\x05\x00\x00\x03\x04host\x00\x50",
        b"\x05\x00\x00\x04" + bytes(18),
    ],
    ids=["IPv4", "name", "IPv6"],
)
def test_socks5_without_credentials(host: str, address: bytes, answer: bytes, bytewise: bool) -> None:
    request = b"\x05\x01\x00" + address + b"\x23\x84"
    script = [(b"\x05\x01\x00", b"\x05\x00"), (request, answer)]
    assert goes_through(socks(), host, script, bytewise) == b""


def test_socks5_with_credentials() -> None:
    request = b"\x05\x01\x00\x03\x01h\x23\x84"
    login = b"\x01\x05ali@e\x03p:w"
    script = [(b"\x05\x02\x00\x02", b"\x05\x02"), (login, b"\x01\x00"), (request, CONNECTED)]
    assert goes_through(parse_proxy("socks5://ali%40e:p%3Aw@proxy"), "h", script) == b""
    # A proxy that does not ask for them.
    script = [(b"\x05\x02\x00\x02", b"\x05\x00"), (request, CONNECTED)]
    assert goes_through(socks("alice", "secret"), "h", script) == b""


@pytest.mark.parametrize("bytewise", [False, True])
@pytest.mark.parametrize("status", [b"200 Connection established", b"201 Created", b"200"])
def test_http_connect(status: bytes, bytewise: bool) -> None:
    request = b"CONNECT kafka:9092 HTTP/1.1\r\nHost: kafka:9092\r\n\r\n"
    answer = b"HTTP/1.0 " + status + b"\r\nX: y\r\n\r\n"
    assert goes_through(http(), "kafka", [(request, answer)], bytewise) == b""


def test_http_connect_to_an_ipv6_address_with_credentials() -> None:
    request = (
        b"CONNECT [::1]:9092 HTTP/1.1\r\nHost: [::1]:9092\r\n"
        b"Proxy-Authorization: Basic YWxpY2U6c2VjcmV0\r\n\r\n"
    )
    answer = b"HTTP/1.1 200 OK\r\n\r\n"
    assert goes_through(http("alice", "secret"), "::1", [(request, answer)]) == b""


def test_not_a_byte_behind_the_proxys_answer_is_read() -> None:
    """The broker speaks second; but a server that speaks first must not lose its first bytes."""
    request = b"CONNECT kafka:9092 HTTP/1.1\r\nHost: kafka:9092\r\n\r\n"
    answer = b"HTTP/1.1 200 OK\r\nX: y\r\n\r\n" + b"the broker's"
    assert goes_through(http(), "kafka", [(request, answer)]) == b"the broker's"
    script = [(b"\x05\x01\x00", b"\x05\x00"), (b"\x05\x01\x00\x03\x01h\x23\x84", CONNECTED + b"broker")]
    assert goes_through(socks(), "h", script) == b"broker"


SOCKS_REQUEST = b"\x05\x01\x00\x03\x01h\x23\x84"
HTTP_REQUEST = b"CONNECT h:9092 HTTP/1.1\r\nHost: h:9092\r\n\r\n"


@pytest.mark.parametrize(
    ("proxy", "script", "problem"),
    [
        (
            socks(),
            [(b"\x05\x01\x00", b"\x05\xff")],
            "socks5://proxy:1080 wants a user and pass",
        ),
        (socks("a", "b"), [(b"\x05\x02\x00\x02", b"\x05\xff")], "wants other credentials"),
        (
            socks("a", "b"),
            [(b"\x05\x02\x00\x02", b"\x05\x02"), (b"\x01\x01a\x01b", b"\x01\x01")],
            "refuses the user and password in proxy_url",
        ),
        (socks(), [(b"\x05\x01\x00", b"\x04\x00")], "does not answer in SOCKS5"),
        (socks(), [(b"\x05\x01\x00", b"\x05\x03")], "chose the unknown method 3"),
        *(
            (
                socks(),
                [(b"\x05\x01\x00", b"\x05\x00"), (SOCKS_REQUEST, b"\x05" + bytes([reply]) + CONNECTED[2:])],
                f"cannot connect to h:9092: {text}",
            )
            for reply, text in (
                (1, "general failure"),
                (2, "connection not allowed by its rules"),
                (4, "host unreachable"),
                (5, "connection refused"),
                (99, "error 99"),
            )
        ),
        (http(), [(HTTP_REQUEST, b"HTTP/1.1 407 No\r\n\r\n")], "wants a user and password in proxy_url"),
        (
            http(),
            [(HTTP_REQUEST, b"HTTP/1.1 403 Forbidden\r\n\r\n")],
            "cannot connect to h:9092: 403 Forbidden",
        ),
        (http(), [(HTTP_REQUEST, b"SSH-2.0\r\n\r\n")], "does not answer in HTTP"),
        (
            http(),
            [(HTTP_REQUEST, b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 4000)],
            "more than 16384 bytes of head",
        ),
    ],
)
def test_what_a_refusal_says(proxy: Proxy, script: Script, problem: str) -> None:
    with pytest.raises(KafkaConnectionError) as caught:
        goes_through(proxy, "h", script)
    assert problem in str(caught.value)


def test_a_proxy_that_closes() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        stage = ProxyStage(socks(), "h", 1)
        stage.step(ours)
        theirs.close()
        with pytest.raises(KafkaConnectionError, match="closed the connection"):
            stage.step(ours)
    assert MOST_HEADERS == 16384


# The option


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("socks5://h", ("socks5", "h", 1080, None, "")),
        ("socks5h://h:1", ("socks5h", "h", 1, None, "")),
        ("http://h", ("http", "h", 8080, None, "")),
        ("http://u@[::1]:3128/", ("http", "::1", 3128, "u", "")),
        ("socks5://u%2F:p%40@h:1", ("socks5", "h", 1, "u/", "p@")),
    ],
)
def test_urls(url: str, found: tuple[object, ...]) -> None:
    *others, password = found
    assert parse_proxy(url) == (*others, Secret(str(password)))
    assert ProducerConfig(proxy_url=url).proxy == ProducerConfig(socks5_proxy=url).proxy == url


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://h:1", "its scheme must be one of socks5, socks5h, http"),
        ("h:1", "it has no scheme"),
        ("user:geheim@h:1", "it has no scheme"),
        ("socks5://", "it must have a host"),
        ("socks5://h:99999", "no valid host and port"),
        ("socks5://h:1/path", "nothing else behind"),
        ("socks5://geheim:geheim@", "it must have a host"),
        ("socks5://u:@h:1", "SOCKS5's password must have 1 to 255 bytes"),
        ("socks5://u:" + "geheim" * 60 + "@h:1", "SOCKS5's password must have 1 to 255 bytes"),
        ("socks5://u:ge@he/im@h:1", "nothing else behind"),
        ("socks5://u:geheim\udcfc@h:1", "it is not valid UTF-8"),
        ("http://u:geheim\udcfc@h:1", "it is not valid UTF-8"),
        ("http://h\x18:1", "its host has a control character"),
    ],
)
def test_urls_that_are_refused(url: str, problem: str) -> None:
    with pytest.raises(KafkaConfigurationError) as caught:
        ProducerConfig(proxy_url=url)
    assert problem in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_only_one_of_the_two_names() -> None:
    with pytest.raises(KafkaConfigurationError, match="proxy_url and socks5_proxy are the same option"):
        ProducerConfig(proxy_url="socks5://h:1", socks5_proxy="socks5://h:1")


# Whole producers


@contextlib.contextmanager
def running_proxy(scheme: str, to: Callable[[str, int], tuple[str, int]]) -> Iterator[tuple[str, list[Any]]]:
    """A proxy in threads, which connects to ``to(host, port)``. Yields its URL and the targets asked for."""
    listener = socket.create_server(("127.0.0.1", 0))
    asked: list[tuple[str, int]] = []
    threads: list[threading.Thread] = []
    sockets: list[socket.socket] = []

    def forward(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve(sock: socket.socket) -> None:
        with contextlib.suppress(OSError), sock.makefile("rb", buffering=0) as stream:
            if scheme == "http":
                request = b""
                while not request.endswith(b"\r\n\r\n"):
                    request += stream.read(1)
                host, _, port = request.split()[1].decode().rpartition(":")
            else:
                stream.read(3)
                sock.sendall(b"\x05\x00")
                head = stream.read(4)
                assert head is not None
                if head[3] == 3:
                    (length,) = stream.read(1)
                    host = stream.read(length).decode()
                else:
                    host = socket.inet_ntop(socket.AF_INET, stream.read(4))
                port = str(int.from_bytes(stream.read(2), "big"))
            asked.append((host, int(port)))
            target = socket.create_connection(to(host, int(port)))
            sockets.append(target)
            sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n" if scheme == "http" else CONNECTED)
            threads.append(threading.Thread(target=forward, args=(target, sock), daemon=True))
            threads[-1].start()
            forward(sock, target)

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            sockets.append(sock)
            threads.append(threading.Thread(target=serve, args=(sock,), daemon=True))
            threads[-1].start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield f"{scheme}://127.0.0.1:{listener.getsockname()[1]}", asked
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join()
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for sock in sockets:
            sock.close()


@pytest.mark.parametrize("scheme", ["socks5", "http"])
@pytest.mark.parametrize("encrypted", [False, True])
def test_all_connections_go_through_the_proxy_which_looks_names_up(scheme: str, encrypted: bool) -> None:
    authority = Authority()
    tls = authority.server(NAME) if encrypted else None
    with ScriptedCluster(2, tls=tls, t=2) as cluster:
        ports = [node.port for node in cluster.nodes.values()]
        for node in cluster.nodes.values():
            node.host = NAME
        options: dict[str, Any] = {}
        if encrypted:
            # The name is that of the broker, not of the proxy.
            options = {"security_protocol": "SSL", "ssl_context": authority.client()}
        with running_proxy(scheme, lambda host, port: ("127.0.0.1", port)) as (url, asked):
            with KafkaProducer(bootstrap_servers=f"{NAME}:{ports[0]}", proxy_url=url, **options) as ours:
                futures = [ours.send("t", b"v", partition=i) for i in range(2)]
                assert [future.get(20).offset for future in futures] == [0, 0]
            assert {host for host, _ in asked} == {NAME}
            assert {port for _, port in asked} == set(ports)


@pytest.mark.slow
def test_what_a_proxy_refuses_is_said_by_the_producer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = listener.accept()
                    with sock:
                        sock.recv(100)
                        sock.sendall(b"\x05\xff")

        thread = threading.Thread(target=refuse, daemon=True)
        thread.start()
        url = f"socks5://127.0.0.1:{listener.getsockname()[1]}"
        with (
            KafkaProducer(bootstrap_servers="kafka:9092", proxy_url=url, **QUICK) as ours,
            pytest.raises(KafkaTimeoutError, match="wants a user and password in proxy_url"),
        ):
            ours.send("t", b"v").get(20)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("host", ["a\r\nX: y", "a b", "a\0", "", "x" * 256, "ü" * 300, "a\x7f"])
@pytest.mark.parametrize("proxy", [socks(), http()], ids=["socks5", "http"])
def test_host_names_that_are_none_never_reach_the_proxy(proxy: Proxy, host: str) -> None:
    """A broker may advertise anything: a line break in it would forge a request to the proxy."""
    with pytest.raises(KafkaConnectionError, match="is no host name"):
        ProxyStage(proxy, host, 1)


@pytest.mark.slow
def test_a_proxy_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with (
        KafkaProducer(
            bootstrap_servers="kafka:9092", proxy_url=f"socks5://127.0.0.1:{port}", **QUICK
        ) as ours,
        pytest.raises(KafkaTimeoutError, match=rf"kafka:9092 \(127.0.0.1:{port}\): connection refused"),
    ):
        ours.send("t", b"v").get(20)


# broker_address


def test_the_hook_maps_advertised_addresses_and_certificates_are_checked_for_these() -> None:
    authority = Authority()
    seen: list[tuple[str, int, str]] = []

    with ScriptedCluster(2, tls=authority.server("private.example", "localhost"), t=2) as cluster:

        def hook(host: str, port: int) -> tuple[str, int]:
            seen.append((host, port, threading.current_thread().name))
            return "127.0.0.1", port

        for node in cluster.nodes.values():
            node.host = "private.example"
        with KafkaProducer(
            bootstrap_servers=f"localhost:{cluster.nodes[1].port}",
            broker_address=hook,
            security_protocol="SSL",
            ssl_context=authority.client(),
        ) as ours:
            futures = [ours.send("t", b"v", partition=i) for i in range(2)]
            assert [future.get(20).offset for future in futures] == [0, 0]
    assert {host for host, _, _ in seen} == {"private.example"}
    assert {thread for _, _, thread in seen} == {"cyproducer-background"}


@pytest.mark.parametrize("returned", ["127.0.0.1:{}", None, ("", 1), ("h", "1"), ("h", 0)])
@pytest.mark.slow
def test_what_the_hook_may_return(returned: Any) -> None:
    with ScriptedCluster(t=1) as cluster:
        bootstrap = cluster.bootstrap_servers
        cluster.nodes[1].host = "private.example"
        if isinstance(returned, str):
            returned = returned.format(cluster.nodes[1].port)
        with KafkaProducer(
            bootstrap_servers=bootstrap,
            broker_address=lambda host, port: returned,
            delivery_timeout_ms=800,
            request_timeout_ms=700,
            reconnect_backoff_max_ms=50,
        ) as ours:
            future = ours.send("t", b"v")
            if isinstance(returned, str):
                assert future.get(20).offset == 0
            else:
                with pytest.raises(KafkaTimeoutError, match=r"broker_address failed for private\.example:"):
                    future.get(20)
