from libc.stdint cimport int16_t, int64_t

from cyproducer.accumulator.structures cimport Accumulator, Batch, Partition

cdef void take_off_wire(Accumulator* a, Batch* b) noexcept nogil
cdef void settle(Batch* b) noexcept nogil
cdef void note_gap(const Batch* b, bint moves) noexcept nogil
cdef bint strip_sequences(Accumulator* a, Partition* p, int64_t from_record) noexcept nogil
cdef void forget_gap(Partition* p) noexcept nogil
cdef void set_gate(Accumulator* a, Partition* p, int gate) noexcept nogil
cdef void set_identity(Accumulator* a, int64_t producer_id, int16_t producer_epoch) noexcept nogil
cdef void refresh_all(Accumulator* a) noexcept nogil
