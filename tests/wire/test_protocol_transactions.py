"""The requests and responses of transactions against golden bytes and against kio, in every version."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyproducer.errors import KafkaProtocolError
from cyproducer.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from cyproducer.wire import messages as apis
from cyproducer.wire import protocol
from cyproducer.wire.responses import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    DescribeTransactionsResponse,
    EndTxnResponse,
    FindCoordinatorResponse,
    ListTransactionsResponse,
    TransactionDescription,
    TransactionListing,
    TxnOffsetCommitResponse,
)
from cyproducer.wire.schema import Api
from tests.wire.kio_oracle import (
    durations_ms,
    error_codes,
    hosts,
    int16s,
    int32s,
    int64s,
    node_ids,
    ports,
    read_request,
    schema,
    shown_texts,
    texts,
)
from tests.wire.kio_transactions import (
    write_add_offsets_to_txn,
    write_add_partitions_to_txn,
    write_describe_transactions,
    write_end_txn,
    write_find_coordinator,
    write_list_transactions,
    write_txn_offset_commit,
)

partition_lists = st.dictionaries(texts, st.lists(int32s, max_size=4), max_size=3)
partition_errors = st.dictionaries(st.tuples(texts, int32s), error_codes, max_size=6)
identities = st.tuples(texts, int64s, int16s)


def every_version(api: Api) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("version", range(api.lowest, api.highest + 1))


def read(api: Api, name: str, version: int, correlation_id: int, frame: bytes) -> Any:
    """The body of a request as kio reads it, after a check of its header."""
    header, body = read_request(frame, getattr(schema(name, version, "request"), f"{api.name}Request"))
    assert (header.request_api_key, header.request_api_version) == (api.key, version)
    assert (header.correlation_id, header.client_id) == (correlation_id, "me")
    return body


# Requests


@every_version(apis.FIND_COORDINATOR)
@given(correlation_id=int32s, key_type=st.integers(0, 2), key=texts)
def test_find_coordinator_request_reads_back(
    version: int, correlation_id: int, key_type: int, key: str
) -> None:
    frame = protocol.encode_find_coordinator(version, correlation_id, "me", key_type, key)
    body = read(apis.FIND_COORDINATOR, "find_coordinator", version, correlation_id, frame)
    assert body.key_type == key_type
    assert (body.coordinator_keys if version >= 4 else (body.key,)) == (key,)


@every_version(apis.ADD_PARTITIONS_TO_TXN)
@given(correlation_id=int32s, identity=identities, partitions=partition_lists)
def test_add_partitions_to_txn_request_reads_back(
    version: int,
    correlation_id: int,
    identity: tuple[str, int, int],
    partitions: dict[str, list[int]],
) -> None:
    frame = protocol.encode_add_partitions_to_txn(version, correlation_id, "me", *identity, partitions)
    body = read(apis.ADD_PARTITIONS_TO_TXN, "add_partitions_to_txn", version, correlation_id, frame)
    assert body.v3_and_below_transactional_id == identity[0]
    assert (body.v3_and_below_producer_id, body.v3_and_below_producer_epoch) == identity[1:]
    assert {topic.name: list(topic.partitions) for topic in body.v3_and_below_topics} == partitions


@every_version(apis.ADD_OFFSETS_TO_TXN)
@given(correlation_id=int32s, identity=identities, group_id=texts)
def test_add_offsets_to_txn_request_reads_back(
    version: int, correlation_id: int, identity: tuple[str, int, int], group_id: str
) -> None:
    frame = protocol.encode_add_offsets_to_txn(version, correlation_id, "me", *identity, group_id)
    body = read(apis.ADD_OFFSETS_TO_TXN, "add_offsets_to_txn", version, correlation_id, frame)
    assert (body.transactional_id, body.producer_id, body.producer_epoch) == identity
    assert body.group_id == group_id


@every_version(apis.TXN_OFFSET_COMMIT)
@given(
    correlation_id=int32s,
    identity=identities,
    group=st.builds(
        ConsumerGroupMetadata,
        group_id=texts,
        generation_id=int32s,
        member_id=texts,
        group_instance_id=st.none() | texts,
    ),
    offsets=st.dictionaries(
        st.builds(TopicPartition, topic=texts, partition=int32s),
        st.builds(
            OffsetAndMetadata, offset=int64s, metadata=st.none() | texts, leader_epoch=st.none() | int32s
        ),
        max_size=6,
    ),
)
def test_txn_offset_commit_request_reads_back(
    version: int,
    correlation_id: int,
    identity: tuple[str, int, int],
    group: ConsumerGroupMetadata,
    offsets: dict[TopicPartition, OffsetAndMetadata],
) -> None:
    if version < 3:
        group = ConsumerGroupMetadata(group.group_id)
    frame = protocol.encode_txn_offset_commit(version, correlation_id, "me", *identity, group, offsets)
    body = read(apis.TXN_OFFSET_COMMIT, "txn_offset_commit", version, correlation_id, frame)
    assert (body.transactional_id, body.producer_id, body.producer_epoch) == identity
    assert body.group_id == group.group_id
    if version >= 3:
        assert (body.generation_id, body.member_id, body.group_instance_id) == group[1:]
    assert len(body.topics) == len({topic for topic, _ in offsets})
    unknown = -1 if version >= 2 else None
    assert {
        (topic.name, each.partition_index): (
            each.committed_offset,
            each.committed_metadata,
            getattr(each, "committed_leader_epoch", None),
        )
        for topic in body.topics
        for each in topic.partitions
    } == {
        place: (offset, metadata, unknown if version < 2 or epoch is None else epoch)
        for place, (offset, metadata, epoch) in offsets.items()
    }


@every_version(apis.END_TXN)
@given(correlation_id=int32s, identity=identities, committed=st.booleans())
def test_end_txn_request_reads_back(
    version: int, correlation_id: int, identity: tuple[str, int, int], committed: bool
) -> None:
    frame = protocol.encode_end_txn(version, correlation_id, "me", *identity, committed)
    body = read(apis.END_TXN, "end_txn", version, correlation_id, frame)
    assert (body.transactional_id, body.producer_id, body.producer_epoch) == identity
    assert body.committed is committed


@given(correlation_id=int32s, transactional_ids=st.lists(texts, max_size=200))
def test_describe_transactions_request_reads_back(correlation_id: int, transactional_ids: list[str]) -> None:
    frame = protocol.encode_describe_transactions(0, correlation_id, "me", transactional_ids)
    body = read(apis.DESCRIBE_TRANSACTIONS, "describe_transactions", 0, correlation_id, frame)
    assert list(body.transactional_ids) == transactional_ids


@every_version(apis.LIST_TRANSACTIONS)
@given(
    correlation_id=int32s,
    states=st.lists(texts, max_size=4),
    producer_ids=st.lists(int64s, max_size=4),
    duration_ms=int64s,
    pattern=st.none() | texts,
)
def test_list_transactions_request_reads_back(
    version: int,
    correlation_id: int,
    states: list[str],
    producer_ids: list[int],
    duration_ms: int,
    pattern: str | None,
) -> None:
    duration_ms = duration_ms if version >= 1 else -1
    pattern = pattern if version >= 2 else None
    frame = protocol.encode_list_transactions(
        version, correlation_id, "me", states, producer_ids, duration_ms, pattern
    )
    body = read(apis.LIST_TRANSACTIONS, "list_transactions", version, correlation_id, frame)
    assert (list(body.state_filters), list(body.producer_id_filters)) == (states, producer_ids)
    if version >= 1:
        assert body.duration_filter == duration_ms
    if version >= 2:
        assert body.transactional_id_pattern == pattern


MEMBER = ConsumerGroupMetadata("g", 9, "a")
OFFSETS = {TopicPartition("t", 3): OffsetAndMetadata(5, "m", 6)}


@pytest.mark.parametrize(
    ("frame", "golden"),
    [
        (
            protocol.encode_find_coordinator(1, 7, "c", 1, "tx"),
            "00000010 000a 0001 00000007 0001 63  0002 7478  01",
        ),
        (
            protocol.encode_find_coordinator(3, 7, "c", 1, "tx"),
            "00000011 000a 0003 00000007 0001 63 00  03 7478  01  00",
        ),
        (
            protocol.encode_find_coordinator(6, 7, "c", 0, "g"),
            "00000011 000a 0006 00000007 0001 63 00  00  02 02 67  00",
        ),
        (
            protocol.encode_add_partitions_to_txn(0, 7, "c", "tx", 1000, 2, {"t": [0, 1]}),
            "0000002c 0018 0000 00000007 0001 63  0002 7478 00000000000003e8 0002"
            "00000001 0001 74 00000002 00000000 00000001",
        ),
        (
            protocol.encode_add_partitions_to_txn(3, 7, "c", "tx", 1000, 2, {"t": [0, 1]}),
            "00000027 0018 0003 00000007 0001 63 00  03 7478 00000000000003e8 0002"
            "02 02 74 03 00000000 00000001 00 00",
        ),
        (
            protocol.encode_add_offsets_to_txn(2, 7, "c", "tx", 1000, 2, "g"),
            "0000001c 0019 0002 00000007 0001 63  0002 7478 00000000000003e8 0002 0001 67",
        ),
        (
            protocol.encode_add_offsets_to_txn(4, 7, "c", "tx", 1000, 2, "g"),
            "0000001c 0019 0004 00000007 0001 63 00  03 7478 00000000000003e8 0002 02 67 00",
        ),
        (
            protocol.encode_txn_offset_commit(0, 7, "c", "tx", 1000, 2, ConsumerGroupMetadata("g"), OFFSETS),
            "00000036 001c 0000 00000007 0001 63  0002 7478 0001 67 00000000000003e8 0002"
            "00000001 0001 74 00000001  00000003 0000000000000005 0001 6d",
        ),
        (
            protocol.encode_txn_offset_commit(2, 7, "c", "tx", 1000, 2, ConsumerGroupMetadata("g"), OFFSETS),
            "0000003a 001c 0002 00000007 0001 63  0002 7478 0001 67 00000000000003e8 0002"
            "00000001 0001 74 00000001  00000003 0000000000000005 00000006 0001 6d",
        ),
        (
            protocol.encode_txn_offset_commit(
                5, 7, "c", "tx", 1000, 2, MEMBER, {TopicPartition("t", 3): OffsetAndMetadata(5)}
            ),
            "0000003a 001c 0005 00000007 0001 63 00  03 7478 02 67 00000000000003e8 0002 00000009 02 61 00"
            "02 02 74 02  00000003 0000000000000005 ffffffff 01 00  00 00",
        ),
        (
            protocol.encode_end_txn(1, 7, "c", "tx", 1000, 2, True),
            "0000001a 001a 0001 00000007 0001 63  0002 7478 00000000000003e8 0002 01",
        ),
        (
            protocol.encode_end_txn(5, 7, "c", "tx", 1000, 2, False),
            "0000001b 001a 0005 00000007 0001 63 00  03 7478 00000000000003e8 0002 00 00",
        ),
        (
            protocol.encode_describe_transactions(0, 7, "c", ["tx"]),
            "00000011 0041 0000 00000007 0001 63 00  02 03 7478 00",
        ),
        (
            protocol.encode_list_transactions(0, 7, "c", ["Ongoing"], [1000]),
            "0000001f 0042 0000 00000007 0001 63 00  02 08 4f6e676f696e67  02 00000000000003e8  00",
        ),
        (
            protocol.encode_list_transactions(2, 7, "c"),
            "00000018 0042 0002 00000007 0001 63 00  01 01 ffffffffffffffff 00 00",
        ),
        (
            protocol.encode_list_transactions(2, 7, "c", duration_ms=5, pattern="t.*"),
            "0000001b 0042 0002 00000007 0001 63 00  01 01 0000000000000005 04 742e2a 00",
        ),
    ],
)
def test_request_bytes_match_the_protocol_guide(frame: bytes, golden: str) -> None:
    assert frame.hex() == golden.replace(" ", "")


def test_values_that_a_version_cannot_encode_are_rejected() -> None:
    with pytest.raises(ValueError, match="duration_filter=0 needs version 1"):
        protocol.encode_list_transactions(0, 1, None, duration_ms=0)
    with pytest.raises(ValueError, match="transactional_id_pattern='a' needs version 2"):
        protocol.encode_list_transactions(1, 1, None, pattern="a")
    for part in ({"generation_id": 0}, {"member_id": "a"}, {"group_instance_id": "a"}):
        group = ConsumerGroupMetadata("g", **part)
        with pytest.raises(ValueError, match=f"{next(iter(part))}=.* needs version 3"):
            protocol.encode_txn_offset_commit(2, 1, None, "tx", 1, 2, group, OFFSETS)


@pytest.mark.parametrize(
    ("leader_epoch", "encoded"), [(0, "00000000"), (6, "00000006"), (-1, "ffffffff"), (None, "ffffffff")]
)
def test_only_unknown_leader_epochs_are_unknown(leader_epoch: int | None, encoded: str) -> None:
    offsets = {TopicPartition("t", 3): OffsetAndMetadata(5, "", leader_epoch)}
    frame = protocol.encode_txn_offset_commit(5, 7, "c", "tx", 1000, 2, MEMBER, offsets)
    assert frame.hex().endswith("0000000000000005" + encoded + "01000000")


def test_filters_that_filter_nothing_need_no_version() -> None:
    frame = protocol.encode_list_transactions(0, 1, None)
    assert protocol.encode_list_transactions(0, 1, None, duration_ms=-2, pattern="") == frame


def test_versions_for_brokers_are_rejected() -> None:
    message = "AddPartitionsToTxn v4 request: v3_and_below_transactional_id='tx' needs version 3 or older"
    with pytest.raises(ValueError, match=message):
        protocol.encode_add_partitions_to_txn(4, 1, None, "tx", 1, 2, {})
    with pytest.raises(ValueError, match="AddPartitionsToTxn version 6 is not implemented, only 0 to 5"):
        protocol.decode_add_partitions_to_txn(6, b"")
    with pytest.raises(ValueError, match="FindCoordinator v0 request: key_type=1 needs version 1 or newer"):
        protocol.encode_find_coordinator(0, 1, None, 1, "g")


# Responses


@every_version(apis.FIND_COORDINATOR)
@given(
    response=st.builds(
        FindCoordinatorResponse,
        throttle_time_ms=durations_ms,
        error_code=error_codes,
        error_message=st.none() | shown_texts,
        node_id=node_ids,
        host=hosts,
        port=ports,
    )
    | st.builds(
        FindCoordinatorResponse,
        throttle_time_ms=durations_ms,
        error_code=error_codes.filter(bool),
        error_message=st.none() | shown_texts,
        node_id=int32s,
        host=shown_texts,
        port=int32s,
    )
)
def test_find_coordinator_response_of_another_codec_is_read(
    version: int, response: FindCoordinatorResponse
) -> None:
    assert protocol.decode_find_coordinator(version, write_find_coordinator(version, response)) == response


@pytest.mark.parametrize("version", [4, 5, 6])
@pytest.mark.parametrize("coordinators", [0, 2])
def test_a_response_must_have_one_coordinator(version: int, coordinators: int) -> None:
    frame = write_find_coordinator(version, FindCoordinatorResponse(0, 0, None, 1, "h", 9092), coordinators)
    problem = rf"FindCoordinator v{version} response: coordinators has {coordinators} elements, but must have"
    with pytest.raises(KafkaProtocolError, match=f"{problem} one"):
        protocol.decode_find_coordinator(version, frame)


@every_version(apis.ADD_PARTITIONS_TO_TXN)
@given(response=st.builds(AddPartitionsToTxnResponse, durations_ms, partition_errors))
def test_add_partitions_to_txn_response_of_another_codec_is_read(
    version: int, response: AddPartitionsToTxnResponse
) -> None:
    decoded = protocol.decode_add_partitions_to_txn(version, write_add_partitions_to_txn(version, response))
    assert type(decoded) is AddPartitionsToTxnResponse
    assert decoded == response


@every_version(apis.TXN_OFFSET_COMMIT)
@given(response=st.builds(TxnOffsetCommitResponse, durations_ms, partition_errors))
def test_txn_offset_commit_response_of_another_codec_is_read(
    version: int, response: TxnOffsetCommitResponse
) -> None:
    decoded = protocol.decode_txn_offset_commit(version, write_txn_offset_commit(version, response))
    assert type(decoded) is TxnOffsetCommitResponse
    assert decoded == response


@every_version(apis.ADD_OFFSETS_TO_TXN)
@given(response=st.builds(AddOffsetsToTxnResponse, durations_ms, error_codes))
def test_add_offsets_to_txn_response_of_another_codec_is_read(
    version: int, response: AddOffsetsToTxnResponse
) -> None:
    decoded = protocol.decode_add_offsets_to_txn(version, write_add_offsets_to_txn(version, response))
    assert decoded == response


@every_version(apis.END_TXN)
@given(
    response=st.builds(EndTxnResponse, durations_ms, error_codes, int64s, st.integers(0, 2**15 - 1))
    | st.builds(EndTxnResponse, durations_ms, error_codes.filter(bool), int64s, int16s)
)
def test_end_txn_response_of_another_codec_is_read(version: int, response: EndTxnResponse) -> None:
    decoded = protocol.decode_end_txn(version, write_end_txn(version, response))
    assert decoded == (response if version >= 5 else (*response[:2], -1, -1))


@given(
    response=st.builds(
        DescribeTransactionsResponse,
        durations_ms,
        st.lists(
            st.builds(
                TransactionDescription,
                error_code=error_codes,
                transactional_id=texts,
                state=shown_texts,
                timeout_ms=durations_ms,
                start_time_ms=st.integers(0, 10**13),
                producer_id=int64s,
                producer_epoch=int16s,
                partitions=partition_lists,
            ),
            max_size=3,
        ),
    )
)
def test_describe_transactions_response_of_another_codec_is_read(
    response: DescribeTransactionsResponse,
) -> None:
    decoded = protocol.decode_describe_transactions(0, write_describe_transactions(0, response))
    assert decoded == response
    assert all(type(each) is TransactionDescription for each in decoded.transactions)


@every_version(apis.LIST_TRANSACTIONS)
@given(
    response=st.builds(
        ListTransactionsResponse,
        durations_ms,
        error_codes,
        st.lists(shown_texts, max_size=3),
        st.lists(
            st.builds(TransactionListing, transactional_id=texts, producer_id=int64s, state=shown_texts),
            max_size=4,
        ),
    )
)
def test_list_transactions_response_of_another_codec_is_read(
    version: int, response: ListTransactionsResponse
) -> None:
    decoded = protocol.decode_list_transactions(version, write_list_transactions(version, response))
    assert decoded == response
    assert all(type(each) is TransactionListing for each in decoded.transactions)


@pytest.mark.parametrize(
    ("decode", "version", "frame", "response"),
    [
        (
            protocol.decode_find_coordinator,
            1,
            "00000007 00000001 0000 ffff 00000002 0001 68 00002384",
            FindCoordinatorResponse(1, 0, None, 2, "h", 9092),
        ),
        (
            protocol.decode_find_coordinator,
            3,
            "00000007 00 00000001 000f 02 78 ffffffff 01 ffffffff 00",
            FindCoordinatorResponse(1, 15, "x", -1, "", -1),
        ),
        (
            protocol.decode_find_coordinator,
            6,
            "00000007 00 00000001 02 03 7478 00000002 02 68 00002384 0000 00 00 00",
            FindCoordinatorResponse(1, 0, None, 2, "h", 9092),
        ),
        (
            protocol.decode_add_partitions_to_txn,
            0,
            "00000007 00000001 00000001 0001 74 00000002 00000000 0000 00000001 0037",
            AddPartitionsToTxnResponse(1, {("t", 0): 0, ("t", 1): 55}),
        ),
        (
            protocol.decode_add_partitions_to_txn,
            3,
            "00000007 00 00000001 02 02 74 03 00000000 0000 00 00000001 0037 00 00 00",
            AddPartitionsToTxnResponse(1, {("t", 0): 0, ("t", 1): 55}),
        ),
        (
            protocol.decode_add_offsets_to_txn,
            4,
            "00000007 00 00000001 0033 00",
            AddOffsetsToTxnResponse(1, 51),
        ),
        (
            protocol.decode_txn_offset_commit,
            2,
            "00000007 00000001 00000001 0001 74 00000001 00000003 0016",
            TxnOffsetCommitResponse(1, {("t", 3): 22}),
        ),
        (
            protocol.decode_txn_offset_commit,
            5,
            "00000007 00 00000001 02 02 74 02 00000003 0016 00 00 00",
            TxnOffsetCommitResponse(1, {("t", 3): 22}),
        ),
        (protocol.decode_end_txn, 2, "00000007 00000001 005a", EndTxnResponse(1, 90, -1, -1)),
        (
            protocol.decode_end_txn,
            5,
            "00000007 00 00000001 0000 00000000000003e8 0003 00",
            EndTxnResponse(1, 0, 1000, 3),
        ),
        (
            protocol.decode_describe_transactions,
            0,
            "00000007 00 00000001 02 0000 03 7478 06 456d707479 0000ea60 ffffffffffffffff"
            "00000000000003e8 0002 02 02 74 02 00000003 00 00 00",
            DescribeTransactionsResponse(
                1, [TransactionDescription(0, "tx", "Empty", 60_000, -1, 1000, 2, {"t": [3]})]
            ),
        ),
        (
            protocol.decode_list_transactions,
            2,
            "00000007 00 00000001 0000 02 02 78 02 03 7478 00000000000003e8 06 456d707479 00 00",
            ListTransactionsResponse(1, 0, ["x"], [TransactionListing("tx", 1000, "Empty")]),
        ),
    ],
)
def test_response_bytes_match_the_protocol_guide(
    decode: Callable[[int, bytes], Any], version: int, frame: str, response: Any
) -> None:
    assert decode(version, bytes.fromhex(frame)) == response


# Response -> its fields before a list, the smallest element of that list, and the fields after it.
LISTS: dict[str, tuple[Callable[[int, bytes], Any], int, str, str, str]] = {
    "coordinators": (
        protocol.decode_find_coordinator,
        4,
        "00000007 00 00000001",
        "01 00000002 01 00002384 000f 00 00",
        "00",
    ),
    "topics": (protocol.decode_txn_offset_commit, 3, "00000007 00 00000001", "01 01 00", "00"),
    "topics before v3": (protocol.decode_txn_offset_commit, 2, "00000007 00000001", "0000 00000000", ""),
    "topics.partitions": (
        protocol.decode_txn_offset_commit,
        3,
        "00000007 00 00000001 02 01",
        "00000003 0016 00",
        "00 00",
    ),
    "topics.partitions before v3": (
        protocol.decode_txn_offset_commit,
        2,
        "00000007 00000001 00000001 0000",
        "00000003 0016",
        "",
    ),
    "transaction_states": (
        protocol.decode_describe_transactions,
        0,
        "00000007 00 00000001",
        "0000 01 01 0000ea60 ffffffffffffffff 00000000000003e8 0002 01 00",
        "00",
    ),
    "transaction_states.topics": (
        protocol.decode_describe_transactions,
        0,
        "00000007 00 00000001 02 0000 01 01 0000ea60 ffffffffffffffff 00000000000003e8 0002",
        "01 01 00",
        "00 00",
    ),
    "transaction_states.topics.partitions": (
        protocol.decode_describe_transactions,
        0,
        "00000007 00 00000001 02 0000 01 01 0000ea60 ffffffffffffffff 00000000000003e8 0002 02 01",
        "00000003",
        "00 00 00",
    ),
    "unknown_state_filters": (
        protocol.decode_list_transactions,
        1,
        "00000007 00 00000001 0000",
        "01",
        "01 00",
    ),
    "transaction_states listed": (
        protocol.decode_list_transactions,
        1,
        "00000007 00 00000001 0000 01",
        "01 00000000000003e8 01 00",
        "00",
    ),
}


@pytest.mark.parametrize("field", LISTS)
def test_the_smallest_elements_are_read_and_counts_beyond_the_frame_refused(field: str) -> None:
    decode, version, *parts = LISTS[field]
    start, element, end = map(bytes.fromhex, parts)

    def count(elements: int) -> bytes:
        return elements.to_bytes(4, "big") if field.endswith("before v3") else bytes([elements + 1])

    def repeated(elements: int) -> bytes:
        if not field.startswith("topics.partitions"):
            return elements * element
        # Each partition once.
        return b"".join(index.to_bytes(4, "big") + element[4:] for index in range(elements))

    # There may be only one coordinator.
    for elements in (1,) if field == "coordinators" else (1, 10):
        decode(version, start + count(elements) + repeated(elements) + end)
        claim = rf"{field.split()[0]} claims {elements} elements of at least {len(element)} bytes"
        with pytest.raises(KafkaProtocolError, match=claim):
            decode(version, start + count(elements) + repeated(elements)[:-1])
