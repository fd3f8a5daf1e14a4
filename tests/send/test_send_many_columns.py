"""``send_many()`` with headers, partitions and timestamps for single rows, and with serializers."""

import random
from typing import Any

import pytest

from cyproducer.errors import RecordTooLargeError, UnknownTopicOrPartitionError
from cyproducer.send.bulk_path import BulkPath
from cyproducer.send.extensions import Extensions
from cyproducer.serializers import ConfluentSerializer
from tools.harness.rig import Rig

PARTITIONS = 3


def arrived(rig: Rig) -> dict[int, list[tuple[Any, ...]]]:
    """Partition -> what was acknowledged, without deltas."""
    rig.accumulator.flush(0)
    rig.answer_all()
    return {
        place[1]: [(record.timestamp, record.key, record.value, record.headers) for record in records]
        for place, records in rig.log.items()
    }


def rig(**options: Any) -> Rig:
    made = Rig({"t": [1] * PARTITIONS}, **options)
    made.connect(1)
    return made


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 300, 9000])
def test_rows_arrive_as_if_they_were_sent_one_by_one(rows: int) -> None:
    """Few rows take another path than many; 9,000 are read in pieces."""
    dice = random.Random(rows)
    pairs: list[Any] = [None, [], [("a", b"1")], (("b", None), ["ü", b""]), [("c", bytearray(b"22"))] * 3]
    values = [b"%d" % row for row in range(rows)]
    headers = [dice.choice(pairs) for _ in range(rows)]
    partitions = [dice.randrange(PARTITIONS) for _ in range(rows)]
    times = [dice.randrange(1, 10**12) for _ in range(rows)]
    with rig() as many, rig() as single:
        future = many.path.send_many("t", values, headers=headers, partition=partitions, timestamp_ms=times)
        for row in range(rows):
            single.send(
                "t",
                values[row],
                headers=headers[row],
                partition=partitions[row],
                timestamp_ms=times[row],
            )
        assert arrived(many) == arrived(single)
        assert future.get(0) is not None


def test_one_list_of_headers_is_for_all_rows() -> None:
    with rig() as many:
        many.path.send_many(
            "t", [b"1", b"2"], headers=[("h", b"x"), ("g", None)], partition=1, timestamp_ms=5
        )
        many.path.send_many("t", [b"3"], headers=[], partition=1, timestamp_ms=5)
        pairs = (("h", b"x"), ("g", None))
        assert arrived(many) == {
            1: [(5, None, b"1", pairs), (5, None, b"2", pairs), (5, None, b"3", ())],
        }


def test_none_lets_the_partitioner_choose_and_is_now() -> None:
    with rig() as many, rig() as single:
        keys = [b"k%d" % row for row in range(20)]
        values = [b"v"] * 20
        chosen = [None if row % 2 else 2 for row in range(20)]
        many.path.send_many("t", values, keys, partition=chosen, timestamp_ms=[None] * 10 + [7] * 10)
        for row in range(20):
            single.send("t", b"v", keys[row], partition=chosen[row], timestamp_ms=7 if row >= 10 else None)
        assert arrived(many) == arrived(single)


def test_any_iterable_of_whole_numbers_will_do() -> None:
    class Index:
        def __index__(self) -> int:
            return 2

    chosen: Any = iter([Index(), 2])
    with rig() as many:
        many.path.send_many("t", [b"1", b"2"], partition=chosen, timestamp_ms=(n for n in (3, 4)))
        assert arrived(many) == {2: [(3, None, b"1", ()), (4, None, b"2", ())]}


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        (
            {"headers": [None]},
            ValueError,
            "headers: has 1 items, values 2: must have the same length",
        ),
        (
            {"headers": 5},
            TypeError,
            "headers: must be a list of .* for all records, .*, not int",
        ),
        ({"headers": {"a": b"1"}}, TypeError, r"headers: must be a list .*not dict: give its items\(\)"),
        ({"headers": [[], [("a", 5)]]}, TypeError, r"headers\[1\]: the value of a header: must be bytes"),
        ({"headers": [[], ["ab"]]}, TypeError, r"headers\[1\]: each must be a .* pair, not 'ab'"),
        ({"headers": [[], [("\ud800", b"")]]}, ValueError, r"headers\[1\]: the name .* UTF-8"),
        ({"headers": [[], 7]}, TypeError, r"headers\[1\]: must be a list .* not int"),
        ({"partition": [0]}, ValueError, "partition: has 1 items, values 2"),
        ({"partition": [0, "1"]}, TypeError, r"partition\[1\]: must be an int or None, not str"),
        ({"partition": "01"}, TypeError, "partition: must be an int, None, or a sequence of them, not str"),
        ({"partition": 1.0}, TypeError, "partition: must be an int or None, not float"),
        ({"partition": [0, -1]}, ValueError, r"partition\[1\]: -1 is not a partition of the topic"),
        ({"partition": [0, 3]}, UnknownTopicOrPartitionError, r"partition\[1\]: 3 is not a partition"),
        ({"partition": [0, 2**70]}, ValueError, r"partition\[1\]=1180591620717411303424: must be >= 0"),
        ({"timestamp_ms": [1, 2, 3]}, ValueError, "timestamp_ms: has 3 items, values 2"),
        ({"timestamp_ms": [1, -2]}, ValueError, r"timestamp_ms\[1\]: -2 is not a valid timestamp"),
        ({"timestamp_ms": [1, 1.5]}, TypeError, r"timestamp_ms\[1\]: must be an int or None, not float"),
        ({"headers": [[], [("h", bytes(1 << 20))]]}, RecordTooLargeError, r"values\[1\]: the record"),
    ],
)
def test_a_wrong_item_is_named_and_no_row_is_sent(
    given: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with rig() as many:
        with pytest.raises(kind, match=text):
            many.path.send_many("t", [b"1", b"2"], **given)
        assert many.accumulator.counters()["records_appended"] == 0


# Serializers


def extended(rig: Rig, **given: Any) -> BulkPath[Any, Any]:
    path = BulkPath[Any, Any]()
    path._open_path(rig.accumulator, 1 << 20, 1000, Extensions(**given))
    return path


def test_serializers_make_the_rows() -> None:
    def with_context(data: Any, context: Any) -> bytes:
        context.headers.append((str(context.field), context.topic.encode()))
        return repr(data).encode()

    serializers = {
        "key_serializer": str.encode,
        "value_serializer": ConfluentSerializer(with_context, "value"),
    }
    given = [("h", b"1")]
    with rig() as many, rig() as single:
        extended(many, **serializers).send_many(
            "t", [{"a": 1}, {"b": 2}], ["k", "l"], headers=given, partition=0, timestamp_ms=1
        )
        path = extended(single, **serializers)
        for value, key in (({"a": 1}, "k"), ({"b": 2}, "l")):
            path.send("t", value, key, given, 0, 1)
        assert arrived(many) == arrived(single)
        assert arrived(many)[0][1] == (1, b"l", b"{'b': 2}", (("h", b"1"), ("value", b"t")))
    assert given == [("h", b"1")]


def test_the_error_of_a_serializer_names_the_row_and_none_is_sent() -> None:
    with rig() as many:
        path = extended(many, value_serializer=str.encode)
        with pytest.raises(TypeError) as raised:
            path.send_many("t", ["1", 2, "3"])
        assert raised.value.__notes__ == [
            "raised by value_serializer, for a value of type int for topic 't'",
            "values[1]: no row was sent",
        ]
        with pytest.raises(ValueError, match=r"values\[1\]: is null, and so is the key"):
            path.send_many("t", ["1", None])
        assert many.accumulator.counters()["records_appended"] == 0


def test_a_row_of_a_serializer_that_returns_no_bytes_is_named() -> None:
    with rig() as many:
        path = extended(many, value_serializer=lambda data: data)
        with pytest.raises(TypeError, match=r"values\[1\]: must be bytes, .* not int"):
            path.send_many("t", [b"1", 2])
