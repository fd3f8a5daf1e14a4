"""Writes one task's rows in a separate transaction, and leaves it prepared for the driver.

Owns the producer of a task attempt. Does not own the writing of rows (``sending``) or transactional ids
(``names``). A producer here is for one attempt: its epoch is the attempt's identity. So it is not shared and
not kept for the next task, and nothing closes it after ``prepare_transaction()`` in a way that would abort
the transaction.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from cyproducer.errors import UnsupportedVersionError
from cyproducer.producer import KafkaProducer
from cyproducer.spark.exactly_once.decisions import Place, TaskTransaction
from cyproducer.spark.exactly_once.driver import Plan, TaskOutcome
from cyproducer.spark.exactly_once.kafka_cluster import LEVEL
from cyproducer.spark.exactly_once.rules import BatchOrderError, Verdict
from cyproducer.spark.sending import Target, write_all
from cyproducer.spark.summary import WriteSummary, WrittenTransaction, merge_ranges
from cyproducer.structs import PreparedTransaction

BATCH_PROPERTY: Final = "streaming.sql.batchId"
QUERY_PROPERTY: Final = "sql.streaming.queryId"
_ABORT_S: Final = 10.0
"""How long a failing task waits for the abort of its transaction. If the abort also fails, the driver aborts
the transaction."""


def batch_of_task(version: int | None) -> tuple[str | None, int]:
    """Returns the ids of the query and the batch to which this task belongs. ``version``: ``txnVersion``.
    With a version, the query is known only in ``foreachBatch``, and not with Spark Connect.

    Raises:
        BatchOrderError: Spark does not report the query or the batch.
    """
    context = _task_context()
    query = context.getLocalProperty(QUERY_PROPERTY)
    if version is not None:
        return query, version
    batch = context.getLocalProperty(BATCH_PROPERTY)
    if query is None or batch is None:
        raise BatchOrderError(
            f"Spark has not set {QUERY_PROPERTY!r} and {BATCH_PROPERTY!r} for this task, so that its batch "
            "is not known: write with foreach_batch() of cyproducer.spark, and give it 'txn_app_id'"
        )
    return query, int(batch)


def _task_context() -> Any:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context


def write_task_once(
    target: Target, plan: Plan, version: int | None, timeout_ms: int, batches: Iterable[pa.RecordBatch]
) -> tuple[WriteSummary, TaskOutcome]:
    """Writes a task's batches in a transaction and prepares the transaction. Only counts the rows if the
    batch was written before.

    Raises:
        BatchOrderError: the batch can't be the next one. Nothing was written.
        RowsFailedError, DeadLetterError: as ``TaskWriter``; the transaction was aborted.
    """
    query, batch = batch_of_task(version)
    verdict = plan.standing.judge(query, batch)
    if verdict is Verdict.SKIP:
        rows = sum(each.num_rows for each in batches)
        return WriteSummary(tasks=1), TaskOutcome(plan, verdict, query, batch, rows)
    context = _task_context()
    transactional_id = plan.standing.sink.task_id(
        context.partitionId(), context.attemptNumber(), context.taskAttemptId(), plan.identity.epoch
    )
    summary, prepared = _write(target, transactional_id, timeout_ms, batches)
    transaction = None
    if not prepared.empty:
        written = merge_ranges((*summary.ranges, *summary.dead_letter_ranges))
        places = tuple(Place(r.topic, r.partition, r.first_offset, r.records) for r in written)
        of_brokers = WrittenTransaction(transactional_id, prepared.producer_id, prepared.epoch)
        transaction = TaskTransaction(*of_brokers, places)
        summary = replace(summary, transactions=(of_brokers,))
    rows = summary.rows + summary.dead_letters
    return summary, TaskOutcome(plan, verdict, query, batch, rows, transaction)


def _write(
    target: Target, transactional_id: str, timeout_ms: int, batches: Iterable[pa.RecordBatch]
) -> tuple[WriteSummary, PreparedTransaction]:
    own = {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms}
    producer = KafkaProducer(**{**target.config.config, **own})
    try:
        producer.init_transactions()
        producer.begin_transaction()
        if target.dead_letter_topic is not None:
            producer._drop_refused()
        summary = write_all(target.writer(producer), batches)
        prepared = producer.prepare_transaction()
        if not prepared.empty and prepared.protocol < LEVEL:
            raise UnsupportedVersionError(
                f"the brokers' transaction.version has been lowered below {LEVEL}, which exactly-once needs"
            )
    except BaseException:
        producer.close(_ABORT_S)
        raise
    # This leaves a prepared transaction open.
    producer.close()
    return summary, prepared
