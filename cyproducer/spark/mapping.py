"""Sends inside ``df.mapInArrow`` and ``foreachBatch``.

Owns: the functions that Spark calls there. Does not own: rows (``sending``), the format (``source``).
"""

import logging
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from cyproducer.config import ProducerConfig
from cyproducer.errors import BulkSendError, RecordTooLargeError, UnknownTopicOrPartitionError
from cyproducer.producer import KafkaProducer
from cyproducer.spark.batches import plain, refused_rows
from cyproducer.spark.columns import Columns, columns_of
from cyproducer.spark.options import check_at_least_once, producer_config
from cyproducer.spark.sending import RowsFailedError, said, write_task
from cyproducer.spark.sharing import SharedConfig, await_outcomes, shared_producer
from cyproducer.spark.summary import WriteSummary, merge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log: Final = logging.getLogger("cyproducer.spark")

PRODUCED_SCHEMA: Final = "partition int, offset bigint, error string"
"""What ``produce_arrow`` makes of each row; the second argument of ``mapInArrow``."""
_UNDER_WAY: Final = 8
"""Batches that may be under way before the first one's outcome is passed on."""
_OPTIONAL: Final = ("key", "headers", "partition", "timestamp")
_PRODUCED: Final = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("error", pa.string())])


def produce_arrow(
    topic: str, **config: Any
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``df.mapInArrow(produce_arrow("topic", ...), PRODUCED_SCHEMA)``.

    It sends each row's ``value``, and ``key``, ``headers``, ``partition`` and ``timestamp`` where there are
    such columns, and makes of it ``partition``, ``offset`` and ``error``, in the rows' order: ``error`` is
    null where the row was acknowledged, else the cause, and then ``offset`` is null. Rows that fail do not
    fail the task.

    ``config``: ``KafkaProducer``'s options.

    Raises: here ``KafkaConfigurationError``; in the task what concerns all rows, such as a topic that is not
    there, or columns of wrong types; and ``UnknownTopicOrPartitionError`` where a topic loses partitions
    while rows of a batch are being sent.
    """
    return _ProduceArrow(topic, producer_config(config, columns=True))


class _ProduceArrow:
    """The function; pickled with its configuration."""

    def __init__(self, topic: str, config: SharedConfig) -> None:
        self._topic = topic
        self._config = config

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sent: deque[_Sent] = deque()
        with shared_producer(self._config) as producer:
            for batch in batches:
                sent.append(self._send(producer, plain(batch)))
                while len(sent) > _UNDER_WAY or (sent and sent[0].future.is_done):
                    yield _outcomes(sent.popleft())
            await_outcomes(producer)
            while sent:
                yield _outcomes(sent.popleft())

    def _send(self, producer: KafkaProducer, rows: pa.RecordBatch) -> "_Sent":
        """Sends the rows that nothing is wrong with."""
        given = {name: name for name in _OPTIONAL if name in rows.schema.names}
        columns = Columns(value="value", **given)
        count = rows.num_rows
        errors: dict[int, str] = {}
        numbers: Sequence[int] = range(count)
        while True:
            try:
                future = producer.send_arrow(self._topic, rows, value="value", **given)
            except (ValueError, RecordTooLargeError, UnknownTopicOrPartitionError) as error:
                # Rows that were accepted go on: sending them again here would double them.
                if getattr(error, "accepted", None) or "value" not in rows.schema.names:
                    raise
                bad = refused_rows(producer, self._topic, rows, columns, error)
                if not bad:
                    raise RowsFailedError(self._topic, None, error) from error
                for number, cause in bad.items():
                    errors[numbers[number]] = said(cause)
                kept = [number for number in range(rows.num_rows) if number not in bad]
                numbers = [numbers[number] for number in kept]
                rows = rows.take(pa.array(kept, pa.int64()))
            else:
                return _Sent(count, numbers, errors, future)


class _Sent(NamedTuple):
    total: int
    """The batch's rows."""
    numbers: Sequence[int]
    """Those that were sent."""
    errors: dict[int, str]
    """Those that were not, and why."""
    future: Any


def _outcomes(sent: _Sent) -> pa.RecordBatch:
    errors = sent.errors
    try:
        metadata = sent.future.get()
    except BulkSendError as error:
        metadata = error.metadata
        for failed in error.failures:
            text = said(failed.error)
            for row in failed.rows:
                errors[sent.numbers[row]] = text
    places = pa.record_batch(metadata.rows())
    if len(sent.numbers) < sent.total:
        where = dict(zip(sent.numbers, range(len(sent.numbers)), strict=True))
        places = places.take(pa.array([where.get(number) for number in range(sent.total)], pa.int64()))
    told = pa.nulls(sent.total, pa.string())
    if errors:
        told = pa.array([errors.get(number) for number in range(sent.total)], pa.string())
    return pa.RecordBatch.from_arrays([*places.columns, told], schema=_PRODUCED)


def foreach_batch(
    topic: str | None = None,
    *,
    on_summary: Callable[[int, WriteSummary], object] | None = None,
    dead_letter_topic: str | None = None,
    **config: Any,
) -> Callable[["DataFrame", int], None]:
    """A function for ``df.writeStream.foreachBatch(...)`` that writes each micro-batch, as the format does.

    ``topic``: of all rows; None: each row's own, in a column. ``on_summary(batch_id, summary)`` is called in
    the driver's own process when a batch is written. ``config``: ``KafkaProducer``'s options.

    Raises: here ``KafkaConfigurationError``; for a batch ``SchemaError`` before tasks start, and Spark's own
    error where a task failed.
    """
    shared = producer_config(config, columns=True)
    check_at_least_once(ProducerConfig(**shared.config))

    def write(df: "DataFrame", batch_id: int) -> None:
        columns = columns_of(df.schema, topic, headers=True)
        task = _WriteArrow(shared, columns, topic, dead_letter_topic)
        collected = df.mapInArrow(task, "summary binary").collect()
        # They were pickled by our own tasks of this very call.
        summary = merge(pickle.loads(row.summary) for row in collected)
        log.info("micro-batch %d: %s", batch_id, summary)
        if on_summary is not None:
            try:
                on_summary(batch_id, summary)
            except Exception:
                log.exception("on_summary failed; micro-batch %d is written", batch_id)

    return write


class _WriteArrow:
    """Writes a task's batches, and makes one row of them: the summary, pickled."""

    def __init__(
        self, config: SharedConfig, columns: Columns, topic: str | None, dead_letter_topic: str | None
    ) -> None:
        self._config = config
        self._columns = columns
        self._topic = topic
        self._dead_letter_topic = dead_letter_topic

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        summary = write_task(self._config, self._columns, self._topic, self._dead_letter_topic, batches)
        yield pa.record_batch([pa.array([pickle.dumps(summary)], pa.binary())], names=["summary"])
