/* Lets callgrind count what runs while a thread holds a mutex. Linux only; single-threaded programs only.
 *
 * To be preloaded: replaces pthread's functions by ones that call them. Outside of valgrind the requests do
 * nothing. A spin lock of one partition is no mutex, and is not seen.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <valgrind/callgrind.h>

static int counting, only_held, held;
static long taken;

static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }

static void entered(void) {
    if (!counting) return;
    taken++;
    if (held++ == 0 && only_held) CALLGRIND_TOGGLE_COLLECT;
}

int pthread_mutex_lock(pthread_mutex_t *m) {
    static int (*real)(pthread_mutex_t *);
    if (!real) real = next("pthread_mutex_lock");
    int rc = real(m);
    if (rc == 0) entered();
    return rc;
}

int pthread_mutex_trylock(pthread_mutex_t *m) {
    static int (*real)(pthread_mutex_t *);
    if (!real) real = next("pthread_mutex_trylock");
    int rc = real(m);
    if (rc == 0) entered();
    return rc;
}

int pthread_mutex_unlock(pthread_mutex_t *m) {
    static int (*real)(pthread_mutex_t *);
    if (!real) real = next("pthread_mutex_unlock");
    if (counting && --held == 0 && only_held) CALLGRIND_TOGGLE_COLLECT;
    return real(m);
}

/* Starts instrumentation, which is slow. Before, code is only translated. */
void locks_instrument(void) { CALLGRIND_START_INSTRUMENTATION; }

/* Starts counting everything, or only what runs under a mutex. No mutex is held. */
void locks_begin(int only) {
    only_held = only;
    taken = held = 0;
    counting = 1;
    if (!only) CALLGRIND_TOGGLE_COLLECT;
}

/* Stops counting; returns how many mutexes were locked. */
long locks_end(void) {
    if (!only_held) CALLGRIND_TOGGLE_COLLECT;
    counting = 0;
    return taken;
}

/* Writes the counts to a new file that contains this name, and resets them to zero. */
void locks_dump(const char *name) { CALLGRIND_DUMP_STATS_AT(name); }
