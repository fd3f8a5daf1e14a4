/* Atomics, and condition variables on the monotonic clock, for structures shared between threads.
 *
 * Only C11 builtins and pthreads: the sender thread uses them without the GIL, when it must not touch Python
 * objects. Source of the names: C11 7.17, POSIX threads.
 */
#ifndef CYPRODUCER_SYNC_H
#define CYPRODUCER_SYNC_H

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

/* Makes the calling thread's timed waits end on time: Linux lets them overrun by 50 us, to save wake-ups. */
static inline void cyp_exact_timers(void) {
#ifdef PR_SET_TIMERSLACK
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
#endif
}

/* A time on the monotonic clock that is never reached. */
#define CYP_FAR_NS INT64_MAX

/* Converts a duration to nanoseconds. Durations are doubles, in the unit of the option or argument. A
 * duration longer than about 291 years becomes CYP_FAR_NS ("no limit"); one that is not above 0 becomes 0.
 * NaN is refused earlier. */
static inline int64_t cyp_ns(double ns) {
    if (!(ns > 0)) return 0;
    return ns < 9.2e18 ? (int64_t)ns : CYP_FAR_NS;
}
static inline int64_t cyp_ms_ns(double ms) { return cyp_ns(ms * 1e6); }
static inline int64_t cyp_s_ns(double s) { return cyp_ns(s * 1e9); }

/* The end of a duration that begins at `time_ns`, saturating at CYP_FAR_NS; neither argument is below 0. */
static inline int64_t cyp_after(int64_t time_ns, int64_t duration_ns) {
    return duration_ns < CYP_FAR_NS - time_ns ? time_ns + duration_ns : CYP_FAR_NS;
}

static inline int32_t cyp_load32(const int32_t *p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
static inline void cyp_store32(int32_t *p, int32_t v) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }
static inline int32_t cyp_add32(int32_t *p, int32_t v) { return __atomic_add_fetch(p, v, __ATOMIC_SEQ_CST); }
static inline int64_t cyp_add64(int64_t *p, int64_t v) { return __atomic_add_fetch(p, v, __ATOMIC_SEQ_CST); }
static inline int32_t cyp_swap32(int32_t *p, int32_t v) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); }
static inline int64_t cyp_load64(const int64_t *p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
static inline void cyp_store64(int64_t *p, int64_t v) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }

/* A number that is changed only under a lock, or by one thread, and that other threads read without the lock as
 * a hint. Relaxed: they see a number that was true at some time, and nothing else is ordered by it. Costs no more
 * than a plain access. */
static inline int64_t cyp_peek64(const int64_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
static inline void cyp_change64(int64_t *p, int64_t by) { __atomic_store_n(p, *p + by, __ATOMIC_RELAXED); }

static inline int32_t cyp_peek32(const int32_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
static inline void cyp_change32(int32_t *p, int32_t by) { __atomic_store_n(p, *p + by, __ATOMIC_RELAXED); }
static inline void cyp_note32(int32_t *p, int32_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
static inline void cyp_note64(int64_t *p, int64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }

static inline int8_t cyp_peek8(const int8_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
static inline void cyp_note8(int8_t *p, int8_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }

/* The same for a number that threads change side by side without a lock, and that may be wrong: if two change
 * it at once, one of the changes is lost. */
static inline void cyp_add_roughly64(int64_t *p, int64_t by) { cyp_note64(p, cyp_peek64(p) + by); }

/* Zeroes memory by the C library's memset. With a size that it knows, GCC writes `rep stos` instead, which takes
 * three times as long for 200 bytes. */
static inline void cyp_clear(void *p, size_t size) {
    __asm__("" : "+r"(size));
    memset(p, 0, size);
}

/* Fetches cache lines that this thread will write, from an address on, which may be any, NULL too. On x86-64 GCC's
 * builtin would fetch them as lines to be read, and the first write would ask the other core once more. CPUs that
 * do not know the instruction ignore it. */
#define CYP_CACHE_LINE 64
static inline void cyp_prefetch(const void *p, int lines) {
    const char *line = (const char *)p;
    int i;
    for (i = 0; i < lines; i++, line += CYP_CACHE_LINE) {
#ifdef __x86_64__
        __asm__ volatile("prefetchw (%0)" : : "r"(line));
#else
        __builtin_prefetch(line, 1);
#endif
    }
}

/* A pointer that one thread publishes, with everything that it points to, for threads that take no lock. */
static inline void *cyp_load_pointer(void *const *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void cyp_store_pointer(void **p, void *v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }

/* A lock for a few instructions that rarely meets another thread: one atomic operation, where a mutex needs two
 * and a call for each. A thread that waits sleeps in the end, since the thread that holds the lock may have lost
 * its CPU, to a waiting thread of a higher priority. */
static inline void cyp_spin_wait(int32_t *lock) {
    struct timespec moment = {0, 20000};
    int i;
    for (i = 1; __atomic_load_n(lock, __ATOMIC_RELAXED) || __atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE); i++) {
        if (i % 100 == 0) sched_yield();
        if (i % 1000 == 0) nanosleep(&moment, NULL);
    }
}
static inline void cyp_spin_lock(int32_t *lock) {
    if (__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE)) cyp_spin_wait(lock);
}
static inline void cyp_spin_unlock(int32_t *lock) { __atomic_store_n(lock, 0, __ATOMIC_RELEASE); }

static inline int64_t cyp_monotonic_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline int64_t cyp_wall_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* The wall clock at the kernel's last tick, at most 4 ms ago if the kernel ticks 250 times a second; a tenth
 * of the cost. */
static inline int64_t cyp_ticked_wall_ms(void) {
#ifdef CLOCK_REALTIME_COARSE
    struct timespec t;
    clock_gettime(CLOCK_REALTIME_COARSE, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
#else
    return cyp_wall_ms();
#endif
}

/* A mutex that is held for a fraction of a microsecond at a time. If the C library supports it, a waiting
 * thread spins before it sleeps: two context switches take longer than ten spins. */
static inline int cyp_mutex_init(pthread_mutex_t *m) {
#ifdef PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
    pthread_mutexattr_t a;
    int rc;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_settype(&a, PTHREAD_MUTEX_ADAPTIVE_NP);
    rc = pthread_mutex_init(m, &a);
    pthread_mutexattr_destroy(&a);
    return rc;
#else
    return pthread_mutex_init(m, NULL);
#endif
}

/* A thread that unlocks a mutex and locks it again at once starves the others: a waiting thread does not wake
 * up in time. So threads that lock it once per call (cyp_lock_queued) are counted while they wait, and a
 * thread that locks it block by block yields to them (cyp_give_way), for about fifty microseconds at most. */
static inline void cyp_lock_queued(pthread_mutex_t *m, int32_t *queued) {
    if (pthread_mutex_trylock(m) == 0) return;
    cyp_add32(queued, 1);
    pthread_mutex_lock(m);
    cyp_add32(queued, -1);
}
static inline void cyp_give_way(const int32_t *queued) {
    int i;
    for (i = 0; i < 100 && cyp_load32(queued) > 0; i++) sched_yield();
}

/* A condition that waits on the monotonic clock, so that setting the wall clock back does not prolong a
 * timeout. macOS has no pthread_condattr_setclock; its relative wait does the same. */
static inline int cyp_cond_init(pthread_cond_t *c) {
#ifdef __APPLE__
    return pthread_cond_init(c, NULL);
#else
    pthread_condattr_t a;
    int rc;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    rc = pthread_cond_init(c, &a);
    pthread_condattr_destroy(&a);
    return rc;
#endif
}

/* The longest single wait: 26 days. A longer one might not fit a 32-bit time_t, and macOS refuses a timeout
 * that overflows when it is added to its clock. */
#define CYP_LONGEST_WAIT_NS (INT64_C(1) << 51)

/* Waits until signalled or until `deadline_ns` on the monotonic clock; returns nonzero at the deadline. May
 * also return 0 spuriously, as conditions do. */
static inline int cyp_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *m, int64_t deadline_ns) {
    struct timespec t;
    int64_t now = cyp_monotonic_ns();
    int64_t until = deadline_ns - now > CYP_LONGEST_WAIT_NS ? now + CYP_LONGEST_WAIT_NS : deadline_ns;
    int rc;
    /* On Linux even a wait of zero duration takes the timer slack, 50 us. */
    if (deadline_ns <= now) return 1;
#ifdef __APPLE__
    int64_t left = until > now ? until - now : 0;
    t.tv_sec = left / 1000000000;
    t.tv_nsec = left % 1000000000;
    rc = pthread_cond_timedwait_relative_np(c, m, &t);
#else
    t.tv_sec = until / 1000000000;
    t.tv_nsec = until % 1000000000;
    rc = pthread_cond_timedwait(c, m, &t);
#endif
    return rc == ETIMEDOUT && until == deadline_ns;
}

#endif
