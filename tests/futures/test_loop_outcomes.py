"""``LoopOutcomes``: asyncio futures follow records, with one announcement per batch and few wake-ups."""

import asyncio
import gc
import os
import weakref
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from cyproducer.errors import KafkaError, TopicAuthorizationFailedError
from cyproducer.futures import asyncio_bridge
from cyproducer.futures.asyncio_bridge import LoopOutcomes, deliver
from cyproducer.structs import RecordMetadata
from tests.accumulator.small_topic import assert_nothing_left, fill, refuse_large, serve
from tools.harness.rig import Rig

VALUES = [b"%04d" % i + bytes(96) for i in range(64)]
DENIED = 29


class Following:
    """A loop's outcomes, and how often the loop was woken up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.wakes = 0
        self._add = loop.add_reader
        loop.add_reader = self._counted  # type: ignore[assignment, method-assign]
        self.outcomes = LoopOutcomes(loop)

    def _counted(self, fd: int, callback: Callable[[], object]) -> None:
        def counted() -> None:
            self.wakes += 1
            callback()

        self._add(fd, counted)

    async def woken(self) -> None:
        """Gives the loop the turns that it needs to notice what has arrived, without waiting for it."""
        for _ in range(2):
            await asyncio.sleep(0)


def on_a_loop(test: Callable[[Rig, Following], Coroutine[Any, Any, None]]) -> Callable[[Rig], None]:
    """A test of a rig that runs on a loop."""

    def run(rig: Rig) -> None:
        async def main() -> None:
            await test(rig, Following(asyncio.get_running_loop()))

        asyncio.run(main())

    return run


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig({"t": [1, 2]}, linger_ms=1, ordered=True, batch_size=1 << 20) as rig:
        yield rig
        assert_nothing_left(rig)


def groups() -> int:
    """How many groups there are: one for the followed records of each batch, on each loop."""
    kind = vars(asyncio_bridge)["Group"]
    return sum(type(each) is kind for each in gc.get_objects())


def offsets(futures: list[asyncio.Future[Any]]) -> list[int]:
    return [future.result().offset for future in futures]


@on_a_loop
async def test_many_batches_share_one_wake_up_and_need_no_other_thread(
    rig: Rig, following: Following
) -> None:
    before = groups()
    futures = [following.outcomes.follow(each) for each in fill(rig, VALUES)]
    others = [following.outcomes.follow(rig.send("t", value, partition=1)) for value in VALUES]
    assert groups() == before + 2
    rig.advance_ms(1)
    rig.requests()
    rig.answer_all()
    assert rig.accumulator.completions.backlog == 0
    assert not any(future.done() for future in futures)
    await following.woken()
    assert following.wakes == 1
    assert offsets(futures) == offsets(others) == list(range(64))
    assert isinstance(futures[0].result(), RecordMetadata)
    # The next batch wakes it up again.
    (later,) = fill(rig, VALUES[:1])
    future = following.outcomes.follow(later)
    rig.answer(rig.requests()[0])
    assert (await future).offset == 64
    assert following.wakes == 2


@on_a_loop
async def test_a_record_with_an_outcome_needs_no_wake_up(rig: Rig, following: Following) -> None:
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


@on_a_loop
async def test_records_of_a_divided_batch_get_their_own_outcomes(rig: Rig, following: Following) -> None:
    records = fill(rig, VALUES)
    futures = [following.outcomes.follow(each) for each in records]
    refuse_large(rig, rig.requests()[0], 5000)
    rig.answer(rig.requests()[0])
    await following.woken()
    assert [future.done() for future in futures] == [record.done() for record in records]
    assert 0 < sum(future.done() for future in futures) < 64
    serve(rig, 5000)
    await following.woken()
    assert offsets(futures) == list(range(64))


@on_a_loop
async def test_parked_records_are_followed(rig: Rig, following: Following) -> None:
    futures = [following.outcomes.follow(rig.send("later", value, partition=0)) for value in VALUES]
    rig.sender.apply_topic("later", b"", [1])
    rig.advance_ms(1)
    rig.answer(rig.requests()[0])
    await following.woken()
    # Once they have a batch, and once it is acknowledged: the loop did not run in between.
    assert following.wakes == 1
    assert offsets(futures) == list(range(64))


@on_a_loop
async def test_a_cancelled_future_disturbs_no_other(rig: Rig, following: Following) -> None:
    futures = [following.outcomes.follow(each) for each in fill(rig, VALUES)]
    futures[0].cancel()
    futures[5].cancel()
    rig.answer(rig.requests()[0])
    await following.woken()
    assert [future.cancelled() for future in futures] == [i in (0, 5) for i in range(64)]
    assert offsets([future for future in futures if not future.cancelled()]) == [
        i for i in range(64) if i not in (0, 5)
    ]


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
    assert not any(future.done() for future in abandoned)
    abandoned.clear()

    async def another() -> None:
        # Nothing is kept for a loop that will not run again, once there is another one.
        LoopOutcomes(asyncio.get_running_loop())
        gc.collect()
        assert loops[0]() is None

    asyncio.run(another())


@on_a_loop
async def test_all_records_that_are_awaited_share_wake_ups(rig: Rig, following: Following) -> None:
    async def outcome(record: Any) -> int:
        return int((await record).offset)

    tasks = [asyncio.ensure_future(outcome(each)) for each in fill(rig, VALUES)]
    await asyncio.sleep(0)
    rig.answer(rig.requests()[0])
    assert await asyncio.gather(*tasks) == list(range(64))
    assert following.wakes == 1


@on_a_loop
async def test_the_first_awaited_record_may_fail_alone(rig: Rig, following: Following) -> None:
    records = fill(rig, VALUES)
    futures = [following.outcomes.follow(each) for each in records]
    refuse_large(rig, rig.requests()[0], 5000)
    rig.answer(rig.requests()[0], error=DENIED)
    rig.answer(rig.requests()[0])
    await following.woken()
    assert [isinstance(future.exception(), KafkaError) for future in futures] == [i < 32 for i in range(64)]


@on_a_loop
async def test_a_record_may_be_followed_twice_on_one_loop_and_on_two(rig: Rig, following: Following) -> None:
    def follow_elsewhere(record: Any) -> tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]]:
        loop = asyncio.new_event_loop()
        return loop, LoopOutcomes(loop).follow(record)

    (record,) = fill(rig, VALUES[:1])
    loop, elsewhere = follow_elsewhere(record)
    futures = [following.outcomes.follow(record)]
    # That of `await record`.
    futures += [LoopOutcomes(asyncio.get_running_loop()).follow(record) for _ in range(2)]
    rig.answer(rig.requests()[0])
    await following.woken()
    assert following.wakes == 1
    assert offsets(futures) == [0, 0, 0]
    assert not elsewhere.done()
    assert (await asyncio.to_thread(loop.run_until_complete, elsewhere)).offset == 0
    loop.close()


@on_a_loop
async def test_outcomes_that_are_there_can_be_delivered_at_once(rig: Rig, following: Following) -> None:
    (future,) = [following.outcomes.follow(each) for each in fill(rig, VALUES[:1])]
    rig.answer(rig.requests()[0])
    deliver(asyncio.get_running_loop())
    assert future.result().offset == 0
    # The descriptor is readable all the same.
    await following.woken()
    assert following.wakes == 1


def test_a_loop_takes_its_descriptor_along(rig: Rig) -> None:
    made = []

    async def follow() -> None:
        loop = asyncio.get_running_loop()
        add = loop.add_reader
        loop.add_reader = lambda fd, callback: (made.append(fd), add(fd, callback))  # type: ignore
        LoopOutcomes(loop).follow(rig.send("t", b"v", partition=0))
        rig.advance_ms(1)
        rig.answer(rig.requests()[0])
        await asyncio.sleep(0)

    asyncio.run(follow())
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made[0])
