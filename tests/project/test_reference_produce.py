"""The Produce reference compared with kio and golden bytes, and the errors it must detect."""

import datetime
import importlib
import io
import struct
import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from tools.harness.reference_records import (
    MalformedError,
    PartitionResponse,
    ProduceRequest,
    Topic,
    decode_produce_request,
    encode_produce_response,
)

VERSIONS = range(3, 14)
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=40)
TOPIC_ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
# kio can't represent the zero id.
TOPIC_IDS = st.uuids().filter(lambda topic_id: topic_id.int != 0)


def kio_schema(version: int, message: str) -> Any:
    return importlib.import_module(f"kio.schema.produce.v{version}.{message}")


def topics(version: int, partition: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[Topic, Any]]]:
    key: st.SearchStrategy[Topic] = TOPIC_IDS if version >= 13 else TEXT
    return st.lists(st.tuples(key, st.lists(partition, max_size=4)), max_size=4)


@st.composite
def requests(draw: st.DrawFn) -> ProduceRequest:
    version = draw(st.sampled_from(VERSIONS))
    return ProduceRequest(
        correlation_id=draw(I32),
        api_version=version,
        client_id=draw(st.none() | TEXT),
        transactional_id=draw(st.none() | TEXT),
        acks=draw(st.sampled_from([-1, 0, 1])),
        timeout_ms=draw(st.integers(0, 2**31 - 1)),
        topics=draw(topics(version, st.tuples(I32, st.none() | st.binary(max_size=300)))),
    )


def encode_with_kio(request: ProduceRequest) -> bytes:
    schema = kio_schema(request.api_version, "request")
    header_type = schema.ProduceRequest.__header_schema__
    header = header_type(
        request_api_key=0,
        request_api_version=request.api_version,
        correlation_id=request.correlation_id,
        client_id=request.client_id,
    )
    key = "topic_id" if request.api_version >= 13 else "name"
    topic_data = tuple(
        schema.TopicProduceData(
            **{key: topic},
            partition_data=tuple(
                schema.PartitionProduceData(index=index, records=records) for index, records in partitions
            ),
        )
        for topic, partitions in request.topics
    )
    body = schema.ProduceRequest(
        transactional_id=request.transactional_id,
        acks=request.acks,
        timeout=datetime.timedelta(milliseconds=request.timeout_ms),
        topic_data=topic_data,
    )
    out = io.BytesIO()
    entity_writer(header_type)(out, header)
    entity_writer(schema.ProduceRequest)(out, body)
    return struct.pack(">i", len(out.getvalue())) + out.getvalue()


@given(requests())
def test_requests_encoded_by_kio_are_decoded(request: ProduceRequest) -> None:
    assert decode_produce_request(encode_with_kio(request)) == request


@pytest.mark.parametrize(
    ("version", "frame"),
    [
        (3, "00000028 0000 0003 00000007 0001 63 ffff ffff 00001388 00000001 0001 74 00000001 00000002"
            " 00000002 abcd"),
        (9, "00000021 0000 0009 00000007 0001 63 00 00 ffff 00001388 02 02 74 02 00000002 03 abcd 00 00 00"),
        (13, "0000002f 0000 000d 00000007 0001 63 00 00 ffff 00001388 02" + TOPIC_ID.hex
            + "02 00000002 03 abcd 00 00 00"),
    ],
)  # fmt: skip
def test_golden_requests_are_decoded(version: int, frame: str) -> None:
    topic: Topic = TOPIC_ID if version == 13 else "t"
    expected = ProduceRequest(7, version, "c", None, -1, 5000, [(topic, [(2, b"\xab\xcd")])])
    assert decode_produce_request(bytes.fromhex(frame)) == expected


ONE = ProduceRequest(7, 9, "c", "tx", -1, 5000, [("t", [(2, b"\xab\xcd")])])


def reframed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame) - 4) + frame[4:]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_with_a_byte_more_or_less_is_refused(version: int) -> None:
    topic: Topic = TOPIC_ID if version == 13 else "t"
    frame = encode_with_kio(replace(ONE, api_version=version, topics=[(topic, [(2, b"\xab\xcd")])]))
    for wrong in (frame + b"\x00", frame[:-1]):
        with pytest.raises(MalformedError, match="frame says"):
            decode_produce_request(wrong)
        with pytest.raises(MalformedError, match=r"after the last request|bytes wanted|tags before"):
            decode_produce_request(reframed(wrong))


@pytest.mark.parametrize(
    ("at", "new", "says"),
    [
        (5, "01", "api key 1 version 9"),
        (7, "02", "version 2 is not"),
        (7, "0e", "version 14 is not"),
        (15, "010000", "1 tags"),  # of the header
        (20, "02", "acks is"),
        (25, "00", "array before byte .* has length -1"),
        (26, "00", "name is null"),
        (36, "010000", "1 tags"),  # of the partition
        (37, "010000", "1 tags"),  # of the topic
        (38, "010000", "1 tags"),  # of the request
    ],
)
def test_a_wrong_byte_in_a_request_is_refused(at: int, new: str, says: str) -> None:
    frame = bytearray(encode_with_kio(ONE))
    frame[at : at + 1] = bytes.fromhex(new)
    with pytest.raises(MalformedError, match=says):
        decode_produce_request(reframed(bytes(frame)))


@st.composite
def partition_responses(draw: st.DrawFn, version: int) -> PartitionResponse:
    return PartitionResponse(
        partition=draw(I32),
        error_code=draw(st.sampled_from([0, 2, 3, 6, 45, 100, -1])),
        base_offset=draw(I64),
        log_append_time_ms=draw(st.just(-1) | st.integers(0, 4_000_000_000_000)),
        log_start_offset=draw(I64),
        record_errors=draw(st.lists(st.tuples(I32, st.none() | TEXT), max_size=3)),
        error_message=draw(st.none() | TEXT),
        current_leader=draw(st.none() | st.tuples(I32, I32)) if version >= 10 else None,
    )


def show(partition: Any, version: int) -> PartitionResponse:
    """The response as read by kio: the fields that the version has, and defaults for the others."""
    append = partition.log_append_time
    epoch = datetime.datetime.fromtimestamp(0, datetime.UTC)
    leader = getattr(partition, "current_leader", None)
    return PartitionResponse(
        partition.index,
        int(partition.error_code),
        partition.base_offset,
        -1 if append is None else (append - epoch) // datetime.timedelta(milliseconds=1),
        partition.log_start_offset if version >= 5 else -1,
        [(one.batch_index, one.batch_index_error_message) for one in getattr(partition, "record_errors", ())],
        getattr(partition, "error_message", None),
        None if leader is None else (leader.leader_id, leader.leader_epoch),
    )


def expected(answer: PartitionResponse, version: int) -> PartitionResponse:
    if version < 5:
        answer = answer._replace(log_start_offset=-1)
    if version < 8:
        answer = answer._replace(record_errors=[], error_message=None)
    if version >= 10 and answer.current_leader is None:
        answer = answer._replace(current_leader=(-1, -1))
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=40)
@given(data=st.data())
def test_kio_decodes_every_encoded_response(version: int, data: st.DataObject) -> None:
    answers = data.draw(topics(version, partition_responses(version)))
    correlation_id, throttle_ms = data.draw(I32), data.draw(st.integers(0, 2**31 - 1))
    nodes = st.lists(st.tuples(I32, TEXT, I32, st.none() | TEXT), max_size=3)
    endpoints = data.draw(nodes) if version >= 10 else []

    frame = encode_produce_response(version, correlation_id, answers, throttle_ms, endpoints)

    schema = kio_schema(version, "response").ProduceResponse
    assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
    header, header_size = entity_reader(schema.__header_schema__)(frame, 4)
    body, body_size = entity_reader(schema)(frame, 4 + header_size)
    assert 4 + header_size + body_size == len(frame)
    assert header.correlation_id == correlation_id
    assert body.throttle_time == datetime.timedelta(milliseconds=throttle_ms)
    got = [
        (
            topic.topic_id if version >= 13 else topic.name,
            [show(partition, version) for partition in topic.partition_responses],
        )
        for topic in body.responses
    ]
    assert got == [(topic, [expected(one, version) for one in partitions]) for topic, partitions in answers]
    if version >= 10:
        assert [(one.node_id, one.host, one.port, one.rack) for one in body.node_endpoints] == endpoints


def test_a_response_with_a_moved_leader_matches_golden_bytes() -> None:
    answer = PartitionResponse(2, int(ErrorCode.not_leader_or_follower), current_leader=(5, 9))
    frame = encode_produce_response(13, 7, [(TOPIC_ID, [answer])], 3, [(5, "h", 9092, None)])
    assert frame == bytes.fromhex(
        "00000058 00000007 00 02" + TOPIC_ID.hex + "02 00000002 0006" + "ff" * 24 + "01 00"
        " 01 00 09 00000005 00000009 00 00 00000003 01 00 0d 02 00000005 02 68 00002384 00 00"
    )


def test_plain_tuples_are_accepted_as_partitions() -> None:
    plain: Any = (2, 0, 41)
    named = PartitionResponse(partition=2, error_code=0, base_offset=41)
    encoded = encode_produce_response(8, 1, [("t", [named])])
    assert encode_produce_response(8, 1, [("t", [plain])]) == encoded


@pytest.mark.parametrize(
    ("version", "topic", "more", "says"),
    [
        (2, "t", {}, r"version must be 3\.\.13, not 2"),
        (14, TOPIC_ID, {}, "not 14"),
        (12, TOPIC_ID, {}, "version 12 does not take"),
        (13, "t", {}, "version 13 does not take"),
        (9, "t", {"node_endpoints": [(1, "h", 1, None)]}, "no node_endpoints"),
    ],
)
def test_a_response_that_the_version_does_not_support_is_refused(
    version: int, topic: Topic, more: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        encode_produce_response(version, 1, [(topic, [PartitionResponse(0)])], **more)


def test_a_leader_that_the_version_does_not_support_is_refused() -> None:
    with pytest.raises(ValueError, match="version 9 has no current_leader"):
        encode_produce_response(9, 1, [("t", [PartitionResponse(0, current_leader=(1, 1))])])
