"""The layers: which folder may import which.

MAY_IMPORT, BANNED and IMPORTED_BY contain the rules. The tests parse the sources, so that they also
find an import inside a function, under a condition or in Cython.
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
    "send": ("accumulator", "base", "control", "errors", "futures", "records", "structs"),
    "net": (
        "accumulator", "base", "config", "control", "errors", "records", "security", "version", "wire",
    ),
    "sender": ("accumulator", "base", "control", "errors", "futures", "net", "records", "structs", "wire"),
    "clients": (
        "base", "config", "control", "errors", "futures", "net", "records", "sender", "structs", "wire",
    ),
    "observability": ("accumulator", "base", "records"),
    # It wraps the producer's methods, from outside.
    "opentelemetry": (
        "_open_producers", "_runtime", "accumulator", "base", "clients", "config", "errors", "futures",
        "net", "observability", "producer", "sender", "structs", "version",
    ),
    # It opens no connections: it calls the producer.
    "aio": (
        "_asyncio_thread", "_send_async", "base", "config", "errors", "futures", "producer", "records",
        "send", "structs",
    ),
    # Offsets are read without I/O and without another client.
    "_consumer_offsets": ("errors", "records", "structs"),
}  # fmt: skip
"""Layer -> the folders and modules of this package that it may import, in addition to itself."""

IO = ("socket", "ssl", "select", "selectors")
THREADS_AND_CLOCKS = ("asyncio", "threading", "_thread", "concurrent", "multiprocessing", "time")
BANNED = {
    "control": (*IO, *THREADS_AND_CLOCKS, "cyproducer.base.clock"),
    "records": (*IO, "asyncio"),
    "wire": (*IO, *THREADS_AND_CLOCKS),
    # Token providers may be async.
    "security": ("socket", "select", "selectors"),
    # A future is awaitable: it imports asyncio when it is awaited, to find the running loop.
    "futures": IO,
    "accumulator": (*IO, "asyncio"),
    "send": (*IO, "asyncio"),
    "aio": ("socket", "ssl", "concurrent"),
    "_consumer_offsets": (*IO, *THREADS_AND_CLOCKS),
}
"""Layer -> the other modules that it may not import, including their submodules."""

IMPORTED_BY = {
    "cyproducer.aio": (),
    "cyproducer.confluent": (),
    "cyproducer.opentelemetry": (),
    "cyproducer.prometheus": (),
    "cyproducer.spark": ("cli/spark_recover.py",),
    # What exporters share.
    "cyproducer._open_producers": ("opentelemetry/metrics.py", "prometheus.py"),
    "aiokafka": (),
    "aws_msk_iam_sasl_signer": ("security/aws.py",),
    "backports": ("records/compression.pyx",),
    "botocore": ("security/aws.py",),
    # Of Python 3.14.
    "compression": ("records/compression.pyx",),
    "confluent_kafka": (),
    "cramjam": ("records/compression.pyx",),
    "cryptography": ("security/oidc.py", "security/tls_context.py"),
    "gssapi": ("security/gssapi.py",),
    "jwt": ("security/oidc.py",),
    "kafka": ("spark/topics.py",),
    "lz4": ("records/compression.pyx",),
    "opentelemetry": ("opentelemetry",),
    "prometheus_client": ("prometheus.py",),
    "pyarrow": ("spark",),
    "pyspark": ("spark",),
}
"""Module of this package, or other package -> the files and folders that import it, besides itself."""
ANYWHERE = {"cpython", "cython", "libc", PACKAGE.name, "typing_extensions"} | sys.stdlib_module_names

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
        foreign = top == PACKAGE.name and rest and rest.split(".")[0] not in (layer, *MAY_IMPORT[layer])
        if foreign or any(is_in(name, rule) for rule in BANNED.get(layer, ())):
            broken.append(name)
    if suffix in (".pyx", ".pxd"):
        # C headers and included files can also bypass the layers.
        files = _CYTHON_FILE.findall(source)
        broken += [name for name in files if "net/" in name or name == "sys/socket.h"]
    return broken


def is_in(name: str, module: str) -> bool:
    """Whether ``name`` is the module or something in it."""
    return name == module or name.startswith(module + ".")


@cache
def sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in SOURCES)


read = cache(Path.read_text)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imported_by(path: Path) -> set[str]:
    return imported(module_name(path), read(path), path.suffix)


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_a_layer_imports_only_allowed_modules(layer: str) -> None:
    paths = sources(PACKAGE / layer) or [PACKAGE / f"{layer}.py"]
    broken = {
        str(path.relative_to(ROOT)): names
        for path in paths
        if (names := forbidden(layer, module_name(path), read(path), path.suffix))
    }
    assert broken == {}


@pytest.mark.parametrize("module", IMPORTED_BY)
def test_only_those_of_the_table_import_a_module(module: str) -> None:
    importers = set()
    for path in sources(PACKAGE):
        names = [name for name in imported_by(path) if is_in(name, module)]
        if names and not is_in(module_name(path), module):
            place = path.relative_to(PACKAGE)
            importers.add(
                next((rule for rule in IMPORTED_BY[module] if place.is_relative_to(rule)), str(place))
            )
    assert importers == set(IMPORTED_BY[module])


def test_each_package_that_is_imported_has_a_row() -> None:
    tops = {name.split(".")[0] for path in sources(PACKAGE) for name in imported_by(path)}
    assert tops - ANYWHERE <= set(IMPORTED_BY)


def test_each_row_of_this_package_names_a_module_that_exists() -> None:
    own = [module for module in IMPORTED_BY if module.startswith(PACKAGE.name + ".")]
    modules = [module_name(path) for path in sources(PACKAGE)]
    assert [row for row in own if not any(is_in(module, row) for module in modules)] == []


def test_only_the_clock_reads_the_time() -> None:
    """Libraries that freeze the time in tests replace what other modules would read."""
    folders = [ROOT / name for name in ("cyproducer", "pyspark_cyproducer", "pytest_cyproducer")]
    paths = [path for folder in folders for path in sources(folder)]
    assert len(paths) > 100
    knowing = {
        str(path.relative_to(PACKAGE))
        for path in paths
        # A queue, too, waits by the functions of `time`.
        if {"time", "queue"} & imported_by(path) or _READS_A_CLOCK.search(read(path))
    }
    # It finds `sleep`, which such libraries leave alone, and which gevent replaces.
    assert knowing == {"base/unpatched.py"}


BROKER = PACKAGE / "testing" / "broker"
BROKER_MAY_IMPORT = (
    "base",
    "errors",
    "records",
    "wire",
    "testing.broker",
    "testing.pushed_metrics",
    "testing.stored_record",
)
BROKER_RULES = (
    "authentication", "batches", "configs", "group_offsets", "groups", "homes", "partitions", "transactions",
    "world",
)  # fmt: skip
"""What the simulator runs as well, or could: without I/O, clock and loop."""


def test_the_embedded_broker_knows_no_producer() -> None:
    for path in sources(BROKER):
        found = [name for name in imported_by(path) if name.startswith("cyproducer.")]
        allowed = [f"{PACKAGE.name}.{name}" for name in BROKER_MAY_IMPORT]
        assert not [name for name in found if not any(is_in(name, each) for each in allowed)], path


def test_the_rules_of_the_embedded_broker_do_no_io() -> None:
    for name in BROKER_RULES:
        found = imported_by(BROKER / f"{name}.py")
        banned = (*IO, *THREADS_AND_CLOCKS, "cyproducer.base.clock", "cyproducer.testing.broker.server")
        assert not [each for each in found if any(is_in(each, rule) for rule in banned)], name


def test_only_tests_import_tests() -> None:
    names = ("cyproducer", "pyspark_cyproducer", "pytest_cyproducer", "demo_spark", "perf", "tools")
    folders = [ROOT / name for name in names]
    paths = [path for folder in folders for path in sources(folder)]
    assert len({path.relative_to(ROOT).parts[0] for path in paths}) == len(folders)
    assert [path for path in paths if any(is_in(name, "tests") for name in imported_by(path))] == []


def test_control_is_pure_python() -> None:
    assert [path for path in sources(PACKAGE / "control") if path.suffix in (".pyx", ".pxd")] == []


def test_no_cython_source_includes_another() -> None:
    pattern = re.compile(r"^[ \t]*include\s+[\"']", re.MULTILINE)
    assert [path for path in sources(PACKAGE) if path.suffix != ".py" and pattern.search(read(path))] == []


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
