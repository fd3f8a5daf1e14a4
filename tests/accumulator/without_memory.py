"""A program that moves parked records to their partition while single allocations fail, each in turn.

``test_without_memory`` runs it in a process that has ``refuse_memory.c`` preloaded.
"""

import ctypes
import gc
import logging
from typing import Any

from tools.harness.rig import Rig

RECORDS = 30

refuse_memory = ctypes.CDLL(None).refuse_memory
refuse_memory.argtypes = [ctypes.c_long, ctypes.c_long]
refuse_memory.restype = ctypes.c_long


def move(allocations: int, refuse: int, codec: str | None) -> tuple[int, int]:
    """Moves the records while the ``refuse`` allocations after the first ``allocations`` fail.

    Returns how many allocations and how many records failed.
    """
    called: list[tuple[int, Any]] = []
    with Rig(batch_size=200, compressor=codec) as rig:
        futures = [rig.send("t", b"%d" % i) for i in range(RECORDS)]
        for i, future in enumerate(futures):
            future.add_both(lambda outcome, i=i: called.append((i, outcome)))
        refuse_memory(allocations, refuse)
        try:
            rig.sender.apply_topic("t", b"", [1])
        except MemoryError:
            assert rig.accumulator.parked_records == RECORDS, "it raised half-way"
        left = refuse_memory(0, 0)
        # The next metadata. Nothing is left to be moved unless the first call raised.
        rig.sender.apply_topic("t", b"", [1])
        rig.answer_all()
        rig.run_callbacks()

        assert all(future.is_done for future in futures)
        assert sorted(i for i, _ in called) == list(range(RECORDS))
        lost = {i for i, outcome in called if isinstance(outcome, MemoryError)}
        told = [(i, outcome.offset) for i, outcome in called if i not in lost]
        assert told == [(i, offset) for offset, i in enumerate(i for i in range(RECORDS) if i not in lost)]
        assert rig.values("t") == [b"%d" % i for i, _ in told]
        assert rig.accumulator.counters()["records_failed"] == len(lost)
        assert rig.pool.used_bytes == 0
        assert (rig.accumulator.parked_records, rig.accumulator.incomplete_batches) == (0, 0)
    return refuse - left, len(lost)


class Lines(logging.Handler):
    """Keeps the log's lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def main() -> None:
    log = Lines()
    logging.getLogger("cyproducer").addHandler(log)
    # Allocations of a garbage collection must not be counted.
    gc.disable()
    for codec in (None, "gzip"):
        assert move(0, 0, codec) == (0, 0)
        outcomes: list[tuple[int, int]] = []
        while (outcome := move(len(outcomes), 1, codec))[0]:
            outcomes.append(outcome)
        # Before the first record moves, the call raises and changes nothing. Then a failure costs a record.
        lost = [records for _, records in outcomes]
        assert set(lost) == {0, 1}
        assert move(lost.index(1), 10_000, codec)[1] == RECORDS
    # A batch for whose compressed copy there is no memory is sent as it is.
    assert all(line.startswith("no memory to compress a batch of ") for line in log.lines), log.lines
    print("nothing is lost")
