"""The versions of Kafka 4.4 that no other project's codec has yet, by hand from Kafka's message schemas."""

from importlib.util import find_spec
from uuid import UUID

import pytest

from cyproducer.wire.messages import API_VERSIONS, TXN_OFFSET_COMMIT
from cyproducer.wire.requests import decode_request
from cyproducer.wire.schema import NO_UUID, Api
from tests.wire.kio_oracle import LATER_THAN_ORACLES

ID = bytes(range(16))
NO_TAGS = b"\x00"


def framed(key: int, version: int, body: bytes) -> bytes:
    """A request of client "me" with the correlation id 5; its header is flexible."""
    frame = bytes([0, key, 0, version]) + b"\x00\x00\x00\x05" + b"\x00\x02me" + NO_TAGS + body
    return len(frame).to_bytes(4, "big") + frame


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "routing"),
    [
        ("abc", 7, b"\x04abc" + b"\x00\x00\x00\x07"),
        (None, -1, b"\x00" + b"\xff\xff\xff\xff"),
    ],
)
def test_api_versions_5_names_the_broker_that_the_client_expects(
    cluster_id: str | None, node_id: int, routing: bytes
) -> None:
    value = API_VERSIONS.request("cy", "1.0", cluster_id, node_id)
    frame = framed(18, 5, b"\x03cy" + b"\x041.0" + routing + NO_TAGS)
    assert API_VERSIONS.encode_request(5, 5, "me", value) == frame
    assert decode_request(API_VERSIONS, frame[4:]) == ((18, 5, 5, "me"), value)
    # Version 4 ends after the client's version.
    assert API_VERSIONS.encode_request(4, 5, "me", value) == framed(18, 4, b"\x03cy\x041.0" + NO_TAGS)


def test_a_response_of_api_versions_5_is_that_of_4() -> None:
    response = API_VERSIONS.response
    value = response(129, [response.ApiVersion(18, 0, 5)], 0, [], -1, [], False)
    encoded = [API_VERSIONS.encode_response(version, 5, value) for version in (4, 5)]
    assert encoded[0] == encoded[1]
    assert API_VERSIONS.decode_response(5, encoded[1][4:]) == value


def test_txn_offset_commit_6_has_ids_instead_of_names() -> None:
    request, response = TXN_OFFSET_COMMIT.request, TXN_OFFSET_COMMIT.response
    part = request.TxnOffsetCommitRequestPartition(1, 2, 3, None)
    value = request("t", "g", 9, 4, 6, "m", None, [request.TxnOffsetCommitRequestTopic("", ID, [part])])
    body = (
        b"\x02t" + b"\x02g" + (9).to_bytes(8, "big") + b"\x00\x04" + b"\x00\x00\x00\x06" + b"\x02m" + b"\x00"
    )
    offset = b"\x00\x00\x00\x01" + (2).to_bytes(8, "big") + b"\x00\x00\x00\x03" + b"\x00" + NO_TAGS
    frame = framed(28, 6, body + b"\x02" + ID + b"\x02" + offset + NO_TAGS + NO_TAGS)
    assert TXN_OFFSET_COMMIT.encode_request(6, 5, "me", value) == frame
    assert decode_request(TXN_OFFSET_COMMIT, frame[4:]) == ((28, 6, 5, "me"), value)

    told = response.TxnOffsetCommitResponsePartition(1, 100)
    answer = response(0, [response.TxnOffsetCommitResponseTopic("", ID, [told])])
    written = (
        b"\x00\x00\x00\x05" + NO_TAGS + bytes(4)
        + b"\x02" + ID + b"\x02" + b"\x00\x00\x00\x01" + b"\x00\x64" + NO_TAGS + NO_TAGS + NO_TAGS
    )  # fmt: skip
    assert TXN_OFFSET_COMMIT.decode_response(6, written) == answer
    assert TXN_OFFSET_COMMIT.encode_response(6, 5, answer) == len(written).to_bytes(4, "big") + written


def test_before_6_there_are_names_and_no_ids() -> None:
    request = TXN_OFFSET_COMMIT.request
    by_id, by_name = (
        TXN_OFFSET_COMMIT.encode_request(
            5,
            5,
            "me",
            request("t", "g", 9, 4, 6, "m", None, [request.TxnOffsetCommitRequestTopic("n", key, [])]),
        )
        for key in (ID, NO_UUID)
    )
    assert by_id == by_name
    assert UUID(bytes=ID).bytes not in by_name


@pytest.mark.parametrize("api", [API_VERSIONS, TXN_OFFSET_COMMIT], ids=repr)
def test_the_client_uses_version_5_of_both(api: Api) -> None:
    """The ids of TxnOffsetCommit 6 are of topics that a producer does not know."""
    assert api.declared.last == LATER_THAN_ORACLES[api.name]
    assert api.highest == 5


@pytest.mark.parametrize(("name", "version"), [("api_versions", 5), ("txn_offset_commit", 6)])
def test_kio_has_them_not_yet(name: str, version: int) -> None:
    """When this fails, remove the version from ``LATER_THAN_ORACLES``."""
    assert find_spec(f"kio.schema.{name}.v{version - 1}")
    assert find_spec(f"kio.schema.{name}.v{version}") is None
