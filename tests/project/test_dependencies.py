"""Checks that CONTRIBUTING.md decides about the next major version of each dependency, in a row of a table.

A list that names a package without the bound of its row, and a row that nothing needs, fail too.
"""

from __future__ import annotations

import configparser
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(
    r"^\| `(?P<package>[\w.-]+)` \| (?P<bound>none|`<[\d.]+`) \| .+ \| `(?P<noticed_by>\S+)` \|$",
    re.MULTILINE,
)
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


class Needed(NamedTuple):
    """A requirement, and the list that has it."""

    where: str
    requirement: Requirement


def installs() -> Iterator[Needed]:
    """Yields what users' installs and builds need."""
    project = PYPROJECT["project"]
    lists = {
        "build-system.requires": PYPROJECT["build-system"]["requires"],
        "project.dependencies": project["dependencies"],
        **{f"the extra {name}": given for name, given in project["optional-dependencies"].items()},
    }
    for where, given in lists.items():
        for text in given:
            yield Needed(where, Requirement(text))


def checks() -> Iterator[Needed]:
    """Yields what only this project's own checks need."""
    for group, given in PYPROJECT["dependency-groups"].items():
        for text in given:
            if isinstance(text, str):
                yield Needed(f"the group {group}", Requirement(text))
    environments = configparser.ConfigParser(interpolation=None)
    environments.read(ROOT / "tox.ini")
    for name, section in environments.items():
        for line in section.get("deps", "").splitlines():
            if line and not line.startswith(("#", "{")):
                yield Needed(f"tox.ini's {name}", Requirement(line))
    for text in re.findall(r"pip install .*?'(tox\b[^']*)'", (ROOT / "Makefile").read_text()):
        yield Needed("the Makefile", Requirement(text))


def decisions() -> dict[str, tuple[str | None, str]]:
    """Returns for each row's package the upper bound, and what notices that it breaks."""
    _, _, section = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## Dependencies\n")
    section, _, _ = section.partition("\n## ")
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    found = list(ROW.finditer(section))
    assert len(found) == len(rows) > 0, "a row has another form"
    return {
        row["package"]: (None if row["bound"] == "none" else row["bound"].strip("`"), row["noticed_by"])
        for row in found
    }


DECISIONS = decisions()


def test_what_an_install_needs_has_a_row() -> None:
    for where, requirement in installs():
        assert requirement.name in DECISIONS, f"{where}: {requirement}"


def test_each_list_has_the_bound_of_the_row() -> None:
    for where, requirement in (*installs(), *checks()):
        expected, _ = DECISIONS.get(requirement.name, (None, ""))
        bounds = [str(each) for each in requirement.specifier if each.operator not in (">=", ">", "!=")]
        assert bounds == ([expected] if expected else []), f"{where}: {requirement}"


def test_each_row_is_of_a_dependency_and_names_a_file() -> None:
    assert set(DECISIONS) <= {each.requirement.name for each in (*installs(), *checks())}
    for package, (_, noticed_by) in DECISIONS.items():
        assert (ROOT / noticed_by).is_file(), f"{package}: {noticed_by}"
