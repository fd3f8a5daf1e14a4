"""A TCP proxy between a producer and Kafka's brokers that loses, cuts and delays data.

Owns its listening sockets, one per node, and two threads per connection. Reads both directions message by
message, so that it can act on whole Produce requests: a message is a frame, or a TLS record. Changes no byte.
A `Mischief` chooses the fault of each connection; faults are logged. Does not support acks=0, because such
requests have no response.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from tests.integration.fault_log import FaultLog
from tests.integration.mischief import GENTLE, Fault, Mischief, Plan

PRODUCE = 0
TICK_S = 0.2
"""Maximum time after which a reading thread notices that its connection was cut."""
PATIENCE_S = 10
"""Maximum time for a broker to respond to requests that reached it after the client had disconnected."""
APPLICATION_DATA = 23
"""The type of the TLS records that carry data, and, in TLS 1.3, the encrypted part of the handshake."""
OPENING_RECORDS = 12
"""At most this many of them open a connection, in each direction: the handshake, and SASL."""


class Proxy:
    """Listens on one port per node and forwards connections. A context manager.

    Injects faults only within `misbehaving`. Its methods are for one thread.

    ``encrypted``: the connections are TLS, which the proxy cannot read. What `Plan` says of a Produce request
    and its response then applies to a TLS record of that number, counted behind those that open the
    connection.
    """

    def __init__(self, nodes: Iterable[int], encrypted: bool = False) -> None:
        self._encrypted = encrypted
        self._listeners = {node: socket.create_server(("127.0.0.1", 0)) for node in nodes}
        self.ports: dict[int, int] = {
            node: listener.getsockname()[1] for node, listener in self._listeners.items()
        }
        """The port for each node. The brokers must advertise these ports."""
        self._targets: dict[int, int] = {}
        self._lock = threading.Lock()  # guards the three below, which accepting reads and writes
        self._mischief: Mischief | None = None
        self._log = FaultLog("none")
        self._links: list[_Link] = []
        self._end, self._ended = socket.socketpair()
        self._accepting = threading.Thread(target=self._accept, name="proxy")

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def forward_to(self, targets: Mapping[int, int]) -> None:
        """Starts forwarding. ``targets``: each node's port on 127.0.0.1."""
        self._targets = dict(targets)
        self._accepting.start()

    @contextlib.contextmanager
    def misbehaving(self, mischief: Mischief, log: FaultLog) -> Iterator[None]:
        """Cuts all connections and injects faults into new ones. At the end, cancels faults still to come."""
        with self._lock:
            self._mischief, self._log = mischief, log
        self.cut_all()
        try:
            yield
        finally:
            with self._lock:
                self._mischief = None
                links = list(self._links)
            for link in links:
                link.spare()
            log.add("the proxy injects no more faults")

    def cut_all(self) -> None:
        """Cuts every connection."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.cut()

    def close(self) -> None:
        """Cuts every connection and ends every thread."""
        self._end.close()
        if self._accepting.ident is not None:
            self._accepting.join()
        self.cut_all()
        for link in self._links:
            link.join()
        for listener in (*self._listeners.values(), self._ended):
            listener.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._ended, selectors.EVENT_READ)
            for node, listener in self._listeners.items():
                selector.register(listener, selectors.EVENT_READ, node)
            while True:
                for key, _ in selector.select():
                    if key.data is None:
                        return
                    client, _ = self._listeners[key.data].accept()
                    self._connect(key.data, client)

    def _connect(self, node: int, client: socket.socket) -> None:
        try:
            broker = socket.create_connection(("127.0.0.1", self._targets[node]), timeout=2)
        except OSError:
            # The node is down: close the client's connection at once.
            client.close()
            return
        with self._lock:
            number, plan = (0, GENTLE) if self._mischief is None else self._mischief.next_plan(node)
            traffic: _Frames | _TlsRecords = _TlsRecords() if self._encrypted else _Frames()
            link = _Link(f"connection {number} to node {node}", client, broker, plan, self._log, traffic)
            self._links.append(link)
        link.start()


class _Frames:
    """The frames of a connection without TLS."""

    HEAD = 4
    PATIENCE_S = PATIENCE_S

    def __init__(self) -> None:
        # Requests forwarded, or about to be, without a response: correlation id, and the number of a Produce
        # request, else 0.
        self._unanswered: deque[tuple[int, int]] = deque()
        self._produced = 0

    @staticmethod
    def size(head: bytes) -> int:
        return int.from_bytes(head)

    def request(self, frame: bytes) -> tuple[int, str]:
        """Returns the number of a Produce request, else 0, and what it is."""
        api_key, _, correlation_id = struct.unpack_from(">hhi", frame, 4)
        self._produced += api_key == PRODUCE
        number = self._produced if api_key == PRODUCE else 0
        self._unanswered.append((correlation_id, number))
        return number, f"Produce {number}" if number else f"a request with API key {api_key}"

    def answer(self, frame: bytes) -> tuple[int, str]:
        """Returns the number of the Produce request that this responds to, else 0, and what it is."""
        (correlation_id,) = struct.unpack_from(">i", frame, 4)
        expected, number = self._unanswered.popleft()
        assert correlation_id == expected, f"response {correlation_id}, expected {expected}"
        return number, f"the response to {f'Produce {number}' if number else 'another request'}"

    def answered(self) -> bool:
        return not self._unanswered


class _TlsRecords:
    """The TLS records of a connection (RFC 8446, section 5.1)."""

    HEAD = 5
    PATIENCE_S = 1
    """Enough for a broker to process what it has received."""

    def __init__(self) -> None:
        self._requests = self._answers = 0

    @staticmethod
    def size(head: bytes) -> int:
        return int.from_bytes(head[3:])

    def request(self, record: bytes) -> tuple[int, str]:
        self._requests += record[0] == APPLICATION_DATA
        number = max(0, self._requests - OPENING_RECORDS)
        return number, f"record {self._requests}"

    def answer(self, record: bytes) -> tuple[int, str]:
        self._answers += record[0] == APPLICATION_DATA
        number = max(0, self._answers - OPENING_RECORDS)
        return number, f"record {self._answers} of the broker"

    def answered(self) -> bool:
        # Nobody but the client can say.
        return False


class _Link:
    """One connection: the client's socket, the broker's socket, and the fault of the connection."""

    def __init__(
        self,
        name: str,
        client: socket.socket,
        broker: socket.socket,
        plan: Plan,
        log: FaultLog,
        traffic: _Frames | _TlsRecords,
    ) -> None:
        self._name = name
        self._client = client
        self._broker = broker
        self._plan = plan
        self._log = log
        self._over = threading.Event()
        self._cutting = threading.Lock()
        self._client_gone = False
        self._traffic = traffic
        self._answered = threading.Condition()
        self._threads = [
            threading.Thread(target=self._pump, args=(direction,), name=f"proxy {name}")
            for direction in (self._pass_requests, self._pass_answers)
        ]
        for end in (client, broker):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.settimeout(TICK_S)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def spare(self) -> None:
        """Cancels a fault that is still to come."""
        self._plan = GENTLE

    def cut(self, reason: str = "", abrupt: bool = False) -> None:
        """Closes both sockets. Idempotent."""
        with self._cutting:
            if self._over.is_set():
                return
            self._over.set()
        if reason:
            self._note(f"{'reset' if abrupt else 'cut'}: {reason}")
        _end(self._client, abrupt)
        _end(self._broker, abrupt)
        with self._answered:
            self._answered.notify_all()

    def _note(self, what: str) -> None:
        self._log.add(f"{self._name}: {what}")

    def _pump(self, direction: Callable[[], None]) -> None:
        try:
            direction()
        finally:
            self.cut()

    def _pass_requests(self) -> None:
        passed = 0
        while (message := self._message(self._client)) is not None:
            number, kind = self._traffic.request(message)
            fault, at, hold_s, abrupt, _ = self._plan
            if fault is Fault.CUT_REQUESTS and passed + len(message) > at:
                self._write(self._broker, message[: at - passed])
                self.cut(f"{at - passed} of the {len(message)} bytes of {kind} reached the broker", abrupt)
                return
            if fault is Fault.SLOW:
                self._over.wait(hold_s)
            elif number != 0 and number == at and fault is Fault.LATE_REQUEST:
                self._note(f"client cut; {kind} reaches the broker in {hold_s:.3f} s")
                self._client_gone = True
                _end(self._client, abrupt)
                self._over.wait(hold_s)
            elif number != 0 and number == at and fault is Fault.STALL_REQUESTS:
                self._note(f"{kind}, and what follows, reaches the broker {hold_s:.3f} s late")
                self._over.wait(hold_s)
            if not self._write(self._broker, message):
                return
            passed += len(message)
        if self._plan.fault in (Fault.LATE_REQUEST, Fault.STALL_REQUESTS):
            self._await_answers()

    def _await_answers(self) -> None:
        """Waits for outstanding responses after the client has disconnected: a broker may drop the requests
        of a closed connection, and these requests must be processed."""
        with self._answered:
            answered = self._answered.wait_for(
                lambda: self._over.is_set() or self._traffic.answered(), timeout=self._traffic.PATIENCE_S
            )
        if not answered:
            self._note("ends without a response to requests sent before the client disconnected")

    def _pass_answers(self) -> None:
        passed = 0
        while (message := self._message(self._broker)) is not None:
            with self._answered:
                number, kind = self._traffic.answer(message)
                self._answered.notify_all()
            fault, at, hold_s, abrupt, last = self._plan
            if number != 0 and (number == last or (fault is Fault.LOSE_ANSWER and number == at)):
                self.cut(f"{kind} was lost", abrupt)
                return
            if fault is Fault.CUT_ANSWERS and passed + len(message) > at:
                self._write(self._client, message[: at - passed])
                self.cut(f"{at - passed} of {len(message)} bytes of {kind} passed", abrupt)
                return
            if fault is Fault.SLOW:
                self._over.wait(hold_s)
            elif fault is Fault.STALL_ANSWERS and number != 0 and number == at:
                self._note(f"{kind}, and what follows, is {hold_s:.3f} s late")
                self._over.wait(hold_s)
            if self._client_gone:
                self._note(f"{kind} came after the client had disconnected")
            elif not self._write(self._client, message):
                self._client_gone = True
            passed += len(message)

    def _message(self, end: socket.socket) -> bytes | None:
        """Returns the next message, its head included; ``None`` at the connection's end."""
        head = self._read(end, self._traffic.HEAD)
        if head is None:
            return None
        rest = self._read(end, self._traffic.size(head))
        return None if rest is None else head + rest

    def _read(self, end: socket.socket, size: int) -> bytes | None:
        got = bytearray()
        while len(got) < size:
            try:
                part = end.recv(min(size - len(got), 1 << 16))
            except TimeoutError:
                if self._over.is_set():
                    return None
                continue
            except OSError:
                return None
            if not part:
                return None
            got += part
        return bytes(got)

    def _write(self, end: socket.socket, data: bytes) -> bool:
        """Sends the data. Returns whether all of it could be sent."""
        left = memoryview(data)
        while left:
            try:
                left = left[end.send(left) :]
            except TimeoutError:
                if self._over.is_set():
                    return False
            except OSError:
                return False
        return True


def _end(end: socket.socket, abrupt: bool) -> None:
    with contextlib.suppress(OSError):
        if abrupt:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            # Wakes the thread that reads from this socket. Sends nothing: close() sends the reset.
            end.shutdown(socket.SHUT_RD)
        else:
            end.shutdown(socket.SHUT_RDWR)
    end.close()
