"""``Producer``: confluent-kafka's producer over ``KafkaProducer``.

Owns its methods apart from ``produce`` (``reports``), and its lifetime. Does not own options
(``configuration``) or the events besides deliveries (``events``). Thread-safe: callbacks run on the thread
that calls ``poll``, ``flush`` or ``close``.
"""

import logging
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, NoReturn, Self

from cyproducer import errors
from cyproducer.base.durations import waitable
from cyproducer.base.words import line_prefix
from cyproducer.confluent.cluster import ClusterMetadata, cluster_metadata
from cyproducer.confluent.configuration import translated
from cyproducer.confluent.errors import KafkaError, KafkaException, PurgedError, error_of
from cyproducer.confluent.events import Events
from cyproducer.confluent.reports import ProducePath, ReportQueue
from cyproducer.network.callback_thread import CallbackThread
from cyproducer.producer import KafkaProducer
from cyproducer.records.topic_names import legal_topic
from cyproducer.runtime import Runtime

log = logging.getLogger("cyproducer")

_SLICE_S: Final = 0.1
"""How long a wait goes on before signals and other events are looked at."""
_PURGE_S: Final = 10.0
"""How long ``purge()`` waits for the sender thread, which only has to be scheduled."""
_CLOSED: Final = "Producer has been closed"


class _NoThread(CallbackThread):
    """In place of the callback thread: ``poll()`` empties the queue."""

    def __init__(self, queue: ReportQueue) -> None:
        self.queue = queue

    def is_current(self) -> bool:
        return False

    def wait_idle(self, timeout_s: float) -> bool:
        return True

    def close(self, timeout_s: float) -> None:
        self.queue.close()


class _Engine(KafkaProducer):
    """The ``KafkaProducer`` that does the work."""

    def __init__(self, options: Mapping[str, Any], on_queue: Callable[[ReportQueue], object]) -> None:
        self._on_queue = on_queue
        super().__init__(options)

    def _new_runtime(self) -> Runtime:
        queue = ReportQueue(None, self.config.max_pending_callbacks)
        self._on_queue(queue)
        return Runtime(self.config, self._partitioner, _NoThread(queue))

    def _refresh_soon(self, topic: str) -> None:
        """Asks for a topic's metadata, without waiting for it."""
        with suppress(errors.KafkaTimeoutError):
            self._runtime.client.refresh_topic(legal_topic(topic), 0.0)


class Producer(ProducePath):
    """confluent-kafka's ``Producer``, over this package's ``KafkaProducer``.

    ``Producer(conf)``, ``Producer(conf, **more)`` or ``Producer(**conf)``, with librdkafka's option names.
    Raises ``KafkaException`` if an option is unknown or can't be translated, and TypeError without options or
    for a callback that is not callable. ``docs/migration.md`` says what happens to each option, and what
    differs. ``kafka_producer`` is the ``KafkaProducer``, for ``metrics()``.
    """

    _events: Events = None  # type: ignore[assignment]  # until the constructor has made the engine

    def __init__(self, *conf: Mapping[str, Any], **more: Any) -> None:
        if self._path() is not None:
            raise RuntimeError("Producer already initialized")
        if len(conf) > 1 or (conf and not isinstance(conf[0], Mapping)) or not (conf or more):
            raise TypeError("expected configuration dict")
        options, settings = translated({**(conf[0] if conf else {}), **more})
        # Weakly: the engine would be part of a reference cycle, and end late.
        me = weakref.ref(self)

        def on_queue(queue: ReportQueue) -> None:
            producer = me()
            if producer is not None:
                producer._use_queue(queue)
                if producer._events is not None:
                    producer._events.renew()

        try:
            engine = _Engine(options, on_queue)
        except errors.KafkaConfigurationError as error:
            code = KafkaError._NOT_IMPLEMENTED if "transactional_id" in options else KafkaError._INVALID_ARG
            raise KafkaException(KafkaError(code, str(error))) from error
        self._credentials = settings.credentials
        self._events = Events(settings, engine.config.client_id)
        for name in settings.for_consumers:
            # As one text, which begins with the prefix: the option logger gets these.
            text = f"option {name!r} is for consumers: a producer ignores it"
            log.warning(line_prefix(engine.config.client_id) + text)
        self._open(
            engine,
            on_delivery=settings.on_delivery,
            only_errors=settings.only_errors,
            most=settings.most_messages,
        )

    @property
    def kafka_producer(self) -> KafkaProducer:
        """The producer that does the work. Closing it, or sending with it, is not foreseen."""
        return self._engine()

    def _engine(self) -> _Engine:
        engine = self._path()
        if engine is None:
            raise RuntimeError(_CLOSED)
        assert isinstance(engine, _Engine)
        return engine

    # Events

    def poll(self, timeout: float = -1) -> int:
        """Calls the callbacks that are due, and waits for one up to ``timeout`` seconds (below 0: forever).

        Returns how many it called. An exception in a callback ends the call; the other callbacks stay due.
        """
        engine = self._engine()
        deadline = _deadline(timeout)
        while True:
            served = self._events_of(engine)
            left = deadline - time.monotonic()
            if served or left <= 0:
                return served
            self._wait(min(left, _SLICE_S, self._events.due_s()))

    def flush(self, timeout: float = -1) -> int:
        """Sends everything at once, and waits up to ``timeout`` seconds (below 0: forever) for all reports.

        Calls the callbacks meanwhile. Returns ``len()``: 0 if everything is delivered or has failed.
        """
        engine = self._engine()
        deadline = _deadline(timeout)
        while True:
            self._events_of(engine)
            left = deadline - time.monotonic()
            if not self._outstanding() or left <= 0:
                return self._outstanding()
            engine._runtime.accumulator.flush(min(left, _SLICE_S))

    def _events_of(self, engine: _Engine) -> int:
        served = self._serve()
        if self._events.wanted:
            served += self._events.serve(engine._runtime, self._outstanding())
        return served

    # The queue

    def produce_batch(
        self,
        topic: str,
        messages: list[dict[str, Any]],
        partition: int = -1,
        callback: Callable[[KafkaError | None, Any], object] | None = None,
        on_delivery: Callable[[KafkaError | None, Any], object] | None = None,
    ) -> int:
        """``produce()`` for each of ``messages``: dicts with ``value``, ``key``, ``partition``, ``callback``,
        ``headers`` and ``timestamp``, all optional.

        A message that is not accepted gets the ``KafkaError`` as its ``_error``; the others are sent. Returns
        how many were accepted. Raises TypeError, before any is sent, if one has the wrong type.
        """
        if not isinstance(topic, str):
            raise TypeError(f"topic: must be str, not {type(topic).__name__}")
        if not isinstance(partition, int):
            raise TypeError(f"partition: must be int, not {type(partition).__name__}")
        if not isinstance(messages, list):
            raise TypeError(f"messages must be a list, not {type(messages).__name__}")
        self._engine()
        for index, message in enumerate(messages):
            _check_message(index, message)
        accepted = 0
        for message in messages:
            place = message.get("partition")
            try:
                self.produce(
                    topic,
                    message.get("value"),
                    message.get("key"),
                    partition if place is None else place,
                    message.get("callback") or callback or on_delivery,
                    timestamp=message.get("timestamp") or 0,
                    headers=message.get("headers"),
                )
                accepted += 1
            except BufferError as error:
                message["_error"] = KafkaError(KafkaError._QUEUE_FULL, str(error))
            except KafkaException as error:
                message["_error"] = error.args[0]
        return accepted

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Gives up the records that wait to be sent, or those in flight, or both.

        They fail with ``_PURGE_QUEUE`` or, if they may be in the log, ``_PURGE_INFLIGHT``; ``poll()`` or
        ``flush()`` reports it. ``blocking``: wait until they have failed.
        """
        client = self._engine()._runtime.client
        error = PurgedError("the program called purge()")
        done = client.purge(bool(in_queue), bool(in_flight), error)
        if blocking:
            done.wait(_PURGE_S)

    def __len__(self) -> int:
        """How many records are in the queue, in flight, or wait for ``poll()`` to report them."""
        return self._outstanding()

    def __bool__(self) -> bool:
        return True

    # The cluster

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """Asks a broker for ``topic``, or for all topics; waits up to ``timeout`` seconds (below 0: forever).

        Creates no topic. Raises ``KafkaException`` with ``_TRANSPORT`` if no broker has answered in time.
        """
        engine = self._engine()
        seconds = waitable(max(0.0, _deadline(timeout) - time.monotonic()))
        try:
            wanted = None if topic is None else [legal_topic(topic)]
            return cluster_metadata(engine._runtime.client.list_topics(wanted, seconds))
        except errors.KafkaTimeoutError as error:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, str(error), retriable=True)) from error
        except errors.ProducerClosedError as error:
            raise RuntimeError(_CLOSED) from error
        except errors.KafkaError as error:
            raise KafkaException(error_of(error)) from error

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Sets the user and password for the next authentications; open connections stay.

        Without effect if ``sasl.username`` and ``sasl.password`` were not given.
        """
        for name, value in (("username", username), ("password", password)):
            if not isinstance(value, str):
                raise TypeError(f"{name}: must be str, not {type(value).__name__}")
        self._engine()
        self._credentials.pair = (username, password)

    # Transactions

    def init_transactions(self, timeout: float = -1) -> NoReturn:
        """Not supported yet."""
        self._no_transactions()

    def begin_transaction(self) -> NoReturn:
        """Not supported yet."""
        self._no_transactions()

    def send_offsets_to_transaction(
        self, positions: list[Any], group_metadata: object, timeout: float = -1
    ) -> NoReturn:
        """Not supported yet."""
        self._no_transactions()

    def commit_transaction(self, timeout: float = -1) -> NoReturn:
        """Not supported yet."""
        self._no_transactions()

    def abort_transaction(self, timeout: float = -1) -> NoReturn:
        """Not supported yet."""
        self._no_transactions()

    def _no_transactions(self) -> NoReturn:
        self._engine()
        try:
            KafkaProducer(transactional_id="any")
        except errors.KafkaConfigurationError as error:
            raise KafkaException(KafkaError(KafkaError._NOT_IMPLEMENTED, str(error))) from error
        raise AssertionError("KafkaProducer has transactions")

    # The end

    def close(self) -> bool:
        """Waits until everything is delivered or has failed, calls the callbacks, and ends the producer.

        ``message.timeout.ms`` bounds the wait. Idempotent. Returns True. If callbacks raise, the first
        exception is raised after the end. Ctrl-C ends the wait; the records that are left are lost.
        """
        engine = self._path()
        if engine is None:
            return True
        raised: Exception | None = None
        try:
            while self._path() is not None:
                try:
                    self.flush()
                    break
                except Exception as error:
                    raised = raised or error
        finally:
            self._shut()
            self._events.close()
            assert isinstance(engine, _Engine)
            engine.close(0)
        if raised is not None:
            raise raised
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _deadline(timeout: float) -> float:
    seconds = float(timeout)
    return time.monotonic() + (waitable(float("inf")) if seconds < 0 else waitable(seconds))


def _check_message(index: int, message: object) -> None:
    if not isinstance(message, dict):
        raise TypeError(f"Message at index {index} must be a dict")
    for name in ("value", "key"):
        if not isinstance(message.get(name), bytes | str | None):
            raise TypeError(f"Message {name} at index {index} must be bytes or str")
    if not isinstance(message.get("partition"), int | None):
        raise TypeError(f"Message partition at index {index} must be int")
