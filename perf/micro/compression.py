"""Measures the CPU time of compressing a batch, with the package's compressors and with alternatives.

    python perf/micro/compression.py [--sizes 16,64,256] [--seconds 0.3]

Prints a table per batch size: MB per second of CPU time (including system time and the cost of the call; the
best of five runs, which are interleaved so that noise affects every row), microseconds per batch, and the
compressed size as a share of the batch. The last column is the time of a call while another thread runs
Python. On an idle machine it mostly shows how often the library releases the GIL, because getting it back
takes up to 5 ms each time. On a busy machine it varies too much to compare.

JSON records of about 150 bytes, CPython 3.12, two shared cores (rows within a fifth of each other are equal);
zlib 1.2.13, cramjam 2.14, lz4 4.4.5, zstandard 0.25. MB/s and share:

===============================  ==========  ==========  ==========
way                              16 KiB      64 KiB      256 KiB
===============================  ==========  ==========  ==========
gzip (zlib.compress)               76  .286    47  .280    42  .277
gzip, zlib.compressobj             70  .286    44  .280    43  .277
gzip, cramjam                      52  .290    32  .282    29  .279
gzip 1                            155  .324    96  .323   104  .318
gzip 1, cramjam                   253  .311   171  .304   173  .303
snappy (cramjam, one block)       717  .493   685  .471   520  .471
snappy, cramjam, 32 KiB blocks    792  .492   702  .481   610  .482
lz4 (lz4.frame)                   721  .482   750  .455   536  .455
lz4, lz4.frame, context kept      597  .482   636  .455   555  .455
lz4, cramjam (linked blocks)      537  .477   568  .468   461  .465
lz4 3                             195  .441    89  .400   115  .400
zstd (zstandard, contexts kept)   220  .267   264  .256   186  .283
zstd, zstandard, new context      217  .267   252  .256   167  .283
zstd, cramjam                     234  .267   213  .256   171  .283
zstd 1                            376  .257   404  .245   315  .249
zstd -5                           593  .473   800  .462   542  .458
===============================  ==========  ==========  ==========

Conclusions:

- gzip: ``zlib.compress``, in one call. cramjam is faster at level 1 and slower at the default.
- snappy: both methods need the same CPU time. One block compresses slightly better from 64 KiB on, and
  acquires the GIL once instead of eight times: 256 KiB beside a thread that runs Python took 6 ms in one
  call, 11 ms in two and 42 ms in eight (medians of 40, on an otherwise idle machine).
- lz4: ``lz4.frame.compress``, which needs no context. cramjam's frames have linked blocks, which the Java
  client and the broker refuse.
- zstd: a new context costs 20 us per batch: measured separately, 17 against 36 us for 4 KiB, 61 against 80
  for 16 KiB, and no visible difference from 64 KiB on. Level 1 is faster than the default of 3 and compresses
  such records equally well.
- zstd's library: backports.zstd 1.8, which is the standard library's module of 3.14 for older Pythons, needs
  as long as zstandard 0.25, contexts kept: 1.04 times for 1 kB, 1.00 for 16 kB, 0.98 for 130 kB (medians of
  nine, interleaved). So it is the one that is used: zstandard has no wheels for free-threaded Pythons.
"""

import argparse
import json
import random
import threading
import time
import zlib
from collections.abc import Callable

import cramjam
import lz4.frame  # type: ignore[import-untyped]
import zstandard

from cyproducer.records.compression import compressor_for

Compress = Callable[[memoryview], object]
RUNS = 5
CALLS_BESIDE_PYTHON = 50


def json_records(size: int) -> memoryview:
    noise = random.Random(1)
    out = bytearray()
    while len(out) < size:
        value = {
            "id": noise.randrange(10**9),
            "ts": 1_700_000_000_000 + len(out),
            "user": f"user-{noise.randrange(20_000):05}",
            "event": noise.choice(["view", "click", "purchase", "login"]),
            "price": round(noise.random() * 100, 2),
            "session": f"{noise.getrandbits(128):032x}",
        }
        out += b"\x00\x02\x04\x01" + json.dumps(value).encode() + b"\x00"
    return memoryview(bytes(out[:size]))


def gzip_object(data: memoryview) -> bytes:
    stream = zlib.compressobj(-1, zlib.DEFLATED, 31)
    return stream.compress(data) + stream.flush()


def snappy_in_blocks(data: memoryview) -> bytes:
    blocks = [cramjam.snappy.compress_raw(data[at : at + 32768]) for at in range(0, len(data), 32768)]
    return b"".join(part for block in blocks for part in (len(block).to_bytes(4, "big"), block))


def lz4_context() -> Compress:
    context = lz4.frame.create_compression_context()

    def compress(data: memoryview) -> bytes:
        begin = lz4.frame.compress_begin(context, block_linked=False)
        whole: bytes = begin + lz4.frame.compress_chunk(context, data) + lz4.frame.compress_flush(context)
        return whole

    return compress


def ways() -> dict[str, Compress]:
    return {
        "gzip (zlib.compress)": compressor_for("gzip").compress,
        "gzip, zlib.compressobj": gzip_object,
        "gzip, cramjam": lambda data: cramjam.gzip.compress(data, 6),
        "gzip 1": compressor_for("gzip", 1).compress,
        "gzip 1, cramjam": lambda data: cramjam.gzip.compress(data, 1),
        "snappy (cramjam, one block)": compressor_for("snappy").compress,
        "snappy, cramjam, 32 KiB blocks": snappy_in_blocks,
        "lz4 (lz4.frame)": compressor_for("lz4").compress,
        "lz4, lz4.frame, context kept": lz4_context(),
        "lz4, cramjam (linked blocks)": lambda data: cramjam.lz4.compress(data, 0),
        "lz4 3": compressor_for("lz4", 3).compress,
        "zstd (backports.zstd, contexts kept)": compressor_for("zstd").compress,
        "zstd, zstandard, contexts kept": zstandard.ZstdCompressor(level=3).compress,
        "zstd, zstandard, new context": lambda data: zstandard.ZstdCompressor(level=3).compress(data),
        "zstd, cramjam": lambda data: cramjam.zstd.compress(data, 3),
        "zstd 1": compressor_for("zstd", 1).compress,
        "zstd -5": compressor_for("zstd", -5).compress,
    }


def cpu_seconds(compress: Compress, data: memoryview, seconds: float) -> float:
    """Returns the CPU seconds per call, over as many calls as take ``seconds``."""
    calls = 0
    start = time.process_time()
    while (spent := time.process_time() - start) < seconds or not calls:
        for _ in range(4):
            compress(data)
        calls += 4
    return spent / calls


def seconds_beside_python(compress: Compress, data: memoryview) -> float:
    """Returns the mean time of a call while another thread runs Python without a pause."""
    stop = False

    def run() -> None:
        while not stop:
            pass

    busy = threading.Thread(target=run)
    busy.start()
    try:
        start = time.perf_counter()
        for _ in range(CALLS_BESIDE_PYTHON):
            compress(data)
        return (time.perf_counter() - start) / CALLS_BESIDE_PYTHON
    finally:
        stop = True
        busy.join()


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU time of compressing a batch of JSON records")
    parser.add_argument("--sizes", default="16,64,256", help="batch sizes in KiB (default: %(default)s)")
    parser.add_argument("--seconds", default=0.3, type=float, help="CPU time per row (default: %(default)s)")
    options = parser.parse_args()
    for kib in (int(size) for size in options.sizes.split(",")):
        data = json_records(kib * 1024)
        best = dict.fromkeys(ways(), float("inf"))
        for _ in range(RUNS):
            for name, compress in ways().items():
                best[name] = min(best[name], cpu_seconds(compress, data, options.seconds / RUNS))
        print(f"\nbatch of {kib} KiB {'MB/s':>22} {'us/batch':>9} {'share':>6} {'ms beside Python':>17}")
        for name, compress in ways().items():
            share = len(bytes(memoryview(compress(data)))) / len(data)  # type: ignore[arg-type]
            beside = seconds_beside_python(compress, data) * 1e3
            rate = len(data) / best[name] / 1e6
            print(f"{name:32} {rate:8.0f} {best[name] * 1e6:9.0f} {share:6.3f} {beside:17.1f}")


if __name__ == "__main__":
    main()
