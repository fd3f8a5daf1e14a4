"""``KafkaProducer``: the public API, and the wiring of what is behind it.

Owns: the producer's life (construction, flush, close, exit), serializers, interceptors and custom
partitioners. Does not own: anything a record goes through after that: see ``docs/design.md`` for its way.

Every method is thread-safe. What a fork does to a producer is in ``forking.py``.
"""

import logging
import selectors
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any, NamedTuple, Self

from cyproducer import errors, forking
from cyproducer.buffers.accumulator import RecordAccumulator
from cyproducer.buffers.buffer_pool import BufferPool
from cyproducer.buffers.clock import Clock
from cyproducer.buffers.delivery import RecordFuture, failed_future
from cyproducer.buffers.send_path import SendPath
from cyproducer.config import ProducerConfig
from cyproducer.control.partitioners import CustomPartitioner, PartitionerSpec, resolve_partitioner
from cyproducer.network.callbacks import CallbackThread
from cyproducer.network.cluster import ClusterClient
from cyproducer.network.sender import Sender
from cyproducer.structs import RecordMetadata, TopicPartition

log = logging.getLogger("cyproducer")

#: How long a wait without a timeout of its own may take: forever, in effect.
_LONG_S = 1e9
#: How long the sender may take to end when the time of a close() is over: it takes a millisecond, unless the
#: machine is overloaded. Futures without an outcome would be worse than a close() that is late.
_END_S = 1.0
#: How long callbacks may take then that tell of what close() has failed.
_CALLBACKS_S = 0.05
#: How often a draining close() looks whether another thread is in a greater hurry.
_SLICE_S = 0.05


#: Also those whose producer is being collected just now.
_machines: weakref.WeakSet["_Machinery"] = weakref.WeakSet()


class ProducerRecord(NamedTuple):
    """One message, as interceptors see it and ``send_all`` takes it; the fields are ``send``'s arguments."""

    topic: str
    value: Any = None
    key: Any = None
    headers: list[tuple[str, bytes | None]] | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


class _Machinery:
    """Everything a producer runs on. It does not know the producer, which may be collected any time."""

    def __init__(self, config: ProducerConfig, partitioner: PartitionerSpec | CustomPartitioner) -> None:
        self.config = config
        self.clock = Clock()
        self.callbacks = CallbackThread(f"cyproducer-callbacks | {config.client_id}")
        compressor = None
        if config.compression_type:
            # Imported here: the codecs' libraries are as heavy as all the rest.
            from cyproducer.records.compression import compressor_for

            compressor = compressor_for(config.compression_type, config.effective_compression_level)
        self.accumulator = RecordAccumulator(
            BufferPool(config.buffer_memory),
            self.clock,
            self.callbacks.queue,
            batch_size=config.batch_size,
            linger_ms=config.linger_ms,
            compressor=compressor,
            idempotent=config.enable_idempotence,
            # Without acknowledgements nothing is sent again.
            ordered=config.acks != 0,
            spec=partitioner if isinstance(partitioner, PartitionerSpec) else None,
            adaptive=config.partitioner_adaptive_partitioning_enable,
            availability_timeout_ms=config.partitioner_availability_timeout_ms,
            single_broker_ms=config.partitioner_single_broker_ms,
        )
        self.selector = (config.selector or selectors.DefaultSelector)()
        self.sender = Sender(
            self.accumulator,
            self.selector,
            self.clock,
            client_id=config.client_id,
            acks=config.acks,
            max_in_flight=config.max_in_flight_requests_per_connection,
            max_request_size=config.max_request_size,
            request_timeout_ms=config.request_timeout_ms,
            delivery_timeout_ms=config.delivery_timeout_ms,
            receive_max=config.receive_message_max_bytes,
        )
        _machines.add(self)
        self.client = ClusterClient(config, self.sender, self.clock)
        self.sender.attach_control(self.client)
        self.accumulator.on_topic_needed = self.client.want_topic
        # Reentrant: a signal's handler may close in the middle of a close().
        self._close_lock = threading.RLock()
        self._deadlines: list[float] = []
        self._end_error: Exception | None = None
        self.closed = False
        self.thread = threading.Thread(
            target=self._run, name=f"cyproducer-sender | {config.client_id}", daemon=True
        )

    def start(self) -> None:
        """Starts to send."""
        try:
            self.thread.start()
        except BaseException:
            self.close(0)
            raise

    def _run(self) -> None:
        try:
            self.sender.run()
        except BaseException as error:
            # A bug of ours, but nobody may wait forever for it.
            log.exception("the sender failed: every record that is not acknowledged fails")
            self.accumulator.close()
            self._end_error = errors.KafkaError(f"the sender thread failed: {error!r}")
        self._end()

    def _end(self) -> None:
        """Fails what is left and lets go of every descriptor.

        On the sender's thread, where no Ctrl-C breaks in: half of it done would leave futures pending.
        """
        try:
            while self.sender.abort(self._end_error or errors.ProducerClosedError("the producer was closed")):
                # A batch is being compressed by a thread in send(); it will be done with it.
                self.accumulator.flush(0.01)
        finally:
            self.sender.release()
            self.selector.close()

    def flush(self, timeout_s: float) -> str | None:
        """Waits for everything accepted so far, callbacks included; what is left when the time ran out."""
        deadline = time.monotonic() + timeout_s
        if not self.accumulator.flush(timeout_s):
            return (
                f"{self.accumulator.incomplete_batches} batches and {self.accumulator.parked_records} "
                f"records without metadata are not complete: {self.client.diagnosis()}"
            )
        if not self.callbacks.wait_idle(max(0.0, deadline - time.monotonic())):
            return "every record is acknowledged or failed, but some of their callbacks have not returned"
        return None

    def close(self, timeout_s: float) -> int:
        """Drains for up to ``timeout_s`` seconds, fails the rest, ends the threads; returns records lost.

        Where several threads close, the one in the greatest hurry decides for all.
        """
        deadline = time.monotonic() + timeout_s
        try:
            self._deadlines.append(deadline)
            if not self._close_lock.acquire(timeout=timeout_s + _END_S):
                log.error("another thread is closing the producer and has not come to an end in time")
                return 0
            return 0 if self.closed else self._close(timeout_s)
        finally:
            # Ctrl-C may come between any two steps: nothing is sure to have been done, and to be undone.
            with suppress(ValueError):
                self._deadlines.remove(deadline)
            with suppress(RuntimeError):
                self._close_lock.release()

    def _close(self, timeout_s: float) -> int:
        self.accumulator.close()
        failed_before = self.accumulator.counters()["records_failed"]
        done = False
        # A loop that has ended, such as in a close() that was interrupted, drains nothing.
        while self.thread.is_alive() and not done:
            left = min(self._deadlines) - time.monotonic()
            done = self.accumulator.flush(max(0.0, min(left, _SLICE_S)))
            if left <= 0:
                break
        lost = 0
        if not self._end_error:
            self._end_error = errors.ProducerClosedError(
                f"the producer was closed before the record was acknowledged (timeout {timeout_s:g} s)"
            )
        self.sender.stop()
        if self.thread.ident is None:
            self._end()
        else:
            self.thread.join(_END_S)
        if self.thread.is_alive():
            log.error("the sender thread did not end; its sockets are left to the exit of the process")
        elif not done:
            lost = self.accumulator.counters()["records_failed"] - failed_before
        self.client.close()
        self.callbacks.close(max(_CALLBACKS_S, min(self._deadlines) - time.monotonic()))
        # Last: where Ctrl-C ends the wait above, another close() or the exit goes on with it.
        self.closed = True
        return lost

    def disown(self) -> None:
        """In a forked child: see ``network/forking``."""
        forking.disown(self.sender)
        self.closed = True


def _finish(machinery: _Machinery) -> None:
    """Closes a producer that nobody closed, when it is collected."""
    if machinery.closed:
        return
    if threading.current_thread() is machinery.thread or machinery.callbacks.is_current():
        # The collector may run on any thread, also on one that closing would wait for.
        threading.Thread(target=_finish, args=(machinery,), name="cyproducer-close").start()
        return
    _drain(machinery, time.monotonic())


def _drain(machinery: _Machinery, began: float) -> None:
    """Closes within close_timeout_ms from ``began`` on, and says what was lost."""
    lost = machinery.close(max(0.0, began + machinery.config.close_timeout_ms / 1000 - time.monotonic()))
    if lost:
        log.error("%d records were lost: not acknowledged within close_timeout_ms at exit", lost)


def _at_exit() -> None:
    """Closes every producer that is there when the process ends, all of them at the same time."""
    began = time.monotonic()
    left = [machinery for machinery in list(_machines) if not machinery.closed]
    for machinery in left:
        machinery.accumulator.close()
    for machinery in left:
        _drain(machinery, began)


def _in_child() -> None:
    """After a fork: producers forget their machinery, which lets go of what is the parent's."""
    for producer in list(_producers):
        producer._forked()
    for machinery in list(_machines):
        machinery.disown()
        _machines.discard(machinery)


forking.in_child(_in_child)
forking.at_exit(_at_exit)


class KafkaProducer(SendPath):
    """Sends records to Kafka; kafka-python's ``KafkaProducer``, faster and bounded in memory and time.

    Options are keyword arguments, by kafka-python's names (``linger_ms=5``) or Java's
    (``**{"linger.ms": 5}``); ``python -m cyproducer.config`` lists them. The constructor returns at once and
    connects in the background: ``wait_ready()`` waits for that and says what fails.

    Raises ``KafkaConfigurationError`` for an option that is unknown or not allowed. Thread-safe; share one.

    After a fork the child's copy works as well: it connects anew when it is used first, and leaves alone what
    the parent has accepted. Interceptors, serializers and a partitioner of your own are not made anew: the
    child has copies of the objects as they were. A producer that was closed stays closed. Pickled, a producer
    is its options: where it is unpickled a new one is made.
    """

    #: None until it is made: in the constructor, and in a forked child when it is first needed.
    _running: _Machinery | None = None

    def __init__(self, **configs: Any) -> None:
        self.config = ProducerConfig(**configs)
        self.config.reject_unsupported()
        # First, because they may raise, and then there must be no thread yet.
        self._interceptors = [i() if isinstance(i, type) else i for i in self.config.interceptors]
        self._partitioner = resolve_partitioner(self.config.partitioner, self.config.partitioner_ignore_keys)
        self._custom = self._partitioner if isinstance(self._partitioner, CustomPartitioner) else None
        extras = (*self._interceptors, self.config.key_serializer, self.config.value_serializer)
        #: What close() closes, each by whoever pops it.
        self._extras = [extra for extra in (*reversed(extras), self._custom) if hasattr(extra, "close")]
        extended = (
            self._custom is not None
            or self._interceptors
            or self.config.key_serializer is not None
            or self.config.value_serializer is not None
        )
        # A method bound weakly: bound strongly, the producer would be its own cycle.
        me = weakref.ref(self)

        def extension(*record: Any) -> RecordFuture:
            producer = me()
            assert producer is not None
            return producer._send_extended(ProducerRecord(*record))

        self._extension = extension if extended else None
        self._closed = False
        self._making: AbstractContextManager[bool]
        self._forked()
        self._make()
        _producers.add(self)

    # What it runs on

    @property
    def _machinery(self) -> _Machinery:
        return self._running or self._make()

    def _make(self) -> _Machinery:
        """Makes the machinery, in the constructor and when a forked child first needs it."""
        with self._making:
            if self._running is not None:
                return self._running
            machinery = _Machinery(self.config, self._partitioner)
            if self._closed:
                machinery.close(0)
            else:
                machinery.start()
                # Not at exit: there all are closed at the same time.
                self._finalizer = weakref.finalize(self, _finish, machinery)
                self._finalizer.atexit = False
                forking.watch_worker_exit()
            self._open_path(
                machinery.accumulator, self.config.max_request_size, self.config.max_block_ms, self._extension
            )
            self._running = machinery
            return machinery

    def _forked(self) -> None:
        """In a child: has no machinery. Locks are new ones: another thread may have held the old ones."""
        if self._running is not None:
            self._finalizer.detach()
        self._making = threading.RLock()
        self._running = None
        self._forget_path()

    def _reopen(self) -> None:
        self._make()

    # Sending

    def send_all(
        self, records: Iterable[ProducerRecord | Mapping[str, Any] | tuple[Any, ...]]
    ) -> list[RecordFuture]:
        """Sends several records; returns their futures in order.

        Each is a ``ProducerRecord``, a tuple in its order, or a mapping with its field names. Never raises
        for a record: what ``send`` would have raised is in its future. Blocks where ``send`` does.
        """
        futures = []
        for record in records:
            topic = ""
            try:
                whole = ProducerRecord(**record) if isinstance(record, Mapping) else ProducerRecord(*record)
                topic = whole.topic
                futures.append(self.send(*whole))
            except Exception as error:
                futures.append(failed_future(str(topic), error))
        return futures

    def _send_extended(self, record: ProducerRecord) -> RecordFuture:
        """``send()`` with interceptors, serializers or a custom partitioner."""
        for interceptor in self._interceptors:
            if hasattr(interceptor, "on_send"):
                try:
                    changed = interceptor.on_send(record)
                    if not isinstance(changed, ProducerRecord):
                        raise TypeError(f"on_send returned {changed!r}: it must return a ProducerRecord")
                    record = changed
                except Exception:
                    log.exception(
                        "interceptor %r raised in on_send; the record goes on as it was", interceptor
                    )
        try:
            future = self._send_intercepted(record)
        except Exception as error:
            self._acknowledge(record, error)
            raise
        if self._interceptors:
            future.add_both(self._acknowledge, record)
        return future

    def _send_intercepted(self, record: ProducerRecord) -> RecordFuture:
        topic = record.topic
        # Before the serializers, which need not cope with None, nor be usable after close().
        if self._machinery.closed:
            raise errors.ProducerClosedError("send() on a closed producer: the record was not accepted")
        if record.value is None and record.key is None:
            raise ValueError("a record needs a value or a key: a tombstone is a key with value=None")
        key = _serialized(self.config.key_serializer, topic, record.headers, record.key, "key")
        value = _serialized(self.config.value_serializer, topic, record.headers, record.value, "value")
        partition = record.partition
        if partition is None and self._custom is not None:
            try:
                view = self._machinery.client.wait_for_topic(topic, self.config.max_block_ms / 1000)
            except errors.BrokerResponseError as error:
                return failed_future(topic, error)
            asked = (topic, record.key, key, record.value, value, view)
            partition = self._custom.choose(*asked)
            # A partitioner that sticks may move on where its partition's batch is full (KIP-480).
            opens = key is None and self._opens_batch(topic, value, record.headers, partition)
            if opens and self._custom.on_new_batch(topic, view, partition):
                partition = self._custom.choose(*asked)
        return self._send_serialized(topic, value, key, record.headers, partition, record.timestamp_ms)

    def _acknowledge(self, record: ProducerRecord, outcome: Any) -> None:
        """Tells the interceptors, as Java's ``onAcknowledgement``: metadata always, and the error or None."""
        error = outcome if isinstance(outcome, BaseException) else None
        metadata = outcome
        if error is not None:
            partition = -1 if record.partition is None else record.partition
            place = TopicPartition(record.topic, partition)
            metadata = RecordMetadata(record.topic, partition, place, -1, -1, None, -1, -1, -1)
        for interceptor in self._interceptors:
            if hasattr(interceptor, "on_acknowledgement"):
                try:
                    interceptor.on_acknowledgement(metadata, error)
                except Exception:
                    log.exception("interceptor %r raised in on_acknowledgement", interceptor)

    # Waiting

    def flush(self, timeout: float | None = None) -> None:
        """Waits until every record accepted before the call is acknowledged or failed, callbacks included.

        ``timeout``: seconds for all of it; None: as long as ``delivery_timeout_ms`` allows. Raises
        ``KafkaTimeoutError`` when the time ran out, ``IllegalStateError`` in a callback.
        """
        self._not_in_callback("flush")
        seconds = _seconds("timeout", timeout)
        if self._running is not None and (left := self._running.flush(seconds)):
            raise errors.KafkaTimeoutError(f"flush({timeout}): {left}")

    def close(self, timeout: float | None = None) -> None:
        """Delivers what was accepted, for up to ``timeout`` seconds in all, and ends the producer.

        What is not acknowledged by then fails with ``ProducerClosedError``. None: as long as
        ``delivery_timeout_ms`` allows; 0: at once. Idempotent. Raises ``IllegalStateError`` in a callback.

        Callbacks that have not returned when the time is over run on; what is failed then is called back too.
        Ctrl-C ends the wait and leaves the producer to another close(), or to the exit of the process.
        """
        self._not_in_callback("close")
        seconds = _seconds("timeout", timeout)
        lost = 0
        with self._making:
            self._closed = True
            running = self._running
        if running is not None:
            lost = running.close(seconds)
            self._finalizer.detach()
        while self._extras:
            try:
                extra = self._extras.pop()
            except IndexError:
                break
            try:
                extra.close()
            except Exception:
                log.exception("%r raised in close", extra)
        if lost:
            log.warning("close(%s): %d records were not acknowledged in time and failed", timeout, lost)

    def _not_in_callback(self, method: str) -> None:
        if self._running is not None and self._running.callbacks.is_current():
            raise errors.IllegalStateError(
                f"{method}() in a callback would wait for itself: call it from another thread"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Asking

    def wait_ready(self, timeout: float | None = None) -> None:
        """Waits until a broker has answered, up to ``timeout`` seconds (None: ``max_block_ms``).

        Raises ``NoBrokersAvailable`` (a ``KafkaConnectionError``), which says for each address what failed.
        """
        seconds = self.config.max_block_ms / 1000 if timeout is None else _seconds("timeout", timeout)
        self._machinery.client.wait_ready(seconds)

    def bootstrap_connected(self) -> bool:
        """Whether a connection to a broker is up; does not block."""
        return self._machinery.client.bootstrap_connected()

    def partitions_for(self, topic: str) -> set[int]:
        """The topic's partitions, waiting for its metadata up to ``max_block_ms``.

        Raises ``KafkaTimeoutError``, or the broker's error for the topic.
        """
        view = self._machinery.client.wait_for_topic(topic, self.config.max_block_ms / 1000)
        return view.partitions_for_topic(topic) or set()

    def metrics(self, raw: bool = False) -> dict[str, dict[str, float]]:
        """Counters since the start, as {group: {name: value}}; ``raw`` changes nothing."""
        from cyproducer.metrics import snapshot

        machinery = self._machinery
        return snapshot(machinery.accumulator, machinery.sender)

    def __reduce__(self) -> tuple[Any, ...]:
        options = self.config.given()
        for name, value in options.items():
            _check_pickles(name, value)
        return _from_options, (type(self), options)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<{type(self).__name__} {self.config.client_id!r} {state}>"


_producers: weakref.WeakSet[KafkaProducer] = weakref.WeakSet()


def _from_options(kind: type[KafkaProducer], options: dict[str, Any]) -> KafkaProducer:
    return kind(**options)


def _check_pickles(name: str, value: Any) -> None:
    """Raises ``PicklingError`` naming the option: pickle itself names only what is in it."""
    # Imported here: it takes longer than the rest of this module.
    import pickle

    problem = None
    # Nobody says which pickler asks. PySpark's and cloudpickle's take lambdas, and what __main__ defines.
    for module in ("pickle", "cloudpickle", "pyspark.cloudpickle"):
        if module in sys.modules:
            try:
                sys.modules[module].dumps(value)
                return
            except Exception as error:
                problem = problem or error
    raise pickle.PicklingError(
        f"a producer is pickled as its options, and {name}={value!r} can't be: {problem}. Functions and "
        "classes have to be those of a module that can be imported; or make the producer where it is used"
    ) from problem


def _seconds(name: str, value: float | None) -> float:
    if value is None:
        return _LONG_S
    if not value >= 0:
        raise ValueError(f"{name}={value!r}: must be a number of seconds >= 0, or None")
    return value


def _serialized(serializer: Any, topic: str, headers: Any, data: Any, what: str) -> Any:
    """``data`` through a serializer: kafka-python 3's object with ``serialize``, or any callable."""
    if serializer is None:
        return data
    if hasattr(serializer, "serialize"):
        return serializer.serialize(topic, headers, data)
    return serializer(data)
