"""Tests the functions that Spark calls on its workers: row by row, with Arrow batches, and by
``foreachBatch``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cyproducer.structs import RecordMetadata
from tests.forked import needs_module
from tests.integration.consume import read_all
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.spark_session import spark_session

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300), needs_module("pyspark")]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


def test_each_record_of_a_partition_has_metadata(spark: Any, kafka: KafkaCluster) -> None:
    from cyproducer.spark import produce_partitions

    kafka.create_topic("rows-map", 3)
    elements = [
        b"bytes",
        "text",
        ("key", "value"),
        {"value": "v", "key": "k", "partition": 2, "timestamp": 5},
    ]
    produce = produce_partitions("rows-map", bootstrap_servers=kafka.bootstrap_servers)
    told = spark.sparkContext.parallelize(elements * 50, 2).mapPartitions(produce).collect()
    assert all(isinstance(each, RecordMetadata) for each in told)
    found = {(r.partition, r.offset): r for r in read_all(kafka.bootstrap_servers, "rows-map", 200)}
    assert len(found) == 200
    records = [found[each.partition, each.offset] for each in told]
    expected = [(None, b"bytes"), (None, b"text"), (b"key", b"value"), (b"k", b"v")] * 50
    assert [(r.key, r.value) for r in records] == expected
    assert [r.timestamp_ms for r in records] == [each.timestamp for each in told]
    assert {(each.topic, each.partition, each.timestamp) for each in told[3::4]} == {("rows-map", 2, 5)}


def test_rows_of_a_data_frame_and_serializers(spark: Any, kafka: KafkaCluster) -> None:
    from cyproducer.spark import produce_partitions

    kafka.create_topic("rows-foreach", 1)
    suffix = "!"
    produce = produce_partitions(
        bootstrap_servers=kafka.bootstrap_servers, value_serializer=lambda value: f"{value}{suffix}".encode()
    )
    df = spark.range(0, 1000, 1, 3).selectExpr("'rows-foreach' as topic", "id as value")
    df.foreachPartition(produce)
    found = read_all(kafka.bootstrap_servers, "rows-foreach", 1000)
    assert Counter(r.value for r in found) == Counter(b"%d!" % number for number in range(1000))


def test_pairs_without_results(spark: Any, kafka: KafkaCluster) -> None:
    from cyproducer.spark import produce_partitions

    kafka.create_topic("rows-no-results", 1)
    produce = produce_partitions("rows-no-results", results=False, bootstrap_servers=kafka.bootstrap_servers)
    rdd = spark.sparkContext.parallelize([(b"%d" % number, b"v") for number in range(1000)], 2)
    assert rdd.mapPartitions(produce).count() == 0
    found = read_all(kafka.bootstrap_servers, "rows-no-results", 1000)
    assert Counter(r.key for r in found) == Counter(b"%d" % number for number in range(1000))


def test_a_worker_has_one_producer_for_all_of_its_tasks(spark: Any, kafka: KafkaCluster) -> None:
    from cyproducer.spark import produce_partitions

    kafka.create_topic("rows-shared", 1)
    # A unique client id, because these workers also have other tests' producers.
    named = "rows-shared"
    produce = produce_partitions(named, bootstrap_servers=kafka.bootstrap_servers, client_id=named)

    def tell(elements: Iterator[bytes]) -> Iterator[tuple[int, int, int]]:
        import os

        from cyproducer.spark import sharing

        state: Any = vars(sharing)
        if "made_by_test" not in state:
            make, made = state["KafkaProducer"], []

            def counted(**config: Any) -> Any:
                producer = make(**config)
                if config.get("client_id") == named:
                    made.append(producer)
                return producer

            state.update(made_by_test=made, KafkaProducer=counted)
        sent = len(list(produce(elements)))
        yield os.getpid(), len(state["made_by_test"]), sent

    told = [
        each
        for _ in range(3)
        for each in spark.sparkContext.parallelize([b"v"] * 8, 4).mapPartitions(tell).collect()
    ]
    assert [sent for _, _, sent in told] == [2] * 12
    assert {made for _, made, _ in told} == {1}
    # At most two tasks run at a time, so reused workers run several tasks each.
    workers = Counter(worker for worker, _, _ in told)
    assert len(workers) <= len(told) // 2, workers


def test_a_record_that_cannot_be_written_fails_its_task(spark: Any, kafka: KafkaCluster) -> None:
    from cyproducer.spark import produce_partitions

    kafka.create_topic("rows-fail", 1)
    produce = produce_partitions("rows-fail", bootstrap_servers=kafka.bootstrap_servers)
    elements = spark.sparkContext.parallelize([b"fine", b"x" * 2_000_000], 1)
    with pytest.raises(Exception, match="RowsFailedError: topic 'rows-fail': RecordTooLargeError"):
        elements.mapPartitions(produce).collect()


def test_produce_arrow_returns_the_outcome_of_each_row(spark: Any, kafka: KafkaCluster) -> None:
    from cyproducer.spark import PRODUCED_SCHEMA, produce_arrow

    kafka.create_topic("rows-arrow", 3)
    df = spark.range(0, 50_000, 1, 2).selectExpr(
        "cast(id as string) as key", "cast(cast(id as string) as binary) as value"
    )
    produce = produce_arrow("rows-arrow", bootstrap_servers=kafka.bootstrap_servers)
    told = df.mapInArrow(produce, PRODUCED_SCHEMA).collect()
    assert {row.error for row in told} == {None}
    found = read_all(kafka.bootstrap_servers, "rows-arrow", 50_000)
    assert Counter((row.partition, row.offset) for row in told) == Counter(
        (r.partition, r.offset) for r in found
    )


def test_failed_rows_have_their_cause(spark: Any, kafka: KafkaCluster) -> None:
    from cyproducer.spark import PRODUCED_SCHEMA, produce_arrow

    kafka.create_topic("rows-small", 2, configs={"max.message.bytes": "500"})
    df = spark.range(0, 10, 1, 1).selectExpr(
        "repeat('x', cast(if(id = 4, 1000, 1) as int)) as value", "cast(id % 2 as int) as partition"
    )
    produce = produce_arrow("rows-small", bootstrap_servers=kafka.bootstrap_servers)
    told = df.mapInArrow(produce, PRODUCED_SCHEMA).collect()
    assert [number for number, row in enumerate(told) if row.error is not None] == [4]
    assert told[4].offset is None
    assert told[4].error.startswith("[Error 10] MessageSizeTooLargeError: ")
    assert len(read_all(kafka.bootstrap_servers, "rows-small", 9)) == 9


def test_foreach_batch_writes_and_reports_a_summary(spark: Any, kafka: KafkaCluster, tmp_path: Path) -> None:
    from cyproducer.spark import WriteSummary, foreach_batch

    kafka.create_topic("rows-batch", 2)
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.txt").write_text("".join(f"{number}\n" for number in range(500)))
    told: list[tuple[int, WriteSummary]] = []
    query = (
        spark.readStream.format("text")
        .load(str(source))
        .writeStream.foreachBatch(
            foreach_batch(
                "rows-batch",
                on_summary=lambda batch, summary: told.append((batch, summary)),
                bootstrap_servers=kafka.bootstrap_servers,
            )
        )
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    found = read_all(kafka.bootstrap_servers, "rows-batch", 500)
    assert Counter(int(r.value or b"-1") for r in found) == Counter(range(500))
    ((batch, summary),) = told
    assert (batch, summary.rows, summary.dead_letters) == (0, 500, 0)
    assert summary.bytes == sum(len(str(number)) for number in range(500))
    assert sum(r.records for r in summary.ranges) == 500


def test_a_foreach_writer_takes_a_stream_in_update_mode(
    spark: Any, kafka: KafkaCluster, tmp_path: Path
) -> None:
    """Spark's real-time mode has this mode only, and no other sink in Python."""
    from cyproducer.spark import foreach_writer

    kafka.create_topic("rows-update", 2)
    kafka.create_topic("rows-update-dead", 1)
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.txt").write_text("".join(f"{number}\n" for number in range(300)))
    writer = foreach_writer(
        "rows-update",
        dead_letter_topic="rows-update-dead",
        bootstrap_servers=kafka.bootstrap_servers,
        max_request_size=10_000,
    )
    large = "if(value = '7', repeat('7', 20000), value) as value"
    query = (
        spark.readStream.format("text")
        .load(str(source))
        .groupBy("value")
        .count()
        .selectExpr("value as key", large)
        .writeStream.foreach(writer)
        .outputMode("update")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    found = read_all(kafka.bootstrap_servers, "rows-update", 299)
    assert Counter(int(r.value or b"-1") for r in found) == Counter(set(range(300)) - {7})
    (dead,) = read_all(kafka.bootstrap_servers, "rows-update-dead", 1)
    assert dead.key == b"7"
