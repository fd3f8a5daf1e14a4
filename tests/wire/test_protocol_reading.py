"""Fetch, ListOffsets, CreateTopics, DescribeConfigs: requests and decoded responses against golden bytes."""

from collections.abc import Callable
from typing import Any

import pytest

from cyproducer.errors import KafkaProtocolError
from cyproducer.wire import admin_api
from cyproducer.wire.admin_api import (
    CreatedTopic,
    CreateTopicsResponse,
    DescribeConfigsResponse,
    DescribedConfigs,
    FetchedPartition,
    FetchResponse,
    ListedOffset,
    ListOffsetsResponse,
)
from cyproducer.wire.responses import NO_TOPIC_ID

# Requests


@pytest.mark.parametrize(
    ("frame", "golden"),
    [
        (
            admin_api.encode_fetch(4, 7, "c", "t", 3, 5, 1024, 9),
            "00000037 0001 0004 00000007 0001 63  ffffffff 00000009 00000001 00000400 00"
            "00000001 0001 74 00000001  00000003 0000000000000005 00000400",
        ),
        (
            admin_api.encode_fetch(11, 7, "c", "t", 3, 5, 1024),
            "00000051 0001 000b 00000007 0001 63  ffffffff 00000000 00000001 00000400 00 00000000 ffffffff"
            "00000001 0001 74 00000001  00000003 ffffffff 0000000000000005 ffffffffffffffff 00000400"
            "00000000 0000",
        ),
        (
            admin_api.encode_fetch(12, 7, "c", "t", 3, 5, 1024),
            "0000004e 0001 000c 00000007 0001 63 00  ffffffff 00000000 00000001 00000400 00 00000000 ffffffff"
            "02 02 74 02  00000003 ffffffff 0000000000000005 ffffffff ffffffffffffffff 00000400 00 00"
            "01 01 00",
        ),
        (
            admin_api.encode_list_offsets(1, 7, "c", "t", 3, admin_api.LATEST),
            "00000026 0002 0001 00000007 0001 63  ffffffff"
            "00000001 0001 74 00000001  00000003 ffffffffffffffff",
        ),
        (
            admin_api.encode_list_offsets(7, 7, "c", "t", 3, admin_api.EARLIEST),
            "00000028 0002 0007 00000007 0001 63 00  ffffffff 00"
            "02 02 74 02  00000003 ffffffff fffffffffffffffe 00 00 00",
        ),
        (
            admin_api.encode_create_topics(2, 7, "c", "t", 3, 2, {"a": "b"}, 9),
            "0000002b 0013 0002 00000007 0001 63"
            "00000001 0001 74 00000003 0002 00000000 00000001 0001 61 0001 62  00000009 00",
        ),
        (
            admin_api.encode_create_topics(7, 7, "c", "t", -1, -1, {"a": "b"}, 9),
            "00000023 0013 0007 00000007 0001 63 00"
            "02 02 74 ffffffff ffff 01 02 02 61 02 62 00 00  00000009 00 00",
        ),
        (
            admin_api.encode_describe_configs(1, 7, "c", ["t"]),
            "00000018 0020 0001 00000007 0001 63  00000001 02 0001 74 ffffffff  00",
        ),
        (
            admin_api.encode_describe_configs(4, 7, "c", ["t"]),
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
        admin_api.encode_create_topics(3, 1, None, "t", partitions, replicas, {}, 1)
    assert admin_api.encode_create_topics(4, 1, None, "t", partitions, replicas, {}, 1)


def test_fetch_by_topic_id_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"Fetch v13 request: topics\.topic='t' needs version 12 or older"):
        admin_api.encode_fetch(13, 1, None, "t", 0, 0, 1)
    with pytest.raises(ValueError, match="Fetch version 3 is not implemented, only 4 to 18"):
        admin_api.decode_fetch(3, b"")


# Responses


@pytest.mark.parametrize(
    ("decode", "version", "frame", "response"),
    [
        (
            admin_api.decode_fetch,
            4,
            "00000007 00000001 00000001 0001 74 00000001"
            "00000003 0000 0000000000000009 0000000000000008 ffffffff 00000002 abcd",
            FetchResponse(1, 0, [FetchedPartition("t", 3, 0, 9, 8, -1, b"\xab\xcd")]),
        ),
        (
            admin_api.decode_fetch,
            12,
            "00000007 00 00000001 0046 00000000 02 02 74 02"
            "00000003 0006 ffffffffffffffff ffffffffffffffff ffffffffffffffff 00 ffffffff 00"
            "01 01 09 00000002 00000005 00  00 00",
            FetchResponse(1, 70, [FetchedPartition("t", 3, 6, -1, -1, -1, b"")]),
        ),
        (
            admin_api.decode_list_offsets,
            1,
            "00000007 00000001 0001 74 00000001 00000003 0000 ffffffffffffffff 0000000000000009",
            ListOffsetsResponse(0, [ListedOffset("t", 3, 0, -1, 9, -1)]),
        ),
        (
            admin_api.decode_list_offsets,
            7,
            "00000007 00 00000001 02 02 74 02 00000003 004e ffffffffffffffff ffffffffffffffff 00000002 00 00"
            "00",
            ListOffsetsResponse(1, [ListedOffset("t", 3, 78, -1, -1, 2)]),
        ),
        (
            admin_api.decode_create_topics,
            2,
            "00000007 00000001 00000001 0001 74 0024 0001 78",
            CreateTopicsResponse(1, [CreatedTopic("t", NO_TOPIC_ID, 36, "x")]),
        ),
        (
            admin_api.decode_create_topics,
            7,
            "00000007 00 00000001 02 02 74 000102030405060708090a0b0c0d0e0f 0000 00 00000003 0002"
            "02 02 61 02 62 00 01 00 00  00 00",
            CreateTopicsResponse(1, [CreatedTopic("t", bytes(range(16)), 0, None)]),
        ),
        (
            admin_api.decode_describe_configs,
            1,
            "00000007 00000001 00000001 0000 ffff 02 0001 74 00000002"
            "0001 61 0001 62 00 05 00 00000001 0001 73 ffff 04  0001 63 ffff 00 05 01 00000000",
            DescribeConfigsResponse(1, [DescribedConfigs(0, None, 2, "t", {"a": "b", "c": None})]),
        ),
        (
            admin_api.decode_describe_configs,
            4,
            "00000007 00 00000001 02 001d 02 78 04 02 32 02 02 61 02 62 00 05 00 01 02 00 00 00 00",
            DescribeConfigsResponse(1, [DescribedConfigs(29, "x", 4, "2", {"a": "b"})]),
        ),
    ],
)
def test_response_bytes_match_the_protocol_guide(
    decode: Callable[[int, bytes], Any], version: int, frame: str, response: object
) -> None:
    found = decode(version, bytes.fromhex(frame))
    # Equal tuples may be of different types.
    assert (found, repr(found)) == (response, repr(response))


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
        admin_api.decode_fetch(version, frame)
