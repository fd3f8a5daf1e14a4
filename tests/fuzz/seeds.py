"""Generates the seeds of a corpus: valid messages of every version.

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
from cyproducer.testing.broker import releases
from cyproducer.testing.broker.cluster import HANDLERS
from cyproducer.wire import messages, protocol, transaction_api
from cyproducer.wire.messages import ALL
from cyproducer.wire.primitives import Writer
from cyproducer.wire.schema import Api
from tests.fuzz import corpus, fuzz_embedded, fuzz_security
from tests.fuzz.decoders import DECODERS, place_of
from tests.fuzz.fuzz_rig import IDS, NAMES
from tests.wire.filled import filled
from tests.wire.test_protocol_malformed import CASES
from tools.harness.reference_records import (
    PartitionResponse,
    Record,
    Topic,
    batch_of,
    encode_batch,
    encode_produce_response,
)

MARK = "  # a seed"
#: API key -> the versions that the embedded broker has.
VERSIONS = {
    **releases.versions(HANDLERS, releases.NEWEST),
    messages.SASL_HANDSHAKE.key: (1, 1),
}


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
    (
        transaction_api.decode_find_coordinator,
        1,
        "00000000 00000000 0000 ffff ffffffff 0001 68 00002384",
    ),
    (protocol.decode_init_producer_id, 0, "00000000 00000000 0000 ffffffffffffffff 0000"),
    (
        transaction_api.decode_add_partitions_to_txn,
        0,
        "00000000 00000000 00000001 0001 74 00000002 00000005 0037 00000005 0000",
    ),
]


def responses() -> Iterator[bytes]:
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


TOPIC_ID = fuzz_embedded.Broker().cluster.topics.topics["t"].id
#: What the requests to the embedded broker name, so that they find what its cluster has.
KNOWN = {
    "name": "t", "topic": "t", "topics": "t", "topic_names": "t", "partition": 0, "partitions": 0, "index": 0,
    "partition_index": 0, "partition_indexes": 0, "current_leader_epoch": -1, "leader_epoch": 0, "offset": 0,
    "fetch_offset": 0, "max_bytes": 1 << 20, "partition_max_bytes": 1 << 20, "min_bytes": 0, "timestamp": -1,
    "acks": -1, "session_id": 0, "session_epoch": 0, "resource_type": 2, "resource_name": "t",
    "configuration_keys": "retention.bytes", "config_operation": 0, "value": "1000", "num_partitions": 2,
    "replication_factor": 1, "count": 3, "group_id": "g", "groups": "g", "groups_names": "g", "key": "g",
    "key_type": 0, "coordinator_keys": "g", "member_id": "m-1", "generation_id": 1,
    "generation_id_or_member_epoch": 1, "protocol_type": "consumer", "protocol_name": "t",
    "session_timeout_ms": 10_000, "rebalance_timeout_ms": 1000, "transactional_id": "id",
    "transactional_ids": "id", "v3_and_below_transactional_id": "id", "producer_id": 1001,
    "producer_epoch": 0, "v3_and_below_producer_id": 1001, "v3_and_below_producer_epoch": 0,
    "transaction_timeout_ms": 10_000, "state_filters": "Ongoing", "producer_id_filters": 1001,
    "transactional_id_pattern": "i.*", "duration_filter": 0, "states_filter": "Stable",
    "types_filter": "classic", "topic_id": TOPIC_ID, "mechanism": "PLAIN", "auth_bytes": b"\0alice\0secret",
    "group_instance_id": None, "forgotten_topics_data": [],
}  # fmt: skip


def step(api: Api, version: int, **named: Any) -> bytes:
    """A request to the embedded broker, as ``fuzz_embedded`` reads it."""
    writer = Writer("seed", version >= api.flexible, False)
    api.request.write(writer, version, filled(api.request.root, version, named={**KNOWN, **named}))
    return framed(api.key, version - VERSIONS[api.key][0], writer.finish())


def framed(first: int, choice: int, body: bytes = b"") -> bytes:
    return bytes([first, choice]) + struct.pack(">H", len(body)) + body


def action(number: int, choice: int = 0, body: bytes = b"") -> bytes:
    return framed(fuzz_embedded.FIRST_ACTION + number, choice, body)


def records(codec: int = 0, values: int = 1, **options: Any) -> bytes:
    made = (Record(i, 1_700_000_000_000, b"k", b"v%d" % i, (("h", b"x"),)) for i in range(values))
    return encode_batch(batch_of(made, codec=codec, **options))


def embedded() -> Iterator[bytes]:
    """Each request in its first and last version, with any values and with those that the cluster knows; and
    sequences of requests."""
    for api in fuzz_embedded.APIS.values():
        for version in dict.fromkeys(VERSIONS[api.key]):
            writer = Writer("seed", version >= api.flexible, False)
            api.request.write(writer, version, filled(api.request.root, version))
            yield framed(api.key, version - VERSIONS[api.key][0], writer.finish())
            yield step(api, version)
            yield step(api, version) + action(0, 4) + step(api, version) + action(1, 2) + step(api, version)
    for codec in range(5):
        for version in (3, 9, 12, 13):
            plain = {"transactional_id": None, "records": records(codec)}
            sent = step(messages.PRODUCE, version, **plain)
            yield sent + step(messages.LIST_OFFSETS, 7, timestamp=-3) + step(messages.FETCH, 4, min_bytes=0)
            yield (
                sent
                + step(messages.LIST_OFFSETS, 2, timestamp=1)
                + step(messages.DELETE_RECORDS, 2, offset=1)
            )
    idempotent = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    in_transaction = {**idempotent, "producer_id": 1001, "transactional": True}
    for version in (3, 11, 12):
        batch = step(
            messages.PRODUCE, version, transactional_id=None, records=records(values=2, **idempotent)
        )
        yield batch + batch + step(messages.DESCRIBE_PRODUCERS, 0)
        sent = step(messages.PRODUCE, version, records=records(**in_transaction))
        offsets = step(messages.ADD_OFFSETS_TO_TXN, 4) + step(
            messages.TXN_OFFSET_COMMIT, 5, member_id="", generation_id=-1
        )
        for commits, last in ((True, 4), (False, 5)):
            yield sent + offsets + step(messages.END_TXN, last, committed=commits) + step(messages.FETCH, 12)
        yield sent + action(0, 7) + step(messages.FETCH, 12, isolation_level=1)
    yield (
        step(messages.FETCH, 11, min_bytes=1, max_wait_ms=1000)
        + action(1, 1)
        + step(messages.PRODUCE, 9, transactional_id=None, records=records())
    )
    yield step(messages.FETCH, 11) + step(messages.FETCH, 11, session_id=1, session_epoch=1)
    joins = step(messages.JOIN_GROUP, 3, member_id="")
    yield joins + action(1, 1) + step(messages.JOIN_GROUP, 9) + step(messages.SYNC_GROUP, 5, generation_id=2)
    yield step(messages.LEAVE_GROUP, 5) + step(messages.DELETE_GROUPS, 2) + joins + action(0, 6)
    static = step(messages.JOIN_GROUP, 5, group_id="h", member_id="", group_instance_id="i")
    yield static + step(messages.SYNC_GROUP, 3, group_id="h") + static + action(0, 6)
    yield step(messages.CREATE_TOPICS, 7, name="n", assignments=[]) + step(messages.METADATA, 12, name="n")
    yield action(5, 3) + step(messages.SASL_HANDSHAKE, 1) + step(messages.SASL_AUTHENTICATE, 2) + action(0, 5)
    for name, first in (("SCRAM-SHA-256", b"n,,n=alice,r=x"), ("OAUTHBEARER", b"n,,\1auth=Bearer token\1\1")):
        handshake = step(messages.SASL_HANDSHAKE, 1, mechanism=name)
        for _ in range(2):
            handshake += step(messages.SASL_AUTHENTICATE, 2, auth_bytes=first)
        yield action(5, 1) + handshake
    header = struct.pack(">hhih", messages.API_VERSIONS.key, 99, 1, -1)
    yield action(3, 0, header) + action(4, 0, struct.pack(">i", 1 << 30)) + action(6, 3) + action(7, 1)


SEEDS = {
    "embedded": embedded,
    "tls": tls,
    "security": security,
    "produce": produce,
    "messages": responses,
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
