"""Makes pages from the tables in the code: options, metrics, the brokers' error codes.

Reads them from the sources, whose extensions are not built: the package's ``__init__`` is left out, and an
import of an extension gives a module of empty classes, also in place of functions. So it must not run where
cyproducer is used.
"""

import importlib
import re
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "cyproducer"


class _Unbuilt(MetaPathFinder, Loader):
    """Finds the extensions of the package, as modules of empty classes."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        source = ROOT.joinpath(*name.split(".")).with_suffix(".pyx")
        return ModuleSpec(name, self) if name.startswith(f"{PACKAGE}.") and source.exists() else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Empty(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # Called with anything, because modules call functions of extensions while they are imported.
        return type(name, (), {"__init__": lambda self, *_: None})


def module(name: str) -> Any:
    """Imports a module of the package from the sources."""
    if PACKAGE not in sys.modules:
        package = ModuleType(PACKAGE)
        package.__path__ = [str(ROOT / PACKAGE)]
        sys.modules[PACKAGE] = package
        sys.meta_path.insert(0, _Unbuilt())
    return importlib.import_module(f"{PACKAGE}.{name}")


def groups() -> list[tuple[str, list[str]]]:
    """The names of the options by the heading of their group, which is a comment in the table."""
    found: list[tuple[str, list[str]]] = []
    text = (ROOT / PACKAGE / "config" / "options.py").read_text(encoding="utf-8")
    for heading, option in re.findall(r"^    (?:# (.+)\.|(\w+) = Option\(.*)$", text, re.MULTILINE):
        if heading:
            found.append((heading, []))
        elif found:
            found[-1][1].append(option)
    return [(heading, names) for heading, names in found if names]


def options_page() -> str:
    """One heading per option, so that links can lead to it and a search finds it."""
    rows = {row[0]: row for row in module("config").option_rows()}
    text = (
        "# Options\n\n"
        "All options of `KafkaProducer`, from the table that the producer itself reads. Give them as keyword "
        'arguments, or as a mapping, which may have Java\'s names (`{"linger.ms": 5}`). An unknown option '
        "or a value that is not allowed raises `KafkaConfigurationError` in the constructor. "
        "`python -m cyproducer.config` prints this page as a table.\n"
    )
    for heading, names in groups():
        text += f"\n## {heading}\n"
        for name in names:
            _, java, default, allowed, meaning = rows.pop(name)
            facts = [f"Default: `{default}`", f"allowed: {allowed}"]
            facts += [f"Java's name: `{java}`"] if java else []
            text += f"\n### `{name}`\n\n{meaning}\n\n{'; '.join(facts)}\n{{ .facts }}\n"
    if rows:
        raise ValueError(f"these options are below no heading: {', '.join(rows)}")
    return text


def metrics_tables() -> str:
    """The tables of all metrics, which are the end of ``docs/metrics.md``."""
    tables: str = module("observability.definitions").metrics_as_markdown()
    return tables


def codes_table() -> str:
    """A table of the brokers' error codes with their classes."""
    errors = module("errors")
    text = "| code | class | retriable | meaning |\n| --- | --- | --- | --- |\n"
    for code, error in sorted(errors.kafka_errors.items()):
        retriable = "yes" if error.retriable else ""
        text += f"| {code} | `{error.__name__}` | {retriable} | {error.description} |\n"
    return text


def own_errors() -> list[str]:
    """The names of the errors that are not those of error codes, as their module defines them."""
    errors = module("errors")
    of_codes = set(errors.kafka_errors.values())
    return [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type)
        and issubclass(value, Exception)
        and name == value.__name__
        and value not in of_codes
        and value.__module__.startswith(errors.__name__)
    ]
