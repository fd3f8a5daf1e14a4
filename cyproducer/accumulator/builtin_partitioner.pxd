from libc.stdint cimport int32_t

from cyproducer.base.clock cimport Clock
from cyproducer.accumulator.structures cimport Accumulator, RecordView, Topic

# Policies for records that have no key, or whose key the partitioner ignores, in the order of KEYLESS.
cdef enum Keyless:
    STICKY                    # one partition until it has batch_size bytes, then another (KIP-480, KIP-794)
    RANDOM                    # a random partition for each record
    ROUND_ROBIN               # the partitions in turn, one record each
    SINGLE_BROKER             # only partitions of one broker, so that keyless records share its connection

cdef int32_t keyless_number(str name) except -1

cdef int32_t keyless_partition(Accumulator* a, Clock clock, Topic* t) noexcept nogil
cdef int32_t place(Accumulator* a, Clock clock, Topic* t, const RecordView* r) noexcept nogil
