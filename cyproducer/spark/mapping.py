"""Sends records inside ``df.mapInArrow`` and ``foreachBatch``.

Owns the functions that Spark calls there. Does not own the writing of rows (``sending``) or the format
(``source``).
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from cyproducer.config import hide
from cyproducer.errors import BulkSendError, RecordTooLargeError, UnknownTopicOrPartitionError
from cyproducer.producer import KafkaProducer
from cyproducer.spark.batches import plain, refused_rows
from cyproducer.spark.columns import Columns, columns_of
from cyproducer.spark.exactly_once.each_batch import WriteOnce
from cyproducer.spark.options import AT_LEAST_ONCE, once_of_function, producer_config
from cyproducer.spark.rows import check_partition, to_be_consumed
from cyproducer.spark.sending import RowsFailedError, Target, results_of, said, write_task
from cyproducer.spark.sharing import SharedConfig, await_outcomes, shared_producer
from cyproducer.spark.summary import WriteSummary, merge, tell_program

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log: Final = logging.getLogger("cyproducer.spark")

PRODUCED_SCHEMA: Final = "partition int, offset bigint, error string"
"""The schema of the rows that ``produce_arrow`` returns; the second argument of ``mapInArrow``."""
_UNDER_WAY: Final = 8
"""Maximum number of unacknowledged batches before the outcome of the first is awaited and passed on."""
_OPTIONAL: Final = ("key", "headers", "partition", "timestamp")
_PRODUCED: Final = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("error", pa.string())])


def produce_arrow(
    topic: str, **config: Any
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function for ``df.mapInArrow(produce_arrow("topic", ...), PRODUCED_SCHEMA)``.

    The function sends each row's ``value``, and its ``key``, ``headers``, ``partition`` and ``timestamp`` if
    there are such columns. It returns ``partition``, ``offset`` and ``error`` of each row, in the order of
    the rows: ``error`` is null if the row was acknowledged; otherwise it is the cause, and ``offset`` is
    null. Rows that fail do not fail the task.

    Batches are sent before their results are consumed. If the consumer stops early, as with ``limit()``,
    ``take()``, ``head()`` and ``show()``, more rows are written than reported, but possibly not all of them.
    Each action on the result writes the rows again.

    ``config``: ``KafkaProducer``'s options.

    Raises: ``KafkaConfigurationError`` in this call. In the task: errors that concern all rows, such as a
    topic that does not exist or columns of wrong types, and ``UnknownTopicOrPartitionError`` if a topic loses
    partitions while rows of a batch are being sent; ``TypeError`` if the function is not called with an
    iterator of Arrow batches, for example by ``foreach`` or ``foreachPartition``.
    """
    config = hide(config)
    return _ProduceArrow(topic, producer_config(config, columns=True))


class _ProduceArrow:
    """The function that ``produce_arrow`` returns. Pickled with its configuration."""

    def __init__(self, topic: str, config: SharedConfig) -> None:
        self._topic = topic
        self._config = config

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        check_partition(batches, "produce_arrow()", "mapInArrow()")
        # Checked here and not when the results are consumed: foreachPartition() of Spark Connect drops them.
        checked = _arrow(batches)
        first = next(checked, None)
        given = () if first is None else chain((first,), checked)
        return to_be_consumed(self._produce(given), "produce_arrow()")

    def _produce(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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
        """Sends a batch's rows; leaves out those that can't be sent."""
        given = {name: name for name in _OPTIONAL if name in rows.schema.names}
        columns = Columns(value="value", **given)
        count = rows.num_rows
        errors: dict[int, str] = {}
        numbers: Sequence[int] = range(count)
        while True:
            try:
                future = producer.send_arrow(self._topic, rows, value="value", **given)
            except (ValueError, RecordTooLargeError, UnknownTopicOrPartitionError) as error:
                # The producer keeps sending accepted rows: sending them again here would duplicate them.
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


def _arrow(batches: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    """Yields the batches unchanged.

    Raises:
        TypeError: an element is not an Arrow batch.
    """
    for batch in batches:
        if not isinstance(batch, pa.RecordBatch):
            raise TypeError(
                f"produce_arrow() gets {type(batch).__name__}: must be pyarrow.RecordBatch, as from "
                "mapInArrow(). For rows, use produce_partitions()"
            )
        yield batch


class _Sent(NamedTuple):
    total: int
    """Number of rows of the batch."""
    numbers: Sequence[int]
    """Numbers of the rows that were sent."""
    errors: dict[int, str]
    """Rows that were not sent: number to cause."""
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
    delivery_guarantee: str = AT_LEAST_ONCE,
    transactional_id_prefix: str | None = None,
    txn_app_id: str | None = None,
    decision_log_topic: str | None = None,
    **config: Any,
) -> Callable[["DataFrame", int], None]:
    """Returns a function for ``df.writeStream.foreachBatch(...)`` that writes each micro-batch as the format
    does.

    ``topic``: the topic of all rows; None: the column ``topic`` has each row's topic.
    ``on_summary(batch_id, summary)`` is called after a batch is written, in the process that calls the
    function. This is the driver or, with Spark Connect, a server process that belongs to one run of a query.
    ``delivery_guarantee``: "at-least-once" or "exactly-once". The latter needs ``transactional_id_prefix``.
    It also needs ``txn_app_id`` if several functions of a query write to one topic, or under Spark Connect.
    By default, ``txn_app_id`` consists of the query's id and the topic. If it is given, a query with a new
    checkpoint needs a new one. A batch that was written before is not written again.
    ``dead_letter_topic``: for rows that can't be written; without it, such rows fail the task.
    ``config``: ``KafkaProducer``'s options.

    Raises: ``KafkaConfigurationError`` in this call. For a batch: ``SchemaError`` before tasks start,
    Spark's own error if a task fails, and with exactly-once the errors in ``docs/spark-exactly-once.md``.
    """
    config = hide(config)
    shared = producer_config(config, columns=True)
    options = once_of_function(
        shared,
        delivery_guarantee,
        transactional_id_prefix,
        txn_app_id,
        decision_log_topic,
        "transaction_timeout_ms" not in shared.config,
    )
    if options is not None:
        return WriteOnce(topic, dead_letter_topic, shared, options, on_summary)

    def write(df: "DataFrame", batch_id: int) -> None:
        columns = columns_of(df.schema, topic, headers=True)
        target = Target(shared, columns, topic, dead_letter_topic)
        summary = merge(results_of(df, partial(write_task, target)))
        log.info("micro-batch %d: %s", batch_id, summary)
        tell_program(on_summary, batch_id, summary)

    return write
