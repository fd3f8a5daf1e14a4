/* Waiting on the descriptor of a selector without the GIL: epoll where there is one. */
#ifndef CYPRODUCER_POLLING_H
#define CYPRODUCER_POLLING_H
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#ifdef __linux__
#include <sys/epoll.h>
#define CYP_HAS_EPOLL 1

/* Fills `ready` with up to `room` descriptors and their events (1 readable, 2 writable); 0 after `ms`.
 * Python's epoll object registers each descriptor with itself as the data, which is what comes back. */
static inline int cyp_epoll_wait(int epfd, int32_t *ready, int room, int ms) {
    struct epoll_event events[64];
    int n, i;
    if (room > 64) room = 64;
    n = epoll_wait(epfd, events, room, ms);
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
static inline int cyp_epoll_wait(int epfd, int32_t *ready, int room, int ms) { return -1; }
static inline int cyp_epoll_modify(int epfd, int fd, int writable) { return -1; }
#endif

/* Whether `fd` becomes readable within `ms`. */
static inline int cyp_await_readable(int fd, int ms) {
    struct pollfd one = {fd, POLLIN, 0};
    return poll(&one, 1, ms) > 0;
}
#endif
