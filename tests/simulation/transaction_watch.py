"""What a client may send when: watches the requests of all clients as they are written, and the responses.

Owns what each client knows of its transaction, and the rules whose breach no log shows, since brokers answer
such requests as if nothing were wrong. Does not own what brokers make of requests
(``testing/broker/transactions``).

A request counts when its last byte is written, even if it never arrives. Its client is found by the client
id. An abort may also follow a request that was never written whole:

    1. A connection breaks. The client does not know yet.
    2. It sends AddPartitionsToTxn on it. The write fails, or a part of the request is written.
    3. The transaction fails, and is aborted. To the client, a request without a response may have been
       carried out: it sends EndTxn.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker.partitions import Cluster
from cyproducer.testing.broker.transactions import ONGOING, Transactions
from tests.scripted import scripted_transactions as codec
from tests.scripted.scripted_wire import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    read_header,
    read_init_producer_id,
)
from tests.simulation import transaction_wire
from tests.simulation.model_produce import header_of, topic_of
from tests.simulation.network import Network, Wire
from tools.harness.reference_produce import Topic, decode_produce_request
from tools.harness.reference_wire import Reader

SECOND_VERSION = {PRODUCE: 12, END_TXN: 5, TXN_OFFSET_COMMIT: 5}
"""API key -> the first version of the protocol's second version."""
ONLY_FIRST_VERSION = (ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN)
FIRST_FLEXIBLE = {INIT_PRODUCER_ID: 2, END_TXN: 3}
UNDECIDED = (-1, 7, 14, 15, 16, ErrorCode.CONCURRENT_TRANSACTIONS)
"""Errors of EndTxn(commit) after which the transaction may still be committed."""

_THROTTLE_AND_ERROR = struct.Struct(">ih")
_IDENTITY = struct.Struct(">qh")


@dataclass
class Unanswered:
    """A request without a response."""

    key: int
    version: int
    request: codec.Request | None = None


@dataclass
class View:
    """What a client knows."""

    client_id: str
    identities: set[tuple[int, int]] = field(default_factory=set)
    #: It has sent something that may have added a partition or a group to the open transaction.
    may_have_added: bool = False
    #: It has sent EndTxn(commit) for the open transaction, and the outcome is open.
    may_have_committed: bool = False
    unanswered: dict[tuple[Wire, int], Unanswered] = field(default_factory=dict)
    #: What brokers have told of ``transaction.version``: the newest features' epoch, the level, and when.
    features_epoch: int = -1
    level: int = 2
    level_told_ns: int = 0
    #: Group, generation, member and instance of its offsets; without a member before version 3.
    memberships: set[tuple[str, int, str, str | None]] = field(default_factory=set)


class Watch:
    """The rules; see the module docstring. Breaches are recorded in ``Transactions.violations``."""

    def __init__(self, transactions: Transactions, cluster: Cluster, network: Network) -> None:
        self.transactions = transactions
        self.world = network.world
        self.cluster = cluster
        self.views: dict[str, View] = {}
        #: Whether ``transaction.version`` changes in this history.
        self.level_changes = False
        #: When a client's producer failed for good.
        self.failed_ns: Callable[[str], int | None] = lambda client_id: None
        #: Whether a client has tried to send something that adds a partition or a group.
        self.has_tried: Callable[[str], bool] = lambda client_id: False
        network.on_request.append(self.on_request)
        network.on_response.append(self.on_response)

    def view(self, client_id: str) -> View:
        return self.views.setdefault(client_id, View(client_id))

    def _accuse(self, view: View, what: str) -> None:
        self.transactions.accuse(f"{view.client_id} {what}")

    # Requests

    def on_request(self, wire: Wire, frame: bytes, begun_ns: int) -> None:
        key, version, correlation_id = struct.unpack_from(">hhi", frame, 4)
        if key not in (PRODUCE, INIT_PRODUCER_ID, API_VERSIONS) and key not in transaction_wire.VERSIONS:
            return
        view = self.view(Reader(frame[12:]).string(False) or "")
        sent = Unanswered(key, version)
        if key in transaction_wire.VERSIONS:
            sent.request = transaction_wire.read_request(frame)[1]
        failed_ns = self.failed_ns(view.client_id)
        if failed_ns is not None and begun_ns > failed_ns and key != API_VERSIONS:
            self._accuse(view, f"sends API {key} after its producer has failed for good")
        self._check_level(view, key, version, begun_ns)
        if key == PRODUCE:
            self._produce(view, version, frame)
        elif key == INIT_PRODUCER_ID:
            self._init(view, frame)
        elif isinstance(sent.request, codec.EndTxn):
            self._end(view, sent.request)
        elif isinstance(sent.request, codec.AddPartitions | codec.AddOffsets) or (
            isinstance(sent.request, codec.CommitOffsets) and version >= SECOND_VERSION[key]
        ):
            view.may_have_added = True
        if isinstance(sent.request, codec.CommitOffsets) and version >= 3:
            view.memberships.add(sent.request.group)
        view.unanswered[wire, correlation_id] = sent

    def _check_level(self, view: View, key: int, version: int, begun_ns: int) -> None:
        """The protocol's second version is used if, and only if, the level is 2 (KIP-890)."""
        if key not in SECOND_VERSION and key not in ONLY_FIRST_VERSION:
            return
        is_second = version >= SECOND_VERSION.get(key, 1 << 15)
        level = self.transactions.features.level
        if not self.level_changes and is_second != (level == 2):
            self._accuse(view, f"sends version {version} of API {key} at level {level}")
        if is_second and view.level < 2 and begun_ns > view.level_told_ns:
            self.world.count("requests of the second version at a level that is known to be lower")
            if key == END_TXN:
                self._accuse(view, f"sends version {version} of EndTxn at level {view.level}, which it knows")

    def _produce(self, view: View, version: int, frame: bytes) -> None:
        if version >= SECOND_VERSION[PRODUCE]:
            view.may_have_added = True
            return
        request = decode_produce_request(frame)
        txn = self.transactions.ids.get(request.transactional_id or "")
        if txn is None or txn.state is None or txn.changing:
            return
        state = txn.state
        for topic, partitions in request.topics:
            for index, data in partitions:
                batch, name = header_of(data or b""), self._name(topic)
                if batch is None or (state.producer_id, state.epoch) != (batch.producer_id, batch.epoch):
                    continue
                if state.name != ONGOING or (name, index) not in state.places:
                    self._accuse(view, f"writes to {name}-{index}, which it has not added")

    def _name(self, topic: Topic) -> str:
        if isinstance(topic, str):
            return topic
        found = topic_of(self.cluster, topic)
        return "" if found is None else found.name

    def _init(self, view: View, frame: bytes) -> None:
        transactional_id, _, producer_id, epoch = read_init_producer_id(read_header(frame[4:]))
        txn = self.transactions.ids.get(transactional_id or "")
        state = None if txn is None else txn.state
        if (
            state is not None
            and state.name == ONGOING
            and view.may_have_added
            and (state.producer_id, state.epoch) in view.identities
        ):
            asked = f"InitProducerId({producer_id}, {epoch})"
            self._accuse(view, f"sends {asked} while its own transaction is open")

    def _end(self, view: View, request: codec.EndTxn) -> None:
        if not view.may_have_added and (request.committed or not self.has_tried(view.client_id)):
            self._accuse(view, "sends EndTxn for a transaction that has nothing")
        wires = [wire for (wire, _), sent in view.unanswered.items() if sent.key == PRODUCE and wire.is_open]
        if wires:
            # The client may have closed the connection in the same step.
            self.world.after(0, self._check_unanswered, view, wires)
        if request.committed:
            view.may_have_committed = True
        elif view.may_have_committed:
            self._accuse(view, "sends EndTxn(abort) although EndTxn(commit) may succeed yet")

    def _check_unanswered(self, view: View, wires: list[Wire]) -> None:
        if any(wire.is_open for wire in wires):
            self._accuse(view, "sends EndTxn while a Produce request is unanswered")

    # Responses

    def on_response(self, wire: Wire, frame: bytes) -> None:
        (correlation_id,) = struct.unpack_from(">i", frame, 4)
        for view in self.views.values():
            sent = view.unanswered.pop((wire, correlation_id), None)
            if sent is None:
                continue
            if sent.key in FIRST_FLEXIBLE:
                self._identity_told(view, sent, frame)
            elif sent.key == API_VERSIONS and sent.version >= 3:
                epoch, level = read_level(frame)
                if epoch >= view.features_epoch:
                    view.features_epoch, view.level, view.level_told_ns = epoch, level, self.world.now_ns

    def _identity_told(self, view: View, sent: Unanswered, frame: bytes) -> None:
        at = 8 + (sent.version >= FIRST_FLEXIBLE[sent.key])
        _, code = _THROTTLE_AND_ERROR.unpack_from(frame, at)
        if code == 0:
            view.may_have_added = view.may_have_committed = False
            if sent.key == INIT_PRODUCER_ID or sent.version >= SECOND_VERSION[END_TXN]:
                identity = _IDENTITY.unpack_from(frame, at + _THROTTLE_AND_ERROR.size)
                view.identities.add((identity[0], identity[1]))
        elif sent.key == END_TXN and code not in UNDECIDED:
            view.may_have_committed = False


def read_level(frame: bytes) -> tuple[int, int]:
    """Returns the features' epoch and the level of ``transaction.version`` from ApiVersions, version 3 or
    newer."""
    reader = Reader(frame[8:])
    reader.int16()
    reader.array(True, lambda: reader.take(7))
    reader.int32()
    epoch, level = -1, 0
    for _ in range(reader.uvarint()):
        tag, value = reader.uvarint(), Reader(reader.take(reader.uvarint()))
        if tag == 1:
            epoch = int.from_bytes(value.take(8), "big", signed=True)
        elif tag == 2:
            for _ in range(value.uvarint() - 1):
                name, highest = value.string(True), value.int16()
                value.int16()
                value.no_tags(True)
                if name == "transaction.version":
                    level = highest
    return epoch, level
