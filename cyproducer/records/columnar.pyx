"""Reads columns of bytes, numbers and headers in Arrow's layouts: finds each row's address and size.

Owns which Arrow types each role accepts, and the checks of a column when it is imported: shape, offsets,
dictionaries, views. A checked column is read without further checks (``cell``, inlined into the appending
code). Does not own the memory (``arrow``) or the checks of the rows' values (``row_source``). Any thread may
call it; raising needs the GIL.

The C data interface does not report the size of foreign memory, so the size that the data implies must be
trusted. For this, offsets must be at least 0 and must not decrease, and the indices of dictionaries and views
must be within bounds. Foreign numbers are not trusted: ``plus`` and ``times`` reject sums and products beyond
any possible address.

Source: Apache Arrow, "Arrow Columnar Format" and "The Arrow C data interface".
"""

from libc.string cimport memcpy, strcmp, strncmp

from cyproducer.records.arrow cimport ArrowArray, ArrowSchema
from cyproducer.records.varint cimport put_varint, varint_size

cdef extern from *:
    """
    static inline int cyp_add_overflows(int64_t a, int64_t b, int64_t *sum) {
        return __builtin_add_overflow(a, b, sum);
    }
    static inline int cyp_multiply_overflows(int64_t a, int64_t b, int64_t *product) {
        return __builtin_mul_overflow(a, b, product);
    }
    """
    bint cyp_add_overflows(int64_t a, int64_t b, int64_t* sum) noexcept nogil
    bint cyp_multiply_overflows(int64_t a, int64_t b, int64_t* product) noexcept nogil

# Replaces the address of an empty buffer, which may be NULL: C allows neither adding an offset to NULL nor
# copying from it.
cdef uint8_t NOTHING = 0

# No process has more memory than this: addresses have at most 57 bits, and one bit marks the kernel's half.
# Adding sizes up to this limit does not overflow.
cdef int64_t MOST_BYTES = 1 << 56

# A record's size is an int32, so the sizes of headers are not counted beyond the largest int32.
cdef int64_t MOST_HEADERS = 0x7FFFFFFF

# Source: Apache Arrow, "The Arrow C data interface", "Data type description - format strings".
TYPE_NAMES = {
    "n": "null", "b": "bool", "c": "int8", "C": "uint8", "s": "int16", "S": "uint16", "i": "int32",
    "I": "uint32", "l": "int64", "L": "uint64", "e": "float16", "f": "float32", "g": "float64",
    "z": "binary", "Z": "large_binary", "vz": "binary_view", "u": "string", "U": "large_string",
    "vu": "string_view", "tdD": "date32", "tdm": "date64", "+l": "list", "+L": "large_list",
    "+vl": "list_view", "+vL": "large_list_view", "+s": "struct", "+m": "map", "+r": "run_end_encoded",
}
# A map has the layout of a list of structs.
LIST_LAYOUTS = {b"+l": LISTS32, b"+m": LISTS32, b"+L": LISTS64, b"+vl": LIST_VIEWS32, b"+vL": LIST_VIEWS64}
# Names of types with parameters, by the prefix of their format.
PARAMETRIC_NAMES = {
    "w:": "fixed_size_binary", "d:": "decimal", "+w:": "fixed_size_list", "+u": "union", "tt": "time",
    "tD": "duration", "ti": "interval", "ts": "timestamp",
}


cdef object type_name(const ArrowSchema* s):
    form = s.format.decode("utf-8", "replace") if s.format != NULL else ""
    name = TYPE_NAMES.get(form)
    if s.dictionary != NULL:
        # A dictionary of a dictionary is not valid, so a chain of them is not followed.
        of = "a dictionary" if s.dictionary.dictionary != NULL else type_name(s.dictionary)
        return f"dictionary of {of}"
    if form == "+r" and s.n_children == 2 and s.children != NULL and s.children[1] != NULL:
        return f"{name} of {type_name(s.children[1])}"
    for start, other in PARAMETRIC_NAMES.items():
        if name is None and form.startswith(start):
            name = other
    return name or f"format {form!r}"


cdef object refused_type(const ArrowSchema* s, str name, str must):
    """Returns the error for a column of an unsupported type. ``must``: the accepted types, and how to
    convert."""
    if s.format != NULL and strcmp(s.format, "+r") == 0:
        must += "; decode its runs first (pyarrow.compute.run_end_decode)"
    elif s.dictionary != NULL and number_kind(s.dictionary.format):
        must += f"; cast it to {type_name(s.dictionary)} first"
    return TypeError(f"column {name!r} is of type {type_name(s)}: {must}")


cdef object malformed(str name, str what):
    """Returns the error for a column, or for the whole table if ``name`` is None."""
    place = "data" if name is None else f"column {name!r}"
    return ValueError(f"{place}: malformed Arrow data: {what}")


cdef int64_t plus(int64_t a, int64_t b, str name) except -1:
    """Returns the sum of two foreign numbers, which must not be negative. Raises if the sum overflows."""
    cdef int64_t total = 0
    if cyp_add_overflows(a, b, &total):
        raise malformed(name, f"{a} + {b} rows exceed the address space")
    return total


cdef int64_t times(int64_t a, int64_t b, str name) except -1:
    """Returns the product of two foreign numbers, which must not be negative: the bytes of ``a`` rows of
    ``b`` bytes. Raises if the product exceeds the address space."""
    cdef int64_t product = 0
    if cyp_multiply_overflows(a, b, &product) or product > MOST_BYTES:
        raise malformed(name, f"{a} rows of {b} bytes exceed the address space")
    return product


cdef const uint8_t* at_row(const void* data, int64_t first, int64_t n, int64_t size, str name) except? NULL:
    """Returns the address of row ``first``. Raises if ``n`` rows of ``size`` bytes from there on can't fit in
    memory."""
    times(plus(first, n, name), size, name)
    return <const uint8_t*>data + first * size


# Types

cdef int bytes_layout(const ArrowSchema* s, str name) except -1:
    """Returns the layout of a column of bytes; for a dictionary, the layout of its words. Returns ABSENT for
    the type null."""
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
    raise refused_type(
        s, name,
        "must be binary, string, their large and view variants, fixed_size_binary, or a dictionary of one of "
        "these: cast it",
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
    return 8 if kind == FLOAT64 else 1 << ((kind - 1) & 3)


cdef int partition_type(const ArrowSchema* s, Numbers* c, str name) except -1:
    """Sets the kind of the numbers in a column of partitions; NO_NUMBER for the type null."""
    c.kind = number_kind(s.format)
    if s.dictionary == NULL and s.format != NULL:
        if strcmp(s.format, "g") == 0:
            c.kind = FLOAT64
        if c.kind or strcmp(s.format, "n") == 0:
            return 0
    raise refused_type(
        s, name,
        "partitions must be integers (int8 to int64, uint8 to uint64, or float64, with NaN for a partition "
        "that the partitioner chooses): cast it",
    )


cdef int timestamp_type(const ArrowSchema* s, Numbers* c, str name) except -1:
    """Sets the kind and the unit of a column of timestamps; the kind is NO_NUMBER for the type null."""
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
        if strcmp(form, "tdD") == 0:
            c.kind = INT32
            c.times = 86_400_000
            return 0
        if strcmp(form, "L") == 0:
            c.kind = UINT64
            return 0
        if strcmp(form, "n") == 0:
            c.kind = NO_NUMBER
            return 0
    # 32-bit integers and floats are rejected, because they are more likely to be seconds.
    raise refused_type(
        s, name,
        "timestamps must be of type timestamp (s, ms, us or ns), date32, date64, or int64 or uint64 as "
        "milliseconds since the epoch: cast it",
    )


cdef int64_t fixed_width(const char* form, str name) except -1:
    """Returns the bytes per row of fixed_size_binary, from its format, such as "w:42"."""
    digits = (form + 2).decode("utf-8", "replace")
    if not (digits.isascii() and digits.isdigit()):
        raise malformed(name, f"its width is {digits!r}")
    if len(digits) > 18:
        raise malformed(name, f"its width is {digits}")
    return int(digits)


cdef int headers_type(const ArrowSchema* s, str name) except -1:
    """Returns the layout; NO_LISTS for the type null. Raises TypeError for any type except lists of (key,
    value) structs."""
    cdef const char* form = s.format
    cdef ArrowSchema* pair
    cdef int layout = NO_LISTS
    if form != NULL and s.dictionary == NULL:
        if strcmp(form, "n") == 0:
            return NO_LISTS
        fixed = strncmp(form, "+w:", 3) == 0
        layout = FIXED_LISTS if fixed else LIST_LAYOUTS.get(<bytes>form, NO_LISTS)
    if layout and s.n_children == 1 and s.children != NULL:
        pair = s.children[0]
        if pair.format != NULL and strcmp(pair.format, "n") == 0:
            # Libraries give this type to lists that are all empty.
            return layout
        if pair.format != NULL and strcmp(pair.format, "+s") == 0 and pair.n_children == 2:
            bytes_layout(pair.children[0], f"{name}, key")
            bytes_layout(pair.children[1], f"{name}, value")
            return layout
    raise refused_type(
        s, name,
        "headers must be lists (list, list_view, their large variants, fixed_size_list) of structs of two "
        "fields, a string (the key) and a string or binary (the value), or a map of these: cast it",
    )


# From arrays to columns

cdef int check_counts(const ArrowArray* a, str name) except -1:
    """Raises if an array is missing or released, or has impossible numbers of rows."""
    if a == NULL:
        raise malformed(name, "its array is missing")
    if a.release == NULL:
        raise malformed(name, "its array is already released")
    if a.length < 0:
        raise malformed(name, f"length {a.length}: must be at least 0")
    if a.offset < 0:
        raise malformed(name, f"offset {a.offset}: must be at least 0")
    if a.null_count < -1 or a.null_count > a.length:
        raise malformed(
            name, f"null_count {a.null_count}: must be -1, for unknown, or from 0 to the length, {a.length}"
        )
    plus(a.offset, a.length, name)
    return 0


cdef int check_array(
    const ArrowSchema* s, const ArrowArray* a, int64_t buffers, int64_t children, int64_t needed, str name
) except -1:
    """Raises if an array does not match its type, or has fewer than ``needed`` rows.

    ``buffers`` and ``children``: how many of them its type needs. ``buffers`` is -1 if any number is allowed.
    """
    check_counts(a, name)
    if s.release == NULL:
        raise malformed(name, "its schema is already released")
    if a.length < needed:
        raise malformed(name, f"it has {a.length} rows, its batch {needed}")
    if buffers >= 0 and a.n_buffers != buffers:
        raise malformed(name, f"it has {a.n_buffers} buffers, its type needs {buffers}")
    if a.n_buffers > 0 and a.buffers == NULL:
        raise malformed(name, "it has no buffers")
    if s.n_children != children:
        raise malformed(name, f"its schema has {s.n_children} children, its type needs {children}")
    if a.n_children != children:
        raise malformed(name, f"it has {a.n_children} children, its type needs {children}")
    if children > 0 and a.children == NULL:
        raise malformed(name, "its children are missing")
    if s.dictionary != NULL and a.dictionary == NULL:
        raise malformed(name, "its dictionary is missing")
    if s.dictionary == NULL and a.dictionary != NULL:
        raise malformed(name, "it has a dictionary, its type has none")
    return 0


cdef int64_t first_null(const uint8_t* bits, int64_t start, int64_t n) noexcept nogil:
    """Returns the index, relative to ``start``, of the first of ``n`` bits that is 0; -1 if there is none."""
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
    const ArrowArray* a, int64_t skip, int64_t n, bint look, str name, const uint8_t** bits, int64_t* first
) except -1:
    """Sets ``bits`` to the bitmap of ``n`` rows, after ``skip`` others; NULL if none of the ``n`` rows is
    null.

    ``look``: whether to search the bitmap for a null. If not, ``bits`` may be a bitmap without any null.
    """
    bits[0] = NULL
    first[0] = a.offset + skip
    if a.null_count == 0 or n == 0:
        return 0
    times(plus(first[0], n, name) >> 3, 1, name)
    if a.buffers[0] == NULL:
        if a.null_count > 0:
            raise malformed(name, f"null_count is {a.null_count}, but there is no validity bitmap")
        return 0
    if not look or first_null(<const uint8_t*>a.buffers[0], first[0], n) >= 0:
        bits[0] = <const uint8_t*>a.buffers[0]
    return 0


cdef int64_t check_cells(const Cells* c, int64_t start, int64_t end, int64_t* longest) noexcept nogil:
    """Returns the first row from ``start`` to ``end`` that provably points outside its memory; -1 if none.

    ``longest``: raised to the size of the longest row, if that is larger. The cost depends on the number of
    rows, not on the number of words in a dictionary, because rows may use only a few of the words.
    """
    cdef int64_t i
    cdef int64_t word
    cdef int64_t size
    cdef int64_t most = 0
    cdef int64_t buffer
    cdef const uint8_t* view
    cdef bint bad = False
    cdef bint all_words
    if start >= end:
        return -1
    if c.indices != NULL:
        all_words = c.word_count <= end - start
        if all_words and check_cells(c.words, 0, c.word_count, longest) >= 0:
            return start
        for i in range(start, end):
            if c.validity == NULL or bit_at(c.validity, c.first_bit + i):
                word = number(c.index, c.indices, i)
                if not 0 <= word < c.word_count:
                    return i
                if not all_words and check_cells(c.words, word, word + 1, longest) >= 0:
                    return i
        return -1
    if c.layout == OFFSETS32:
        # Without a branch per row, so that the compiler can vectorize the loop.
        bad = load32(c.rows + 4 * start) < 0
        for i in range(start, end):
            size = load32(c.rows + 4 * i + 4) - load32(c.rows + 4 * i)
            bad |= size < 0
            most = max(most, size)
        if bad or load32(c.rows + 4 * end) > c.data_size or (most > 0 and c.data == NULL):
            for i in range(start, end):
                size = load32(c.rows + 4 * i + 4)
                if load32(c.rows + 4 * i) < 0 or size < load32(c.rows + 4 * i) or size > c.data_size:
                    return i
            return start
    elif c.layout == OFFSETS64:
        for i in range(start, end):
            if load64(c.rows + 8 * i) < 0 or load64(c.rows + 8 * i + 8) < load64(c.rows + 8 * i):
                return i
            most = max(most, load64(c.rows + 8 * i + 8) - load64(c.rows + 8 * i))
        if load64(c.rows + 8 * end) > c.data_size:
            for i in range(start, end):
                if load64(c.rows + 8 * i + 8) > c.data_size:
                    return i
        if (most > 0 and c.data == NULL) or load64(c.rows + 8 * end) > MOST_BYTES:
            return start
    elif c.layout == FIXED:
        most = c.width
    elif c.layout == VIEWS:
        for i in range(start, end):
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
    longest[0] = max(longest[0], most)
    return -1


cdef object outside(str name, int64_t row, str fault):
    return malformed(name, f"row {row} points outside the column's memory: {fault}")


cdef str fault_of(const Cells* c, int64_t i):
    """Describes what is wrong with row ``i``, which ``check_cells`` has found."""
    cdef const uint8_t* view
    cdef int64_t longest = 0
    cdef int64_t word
    cdef int64_t size
    cdef int64_t start
    cdef int64_t end
    cdef int64_t buffer
    if c.indices != NULL:
        word = number(c.index, c.indices, i)
        if c.word_count <= 0 or not 0 <= word < c.word_count:
            return f"its index is {word}, its dictionary has {c.word_count} values"
        if check_cells(c.words, word, word + 1, &longest) < 0:
            # All words were checked, and another one is wrong.
            word = check_cells(c.words, 0, c.word_count, &longest)
        return f"value {word} of its dictionary: {fault_of(c.words, word)}"
    if c.layout == VIEWS:
        view = c.rows + 16 * i
        size = load32(view)
        if size < 0:
            return f"its size is {size}: must be at least 0"
        buffer = load32(view + 8)
        start = load32(view + 12)
        if not 0 <= buffer < c.buffer_count:
            return f"it is in buffer {buffer} of values, there are {c.buffer_count}"
        if start < 0 or start + size > c.sizes[buffer]:
            end = start + size
            return f"its bytes {start} to {end} are not in buffer {buffer}, which has {c.sizes[buffer]} bytes"
        return f"buffer {buffer} of values is missing"
    start = load32(c.rows + 4 * i) if c.layout == OFFSETS32 else load64(c.rows + 8 * i)
    end = load32(c.rows + 4 * i + 4) if c.layout == OFFSETS32 else load64(c.rows + 8 * i + 8)
    if start < 0 or end < start:
        return f"its offsets are {start} and {end}: must be at least 0, and not decrease"
    if end > c.data_size:
        return f"its offsets are {start} and {end}, the last offset of the column is {c.data_size}"
    return "the data is missing" if c.data == NULL else "the offsets exceed the address space"


cdef int64_t describe_cells(
    Cells* c, Cells* words, const ArrowSchema* s, const ArrowArray* a, int64_t skip, int64_t n, str name,
    int64_t before,
) except -1:
    """Makes a column from ``n`` rows of an array, after ``skip`` others, and checks these ``n`` rows.

    ``before``: the number of rows in earlier batches, for error messages. Returns the size of the longest
    row.
    """
    cdef int64_t longest = 0
    cdef int64_t bad
    point_cells(c, words, s, a, skip, n, True, name)
    if n <= 64:   # checking so few rows costs less than releasing the GIL
        bad = check_cells(c, 0, n, &longest)
    else:
        with nogil:
            bad = check_cells(c, 0, n, &longest)
    if bad >= 0:
        raise outside(name, before + bad, fault_of(c, bad))
    never_null(c)
    if c.indices != NULL:
        never_null(words)
    return longest


cdef void never_null(Cells* c) noexcept:
    """Gives a checked column without bytes an address that is not NULL."""
    if c.layout != ABSENT and c.indices == NULL and c.data == NULL:
        c.data = &NOTHING


cdef int point_cells(
    Cells* c, Cells* words, const ArrowSchema* s, const ArrowArray* a, int64_t skip, int64_t n, bint look,
    str name,
) except -1:
    """Like ``describe_cells``, but does not check the rows: the caller must do so.

    ``look``: whether to search for nulls; see ``take_validity``.
    """
    cdef int layout = bytes_layout(s, name)
    cdef int64_t first
    cdef int64_t needed = plus(skip, n, name)
    if s.dictionary != NULL:
        check_array(s, a, 2, 0, needed, name)
        of = f"{name}, dictionary"
        check_counts(a.dictionary, of)
        c.word_count = a.dictionary.length
        point_cells(words, NULL, s.dictionary, a.dictionary, 0, c.word_count, c.word_count <= n, of)
        c.index = number_kind(s.format)
        c.words = words
        if n > 0 and a.buffers[1] == NULL:
            raise malformed(name, "its indices are missing")
        # Set even if there are no rows: a column is a dictionary if `indices` is not NULL.
        c.indices = <const uint8_t*>a
    elif layout == ABSENT:
        return check_array(s, a, 0, 0, needed, name)
    elif layout == VIEWS:
        check_array(s, a, -1, 0, needed, name)
        # A view refers to its buffer by an int32.
        if not 3 <= a.n_buffers <= <int64_t>0x7FFFFFFF:
            raise malformed(name, f"it has {a.n_buffers} buffers, its type needs at least 3")
    else:
        check_array(s, a, 2 if layout == FIXED else 3, 0, needed, name)
    c.layout = layout
    if layout == FIXED and c.indices == NULL:
        c.width = fixed_width(s.format, name)
    if n == 0:
        return 0
    first = plus(a.offset, skip, name)
    take_validity(a, skip, n, look, name, &c.validity, &c.first_bit)
    if c.indices != NULL:
        c.indices = at_row(a.buffers[1], first, n, number_size(c.index), name)
    elif layout == FIXED:
        c.data = &NOTHING
        if a.buffers[1] != NULL:
            c.data = at_row(a.buffers[1], first, n, c.width, name)
        elif c.width > 0:
            raise malformed(name, "its data is missing")
    else:
        if a.buffers[1] == NULL:
            raise malformed(name, "its offsets are missing")
        if layout == VIEWS:
            c.rows = at_row(a.buffers[1], first, n, 16, name)
            c.buffers = a.buffers + 2
            c.buffer_count = a.n_buffers - 3
            c.sizes = <const int64_t*>a.buffers[a.n_buffers - 1]
            if c.buffer_count > 0 and c.sizes == NULL:
                raise malformed(name, "the sizes of its buffers are missing")
        else:
            # There is one more offset than rows.
            plus(plus(first, n, name), 1, name)
            c.rows = at_row(a.buffers[1], first, n + 1, 4 if layout == OFFSETS32 else 8, name)
            c.data = <const uint8_t*>a.buffers[2]
            # The last offset of the whole array, including rows that are not read, is the size of the data.
            if layout == OFFSETS32:
                c.data_size = load32(at_row(a.buffers[1], plus(a.offset, a.length, name), 1, 4, name))
            else:
                c.data_size = load64(at_row(a.buffers[1], plus(a.offset, a.length, name), 1, 8, name))
    return 0


cdef int describe_numbers(
    Numbers* c, const ArrowSchema* s, const ArrowArray* a, int64_t skip, int64_t n, str name
) except -1:
    """Makes a column of numbers from an array; ``kind`` must be set."""
    if c.kind == NO_NUMBER:
        # The type null: treated like a missing column.
        return check_array(s, a, 0, 0, plus(skip, n, name), name)
    check_array(s, a, 2, 0, plus(skip, n, name), name)
    if n == 0:
        return 0
    if a.buffers[1] == NULL:
        raise malformed(name, "its data is missing")
    c.data = at_row(a.buffers[1], plus(a.offset, skip, name), n, number_size(c.kind), name)
    return take_validity(a, skip, n, True, name, &c.validity, &c.first_bit)


cdef inline int64_t list_at(const Headers* h, int64_t row, int64_t* end) noexcept nogil:
    """Returns the first element of a row's list, and sets ``end`` to the element after its last."""
    cdef int64_t start
    if h.layout == LISTS32:
        end[0] = load32(h.offsets + 4 * row + 4)
        return load32(h.offsets + 4 * row)
    if h.layout == LISTS64:
        end[0] = load64(h.offsets + 8 * row + 8)
        return load64(h.offsets + 8 * row)
    if h.layout == LIST_VIEWS32:
        start = load32(h.offsets + 4 * row)
        end[0] = start + load32(h.sizes + 4 * row)
        return start
    if h.layout == LIST_VIEWS64:
        start = load64(h.offsets + 8 * row)
        # Unsigned, because the sum of two large numbers must not overflow before it is checked.
        end[0] = <int64_t>(<uint64_t>start + <uint64_t>load64(h.sizes + 8 * row))
        return start
    start = (h.first_row + row) * h.width
    end[0] = start + h.width
    return start


cdef int64_t headers_size_at(const Headers* h, int64_t row) noexcept nogil:
    """Returns the number of bytes that ``encode_headers_at`` needs; -1 if a header has no key.

    Stops counting above MOST_HEADERS: headers without bytes take no memory, so there may be any number of
    them.
    """
    cdef int64_t total
    cdef int64_t size
    cdef int64_t i
    cdef int64_t start
    cdef int64_t end = 0
    cdef const uint8_t* at = NULL
    if h.layout == ENCODED:
        return (<const Span*>h.offsets)[row * h.width].size
    if h.validity != NULL and not bit_at(h.validity, h.first_bit + row):
        return 1
    start = list_at(h, row, &end)
    # Each header takes at least two bytes.
    if end - start > MOST_HEADERS // 2:
        return MOST_HEADERS + 1
    total = varint_size(end - start)
    for i in range(start - h.base, end - h.base):
        if h.struct_validity != NULL and not bit_at(h.struct_validity, h.struct_bit + i):
            return -1
        size = min(cell(&h.key, i, &at), MOST_HEADERS)
        if size < 0:
            return -1
        total += varint_size(size) + size
        size = min(cell(&h.value, i, &at), MOST_HEADERS)
        total += varint_size(size) + max(size, 0)
        if total > MOST_HEADERS:
            break
    return total


cdef int64_t unreadable_key(const Headers* h, int64_t row) noexcept nogil:
    """Returns the first header of a row whose key is not UTF-8, counted from ``base``; -1 if there is none.

    The row must have been checked.
    """
    cdef int64_t i
    cdef int64_t size
    cdef int64_t start
    cdef int64_t end = 0
    cdef const uint8_t* at = NULL
    if h.validity == NULL or bit_at(h.validity, h.first_bit + row):
        start = list_at(h, row, &end)
        for i in range(start - h.base, end - h.base):
            size = cell(&h.key, i, &at)
            if not is_utf8(at, size):
                return i
    return -1


cdef bint is_utf8(const uint8_t* p, int64_t size) noexcept nogil:
    """Returns whether bytes are valid UTF-8 (RFC 3629, section 4): no overlong forms, no surrogates, nothing
    above U+10FFFF."""
    cdef int64_t i = 0
    cdef int64_t j
    cdef int more
    cdef uint8_t c
    cdef uint8_t least
    cdef uint8_t most
    while i < size:
        c = p[i]
        i += 1
        if c < 0x80:
            continue
        least = 0x80
        most = 0xBF
        if 0xC2 <= c <= 0xDF:
            more = 1
        elif 0xE0 <= c <= 0xEF:
            more = 2
            if c == 0xE0:
                least = 0xA0
            elif c == 0xED:
                most = 0x9F
        elif 0xF0 <= c <= 0xF4:
            more = 3
            if c == 0xF0:
                least = 0x90
            elif c == 0xF4:
                most = 0x8F
        else:
            return False
        if size - i < more:
            return False
        for j in range(i, i + more):
            if not least <= p[j] <= most:
                return False
            least = 0x80
            most = 0xBF
        i += more
    return True


cdef int64_t encode_headers_at(const Headers* h, int64_t row, uint8_t* out) noexcept nogil:
    """Writes a row's headers as in a record, with the count first; returns the number of bytes."""
    cdef uint8_t* p = out
    cdef int64_t size
    cdef int64_t i
    cdef int64_t start
    cdef int64_t end = 0
    cdef const uint8_t* at = NULL
    cdef const Span* whole
    if h.layout == ENCODED:
        whole = <const Span*>h.offsets + row * h.width
        memcpy(out, whole.at, whole.size)
        return whole.size
    if h.validity != NULL and not bit_at(h.validity, h.first_bit + row):
        p[0] = 0
        return 1
    start = list_at(h, row, &end)
    p = put_varint(p, end - start)
    for i in range(start - h.base, end - h.base):
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


cdef int64_t elements_of(Headers* h, int64_t n, int64_t room, int64_t* last) noexcept nogil:
    """Sets ``base`` to the first element of ``n`` rows, and ``last`` to the element after their last one.

    Returns the first row whose elements are not within the array's ``room`` elements; -1 if there is none.
    """
    cdef int64_t row
    cdef int64_t start
    cdef int64_t end = 0
    cdef int64_t least = room
    last[0] = 0
    for row in range(n):
        if h.validity != NULL and not bit_at(h.validity, h.first_bit + row):
            continue
        start = list_at(h, row, &end)
        if start < 0 or end < start or end > room:
            return row
        if start < end:
            least = min(least, start)
            last[0] = max(last[0], end)
    h.base = min(least, last[0])
    return -1


cdef int64_t check_elements(const Headers* h, int64_t n, const Cells** wrong) noexcept nogil:
    """Returns the first element, counted from ``base``, whose key or value points outside its memory; -1 if
    none.

    ``wrong``: set to the column of that key or value.
    """
    cdef int64_t longest = 0
    cdef int64_t row
    cdef int64_t start = 0
    cdef int64_t end = 0
    cdef int64_t bad
    cdef int64_t begun = 0
    cdef int64_t ended = 0
    # Lists are usually contiguous, so many rows are checked together.
    for row in range(n + 1):
        if row < n:
            if h.validity != NULL and not bit_at(h.validity, h.first_bit + row):
                continue
            start = list_at(h, row, &end)
            if start == end:
                continue
            if start - h.base == ended:
                ended = end - h.base
                continue
        wrong[0] = &h.key
        bad = check_cells(wrong[0], begun, ended, &longest)
        if bad < 0:
            wrong[0] = &h.value
            bad = check_cells(wrong[0], begun, ended, &longest)
        if bad >= 0:
            return bad
        if row < n:
            begun = start - h.base
            ended = end - h.base
    return -1


cdef int64_t row_with(const Headers* h, int64_t n, int64_t element) noexcept nogil:
    """Returns the first of ``n`` rows whose list contains ``element``, which is counted from ``base``."""
    cdef int64_t row
    cdef int64_t start
    cdef int64_t end = 0
    for row in range(n):
        if h.validity == NULL or bit_at(h.validity, h.first_bit + row):
            start = list_at(h, row, &end)
            if start <= h.base + element < end:
                return row
    return 0


cdef int64_t describe_headers(
    Headers* h, const ArrowSchema* s, const ArrowArray* a, int64_t skip, int64_t n, str name, int64_t before
) except -1:
    """Makes a column of headers from an array; returns the encoded size of the largest row's headers."""
    # Only the elements of these rows are checked, because a slice includes the elements of the whole column.
    cdef const ArrowArray* pairs
    cdef const ArrowArray* child
    cdef const ArrowSchema* pair
    cdef int64_t row = 0
    cdef int64_t size = 0
    cdef int64_t largest = 1
    cdef int64_t last = 0
    cdef int64_t bad
    cdef int layout = headers_type(s, name)
    cdef int key = 0
    cdef int64_t unreadable = -1
    cdef int64_t buffers = 2
    cdef const Cells* wrong = NULL
    cdef const uint8_t* at = NULL
    if layout == NO_LISTS:
        check_array(s, a, 0, 0, plus(skip, n, name), name)
        return largest
    if layout == FIXED_LISTS:
        buffers = 1
    elif layout in (LIST_VIEWS32, LIST_VIEWS64):
        buffers = 3
    check_array(s, a, buffers, 1, plus(skip, n, name), name)
    pairs = a.children[0]
    pair = s.children[0]
    # The elements are either structs of two fields, or of the type null.
    if strcmp(pair.format, "n") == 0:
        check_array(pair, pairs, 0, 0, 0, f"{name}, elements")
    else:
        check_array(pair, pairs, 1, 2, 0, f"{name}, elements")
    if n == 0:
        return largest
    h.layout = layout
    h.first_row = plus(a.offset, skip, name)
    if layout == FIXED_LISTS:
        h.width = fixed_width(s.format + 1, name)
        if h.width > 0 and plus(h.first_row, n, name) > pairs.length // h.width:
            raise malformed(name, f"{pairs.length} elements for lists of {h.width}")
    else:
        if a.buffers[1] == NULL:
            raise malformed(name, "its offsets are missing")
        size = 4 if layout in (LISTS32, LIST_VIEWS32) else 8
        if layout in (LISTS32, LISTS64):
            # There is one more offset than rows.
            plus(plus(h.first_row, n, name), 1, name)
            h.offsets = at_row(a.buffers[1], h.first_row, n + 1, size, name)
        else:
            h.offsets = at_row(a.buffers[1], h.first_row, n, size, name)
            if a.buffers[2] == NULL:
                raise malformed(name, "its sizes are missing")
            h.sizes = at_row(a.buffers[2], h.first_row, n, size, name)
    take_validity(a, skip, n, True, name, &h.validity, &h.first_bit)
    with nogil:
        bad = elements_of(h, n, pairs.length, &last)
    if bad >= 0:
        row = list_at(h, bad, &size)
        raise outside(
            name, before + bad,
            f"its list is from element {row} to {size}, the column has the elements 0 to {pairs.length}",
        )
    if pair.n_children == 2:
        # The fields are identified by name if the names are (value, key), otherwise by position.
        if field_is(pair.children[0], "value") and field_is(pair.children[1], "key"):
            key = 1
        size = last - h.base
        row = plus(pairs.offset, h.base, name)
        child = pairs.children[key]
        point_cells(&h.key, &h.key_words, pair.children[key], child, row, size, False, f"{name}, key")
        key = 1 - key
        child = pairs.children[key]
        point_cells(&h.value, &h.value_words, pair.children[key], child, row, size, False, f"{name}, value")
        take_validity(pairs, h.base, last - h.base, False, name, &h.struct_validity, &h.struct_bit)
    with nogil:
        bad = check_elements(h, n, &wrong)
    if bad >= 0:
        raise outside(
            name, before + row_with(h, n, bad),
            f"the {'key' if wrong == &h.key else 'value'} of a header: {fault_of(wrong, bad)}",
        )
    never_null(&h.key)
    never_null(&h.key_words)
    never_null(&h.value)
    never_null(&h.value_words)
    size = 0
    with nogil:
        for row in range(n):
            size = headers_size_at(h, row)
            if size < 0:
                break
            largest = max(largest, size)
            # Headers that are too large for a record are not sent, so their keys need no check.
            if size <= MOST_HEADERS:
                unreadable = unreadable_key(h, row)
                if unreadable >= 0:
                    break
    if size < 0:
        raise ValueError(f"column {name!r}, row {before + row}: a header has no key: keys must not be null")
    if unreadable >= 0:
        size = cell(&h.key, unreadable, &at)
        raise ValueError(
            f"column {name!r}, row {before + row}: the header key {(<const char*>at)[:size]!r} is not UTF-8"
        )
    return largest


cdef bint field_is(const ArrowSchema* s, const char* name) noexcept:
    return s.name != NULL and strcmp(s.name, name) == 0
