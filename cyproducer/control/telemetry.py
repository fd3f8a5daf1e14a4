"""Decides when a client asks for a telemetry subscription, and when it pushes metrics (KIP-714).

Owns the subscription, the client's instance id, and the time of the next request. Does not own requests
(``clients/telemetry_client``) or what is pushed (``observability/telemetry``). Not thread-safe: everything
runs with the loop lock held.

A client that is refused must not load the broker or disturb its records' connections: at most one request is
repeated at once, the next one waits for the push interval.
"""

import math
from collections.abc import Callable
from enum import Enum

from cyproducer.errors.error_code import ErrorCode
from cyproducer.wire.schema import NO_UUID
from cyproducer.wire.telemetry_api import GetTelemetrySubscriptionsResponse

DEFAULT_INTERVAL_MS = 300_000
"""The push interval if the broker names none, or one that is not positive; Java's."""
ERRORS_AT_ONCE = frozenset((ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE))
"""The broker has another subscription now: it is asked for at once."""
ERRORS_LATER = frozenset((ErrorCode.TELEMETRY_TOO_LARGE, ErrorCode.THROTTLING_QUOTA_EXCEEDED))
"""The broker may take metrics later: it is asked for a subscription after the push interval.

An error that is in neither set is final: the broker would refuse each later request for the same reason.
"""


class State(Enum):
    """What is done next, or is in progress."""

    ASK = "a request for a subscription is due, now or later"
    ASKING = "such a request is in flight"
    PUSH = "a push is due, now or later"
    PUSHING = "metrics are being collected, or their request is in flight"
    OFF = "the broker has refused telemetry, or the last push has ended"


class TelemetryMachine:
    """The state of one client's telemetry. See the module's docstring."""

    def __init__(self, rng: Callable[[], float]) -> None:
        """``rng`` returns a float in [0, 1), for the time of the first push."""
        self._rng = rng
        self.state = State.ASK
        #: Its push interval is positive.
        self.subscription: GetTelemetrySubscriptionsResponse | None = None
        #: Whether the push in progress is the last one.
        self.terminating = False
        self._ending = False
        self._due_ms = -math.inf
        # Whether the last push was taken, or none was refused yet: only then is a request repeated at once.
        self._trusted = True

    @property
    def instance_id(self) -> bytes:
        """The id that a broker has given this client; zeros before that."""
        return NO_UUID if self.subscription is None else self.subscription.client_instance_id

    def wait_ms(self, now_ms: float) -> float:
        """Returns the milliseconds until the next request is due; infinity while one is in progress."""
        if self.state not in (State.ASK, State.PUSH):
            return math.inf
        return max(0.0, self._due_ms - now_ms)

    def begin(self) -> None:
        """The request that is due is being made."""
        self.state = State.ASKING if self.state is State.ASK else State.PUSHING
        self.terminating = self._ending

    def on_subscription(self, response: GetTelemetrySubscriptionsResponse, now_ms: float) -> None:
        """Handles the response to GetTelemetrySubscriptions."""
        if self.state is State.OFF:
            # The end began meanwhile.
            return
        if response.error_code:
            self._refused(response.error_code, now_ms)
            return
        given_ms = response.push_interval_ms
        interval_ms = given_ms if given_ms > 0 else DEFAULT_INTERVAL_MS
        self.subscription = response._replace(push_interval_ms=interval_ms)
        if response.requested_metrics:
            self.state = State.PUSH
            # Otherwise all clients that were started at the same time would always push at the same time.
            self._due_ms = now_ms + interval_ms * (0.5 + self._rng())
        else:
            self._ask_in(interval_ms, now_ms)

    def on_push(self, error_code: int, now_ms: float) -> None:
        """Handles the response to PushTelemetry."""
        if self.terminating or (self._ending and error_code):
            self.state = State.OFF
        elif error_code:
            self._refused(error_code, now_ms)
        else:
            self._trusted = True
            self.state = State.PUSH
            self._due_ms = -math.inf if self._ending else now_ms + self._interval_ms

    def on_broken(self, now_ms: float) -> None:
        """The connection was closed before the response, or the metrics could not be collected."""
        if self._ending:
            self.state = State.OFF
        elif self.state is not State.OFF:
            self._retry(now_ms)

    def end(self) -> None:
        """Begins the end: if metrics are wanted, a last push is due, after one that is in progress.

        The state is ``OFF`` once it has ended, or if there is none.
        """
        self._ending = True
        if self.state is State.PUSH:
            self._due_ms = -math.inf
        elif self.state is not State.PUSHING:
            self.state = State.OFF

    @property
    def _interval_ms(self) -> int:
        return DEFAULT_INTERVAL_MS if self.subscription is None else self.subscription.push_interval_ms

    def _refused(self, error_code: int, now_ms: float) -> None:
        if error_code in ERRORS_AT_ONCE:
            self._retry(now_ms)
        elif error_code in ERRORS_LATER:
            self._ask_in(self._interval_ms, now_ms)
        else:
            self.state = State.OFF

    def _retry(self, now_ms: float) -> None:
        self._ask_in(0 if self._trusted else self._interval_ms, now_ms)
        self._trusted = False

    def _ask_in(self, delay_ms: float, now_ms: float) -> None:
        self.state = State.ASK
        self._due_ms = now_ms + delay_ms
