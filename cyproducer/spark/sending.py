"""Writes the rows of one task to Kafka: takes Arrow batches, returns a summary.

Owns dividing batches by topic, waiting for outcomes, and deciding what happens to rows that can't be written.
Does not own columns (``columns``), the producer (``sharing``) or Spark's interfaces (``source``,
``mapping``). Use a writer from one thread only.

At-least-once depends on two rules: a task does not end before every row has its outcome, and the first row
that fails permanently fails the task, which Spark then runs again as a whole.
"""

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cyproducer.errors import (
    BulkSendError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from cyproducer.producer import KafkaProducer
from cyproducer.spark.batches import plain, refused_rows
from cyproducer.spark.columns import Columns
from cyproducer.spark.dead_letters import DeadLetters
from cyproducer.spark.meters import SinceThen
from cyproducer.spark.sharing import SharedConfig, await_outcomes, shared_producer
from cyproducer.spark.summary import WriteSummary, WrittenRange, merge_ranges
from cyproducer.structs import FailedRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ABOUT_ROWS: Final = (ValueError, RecordTooLargeError)
"""Errors that ``send_arrow()`` raises about single rows, before it sends any."""
_REFUSED: Final = (RecordTooLargeError, MessageSizeTooLargeError, InvalidRecordError, InvalidTimestampError)
"""Errors with which brokers refuse records because of their content. A retry would not help."""


def is_refused(error: BaseException) -> bool:
    """Whether a record was refused because of its content, and was not written: it is a dead letter."""
    return isinstance(error, _REFUSED) and error.maybe_written is False


class RowsFailedError(KafkaError):
    """Rows of a task could not be written. Attributes: ``topic`` (None: the rows have none), ``partition``
    (None: unknown) and ``cause``, which is also ``__cause__``."""

    def __init__(self, topic: str | None, partition: int | None, cause: BaseException) -> None:
        place = "" if topic is None else f"topic {topic!r}"
        place += "" if partition is None else f", partition {partition}"
        super().__init__(f"{place}: {said(cause)}" if place else said(cause))
        self.topic = topic
        self.partition = partition
        self.cause = cause

    def __reduce__(self) -> tuple[Any, ...]:
        return RowsFailedError, (self.topic, self.partition, self.cause)


def said(error: BaseException) -> str:
    """Returns an error's class name and message. The messages of Kafka's errors already contain the name."""
    name, words = type(error).__name__, str(error)
    return words if name in words else f"{name}: {words}"


class _Sent(NamedTuple):
    topic: str
    rows: pa.RecordBatch | None
    """Kept if they may become dead letters, else None."""
    size: int
    future: Any


class TaskWriter:
    """Writes batches. ``finish()`` waits for all of them."""

    def __init__(
        self, producer: KafkaProducer, columns: Columns, topic: str | None, dead_letters: DeadLetters | None
    ) -> None:
        self._producer = producer
        self._columns = columns
        self._topic = topic
        self._dead_letters = dead_letters
        self._sent: deque[_Sent] = deque()
        self._again: deque[tuple[str, pa.RecordBatch]] = deque()
        """Parts of batches that brokers refused as a whole, to be sent again."""
        self._ranges: list[WrittenRange] = []
        self._bytes = 0
        self._dead_topics: dict[str, Exception] = {}
        self._counted = SinceThen(producer)

    def write(self, batch: pa.RecordBatch) -> None:
        """Accepts a batch's rows. Blocks while the producer's buffer memory is exhausted.

        Raises:
            RowsFailedError: rows of this batch or an earlier one can't be written.
        """
        while self._sent and self._sent[0].future.is_done:
            self._settle(self._sent.popleft())
        if self._again:
            self._settle_all()
        for topic, rows in self._by_topic(plain(batch)):
            self._send(topic, rows)

    def finish(self) -> WriteSummary:
        """Waits for all rows and returns the summary. Raises the errors of ``write``, and
        ``DeadLetterError``."""
        self._settle_all()
        dead = 0
        dead_ranges: tuple[WrittenRange, ...] = ()
        if self._dead_letters is not None:
            dead, dead_ranges = self._dead_letters.finish(), self._dead_letters.ranges
        ranges = merge_ranges(self._ranges)
        # Futures complete a moment before the metrics are updated.
        self._producer.flush(self._producer.config.delivery_timeout_ms / 1000)
        retries, p99_ms = self._counted.retries_and_p99_ms()
        return WriteSummary(
            rows=sum(each.records for each in ranges),
            bytes=self._bytes,
            dead_letters=dead,
            ranges=ranges,
            retries=retries,
            p99_ms=p99_ms,
            tasks=1,
            dead_letter_ranges=dead_ranges,
        )

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yields a batch's rows by topic. The rows of a topic keep the batch's order."""
        if batch.num_rows == 0:
            return
        if self._topic is not None:
            yield self._topic, batch
            return
        column = batch.column(self._columns.topic)
        if column.null_count:
            first = pc.index(pc.is_null(column), True).as_py()
            problem = ValueError(
                f"column {self._columns.topic!r} is null in {column.null_count} of {batch.num_rows} rows of "
                f"a batch, first in row {first}: each row needs a topic"
            )
            self._refuse(None, batch.filter(pc.is_null(column)), problem)
            batch = batch.filter(pc.is_valid(column))
            column = batch.column(self._columns.topic)
        # Encoded again, because an existing dictionary may have names that no row has.
        # As bytes, because Spark casts bytes to strings without checking that they are UTF-8.
        encoded = column.cast(pa.string()).cast(pa.binary()).dictionary_encode()
        names = encoded.dictionary.to_pylist()
        rows = batch.drop_columns([self._columns.topic])
        if len(names) > 1:
            # One copy for all topics. The sort is stable, so the rows of a topic keep their order.
            rows = rows.take(pc.sort_indices(encoded.indices))
        counted = {each["values"]: each["counts"] for each in pc.value_counts(encoded.indices).to_pylist()}
        first = 0
        for number, name in enumerate(names):
            part = rows.slice(first, counted[number])
            first += counted[number]
            try:
                topic = name.decode()
            except UnicodeDecodeError as error:
                self._refuse(name.decode(errors="replace"), part, error)
            else:
                yield topic, part

    def _send(self, topic: str, rows: pa.RecordBatch) -> None:
        c = self._columns
        if (known := self._dead_topics.get(topic)) is not None:
            self._refuse(topic, rows, known)
            return
        size = self._payload(rows)
        try:
            future = self._producer.send_arrow(
                topic,
                rows,
                key=c.key,
                value=c.value,
                headers=c.headers,
                partition=c.partition,
                timestamp=c.timestamp,
            )
        except (*_ABOUT_ROWS, KafkaError) as error:
            # The producer keeps sending accepted rows. They are written twice when the task runs again.
            if getattr(error, "accepted", None) or not self._is_about_rows(topic, error):
                raise RowsFailedError(topic, None, error) from error
            self._divide(topic, rows, error)
            return
        kept = rows if self._dead_letters is not None else None
        self._sent.append(_Sent(topic, kept, size, future))

    def _is_about_rows(self, topic: str, error: Exception) -> bool:
        """Returns whether the error is about these rows only, so that they are dead letters, and other rows
        could be written. Also remembers topics that can't be written to."""
        missing = isinstance(error.__cause__, UnknownTopicOrPartitionError)
        if isinstance(error, InvalidTopicError) or (isinstance(error, KafkaTimeoutError) and missing):
            # No row of this topic can be written, and every further lookup would wait for the timeout.
            self._dead_topics[topic] = error
            return True
        return isinstance(error, (*_ABOUT_ROWS, UnknownTopicOrPartitionError))

    def _divide(self, topic: str, rows: pa.RecordBatch, error: Exception) -> None:
        """Handles a batch that failed before any row was sent: refuses the bad rows and sends the others."""
        if self._dead_letters is None or topic in self._dead_topics or rows.num_rows == 1:
            self._refuse(topic, rows, error)
            return
        # Most kinds of bad rows are found in one pass over all rows.
        if bad := refused_rows(self._producer, topic, rows, self._columns, error):
            numbers = sorted(bad)
            causes = [bad[number] for number in numbers]
            self._dead_letters.send(topic, None, rows.take(pa.array(numbers)), self._columns, causes)
            if left := sorted(set(range(rows.num_rows)) - bad.keys()):
                self._send(topic, rows.take(pa.array(left)))
            return
        half = rows.num_rows // 2
        self._send(topic, rows.slice(0, half))
        self._send(topic, rows.slice(half))

    def _settle_all(self) -> None:
        while self._sent or self._again:
            if self._sent:
                await_outcomes(self._producer)
                while self._sent:
                    self._settle(self._sent.popleft())
            # One part at a time: sent together, they would be in one batch again.
            if self._again:
                self._send(*self._again.popleft())

    def _settle(self, sent: _Sent) -> None:
        try:
            metadata = sent.future.get()
        except BulkSendError as error:
            metadata = error.metadata
            for failed in error.failures:
                self._failed(sent, failed)
        for r in metadata.ranges:
            last = r.offset + r.records - 1 if r.offset >= 0 else -1
            self._ranges.append(WrittenRange(sent.topic, r.partition, r.offset, last, r.records))
        if len(self._ranges) > 10_000:
            self._ranges = list(merge_ranges(self._ranges))
        self._bytes += sent.size

    def _failed(self, sent: _Sent, failed: FailedRows) -> None:
        """Handles rows that failed. Only rows that Kafka refuses because of their content become dead
        letters. The task fails, and Spark runs it again, if rows timed out, if this client is not authorized
        to write them, or if they may have been written."""
        cause = failed.error
        if sent.rows is None or not is_refused(cause):
            raise RowsFailedError(sent.topic, failed.partition, cause) from cause
        rows = sent.rows.take(pa.array(failed.rows))
        self._bytes -= self._payload(rows)
        if rows.num_rows == 1:
            self._refuse(sent.topic, rows, cause, failed.partition)
            return
        # A broker refuses the whole batch because of one bad record: try its halves.
        half = rows.num_rows // 2
        self._again.extendleft((sent.topic, part) for part in (rows.slice(half), rows.slice(0, half)))

    def _payload(self, rows: pa.RecordBatch) -> int:
        """Returns the number of bytes of keys and values."""
        return sum(
            pc.sum(pc.binary_length(rows.column(name))).as_py() or 0
            for name in (self._columns.key, self._columns.value)
            if name is not None
        )

    def _refuse(
        self, topic: str | None, rows: pa.RecordBatch, cause: BaseException, partition: int | None = None
    ) -> None:
        if self._dead_letters is None:
            raise RowsFailedError(topic, partition, cause) from cause
        self._dead_letters.send(topic, partition, rows, self._columns, repeat(cause, rows.num_rows))


def write_all(writer: TaskWriter, batches: Iterable[pa.RecordBatch]) -> WriteSummary:
    """Writes all batches and waits for their outcomes."""
    for batch in batches:
        writer.write(batch)
    return writer.finish()


class Target(NamedTuple):
    """What all tasks of a write have in common. Pickled."""

    config: SharedConfig
    columns: Columns
    topic: str | None
    """The topic of all rows; None: each row names its own."""
    dead_letter_topic: str | None

    def writer(self, producer: KafkaProducer) -> TaskWriter:
        """Returns the writer of a task. Raises ``DeadLetterError``, as ``DeadLetters``."""
        name = self.dead_letter_topic
        dead = None if name is None else DeadLetters(producer, name)
        return TaskWriter(producer, self.columns, self.topic, dead)


def write_task(target: Target, batches: Iterable[pa.RecordBatch]) -> WriteSummary:
    """Writes a task's batches with the process's shared producer."""
    with shared_producer(target.config) as producer:
        return write_all(target.writer(producer), batches)


def results_of(df: "DataFrame", work: Callable[[Iterable[pa.RecordBatch]], object]) -> list[Any]:
    """Runs ``work`` with the batches of each task, and returns its results."""
    collected = df.mapInArrow(_Pickled(work), "result binary").collect()
    # Safe to unpickle: this call's own tasks pickled them.
    return [pickle.loads(row.result) for row in collected]


class _Pickled:
    """Calls a function with a task's batches and returns one row: the pickled result."""

    def __init__(self, work: Callable[[Iterable[pa.RecordBatch]], object]) -> None:
        self._work = work

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([pickle.dumps(self._work(batches))], pa.binary())], names=["result"])
