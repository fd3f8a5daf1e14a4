"""The outcome of one call that sent many rows: a future for all of them, and where they are.

Owns: ``BulkFuture``, and what it tells: ``BulkMetadata``, ``RowOffsets``. Does not own: the rows' segments
(``segments``), nor the batches' outcomes and the thread that runs callbacks (``delivery``). Any thread may
ask, wait or register.

To wait for all is to wait for one batch after the other: there are few, and most are done by the time they
are come to. Callbacks work likewise: a ``RecordFuture`` of the first batch without an outcome calls back,
and goes on to the next one.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

cimport cython

from cyproducer.futures.invoke_callback cimport ON_BOTH, ON_FAILURE, ON_SUCCESS, bound, run_callbacks
from cyproducer.base.clock cimport deadline_in
from cyproducer.futures.delivery cimport (
    Delivery,
    RecordFuture,
    delivery_unref,
    fresh,
    list_callback,
    refuse_foreign,
    refuse_wait,
    wait_slice,
)
from cyproducer.futures.segments cimport Sizes
from cyproducer.base.sync cimport cyp_monotonic_ns
from cyproducer.records.arrow cimport export_rows, export_schema

from cyproducer.errors import BulkSendError, KafkaTimeoutError


@cython.final
cdef class RowOffsets:
    """Where each row is: a table of (partition: int32, offset: int64), in the order of the rows.

    Whatever takes Arrow data takes it (``__arrow_c_array__``): ``pyarrow.record_batch(rows)``,
    ``polars.DataFrame(rows)``. ``partitions`` and ``offsets`` are the same as memoryviews. The offset of a
    row that failed is null in the table and -1 in ``offsets``, and without acknowledgements (``acks=0``) it
    is -1 in both. Immutable.
    """

    cdef bytes _partitions
    cdef bytes _offsets
    cdef bytes _valid
    cdef int64_t _nulls

    def __init__(self, partitions not None, offsets not None, valid, nulls):
        self._partitions = partitions
        self._offsets = offsets
        self._valid = valid
        self._nulls = nulls
        if 2 * len(partitions) != len(offsets) or len(offsets) % 8:
            raise ValueError(f"{len(partitions)} bytes of partitions, {len(offsets)} bytes of offsets")
        if (valid is None) != (nulls == 0) or (valid is not None and len(valid) * 64 < len(offsets)):
            raise ValueError(f"{nulls} offsets are missing, which does not fit the bitmap")

    def __len__(self):
        return len(self._offsets) // 8

    @property
    def partitions(self):
        """Each row's partition, as a memoryview of int32."""
        return memoryview(self._partitions).cast("i")

    @property
    def offsets(self):
        """Each row's offset, as a memoryview of int64."""
        return memoryview(self._offsets).cast("q")

    def __arrow_c_schema__(self):
        """The table's type; Arrow's PyCapsule interface."""
        return export_schema()

    def __arrow_c_array__(self, requested_schema=None):
        """The table; Arrow's PyCapsule interface. ``requested_schema`` is not followed, as it may be."""
        cdef int64_t rows = len(self._offsets) // 8
        cdef int32_t* partitions = <int32_t*>malloc(max(1, rows * 4))
        cdef int64_t* offsets = <int64_t*>malloc(max(1, rows * 8))
        cdef uint8_t* valid = NULL
        if self._valid is not None:
            valid = <uint8_t*>malloc(max(1, len(self._valid)))
        if partitions == NULL or offsets == NULL or (valid == NULL and self._valid is not None):
            free(partitions)
            free(offsets)
            free(valid)
            raise MemoryError(f"no memory for the offsets of {rows} rows")
        memcpy(partitions, PyBytes_AS_STRING(self._partitions), rows * 4)
        memcpy(offsets, PyBytes_AS_STRING(self._offsets), rows * 8)
        if valid != NULL:
            memcpy(valid, PyBytes_AS_STRING(self._valid), len(self._valid))
        return export_rows(rows, partitions, offsets, valid, self._nulls)

    def __reduce__(self):
        return RowOffsets, (self._partitions, self._offsets, self._valid, self._nulls)


@cython.final
cdef class BulkMetadata:
    """Where the rows of a call are. Immutable.

    ``topic``; ``count``: rows that were acknowledged; ``ranges``: a list of ``OffsetRange``, (partition,
    first offset, records), sorted, neighbours as one; ``rows()``: each row by itself.
    """

    cdef readonly str topic
    cdef readonly int64_t count
    cdef readonly list ranges
    cdef Segments _segments
    cdef RowOffsets _rows

    def __init__(self, topic not None, ranges not None, rows):
        self.topic = topic
        self.ranges = ranges
        self.count = sum([each.records for each in ranges])
        self._rows = rows

    def rows(self):
        """``RowOffsets``, made at the first call: 12 bytes a row."""
        if self._rows is None:
            self._rows = RowOffsets(*self._segments.offsets())
        return self._rows

    def __reduce__(self):
        return BulkMetadata, (self.topic, self.ranges, self.rows())

    def __repr__(self):
        return f"<BulkMetadata topic={self.topic!r} count={self.count} ranges={self.ranges!r}>"


cdef BulkFuture bulk_future(str topic, Segments segments):
    """The future of rows that have been appended."""
    cdef BulkFuture future = BulkFuture.__new__(BulkFuture)
    future.topic = topic
    future.segments = segments
    return future


@cython.final
@cython.freelist(8)
cdef class BulkFuture:
    """The outcome of all rows of one ``send_arrow()`` or ``send_many()``, now or later.

    What ``RecordFuture`` is for a record, with ``BulkMetadata`` for the metadata and ``BulkSendError`` for
    the error: it is done when every row has its outcome, and has failed where any has. Thread-safe.
    """

    def __reduce__(self):
        raise TypeError(
            f"the future of {self._called()} can't be pickled: it is of use only in the process that sent "
            "them. Return what its get() returns"
        )

    cdef bint _settled(self) except -1:
        """Whether every row has its outcome."""
        cdef int32_t index
        cdef Delivery* d = self.segments.first_pending(&index)
        if d == NULL:
            return True
        delivery_unref(d)
        return False

    cdef object _learn(self):
        """Makes metadata and error of the outcome, which is known; returns the error."""
        cdef BulkMetadata metadata
        if self.metadata is None:
            metadata = BulkMetadata(self.topic, self.segments.ranges(), None)
            metadata._segments = self.segments
            if metadata.count < self.segments.rows:
                self.error = failure(self.topic, self.segments, metadata)
            self.metadata = metadata
        return self.error

    # Asking

    @property
    def is_done(self):
        """Whether the outcome of every row is known; does not block."""
        return self._settled()

    def is_complete(self):
        """The same as ``is_done``, as a call."""
        return self._settled()

    def done(self):
        """The same as ``is_done``, as asyncio and concurrent.futures call it."""
        return self._settled()

    def succeeded(self):
        """Whether every row was acknowledged."""
        return self._settled() and self._learn() is None

    def failed(self):
        """Whether every row has its outcome, and some have failed for good."""
        return self._settled() and self._learn() is not None

    def retriable(self):
        """Whether sending the rows that failed again, as new ones, may succeed."""
        return self.failed() and bool(self.error.retriable)

    @property
    def value(self):
        """The ``BulkMetadata``, or None while pending and where rows failed."""
        return self.metadata if self.succeeded() else None

    @property
    def exception(self):
        """The ``BulkSendError`` where rows failed, or None."""
        return fresh(self._learn()) if self._settled() else None

    def __len__(self):
        """How many rows were accepted."""
        return self.segments.rows

    def __bool__(self):
        return True

    def get(self, timeout=None):
        """Waits until every row has its outcome, up to ``timeout`` seconds (None: as long as it takes).

        Returns the ``BulkMetadata``. Raises ``BulkSendError`` where rows failed, which tells which and why,
        or ``KafkaTimeoutError`` when the time runs out first: the rows stay accepted then. The wait is
        bounded in any case, by ``delivery_timeout_ms``. Raises ``IllegalStateError`` instead of waiting in a
        callback of the same producer, and in a forked child for rows of the parent's; ``ValueError`` for a
        ``timeout`` below 0 or NaN.
        """
        cdef int64_t deadline = deadline_in("timeout", timeout)
        cdef int32_t index
        cdef Delivery* d = self.segments.first_pending(&index)
        while d != NULL:
            try:
                refuse_wait(d, "get()", self)
                wait_slice(d, deadline)
            finally:
                delivery_unref(d)
            d = self.segments.first_pending(&index)
            if d != NULL and cyp_monotonic_ns() >= deadline:
                delivery_unref(d)
                raise KafkaTimeoutError(
                    f"no acknowledgement of all of {self._called()} within {timeout} s; they stay accepted "
                    "and may still be delivered"
                )
        if self._learn() is not None:
            raise fresh(self.error)
        return self.metadata

    def _each(self, bytes sizes not None, timestamp_ms):
        """The ``RecordMetadata`` of each row, None of one that failed. Every row has its outcome.

        ``sizes``: of each row's key and value (``Sizes``); ``timestamp_ms``: the time that they were given.
        """
        if not self._settled():
            raise ValueError(f"not all of {self._called()} have an outcome yet")
        if PyBytes_GET_SIZE(sizes) != <Py_ssize_t>(self.segments.rows * sizeof(Sizes)):
            raise ValueError(f"sizes: are not those of {self._called()}")
        return self.segments.metadata(self.topic, <const Sizes*>PyBytes_AS_STRING(sizes), timestamp_ms)

    def _called(self):
        return f"{self.segments.rows} rows for topic {self.topic!r}"

    def _refuse_wait(self, str what not None):
        """Raises ``IllegalStateError`` where waiting for these rows would never end, or hold up others."""
        cdef int32_t index
        cdef Delivery* d = self.segments.first_pending(&index)
        if d != NULL:
            try:
                refuse_wait(d, what, self)
            finally:
                delivery_unref(d)

    # Being told

    def add_callback(self, f, *args, **kwargs):
        """Calls ``f(*args, metadata, **kwargs)`` once every row is acknowledged; returns this future.

        On the thread that runs callbacks, or on the calling one where the outcome is known already; see
        ``RecordFuture.add_callback``.
        """
        return self._add(ON_SUCCESS, bound(f, args, kwargs))

    def add_errback(self, f, *args, **kwargs):
        """Calls ``f(*args, error, **kwargs)`` once every row has its outcome and some have failed."""
        return self._add(ON_FAILURE, bound(f, args, kwargs))

    def add_both(self, f, *args, **kwargs):
        """Calls ``f(*args, metadata_or_error, **kwargs)`` either way; see ``add_callback``."""
        return self._add(ON_BOTH, bound(f, args, kwargs))

    cdef object _add(self, int kind, object function):
        cdef int32_t index
        cdef bint others
        cdef Delivery* d = self.segments.first_pending(&index)
        if d != NULL:
            try:
                refuse_foreign(d, self)
            finally:
                delivery_unref(d)
        if self.callbacks is None:
            self.callbacks = []
        # As in RecordFuture._add.
        others = len(self.callbacks) > 0
        self.callbacks.append((kind, function))
        if self.followed and (others or not self._settled()):
            return self
        self.followed = True
        self._follow(None)
        return self

    def _follow(self, outcome):
        """Has itself called by the first batch without an outcome; once there is none, runs the callbacks."""
        cdef int32_t index
        cdef Delivery* d
        cdef RecordFuture future
        while True:
            d = self.segments.first_pending(&index)
            if d == NULL:
                break
            # The future takes the reference.
            future = RecordFuture.__new__(RecordFuture)
            future.delivery = d
            future.index = index
            future.topic = self.topic
            future.callbacks = [(ON_BOTH, self._follow)]
            if list_callback(d, future):
                if not d.queue.started:
                    (<object>d.queue.owner).ensure_started()
                return
        self._run_callbacks()

    cdef object _run_callbacks(self):
        cdef object error
        if self.callbacks:
            error = self._learn()
            outcome = self.metadata if error is None else fresh(error)
            run_callbacks(self.callbacks, error is None, outcome, self.topic)
        return None

    def as_concurrent(self):
        """The outcome as a ``concurrent.futures.Future``; see ``RecordFuture.as_concurrent``."""
        from cyproducer.futures.concurrent_future import concurrent

        return concurrent(self)

    def __await__(self):
        """Awaits the outcome in asyncio, on whichever loop is running."""
        from cyproducer.futures.concurrent_future import awaited

        return awaited(self).__await__()

    def __repr__(self):
        state = "pending" if not self._settled() else "acknowledged" if self._learn() is None else "failed"
        return f"<BulkFuture topic={self.topic!r} rows={self.segments.rows} {state}>"


cdef object failure(str topic, Segments segments, BulkMetadata metadata):
    """The error of rows of which some, or all, have failed."""
    failures = segments.failures()
    lost = segments.rows - metadata.count
    return BulkSendError(
        f"{lost} of {segments.rows} rows for topic {topic!r} were not acknowledged, the first of them row "
        f"{failures[0].rows[0]}: {failures[0].error}",
        metadata=metadata,
        failures=failures,
    )
