"""The encrypted connection: records over TLS, in C and through Python's ``ssl`` module."""

import gc
import socket
import ssl
from typing import Any

import pytest

from cyproducer import KafkaProducer
from cyproducer.errors import KafkaTimeoutError, TlsError
from tests.scripted.tls_pair import AUTHORITY, TlsPair
from tools.harness.rig import Rig

BOTH = pytest.mark.parametrize("in_c", [True, False], ids=["in C", "through Python"])


def session_of(rig: Rig, node: int = 1) -> object:
    return rig.peers[node].connection.tls


def test_the_pointers_of_this_pythons_ssl_module_are_found() -> None:
    """On every Python of the tests: otherwise all of TLS would go the slow way without a failing test."""
    with Rig({"t": [1]}, tls=TlsPair()) as rig:
        rig.send("t", b"v")
        rig.requests()
        tls = rig.peers[1].connection.tls
        assert tls is not None
        assert tls.slow_because == ""


@BOTH
def test_records_are_acknowledged_over_tls(in_c: bool) -> None:
    with Rig({"t": [1, 1]}, tls=TlsPair(in_c)) as rig:
        futures = [rig.send("t", b"%d" % i, partition=i % 2) for i in range(10)]
        rig.answer_all()
        assert [future.get(0).offset for future in futures] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
        assert rig.values("t", 0) == [b"0", b"2", b"4", b"6", b"8"]


@BOTH
@pytest.mark.parametrize("size", [1, 16_383, 16_384, 16_385, 65_536, 300_000, 900_000])
def test_requests_of_any_size_arrive_whole(in_c: bool, size: int) -> None:
    value = bytes(range(256)) * (size // 256 + 1)
    with Rig({"t": [1]}, tls=TlsPair(in_c)) as rig:
        futures = [rig.send("t", value[:size]) for _ in range(3)]
        rig.answer_all()
        assert [future.get(0).offset for future in futures] == [0, 1, 2]
        assert rig.values("t") == [value[:size]] * 3


@BOTH
def test_encrypted_bytes_that_wait_for_the_socket_are_bounded(in_c: bool) -> None:
    """They are memory besides ``buffer_memory``: encryption stops while the socket takes nothing."""
    with Rig({"t": [1]}, tls=TlsPair(in_c), max_request_size=8 << 20) as rig:
        peer = rig.connect(1)
        peer.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        values = [b"%d" % i * 400_000 for i in range(8)]
        futures = [rig.send("t", value) for value in values]
        for _ in range(50):
            rig.step()
        assert peer.connection.unsent > 0
        assert peer.connection.unsent < (200_000 if in_c else 1_100_000)
        assert not any(future.is_done for future in futures)
        rig.answer_all()
        assert rig.values("t") == values
        assert peer.connection.unsent == 0


@BOTH
def test_without_acknowledgements_a_record_is_done_when_its_encrypted_bytes_are_sent(in_c: bool) -> None:
    with Rig({"t": [1]}, tls=TlsPair(in_c), acks=0) as rig:
        peer = rig.connect(1)
        peer.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        future = rig.send("t", b"v" * 30_000)
        rig.step()
        assert peer.connection.unsent > 0
        assert not future.is_done
        rig.requests()
        assert peer.connection.unsent == 0
        assert future.is_done


@BOTH
def test_a_response_that_comes_byte_by_byte(in_c: bool) -> None:
    with Rig({"t": [1]}, tls=TlsPair(in_c)) as rig:
        future = rig.send("t", b"v")
        (seen,) = rig.requests()
        end = seen.peer.sock
        sent = bytearray()
        end.sock, real = _Collecting(sent), end.sock
        rig.answer(seen, step=False)
        end.sock = real
        for byte in bytes(sent):
            assert not future.is_done
            real.sendall(bytes([byte]))
            rig.step()
        assert future.get(0).offset == 0


class _Collecting:
    """In place of a socket: keeps what is sent."""

    def __init__(self, sent: bytearray) -> None:
        self._sent = sent

    def sendall(self, data: bytes) -> None:
        self._sent += data


@BOTH
def test_all_responses_are_read_although_the_socket_is_not_readable_again(in_c: bool) -> None:
    """One read returns one TLS record at most. What OpenSSL has decrypted makes no socket readable."""
    with Rig({"t": [1]}, tls=TlsPair(in_c), batch_size=1000) as rig:
        # The sixth record closes the fifth batch.
        futures = [rig.send("t", b"%d" % i + bytes(600)) for i in range(6)]
        seen = rig.requests()
        assert len(seen) == 5
        for each in seen:
            rig.answer(each, step=False)
        rig.step()
        assert [future.is_done for future in futures] == [True] * 5 + [False]


@BOTH
def test_a_response_larger_than_the_inbox_arrives_in_one_step(in_c: bool) -> None:
    partitions = 2_000
    with Rig({"t": [1] * partitions}, tls=TlsPair(in_c)) as rig:
        futures = [rig.send("t", b"v", partition=partition) for partition in range(partitions)]
        for seen in rig.requests():
            rig.answer(seen, step=False)
        rig.step()
        assert all(future.is_done for future in futures)


@BOTH
@pytest.mark.parametrize("politely", [True, False], ids=["close_notify", "without"])
def test_a_broker_that_closes_the_connection(in_c: bool, politely: bool) -> None:
    with Rig({"t": [1]}, tls=TlsPair(in_c)) as rig:
        future = rig.send("t", b"v")
        (seen,) = rig.requests()
        if politely:
            seen.peer.sock.end()
        rig.cut(1)
        ((node, cause),) = rig.control.broken
        assert (node, str(cause)) == (1, "KafkaConnectionError: broker-1 closed the connection")
        rig.clock.advance_ms(200)
        rig.answer_all()
        assert future.get(0).offset == 0


@BOTH
def test_bytes_that_are_no_tls_end_the_connection_with_openssls_reason(in_c: bool) -> None:
    with Rig({"t": [1]}, tls=TlsPair(in_c)) as rig:
        future = rig.send("t", b"v")
        (seen,) = rig.requests()
        seen.peer.sock.sock.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        rig.step()
        ((_, cause),) = rig.control.broken
        assert isinstance(cause, TlsError)
        assert "broker-1" in str(cause)
        # The latter since OpenSSL 3.6.
        reason = str(cause).lower().replace("_", " ")
        assert "bad record mac" in reason or "record layer failure" in reason
        rig.pending.clear()
        rig.clock.advance_ms(200)
        rig.answer_all()
        assert future.get(0).offset == 0


@BOTH
def test_an_alert_that_follows_a_failed_write_is_reported(in_c: bool) -> None:
    """A broker that refuses a client's certificate sends an alert and closes: the next write fails first."""
    pair = TlsPair(in_c)
    with Rig({"t": [1]}, tls=pair) as rig:
        peer = rig.connect(1)
        # An alert in clear text is what an established session takes for an invalid record.
        peer.sock.sock.sendall(b"\x15\x03\x03\x00\x02\x02\x2e")
        peer.sock.sock.shutdown(socket.SHUT_RD)
        peer.sock.sock.close()
        rig.send("t", b"v" * 1000)
        rig.step()
        ((_, cause),) = rig.control.broken
        assert isinstance(cause, TlsError), cause


@BOTH
def test_the_counted_bytes_are_those_of_kafkas_protocol(in_c: bool) -> None:
    counted = []
    for tls in (None, TlsPair(in_c)):
        with Rig({"t": [1]}, tls=tls) as rig:
            rig.send("t", b"v" * 50_000)
            rig.answer_all()
            counters = rig.accumulator.counters()
            counted.append({name: counters[name] for name in counters if "bytes" in name})
    assert counted[0] == counted[1]


@BOTH
@pytest.mark.parametrize("on_purpose", [True, False])
def test_a_connection_that_this_client_closes_ends_with_close_notify(in_c: bool, on_purpose: bool) -> None:
    with Rig({"t": [1]}, tls=TlsPair(in_c)) as rig:
        rig.send("t", b"v")
        rig.answer_all()
        peer = rig.peers[1]
        closed: list[object] = []
        # The rig's own closes the broker's end.
        rig.control.on_broken = lambda connection, cause, now_ms: closed.append(cause)  # type: ignore[method-assign]
        rig.sender.close_connection(peer.connection, None if on_purpose else OSError("enough"))
        assert len(closed) == 1
        # Without it, the server's SSL object raises SSLEOFError.
        assert peer.sock.recv(10) == b""
        assert peer.sock.failure is None
        peer.sock.close()


@BOTH
def test_an_unacknowledged_request_whose_encrypted_bytes_are_stuck_times_out(in_c: bool) -> None:
    """All of it is encrypted, so it counts as written; but the broker reads nothing."""
    with Rig({"t": [1]}, tls=TlsPair(in_c), acks=0, request_timeout_ms=1000) as rig:
        peer = rig.connect(1)
        peer.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        rig.send("t", b"v" * 30_000)
        rig.step()
        assert peer.connection.unsent > 0
        rig.advance_ms(1000)
        ((node, cause),) = rig.control.broken
        assert (node, type(cause)) == (1, KafkaTimeoutError)


@BOTH
def test_this_clients_alert_reaches_the_broker(in_c: bool) -> None:
    with Rig({"t": [1]}, tls=TlsPair(in_c)) as rig:
        rig.send("t", b"v")
        (seen,) = rig.requests()
        end = seen.peer.sock
        # The broker's end is still read below.
        rig.control.on_broken = lambda connection, cause, now_ms: None  # type: ignore[method-assign]
        end.sock.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        rig.step()
        assert end.recv(10) == b""
        assert "ALERT_BAD_RECORD_MAC" in str(end.failure)
        end.close()


def test_a_connection_through_pythons_ssl_module_is_not_left_to_waiting_threads() -> None:
    """Ctrl-C would interrupt the module half-way: bytes would be sent twice, or lost."""
    for in_c in (True, False):
        with Rig({"t": [1]}, tls=TlsPair(in_c)) as rig:
            rig.send("t", b"v")
            rig.answer_all()
            assert rig.sender.may_stand_by() is in_c


@pytest.mark.parametrize("attempts", [20])
@pytest.mark.slow
def test_connections_that_failed_leave_nothing_to_the_garbage_collector(attempts: int) -> None:
    context = AUTHORITY.client()
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(each, ssl.SSLObject) for each in gc.get_objects())
        with socket.create_server(("127.0.0.1", 0)) as listener:
            accepted: list[socket.socket] = []
            config: dict[str, Any] = {
                "security_protocol": "SSL",
                "ssl_context": context,
                "reconnect_backoff_max_ms": 1,
            }
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            with KafkaProducer(bootstrap_servers=address, reconnect_backoff_ms=1, **config):
                for _ in range(attempts):
                    sock, _ = listener.accept()
                    accepted.append(sock)
                    sock.close()
        assert len(accepted) == attempts
        after = sum(isinstance(each, ssl.SSLObject) for each in gc.get_objects())
        assert after - before <= 1
    finally:
        gc.enable()
