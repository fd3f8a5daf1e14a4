"""How a socket to a broker is made, and what becomes of one that cannot be connected."""

import errno
import socket
from typing import Any

import pytest

from cyproducer import errors
from cyproducer.net import connector
from cyproducer.net.connector import Connector
from tests.scripted.odd_servers import refusing_address
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import ScriptedCluster
from tools.harness.until import until


def test_a_socket_whose_connect_fails_at_once_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each retry makes another socket: kept ones would use up the descriptors of the process."""
    tried: list[socket.socket] = []

    def connect_ex(self: socket.socket, address: Any) -> int:
        tried.append(self)
        return errno.ENETUNREACH

    monkeypatch.setattr(socket.socket, "connect_ex", connect_ex)
    with producing(bootstrap_servers=refusing_address()) as producer:
        until(lambda: len(tried) >= 3, "three attempts")
        with pytest.raises(errors.NoBrokersAvailable, match="network is unreachable"):
            producer.wait_ready(0)
    assert {sock.fileno() for sock in tried} == {-1}


def test_a_socket_that_takes_an_option_badly_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []
    setblocking = socket.socket.setblocking

    def note(self: socket.socket, flag: bool) -> None:
        made.append(self)
        setblocking(self, flag)

    monkeypatch.setattr(socket.socket, "setblocking", note)
    unknown = [(socket.IPPROTO_TCP, 9999, 1)]
    with producing(bootstrap_servers=refusing_address(), socket_options=unknown) as producer:
        until(lambda: len(made) >= 2, "two attempts")
        with pytest.raises(errors.NoBrokersAvailable):
            producer.wait_ready(0)
    assert {sock.fileno() for sock in made} == {-1}


def test_each_buffer_size_goes_to_its_own_socket_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel doubles a size and bounds it, so the test looks at what it is asked for."""
    asked: dict[int, int] = {}
    make = Connector._connect

    class Noting(socket.socket):
        def setsockopt(self, level: int, name: int, value: Any, *rest: Any) -> None:
            if level == socket.SOL_SOCKET:
                asked[name] = value
            super().setsockopt(level, name, value, *rest)

    def connect(self: Connector, address: Any) -> socket.socket:
        with monkeypatch.context() as patched:
            patched.setattr(connector, "Socket", Noting)
            return make(self, address)

    monkeypatch.setattr(Connector, "_connect", connect)
    with (
        ScriptedCluster(orders=1) as cluster,
        producing(cluster, send_buffer_bytes=20_000, receive_buffer_bytes=30_000) as producer,
    ):
        producer.send("orders", b"v").get(WAIT_S)
    assert asked[socket.SO_SNDBUF] == 20_000
    assert asked[socket.SO_RCVBUF] == 30_000
