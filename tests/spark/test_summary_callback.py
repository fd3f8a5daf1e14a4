"""A summary callback that fails, after the rows were written."""

import logging

import pytest

from cyproducer.spark.summary import WriteSummary, tell


def fail_to_look_up(summary: WriteSummary) -> None:
    raise LookupError(f"no table for {summary.rows} rows")


@pytest.mark.parametrize("name", ["fail_to_look_up", "not_there"])
def test_whatever_a_callback_raises_is_logged_alone(name: str, caplog: pytest.LogCaptureFixture) -> None:
    tell(WriteSummary(rows=3), "batch", f"{__name__}:{name}")
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.getMessage() == f"summaryCallback {__name__}:{name} failed; the rows are written"
    assert record.exc_info is not None


def test_ctrl_c_in_a_callback_is_no_failure_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(summary: WriteSummary) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(globals(), "fail_to_look_up", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tell(WriteSummary(), "batch", f"{__name__}:fail_to_look_up")
