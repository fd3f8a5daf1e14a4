"""Arguments of ``send()`` and ``send_many()`` that lie, change during the call, or are numpy objects."""

import contextlib
import ctypes
import enum
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy
import pytest

from cyproducer.errors import InvalidTopicError
from tools.harness.reference_records import Record
from tools.harness.rig import Rig

TYPE, VALUE = TypeError, ValueError


def sent_all(rig: Rig) -> list[Record]:
    """Acknowledges all records in flight, and returns them as the broker reads them."""
    seen = rig.requests()
    records = [record for each in seen for batch in each.batches.values() for record in batch.records]
    for each in seen:
        rig.answer(each)
    return records


def sent(rig: Rig) -> Record:
    """Acknowledges the only record in flight, and returns it."""
    (record,) = sent_all(rig)
    return record


class Odd(list[Any]):
    """A list that creates its items when they are requested, and keeps no reference to them."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        super().__init__([None, None])
        self.make = make

    def __getitem__(self, place: Any) -> Any:
        return self.make(place)


def test_items_that_a_header_creates_are_kept_alive_until_they_are_copied() -> None:
    filler: list[str | bytes] = []

    class Reusing(bytearray):
        """A value that reuses freed memory when its buffer is requested."""

        def __buffer__(self, flags: int) -> memoryview:
            filler.extend(str(i).rjust(40, "x") for i in range(50))
            return memoryview(b"value")

    def copied(items: list[Any], place: int) -> Any:
        """New objects, which are freed when nothing refers to them any more."""
        item = items[place]
        return item if isinstance(item, bytearray) else item[:1] + item[1:]

    with Rig({"t": [1]}) as rig:
        for number in range(200):
            name = f"{number:040}"
            value = Reusing() if sys.version_info >= (3, 12) else b"value"
            rig.send("t", b"v", headers=[Odd(partial(copied, [name, value]))])
            rig.send("t", b"v", headers=[Odd(partial(copied, ["name", name.encode() + b"!"]))])
            assert [record.headers for record in sent_all(rig)] == [
                ((name, b"value"),),
                (("name", name.encode() + b"!"),),
            ]
            filler.clear()


def test_a_header_that_shrinks_while_it_is_read_is_refused() -> None:
    class Clearing(str):
        def __del__(self) -> None:
            header.clear()

    header: list[Any] = ["second", b"2"]
    # A name is freed when the next one replaces it, and removes the items of the next header then.
    with Rig({"t": [1]}) as rig:
        with contextlib.suppress(TypeError, IndexError):
            rig.send("t", b"v", headers=[Odd(lambda i: b"1" if i else Clearing("first")), header])
            assert sent(rig).headers == (("first", b"1"), ("second", b"2"))
        assert rig.pool.used_bytes == 0


@pytest.mark.parametrize("place", ["headers", "partition", "timestamp_ms"])
def test_no_buffer_is_borrowed_while_the_callers_code_runs(place: str) -> None:
    """Code of an argument, such as a header, may resize the value: the resized value is sent."""
    value = bytearray(b"value")

    def grow() -> None:
        value.extend(b" and more")

    class Headers(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            grow()
            return iter([("h", b"1")])

    class Number(int):
        def __index__(self) -> int:
            grow()
            return 7

        __int__ = __index__

        def __le__(self, other: Any) -> bool:
            grow()
            return True

        __ge__ = __lt__ = __gt__ = __le__

    given: Any = Headers([0]) if place == "headers" else Number(0)
    with Rig({"t": [1]}) as rig:
        rig.send("t", value, **{place: given})
        assert sent(rig).value == (b"value and more" if place == "headers" else b"value")


def test_a_header_name_that_utf8_cannot_encode_is_refused() -> None:
    with Rig({"t": [1]}) as rig, pytest.raises(ValueError, match=r"headers: the name '\\ud800' can't be"):
        rig.send("t", b"v", headers=[("\ud800", b"1")])


class Liar(int):
    """An int whose comparisons claim that it is in any range."""

    def __le__(self, other: Any) -> bool:
        return True

    __ge__ = __lt__ = __gt__ = __le__

    def __int__(self) -> int:
        raise AssertionError("must not be called")

    __index__ = __repr__ = __str__ = __int__  # type: ignore[assignment]


class Pretender:
    """An object that claims to be an int or a str."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self.kind

    def __index__(self) -> int:
        return -5

    def __le__(self, other: Any) -> bool:
        return True

    __ge__ = __le__


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"partition": Liar(-5)}, VALUE, "partition=-5: must be >= 0"),
        ({"partition": Liar(2**40)}, VALUE, "partition=1099511627776: must be"),
        ({"partition": 1 << 20_000}, VALUE, "partition=an int of 20001 bits: must be"),
        ({"partition": Pretender(int)}, TYPE, "partition: must be an int or None, not Pretender"),
        ({"timestamp_ms": Liar(-5)}, VALUE, "timestamp_ms=-5: must be"),
        ({"timestamp_ms": Liar(2**70)}, VALUE, "timestamp_ms=1180591620717411303424: must be"),
        ({"timestamp_ms": Pretender(int)}, TYPE, "timestamp_ms: must be an int or None, not Pretender"),
        ({"topic": Pretender(str)}, TYPE, "topic: must be a str, not Pretender"),
        ({"headers": [(Pretender(str), b"1")]}, TYPE, "headers: each must be a"),
    ],
)
def test_methods_that_an_argument_overrides_are_ignored(
    arguments: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with Rig({"t": [1]}) as rig:
        with pytest.raises(kind, match=text):
            rig.path.send(**{"topic": "t", "value": b"v"} | arguments)
        many = {name: value for name, value in arguments.items() if name != "headers"}
        if many:
            with pytest.raises(kind, match=text):
                rig.path.send_many(**{"topic": "t", "values": [b"v"]} | many)
        rig.path.send("t", b"v", partition=Liar(0), timestamp_ms=Liar(7))
        assert sent(rig).timestamp == 7


def test_the_text_of_a_topic_counts_not_the_methods_of_its_class() -> None:
    class Topic(str, enum.Enum):  # noqa: UP042 - programs use this, and its str() differs
        ORDERS = "t"

        def __str__(self) -> str:
            return "Topic.ORDERS"

    class Other(str):
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return hash("t")

    with Rig({"t": [1]}) as rig:
        for _ in range(2):
            assert rig.send(Topic.ORDERS, b"v").topic == "t"
            assert rig.send(Other("other"), b"v").topic == "other"
    # Also if the topic is still unknown.
    with Rig() as rig:
        topic = rig.send(Topic.ORDERS, b"v").topic
        assert (topic, type(topic)) == ("t", str)
        with pytest.raises(InvalidTopicError, match=r"'\.\.'"):
            rig.send(Other(".."), b"v")


class Fields(ctypes.Structure):
    _fields_ = [("a", ctypes.c_uint8), ("b", ctypes.c_uint8)]


@pytest.mark.parametrize("place", ["value", "key", "header", "values", "keys"])
def test_a_numpy_scalar_is_refused_and_raw_memory_is_not(place: str) -> None:
    def send(data: Any) -> None:
        if place == "header":
            rig.send("t", b"v", headers=[("h", data)])
        elif place in ("value", "key"):
            rig.send("t", **{place: data})
        else:
            rig.path.send_many("t", **{"values": [b"v", b"v"]} | {place: [b"v", data]})

    with Rig({"t": [1]}) as rig:
        for scalar in (
            numpy.str_("ab"),
            numpy.int64(5),
            numpy.uint8(5),
            numpy.float16(5),
            numpy.bool_(True),
            numpy.complex128(1),
            numpy.datetime64("2020-01-01"),
            numpy.timedelta64(1, "s"),
            numpy.array(5),
        ):
            name = type(scalar).__name__
            with pytest.raises(TypeError, match=rf"{place}.*: must be bytes.*scalar {name}.*\.item\(\)"):
                send(scalar)
        with pytest.raises(TypeError, match=f"{place}_serializer" if place in ("value", "key") else place):
            send(numpy.int64(5))
        assert rig.requests() == []
        for raw in (
            numpy.bytes_(b"ab"),
            numpy.void(b"ab"),
            numpy.array((97, 98), dtype=[("a", "u1"), ("b", "u1")])[()],
            numpy.frombuffer(b"ab", dtype="u1"),
            Fields(97, 98),
            ctypes.c_uint16(int.from_bytes(b"ab", sys.byteorder)),
            memoryview(numpy.frombuffer(b"ab", dtype="u2")[0]),
        ):
            send(raw)
            record = sent_all(rig)[-1]
            found = {
                "header": record.headers and record.headers[0][1],
                "key": record.key,
                "keys": record.key,
                "value": record.value,
                "values": record.value,
            }
            assert found[place] == b"ab"
