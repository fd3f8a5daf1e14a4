"""What all requests to a transaction coordinator have in common.

Owns which errors mean that another broker coordinates, when a failed request is repeated, and the text of a
refusal. Does not own what is requested (``transactions``, ``transaction_ending``). Pure, without a clock; one
thread at a time uses a ``Retries``.
"""

import math
from collections.abc import Callable

from cyproducer import errors
from cyproducer.control.retry import ExponentialBackoff
from cyproducer.errors.error_code import ErrorCode

MOVED = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
"""The coordinator must be looked up again."""


class Retries:
    """The failures in a row of one request after another, and when to send the next one."""

    def __init__(
        self, backoff: ExponentialBackoff, markers: ExponentialBackoff, rng: Callable[[], float]
    ) -> None:
        """
        Args:
            backoff: the delay after a failed request.
            markers: the delay while the brokers complete a transaction, which takes milliseconds.
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
        """Begins a new attempt after a delay; ``markers``: only the brokers' markers are missing."""
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
        """Returns what is being done, and the failures before it, for messages."""
        return f"{doing}, after {self.failures} failed: {self._last_error}" if self.failures else doing


def refusal(
    code: int, what: str, message: str | None = None, transactional_id: str | None = None
) -> errors.KafkaError:
    """Makes the error for an error code.

    Args:
        code: from the response.
        what: was refused.
        message: the broker's own text.
        transactional_id: to name in the advice.
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
