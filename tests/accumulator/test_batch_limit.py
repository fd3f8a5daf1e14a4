"""The batch limit of a topic after a batch was too large: it falls, it is probed, and it rises again."""

import itertools
import random

import pytest

from cyproducer.accumulator.splitting import topic_estimates
from tests.accumulator.small_topic import assert_nothing_left, sent_size, serve
from tools.harness.rig import Rig

BATCH_SIZE = 32_000
STEP = BATCH_SIZE // 16
LARGE = 1 << 30
"""The limit of a broker that refuses nothing."""
CODECS = [None, "lz4"]
TEXT = random.Random(4)
VALUES = [TEXT.randbytes(300).hex().encode() for _ in range(200)]


def rigged(codec: str | None) -> Rig:
    return Rig(
        {"t": [1]},
        compressor=codec,
        ordered=True,
        batch_size=BATCH_SIZE,
        linger_ms=1,
    )


def limit_of(rig: Rig) -> float:
    return topic_estimates(rig.accumulator, "t")["batch_limit"]


def send_batches(rig: Rig, limit: int, rounds: int = 1) -> list[int]:
    """Sends some full batches to a broker that accepts ``limit`` bytes; returns the accepted sizes."""
    taken: list[int] = []
    for _ in range(rounds):
        for number in range(200):
            rig.send("t", VALUES[number % len(VALUES)], partition=0)
        rig.advance_ms(1)
        taken += [size for batch in serve(rig, limit) if (size := sent_size(batch)) <= limit]
    return taken


def refusals(rig: Rig) -> int:
    return rig.accumulator.counters()["batches_split"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.slow
def test_a_temporary_limit_is_lifted_within_a_minute(codec: str | None) -> None:
    with rigged(codec) as rig:
        send_batches(rig, 2000, 3)
        assert limit_of(rig) <= 2000
        for _ in range(60):
            rig.advance_ms(1000)
            send_batches(rig, LARGE)
        assert limit_of(rig) > (0.9 if codec else 0.999) * BATCH_SIZE
        sizes = send_batches(rig, LARGE, 100 if codec else 3)
        assert max(sizes) > 0.85 * BATCH_SIZE
        assert_nothing_left(rig)


def test_the_limit_rises_one_step_per_acknowledged_probe() -> None:

    with rigged(None) as rig:
        send_batches(rig, 2000, 3)
        before = limit_of(rig)
        rig.advance_ms(4000)
        send_batches(rig, LARGE)
        assert limit_of(rig) == before
        rig.advance_ms(1000)
        limits = [before]
        while limits[-1] < BATCH_SIZE:
            rig.send("t", VALUES[len(limits) % 100], partition=0)
            rig.answer_all()
            if limit_of(rig) != limits[-1]:
                limits.append(limit_of(rig))
        assert limits == [*(before + STEP * number for number in range(len(limits) - 1)), BATCH_SIZE]


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("limit", [3000, 12_345, BATCH_SIZE - 500])
def test_a_permanent_limit_costs_a_refusal_now_and_then(codec: str | None, limit: int) -> None:
    with rigged(codec) as rig:
        send_batches(rig, limit, 40 if codec else 3)
        found_out = refusals(rig)
        for _ in range(150):
            rig.advance_ms(2000)
            taken = send_batches(rig, limit)
        # Five minutes: one refusal every 20 s, and the first ones sooner.
        assert refusals(rig) - found_out <= 5 * 60 / 20 + 3
        # It has found the largest size that the topic accepts, within steps. With a codec it may be lower.
        assert max(taken) > 0.85 * limit - 2 * STEP
        if codec is None:
            assert limit - 2 * STEP <= limit_of(rig) <= limit
        assert_nothing_left(rig)


def test_the_limit_follows_when_the_broker_lowers_it_again() -> None:
    with rigged(None) as rig:
        send_batches(rig, 20_000, 3)
        rig.advance_ms(60_000)
        send_batches(rig, 20_000, 20)
        assert limit_of(rig) > 15_000
        send_batches(rig, 3000, 3)
        assert limit_of(rig) <= 3000


def test_a_small_probe_does_not_raise_the_limit() -> None:
    with rigged(None) as rig:
        send_batches(rig, 2000, 3)
        before = limit_of(rig)
        for _ in range(60):
            rig.advance_ms(1000)
            rig.send("t", b"small", partition=0)
            rig.advance_ms(1)
            rig.answer_all()
        assert limit_of(rig) == before


# How soon a limit is probed again


@pytest.mark.slow
def test_a_probe_that_is_acknowledged_makes_the_next_wait_a_short_one() -> None:
    """The wait that earlier refusals had grown to is over: the topic has just taken more."""
    with rigged(None) as rig:
        send_batches(rig, 2000, 3)
        for _ in range(90):
            rig.advance_ms(999)
            send_batches(rig, 2000)
        before = limit_of(rig)
        for _ in range(25):
            rig.advance_ms(999)
            rig.send("t", bytes(int(before) + STEP // 2), partition=0)
            rig.advance_ms(1)
            rig.answer_all()
            if limit_of(rig) > before:
                break
        grown = limit_of(rig)
        assert grown == before + STEP
        refused_at = []
        count = refusals(rig)
        for second in range(40):
            send_batches(rig, int(grown))
            if refusals(rig) > count:
                count = refusals(rig)
                refused_at.append(second)
            rig.advance_ms(999)
        assert refused_at[0] == 0
        assert 10 <= refused_at[1] <= 11
        assert 20 <= refused_at[2] - refused_at[1] <= 21
        assert LARGE > grown == limit_of(rig)


@pytest.mark.slow
def test_probes_of_a_limit_that_stays_come_every_twenty_seconds() -> None:
    with rigged(None) as rig:
        send_batches(rig, 2000, 3)
        refused_at: list[int] = []
        for second in range(180):
            before = refusals(rig)
            rig.advance_ms(999)
            send_batches(rig, 2000)
            if refusals(rig) > before:
                refused_at.append(second)
        gaps = [later - earlier for earlier, later in itertools.pairwise(refused_at)]
        assert max(gaps) <= 21
        assert min(gaps[-3:]) >= 20
