"""Writes rows one by one as they arrive: ``df.writeStream.foreach(foreach_writer("topic", ...))``.

Owns the object that Spark calls for each partition and epoch, and which of its rows become dead letters.
Does not own the conversion of a row to a record (``rows``) or the records of the dead letter topic
(``dead_letters``). In Spark's real-time mode, an epoch takes minutes, and Spark passes rows while it lasts.
So a row is sent at once, and outcomes are looked at while further rows arrive.
"""

from collections import deque
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

import pyarrow as pa

from cyproducer.config import ProducerConfig, hide, option_name
from cyproducer.errors import (
    InvalidTopicError,
    KafkaError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from cyproducer.futures.delivery import RecordFuture
from cyproducer.producer import KafkaProducer
from cyproducer.spark.columns import Columns
from cyproducer.spark.dead_letters import DeadLetters
from cyproducer.spark.options import check_at_least_once, producer_config
from cyproducer.spark.rows import WINDOW, _pairs, _Senders
from cyproducer.spark.sending import RowsFailedError, is_refused
from cyproducer.spark.sharing import SharedConfig, await_outcomes, shared_producer

_ABOUT_ROW: Final = (ValueError, RecordTooLargeError, InvalidTopicError, UnknownTopicOrPartitionError)
"""Errors that ``send()`` raises about one row."""
_COLUMNS: Final = Columns(value="value", key="key", headers="headers")
_HEADERS: Final = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))


def foreach_writer(
    topic: str | None = None, *, dead_letter_topic: str | None = None, **config: Any
) -> "ForeachWriter":
    """Returns a writer for ``df.writeStream.foreach(...)``, in append, update and complete mode.

    This is the sink for Spark's real-time mode, which accepts no Python data source and no ``foreachBatch``.
    Each row is sent as soon as Spark passes it, which Spark does for many rows at once (docs/spark.md has the
    times). An epoch of a partition ends when all of its rows are acknowledged. Delivery is at least once.

    ``topic``: the topic of all rows; None: the column ``topic`` has each row's topic. A row has ``value``
    (None: a tombstone) and optionally ``key``, ``topic``, ``headers`` (pairs), ``partition`` and
    ``timestamp``. ``dead_letter_topic``: for rows that can't be written; without it, such rows fail the task.
    ``config``: ``KafkaProducer``'s options, with the sink's defaults, but ``linger_ms`` is 0 unless it is
    given here.

    Raises: ``KafkaConfigurationError`` in this call. In the task: ``TypeError`` for a row with a column that
    is not a record's; ``RowsFailedError`` for a row that can't be written; ``DeadLetterError``.
    """
    config = hide(config)
    if not any((option_name(name) or name) == "linger_ms" for name in config):
        config["linger_ms"] = 0
    shared = producer_config(config, columns=True)
    check_at_least_once(ProducerConfig(**shared.config))
    return ForeachWriter(topic, dead_letter_topic, shared)


class _Sent(NamedTuple):
    row: Any
    """Kept if it may become a dead letter, else None."""
    future: RecordFuture


class ForeachWriter:
    """The object that ``foreach_writer`` returns. Spark pickles it for each task, and calls ``open()``,
    ``process()`` with each row, and ``close()``, from one thread."""

    def __init__(self, topic: str | None, dead_letter_topic: str | None, config: SharedConfig) -> None:
        self._topic = topic
        self._dead_letter_topic = dead_letter_topic
        self._config = config

    def open(self, partition_id: int, epoch_id: int) -> bool:
        """Begins an epoch of a partition.

        Raises:
            KafkaError: no broker answers.
            DeadLetterError: the dead letter topic does not exist.
        """
        with ExitStack() as stack:
            self._producer: KafkaProducer = stack.enter_context(shared_producer(self._config))
            self._senders = _Senders(self._producer, self._topic)
            self._dead_letters = (
                None
                if self._dead_letter_topic is None
                else DeadLetters(self._producer, self._dead_letter_topic)
            )
            self._sent: deque[_Sent] = deque()
            self._stack = stack.pop_all()
        return True

    def process(self, row: Any) -> None:
        """Sends a row. Blocks while the producer's buffer memory is exhausted.

        Raises:
            RowsFailedError: this row or an earlier one can't be written.
            TypeError: the row has a column that is not a record's, or no ``value``.
        """
        while self._sent and (len(self._sent) >= WINDOW or self._sent[0].future.is_done):
            self._settle(self._sent.popleft())
        try:
            future = self._senders[type(row)](row)
        except RowsFailedError as error:
            if self._dead_letters is None or not _is_about_row(error.cause):
                raise
            self._to_dead_letters(row, None, error.cause)
        except TypeError as error:
            if self._dead_letters is None or not self._has_null_topic(row):
                raise
            self._to_dead_letters(row, None, error)
        else:
            self._sent.append(_Sent(None if self._dead_letters is None else row, future))

    def close(self, error: Exception | None) -> None:
        """Ends the epoch: waits until every row and dead letter is acknowledged. After an error, it waits for
        nothing: Spark runs the task again.

        Raises:
            RowsFailedError: a row can't be written.
            DeadLetterError: a dead letter can't be written.
        """
        if error is not None:
            # The next task gets a new producer.
            self._stack.__exit__(type(error), error, error.__traceback__)
            return
        with self._stack:
            await_outcomes(self._producer)
            while self._sent:
                self._settle(self._sent.popleft())
            if self._dead_letters is not None:
                self._dead_letters.finish()

    def _has_null_topic(self, row: Any) -> bool:
        given = dict(zip(row.__fields__, row, strict=True))
        return self._topic is None and "value" in given and given.get("topic", "") is None

    def _settle(self, sent: _Sent) -> None:
        try:
            sent.future.get()
        except (KafkaError, ValueError) as error:
            topic, partition = sent.future.topic, sent.future.partition
            # As records without metadata wait in the producer, their future has the topic's error.
            is_unsent = getattr(error, "maybe_written", None) is False and _is_about_row(error)
            if self._dead_letters is not None and is_refused(error):
                self._again(sent.row)
            elif self._dead_letters is not None and is_unsent:
                self._to_dead_letters(sent.row, partition, error)
            else:
                raise RowsFailedError(topic, partition, error) from error

    def _again(self, row: Any) -> None:
        """Sends a refused row again, alone: brokers refuse a whole batch because of one bad record."""
        await_outcomes(self._producer)
        future = self._senders[type(row)](row)
        await_outcomes(self._producer)
        try:
            future.get()
        except KafkaError as error:
            if not is_refused(error):
                raise RowsFailedError(future.topic, future.partition, error) from error
            self._to_dead_letters(row, future.partition, error)

    def _to_dead_letters(self, row: Any, partition: int | None, cause: BaseException) -> None:
        assert self._dead_letters is not None
        given = dict(zip(row.__fields__, row, strict=True))
        headers = _pairs(given.get("headers"))
        pairs = (
            None
            if headers is None
            else [{"key": name.encode(), "value": content} for name, content in headers]
        )
        rows = pa.record_batch(
            {
                "key": pa.array([_bytes(given.get("key"))], pa.binary()),
                "value": pa.array([_bytes(given["value"])], pa.binary()),
                "headers": pa.array([pairs], _HEADERS),
            }
        )
        topic = self._topic or given.get("topic")
        self._dead_letters.send(topic, partition, rows, _COLUMNS, [cause])


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _is_about_row(cause: BaseException) -> bool:
    # A topic that does not exist: the lookup has ended with max_block_ms.
    return isinstance(cause, _ABOUT_ROW) or isinstance(cause.__cause__, UnknownTopicOrPartitionError)
