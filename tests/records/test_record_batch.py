"""Record batches v2: golden bytes, an independent decoder, and a slow reference over random records."""

import zlib
from typing import Any

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cyproducer.accumulator.metric_snapshot import read_producer
from cyproducer.errors import RecordTooLargeError
from cyproducer.records.compression import compressor_for
from cyproducer.records.record_batch import encode_batch
from tools.harness import reference_records as reference
from tools.harness.reference_records import Record, batch_of, decode_batches
from tools.harness.reference_wire import encode_varint, encode_varint_bytes
from tools.harness.rig import Rig

Headers = tuple[tuple[str, bytes | None], ...]

# Sizes and differences at which a varint (seven bits per byte, after zigzag) becomes longer.
EDGES = [0, 1, 62, 63, 64, 65, 127, 128, 8191, 8192, 8193, 1 << 20, (1 << 20) + 1]
NOW = 1_700_000_000_000


def packed(headers: Headers) -> bytes:
    out = encode_varint(len(headers))
    for name, value in headers:
        out += encode_varint_bytes(name.encode()) + encode_varint_bytes(value)
    return out


def encoded(records: list[Record], **options: Any) -> bytes:
    return encode_batch([(r.timestamp, r.key, r.value, packed(r.headers)) for r in records], **options)


def record(
    index: int = 0,
    value: bytes | None = b"v",
    key: bytes | None = None,
    timestamp: int = NOW,
    headers: Headers = (),
) -> Record:
    return Record(index, timestamp, key, value, headers)


def test_golden_bytes_of_two_records_with_every_feature() -> None:
    golden = bytes.fromhex(
        "0000000000000000"  # base offset: the broker assigns it
        "00000047"  # length after this field: 71
        "ffffffff"  # partition leader epoch: unknown
        "02"  # magic
        "4b4db84e"  # CRC-32C of what follows
        "0000"  # attributes
        "00000001"  # last offset delta
        "0000018bcfe56800"  # base timestamp: 1,700,000,000,000
        "0000018bcfe56846"  # max timestamp: 70 ms later
        "0000000000000007"  # producer id
        "0002"  # producer epoch
        "00000003"  # base sequence
        "00000002"  # records
        # length 11, attributes, timestamp +0, offset +0, key "k", value "v", 1 header: "h" = null
        "16 00 00 00 026b 0276 02 0268 01"
        # length 9, attributes, timestamp +70, offset +1, null key, null value, 1 header: "" = ""
        "12 00 8c01 02 01 01 02 00 00"
    )
    records = [
        record(0, b"v", b"k", headers=(("h", None),)),
        record(1, None, None, NOW + 70, (("", b""),)),
    ]
    assert encoded(records, producer_id=7, producer_epoch=2, base_sequence=3) == golden


def test_an_empty_value_is_not_a_null_one() -> None:
    (batch,) = decode_batches(encoded([record(0, b"", b""), record(1, None, b"k"), record(2, b"", None)]))
    assert [(r.key, r.value) for r in batch.records] == [(b"", b""), (b"k", None), (None, b"")]


def test_headers_keep_their_order_and_names_may_repeat() -> None:
    headers: Headers = (("a", b"1"), ("b", None), ("a", b""), ("", b"2"), ("Ünï", b"\x00\xff"), ("a", b"1"))
    (batch,) = decode_batches(encoded([record(headers=headers)]))
    assert batch.records[0].headers == headers


@pytest.mark.parametrize("size", EDGES)
def test_sizes_where_a_varint_becomes_longer(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    for one in (record(value=data), record(key=data), record(headers=(("h", data),))):
        written = encoded([one])
        assert written == reference.encode_batch(batch_of([one]))
        assert decode_batches(written)[0].records == (one,)


@pytest.mark.parametrize("delta", [d * sign for d in [*EDGES, 2**31, 2**48, NOW] for sign in (1, -1)])
def test_timestamps_where_a_varint_becomes_longer(delta: int) -> None:
    records = [record(timestamp=NOW), record(1, timestamp=max(0, NOW + delta))]
    (batch,) = decode_batches(encoded(records))
    assert batch.records == tuple(records)
    assert (batch.base_timestamp, batch.max_timestamp) == (NOW, max(NOW, NOW + delta))


@pytest.mark.parametrize("timestamp", [0, 2**63 - 1])
def test_the_smallest_and_the_largest_timestamp(timestamp: int) -> None:
    records = [record(timestamp=timestamp), record(1, timestamp=2**63 - 1 - timestamp)]
    (batch,) = decode_batches(encoded(records))
    assert [r.timestamp for r in batch.records] == [timestamp, 2**63 - 1 - timestamp]


def test_offset_deltas_increase_as_their_varints_become_longer() -> None:
    records = [record(i, b"") for i in range(8200)]
    written = encoded(records)
    assert written == reference.encode_batch(batch_of(records))


def test_the_checksum_covers_everything_from_the_attributes_on() -> None:
    written = encoded([record()])
    assert int.from_bytes(written[17:21], "big") == crc32c.crc32c(written[21:])
    assert int.from_bytes(written[17:21], "big") != zlib.crc32(written[21:])


def test_the_given_fields_are_in_the_header() -> None:
    options: dict[str, Any] = {"producer_id": 2**62, "producer_epoch": 32767, "base_sequence": 2**31 - 1}
    (batch,) = decode_batches(encoded([record()], attributes=16, **options))
    assert batch == batch_of([record()], transactional=True, **options)


def test_a_batch_needs_at_least_one_record() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        encode_batch([])


blobs = st.none() | st.binary(max_size=200)
header_lists = st.lists(st.tuples(st.text(max_size=20), blobs), max_size=4).map(tuple)
record_lists = st.lists(
    st.tuples(st.integers(0, 2**63 - 1) | st.integers(NOW, NOW + 10_000), blobs, blobs, header_lists),
    min_size=1,
    max_size=20,
).map(lambda rows: [Record(i, t, k, v, h) for i, (t, k, v, h) in enumerate(rows)])


@given(record_lists, st.integers(-1, 2**63 - 1), st.integers(-1, 2**15 - 1), st.integers(-1, 2**31 - 1))
def test_random_batches_match_the_reference(records: list[Record], pid: int, epoch: int, seq: int) -> None:
    fields: dict[str, Any] = {"producer_id": pid, "producer_epoch": epoch, "base_sequence": seq}
    written = encoded(records, **fields)
    assert written == reference.encode_batch(batch_of(records, **fields))
    assert decode_batches(written)[0].records == tuple(records)


CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
@given(rows=record_lists, batch_size=st.integers(100, 4000))
@settings(max_examples=30)
def test_a_consumer_reads_the_records_that_send_wrote(
    codec: str | None, rows: list[Record], batch_size: int
) -> None:
    rows = [r for r in rows if r.key is not None or r.value is not None]
    compressor = compressor_for(codec) if codec else None
    with Rig({"t": [1]}, batch_size=batch_size, compressor=compressor, linger_ms=1) as rig:
        for r in rows:
            rig.send("t", r.value, r.key, headers=list(r.headers), timestamp_ms=r.timestamp)
        rig.advance_ms(1)
        rig.answer_all()
        got = rig.log.get(("t", 0), [])
        assert [(r.timestamp, r.key, r.value, r.headers) for r in got] == [
            (r.timestamp, r.key, r.value, r.headers) for r in rows
        ]
        assert rig.pool.used_bytes == 0


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_compressed_batch_has_its_codec_and_is_shorter(codec: str) -> None:
    compressor = compressor_for(codec)
    with Rig({"t": [1]}, compressor=compressor) as rig:
        rig.send("t", b"x" * 5000)
        (seen,) = rig.requests()
        batch = seen.batches["t", 0]
        assert batch.codec == compressor.codec_id
        assert batch.batch_length < 1000
        assert batch.records[0].value == b"x" * 5000


def test_a_batch_that_compression_would_lengthen_is_sent_uncompressed() -> None:
    with Rig({"t": [1]}, compressor=compressor_for("gzip")) as rig:
        rig.send("t", b"x")
        (seen,) = rig.requests()
        assert seen.batches["t", 0].codec == 0


@pytest.mark.parametrize("limit", [1000, 70_000, 1 << 20])
def test_values_may_fill_the_largest_request_and_no_more(limit: int) -> None:
    around = len(reference.encode_batch(batch_of([record(value=bytes(limit - 100))]))) - (limit - 100)
    with Rig({"t": [1]}, max_request_size=limit) as rig:
        for size in (0, 1, limit - around):
            rig.send("t", bytes(size))
            rig.answer_all()
        # The largest batch is exactly as large as allowed; one byte more is refused.
        assert read_producer(rig.accumulator).peak("batch_bytes") == limit
        with pytest.raises(RecordTooLargeError) as caught:
            rig.send("t", bytes(limit - around + 1)).get(0)
        assert (caught.value.record_size, caught.value.limit) == (limit + 1, limit)
        assert [len(v or b"") for v in rig.values("t")] == [0, 1, limit - around]
