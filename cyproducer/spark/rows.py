"""Records from rows: ``rdd.mapPartitions(produce_partitions("topic", bootstrap_servers=...))``.

Owns: what an element of an RDD means as a record. Does not own: the producer (``sharing``). What it returns
is a function that Spark pickles and calls with each partition's iterator.

Where elements that follow each other are alike and plain, as a DataFrame's rows of key and value are, one
call sends some hundreds of them; else each is sent by itself.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import Any, Final, NamedTuple, cast

from cyproducer.errors import BufferExhaustedError, BulkSendError, KafkaError, RecordTooLargeError
from cyproducer.futures.bulk_future import BulkFuture
from cyproducer.futures.delivery import RecordFuture
from cyproducer.producer import KafkaProducer
from cyproducer.spark.elements import PlainElements
from cyproducer.spark.options import producer_config
from cyproducer.spark.sending import RowsFailedError
from cyproducer.spark.sharing import SharedConfig, await_outcomes, shared_producer
from cyproducer.structs import RecordMetadata

CHUNK: Final = 500
CHUNK_BYTES: Final = 1 << 20
CHUNK_NS: Final = 20_000_000
"""What is taken at a time, and for how long."""
WINDOW: Final = 10_000
"""Records of a partition that may be under way before outcomes are passed on."""
_REFUSED: Final = (ValueError, RecordTooLargeError, BufferExhaustedError)
"""What ``send_many()`` raises for a row that it can't send, or not beside the others."""
_VALUES: Final = (bytes, str, bytearray, memoryview)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_FIELDS: Final = ("topic", "key", "value", "headers", "partition", "timestamp")


def produce_partitions(
    topic: str | None = None, **config: Any
) -> Callable[[Iterable[Any]], Iterator[RecordMetadata]]:
    """A function for ``rdd.mapPartitions`` and ``foreachPartition``, of RDDs and DataFrames.

    It sends each element and yields its ``RecordMetadata``, in the elements' order; when it ends, all of
    them are acknowledged. An element is a value (bytes or str), a pair (key, value), or a ``Row`` or mapping
    with ``value`` (None: a tombstone) and, as there is need, ``key``, ``topic``, ``headers`` (pairs),
    ``partition`` and ``timestamp`` (milliseconds, or a datetime: without a zone it is local time, as Spark
    makes them). Strings are sent as UTF-8, unless the configuration has serializers, which then get the
    elements as they are, of any other type too. Where there are none, values, pairs, and rows of ``key`` and
    ``value`` that are alike and follow each other are sent together, up to 500, 1 MiB or 20 ms of them, with
    one timestamp; those that wait for an element that is late are sent when it comes.

    ``topic``: of all records; None: each element's own. ``config``: ``KafkaProducer``'s options, functions
    too.

    Raises: here ``KafkaConfigurationError``; in the task ``RowsFailedError`` for the first record that can't
    be written, and ``TypeError`` for an element that is no record, both of which fail the task. Whoever takes
    a few of the records' metadata and closes the generator gets the error of the others there.
    """
    return _Produce(topic, producer_config(config, columns=False))


class _Produce:
    """The function; pickled with its configuration."""

    def __init__(self, topic: str | None, config: SharedConfig) -> None:
        self._topic = topic
        self._config = config

    def __call__(self, elements: Iterable[Any]) -> Iterator[RecordMetadata]:
        sent: deque[tuple[int, _Sent]] = deque()
        under_way = 0
        with shared_producer(self._config) as producer:
            try:
                for each in _Senders(producer, self._topic).send_all(elements):
                    sent.append(each)
                    under_way += each[0]
                    while sent and (under_way > WINDOW or sent[0][1].is_done):
                        count, oldest = sent[0]
                        yield from _outcomes(oldest)
                        sent.popleft()
                        under_way -= count
                await_outcomes(producer)
                while sent:
                    yield from _outcomes(sent[0][1])
                    sent.popleft()
            except GeneratorExit:
                # Whoever takes a few leaves what was sent for the others: it was accepted.
                await_outcomes(producer)
                for _, other in sent:
                    deque(_outcomes(other), 0)
                raise


class _Together(NamedTuple):
    """Records on their way, that one call sent. Holds nothing of them."""

    future: BulkFuture
    topic: str
    sizes: bytes
    timestamp_ms: int

    def outcomes(self) -> list[RecordMetadata]:
        # None where one failed, and nobody goes that far.
        return cast("list[RecordMetadata]", self.future._each(self.sizes, self.timestamp_ms))

    @property
    def is_done(self) -> bool:
        return self.future.is_done


_Sent = _Together | RecordFuture


def _outcomes(sent: _Sent) -> Iterable[RecordMetadata]:
    """Of each, in their order; waits for it. Raises ``RowsFailedError`` at the first that failed."""
    try:
        if not isinstance(sent, _Together):
            return (sent.get(),)
        sent.future.get()
    except BulkSendError as error:
        return _until_failed(cast("_Together", sent), error)
    except Exception as error:
        partition = sent.partition if isinstance(sent, RecordFuture) else None
        raise RowsFailedError(sent.topic, partition, error) from error
    return sent.outcomes()


def _until_failed(sent: _Together, error: BulkSendError) -> Iterator[RecordMetadata]:
    first = error.failures[0]
    yield from sent.outcomes()[: first.rows[0]]
    raise RowsFailedError(sent.topic, first.partition, first.error) from first.error


class _Senders(dict[type, Callable[[Any], RecordFuture]]):
    """What sends an element, by its type: one look, where asking for each of many types costs more than the
    sending."""

    def __init__(self, producer: KafkaProducer, topic: str | None) -> None:
        super().__init__()
        self._send = producer.send
        self._send_many = producer.send_many
        self._topic = topic
        # Serializers, interceptors and a partitioner of one's own are asked about each record.
        self._single = producer._extension is not None
        self._text_key = producer.config.key_serializer is None
        self._text_value = producer.config.value_serializer is None

    def send_all(self, elements: Iterable[Any]) -> Iterator[tuple[int, _Sent]]:
        """How many records, and what is on its way with them."""
        if self._topic is None or self._single:
            for element in elements:
                yield 1, self[type(element)](element)
            return
        plain = PlainElements(elements, CHUNK, CHUNK_BYTES, CHUNK_NS)
        while True:
            values, keys, sizes, others = plain.take()
            if values:
                yield from self._together(self._topic, values, keys, sizes)
            elif not others:
                return
            for element in others:
                yield 1, self[type(element)](element)

    def _together(
        self, topic: str, values: list[bytes | None], keys: list[bytes | None] | None, sizes: bytes
    ) -> Iterator[tuple[int, _Sent]]:
        now_ms = int(time.time() * 1000)
        try:
            future = self._send_many(topic, values, keys, timestamp_ms=now_ms)
        except (KafkaError, ValueError) as error:
            if not isinstance(error, _REFUSED) or getattr(error, "accepted", None) is not None:
                raise RowsFailedError(topic, None, error) from error
        else:
            yield len(values), _Together(future, topic, sizes, now_ms)
            return
        # Not one was sent. One by one, those before a wrong one are, and it is told which it is.
        for value, key in zip(values, keys or repeat(None), strict=False):
            yield 1, self._record(topic, value, key)

    def __missing__(self, kind: type) -> Callable[[Any], RecordFuture]:
        found = self._of(kind)
        self[kind] = found
        return found

    def _of(self, kind: type) -> Callable[[Any], RecordFuture]:
        if issubclass(kind, _VALUES):
            return self._value
        if issubclass(kind, Mapping):
            return self._mapping
        if issubclass(kind, tuple | list):
            return self._sequence if kind in (tuple, list) else self._row
        return self._value

    def _value(self, element: Any) -> RecordFuture:
        if self._text_value and not isinstance(element, _VALUES):
            raise TypeError(
                f"an element is {type(element).__name__}: must be bytes, str, a pair (key, value), or a Row "
                "or mapping with 'value'"
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
        if len(fields) != len(element):
            raise ValueError(
                f"a Row has {len(element)} values, and {len(fields)} fields: {', '.join(fields)}"
            )
        given = dict(zip(fields, element, strict=True))
        if len(given) < len(fields):
            raise TypeError(f"a Row has a field twice: {', '.join(fields)}")
        return self._mapping(given)

    def _mapping(self, given: Mapping[str, Any]) -> RecordFuture:
        if unknown := [name for name in given if name not in _FIELDS]:
            raise TypeError(
                f"an element has the field {unknown[0]!r}: a record's fields are {', '.join(_FIELDS)}"
            )
        if "value" not in given:
            # Nothing is easier to forget, and a tombstone deletes.
            raise TypeError(
                f"an element has no field 'value', only {', '.join(given)}: None is a tombstone's value"
            )
        return self._record(
            self._topic or given.get("topic"),
            given["value"],
            given.get("key"),
            _pairs(given.get("headers")),
            given.get("partition"),
            _milliseconds(given.get("timestamp")),
        )

    def _record(self, topic: str | None, value: Any, key: Any = None, *rest: Any) -> RecordFuture:
        if topic is None:
            raise TypeError("no topic: give one to produce_partitions(), or a field 'topic' to each element")
        try:
            if self._text_value and isinstance(value, str):
                value = value.encode()
            if self._text_key and isinstance(key, str):
                key = key.encode()
            return self._send(topic, value, key, *rest)
        except (KafkaError, ValueError) as error:
            raise RowsFailedError(topic, None, error) from error


def _pairs(headers: Any) -> list[tuple[str, bytes | None]] | None:
    if headers is None:
        return None
    # A mapping's names, and a text's letters, may look like pairs.
    if not isinstance(headers, list | tuple) or not all(
        isinstance(each, list | tuple) and len(each) == 2 for each in headers
    ):
        raise TypeError(f"headers={headers!r}: must be a list of pairs (name, content)")
    return [(name, content.encode() if isinstance(content, str) else content) for name, content in headers]


def _milliseconds(value: Any) -> int | None:
    if value is None or isinstance(value, int):
        return value
    # Whole numbers all the way: a float of seconds may be a millisecond off.
    milliseconds: int = (value.astimezone(UTC) - _EPOCH) // _MILLISECOND
    return milliseconds
