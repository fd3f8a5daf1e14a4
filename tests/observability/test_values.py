"""What each metric counts, tested with runs in which every event is known."""

import math
import random
import socket
from collections.abc import Callable

import pytest

from cyproducer.accumulator.metric_snapshot import read_producer
from cyproducer.errors import BufferExhaustedError
from cyproducer.observability.definitions import NODE, TOPIC
from cyproducer.records.compression import compressor_for
from tests.observability.measured import WINDOW_MS, node, one, producer, registry, sent, topic
from tests.scripted.sender_steps import narrow
from tools.harness.rig import Rig

TOO_LARGE, NOT_ENOUGH_REPLICAS, NOT_ALLOWED = 10, 19, 29


def test_acknowledged_failed_and_retried_records_are_counted_by_topic() -> None:
    with Rig({"a": [1], "b": [1]}) as rig:
        sent(rig, [b"x"] * 3, "a")
        for name, code in (("a", NOT_ENOUGH_REPLICAS), ("b", NOT_ALLOWED)):
            rig.send(name, b"y")
            rig.send(name, b"y")
            rig.answer(one(rig), error=code)
        rig.advance_ms(100)
        rig.answer(one(rig))
        for found, expected in (
            (topic(rig, "a"), (5, 0, 2)),
            (topic(rig, "b"), (0, 2, 0)),
            (producer(rig), (5, 2, 2)),
        ):
            names = [f"record-{what}-total" for what in ("send", "error", "retry")]
            assert tuple(found[name] for name in names) == expected
        assert topic(rig, "a")["records-per-batch-avg"] == 2.5
        assert math.isnan(topic(rig, "b")["records-per-batch-avg"])


def test_expired_records_and_records_without_a_partition_are_counted_as_errors_of_their_topic() -> None:
    with Rig({"t": [1]}, max_block_ms=100, delivery_timeout_ms=500, auto_connect=False) as rig:
        rig.send("nowhere", b"x")
        rig.send("small", b"x", partition=7)
        rig.sender.apply_topic("small", b"", [1])
        rig.send("t", b"x")
        rig.control.delay_ms = 0
        rig.advance_ms(101)
        rig.advance_ms(500)
        assert topic(rig, "nowhere")["record-error-total"] == 1
        assert topic(rig, "small")["record-error-total"] == 1
        assert topic(rig, "t")["record-error-total"] == 1
        assert producer(rig)["record-error-total"] == 3


def test_a_batch_that_expires_in_flight_is_counted_as_failed_once() -> None:
    with Rig({"t": [1]}, delivery_timeout_ms=500, request_timeout_ms=10_000) as rig:
        rig.send("t", b"x")
        seen = one(rig)
        rig.advance_ms(501)
        assert topic(rig)["record-error-total"] == producer(rig)["record-error-total"] == 1
        rig.answer(seen)
        assert topic(rig)["record-error-total"] == 1
        assert topic(rig)["record-send-total"] == 0


def test_sizes_are_those_on_the_wire() -> None:
    with Rig({"t": [1]}) as rig:
        rig.send("t", bytes(10))
        rig.send("t", bytes(1000))
        rig.send("t", bytes(100))
        seen = one(rig)
        size = seen.batches["t", 0].batch_length + 12
        rig.answer(seen)
        found = producer(rig)
        assert found["batch-size-avg"] == found["batch-size-max"] == found["byte-total"] == size
        assert topic(rig)["byte-total"] == size
        # length 2, attributes, timestamp, offset, no key, length 2, value, no headers
        assert found["record-size-max"] == 2 + 1 + 1 + 1 + 1 + 2 + 1000 + 1
        assert found["record-size-avg"] == pytest.approx((size - 61) / 3)
        assert found["compression-rate-avg"] == topic(rig)["compression-rate"] == 1
        assert found["records-per-request-avg"] == found["records-per-batch-avg"] == 3
        assert found["batch-total"] == 1


@pytest.mark.parametrize("keys", [None, [None, None, None, None]])
def test_rows_sent_together_count_as_records(keys: list[bytes | None] | None) -> None:
    with Rig({"t": [1]}, linger_ms=10) as rig:
        rig.path.send_many("t", [bytes(size) for size in (10, 300, 20, 30)], keys)
        rig.advance_ms(10)
        rig.answer_all()
        found = producer(rig)
        assert (found["record-send-total"], found["batch-total"]) == (4, 1)
        assert found["record-size-max"] == 2 + 1 + 1 + 1 + 1 + 2 + 300 + 1


def test_the_compression_rate_is_bytes_sent_divided_by_uncompressed_bytes() -> None:
    values = [bytes(1000)] * 5
    with Rig({"t": [1]}) as rig:
        sent(rig, values)
        raw = producer(rig)["batch-size-avg"]
    with Rig({"t": [1]}, compressor=compressor_for("zstd")) as rig:
        sent(rig, values)
        found = producer(rig)
        assert (
            found["compression-rate-avg"] == topic(rig)["compression-rate"] == found["batch-size-avg"] / raw
        )
        assert found["compression-rate-avg"] < 0.1
        # Record sizes are those before compression.
        assert found["record-size-avg"] == pytest.approx((raw - 61) / 5)
        assert found["record-size-max"] > 1000


def test_parts_of_a_split_batch_know_their_largest_record() -> None:
    with Rig({"t": [1]}, linger_ms=10) as rig:
        for size in (10, 300, 20, 30):
            rig.send("t", bytes(size))
        rig.advance_ms(10)
        rig.answer(one(rig), error=TOO_LARGE)
        rig.answer_all()
        found = producer(rig)
        assert (found["batch-split-total"], found["batch-total"], found["record-send-total"]) == (1, 2, 4)
        assert found["record-size-max"] == 2 + 1 + 1 + 1 + 1 + 2 + 300 + 1
        assert found["batch-split-rate"] > 0


def waiting_bytes(sock: socket.socket) -> int:
    return len(sock.recv(1 << 20, socket.MSG_PEEK))


def test_bytes_and_requests_are_those_of_each_broker_s_sockets() -> None:
    with Rig({"t": [1, 2]}) as rig:
        written = {1: 0, 2: 0}
        sizes = []
        for number, count in ((1, 1), (2, 3)):
            for _ in range(count):
                rig.send("t", bytes(100 * number), partition=number - 1)
                rig.step()
                rig.step()
                sizes.append(waiting_bytes(rig.peers[number].sock))
                written[number] += sizes[-1]
                rig.answer(one(rig))
        for number, count in ((1, 1), (2, 3)):
            found = node(rig, number)
            assert found["request-total"] == found["response-total"] == count
            assert found["outgoing-byte-total"] == written[number]
            assert found["request-size-avg"] == pytest.approx(written[number] / count)
        found = producer(rig)
        assert found["request-total"] == found["produce-request-total"] == found["response-total"] == 4
        assert found["outgoing-byte-total"] == sum(sizes)
        assert found["request-size-max"] == max(sizes) == node(rig, 2)["request-size-max"]
        assert node(rig, 1)["request-size-max"] == sizes[0]
        assert found["network-io-total"] == 8
        assert found["incoming-byte-total"] == sum(node(rig, n)["incoming-byte-total"] for n in (1, 2)) > 0
        assert found["network-io-rate"] == pytest.approx(8 / 30, rel=1e-3)


def test_responses_that_arrive_in_one_read_are_each_counted() -> None:
    with Rig({"t": [1]}, batch_size=0) as rig:
        # The third record fills the batches before it, and is sent after their responses.
        for _ in range(3):
            rig.send("t", b"x")
        first, second = rig.requests()
        rig.answer(first, step=False)
        rig.answer(second, step=False)
        for _ in range(2):
            rig.step()
            assert producer(rig)["response-total"] == producer(rig)["record-send-total"] == 2
            assert node(rig, 1)["response-total"] == 2
        rig.answer_all()


def test_latency_and_throttling_are_counted_by_broker() -> None:
    with Rig({"t": [1, 2]}) as rig:
        for number in (1, 2):
            rig.send("t", b"x", partition=number - 1)
            seen = one(rig)
            rig.clock.advance_ms(10 * number)
            rig.answer(seen)
        for number in (1, 2):
            found = node(rig, number)
            assert found["request-latency-avg"] == found["request-latency-max"] == 10 * number
            assert found["throttle-time-avg"] == found["throttle-time-max"] == 0
        assert (producer(rig)["request-latency-avg"], producer(rig)["request-latency-max"]) == (15, 20)


def test_a_request_counts_when_it_is_completely_written() -> None:
    with Rig({"t": [1]}, max_request_size=1 << 20, batch_size=1 << 20) as rig:
        rig.send("t", b"x")
        rig.answer(one(rig))
        before = producer(rig)
        narrow(rig.peers[1])
        rig.send("t", bytes(900_000))
        for _ in range(3):
            rig.step()
        found = producer(rig)
        assert found["outgoing-byte-total"] > before["outgoing-byte-total"]
        assert (found["request-total"], found["requests-in-flight"]) == (1, 1)
        rig.answer(one(rig))
        found = producer(rig)
        assert (found["request-total"], found["requests-in-flight"]) == (2, 0)
        assert found["request-size-max"] > 900_000
        assert found["outgoing-byte-total"] == 2 * found["request-size-avg"]


def test_with_acks_0_written_records_are_counted_when_the_future_is_done() -> None:
    with Rig({"t": [1]}, acks=0) as rig:
        seen = []
        future = rig.send("t", b"x").add_callback(lambda _: seen.append(producer(rig)["request-total"]))
        assert len(rig.requests()) == 1
        assert future.succeeded()
        rig.run_callbacks()
        found = producer(rig)
        assert seen == [1]
        assert (found["record-send-total"], found["request-total"], found["response-total"]) == (1, 1, 0)
        assert math.isnan(found["request-latency-avg"])


def connections(rig: Rig) -> list[float]:
    """How many were created, were closed, and are open."""
    found = producer(rig)
    return [found[f"connection-{what}"] for what in ("creation-total", "close-total", "count")]


def test_connections_are_counted_when_they_are_established_and_when_they_end() -> None:
    with Rig({"t": [1, 2]}) as rig:
        rig.send("t", b"x", partition=0)
        rig.answer(one(rig))
        assert connections(rig) == [1, 0, 1]
        rig.cut(1)
        rig.send("t", b"x", partition=0)
        rig.send("t", b"x", partition=1)
        assert len(rig.requests()) == 2
        assert connections(rig) == [3, 1, 2]
        found = producer(rig)
        assert found["connection-creation-rate"] > found["connection-close-rate"] > 0


def test_a_connection_that_was_never_established_is_not_counted_as_closed() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs, Rig({"t": [1]}, auto_connect=False) as rig:
        connection = rig.sender.open_connection(ours, 1, "broker-1")
        assert producer(rig)["connection-count"] == 1
        rig.control.on_broken = lambda *told: None  # type: ignore[method-assign]
        rig.sender.close_connection(connection, None)
        assert connections(rig) == [0, 0, 0]


def test_records_that_get_no_memory_in_time_are_counted() -> None:
    with Rig({"t": [1]}, buffer_memory=4096, max_block_ms=20) as rig:
        rig.send("t", bytes(3000))
        with pytest.raises(BufferExhaustedError):
            rig.send("t", bytes(3000))
        found = producer(rig)
        assert found["buffer-exhausted-total"] == 1
        assert found["buffer-exhausted-rate"] == pytest.approx(1 / 30, rel=1e-3)
        assert found["bufferpool-wait-time-ns-total"] >= 20e6
        assert found["bufferpool-wait-ratio"] == pytest.approx(
            found["bufferpool-wait-time-ns-total"] / 30e9, rel=1e-3
        )
        assert found["buffer-total-bytes"] == 4096
        assert found["buffer-available-bytes"] == 4096 - rig.pool.used_bytes == 0
        assert found["waiting-threads"] == 0
        rig.answer_all()


def test_records_that_got_no_memory_are_forgotten_with_their_window() -> None:
    with Rig({"t": [1]}, buffer_memory=4096, max_block_ms=1) as rig:
        rig.send("t", bytes(3000))
        with pytest.raises(BufferExhaustedError):
            rig.send("t", bytes(3000))
        # Nothing reads in between: the pool's counts are copied when a window begins.
        rig.clock.advance_ms(WINDOW_MS)
        rig.answer_all()
        rig.clock.advance_ms(WINDOW_MS)
        found = producer(rig)
        assert (found["buffer-exhausted-total"], found["buffer-exhausted-rate"]) == (1, 0)


def test_bytes_of_a_connection_that_never_became_ready_are_counted() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs, Rig({"t": [1]}, auto_connect=False) as rig:
        connection = rig.sender.open_connection(ours, -1, "bootstrap")
        rig.control.on_broken = lambda *told: None  # type: ignore[method-assign]
        rig.sender.connected(connection)
        connection.send(3, 0, connection.next_correlation_id(), bytes(100), rig.clock.monotonic_ns())
        rig.sender.flush_connection(connection)
        rig.sender.close_connection(connection, None)
        found = producer(rig)
        assert (found["request-total"], found["outgoing-byte-total"]) == (1, 100)


def accounts(rig: Rig) -> None:
    """Checks that the values of topics and of brokers add up to the producer's."""
    snapshot = registry(rig).snapshot()
    for group, names in (
        (TOPIC, ("record-send-total", "record-error-total", "record-retry-total", "byte-total", "byte-rate")),
        (NODE, ("request-total", "response-total", "outgoing-byte-total", "incoming-byte-total")),
    ):
        for name in names:
            parts = [
                values[name] for found, values in snapshot.items() if found.startswith(group.split("{")[0])
            ]
            assert sum(parts) == pytest.approx(snapshot["producer-metrics"][name]), name


@pytest.mark.parametrize("seed", range(5))
def test_in_random_runs_the_parts_add_up_to_the_whole(seed: int) -> None:
    rng = random.Random(seed)
    with Rig({"a": [1, 2], "b": [2, 3]}, request_timeout_ms=500, delivery_timeout_ms=2000) as rig:

        def answer(code: int) -> None:
            rig.pending = [seen for seen in rig.pending if rig.peers.get(seen.node) is seen.peer]
            if rig.pending:
                rig.answer(rig.pending[0], code)

        events: list[Callable[[], object]] = [
            lambda: rig.send(rng.choice("ab"), rng.randbytes(rng.randrange(1000))),
            lambda: answer(rng.choice([0, 0, 6, 10, 29])),
            lambda: rig.advance_ms(rng.choice([0, 1, 100, 40_000])),
            lambda: rig.cut(rng.choice(list(rig.peers))) if rig.peers else None,
        ]
        for _ in range(300):
            rng.choices(events, [8, 4, 2, 0.3])[0]()
            rig.requests()
        accounts(rig)
        rig.close()
        accounts(rig)
        total = read_producer(rig.accumulator).total
        assert (
            total("records_sent") + total("records_failed") == rig.accumulator.counters()["records_appended"]
        )
        assert total("records_sent") > 0
        assert total("records_failed") > 0
