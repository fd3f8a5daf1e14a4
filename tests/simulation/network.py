"""The network between the client's sockets and the brokers: delays, stalls, cuts, refused connections.

Owns one socket pair per connection, and the bytes in flight. Does not own the meaning of the bytes.

A connection is cut at any byte: a random part of the bytes in flight in each direction still arrives, and
nothing after it. So a request may arrive without its response, and half a frame may arrive. A broker may
handle a request that it has read long after the connection is closed (``model_broker``), as with TCP.
"""

import selectors
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from cyproducer.control.node_states import Address
from cyproducer.net.dns import Resolution, Resolver, ResolveRequest
from tests.simulation.world import NS_PER_MS, World

PORT = 9092


class Listener(Protocol):
    """A broker, from the view of connections."""

    node: int

    @property
    def listens(self) -> bool: ...

    def accept(self, wire: "Wire") -> "Ear": ...


class Ear(Protocol):
    """A broker's end of a connection."""

    def receive(self, data: bytes) -> None: ...

    def gone(self) -> None: ...


class Wire:
    """One connection; both of its directions keep the bytes' order."""

    def __init__(self, network: "Network", listener: Listener, number: int) -> None:
        self.network = network
        self.world = network.world
        self.node = listener.node
        self.number = number
        self.client_end, self.sock = socket.socketpair()
        self.client_end.setblocking(False)
        self.sock.setblocking(False)
        if network.narrow:
            self.client_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        self.is_open = True
        #: All bytes vanish, without an error on either side.
        self.swallows = False
        self.stalled_until_ns = 0
        #: API key of each request that the client has written whole, and when it began to write it.
        self.requests: list[tuple[int, int]] = []
        self.ended_ns = 0
        self._written = bytearray()
        self._begun_ns = 0
        self._up: deque[bytes] = deque()
        self._down: deque[bytes] = deque()
        self._up_free_ns = 0
        self._down_free_ns = 0
        self.ear = listener.accept(self)

    def __repr__(self) -> str:
        return f"wire {self.number} to broker {self.node}"

    # Towards the broker

    def pump(self) -> None:
        """Reads the bytes that the client has written."""
        while self.is_open:
            try:
                data = self.sock.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._shut()
                self.world.say(f"{self} closed by the client")
                self.world.at(self._due(self._up_free_ns), self._hung_up)
                return
            self._note(data)
            if not self.swallows:
                self._up.append(data)
                self._up_free_ns = self.world.at(self._due(self._up_free_ns), self._arrive)

    def _note(self, data: bytes) -> None:
        """Records the requests that the client has written whole, even if they never arrive."""
        written = self._written
        if not written:
            self._begun_ns = self.world.now_ns
        written += data
        while len(written) >= 6 and len(written) >= (size := 4 + int.from_bytes(written[:4], "big")):
            self.requests.append((int.from_bytes(written[4:6], "big"), self._begun_ns))
            for see_request in self.network.on_request:
                see_request(self, bytes(written[:size]), self._begun_ns)
            self._begun_ns = self.world.now_ns
            if written[4:6] == b"\0\0":
                self.network.written.append(bytes(written[:size]))
            del written[:size]

    def _due(self, not_before_ns: int) -> int:
        due = self.world.now_ns + int(self.world.between(self.network.delay_ms) * NS_PER_MS)
        return max(due, not_before_ns, self.stalled_until_ns)

    def _arrive(self) -> None:
        # Empty if the connection was cut.
        if self._up:
            self.ear.receive(self._up.popleft())

    def _hung_up(self) -> None:
        self.ear.gone()

    # Towards the client

    def send(self, data: bytes, then: Callable[[], object] | None = None) -> None:
        """Sends a response of the broker to the client; calls ``then`` when it has arrived whole."""
        if not self.is_open or self.swallows:
            return
        parts = [data]
        if len(data) > 1 and self.world.chance(self.network.splits):
            at = self.world.random.randrange(1, len(data))
            parts = [data[:at], data[at:]]
        for part in parts:
            self._down.append(part)
            self._down_free_ns = self.world.at(self._due(self._down_free_ns), self._deliver)
        if then is not None:
            self.world.at(self._down_free_ns, self._arrived, then)
        for see_response in self.network.on_response:
            self.world.at(self._down_free_ns, self._arrived, partial(see_response, self, data))

    def _arrived(self, then: Callable[[], object]) -> None:
        if self.is_open and not self.swallows:
            then()

    def finish(self) -> None:
        """The broker closes the connection; what it has sent still arrives."""
        self.world.at(self._due(self._down_free_ns), self._finish)

    def _finish(self) -> None:
        if self.is_open and not self.swallows:
            self.pump()
        if self.is_open and not self.swallows:
            self.world.say(f"{self} closed by the broker")
            self._shut()

    def _deliver(self) -> None:
        if self._down and self.is_open:
            self._give(self._down.popleft())

    def _give(self, data: bytes) -> None:
        try:
            sent = self.sock.send(data)
        except OSError:
            # The client has closed the socket; the next pump() detects it.
            return
        assert sent == len(data), "the client does not read"

    # Trouble

    def cut(self) -> None:
        """Ends the connection for both sides."""
        if not self.is_open:
            return
        self.pump()
        if not self.is_open:
            return
        if self.swallows:
            # The client does not notice the cut either.
            self.ear.gone()
            return
        up, down = self._part(self._up), self._part(self._down)
        self.world.say(f"{self} cut; {len(up)} bytes still reach the broker, {len(down)} the client")
        if up:
            self.ear.receive(up)
        if down:
            self._give(down)
        self._shut()
        self.ear.gone()

    def _shut(self) -> None:
        self.is_open = False
        self.ended_ns = self.world.now_ns
        self.network.forget(self)
        self.sock.close()

    def _part(self, under_way: deque[bytes]) -> bytes:
        data = b"".join(under_way)
        under_way.clear()
        return data[: self.world.random.randint(0, len(data))] if data else data

    def swallow(self) -> None:
        """From now on all bytes vanish, including those in flight."""
        self.world.say(f"{self} swallows everything")
        self.swallows = True
        self._up.clear()
        self._down.clear()

    def stall(self, until_ns: int) -> None:
        """Bytes sent from now on do not arrive before ``until_ns``."""
        self.stalled_until_ns = until_ns


class Network:
    """All connections, and their properties."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.listeners: dict[str, Listener] = {}
        self.wires: list[Wire] = []
        self.delay_ms = (0.0, 0.0)
        #: The probability that a response arrives in two parts.
        self.splits = 0.0
        #: The probability that a connection is refused although the broker listens.
        self.refuses = 0.0
        self.narrow = False
        self.connections = 0
        #: Every Produce request that the client has written whole.
        self.written: list[bytes] = []
        #: Called with each request that a client has written whole: connection, frame, when it was begun.
        self.on_request: list[Callable[[Wire, bytes, int], object]] = []
        #: Called with each response that has arrived whole.
        self.on_response: list[Callable[[Wire, bytes], object]] = []
        self._readable = selectors.DefaultSelector()
        world.after_step.append(self.pump)

    def pump(self) -> None:
        """Reads the bytes that the client has written to all connections, and detects closed ones."""
        ready = self._readable.select(0)
        for wire in sorted((key.data for key, _ in ready), key=lambda wire: wire.number):
            wire.pump()

    def open_socket(self, address: Address) -> socket.socket:
        """Opens a connection for the client, and returns its socket."""
        listener = self.listeners[address.sockaddr[0]]
        if not listener.listens or self.world.chance(self.refuses):
            self.world.say(f"broker {listener.node} refuses a connection")
            raise ConnectionRefusedError(111, "Connection refused")
        self.connections += 1
        wire = Wire(self, listener, self.connections)
        self.wires.append(wire)
        self._readable.register(wire.sock, selectors.EVENT_READ, wire)
        self.world.say(f"{wire} opened")
        return wire.client_end

    def forget(self, wire: Wire) -> None:
        self.wires.remove(wire)
        self._readable.unregister(wire.sock)

    def wires_to(self, node: int) -> list[Wire]:
        return [wire for wire in self.wires if wire.node == node]

    def close(self) -> None:
        for wire in self.wires:
            wire.is_open = False
            wire.sock.close()
        self.wires.clear()
        self._readable.close()


class Names(Resolver):
    """Name resolution that completes immediately: a broker's name is its address."""

    def __init__(self, wake: Callable[[], None]) -> None:
        super().__init__(wake)
        self._found: list[Resolution] = []

    def resolve(self, host: str, port: int, canonical: bool = False) -> ResolveRequest:
        request = ResolveRequest(host, port, canonical)
        address = Address(host, int(socket.AF_INET), (host, port))
        self._found.append(Resolution(request, [address], None))
        return request

    def poll(self) -> list[Resolution]:
        found, self._found = self._found, []
        return found

    def close(self) -> None:
        self._found.clear()
