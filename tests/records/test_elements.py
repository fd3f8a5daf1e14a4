import struct
from typing import Any

import pytest

from cyproducer.records.elements import plain_columns


class Row(tuple[Any, ...]):
    """As PySpark's."""

    __fields__: Any

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("a function in Python for each row")


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


KV = ["key", "value"]


@pytest.mark.parametrize(
    ("elements", "values", "keys", "each"),
    [
        ([b"a", bytearray(b"bc"), None, "dé"], (b"a", b"bc", None, b"d\xc3\xa9"), None, [1, 2, -1, 3]),
        ([("k", b"v"), (None, "wxy")], (b"v", b"wxy"), (b"k", None), [(1, 1), (-1, 3)]),
        ([row(KV, "k", b""), row(list(KV), b"", None)], (b"", None), (b"k", b""), [(1, 0), (0, -1)]),
        ([row(["value", "key"], "v", "ke")], (b"v",), (b"ke",), [(2, 1)]),
        ([row(Row(KV), "k", "v")], (b"v",), (b"k",), [(1, 1)]),
        ([row(["value"], "v"), row(["value"], None)], (b"v", None), None, [1, -1]),
    ],
    ids=["values", "pairs", "rows", "turned", "row by a row", "row of a value"],
)
def test_alike_elements_are_columns(elements: list[Any], values: Any, keys: Any, each: list[Any]) -> None:
    pairs = [size if isinstance(size, tuple) else (-1, size) for size in each]
    total = sum(max(size, 0) for pair in pairs for size in pair)
    assert plain_columns(elements) == (values, keys, sizes(*pairs), total)


@pytest.mark.parametrize(
    "elements",
    [
        [],
        [b"v", ("k", "v")],
        [("k", "v"), b"v"],
        [("k", "v"), ["k", "v"]],
        [("k", "v"), row(KV, "k", "v")],
        [row(KV, "k", "v"), ("k", "v")],
        [row(KV, "k", "v"), row(KV, "k", "v", kind=Other)],
        [("k", "v"), ("k", "v", "more")],
        [("k",)],
        [()],
        [("k", 1)],
        [(1, "v")],
        [b"v", 1],
        [b"v", Text("v")],
        [b"v", memoryview(b"v")],
        [{"value": "v"}],
        [["k", "v"]],
        [row(None, "k", "v")],
        [row(KV, "k", "v"), row(None, "k", "v")],
        [row(KV, "k", "v"), row(["value", "key"], "v", "k")],
        [row(["key"], "v")],
        [row(5, "k", "v")],
        [row(["other"], "v")],
        [row([*KV, "topic"], "k", "v", "t")],
        [row(KV, "v")],
        [row(["value"], "k", "v")],
    ],
    ids=repr,
)
def test_others_are_not(elements: list[Any]) -> None:
    assert plain_columns(elements) is None


def test_a_text_that_is_not_unicode() -> None:
    with pytest.raises(UnicodeEncodeError):
        plain_columns([("k", "\ud800")])
