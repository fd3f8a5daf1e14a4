"""Whole producers against TLS servers: the handshake, and what is said when it fails."""

import contextlib
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cyproducer import KafkaProducer
from cyproducer.config import ProducerConfig
from cyproducer.errors import KafkaTimeoutError
from cyproducer.net.tls_handshake import TlsHandshake
from tests.forked import in_child, needs_fork
from tests.scripted.scripted_broker import ScriptedCluster
from tools.harness.tls import Authority, TlsEnd, chain_pem, key_pem
from tools.harness.until import looks

QUICK: dict[str, Any] = {"max_block_ms": 700, "reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 50}


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def producer(cluster: ScriptedCluster, **options: Any) -> KafkaProducer:
    return KafkaProducer(
        bootstrap_servers=[node.address.replace("127.0.0.1", "localhost") for node in cluster.nodes.values()],
        **{"security_protocol": "SSL", **options},
    )


def complaint(cluster: ScriptedCluster, **options: object) -> str:
    """What the error of a record says that could not be sent."""
    with producer(cluster, **{**QUICK, **options}) as tried:
        return error_of(tried)


def error_of(tried: KafkaProducer) -> str:
    """The error of a record, when an attempt to connect has failed: a busy machine needs more than one."""
    for _ in looks(20):
        with pytest.raises(KafkaTimeoutError) as caught:
            tried.send("t", b"v").get(30)
        if "no failure so far" not in str(caught.value):
            return str(caught.value)
    raise AssertionError("no attempt to connect has failed")


@pytest.mark.parametrize("without_gil", [True, False])
def test_records_and_their_futures(authority: Authority, tmp_path: Path, without_gil: bool) -> None:
    options = {"ssl_cafile": authority.file(tmp_path), "ssl_without_gil": without_gil}
    with ScriptedCluster(2, tls=authority.server(), t=2) as cluster, producer(cluster, **options) as ours:
        futures = [ours.send("t", b"%d" % i * 100, partition=i % 2) for i in range(200)]
        ours.flush(10)
        assert [future.get(0).offset for future in futures] == [i // 2 for i in range(200)]
        # One at a time: the waiting thread itself encrypts and decrypts.
        for i in range(50):
            assert ours.send("t", b"alone", partition=0).get(10).offset == 100 + i


@pytest.mark.slow
def test_the_certificate_must_be_for_the_name_that_was_given(authority: Authority) -> None:
    with ScriptedCluster(tls=authority.server("other.example", "third.example"), t=1) as cluster:
        said = complaint(cluster, ssl_context=authority.client())
        assert (
            "hostname mismatch: its certificate is for other.example, third.example, not for localhost"
            in said
        )
        assert "ssl_check_hostname=False" in said


def test_the_name_is_not_compared_if_that_is_switched_off(authority: Authority, tmp_path: Path) -> None:
    with ScriptedCluster(tls=authority.server("other.example"), t=1) as cluster:
        options = {"ssl_cafile": authority.file(tmp_path), "ssl_check_hostname": False}
        with producer(cluster, **options) as ours:
            assert ours.send("t", b"v").get(10).offset == 0


@pytest.mark.parametrize("name", ["localhost.", "localhost"])
def test_a_dot_at_the_end_of_a_name_is_not_part_of_it(authority: Authority, name: str) -> None:
    config = ProducerConfig(security_protocol="SSL", ssl_context=authority.client())
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as pool:
        ours.setblocking(False)
        end = TlsEnd(theirs, authority.server("localhost"))
        pool.submit(end.recv, 1)
        handshake = TlsHandshake(config, authority.client(), "broker", name)
        for _ in looks(10):
            if handshake.step(ours) is None:
                break
        session = handshake.session(True)
        # The server has this client's last message when its own first one can be read.
        theirs.shutdown(socket.SHUT_RDWR)
        assert session.connection.version() == "TLSv1.3"


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
@pytest.mark.slow
def test_an_address_is_compared_with_the_addresses_of_the_certificate(
    authority: Authority, name: str
) -> None:
    options: dict[str, Any] = {**QUICK, "security_protocol": "SSL", "ssl_context": authority.client()}
    with (
        ScriptedCluster(tls=authority.server(name), t=1) as cluster,
        KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **options) as ours,
    ):
        if name == "127.0.0.1":
            assert ours.send("t", b"v").get(10).offset == 0
        else:
            assert "is for localhost, not for 127.0.0.1" in error_of(ours)


@pytest.mark.slow
def test_an_unknown_authority(authority: Authority, tmp_path: Path) -> None:
    other = Authority("Another Authority")
    with ScriptedCluster(tls=other.server(), t=1) as cluster:
        said = complaint(cluster, ssl_cafile=authority.file(tmp_path))
        assert "certificate verify failed: the issuer of its certificate" in said
        assert "Give the issuer's certificate as ssl_cafile" in said
        assert str(tmp_path) in said


@pytest.mark.slow
def test_the_systems_authorities_are_the_default(authority: Authority) -> None:
    with ScriptedCluster(tls=authority.server(), t=1) as cluster:
        assert "instead of the system's certificates" in complaint(cluster)


@pytest.mark.slow
def test_an_expired_certificate(authority: Authority) -> None:
    with ScriptedCluster(tls=authority.server("localhost", days=-1, before_days=3), t=1) as cluster:
        said = complaint(cluster, ssl_context=authority.client())
        assert "its certificate expired on" in said
        assert "renew it, or set the clock" in said


@pytest.mark.slow
def test_a_certificate_that_is_not_valid_yet(authority: Authority) -> None:
    with ScriptedCluster(tls=authority.server("localhost", before_days=-1), t=1) as cluster:
        assert "its certificate is not yet valid: it begins on" in complaint(
            cluster, ssl_context=authority.client()
        )


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("without_gil", [True, False])
@pytest.mark.slow
def test_a_broker_that_demands_a_client_certificate(
    authority: Authority, version: ssl.TLSVersion, without_gil: bool, tmp_path: Path
) -> None:
    server = authority.server()
    server.verify_mode = ssl.CERT_REQUIRED
    authority.ca.configure_trust(server)
    server.minimum_version = server.maximum_version = version
    options = {"ssl_cafile": authority.file(tmp_path), "ssl_without_gil": without_gil}
    with ScriptedCluster(tls=server, t=1) as cluster:
        said = complaint(cluster, **options)
        assert "ssl_certfile" in said, said
        assert "no certificate" in said or "asks for a client certificate" in said, said
        mine = authority.issue("client")
        certificate, key = tmp_path / "mine.pem", tmp_path / "mine.key"
        certificate.write_text(chain_pem(mine))
        key.write_text(key_pem(mine, "a secret"))
        identity = {"ssl_certfile": certificate, "ssl_keyfile": key, "ssl_password": "a secret"}
        with producer(cluster, **options, **identity) as ours:
            assert ours.send("t", b"v").get(10).offset == 0


@pytest.mark.slow
def test_a_client_certificate_of_an_authority_that_the_broker_does_not_know(
    authority: Authority, tmp_path: Path
) -> None:
    server = authority.server()
    server.verify_mode = ssl.CERT_REQUIRED
    authority.ca.configure_trust(server)
    mine = Authority("Another Authority").issue("client")
    path = tmp_path / "mine.pem"
    path.write_text(key_pem(mine) + chain_pem(mine))
    with ScriptedCluster(tls=server, t=1) as cluster:
        said = complaint(cluster, ssl_cafile=authority.file(tmp_path), ssl_certfile=path)
        assert "does not trust the authority that issued the certificate in ssl_certfile=" in said


@pytest.mark.slow
def test_no_common_version(authority: Authority) -> None:
    server = authority.server()
    server.minimum_version = ssl.TLSVersion.TLSv1_3
    with ScriptedCluster(tls=server, t=1) as cluster:
        client = authority.client()
        client.maximum_version = ssl.TLSVersion.TLSv1_2
        said = complaint(cluster, ssl_context=client)
        assert "no version of TLS in common" in said
        assert "ssl_enabled_protocols" in said


@pytest.mark.slow
def test_tls_spoken_to_a_port_without(authority: Authority) -> None:
    with accepting(lambda sock: sock.recv(1)) as address:
        said = failure_at(address, security_protocol="SSL", ssl_context=authority.client())
        assert "security_protocol='PLAINTEXT'" in said


@pytest.mark.slow
def test_tls_spoken_to_something_else(authority: Authority) -> None:
    with accepting(lambda sock: sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as address:
        said = failure_at(address, security_protocol="SSL", ssl_context=authority.client())
        assert "does not answer in TLS (" in said


@pytest.mark.slow
def test_a_port_with_tls_spoken_to_without(authority: Authority) -> None:
    with ScriptedCluster(tls=authority.server(), t=1) as cluster:
        said = complaint(cluster, security_protocol="PLAINTEXT")
        assert "security_protocol='SSL'" in said


@pytest.mark.slow
def test_a_server_that_sends_without_end_during_the_handshake(authority: Authority) -> None:
    # A handshake record that announces a message of 16 MB, and goes on.
    flood = b"\x16\x03\x03\x40\x00" + b"\x0b\xff\xff\xff" + bytes(16380)
    record = b"\x16\x03\x03\x40\x00" + bytes(16384)

    def serve(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            sock.sendall(flood)
            while True:
                sock.sendall(record)

    with accepting(serve) as address:
        said = failure_at(address, security_protocol="SSL", ssl_context=authority.client())
        assert "TLS" in said


def test_a_silent_server_costs_one_connection_and_its_timeout(authority: Authority) -> None:
    silent = threading.Event()
    with (
        accepting(lambda sock: silent.wait(20)) as address,
        ScriptedCluster(tls=authority.server(), t=1) as cluster,
        KafkaProducer(
            bootstrap_servers=[address, cluster.nodes[1].address.replace("127.0.0.1", "localhost")],
            security_protocol="SSL",
            ssl_context=authority.client(),
        ) as ours,
    ):
        assert ours.send("t", b"v").get(10).offset == 0
        silent.set()


@pytest.mark.slow
def test_the_handshake_has_a_time_limit(authority: Authority) -> None:
    silent = threading.Event()
    with accepting(lambda sock: silent.wait(20)) as address:
        said = failure_at(
            address,
            security_protocol="SSL",
            ssl_context=authority.client(),
            socket_connection_setup_timeout_ms=200,
            socket_connection_setup_timeout_max_ms=200,
        )
        silent.set()
        assert re.search(r"no completed handshake within \d+ ms", said)


def test_a_new_certificate_on_disk_is_used_for_the_next_connection(
    authority: Authority, tmp_path: Path
) -> None:
    first, second = Authority("First"), Authority("Second")
    file = first.file(tmp_path)
    with ScriptedCluster(tls=first.server(), t=1) as cluster, producer(cluster, ssl_cafile=file) as ours:
        assert ours.send("t", b"v").get(10).offset == 0
        second.file(tmp_path)
        cluster.tls = second.server()
        cluster.nodes[1].drop_connections()
        assert ours.send("t", b"v").get(10).offset == 1


def test_new_files_that_cannot_be_read_leave_the_old_certificates(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = authority.file(tmp_path)
    with ScriptedCluster(tls=authority.server(), t=1) as cluster, producer(cluster, ssl_cafile=file) as ours:
        assert ours.send("t", b"v").get(10).offset == 0
        file.write_text("-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----\n")
        cluster.nodes[1].drop_connections()
        assert ours.send("t", b"v").get(10).offset == 1
    assert "connecting with the certificates read before: KafkaConfigurationError: ssl_cafile=" in caplog.text


@contextlib.contextmanager
def accepting(serve: object) -> Iterator[str]:
    """A server that runs ``serve(socket)`` for each connection, then closes it."""
    listener = socket.create_server(("127.0.0.1", 0))
    ending = False
    threads: list[threading.Thread] = []

    def run(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            serve(sock)  # type: ignore[operator]

    def accept() -> None:
        while True:
            sock, _ = listener.accept()
            if ending:
                sock.close()
                return
            threads.append(threading.Thread(target=run, args=(sock,), daemon=True))
            threads[-1].start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    port = listener.getsockname()[1]
    try:
        yield f"localhost:{port}"
    finally:
        ending = True
        socket.create_connection(("127.0.0.1", port)).close()
        acceptor.join()
        listener.close()


def failure_at(address: str, **options: Any) -> str:
    with KafkaProducer(bootstrap_servers=address, **{**QUICK, **options}) as tried:
        return error_of(tried)


class SlowContext:
    """Its handshakes take a while, in which a fork must not happen."""

    def __init__(self) -> None:
        self.inside = threading.Event()
        self.left = False

    def wrap_bio(self, *bios: object, **options: object) -> "SlowContext":
        return self

    def do_handshake(self) -> None:
        self.inside.set()
        # The fork begins meanwhile. It cannot be seen that it waits.
        time.sleep(0.3)
        self.left = True


@needs_fork
def test_a_fork_waits_until_no_thread_is_in_a_handshake() -> None:
    """A child inherits OpenSSL's locks as they are at the fork; nothing would release one that is held."""
    slow = SlowContext()
    handshake = TlsHandshake(ProducerConfig(), slow, "broker", "localhost")  # type: ignore[arg-type]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        thread = threading.Thread(target=handshake.step, args=(ours,))
        thread.start()
        assert slow.inside.wait(20)
        assert in_child(lambda: slow.left)
        thread.join()


@needs_fork
def test_a_forked_child_connects_with_tls(authority: Authority) -> None:
    with (
        ScriptedCluster(tls=authority.server(), t=1) as cluster,
        producer(cluster, ssl_context=authority.client()) as ours,
    ):
        assert ours.send("t", b"parent").get(20).offset == 0

        def send_as_a_child() -> int:
            with ours:
                return ours.send("t", b"child").get(20).offset

        assert in_child(send_as_a_child) == 1
        assert ours.send("t", b"parent").get(20).offset == 2
