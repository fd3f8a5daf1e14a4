"""Futures, callbacks, deadlines, flush and close when a batch is split."""

import asyncio
import gc
import weakref
from concurrent.futures import wait
from typing import Any

import pytest

from cyproducer.errors import DeliveryTimeoutError, ProducerClosedError
from cyproducer.records import compression
from tests.accumulator.small_topic import assert_nothing_left, fill, refuse_large, serve
from tools.harness.rig import Rig
from tools.harness.until import PATIENCE_S, Running, until

VALUES = [b"%04d" % i + bytes(96) for i in range(64)]


def rigged(**options: Any) -> Rig:
    return Rig({"t": [1, 1]}, **{"linger_ms": 1, "ordered": True, "batch_size": 1 << 20, **options})


def test_callbacks_run_in_order_whenever_they_were_added() -> None:
    called: list[tuple[str, int]] = []

    def add(when: str, number: int) -> None:
        futures[number].add_callback(lambda told: called.append((when, told.offset)))

    with rigged() as rig:
        futures = fill(rig, VALUES)
        for i in range(64):
            add("before", i)
        refuse_large(rig, rig.requests()[0], 3000)
        for i in range(0, 64, 2):
            add("once split", i)
        refuse_large(rig, rig.requests()[0], 3000)
        for i in range(0, 64, 3):
            add("split twice", i)
        serve(rig, 3000)
        assert called == []
        rig.run_callbacks()
        offsets = [offset for when, offset in called if when == "before"]
        assert offsets == list(range(64))
        assert [offset for when, offset in called if when == "once split"] == list(range(0, 64, 2))
        assert [offset for when, offset in called if when == "split twice"] == list(range(0, 64, 3))
        assert [offset for _, offset in called] == sorted(offset for _, offset in called)


def test_all_kinds_of_waiters_get_the_offset_of_their_record() -> None:
    async def waited(future: Any) -> int:
        return int((await future).offset)

    async def all_of(futures: list[Any]) -> list[int]:
        tasks = [asyncio.ensure_future(waited(future)) for future in futures]
        await asyncio.sleep(0)
        await asyncio.to_thread(serve, rig, 700)
        callbacks = asyncio.to_thread(rig.run_callbacks)
        await callbacks
        return list(await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S))

    with rigged() as rig:
        futures = fill(rig, VALUES)
        concurrent = [future.as_concurrent() for future in futures]
        waiting = Running(futures[50].get, PATIENCE_S)
        assert asyncio.run(all_of(futures)) == list(range(64))
        assert waiting.outcome().offset == 50
        assert not wait(concurrent, PATIENCE_S).not_done
        assert [future.result().offset for future in concurrent] == list(range(64))


def test_errbacks_run_for_the_part_that_fails() -> None:
    failed: list[int] = []
    with rigged() as rig:
        futures = fill(rig, VALUES)
        for i, future in enumerate(futures):
            future.add_errback(lambda error, i=i: failed.append(i))
        refuse_large(rig, rig.requests()[0], 5000)
        rig.answer(rig.requests()[0])
        rig.answer(rig.requests()[0], error=29)
        rig.run_callbacks()
        assert failed == list(range(32, 64))
        assert [future.succeeded() for future in futures] == [i < 32 for i in range(64)]
        assert_nothing_left(rig)


def test_parked_records_can_be_forwarded_twice() -> None:
    called: list[int] = []
    with Rig(linger_ms=1, ordered=True) as rig:
        futures = [rig.send("t", value, partition=0) for value in VALUES]
        for future in futures:
            future.add_callback(lambda told: called.append(told.offset))
        concurrent = futures[60].as_concurrent()
        rig.sender.apply_topic("t", b"", [1])
        rig.advance_ms(1)
        serve(rig, 700)
        rig.run_callbacks()
        assert called == list(range(64))
        assert [future.get(0).offset for future in futures] == list(range(64))
        assert concurrent.result(0).offset == 60
        assert rig.values("t") == VALUES
        assert_nothing_left(rig)


def test_a_split_batch_leaks_no_references() -> None:
    """Neither to callbacks nor to the error of a part, whether futures are used or dropped."""

    class Held:
        def called(self, outcome: object) -> None:
            pass

    with rigged() as rig:
        futures = fill(rig, VALUES)
        held = [Held() for _ in futures]
        for future, one in zip(futures, held, strict=True):
            future.add_both(one.called)
        references = [weakref.ref(one) for one in held]
        del held, one, future
        del futures[::2]
        refuse_large(rig, rig.requests()[0], 5000)
        rig.answer(rig.requests()[0], error=29)
        serve(rig, 700)
        rig.run_callbacks()
        error = futures[0].exception
        assert error is not None
        del futures, error
        gc.collect()
        assert [reference() for reference in references] == [None] * 64
        assert_nothing_left(rig)


def test_the_deadline_of_parts_counts_from_send() -> None:
    with rigged(delivery_timeout_ms=1000) as rig:
        futures = fill(rig, VALUES)
        rig.advance_ms(700)
        refuse_large(rig, rig.requests()[0], 5000)
        (seen,) = rig.requests()
        rig.advance_ms(250)
        assert not any(future.is_done for future in futures)
        rig.advance_ms(100)
        assert all(isinstance(future.exception, DeliveryTimeoutError) for future in futures)
        rig.answer(seen)
        assert_nothing_left(rig)


def test_flush_waits_for_the_parts() -> None:
    with rigged() as rig:
        fill(rig, VALUES)
        refuse_large(rig, rig.requests()[0], 5000)
        assert rig.accumulator.incomplete_batches == 2
        assert not rig.accumulator.flush(0)
        flush = Running(rig.accumulator.flush, PATIENCE_S)
        rig.answer(rig.requests()[0])
        assert not rig.accumulator.flush(0)
        rig.answer(rig.requests()[0])
        assert flush.outcome() is True
        assert rig.values("t") == VALUES


def test_flush_does_not_wait_for_records_that_are_sent_after_a_split() -> None:
    with rigged() as rig:
        fill(rig, VALUES)
        refuse_large(rig, rig.requests()[0], 5000)
        rig.send("t", b"older", partition=1)
        flush = Running(rig.accumulator.flush, PATIENCE_S)
        # The clock stands still, so the record is sent because the flush has started.
        until(lambda: any(("t", 1) in seen.batches for seen in rig.requests()), "the older record")
        while len(rig.log.get(("t", 0), [])) == 0 or len(rig.pending) > 1:
            rig.answer(rig.pending[0])
            rig.requests()
        (second,) = rig.pending
        rig.send("t", b"younger", partition=1)
        rig.requests()
        rig.answer(second)
        assert flush.outcome() is True
        assert rig.accumulator.incomplete_batches == 1


def test_closing_fails_the_parts() -> None:
    rig = rigged()
    with rig:
        futures = fill(rig, VALUES)
        refuse_large(rig, rig.requests()[0], 5000)
        rig.requests()
    assert all(isinstance(future.exception, ProducerClosedError) for future in futures)
    assert_nothing_left(rig)


def test_splitting_needs_no_free_memory() -> None:
    """The thread that frees memory exceeds the budget instead of waiting for memory."""
    with rigged(buffer_memory=8192, batch_size=8192) as rig:
        fill(rig, VALUES)
        assert rig.pool.available_bytes == 0
        serve(rig, 700)
        assert rig.values("t") == VALUES
        assert rig.pool.peak_bytes > 8192
        assert_nothing_left(rig)


@pytest.mark.parametrize("error", [MemoryError("none left"), compression.DecompressionError("no memory")])
def test_a_batch_that_cannot_be_decompressed_fails_with_the_reason(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> bytes:
        raise error

    with rigged(compressor="gzip") as rig:
        futures = fill(rig, VALUES)
        monkeypatch.setattr(compression, "decompress", fail)
        refuse_large(rig, rig.requests()[0], 100)
        for future in futures:
            assert isinstance(future.exception, type(error))
            assert future.exception.maybe_written is False  # type: ignore[attr-defined]
        assert_nothing_left(rig)
        after = fill(rig, [b"after"])
        rig.answer_all()
        assert after[0].succeeded()
