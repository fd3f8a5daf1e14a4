"""The thread that runs callbacks.

Owns: one daemon thread a producer, started with the first callback. Does not own: which callbacks there
are (``futures/delivery``).

Why a thread of its own: the sender works without the GIL and would have to wait for it, 5 ms behind a busy
``send()`` loop, at every batch with a callback; and a callback that takes its time would stop sending.
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
            name: the thread's.
            most: how many records may wait for their callbacks before ``send()`` waits.
        """
        self.queue = CompletionQueue(self.start, most)
        self._name = name
        self._thread: threading.Thread | None = None
        self._runs = threading.Event()

    def start(self) -> None:
        """Begins to run callbacks.

        Raises:
            RuntimeError: the system gives no more threads.
        """
        # Known before it runs: a callback asks whether it is the caller.
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
                log.exception("running callbacks failed; going on with the next batch")

    def is_current(self) -> bool:
        """Whether the caller is a callback."""
        return threading.current_thread() is self._thread

    def wait_idle(self, timeout_s: float) -> bool:
        """Waits until the callbacks of everything completed so far have run; False when the time ran out."""
        return self.queue.wait_idle(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Ends the thread after the callbacks that are due, waiting up to ``timeout_s`` seconds for them."""
        deadline = time.monotonic() + timeout_s
        self.queue.close()
        thread = self._thread
        # Another thread may be starting it at this moment, with the first callback: too early to be joined.
        if thread is not None and not self.is_current() and self._runs.wait(waitable(timeout_s)):
            thread.join(waitable(max(0.0, deadline - time.monotonic())))
