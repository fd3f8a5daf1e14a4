"""Tests each fault of the fault tests' proxy, with a server that responds to frames."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from tests.integration.fault_log import FaultLog
from tests.integration.mischief import ALL, GENTLE, Fault, Mischief, Plan
from tests.integration.proxy import OPENING_RECORDS, Proxy

NODE = 7
PRODUCE, METADATA = 0, 3
ANSWER = b"answer" * 10


class Server(socketserver.ThreadingTCPServer):
    """Responds to each frame with its correlation id, or to each TLS record. Keeps the received bytes."""

    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got = bytearray()
        self.answered = 0
        self.encrypted = False
        self.closed = threading.Semaphore(0)


class Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        pending = b""
        with contextlib.suppress(ConnectionError):
            while server.encrypted and (data := self.request.recv(len(record()))):
                server.got += data
                if len(server.got) % len(record()) == 0:
                    self.request.sendall(record())
            while data := self.request.recv(65_536):
                server.got += data
                pending += data
                while len(pending) >= 4 and len(pending) >= 4 + (size := int.from_bytes(pending[:4])):
                    answer = pending[8:12] + ANSWER
                    pending = pending[4 + size :]
                    self.request.sendall(struct.pack(">i", len(answer)) + answer)
                    server.answered += 1
        server.closed.release()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy([NODE]) as proxy:
        proxy.forward_to({NODE: server.server_address[1]})
        yield proxy


class OnePlan(Mischief):
    """The given plan for the first connection, and no fault for later ones."""

    def __init__(self, plan: Plan) -> None:
        super().__init__("")
        self.plans = [plan]

    def next_plan(self, node: int) -> tuple[int, Plan]:
        return 1, self.plans.pop() if self.plans else GENTLE


@pytest.fixture
def log() -> FaultLog:
    return FaultLog("seed")


def frame(api_key: int, correlation_id: int, size: int = 20) -> bytes:
    return struct.pack(">ihhi", size - 4, api_key, 0, correlation_id).ljust(size, b".")


def answer(correlation_id: int) -> bytes:
    return struct.pack(">ii", 4 + len(ANSWER), correlation_id) + ANSWER


def record(kind: int = 23) -> bytes:
    """A TLS record with 20 bytes, by default of application data."""
    return bytes([kind, 3, 3, 0, 20]) + bytes(20)


@contextlib.contextmanager
def connected(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.ports[NODE]), timeout=10) as client:
        yield client


def received(client: socket.socket, size: int = 10_000) -> bytes:
    """Returns the bytes received until the connection's end, at most ``size``."""
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while len(got) < size and (part := client.recv(size - len(got))):
            got += part
    return got


def test_a_proxy_without_faults_forwards_everything_in_both_directions(proxy: Proxy, server: Server) -> None:
    sent = frame(METADATA, 1) + frame(PRODUCE, 2, 300_000) + frame(PRODUCE, 3)
    with connected(proxy) as client:
        client.sendall(sent)
        expected = answer(1) + answer(2) + answer(3)
        assert received(client, len(expected)) == expected
    assert server.closed.acquire(timeout=10)
    assert server.got == sent


@pytest.mark.parametrize("abrupt", [False, True])
def test_requests_are_cut_at_the_byte(proxy: Proxy, server: Server, log: FaultLog, abrupt: bool) -> None:
    plan = Plan(Fault.CUT_REQUESTS, at=33, abrupt=abrupt)
    with proxy.misbehaving(OnePlan(plan), log), connected(proxy) as client:
        client.sendall(frame(METADATA, 1))
        assert received(client, len(answer(1))) == answer(1)
        client.sendall(frame(PRODUCE, 2) + frame(PRODUCE, 3))
        assert received(client) == b""
        assert server.closed.acquire(timeout=10)
    whole = frame(METADATA, 1) + frame(PRODUCE, 2)
    # A reset may overtake the bytes before it.
    assert server.got == whole[:33] or (abrupt and server.got == whole[:20])
    assert log.count("13 of the 20 bytes of Produce 1") == 1


def test_responses_are_cut_at_the_byte(proxy: Proxy, server: Server, log: FaultLog) -> None:
    plan = Plan(Fault.CUT_ANSWERS, at=len(answer(1)) + 5)
    with proxy.misbehaving(OnePlan(plan), log), connected(proxy) as client:
        client.sendall(frame(PRODUCE, 1) + frame(PRODUCE, 2))
        assert received(client) == answer(1) + answer(2)[:5]
        assert server.closed.acquire(timeout=10)
    assert server.answered == 2


@pytest.mark.parametrize("plan", [Plan(Fault.LOSE_ANSWER, at=2), Plan(Fault.SLOW, last=2)])
def test_a_response_is_lost_after_the_request_was_processed(
    proxy: Proxy, server: Server, log: FaultLog, plan: Plan
) -> None:
    with proxy.misbehaving(OnePlan(plan), log), connected(proxy) as client:
        client.sendall(frame(METADATA, 1) + frame(PRODUCE, 2) + frame(PRODUCE, 3))
        assert received(client) == answer(1) + answer(2)
        assert server.closed.acquire(timeout=10)
    assert server.answered == 3
    assert log.count("the response to Produce 2 was lost") == 1


def test_a_late_request_arrives_after_its_client_was_cut(proxy: Proxy, server: Server, log: FaultLog) -> None:
    plan = Plan(Fault.LATE_REQUEST, at=1, hold_s=0.3)
    with proxy.misbehaving(OnePlan(plan), log), connected(proxy) as client:
        client.sendall(frame(METADATA, 1))
        assert received(client, len(answer(1))) == answer(1)
        client.sendall(frame(PRODUCE, 2))
        assert received(client) == b""
        assert server.got == frame(METADATA, 1)
        assert server.closed.acquire(timeout=10)
    assert server.got == frame(METADATA, 1) + frame(PRODUCE, 2)
    assert log.count("the response to Produce 1 came after the client had disconnected") == 1


def test_stalled_requests_arrive_although_their_client_gave_up(
    proxy: Proxy, server: Server, log: FaultLog
) -> None:
    plan = Plan(Fault.STALL_REQUESTS, at=1, hold_s=0.3)
    with proxy.misbehaving(OnePlan(plan), log):
        with connected(proxy) as client:
            client.sendall(frame(PRODUCE, 1) + frame(PRODUCE, 2))
        assert server.got == b""
        assert server.closed.acquire(timeout=10)
    assert server.got == frame(PRODUCE, 1) + frame(PRODUCE, 2)
    assert server.answered == 2


@pytest.mark.parametrize(
    ("plan", "least_s"),
    [
        (Plan(Fault.STALL_REQUESTS, at=1, hold_s=0.2), 0.2),
        (Plan(Fault.STALL_ANSWERS, at=1, hold_s=0.2), 0.2),
        # Once for the request and once for the response.
        (Plan(Fault.SLOW, hold_s=0.1), 0.2),
    ],
)
def test_delayed_data_arrives_completely(proxy: Proxy, log: FaultLog, plan: Plan, least_s: float) -> None:
    with proxy.misbehaving(OnePlan(plan), log), connected(proxy) as client:
        began_s = time.monotonic()
        client.sendall(frame(PRODUCE, 1))
        assert received(client, len(answer(1))) == answer(1)
        assert time.monotonic() - began_s >= least_s


@pytest.mark.parametrize(
    ("plan", "passed", "reached", "noted"),
    [
        (Plan(Fault.CUT_REQUESTS, at=2 * 25 + 7), 2, 2 * 25 + 7, "7 of the 25 bytes of record 3 reached"),
        (Plan(Fault.LOSE_ANSWER, at=2), OPENING_RECORDS + 1, None, "record 14 of the broker was lost"),
        (Plan(Fault.LATE_REQUEST, at=2), OPENING_RECORDS + 1, None, "client cut; record 14 reaches"),
    ],
)
@pytest.mark.slow
def test_over_tls_records_are_counted_behind_those_that_open_the_connection(
    server: Server, log: FaultLog, plan: Plan, passed: int, reached: int | None, noted: str
) -> None:
    server.encrypted = True
    with Proxy([NODE], encrypted=True) as proxy:
        proxy.forward_to({NODE: server.server_address[1]})
        with proxy.misbehaving(OnePlan(plan), log), connected(proxy) as client:
            for _ in range(passed):
                client.sendall(record())
                assert received(client, len(record())) == record()
            client.sendall(record())
            assert received(client) == b""
            assert server.closed.acquire(timeout=10)
    assert server.got == (record() * (passed + 1))[:reached]
    assert log.count(noted) == 1


def test_existing_connections_are_cut_when_the_faults_begin(proxy: Proxy, log: FaultLog) -> None:
    with connected(proxy) as client:
        client.sendall(frame(METADATA, 1))
        assert received(client, len(answer(1))) == answer(1)
        with proxy.misbehaving(OnePlan(GENTLE), log):
            assert received(client) == b""


def test_faults_still_to_come_are_cancelled_at_the_end(proxy: Proxy, log: FaultLog) -> None:
    plan = Plan(Fault.LOSE_ANSWER, at=2)
    with contextlib.ExitStack() as stack:
        with proxy.misbehaving(OnePlan(plan), log):
            client = stack.enter_context(connected(proxy))
            client.sendall(frame(PRODUCE, 1))
            assert received(client, len(answer(1))) == answer(1)
        client.sendall(frame(PRODUCE, 2))
        assert received(client, len(answer(2))) == answer(2)


def test_connections_to_a_node_that_is_down_are_closed(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with Proxy([NODE]) as proxy:
        proxy.forward_to({NODE: port})
        with connected(proxy) as client:
            assert received(client) == b""


def test_closing_ends_every_thread(server: Server) -> None:
    before = set(threading.enumerate())
    with Proxy([NODE]) as proxy:
        proxy.forward_to({NODE: server.server_address[1]})
        with connected(proxy) as client:
            client.sendall(frame(METADATA, 1))
            assert received(client, len(answer(1))) == answer(1)
            proxy.close()
            assert received(client) == b""
    assert server.closed.acquire(timeout=10)
    assert not [t for t in threading.enumerate() if t not in before and t.name.startswith("proxy")]


def test_a_seed_reproduces_the_plan_of_each_connection() -> None:
    def plans(seed: str, nodes: list[int]) -> dict[tuple[int, int], Plan]:
        mischief = Mischief(seed)
        made = {}
        for node in nodes:
            number, plan = mischief.next_plan(node)
            made[node, number] = plan
        return made

    # The order of connections to different nodes depends on the threads.
    assert plans("1", [1, 2] * 200) == plans("1", [1] * 200 + [2] * 200)
    assert plans("1", [1] * 10) != plans("2", [1] * 10)
    assert {plan.fault for plan in plans("1", [1] * 200).values()} == set(ALL)
