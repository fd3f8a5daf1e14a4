"""Prevents a fork while another thread is in a section that a fork must not interrupt.

Owns one lock. The lock is made when the package is imported, so the fork hooks that programs register later
run before it is acquired. Such a hook may flush a producer, and the flush may need a thread that waits for
this lock.
"""

import os

from cyproducer.base.forks import in_child
from cyproducer.base.greenlets import RLock

#: Held while OpenSSL performs a handshake, and during a fork. If the process forked in the middle of a
#: handshake, the child would inherit OpenSSL's own locks in the locked state and could never acquire them.
openssl_lock = RLock()


def _renew() -> None:
    global openssl_lock
    openssl_lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: openssl_lock.acquire(),
        after_in_parent=lambda: openssl_lock.release(),
    )
in_child(_renew)
