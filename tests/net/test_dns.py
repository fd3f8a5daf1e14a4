"""Name resolution on other threads than the sender thread."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cyproducer.control.node_states import Address
from cyproducer.errors import NameResolutionError
from cyproducer.net.dns import MOST_THREADS, Resolution, Resolver
from tools.harness.until import NewThreads, until

TIMEOUT_S = 10.0


def info(host: str, port: int, family: int = socket.AF_INET) -> tuple[Any, ...]:
    sockaddr = (host, port) if family == socket.AF_INET else (host, port, 0, 0)
    return (family, socket.SOCK_STREAM, 6, "", sockaddr)


class Names:
    """A fake resolver with the names that a test defines."""

    def __init__(self) -> None:
        self.infos: dict[str, list[tuple[Any, ...]] | Exception] = {}
        self.reverse: dict[str, str] = {}
        self.threads: list[threading.Thread] = []
        self.hold = threading.Event()
        self.hold.set()
        self.asked: list[str] = []
        #: Names whose look-ups wait for ``hold_hanging``.
        self.hanging: set[str] = set()
        self.hold_hanging = threading.Event()
        self.entered = threading.Event()

    def getaddrinfo(self, host: str, port: int, **options: Any) -> list[tuple[Any, ...]]:
        assert options == {"type": socket.SOCK_STREAM}
        self.threads.append(threading.current_thread())
        self.asked.append(host)
        self.entered.set()
        assert self.hold.wait(TIMEOUT_S)
        assert host not in self.hanging or self.hold_hanging.wait(TIMEOUT_S)
        result = self.infos[host]
        if isinstance(result, Exception):
            raise result
        return result

    def getnameinfo(self, sockaddr: Any, flags: int) -> tuple[str, str]:
        assert flags == socket.NI_NAMEREQD
        if sockaddr[0] not in self.reverse:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self.reverse[sockaddr[0]], str(sockaddr[1])


class Harness:
    def __init__(self) -> None:
        self.names = Names()
        self.wakes = threading.Semaphore(0)
        self.resolver = Resolver(
            self.wakes.release, getaddrinfo=self.names.getaddrinfo, getnameinfo=self.names.getnameinfo
        )

    def answer(self) -> Resolution:
        (answer,) = self.answers(1)
        return answer

    def answers(self, count: int) -> list[Resolution]:
        answers = []
        for _ in range(count):
            assert self.wakes.acquire(timeout=TIMEOUT_S)
            answers += self.resolver.poll()
        return answers

    def resolve(self, name: str, port: int = 1, canonical: bool = False) -> Resolution:
        self.resolver.resolve(name, port, canonical=canonical)
        return self.answer()


@pytest.fixture
def harness() -> Iterator[Harness]:
    before = set(threading.enumerate())
    harness = Harness()
    yield harness
    harness.resolver.close()
    harness.names.hold.set()
    harness.names.hold_hanging.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def test_all_addresses_of_a_name_are_in_the_resolvers_order(harness: Harness) -> None:
    harness.names.infos["broker"] = [
        info("::1", 9092, socket.AF_INET6),
        info("10.0.0.2", 9092),
        info("10.0.0.1", 9092),
        info("10.0.0.2", 9092),
        (socket.AF_UNIX, socket.SOCK_STREAM, 0, "", "/path"),
    ]
    harness.names.reverse["10.0.0.1"] = "not.asked.for"
    request = harness.resolver.resolve("broker", 9092)
    answer = harness.answer()
    assert answer.request is request
    assert (request.host, request.port, request.canonical) == ("broker", 9092, False)
    assert answer.error is None
    assert answer.addresses == [
        Address("broker", socket.AF_INET6, ("::1", 9092, 0, 0)),
        Address("broker", socket.AF_INET, ("10.0.0.2", 9092)),
        Address("broker", socket.AF_INET, ("10.0.0.1", 9092)),
    ]


def test_address_families_alternate_and_the_preferred_one_is_first(harness: Harness) -> None:
    six = [info(f"::{i}", 1, socket.AF_INET6) for i in (1, 2, 3)]
    four = [info("10.0.0.1", 1), info("10.0.0.2", 1)]
    for name, infos, expected in (
        ("six", six + four, ["::1", "10.0.0.1", "::2", "10.0.0.2", "::3"]),
        ("four", four + six, ["10.0.0.1", "::1", "10.0.0.2", "::2", "::3"]),
        ("only", six, ["::1", "::2", "::3"]),
    ):
        harness.names.infos[name] = infos
        assert [address.sockaddr[0] for address in harness.resolve(name).addresses] == expected


def test_a_look_up_that_hangs_does_not_delay_other_names(harness: Harness) -> None:
    new = NewThreads()
    harness.names.infos = {name: [info("10.0.0.1", 1)] for name in ("a", "b", "c", "d")}
    harness.names.hanging = {"a", "b"}
    hanging = [harness.resolver.resolve(name, 1) for name in ("a", "b")]
    third = harness.resolver.resolve("c", 1)
    assert harness.answer().request is third
    # A second request for a name joins the running look-up.
    hanging.append(harness.resolver.resolve("a", 1))
    fourth = harness.resolver.resolve("d", 1)
    assert harness.answer().request is fourth
    assert sorted(harness.names.asked) == ["a", "b", "c", "d"]
    assert len(new) <= 4
    assert all(thread.daemon for thread in harness.names.threads)
    assert threading.current_thread() not in harness.names.threads
    harness.names.hold_hanging.set()
    assert {answer.request for answer in harness.answers(len(hanging))} == set(hanging)
    # One thread stays for later look-ups.
    until(lambda: len(new) == 1, "the end of the other threads")
    assert harness.resolve("b").addresses
    assert harness.names.asked.count("b") == 2
    assert len(new) == 1


def test_names_that_come_one_by_one_need_one_thread(harness: Harness) -> None:
    harness.names.infos = {f"host{i}": [info("10.0.0.1", 1)] for i in range(20)}
    new = NewThreads()
    for i in range(20):
        harness.resolve(f"host{i}")
        until(lambda: harness.resolver._idle == 1, "a thread that is free")
    assert len(set(harness.names.threads)) == 1
    assert len(new) == 1


def test_threads_are_bounded_and_waiting_look_ups_get_one(harness: Harness) -> None:
    names = [f"host{i}" for i in range(MOST_THREADS + 3)]
    harness.names.infos = {name: [info("10.0.0.1", 1)] for name in names}
    harness.names.hanging = set(names)
    new = NewThreads()
    requests = [harness.resolver.resolve(name, 1) for name in names]
    until(lambda: len(harness.names.asked) == MOST_THREADS, "a look-up on every thread")
    assert len(new) == MOST_THREADS
    harness.names.hold_hanging.set()
    assert {answer.request for answer in harness.answers(len(requests))} == set(requests)


def test_without_threads_a_request_fails_and_the_next_one_may_succeed(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    harness.names.infos["a"] = [info("10.0.0.1", 1)]
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert "cannot resolve 'a': can't start new thread" in str(harness.resolve("a").error)
    assert harness.resolve("a").addresses


@pytest.mark.parametrize(
    ("host", "family", "sockaddr"),
    [
        ("127.0.0.1", socket.AF_INET, ("127.0.0.1", 9092)),
        ("::1", socket.AF_INET6, ("::1", 9092, 0, 0)),
    ],
)
def test_literal_addresses_are_answered_at_once_without_a_thread(
    harness: Harness, host: str, family: int, sockaddr: tuple[Any, ...]
) -> None:
    new = NewThreads()
    request = harness.resolver.resolve(host, 9092)
    assert harness.wakes.acquire(blocking=False)
    assert harness.resolver.poll() == [Resolution(request, [Address(host, family, sockaddr)], None)]
    assert not new
    assert harness.names.threads == []


def test_results_are_polled_once(harness: Harness) -> None:
    harness.resolver.resolve("127.0.0.1", 1)
    harness.resolver.resolve("127.0.0.2", 1)
    assert len(harness.resolver.poll()) == 2
    assert harness.resolver.poll() == []


def test_canonical_names_come_from_the_reverse_look_up(harness: Harness) -> None:
    harness.names.infos["alias"] = [info("10.0.0.1", 9092), info("10.0.0.2", 9092)]
    harness.names.reverse["10.0.0.1"] = "broker1.example.org"
    assert harness.resolve("alias", 9092, canonical=True).addresses == [
        Address("broker1.example.org", socket.AF_INET, ("10.0.0.1", 9092)),
        Address("alias", socket.AF_INET, ("10.0.0.2", 9092)),
    ]


def test_the_canonical_name_of_a_literal_is_looked_up_too(harness: Harness) -> None:
    harness.names.infos["10.0.0.1"] = [info("10.0.0.1", 9092)]
    harness.names.reverse["10.0.0.1"] = "broker1.example.org"
    (address,) = harness.resolve("10.0.0.1", 9092, canonical=True).addresses
    assert address.name == "broker1.example.org"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "name or service not known"),
        (UnicodeError("label empty or too long"), "label empty or too long"),
        ([], "it has no IPv4 or IPv6 address"),
        (ZeroDivisionError(), "ZeroDivisionError"),
    ],
)
def test_failures_name_the_host_and_the_cause(
    harness: Harness, result: list[tuple[Any, ...]] | Exception, message: str
) -> None:
    harness.names.infos["nowhere"] = result
    answer = harness.resolve("nowhere", 9092)
    assert answer.addresses == []
    assert isinstance(answer.error, NameResolutionError)
    assert f"cannot resolve 'nowhere': {message}" in str(answer.error)
    assert isinstance(answer.error.__cause__, Exception)
    # The thread continues.
    harness.names.infos["broker"] = [info("10.0.0.1", 1)]
    assert harness.resolve("broker").error is None


@pytest.mark.parametrize("host", ["bücher.example", "\ud800", "127.0.0.1\0.example", ""])
def test_odd_names_are_not_literals(harness: Harness, host: str) -> None:
    harness.names.infos[host] = [info("10.0.0.1", 1)]
    assert [address.name for address in harness.resolve(host).addresses] == [host]


def test_the_systems_resolver_is_the_default() -> None:
    woken = threading.Event()
    resolver = Resolver(woken.set)
    try:
        resolver.resolve("localhost", 9092)
        assert woken.wait(TIMEOUT_S)
        (answer,) = resolver.poll()
        assert answer.error is None
        assert {address.sockaddr[0] for address in answer.addresses} <= {"127.0.0.1", "::1"}
        assert {address.sockaddr[1] for address in answer.addresses} == {9092}
    finally:
        resolver.close()


def test_the_loop_is_not_woken_up_after_close(harness: Harness) -> None:
    harness.names.infos["broker"] = [info("10.0.0.1", 1)]
    harness.names.hold.clear()
    harness.resolver.resolve("broker", 1)
    assert harness.names.entered.wait(TIMEOUT_S)
    harness.resolver.resolve("broker", 1)
    # close() returns although the look-up hangs.
    harness.resolver.close()
    harness.resolver.close()
    harness.names.hold.set()
    (thread,) = set(harness.names.threads)
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    assert not harness.wakes.acquire(blocking=False)
    assert harness.resolver.poll() == []
    assert len(harness.names.threads) == 1
    with pytest.raises(RuntimeError, match="cannot resolve 'broker': the resolver is closed"):
        harness.resolver.resolve("broker", 1)


def test_close_drops_results(harness: Harness) -> None:
    harness.resolver.resolve("127.0.0.1", 1)
    harness.resolver.close()
    assert harness.resolver.poll() == []
