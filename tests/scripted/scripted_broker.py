"""A Kafka cluster in threads of the test process; a test can script each of its responses.

Owns listening sockets on free ports of the loopback interface, the model of topics, the coordinators of
transactions, and a list of all received requests.
Each connection has a thread that reads and one that responds, so that a response can be held back while more
requests arrive. Requests are read strictly; an invalid request fails the test when the cluster stops.

``ScriptedCluster.changed`` guards the model and the list, and is notified of each change.
"""

import contextlib
import queue
import socket
import ssl
import struct
import threading
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from tests.scripted import scripted_reading as reading
from tests.scripted import scripted_transactions as transactions
from tests.scripted import scripted_wire as wire
from tests.scripted.scripted_coordinator import Broker, Coordinator
from tests.scripted.scripted_model import NO_LEADER, Act, Answers, Partition, TopicModel
from tests.scripted.scripted_sasl import SaslServer, SaslState
from tests.scripted.scripted_wire import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    LIST_TRANSACTIONS,
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    TXN_OFFSET_COMMIT,
)
from tools.harness.reference_records import (
    Batch,
    PartitionResponse,
    ProduceRequest,
    Topic,
    decode_batches,
    decode_produce_request,
    encode_produce_response,
)
from tools.harness.tls import TlsEnd

__all__ = [
    "ADD_OFFSETS_TO_TXN",
    "ADD_PARTITIONS_TO_TXN",
    "API_VERSIONS",
    "CREATE_TOPICS",
    "DESCRIBE_CONFIGS",
    "DESCRIBE_TRANSACTIONS",
    "END_TXN",
    "FETCH",
    "FIND_COORDINATOR",
    "INIT_PRODUCER_ID",
    "LIST_OFFSETS",
    "LIST_TRANSACTIONS",
    "METADATA",
    "NO_LEADER",
    "PRODUCE",
    "SASL_AUTHENTICATE",
    "SASL_HANDSHAKE",
    "TIMEOUT_S",
    "TXN_OFFSET_COMMIT",
    "Act",
    "Connection",
    "Node",
    "Partition",
    "Received",
    "ScriptedCluster",
    "TopicModel",
]

TIMEOUT_S = 60.0
BEFORE_AUTHENTICATION = (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE)
LEADER_NOT_AVAILABLE, UNKNOWN_TOPIC, NOT_LEADER, UNKNOWN_TOPIC_ID = 5, 3, 6, 100


@dataclass
class Received:
    """One request as it was received."""

    connection: "Connection"
    header: wire.Header
    frame: bytes
    produce: ProduceRequest | None = None
    topics: list[str] | None = None
    transaction: transactions.Request | None = None
    """What InitProducerId or a request of transactions asks for."""
    asked: reading.Request | None = None
    """What a request of reading asks for."""

    @property
    def api_key(self) -> int:
        return self.header.api_key

    @property
    def batches(self) -> dict[tuple[Topic, int], Batch]:
        """The batches of a Produce request; there must be one for each of its partitions."""
        assert self.produce is not None
        found = {}
        for topic, partitions in self.produce.topics:
            for index, data in partitions:
                assert data is not None
                assert (topic, index) not in found
                (found[topic, index],) = decode_batches(data)
        return found


class Connection:
    """One accepted connection, with its two threads."""

    def __init__(self, node: "Node", sock: socket.socket) -> None:
        self.node = node
        context = node.cluster.tls
        self.sock = sock if context is None else TlsEnd(sock, context)
        self.requests: list[Received] = []
        self.closed = False
        self.sasl = SaslState()
        self._answers: queue.SimpleQueue[tuple[bytes, Act] | None] = queue.SimpleQueue()
        self.threads = [
            threading.Thread(target=run, name=f"scripted-{node.id}", daemon=True)
            for run in (self._read, self._write)
        ]
        for thread in self.threads:
            thread.start()

    def close(self) -> None:
        # The other side may have closed it first.
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def answer(self, frame: bytes, act: Act) -> None:
        self._answers.put((frame, act))

    def _read(self) -> None:
        cluster = self.node.cluster
        try:
            with self.sock.makefile("rb") as stream:
                while len(length := stream.read(4)) == 4:
                    payload = stream.read(int.from_bytes(length, "big"))
                    if len(payload) < int.from_bytes(length, "big"):
                        break
                    cluster.receive(self, length + payload)
        except OSError:
            pass
        except Exception as error:
            cluster.failures.append(error)
        with cluster.changed:
            self.closed = True
            cluster.changed.notify_all()
        self._answers.put(None)

    def _write(self) -> None:
        try:
            while (item := self._answers.get()) is not None:
                frame, act = item
                if act.hold is not None:
                    act.hold.wait()
                if act.drop:
                    break
                if act.silent:
                    continue
                self.sock.sendall(frame if act.cut is None else frame[: act.cut])
                if act.cut is not None:
                    break
        except OSError:
            pass
        self.close()
        self.threads[0].join()
        self.sock.close()


class Node:
    """One broker, which keeps its port across restarts."""

    def __init__(self, cluster: "ScriptedCluster", node_id: int) -> None:
        self.cluster = cluster
        self.id = node_id
        self.host = cluster.interface
        self.connections: list[Connection] = []
        self.versions = {key: (lowest, highest) for key, (lowest, highest, _) in wire.VERSIONS.items()}
        self.tells_ranges_with_35 = True
        self.features: dict[str, int] = {}
        """Finalized feature -> level, in ApiVersions responses."""
        self.features_epoch = -1
        """The epoch of the features; -1: unknown."""
        self._listener: socket.socket | None = None
        self.port = 0
        self.start()

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def start(self) -> None:
        if self._listener is None:
            interface = self.cluster.interface
            family = socket.AF_INET6 if ":" in interface else socket.AF_INET
            self._listener = socket.create_server((interface, self.port), family=family)
            self.port = self._listener.getsockname()[1]
            self._thread = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
            self._thread.start()

    def narrow(self) -> None:
        """Gives new connections the smallest possible receive buffer."""
        assert self._listener is not None
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)

    def stop(self) -> None:
        """Refuses new connections and closes the existing ones."""
        if self._listener is None:
            return
        listener, self._listener = self._listener, None
        # Connecting wakes up accept() on every system; closing the socket does not.
        socket.create_connection((self.cluster.interface, self.port), TIMEOUT_S).close()
        self._thread.join(TIMEOUT_S)
        listener.close()
        self.drop_connections()

    def drop_connections(self) -> None:
        for connection in self.connections:
            connection.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            sock, _ = listener.accept()
            with self.cluster.changed:
                if self._listener is not listener:
                    sock.close()
                    return
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connections.append(Connection(self, sock))
                self.cluster.changed.notify_all()


class ScriptedCluster:
    """``nodes`` brokers with the ids 1, 2, ...; a context manager."""

    def __init__(
        self,
        nodes: int = 1,
        *,
        interface: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        sasl: SaslServer | None = None,
        **topics: int,
    ) -> None:
        self.interface = interface
        self.changed = threading.Condition(threading.RLock())
        self.requests: list[Received] = []
        self.failures: list[Exception] = []
        self.topics: dict[str, TopicModel] = {}
        self.auto_create = 0
        """The number of partitions of automatically created topics; 0: topics are not created."""
        self.tells_leader = False
        """Whether a NOT_LEADER response names the leader and its address (KIP-951)."""
        self.unlisted: set[int] = set()
        """Nodes missing in the metadata's broker list, even if they lead partitions."""
        self.advertised: dict[int, tuple[str, int]] = {}
        """Node id -> the host and port that the metadata gives instead of the node's own."""
        self.script: Callable[[Received], Act | None] = lambda received: None
        self.coordinator = Coordinator()
        self.logs = reading.Logs()
        """What requests of reading find; produced batches are not in there."""
        self.controller: int | None = None
        """The node id that the metadata gives as the controller's; None: the first node's."""
        #: Clients must authenticate; None: they need not, and cannot.
        self.sasl = sasl
        #: Connections are encrypted with it; None: they are not.
        self.tls = tls
        self._acts: dict[int, deque[Act]] = {key: deque() for key in wire.VERSIONS}
        self._holds: list[threading.Event] = []
        self.nodes = {node_id: Node(self, node_id) for node_id in range(1, nodes + 1)}
        for name, partitions in topics.items():
            self.create_topic(name, partitions)

    def __enter__(self) -> "ScriptedCluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if error is None and self.failures:
            raise AssertionError("the broker received an invalid request") from self.failures[0]

    def stop(self) -> None:
        for node in self.nodes.values():
            node.stop()
        for hold in self._holds:
            hold.set()
        for node in self.nodes.values():
            for connection in node.connections:
                for thread in connection.threads:
                    thread.join(TIMEOUT_S)
                    assert not thread.is_alive()

    # For tests

    @property
    def bootstrap_servers(self) -> list[str]:
        return [node.address for node in self.nodes.values()]

    def create_topic(self, name: str, partitions: int = 1, leaders: Sequence[int] = ()) -> TopicModel:
        """Creates a topic. ``leaders``: one per partition; by default the nodes in round-robin order."""
        ids = list(self.nodes)
        with self.changed:
            self.topics[name] = TopicModel(
                name, [Partition(leaders[i] if leaders else ids[i % len(ids)]) for i in range(partitions)]
            )
        return self.topics[name]

    def set_transaction_version(self, level: int | None, epoch: int) -> None:
        """Lets all brokers tell that transaction.version is finalized at this level; None: it is absent.

        ``epoch``: of the features. One broker alone has ``features`` and ``features_epoch``.
        """
        with self.changed:
            for node in self.nodes.values():
                node.features = {} if level is None else {"transaction.version": level}
                node.features_epoch = epoch

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        with self.changed:
            self.topics[topic].partitions[partition].leader = node_id
            self.topics[topic].partitions[partition].epoch += 1

    def act(self, api_key: int, *acts: Act) -> None:
        """Scripts the reactions to the next requests with this API key, whichever broker receives them."""
        with self.changed:
            self._acts[api_key].extend(acts)

    def received(self, api_key: int) -> list[Received]:
        with self.changed:
            return [received for received in self.requests if received.api_key == api_key]

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
        """Waits until the condition is true; it is checked after each change."""
        with self.changed:
            assert self.changed.wait_for(condition, timeout_s), (
                f"not within {timeout_s} s; received {[(r.api_key, r.topics) for r in self.requests]}"
            )

    def wait_for_requests(self, api_key: int, count: int) -> list[Received]:
        self.wait_for(lambda: len(self.received(api_key)) >= count)
        return self.received(api_key)

    # Responding, on the connections' threads

    def receive(self, connection: Connection, frame: bytes) -> None:
        header = wire.read_header(frame[4:])
        received = Received(connection, header, frame)
        lowest, highest = connection.node.versions[header.api_key]
        with self.changed:
            if header.api_key != SASL_AUTHENTICATE:
                assert not connection.sasl.between, f"a request in the middle of authenticating: {header}"
            denied = self.sasl is not None and not connection.sasl.authenticated
            if denied and header.api_key not in BEFORE_AUTHENTICATION:
                connection.close()
                response, act = None, Act()
            elif lowest <= header.version <= highest:
                response, act = self._respond(received)
            else:
                assert header.api_key == API_VERSIONS, f"unsupported version {header.version}: {header}"
                response, act = self._refuse_version(received)
            connection.requests.append(received)
            self.requests.append(received)
            if act.hold is not None:
                self._holds.append(act.hold)
            self.changed.notify_all()
        if response is not None:
            if act.raw is not None:
                response = act.raw
            if act.correlation_shift:
                shifted = header.correlation_id + act.correlation_shift
                response = response[:4] + struct.pack(">i", shifted) + response[8:]
            if act.rewrite is not None:
                response = act.rewrite(response)
            connection.answer(response, act)

    def _refuse_version(self, received: Received) -> tuple[bytes, Act]:
        node = received.connection.node
        act = self._act_for(received)
        ranges = {API_VERSIONS: node.versions[API_VERSIONS]} if node.tells_ranges_with_35 else {}
        return wire.write_api_versions(0, received.header.correlation_id, ranges, error=35), act

    def _act_for(self, received: Received) -> Act:
        acts = self._acts[received.api_key]
        return acts.popleft() if acts else self.script(received) or Act()

    def _respond(self, received: Received) -> tuple[bytes | None, Act]:
        header, node = received.header, received.connection.node
        version, correlation_id = header.version, header.correlation_id
        if header.api_key == PRODUCE:
            received.produce = decode_produce_request(received.frame)
            act = self._act_for(received)
            response = self._produce(received, act)
            return (None if received.produce.acks == 0 and not act.drop else response), act
        if header.api_key == METADATA:
            received.topics, create, rights = wire.read_metadata(header)
            act = self._act_for(received)
            return self._metadata(version, correlation_id, received.topics, create, rights, act), act
        if header.api_key in transactions.API_KEYS:
            received.transaction = transactions.read_request(header)
            act = self._act_for(received)
            return self.coordinator.answer(node.id, header, received.transaction, act, self._address), act
        if header.api_key in reading.API_KEYS:
            received.asked = reading.read_request(header)
            act = self._act_for(received)
            asked, error = received.asked, act.error
            if isinstance(asked, reading.Fetch | reading.ListOffsets):
                error = self._error_for(received, act, self.topics.get(asked.topic), asked.partition)
            assert isinstance(error, int)
            return self.logs.answer(header, asked, error, act.message, act.throttle_ms), act
        act = self._act_for(received)
        error = act.error if isinstance(act.error, int) else 0
        if header.api_key == API_VERSIONS:
            wire.read_api_versions(header)
            answer = wire.write_api_versions(
                version,
                correlation_id,
                node.versions,
                error,
                act.throttle_ms,
                node.features,
                node.features_epoch,
            )
            return answer, act
        if header.api_key == SASL_HANDSHAKE:
            server = self.sasl or SaslServer(mechanisms=())
            code, names = received.connection.sasl.handshake(server, wire.read_sasl_handshake(header))
            return wire.write_sasl_handshake(version, correlation_id, names, code), act
        assert header.api_key == SASL_AUTHENTICATE
        assert self.sasl is not None
        message = wire.read_sasl_authenticate(header)
        code, text, reply, lifetime = received.connection.sasl.authenticate(self.sasl, message)
        return wire.write_sasl_authenticate(version, correlation_id, reply, lifetime, code, text), act

    def _address(self, node_id: int) -> Broker:
        node = self.nodes[node_id]
        return (node_id, *self.advertised.get(node_id, (node.host, node.port)))

    def _metadata(
        self,
        version: int,
        correlation_id: int,
        names: list[str] | None,
        create: bool,
        rights: bool,
        act: Act,
    ) -> bytes:
        answers = []
        for name in list(self.topics) if names is None else names:
            if name not in self.topics and self.auto_create and create:
                self.create_topic(name, self.auto_create).first_errors.append(LEADER_NOT_AVAILABLE)
            topic = self.topics.get(name)
            if topic is None:
                answers.append(wire.TopicAnswer(name, error=UNKNOWN_TOPIC))
                continue
            error = topic.first_errors.popleft() if topic.first_errors else topic.error
            partitions = [
                wire.PartitionAnswer(i, p.leader, p.epoch, LEADER_NOT_AVAILABLE if p.leader < 0 else 0)
                for i, p in enumerate(topic.partitions)
            ]
            operations = topic.operations if rights else wire.NOT_ASKED
            answers.append(wire.TopicAnswer(name, topic.id, error, [] if error else partitions, operations))
        brokers = [self._address(node.id) for node in self.nodes.values() if node.id not in self.unlisted]
        error = act.error if isinstance(act.error, int) else 0
        return wire.write_metadata(
            version, correlation_id, brokers, answers, "scripted", error, act.throttle_ms, self.controller
        )

    def _produce(self, received: Received, act: Act) -> bytes:
        request = received.produce
        assert request is not None
        by_id = {topic.id: topic for topic in self.topics.values()}
        answers: Answers = []
        appended: list[tuple[str, int]] = []
        named: set[int] = set()
        for key, partitions in request.topics:
            topic = by_id.get(key) if isinstance(key, uuid.UUID) else self.topics.get(key)
            parts = []
            for index, data in partitions:
                error = self._error_for(received, act, topic, index)
                base_offset, batches = -1, decode_batches(data or b"")
                if not error:
                    assert topic is not None
                    log = topic.partitions[index]
                    base_offset = len(log.records)
                    if act.append:
                        log.batches.extend(batches)
                        appended.append((topic.name, index))
                message = act.message if error and request.api_version >= 8 else None
                answer = PartitionResponse(index, error, base_offset, error_message=message)
                if error == NOT_LEADER and self.tells_leader and request.api_version >= 10 and topic:
                    partition = topic.partitions[index]
                    answer = answer._replace(current_leader=(partition.leader, partition.epoch))
                    named.add(partition.leader)
                parts.append(answer)
            answers.append((key, parts))
        self.coordinator.produced(request.api_version, request.transactional_id, appended)
        if act.edit is not None:
            answers = act.edit(answers)
        return encode_produce_response(
            request.api_version,
            request.correlation_id,
            answers,
            act.throttle_ms,
            [(node.id, node.host, node.port, None) for node in self.nodes.values() if node.id in named],
        )

    def _error_for(self, received: Received, act: Act, topic: TopicModel | None, index: int) -> int:
        if topic is None:
            return UNKNOWN_TOPIC_ID if received.header.version >= 13 else UNKNOWN_TOPIC
        if index >= len(topic.partitions):
            return UNKNOWN_TOPIC
        if topic.partitions[index].leader != received.connection.node.id:
            return NOT_LEADER
        asked = act.error if isinstance(act.error, int) else act.error.get((topic.name, index), 0)
        return asked or topic.partitions[index].error
