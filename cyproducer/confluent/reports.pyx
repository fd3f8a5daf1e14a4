"""``produce()`` of ``cyproducer.confluent.Producer``, and the delivery reports that ``poll()`` delivers.

Owns ``Message``, the queue of delivery reports, the count of unreported records, and calling the callbacks.
Does not own the producer's other methods (``producer.py``) or sending: ``produce()`` is a ``send()`` that
never waits.

The sender thread adds completed batches to the queue, as for any producer. There is no callback thread: the
thread in ``poll()`` or ``flush()`` moves the messages of these batches into ``due``, and runs the callbacks
from there. So an exception in a callback leaves the later ones for the next call. Numbers that several
threads change are atomic; other fields are set by the constructor.
"""

from collections import deque

cimport cython
from cpython.bytes cimport PyBytes_CheckExact
from cpython.unicode cimport PyUnicode_AsUTF8String, PyUnicode_Check
from libc.stdint cimport int16_t, int32_t, int64_t

from cyproducer.base.forks cimport process
from cyproducer.base.meters cimport RECORDS_FAILED, RECORDS_SENT
from cyproducer.base.sync cimport (
    cyp_add64,
    cyp_cond_wait_until,
    cyp_load32,
    cyp_load64,
    cyp_monotonic_ns,
    cyp_store32,
    cyp_swap32,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)
from cyproducer.send.send_path cimport SendPath
from cyproducer.futures.completion cimport CompletionQueue, in_order
from cyproducer.futures.delivery cimport (
    ACKNOWLEDGED,
    PENDING,
    Delivery,
    RecordFuture,
    delivery_unref,
    list_callback,
    take_callbacks,
    delivery_of,
)

from cyproducer import errors
from cyproducer.send.send_path import WouldBlock
from cyproducer.confluent.errors import KafkaError, KafkaException, error_of, refusal_of

cdef enum:
    TIMESTAMP_NOT_AVAILABLE = 0
    TIMESTAMP_CREATE_TIME = 1
    TIMESTAMP_LOG_APPEND_TIME = 2
    NO_OFFSET = -1001


# Without binding, Python checks the type of `self` in a call such as `Message.topic(None)`.
@cython.binding(False)
@cython.freelist(1024)
cdef class Message:
    """A record and its outcome, as passed to delivery callbacks; confluent-kafka's ``Message``.

    ``value()`` and ``key()`` are the sent bytes. ``headers()`` is the sent list of pairs.
    The setters replace what the getters return. Not thread-safe.
    """

    def __init__(
        self, topic=None, partition=-1, offset=NO_OFFSET, key=None, value=None, headers=None, error=None,
        timestamp=None, double latency=-1.0, leader_epoch=-1, int16_t delivery_count=-1,
    ):
        self._topic = topic
        self._partition = -1 if partition is None else max(-1, <int32_t>partition)
        self._offset = NO_OFFSET if offset is None or offset < 0 else <int64_t>offset
        self._key = key
        self._value = value
        self._headers = headers
        self._error = error
        self._timestamp_type, self._timestamp_ms = TIMESTAMP_NOT_AVAILABLE, 0
        if timestamp is not None:
            if not isinstance(timestamp, tuple) or len(timestamp) != 2:
                raise TypeError(f"timestamp: must be a tuple of (int, int), not {timestamp!r}")
            self._timestamp_type, self._timestamp_ms = timestamp
        self._latency_us = -1 if latency < 0 else <int64_t>(latency * 1e6)
        self._leader_epoch = -1 if leader_epoch is None else max(-1, <int32_t>leader_epoch)
        self._delivery_count = -1 if delivery_count <= 0 else delivery_count

    cdef int settle(self, RecordFuture future, int64_t due_ns, ReportQueue queue) except -1:
        """Fills in the outcome. ``due_ns`` is the time at which it became known."""
        cdef int state = future._state()
        cdef int32_t index
        cdef Delivery* d = delivery_of(future, &index)
        cdef object cause
        self._partition = d.partition
        self._timestamp_ms = future.timestamp_ms
        self._timestamp_type = TIMESTAMP_CREATE_TIME
        if state == ACKNOWLEDGED:
            if d.base_offset >= 0:
                self._offset = d.base_offset + index
            if d.log_append_ms >= 0:
                self._timestamp_ms = d.log_append_ms
                self._timestamp_type = TIMESTAMP_LOG_APPEND_TIME
            self._latency_us = max(0, due_ns - self.began_ns) // 1000
            return 0
        cause = future._error()
        # All records of a batch share one exception.
        with cython.critical_section(queue):
            if cause is not queue.last_cause:
                queue.last_error = error_of(cause)
                queue.last_cause = cause
            self._error = queue.last_error
        return 0

    def topic(self):
        """The topic, or None."""
        return self._topic

    def partition(self):
        """The partition, or None if it was not chosen yet."""
        return self._partition if self._partition >= 0 else None

    def offset(self):
        """The offset, or None if the record failed or the broker reports none (``acks=0``)."""
        return self._offset if self._offset >= 0 else None

    def key(self):
        """The key, or None."""
        return self._key

    def value(self):
        """The value, or None."""
        return self._value

    def headers(self):
        """The headers as a list of (name, value) pairs, or None."""
        return self._headers

    def error(self):
        """The ``KafkaError`` of a record that failed; None if it was acknowledged."""
        return self._error

    def timestamp(self):
        """The type, one of ``TIMESTAMP_...``, and the milliseconds since the epoch."""
        return self._timestamp_type, self._timestamp_ms

    def latency(self):
        """The seconds from ``produce()`` to the acknowledgement; None if there was none."""
        return self._latency_us / 1e6 if self._latency_us >= 0 else None

    def leader_epoch(self):
        """Only for consumed records; here always None."""
        return self._leader_epoch if self._leader_epoch >= 0 else None

    def delivery_count(self):
        """Only for consumed records; here always None."""
        return self._delivery_count if self._delivery_count > 0 else None

    def set_headers(self, headers):
        """Replaces the result of ``headers()``."""
        self._headers = headers

    def set_key(self, key):
        """Replaces the result of ``key()``."""
        self._key = key

    def set_value(self, value):
        """Replaces the result of ``value()``."""
        self._value = value

    def set_topic(self, topic):
        """Replaces the result of ``topic()``."""
        self._topic = topic

    def set_error(self, error):
        """Replaces the result of ``error()``."""
        self._error = error

    def __len__(self):
        return 0 if self._value is None else len(self._value)

    def __bool__(self):
        return True

    def __eq__(self, other):
        if not isinstance(other, Message):
            return NotImplemented
        return _fields(self) == _fields(<Message>other)

    __hash__ = None

    def __reduce__(self):
        return Message, (
            self._topic, self._partition, self._offset, self._key, self._value, self._headers, self._error,
            (self._timestamp_type, self._timestamp_ms),
            self._latency_us / 1e6 if self._latency_us >= 0 else -1.0,
            self._leader_epoch, self._delivery_count,
        )

    def __repr__(self):
        return f"<Message {self._topic!r} partition {self.partition()} offset {self.offset()}>"


cdef tuple _fields(Message m):
    # Without the latency.
    return (
        m._topic, m._partition, m._offset, m._key, m._value, m._headers, m._error, m._leader_epoch,
        m._timestamp_ms,
    )


cdef class ReportQueue(CompletionQueue):
    """Completed batches whose messages are not in ``due`` yet; ``run_next`` moves those of one batch."""

    def __cinit__(self, start=None, int64_t most=100_000):
        self.due = deque()

    cdef int _run(self, Delivery* d) except -1:
        cdef int64_t listed = d.callbacks
        cdef int64_t due_ns = d.due_ns
        cdef RecordFuture future
        cdef Message message
        cdef list waiting = in_order(take_callbacks(d))
        delivery_unref(d)
        try:
            for future in waiting:
                message = <Message>future.callbacks
                future.callbacks = None
                message.settle(future, due_ns, self)
                self.due.append(message)
        finally:
            self._catch_up(listed)
        return len(waiting)


@cython.binding(False)
cdef class ProducePath:
    """The base class of ``Producer`` that implements ``produce()`` and delivers reports. Thread-safe."""

    def _open(
        self, SendPath path not None, *, on_delivery, bint only_errors, int64_t most, bint only_reports
    ):
        """``on_delivery``: the callback of records that have none. ``only_errors``: it and the records' own
        callbacks are only called for errors. ``most``: the limit on unreported records; 0: no limit.
        ``only_reports``: ``poll()`` has nothing else to report."""
        path.may_be_empty = True
        self.only_reports = only_reports
        self.path = path
        self.default_callback = on_delivery
        self.only_errors = only_errors
        self.most = most
        cyp_store32(&self.shut, 0)

    def _use_queue(self, ReportQueue queue not None):
        """Starts with an empty queue: in the constructor, and on first use in a forked child."""
        self._queue = queue
        self.accepted = 0
        self.promised = 0
        self.reports = 0
        self.moving = 0

    def _path(self):
        """The underlying producer; None if it is closed or was never created."""
        return self.path if self.is_open() else None

    def _shut(self):
        cyp_store32(&self.shut, 1)

    cdef bint is_open(self) noexcept:
        return self.path is not None and not cyp_load32(&self.shut)

    def produce(
        self, topic, value=None, key=None, partition=-1, callback=None, on_delivery=None, timestamp=0,
        headers=None,
    ):
        """Accepts a record, which is sent in the background. Never blocks.

        Args:
            topic: the topic's name.
            value: str, which is encoded as UTF-8, bytes or None.
            key: the same.
            partition: -1 lets the partitioner choose.
            callback: called with ``(error, message)`` in ``poll()`` or ``flush()``, once the outcome is
                known. ``error`` is None or a ``KafkaError``.
            on_delivery: the same as ``callback``.
            timestamp: milliseconds since the epoch; 0: now.
                headers: a dict, or a list of (name, value) pairs; values are str, bytes or None.

        Raises:
                BufferError: ``queue.buffering.max.messages`` records are unreported, or
                    ``queue.buffering.max.kbytes`` are in use. Call ``poll()`` and try again.
                KafkaException: any other error, with the ``KafkaError`` as its argument.
            TypeError: an argument has the wrong type.
            RuntimeError: the producer is closed.
        """
        if callback is None:
            callback = on_delivery
        self._produce(topic, value, key, partition, callback, timestamp, headers)
        return None

    cdef int _produce(self, topic, value, key, partition, callback, timestamp, headers) except -1:
        cdef RecordFuture future
        cdef Message message = None
        cdef int32_t index
        cdef object place = None
        cdef object when = None
        if not self.is_open():
            raise RuntimeError("Producer has been closed")
        if callback is None:
            callback = self.default_callback
        if value is not None and not PyBytes_CheckExact(value):
            value = as_bytes(value, "value")
        if key is not None and not PyBytes_CheckExact(key):
            key = as_bytes(key, "key")
        if headers is not None:
            headers = header_list(headers)
        if partition is not None and partition != -1:
            place = partition
        if timestamp:
            when = timestamp
        if self.most and self.unreported() >= self.most:
            raise BufferError(
                f"Local: Queue full: {self.most} records (queue.buffering.max.messages) wait for their "
                "delivery or for poll() to report it"
            )
        try:
            future = self.path._send(topic, value, key, headers, place, when, None, False)
        except Exception as error:
            raise self.refused((topic, error))
        if future.delivery == NULL:
            raise self.refused((topic, future._error()))
        cyp_add64(&self.accepted, 1)
        if callback is None:
            return 0
        message = Message.__new__(Message)
        message._topic = future.topic
        message._key = key
        message._value = value
        message._headers = headers
        message._offset = NO_OFFSET
        message._leader_epoch = -1
        message._delivery_count = -1
        message._latency_us = -1
        message.callback = callback
        message.began_ns = cyp_monotonic_ns()
        cyp_add64(&self.promised, 1)
        cyp_add64(&self.reports, 1)
        future.callbacks = message
        while future._state() == PENDING:
            if list_callback(delivery_of(future, &index), future):
                return 0
        # The outcome was already known, so no completion will run this callback.
        future.callbacks = None
        message.settle(future, cyp_monotonic_ns(), self._queue)
        self._queue.due.append(message)
        return 0

    def produce_batch(self, topic, messages, partition=-1, callback=None, on_delivery=None):
        """Calls ``produce()`` for each of ``messages``: dicts with ``value``, ``key``, ``partition``,
        ``callback``, ``headers`` and ``timestamp``, all optional.

        A message that is not accepted gets the ``KafkaError`` as its ``_error``; the others are sent. Returns
        the number of accepted messages. Raises TypeError, before any is sent, if one has the wrong type.
        """
        cdef dict message
        cdef list given
        cdef int64_t accepted = 0
        cdef object each
        if not isinstance(topic, str):
            raise TypeError(f"topic: must be str, not {type(topic).__name__}")
        if not isinstance(partition, int):
            raise TypeError(f"partition: must be int, not {type(partition).__name__}")
        if not isinstance(messages, list):
            raise TypeError(f"messages must be a list, not {type(messages).__name__}")
        # Not only because of forks: a closed producer must reject an empty list as well.
        (<object>self)._engine()
        # A copy, because another thread may change the list after the check.
        given = list(messages)
        for index, each in enumerate(given):
            check_message(index, each)
        if callback is None:
            callback = on_delivery
        for message in given:
            each = message.get("partition")
            try:
                self._produce(
                    topic, message.get("value"), message.get("key"), partition if each is None else each,
                    message.get("callback") or callback, message.get("timestamp"), message.get("headers"),
                )
                accepted += 1
            except BufferError as error:
                message["_error"] = KafkaError(KafkaError._QUEUE_FULL, str(error))
            except KafkaException as error:
                message["_error"] = error.args[0]
        return accepted

    cdef object refused(self, object what):
        """Returns the exception that ``produce()`` raises for a record that ``send()`` rejected."""
        topic, error = what
        if isinstance(error, WouldBlock):
            if error.what == "partition":
                # The partition may be newer than the metadata: the next call finds it.
                (<object>self.path)._refresh_soon(topic)
                return KafkaException(
                    KafkaError(KafkaError._UNKNOWN_PARTITION, f"Unable to produce message to {topic!r}")
                )
            wanting = "records without metadata take" if error.what == "metadata" else "records take"
            return BufferError(
                f"Local: Queue full: {wanting} what queue.buffering.max.kbytes allows: call poll() and try "
                "again"
            )
        if isinstance(error, errors.ProducerClosedError):
            return RuntimeError(f"Producer has been closed: {error}")
        if isinstance(error, errors.BufferExhaustedError):
            # The record does not fit even into an empty queue.
            return KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, str(error)))
        if isinstance(error, errors.KafkaError):
            return KafkaException(refusal_of(error))
        if isinstance(error, ValueError) and not isinstance(error, UnicodeError):
            return KafkaException(KafkaError(KafkaError._INVALID_ARG, str(error)))
        return error

    cdef int64_t unreported(self) noexcept:
        """Returns the number of records queued, in flight, or waiting for ``poll()`` to report them."""
        cdef const int64_t* total
        cdef int64_t waiting
        if not self.is_open() or self._queue is None or self.path.process != process:
            return 0
        if cyp_load64(&self.promised) == cyp_load64(&self.accepted):
            return cyp_load64(&self.reports)
        total = self.path.accumulator.c.meters.all.total
        waiting = (
            cyp_load64(&self.accepted) - total[RECORDS_SENT] - total[RECORDS_FAILED]
            + cyp_load64(&self._queue.entries.backlog) + len(self._queue.due)
        )
        # A batch is counted as sent slightly before or after its reports enter the queue.
        return max(waiting, cyp_load64(&self.reports), 0)

    def _outstanding(self):
        """Returns the number of records queued, in flight, or waiting for ``poll()`` to report them."""
        return self.unreported()

    def _serve(self):
        """Runs the callbacks that are due; returns how many. If one raises, the later ones stay due."""
        cdef Message message
        cdef int64_t served = 0
        cdef object callback
        self._move()
        due = self._queue.due
        # No more than these: other threads may keep adding reports.
        for _ in range(len(due)):
            try:
                message = <Message>due.popleft()
            except IndexError:
                break
            cyp_add64(&self.reports, -1)
            served += 1
            callback = message.callback
            message.callback = None
            if not self.only_errors or message._error is not None:
                callback(message._error, message)
        return served

    def _resolve(self):
        """Sets the asyncio futures that were passed as callbacks of the reports that are due; returns how
        many reports were due. Must be called on the thread of their loop."""
        cdef Message message
        cdef int64_t resolved = 0
        cdef object future
        self._move()
        due = self._queue.due
        while due:
            message = <Message>due.popleft()
            cyp_add64(&self.reports, -1)
            resolved += 1
            future = message.callback
            message.callback = None
            if future.done():
                # The future was cancelled, which has no effect on the record.
                continue
            if message._error is None:
                future.set_result(message)
            else:
                future.set_exception(KafkaException(message._error))
        return resolved

    def poll(self, timeout=-1):
        """Runs the callbacks that are due, and waits for one up to ``timeout`` seconds (below 0: forever).

        Returns how many it ran. An exception in a callback ends the call; the other callbacks stay due.
        Raises ``KafkaException`` once if the producer can't run further transactions and no other call has
        raised this error.
        """
        # Applications call it with 0 for every record: usually there is nothing to do.
        if self.only_reports and self.is_open() and self.path.process == process and timeout == 0:
            return self._serve() if self.any_due() else 0
        return self._poll(timeout)

    cdef bint any_due(self) noexcept:
        """Returns whether there are reports. May miss a batch that completes at this moment."""
        return cyp_load64(&self._queue.entries.backlog) != 0 or len(self._queue.due) != 0

    def _move(self):
        """Moves all messages of completed batches into ``due``, in order: one thread at a time."""
        if cyp_swap32(&self.moving, 1):
            return
        try:
            while self._queue.run_next(0.0):
                pass
        finally:
            cyp_store32(&self.moving, 0)

    def _wait(self, double seconds):
        """Waits until a batch is complete or until ``seconds`` have passed; does not handle signals."""
        cdef ReportQueue queue = self._queue
        cdef int64_t until = cyp_monotonic_ns() + <int64_t>(seconds * 1e9)
        if len(queue.due):
            return
        with nogil:
            pthread_mutex_lock(&queue.entries.lock)
            while queue.entries.first == NULL:
                if cyp_cond_wait_until(&queue.entries.filled, &queue.entries.lock, until):
                    break
            pthread_mutex_unlock(&queue.entries.lock)


cdef int check_message(index, message) except -1:
    """Rejects messages that ``produce_batch()`` can't send, whatever the broker's state."""
    cdef object found
    if not isinstance(message, dict):
        raise TypeError(f"Message at index {index} must be a dict")
    for name in ("value", "key"):
        found = (<dict>message).get(name)
        if found is not None and not isinstance(found, (bytes, str)):
            raise TypeError(f"Message {name} at index {index} must be bytes or str")
    found = (<dict>message).get("partition")
    if found is not None and not isinstance(found, int):
        raise TypeError(f"Message partition at index {index} must be int")
    return 0


cdef object as_bytes(object data, str what):
    if PyUnicode_Check(data):
        return PyUnicode_AsUTF8String(data)
    try:
        return bytes(memoryview(data))
    except TypeError:
        raise TypeError(f"{what}: must be str, bytes or None, not {type(data).__name__}") from None


cdef list header_list(object headers):
    """Returns the headers in the form that ``send()`` takes."""
    cdef list found = []
    if isinstance(headers, dict):
        pairs = headers.items()
    elif isinstance(headers, (list, tuple)):
        pairs = headers
    else:
        raise TypeError(
            f"headers: must be a dict or a list of (name, value) pairs, not {type(headers).__name__}"
        )
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(f"headers: each must be a (name, value) pair with a str as name, not {pair!r}")
        name, value = pair
        if value is not None and not PyBytes_CheckExact(value):
            value = as_bytes(value, f"the value of header {name!r}")
        found.append((name, value))
    return found
