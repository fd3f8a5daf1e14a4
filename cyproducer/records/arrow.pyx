"""Imports and exports Arrow data through the Arrow PyCapsule interface, without an Arrow library.

Owns taking ownership of tables from other libraries (pyarrow, polars, pandas, DuckDB, DataFusion), releasing
them exactly once, rejecting schemas that can't be traversed, and exporting the table of partitions and
offsets. Does not own the meaning of the columns or their arrays (``columnar``). Any thread may call it, with
the GIL. The GIL is released while a stream computes its next batch.

Source: Apache Arrow, "The Arrow PyCapsule Interface", "The Arrow C data interface", "The Arrow C stream
interface".
"""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset, strcmp

cimport cython

import re

cdef extern from "<Python.h>":
    int PyErr_CheckSignals() except -1

cdef enum:
    MOST_LEVELS = 64          # levels of nested types, as in Arrow's own importer
    MOST_FIELDS = 1 << 20     # fields of a schema, including nested ones

# Matches the end of a stream's error message if Ctrl-C interrupted Python code in the stream. Only the text
# of the error is available here.
cdef str INTERRUPTED = r"(?:^|Python exception: )KeyboardInterrupt(?::[^\n]*)?\s*\Z"

cdef const char* SCHEMA_CAPSULE = "arrow_schema"
cdef const char* ARRAY_CAPSULE = "arrow_array"
cdef const char* STREAM_CAPSULE = "arrow_array_stream"


# Import

# A free list, because each call allocates one.
@cython.freelist(8)
cdef class ArrowTable:
    """Batches of one schema, released with this object."""

    def __dealloc__(self):
        cdef int64_t i
        for i in range(self.batch_count):
            if self.batches[i].release != NULL:
                self.batches[i].release(&self.batches[i])
        free(self.batches)
        if self.schema.release != NULL:
            self.schema.release(&self.schema)

    cdef int _append(self, ArrowArray* batch) except -1:
        """Takes ownership of a batch, even if it raises. The batch must match the schema."""
        cdef ArrowArray* grown
        if self.batch_count == self.room:
            grown = <ArrowArray*>realloc(self.batches, sizeof(ArrowArray) * (2 * self.room + 4))
            if grown == NULL:
                batch.release(batch)
                raise MemoryError("cannot allocate memory for another batch of an Arrow stream")
            self.batches = grown
            self.room = 2 * self.room + 4
        self.batches[self.batch_count] = batch[0]
        batch.release = NULL
        self.batch_count += 1
        batch = &self.batches[self.batch_count - 1]
        if batch.n_children != self.schema.n_children:
            raise ValueError(
                f"data: malformed Arrow data: a batch has {batch.n_children} columns, its schema "
                f"{self.schema.n_children}"
            )
        return 0


cdef void* from_capsule(object capsule, const char* name, str method) except NULL:
    if not PyCapsule_IsValid(capsule, name):
        raise TypeError(f"data: {method}() must return a capsule named {name.decode()!r}")
    return PyCapsule_GetPointer(capsule, name)


cdef object stream_error(ArrowArrayStream* stream, int code):
    cdef const char* text = NULL
    if stream.get_last_error != NULL:
        text = stream.get_last_error(stream)
    said = text.decode("utf-8", "replace") if text != NULL else "it reported no reason"
    if re.search(INTERRUPTED, said, re.MULTILINE):
        return KeyboardInterrupt()
    return OSError(code, f"data: its Arrow stream failed: {said}")


cdef int read_stream(ArrowTable table, ArrowArrayStream* stream) except -1:
    cdef ArrowArray batch
    cdef int code
    if stream.get_schema == NULL or stream.get_next == NULL:
        raise ValueError("data: malformed Arrow data: its stream has no functions to read it")
    code = stream.get_schema(stream, &table.schema)
    if code:
        table.schema.release = NULL
        raise stream_error(stream, code)
    check_table(table)
    while True:
        memset(&batch, 0, sizeof(ArrowArray))
        # The stream may run computations, and may wait for threads that need the GIL.
        with nogil:
            code = stream.get_next(stream, &batch)
        if code:
            # The stream may have failed because of Ctrl-C.
            PyErr_CheckSignals()
            raise stream_error(stream, code)
        if batch.release == NULL:
            return 0
        table._append(&batch)
        # A stream may run no Python code. Without this check, Ctrl-C would have no effect until the stream
        # ends.
        PyErr_CheckSignals()


cdef int check_table(ArrowTable table) except -1:
    """Raises if the schema is not a struct, or can't be traversed."""
    cdef int64_t fields = MOST_FIELDS
    if table.schema.release == NULL:
        raise ValueError("data: malformed Arrow data: its schema is already released")
    if table.schema.format == NULL:
        raise ValueError("data: malformed Arrow data: its schema has no type")
    if strcmp(table.schema.format, "+s") != 0:
        raise TypeError(
            "data: must be a table, or an array of structs, so that its columns have names; this is an "
            f"array of type {table.schema.format.decode('utf-8', 'replace')!r}"
        )
    check_schema(&table.schema, NULL, 1, &fields)
    return 0


cdef int check_schema(const ArrowSchema* s, const char* column, int level, int64_t* fields) except -1:
    """Raises if a schema has missing pointers or a cycle.

    ``column``: the name of the column that the schema belongs to, for error messages; NULL if there is none.
    ``fields``: how many more fields are allowed.
    """
    cdef int64_t i
    fields[0] -= 1
    if level > MOST_LEVELS or fields[0] < 0:
        raise ValueError(
            f"data: malformed Arrow data: its schema has more than {MOST_LEVELS} levels or {MOST_FIELDS} "
            "fields, or contains a cycle"
        )
    if s.n_children < 0 or s.n_children > MOST_FIELDS:
        raise ValueError(
            f"data: malformed Arrow data: {field_of(column)} has {s.n_children} children: must be from 0 to "
            f"{MOST_FIELDS}"
        )
    if s.n_children > 0 and s.children == NULL:
        raise ValueError(
            f"data: malformed Arrow data: {field_of(column)} has {s.n_children} children, and they are "
            "missing"
        )
    for i in range(s.n_children):
        if s.children[i] == NULL:
            raise ValueError(f"data: malformed Arrow data: child {i} of {field_of(column)} is missing")
        check_schema(s.children[i], s.children[i].name if level == 1 else column, level + 1, fields)
    if s.dictionary != NULL:
        check_schema(s.dictionary, column, level + 1, fields)
    return 0


cdef str field_of(const char* column):
    if column == NULL:
        return "a field of its schema"
    return f"a field of its schema in column {column.decode('utf-8', 'replace')!r}"


cdef ArrowTable read_arrow(object data):
    """Takes ownership of all batches of ``data``, without copying; reads a stream to its end.

    Raises TypeError if ``data`` has neither ``__arrow_c_stream__`` nor ``__arrow_c_array__``, or is not a
    table; OSError if the stream fails; ValueError for malformed data.
    """
    cdef ArrowTable table = ArrowTable.__new__(ArrowTable)
    cdef ArrowArrayStream stream
    cdef ArrowArrayStream* given
    cdef ArrowSchema* schema
    cdef ArrowArray* array
    cdef object export = getattr(data, "__arrow_c_array__", None)
    cdef object pair = None
    if export is not None:
        # A record batch has both methods. Reading an array takes a third of the time of reading a stream.
        try:
            pair = export()
        except Exception:
            # Some objects have both methods, and raise here if they consist of several chunks.
            if not hasattr(data, "__arrow_c_stream__"):
                raise
    if pair is not None or (export is not None and not hasattr(data, "__arrow_c_stream__")):
        if not isinstance(pair, tuple) or len(<tuple>pair) != 2:
            raise TypeError(f"data: __arrow_c_array__() must return two capsules, not {pair!r}")
        schema = <ArrowSchema*>from_capsule((<tuple>pair)[0], SCHEMA_CAPSULE, "__arrow_c_array__")
        array = <ArrowArray*>from_capsule((<tuple>pair)[1], ARRAY_CAPSULE, "__arrow_c_array__")
        if schema.release == NULL or array.release == NULL:
            raise ValueError("data: its Arrow array was already taken")
        table.schema = schema[0]
        schema.release = NULL
        check_table(table)
        table._append(array)
    elif hasattr(data, "__arrow_c_stream__"):
        capsule = data.__arrow_c_stream__()
        given = <ArrowArrayStream*>from_capsule(capsule, STREAM_CAPSULE, "__arrow_c_stream__")
        if given.release == NULL:
            raise ValueError("data: its Arrow stream was already read")
        # Moved out of the capsule, which then has nothing to release.
        stream = given[0]
        given.release = NULL
        try:
            read_stream(table, &stream)
        finally:
            if stream.release != NULL:
                stream.release(&stream)
    else:
        raise TypeError(
            "data: must be Arrow data, an object with __arrow_c_stream__ or __arrow_c_array__ (a table of "
            f"pyarrow, polars, pandas, DuckDB, DataFusion), not {type(data).__name__}"
        )
    return table


# Export

cdef void drop_schema_capsule(object capsule) noexcept:
    cdef ArrowSchema* schema = <ArrowSchema*>PyCapsule_GetPointer(capsule, SCHEMA_CAPSULE)
    if schema.release != NULL:
        schema.release(schema)
    free(schema)


cdef void drop_array_capsule(object capsule) noexcept:
    cdef ArrowArray* array = <ArrowArray*>PyCapsule_GetPointer(capsule, ARRAY_CAPSULE)
    if array.release != NULL:
        array.release(array)
    free(array)


# The consumer may call release() on any thread, with or without the GIL. A child can be moved away from its
# parent, so each structure owns its own memory.

cdef void release_leaf_schema(ArrowSchema* schema) noexcept nogil:
    schema.release = NULL


cdef void release_struct_schema(ArrowSchema* schema) noexcept nogil:
    cdef int64_t i
    for i in range(schema.n_children):
        if schema.children[i].release != NULL:
            schema.children[i].release(schema.children[i])
        free(schema.children[i])
    free(schema.children)
    schema.release = NULL


cdef void release_leaf(ArrowArray* array) noexcept nogil:
    free(<void*>array.buffers[0])
    free(<void*>array.buffers[1])
    free(array.buffers)
    array.release = NULL


cdef void release_struct(ArrowArray* array) noexcept nogil:
    cdef int64_t i
    for i in range(array.n_children):
        if array.children[i].release != NULL:
            array.children[i].release(array.children[i])
        free(array.children[i])
    free(array.children)
    free(array.buffers)
    array.release = NULL


cdef bint fill_schema(ArrowSchema* schema) noexcept nogil:
    """Fills in the type struct<partition: int32, offset: int64>. Returns False if out of memory; the caller
    must then release the schema."""
    cdef int i
    schema.format = "+s"
    schema.name = ""
    schema.release = release_struct_schema
    schema.children = <ArrowSchema**>calloc(2, sizeof(ArrowSchema*))
    if schema.children == NULL:
        return False
    for i in range(2):
        schema.children[i] = <ArrowSchema*>calloc(1, sizeof(ArrowSchema))
        if schema.children[i] == NULL:
            return False
        schema.n_children = i + 1
        schema.children[i].release = release_leaf_schema
    schema.children[0].format = "i"
    schema.children[0].name = "partition"
    schema.children[1].format = "l"
    schema.children[1].name = "offset"
    schema.children[1].flags = ARROW_FLAG_NULLABLE
    return True


cdef void* copied(bytes data) noexcept:
    """A copy for ``free``; NULL if out of memory, or for None."""
    cdef void* copy = NULL
    if data is not None:
        copy = malloc(max(1, len(data)))
        if copy != NULL:
            memcpy(copy, PyBytes_AS_STRING(data), len(data))
    return copy


cdef bint fill_leaf(ArrowArray* array, int64_t rows, bytes validity, bytes data, int64_t nulls) noexcept:
    """Fills in an array with copies of its two buffers. Returns False if out of memory."""
    array.buffers = <const void**>calloc(2, sizeof(void*))
    if array.buffers == NULL:
        return False
    array.buffers[0] = copied(validity)
    array.buffers[1] = copied(data)
    array.n_buffers = 2
    array.length = rows
    array.null_count = nulls
    array.release = release_leaf
    return array.buffers[1] != NULL and (validity is None or array.buffers[0] != NULL)


cdef object export_schema():
    """Returns a capsule with the schema of ``export_rows``."""
    cdef ArrowSchema* schema = <ArrowSchema*>calloc(1, sizeof(ArrowSchema))
    if schema == NULL or not fill_schema(schema):
        if schema != NULL:
            release_struct_schema(schema)
        free(schema)
        raise MemoryError("cannot allocate memory for an Arrow schema")
    return PyCapsule_New(schema, SCHEMA_CAPSULE, drop_schema_capsule)


cdef object export_rows(int64_t rows, bytes partitions, bytes offsets, bytes validity, int64_t nulls):
    """Returns capsules with the schema and the array of (partition, offset) rows: copies of the columns.

    ``validity``: a bitmap with ``nulls`` missing offsets, or None.
    """
    cdef ArrowArray* array = <ArrowArray*>calloc(1, sizeof(ArrowArray))
    cdef bint ok = array != NULL
    cdef int i
    if ok:
        array.release = release_struct
        array.length = rows
        array.n_buffers = 1
        array.buffers = <const void**>calloc(1, sizeof(void*))
        array.children = <ArrowArray**>calloc(2, sizeof(ArrowArray*))
        ok = array.buffers != NULL and array.children != NULL
    for i in range(2):
        if ok:
            array.children[i] = <ArrowArray*>calloc(1, sizeof(ArrowArray))
            ok = array.children[i] != NULL
            array.n_children += ok
    ok = ok and fill_leaf(array.children[0], rows, None, partitions, 0)
    ok = ok and fill_leaf(array.children[1], rows, validity, offsets, nulls)
    if not ok:
        if array != NULL:
            release_struct(array)
        free(array)
        raise MemoryError(f"cannot allocate memory for the offsets of {rows} rows")
    capsule = PyCapsule_New(array, ARRAY_CAPSULE, drop_array_capsule)
    return export_schema(), capsule
