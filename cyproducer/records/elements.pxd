from libc.stdint cimport int32_t

# Of one record, as its metadata tells them; -1: null.
cdef struct Sizes:
    int32_t key
    int32_t value
