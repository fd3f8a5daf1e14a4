/* When preloaded, delays one write of eight bytes, and checks if its descriptor is closed meanwhile. Linux. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { OFF, ARMED, ENTERED, STAYED_OPEN, CLOSED };
static int state = OFF;

/* Delays the next write. */
void pause_next_write(void) { __atomic_store_n(&state, ARMED, __ATOMIC_SEQ_CST); }

int paused_write(void) { return __atomic_load_n(&state, __ATOMIC_SEQ_CST); }

ssize_t write(int fd, const void *data, size_t size)
{
    int expected = ARMED;
    int i;
    if (size == 8 && __atomic_compare_exchange_n(&state, &expected, ENTERED, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        int now = STAYED_OPEN;
        for (i = 0; i < 500 && now == STAYED_OPEN; i++) {
            usleep(1000);
            if (fcntl(fd, F_GETFD) < 0) now = CLOSED;
        }
        __atomic_store_n(&state, now, __ATOMIC_SEQ_CST);
    }
    return syscall(SYS_write, fd, data, size);
}
