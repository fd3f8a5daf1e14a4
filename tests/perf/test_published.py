"""The plots of the documentation show the figures of the tables beside them."""

from __future__ import annotations

import re

import pytest

from perf.published import PLOTS, PUBLISHED, ROOT, shown, spread


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_plot_shows_its_table(name: str) -> None:
    assert shown(name) == PUBLISHED[name].rows(), "run: make plots"


def test_every_stored_plot_is_one_of_them_and_is_on_the_page_about_performance() -> None:
    assert {path.name for path in PLOTS.iterdir()} == {f"{name}.svg" for name in PUBLISHED}
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\(plots/(\w+)\.svg\)", page)) == set(PUBLISHED)


def test_the_figures_of_a_cell() -> None:
    assert spread("1.74 (0.73-2.53)") == (1.74, 0.73, 2.53)
    assert spread("9,701") == (9701, 9701, 9701)
    with pytest.raises(ValueError, match="must be a median"):
        spread("missed")
