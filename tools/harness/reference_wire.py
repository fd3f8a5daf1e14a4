"""The protocol's primitive types for the reference encoders and decoders: slow, strict, pure Python.

Written from the Kafka protocol guide and KIP-482 (flexible versions: compact lengths and tagged fields).
Shares no code with the package. No I/O and no clock; a :class:`Reader` belongs to one thread.
"""

import struct
import uuid
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class MalformedError(ValueError):
    """The bytes violate the protocol; the message says where and how."""


def encode_varint(value: int) -> bytes:
    """Zigzag: 0, -1, 1, -2 are 0, 1, 2, 3."""
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{value} does not fit 64 bits")
    return encode_uvarint(2 * value if value >= 0 else -2 * value - 1)


def encode_uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(0x80 | value & 0x7F)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_varint_bytes(value: bytes | None) -> bytes:
    return encode_varint(-1) if value is None else encode_varint(len(value)) + value


def encode_string(value: str | None, flexible: bool) -> bytes:
    if value is None:
        return b"\x00" if flexible else struct.pack(">h", -1)
    raw = value.encode()
    return (encode_uvarint(len(raw) + 1) if flexible else struct.pack(">h", len(raw))) + raw


def encode_array(items: Sequence[T], flexible: bool, encode: Callable[[T], bytes]) -> bytes:
    count = encode_uvarint(len(items) + 1) if flexible else struct.pack(">i", len(items))
    return count + b"".join(encode(item) for item in items)


def encode_tags(tags: dict[int, bytes]) -> bytes:
    out = encode_uvarint(len(tags))
    for tag, value in tags.items():
        out += encode_uvarint(tag) + encode_uvarint(len(value)) + value
    return out


def decode_text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise MalformedError(f"{raw!r} is not UTF-8") from error


class Reader:
    """Reads bytes from the front and never past the end."""

    def __init__(self, data: bytes) -> None:
        self._data = bytes(data)
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def rest(self) -> bytes:
        return self._data[self._at :]

    def take(self, count: int) -> bytes:
        if not 0 <= count <= self.left:
            raise MalformedError(f"{count} bytes wanted at {self._at}, {self.left} are left")
        self._at += count
        return self._data[self._at - count : self._at]

    def expect_end(self, what: str) -> None:
        if self.left:
            raise MalformedError(f"{self.left} bytes after the last {what}")

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self.take(form.size))

    def int8(self) -> int:
        return int.from_bytes(self.take(1), "big", signed=True)

    def int16(self) -> int:
        return int.from_bytes(self.take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self.take(16))

    def uvarint(self, bits: int = 32) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
            if shift >= bits:
                raise MalformedError(f"varint before byte {self._at} has no end within {bits} bits")
        if byte == 0 and shift > 7:
            raise MalformedError(f"varint before byte {self._at} is longer than it need be")
        if value >> bits:
            raise MalformedError(f"varint before byte {self._at} has more than {bits} bits")
        return value

    def varint(self, bits: int = 32) -> int:
        value = self.uvarint(bits)
        return value // 2 if value % 2 == 0 else -(value + 1) // 2

    def varint_bytes(self, what: str) -> bytes | None:
        return self._sized(self.varint(), what)

    def string(self, flexible: bool) -> str | None:
        raw = self._sized(self.uvarint() - 1 if flexible else self.int16(), "string")
        return None if raw is None else decode_text(raw)

    def bytes_(self, flexible: bool) -> bytes | None:
        return self._sized(self.uvarint() - 1 if flexible else self.int32(), "bytes")

    def array(self, flexible: bool, item: Callable[[], T]) -> list[T]:
        count = self.uvarint() - 1 if flexible else self.int32()
        if count < 0:
            raise MalformedError(f"array before byte {self._at} has length {count}")
        return [item() for _ in range(count)]

    def no_tags(self, flexible: bool) -> None:
        """No request has a tag yet, so any tag is an error."""
        if flexible and (count := self.uvarint()):
            raise MalformedError(f"{count} tags before byte {self._at}")

    def _sized(self, length: int, what: str) -> bytes | None:
        if length == -1:
            return None
        if length < 0:
            raise MalformedError(f"{what} before byte {self._at} has length {length}")
        return self.take(length)
