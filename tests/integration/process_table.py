"""Lists the processes of this machine from Linux's ``/proc``, to check that processes have ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tools.harness.until import looks

GONE_S = 60.0


class ProcessInfo(NamedTuple):
    """Data of a process from ``/proc``."""

    pid: int
    parent: int
    session: int
    command: str
    state: str
    """The letter of ``/proc``: "T" if it was stopped by a signal."""


def processes() -> list[ProcessInfo]:
    """Returns all processes except zombies."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            state, parent, _, session = (
                Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split(maxsplit=4)[:4]
            )
            command = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if state != "Z":
                found.append(ProcessInfo(int(name), int(parent), int(session), command, state))
    return found


def below(root: int) -> list[ProcessInfo]:
    """Returns all descendants of a process."""
    running = processes()
    found: list[ProcessInfo] = []
    parents = {root}
    while parents:
        children = [each for each in running if each.parent in parents]
        found += children
        parents = {each.pid for each in children}
    return found


def until_gone(pids: set[int], what: str, patience_s: float = GONE_S) -> None:
    """Waits until none of the processes runs. After ``patience_s``, kills the remaining ones and fails."""
    until_none(lambda: [each for each in processes() if each.pid in pids], what, patience_s)


def until_none(find: Callable[[], list[ProcessInfo]], what: str, patience_s: float = GONE_S) -> None:
    """Does the same until ``find`` returns no process."""
    left: list[ProcessInfo] = []
    for _ in looks(patience_s):
        if not (left := find()):
            return
    for each in left:
        with suppress(ProcessLookupError):
            os.kill(each.pid, signal.SIGKILL)
    raise AssertionError(f"{what} still there after {patience_s:.0f} s: {left}")


def of_session(leader: int) -> list[ProcessInfo]:
    """Returns all processes that a program has started, even if their parent is gone: none leaves the
    session."""
    return [each for each in processes() if each.session == leader]
