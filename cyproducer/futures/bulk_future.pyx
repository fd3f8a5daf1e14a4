"""The future of one call that sent many rows, and the offsets of these rows.

Owns ``BulkFuture`` and its results, ``BulkMetadata`` and ``RowOffsets``. Does not own the rows' segments
(``bulk_segments``), the batches' outcomes (``delivery``) or the callback thread
(``futures/callback_thread``). Any thread can query it, wait or add callbacks.

To wait for all rows, it waits for one batch after the other: there are few batches, and most have completed
by then. Callbacks work the same way: a ``RecordFuture`` in the first batch without an outcome calls
``_follow``, which continues with the next such batch.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t

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
    why_pending,
    wait_slice,
)
from cyproducer.futures.bulk_segments cimport Sizes
from cyproducer.base.sync cimport cyp_load32, cyp_monotonic_ns, cyp_store32
from cyproducer.records.arrow cimport export_rows, export_schema

from cyproducer.base.removed_attribute import Missing, without_missing
from cyproducer.errors import BulkSendError, KafkaTimeoutError


cdef object missing(str name):
    """A placeholder for an attribute that the future's metadata has, not the future."""
    return Missing(f"a BulkFuture has no {name}, its metadata has: future.get().{name}")


@cython.final
cdef class RowOffsets:
    """The position of each row: a table of (partition: int32, offset: int64), in the order of the rows.

    Libraries that read Arrow data accept it (``__arrow_c_array__``): ``pyarrow.record_batch(rows)``,
    ``polars.DataFrame(rows)``. ``partitions`` and ``offsets`` are the same columns as memoryviews. The offset
    of a row that failed is null in the table and -1 in ``offsets``. Without acknowledgements (``acks=0``)
    every offset is -1 in both. Immutable.
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
            raise ValueError(
                f"{len(partitions)} bytes of partitions, {len(offsets)} bytes of offsets: must be 4 and 8 "
                "bytes per row"
            )
        if (valid is None) != (nulls == 0) or (valid is not None and len(valid) * 64 < len(offsets)):
            raise ValueError(f"{nulls} offsets are missing, which does not match the bitmap")

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
        """The table; Arrow's PyCapsule interface. Ignores ``requested_schema``, which the interface
        allows."""
        return export_rows(len(self), self._partitions, self._offsets, self._valid, self._nulls)

    def __reduce__(self):
        return RowOffsets, (self._partitions, self._offsets, self._valid, self._nulls)


@cython.final
cdef class BulkMetadata:
    """The positions of the rows of a call. Immutable.

    ``topic``; ``count``: how many rows were acknowledged; ``ranges``: a list of ``OffsetRange`` (partition,
    first offset, records), sorted, adjacent ones joined; ``rows()``: each row separately.
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
        """The ``RowOffsets``, created by the first call: 12 bytes per row."""
        with cython.critical_section(self):
            if self._rows is None:
                self._rows = RowOffsets(*self._segments.offsets())
            rows = self._rows
        return rows

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
    """The outcome of all rows of one ``send_arrow()`` or ``send_many()``, which may still be pending.

    Works like ``RecordFuture``, with ``BulkMetadata`` as the metadata and ``BulkSendError`` as the error. It
    is done when every row has an outcome, and has failed if any row has failed. Thread-safe.
    """

    count = missing("count")
    ranges = missing("ranges")
    rows = missing("rows")
    offset = Missing("a BulkFuture has no offset: future.get().ranges has the offsets of its rows")
    result = Missing("a BulkFuture has no result(): call get(), or as_concurrent().result()")
    add_done_callback = Missing(
        "a BulkFuture has no add_done_callback(): call add_both(), whose callbacks get the metadata or the "
        "error, or as_concurrent().add_done_callback()"
    )

    def __dir__(self):
        return without_missing(self, object.__dir__(self))

    def __reduce__(self):
        raise TypeError(
            f"the future of {self._called()} can't be pickled: it is valid only in the process that sent "
            "them. Return the result of its get() instead"
        )

    cdef bint _settled(self) except -1:
        """Whether every row has an outcome."""
        cdef int32_t index
        cdef Delivery* d = self.segments.first_pending(&index)
        if d == NULL:
            return True
        delivery_unref(d)
        return False

    cdef object _learn(self):
        """Creates the metadata and the error from the outcome, which must be known; returns the error."""
        cdef BulkMetadata metadata
        cdef object error = None
        if not cyp_load32(&self.learnt):
            metadata = BulkMetadata(self.topic, self.segments.ranges(), None)
            metadata._segments = self.segments
            if metadata.count < self.segments.rows:
                error = failure(self.topic, self.segments, metadata)
            # Two threads may get here. Both are stored once, and do not change.
            with cython.critical_section(self):
                if not self.learnt:
                    self.error = error
                    self.metadata = metadata
                    cyp_store32(&self.learnt, 1)
        return self.error

    # Queries

    @property
    def is_done(self):
        """Whether the outcome of every row is known; does not block."""
        return self._settled()

    def is_complete(self):
        """The same as ``is_done``, as a method."""
        return self._settled()

    def done(self):
        """The same as ``is_done``, under the name that asyncio and concurrent.futures use."""
        return self._settled()

    def succeeded(self):
        """Whether every row was acknowledged."""
        return self._settled() and self._learn() is None

    def failed(self):
        """Whether every row has an outcome, and some have permanently failed."""
        return self._settled() and self._learn() is not None

    def retriable(self):
        """Whether sending the failed rows again, as new records, may succeed."""
        return self.failed() and bool(self.error.retriable)

    @property
    def value(self):
        """The ``BulkMetadata``, or None while pending or if rows failed."""
        return self.metadata if self.succeeded() else None

    @property
    def exception(self):
        """The ``BulkSendError`` if rows failed, or None."""
        return fresh(self._learn()) if self._settled() else None

    def __len__(self):
        """How many rows were accepted."""
        return self.segments.rows

    def __bool__(self):
        return True

    def get(self, timeout=None):
        """Waits until every row has an outcome, up to ``timeout`` seconds (None: no limit).

        Returns the ``BulkMetadata``. Raises ``BulkSendError`` if rows failed, with the rows and the reasons,
        or ``KafkaTimeoutError`` if ``timeout`` expires first: the rows stay accepted. The wait is always
        bounded by ``delivery_timeout_ms``. Raises ``IllegalStateError`` instead of waiting in a callback of
        the same producer, and in a forked child for rows that the parent sent; ``ValueError`` for a
        ``timeout`` that is negative or NaN.
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
                try:
                    why = why_pending(d)
                finally:
                    delivery_unref(d)
                raise KafkaTimeoutError(
                    f"not all of {self._called()} were acknowledged within {timeout} s; they stay accepted "
                    f"and may still be delivered{why}"
                )
        if self._learn() is not None:
            raise fresh(self.error)
        return self.metadata

    def _each(self, bytes sizes not None, timestamp_ms):
        """The ``RecordMetadata`` of each row, None for a row that failed. Every row must have an outcome.

        ``sizes``: an array of ``Sizes``, one per row; ``timestamp_ms``: the timestamp of all rows.
        """
        if not self._settled():
            raise ValueError(f"not all of {self._called()} have an outcome yet")
        if PyBytes_GET_SIZE(sizes) != <Py_ssize_t>(self.segments.rows * sizeof(Sizes)):
            raise ValueError(f"sizes: must have one entry for each of {self._called()}")
        return self.segments.metadata(self.topic, <const Sizes*>PyBytes_AS_STRING(sizes), timestamp_ms)

    def _called(self):
        return f"{self.segments.rows} rows for topic {self.topic!r}"

    def _refuse_wait(self, str what not None):
        """Raises ``IllegalStateError`` if waiting for these rows would never end, or would block others."""
        cdef int32_t index
        cdef Delivery* d = self.segments.first_pending(&index)
        if d != NULL:
            try:
                refuse_wait(d, what, self)
            finally:
                delivery_unref(d)

    # Callbacks

    def add_callback(self, f, *args, **kwargs):
        """Calls ``f(*args, metadata, **kwargs)`` once every row is acknowledged; returns this future.

        ``f`` runs on the callback thread, or on the calling thread if the outcome is already known; see
        ``RecordFuture.add_callback``.
        """
        return self._add(ON_SUCCESS, bound(f, args, kwargs))

    def add_errback(self, f, *args, **kwargs):
        """Calls ``f(*args, error, **kwargs)`` once every row has an outcome and some have failed."""
        return self._add(ON_FAILURE, bound(f, args, kwargs))

    def add_both(self, f, *args, **kwargs):
        """Calls ``f(*args, metadata_or_error, **kwargs)`` either way; see ``add_callback``."""
        return self._add(ON_BOTH, bound(f, args, kwargs))

    cdef object _add(self, int kind, object function):
        cdef int32_t index
        cdef bint others
        cdef bint followed
        cdef Delivery* d = self.segments.first_pending(&index)
        if d != NULL:
            try:
                refuse_foreign(d, self)
            finally:
                delivery_unref(d)
        # As in RecordFuture._add.
        with cython.critical_section(self):
            if self.callbacks is None:
                self.callbacks = []
            others = len(self.callbacks) > 0
            self.callbacks.append((kind, function))
            followed = self.followed
            self.followed = True
        if followed and (others or not self._settled()):
            return self
        self._follow(None)
        return self

    def _follow(self, outcome):
        """Registers itself with the first batch without an outcome; runs the callbacks if there is none."""
        cdef int32_t index
        cdef Delivery* d
        cdef RecordFuture future
        while True:
            d = self.segments.first_pending(&index)
            if d == NULL:
                break
            # The future takes over the reference.
            future = RecordFuture.__new__(RecordFuture)
            future.delivery = d
            future.index = index
            future.topic = self.topic
            future.callbacks = (ON_BOTH, self._follow)
            if list_callback(d, future):
                if not cyp_load32(&d.queue.started):
                    (<object>d.queue.owner).ensure_started()
                return
        self._run_callbacks()

    cdef object _run_callbacks(self):
        cdef object error
        if self.callbacks:
            error = self._learn()
            outcome = self.metadata if error is None else fresh(error)
            run_callbacks(self, self.callbacks, error is None, outcome, self.topic)
        return None

    def as_concurrent(self):
        """The outcome as a ``concurrent.futures.Future``; see ``RecordFuture.as_concurrent``."""
        from cyproducer.futures.concurrent_future import concurrent

        return concurrent(self)

    def __await__(self):
        """Awaits the outcome in asyncio, on the running event loop."""
        from cyproducer.futures.concurrent_future import awaited

        return awaited(self).__await__()

    def __repr__(self):
        state = "pending" if not self._settled() else "acknowledged" if self._learn() is None else "failed"
        return f"<BulkFuture topic={self.topic!r} rows={self.segments.rows} {state}>"


cdef object failure(str topic, Segments segments, BulkMetadata metadata):
    """The error for a call in which some or all rows failed."""
    failures = segments.failures()
    lost = segments.rows - metadata.count
    return BulkSendError(
        f"{lost} of {segments.rows} rows for topic {topic!r} were not acknowledged, the first of them row "
        f"{failures[0].rows[0]}: {failures[0].error}",
        metadata=metadata,
        failures=failures,
    )
