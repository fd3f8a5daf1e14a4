"""A slow, strict, pure-Python reference for Produce v3 to v13: decodes requests, encodes responses.

Written from the Kafka protocol guide, KIP-482 (flexible versions, from v9), KIP-467 (record errors, v8),
KIP-951 (the new leader in the response, v10) and KIP-516 (topic ids, v13). Shares no code with the
package. No I/O and no clock; any thread may use it. Times are milliseconds.
"""

import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tools.harness.reference_wire import MalformedError, Reader, encode_array, encode_string, encode_tags

Topic = str | uuid.UUID
"""A name up to version 12, an id since version 13."""


@dataclass(frozen=True)
class ProduceRequest:
    correlation_id: int
    api_version: int
    client_id: str | None
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[Topic, list[tuple[int, bytes | None]]]]


def decode_produce_request(frame: bytes) -> ProduceRequest:
    """Decodes a whole request as sent over the wire, including its four length bytes."""
    reader = Reader(frame)
    length = reader.int32()
    if length != reader.left:
        raise MalformedError(f"frame says {length} bytes and has {reader.left}")
    api_key, version = reader.int16(), reader.int16()
    if api_key != 0 or not 3 <= version <= 13:
        raise MalformedError(f"api key {api_key} version {version} is not Produce v3..v13")
    correlation_id = reader.int32()
    # The client id is not a compact string in any version of the header.
    client_id = reader.string(flexible=False)
    flexible = version >= 9
    reader.no_tags(flexible)
    transactional_id = reader.string(flexible)
    acks, timeout_ms = reader.int16(), reader.int32()
    if acks not in (-1, 0, 1):
        raise MalformedError(f"acks is {acks}")

    def partition() -> tuple[int, bytes | None]:
        index, records = reader.int32(), reader.bytes_(flexible)
        reader.no_tags(flexible)
        return index, records

    def topic() -> tuple[Topic, list[tuple[int, bytes | None]]]:
        key: Topic | None = reader.uuid() if version >= 13 else reader.string(flexible)
        if key is None:
            raise MalformedError("a topic's name is null")
        partitions = reader.array(flexible, partition)
        reader.no_tags(flexible)
        return key, partitions

    topics = reader.array(flexible, topic)
    reader.no_tags(flexible)
    reader.expect_end("request")
    return ProduceRequest(correlation_id, version, client_id, transactional_id, acks, timeout_ms, topics)


class PartitionResponse(NamedTuple):
    """A partition's response. ``record_errors``: (batch index, message); ``current_leader``: (id, epoch)."""

    partition: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[tuple[int, str | None]] = ()
    error_message: str | None = None
    current_leader: tuple[int, int] | None = None


def encode_produce_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[Topic, Sequence[PartitionResponse]]],
    throttle_ms: int = 0,
    node_endpoints: Sequence[tuple[int, str, int, str | None]] = (),
) -> bytes:
    """Encodes a whole response with its length bytes. ``node_endpoints``: (node id, host, port, rack).

    A field that the version does not have is omitted if the schema allows that, else it is an error.
    """
    if not 3 <= version <= 13:
        raise ValueError(f"version must be 3..13, not {version}")
    flexible = version >= 9
    no_tags = encode_tags({}) if flexible else b""

    def record_error(error: tuple[int, str | None]) -> bytes:
        return struct.pack(">i", error[0]) + encode_string(error[1], flexible) + no_tags

    def partition(answer: PartitionResponse) -> bytes:
        answer = PartitionResponse(*answer)
        fields = answer.partition, answer.error_code, answer.base_offset, answer.log_append_time_ms
        out = struct.pack(">ihqq", *fields)
        if version >= 5:
            out += struct.pack(">q", answer.log_start_offset)
        if version >= 8:
            out += encode_array(answer.record_errors, flexible, record_error)
            out += encode_string(answer.error_message, flexible)
        if answer.current_leader is None:
            return out + no_tags
        if version < 10:
            raise ValueError(f"version {version} has no current_leader")
        return out + encode_tags({0: struct.pack(">ii", *answer.current_leader) + no_tags})

    def topic(answers: tuple[Topic, Sequence[PartitionResponse]]) -> bytes:
        key, partitions = answers
        if isinstance(key, uuid.UUID) != (version >= 13):
            raise ValueError(f"version {version} does not take {key!r} for a topic")
        name = key.bytes if isinstance(key, uuid.UUID) else encode_string(key, flexible)
        return name + encode_array(partitions, flexible, partition) + no_tags

    def endpoint(node: tuple[int, str, int, str | None]) -> bytes:
        node_id, host, port, rack = node
        out = struct.pack(">i", node_id) + encode_string(host, True)
        return out + struct.pack(">i", port) + encode_string(rack, True) + no_tags

    if node_endpoints and version < 10:
        raise ValueError(f"version {version} has no node_endpoints")
    out = struct.pack(">i", correlation_id) + no_tags
    out += encode_array(topics, flexible, topic) + struct.pack(">i", throttle_ms)
    if flexible:
        out += encode_tags({0: encode_array(node_endpoints, True, endpoint)} if node_endpoints else {})
    return struct.pack(">i", len(out)) + out
