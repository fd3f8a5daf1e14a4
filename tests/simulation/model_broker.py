"""One broker of the model: reads requests, handles them one after the other, and responds.

Owns framing, the order of a connection's requests, and this broker's response to each kind of request. Does
not own logs and leaders (``testing/broker/partitions``) or the transport of bytes (``network``).

Like a real broker, it handles one request of a connection at a time, delays the response with acks=all until
the replicas have the records, and loses requests that it has read only in a crash: requests of a closed
connection are still handled, some of them much later.
"""

import struct
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from cyproducer.testing.broker.partitions import Cluster
from cyproducer.testing.broker.transactions import Transactions
from cyproducer.testing.broker.world import NS_PER_MS, World
from tests.scripted import scripted_wire as wire_format
from tests.scripted.scripted_wire import (
    API_VERSIONS,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from tests.simulation.model_produce import answer_produce
from tests.simulation.model_sasl import SaslGate, Session
from tests.simulation.model_transaction_requests import answer_init_producer_id, answer_transactions
from tests.simulation.model_transactional_produce import answer_transactional_produce
from tests.simulation.network import PORT, Network, Wire
from tests.simulation.transaction_wire import VERSIONS as TRANSACTION_APIS
from tests.simulation.transaction_wire import acts_on_any_transaction
from tools.harness.reference_produce import decode_produce_request

UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE = 3, 5


@dataclass
class Manners:
    """How brokers behave in a history; times in milliseconds."""

    versions: dict[int, tuple[int, int]]
    handling_ms: tuple[float, float] = (0.0, 0.0)
    #: How long a request of a closed connection may stay in the queue.
    zombie_ms: tuple[float, float] = (0.0, 0.0)
    #: The probability that a closed connection's requests are handled.
    zombies: float = 0.0
    replication_ms: tuple[float, float] = (0.0, 0.0)
    message_max_bytes: int = 1 << 20
    old_rules: bool = False
    tells_duplicates: bool = False
    tells_leader: bool = False
    throttles: float = 0.0
    throttle_ms: int = 0
    #: (error code, whether the batch is appended anyway, relative frequency)
    faults: list[tuple[int, bool, int]] = field(default_factory=list)
    fault_rate: float = 0.0
    #: Errors of InitProducerId, and their probability.
    id_faults: list[int] = field(default_factory=list)
    id_fault_rate: float = 0.0
    first_epoch: int = 0
    #: Whether records whose value starts with REJECTED are rejected, and whether they are named (KIP-467).
    rejects: bool = False
    names_rejected: bool = True


class Conversation:
    """A broker's end of one connection."""

    def __init__(self, broker: "Broker", wire: Wire) -> None:
        self.broker = broker
        self.wire = wire
        self.world = broker.world
        self.life: int = broker.life
        self.inbox = bytearray()
        self.queue: deque[bytes] = deque()
        self.busy = False
        self.is_gone = False
        self.muted_until_ns = 0
        #: None: without authentication.
        self.session = None if broker.gate is None else Session(broker.gate, self)
        self._taken = 0

    def receive(self, data: bytes) -> None:
        if self.life != self.broker.life:
            return
        inbox = self.inbox
        inbox += data
        while len(inbox) >= 4:
            size = 4 + int.from_bytes(inbox[:4], "big")
            if len(inbox) < size:
                break
            if self.session is not None:
                self.session.see(key_of(inbox))
            self.queue.append(bytes(inbox[:size]))
            del inbox[:size]
        self._go_on()

    def gone(self) -> None:
        """The client's end is closed, or the connection was cut."""
        if self.is_gone or self.life != self.broker.life:
            return
        self.is_gone = True
        if self.queue and not self.world.chance(self.broker.manners.zombies):
            self.queue.clear()
        if self.broker.transactions is not None:
            # What such a request does is the hole in the protocol's first version, not the client's fault.
            self.queue = deque(frame for frame in self.queue if not acts_on_any_transaction(frame))

    def _go_on(self) -> None:
        if self.busy or not self.queue:
            return
        if self.session is not None:
            key, begun_ns = self.wire.requests[self._taken]
            self._taken += 1
            if not self.session.admits(key, begun_ns):
                self.finish()
                return
        self.busy = True
        manners = self.broker.manners
        delay_ms = self.world.between(manners.zombie_ms if self.is_gone else manners.handling_ms)
        due = self.world.now_ns + int(delay_ms * NS_PER_MS)
        self.world.at(max(due, self.muted_until_ns), self._handle)

    def _handle(self) -> None:
        if self.life != self.broker.life:
            return
        if self.world.now_ns < self.broker.paused_until_ns:
            self.world.at(self.broker.paused_until_ns, self._handle)
            return
        if not self.queue:
            self.busy = False
            return
        self.broker.handle(self, self.queue.popleft())

    def answer(
        self, response: bytes | None, throttle_ms: int = 0, then: Callable[[], object] | None = None
    ) -> None:
        """Finishes a request; ``response`` None: sends no response. ``then``: see ``Wire.send``."""
        if self.life != self.broker.life:
            return
        if response is not None and not self.is_gone:
            self.wire.send(response, then)
        if throttle_ms:
            self.muted_until_ns = self.world.now_ns + throttle_ms * NS_PER_MS
        self.busy = False
        self._go_on()

    def hang_up(self) -> None:
        self.wire.cut()

    def finish(self) -> None:
        """Closes the connection after the responses so far; what the client has sent is not read."""
        if self.life != self.broker.life:
            return
        self.busy = self.is_gone = True
        self.queue.clear()
        self.wire.finish()


def key_of(frame: bytes | bytearray) -> int:
    """Returns the API key of a request."""
    return int.from_bytes(frame[4:6], "big")


class Broker:
    """See the module."""

    def __init__(
        self,
        node: int,
        cluster: Cluster,
        network: Network,
        manners: Manners,
        gate: SaslGate | None = None,
        transactions: Transactions | None = None,
    ) -> None:
        self.node = node
        self.gate = gate
        self.transactions = transactions
        if transactions is not None:
            transactions.brokers[node] = self
        self.cluster = cluster
        self.network = network
        self.world: World = cluster.world
        self.manners = manners
        self.host = f"b{node}"
        self.is_up = True
        #: Counts crashes: work that was begun in an earlier life is not finished.
        self.life: int = 0
        self.paused_until_ns = 0
        network.listeners[self.host] = self

    @property
    def listens(self) -> bool:
        return self.is_up

    def accept(self, wire: Wire) -> Conversation:
        return Conversation(self, wire)

    def crash(self) -> None:
        """The process ends: connections are closed, requests that were read are lost."""
        self.world.say(f"broker {self.node} crashes")
        self.is_up = False
        self.life += 1
        self.paused_until_ns = 0
        for wire in self.network.wires_to(self.node):
            wire.cut()

    def start(self) -> None:
        if not self.is_up:
            self.world.say(f"broker {self.node} starts")
            self.is_up = True

    # Requests

    def handle(self, conversation: Conversation, frame: bytes) -> None:
        key, version, correlation_id = struct.unpack_from(">hhi", frame, 4)
        low, high = self.manners.versions[key]
        if key == PRODUCE:
            assert low <= version <= high, f"Produce v{version} is not supported"
            request = decode_produce_request(frame)
            if self.transactions is None:
                answer_produce(self, conversation, request)
            else:
                answer_transactional_produce(self, conversation, request)
            return
        if key in TRANSACTION_APIS:
            answer_transactions(self, conversation, frame)
            return
        header = wire_format.read_header(frame[4:])
        if key in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
            assert conversation.session is not None
            assert low <= version <= high, f"version {version} of API {key} is not supported"
            conversation.session.handle(header)
            return
        if key == API_VERSIONS:
            wire_format.read_api_versions(header)
            response = self._api_versions(version, correlation_id)
        elif key == METADATA:
            assert low <= version <= high, f"Metadata v{version} is not supported"
            response = self._metadata(version, correlation_id, wire_format.read_metadata(header)[0])
        else:
            assert key == INIT_PRODUCER_ID
            if self.transactions is not None:
                answer_init_producer_id(self, conversation, header)
                return
            response = self._init_producer_id(version, correlation_id, header)
        conversation.answer(response)

    def _api_versions(self, version: int, correlation_id: int) -> bytes:
        if self.transactions is None:
            return wire_format.write_api_versions(version, correlation_id, self.manners.versions)
        features_epoch, level = self.transactions.features.views[self.node]
        self.world.say(f"broker {self.node} says that transaction.version is {level}")
        features = {"metadata.version": 27}
        if level:
            features["transaction.version"] = level
        return wire_format.write_api_versions(
            version,
            correlation_id,
            self.manners.versions,
            features=features,
            features_epoch=features_epoch,
        )

    def _metadata(self, version: int, correlation_id: int, names: list[str] | None) -> bytes:
        cluster = self.cluster
        answers = []
        for name in cluster.topics if names is None else names:
            topic = cluster.existing(name)
            if topic is None:
                answers.append(wire_format.TopicAnswer(name, error=UNKNOWN_TOPIC))
                continue
            partitions = []
            for partition in topic.partitions:
                leader, epoch = cluster.view(self.node, partition)
                error = LEADER_NOT_AVAILABLE if leader < 0 else 0
                partitions.append(wire_format.PartitionAnswer(partition.index, leader, epoch, error))
            answers.append(wire_format.TopicAnswer(name, uuid.UUID(bytes=topic.id), 0, partitions))
        brokers = [(node, f"b{node}", PORT) for node in cluster.nodes]
        if self.world.tracing:
            leaders = {a.name: [(p.leader, p.epoch) for p in a.partitions] for a in answers}
            self.world.say(f"broker {self.node} sends metadata: {leaders}")
        return wire_format.write_metadata(version, correlation_id, brokers, answers, "model")

    def _init_producer_id(self, version: int, correlation_id: int, header: wire_format.Header) -> bytes:
        transactional_id, *_ = wire_format.read_init_producer_id(header)
        assert transactional_id is None
        manners = self.manners
        if manners.id_faults and self.world.chance(manners.id_fault_rate):
            error = self.world.random.choice(manners.id_faults)
            self.world.say(f"broker {self.node} refuses a producer id: error {error}")
            return wire_format.write_init_producer_id(version, correlation_id, -1, -1, error)
        producer_id = self.cluster.new_producer_id()
        self.world.say(f"broker {self.node} assigns producer id {producer_id}")
        return wire_format.write_init_producer_id(version, correlation_id, producer_id, manners.first_epoch)
