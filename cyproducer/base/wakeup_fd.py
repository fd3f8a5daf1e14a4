"""Descriptors with which one thread announces something to a loop that watches another thread's descriptors.

Owns making them. Any thread may call ``channel``.
"""

import os


def channel() -> tuple[int, int]:
    """Makes non-blocking descriptors: (read from, write to), maybe the same."""
    if hasattr(os, "eventfd"):
        fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return fd, fd
    fds = os.pipe()
    for fd in fds:
        os.set_blocking(fd, False)
    return fds
