from libc.stdint cimport int64_t

cdef extern from "arrow.h" nogil:
    enum:
        ARROW_FLAG_NULLABLE

    cdef struct ArrowSchema:
        const char* format        # the type, as a format string
        const char* name          # the column's name; NULL: none
        const char* metadata
        int64_t flags
        int64_t n_children
        ArrowSchema** children
        ArrowSchema* dictionary   # NULL, or the type of the values that a dictionary's indices refer to
        void (*release)(ArrowSchema*) noexcept nogil
        void* private_data

    cdef struct ArrowArray:
        int64_t length
        int64_t null_count        # -1: not counted yet
        int64_t offset            # how many elements of each buffer precede the array's first
        int64_t n_buffers
        int64_t n_children
        const void** buffers
        ArrowArray** children
        ArrowArray* dictionary
        void (*release)(ArrowArray*) noexcept nogil   # NULL: released or moved
        void* private_data

    cdef struct ArrowArrayStream:
        int (*get_schema)(ArrowArrayStream*, ArrowSchema* out) noexcept nogil
        int (*get_next)(ArrowArrayStream*, ArrowArray* out) noexcept nogil
        const char* (*get_last_error)(ArrowArrayStream*) noexcept nogil
        void (*release)(ArrowArrayStream*) noexcept nogil
        void* private_data


cdef class ArrowTable:
    cdef ArrowSchema schema       # a struct; released with this object
    cdef ArrowArray* batches
    cdef int64_t batch_count
    cdef int64_t room
    cdef int _append(self, ArrowArray* batch) except -1


cdef ArrowTable read_arrow(object data)
cdef object export_schema()
cdef object export_rows(int64_t rows, bytes partitions, bytes offsets, bytes validity, int64_t nulls)
