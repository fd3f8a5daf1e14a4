"""Checks that the mutants of ``tools/mutants.txt`` still match the product's lines and tests."""

import re
from functools import cache
from pathlib import Path

import pytest

from tools.mutants import ROOT, TABLE, chosen, parse

read = cache(Path.read_text)


def test_each_mutant_changes_one_place_and_names_existing_tests() -> None:
    problems = []
    mutants = parse(read(TABLE))
    for mutant in mutants:
        try:
            mutant.applied(read(ROOT / mutant.path))
        except (OSError, ValueError) as error:
            problems.append(f"{mutant.name}: {error}")
        for test in mutant.tests:
            path, _, function = test.partition("::")
            defined = rf"^(async )?def {function}\(" if function else ""
            if not (ROOT / path).is_file() or not re.search(defined, read(ROOT / path), re.MULTILINE):
                problems.append(f"{mutant.name}: there is no {test}")
    assert problems == []
    assert len(mutants) > 100


MUTANT = "=== a.py\n\n== one: breaks x\n a\n-b\n+c\n> tests/test_a.py::test_x\n> histories\n"


def test_a_mutant_replaces_whole_lines() -> None:
    (mutant,) = parse(MUTANT)
    assert (mutant.name, mutant.why, mutant.path) == ("one", "breaks x", "a.py")
    assert (mutant.old, mutant.new) == ("a\nb\n", "a\nc\n")
    assert (mutant.tests, mutant.histories) == (("tests/test_a.py::test_x",), ("histories",))
    assert not mutant.perturbed
    assert parse(MUTANT.replace("> tests", "> perturbed tests"))[0].perturbed
    assert mutant.applied("xa\nb\na\nb\n") == "xa\nb\na\nc\n"
    for text in ("xa\nb\n", "a\nb\n" * 2):
        with pytest.raises(ValueError, match=r"one does not apply: its old lines are \d times in a\.py"):
            mutant.applied(text)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("=== a.py\n", "", "m.txt:2: the mutant is below no module"),
        ("== one", "one", "m.txt:3: expected '=== PATH', '== NAME' or a comment: 'one: breaks x'"),
        (" a\n", "a\n", "m.txt:4: expected a line of the diff, a test, or an empty line: 'a'"),
        ("-b\n+c\n", "-b\n+b\n", "m.txt:3: one needs a line to find, and one that it removes or adds"),
        (" a\n-b\n", "", "m.txt:3: one needs a line to find, and one that it removes or adds"),
        ("> tests/test_a.py::test_x\n> histories\n", "", "m.txt:3: one names nothing that detects it"),
        ("> histories", "> history", "m.txt:8: 'history' is neither a test nor one of histories"),
        ("> histories\n", "> histories\n+d\n", "m.txt:9: expected a line of the diff, a test"),
        (MUTANT, MUTANT + "\n" + MUTANT, "m.txt:12: one exists already"),
    ],
)  # fmt: skip
def test_an_error_names_the_line(old: str, new: str, problem: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(problem)):
        parse(MUTANT.replace(old, new), "m.txt")


def test_mutants_are_chosen_by_name_module_or_folder() -> None:
    mutants = parse(MUTANT + "\n=== b/c.py\n\n== two\n-b\n> histories\n")
    assert [mutant.name for mutant in chosen(mutants, [])] == ["one", "two"]
    for name in ("two", "b/c.py", "b/", "b"):
        assert [mutant.name for mutant in chosen(mutants, [name])] == ["two"]
    with pytest.raises(ValueError, match="no mutant, module or folder with mutants is called c"):
        chosen(mutants, ["one", "c"])
