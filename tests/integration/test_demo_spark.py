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
from pathlib import Path
from typing import Any

import pytest

from tests.forked import needs_module, needs_proc
from tests.integration.consume import Fetched, read_all
from tests.integration.process_table import ProcessInfo, processes
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
    from demo_spark import run

    write_sources(tmp_path / "sources")
    held: dict[str, list[Fetched]] = {}
    write = run.Pipeline._write

    def write_and_read(self: Any, topic: str, *more: Any) -> Any:
        outcome = write(self, topic, *more)
        held[topic] = read_all(self._kafka.bootstrap_servers, topic, 1)
        return outcome

    monkeypatch.setattr(run.Pipeline, "_write", write_and_read)
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
    files = {(r.key or b"").decode(): json.loads(r.value or b"") for r in held["source-files"]}
    assert files == {
        "a.py": {"language": "py", "lines": 1_000, "characters": 6_890, "longest": 7},
        "package/b.h": {"language": "h", "lines": 2, "characters": 10_014, "longest": 10_000},
    }
    table = [re.split(r"\s{2,}", line.strip()) for line in said.out.splitlines()]
    shown = {name: columns for name, *columns in table}
    assert shown["topic"] == [*held, "killed-at-least-once", "killed-exactly-once"]
    counts = [f"{len(records):,}" for records in held.values()]
    assert shown["rows, by Spark"] == ["1,002", "2", "1,002", "1,002", "1,002"]
    for name in ("offsets used", "rows read back"):
        assert shown[name][:3] == counts == ["1,002", "2", "1,002"]
    assert shown["rows read back"][4] == "1,002"
    for name in ("lost", "foreign"):
        assert shown[name] == ["0"] * 5
    doubles = shown["duplicates"].pop(3)
    assert int(doubles.replace(",", "")) > 0
    assert shown["duplicates"] == ["0"] * 4
    assert f"but at-least-once has {doubles} more, as its driver was killed" in said.out
    for topic in ("killed-at-least-once", "killed-exactly-once"):
        assert f"{topic}: the driver was killed in the middle of a commit" in said.out
    for column in (0, 1, 2, 4):
        assert shown["checksum, by Spark"][column] == shown["checksum, read back"][column]
    assert shown["partitions"] == ["3"] * 5
    assert list(scratch.iterdir()) == []


@needs_proc
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    from demo_spark import run

    def started() -> list[ProcessInfo]:
        """Returns processes whose command contains the directory, as Kafka's and Spark's do."""
        return [each for each in processes() if str(tmp_path) in each.command]

    program = subprocess.Popen(
        [sys.executable, "-u", run.__file__],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A terminal's Ctrl-C goes to the whole process group, which must not include the test.
        start_new_session=True,
    )
    try:
        assert program.stdout is not None
        for line in program.stdout:
            if line.startswith("Reading source code"):
                break
        assert len(started()) >= 2
        os.killpg(program.pid, signal.SIGINT)
        said = program.stdout.read()
        code = program.wait(60)
    finally:
        program.kill()
        program.wait()

    assert (code, "interrupted; Kafka and Spark are stopped" in said) == (130, True), said
    assert "Traceback" not in said
    until(lambda: not started(), "the end of what was started")
    assert list(tmp_path.glob("demo-spark-*")) == []
