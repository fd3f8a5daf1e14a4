"""Tests a small `make demo-spark`: its table matches the topics' content, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cyproducer.transactions import TransactionAdmin
from tests.forked import needs_module, needs_proc
from tests.integration.consume import Fetched, read_all
from tests.integration.process_table import ProcessInfo, processes
from tests.programs import program_environment
from tools.harness.until import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(400), needs_module("pyspark")]


def write_sources(root: Path) -> None:
    (root / "package").mkdir(parents=True)
    (root / "a.py").write_text("".join(f"a = {number}  \r\n\n" for number in range(1_000)))
    (root / "package" / "b.h").write_bytes(b'\tint b; // "\xff"\n' + b"x" * 10_001 + b"\n" + b"y" * 10_000)
    (root / "package" / "empty.pyi").touch()
    # Spark skips names that start with "_".
    (root / "package" / "__init__.py").write_text("import os\n")
    (root / "package" / "other.txt").write_text("no source code\n")


def lines_of(records: list[Fetched]) -> Counter[tuple[str, int, str, str]]:
    found: Counter[tuple[str, int, str, str]] = Counter()
    for record in records:
        value = json.loads(record.value or b"")
        assert (record.key or b"").decode() == value["file"]
        found[value["file"], value["line"], value["language"], value["text"]] += 1
    return found


def test_the_table_matches_the_content_of_the_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from demo_spark import pipeline, run

    monkeypatch.setattr(pipeline, "KILLED_ROWS", 500)
    write_sources(tmp_path / "sources")
    held: dict[str, list[Fetched]] = {}
    transactions: list[Any] = []
    read_back = run.Pipeline._outcome

    def read_too(self: Any, topic: str, *more: Any) -> Any:
        outcome = read_back(self, topic, *more)
        held[topic] = read_all(self._kafka.bootstrap_servers, topic, 1)
        with TransactionAdmin({"bootstrap_servers": self._kafka.bootstrap_servers}) as admin:
            transactions[:] = admin.list_transactions(prefix="killed-exactly-once.")
        return outcome

    monkeypatch.setattr(run.Pipeline, "_outcome", read_too)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    # As in a clone of this project, where sources have no extensions.
    for name in ("cyproducer", "pyspark_cyproducer"):
        (tmp_path / "clone" / name).mkdir(parents=True)
        (tmp_path / "clone" / name / "__init__.py").write_text("raise ModuleNotFoundError")
    monkeypatch.chdir(tmp_path / "clone")

    code = run.main(["--source", str(tmp_path / "sources"), "--partitions", "3"])

    said = capsys.readouterr()
    assert code == 0, said
    expected = Counter({("a.py", 2 * n + 1, "py", f"a = {n}"): 1 for n in range(1_000)})
    expected["package/b.h", 1, "h", '\tint b; // "\ufffd"'] = 1
    expected["package/b.h", 3, "h", "y" * 10_000] = 1
    assert lines_of(held["source-lines"]) == expected
    assert lines_of(held["source-lines-streamed"]) == expected
    # Each stream was killed while it committed the fifth of its eight micro-batches.
    once = lines_of(held["killed-exactly-once"])
    assert once.keys() <= expected.keys()
    assert (len(once), set(once.values())) == (500, {1})
    assert {each.state for each in transactions} == {"CompleteCommit"}
    at_least_once = lines_of(held["killed-at-least-once"])
    assert at_least_once.keys() == once.keys()
    assert set(at_least_once.values()) == {1, 2}
    twice = (at_least_once - once).total()
    assert 500 // 8 - 2 <= twice <= 500 // 8 + 2
    assert re.search(
        rf"killed-at-least-once: driver killed after \d+ rows, in micro-batch 5 of 8: its {twice} rows are "
        "acknowledged",
        said.out,
    )
    assert re.search(
        r"killed-exactly-once: driver killed after \d+ rows, in micro-batch 5 of 8: its commit is decided, "
        "and 1 of its [12] transactions is committed",
        said.out,
    )
    assert said.out.count("driver started again, from its checkpoint\n") == 2
    files = {(r.key or b"").decode(): json.loads(r.value or b"") for r in held["source-files"]}
    assert files == {
        "a.py": {"language": "py", "lines": 1_000, "characters": 6_890, "longest": 7},
        "package/b.h": {"language": "h", "lines": 2, "characters": 10_014, "longest": 10_000},
    }
    table = [re.split(r"\s{2,}", line.strip()) for line in said.out.splitlines()]
    shown: dict[str, list[str]] = {}
    for name, *columns in table:
        shown.setdefault(name, []).extend(columns)
    assert shown["topic"] == list(held)
    counts = [f"{len(records):,}" for records in held.values()]
    assert shown["rows read back"] == counts == ["1,002", "2", "1,002", f"{500 + twice}", "500"]
    assert shown["rows, by Spark"] == ["1,002", "2", "1,002", "500", "500"]
    assert shown["offsets used"][:4] == counts[:4]
    # Each micro-batch has a transaction or two, which have a marker in each partition that they wrote to.
    assert 500 + 8 <= int(shown["offsets used"][4]) <= 500 + 16 * 3
    assert shown["duplicates"] == ["0", "0", "0", str(twice), "0"]
    for name in ("lost", "foreign"):
        assert shown[name] == ["0"] * 5
    assert shown["open transactions"] == ["0", "0"]
    assert shown["delivery guarantee"] == ["at-least-once", "exactly-once"]
    by_spark, read = shown["checksum, by Spark"], shown["checksum, read back"]
    assert by_spark == [*read[:3], read[4], read[4]]
    assert read[3] != read[4]
    assert shown["partitions"] == ["3"] * 5
    assert list(scratch.iterdir()) == []


def started_in(directory: Path) -> list[ProcessInfo]:
    """Returns processes with the directory in their command or environment: Kafka, drivers, and all that a
    driver has started. Without this process and its parents."""
    found = []
    for each in processes():
        with suppress(OSError):
            environment = Path(f"/proc/{each.pid}/environ").read_bytes()
            if str(directory).encode() in environment or str(directory) in each.command:
                found.append(each)
    return found


@needs_proc
@pytest.mark.parametrize(
    ("topic", "line", "by", "code"),
    [
        ("source-lines", "Reading source code", signal.SIGINT, 130),
        pytest.param(
            *("killed-exactly-once", "  killed-exactly-once: driver started again", signal.SIGINT, 130),
            marks=pytest.mark.nightly,
        ),
        ("killed-at-least-once", "  killed-at-least-once: driver started again", signal.SIGKILL, -9),
    ],
)
def test_an_interrupted_demo_leaves_nothing_behind(
    topic: str, line: str, by: signal.Signals, code: int, tmp_path: Path
) -> None:
    from demo_spark import run

    write_sources(tmp_path / "sources")
    (tmp_path / "temporary").mkdir()
    program = subprocess.Popen(
        [sys.executable, "-u", run.__file__, "--source", str(tmp_path / "sources"), "--only", topic],
        env={**program_environment(), "TMPDIR": str(tmp_path / "temporary")},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A terminal's Ctrl-C goes to the whole process group, which must not include the test.
        start_new_session=True,
    )
    try:
        assert program.stdout is not None
        said = ""
        for each in program.stdout:
            said += each
            if each.startswith(line):
                break
        assert len(started_in(tmp_path)) >= 3, said
        os.killpg(program.pid, by)
        said += program.stdout.read()
        ended = program.wait(60)
    finally:
        program.kill()
        program.wait()

    assert ended == code, said
    assert "Traceback" not in said
    until(lambda: not started_in(tmp_path), "the end of what was started")
    if by is signal.SIGINT:
        assert "interrupted; Kafka and Spark are stopped" in said
        assert list((tmp_path / "temporary").iterdir()) == []
