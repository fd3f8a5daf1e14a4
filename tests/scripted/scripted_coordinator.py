"""The scripted brokers' coordinators: transactional ids and groups, and the answers to their requests.

They answer like coordinators that never find anything wrong: they do not check identities or states. A test
gives the errors, by the ``Act`` of a request. Does no I/O and has no lock of its own:
``ScriptedCluster.changed`` guards it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cyproducer.structs import OffsetAndMetadata
from tests.scripted import scripted_transactions as wire
from tests.scripted.scripted_model import Act
from tests.scripted.scripted_transactions import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    DescribeTransactions,
    Description,
    EndTxn,
    FindCoordinator,
    InitProducerId,
    ListTransactions,
    Place,
    Request,
)
from tests.scripted.scripted_wire import Header

NOT_COORDINATOR, OPERATION_NOT_ATTEMPTED, TRANSACTIONAL_ID_NOT_FOUND = 16, 55, 105
EMPTY, ONGOING, COMMITTED, ABORTED = "Empty", "Ongoing", "CompleteCommit", "CompleteAbort"
STATES = (EMPTY, ONGOING, "PrepareCommit", "PrepareAbort", COMMITTED, ABORTED, "Dead", "PrepareEpochFence")
Broker = tuple[int, str, int]
"""Node id, host, port."""
NO_BROKER: Broker = (-1, "", -1)
NO_IDENTITY = (-1, -1)
FIRST_PRODUCER_ID = 7
IDEMPOTENT_PRODUCER_ID = 4711
NEXT_IDENTITY = 5
"""The first version of EndTxn that answers the next identity."""
ADDS_BY_ITSELF = 12
"""The first version of Produce that adds its partitions to the transaction (KIP-890)."""


@dataclass
class Transaction:
    """A transactional id, with its current or last transaction."""

    producer_id: int
    epoch: int = -1
    timeout_ms: int = 0
    state: str = EMPTY
    start_time_ms: int = -1
    """Milliseconds since the epoch; the coordinator does not set it."""
    partitions: list[Place] = field(default_factory=list)
    """Those of the current transaction."""
    offsets: dict[str, dict[Place, OffsetAndMetadata]] = field(default_factory=dict)
    """Group -> the offsets that the current transaction commits."""

    def add(self, places: Sequence[Place]) -> None:
        self.state = ONGOING
        self.partitions.extend(place for place in places if place not in self.partitions)

    def end(self, committed: bool) -> None:
        self.state = COMMITTED if committed else ABORTED
        self.start_time_ms = -1
        self.partitions = []
        self.offsets = {}


class Coordinator:
    """What all the brokers of a cluster coordinate. See the module docstring."""

    def __init__(self) -> None:
        self.transactions: dict[str, Transaction] = {}
        """Transactional id -> what is known of it."""
        self.nodes: dict[str, int] = {}
        """Transactional id or group -> its coordinator; others answer NOT_COORDINATOR. Without an entry each
        broker is the coordinator."""
        self.committed: dict[str, dict[Place, OffsetAndMetadata]] = {}
        """Group -> the offsets that committed transactions have committed."""

    def of(self, transactional_id: str) -> Transaction:
        known = self.transactions
        if transactional_id not in known:
            known[transactional_id] = Transaction(FIRST_PRODUCER_ID + len(known))
        return known[transactional_id]

    def produced(self, version: int, transactional_id: str | None, places: Sequence[Place]) -> None:
        """A Produce request has appended to these partitions."""
        if transactional_id is not None and version >= ADDS_BY_ITSELF and places:
            self.of(transactional_id).add(places)

    def answer(
        self, node_id: int, header: Header, request: Request, act: Act, broker: Callable[[int], Broker]
    ) -> bytes:
        """Returns the whole response; the state changes unless it has an error.

        ``broker``: returns node id, host and port of a node.
        """
        throttle_ms = act.throttle_ms
        error = act.error if isinstance(act.error, int) else 0
        if not error and self._is_elsewhere(_coordinated(request), node_id):
            error = NOT_COORDINATOR
        match request:
            case FindCoordinator():
                found = NO_BROKER if error else broker(self.nodes.get(request.key, node_id))
                return wire.write_find_coordinator(
                    header, request.key, found, error, act.message, throttle_ms
                )
            case InitProducerId():
                identity = NO_IDENTITY if error else self._init(request, act.identity)
                return wire.write_identity(header, identity, error, throttle_ms)
            case AddPartitions():
                errors = self._add(request, error, {} if isinstance(act.error, int) else act.error)
                return wire.write_partition_errors(header, errors, throttle_ms)
            case AddOffsets():
                if not error:
                    self.of(request.transactional_id).add([])
                return wire.write_error(header, error, throttle_ms)
            case CommitOffsets():
                errors = self._commit(request, error, {} if isinstance(act.error, int) else act.error)
                return wire.write_partition_errors(header, errors, throttle_ms)
            case EndTxn():
                identity = NO_IDENTITY
                if not error:
                    identity = self._end(request, act.identity, header.version >= NEXT_IDENTITY)
                if header.version >= NEXT_IDENTITY:
                    return wire.write_identity(header, identity, error, throttle_ms)
                return wire.write_error(header, error, throttle_ms)
            case DescribeTransactions():
                descriptions = [self._describe(each, node_id, error) for each in request.transactional_ids]
                return wire.write_descriptions(header, descriptions, throttle_ms)
            case ListTransactions():
                unknown = [state for state in request.states if state not in STATES]
                listing = [] if error else self._list(request, node_id)
                return wire.write_listing(header, listing, unknown, error, throttle_ms)

    def _is_elsewhere(self, key: str | None, node_id: int) -> bool:
        return key is not None and self.nodes.get(key, node_id) != node_id

    def _init(self, request: InitProducerId, identity: tuple[int, int] | None) -> tuple[int, int]:
        if request.transactional_id is None:
            return identity or (IDEMPOTENT_PRODUCER_ID, 0)
        known = self.of(request.transactional_id)
        if request.producer_id >= 0:
            following = request.producer_id, request.epoch + 1
        else:
            following = known.producer_id, known.epoch + 1
        known.end(False)
        known.state = EMPTY
        known.timeout_ms = request.timeout_ms
        known.producer_id, known.epoch = identity or following
        return known.producer_id, known.epoch

    def _add(self, request: AddPartitions, error: int, errors: Mapping[Place, int]) -> dict[Place, int]:
        places = request.partitions
        if error:
            return dict.fromkeys(places, error)
        if any(errors.get(place) for place in places):
            # One bad partition, and none is added.
            return {place: errors.get(place, OPERATION_NOT_ATTEMPTED) for place in places}
        self.of(request.transactional_id).add(places)
        return dict.fromkeys(places, 0)

    def _commit(self, request: CommitOffsets, error: int, errors: Mapping[Place, int]) -> dict[Place, int]:
        answers = {place: error or errors.get(place, 0) for place in request.offsets}
        taken = {place: offset for place, offset in request.offsets.items() if not answers[place]}
        if taken:
            known = self.of(request.transactional_id)
            known.add([])
            known.offsets.setdefault(request.group.group_id, {}).update(taken)
        return answers

    def _end(self, request: EndTxn, identity: tuple[int, int] | None, bumps: bool) -> tuple[int, int]:
        known = self.of(request.transactional_id)
        if request.committed:
            for group, offsets in known.offsets.items():
                self.committed.setdefault(group, {}).update(offsets)
        known.end(request.committed)
        if bumps:
            # Of the request: one that is repeated gets the same answer.
            known.producer_id, known.epoch = identity or (request.producer_id, request.epoch + 1)
        return known.producer_id, known.epoch

    def _describe(self, transactional_id: str, node_id: int, error: int) -> Description:
        known = self.transactions.get(transactional_id)
        if not error and self._is_elsewhere(transactional_id, node_id):
            error = NOT_COORDINATOR
        if error or known is None:
            return Description(error or TRANSACTIONAL_ID_NOT_FOUND, transactional_id, "", 0, -1, -1, -1, {})
        topics: dict[str, list[int]] = {}
        for topic, index in known.partitions:
            topics.setdefault(topic, []).append(index)
        return Description(
            0,
            transactional_id,
            known.state,
            known.timeout_ms,
            known.start_time_ms,
            known.producer_id,
            known.epoch,
            topics,
        )

    def _list(self, request: ListTransactions, node_id: int) -> list[tuple[str, int, str]]:
        """Without the filter of durations: there is no clock."""
        return [
            (transactional_id, known.producer_id, known.state)
            for transactional_id, known in self.transactions.items()
            if not self._is_elsewhere(transactional_id, node_id)
            and (not request.states or known.state in request.states)
            and (not request.producer_ids or known.producer_id in request.producer_ids)
            and (not request.pattern or re.fullmatch(request.pattern, transactional_id))
        ]


def _coordinated(request: Request) -> str | None:
    """The transactional id or group whose coordinator must be asked; None: any broker answers."""
    match request:
        case InitProducerId() | AddPartitions() | AddOffsets() | EndTxn():
            return request.transactional_id
        case CommitOffsets():
            return request.group.group_id
    return None
