"""Makes a span for each call that sends, and puts its context into the records' headers.

Owns the wrappers around the sending methods of ``KafkaProducer``, and the names and attributes of spans,
which follow OpenTelemetry's semantic conventions for Kafka. Does not own the conventions' version
(``conventions``), sampling, the format of the headers (the global propagator) or what happens to an ended
span (the SDK).

A span starts on the thread that sends. It ends when the outcome is known, on the callback thread, or on the
thread that sends if the outcome is known when the call returns; span processors never run on the sender
thread. Until ``instrument()`` is called, nothing here is imported and ``send`` is the C method itself.

The wrappers replace class attributes, so they also cover producers that exist already. Installing a wrapper
twice does nothing, so no lock is needed. A fork could copy a lock while it is held.
"""

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context, propagate, trace
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.propagators.textmap import Getter, Setter
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TracerProvider

from cyproducer.config.option_kinds import split_server
from cyproducer.errors import BulkSendError
from cyproducer.futures.bulk_future import BulkFuture
from cyproducer.futures.delivery import RecordFuture
from cyproducer.opentelemetry import conventions
from cyproducer.producer import KafkaProducer, ProducerRecord
from cyproducer.structs import RecordMetadata
from cyproducer.version import VERSION

if TYPE_CHECKING:
    from cyproducer.clients.network_client import NetworkClient

# Those of version 1.44.0, which ``conventions`` renames. Not from opentelemetry.semconv, which has them in a
# module that may change with any release.
SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
CLIENT_ID: Final = "messaging.client.id"
MESSAGE_COUNT: Final = "messaging.batch.message_count"
KEY: Final = "messaging.kafka.message.key"
TOMBSTONE: Final = "messaging.kafka.message.tombstone"
OFFSET: Final = "messaging.kafka.offset"
CLUSTER_ID: Final = "messaging.kafka.cluster.id"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"

SEND: Final = "send"
"""The name and the type of every operation, and the first word of every span's name."""


# Which producers are traced


def trace_all(provider: TracerProvider | None) -> None:
    """Traces all producers of the process, with ``provider`` or the global one."""
    global _for_all
    _for_all = Tracing(provider)
    _install()


def untrace_all() -> None:
    """Undoes ``trace_all``. Spans that have started still end with their records' outcomes."""
    global _for_all
    _for_all = None
    _remove_if_unused()


def trace_producer(producer: KafkaProducer, provider: TracerProvider | None) -> None:
    """Traces one producer."""
    if not isinstance(producer, KafkaProducer):
        raise TypeError(f"producer: must be a cyproducer.KafkaProducer, not {type(producer).__name__}")
    vars(producer)["_tracing"] = Tracing(provider)
    _traced_alone.add(producer)
    _install()


def untrace_producer(producer: KafkaProducer) -> None:
    """Undoes ``trace_producer``."""
    vars(producer).pop("_tracing", None)
    _traced_alone.discard(producer)
    _remove_if_unused()


_for_all: "Tracing | None" = None
_traced_alone: weakref.WeakSet[KafkaProducer] = weakref.WeakSet()


def _install() -> None:
    for wrapper in _WRAPPERS:
        wrapper.install()


def _remove_if_unused() -> None:
    if _for_all is None and not _traced_alone:
        for wrapper in _WRAPPERS:
            wrapper.remove()


class _Wrapper:
    """One wrapped method of ``KafkaProducer``."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        # Kept separately: the function takes over the name of what it wraps, which another library may have
        # made.
        self._name = function.__name__
        #: The class's own method; None if it is inherited.
        self._own: Any = None
        self._installed = False
        #: What the wrapper calls.
        self.original: Callable[..., Any] = getattr(KafkaProducer, self._name)

    def install(self) -> None:
        if self._installed:
            return
        self._own = vars(KafkaProducer).get(self._name)
        self.original = getattr(KafkaProducer, self._name)
        functools.update_wrapper(self._function, self.original)
        self._installed = True
        setattr(KafkaProducer, self._name, self._function)

    def remove(self) -> None:
        # If another library has wrapped the wrapper, it stays, and only passes calls on.
        if not self._installed or vars(KafkaProducer).get(self._name) is not self._function:
            return
        self._installed = False
        if self._own is None:
            delattr(KafkaProducer, self._name)
        else:
            setattr(KafkaProducer, self._name, self._own)


# The wrappers, with the signatures of the methods


def send(
    self: KafkaProducer,
    topic: str,
    value: Any = None,
    key: Any = None,
    headers: Sequence[tuple[str, Any]] | None = None,
    partition: int | None = None,
    timestamp_ms: int | None = None,
) -> RecordFuture:
    tracing = _tracing_of(self)
    if tracing is None or type(headers) is _OfBulk:
        future: RecordFuture = _SEND.original(self, topic, value, key, headers, partition, timestamp_ms)
        return future
    span, headers = tracing.of_record(self, topic, value, key, headers, partition)
    try:
        future = _SEND.original(self, topic, value, key, headers, partition, timestamp_ms)
    except BaseException as error:
        _end(span, error)
        raise
    return _record_followed(self, span, future)


async def send_async(
    self: KafkaProducer,
    topic: str,
    value: Any = None,
    key: Any = None,
    headers: Sequence[tuple[str, Any]] | None = None,
    partition: int | None = None,
    timestamp_ms: int | None = None,
) -> RecordFuture:
    tracing = _tracing_of(self)
    if tracing is None:
        future: RecordFuture = await _SEND_ASYNC.original(
            self, topic, value, key, headers, partition, timestamp_ms
        )
        return future
    span, headers = tracing.of_record(self, topic, value, key, headers, partition)
    try:
        future = await _SEND_ASYNC.original(self, topic, value, key, headers, partition, timestamp_ms)
    except BaseException as error:
        _end(span, error)
        raise
    return _record_followed(self, span, future)


def send_many(self: KafkaProducer, topic: str, *args: Any, **kwargs: Any) -> BulkFuture:
    return _rows_sent(_SEND_MANY, self, topic, args, kwargs)


def send_arrow(self: KafkaProducer, topic: str, *args: Any, **kwargs: Any) -> BulkFuture:
    return _rows_sent(_SEND_ARROW, self, topic, args, kwargs)


def send_all(
    self: KafkaProducer, records: Iterable[ProducerRecord | Mapping[str, Any] | tuple[Any, ...]]
) -> list[RecordFuture]:
    futures: list[RecordFuture]
    tracing = _tracing_of(self)
    if tracing is None:
        futures = _SEND_ALL.original(self, records)
        return futures
    # The records may come from a generator: their topics are not known yet.
    span = tracing.start(self, None, None, SpanKind.PRODUCER)
    topics: set[str] = set()
    try:
        futures = _SEND_ALL.original(self, _with_context(span, records, topics))
    except BaseException as error:
        _end(span, error)
        raise
    if span.is_recording():
        span.set_attribute(MESSAGE_COUNT, len(futures))
        if len(topics) == 1:
            (topic,) = topics
            span.update_name(f"{SEND} {topic}")
            span.set_attribute(DESTINATION, topic)
        _Outcomes(span, futures)
    return futures


_SEND: Final = _Wrapper(send)
_SEND_ASYNC: Final = _Wrapper(send_async)
_SEND_MANY: Final = _Wrapper(send_many)
_SEND_ARROW: Final = _Wrapper(send_arrow)
_SEND_ALL: Final = _Wrapper(send_all)
_WRAPPERS: Final = (_SEND, _SEND_ASYNC, _SEND_MANY, _SEND_ARROW, _SEND_ALL)


# Starting spans

_NO_ATTRIBUTES: Final[Mapping[str, str | int]] = {}


class Tracing:
    """Starts the spans of one tracer provider. Thread-safe."""

    def __init__(self, provider: TracerProvider | None) -> None:
        self._tracer = trace.get_tracer(
            "cyproducer.opentelemetry", VERSION, provider, conventions.CHOSEN.schema_url
        )

    def start(
        self,
        producer: KafkaProducer,
        topic: str | None,
        partition: int | str | None,
        kind: SpanKind,
        more: Mapping[str, str | int] = _NO_ATTRIBUTES,
        link: SpanContext | None = None,
    ) -> Span:
        """Starts a span, with the attributes that samplers may need. ``topic`` None: not known yet."""
        name = SEND
        attributes = {**_attributes_of(producer), **more}
        # The call itself refuses a topic that is not text and a partition that is not a number.
        if isinstance(topic, str):
            topic = str.__str__(topic)
            name = f"{SEND} {topic}"
            attributes[DESTINATION] = topic
        if isinstance(partition, int) and 0 <= partition < 1 << 31:
            attributes[PARTITION] = str(partition)
        links = None if link is None else [Link(link)]
        named = conventions.CHOSEN.rename(attributes)
        return self._tracer.start_span(name, kind=kind, attributes=named, links=links)

    def of_record(
        self, producer: KafkaProducer, topic: str, value: Any, key: Any, headers: Any, partition: int | None
    ) -> tuple[Span, Any]:
        """Starts the span of a single record; returns it and the headers to send."""
        pairs = _pairs(headers)
        created = _creation_context(pairs)
        kind = SpanKind.PRODUCER if created is None else SpanKind.CLIENT
        more: dict[str, str | int] = {}
        if key is not None and (shown := _shown_key(key)) is not None:
            more[KEY] = shown
        if value is None:
            more[TOMBSTONE] = True
        span = self.start(producer, topic, partition, kind, more, created)
        if created is None and pairs is not None:
            _inject(span, pairs)
        # The copy even if nothing was added: the original may be an iterator, which can be read only once.
        # Without headers, and without anything to inject, interceptors still see None.
        return span, pairs or headers


def _tracing_of(producer: KafkaProducer) -> Tracing | None:
    """Returns the ``Tracing`` for a call on a producer; None if the call is not traced."""
    mine: Tracing | None = vars(producer).get("_tracing", _for_all)
    # Without a configuration, the constructor has failed, which the call itself reports. Instrumentation is
    # disabled for calls of an exporter that sends spans to Kafka: they would make more spans endlessly.
    if mine is None or "config" not in vars(producer) or not is_instrumentation_enabled():
        return None
    return mine


def _attributes_of(producer: KafkaProducer) -> dict[str, str | int]:
    """Returns the attributes that all spans of a producer have at their start."""
    known: dict[str, str | int] | None = vars(producer).get("_span_attributes")
    if known is None:
        address, port = split_server(producer.config.bootstrap_servers[0])[1]
        known = {
            SYSTEM: "kafka",
            OPERATION_NAME: SEND,
            OPERATION_TYPE: SEND,
            CLIENT_ID: producer.config.client_id,
            SERVER_ADDRESS: address,
            SERVER_PORT: port,
        }
        vars(producer)["_span_attributes"] = known
    return known


def _shown_key(key: Any) -> str | None:
    """Returns a key as text; None if it has no unambiguous text."""
    if isinstance(key, str):
        return str.__str__(key)
    try:
        if isinstance(key, int):
            return int.__repr__(key)
        if isinstance(key, (bytes, bytearray, memoryview)):
            return str(key, "utf-8")
    except (ValueError, BufferError):
        # Not UTF-8, an int of more digits than Python converts, or memory that is not contiguous.
        return None
    return None


# Headers


class _OfBulk(list[tuple[str, bytes | None]]):
    """Headers of a record of ``send_all``, whose context is already in them: ``send`` makes no span."""


class _Headers(Getter[list[Any]], Setter[list[Any]]):
    """Reads and writes a propagator's fields in a list of headers. Skips what is not a header."""

    def get(self, carrier: list[Any], key: str) -> list[str] | None:
        found = []
        for pair in carrier:
            if _is_header(pair) and pair[0] == key and pair[1] is not None:
                # No value of a propagator has other characters.
                found.append(str(pair[1], "ascii", "replace"))
        return found or None

    def keys(self, carrier: list[Any]) -> list[str]:
        return [pair[0] for pair in carrier if _is_header(pair)]

    def set(self, carrier: list[Any], key: str, value: str) -> None:
        # A header that send() refuses is kept, so that send() refuses it.
        carrier[:] = [pair for pair in carrier if not (_is_header(pair) and pair[0] == key)]
        carrier.append((key, value.encode()))


def _is_header(pair: Any) -> bool:
    return (
        isinstance(pair, (tuple, list))
        and len(pair) == 2
        and isinstance(pair[0], str)
        and (pair[1] is None or isinstance(pair[1], (bytes, bytearray, memoryview)))
    )


_HEADERS: Final = _Headers()
_NOTHING: Final = context.Context()


def _pairs(headers: Any) -> list[Any] | None:
    """Returns a copy of the caller's headers, or None if they are not headers: the call refuses them."""
    if headers is None:
        return []
    if isinstance(headers, Mapping):
        return None
    try:
        return list(headers)
    except TypeError:
        return None


def _creation_context(pairs: list[Any] | None) -> SpanContext | None:
    """Returns the context that the program itself has put into a record's headers, if any."""
    if not pairs:
        return None
    propagator = propagate.get_global_textmap()
    if propagator.fields.isdisjoint(_HEADERS.keys(pairs)):
        return None
    found = trace.get_current_span(propagator.extract(pairs, _NOTHING, _HEADERS)).get_span_context()
    return found if found.is_valid else None


def _inject(span: Span, pairs: list[Any]) -> None:
    propagate.inject(pairs, trace.set_span_in_context(span), _HEADERS)


def _with_context(
    span: Span,
    records: Iterable[ProducerRecord | Mapping[str, Any] | tuple[Any, ...]],
    topics: set[str],
) -> Iterator[Any]:
    """Yields the records with the span's context in their headers, and adds their topics to ``topics``."""
    for record in records:
        try:
            whole = ProducerRecord(**record) if isinstance(record, Mapping) else ProducerRecord(*record)
        except Exception:
            # send_all() reports it in the record's future.
            yield record
            continue
        if isinstance(whole.topic, str):
            topics.add(str.__str__(whole.topic))
        pairs = _pairs(whole.headers)
        if pairs is None:
            yield whole
            continue
        created = _creation_context(pairs)
        if created is None:
            _inject(span, pairs)
        else:
            span.add_link(created)
        yield whole._replace(headers=_OfBulk(pairs))


# Ending spans


def _record_followed(producer: KafkaProducer, span: Span, future: RecordFuture) -> RecordFuture:
    """Ends the span with the future's outcome; returns the future."""
    if span.is_recording():
        client = producer._runtime.client
        partition = future.partition
        placed = partition is not None and _placed(span, client, future.topic, partition)
        # The client and not the producer: a callback that holds the producer would keep it open.
        future.add_both(_end_of_record, span, client, placed)
    return future


def _rows_sent(
    wrapper: _Wrapper, producer: KafkaProducer, topic: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> BulkFuture:
    """Implements ``send_many`` and ``send_arrow``, whose rows are sent unchanged, without a context."""
    future: BulkFuture
    tracing = _tracing_of(producer)
    if tracing is None:
        future = wrapper.original(producer, topic, *args, **kwargs)
        return future
    span = tracing.start(producer, topic, kwargs.get("partition"), SpanKind.CLIENT)
    try:
        future = wrapper.original(producer, topic, *args, **kwargs)
    except BaseException as error:
        span.set_attribute(MESSAGE_COUNT, getattr(error, "accepted", None) or 0)
        _end(span, error)
        raise
    if span.is_recording():
        span.set_attribute(MESSAGE_COUNT, len(future))
        future.add_both(_end_of_rows, span)
    return future


def _placed(span: Span, client: "NetworkClient", topic: str, partition: int) -> bool:
    """Sets the attributes that the record's partition determines: the server is the partition's leader.

    Returns False if the leader is not known: without metadata yet, or during an election.
    """
    view = client.view
    leader = view.leader_for_partition(topic, partition)
    # In one call: each call takes a lock.
    found: dict[str, str | int] = {PARTITION: str(partition)}
    if view.cluster_id is not None:
        found[CLUSTER_ID] = view.cluster_id
    if leader is not None:
        found[SERVER_ADDRESS] = leader.host
        found[SERVER_PORT] = leader.port
    span.set_attributes(conventions.CHOSEN.rename(found))
    return leader is not None


def _end_of_record(
    span: Span, client: "NetworkClient", placed: bool, outcome: RecordMetadata | BaseException
) -> None:
    if isinstance(outcome, BaseException):
        _end(span, outcome)
        return
    if not placed:
        _placed(span, client, outcome.topic, outcome.partition)
    # -1: without acknowledgements there is no offset.
    if outcome.offset >= 0:
        span.set_attributes(conventions.CHOSEN.rename({OFFSET: outcome.offset}))
    span.end()


def _end_of_rows(span: Span, outcome: object) -> None:
    _end(span, outcome if isinstance(outcome, BaseException) else None)


class _Outcomes:
    """Ends the span of ``send_all`` when every record has its outcome. Thread-safe."""

    def __init__(self, span: Span, futures: list[RecordFuture]) -> None:
        self._span = span
        self._count = self._pending = len(futures)
        self._failures = 0
        self._first: BaseException | None = None
        # Outcomes that are already known are reported on this thread, the others on the callback thread.
        self._lock = threading.Lock()
        if not futures:
            span.end()
        for future in futures:
            future.add_both(self._one)

    def _one(self, outcome: object) -> None:
        with self._lock:
            if isinstance(outcome, BaseException):
                self._failures += 1
                self._first = self._first or outcome
            self._pending -= 1
            last = self._pending == 0
        if last:
            _end(
                self._span,
                self._first,
                f"{self._failures} of {self._count} records failed, the first: ",
            )


def _end(span: Span, error: BaseException | None, before: str = "") -> None:
    """Ends a span. ``error`` None: success. ``before``: prefix of the status description."""
    if error is not None and span.is_recording():
        span.set_attribute(ERROR_TYPE, _error_type(error))
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, f"{before}{error}"))
    span.end()


def _error_type(error: BaseException) -> str:
    """Returns the name of the error's class."""
    if isinstance(error, BulkSendError):
        # The rows' own error is more specific, if all rows have the same.
        kinds = {type(each.error).__qualname__ for each in error.failures}
        if len(kinds) == 1:
            return kinds.pop()
    return type(error).__qualname__
