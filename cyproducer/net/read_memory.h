/* Reads memory of this process that might not be mapped; if it is not, no signal is raised. */

#ifndef CYPRODUCER_READ_MEMORY_H
#define CYPRODUCER_READ_MEMORY_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/syscall.h>
#include <sys/uio.h>
#endif

/* The kernel copies the bytes to and from a pipe, and reports EFAULT for an invalid address. */
static inline size_t cyp_read_by_pipe(const void *from, void *into, size_t size)
{
    int ends[2];
    ssize_t n;
    if (pipe(ends) != 0)
        return 0;
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    do
        n = write(ends[1], from, size);
    while (n < 0 && errno == EINTR);
    if (n > 0)
        n = read(ends[0], into, (size_t)n);
    close(ends[0]);
    close(ends[1]);
    return n > 0 ? (size_t)n : 0;
}

/* Copies up to `size` (at most 4096) bytes from `from`; returns how many were readable. Stops at the first
   page that is not mapped. */
static inline size_t cyp_read_memory(const void *from, void *into, size_t size)
{
    size_t done = 0;
    while (done < size) {
        const char *at = (const char *)from + done;
        size_t left = 4096 - ((uintptr_t)at & 4095);
        size_t n = 0;
        if (left > size - done)
            left = size - done;
#if defined(__linux__) && defined(SYS_process_vm_readv)
        {
            struct iovec local, remote;
            ssize_t got;
            local.iov_base = (char *)into + done;
            local.iov_len = left;
            remote.iov_base = (void *)at;
            remote.iov_len = left;
            got = syscall(SYS_process_vm_readv, getpid(), &local, 1, &remote, 1, 0);
            if (got > 0)
                n = (size_t)got;
            else if (got < 0 && errno != EFAULT)
                /* Container runtimes may forbid the call. */
                n = cyp_read_by_pipe(at, (char *)into + done, left);
        }
#else
        n = cyp_read_by_pipe(at, (char *)into + done, left);
#endif
        done += n;
        if (n < left)
            break;
    }
    return done;
}

#endif
