"""Backoff and retry decisions."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyproducer.control.retry import ExponentialBackoff, LastErrors, RetryPolicy


def middle() -> float:
    return 0.5


def never() -> float:
    raise AssertionError("randomness was asked for")


def test_delay_doubles_up_to_the_ceiling() -> None:
    backoff = ExponentialBackoff(100, 1000)
    assert [backoff.delay_ms(attempts, middle) for attempts in range(1, 7)] == pytest.approx(
        [100, 200, 400, 800, 1000, 1000]
    )


@pytest.mark.parametrize("attempts", [0, -1])
def test_without_failures_there_is_no_delay(attempts: int) -> None:
    assert ExponentialBackoff(100, 1000).delay_ms(attempts, never) == 0


def test_jitter_spreads_the_delay_by_a_fifth_to_either_side() -> None:
    backoff = ExponentialBackoff(100, 1000)
    assert backoff.delay_ms(1, lambda: 0.0) == pytest.approx(80)
    assert backoff.delay_ms(1, lambda: 0.75) == pytest.approx(110)
    assert backoff.delay_ms(1, lambda: 1.0) == pytest.approx(120)


def test_jitter_never_exceeds_the_ceiling() -> None:
    assert ExponentialBackoff(100, 1000).delay_ms(50, lambda: 0.99) == 1000
    assert ExponentialBackoff(100, 1000).delay_ms(50, lambda: 0.0) == pytest.approx(800)


def test_an_initial_delay_above_the_ceiling_is_cut_to_it() -> None:
    assert ExponentialBackoff(5000, 1000).delay_ms(1, middle) == 1000


def test_the_multiplier_is_used() -> None:
    assert ExponentialBackoff(10, 1000, multiplier=3, jitter=0).delay_ms(3, middle) == pytest.approx(90)
    assert ExponentialBackoff(10, 1000, multiplier=1, jitter=0).delay_ms(30, middle) == pytest.approx(10)


@given(
    initial_ms=st.floats(0, 1e6),
    max_ms=st.floats(0, 1e9),
    multiplier=st.floats(1, 10),
    jitter=st.floats(0, 0.99),
    attempts=st.integers(1, 2**31),
    fraction=st.floats(0, 1, exclude_max=True),
)
def test_every_delay_is_finite_and_within_bounds(
    initial_ms: float, max_ms: float, multiplier: float, jitter: float, attempts: int, fraction: float
) -> None:
    backoff = ExponentialBackoff(initial_ms, max_ms, multiplier, jitter)
    assert 0 <= backoff.delay_ms(attempts, lambda: fraction) <= max_ms


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: ExponentialBackoff(-1, 1), "initial_ms=-1: must be 0 or more"),
        (lambda: ExponentialBackoff(math.nan, 1), "initial_ms=nan"),
        (lambda: ExponentialBackoff(1, -1), "max_ms=-1: must be 0 or more"),
        (lambda: ExponentialBackoff(1, 1, multiplier=0.5), "multiplier=0.5: must be 1 or more"),
        (lambda: ExponentialBackoff(1, 1, jitter=1), "jitter=1: must be at least 0 and less than 1"),
        (lambda: ExponentialBackoff(1, 1, jitter=-0.1), "jitter=-0.1"),
        (lambda: RetryPolicy(-1, 1, ExponentialBackoff(1, 1)), "retries=-1: must be 0 or more"),
        (lambda: RetryPolicy(1, -1, ExponentialBackoff(1, 1)), "delivery_timeout_ms=-1: must be 0 or more"),
    ],
)
def test_values_outside_their_range_are_refused(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make()


POLICY = RetryPolicy(3, 10_000, ExponentialBackoff(100, 1000))


def test_a_retriable_failure_is_retried_after_the_backoff() -> None:
    assert POLICY.decide(True, 2, 1000, 3000, middle) == 3200


def test_a_final_error_is_not_retried() -> None:
    assert POLICY.decide(False, 1, 0, 0, never) is None


def test_retries_counts_the_attempts_after_the_first() -> None:
    assert POLICY.decide(True, 3, 0, 0, middle) is not None
    assert POLICY.decide(True, 4, 0, 0, never) is None
    assert RetryPolicy(0, 10_000, ExponentialBackoff(1, 1)).decide(True, 1, 0, 0, middle) is None


def test_infinite_retries_end_only_at_the_delivery_timeout() -> None:
    policy = RetryPolicy(math.inf, 10_000, ExponentialBackoff(100, 1000))
    assert policy.decide(True, 2**31, 0, 8999, middle) == 9999
    assert policy.decide(True, 2**31, 0, 9000, middle) is None


def test_there_is_no_retry_after_the_delivery_timeout() -> None:
    assert POLICY.decide(True, 1, 500, 10_399, middle) == pytest.approx(10_499)
    assert POLICY.decide(True, 1, 500, 10_400, middle) is None


def test_there_is_no_backoff_if_the_failure_said_what_to_do() -> None:
    assert POLICY.decide(True, 2, 1000, 3000, never, at_once=True) == 3000
    assert POLICY.decide(True, 1, 500, 10_499, never, at_once=True) == 10_499
    assert POLICY.decide(True, 1, 500, 10_500, never, at_once=True) is None
    assert POLICY.decide(True, 4, 0, 0, never, at_once=True) is None
    assert POLICY.decide(False, 1, 0, 0, never, at_once=True) is None


def test_a_partitions_last_error_counts_from_its_time() -> None:
    errors = LastErrors(1000)
    first, second = OSError("first"), OSError("second")
    errors.note("t", 0, first, 100)
    errors.note("t", 0, second, 200)
    assert errors.since("t", 0, 200) is second
    assert errors.since("t", 0, 201) is None
    assert errors.since("t", 1, 0) is None
    assert errors.since("u", 0, 0) is None


def test_old_errors_are_forgotten() -> None:
    errors = LastErrors(1000)
    for partition in range(5):
        errors.note("t", partition, OSError(), 100 * partition)
    errors.note("t", 0, OSError(), 500)
    errors.note("t", 5, OSError(), 1200)
    assert [errors.since("t", partition, 0) is None for partition in range(6)] == [
        False,
        True,
        False,
        False,
        False,
        False,
    ]
    assert len(errors) == 5
