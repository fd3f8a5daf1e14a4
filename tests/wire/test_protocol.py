"""What the encoders fill in, and the shape that the decoders give a response, against golden bytes.

Those of transactions and of reading have modules of their own. That every message has the bytes of Kafka's
schema in every version is tested in ``test_messages``.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyproducer.wire import messages as apis
from cyproducer.wire import protocol, sasl_api
from cyproducer.wire.responses import (
    NO_TOPIC_ID,
    ApiVersionsResponse,
    BrokerInfo,
    InitProducerIdResponse,
    MetadataResponse,
    PartitionInfo,
    ReplicatedPartition,
    TopicInfo,
)
from cyproducer.wire.sasl_api import SaslAuthenticateResponse, SaslHandshakeResponse

# Requests


@pytest.mark.parametrize(
    ("frame", "golden"),
    [
        (protocol.encode_api_versions(0, 7, "c", "cy", "1"), "0000000b 0012 0000 00000007 0001 63"),
        (
            protocol.encode_api_versions(3, 7, "c", "cy", "1"),
            "00000012 0012 0003 00000007 0001 63 00  03 6379  02 31  00",
        ),
        (protocol.encode_metadata(1, 7, None, None, True), "0000000e 0003 0001 00000007 ffff  ffffffff"),
        (protocol.encode_metadata(1, 7, None, [], True), "0000000e 0003 0001 00000007 ffff  00000000"),
        (
            protocol.encode_metadata(8, 7, "c", ["t"], False),
            "00000015 0003 0008 00000007 0001 63  00000001 0001 74  00 00 00",
        ),
        (
            protocol.encode_metadata(7, 7, "c", ["t"], True, True),
            "00000013 0003 0007 00000007 0001 63  00000001 0001 74 01",
        ),
        (
            protocol.encode_metadata(8, 7, "c", ["t"], True, True),
            "00000015 0003 0008 00000007 0001 63  00000001 0001 74 01 00 01",
        ),
        (
            protocol.encode_metadata(12, 7, "c", None, True),
            "00000010 0003 000c 00000007 0001 63 00  00 01 00 00",
        ),
        (
            protocol.encode_metadata(12, 7, "c", ["t"], True),
            "00000023 0003 000c 00000007 0001 63 00  02 00000000000000000000000000000000 02 74 00  01 00 00",
        ),
        (
            protocol.encode_init_producer_id(1, 7, "c", None, 60_000),
            "00000011 0016 0001 00000007 0001 63  ffff 0000ea60",
        ),
        (
            protocol.encode_init_producer_id(4, 7, "c", "tx", 60_000, 1000, 2),
            "0000001e 0016 0004 00000007 0001 63 00  03 7478 0000ea60 00000000000003e8 0002 00",
        ),
        (
            protocol.encode_sasl_handshake(1, 7, "c", "PLAIN"),
            "00000012 0011 0001 00000007 0001 63  0005 504c41494e",
        ),
        (
            protocol.encode_sasl_authenticate(0, 7, "c", b"\xab"),
            "00000010 0024 0000 00000007 0001 63  00000001 ab",
        ),
        (
            protocol.encode_sasl_authenticate(2, 7, "c", b"\xab"),
            "0000000f 0024 0002 00000007 0001 63 00  02 ab 00",
        ),
    ],
)
def test_request_bytes_match_the_protocol_guide(frame: bytes, golden: str) -> None:
    assert frame.hex() == golden.replace(" ", "")


def test_values_that_a_version_cannot_encode_are_rejected() -> None:
    with pytest.raises(ValueError, match="allow_auto_topic_creation=False needs version 4"):
        protocol.encode_metadata(3, 1, None, [], False)
    with pytest.raises(ValueError, match="producer_id=5 needs version 3"):
        protocol.encode_init_producer_id(2, 1, None, None, 1, 5)
    with pytest.raises(ValueError, match="producer_epoch=0 needs version 3"):
        protocol.encode_init_producer_id(2, 1, None, None, 1, -1, 0)


@pytest.mark.parametrize("version", [-1, 6])
def test_unimplemented_versions_are_rejected(version: int) -> None:
    with pytest.raises(ValueError, match=f"ApiVersions version {version} is not implemented, only 0 to 5"):
        protocol.encode_api_versions(version, 1, None, "n", "v")
    with pytest.raises(ValueError, match=f"ApiVersions version {version} is not implemented, only 0 to 5"):
        protocol.decode_api_versions(version, b"")
    with pytest.raises(ValueError, match="Metadata version 14 is not implemented, only 0 to 13"):
        protocol.decode_metadata(14, b"")
    with pytest.raises(ValueError, match="InitProducerId version 6 is not implemented, only 0 to 5"):
        protocol.decode_init_producer_id(6, b"")


def test_errors_name_strings_that_cannot_be_encoded() -> None:
    with pytest.raises(ValueError, match=r"Metadata v9 request: topics.name 'x{40}'... is 32768 bytes"):
        protocol.encode_metadata(9, 1, None, ["x" * 32768], True)
    with pytest.raises(ValueError, match=r"client_id .* is not valid Unicode text"):
        protocol.encode_metadata(9, 1, "\ud800", [], True)
    with pytest.raises(ValueError, match=r"topics\.name is None"):
        protocol.encode_metadata(9, 1, None, [None], True)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="correlation_id is 2147483648, it must be an int of 32 bits"):
        protocol.encode_metadata(9, 2**31, None, [], True)


# Responses


@pytest.mark.parametrize(
    ("decode", "version", "frame", "response"),
    [
        (
            protocol.decode_api_versions,
            0,
            "00000007 0000 00000001 0012 0000 0004",
            ApiVersionsResponse(0, {18: (0, 4)}, 0, {}, -1),
        ),
        (
            protocol.decode_api_versions,
            3,
            "00000007 0000 02 0012 0000 0004 00 00000001"
            "03 00 08 02 0266 0001 0005 00 01 08 0000000000000009 02 08 02 0266 0003 0002 00",
            ApiVersionsResponse(0, {18: (0, 4)}, 1, {"f": (2, 3)}, 9),
        ),
        (
            protocol.decode_metadata,
            1,
            "00000007 00000001 00000002 0001 68 00002384 ffff 00000004"
            "00000001 0000 0001 74 01 00000001 0005 00000003 00000002 00000001 00000002 00000001 00000002",
            MetadataResponse(
                0,
                [BrokerInfo(2, "h", 9092, None)],
                None,
                4,
                [TopicInfo(0, "t", NO_TOPIC_ID, True, [PartitionInfo(5, 3, 2, -1)])],
            ),
        ),
        *(
            (
                decode,
                13,
                "00000007 00 00000001 02 00000002 02 68 00002384 02 72 00 02 63 00000004"
                "02 0000 02 74 000102030405060708090a0b0c0d0e0f 00"
                "02 0005 00000003 00000002 00000006 03 00000002 00000004 02 00000004 01 00"
                "00000df8 00 0046 00",
                MetadataResponse(
                    1,
                    [BrokerInfo(2, "h", 9092, "r")],
                    "c",
                    4,
                    [TopicInfo(0, "t", bytes(range(16)), False, [partition], 0xDF8)],  # type: ignore[list-item]
                    70,
                ),
            )
            for decode, partition in (
                (protocol.decode_metadata, PartitionInfo(5, 3, 2, 6)),
                (protocol.decode_listing, ReplicatedPartition(5, 3, 2, 6, [2, 4], [4])),
            )
        ),
        # A topic without a name.
        (
            protocol.decode_metadata,
            12,
            "00000007 00 00000001 01 00 ffffffff 02 0064 00 000102030405060708090a0b0c0d0e0f 00 01"
            "80000000 00 00",
            MetadataResponse(1, [], None, -1, [TopicInfo(100, None, bytes(range(16)), False, [])]),
        ),
        (
            protocol.decode_init_producer_id,
            0,
            "00000007 00000001 0000 00000000000003e8 0002",
            InitProducerIdResponse(1, 0, 1000, 2),
        ),
        (
            protocol.decode_init_producer_id,
            0,
            "00000007 00000001 0033 ffffffffffffffff ffff",
            InitProducerIdResponse(1, 51, -1, -1),
        ),
        # Unknown tagged fields. In the header: one with tag 9; in the body: tag 300, two bytes of varint.
        (
            protocol.decode_init_producer_id,
            4,
            "00000007 01 09 02 abcd 00000003 0000 0000000000000009 0001 01 ac02 01 ff",
            InitProducerIdResponse(3, 0, 9, 1),
        ),
        (
            sasl_api.decode_sasl_handshake,
            1,
            "00000007 0021 00000002 0005 504c41494e 0001 78",
            SaslHandshakeResponse(33, ["PLAIN", "x"]),
        ),
        (
            sasl_api.decode_sasl_authenticate,
            0,
            "00000007 0000 ffff 00000002 abcd",
            SaslAuthenticateResponse(0, None, b"\xab\xcd", 0),
        ),
        (
            sasl_api.decode_sasl_authenticate,
            2,
            "00000007 00 003a 02 78 03 abcd 0000000000000005 00",
            SaslAuthenticateResponse(58, "x", b"\xab\xcd", 5),
        ),
    ],
)
def test_response_bytes_match_the_protocol_guide(
    decode: Callable[[int, bytes], Any], version: int, frame: str, response: object
) -> None:
    found = decode(version, bytes.fromhex(frame))
    # Equal tuples may be of different types.
    assert (found, repr(found)) == (response, repr(response))


numbers = st.integers(-(2**31), 2**31 - 1)
nodes = st.lists(numbers, max_size=3)
partitions = st.builds(
    apis.METADATA.response.MetadataResponsePartition,
    st.integers(-(2**15), 2**15 - 1),
    st.integers(0, 999_999),
    numbers,
    numbers,
    nodes,
    nodes,
    nodes,
)


@pytest.mark.parametrize("version", range(apis.METADATA.lowest, apis.METADATA.highest + 1))
@given(topics=st.lists(st.lists(partitions, max_size=5), max_size=3))
def test_partitions_are_read_in_c_as_they_are_declared(version: int, topics: list[list[Any]]) -> None:
    message = apis.METADATA.response
    response = message(
        topics=[message.MetadataResponseTopic(0, "t", b"i" * 16, True, each, 5) for each in topics],
        brokers=[message.MetadataResponseBroker(1, "h", 9092, "r")],
        error_code=0,
    )
    frame = apis.METADATA.encode_response(version, 7, response)[4:]
    declared = apis.METADATA.decode_response(version, frame)
    for decode, kind in (
        (protocol.decode_metadata, PartitionInfo),
        (protocol.decode_listing, ReplicatedPartition),
    ):
        found = decode(version, memoryview(frame))
        assert found.brokers == declared.brokers
        assert [topic[:4] + topic[5:] for topic in found.topics] == [
            topic[:4] + topic[5:] for topic in declared.topics
        ]
        for topic, theirs in zip(found.topics, declared.topics, strict=True):
            assert topic.partitions == [
                (code, index, max(leader, -1), max(epoch, -1), *replicas)[: len(kind._fields)]
                for code, index, leader, epoch, *replicas in theirs.partitions
            ]
            assert all(type(each) is kind for each in topic.partitions)


@pytest.mark.parametrize("version", range(5))
def test_unsupported_version_responses_have_version_0_and_the_supported_range(version: int) -> None:
    frame = bytes.fromhex("00000007 0023 00000001 0012 0000 0002")
    assert protocol.decode_api_versions(version, frame) == ApiVersionsResponse(35, {18: (0, 2)}, 0, {})
