"""The reference compared with three other codecs and golden bytes, and the errors it must detect."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import crc32c
import pytest
from aiokafka.record.default_records import (  # type: ignore[import-untyped]
    DefaultRecordBatch as AiokafkaBatch,
)
from aiokafka.record.default_records import (
    DefaultRecordBatchBuilder as AiokafkaBuilder,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kafka.record.default_records import (  # type: ignore[import-untyped]
    DefaultRecordBatch as KafkaPythonBatch,
)
from kafka.record.default_records import (
    DefaultRecordBatchBuilder as KafkaPythonBuilder,
)
from kio.records.readers import read_batch

from tools.harness import reference_records as reference
from tools.harness.reference_records import (
    Batch,
    MalformedError,
    Record,
    batch_of,
    decode_batches,
    encode_batch,
)

CODECS = [reference.NONE, reference.GZIP, reference.SNAPPY, reference.LZ4, reference.ZSTD]
# kafka-python's snappy needs an additional library.
CODECS_OF_KAFKA_PYTHON = [reference.NONE, reference.GZIP, reference.LZ4, reference.ZSTD]
MAYBE_BYTES = st.none() | st.binary(max_size=300)
HEADERS = st.lists(st.tuples(st.text(max_size=20), MAYBE_BYTES), max_size=4).map(tuple)
# Far apart, so that deltas take every length, but not so far that a delta exceeds 64 bits.
TIMES = st.integers(-(2**62), 2**62 - 1) | st.integers(1_700_000_000_000, 1_800_000_000_000)

ONE = Record(0, 1_700_000_000_000, b"k", b"v")
TWO = Record(1, 1_700_000_000_005, None, b"longer value", (("name", b"x"), ("empty", None)))


@st.composite
def batches(draw: st.DrawFn, codecs: Sequence[int] = CODECS) -> Batch:
    fields = draw(st.lists(st.tuples(TIMES, MAYBE_BYTES, MAYBE_BYTES, HEADERS), min_size=1, max_size=20))
    return batch_of(
        [Record(delta, *rest) for delta, rest in enumerate(fields)],
        codec=draw(st.sampled_from(codecs)),
        transactional=draw(st.booleans()),
        base_offset=draw(st.integers(0, 2**62)),
        partition_leader_epoch=draw(st.integers(-1, 2**31 - 1)),
        producer_id=draw(st.integers(-1, 2**63 - 1)),
        producer_epoch=draw(st.integers(-1, 2**15 - 1)),
        base_sequence=draw(st.integers(-1, 2**31 - 1)),
    )


def plain(batch: Batch) -> list[tuple[Any, ...]]:
    """The records in a form that every project here provides: offset, time, key, value, headers."""
    return [
        (batch.base_offset + one.offset_delta, one.timestamp, one.key, one.value, list(one.headers))
        for one in batch.records
    ]


def header_of(theirs: Any) -> tuple[int, ...]:
    names = "base_offset magic crc attributes last_offset_delta first_timestamp max_timestamp producer_id"
    return tuple(getattr(theirs, name) for name in f"{names} producer_epoch base_sequence".split())


def header_of_ours(batch: Batch) -> tuple[int, ...]:
    return (
        batch.base_offset,
        batch.magic,
        batch.crc,
        batch.attributes,
        batch.last_offset_delta,
        batch.base_timestamp,
        batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
    )


def repaired(data: bytearray) -> bytes:
    """Corrects the length and the CRC, so that only the damage itself can be detected."""
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">I", data, 17, crc32c.crc32c(bytes(data[21:])))
    return bytes(data)


@pytest.mark.slow
@given(st.lists(batches(), max_size=3))
def test_encoded_batches_are_decoded(several: list[Batch]) -> None:
    assert decode_batches(b"".join(encode_batch(one) for one in several)) == several


def test_an_encoded_batch_matches_golden_bytes() -> None:
    batch = batch_of([ONE, TWO], producer_id=7, producer_epoch=3, base_sequence=41, base_offset=9)
    records = bytes.fromhex(
        "10 00 00 00 02 6b 02 76 00"  # 8 bytes: attributes, time, offset, k, v, no headers
        "40 00 0a 02 01 18" + b"longer value".hex() + "04 08 6e616d65 02 78 0a 656d707479 01"
    )
    expected = bytes.fromhex(
        "0000000000000009" + f"{49 + len(records):08x}" + "ffffffff 02 00000000"
        "0000 00000001 0000018bcfe56800 0000018bcfe56805 0000000000000007 0003 00000029 00000002"
    )
    assert encode_batch(batch) == repaired(bytearray(expected + records))


@given(batches(CODECS_OF_KAFKA_PYTHON))
def test_kafka_python_reads_an_encoded_batch(batch: Batch) -> None:
    data = encode_batch(batch)
    theirs = KafkaPythonBatch(data)
    assert theirs.validate_crc()
    assert header_of(theirs) == header_of_ours(decode_batches(data)[0])
    assert theirs.leader_epoch == batch.partition_leader_epoch
    got = [(one.offset, one.timestamp, one.key, one.value, one.headers) for one in theirs]
    assert got == plain(batch)


@given(batches())
def test_aiokafka_reads_an_encoded_batch(batch: Batch) -> None:
    data = encode_batch(batch)
    theirs = AiokafkaBatch(data)
    assert theirs.validate_crc()
    assert header_of(theirs) == header_of_ours(decode_batches(data)[0])
    got = [(one.offset, one.timestamp, one.key, one.value, one.headers) for one in theirs]
    assert got == plain(batch)


@given(batches([reference.NONE]))
def test_kio_reads_an_encoded_batch(batch: Batch) -> None:
    # kio returns a time as a datetime, cut to whole seconds.
    times = [1000 * (1_700_000_000 + one.timestamp % 10**6) for one in batch.records]
    near = [replace(one, timestamp=time) for one, time in zip(batch.records, times, strict=True)]
    batch = replace(batch, records=tuple(near), base_timestamp=times[0], max_timestamp=max(times))
    data = encode_batch(batch)
    theirs, size = read_batch(data, 0)
    assert size == len(data)
    assert (theirs.base_offset, theirs.batch_length) == (batch.base_offset, len(data) - 12)
    assert theirs.partition_leader_epoch == batch.partition_leader_epoch
    assert (theirs.crc, theirs.attributes) == struct.unpack_from(">Ih", data, 17)
    assert (theirs.base_timestamp, theirs.max_timestamp) == (batch.base_timestamp, batch.max_timestamp)
    assert (theirs.producer_id, theirs.producer_epoch) == (batch.producer_id, batch.producer_epoch)
    assert (theirs.base_sequence, theirs.last_offset_delta) == (batch.base_sequence, batch.last_offset_delta)
    got = [
        (
            one.offset,
            round(one.timestamp.timestamp() * 1000),
            one.key,
            one.value,
            [((header.key or b"").decode(), header.value) for header in one.headers],
        )
        for one in theirs.records
    ]
    assert got == plain(batch)


@pytest.mark.slow
@pytest.mark.parametrize("builder", [KafkaPythonBuilder, AiokafkaBuilder])
@settings(max_examples=50)
@given(batch=batches([reference.NONE]))
def test_batches_built_by_other_projects_are_decoded(builder: Callable[..., Any], batch: Batch) -> None:
    # aiokafka's builder takes a first time of -1 as unset, and the second record's time replaces it.
    assume(batch.base_timestamp != -1)
    # Uncompressed, because it depends on the version whether their lz4 blocks are linked; codecs are tested
    # above.
    batch = replace(batch, base_offset=0, partition_leader_epoch=0)
    build = builder(
        magic=2,
        compression_type=0,
        is_transactional=int(batch.is_transactional),
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        batch_size=2**30,
    )
    for one in batch.records:
        headers = list(one.headers)
        build.append(one.offset_delta, one.timestamp, one.key, one.value, headers)
    data = bytes(build.build())
    assert [replace(one, partition_leader_epoch=0) for one in decode_batches(data)] == [batch]


@pytest.mark.parametrize("codec", CODECS)
def test_each_codec_carries_two_megabytes(codec: int) -> None:
    value = b"abcdefghijklmnop" * 65536
    batch = batch_of([Record(0, 5, None, value), Record(1, 6, value, None)], codec=codec)
    assert decode_batches(encode_batch(batch)) == [batch]


def test_a_batch_written_by_the_broker_keeps_its_own_max_timestamp() -> None:
    batch = replace(batch_of([ONE]), attributes=reference.LOG_APPEND_TIME, max_timestamp=ONE.timestamp + 999)
    assert decode_batches(encode_batch(batch)) == [batch]


def wrong(**changes: Any) -> bytes:
    return encode_batch(replace(batch_of([ONE, TWO]), **changes))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (wrong(magic=1), "magic is 1"),
        (wrong(attributes=0x40), "unknown bit"),
        (wrong(last_offset_delta=2), "last offset delta is 2 for 2 records"),
        (wrong(records=(ONE, replace(TWO, offset_delta=2))), r"not 0\.\.1"),
        (wrong(records=(), last_offset_delta=-1), "must have a record"),
        (wrong(base_timestamp=ONE.timestamp - 1), "base timestamp"),
        (wrong(max_timestamp=ONE.timestamp), "max timestamp"),
        (encode_batch(batch_of([ONE])) + b"\x00", "12 bytes wanted"),
        (encode_batch(batch_of([ONE]))[:-1], "bytes wanted"),
        (repaired(bytearray(encode_batch(batch_of([ONE])) + b"\x00")), "1 bytes after the last record"),
        (struct.pack(">qi", 0, 48) + bytes(48), "less than its header"),
    ],
)
def test_a_wrong_batch_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(MalformedError, match=says):
        decode_batches(data)


# ``at`` counts bytes after the batch header of a batch of ONE: length 0x10, then the record.
@pytest.mark.parametrize(
    ("at", "new", "says"),
    [
        (0, "12", "bytes wanted"),
        (0, "0e", "bytes wanted"),
        (0, "01", "-1 bytes wanted"),
        (0, "9000", "longer than it need be"),
        (1, "01", "record attributes are 1"),
        (4, "03", "key before byte .* has length -2"),
        (6, "03", "value before byte .* has length -2"),
        (8, "01", "header count is -1"),
        (8, "02", "bytes wanted"),
        (0, "ffffffff1f", "more than 32 bits"),
        (0, "ffffffffff01", "no end within 32 bits"),
    ],
)
def test_a_wrong_byte_in_a_record_is_refused(at: int, new: str, says: str) -> None:
    data = bytearray(encode_batch(batch_of([ONE])))
    at += reference.BATCH_HEADER_SIZE
    data[at : at + 1] = bytes.fromhex(new)
    with pytest.raises(MalformedError, match=says):
        decode_batches(repaired(data))


@pytest.mark.parametrize(
    ("header", "says"),
    [("02 01 00", "name is null"), ("02 02 ff 00", "not UTF-8"), ("00 00", "1 bytes after")],
)
def test_a_wrong_header_is_refused(header: str, says: str) -> None:
    data = bytearray(encode_batch(batch_of([ONE])))
    data[-1:] = bytes.fromhex(header)
    data[reference.BATCH_HEADER_SIZE] = 2 * (len(data) - reference.BATCH_HEADER_SIZE - 1)
    with pytest.raises(MalformedError, match=says):
        decode_batches(repaired(data))


@pytest.mark.parametrize("at", [*range(12, 17), *range(17, 70)])
def test_every_changed_byte_under_the_crc_is_detected(at: int) -> None:
    data = bytearray(encode_batch(batch_of([ONE])))
    data[at] ^= 1
    if at < 16:  # the CRC does not cover the leader epoch, which the broker sets
        assert decode_batches(bytes(data))[0].partition_leader_epoch != -1
    else:
        with pytest.raises(MalformedError, match="crc is" if at > 16 else "magic is 3"):
            decode_batches(bytes(data))


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("change", [lambda packed: packed[:-1], lambda packed: packed + b"\x00"])
def test_compressed_data_with_a_byte_more_or_less_is_refused(
    codec: int, change: Callable[[bytes], bytes]
) -> None:
    packed = reference.compress(codec, b"some records " * 50)
    with pytest.raises(MalformedError):
        reference.decompress(codec, change(packed))


def test_snappy_with_another_header_is_refused() -> None:
    header = reference.XERIAL_HEADER.replace(b"S", b"s")
    framed = reference.compress(reference.SNAPPY, b"some records")
    with pytest.raises(MalformedError, match="xerial header"):
        reference.decompress(reference.SNAPPY, header + framed[len(header) :])


def test_linked_lz4_blocks_are_refused_because_java_cannot_read_them() -> None:
    lz4_frame = pytest.importorskip("lz4.frame")
    linked = lz4_frame.compress(bytes(200_000), block_linked=True)
    with pytest.raises(MalformedError, match="linked"):
        reference.decompress(reference.LZ4, linked)


@pytest.mark.parametrize("codec", [5, 7])
def test_codecs_that_do_not_exist_are_refused(codec: int) -> None:
    with pytest.raises(MalformedError, match=f"no codec {codec}"):
        decode_batches(repaired(bytearray(wrong())[:21] + struct.pack(">h", codec) + wrong()[23:]))
    with pytest.raises(MalformedError, match=f"no codec {codec}"):
        reference.compress(codec, b"")
