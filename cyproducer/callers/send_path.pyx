"""``send()``: from a caller's arguments to bytes in a batch, with no Python object left but the future.

Owns: looking at the arguments, refusing what is wrong with them, appending, and waiting for memory.
Does not own: serializers, interceptors and custom partitioners (``producer.py`` passes an extension for
them), nor the accumulator. Runs on the caller's thread, with the GIL, which is released only in waits.
"""

from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.long cimport PyLong_Check
from cpython.sequence cimport PySequence_GetItem
from cpython.unicode cimport PyUnicode_Check, PyUnicode_FromObject
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from cyproducer.accumulator.record_accumulator cimport (
    APPENDED,
    IS_CLOSED,
    NEED_MEMORY,
    NO_SUCH_PARTITION,
    TOO_MANY_PARKED,
    TOPIC_GONE,
    TOPIC_UNKNOWN,
)
from cyproducer.futures.delivery cimport CompletionList, fresh, refused_future
from cyproducer.accumulator.parked_records cimport await_parking, may_park, park, parked_size
from cyproducer.base.sync cimport (
    SIGNAL_SLICE_NS,
    cyp_after,
    cyp_load64,
    cyp_monotonic_ns,
    cyp_ms_ns,
    cyp_s_ns,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)
from cyproducer.accumulator.ready_partitions cimport hurry
from cyproducer.futures.waiting cimport refuse_on_sender
from cyproducer.records.record_batch cimport BATCH_HEADER, record_bound
from cyproducer.records.row_source cimport take_buffer
from cyproducer.records.varint cimport put_varint

import re

from cyproducer.errors import (
    BufferExhaustedError,
    InvalidTopicError,
    ProducerClosedError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)

cdef extern from "<Python.h>":
    int PyErr_CheckSignals() except -1
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1

# Source: Apache Kafka's rule for topic names (249 characters, of these).
LEGAL_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")

cdef uint8_t NO_HEADERS = 0


# A caller's bytes, held while they are copied.
cdef struct Held:
    const uint8_t* data
    int64_t size
    Py_buffer view
    bint viewed


cdef int hold(object data, Held* held, str what) except -1:
    """Borrows the bytes of any contiguous buffer; -1 as the size of None.

    Exact bytes are only pointed to: the caller keeps ``data`` until they are copied.
    """
    held.viewed = False
    held.data = NULL
    if data is None:
        held.size = -1
    elif PyBytes_CheckExact(data):
        held.data = <const uint8_t*>PyBytes_AS_STRING(data)
        held.size = PyBytes_GET_SIZE(data)
    else:
        advice = ""
        if what in ("key", "value"):
            advice = f"; give the producer a {what}_serializer for other types"
        take_buffer(data, &held.view, what, advice)
        held.viewed = True
        held.data = <const uint8_t*>held.view.buf
        held.size = held.view.len
    return 0


cdef inline void let_go(Held* held) noexcept:
    if held.viewed:
        PyBuffer_Release(&held.view)


cdef uint8_t* encode_headers(object headers, int64_t* size, int64_t* payload) except NULL:
    """A list of (str, bytes or None) as a record has it, count first; the caller frees it.

    ``payload`` gets the bytes of names and values alone, which the metadata tells.
    """
    cdef int64_t room = 256
    cdef uint8_t* start = <uint8_t*>malloc(room)
    cdef uint8_t* grown
    cdef int64_t used
    cdef Py_ssize_t name_size
    cdef const char* name
    cdef Held value
    cdef tuple pairs
    # What a header's own __getitem__ makes lives as long as these refer to it: until it is copied.
    cdef object text
    cdef object data
    if start == NULL:
        raise MemoryError("no memory for headers")
    payload[0] = 0
    try:
        try:
            # A copy: the count is written first, and the caller's list may change meanwhile.
            pairs = tuple(headers)
        except TypeError as error:
            raise TypeError(
                f"headers: must be a list of (str, bytes or None) pairs, not {type(headers).__name__}"
            ) from error
        used = put_varint(start, len(pairs)) - start
        for header in pairs:
            if not isinstance(header, (tuple, list)) or len(header) != 2:
                raise TypeError(f"headers: each must be a (str, bytes or None) pair, not {header!r}")
            # With bounds checks: the code of one item may change the list before the other is taken.
            text = PySequence_GetItem(header, 0)
            data = PySequence_GetItem(header, 1)
            if not PyUnicode_Check(text):
                raise TypeError(f"headers: each must be a (str, bytes or None) pair, not {header!r}")
            try:
                name = PyUnicode_AsUTF8AndSize(text, &name_size)
            except UnicodeEncodeError as error:
                raise ValueError(f"headers: the name {text!r} can't be encoded as UTF-8") from error
            hold(data, &value, "the value of a header")
            try:
                if used + 20 + name_size + max(value.size, 0) > room:
                    room = 2 * room + 20 + name_size + max(value.size, 0)
                    grown = <uint8_t*>realloc(start, room)
                    if grown == NULL:
                        raise MemoryError("no memory for headers")
                    start = grown
                used = put_varint(start + used, name_size) - start
                memcpy(start + used, name, name_size)
                used += name_size
                used = put_varint(start + used, value.size) - start
                if value.size > 0:
                    memcpy(start + used, value.data, value.size)
                    used += value.size
                payload[0] += name_size + max(value.size, 0)
            finally:
                let_go(&value)
    except BaseException:
        free(start)
        raise
    size[0] = used
    return start


cdef int32_t wanted_partition(object partition) except -1:
    cdef int too_large = 0
    cdef int64_t number
    # Read as C does: a subclass's own comparisons could let any number through.
    if not PyLong_Check(partition):
        raise TypeError(f"partition: must be an int or None, not {type(partition).__name__}")
    number = PyLong_AsLongLongAndOverflow(partition, &too_large)
    if too_large or not 0 <= number <= 0x7FFFFFFF:
        raise ValueError(f"partition={digits(partition)}: must be >= 0 and below 2147483648")
    return <int32_t>number


cdef int64_t given_timestamp(object timestamp_ms, str name) except? -1:
    """An argument of that name as milliseconds."""
    cdef int too_large = 0
    cdef int64_t number
    if not PyLong_Check(timestamp_ms):
        raise TypeError(f"{name}: must be an int or None, not {type(timestamp_ms).__name__}")
    number = PyLong_AsLongLongAndOverflow(timestamp_ms, &too_large)
    if too_large or number < 0:
        raise ValueError(f"{name}={digits(timestamp_ms)}: must be milliseconds since the epoch, >= 0")
    return number


cdef str digits(object number):
    """An int for an error's text: without a subclass's own code, and however long it is."""
    bits = int.bit_length(number)
    return int.__repr__(number) if bits < 1000 else f"an int of {bits} bits"


class WouldBlock(Exception):
    """``send()`` would wait: for "memory" of ``size`` bytes, for "callbacks", for the "metadata" that records
    of the topic already wait for, or to hear of a "partition"."""

    def __init__(self, what, size=0):
        super().__init__(what)
        self.what = what
        self.size = size


cdef class SendPath:
    """What ``KafkaProducer`` inherits its ``send()`` from. Thread-safe."""

    def __cinit__(self):
        # Until the path is opened, so that a send() before that is told what is wrong.
        self.plain = True

    def _open_path(
        self,
        RecordAccumulator accumulator not None,
        int64_t max_request_size,
        double max_block_ms,
        object extension,
    ):
        self.accumulator = accumulator
        self.max_request_size = max_request_size
        self.max_block_ns = cyp_ms_ns(max_block_ms)
        self.extension = extension
        self.plain = extension is None
        self.last_topic = NULL
        self.forked = False

    def _forget_path(self):
        """In a forked child: no record may go the parent's way; the next one calls ``_reopen()`` first."""
        # The accumulator stays: whoever forked in the middle of a send() goes on with it, and finds it
        # closed.
        self.last_topic = NULL
        self.forked = True

    def _reopen(self):
        """Calls ``_open_path`` anew, in a forked child; for whoever inherits from this."""
        raise NotImplementedError("a SendPath in a forked child needs a new accumulator")

    def send(self, topic, value=None, key=None, headers=None, partition=None, timestamp_ms=None):
        """Accepts a record and returns its future; the record is sent in the background.

        ``value`` and ``key``: bytes, any contiguous buffer but numpy's scalars (copied before the call
        returns), or None; of any type where a serializer is configured. A record has at least one of the
        two: a key without a value is a tombstone. ``headers``: a list of (str, bytes or None); names may
        repeat. ``partition``: chosen by the partitioner where None. ``timestamp_ms``: milliseconds since the
        epoch, now by default; for records that share a batch now is the kernel's last tick, up to 4 ms ago
        on most systems.

        Blocks up to ``max_block_ms`` while ``buffer_memory`` is full, and while ``max_pending_callbacks``
        records wait for their callbacks (but not in a callback). A topic whose metadata is not there
        yet does not block: the record waits with those of its topic, up to ``max_block_ms`` likewise. A
        ``partition`` that the metadata do not have is refused when a broker, asked anew, does not have it
        either; ``KafkaTimeoutError`` where none answers in that time.

        Raises ``TypeError`` or ``ValueError`` for arguments that can't be right, ``InvalidTopicError``,
        ``BufferExhaustedError`` (a ``KafkaTimeoutError``) and ``ProducerClosedError``. What turns out
        later comes through the future, and so does ``RecordTooLargeError``. Thread-safe.
        """
        if self.plain:
            return self._send(topic, value, key, headers, partition, timestamp_ms, None, True)
        return self.extension(topic, value, key, headers, partition, timestamp_ms)

    def _send_serialized(self, topic, value, key, headers, partition, timestamp_ms):
        """``send()`` behind the serializers, interceptors and partitioners."""
        return self._send(topic, value, key, headers, partition, timestamp_ms, None, True)

    def _send_at_once(self, topic, value, key, headers, partition, timestamp_ms, Ticket ticket):
        """The same, but where it would wait it raises ``WouldBlock``.

        ``ticket``: None, or memory that was waited for.
        """
        return self._send(topic, value, key, headers, partition, timestamp_ms, ticket, False)

    def _refresh_topic(self, str name, double timeout_s):
        """Asks for a topic's metadata anew and waits for the answer, or raises."""
        return None

    def _opens_batch(self, topic, value, headers, partition):
        """Whether a record without a key would begin a new batch in its partition (KIP-480)."""
        cdef Held held
        cdef int64_t headers_size = 1
        cdef int64_t payload
        if headers:
            free(encode_headers(headers, &headers_size, &payload))
        hold(value, &held, "value")
        let_go(&held)
        return self.accumulator.opens_batch(
            PyUnicode_FromObject(topic),
            wanted_partition(partition),
            record_bound(-1, held.size, headers_size),
        )

    cdef TopicInfo _topic(self, object name):
        cdef TopicInfo state
        if self.accumulator is None:
            raise ProducerClosedError("this producer's constructor failed or was not called")
        if self.forked:
            self._reopen()
        if not PyUnicode_Check(name):
            raise TypeError(f"topic: must be a str, not {type(name).__name__}")
        # What a subclass's text is, not what its __str__, __eq__ or __hash__ say: an enum's members differ.
        name = PyUnicode_FromObject(name)
        state = self.accumulator.topics.get(name)
        if state is None:
            if not LEGAL_NAME.fullmatch(name) or name in (".", ".."):
                raise InvalidTopicError(
                    f"topic {name!r}: a name has 1 to 249 of the characters a-z A-Z 0-9 . _ -, "
                    "and is neither '.' nor '..'"
                )
            state = self.accumulator.topic(name)
        self.last_topic = <void*>state
        self.forgotten = self.accumulator.topics_forgotten
        return state

    cdef RecordFuture _send(self, object topic, object value, object key, object headers, object partition,
                            object timestamp_ms, Ticket ticket, bint blocks):
        cdef TopicInfo state = topic_of(self, topic)
        cdef RecordView r
        cdef Held held_key
        cdef Held held_value
        cdef Appended out
        cdef RecordFuture future
        cdef uint8_t* encoded = NULL
        cdef int64_t headers_payload = -1
        cdef int32_t wanted = -1
        if value is None and key is None:
            raise ValueError("a record needs a value or a key: a tombstone is a key with value=None")
        r.headers = &NO_HEADERS
        r.headers_size = 1
        r.timestamp_ms = -1
        # Before any buffer is held: what runs here may be the caller's code, which could change one.
        if partition is not None:
            wanted = wanted_partition(partition)
        if timestamp_ms is not None:
            r.timestamp_ms = given_timestamp(timestamp_ms, "timestamp_ms")
        held_key.viewed = False
        held_value.viewed = False
        try:
            if headers:
                encoded = encode_headers(headers, &r.headers_size, &headers_payload)
                r.headers = encoded
            hold(value, &held_value, "value")
            hold(key, &held_key, "key")
            r.key = held_key.data
            r.key_size = held_key.size
            r.value = held_value.data
            r.value_size = held_value.size
            if record_bound(r.key_size, r.value_size, r.headers_size) + BATCH_HEADER > self.max_request_size:
                refusal = self._too_large(state, &r)
                if refusal is not None:
                    return refused_future(state.name, refusal, r.timestamp_ms)
            self._append(state, wanted, &r, &out, ticket, blocks)
        finally:
            let_go(&held_value)
            let_go(&held_key)
            if encoded != NULL:
                free(encoded)
        future = RecordFuture.__new__(RecordFuture)
        future.delivery = out.delivery
        future.index = out.index
        future.topic = state.name
        future.key_size = <int32_t>r.key_size
        future.value_size = <int32_t>r.value_size
        future.header_size = <int32_t>headers_payload
        future.timestamp_ms = out.timestamp_ms
        if out.sealing != NULL:
            self.accumulator.seal(out.sealing)
        if out.wake:
            self.accumulator.wake()
        return future

    cdef object _too_large(self, TopicInfo state, const RecordView* r):
        """The error for a record that can't be sent, or None where only the estimate was too high."""
        cdef int64_t size = BATCH_HEADER + record_size(r)
        if size > self.max_request_size:
            return RecordTooLargeError(
                f"a record for topic {state.name!r} takes {size} bytes, batch header included, and "
                f"max_request_size is {self.max_request_size}",
                record_size=size,
                limit=self.max_request_size,
            )
        return None

    cdef int _append(
        self, TopicInfo state, int32_t partition, const RecordView* r, Appended* out, Ticket ticket,
        bint blocks,
    ) except -1:
        """Appends or parks the record, waiting for memory where there is none.

        ``blocks`` false: raises ``WouldBlock`` instead of waiting.
        """
        cdef RecordAccumulator acc = self.accumulator
        cdef int64_t grant = ticket.take() if ticket is not None else 0
        cdef int64_t deadline = 0
        cdef int64_t expiry = 0
        cdef int64_t parked
        cdef int result
        cdef bint refreshed = False
        cdef RecordView dated
        cdef CompletionList* due = acc.c.completions
        try:
            if cyp_load64(&due.backlog) >= due.most:
                if not blocks and not acc.completions.in_callback():
                    raise WouldBlock("callbacks")
                deadline = cyp_after(cyp_monotonic_ns(), self.max_block_ns)
                expiry = cyp_after(acc.clock.now_ns(), self.max_block_ns)
                self._await_callbacks(deadline, state.name)
            while True:
                result = acc.append(&state.c, partition, r, &grant, False, out)
                if result == APPENDED:
                    return 0
                if deadline == 0:
                    deadline = cyp_after(cyp_monotonic_ns(), self.max_block_ns)
                    # A parked record expires by the clock that the sender goes by.
                    expiry = cyp_after(acc.clock.now_ns(), self.max_block_ns)
                if out.sealing != NULL:
                    acc.seal(out.sealing)
                if result == NEED_MEMORY:
                    acc.wake()
                    if grant:
                        acc.pool.unreserve(grant)
                        grant = 0
                    if not blocks:
                        self._check_possible(out.need, state.name)
                        self._hurry()
                        raise WouldBlock("memory", out.need)
                    self._reserve(out.need, deadline, state.name)
                    grant = out.need
                elif result == TOPIC_UNKNOWN:
                    parked = parked_size(r)
                    if grant:
                        acc.pool.unreserve(grant)
                        grant = 0
                    if not may_park(acc, &state.c, parked):
                        if not blocks:
                            raise WouldBlock("metadata", parked)
                        self._await_parking(state, parked, deadline)
                        continue
                    if not blocks and not acc.pool.try_reserve(parked):
                        self._check_possible(parked, state.name)
                        self._hurry()
                        raise WouldBlock("memory", parked)
                    elif blocks:
                        self._reserve(parked, deadline, state.name)
                    out.index = 0
                    # It is as old as this call, not as the metadata.
                    dated = r[0]
                    if dated.timestamp_ms < 0:
                        dated.timestamp_ms = acc.clock.wall_ms()
                    out.timestamp_ms = dated.timestamp_ms
                    result = park(acc, &state.c, partition, &dated, parked, expiry, &out.delivery)
                    if result == APPENDED:
                        if acc.on_topic_needed is not None:
                            acc.on_topic_needed(state.name)
                        return 0
                    acc.pool.unreserve(parked)
                    if result == TOPIC_GONE:
                        state = self._topic(state.name)
                        continue
                if result == IS_CLOSED:
                    if acc.refusal is not None:
                        raise fresh(acc.refusal)
                    raise ProducerClosedError("send() on a closed producer: the record was not accepted")
                if result == NO_SUCH_PARTITION:
                    if refreshed:
                        raise self._no_partition(state.name, partition)
                    if not blocks:
                        raise WouldBlock("partition")
                    # It may have come since the metadata, which Kafka's own client waits for, too.
                    refreshed = True
                    self._refresh_topic(state.name, max(0.0, (deadline - cyp_monotonic_ns()) / 1e9))
                    continue
                if result not in (NEED_MEMORY, TOPIC_UNKNOWN, TOO_MANY_PARKED):
                    raise MemoryError(f"no memory for a record of topic {state.name!r}")
        finally:
            if grant:
                acc.pool.unreserve(grant)

    def _wait_for_callbacks(self, str topic not None, double timeout_s):
        """Waits until callbacks have caught up; raises as ``send()`` does after ``timeout_s`` seconds."""
        self._await_callbacks(cyp_after(cyp_monotonic_ns(), cyp_s_ns(timeout_s)), topic)

    cdef int _await_callbacks(self, int64_t deadline, object what) except -1:
        """Waits until callbacks have caught up with the records whose outcome is known."""
        cdef RecordAccumulator acc = self.accumulator
        refuse_on_sender("send(), which waits for callbacks,")
        if acc.completions.wait_for_room(deadline, &acc.c.closed):
            return 0
        raise BufferExhaustedError(
            f"callbacks are slow: {acc.completions.backlog} records wait for theirs, the first of them for "
            f"{acc.completions.lag_ns / 1e9:.1f} s, and they did not become fewer than "
            f"max_pending_callbacks={acc.c.completions.most} within "
            f"max_block_ms={self.max_block_ns // 1_000_000}; a record for topic {what!r} was not accepted. "
            "Let callbacks return sooner, or hand their work to another thread"
        )

    cdef int _reserve(self, int64_t size, int64_t deadline, object what) except -1:
        """Takes bytes from the pool, waiting for them with everything that is queued on its way."""
        cdef RecordAccumulator acc = self.accumulator
        cdef int granted
        if acc.pool.try_reserve(size):
            return 0
        self._check_possible(size, what)
        refuse_on_sender("send(), which lacks memory,")
        self._hurry()
        with nogil:
            granted = acc.pool.reserve(size, deadline)
        if not granted:
            raise self._exhausted(size, what)
        return 0

    def _wait_for_parking(self, str topic not None, int64_t size, double timeout_s):
        """Waits until ``size`` more bytes may wait for the topic's metadata; raises as ``send()`` does."""
        self._await_parking(self._topic(topic), size, cyp_after(cyp_monotonic_ns(), cyp_s_ns(timeout_s)))

    def _why_no_metadata(self, str topic not None, str within not None):
        """What ends a wait for a topic's metadata, in words."""
        return f"no metadata of topic {topic!r} within {within}"

    cdef int _await_parking(self, TopicInfo state, int64_t size, int64_t deadline) except -1:
        """Waits until fewer records wait for the topic's metadata, or for any."""
        cdef RecordAccumulator acc = self.accumulator
        cdef int64_t until
        cdef bint may
        refuse_on_sender("send(), whose topic has no metadata,")
        while True:
            until = min(deadline, cyp_monotonic_ns() + SIGNAL_SLICE_NS)
            with nogil:
                may = await_parking(acc, &state.c, size, until)
            if may:
                return 0
            if cyp_monotonic_ns() >= deadline:
                raise BufferExhaustedError(
                    f"{self._why_no_metadata(state.name, f'max_block_ms={self.max_block_ns // 1_000_000}')}; "
                    f"{state.c.parked_bytes} bytes of records wait for it and {acc.c.parked_bytes} for any "
                    f"topic, of {acc.c.most_parked_bytes} that may"
                )
            PyErr_CheckSignals()

    cdef int _check_possible(self, int64_t size, object what) except -1:
        """Raises where there can never be so much memory."""
        cdef int64_t total = self.accumulator.pool.total_bytes
        if size > total:
            raise BufferExhaustedError(
                f"a record for topic {what!r} needs {size} bytes and buffer_memory is {total}"
            )
        return 0

    cdef int _hurry(self) except -1:
        """Sends everything that lingers: somebody lacks memory."""
        cdef RecordAccumulator acc = self.accumulator
        pthread_mutex_lock(&acc.c.lock)
        hurry(&acc.c)
        pthread_mutex_unlock(&acc.c.lock)
        acc.wake()
        return 0

    def _no_partition(self, str topic not None, partition):
        """The error of a record for a partition that the topic does not have."""
        cdef int32_t count = self._topic(topic).c.partition_count
        return UnknownTopicOrPartitionError(
            f"partition={partition}: topic {topic!r} has {count} partitions, 0 to {count - 1}"
        )

    def _exhausted(self, int64_t size, str topic not None):
        """The error of a record for which no memory became free in time."""
        cdef RecordAccumulator acc = self.accumulator
        return BufferExhaustedError(
            f"no {size} bytes for a record of topic {topic!r} became free within max_block_ms="
            f"{self.max_block_ns // 1_000_000}: buffer_memory={acc.pool.total_bytes} is held by "
            f"{acc.c.incomplete} batches and {acc.c.parked} records without metadata that are "
            "not acknowledged yet"
        )


cdef int64_t record_size(const RecordView* r) noexcept nogil:
    """The bytes of the record as the first of its batch."""
    cdef uint8_t* end
    cdef uint8_t scratch[16]
    cdef int64_t body = 3 + r.headers_size + max(r.key_size, 0) + max(r.value_size, 0)
    body += put_varint(scratch, r.key_size) - scratch
    body += put_varint(scratch, r.value_size) - scratch
    end = put_varint(scratch, body)
    return body + (end - scratch)
