"""Records one by one: ``rdd.mapPartitions(produce_partitions("topic", bootstrap_servers=...))``.

Owns: what an element of an RDD means as a record. Does not own: the producer (``sharing``). What it returns
is a function that Spark pickles and calls with each partition's iterator.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from cyproducer.buffers.delivery import RecordFuture
from cyproducer.errors import KafkaError
from cyproducer.producer import KafkaProducer
from cyproducer.spark.options import producer_config
from cyproducer.spark.sending import RowsFailedError
from cyproducer.spark.sharing import SharedConfig, await_outcomes, shared_producer
from cyproducer.structs import RecordMetadata

WINDOW: Final = 20_000
"""Records of a partition that may be under way before outcomes are passed on, half as many at a time."""
_VALUES: Final = (bytes, str, bytearray, memoryview)
_PLAIN: Final = (("value",), ("key", "value"), ("value", "key"))
_FIELDS: Final = ("topic", "key", "value", "headers", "partition", "timestamp")


def produce_partitions(
    topic: str | None = None, **config: Any
) -> Callable[[Iterable[Any]], Iterator[RecordMetadata]]:
    """A function for ``rdd.mapPartitions`` and ``foreachPartition``, of RDDs and DataFrames.

    It sends each element and yields its ``RecordMetadata``, in the elements' order; when it ends, all of
    them are acknowledged. An element is a value (bytes or str), a pair (key, value), or a ``Row`` or mapping
    with ``value`` and, as there is need, ``key``, ``topic``, ``headers`` (pairs), ``partition`` and
    ``timestamp`` (milliseconds, or a datetime). Strings are sent as UTF-8, unless the configuration has
    serializers, which then get the elements as they are, of any other type too.

    ``topic``: of all records; None: each element's own. ``config``: ``KafkaProducer``'s options, functions
    too.

    Raises: here ``KafkaConfigurationError``; in the task ``RowsFailedError`` for the first record that can't
    be written, which fails the task.
    """
    return _Produce(topic, producer_config(config, columns=False))


class _Produce:
    """The function; pickled with its configuration."""

    def __init__(self, topic: str | None, config: SharedConfig) -> None:
        self._topic = topic
        self._config = config

    def __call__(self, elements: Iterable[Any]) -> Iterator[RecordMetadata]:
        sent: deque[RecordFuture] = deque()
        with shared_producer(self._config) as producer:
            senders = _Senders(producer, self._topic)
            for element in elements:
                sent.append(senders[type(element)](element))
                if len(sent) >= WINDOW:
                    yield from _outcomes(sent, WINDOW // 2)
            await_outcomes(producer)
            yield from _outcomes(sent, len(sent))


class _Senders(dict[type, Callable[[Any], RecordFuture]]):
    """What sends an element, by its type: one look, where asking for each of many types costs more than the
    sending."""

    def __init__(self, producer: KafkaProducer, topic: str | None) -> None:
        super().__init__()
        self._send = producer.send
        self._topic = topic
        self._text_key = producer.config.key_serializer is None
        self._text_value = producer.config.value_serializer is None
        # All rows of a partition share the list of their fields.
        self._fields: object = None
        self._plain: tuple[str, ...] | None = None

    def __missing__(self, kind: type) -> Callable[[Any], RecordFuture]:
        found = self._of(kind)
        self[kind] = found
        return found

    def _of(self, kind: type) -> Callable[[Any], RecordFuture]:
        if issubclass(kind, _VALUES):
            return self._value
        if issubclass(kind, dict):
            return self._mapping
        if issubclass(kind, tuple | list):
            return self._sequence if kind in (tuple, list) else self._row
        return self._value

    def _value(self, element: Any) -> RecordFuture:
        if self._text_value and not isinstance(element, _VALUES):
            raise TypeError(
                f"an element is {type(element).__name__}: must be bytes, str, a pair (key, value), or a Row "
                "or dict with 'value'"
            )
        return self._record(self._topic, element)

    def _sequence(self, element: Any) -> RecordFuture:
        if len(element) != 2:
            return self._value(element)
        return self._record(self._topic, element[1], element[0])

    def _row(self, element: Any) -> RecordFuture:
        """Of a PySpark Row, whose methods, ``row[0]`` too, are functions in Python."""
        fields = getattr(element, "__fields__", None)
        if fields is not self._fields:
            self._fields = fields
            names = tuple(fields or ())
            self._plain = names if names in _PLAIN else None
        if self._plain is None or self._topic is None:
            return self._sequence(element) if fields is None else self._mapping(element.asDict())
        if len(self._plain) == 1:
            (value,), key = element, None
        elif self._plain[0] == "key":
            key, value = element
        else:
            value, key = element
        # As _record does, whose call would be a third of the time. Binary columns are bytearrays.
        if type(value) is not bytearray and isinstance(value, str) and self._text_value:
            value = value.encode()
        if type(key) is not bytearray and isinstance(key, str) and self._text_key:
            key = key.encode()
        try:
            return self._send(self._topic, value, key)
        except KafkaError as error:
            raise RowsFailedError(self._topic, None, error) from error

    def _mapping(self, given: dict[str, Any]) -> RecordFuture:
        if unknown := [name for name in given if name not in _FIELDS]:
            raise TypeError(
                f"an element has the field {unknown[0]!r}: a record's fields are {', '.join(_FIELDS)}"
            )
        headers = given.get("headers")
        if headers is not None:
            headers = [
                (name, content.encode() if isinstance(content, str) else content) for name, content in headers
            ]
        return self._record(
            self._topic or given.get("topic"),
            given.get("value"),
            given.get("key"),
            headers,
            given.get("partition"),
            _milliseconds(given.get("timestamp")),
        )

    def _record(self, topic: str | None, value: Any, key: Any = None, *rest: Any) -> RecordFuture:
        if topic is None:
            raise TypeError("no topic: give one to produce_partitions(), or a field 'topic' to each element")
        if self._text_value and isinstance(value, str):
            value = value.encode()
        if self._text_key and isinstance(key, str):
            key = key.encode()
        try:
            return self._send(topic, value, key, *rest)
        except KafkaError as error:
            raise RowsFailedError(topic, None, error) from error


def _milliseconds(value: Any) -> int | None:
    if value is None or isinstance(value, int):
        return value
    milliseconds: int = round(value.timestamp() * 1000)
    return milliseconds


def _outcomes(sent: deque[RecordFuture], count: int) -> Iterator[RecordMetadata]:
    """Those of the first ``count``, in their order."""
    for _ in range(count):
        future = sent.popleft()
        try:
            outcome = future.get()
        except Exception as error:
            partition = getattr(error, "partition", None)
            raise RowsFailedError(future.topic, partition, error) from error
        yield outcome
