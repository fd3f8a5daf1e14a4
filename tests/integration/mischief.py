"""Chooses, by a seed, the fault that a `Proxy` injects into each connection.

Owns the kinds of faults and the choice. Does not inject them. With the same seed, the n-th connection to a
node has the same plan in every run.
"""

from __future__ import annotations

import enum
import random
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple


class Fault(enum.Enum):
    """A kind of fault. ``at`` and ``hold_s`` are those of the connection's `Plan`."""

    NONE = "none"
    CUT_REQUESTS = "cut requests"
    """Cuts the connection after ``at`` bytes to the broker, mostly within a request."""
    CUT_ANSWERS = "cut answers"
    """Cuts the connection after ``at`` bytes to the client."""
    LOSE_ANSWER = "lose answer"
    """Cuts the connection instead of passing the broker's response to the ``at``-th Produce."""
    LATE_REQUEST = "late request"
    """Cuts the client's connection after the ``at``-th Produce, and passes the request to the broker
    ``hold_s`` seconds later, when the client may already have sent its records again."""
    STALL_REQUESTS = "stall requests"
    """Delays the ``at``-th Produce, and all later requests, by ``hold_s`` seconds, whether the client still
    waits or not."""
    STALL_ANSWERS = "stall answers"
    """Delays the response to the ``at``-th Produce, and all later responses, by ``hold_s`` seconds."""
    SLOW = "slow"
    """Delays each request and each response by ``hold_s`` seconds."""


class Plan(NamedTuple):
    """The plan for one connection."""

    fault: Fault
    at: int = 0
    """Bytes, or the number of a Produce request, counted from 1."""
    hold_s: float = 0
    abrupt: bool = False
    """Whether the cut is a reset, which may overtake data sent before it."""
    last: int = 0
    """The Produce whose response is lost if the connection survives its fault; 0: none."""


GENTLE = Plan(Fault.NONE)

ALL: Mapping[Fault, float] = {
    Fault.CUT_REQUESTS: 3,
    Fault.CUT_ANSWERS: 2,
    Fault.LOSE_ANSWER: 4,
    Fault.LATE_REQUEST: 4,
    Fault.STALL_REQUESTS: 2,
    Fault.STALL_ANSWERS: 2,
    Fault.SLOW: 1,
}
"""All kinds of faults, with their weights."""

HOLDS_S = {
    Fault.LATE_REQUEST: (0.0, 0.8),
    Fault.STALL_REQUESTS: (0.1, 2.5),
    Fault.STALL_ANSWERS: (0.1, 2.5),
    Fault.SLOW: (0.005, 0.1),
}


class Mischief:
    """Makes plans for connections, in the order of the connections. Not thread-safe.

    ``kinds``: the faults and their weights; default: all.
    """

    def __init__(self, seed: str, kinds: Mapping[Fault, float] = ALL) -> None:
        self._seed = seed
        self._kinds = kinds
        self._made: Counter[int] = Counter()

    def next_plan(self, node: int) -> tuple[int, Plan]:
        """Returns the number of a new connection to a node, starting at 1, and its plan."""
        self._made[node] += 1
        number = self._made[node]
        rng = random.Random(f"{self._seed}/{node}/{number}")
        fault = rng.choices(list(self._kinds), list(self._kinds.values()))[0]
        by_bytes = fault in (Fault.CUT_REQUESTS, Fault.CUT_ANSWERS)
        # Log-uniform: cuts within the first hundred bytes, the handshake, are as likely as later ones.
        most = 5.3 if fault is Fault.CUT_REQUESTS else 4.0
        at = int(10 ** rng.uniform(0, most)) if by_bytes else rng.randint(1, 12)
        hold_s = rng.uniform(*HOLDS_S.get(fault, (0.0, 0.0)))
        last = rng.randint(1, 12) + (0 if by_bytes else at)
        return number, Plan(fault, at, hold_s, rng.random() < 0.3, last if not by_bytes else 3 * last)
