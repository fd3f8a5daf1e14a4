"""Writes the package as plain Python for the API reference: signatures and docstrings, also of extensions.

An extension's signatures are in its ``.pyi`` and its docstrings in its ``.pyx``, so that neither has all of
the reference, and the site can be made without a compiler.
"""

import ast
import inspect
import re
import shutil
from pathlib import Path

_DEFINITION = re.compile(r"^(?P<indent> *)(?:cdef |cpdef |async )*(?P<kind>class|def) (?P<name>\w+)")
_DOCSTRING = re.compile(r'\s*(?P<raw>r?)"""(?P<text>.*?)"""', re.DOTALL)


def docstrings(source: str) -> dict[str, str]:
    """Returns the docstrings of a ``.pyx`` file's classes, functions and methods by their qualified names."""
    found = {}
    lines = source.splitlines(keepends=True)
    owner = ""
    for number, line in enumerate(lines):
        definition = _DEFINITION.match(line)
        if definition is None:
            continue
        name = definition["name"]
        if not definition["indent"]:
            owner = name if definition["kind"] == "class" else ""
        elif owner:
            name = f"{owner}.{name}"
        depth = 0
        end = number
        for code in lines[number:]:
            end += 1
            depth += sum(map(code.count, "([{")) - sum(map(code.count, ")]}"))
            if depth == 0 and code.partition("#")[0].rstrip().endswith(":"):
                break
        if text := _DOCSTRING.match("".join(lines[end:])):
            found[name] = inspect.cleandoc(text["text"])
    return found


def documented(stub: str, texts: dict[str, str]) -> str:
    """Returns a ``.pyi`` file with these docstrings, where it has none of its own."""
    tree = ast.parse(stub)
    for node in tree.body:
        members = node.body if isinstance(node, ast.ClassDef) else []
        for prefix, each in (("", node), *((f"{getattr(node, 'name', '')}.", member) for member in members)):
            if not isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            # What type checkers want to know, and no reader.
            each.decorator_list = [
                decorator
                for decorator in each.decorator_list
                if not (isinstance(decorator, ast.Name) and decorator.id in ("final", "disjoint_base"))
            ]
            text = texts.get(prefix + each.name)
            if text is not None and ast.get_docstring(each) is None:
                each.body.insert(0, ast.Expr(ast.Constant(text)))
    return ast.unparse(ast.fix_missing_locations(tree))


def write(package: Path, directory: Path) -> None:
    """Writes the package's modules to ``directory``."""
    for path in sorted(package.rglob("*.py")):
        copy = directory / path.relative_to(package.parent)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    for path in sorted(package.rglob("*.pyi")):
        texts = docstrings(path.with_suffix(".pyx").read_text(encoding="utf-8"))
        copy = (directory / path.relative_to(package.parent)).with_suffix(".py")
        copy.write_text(documented(path.read_text(encoding="utf-8"), texts), encoding="utf-8")
