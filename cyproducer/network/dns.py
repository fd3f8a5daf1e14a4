"""Name resolution that never blocks the sender.

Owns the thread that calls ``getaddrinfo`` and the order of the addresses found; does not own which name
to resolve when, nor which address to try (``control/connections.py``). ``resolve()``, ``poll()`` and
``close()`` belong to the sender's turn; one daemon thread, started for the first name that needs it,
does the look-ups one after the other. A forked child has no such thread and needs its own resolver.

Both modes of ``client_dns_lookup`` are here: all addresses of a name under that name (KIP-602), and each
under its canonical name, for bootstrap servers behind one alias (KIP-235).
"""

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from cyproducer.control.connections import Address, cause_text
from cyproducer.errors import NameResolutionError


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
        # Imported here: it takes longer than this module.
        from queue import SimpleQueue

        self._wake = wake
        self._getaddrinfo = getaddrinfo
        self._getnameinfo = getnameinfo
        self._questions: SimpleQueue[ResolveRequest | None] = SimpleQueue()
        # Guards the answers and the closed flag, so that nothing wakes a loop that is gone.
        self._lock = threading.Lock()
        self._answers: deque[Resolution] = deque()
        self._closed = False
        self._thread: threading.Thread | None = None

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
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="cyproducer-dns", daemon=True)
            self._thread.start()
        self._questions.put(request)
        return request

    def poll(self) -> list[Resolution]:
        """The answers that came since the last call; never blocks."""
        with self._lock:
            answers = list(self._answers)
            self._answers.clear()
        return answers

    def close(self) -> None:
        """Drops all questions and answers; ``wake`` is not called once this returned.

        Never blocks: a look-up under way cannot be interrupted, so its thread ends when that does.
        Closing twice is no error.
        """
        with self._lock:
            self._closed = True
            self._answers.clear()
        self._questions.put(None)

    def _answer(self, answer: Resolution) -> None:
        with self._lock:
            if not self._closed:
                self._answers.append(answer)
                self._wake()

    def _run(self) -> None:
        while True:
            request = self._questions.get()
            if request is None or self._closed:
                return
            try:
                answer = Resolution(request, self._look_up(request), None)
            except Exception as cause:
                # Anything: the thread must live on, and whoever asked must hear of it.
                error = NameResolutionError(f"cannot resolve {request.host!r}: {cause_text(cause)}")
                error.__cause__ = cause
                answer = Resolution(request, [], error)
            self._answer(answer)

    def _look_up(self, request: ResolveRequest) -> list[Address]:
        infos = self._getaddrinfo(request.host, request.port, type=socket.SOCK_STREAM)
        addresses = _addresses(request.host, infos)
        if not addresses:
            raise OSError("it has no IPv4 or IPv6 address")
        if request.canonical:
            return [address._replace(name=self._canonical_name(address)) for address in addresses]
        return addresses

    def _canonical_name(self, address: Address) -> str:
        try:
            return self._getnameinfo(address.sockaddr, socket.NI_NAMEREQD)[0]
        except OSError:
            # No reverse entry: the name that was given is the best there is.
            return address.name


def _addresses(name: str, infos: Iterable[tuple[Any, ...]]) -> list[Address]:
    """Keeps the order, which is getaddrinfo's preference (RFC 6724), and drops duplicates."""
    return list(
        dict.fromkeys(
            Address(name, int(family), sockaddr)
            for family, _, _, _, sockaddr in infos
            if family in (socket.AF_INET, socket.AF_INET6)
        )
    )


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
