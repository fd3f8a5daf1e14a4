"""Sends Produce requests without a producer: one connection, one batch at a time."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple, Self

from tools.harness.reference_records import Record, batch_of, encode_batch

VERSION = 7
TIMESTAMP_MS = 1_700_000_000_000


class Answer(NamedTuple):
    """The response for one batch."""

    error_code: int
    offset: int


def batch(values: int | list[bytes], *, producer_id: int = -1, epoch: int = -1, sequence: int = -1) -> bytes:
    """Returns a batch of that many records, or of one record per value."""
    if isinstance(values, int):
        values = [b"value"] * values
    records = [Record(at, TIMESTAMP_MS, None, value) for at, value in enumerate(values)]
    return encode_batch(
        batch_of(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    )


def produce_request(topic: str, partition: int, records: bytes, *, acks: int = -1, number: int = 0) -> bytes:
    """Returns a Produce request without its size prefix."""
    name = topic.encode()
    header = struct.pack(">hhihhhi", 0, VERSION, number, -1, -1, acks, 10_000)
    place = struct.pack(f">ih{len(name)}sii", 1, len(name), name, 1, partition)
    return header + place + struct.pack(">i", len(records)) + records


class Connection:
    """A connection to one broker. Sends requests and waits for the responses."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._number = 0

    def produce(self, topic: str, partition: int, records: bytes) -> Answer:
        """Sends a batch and returns the response. Raises ``ConnectionError`` if the connection is closed."""
        self._number += 1
        self.send(produce_request(topic, partition, records, number=self._number))
        answer = self.receive()
        fields = struct.unpack_from(">ihqqq", answer, 4 + 4 + 2 + len(topic) + 4)
        assert struct.unpack_from(">i", answer)[0] == self._number
        assert fields[0] == partition
        return Answer(fields[1], fields[2])

    def send(self, request: bytes) -> None:
        self._socket.sendall(struct.pack(">i", len(request)) + request)

    def receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def is_silent(self) -> bool:
        """Returns whether nothing has arrived, not even the end of the connection. Does not wait."""
        self._socket.setblocking(False)
        try:
            self._socket.recv(1)
        except BlockingIOError:
            return True
        return False

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = self._socket.recv(size - len(found))
            if not more:
                raise ConnectionError("the broker closed the connection")
            found += more
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._socket.close()
