"""What a `Proxy` does to each connection, chosen by a seed.

Owns the kinds of faults and the choice among them; carries out none. The n-th connection to a node has
the same plan in every run with the same seed.
"""

from __future__ import annotations

import enum
import random
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple


class Fault(enum.Enum):
    """One kind of harm; ``at`` and ``hold_s`` are those of the connection's `Plan`."""

    NONE = "none"
    CUT_REQUESTS = "cut requests"
    """Cut once ``at`` bytes went to the broker, mostly within a request."""
    CUT_ANSWERS = "cut answers"
    """Cut once ``at`` bytes went to the client."""
    LOSE_ANSWER = "lose answer"
    """The broker has answered the ``at``-th Produce; the client gets a cut instead."""
    LATE_REQUEST = "late request"
    """The ``at``-th Produce has left the client, whose connection is cut; it reaches the broker ``hold_s``
    seconds later, when the client may have sent its records again."""
    STALL_REQUESTS = "stall requests"
    """The ``at``-th Produce, and what comes after it, reaches the broker ``hold_s`` seconds late, whether the
    client still waits or not."""
    STALL_ANSWERS = "stall answers"
    """The answer to the ``at``-th Produce, and what comes after it, is ``hold_s`` seconds late."""
    SLOW = "slow"
    """Each request and each answer is ``hold_s`` seconds late."""


class Plan(NamedTuple):
    """What happens to one connection."""

    fault: Fault
    at: int = 0
    """Bytes, or the number of a Produce request, counted from 1."""
    hold_s: float = 0
    abrupt: bool = False
    """Whether the cut is a reset, which may overtake what was sent before it."""
    last: int = 0
    """The Produce whose answer is lost if the connection survived its fault; 0: it may live on."""


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
"""Every kind of fault, and how often it comes."""

HOLDS_S = {
    Fault.LATE_REQUEST: (0.0, 0.8),
    Fault.STALL_REQUESTS: (0.1, 2.5),
    Fault.STALL_ANSWERS: (0.1, 2.5),
    Fault.SLOW: (0.005, 0.1),
}


class Mischief:
    """Plans for connections, in the order in which they are made. Not thread-safe.

    ``kinds``: which faults, and their weights; default all.
    """

    def __init__(self, seed: str, kinds: Mapping[Fault, float] = ALL) -> None:
        self._seed = seed
        self._kinds = kinds
        self._made: Counter[int] = Counter()

    def next_plan(self, node: int) -> tuple[int, Plan]:
        """The number of a new connection to a node, from 1 on, and its plan."""
        self._made[node] += 1
        number = self._made[node]
        rng = random.Random(f"{self._seed}/{node}/{number}")
        fault = rng.choices(list(self._kinds), list(self._kinds.values()))[0]
        by_bytes = fault in (Fault.CUT_REQUESTS, Fault.CUT_ANSWERS)
        # As likely within the first hundred bytes, the handshake, as within the first hundred thousand.
        most = 5.3 if fault is Fault.CUT_REQUESTS else 4.0
        at = int(10 ** rng.uniform(0, most)) if by_bytes else rng.randint(1, 12)
        hold_s = rng.uniform(*HOLDS_S.get(fault, (0.0, 0.0)))
        last = rng.randint(1, 12) + (0 if by_bytes else at)
        return number, Plan(fault, at, hold_s, rng.random() < 0.3, last if not by_bytes else 3 * last)
