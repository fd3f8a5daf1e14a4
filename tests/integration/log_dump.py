"""Reads a broker's log files with Kafka's DumpLogSegments.

Owns the run of the tool, one for any number of partitions, and the parsing of its output. Checks nothing.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tools.harness.kafka_install import classpath
from tools.harness.kafka_node import java

FIELD = re.compile(r"(\w+): (\S+)")


class DumpedBatch(NamedTuple):
    """One record batch. ``offsets`` are those of its records, in order."""

    base_offset: int
    record_count: int
    codec: str
    size: int
    is_valid: bool
    producer_id: int
    """-1 if the producer is not idempotent, as are the next three."""
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    offsets: list[int]


class DumpedPartition(NamedTuple):
    """All batches of a partition, in order, and the tool's lines about faults."""

    batches: list[DumpedBatch]
    complaints: list[str]

    @property
    def offsets(self) -> list[int]:
        return [offset for batch in self.batches for offset in batch.offsets]


Dump = dict[tuple[str, int], DumpedPartition]
"""Topic and index -> content of the partition."""


def dump_partitions(data: Path, partitions: Iterable[tuple[str, int]], *, deep: bool = True) -> Dump:
    """Dumps partitions (topic, index) of a node's data directory.

    ``deep``: whether to decompress batches. Without it the offsets are missing, but it is much faster.

    Raises:
        FileNotFoundError: The directory has no log of a partition.
        subprocess.CalledProcessError: The tool failed.
    """
    found = {}
    for topic, index in partitions:
        files = sorted((data / f"{topic}-{index}").glob("*.log"))
        if not files:
            raise FileNotFoundError(f"{data} has no log of {topic}-{index}")
        found[topic, index] = files
    command = java(
        classpath(),
        "kafka.tools.DumpLogSegments",
        *(["--deep-iteration"] if deep else []),
        *("--files", ",".join(str(file) for files in found.values() for file in files)),
        options=["-Dlog4j2.level=ERROR"],
    )
    text = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    # Each file's part starts with its name. Complaints come at the end, again with the file's name.
    parts = re.split(r"^Dumping (\S+)\n", text, flags=re.MULTILINE)
    by_file = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {place: _parse([by_file[str(file)] for file in files]) for place, files in found.items()}


def _parse(parts: list[str]) -> DumpedPartition:
    batches: list[DumpedBatch] = []
    complaints: list[str] = []
    for line in "".join(parts).splitlines():
        fields = dict(FIELD.findall(line))
        if line.startswith("baseOffset:"):
            batches.append(
                DumpedBatch(
                    int(fields["baseOffset"]),
                    int(fields["count"]),
                    fields["compresscodec"],
                    int(fields["size"]),
                    fields["isvalid"] == "true",
                    int(fields["producerId"]),
                    int(fields["producerEpoch"]),
                    int(fields["baseSequence"]),
                    int(fields["lastSequence"]),
                    [],
                )
            )
        elif line.startswith("| offset:"):
            batches[-1].offsets.append(int(fields["offset"]))
        elif not line.startswith("Log starting offset:"):
            complaints.append(line)
    return DumpedPartition(batches, complaints)
