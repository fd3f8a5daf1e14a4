"""Implements the sink: ``df.write.format("cyproducer")`` and ``df.writeStream.format("cyproducer")``.

Owns the implementation of Spark's DataSource interfaces. Does not own options (``options``), columns
(``columns``) or rows (``sending``). Spark 4.0 to 4.3 calls it in these processes:

==================  =======================================================================================
process             what it runs
==================  =======================================================================================
driver's helper     ``DataSource(options)`` and ``writer(schema)``; then the writer is pickled
Python workers      ``write(batches)`` for each task attempt, on an unpickled copy of the writer
another helper      ``commit(messages)`` or ``abort(messages)``: on that copy for a batch, on a new writer for
                    a stream
==================  =======================================================================================

So the constructor checks everything. Work that must happen once, before the tasks, is done in
``writer(schema)`` and ``streamWriter(schema)``. For exactly-once, that is the plan of the batch.

A helper runs one of Spark's modules, which shows whether it plans or commits. It serves one micro-batch after
another, and Spark ends it when it was idle for a minute.
"""

import functools
import gc
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, ParamSpec, TypeVar

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import ArrayType, DataType, Row, StringType, StructType, TimestampNTZType

from cyproducer.base.clock import monotonic_s
from cyproducer.config import ProducerConfig
from cyproducer.errors import KafkaConfigurationError, KafkaError, NoBrokersAvailable
from cyproducer.spark import options as sink_options
from cyproducer.spark.columns import SchemaError, columns_of
from cyproducer.spark.exactly_once.driver import Driver, Plan, TaskOutcome
from cyproducer.spark.exactly_once.kafka_cluster import KafkaCluster
from cyproducer.spark.exactly_once.task import write_task_once
from cyproducer.spark.sending import Target, write_task
from cyproducer.spark.summary import WriteSummary, function_named, merge, show_info, tell
from cyproducer.spark.topics import create_missing

log: Final = logging.getLogger("cyproducer.spark")

# Exists since Spark 4.1. Spark 4.0 passes a stream's rows as Python objects.
_STREAMS_ARROW: Final = hasattr(datasource, "DataSourceStreamArrowWriter")
_BLOCK_ROWS: Final = 10_000
_CHECK_MS: Final = 10_000
"""How long the driver waits for the brokers, at most."""
_CHECKED_FOR_S: Final = 60.0
"""A stream does not connect on the driver again within this time after it has."""
_PLANNER: Final = "pyspark.sql.worker.write_into_data_source"
"""Spark's module that makes a writer before the tasks, in a helper."""
_COMMITTER: Final = "pyspark.sql.worker.python_streaming_sink_runner"
"""Spark's module that makes a writer to commit a micro-batch, in another helper."""

_P = ParamSpec("_P")
_R = TypeVar("_R")

_checked: dict[tuple[object, ...], float] = {}
"""What streams have checked in this process, mapped to the time of ``monotonic_s()``. Spark calls it in one
thread."""


@functools.cache
def _freeze_modules() -> None:
    """Excludes what a helper of a stream has loaded from garbage collections.

    Spark collects after each micro-batch. That took 26 ms of CPU, longer than planning: 16 for the objects of
    Spark's modules and 10 for those of ours. Nothing else runs in a helper. Other processes are left alone.
    """
    if _PLANNER in sys.modules or _COMMITTER in sys.modules:
        gc.collect()
        gc.freeze()


def without_causes(error: Exception) -> Exception:
    """Returns the error without its traceback so far, to be raised ``from None``.

    Spark prints the tracebacks of an error and of all its causes. On the driver, the message alone says what
    is wrong and what to do.
    """
    return error.with_traceback(None)


def _in_short(work: Callable[_P, _R]) -> Callable[_P, _R]:
    """Returns a function of the driver that raises the errors of ``work`` without their causes."""

    @functools.wraps(work)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return work(*args, **kwargs)
        except (KafkaError, SchemaError) as error:
            raise without_causes(error) from None

    return run


@dataclass
class Written(WriterCommitMessage):
    """The message from a task to the driver."""

    summary: WriteSummary
    outcome: TaskOutcome | None = None
    """With exactly-once: what the driver needs to commit."""


class CyproducerDataSource(DataSource):
    """Writes DataFrames to Kafka. ``docs/spark.md`` documents the options."""

    session: Mapping[str, Any] = MappingProxyType({})
    """Defaults from the session's settings, by the producer's names; see ``of_session``."""

    @classmethod
    def name(cls) -> str:
        return sink_options.FORMAT

    def schema(self) -> StructType:
        raise KafkaConfigurationError(
            f"format {sink_options.FORMAT!r} writes only: read with format('kafka'), which is Spark's own"
        )

    @_in_short
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise KafkaConfigurationError("mode 'overwrite': a topic can only be appended to: mode('append')")
        task = _Task(self.options, schema, self.session, stream=False)
        # Spark makes this writer only to pickle it, and prints more lines of an error from pickling.
        task.prepare()
        return _BatchWriter(task)

    @_in_short
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        if overwrite:
            raise KafkaConfigurationError(
                "outputMode 'complete': a topic can only be appended to: outputMode('append')"
            )
        task = _Task(self.options, schema, self.session, stream=True)
        # Spark also makes a writer for each commit, which must not plan. A process of another kind prepares
        # when it pickles the writer.
        if _PLANNER in sys.modules:
            task.prepare()
        _freeze_modules()
        return _StreamWriter(task) if _STREAMS_ARROW else _StreamRowWriter(task, schema)


def of_session(session: Mapping[str, Any]) -> type[CyproducerDataSource]:
    """Returns the data source with these defaults. Spark pickles such a class by value. A session's settings
    can't reach the process that plans a write in any other way."""
    if not session:
        return CyproducerDataSource
    return type("CyproducerDataSource", (CyproducerDataSource,), {"session": dict(session)})


class _Task:
    """The work of a task. The constructor checks options and schema; ``write`` does the work."""

    def __init__(self, given: Any, schema: StructType, session: Mapping[str, Any], *, stream: bool) -> None:
        self.options = sink_options.parse(given, session)
        once = self.options.exactly_once
        self.sink = None if once is None else once.sink(stream=stream)
        self.stream = stream
        self.plan: Plan | None = None
        self.prepared = False
        columns = columns_of(schema, self.options.topic, self.options.headers)
        o = self.options
        self.target = Target(o.config, columns, o.topic, o.dead_letter_topic)
        if self.options.create_partitions is not None and self.options.topic is None:
            raise KafkaConfigurationError(
                "option 'createTopic.partitions' needs option 'topic': the topics in a column are not known "
                "before the tasks run"
            )

    def prepare(self) -> None:
        """Runs before all tasks. Spark pickles a writer more than once while planning."""
        if self.prepared:
            return
        self.prepared = True
        show_info()
        o = self.options
        if o.summary_callback is not None:
            try:
                function_named(o.summary_callback)
            except (ImportError, AttributeError) as error:
                raise KafkaConfigurationError(
                    f"option 'summaryCallback'={o.summary_callback!r}: {error}"
                ) from error
        # Also before a topic is created: kafka-python does not report why it can't connect, and keeps trying
        # a password that was refused, which may lock the account.
        if o.check_on_driver or o.create_partitions is not None:
            self._check()
        if o.exactly_once is not None:
            with self._driver() as driver:
                self.plan = driver.plan(o.exactly_once.version)

    def _check(self) -> None:
        """Connects, but not for each micro-batch of a stream: a connection takes longer than the rest of a
        plan, above all with TLS and SASL."""
        if not self.stream:
            self._connect()
            return
        o = self.options
        what = (o.config.key, o.topic, o.dead_letter_topic, o.check_on_driver, o.create_partitions)
        if monotonic_s() - _checked.get(what, -_CHECKED_FOR_S) >= _CHECKED_FOR_S:
            self._connect()
            _checked[what] = monotonic_s()

    def _connect(self) -> None:
        """Connects to the brokers, and creates or looks up the topics that are known.

        Raises:
            KafkaError: no broker answers, or a topic does not exist. Without this, each task would find out
                after ``max.block.ms``.
        """
        o = self.options
        config = ProducerConfig(**o.config.config)
        with o.config.producer(max_block_ms=min(config.max_block_ms, _CHECK_MS)) as producer:
            try:
                producer.wait_ready()
            except NoBrokersAvailable as error:
                raise NoBrokersAvailable(
                    f"the driver can't connect. If only executors can, give option 'checkOnDriver'='false'. "
                    f"{error.args[0]}"
                ) from None
            partitions = o.create_partitions
            if (
                partitions is not None
                and o.topic is not None
                and create_missing(config, o.topic, partitions, o.create_replication)
            ):
                log.info("topic %r was created with %d partitions", o.topic, partitions)
            if o.check_on_driver and not config.allow_auto_create_topics:
                for topic in (o.topic, o.dead_letter_topic):
                    if topic is not None:
                        producer.partitions_for(topic)

    @contextmanager
    def _driver(self) -> Iterator[Driver]:
        once = self.options.exactly_once
        assert once is not None
        assert self.sink is not None
        o = self.options
        of_sink = KafkaCluster(o.config, self.sink, once.decision_topic, once.timeout_ms)
        with closing(of_sink) as cluster:
            yield Driver(cluster, self.sink, o.topic, o.dead_letter_topic, once.starting_batch)

    def write(self, batches: Iterable[pa.RecordBatch]) -> Written:
        once = self.options.exactly_once
        if once is None:
            return Written(write_task(self.target, batches))
        assert self.plan is not None
        return Written(*write_task_once(self.target, self.plan, once.version, once.timeout_ms, batches))

    def commit(self, messages: list[Any], batch: str) -> None:
        show_info()
        missing = messages.count(None)
        # If only some messages are missing, the exactly-once driver raises a more detailed error.
        if missing and (self.options.exactly_once is None or missing == len(messages)):
            # Missing messages are the only sign of a continuous trigger: the trigger is not known while Spark
            # plans, and Spark runs no Python code in the tasks.
            raise KafkaConfigurationError(
                f"{batch}: {missing} of {len(messages)} tasks have left no message, and written nothing. "
                "trigger(continuous=...) does not work: Spark does not run a Python sink with it. Stop the "
                "query, and start it with trigger(processingTime=...) and an empty checkpoint"
            )
        if self.options.exactly_once is not None:
            with self._driver() as driver:
                done = driver.commit(_outcomes(messages))
            if done.skipped:
                log.info("%s: its %d rows were written before, and are not written again", batch, done.rows)
                return
        tell(merge(each.summary for each in messages), batch, self.options.summary_callback)

    def abort(self, messages: list[Any], batch: str) -> None:
        show_info()
        if self.options.exactly_once is not None:
            with self._driver() as driver:
                aborted = driver.abort(_outcomes(messages))
            log.warning(
                "%s failed: %s",
                batch,
                "its transactions were aborted"
                if aborted
                else "what its tasks have left open is completed or aborted by the next write",
            )
            return
        log.warning(
            "%s failed: rows that were acknowledged stay in Kafka, and are written again when it is retried",
            batch,
        )


def _outcomes(messages: list[Any]) -> list[TaskOutcome | None]:
    """Returns the tasks' outcomes; None for each task that left no message."""
    return [None if each is None else each.outcome for each in messages]


class _BatchWriter(DataSourceArrowWriter):
    def __init__(self, task: _Task) -> None:
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._task.write(iterator)

    @_in_short
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._task.commit(messages, "batch")

    @_in_short
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._task.abort(messages, "batch")


class _OfStream:
    """Prepares the task at the latest when the writer is pickled, which Spark does before the tasks."""

    def __init__(self, task: _Task) -> None:
        self._task = task

    @_in_short
    def __getstate__(self) -> dict[str, Any]:
        self._task.prepare()
        return self.__dict__

    @_in_short
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._task.commit(messages, f"micro-batch {batchId}")

    @_in_short
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._task.abort(messages, f"micro-batch {batchId}")


if _STREAMS_ARROW:

    class _StreamWriter(_OfStream, datasource.DataSourceStreamArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            return self._task.write(iterator)


class _StreamRowWriter(_OfStream, DataSourceStreamWriter):
    """For Spark 4.0, whose streams have no Arrow writer."""

    def __init__(self, task: _Task, schema: StructType) -> None:
        super().__init__(task)
        self._schema = schema

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return self._task.write(record_batches(iterator, self._schema))


def record_batches(rows: Iterator[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Converts rows to Arrow batches of up to ten thousand rows, with the columns that are written to
    Kafka."""
    places = [
        (
            number,
            field.name,
            _arrow_type(field.name.lower(), field.dataType),
            _arrow_clock if isinstance(field.dataType, TimestampNTZType) else _arrow_value,
        )
        for number, field in enumerate(schema.fields)
    ]
    while block := list(islice(rows, _BLOCK_ROWS)):
        columns = {
            name: pa.array([convert(row[number]) for row in block], type=of)
            for number, name, of, convert in places
            if of is not None
        }
        yield pa.record_batch(columns)


def _arrow_type(meaning: str, of: DataType) -> pa.DataType | None:
    """Returns the Arrow type of a checked column. None: the column is not written."""
    text = pa.string() if isinstance(of, StringType) else pa.binary()
    if meaning == "headers" and isinstance(of, ArrayType) and isinstance(of.elementType, StructType):
        content = pa.string() if isinstance(of.elementType.fields[1].dataType, StringType) else pa.binary()
        return pa.list_(pa.struct([("key", pa.string()), ("value", content)]))
    types = {
        "topic": pa.string(),
        "key": text,
        "value": text,
        "partition": pa.int64(),
        "timestamp": pa.timestamp("us"),
    }
    return types.get(meaning)


def _arrow_clock(value: Any) -> Any:
    """Returns a timestamp without a time zone unchanged: it is treated as UTC, whatever the worker's time
    zone."""
    return value


def _arrow_value(value: Any) -> Any:
    """Converts a value for Arrow: Spark's rows have times in the worker's time zone, and structs as rows."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None)
    if isinstance(value, list):
        return [None if each is None else {"key": each[0], "value": each[1]} for each in value]
    return value
