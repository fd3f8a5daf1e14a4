"""Produce of an embedded cluster.

Owns the checks of a batch in Kafka's order, appending it, and the response. Does not own the rules for
sequences and open transactions (``partitions``) or the responses of coordinators (``transactions``).

If the log of a partition has no open transaction of the producer, the leader requests from the coordinator to
add the partition to the transaction (from version 12 on), or only to verify that it was added (up to version
11; KIP-890). In the meantime, the connection's next request waits.
"""

import itertools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cyproducer.errors import KafkaError
from cyproducer.errors.error_code import ErrorCode
from cyproducer.records.codecs import BY_NAME
from cyproducer.testing.broker import batches, retention
from cyproducer.testing.broker.fetch_sessions import Key
from cyproducer.testing.broker.partitions import Guard, Header, Partition, Topic
from cyproducer.testing.broker.server import LATER, Call
from cyproducer.testing.broker.transactions import ADDS_PARTITIONS, Place, produce_code
from cyproducer.testing.broker.world import NS_PER_MS
from cyproducer.wire.messages import PRODUCE

if TYPE_CHECKING:
    from cyproducer.testing.broker.cluster import EmbeddedCluster

NAMES_LEADER: Final = 10


class Part(NamedTuple):
    """A partition's batch that has passed the checks that do not need the log."""

    key: Key
    partition: Partition
    data: bytes
    batch: Header


class Refusal(NamedTuple):
    """Why a partition's batch is not taken. ``records``: the refused records of the batch, by index, with the
    reason (KIP-467)."""

    code: int
    text: str | None = None
    records: tuple[tuple[int, str], ...] = ()


class Answer:
    """Collects the parts of a response, one for each partition, and sends it."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.parts: dict[Key, Any] = {}
        self.missing = sum(len(topic.partition_data) for topic in call.request.topic_data)

    def put(
        self,
        key: Key,
        code: int,
        offset: int = -1,
        stamp_ms: int = -1,
        start: int = -1,
        text: str | None = None,
        records: tuple[tuple[int, str], ...] = (),
    ) -> None:
        """Sets the part of a partition. The last part sends the response."""
        leader = PRODUCE.response.LeaderIdAndEpoch()
        call = self.call
        if code == ErrorCode.NOT_LEADER_FOR_PARTITION and call.version >= NAMES_LEADER:
            topic = call.cluster.topic(key[0])
            if topic is not None and key[1] < len(topic.partitions):
                leader = PRODUCE.response.LeaderIdAndEpoch(
                    *call.cluster.topics.view(call.node.id, topic.partitions[key[1]])
                )
        errors = [PRODUCE.response.BatchIndexAndErrorMessage(*each) for each in records]
        self.parts[key] = PRODUCE.response.PartitionProduceResponse(
            key[1], code, -1 if code else offset, -1 if code else stamp_ms, start, errors, text, leader
        )
        self.missing -= 1
        if self.missing == 0:
            self.send()

    def send(self) -> None:
        """Responds, once all parts are known."""
        call, response = self.call, PRODUCE.response
        if call.request.acks == 0:
            if any(part.error_code for part in self.parts.values()):
                # With acks=0, there is no other way to report the error.
                call.hang_up()
            else:
                call.answer(None)
            return
        topics = []
        for topic in call.request.topic_data:
            name = named(call, topic)
            parts = [self.parts[name, each.index] for each in topic.partition_data]
            topics.append(response.TopicProduceResponse(topic.name, topic.topic_id, parts))
        nodes = []
        if call.version >= NAMES_LEADER:
            leaders = {part.current_leader.leader_id for part in self.parts.values()}
            nodes = [
                response.NodeEndpoint(node.id, node.host, node.port, node.rack)
                for node in call.cluster.nodes.values()
                if node.id in leaders
            ]
        call.answer(response(topics, 0, nodes))


def named(call: Call, topic: Any) -> str | bytes:
    """Returns the id or the name of a topic, whichever a request of this version uses."""
    return topic.topic_id if call.version >= 13 else topic.name  # type: ignore[no-any-return]


def produce(call: Call) -> Any:
    request = call.request
    answer = Answer(call)
    if not answer.missing:
        answer.send()
        return LATER
    parts = []
    for topic in request.topic_data:
        name = named(call, topic)
        found = call.cluster.topic(name)
        for each in topic.partition_data:
            key = (name, each.index)
            refusal = _refusal(call, name, found, each)
            if refusal is not None:
                answer.put(key, refusal.code, text=refusal.text, records=refusal.records)
            else:
                assert found is not None
                header = batches.read(each.records).header
                parts.append(Part(key, found.partitions[each.index], each.records, header))
    if parts and request.transactional_id is not None:
        _in_transaction(call, answer, parts)
    else:
        for part in parts:
            _take(call, answer, part, None)
    return LATER


def _refusal(call: Call, name: str | bytes, topic: Topic | None, given: Any) -> Refusal | None:
    """Returns why a partition's batch is refused, or None. Does not read the log."""
    request, cluster = call.request, call.cluster
    if request.acks not in (-1, 0, 1):
        return Refusal(ErrorCode.INVALID_REQUIRED_ACKS)
    if topic is None:
        by_id = isinstance(name, bytes)
        return Refusal(ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    transactional_id = request.transactional_id
    in_sync = sum(node.is_up for node in cluster.nodes.values())
    if request.acks == -1 and cluster.config(topic.name, "min.insync.replicas") > in_sync:
        return Refusal(ErrorCode.NOT_ENOUGH_REPLICAS)
    if transactional_id is not None and not call.allowed("WRITE", "transactional_id", transactional_id):
        return Refusal(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not call.allowed("WRITE", "topic", topic.name):
        return Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if code := call.fault(topic.name, given.index):
        return Refusal(code)
    if not 0 <= given.index < len(topic.partitions):
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic.partitions[given.index].leader != call.node.id:
        return Refusal(ErrorCode.NOT_LEADER_FOR_PARTITION)
    data = given.records
    if problem := batches.problem_of(data):
        return Refusal(ErrorCode.INVALID_RECORD, problem)
    if too_large := _size_refusal(cluster, topic.name, data):
        return too_large
    if not batches.has_right_checksum(data):
        return Refusal(ErrorCode.CORRUPT_MESSAGE, "the batch's checksum is wrong")
    batch = batches.read(data)
    if late := _time_refusal(call, topic.name, batch):
        return Refusal(ErrorCode.INVALID_TIMESTAMP, late)
    if batch.producer_id >= 0 and (batch.epoch < 0 or batch.first_sequence < 0):
        return Refusal(ErrorCode.INVALID_RECORD, "an idempotent batch needs an epoch and a sequence")
    if bool(batch.attributes & batches.TRANSACTIONAL) != (transactional_id is not None):
        return Refusal(
            ErrorCode.INVALID_TXN_STATE, "the batch and the request differ in being of a transaction"
        )
    if "compact" in cluster.config(topic.name, "cleanup.policy"):
        return _key_refusal(data, f"{topic.name}-{given.index}")
    return None


def _key_refusal(data: bytes, place: str) -> Refusal | None:
    """Returns the refusal of the records without a key, which a compacted topic does not take."""
    # Imported here: it takes long, and most topics are not compacted.
    from cyproducer.wire.record_decoder import batches as decoded

    why = f"Compacted topic cannot accept message without key in topic partition {place}."
    try:
        records = itertools.chain.from_iterable(batch.records() for batch in decoded(data))
        refused = tuple((index, why) for index, record in enumerate(records) if record.key is None)
    except KafkaError as error:
        return Refusal(ErrorCode.INVALID_RECORD, str(error))
    if not refused:
        return None
    text = f"One or more records have been rejected due to {len(refused)} record errors in total"
    return Refusal(ErrorCode.INVALID_RECORD, text, refused)


def _size_refusal(cluster: "EmbeddedCluster", topic: str, data: bytes) -> Refusal | None:
    most = cluster.config(topic, "max.message.bytes")
    if len(data) <= most:
        return None
    text = f"the batch has {len(data)} bytes, max.message.bytes is {most}"
    return Refusal(ErrorCode.MESSAGE_SIZE_TOO_LARGE, text)


def _recompressed(cluster: "EmbeddedCluster", topic: str, data: bytes) -> bytes:
    """Returns the batch with the topic's codec, at the topic's level (KIP-390)."""
    name = cluster.config(topic, "compression.type")
    if name == "producer":
        return data
    codec = BY_NAME["none" if name == "uncompressed" else name]
    level = cluster.config(topic, f"compression.{name}.level") if codec.levels else None
    return batches.recompressed(data, codec.name, None if level == codec.default_level else level)


def _time_refusal(call: Call, topic: str, batch: batches.Batch) -> str:
    """Returns the reason if the timestamps of a batch are refused (KIP-937); "" if they are accepted."""
    config = call.cluster.config
    if config(topic, "message.timestamp.type") == "LogAppendTime":
        return ""
    now_ms = call.world.now_ns // NS_PER_MS
    for name, distance_ms in (
        ("message.timestamp.after.max.ms", batch.max_ms - now_ms),
        ("message.timestamp.before.max.ms", now_ms - batch.first_ms),
    ):
        most_ms = config(topic, name)
        if distance_ms > most_ms:
            return f"a timestamp is {distance_ms} ms away from the broker's time, and {name}={most_ms}"
    return ""


def _in_transaction(call: Call, answer: Answer, parts: list[Part]) -> None:
    """Takes the batches of a transaction, after the coordinator has confirmed it if that is necessary."""
    request, transactions = call.request, call.cluster.transactions
    identities = {(part.batch.producer_id, part.batch.epoch) for part in parts}
    if len(identities) > 1:
        for part in parts:
            answer.put(part.key, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return
    ((producer_id, epoch),) = identities
    adds = call.version >= ADDS_PARTITIONS
    unsure = [part for part in parts if not part.partition.has_open(producer_id, epoch)]
    guards: dict[Place, Guard] = {}

    def begin() -> None:
        for part in unsure:
            guards[part.partition.place] = part.partition.guard(part.batch, adds)

    def told(codes: dict[Place, int]) -> None:
        for part in parts:
            code = produce_code(codes.get(part.partition.place, 0), call.version) or _moved(call, part)
            if code:
                answer.put(part.key, code)
            else:
                _take(call, answer, part, guards.get(part.partition.place))

    if unsure:
        places = [part.partition.place for part in unsure]
        transactions.ask(
            call.node.id, request.transactional_id, producer_id, epoch, places, adds, adds, told, begin
        )
    else:
        told({})


def _moved(call: Call, part: Part) -> int:
    """Returns the error code if the partition was deleted or has another leader since the request arrived."""
    topic, partition = call.cluster.topics.topics.get(part.partition.topic), part.partition
    if topic is None or topic.partitions[partition.index : partition.index + 1] != [partition]:
        return ErrorCode.UNKNOWN_TOPIC_ID if call.version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NO_ERROR if partition.leader == call.node.id else ErrorCode.NOT_LEADER_FOR_PARTITION


def _take(call: Call, answer: Answer, part: Part, guard: Guard | None) -> None:
    """Appends a batch, or refuses it. ``guard``: the guard of its verification with the coordinator."""
    cluster, partition, data = call.cluster, part.partition, part.data
    state = partition.producers.get(part.batch.producer_id)
    if part.batch.transactional:
        code, known = partition.check_transactional(part.batch, guard)
    elif state is not None and state.started is not None:
        code, known = int(ErrorCode.INVALID_TXN_STATE), None
    else:
        code, known = partition.check(part.batch, False, False)
    if code:
        answer.put(part.key, code)
        return
    stamp_ms = -1
    if known is None:
        try:
            data = _recompressed(cluster, partition.topic, data)
        except batches.Damaged as error:
            answer.put(part.key, ErrorCode.CORRUPT_MESSAGE, text=str(error))
            return
        if too_large := _size_refusal(cluster, partition.topic, data):
            answer.put(part.key, too_large.code, text=too_large.text)
            return
        if cluster.config(partition.topic, "message.timestamp.type") == "LogAppendTime":
            stamp_ms = cluster.world.now_ns // NS_PER_MS
            data = batches.stamped(data, stamp_ms)
        if not cluster.has_room(partition, len(data)):
            answer.put(part.key, ErrorCode.POLICY_VIOLATION, text=cluster.why_full())
            return
        placed = batches.placed(data, partition.end, partition.epoch)
        known = partition.append(part.batch, placed, cluster.world.now_ns)
        partition.sync(partition.epoch, partition.end)
        retention.by_size(cluster, partition)
    else:
        kept = batches.read(known.data)
        stamp_ms = kept.max_ms if kept.attributes & batches.LOG_APPEND_TIME else -1
    answer.put(part.key, ErrorCode.NO_ERROR, known.offset, stamp_ms, partition.log_start)


HANDLERS: Final = {PRODUCE: produce}
