"""Produces the elements of an RDD: ``rdd.mapPartitions(produce_partitions("topic", bootstrap_servers=...))``.

Owns the conversion of an RDD's element to a record, and the checks of how functions for partitions are used.
Does not own the producer (``sharing``). ``produce_partitions`` returns a function that Spark pickles and
calls with each partition's iterator.

If consecutive elements are alike and plain, such as a DataFrame's rows of key and value, one call sends up to
a few hundred of them. Other elements are sent one by one.
"""

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import Any, Final, NamedTuple, cast

from cyproducer.base.clock import unix_ms
from cyproducer.config import hide
from cyproducer.errors import BufferExhaustedError, BulkSendError, KafkaError, RecordTooLargeError
from cyproducer.futures.bulk_future import BulkFuture
from cyproducer.futures.delivery import RecordFuture
from cyproducer.producer import KafkaProducer
from cyproducer.spark.elements import PlainElements
from cyproducer.spark.options import FORMAT, is_connect, producer_config
from cyproducer.spark.sending import RowsFailedError
from cyproducer.spark.sharing import SharedConfig, await_outcomes, shared_producer
from cyproducer.structs import RecordMetadata

log: Final = logging.getLogger("cyproducer.spark")

CHUNK: Final = 500
CHUNK_BYTES: Final = 1 << 20
CHUNK_NS: Final = 20_000_000
"""Limits of one ``send_many()`` call: elements, bytes, and nanoseconds of waiting for elements."""
WINDOW: Final = 10_000
"""Maximum number of unacknowledged records of a partition before the oldest outcomes are awaited and
yielded."""
_REFUSED: Final = (ValueError, RecordTooLargeError, BufferExhaustedError)
"""What ``send_many()`` raises for a row that it can't send, either at all or together with the others."""
_VALUES: Final = (bytes, str, bytearray, memoryview)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_FIELDS: Final = ("topic", "key", "value", "headers", "partition", "timestamp")


def produce_partitions(
    topic: str | None = None, *, results: bool = True, **config: Any
) -> Callable[[Iterator[Any]], Iterator[RecordMetadata]]:
    """Returns a function for ``rdd.mapPartitions`` and ``foreachPartition``, of RDDs and DataFrames.

    The function takes an iterator of elements, sends each, and yields its ``RecordMetadata``, in the order of
    the elements. When it ends, all records are acknowledged. An element is a value (bytes or str), a pair
    (key, value), or a ``Row`` or mapping with ``value`` (None: a tombstone) and optionally ``key``,
    ``topic``, ``headers`` (pairs), ``partition`` and ``timestamp`` (milliseconds, or a datetime; without a
    time zone it is local time, as in Spark's rows). Strings are sent as UTF-8, unless the configuration has
    serializers; these get the elements unchanged, and accept any type. Without serializers, consecutive
    values, pairs or rows of ``key`` and ``value`` that are alike are sent together, up to 500 elements, 1 MiB
    or 20 ms, with one timestamp. If the next element is late, those already taken wait for it.

    ``topic``: the topic of all records; None: each element has its own. ``results`` True: elements are sent
    while Spark consumes the results. Under Spark Connect they are all sent in the call, and the results of a
    partition are then held in memory. ``results`` False: all elements are sent in the call, which returns an
    empty iterator. This saves a third of the CPU for elements that are sent together. ``config``:
    ``KafkaProducer``'s options, including functions.

    Raises: ``KafkaConfigurationError`` in this call. In the task: ``TypeError`` if the function is called
    with a single row and not an iterator, for example by ``foreach`` or ``writeStream.foreach``, or for an
    element that is not a record; ``RowsFailedError`` for the first record that can't be written. These fail
    the task. If the caller closes the generator early, ``close()`` raises the error of the records not yet
    yielded.
    """
    config = hide(config)
    return _Produce(topic, producer_config(config, columns=False), results)


class _Produce:
    """The function that ``produce_partitions`` returns. Pickled with its configuration."""

    def __init__(self, topic: str | None, config: SharedConfig, results: bool) -> None:
        self._topic = topic
        self._config = config
        self._results = results
        self._lazy = results

    def __getstate__(self) -> dict[str, Any]:
        # DataFrame.foreachPartition() of Spark Connect drops what a function returns.
        return {**self.__dict__, "_lazy": self._results and not is_connect()}

    def __call__(self, elements: Iterator[Any]) -> Iterator[RecordMetadata]:
        check_partition(elements, "produce_partitions()", "mapPartitions() and foreachPartition()")
        results = self._write(elements)
        return to_be_consumed(results, "produce_partitions()") if self._lazy else iter(list(results))

    def _write(self, elements: Iterator[Any]) -> Iterator[RecordMetadata]:
        sent: deque[tuple[int, _Sent]] = deque()
        under_way = 0
        with shared_producer(self._config) as producer:
            try:
                for each in _Senders(producer, self._topic).send_all(elements):
                    sent.append(each)
                    under_way += each[0]
                    while sent and (under_way > WINDOW or sent[0][1].is_done):
                        count, oldest = sent[0]
                        yield from _outcomes(oldest, self._results)
                        sent.popleft()
                        under_way -= count
                await_outcomes(producer)
                while sent:
                    yield from _outcomes(sent[0][1], self._results)
                    sent.popleft()
            except GeneratorExit:
                # The caller closed the generator early. Records already sent were accepted: await them too.
                await_outcomes(producer)
                for _, other in sent:
                    deque(_outcomes(other, False), 0)
                raise


def check_partition(given: object, function: str, callers: str) -> None:
    """Checks the argument of a function for partitions.

    Raises:
        TypeError: the argument is not an iterator: ``foreach()`` calls a function with one row at a time.
    """
    # Not any iterable: a row, a pair and a string are iterable too.
    if not isinstance(given, Iterator):
        raise TypeError(
            f"{function} is called with {type(given).__name__}, and takes an iterator of a partition's rows, "
            f"as {callers} give it. foreach() and map() call a function with each row: use "
            f"foreachPartition(), and for a stream format({FORMAT!r}), foreachBatch() with foreach_batch(), "
            "or foreach() with foreach_writer(). Of a partition that is a list, give iter(list)"
        )


def to_be_consumed(results: Iterator[Any], function: str) -> Iterator[Any]:
    """Returns an iterator of the same results. It logs an error if it is dropped before its first result is
    taken, because then nothing was written."""
    passing = _passing(results, function)
    # A generator's code, including the code that logs, runs only after the generator has started.
    next(passing)
    return passing


def _passing(results: Iterator[Any], function: str) -> Generator[Any, None, None]:
    try:
        yield None
    except GeneratorExit:
        log.error("%s: nothing was written, as nothing has consumed the results", function)
        raise
    yield from results


class _Together(NamedTuple):
    """Unacknowledged records that one ``send_many()`` call sent. Does not hold their keys and values."""

    future: BulkFuture
    topic: str
    sizes: bytes
    timestamp_ms: int

    def outcomes(self) -> list[RecordMetadata]:
        # The list has None for records that failed, but callers stop before those.
        return cast("list[RecordMetadata]", self.future._each(self.sizes, self.timestamp_ms))

    @property
    def is_done(self) -> bool:
        return self.future.is_done


_Sent = _Together | RecordFuture


def _outcomes(sent: _Sent, results: bool) -> Iterable[RecordMetadata]:
    """Waits for the records and returns their metadata, in order, or nothing if no results are wanted. Raises
    ``RowsFailedError`` at the first record that failed."""
    try:
        if not isinstance(sent, _Together):
            metadata = sent.get()
            return (metadata,) if results else ()
        sent.future.get()
    except BulkSendError as error:
        return _until_failed(cast("_Together", sent), error, results)
    except Exception as error:
        partition = sent.partition if isinstance(sent, RecordFuture) else None
        raise RowsFailedError(sent.topic, partition, error) from error
    return sent.outcomes() if results else ()


def _until_failed(sent: _Together, error: BulkSendError, results: bool) -> Iterator[RecordMetadata]:
    first = error.failures[0]
    if results:
        yield from sent.outcomes()[: first.rows[0]]
    raise RowsFailedError(sent.topic, first.partition, first.error) from first.error


class _Senders(dict[type, Callable[[Any], RecordFuture]]):
    """Maps an element's type to the function that sends it. This takes one dict lookup: a chain of
    isinstance() tests would cost more than sending the element."""

    def __init__(self, producer: KafkaProducer, topic: str | None) -> None:
        super().__init__()
        self._send = producer.send
        self._send_many = producer.send_many
        self._topic = topic
        # Serializers, interceptors and custom partitioners are called per record.
        self._single = producer._extensions is not None
        self._text_key = producer.config.key_serializer is None
        self._text_value = producer.config.value_serializer is None

    def send_all(self, elements: Iterable[Any]) -> Iterator[tuple[int, _Sent]]:
        """Sends all elements. Yields the number of records of each call and their future."""
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
        now_ms = unix_ms()
        try:
            future = self._send_many(topic, values, keys, timestamp_ms=now_ms)
        except (KafkaError, ValueError) as error:
            if not isinstance(error, _REFUSED) or getattr(error, "accepted", None) is not None:
                raise RowsFailedError(topic, None, error) from error
        else:
            yield len(values), _Together(future, topic, sizes, now_ms)
            return
        # No record was sent. Sending them one by one sends those before the bad record, and the error names
        # that record.
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
        """Sends a PySpark Row without calling its methods: even ``row[0]`` is a slow Python function."""
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
            # Not treated as None: "value" is easily forgotten, and a tombstone deletes data.
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
            raise TypeError("no topic: give one to the function, or a field 'topic' in each element")
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
    # Items of a mapping or a string may look like pairs: two-letter keys, for example.
    if not isinstance(headers, list | tuple) or not all(
        isinstance(each, list | tuple) and len(each) == 2 for each in headers
    ):
        raise TypeError(f"headers={headers!r}: must be a list of pairs (name, content)")
    return [(name, content.encode() if isinstance(content, str) else content) for name, content in headers]


def _milliseconds(value: Any) -> int | None:
    if value is None or isinstance(value, int):
        return value
    # Integer arithmetic: seconds as a float may be a millisecond off.
    milliseconds: int = (value.astimezone(UTC) - _EPOCH) // _MILLISECOND
    return milliseconds
