"""What type checkers and editors see: the options' types, the stubs' docstrings, mistakes in programs.

mypy's usual run over the tests (the environment ``types`` of tox) reads ``typed/``: it has no complaint about
the correct programs, and each ``type: ignore`` among the mistakes is needed. Here the same is asked of
pyright, if it is installed.
"""

import ast
import asyncio
import importlib.util
import inspect
import json
import re
import shutil
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cyproducer
from cyproducer import KafkaProducer, types
from cyproducer.config.option_kinds import Refused
from cyproducer.config.options import OPTIONS, Option
from cyproducer.errors import KafkaConfigurationError
from cyproducer.testing import MockProducer
from tests.project.typed import correct, mistakes
from tests.scripted.scripted_broker import ScriptedCluster
from tools import option_types, stub_docstrings

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).with_name("typed")


def functions(module: Any) -> dict[str, Callable[..., Any]]:
    """The functions that a module defines."""
    found = {name: each for name, each in vars(module).items() if inspect.isfunction(each)}
    return {name: each for name, each in found.items() if each.__module__ == module.__name__}


# The options


def test_the_typed_options_are_those_of_the_table() -> None:
    source = Path(types.__file__).read_text()
    assert source.endswith(f"\n\n\n{option_types.rendered()}"), "run python -m tools.option_types"


def test_the_types_of_options_resolve_at_run_time() -> None:
    hints = typing.get_type_hints(types.ProducerOptions)
    assert set(hints) == {option.name for option in OPTIONS}
    assert typing.get_args(hints["metadata_recovery_strategy"]) == ("rebootstrap", "none")


def test_only_options_that_may_be_anything_have_no_type() -> None:
    untyped = {option.name for option in OPTIONS if "Any" in option.kind.annotation.split(" | ")}
    assert untyped == {"net", "kafka_client", "sasl_kerberos_name"}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_the_type_of_an_option_is_what_it_accepts(option: Option[Any]) -> None:
    def accepts(value: Any) -> bool:
        try:
            option.kind(value)
        except Refused:
            return False
        return True

    annotation = option.kind.annotation
    first, *_ = annotation.split(" | ")
    for word in re.findall(r'"([^"]*)"', annotation):
        assert accepts([word] if first.startswith("Sequence") else word)
    if annotation != "Any":
        assert accepts(None) == annotation.endswith(" | None")
    if first in ("bool", "int", "float"):
        assert accepts({"bool": False, "int": 1, "float": 1000}[first])
        assert accepts(True) == (first == "bool")


# Names


@pytest.mark.parametrize("module", [cyproducer, types], ids=lambda module: module.__name__)
def test_public_names_exist(module: Any) -> None:
    assert all(hasattr(module, name) for name in module.__all__)


def test_the_types_cost_no_import_time() -> None:
    program = "import sys, cyproducer; assert 'cyproducer.types' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_producer_takes_type_parameters_at_run_time() -> None:
    alias: Any = KafkaProducer[str, bytes]
    assert (typing.get_origin(alias), typing.get_args(alias)) == (KafkaProducer, (str, bytes))
    with MockProducer[str, bytes](key_serializer=str.encode) as producer:
        assert isinstance(producer, MockProducer)
        assert producer.send("t", b"v", "k").get(10).topic == "t"


# Docstrings


def documented() -> Iterator[Any]:
    for module in stub_docstrings.STUBS:
        tree = ast.parse(stub_docstrings.path_of(module).read_text())
        runtime = importlib.import_module(f"cyproducer.{module}")
        for node, text in stub_docstrings.documented(tree, runtime):
            yield pytest.param(node, text, id=f"{module}:{node.name}:{node.lineno}")


@pytest.mark.parametrize(("node", "text"), list(documented()))
def test_a_stub_has_the_docstring_of_the_extension(node: Any, text: str) -> None:
    assert ast.get_docstring(node) == text, "run python -m tools.stub_docstrings"


def test_every_public_method_of_an_extension_type_has_a_docstring() -> None:
    kinds = (KafkaProducer, cyproducer.RecordFuture, cyproducer.BulkFuture, cyproducer.RowOffsets)
    for kind in kinds:
        for name, member in inspect.getmembers(
            kind, lambda each: callable(each) or isinstance(each, property)
        ):
            assert name.startswith("_") or member.__doc__, f"{kind.__name__}.{name}"


# Programs


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ScriptedCluster(t=1) as cluster:
        yield cluster.nodes[1].address


@pytest.mark.parametrize("program", [name for name in functions(correct) if name != "json_bytes"])
def test_a_correct_program_runs(program: str, address: str) -> None:
    functions(correct)[program](address)


RAISES: dict[str, tuple[type[Exception], str]] = {
    "misspelt_option": (KafkaConfigurationError, "unknown option 'lingerms': did you mean 'linger_ms'"),
    "option_of_a_wrong_type": (KafkaConfigurationError, "linger_ms='soon': must be a number of milliseconds"),
    "unknown_codec": (KafkaConfigurationError, "compression_type='lz5': must be one of 'gzip'"),
    "unknown_acks": (KafkaConfigurationError, "acks='every': must be 0, 1, -1 or 'all'"),
    "unknown_protocol": (KafkaConfigurationError, "security_protocol='TLS': must be one of 'PLAINTEXT'"),
    "misspelt_method": (AttributeError, r"KafkaProducer has no produce\(\): call send\(\)"),
    "text_without_a_serializer": (TypeError, "value: .*str.*; set value_serializer for other types"),
    "value_that_the_serializer_does_not_take": (TypeError, "'encode' for 'str' objects"),
    "key_and_value_swapped": (TypeError, "raised by key_serializer, for a key of type int for topic 't'"),
    "serializer_that_returns_text": (TypeError, "value: .*str"),
    "headers_in_a_dict": (TypeError, r"headers: must be a list of \(str, bytes or None\) pairs, not dict"),
    "number_in_a_header": (TypeError, "the value of a header: .*int"),
    "text_as_partition": (TypeError, "partition: must be an int or None, not str"),
    "float_as_timestamp": (TypeError, "timestamp_ms: must be an int or None, not float"),
    "datetime_as_timestamp": (TypeError, "timestamp_ms: must be an int or None, not datetime"),
    "text_as_timeout_of_flush": (TypeError, "timeout='1': must be a number of seconds"),
    "text_as_timeout_of_get": (TypeError, "timeout='1': must be a number of seconds"),
    "offset_of_a_future": (AttributeError, r"its metadata has: future\.get\(\)\.offset"),
    "awaited_get": (TypeError, "RecordMetadata.* can't be (used in 'await'|awaited)"),
    "future_of_send_async_without_await": (AttributeError, "get"),
    "interceptor_with_a_misspelt_method": (KafkaConfigurationError, "Counting has none of these methods"),
    "interceptor_with_one_misspelt_method": (
        KafkaConfigurationError,
        r"on_ack\(\) and no on_acknowledgement",
    ),
    "partitioner_with_a_wrong_signature": (KafkaConfigurationError, "does not take .key_bytes"),
    "token_provider_without_token": (KafkaConfigurationError, r"an object with a token\(\) method"),
}
"""Mistakes that also raise at run time, and how."""

SILENT = {
    # The callback thread logs these.
    "callback_without_a_parameter",
    "callback_with_a_parameter_too_many",
    "callback_with_the_metadata_first",
    "callback_for_errors_that_wants_metadata",
    "callback_for_metadata_that_wants_an_error",
    # Python warns that it was never awaited.
    "send_async_without_await",
}


def test_each_mistake_is_seen_by_checkers_or_raises() -> None:
    source = (PROGRAMS / "mistakes.py").read_text().splitlines()
    unmarked = set()
    for name, function in functions(mistakes).items():
        lines, first = inspect.getsourcelines(function)
        marks = sum("# type: ignore[" in line for line in source[first - 1 : first - 1 + len(lines)])
        assert marks <= 1, name
        if not marks:
            unmarked.add(name)
    assert unmarked == {"interceptor_with_one_misspelt_method"} <= set(RAISES)
    assert set(functions(mistakes)) == set(RAISES) | SILENT


# One of them leaves a coroutine behind.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("name", RAISES)
def test_a_mistake_raises_at_run_time(name: str) -> None:
    kind, message = RAISES[name]
    with MockProducer() as producer, pytest.raises(kind, match=message):
        run(functions(mistakes)[name], producer)


def run(mistake: Callable[..., Any], producer: KafkaProducer) -> None:
    result = mistake(*(producer for _ in inspect.signature(mistake).parameters))
    if inspect.iscoroutine(result):
        asyncio.run(result)


# pyright


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the programs, from where pyright finds the package. Skips without pyright."""
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("pyright is not installed")
    version = subprocess.run(
        [sys.executable, "-m", "pyright", "--version"], check=False, capture_output=True, text=True
    )
    if version.returncode != 0:
        pytest.skip(f"pyright does not run here: {version.stderr[-200:]}")
    folder = tmp_path_factory.mktemp("typed")
    for name in ("correct.py", "mistakes.py"):
        shutil.copy(PROGRAMS / name, folder)
    page = (ROOT / "docs" / "typing.md").read_text()
    (folder / "page.py").write_text("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)))
    settings = {
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "extraPaths": [str(Path(cyproducer.__path__[0]).parent)],
        # Else the marks for mypy would hide what pyright says about these lines.
        "enableTypeIgnoreComments": False,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    return folder


def test_pyright_sees_the_mistakes_and_no_others(project: Path) -> None:
    command = [sys.executable, "-m", "pyright", "--outputjson", "-p", str(project)]
    output = subprocess.run(command, check=False, capture_output=True, text=True).stdout
    found = {
        (Path(each["file"]).name, each["range"]["start"]["line"])
        for each in json.loads(output)["generalDiagnostics"]
        if each["severity"] == "error"
    }
    lines = (PROGRAMS / "mistakes.py").read_text().splitlines()
    marked = {("mistakes.py", number) for number, line in enumerate(lines) if "# type: ignore[" in line}
    assert found == marked


HOVERS = {
    "send": "Accepts a record and returns its future",
    "get": "Waits for the outcome",
    "flush": "Waits until every record accepted before the call",
    "add_callback": "Calls `f(*args, metadata, **kwargs)` once the record is acknowledged",
    "send_arrow": "Accepts the rows of a table",
    "send_many": "Accepts many records",
    "linger_ms": "How long a batch that is not full waits",
    "is_done": "Whether the outcome is known",
}
PROGRAM = """\
from cyproducer import KafkaProducer
producer = KafkaProducer(linger_ms=5)
future = producer.send("t", b"v")
future.add_callback(print, 1)
future.get()
future.is_done
producer.flush()
producer.send_arrow("t", object())
producer.send_many("t", [])
"""


def test_an_editor_shows_docstrings_of_extensions_and_meanings_of_options(project: Path) -> None:
    path = project / "hover.py"
    path.write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, "-m", "pyright.langserver", "--stdio"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        editor = Editor(server, path)
        try:
            shown = {word: editor.hover(word) for word in HOVERS}
        finally:
            server.kill()
    for word, text in HOVERS.items():
        assert text in shown[word]
    assert "-> RecordFuture" in shown["send"]


class Editor:
    """A client of a language server: JSON-RPC over its standard streams (the Language Server Protocol)."""

    def __init__(self, server: "subprocess.Popen[bytes]", path: Path) -> None:
        assert server.stdin is not None
        assert server.stdout is not None
        self._to, self._from = server.stdin, server.stdout
        self._requests = 0
        self._uri = path.as_uri()
        self._text = path.read_text()
        folder = path.parent.as_uri()
        folders = [{"uri": folder, "name": "programs"}]
        hover = {"textDocument": {"hover": {"contentFormat": ["markdown"]}}}
        self._ask(
            "initialize",
            {"processId": None, "rootUri": folder, "capabilities": hover, "workspaceFolders": folders},
        )
        self._send({"method": "initialized", "params": {}})
        document = {"uri": self._uri, "languageId": "python", "version": 1, "text": self._text}
        self._send({"method": "textDocument/didOpen", "params": {"textDocument": document}})

    def hover(self, word: str) -> str:
        """What is shown over the word's last occurrence."""
        *_, last = re.finditer(rf"\b{word}\b", self._text)
        before = self._text[: last.start()]
        position = {"line": before.count("\n"), "character": len(before) - before.rfind("\n") - 1}
        params = {"textDocument": {"uri": self._uri}, "position": position}
        found = self._ask("textDocument/hover", params)
        return str(found["contents"]["value"]) if found else ""

    def _ask(self, method: str, params: dict[str, Any]) -> Any:
        self._requests += 1
        self._send({"id": self._requests, "method": method, "params": params})
        while True:
            message = self._read()
            if "method" in message:
                if "id" in message:
                    wants_settings = message["method"] == "workspace/configuration"
                    self._send({"id": message["id"], "result": [{}] if wants_settings else None})
            elif message["id"] == self._requests:
                return message["result"]

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._to.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self._to.flush()

    def _read(self) -> Any:
        size = 0
        while line := self._from.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        return json.loads(self._from.read(size))
