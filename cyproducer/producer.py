"""``KafkaProducer``: the public API.

Owns the options, closing, and the contract of the public methods. Does not own sending (``send``), the
accumulator, the sender or the threads (``_runtime``). ``docs/design.md`` follows a record through all of
them.

Every method is thread-safe. ``_process_hooks.py`` describes what a fork does to a producer.
"""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, overload

from cyproducer import _process_hooks, errors
from cyproducer._producer_transactions import TransactionalCalls
from cyproducer._runtime import Runtime, close_all, disown_all, finish
from cyproducer.base.durations import duration
from cyproducer.base.forks import ensure_own_process
from cyproducer.base.greenlets import RLock
from cyproducer.base.removed_attribute import Missing, without_missing
from cyproducer.base.text import counted, line_prefix
from cyproducer.base.user_thread import DRAIN_S, user_thread
from cyproducer.config import DEFAULTS, ProducerConfig, hide, shown_option
from cyproducer.control.cluster_view import ClusterView
from cyproducer.control.partitioners import CustomPartitioner, resolve_partitioner
from cyproducer.futures.delivery import RecordFuture
from cyproducer.futures.waiting import refuse_wait_of_sender
from cyproducer.records.topic_names import legal_topic
from cyproducer.send.bulk_path import BulkPath
from cyproducer.send.extensions import Extensions
from cyproducer.structs import ProducerRecord as ProducerRecord

if TYPE_CHECKING:
    from uuid import UUID

    from typing_extensions import Unpack

    from cyproducer._send_async import Line
    from cyproducer.observability.registry import Metric, MetricName
    from cyproducer.types import Headers, K, ProducerOptions, V
else:
    # Type variables, for type checkers. At run time nothing uses them.
    K = V = Any

log = logging.getLogger("cyproducer")


def _in_child() -> None:
    """In a forked child, before it uses a producer: drops all runtimes, and closes the parent's sockets."""
    for producer in list(_producers):
        producer._forked()
    disown_all()


def _confluents(method: str, advice: str) -> Missing:
    return Missing(
        f"KafkaProducer has no {method}(): {advice}; or use cyproducer.confluent.Producer, whose methods are "
        "those of confluent-kafka's producer"
    )


def _aiokafkas(method: str, advice: str) -> Missing:
    return Missing(
        f"KafkaProducer has no {method}(): {advice}; or use cyproducer.aio.AIOKafkaProducer, whose methods "
        "are those of aiokafka's producer"
    )


_process_hooks.in_child(_in_child)
_process_hooks.at_exit(close_all)


class KafkaProducer(TransactionalCalls, BulkPath[K, V]):
    """Sends records to Kafka, with the API of kafka-python's ``KafkaProducer``; bounded in memory and time.

    Options are keyword arguments or a mapping, with kafka-python's names (``linger_ms=5``) or Java's
    (``{"linger.ms": 5}``). ``python -m cyproducer.config`` lists them. ``config`` has their values, as
    attributes and as a mapping. The constructor returns at once and connects in the background.
    ``wait_ready()`` waits for the connection and reports failures. ``KafkaProducer[K, V]`` gives type
    checkers the types of keys and values; see docs/typing.md.

    Raises ``KafkaConfigurationError`` if an option is unknown or its value is not allowed. Thread-safe: share
    one producer between threads.

    After a fork, the child's copy also works: it opens connections of its own on first use and leaves the
    records that the parent has accepted to the parent. The child's interceptors, serializers and custom
    partitioner are copies of the parent's objects; they are not constructed again. A closed producer stays
    closed. Pickling a producer pickles its options; unpickling makes a new producer from them.
    """

    #: The default of every option, by kafka-python's names. Read-only.
    DEFAULT_CONFIG: ClassVar[Mapping[str, Any]] = DEFAULTS

    #: None until it is made: by the constructor, and in a forked child on first use.
    _running: Runtime | None = None

    #: Whether ``_accept`` gets every record.
    _accepts: ClassVar[bool] = False

    if not TYPE_CHECKING:  # Checkers must see that they are missing.
        produce = _confluents("produce", "call send(), which returns a future")
        poll = _confluents("poll", "callbacks run on a thread of their own")
        produce_batch = _confluents("produce_batch", "call send_many() or send_all()")
        list_topics = _confluents("list_topics", "call partitions_for(topic)")
        purge = _confluents("purge", "close(0) gives up the records that are left")
        start = _aiokafkas("start", "the constructor connects, and wait_ready() waits for that")
        stop = _aiokafkas("stop", "call close()")
        send_and_wait = _aiokafkas("send_and_wait", "await (await producer.send_async(...))")
        create_batch = _aiokafkas("create_batch", "call send_many() with partition=")
        send_batch = _aiokafkas("send_batch", "call send_many() with partition=")

    def __init__(
        self, options: Mapping[str, Any] | None = None, /, **configs: Unpack[ProducerOptions[K, V]]
    ) -> None:
        options, configs = hide(options), hide(configs)
        self.config: ProducerConfig = ProducerConfig(options, **configs)
        # First, because they may raise, and no thread may be running then.
        interceptors = [i() if isinstance(i, type) else i for i in self.config.interceptors]
        self._partitioner = resolve_partitioner(
            self.config.partitioner,
            self.config.partitioner_ignore_keys,
            self.config.partitioner_rack_aware,
        )
        self._custom = self._partitioner if isinstance(self._partitioner, CustomPartitioner) else None
        extras = (*interceptors, self.config.key_serializer, self.config.value_serializer)
        #: The objects that close() closes. Each is closed by the thread that pops it.
        self._extras = [extra for extra in (*reversed(extras), self._custom) if hasattr(extra, "close")]
        extensions = Extensions(
            key_serializer=self.config.key_serializer,
            value_serializer=self.config.value_serializer,
            interceptors=interceptors,
            custom=self._custom,
            accepts=self._accepts,
        )
        self._extensions = extensions if extensions.needed else None
        self._closed = False
        self._making: AbstractContextManager[bool]
        #: For each event loop, the tasks that wait for memory; made when the first task waits.
        self._lines: weakref.WeakKeyDictionary[Any, Line] = weakref.WeakKeyDictionary()
        self._forked()
        try:
            self._make()
        except errors.KafkaConfigurationError as error:
            # Files that can't be used, for example.
            self.config._rename_options(error)
            raise
        _producers.add(self)

    # The runtime

    @property
    def _runtime(self) -> Runtime:
        ensure_own_process()
        return self._running or self._make()

    @property
    def _metadata(self) -> ClusterView:
        """kafka-python has this attribute, and Elastic APM's wrapper of ``send`` reads its ``controller``."""
        return self._runtime.client.view

    def _make(self) -> Runtime:
        """Makes the runtime: in the constructor, and in a forked child on first use."""
        with self._making:
            if self._running is not None:
                return self._running
            runtime = self._new_runtime()
            if self._closed:
                runtime.close(0)
            else:
                runtime.start()
                # Not at exit: close_all() closes all producers then, at the same time.
                self._finalizer = weakref.finalize(self, finish, runtime)
                self._finalizer.atexit = False
                _process_hooks.watch_worker_exit()
            transactions = runtime.client.transaction_client
            if self._extensions is not None:
                self._extensions.use(runtime.client)
            self._open_path(
                runtime.accumulator,
                self.config.max_request_size,
                self.config.max_block_ms,
                self._extensions,
                None if transactions is None else transactions.note_refused,
            )
            self._running = runtime
            return runtime

    def _new_runtime(self) -> Runtime:
        return Runtime(self.config, self._partitioner)

    def _forked(self) -> None:
        """In a forked child: drops the runtime. Makes new locks, as another thread may have held these."""
        if self._running is not None:
            self._finalizer.detach()
        self._making = RLock()
        self._running = None

    def _reopen(self) -> None:
        self._make()

    # Sending

    async def send_async(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture:
        """``send()`` for asyncio: if ``send()`` would block the thread, this awaits and lets the loop run.

        Arguments, errors, limits and the returned future are those of ``send()``. Awaiting that future gives
        the record's metadata. If the task is cancelled while it waits, nothing was sent. Tasks that wait for
        memory share one first-come, first-served queue with waiting threads. Serializers, interceptors and
        partitioners run on the loop's thread.
        """
        # Imported here: asyncio would double the import time of this package.
        from cyproducer._send_async import send_async

        # A copy: the caller may change the list meanwhile. Anything but a list of pairs is refused later.
        pairs: Any = headers
        if isinstance(headers, Iterable) and not isinstance(headers, Mapping):
            pairs = list(headers)
        return await send_async(self, ProducerRecord(topic, value, key, pairs, partition, timestamp_ms))

    def _before_bulk(self, method: str, keyed: bool, valued: bool) -> bool:
        if self._runtime.closed:
            raise errors.ProducerClosedError(f"{method}() on a closed producer: no row was accepted")
        interceptors = self._extensions is not None and bool(self._extensions.interceptors)
        # Silently skipping them would do harm: an interceptor may count, a serializer may encrypt.
        for name, present in (
            ("interceptors", interceptors and method == "send_arrow"),
            ("key_serializer", keyed and self.config.key_serializer is not None),
            ("value_serializer", valued and self.config.value_serializer is not None),
        ):
            if present:
                raise errors.IllegalStateError(
                    f"{method}() sends bytes as they are, but this producer has {name} for single records: "
                    "use a producer without"
                )
        return self._custom is not None

    def _wait_for_topic(self, name: str, timeout_s: float) -> None:
        self._runtime.client.wait_for_topic(name, timeout_s)

    def _view_of(self, topic: str, timeout_s: float) -> ClusterView:
        return self._runtime.client.wait_for_topic(topic, timeout_s)

    def _why_no_metadata(self, topic: str, within: str) -> str:
        return self._runtime.client.why_no_metadata(topic, within)

    def _refresh_topic(self, name: str, timeout_s: float) -> None:
        self._runtime.client.refresh_topic(name, timeout_s)

    # Waiting

    def flush(self, timeout: float | None = None) -> None:
        """Waits until every record accepted before the call is acknowledged or failed, callbacks included.

        ``timeout`` is in seconds, for everything together. None: as long as ``delivery_timeout_ms`` allows.
        Raises ``KafkaTimeoutError`` when the time runs out, and ``IllegalStateError`` in a callback.
        """
        seconds = duration("timeout", timeout)
        self._not_in_callback("flush")
        if self._running is not None and (left := self._running.flush(seconds)):
            raise errors.KafkaTimeoutError(f"flush({timeout}): {left}")

    def close(self, timeout: float | None = None) -> None:
        """Delivers the accepted records for up to ``timeout`` seconds in all, then closes the producer.

        Records that are not acknowledged by then fail with ``ProducerClosedError``. ``timeout`` None: as long
        as ``delivery_timeout_ms`` allows. 0: fail them at once. Idempotent. Raises ``IllegalStateError`` in a
        callback.

        Callbacks that are still running when the time is over keep running, and the callbacks of the failed
        records run after them. Ctrl-C ends the wait; another close() or the exit of the process finishes the
        closing.
        """
        seconds = duration("timeout", timeout)
        self._not_in_callback("close")
        lost = 0
        with self._making:
            self._closed = True
            running = self._running
        if running is not None:
            lost = running.close(seconds)
            self._finalizer.detach()
            # Log lines about the records reach their handlers before close() returns.
            user_thread.drain(DRAIN_S)
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
            log.warning(
                "%sclose(%s): %s not acknowledged in time and failed: %s",
                line_prefix(self.config.client_id),
                timeout,
                counted(lost, "record"),
                running.lost if running is not None else "",
            )

    def _not_in_callback(self, method: str) -> None:
        ensure_own_process()
        if self._running is not None and not self._running.closed:
            refuse_wait_of_sender(f"{method}()")
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

    # State and metrics

    def wait_ready(self, timeout: float | None = None) -> None:
        """Waits until a broker has answered, up to ``timeout`` seconds (None: ``max_block_ms``).

        Raises ``NoBrokersAvailable`` (a ``KafkaConnectionError``), which says what failed for each address.
        """
        seconds = self.config.max_block_ms / 1000 if timeout is None else duration("timeout", timeout)
        self._runtime.client.wait_ready(seconds)

    def bootstrap_connected(self) -> bool:
        """Returns whether a connection to a broker is up. Does not block."""
        return self._runtime.client.bootstrap_connected()

    def partitions_for(self, topic: str) -> set[int]:
        """Returns the topic's partitions; waits for its metadata up to ``max_block_ms``.

        Raises ``KafkaTimeoutError``, the broker's error for the topic, or TypeError if it is not a string.
        """
        topic = legal_topic(topic)
        view = self._runtime.client.wait_for_topic(topic, self.config.max_block_ms / 1000)
        return set(view.partitions_for_topic(topic) or ())

    @classmethod
    def max_usable_produce_magic(cls, api_version: Any = None) -> int:
        """The record format to use, for kafka-python's users. Always 2: every supported broker has it."""
        return 2

    @overload
    def metrics(self, raw: Literal[False] = False) -> dict[str, dict[str, float]]: ...

    @overload
    def metrics(self, raw: Literal[True]) -> dict[MetricName, Metric]: ...

    def metrics(self, raw: bool = False) -> dict[Any, Any]:
        """Returns the metrics as {group: {name: value}}, with Kafka's names.

        ``docs/metrics.md`` lists each with its unit and meaning. Totals count from the start. Rates, averages
        and maxima cover the last ``metrics_num_samples`` windows; NaN means that no value fell into them. The
        values of one group are from one instant. ``raw=True`` returns {name: metric} instead, with objects
        that have ``value()``. Empty if ``metrics_enabled`` is False. Thread-safe; can also be called in
        callbacks and after ``close()``.
        """
        if not self.config.metrics_enabled:
            return {}
        registry = self._runtime.registry()
        return registry.metrics() if raw else registry.snapshot()

    def client_instance_id(self, timeout: float | None = None) -> UUID:
        """Returns the id under which brokers know this client's metrics; ``clientInstanceId`` of KIP-714.

        Waits up to ``timeout`` seconds (None: ``max_block_ms``) for a broker to assign it. Thread-safe.

        Raises ``IllegalStateError`` if ``enable_metrics_push`` or ``metrics_enabled`` is False,
        ``KafkaTimeoutError`` if no broker assigned one in time, as brokers without a plugin for telemetry
        never do, ``UnsupportedVersionError`` if the broker refuses this client's telemetry, and
        ``ProducerClosedError`` if the producer was closed before it had one.
        """
        # Imported here: it takes long, and few programs need it.
        from uuid import UUID

        seconds = self.config.max_block_ms / 1000 if timeout is None else duration("timeout", timeout)
        telemetry = self._runtime.client.telemetry
        if telemetry is None:
            raise errors.IllegalStateError(
                "client_instance_id() needs enable_metrics_push=True, metrics_enabled=True and a broker"
            )
        return UUID(bytes=telemetry.instance_id(seconds))

    def __reduce__(self) -> tuple[Any, ...]:
        options = self.config.to_pickle()
        for name, value in options.items():
            _check_pickles(name, value)
        return _from_options, (type(self), options)

    def __dir__(self) -> list[str]:
        return without_missing(self, super().__dir__())

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<{type(self).__name__} {self.config.client_id!r} {state}>"


_producers: weakref.WeakSet[KafkaProducer] = weakref.WeakSet()


def _from_options(kind: type[KafkaProducer], options: dict[str, Any]) -> KafkaProducer:
    return kind(**options)


def _check_pickles(name: str, value: Any) -> None:
    """Raises a ``PicklingError`` that names the option; pickle's own error names only the object in it."""
    # Imported here: it takes longer than the rest of this module.
    import pickle

    problem = None
    # It is not known which pickler calls this. PySpark's and cloudpickle's also accept lambdas and what
    # __main__ defines.
    for module in ("pickle", "cloudpickle", "pyspark.cloudpickle"):
        if module in sys.modules:
            try:
                sys.modules[module].dumps(value)
                return
            except Exception as error:
                problem = problem or error
    raise pickle.PicklingError(
        f"a producer is pickled as its options, and {name}={shown_option(name, value)} can't be: {problem}. "
        "Define functions and classes in a module that can be imported, or make the producer where it is used"
    ) from problem
