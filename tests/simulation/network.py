"""What lies between the client's sockets and the brokers: delays, stalls, cuts, refusals.

Owns: one socket pair a connection, the bytes under way, and their fate. Does not own: what the bytes say.

A connection is cut at a byte: of what is under way in each direction a part still arrives, drawn anew each
time, and nothing after it. So a request may arrive and its answer not, and half a frame may arrive. What a
broker has read it may handle long after the connection is gone (``model_broker``): TCP promises nothing else.
"""

import selectors
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

from cyproducer.control.connections import Address
from cyproducer.network.dns import Resolution, Resolver, ResolveRequest
from tests.simulation.world import NS_PER_MS, World

PORT = 9092


class Listener(Protocol):
    """A broker, as connections see it."""

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
        #: Everything vanishes, and nobody is told.
        self.swallows = False
        self.stalled_until_ns = 0
        self._written = bytearray()
        self._up: deque[bytes] = deque()
        self._down: deque[bytes] = deque()
        self._up_free_ns = 0
        self._down_free_ns = 0
        self.ear = listener.accept(self)

    def __repr__(self) -> str:
        return f"wire {self.number} to broker {self.node}"

    # Towards the broker

    def pump(self) -> None:
        """Takes what the client has written."""
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
        """Keeps the Produce requests that the client has written whole, wherever they got to."""
        written = self._written
        written += data
        while len(written) >= 6 and len(written) >= (size := 4 + int.from_bytes(written[:4], "big")):
            if written[4:6] == b"\0\0":
                self.network.written.append(bytes(written[:size]))
            del written[:size]

    def _due(self, not_before_ns: int) -> int:
        due = self.world.now_ns + int(self.world.between(self.network.delay_ms) * NS_PER_MS)
        return max(due, not_before_ns, self.stalled_until_ns)

    def _arrive(self) -> None:
        # Nothing is there any more where the connection was cut.
        if self._up:
            self.ear.receive(self._up.popleft())

    def _hung_up(self) -> None:
        self.ear.gone()

    # Towards the client

    def send(self, data: bytes) -> None:
        """An answer of the broker sets out."""
        if not self.is_open or self.swallows:
            return
        parts = [data]
        if len(data) > 1 and self.world.chance(self.network.splits):
            at = self.world.random.randrange(1, len(data))
            parts = [data[:at], data[at:]]
        for part in parts:
            self._down.append(part)
            self._down_free_ns = self.world.at(self._due(self._down_free_ns), self._deliver)

    def _deliver(self) -> None:
        if self._down and self.is_open:
            self._give(self._down.popleft())

    def _give(self, data: bytes) -> None:
        try:
            sent = self.sock.send(data)
        except OSError:
            # The client has closed it; the next look finds that.
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
            # The client hears nothing of this either.
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
        self.network.forget(self)
        self.sock.close()

    def _part(self, under_way: deque[bytes]) -> bytes:
        data = b"".join(under_way)
        under_way.clear()
        return data[: self.world.random.randint(0, len(data))] if data else data

    def swallow(self) -> None:
        """From now on everything vanishes, what is under way too."""
        self.world.say(f"{self} swallows everything")
        self.swallows = True
        self._up.clear()
        self._down.clear()

    def stall(self, until_ns: int) -> None:
        """What is sent from now on does not arrive before a time."""
        self.stalled_until_ns = until_ns


class Network:
    """All connections, and how they are."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.listeners: dict[str, Listener] = {}
        self.wires: list[Wire] = []
        self.delay_ms = (0.0, 0.0)
        #: How often an answer comes in two parts.
        self.splits = 0.0
        #: How often a connection is refused though the broker listens.
        self.refuses = 0.0
        self.narrow = False
        self.connections = 0
        #: Every Produce request that the client has written whole.
        self.written: list[bytes] = []
        self._readable = selectors.DefaultSelector()
        world.after_step.append(self.pump)

    def pump(self) -> None:
        """Takes what the client has written to any connection, or that it has closed it."""
        ready = self._readable.select(0)
        for wire in sorted((key.data for key, _ in ready), key=lambda wire: wire.number):
            wire.pump()

    def open_socket(self, address: Address) -> socket.socket:
        """What the client connects with."""
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
    """Name resolution that answers at once: a broker's name is its address."""

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
