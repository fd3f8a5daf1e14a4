from cyproducer.accumulator.structures cimport Accumulator, Batch

cdef void hand_over(Accumulator* a, Batch* b) noexcept nogil
cdef void leave_uncompressed(Accumulator* a) noexcept nogil
cdef void stop_compressing(Accumulator* a) noexcept nogil
