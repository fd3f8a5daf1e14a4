"""The embedded broker's loop: partial writes, closing, and calls from other threads."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cyproducer.testing.broker.loop import Loop, Protocol, Transport
from tools.harness.until import PATIENCE_S

LARGE = bytes(range(256)) * (1 << 15)
"""More than the kernel takes at once."""


class Peer(Protocol):
    """Notes what happens to one connection."""

    def __init__(self) -> None:
        self.transport = Transport()
        self.is_made, self.is_lost = threading.Event(), threading.Event()
        self.received = b""
        self.times_lost = 0

    def connection_made(self, transport: Transport) -> None:
        self.transport = transport
        self.is_made.set()

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self) -> None:
        self.times_lost += 1
        self.is_lost.set()


@contextmanager
def connected() -> Iterator[tuple[Loop, Peer, socket.socket]]:
    loop, peer = Loop(), Peer()
    listener = loop.listen(lambda: peer, "127.0.0.1", 0)
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        with socket.create_connection(("127.0.0.1", listener.port), PATIENCE_S) as client:
            assert peer.is_made.wait(PATIENCE_S)
            yield loop, peer, client
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


def read_to_end(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(1 << 16), b""))


def test_a_client_that_reads_late_gets_everything_before_the_end() -> None:
    with connected() as (loop, peer, client):
        for act, *arguments in ((peer.transport.write, LARGE), (peer.transport.write, b"end")):
            loop.call_soon_threadsafe(act, *arguments)
        loop.call_soon_threadsafe(peer.transport.close)
        assert read_to_end(client) == LARGE + b"end"
        assert peer.is_lost.wait(PATIENCE_S)


def test_an_aborted_connection_sends_nothing_that_waits() -> None:
    with connected() as (loop, peer, client):
        loop.call_soon_threadsafe(peer.transport.write, LARGE)
        loop.call_soon_threadsafe(peer.transport.abort)
        loop.call_soon_threadsafe(peer.transport.write, b"late")
        assert peer.is_lost.wait(PATIENCE_S)
        assert len(read_to_end(client)) < len(LARGE)
        # The listener, and what wakes the loop.
        assert len(loop.selector.get_map()) == 2


def test_a_client_that_is_gone_ends_the_connection_once() -> None:
    with connected() as (loop, peer, client):
        client.close()
        assert peer.is_lost.wait(PATIENCE_S)
        for act in (peer.transport.close, peer.transport.abort):
            loop.call_soon_threadsafe(act)
        over = threading.Event()
        # What the two have scheduled comes before this.
        loop.call_soon_threadsafe(loop.call_soon, over.set)
        assert over.wait(PATIENCE_S)
        assert peer.times_lost == 1


def test_a_call_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("ERROR", "cyproducer.testing"), connected() as (loop, _, _client):
        over = threading.Event()
        loop.call_soon_threadsafe(int, "no number")
        loop.call_soon_threadsafe(over.set)
        assert over.wait(PATIENCE_S)
    assert [each.exc_info[0] for each in caplog.records if each.exc_info] == [ValueError]


def test_thousands_of_calls_while_the_loop_is_busy_are_all_made(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("ERROR", "cyproducer.testing"), connected() as (loop, _, _client):
        busy, go_on, made = threading.Event(), threading.Event(), list[int]()

        def block() -> None:
            busy.set()
            assert go_on.wait(PATIENCE_S)

        loop.call_soon_threadsafe(block)
        assert busy.wait(PATIENCE_S)
        # One byte each wakes the loop: as many as it reads at once.
        for number in range(4096):
            loop.call_soon_threadsafe(made.append, number)
        over = threading.Event()
        loop.call_soon_threadsafe(loop.call_soon, over.set)
        go_on.set()
        assert over.wait(PATIENCE_S)
        assert made == list(range(4096))
    assert not caplog.records


def test_the_newer_alarm_replaces_the_older() -> None:
    loop, rung = Loop(), list[str]()

    def ring() -> None:
        rung.append("new")
        loop.stop()

    loop.set_alarm(0.0, lambda: rung.append("old"))
    loop.set_alarm(0.001, ring)
    loop.run()
    assert rung == ["new"]


def test_a_loop_that_has_ended_takes_no_calls() -> None:
    loop = Loop()
    loop.stop()
    loop.run()
    with pytest.raises(OSError, match="Bad file descriptor"):
        loop.call_soon_threadsafe(loop.stop)


def test_the_first_start_of_a_broker_imports_no_large_module() -> None:
    """Each of these takes as long as the whole start."""
    large = (
        "asyncio", "inspect", "ssl", "subprocess", "multiprocessing", "dataclasses", "uuid", "json",
        "hashlib", "tempfile", "datetime", "cyproducer.records.compression",
    )  # fmt: skip
    program = (
        "import sys\nfrom cyproducer.testing import EmbeddedBroker\nwith EmbeddedBroker(): pass\n"
        f"print(*{set(large)} & {{*sys.modules}})"
    )
    imported = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert imported.stdout.split() == []


def test_a_loop_that_ends_at_once_waits_for_the_thread_that_ended_it() -> None:
    """The loop may run a call before the calling thread has woken it."""
    loop = Loop()
    noted, ends = threading.Event(), threading.Event()
    waker, waking = loop._waker, loop._waking

    class Waker:
        def send(self, data: bytes) -> int:
            noted.set()
            assert ends.wait(PATIENCE_S)
            return waker.send(data)

        def close(self) -> None:
            waker.close()

    class Waking:
        def __enter__(self) -> None:
            if threading.current_thread() is thread:
                ends.set()
            waking.acquire()

        def __exit__(self, *raised: object) -> None:
            waking.release()

    # An iteration that is not over yet: the next one needs no byte to begin.
    loop.call_soon(noted.wait, PATIENCE_S)
    loop._waker, loop._waking = Waker(), Waking()  # type: ignore[assignment]
    thread = threading.Thread(target=loop.run)
    thread.start()
    loop.call_soon_threadsafe(loop.stop)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
