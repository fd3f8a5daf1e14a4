"""What a leader of the model does with a Produce request of a transaction before it appends (KIP-890).

Owns the checks of the request as a whole, and asking the coordinator. Does not own appending
(``model_produce``), the log's rules (``testing/broker/partitions``) or the transactions
(``testing/broker/transactions``).

From version 12 on a leader adds the partitions of a request that its log has no open transaction for; up to
version 11 it only asks whether they are added. The connection's next request waits meanwhile. A transaction
that is ended, but whose marker has not arrived, is open in the log: a late batch is appended without asking.
"""

from typing import TYPE_CHECKING, NamedTuple

from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker.homes import ID
from cyproducer.testing.broker.partitions import Guard, Header, Partition
from cyproducer.testing.broker.transactions import ADDS_PARTITIONS, Place, Transactions, produce_code
from tests.simulation.model_produce import (
    NOT_LEADER,
    UNKNOWN_TOPIC,
    UNKNOWN_TOPIC_ID,
    Answer,
    header_of,
    take,
    topic_of,
    wait,
)
from tests.simulation.model_transaction_requests import ID_DENIED, TOPIC_DENIED
from tools.harness.reference_produce import ProduceRequest, Topic

if TYPE_CHECKING:
    from tests.simulation.model_broker import Broker, Conversation


class Part(NamedTuple):
    """A partition's batch in a request."""

    key: Topic
    partition: Partition
    data: bytes
    batch: Header


def answer_transactional_produce(
    broker: "Broker", conversation: "Conversation", request: ProduceRequest
) -> None:
    """Handles a request of a producer with a transactional id; without one, it is a violation."""
    transactions = broker.transactions
    assert transactions is not None
    answer = Answer(broker, conversation, request)
    parts = _parts(broker, transactions, answer)
    if not parts:
        return
    identities = {(part.batch.producer_id, part.batch.epoch) for part in parts}
    if len(identities) > 1:
        transactions.accuse(f"a Produce request has batches of several identities: {sorted(identities)}")
        _refuse(answer, parts, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return
    ((producer_id, epoch),) = identities
    adds = request.api_version >= ADDS_PARTITIONS
    life = broker.life
    unsure = [part for part in parts if not part.partition.has_open(producer_id, epoch)]
    guards: dict[Place, Guard] = {}

    def begin() -> None:
        for part in unsure:
            guards[part.partition.place] = part.partition.guard(part.batch, adds)

    def told(codes: dict[Place, int]) -> None:
        if broker.life != life:
            return
        for part in parts:
            code = produce_code(codes.get(part.partition.place, 0), request.api_version)
            if code:
                answer.put(part.key, part.partition.index, code)
            else:
                guard = guards.get(part.partition.place)
                take(broker, answer, part.key, part.partition, part.data, guard)
        wait(answer)

    if unsure:
        assert request.transactional_id is not None
        places = [part.partition.place for part in unsure]
        transactions.ask(
            broker.node, request.transactional_id, producer_id, epoch, places, adds, adds, told, begin
        )
    else:
        told({})


def _refuse(answer: Answer, parts: list[Part], code: int) -> None:
    for part in parts:
        answer.put(part.key, part.partition.index, code)


def _parts(broker: "Broker", transactions: Transactions, answer: Answer) -> list[Part]:
    """Returns the batches that may be appended, as far as a broker knows without its logs."""
    request, parts = answer.request, []
    for key, partitions in request.topics:
        topic = topic_of(broker.cluster, key)
        for index, data in partitions:
            batch = header_of(data or b"")
            if batch is None:
                raise AssertionError(f"a batch for {key}-{index} has a wrong checksum")
            if topic is None or index >= len(topic.partitions):
                is_id = topic is None and not isinstance(key, str)
                answer.put(key, index, UNKNOWN_TOPIC_ID if is_id else UNKNOWN_TOPIC)
            elif wrong := _wrong(request, batch):
                transactions.accuse(f"a batch for {topic.name}-{index} {wrong}")
                answer.put(key, index, ErrorCode.INVALID_TXN_STATE)
            elif (ID, request.transactional_id) in transactions.denied:
                answer.put(key, index, ID_DENIED)
            elif ("topic", topic.name) in transactions.denied:
                answer.put(key, index, TOPIC_DENIED)
            elif broker.cluster.view(broker.node, topic.partitions[index])[0] != broker.node:
                answer.put(key, index, NOT_LEADER)
            else:
                parts.append(Part(key, topic.partitions[index], data or b"", batch))
    return parts


def _wrong(request: ProduceRequest, batch: Header) -> str:
    """Returns what a client of transactions must not send."""
    if request.transactional_id is None:
        return "comes without a transactional id"
    if not batch.transactional:
        return "lacks the bit that says that it is in a transaction"
    if request.acks != -1:
        return f"comes with acks={request.acks}"
    return "has no producer id" if batch.producer_id < 0 else ""
