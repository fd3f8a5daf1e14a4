"""Single requests to the embedded broker: hostile bytes, checks of batches, versions, order of responses."""

import contextlib
import random
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from cyproducer import KafkaProducer, errors
from cyproducer.errors.error_code import ErrorCode
from cyproducer.records.crc32c import crc32c
from cyproducer.records.record_batch import encode_batch
from cyproducer.testing import EmbeddedBroker
from cyproducer.testing.broker import releases
from cyproducer.testing.broker.cluster import HANDLERS
from cyproducer.wire import messages
from cyproducer.wire.messages import (
    API_VERSIONS,
    DESCRIBE_TRANSACTIONS,
    FETCH,
    METADATA,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    UPDATE_FEATURES,
)
from cyproducer.wire.schema import Field, Struct
from tests.testing.broker.peer import Peer
from tools.harness.until import PATIENCE_S


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"t": 1}) as broker:
        yield broker


@pytest.fixture
def peer(broker: EmbeddedBroker) -> Iterator[Peer]:
    with Peer(broker.bootstrap_servers) as peer:
        yield peer


def connected(broker: EmbeddedBroker) -> socket.socket:
    host, port = broker.bootstrap_servers.rsplit(":", 1)
    return socket.create_connection((host, int(port)), PATIENCE_S)


def works(broker: EmbeddedBroker) -> bool:
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        return producer.send("t", b"still there").get(PATIENCE_S).offset >= 0


def produced(peer: Peer, data: bytes | None, acks: int = -1, topic: str = "t") -> Any:
    request = PRODUCE.request
    topics = [request.TopicProduceData(topic, bytes(16), [request.PartitionProduceData(0, data)])]
    response = peer.ask(PRODUCE, 9, transactional_id=None, acks=acks, timeout_ms=1000, topic_data=topics)
    return response.responses[0].partition_responses[0]


def batch(producer_id: int = -1, epoch: int = -1, sequence: int = -1) -> bytes:
    return encode_batch(
        [(1000, None, b"v", b"")], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )


def changed(data: bytes, at: int, format_: str, value: int) -> bytes:
    """Returns a batch with another field, and the checksum of that."""
    copy = bytearray(data)
    struct.pack_into(format_, copy, at, value)
    struct.pack_into(">I", copy, 17, crc32c(bytes(copy[21:])))
    return bytes(copy)


def test_batches_that_a_broker_must_not_take_are_refused(peer: Peer) -> None:
    good = batch()
    wrong_sum = bytearray(good)
    wrong_sum[-1] ^= 1
    for data, code in [
        (None, ErrorCode.INVALID_RECORD),
        (good[:40], ErrorCode.INVALID_RECORD),
        (good + good, ErrorCode.INVALID_RECORD),
        (changed(good, 16, ">b", 1), ErrorCode.INVALID_RECORD),
        (changed(good, 23, ">i", 7), ErrorCode.INVALID_RECORD),
        (changed(good, 21, ">h", 0x20), ErrorCode.INVALID_RECORD),
        (changed(good, 21, ">h", 0x10), ErrorCode.INVALID_TXN_STATE),
        (batch(5, -1, -1), ErrorCode.INVALID_RECORD),
        (bytes(wrong_sum), ErrorCode.CORRUPT_MESSAGE),
    ]:
        assert produced(peer, data).error_code == code, data
    assert produced(peer, good, acks=2).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert produced(peer, good, topic="none").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert produced(peer, good).error_code == ErrorCode.NO_ERROR


def test_sequences_are_checked(peer: Peer) -> None:
    def send(epoch: int, sequence: int) -> tuple[int, int]:
        answer = produced(peer, batch(77, epoch, sequence))
        return answer.error_code, answer.base_offset

    _, first = send(0, 0)
    for sequence in range(1, 6):
        assert send(0, sequence) == (0, first + sequence)
    # The last five are recognised, and those before are out of order.
    assert send(0, 1) == (0, first + 1)
    assert send(0, 0) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert send(0, 7) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert send(1, 3) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert send(1, 0) == (0, first + 6)
    assert send(0, 6) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)


@pytest.mark.parametrize("seed", range(3))
def test_hostile_bytes_do_not_stop_it(broker: EmbeddedBroker, seed: int) -> None:
    dice = random.Random(seed)
    apis = list(HANDLERS)
    for _ in range(150):
        api = dice.choice(apis)
        version = dice.randint(*api.declared)
        body = dice.randbytes(dice.randrange(60))
        frame = struct.pack(">hhih", api.key, version, 1, -1) + body
        with connected(broker) as connection:
            connection.sendall(struct.pack(">i", len(frame)) + frame)
            if dice.random() < 0.3:
                connection.sendall(dice.randbytes(20))
    assert works(broker)


TEXTS = ["t", "", "g", "id", "a b", "max.message.bytes", "consumer", "range", "PLAIN"]
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def anything(dice: random.Random, field: Field, version: int, array: bool) -> Any:
    """Returns a value that a field may have in a request, in Kafka's types, whatever it means."""
    if version not in field.versions:
        return field.zero()
    if version in field.nullable and array == field.array and dice.random() < 0.2:
        return None
    kind = field.kind
    if array:
        return [anything(dice, field, version, False) for _ in range(dice.choice([0, 1, 1, 2]))]
    if isinstance(kind, Struct):
        return kind.type(*(anything(dice, each, version, each.array) for each in kind.fields))
    if kind == "boolean":
        return dice.random() < 0.5
    if kind in BITS:
        most = 1 << BITS[kind] - 1
        return dice.choice([0, 1, -1, 2, 3, 100, most - 1, -most, dice.randrange(-most, most)])
    if kind == "uuid":
        return dice.choice([bytes(16), dice.randbytes(16)])
    return dice.choice(TEXTS) if kind in ("string", "text") else dice.choice([b"", b"x", dice.randbytes(80)])


@pytest.mark.parametrize("seed", range(3))
def test_no_request_makes_a_handler_raise(
    broker: EmbeddedBroker, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    dice = random.Random(seed)
    apis = list(HANDLERS)
    for _ in range(2000):
        api = dice.choice(apis)
        version = dice.randint(*api.declared)
        values = [anything(dice, field, version, field.array) for field in api.request.root.fields]
        with connected(broker) as connection:
            connection.sendall(api.encode_request(version, 1, "test", api.request(*values)))
            # The broker has handled it, or waits, or has refused it.
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(0.05)
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                connection.recv(4)
    assert works(broker)
    assert [record.exc_text for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize("size", [-1, 1 << 30])
def test_a_frame_of_an_impossible_size_closes_the_connection(broker: EmbeddedBroker, size: int) -> None:
    with connected(broker) as connection:
        connection.sendall(struct.pack(">i", size) + b"x" * 10)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    assert works(broker)


def test_responses_come_in_the_order_of_requests(peer: Peer) -> None:
    for api in (METADATA, API_VERSIONS, METADATA):
        peer.send(api, 3)
    assert peer.receive().brokers
    assert peer.receive().api_keys
    assert peer.receive().brokers


@pytest.mark.parametrize(
    ("release", "named"), [("2.3", []), ("2.4", [API_VERSIONS.key]), ("4.1", [API_VERSIONS.key])]
)
def test_a_version_that_is_too_new_is_answered_with_those_that_are_known(
    release: str, named: list[int]
) -> None:
    with EmbeddedBroker(kafka_version=release) as broker, Peer(broker.bootstrap_servers) as peer:
        peer.send_frame(struct.pack(">ihhih", 10, API_VERSIONS.key, 99, 1, -1), API_VERSIONS, 0)
        answer = peer.receive()
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [each.api_key for each in answer.api_keys] == named


@pytest.mark.parametrize(("release", "takes"), [("3.9", True), ("4.0", False)])
def test_only_new_releases_limit_how_far_ahead_a_timestamp_is(release: str, takes: bool) -> None:
    with (
        EmbeddedBroker(kafka_version=release) as broker,
        KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer,
    ):
        future = producer.send("t", b"v", timestamp_ms=1 << 45)
        if takes:
            assert future.get(PATIENCE_S).offset == 0
        else:
            with pytest.raises(errors.InvalidTimestampError):
                future.get(PATIENCE_S)


# Fetch sessions


def fetched(
    peer: Peer,
    session: tuple[int, int],
    offsets: dict[int, int],
    forgotten: list[int] | None = None,
    version: int = 11,
) -> Any:
    """Fetches "read", in a session (id, epoch). Returns the response."""
    request = FETCH.request
    partitions = [request.FetchPartition(index, -1, at, -1, -1, 1 << 20) for index, at in offsets.items()]
    topics = [request.FetchTopic("read", bytes(16), partitions)] if partitions else []
    gone = [request.ForgottenTopic("read", bytes(16), forgotten)] if forgotten else []
    return peer.ask(
        FETCH,
        version,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=session[0],
        session_epoch=session[1],
        topics=topics,
        forgotten_topics_data=gone,
    )


def parts(answer: Any) -> dict[int, tuple[int, int]]:
    """Partition -> high watermark, and how many bytes of records."""
    assert answer.error_code == 0
    return {
        part.partition_index: (part.high_watermark, len(part.records or b""))
        for topic in answer.responses
        for part in topic.partitions
    }


def test_a_fetch_session_has_changes_only(broker: EmbeddedBroker, peer: Peer) -> None:
    broker.create_topic("read", 3)
    first = fetched(peer, (0, 0), {0: 0, 1: 0, 2: 0})
    assert parts(first) == {0: (0, 0), 1: (0, 0), 2: (0, 0)}
    session = first.session_id
    assert session > 0
    assert parts(fetched(peer, (session, 1), {})) == {}
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send("read", b"v", partition=1).get(PATIENCE_S)
    found = parts(fetched(peer, (session, 2), {}))
    assert list(found) == [1]
    assert found[1] == (1, 69)
    # The client goes on there, and nothing is new.
    assert parts(fetched(peer, (session, 3), {1: 1})) == {}
    assert parts(fetched(peer, (session, 4), {1: 0}, forgotten=[0])) == {1: (1, 69)}
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send("read", b"v", partition=0).get(PATIENCE_S)
    assert 0 not in parts(fetched(peer, (session, 5), {1: 1}))
    assert fetched(peer, (session, 5), {}).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    # Its topics have names, and version 13 has their ids.
    mixed = fetched(peer, (session, 6), {}, version=13)
    assert mixed.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    # A whole request ends it; without a session, all that was asked for is in the response.
    assert parts(fetched(peer, (session, -1), {1: 1, 2: 0})) == {1: (1, 0), 2: (0, 0)}
    assert fetched(peer, (session, 6), {}).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


# Releases


@pytest.mark.parametrize("release", ["2.1", "2.4", "2.8", "3.3", "3.9", "4.0", "4.1", "4.4"])
def test_the_producer_works_with_each_release(release: str) -> None:
    with EmbeddedBroker(topics={"t": 1}, kafka_version=release) as broker:
        assert works(broker)


@pytest.fixture
def of_4_4() -> Iterator[tuple[EmbeddedBroker, Peer]]:
    with (
        EmbeddedBroker(topics={"t": 1}, kafka_version="4.4") as broker,
        Peer(broker.bootstrap_servers) as peer,
    ):
        yield broker, peer


def test_a_broker_refuses_a_client_that_expects_another_one(of_4_4: tuple[EmbeddedBroker, Peer]) -> None:
    """KIP-1242."""
    _, peer = of_4_4
    cluster_id = peer.ask(METADATA, 9).cluster_id

    def told(cluster: str | None = None, node: int = -1) -> int:
        return int(peer.ask(API_VERSIONS, 5, cluster_id=cluster, node_id=node).error_code)

    assert told() == told(cluster_id, 1) == ErrorCode.NO_ERROR
    assert told(cluster_id, 2) == told("another", 1) == ErrorCode.REBOOTSTRAP_REQUIRED


def test_offsets_of_a_transaction_are_committed_by_topic_id(of_4_4: tuple[EmbeddedBroker, Peer]) -> None:
    """KIP-1319."""
    broker, peer = of_4_4
    (topic,) = peer.ask(METADATA, 12, topics=None).topics
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id="tx") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"v").get(PATIENCE_S)
        message = TXN_OFFSET_COMMIT.request
        part = message.TxnOffsetCommitRequestPartition(0, 5, -1, None)
        named = [message.TxnOffsetCommitRequestTopic("", key, [part]) for key in (topic.topic_id, b"?" * 16)]
        (found,) = peer.ask(DESCRIBE_TRANSACTIONS, 0, transactional_ids=["tx"]).transaction_states
        answers = peer.ask(
            TXN_OFFSET_COMMIT,
            6,
            transactional_id="tx",
            group_id="g",
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            topics=named,
        ).topics
        producer.commit_transaction()
    assert [(each.topic_id, [part.error_code for part in each.partitions]) for each in answers] == [
        (topic.topic_id, [ErrorCode.NO_ERROR]),
        (b"?" * 16, [ErrorCode.UNKNOWN_TOPIC_ID]),
    ]
    reader = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    assert reader.committed([TopicPartition("t", 0)], PATIENCE_S)[0].offset == 5
    reader.close()


def test_a_batch_that_cannot_be_recompressed_is_refused(broker: EmbeddedBroker, peer: Peer) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    topics = [
        NewTopic("gzipped", 1, config={"compression.type": "gzip"}),
        NewTopic("plain", 1, config={"compression.type": "uncompressed", "max.message.bytes": "1000"}),
    ]
    for done in admin.create_topics(topics).values():
        done.result(PATIENCE_S)
    for codec in (2, 3, 4, 7):
        # The records are not compressed, whatever the attributes say.
        wrong = changed(batch(), 21, ">h", codec)
        assert produced(peer, wrong, topic="gzipped").error_code == ErrorCode.CORRUPT_MESSAGE
    assert produced(peer, batch(), topic="gzipped").error_code == ErrorCode.NO_ERROR
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, compression_type="zstd") as producer:
        # It fits only while it is compressed.
        with pytest.raises(errors.MessageSizeTooLargeError):
            producer.send("plain", bytes(5000)).get(PATIENCE_S)
        assert producer.send("plain", bytes(500)).get(PATIENCE_S).offset == 0


UPGRADE, SAFE_DOWNGRADE = 1, 2
LEVEL_CHANGES: list[tuple[str, int, int, ErrorCode]] = [
    ("transaction.version", 2, SAFE_DOWNGRADE, ErrorCode.NO_ERROR),
    ("transaction.version", 1, UPGRADE, ErrorCode.INVALID_UPDATE_VERSION),
    ("transaction.version", 1, SAFE_DOWNGRADE, ErrorCode.NO_ERROR),
    ("transaction.version", 0, SAFE_DOWNGRADE, ErrorCode.NO_ERROR),
    ("transaction.version", 2, SAFE_DOWNGRADE, ErrorCode.INVALID_UPDATE_VERSION),
    ("transaction.version", 3, UPGRADE, ErrorCode.INVALID_UPDATE_VERSION),
    ("no.such.feature", 1, UPGRADE, ErrorCode.INVALID_UPDATE_VERSION),
    ("transaction.version", 2, UPGRADE, ErrorCode.NO_ERROR),
]
"""Feature, level, type of the update, and the answer; one after the other, from level 2 on."""


def test_the_level_of_transactions_is_changed_by_requests(peer: Peer) -> None:
    level = 2
    for feature, new, kind, code in LEVEL_CHANGES:
        update = UPDATE_FEATURES.request.FeatureUpdateKey(feature, new, False, kind)
        for validate_only in (True, False):
            answer = peer.ask(UPDATE_FEATURES, 1, feature_updates=[update], validate_only=validate_only)
            assert answer.error_code == code
            if not validate_only and code == ErrorCode.NO_ERROR:
                level = new
            found = peer.ask(API_VERSIONS, 3).finalized_features
            assert sum(each.max_version_level for each in found) == level


def test_releases_have_what_they_had() -> None:
    old, new = (releases.versions(HANDLERS, release) for release in ((2, 1), releases.NEWEST))
    assert old[PRODUCE.key][1] == 7
    assert new[PRODUCE.key] == tuple(PRODUCE.declared)
    assert messages.DESCRIBE_CLUSTER.key not in old
    assert messages.DESCRIBE_CLUSTER.key in new
    assert set(old) < set(new) == {api.key for api in HANDLERS}


def test_every_request_is_answered_by_a_handler_or_is_not_for_this_broker() -> None:
    others = {"ListConfigResources"}
    assert {api.name for api in messages.ALL} - {api.name for api in HANDLERS} == others
