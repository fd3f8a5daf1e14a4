"""The thread that compresses large batches that are due before they are full.

Owns the thread and its queue. Does not own compressing (``RecordAccumulator.compress``) or the batches, which
stay in their partitions' queues meanwhile, in the state SEALING. It is a native thread, not a Python thread:
it acquires the GIL only to log that there is no memory.

If the sender compressed these batches, all other records of the producer would wait: 5 ms for 256 KB with
zstd at level 9. The sender compresses small batches itself, because that takes less time than waking a
thread.

    sender                               compression thread
    drain: the batch is SEALING,         takes the oldest batch
      hand_over                          compresses it, without the lock
    sends the other ready batches        the batch is SEALED: refresh, wake the sender
    drain: takes the batch
"""

from cyproducer.accumulator.ready_partitions cimport note_work, refresh
from cyproducer.accumulator.structures cimport SEALED, Accumulator, Batch, CompressionThread, pthread_t
from cyproducer.base.sync cimport (
    pthread_cond_signal,
    pthread_cond_t,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
)

cdef extern from "<unistd.h>" nogil:
    int getpid()

cdef extern from *:
    """
    #include <pthread.h>
    #include <signal.h>
    #ifdef __linux__
    #include <sys/prctl.h>
    #endif

    /* Starts a thread that handles no signals: those are for Python's threads. */
    static int cyp_start_thread(pthread_t *thread, void *(*run)(void *), void *argument) {
        sigset_t all, before;
        int problem;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        problem = pthread_create(thread, NULL, run, argument);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        return problem;
    }

    static void cyp_name_thread(const char *name) {
    #ifdef PR_SET_NAME
        prctl(PR_SET_NAME, name);
    #endif
    }
    """
    int cyp_start_thread(pthread_t* thread, void* (*run)(void*) noexcept nogil, void* argument) nogil
    void cyp_name_thread(const char* name) nogil

cdef extern from "<pthread.h>" nogil:
    int pthread_join(pthread_t thread, void** result)
    int pthread_cond_wait(pthread_cond_t*, pthread_mutex_t*)

cdef void hand_over(Accumulator* a, Batch* b) noexcept nogil:
    """Queues a batch that was just closed for compression. The lock is held."""
    cdef CompressionThread* t = &a.compression
    if not t.started:
        t.stopping = 0
        t.process = getpid()
        if cyp_start_thread(&t.thread, run, a):
            # The batch is sent uncompressed, like every batch until a thread can be started.
            sealed(a, b)
            return
        t.started = 1
    b.next_to_compress = NULL
    if t.last != NULL:
        t.last.next_to_compress = b
    else:
        t.first = b
    t.last = b
    pthread_cond_signal(&t.filled)


cdef Batch* take(CompressionThread* t) noexcept nogil:
    """Takes the oldest batch from the queue; NULL if it is empty. The lock is held."""
    cdef Batch* b = t.first
    if b != NULL:
        t.first = b.next_to_compress
        if t.first == NULL:
            t.last = NULL
    return b


cdef bint sealed(Accumulator* a, Batch* b) noexcept nogil:
    """Passes a batch to the sender; returns whether to wake the sender. The lock is held."""
    b.state = SEALED
    return refresh(a, b.partition) and note_work(a)


cdef void* run(void* argument) noexcept nogil:
    cdef Accumulator* a = <Accumulator*>argument
    cdef CompressionThread* t = &a.compression
    cdef Batch* b
    # At most 15 characters.
    cyp_name_thread(b"cyp-compression")
    pthread_mutex_lock(&a.lock)
    while True:
        b = take(t)
        if b != NULL:
            pthread_mutex_unlock(&a.lock)
            t.compress(t.context, b)
            pthread_mutex_lock(&a.lock)
            if sealed(a, b):
                pthread_mutex_unlock(&a.lock)
                t.wake(t.context)
                pthread_mutex_lock(&a.lock)
        elif t.stopping:
            break
        else:
            pthread_cond_wait(&t.filled, &a.lock)
    pthread_mutex_unlock(&a.lock)
    return NULL


cdef void leave_uncompressed(Accumulator* a) noexcept nogil:
    """Empties the queue: its batches are sent, or fail, without compression."""
    cdef Batch* b
    pthread_mutex_lock(&a.lock)
    b = take(&a.compression)
    while b != NULL:
        sealed(a, b)
        b = take(&a.compression)
    pthread_mutex_unlock(&a.lock)


cdef void stop_compressing(Accumulator* a) noexcept nogil:
    """Ends the thread once it has compressed its current batch. The lock is not held."""
    cdef CompressionThread* t = &a.compression
    if not t.started or t.process != getpid():
        return
    leave_uncompressed(a)
    pthread_mutex_lock(&a.lock)
    t.stopping = 1
    pthread_cond_signal(&t.filled)
    pthread_mutex_unlock(&a.lock)
    pthread_join(t.thread, NULL)
    t.started = 0
