"""Interprets declared messages: encodes and decodes requests and responses, for clients and for brokers.

Owns the syntax of a declaration, and its translation into calls of the C ``Reader`` and ``Writer``, once per
message and version, when it is first used. Does not own any message (``messages``) or the choice of a version
(``versions``). Everything here is callable from any thread.

A declaration has one field per line, and the fields of a structure are indented below it::

    throttle_time_ms int32 1+
    topics [MetadataResponseTopic]
        name string nullable 12+
        topic_id uuid 10+

A line has a name, a type, and the versions that have the field, unless all versions have it. ``[T]`` is an
array. A type with a capital letter is a structure; its fields are omitted if the message has already declared
it. The following parts are optional: ``nullable VERSIONS``, ``tag NUMBER VERSIONS`` for a
tagged field (KIP-482), ``= DEFAULT`` (if omitted: 0, False, "", b"", [], or the structure of defaults),
``ignorable``, and ``most NUMBER`` for the maximum number of elements of an array. ``text`` is a string that
is meant for people or names a host: it is decoded with ``printable()``. ``records`` are bytes.

In a request, a value for a field that the version does not have is an error, unless the field is
``ignorable``: without the value, the broker would do something other than what was requested. In a response,
such a value is omitted.
"""

import operator
import re
from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from cyproducer.wire.primitives import MOST_ELEMENTS, Reader, Writer

Frame = bytes | bytearray | memoryview
Read = Callable[[Reader], Any]
Write = Callable[[Writer, Any], Any]
NEVER = 1 << 15
"""A version that no message has."""
NO_UUID = bytes(16)

_SIZES = {"boolean": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uuid": 16}
_ZEROS = {"boolean": False, "string": "", "text": "", "bytes": b"", "records": b"", "uuid": NO_UUID}
_METHODS = {"bytes": "byte_string", "records": "byte_string"}


class Versions(NamedTuple):
    """The versions from ``first`` to ``last``, both inclusive; written ``3``, ``3-5`` or ``3+``."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    @classmethod
    def parse(cls, text: str) -> "Versions":
        """Parses versions in one of these forms. Raises ``ValueError`` for any other text."""
        found = re.fullmatch(r"(\d+)(\+|-(\d+))?", text)
        if found is None:
            raise ValueError(f"{text!r} are no versions: write them as 3, 3-5 or 3+")
        first, open_end, last = found.groups()
        return cls(int(first), int(last) if last else NEVER if open_end else int(first))


ALL = Versions(0, NEVER)
NONE = Versions(NEVER, 0)


class Field:
    """One field of a structure; see the module's docstring."""

    __slots__ = (
        "array", "default", "ignorable", "kind", "most", "name", "nullable", "optional", "tag", "tagged",
        "versions",
    )  # fmt: skip

    def __init__(self, line: str, declared: dict[str, "Struct"]) -> None:
        words = iter(line.split())
        self.name = next(words)
        kind = next(words)
        self.array = kind.startswith("[")
        kind = kind.strip("[]")
        #: A structure, or the name of a primitive type.
        self.kind: Struct | str = declared.setdefault(kind, Struct(kind)) if kind[0].isupper() else kind
        self.versions, self.nullable, self.tagged, self.tag = ALL, NONE, NONE, -1
        self.default: Any = self._zero()
        self.ignorable, self.optional, self.most = False, False, MOST_ELEMENTS
        for word in words:
            match word:
                case "nullable":
                    self.nullable = Versions.parse(next(words))
                case "tag":
                    self.tag, self.tagged = int(next(words)), Versions.parse(next(words))
                case "=":
                    self.default, self.optional = _literal(next(words)), True
                case "ignorable":
                    self.ignorable = True
                case "most":
                    self.most = int(next(words))
                case _:
                    self.versions, self.optional = Versions.parse(word), True

    def _zero(self) -> Any:
        if self.array:
            return []
        return None if isinstance(self.kind, Struct) else _ZEROS.get(self.kind, 0)

    def zero(self) -> Any:
        """Returns the value that means that the field is absent."""
        if self.default is None and isinstance(self.kind, Struct) and self.nullable is NONE:
            return self.kind.type(*(each.zero() for each in self.kind.fields))
        return [] if self.default == [] else self.default

    def has(self, version: int) -> bool:
        """Whether messages of this version have the field, and it is not tagged."""
        return version in self.versions and version not in self.tagged


def _literal(text: str) -> int | bool | None:
    return int(text) if text.lstrip("-").isdigit() else {"null": None, "true": True}[text]


class Struct:
    """A structure: fields, and the named tuple of their values."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fields: list[Field] = []
        self._type: Any = None

    @property
    def type(self) -> Any:
        """The named tuple of the values. The first optional field and all fields after it have defaults."""
        if self._type is None:
            names = [field.name for field in self.fields]
            first = next((at for at, field in enumerate(self.fields) if field.optional), len(names))
            defaults = [field.zero() for field in self.fields[first:]]
            self._type = namedtuple(self.name, names, defaults=defaults)  # type: ignore[misc]
        return self._type

    @type.setter
    def type(self, cls: Any) -> None:
        self._type = cls

    def least_size(self, version: int, flexible: bool) -> int:
        """Returns the size of the smallest encoding, in bytes."""
        sizes = [_least_size(f, f.array, version, flexible) for f in self.fields if f.has(version)]
        return sum(sizes) + flexible

    def reader(
        self, version: int, flexible: bool, path: str, special: Mapping[str, Read] = MappingProxyType({})
    ) -> Read:
        """Returns the function that reads the structure in a version. ``special``: of the structure's own
        fields, those that other functions read."""
        reads: list[Read] = []
        tags: dict[int, tuple[int, Read]] = {}
        for index, field in enumerate(self.fields):
            place = f"{path}{field.name}"
            if version not in field.versions:
                reads.append(partial(_zero_of, field))
                continue
            read = special.get(field.name) or _reader(field, field.array, version, flexible, place)
            if version in field.tagged:
                tags[field.tag] = index, read
                read = partial(_zero_of, field)
            reads.append(read)
        new, cls = tuple.__new__, self.type

        def plain(reader: Reader) -> Any:
            return new(cls, [read(reader) for read in reads])

        def compact(reader: Reader) -> Any:
            value = new(cls, [read(reader) for read in reads])
            reader.skip_tags()
            return value

        def tagged(reader: Reader) -> Any:
            values = [read(reader) for read in reads]
            for tag in reader.tagged_fields():
                if tag in tags:
                    index, read = tags[tag]
                    values[index] = read(reader)
                    reader.finish()
            return new(cls, values)

        return tagged if tags else compact if flexible else plain

    def writer(
        self,
        version: int,
        flexible: bool,
        path: str,
        strict: bool,
        special: Mapping[str, Write] = MappingProxyType({}),
    ) -> Write:
        """Returns the function that writes the structure in a version. ``strict``: whether a value for a
        field that the version does not have is an error; see the module's docstring. ``special``: of the
        structure's own fields, those that other functions write."""
        writes: list[Write] = []
        tags: list[tuple[int, int, Field, Write]] = []
        for index, field in enumerate(self.fields):
            place = f"{path}{field.name}"
            if version not in field.versions:
                writes.append(partial(_refuse, field, place, version) if strict else _leave_out)
                continue
            write = special.get(field.name) or _writer(field, field.array, version, flexible, place, strict)
            if version in field.tagged:
                tags.append((field.tag, index, field, write))
                write = _leave_out
            writes.append(write)
        tags.sort(key=operator.itemgetter(0))

        def encode(writer: Writer, value: Any) -> None:
            if not isinstance(value, tuple) or len(value) != len(writes):
                problem = f"{path[:-1] or 'the message'} is {value!r}, it must be a {self.name}"
                raise ValueError(f"{writer.message}: {problem}")
            for write, each in zip(writes, value, strict=True):
                write(writer, each)
            if flexible:
                given = [row for row in tags if value[row[1]] != row[2].zero()]
                writer.uvarint(len(given))
                for tag, index, _, write in given:
                    inner = Writer(writer.message, True, False)
                    write(inner, value[index])
                    encoded = inner.finish()
                    writer.uvarint(tag)
                    writer.uvarint(len(encoded))
                    writer.raw(encoded)

        return encode


def _zero_of(field: Field, _: Reader) -> Any:
    return field.zero()


def _leave_out(writer: Writer, value: Any) -> None:
    pass


def _refuse(field: Field, place: str, version: int, writer: Writer, value: Any) -> None:
    if field.ignorable or value == field.zero():
        return
    first, last = field.versions
    needed = f"version {first} or newer" if version < first else f"version {last} or older"
    raise ValueError(f"{writer.message}: {place}={value!r} needs {needed}")


def _least_size(field: Field, array: bool, version: int, flexible: bool) -> int:
    if isinstance(field.kind, Struct) and not array:
        alone = version in field.nullable and not field.array
        return 1 if alone else field.kind.least_size(version, flexible)
    if array or field.kind in ("bytes", "records"):
        return 1 if flexible else 4
    return _SIZES.get(str(field.kind), 1 if flexible else 2)


def _reader(field: Field, array: bool, version: int, flexible: bool, place: str) -> Read:
    kind, nullable = field.kind, version in field.nullable
    if array:
        if kind == "int32" and not nullable:
            return operator.methodcaller("int32s", place)
        element = _reader(field, False, version, flexible, place)
        least, most = _least_size(field, False, version, flexible), field.most

        def read(reader: Reader) -> list[Any] | None:
            count = reader.count(place, least, most, nullable)
            return None if count < 0 else [element(reader) for _ in range(count)]

        return read
    if isinstance(kind, Struct):
        inner = kind.reader(version, flexible, f"{place}.")
        if not nullable or field.array:
            return inner
        return lambda reader: None if reader.int8(place) < 0 else inner(reader)
    if kind == "uuid":
        return operator.methodcaller("raw", place, len(NO_UUID))
    method = _METHODS.get(kind, kind)
    return operator.methodcaller(f"nullable_{method}" if nullable and not field.array else method, place)


def _writer(field: Field, array: bool, version: int, flexible: bool, place: str, strict: bool) -> Write:
    kind, nullable = field.kind, version in field.nullable
    if array:
        element = _writer(field, False, version, flexible, place, strict)

        def write(writer: Writer, values: Any) -> None:
            if values is None and nullable:
                writer.count(place, -1)
                return
            if not isinstance(values, list | tuple):
                raise ValueError(f"{writer.message}: {place} is {values!r}, it must be a list")
            writer.count(place, len(values))
            for value in values:
                element(writer, value)

        return write
    if isinstance(kind, Struct):
        inner = kind.writer(version, flexible, f"{place}.", strict)
        if not nullable or field.array:
            return inner

        def write_nullable(writer: Writer, value: Any) -> None:
            writer.int8(place, -1 if value is None else 1)
            if value is not None:
                inner(writer, value)

        return write_nullable
    if kind == "uuid":
        return partial(_write_uuid, place)
    name = "string" if kind == "text" else _METHODS.get(kind, kind)
    method = getattr(Writer, f"nullable_{name}" if nullable and not field.array else name)
    return lambda writer, value: method(writer, place, value)


def _write_uuid(place: str, writer: Writer, value: Any) -> None:
    if not isinstance(value, bytes) or len(value) != len(NO_UUID):
        raise ValueError(f"{writer.message}: {place} is {value!r}, it must be {len(NO_UUID)} bytes")
    writer.raw(value)


class Message:
    """A request or a response of an API. A call makes the named tuple; the structures are attributes."""

    def __init__(self, name: str, flexible: int, declaration: str, strict: bool) -> None:
        self.name = name
        self._flexible = flexible
        self._declaration = declaration
        self._strict = strict
        self._structs: dict[str, Struct] | None = None
        self._readers: dict[int, Read] = {}
        self._writers: dict[int, Write] = {}
        self._special: Mapping[str, Callable[[int], Any]] = {}

    def adapted(
        self, special: Mapping[str, Callable[[int], Any]], types: Mapping[str, type] = MappingProxyType({})
    ) -> "Message":
        """Returns a copy of the message, to be only read or only written, in another way.

        Args:
            special: field of the message -> a function that takes a version and returns the function that
                reads the field, or the one that writes it.
            types: structure -> the named tuple to make, which has the same number of fields.
        """
        other = Message(self.name, self._flexible, self._declaration, self._strict)
        other._special = special
        for name, cls in types.items():
            other.structs[name].type = cls
        return other

    @property
    def structs(self) -> dict[str, Struct]:
        """The structures by name; the first one is the message."""
        if self._structs is None:
            self._structs = _parse(self.name, self._declaration)
        return self._structs

    @property
    def root(self) -> Struct:
        """The structure of the whole message."""
        return self.structs[self.name]

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self.root.type(*values, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self.structs:
            raise AttributeError(f"{self.name} has no structure {name!r}, only {', '.join(self.structs)}")
        return self.structs[name].type

    def read(self, reader: Reader, version: int) -> Any:
        """Reads the message from the end of its header to the end of its own tagged fields."""
        if version not in self._readers:
            self._readers[version] = self.root.reader(
                version, version >= self._flexible, "", self._special_of(version)
            )
        return self._readers[version](reader)

    def reader_of(self, name: str, version: int) -> Read:
        """Returns the function that reads one field of the message, without the others."""
        field = next(field for field in self.root.fields if field.name == name)
        return _reader(field, field.array, version, version >= self._flexible, name)

    def write(self, writer: Writer, version: int, value: Any) -> None:
        """Writes the message. Raises a ``ValueError`` that names the field."""
        if version not in self._writers:
            self._writers[version] = self.root.writer(
                version, version >= self._flexible, "", self._strict, self._special_of(version)
            )
        self._writers[version](writer, value)

    def _special_of(self, version: int) -> dict[str, Any]:
        return {name: make(version) for name, make in self._special.items()}


def _parse(name: str, declaration: str) -> dict[str, Struct]:
    structs = {name: Struct(name)}
    lines = [line for line in declaration.splitlines() if line.strip()]
    margin = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    parents = [structs[name]]
    for line in lines:
        depth = (len(line) - len(line.lstrip()) - margin) // 4
        del parents[depth + 1 :]
        field = Field(line, structs)
        parents[-1].fields.append(field)
        if isinstance(field.kind, Struct):
            parents.append(field.kind)
    return structs


class Api:
    """A kind of request, and its response (protocol guide, "API keys")."""

    def __init__(
        self,
        key: int,
        name: str,
        versions: str,
        *,
        client: str = "",
        flexible: int = NEVER,
        client_throttles: int = NEVER,
        releases: str = "",
        required: bool = False,
        request: str,
        response: str,
    ) -> None:
        """
        Args:
            key: the API key.
            name: as in the protocol guide.
            versions: the versions that are declared.
            client: the versions that this package's client uses; "": all declared versions.
            flexible: the first version with compact types and tagged fields (KIP-482).
            client_throttles: the first version in which the client must wait for the throttle time in the
                response. In older versions, the broker itself waits before it responds (KIP-219).
            releases: Kafka releases, oldest first, each with the highest version it supports, as in "2.1:7
                2.4:8". A release that is not listed supports the same version as the next older listed one; a
                release older than all of them does not have this API. "": this package's client does not use
                the API.
            required: whether a producer cannot work without the API.
            request: the declaration of the request.
            response: the declaration of the response.
        """
        self.key = key
        self.name = name
        self.declared = Versions.parse(versions)
        #: The lowest and the highest version that this package's client uses, both inclusive.
        self.versions = self.lowest, self.highest = Versions.parse(client or versions)
        self.flexible = flexible
        self.client_throttles = client_throttles
        self.releases = tuple(_release(each) for each in releases.split())
        self.required = required
        self.request = Message(f"{name}Request", flexible, request, strict=True)
        self.response = Message(f"{name}Response", flexible, response, strict=False)

    def __repr__(self) -> str:
        return self.name

    @property
    def since(self) -> str:
        """The first supported Kafka release whose brokers have the API."""
        (major, minor), _ = self.releases[0]
        return f"Kafka {major}.{minor}"

    def _describe(self, version: int, kind: str) -> str:
        """Checks the version, and returns the message's name for errors."""
        if version not in self.declared:
            lowest, highest = self.declared
            raise ValueError(f"{self.name} version {version} is not implemented, only {lowest} to {highest}")
        return f"{self.name} v{version} {kind}"

    def _has_tagged_header(self, version: int) -> bool:
        """Whether the response's header has tagged fields. The header of ApiVersions never has them, because
        the client must understand it before it knows the broker's versions (KIP-511)."""
        return version >= self.flexible and self.name != "ApiVersions"

    def encode_request(
        self,
        version: int,
        correlation_id: int,
        client_id: str | None,
        request: Any,
        message: Message | None = None,
    ) -> bytes:
        """Returns a whole frame: size, request header v1 or v2, and ``request``.

        ``message``: what ``adapted`` has returned, if the request is written in another way.

        Raises:
            ValueError: the version is not implemented or has no field for a value that is set, or a value
                cannot be encoded.
        """
        writer = Writer(self._describe(version, "request"), False)
        writer.int16("api_key", self.key)
        writer.int16("api_version", version)
        writer.int32("correlation_id", correlation_id)
        # The client id also has a two-byte length in header v2 (KIP-482).
        writer.nullable_string("client_id", client_id)
        if version >= self.flexible:
            writer.flexible = True
            writer.uvarint(0)
        (message or self.request).write(writer, version, request)
        return writer.finish()

    def encode_response(self, version: int, correlation_id: int, response: Any) -> bytes:
        """Returns a whole frame: size, response header v0 or v1, and ``response``. Raises ``ValueError``."""
        writer = Writer(self._describe(version, "response"), version >= self.flexible)
        writer.int32("correlation_id", correlation_id)
        if self._has_tagged_header(version):
            writer.uvarint(0)
        self.response.write(writer, version, response)
        return writer.finish()

    def open_response(self, version: int, frame: Frame) -> Reader:
        """Returns a reader positioned after the header of a response. Raises ``ValueError`` if the version is
        not implemented."""
        reader = Reader(frame, self._describe(version, "response"), version >= self.flexible)
        reader.int32("correlation_id")
        if self._has_tagged_header(version):
            reader.skip_tags()
        return reader

    def decode_response(self, version: int, frame: Frame) -> Any:
        """Decodes a response, from its correlation id on, without the size prefix.

        Raises:
            KafkaProtocolError: the response is malformed: truncated, a length or count beyond the end, text
                that is not UTF-8, or trailing bytes.
            ValueError: the version is not implemented.
        """
        reader = self.open_response(version, frame)
        response = self.response.read(reader, version)
        reader.finish()
        return response


def _release(text: str) -> tuple[tuple[int, int], int]:
    release, highest = text.split(":")
    major, minor = release.split(".")
    return (int(major), int(minor)), int(highest)
