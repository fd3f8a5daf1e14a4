"""CRC-32C: published vectors, the crc32c package as oracle, both kernels, and the choice between them."""

import array
import ctypes
import platform
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import crc32c as oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyproducer.records import crc32c as module
from cyproducer.records.crc32c import IMPLEMENTATION, _crc32c_table, crc32c
from tests.records import hash_reference as reference
from tests.records.capsules import c_function

Checksum = Callable[..., int]

kernels = pytest.mark.parametrize("checksum", [crc32c, _crc32c_table], ids=[IMPLEMENTATION, "tables"])

# The block sizes of the hardware kernel: three long lanes, three short ones, a word.
LONG, SHORT, WORD = 3 * 4096, 3 * 256, 8


@kernels
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        # RFC 3720 appendix B.4
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
        (
            bytes.fromhex(
                "01c00000 00000000 00000000 00000000 14000000 00000400"
                "00000014 00000018 28000000 00000000 02000000 00000000"
            ),
            0xD9963A56,
        ),
    ],
)
def test_published_vectors(checksum: Checksum, data: bytes, expected: int) -> None:
    assert checksum(data) == expected


@kernels
def test_every_short_length_at_every_alignment(checksum: Checksum) -> None:
    data = memoryview(random.Random(1).randbytes(309))
    for offset in range(9):
        for length in range(301):
            part = data[offset : offset + length]
            assert checksum(part) == oracle.crc32c(part), (offset, length)


@kernels
@pytest.mark.parametrize(
    "whole", [SHORT, 2 * SHORT, LONG, 2 * LONG, LONG + SHORT, 5 * LONG + 9 * SHORT + WORD]
)
def test_lengths_around_the_lanes_at_every_alignment(checksum: Checksum, whole: int) -> None:
    data = memoryview(random.Random(whole).randbytes(whole + 32))
    for offset in range(9):
        for length in range(whole - 10, whole + 20):
            part = data[offset : offset + length]
            assert checksum(part, length) == oracle.crc32c(part, length), (offset, length)


@kernels
def test_large_random_buffers(checksum: Checksum) -> None:
    generator = random.Random(2)
    for size in (1_000_003, 3_333_333):
        data = generator.randbytes(size)
        assert checksum(data) == oracle.crc32c(data)


@kernels
def test_a_checksum_continues_across_every_split(checksum: Checksum) -> None:
    data = random.Random(4).randbytes(900)
    whole = oracle.crc32c(data)
    for split in range(len(data) + 1):
        assert checksum(data[split:], checksum(data[:split])) == whole


@kernels
@given(data=st.binary(max_size=2000), start=st.integers(0, 2**32 - 1))
def test_agrees_with_the_plain_reference(checksum: Checksum, data: bytes, start: int) -> None:
    assert checksum(data, start) == reference.crc32c(data, start)


@kernels
def test_any_contiguous_buffer_is_accepted_and_released(checksum: Checksum) -> None:
    words = array.array("I", [1, 2**31, 77])
    expected = oracle.crc32c(words.tobytes())
    assert checksum(words) == checksum(memoryview(words)) == expected
    for size in (100, 100_000):
        buffer = bytearray(size)
        assert checksum(buffer) == oracle.crc32c(buffer)
        buffer.append(0)  # BufferError while a view is held


@kernels
def test_other_objects_and_invalid_checksums_are_refused(checksum: Checksum) -> None:
    with pytest.raises(TypeError, match="str"):
        checksum("text")
    with pytest.raises(BufferError):
        checksum(memoryview(b"abcdef")[::2])
    for start in (-1, 2**32):
        with pytest.raises(OverflowError):
            checksum(b"", start)


@pytest.mark.skipif(
    not Path("/proc/cpuinfo").exists() or platform.machine() not in ("x86_64", "aarch64"),
    reason="needs /proc/cpuinfo to know what the processor has",
)
def test_the_processors_crc_instruction_is_used_if_present() -> None:
    flag, name = {"x86_64": ("sse4_2", "sse4.2"), "aarch64": ("crc32", "armv8-crc")}[platform.machine()]
    flags = Path("/proc/cpuinfo").read_text().split()
    expected = name if flag in flags else "table"
    assert expected == IMPLEMENTATION


@pytest.fixture
def no_forced_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(before)


def test_the_gil_is_released_during_a_large_buffer(no_forced_switches: None) -> None:
    started, go, ran = threading.Event(), threading.Lock(), threading.Event()
    go.acquire()

    def other() -> None:
        started.set()
        with go:
            ran.set()

    thread = threading.Thread(target=other)
    thread.start()
    assert started.wait(10)
    buffer = bytes(16_000_000)
    # The other thread gets the GIL only if this one releases it; a single time may be too short.
    go.release()
    for _ in range(2000):
        crc32c(buffer)
        if ran.is_set():
            break
    gave_away = ran.is_set()
    thread.join(10)
    assert gave_away


def test_the_c_function_continues_a_checksum_and_accepts_null_with_no_bytes() -> None:
    function = c_function(
        module, "crc32c", ctypes.c_uint32, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_ssize_t
    )
    assert function(0, b"123456789", 9) == 0xE3069283
    assert function(function(0, b"1234", 4), b"56789", 5) == 0xE3069283
    assert function(77, None, 0) == 77
