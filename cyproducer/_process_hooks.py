"""Hooks into the start and the end of processes: of the interpreter, multiprocessing and billiard.

Owns calling the given functions in a forked child and at the end of a process. Does not own these functions
(``producer.py``, ``sender/after_fork.pyx``).

After a fork the child has a copy of everything except the other threads. Those may have held any lock and may
have been in the middle of any operation. So the child reuses nothing: it closes its copies of the sockets and
forgets the parent's records, and each producer makes a new runtime on first use. A child that uses no
producer gets no thread. The parent is not affected. ``base/forks.pyx`` describes when the child does this.

billiard is Celery's multiprocessing. It shares multiprocessing's finalizers and its current process, so one
hook serves both. This module imports neither: a process that has not imported them is not their child.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from typing import Any

from cyproducer.base import forks, greenlets
from cyproducer.base.user_thread import user_thread
from cyproducer.futures import delivery, waiting
from cyproducer.sender.after_fork import disown as disown

_begin: Callable[[], None] | None = None
_finish: Callable[[], None] | None = None
_worker_hooked = False
_children_hooked = False


def _after_fork() -> None:
    global _worker_hooked
    # In its children, multiprocessing forgets what the parent registered for its exit.
    _worker_hooked = False
    user_thread.renew()
    delivery.renew_lock()
    waiting.renew_locks()
    greenlets.renew()
    if _begin is not None:
        _begin()
    # A child that first uses a producer in a function called at its exit would install the hook too late.
    _hook_children()


forks.in_child(_after_fork)


def in_child(begin: Callable[[], None]) -> None:
    """Registers ``begin``, called in each forked child before it uses anything of the parent's. Call once."""
    global _begin
    _begin = begin


def at_exit(finish: Callable[[], None]) -> None:
    """Registers ``finish``, called at the end of the process. Call once, when the package is imported."""
    global _finish
    _finish = finish
    atexit.register(finish)


def watch_worker_exit() -> None:
    """Also calls the ``at_exit`` function at the end of a child of multiprocessing or billiard, which leaves
    by ``os._exit``, without ``atexit``. Call it for each runtime that starts."""
    util = sys.modules.get("multiprocessing.util")
    # If that is not imported, this process is not a child of either.
    if util is not None and not _worker_hooked:
        _hook_worker(util)
        _hook_children()


def _hook_children() -> None:
    """Hooks children after they have forgotten the parent's hooks. A child forgets these before it runs its
    target, even if its arguments, including a producer, were unpickled before that."""
    global _children_hooked
    util = sys.modules.get("multiprocessing.util")
    if util is not None and not _children_hooked:
        _children_hooked = True
        util.register_after_fork(_hook_worker, lambda hook: hook(util))


def _hook_worker(util: Any) -> None:
    global _worker_hooked
    _worker_hooked = True
    # With any priority, the finalizer runs at exit. Queues flush their items at priority -5, after this.
    util.Finalize(None, _finish_worker, exitpriority=10)
    worker, pool = getattr(_current_process(), "_target", None), sys.modules.get("billiard.pool")
    # A billiard worker exits in the middle of what its process runs, before any finalizer.
    if pool is not None and isinstance(worker, pool.Worker):
        worker.on_exit = _PoolWorkerExit(worker.on_exit)


class _PoolWorkerExit:
    """A pool worker's ``on_exit``: calls the worker's own first (in Celery, that sends
    ``worker_process_shutdown`` to its receivers, which may send records), then closes the producers."""

    def __init__(self, before: Callable[[int, int], object] | None) -> None:
        self._before = before

    def __call__(self, pid: int, exitcode: int) -> None:
        try:
            if self._before is not None:
                self._before(pid, exitcode)
        finally:
            _finish_worker()


def _finish_worker() -> None:
    # The main process has an ``atexit``, and a finalizer must not close its producers earlier than that.
    if getattr(_current_process(), "_parent_pid", None) is not None and _finish is not None:
        _finish()


def _current_process() -> Any:
    process = sys.modules.get("multiprocessing.process")
    return process and process.current_process()
