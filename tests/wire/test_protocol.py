"""Requests and responses against golden bytes and against kio, in every version."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from cyproducer.wire import protocol
from cyproducer.wire.responses import (
    ApiVersionsResponse,
    InitProducerIdResponse,
    MetadataResponse,
    PartitionInfo,
    ReplicatedPartition,
    TopicInfo,
)
from tests.wire.kio_oracle import (
    CORRELATION_ID,
    FULL_METADATA,
    as_of_version,
    durations_ms,
    error_codes,
    int16s,
    int32s,
    int64s,
    make,
    metadata_responses,
    milliseconds,
    read_request,
    schema,
    shown_texts,
    texts,
    write_metadata,
    write_response,
)

API_VERSIONS = range(5)
METADATA = range(1, 14)
INIT_PRODUCER_ID = range(6)


def assert_header(
    header: Any, api_key: int, version: int, correlation_id: int, client_id: str | None
) -> None:
    assert header.request_api_key == api_key
    assert header.request_api_version == version
    assert header.correlation_id == correlation_id
    assert header.client_id == client_id


# Requests


@pytest.mark.parametrize("version", API_VERSIONS)
@given(correlation_id=int32s, client_id=st.none() | texts, name=texts, software_version=texts)
def test_api_versions_request_reads_back(
    version: int, correlation_id: int, client_id: str | None, name: str, software_version: str
) -> None:
    frame = protocol.encode_api_versions(version, correlation_id, client_id, name, software_version)
    header, body = read_request(frame, schema("api_versions", version, "request").ApiVersionsRequest)
    assert_header(header, 18, version, correlation_id, client_id)
    if version >= 3:
        assert (body.client_software_name, body.client_software_version) == (name, software_version)


@pytest.mark.parametrize("version", METADATA)
@given(
    correlation_id=int32s,
    client_id=st.none() | texts,
    topics=st.none() | st.lists(texts, max_size=200),
    allow_auto_create=st.booleans(),
    operations=st.booleans(),
)
def test_metadata_request_reads_back(
    version: int,
    correlation_id: int,
    client_id: str | None,
    topics: list[str] | None,
    allow_auto_create: bool,
    operations: bool,
) -> None:
    allow_auto_create = allow_auto_create or version < 4
    frame = protocol.encode_metadata(
        version, correlation_id, client_id, topics, allow_auto_create, operations
    )
    header, body = read_request(frame, schema("metadata", version, "request").MetadataRequest)
    assert_header(header, 3, version, correlation_id, client_id)
    assert (None if body.topics is None else [topic.name for topic in body.topics]) == topics
    if version >= 4:
        assert body.allow_auto_topic_creation is allow_auto_create
    if 8 <= version <= 10:
        assert body.include_cluster_authorized_operations is False
    if version >= 8:
        assert body.include_topic_authorized_operations is operations
    if version >= 10:
        assert all(topic.topic_id is None for topic in body.topics or ())


@pytest.mark.parametrize("version", INIT_PRODUCER_ID)
@given(
    correlation_id=int32s,
    transactional_id=st.none() | texts,
    timeout_ms=durations_ms,
    producer_id=int64s,
    producer_epoch=int16s,
)
def test_init_producer_id_request_reads_back(
    version: int,
    correlation_id: int,
    transactional_id: str | None,
    timeout_ms: int,
    producer_id: int,
    producer_epoch: int,
) -> None:
    if version < 3:
        producer_id = producer_epoch = -1
    frame = protocol.encode_init_producer_id(
        version, correlation_id, "me", transactional_id, timeout_ms, producer_id, producer_epoch
    )
    header, body = read_request(frame, schema("init_producer_id", version, "request").InitProducerIdRequest)
    assert_header(header, 22, version, correlation_id, "me")
    assert body.transactional_id == transactional_id
    assert body.transaction_timeout == milliseconds(timeout_ms)
    if version >= 3:
        assert (body.producer_id, body.producer_epoch) == (producer_id, producer_epoch)


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


@pytest.mark.parametrize("version", [-1, 5])
def test_unimplemented_versions_are_rejected(version: int) -> None:
    with pytest.raises(ValueError, match=f"ApiVersions version {version} is not implemented, only 0 to 4"):
        protocol.encode_api_versions(version, 1, None, "n", "v")
    with pytest.raises(ValueError, match=f"ApiVersions version {version} is not implemented, only 0 to 4"):
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


@pytest.mark.parametrize("version", METADATA)
@given(response=metadata_responses)
def test_metadata_response_of_another_codec_is_read(version: int, response: MetadataResponse) -> None:
    assert protocol.decode_metadata(version, write_metadata(version, response)) == as_of_version(
        version, response
    )


@pytest.mark.parametrize("version", METADATA)
def test_metadata_response_has_the_documented_types(version: int) -> None:
    response = protocol.decode_metadata(version, memoryview(write_metadata(version, FULL_METADATA)))
    assert type(response) is MetadataResponse
    assert type(response.topics[0]) is TopicInfo
    assert type(response.topics[0].is_internal) is bool
    assert type(response.topics[0].partitions[0]) is PartitionInfo
    assert response == as_of_version(version, FULL_METADATA)


@pytest.mark.parametrize("version", METADATA)
def test_a_listing_also_has_the_replicas(version: int) -> None:
    frame = write_metadata(version, FULL_METADATA)
    plain, listing = protocol.decode_metadata(version, frame), protocol.decode_listing(version, frame)
    assert listing._replace(topics=[]) == plain._replace(topics=[])
    for topic, whole in zip(plain.topics, listing.topics, strict=True):
        assert [tuple(each[:4]) for each in whole.partitions] == topic.partitions
        # As write_metadata has them.
        for index, each in enumerate(whole.partitions):
            assert isinstance(each, ReplicatedPartition)
            assert (each.replicas, each.in_sync) == (list(range(index % 4)), list(range(index % 3)))


@pytest.mark.parametrize("version", [12, 13])
def test_a_topic_without_a_name_is_read(version: int) -> None:
    unnamed = FULL_METADATA.topics[0]._replace(error_code=100, name=None, partitions=[])
    response = FULL_METADATA._replace(topics=[unnamed])
    assert protocol.decode_metadata(version, write_metadata(version, response)).topics == [unnamed]


@pytest.mark.slow
def test_ten_thousand_partitions_are_read() -> None:
    partitions = [PartitionInfo(0, index, index % 7, index % 3) for index in range(10_000)]
    response = FULL_METADATA._replace(topics=[FULL_METADATA.topics[0]._replace(partitions=partitions)])
    assert protocol.decode_metadata(12, write_metadata(12, response)).topics[0].partitions == partitions


@pytest.mark.parametrize("version", INIT_PRODUCER_ID)
@given(throttle_ms=durations_ms, error_code=error_codes, producer_id=int64s, producer_epoch=int16s)
def test_init_producer_id_response_of_another_codec_is_read(
    version: int, throttle_ms: int, error_code: int, producer_id: int, producer_epoch: int
) -> None:
    if error_code == 0:
        producer_id, producer_epoch = max(producer_id, 0), max(producer_epoch, 0)
    entity = schema("init_producer_id", version, "response").InitProducerIdResponse(
        throttle_time=milliseconds(throttle_ms),
        error_code=ErrorCode(error_code),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )
    assert protocol.decode_init_producer_id(version, write_response(entity)) == InitProducerIdResponse(
        throttle_ms, error_code, producer_id, producer_epoch
    )


@given(correlation_id=int32s, client_id=st.none() | texts, mechanism=texts)
def test_sasl_handshake_request_reads_back(
    correlation_id: int, client_id: str | None, mechanism: str
) -> None:
    frame = protocol.encode_sasl_handshake(1, correlation_id, client_id, mechanism)
    header, body = read_request(frame, schema("sasl_handshake", 1, "request").SaslHandshakeRequest)
    assert_header(header, 17, 1, correlation_id, client_id)
    assert body.mechanism == mechanism


@pytest.mark.parametrize("version", [0, 1, 2])
@given(correlation_id=int32s, client_id=st.none() | texts, message=st.binary(max_size=2000))
def test_sasl_authenticate_request_reads_back(
    version: int, correlation_id: int, client_id: str | None, message: bytes
) -> None:
    frame = protocol.encode_sasl_authenticate(version, correlation_id, client_id, message)
    kind = schema("sasl_authenticate", version, "request").SaslAuthenticateRequest
    header, body = read_request(frame, kind)
    assert_header(header, 36, version, correlation_id, client_id)
    assert body.auth_bytes == message


@given(error_code=error_codes, mechanisms=st.lists(shown_texts, max_size=6))
def test_sasl_handshake_response_of_another_codec_is_read(error_code: int, mechanisms: list[str]) -> None:
    entity = schema("sasl_handshake", 1, "response").SaslHandshakeResponse(
        error_code=ErrorCode(error_code), mechanisms=tuple(mechanisms)
    )
    assert protocol.decode_sasl_handshake(1, write_response(entity)) == (error_code, mechanisms)


@pytest.mark.parametrize("version", [0, 1, 2])
@given(
    error_code=error_codes,
    text=st.none() | shown_texts,
    message=st.binary(max_size=2000),
    lifetime_ms=st.integers(0, 10**12),
)
def test_sasl_authenticate_response_of_another_codec_is_read(
    version: int, error_code: int, text: str | None, message: bytes, lifetime_ms: int
) -> None:
    entity = make(
        schema("sasl_authenticate", version, "response").SaslAuthenticateResponse,
        error_code=ErrorCode(error_code),
        error_message=text,
        auth_bytes=message,
        session_lifetime=milliseconds(lifetime_ms),
    )
    expected = (error_code, text, message, lifetime_ms if version else 0)
    assert protocol.decode_sasl_authenticate(version, write_response(entity)) == expected


versions_by_key = st.dictionaries(int16s, st.tuples(int16s, int16s), max_size=80)


@pytest.mark.parametrize("version", API_VERSIONS)
@given(
    error_code=error_codes.filter(lambda code: code != ErrorCode.unsupported_version),
    api_versions=versions_by_key,
    throttle_ms=durations_ms,
    features=st.dictionaries(texts, st.tuples(int16s, int16s), max_size=3),
    epoch=int64s,
)
def test_api_versions_response_of_another_codec_is_read(
    version: int,
    error_code: int,
    api_versions: dict[int, tuple[int, int]],
    throttle_ms: int,
    features: dict[str, tuple[int, int]],
    epoch: int,
) -> None:
    module = schema("api_versions", version, "response")
    values: dict[str, Any] = {}
    if version >= 3:
        values = {
            "supported_features": tuple(
                module.SupportedFeatureKey(name=name, min_version=1, max_version=2) for name in features
            ),
            "finalized_features_epoch": epoch,
            "finalized_features": tuple(
                module.FinalizedFeatureKey(name=name, min_version_level=low, max_version_level=high)
                for name, (low, high) in features.items()
            ),
            "zk_migration_ready": True,
        }
    entity = make(
        module.ApiVersionsResponse,
        error_code=ErrorCode(error_code),
        api_keys=tuple(
            module.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in api_versions.items()
        ),
        throttle_time=milliseconds(throttle_ms),
        **values,
    )
    assert protocol.decode_api_versions(version, write_response(entity)) == ApiVersionsResponse(
        error_code,
        api_versions,
        throttle_ms if version >= 1 else 0,
        features if version >= 3 else {},
        epoch if version >= 3 else -1,
    )


@pytest.mark.parametrize("version", API_VERSIONS)
def test_unsupported_version_responses_have_version_0_and_the_supported_range(version: int) -> None:
    module = schema("api_versions", 0, "response")
    entity = module.ApiVersionsResponse(
        error_code=ErrorCode.unsupported_version,
        api_keys=(module.ApiVersion(api_key=18, min_version=0, max_version=2),),
    )
    assert protocol.decode_api_versions(version, write_response(entity)) == ApiVersionsResponse(
        35, {18: (0, 2)}, 0, {}
    )


def test_unknown_tagged_fields_are_skipped() -> None:
    # Response header: one field with tag 9; body: one with tag 300, two bytes of varint.
    frame = CORRELATION_ID.to_bytes(4, "big") + bytes.fromhex(
        "01 09 02 abcd" + "00000003 0000 0000000000000009 0001" + "01 ac02 01 ff"
    )
    assert protocol.decode_init_producer_id(4, frame) == InitProducerIdResponse(3, 0, 9, 1)
