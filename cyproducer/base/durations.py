"""Checks durations passed as arguments, and limits them to what Python's locks can wait for.

A duration is checked before the call does anything. Does not check options (``config.option_kinds``) and does
not convert to nanoseconds (``base/sync.h``). Pure functions; any thread may call them.
"""

from __future__ import annotations

import math
import threading
from typing import Any

#: The longest timeout passed to ``Lock.acquire``, ``Condition.wait`` and ``Thread.join``: 146 years, which is
#: half of the 292 that they accept, because Python may add the timeout to the current time.
_LONGEST_WAIT_S = threading.TIMEOUT_MAX / 2


def duration(name: str, value: Any, unit: str = "seconds") -> float:
    """Returns the argument ``name`` as a number >= 0; infinity for None, which means no limit.

    Raises:
        TypeError: the value is not a number.
        ValueError: the value is negative or NaN.
    """
    if value is None:
        return math.inf
    allowed = f"a number of {unit} >= 0 (inf: no limit), or None"
    try:
        if isinstance(value, str | bytes | bytearray):
            raise TypeError("float() would parse it, but text is not a duration")
        found = float(value)
    except OverflowError:
        found = math.inf if value > 0 else -math.inf
    except (TypeError, ValueError):
        raise TypeError(f"{name}={value!r}: must be {allowed}, not {type(value).__name__}") from None
    if not found >= 0:
        raise ValueError(f"{name}={value!r}: must be {allowed}")
    return found


def waitable(seconds: float) -> float:
    """Limits a duration to what Python's locks and threads accept. Above it they raise ``OverflowError``."""
    return min(seconds, _LONGEST_WAIT_S)
