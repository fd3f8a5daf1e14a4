"""The loop of an embedded cluster: its sockets, its timer, and the calls that other threads hand over.

Owns listening, reading, buffered writing and closing. Does not own the contents of a stream (``server``) or
TLS (``tls``). Everything runs on the thread of ``Loop.run``, except where noted.

asyncio has all of this, but the first import of asyncio takes longer than the whole start of a cluster.
"""

import logging
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from cyproducer.base.clock import monotonic_s
from cyproducer.base.unpatched import sleep

log = logging.getLogger("cyproducer.testing")

BACKLOG: Final = 100
RECEIVE_BYTES: Final = 1 << 18
_NO_DESCRIPTOR_S: Final = 0.05


class Transport:
    """The broker's end of a byte stream, as a ``Protocol`` sees it."""

    #: The address of the client.
    peer = ""
    #: ``close`` or ``abort`` was called, or the client has closed the connection.
    is_closing = False

    def write(self, data: bytes) -> None:
        """Sends bytes now, or as soon as the client reads."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes the connection once everything is sent."""
        raise NotImplementedError

    def abort(self) -> None:
        """Closes the connection without sending buffered data."""
        raise NotImplementedError

    def peer_certificate(self) -> Mapping[str, Any] | None:
        """Returns the client's certificate as ``ssl.SSLSocket.getpeercert`` does; None if there is none."""
        return None


class Protocol:
    """What handles a connection. ``connection_lost`` is the last call, once after ``connection_made``."""

    def connection_made(self, transport: Transport) -> None:
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        raise NotImplementedError

    def connection_lost(self) -> None:
        raise NotImplementedError


class _SocketTransport(Transport):
    """A connected socket."""

    def __init__(self, loop: "Loop", connected: socket.socket, peer: str, protocol: Protocol) -> None:
        self.peer = peer
        self._loop = loop
        self._socket = connected
        self._protocol = protocol
        self._outbox = bytearray()
        #: What the selector waits for; 0: the socket is not registered.
        self._events = 0

    def begin(self) -> None:
        self._protocol.connection_made(self)
        self._watch()

    def _watch(self) -> None:
        """Tells the selector what to wait for: once the connection closes, only to send the rest."""
        wanted = 0 if self.is_closing else selectors.EVENT_READ
        if self._outbox:
            wanted |= selectors.EVENT_WRITE
        before, self._events = self._events, wanted
        if wanted and not before:
            self._loop.selector.register(self._socket, wanted, self._ready)
        elif wanted != before and wanted:
            self._loop.selector.modify(self._socket, wanted, self._ready)
        elif before and not wanted:
            self._loop.selector.unregister(self._socket)

    def _ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush()
        if events & selectors.EVENT_READ and not self.is_closing:
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                self.abort()
                return
            if data:
                self._protocol.data_received(data)
            else:
                self.close()

    def write(self, data: bytes) -> None:
        if self.is_closing:
            return
        sent = 0 if self._outbox else self._send(data)
        if 0 <= sent < len(data):
            self._outbox += memoryview(data)[sent:]
            self._watch()

    def _send(self, data: bytes | bytearray) -> int:
        """Returns how much the kernel took; -1: the connection is broken, and was aborted."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            self.abort()
            return -1

    def _flush(self) -> None:
        del self._outbox[: max(0, self._send(self._outbox))]
        if self.is_closing and not self._outbox:
            self._end()
        else:
            self._watch()

    def close(self) -> None:
        if self.is_closing:
            return
        self.is_closing = True
        if self._outbox:
            self._watch()
        else:
            self._end()

    def abort(self) -> None:
        self.is_closing = True
        self._outbox.clear()
        self._end()

    def _end(self) -> None:
        if self._socket.fileno() < 0:
            return
        self._watch()
        self._socket.close()
        # The protocol may be in the middle of something.
        self._loop.call_soon(self._protocol.connection_lost)


class Listener:
    """A listening socket."""

    def __init__(self, loop: "Loop", make: Callable[[], Protocol], host: str, port: int) -> None:
        self._loop = loop
        self._make = make
        self._socket = socket.create_server((host, port), backlog=BACKLOG)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        loop.selector.register(self._socket, selectors.EVENT_READ, self._ready)

    def _ready(self, _events: int) -> None:
        for _ in range(BACKLOG):
            try:
                connected, address = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("no connection can be accepted: %s", error)
                # The process has no free descriptor, and the selector would return at once again.
                sleep(_NO_DESCRIPTOR_S)
                return
            connected.setblocking(False)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _SocketTransport(self._loop, connected, address[0], self._make()).begin()

    def close(self) -> None:
        """Refuses new connections, and gives the port back."""
        self._loop.selector.unregister(self._socket)
        self._socket.close()


class Loop:
    """See the module's docstring. There is one timer, because a ``World`` has one queue of events."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self._soon: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._alarm: tuple[float, Callable[[], object]] | None = None
        self._is_over = False
        #: Keeps the loop, which may run a call at once and end, from closing the sockets that wake it.
        self._waking = threading.Lock()
        self._waker, self._woken = socket.socketpair()
        for each in (self._waker, self._woken):
            each.setblocking(False)
        self.selector.register(self._woken, selectors.EVENT_READ, self._wake)

    def call_soon(self, act: Callable[..., object], *args: Any) -> None:
        """Calls ``act(*args)`` in the next iteration."""
        self._soon.append((act, args))

    def call_soon_threadsafe(self, act: Callable[..., object], *args: Any) -> None:
        """Does the same from any thread. Raises ``OSError`` if the loop has ended."""
        # The loop may not have read the bytes of earlier calls yet.
        with self._waking, suppress(BlockingIOError):
            self._soon.append((act, args))
            self._waker.send(b"\0")

    def set_alarm(self, delay_s: float, act: Callable[[], object]) -> None:
        """Calls ``act()`` in ``delay_s`` seconds, in place of what the last alarm would have called."""
        self._alarm = monotonic_s() + delay_s, act

    def clear_alarm(self) -> None:
        self._alarm = None

    def listen(self, make: Callable[[], Protocol], host: str, port: int) -> Listener:
        """Listens. Each connection gets a protocol of its own. Raises ``OSError`` if the port is taken."""
        return Listener(self, make, host, port)

    def stop(self) -> None:
        """Ends the loop after this iteration."""
        self._is_over = True

    def run(self) -> None:
        """Runs until ``stop``, and closes all sockets. What a call raises is logged."""
        while not self._is_over:
            self._run_once()
        with self._waking:
            for key in list(self.selector.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()
            self._waker.close()
        self.selector.close()

    def _run_once(self) -> None:
        timeout_s = None if self._alarm is None else max(0.0, self._alarm[0] - monotonic_s())
        for key, events in self.selector.select(0 if self._soon else timeout_s):
            _call(key.data, events)
        if self._alarm is not None and self._alarm[0] <= monotonic_s():
            (_, act), self._alarm = self._alarm, None
            _call(act)
        # Calls that these make wait for the next iteration, so that sockets and the alarm get their turns.
        for _ in range(len(self._soon)):
            act, args = self._soon.popleft()
            _call(act, *args)

    def _wake(self, _events: int) -> None:
        with suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass


def _call(act: Callable[..., object], *args: Any) -> None:
    try:
        act(*args)
    except Exception:
        log.exception("the embedded broker failed in %r", act)
