"""Lines of one kind: one per second, and a count of the others."""

import logging
import math

from cyproducer.control.log_limit import LogLimit

E, W = logging.ERROR, logging.WARNING


class Lines:
    """A limit that records its lines."""

    def __init__(self) -> None:
        self.said: list[tuple[int, str]] = []
        self.held = 0
        self.limit = LogLimit(lambda level, text, *args: self.said.append((level, text % args)), self.on_held)

    def fail(self, now_ms: float, records: int = 10, error: Exception | None = None, level: int = E) -> bool:
        """Logs a line; returns whether it is the first one held back."""
        error = error or ValueError("no")
        held = self.held
        self.limit.add(level, records, "%d records failed: %s", (records, error), now_ms)
        return self.held > held

    def on_held(self) -> None:
        self.held += 1

    def take(self) -> list[str]:
        said, self.said[:] = [text for _, text in self.said], []
        return said


def test_the_first_line_comes_at_once_and_the_others_are_counted_with_the_next() -> None:
    lines = Lines()
    assert not lines.fail(0)
    assert lines.take() == ["10 records failed: no"]
    assert lines.fail(1, 20)
    assert not lines.fail(2, 30)
    assert not lines.fail(999.9, 1)
    assert lines.take() == []
    assert not lines.fail(1000, 2, ValueError("the latest"))
    assert lines.take() == [
        "2 records failed: the latest (and 3 more like it, of 51 records, in the last second)"
    ]
    assert lines.fail(1001)


def test_held_back_lines_are_reported_without_a_further_line() -> None:
    lines = Lines()
    lines.fail(0)
    assert lines.limit.flush(10) == math.inf
    lines.fail(100, 7)
    lines.fail(200, 8)
    assert lines.limit.flush(300) == 700
    lines.take()
    assert lines.limit.flush(999) == 1
    assert lines.take() == []
    assert lines.limit.flush(1000) == math.inf
    assert lines.take() == ["8 records failed: no (and 1 more like it, of 7 records, in the last second)"]
    # The next second begins there.
    assert lines.fail(1500)
    assert lines.limit.flush(1500) == 500
    assert lines.limit.flush(2000) == math.inf
    assert lines.take() == ["10 records failed: no"]
    assert lines.limit.flush(3000) == math.inf
    assert not lines.fail(3001)
    assert lines.take() == ["10 records failed: no"]


def test_lines_that_are_not_about_records_are_counted_without_records() -> None:
    lines = Lines()
    for now in (0, 1, 2):
        lines.limit.add(W, 0, "%s", (OSError("100% refused"),), now)
    lines.limit.flush(math.inf)
    assert lines.take() == ["100% refused", "100% refused (and 1 more in the last second)"]


def test_kinds_are_texts_levels_and_classes_of_errors() -> None:
    lines = Lines()
    for error in (ValueError("1"), LookupError("2"), KeyError("3"), ValueError("4")):
        lines.fail(0, error=error)
    lines.fail(0, level=W)
    lines.limit.add(E, 1, "another", (), 0)
    assert lines.take() == [
        "10 records failed: 1",
        "10 records failed: 2",
        "10 records failed: '3'",
        "10 records failed: no",
        "another",
    ]


def test_a_kind_without_new_lines_is_forgotten() -> None:
    lines = Lines()
    for number in range(1000):
        lines.limit.add(E, 1, f"text {number}", (), 0)
    lines.limit.flush(1000)
    assert lines.limit._kinds == {}
