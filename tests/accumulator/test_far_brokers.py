"""Batches that grow beyond ``batch_size`` while a far broker's requests are under way."""

from itertools import pairwise
from typing import Any

import pytest

from cyproducer.accumulator.splitting import topic_estimates
from tests.accumulator.small_topic import TOO_LARGE, assert_nothing_left, sent_size
from tools.harness.rig import Rig, Seen

BATCH_SIZE = 16_384
VALUE = bytes(1000)
FAR_MS, NEAR_MS = 300, 5
TIMED_OUT, INVALID_RECORD = 7, 87


def rigged(topics: dict[str, list[int]] | None = None, **options: Any) -> Rig:
    return Rig(topics or {"t": [1]}, batch_size=BATCH_SIZE, **options)


def learn(rig: Rig, *answers_ms: float, partition: int = 0) -> None:
    """Sends a record for each of the broker's answers, which takes that long."""
    for answer_ms in answers_ms:
        rig.send("t", b"v", partition=partition)
        (seen,) = rig.requests()
        rig.clock.advance_ms(answer_ms)
        rig.answer(seen)


def occupy(rig: Rig, requests: int = 5, partition: int = 0) -> None:
    """Puts requests in flight, each with one record."""
    for _ in range(requests):
        rig.send("t", b"v", partition=partition)
        rig.accumulator.flush(0)  # closes nothing, makes all batches sendable
        assert len(rig.requests()) == 1


def send_bytes(rig: Rig, size: int, partition: int = 0) -> None:
    for _ in range(size // 1000):
        rig.send("t", VALUE, partition=partition)


def sizes(requests: list[Seen]) -> list[int]:
    return [sent_size(batch) for seen in requests for batch in seen.batches.values()]


def answer_first(rig: Rig, **options: Any) -> None:
    """Answers the oldest request after ``FAR_MS``."""
    rig.clock.advance_ms(FAR_MS)
    rig.answer(rig.pending[0], **options)


def drained(rig: Rig) -> list[int]:
    """Answers everything; returns the sizes of the batches that arrived meanwhile."""
    found = []
    while rig.pending:
        answer_first(rig)
        found += sizes(rig.requests())
    return found


def after_growth(rig: Rig, size: int = 200_000) -> list[int]:
    """The sizes of the batches of ``size`` bytes that are sent while five requests are in flight."""
    occupy(rig)
    send_bytes(rig, size)
    return drained(rig)


def test_a_batch_grows_to_eight_times_batch_size_while_requests_are_in_flight() -> None:
    with rigged() as rig:
        learn(rig, FAR_MS)
        found = after_growth(rig, 300_000)
        assert [round(size / BATCH_SIZE, 1) for size in found] == [8.0, 8.0, 2.6]
        assert_nothing_left(rig)


@pytest.mark.parametrize(
    ("answers_ms", "grows"),
    [
        pytest.param([NEAR_MS], False, id="near"),
        pytest.param([49], False, id="below fifty milliseconds"),
        pytest.param([51], True, id="above fifty milliseconds"),
        pytest.param([NEAR_MS, *[100] * 40], False, id="near, and overloaded for seconds"),
        pytest.param([NEAR_MS, *[FAR_MS] * 200], True, id="near, and then far for a minute"),
        # A slow link or an overloaded broker takes no more with larger batches.
        pytest.param([100, 500], False, id="above four times the fastest answer"),
        pytest.param([100, 350], True, id="below four times the fastest answer"),
    ],
)
def test_batches_grow_if_a_far_broker_answers_about_as_fast_as_ever(
    answers_ms: list[float], grows: bool
) -> None:
    with rigged() as rig:
        learn(rig, *answers_ms)
        assert (max(after_growth(rig)) > BATCH_SIZE) is grows


def test_a_batch_that_can_be_sent_does_not_grow() -> None:
    with rigged() as rig:
        learn(rig, FAR_MS)
        occupy(rig, 4)
        send_bytes(rig, 20_000)
        assert max(sizes(rig.requests())) <= BATCH_SIZE


def test_a_batch_behind_another_one_grows() -> None:
    """It is not in the next request, even though that may be sent now."""
    with rigged() as rig:
        learn(rig, FAR_MS)
        send_bytes(rig, 100_000)
        first, second, *_ = sizes(rig.requests())
        assert first <= BATCH_SIZE < second


def test_a_partition_whose_gate_is_closed_grows_its_batch() -> None:
    """The first batch of a producer id goes alone: the next one waits for its answer."""
    with rigged({"t": [1, 1]}, idempotent=True) as rig:
        rig.sender.set_identity(7, 0)
        learn(rig, FAR_MS)
        rig.send("t", b"first", partition=1)
        (seen,) = rig.requests()
        send_bytes(rig, 60_000, partition=1)
        assert rig.requests() == []
        rig.answer(seen)
        assert [size > 60_000 for size in sizes(rig.requests())] == [True]


@pytest.mark.parametrize("linger_ms", [0, 10_000])
def test_a_batch_that_has_grown_goes_with_the_next_free_request(linger_ms: float) -> None:
    """It does not linger, and does not wait for all requests that were in flight when it began."""
    with rigged(linger_ms=linger_ms) as rig:
        rig.send("t", b"v")
        rig.advance_ms(linger_ms)
        (seen,) = rig.requests()
        rig.clock.advance_ms(FAR_MS)
        rig.answer(seen)
        occupy(rig)
        send_bytes(rig, 40_000)
        rig.answer(rig.pending[0])
        assert [size > 40_000 for size in sizes(rig.requests())] == [True]
        assert len(rig.pending) == 5


def test_a_batch_does_not_exceed_max_request_size() -> None:
    with rigged(max_request_size=50_000) as rig:
        learn(rig, FAR_MS)
        assert 48_000 < max(after_growth(rig)) <= 50_000


def test_a_batch_has_at_most_one_mebibyte() -> None:
    with Rig({"t": [1]}, batch_size=400_000, max_request_size=8 << 20) as rig:
        learn(rig, FAR_MS)
        occupy(rig)
        send_bytes(rig, 3_000_000)
        assert (1 << 20) - 2000 < max(drained(rig)) <= 1 << 20


def test_a_partition_has_an_eighth_of_its_share_of_the_memory() -> None:
    with rigged({"t": [1] * 4}, buffer_memory=4 << 20, far_request_size=4 << 20) as rig:
        learn(rig, FAR_MS)
        for partition in range(4):
            occupy(rig, 5 if partition == 0 else 0, partition)
        for partition in range(4):
            rig.send("t", VALUE, partition=partition)
        send_bytes(rig, 300_000)
        # 4 MiB / 8 / 4 partitions. Without the other partitions eight times batch_size.
        found = drained(rig)
        assert 120_000 < max(found) <= 131_072
        rig.answer_all()
        assert_nothing_left(rig)
    with rigged({"t": [1] * 16}, buffer_memory=4 << 20) as rig:
        learn(rig, FAR_MS)
        occupy(rig)
        for partition in range(16):
            rig.send("t", VALUE, partition=partition)
        send_bytes(rig, 100_000)
        assert max(drained(rig)) <= BATCH_SIZE


def test_partitions_without_batches_have_no_share() -> None:
    """Failed, acknowledged and split batches leave their queues, too."""
    with rigged({"t": [1], "u": [1] * 40}, buffer_memory=4 << 20) as rig:
        for code in (0, TOO_LARGE, TIMED_OUT, INVALID_RECORD):
            for number in range(80):
                rig.send("u", VALUE, partition=number % 40)
            for seen in rig.requests():
                rig.answer(seen, error=code)
            rig.clock.advance_ms(1000)
            rig.answer_all()
        assert_nothing_left(rig)
        rig.clock.advance_ms(60_000)
        learn(rig, *[FAR_MS] * 2)
        assert max(after_growth(rig)) > 4 * BATCH_SIZE


def test_a_batch_does_not_take_memory_that_a_thread_waits_for() -> None:
    """It closes instead, and the thread gets what the next answer frees."""
    with rigged(buffer_memory=640 << 10, max_block_ms=0) as rig:
        learn(rig, FAR_MS)
        occupy(rig)
        lease = rig.pool.acquire(480 << 10)
        assert lease is not None
        with pytest.raises(Exception, match="buffer_memory"):
            send_bytes(rig, 200_000)
        assert rig.pool.used_bytes <= 640 << 10
        assert max(drained(rig)) <= 640 << 10
        lease.release()
        assert_nothing_left(rig)


def test_the_next_batch_begins_with_a_buffer_of_the_grown_size() -> None:
    """Growing copies the records: it is not done again for each batch."""
    with rigged() as rig:
        learn(rig, FAR_MS)
        occupy(rig)
        used = rig.pool.used_bytes
        send_bytes(rig, 140_000)
        assert rig.pool.used_bytes - used == 2 * 8 * BATCH_SIZE


def test_compressed_batches_grow_to_the_same_size_before_compression() -> None:
    """So that their size on the wire needs no estimate: a broker takes them whatever the codec does."""
    with rigged(compressor="lz4") as rig:
        learn(rig, FAR_MS)
        occupy(rig)
        send_bytes(rig, 300_000)
        rig.answer_all()
        raw = rig.accumulator.counters()["raw_bytes"] / rig.accumulator.counters()["batches_sent"]
        assert 20_000 < raw < 8 * BATCH_SIZE
        assert_nothing_left(rig)


def test_before_the_first_answer_batches_grow_once_they_have_waited() -> None:
    with rigged() as rig:
        occupy(rig)
        send_bytes(rig, 40_000)
        rig.clock.advance_ms(5)
        send_bytes(rig, 100_000)
        found = drained(rig)
        assert found[0] <= BATCH_SIZE
        assert max(found) > 90_000


def test_without_a_connection_batches_of_an_unknown_broker_do_not_grow() -> None:
    """They may wait for long, and a record expires with its batch."""
    with rigged(auto_connect=False) as rig:
        send_bytes(rig, 10_000)
        rig.advance_ms(100)
        send_bytes(rig, 40_000)
        rig.auto_connect = True
        rig.advance_ms(1)
        rig.requests()
        assert max([*drained(rig), 0]) <= BATCH_SIZE


# What the topic takes


def refuse(rig: Rig, limit: int) -> tuple[list[int], int]:
    """Answers like a broker that takes ``limit`` bytes per batch; returns accepted sizes, and refusals."""
    taken, refusals = [], 0
    while rig.requests() or rig.pending:
        seen = rig.pending[0]
        errors = {place: TOO_LARGE for place, b in seen.batches.items() if sent_size(b) > limit}
        taken += [sent_size(b) for b in seen.batches.values() if sent_size(b) <= limit]
        refusals += len(errors)
        answer_first(rig, errors=errors)
    return taken, refusals


def test_a_refused_batch_is_split_and_the_next_ones_grow_less() -> None:
    with rigged() as rig:
        learn(rig, FAR_MS)
        occupy(rig)
        send_bytes(rig, 130_000)
        _, refusals = refuse(rig, 70_000)
        assert refusals == 1
        limit = topic_estimates(rig.accumulator, "t")["batch_limit"]
        assert BATCH_SIZE < limit <= 8 * BATCH_SIZE // 2 + 1
        learn(rig, FAR_MS)
        occupy(rig)
        send_bytes(rig, 130_000)
        taken, refusals = refuse(rig, 70_000)
        assert refusals == 0
        assert 60_000 < max(taken) <= limit
        assert len(rig.values("t")) == 2 + 2 * (5 + 130)
        assert_nothing_left(rig)


def test_the_limit_of_grown_batches_rises_again_in_steps() -> None:
    with rigged() as rig:
        learn(rig, FAR_MS)
        occupy(rig)
        send_bytes(rig, 130_000)
        refuse(rig, 100_000)
        limits = [topic_estimates(rig.accumulator, "t")["batch_limit"]]
        for _ in range(8):
            learn(rig, FAR_MS)
            occupy(rig)
            # The next batch is a probe.
            rig.clock.advance_ms(5000)
            send_bytes(rig, 130_000)
            assert refuse(rig, 1 << 20)[1] == 0
            limits.append(topic_estimates(rig.accumulator, "t")["batch_limit"])
        steps = {round(b - a) for a, b in pairwise(limits)}
        assert steps <= {0, BATCH_SIZE // 16}
        assert limits[-1] > limits[0]


# Requests


def test_a_request_to_a_far_broker_has_a_batch_of_each_partition() -> None:
    options: dict[str, Any] = {"max_request_size": 150_000, "far_request_size": 500_000}
    for answer_ms, most in ((FAR_MS, 500_000), (NEAR_MS, 150_000)):
        with rigged({"t": [1] * 3}, **options) as rig:
            learn(rig, answer_ms)
            occupy(rig)
            for partition in range(3):
                send_bytes(rig, 120_000, partition)
            requests = []
            while rig.pending:
                answer_first(rig)
                requests += rig.requests()
            largest = max(sum(sizes([seen])) for seen in requests)
            assert most - 150_000 < largest <= most
