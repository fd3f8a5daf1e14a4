"""Runs callbacks on a separate thread.

Owns one daemon thread per producer, started with the first callback. Does not own the callbacks
(``futures/delivery``) or their queue (``futures/completion``).

Callbacks need their own thread. The sender works without the GIL: for every batch with a callback, it would
have to wait for the GIL, 5 ms next to a busy ``send()`` loop. And a slow callback would block the sender.
"""

from __future__ import annotations

import logging
import threading

from cyproducer.base.clock import monotonic_s
from cyproducer.base.durations import waitable
from cyproducer.base.greenlets import Event
from cyproducer.base.threads import SystemThread, new_thread
from cyproducer.base.unpatched import get_ident
from cyproducer.futures.completion import CompletionQueue

log = logging.getLogger("cyproducer")


class CallbackThread:
    """Runs callbacks in order of completion. ``start`` can be called once, from any thread."""

    def __init__(self, name: str, most: int = 100_000) -> None:
        """
        Args:
            name: the name of the thread.
            most: how many records can wait for their callbacks before ``send()`` blocks.
        """
        self.queue = CompletionQueue(self.start, most)
        self._name = name
        self._ident = 0
        self._thread: threading.Thread | SystemThread | None = None
        self._runs = Event()
        self._ended = Event()

    def start(self) -> None:
        """Starts the callback thread.

        Raises:
            RuntimeError: the system cannot start another thread.
        """
        self._thread = new_thread(self._run, self._name)
        try:
            self._thread.start()
        except BaseException:
            self._thread = None
            raise

    def _run(self) -> None:
        self._ident = get_ident()
        self._runs.set()
        try:
            self._run_callbacks()
        finally:
            # The system reuses thread identifiers.
            self._ident = 0
            self._ended.set()

    def _run_callbacks(self) -> None:
        while True:
            try:
                if self.queue.run_next(3600.0) is None:
                    return
            except Exception:
                log.exception("running callbacks failed; continuing with the next batch")

    @property
    def started(self) -> bool:
        """Whether a callback was ever registered."""
        return self._thread is not None

    def is_current(self) -> bool:
        """Whether the calling thread is the callback thread."""
        return self._ident == get_ident()

    def wait_idle(self, timeout_s: float) -> bool:
        """Waits until the callbacks of all batches completed so far have run; False on timeout."""
        return self.queue.wait_idle(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Ends the thread after the pending callbacks, waiting up to ``timeout_s`` seconds for them."""
        deadline = monotonic_s() + timeout_s
        self.queue.close()
        thread = self._thread
        # Another thread may be starting it right now, with the first callback: then it cannot be joined yet.
        if thread is not None and not self.is_current() and self._runs.wait(waitable(timeout_s)):
            left = waitable(max(0.0, deadline - monotonic_s()))
            # The caller may be a greenlet, which can wait for this event. join() then takes no time.
            if self._ended.wait(left):
                thread.join(left)
