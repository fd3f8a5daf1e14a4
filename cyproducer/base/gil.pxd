"""Lets other Python threads run in the middle of a long loop in C.

The interpreter switches threads only between bytecodes, so a loop in C holds the GIL until its end.
"""

from libc.stdint cimport int64_t
from posix.time cimport nanosleep, timespec

from cyproducer.base.sync cimport cyp_monotonic_ns

cdef enum:
    HOLD_NS = 1_000_000       # how long the GIL is held without a pause
    MOMENT_NS = 20_000        # the length of the pause, in which other threads can take the GIL


cdef inline int let_others_run(int64_t* since_ns) except -1:
    """Releases the GIL for a moment if it has been held for HOLD_NS since ``since_ns``, and then updates
    ``since_ns``.

    Releasing the GIL without a pause is not enough: this thread would reacquire it before a waiting thread
    wakes up.
    """
    cdef timespec moment
    if cyp_monotonic_ns() - since_ns[0] >= HOLD_NS:
        moment.tv_sec = 0
        moment.tv_nsec = MOMENT_NS
        with nogil:
            nanosleep(&moment, NULL)
        since_ns[0] = cyp_monotonic_ns()
    return 0
