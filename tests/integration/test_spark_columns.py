"""Tests every kind of column that ``format("cyproducer")`` accepts, in batches and streams: another client
reads the rows back.

The rows come from Parquet files, which support all of these types, including dictionaries, and which batches
and streams can read. The session's time zone is not UTC: a timestamp without a zone must not be interpreted
in the session's zone.
"""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cyproducer.records.hashing import murmur2
from tests.forked import needs_module
from tests.integration.consume import read_all
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.spark_session import spark_session

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300), needs_module("pyspark"), needs_module("pyarrow")]

WHEN = datetime.datetime(2025, 7, 4, 5, 6, 7, 891000)
WHEN_MS = 1_751_605_567_891
"""The same time, in UTC."""
DAY = datetime.timedelta(days=1)
HEADERS = "array<struct<{}: string, {}: {}>>"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    zone = {"spark__sql__session__timeZone": "America/New_York"}
    with spark_session(tmp_path_factory.mktemp("spark"), **zone) as session:
        yield session


@pytest.fixture(params=["batch", "stream"])
def how(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


def parquet(directory: Path, columns: dict[str, Any], files: int = 1) -> Path:
    """Writes Parquet files with these columns (pyarrow arrays), in a directory, because a stream reads
    directories."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    directory.mkdir()
    table = pa.table(columns)
    step = -(-table.num_rows // files)
    for number in range(files):
        pq.write_table(table.slice(number * step, step), directory / f"{number}.parquet")
    return directory


def deliver(
    spark: Any,
    kafka: KafkaCluster,
    how: str,
    source: Path,
    schema: str,
    change: Callable[[Any], Any] = lambda df: df,
    **more: str,
) -> None:
    """Writes the rows of ``source``, which has ``schema``, to Kafka. ``change`` is applied to the
    DataFrame."""
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, **more}
    if how == "batch":
        df = change(spark.read.schema(schema).parquet(str(source)))
        df.write.format("cyproducer").mode("append").options(**given).save()
        return
    df = change(spark.readStream.schema(schema).parquet(str(source)))
    given["checkpointLocation"] = str(source.with_name("checkpoint"))
    query = df.writeStream.format("cyproducer").options(**given).trigger(availableNow=True).start()
    assert query.awaitTermination(240)


def pairs(*rows: list[Any] | None, value: str = "binary", names: tuple[str, str] = ("key", "value")) -> Any:
    """Returns a column of headers. A row is None or a list of headers: (name, value), or None for a null
    struct."""
    import pyarrow as pa

    content = pa.string() if value == "string" else pa.binary()
    of = pa.list_(pa.struct([(names[0], pa.string()), (names[1], content)]))
    return pa.array(
        [
            None
            if row is None
            else [None if each is None else dict(zip(names, each, strict=True)) for each in row]
            for row in rows
        ],
        of,
    )


@pytest.mark.parametrize(
    ("partition", "key", "value", "zone", "header"),
    [
        ("byte", "string", "binary", "UTC", "string"),
        ("short", "binary", "string", None, "binary"),
        ("int", "binary", "binary", "Asia/Kolkata", "string"),
        ("long", "string", "string", None, "binary"),
    ],
)
def test_columns_of_every_type(
    spark: Any,
    kafka: KafkaCluster,
    tmp_path: Path,
    how: str,
    partition: str,
    key: str,
    value: str,
    zone: str | None,
    header: str,
) -> None:
    import pyarrow as pa

    numbers = {"byte": pa.int8(), "short": pa.int16(), "int": pa.int32(), "long": pa.int64()}
    texts = {"string": pa.string(), "binary": pa.binary()}
    topic = f"spark-types-{partition}-{how}"
    kafka.create_topic(topic, 3)
    count = 30
    # With a zone the column has instants, without one wall-clock times.
    times = [WHEN.replace(tzinfo=datetime.UTC if zone else None) + DAY * n for n in range(count)]
    names = ("key", "value") if partition != "long" else ("name", "content")
    columns = {
        "key": pa.array([f"käse {n}".encode() for n in range(count)]).cast(texts[key]),
        "value": pa.array([f"wört {n}".encode() for n in range(count)]).cast(texts[value]),
        "partition": pa.array([n % 3 for n in range(count)], numbers[partition]),
        "timestamp": pa.array(times, pa.timestamp("us", tz=zone)),
        "headers": pairs(*([(f"h{n}", b"%d" % n), ("ü", b"")] for n in range(count)), names=names)
        if header == "binary"
        else pairs(*([(f"h{n}", str(n)), ("ü", "")] for n in range(count)), value="string", names=names),
        "nobody asked": pa.array(range(count)),
    }
    instant = "timestamp" if zone else "timestamp_ntz"
    schema = (
        f"key {key}, value {value}, partition {partition}, timestamp {instant}, "
        f"headers {HEADERS.format(*names, header)}, `nobody asked` bigint"
    )
    deliver(spark, kafka, how, parquet(tmp_path / "in", columns), schema, topic=topic)
    found = read_all(kafka.bootstrap_servers, topic, count)
    assert [(r.partition, r.key, r.value, r.timestamp_ms, r.headers) for r in found] == [
        (
            n % 3,
            f"käse {n}".encode(),
            f"wört {n}".encode(),
            WHEN_MS + n * 86_400_000,
            [(f"h{n}", b"%d" % n), ("ü", b"")],
        )
        for n in sorted(range(count), key=lambda n: (n % 3, n))
    ]


def test_null_and_empty_values_in_every_column(
    spark: Any, kafka: KafkaCluster, tmp_path: Path, how: str
) -> None:
    import pyarrow as pa

    topic = f"spark-nulls-{how}"
    kafka.create_topic(topic, 3)
    utc = WHEN.replace(tzinfo=datetime.UTC)
    rows: list[tuple[Any, ...]] = [
        # key, value, partition, timestamp, headers
        (None, b"no key", 0, utc, [("a", b"1")]),
        ("no value", None, 1, utc, [("a", None)]),
        ("no partition", b"v", None, utc, []),
        ("no timestamp", b"v", 2, None, None),
        ("no headers", b"v", 0, utc, None),
        ("nothing else", b"v", None, None, None),
        ("", b"empty key", 0, utc, []),
        ("empty value", b"", 1, utc, []),
        ("", b"", 2, utc, [("", b""), ("", b""), ("x", None)]),
        ("", None, 1, utc, []),
        (None, b"", 2, utc, []),
        ("the epoch itself", b"v", 0, datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC), []),
    ]
    keys, values, partitions, times, headers = zip(*rows, strict=True)
    columns = {
        "key": pa.array(keys, pa.string()),
        "value": pa.array(values, pa.binary()),
        "partition": pa.array(partitions, pa.int32()),
        "timestamp": pa.array(times, pa.timestamp("us", tz="UTC")),
        "headers": pairs(*headers),
    }
    schema = (
        "key string, value binary, partition int, timestamp timestamp, "
        f"headers {HEADERS.format('key', 'value', 'binary')}"
    )
    began = int(time.time() * 1000) - 1000
    deliver(spark, kafka, how, parquet(tmp_path / "in", columns), schema, topic=topic)
    found = read_all(kafka.bootstrap_servers, topic, len(rows))
    now = range(began, int(time.time() * 1000) + 1000)

    def chosen(key: str) -> int:
        return (murmur2(key.encode()) & 0x7FFFFFFF) % 3

    def wanted(row: tuple[Any, ...]) -> tuple[Any, ...]:
        key, value, partition, when, given = row
        at = chosen(key) if partition is None else partition
        when_ms = "now" if when is None else round(when.timestamp() * 1000)
        return at, None if key is None else key.encode(), value, when_ms, given or []

    there = [
        (r.partition, r.key, r.value, "now" if r.timestamp_ms in now else r.timestamp_ms, r.headers)
        for r in found
    ]
    assert sorted(there, key=repr) == sorted(map(wanted, rows), key=repr)


BAD = {
    1: ("headers", "a header has no key"),
    2: ("headers", "a header has no key"),
    4: ("timestamp", "is not a valid timestamp: must be at or after the epoch"),
    5: ("value", "and so is the key"),
    7: ("partition", "7 is not a partition of the topic, which has 3"),
    8: ("partition", "-1 is not a partition of the topic"),
}


def some_bad(directory: Path) -> tuple[Path, str]:
    """Writes a file of ten rows, of which those in ``BAD`` can't be written to Kafka."""
    import pyarrow as pa

    utc = WHEN.replace(tzinfo=datetime.UTC)
    early = datetime.datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=datetime.UTC)
    headers: list[Any] = [[("n", b"%d" % n)] for n in range(10)]
    # A null struct between two others, and a struct whose name is null.
    headers[1] = [("a", b"1"), None, ("b", b"2")]
    headers[2] = [("a", b"1"), (None, b"2")]
    columns = {
        "key": pa.array([None if n == 5 else str(n) for n in range(10)]),
        "value": pa.array([None if n == 5 else b"v%d" % n for n in range(10)]),
        "partition": pa.array([{7: 7, 8: -1}.get(n, n % 3) for n in range(10)]),
        "timestamp": pa.array([early if n == 4 else utc for n in range(10)], pa.timestamp("us", tz="UTC")),
        "headers": pairs(*headers),
    }
    schema = (
        "key string, value binary, partition bigint, timestamp timestamp, "
        f"headers {HEADERS.format('key', 'value', 'binary')}"
    )
    return parquet(directory, columns), schema


def test_rows_that_can_not_be_written_become_dead_letters(
    spark: Any, kafka: KafkaCluster, tmp_path: Path, how: str
) -> None:
    topic = f"spark-bad-{how}"
    kafka.create_topic(topic, 3)
    kafka.create_topic(f"{topic}-dead", 1)
    source, schema = some_bad(tmp_path / "in")
    deliver(spark, kafka, how, source, schema, topic=topic, deadLetterTopic=f"{topic}-dead")
    found = read_all(kafka.bootstrap_servers, topic, 10 - len(BAD))
    good = sorted(set(range(10)) - set(BAD), key=lambda n: (n % 3, n))
    assert [(r.partition, r.key, r.value, r.headers) for r in found] == [
        (n % 3, b"%d" % n, b"v%d" % n, [("n", b"%d" % n)]) for n in good
    ]
    letters = read_all(kafka.bootstrap_servers, f"{topic}-dead", len(BAD))
    assert len(letters) == len(BAD)
    for letter in letters:
        about = {name: (content or b"").decode() for name, content in letter.headers}
        number = 5 if letter.key is None else int(letter.key)
        column, says = BAD[number]
        assert about["cyproducer.error.topic"] == topic
        message = about["cyproducer.error.message"]
        assert f"column {column!r}: " in message
        assert says in message
        # Headers without a name can't be written; the others are.
        kept = [each for each in letter.headers if not each[0].startswith("cyproducer.")]
        assert kept == {1: [("a", b"1"), ("b", b"2")], 2: [("a", b"1")]}.get(number, [("n", b"%d" % number)])


@pytest.mark.parametrize("number", sorted(set(BAD) - {2, 8}))
def test_without_dead_letters_each_bad_row_fails_the_task_with_its_column(
    spark: Any, kafka: KafkaCluster, tmp_path: Path, number: int
) -> None:
    topic = f"spark-bad-{number}"
    kafka.create_topic(topic, 3)
    column, says = BAD[number]
    source, schema = some_bad(tmp_path / "in")
    only = f"key = '{number}'" if number != 5 else "key is null"
    with pytest.raises(Exception, match=f"RowsFailedError: topic '{topic}'") as raised:
        deliver(spark, kafka, "batch", source, schema, lambda df: df.filter(only), topic=topic)
    assert f"column {column!r}, row 0" in str(raised.value)
    assert says in str(raised.value)
    assert read_all(kafka.bootstrap_servers, topic, 0) == []


@pytest.mark.parametrize("large", ["false", "true"])
def test_dictionary_values_arrive_unchanged(
    spark: Any, kafka: KafkaCluster, tmp_path: Path, how: str, large: str
) -> None:
    import pyarrow as pa

    prefix = f"spark-words-{how}-{large}"
    for number in range(3):
        kafka.create_topic(f"{prefix}-{number}", 1)
    count = 30_000
    columns = {
        "topic": pa.array([f"{prefix}-{n % 3}" for n in range(count)]).dictionary_encode(),
        "key": pa.array([None if n % 7 == 0 else f"k{n % 11}" for n in range(count)]).dictionary_encode(),
        "value": pa.array([b"%d" % (n % 1000) * 5 for n in range(count)]).dictionary_encode(),
        "headers": pairs(*([("kind", b"%d" % (n % 5))] if n % 2 else None for n in range(count))),
    }
    schema = f"topic string, key string, value binary, headers {HEADERS.format('key', 'value', 'binary')}"
    source = parquet(tmp_path / "in", columns)
    # With "true", Spark passes large_string and large_binary.
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", large)
    try:
        deliver(spark, kafka, how, source, schema)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    for number in range(3):
        found = read_all(kafka.bootstrap_servers, f"{prefix}-{number}", count // 3)
        assert [(r.key, r.value, r.headers) for r in found] == [
            (
                None if n % 7 == 0 else b"k%d" % (n % 11),
                b"%d" % (n % 1000) * 5,
                [("kind", b"%d" % (n % 5))] if n % 2 else [],
            )
            for n in range(number, count, 3)
        ]


def numbered(directory: Path, count: int, files: int = 1) -> Path:
    import pyarrow as pa

    return parquet(directory, {"id": pa.array(range(count))}, files)


@pytest.mark.parametrize(
    ("how", "partitions"), [pytest.param("batch", 1000, marks=pytest.mark.slow), ("stream", 150)]
)
def test_empty_and_tiny_partitions_lose_nothing(
    spark: Any, kafka: KafkaCluster, tmp_path: Path, how: str, partitions: int
) -> None:
    topic = f"spark-scattered-{how}"
    kafka.create_topic(topic, 3)

    def scatter(df: Any) -> Any:
        # Few rows: by hash, more than a third of the partitions get none.
        return df.repartition(partitions, "id").selectExpr("cast(id as string) as value")

    # Otherwise Spark merges small partitions.
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        deliver(spark, kafka, how, numbered(tmp_path / "in", partitions), "id bigint", scatter, topic=topic)
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")
    found = read_all(kafka.bootstrap_servers, topic, partitions)
    assert Counter(int(r.value or b"-1") for r in found) == Counter(range(partitions))


def test_skewed_rows_arrive_completely(spark: Any, kafka: KafkaCluster, tmp_path: Path, how: str) -> None:
    topic = f"spark-skew-{how}"
    kafka.create_topic(topic, 4)
    count = 100_000

    def askew(df: Any) -> Any:
        from pyspark.sql import functions as F

        # One task of four has 99% of the rows, and 99% of all rows go to one partition of the topic.
        task = F.when(F.col("id") % 100 == 0, F.col("id") / 100 % 3 + 1).otherwise(0).cast("int")
        return df.repartitionByRange(4, task).selectExpr(
            "cast(id as string) as value", "cast(if(id % 100 = 1, id / 100 % 3 + 1, 0) as int) as partition"
        )

    deliver(spark, kafka, how, numbered(tmp_path / "in", count), "id bigint", askew, topic=topic)
    found = read_all(kafka.bootstrap_servers, topic, count)
    assert Counter(r.partition for r in found)[0] == count * 99 // 100
    assert [n for n, times in Counter(int(r.value or b"-1") for r in found).items() if times != 1] == []
    assert len(found) == count
    for r in found:
        n = int(r.value or b"-1")
        assert r.partition == (int(n / 100 % 3 + 1) if n % 100 == 1 else 0)
