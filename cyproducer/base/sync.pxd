"""Declares mutexes, conditions and atomics that do not need the GIL (``sync.h`` and POSIX threads).

Lock order, for every lock in the package: the GIL first, then a mutex. A thread that holds a mutex never
acquires the GIL. So a thread that holds the GIL waits for a mutex only for a few instructions of C, and no
deadlock is possible.
"""

from libc.stdint cimport int8_t, int32_t, int64_t

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int cyp_mutex_init(pthread_mutex_t* m)
    int pthread_mutex_destroy(pthread_mutex_t*)
    int pthread_mutex_lock(pthread_mutex_t*)
    int pthread_mutex_unlock(pthread_mutex_t*)
    int pthread_cond_destroy(pthread_cond_t*)
    int pthread_cond_signal(pthread_cond_t*)
    int pthread_cond_broadcast(pthread_cond_t*)

cdef extern from "sync.h" nogil:
    void cyp_exact_timers()                       # the calling thread's timed waits end without slack
    const int64_t FAR_NS "CYP_FAR_NS"             # a time that is never reached
    int64_t cyp_ms_ns(double ms)                  # milliseconds, saturating at FAR_NS
    int64_t cyp_s_ns(double s)                    # seconds, saturating at FAR_NS
    int64_t cyp_after(int64_t time_ns, int64_t duration_ns)     # the sum, saturating at FAR_NS
    int32_t cyp_load32(const int32_t* p)
    void cyp_store32(int32_t* p, int32_t v)
    int32_t cyp_add32(int32_t* p, int32_t v)      # returns the new value; the same for the next
    int64_t cyp_add64(int64_t* p, int64_t v)
    int32_t cyp_swap32(int32_t* p, int32_t v)     # returns the old value
    int64_t cyp_load64(const int64_t* p)
    void cyp_store64(int64_t* p, int64_t v)
    int64_t cyp_peek64(const int64_t* p)
    void cyp_change64(int64_t* p, int64_t by)
    void cyp_note64(int64_t* p, int64_t v)
    int8_t cyp_peek8(const int8_t* p)
    void cyp_note8(int8_t* p, int8_t v)
    void cyp_add_roughly64(int64_t* p, int64_t by)
    int32_t cyp_peek32(const int32_t* p)
    void cyp_change32(int32_t* p, int32_t by)
    void cyp_note32(int32_t* p, int32_t v)
    void cyp_clear(void* p, size_t size)
    const int CACHE_LINE "CYP_CACHE_LINE"         # bytes
    void cyp_prefetch(const void* p, int lines)
    void* cyp_load_pointer(void** p)
    void cyp_store_pointer(void** p, void* v)
    void cyp_spin_lock(int32_t* lock)             # `lock` is 0 at first
    void cyp_spin_unlock(int32_t* lock)
    void cyp_lock_queued(pthread_mutex_t* m, int32_t* queued)
    void cyp_give_way(const int32_t* queued)
    int64_t cyp_monotonic_ns()
    int64_t cyp_wall_ms()
    int64_t cyp_ticked_wall_ms()
    int cyp_cond_init(pthread_cond_t* c)
    int cyp_cond_wait_until(pthread_cond_t* c, pthread_mutex_t* m, int64_t deadline_ns)

cdef enum:
    SIGNAL_SLICE_NS = 50_000_000   # how often a waiting thread checks for Ctrl-C
