"""Tests the sink's interface to Spark: checks, work and messages of each step. Uses a fake PySpark."""

import gc
import importlib
import logging
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from cyproducer.errors import KafkaConfigurationError, KafkaError, NoBrokersAvailable
from cyproducer.spark import foreach_batch, produce_arrow, produce_partitions, register
from cyproducer.spark.columns import SchemaError
from cyproducer.spark.summary import WriteSummary
from cyproducer.testing import EmbeddedBroker
from tests.integration.consume import read_all
from tests.scripted.scripted_broker import ScriptedCluster
from tests.scripted.scripted_sasl import SaslServer
from tests.spark import fake_pyspark as spark
from tests.spark.fake_pyspark import fake_pyspark, headers_of, schema, source_module
from tests.spark.writing import values

VALUES = schema(value=spark.BinaryType())
SUMMARIES: list[WriteSummary] = []


@pytest.fixture
def source() -> Iterator[Any]:
    with source_module() as module:
        yield module


@pytest.fixture(autouse=True)
def _no_summaries() -> Iterator[None]:
    yield
    SUMMARIES.clear()


def note(summary: WriteSummary) -> None:
    """The summaryCallback of these tests."""
    SUMMARIES.append(summary)


@pytest.fixture(autouse=True)
def _no_freezing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the tests lives longer than a helper."""
    monkeypatch.setattr(gc, "freeze", lambda: None)


def runs(monkeypatch: pytest.MonkeyPatch, helper: str) -> None:
    """Makes this process look like a helper of Spark's that runs this module."""
    name = f"pyspark.sql.worker.{helper}"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))


def plans(monkeypatch: pytest.MonkeyPatch) -> None:
    runs(monkeypatch, "write_into_data_source")


def options(broker: EmbeddedBroker | None = None, **more: str) -> dict[str, str]:
    if broker is None:
        more = {"checkOnDriver": "false", **more}
    servers = "127.0.0.1:1" if broker is None else broker.bootstrap_servers
    return {"kafka.bootstrap.servers": servers, "topic": "t", **more}


def travelled(writer: Any) -> Any:
    """Pickles and unpickles a writer, as Spark does before the tasks."""
    return pickle.loads(pickle.dumps(writer))


@pytest.mark.parametrize("stream", [False, True])
def test_tasks_write_and_the_commit_reports_their_summary(
    source: Any, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    topic = f"source-{stream}"
    broker.create_topic(topic, 1)
    given = options(broker, topic=topic, summaryCallback=f"{__name__}:note")
    made = source.CyproducerDataSource(given)
    assert made.name() == "cyproducer"
    writer: Any = made.streamWriter(VALUES, False) if stream else made.writer(VALUES, False)
    kind = spark.DataSourceStreamArrowWriter if stream else spark.DataSourceArrowWriter
    assert issubclass(type(writer), kind)
    copy = travelled(writer)
    messages = [copy.write(iter([values(b"1"), values(b"23")])), copy.write(iter([values(b"4")]))]
    assert all(isinstance(each, spark.WriterCommitMessage) for each in messages)
    with caplog.at_level(logging.INFO, "cyproducer.spark"):
        writer.commit(messages, 7) if stream else writer.commit(messages)
    (summary,) = SUMMARIES
    assert (summary.rows, summary.bytes, summary.tasks) == (3, 4, 2)
    assert ("micro-batch 7: 3 rows" if stream else "batch: 3 rows") in caplog.text
    assert [r.value for r in read_all(broker.bootstrap_servers, topic, 3)] == [b"1", b"23", b"4"]


@pytest.mark.parametrize("once", [False, True])
def test_a_commit_without_the_tasks_messages_is_an_error(source: Any, once: bool) -> None:
    """With a continuous trigger, Spark commits what it has not given to any task."""
    given = options()
    if once:
        given |= {
            "deliveryGuarantee": "exactly-once",
            "transactionalIdPrefix": "p",
            "checkpointLocation": "/c",
        }
    writer = source.CyproducerDataSource(given).streamWriter(VALUES, False)
    with pytest.raises(KafkaConfigurationError, match=r"micro-batch 0: 2 of 2 tasks .* trigger\(continuous="):
        writer.commit([None, None], 0)


def test_a_commit_without_one_of_the_messages_is_an_error(source: Any, broker: EmbeddedBroker) -> None:
    broker.create_topic("missing", 1)
    writer = source.CyproducerDataSource(options(broker, topic="missing")).writer(VALUES, False)
    written = travelled(writer).write(iter([values(b"1")]))
    with pytest.raises(KafkaConfigurationError, match="batch: 1 of 2 tasks have left no message"):
        writer.commit([written, None])


@pytest.mark.parametrize("stream", [False, True])
def test_an_abort_logs_that_acknowledged_rows_stay(
    source: Any, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    made = source.CyproducerDataSource(options())
    with caplog.at_level(logging.WARNING, "cyproducer.spark"):
        if stream:
            made.streamWriter(VALUES, False).abort([], 9)
        else:
            made.writer(VALUES, False).abort([])
    assert f"{'micro-batch 9' if stream else 'batch'} failed: rows that were acknowledged" in caplog.text


def test_reading_and_overwriting_are_refused(source: Any) -> None:
    made = source.CyproducerDataSource(options())
    with pytest.raises(KafkaConfigurationError, match=r"writes only: read with format\('kafka'\)"):
        made.schema()
    with pytest.raises(KafkaConfigurationError, match="mode 'overwrite'"):
        made.writer(VALUES, True)
    with pytest.raises(KafkaConfigurationError, match="outputMode 'complete'"):
        made.streamWriter(VALUES, True)


def test_options_and_columns_are_checked_before_any_task(source: Any) -> None:
    with pytest.raises(SchemaError, match="no column 'value'"):
        source.CyproducerDataSource(options()).writer(schema(key=spark.StringType()), False)
    given = options(None, **{"createTopic.partitions": "3"})
    del given["topic"]
    of = schema(value=spark.BinaryType(), topic=spark.StringType())
    with pytest.raises(KafkaConfigurationError, match=r"'createTopic.partitions' needs option 'topic'"):
        source.CyproducerDataSource(given).writer(of, False)


@pytest.mark.parametrize("writer", ["batch", "stream", "stream of another planner"])
@pytest.mark.parametrize("callback", ["nowhere.at.all:note", f"{__name__}:nothing"])
def test_a_missing_callback_is_an_error_before_the_tasks(
    source: Any, monkeypatch: pytest.MonkeyPatch, callback: str, writer: str
) -> None:
    made = source.CyproducerDataSource(options(summaryCallback=callback))
    if writer == "stream":
        plans(monkeypatch)

    def plan() -> None:
        if writer == "batch":
            made.writer(VALUES, False)
            return
        made_writer = made.streamWriter(VALUES, False)
        # Spark prints more lines of an error from pickling.
        assert writer == "stream of another planner"
        pickle.dumps(made_writer)

    with pytest.raises(KafkaConfigurationError, match=f"option 'summaryCallback'='{callback}'") as raised:
        plan()
    # Spark prints the tracebacks of all causes.
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_a_commit_is_not_prepared_and_its_errors_have_no_causes(source: Any) -> None:
    """In the process that commits, a writer that was prepared would plan exactly-once again."""
    writer = source.CyproducerDataSource(options(summaryCallback="nowhere.at.all:note")).streamWriter(
        VALUES, False
    )
    with pytest.raises(KafkaConfigurationError, match="tasks have left no message") as raised:
        writer.commit([None], 0)
    # One entry of the test, one of the function that raises it.
    assert len(traceback.extract_tb(raised.value.__traceback__)) == 2
    assert raised.value.__suppress_context__


@pytest.mark.parametrize("helper", ["write_into_data_source", "python_streaming_sink_runner", None])
def test_the_modules_of_a_streams_helper_are_frozen_once(
    source: Any, monkeypatch: pytest.MonkeyPatch, helper: str | None
) -> None:
    done: list[str] = []
    collector = SimpleNamespace(collect=lambda: done.append("collect"), freeze=lambda: done.append("freeze"))
    monkeypatch.setattr(source, "gc", collector)
    if helper is not None:
        runs(monkeypatch, helper)
    source.CyproducerDataSource(options()).writer(VALUES, False)
    assert done == []
    for _ in range(2):
        source.CyproducerDataSource(options()).streamWriter(VALUES, False)
    assert done == (["collect", "freeze"] if helper is not None else [])


@pytest.mark.parametrize("stream", [False, True])
def test_a_stream_is_checked_once_a_minute_and_a_batch_always(
    source: Any, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    topic = f"checked-{stream}"
    broker.create_topic(topic, 1)
    plans(monkeypatch)
    now = [5.0]
    monkeypatch.setattr(source, "monotonic_s", lambda: now[0])
    connected: list[float] = []
    connect = source._Task._connect

    def counted(task: Any) -> None:
        connected.append(now[0])
        connect(task)

    monkeypatch.setattr(source._Task, "_connect", counted)
    given = options(broker, topic=topic)

    def plan(**more: str) -> None:
        made = source.CyproducerDataSource(given | more)
        pickle.dumps(made.streamWriter(VALUES, False) if stream else made.writer(VALUES, False))

    times = [5.0, 6.0, 64.9, 65.0, 66.0]
    for now_is in times:
        now[0] = now_is
        plan()
    assert connected == ([5.0, 65.0] if stream else times)
    # Another write has a check of its own; and one that has failed is checked again.
    connected.clear()
    plan(**{"kafka.linger.ms": "3"})
    missing = {"topic": f"no-{topic}", "kafka.max.block.ms": "200"}
    for _ in range(2):
        with pytest.raises(KafkaError, match=f"no-{topic}"):
            plan(**missing)
    assert connected == [66.0, 66.0, 66.0]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("created", [True, False])
def test_a_topic_is_created_once_before_the_tasks(
    source: Any,
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    created: bool,
    stream: bool,
) -> None:
    asked: list[tuple[Any, ...]] = []

    def create(config: Any, *what: Any) -> bool:
        asked.append((config.bootstrap_servers, *what))
        return created

    monkeypatch.setattr(source, "create_missing", create)
    more = {"createTopic.partitions": "3", "createTopic.replication": "2", "checkOnDriver": "false"}
    given = options(broker) | more
    made = source.CyproducerDataSource(given)
    with caplog.at_level(logging.INFO, "cyproducer.spark"):
        writer = made.streamWriter(VALUES, False) if stream else made.writer(VALUES, False)
        # Spark makes another writer for each commit of a stream, and pickles that of a write twice.
        assert len(asked) == (0 if stream else 1)
        pickle.dumps(writer)
        pickle.dumps(writer)
    assert [what[1:] for what in asked] == [("t", 3, 2)]
    assert ("topic 't' was created with 3 partitions" in caplog.text) is created


def test_the_driver_reports_brokers_that_cannot_be_reached(source: Any) -> None:
    given = options() | {"checkOnDriver": "true", "kafka.max.block.ms": "100"}
    with pytest.raises(NoBrokersAvailable, match=r"give option 'checkOnDriver'='false'\. .*127\.0\.0\.1:1"):
        source.CyproducerDataSource(given).writer(VALUES, False)


@pytest.mark.parametrize("missing", ["topic", "deadLetterTopic"])
def test_the_driver_reports_a_topic_that_does_not_exist(
    source: Any, broker: EmbeddedBroker, missing: str
) -> None:
    present = f"beside-{missing}"
    broker.create_topic(present, 1)
    given = options(broker, **{"topic": present, "kafka.max.block.ms": "200", missing: f"no-{missing}"})
    with pytest.raises(KafkaError, match=f"no-{missing}"):
        source.CyproducerDataSource(given).writer(VALUES, False)
    # The tasks may create it.
    created = given | {"kafka.allow.auto.create.topics": "true"}
    source.CyproducerDataSource(created).writer(VALUES, False)


def test_a_refused_password_is_said_before_a_topic_is_created(
    source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(source, "create_missing", lambda *given: asked.append(given))
    sasl = SaslServer()
    with ScriptedCluster(sasl=sasl) as cluster:
        given = {
            "kafka.bootstrap.servers": ",".join(cluster.bootstrap_servers),
            "topic": "t",
            "createTopic.partitions": "3",
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "SCRAM-SHA-256",
            "kafka.sasl.plain.username": "alice",
            "kafka.sasl.plain.password": "wrong",
            "kafka.max.block.ms": "3000",
        }
        with pytest.raises(KafkaError, match="refused user 'alice'"):
            source.CyproducerDataSource(given).writer(VALUES, False)
    assert asked == []
    assert len(sasl.tries) == 1


class OldSession:
    """A session of Spark 3.5, whose settings can't be listed."""

    conf = object()


class Session(spark.SparkSession):
    """A session that keeps the data source that was registered, or already has it, as in Spark 4.0."""

    def __init__(self, settings: dict[str, str], *, exists: bool = False) -> None:
        super().__init__(settings)
        self.exists = exists
        self.registered: list[Any] = []
        self.dataSource = SimpleNamespace(register=self._register)

    def _register(self, source: Any) -> None:
        if self.exists:
            raise spark.AnalysisException(
                "[DATA_SOURCE_ALREADY_EXISTS] Data source 'cyproducer' already exists."
            )
        self.registered.append(source)

    def createDataFrame(self, rows: list[object], of: str) -> None:
        pass


def test_a_registered_format_has_the_sessions_settings_as_defaults(source: Any) -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    session: Any = Session(
        {"spark.cyproducer.kafka.linger.ms": "7", "spark.cyproducer.kafka.batch.size": "9"}
    )
    register(session)
    # As Spark does it.
    (made,) = pickle.loads(cloudpickle.dumps(session.registered))
    assert made.name() == "cyproducer"
    given = options(None, **{"kafka.linger.ms": "3"})
    for writer in (made(given).writer(VALUES, False), made(given).streamWriter(VALUES, False)):
        config = writer._task.options.config.config
        assert (config["linger_ms"], config["batch_size"]) == ("3", "9")
    # Without settings nothing is pickled by value.
    plain: Any = Session({})
    register(plain)
    assert plain.registered == [source.CyproducerDataSource]


def test_spark_4_0_cannot_give_settings_to_a_format_that_it_has_found(source: Any) -> None:
    empty: Any = Session({}, exists=True)
    register(empty)
    session: Any = Session({"spark.cyproducer.kafka.linger.ms": "7"}, exists=True)
    with pytest.raises(
        KafkaConfigurationError, match=r"\(linger_ms\): Spark 4.0 .* give options to the write"
    ):
        register(session)


@pytest.mark.parametrize(
    "enter",
    [
        lambda: register(OldSession()),  # type: ignore[arg-type]
        lambda: produce_partitions("t", bootstrap_servers="127.0.0.1:1"),
        lambda: produce_arrow("t", bootstrap_servers="127.0.0.1:1"),
        lambda: foreach_batch("t", bootstrap_servers="127.0.0.1:1"),
        lambda: importlib.import_module("pyspark_cyproducer"),
    ],
    ids=["register", "produce_partitions", "produce_arrow", "foreach_batch", "pyspark_cyproducer"],
)
def test_an_earlier_pyspark_is_an_error_at_each_entry(enter: Callable[[], object]) -> None:
    with (
        fake_pyspark(version="3.5.4"),
        pytest.raises(ImportError, match=r"needs PySpark 4.0 or later, and this is 3\.5\.4: pip install"),
    ):
        enter()


def test_spark_finds_the_format_by_itself(source: Any) -> None:
    found = importlib.import_module("pyspark_cyproducer")
    assert found.DefaultSource is source.CyproducerDataSource


def test_rows_of_a_spark_4_0_stream_become_columns(broker: EmbeddedBroker) -> None:
    broker.create_topic("objects", 1)
    with source_module(arrow_streams=False) as module:
        made = module.CyproducerDataSource(options(broker, topic="objects"))
        writer = travelled(made.streamWriter(VALUES, False))
        assert not hasattr(module, "_StreamWriter")
        message = writer.write(iter([spark.Row((b"1",)), spark.Row((b"2",))]))
        assert message.summary.rows == 2
    assert [r.value for r in read_all(broker.bootstrap_servers, "objects", 2)] == [b"1", b"2"]


def test_each_type_is_converted_to_arrow(source: Any) -> None:
    """Columns that are not written are left out."""
    of = schema(
        Value=spark.StringType(),
        key=spark.BinaryType(),
        topic=spark.StringType(),
        other=spark.DoubleType(),
        headers=headers_of(spark.BinaryType()),
        partition=spark.IntegerType(),
        timestamp=spark.TimestampType(),
    )
    east = datetime(2024, 5, 6, 7, 8, 9, tzinfo=timezone(timedelta(hours=3)))
    rows = [
        spark.Row(("text", b"k", "t", 1.5, [("h", b"1"), None], 3, east)),
        spark.Row((None, None, "u", None, None, None, None)),
    ]
    (batch,) = source.record_batches(iter(rows), of)
    assert batch.schema == pa.schema(
        [
            ("Value", pa.string()),
            ("key", pa.binary()),
            ("topic", pa.string()),
            ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            ("partition", pa.int64()),
            ("timestamp", pa.timestamp("us")),
        ]
    )
    first, second = batch.to_pylist()
    assert first == {
        "Value": "text",
        "key": b"k",
        "topic": "t",
        "headers": [{"key": "h", "value": b"1"}, None],
        "partition": 3,
        "timestamp": datetime(2024, 5, 6, 4, 8, 9),
    }
    assert {name for name, value in second.items() if value is not None} == {"topic"}


def test_headers_may_be_strings_and_a_timestamp_without_a_zone_is_utc(source: Any) -> None:
    of = schema(headers=headers_of(spark.StringType()), timestamp=spark.TimestampNTZType())
    clock = datetime(2024, 5, 6, 7, 8, 9)
    (batch,) = source.record_batches(iter([spark.Row(([("h", "1")], clock))]), of)
    assert batch.column("headers").type.value_type.field(1).type == pa.string()
    assert batch.to_pylist() == [{"headers": [{"key": "h", "value": "1"}], "timestamp": clock}]


def test_rows_are_converted_ten_thousand_at_a_time(source: Any) -> None:
    rows = (spark.Row((b"%d" % number,)) for number in range(20_001))
    assert [batch.num_rows for batch in source.record_batches(rows, VALUES)] == [10_000, 10_000, 1]
