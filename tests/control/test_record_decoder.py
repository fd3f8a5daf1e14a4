"""Reading record batches: what other encoders have written, compacted logs, markers, and damage."""

import struct
import tracemalloc
from contextlib import suppress
from dataclasses import replace

import cramjam
import crc32c
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cyproducer.errors import (
    CorruptRecordError,
    KafkaError,
    UnsupportedCodecError,
    UnsupportedForMessageFormatError,
)
from cyproducer.records.compression import compressor_for
from cyproducer.records.record_batch import encode_batch
from cyproducer.wire import record_decoder
from cyproducer.wire.record_decoder import ABORT, COMMIT, OTHER, Batch, batches
from tools.harness import reference_records as reference

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
every_codec = pytest.mark.parametrize("codec", range(5), ids=CODECS)

times = st.integers(0, 2**50)
optional_bytes = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=5), optional_bytes), max_size=3).map(tuple)
records = st.lists(st.tuples(times, optional_bytes, optional_bytes, headers), min_size=1, max_size=6)

RECORDS = [
    reference.Record(i, 1000 - i, b"k" * i or None, b"v" * 200, (("h", None), ("ä", b"1"))[: i % 3])
    for i in range(7)
]


def only(data: bytes) -> Batch:
    (batch,) = batches(data)
    return batch


def whole(batch: reference.Batch, payload: bytes | None = None, count: int | None = None) -> bytes:
    """A batch whose payload or count are not the encoder's, with the right length and checksum."""
    data = bytearray(reference.encode_batch(batch))
    if payload is not None:
        data[61:] = payload
    if count is not None:
        data[57:61] = struct.pack(">i", count)
    return sealed(data)


def sealed(data: bytearray) -> bytes:
    """With its true length and checksum."""
    data[8:12] = struct.pack(">i", len(data) - 12)
    data[17:21] = struct.pack(">I", crc32c.crc32c(bytes(data[21:])))
    return bytes(data)


@every_codec
@given(
    content=records,
    base_offset=st.integers(0, 2**60),
    epoch=st.integers(-1, 2**31 - 1),
    identity=st.tuples(st.integers(-1, 2**62), st.integers(-1, 2**15 - 1), st.integers(-1, 2**31 - 1)),
    transactional=st.booleans(),
)
def test_a_batch_of_another_encoder_is_read(
    codec: int,
    content: list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]],
    base_offset: int,
    epoch: int,
    identity: tuple[int, int, int],
    transactional: bool,
) -> None:
    made = reference.batch_of(
        [reference.Record(i, *fields) for i, fields in enumerate(content)],
        codec=codec,
        transactional=transactional,
        base_offset=base_offset,
        partition_leader_epoch=epoch,
        producer_id=identity[0],
        producer_epoch=identity[1],
        base_sequence=identity[2],
    )
    batch = only(reference.encode_batch(made))
    assert (batch.base_offset, batch.last_offset) == (base_offset, base_offset + len(content) - 1)
    assert (batch.leader_epoch, batch.count, batch.codec) == (epoch, len(content), codec)
    assert (batch.producer_id, batch.epoch, batch.base_sequence) == identity
    assert (batch.base_timestamp, batch.max_timestamp) == (made.base_timestamp, made.max_timestamp)
    assert (batch.transactional, batch.control, batch.log_append_time) == (transactional, False, False)
    assert batch.control_type() is None
    assert [tuple(each) for each in batch.records()] == [
        (base_offset + i, *fields) for i, fields in enumerate(content)
    ]


@every_codec
@given(content=st.lists(st.tuples(times, optional_bytes, optional_bytes), min_size=1, max_size=6))
def test_a_batch_of_this_packages_encoder_is_read(
    codec: int, content: list[tuple[int, bytes | None, bytes | None]]
) -> None:
    data = bytearray(encode_batch([(*each, b"\0") for each in content], producer_id=7, base_sequence=3))
    data[61:] = compressor_for(CODECS[codec]).compress(bytes(data[61:]))
    data[22] |= codec
    batch = only(sealed(data))
    assert (batch.producer_id, batch.base_sequence) == (7, 3)
    assert [tuple(each) for each in batch.records()] == [(i, *each, ()) for i, each in enumerate(content)]


def test_librdkafkas_snappy_has_no_frame() -> None:
    made = reference.batch_of(RECORDS, codec=reference.SNAPPY)
    plain = b"".join(reference.encode_record(each, made.base_timestamp) for each in RECORDS)
    batch = only(whole(made, bytes(cramjam.snappy.compress_raw(plain))))
    assert [each.value for each in batch.records()] == [each.value for each in RECORDS]


@pytest.mark.parametrize(
    "form",
    [{"block_linked": True}, {"content_checksum": True}, {"store_size": True}, {"block_size": 7}],
    ids=str,
)
def test_other_lz4_frames_are_read(form: dict[str, object]) -> None:
    many = [replace(RECORDS[i % 7], offset_delta=i) for i in range(700)]
    made = reference.batch_of(many, codec=reference.LZ4)
    plain = b"".join(reference.encode_record(each, made.base_timestamp) for each in made.records)
    lz4_frame = pytest.importorskip("lz4.frame")
    batch = only(whole(made, lz4_frame.compress(plain, **form)))
    assert len(list(batch.records())) == 700


def test_a_second_block_of_xerial_snappy_is_read() -> None:
    made = reference.batch_of([replace(RECORDS[0], value=bytes(100_000))], codec=reference.SNAPPY)
    assert only(reference.encode_batch(made)).records().__next__().value == bytes(100_000)


def test_the_brokers_time_is_that_of_the_batch() -> None:
    made = replace(
        reference.batch_of(RECORDS), attributes=reference.LOG_APPEND_TIME, base_timestamp=5, max_timestamp=9
    )
    batch = only(reference.encode_batch(made))
    assert batch.log_append_time
    assert {each.timestamp for each in batch.records()} == {9}


def test_compaction_leaves_gaps() -> None:
    made = replace(reference.batch_of(RECORDS, base_offset=20), records=(RECORDS[2], RECORDS[5]))
    batch = only(reference.encode_batch(made))
    assert (batch.base_offset, batch.last_offset, batch.count) == (20, 26, 2)
    assert [(each.offset, each.timestamp) for each in batch.records()] == [(22, 998), (25, 995)]


@every_codec
def test_compaction_leaves_batches_without_records(codec: int) -> None:
    made = replace(
        reference.batch_of(RECORDS, base_offset=20, producer_id=7, base_sequence=3, codec=codec), records=()
    )
    batch = only(whole(made, b""))
    assert (batch.last_offset, batch.count, batch.producer_id, batch.base_sequence) == (26, 0, 7, 3)
    assert list(batch.records()) == []


def marker(key: bytes | None) -> Batch:
    made = reference.batch_of([reference.Record(0, 5, key, b"\0" * 6)], transactional=True, producer_id=7)
    return only(reference.encode_batch(replace(made, attributes=made.attributes | reference.CONTROL)))


@pytest.mark.parametrize(
    ("key", "kind"),
    [("0000 0000", ABORT), ("0000 0001", COMMIT), ("0001 0001", COMMIT), ("0000 0002", OTHER)],
)
def test_markers_end_transactions(key: str, kind: str) -> None:
    batch = marker(bytes.fromhex(key))
    assert (batch.control, batch.transactional, batch.control_type()) == (True, True, kind)


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0"])
def test_a_marker_without_a_type_is_damaged(key: bytes | None) -> None:
    with pytest.raises(CorruptRecordError, match="is too short for a marker"):
        marker(key).control_type()


def test_a_compacted_marker_says_nothing() -> None:
    made = replace(reference.batch_of(RECORDS[:1]), attributes=reference.CONTROL, records=())
    assert only(reference.encode_batch(made)).control_type() == OTHER


def test_batches_follow_each_other_and_a_cut_one_is_left_out() -> None:
    parts = [reference.encode_batch(reference.batch_of(RECORDS, base_offset=at)) for at in (0, 7, 30)]
    data = b"".join(parts)
    assert [each.base_offset for each in batches(data)] == [0, 7, 30]
    for size in range(len(data)):
        complete = sum(size >= len(b"".join(parts[: i + 1])) for i in range(3))
        assert [each.base_offset for each in batches(data[:size])] == [0, 7, 30][:complete]


@pytest.mark.parametrize("at", [13, 14, 15, 16, 17, 20, 21, 22, 40, 60, 61, 100, -1])
def test_each_changed_bit_is_noticed(at: int) -> None:
    data = bytearray(reference.encode_batch(reference.batch_of(RECORDS, partition_leader_epoch=1)))
    data[at] ^= 0x10
    if at in (13, 14, 15):
        # The broker sets the leader's epoch after the checksum, which does not cover it.
        assert only(bytes(data)).leader_epoch != 1
    else:
        with pytest.raises(CorruptRecordError):
            only(bytes(data))


def test_a_wrong_checksum_is_named() -> None:
    data = bytearray(reference.encode_batch(reference.batch_of(RECORDS, base_offset=77)))
    data[-1] ^= 1
    with pytest.raises(
        CorruptRecordError, match=r"batch at offset 77, byte 0 .* has the checksum 0x\w{8}, but"
    ):
        only(bytes(data))


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_named(magic: int) -> None:
    message = struct.pack(">qiIbb", 77, 22, 0, magic, 0) + bytes(16)
    with pytest.raises(
        UnsupportedForMessageFormatError, match=f"message format {magic} of Kafka before 0.11"
    ):
        list(batches(message))


@pytest.mark.parametrize("length", [-1, 0, 4])
def test_a_length_without_room_for_a_header_is_damage(length: int) -> None:
    with pytest.raises(CorruptRecordError, match=f"length of {length}"):
        list(batches(struct.pack(">qi", 77, length) + bytes(60)))


@pytest.mark.parametrize(("magic", "length"), [(3, 60), (2, 48), (2, 5)])
def test_a_short_header_or_a_later_format_is_damage(magic: int, length: int) -> None:
    data = struct.pack(">qiib", 77, length, 0, magic) + bytes(60)
    with pytest.raises(CorruptRecordError, match=f"message format {magic} and a length of {length}"):
        list(batches(data))


@pytest.mark.parametrize(("field", "at"), [("last offset", 23), ("count", 57)])
def test_negative_numbers_are_damage(field: str, at: int) -> None:
    data = bytearray(reference.encode_batch(reference.batch_of(RECORDS)))
    data[at : at + 4] = b"\xff\xff\xff\xfe"
    with pytest.raises(CorruptRecordError, match="the last one at offset"):
        only(sealed(data))


@pytest.mark.parametrize("count", [6, 8])
def test_the_count_must_be_that_of_the_records(count: int) -> None:
    batch = only(whole(replace(reference.batch_of(RECORDS), last_offset_delta=9), count=count))
    with pytest.raises(CorruptRecordError, match=r"offsets 0 to 9: (the record at byte|215 bytes follow)"):
        list(batch.records())


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ("", "its size|out of range"),
        ("00", "its size is 0"),
        ("01", "its size is -1"),
        ("0e 00 00 00 01 01 00", "its size is 7"),
        ("0c 00 00 00 01 01 02", "it has 1 headers"),
        ("0c 00 00 00 01 01 01", "it has -1 headers"),
        ("0c 00 00 00 03 01 00", "a field of -2 bytes"),
        ("0c 00 00 00 7e 01 00", "a field of 63 bytes"),
        ("0e 00 00 00 01 01 00 00", r"it takes -1 bytes"),
        ("10 00 00 00 01 01 02 01 01", "a header has no name"),
        ("12 00 00 00 01 01 02 02 ff 01", "utf-8"),
        ("0e 00 00 80 80 80 80 80 80 80 80 80 80 80 00", "more than 64 bits"),
    ],
)
def test_damaged_records_are_named(payload: str, problem: str) -> None:
    batch = only(whole(reference.batch_of(RECORDS[:1]), bytes.fromhex(payload)))
    with pytest.raises(
        CorruptRecordError, match=f"offsets 0 to 0: the record at byte .* {problem}|{problem}"
    ):
        list(batch.records())


@pytest.mark.parametrize("codec", range(1, 5), ids=CODECS[1:])
@pytest.mark.parametrize("payload", [b"", b"\0" * 30, b"\xff" * 30, b"\x82SNAPPY\0" + bytes(9)])
def test_what_cannot_be_decompressed_is_damage(codec: int, payload: bytes) -> None:
    batch = only(whole(reference.batch_of(RECORDS, codec=codec), payload))
    with pytest.raises(CorruptRecordError, match="the batch of offsets 0 to 6"):
        list(batch.records())


@pytest.mark.parametrize("codec", range(1, 5), ids=CODECS[1:])
def test_what_grows_beyond_the_limit_is_damage(monkeypatch: pytest.MonkeyPatch, codec: int) -> None:
    monkeypatch.setattr(record_decoder, "MAX_DECOMPRESSED", 1000)
    with pytest.raises(CorruptRecordError, match="1000"):
        list(only(reference.encode_batch(reference.batch_of(RECORDS, codec=codec))).records())


def test_raw_snappy_beyond_the_limit_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_decoder, "MAX_DECOMPRESSED", 1000)
    payload = bytes(cramjam.snappy.compress_raw(bytes(1001)))
    with pytest.raises(CorruptRecordError, match="decompresses to 1001 bytes; at most 1000 are allowed"):
        list(only(whole(reference.batch_of(RECORDS, codec=reference.SNAPPY), payload)).records())


def peak_of(batch: Batch) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError, match="at most 268435456 are allowed"):
            list(batch.records())
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_an_lz4_bomb_is_refused_before_memory_is_allocated() -> None:
    one = pytest.importorskip("lz4.frame").compress(bytes(1 << 22), block_size=7, store_size=False)
    # The header; 65 blocks of 4 MiB each; the end.
    bomb = one[:7] + 65 * one[7:-4] + one[-4:]
    batch = only(whole(reference.batch_of(RECORDS, codec=reference.LZ4), bomb))
    assert peak_of(batch) < 4 << 20


@pytest.mark.parametrize(
    ("codec", "payload", "problem"),
    [
        (reference.SNAPPY, bytes.fromhex("ffffff7f") + bytes(8), "states 268435455 bytes, more than it can"),
        (
            reference.SNAPPY,
            reference.XERIAL_HEADER + struct.pack(">i", 12) + bytes.fromhex("ffffff7f") + bytes(8),
            "states 268435455 bytes, more than it can contain",
        ),
        (
            reference.ZSTD,
            bytes.fromhex("28b52ffd a0 ffffff0f 010000"),
            "zstd data of 12 bytes states 268435455 bytes, more than it can contain",
        ),
        (
            reference.ZSTD,
            bytes.fromhex("28b52ffd a0 01000010 010000"),
            "zstd data decompresses to 268435457 bytes; at most 268435456 are allowed",
        ),
    ],
    ids=["snappy", "xerial", "zstd", "zstd beyond the limit"],
)
def test_no_memory_is_allocated_for_a_size_that_data_only_state(
    codec: int, payload: bytes, problem: str
) -> None:
    batch = only(whole(reference.batch_of(RECORDS, codec=codec), payload))
    with pytest.raises(CorruptRecordError, match=problem):
        list(batch.records())


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        ("", "its end mark is missing"),
        ("04224d18 40 70 df", "its end mark is missing"),
        ("04224d18 40 30 df 00000000", "must start with a frame's header, not 04224d184030df"),
        ("04224d18 80 70 df 00000000", "must start with a frame's header"),
        ("04224d18 42 70 df 00000000", "must start with a frame's header"),
        ("05224d18 40 70 df 00000000", "must start with a frame's header"),
        ("04224d18 40 70 df 05000000 00", "lz4 block at byte 7 ends before its stated length"),
        ("04224d18 40 70 df 01000000 1f 00000000", "lz4 block at byte 7 is damaged"),
        ("04224d18 44 70 df 00000000 0000", "its end mark is missing"),
        ("04224d18 40 70 df 00000000 00", "is followed by 1 more bytes"),
    ],
)
def test_a_wrong_lz4_frame_of_another_client_is_damage(frame: str, problem: str) -> None:
    batch = only(whole(reference.batch_of(RECORDS, codec=reference.LZ4), bytes.fromhex(frame)))
    with pytest.raises(CorruptRecordError, match=problem):
        list(batch.records())


@pytest.mark.parametrize(
    ("base_offset", "last_delta", "count"),
    [(-1, 6, 7), (-(2**63), 6, 7), (2**63 - 7, 6, 7), (0, 6, 8), (0, -1, 0), (0, 6, -1), (0, 5, 7)],
)
def test_offsets_and_counts_that_cannot_be_are_damage(base_offset: int, last_delta: int, count: int) -> None:
    data = bytearray(reference.encode_batch(reference.batch_of(RECORDS)))
    data[:8] = struct.pack(">q", base_offset)
    data[23:27] = struct.pack(">i", last_delta)
    data[57:61] = struct.pack(">i", count)
    with pytest.raises(CorruptRecordError, match="the batch at offset"):
        only(sealed(data))


@pytest.mark.parametrize("delta", ["01", "02"])
def test_a_record_outside_its_batch_is_damage(delta: str) -> None:
    payload = bytes.fromhex(f"0c 00 00 {delta} 01 01 00")
    with pytest.raises(CorruptRecordError, match=r"its offset is [-+]1 from the first one"):
        list(only(whole(reference.batch_of(RECORDS[:1]), payload)).records())


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_a_later_codec_is_named(codec: int) -> None:
    made = replace(reference.batch_of(RECORDS), attributes=0)
    data = bytearray(reference.encode_batch(made))
    data[22] = codec
    with pytest.raises(UnsupportedCodecError, match=f"codec {codec}, which is not known"):
        list(only(sealed(data)).records())


@every_codec
@given(changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=4))
@example(changes=[(0, 255)])
def test_changed_payloads_give_records_or_an_error(codec: int, changes: list[tuple[int, int]]) -> None:
    made = reference.batch_of(RECORDS, codec=codec)
    payload = bytearray(reference.encode_batch(made)[61:])
    for at, value in changes:
        payload[at % len(payload)] = value
    batch = only(whole(made, bytes(payload)))
    with suppress(CorruptRecordError):
        assert len(list(batch.records())) == batch.count


@given(data=st.binary(max_size=150))
def test_random_bytes_give_batches_or_an_error(data: bytes) -> None:
    with suppress(KafkaError):
        assert sum(len(each.payload) + 61 for each in batches(data)) <= len(data)
