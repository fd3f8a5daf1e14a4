"""Rates, averages, maxima and percentiles of runs with known true values: the test controls the clock."""

import math
import random

import pytest

from cyproducer.accumulator.metric_snapshot import Reading, read_node, read_producer, read_topic
from tests.observability.measured import WINDOW_MS, node, one, producer, sent, topic
from tools.harness.rig import Rig

APPROXIMATELY = 1 / 64 + 1e-9
"""The relative error of percentiles."""


def test_a_rate_covers_the_kept_windows_and_a_total_never_expires() -> None:
    with Rig({"t": [1]}) as rig:
        sent(rig, [b"x"] * 10)
        # All windows but the current one count as full from the start, as in Kafka.
        rig.advance_ms(10_000)
        assert producer(rig)["record-send-rate"] == pytest.approx(10 / 40)
        assert topic(rig)["record-send-rate"] == pytest.approx(10 / 40)
        rig.advance_ms(25_000)
        sent(rig, [b"x"] * 5)
        assert producer(rig)["record-send-rate"] == pytest.approx(15 / 35)
        rig.advance_ms(24_999)
        assert producer(rig)["record-send-rate"] == pytest.approx(15 / 59.999)
        # The window of the first ten records has been dropped.
        rig.advance_ms(1)
        assert producer(rig)["record-send-rate"] == pytest.approx(5 / 30, rel=1e-3)
        assert topic(rig)["record-send-rate"] == pytest.approx(5 / 30, rel=1e-3)
        rig.advance_ms(WINDOW_MS)
        for of in (producer(rig), topic(rig)):
            assert of["record-send-rate"] == 0
            assert of["record-send-total"] == 15


def test_an_event_after_long_idleness_is_counted_in_its_own_window() -> None:
    """Nothing reads in between, so the event itself must advance the windows."""
    with Rig({"t": [1]}, request_timeout_ms=1e9, delivery_timeout_ms=1e9) as rig:
        sent(rig, [b"x"] * 10)
        rig.clock.advance_ms(10 * WINDOW_MS)
        sent(rig, [b"y"] * 4)
        assert producer(rig)["record-send-rate"] == pytest.approx(4 / 30, rel=1e-3)
        rig.clock.advance_ms(WINDOW_MS)
        assert producer(rig)["record-send-rate"] == pytest.approx(4 / 30, rel=1e-3)
        found = producer(rig)
        assert found["records-per-request-avg"] == found["records-per-batch-avg"] == 4
        assert found["record-queue-time-max"] == 0
        sent(rig, [b"y"], then=lambda: rig.clock.advance_ms(10 * WINDOW_MS))
        rig.clock.advance_ms(WINDOW_MS)
        assert producer(rig)["request-latency-max"] == node(rig, 1)["request-latency-max"] == 10 * WINDOW_MS
        rig.clock.advance_ms(10 * WINDOW_MS)
        seen_late = rig.send("t", b"z", partition=0)
        rig.answer(one(rig), error=29)
        assert seen_late.failed()
        assert producer(rig)["record-error-rate"] == pytest.approx(1 / 30, rel=1e-3)
        assert topic(rig)["record-error-rate"] == pytest.approx(1 / 30, rel=1e-3)


def test_bytes_written_after_long_idleness_are_counted_in_their_own_window() -> None:
    with Rig({"t": [1]}) as rig:
        sent(rig, [b"x"])
        before = node(rig, 1)["outgoing-byte-total"]
        rig.clock.advance_ms(10 * WINDOW_MS)
        rig.send("t", b"x")
        assert len(rig.requests()) == 1
        for of in (node(rig, 1), producer(rig)):
            assert of["outgoing-byte-rate"] == pytest.approx(
                (of["outgoing-byte-total"] - before) / 30, rel=1e-3
            )
            assert of["request-size-max"] == of["outgoing-byte-total"] - before


def test_a_maximum_and_an_average_cover_the_kept_windows() -> None:
    with Rig({"t": [1]}) as rig:
        large, small = [bytes(1000)], [bytes(100)]
        sizes = []
        for values in (large, small):
            rig.send("t", values[0], partition=0)
            seen = one(rig)
            sizes.append(seen.batches["t", 0].batch_length + 12)
            rig.answer(seen)
            rig.advance_ms(WINDOW_MS if values is large else 0)
        first, second = sizes
        assert producer(rig)["batch-size-max"] == first
        assert producer(rig)["batch-size-avg"] == (first + second) / 2
        rig.advance_ms(WINDOW_MS)
        assert producer(rig)["batch-size-max"] == producer(rig)["batch-size-avg"] == second
        rig.advance_ms(WINDOW_MS)
        for name in ("batch-size-max", "batch-size-avg", "record-size-avg", "request-latency-p99"):
            assert math.isnan(producer(rig)[name]), name


@pytest.mark.parametrize("samples", [1, 3])
def test_the_number_and_the_length_of_windows_are_options(samples: int) -> None:
    with Rig({"t": [1]}, samples=samples, sample_window_ms=1000) as rig:
        sent(rig, [b"x"] * 6)
        rig.advance_ms(500)
        assert producer(rig)["record-send-rate"] == pytest.approx(6 / (samples - 0.5))
        rig.advance_ms(500 + 1000 * (samples - 1) - 1)
        assert producer(rig)["record-send-rate"] == pytest.approx(6 / samples, rel=1e-2)
        rig.advance_ms(1)
        assert producer(rig)["record-send-rate"] == 0


def test_times_run_from_the_batch_s_creation_to_its_request_and_to_its_acknowledgement() -> None:
    with Rig({"t": [1]}, linger_ms=50) as rig:
        rig.send("t", b"x")
        rig.advance_ms(50)
        seen = one(rig)
        rig.clock.advance_ms(20)
        rig.answer(seen)
        found = producer(rig)
        for name, true in (
            ("record-queue-time", 50),
            ("request-latency", 20),
            ("acknowledgement-latency", 70),
        ):
            assert found[f"{name}-avg"] == found[f"{name}-max"] == true
            for percentile in ("p50", "p99", "p999"):
                assert true * (1 - APPROXIMATELY) <= found[f"{name}-{percentile}"] <= true


def test_a_batch_that_is_sent_again_counts_its_queue_time_and_acknowledgement_once() -> None:
    with Rig({"t": [1]}, linger_ms=50) as rig:
        rig.send("t", b"x")
        rig.advance_ms(50)
        rig.answer(one(rig), error=19)
        rig.advance_ms(200)
        rig.answer(one(rig))
        found = producer(rig)
        assert found["record-queue-time-max"] == 50
        assert found["acknowledgement-latency-max"] == 250
        reading = read_producer(rig.accumulator)
        assert (reading.total("batches_queued"), reading.total("batches_sent")) == (1, 1)
        assert (reading.total("produce_requests"), reading.total("produce_responses")) == (2, 2)


def nearest_rank(values: list[float], share: float) -> float:
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


@pytest.mark.slow
def test_percentiles_are_within_their_stated_error() -> None:
    rng = random.Random(1)
    latencies = [rng.lognormvariate(3, 2) for _ in range(2000)]
    with Rig({"t": [1]}, sample_window_ms=1e9, request_timeout_ms=1e9, delivery_timeout_ms=1e9) as rig:
        for latency in latencies:
            sent(rig, [b"x"], then=lambda ms=latency: rig.clock.advance_ms(ms))  # type: ignore[misc]
        found = producer(rig)
    for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999)):
        true = nearest_rank(latencies, share)
        assert found[f"request-latency-{name}"] == pytest.approx(true, rel=APPROXIMATELY, abs=0.001)
        assert found[f"acknowledgement-latency-{name}"] == pytest.approx(true, rel=APPROXIMATELY, abs=0.001)
    assert found["request-latency-max"] == pytest.approx(max(latencies), abs=1e-5)


@pytest.mark.parametrize("ms", [0, 0.0005, 0.001, 0.03, 0.033, 0.0656, 1, 31.9, 32.1, 1e3, 1e5, 4.3e6, 1e8])
def test_any_time_is_reported_within_the_error_and_too_long_times_as_the_maximum(ms: float) -> None:
    last_ms = 2**42 / 1e6
    with Rig({"t": [1]}, request_timeout_ms=1e12, delivery_timeout_ms=9e12) as rig:
        # A longer time as well, so that the maximum does not bound the percentile.
        sent(rig, [b"x"], then=lambda: rig.clock.advance_ms(ms * 2))
        rig.clock.advance_ms(2 * WINDOW_MS)
        for _ in range(2):
            sent(rig, [b"x"], then=lambda: rig.clock.advance_ms(ms))
        sent(rig, [b"x"], then=lambda: rig.clock.advance_ms(ms * 1.001))
        found = producer(rig)["request-latency-p50"]
    if ms > last_ms:
        assert found == pytest.approx(last_ms, rel=2 * APPROXIMATELY)
    else:
        assert found == pytest.approx(ms, rel=APPROXIMATELY, abs=0.000512)


def test_percentiles_forget_what_the_windows_forget() -> None:
    with Rig({"t": [1]}) as rig:
        sent(rig, [b"x"], then=lambda: rig.clock.advance_ms(1000))
        rig.advance_ms(WINDOW_MS)
        sent(rig, [b"x"], then=lambda: rig.clock.advance_ms(10))
        assert producer(rig)["request-latency-p999"] == pytest.approx(1000, rel=APPROXIMATELY)
        rig.advance_ms(WINDOW_MS)
        assert producer(rig)["request-latency-p999"] == pytest.approx(10, rel=APPROXIMATELY)


@pytest.mark.parametrize("samples", [2, 3, 5])
def test_percentiles_after_windows_in_which_nothing_happened(samples: int) -> None:
    """Each of those windows begins with what was counted before it, not with what an older one began with."""
    with Rig({"t": [1]}, samples=samples, sample_window_ms=1000) as rig:
        sent(rig, [b"x"], then=lambda: rig.clock.advance_ms(10))
        rig.clock.advance_ms(1000 * (samples + 1))
        # Longer than before: a percentile is never above the peak of its windows.
        sent(rig, [b"x"], then=lambda: rig.clock.advance_ms(300))
        assert producer(rig)["request-latency-p999"] == pytest.approx(300, rel=APPROXIMATELY)
        assert producer(rig)["request-latency-p50"] == pytest.approx(300, rel=APPROXIMATELY)


def test_a_reading_has_the_counters_of_its_meter() -> None:
    with Rig({"t": [1]}) as rig:
        sent(rig, [b"x"])
        whole = read_producer(rig.accumulator)
        of_topic = read_topic(rig.accumulator, "t")
        of_node = read_node(rig.accumulator, 1)
        assert isinstance(of_topic, Reading)
        assert of_topic.total("records_sent") == whole.total("records_sent") == 1
        assert of_node.total("in_bytes") == whole.total("in_bytes") > 0
        for reading, lacking in ((of_topic, "in_bytes"), (of_node, "records_sent")):
            with pytest.raises(KeyError, match=f"{lacking}: this meter has"):
                reading.total(lacking)
        with pytest.raises(KeyError, match="no percentiles"):
            of_node.percentile("latency_ns", 0.5)
        with pytest.raises(KeyError, match="this meter has"):
            of_topic.peak("latency_ns")
        with pytest.raises(KeyError):
            whole.total("anything")
        with pytest.raises(KeyError):
            read_topic(rig.accumulator, "other")
        with pytest.raises(KeyError, match="node 9"):
            read_node(rig.accumulator, 9)


def test_more_samples_than_fit_into_memory_are_refused() -> None:
    with pytest.raises(MemoryError, match="metrics_num_samples"):
        Rig(samples=2**31 - 1)
