"""Fuzz target in Python, over a ``Rig``: the sender against a broker that responds as the input says.

All code between ``send()`` and the socket is the package's own. ``fuzz_tls`` plays the same over TLS. For any
response:

- an invalid response ends its connection, with an error that names the broker;
- the batches of its request are sent again, and arrive once the broker is honest;
- the records of a partition arrive in order, unless several requests are in flight without ordering;
- all memory is returned, and no future stays pending.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from socket import socket
from typing import Any

from cyproducer import errors
from cyproducer.futures.delivery import RecordFuture
from cyproducer.net.tls_transport import TlsSession
from tools.harness.reference_records import PartitionResponse, Topic, encode_produce_response
from tools.harness.rig import HookResult, Rig, Seen

#: The topics, which `fuzz_network.pyx` also uses, each with three partitions.
NAMES = ("aa", "b", "ccc")
IDS = [uuid.UUID(int=number << 64 | number) for number, _ in enumerate(NAMES, 7)]
MOST_RECORDS = 60
#: Given the broker's end of a socket pair, returns the producer's session, and the broker's end of it.
Secured = Callable[[socket], tuple[TlsSession, Any]]
#: The errors for a broker that responds wrongly, closes the connection, or does not respond.
ENDS = (
    errors.KafkaProtocolError,
    errors.CorrelationIdError,
    errors.BrokerProtocolError,
    errors.KafkaConnectionError,
    errors.KafkaTimeoutError,
)
EDGES = [0, 1, 3, 4, 5, 127, 128, 0x7FFF, 0x8000, 0xFFFF, 1 << 20, (1 << 20) + 1, 0x7FFFFFFF, 0x80000000]


class Choices:
    """The input, consumed from the front; zeros after its end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def __bool__(self) -> bool:
        return self.at < len(self.data)

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1] if self.at <= len(self.data) else 0

    def two(self) -> int:
        return self.byte() << 8 | self.byte()

    def some(self, size: int) -> bytes:
        return bytes(self.byte() for _ in range(size))


def retry_all(topic: str, partition: int, attempts: int, error: BaseException, now_ms: float) -> HookResult:
    return now_ms + 100, None


def honest(seen: Seen, choices: Choices) -> bytes:
    """A valid response: success, or any error code for some partitions."""
    version = seen.request.api_version
    topics: list[tuple[Topic, list[PartitionResponse]]] = []
    for topic, partitions in seen.request.topics:
        answers = []
        for index, _ in partitions:
            choice = choices.byte()
            answer = PartitionResponse(index, 0, 7 * index)
            if choice % 4 == 1:
                answer = PartitionResponse(index, choices.byte() - 1)
                if version >= 8 and choice & 16:
                    answer = answer._replace(
                        error_message="x" * choice, record_errors=[(0, "why"), (1, None)]
                    )
                if version >= 10 and choice & 32:
                    answer = answer._replace(current_leader=(choice % 3, 1))
            answers.append(answer)
        topics.append((topic, answers))
    return encode_produce_response(version, seen.request.correlation_id, topics)


def damaged(answer: bytes, choices: Choices) -> bytes:
    """A response with bytes changed, removed or inserted, or with numbers replaced by edge values."""
    changed = bytearray(answer)
    for _ in range(1 + choices.byte() % 3):
        kind, at = choices.byte() % 6, choices.two() % (len(changed) + 1)
        if kind == 0:
            changed[at : at + 1] = choices.some(1)
        elif kind == 1:
            del changed[at:]
        elif kind == 2:
            changed[at : at + choices.byte() % 8] = b""
        elif kind == 3:
            changed[at:at] = choices.some(1 + choices.byte() % 8)
        elif kind == 4:
            changed[at : at + 4] = struct.pack(">I", EDGES[choices.byte() % len(EDGES)])
        else:
            changed[at : at + 5] = b"\xff\xff\xff\xff\x0f"[: 1 + choices.byte() % 5]
    if choices.byte() % 4 and len(changed) >= 4:
        # Otherwise the check of the frame's length would detect most of the damage.
        changed[:4] = struct.pack(">i", len(changed) - 4)
    return bytes(changed)


def respond(rig: Rig, seen: Seen, answer: bytes) -> None:
    rig.pending.remove(seen)
    if rig.peers.get(seen.node) is seen.peer:
        seen.peer.sock.sendall(answer)
        rig.step()
        rig.step()


def acknowledge(rig: Rig, seen: Seen) -> None:
    """Appends a request's records to the log and acknowledges them."""
    topics: list[tuple[Topic, list[PartitionResponse]]] = []
    places = iter(seen.batches.items())
    for topic, partitions in seen.request.topics:
        answers = []
        for index, _ in partitions:
            place, batch = next(places)
            log = rig.log.setdefault(place, [])
            answers.append(PartitionResponse(index, 0, len(log)))
            log.extend(batch.records)
        topics.append((topic, answers))
    version, number = seen.request.api_version, seen.request.correlation_id
    respond(rig, seen, encode_produce_response(version, number, topics))


def forget_lost(rig: Rig) -> None:
    """Drops the requests of closed connections, which get no response any more."""
    rig.pending = [seen for seen in rig.pending if rig.peers.get(seen.node) is seen.peer]


def check_ends(rig: Rig) -> int:
    """Checks that each connection ended with an expected error that names its broker; returns how many
    ended."""
    ended = len(rig.control.broken)
    for node, cause in rig.control.broken:
        assert isinstance(cause, ENDS), f"node {node} ended with {cause!r}"
        assert f"broker-{node}" in str(cause), f"node {node} is not named by {cause!r}"
    rig.control.broken.clear()
    return ended


def play(data: bytes, secured: Callable[[Choices], Secured] | None = None) -> int:
    """Plays one input; returns the number of connections that it ended. Raises AssertionError on a
    finding.

    ``secured``: makes the TLS of the connections.
    """
    choices = Choices(data)
    version, in_flight = 3 + choices.byte() % 11, 1 + choices.byte() % 3
    ended = sent = 0
    with Rig(
        produce_version=version,
        linger_ms=1,
        batch_size=300,
        buffer_memory=1 << 20,
        max_in_flight=in_flight,
        ordered=in_flight != 2,
        delivery_timeout_ms=1e9,
        seed=1,
        tls=None if secured is None else secured(choices),
    ) as rig:
        rig.fates.hook = retry_all
        for name, topic_id in zip(NAMES, IDS, strict=True):
            rig.sender.apply_topic(name, topic_id.bytes, [1, 2, 1])
        futures: list[RecordFuture] = []
        while choices or not futures:
            op = choices.byte()
            if (op % 4 == 0 and sent < MOST_RECORDS) or not futures:
                sent += 1
                name, partition = NAMES[op // 4 % 3], op // 16 % 3
                value = b"%06d" % sent + bytes(op)
                futures.append(rig.send(name, value, partition=partition))
            rig.advance_ms([0, 1, 100, 31_000][op // 4 % 4] if op % 16 == 15 else 1)
            rig.requests()
            forget_lost(rig)
            if rig.pending and op % 4 in (1, 2):
                seen = rig.pending[0 if op & 64 else op % len(rig.pending)]
                answer = honest(seen, choices)
                respond(rig, seen, damaged(answer, choices) if op % 4 == 2 else answer)
            elif rig.peers and op % 16 == 3:
                node = min(rig.peers)
                rig.peers[node].sock.sendall(choices.some(choices.byte() % 40))
                rig.step()
            elif rig.peers and op % 16 == 7:
                rig.cut(max(rig.peers))
            ended += check_ends(rig)
        # The broker is honest from here on. First, connections that wait for the rest of a response must time
        # out.
        for _ in range(4):
            rig.advance_ms(31_000)
            while rig.requests() or rig.pending:
                forget_lost(rig)
                for seen in list(rig.pending):
                    acknowledge(rig, seen)
                ended += check_ends(rig)
        assert not rig.pending
        assert all(future.succeeded() for future in futures), "a record did not arrive"
        for place, records in rig.log.items() if in_flight != 2 else ():
            # A batch whose response was damaged is in the log again, complete, before any younger record.
            values = list(dict.fromkeys(record.value for record in records))
            assert values == sorted(values, key=lambda value: value or b""), f"{place} is out of order"
        assert rig.accumulator.incomplete_batches == 0
        assert rig.pool.used_bytes == 0, f"{rig.pool.used_bytes} bytes were not returned"
    return ended
