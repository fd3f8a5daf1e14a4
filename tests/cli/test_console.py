"""Progress, tables and amounts as they appear on the terminal."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from cyproducer.cli.console import Progress, amount, one_line, say, table
from cyproducer.errors import KafkaTimeoutError


class Terminal(io.StringIO):
    encoding = "ascii"

    def isatty(self) -> bool:
        return True

    def screen(self) -> str:
        """The visible line after all writes, each part written over the previous one."""
        line = ""
        for part in self.getvalue().split("\r"):
            line = part + line[len(part) :]
        return line.rstrip()


def test_progress_draws_a_bar_of_the_finished_share() -> None:
    terminal = Terminal()

    Progress(terminal, total=200).update(100, "half")

    assert terminal.screen() == "#" * 15 + "." * 15 + "  50%  half"


def test_progress_without_a_total_draws_only_the_text() -> None:
    terminal = Terminal()

    Progress(terminal).update(100, "some")

    assert terminal.screen() == "some"


def test_close_clears_the_progress_line() -> None:
    terminal = Terminal()
    progress = Progress(terminal, total=2)
    progress.update(1, "a text")

    progress.close()

    assert terminal.screen() == ""
    assert terminal.getvalue().endswith("\r")


def test_progress_redraws_at_most_ten_times_a_second() -> None:
    terminal = Terminal()
    progress = Progress(terminal)

    for done in range(1000):
        progress.update(done, f"{done}")

    assert terminal.screen() == "0"


def test_progress_is_silent_if_the_stream_is_not_a_terminal() -> None:
    file = io.StringIO()
    progress = Progress(file, total=1)

    progress.update(1, "text")
    progress.close()

    assert file.getvalue() == ""


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (1_250_000, "1.2 MB"),
        (3e12, "3.0 TB"),
        (5e15, "5000.0 TB"),
    ],
)
def test_amounts_use_the_unit_that_keeps_them_short(size: float, text: str) -> None:
    assert amount(size) == text


def test_a_table_aligns_names_left_and_values_right() -> None:
    assert table([("a", "1"), ("long", "1,000")]) == ["  a         1", "  long  1,000"]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KafkaTimeoutError("no\n  answer"), r"KafkaTimeoutError: no\n answer"),
        (OSError("no\n  answer"), "OSError: no answer"),
        (ValueError(), "ValueError"),
        (OSError("OSError: disk"), "OSError: disk"),
    ],
)
def test_an_error_becomes_one_line_with_its_class(error: Exception, text: str) -> None:
    assert one_line(error) == text


def test_progress_that_is_asked_for_is_written_to_a_file_line_by_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [0.0]
    monkeypatch.setattr("cyproducer.cli.console.monotonic_s", lambda: now_s[0])
    file = io.StringIO()
    progress = Progress(file, asked=True)

    for tenth in range(21):
        now_s[0] = 10 + tenth / 10
        progress.update(tenth, f"{tenth}")
    progress.close()

    assert file.getvalue() == "0\n10\n20\n"


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_silent_progress_writes_nothing(stream: io.StringIO) -> None:
    Progress(stream, asked=True, silent=True).update(1, "text")

    assert stream.getvalue() == ""


def test_a_stream_that_was_closed_at_the_start_is_no_failure() -> None:
    # sys.stderr is None then.
    say(None, "text")
    progress = Progress(None, asked=True)
    progress.update(1, "text")
    progress.close()
    assert progress._width == 0


def test_what_is_said_is_written_at_once(tmp_path: Path) -> None:
    with open(tmp_path / "file", "w") as file:
        say(file, "text")
        assert (tmp_path / "file").read_text() == "text\n"


def test_output_vanishes_once_its_reader_has_gone() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stream:
        say(stream, "nobody reads this")
        # Goes elsewhere now: neither this nor what was in the buffer is an error, also when it is closed.
        stream.write("more")
        stream.flush()
        assert os.stat(stream.fileno()).st_rdev == os.stat(os.devnull).st_rdev
