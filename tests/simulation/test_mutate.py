"""Checks that the mutations still apply to the product: fails if a line that they change is edited."""

import pytest

from tests.simulation.mutate import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_applies_to_exactly_one_place(mutation: Mutation) -> None:
    text = (ROOT / mutation.path).read_text()
    assert text.count(mutation.old) == 1
    assert mutation.new != mutation.old


def test_each_mutation_has_a_unique_name() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 10
