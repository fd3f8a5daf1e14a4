"""Generates the seeds of a corpus: valid messages of every version, from codecs that are not the package's.

    python -m tests.fuzz.seeds      replaces the seeds in corpus/

Needed only if the input format of a target has changed. Merging keeps the seeds: each line has a comment.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Iterator
from typing import Any

import cramjam
import lz4.frame  # type: ignore[import-untyped]

from cyproducer.records.compression import compressor_for
from cyproducer.wire import protocol
from cyproducer.wire.messages import ALL
from cyproducer.wire.primitives import Writer
from cyproducer.wire.schema import Field, Struct
from tests.fuzz import corpus, fuzz_security
from tests.fuzz.decoders import DECODERS, place_of
from tests.fuzz.fuzz_rig import IDS, NAMES
from tests.network.test_protocol_malformed import CASES
from tools.harness.reference_records import PartitionResponse, Topic, encode_produce_response

MARK = "  # a seed"


def produce() -> Iterator[bytes]:
    """Byte 0 is the version, byte 1 how many topics the request has; the correlation id is left out."""
    for version in range(3, 14):
        for count in (1, 3):
            rich = PartitionResponse(2, 6, 7, 8, 9)
            if version >= 8:
                rich = rich._replace(record_errors=[(0, "bad"), (1, None)], error_message="not the leader")
            if version >= 10:
                rich = rich._replace(current_leader=(3, 4))
            for last in (PartitionResponse(2, 0, 5), rich):
                answers = [PartitionResponse(0, 0, 1), PartitionResponse(1, 0, 2), last]
                keys: list[Topic] = [IDS[i] if version >= 13 else NAMES[i] for i in range(count)]
                nodes = [(3, "host", 9092, "rack")] if version >= 10 else []
                whole = encode_produce_response(version, 0, [(key, answers) for key in keys], 1, nodes)
                yield bytes([version - 3, count - 1]) + whole[8:]


IMPOSSIBLE = [
    # Node -1, port 0, partition -1, leader -2; a coordinator -1; producer id -1; a partition twice.
    (protocol.decode_metadata, 1, "00000000 00000001 ffffffff 0001 68 00002384 ffff 00000000 00000000"),
    (protocol.decode_metadata, 1, "00000000 00000001 00000001 0001 68 00000000 ffff 00000000 00000000"),
    (
        protocol.decode_metadata,
        1,
        "00000000 00000000 00000001 00000001 0000 0001 74 00 00000001 0000 ffffffff fffffffe" + 16 * "0",
    ),
    (protocol.decode_find_coordinator, 1, "00000000 00000000 0000 ffff ffffffff 0001 68 00002384"),
    (protocol.decode_init_producer_id, 0, "00000000 00000000 0000 ffffffffffffffff 0000"),
    (
        protocol.decode_add_partitions_to_txn,
        0,
        "00000000 00000000 00000001 0001 74 00000002 00000005 0037 00000005 0000",
    ),
]


def messages() -> Iterator[bytes]:
    impossible = [(decode, version, bytes.fromhex(frame)) for decode, version, frame in IMPOSSIBLE]
    for decode, version, frame in [*CASES, *impossible]:
        kind = place_of(decode)
        yield bytes([kind, version - DECODERS[kind].lowest]) + frame


def declared() -> Iterator[bytes]:
    """Each message of each API with one element in each array, in its first and last version; and cut off."""
    for kind, part in enumerate(("request", "response")):
        for index, api in enumerate(ALL):
            message = getattr(api, part)
            for version in dict.fromkeys((api.declared.first, api.declared.last)):
                writer = Writer(part, version >= api.flexible, False)
                message.write(writer, version, filled(message.root, version))
                choice = bytes([index + kind * len(ALL), version - api.declared.first])
                yield choice + writer.finish()
            yield (choice + writer.finish())[:-1]


def filled(struct: Struct, version: int) -> Any:
    """A value of a structure whose arrays have one element each."""

    def value(field: Field) -> Any:
        if version not in field.versions:
            return field.zero()
        if isinstance(field.kind, Struct):
            one = filled(field.kind, version)
        else:
            texts = {"string": "a", "text": "b", "bytes": b"c", "records": b"d", "uuid": bytes(range(16))}
            one = texts.get(field.kind, 1)
        return [one] if field.array else one

    return struct.type(*map(value, struct.fields))


def frames() -> Iterator[bytes]:
    """Byte 0 chooses receive_message_max_bytes, byte 1 how the stream is cut."""
    sizes = ([4], [5, 4, 100], [300, 20, 4], [-1], [0], [3], [2**31 - 1], [101], [4, 4, 4, 8193])
    for choice in range(8):
        for number, stream in enumerate(sizes):
            yield bytes([choice, number]) + b"".join(
                struct.pack(">i", size) + bytes(max(0, min(size, 300))) for size in stream
            )


def compression() -> Iterator[bytes]:
    """Byte 0 is the codec (if byte 0 modulo 8 is 7: compress first), byte 1 the limit."""
    for codec, name in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        for data in (b"", b"a", b"abc" * 50, bytes(range(100))):
            for bound in (2, 4):
                yield bytes([codec, bound]) + compressor_for(name).compress(data)
    # What other clients write.
    for data in (b"a", b"abc" * 50, bytes(70_000)):
        yield bytes([2, 4]) + bytes(cramjam.snappy.compress_raw(data))
        for form in (
            {"block_linked": True},
            {"content_checksum": True},
            {"block_size": 7, "store_size": False},
        ):
            yield bytes([3, 4]) + lz4.frame.compress(data, **form)


def rig() -> Iterator[bytes]:
    """Any bytes are a valid input; these are long ones."""
    chosen = random.Random(5)
    for _ in range(20):
        yield chosen.randbytes(chosen.randrange(20, 250))


def arguments() -> Iterator[bytes]:
    """Any bytes are a valid input."""
    chosen = random.Random(6)
    for _ in range(12):
        yield chosen.randbytes(chosen.randrange(40, 300))


def arrow() -> Iterator[bytes]:
    """Any bytes are a valid input. Byte 0 is whether the first table is damaged."""
    chosen = random.Random(9)
    for number in range(40):
        yield bytes([number % 3]) + chosen.randbytes(chosen.randrange(60, 400))


def tls() -> Iterator[bytes]:
    """Byte 0 is the version, byte 1 how many requests are in flight, byte 2 who reads: C or Python."""
    chosen = random.Random(7)
    for number in range(24):
        yield bytes([number % 11, number % 3, number % 2]) + chosen.randbytes(chosen.randrange(20, 250))


def security() -> Iterator[bytes]:
    """Byte 0 is the parser. Zeros choose valid messages, unchanged."""
    chosen = random.Random(8)
    for parser in range(len(fuzz_security.PARSERS)):
        for choice in range(4):
            yield bytes([parser, choice])
            yield bytes([parser, choice, *(b if b % 3 == 0 else 0 for b in chosen.randbytes(60))])
            yield bytes([parser, choice]) + chosen.randbytes(60)


SEEDS = {
    "tls": tls,
    "security": security,
    "produce": produce,
    "messages": messages,
    "declared": declared,
    "frames": frames,
    "compression": compression,
    "rig": rig,
    "arguments": arguments,
    "arrow": arrow,
}


def main() -> int:
    for target, seeds in SEEDS.items():
        kept = [line for line in corpus.lines_of(target) if not line.endswith(MARK)]
        corpus.write(target, [*(data.hex() + MARK for data in dict.fromkeys(seeds())), *kept])
    return 0


if __name__ == "__main__":
    sys.exit(main())
