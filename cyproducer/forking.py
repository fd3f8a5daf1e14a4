"""The beginning and the end of processes: the hooks into the interpreter, into multiprocessing and billiard.

Owns: calling what is to be done in a forked child, and at the end of a process. Does not own: what that is
(``producer.py``, ``network/after_fork.pyx``).

After ``os.fork()`` the child has a copy of everything but the other threads. They may have held any lock and
may have been in the middle of anything. So the child takes nothing over: it closes its copies of the sockets,
forgets the parent's records, and each producer makes itself new runtime when it is used. A child that uses
none gets no thread. The parent notices nothing.

billiard is Celery's multiprocessing. It shares the original's finalizers and its current process, so what is
hooked there serves both. Neither is imported from here: a process that has not done so is no child of theirs.
"""

import atexit
import os
import sys
from collections.abc import Callable
from typing import Any

from cyproducer.futures import delivery, waiting
from cyproducer.network.after_fork import disown as disown
from cyproducer.user_thread import user_thread

_begin: Callable[[], None] | None = None
_finish: Callable[[], None] | None = None
_worker_hooked = False
_children_hooked = False


def _after_fork() -> None:
    global _worker_hooked
    # multiprocessing forgets in its children what was to be done at the parent's exit.
    _worker_hooked = False
    user_thread.renew()
    delivery.renew_lock()
    waiting.renew_locks()
    if _begin is not None:
        _begin()
    # The child may need it too late to hook itself: in what it calls when it leaves.
    _hook_children()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def in_child(begin: Callable[[], None]) -> None:
    """Has ``begin`` called in each forked child before anything else of the child's; once."""
    global _begin
    _begin = begin


def at_exit(finish: Callable[[], None]) -> None:
    """Has ``finish`` called at the end of the process; once, when the package is imported."""
    global _finish
    _finish = finish
    atexit.register(finish)


def watch_worker_exit() -> None:
    """Has it called at the end of a child of multiprocessing or billiard too: such a child leaves by
    ``os._exit``, without ``atexit``. To be called for each machine that starts."""
    util = sys.modules.get("multiprocessing.util")
    # Where that is not imported, this is none of its children.
    if util is not None and not _worker_hooked:
        _hook_worker(util)
        _hook_children()


def _hook_children() -> None:
    """Has children hooked once they have forgotten the parent's hooks. They forget them before they run what
    they were made for: also where their arguments, a producer among them, were unpickled before that."""
    global _children_hooked
    util = sys.modules.get("multiprocessing.util")
    if util is not None and not _children_hooked:
        _children_hooked = True
        util.register_after_fork(_hook_worker, lambda hook: hook(util))


def _hook_worker(util: Any) -> None:
    global _worker_hooked
    _worker_hooked = True
    # Any priority means: at the exit. Queues write theirs at -5, after this.
    util.Finalize(None, _finish_worker, exitpriority=10)
    worker, pool = getattr(_current_process(), "_target", None), sys.modules.get("billiard.pool")
    # Such a worker leaves in the middle of what its process runs, before any finalizer.
    if pool is not None and isinstance(worker, pool.Worker):
        worker.on_exit = _PoolWorkerExit(worker.on_exit)


class _PoolWorkerExit:
    """A pool worker's last call but one: first what it was to do then (in Celery, ``worker_process_shutdown``
    to its receivers, which may send), then the end of the producers."""

    def __init__(self, before: Callable[[int, int], object] | None) -> None:
        self._before = before

    def __call__(self, pid: int, exitcode: int) -> None:
        try:
            if self._before is not None:
                self._before(pid, exitcode)
        finally:
            _finish_worker()


def _finish_worker() -> None:
    # The main process has an ``atexit``, and is not to lose its producers to a finalizer before its turn.
    if getattr(_current_process(), "_parent_pid", None) is not None and _finish is not None:
        _finish()


def _current_process() -> Any:
    process = sys.modules.get("multiprocessing.process")
    return process and process.current_process()
