"""Records from rows: ``rdd.mapPartitions(produce_partitions("topic", bootstrap_servers=...))``.

Owns: what an element of an RDD means as a record. Does not own: the producer (``sharing``). What it returns
is a function that Spark pickles and calls with each partition's iterator.

Elements come one by one and are taken some hundreds at a time. Where these are alike and plain, as a
DataFrame's rows of key and value are, one call sends all of them; else each is sent by itself.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, cast

from cyproducer.buffers.bulk import BulkFuture
from cyproducer.buffers.delivery import RecordFuture
from cyproducer.errors import BulkSendError, KafkaError, RecordTooLargeError
from cyproducer.producer import KafkaProducer
from cyproducer.records.elements import plain_columns
from cyproducer.spark.options import producer_config
from cyproducer.spark.sending import RowsFailedError
from cyproducer.spark.sharing import SharedConfig, await_outcomes, shared_producer
from cyproducer.structs import FailedRows, RecordMetadata

FIRST: Final = 16
"""Elements that are taken at a time, where it isn't known yet how large they are."""
CHUNK: Final = 500
"""Elements that are taken at a time, at most."""
CHUNK_BYTES: Final = 1 << 20
"""Size of what is taken at a time, as far as those before tell how large elements are."""
WINDOW: Final = 10_000
"""Records of a partition that may be under way before outcomes are passed on."""
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
    serializers, which then get the elements as they are, of any other type too. Where there are none, values,
    pairs, and rows of ``key`` and ``value`` that are alike are sent up to 500 or 1 MiB at a time, with one
    timestamp.

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
        sent: deque[_Sent] = deque()
        under_way = 0
        rest = iter(elements)
        with shared_producer(self._config) as producer:
            senders = _Senders(producer, self._topic)
            while chunk := list(islice(rest, senders.next_count)):
                sent.append(senders.send(chunk))
                under_way += len(chunk)
                # What is on its way holds nothing of them, and they are freed while they are in the caches.
                del chunk
                while under_way > WINDOW:
                    oldest = sent.popleft()
                    under_way -= oldest.count
                    yield from oldest.outcomes()
            await_outcomes(producer)
            while sent:
                yield from sent.popleft().outcomes()


class _Together:
    """A chunk's records on their way, that one call sent."""

    def __init__(self, future: BulkFuture, topic: str, sizes: bytes, timestamp_ms: int) -> None:
        self.count = len(future)
        self._future = future
        self._topic = topic
        self._sizes = sizes
        self._timestamp_ms = timestamp_ms

    def outcomes(self) -> Iterable[RecordMetadata]:
        """Of each, in their order; waits for it. Raises ``RowsFailedError`` at the first that failed."""
        try:
            self._future.get()
        except BulkSendError as error:
            return self._until_failed(min(error.failures, key=lambda failed: failed.rows[0]))
        return self._each()

    def _each(self) -> list[RecordMetadata]:
        # None where one failed, and nobody goes that far.
        return cast("list[RecordMetadata]", self._future._each(self._sizes, self._timestamp_ms))

    def _until_failed(self, first: FailedRows) -> Iterator[RecordMetadata]:
        yield from self._each()[: first.rows[0]]
        raise RowsFailedError(self._topic, first.partition, first.error) from first.error


class _OneByOne:
    """A chunk's records on their way, each sent by itself."""

    def __init__(self, futures: list[RecordFuture]) -> None:
        self.count = len(futures)
        self._futures = futures

    def outcomes(self) -> Iterator[RecordMetadata]:
        """As ``_Together`` has them."""
        for future in self._futures:
            try:
                outcome = future.get()
            except Exception as error:
                partition = getattr(error, "partition", None)
                raise RowsFailedError(future.topic, partition, error) from error
            yield outcome


_Sent = _Together | _OneByOne


class _Senders(dict[type, Callable[[Any], RecordFuture]]):
    """What sends an element, by its type: one look, where asking for each of many types costs more than the
    sending."""

    def __init__(self, producer: KafkaProducer, topic: str | None) -> None:
        super().__init__()
        self._send = producer.send
        self._send_many = producer.send_many
        self._topic = topic
        # Serializers, interceptors and a partitioner of one's own are asked about each record.
        self._single = topic is None or producer._extension is not None
        self._text_key = producer.config.key_serializer is None
        self._text_value = producer.config.value_serializer is None
        self.next_count = FIRST

    def send(self, chunk: list[Any]) -> _Sent:
        together = None if self._single else self._together(chunk)
        if together is not None:
            return together
        # No more of them at a time than need be: nothing is won.
        self.next_count = FIRST
        return _OneByOne([self[type(element)](element) for element in chunk])

    def _together(self, chunk: list[Any]) -> _Together | None:
        """None: not one was sent. One by one, those before a wrong one are, and it is told which it is."""
        topic = cast("str", self._topic)
        now_ms = int(time.time() * 1000)
        try:
            columns = plain_columns(chunk)
            if columns is None:
                return None
            values, keys, sizes, size = columns
            future = self._send_many(topic, values, keys, timestamp_ms=now_ms)
        except (ValueError, RecordTooLargeError):
            return None
        except KafkaError as error:
            raise RowsFailedError(topic, None, error) from error
        self.next_count = max(1, min(CHUNK, 2 * len(chunk), CHUNK_BYTES * len(chunk) // max(1, size)))
        return _Together(future, topic, sizes, now_ms)

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
        if fields is None:
            return self._sequence(element)
        return self._mapping(dict(zip(fields, element, strict=False)))

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
