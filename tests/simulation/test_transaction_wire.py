"""The scripted codec of transactions, which the model uses, too, against kio, which is generated from Kafka's
schemas, in all versions for clients."""

from typing import Any

import pytest
from kio.serial import entity_reader

from cyproducer.structs import ConsumerGroupMetadata, OffsetAndMetadata
from tests.scripted import scripted_transactions as codec
from tests.scripted.scripted_wire import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FIND_COORDINATOR,
    TXN_OFFSET_COMMIT,
    Header,
    write_api_versions,
)
from tests.simulation.kio_requests import frame_of, read
from tests.simulation.transaction_wire import VERSIONS, read_request
from tests.wire.kio_oracle import CORRELATION_ID, make, schema
from tools.harness.reference_wire import MalformedError, Reader

PLACES = [("t", 0), ("t", 2), ("u", 1)]
CODES = {("t", 0): 0, ("t", 2): 55, ("u", 1): 29}


def every(key: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("version", range(VERSIONS[key][0], VERSIONS[key][1] + 1))


def header_of(key: int, version: int) -> Header:
    return Header(key, version, CORRELATION_ID, "c", Reader(b""))


@every(FIND_COORDINATOR)
def test_find_coordinator(version: int) -> None:
    kind = codec.TRANSACTION if version >= 1 else codec.GROUP
    frame = frame_of(FIND_COORDINATOR, version, key="a", key_type=kind, coordinator_keys=("a",))
    header = header_of(FIND_COORDINATOR, version)
    assert read_request(frame) == (header, codec.FindCoordinator(kind, "a"))
    for place, error, message in (((3, "b3", 9092), 0, None), ((-1, "", -1), 15, "no")):
        response = codec.write_find_coordinator(header, "a", place, error, message)
        body = read(FIND_COORDINATOR, version, response)
        told = body.coordinators[0] if version >= 4 else body
        assert (told.node_id, told.host, told.port, told.error_code) == (*place, error)
        if version >= 1:
            assert told.error_message == message


def test_a_client_asks_for_one_coordinator() -> None:
    frame = frame_of(FIND_COORDINATOR, 4, key_type=codec.GROUP, coordinator_keys=("a", "b"))
    with pytest.raises(MalformedError, match="one coordinator, not 2"):
        read_request(frame)


@every(ADD_PARTITIONS_TO_TXN)
def test_add_partitions(version: int) -> None:
    topic = schema("add_partitions_to_txn", version, "request").AddPartitionsToTxnTopic
    frame = frame_of(
        ADD_PARTITIONS_TO_TXN,
        version,
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=1234567890123,
        v3_and_below_producer_epoch=7,
        v3_and_below_topics=(topic(name="t", partitions=(0, 2)), topic(name="u", partitions=(1,))),
    )
    assert read_request(frame)[1] == codec.AddPartitions("x", 1234567890123, 7, PLACES)
    body = read(
        ADD_PARTITIONS_TO_TXN,
        version,
        codec.write_partition_errors(header_of(ADD_PARTITIONS_TO_TXN, version), CODES),
    )
    assert {
        (topic.name, told.partition_index): int(told.partition_error_code)
        for topic in body.results_by_topic_v3_and_below
        for told in topic.results_by_partition
    } == CODES


@every(ADD_OFFSETS_TO_TXN)
def test_add_offsets(version: int) -> None:
    frame = frame_of(
        ADD_OFFSETS_TO_TXN, version, transactional_id="x", producer_id=9, producer_epoch=7, group_id="g"
    )
    assert read_request(frame)[1] == codec.AddOffsets("x", 9, 7, "g")
    body = read(ADD_OFFSETS_TO_TXN, version, codec.write_error(header_of(ADD_OFFSETS_TO_TXN, version), 51))
    assert body.error_code == 51


@every(END_TXN)
@pytest.mark.parametrize("commits", [False, True])
def test_end_txn(version: int, commits: bool) -> None:
    frame = frame_of(
        END_TXN, version, transactional_id="x", producer_id=9, producer_epoch=7, committed=commits
    )
    assert read_request(frame)[1] == codec.EndTxn("x", 9, 7, commits)
    header = header_of(END_TXN, version)
    answer = codec.write_identity(header, (9, 8)) if version >= 5 else codec.write_error(header)
    body = read(END_TXN, version, answer)
    assert body.error_code == 0
    if version >= 5:
        assert (body.producer_id, body.producer_epoch) == (9, 8)


@every(TXN_OFFSET_COMMIT)
def test_txn_offset_commit(version: int) -> None:
    module = schema("txn_offset_commit", version, "request")

    def partition(index: int, offset: int, epoch: int, metadata: str | None) -> Any:
        return make(
            module.TxnOffsetCommitRequestPartition,
            partition_index=index,
            committed_offset=offset,
            committed_leader_epoch=epoch,
            committed_metadata=metadata,
        )

    topic = module.TxnOffsetCommitRequestTopic
    frame = frame_of(
        TXN_OFFSET_COMMIT,
        version,
        transactional_id="x",
        group_id="g",
        producer_id=9,
        producer_epoch=7,
        generation_id=3,
        member_id="m",
        group_instance_id="i",
        topics=(
            topic(name="t", partitions=(partition(0, 5, 2, "note"), partition(2, 6, -1, None))),
            topic(name="u", partitions=(partition(1, 0, 0, ""),)),
        ),
    )
    epochs = (2, -1, 0) if version >= 2 else (-1, -1, -1)
    group = ConsumerGroupMetadata("g", 3, "m", "i") if version >= 3 else ConsumerGroupMetadata("g")
    offsets = {
        ("t", 0): OffsetAndMetadata(5, "note", epochs[0]),
        ("t", 2): OffsetAndMetadata(6, None, epochs[1]),
        ("u", 1): OffsetAndMetadata(0, "", epochs[2]),
    }
    assert read_request(frame)[1] == codec.CommitOffsets("x", 9, 7, group, offsets)
    header = header_of(TXN_OFFSET_COMMIT, version)
    body = read(TXN_OFFSET_COMMIT, version, codec.write_partition_errors(header, CODES))
    assert {
        (topic.name, told.partition_index): int(told.error_code)
        for topic in body.topics
        for told in topic.partitions
    } == CODES


def test_describe_transactions() -> None:
    frame = frame_of(DESCRIBE_TRANSACTIONS, 0, transactional_ids=("x", "y"))
    assert read_request(frame)[1] == codec.DescribeTransactions(["x", "y"])
    found = [
        codec.Description(0, "x", "Ongoing", 60_000, 1_700_000_000_000, 9, 7, {"t": [0, 2], "u": [1]}),
        codec.Description(105, "y", "", 0, 0, -1, -1, {}),
    ]
    body = read(
        DESCRIBE_TRANSACTIONS, 0, codec.write_descriptions(header_of(DESCRIBE_TRANSACTIONS, 0), found)
    )
    told, unknown = body.transaction_states
    assert (told.transactional_id, told.transaction_state, told.producer_id, told.producer_epoch) == (
        "x",
        "Ongoing",
        9,
        7,
    )
    assert told.transaction_timeout.total_seconds() == 60
    assert told.transaction_start_time.timestamp() == 1_700_000_000
    assert [(topic.topic, topic.partitions) for topic in told.topics] == [("t", (0, 2)), ("u", (1,))]
    assert (unknown.transactional_id, unknown.error_code) == ("y", 105)


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("version", range(5))
def test_api_versions_tell_the_level(version: int, level: int) -> None:
    features = {"transaction.version": level} if level else {}
    ranges = {0: (3, 13), 26: (0, 5)}
    response = write_api_versions(version, CORRELATION_ID, ranges, features=features, features_epoch=18)
    cls = schema("api_versions", version, "response").ApiVersionsResponse
    body, size = entity_reader(cls)(response, 8)
    assert size + 8 == len(response)
    assert [(told.api_key, told.min_version, told.max_version) for told in body.api_keys] == [
        (0, 3, 13),
        (26, 0, 5),
    ]
    if version >= 3:
        assert body.finalized_features_epoch == 18
        told = {
            feature.name: (feature.min_version_level, feature.max_version_level)
            for feature in body.finalized_features
        }
        assert told.get("transaction.version", (0, 0)) == (level, level)


def test_bytes_after_a_request_are_refused() -> None:
    frame = frame_of(END_TXN, 5, transactional_id="x", producer_id=9, producer_epoch=7, committed=True)
    frame = (len(frame) - 3).to_bytes(4, "big") + frame[4:] + b"\0"
    with pytest.raises(MalformedError, match="after the last EndTxn request"):
        read_request(frame)


def test_a_partition_that_is_named_twice_is_refused() -> None:
    topic = schema("add_partitions_to_txn", 0, "request").AddPartitionsToTxnTopic(name="t", partitions=(0,))
    frame = frame_of(
        ADD_PARTITIONS_TO_TXN,
        0,
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=7,
        v3_and_below_topics=(topic, topic),
    )
    with pytest.raises(MalformedError, match="twice"):
        read_request(frame)


def test_versions_of_brokers_are_refused() -> None:
    frame = bytearray(
        frame_of(END_TXN, 5, transactional_id="x", producer_id=9, producer_epoch=7, committed=True)
    )
    frame[4:8] = bytes((0, ADD_PARTITIONS_TO_TXN, 0, 4))
    with pytest.raises(MalformedError, match="version 4 is not a client's"):
        read_request(bytes(frame))
