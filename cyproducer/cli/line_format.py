"""Converts lines of text to records, for the command line. Pure: reads no file and sends nothing."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

Header = tuple[str, bytes | None]


class Record(NamedTuple):
    """The record described by one line. ``None`` leaves the choice to the producer."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class Columns(NamedTuple):
    """Records with only a value and optionally a key. ``keys`` is ``None`` if no record has a key."""

    values: list[bytes | None]
    keys: list[bytes | None] | None


class LineError(ValueError):
    """A line does not match the chosen format. The message is one line, without the line number.

    Args:
        cause: Text that is the same for all lines with this error.
        detail: Text that is specific to this line.
    """

    def __init__(self, cause: str, detail: str = "") -> None:
        super().__init__(f"{cause}: {detail}" if detail else cause)
        self.cause = cause


class Format(Protocol):
    """Converts lines, given without their delimiters."""

    def parse(self, line: bytes) -> Record | None:
        """Converts one line. Returns ``None`` if it contains no record. Raises LineError."""
        ...

    def columns(self, lines: list[bytes]) -> Columns | None:
        """Converts all lines at once, for speed. Returns ``None`` if at least one of them needs `parse`."""
        ...


class HeaderSeparators(NamedTuple):
    """The separators in the headers at the beginning of a line. The defaults are those of
    kafka-console-producer."""

    delimiter: bytes = b"\t"
    """Between the headers and the key (or the value, if lines have no keys)."""
    separator: bytes = b","
    """Between two headers."""
    key_separator: bytes = b":"
    """Between the name and the value of a header."""


class TextFormat:
    """Lines of ``[HEADERS delimiter][KEY separator]VALUE``.

    Args:
        key_separator: The text before its first occurrence is the key. ``None``: lines have no keys.
        headers: The separators of headers. ``None``: lines have no headers.
        nulls: Keys, values and header values that mean null.
    """

    def __init__(
        self,
        key_separator: bytes | None = None,
        headers: HeaderSeparators | None = None,
        nulls: frozenset[bytes] = frozenset(),
    ) -> None:
        self._key_separator = key_separator
        self._headers = headers
        self._nulls = nulls

    def parse(self, line: bytes) -> Record:
        """Convert one line.

        Raises:
            LineError: A separator is missing, or a header name is not UTF-8.
        """
        rest, key = line, None
        headers: tuple[Header, ...] = ()
        if self._headers is not None:
            before, found, rest = rest.partition(self._headers.delimiter)
            if not found:
                raise LineError(
                    f"no delimiter {shown(self._headers.delimiter)} after the headers", shown(line)
                )
            headers = self._headers_of(before, self._headers)
        if self._key_separator is not None:
            key, found, rest = rest.partition(self._key_separator)
            if not found:
                raise LineError(
                    f"no separator {shown(self._key_separator)} between key and value", shown(line)
                )
        nulls = self._nulls
        return Record(None if rest in nulls else rest, None if key in nulls else key, headers)

    def columns(self, lines: list[bytes]) -> Columns | None:
        """Convert lines without headers; ``None`` if one has no separator."""
        nulls = self._nulls
        mark = self._key_separator
        if self._headers is not None:
            return None
        values: list[bytes | None]
        keys: list[bytes | None] | None = None
        if mark is None:
            values = [*lines]
        else:
            parts = [line.partition(mark) for line in lines]
            values = [value for _, found, value in parts if found]
            if len(values) < len(lines):
                return None
            keys = [key for key, _, _ in parts]
        if nulls:
            values = [None if value in nulls else value for value in values]
            keys = keys and [None if key in nulls else key for key in keys]
        return Columns(values, keys)

    def _headers_of(self, text: bytes, separators: HeaderSeparators) -> tuple[Header, ...]:
        if not text or text in self._nulls:
            return ()
        headers: list[Header] = []
        for pair in text.split(separators.separator):
            name, found, value = pair.partition(separators.key_separator)
            if not found:
                raise LineError(
                    f"no separator {shown(separators.key_separator)} between a header's name and value",
                    shown(pair),
                )
            try:
                headers.append((name.decode(), None if value in self._nulls else value))
            except UnicodeDecodeError:
                raise LineError("a header's name is not UTF-8", shown(name)) from None
        return tuple(headers)


JSON_NAMES = (
    "key",
    "value",
    "headers",
    "partition",
    "timestamp_ms",
    "key_base64",
    "value_base64",
    "headers_base64",
)


_JSON_NAMES = frozenset(JSON_NAMES)
_DECODER = json.JSONDecoder()
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
_BEGINS_AS_UTF8 = (b'{"', b"{ ")


class JsonFormat:
    """Lines of JSON objects with any of `JSON_NAMES`; ``docs/command-line.md`` describes them."""

    def parse(self, line: bytes) -> Record | None:
        """Convert one line. A blank line contains no record.

        Raises:
            LineError: The line is not a JSON object, a name or type is not allowed, a value is not base64, or
                there is neither a key nor a value.
        """
        if not line or line.isspace():
            return None
        try:
            said = _loaded(line)
        except ValueError as error:
            raise LineError("not JSON", f"{error}: {shown(line)}") from None
        except RecursionError:
            raise LineError("not JSON that can be read", f"nested too deeply: {shown(line)}") from None
        if not isinstance(said, dict):
            raise LineError("not a JSON object", shown(line))
        if not _JSON_NAMES.issuperset(said):
            unknown = next(name for name in said if name not in _JSON_NAMES)
            raise LineError("unknown name", f"{unknown!r}: allowed are {', '.join(JSON_NAMES)}")
        if "value" not in said and "value_base64" not in said:
            raise LineError('no "value"', "use null for a tombstone")
        value = _field(said, "value", "value_base64")
        key = _field(said, "key", "key_base64")
        headers: tuple[Header, ...] = ()
        if "headers" in said or "headers_base64" in said:
            headers = (*_headers("headers", said, _bytes), *_headers("headers_base64", said, _decoded))
        partition = _whole_number("partition", said["partition"]) if "partition" in said else None
        timestamp_ms = _whole_number("timestamp_ms", said["timestamp_ms"]) if "timestamp_ms" in said else None
        if key is None and value is None:
            raise LineError("no key and no value", "a tombstone needs a key")
        return Record(value, key, headers, partition, timestamp_ms)

    def columns(self, lines: list[bytes]) -> Columns | None:
        """Returns ``None``: every line needs `parse`."""
        return None


def _loaded(line: bytes) -> Any:
    """``json.loads()``, but without detecting the encoding of a line that begins like UTF-8."""
    if line[:2] in _BEGINS_AS_UTF8:
        text = line.decode("utf-8", "surrogatepass")
        try:
            said, end = _DECODER.raw_decode(text)
        except ValueError:
            end = -1
        if end == len(text):
            return said
    # Also raises the error for a line that is not JSON.
    return json.loads(line)


def _field(said: dict[str, Any], name: str, encoded: str) -> bytes | None:
    if encoded not in said:
        return _bytes(name, said.get(name))
    if name in said:
        raise LineError(f"both {name} and {encoded} are given", "leave one of them out")
    return _decoded(encoded, said[encoded])


def _bytes(name: str, said: Any) -> bytes | None:
    if said is None:
        return None
    text = said if isinstance(said, str) else _ENCODER.encode(said)
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise LineError(
            f"{_kind(name)} has an unpaired surrogate, which UTF-8 cannot encode", f"{name}: {text!a:.60}"
        ) from None


def _decoded(name: str, said: Any) -> bytes | None:
    if said is None:
        return None
    if not isinstance(said, str):
        raise LineError(f"{_kind(name)} must be base64, as a string, or null", f"{name}: {_json(said)}")
    try:
        return base64.b64decode(said, validate=True)
    except (binascii.Error, ValueError) as error:
        raise LineError(f"{_kind(name)} is not base64", f"{name}: {error}: {_json(said)}") from None


def _headers(name: str, said: dict[str, Any], encode: Any) -> list[Header]:
    given = said.get(name)
    if given is None:
        return []
    pairs: Iterable[Any]
    if isinstance(given, dict):
        pairs = given.items()
    elif isinstance(given, list) and all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in given
    ):
        pairs = given
    else:
        raise LineError(
            f"{name} must be an object of names and values, or a list of [name, value]", _json(given)
        )
    headers = []
    for index, (header, value) in enumerate(pairs):
        if not header.isascii() and any("\ud800" <= character <= "\udfff" for character in header):
            raise LineError(
                f"{name} has a name with an unpaired surrogate, which UTF-8 cannot encode", f"{header!a:.60}"
            )
        try:
            headers.append((header, encode(name, value)))
        except LineError:
            # Encode again, for an error that contains the location.
            encode(f"{name}[{index}] ({header!r})", value)
            raise
    return headers


def _whole_number(name: str, said: Any) -> int | None:
    if said is None:
        return None
    # bool is a subclass of int: JSON's true would pass as 1.
    if isinstance(said, bool) or not isinstance(said, int) or said < 0:
        raise LineError(f"{name} must be a whole number >= 0", f"not {_json(said)}")
    return said


def _kind(name: str) -> str:
    """The field's name without the part that is specific to one line."""
    return name.partition("[")[0]


def _json(said: Any) -> str:
    text = json.dumps(said)
    return text if len(text) <= 60 else text[:57] + "..."


def shown(line: bytes) -> str:
    """The line as quoted in error messages: at most 60 characters."""
    text = line[:240].decode(errors="replace")
    return repr(text if len(text) <= 60 else text[:57] + "...")


_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.|$)", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"0": b"\0", b"\\": b"\\"}


def unescaped(text: str) -> bytes:
    r"""Returns a separator from the command line, with ``\n \r \t \0 \\`` and ``\xNN`` replaced.

    Raises:
        ValueError: The text is empty, or another character follows a backslash.
    """

    def one(found: re.Match[bytes]) -> bytes:
        name = found[1]
        if name[:1] == b"x" and len(name) == 3:
            return bytes.fromhex(name[1:].decode())
        if name not in _ESCAPED:
            raise ValueError(f"{text!r}: after a backslash must come n, r, t, 0, xNN or a backslash")
        return _ESCAPED[name]

    separator = _ESCAPE.sub(one, text.encode(errors="surrogateescape"))
    if not separator:
        raise ValueError("must not be empty")
    return separator
