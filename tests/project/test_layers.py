"""The layers: which folder may import which.

MAY_IMPORT and BANNED contain the rules. The tests parse the sources, so that they also find an import inside
a function, under a condition or in Cython.
"""

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "cyproducer"

MAY_IMPORT = {
    "base": (),
    # Their annotations name futures.
    "errors": ("base", "structs", "futures"),
    # Its annotations name types.
    "config": ("base", "errors", "records", "types"),
    "records": ("base", "errors"),
    # The C structures of batches, which Produce requests are made of.
    "wire": ("accumulator", "base", "errors", "records", "structs"),
    "control": ("base", "errors", "records", "structs", "wire"),
    "security": ("base", "config", "errors"),
    "futures": ("base", "errors", "records", "structs"),
    "accumulator": ("base", "errors", "futures", "records"),
    "send": ("accumulator", "base", "control", "errors", "futures", "records", "serializers", "structs"),
    "net": (
        "accumulator", "base", "config", "control", "errors", "records", "security", "version", "wire",
    ),
    "sender": ("accumulator", "base", "control", "errors", "futures", "net", "records", "wire"),
    "clients": (
        "base", "config", "control", "errors", "futures", "net", "records", "sender", "structs", "wire",
    ),
    "observability": ("accumulator", "base", "records"),
    # It wraps the producer's methods, from outside.
    "opentelemetry": (
        "_open_producers", "_runtime", "accumulator", "base", "clients", "config", "errors", "futures", "net",
        "observability", "producer", "sender", "structs", "version",
    ),
}  # fmt: skip
"""Layer -> the folders and modules of this package that it may import, in addition to itself."""

IO = ("socket", "ssl", "select", "selectors")
THREADS_AND_CLOCKS = ("asyncio", "threading", "_thread", "concurrent", "multiprocessing", "time")
BANNED = {
    "control": (*IO, *THREADS_AND_CLOCKS),
    "records": (*IO, "asyncio"),
    "wire": (*IO, *THREADS_AND_CLOCKS),
    # Token providers may be async.
    "security": ("socket", "select", "selectors"),
    # A future is awaitable: it imports asyncio when it is awaited, to find the running loop.
    "futures": IO,
    "accumulator": (*IO, "asyncio"),
    "send": (*IO, "asyncio"),
}
"""Layer -> the standard library modules that it may not import, including their submodules."""

_READS_A_CLOCK = re.compile(r"\b(?:datetime|date)\.(?:now|utcnow|today)\(|\bloop\.time\(")

SOURCES = (".py", ".pyx", ".pxd", ".pyi")
_CYTHON_STRINGS = re.compile(r'"""(?:.|\n)*?"""|' + r"'''(?:.|\n)*?'''|#[^\n]*|\\\n")
_CYTHON_FROM = re.compile(r"^[ \t]*from\s+([\w.]+)\s+c?import\s+(\([^)]*\)|[^\n]+)", re.MULTILINE)
_CYTHON_IMPORT = re.compile(r"^[ \t]*c?import\s+([^\n]+)", re.MULTILINE)
_CYTHON_FILE = re.compile(r"""^[ \t]*(?:include|cdef\s+extern\s+from)\s+["']([^"']+)["']""", re.MULTILINE)


@cache
def imported(module: str, source: str, suffix: str) -> set[str]:
    """Every absolute name that ``source`` may import: for ``from a import b`` both ``a`` and ``a.b``.

    ``module`` is the source's own module name; that of a package ends in ``.__init__``.
    """
    pairs: list[tuple[str, list[str]]] = []
    if suffix in (".pyx", ".pxd"):
        source = _CYTHON_STRINGS.sub(" ", source)
        for base, names in _CYTHON_FROM.findall(source):
            pairs.append((base, _names(names)))
        for names in _CYTHON_IMPORT.findall(source):
            pairs.extend((name, []) for name in _names(names))
    else:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                pairs.extend((alias.name, []) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = "." * node.level + (node.module or "")
                pairs.append((base, [alias.name for alias in node.names]))
    found = set()
    for base, names in pairs:
        level = len(base) - len(base.lstrip("."))
        base = ".".join([*module.split(".")[:-level], *base[level:].split(".")]) if level else base
        base = base.rstrip(".")
        found.add(base)
        found.update(f"{base}.{name}" for name in names)
    return found


def _names(text: str) -> list[str]:
    return [part.split()[0] for part in text.strip("() \n;").split(",") if part.split()]


def forbidden(layer: str, module: str, source: str, suffix: str) -> list[str]:
    """The imports of ``module`` that its layer does not allow."""
    broken = []
    for name in sorted(imported(module, source, suffix)):
        top, _, rest = name.partition(".")
        if top == PACKAGE.name:
            if rest and rest.split(".")[0] not in (layer, *MAY_IMPORT[layer]):
                broken.append(name)
        elif any(name == rule or name.startswith(rule + ".") for rule in BANNED.get(layer, ())):
            broken.append(name)
    if suffix in (".pyx", ".pxd"):
        # C headers and included files can also bypass the layers.
        files = _CYTHON_FILE.findall(source)
        broken += [name for name in files if "net/" in name or name == "sys/socket.h"]
    return broken


def sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in SOURCES)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_a_layer_imports_only_allowed_modules(layer: str) -> None:
    paths = sources(PACKAGE / layer)
    assert paths, f"the layer {layer} has no sources"
    broken = {
        str(path.relative_to(ROOT)): names
        for path in paths
        if (names := forbidden(layer, module_name(path), path.read_text(), path.suffix))
    }
    assert broken == {}


def test_offsets_are_read_without_io_and_without_another_client() -> None:
    path = PACKAGE / "_consumer_offsets.py"
    found = imported(module_name(path), path.read_text(), path.suffix)
    own = {name.split(".")[1] for name in found if name.startswith("cyproducer.")}
    assert own == {"errors", "records", "structs"}
    others = {name.split(".")[0] for name in found} - {"cyproducer"}
    assert others <= sys.stdlib_module_names - {*IO, *THREADS_AND_CLOCKS}


def test_only_the_spark_package_and_its_command_import_spark() -> None:
    others = [path for path in sources(PACKAGE) if path.relative_to(PACKAGE).parts[0] != "spark"]
    knowing = [
        str(path.relative_to(ROOT))
        for path in others
        if any(
            name.split(".")[0] == "pyspark" or name.startswith("cyproducer.spark")
            for name in imported(module_name(path), path.read_text(), path.suffix)
        )
    ]
    assert knowing == [str(Path("cyproducer", "cli", "spark_recover.py"))]


@pytest.mark.parametrize(
    ("package", "only", "names"),
    [
        ("prometheus_client", "prometheus.py", ("cyproducer.prometheus",)),
        ("opentelemetry", "opentelemetry", ("cyproducer.opentelemetry",)),
    ],
)
def test_only_its_exporter_imports_an_optional_package(
    package: str, only: str, names: tuple[str, ...]
) -> None:
    knowing = {
        path.relative_to(PACKAGE).parts[0]
        for path in sources(PACKAGE)
        for name in imported(module_name(path), path.read_text(), path.suffix)
        if name.split(".")[0] == package or name.startswith(names)
    }
    assert knowing == {only}


def test_only_exporters_import_what_they_share() -> None:
    knowing = {
        str(path.relative_to(PACKAGE))
        for path in sources(PACKAGE)
        if "cyproducer._open_producers" in imported(module_name(path), path.read_text(), path.suffix)
    }
    assert knowing == {"prometheus.py", "opentelemetry/metrics.py"}


def test_only_the_aio_package_imports_itself() -> None:
    knowing = [
        str(path.relative_to(ROOT))
        for path in sources(PACKAGE)
        if path.relative_to(PACKAGE).parts[0] != "aio"
        and any(
            name.startswith("cyproducer.aio") or name.split(".")[0] == "aiokafka"
            for name in imported(module_name(path), path.read_text(), path.suffix)
        )
    ]
    assert knowing == []


def test_nothing_below_imports_the_producer_of_confluents_shape() -> None:
    others = [path for path in sources(PACKAGE) if path.relative_to(PACKAGE).parts[0] != "confluent"]
    assert len(others) < len(sources(PACKAGE))
    knowing = [
        str(path.relative_to(ROOT))
        for path in others
        if any(
            name.startswith("cyproducer.confluent")
            for name in imported(module_name(path), path.read_text(), path.suffix)
        )
    ]
    assert knowing == []


def test_the_producer_of_confluents_shape_needs_no_confluent_kafka() -> None:
    paths = [*sources(PACKAGE / "confluent"), PACKAGE / "serializers.py"]
    assert len(paths) > 5
    assert [
        path
        for path in paths
        if any(
            name.split(".")[0] == "confluent_kafka"
            for name in imported(module_name(path), path.read_text(), path.suffix)
        )
    ] == []


def test_the_aio_package_opens_no_connections() -> None:
    found = {
        name
        for path in sources(PACKAGE / "aio")
        for name in imported(module_name(path), path.read_text(), path.suffix)
    }
    assert "cyproducer.producer" in found
    forbidden_here = (
        "cyproducer.net",
        "cyproducer.sender",
        "cyproducer.accumulator",
        "aiokafka",
        "socket",
        "ssl",
        "concurrent",
    )
    assert [name for name in found if name.startswith(forbidden_here)] == []


def test_only_the_clock_reads_the_time() -> None:
    """Libraries that freeze the time in tests replace what other modules would read."""
    folders = [ROOT / name for name in ("cyproducer", "pyspark_cyproducer", "pytest_cyproducer")]
    paths = [path for folder in folders for path in sources(folder)]
    assert len(paths) > 100
    knowing = {
        str(path.relative_to(PACKAGE))
        for path in paths
        # A queue, too, waits by the functions of `time`.
        if {"time", "queue"} & imported(module_name(path), path.read_text(), path.suffix)
        or _READS_A_CLOCK.search(path.read_text())
    }
    # It finds `sleep`, which such libraries leave alone, and which gevent replaces.
    assert knowing == {"base/unpatched.py"}
    assert not [
        path
        for path in sources(PACKAGE / "control")
        if "cyproducer.base.clock" in imported(module_name(path), path.read_text(), path.suffix)
    ]


def test_only_tests_import_tests() -> None:
    names = ("cyproducer", "pyspark_cyproducer", "pytest_cyproducer", "demo_spark", "perf", "tools")
    folders = [ROOT / name for name in names]
    paths = [path for folder in folders for path in sources(folder)]
    assert len({path.relative_to(ROOT).parts[0] for path in paths}) == len(folders)
    assert [
        path
        for path in paths
        if any(
            name.split(".")[0] == "tests"
            for name in imported(module_name(path), path.read_text(), path.suffix)
        )
    ] == []


def test_control_is_pure_python() -> None:
    assert [path for path in sources(PACKAGE / "control") if path.suffix in (".pyx", ".pxd")] == []


def test_no_cython_source_includes_another() -> None:
    pattern = re.compile(r"^[ \t]*include\s+[\"']", re.MULTILINE)
    assert [
        path for path in sources(PACKAGE) if path.suffix != ".py" and pattern.search(path.read_text())
    ] == []


@pytest.mark.parametrize(
    ("suffix", "source", "found"),
    [
        (".py", "import cyproducer.net.sockets as s", ["cyproducer.net.sockets"]),
        (".py", "from cyproducer import net", ["cyproducer.net"]),
        (".py", "from cyproducer.net import dns", ["cyproducer.net", "cyproducer.net.dns"]),
        (".py", "def f():\n    from ..net import dns", ["cyproducer.net", "cyproducer.net.dns"]),
        (".py", "from .. import net", ["cyproducer.net"]),
        (".py", "from . import net", []),
        (".py", "from .net import dns", []),
        (".py", "import cyproducer.nets", ["cyproducer.nets"]),
        (".py", "import cyproducer.errors", []),
        (".py", "import os, time as t", ["time"]),
        (".py", "if True:\n    from threading import Lock", ["threading", "threading.Lock"]),
        (".py", "from concurrent.futures import Future", ["concurrent.futures", "concurrent.futures.Future"]),
        (".py", "import timeit, selector", []),
        (".py", "'''\nimport time\n'''  # import socket", []),
        (".pyi", "import socket", ["socket"]),
        (".pyx", "cimport cyproducer.net.sockets as s", ["cyproducer.net.sockets"]),
        (".pyx", "from cyproducer cimport (\n    records,\n    net,\n)", ["cyproducer.net"]),
        (".pyx", "from ..net cimport (codec as c)", ["cyproducer.net", "cyproducer.net.codec"]),
        (".pyx", "    from .. cimport net", ["cyproducer.net"]),
        (".pyx", "from cyproducer \\\n    import net", ["cyproducer.net"]),
        (".pxd", "import os, time", ["time"]),
        (".pyx", "from libc.time cimport time\ncimport cython", []),
        (".pyx", 'doc = """\nimport time\n"""\n# import socket', []),
        (".pyx", "cdef extern from '../net/wire.h' nogil:", ["../net/wire.h"]),
        (".pxd", 'cdef extern from "sys/socket.h":', ["sys/socket.h"]),
        (".pyx", 'cdef extern from "varint.h":', []),
    ],
)  # fmt: skip
def test_every_form_of_import_is_detected(suffix: str, source: str, found: list[str]) -> None:
    assert forbidden("control", "cyproducer.control.metadata", source, suffix) == found


def test_relative_imports_of_a_package_are_resolved_from_the_package() -> None:
    assert imported("cyproducer.control.__init__", "from .retry import x", ".py") == {
        "cyproducer.control.retry",
        "cyproducer.control.retry.x",
    }
    assert forbidden("control", "cyproducer.control.__init__", "from ..net import dns", ".py") == [
        "cyproducer.net",
        "cyproducer.net.dns",
    ]


@pytest.mark.parametrize("layer", BANNED)
def test_no_layer_without_io_may_import_connections_or_sockets(layer: str) -> None:
    source = "import socket\nimport cyproducer.net"
    assert forbidden(layer, f"cyproducer.{layer}.x", source, ".py") == ["cyproducer.net", "socket"]
