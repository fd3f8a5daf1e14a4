"""Resolves host names without blocking the sender.

Owns the threads that call ``getaddrinfo`` and the order of the addresses. Does not decide when to resolve
which name, or which address to try (``control/node_states.py``). ``resolve()``, ``poll()`` and ``close()``
are called with the loop lock held; daemon threads perform the look-ups. If a name server does not respond, a
look-up can take as long as the system's resolver allows, so look-ups do not wait for each other: if no thread
is idle, a request starts another one, up to ``MOST_THREADS``. Two requests for the same name share a look-up.
When there is no work, one thread remains. A forked child has none of these threads and needs its own
resolver.

Implements both modes of ``client_dns_lookup``: all addresses of a name under that name (KIP-602), and each
address under its canonical name, for bootstrap servers behind one alias (KIP-235).
"""

import socket
from collections import deque
from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import Any, NamedTuple

from cyproducer.base import unpatched
from cyproducer.base.threads import Condition, new_thread
from cyproducer.control.node_states import Address, cause_text
from cyproducer.errors import NameResolutionError

_LookUp = tuple[str, int, bool]
"""Host, port, and whether to find canonical names."""


#: How many names are looked up at the same time; other look-ups wait.
MOST_THREADS = 8


class ResolveRequest:
    """One request, which is also its handle: the ``Resolution`` contains the same object."""

    __slots__ = ("canonical", "host", "port")

    def __init__(self, host: str, port: int, canonical: bool) -> None:
        self.host = host
        self.port = port
        self.canonical = canonical


class Resolution(NamedTuple):
    """The result: the addresses in the order in which to try them, or an error if there are none."""

    request: ResolveRequest
    addresses: list[Address]
    error: NameResolutionError | None


class Resolver:
    """Resolves host names in the background."""

    def __init__(
        self,
        wake: Callable[[], None],
        *,
        getaddrinfo: Callable[..., Iterable[tuple[Any, ...]]] = unpatched.getaddrinfo,
        getnameinfo: Callable[[Any, int], tuple[str, str]] = unpatched.getnameinfo,
    ) -> None:
        """
        Args:
            wake: called once for each result that is ready to be polled, from any thread; must return
                quickly and must not call this object.
            getaddrinfo: for tests.
            getnameinfo: for tests.
        """
        self._wake = wake
        self._getaddrinfo = getaddrinfo
        self._getnameinfo = getnameinfo
        # Guards all attributes below; notified of new look-ups. Held while calling wake(), so that no thread
        # wakes a loop that no longer exists.
        self._changed = Condition()
        self._answers: deque[Resolution] = deque()
        self._closed = False
        #: The look-ups waiting for a thread.
        self._waiting: deque[_LookUp] = deque()
        #: All waiting or running look-ups, with their requests.
        self._asked: dict[_LookUp, list[ResolveRequest]] = {}
        self._threads = 0
        self._idle = 0

    def resolve(self, host: str, port: int, canonical: bool = False) -> ResolveRequest:
        """Requests the addresses of a host; ``poll()`` returns the result after ``wake()`` was called.

        For a literal IP address, the result is ready before this method returns, without a thread, unless
        ``canonical`` is set.

        Raises:
            RuntimeError: the resolver is closed.
        """
        if self._closed:
            raise RuntimeError(f"cannot resolve {host!r}: the resolver is closed")
        request = ResolveRequest(host, port, canonical)
        literal = None if canonical else _literal(host, port)
        if literal is not None:
            self._answer(Resolution(request, literal, None))
            return request
        look_up = host, port, canonical
        with self._changed:
            sharing = self._asked.setdefault(look_up, [])
            sharing.append(request)
            if len(sharing) > 1:
                return request
            self._waiting.append(look_up)
            self._changed.notify_all()
            # Threads that were notified earlier may not have taken their look-up yet.
            wanted = len(self._waiting) > self._idle and self._threads < MOST_THREADS
            self._threads += wanted
        if wanted:
            self._start_thread()
        return request

    def _start_thread(self) -> None:
        try:
            new_thread(self._run, "cyproducer-dns").start()
        except RuntimeError as cause:
            with self._changed:
                self._threads -= 1
                alone = self._threads == 0
                lost = list(self._waiting) if alone else []
                if alone:
                    self._waiting.clear()
            # If there are other threads, one of them will take the look-up.
            for look_up in lost:
                self._finish(look_up, [], cause)

    def poll(self) -> list[Resolution]:
        """Returns the results since the last call; never blocks."""
        with self._changed:
            answers = list(self._answers)
            self._answers.clear()
        return answers

    def close(self) -> None:
        """Drops all requests and results. Once this method returns, ``wake`` is not called again.

        Never blocks: a running look-up can't be interrupted, so its thread ends when the look-up does.
        Idempotent.
        """
        with self._changed:
            self._closed = True
            self._answers.clear()
            self._waiting.clear()
            self._asked.clear()
            self._changed.notify_all()

    def _answer(self, answer: Resolution) -> None:
        with self._changed:
            if not self._closed:
                self._answers.append(answer)
                self._wake()

    def _run(self) -> None:
        while (look_up := self._next()) is not None:
            try:
                addresses = self._look_up(*look_up)
            except Exception as cause:
                # Catches every exception: the thread must continue, and the requests must get a result.
                self._finish(look_up, [], cause)
            else:
                self._finish(look_up, addresses, None)

    def _next(self) -> _LookUp | None:
        """Waits for this thread's next look-up; returns None if the thread must end."""
        with self._changed:
            self._idle += 1
            try:
                # One idle thread remains and waits; additional threads end.
                while not self._waiting and not self._closed and self._idle == 1:
                    self._changed.wait()
                if self._waiting and not self._closed:
                    return self._waiting.popleft()
                self._threads -= 1
                return None
            finally:
                self._idle -= 1

    def _finish(self, look_up: _LookUp, addresses: list[Address], cause: Exception | None) -> None:
        """Passes the result of a look-up to all of its requests."""
        error = None
        if cause is not None:
            error = NameResolutionError(f"cannot resolve {look_up[0]!r}: {cause_text(cause)}")
            error.__cause__ = cause
        with self._changed:
            requests = self._asked.pop(look_up, [])
        for request in requests:
            self._answer(Resolution(request, addresses, error))

    def _look_up(self, host: str, port: int, canonical: bool) -> list[Address]:
        infos = self._getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = _addresses(host, infos)
        if not addresses:
            raise OSError("it has no IPv4 or IPv6 address")
        if canonical:
            return [address._replace(name=self._canonical_name(address)) for address in addresses]
        return addresses

    def _canonical_name(self, address: Address) -> str:
        try:
            return self._getnameinfo(address.sockaddr, socket.NI_NAMEREQD)[0]
        except OSError:
            # No reverse DNS entry: the given name remains.
            return address.name


def _addresses(name: str, infos: Iterable[tuple[Any, ...]]) -> list[Address]:
    """Drops duplicates and alternates IPv6 and IPv4, each in getaddrinfo's order (RFC 6724).

    The first address has the family that getaddrinfo returns first: IPv6, if it works (RFC 8305, section 4).
    If one family can't connect, the second attempt uses the other family.
    """
    found = dict.fromkeys(
        Address(name, int(family), sockaddr)
        for family, _, _, _, sockaddr in infos
        if family in (socket.AF_INET, socket.AF_INET6)
    )
    families: dict[int, list[Address]] = {}
    for address in found:
        families.setdefault(address.family, []).append(address)
    turns = zip_longest(*families.values())
    return [address for turn in turns for address in turn if address is not None]


def _literal(host: str, port: int) -> list[Address] | None:
    """Returns the address of an IP literal; None if ``host`` is a name."""
    if not host.isascii() or "\0" in host:
        return None
    try:
        # As bytes: for a str, Python would import its IDNA codec first.
        infos = unpatched.getaddrinfo(
            host.encode(), port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        )
    except OSError:
        return None
    return _addresses(host, infos)
