from libc.stdint cimport int64_t

from cyproducer.accumulator.structures cimport Accumulator, Batch, Topic

cdef int64_t step(const Accumulator* a) noexcept nogil
cdef void lower_limit(Topic* t, int64_t limit, int64_t now) noexcept nogil
cdef int64_t probe(const Accumulator* a, Topic* t, int64_t now) noexcept nogil
cdef bint was_probe(const Batch* b) noexcept nogil
cdef void probe_refused(Topic* t, int64_t now) noexcept nogil
cdef void probe_acknowledged(const Accumulator* a, const Batch* b) noexcept nogil
