"""Keeps forks out of what another thread must not be in the middle of.

Owns one lock. It is made when the package is imported, so that fork hooks which programs register later run
before it is taken: a hook that flushes a producer may need a thread that waits for this lock.
"""

import os

from cyproducer.base.forks import in_child
from cyproducer.base.greenlets import RLock

#: Held while OpenSSL works on a handshake, and during a fork. The child of a fork in the middle of a
#: handshake would inherit OpenSSL's own locks as they are, and never get them.
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
