"""Which thread runs the send loop: the sender's own, or a thread that waits for its record.

Owns: handing the loop over, under ``Sender.loop_lock``. Does not own: what a step does (``sender``).

A round trip of ``send().get()`` costs two switches between threads where the sender does it, one to it and
one back. So after some records that came one by one, each waited for in ``get()``, the sender's thread
*stands by*: it gives up the turn. The waiting thread takes it, sends, waits for the answer and reads it:

    waiting thread                             sender's thread
                                               the last batch is complete, its thread waited
                                               STANDING_BY; gives up the turn, looks each millisecond
    send(): appends, LEFT_ALONE, wakes nobody
    get(): takes the turn, step, step ...
    complete: STANDING_BY again
    gives the turn back

What a record may lose by it, where nobody waits for it after all, is that millisecond, once: the sender takes
over, and is slower to stand by again. It takes over at once where a second batch is begun, where anything is
left when the waiting thread has what it waited for, and where there is something to decide: errors,
connections, timers. None of that is done on an application's thread, where Ctrl-C may break in wherever
Python code runs. The turn is given back in any case: by ``finally``, and at ``until``, which is 50 ms away at
most, since ``get()`` has to look for Ctrl-C.
"""

from libc.stdint cimport int32_t, int64_t

from cyproducer.accumulator.structures cimport LEFT_ALONE, STANDING_BY, Accumulator
from cyproducer.base.sync cimport (
    FAR_NS,
    cyp_add32,
    cyp_load32,
    cyp_monotonic_ns,
    cyp_store32,
    pthread_mutex_t,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)
from cyproducer.network.sender cimport Sender
from cyproducer.network.waker cimport wake_sender

cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_trylock(pthread_mutex_t* mutex)

cdef extern from "polling.h" nogil:
    int cyp_await_readable(int fd, int ms)

cdef enum:
    ENOUGH = 2                # lone records in a row, waited for, until the sender stands by
    TOO_MANY = -16            # where it begins to count again after one that nobody waited for
    LOOK_MS = 1               # how often it looks while it stands by


cdef int run_until_stopped(Sender sender) except -1:
    """Runs the sender's thread: step after step until ``Sender.stop()``. See ``Sender.run``."""
    cdef bint left_alone = False
    sender.accumulator.completions.lend(sender, drive)
    try:
        with nogil:
            while not cyp_load32(&sender.stopping):
                pthread_mutex_lock(&sender.loop_lock)
                if left_alone:
                    sender.left_alone += 1
                    sender.lone = TOO_MANY
                try:
                    sender.step(FAR_NS)
                finally:
                    pthread_mutex_unlock(&sender.loop_lock)
                left_alone = sender.lone >= ENOUGH and stand_by(sender)
    finally:
        sender.accumulator.completions.take_back()
        # Whoever drives has seen `stopping`, or will soon; nobody begins any more.
        with nogil:
            pthread_mutex_lock(&sender.loop_lock)
            pthread_mutex_unlock(&sender.loop_lock)
    return 0


cdef bint note_standing_by(Sender sender) noexcept nogil:
    """Notes STANDING_BY, if there is no work. One critical section, as in ``sleep_until``."""
    cdef Accumulator* a = &sender.accumulator.c
    cdef bint idle
    pthread_mutex_lock(&a.lock)
    idle = a.oldest == NULL and a.parked == 0
    if idle:
        # Nor does a batch wake it that only begins to linger.
        a.sleeping_until_ns = 0
        cyp_store32(&a.sleeping, STANDING_BY)
    pthread_mutex_unlock(&a.lock)
    return idle and not cyp_load32(&sender.attention)


cdef bint stand_by(Sender sender) except -1 nogil:
    """Leaves the turn to waiting threads for as long as they come; whether a record was left alone."""
    cdef int32_t seen
    # Codecs, and selectors other than epoll, need the GIL.
    if sender.accumulator.c.codec != 0 or sender.poller.epoll_fd < 0:
        return False
    if not note_standing_by(sender):
        return False
    cyp_store32(&sender.standing_by, 1)
    while True:
        seen = cyp_load32(&sender.drives)
        if cyp_await_readable(sender.wake_read_fd, LOOK_MS) or cyp_load32(&sender.stopping):
            break
        if sender.clock.now_ns() >= sender.next_control_ns:
            break
        if cyp_load32(&sender.drives) == seen and not cyp_load32(&sender.driven):
            break
    cyp_store32(&sender.standing_by, 0)
    return cyp_load32(&sender.accumulator.c.sleeping) == LEFT_ALONE


cdef int drive(void* context, const int32_t* state, int64_t until) except -1 nogil:
    """Runs the loop on a thread that waits for a record: a ``DriveFunction`` (``futures/delivery.pxd``)."""
    return drive_loop(<Sender>context, state, until)


cdef bint drive_loop(Sender sender, const int32_t* state, int64_t until) except -1 nogil:
    """Steps until ``state`` is not 0, or the monotonic time ``until`` (ns); False if another thread does."""
    cdef int64_t left
    cdef bint idle
    if not cyp_load32(&sender.standing_by) or pthread_mutex_trylock(&sender.loop_lock) != 0:
        return False
    # Under the lock it counts: the sender may be back, or be at its end.
    if not cyp_load32(&sender.standing_by):
        pthread_mutex_unlock(&sender.loop_lock)
        return False
    cyp_store32(&sender.driven, 1)
    try:
        while not (cyp_load32(state) or sender.deferred or cyp_load32(&sender.stopping)):
            left = until - cyp_monotonic_ns()
            if left <= 0:
                break
            sender.step(left)
    finally:
        cyp_add32(&sender.drives, 1)
        cyp_store32(&sender.driven, 0)
        idle = not sender.deferred and note_standing_by(sender)
        # Before the turn is given back: the sender could come to its end then, and close the descriptor.
        if not idle:
            wake_sender(&sender.waker)
        pthread_mutex_unlock(&sender.loop_lock)
    return True
