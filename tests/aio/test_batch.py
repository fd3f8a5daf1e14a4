"""``BatchBuilder``: what it takes, and how large that is on the wire."""

from typing import Any

import pytest
from aiokafka.record.default_records import (  # type: ignore[import-untyped]
    DefaultRecordBatchBuilder,
)
from hypothesis import given
from hypothesis import strategies as st

from cyproducer.aio import AIOKafkaProducer, AppendedRecord, BatchBuilder
from cyproducer.errors import KafkaConfigurationError

DATA = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=70), DATA), max_size=3)
RECORDS = st.lists(
    st.tuples(st.integers(0, 1 << 41), DATA, DATA, HEADERS).filter(lambda row: row[1] or row[2]), max_size=80
)


def theirs(limit: int) -> Any:
    return DefaultRecordBatchBuilder(
        2, 0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=0, batch_size=limit
    )


@given(RECORDS, st.integers(61, 6000))
def test_sizes_are_those_of_aiokafka(rows: Any, limit: int) -> None:
    ours, other = BatchBuilder(limit), theirs(1 << 20)
    for index, (timestamp, key, value, headers) in enumerate(rows):
        before = other.size()
        added = ours.append(timestamp=timestamp, key=key, value=value, headers=headers)
        expected = other.append(index, timestamp, key, value, headers)
        if added is None:
            # It would not have fitted.
            assert index
            assert before + expected.size > limit
            assert ours.closed()
            return
        assert added == AppendedRecord(index, expected.size, timestamp)
        assert ours.size() == other.size() == before + expected.size
        assert not index or ours.size() <= limit
    assert ours.size() == len(other.build())


def test_a_closed_batch_takes_no_more() -> None:
    batch = BatchBuilder(1000)
    assert batch.append(timestamp=None, key=b"k", value=b"v") is not None
    assert (batch.record_count(), batch.closed()) == (1, False)
    batch.close()
    assert batch.append(timestamp=None, key=b"k", value=b"v") is None
    assert (batch.record_count(), batch.closed()) == (1, True)


def test_the_first_record_may_be_larger_than_the_batch() -> None:
    batch = BatchBuilder(100)
    assert batch.append(timestamp=None, key=None, value=bytes(1000)) is not None
    assert batch.append(timestamp=None, key=None, value=b"") is None


def test_the_caller_may_change_its_data_afterwards() -> None:
    value, headers = bytearray(b"paid"), [("h", b"1")]
    batch = BatchBuilder(1000)
    batch.append(timestamp=7, key=memoryview(value), value=value, headers=headers)
    value[:] = b"free"
    headers.clear()
    assert batch._records == [(b"paid", b"paid", 7, [("h", b"1")])]


@pytest.mark.parametrize(
    ("wrong", "kind", "text"),
    [
        ({"value": "text"}, TypeError, "value: must be bytes, another buffer or None, not str"),
        ({"key": 7}, TypeError, "key: must be bytes, another buffer or None, not int"),
        ({"timestamp": 1.5}, TypeError, "timestamp: must be milliseconds as an int, or None, not 1.5"),
        ({"timestamp": True}, TypeError, "timestamp: must be milliseconds"),
        ({"timestamp": -1}, ValueError, "timestamp=-1: must be >= 0"),
        ({"value": None}, ValueError, "a record needs a value or a key"),
        ({"headers": ["ab"]}, TypeError, r"headers: each must be a \(str, bytes or None\) pair, not 'ab'"),
        ({"headers": [("h", "text")]}, TypeError, "the value of a header: must be bytes"),
    ],
)
def test_what_is_wrong_is_refused_at_once(wrong: dict[str, Any], kind: type[Exception], text: str) -> None:
    batch = BatchBuilder(1000)
    with pytest.raises(kind, match=text):
        batch.append(**{"timestamp": None, "key": None, "value": b"v", **wrong})
    assert batch.record_count() == 0


async def test_it_serializes_as_the_producer_does() -> None:
    producer = AIOKafkaProducer(key_serializer=str.encode, value_serializer=lambda value: b"%d" % value)
    batch = producer.create_batch()
    batch.append(timestamp=1, key="k", value=7)
    assert batch._records[0][:2] == (b"k", b"7")


def test_a_serializer_that_needs_the_topic_is_refused() -> None:
    class Serializer:
        def serialize(self, topic: str, headers: Any, data: Any) -> bytes:
            return b""

    producer = AIOKafkaProducer(value_serializer=Serializer())
    with pytest.raises(KafkaConfigurationError, match=r"Serializer.serialize\(\) takes the topic"):
        producer.create_batch()
