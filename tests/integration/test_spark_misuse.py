"""Tests what Spark does with the functions where they don't belong, and with a trigger that runs no sink in
Python; and the page's functions over ``shared_producer``. With a classic session and with Spark Connect.

The broker is embedded. The tests have the marker of the tests with a real Kafka because Spark also needs
Java.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cyproducer.testing import EmbeddedBroker
from tests.forked import needs_module, needs_proc
from tests.integration.consume import read_all
from tests.programs import ROOT, Program
from tools.harness.until import PATIENCE_S, looks

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    needs_module("pyspark"),
    needs_proc,
]

FUNCTIONS = """
import sys
from pathlib import Path

directory, root, bootstrap, connect = Path(sys.argv[1]), *sys.argv[2:]
# At the end: an installed package comes before the sources.
sys.path.append(root)
from cyproducer.spark import produce_arrow, produce_partitions
from tests.pages import programs
from tools.harness.spark_session import connect_session, spark_session

# Before the session, and so before it can be known that it is one of Spark Connect.
early = produce_partitions("early", bootstrap_servers=bootstrap)


def tried(name, work):
    try:
        work()
    except Exception as error:
        print(name, "raised", " ".join(str(error).split()), flush=True)
    else:
        print(name, "ended", flush=True)


with (connect_session if connect == "True" else spark_session)(directory / "spark") as spark:
    frame = spark.range(20).selectExpr("cast(id as string) as value")
    frame.foreachPartition(early)
    frame.foreachPartition(produce_partitions("without", results=False, bootstrap_servers=bootstrap))
    large = produce_partitions("without", results=False, bootstrap_servers=bootstrap, max_request_size=1000)
    tried("large", lambda: spark.sql("select repeat('x', 5000) as value").foreachPartition(large))

    def stream(function):
        source = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
        rows = source.selectExpr("cast(value as string) as value")
        query = rows.writeStream.foreach(function).start()
        try:
            query.awaitTermination(100)
        finally:
            query.stop()

    misused = {
        "lazy": produce_partitions("misused", bootstrap_servers=bootstrap),
        "eager": produce_partitions("misused", results=False, bootstrap_servers=bootstrap),
        "arrow": produce_arrow("misused", bootstrap_servers=bootstrap),
    }
    for name, function in misused.items():
        tried(f"foreach {name}", lambda: frame.foreach(function))
        tried(f"stream {name}", lambda: stream(function))
    tried("partition arrow", lambda: frame.foreachPartition(misused["arrow"]))

    (directory / "in").mkdir()
    (directory / "in" / "lines.txt").write_text("1\\n2\\n3\\n")
    names = {
        "__name__": "__main__",
        "df": frame.selectExpr("value", "value < 5 as paid"),
        "stream": spark.readStream.format("text").load(str(directory / "in")),
    }
    examples = [text for text in programs("docs/spark.md") if "SharedConfig(" in text]
    for text in examples:
        exec(text.replace("localhost:9092", bootstrap), names)
    (query,) = spark.streams.active
    query.processAllAvailable()
    query.stop()
    print("examples", len(examples))
    print("all tried", flush=True)
"""


@pytest.mark.parametrize("connect", [False, pytest.param(True, marks=needs_module("grpc"))])
def test_a_function_writes_all_rows_or_raises(connect: bool, tmp_path: Path) -> None:
    with EmbeddedBroker() as broker:
        for topic in ("early", "without", "misused", "paid", "open", "orders"):
            broker.create_topic(topic, 1)
        with Program(FUNCTIONS, str(tmp_path), str(ROOT), broker.bootstrap_servers, str(connect)) as program:
            program.hear("all tried")
            assert program.end() == 0
        for topic in ("early", "without"):
            found = [int(r.value or b"-1") for r in read_all(broker.bootstrap_servers, topic, 20)]
            assert sorted(found) == list(range(20))
        assert read_all(broker.bootstrap_servers, "misused", 0) == []
        for topic, rows in (("paid", range(5)), ("open", range(5, 20)), ("orders", range(1, 4))):
            found = [int(r.value or b"-1") for r in read_all(broker.bootstrap_servers, topic, len(rows))]
            assert sorted(found) == list(rows)
        assert "examples 2" in program.said
    raised = [line for line in program.said.splitlines() if " raised " in line]
    assert [line.split(" raised ")[0] for line in raised] == [
        "large",
        *(f"{where} {what}" for what in ("lazy", "eager", "arrow") for where in ("foreach", "stream")),
        "partition arrow",
    ]
    assert "RecordTooLargeError" in raised[0]
    for line in raised[1:-1]:
        assert "use foreachPartition()" in line
    assert "must be pyarrow.RecordBatch" in raised[-1]


CONTINUOUS = """
import sys
from pathlib import Path

directory, root, bootstrap = Path(sys.argv[1]), *sys.argv[2:]
sys.path.append(root)
from tools.harness.spark_session import spark_session

with spark_session(directory / "spark") as spark:
    query = (
        spark.readStream.format("rate").option("rowsPerSecond", 100).load()
        .selectExpr("cast(value as string) as value")
        .writeStream.format("cyproducer")
        .options(**{"kafka.bootstrap.servers": bootstrap, "topic": "continuous"})
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(continuous="100 milliseconds")
        .start()
    )
    query.awaitTermination()
"""


def test_a_continuous_trigger_is_said_to_write_nothing_and_nothing_is_noted_as_written(
    tmp_path: Path,
) -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic("continuous", 1)
        with Program(CONTINUOUS, str(tmp_path), str(ROOT), broker.bootstrap_servers) as program:
            said = program.hear("cyproducer.errors.KafkaConfigurationError: ")
            assert "trigger(continuous=...) does not work" in said
            offsets = tmp_path / "checkpoint" / "offsets"
            for _ in looks(PATIENCE_S):
                if len(list(offsets.glob("[0-9]*"))) > 5:
                    break
            else:
                raise AssertionError("the query does not go on")
            assert list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")) == []
        assert read_all(broker.bootstrap_servers, "continuous", 0) == []
