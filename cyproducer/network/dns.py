"""Name resolution that never blocks the sender.

Owns the threads that call ``getaddrinfo`` and the order of the addresses found; does not own which name
to resolve when, nor which address to try (``control/connections.py``). ``resolve()``, ``poll()`` and
``close()`` belong to the sender's turn; daemon threads do the look-ups. A name server that does not answer
can hold a look-up up for as long as the system's resolver likes, so none waits behind another: a question
that finds no thread free gets one more, up to ``MOST_THREADS``, and two questions for one name share a
look-up. When there is nothing to do, one thread stays. A forked child has no such threads and needs its own
resolver.

Both modes of ``client_dns_lookup`` are here: all addresses of a name under that name (KIP-602), and each
under its canonical name, for bootstrap servers behind one alias (KIP-235).
"""

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import Any, NamedTuple

from cyproducer.control.connections import Address, cause_text
from cyproducer.errors import NameResolutionError

_LookUp = tuple[str, int, bool]
"""Host, port, and whether canonical names are wanted."""


#: Names that are looked up at the same time; the others wait.
MOST_THREADS = 8


class ResolveRequest:
    """One question, and the handle to know its answer by: the very object comes back in it."""

    __slots__ = ("canonical", "host", "port")

    def __init__(self, host: str, port: int, canonical: bool) -> None:
        self.host = host
        self.port = port
        self.canonical = canonical


class Resolution(NamedTuple):
    """The answer: addresses in the order in which to try them, or the error why there are none."""

    request: ResolveRequest
    addresses: list[Address]
    error: NameResolutionError | None


class Resolver:
    """Resolves host names in the background."""

    def __init__(
        self,
        wake: Callable[[], None],
        *,
        getaddrinfo: Callable[..., Iterable[tuple[Any, ...]]] = socket.getaddrinfo,
        getnameinfo: Callable[[Any, int], tuple[str, str]] = socket.getnameinfo,
    ) -> None:
        """
        Args:
            wake: called once for each answer that is ready to be polled, from any thread; must return
                quickly and call nothing of this object.
            getaddrinfo: for tests.
            getnameinfo: for tests.
        """
        self._wake = wake
        self._getaddrinfo = getaddrinfo
        self._getnameinfo = getnameinfo
        # Guards all below, and notified of questions. Held while waking, so that nothing wakes a loop that
        # is gone.
        self._changed = threading.Condition(threading.Lock())
        self._answers: deque[Resolution] = deque()
        self._closed = False
        #: The look-ups that wait for a thread, and everything that is asked or under way, with who asked.
        self._waiting: deque[_LookUp] = deque()
        self._asked: dict[_LookUp, list[ResolveRequest]] = {}
        self._threads = 0
        self._idle = 0

    def resolve(self, host: str, port: int, canonical: bool = False) -> ResolveRequest:
        """Asks for the addresses of a host; the answer comes through ``poll()`` after ``wake()``.

        A literal IP address is answered before this returns, without the thread, except where its
        canonical name is wanted.

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
            self._changed.notify()
            # Threads that were notified before may not have come for their question yet.
            wanted = len(self._waiting) > self._idle and self._threads < MOST_THREADS
            self._threads += wanted
        if wanted:
            self._start_thread()
        return request

    def _start_thread(self) -> None:
        try:
            threading.Thread(target=self._run, name="cyproducer-dns", daemon=True).start()
        except RuntimeError as cause:
            with self._changed:
                self._threads -= 1
                alone = self._threads == 0
                lost = list(self._waiting) if alone else []
                if alone:
                    self._waiting.clear()
            # Where there are others, they will come to it.
            for look_up in lost:
                self._finish(look_up, [], cause)

    def poll(self) -> list[Resolution]:
        """The answers that came since the last call; never blocks."""
        with self._changed:
            answers = list(self._answers)
            self._answers.clear()
        return answers

    def close(self) -> None:
        """Drops all questions and answers; ``wake`` is not called once this returned.

        Never blocks: a look-up under way cannot be interrupted, so its thread ends when that does.
        Closing twice is no error.
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
                # Anything: the thread must live on, and whoever asked must hear of it.
                self._finish(look_up, [], cause)
            else:
                self._finish(look_up, addresses, None)

    def _next(self) -> _LookUp | None:
        """The next look-up for this thread; None: it is to end."""
        with self._changed:
            self._idle += 1
            try:
                # One waits for what comes; the others were for a time when look-ups took long.
                while not self._waiting and not self._closed and self._idle == 1:
                    self._changed.wait()
                if self._waiting and not self._closed:
                    return self._waiting.popleft()
                self._threads -= 1
                return None
            finally:
                self._idle -= 1

    def _finish(self, look_up: _LookUp, addresses: list[Address], cause: Exception | None) -> None:
        """Answers everybody who asked for this look-up."""
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
            # No reverse entry: the name that was given is the best there is.
            return address.name


def _addresses(name: str, infos: Iterable[tuple[Any, ...]]) -> list[Address]:
    """Drops duplicates, and has IPv6 and IPv4 take turns, each in getaddrinfo's order (RFC 6724).

    The family that comes first there, IPv6 where it works, begins (RFC 8305, section 4): where one family
    leads nowhere, the second attempt is of the other.
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
    """The address a literal stands for; None where ``host`` is a name."""
    if not host.isascii() or "\0" in host:
        return None
    try:
        # As bytes: for a str, Python loads its whole IDNA codec first.
        infos = socket.getaddrinfo(
            host.encode(), port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        )
    except OSError:
        return None
    return _addresses(host, infos)
