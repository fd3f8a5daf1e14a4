"""Detects that the process is a forked child, even after a ``fork()`` by C code, and renews what a child must
not share with its parent.

Owns the flag that the process was forked, and the calls of the functions given to ``in_child``, once in each
child. Does not own these functions, which close descriptors and replace locks.

After ``os.fork()``, Python calls the functions as a hook. A ``fork()`` by C code, such as an embedding server
or an extension, runs none of Python's hooks. So a handler of the C library (``pthread_atfork``) sets a flag
in the child, and each public call checks the flag before it touches anything (``own_process``). The first
such call calls the functions. Until then no code of this package runs in the child, which has no other
thread. The handler itself must not do more: the thread that forked possibly does not hold the GIL, and
without the GIL it must not touch Python objects.

The child of a ``fork()`` without the GIL can run Python only if no thread held the GIL at that moment.
Otherwise the child waits for that thread forever. So when the functions run, Python objects are in the same
state as after ``os.fork()``.
"""

import os

from cyproducer.base.sync cimport (
    cyp_load32,
    cyp_mutex_init,
    cyp_store32,
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
    NOTED = 1             # a fork was detected, and nothing is renewed yet
    RENEWING = 2          # a thread is calling the functions

cdef pthread_mutex_t claim_lock       # guards the step from NOTED to RENEWING
cdef unsigned long renewer            # the ident of the thread that made that step, under `claim_lock`
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
    while cyp_load32(&fork_noted):
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
                cyp_store32(&fork_noted, NOTED)
                raise
            # Whoever reads this sees everything renewed.
            cyp_store32(&fork_noted, 0)
        elif renewer == PyThread_get_thread_ident():
            # The caller is one of the functions, or a finalizer that runs meanwhile.
            return 0
        else:
            sleep(0.001)
    return 0


def in_child(renew not None):
    """Registers a function that renews something in each forked child, before the child uses it.

    The functions are called in the order of registration. If one is interrupted, all are called again.
    """
    renewals.append(renew)


def ensure_own_process():
    """``own_process`` for Python code."""
    own_process()


if pthread_atfork(NULL, NULL, note_fork) != 0:
    raise MemoryError("no memory to notice forks")
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ensure_own_process)
