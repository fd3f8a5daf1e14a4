"""Fuzz target in Python, over a ``Rig``: hostile arguments of a caller.

Passes hostile objects to ``send()`` and ``send_many()``, and hostile Arrow data to ``send_arrow()``. Without
sanitizers it also runs as a normal test. For any input:

- a call raises one of its documented errors or an exception of the caller's own code, or accepts everything;
- every accepted record arrives, and each part of it was given by the caller's objects;
- no memory is held for refused records.

Arrow's arrays have buffers as large as their numbers say, or numbers beyond any memory, because the real size
of a buffer can't be checked.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any

from cyproducer import errors
from tests.fuzz.fuzz_rig import Choices
from tests.records.arrow_abi import Made, MadeStream, made_array, made_schema
from tools.harness.rig import Rig

TOPICS = {"a": [1, 1], "b": [1]}


class OwnError(Exception):
    """Raised by the caller's own code."""


#: The errors that these calls may raise; IndexError: a list becomes shorter while it is read.
ALLOWED = (TypeError, ValueError, IndexError, OwnError, errors.KafkaError)

# Objects

#: All bytes that `Caller.content` gives, cut and extended as `Caller.act` may; not those put into freed
#: memory.
SAID = re.compile(rb"[c0-9.+\0]*")


class Caller:
    """Makes objects whose code does what the input says whenever it runs."""

    def __init__(self, choices: Choices, rig: Rig) -> None:
        self.choices, self.rig = choices, rig
        self.names: set[str] = set()
        self.buffers: list[bytearray] = []
        self.lists: list[list[Any]] = []
        self.made = 0
        self.depth = 0

    def act(self) -> None:
        """What the caller's code may do in the middle of a call."""
        self.made += 1
        choice = self.choices.byte() % 12
        if choice == 1:
            raise OwnError
        if choice == 2:
            # Reuses the memory that was freed last.
            self.lists.append([b"FREED" * 12 + b"%d" % i for i in range(8)])
        elif choice == 3:
            for each in self.lists:
                each.clear()
        elif choice == 4:
            for each in self.lists:
                each.extend([("late", b"late")] * 3)
        elif choice == 5:
            for buffer in self.buffers:
                with contextlib.suppress(BufferError):
                    buffer.extend(b"+" * 100)
        elif choice == 6:
            for buffer in self.buffers:
                with contextlib.suppress(BufferError):
                    buffer.clear()
        elif choice == 7 and self.depth < 2:
            self.depth += 1
            with contextlib.suppress(*ALLOWED):
                self.rig.send("b", b"nested")
            self.depth -= 1

    def content(self) -> bytes:
        """A new bytes object, to which nothing else refers."""
        self.made += 1
        return b"c%d" % self.made + b"." * [0, 1, 30, 500][self.choices.byte() % 4]

    def name(self) -> str:
        self.made += 1
        name = f"n{self.made}" + ["", "e", "\u00fc\u6f22"][self.choices.byte() % 3] * 9
        self.names.add("".join(list(name)))
        return name

    def data(self) -> Any:
        """A key, a value, or a header's value."""
        kind = self.choices.byte() % 12
        if kind < 3:
            return self.content()
        if kind == 3:
            return None
        if kind == 4:
            self.buffers.append(bytearray(self.content()))
            return self.buffers[-1]
        if kind == 5:
            return memoryview(self.content())[: self.choices.byte() or None : 1 + self.choices.byte() % 2]
        if kind == 6:
            return type("Bytes", (bytes,), {"__del__": lambda _: self.quietly()})(self.content())
        if kind == 7 and sys.version_info >= (3, 12):

            def buffer(_: object, flags: int) -> memoryview:
                self.act()
                return memoryview(self.content())

            return type("Buffer", (), {"__buffer__": buffer})()
        if kind == 8:
            return ctypes.create_string_buffer(self.content())
        return ["text", 5, object(), [], b""][self.choices.byte() % 5]

    def quietly(self) -> None:
        """The code of a finalizer: an exception in it would only be printed."""
        with contextlib.suppress(OwnError):
            self.act()

    def text(self) -> Any:
        kind = self.choices.byte() % 5
        if kind < 3:
            return self.name()
        if kind == 3:
            return type("Text", (str,), {"__del__": lambda _: self.quietly()})(self.name())
        return [b"bytes", None, "\ud800", 5][self.choices.byte() % 4]

    def header(self) -> Any:
        kind = self.choices.byte() % 8
        if kind < 2:
            return (self.text(), self.data())
        if kind == 2:
            self.lists.append([self.text(), self.data()])
            return self.lists[-1]
        if kind < 6:

            def item(_: object, place: Any) -> Any:
                self.act()
                return self.data() if place else self.text()

            def length(_: object) -> int:
                self.act()
                return 2

            base = list if kind < 5 else tuple
            return type("Header", (base,), {"__getitem__": item, "__len__": length})([None, None])
        return [("n",), "ab", 5, (1, 2, 3)][self.choices.byte() % 4]

    def sequence(self, one: Callable[[], Any]) -> Any:
        """A sequence of headers, keys or values."""
        items = [one() for _ in range(self.choices.byte() % 6)]
        kind = self.choices.byte() % 5
        if kind == 0:
            return tuple(items)
        if kind < 3:
            self.lists.append(items)
            return items

        def walk(_: object) -> Iterator[Any]:
            for each in items:
                self.act()
                yield each

        def length(_: object) -> int:
            self.act()
            return self.choices.byte()

        return type("Sequence", (list,), {"__iter__": walk, "__len__": length})(items)

    def number(self) -> Any:
        kind = self.choices.byte() % 8
        if kind < 3:
            return None
        number = [0, 1, 2, -1, -5, 2**31, 2**63, 2**40, 10**30][self.choices.byte() % 9]
        if kind < 6:
            return number

        def yes(*_: object) -> bool:
            self.act()
            return True

        names = ("__le__", "__lt__", "__ge__", "__gt__", "__eq__", "__bool__")
        if kind == 6:
            return type("Number", (int,), {**dict.fromkeys(names, yes), "__hash__": int.__hash__})(number)
        return type("NoNumber", (), {"__index__": lambda _: number, "__class__": int, "__le__": yes})()

    def topic(self) -> Any:
        kind = self.choices.byte() % 6
        if kind < 3:
            return "a"

        def lie(*_: object) -> Any:
            self.act()
            return True

        if kind == 3:
            return type("Topic", (str,), {"__eq__": lie, "__hash__": lambda _: hash("b")})("a")
        if kind == 4:
            return type("Topic", (str,), {"__str__": lambda _: "elsewhere"})("a")
        return [b"a", None, "no topic", type("NoText", (), {"__class__": str})()][self.choices.byte() % 4]


def play_objects(choices: Choices, rig: Rig) -> int:
    caller = Caller(choices, rig)
    accepted = 0
    while choices:
        rows = 1
        with contextlib.suppress(*ALLOWED):
            if choices.byte() % 3:
                rig.path.send(
                    caller.topic(), caller.data(), caller.data(),
                    caller.sequence(caller.header), caller.number(), caller.number(),
                )  # fmt: skip
            else:
                keys = caller.sequence(caller.data) if choices.byte() % 2 else None
                values = caller.sequence(caller.data)
                future = rig.path.send_many(
                    caller.topic(), values, keys, partition=caller.number(), timestamp_ms=caller.number()
                )
                rig.answer_all()
                rows = future.get(0).count
            accepted += rows
        rig.answer_all()

    def was_said(data: bytes | None) -> bool:
        return data in (None, b"nested", b"late") or SAID.fullmatch(data or b"") is not None

    for (topic, _), records in rig.log.items():
        assert topic in ("a", "b"), f"a record went to {topic!r}"
        for record in records:
            assert was_said(record.key), f"key {record.key!r}"
            assert was_said(record.value), f"value {record.value!r}"
            for name, value in record.headers:
                assert name in caller.names or name == "late", f"header {name!r}"
                assert was_said(value), f"header's value {value!r}"
    return accepted


# Arrow

FORMS = ["z", "u", "Z", "U", "vz", "vu", "w:3", "w:0", "n"]
NUMBERS = {"c": 1, "S": 2, "i": 4, "l": 8, "L": 8, "tsm:": 8, "tsn:UTC": 8, "tdm": 8}
ODD_FORMS = [None, "", "+l", "+m", "+s", "w:", "w:x", "w:-3", "w:99999999999999999999", "b", "g", "+vl"]
#: Numbers of rows beyond any memory, also after an addition or multiplication overflows, and negative ones.
ABSURD = [2**60 + 1, 2**61 - 1, 2**61, 2**61 + 1, 2**62 - 1, 2**62, 2**63 - 9, 2**63 - 2, 2**63 - 1]
ABSURD += [-1, -2, -(2**31), -(2**62), -(2**63)]
ARRAY_FIELDS = [
    "null_count",
    "n_buffers",
    "n_children",
    "buffer",
    "buffers",
    "children",
    "dictionary",
    "round",
]
#: Extra bytes of each buffer, so that each can be used in place of any other.
ROOM = 160
DATA = bytes(range(97, 123)) * 8


class Table:
    """Makes a table with valid structures, and then damages some of their fields."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.schemas: list[Any] = []
        self.arrays: list[Any] = []

    def pick(self, things: Any) -> Any:
        return things[self.choices.byte() % len(things)]

    def array(self, length: int, *buffers: bytes | None, **more: Any) -> Any:
        made = made_array(length, *[None if each is None else each + bytes(ROOM) for each in buffers], **more)
        self.arrays.append(made)
        return made

    def schema(self, *arguments: Any, **more: Any) -> Any:
        made = made_schema(*arguments, **more)
        made.true_children = made.n_children
        self.schemas.append(made)
        return made

    def validity(self, length: int) -> tuple[bytes | None, int]:
        """A bitmap and the number of nulls, which may be -1 (unknown) or wrong."""
        bits = self.choices.some(8)
        nulls = self.pick([0, 0, -1, 1, length])
        return (bits if nulls or bits[0] % 2 else None), nulls

    def offsets(self, length: int, most: int, size: int) -> bytes:
        code = {4: "<i", 8: "<q"}[size]
        numbers = sorted(self.choices.byte() % (most + 1) for _ in range(length + 1))
        if self.choices.byte() % 6 == 0:
            odd = [-1, 0, -(2**31), *([] if size == 4 else ABSURD)]
            numbers[self.choices.byte() % (length + 1)] = self.pick(odd)
        return b"".join(struct.pack(code, number) for number in numbers)

    def views(self, length: int) -> bytes:
        rows = []
        for _ in range(length):
            size = self.choices.byte() % 40
            if size <= 12:
                rows.append(struct.pack("<i12s", size, DATA[:size]))
            else:
                odd = [0, 0, 0, 1, 2, 9, -1, -(2**31), 2**31 - 1, len(DATA)]
                rows.append(struct.pack("<iiii", size, 0, self.pick([0, 0, 1, -1, 2]), self.pick(odd)))
        if rows and self.choices.byte() % 8 == 0:
            rows[0] = struct.pack("<iiii", self.pick([-1, -(2**31), 2**31 - 1]), 0, 0, 0)
        return b"".join(rows)

    def bytes_of(self, name: str, length: int, depth: int = 0) -> tuple[Any, Any]:
        """A column of bytes."""
        bits, nulls = self.validity(length)
        if depth == 0 and self.choices.byte() % 4 == 0:
            words_schema, words = self.bytes_of("", 5, 1)
            form = self.pick(["c", "C", "i", "l", "L"])
            size = {"c": 1, "C": 1, "i": 4, "l": 8, "L": 8}[form]
            places = b"".join(
                (self.choices.byte() % 5).to_bytes(size, "little") for _ in range(length)
            ) + self.choices.some(8)
            return (
                self.schema(form, name, dictionary=words_schema),
                self.array(length, bits, places, dictionary=words, null_count=nulls),
            )
        form = self.pick(FORMS if self.choices.byte() % 16 else ODD_FORMS)
        schema = self.schema(form, name)
        if form in ("z", "u"):
            buffers = [bits, self.offsets(length, len(DATA), 4), DATA]
        elif form in ("Z", "U"):
            buffers = [bits, self.offsets(length, len(DATA), 8), DATA]
        elif form in ("vz", "vu"):
            buffers = [bits, self.views(length), DATA, struct.pack("<q", len(DATA))]
        elif form == "n":
            buffers = []
        else:
            buffers = [bits, DATA]
        return schema, self.array(length, *buffers, null_count=nulls if buffers else 0)

    def numbers_of(self, name: str, length: int) -> tuple[Any, Any]:
        form = self.pick(list(NUMBERS))
        odd = self.choices.byte() % 4 == 0
        data = b"".join(
            (self.choices.byte() % (256 if odd else 2)).to_bytes(NUMBERS[form], "little")
            for _ in range(length)
        )
        bits, nulls = self.validity(length)
        return self.schema(form, name), self.array(length, bits, data, null_count=nulls)

    def headers_of(self, name: str, length: int) -> tuple[Any, Any]:
        room = 6
        keys = [self.bytes_of("key", room), self.bytes_of("value", room)]
        bits, nulls = self.validity(room)
        pairs = self.array(room, bits, children=[array for _, array in keys], null_count=nulls)
        pair = self.schema("+s", "", [schema for schema, _ in keys])
        form = self.pick(["+l", "+L", "+m", "+l"])
        offsets = self.offsets(length, room, 8 if form == "+L" else 4)
        bits, nulls = self.validity(length)
        return (
            self.schema(form, name, [pair]),
            self.array(length, bits, offsets, children=[pairs], null_count=nulls),
        )

    def spoil(self) -> None:
        """Changes one field of one structure."""
        choice = self.choices.byte()
        if choice % 3:
            array = self.pick(self.arrays)
            field = self.pick(["length", "offset", *ARRAY_FIELDS, "length", "offset"])
            if field == "buffer":
                if array.n_buffers > 0 and array.buffers:
                    array.buffers[self.choices.byte() % len(array.held)] = None
            elif field in ("buffers", "children", "dictionary"):
                setattr(array, field, None)
            elif field == "round":
                array.dictionary = ctypes.pointer(array)
            elif field == "n_buffers":
                array.n_buffers = self.pick([*ABSURD, *range(len(array.held) + 1)])
            else:
                smaller = [0, 1, 2] if field == "length" else [0, 1]
                # Few or absurd: if no memory is read, any number of rows would be valid.
                setattr(array, field, self.pick([*ABSURD, *smaller]))
        else:
            schema = self.pick(self.schemas)
            field = self.pick(["n_children", "children", "dictionary", "format", "name", "round"])
            if field == "n_children":
                schema.n_children = self.pick([*ABSURD, *range(schema.true_children + 1)])
            elif field == "round":
                schema.dictionary = ctypes.pointer(schema)
            else:
                setattr(schema, field, None)

    def whole(self) -> tuple[Any, Any]:
        length = self.choices.byte() % 6
        columns = [self.bytes_of("v", length + 1), self.bytes_of("k", length + 1)]
        columns += [self.headers_of("h", length + 1)]
        columns += [self.numbers_of("p", length + 1), self.numbers_of("t", length + 1)]
        bits, _ = self.validity(length)
        array = self.array(length, bits, children=[array for _, array in columns])
        array.offset = self.choices.byte() % 2
        array.null_count = self.pick([0, 0, 0, -1, 1])
        return self.schema("+s", "", [schema for schema, _ in columns]), array


def play_arrow(choices: Choices, rig: Rig) -> int:
    accepted = 0
    while choices:
        table = Table(choices)
        schema, array = table.whole()
        for _ in range(choices.byte() % 4):
            table.spoil()
        data: Made | MadeStream = Made(schema, array)
        if choices.byte() % 4 == 0:
            missing = [[], [], ["get_schema"], ["get_next"], ["get_last_error"]][choices.byte() % 5]
            data = MadeStream(schema, [array], missing, [None, None, "it fails"][choices.byte() % 3])
        named = choices.byte()
        with contextlib.suppress(OSError, *ALLOWED):
            future = rig.path.send_arrow(
                "a", data, value="v", key="k" if named % 2 else None, headers="h" if named & 2 else None,
                partition="p" if named & 4 else 1, timestamp="t" if named & 8 else None,
            )  # fmt: skip
            rig.answer_all()
            count = future.get(0).count
            # The rows of a stream or of one array; none may be invented.
            assert count == array.length, f"{count} of {array.length} rows arrived"
            accepted += count
        rig.answer_all()
    arrived = sum(len(records) for records in rig.log.values())
    assert arrived == accepted, f"{arrived} records arrived of {accepted}"
    return accepted


def play(data: bytes) -> int:
    """Plays one input; returns the number of accepted records. Raises AssertionError on a finding."""
    choices = Choices(data)
    way = play_arrow if choices.byte() % 2 else play_objects
    with Rig(TOPICS, linger_ms=0, batch_size=1000, buffer_memory=1 << 16, max_block_ms=1) as rig:
        accepted = way(choices, rig)
        assert not rig.pending
        assert rig.accumulator.incomplete_batches == 0
        assert rig.pool.used_bytes == 0
    return accepted
