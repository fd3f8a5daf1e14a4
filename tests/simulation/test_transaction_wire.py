"""The model's codec against kio, which is generated from Kafka's schemas, in all versions for clients."""

from typing import Any

import pytest
from kio.serial import entity_reader

from tests.simulation import transaction_wire as codec
from tests.simulation.kio_requests import frame_of, read
from tests.simulation.transaction_wire import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    DESCRIBE,
    END_TXN,
    FIND_COORDINATOR,
    TXN_OFFSET_COMMIT,
    VERSIONS,
)
from tests.wire.kio_oracle import CORRELATION_ID, make, schema
from tools.harness.reference_wire import MalformedError

PLACES = [("t", 0), ("t", 2), ("u", 1)]
CODES = {("t", 0): 0, ("t", 2): 55, ("u", 1): 29}


def every(key: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("version", range(VERSIONS[key][0], VERSIONS[key][1] + 1))


def header_of(key: int, version: int) -> codec.Header:
    return codec.Header(key, version, CORRELATION_ID, "c")


@every(FIND_COORDINATOR)
def test_find_coordinator(version: int) -> None:
    keys = ["a", "b"] if version >= 4 else ["a"]
    kind = codec.BY_ID if version >= 1 else codec.BY_GROUP
    frame = frame_of(FIND_COORDINATOR, version, key="a", key_type=kind, coordinator_keys=tuple(keys))
    assert codec.read_request(frame) == (
        header_of(FIND_COORDINATOR, version),
        codec.FindCoordinator(kind, keys),
    )
    found = [codec.Coordinator("a", 3, "b3", 9092, 0, None), codec.Coordinator("b", error=15, message="no")]
    response = codec.write_coordinators(header_of(FIND_COORDINATOR, version), found[: len(keys)])
    body = read(FIND_COORDINATOR, version, response)
    for told, expected in zip(body.coordinators if version >= 4 else [body], found, strict=False):
        assert (told.node_id, told.host, told.port, told.error_code) == expected[1:5]
        if version >= 1:
            assert told.error_message == expected.message


@every(ADD_PARTITIONS)
def test_add_partitions(version: int) -> None:
    topic = schema("add_partitions_to_txn", version, "request").AddPartitionsToTxnTopic
    frame = frame_of(
        ADD_PARTITIONS,
        version,
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=1234567890123,
        v3_and_below_producer_epoch=7,
        v3_and_below_topics=(topic(name="t", partitions=(0, 2)), topic(name="u", partitions=(1,))),
    )
    assert codec.read_request(frame)[1] == codec.AddPartitions("x", 1234567890123, 7, PLACES)
    body = read(
        ADD_PARTITIONS, version, codec.write_partition_codes(header_of(ADD_PARTITIONS, version), CODES)
    )
    assert {
        (topic.name, told.partition_index): int(told.partition_error_code)
        for topic in body.results_by_topic_v3_and_below
        for told in topic.results_by_partition
    } == CODES


@every(ADD_OFFSETS)
def test_add_offsets(version: int) -> None:
    frame = frame_of(
        ADD_OFFSETS, version, transactional_id="x", producer_id=9, producer_epoch=7, group_id="g"
    )
    assert codec.read_request(frame)[1] == codec.AddOffsets("x", 9, 7, "g")
    body = read(ADD_OFFSETS, version, codec.write_added_offsets(header_of(ADD_OFFSETS, version), 51))
    assert body.error_code == 51


@every(END_TXN)
@pytest.mark.parametrize("commits", [False, True])
def test_end_txn(version: int, commits: bool) -> None:
    frame = frame_of(
        END_TXN, version, transactional_id="x", producer_id=9, producer_epoch=7, committed=commits
    )
    assert codec.read_request(frame)[1] == codec.EndTxn("x", 9, 7, commits)
    body = read(END_TXN, version, codec.write_ended(header_of(END_TXN, version), 0, 9, 8))
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
    generation, member, instance = (3, "m", "i") if version >= 3 else (-1, "", None)
    offsets = {
        ("t", 0): codec.Offset(5, epochs[0], "note"),
        ("t", 2): codec.Offset(6, epochs[1], None),
        ("u", 1): codec.Offset(0, epochs[2], ""),
    }
    assert codec.read_request(frame)[1] == codec.TxnOffsetCommit(
        "x", "g", 9, 7, generation, member, instance, offsets
    )
    header = header_of(TXN_OFFSET_COMMIT, version)
    body = read(TXN_OFFSET_COMMIT, version, codec.write_partition_codes(header, CODES))
    assert {
        (topic.name, told.partition_index): int(told.error_code)
        for topic in body.topics
        for told in topic.partitions
    } == CODES


def test_describe_transactions() -> None:
    frame = frame_of(DESCRIBE, 0, transactional_ids=("x", "y"))
    assert codec.read_request(frame)[1] == codec.Describe(["x", "y"])
    found = [
        codec.Description("x", 0, "Ongoing", 60_000, 1_700_000_000_000, 9, 7, PLACES),
        codec.Description("y", 105, start_ms=0),
    ]
    body = read(DESCRIBE, 0, codec.write_descriptions(header_of(DESCRIBE, 0), found))
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
    response = codec.write_api_versions(version, CORRELATION_ID, {0: (3, 13), 26: (0, 5)}, 18, level)
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
    with pytest.raises(MalformedError, match="after the last request"):
        codec.read_request(frame)


def test_a_partition_that_is_named_twice_is_refused() -> None:
    topic = schema("add_partitions_to_txn", 0, "request").AddPartitionsToTxnTopic(name="t", partitions=(0,))
    frame = frame_of(
        ADD_PARTITIONS,
        0,
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=7,
        v3_and_below_topics=(topic, topic),
    )
    with pytest.raises(MalformedError, match="twice"):
        codec.read_request(frame)


def test_versions_of_brokers_are_refused() -> None:
    frame = bytearray(
        frame_of(END_TXN, 5, transactional_id="x", producer_id=9, producer_epoch=7, committed=True)
    )
    frame[4:8] = bytes((0, ADD_PARTITIONS, 0, 4))
    with pytest.raises(MalformedError, match="version 4 is not a client's"):
        codec.read_request(bytes(frame))
