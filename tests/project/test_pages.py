"""Every code block of every page: Python runs, shell commands exist, and printed output is as shown.

The Python blocks of a page run from top to bottom in one namespace, in an interpreter of their own, with an
embedded broker in place of ``localhost:9092``. Pages in ``BY_THEMSELVES`` need something else.
"""

from __future__ import annotations

import json
import re
import shlex
import ssl
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cyproducer.cli.main import parsers
from cyproducer.testing import EmbeddedBroker
from tests.integration.consume import read_all
from tests.pages import PAGES, ROOT, Block, blocks
from tests.programs import program_environment
from tests.scripted.scripted_broker import ScriptedCluster
from tests.scripted.scripted_sasl import Exchange, SaslServer
from tests.testing.run_pytest import run_pytest
from tools.harness.tls import Authority, chain_pem, key_pem
from tools.harness.token_server import TokenServer

BY_THEMSELVES = {"security.md", "testing.md"}
RUN = [page for page in PAGES if page.name not in BY_THEMSELVES]
#: Each needs its reason in the page. A change here is a decision.
NOT_RUN = {
    "perf/README.md": 1,
    "docs/asyncio.md": 1,
    "docs/security.md": 2,
    "docs/spark.md": 10,
    "docs/spark-exactly-once.md": 3,
    "docs/testing.md": 2,
    "docs/tracing.md": 3,
    "docs/transactions.md": 2,
}


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def running(page: Path) -> list[Block]:
    return [block for block in blocks(page, "python") if block.reason is None]


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as started:
        yield started


def run(page: Path, broker: EmbeddedBroker, directory: Path) -> list[str]:
    """Runs a page's Python blocks; returns what each has printed."""
    texts = []
    for block in running(page):
        text = block.text.replace("localhost:9092", broker.bootstrap_servers)
        texts.append((block.line, text.replace("/tmp/", f"{directory}/")))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("page_program.py")), str(directory / "printed")],
        input=json.dumps({"name": name(page), "blocks": texts}),
        capture_output=True,
        text=True,
        timeout=150,
        cwd=directory,
        env=program_environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed: list[str] = json.loads((directory / "printed").read_text())
    return printed


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in RUN if running(page)], ids=name)
def test_the_python_blocks_of_a_page_run(page: Path, broker: EmbeddedBroker, tmp_path: Path) -> None:
    printed = iter(run(page, broker, tmp_path))
    latest = None
    for block in blocks(page):
        if block.printed:
            assert latest == block.text, f"printed, by the block above line {block.line}"
        if block.language == "python" and block.reason is None:
            latest = next(printed)


@pytest.mark.slow
def test_the_programs_for_users_of_other_clients_send_what_they_say(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    page = ROOT / "docs" / "migration.md"
    sent = sum("paid" in block.text for block in running(page))
    assert sent == len(running(page)) >= 5
    run(page, broker, tmp_path)
    records = read_all(broker.bootstrap_servers, "orders", sent)
    assert [record.value for record in records] == [b"paid"] * sent


def test_blocks_that_do_not_run_are_few_and_have_their_reasons() -> None:
    found = {name(page): [b for b in blocks(page, "python") if b.reason is not None] for page in PAGES}
    assert {page: len(those) for page, those in found.items() if those} == NOT_RUN
    for page, those in found.items():
        for block in those:
            assert len(block.reason or "") > 10, (page, block.line)
            compile(block.text, page, "exec")


def test_every_block_has_a_language_and_every_fence_belongs_to_a_block() -> None:
    for page in PAGES:
        found = blocks(page)
        fences = re.findall(r"^ *```", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) == 2 * len(found), name(page)
        assert not [block.line for block in found if not block.language], name(page)


# The shell


def commands(page: Path) -> list[str]:
    """Command lines: of shell blocks, and those in the text that are of this project."""
    text = page.read_text(encoding="utf-8")
    shell = "\n".join(block.text for block in blocks(page, "sh")).replace("\\\n", " ")
    # Of a pipeline, what it ends with.
    found = [line.rpartition(" | ")[2] for line in shell.splitlines()]
    prose = re.sub(r"(?ms)^ *```.*?```$", "", text)
    found += re.findall(
        r"`((?:make|pip install|python(?: -P)? (?:-m )?[\w.]+/?)[^`]*)`", " ".join(prose.split())
    )
    return [line for line in found if line.strip()]


TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def parses(words: list[str]) -> bool:
    """Whether ``python -m cyproducer`` takes these arguments."""
    try:
        parsers()[0].parse_args(words)
    except SystemExit as end:
        return end.code == 0  # --help
    return True


def check(line: str) -> str:
    """Checks a command line; returns the kind of command."""
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        targets = [word for word in words[1:] if "=" not in word]
        assert set(targets) <= TARGETS, line
        return "make"
    if words[0] == "pip":
        for extras in re.findall(r"\[([\w,]+)\]", line):
            assert set(extras.split(",")) <= EXTRAS, line
        return "pip"
    if words[0] == "cyproducer":
        assert parses(words[1:]), line
        return "cyproducer"
    if words[0].endswith("python"):
        words = [word for word in words[1:] if word != "-P"]
        if words[0] != "-m":
            assert (ROOT / words[0]).is_file(), line
            return "script"
        if words[1] == "cyproducer":
            # Without the arguments it is only a name.
            if len(words) > 2:
                assert parses(words[2:]), line
            return "cyproducer"
        assert (ROOT / words[1].replace(".", "/")).with_suffix(".py").exists() or (
            ROOT / words[1].replace(".", "/") / "__main__.py"
        ).exists(), line
        return "module"
    return "other"


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=name)
def test_commands_exist(page: Path) -> None:
    for line in commands(page):
        assert check(line), line


def test_each_kind_of_command_is_found_and_a_wrong_one_is_refused() -> None:
    kinds = {check(line) for page in PAGES for line in commands(page)}
    assert {"make", "pip", "script", "cyproducer", "module"} <= kinds
    for wrong in (
        "make nothing",
        "pip install '.[nothing]'",
        "python perf/nothing.py",
        "python -m cyproducer.nothing",
        "python -m cyproducer produce --nothing",
        "cyproducer perf --nothing",
    ):
        with pytest.raises(AssertionError):
            check(wrong)


def test_the_page_about_installing_lists_every_extra() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == EXTRAS


@pytest.mark.slow
def test_the_modules_that_print_tables_run() -> None:
    modules = {line for page in PAGES for line in commands(page) if check(line) == "module"}
    # Those of tools write files.
    lines = {line for line in modules if line.startswith("python -m cyproducer.")}
    assert "python -m cyproducer.config" in lines
    for line in sorted(lines):
        command = [sys.executable, *shlex.split(line)[1:]]
        done = subprocess.run(command, capture_output=True, env=program_environment(), check=False)
        assert done.returncode == 0, (line, done.stderr)
        assert done.stdout, line


# Pages that need something else

TESTING = re.compile(r"# (\w+\.py)\n")


@pytest.mark.slow
def test_the_files_of_the_page_about_testing_are_tests_that_pass(tmp_path: Path) -> None:
    found = running(ROOT / "docs" / "testing.md")
    for block in found:
        file = TESTING.match(block.text)
        assert file is not None, block.line
        (tmp_path / file[1]).write_text(block.text)
    tests = sum(block.text.count("\ndef test_") for block in found)
    assert tests >= 7
    assert run_pytest(tmp_path)[1] == {"passed": tests}


SECURED = running(ROOT / "docs" / "security.md")
"""Those with Kerberos run in ``tests/integration/test_gssapi.py``."""


def token_exchange(mechanism: str) -> Exchange:
    assert mechanism == "OAUTHBEARER"
    parts = (yield b"").decode().split("\1")
    assert parts[:1] == ["n,,"]
    # A token from the file, from the endpoint, or from AWS's signer.
    assert re.fullmatch(r"auth=Bearer (a\.token|\S+\.\S+\.\S+|[\w-]{400,})", parts[1])


@pytest.fixture(scope="module")
def issuer() -> Iterator[TokenServer]:
    with TokenServer() as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("block", SECURED, ids=lambda block: f"line-{block.line}")
def test_a_program_of_the_page_about_security_sends_its_record(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, issuer: TokenServer
) -> None:
    program = block.text
    for variable, value in (("REGION", "eu-west-1"), ("ACCESS_KEY_ID", "A"), ("SECRET_ACCESS_KEY", "S")):
        monkeypatch.setenv(f"AWS_{variable}", value)
    authority = Authority()
    authority.file(tmp_path)
    mine = authority.issue("client")
    (tmp_path / "client.pem").write_text(chain_pem(mine))
    (tmp_path / "client.key").write_text(key_pem(mine, "a secret"))
    (tmp_path / "client.password").write_text("a secret\n")
    (tmp_path / "alice.password").write_text("a secret\n")
    (tmp_path / "client.secret").write_text("a secret\n")
    (tmp_path / "token").write_text("a.token\n")
    server = authority.server()
    if "ssl_certfile" in program:
        server.verify_mode = ssl.CERT_REQUIRED
        authority.ca.configure_trust(server)
    sasl = None
    if "SASL_SSL" in program:
        sasl = SaslServer({"alice": "a secret"}, ("SCRAM-SHA-512", "OAUTHBEARER"))
        sasl.own = token_exchange if "OAUTHBEARER" in program or "AWS_MSK" in program else None
    with ScriptedCluster(tls=server, sasl=sasl, orders=1) as cluster:
        names: dict[str, object] = {}
        for printed, actual in (
            ("broker.example:9093", cluster.nodes[1].address),
            ("/etc/kafka", str(tmp_path)),
            ("https://issuer.example/token", issuer.url),
        ):
            program = program.replace(printed, actual)
        exec(program, names)
        names["producer"].close()  # type: ignore[attr-defined]
        (value,) = re.findall(r'send\("orders", b"(.*)"\)', program)
        (record,) = cluster.topics["orders"].partitions[0].records
        assert record.value == value.encode()
