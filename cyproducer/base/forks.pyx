"""Detects in a forked child that it is one, even after a ``fork()`` by C code, and renews what it must not
share.

Owns the note that the process was forked, and calling the functions given to ``in_child`` once in each child.
Does not own these functions, which close descriptors and replace locks.

After ``os.fork()`` Python calls them as a hook. A ``fork()`` by C code, such as an embedding server or an
extension, runs no hook of Python's. So a handler of the C library (``pthread_atfork``) leaves a note in the
child, and each public call looks at it before it touches anything (``own_process``): the first one calls the
functions. Until then nothing of this package runs in the child, which has no other thread. The handler itself
must not do more: the thread that forked may not hold the GIL, and then Python objects may not be touched.

The child of a ``fork()`` without the GIL can run Python only if no thread held the GIL at that moment, or it
waits for that thread forever. So the functions find Python objects as they find them after ``os.fork()``.
"""

import os

from cyproducer.base.sync cimport (
    cyp_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
)

from cyproducer.base.unpatched import sleep

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*prepare)() noexcept, void (*parent)() noexcept, void (*child)() noexcept)

cdef extern from "<Python.h>":
    unsigned long PyThread_get_thread_ident() nogil

cdef enum:
    NOTED = 1             # a fork was noted, and nothing was renewed
    RENEWING = 2          # a thread calls the functions

cdef pthread_mutex_t claim_lock       # guards the step from NOTED to RENEWING
cdef unsigned long renewer            # the ident of the thread that took it
cdef list renewals = []
borrowing = 1
cyp_mutex_init(&claim_lock)


cdef void note_fork() noexcept nogil:
    """Runs in each child of ``fork()``, on its only thread, with or without the GIL."""
    global fork_noted, process, borrowing
    cyp_mutex_init(&claim_lock)
    fork_noted = NOTED
    process += 1
    borrowing += 1


cdef int renew_all() except -1:
    """Calls the functions, or waits while another thread does."""
    global fork_noted, renewer
    cdef bint mine
    while fork_noted:
        pthread_mutex_lock(&claim_lock)
        mine = fork_noted == NOTED
        if mine:
            fork_noted = RENEWING
            renewer = PyThread_get_thread_ident()
        pthread_mutex_unlock(&claim_lock)
        if mine:
            try:
                for renew in list(renewals):
                    renew()
            except BaseException:
                # Ctrl-C, for example. The next call begins again.
                fork_noted = NOTED
                raise
            fork_noted = 0
        elif renewer == PyThread_get_thread_ident():
            # One of the functions, or a finalizer that runs meanwhile.
            return 0
        else:
            sleep(0.001)
    return 0


def in_child(renew not None):
    """Registers a function that renews something in each forked child, before the child uses it.

    The functions are called in the order of registration, and again from the first one if one is interrupted.
    """
    renewals.append(renew)


def ensure_own_process():
    """``own_process`` for Python code."""
    own_process()


if pthread_atfork(NULL, NULL, note_fork) != 0:
    raise MemoryError("no memory to notice forks")
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ensure_own_process)
