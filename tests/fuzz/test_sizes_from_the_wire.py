"""Sizes stated by a broker are never trusted: lengths and counts are checked before memory is allocated.

Memory is measured in two ways: Python's with ``tracemalloc``, all other memory with malloc's own statistics.
"""

import struct
import sysconfig
import tracemalloc
from collections.abc import Callable, Sized
from contextlib import suppress
from typing import Any

import pytest

from cyproducer import errors
from cyproducer.wire import protocol
from tests.fuzz.fuzz_rig import acknowledge, respond, retry_all
from tests.malloc import lent_bytes, needs_glibc
from tools.harness.reference_wire import encode_uvarint
from tools.harness.rig import Rig, Seen

MIB = 1 << 20


def peak_of(decode: Callable[[int, bytes], Any], version: int, frame: bytes) -> int:
    tracemalloc.start()
    try:
        with suppress(errors.KafkaProtocolError):
            decode(version, frame)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# Counts


def count_of(elements: int, flexible: bool) -> bytes:
    return encode_uvarint(elements + 1) if flexible else struct.pack(">i", elements)


def metadata_until_brokers(version: int) -> bytes:
    return bytes(4) + bytes(version >= 9) + bytes(4 * (version >= 3))


def metadata_until_topics(version: int) -> bytes:
    """A response up to its topics, with no brokers, a null cluster id and no controller."""
    flexible = version >= 9
    null = (b"\x00" if flexible else b"\xff\xff") if version >= 2 else b""
    return metadata_until_brokers(version) + count_of(0, flexible) + null + b"\xff" * 4


def metadata_until_partitions(version: int) -> bytes:
    flexible = version >= 9
    name = b"\x02t" if flexible else b"\x00\x01t"
    start = metadata_until_topics(version) + count_of(1, flexible) + bytes(2) + name
    return start + bytes(16 * (version >= 10)) + b"\x00"


@pytest.mark.parametrize("claimed", [2**31 - 1, 2**30, 10_000_000])
@pytest.mark.parametrize("until", [metadata_until_brokers, metadata_until_topics, metadata_until_partitions])
@pytest.mark.parametrize("version", range(1, 14))
def test_a_metadata_response_allocates_no_memory_for_claimed_counts(
    version: int, until: Callable[[int], bytes], claimed: int
) -> None:
    frame = until(version) + count_of(claimed, version >= 9) + bytes(1000)
    with pytest.raises(errors.KafkaProtocolError, match=f"claims {claimed} elements of at least"):
        protocol.decode_metadata(version, frame)
    assert peak_of(protocol.decode_metadata, version, frame) < 20_000


@pytest.mark.parametrize("version", range(5))
def test_an_api_versions_response_allocates_no_memory_for_claimed_counts(version: int) -> None:
    frame = bytes(6) + count_of(2**31 - 1, version >= 3) + bytes(1000)
    with pytest.raises(errors.KafkaProtocolError, match="claims 2147483647 elements"):
        protocol.decode_api_versions(version, frame)
    assert peak_of(protocol.decode_api_versions, version, frame) < 20_000


def dense_metadata(version: int, what: str, count: int) -> bytes:
    """A valid response with ``count`` brokers, topics or partitions, each as short as possible."""
    flexible = version >= 9
    end = bytes(4 * (8 <= version <= 10)) + bytes(2 * (version >= 13)) + bytes(flexible)
    empty, tags = count_of(0, flexible), bytes(flexible)
    text = b"\x01" if flexible else b"\x00\x00"
    operations = bytes(4 * (version >= 8))
    if what == "brokers":
        rack = b"\x00" if flexible else b"\xff\xff"
        host = b"\x02h" if flexible else b"\x00\x01h"
        one = struct.pack(">i", 70_000) + host + struct.pack(">i", 9092) + rack + tags
        rest = metadata_until_topics(version)[len(metadata_until_brokers(version)) + len(empty) :]
        start = metadata_until_brokers(version)
        return start + count_of(count, flexible) + one * count + rest + empty + end
    if what == "topics":
        topic_id = b"i" * (16 * (version >= 10))
        one = struct.pack(">h", 300) + text + topic_id + b"\x00" + empty + operations + tags
        return metadata_until_topics(version) + count_of(count, flexible) + one * count + end
    one = struct.pack(">hii", 300, 70_000, 70_001) + struct.pack(">i", 70_002)[: 4 * (version >= 7)]
    one += empty * (3 if version >= 5 else 2) + tags
    start = metadata_until_partitions(version)
    return start + count_of(count, flexible) + one * count + operations + tags + end


@pytest.mark.parametrize("what", ["brokers", "topics", "partitions"])
@pytest.mark.parametrize("version", range(1, 14))
def test_the_memory_of_a_response_is_in_proportion_to_its_bytes(version: int, what: str) -> None:
    frame = dense_metadata(version, what, 5000)
    response = protocol.decode_metadata(version, frame)
    found: dict[str, Sized] = {"brokers": response.brokers, "topics": response.topics}
    if what == "partitions":
        found[what] = response.topics[0].partitions
    assert len(found[what]) == 5000
    # An empty topic has 9 bytes there and 184 in Python, without a GIL 264: nothing has a higher ratio.
    most = 32 if sysconfig.get_config_var("Py_GIL_DISABLED") else 25
    assert peak_of(protocol.decode_metadata, version, frame) < most * len(frame)


# Frames


def started(rig: Rig) -> Seen:
    rig.fates.hook = retry_all
    rig.send("t", b"value")
    rig.clock.advance_ms(1)
    (seen,) = rig.requests()
    return seen


@pytest.mark.slow
@needs_glibc
@pytest.mark.parametrize("length", [100 * MIB, 2**31 - 1])
def test_memory_for_a_frame_grows_with_the_received_bytes(length: int) -> None:
    with Rig({"t": [1]}, linger_ms=1, receive_max=2**31 - 1) as rig:
        seen = started(rig)
        respond(rig, seen, struct.pack(">i", length) + bytes(1000))
        before = lent_bytes()
        sent = 1004
        for _ in range(40):
            seen.peer.sock.sendall(bytes(50_000))
            sent += 50_000
            rig.step()
            assert lent_bytes() - before < 2 * sent + MIB
        assert not rig.control.broken


@needs_glibc
@pytest.mark.slow
def test_memory_for_a_frame_is_not_more_than_its_length() -> None:
    with Rig({"t": [1]}, linger_ms=1, receive_max=2**31 - 1) as rig:
        seen = started(rig)
        # Doubling would make 8 MiB of it.
        length = 4 * MIB + 100_000
        sent = struct.pack(">i", length) + bytes(length - 1)
        before = lent_bytes()
        for at in range(0, len(sent), 50_000):
            seen.peer.sock.sendall(sent[at : at + 50_000])
            rig.step()
        assert lent_bytes() - before < length + 100_000
        assert not rig.control.broken


@pytest.mark.parametrize("limit", [100, 8191, 8192, 8193, 100_000])
def test_no_frame_may_be_longer_than_receive_message_max_bytes(limit: int) -> None:
    with Rig({"t": [1]}, linger_ms=1, receive_max=limit) as rig:
        seen = started(rig)
        # Only its header: the sender does not wait for the rest of a frame that it refuses anyway.
        respond(rig, seen, struct.pack(">i", limit + 1))
        ((node, cause),) = rig.control.broken
        assert (node, type(cause)) == (1, errors.BrokerProtocolError)
        assert f"broker-1 announced a response of {limit + 1} bytes" in str(cause)
        assert f"receive_message_max_bytes={limit}" in str(cause)
        rig.clock.advance_ms(100)
        (again,) = rig.requests()
        acknowledge(rig, again)
        assert rig.values("t") == [b"value"]


@pytest.mark.parametrize("limit", [100, 8191, 8192, 8193, 100_000])
def test_a_frame_of_receive_message_max_bytes_is_read(limit: int) -> None:
    with Rig({"t": [1]}, linger_ms=1, receive_max=limit) as rig:
        seen = started(rig)
        filler = struct.pack(">i", seen.request.correlation_id)
        respond(rig, seen, struct.pack(">i", limit) + filler.ljust(limit, b"\xff"))
        while not rig.control.broken:
            rig.step()
        # It was read completely, and is not a response to a Produce request.
        ((_, cause),) = rig.control.broken
        assert f"{limit} bytes, is malformed" in str(cause)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 3])
def test_no_frame_may_be_shorter_than_its_header(length: int) -> None:
    with Rig({"t": [1]}, linger_ms=1) as rig:
        respond(rig, started(rig), struct.pack(">i", length))
        ((_, cause),) = rig.control.broken
        assert f"announced a response of {length} bytes; allowed are 4 to" in str(cause)


# Produce responses


@needs_glibc
@pytest.mark.parametrize("claimed", [2**31 - 1, 10_000_000])
@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.slow
def test_a_produce_response_allocates_no_memory_for_claimed_counts(version: int, claimed: int) -> None:
    flexible = version >= 9
    with Rig({"t": [1]}, linger_ms=1, produce_version=version) as rig:
        seen = started(rig)
        body = struct.pack(">i", seen.request.correlation_id) + bytes(flexible)
        body += count_of(claimed, flexible) + bytes(1000)
        before = lent_bytes()
        respond(rig, seen, struct.pack(">i", len(body)) + body)
        assert lent_bytes() - before < MIB
        ((_, cause),) = rig.control.broken
        assert "is malformed" in str(cause)
