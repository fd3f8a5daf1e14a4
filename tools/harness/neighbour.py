"""A thread that shows for how long others keep the GIL from it."""

from __future__ import annotations

import threading
import time
from typing import Self


class Neighbour:
    """A thread that always wants the GIL, and measures the longest time without it."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.ended = False
        self.begun = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        last = time.perf_counter()
        self.begun.set()
        while not self.ended:
            # Releases the GIL and wants it back.
            time.sleep(0)
            now = time.perf_counter()
            self.longest = max(self.longest, now - last)
            last = now

    def __enter__(self) -> Self:
        self.thread.start()
        self.begun.wait()
        return self

    def __exit__(self, *raised: object) -> None:
        self.ended = True
        self.thread.join()
