"""The requests of transactions, and their decoded responses, against golden bytes."""

from collections.abc import Callable
from typing import Any

import pytest

from cyproducer.errors import KafkaProtocolError
from cyproducer.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from cyproducer.wire import transaction_api
from cyproducer.wire.messages import FIND_COORDINATOR
from cyproducer.wire.transaction_api import (
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

# Requests


MEMBER = ConsumerGroupMetadata("g", 9, "a")
OFFSETS = {TopicPartition("t", 3): OffsetAndMetadata(5, "m", 6)}


@pytest.mark.parametrize(
    ("frame", "golden"),
    [
        (
            transaction_api.encode_find_coordinator(1, 7, "c", 1, "tx"),
            "00000010 000a 0001 00000007 0001 63  0002 7478  01",
        ),
        (
            transaction_api.encode_find_coordinator(3, 7, "c", 1, "tx"),
            "00000011 000a 0003 00000007 0001 63 00  03 7478  01  00",
        ),
        (
            transaction_api.encode_find_coordinator(4, 7, "c", 1, "tx"),
            "00000012 000a 0004 00000007 0001 63 00  01  02 03 7478  00",
        ),
        (
            transaction_api.encode_find_coordinator(6, 7, "c", 0, "g"),
            "00000011 000a 0006 00000007 0001 63 00  00  02 02 67  00",
        ),
        (
            transaction_api.encode_add_partitions_to_txn(0, 7, "c", "tx", 1000, 2, {"t": [0, 1]}),
            "0000002c 0018 0000 00000007 0001 63  0002 7478 00000000000003e8 0002"
            "00000001 0001 74 00000002 00000000 00000001",
        ),
        (
            transaction_api.encode_add_partitions_to_txn(3, 7, "c", "tx", 1000, 2, {"t": [0, 1]}),
            "00000027 0018 0003 00000007 0001 63 00  03 7478 00000000000003e8 0002"
            "02 02 74 03 00000000 00000001 00 00",
        ),
        (
            transaction_api.encode_add_offsets_to_txn(2, 7, "c", "tx", 1000, 2, "g"),
            "0000001c 0019 0002 00000007 0001 63  0002 7478 00000000000003e8 0002 0001 67",
        ),
        (
            transaction_api.encode_add_offsets_to_txn(4, 7, "c", "tx", 1000, 2, "g"),
            "0000001c 0019 0004 00000007 0001 63 00  03 7478 00000000000003e8 0002 02 67 00",
        ),
        (
            transaction_api.encode_txn_offset_commit(
                0, 7, "c", "tx", 1000, 2, ConsumerGroupMetadata("g"), OFFSETS
            ),
            "00000036 001c 0000 00000007 0001 63  0002 7478 0001 67 00000000000003e8 0002"
            "00000001 0001 74 00000001  00000003 0000000000000005 0001 6d",
        ),
        (
            transaction_api.encode_txn_offset_commit(
                2, 7, "c", "tx", 1000, 2, ConsumerGroupMetadata("g"), OFFSETS
            ),
            "0000003a 001c 0002 00000007 0001 63  0002 7478 0001 67 00000000000003e8 0002"
            "00000001 0001 74 00000001  00000003 0000000000000005 00000006 0001 6d",
        ),
        (
            transaction_api.encode_txn_offset_commit(
                5, 7, "c", "tx", 1000, 2, MEMBER, {TopicPartition("t", 3): OffsetAndMetadata(5)}
            ),
            "0000003a 001c 0005 00000007 0001 63 00  03 7478 02 67 00000000000003e8 0002 00000009 02 61 00"
            "02 02 74 02  00000003 0000000000000005 ffffffff 01 00  00 00",
        ),
        # Each topic once.
        (
            transaction_api.encode_txn_offset_commit(
                3,
                7,
                "c",
                "tx",
                1000,
                2,
                MEMBER._replace(group_instance_id="i"),
                {
                    TopicPartition(topic, partition): OffsetAndMetadata(5, "m")
                    for topic, partition in (("t", 3), ("u", 3), ("t", 4))
                },
            ),
            "00000066 001c 0003 00000007 0001 63 00  03 7478 02 67 00000000000003e8 0002 00000009 02 61 02 69"
            "03 02 74 03 00000003 0000000000000005 ffffffff 02 6d 00 00000004 0000000000000005 ffffffff 02 6d"
            "00 00 02 75 02 00000003 0000000000000005 ffffffff 02 6d 00 00 00",
        ),
        (
            transaction_api.encode_end_txn(1, 7, "c", "tx", 1000, 2, True),
            "0000001a 001a 0001 00000007 0001 63  0002 7478 00000000000003e8 0002 01",
        ),
        (
            transaction_api.encode_end_txn(5, 7, "c", "tx", 1000, 2, False),
            "0000001b 001a 0005 00000007 0001 63 00  03 7478 00000000000003e8 0002 00 00",
        ),
        (
            transaction_api.encode_describe_transactions(0, 7, "c", ["tx"]),
            "00000011 0041 0000 00000007 0001 63 00  02 03 7478 00",
        ),
        (
            transaction_api.encode_list_transactions(0, 7, "c", ["Ongoing"], [1000]),
            "0000001f 0042 0000 00000007 0001 63 00  02 08 4f6e676f696e67  02 00000000000003e8  00",
        ),
        (
            transaction_api.encode_list_transactions(1, 7, "c", duration_ms=5),
            "00000017 0042 0001 00000007 0001 63 00  01 01 0000000000000005 00",
        ),
        (
            transaction_api.encode_list_transactions(2, 7, "c"),
            "00000018 0042 0002 00000007 0001 63 00  01 01 ffffffffffffffff 00 00",
        ),
        (
            transaction_api.encode_list_transactions(2, 7, "c", duration_ms=-2, pattern=""),
            "00000018 0042 0002 00000007 0001 63 00  01 01 fffffffffffffffe 01 00",
        ),
        (
            transaction_api.encode_list_transactions(2, 7, "c", duration_ms=5, pattern="t.*"),
            "0000001b 0042 0002 00000007 0001 63 00  01 01 0000000000000005 04 742e2a 00",
        ),
    ],
)
def test_request_bytes_match_the_protocol_guide(frame: bytes, golden: str) -> None:
    assert frame.hex() == golden.replace(" ", "")


def test_values_that_a_version_cannot_encode_are_rejected() -> None:
    with pytest.raises(ValueError, match="duration_filter=0 needs version 1"):
        transaction_api.encode_list_transactions(0, 1, None, duration_ms=0)
    with pytest.raises(ValueError, match="transactional_id_pattern='a' needs version 2"):
        transaction_api.encode_list_transactions(1, 1, None, pattern="a")
    for part in ({"generation_id": 0}, {"member_id": "a"}, {"group_instance_id": "a"}):
        group = ConsumerGroupMetadata("g", **part)
        with pytest.raises(ValueError, match=f"{next(iter(part))}=.* needs version 3"):
            transaction_api.encode_txn_offset_commit(2, 1, None, "tx", 1, 2, group, OFFSETS)


@pytest.mark.parametrize(
    ("leader_epoch", "encoded"), [(0, "00000000"), (6, "00000006"), (-1, "ffffffff"), (None, "ffffffff")]
)
def test_only_unknown_leader_epochs_are_unknown(leader_epoch: int | None, encoded: str) -> None:
    offsets = {TopicPartition("t", 3): OffsetAndMetadata(5, "", leader_epoch)}
    frame = transaction_api.encode_txn_offset_commit(5, 7, "c", "tx", 1000, 2, MEMBER, offsets)
    assert frame.hex().endswith("0000000000000005" + encoded + "01000000")


def test_filters_that_filter_nothing_need_no_version() -> None:
    frame = transaction_api.encode_list_transactions(0, 1, None)
    assert transaction_api.encode_list_transactions(0, 1, None, duration_ms=-2, pattern="") == frame


def test_versions_for_brokers_are_rejected() -> None:
    message = "AddPartitionsToTxn v4 request: v3_and_below_transactional_id='tx' needs version 3 or older"
    with pytest.raises(ValueError, match=message):
        transaction_api.encode_add_partitions_to_txn(4, 1, None, "tx", 1, 2, {})
    with pytest.raises(ValueError, match="AddPartitionsToTxn version 6 is not implemented, only 0 to 5"):
        transaction_api.decode_add_partitions_to_txn(6, b"")
    with pytest.raises(ValueError, match="FindCoordinator v0 request: key_type=1 needs version 1 or newer"):
        transaction_api.encode_find_coordinator(0, 1, None, 1, "g")


# Responses


@pytest.mark.parametrize("version", [4, 5, 6])
@pytest.mark.parametrize("coordinators", [0, 2])
def test_a_response_must_have_one_coordinator(version: int, coordinators: int) -> None:
    message = FIND_COORDINATOR.response
    response = message(coordinators=[message.Coordinator("tx", 1, "h", 9092, 0, None)] * coordinators)
    frame = FIND_COORDINATOR.encode_response(version, 7, response)[4:]
    problem = rf"FindCoordinator v{version} response: coordinators has {coordinators} elements, but must have"
    with pytest.raises(KafkaProtocolError, match=f"{problem} one"):
        transaction_api.decode_find_coordinator(version, frame)


@pytest.mark.parametrize(
    ("decode", "version", "frame", "response"),
    [
        (
            transaction_api.decode_find_coordinator,
            1,
            "00000007 00000001 0000 ffff 00000000 0001 68 00002384",
            FindCoordinatorResponse(1, 0, None, 0, "h", 9092),
        ),
        (
            transaction_api.decode_find_coordinator,
            3,
            "00000007 00 00000001 000f 02 78 ffffffff 01 ffffffff 00",
            FindCoordinatorResponse(1, 15, "x", -1, "", -1),
        ),
        (
            transaction_api.decode_find_coordinator,
            6,
            "00000007 00 00000001 02 03 7478 00000002 02 68 00002384 0000 00 00 00",
            FindCoordinatorResponse(1, 0, None, 2, "h", 9092),
        ),
        (
            transaction_api.decode_add_partitions_to_txn,
            0,
            "00000007 00000001 00000001 0001 74 00000002 00000000 0000 00000001 0037",
            AddPartitionsToTxnResponse(1, {("t", 0): 0, ("t", 1): 55}),
        ),
        (
            transaction_api.decode_add_partitions_to_txn,
            3,
            "00000007 00 00000001 02 02 74 03 00000000 0000 00 00000001 0037 00 00 00",
            AddPartitionsToTxnResponse(1, {("t", 0): 0, ("t", 1): 55}),
        ),
        (
            transaction_api.decode_add_offsets_to_txn,
            4,
            "00000007 00 00000001 0033 00",
            AddOffsetsToTxnResponse(1, 51),
        ),
        (
            transaction_api.decode_txn_offset_commit,
            2,
            "00000007 00000001 00000001 0001 74 00000001 00000003 0016",
            TxnOffsetCommitResponse(1, {("t", 3): 22}),
        ),
        (
            transaction_api.decode_txn_offset_commit,
            5,
            "00000007 00 00000001 02 02 74 02 00000003 0016 00 00 00",
            TxnOffsetCommitResponse(1, {("t", 3): 22}),
        ),
        (transaction_api.decode_end_txn, 2, "00000007 00000001 005a", EndTxnResponse(1, 90, -1, -1)),
        (
            transaction_api.decode_end_txn,
            5,
            "00000007 00 00000001 0000 00000000000003e8 0003 00",
            EndTxnResponse(1, 0, 1000, 3),
        ),
        (
            transaction_api.decode_end_txn,
            5,
            "00000007 00 00000001 005a 00000000000003e8 ffff 00",
            EndTxnResponse(1, 90, 1000, -1),
        ),
        (
            transaction_api.decode_describe_transactions,
            0,
            "00000007 00 00000001 02 0000 03 7478 06 456d707479 0000ea60 ffffffffffffffff"
            "00000000000003e8 0002 02 02 74 02 00000003 00 00 00",
            DescribeTransactionsResponse(
                1, [TransactionDescription(0, "tx", "Empty", 60_000, -1, 1000, 2, {"t": [3]})]
            ),
        ),
        (
            transaction_api.decode_list_transactions,
            2,
            "00000007 00 00000001 0000 02 02 78 02 03 7478 00000000000003e8 06 456d707479 00 00",
            ListTransactionsResponse(1, 0, ["x"], [TransactionListing("tx", 1000, "Empty")]),
        ),
    ],
)
def test_response_bytes_match_the_protocol_guide(
    decode: Callable[[int, bytes], Any], version: int, frame: str, response: Any
) -> None:
    found = decode(version, bytes.fromhex(frame))
    # Equal tuples may be of different types.
    assert (found, repr(found)) == (response, repr(response))
