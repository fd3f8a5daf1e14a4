"""Implements ``send()``: appends a record to a batch; the only Python object left is the record's future.

Owns checking the arguments, the order of the steps for a record, appending, and waiting for memory. Does not
own calling serializers, interceptors and custom partitioners (``extensions``) or the accumulator. Runs on the
calling thread, with the GIL, which is released only while waiting.
"""

from cpython.bytes cimport PyBytes_CheckExact
from cpython.long cimport PyLong_Check, PyLong_CheckExact
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_Check, PyUnicode_FromObject
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free

from cyproducer.accumulator.record_accumulator cimport (
    APPENDED,
    IS_CLOSED,
    NEED_MEMORY,
    NO_SUCH_PARTITION,
    TOO_MANY_PARKED,
    TOPIC_GONE,
    TOPIC_UNKNOWN,
)
from cyproducer.send.extensions cimport NONE, Extensions, TopicPartitions, as_record, note
from cyproducer.futures.delivery cimport CompletionList, refused_future
from cyproducer.accumulator.parked_records cimport await_parking, park, parked_size
from cyproducer.base.forks cimport borrowing, own_process, process
from cyproducer.base.greenlets cimport after_slice, slice_end
from cyproducer.base.sync cimport (
    cyp_add64,
    cyp_after,
    cyp_load64,
    cyp_monotonic_ns,
    cyp_ms_ns,
    cyp_peek32,
    cyp_peek64,
    cyp_s_ns,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)
from cyproducer.accumulator.ready_partitions cimport hurry
from cyproducer.futures.waiting cimport refuse_on_sender
from cyproducer.records.borrowed cimport Held, HeaderBytes, append_headers, hold, let_go
from cyproducer.records.record_batch cimport BATCH_HEADER, record_bound, record_length

import sys
from collections.abc import Mapping
from types import GenericAlias

from cyproducer.errors import (
    BrokerResponseError,
    BufferExhaustedError,
    ProducerClosedError,
    UnknownTopicOrPartitionError,
    record_too_large,
)
from cyproducer.records.topic_names import legal_topic
from cyproducer.structs import ProducerRecord

cdef extern from "<Python.h>":
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1

cdef uint8_t NO_HEADERS = 0
cdef int64_t paths = 0        # that were ever opened

cdef extern from *:
    """
    #include "thread_local.h"
    static CYP_THREAD_LOCAL void *cyp_own_last = NULL;
    """
    void* own_last "cyp_own_last"     # the calling thread's LastTopic, borrowed from its dict of thread state

cdef extern from "<Python.h>":
    PyObject* PyThreadState_GetDict()


cdef class LastTopic:
    """See ``send_path.pxd``."""

    def __dealloc__(self):
        # The thread's Python state ends, on this thread. It may get another one.
        global own_last
        if own_last == <void*>self:
            own_last = NULL


cdef int32_t wanted_partition(object partition) except -1:
    cdef int too_large = 0
    cdef int64_t number
    # Converted before it is compared: comparison methods of a subclass could let any number pass.
    if not PyLong_Check(partition):
        raise TypeError(f"partition: must be an int or None, not {type(partition).__name__}")
    number = PyLong_AsLongLongAndOverflow(partition, &too_large)
    if too_large or not 0 <= number <= 0x7FFFFFFF:
        raise ValueError(f"partition={digits(partition)}: must be >= 0 and below 2147483648")
    return <int32_t>number


cdef int64_t given_timestamp(object timestamp_ms, str name) except? -1:
    """Converts a timestamp argument to milliseconds; ``name`` is the argument's name."""
    cdef int too_large = 0
    cdef int64_t number
    if not PyLong_Check(timestamp_ms):
        raise TypeError(f"{name}: must be an int or None, not {type(timestamp_ms).__name__}")
    number = PyLong_AsLongLongAndOverflow(timestamp_ms, &too_large)
    if too_large or number < 0:
        raise ValueError(f"{name}={digits(timestamp_ms)}: must be milliseconds since the epoch, >= 0")
    return number


cdef str digits(object number):
    """Formats an int of any length for an error message, without calling methods of a subclass."""
    bits = int.bit_length(number)
    return int.__repr__(number) if bits < 1000 else f"an int of {bits} bits"


# The step that a record has reached: which serializer is being called.
cdef enum Stage:
    KEY
    VALUE
    LATER


class WouldBlock(Exception):
    """``send()`` would block. ``what`` is the reason: "memory" (of ``size`` bytes), "callbacks", "metadata"
    (too many records already wait for it), "partition" (the metadata must be refreshed), or "topic" (a custom
    partitioner needs its metadata).

    ``arguments``: those for ``_send_at_once``, if the record was already serialized; else None.
    """

    def __init__(self, what, size=0):
        super().__init__(what)
        self.what = what
        self.size = size
        self.arguments = None


cdef object interned(object name):
    """The name for a new topic. Without a GIL an interned one, which is immortal: futures refer to it."""
    return sys.intern(name) if FREE_THREADED else name


cdef class SendPath:
    """The base class of ``KafkaProducer`` that implements ``send()``. Thread-safe."""

    def __cinit__(self):
        # True until the path is opened, so that an early send() raises ProducerClosedError.
        self.plain = True

    def __class_getitem__(cls, types):
        # The types of keys and values, which only type checkers read: KafkaProducer[str, bytes].
        return GenericAlias(cls, types)

    def _open_path(
        self,
        RecordAccumulator accumulator not None,
        int64_t max_request_size,
        double max_block_ms,
        Extensions extensions,
        object on_refused=None,
    ):
        self.accumulator = accumulator
        self.max_request_size = max_request_size
        self.max_block_ns = cyp_ms_ns(max_block_ms)
        self.extensions = extensions
        self.on_refused = on_refused
        self.plain = extensions is None and on_refused is None
        self.last_topic = NULL
        self.process = process
        self.number = cyp_add64(&paths, 1)

    def _reopen(self):
        """In a forked child: calls ``_open_path`` again. Subclasses override this."""
        raise NotImplementedError("a SendPath in a forked child needs a new accumulator")

    def send(self, topic, value=None, key=None, headers=None, partition=None, timestamp_ms=None):
        """Accepts a record and returns its future; the record is sent in the background.

        ``value`` and ``key``: bytes, any contiguous buffer except numpy scalars (copied before the call
        returns), or None; any type if a serializer is configured. A record needs at least one of the two: a
        key without a value is a tombstone. ``headers``: a list of (str, bytes or None); names can repeat.
        ``partition``: None lets the partitioner choose. ``timestamp_ms``: milliseconds since the epoch;
        default: now. Within a batch, now is the last kernel tick, up to 4 ms ago on most systems.

        Blocks up to ``max_block_ms`` while ``buffer_memory`` is full, and while ``max_pending_callbacks``
        records wait for their callbacks (but not in a callback). Missing metadata does not block: the record
        is parked with other records of its topic, also up to ``max_block_ms``. If ``partition`` is not in the
        metadata, the metadata is refreshed once, and the record is refused if the partition is still missing;
        ``KafkaTimeoutError`` if no broker responds within ``max_block_ms``.

        Raises ``TypeError`` or ``ValueError`` for invalid arguments, ``InvalidTopicError``,
        ``BufferExhaustedError`` (a ``KafkaTimeoutError``) and ``ProducerClosedError``. Later errors, and
        ``RecordTooLargeError``, are reported by the future. Thread-safe.
        """
        if self.plain:
            return self._send(topic, value, key, headers, partition, timestamp_ms, None, True)
        if self.extensions is not None:
            return self._send_extended(topic, value, key, headers, partition, timestamp_ms)
        try:
            return self._send(topic, value, key, headers, partition, timestamp_ms, None, True)
        except Exception as error:
            self._note_refused(error)
            raise

    def send_all(self, records):
        """Sends several records and returns their futures, in order.

        Each record is a ``ProducerRecord``, a tuple in the same order, or a mapping with its field names.
        Never raises because of a record: its future holds the error that ``send`` would have raised. Blocks
        whenever ``send`` would.
        """
        cdef list futures = []
        # A subclass, or a tracer that wraps send(), must see each record.
        cdef bint wrapped = getattr(self.send, "__func__", None) is not SendPath.send
        for record in records:
            topic = ""
            try:
                if type(record) is tuple and 0 < len(record) <= 6:
                    topic = record[0]
                    value = record[1] if len(record) > 1 else None
                    key = record[2] if len(record) > 2 else None
                    headers = record[3] if len(record) > 3 else None
                    partition = record[4] if len(record) > 4 else None
                    timestamp_ms = record[5] if len(record) > 5 else None
                else:
                    if type(record) is not ProducerRecord:
                        # Any kind of mapping, not only a dict.
                        if isinstance(record, Mapping):
                            record = ProducerRecord(**record)
                        else:
                            record = ProducerRecord(*record)
                    topic, value, key, headers, partition, timestamp_ms = record
                if wrapped:
                    future = self.send(topic, value, key, headers, partition, timestamp_ms)
                elif self.extensions is not None:
                    future = self._send_extended(topic, value, key, headers, partition, timestamp_ms)
                else:
                    future = self._send(topic, value, key, headers, partition, timestamp_ms, None, True)
            except Exception as error:
                # Also noted here, because send() does not see items that are not valid records.
                self._note_refused(error)
                future = refused_future(str(topic), error, -1)
            futures.append(future)
        return futures

    cdef RecordFuture _send_extended(
        self, object topic, object value, object key, object headers, object partition, object timestamp_ms
    ):
        """``send()`` with interceptors, serializers or a custom partitioner."""
        cdef Extensions extensions = self.extensions
        cdef RecordFuture future
        cdef int stage = LATER
        if extensions.on_sends:
            topic, value, key, headers, partition, timestamp_ms = extensions.intercepted(
                as_record(topic, value, key, headers, partition, timestamp_ms)
            )
        try:
            future = self._send_intercepted(
                topic, value, key, headers, partition, timestamp_ms, True, &stage
            )
        except Exception as error:
            note_stage(stage, error, topic, key, value)
            self._note_refused(error)
            extensions.acknowledge(topic, partition, error)
            raise
        if extensions.on_acknowledgements:
            extensions.follow(future, topic, partition)
        return future

    cdef object _send_intercepted(
        self, object topic, object value, object key, object headers, object partition, object timestamp_ms,
        bint blocks, int* stage,
    ):
        """Serializes a record, chooses its partition if there is a custom partitioner, and sends it.

        ``blocks`` false: raises ``WouldBlock`` instead of waiting. ``stage``: set to the current ``Stage``,
        for the caller's exception handler: a separate handler for each step would cost a twentieth of the
        cost of a record.
        """
        cdef Extensions extensions = self.extensions
        cdef TopicPartitions known
        cdef object key_bytes
        cdef object value_bytes
        cdef object record = None
        # Before the serializers: they need not handle None, and may not be usable after close().
        if self.process != process:
            own_process()
            self._reopen()
        if self.accumulator is None or self.accumulator.c.closed:
            raise ProducerClosedError("send() on a closed producer: the record was not accepted")
        if value is None and key is None:
            raise ValueError("a record needs a value or a key: a tombstone is a key with value=None")
        if headers is None or isinstance(headers, (list, tuple)):
            if extensions.accepts:
                record = as_record(
                    topic, value, key, None if headers is None else list(headers), partition, timestamp_ms
                )
            # A copy: a serializer may add headers, and the caller's list must not have these for the next
            # record.
            if headers:
                headers = list(headers)
            elif extensions.reads_headers:
                headers = []
        elif extensions.accepts:
            record = as_record(topic, value, key, headers, partition, timestamp_ms)
        if (
            not blocks
            and partition is None
            and extensions.custom is not None
            and not extensions.knows(topic)
        ):
            raise WouldBlock("topic")
        key_bytes = key
        value_bytes = value
        if extensions.key_form != NONE:
            stage[0] = KEY
            key_bytes = extensions.serialized_key(topic, headers, key)
        if extensions.value_form != NONE:
            stage[0] = VALUE
            value_bytes = extensions.serialized_value(topic, headers, value)
        stage[0] = LATER
        if partition is None and extensions.custom is not None:
            known = extensions.partitions_of(topic)
            if known is None:
                topic = legal_topic(topic)
                try:
                    known = extensions.learn(topic, self._view_of(topic, self.max_block_ns / 1e9))
                except BrokerResponseError as error:
                    self._note_refused(error)
                    return refused_future(topic, error, -1)
            partition = extensions.ask(known, topic, key, key_bytes, value, value_bytes)
            if (
                extensions.on_new_batch is not None
                and key_bytes is None
                and self._opens_batch(topic, value_bytes, headers, partition)
            ):
                # A sticky partitioner may switch partitions when its partition's batch is full (KIP-480).
                extensions.on_new_batch(topic, known.view, partition)
                partition = extensions.ask(known, topic, key, key_bytes, value, value_bytes)
        if record is not None:
            return self._accept(record, topic, value_bytes, key_bytes, headers, partition, timestamp_ms)
        if blocks:
            return self._send(topic, value_bytes, key_bytes, headers, partition, timestamp_ms, None, True)
        try:
            return self._send(topic, value_bytes, key_bytes, headers, partition, timestamp_ms, None, False)
        except WouldBlock as blocked:
            blocked.arguments = topic, value_bytes, key_bytes, headers, partition, timestamp_ms
            raise

    # For tasks of asyncio, which await what send() waits for

    cdef object _at_once(
        self, object topic, object value, object key, object headers, object partition, object timestamp_ms
    ):
        """``send()`` for a producer without interceptors. Returns the future, or a ``WouldBlock``."""
        cdef int stage = LATER
        try:
            if self.extensions is None:
                return self._send(topic, value, key, headers, partition, timestamp_ms, None, False)
            return self._send_intercepted(topic, value, key, headers, partition, timestamp_ms, False, &stage)
        except WouldBlock as blocked:
            return blocked
        except Exception as error:
            note_stage(stage, error, topic, key, value)
            self._note_refused(error)
            raise

    def _intercepted(self, record):
        """Returns a ``ProducerRecord`` as the interceptors changed it."""
        return record if self.extensions is None else self.extensions.intercepted(record)

    def _extended_at_once(self, record):
        """Serializes an intercepted record, chooses its partition and sends it; raises ``WouldBlock`` instead
        of waiting."""
        cdef int stage = LATER
        topic, value, key, headers, partition, timestamp_ms = record
        try:
            return self._send_intercepted(
                topic, value, key, headers, partition, timestamp_ms, False, &stage
            )
        except Exception as error:
            note_stage(stage, error, topic, key, value)
            raise

    def _follow(self, record, RecordFuture future not None):
        """Returns the future, after registering the interceptors for its outcome."""
        if self.extensions.on_acknowledgements:
            self.extensions.follow(future, record[0], record[4])
        return future

    def _acknowledge(self, record, outcome):
        """Passes the outcome of a record that was not accepted to the interceptors."""
        self.extensions.acknowledge(record[0], record[4], outcome)

    # For subclasses

    def _accept(self, record, topic, value, key, headers, partition, timestamp_ms):
        """Sends a serialized record, if ``Extensions.accepts``; ``record``: as interceptors returned it."""
        return self._send_serialized(topic, value, key, headers, partition, timestamp_ms)

    def _view_of(self, str topic, double timeout_s):
        """Waits for a topic's metadata, and returns the view of the cluster that has it, or raises."""
        raise NotImplementedError("a SendPath with a custom partitioner needs a view of the cluster")

    def _send_serialized(self, topic, value, key, headers, partition, timestamp_ms):
        """The part of ``send()`` after serializers, interceptors and custom partitioners."""
        return self._send(topic, value, key, headers, partition, timestamp_ms, None, True)

    def _send_at_once(self, topic, value, key, headers, partition, timestamp_ms, Ticket ticket):
        """Like ``_send_serialized``, but raises ``WouldBlock`` instead of waiting.

        ``ticket``: None, or a ticket whose memory was granted.
        """
        return self._send(topic, value, key, headers, partition, timestamp_ms, ticket, False)

    def _note_refused(self, error):
        """Notes that a transaction's record was not accepted: the transaction would commit without it."""
        if self.on_refused is None or isinstance(error, WouldBlock):
            return
        # If no transaction is accepting records, none can be missing this record.
        if not getattr(error, "without_transaction", False):
            self.on_refused(error)

    def _refresh_topic(self, str name, double timeout_s):
        """Refreshes a topic's metadata and waits for the response, or raises."""
        return None

    cdef bint _opens_batch(self, object topic, object value, object headers, object partition) except -1:
        """Whether a record without a key would start a new batch in its partition (KIP-480)."""
        cdef Held held
        cdef HeaderBytes encoded
        cdef int64_t headers_size = 1
        if headers:
            encoded.start = NULL
            encoded.used = encoded.room = 0
            try:
                append_headers(headers, &encoded)
                headers_size = encoded.used
            finally:
                free(encoded.start)
        hold(value, &held, "value")
        let_go(&held)
        return self.accumulator.opens_batch(
            PyUnicode_FromObject(topic),
            wanted_partition(partition),
            record_bound(-1, held.size, headers_size),
        )

    cdef TopicInfo _topic(self, object name):
        cdef TopicInfo state = None
        if self.accumulator is None:
            raise ProducerClosedError("this producer's constructor failed or was not called")
        if self.process != process:
            # Not earlier: a thread that forked in the middle of a send() still uses the parent's accumulator,
            # and finds it closed.
            own_process()
            self._reopen()
        if PyUnicode_Check(name):
            # A plain str of the same text: a subclass may override __str__, __eq__ or __hash__, as enums do.
            name = PyUnicode_FromObject(name)
            state = self.accumulator.topics.get(name)
        if state is None:
            state = self.accumulator.topic(interned(legal_topic(name)))
        if FREE_THREADED:
            self._remember(name, state)
            return state
        self.last_topic = <void*>state
        self.borrowed = borrowing
        return state

    cdef int _remember(self, object name, TopicInfo state) except -1:
        """Stores the topic of this thread's last ``send()``. Only without a GIL."""
        global own_last
        cdef LastTopic last
        if own_last == NULL:
            last = LastTopic.__new__(LastTopic)
            (<dict><object>PyThreadState_GetDict())["cyproducer.send.LastTopic"] = last
        else:
            last = <LastTopic>own_last
        # Invalid first: releasing what it had may run code of the caller, which may send.
        last.number = -1
        last.name = name
        last.state = state
        last.borrowed = cyp_peek64(&borrowing)
        last.number = self.number
        own_last = <void*>last
        return 0

    cdef RecordFuture _send_again(self, object topic, object value, object key, object partition):
        """``send()`` to the topic of this thread's last call, without a reference count or a lock that other
        threads use; None if that is not possible. Only without a GIL.

        Between finding the topic and the append no code of the caller runs: it could send to another topic.
        """
        cdef void* last = own_last
        cdef void* state
        cdef void* accumulator = <void*>self.accumulator
        cdef CompletionList* due
        cdef RecordView r
        cdef Appended out
        cdef Held held_key
        cdef Held held_value
        cdef RecordFuture future
        cdef int32_t wanted = -1
        if (
            last == NULL
            or (<LastTopic>last).number != self.number
            or (<LastTopic>last).borrowed != cyp_peek64(&borrowing)
            or <void*>(<LastTopic>last).name != <void*>topic
        ):
            return None
        if value is None and key is None:
            return None
        if value is not None and not PyBytes_CheckExact(value):
            return None
        if key is not None and not PyBytes_CheckExact(key):
            return None
        if partition is not None:
            if not PyLong_CheckExact(partition):
                return None
            wanted = wanted_partition(partition)
        hold(value, &held_value, "value")
        hold(key, &held_key, "key")
        r.headers = &NO_HEADERS
        r.headers_size = 1
        r.timestamp_ms = -1
        r.key = held_key.data
        r.key_size = held_key.size
        r.value = held_value.data
        r.value_size = held_value.size
        if record_bound(r.key_size, r.value_size, 1) + BATCH_HEADER > self.max_request_size:
            return None
        due = (<RecordAccumulator>accumulator).c.completions
        if cyp_load64(&due.backlog) >= due.most:
            return None
        state = <void*>(<LastTopic>last).state
        out.sealing = NULL
        out.wake = False
        if not (<RecordAccumulator>accumulator)._append_open(&(<TopicInfo>state).c, wanted, &r, &out):
            return None
        future = RecordFuture.__new__(RecordFuture)
        future.delivery = out.delivery
        future.index = out.index
        future.topic = (<TopicInfo>state).name
        future.key_size = <int32_t>r.key_size
        future.value_size = <int32_t>r.value_size
        future.header_size = -1
        future.timestamp_ms = out.timestamp_ms
        return future

    cdef RecordFuture _send(self, object topic, object value, object key, object headers, object partition,
                            object timestamp_ms, Ticket ticket, bint blocks):
        cdef TopicInfo state
        cdef RecordView r
        cdef Held held_key
        cdef Held held_value
        cdef Appended out
        cdef RecordFuture future
        cdef HeaderBytes encoded
        cdef int64_t headers_payload = -1
        cdef int32_t wanted = -1
        if FREE_THREADED and not headers and timestamp_ms is None and ticket is None:
            future = self._send_again(topic, value, key, partition)
            if future is not None:
                return future
        state = topic_of(self, topic)
        if value is None and key is None and not self.may_be_empty:
            raise ValueError("a record needs a value or a key: a tombstone is a key with value=None")
        r.headers = &NO_HEADERS
        r.headers_size = 1
        r.timestamp_ms = -1
        # Before any buffer is borrowed: this may run the caller's code, which could change a buffer.
        if partition is not None:
            wanted = wanted_partition(partition)
        if timestamp_ms is not None:
            r.timestamp_ms = given_timestamp(timestamp_ms, "timestamp_ms")
        held_key.viewed = False
        held_value.viewed = False
        encoded.start = NULL
        try:
            if headers:
                encoded.used = encoded.room = 0
                headers_payload = append_headers(headers, &encoded)
                r.headers = encoded.start
                r.headers_size = encoded.used
            hold(value, &held_value, "value")
            hold(key, &held_key, "key")
            r.key = held_key.data
            r.key_size = held_key.size
            r.value = held_value.data
            r.value_size = held_value.size
            if record_bound(r.key_size, r.value_size, r.headers_size) + BATCH_HEADER > self.max_request_size:
                refusal = self._too_large(state, &r)
                if refusal is not None:
                    self._note_refused(refusal)
                    return refused_future(state.name, refusal, r.timestamp_ms)
            self._append(state, wanted, &r, &out, ticket, blocks)
        finally:
            let_go(&held_value)
            let_go(&held_key)
            if encoded.start != NULL:
                free(encoded.start)
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
        """The error for a record that is too large, or None if only the estimate was too high."""
        cdef int64_t size = BATCH_HEADER + record_length(r.key_size, r.value_size, r.headers_size)
        if size > self.max_request_size:
            return record_too_large(f"a record for topic {state.name!r}", size, self.max_request_size)
        return None

    cdef int _append(
        self, TopicInfo state, int32_t partition, const RecordView* r, Appended* out, Ticket ticket,
        bint blocks,
    ) except -1:
        """Appends or parks the record, and waits for memory if necessary.

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
            if cyp_load64(&due.backlog) >= due.most and not cyp_peek32(&acc.c.refusing):
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
                    # A parked record expires by the clock that the sender uses.
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
                    if not await_parking(acc, &state.c, parked, 0):
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
                    # The timestamp is that of this call, not of the metadata's arrival.
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
                    raise acc.why_refused("send() on a closed producer: the record was not accepted")
                if result == NO_SUCH_PARTITION:
                    if refreshed:
                        raise self._no_partition(state.name, partition)
                    if not blocks:
                        raise WouldBlock("partition")
                    # The partition may be newer than the metadata. Kafka's own client also waits for it.
                    refreshed = True
                    self._refresh_topic(state.name, max(0.0, (deadline - cyp_monotonic_ns()) / 1e9))
                    continue
                if result not in (NEED_MEMORY, TOPIC_UNKNOWN, TOO_MANY_PARKED):
                    raise MemoryError(f"no memory for a record of topic {state.name!r}")
        finally:
            if grant:
                acc.pool.unreserve(grant)

    def _wait_for_callbacks(self, str topic not None, double timeout_s):
        """Waits until callbacks have caught up; raises like ``send()`` after ``timeout_s`` seconds."""
        self._await_callbacks(cyp_after(cyp_monotonic_ns(), cyp_s_ns(timeout_s)), topic)

    cdef int _await_callbacks(self, int64_t deadline, object what) except -1:
        """Waits until fewer than ``max_pending_callbacks`` records wait for their callbacks."""
        cdef RecordAccumulator acc = self.accumulator
        refuse_on_sender("send(), which waits for callbacks,")
        if acc.completions.wait_for_room(deadline, &acc.c.refusing):
            return 0
        raise BufferExhaustedError(
            f"callbacks are slow: {acc.completions.backlog} records wait for their callbacks, the oldest for "
            f"{acc.completions.lag_ns / 1e9:.1f} s, and their number did not fall below "
            f"max_pending_callbacks={acc.c.completions.most} within "
            f"max_block_ms={self.max_block_ns // 1_000_000}; a record for topic {what!r} was not accepted. "
            "Make callbacks return sooner, or move their work to another thread"
        )

    cdef int _reserve(self, int64_t size, int64_t deadline, object what) except -1:
        """Reserves bytes in the pool, waiting for them if necessary, after making all batches sendable."""
        cdef RecordAccumulator acc = self.accumulator
        cdef int granted
        if acc.pool.try_reserve(size):
            return 0
        self._check_possible(size, what)
        refuse_on_sender("send(), which waits for memory,")
        self._hurry()
        granted = acc.pool.reserve(size, deadline)
        if not granted:
            raise self._exhausted(size, what)
        return 0

    def _wait_for_parking(self, str topic not None, int64_t size, double timeout_s):
        """Waits until ``size`` more bytes can be parked for the topic; raises like ``send()``."""
        self._await_parking(self._topic(topic), size, cyp_after(cyp_monotonic_ns(), cyp_s_ns(timeout_s)))

    def _why_no_metadata(self, str topic not None, str within not None):
        """The error text when a topic's metadata does not arrive in time."""
        return f"no metadata of topic {topic!r} within {within}"

    cdef int _await_parking(self, TopicInfo state, int64_t size, int64_t deadline) except -1:
        """Waits until ``size`` more bytes can be parked for the topic, or no longer need to be."""
        cdef RecordAccumulator acc = self.accumulator
        cdef int64_t until
        cdef bint may
        refuse_on_sender("send(), which waits for metadata,")
        self._count_crowded(1)
        try:
            while True:
                until = slice_end(deadline)
                with nogil:
                    may = await_parking(acc, &state.c, size, until)
                if may:
                    return 0
                after_slice()
                if cyp_monotonic_ns() >= deadline:
                    break
        finally:
            self._count_crowded(-1)
        raise BufferExhaustedError(
            f"{self._why_no_metadata(state.name, f'max_block_ms={self.max_block_ns // 1_000_000}')}; "
            f"{state.c.parked_bytes} bytes of records wait for it, and {acc.c.parked_bytes} for all "
            f"topics; allowed: {acc.c.most_parked_bytes}, and half of that for one topic"
        )

    cdef void _count_crowded(self, int32_t change) noexcept:
        """Changes the number of callers that wait until fewer records are parked."""
        cdef RecordAccumulator acc = self.accumulator
        pthread_mutex_lock(&acc.c.lock)
        acc.c.crowded += change
        pthread_mutex_unlock(&acc.c.lock)

    cdef int _check_possible(self, int64_t size, object what) except -1:
        """Raises if the pool can never have that much memory."""
        cdef int64_t total = self.accumulator.pool.total_bytes
        if size > total:
            raise BufferExhaustedError(
                f"a record for topic {what!r} needs {size} bytes and buffer_memory is {total}"
            )
        return 0

    cdef int _hurry(self) except -1:
        """Makes all batches sendable, because a thread needs memory."""
        cdef RecordAccumulator acc = self.accumulator
        pthread_mutex_lock(&acc.c.lock)
        hurry(&acc.c)
        pthread_mutex_unlock(&acc.c.lock)
        acc.wake()
        return 0

    def _no_partition(self, str topic not None, partition):
        """The error for a partition that the topic does not have."""
        cdef int32_t count = self._topic(topic).c.partition_count
        return UnknownTopicOrPartitionError(
            f"partition={partition}: topic {topic!r} has {count} partitions, 0 to {count - 1}"
        )

    def _exhausted(self, int64_t size, str topic not None):
        """The error of a record that timed out waiting for memory."""
        cdef RecordAccumulator acc = self.accumulator
        cdef int64_t batches = cyp_peek64(&acc.c.incomplete)
        return BufferExhaustedError(
            f"{size} bytes for a record of topic {topic!r} did not become free within max_block_ms="
            f"{self.max_block_ns // 1_000_000}: buffer_memory={acc.pool.total_bytes} is held by "
            f"{batches} unacknowledged batches and {acc.c.parked} records without metadata"
        )


cdef int note_stage(int stage, object error, object topic, object key, object value) except -1:
    """Adds a note to an exception that a serializer has raised."""
    if stage == KEY:
        note(error, "key", key, topic)
    elif stage == VALUE:
        note(error, "value", value, topic)
    return 0
