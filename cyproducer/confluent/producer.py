"""``Producer``: confluent-kafka's producer on top of ``KafkaProducer``.

Owns its methods except ``produce`` (``reports``), and its lifetime. Does not own options
(``configuration``) or the events other than deliveries (``events``). Thread-safe: callbacks run on the thread
that calls ``poll``, ``flush`` or ``close``.
"""

import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final, Self

from cyproducer import errors
from cyproducer._runtime import Runtime
from cyproducer.base.clock import monotonic_s
from cyproducer.base.durations import waitable
from cyproducer.base.forks import ensure_own_process
from cyproducer.base.text import line_prefix
from cyproducer.config.option_kinds import Secret
from cyproducer.config.spelling import rename
from cyproducer.confluent.cluster_metadata import ClusterMetadata, cluster_metadata
from cyproducer.confluent.configuration import hide, spelling, translated
from cyproducer.confluent.errors import (
    KafkaError,
    KafkaException,
    PurgedError,
    error_of,
    transaction_error_of,
)
from cyproducer.confluent.events import Events
from cyproducer.confluent.reports import ProducePath, ReportQueue
from cyproducer.futures.callback_thread import CallbackThread
from cyproducer.producer import KafkaProducer
from cyproducer.records.topic_names import legal_topic

log = logging.getLogger("cyproducer")

_SLICE_S: Final = 0.1
"""How long a wait lasts before it checks for signals and other events."""
_PURGE_S: Final = 10.0
"""How long ``purge()`` waits for the sender thread, which only needs to be scheduled."""
_CLOSED: Final = "Producer has been closed"


class _NoThread(CallbackThread):
    """Replaces the callback thread: ``poll()`` empties the queue."""

    def __init__(self, queue: ReportQueue) -> None:
        self.queue = queue

    @property
    def started(self) -> bool:
        # Reports may wait for poll() at any time.
        return True

    def is_current(self) -> bool:
        return False

    def wait_idle(self, timeout_s: float) -> bool:
        return True

    def close(self, timeout_s: float) -> None:
        self.queue.close()


class _Runtime(Runtime):
    """A runtime that runs the callbacks before a transaction ends, on the thread that ends it."""

    #: ``Producer.flush``.
    flush_reports: Callable[[float], int]

    def _flush(self, timeout_s: float) -> str | None:
        left = self.flush_reports(timeout_s)
        return (
            f"{left} records are not delivered or not reported: {self.client.diagnosis()}" if left else None
        )


class _Engine(KafkaProducer):
    """The ``KafkaProducer`` that does the work."""

    def __init__(
        self,
        options: Mapping[str, Any],
        on_queue: Callable[[ReportQueue], object],
        flush_reports: Callable[[float], int],
    ) -> None:
        self._on_queue = on_queue
        self._flush_reports = flush_reports
        super().__init__(options)

    def _new_runtime(self) -> Runtime:
        queue = ReportQueue(None, self.config.max_pending_callbacks)
        self._on_queue(queue)
        runtime = _Runtime(self.config, self._partitioner, _NoThread(queue))
        runtime.flush_reports = self._flush_reports
        return runtime

    def _note_refused(self, error: object) -> None:
        """Does nothing: ``produce()`` raises the error, so the caller knows which record the transaction
        misses."""

    def _refresh_soon(self, topic: str) -> None:
        """Requests a topic's metadata without waiting for it."""
        with suppress(errors.KafkaTimeoutError):
            self._runtime.client.refresh_topic(legal_topic(topic), 0.0)


class _OneCall:
    """Admits one transactional call at a time, as librdkafka does. Thread-safe.

    After a timeout the same call must be repeated before any other, except for a call that sends offsets.
    """

    def __init__(self) -> None:
        # Held while the fields change.
        self._lock = threading.Lock()
        self._name = ""
        self._active = False

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        entered = resumable = False
        try:
            with self._lock:
                self._check(name)
                entered = True
                self._name, self._active = name, True
            yield
        except KafkaException as error:
            timed_out = error.args[0].code() == KafkaError._TIMED_OUT
            resumable = timed_out and name != "send_offsets_to_transaction"
            raise
        finally:
            if entered:
                with self._lock:
                    self._name, self._active = name if resumable else "", False

    def _check(self, name: str) -> None:
        if self._name not in ("", name):
            text = f"{name}(): {self._name}() is in progress: call it again for its outcome"
            raise KafkaException(KafkaError(KafkaError._CONFLICT, text, retriable=True))
        if self._active:
            text = f"{name}(): another thread is in this call"
            raise KafkaException(KafkaError(KafkaError._PREV_IN_PROGRESS, text, retriable=True))


class Producer(ProducePath):
    """confluent-kafka's ``Producer`` on top of this package's ``KafkaProducer``.

    ``Producer(conf)``, ``Producer(conf, **more)`` or ``Producer(**conf)``, with librdkafka's option names.
    Raises ``KafkaException`` if an option is unknown or can't be translated, and TypeError if there are no
    options or a callback is not callable. ``docs/migration.md`` explains how each option is handled, and
    lists the differences. ``kafka_producer`` is the underlying ``KafkaProducer``, for ``metrics()``.
    """

    _events: Events = None  # type: ignore[assignment]  # until the constructor has made the engine
    _one_call: _OneCall

    def __init__(self, *conf: Mapping[str, Any], **more: Any) -> None:
        # First, because tracebacks keep these variables in their frames.
        conf, more = tuple(hide(each) if isinstance(each, Mapping) else each for each in conf), hide(more)
        if self._path() is not None:
            raise RuntimeError("Producer already initialized")
        if len(conf) > 1 or (conf and not isinstance(conf[0], Mapping)) or not (conf or more):
            raise TypeError("expected configuration dict")
        given = {**(conf[0] if conf else {}), **more}
        options, settings = translated(given)
        # A weak reference: otherwise the engine would be part of a reference cycle and be freed late.
        me = weakref.ref(self)

        def on_queue(queue: ReportQueue) -> None:
            producer = me()
            if producer is not None:
                producer._use_queue(queue)
                producer._one_call = _OneCall()
                if producer._events is not None:
                    producer._events.renew()

        def flush_reports(timeout_s: float) -> int:
            producer = me()
            return 0 if producer is None else producer.flush(timeout_s)

        try:
            engine = _Engine(options, on_queue, flush_reports)
        except errors.KafkaConfigurationError as error:
            rename(error, spelling(given))
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, str(error))) from error
        self._credentials = settings.credentials
        self._events = Events(settings, engine.config.client_id)
        for name in settings.for_consumers:
            # One text that begins with the prefix: the logger of the ``logger`` option receives such lines.
            text = f"option {name!r} is for consumers: a producer ignores it"
            log.warning(line_prefix(engine.config.client_id) + text)
        self._open(
            engine,
            on_delivery=settings.on_delivery,
            only_errors=settings.only_errors,
            most=settings.most_messages,
            only_reports=not self._events.wanted and engine.config.transactional_id is None,
        )

    @property
    def kafka_producer(self) -> KafkaProducer:
        """The underlying producer. Closing it or sending with it is not supported."""
        return self._engine()

    def _engine(self) -> _Engine:
        ensure_own_process()
        engine = self._path()
        if engine is None:
            raise RuntimeError(_CLOSED)
        assert isinstance(engine, _Engine)
        return engine

    # Events

    def _poll(self, timeout: float) -> int:
        """The general path of ``poll()``."""
        engine = self._engine()
        deadline = deadline_of(timeout)
        while True:
            served = self._events_of(engine)
            left = deadline - monotonic_s()
            if served or left <= 0:
                return served
            self._wait(min(left, _SLICE_S, self._events.due_s()))

    def flush(self, timeout: float = -1) -> int:
        """Sends everything immediately and waits up to ``timeout`` seconds (below 0: forever) for all
        reports.

        Runs the callbacks while it waits. Returns ``len()``, which is 0 if every record was delivered or has
        failed. Raises the exceptions of callbacks and those of ``poll()``.
        """
        engine = self._engine()
        deadline = deadline_of(timeout)
        while True:
            self._events_of(engine)
            left = deadline - monotonic_s()
            if not self._outstanding() or left <= 0:
                return self._outstanding()
            engine._runtime.accumulator.flush(min(left, _SLICE_S))

    def _events_of(self, engine: _Engine) -> int:
        served = self._serve()
        if self._events.wanted:
            served += self._events.serve(engine._runtime, self._outstanding())
        self._events.raise_fatal(engine._runtime)
        return served

    # The queue

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Drops the records that are queued, in flight, or both.

        They fail with ``_PURGE_QUEUE`` or, if they may already be in the log, ``_PURGE_INFLIGHT``; ``poll()``
        or ``flush()`` reports this. With ``blocking``, waits until they have failed.
        """
        client = self._engine()._runtime.client
        error = PurgedError("the program called purge()")
        done = client.purge(bool(in_queue), bool(in_flight), error)
        if blocking:
            done.wait(_PURGE_S)

    def __len__(self) -> int:
        """Returns the number of records that are queued, in flight, or waiting for ``poll()`` to report
        them."""
        return self._outstanding()

    def __bool__(self) -> bool:
        return True

    # The cluster

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """Requests metadata of ``topic``, or of all topics; waits up to ``timeout`` seconds (below 0:
        forever).

        Does not create topics. Raises ``KafkaException`` with ``_TRANSPORT`` if no broker answers in time.
        """
        return self._listed(None if topic is None else [topic], timeout)

    def cluster_id(self, timeout: float = -1) -> str | None:
        """Asks a broker for the cluster's id (KIP-78); None if it has none. Waits, and raises, as
        ``list_topics()`` does."""
        return self._listed([], timeout).cluster_id

    def _listed(self, topics: list[str] | None, timeout: float) -> ClusterMetadata:
        engine = self._engine()
        seconds = waitable(max(0.0, deadline_of(timeout) - monotonic_s()))
        try:
            wanted = None if topics is None else [legal_topic(topic) for topic in topics]
            return cluster_metadata(engine._runtime.client.list_topics(wanted, seconds))
        except errors.KafkaTimeoutError as error:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, str(error), retriable=True)) from error
        except errors.ProducerClosedError as error:
            raise RuntimeError(_CLOSED) from error
        except errors.KafkaError as error:
            raise KafkaException(error_of(error)) from error

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Sets the username and password for future authentications; open connections stay.

        Has no effect if ``sasl.username`` and ``sasl.password`` were not given.
        """
        for name, value in (("username", username), ("password", password)):
            if not isinstance(value, str):
                kind = type(value).__name__
                del password, value
                raise TypeError(f"{name}: must be str, not {kind}")
        pair = (username, Secret(password))
        del password, value
        self._engine()
        self._credentials.pair = pair

    # Transactions

    def init_transactions(self, timeout: float = -1) -> None:
        """Takes over the ``transactional.id``; call it once, before the first transaction.

        ``timeout`` is in seconds; below 0: twice ``transaction.timeout.ms``.

        Like the other transactional calls, it raises ``KafkaException``, whose ``KafkaError`` says how to
        recover. ``retriable()``: call it again; ``txn_requires_abort()``: call ``abort_transaction()``;
        ``fatal()``: create a new producer. After ``_TIMED_OUT`` the operation continues, and every other
        transactional call raises ``_CONFLICT`` until this one is repeated. ``_STATE``: not allowed now.
        """
        with self._transaction("init_transactions") as engine:
            engine.init_transactions(_within(timeout, 2 * engine.config.transaction_timeout_ms))

    def begin_transaction(self) -> None:
        """Begins a transaction, which includes all records that are produced until it ends."""
        with self._transaction("begin_transaction") as engine:
            engine.begin_transaction()

    def send_offsets_to_transaction(
        self, positions: list[Any], group_metadata: object, timeout: float = -1
    ) -> None:
        """Commits the offsets of a consumer group with the transaction.

        ``positions`` is a list of ``TopicPartition``, each with the next offset to read, as the consumer's
        ``position()`` returns it. ``group_metadata`` is the result of its ``consumer_group_metadata()``.
        ``timeout`` is in seconds; below 0: ``transaction.timeout.ms``.
        """
        with self._transaction("send_offsets_to_transaction") as engine:
            seconds = _within(timeout, engine.config.transaction_timeout_ms)
            try:
                engine.send_offsets_to_transaction(positions, group_metadata, seconds)
            except ValueError as error:
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG, str(error))) from error

    def commit_transaction(self, timeout: float = -1) -> None:
        """Waits until all records are delivered and reported, then commits them atomically.

        Runs the callbacks while it waits. An exception in one ends the call before the commit: call it again,
        or ``abort_transaction()``. ``timeout`` is in seconds; below 0: twice ``transaction.timeout.ms``.
        """
        with self._transaction("commit_transaction") as engine:
            try:
                engine.commit_transaction(_within(timeout, 2 * engine.config.transaction_timeout_ms))
            except errors.AbortableError:
                # A record that failed earlier made this call fail immediately: its report identifies the
                # record.
                self._serve()
                raise

    def abort_transaction(self, timeout: float = -1) -> None:
        """Aborts the transaction: consumers with ``read_committed`` never see its records.

        Records that were not sent yet fail with ``_PURGE_QUEUE``. Runs the callbacks before it returns.
        ``timeout`` is in seconds; below 0: twice ``transaction.timeout.ms``.
        """
        with self._transaction("abort_transaction") as engine:
            try:
                engine.abort_transaction(_within(timeout, 2 * engine.config.transaction_timeout_ms))
            finally:
                self._events_of(engine)

    @contextmanager
    def _transaction(self, name: str) -> Iterator[_Engine]:
        """Wraps a transactional call: admits one at a time and raises confluent-kafka's errors."""
        engine = self._engine()
        if engine.config.transactional_id is None:
            raise KafkaException(
                KafkaError(KafkaError._NOT_CONFIGURED, f"{name}() needs the option transactional.id")
            )
        # In a forked child this creates a new runtime and a new _one_call.
        transactions = engine._runtime.client.transaction_client
        assert transactions is not None
        with self._one_call(name):
            try:
                yield engine
            except errors.ProducerClosedError as error:
                raise RuntimeError(_CLOSED) from error
            except errors.KafkaError as error:
                found = transaction_error_of(error, transactions.machine.state)
                self._events.told_fatal |= found.fatal()
                raise KafkaException(found) from error

    # The end

    def close(self) -> bool:
        """Waits until every record is delivered or has failed, runs the callbacks, and closes the producer.

        ``message.timeout.ms`` bounds the wait. Idempotent. Returns True. If callbacks raise, the first
        exception is raised after the producer is closed. Ctrl-C ends the wait; the remaining records are
        lost.
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
            # Nothing is left to send, but an open transaction is aborted.
            transactional = engine.config.transactional_id is not None
            engine.close(engine.config.close_timeout_ms / 1000 if transactional else 0)
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


def deadline_of(timeout: float) -> float:
    """Returns the end of a wait of confluent-kafka's API, which below 0 is forever."""
    seconds = float(timeout)
    return monotonic_s() + waitable(float("inf") if seconds < 0 else seconds)


def _within(timeout: float, default_ms: float) -> float:
    """Returns the seconds that a transactional call may take."""
    seconds = float(timeout)
    return default_ms / 1000 if seconds < 0 else seconds
