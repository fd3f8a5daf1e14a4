"""Fuzz target in Python, over a ``Rig``: hostile arguments of a caller.

Passes hostile objects to ``send()`` and ``send_many()``. Without sanitizers it also runs as a normal test.
For any input:

- a call raises one of its documented errors or an exception of the caller's own code, or accepts everything;
- every accepted record arrives, and each part of it was given by the caller's objects;
- no memory is held for refused records.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from cyproducer import errors
from tests.fuzz.fuzz_rig import Choices
from tools.harness.rig import Rig

TOPICS = {"a": [1, 1], "b": [1]}


class OwnError(Exception):
    """Raised by the caller's own code."""


#: The errors that these calls may raise; IndexError: a list becomes shorter while it is read.
ALLOWED = (TypeError, ValueError, IndexError, OwnError, errors.KafkaError)

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


def play(data: bytes) -> int:
    """Plays one input; returns the number of accepted records. Raises AssertionError on a finding."""
    with Rig(TOPICS, linger_ms=0, batch_size=1000, buffer_memory=1 << 16, max_block_ms=1) as rig:
        accepted = play_objects(Choices(data), rig)
        assert not rig.pending
        assert rig.accumulator.incomplete_batches == 0
        assert rig.pool.used_bytes == 0
    return accepted
