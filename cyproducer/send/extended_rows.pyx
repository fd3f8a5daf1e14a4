"""The rows of a ``send_many()`` call, for producers with interceptors, serializers or a custom partitioner.

Owns calling these for each row, and passing the rows' outcomes to the interceptors. Does not own the calls
themselves (``extensions``) or sending (``bulk_path``). Runs on the thread that calls ``send_many()``, except
``RowAcknowledgements``, a callback of the future.

All rows complete one step before any row begins the next: interceptors, serializers, partitioner, sending. So
if a serializer raises for a row, no row has been sent.
"""

from collections.abc import Iterable, Mapping

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int32_t

from cyproducer.base.sync cimport cyp_wall_ms
from cyproducer.send.extensions cimport NONE, Extensions, TopicPartitions, acknowledge, as_record, note
from cyproducer.send.send_path cimport SendPath
from cyproducer.futures.bulk_future cimport BulkFuture
from cyproducer.futures.invoke_callback cimport ON_BOTH
from cyproducer.futures.bulk_segments cimport Segments, Sizes
from cyproducer.records.row_source cimport is_header_list, no_content


cdef class ExtendedRows:
    """The rows of one call. The steps are called in the order of the methods."""

    def __init__(self, Extensions extensions not None, topic, values, keys, headers, partition, timestamp_ms):
        self.extensions = extensions
        self.topic = topic
        self.values = values
        self.keys = keys
        self.headers = headers
        self.partition = partition
        self.timestamp_ms = timestamp_ms
        self._make_lists()
        self.given = self.values, self.keys, self.headers, self.partition, self.timestamp_ms

    cdef int _make_lists(self) except -1:
        """Converts the columns to lists. If a column has a different form or length, all columns stay
        unchanged: no extension is called, and ``from_sequences`` rejects the columns."""
        cdef list values
        cdef list columns = []
        if isinstance(self.values, (str, bytes, bytearray)) or isinstance(self.keys, (str, bytes, bytearray)):
            return 0
        of_each = self.headers is not None and not is_header_list(self.headers)
        values = list(self.values)
        for column, is_list in (
            (self.keys, self.keys is not None),
            (self.headers, of_each),
            (self.partition, isinstance(self.partition, Iterable)),
            (self.timestamp_ms, isinstance(self.timestamp_ms, Iterable)),
        ):
            if is_list:
                column = list(column)
                if len(column) != len(values):
                    return 0
            columns.append(column)
        self.values = values
        self.keys, self.headers, self.partition, self.timestamp_ms = columns
        self.of_each = of_each
        self.valid = True
        self.acknowledges = len(self.extensions.on_acknowledgements) > 0
        return 0

    cdef int intercept(self) except -1:
        """Lets the interceptors change each row, except its topic."""
        cdef list records = []
        cdef Py_ssize_t i
        if not self.valid or not self.extensions.on_sends:
            return 0
        for i in range(len(<list>self.values)):
            own = (<list>self.headers)[i] if self.of_each else self.headers
            # A copy: headers that an interceptor adds are only for this row.
            if isinstance(own, (list, tuple)):
                own = list(own)
            records.append(
                self.extensions.intercepted(
                    as_record(
                        self.topic,
                        (<list>self.values)[i],
                        None if self.keys is None else (<list>self.keys)[i],
                        own,
                        item(self.partition, i),
                        item(self.timestamp_ms, i),
                    )
                )
            )
        for i, record in enumerate(records):
            if record.topic != self.topic:
                raise ValueError(
                    f"values[{i}]: an interceptor changed the topic to {record.topic!r}, but all rows of a "
                    f"send_many() go to one topic, here {self.topic!r}: no row was sent"
                )
        self.values = [record.value for record in records]
        self.keys = unless_empty([record.key for record in records])
        self.headers = unless_empty(
            [list(r.headers.items()) if isinstance(r.headers, Mapping) else r.headers for r in records]
        )
        self.of_each = self.headers is not None
        self.partition = unless_empty([record.partition for record in records])
        self.timestamp_ms = unless_empty([record.timestamp_ms for record in records])
        self.given = self.values, self.keys, self.headers, self.partition, self.timestamp_ms
        return 0

    cdef int serialize(self) except -1:
        """Serializes keys and values."""
        cdef Extensions extensions = self.extensions
        cdef list values
        cdef list keys
        cdef list headers = None
        cdef Py_ssize_t i
        if not self.valid or (extensions.key_form == NONE and extensions.value_form == NONE):
            return 0
        values = list(self.values)
        keys = [None] * len(values) if self.keys is None else list(self.keys)
        if extensions.reads_headers:
            # Each row gets its own list, to which a serializer can add headers.
            if self.of_each:
                headers = [list(own or ()) for own in self.headers]
            else:
                headers = [list(self.headers or ()) for _ in values]
        for i in range(len(values)):
            value = values[i]
            key = keys[i]
            if value is None and key is None:
                raise no_content(f"values[{i}]")
            own = None if headers is None else headers[i]
            what = "key"
            try:
                if extensions.key_form != NONE:
                    keys[i] = extensions.serialized_key(self.topic, own, key)
                what = "value"
                if extensions.value_form != NONE:
                    values[i] = extensions.serialized_value(self.topic, own, value)
            except Exception as error:
                note(error, what, key if what == "key" else value, self.topic)
                error.add_note(f"{what}s[{i}]: no row was sent")
                raise
        self.values = values
        if self.keys is not None or extensions.key_form != NONE:
            self.keys = keys
        if headers is not None:
            self.headers = headers
            self.of_each = True
        return 0

    cdef int choose(self, SendPath path) except -1:
        """Lets the custom partitioner choose for the rows without a partition; may wait for metadata."""
        cdef Extensions extensions = self.extensions
        cdef TopicPartitions known = None
        cdef list chosen
        cdef Py_ssize_t i
        if (
            not self.valid
            or extensions.custom is None
            or not PyUnicode_CheckExact(self.topic)
            or not (self.partition is None or type(self.partition) is list)
        ):
            return 0
        values, keys, _, _, _ = self.given
        chosen = [None] * len(values) if self.partition is None else list(self.partition)
        for i in range(len(chosen)):
            if chosen[i] is not None:
                continue
            if known is None:
                known = extensions.partitions_of(self.topic)
                if known is None:
                    known = extensions.learn(self.topic, path._view_of(self.topic, path.max_block_ns / 1e9))
            try:
                chosen[i] = extensions.ask(
                    known, self.topic, item(keys, i), item(self.keys, i), values[i], (<list>self.values)[i]
                )
            except Exception as error:
                error.add_note(f"values[{i}]: no row was sent")
                raise
        self.partition = chosen
        return 0

    def columns(self):
        """The arguments of ``send_many()`` except the topic.

        If interceptors get the outcomes, rows without a timestamp get the current time.
        """
        if self.acknowledges:
            # The rows' metadata contains this time.
            now = cyp_wall_ms()
            times = self.timestamp_ms
            if type(times) is not list:
                times = [times] * len(<list>self.values)
            self.timestamp_ms = [now if time_ms is None else time_ms for time_ms in times]
        return self.values, self.keys, self.headers, self.partition, self.timestamp_ms

    cdef int follow(self, BulkFuture future) except -1:
        """Registers the interceptors for the outcomes of the rows that were accepted."""
        cdef RowAcknowledgements told
        cdef Py_ssize_t i
        cdef Py_ssize_t count
        cdef Sizes* sizes
        if not self.acknowledges:
            return 0
        count = len(<list>self.values)
        told = RowAcknowledgements.__new__(RowAcknowledgements)
        told.extensions = self.extensions
        told.future = future
        # Does not hold the rows: their values would stay in memory until the callback runs.
        told.partition = self.given[3]
        told.timestamps = self.timestamp_ms
        told.sizes = PyBytes_FromStringAndSize(NULL, count * sizeof(Sizes))
        sizes = <Sizes*>PyBytes_AS_STRING(told.sizes)
        for i in range(count):
            sizes[i].key = size_of(item(self.keys, i))
            sizes[i].value = size_of((<list>self.values)[i])
        future._add(ON_BOTH, told)
        return 0

    cdef int refuse(self, object error) except -1:
        """Passes the error to the interceptors, for the rows that were not accepted."""
        cdef Py_ssize_t i
        # In a KafkaError, `accepted` is None if the call is all or nothing.
        cdef Py_ssize_t accepted = getattr(error, "accepted", None) or 0
        if not self.acknowledges:
            return 0
        if accepted:
            self.follow(error.future)
        for i in range(accepted, len(<list>self.values)):
            self.extensions.acknowledge(self.topic, item(self.given[3], i), error)
        return 0


cdef class RowAcknowledgements:
    """Passes the outcomes of rows to interceptors, in the order of the rows: a callback of their future."""

    cdef Extensions extensions
    cdef BulkFuture future
    cdef object partition         # given for the rows: a list, an int or None
    cdef list timestamps
    cdef bytes sizes

    def __call__(self, outcome):
        cdef Segments segments = self.future.segments
        cdef str topic = self.future.topic
        cdef dict failed = {}
        cdef Py_ssize_t row
        for rows in segments.failures():
            for row in rows.rows:
                failed[row] = rows.error
        each = segments.metadata(topic, <const Sizes*>PyBytes_AS_STRING(self.sizes), self.timestamps)
        for row, metadata in enumerate(each):
            acknowledge(
                self.extensions.on_acknowledgements,
                topic,
                item(self.partition, row),
                failed[row] if metadata is None else metadata,
            )


cdef inline object item(object column, Py_ssize_t row):
    """A row's item; ``column`` is a list, or one item for all rows."""
    return (<list>column)[row] if type(column) is list else column


cdef inline object unless_empty(list column):
    """The column, or None if it has only None."""
    for each in column:
        if each is not None:
            return column
    return None


cdef inline int32_t size_of(object data) except? -1:
    """The bytes of a key or value; -1 for None."""
    if data is None:
        return -1
    return <int32_t>(len(data) if type(data) is bytes else memoryview(data).nbytes)
