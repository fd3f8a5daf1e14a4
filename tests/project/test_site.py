"""What makes the documentation site and the description on PyPI from the pages and the code.

Building the site is tox's environment ``docs``: it needs packages that the tests do not have.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cyproducer.config.options import OPTIONS
from tests.pages import PAGES, ROOT
from tools.docs import links, sources

LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)")
NAV = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_every_page_has_a_place_in_the_navigation_and_in_the_list_for_contributors() -> None:
    pages = {page.name for page in PAGES if page.parent == ROOT / "docs"}
    assert pages <= set(re.findall(r": (\S+\.md)$", NAV, re.MULTILINE))
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = text.partition("\n## The pages\n")[2].partition("\n- ")[0]
    assert pages == set(re.findall(r"`(?:docs/)?([\w-]+\.md)`", listed))


# PyPI


def test_the_links_on_pypi_lead_to_the_version_s_files() -> None:
    text = links.for_pypi(ROOT, "https://example.org/us/cyproducer/", "1.2.3")
    found = LINK.findall(text)
    assert "https://example.org/us/cyproducer/blob/v1.2.3/docs/guarantees.md" in found
    assert "https://example.org/us/cyproducer/raw/v1.2.3/docs/plots/send.svg" in found
    for target in found:
        path = re.fullmatch(r"https://example\.org/us/cyproducer/(?:blob|raw)/v1\.2\.3/([^#]+)(#.*)?", target)
        assert path is not None, target
        assert (ROOT / path[1]).exists(), target


def test_without_an_address_the_description_has_no_link_and_no_image() -> None:
    text = links.for_pypi(ROOT, None, "1.2.3")
    assert not LINK.findall(text)
    assert "docs/guarantees.md lists the settings" in " ".join(text.split())
    assert "](docs" not in text


def test_other_links_and_code_stay_as_they_are() -> None:
    page = (
        "[a](https://example.org) [b](#here)\n```python\nx[0](docs/a.md)\n```\n[c\nd](../e.md#f) ![g](h.svg)"
    )
    assert links.rewrite(page, "docs/x.md", lambda path, fragment, image: f"<{path}{fragment} {image}>") == (
        "[a](https://example.org) [b](#here)\n```python\nx[0](docs/a.md)\n```\n"
        "[c\nd](<e.md#f False>) ![g](<docs/h.svg True>)"
    )


def test_pypi_gets_its_description_from_setup_py() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "readme" in project["dynamic"]
    assert '["for_pypi"]' in (ROOT / "setup.py").read_text(encoding="utf-8")
    assert "include tools/docs/links.py" in (ROOT / "MANIFEST.in").read_text(encoding="utf-8")


# The API reference


@pytest.mark.parametrize("stub", sorted((ROOT / "cyproducer").rglob("*.pyi")), ids=lambda path: path.stem)
def test_a_stub_with_docstrings_is_python(stub: Path) -> None:
    found = sources.docstrings(stub.with_suffix(".pyx").read_text(encoding="utf-8"))
    ast.parse(sources.documented(stub.read_text(encoding="utf-8"), found))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("send/send_path", "SendPath"),
        ("send/bulk_path", "BulkPath"),
        ("futures/delivery", "RecordFuture"),
        ("futures/bulk_future", "BulkFuture"),
        ("futures/bulk_future", "BulkMetadata"),
        ("futures/bulk_future", "RowOffsets"),
    ],
)
def test_the_public_classes_of_extensions_are_documented(module: str, name: str) -> None:
    stub = ROOT / "cyproducer" / f"{module}.pyi"
    text = sources.documented(
        stub.read_text(encoding="utf-8"),
        sources.docstrings(stub.with_suffix(".pyx").read_text(encoding="utf-8")),
    )
    (cls,) = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == name]
    assert ast.get_docstring(cls)
    public = [
        node for node in cls.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]
    assert public
    # What the class's own docstring explains.
    without = [node.name for node in public if not ast.get_docstring(node) and node.name != "topic"]
    assert not without


def test_a_docstring_belongs_to_its_definition() -> None:
    source = (
        'cdef class A:\n    """Of A."""\n\n    def b(\n        self,\n        x=(1, 2),\n    ):\n'
        '        """Of b."""\n\n    def c(self):\n        return """not of c"""\n\n'
        'def d(): # :\n    """Of\n    d."""\n'
    )
    assert sources.docstrings(source) == {"A": "Of A.", "A.b": "Of b.", "d": "Of\nd."}


# Pages from tables, in a process of their own: they are made without the extensions

TABLES = """
import json
from tools.docs import tables
print(json.dumps([tables.options_page(), tables.metrics_tables(), tables.codes_table(), tables.own_errors()]))
"""


@pytest.fixture(scope="module")
def made() -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", TABLES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT)},
    )
    found: list[str] = json.loads(done.stdout)
    return found


def test_the_page_of_options_has_each_with_its_default(made: list[str]) -> None:
    headings = re.findall(r"^### `(\w+)`$", made[0], re.MULTILINE)
    assert sorted(headings) == sorted(option.name for option in OPTIONS)
    assert "### `linger_ms`\n" in made[0]
    assert made[0].count("\nDefault: `") == len(OPTIONS)
    assert "Default: `131072`; allowed: " in made[0]


def test_the_site_s_tables_of_metrics_are_those_of_the_page(made: list[str]) -> None:
    assert (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").endswith(made[1])


def test_every_error_is_in_the_reference(made: list[str]) -> None:
    from cyproducer import errors

    # Tests before this one may have met codes that nobody knows.
    ours = {code: e for code, e in errors.kafka_errors.items() if e.__module__.endswith("codes")}
    rows = re.findall(r"^\| (-?\d+) \| `(\w+)`", made[2], re.MULTILINE)
    assert {int(code): name for code, name in rows} == {code: e.__name__ for code, e in ours.items()}
    assert {"KafkaError", "BulkSendError", "RecordTooLargeError"} <= set(made[3])
    assert "NotLeaderForPartitionError" not in made[3]
