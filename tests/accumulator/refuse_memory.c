/* When preloaded, lets allocations of cyproducer's extensions fail on request. glibc only.
 *
 * Allocations of the interpreter and of other packages always succeed: their behaviour without memory is not
 * under test. PACKAGE is the directory of the extensions. A part of it is not enough: in a clone whose name is
 * cyproducer, every package of its environment has that name in its path.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *data, size_t size);

static long to_pass;  /* allocations that still succeed */
static long to_refuse;  /* allocations that fail after those; 0: nothing is counted */

/* The next `pass` allocations succeed, and the `refuse` allocations after them fail. Returns how many of the
 * previous call had not failed yet. */
long refuse_memory(long pass, long refuse)
{
    long left = to_refuse;
    to_pass = pass;
    to_refuse = refuse;
    return left;
}

static int refused(void *caller)
{
    Dl_info info;
    if (to_refuse == 0 || !dladdr(caller, &info) || strncmp(info.dli_fname, PACKAGE, strlen(PACKAGE)))
        return 0;
    if (to_pass > 0) {
        to_pass--;
        return 0;
    }
    to_refuse--;
    return 1;
}

void *malloc(size_t size)
{
    return refused(__builtin_return_address(0)) ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    return refused(__builtin_return_address(0)) ? NULL : __libc_calloc(count, size);
}

void *realloc(void *data, size_t size)
{
    return refused(__builtin_return_address(0)) ? NULL : __libc_realloc(data, size);
}
