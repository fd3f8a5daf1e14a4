"""Runs callbacks on a separate thread.

Owns one daemon thread per producer, started with the first callback. Does not own the callbacks
(``futures/delivery``) or their queue (``futures/completion``).

Callbacks need their own thread: the sender works without the GIL, and would have to wait for it, 5 ms next to
a busy ``send()`` loop, for every batch with a callback; and a slow callback would stop the sender.
"""

import logging
import threading
import time

from cyproducer.base.durations import waitable
from cyproducer.futures.completion import CompletionQueue

log = logging.getLogger("cyproducer")


class CallbackThread:
    """Runs callbacks in order of completion. ``start`` may be called from any thread, once."""

    def __init__(self, name: str, most: int = 100_000) -> None:
        """
        Args:
            name: the name of the thread.
            most: how many records may wait for their callbacks before ``send()`` blocks.
        """
        self.queue = CompletionQueue(self.start, most)
        self._name = name
        self._thread: threading.Thread | None = None
        self._runs = threading.Event()

    def start(self) -> None:
        """Starts the callback thread.

        Raises:
            RuntimeError: the system cannot start another thread.
        """
        # Set before the thread runs: a callback may call is_current().
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._thread = None
            raise

    def _run(self) -> None:
        self._runs.set()
        while True:
            try:
                if self.queue.run_next(3600.0) is None:
                    return
            except Exception:
                log.exception("running callbacks failed; continuing with the next batch")

    def is_current(self) -> bool:
        """Whether the calling thread is the callback thread."""
        return threading.current_thread() is self._thread

    def wait_idle(self, timeout_s: float) -> bool:
        """Waits until the callbacks of all batches completed so far have run; False on timeout."""
        return self.queue.wait_idle(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Ends the thread after the pending callbacks, waiting up to ``timeout_s`` seconds for them."""
        deadline = time.monotonic() + timeout_s
        self.queue.close()
        thread = self._thread
        # Another thread may be starting it right now, with the first callback: then it cannot be joined yet.
        if thread is not None and not self.is_current() and self._runs.wait(waitable(timeout_s)):
            thread.join(waitable(max(0.0, deadline - time.monotonic())))
