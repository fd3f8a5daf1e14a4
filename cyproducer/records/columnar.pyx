"""Columns of bytes, numbers and headers: from Arrow's layouts to row i's address and size.

Owns: which Arrow types may be what, and looking through a column when it comes in: shape, offsets,
dictionaries, views. What has passed is read without checks (``cell``, inlined into whoever appends). Does not
own: the memory (``arrow``), nor what rows may hold (``row_source``). Any thread; the GIL is needed to raise.

Foreign memory is trusted as far as its extent goes, which the C data interface does not tell: offsets must
grow from 0 on, dictionaries' indices and views must be within bounds.

Source: Apache Arrow, "Arrow Columnar Format" and "The Arrow C data interface".
"""

from libc.string cimport memcpy, strcmp, strncmp

from cyproducer.records.arrow cimport ArrowArray, ArrowSchema
from cyproducer.records.varint cimport put_varint, varint_size

# Source: Apache Arrow, "The Arrow C data interface", "Data type description - format strings".
TYPE_NAMES = {
    "n": "null", "b": "bool", "c": "int8", "C": "uint8", "s": "int16", "S": "uint16", "i": "int32",
    "I": "uint32", "l": "int64", "L": "uint64", "e": "float16", "f": "float32", "g": "float64",
    "z": "binary", "Z": "large_binary", "vz": "binary_view", "u": "string", "U": "large_string",
    "vu": "string_view", "tdD": "date32", "tdm": "date64", "+l": "list", "+L": "large_list",
    "+vl": "list_view", "+vL": "large_list_view", "+s": "struct", "+m": "map", "+r": "run_end_encoded",
}


cdef object type_name(const ArrowSchema* s):
    form = s.format.decode("utf-8", "replace") if s.format != NULL else ""
    name = TYPE_NAMES.get(form) or f"format {form!r}"
    return f"dictionary of {type_name(s.dictionary)}" if s.dictionary != NULL else name


cdef object malformed(str name, str what):
    return ValueError(f"column {name!r}: malformed Arrow data: {what}")


# Types

cdef int bytes_layout(const ArrowSchema* s, str name) except -1:
    """The layout of a column of bytes; of a dictionary, that of its words. ABSENT for the type null."""
    cdef const ArrowSchema* words = s
    cdef const char* form
    if s.dictionary != NULL:
        words = s.dictionary
    form = words.format
    if s.dictionary == NULL or (number_kind(s.format) and words.dictionary == NULL):
        if form == NULL:
            raise malformed(name, "it has no type")
        if strcmp(form, "z") == 0 or strcmp(form, "u") == 0:
            return OFFSETS32
        if strcmp(form, "Z") == 0 or strcmp(form, "U") == 0:
            return OFFSETS64
        if strcmp(form, "vz") == 0 or strcmp(form, "vu") == 0:
            return VIEWS
        if strncmp(form, "w:", 2) == 0:
            return FIXED
        if strcmp(form, "n") == 0:
            return ABSENT
    raise TypeError(
        f"column {name!r} is of type {type_name(s)}: must be binary, string, their large and view variants, "
        "fixed_size_binary, or a dictionary of one of these"
    )


cdef int number_kind(const char* form) noexcept:
    cdef const char* kinds = "_csilCSIL"
    cdef int kind
    if form != NULL and form[0] != 0 and form[1] == 0:
        for kind in range(INT8, UINT64 + 1):
            if kinds[kind] == form[0]:
                return kind
    return NO_NUMBER


cdef int number_size(int kind) noexcept:
    return 1 << ((kind - 1) & 3)


cdef int partition_type(const ArrowSchema* s, Numbers* c, str name) except -1:
    c.kind = number_kind(s.format)
    if c.kind == NO_NUMBER or s.dictionary != NULL:
        raise TypeError(
            f"column {name!r} is of type {type_name(s)}: partitions must be whole numbers (int8 to int64, "
            "uint8 to uint64)"
        )
    return 0


cdef int timestamp_type(const ArrowSchema* s, Numbers* c, str name) except -1:
    """The type of a column of timestamps, and its unit."""
    cdef const char* form = s.format
    c.kind = INT64
    c.times = 1
    c.per = 1
    if form != NULL and s.dictionary == NULL:
        if strcmp(form, "l") == 0 or strcmp(form, "tdm") == 0 or strncmp(form, "tsm:", 4) == 0:
            return 0
        if strncmp(form, "tss:", 4) == 0:
            c.times = 1000
            return 0
        if strncmp(form, "tsu:", 4) == 0:
            c.per = 1000
            return 0
        if strncmp(form, "tsn:", 4) == 0:
            c.per = 1_000_000
            return 0
    raise TypeError(
        f"column {name!r} is of type {type_name(s)}: timestamps must be of type timestamp (s, ms, us or ns), "
        "date64, or int64 as milliseconds since the epoch"
    )


cdef int headers_type(const ArrowSchema* s, str name) except -1:
    """Raises TypeError for what is no list of (key, value) structs; else whether offsets have 64 bits."""
    cdef const char* form = s.format
    cdef ArrowSchema* pair
    cdef bint wide = form != NULL and strcmp(form, "+L") == 0
    if form != NULL and s.dictionary == NULL and s.n_children == 1:
        pair = s.children[0]
        # A map is a list of structs by another name.
        if wide or strcmp(form, "+l") == 0 or strcmp(form, "+m") == 0:
            if pair.format != NULL and strcmp(pair.format, "+s") == 0 and pair.n_children == 2:
                bytes_layout(pair.children[0], f"{name}, key")
                bytes_layout(pair.children[1], f"{name}, value")
                return wide
    raise TypeError(
        f"column {name!r} is of type {type_name(s)}: headers must be a list or large_list of structs of two "
        "fields, a string (the key) and a string or binary (the value), or a map of these"
    )


# From arrays to columns

cdef int check_shape(const ArrowArray* a, int64_t buffers, int64_t needed, str name) except -1:
    """Refuses an array that can't be one of ``buffers`` buffers (-1: any) with ``needed`` rows."""
    if a.length < 0 or a.offset < 0 or a.null_count < -1 or a.null_count > a.length:
        raise malformed(name, f"length {a.length}, offset {a.offset}, null_count {a.null_count}")
    if a.length < needed:
        raise malformed(name, f"it has {a.length} rows and its batch {needed}")
    if buffers >= 0 and a.n_buffers != buffers:
        raise malformed(name, f"it has {a.n_buffers} buffers, its type {buffers}")
    if a.n_buffers > 0 and a.buffers == NULL:
        raise malformed(name, "it has no buffers")
    return 0


cdef int64_t first_null(const uint8_t* bits, int64_t start, int64_t n) noexcept nogil:
    """The first of ``n`` bits from ``start`` on that is 0, counted from there; -1: none."""
    cdef int64_t i = 0
    while i < n:
        if (start + i) & 7 == 0:
            while n - i >= 8 and bits[(start + i) >> 3] == 0xFF:
                i += 8
            if i >= n:
                break
        if not bit_at(bits, start + i):
            return i
        i += 1
    return -1


cdef int take_validity(
    const ArrowArray* a, int64_t skip, int64_t n, str name, const uint8_t** bits, int64_t* first
) except -1:
    """The bitmap of ``n`` rows behind ``skip`` others; NULL where none of them is null."""
    bits[0] = NULL
    first[0] = a.offset + skip
    if a.null_count == 0 or n == 0:
        return 0
    if a.buffers[0] == NULL:
        if a.null_count > 0:
            raise malformed(name, f"null_count is {a.null_count}, and there is no validity bitmap")
        return 0
    if first_null(<const uint8_t*>a.buffers[0], first[0], n) >= 0:
        bits[0] = <const uint8_t*>a.buffers[0]
    return 0


cdef int64_t check_cells(const Cells* c, int64_t n, int64_t words, int64_t* longest) noexcept nogil:
    """The first row that points beyond its memory, as far as that shows; -1: none. ``longest``: its bytes."""
    cdef int64_t i
    cdef int64_t size
    cdef int64_t most = 0
    cdef int64_t buffer
    cdef const uint8_t* view
    cdef bint bad = False
    if c.indices != NULL:
        for i in range(n):
            if c.validity == NULL or bit_at(c.validity, c.first_bit + i):
                if not 0 <= number(c.index, c.indices, i) < words:
                    return i
        return -1
    if c.layout == OFFSETS32:
        # Without a branch a row, so that the compiler takes several at once.
        bad = load32(c.rows) < 0
        for i in range(n):
            size = load32(c.rows + 4 * i + 4) - load32(c.rows + 4 * i)
            bad |= size < 0
            most = max(most, size)
        if bad or (most > 0 and c.data == NULL):
            for i in range(n):
                if load32(c.rows + 4 * i) < 0 or load32(c.rows + 4 * i + 4) < load32(c.rows + 4 * i):
                    return i
            return 0
    elif c.layout == OFFSETS64:
        for i in range(n):
            if load64(c.rows + 8 * i) < 0 or load64(c.rows + 8 * i + 8) < load64(c.rows + 8 * i):
                return i
            most = max(most, load64(c.rows + 8 * i + 8) - load64(c.rows + 8 * i))
        if most > 0 and c.data == NULL:
            return 0
    elif c.layout == FIXED:
        most = c.width
        if most > 0 and c.data == NULL:
            return 0
    elif c.layout == VIEWS:
        for i in range(n):
            if c.validity != NULL and not bit_at(c.validity, c.first_bit + i):
                continue
            view = c.rows + 16 * i
            size = load32(view)
            if size < 0:
                return i
            if size > 12:
                buffer = load32(view + 8)
                if not 0 <= buffer < c.buffer_count or load32(view + 12) < 0:
                    return i
                if load32(view + 12) + size > c.sizes[buffer] or c.buffers[buffer] == NULL:
                    return i
            most = max(most, size)
    longest[0] = most
    return -1


cdef int64_t describe_cells(
    Cells* c, Cells* words, const ArrowSchema* s, const ArrowArray* a, int64_t skip, int64_t n, str name,
    int64_t before,
) except -1:
    """Makes a column of ``n`` rows of an array, behind ``skip`` others, and looks through them.

    ``before``: rows of earlier batches, for errors. Returns the size of the longest row.
    """
    cdef int layout = bytes_layout(s, name)
    cdef int64_t longest = 0
    cdef int64_t bad
    cdef int64_t first = a.offset + skip
    cdef int64_t word_count = 0
    if s.dictionary != NULL:
        check_shape(a, 2, skip + n, name)
        if a.dictionary == NULL:
            raise malformed(name, "its dictionary is missing")
        word_count = a.dictionary.length
        longest = describe_cells(words, NULL, s.dictionary, a.dictionary, 0, word_count, name, 0)
        c.index = number_kind(s.format)
        c.words = words
        if n > 0 and a.buffers[1] == NULL:
            raise malformed(name, "its indices are missing")
        # Never NULL: that is what tells a dictionary from others.
        c.indices = <const uint8_t*>a
        if n > 0:
            c.indices = <const uint8_t*>a.buffers[1] + first * number_size(c.index)
    elif layout == ABSENT:
        check_shape(a, 0, skip + n, name)
        return 0
    elif layout == VIEWS:
        if a.n_buffers < 3:
            raise malformed(name, f"it has {a.n_buffers} buffers, its type at least 3")
        check_shape(a, -1, skip + n, name)
    else:
        check_shape(a, 2 if layout == FIXED else 3, skip + n, name)
    c.layout = layout
    if n == 0:
        return longest
    take_validity(a, skip, n, name, &c.validity, &c.first_bit)
    if c.indices == NULL:
        if a.buffers[1] == NULL and layout != FIXED:
            raise malformed(name, "its offsets are missing")
        if layout == OFFSETS32 or layout == OFFSETS64:
            c.rows = <const uint8_t*>a.buffers[1] + first * (4 if layout == OFFSETS32 else 8)
            c.data = <const uint8_t*>a.buffers[2]
        elif layout == VIEWS:
            c.rows = <const uint8_t*>a.buffers[1] + first * 16
            c.buffers = a.buffers + 2
            c.buffer_count = a.n_buffers - 3
            c.sizes = <const int64_t*>a.buffers[a.n_buffers - 1]
            if c.buffer_count > 0 and c.sizes == NULL:
                raise malformed(name, "the sizes of its buffers are missing")
        else:
            c.width = int((s.format + 2).decode())
            if c.width < 0:
                raise malformed(name, f"its width is {c.width}")
            c.data = <const uint8_t*>a.buffers[1]
            if c.data != NULL:
                c.data += first * c.width
    with nogil:
        bad = check_cells(c, n, word_count, &longest)
    if bad >= 0:
        raise malformed(name, f"row {before + bad} points outside the column's memory")
    return longest


cdef int describe_numbers(
    Numbers* c, const ArrowArray* a, int64_t skip, int64_t n, str name
) except -1:
    """Makes a column of numbers, whose kind is known, of an array."""
    check_shape(a, 2, skip + n, name)
    if n == 0:
        return 0
    if a.buffers[1] == NULL:
        raise malformed(name, "its data is missing")
    c.data = <const uint8_t*>a.buffers[1] + (a.offset + skip) * number_size(c.kind)
    return take_validity(a, skip, n, name, &c.validity, &c.first_bit)


cdef inline int64_t list_offset(const Headers* h, int64_t row) noexcept nogil:
    return load64(h.offsets + 8 * row) if h.wide else load32(h.offsets + 4 * row)


cdef int64_t headers_size_at(const Headers* h, int64_t row) noexcept nogil:
    """The bytes that ``encode_headers_at`` takes; -1: offsets out of bounds, -2: a header without a key."""
    cdef int64_t total
    cdef int64_t size
    cdef int64_t i
    cdef int64_t start
    cdef int64_t end
    cdef const uint8_t* at = NULL
    if h.validity != NULL and not bit_at(h.validity, h.first_bit + row):
        return 1
    start = list_offset(h, row)
    end = list_offset(h, row + 1)
    if start < 0 or end < start or end > h.room:
        return -1
    total = varint_size(end - start)
    for i in range(start, end):
        if h.struct_validity != NULL and not bit_at(h.struct_validity, h.struct_bit + i):
            return -2
        size = cell(&h.key, i, &at)
        if size < 0:
            return -2
        total += varint_size(size) + size
        size = cell(&h.value, i, &at)
        total += varint_size(size) + max(size, 0)
    return total


cdef int64_t encode_headers_at(const Headers* h, int64_t row, uint8_t* out) noexcept nogil:
    """A row's headers as a record has them, count first; returns how many bytes that takes."""
    cdef uint8_t* p = out
    cdef int64_t size
    cdef int64_t i
    cdef int64_t start
    cdef int64_t end
    cdef const uint8_t* at = NULL
    if h.validity != NULL and not bit_at(h.validity, h.first_bit + row):
        p[0] = 0
        return 1
    start = list_offset(h, row)
    end = list_offset(h, row + 1)
    p = put_varint(p, end - start)
    for i in range(start, end):
        size = cell(&h.key, i, &at)
        p = put_varint(p, size)
        memcpy(p, at, size)
        p += size
        size = cell(&h.value, i, &at)
        p = put_varint(p, size)
        if size > 0:
            memcpy(p, at, size)
            p += size
    return p - out


cdef int64_t describe_headers(
    Headers* h, const ArrowSchema* s, const ArrowArray* a, int64_t skip, int64_t n, str name, int64_t before
) except -1:
    """Makes a column of headers of an array; returns the bytes that the largest row's take, encoded."""
    cdef const ArrowArray* pairs
    cdef int64_t row = 0
    cdef int64_t size = 0
    cdef int64_t largest = 1
    cdef int key = 0
    h.wide = headers_type(s, name)
    check_shape(a, 2, skip + n, name)
    if a.n_children != 1 or a.children == NULL or a.children[0] == NULL:
        raise malformed(name, f"a list has {a.n_children} children")
    pairs = a.children[0]
    check_shape(pairs, 1, 0, name)
    if pairs.n_children != 2 or pairs.children == NULL:
        raise malformed(name, f"its structs have {pairs.n_children} fields and their type 2")
    h.room = pairs.length
    # By name where the names say so, else by place.
    if field_is(s.children[0].children[0], "value") and field_is(s.children[0].children[1], "key"):
        key = 1
    describe_cells(
        &h.key, &h.key_words, s.children[0].children[key], pairs.children[key], pairs.offset, h.room,
        f"{name}, key", 0,
    )
    describe_cells(
        &h.value, &h.value_words, s.children[0].children[1 - key], pairs.children[1 - key], pairs.offset,
        h.room, f"{name}, value", 0,
    )
    take_validity(pairs, 0, h.room, name, &h.struct_validity, &h.struct_bit)
    if n == 0:
        return largest
    if a.buffers[1] == NULL:
        raise malformed(name, "its offsets are missing")
    h.offsets = <const uint8_t*>a.buffers[1] + (a.offset + skip) * (8 if h.wide else 4)
    take_validity(a, skip, n, name, &h.validity, &h.first_bit)
    with nogil:
        for row in range(n):
            size = headers_size_at(h, row)
            if size < 0:
                break
            largest = max(largest, size)
    if size == -1:
        raise malformed(name, f"row {before + row} points outside the column's memory")
    if size == -2:
        raise ValueError(f"column {name!r}, row {before + row}: a header has no key: keys must not be null")
    return largest


cdef bint field_is(const ArrowSchema* s, const char* name) noexcept:
    return s.name != NULL and strcmp(s.name, name) == 0
