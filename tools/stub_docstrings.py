"""Copies the docstrings of the public extension types into their stubs, because editors show those of stubs.

``python -m tools.stub_docstrings`` rewrites the stubs of ``STUBS``, for the built extensions. A test compares
the docstrings.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from pathlib import Path
from typing import Any

import cyproducer

STUBS = ("send.bulk_path", "send.send_path", "futures.bulk_future", "futures.delivery")
"""The modules whose types users hold in their hands."""

Documented = ast.ClassDef | ast.FunctionDef


def path_of(module: str) -> Path:
    """Returns the path of a module's stub."""
    return Path(cyproducer.__path__[0], *module.split(".")).with_suffix(".pyi")


def documentation(found: Any) -> str | None:
    """Returns an object's docstring without the signature that Cython puts on top of it."""
    text = inspect.cleandoc(found.__doc__ or "").strip()
    first, _, rest = text.partition("\n")
    # A property has no __name__. Cython writes no signature for it.
    if first.startswith(f"{getattr(found, '__name__', '')}(") and first.endswith(")"):
        text = rest.strip()
    return text or None


def rendered(module: str) -> str:
    """Returns a stub's source with the docstrings of the module's public names."""
    source = path_of(module).read_text()
    lines = source.splitlines()
    runtime = importlib.import_module(f"{cyproducer.__name__}.{module}")
    # From the end, so that line numbers stay right.
    for node, text in reversed(list(documented(ast.parse(source), runtime))):
        _replace(lines, node, text)
    return "\n".join(lines) + "\n"


def documented(stub: ast.Module, runtime: Any) -> list[tuple[Documented, str]]:
    """Returns the definitions of a stub that need a docstring, with the text."""
    found: list[tuple[Documented, str]] = []
    for outer in stub.body:
        if not isinstance(outer, ast.ClassDef) or not hasattr(runtime, outer.name):
            continue
        kind = getattr(runtime, outer.name)
        # Of overloads the first: editors show its docstring for all.
        members = {node.name: node for node in reversed(outer.body) if isinstance(node, ast.FunctionDef)}
        names: list[tuple[Documented, Any]] = [(outer, kind)]
        names += [(members[name], getattr(kind, name)) for name in reversed(members)]
        found += [
            (node, text)
            for node, value in names
            if not node.name.startswith("_") and (text := documentation(value)) is not None
        ]
    return found


def _replace(lines: list[str], node: Documented, text: str) -> None:
    indent = " " * (node.col_offset + 4)
    quoted = f'"""{text}\n"""' if "\n" in text else f'"""{text}"""'
    new = textwrap.indent(quoted, indent).splitlines()
    first = node.body[0]
    has_docstring = ast.get_docstring(node) is not None
    if has_docstring:
        lines[first.lineno - 1 : first.end_lineno] = new
    elif isinstance(node, ast.ClassDef):
        # A decorator of the first member is above its line.
        above = min([first.lineno, *(each.lineno for each in getattr(first, "decorator_list", ()))])
        lines[above - 1 : above - 1] = new
    else:
        # The body is "..." in the line of the colon.
        lines[first.lineno - 1] = lines[first.lineno - 1].removesuffix("...").rstrip()
        lines[first.lineno : first.lineno] = new


def main() -> None:
    for module in STUBS:
        path_of(module).write_text(rendered(module))


if __name__ == "__main__":
    main()
