"""Asks the brokers of a `KafkaCluster` about transactions, and sets the level of their feature
``transaction.version``.

Owns one connection per request, to the node that the request is for: nothing is kept while nodes die. Written
from the Kafka protocol guide (ApiVersions v3, FindCoordinator v3, DescribeTransactions v0, ListTransactions
v0, UpdateFeatures v1) and KIP-584 (features). Shares no code with the package.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.reference_wire import Reader, encode_array, encode_string
from tools.harness.until import looks

T = TypeVar("T")

TRANSACTION_PROPERTIES: Mapping[str, object] = {
    # The default, ten seconds, would be the shortest time until a broker notices a timeout.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    # Consumers that die leave their group soon, in both protocols of groups.
    "group.min.session.timeout.ms": 500,
    "group.consumer.min.session.timeout.ms": 500,
    "group.consumer.session.timeout.ms": 2_000,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 300,
}
"""Broker properties for tests of transactions. Replication and number of partitions of the topics of
transactions and of offsets are those that `KafkaCluster` sets."""

FEATURE = "transaction.version"
LEVELS = (2, 1, 0)
"""The levels of ``transaction.version`` (KIP-890): with 2 clients use the protocol's second version, with 1
and 0 the first; 0 is written as the feature's absence."""

API_VERSIONS, FIND_COORDINATOR, UPDATE_FEATURES, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 18, 10, 57, 65, 66
GROUP, TRANSACTION = 0, 1
FINALIZED_FEATURES = 2
"""The tag in a response to ApiVersions."""
UPGRADE, SAFE_DOWNGRADE = 1, 2
COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16
TRANSACTIONAL_ID_NOT_FOUND = 105
COMING = (COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR)
ONGOING = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
"""The states in which a transaction is not over."""
PATIENCE_S = 40.0
TIMEOUT_S = 5.0


class TransactionState(NamedTuple):
    """A transactional id, as its coordinator describes it."""

    coordinator: int
    """The id of the coordinator's node."""
    state: str
    """``Empty``, ``Ongoing``, ``PrepareCommit``, ``CompleteCommit``, ..."""
    timeout_ms: int
    start_ms: int
    """-1 if no transaction is open."""
    producer_id: int
    epoch: int
    partitions: frozenset[tuple[str, int]]
    """Topic and partition of those that were added, and have no marker yet."""


class BrokerRefusedError(RuntimeError):
    """A broker answered with an error code, ``code``."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(f"{what}: error code {code}")
        self.code = code


class Transactions:
    """The transactional side of a cluster. Any thread may use it.

    All methods wait until nodes that just died are replaced, `PATIENCE_S` seconds at most.

    Raises:
        TimeoutError: No node gave an answer in time.
        BrokerRefusedError: A broker answered with an error that does not pass.
    """

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster

    def levels(self) -> dict[int, int]:
        """Returns the level of ``transaction.version`` that each running node knows."""
        return {node: self._level(node) for node in self._running()}

    def set_level(self, level: int) -> None:
        """Sets the level of ``transaction.version``. Returns once all running nodes know it."""
        now = set(self.levels().values())
        if now == {level}:
            return
        kind = UPGRADE if level > max(now) else SAFE_DOWNGRADE
        change = encode_string(FEATURE, True) + struct.pack(">hbb", level, kind, 0)
        body = struct.pack(">i", 10_000) + encode_array([change], True, bytes) + b"\x00\x00"

        def parse(reader: Reader) -> None:
            reader.int32()
            _check(f"{FEATURE}={level}", reader.int16(), reader.string(True))

        self._ask(lambda: self._request(self._running()[0], UPDATE_FEATURES, 1, body, parse))
        for _ in looks(PATIENCE_S):
            if set(self.levels().values()) == {level}:
                return
        raise TimeoutError(f"{FEATURE} is to be {level}, but the nodes know {self.levels()}")

    def coordinator(self, transactional_id: str) -> int:
        """Returns the node id of a transactional id's coordinator."""
        return self._coordinator(transactional_id, TRANSACTION)

    def group_coordinator(self, group: str) -> int:
        """Returns the node id of a consumer group's coordinator."""
        return self._coordinator(group, GROUP)

    def describe(self, transactional_id: str) -> TransactionState:
        """Returns the state of a transactional id.

        Raises:
            BrokerRefusedError: The id is unknown (`TRANSACTIONAL_ID_NOT_FOUND`).
        """
        body = encode_array([transactional_id], True, lambda name: encode_string(name, True)) + b"\x00"

        def ask() -> TransactionState:
            node = self._found(transactional_id, TRANSACTION)

            def parse(reader: Reader) -> TransactionState:
                reader.int32()
                (found,) = reader.array(True, lambda: _state(reader, node))
                return found

            return self._request(node, DESCRIBE_TRANSACTIONS, 0, body, parse)

        return self._ask(ask)

    def open(self) -> dict[str, str]:
        """Returns the state of each transactional id whose transaction is not over."""

        def parse(reader: Reader) -> dict[str, str]:
            reader.int32()
            _check("ListTransactions", reader.int16())
            reader.array(True, lambda: reader.string(True))
            return dict(reader.array(True, lambda: _listed(reader)))

        # No filter of states and none of producer ids.
        body = b"\x01\x01\x00"
        found: dict[str, str] = {}
        for node in self._running():
            ask = functools.partial(self._request, node, LIST_TRANSACTIONS, 0, body, parse)
            found |= self._ask(ask)
        return {name: state for name, state in found.items() if state in ONGOING}

    def await_state(
        self, transactional_id: str, *states: str, patience_s: float = PATIENCE_S
    ) -> TransactionState:
        """Waits until a transactional id is in one of the states, and returns it."""
        found = None
        for _ in looks(patience_s, 0.02):
            found = self.describe(transactional_id)
            if found.state in states:
                return found
        raise TimeoutError(f"{transactional_id} is not in {states} after {patience_s} s, but {found}")

    def _running(self) -> list[int]:
        return [node for node in self._cluster.node_ids if self._cluster.pid(node) is not None]

    def _level(self, node: int) -> int:
        body = encode_string("cyproducer-tests", True) + encode_string("1", True) + b"\x00"

        def parse(reader: Reader) -> int:
            _check("ApiVersions", reader.int16())
            reader.array(True, lambda: reader.take(7))
            reader.int32()
            tags = {}
            for _ in range(reader.uvarint()):
                tag = reader.uvarint()
                tags[tag] = reader.take(reader.uvarint())
            # Without finalized features the tag is missing.
            finalized = Reader(tags.get(FINALIZED_FEATURES, b"\x01"))
            return dict(finalized.array(True, lambda: _feature(finalized))).get(FEATURE, 0)

        return self._ask(lambda: self._request(node, API_VERSIONS, 3, body, parse))

    def _coordinator(self, name: str, kind: int) -> int:
        return self._ask(lambda: self._found(name, kind))

    def _found(self, name: str, kind: int) -> int:
        """Asks once for the coordinator."""
        body = encode_string(name, True) + struct.pack(">bb", kind, 0)

        def parse(reader: Reader) -> int:
            reader.int32()
            _check(f"the coordinator of {name}", reader.int16(), reader.string(True))
            return reader.int32()

        node = self._request(self._running()[0], FIND_COORDINATOR, 3, body, parse)
        if self._cluster.pid(node) is None:
            # It was killed, and the others have not noticed yet.
            raise ConnectionRefusedError(f"node {node} is down")
        return node

    def _ask(self, ask: Callable[[], T]) -> T:
        last: Exception | None = None
        for _ in looks(PATIENCE_S):
            try:
                return ask()
            except OSError as error:
                last = error
            except BrokerRefusedError as error:
                if error.code not in COMING:
                    raise
                last = error
        raise TimeoutError(f"no answer within {PATIENCE_S} s; the last error: {last}")

    def _request(self, node: int, api: int, version: int, body: bytes, parse: Callable[[Reader], T]) -> T:
        """Sends one request to a node, in a flexible version, and returns what its answer says."""
        # API key, version, correlation id, client id, no tags.
        head = struct.pack(">hhi", api, version, 1) + encode_string("transactions", False) + b"\x00"
        address = ("127.0.0.1", self._cluster.port(node))
        with (
            socket.create_connection(address, TIMEOUT_S) as connection,
            contextlib.closing(connection.makefile("rb")) as answers,
        ):
            connection.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
            size = answers.read(4)
            answer = answers.read(int.from_bytes(size))
        if len(size) < 4 or len(answer) < int.from_bytes(size):
            raise ConnectionResetError(f"node {node} closed the connection")
        # A correlation id, and no tags: those are missing in the header of ApiVersions.
        reader = Reader(answer[4 if api == API_VERSIONS else 5 :])
        return parse(reader)


def _check(what: str, code: int, message: str | None = None) -> None:
    if code:
        raise BrokerRefusedError(f"{what} ({message})" if message else what, code)


def _int64(reader: Reader) -> int:
    return int.from_bytes(reader.take(8), signed=True)


def _feature(reader: Reader) -> tuple[str | None, int]:
    name, level = reader.string(True), reader.int16()
    reader.int16()
    reader.no_tags(True)
    return name, level


def _listed(reader: Reader) -> tuple[str, str]:
    name = reader.string(True) or ""
    _int64(reader)
    state = reader.string(True) or ""
    reader.no_tags(True)
    return name, state


def _state(reader: Reader, node: int) -> TransactionState:
    code, name = reader.int16(), reader.string(True)
    state, timeout_ms, start_ms = reader.string(True) or "", reader.int32(), _int64(reader)
    producer_id, epoch = _int64(reader), reader.int16()
    partitions: set[tuple[str, int]] = set()

    def topic() -> None:
        its_name = reader.string(True) or ""
        partitions.update((its_name, partition) for partition in reader.array(True, reader.int32))
        reader.no_tags(True)

    reader.array(True, topic)
    reader.no_tags(True)
    _check(f"the state of {name}", code)
    return TransactionState(node, state, timeout_ms, start_ms, producer_id, epoch, frozenset(partitions))
