"""Fuzz target in Python: requests to the embedded broker, in this process, without sockets.

An input is a sequence of steps. Byte 0 is an API key, byte 1 the version, two bytes the size of the request
behind its header, which follows; the header is valid. If byte 1 is 128 or more, the batches of a Produce
request get a valid length and checksum. From ``FIRST_ACTION`` on, byte 0 is something else that a client or
the time does: see ``ACTIONS``. The cluster has two nodes, three topics, a stable group of one member and a
transactional id with an open transaction. For any input:

- a handler raises nothing: a request that cannot be read ends its connection;
- the responses of a connection come in the order of its requests, and can be decoded in their versions;
- no request and no timer waits for ever, or keeps the broker busy at one point in time;
- no end of a log goes back, and the size of the logs is counted;
- each node answers ApiVersions afterwards.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, Final, cast
from unittest import mock

from cyproducer.errors import KafkaProtocolError
from cyproducer.records.crc32c import crc32c
from cyproducer.testing.broker import admin, control, loop
from cyproducer.testing.broker.access import Access
from cyproducer.testing.broker.batches import HEADER_BYTES
from cyproducer.testing.broker.cluster import HANDLERS, EmbeddedCluster
from cyproducer.testing.broker.groups import Join, Joined, Synced
from cyproducer.testing.broker.homes import GROUP, ID
from cyproducer.testing.broker.loop import Transport
from cyproducer.testing.broker.partitions import Partition
from cyproducer.testing.broker.server import Connection, LoopWorld, Node
from cyproducer.testing.broker.world import NS_PER_MS, World
from cyproducer.wire.messages import API_VERSIONS, PRODUCE
from cyproducer.wire.requests import decode_request, read_header
from cyproducer.wire.schema import Api
from tests.fuzz.fuzz_rig import Choices

START_NS: Final = 1_700_000_000_000 * NS_PER_MS
TOPICS: Final = {"t": 2, "u": 1, "__v": 1}
GROUP_NAME, MEMBER, TRANSACTIONAL_ID = "g", "m-1", "id"
PRODUCER_ID: Final = 1001
"""The producer id of the transactional id, in epoch 0."""
USER, PASSWORD, TOKEN = "alice", "secret", "token"
CLIENT_ID: Final = "fuzz"
APIS: Final = {api.key: api for api in HANDLERS}
KEYS: Final = sorted(APIS)
FIRST_ACTION: Final = 0xF0
REPAIR: Final = 0x80
DELAYS_MS: Final = (0, 1, 10, 100, 1000, 10_000, 60_000, 1_000_000)
MOST_AT_ONCE: Final = 20_000
"""Events that may be scheduled while the time stands still."""
MOST_EVENTS: Final = 20_000
"""Events of the last wait, in which each request gets its response."""
MOST_STEPS: Final = 64


class ManualWorld(LoopWorld):
    """Time that passes only by ``advance``."""

    def __init__(self) -> None:
        World.__init__(self, 1, START_NS)
        self._at_once = 0

    def touch(self) -> None:
        self._at_once = 0

    def at(self, when_ns: int, act: Callable[..., object], *args: Any) -> int:
        self._at_once += 1
        assert self._at_once < MOST_AT_ONCE, f"{act} is scheduled for ever"
        return World.at(self, when_ns, act, *args)

    def advance(self, delay_ms: float) -> None:
        until_ns = self.now_ns + int(delay_ms * NS_PER_MS)
        while (due_ns := self.next_ns) is not None and due_ns <= until_ns:
            self.step()
        self.now_ns = until_ns

    def step(self) -> None:
        """Advances to the next event, and runs all that are due."""
        if self.next_ns is not None:
            if self.next_ns > self.now_ns:
                self.now_ns, self._at_once = self.next_ns, 0
            self.run_due()


class Loop:
    """Runs what a connection wants to run soon."""

    def __init__(self) -> None:
        self._soon: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def call_soon(self, act: Callable[..., object], *args: Any) -> None:
        self._soon.append((act, args))

    def run(self) -> None:
        while self._soon:
            act, args = self._soon.popleft()
            act(*args)


class Line(Transport):
    """The broker's end of a connection, without a socket."""

    def __init__(self, loop: Loop, protocol: Connection) -> None:
        self.peer = "127.0.0.1"
        self._loop, self._protocol = loop, protocol
        self.written = bytearray()
        self.is_closed = False

    def write(self, data: Any) -> None:
        assert not self.is_closed, "a response to a closed connection"
        self.written += data

    def abort(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._loop.call_soon(self._protocol.connection_lost)

    def close(self) -> None:
        self.abort()


class Client:
    """One connection to a node, and the requests on it that wait for a response."""

    def __init__(self, broker: Broker, node: Node) -> None:
        self._broker = broker
        self._connection = Connection(node)
        self.line = Line(broker.loop, self._connection)
        self._connection.connection_made(self.line)
        #: Correlation id, API, version.
        self.awaited: deque[tuple[int, Api, int]] = deque()
        #: The broker has received something that it must not answer.
        self.must_end = False
        self.answers: list[Any] = []

    def send(self, frame: bytes) -> None:
        """Sends a request without its size."""
        if not self.must_end:
            self._expect(frame)
        self.raw(len(frame).to_bytes(4, "big") + frame)

    def raw(self, data: bytes) -> None:
        """Sends any bytes. No response is checked after bytes that are not in ``send``."""
        self._connection.data_received(data)
        self._broker.loop.run()

    @property
    def waits(self) -> bool:
        """Whether the broker still has to respond, or to close the connection."""
        return not self.line.is_closed and (bool(self.awaited) or self.must_end)

    def end(self) -> None:
        """Closes the connection, as a client does."""
        self.line.abort()
        self._broker.loop.run()

    def _expect(self, frame: bytes) -> None:
        try:
            header = read_header(frame)
            lowest, highest = self._broker.cluster.versions.get(header.api_key, (0, -1))
            api, version = APIS.get(header.api_key), header.version
            if api is None or not lowest <= version <= highest:
                self.must_end = header.api_key != API_VERSIONS.key
                if not self.must_end:
                    self.awaited.append((header.correlation_id, API_VERSIONS, 0))
                return
            _, request = decode_request(api, frame, whole=False)
        except KafkaProtocolError:
            self.must_end = True
            return
        if api is not PRODUCE or request.acks != 0:
            self.awaited.append((header.correlation_id, api, version))

    def receive(self) -> None:
        """Checks the responses that have arrived."""
        written, at = self.line.written, 0
        while at < len(written):
            size = int.from_bytes(written[at : at + 4], "big", signed=True)
            frame = bytes(written[at + 4 : at + 4 + size])
            assert 4 <= size == len(frame), f"a response of {len(frame)} bytes says {size}"
            assert self.awaited, f"a response to no request: {frame.hex()}"
            number, api, version = self.awaited.popleft()
            assert int.from_bytes(frame[:4], "big", signed=True) == number, f"{api} is out of order"
            self.answers.append(api.decode_response(version, frame))
            at += 4 + size
        written.clear()
        if self.line.is_closed:
            self.awaited.clear()


class Broker:
    """A cluster, and three connections to it: two to node 1, one to node 2."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.world = ManualWorld()
        self.cluster = EmbeddedCluster(
            cast(loop.Loop, self.loop), 2, 9092, max_bytes=1 << 20, world=self.world
        )
        for node in self.cluster.nodes.values():
            node.is_up = True
        self._clients: dict[int, Client] = {}
        self._now = 0
        self._numbers = count(1)
        #: Partition -> first offset, end of the replicated records, end.
        self._ends: dict[Partition, tuple[int, int, int]] = {}
        self._prepare()

    def _prepare(self) -> None:
        cluster = self.cluster
        for kind, name in ((GROUP, GROUP_NAME), (ID, TRANSACTIONAL_ID)):
            home = cluster.homes.home(kind, name)
            home.leader = 1
            home.views = dict.fromkeys(home.views, 1)
        for name, partitions in TOPICS.items():
            for partition in cluster.create_topic(name, partitions).partitions:
                partition.leader = 1 + partition.index
                cluster.topics.learn(partition, list(cluster.nodes))
        # All metrics, in any codec: without a subscription, brokers do not offer the two requests.
        control.subscribe(cluster, ("",), 1_000, True, tuple(range(5)), 1 << 16)
        numbers = count(1)
        # Members' ids that an input can have.
        cluster.groups.new_id = lambda prefix: f"m-{next(numbers)}"  # type: ignore[method-assign]
        joined: list[Joined] = []
        synced: list[Synced] = []
        protocols = {"t": b"m"}
        join = Join("", None, 30_000, 60_000, "consumer", protocols, CLIENT_ID, "/h", False, False)
        cluster.groups.join(GROUP_NAME, join, joined.append)
        group = cluster.groups.find(GROUP_NAME)
        assert group is not None
        assert joined[0].member == MEMBER
        group.sync(joined[0].generation, MEMBER, None, (None, None), {MEMBER: b"a"}, synced.append)
        assert [each.code for each in synced] == [0]
        codes: list[Any] = []
        transactions = cluster.transactions
        transactions.init_producer_id(TRANSACTIONAL_ID, 60_000, -1, -1, lambda *told: codes.append(told))
        transactions.add(TRANSACTIONAL_ID, PRODUCER_ID, 0, [("t", 0)], True, codes.append)
        assert codes == [(0, PRODUCER_ID, 0), 0]

    @property
    def client(self) -> Client:
        """The connection that is used now; a new one if the last one has ended."""
        found = self._clients.get(self._now)
        if found is None or found.line.is_closed:
            found = self._clients[self._now] = Client(self, self.cluster.nodes[1 + self._now // 2])
        return found

    # Steps

    def request(self, api: Api, choice: int, body: bytes) -> None:
        """Sends a request with a valid header."""
        lowest, highest = self.cluster.versions[api.key]
        version = lowest + (choice % REPAIR) % (highest - lowest + 1)
        number = next(self._numbers)
        frame = api.key.to_bytes(2, "big") + version.to_bytes(2, "big") + number.to_bytes(4, "big")
        frame += len(CLIENT_ID).to_bytes(2, "big") + CLIENT_ID.encode()
        frame += b"\0" * (version >= api.flexible) + body
        if api is PRODUCE and choice & REPAIR:
            with suppress(KafkaProtocolError):
                header, request = decode_request(api, frame, whole=False)
                for topic in request.topic_data:
                    topic.partition_data[:] = [
                        each._replace(records=repaired(each.records)) for each in topic.partition_data
                    ]
                frame = api.encode_request(version, number, header.client_id, request)[4:]
        self.client.send(frame)

    def advance(self, choice: int, body: bytes) -> None:
        self.world.advance(DELAYS_MS[choice % len(DELAYS_MS)])

    def change(self, choice: int, body: bytes) -> None:
        """Uses another connection from now on."""
        self._now = choice % 3

    def end(self, choice: int, body: bytes) -> None:
        self.client.end()

    def send(self, choice: int, body: bytes) -> None:
        """Sends a request whose header is also the input's."""
        self.client.send(body)

    def send_raw(self, choice: int, body: bytes) -> None:
        """Sends bytes that need not be frames, and closes the connection, because its responses are not
        checked."""
        client = self.client
        client.raw(body)
        client.line.written.clear()
        client.end()

    def secure(self, choice: int, body: bytes) -> None:
        """From now on, connections must authenticate, or need not; those that exist are closed."""
        for client in self._clients.values():
            client.end()
        mechanisms = ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"] if choice % 2 else []
        self.cluster.access = Access({USER: PASSWORD}, mechanisms, validated, 1000 * (choice & 2))

    def move_partition(self, choice: int, body: bytes) -> None:
        partitions = self.cluster.topics.partitions()
        if partitions:
            partition = partitions[choice // 2 % len(partitions)]
            self.cluster.topics.move(partition, 1 + choice % 2, True, (0.0, 0.0))

    def move_coordinator(self, choice: int, body: bytes) -> None:
        homes = self.cluster.homes
        name = sorted(homes.homes)[choice // 2 % len(homes.homes)]
        homes.move(homes.homes[name], 1 + choice % 2)

    def play(self, choices: Choices) -> None:
        """One step."""
        first, choice = choices.byte(), choices.byte()
        body = choices.some(min(choices.two(), len(choices.data) - min(choices.at, len(choices.data))))
        self.world.touch()
        if first >= FIRST_ACTION:
            ACTIONS[(first - FIRST_ACTION) % len(ACTIONS)](self, choice, body)
        else:
            key = first if first in APIS else KEYS[first % len(KEYS)]
            self.request(APIS[key], choice, body)
        self.loop.run()
        self.check()

    # Checks

    def check(self) -> None:
        for client in self._clients.values():
            client.receive()
        size, ends = 0, {}
        for partition in self.cluster.topics.partitions():
            now = ends[partition] = partition.log_start, partition.synced, partition.end
            before = self._ends.get(partition, (0, 0, 0))
            assert all(a <= b for a, b in zip(before, now, strict=True)), f"{before} goes back to {now}"
            assert now[0] <= partition.last_stable <= now[1] <= now[2], f"{now}, {partition.last_stable}"
            size += sum(len(entry.data) for entry in partition.entries if entry.commits is None)
        self._ends = ends
        assert self.cluster.bytes == size, f"{self.cluster.bytes} bytes are counted of {size}"

    def finish(self) -> int:
        """Waits until each request has its response; returns how many responses there were."""
        for _ in range(MOST_EVENTS):
            self.check()
            if not any(client.waits for client in self._clients.values()):
                break
            assert self.world.next_ns is not None, "a request waits for ever"
            self.world.step()
            self.loop.run()
        answers = sum(len(client.answers) for client in self._clients.values())
        self.secure(0, b"")
        for node in self.cluster.nodes.values():
            client = Client(self, node)
            client.send(API_VERSIONS.encode_request(0, 1, None, API_VERSIONS.request("", ""))[4:])
            client.receive()
            assert [answer.error_code for answer in client.answers] == [0], "ApiVersions is not answered"
        return answers


ACTIONS: Final = (
    Broker.advance,
    Broker.change,
    Broker.end,
    Broker.send,
    Broker.send_raw,
    Broker.secure,
    Broker.move_partition,
    Broker.move_coordinator,
)


def repaired(data: bytes | None) -> bytes | None:
    """A batch with the length and the checksum of its bytes."""
    if data is None or len(data) < HEADER_BYTES:
        return data
    made = bytearray(data)
    made[8:12] = (len(data) - 12).to_bytes(4, "big")
    made[17:21] = crc32c(memoryview(made)[21:]).to_bytes(4, "big")
    return bytes(made)


def validated(token: str) -> str:
    if token != TOKEN:
        raise ValueError("it is not the token")
    return USER


class _Failures(logging.Handler):
    """The exceptions that the broker has logged."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.found.append(record.exc_info[1])


@contextmanager
def failures() -> Iterator[list[BaseException]]:
    """Collects the exceptions of handlers, which the broker logs, and hides its warnings."""
    log, handler = logging.getLogger("cyproducer.testing"), _Failures()
    propagates, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield handler.found
    finally:
        log.removeHandler(handler)
        log.propagate = propagates


def play(data: bytes) -> int:
    """Plays one input; returns the number of responses. Raises AssertionError, or the exception of a
    handler, on a finding."""
    choices = Choices(data)
    with failures() as found, mock.patch.object(admin, "MOST_PARTITIONS", 20):
        broker = Broker()
        for _ in range(MOST_STEPS):
            if not choices:
                break
            broker.play(choices)
            if found:
                raise found[0]
        answers = broker.finish()
        if found:
            raise found[0]
    return answers
