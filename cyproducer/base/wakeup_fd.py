"""File descriptors with which one thread wakes a loop that runs in another thread and watches them.

Owns making them. Any thread may call ``channel``.
"""

from __future__ import annotations

import os


def channel() -> tuple[int, int]:
    """Makes non-blocking descriptors: (to read from, to write to), possibly the same one."""
    if hasattr(os, "eventfd"):
        fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return fd, fd
    fds = os.pipe()
    for fd in fds:
        os.set_blocking(fd, False)
    return fds
