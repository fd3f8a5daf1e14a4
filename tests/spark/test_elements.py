"""Tests which elements are alike and plain, and how many are taken at a time."""

import struct
import time
from collections.abc import Iterable, Iterator
from typing import Any, cast

import pytest

from cyproducer.spark.elements import PlainElements


class Row(tuple[Any, ...]):
    """Like PySpark's Row."""

    __fields__: Any

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("calls a Python function for each row")


class Other(Row):
    pass


class Text(str):
    pass


def row(fields: Any, *values: Any, kind: type[Row] = Row) -> Row:
    made = kind(values)
    if fields is not None:
        made.__fields__ = fields
    return made


def sizes(*pairs: tuple[int, int]) -> bytes:
    return b"".join(struct.pack("=2i", *pair) for pair in pairs)


def taken(
    elements: Iterable[Any], most: int = 500, most_bytes: int = 1 << 20, most_ns: int = 10**12
) -> Iterator[tuple[Any, ...]]:
    plain = PlainElements(elements, most, most_bytes, most_ns)
    while (found := plain.take()) != ([], None, b"", []):
        yield found


def runs(elements: Iterable[Any], **limits: int) -> list[Any]:
    """Returns the number of elements of each run, and the elements between the runs."""
    found: list[Any] = []
    for values, _, _, others in taken(elements, **limits):
        found += [len(values)] if values else []
        found += others
    return found


KV = ["key", "value"]


@pytest.mark.parametrize(
    ("elements", "values", "keys", "each"),
    [
        ([b"a", bytearray(b"bc"), "dé"], [b"a", b"bc", b"d\xc3\xa9"], None, [1, 2, 3]),
        ([("k", b"v"), (None, "wxy")], [b"v", b"wxy"], [b"k", None], [(1, 1), (-1, 3)]),
        ([row(KV, "k", b""), row(list(KV), bytearray(), None)], [b"", None], [b"k", b""], [(1, 0), (0, -1)]),
        ([row(["value", "key"], "v", "ke")], [b"v"], [b"ke"], [(2, 1)]),
        ([row(Row(KV), "k", "v")], [b"v"], [b"k"], [(1, 1)]),
        ([row(["value"], "v"), row(["value"], None)], [b"v", None], None, [1, -1]),
    ],
    ids=["values", "pairs", "rows", "value before key", "row made by a row", "row of a value"],
)
def test_alike_elements_become_columns(elements: list[Any], values: Any, keys: Any, each: list[Any]) -> None:
    pairs = [size if isinstance(size, tuple) else (-1, size) for size in each]
    first, *rest = taken(elements)
    for more in rest:
        first = tuple(a if b is None else a + b for a, b in zip(first, more, strict=True))
    assert first == (values, keys, sizes(*pairs), [])


PLAIN = [b"v", ("k", "v"), row(KV, "k", "v"), row(KV, "k", "v", kind=Other), row(["value"], "v")]
OTHERS = [
    None,
    1,
    Text("v"),
    pytest.param(memoryview(b"v"), id="memoryview"),
    "\ud800",
    {"value": "v"},
    ["k", "v"],
    (),
    ("k",),
    ("k", "v", "more"),
    ("k", 1),
    (1, "v"),
    ("k", "\ud800"),
    row(None, "k", "v"),
    row(5, "k", "v"),
    row(["key"], "v"),
    row(["other"], "v"),
    row([*KV, "topic"], "k", "v", "t"),
    row(KV, "v"),
    row(["value"], "k", "v"),
]


@pytest.mark.parametrize("other", OTHERS, ids=ascii)
def test_other_elements_do_not_become_columns(other: Any) -> None:
    assert runs([other]) == [other]
    for first in PLAIN:
        assert runs([first, first, other, first]) == [1, 1, other, 1]


@pytest.mark.parametrize("first", PLAIN, ids=ascii)
def test_a_plain_element_of_another_shape_comes_by_itself(first: Any) -> None:
    for other in [*PLAIN, row(["value", "key"], "v", "k")]:
        if other is not first:
            assert runs([first, first, other, first]) == [1, 1, other, 1]


def test_the_number_taken_doubles_up_to_the_limits() -> None:
    assert runs([b"v"] * 30, most=8) == [1, 2, 4, 8, 8, 7]
    # The byte limit is exceeded by at most one element.
    assert runs([("kk", "vv")] * 30, most=8, most_bytes=15) == [1, 2, 4, 4, 4, 4, 4, 4, 3]
    assert runs([b"v", b"v", b"v" * 100, b"v", b"v"], most_bytes=50) == [1, 2, 2]


@pytest.mark.slow
def test_slow_elements_do_not_wait_for_others() -> None:
    limit = 200_000_000

    def elements() -> Iterator[bytes]:
        for kind, count in (("fast", 20), ("slow", 3), ("fast", 12), ("slow", 1), ("fast", 20)):
            for _ in range(count):
                begun = time.monotonic_ns()
                while kind == "slow" and time.monotonic_ns() - begun <= limit:
                    pass
                yield kind.encode()

    counts = [len(values) for values, *_ in taken(elements(), most_ns=limit)]
    # 15 fast, 5 and a slow one, 2 slow, 7 fast, 5 and a slow one, 20 fast.
    assert counts == [1, 2, 4, 8, 6, 1, 1, 1, 2, 4, 6, 3, 6, 11]


def test_a_reused_bytearray_is_copied() -> None:
    def elements() -> Iterator[tuple[bytearray, bytearray]]:
        key, value = bytearray(1), bytearray(1)
        for i in range(20):
            key[0], value[0] = i, 100 + i
            yield key, value

    found = [(keys, values) for values, keys, _, _ in taken(elements())]
    assert [key for keys, _ in found for key in keys] == [bytes([i]) for i in range(20)]
    assert [value for _, values in found for value in values] == [bytes([100 + i]) for i in range(20)]


def test_elements_before_an_error_are_taken() -> None:
    def elements() -> Iterator[bytes]:
        yield from [b"v"] * 5
        raise OSError("no more")

    plain = PlainElements(elements(), 500, 1 << 20, 10**12)
    assert [len(plain.take()[0]) for _ in range(3)] == [1, 2, 2]
    with pytest.raises(OSError, match="no more"):
        plain.take()
    assert plain.take() == ([], None, b"", [])


def test_constructor_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="most=0: must be at least 1"):
        PlainElements([], 0, 1, 1)
    with pytest.raises(TypeError, match="not iterable"):
        PlainElements(cast("Any", 5), 1, 1, 1)
