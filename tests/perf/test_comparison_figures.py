"""Tests the comparison's arithmetic: pairs, ratios, medians, goals met or missed."""

from __future__ import annotations

import pytest

from perf.comparison.figures import ALONE, OWN, Goal, Results, Spread, met, ratios, table


def pairs(own: list[float], peer: list[float], name: str = "peer") -> Results:
    results = Results()
    for mine, theirs in zip(own, peer, strict=True):
        results.add(name, {"cpu": mine}, {"cpu": theirs})
    return results


def alone(*values: float) -> Results:
    results = Results()
    for value in values:
        results.add(ALONE, {"cpu": value}, None)
    return results


def test_a_spread_is_the_median_with_its_range() -> None:
    assert Spread.of([3, 1, 10]) == Spread(3, 1, 10)
    assert Spread.of([]) is None


@pytest.mark.parametrize(
    ("values", "digits", "scale", "text"),
    [
        ([1.234, 1.1, 1.4], 2, 1, "1.23 (1.10-1.40)"),
        ([5.0], 2, 1, "5.00"),
        ([1_720_000, 1_400_000, 2_160_000], 2, 1e-6, "1.72 (1.40-2.16)"),
        ([12345.0], 0, 1, "12,345"),
        # No range if both ends print the same.
        ([1.001, 1.002], 2, 1, "1.00"),
    ],
)
def test_a_spread_is_formatted_with_its_range(
    values: list[float], digits: int, scale: float, text: str
) -> None:
    spread = Spread.of(values)
    assert spread is not None
    assert spread.text(digits, scale) == text


def test_ratios_are_computed_within_pairs_and_not_of_medians() -> None:
    # As if the machine was slow for one pair: each pair's ratio is 4, but not that of medians or sorted
    # values.
    results = pairs([1, 2, 3], [4, 8, 12])
    assert ratios(results.pairs("peer", "cpu"), peer_by_own=True) == [4, 4, 4]
    assert ratios(results.pairs("peer", "cpu"), peer_by_own=False) == [0.25, 0.25, 0.25]
    assert ratios(pairs([1, 3], [6, 3]).pairs("peer", "cpu"), peer_by_own=True) == [6, 1]


def test_half_a_pair_counts_for_medians_and_shifts_no_other_pair() -> None:
    results = Results()
    results.add("peer", {"cpu": 1}, None)
    results.add("peer", None, {"cpu": 100})
    results.add("peer", {"cpu": 2}, {"cpu": 8})

    assert results.pairs("peer", "cpu") == [(2, 8)]
    assert sorted(results.all_own("cpu")) == [1, 2]
    assert sorted(results.of_peer("peer", "cpu")) == [8, 100]


def test_a_round_with_several_runs_of_this_producer_is_their_median() -> None:
    results = pairs([1, 10], [1, 1], "a")
    for value in (3, 30):
        results.add("b", {"cpu": value}, {"cpu": 1})
    for value in (8, 80):
        results.add("c", {"cpu": value}, {"cpu": 1})

    assert results.rounds("cpu") == [3, 30]


@pytest.mark.parametrize(
    ("value", "bound", "told"),
    [
        (0.25, {"at_most": 0.25}, "met"),
        (0.2, {"at_most": 0.25}, "met"),
        (0.3, {"at_most": 0.25}, "missed by 20%"),
        (0.2501, {"at_most": 0.25}, "missed by less than 1%"),
        (4.0, {"at_least": 4}, "met"),
        (5.0, {"at_least": 4}, "met"),
        (3.0, {"at_least": 4}, "missed by 25%"),
        (-7.0, {"at_most": 25}, "met"),
    ],
)
def test_a_goal_is_met_or_missed_by_a_share_of_its_bound(
    value: float, bound: dict[str, float], told: str
) -> None:
    assert met(value, **bound) == told


def test_a_goal_without_a_bound_is_an_error() -> None:
    with pytest.raises(ValueError, match="bound"):
        met(1)


def test_a_goal_for_this_producer_alone_uses_all_its_runs() -> None:
    goal = Goal("CPU", "cpu", "here", at_most=0.25)
    results = {"here": pairs([0.1, 0.3], [1, 1])}
    results["here"].add(ALONE, {"cpu": 0.2}, None)

    assert goal.measured(results) == Spread(0.2, 0.1, 0.3)
    assert (goal.bound(), goal.verdict(results)) == ("<= 0.25", "met")


def test_a_goal_against_a_peer_uses_the_ratios_of_pairs() -> None:
    results = {"here": pairs([1, 2, 4], [3, 10, 8])}
    cheaper = Goal("CPU", "cpu", "here", at_least=4, peer="peer", peer_by_own=True)
    faster = Goal("rate", "cpu", "here", at_least=0.5, peer="peer")

    assert cheaper.measured(results) == Spread(3, 2, 5)
    assert (cheaper.bound(), cheaper.verdict(results)) == (">= 4x", "missed by 25%")
    assert faster.measured(results) == Spread(1 / 3, 0.2, 0.5)


def test_a_goal_against_another_contest_uses_the_ratio_of_each_round() -> None:
    goal = Goal("threads", "cpu", "many", at_least=8, beside="one")
    results = {"many": alone(80, 20), "one": alone(10, 2)}

    assert goal.measured(results) == Spread(9, 8, 10)
    assert goal.verdict(results) == "met"


def test_a_goal_that_was_not_measured_is_not_met_and_has_a_reason() -> None:
    goal = Goal("CPU", "cpu", "here", at_least=4, peer="peer", peer_by_own=True)
    no_peer = alone(1)
    no_peer.skipped["peer"] = "it isn't installed"

    assert goal.verdict({}) == "not measured"
    assert goal.verdict({"here": no_peer}) == "not measured: it isn't installed"
    assert goal.verdict({"here": Results(skipped={OWN: "no such call"})}) == "not measured: no such call"


def test_a_table_has_aligned_columns() -> None:
    assert table(("a", "long"), [["wide", "x"]]).splitlines() == [
        "| a    | long |",
        "| ---- | ---- |",
        "| wide | x    |",
    ]
