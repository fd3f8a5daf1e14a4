"""The demo, with a small library in place of Python's."""

from __future__ import annotations

import math
import sysconfig
from pathlib import Path

import pytest

from cyproducer.cli.demo import Totals, quantile, rows, source_files
from cyproducer.cli.main import main


def test_the_demo_sends_every_line_and_shows_records_of_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "a.py").write_text("".join(f"a = {number}\n" for number in range(3_000)))
    (tmp_path / "package" / "b.py").write_text("only\n")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))

    assert main(["demo", "--partitions", "1", "-z", "zstd"]) == 0

    said = capsys.readouterr().out
    shown = {line.rsplit(maxsplit=1)[0].strip(): line.split()[-1] for line in said.splitlines() if line}
    assert shown["records"] == "3,001"
    assert "(4 sampled)" in said
    assert int(shown["batches"]) >= 1
    assert float(shown["compression ratio"]) > 2
    assert "offset    2801  a.py  'a = 2801'" in said
    assert said.count("  a.py  'a = ") == 5


def test_installed_packages_are_not_the_standard_library(tmp_path: Path) -> None:
    for name in ("os.py", "site-packages/x.py", "dist-packages/x.py", "json/tool.py", "data.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    assert sorted(path.name for path in source_files(tmp_path)) == ["os.py", "tool.py"]


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([5.0], 0.5, 5.0),
        ([1.0, 2.0], 0.5, 1.0),
        ([1.0, 2.0, 3.0], 0.5, 2.0),
        ([float(n) for n in range(1, 101)], 0.99, 99.0),
    ],
)
def test_a_quantile_is_the_smallest_value_that_the_share_does_not_exceed(
    values: list[float], share: float, expected: float
) -> None:
    assert quantile(values, share) == expected


def test_the_quantile_of_nothing_is_not_a_number() -> None:
    assert math.isnan(quantile([], 0.5))


def test_a_missing_metric_is_shown_as_a_dash() -> None:
    shown = dict(rows(Totals(10, 1_000, 2.0, [1.0]), {}))

    assert shown["records/s"] == "5"
    assert (shown["batches"], shown["average batch, as sent"], shown["compression ratio"]) == ("-", "-", "-")


def test_the_compression_ratio_is_the_inverse_of_the_producers_rate() -> None:
    metrics = {"compression-rate-avg": 0.25, "batch-size-avg": 2_000.0, "batch-total": 1_234}

    shown = dict(rows(Totals(10, 1_000, 2.0, [1.0]), metrics))

    assert (shown["batches"], shown["average batch, as sent"], shown["compression ratio"]) == (
        "1,234",
        "2.0 kB",
        "4.00",
    )
