"""Defines the Spark pipeline: files to lines, lines to records, records to Kafka.

Owns the DataFrames and the jobs. Does not own Kafka, the session and the output (`run`), or the comparison
(`checking`). Its functions block, and run on the main thread.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from demo_spark.checking import HASH_SQL
from demo_spark.summaries import CALLBACK

SUFFIXES = ("py", "pyi", "pyx", "pxd", "pxi", "c", "cc", "cpp", "h", "hpp")
LONGEST = 10_000
"""Maximum number of characters in a line. Longer lines are generated, not written by people."""
MICRO_BATCHES = 8
FILES_PER_BATCH = 2
"""Of a stream whose driver is killed: more than one task, and so more than one transaction."""
KILLED_ROWS = 1_000_000
"""Maximum number of lines of such a stream. More would only take longer."""
SCAN_SETTINGS = {
    # Thousands of small files: make one task per few megabytes, regardless of the number of files.
    "spark.sql.files.maxPartitionBytes": "8m",
    "spark.sql.files.openCostInBytes": "4k",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
}
"""Settings of the session."""


def default_sources() -> list[Path]:
    """Returns the directories of the standard library and of installed packages, without nested ones."""
    roots = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")}
    return sorted(root for root in roots if not any(other in root.parents for other in roots))


def clean(spark: Any, sources: Sequence[Path], rows: int | None, to: Path) -> dict[str, int]:
    """Reads all source code below ``sources``, and writes its lines to Parquet: file, line, language, text.

    Spark's file sources skip names that begin with ``_`` or ``.``, so those files aren't read. Replaces
    invalid UTF-8 and strips trailing blanks. Leaves out blank lines and lines of more than `LONGEST`
    characters. ``rows``: maximum number of lines; None: all.

    Returns the counts ``files``, ``lines``, ``blank`` and ``long``.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    files = (
        spark.read.format("binaryFile")
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", f"*.{{{','.join(SUFFIXES)}}}")
        .load([str(source) for source in sources])
    )
    name = f.col("path")
    for source in sources:
        root = f"file:{source}/"
        below = f.substring("path", len(root) + 1, 1 << 20)
        name = f.when(f.startswith("path", f.lit(root)), below).otherwise(name)
    seen_files, seen_lines = Observation(), Observation()
    lines = (
        files.select(
            name.alias("file"),
            f.make_valid_utf8(f.col("content").cast("string")).alias("content"),
        )
        .observe(seen_files, f.count(f.lit(1)).alias("files"))
        .select("file", f.posexplode(f.split("content", r"\r?\n")).alias("number", "raw"))
        .selectExpr(
            "file",
            "number + 1 as line",
            "element_at(split(file, '[.]'), -1) as language",
            "rtrim(' \t\f\r', raw) as text",
        )
        .observe(
            seen_lines,
            f.count(f.lit(1)).alias("lines"),
            f.count_if(f.expr("text = ''")).alias("blank"),
            f.count_if(f.length("text") > LONGEST).alias("long"),
        )
        .where(f"text <> '' and length(text) <= {LONGEST}")
    )
    if rows is not None:
        lines = lines.limit(rows).repartition(MICRO_BATCHES)
    lines.write.parquet(str(to))
    return {**seen_files.get, **seen_lines.get}


def line_records(lines: Any) -> Any:
    """Returns one record per line, keyed by its file."""
    return lines.selectExpr("file as key", "to_json(struct(file, line, language, text)) as value")


def file_records(lines: Any) -> Any:
    """Returns one record per file, with totals over its lines."""
    from pyspark.sql import functions as f

    return (
        lines.groupBy("file", "language")
        .agg(
            f.count("*").alias("lines"),
            f.sum(f.length("text")).alias("characters"),
            f.max(f.length("text")).alias("longest"),
        )
        .selectExpr("file as key", "to_json(struct(language, lines, characters, longest)) as value")
    )


def expected_hashes(records: Any) -> pa.Array:
    """Returns one hash per record, computed by Spark: the expected content of a topic."""
    return records.selectExpr(HASH_SQL).toArrow()["hash"].combine_chunks()


def sink_options(bootstrap: str, topic: str, compression: str) -> dict[str, str]:
    options = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "summaryCallback": CALLBACK}
    if compression != "none":
        options["kafka.compression.type"] = compression
    return options


def write_batch(records: Any, options: dict[str, str]) -> None:
    records.write.format("cyproducer").mode("append").options(**options).save()


def exactly_once(prefix: str) -> dict[str, str]:
    """Returns the sink's options for exactly-once, in addition to `sink_options`."""
    return {"deliveryGuarantee": "exactly-once", "transactionalIdPrefix": prefix}


def take_some(spark: Any, source: Path, to: Path) -> None:
    """Writes `KILLED_ROWS` of the lines to Parquet, or all: as many files as make `MICRO_BATCHES`
    micro-batches with several tasks each."""
    lines = spark.read.parquet(str(source)).limit(KILLED_ROWS)
    lines.repartition(MICRO_BATCHES * FILES_PER_BATCH).write.parquet(str(to))


def _files_per_batch(source: Path) -> int:
    return max(1, -(-_files(source) // MICRO_BATCHES))


def _files(source: Path) -> int:
    return len(list(source.glob("*.parquet")))


def micro_batches(source: Path) -> int:
    """Returns the number of micro-batches in which `write_stream` writes all Parquet files of ``source``."""
    return -(-_files(source) // _files_per_batch(source))


def write_stream(
    spark: Any, source: Path, checkpoint: Path, options: dict[str, str], sink: str = "cyproducer"
) -> None:
    """Streams all Parquet files of ``source`` in about `MICRO_BATCHES` batches, and waits for the end.

    ``sink``: the name of the format to write.
    """
    schema = spark.read.parquet(str(source)).schema
    stream = (
        spark.readStream.schema(schema)
        .option("maxFilesPerTrigger", _files_per_batch(source))
        .parquet(str(source))
    )
    query = (
        line_records(stream)
        .writeStream.format(sink)
        .options(checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
