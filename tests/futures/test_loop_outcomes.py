"""``LoopOutcomes``: asyncio futures follow records, with one callback per batch and few wake-ups."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from cyproducer.errors import KafkaError, TopicAuthorizationFailedError
from cyproducer.futures.asyncio_bridge import LoopOutcomes
from cyproducer.structs import RecordMetadata
from tests.accumulator.small_topic import assert_nothing_left, fill, refuse_large, serve
from tools.harness.rig import Rig

VALUES = [b"%04d" % i + bytes(96) for i in range(64)]
DENIED = 29

Test = Callable[["Following"], Coroutine[Any, Any, None]]


class Following:
    """A loop's outcomes, and how often the loop was woken up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.outcomes = LoopOutcomes(loop)
        self.wakes = 0
        self._wake = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = self._counted  # type: ignore[assignment, method-assign]

    def _counted(self, *given: Any, **more: Any) -> Any:
        self.wakes += 1
        return self._wake(*given, **more)


def run(test: Test) -> None:
    async def main() -> None:
        await test(Following(asyncio.get_running_loop()))

    asyncio.run(main())


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig({"t": [1, 2]}, linger_ms=1, ordered=True, batch_size=1 << 20) as rig:
        yield rig
        assert_nothing_left(rig)


def offsets(futures: list[asyncio.Future[Any]]) -> list[int]:
    return [future.result().offset for future in futures]


def test_a_batch_has_one_callback_and_many_batches_share_one_wake_up(rig: Rig) -> None:
    async def test(following: Following) -> None:
        futures = [following.outcomes.follow(each) for each in fill(rig, VALUES)]
        others = [following.outcomes.follow(rig.send("t", value, partition=1)) for value in VALUES]
        rig.advance_ms(1)
        rig.requests()
        rig.answer_all()
        assert rig.accumulator.completions.backlog == 2
        assert following.wakes == 0
        rig.run_callbacks()
        assert following.wakes == 1
        assert not any(future.done() for future in futures)
        await asyncio.sleep(0)
        assert offsets(futures) == offsets(others) == list(range(64))
        assert isinstance(futures[0].result(), RecordMetadata)
        # The next batch wakes it up again.
        (later,) = fill(rig, VALUES[:1])
        future = following.outcomes.follow(later)
        rig.answer(rig.requests()[0])
        rig.run_callbacks()
        assert following.wakes == 2
        assert (await future).offset == 64

    run(test)


def test_a_record_with_an_outcome_needs_no_wake_up(rig: Rig) -> None:
    async def test(following: Following) -> None:
        good, bad = fill(rig, VALUES[:1]), []
        rig.answer(rig.requests()[0])
        bad = fill(rig, VALUES[:2])
        rig.answer(rig.requests()[0], error=DENIED)
        assert following.outcomes.follow(good[0]).result().offset == 0
        raised = [following.outcomes.follow(each).exception() for each in bad]
        assert [type(error) for error in raised] == [TopicAuthorizationFailedError] * 2
        # Each gets its own: raising it sets its traceback.
        assert raised[0] is not raised[1]
        assert following.wakes == 0

    run(test)


def test_records_of_a_divided_batch_get_their_own_outcomes(rig: Rig) -> None:
    async def test(following: Following) -> None:
        records = fill(rig, VALUES)
        futures = [following.outcomes.follow(each) for each in records]
        refuse_large(rig, rig.requests()[0], 5000)
        rig.answer(rig.requests()[0])
        rig.run_callbacks()
        await asyncio.sleep(0)
        assert [future.done() for future in futures] == [record.done() for record in records]
        assert 0 < sum(future.done() for future in futures) < 64
        serve(rig, 5000)
        rig.run_callbacks()
        await asyncio.sleep(0)
        assert offsets(futures) == list(range(64))

    run(test)


def test_parked_records_are_followed(rig: Rig) -> None:
    async def test(following: Following) -> None:
        futures = [following.outcomes.follow(rig.send("later", value, partition=0)) for value in VALUES]
        rig.sender.apply_topic("later", b"", [1])
        rig.advance_ms(1)
        rig.answer(rig.requests()[0])
        rig.run_callbacks()
        assert following.wakes == 1
        await asyncio.sleep(0)
        assert offsets(futures) == list(range(64))

    run(test)


def test_a_cancelled_future_disturbs_no_other(rig: Rig) -> None:
    async def test(following: Following) -> None:
        futures = [following.outcomes.follow(each) for each in fill(rig, VALUES)]
        futures[0].cancel()
        futures[5].cancel()
        rig.answer(rig.requests()[0])
        rig.run_callbacks()
        await asyncio.sleep(0)
        assert [future.cancelled() for future in futures] == [i in (0, 5) for i in range(64)]
        assert offsets([future for future in futures if not future.cancelled()]) == [
            i for i in range(64) if i not in (0, 5)
        ]

    run(test)


@pytest.mark.slow
def test_records_outlive_their_loop(rig: Rig) -> None:
    loops = []

    async def abandon() -> None:
        loop = asyncio.get_running_loop()
        loops.append(weakref.ref(loop))
        for record in fill(rig, VALUES):
            abandoned.append(LoopOutcomes(loop).follow(record))

    abandoned: list[Any] = []
    asyncio.run(abandon())
    rig.answer(rig.requests()[0])
    rig.run_callbacks()
    assert not any(future.done() for future in abandoned)
    # Nothing is kept for a loop that will not run again.
    abandoned.clear()
    gc.collect()
    assert loops[0]() is None


def test_all_records_that_are_awaited_share_wake_ups(rig: Rig) -> None:
    async def test(following: Following) -> None:
        async def outcome(record: Any) -> int:
            return int((await record).offset)

        tasks = [asyncio.ensure_future(outcome(each)) for each in fill(rig, VALUES)]
        await asyncio.sleep(0)
        rig.answer(rig.requests()[0])
        rig.run_callbacks()
        assert following.wakes == 1
        assert await asyncio.gather(*tasks) == list(range(64))

    run(test)


def test_the_first_awaited_record_may_fail_alone(rig: Rig) -> None:
    async def test(following: Following) -> None:
        records = fill(rig, VALUES)
        futures = [following.outcomes.follow(each) for each in records]
        refuse_large(rig, rig.requests()[0], 5000)
        rig.answer(rig.requests()[0], error=DENIED)
        rig.answer(rig.requests()[0])
        rig.run_callbacks()
        await asyncio.sleep(0)
        assert [isinstance(future.exception(), KafkaError) for future in futures] == [
            i < 32 for i in range(64)
        ]

    run(test)
