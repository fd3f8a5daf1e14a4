"""Processes that come and go: what a fork does to producers, and what the end of a process does.

Owns: the list of what there is, and the hooks into the interpreter and multiprocessing. Does not own: how a
producer lets go of its machinery (``producer.py``, ``network/forking.pyx``).

After ``os.fork()`` the child has a copy of everything but the other threads. They may have held any lock and
may have been in the middle of anything. So the child takes nothing over: it closes its copies of the sockets,
forgets the parent's records, and each producer makes itself new machinery when it is used. A child that uses
none gets no thread. The parent notices nothing.
"""

import atexit
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet

from cyproducer.buffers.delivery import renew_locks
from cyproducer.network.forking import disown as disown

log = logging.getLogger("cyproducer")


class Machine(Protocol):
    """What a producer runs on."""

    def disown(self) -> None:
        """Lets go of what is the parent's; in the child."""


class Forkable(Protocol):
    """A producer."""

    def _forked(self) -> None:
        """Forgets its machine; in the child, after all machines."""


machines: WeakSet[Machine] = WeakSet()
"""Also those whose producer is being collected just now, in a thread that the child has not got."""
producers: WeakSet[Forkable] = WeakSet()

_finish: Callable[[], None] | None = None
_worker_hooked = False


def _in_child() -> None:
    global _worker_hooked
    # multiprocessing forgets in its children what was to be done at the parent's exit.
    _worker_hooked = False
    renew_locks()
    for producer in list(producers):
        producer._forked()
    for machine in list(machines):
        machine.disown()
        machines.discard(machine)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


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
