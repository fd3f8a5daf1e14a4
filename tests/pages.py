"""Reads the code blocks of the project's pages, for the tests that run them.

A block that cannot run where its page runs is preceded by ``<!-- not run: reason -->``. One whose output is
always the same is followed by ``<!-- printed -->`` and a block with that output.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "perf" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
_BLOCK = re.compile(
    r"(?:^ *<!-- not run: *(?P<reason>.*?) *-->\n+)?"
    r"(?P<printed>^ *<!-- printed -->\n+)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A code block. ``line``: the number of its first line. ``reason``: why it does not run, or None."""

    language: str
    text: str
    line: int
    reason: str | None
    printed: bool


def blocks(page: Path | str, language: str | None = None) -> list[Block]:
    """Returns the code blocks of a page, given as a path or below the root, or those of one language."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [
        Block(
            part["language"],
            textwrap.dedent(part["text"]),
            text.count("\n", 0, part.start("text")) + 1,
            part["reason"],
            part["printed"] is not None,
        )
        for part in _BLOCK.finditer(text)
    ]
    return [block for block in found if language is None or block.language == language]


def programs(page: Path | str) -> list[str]:
    """Returns the text of a page's Python blocks."""
    return [block.text for block in blocks(page, "python")]
