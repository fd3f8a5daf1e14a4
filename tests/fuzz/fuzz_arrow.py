"""Fuzz target in Python, over a ``Rig``: hostile Arrow data, as arrays and as streams.

Builds tables for ``send_arrow()`` whose structures are valid, and damages some of their fields. Without
sanitizers it also runs as a normal test. For any input:

- a call raises one of its documented errors, or all rows arrive;
- a table that is not damaged is not called malformed;
- each structure that was taken over is released exactly once, and no memory is held for refused records.

Each buffer comes from malloc, exactly as large as the array's length and offset say, so that AddressSanitizer
sees each access beyond it. The interface does not state the size of a buffer. So a damaged number is one that
the other fields contradict, or one beyond any memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
from typing import Any

from cyproducer import errors
from tests.fuzz.fuzz_rig import Choices
from tests.records.arrow_abi import (
    ArrowArray,
    ArrowSchema,
    Made,
    MadeStream,
    pointers,
)
from tools.harness.rig import Rig

#: The errors that send_arrow() may raise; OSError: the stream failed.
ALLOWED = (TypeError, ValueError, OSError, errors.KafkaError)
NUMBERS = {"c": 1, "C": 1, "s": 2, "S": 2, "i": 4, "I": 4, "l": 8, "L": 8, "g": 8}
TIMES = {"l": 8, "L": 8, "tsm:": 8, "tsn:UTC": 8, "tss:": 8, "tsu:": 8, "tdm": 8, "tdD": 4}
BYTES = ["z", "u", "Z", "U", "vz", "vu", "w:3", "w:0", "n"]
LISTS = ["+l", "+L", "+m", "+vl", "+vL", "+w:2", "+w:0", "n"]
ODD_FORMS = [None, "", "+l", "+m", "+s", "+r", "w:", "w:x", "w:-3", "w:99999999999999999999", "b", "g", "+vl"]
ODD_FORMS += ["+w:", "+w:-1", "+us:0,1", "d:19,10", "\xff", "e"]
#: Numbers of rows beyond any memory, also after an addition or multiplication overflows, and negative ones.
ABSURD = [2**60 + 1, 2**61 - 1, 2**61, 2**61 + 1, 2**62 - 1, 2**62, 2**63 - 9, 2**63 - 2, 2**63 - 1]
NEGATIVE = [-1, -2, -(2**31), -(2**62), -(2**63)]
DATA = bytes(range(97, 123)) * 8

_C = ctypes.CDLL(None)
_C.malloc.restype = ctypes.c_void_p
_C.malloc.argtypes = [ctypes.c_size_t]
_C.free.argtypes = [ctypes.c_void_p]

_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _release_of(kind: Any, released: dict[int, int]) -> Any:
    def release(at: int) -> None:
        made = kind.from_address(at)
        released[made.private_data] = released.get(made.private_data, 0) + 1
        made.release = None

    return _RELEASE(release)


class Tables:
    """Makes tables and frees their memory."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        #: Zeros choose valid tables.
        self.wild = choices.byte() % 3 > 0
        self.damaged = False
        self.memory: list[int] = []
        self.schemas: list[Any] = []
        self.arrays: list[Any] = []
        self.released: dict[int, int] = {}
        self.callbacks = [_release_of(kind, self.released) for kind in (ArrowSchema, ArrowArray)]

    def free(self) -> None:
        for at in self.memory:
            _C.free(at)

    def pick(self, things: Any) -> Any:
        return things[self.choices.byte() % len(things)]

    def chance(self, of: int) -> bool:
        """One in ``of``; zeros choose nothing unusual."""
        return self.choices.byte() % of == of - 1

    def bad(self, valid: int, *values: int) -> int:
        """``valid``, or sometimes one of the others."""
        if not self.wild or not self.chance(80):
            return valid
        self.damaged = True
        return int(self.pick(values))

    # Structures

    def buffer(self, content: bytes) -> int:
        at = int(_C.malloc(len(content)))
        self.memory.append(at)
        ctypes.memmove(at, content, len(content))
        return at

    def schema(self, form: str | None, name: str, children: Any = (), dictionary: Any = None) -> Any:
        made = ArrowSchema()
        made.format = None if form is None else form.encode("latin-1")
        made.name = name.encode()
        made.n_children = made.count = len(children)
        made.children = pointers(ArrowSchema, children)
        if dictionary is not None:
            made.dictionary = ctypes.pointer(dictionary)
        made.release = ctypes.cast(self.callbacks[0], ctypes.c_void_p).value
        made.private_data = 1 + len(self.schemas)
        self.schemas.append(made)
        return made

    def array(
        self, length: int, offset: int, nulls: int, *buffers: bytes | None, children: Any = (), of: Any = None
    ) -> Any:
        made = ArrowArray()
        made.length, made.offset, made.null_count = length, offset, nulls
        made.n_buffers, made.n_children = len(buffers), len(children)
        made.places = [None if each is None else self.buffer(each) for each in buffers]
        places = self.buffer(struct.pack(f"{len(buffers)}Q", *[at or 0 for at in made.places]))
        made.buffers = ctypes.cast(places, ctypes.POINTER(ctypes.c_void_p))
        made.children = pointers(ArrowArray, children)
        if of is not None:
            made.dictionary = ctypes.pointer(of)
        made.release = ctypes.cast(self.callbacks[1], ctypes.c_void_p).value
        made.private_data = -1 - len(self.arrays)
        self.arrays.append(made)
        return made

    # Columns

    def rows(self, needed: int) -> tuple[int, int, int]:
        """Length and offset of an array, maybe impossible ones, and how many rows its buffers have."""
        length, offset = needed + self.pick([0, 1, 1, 2]), self.pick([0, 0, 1, 2, 9])
        total = length + offset
        length = self.bad(length, *NEGATIVE, *ABSURD, max(0, needed - 1))
        # Without memory, any offset would be valid.
        offset = self.bad(offset, *NEGATIVE, *ABSURD)
        return length, offset, total

    def validity(self, length: int, total: int) -> tuple[bytes | None, int]:
        """A bitmap and its number of nulls, which may be -1 for unknown, or wrong."""
        kind = self.pick([0, 0, 0, 0, 0, 0, 1, 2])
        bits = self.choices.some((total + 7) // 8)
        nulls = self.bad([0, -1, length][kind], *NEGATIVE[1:], *ABSURD, length + 1)
        return (bits if kind else None), nulls

    def offsets(self, total: int, most: int, size: int) -> tuple[bytes, int]:
        """``total`` + 1 offsets up to ``most``, and the last one."""
        numbers = sorted(self.choices.byte() % (most + 1) for _ in range(total + 1))
        end = numbers[-1]
        if self.wild and self.chance(6):
            self.damaged = True
            place = self.choices.byte() % (total + 1)
            # In the middle any number is one, because a later offset says where the data ends.
            odd = [-1, *([2**31 - 1, end + 1, end + 9, end + 40] if place < total else [])]
            numbers[place] = self.pick([*odd, *(ABSURD if size == 8 and self.chance(2) else [])])
        return struct.pack(f"<{total + 1}{'q' if size == 8 else 'i'}", *numbers), end

    def views(self, total: int) -> list[bytes | None]:
        """The views of rows, buffers of data, and their sizes."""
        sizes = [self.pick([0, 13, 40, 90]) for _ in range(self.choices.byte() % 3)]
        rows = []
        for _ in range(total):
            size = self.bad(self.choices.byte() % 13, -1, -(2**31), 2**31 - 1, 13)
            row = struct.pack("<i12s", size, DATA[:12])
            place = self.choices.byte() % (len(sizes) + 1)
            if place < len(sizes) and sizes[place] > 12:
                size = 13 + self.choices.byte() % (sizes[place] - 12)
                start = self.choices.byte() % (sizes[place] - size + 1)
                size = self.bad(size, sizes[place] - start + 1, 2**31 - 1)
                start = self.bad(start, -1, -(2**31), 2**31 - 1, sizes[place])
                row = struct.pack("<iiii", size, 0, self.bad(place, -1, len(sizes), 2**31 - 1), start)
            rows.append(row)
        told = [self.bad(size, size - 1, *NEGATIVE) for size in sizes]
        return [b"".join(rows), *[DATA[:size] for size in sizes], struct.pack(f"<{len(sizes)}q", *told)]

    def form(self, forms: Any) -> Any:
        if self.wild and self.chance(60):
            self.damaged = True
            return self.pick(ODD_FORMS)
        return self.pick(forms)

    def bytes_of(self, name: str, needed: int, depth: int = 0) -> tuple[Any, Any]:
        length, offset, total = self.rows(needed)
        bits, nulls = self.validity(length, total)
        if depth == 0 and self.choices.byte() % 4 == 3:
            count = self.bad(1 + self.choices.byte() % 8, 0)
            word, words = self.bytes_of("", count, 1)
            form = self.form([each for each in NUMBERS if each != "g"])
            size = NUMBERS.get(form, 8)
            numbers = [self.bad(self.choices.byte() % max(1, count), 100, count, 255) for _ in range(total)]
            indices = b"".join(each.to_bytes(size, "little") for each in numbers)
            schema = self.schema(form, name, dictionary=word)
            return schema, self.array(length, offset, nulls, bits, indices, of=words)
        form = self.form(BYTES)
        buffers: list[bytes | None]
        if form in ("z", "u", "Z", "U"):
            places, end = self.offsets(total, 60, 4 if form in "zu" else 8)
            buffers = [bits, places, DATA[:end]]
        elif form in ("vz", "vu"):
            buffers = [bits, *self.views(total)]
        elif form == "n":
            buffers, nulls = [], length
        else:
            buffers = [bits, DATA[: total * 3] if form == "w:3" else b""]
        return self.schema(form, name), self.array(length, offset, nulls, *buffers)

    def numbers_of(self, name: str, needed: int, sizes: dict[str, int]) -> tuple[Any, Any]:
        length, offset, total = self.rows(needed)
        bits, nulls = self.validity(length, total)
        form = self.form(list(sizes))
        size = sizes.get(form, 8)
        most = 256 if self.chance(8) else 2
        data = b"".join((self.choices.byte() % most).to_bytes(size, "little") for _ in range(total))
        if form == "g":
            data = b"".join(struct.pack("<d", self.choices.byte() % 2) for _ in range(total))
        return self.schema(form, name), self.array(length, offset, nulls, bits, data)

    def headers_of(self, name: str, needed: int) -> tuple[Any, Any]:
        form = self.form(LISTS)
        length, offset, total = self.rows(needed)
        bits, nulls = self.validity(length, total)
        if form == "n":
            return self.schema(form, name), self.array(length, offset, length)
        width = {"+w:2": 2}.get(form, 0)
        room = self.choices.byte() % 8 + total * width
        pair, pairs = self.elements_of(room)
        # The elements that the lists have, as the array of elements says.
        buffers: list[bytes | None] = [bits]
        if form in ("+l", "+L", "+m"):
            buffers += [self.offsets(total, room, 8 if form == "+L" else 4)[0]]
        elif form in ("+vl", "+vL"):
            code, starts, sizes = "q" if form == "+vL" else "i", [], []
            for _ in range(total):
                start = self.choices.byte() % (room + 1)
                starts.append(self.bad(start, -1, room + 1, 2**31 - 1, -(2**31)))
                sizes.append(self.bad(self.choices.byte() % (room - start + 1), -1, room + 1, 2**31 - 1))
            buffers += [struct.pack(f"<{total}{code}", *numbers) for numbers in (starts, sizes)]
        return self.schema(form, name, [pair]), self.array(length, offset, nulls, *buffers, children=[pairs])

    def elements_of(self, room: int) -> tuple[Any, Any]:
        length, offset, total = self.rows(room)
        bits, nulls = self.validity(length, total)
        if self.chance(10):
            return self.schema("n", ""), self.array(length, offset, length)
        names = self.pick([("key", "value"), ("value", "key"), ("a", "b")])
        fields = [self.bytes_of(each, total) for each in names]
        schema = self.schema(self.form(["+s"]), "", [schema for schema, _ in fields])
        return schema, self.array(length, offset, nulls, bits, children=[array for _, array in fields])

    # Tables

    def spoil(self) -> None:
        """Changes one field of one structure, so that others contradict it."""
        self.damaged = True
        if self.choices.byte() % 3 == 0:
            made: Any = self.pick(self.schemas)
            field = self.pick(["n_children", "children", "dictionary", "format", "release", "round"])
            if field == "n_children":
                made.n_children = self.pick([*NEGATIVE, *ABSURD, *range(made.count + 1)])
            elif field == "round":
                made.dictionary = ctypes.pointer(made)
            else:
                setattr(made, field, None)
            return
        made = self.pick(self.arrays)
        fields = [
            "n_buffers",
            "n_children",
            "buffer",
            "buffers",
            "children",
            "dictionary",
            "release",
            "round",
        ]
        field = self.pick(fields)
        if field == "buffer":
            if made.places and made.buffers:
                made.buffers[self.choices.byte() % len(made.places)] = None
        elif field == "n_buffers":
            # With one of several buffers of views fewer, data would be taken for sizes.
            made.n_buffers = self.pick([*NEGATIVE, *ABSURD, *range(min(3, len(made.places) + 1))])
        elif field == "n_children":
            made.n_children = self.pick([*NEGATIVE, *ABSURD, 0, 1])
        elif field == "round":
            made.dictionary = ctypes.pointer(made)
        else:
            setattr(made, field, None)

    def columns(self, needed: int) -> list[tuple[Any, Any]]:
        return [
            self.bytes_of("v", needed),
            self.bytes_of("k", needed),
            self.headers_of("h", needed),
            self.numbers_of("p", needed, NUMBERS),
            self.numbers_of("t", needed, TIMES),
        ]

    def table(self) -> tuple[Any, Any]:
        length, offset = self.choices.byte() % 6, self.pick([0, 0, 1, 2])
        columns = self.columns(length + offset)
        bits = self.pick([None, None, b"\xff"])
        length = self.bad(length, *NEGATIVE, *ABSURD)
        offset = self.bad(offset, *NEGATIVE, *ABSURD)
        nulls = self.bad(0, -2, 1, *ABSURD) if bits is None else -1
        array = self.array(length, offset, nulls, bits, children=[array for _, array in columns])
        return self.schema("+s", "", [schema for schema, _ in columns]), array


def send(tables: Tables, rig: Rig) -> int:
    """Sends one table; returns the number of accepted rows."""
    choices = tables.choices
    schema, array = tables.table()
    for _ in range(choices.byte() % 5 // 2 if tables.wild else 0):
        tables.spoil()
    stream = choices.byte() % 4 == 3
    # In a stream, an array that is released is its end.
    length = array.length if array.release or not stream else 0
    data: Made | MadeStream = Made(schema, array)
    if stream:
        missing = [[], [], [], [], [], ["get_schema"], ["get_next"], ["get_last_error"]][choices.byte() % 8]
        given = [schema, schema, schema, schema, None][choices.byte() % 5]
        data = MadeStream(given, [array], missing, [None, None, "it fails"][choices.byte() % 3])
    named = choices.byte()
    accepted, refused = 0, ""
    try:
        future = rig.path.send_arrow(
            "a", data, value="v", key="k" if named % 2 else None, headers="h" if named & 2 else None,
            partition="p" if named & 4 else 1, timestamp="t" if named & 8 else None,
        )  # fmt: skip
    except ALLOWED as error:
        refused = str(error)
    else:
        rig.answer_all()
        accepted = future.get(0).count
        assert accepted == length, f"{accepted} of {length} rows arrived"
    assert tables.damaged or stream or "malformed" not in refused, refused
    # Only whole tables are released: their children are theirs to release.
    released = tables.released
    assert set(released) <= {schema.private_data, array.private_data}, f"released {released}"
    assert all(count == 1 for count in released.values()), f"released {released}"
    return accepted


def play(data: bytes) -> int:
    """Plays one input; returns the number of accepted records. Raises AssertionError on a finding."""
    choices = Choices(data)
    accepted = 0
    with Rig({"a": [1, 1]}, linger_ms=0, batch_size=1000, buffer_memory=1 << 16, max_block_ms=1) as rig:
        while choices:
            tables = Tables(choices)
            with contextlib.ExitStack() as freed:
                freed.callback(tables.free)
                accepted += send(tables, rig)
            rig.answer_all()
        arrived = sum(len(records) for records in rig.log.values())
        assert arrived == accepted, f"{arrived} records arrived of {accepted}"
        assert not rig.pending
        assert rig.accumulator.incomplete_batches == 0
        assert rig.pool.used_bytes == 0
    return accepted
