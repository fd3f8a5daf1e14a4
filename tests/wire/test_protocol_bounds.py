"""Responses larger than those of any cluster are refused before memory is allocated for their elements.

Python's objects take ten times the bytes of a response. Other threads run while a large response is read.
"""

import gc
import struct
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from cyproducer.errors import KafkaProtocolError
from cyproducer.wire import protocol, sasl_api, transaction_api
from cyproducer.wire.primitives import MOST_ELEMENTS, Reader, read_partitions
from cyproducer.wire.responses import PartitionInfo
from tools.harness.reference_wire import encode_uvarint
from tools.harness.until import until

METADATA = bytes(8)
"""The start of a Metadata v8 response, up to its brokers: correlation id and throttle time."""
NOTHING_BEFORE_TOPICS = METADATA + struct.pack(">ihi", 0, -1, -1)
TOPIC = struct.pack(">hh", 0, 1) + b"t\0"
PARTITION = struct.pack(">hiiiiii", 0, 70_000, 70_001, 70_002, 0, 0, 0)
END = struct.pack(">i", 0)


def brokers(count: int) -> bytes:
    one = struct.pack(">h", 1) + b"h" + struct.pack(">ih", 9092, -1)
    return struct.pack(">i", count) + b"".join(struct.pack(">i", i) + one for i in range(count))


def metadata_of_brokers(count: int) -> bytes:
    return METADATA + brokers(count) + struct.pack(">hii", -1, -1, 0) + END


def topics(*partitions: int) -> bytes:
    found = (TOPIC + struct.pack(">i", count) + PARTITION * count + bytes(4) for count in partitions)
    return NOTHING_BEFORE_TOPICS + struct.pack(">i", len(partitions)) + b"".join(found) + END


def flexible(count: int, one: bytes, before: int) -> bytes:
    """A flexible response: ``before`` zeros, an array, and the end."""
    return bytes(before) + encode_uvarint(count + 1) + one * count + b"\0"


def peak_of_refusal(decode: Callable[[int, bytes], Any], version: int, frame: bytes) -> tuple[int, str]:
    with suppress(KafkaProtocolError):
        # Prepares the decoder, which is kept.
        decode(version, frame)
    tracemalloc.start()
    try:
        with pytest.raises(KafkaProtocolError) as caught:
            decode(version, frame)
        return tracemalloc.get_traced_memory()[1], str(caught.value)
    finally:
        tracemalloc.stop()


def test_more_brokers_than_any_cluster_has_are_refused() -> None:
    assert len(protocol.decode_metadata(8, metadata_of_brokers(20_000)).brokers) == 20_000
    peak, problem = peak_of_refusal(protocol.decode_metadata, 8, metadata_of_brokers(20_001))
    assert "Metadata v8 response: brokers has 20001 elements, at most 20000 are allowed" in problem
    assert peak < 20_000
    field = (
        encode_uvarint(20_002) + (struct.pack(">i", 1) + b"\x02h" + struct.pack(">i", 1) + b"\0\0") * 20_001
    )
    peak, problem = peak_of_refusal(lambda _, frame: protocol.decode_node_endpoints(frame), 0, field)
    assert "node_endpoints has 20001 elements, at most 20000 are allowed" in problem
    assert peak < 20_000


@pytest.mark.parametrize(
    ("decode", "version", "frame", "problem"),
    [
        (
            protocol.decode_metadata,
            8,
            lambda: topics(MOST_ELEMENTS + 1),
            "partitions has 1000001 elements, at most 1000000 are allowed",
        ),
        (
            protocol.decode_metadata,
            8,
            lambda: topics(7, MOST_ELEMENTS - 8),
            "partitions brings the response to 1000001 elements, at most 1000000 are allowed",
        ),
        (
            protocol.decode_metadata,
            8,
            lambda: NOTHING_BEFORE_TOPICS + struct.pack(">i", MOST_ELEMENTS + 1) + bytes(13_000_013),
            "topics has 1000001 elements",
        ),
        (
            protocol.decode_listing,
            8,
            lambda: (
                topics(1)[: -len(PARTITION) + 6]
                + struct.pack(">i", 4 * MOST_ELEMENTS)
                + bytes(16 * MOST_ELEMENTS + 100)
            ),
            "partitions.replica_nodes brings the response to 1000002 elements",
        ),
        (
            transaction_api.decode_list_transactions,
            0,
            lambda: (
                flexible(MOST_ELEMENTS + 1, b"\1" + bytes(8) + b"\1\0", 11)[:11]
                + b"\1"
                + flexible(MOST_ELEMENTS + 1, b"\1" + bytes(8) + b"\1\0", 0)
            ),
            "transaction_states has 1000001 elements",
        ),
        (
            protocol.decode_init_producer_id,
            4,
            lambda: bytes(4) + encode_uvarint(MOST_ELEMENTS + 1) + bytes(2 * MOST_ELEMENTS + 100),
            "tagged fields brings the response to 1000001 elements",
        ),
        (
            protocol.decode_init_producer_id,
            4,
            lambda: bytes(4) + encode_uvarint(2**31 - 1) + bytes(100),
            "tagged fields claims 2147483647 fields of at least 2 bytes",
        ),
        (
            sasl_api.decode_sasl_handshake,
            1,
            lambda: bytes(6) + struct.pack(">i", MOST_ELEMENTS + 1) + bytes(2 * MOST_ELEMENTS + 2),
            "mechanisms has 1000001 elements",
        ),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_more_elements_than_any_cluster_has_are_refused(
    decode: Callable[[int, bytes], Any], version: int, frame: Callable[[], bytes], problem: str
) -> None:
    peak, found = peak_of_refusal(decode, version, frame())
    assert problem in found
    assert peak < 20_000


def test_a_string_is_no_longer_than_kafka_allows() -> None:
    def frame(size: int) -> bytes:
        text = encode_uvarint(size + 1) + b"x" * size
        start = bytes(9) + b"\2" + b"\2k" + struct.pack(">i", 1) + b"\2h" + struct.pack(">ih", 9092, 15)
        return start + text + b"\0\0"

    assert len(transaction_api.decode_find_coordinator(4, frame(32767)).error_message or "") == 32767
    peak, problem = peak_of_refusal(transaction_api.decode_find_coordinator, 4, frame(32768))
    assert "coordinators.error_message has length 32768, at most 32767 is allowed" in problem
    assert peak < 20_000


@pytest.mark.parametrize("with_replicas", [False, True])
def test_other_threads_run_while_partitions_are_read(with_replicas: bool) -> None:
    """A thread that wants the GIL gets it within one call in C, once per 1024 partitions."""
    count = 60 * 1024
    one = struct.pack(">hiiiiii", 0, 1, 2, 3, 0, 0, 0)
    reader = Reader(struct.pack(">i", count) + one * count, "Metadata v8 response", False)
    kind: Any = tuple if with_replicas else PartitionInfo
    turns = 0
    ended = threading.Event()

    def take_turns() -> None:
        nonlocal turns
        while not ended.is_set():
            turns += 1
            # Gives the GIL back, so that the next turn needs another switch.
            time.sleep(0)

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=take_turns)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        until(lambda: turns > 0, "the other thread")
        before = turns
        partitions = read_partitions(reader, 8, kind, with_replicas)
        taken = turns - before
    finally:
        ended.set()
        sys.setswitchinterval(interval)
        thread.join()
    assert len(partitions) == count
    # 60 at best. On a loaded machine the other thread often comes too late. Without a release it gets none.
    assert taken > 2


def test_the_cycle_collector_does_not_look_at_partitions() -> None:
    """They are kept, and many: each full collection would hold the GIL for longer."""
    (topic,) = protocol.decode_metadata(8, topics(3)).topics
    assert [gc.is_tracked(partition) for partition in topic.partitions] == [False] * 3
