"""Fetch, ListOffsets, CreateTopics and DescribeConfigs against golden bytes and kio, in every version."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyproducer.errors import KafkaProtocolError
from cyproducer.wire import messages as apis
from cyproducer.wire import protocol
from cyproducer.wire.responses import (
    NO_TOPIC_ID,
    CreatedTopic,
    CreateTopicsResponse,
    DescribeConfigsResponse,
    DescribedConfigs,
    FetchedPartition,
    FetchResponse,
    ListedOffset,
    ListOffsetsResponse,
)
from tests.wire.kio_oracle import (
    durations_ms,
    error_codes,
    int16s,
    int32s,
    int64s,
    milliseconds,
    shown_texts,
    texts,
)
from tests.wire.kio_reading import (
    write_create_topics,
    write_describe_configs,
    write_fetch,
    write_list_offsets,
)
from tests.wire.test_protocol_transactions import every_version, read

options = st.dictionaries(texts, texts, max_size=4)


# Requests


@every_version(apis.FETCH)
@given(
    correlation_id=int32s,
    topic=texts,
    partition=int32s,
    offset=int64s,
    max_bytes=int32s,
    max_wait_ms=durations_ms,
)
def test_fetch_request_reads_back(
    version: int,
    correlation_id: int,
    topic: str,
    partition: int,
    offset: int,
    max_bytes: int,
    max_wait_ms: int,
) -> None:
    frame = protocol.encode_fetch(
        version, correlation_id, "me", topic, partition, offset, max_bytes, max_wait_ms
    )
    body = read(apis.FETCH, "fetch", version, correlation_id, frame)
    assert (body.replica_id, body.min_bytes, body.isolation_level) == (-1, 1, 0)
    assert (body.max_wait, body.max_bytes) == (milliseconds(max_wait_ms), max_bytes)
    (asked,) = body.topics
    (part,) = asked.partitions
    assert (asked.topic, part.partition, part.fetch_offset) == (topic, partition, offset)
    assert part.partition_max_bytes == max_bytes
    if version >= 5:
        assert part.log_start_offset == -1
    if version >= 7:
        assert (body.session_id, body.session_epoch, body.forgotten_topics_data) == (0, -1, ())
    if version >= 9:
        assert part.current_leader_epoch == -1
    if version >= 11:
        assert body.rack_id == ""
    if version >= 12:
        assert part.last_fetched_epoch == -1
        assert body.cluster_id is None


@every_version(apis.LIST_OFFSETS)
@given(correlation_id=int32s, topic=texts, partition=int32s, timestamp=int64s)
def test_list_offsets_request_reads_back(
    version: int, correlation_id: int, topic: str, partition: int, timestamp: int
) -> None:
    frame = protocol.encode_list_offsets(version, correlation_id, "me", topic, partition, timestamp)
    body = read(apis.LIST_OFFSETS, "list_offsets", version, correlation_id, frame)
    assert body.replica_id == -1
    (asked,) = body.topics
    (part,) = asked.partitions
    assert (asked.name, part.partition_index, part.timestamp) == (topic, partition, timestamp)
    if version >= 2:
        assert body.isolation_level == 0
    if version >= 4:
        assert part.current_leader_epoch == -1


@every_version(apis.CREATE_TOPICS)
@given(
    correlation_id=int32s,
    name=texts,
    partitions=int32s,
    replicas=int16s,
    configs=options,
    timeout_ms=durations_ms,
)
def test_create_topics_request_reads_back(
    version: int,
    correlation_id: int,
    name: str,
    partitions: int,
    replicas: int,
    configs: dict[str, str],
    timeout_ms: int,
) -> None:
    if version < 4:
        partitions, replicas = max(partitions, 0), max(replicas, 0)
    frame = protocol.encode_create_topics(
        version, correlation_id, "me", name, partitions, replicas, configs, timeout_ms
    )
    body = read(apis.CREATE_TOPICS, "create_topics", version, correlation_id, frame)
    (topic,) = body.topics
    assert (topic.name, topic.num_partitions, topic.replication_factor) == (name, partitions, replicas)
    assert topic.assignments == ()
    assert {each.name: each.value for each in topic.configs} == configs
    assert (body.timeout, body.validate_only) == (milliseconds(timeout_ms), False)


@every_version(apis.DESCRIBE_CONFIGS)
@given(
    correlation_id=int32s,
    resource_type=st.sampled_from([protocol.TOPIC, protocol.BROKER]),
    names=st.lists(texts, max_size=3),
    keys=st.none() | st.lists(texts, max_size=3),
)
def test_describe_configs_request_reads_back(
    version: int, correlation_id: int, resource_type: int, names: list[str], keys: list[str] | None
) -> None:
    frame = protocol.encode_describe_configs(version, correlation_id, "me", resource_type, names, keys)
    body = read(apis.DESCRIBE_CONFIGS, "describe_configs", version, correlation_id, frame)
    assert [each.resource_name for each in body.resources] == names
    assert all(each.resource_type == resource_type for each in body.resources)
    expected = None if keys is None else tuple(keys)
    assert all(each.configuration_keys == expected for each in body.resources)
    assert body.include_synonyms is False
    if version >= 3:
        assert body.include_documentation is False


@pytest.mark.parametrize(
    ("frame", "golden"),
    [
        (
            protocol.encode_fetch(4, 7, "c", "t", 3, 5, 1024, 9),
            "00000037 0001 0004 00000007 0001 63  ffffffff 00000009 00000001 00000400 00"
            "00000001 0001 74 00000001  00000003 0000000000000005 00000400",
        ),
        (
            protocol.encode_fetch(11, 7, "c", "t", 3, 5, 1024),
            "00000051 0001 000b 00000007 0001 63  ffffffff 00000000 00000001 00000400 00 00000000 ffffffff"
            "00000001 0001 74 00000001  00000003 ffffffff 0000000000000005 ffffffffffffffff 00000400"
            "00000000 0000",
        ),
        (
            protocol.encode_fetch(12, 7, "c", "t", 3, 5, 1024),
            "0000004e 0001 000c 00000007 0001 63 00  ffffffff 00000000 00000001 00000400 00 00000000 ffffffff"
            "02 02 74 02  00000003 ffffffff 0000000000000005 ffffffff ffffffffffffffff 00000400 00 00"
            "01 01 00",
        ),
        (
            protocol.encode_list_offsets(1, 7, "c", "t", 3, protocol.LATEST),
            "00000026 0002 0001 00000007 0001 63  ffffffff"
            "00000001 0001 74 00000001  00000003 ffffffffffffffff",
        ),
        (
            protocol.encode_list_offsets(7, 7, "c", "t", 3, protocol.EARLIEST),
            "00000028 0002 0007 00000007 0001 63 00  ffffffff 00"
            "02 02 74 02  00000003 ffffffff fffffffffffffffe 00 00 00",
        ),
        (
            protocol.encode_create_topics(2, 7, "c", "t", 3, 2, {"a": "b"}, 9),
            "0000002b 0013 0002 00000007 0001 63"
            "00000001 0001 74 00000003 0002 00000000 00000001 0001 61 0001 62  00000009 00",
        ),
        (
            protocol.encode_create_topics(7, 7, "c", "t", -1, -1, {"a": "b"}, 9),
            "00000023 0013 0007 00000007 0001 63 00"
            "02 02 74 ffffffff ffff 01 02 02 61 02 62 00 00  00000009 00 00",
        ),
        (
            protocol.encode_describe_configs(1, 7, "c", protocol.BROKER, ["2"], ["k"]),
            "0000001b 0020 0001 00000007 0001 63  00000001 04 0001 32 00000001 0001 6b  00",
        ),
        (
            protocol.encode_describe_configs(4, 7, "c", protocol.TOPIC, ["t"]),
            "00000015 0020 0004 00000007 0001 63 00  02 02 02 74 00 00  00 00 00",
        ),
    ],
)
def test_request_bytes_match_the_protocol_guide(frame: bytes, golden: str) -> None:
    assert frame.hex() == golden.replace(" ", "")


@pytest.mark.parametrize(("partitions", "replicas"), [(-1, 1), (1, -1)])
def test_the_brokers_defaults_need_a_version(partitions: int, replicas: int) -> None:
    problem = f"partitions={partitions} with replication_factor={replicas} needs version 4"
    with pytest.raises(ValueError, match=problem):
        protocol.encode_create_topics(3, 1, None, "t", partitions, replicas, {}, 1)
    assert protocol.encode_create_topics(4, 1, None, "t", partitions, replicas, {}, 1)


def test_fetch_by_topic_id_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"Fetch v13 request: topics\.topic='t' needs version 12 or older"):
        protocol.encode_fetch(13, 1, None, "t", 0, 0, 1)
    with pytest.raises(ValueError, match="Fetch version 3 is not implemented, only 4 to 18"):
        protocol.decode_fetch(3, b"")


# Responses

fetched = st.builds(
    FetchedPartition,
    topic=st.sampled_from(["a", "b", ""]),
    partition=int32s,
    error_code=error_codes,
    high_watermark=int64s,
    last_stable_offset=int64s,
    log_start_offset=int64s,
    records=st.binary(max_size=30),
)


@every_version(apis.FETCH)
@given(response=st.builds(FetchResponse, durations_ms, error_codes, st.lists(fetched, max_size=6)))
def test_fetch_response_of_another_codec_is_read(version: int, response: FetchResponse) -> None:
    decoded = protocol.decode_fetch(version, write_fetch(version, response))
    assert all(type(each) is FetchedPartition for each in decoded.partitions)
    expected = response
    if version < 7:
        expected = expected._replace(error_code=0)
    if version < 5:
        expected = expected._replace(
            partitions=[part._replace(log_start_offset=-1) for part in expected.partitions]
        )
    assert decoded == expected


@every_version(apis.LIST_OFFSETS)
@given(
    response=st.builds(
        ListOffsetsResponse,
        durations_ms,
        st.lists(
            st.builds(
                ListedOffset,
                topic=st.sampled_from(["a", "b", ""]),
                partition=int32s,
                error_code=error_codes,
                timestamp=int64s,
                offset=int64s,
                leader_epoch=int32s,
            ),
            max_size=6,
        ),
    )
)
def test_list_offsets_response_of_another_codec_is_read(version: int, response: ListOffsetsResponse) -> None:
    decoded = protocol.decode_list_offsets(version, write_list_offsets(version, response))
    assert all(type(each) is ListedOffset for each in decoded.offsets)
    expected = response
    if version < 2:
        expected = expected._replace(throttle_time_ms=0)
    if version < 4:
        expected = expected._replace(offsets=[part._replace(leader_epoch=-1) for part in expected.offsets])
    assert decoded == expected


@every_version(apis.CREATE_TOPICS)
@given(
    response=st.builds(
        CreateTopicsResponse,
        durations_ms,
        st.lists(
            st.builds(
                CreatedTopic,
                name=texts,
                topic_id=st.binary(min_size=16, max_size=16),
                error_code=error_codes,
                error_message=st.none() | shown_texts,
            ),
            max_size=5,
        ),
    )
)
def test_create_topics_response_of_another_codec_is_read(
    version: int, response: CreateTopicsResponse
) -> None:
    decoded = protocol.decode_create_topics(version, write_create_topics(version, response))
    assert all(type(each) is CreatedTopic for each in decoded.topics)
    if version < 7:
        response = response._replace(
            topics=[topic._replace(topic_id=NO_TOPIC_ID) for topic in response.topics]
        )
    assert decoded == response


@every_version(apis.DESCRIBE_CONFIGS)
@given(
    response=st.builds(
        DescribeConfigsResponse,
        durations_ms,
        st.lists(
            st.builds(
                DescribedConfigs,
                error_code=error_codes,
                error_message=st.none() | shown_texts,
                resource_type=st.sampled_from([2, 4, 8, 127]),
                name=texts,
                configs=st.dictionaries(texts, st.none() | texts, max_size=4),
            ),
            max_size=3,
        ),
    )
)
def test_describe_configs_response_of_another_codec_is_read(
    version: int, response: DescribeConfigsResponse
) -> None:
    decoded = protocol.decode_describe_configs(version, write_describe_configs(version, response))
    assert all(type(each) is DescribedConfigs for each in decoded.results)
    assert decoded == response


@pytest.mark.parametrize(
    ("decode", "version", "frame", "response"),
    [
        (
            protocol.decode_fetch,
            4,
            "00000007 00000001 00000001 0001 74 00000001"
            "00000003 0000 0000000000000009 0000000000000008 ffffffff 00000002 abcd",
            FetchResponse(1, 0, [FetchedPartition("t", 3, 0, 9, 8, -1, b"\xab\xcd")]),
        ),
        (
            protocol.decode_fetch,
            12,
            "00000007 00 00000001 0046 00000000 02 02 74 02"
            "00000003 0006 ffffffffffffffff ffffffffffffffff ffffffffffffffff 00 ffffffff 00"
            "01 01 09 00000002 00000005 00  00 00",
            FetchResponse(1, 70, [FetchedPartition("t", 3, 6, -1, -1, -1, b"")]),
        ),
        (
            protocol.decode_list_offsets,
            1,
            "00000007 00000001 0001 74 00000001 00000003 0000 ffffffffffffffff 0000000000000009",
            ListOffsetsResponse(0, [ListedOffset("t", 3, 0, -1, 9, -1)]),
        ),
        (
            protocol.decode_list_offsets,
            7,
            "00000007 00 00000001 02 02 74 02 00000003 004e ffffffffffffffff ffffffffffffffff 00000002 00 00"
            "00",
            ListOffsetsResponse(1, [ListedOffset("t", 3, 78, -1, -1, 2)]),
        ),
        (
            protocol.decode_create_topics,
            2,
            "00000007 00000001 00000001 0001 74 0024 0001 78",
            CreateTopicsResponse(1, [CreatedTopic("t", NO_TOPIC_ID, 36, "x")]),
        ),
        (
            protocol.decode_create_topics,
            7,
            "00000007 00 00000001 02 02 74 000102030405060708090a0b0c0d0e0f 0000 00 00000003 0002"
            "02 02 61 02 62 00 01 00 00  00 00",
            CreateTopicsResponse(1, [CreatedTopic("t", bytes(range(16)), 0, None)]),
        ),
        (
            protocol.decode_describe_configs,
            1,
            "00000007 00000001 00000001 0000 ffff 02 0001 74 00000002"
            "0001 61 0001 62 00 05 00 00000001 0001 73 ffff 04  0001 63 ffff 00 05 01 00000000",
            DescribeConfigsResponse(1, [DescribedConfigs(0, None, 2, "t", {"a": "b", "c": None})]),
        ),
        (
            protocol.decode_describe_configs,
            4,
            "00000007 00 00000001 02 001d 02 78 04 02 32 02 02 61 02 62 00 05 00 01 02 00 00 00 00",
            DescribeConfigsResponse(1, [DescribedConfigs(29, "x", 4, "2", {"a": "b"})]),
        ),
    ],
)
def test_response_bytes_match_the_protocol_guide(
    decode: Callable[[int, bytes], Any], version: int, frame: str, response: object
) -> None:
    assert decode(version, bytes.fromhex(frame)) == response


@pytest.mark.parametrize(
    ("version", "records", "problem"),
    [
        (4, "fffffffe", "responses.partitions.records has a count of -2"),
        (4, "00000003 abcd", "responses.partitions.records claims 3 elements of at least 1 bytes"),
        (4, "7fffffff abcd", "responses.partitions.records claims 2147483647 elements"),
    ],
)
def test_the_size_of_records_is_checked(version: int, records: str, problem: str) -> None:
    frame = bytes.fromhex(
        "00000007 00000001 00000001 0001 74 00000001 00000003 0000 0000000000000009 0000000000000008 ffffffff"
        + records
    )
    with pytest.raises(KafkaProtocolError, match=f"Fetch v{version} response: {problem}"):
        protocol.decode_fetch(version, frame)
