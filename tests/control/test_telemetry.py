"""When a client asks for a telemetry subscription, and when it pushes."""

import math

import pytest

from cyproducer.control.telemetry import DEFAULT_INTERVAL_MS, State, TelemetryMachine
from cyproducer.errors.error_code import ErrorCode
from cyproducer.wire.schema import NO_UUID
from cyproducer.wire.telemetry_api import GetTelemetrySubscriptionsResponse

ID = b"i" * 16
INTERVAL_MS = 1000
AT_ONCE = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
LATER = (ErrorCode.TELEMETRY_TOO_LARGE, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
FINAL = (ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_RECORD, ErrorCode.UNSUPPORTED_VERSION)


def answer(*metrics: str, code: int = 0, interval_ms: int = INTERVAL_MS) -> GetTelemetrySubscriptionsResponse:
    return GetTelemetrySubscriptionsResponse(0, code, ID, 7, [4, 1], interval_ms, 100, False, list(metrics))


ALL = answer("*")


def subscribed(draw: float = 0.5, given: GetTelemetrySubscriptionsResponse = ALL) -> TelemetryMachine:
    """A machine whose first push is due at ``INTERVAL_MS`` times 0.5 + ``draw``."""
    machine = TelemetryMachine(lambda: draw)
    machine.begin()
    machine.on_subscription(given, 0)
    return machine


def pushing() -> TelemetryMachine:
    machine = subscribed()
    machine.begin()
    return machine


def test_the_first_request_is_due_at_once_and_no_other_while_it_is_in_flight() -> None:
    machine = TelemetryMachine(lambda: 0.0)
    assert (machine.state, machine.wait_ms(0), machine.instance_id) == (State.ASK, 0, NO_UUID)
    machine.begin()
    assert (machine.state, machine.wait_ms(1e9)) == (State.ASKING, math.inf)


@pytest.mark.parametrize(("draw", "expected"), [(0.0, 500), (0.5, 1000), (0.999, 1499)])
def test_the_first_push_is_spread_over_an_interval(draw: float, expected: float) -> None:
    machine = subscribed(draw)
    assert (machine.state, machine.instance_id) == (State.PUSH, ID)
    assert machine.wait_ms(0) == pytest.approx(expected)
    assert machine.wait_ms(2000) == 0


def test_later_pushes_are_an_interval_apart() -> None:
    machine = pushing()
    assert machine.wait_ms(1e9) == math.inf
    machine.on_push(0, 5000)
    assert (machine.state, machine.wait_ms(5000), machine.wait_ms(5400)) == (State.PUSH, 1000, 600)


def test_without_metrics_the_client_asks_again_after_an_interval() -> None:
    machine = subscribed(0.0, answer())
    assert (machine.state, machine.wait_ms(0), machine.instance_id) == (State.ASK, INTERVAL_MS, ID)


@pytest.mark.parametrize("interval_ms", [0, -1])
def test_an_impossible_interval_is_replaced(interval_ms: int) -> None:
    machine = subscribed(0.0, answer(interval_ms=interval_ms))
    assert machine.wait_ms(0) == DEFAULT_INTERVAL_MS


@pytest.mark.parametrize("code", AT_ONCE)
def test_a_changed_subscription_is_asked_for_at_once_but_once(code: int) -> None:
    machine = pushing()
    machine.on_push(code, 0)
    assert (machine.state, machine.wait_ms(0)) == (State.ASK, 0)
    machine.begin()
    machine.on_subscription(ALL, 0)
    machine.begin()
    machine.on_push(code, 0)
    assert (machine.state, machine.wait_ms(0)) == (State.ASK, INTERVAL_MS)
    machine.begin()
    machine.on_subscription(ALL, 0)
    machine.begin()
    machine.on_push(0, 0)
    machine.begin()
    machine.on_push(code, 0)
    assert machine.wait_ms(0) == 0


@pytest.mark.parametrize("code", LATER)
def test_a_push_that_is_refused_for_now_is_followed_by_a_request_after_an_interval(code: int) -> None:
    machine = pushing()
    machine.on_push(code, 0)
    assert (machine.state, machine.wait_ms(0)) == (State.ASK, INTERVAL_MS)


@pytest.mark.parametrize("code", [*FINAL, 9999])
def test_other_errors_are_final(code: int) -> None:
    machine = pushing()
    machine.on_push(code, 0)
    assert (machine.state, machine.wait_ms(1e9)) == (State.OFF, math.inf)
    refused = subscribed(given=answer(code=code))
    assert (refused.state, refused.instance_id) == (State.OFF, NO_UUID)


def test_a_connection_that_breaks_again_is_left_in_peace_for_long() -> None:
    machine = TelemetryMachine(lambda: 0.0)
    machine.begin()
    machine.on_broken(0)
    assert (machine.state, machine.wait_ms(0)) == (State.ASK, 0)
    machine.begin()
    machine.on_broken(0)
    assert machine.wait_ms(0) == DEFAULT_INTERVAL_MS


def test_the_end_makes_a_last_push_due() -> None:
    machine = subscribed()
    machine.end()
    assert (machine.state, machine.wait_ms(0), machine.terminating) == (State.PUSH, 0, False)
    machine.begin()
    assert machine.terminating
    machine.end()
    machine.on_push(0, 0)
    assert machine.state is State.OFF


def test_the_last_push_follows_one_that_is_in_flight() -> None:
    machine = pushing()
    machine.end()
    assert (machine.state, machine.terminating) == (State.PUSHING, False)
    machine.on_push(0, 0)
    assert (machine.state, machine.wait_ms(0)) == (State.PUSH, 0)
    machine.begin()
    assert machine.terminating
    machine.on_broken(0)
    assert machine.state is State.OFF


@pytest.mark.parametrize("code", [*AT_ONCE, *LATER, *FINAL])
def test_the_end_waits_for_nothing_after_an_error(code: int) -> None:
    machine = pushing()
    machine.end()
    machine.on_push(code, 0)
    assert machine.state is State.OFF
    broken = pushing()
    broken.end()
    broken.on_broken(0)
    assert broken.state is State.OFF


def test_without_a_subscription_there_is_no_last_push() -> None:
    machine = TelemetryMachine(lambda: 0.0)
    machine.begin()
    machine.end()
    assert machine.state is State.OFF
    machine.on_subscription(ALL, 0)
    assert machine.state is State.OFF
    machine.on_broken(0)
    assert machine.state is State.OFF


@pytest.mark.parametrize(
    ("prefixes", "expected"),
    [(("*",), True), (("",), True), (("a.",), True), (("b", "a.b"), True), (("b",), False), ((), False)],
)
def test_metrics_are_chosen_by_prefix(prefixes: tuple[str, ...], expected: bool) -> None:
    assert answer(*prefixes).wants("a.b.c") is expected
