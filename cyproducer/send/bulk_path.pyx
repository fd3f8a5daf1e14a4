"""Implements ``send_arrow()`` and ``send_many()``: appends many rows to batches and returns one future.

Owns checking the arguments and all rows before any row is sent, and the interruptions of appending: waiting
for metadata, waiting for memory, compressing batches. Does not own columns (``records/columnar``), the loop
over rows (``bulk_append``) or the future (``bulk_future``). Runs on the calling thread. The GIL is released
most of the time, and acquired again a few times per megabyte.
"""

from cpython.long cimport PyLong_Check
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset
from posix.time cimport nanosleep, timespec

from cyproducer.accumulator.record_accumulator cimport (
    APPENDED,
    IS_CLOSED,
    NEED_MEMORY,
    NO_SUCH_PARTITION,
    TOPIC_UNKNOWN,
    RecordAccumulator,
)
from cyproducer.accumulator.buffer_pool cimport buffer_capacity
from cyproducer.accumulator.partition_table cimport TopicInfo
from cyproducer.futures.bulk_future cimport BulkFuture, bulk_future
from cyproducer.futures.bulk_segments cimport Segments
from cyproducer.send.extended_rows cimport ExtendedRows
from cyproducer.send.bulk_append cimport (
    FEW_ROWS,
    OTHER_PARTITIONS,
    PAUSE,
    READY_ROWS,
    Ready,
    Sending,
    append_rows,
)
from cyproducer.send.send_path cimport SendPath, given_timestamp, topic_of, wanted_partition
from cyproducer.accumulator.structures cimport Batch
from cyproducer.base.greenlets cimport after_slice, in_greenlet, slice_end, wait_on
from cyproducer.base.sync cimport (
    SIGNAL_SLICE_NS,
    cyp_after,
    cyp_change64,
    cyp_load32,
    cyp_load64,
    cyp_monotonic_ns,
    cyp_peek32,
    cyp_peek64,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)
from cyproducer.futures.waiting cimport refuse_on_sender
from cyproducer.records.record_batch cimport BATCH_HEADER
from cyproducer.records.row_source cimport (
    RowSource,
    check_rows,
    from_arrow,
    from_sequences,
    largest_row,
    let_go_of,
)

from collections.abc import Iterable

from cyproducer.errors import BufferExhaustedError, KafkaTimeoutError, UnknownTopicOrPartitionError
from cyproducer.base.greenlets import nap

cdef extern from "<Python.h>":
    int PyErr_CheckSignals() except -1


cdef enum:
    HEADERS_ROOM = 65536      # bytes for the headers of as many rows as fit


cdef class BulkPath(SendPath):
    """The base class of ``KafkaProducer`` with ``send_arrow()`` and ``send_many()``. Thread-safe."""

    def send_arrow(
        self, topic, data, *, key=None, value="value", headers=None, partition=None, timestamp=None
    ):
        """Accepts the rows of a table and returns one future for all of them; see docs/columnar.md.

        ``data``: any object with ``__arrow_c_stream__`` or ``__arrow_c_array__``, such as tables of pyarrow,
        polars, pandas, DuckDB and DataFusion. A stream is read to its end and kept in memory before any row
        is sent: if it does not fit into memory, call this method for each of its batches.

        ``value``, ``key``, ``headers``: names of columns, or None. Values and keys are binary or string
        columns, including large, view, fixed-size and dictionary variants; headers are lists of (key, value)
        structs. ``partition``: a number for all rows, or the name of a column of whole numbers; for null (for
        float64 also NaN) the partitioner chooses. ``timestamp``: milliseconds for all rows, or the name of a
        column of timestamps, dates, or int64 or uint64 milliseconds; null means now.

        Blocks while the topic's metadata is missing, while it is refreshed because a partition is missing,
        and while ``buffer_memory`` is full: each time up to ``max_block_ms``.

        Raises, before any row is sent, ``TypeError`` and ``ValueError`` for invalid columns and rows,
        ``RecordTooLargeError``, ``UnknownTopicOrPartitionError``, ``InvalidTopicError``,
        ``KafkaTimeoutError`` if no metadata arrives, ``ProducerClosedError``. Errors that are raised later,
        such as ``BufferExhaustedError``, have the attributes ``accepted``, the number of accepted rows, and
        ``future``, the future of those rows.
        """
        try:
            return self._send_arrow(topic, data, key, value, headers, partition, timestamp)
        except Exception as error:
            self._note_refused(error)
            raise

    def send_many(
        self, topic, values, keys=None, *, headers=None, partition=None, timestamp_ms=None
    ):
        """Accepts many records and returns one future for all of them; like ``send_arrow``, for sequences.

        ``values``, ``keys``: sequences of the same length, of bytes, other contiguous buffers or None, or of
        objects that the producer's serializers accept; errors name items by their index. Other threads can
        run during the call: a list that they change is read as by a ``for`` loop. ``headers``: a list of
        (str, bytes or None) pairs for all records, or a sequence with such a list or None for each record.
        ``partition``: an int for all records, or a sequence of int or None (the partitioner chooses).
        ``timestamp_ms``: an int for all records, or a sequence of int or None (now). Interceptors,
        serializers and a custom partitioner are called for all rows before any row is sent; interceptors must
        not change the topic (``ValueError``). See ``send_arrow`` for the rest, including errors.
        """
        try:
            if self.extensions is not None:
                return self._send_extended_rows(
                    ExtendedRows(self.extensions, topic, values, keys, headers, partition, timestamp_ms)
                )
            return self._send_many(topic, values, keys, headers, partition, timestamp_ms)
        except Exception as error:
            self._note_refused(error)
            raise

    cdef BulkFuture _send_extended_rows(self, ExtendedRows rows):
        cdef BulkFuture future
        # Before the program's functions, which may not be usable after close().
        self._before_bulk("send_many", False, False)
        try:
            rows.intercept()
            rows.serialize()
            rows.choose(self)
            values, keys, headers, partition, timestamp_ms = rows.columns()
            if self.extensions.accepts:
                future = self._accept_many(
                    rows.given, rows.topic, values, keys, headers, partition, timestamp_ms
                )
            else:
                future = self._send_many(rows.topic, values, keys, headers, partition, timestamp_ms)
        except Exception as error:
            rows.refuse(error)
            raise
        rows.follow(future)
        return future

    # For subclasses

    def _accept_many(self, given, topic, values, keys, headers, partition, timestamp_ms):
        """Sends serialized rows, if ``Extensions.accepts``; ``given``: the columns before serialization."""
        return self._send_many(topic, values, keys, headers, partition, timestamp_ms)

    def _before_bulk(self, str method, bint keyed, bint valued):
        """Raises if the producer is closed or its configuration does not allow bulk calls.

        Returns whether each row must specify its partition. Not called if the path is ``plain`` and open,
        because then there is nothing to check.
        """
        return False

    def _wait_for_topic(self, str name, double timeout_s):
        """Waits for a topic's metadata, or raises."""
        return None

    # Sending

    cdef BulkFuture _send_arrow(
        self, object topic, object data, object key, object value, object headers, object partition,
        object timestamp,
    ):
        cdef RowSource source
        cdef TopicInfo state = topic_of(self, topic)
        cdef int32_t wanted = -1
        cdef bint given = False
        cdef int64_t timestamp_ms = -1
        if not self.plain or cyp_peek32(&self.accumulator.c.closed):
            given = self._before_bulk("send_arrow", key is not None, value is not None)
        if partition is not None and not isinstance(partition, str):
            wanted = wanted_partition(partition)
            partition = None
        if timestamp is not None and not isinstance(timestamp, str):
            timestamp_ms = given_timestamp(timestamp, "timestamp")
            timestamp = None
        source = from_arrow(data, key, value, headers, partition, timestamp)
        source.partition = wanted
        source.timestamp_ms = timestamp_ms
        return self._pinned(state, source, given and wanted < 0)

    cdef BulkFuture _send_many(
        self, object topic, object values, object keys, object headers, object partition,
        object timestamp_ms,
    ):
        cdef RowSource source
        cdef TopicInfo state = topic_of(self, topic)
        cdef int32_t wanted = -1
        cdef bint given = False
        cdef BulkFuture future
        cdef int64_t at_ms = -1
        if not self.plain or cyp_peek32(&self.accumulator.c.closed):
            given = self._before_bulk("send_many", False, False)
        # A number is for all records. So is text, which is not a sequence of numbers.
        if partition is not None and (PyLong_Check(partition) or not isinstance(partition, Iterable)):
            wanted = wanted_partition(partition)
            partition = None
        if timestamp_ms is not None and (
            PyLong_Check(timestamp_ms) or not isinstance(timestamp_ms, Iterable)
        ):
            at_ms = given_timestamp(timestamp_ms, "timestamp_ms")
            timestamp_ms = None
        source = from_sequences(values, keys, headers, partition, timestamp_ms)
        source.partition = wanted
        source.timestamp_ms = at_ms
        future = self._pinned(state, source, given and wanted < 0)
        let_go_of(source)
        return future

    cdef BulkFuture _pinned(self, TopicInfo state, RowSource source, bint given):
        """Calls ``_send_rows`` with the topic pinned, so that it is not forgotten meanwhile."""
        while not self._pin(state, 1):
            state = self._topic(state.name)
        try:
            return self._send_rows(state, source, given)
        finally:
            self._pin(state, -1)

    cdef bint _pin(self, TopicInfo state, int32_t change) noexcept:
        """Changes how many calls use a topic; False if it is forgotten."""
        cdef RecordAccumulator acc = self.accumulator
        cdef bint there
        pthread_mutex_lock(&acc.c.lock)
        there = not state.c.gone
        if there:
            state.pins += change
        pthread_mutex_unlock(&acc.c.lock)
        return there

    cdef BulkFuture _send_rows(self, TopicInfo state, RowSource source, bint given):
        cdef Segments segments = Segments.__new__(Segments)
        cdef RecordAccumulator acc = self.accumulator
        cdef BulkFuture future = bulk_future(state.name, segments)
        cdef Sending s
        cdef Ready few[FEW_ROWS]
        cdef int64_t least
        # 0: the call has not waited yet.
        cdef int64_t deadline = 0
        # Rows are only appended while the topic has this many partitions.
        cdef int32_t partitions
        if cyp_load64(&acc.c.completions.backlog) >= acc.c.completions.most:
            deadline = cyp_after(cyp_monotonic_ns(), self.max_block_ns)
            self._await_callbacks(deadline, state.name)
        partitions = cyp_load32(&state.c.partition_count)
        if partitions == 0:
            if deadline == 0:
                deadline = cyp_after(cyp_monotonic_ns(), self.max_block_ns)
            partitions = self._known_partitions(state, deadline)
        try:
            self._check(state, source, partitions, given)
        except UnknownTopicOrPartitionError:
            # The partition may be newer than the metadata.
            if deadline == 0:
                deadline = cyp_after(cyp_monotonic_ns(), self.max_block_ns)
            self._refresh_topic(state.name, max(0.0, (deadline - cyp_monotonic_ns()) / 1e9))
            partitions = self._known_partitions(state, deadline)
            self._check(state, source, partitions, given)
        least = buffer_capacity(min(source.largest + BATCH_HEADER, self.max_request_size))
        if least > acc.pool.total_bytes:
            least = buffer_capacity(min(largest_row(source) + BATCH_HEADER, self.max_request_size))
        if least > acc.pool.total_bytes and source.count > 0:
            raise BufferExhaustedError(
                f"a row may need {least} bytes and buffer_memory is {acc.pool.total_bytes}"
            )
        segments.prepare(source.count)
        memset(&s, 0, sizeof(Sending))
        s.partition = source.partition
        s.timestamp_ms = source.timestamp_ms
        s.partitions = partitions
        if source.count > FEW_ROWS:
            s.left_over = acc.pool.total_bytes // 8
        s.headers_most = source.headers_room
        s.ready_room = <int32_t>min(READY_ROWS, source.count)
        s.ready = few
        if s.ready_room > FEW_ROWS:
            s.ready = <Ready*>malloc(s.ready_room * sizeof(Ready))
        if source.headers_name is not None:
            s.headers_room = max(source.headers_room, min(HEADERS_ROOM, source.headers_room * s.ready_room))
            s.headers = <uint8_t*>malloc(s.headers_room)
        try:
            if s.ready == NULL or (s.headers == NULL and s.headers_room > 0):
                raise MemoryError(f"no memory for {s.headers_room} bytes of headers")
            self._append_all(state, source, segments, &s)
        except BaseException as error:
            error.accepted = segments.rows
            error.future = future
            raise
        finally:
            free(s.headers)
            if s.ready != few:
                free(s.ready)
            if s.grant:
                acc.pool.unreserve(s.grant)
            segments.finish(source.count)
        return future

    cdef int _check(self, TopicInfo state, RowSource source, int32_t partitions, bint given) except -1:
        """Raises if a row can't be sent to a topic with this many partitions."""
        if source.partition >= partitions:
            raise UnknownTopicOrPartitionError(no_partition(state, source.partition, partitions))
        if given and source.partition_name is None and source.count > 0:
            raise ValueError(
                "partition: must be given: send_arrow() does not call a custom partitioner"
            )
        return check_rows(source, partitions, self.max_request_size, given)

    cdef int _append_all(self, TopicInfo state, RowSource source, Segments segments, Sending* s) except -1:
        cdef RecordAccumulator acc = self.accumulator
        cdef int64_t i
        cdef int64_t deadline
        cdef int64_t before
        cdef int result
        cdef Batch* sealing
        for i in range(source.batch_count):
            s.rows = &source.batches[i]
            s.row = 0
            deadline = 0
            while s.row < s.rows.count:
                before = s.row
                if s.rows.count <= FEW_ROWS:
                    # As in send(): releasing the GIL would cost more than appending these rows.
                    result = append_rows(acc, &state.c, segments, s)
                else:
                    with nogil:
                        result = append_rows(acc, &state.c, segments, s)
                if s.out.sealing != NULL:
                    sealing = s.out.sealing
                    s.out.sealing = NULL
                    acc.seal(sealing)
                if result != APPENDED and result != PAUSE:
                    # Each wait has its own deadline if rows were appended since the last wait.
                    if s.row > before or deadline == 0:
                        deadline = cyp_after(cyp_monotonic_ns(), self.max_block_ns)
                    self._cope(result, state, segments, s, deadline)
                PyErr_CheckSignals()
        return 0

    cdef int _cope(
        self, int result, TopicInfo state, Segments segments, Sending* s, int64_t deadline
    ) except -1:
        """Handles a result that interrupted appending: waits for memory or metadata, or raises."""
        cdef RecordAccumulator acc = self.accumulator
        if result == NEED_MEMORY:
            acc.wake()
            if s.grant:
                acc.pool.unreserve(s.grant)
                s.grant = 0
            if s.left_over > 0 and not self._wait_for_others(s.out.need + s.left_over, deadline):
                s.left_over = 0
            self._reserve(s.out.need, deadline, state.name)
            s.grant = s.out.need
        elif result == TOPIC_UNKNOWN or result == OTHER_PARTITIONS:
            s.partitions = self._known_partitions(state, deadline)
        elif result == IS_CLOSED:
            raise acc.why_refused("the producer was closed: not all rows were accepted")
        elif result == NO_SUCH_PARTITION:
            raise UnknownTopicOrPartitionError(
                f"topic {state.name!r} has fewer partitions than before ({state.c.partition_count} now): "
                "not all rows were accepted"
            )
        else:
            raise MemoryError(f"no memory for rows of topic {state.name!r}")
        return 0

    cdef bint _wait_for_others(self, int64_t size, int64_t deadline) except -1:
        """Waits for at most SIGNAL_SLICE_NS until ``size`` bytes are free, without joining the pool's queue.

        Returns whether they are free. In the queue, this call would be granted every released byte and use
        it: another thread's ``send()`` would wait behind many rows of this call each time it needs a buffer.
        """
        cdef RecordAccumulator acc = self.accumulator
        cdef timespec moment
        cdef int64_t began = cyp_monotonic_ns()
        cdef int64_t until = min(deadline, began + SIGNAL_SLICE_NS)
        cdef int64_t most = acc.pool.total_bytes - size
        self._hurry()
        # Read without the lock: the caller reserves the bytes afterwards, or waits for them.
        while cyp_peek64(&acc.pool.in_use) > most and cyp_monotonic_ns() < until and not acc.c.closed:
            slice_end(until)
            if in_greenlet():
                nap(0.001)
                continue
            with nogil:
                while cyp_peek64(&acc.pool.in_use) > most and cyp_monotonic_ns() < until and not acc.c.closed:
                    moment.tv_sec = 0
                    moment.tv_nsec = 50_000
                    nanosleep(&moment, NULL)
        pthread_mutex_lock(&acc.pool.lock)
        cyp_change64(&acc.pool.waited_ns, cyp_monotonic_ns() - began)
        pthread_mutex_unlock(&acc.pool.lock)
        PyErr_CheckSignals()
        return cyp_peek64(&acc.pool.in_use) <= most

    cdef int32_t _known_partitions(self, TopicInfo state, int64_t deadline) except -1:
        """The topic's partition count; waits for its metadata until ``deadline``."""
        cdef RecordAccumulator acc = self.accumulator
        cdef int64_t now
        cdef int64_t until
        cdef int32_t count
        cdef int32_t refusing
        while True:
            now = cyp_monotonic_ns()
            if cyp_load32(&state.c.partition_count) == 0:
                self._wait_for_topic(state.name, max(0.0, (deadline - now) / 1e9))
            # Even with metadata the count may be 0: parked records are still being appended to their
            # partitions, or the topic was idle and is being dropped.
            if cyp_load32(&state.c.partition_count) == 0 and acc.on_topic_needed is not None:
                acc.on_topic_needed(state.name)
            if cyp_load32(&state.c.partition_count) == 0:
                refuse_on_sender("sending rows of a topic without metadata")
            until = slice_end(deadline)
            with nogil:
                pthread_mutex_lock(&acc.c.lock)
                while state.c.partition_count == 0 and not acc.c.refusing:
                    if wait_on(&acc.c.progress, &acc.c.lock, until):
                        break
                count = state.c.partition_count
                refusing = acc.c.refusing
                pthread_mutex_unlock(&acc.c.lock)
            if count > 0:
                return count
            if refusing:
                raise acc.why_refused("the producer is closed: no row was accepted")
            after_slice()
            if cyp_monotonic_ns() >= deadline:
                raise KafkaTimeoutError(
                    f"no metadata of topic {state.name!r} within "
                    f"max_block_ms={self.max_block_ns // 1_000_000}"
                )


cdef object no_partition(TopicInfo state, int32_t partition, int32_t count):
    return f"partition={partition}: topic {state.name!r} has {count} partitions, 0 to {count - 1}"
