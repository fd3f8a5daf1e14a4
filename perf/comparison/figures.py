"""Computes the figures: medians with their range, ratios within pairs, goals met or missed. Pure functions.

A *pair* is a run of this producer and a run of a peer, back to back. The state of the machine at that time
affects both, so ratios are computed within pairs. The quoted figure is their median, with minimum and
maximum.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Figures = dict[str, Any]
ALONE = ""
"""Replaces the peer's name if this producer runs without a peer."""


@dataclass(frozen=True)
class Spread:
    """A median, with the minimum and maximum of its values."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, found: Iterable[float]) -> "Spread | None":
        """Returns None if there are no values."""
        ordered = sorted(found)
        return cls(statistics.median(ordered), ordered[0], ordered[-1]) if ordered else None

    def text(self, digits: int = 2, scale: float = 1.0) -> str:
        """Formats it as ``1.23 (1.10-1.40)``, without the range if both ends print the same."""
        middle, least, greatest = (
            f"{value * scale:,.{digits}f}" for value in (self.median, self.least, self.greatest)
        )
        return middle if least == greatest else f"{middle} ({least}-{greatest})"


@dataclass
class Results:
    """The figures of a contest's runs, in the order of the rounds."""

    own: dict[str, list[Figures]] = field(default_factory=dict)
    """This producer's runs, by the peer of the pair or ``ALONE``. Entry n is paired with the peer's entry
    n."""
    peers: dict[str, list[Figures]] = field(default_factory=dict)
    unpaired: dict[str, list[Figures]] = field(default_factory=dict)
    """Runs of peers in rounds in which this producer's run is missing."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Client -> why it was skipped or failed."""

    def add(self, peer: str, own: Figures | None, other: Figures | None) -> None:
        """Adds a pair, or half of it. Half a pair counts for medians but not for ratios."""
        if own is not None and other is not None:
            self.own.setdefault(peer, []).append(own)
            self.peers.setdefault(peer, []).append(other)
        elif own is not None:
            self.own.setdefault(ALONE, []).append(own)
        elif other is not None:
            self.unpaired.setdefault(peer, []).append(other)

    def all_own(self, metric: str) -> list[float]:
        """Returns the values of all runs of this producer."""
        return [found[metric] for runs in self.own.values() for found in runs if metric in found]

    def of_peer(self, peer: str, metric: str) -> list[float]:
        runs = [*self.peers.get(peer, []), *self.unpaired.get(peer, [])]
        return [found[metric] for found in runs if metric in found]

    def pairs(self, peer: str, metric: str) -> list[tuple[float, float]]:
        """Returns this producer's value and the peer's, for each pair."""
        both = zip(self.own.get(peer, []), self.peers.get(peer, []), strict=False)
        return [(own[metric], other[metric]) for own, other in both if metric in own and metric in other]

    def rounds(self, metric: str) -> list[float]:
        """Returns this producer's value in each round: the median if it ran several times."""
        runs = [[found[metric] for found in runs if metric in found] for runs in self.own.values()]
        longest = max((len(one) for one in runs), default=0)
        return [statistics.median(one[n] for one in runs if n < len(one)) for n in range(longest)]


def ratios(pairs: Iterable[tuple[float, float]], *, peer_by_own: bool) -> list[float]:
    """Returns each pair's ratio: peer's value / own value if ``peer_by_own``, else own / peer's."""
    return [other / own if peer_by_own else own / other for own, other in pairs]


@dataclass(frozen=True)
class Goal:
    """A bound to reach. ``measured`` returns the figure that is compared with it."""

    text: str
    metric: str
    at: str
    """The contest of the case."""
    at_most: float | None = None
    at_least: float | None = None
    peer: str | None = None
    """If set, the figure is the ratio to this peer, within pairs."""
    peer_by_own: bool = False
    """Whether the ratio is peer's value / own value instead of own / peer's."""
    beside: str | None = None
    """If set, the figure is the ratio to this producer's value in that other contest, round by round."""
    above: str | None = None
    """If set, the figure is the difference to this producer's value in that other contest, round by round."""
    digits: int = 2

    def bound(self) -> str:
        number = self.at_most if self.at_most is not None else self.at_least
        times = "x" if self.peer is not None or self.beside is not None else ""
        return f"{'<=' if self.at_most is not None else '>='} {number:g}{times}"

    def measured(self, results: dict[str, Results]) -> Spread | None:
        """Returns the figure for the goal. None: it was not measured."""
        found = results.get(self.at, Results())
        if self.peer is not None:
            return Spread.of(ratios(found.pairs(self.peer, self.metric), peer_by_own=self.peer_by_own))
        if self.beside is not None:
            other = results.get(self.beside, Results()).rounds(self.metric)
            both = zip(found.rounds(self.metric), other, strict=False)
            return Spread.of(value / against for value, against in both)
        if self.above is not None:
            other = results.get(self.above, Results()).rounds(self.metric)
            both = zip(found.rounds(self.metric), other, strict=False)
            return Spread.of(value - less for value, less in both)
        return Spread.of(found.all_own(self.metric))

    def verdict(self, results: dict[str, Results]) -> str:
        """Returns ``met``, ``missed by 12%`` of the bound, or why it was not measured."""
        spread = self.measured(results)
        if spread is None:
            return f"not measured{why(results.get(self.at), self.peer)}"
        return met(spread.median, at_most=self.at_most, at_least=self.at_least)


def why(results: Results | None, peer: str | None) -> str:
    """Returns ``: reason`` if a reason is known, else an empty string."""
    reasons = [] if results is None else [results.skipped.get(name) for name in (OWN, peer or OWN)]
    return next((f": {reason}" for reason in reasons if reason), "")


OWN = "cyproducer"
"""The name of this producer in tables."""


def met(value: float, *, at_most: float | None = None, at_least: float | None = None) -> str:
    """Returns ``met``, or by how much of the bound the value misses it."""
    if at_most is not None:
        # A bound of 0 has no share: each unit counts as 100 %.
        over = value / at_most - 1 if at_most else value
    elif at_least is not None:
        over = 1 - value / at_least
    else:
        raise ValueError("a goal needs a bound: at_most or at_least")
    if over <= 0:
        return "met"
    # Not "missed by 0%".
    return f"missed by {over:.0%}" if over >= 0.005 else "missed by less than 1%"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table with aligned columns."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in lines
    )
