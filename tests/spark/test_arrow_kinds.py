"""Tests the Arrow types that Spark's schema does not distinguish: large types, views and dictionaries, also
inside headers. The batches have bad rows, because only such batches are divided."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from cyproducer.producer import KafkaProducer
from cyproducer.spark.columns import Columns
from cyproducer.spark.dead_letters import DeadLetters
from cyproducer.spark.sending import TaskWriter, write_all
from cyproducer.testing import EmbeddedBroker
from tests.integration.consume import read_all

COLUMNS = Columns(value="value", key="key", topic="topic", headers="headers")
COUNT = 60
KEYS = [None if n % 7 == 0 else f"k{n % 5}" for n in range(COUNT)]
VALUES = [b"%d" % n if n % 5 else b"" for n in range(COUNT)]
HEADERS: list[list[tuple[str, bytes | None]] | None] = [
    None,
    [],
    [("a", b"1"), ("a", b"1"), ("ü", None)],
    [("b", b"")],
]
TOO_LARGE = 33
NO_TOPIC = 34
NAMELESS = 35


def dictionary(array: pa.Array) -> pa.Array:
    return array.dictionary_encode()


def small_dictionary(array: pa.Array) -> pa.Array:
    """Returns a dictionary array with 8-bit indices and unused words, one of them null."""
    encoded = array.dictionary_encode()
    words = pa.concat_arrays([pa.array(["nobody's", None]).cast(array.type), encoded.dictionary])
    indices = pa.array([None if i is None else i + 2 for i in encoded.indices.to_pylist()], pa.int8())
    return pa.DictionaryArray.from_arrays(indices, words)


def null_words(array: pa.Array) -> pa.Array:
    """Returns a dictionary array whose nulls are indices of a null word."""
    words = pa.concat_arrays([pa.nulls(1, array.type), array.dictionary_encode().dictionary])
    indices = [0 if i is None else i + 1 for i in array.dictionary_encode().indices.to_pylist()]
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int16()), words)


def large(array: pa.Array) -> pa.Array:
    return array.cast(pa.large_string() if pa.types.is_string(array.type) else pa.large_binary())


def view(array: pa.Array) -> pa.Array:
    return array.cast(pa.string_view() if pa.types.is_string(array.type) else pa.binary_view())


def large_dictionary(array: pa.Array) -> pa.Array:
    return large(array).dictionary_encode()


Kind = Callable[[pa.Array], pa.Array]


def column_of_headers(given: list[list[tuple[str | None, bytes | None]] | None], kind: Kind) -> pa.Array:
    of = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    plain = pa.array(given, of)
    names, contents = plain.values.flatten()
    structs = pa.StructArray.from_arrays([kind(names), kind(contents)], names=["key", "value"])
    return pa.ListArray.from_arrays(plain.offsets, structs, mask=plain.is_null())


@pytest.mark.parametrize("kind", [dictionary, small_dictionary, null_words, large, large_dictionary, view])
def test_columns_of_each_arrow_type_arrive(broker: EmbeddedBroker, kind: Kind) -> None:
    topics = [f"{kind.__name__}-{n}" for n in range(2)]
    dead = f"{kind.__name__}-dead"
    for name in (*topics, dead):
        broker.create_topic(name, 1)
    keys = list(KEYS)
    values = list(VALUES)
    headers: list[list[tuple[str | None, bytes | None]] | None] = [
        [*each] if (each := HEADERS[n % 4]) is not None else None for n in range(COUNT)
    ]
    goal: list[str | None] = [topics[n % 2] for n in range(COUNT)]
    values[TOO_LARGE] = b"x" * 6000
    goal[NO_TOPIC] = None
    headers[NAMELESS] = [(None, b"1"), ("kept", b"2")]
    batch = pa.record_batch(
        {
            "topic": kind(pa.array(goal, pa.string())),
            "key": kind(pa.array(keys, pa.string())),
            "value": kind(pa.array(values, pa.binary())),
            "headers": column_of_headers(headers, kind),
        }
    )
    config: dict[str, Any] = {"allow_auto_create_topics": False, "max_request_size": 5000}
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, **config) as producer:
        # Slices, so that array offsets are not 0.
        writer = TaskWriter(producer, COLUMNS, None, DeadLetters(producer, dead))
        summary = write_all(writer, [batch.slice(1, 20), batch.slice(21)])
    bad = (TOO_LARGE, NO_TOPIC, NAMELESS)
    good = [n for n in range(1, COUNT) if n not in bad]
    assert (summary.rows, summary.dead_letters) == (len(good), len(bad))
    assert summary.bytes == sum(len(KEYS[n] or "") + len(VALUES[n]) for n in good)
    for number, name in enumerate(topics):
        found = read_all(broker.bootstrap_servers, name, 1)
        assert [(r.key, r.value, r.headers) for r in found] == [
            (None if (key := KEYS[n]) is None else key.encode(), VALUES[n], HEADERS[n % 4] or [])
            for n in good
            if n % 2 == number
        ]
    letters = {
        dict(r.headers)["cyproducer.error.class"]: r for r in read_all(broker.bootstrap_servers, dead, 3)
    }
    assert len(letters) == 2
    assert set(letters[b"RecordTooLargeError"].value or b"") == {ord("x")}
