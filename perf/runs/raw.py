"""Sends prepared Produce requests over a blocking socket: the lower bound for any client.

Uses one connection to one broker, which leads every partition. Batches have no sequence numbers: with them,
each batch would need a new header and checksum, so batches could not be prepared.
"""

import json
import socket
import struct
import subprocess
from itertools import cycle, islice
from pathlib import Path

from perf.compile_c import CompileError, compiled
from perf.runs.measuring import Args, Figures, SkippedError, round_trips, values

SOURCE = Path(__file__).with_name("raw_socket.c")
VERSION = 7
"""Produce version: the newest one without tagged fields that every broker since 2.1 supports."""
TIMESTAMP_MS = 1_700_000_000_000
BATCH_BYTES = 131_072
"""This producer's default ``batch_size``."""
IN_FLIGHT = 5
NO_HEADERS = b"\x00"


def produce_frame(topic: str, batches: dict[int, bytes]) -> bytes:
    """Returns a Produce request with acks=all, size prefix included, with one batch per partition."""
    name = topic.encode()
    head = struct.pack(">hhihhhi", 0, VERSION, 0, -1, -1, -1, 10_000)
    body = struct.pack(f">ih{len(name)}si", 1, len(name), name, len(batches))
    for partition, batch in batches.items():
        body += struct.pack(">ii", partition, len(batch)) + batch
    return struct.pack(">i", len(head) + len(body)) + head + body


def error_codes(topic: str, answer: bytes) -> list[int]:
    """Returns the error code of each partition in a response, which comes without its size prefix."""
    at = 4 + 4 + 2 + len(topic.encode())
    (count,) = struct.unpack_from(">i", answer, at)
    each = struct.calcsize(">ihqqq")
    return [struct.unpack_from(">ihqqq", answer, at + 4 + n * each)[1] for n in range(count)]


def batch(data: list[bytes]) -> bytes:
    from cyproducer.records.record_batch import encode_batch

    return encode_batch([(TIMESTAMP_MS, None, value, NO_HEADERS) for value in data])


class Socket:
    """A connection to the only broker. Raises ``SkippedError`` if there are several brokers."""

    def __init__(self, bootstrap: str) -> None:
        if "," in bootstrap:
            raise SkippedError("the raw socket needs a single broker")
        host, _, port = bootstrap.rpartition(":")
        self.port = int(port)
        self._socket = socket.create_connection((host, self.port), timeout=30)
        # Fully blocking: with a timeout Python would call poll() before each call.
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, frame: bytes) -> bytes:
        """Sends a request and returns the response, size prefix included."""
        self._socket.sendall(frame)
        # A response of this size nearly always arrives in one piece.
        answer = self._socket.recv(65536)
        while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4], "big"):
            more = self._socket.recv(65536)
            if not more:
                raise ConnectionError("the broker closed the connection")
            answer += more
        return answer

    def check(self, topic: str, frame: bytes) -> None:
        """Checks that the broker accepts this request. Later responses are not checked."""
        codes = error_codes(topic, self.ask(frame)[4:])
        if not codes or any(codes):
            raise SkippedError(f"the broker responds to the raw socket's request with error codes {codes}")


def blocking(args: Args) -> Figures:
    """Sends one record per request, one request after the other, in Python."""
    frame = produce_frame(args.topic, {0: batch(values(args.size)[:1])})
    broker = Socket(args.bootstrap)
    broker.check(args.topic, frame)
    ask = broker.ask
    return round_trips(args.records, lambda: ask(frame))


def blocking_in_c(args: Args) -> Figures:
    """Does the same as ``blocking`` in C."""
    frame = produce_frame(args.topic, {0: batch(values(args.size)[:1])})
    broker = Socket(args.bootstrap)
    broker.check(args.topic, frame)
    return in_c(broker.port, [frame], args.records, 1, records_per_frame=1)


def batches(args: Args) -> Figures:
    """Sends prepared full batches, one per partition and request, in C."""
    data = values(args.size)
    per_batch = max(1, BATCH_BYTES // (len(batch(data)) // len(data)))
    full = batch(list(islice(cycle(data), per_batch)))
    frame = produce_frame(args.topic, dict.fromkeys(range(args.partitions), full))
    broker = Socket(args.bootstrap)
    broker.check(args.topic, frame)
    per_frame = per_batch * args.partitions
    return in_c(broker.port, [frame], max(1, args.records // per_frame), IN_FLIGHT, per_frame)


def in_c(port: int, frames: list[bytes], count: int, in_flight: int, records_per_frame: int) -> Figures:
    """Runs ``raw_socket.c``."""
    try:
        program = compiled(SOURCE)
    except CompileError as error:
        raise SkippedError(str(error)) from error
    done = subprocess.run(
        [str(program), str(port), str(count), str(in_flight)], input=b"".join(frames), capture_output=True
    )
    if done.returncode:
        raise RuntimeError(f"the raw socket failed: {done.stderr.decode()}")
    found = json.loads(done.stdout)
    records = count * records_per_frame
    return {
        "records": records,
        "records_per_s": records / found["wall_s"],
        "cpu_s_per_million": found["cpu_s"] / records * 1e6,
        "p50_us": found["p50_us"],
        "p99_us": found["p99_us"],
    }
