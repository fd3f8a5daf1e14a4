"""Thousands of random events: in the end all memory is back in the pool and every future is done."""

import random
from typing import Any

import pytest

from cyproducer.errors import (
    BrokerResponseError,
    BufferExhaustedError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from cyproducer.futures.delivery import RecordFuture
from cyproducer.records.compression import compressor_for
from tools.harness.rig import Rig
from tools.harness.until import Running

# Retriable and final: leader moved, timed out, not enough replicas, not authorized, too large, corrupt.
CODES = [6, 7, 19, 29, 10, 2]


class History:
    """One random history, generated from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.rig = Rig(
            {"a": [1, 2, 3], "b": [1], "c": [-1, 2]},
            buffer_memory=rng.choice([16, 64, 256]) * 1024,
            batch_size=rng.choice([0, 300, 2000, 16384]),
            linger_ms=rng.choice([0, 0, 5, 50]),
            compressor=compressor_for(rng.choice(["gzip", "lz4", "snappy"])) if rng.random() < 0.5 else None,
            max_in_flight=rng.choice([1, 2, 5]),
            max_request_size=12_000,
            max_block_ms=0,
            acks=rng.choice([-1, -1, 1, 0]),
            request_timeout_ms=500,
            delivery_timeout_ms=2000,
            seed=seed | 1,
        )
        self.rig.fates.retry.retries = rng.choice([0, 3, 1000])
        self.futures: list[RecordFuture] = []
        self.called: list[Any] = []
        self.expected = 0
        self.refused = 0
        self.unknown = ["d", "e", "f"]

    def send(self) -> None:
        rng = self.rng
        size = rng.choice([0, 10, 100, 1000, 5000, 11_900, 20_000])
        topic = rng.choice(["a", "b", "c", "d", "e", "f"])
        options: dict[str, Any] = {}
        if rng.random() < 0.3:
            options["partition"] = rng.randrange(5)
        if rng.random() < 0.3:
            options["headers"] = [("h", bytes(rng.randrange(50)))] * rng.randrange(3)
        try:
            future = self.rig.send(
                topic, bytes(rng.randrange(size + 1)), rng.choice([None, b"key"]), **options
            )
        except (BufferExhaustedError, UnknownTopicOrPartitionError, ProducerClosedError):
            self.refused += 1
            return
        self.futures.append(future)
        if rng.random() < 0.3:
            future.add_both(self.called.append)
            self.expected += 1

    def event(self) -> None:
        rng, rig = self.rng, self.rig
        draw = rng.random()
        if draw < 0.55:
            self.send()
        elif draw < 0.70:
            rig.requests()
        elif draw < 0.86 and rig.pending:
            # Requests of a connection are answered in order.
            node = rng.choice([seen.node for seen in rig.pending])
            seen = next(seen for seen in rig.pending if seen.node == node)
            if seen.request.acks == 0:
                rig.pending.remove(seen)
                return
            code = rng.choice([0, 0, 0, *CODES])
            rig.answer(
                seen, code, {place: rng.choice([0, *CODES]) for place in seen.places if rng.random() < 0.3}
            )
        elif draw < 0.88 and rig.peers:
            rig.cut(rng.choice(list(rig.peers)))
        elif draw < 0.92:
            rig.advance_ms(rng.choice([1, 20, 100, 600]))
            self.drop_pending_of_closed()
        elif draw < 0.94:
            topic = rng.choice(["a", "b", "c", *self.unknown])
            rig.sender.apply_topic(
                topic, b"", [rng.choice([-1, 1, 2, 3, 4]) for _ in range(rng.randint(1, 4))]
            )
        elif draw < 0.95:
            rig.sender.forget_topic(rng.choice("abcdef"))
        elif draw < 0.97:
            rig.accumulator.flush(0)
        else:
            rig.run_callbacks()

    def drop_pending_of_closed(self) -> None:
        """Drops requests that timed out: their connections are closed, and nothing waits for responses."""
        rig = self.rig
        rig.pending = [seen for seen in rig.pending if rig.peers.get(seen.node) is seen.peer]

    def finish(self) -> None:
        rig = self.rig
        if self.rng.random() < 0.5:
            # Deliver all records that can still be delivered.
            rig.fates.retry.retries = 0
            for topic in "abcdef":
                rig.sender.apply_topic(topic, b"", [1])
            for _ in range(30):
                rig.requests()
                self.drop_pending_of_closed()
                for seen in list(rig.pending):
                    if seen.request.acks != 0:
                        rig.answer(seen)
                rig.advance_ms(100)
            assert rig.accumulator.parked_records == 0
        rig.close()
        rig.run_callbacks()

    def check(self) -> None:
        rig = self.rig
        assert rig.pool.used_bytes == 0
        assert rig.pool.waiting_threads == 0
        assert (rig.accumulator.incomplete_batches, rig.accumulator.parked_records) == (0, 0)
        assert all(future.is_done for future in self.futures)
        errors = [future.exception for future in self.futures if future.failed()]
        for error in errors:
            assert isinstance(
                error,
                BrokerResponseError
                | KafkaConnectionError
                | KafkaTimeoutError
                | ProducerClosedError
                | RecordTooLargeError,
            ), repr(error)
        assert len(self.called) == self.expected
        # The counters match the futures. Records that were too large were never counted.
        counters = rig.accumulator.counters()
        too_large = sum(isinstance(error, RecordTooLargeError) for error in errors)
        assert counters["records_sent"] == sum(future.succeeded() for future in self.futures)
        assert counters["records_failed"] == len(errors) - too_large


@pytest.mark.parametrize("seed", range(40))
def test_after_a_random_history_all_memory_is_released_and_all_futures_are_done(seed: int) -> None:
    history = History(seed)
    try:
        for _ in range(400):
            history.event()
            assert history.rig.pool.used_bytes >= 0
        history.finish()
        history.check()
        assert len(history.futures) > 20
    finally:
        history.rig.close()


@pytest.mark.slow
def test_concurrent_sends_leak_no_memory_while_requests_fail() -> None:
    """Four threads send and wait for memory, while the sender gets errors, cut connections and timeouts."""
    rng = random.Random(3)
    with Rig(
        {"t": [1, 2, 3]},
        buffer_memory=48 * 1024,
        batch_size=2000,
        max_block_ms=20_000,
        compressor="gzip",
        max_in_flight=2,
    ) as rig:
        rig.fates.retry.retries = 2
        futures: list[RecordFuture] = []

        def work(seed: int) -> None:
            mine = random.Random(seed)
            for _ in range(1500):
                futures.append(rig.send("t", mine.randbytes(mine.randrange(1500))))

        workers = [Running(work, seed) for seed in range(4)]
        while any(worker.running for worker in workers) or rig.accumulator.incomplete_batches:
            rig.requests()
            for seen in list(rig.pending):
                if seen in rig.pending:
                    # Not 10 (too large): a split may exceed the budget, which this test forbids.
                    rig.answer(seen, rng.choice([0, 0, 0, 6, 7, 19, 29, 2]))
            if rng.random() < 0.05 and rig.peers:
                rig.cut(rng.choice(list(rig.peers)))
            rig.advance_ms(10)
        for worker in workers:
            worker.outcome()
        assert len(futures) == 6000
        assert all(future.is_done for future in futures)
        succeeded = sum(future.succeeded() for future in futures)
        assert 1000 < succeeded < 6000
        assert all(isinstance(future.exception, KafkaError) for future in futures if future.failed())
        assert sum(len(log) for log in rig.log.values()) == succeeded
        assert rig.pool.used_bytes == 0
        assert rig.pool.peak_bytes <= rig.pool.total_bytes


@pytest.mark.parametrize("partitions", [1, 31, 32, 33, 100])
def test_one_response_completes_the_batches_of_many_partitions(partitions: int) -> None:
    with Rig({"t": [1] * partitions}, linger_ms=5) as rig:
        futures = [rig.send("t", b"v" * 600, partition=partition) for partition in range(partitions)]
        rig.clock.advance_ms(5)
        (seen,) = rig.requests()
        assert len(seen.places) == partitions
        rig.answer(seen)
        assert all(future.succeeded() for future in futures)
        assert rig.accumulator.incomplete_batches == 0
        assert rig.pool.used_bytes == 0
