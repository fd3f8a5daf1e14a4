"""Each codec's output, checked with other decoders; its levels, limits, threads and errors."""

import gzip
import importlib
import random
import re
import resource
import struct
import subprocess
import sys
import threading
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import pytest

from cyproducer import KafkaProducer
from cyproducer.errors import KafkaConfigurationError
from cyproducer.records import codec_libraries, codecs, native_codec
from cyproducer.records.compression import (
    XERIAL_HEADER,
    Compressor,
    DecompressionError,
    compressor_for,
    decompress,
)
from tools.harness.reference_records import xerial_blocks
from tools.harness.until import Running

KIB, MIB = 1024, 1024 * 1024
NAMES = [None, *(codec.name for codec in codecs.CODECS if codec.codec_id)]
CODECS = [codec for codec in NAMES if codec]
LEVELS: list[tuple[str | None, int | None]] = [
    *((codec, None) for codec in NAMES),
    *(("gzip", level) for level in [-1, *range(1, 10)]),
    *(("lz4", level) for level in range(1, 18)),
    *(("zstd", level) for level in [-131072, -100, -1, 0, 1, 3, 9, 19, 22]),
]

noise = random.Random(5)
JSON = b"".join(
    b'{"id":%d,"user":"user-%05d","trace":"%032x"}' % (at, noise.randrange(20000), noise.getrandbits(128))
    for at in range(4000)
)


def snappy_block(block: bytes) -> bytes:
    """Decodes a raw snappy block exactly as its format description says: literals and copies."""
    at = shift = length = 0
    while True:
        byte = block[at]
        length |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    out = bytearray()
    while at < len(block):
        tag, at = block[at], at + 1
        if tag & 3 == 0:
            size = tag >> 2
            if size >= 60:
                extra = size - 59
                size, at = int.from_bytes(block[at : at + extra], "little"), at + extra
            out += block[at : at + size + 1]
            at += size + 1
            continue
        if tag & 3 == 1:
            size, offset, at = (tag >> 2 & 7) + 4, (tag >> 5) << 8 | block[at], at + 1
        else:
            width = 2 if tag & 3 == 2 else 4
            size, offset, at = (tag >> 2) + 1, int.from_bytes(block[at : at + width], "little"), at + width
        for _ in range(size):
            out.append(out[-offset])
    assert len(out) == length
    return bytes(out)


def plain_xerial(data: bytes) -> bytes:
    return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in xerial_blocks(data))


@pytest.fixture(autouse=True, params=["C", "Python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the libraries' C functions are used where they are found, or only Python's."""
    if request.param == "Python":
        monkeypatch.setattr(native_codec, "functions_of", lambda codec: None)
    way: str = request.param
    return way


# lz4 and zstandard are imported where they are used: tests are skipped one by one on a Python that has no
# wheel of them.


def lz4_frame() -> Any:
    import lz4.frame  # type: ignore[import-untyped]

    return lz4.frame


def unsized_zstd(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


def plain_zstd(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdDecompressor().decompress(data)


DECODERS: dict[str | None, Callable[[bytes], bytes]] = {
    None: lambda data: data,
    "gzip": gzip.decompress,
    "snappy": plain_xerial,
    "lz4": lambda data: lz4_frame().decompress(data),
    "zstd": plain_zstd,
}

INPUTS = {
    "empty": b"",
    "one byte": b"x",
    "json": JSON,
    "incompressible": noise.randbytes(200_000),
    "one run": bytes(300_000),
    **{
        f"{size}{more:+d}": (JSON * 8)[: size + more]
        for size in (32 * KIB, 64 * KIB, MIB)
        for more in (-1, 0, 1)
    },
}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("codec", NAMES)
def test_another_decoder_restores_the_input(codec: str | None, name: str) -> None:
    data = INPUTS[name]
    compressor = compressor_for(codec)
    packed = compressor.compress(data)
    assert DECODERS[codec](bytes(packed)) == data
    assert decompress(compressor.codec_id, packed, len(data)) == data


@pytest.mark.parametrize(("codec", "level"), LEVELS)
def test_every_level_restores_the_input(codec: str | None, level: int | None) -> None:
    data = JSON[: 100 * KIB]
    packed = compressor_for(codec, level).compress(data)
    assert DECODERS[codec](packed) == data
    # At such a fast level zstd saves almost nothing.
    saves = codec is not None and (level is None or level > -100)
    assert len(packed) < (0.8 if saves else 1.01) * len(data)


@pytest.mark.slow
@pytest.mark.parametrize("codec", NAMES)
def test_eight_megabytes_are_restored(codec: str | None) -> None:
    data = (JSON * 40)[: 8 * MIB]
    compressor = compressor_for(codec)
    packed = compressor.compress(data)
    assert DECODERS[codec](packed) == data
    assert decompress(compressor.codec_id, packed, 8 * MIB) == data


@pytest.mark.slow
def test_snappy_is_readable_by_its_format_description() -> None:
    data = (JSON * 8)[: MIB + 70_000] + bytes(500)
    blocks = [snappy_block(block) for block in xerial_blocks(compressor_for("snappy").compress(data))]
    assert [len(block) for block in blocks] == [MIB, 70_500]
    assert b"".join(blocks) == data


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda data: memoryview(bytearray(data))])
@pytest.mark.parametrize("codec", NAMES)
def test_any_buffer_is_accepted_and_none_is_kept(codec: str | None, wrap: Callable[[bytes], bytes]) -> None:
    data = wrap(JSON[: 40 * KIB])
    packed = compressor_for(codec).compress(data)
    if isinstance(data, memoryview):
        under = data.obj
        data.release()  # raises BufferError if the buffer is still in use
        if isinstance(under, bytearray):
            under[:] = b"gone"
    elif isinstance(data, bytearray):
        data[:] = b"gone"
    assert DECODERS[codec](bytes(packed)) == JSON[: 40 * KIB]


@pytest.mark.parametrize(
    ("codec", "codec_id", "name", "level"),
    [
        (None, 0, "none", None),
        ("none", 0, "none", None),
        ("gzip", 1, "gzip", -1),
        ("snappy", 2, "snappy", None),
        ("lz4", 3, "lz4", 9),
        ("zstd", 4, "zstd", 3),
    ],
)
def test_a_compressor_has_id_name_and_level(
    codec: str | None, codec_id: int, name: str, level: int | None
) -> None:
    compressor = compressor_for(codec)
    assert (compressor.codec_id, compressor.name, compressor.level) == (codec_id, name, level)
    assert repr(compressor) == f"Compressor(name={name!r}, level={level!r})"


def test_a_compressor_has_the_level_that_was_passed() -> None:
    assert compressor_for("zstd", -7).level == -7


def test_gzip_starts_with_a_fixed_header() -> None:
    packed = compressor_for("gzip").compress(b"a")
    # deflate, no flags, no time; then the extra flags and the system, which zlib chooses
    assert packed[:8] == bytes.fromhex("1f8b0800 00000000")
    assert packed[-8:] == struct.pack("<II", zlib.crc32(b"a"), 1)


def test_snappy_starts_with_the_xerial_header() -> None:
    packed = compressor_for("snappy").compress(b"abc")
    # magic, version 1, compatible with 1; 5 bytes: length 3, a literal of 3
    assert packed == bytes.fromhex("82534e4150505900 00000001 00000001 00000005 03 08") + b"abc"


def test_lz4_starts_with_a_header_that_every_reader_accepts() -> None:
    packed = compressor_for("lz4").compress(JSON)
    # magic; version 1, independent blocks, no checksums, no size; 64 KiB; the header's checksum
    assert packed[:7] == bytes.fromhex("04224d18 60 40 82")
    assert packed[-4:] == bytes(4)


def test_zstd_states_the_size_and_leaves_out_the_checksum() -> None:
    packed = compressor_for("zstd").compress(JSON)
    zstandard = pytest.importorskip("zstandard")
    frame = zstandard.get_frame_parameters(packed)
    assert packed[:4] == bytes.fromhex("28b52ffd")
    assert (frame.content_size, frame.has_checksum, frame.dict_id) == (len(JSON), False, 0)


@pytest.mark.parametrize(("codec", "fast", "slow"), [("gzip", 1, 9), ("lz4", 9, 10), ("zstd", -50, 19)])
def test_the_level_reaches_the_codec(codec: str, fast: int, slow: int) -> None:
    assert len(compressor_for(codec, slow).compress(JSON)) < len(compressor_for(codec, fast).compress(JSON))


def test_lz4_level_nine_is_the_fast_compressor_as_in_java() -> None:
    fast = lz4_frame().compress(JSON, compression_level=0, block_linked=False, store_size=False)
    assert compressor_for("lz4").compress(JSON) == fast
    assert compressor_for("lz4", 9).compress(JSON) == fast


def test_only_levels_of_lz4_need_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_codec, "functions_of", lambda codec: None)
    monkeypatch.setitem(sys.modules, "lz4", None)
    assert compressor_for("lz4").compress(JSON) == compressor_for("lz4", 9).compress(JSON)
    with pytest.raises(KafkaConfigurationError, match=r"compression_lz4_level=12 .*'cyproducer\[lz4\]'"):
        KafkaProducer(bootstrap_servers="127.0.0.1:1", compression_type="lz4", compression_level=12)


def test_lz4_frames_of_other_kinds_are_refused() -> None:
    # Linked blocks, and a content checksum: not what this client writes.
    packed = lz4_frame().compress(JSON, content_checksum=True)
    with pytest.raises(DecompressionError, match="lz4 data must start with 04224d18604082"):
        decompress(3, packed, len(JSON))


@pytest.mark.parametrize(
    "block",
    ["1f6101", "1f610100ff", "f0", "f0ff", "20 61", "10 61 01", "ff" * 300],
    ids=lambda block: block[:8],
)
def test_a_damaged_lz4_block_is_refused(block: str) -> None:
    data = bytes.fromhex(block)
    frame = bytes.fromhex("04224d18604082") + len(data).to_bytes(4, "little") + data + bytes(4)
    with pytest.raises(DecompressionError, match="lz4"):
        decompress(3, frame, 10_000_000)


def test_an_lz4_block_of_more_than_64_kib_is_refused() -> None:
    block = bytes(cramjam.lz4.compress_block(bytes(65537), store_size=False))
    frame = bytes.fromhex("04224d18604082") + len(block).to_bytes(4, "little") + block + bytes(4)
    with pytest.raises(DecompressionError, match="lz4 block at byte 7 is damaged"):
        decompress(3, frame, 10_000_000)


@pytest.mark.parametrize("way", ["C"], indirect=True)
@pytest.mark.parametrize(("codec", "level"), [(codec, level) for codec, level in LEVELS if codec])
def test_c_and_python_make_the_same(codec: str, level: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    native = compressor_for(codec, level)
    if native.native is None:
        pytest.skip(f"there is no library of {codec}")
    monkeypatch.setattr(native_codec, "functions_of", lambda codec: None)
    other = compressor_for(codec, level)
    assert other.native is None
    for data in (b"", b"x", JSON[: 100 * KIB], INPUTS["incompressible"], bytes(300_000)):
        # Twice: the second time with a context that was used.
        assert [native.compress(data), native.compress(data)] == [other.compress(data)] * 2


def test_contexts_of_libraries_leak_no_memory() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    if not Path("/proc/self/statm").exists():
        pytest.skip("needs /proc to measure memory")
    for codec, level in (("gzip", 1), ("lz4", 10), ("zstd", 1)):
        for turn in range(60):
            if turn == 10:
                before = resident()
            compressor_for(codec, level).compress(JSON[:5000])
        # A context takes from 256 KiB to over 1 MiB.
        assert resident() - before < 4 * MIB, codec


def test_the_libraries_of_the_default_install_are_found() -> None:
    # zlib comes with Python, and zstd with Python or a package that is always installed.
    for codec in ("gzip", "zstd"):
        assert codec_libraries.functions_of(codec), codec


def test_a_library_that_lacks_a_function_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(codec_libraries._FUNCTIONS, "zstd", ("ZSTD_createCCtx", "ZSTD_of_the_future"))
    assert codec_libraries.functions_of.__wrapped__("zstd") is None
    assert codec_libraries.functions_of.__wrapped__("none") is None


@pytest.mark.parametrize("codec", NAMES)
def test_eight_threads_share_a_compressor(codec: str | None) -> None:
    compressor = compressor_for(codec)
    inputs = [JSON[at * 997 : at * 997 + 3000 + 100 * at] for at in range(16)]
    expected = [compressor_for(codec).compress(data) for data in inputs]
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        for turn in range(200):
            at = turn % len(inputs)
            packed = compressor.compress(inputs[at])
            assert packed == expected[at]
            assert decompress(compressor.codec_id, packed, 10_000) == inputs[at]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for call in [Running(work) for _ in range(8)]:
            call.outcome()
    finally:
        sys.setswitchinterval(interval)


def test_zstd_contexts_are_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_codec, "functions_of", lambda codec: None)
    made = []
    zstd = importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")

    make = zstd.ZstdCompressor

    def counted(**options: object) -> object:
        made.append(options)
        return make(**options)

    monkeypatch.setattr(zstd, "ZstdCompressor", counted)
    compressor = compressor_for("zstd")
    for _ in range(5):
        compressor.compress(JSON)
    assert len(made) == 1


@pytest.mark.parametrize(
    ("codec", "level", "error", "says"),
    [
        ("brotli", None, ValueError, "None or one of 'none', 'gzip', 'snappy', 'lz4', 'zstd', not 'brotli'"),
        ("GZIP", None, ValueError, "not 'GZIP'"),
        ("", None, ValueError, "not ''"),
        ("gzip", 0, ValueError, r"gzip must be 1\.\.9 \(default -1\), not 0"),
        ("gzip", 10, ValueError, "not 10"),
        ("lz4", 0, ValueError, r"lz4 must be 1\.\.17 \(default 9\), not 0"),
        ("lz4", 18, ValueError, "not 18"),
        ("zstd", 23, ValueError, r"zstd must be -131072\.\.22 \(default 3\), not 23"),
        ("zstd", -131073, ValueError, "not -131073"),
        ("snappy", 1, ValueError, "snappy must be None, not 1"),
        (None, 1, ValueError, "none must be None, not 1"),
        ("gzip", True, TypeError, "gzip must be an int or None, not True"),
        ("zstd", 3.0, TypeError, r"zstd must be an int or None, not 3\.0"),
    ],
)
def test_the_error_names_a_wrong_codec_or_level(
    codec: str, level: int, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        compressor_for(codec, level)


def test_a_compressor_refuses_unknown_attributes() -> None:
    with pytest.raises(AttributeError):
        compressor_for(None).levle = 3  # type: ignore[attr-defined]
    assert isinstance(compressor_for(None), Compressor)


@pytest.mark.parametrize("size", [1, 5000, 3 * MIB])
@pytest.mark.parametrize("codec", NAMES)
def test_one_byte_over_the_limit_is_refused(codec: str | None, size: int) -> None:
    compressor = compressor_for(codec)
    packed = compressor.compress(bytes(size))
    assert len(decompress(compressor.codec_id, packed, size)) == size
    with pytest.raises(DecompressionError, match=f"{compressor.name} .* at most {size - 1} are allowed"):
        decompress(compressor.codec_id, packed, size - 1)


# Data that states no size, and data that states a false one: gigabytes that never come.
BOMBS: dict[str, tuple[int, Callable[[], bytes]]] = {
    "gzip": (1, lambda: gzip.compress(bytes(64 * MIB), 9)),
    "snappy": (2, lambda: XERIAL_HEADER + struct.pack(">I", 6) + bytes.fromhex("ffffffff0f 00")),
    "lz4": (3, lambda: compressor_for("lz4").compress(bytes(64 * MIB))),
    "lz4, false size": (3, lambda: bytes.fromhex("04224d18 6840 0000000001000000 93 0100008000")),
    "zstd": (4, lambda: unsized_zstd(bytes(64 * MIB))),
    "zstd, false size": (4, lambda: bytes.fromhex("28b52ffd e0 0000000001000000 010000")),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_decompression_bomb_stops_at_the_limit(name: str) -> None:
    codec_id, made = BOMBS[name]
    bomb = made()
    tracemalloc.start()
    try:
        with pytest.raises(DecompressionError):
            decompress(codec_id, bomb, 100_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Twice the limit, because lz4 copies its result; the snappy library's memory is not measured here.
    assert peak < 250_000 + len(bomb)


def test_a_false_size_of_a_snappy_block_is_detected_before_allocation() -> None:
    codec_id, made = BOMBS["snappy"]
    with pytest.raises(DecompressionError, match="decompresses to 4294967295 bytes; at most 1000 are"):
        decompress(codec_id, made(), 1000)


def test_a_large_limit_allocates_no_memory_for_a_small_lz4_frame() -> None:
    packed = compressor_for("lz4").compress(b"small")
    tracemalloc.start()
    try:
        assert decompress(3, packed, 1024 * MIB) == b"small"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize("data", [b"some records, " * 30, noise.randbytes(700)])
@pytest.mark.parametrize("codec", CODECS)
def test_truncated_data_and_surplus_bytes_are_refused(codec: str, data: bytes) -> None:
    compressor = compressor_for(codec)
    packed = compressor.compress(data)
    for size in range(len(packed)):
        # The xerial framing has no end mark: a header alone is a complete, empty stream.
        if codec != "snappy" or size != 16:
            with pytest.raises(DecompressionError, match=codec):
                decompress(compressor.codec_id, packed[:size], 10_000)
    for surplus in (b"\x00", b"\x01", bytes(3)):
        with pytest.raises(DecompressionError, match=codec):
            decompress(compressor.codec_id, packed + surplus, 10_000)


@pytest.mark.parametrize("wrong", ["00000005", "00000005 0308616263"[:-2], "000000", "ffffffff 0308616263"])
def test_the_error_names_a_snappy_block_shorter_than_stated(wrong: str) -> None:
    with pytest.raises(DecompressionError, match="snappy block at byte 16 ends before its stated length"):
        decompress(2, XERIAL_HEADER + bytes.fromhex(wrong), 10_000)


def test_a_damaged_snappy_block_is_refused() -> None:
    with pytest.raises(DecompressionError, match="cannot decompress 25 bytes of snappy"):
        decompress(2, XERIAL_HEADER + bytes.fromhex("00000005 03 0a 616263"), 10_000)


def test_an_empty_zstd_frame_without_its_size_fits_a_limit_of_zero() -> None:
    empty = unsized_zstd(b"")
    # The descriptor has neither a content size nor the flag of a single segment.
    assert empty[4] & 0xE0 == 0
    assert decompress(4, empty, 0) == b""


def test_a_zstd_frame_with_a_window_of_128_mib_is_refused() -> None:
    with pytest.raises(DecompressionError, match="requires too much memory"):
        decompress(4, bytes.fromhex("28b52ffd008894ecff0404"), MIB)


@pytest.mark.parametrize("codec", NAMES)
def test_decompressing_keeps_no_reference_to_its_input(codec: str | None) -> None:
    compressor = compressor_for(codec)
    packed = bytearray(compressor.compress(JSON))
    with memoryview(packed) as view:
        result = decompress(compressor.codec_id, view, len(JSON))
    packed[:] = b"gone"
    assert type(result) is bytes
    assert result == JSON


@pytest.mark.parametrize("codec", CODECS)
def test_random_bytes_are_refused(codec: str) -> None:
    compressor = compressor_for(codec)
    for length in (1, 20, 1000):
        with pytest.raises(DecompressionError, match=codec):
            decompress(compressor.codec_id, noise.randbytes(length), 10_000)
    packed = bytearray(compressor.compress(JSON))
    for at in range(16, len(packed), len(packed) // 50):
        packed[at] ^= 0xFF
    with pytest.raises(DecompressionError, match=codec):
        decompress(compressor.codec_id, packed, len(JSON))


@pytest.mark.parametrize("codec_id", [-1, 5, 7])
def test_the_error_names_an_unknown_codec_id(codec_id: int) -> None:
    with pytest.raises(ValueError, match=re.escape(f"0 (none) to 4 (zstd), not {codec_id}")):
        decompress(codec_id, b"", 10)


def test_the_error_names_a_negative_limit() -> None:
    with pytest.raises(ValueError, match="max_size must be 0 or more, not -1"):
        decompress(0, b"", -1)


def test_a_python_without_zstd_has_the_other_codecs() -> None:
    """Python 3.14 and later, if it was built where libzstd's headers were missing."""
    code = """
import sys
sys.modules["compression.zstd"] = sys.modules["backports.zstd"] = None
from cyproducer.errors import KafkaConfigurationError
from cyproducer.records.compression import DecompressionError, compressor_for, decompress
assert decompress(3, compressor_for("lz4").compress(b"x" * 100), 100) == b"x" * 100
try:
    compressor_for("zstd")
except KafkaConfigurationError as error:
    assert "compression_type='zstd': this Python was built without libzstd" in str(error), error
else:
    raise AssertionError("no error")
try:
    decompress(4, b"x", 100)
except DecompressionError as error:
    assert "use another codec, or a Python that has it" in str(error), error
else:
    raise AssertionError("no error")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
