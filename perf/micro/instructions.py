"""What a record costs in instructions of this package's own code, by callgrind: exact enough to see two more.

    python perf/micro/instructions.py

The producer's inside is stepped by hand, on one thread and against a peer that acknowledges at once, so that
batches are the same in every run; seconds and records/s are for ``perf/end_to_end.py``. To compare two
versions, run it in a tree of each. Needs valgrind, and the extensions built in place.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: What is measured: its name, records, batch_size, and records that are sent before the sender steps.
RUNS = (
    ("batches of 131072 bytes", 60_000, 131072, 1000),
    ("batches of 16384 bytes", 60_000, 16384, 1000),
    ("a request for each record", 4_000, 131072, 1),
)
_FUNCTION = re.compile(r"\s*([\d,]+) .*\[(.*)\]$")


def stepped(records: int, batch_size: int, at_once: int) -> None:
    """Sends and acknowledges so many records of 100 bytes."""
    sys.path.insert(0, str(ROOT))
    from tests.reference_records import PartitionResponse, encode_produce_response
    from tests.rig import Rig

    value = bytes(100)
    with Rig({"t": [1]}, batch_size=batch_size) as rig:
        rig.send("t", value)
        rig.answer(rig.requests()[0])
        sock = rig.peers[1].sock
        received = bytearray()
        for _ in range(records // at_once):
            for _ in range(at_once):
                rig.path.send("t", value)
            while rig.accumulator.incomplete_batches:
                rig.step()
                try:
                    while data := sock.recv(1 << 20):
                        received += data
                except BlockingIOError:
                    pass
                while len(received) >= 4 and len(received) >= 4 + int.from_bytes(received[:4], "big"):
                    number = int.from_bytes(received[8:12], "big")
                    del received[: 4 + int.from_bytes(received[:4], "big")]
                    answer = [("t", [PartitionResponse(0, 0, 0, -1)])]
                    sock.sendall(encode_produce_response(rig.produce_version, number, answer))


def own_instructions(arguments: list[str]) -> int:
    """Of one run, in functions of this package's extensions."""
    with tempfile.TemporaryDirectory() as folder:
        counted = Path(folder) / "counted"
        command = [
            "valgrind",
            "--tool=callgrind",
            f"--callgrind-out-file={counted}",
            sys.executable,
            __file__,
        ]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        subprocess.run([*command, *arguments], check=True, capture_output=True, env=environment)
        annotate = ["callgrind_annotate", "--threshold=100", str(counted)]
        text = subprocess.run(annotate, check=True, capture_output=True, text=True).stdout
    found = filter(None, map(_FUNCTION.match, text.splitlines()))
    return sum(int(line[1].replace(",", "")) for line in found if "cyproducer" in line[2])


def main() -> None:
    for name, records, batch_size, at_once in RUNS:
        own = own_instructions([str(records), str(batch_size), str(at_once)])
        print(f"{name:<30}{own / records:10.1f} instructions a record")


if __name__ == "__main__":
    if sys.argv[1:]:
        stepped(*map(int, sys.argv[1:]))
    else:
        main()
