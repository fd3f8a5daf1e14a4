"""The beginning and the end of processes: the hooks into the interpreter and into multiprocessing.

Owns: calling what is to be done in a forked child, and at the end of a process. Does not own: what that is
(``producer.py``, ``network/forking.pyx``).

After ``os.fork()`` the child has a copy of everything but the other threads. They may have held any lock and
may have been in the middle of anything. So the child takes nothing over: it closes its copies of the sockets,
forgets the parent's records, and each producer makes itself new machinery when it is used. A child that uses
none gets no thread. The parent notices nothing.
"""

import atexit
import os
import sys
from collections.abc import Callable
from typing import Any

from cyproducer.buffers.delivery import renew_locks
from cyproducer.network.forking import disown as disown

_begin: Callable[[], None] | None = None
_finish: Callable[[], None] | None = None
_worker_hooked = False


def _after_fork() -> None:
    global _worker_hooked
    # multiprocessing forgets in its children what was to be done at the parent's exit.
    _worker_hooked = False
    renew_locks()
    if _begin is not None:
        _begin()


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
    """Has it called at the end of a multiprocessing child too: such a child leaves by ``os._exit``, without
    ``atexit``. To be called for each machine that starts."""
    util = sys.modules.get("multiprocessing.util")
    # Where that is not imported, this is none of its children.
    if util is None or _worker_hooked:
        return
    _hook_worker(util)
    # A child forgets the hook before it runs what it was made for: also where its arguments, a producer among
    # them, were unpickled before that.
    util.register_after_fork(_hook_worker, lambda hook: hook(util))


def _hook_worker(util: Any) -> None:
    global _worker_hooked
    _worker_hooked = True
    # Any priority means: at the exit. Queues write theirs at -5, after this.
    util.Finalize(None, _finish_worker, exitpriority=10)


def _finish_worker() -> None:
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None and _finish is not None:
        _finish()
