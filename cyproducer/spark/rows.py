"""Records one by one: ``rdd.mapPartitions(produce_partitions("topic", bootstrap_servers=...))``.

Owns: what an element of an RDD means as a record. Does not own: the producer (``sharing``). What it returns
is a function that Spark pickles and calls with each partition's iterator.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from cyproducer.buffers.delivery import RecordFuture
from cyproducer.producer import KafkaProducer
from cyproducer.spark.options import producer_config
from cyproducer.spark.sending import RowsFailedError
from cyproducer.spark.sharing import SharedConfig, shared_producer
from cyproducer.structs import RecordMetadata

WINDOW: Final = 20_000
"""Records of a partition that may be under way before the first one's outcome is passed on."""
_FIELDS: Final = ("topic", "key", "value", "headers", "partition", "timestamp")


def produce_partitions(
    topic: str | None = None, **config: Any
) -> Callable[[Iterable[Any]], Iterator[RecordMetadata]]:
    """A function for ``rdd.mapPartitions`` and ``foreachPartition``, of RDDs and DataFrames.

    It sends each element and yields its ``RecordMetadata``, in the elements' order; when it ends, all of
    them are acknowledged. An element is a value (bytes or str), a pair (key, value), or a ``Row`` or mapping
    with ``value`` and, as there is need, ``key``, ``topic``, ``headers`` (pairs), ``partition`` and
    ``timestamp`` (milliseconds, or a datetime). Strings are sent as UTF-8, unless the configuration has
    serializers, which then get the elements as they are.

    ``topic``: of all records; None: each element's own. ``config``: ``KafkaProducer``'s options, functions
    too.

    Raises: here ``KafkaConfigurationError``; in the task ``RowsFailedError`` for the first record that can't
    be written, which fails the task.
    """
    return _Produce(topic, producer_config(config))


class _Produce:
    """The function; pickled with its configuration."""

    def __init__(self, topic: str | None, config: SharedConfig) -> None:
        self._topic = topic
        self._config = config

    def __call__(self, elements: Iterable[Any]) -> Iterator[RecordMetadata]:
        sent: deque[tuple[str, RecordFuture]] = deque()
        with shared_producer(self._config) as producer:
            send = _sender(producer, self._topic)
            for element in elements:
                sent.append(send(element))
                # Settled ones go in passing; waiting begins only where very many are under way.
                if len(sent) >= WINDOW or sent[0][1].is_done:
                    yield _outcome(*sent.popleft())
            while sent:
                yield _outcome(*sent.popleft())


def _sender(producer: KafkaProducer, topic: str | None) -> Callable[[Any], tuple[str, RecordFuture]]:
    """What sends one element, and returns its topic too."""
    config = producer.config
    text_key = config.key_serializer is None
    text_value = config.value_serializer is None
    send = producer.send

    def send_element(element: Any) -> tuple[str, RecordFuture]:
        key = headers = partition = timestamp = None
        where = topic
        if isinstance(element, bytes | str | bytearray | memoryview):
            value = element
        elif hasattr(element, "asDict") or isinstance(element, dict):
            fields = element.asDict() if hasattr(element, "asDict") else element
            value = fields.get("value")
            key, headers, partition = fields.get("key"), fields.get("headers"), fields.get("partition")
            timestamp = _milliseconds(fields.get("timestamp"))
            where = topic or fields.get("topic")
            if unknown := [name for name in fields if name not in _FIELDS]:
                raise TypeError(
                    f"an element has the field {unknown[0]!r}: a record's fields are {', '.join(_FIELDS)}"
                )
        elif isinstance(element, tuple | list) and len(element) == 2:
            key, value = element
        else:
            raise TypeError(
                f"an element is {type(element).__name__}: must be bytes, str, a pair (key, value), or a Row "
                "or dict with 'value'"
            )
        if where is None:
            raise TypeError("no topic: give one to produce_partitions(), or a field 'topic' to each element")
        if text_value and isinstance(value, str):
            value = value.encode()
        if text_key and isinstance(key, str):
            key = key.encode()
        if headers is not None:
            headers = [
                (name, content.encode() if isinstance(content, str) else content) for name, content in headers
            ]
        return where, send(where, value, key, headers, partition, timestamp)

    return send_element


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
