"""Reads the rows of one call from a table or from sequences, and checks that each can be sent.

Owns finding the columns by name, keeping their memory alive, and checking all rows before any is sent: null
keys and values, sizes, partitions, timestamps. Does not own the memory layout of columns (``columnar``) or
sending. Any thread may call it; raising needs the GIL.
"""

import operator
from itertools import islice

from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_CheckExact
from cpython.list cimport PyList_CheckExact, PyList_GetSlice
from cpython.ref cimport PyObject
from cpython.tuple cimport PyTuple_CheckExact
from libc.math cimport NAN
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, strlen

cimport cython

from cyproducer.base.gil cimport let_others_run
from cyproducer.base.sync cimport FAR_NS, cyp_monotonic_ns
from cyproducer.records.arrow cimport ArrowArray, ArrowTable, read_arrow
from cyproducer.records.columnar cimport (
    ABSENT,
    ENCODED,
    FLOAT64,
    INT64,
    SPANS,
    UINT64,
    Cells,
    Headers,
    Numbers,
    Span,
    bit_at,
    bytes_layout,
    cell,
    check_array,
    describe_cells,
    describe_headers,
    describe_numbers,
    first_null,
    headers_size_at,
    headers_type,
    load64,
    number,
    partition_type,
    plus,
    take_validity,
    timestamp_type,
)
from cyproducer.records.borrowed cimport append_headers, take_buffer
from cyproducer.records.record_batch cimport BATCH_HEADER, record_bound, record_length

cdef extern from "<Python.h>":
    int PyErr_CheckSignals() except -1
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1
    Py_ssize_t PySequence_Fast_GET_SIZE(object)
    PyObject* PySequence_Fast_GET_ITEM(object, Py_ssize_t)
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

from cyproducer.errors import UnknownTopicOrPartitionError, record_too_large

cdef enum:
    PIECE = 4096              # how many items of a sequence are read at a time

cdef int64_t MOST = 0x7FFFFFFFFFFFFFFF

# Rows without bytes take no memory in a table, so a table may have any number of them. Here each row takes
# some memory.
cdef int64_t MOST_ROWS = 1 << 32


# A free list, because each call allocates one.
@cython.freelist(8)
cdef class RowSource:
    """Rows to send, by column. Does not change after it is made, so any thread may read it.

    Has ``count`` rows, numbered from 0 across all batches.
    """

    def __dealloc__(self):
        free(self.batches)
        free(self.encoded.start)
        free(self.header_spans)
        free(self.partitions)
        free(self.timestamps)
        free(self.bitmaps[0])
        free(self.bitmaps[1])

    cdef object _take(self, object table):
        """Makes the batches from an Arrow table; the column names must be set."""
        cdef ArrowTable t = table
        cdef ArrowArray* a
        cdef ArrowArray** columns
        cdef Rows* r
        cdef int64_t i
        cdef int64_t first
        cdef int64_t whole
        cdef const uint8_t* bits
        cdef int64_t key_most = 0
        cdef int64_t value_most = 0
        cdef int64_t headers_most = 1
        cdef Numbers kind
        cdef int key = column_of(t, "key", self.key_name)
        cdef int value = column_of(t, "value", self.value_name)
        cdef int headers = column_of(t, "headers", self.headers_name)
        cdef int partition = column_of(t, "partition", self.partition_name)
        cdef int timestamp = column_of(t, "timestamp", self.timestamp_name)
        # Also checked if there is no batch, so that an empty table of the wrong type raises as well.
        if key >= 0:
            bytes_layout(t.schema.children[key], self.key_name)
        if value >= 0:
            bytes_layout(t.schema.children[value], self.value_name)
        if headers >= 0:
            headers_type(t.schema.children[headers], self.headers_name)
        if partition >= 0:
            partition_type(t.schema.children[partition], &kind, self.partition_name)
        if timestamp >= 0:
            timestamp_type(t.schema.children[timestamp], &kind, self.timestamp_name)
        self.kept = table
        self.batches = <Rows*>calloc(max(1, t.batch_count), sizeof(Rows))
        if self.batches == NULL:
            raise MemoryError(f"cannot allocate memory for {t.batch_count} Arrow batches")
        for i in range(t.batch_count):
            a = &t.batches[i]
            columns = a.children
            r = &self.batches[i]
            r.count = a.length
            check_array(&t.schema, a, 1, t.schema.n_children, 0, None)
            if plus(self.count, r.count, None) > MOST_ROWS:
                raise ValueError(f"data: has {self.count + r.count} rows: a call takes at most {MOST_ROWS}")
            take_validity(a, 0, a.length, True, None, &bits, &first)
            if bits != NULL:
                whole = first_null(bits, first, a.length)
                raise ValueError(f"data: row {self.count + whole} is null: a row must be a struct")
            if key >= 0:
                key_most = max(key_most, describe_cells(
                    &r.key, &r.key_words, t.schema.children[key], columns[key], a.offset, r.count,
                    self.key_name, self.count,
                ))
            if value >= 0:
                value_most = max(value_most, describe_cells(
                    &r.value, &r.value_words, t.schema.children[value], columns[value], a.offset, r.count,
                    self.value_name, self.count,
                ))
            if headers >= 0:
                headers_most = max(headers_most, describe_headers(
                    &r.headers, t.schema.children[headers], columns[headers], a.offset, r.count,
                    self.headers_name, self.count,
                ))
            if partition >= 0:
                partition_type(t.schema.children[partition], &r.partition, self.partition_name)
                describe_numbers(
                    &r.partition, t.schema.children[partition], columns[partition], a.offset, r.count,
                    self.partition_name,
                )
            if timestamp >= 0:
                timestamp_type(t.schema.children[timestamp], &r.timestamp, self.timestamp_name)
                describe_numbers(
                    &r.timestamp, t.schema.children[timestamp], columns[timestamp], a.offset, r.count,
                    self.timestamp_name,
                )
            self.count += r.count
            self.batch_count += 1
        self.keyed = key >= 0
        self.headers_room = headers_most
        self.largest = record_bound(key_most, value_most, headers_most)
        return None

    cdef int _take_headers(self, Headers* h, object headers) except -1:
        """Encodes the headers of all rows: one list of pairs for all, or a sequence of such lists or None."""
        cdef int64_t since_ns = cyp_monotonic_ns()
        cdef int64_t i
        cdef int64_t before = 0
        cdef tuple rows
        cdef bint shared = is_header_list(headers)
        if shared:
            rows = (headers,)
        else:
            try:
                rows = tuple(headers)
            except TypeError as error:
                raise TypeError(
                    "headers: must be a list of (str, bytes or None) pairs for all records, or a sequence "
                    f"with such a list or None for each, not {type(headers).__name__}"
                ) from error
            if len(rows) != self.count:
                raise ValueError(
                    f"headers: has {len(rows)} items, values {self.count}: must have the same length, or be "
                    "one list of (str, bytes or None) pairs for all records"
                )
        self.header_spans = <Span*>calloc(max(1, len(rows)), sizeof(Span))
        if self.header_spans == NULL:
            raise MemoryError(f"cannot allocate memory for the headers of {self.count} records")
        self.headers_room = 1
        for i in range(len(rows)):
            before = self.encoded.used
            try:
                append_headers(() if rows[i] is None else rows[i], &self.encoded)
            except (TypeError, ValueError) as error:
                if shared:
                    raise
                text = str(error).removeprefix("headers: ")
                raise (TypeError if isinstance(error, TypeError) else ValueError)(
                    f"headers[{i}]: {text}"
                ) from error
            # The bytes may still move, so the address is set below.
            self.header_spans[i].size = self.encoded.used - before
            self.headers_room = max(self.headers_room, self.header_spans[i].size)
            if i % PIECE == PIECE - 1:
                let_others_run(&since_ns)
        before = 0
        for i in range(len(rows)):
            self.header_spans[i].at = self.encoded.start + before
            before += self.header_spans[i].size
        h.layout = ENCODED
        h.offsets = <const uint8_t*>self.header_spans
        h.width = 0 if shared else 1
        return 0

    cdef int64_t* _take_numbers(
        self, Numbers* c, object sequence, str name, uint8_t** bitmap
    ) except? NULL:
        """Reads a sequence of ints or None, one for each row."""
        cdef int64_t since_ns = cyp_monotonic_ns()
        cdef int64_t i
        cdef int too_large = 0
        cdef int64_t* numbers
        cdef tuple items
        # A string is no sequence of numbers, and the numbers of bytes are hardly what was meant.
        if isinstance(sequence, (str, bytes)):
            raise TypeError(
                f"{name}: must be an int, None, or a sequence of them, not {type(sequence).__name__}"
            )
        items = tuple(sequence)
        if len(items) != self.count:
            raise ValueError(
                f"{name}: has {len(items)} items, values {self.count}: must have the same length"
            )
        numbers = <int64_t*>calloc(max(1, self.count), sizeof(int64_t))
        bitmap[0] = <uint8_t*>calloc(self.count // 8 + 1, 1)
        if numbers == NULL or bitmap[0] == NULL:
            free(numbers)
            raise MemoryError(f"cannot allocate memory for {self.count} records")
        try:
            for i in range(self.count):
                item = items[i]
                if item is not None:
                    if not PyLong_CheckExact(item):
                        try:
                            item = operator.index(item)
                        except TypeError as error:
                            raise TypeError(
                                f"{name}[{i}]: must be an int or None, not {type(item).__name__}"
                            ) from error
                    numbers[i] = PyLong_AsLongLongAndOverflow(item, &too_large)
                    if too_large:
                        raise ValueError(f"{name}[{i}]={item}: must be >= 0 and below 2**63")
                    bitmap[0][i >> 3] |= 1 << (i & 7)
                if i % PIECE == PIECE - 1:
                    let_others_run(&since_ns)
        except BaseException:
            free(numbers)
            raise
        c.kind = INT64
        c.data = <const uint8_t*>numbers
        c.validity = bitmap[0]
        c.times = 1
        c.per = 1
        return numbers

    cdef int _check_batch(
        self, Rows* r, int64_t before, int32_t partitions, int64_t max_request_size, bint given
    ) except -1:
        cdef int64_t row = 0
        cdef int64_t v = 0
        cdef int64_t bound = 0
        cdef int64_t most
        cdef double real = 0.0
        cdef const uint8_t* at = NULL
        cdef int64_t key_size = -1
        cdef int64_t value_size = -1
        cdef int64_t headers_size = 1
        cdef bint ok = True
        if r.partition.kind:
            with nogil:
                for row in range(r.count):
                    v = -1
                    real = NAN
                    if r.partition.validity == NULL or bit_at(
                        r.partition.validity, r.partition.first_bit + row
                    ):
                        v = number(r.partition.kind, r.partition.data, row)
                        real = v
                        if r.partition.kind == FLOAT64:
                            memcpy(&real, r.partition.data + 8 * row, 8)
                    # NaN: the partitioner chooses.
                    ok = not given if real != real else 0 <= v < partitions and v == real
                    if not ok:
                        break
            if not ok:
                self._refuse_partition(before + row, v, real, partitions)
        elif given and self.partition_name is not None and r.count > 0:
            self._refuse_partition(before, -1, NAN, partitions)
        if r.timestamp.kind:
            with nogil:
                most = MOST // r.timestamp.times
                for row in range(r.count):
                    if r.timestamp.validity != NULL and not bit_at(
                        r.timestamp.validity, r.timestamp.first_bit + row
                    ):
                        continue
                    if r.timestamp.kind == UINT64:
                        # Values of 2**63 and above appear as negative here.
                        v = load64(r.timestamp.data + 8 * row)
                    else:
                        v = number(r.timestamp.kind, r.timestamp.data, row)
                    if not 0 <= v <= most:
                        ok = False
                        break
            if not ok:
                said = v if v >= 0 or r.timestamp.kind != UINT64 else v + 2**64
                raise ValueError(
                    f"{self.place(self.timestamp_name, before + row)}: {said} is not a valid timestamp: must "
                    "be at or after the epoch, 1970, and below 2**63 in milliseconds"
                )
        if not may_lack(&r.value) and BATCH_HEADER + self.largest <= max_request_size:
            return 0
        with nogil:
            for row in range(r.count):
                key_size = cell(&r.key, row, &at)
                value_size = cell(&r.value, row, &at)
                if key_size < 0 and value_size < 0:
                    ok = False
                    break
                if BATCH_HEADER + self.largest > max_request_size:
                    if r.headers.layout:
                        headers_size = headers_size_at(&r.headers, row)
                    bound = BATCH_HEADER + record_bound(key_size, value_size, headers_size)
                    if bound > max_request_size:
                        # The bound is a few bytes too high, so the exact size decides.
                        bound = BATCH_HEADER + record_length(key_size, value_size, headers_size)
                        if bound > max_request_size:
                            ok = False
                            break
        if ok:
            return 0
        if key_size < 0 and value_size < 0:
            raise no_content(self.place(self.value_name or self.key_name, before + row))
        place = self.place(self.value_name or self.key_name, before + row)
        raise record_too_large(f"{place}: the record", bound, max_request_size)

    cdef int _refuse_partition(self, int64_t row, int64_t v, double real, int32_t partitions) except -1:
        """Raises the error for a row's partition. ``real``: the partition; ``v``: the same as an integer."""
        if real != real:
            raise ValueError(
                f"{self.place(self.partition_name, row)}: is null, and send_arrow() does not call a "
                "custom partitioner: each row needs a partition"
            )
        said = repr(v if v == real else real)
        known = (
            f"{self.place(self.partition_name, row)}: {said} is not a partition of the topic, which has "
            f"{partitions} partitions, 0 to {partitions - 1}"
        )
        if real < 0 or (v != real and not real.is_integer()):
            raise ValueError(known)
        raise UnknownTopicOrPartitionError(known)

    cdef str place(self, str column, int64_t row):
        """Returns how error messages name a row of a column."""
        return f"{column}[{row}]" if self.values is not None else f"column {column!r}, row {row}"


cdef inline bint may_lack(const Cells* c) noexcept nogil:
    """Whether a row of the column may be null."""
    if c.layout == ABSENT or c.sparse or c.validity != NULL:
        return True
    return c.indices != NULL and (c.words.validity != NULL or c.words.layout == ABSENT)


cdef int column_of(ArrowTable t, str role, str name) except -2:
    """Returns the index of the column with that name; -1 if ``name`` is None. ``role``: the argument's
    name."""
    cdef int64_t i
    cdef Py_ssize_t size
    cdef const char* wanted
    cdef const char* text
    cdef list found = None
    cdef int64_t only = -1
    if name is None:
        return -1
    wanted = PyUnicode_AsUTF8AndSize(name, &size)
    for i in range(t.schema.n_children):
        text = t.schema.children[i].name
        # Arrow can't represent a name with a zero byte.
        if text != NULL and <Py_ssize_t>strlen(text) == size and memcmp(text, wanted, size) == 0:
            if only >= 0:
                found = [only, i] if found is None else found + [i]
            only = i
    if found is None and only >= 0:
        return <int>only
    named = []
    for i in range(t.schema.n_children):
        text = t.schema.children[i].name
        named.append(repr(text.decode("utf-8", "replace")) if text != NULL else "''")
    names = ", ".join(named)
    if found:
        raise ValueError(f"{role}={name!r}: data has {len(found)} columns of that name: {names}")
    raise ValueError(f"{role}={name!r}: data has no column of that name; it has {names or 'none'}")


cdef str checked_name(str role, object name):
    if name is not None and not isinstance(name, str):
        raise TypeError(f"{role}: must be the name of a column or None, not {type(name).__name__}")
    return name


cdef RowSource from_arrow(
    object data, object key, object value, object headers, object partition, object timestamp
):
    """Returns the rows of Arrow data. The other arguments are column names or None.

    Raises TypeError and ValueError for columns that are missing or duplicate, or whose types or data are not
    valid for their role.
    """
    cdef RowSource source = RowSource.__new__(RowSource)
    source.key_name = checked_name("key", key)
    source.value_name = checked_name("value", value)
    source.headers_name = checked_name("headers", headers)
    source.partition_name = checked_name("partition", partition)
    source.timestamp_name = checked_name("timestamp", timestamp)
    if key is None and value is None:
        raise ValueError("value=None, key=None: a record needs a value or a key")
    source.partition = -1
    source.timestamp_ms = -1
    source._take(read_arrow(data))
    return source


# A free list, as for RowSource.
@cython.freelist(8)
cdef class Items:
    """The items of a sequence, referenced piece by piece, and the address and size of each.

    Other threads may run between two pieces: a list that changes in the meantime is read as a ``for`` loop
    would read it.
    """

    def __dealloc__(self):
        free(self.spans)

    cdef int take(self, object sequence, str name) except -1:
        cdef object rest = None
        cdef object piece
        cdef int64_t since_ns = FAR_NS
        cdef Py_ssize_t expected = 0
        if PyTuple_CheckExact(sequence):
            # A tuple does not change, so it is one piece.
            expected = len(<tuple>sequence)
        elif PyList_CheckExact(sequence):
            expected = len(<list>sequence)
        elif isinstance(sequence, (str, bytes, bytearray, memoryview)):
            raise TypeError(f"{name}: must be a sequence of bytes, not {type(sequence).__name__}")
        else:
            try:
                rest = iter(sequence)
            except TypeError as error:
                raise TypeError(
                    f"{name}: must be a sequence of bytes, not {type(sequence).__name__}"
                ) from error
        if not self.make_room(max(1, expected)):
            raise MemoryError(f"cannot allocate memory for {expected} records")
        if expected > 128 or rest is not None:
            since_ns = cyp_monotonic_ns()
        while True:
            if PyTuple_CheckExact(sequence):
                piece = sequence
            elif rest is None:
                piece = PyList_GetSlice(sequence, self.count, self.count + PIECE)
            else:
                piece = list(islice(rest, PIECE))
            if PySequence_Fast_GET_SIZE(piece) == 0:
                return 0
            self.keep(piece)
            self.hold(piece, name, &since_ns)
            if rest is None and self.count >= PySequence_Fast_GET_SIZE(sequence):
                return 0

    cdef int keep(self, object piece) except -1:
        # No list for the first piece: a list would take a tenth of the time of a call with one record.
        if self.first is None:
            self.first = piece
        elif self.pieces is None:
            self.pieces = [piece]
        else:
            self.pieces.append(piece)
        return 0

    cdef bint make_room(self, int64_t room) noexcept:
        cdef Span* grown
        if room > self.room:
            grown = <Span*>realloc(self.spans, room * sizeof(Span))
            if grown == NULL:
                return False
            self.spans = grown
            self.room = room
        return True

    cdef int hold(self, object piece, str name, int64_t* since_ns) except -1:
        """Reads each item of a piece. Items that are not bytes are copied, and the copies are kept."""
        cdef Py_ssize_t i
        cdef Py_ssize_t n = PySequence_Fast_GET_SIZE(piece)
        cdef Py_buffer view
        cdef object item
        cdef list copies = None
        cdef Span* span
        if self.count + n > self.room and not self.make_room(2 * self.room + n):
            raise MemoryError(f"cannot allocate memory for {self.count + n} records")
        for i in range(n):
            if i & 127 == 127:
                let_others_run(since_ns)
                PyErr_CheckSignals()
            item = <object>PySequence_Fast_GET_ITEM(piece, i)
            span = &self.spans[self.count]
            if item is None:
                span.at = NULL
                span.size = -1
                self.sparse = True
                self.count += 1
                continue
            if not PyBytes_CheckExact(item):
                take_buffer(item, &view, f"{name}[{self.count}]", "")
                try:
                    item = PyBytes_FromStringAndSize(<char*>view.buf, view.len)
                finally:
                    PyBuffer_Release(&view)
                if copies is None or len(copies) >= PIECE:
                    copies = []
                    self.keep(copies)
                copies.append(item)
            span.at = <const uint8_t*>PyBytes_AS_STRING(item)
            span.size = PyBytes_GET_SIZE(item)
            self.longest = max(self.longest, span.size)
            self.count += 1
        return 0

    cdef int let_go(self) except -1:
        """Drops the references to the items, which may be the last ones.

        Does not check for signals, because the rows have been accepted and the caller must get their future.
        """
        cdef int64_t since_ns
        self.count = 0
        if self.pieces is not None:
            since_ns = cyp_monotonic_ns()
            while self.pieces:
                self.pieces.pop()
                let_others_run(&since_ns)
        return 0

    cdef void describe(self, Cells* c) noexcept:
        c.layout = SPANS
        c.rows = <const uint8_t*>self.spans
        c.sparse = self.sparse


cdef Items items_of(object sequence, str name):
    cdef Items items = Items.__new__(Items)
    items.take(sequence, name)
    return items


cdef object no_content(str place):
    """Returns the error for a row that has neither a value nor a key."""
    return ValueError(
        f"{place}: is null, and so is the key: a record needs a value or a key (a tombstone is a key with a "
        "null value)"
    )


cpdef bint is_header_list(object headers) except -1:
    """Whether this is one list of headers, and not a sequence of such lists. An empty list means no
    headers."""
    if isinstance(headers, dict):
        return True
    if not isinstance(headers, (list, tuple)):
        return False
    if not headers:
        return True
    first = headers[0]
    # A pair begins with a str, its name; a list of headers begins with a pair.
    return isinstance(first, (list, tuple)) and len(first) > 0 and isinstance(first[0], str)


cdef RowSource from_sequences(
    object values, object keys, object headers, object partition, object timestamp_ms
):
    """Returns the rows of Python sequences of bytes, other contiguous buffers or None.

    ``headers``: None, a list of pairs for all rows, or a sequence of lists or None. ``partition``,
    ``timestamp_ms``: None, or sequences of int or None. Raises TypeError, ValueError.
    """
    cdef RowSource source = RowSource.__new__(RowSource)
    cdef Rows* r
    source.value_name = "values"
    source.key_name = "keys"
    source.partition = -1
    source.timestamp_ms = -1
    source.values = items_of(values, "values")
    source.count = source.values.count
    if keys is not None:
        source.keys = items_of(keys, "keys")
        source.keyed = True
        if source.keys.count != source.count:
            raise ValueError(
                f"keys: has {source.keys.count} items, values {source.count}: must have the same length"
            )
    source.batches = <Rows*>calloc(1, sizeof(Rows))
    if source.batches == NULL:
        raise MemoryError(f"cannot allocate memory for {source.count} records")
    r = source.batches
    r.count = source.count
    source.values.describe(&r.value)
    if source.keyed:
        source.keys.describe(&r.key)
    source.batch_count = 1
    source.headers_room = 1
    if headers is not None:
        source.headers_name = "headers"
        source._take_headers(&r.headers, headers)
    if partition is not None:
        source.partition_name = "partition"
        source.partitions = source._take_numbers(&r.partition, partition, "partition", &source.bitmaps[0])
    if timestamp_ms is not None:
        source.timestamp_name = "timestamp_ms"
        source.timestamps = source._take_numbers(
            &r.timestamp, timestamp_ms, "timestamp_ms", &source.bitmaps[1]
        )
    source.largest = record_bound(
        source.keys.longest if source.keyed else 0, source.values.longest, source.headers_room
    )
    return source


cdef int let_go_of(RowSource source) except -1:
    """Drops the references to the rows' memory, with pauses. The rows must not be read afterwards."""
    source.count = 0
    source.batch_count = 0
    if source.values is not None:
        source.values.let_go()
    if source.keys is not None:
        source.keys.let_go()
    return 0


cdef int check_rows(RowSource source, int32_t partitions, int64_t max_request_size, bint given) except -1:
    """Raises the error for the first row that can't be sent.

    ``partitions``: the topic's number of partitions. ``given``: whether each row must specify its partition.
    """
    cdef int64_t i
    cdef int64_t before = 0
    for i in range(source.batch_count):
        source._check_batch(&source.batches[i], before, partitions, max_request_size, given)
        before += source.batches[i].count
    return 0


cdef int64_t largest_row(RowSource source) noexcept nogil:
    """Returns an upper bound of any row's size in a batch; ``source.largest`` is a faster, higher estimate.

    The estimate also counts bytes that are not sent (under null entries, and dictionary values that no row
    uses), and adds the largest key to the largest value. The rows must have been checked.
    """
    cdef int64_t i
    cdef int64_t row
    cdef int64_t key_size
    cdef int64_t value_size
    cdef int64_t headers_size = 1
    cdef int64_t largest = 0
    cdef const Rows* r
    cdef const uint8_t* at = NULL
    for i in range(source.batch_count):
        r = &source.batches[i]
        for row in range(r.count):
            key_size = cell(&r.key, row, &at)
            value_size = cell(&r.value, row, &at)
            if r.headers.layout:
                headers_size = headers_size_at(&r.headers, row)
            largest = max(largest, record_bound(key_size, value_size, headers_size))
    return largest
