"""The arithmetic: medians with their range, ratios within pairs, goals met or missed. Pure.

A *pair* is a run of this producer and one of a peer back to back: what the machine does at that time hits
both, so ratios are formed within pairs, and what is quoted is their median with the least and the greatest.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Figures = dict[str, Any]
ALONE = ""
"""In place of a peer's name where this producer runs without one."""


@dataclass(frozen=True)
class Spread:
    """A median, and the least and the greatest of what it is the median of."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, found: Iterable[float]) -> "Spread | None":
        """None where there is nothing."""
        ordered = sorted(found)
        return cls(statistics.median(ordered), ordered[0], ordered[-1]) if ordered else None

    def text(self, digits: int = 2, scale: float = 1.0) -> str:
        """``1.23 (1.10-1.40)``; without the range where it is one value."""
        middle, least, greatest = (
            f"{value * scale:,.{digits}f}" for value in (self.median, self.least, self.greatest)
        )
        return middle if least == greatest else f"{middle} ({least}-{greatest})"


@dataclass
class Results:
    """What a contest's runs found, in the order of the rounds."""

    own: dict[str, list[Figures]] = field(default_factory=dict)
    """By the peer beside it, or ``ALONE``: entry n is of the same pair as the peer's entry n."""
    peers: dict[str, list[Figures]] = field(default_factory=dict)
    unpaired: dict[str, list[Figures]] = field(default_factory=dict)
    """Of peers in rounds where this producer's side is missing."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Client -> why it did not run, or failed."""

    def add(self, peer: str, own: Figures | None, other: Figures | None) -> None:
        """One pair, or what there is of it: half a pair counts for medians and not for ratios."""
        if own is not None and other is not None:
            self.own.setdefault(peer, []).append(own)
            self.peers.setdefault(peer, []).append(other)
        elif own is not None:
            self.own.setdefault(ALONE, []).append(own)
        elif other is not None:
            self.unpaired.setdefault(peer, []).append(other)

    def all_own(self, metric: str) -> list[float]:
        """Of every run of this producer."""
        return [found[metric] for runs in self.own.values() for found in runs if metric in found]

    def of_peer(self, peer: str, metric: str) -> list[float]:
        runs = [*self.peers.get(peer, []), *self.unpaired.get(peer, [])]
        return [found[metric] for found in runs if metric in found]

    def pairs(self, peer: str, metric: str) -> list[tuple[float, float]]:
        """This producer's value and the peer's."""
        both = zip(self.own.get(peer, []), self.peers.get(peer, []), strict=False)
        return [(own[metric], other[metric]) for own, other in both if metric in own and metric in other]

    def rounds(self, metric: str) -> list[float]:
        """This producer's value in each round: the median where it ran several times."""
        runs = [[found[metric] for found in runs if metric in found] for runs in self.own.values()]
        longest = max((len(one) for one in runs), default=0)
        return [statistics.median(one[n] for one in runs if n < len(one)) for n in range(longest)]


def ratios(pairs: Iterable[tuple[float, float]], *, peer_by_own: bool) -> list[float]:
    """Of each pair: how many times this producer's the peer's is, or the other way round."""
    return [other / own if peer_by_own else own / other for own, other in pairs]


@dataclass(frozen=True)
class Goal:
    """What is to be reached. See ``measured`` for what is compared with the bound."""

    text: str
    metric: str
    at: str
    """Which contest of the case."""
    at_most: float | None = None
    at_least: float | None = None
    peer: str | None = None
    """Where given: the ratio to this peer of the same pair."""
    peer_by_own: bool = False
    """The peer's by this producer's, where it is else this producer's by the peer's."""
    beside: str | None = None
    """Where given: the ratio to this producer's own in this other contest, round by round."""
    digits: int = 2

    def bound(self) -> str:
        number = self.at_most if self.at_most is not None else self.at_least
        times = "x" if self.peer is not None or self.beside is not None else ""
        return f"{'<=' if self.at_most is not None else '>='} {number:g}{times}"

    def measured(self, results: dict[str, Results]) -> Spread | None:
        """None where it was not measured."""
        found = results.get(self.at, Results())
        if self.peer is not None:
            return Spread.of(ratios(found.pairs(self.peer, self.metric), peer_by_own=self.peer_by_own))
        if self.beside is not None:
            other = results.get(self.beside, Results()).rounds(self.metric)
            both = zip(found.rounds(self.metric), other, strict=False)
            return Spread.of(value / against for value, against in both)
        return Spread.of(found.all_own(self.metric))

    def verdict(self, results: dict[str, Results]) -> str:
        """``met``, ``missed by 12 %`` of the bound, or why nobody knows."""
        spread = self.measured(results)
        if spread is None:
            return f"not measured{why(results.get(self.at), self.peer)}"
        return met(spread.median, at_most=self.at_most, at_least=self.at_least)


def why(results: Results | None, peer: str | None) -> str:
    """``: reason`` where one is known."""
    reasons = [] if results is None else [results.skipped.get(name) for name in (OWN, peer or OWN)]
    return next((f": {reason}" for reason in reasons if reason), "")


OWN = "cyproducer"
"""How this producer is called in tables."""


def met(value: float, *, at_most: float | None = None, at_least: float | None = None) -> str:
    """``met``, or by how much of the bound the value misses it."""
    if at_most is not None:
        over = value / at_most - 1
    elif at_least is not None:
        over = 1 - value / at_least
    else:
        raise ValueError("a goal has a bound")
    if over <= 0:
        return "met"
    # What is missed by less than half a per cent is missed all the same.
    return f"missed by {over:.0%}" if over >= 0.005 else "missed by less than 1%"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, with columns as wide as they have to be."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in lines
    )
