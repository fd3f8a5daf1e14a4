"""Decides whether a batch is written, is skipped because it was written before, or is refused.

Owns these rules. Pure: the driver reads the history, and the tasks know the batch.
``docs/spark-exactly-once.md`` has the rules as a table.

A batch is skipped only if it is the sink's last decided one. "At or below the last one" is not a safe rule: a
checkpoint that was restored from a backup makes other batches with the same numbers, whose rows would be
dropped.
"""

import enum
from dataclasses import dataclass
from typing import Final

from cyproducer.errors import KafkaError
from cyproducer.spark.exactly_once.decisions import Decision, History
from cyproducer.spark.exactly_once.names import JOB, STREAM, Sink, location

STARTING_BATCH: Final = "startingBatchId"
"""The option that lets a stream begin with a batch other than 0."""


class BatchOrderError(KafkaError):
    """This batch can't be the next one of its sink: writing it might write rows twice, and skipping it might
    drop some. The message has both numbers and what to do."""


class Verdict(enum.Enum):
    """What the tasks of a batch do with their rows."""

    WRITE = "write"
    SKIP = "skip"


@dataclass(frozen=True)
class Standing:
    """What the tasks of a batch must know about their sink's history. Pickled."""

    sink: Sink
    last: Decision | None = None
    """Without its transactions."""
    elsewhere: tuple[tuple[str, str], ...] = ()
    """Ids of queries that have written under the same prefix, but for other streams, with the keys of these
    streams."""
    topic: str | None = None
    """The topic of all rows; None: each row names its own."""
    starting_batch: int | None = None
    """The option ``startingBatchId``."""

    def judge(self, query: str | None, batch: int) -> Verdict:
        """Returns what to do with a batch.

        Args:
            query: the id of the streaming query; None: a batch job, or not known.
            batch: the id of the micro-batch, or ``txnVersion``.

        Raises:
            BatchOrderError: it can't be the next one.
        """
        if self.sink.kind == JOB:
            return self._judge_job(query, batch)
        assert query is not None
        if (key := dict(self.elsewhere).get(query)) is not None:
            raise BatchOrderError(
                f"query {query} has written as {key!r}, and now it is {self.sink.key!r}: give its "
                "checkpoint's location as before, or the name after the colon as 'txnAppId'"
            )
        last = self.last
        if last is not None and query in last.earlier_queries:
            raise BatchOrderError(
                f"query {query}, batch {batch}: another query, {last.query}, has written since at this "
                "checkpoint's location: an old checkpoint was restored over a new one. Rows may be missing "
                "or double already; start with an empty checkpoint at another location"
            )
        # The last batch of this query; -1: it has none, and begins with 0.
        before = last.batch if last is not None and last.query == query else -1
        if batch == before:
            return Verdict.SKIP
        if batch == before + 1:
            return Verdict.WRITE
        if batch == self.starting_batch and batch > before:
            return Verdict.WRITE
        if batch < before:
            raise BatchOrderError(
                f"{self.sink.key!r}: batch {batch} comes after batch {before} was decided: the "
                "checkpoint is older than the decision log, for example restored from a backup. Its rows may "
                "have been written; start with an empty checkpoint elsewhere, from where the output "
                "ends"
            )
        known = f"batch {before} was decided last" if before >= 0 else "nothing was decided"
        raise BatchOrderError(
            f"{self.sink.key!r}: batch {batch}, but {known} for query {query}. If this stream has written "
            f"without exactly-once until now, set option {STARTING_BATCH!r} to {batch}; otherwise the "
            "decision log has lost records, and batches before this one may be missing"
        )

    def _judge_job(self, query: str | None, version: int) -> Verdict:
        if self.last is None or version > self.last.batch:
            return Verdict.WRITE
        if version == self.last.batch:
            if self.topic != self.last.topic:
                raise BatchOrderError(
                    f"{self.sink.key!r}: version {version} was written to {_place(self.last.topic)}, and "
                    f"this write is to {_place(self.topic)}: give each write a name of its own (txnAppId)"
                )
            if query is not None and self.last.query not in (None, query):
                raise BatchOrderError(
                    f"{self.sink.key!r}: version {version} was written by query {self.last.query}, and "
                    f"this is query {query}: a query with a new checkpoint needs a new name (txn_app_id)"
                )
            return Verdict.SKIP
        raise BatchOrderError(
            f"{self.sink.key!r}: txnVersion {version} comes after {self.last.batch} was written: a version "
            "must not be lower than the last one. For rows that were not written yet, give a higher one; for "
            "a query with a new checkpoint, another name (txnAppId, txn_app_id)"
        )

    def check_rows(self, rows: int) -> None:
        """Checks that a batch that was skipped has as many rows as when it was written.

        Raises:
            BatchOrderError: it has a different number.
        """
        assert self.last is not None
        if rows != self.last.rows:
            advice = (
                "give the rows that are new a higher txnVersion"
                if self.sink.kind == JOB
                else "the checkpoint was restored from a backup, or the source has changed: start with an "
                "empty checkpoint at another location, from where the output ends"
            )
            raise BatchOrderError(
                f"{self.sink.key!r}: batch {self.last.batch} was written with {self.last.rows} rows, and now "
                f"it has {rows}: these are other rows, and nothing of them was written: {advice}"
            )


def _place(topic: str | None) -> str:
    return "the topics of a column" if topic is None else f"topic {topic!r}"


def sink_in(history: History, sink: Sink) -> Sink:
    """Returns the sink under the name that the decision log has for it: earlier versions of this package used
    locations as the user spelled them.

    Raises:
        BatchOrderError: the decision log has several names for it.
    """
    if sink.kind != STREAM or sink.key in history:
        return sink
    wanted = location(sink.name)
    kinds_and_names = (key.partition(":") for key in history)
    names = [name for kind, _, name in kinds_and_names if kind == STREAM and location(name) == wanted]
    if len(names) > 1:
        raise BatchOrderError(
            f"{sink.key!r}: the decision log has this location under several names, "
            f"{', '.join(map(repr, sorted(names)))}: give that of this stream as 'txnAppId'"
        )
    return sink._replace(name=names[0]) if names else sink


def standing(
    sink: Sink, history: History, topic: str | None = None, starting_batch: int | None = None
) -> Standing:
    """Returns what the tasks must know about a sink's history."""
    last = history.get(sink.key)
    return Standing(
        sink,
        None if last is None else last.as_done(),
        tuple(
            (query, key)
            for key, decision in history.items()
            # Functions for foreachBatch are left out: a query may continue with the format instead.
            if key != sink.key and key.startswith(f"{STREAM}:")
            for query in decision.queries[:1]
        ),
        topic,
        starting_batch,
    )
