"""Decides which thread runs the sender loop: the sender thread, or a thread that waits for its record.

Owns handing the loop over, under ``Sender.loop_lock``. Does not own the step itself (``sender``).

If the sender thread performs the round trip of ``send().get()``, the round trip costs two thread switches:
one to the sender thread and one back. So after several single records, each of which a thread waited for in
``get()``, the sender thread *stands by*: it releases the loop lock. The waiting thread takes the lock, sends,
waits for the response and reads it:

    waiting thread                             sender thread
                                               the last batch is complete, a thread waited for it
                                               STANDING_BY; releases the loop lock, checks every millisecond
    send(): appends, LEFT_ALONE, no wake-up
    get(): takes the loop lock, step, step ...
    batch complete: STANDING_BY again
    releases the loop lock

If no thread waits for a record after all, that record is delayed by at most this millisecond, once: the
sender thread takes over, and then stands by again only after a longer series of such records. It takes over
immediately if a second batch is created, if any work is left when the waiting thread's record is complete, or
if a decision is needed: errors, connections, timers. Decisions never run on an application thread, where
Ctrl-C can interrupt any Python code. The waiting thread always releases the loop lock: in a ``finally``, and
at the time ``until``, which is at most 50 ms away, because ``get()`` has to check for Ctrl-C.
"""

from libc.stdint cimport int32_t, int64_t

from cyproducer.accumulator.structures cimport LEFT_ALONE, STANDING_BY, Accumulator
from cyproducer.base.sync cimport (
    FAR_NS,
    cyp_add32,
    cyp_change64,
    cyp_load32,
    cyp_monotonic_ns,
    cyp_peek64,
    cyp_store32,
    pthread_mutex_t,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)
from cyproducer.sender.sender cimport Sender
from cyproducer.net.tls_transport cimport Tls
from cyproducer.net.waker cimport wake_sender

cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_trylock(pthread_mutex_t* mutex)

cdef extern from "polling.h" nogil:
    int cyp_await_readable(int fd, int ms)

cdef enum:
    ENOUGH = 2                # consecutive lone records, each waited for, before the sender stands by
    TOO_MANY = -16            # the count starts here after a record that no thread waited for
    LOOK_MS = 1               # how often the sender thread checks for work while it stands by


cdef int run_until_stopped(Sender sender) except -1:
    """Runs steps on the sender thread until ``Sender.stop()``. See ``Sender.run``."""
    cdef bint left_alone = False
    sender.accumulator.completions.lend(sender, drive)
    try:
        with nogil:
            while not cyp_load32(&sender.stopping):
                pthread_mutex_lock(&sender.loop_lock)
                if left_alone:
                    cyp_change64(&sender.left_alone, 1)
                    sender.lone = TOO_MANY
                try:
                    sender.step(FAR_NS)
                finally:
                    pthread_mutex_unlock(&sender.loop_lock)
                left_alone = sender.lone >= ENOUGH and stand_by(sender)
    finally:
        sender.accumulator.completions.take_back()
        # Taking the lock waits for a thread that still drives the loop, which sees `stopping` soon. No other
        # thread can begin to drive it.
        with nogil:
            pthread_mutex_lock(&sender.loop_lock)
            pthread_mutex_unlock(&sender.loop_lock)
    return 0


cdef bint note_standing_by(Sender sender) noexcept nogil:
    """Sets STANDING_BY if there is no work: one critical section, as in ``sleep_until``.

    Returns whether there is no work, for the control plane either.
    """
    cdef Accumulator* a = &sender.accumulator.c
    cdef bint idle
    pthread_mutex_lock(&a.lock)
    idle = a.oldest == NULL and a.parked == 0
    if idle:
        # A batch that begins to linger must not wake up the sender either.
        a.sleeping_until_ns = 0
        cyp_store32(&a.sleeping, STANDING_BY)
    pthread_mutex_unlock(&a.lock)
    return idle and not cyp_load32(&sender.attention)


cdef bint may_stand_by(Sender sender) noexcept nogil:
    """Whether a step needs the GIL only for decisions.

    A codec whose library was not found, selectors other than epoll, and Python's ssl module also need the GIL
    at other times; Ctrl-C could interrupt them halfway. Called on the sender thread between two steps: no
    other thread changes the connections.
    """
    cdef int i
    if sender.accumulator.c.compresses_with_gil:
        return False
    if sender.poller.epoll_fd < 0:
        return False
    for i in range(sender.transport_count):
        if sender.transports[i].tls != NULL and (<Tls*>sender.transports[i].tls).library == NULL:
            return False
    return True


cdef bint stand_by(Sender sender) except -1 nogil:
    """Leaves the loop to waiting threads as long as they drive it; returns whether a record was left alone.

    A record is left alone if it is sent meanwhile and no thread waits for it.
    """
    cdef int32_t seen
    if not may_stand_by(sender):
        return False
    if not note_standing_by(sender):
        return False
    cyp_store32(&sender.standing_by, 1)
    while True:
        seen = cyp_load32(&sender.drives)
        if cyp_await_readable(sender.wake_read_fd, LOOK_MS) or cyp_load32(&sender.stopping):
            break
        # Without the loop lock: a thread that drives the loop may change it. The next look sees that.
        if sender.clock.now_ns() >= cyp_peek64(&sender.next_control_ns):
            break
        if cyp_load32(&sender.drives) == seen and not cyp_load32(&sender.driven):
            break
    cyp_store32(&sender.standing_by, 0)
    return cyp_load32(&sender.accumulator.c.sleeping) == LEFT_ALONE


cdef int drive(void* context, const int32_t* state, int64_t until) except -1 nogil:
    """Runs the loop on a thread that waits for a record: a ``DriveFunction`` (``futures/delivery.pxd``)."""
    return drive_loop(<Sender>context, state, until)


cdef bint drive_loop(Sender sender, const int32_t* state, int64_t until) except -1 nogil:
    """Runs steps until ``state`` is not 0, or until the monotonic time ``until`` (ns).

    Returns False, without running a step, if another thread runs the loop.
    """
    cdef int64_t left
    cdef bint idle
    if not cyp_load32(&sender.standing_by) or pthread_mutex_trylock(&sender.loop_lock) != 0:
        return False
    # Check again with the lock held: the sender thread may have taken over or ended meanwhile.
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
        # Before the lock is released: after that, the sender could end and close the descriptor.
        if not idle:
            wake_sender(&sender.waker)
        pthread_mutex_unlock(&sender.loop_lock)
    return True
