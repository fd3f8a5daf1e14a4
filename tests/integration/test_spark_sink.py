"""Tests ``format("cyproducer")`` in a real Spark with a real Kafka. Another client reads the records back."""

from __future__ import annotations

import ast
import datetime
import queue
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.forked import needs_module
from tests.integration.consume import read_all
from tests.pages import ROOT, blocks
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.spark_session import spark_session

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300), needs_module("pyspark")]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


def options(kafka: KafkaCluster, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": kafka.bootstrap_servers, **more}


def write(df: Any, kafka: KafkaCluster, **more: str) -> None:
    df.write.format("cyproducer").mode("append").options(**options(kafka, **more)).save()


def test_every_column_arrives_unchanged(spark: Any, kafka: KafkaCluster) -> None:
    kafka.create_topic("spark-columns", 3)
    when = datetime.datetime(2025, 3, 4, 5, 6, 7, 891000, tzinfo=datetime.UTC)
    rows = [
        ("k1", b"v1", [("a", b"1"), ("b", None)], 2, when),
        (None, b"v2", None, 0, when),
        ("k3", None, [], 1, when),
        ("käse", b"", [("ü", b"\x00\xff")], 1, when),
    ]
    schema = (
        "key string, value binary, headers array<struct<key:string,value:binary>>, "
        "partition int, timestamp timestamp"
    )
    # Spark finds the format by itself here: it is not registered.
    write(spark.createDataFrame(rows, schema).coalesce(1), kafka, topic="spark-columns")
    found = read_all(kafka.bootstrap_servers, "spark-columns", len(rows))
    at = round(when.timestamp() * 1000)
    assert [(r.partition, r.key, r.value, r.headers, r.timestamp_ms) for r in found] == [
        (0, None, b"v2", [], at),
        (1, b"k3", None, [], at),
        (1, "käse".encode(), b"", [("ü", b"\x00\xff")], at),
        (2, b"k1", b"v1", [("a", b"1"), ("b", None)], at),
    ]


def test_a_thread_that_registers_the_format_finds_it(spark: Any, kafka: KafkaCluster) -> None:
    from cyproducer.spark import register

    kafka.create_topic("spark-thread", 1)
    df = spark.range(10).selectExpr("cast(id as string) as value")

    def save() -> None:
        register(spark)
        write(df, kafka, topic="spark-thread")

    with ThreadPoolExecutor(1) as threads:
        threads.submit(save).result()
    assert len(read_all(kafka.bootstrap_servers, "spark-thread", 10)) == 10


def test_each_row_goes_to_its_own_topic_in_order(spark: Any, kafka: KafkaCluster) -> None:
    for number in range(3):
        kafka.create_topic(f"spark-by-row-{number}", 1)
    df = spark.range(0, 30_000, 1, 1).selectExpr(
        "concat('spark-by-row-', id % 3) as topic", "cast(id as string) as value"
    )
    write(df, kafka)
    for number in range(3):
        found = read_all(kafka.bootstrap_servers, f"spark-by-row-{number}", 10_000)
        assert [int(r.value or b"-1") for r in found] == list(range(number, 30_000, 3))


def test_the_option_topic_overrides_the_column(spark: Any, kafka: KafkaCluster) -> None:
    kafka.create_topic("spark-option", 1)
    write(
        spark.createDataFrame([("elsewhere", "v")], "topic string, value string"), kafka, topic="spark-option"
    )
    assert [r.value for r in read_all(kafka.bootstrap_servers, "spark-option", 1)] == [b"v"]


def test_empty_and_very_many_partitions_lose_nothing(spark: Any, kafka: KafkaCluster) -> None:
    kafka.create_topic("spark-tiny", 3)
    df = spark.range(0, 400, 1, 200).filter("id % 4 = 0").selectExpr("cast(id as string) as value")
    write(df, kafka, topic="spark-tiny")
    found = read_all(kafka.bootstrap_servers, "spark-tiny", 100)
    assert Counter(int(r.value or b"-1") for r in found) == Counter(range(0, 400, 4))


@pytest.mark.parametrize(
    ("select", "more", "says"),
    [
        (["id as value"], {"topic": "t"}, "column 'value' is bigint: must be string or binary"),
        (["'x' as key"], {"topic": "t"}, "there is no column 'value', only 'key'"),
        (["'x' as value"], {}, "no topic: give option 'topic'"),
        (["'x' as value"], {"topic": "t", "kafka.acks": "1"}, "needs an idempotent producer"),
        (["'x' as value"], {"topic": "t", "summaryCallback": "no.such:function"}, "No module named 'no'"),
        (
            ["'x' as value", "1L as timestamp"],
            {"topic": "t"},
            "column 'timestamp' is bigint: must be timestamp",
        ),
        (["'x' as value"], {"topic": "t", "topc": "t"}, "option 'topc' is unknown: did you mean 'topic'?"),
        (["'x' as value"], {"topic": "t", "kafka.linger.msec": "1"}, "linger.msec"),
        (["'x' as value"], {"topic": "t", "kafka.value.serializer": "S"}, "can't be given"),
        (["'x' as value"], {"topic": "t", "deliveryGuarantee": "exactly-once"}, "transactionalIdPrefix"),
        (
            ["'x' as value"],
            {"topic": "t", "createTopic.partitions": "0"},
            "must be a whole number, at least 1",
        ),
    ],
)
def test_errors_in_options_and_schema_are_raised_before_a_task_starts(
    spark: Any, kafka: KafkaCluster, select: list[str], more: dict[str, str], says: str
) -> None:
    with pytest.raises(Exception, match="cyproducer") as raised:
        write(spark.range(1).selectExpr(*select), kafka, **more)
    assert says in str(raised.value)
    assert "Task" not in str(raised.value).split("\n")[0]
    if "summaryCallback" in more:
        # Spark prints many more lines of an error that is raised while it pickles the writer.
        assert len(str(raised.value).splitlines()) == 5


def test_a_task_fails_with_topic_and_cause_if_a_row_cannot_be_written(
    spark: Any, kafka: KafkaCluster
) -> None:
    kafka.create_topic("spark-too-large", 1)
    df = spark.range(0, 10, 1, 1).selectExpr("repeat('x', cast(if(id = 7, 2000000, 1) as int)) as value")
    with pytest.raises(Exception, match="RowsFailedError: topic 'spark-too-large': RecordTooLargeError"):
        write(df, kafka, topic="spark-too-large")


ONCE = {
    "deliveryGuarantee": "exactly-once",
    "transactionalIdPrefix": "spark-sink",
    "txnAppId": "letters",
    "txnVersion": "1",
}


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_dead_letters_have_the_row_and_the_cause(spark: Any, kafka: KafkaCluster, guarantee: str) -> None:
    dead_topic, alive_topic = f"spark-dead-{guarantee}", f"spark-alive-{guarantee}"
    kafka.create_topic(dead_topic, 1)
    kafka.create_topic(alive_topic, 1)
    df = spark.range(0, 1000, 1, 1).selectExpr(
        f"if(id = 3, null, if(id = 5, 'bad name!', '{alive_topic}')) as topic",
        "cast(id as string) as key",
        "repeat('x', cast(if(id % 100 = 7, 2000000, 1) as int)) as value",
    )
    if guarantee == "at-least-once":
        write(df, kafka, deadLetterTopic=dead_topic)
    else:
        # The second time it counts the rows only.
        for _ in range(2):
            write(df, kafka, deadLetterTopic=dead_topic, **ONCE)
    alive = read_all(kafka.bootstrap_servers, alive_topic, 988)
    assert [int(r.key or b"-1") for r in alive] == [
        n for n in range(1000) if n not in (3, 5) and n % 100 != 7
    ]
    dead = {int(r.key or b"-1"): r for r in read_all(kafka.bootstrap_servers, dead_topic, 12)}
    assert sorted(dead) == sorted([3, 5, *range(7, 1000, 100)])
    large = dict(dead[7].headers)
    assert large["cyproducer.error.topic"] == alive_topic.encode()
    assert large["cyproducer.error.class"] == b"RecordTooLargeError"
    assert large["cyproducer.error.bytes"] == b"2000001"
    assert set(dead[7].value or b"") == {ord("x")}
    assert "cyproducer.error.topic" not in dict(dead[3].headers)
    assert b"column 'topic' is null in 1 of" in (dict(dead[3].headers)["cyproducer.error.message"] or b"")
    assert dict(dead[5].headers)["cyproducer.error.class"] == b"InvalidTopicError"


def test_a_missing_topic_is_created_only_on_request(spark: Any, kafka: KafkaCluster) -> None:
    df = spark.range(10).selectExpr("cast(id as string) as value")
    with pytest.raises(Exception, match="'spark-made'"):
        # One task: with two, the second could still run after the job failed, and find the topic created by
        # then.
        write(df.coalesce(1), kafka, topic="spark-made", **{"kafka.max.block.ms": "1500"})
    made = {"createTopic.partitions": "5", "createTopic.replication": "1"}
    for _ in range(2):
        write(df, kafka, topic="spark-made", **made)
    found = read_all(kafka.bootstrap_servers, "spark-made", 20)
    assert Counter(r.value for r in found) == Counter({str(n).encode(): 2 for n in range(10)})
    write(df, kafka, topic="spark-made-once", **made, **ONCE | {"txnAppId": "made"})
    assert len(read_all(kafka.bootstrap_servers, "spark-made-once", 10)) == 10


def test_sql_writes_with_options_of_the_statement_or_of_a_view(spark: Any, kafka: KafkaCluster) -> None:
    kafka.create_topic("spark-sql", 1)
    given = f"'kafka.bootstrap.servers' '{kafka.bootstrap_servers}', 'topic' 'spark-sql'"
    spark.sql(f"CREATE TABLE sql_table (value STRING) USING cyproducer OPTIONS ({given})")
    spark.sql(f"CREATE TEMPORARY VIEW sql_view (value STRING) USING cyproducer OPTIONS ({given})")
    with pytest.raises(Exception, match="Spark hands no options of a table"):
        spark.sql("INSERT INTO sql_table VALUES ('lost')")
    with_options = given.replace("' '", "' = '")
    spark.sql(f"INSERT INTO sql_table WITH ({with_options}) VALUES ('statement')")
    spark.sql("INSERT INTO sql_view VALUES ('view')")
    df = spark.createDataFrame([("table",)], "value string")
    writer = df.write.format("cyproducer").mode("append").options(**options(kafka, topic="spark-sql"))
    # The first makes the table, which also has no options.
    for _ in range(2):
        writer.saveAsTable("sql_saved")
    df.writeTo("sql_table").options(**options(kafka, topic="spark-sql")).append()
    found = read_all(kafka.bootstrap_servers, "spark-sql", 5)
    assert [r.value for r in found] == [b"statement", b"view", b"table", b"table", b"table"]


def test_sql_writes_to_a_table_with_the_settings_of_the_session(spark: Any, kafka: KafkaCluster) -> None:
    from cyproducer.spark import register

    kafka.create_topic("spark-sql-session", 1)
    spark.conf.set("spark.cyproducer.kafka.bootstrap.servers", kafka.bootstrap_servers)
    try:
        register(spark)
        spark.sql("CREATE TABLE sql_of_session (topic STRING, value STRING) USING cyproducer")
        spark.sql("INSERT INTO sql_of_session VALUES ('spark-sql-session', 'v')")
    finally:
        spark.conf.unset("spark.cyproducer.kafka.bootstrap.servers")
        register(spark)
    assert [r.value for r in read_all(kafka.bootstrap_servers, "spark-sql-session", 1)] == [b"v"]


def test_values_in_confluents_wire_format(spark: Any, kafka: KafkaCluster) -> None:
    from pyspark.sql.functions import col

    from cyproducer.spark import confluent_wire

    kafka.create_topic("spark-wire", 1)
    rows = [("1", b"\x02\x00", "t\xfc"), ("2", None, "")]
    df = spark.createDataFrame(rows, "key string, encoded binary, text string").coalesce(1)
    for value in (confluent_wire("encoded", 0x01020304), confluent_wire(col("text"), 2**31 - 1)):
        write(df.select("key", value.alias("value")), kafka, topic="spark-wire")
    assert [r.value for r in read_all(kafka.bootstrap_servers, "spark-wire", 4)] == [
        b"\x00\x01\x02\x03\x04\x02\x00",
        None,
        b"\x00\x7f\xff\xff\xfft\xc3\xbc",
        b"\x00\x7f\xff\xff\xff",
    ]


SUMMARIES = """
def keep(summary):
    with open(FILE, "a") as file:
        ranges = [tuple(vars(r).values()) for r in summary.ranges]
        file.write(repr((summary.rows, summary.bytes, summary.tasks, ranges)))
def fail(summary):
    keep(summary)
    raise RuntimeError("no")
"""


@pytest.mark.parametrize("function", ["keep", "fail"])
def test_the_summary_callback_gets_the_summary(
    kafka: KafkaCluster, spark: Any, tmp_path: Path, function: str
) -> None:
    topic, module = f"spark-summary-{function}", f"summaries_{function}"
    kafka.create_topic(topic, 2)
    told = tmp_path / "told"
    (tmp_path / f"{module}.py").write_text(SUMMARIES.replace("FILE", repr(str(told))))
    spark.sparkContext.addPyFile(str(tmp_path / f"{module}.py"))
    df = spark.range(0, 1000, 1, 4).selectExpr("cast(id % 2 as int) as partition", "'1234567890' as value")
    write(df, kafka, topic=topic, summaryCallback=f"{module}:{function}")
    rows, size, tasks, ranges = ast.literal_eval(told.read_text())
    assert (rows, size, tasks) == (1000, 10_000, 4)
    assert ranges == [(topic, 0, 0, 499, 500), (topic, 1, 0, 499, 500)]


def lines(directory: Path, name: str, numbers: range) -> None:
    """Writes a file for a stream to read, atomically."""
    part = directory.with_name(f"{name}.part")
    part.write_text("".join(f"{number}\n" for number in numbers))
    part.rename(directory / f"{name}.txt")


def run_stream(spark: Any, kafka: KafkaCluster, source: Path, checkpoint: Path, topic: str) -> None:
    query = (
        spark.readStream.format("text")
        .load(str(source))
        .writeStream.format("cyproducer")
        .options(**options(kafka, topic=topic, checkpointLocation=str(checkpoint)))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)


def test_a_stream_continues_from_its_checkpoint(spark: Any, kafka: KafkaCluster, tmp_path: Path) -> None:
    kafka.create_topic("spark-stream", 3)
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()
    lines(source, "a", range(1000))
    run_stream(spark, kafka, source, checkpoint, "spark-stream")
    lines(source, "b", range(1000, 3000))
    run_stream(spark, kafka, source, checkpoint, "spark-stream")
    found = read_all(kafka.bootstrap_servers, "spark-stream", 3000)
    assert Counter(int(r.value or b"-1") for r in found) == Counter(range(3000))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"summaryCallback": "nowhere.at.all:note"}, "'summaryCallback'='nowhere.at.all:note': No module"),
        ({"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.max.block.ms": "300"}, "the driver can't connect"),
        (
            {
                "kafka.security.protocol": "SSL",
                "kafka.ssl.truststore.location": "/no/such.pem",
                "kafka.ssl.truststore.type": "PEM",
            },
            "kafka.ssl.truststore.location='/no/such.pem': No such file",
        ),
    ],
    ids=["callback", "broker", "truststore"],
)
def test_an_error_of_a_streams_driver_has_five_lines_before_sparks_own(
    spark: Any, kafka: KafkaCluster, tmp_path: Path, more: dict[str, str], says: str
) -> None:
    (tmp_path / "in").mkdir()
    lines(tmp_path / "in", "a", range(1))
    given = options(kafka, topic="any", checkpointLocation=str(tmp_path / "checkpoint")) | more
    stream = spark.readStream.format("text").load(str(tmp_path / "in")).writeStream.format("cyproducer")
    query = stream.options(**given).start()
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as raised:
        query.awaitTermination(120)
    said, _, of_spark = str(raised.value).partition("=== Streaming Query ===")
    assert of_spark
    assert len(said.splitlines()) == 5
    assert says in said.splitlines()[3]


def test_a_stream_in_update_mode_needs_foreach_batch(spark: Any, kafka: KafkaCluster, tmp_path: Path) -> None:
    from cyproducer.spark import foreach_batch

    kafka.create_topic("spark-update", 1)
    source = tmp_path / "in"
    source.mkdir()
    counts = (
        spark.readStream.format("text")
        .load(str(source))
        .groupBy("value")
        .count()
        .selectExpr("value as key", "cast(count as string) as value")
    )

    def run(name: str, writer: Any) -> None:
        checkpoint = str(tmp_path / f"checkpoint-{name}")
        writer = writer.outputMode("update").option("checkpointLocation", checkpoint)
        assert writer.trigger(availableNow=True).start().awaitTermination(120)

    lines(source, "a", range(2))
    with pytest.raises(Exception, match="cyproducer does not support Update mode"):
        run("format", counts.writeStream.format("cyproducer").options(**options(kafka, topic="spark-update")))
    write = foreach_batch("spark-update", bootstrap_servers=kafka.bootstrap_servers)
    run("batch", counts.writeStream.foreachBatch(write))
    lines(source, "b", range(1))
    run("batch", counts.writeStream.foreachBatch(write))
    found = read_all(kafka.bootstrap_servers, "spark-update", 3)
    # The second batch wrote only what it changed.
    assert sorted((r.key, r.value) for r in found) == [(b"0", b"1"), (b"0", b"2"), (b"1", b"1")]


def test_the_page_shows_a_streams_progress_in_one_place(
    spark: Any, kafka: KafkaCluster, tmp_path: Path
) -> None:
    kafka.create_topic("orders", 1)
    module, listener = (
        block.text.replace("/tmp/", f"{tmp_path}/").replace("localhost:9092", kafka.bootstrap_servers)
        for block in blocks(ROOT / "docs" / "spark.md", "python")
        if "orders-progress" in block.text
    )
    (tmp_path / "stream_progress.py").write_text(module)
    listener = listener.replace('"stream_progress.py"', repr(str(tmp_path / "stream_progress.py")))
    source = tmp_path / "in"
    source.mkdir()
    told: queue.Queue[str] = queue.Queue()
    names = {"spark": spark, "stream": spark.readStream.format("text").load(str(source)), "print": told.put}
    exec(listener, names)
    try:
        for batch, rows in enumerate((3, 5)):
            lines(source, str(batch), range(rows))
            assert re.fullmatch(
                rf"orders, batch {batch}: {rows} rows, \d+ rows/s, {rows} bytes, 0 retries, 0 dead letters, "
                r"p99 \d+ ms",
                told.get(timeout=120),
            )
    finally:
        for query in spark.streams.active:
            query.stop()
