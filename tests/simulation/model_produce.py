"""Handles a Produce request in a broker of the model.

Owns the checks in their order, appending, waiting for replicas, and the response. Does not own the rules for
sequence numbers (``testing/broker/partitions.Partition.check``), what precedes them in a transaction
(``model_transactional_produce``) or the order of requests (``model_broker``).

A broker that has not yet learned that it is no longer the leader ("deposed") appends records to a log that
is never read: with acks=1 it even acknowledges them.
"""

import struct
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

import crc32c

from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker.partitions import SEQUENCES, Cluster, Entry, Guard, Header, Partition
from cyproducer.testing.broker.partitions import Topic as TrueTopic
from tools.harness.reference_produce import PartitionResponse, ProduceRequest, Topic, encode_produce_response
from tools.harness.reference_records import decode_batches

if TYPE_CHECKING:
    from tests.simulation.model_broker import Broker, Conversation

MESSAGE_TOO_LARGE, REQUEST_TIMED_OUT, UNKNOWN_TOPIC, NOT_LEADER = 10, 7, 3, 6
NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
UNKNOWN_TOPIC_ID = 100
CORRUPT_MESSAGE = 2
INVALID_RECORD = 87
REJECTED = b"bad"
"""The values of records to reject start with this, after their number."""

TRANSACTIONAL = 0x10
"""The bit of a batch's attributes that says that it belongs to a transaction."""

_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_COUNT = struct.Struct(">i")
_PRODUCER = struct.Struct(">qhi")


def header_of(data: bytes) -> Header | None:
    """Returns the header fields that a broker checks; None if the checksum is wrong."""
    if _CRC.unpack_from(data, 17)[0] != crc32c.crc32c(data[21:]):
        return None
    transactional = bool(_ATTRIBUTES.unpack_from(data, 21)[0] & TRANSACTIONAL)
    producer_id, epoch, first_sequence = _PRODUCER.unpack_from(data, 43)
    return Header(_COUNT.unpack_from(data, 57)[0], producer_id, epoch, first_sequence, transactional)


def rejected_places(data: bytes) -> list[int]:
    """Returns the indexes of a batch's records that brokers reject, if they reject any."""
    (batch,) = decode_batches(data)
    values = [record.value or b"" for record in batch.records]
    return [place for place, value in enumerate(values) if value.partition(b":")[2].startswith(REJECTED)]


class Answer:
    """A request's response, while the parts of its partitions are collected."""

    def __init__(self, broker: "Broker", conversation: "Conversation", request: ProduceRequest) -> None:
        self.broker = broker
        self.conversation = conversation
        self.request = request
        self.missing = sum(len(partitions) for _, partitions in request.topics)
        self.parts: dict[tuple[Topic, int], PartitionResponse] = {}
        self.sent = False

    def put(self, key: Topic, index: int, code: int, offset: int = -1, rejected: Sequence[int] = ()) -> None:
        """Sets a partition's part; the first one counts. ``rejected``: the indexes of the named records."""
        if (key, index) in self.parts or self.sent:
            return
        named = [(place, f"record {place} is refused") for place in rejected]
        response = PartitionResponse(index, code, offset if code == 0 else -1, record_errors=named)
        broker = self.broker
        if code == NOT_LEADER and broker.manners.tells_leader and self.request.api_version >= 10:
            topic = topic_of(broker.cluster, key)
            if topic is not None and index < len(topic.partitions):
                view = broker.cluster.view(broker.node, topic.partitions[index])
                response = response._replace(current_leader=view)
        self.parts[key, index] = response
        self.missing -= 1
        if self.missing == 0:
            self._send()

    def time_out(self) -> None:
        """The replicas did not catch up within the request's timeout."""
        for key, partitions in self.request.topics:
            for index, _ in partitions:
                self.put(key, index, REQUEST_TIMED_OUT)

    def _send(self) -> None:
        self.sent = True
        broker, request = self.broker, self.request
        world = broker.world
        if world.tracing:
            told = {f"{key}-{i}": (p.error_code, p.base_offset) for (key, i), p in self.parts.items()}
            lost = " to a closed connection" if self.conversation.is_gone else ""
            world.say(f"broker {broker.node} responds to request {request.correlation_id}{lost}: {told}")
        if request.acks == 0:
            if any(part.error_code for part in self.parts.values()):
                # There is no other way to report the error to the client.
                self.conversation.hang_up()
            self.conversation.answer(None)
            return
        throttle_ms = broker.manners.throttle_ms if world.chance(broker.manners.throttles) else 0
        topics = [
            (key, [self.parts[key, index] for index, _ in partitions]) for key, partitions in request.topics
        ]
        response = encode_produce_response(request.api_version, request.correlation_id, topics, throttle_ms)
        self.conversation.answer(response, throttle_ms)


def topic_of(cluster: Cluster, key: Topic) -> TrueTopic | None:
    """Returns the topic that a request names, by name or by id."""
    return cluster.existing(key.bytes if isinstance(key, uuid.UUID) else key)


def answer_produce(broker: "Broker", conversation: "Conversation", request: ProduceRequest) -> None:
    """Handles a request; sends the response when all of its parts are known."""
    answer = Answer(broker, conversation, request)
    for key, partitions in request.topics:
        topic = topic_of(broker.cluster, key)
        for index, data in partitions:
            if topic is None:
                code = UNKNOWN_TOPIC_ID if isinstance(key, uuid.UUID) else UNKNOWN_TOPIC
                answer.put(key, index, code)
            elif index >= len(topic.partitions):
                answer.put(key, index, UNKNOWN_TOPIC)
            else:
                take(broker, answer, key, topic.partitions[index], data or b"")
    wait(answer)


def wait(answer: Answer) -> None:
    """Answers after the request's timeout, if the replicas take that long."""
    if not answer.sent and answer.request.acks == -1:
        answer.broker.world.after(answer.request.timeout_ms, answer.time_out)


def take(
    broker: "Broker",
    answer: Answer,
    key: Topic,
    partition: Partition,
    data: bytes,
    guard: Guard | None = None,
) -> None:
    """Appends a batch, or refuses it. ``guard``: what a coordinator has confirmed of it."""
    world, manners, index = broker.world, broker.manners, partition.index
    acks = answer.request.acks
    batch = header_of(data)
    if world.tracing:
        zombie = "zombie " if answer.conversation.is_gone else ""
        world.say(
            f"broker {broker.node} handles {zombie}request {answer.request.correlation_id}: "
            f"{partition.topic}-{index} {batch}, {len(data)} bytes"
        )
    if batch is None:
        raise AssertionError(f"a batch for {partition.topic}-{index} has a wrong checksum")
    leader, _ = broker.cluster.view(broker.node, partition)
    if leader != broker.node:
        answer.put(key, index, NOT_LEADER)
        return
    fault, appends = _fault(broker)
    if fault and not appends:
        answer.put(key, index, fault)
        return
    if len(data) > manners.message_max_bytes:
        answer.put(key, index, MESSAGE_TOO_LARGE)
        return
    if manners.rejects and (rejected := rejected_places(data)):
        answer.put(key, index, INVALID_RECORD, rejected=rejected if manners.names_rejected else ())
        return
    if partition.leader != broker.node:
        _take_deposed(broker, answer, key, partition, batch, data)
        return
    code, known = _check(broker, partition, batch, guard)
    if code and known and acks == -1:
        # The client treats this error as an acknowledgement, so the batch must be replicated as for one.
        partition.wait_synced(known.end, lambda synced: answer.put(key, index, synced or code))
        return
    if code:
        answer.put(key, index, code)
        return
    entry = known or partition.append(batch, data, world.now_ns)
    epoch = partition.epoch
    if known is None:
        if batch.first_sequence + batch.records >= SEQUENCES:
            world.say(f"the sequences of {partition.topic}-{index} wrap")
        world.after(world.between(manners.replication_ms), partition.sync, epoch, entry.end)
    if fault:
        answer.put(key, index, fault)
    elif acks == -1:
        partition.wait_synced(entry.end, lambda code: answer.put(key, index, code, entry.offset))
    else:
        answer.put(key, index, 0, entry.offset)


def _check(
    broker: "Broker", partition: Partition, batch: Header, guard: Guard | None
) -> tuple[int, Entry | None]:
    if batch.transactional:
        return partition.check_transactional(batch, guard)
    state = partition.producers.get(batch.producer_id)
    if state is not None and state.started is not None:
        return ErrorCode.INVALID_TXN_STATE, None
    return partition.check(batch, broker.manners.old_rules, broker.manners.tells_duplicates)


def _take_deposed(
    broker: "Broker", answer: Answer, key: Topic, partition: Partition, batch: Header, data: bytes
) -> None:
    entry = Entry(partition.end, batch, data)
    partition.lost.append(entry)
    if answer.request.acks != -1:
        answer.put(key, partition.index, 0, entry.offset)
    elif broker.world.chance(0.5):
        answer.put(key, partition.index, NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    else:
        # It learns of the new leader while it waits for followers that no longer follow it.
        delay_ms = broker.world.between((0.0, answer.request.timeout_ms * 1.5))
        broker.world.after(delay_ms, answer.put, key, partition.index, NOT_LEADER)


def _fault(broker: "Broker") -> tuple[int, bool]:
    manners = broker.manners
    if not manners.faults or not broker.world.chance(manners.fault_rate):
        return 0, False
    code, appends, _ = broker.world.random.choices(
        manners.faults, [weight for _, _, weight in manners.faults]
    )[0]
    return code, appends
