"""Tests the comparison and the output of `make demo-spark`, without Spark and Kafka."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from demo_spark import run, summaries  # noqa: E402
from demo_spark.checking import (  # noqa: E402
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    Difference,
    Killed,
    Outcome,
    ReadBack,
    checksum,
    compare,
    grid,
    record_hash,
)

LARGE = (1 << 60) - 1


def hashes(*values: int) -> Any:
    return pa.array(values, pa.int64())


def outcome(expected: Any, found: Any) -> Outcome:
    return Outcome(
        topic="a-topic",
        mode="batch",
        expected=expected,
        found=ReadBack(found, 1_000, len(found), 0.5),
        summary_rows=len(expected),
        elapsed_s=2.0,
        disk_bytes=500,
        partitions=4,
        p99_ms=12.5,
    )


def killed(delivery: str, found: Any, **other: Any) -> Outcome:
    """Returns the outcome of two rows, by a stream whose driver was killed. With exactly-once, as the brokers
    and the sink tell it: an offset for each marker, and no summary of the micro-batch that was under way."""
    once = delivery == EXACTLY_ONCE
    return dataclasses.replace(
        outcome(hashes(1, 2), found),
        topic=f"killed-{delivery}",
        found=ReadBack(found, 1_000, len(found) + 2 * once, 0.5),
        summary_rows=1 if once else len(found),
        delivery=delivery,
        killed=Killed(4, 8),
        **other,
    )


SAME = outcome(hashes(1), hashes(1))
TWICE = killed(AT_LEAST_ONCE, hashes(1, 2, 2))
ONCE = killed(EXACTLY_ONCE, hashes(2, 1))


@pytest.mark.parametrize(
    ("expected", "found", "difference"),
    [
        ((1, 2, 3), (3, 1, 2), (0, 0, 0)),
        ((1, 2, 3), (1, 3), (1, 0, 0)),
        ((1, 2), (1, 2, 2, 2), (0, 2, 0)),
        ((1, 2), (1, 4, 4), (1, 0, 2)),
        ((5, 5, 5), (5, 5), (1, 0, 0)),
        ((5, 5), (5, 5, 5), (0, 1, 0)),
        ((), (), (0, 0, 0)),
        ((), (1,), (0, 0, 1)),
        ((1,), (), (1, 0, 0)),
    ],
)
def test_each_missing_or_surplus_copy_counts(
    expected: tuple[int, ...], found: tuple[int, ...], difference: tuple[int, int, int]
) -> None:
    assert compare(hashes(*expected), hashes(*found)) == Difference(*difference)


def test_a_checksum_is_the_same_in_any_order_and_of_any_size() -> None:
    many = [LARGE] * 100 + [3, 1]
    assert checksum(hashes(*many)) == checksum(hashes(*reversed(many)))
    assert checksum(hashes(*many)) == f"{sum(many) % (1 << 64):016x}"
    assert checksum(hashes()) == "0" * 16


def test_a_hash_is_the_first_sixty_bits_of_md5_and_separates_key_and_value() -> None:
    assert record_hash(b"k", b"v") == int(hashlib.md5(b"k\0v").hexdigest()[:15], 16)
    assert record_hash(b"kv", b"") != record_hash(b"k", b"v")


def test_equal_contents_exit_with_zero(capsys: pytest.CaptureFixture[str]) -> None:
    said = io.StringIO()

    assert run.tell([outcome(hashes(1, 2), hashes(2, 1))], said) == 0

    assert said.getvalue() == ""
    assert "exactly the rows that Spark computed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (outcome(hashes(1, 2), hashes(1)), "2 rows expected, but 1 lost, end offsets of 1"),
        (outcome(hashes(1, 2), hashes(1, 2, 2)), "2 rows expected, but 1 more than once, end offsets of 3"),
        (outcome(hashes(1, 2), hashes(1, 3)), "but 1 lost, 1 unknown to Spark"),
        (dataclasses.replace(SAME, found=ReadBack(hashes(1), 1, 2, 0.5)), "but end offsets of 2"),
        (dataclasses.replace(SAME, summary_rows=0), "but 0 in the sink's summaries"),
        (killed(AT_LEAST_ONCE, hashes(1, 1)), "2 rows expected, but 1 lost"),
        (killed(AT_LEAST_ONCE, hashes(1, 2, 2, 3)), "2 rows expected, but 1 unknown to Spark"),
        (killed(AT_LEAST_ONCE, hashes(1, 2)), "but none written twice, although its driver was killed"),
        (dataclasses.replace(TWICE, summary_rows=2), "2 rows expected, but 2 in the sink's summaries"),
        (dataclasses.replace(TWICE, found=ReadBack(hashes(1, 2, 2), 1, 2, 0.5)), "but end offsets of 2"),
        (killed(EXACTLY_ONCE, hashes(1)), "2 rows expected, but 1 lost"),
        (killed(EXACTLY_ONCE, hashes(1, 2, 2)), "2 rows expected, but 1 more than once"),
        (killed(EXACTLY_ONCE, hashes(1, 2), open_transactions=3), "but 3 transactions left open"),
    ],
)
def test_a_difference_is_reported_and_exits_with_one(
    wrong: Outcome, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = io.StringIO()

    assert run.tell([SAME, wrong], said) == 1

    assert said.getvalue().startswith(f"topic {wrong.topic!r}: ")
    assert says in said.getvalue()
    assert "exactly the rows that Spark computed" not in capsys.readouterr().out


def test_rows_written_twice_are_reported_for_a_killed_driver_and_are_no_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = io.StringIO()

    assert run.tell([SAME, TWICE, ONCE], said) == 0

    assert said.getvalue() == ""
    out = capsys.readouterr().out
    assert "killed-at-least-once: 1 rows are there twice, which at-least-once allows" in out
    assert "killed-exactly-once: each row is there once, although its driver was killed" in out
    assert "exactly the rows that Spark computed" not in out


def test_killed_topics_have_a_part_of_the_table_with_rows_of_its_own() -> None:
    whole, of_killed, note = grid([SAME, TWICE, ONCE]).split("\n\n")

    def cells(part: str) -> dict[str, list[str]]:
        return {
            name: more for name, *more in (re.split(r"\s{2,}", line.strip()) for line in part.split("\n"))
        }

    assert cells(whole)["topic"] == ["a-topic"]
    assert "open transactions" not in cells(whole)
    shown = cells(of_killed)
    assert shown["topic"] == ["killed-at-least-once", "killed-exactly-once"]
    assert shown["driver killed in"] == ["micro-batch 5 of 8"] * 2
    assert shown["rows read back"] == ["3", "2"]
    assert shown["duplicates"] == ["1", "0"]
    assert shown["open transactions"] == ["0", "0"]
    assert shown["offsets used"] == ["3", "4"]
    assert "offsets used: one for each row; with exactly-once also one for each marker" in note
    assert "offsets used: " not in grid([SAME, TWICE])


@pytest.mark.parametrize(("files", "batches"), [(1, 1), (8, 8), (9, 5), (16, 8), (100, 8)])
def test_micro_batches_are_counted_as_spark_makes_them(files: int, batches: int, tmp_path: Path) -> None:
    from demo_spark import pipeline

    for number in range(files):
        (tmp_path / f"{number}.parquet").touch()

    assert pipeline.micro_batches(tmp_path) == batches


def test_a_driver_that_ends_by_itself_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from demo_spark.following import FailedError
    from demo_spark.killing import DriverProcess

    log = tmp_path / "log"
    # It misses its arguments.
    with (
        DriverProcess([], tmp_path, log, hold=1) as driver,
        pytest.raises(FailedError, match="ended with exit code 1 before it was killed"),
    ):
        driver.until_held()
    with (
        DriverProcess([], tmp_path, log) as driver,
        pytest.raises(FailedError, match="started again ended with exit code 1"),
    ):
        driver.until_ended()
    assert "missing 6 required positional arguments" in log.read_text()


def test_summaries_are_kept_in_order_and_returned_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "summaries"
    monkeypatch.setenv(summaries.FILE_VARIABLE, str(file))
    made: list[Any] = ["first", "second"]
    for each in made:
        summaries.keep(each)

    assert summaries.kept(file) == made
    assert summaries.kept(file) == []


def test_without_java_it_says_what_to_install(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, run.__file__],
        env={**os.environ, "PATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert "java is not on PATH: install Java" in ended.stderr


def test_without_spark_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "missing_tools", lambda: None)
    monkeypatch.setattr(run, "MODULES", ("json", "no_spark_here"))

    assert run.missing() == "no_spark_here not found: pip install 'cyproducer[testing,spark]'"
