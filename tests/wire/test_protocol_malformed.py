"""Decoders with invalid input: truncated frames, wrong sizes, or servers that are not Kafka."""

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cyproducer.errors import KafkaProtocolError
from cyproducer.wire import protocol, sasl_api, transaction_api
from cyproducer.wire.messages import FIND_COORDINATOR, METADATA
from cyproducer.wire.responses import ApiVersionsResponse
from cyproducer.wire.schema import Api
from tests.wire.filled import filled

Decode = Callable[[int, bytes], Any]


def cases_of(api: Api, decode: Decode) -> Iterator[tuple[Decode, int, bytes]]:
    """A frame of each version that the client uses."""
    # A response of FindCoordinator must have one coordinator.
    elements = 1 if api is FIND_COORDINATOR else 2
    for version in range(api.lowest, api.highest + 1):
        response = filled(api.response.root, version, elements)
        yield decode, version, api.encode_response(version, 1, response)[4:]


assert {sasl_api.decode_sasl_handshake, transaction_api.decode_end_txn} <= set(protocol.DECODERS.values())
CASES: list[tuple[Decode, int, bytes]] = [
    case
    for api, decode in [*protocol.DECODERS.items(), (METADATA, protocol.decode_listing)]
    for case in cases_of(api, decode)
]
every_message = pytest.mark.parametrize(
    ("decode", "version", "frame"),
    CASES,
    ids=[f"{decode.__name__}-v{version}" for decode, version, _ in CASES],
)


@every_message
def test_a_frame_truncated_anywhere_is_an_error(decode: Decode, version: int, frame: bytes) -> None:
    decode(version, frame)
    for size in range(len(frame)):
        with pytest.raises(KafkaProtocolError, match=rf" v{version} response: .* \d+ bytes remain at offset"):
            decode(version, frame[:size])


@every_message
def test_trailing_bytes_are_an_error(decode: Decode, version: int, frame: bytes) -> None:
    with pytest.raises(KafkaProtocolError, match="end was expected, 2 bytes remain"):
        decode(version, frame + b"\0\0")
    with pytest.raises(KafkaProtocolError, match=r"(1|0) bytes remain"):
        decode(version, frame + b"\1")


def test_only_metadata_may_end_with_another_empty_set_of_tagged_fields() -> None:
    for decode, version, frame in CASES:
        if decode in (protocol.decode_metadata, protocol.decode_listing) and version >= 9:
            assert decode(version, frame + b"\0") == decode(version, frame)
        else:
            with pytest.raises(KafkaProtocolError, match="end was expected, 1 bytes remain"):
                decode(version, frame + b"\0")


@pytest.mark.parametrize(
    "body", ["", "00000001", "00000001 0012 0000 0002 00000000", "01 0012 0000 0002 00000000", "ffffffff"]
)
def test_unsupported_version_is_decoded_without_readable_ranges(body: str) -> None:
    frame = bytes.fromhex("00000007 0023" + body)
    assert protocol.decode_api_versions(3, frame) == ApiVersionsResponse(35, {}, 0, {})


@every_message
def test_absurd_numbers_anywhere_allocate_nothing(decode: Decode, version: int, frame: bytes) -> None:
    # These values overwrite each length and count of the frame, and all bytes between them.
    absurd = [
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff\x0f",
        b"\x7f\xff",
        b"\x80\x00\x00\x00",
        b"\xff\xff\xff\xff\xff",
    ]
    refused = 0
    tracemalloc.start()
    try:
        for offset in range(len(frame)):
            for number in absurd:
                try:
                    decode(version, frame[:offset] + number + frame[offset + len(number) :])
                except KafkaProtocolError:
                    refused += 1
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()
    assert refused > 0


@pytest.mark.parametrize("version", range(1, 9))
def test_the_error_names_a_count_beyond_the_frame(version: int) -> None:
    frame = bytes(4) + (bytes(4) if version >= 3 else b"") + b"\x7f\xff\xff\xff" + bytes(20)
    with pytest.raises(
        KafkaProtocolError,
        match=rf"Metadata v{version} response: brokers claims 2147483647 elements of at least 12 bytes, "
        "20 bytes remain at offset",
    ):
        protocol.decode_metadata(version, frame)


@pytest.mark.parametrize(
    ("decode", "version", "frame", "problem"),
    [
        (protocol.decode_metadata, 1, "00000000 ffffffff", "brokers has a count of -1"),
        (protocol.decode_metadata, 9, "00000000 00 00000000 00", "brokers has a count of -1"),
        (
            protocol.decode_metadata,
            9,
            "00000000 00 00000000 ffffffff0f 0000",
            "brokers claims 4294967294 elements of at least 11 bytes, 2 bytes remain",
        ),
        (
            protocol.decode_metadata,
            9,
            "00000000 00 00000000 ffffffff1f",
            "brokers is a varint of more than 32 bits",
        ),
        (protocol.decode_metadata, 9, "00000000 00 00000000 8080808080 00", "varint of more than 32 bits"),
        (
            protocol.decode_metadata,
            1,
            "00000000 00000001 00000001 ffff 00002384 ffff 0000",
            "brokers.host is null",
        ),
        (
            protocol.decode_metadata,
            1,
            "00000000 00000001 00000001 fffe 00002384 ffff 0000",
            "brokers.host has length -2",
        ),
        (
            protocol.decode_metadata,
            1,
            "00000000 00000001 00000001 0002 c328 00002384 ffff",
            r"brokers.host b'\\xc3\(' is not UTF-8",
        ),
        (
            protocol.decode_metadata,
            1,
            "00000000 00000001 00000001 7fff 00002384 ffff 0000",
            "brokers.host needs 32767 bytes, 8 bytes remain",
        ),
        (
            protocol.decode_init_producer_id,
            4,
            "00000000 02 0000",
            "tagged fields claims 2 fields of at least 2 bytes",
        ),
        (
            protocol.decode_init_producer_id,
            4,
            "00000000 01 0009 ab",
            "tagged field needs 9 bytes, 1 bytes remain",
        ),
        # Tag 1, nine bytes long: an epoch, and an extra byte.
        (
            protocol.decode_api_versions,
            3,
            "00000000 0000 01 00000000 01 01 09 0000000000000007 00",
            "end was expected, 1 bytes remain",
        ),
        # Tag 1, four bytes long.
        (
            protocol.decode_api_versions,
            3,
            "00000000 0000 01 00000000 01 01 04 00000007",
            "finalized_features_epoch needs 8 bytes, 4 bytes remain",
        ),
        (
            transaction_api.decode_add_partitions_to_txn,
            3,
            "00000000 00 00000000 02 01 03 00000000000000 0000",
            "results_by_partition claims 2 elements of at least 7 bytes",
        ),
        (
            transaction_api.decode_find_coordinator,
            1,
            "00000000 00000000 0000 ffff 00000001 ffff",
            "host is null",
        ),
        (
            transaction_api.decode_find_coordinator,
            1,
            "00000000 00000000 0000 ffff ffffffff 0001 68 00002384",
            "coordinator is invalid: node -1 at 'h':9092 is no broker: node ids are 0 or more",
        ),
        (
            transaction_api.decode_find_coordinator,
            1,
            "00000000 00000000 0000 ffff 00000001 0000 00002384",
            "coordinator is invalid: '':9092 of node 1 is not an address",
        ),
        (
            transaction_api.decode_find_coordinator,
            4,
            "00000000 00 00000000 02 0274 00000001 0268 00010000 0000 00 00 00",
            "coordinator is invalid: 'h':65536 of node 1 is not an address",
        ),
        (
            protocol.decode_init_producer_id,
            0,
            "00000000 00000000 0000 ffffffffffffffff 0000",
            "producer_id is -1 with epoch 0, both must be 0 or more",
        ),
        (
            protocol.decode_init_producer_id,
            0,
            "00000000 00000000 0000 0000000000000007 ffff",
            "producer_id is 7 with epoch -1, both must be 0 or more",
        ),
        (
            transaction_api.decode_end_txn,
            5,
            "00000000 00 00000000 0000 0000000000000007 ffff 00",
            "producer_epoch is -1, it must be 0 or more",
        ),
        (
            transaction_api.decode_add_partitions_to_txn,
            0,
            "00000000 00000000 00000001 0001 74 00000002 00000005 0037 00000005 0000",
            "partition 't'-5 is there twice",
        ),
        *(
            (
                protocol.decode_metadata,
                1,
                f"00000000 00000000 00000001 00000001 0000 0001 74 00 00000001 0000 {index} 00000001"
                + 2 * "00000000",
                f"partitions.partition_index is {number}, it must be from 0 to 999999",
            )
            for index, number in (("ffffffff", -1), ("000f4240", 1_000_000))
        ),
        # Tag 2, five bytes long: an empty array of features, and four extra bytes.
        (
            protocol.decode_api_versions,
            3,
            "00000000 0000 01 00000000 01 02 05 01 00000000",
            "end was expected, 4 bytes remain",
        ),
        # Tag 2, four bytes long: its feature does not fit into the field.
        (
            protocol.decode_api_versions,
            3,
            "00000000 0000 01 00000000 01 02 04 02 026600 0100020000",
            "finalized_features claims 1 elements",
        ),
    ],
)
def test_the_error_names_the_field_and_the_problem(
    decode: Decode, version: int, frame: str, problem: str
) -> None:
    with pytest.raises(KafkaProtocolError, match=problem):
        decode(version, bytes.fromhex(frame))


@pytest.mark.parametrize(
    "decode",
    [
        protocol.decode_api_versions,
        protocol.decode_metadata,
        protocol.decode_init_producer_id,
        transaction_api.decode_find_coordinator,
        transaction_api.decode_txn_offset_commit,
        transaction_api.decode_end_txn,
    ],
)
@given(version=st.integers(1, 4), frame=st.binary(max_size=200))
@example(version=1, frame=b"")
def test_random_bytes_give_a_result_or_a_protocol_error(decode: Decode, version: int, frame: bytes) -> None:
    try:
        result = decode(version, frame)
    except KafkaProtocolError:
        return
    assert result is not None


@given(data=st.data(), case=st.sampled_from(CASES))
def test_frames_with_changed_bytes_give_a_result_or_a_protocol_error(
    data: st.DataObject, case: tuple[Decode, int, bytes]
) -> None:
    decode, version, frame = case
    changed = bytearray(frame)
    for offset in data.draw(st.lists(st.integers(0, len(frame) - 1), min_size=1, max_size=4)):
        changed[offset] = data.draw(st.integers(0, 255))
    try:
        result = decode(version, bytes(changed))
    except KafkaProtocolError:
        return
    assert result is not None


def test_only_contiguous_bytes_are_accepted() -> None:
    with pytest.raises(BufferError):
        protocol.decode_metadata(1, memoryview(bytes(40))[::2])
    with pytest.raises(TypeError):
        protocol.decode_metadata(1, "text")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first_bytes", "name"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "an HTTP server"),
        (b"<html>", "an HTTP server"),
        (b"<!DOCTYPE html>", "an HTTP server"),
        (bytes.fromhex("15030300020228"), "a TLS server (alert)"),
        (bytes.fromhex("160303007a0200"), "a TLS server (handshake)"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "an SSH server"),
        (b"220 mail.example.org ESMTP\r\n", "an SMTP or FTP server"),
        (b"+OK ready\r\n", "a POP3 server"),
        (b"* OK IMAP4rev1\r\n", "an IMAP server"),
        (b"-ERR unknown command\r\n", "a Redis server"),
        (b"AMQP\x00\x00\x09\x01", "an AMQP server"),
        (bytes.fromhex("4a0000000a") + b"8.0.36\0", "a MySQL server"),
        (memoryview(b"HTTP/1.0 200 OK"), "an HTTP server"),
        (bytes.fromhex("000000230000"), None),
        (bytes.fromhex("7fffffff0000"), None),
        (b"HT", None),
        (b"", None),
    ],
)
def test_other_servers_are_recognised_by_their_first_bytes(first_bytes: bytes, name: str | None) -> None:
    assert protocol.frame_looks_like(first_bytes) == name
