"""Converts lines of text to records, for the command line. Pure: reads no file and sends nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

Header = tuple[str, bytes]


class Record(NamedTuple):
    """The record described by one line. ``None`` leaves the choice to the producer."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class LineError(ValueError):
    """A line does not match the chosen format. The message is one line, without the line number."""


Format = Callable[[bytes], Record | None]
"""Takes a line without its line ending. ``None``: the line contains no record."""


def whole_line(line: bytes) -> Record:
    """The line is the value, even if it is empty."""
    return Record(line)


def keyed_line(separator: str) -> Format:
    """The text before the first ``separator`` is the key, the rest is the value.

    Raises (the format returned):
        LineError: The line does not contain the separator.
    """
    mark = separator.encode()

    def parse(line: bytes) -> Record:
        key, found, value = line.partition(mark)
        if not found:
            raise LineError(f"no separator {separator!r} between key and value: {_shown(line)}")
        return Record(value, key)

    return parse


JSON_NAMES = ("key", "value", "headers", "partition", "timestamp_ms")


def json_line(line: bytes) -> Record | None:
    """The line is a JSON object with any of `JSON_NAMES`. A blank line contains no record.

    Key, value and header values: a string is sent as its UTF-8 bytes, any other JSON as compact JSON. A value
    of ``null`` is a tombstone, which needs a key.

    Raises:
        LineError: Not a JSON object, a name or type that is not allowed, or no key and no value.
    """
    if not line.strip():
        return None
    try:
        said = json.loads(line)
    except ValueError as error:
        raise LineError(f"not JSON ({error}): {_shown(line)}") from None
    if not isinstance(said, dict):
        raise LineError(f"not a JSON object: {_shown(line)}")
    for name in said:
        if name not in JSON_NAMES:
            raise LineError(f"unknown name {name!r}: allowed are {', '.join(JSON_NAMES)}")
    if "value" not in said:
        raise LineError('no "value": use null for a tombstone')
    record = Record(
        _bytes(said["value"]),
        _bytes(said.get("key")),
        _headers(said.get("headers")),
        _whole_number("partition", said.get("partition")),
        _whole_number("timestamp_ms", said.get("timestamp_ms")),
    )
    if record.key is None and record.value is None:
        raise LineError("no key and no value: a tombstone needs a key")
    return record


def _bytes(said: Any) -> bytes | None:
    if said is None:
        return None
    text = said if isinstance(said, str) else json.dumps(said, separators=(",", ":"), ensure_ascii=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise LineError(f"unpaired surrogate, which UTF-8 cannot encode: {text!a}") from None


def _headers(said: Any) -> tuple[Header, ...]:
    if said is None:
        return ()
    if not isinstance(said, dict):
        raise LineError(f"headers must be an object of names and values, not {json.dumps(said)}")
    headers = []
    for name, value in said.items():
        encoded = _bytes(value)
        if encoded is None:
            raise LineError(f"header {name!r} is null: it must have a value")
        headers.append((name, encoded))
    return tuple(headers)


def _whole_number(name: str, said: Any) -> int | None:
    if said is None:
        return None
    # bool is a subclass of int: JSON's true would pass as 1.
    if isinstance(said, bool) or not isinstance(said, int) or said < 0:
        raise LineError(f"{name} must be a whole number >= 0, not {json.dumps(said)}")
    return said


def _shown(line: bytes) -> str:
    """The line as quoted in error messages: at most 60 characters."""
    text = line.decode(errors="replace")
    return repr(text if len(text) <= 60 else text[:57] + "...")
