"""Prevents a fork while another thread is in a section that a fork must not interrupt.

Owns two locks. They are made when the package is imported, so the fork hooks that programs register later
run before they are acquired. Such a hook may flush a producer, and the flush may need a thread that waits for
a lock.
"""

from __future__ import annotations

import os

from cyproducer.base.forks import in_child
from cyproducer.base.greenlets import RLock

#: Held while OpenSSL performs a handshake, and during a fork. If the process forked in the middle of a
#: handshake, the child would inherit OpenSSL's own locks in the locked state and could never acquire them.
openssl_lock = RLock()
#: Held while a thread of this package imports modules, and during a fork. If the process forked in the middle
#: of an import, the child would inherit the module's own lock, held by a thread that the child does not have,
#: and every import of that module would wait forever.
import_lock = RLock()


def _renew() -> None:
    global openssl_lock, import_lock
    openssl_lock = RLock()
    import_lock = RLock()


if hasattr(os, "register_at_fork"):
    # One by one: Ctrl-C may interrupt the wait for one of them.
    os.register_at_fork(
        before=lambda: openssl_lock.acquire(),
        after_in_parent=lambda: openssl_lock.release(),
    )
    os.register_at_fork(
        before=lambda: import_lock.acquire(),
        after_in_parent=lambda: import_lock.release(),
    )
in_child(_renew)
