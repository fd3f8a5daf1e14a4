"""Acknowledges or fails an accumulator's batches without a sender, for ``MockProducer``.

Does not own the order of the outcomes or the offsets. The batches were never in a request. The caller must
serialize the calls, because no other thread may free the batch in the meantime.
"""

from libc.stdint cimport INT64_MAX, int64_t

from cyproducer.accumulator.batch_outcomes cimport Incomplete
from cyproducer.accumulator.ready_partitions cimport dequeue, refresh, withdraw
from cyproducer.accumulator.record_accumulator cimport RecordAccumulator
from cyproducer.accumulator.structures cimport Batch
from cyproducer.base.sync cimport pthread_mutex_lock, pthread_mutex_unlock


def oldest(RecordAccumulator accumulator not None):
    """The topic and the partition of the oldest batch, or None. Closes the batch to further records."""
    cdef Batch* b = accumulator.overdue(INT64_MAX)
    if b == NULL:
        return None
    return b.partition.topic.name[:b.partition.topic.name_size].decode(), b.partition.index


def acknowledge_oldest(RecordAccumulator accumulator not None, int64_t offset):
    """Acknowledges the oldest batch; ``offset`` is the offset of its first record."""
    cdef Incomplete a = accumulator
    cdef Batch* b = a.overdue(INT64_MAX)
    if b == NULL:
        raise IndexError("no batch is incomplete")
    # Acknowledge the batch before it leaves the accumulator: when a flush returns, every future must be done.
    a.acknowledge(b, offset, -1)
    pthread_mutex_lock(&a.c.lock)
    withdraw(&a.c, b.partition)
    dequeue(&a.c, b.partition, b)
    refresh(&a.c, b.partition)
    a._forget(b)
    pthread_mutex_unlock(&a.c.lock)
    a._free(b)


def fail_oldest(RecordAccumulator accumulator not None, error not None):
    """Fails the records of the oldest batch."""
    cdef Incomplete a = accumulator
    cdef Batch* b = a.overdue(INT64_MAX)
    if b == NULL:
        raise IndexError("no batch is incomplete")
    a.fail(b, error)
