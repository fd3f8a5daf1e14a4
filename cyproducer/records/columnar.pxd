from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from cyproducer.records.arrow cimport ArrowArray, ArrowSchema

# The memory layout of a column of bytes.
cdef enum Layout:
    ABSENT = 0                # there is no such column, or it has only nulls
    OFFSETS32 = 1             # binary, string: row i is data[offsets[i]:offsets[i + 1]]
    OFFSETS64 = 2             # large_binary, large_string
    VIEWS = 3                 # binary_view, string_view: 16 bytes per row, short values inline
    FIXED = 4                 # fixed_size_binary
    SPANS = 5                 # not Arrow: an address and a size per row

# A row of SPANS.
cdef struct Span:
    const uint8_t* at
    int64_t size              # -1: null

# A column whose rows are bytes. Pointers point to the first row: they include the array's offset.
cdef struct Cells:
    int32_t layout            # a Layout
    int32_t index             # the type of a dictionary's indices: a Number
    int32_t sparse            # SPANS: some rows are null
    const uint8_t* validity   # a bitmap, least significant bit first; NULL: no nulls
    int64_t first_bit         # the first row's bit in the bitmap
    const uint8_t* rows       # offsets, views or spans
    const uint8_t* data       # OFFSETS*, FIXED
    int64_t data_size         # OFFSETS*: the last offset of the whole array
    int64_t width             # FIXED: bytes per row
    const void** buffers      # VIEWS: the buffers of long values
    const int64_t* sizes      # VIEWS: sizes of these buffers
    int64_t buffer_count
    const uint8_t* indices    # NULL, or for a dictionary: the index of each row's word (its value)
    const Cells* words        # the dictionary's words
    int64_t word_count

cdef enum Number:
    NO_NUMBER = 0             # there is no such column
    INT8 = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    UINT8 = 5
    UINT16 = 6
    UINT32 = 7
    UINT64 = 8
    FLOAT64 = 9               # partitions only: NaN is null

# A column of integers.
cdef struct Numbers:
    int32_t kind              # a Number
    const uint8_t* validity
    int64_t first_bit
    const uint8_t* data       # of the first row
    int64_t times             # timestamps: milliseconds are value * times // per
    int64_t per

# The memory layout of a column of lists.
cdef enum ListLayout:
    NO_LISTS = 0              # there is no such column, or it has only nulls
    LISTS32 = 1               # list, map: row i has the elements from offsets[i] to offsets[i + 1]
    LISTS64 = 2               # large_list
    LIST_VIEWS32 = 3          # list_view: row i has sizes[i] elements from offsets[i] on
    LIST_VIEWS64 = 4          # large_list_view
    FIXED_LISTS = 5           # fixed_size_list: row i has ``width`` elements from i * width on
    ENCODED = 6               # not Arrow: row i is Span i * width of offsets, as in a record; width 0 or 1

# A column of lists of (key, value) structs.
cdef struct Headers:
    int32_t layout            # a ListLayout
    const uint8_t* validity   # NULL if no row is null; the same for struct_validity
    int64_t first_bit
    const uint8_t* offsets    # of the first row, in elements of the whole array
    const uint8_t* sizes      # LIST_VIEWS*
    int64_t width             # FIXED_LISTS: elements per row
    int64_t first_row         # FIXED_LISTS: rows of the whole array before these
    int64_t base              # the element at which all fields below start
    const uint8_t* struct_validity   # of the structs in the lists
    int64_t struct_bit
    Cells key
    Cells key_words
    Cells value
    Cells value_words


cdef int64_t plus(int64_t a, int64_t b, str name) except -1
cdef int bytes_layout(const ArrowSchema* s, str name) except -1
cdef int partition_type(const ArrowSchema* s, Numbers* c, str name) except -1
cdef int timestamp_type(const ArrowSchema* s, Numbers* c, str name) except -1
cdef int headers_type(const ArrowSchema* s, str name) except -1
cdef int check_array(
    const ArrowSchema* s, const ArrowArray* a, int64_t buffers, int64_t children, int64_t needed, str name
) except -1
cdef int take_validity(
    const ArrowArray* a, int64_t skip, int64_t n, bint look, str name, const uint8_t** bits, int64_t* first
) except -1
cdef int64_t first_null(const uint8_t* bits, int64_t start, int64_t n) noexcept nogil
cdef int64_t describe_cells(
    Cells* c, Cells* words, const ArrowSchema* s, const ArrowArray* a, int64_t skip, int64_t n, str name,
    int64_t before,
) except -1
cdef int describe_numbers(
    Numbers* c, const ArrowSchema* s, const ArrowArray* a, int64_t skip, int64_t n, str name
) except -1
cdef int64_t describe_headers(
    Headers* h, const ArrowSchema* s, const ArrowArray* a, int64_t skip, int64_t n, str name, int64_t before
) except -1
cdef int64_t headers_size_at(const Headers* h, int64_t row) noexcept nogil
cdef int64_t encode_headers_at(const Headers* h, int64_t row, uint8_t* out) noexcept nogil


cdef inline bint bit_at(const uint8_t* bits, int64_t i) noexcept nogil:
    return (bits[i >> 3] >> (i & 7)) & 1


cdef inline int64_t load32(const uint8_t* at) noexcept nogil:
    cdef int32_t v
    memcpy(&v, at, 4)
    return v


cdef inline int64_t load64(const uint8_t* at) noexcept nogil:
    cdef int64_t v
    memcpy(&v, at, 8)
    return v


cdef inline int64_t number(int32_t kind, const uint8_t* data, int64_t i) noexcept nogil:
    """Returns element i. A value above 2**63 - 1 is returned as 2**63 - 1, which no column here allows."""
    cdef uint64_t large
    cdef double real
    if kind == INT64:
        return load64(data + 8 * i)
    if kind == INT32:
        return load32(data + 4 * i)
    if kind == INT16:
        return (<const int16_t*>data)[i]
    if kind == INT8:
        return (<const int8_t*>data)[i]
    if kind == UINT8:
        return data[i]
    if kind == UINT16:
        return (<const uint16_t*>data)[i]
    if kind == UINT32:
        return <uint32_t>load32(data + 4 * i)
    if kind == FLOAT64:
        # Every comparison with NaN is false.
        memcpy(&real, data + 8 * i, 8)
        return <int64_t>real if 0 <= real <= 0x7FFFFFFF else -1
    large = <uint64_t>load64(data + 8 * i)
    return <int64_t>large if large <= <uint64_t>0x7FFFFFFFFFFFFFFF else 0x7FFFFFFFFFFFFFFF


cdef inline int64_t cell_of(int layout, const Cells* c, int64_t i, const uint8_t** at) noexcept nogil:
    """Returns the size of row i, and stores its address in ``at``. The row must not be null according to
    ``validity``, and the column must not be a dictionary."""
    cdef const uint8_t* view
    cdef int64_t size
    cdef int64_t start
    if layout == OFFSETS32:
        start = load32(c.rows + 4 * i)
        at[0] = c.data + start
        return load32(c.rows + 4 * i + 4) - start
    if layout == OFFSETS64:
        start = load64(c.rows + 8 * i)
        at[0] = c.data + start
        return load64(c.rows + 8 * i + 8) - start
    if layout == VIEWS:
        # A view begins with the size. The bytes follow if there are at most 12; otherwise the first 4 bytes,
        # the buffer's index, and the offset in that buffer.
        view = c.rows + 16 * i
        size = load32(view)
        if size <= 12:
            at[0] = view + 4
        else:
            at[0] = <const uint8_t*>c.buffers[load32(view + 8)] + load32(view + 12)
        return size
    if layout == FIXED:
        at[0] = c.data + c.width * i
        return c.width
    if layout == SPANS:
        at[0] = (<const Span*>c.rows)[i].at
        return (<const Span*>c.rows)[i].size
    return -1


cdef inline int64_t cell(const Cells* c, int64_t i, const uint8_t** at) noexcept nogil:
    """Returns the size of row i, -1 for null, and stores its address in ``at``. The column must have been
    checked."""
    if c.validity != NULL and not bit_at(c.validity, c.first_bit + i):
        return -1
    if c.indices == NULL:
        return cell_of(c.layout, c, i, at)
    i = number(c.index, c.indices, i)
    c = c.words
    if c.validity != NULL and not bit_at(c.validity, c.first_bit + i):
        return -1
    return cell_of(c.layout, c, i, at)


cdef inline int64_t number_at(const Numbers* c, int64_t i) noexcept nogil:
    """Returns row i; -1 for null."""
    if c.validity != NULL and not bit_at(c.validity, c.first_bit + i):
        return -1
    return number(c.kind, c.data, i)


cdef inline int64_t milliseconds_at(const Numbers* c, int64_t i) noexcept nogil:
    """Returns row i of a checked column of timestamps, in ms; -1 for null."""
    cdef int64_t v = number_at(c, i)
    return v * c.times // c.per if v >= 0 else -1
