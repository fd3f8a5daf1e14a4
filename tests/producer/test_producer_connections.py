"""Which connections a producer makes and keeps, and what it does when they fail."""

import contextlib
import errno
import functools
import logging
import math
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cyproducer import errors
from cyproducer.clients.network_client import NetworkClient
from cyproducer.control.node_states import Address
from cyproducer.net import connector
from cyproducer.net.dns import Resolution, Resolver, ResolveRequest
from cyproducer.producer import KafkaProducer
from tests.scripted import odd_servers
from tests.scripted.odd_servers import odd_server, refusing_address
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import METADATA, PRODUCE, Act, ScriptedCluster
from tools.harness.until import until

NOT_ENOUGH_REPLICAS = 19


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


# Connections


def test_one_bootstrap_server_that_responds_is_enough() -> None:
    with odd_server(odd_servers.hangs_up) as odd, ScriptedCluster(orders=1) as cluster:
        servers = [refusing_address(), odd, *cluster.bootstrap_servers, refusing_address()]
        with producing(cluster, bootstrap_servers=servers) as producer:
            producer.wait_ready(WAIT_S)
            assert producer.bootstrap_connected()
            assert producer.send("orders", b"1").get(WAIT_S).offset == 0


def test_a_producer_waits_for_a_broker_that_is_not_up_yet() -> None:
    with ScriptedCluster(orders=1) as cluster:
        cluster.nodes[1].stop()
        with producing(cluster) as producer:
            future = producer.send("orders", b"1")
            with pytest.raises(errors.NoBrokersAvailable):
                producer.wait_ready(0.1)
            cluster.nodes[1].start()
            assert future.get(WAIT_S).offset == 0


@pytest.mark.slow
def test_records_go_on_within_a_second_of_the_return_of_the_only_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # No jitter: the waits between attempts would be 0.05, 0.1, ... 1.6 and 3.2 s without the maximum.
    monkeypatch.setattr("random.random", lambda: 0.5)
    with (
        ScriptedCluster(orders=1, fresh=1) as cluster,
        KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id="once") as producer,
    ):
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        producer.send("orders", b"0").get(WAIT_S)
        cluster.nodes[1].stop()
        waiting = [producer.send(topic, b"1") for topic in ("orders", "fresh")]
        # A producer has no manual clock.
        assert not threading.Event().wait(3.3)
        cluster.nodes[1].start()
        returned = time.monotonic()
        assert [future.get(WAIT_S).offset for future in waiting] == [1, 0]
        producer.commit_transaction(WAIT_S)
        assert time.monotonic() - returned < 1.5


def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedCluster(orders=1) as cluster:
        port = cluster.nodes[1].port

        def look_up(host: str, *args: Any, **kwargs: Any) -> Any:
            assert host == "kafka.example"
            tcp = (socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
            # No server listens on the first two.
            return [
                (socket.AF_INET6, *tcp, ("::1", port, 0, 0)),
                (socket.AF_INET, *tcp, ("127.0.0.2", port)),
                (socket.AF_INET, *tcp, ("127.0.0.1", port)),
            ]

        monkeypatch.setattr(connector, "Resolver", functools.partial(Resolver, getaddrinfo=look_up))
        with producing(
            bootstrap_servers=[f"kafka.example:{port}"],
            reconnect_backoff_ms=9000,
            reconnect_backoff_max_ms=9000,
        ) as producer:
            producer.wait_ready(5)
            assert producer.send("orders", b"1").get(WAIT_S).offset == 0


# Parallel attempts. The setup timeout is infinite here, so that only the next attempt helps. random() always
# chooses the first server, which leads nowhere.


@pytest.fixture
def first_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.random", lambda: 0.0)


ENDLESS: dict[str, Any] = {"socket_connection_setup_timeout_ms": math.inf}


@pytest.mark.usefixtures("first_first")
@pytest.mark.slow
def test_a_silent_bootstrap_server_delays_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with (
        ScriptedCluster(orders=1) as cluster,
        odd_server(odd_servers.is_silent) as first,
        odd_server(odd_servers.is_silent) as second,
        producing(bootstrap_servers=[first, second, *cluster.bootstrap_servers], **ENDLESS) as producer,
    ):
        assert producer.send("orders", b"1").get(WAIT_S).offset == 0
        # The others were closed, which is not a failure.
        assert [c.node_id for c in producer._runtime.client._connector.connections.values()] == [1]
        assert producer._runtime.client._connector.diagnosis() == ""
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@contextlib.contextmanager
def hole(family: socket.AddressFamily, host: str) -> Iterator[int]:
    """A port at which connecting has no outcome: its queue is full. Linux drops further requests then."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(family))
        listener.bind((host, 0))
        listener.listen(0)
        port: int = listener.getsockname()[1]
        for _ in range(3):
            waiting = stack.enter_context(socket.socket(family))
            waiting.setblocking(False)
            waiting.connect_ex((host, port))
        yield port


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse if a listener's queue is full")
@pytest.mark.parametrize(
    ("family", "host"),
    [(socket.AF_INET, "127.0.0.1"), pytest.param(socket.AF_INET6, "::1", marks=needs_ipv6)],
    ids=["IPv4", "IPv6"],
)
def test_an_address_without_an_outcome_delays_its_name_little(
    family: socket.AddressFamily, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[str, float]] = []
    opening = connector.Connector._connect

    def connect(self: connector.Connector, address: Address) -> socket.socket:
        tried.append((str(address), time.monotonic()))
        return opening(self, address)

    with ScriptedCluster(orders=1) as cluster, hole(family, host) as hanging:
        good = cluster.nodes[1].port
        where = (host, hanging, 0, 0) if family is socket.AF_INET6 else (host, hanging)

        def look_up(host: str, port: int, **options: Any) -> Any:
            return [
                (family, socket.SOCK_STREAM, 6, "", where),
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", good)),
            ]

        monkeypatch.setattr(connector.Connector, "_connect", connect)
        monkeypatch.setattr(connector, "Resolver", functools.partial(Resolver, getaddrinfo=look_up))
        with producing(bootstrap_servers=["kafka.example:9092"], **ENDLESS) as producer:
            assert producer.send("orders", b"1").get(WAIT_S).offset == 0
    (first, began), (second, later) = tried[:2]
    assert str(hanging) in first
    assert str(good) in second
    # RFC 8305 recommends 250 ms; a busy machine may add to it.
    assert 0.24 < later - began < 5


@needs_ipv6
def test_a_broker_with_an_ipv6_address() -> None:
    with ScriptedCluster(interface="::1", orders=1) as cluster, producing(cluster) as producer:
        assert producer.send("orders", b"1").get(WAIT_S).offset == 0
        (connection,) = producer._runtime.client._connector.connections.values()
        assert connection.sock.family == socket.AF_INET6


@pytest.mark.usefixtures("first_first")
def test_a_lookup_that_hangs_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    hold = threading.Event()
    with ScriptedCluster(orders=1) as cluster:
        port = cluster.nodes[1].port

        def look_up(host: str, port: int, **options: Any) -> Any:
            if host == "hangs.example":
                hold.wait(WAIT_S)
                raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

        monkeypatch.setattr(connector, "Resolver", functools.partial(Resolver, getaddrinfo=look_up))
        servers = ["hangs.example:9092", f"kafka.example:{port}"]
        with producing(bootstrap_servers=servers, **ENDLESS) as producer:
            assert producer.send("orders", b"1").get(WAIT_S).offset == 0
            assert producer._runtime.client._connector.diagnosis() == ""
            # Its result is not used.
            hold.set()
            assert producer.send("orders", b"2").get(WAIT_S).offset == 1


class HangingLookUps:
    """What producers asked for and what was looked up; every look-up hangs until `hold` is set."""

    def __init__(self) -> None:
        self.hold = threading.Event()
        self.asked: list[str] = []
        self.looked_up: list[str] = []

    def look_up(self, host: str, port: int, **options: Any) -> Any:
        self.looked_up.append(host)
        self.hold.wait(WAIT_S)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> HangingLookUps:
    look_ups = HangingLookUps()

    class Counted(Resolver):
        def resolve(self, host: str, port: int, canonical: bool = False) -> ResolveRequest:
            look_ups.asked.append(host)
            return super().resolve(host, port, canonical)

    monkeypatch.setattr(connector, "Resolver", functools.partial(Counted, getaddrinfo=look_ups.look_up))
    return look_ups


def test_a_lookup_that_hangs_is_given_up_in_time_and_reported(hanging: HangingLookUps) -> None:
    with producing(
        bootstrap_servers="hangs.example:9092",
        socket_connection_setup_timeout_ms=20,
        socket_connection_setup_timeout_max_ms=20,
    ) as producer:
        until(lambda: len(hanging.asked) > 2, "two look-ups that were given up")
        with pytest.raises(errors.NoBrokersAvailable, match=r"'hangs.example': name resolution took over"):
            producer.wait_ready(0)
        # It is the same lookup all the time.
        assert hanging.looked_up == ["hangs.example"]
        hanging.hold.set()


def test_errors_name_a_look_up_once_however_often_it_was_given_up(hanging: HangingLookUps) -> None:
    """Else each attempt of a producer that cannot reach its name server would keep some memory, too."""
    with producing(
        bootstrap_servers="hangs.example:9092",
        socket_connection_setup_timeout_ms=5,
        socket_connection_setup_timeout_max_ms=5,
    ) as producer:
        until(lambda: len(hanging.asked) > 3, "three look-ups that were given up")
        said = producer._runtime.client.diagnosis()
        hanging.hold.set()
    assert said.count("still looking up hangs.example:9092") <= 1
    assert "name resolution took over" in said


class TwoAddresses:
    """A resolver that has two addresses for every name; nothing responds at the first one."""

    DEAD = "192.0.2.1"  # RFC 5737: reserved for documentation

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.answers: list[Resolution] = []

    def resolve(self, host: str, port: int, canonical: bool = False) -> ResolveRequest:
        request = ResolveRequest(host, port, canonical)
        both = [Address(host, socket.AF_INET, (address, port)) for address in (self.DEAD, "127.0.0.1")]
        self.answers.append(Resolution(request, both, None))
        self.wake()
        return request

    def poll(self) -> list[Resolution]:
        answers, self.answers = self.answers, []
        return answers

    def close(self) -> None:
        pass


@pytest.mark.slow
def test_the_first_connected_address_of_a_broker_is_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connect = connector.Connector._connect
    ends: list[tuple[socket.socket, socket.socket]] = []

    def connecting(self: connector.Connector, address: Address) -> socket.socket:
        if address.sockaddr[0] != TwoAddresses.DEAD:
            return connect(self, address)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        # A full socket does not become writable, like one whose SYN is not answered.
        with contextlib.suppress(BlockingIOError):
            while True:
                ours.send(bytes(65536))
        ends.append((ours, theirs))
        return ours

    monkeypatch.setattr(connector, "Resolver", TwoAddresses)
    monkeypatch.setattr(connector.Connector, "_connect", connecting)
    with ScriptedCluster(orders=1) as cluster, producing(cluster, **ENDLESS) as producer:
        assert producer.send("orders", b"1").get(WAIT_S).offset == 0
        # The connections of the bootstrap server and of the broker itself.
        assert len(ends) == 2
        assert [ours.fileno() for ours, _ in ends] == [-1, -1]
        assert producer._runtime.client._connector.diagnosis() == ""
        (kept,) = producer._runtime.client._connector.connections.values()
        assert "(127.0.0.1:" not in kept.where
    for _, theirs in ends:
        theirs.close()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_bootstrap_name_with_a_silent_first_address_delays_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ScriptedCluster(orders=1) as cluster, odd_server(odd_servers.is_silent) as silent:
        addresses = [("127.0.0.1", int(silent.rpartition(":")[2])), ("127.0.0.1", cluster.nodes[1].port)]

        def look_up(host: str, port: int, **options: Any) -> Any:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]

        monkeypatch.setattr(connector, "Resolver", functools.partial(Resolver, getaddrinfo=look_up))
        with producing(bootstrap_servers="kafka.example:9092", **ENDLESS) as producer:
            assert producer.send("orders", b"1").get(WAIT_S).offset == 0


def test_a_refused_connection_is_logged_with_its_address(caplog: pytest.LogCaptureFixture) -> None:
    address = refusing_address()
    with producing(bootstrap_servers=address) as producer:
        until(lambda: caplog.records, "a warning")
        with pytest.raises(errors.NoBrokersAvailable, match=f"{address}: connection refused"):
            producer.wait_ready(0)
    assert f"{address}: connection refused" in caplog.records[0].getMessage()
    assert caplog.records[0].levelno == logging.WARNING


def test_an_address_without_a_route_is_logged_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def connect(self: connector.Connector, address: Address) -> socket.socket:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(connector.Connector, "_connect", connect)
    with producing(bootstrap_servers="127.0.0.1:1"):
        until(lambda: caplog.records, "a warning")
    assert "127.0.0.1:1: network is unreachable" in caplog.records[0].getMessage()


def test_a_connection_that_times_out_is_logged_with_its_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        odd_server(odd_servers.is_silent) as address,
        producing(bootstrap_servers=address, socket_connection_setup_timeout_ms=20),
    ):
        until(lambda: caplog.records, "a warning")
        assert f"{address}: no completed handshake within " in caplog.records[0].getMessage()


@pytest.mark.parametrize("client_dns_lookup", ["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"])
def test_both_kinds_of_name_lookup_reach_the_broker(client_dns_lookup: str) -> None:
    with (
        ScriptedCluster(orders=1) as cluster,
        producing(
            bootstrap_servers=[f"localhost:{cluster.nodes[1].port}"], client_dns_lookup=client_dns_lookup
        ) as producer,
    ):
        assert producer.send("orders", b"1").get(WAIT_S).offset == 0


def test_an_idle_connection_is_closed_and_reopened_when_needed() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster, connections_max_idle_ms=100) as producer:
        assert producer.send("orders", b"1").get(WAIT_S).offset == 0
        cluster.wait_for(lambda: all(c.closed for c in cluster.nodes[1].connections))
        assert not producer.bootstrap_connected()
        assert producer.send("orders", b"2").get(WAIT_S).offset == 1


def test_a_connection_with_a_request_in_flight_is_not_idle() -> None:
    held = threading.Event()
    with ScriptedCluster(orders=1) as cluster, producing(cluster, connections_max_idle_ms=60) as producer:
        producer.partitions_for("orders")
        cluster.act(PRODUCE, Act(hold=held))
        future = producer.send("orders", b"1")
        cluster.wait_for_requests(PRODUCE, 1)
        (request,) = cluster.received(PRODUCE)
        assert not held.wait(0.3)
        assert not request.connection.closed
        held.set()
        assert future.get(WAIT_S).offset == 0


def test_a_connection_with_a_metadata_request_in_flight_is_not_idle() -> None:
    with (
        ScriptedCluster(orders=1, late=1) as cluster,
        producing(cluster, connections_max_idle_ms=60) as producer,
    ):
        producer.send("orders", b"1").get(WAIT_S)
        hold = threading.Event()
        cluster.act(METADATA, Act(hold=hold))
        future = producer.send("late", b"1")
        cluster.wait_for(lambda: cluster.received(METADATA)[-1].topics == ["late"])
        connection = cluster.received(METADATA)[-1].connection
        assert not threading.Event().wait(0.2)
        assert not connection.closed
        hold.set()
        assert future.get(WAIT_S).offset == 0


@pytest.mark.slow
def test_an_idle_timeout_during_a_request_does_not_spin_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    held, ticks = threading.Event(), []
    tick = NetworkClient.tick

    def counted(client: NetworkClient, now_ms: float) -> float:
        ticks.append(now_ms)
        return tick(client, now_ms)

    monkeypatch.setattr(NetworkClient, "tick", counted)
    with ScriptedCluster(orders=1) as cluster, producing(cluster, connections_max_idle_ms=50) as producer:
        producer.partitions_for("orders")
        cluster.act(PRODUCE, Act(hold=held))
        future = producer.send("orders", b"1")
        cluster.wait_for_requests(PRODUCE, 1)
        assert not held.wait(0.5)
        held.set()
        assert future.get(WAIT_S).offset == 0
    # At most one every 50 ms and a few others: not thousands.
    assert len(ticks) < 100


def test_a_handshake_that_the_socket_accepts_in_pieces_succeeds() -> None:
    with ScriptedCluster(orders=1) as cluster:
        cluster.nodes[1].narrow()
        with producing(cluster, client_id="x" * 32_000, send_buffer_bytes=1) as producer:
            assert producer.send("orders", b"1").get(WAIT_S).offset == 0
        assert {received.header.client_id for received in cluster.requests} == {"x" * 32_000}


def test_without_reachable_brokers_the_producer_returns_to_the_bootstrap_servers() -> None:
    """The cluster was replaced by one at other addresses, to which the name in bootstrap_servers points."""
    with ScriptedCluster(orders=1) as old, ScriptedCluster(orders=1) as new:
        old.nodes[1].host = "127.0.0.1"
        servers = [*old.bootstrap_servers, *new.bootstrap_servers]
        # While the old cluster exists, only that is known.
        new.nodes[1].stop()
        with producing(old, bootstrap_servers=servers) as producer:
            producer.send("orders", b"1").get(WAIT_S)
            old.nodes[1].stop()
            new.nodes[1].start()
            assert producer.send("orders", b"2").get(WAIT_S).offset == 0
        assert new.topics["orders"].values == [b"2"]


def test_a_broker_at_a_new_address_is_found_there() -> None:
    with ScriptedCluster(2, orders=2) as cluster, producing(cluster) as producer:
        producer.send("orders", b"0", partition=1).get(WAIT_S)
        moved = cluster.nodes[2]
        moved.stop()
        moved.port = 0
        moved.start()
        assert producer.send("orders", b"1", partition=1).get(WAIT_S).offset == 1
