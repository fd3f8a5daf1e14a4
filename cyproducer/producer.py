"""``KafkaProducer``: the public API, and the wiring of what is behind it.

Owns: the producer's life (construction, flush, close, exit), serializers, interceptors and custom
partitioners. Does not own: anything a record goes through after that: see ``docs/design.md`` for its way.

Every method is thread-safe.
"""

import logging
import selectors
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

from cyproducer import errors
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

    def __init__(self, config: ProducerConfig) -> None:
        self.config = config
        self.clock = Clock()
        self.callbacks = CallbackThread(f"cyproducer-callbacks | {config.client_id}")
        self.partitioner = resolve_partitioner(config.partitioner, config.partitioner_ignore_keys)
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
            spec=self.partitioner if isinstance(self.partitioner, PartitionerSpec) else None,
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
        self.client = ClusterClient(config, self.sender, self.clock)
        self.sender.attach_control(self.client)
        self.accumulator.on_topic_needed = self.client.want_topic
        self._close_lock = threading.Lock()
        self.closed = False
        self.thread = threading.Thread(
            target=self._run, name=f"cyproducer-sender | {config.client_id}", daemon=True
        )
        self.thread.start()

    def _run(self) -> None:
        try:
            self.sender.run()
        except BaseException as error:
            # A bug of ours, but nobody may wait forever for it.
            log.exception("the sender failed: every record that is not acknowledged fails")
            self.accumulator.close()
            self.sender.abort(errors.KafkaError(f"the sender thread failed: {error!r}"))

    def flush(self, timeout_s: float) -> bool:
        """Waits for everything accepted so far, callbacks included; False when the time ran out."""
        deadline = time.monotonic() + timeout_s
        return self.accumulator.flush(timeout_s) and self.callbacks.wait_idle(
            max(0.0, deadline - time.monotonic())
        )

    def close(self, timeout_s: float) -> int:
        """Drains for up to ``timeout_s`` seconds, fails the rest, ends the threads; returns records lost."""
        deadline = time.monotonic() + timeout_s
        with self._close_lock:
            if self.closed:
                return 0
            self.accumulator.close()
            failed_before = self.accumulator.counters()["records_failed"]
            # A loop that has ended, such as in a close() that was interrupted, drains nothing.
            done = self.thread.is_alive() and self.accumulator.flush(timeout_s)
            self.sender.stop()
            self.thread.join(max(1.0, deadline - time.monotonic()))
            lost = 0
            if self.thread.is_alive():
                log.error("the sender thread did not end; its sockets are left to the exit of the process")
            else:
                error = errors.ProducerClosedError(
                    f"the producer was closed before the record was acknowledged (timeout {timeout_s:g} s)"
                )
                while self.sender.abort(error):
                    # A batch is being compressed by a thread in send(); it will be done with it.
                    self.accumulator.flush(0.01)
                if not done:
                    lost = self.accumulator.counters()["records_failed"] - failed_before
                self.sender.release()
                self.selector.close()
            self.client.close()
            self.callbacks.close(max(0.1, deadline - time.monotonic()))
            # Last: where Ctrl-C ends the wait above, another close() or the exit goes on with it.
            self.closed = True
            return lost


def _finish(machinery: _Machinery) -> None:
    """Closes a producer that nobody closed: at exit, or when it is collected."""
    if machinery.closed:
        return
    if threading.current_thread() is machinery.thread or machinery.callbacks.is_current():
        # The collector may run on any thread, also on one that closing would wait for.
        threading.Thread(target=_finish, args=(machinery,), name="cyproducer-close").start()
        return
    lost = machinery.close(machinery.config.close_timeout_ms / 1000)
    if lost:
        log.error("%d records were lost: not acknowledged within close_timeout_ms at exit", lost)


class KafkaProducer(SendPath):
    """Sends records to Kafka; kafka-python's ``KafkaProducer``, faster and bounded in memory and time.

    Options are keyword arguments, by kafka-python's names (``linger_ms=5``) or Java's
    (``**{"linger.ms": 5}``); ``python -m cyproducer.config`` lists them. The constructor returns at once and
    connects in the background: ``wait_ready()`` waits for that and says what fails.

    Raises ``KafkaConfigurationError`` for an option that is unknown or not allowed. Thread-safe; share one.
    """

    def __init__(self, **configs: Any) -> None:
        self.config = ProducerConfig(**configs)
        self.config.reject_unsupported()
        # First, because they may raise, and then there must be no thread yet.
        self._interceptors = [i() if isinstance(i, type) else i for i in self.config.interceptors]
        self._machinery = _Machinery(self.config)
        custom = self._machinery.partitioner
        self._custom = custom if isinstance(custom, CustomPartitioner) else None
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

        self._open_path(
            self._machinery.accumulator,
            self.config.max_request_size,
            self.config.max_block_ms,
            extension if extended else None,
        )
        self._finalizer = weakref.finalize(self, _finish, self._machinery)

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
        if not self._machinery.flush(_seconds("timeout", timeout)):
            raise errors.KafkaTimeoutError(
                f"flush({timeout}): {self._machinery.accumulator.incomplete_batches} batches and "
                f"{self._machinery.accumulator.parked_records} records without metadata are not complete: "
                f"{self._machinery.client.diagnosis()}"
            )

    def close(self, timeout: float | None = None) -> None:
        """Delivers what was accepted, for up to ``timeout`` seconds in all, and ends the producer.

        What is not acknowledged by then fails with ``ProducerClosedError``. None: as long as
        ``delivery_timeout_ms`` allows; 0: at once. Idempotent. Raises ``IllegalStateError`` in a callback.
        """
        self._not_in_callback("close")
        lost = self._machinery.close(_seconds("timeout", timeout))
        if self._finalizer.detach() is None:
            return
        if self._custom is not None:
            self._custom.close()
        for interceptor in self._interceptors:
            if hasattr(interceptor, "close"):
                try:
                    interceptor.close()
                except Exception:
                    log.exception("interceptor %r raised in close", interceptor)
        for serializer in (self.config.key_serializer, self.config.value_serializer):
            if serializer is not None and hasattr(serializer, "close"):
                serializer.close()
        if lost:
            log.warning("close(%s): %d records were not acknowledged in time and failed", timeout, lost)

    def _not_in_callback(self, method: str) -> None:
        if self._machinery.callbacks.is_current():
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
        return _from_options, (type(self), self.config.given())

    def __repr__(self) -> str:
        state = "closed" if self._machinery.closed else "open"
        return f"<{type(self).__name__} {self.config.client_id!r} {state}>"


def _from_options(kind: type[KafkaProducer], options: dict[str, Any]) -> KafkaProducer:
    return kind(**options)


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
