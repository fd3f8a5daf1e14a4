from libc.stdint cimport int32_t, int64_t, uint8_t

from cyproducer.records.borrowed cimport HeaderBytes
from cyproducer.records.columnar cimport Cells, Headers, Numbers, Span

# The rows of one batch. Must not move in memory: columns point to their dictionaries here.
cdef struct Rows:
    int64_t count
    Cells key
    Cells key_words
    Cells value
    Cells value_words
    Headers headers
    Numbers partition
    Numbers timestamp


# The items of a sequence.
cdef class Items:
    cdef object first                  # a list or tuple of items, or of copies of items that are not bytes
    cdef list pieces                   # None, or more of these lists and tuples
    cdef Span* spans
    cdef int64_t room
    cdef int64_t count
    cdef int64_t longest
    cdef bint sparse                   # whether any item is None
    cdef int take(self, object sequence, str name) except -1
    cdef int keep(self, object piece) except -1
    cdef bint make_room(self, int64_t room) noexcept
    cdef int hold(self, object piece, str name, int64_t* since_ns) except -1
    cdef int let_go(self) except -1
    cdef void describe(self, Cells* c) noexcept


cdef class RowSource:
    cdef Rows* batches
    cdef int64_t batch_count
    cdef int64_t count        # rows of all batches
    cdef object kept                   # owns the memory that the pointers point into
    cdef Items values                  # None unless made from sequences; also ``keys``
    cdef Items keys
    cdef HeaderBytes encoded  # if made from sequences: memory that the rows point into; also the next four
    cdef Span* header_spans
    cdef int64_t* partitions
    cdef int64_t* timestamps
    cdef uint8_t* bitmaps[2]
    cdef int32_t partition    # of every row; -1: the column's, or chosen by the partitioner
    cdef int64_t timestamp_ms  # of every row; -1: the column's, or now
    cdef int64_t largest      # upper bound of any row's size in a batch; see largest_row
    cdef int64_t headers_room  # bytes that are enough for any row's encoded headers
    cdef bint keyed
    cdef str value_name                # the columns' names in error messages
    cdef str key_name
    cdef str headers_name
    cdef str partition_name
    cdef str timestamp_name
    cdef object _take(self, object table)
    cdef int _take_headers(self, Headers* h, object headers) except -1
    cdef int64_t* _take_numbers(
        self, Numbers* c, object sequence, str name, uint8_t** bitmap
    ) except? NULL
    cdef int _refuse_partition(self, int64_t row, int64_t v, double real, int32_t partitions) except -1
    cdef str place(self, str column, int64_t row)
    cdef int _check_batch(
        self, Rows* r, int64_t before, int32_t partitions, int64_t max_request_size, bint given
    ) except -1


cdef RowSource from_arrow(
    object data, object key, object value, object headers, object partition, object timestamp
)
cdef RowSource from_sequences(
    object values, object keys, object headers, object partition, object timestamp_ms
)
cdef int let_go_of(RowSource source) except -1
cdef int check_rows(
    RowSource source, int32_t partitions, int64_t max_request_size, bint given
) except -1
cdef int64_t largest_row(RowSource source) noexcept nogil
cdef object no_content(str place)
cpdef bint is_header_list(object headers) except -1
