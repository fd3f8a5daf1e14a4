"""Tests the comparison and the output of `make demo-spark`, without Spark and Kafka."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from demo_spark import run, summaries  # noqa: E402
from demo_spark.checking import Difference, Outcome, ReadBack, checksum, compare, record_hash  # noqa: E402

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


SAME = outcome(hashes(1), hashes(1))


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


def test_a_killed_driver_with_at_least_once_may_write_rows_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    doubled = dataclasses.replace(outcome(hashes(1, 2), hashes(2, 1, 1)), summary_rows=None, may_double=True)

    assert run.tell([SAME, doubled], io.StringIO()) == 0

    assert "each once; but at-least-once has 1 more, as its driver was killed." in capsys.readouterr().out


def test_a_topic_of_transactions_has_more_offsets_than_rows(capsys: pytest.CaptureFixture[str]) -> None:
    found = ReadBack(hashes(1), 1, 3, 0.5)
    once = dataclasses.replace(SAME, found=found, summary_rows=None, transactional=True)

    assert run.tell([once], io.StringIO()) == 0

    assert "markers and aborted rows have offsets, too" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (dataclasses.replace(outcome(hashes(1, 2), hashes(1)), may_double=True), "but 1 lost"),
        (
            dataclasses.replace(outcome(hashes(1), hashes(1, 1)), transactional=True, summary_rows=None),
            "but 1 more than once",
        ),
        (dataclasses.replace(SAME, open_transactions=1), "but 1 transactions left open"),
        (outcome(hashes(1, 2), hashes(1)), "2 rows expected, but 1 lost, end offsets of 1"),
        (outcome(hashes(1, 2), hashes(1, 2, 2)), "2 rows expected, but 1 more than once, end offsets of 3"),
        (outcome(hashes(1, 2), hashes(1, 3)), "but 1 lost, 1 unknown to Spark"),
        (dataclasses.replace(SAME, found=ReadBack(hashes(1), 1, 2, 0.5)), "but end offsets of 2"),
        (dataclasses.replace(SAME, summary_rows=0), "but 0 in the sink's summaries"),
    ],
)
def test_a_difference_is_reported_and_exits_with_one(
    wrong: Outcome, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = io.StringIO()

    assert run.tell([SAME, wrong], said) == 1

    assert said.getvalue().startswith("topic 'a-topic': ")
    assert says in said.getvalue()
    assert "exactly the rows that Spark computed" not in capsys.readouterr().out


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
