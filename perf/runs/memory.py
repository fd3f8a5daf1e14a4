"""Measures memory during a stream of records: the peak above a bare interpreter, and its course. Linux only.

A thread takes thirty samples per second. Apart from it, only the client and the sending loop run.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from perf.footprint import Memory, peak_bytes
from perf.runs.measuring import FLUSH_S, WARM_UP_S, Args, Figures, Measured, figures, values
from perf.runs.own import producer
from perf.runs.peers import confluent_ready, kafka_python_producer

SAMPLE_S = 1 / 30
POINTS = 300
BARE = (
    "for line in open('/proc/self/status'):\n"
    "    if line.startswith('VmHWM:'): print(int(line.split()[1]) * 1024)"
)
# The memory of the application's data, the values and the modules imported here, is not the client's.


def bare_interpreter_bytes() -> int:
    """Returns the peak memory of an idle interpreter."""
    return int(subprocess.check_output([sys.executable, "-P", "-c", BARE]))


def watched(args: Args, send: Callable[[str, bytes], Any], flush: Callable[[float], Any]) -> Figures:
    """Samples memory while it sends. Drops futures at once, to measure the producer and no list of them."""
    data = values(args.size)
    rounds = max(1, args.records // len(data))
    began = time.perf_counter()
    memory = Memory(lambda: int((time.perf_counter() - began) * 1000), SAMPLE_S)
    memory.start()
    topic = args.topic
    with Measured() as measured:
        for _ in range(rounds):
            for value in data:
                send(topic, value)
        flush(FLUSH_S)
    memory.stop()
    above = (peak_bytes() - bare_interpreter_bytes()) / 1e6
    course = [[at / 1000, resident / 1e6] for at, resident, *_ in memory.course(POINTS)]
    return figures(measured, rounds * len(data), above_interpreter_mb=above, course=course)


def own(args: Args) -> Figures:
    with producer(args) as it:
        it.send(args.topic, b"value").get(WARM_UP_S)
        buffer_mb = it.config.buffer_memory / 1e6
        found = watched(args, it.send, it.flush)
    return {**found, "above_buffer_mb": found["above_interpreter_mb"] - buffer_mb}


def confluent(args: Args) -> Figures:
    """Sends without callbacks."""
    it, produce = confluent_ready(args, [b"value"])
    return watched(args, produce, it.flush)


def kafka_python(args: Args) -> Figures:
    it = kafka_python_producer(args)
    it.send(args.topic, b"value").get(WARM_UP_S)
    found = watched(args, it.send, it.flush)
    it.close()
    return found
