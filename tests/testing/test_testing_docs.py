"""The files in ``docs/testing.md`` are written to a directory as they are printed, and pytest runs them."""

from __future__ import annotations

import re
from pathlib import Path

from tests.testing.run_pytest import run_pytest

DOCS = Path(__file__).parents[2] / "docs" / "testing.md"
FILES = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", DOCS.read_text(), re.DOTALL)


def test_every_block_is_a_file() -> None:
    assert DOCS.read_text().count("```python") == len(FILES) == 5


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    for name, text in FILES:
        (tmp_path / name).write_text(text)

    tests = sum(text.count("\ndef test_") for _, text in FILES)
    assert run_pytest(tmp_path)[1] == {"passed": tests}
