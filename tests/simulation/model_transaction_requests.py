"""Handles the requests of transactions in a broker of the model.

Owns authorization, what a version can say, faults, and the responses. Does not own what they mean
(``testing/broker/transactions``, ``testing/broker/group_offsets``), their layout (``tests/scripted``)
or Produce (``model_produce``).
"""

from typing import TYPE_CHECKING

from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker.group_offsets import Offset, TxnOffsetCommit
from cyproducer.testing.broker.homes import GROUP, ID, NOBODY
from cyproducer.testing.broker.transactions import Place, Transactions
from tests.scripted import scripted_transactions as codec
from tests.scripted import scripted_wire as wire_format
from tests.simulation.network import PORT
from tests.simulation.transaction_wire import read_request
from tests.simulation.world import START_NS

if TYPE_CHECKING:
    from tests.simulation.model_broker import Broker, Conversation

UNKNOWN_TOPIC = 3
TOPIC_DENIED, GROUP_DENIED, ID_DENIED = 29, 30, 53
OPERATION_NOT_ATTEMPTED = 55
#: API key -> the first version that knows PRODUCER_FENCED; older ones get INVALID_PRODUCER_EPOCH.
TELLS_FENCED = {
    wire_format.INIT_PRODUCER_ID: 4,
    wire_format.ADD_PARTITIONS_TO_TXN: 2,
    wire_format.ADD_OFFSETS_TO_TXN: 2,
    wire_format.END_TXN: 2,
}
#: API key -> the first version that knows TRANSACTION_ABORTABLE.
TELLS_ABORTABLE = {wire_format.ADD_OFFSETS_TO_TXN: 4, wire_format.END_TXN: 4, wire_format.INIT_PRODUCER_ID: 5}


def answer_init_producer_id(
    broker: "Broker", conversation: "Conversation", header: wire_format.Header
) -> None:
    """Handles InitProducerId with a transactional id."""
    transactions = _transactions_of(broker)
    transactional_id, timeout_ms, producer_id, epoch = wire_format.read_init_producer_id(header)
    assert transactional_id is not None

    def told(code: int, new_id: int = -1, new_epoch: int = -1) -> None:
        code = _sayable(header.api_key, header.version, code)
        broker.world.say(
            f"broker {broker.node} answers InitProducerId of {transactional_id} with identity "
            f"({producer_id}, {epoch}): error {code}, identity ({new_id}, {new_epoch})"
        )
        conversation.answer(
            wire_format.write_init_producer_id(header.version, header.correlation_id, new_id, new_epoch, code)
        )

    code = _refusal(broker, transactions, header.api_key, header.version, transactional_id)
    if code:
        told(code)
    else:
        transactions.init_producer_id(transactional_id, timeout_ms, producer_id, epoch, told)


def answer_transactions(broker: "Broker", conversation: "Conversation", frame: bytes) -> None:
    """Handles any other request of transactions."""
    header, request = read_request(frame)
    low, high = broker.manners.versions[header.api_key]
    assert low <= header.version <= high, f"version {header.version} of API {header.api_key} is not supported"
    work = _Work(broker, conversation, header)
    if isinstance(request, codec.FindCoordinator):
        work.find_coordinator(request)
    elif isinstance(request, codec.AddPartitions):
        work.add_partitions(request)
    elif isinstance(request, codec.AddOffsets):
        work.add_offsets(request)
    elif isinstance(request, codec.EndTxn):
        work.end(request)
    elif isinstance(request, codec.CommitOffsets):
        work.commit_offsets(request)
    else:
        assert isinstance(request, codec.DescribeTransactions)
        work.describe(request)


def _transactions_of(broker: "Broker") -> Transactions:
    assert broker.transactions is not None
    return broker.transactions


def _sayable(api_key: int, version: int, code: int) -> int:
    """Returns a code that a version knows."""
    if code == ErrorCode.PRODUCER_FENCED and version < TELLS_FENCED.get(api_key, 0):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def _refusal(
    broker: "Broker", transactions: Transactions, api_key: int, version: int, transactional_id: str
) -> int:
    """Returns why a request to an id's coordinator is refused, or NO_ERROR."""
    if (ID, transactional_id) in transactions.denied:
        return ID_DENIED
    code = transactions.homes.code(broker.node, transactions.of(transactional_id).home)
    manners = transactions.manners
    if not code and manners.faults and broker.world.chance(manners.fault_rate):
        code = broker.world.random.choice(manners.faults)
        if code == ErrorCode.TRANSACTION_ABORTABLE and version < TELLS_ABORTABLE.get(api_key, 1 << 15):
            code = ErrorCode.CONCURRENT_TRANSACTIONS
    return code


class _Work:
    """One request, and the response to it."""

    def __init__(self, broker: "Broker", conversation: "Conversation", header: wire_format.Header) -> None:
        self.broker = broker
        self.world = broker.world
        self.conversation = conversation
        self.header = header
        self.transactions = _transactions_of(broker)

    def _say(self, request: codec.Request, answer: object) -> None:
        if self.world.tracing:
            lost = " to a closed connection" if self.conversation.is_gone else ""
            version = self.header.version
            self.world.say(f"broker {self.broker.node} answers{lost} {request} v{version}: {answer}")

    def _may_use(self, transactional_id: str) -> int:
        return _refusal(
            self.broker, self.transactions, self.header.api_key, self.header.version, transactional_id
        )

    def find_coordinator(self, request: codec.FindCoordinator) -> None:
        node, error, message = self._find(request.key_type, request.key)
        self._say(request, (node, error))
        place = (-1, "", -1) if error else (node, f"b{node}", PORT)
        self.conversation.answer(
            codec.write_find_coordinator(self.header, request.key, place, error, message)
        )

    def _find(self, key_type: int, key: str) -> tuple[int, int, str | None]:
        """Returns the node of a coordinator, or an error code and its text."""
        if key_type not in (codec.GROUP, codec.TRANSACTION) or (key_type == codec.TRANSACTION and not key):
            return -1, ErrorCode.INVALID_REQUEST, "no such type of key"
        kind = ID if key_type == codec.TRANSACTION else GROUP
        if (kind, key) in self.transactions.denied:
            return -1, ID_DENIED if kind == ID else GROUP_DENIED, "denied"
        manners = self.transactions.manners
        if manners.makes_topics:
            manners.makes_topics = False
            return -1, ErrorCode.COORDINATOR_NOT_AVAILABLE, "the topic is being made"
        node = self.transactions.homes.home(kind, key).views[self.broker.node]
        return node, ErrorCode.COORDINATOR_NOT_AVAILABLE if node == NOBODY else 0, None

    def add_partitions(self, request: codec.AddPartitions) -> None:
        def told(code: int) -> None:
            code = _sayable(self.header.api_key, self.header.version, code)
            answer(dict.fromkeys(request.partitions, code))

        def answer(codes: dict[Place, int]) -> None:
            self._say(request, codes)
            self.conversation.answer(codec.write_partition_errors(self.header, codes))

        if code := self._may_use(request.transactional_id):
            told(code)
            return
        codes = {place: self._topic_refusal(place) for place in request.partitions}
        if any(codes.values()):
            # Nothing is added, and those that could have been are told so.
            answer({place: code or OPERATION_NOT_ATTEMPTED for place, code in codes.items()})
            return
        self.transactions.add(
            request.transactional_id, request.producer_id, request.epoch, request.partitions, False, told
        )

    def _topic_refusal(self, place: Place) -> int:
        if ("topic", place[0]) in self.transactions.denied:
            return TOPIC_DENIED
        topic = self.broker.cluster.existing(place[0])
        return ErrorCode.NO_ERROR if topic is not None and place[1] < len(topic.partitions) else UNKNOWN_TOPIC

    def add_offsets(self, request: codec.AddOffsets) -> None:
        def told(code: int) -> None:
            code = _sayable(self.header.api_key, self.header.version, code)
            self._say(request, code)
            self.conversation.answer(codec.write_error(self.header, code))

        if code := self._may_use(request.transactional_id):
            told(code)
            return
        if (GROUP, request.group_id) in self.transactions.denied:
            told(GROUP_DENIED)
            return
        assert self.transactions.offsets is not None
        place = self.transactions.offsets.group(request.group_id).place
        self.transactions.add(
            request.transactional_id, request.producer_id, request.epoch, [place], False, told
        )

    def end(self, request: codec.EndTxn) -> None:
        version = self.header.version

        def told(code: int, producer_id: int = -1, epoch: int = -1) -> None:
            code = _sayable(self.header.api_key, version, code)
            self._say(request, (code, producer_id, epoch))
            self.conversation.answer(
                codec.write_identity(self.header, (producer_id, epoch), code)
                if version >= 5
                else codec.write_error(self.header, code)
            )

        if code := self._may_use(request.transactional_id):
            told(code)
            return
        self.transactions.end(
            request.transactional_id,
            request.producer_id,
            request.epoch,
            request.committed,
            version >= 5,
            told,
        )

    def commit_offsets(self, request: codec.CommitOffsets) -> None:
        denied = self.transactions.denied
        manners = self.transactions.manners
        group, generation, member, instance = request.group
        codes = {place: self._topic_refusal(place) for place in request.offsets}
        allowed = [place for place, code in codes.items() if not code]

        def told(code: int) -> None:
            codes.update(dict.fromkeys(allowed, code))
            self._say(request, codes)
            self.conversation.answer(codec.write_partition_errors(self.header, codes))

        if (ID, request.transactional_id) in denied or (GROUP, group) in denied:
            allowed = list(codes)
            told(ID_DENIED if (ID, request.transactional_id) in denied else GROUP_DENIED)
        elif manners.faults and self.world.chance(manners.fault_rate):
            told(
                self.world.random.choice(
                    (
                        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                        ErrorCode.COORDINATOR_NOT_AVAILABLE,
                        ErrorCode.NOT_COORDINATOR,
                        ErrorCode.CONCURRENT_TRANSACTIONS,
                    )
                )
            )
        elif not allowed:
            told(ErrorCode.NO_ERROR)
        else:
            assert self.transactions.offsets is not None
            offsets = {
                place: Offset(
                    each.offset, -1 if each.leader_epoch is None else each.leader_epoch, each.metadata
                )
                for place, each in request.offsets.items()
                if place in allowed
            }
            self.transactions.offsets.commit(
                self.broker.node,
                self.header.version,
                TxnOffsetCommit(
                    request.transactional_id,
                    group,
                    request.producer_id,
                    request.epoch,
                    generation,
                    member,
                    instance,
                    offsets,
                ),
                told,
            )

    def describe(self, request: codec.DescribeTransactions) -> None:
        found = [self._describe(transactional_id) for transactional_id in request.transactional_ids]
        self._say(request, found)
        self.conversation.answer(codec.write_descriptions(self.header, found))

    def _describe(self, transactional_id: str) -> codec.Description:
        def refused(code: int) -> codec.Description:
            return codec.Description(code, transactional_id, "", 0, -1, -1, -1, {})

        transactions = self.transactions
        if (ID, transactional_id) in transactions.denied:
            return refused(ID_DENIED)
        code = transactions.homes.code(self.broker.node, transactions.of(transactional_id).home)
        if code:
            return refused(code)
        state = transactions.describe(transactional_id)
        if isinstance(state, int):
            return refused(state)
        start_ms = -1 if state.started_ns < 0 else (state.started_ns - START_NS) // 1_000_000
        topics: dict[str, list[int]] = {}
        for name, index in sorted(state.places):
            topics.setdefault(name, []).append(index)
        return codec.Description(
            0,
            transactional_id,
            state.name,
            state.timeout_ms,
            start_ms,
            state.producer_id,
            state.epoch,
            topics,
        )
