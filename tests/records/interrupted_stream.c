/* An Arrow stream that runs no Python code, and raises SIGINT (Ctrl-C) while it is read. */
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>

#include "arrow.h"

enum { BATCHES = 1000, INTERRUPTED_AT = 10 };

int batches_read = 0;
int fails = 0;  /* whether it fails with EINTR at the signal, as an interrupted system call does */

static struct ArrowArray column, *columns[] = {&column};
static const void *buffers[3];

static void release(struct ArrowArray *array)
{
    array->release = NULL;
}

int next_batch(struct ArrowArrayStream *stream, struct ArrowArray *out)
{
    (void)stream;
    if (batches_read == BATCHES)
        return 0;
    if (++batches_read == INTERRUPTED_AT) {
        raise(SIGINT);
        if (fails)
            return EINTR;
    }
    memset(out, 0, sizeof *out);
    column.n_buffers = 3;
    column.buffers = buffers;
    out->n_buffers = 1;
    out->buffers = buffers;
    out->n_children = 1;
    out->children = columns;
    out->release = release;
    return 0;
}
