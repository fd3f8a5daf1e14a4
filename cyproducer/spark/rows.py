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
"""Records of a partition that may be under way before the first one's outcome is passed on."""
_VALUES: Final = (bytes, str, bytearray, memoryview)
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
        sent: deque[tuple[str, RecordFuture]] = deque()
        with shared_producer(self._config) as producer:
            send = _Sender(producer, self._topic).send
            for element in elements:
                sent.append(send(element))
                # Settled ones go in passing; waiting begins only where very many are under way.
                if len(sent) >= WINDOW or sent[0][1].is_done:
                    yield _outcome(*sent.popleft())
            await_outcomes(producer)
            while sent:
                yield _outcome(*sent.popleft())


class _Sender:
    """What sends one element, and returns its topic too."""

    def __init__(self, producer: KafkaProducer, topic: str | None) -> None:
        self._send = producer.send
        self._topic = topic
        self._text_key = producer.config.key_serializer is None
        self._text_value = producer.config.value_serializer is None
        # Where a Row has them: all rows of a partition share the list of their fields.
        self._fields: object = None
        self._value_at = self._key_at = -1

    def send(self, element: Any) -> tuple[str, RecordFuture]:
        if isinstance(element, _VALUES):
            return self._record(self._topic, element)
        if (fields := getattr(element, "__fields__", None)) is not None:
            if fields is not self._fields:
                self._learn(fields)
            if self._value_at < 0:
                return self._mapping(element.asDict())
            key = element[self._key_at] if self._key_at >= 0 else None
            return self._record(self._topic, element[self._value_at], key)
        if isinstance(element, dict):
            return self._mapping(element)
        if isinstance(element, tuple | list) and len(element) == 2:
            return self._record(self._topic, element[1], element[0])
        if not self._text_value:
            return self._record(self._topic, element)
        raise TypeError(
            f"an element is {type(element).__name__}: must be bytes, str, a pair (key, value), or a Row or "
            "dict with 'value'"
        )

    def _learn(self, fields: list[str]) -> None:
        """Where value and key are, if there is nothing else."""
        plain = self._topic is not None and "value" in fields and set(fields) <= {"key", "value"}
        self._value_at = fields.index("value") if plain else -1
        self._key_at = fields.index("key") if plain and "key" in fields else -1
        self._fields = fields

    def _mapping(self, given: dict[str, Any]) -> tuple[str, RecordFuture]:
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

    def _record(self, topic: str | None, value: Any, key: Any = None, *rest: Any) -> tuple[str, RecordFuture]:
        if topic is None:
            raise TypeError("no topic: give one to produce_partitions(), or a field 'topic' to each element")
        if self._text_value and isinstance(value, str):
            value = value.encode()
        if self._text_key and isinstance(key, str):
            key = key.encode()
        try:
            return topic, self._send(topic, value, key, *rest)
        except KafkaError as error:
            raise RowsFailedError(topic, None, error) from error


def _milliseconds(value: Any) -> int | None:
    if value is None or isinstance(value, int):
        return value
    milliseconds: int = round(value.timestamp() * 1000)
    return milliseconds


def _outcome(topic: str, future: RecordFuture) -> RecordMetadata:
    try:
        return future.get()
    except Exception as error:
        raise RowsFailedError(topic, getattr(error, "partition", None), error) from error
