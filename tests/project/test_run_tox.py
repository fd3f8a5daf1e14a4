"""The table at the end of ``make test``."""

from pathlib import Path
from typing import Any

from tools.run_tox import OWN, Counts, counts, not_run, summary

REPORT = """<testsuites><testsuite name="pytest" errors="1" failures="1" skipped="2" tests="7">
<testcase name="a"><skipped type="pytest.skip" message="needs Linux">...</skipped></testcase>
<testcase name="b"><skipped type="pytest.skip" message="needs Linux">...</skipped></testcase>
<testcase classname="tests.c" name="test_d"><failure message="no">...</failure></testcase>
<testcase classname="tests.c" name="test_e"><error message="no">...</error></testcase>
<testcase classname="tests.c" name="test_f"/>
</testsuite></testsuites>"""


def test_a_report_is_counted(tmp_path: Path) -> None:
    report = tmp_path / "py312.xml"
    report.write_text(REPORT)
    found = counts(report)
    assert (found.passed, found.failed, found.skipped) == (3, 2, 2)
    assert found.reasons == {"needs Linux": 2}
    assert found.failures == ["tests.c::test_d", "tests.c::test_e"]


def test_the_table_has_each_environment_and_why_tests_were_skipped() -> None:
    results: dict[str, Any] = {
        "py312": {"result": {"success": False, "skipped": False, "duration": 61.7}},
        "py314": {"result": {"success": True, "skipped": True, "duration": 0.5}},
        "lint": {"result": {"success": True, "skipped": False, "duration": 9.2}},
        ".pkg": {"setup": []},
    }
    counted = Counts(total=7, failed=2, skipped=2, failures=["tests.c::test_d"])
    counted.reasons["needs Linux"] = 2
    assert summary(results, {"py312": counted}).splitlines() == [
        "environment  result   time  passed  failed  skipped",
        "py312        FAILED   62 s       3       2        2",
        "py314        skipped   0 s",
        "lint         ok        9 s",
        "",
        "Failed:",
        "  py312: tests.c::test_d",
        "",
        "Skipped:",
        "  needs Linux: py312 (2)",
        "  this machine lacks the Python: py314",
    ]


def test_what_was_left_out_is_counted_and_named() -> None:
    first, *lines = not_run({"slow": 12, "kafka": 3})
    assert first == "Not run, because it takes long; `make test-all` runs it:"
    assert lines[:2] == [
        "  3 tests against a real Kafka, other than the smoke tests",
        "  12 slow tests",
    ]
    others = {f"py3{minor}" for minor in (11, 13)} - {OWN}
    assert all(f"  {other}: the quick unit tests on this Python" in lines for other in others)
    assert f"  {OWN}: the quick unit tests on this Python" not in lines
    assert "  py312: the unit tests on this Python" in lines
    assert any(line.startswith("  fuzz: a minute of fuzzing") for line in lines)
