"""How a stream is divided into lines, wherever reading cuts it, and what is kept of it in memory."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cyproducer.cli.interrupts import Interrupts
from cyproducer.cli.line_format import LineError
from cyproducer.cli.line_reader import CHUNK, LineReader, whole


class Chunks:
    """A stream that is read in these pieces."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = [chunk for chunk in chunks if chunk]
        self.taken = 0
        self.read = self.read1

    def read1(self, _size: int) -> bytes:
        self.taken += 1
        return self.chunks.pop(0) if self.chunks else b""


def reader(stream: Any, delimiter: bytes | None = None, refused: list[Any] | None = None) -> LineReader:
    def refuse(number: int, error: LineError) -> None:
        if refused is not None:
            refused.append((number, str(error)))

    return LineReader(
        stream, Interrupts(), delimiter=delimiter, limit=CHUNK, refuse=refuse, idle=lambda: False
    )


def lines_of(chunks: list[bytes], delimiter: bytes | None = None) -> list[bytes]:
    found: list[bytes] = []
    for first, lines in reader(Chunks(chunks), delimiter).blocks():
        assert first == len(found) + 1
        found += lines
    return found


def test_a_carriage_return_is_cut_off_where_the_line_feed_comes_with_the_next_chunk() -> None:
    assert lines_of([b"1\r", b"\n2", b"2\r\n3\r", b"3\r\n", b"4\r"]) == [b"1", b"22", b"3\r3", b"4\r"]


@given(
    st.lists(
        st.lists(st.sampled_from([b"a", b"|", b"+", b"\r", b"\n"]), max_size=4).map(b"".join), max_size=9
    ),
    st.sampled_from([None, b"|", b"|+", b"||", b"|+|", b"\r\n"]),
)
@example([b"a|", b"+b"], b"|+")
def test_it_does_not_matter_where_reading_cuts(chunks: list[bytes], delimiter: bytes | None) -> None:
    text = b"".join(chunks)
    if delimiter is None:
        text = text.replace(b"\r\n", b"\n")
    expected = text.split(delimiter or b"\n")
    if not expected[-1]:
        expected.pop()
    assert lines_of(chunks, delimiter) == expected


def test_lines_are_there_before_the_next_is_read() -> None:
    stream = Chunks([b"1\n2\n3", b"3\n"])
    blocks = reader(stream).blocks()

    assert next(blocks) == (1, [b"1", b"2"])
    assert stream.taken == 1
    assert next(blocks) == (3, [b"33"])


@pytest.mark.parametrize("delimiter", [b"\n", b"<end>"])
@pytest.mark.parametrize("size", [1000, CHUNK // 3, CHUNK])
def test_a_line_beyond_the_limit_is_reported_once_and_not_kept(delimiter: bytes, size: int) -> None:
    text = b"1" + delimiter + b"x" * (5 * CHUNK) + delimiter + b"3" + delimiter + b"y" * (2 * CHUNK)
    refused: list[Any] = []
    lines = reader(Chunks([text[at : at + size] for at in range(0, len(text), size)]), delimiter, refused)

    most = 0
    found = []
    for first, block in lines.blocks():
        most = max(most, lines.unfinished)
        found += [*enumerate(block, first)]

    assert found == [(1, b"1"), (3, b"3")]
    error = f"line too long: more than {CHUNK:,} bytes; skipped up to its end"
    assert refused == [(2, error), (4, error)]
    assert most <= CHUNK + size


def test_what_is_too_long_is_let_go_of_while_it_is_read() -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(20):
            kept.append(lines.unfinished)
            yield b"x" * CHUNK
        yield b""

    kept: list[int] = []
    stream: Any = io.BytesIO()
    lines = reader(stream)
    chunks = endless()
    lines._read_some = lambda size: next(chunks)
    assert list(lines.blocks()) == []
    assert max(kept) <= CHUNK


def test_while_nothing_comes_outcomes_are_looked_at_until_all_are_known() -> None:
    read, write = os.pipe()
    looked: list[int] = []

    def idle() -> bool:
        looked.append(1)
        if len(looked) == 3:
            os.write(write, b"later\n")
            os.close(write)
        return len(looked) < 3

    with os.fdopen(read, "rb") as stream:
        lines = LineReader(
            stream, Interrupts(), delimiter=None, limit=CHUNK, refuse=lambda *_: None, idle=idle
        )
        # The third look says that none is left: the read that follows finds the line.
        assert next(lines.blocks()) == (1, [b"later"])
    assert len(looked) == 3


@pytest.mark.parametrize("size", [0, 9, 10])
def test_a_whole_stream(size: int) -> None:
    assert whole(io.BytesIO(b"x" * size), 10, Interrupts()) == b"x" * size


def test_a_whole_stream_beyond_the_limit_is_not_read_to_its_end() -> None:
    stream = io.BytesIO(b"x" * 100)

    with pytest.raises(LineError, match="more than max_request_size=10 bytes"):
        whole(stream, 10, Interrupts())

    assert stream.tell() == 11


X = b"x" * CHUNK


@pytest.mark.parametrize(
    ("chunks", "delimiter", "found"),
    [
        # Its length is known only when its end comes.
        ([X, b"x\n3\n"], None, [(2, b"3")]),
        ([X, b"\n3\n"], None, [(1, X), (2, b"3")]),
        # The delimiter is cut in two while the line is skipped.
        ([X, X, b"x<e", b"nd>3<end>"], b"<end>", [(2, b"3")]),
        ([X, X, b"x", b"<", b"e", b"n", b"d", b">3<end>"], b"<end>", [(2, b"3")]),
    ],
)
def test_where_a_line_that_is_too_long_ends(
    chunks: list[bytes], delimiter: bytes | None, found: list[tuple[int, bytes]]
) -> None:
    refused: list[Any] = []

    blocks = reader(Chunks(chunks), delimiter, refused).blocks()

    assert [pair for first, block in blocks for pair in enumerate(block, first)] == found
    assert len(refused) == 2 - len(found)


def test_a_limit_below_what_is_read_at_once_does_not_depend_on_where_reading_cuts() -> None:
    refused: list[Any] = []
    lines = LineReader(
        Chunks([b"x" * 100, b"x\n" + b"y" * 101]),  # type: ignore[arg-type]
        Interrupts(),
        delimiter=None,
        limit=10,
        refuse=lambda *about: refused.append(about),
        idle=lambda: False,
    )

    assert [*lines.blocks()] == [(1, [b"x" * 101]), (2, [b"y" * 101])]
    assert refused == []
