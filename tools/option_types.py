"""Writes the class ``ProducerOptions`` of ``cyproducer/types.py``, from the table of options.

``python -m tools.option_types`` replaces the class, which is the last thing in that file. A test compares
it with ``rendered()``.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from cyproducer import types
from cyproducer.config.options import OPTIONS, Option

PATH = Path(types.__file__)
START = "class ProducerOptions("
WIDTH = 110
INDENT = "    "
HEAD = '''\
class ProducerOptions(TypedDict, Generic[K, V], total=False):
    """The keyword arguments of ``KafkaProducer``, with kafka-python's names.

    ``K`` and ``V`` are the types of keys and values. Java's names, and numbers as strings, are for the
    positional mapping, which checkers do not check.
    """
'''


def rendered() -> str:
    """Returns the source of the class."""
    return HEAD + "".join(f"\n{_field(option)}" for option in OPTIONS)


def _field(option: Option[Any]) -> str:
    annotation = option.kind.annotation
    if option.none_is_unset:
        annotation += " | None"
    line = f"{INDENT}{option.name}: {annotation}"
    if len(line) > WIDTH:
        line = f"{INDENT}{option.name}: (\n{INDENT * 2}{annotation}\n{INDENT})"
    text = f"{option.meaning}. Default: {option.shown_default}."
    body = textwrap.wrap(text, WIDTH - len(INDENT) - len('"""') * 2, break_long_words=False)
    quoted = "\n".join(body)
    if len(body) > 1:
        quoted += "\n"
    return f"{line}\n" + textwrap.indent(f'"""{quoted}"""', INDENT) + "\n"


def main() -> None:
    source = PATH.read_text()
    kept = source[: source.find(START)] if START in source else source
    PATH.write_text(kept.rstrip() + "\n\n\n" + rendered())


if __name__ == "__main__":
    main()
