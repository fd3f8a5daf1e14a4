"""A driver that the demo kills: streams lines to Kafka, from its checkpoint on, and ends.

A program of its own, with a Spark of its own. `killing` starts it, in a process group of its own, and says by
environment variables where it is held (`held`). Its main thread writes; another one ends the process group
when the demo is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from demo_spark import checking, held, pipeline, session


def _end_with_parent() -> None:
    """Ends this process and its JVM when nobody holds the other end of standard input any more."""
    # Without Python's buffer, whose lock the interpreter needs when it ends.
    os.read(sys.stdin.fileno(), 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main(source: str, directory: str, bootstrap: str, topic: str, compression: str, delivery: str) -> None:
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    options = pipeline.sink_options(bootstrap, topic, compression)
    if delivery == checking.EXACTLY_ONCE:
        options |= pipeline.exactly_once(topic)
    else:
        options["summaryCallback"] = held.CALLBACK
    with session.local_spark(Path(directory)) as spark:
        spark.dataSource.register(held.HeldSource)
        checkpoint = Path(directory) / "checkpoint"
        pipeline.write_stream(spark, Path(source), checkpoint, options, held.FORMAT)


if __name__ == "__main__":
    main(*sys.argv[1:])
