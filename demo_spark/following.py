"""Shows what the demo waits for: a progress line, drawn by another thread than the one that works.

Owns the thread. Does not own the progress line (`cyproducer.cli.console`).
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from cyproducer.cli.console import Progress, one_line

T = TypeVar("T")
LOOK_S = 0.2


class FailedError(Exception):
    """A Spark job failed. The message is that of its error."""


@contextlib.contextmanager
def progress(total: int) -> Iterator[Progress]:
    """Shows a progress line on standard error while the block runs. ``total``: as for `Progress`."""
    shown = Progress(sys.stderr, total)
    try:
        yield shown
    finally:
        shown.close()


def follow(work: Callable[[], T], total: int, look: Callable[[float], tuple[int, str]]) -> T:
    """Runs ``work`` on the calling thread, while another thread shows the progress that ``look`` returns.

    ``work`` must run on the main thread: Spark looks up Python data sources in the calling thread's session,
    and only the main thread has one.

    Raises:
        FailedError: ``work`` failed.
    """
    ended = threading.Event()
    began_s = time.monotonic()

    def watch() -> None:
        with progress(total) as shown:
            while not ended.wait(LOOK_S):
                # Errors while showing progress must not fail the run.
                with contextlib.suppress(Exception):
                    shown.update(*look(began_s))

    watcher = threading.Thread(target=watch, name="progress")
    watcher.start()
    try:
        return work()
    except FailedError:
        raise
    except Exception as error:
        # Get the text now: Spark's errors fetch their message from the JVM, which must still be running. Cut
        # off the JVM's stack trace.
        raise FailedError(one_line(error).partition(" at org.apache.spark.")[0]) from None
    finally:
        ended.set()
        watcher.join()
