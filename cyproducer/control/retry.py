"""Decides when to retry and when to fail.

Owns the backoff formula and the retry decision about one batch or request. Does not own the clock, the
source of randomness or the queue of waiting batches. Immutable and thread-safe, except ``LastErrors``, which
keeps the errors of failed attempts for the final error of their batches.
"""

import math
from collections.abc import Callable

MARKERS_LAST_MS = 20.0
"""The longest wait for a transaction that is being completed: that takes milliseconds (KIP-890)."""


class ExponentialBackoff:
    """Exponential backoff with jitter and a ceiling (KIP-580).

    The wait after the n-th failure in a row is ``initial_ms * multiplier ** (n - 1)``, no more than
    ``max_ms``, times a random factor in ``[1 - jitter, 1 + jitter]``, and again no more than ``max_ms``.
    """

    __slots__ = ("_last_exponent", "initial_ms", "jitter", "max_ms", "multiplier")

    def __init__(self, initial_ms: float, max_ms: float, multiplier: float = 2, jitter: float = 0.2) -> None:
        """
        Args:
            initial_ms: wait after the first failure, milliseconds; at most ``max_ms``, larger values are cut.
            max_ms: longest wait, milliseconds.
            multiplier: growth from one wait to the next, at least 1.
            jitter: half the width of the random factor, 0 to less than 1.

        Raises:
            ValueError: an argument is outside its range.
        """
        if not initial_ms >= 0:
            raise ValueError(f"initial_ms={initial_ms}: must be 0 or more")
        if not max_ms >= 0:
            raise ValueError(f"max_ms={max_ms}: must be 0 or more")
        if not multiplier >= 1:
            raise ValueError(f"multiplier={multiplier}: must be 1 or more")
        if not 0 <= jitter < 1:
            raise ValueError(f"jitter={jitter}: must be at least 0 and less than 1")
        self.initial_ms = float(min(initial_ms, max_ms))
        self.max_ms = float(max_ms)
        self.multiplier = float(multiplier)
        self.jitter = float(jitter)
        # Past this exponent the ceiling holds anyway, and the power might overflow a float.
        if self.initial_ms > 0 and self.multiplier > 1:
            growth = min(self.max_ms / self.initial_ms, 1e300)
            self._last_exponent = math.log(growth) / math.log(self.multiplier)
        else:
            self._last_exponent = 0.0

    def delay_ms(self, attempts: int, random: Callable[[], float]) -> float:
        """Returns the wait before the next attempt, milliseconds.

        Args:
            attempts: number of attempts that have failed in a row; 0 or less gives no wait.
            random: returns a float in [0, 1), as ``random.random`` does.
        """
        if attempts <= 0:
            return 0.0
        delay = self.initial_ms * math.pow(self.multiplier, min(attempts - 1, self._last_exponent))
        return min(self.max_ms, delay * (1 - self.jitter + 2 * self.jitter * random()))


class RetryPolicy:
    """Decides whether to retry a failed batch or request (KIP-91 for the delivery timeout)."""

    __slots__ = ("backoff", "delivery_timeout_ms", "retries")

    def __init__(self, retries: float, delivery_timeout_ms: float, backoff: ExponentialBackoff) -> None:
        """
        Args:
            retries: attempts allowed after the first; ``math.inf`` for no limit.
            delivery_timeout_ms: longest time from creation to the last attempt's start, milliseconds.
            backoff: the wait between attempts.

        Raises:
            ValueError: ``retries`` or ``delivery_timeout_ms`` is negative.
        """
        if not retries >= 0:
            raise ValueError(f"retries={retries}: must be 0 or more")
        if not delivery_timeout_ms >= 0:
            raise ValueError(f"delivery_timeout_ms={delivery_timeout_ms}: must be 0 or more")
        self.retries = retries
        self.delivery_timeout_ms = delivery_timeout_ms
        self.backoff = backoff

    def deadline_ms(self, created_ms: float) -> float:
        """Returns the time after which a record of that time is not sent again."""
        return created_ms + self.delivery_timeout_ms

    def decide(
        self,
        retriable: bool,
        attempts: int,
        created_ms: float,
        now_ms: float,
        random: Callable[[], float],
        *,
        at_once: bool = False,
    ) -> float | None:
        """Returns the time of the attempt after a failed one, on the caller's clock, in ms; None to give up.

        Args:
            retriable: whether the error code or the exception's class allows another attempt.
            attempts: number of attempts that have failed, including this one.
            created_ms: when the record or request was created, on the caller's clock.
            now_ms: the current time on the same clock.
            random: returns a float in [0, 1).
            at_once: the failure said what to do instead, so there is no need to back off.
        """
        if not retriable or attempts > self.retries:
            return None
        at_ms = now_ms if at_once else now_ms + self.backoff.delay_ms(attempts, random)
        return at_ms if at_ms < self.deadline_ms(created_ms) else None


class LastErrors:
    """The last error of each partition's batches, for the error of a batch that expires.

    Keeps an error for at least ``keep_ms`` milliseconds: the longest time that a batch of that moment can
    wait. Not thread-safe.
    """

    __slots__ = ("_errors", "_keep_ms")

    def __init__(self, keep_ms: float) -> None:
        self._keep_ms = keep_ms
        # Oldest first.
        self._errors: dict[tuple[str, int], tuple[float, Exception]] = {}

    def note(self, topic: str, partition: int, error: Exception, now_ms: float) -> None:
        """Notes that a batch of the partition failed with ``error``; drops errors older than ``keep_ms``."""
        errors = self._errors
        errors.pop((topic, partition), None)
        errors[topic, partition] = now_ms, error
        while errors[oldest := next(iter(errors))][0] < now_ms - self._keep_ms:
            del errors[oldest]

    def since(self, topic: str, partition: int, from_ms: float) -> Exception | None:
        """Returns the partition's last error, or None if it is from before ``from_ms``."""
        at_ms, error = self._errors.get((topic, partition), (-math.inf, None))
        return error if at_ms >= from_ms else None

    def __len__(self) -> int:
        return len(self._errors)
