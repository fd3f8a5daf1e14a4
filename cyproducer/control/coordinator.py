"""Common parts of requests to a transaction coordinator, whether or not the transaction is the producer's
own.

Owns which errors mean that the coordinator has moved, when a failed request is retried, and the text of a
refusal. Does not own the requests (``transaction_machine``, ``transaction_ending``). Does no I/O and reads no
clock; only one thread at a time may use a ``Retries``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from cyproducer import errors
from cyproducer.control.retry import ExponentialBackoff
from cyproducer.errors.error_code import ErrorCode

MOVED = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
"""The coordinator must be looked up again."""


class Retries:
    """Counts consecutive failures across requests, and schedules the next one."""

    def __init__(
        self, backoff: ExponentialBackoff, markers: ExponentialBackoff, rng: Callable[[], float]
    ) -> None:
        """
        Args:
            backoff: the delay after a failed request.
            markers: the delay while the brokers complete a transaction, which usually takes milliseconds.
            rng: returns a float in [0, 1), for jitter.
        """
        self._backoff = backoff
        self._markers = markers
        self._rng = rng
        self.failures = 0
        self._last_error: BaseException | None = None
        #: The time of the next attempt.
        self.at_ms = -math.inf

    def failed(self, error: BaseException, now_ms: float, markers: bool = False) -> None:
        """Schedules a new attempt; ``markers``: whether only the transaction markers are still to be
        written."""
        self.failures += 1
        self._last_error = error
        backoff = self._markers if markers else self._backoff
        self.at_ms = now_ms + backoff.delay_ms(self.failures, self._rng)

    def succeeded(self) -> None:
        """Forgets the failures."""
        self.failures = 0
        self._last_error = None
        self.at_ms = -math.inf

    def describe(self, doing: str) -> str:
        """Returns what is in progress and the failures before it, for messages."""
        return f"{doing}, after {self.failures} failed: {self._last_error}" if self.failures else doing


def refusal(
    code: int, what: str, message: str | None = None, transactional_id: str | None = None
) -> errors.KafkaError:
    """Creates the error for an error code.

    Args:
        code: the error code of the response.
        what: the operation that was refused.
        message: the broker's error message.
        transactional_id: the id that the advice mentions.
    """
    kind = errors.for_code(code)
    text = f"{what}: {message}" if message else what
    if kind.description:
        text += f" ({kind.description[0].lower()}{kind.description[1:].rstrip('.')})"
    if issubclass(kind, errors.TransactionalIdAuthorizationFailedError):
        whose = (
            "this TransactionalId" if transactional_id is None else f"TransactionalId {transactional_id!r}"
        )
        text += f": grant this principal Write and Describe on {whose}"
    return kind(text)
