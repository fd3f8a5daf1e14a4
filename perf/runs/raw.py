"""Produce requests made by hand and sent over a blocking socket: the floor, which no client can be below.

One connection to one broker, which leads every partition. Records carry no sequences: with them each batch
would have to be made, and summed, anew, and nothing would be made beforehand.
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
"""Of Produce: the newest one without tagged fields that every broker from 2.1 on takes."""
TIMESTAMP_MS = 1_700_000_000_000
BATCH_BYTES = 131_072
"""As large as this producer's by default."""
IN_FLIGHT = 5
NO_HEADERS = b"\x00"


def produce_frame(topic: str, batches: dict[int, bytes]) -> bytes:
    """A Produce request with its size before it: a batch for each of these partitions, acks=all."""
    name = topic.encode()
    head = struct.pack(">hhihhhi", 0, VERSION, 0, -1, -1, -1, 10_000)
    body = struct.pack(f">ih{len(name)}si", 1, len(name), name, len(batches))
    for partition, batch in batches.items():
        body += struct.pack(">ii", partition, len(batch)) + batch
    return struct.pack(">i", len(head) + len(body)) + head + body


def error_codes(topic: str, answer: bytes) -> list[int]:
    """Of each partition in an answer to such a request, without the size before it."""
    at = 4 + 4 + 2 + len(topic.encode())
    (count,) = struct.unpack_from(">i", answer, at)
    each = struct.calcsize(">ihqqq")
    return [struct.unpack_from(">ihqqq", answer, at + 4 + n * each)[1] for n in range(count)]


def batch(data: list[bytes]) -> bytes:
    from cyproducer.records.record_batch import encode_batch

    return encode_batch([(TIMESTAMP_MS, None, value, NO_HEADERS) for value in data])


class Socket:
    """To the one broker there is; raises ``SkippedError`` where there are several."""

    def __init__(self, bootstrap: str) -> None:
        if "," in bootstrap:
            raise SkippedError("the raw socket wants a single broker")
        host, _, port = bootstrap.rpartition(":")
        self.port = int(port)
        self._socket = socket.create_connection((host, self.port), timeout=30)
        # Blocking for good: with a timeout Python would ask poll() before each call.
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, frame: bytes) -> bytes:
        """Sends, waits, and gives the answer with its size before it."""
        self._socket.sendall(frame)
        # An answer of this size comes in one piece, nearly always.
        answer = self._socket.recv(65536)
        while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4], "big"):
            more = self._socket.recv(65536)
            if not more:
                raise ConnectionError("the broker closed the connection")
            answer += more
        return answer

    def check(self, topic: str, frame: bytes) -> None:
        """That the broker takes this request: from then on nobody looks at its answers."""
        codes = error_codes(topic, self.ask(frame)[4:])
        if not codes or any(codes):
            raise SkippedError(f"the broker answers the raw socket's request with {codes}")


def blocking(args: Args) -> Figures:
    """One record a request, one after the other, in Python."""
    frame = produce_frame(args.topic, {0: batch(values(args.size)[:1])})
    broker = Socket(args.bootstrap)
    broker.check(args.topic, frame)
    ask = broker.ask
    return round_trips(args.records, lambda: ask(frame))


def blocking_in_c(args: Args) -> Figures:
    """The same in C."""
    frame = produce_frame(args.topic, {0: batch(values(args.size)[:1])})
    broker = Socket(args.bootstrap)
    broker.check(args.topic, frame)
    return in_c(broker.port, [frame], args.records, 1, records_per_frame=1)


def batches(args: Args) -> Figures:
    """Full batches made beforehand, one for each partition a request, in C."""
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
