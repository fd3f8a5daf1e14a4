/* Waits on a selector's descriptor without the GIL: epoll, on Linux. */
#ifndef CYPRODUCER_POLLING_H
#define CYPRODUCER_POLLING_H
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#ifdef __linux__
#include <sys/epoll.h>
#define CYP_HAS_EPOLL 1

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* epoll_wait has millisecond resolution. Kernels from 5.11 have epoll_pwait2, whose short waits are exact. */
static inline int cyp_epoll_sleep(int epfd, struct epoll_event *events, int room, int64_t ns) {
#ifdef SYS_epoll_pwait2
    static int missing = 0;
    if (ns > 0 && ns < 10000000 && !missing) {
        struct timespec t = {0, ns};
        int n = (int)syscall(SYS_epoll_pwait2, epfd, events, room, &t, NULL, 0);
        /* EBADF, EFAULT and EINVAL are caller errors: epoll_wait would also return them. Any other error
         * means that the call is not available: ENOSYS from an older kernel, EPERM from a container runtime
         * that does not know the call. */
        if (n >= 0 || errno == EINTR || errno == EBADF || errno == EFAULT || errno == EINVAL) return n;
        missing = 1;
    }
#endif
    /* Rounded up: after waking up slightly early, the caller would only wait again. */
    return epoll_wait(epfd, events, room, (int)((ns + 999999) / 1000000));
}

/* Fills `ready` with up to `room` descriptors and their events (1 readable, 2 writable); 0 after `ns`.
 * Python's epoll object stores the descriptor itself as the event data, which epoll_wait returns. */
static inline int cyp_epoll_wait(int epfd, int32_t *ready, int room, int64_t ns) {
    struct epoll_event events[64];
    int n, i;
    if (room > 64) room = 64;
    n = cyp_epoll_sleep(epfd, events, room, ns);
    if (n < 0) return errno == EINTR ? 0 : -1;
    for (i = 0; i < n; i++) {
        int what = 0;
        if (events[i].events & ~(uint32_t)EPOLLOUT) what |= 1;
        if (events[i].events & ~(uint32_t)EPOLLIN) what |= 2;
        ready[2 * i] = events[i].data.fd;
        ready[2 * i + 1] = what;
    }
    return n;
}

static inline int cyp_epoll_modify(int epfd, int fd, int writable) {
    struct epoll_event event;
    event.events = EPOLLIN | (writable ? EPOLLOUT : 0);
    event.data.u64 = 0;
    event.data.fd = fd;
    return epoll_ctl(epfd, EPOLL_CTL_MOD, fd, &event);
}
#else
#define CYP_HAS_EPOLL 0
static inline int cyp_epoll_wait(int epfd, int32_t *ready, int room, int64_t ns) { return -1; }
static inline int cyp_epoll_modify(int epfd, int fd, int writable) { return -1; }
#endif

/* Whether `fd` becomes readable within `ms`. */
static inline int cyp_await_readable(int fd, int ms) {
    struct pollfd one = {fd, POLLIN, 0};
    return poll(&one, 1, ms) > 0;
}
#endif
