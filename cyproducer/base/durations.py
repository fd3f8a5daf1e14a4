"""Durations that callers give as arguments: what is allowed, and how long a lock can be waited for.

Owns: checking them, before anything is done. Does not own: options (``config.values``), nor turning them into
nanoseconds (``base/sync.h``). Pure functions; any thread may call them.
"""

import math
import threading
from typing import Any

#: The most that ``Lock.acquire``, ``Condition.wait`` and ``Thread.join`` get: 146 years, where they take 292.
#: Half of it, because Python may add it to the clock.
_LONGEST_WAIT_S = threading.TIMEOUT_MAX / 2


def duration(name: str, value: Any, unit: str = "seconds") -> float:
    """The argument ``name`` as a number >= 0; infinity for None, which means as long as it takes.

    Raises:
        TypeError: it is no number.
        ValueError: it is negative or NaN.
    """
    if value is None:
        return math.inf
    allowed = f"a number of {unit} >= 0 (inf: as long as it takes), or None"
    try:
        if isinstance(value, str | bytes | bytearray):
            raise TypeError("float() would read it, but text is no duration")
        found = float(value)
    except OverflowError:
        found = math.inf if value > 0 else -math.inf
    except (TypeError, ValueError):
        raise TypeError(f"{name}={value!r}: must be {allowed}, not {type(value).__name__}") from None
    if not found >= 0:
        raise ValueError(f"{name}={value!r}: must be {allowed}")
    return found


def waitable(seconds: float) -> float:
    """A duration as Python's locks and threads take it: for a longer one they raise ``OverflowError``."""
    return min(seconds, _LONGEST_WAIT_S)
