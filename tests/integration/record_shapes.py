"""Generates records of every shape that a producer must support, for tests that read them back.

Owns the keys, values, headers and timestamps. The same seed gives the same records. Uses no producer or
broker.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

TOPIC_CONFIG = {
    # Since Kafka 4.0 a broker refuses timestamps more than an hour ahead. A segment whose newest record is
    # from 1970 would be deleted within minutes.
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "retention.ms": "-1",
    # One segment, regardless of the distance of the timestamps.
    "segment.ms": str(2**63 - 1),
    "max.message.bytes": str(2 * 1024 * 1024),
}
"""The configuration with which a topic accepts all of these records."""

END_OF_9999_MS = 253_402_300_799_999
WORDS = (
    *("stream", "offset", "leader", "épôque", "日本語", "Ελληνικά", "עברית", "🚀", "replica", "quorum"),
    *("zero-width\u200djoiner", "tab\there", "nul\0byte"),
)

KEYS: tuple[bytes | None, ...] = (
    None,
    b"",
    b"k",
    b"\0",
    b"\xff\xfe not UTF-8",
    "ключ".encode(),
    b"a-usual-key",
    bytes(range(256)),
    b"long " * 2_000,
)
HEADERS: tuple[list[tuple[str, bytes | None]] | None, ...] = (
    None,
    [],
    [("name", b"value")],
    [("again", b"1"), ("again", b"2"), ("again", b"1")],
    [("empty", b""), ("null", None), ("", b"no name"), ("", None)],
    [("имя🚀", "значение".encode()), ("binary", bytes(range(256)))],
    [(f"h{i}", b"%d" % i) for i in range(200)],
    [("long" * 500, b"x" * 5_000)],
)
TIMESTAMPS_MS: tuple[int | None, ...] = (None, 0, 1, 1_700_000_000_000, 2**41, END_OF_9999_MS)


class Shape(NamedTuple):
    """The arguments of one ``send()``, without the topic."""

    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    timestamp_ms: int | None
    partition: int | None

    def arguments(self) -> dict[str, Any]:
        return self._asdict()


def all_shapes(count: int, largest_record: int, partitions: int, seed: int = 1) -> Iterator[Shape]:
    """Yields ``count`` records, including some of about ``largest_record`` bytes."""
    rng = random.Random(seed)
    text = " ".join(rng.choices(WORDS, k=300_000)).encode()
    sized = {
        # Spread out, so that large records are between small ones in their partitions.
        count // 7: (b"large", _cut(text, largest_record - 100, rng)),
        count // 2: (b"random", rng.randbytes(largest_record - 100)),
        count - 2: (b"large", _cut(text, largest_record - 100, rng)),
    }
    for index in range(count):
        if index in sized:
            key, value = sized[index]
            yield Shape(value, key, None, None, None)
            continue
        usual = rng.choice(KEYS)
        yield Shape(
            _value(rng, text, usual is not None),
            usual,
            # Most records in real topics have no headers.
            rng.choice(HEADERS) if index % 3 == 0 else None,
            rng.choice(TIMESTAMPS_MS),
            rng.choice((None, None, rng.randrange(partitions))),
        )


def _value(rng: random.Random, text: bytes, may_be_tombstone: bool) -> bytes | None:
    draw = rng.random()
    if draw < 0.1:
        return b""
    if draw < 0.2 and may_be_tombstone:
        return None
    if draw < 0.203:
        return _cut(text, 100_000, rng)
    if draw < 0.3:
        return rng.randbytes(100)
    return _cut(text, 100, rng)


def _cut(text: bytes, size: int, rng: random.Random) -> bytes:
    start = rng.randrange(len(text) - size)
    return text[start : start + size]
