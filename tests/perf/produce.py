"""Produce requests by hand, one connection and one batch at a time."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import NamedTuple, Self

from tests.reference_records import Record, batch_of, encode_batch

VERSION = 7
TIMESTAMP_MS = 1_700_000_000_000


class Answer(NamedTuple):
    """Of one batch."""

    error_code: int
    offset: int


def batch(values: int | list[bytes], *, producer_id: int = -1, epoch: int = -1, sequence: int = -1) -> bytes:
    """So many records, or one for each of these values."""
    if isinstance(values, int):
        values = [b"value"] * values
    records = [Record(at, TIMESTAMP_MS, None, value) for at, value in enumerate(values)]
    return encode_batch(
        batch_of(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    )


def produce_request(topic: str, partition: int, records: bytes, *, acks: int = -1, number: int = 0) -> bytes:
    """Without the size before it."""
    name = topic.encode()
    header = struct.pack(">hhihhhi", 0, VERSION, number, -1, -1, acks, 10_000)
    place = struct.pack(f">ih{len(name)}sii", 1, len(name), name, 1, partition)
    return header + place + struct.pack(">i", len(records)) + records


class Connection:
    """To one broker; asks and waits for the answer."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._number = 0

    def produce(self, topic: str, partition: int, records: bytes) -> Answer:
        """Raises ``ConnectionError`` where the connection ends instead."""
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
        """Whether nothing has come, not even the connection's end; for when it should be there by now."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()
