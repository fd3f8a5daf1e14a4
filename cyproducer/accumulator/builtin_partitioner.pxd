from libc.stdint cimport int32_t, int64_t, uint64_t

from cyproducer.base.clock cimport Clock
from cyproducer.accumulator.structures cimport Accumulator, RecordView, Topic

cdef enum Keyless:
    STICKY = 0
    RANDOM = 1
    ROUND_ROBIN = 2
    SINGLE_BROKER = 3

cdef uint64_t next_random(uint64_t* state) noexcept nogil
cdef int32_t place(Accumulator* a, Clock clock, Topic* t, const RecordView* r) noexcept nogil
