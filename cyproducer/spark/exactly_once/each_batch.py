"""Writes micro-batches exactly once inside ``foreachBatch``.

Owns the function that ``foreach_batch()`` returns with exactly-once. Runs on the driver, in the process and
thread in which Spark calls it; under Spark Connect, in a process of the server.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cyproducer.errors import KafkaConfigurationError
from cyproducer.spark.columns import Columns, columns_of
from cyproducer.spark.exactly_once.driver import Driver, TaskOutcome
from cyproducer.spark.exactly_once.kafka_cluster import KafkaCluster
from cyproducer.spark.exactly_once.names import JOB, Sink
from cyproducer.spark.exactly_once.rules import BatchOrderError
from cyproducer.spark.exactly_once.task import QUERY_PROPERTY, write_task_once
from cyproducer.spark.options import ExactlyOnceOptions, is_connect
from cyproducer.spark.sending import Target, results_of
from cyproducer.spark.sharing import SharedConfig
from cyproducer.spark.summary import WriteSummary, merge, tell_program

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log: Final = logging.getLogger("cyproducer.spark")

_RUN_PROPERTY: Final = "spark.jobGroup.id"
"""The id of the query's run: Spark uses it as the name of the group of the run's jobs."""
_CONNECT_WORKER: Final = "SPARK_CONNECT_LOCAL_URL"
"""An environment variable of the process in which the Spark Connect server calls the function. Each run has
its own process."""
_NEEDS_APP: Final = (
    "foreach_batch() with exactly-once needs txn_app_id, the name of what it writes: Spark Connect does not "
    "say which query calls it. Give a name that no other stream or job of this transactional_id_prefix has"
)

_lock = threading.Lock()
# For each sink that this process has written: the run and batch, the function, and whether the function has
# written the batch or is writing it. The function itself and not its ``id()``: a function that a program
# makes for one call may get the ``id()`` of the previous one.
_written: dict[str, tuple[tuple[str, int] | None, "WriteOnce", bool]] = {}


class WriteOnce:
    """The function that ``foreach_batch()`` returns with exactly-once."""

    def __init__(
        self,
        topic: str | None,
        dead_letter_topic: str | None,
        config: SharedConfig,
        options: ExactlyOnceOptions,
        on_summary: Callable[[int, WriteSummary], object] | None,
    ) -> None:
        if options.app is None and is_connect():
            raise KafkaConfigurationError(_NEEDS_APP)
        self._topic = topic
        self._dead_letter_topic = dead_letter_topic
        self._config = config
        self._options = options
        self._on_summary = on_summary

    def __call__(self, df: "DataFrame", batch_id: int) -> None:
        columns = columns_of(df.schema, self._topic, headers=True)
        sink = self._sink(df)
        this = self._take(sink, batch_id, df)
        try:
            self._write(df, batch_id, columns, sink)
        except BaseException:
            # The function may be called again.
            with _lock:
                if _written.get(sink.key) == (this, self, True):
                    _written[sink.key] = (this, self, False)
            raise

    def _write(self, df: "DataFrame", batch_id: int, columns: Columns, sink: Sink) -> None:
        with self._driver(sink) as driver:
            plan = driver.plan(batch_id)
        target = Target(self._config, columns, self._topic, self._dead_letter_topic)
        work = partial(write_task_once, target, plan, batch_id, self._options.timeout_ms)
        written: list[tuple[WriteSummary, TaskOutcome]] = results_of(df, work)
        outcomes = [outcome for _, outcome in written]
        if not outcomes:
            # Spark runs no task for a DataFrame that it knows to be empty.
            query = _property(df, QUERY_PROPERTY)
            outcomes = [TaskOutcome(plan, plan.standing.judge(query, batch_id), query, batch_id, 0)]
        # A new view, so that its deadline does not include the time of the tasks.
        with self._driver(sink) as driver:
            try:
                done = driver.commit(outcomes)
            except Exception:
                driver.abort(outcomes)
                raise
        if done.skipped:
            log.info("micro-batch %d: its %d rows were written before", batch_id, done.rows)
            return
        summary = merge(each for each, _ in written)
        log.info("micro-batch %d: %s", batch_id, summary)
        tell_program(self._on_summary, batch_id, summary)

    @contextmanager
    def _driver(self, sink: Sink) -> Iterator[Driver]:
        o = self._options
        with closing(KafkaCluster(self._config, sink, o.decision_topic, o.timeout_ms)) as cluster:
            yield Driver(cluster, sink, self._topic, self._dead_letter_topic)

    def _sink(self, df: "DataFrame") -> Sink:
        app = self._options.app
        if app is None:
            query = _property(df, QUERY_PROPERTY)
            if query is None:
                raise KafkaConfigurationError(_NEEDS_APP)
            app = f"{query}/{self._topic or '*'}"
        return Sink(self._options.prefix, JOB, app)

    def _take(self, sink: Sink, batch_id: int, df: "DataFrame") -> tuple[str, int] | None:
        """Notes that this function writes a batch, and returns the run and the batch; None: Spark does not
        report the run.

        Raises:
            BatchOrderError: another function has written the batch, or this one has: the call would be
                skipped.
        """
        run = _property(df, _RUN_PROPERTY) or os.environ.get(_CONNECT_WORKER)
        if run is None:
            return None
        this = (run, batch_id)
        with _lock:
            last, function, taken = _written.get(sink.key, (None, self, False))
            if last == this and function is not self:
                raise BatchOrderError(
                    f"{sink.key!r}: two functions write batch {batch_id} under this name, and the second "
                    "would be skipped as written before: give each its own txn_app_id"
                )
            if last == this and taken:
                raise BatchOrderError(
                    f"{sink.key!r}: the function is called twice in batch {batch_id}, and the second call "
                    "would be skipped as written before: make a function for each DataFrame, with its own "
                    "txn_app_id"
                )
            _written[sink.key] = (this, self, True)
        return this


def _property(df: "DataFrame", name: str) -> str | None:
    """Returns a local property of Spark; None under Spark Connect, which has none."""
    context: Any = getattr(df.sparkSession, "_sc", None)
    if context is None:
        return None
    value: str | None = context.getLocalProperty(name)
    return value
