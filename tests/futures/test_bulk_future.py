"""Many records in one call: their common future, partial failures, backpressure, order."""

import asyncio
import pickle
import struct
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from cyproducer import errors
from cyproducer.control.partitioners import resolve_partitioner
from cyproducer.futures.bulk_future import BulkFuture, BulkMetadata, RowOffsets
from cyproducer.futures.completion import CompletionQueue
from cyproducer.records.compression import compressor_for
from cyproducer.structs import FailedRows
from tests.scripted.sender_steps import grant
from tools.harness.rig import Rig
from tools.harness.until import Running, looks, until, until_blocked

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig({"t": [1, 1, 1]}, batch_size=1000) as rig:
        yield rig


def numbered(count: int, size: int = 20) -> list[bytes]:
    return [b"%0*d" % (size, i) for i in range(count)]


# Partitions and batches of rows


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("policy", ["sticky", "random", "round_robin", "single_broker", "murmur2_random"])
def test_rows_get_the_same_partitions_and_batches_as_with_send(codec: str | None, policy: str) -> None:
    values = numbered(500)
    keys = [None if i % 3 else b"key-%d" % (i % 41) for i in range(500)]
    spec = resolve_partitioner(policy, False)
    given: dict[str, Any] = {"spec": spec, "batch_size": 700, "seed": 5}
    if codec:
        given["compressor"] = compressor_for(codec)
    for these in (None, keys):
        with Rig({"t": [1, 1, 1]}, **given) as rig, Rig({"t": [1, 1, 1]}, **given) as singly:
            table = pa.table({"value": values, "key": pa.array(these or [None] * 500, pa.binary())})
            rig.path.send_arrow("t", table, key="key" if these else None)
            rig.path.send_many("t", values, these)
            for i in range(1000):
                singly.send("t", values[i % 500], these and these[i % 500])
            rig.answer_all()
            singly.answer_all()
            assert rig.log == singly.log
            ours, theirs = rig.accumulator.counters(), singly.accumulator.counters()
            assert ours["batches_sent"] == theirs["batches_sent"]
            assert ours["records_appended"] == ours["records_sent"] == 1000
            assert rig.pool.used_bytes == 0


def test_metadata_has_ranges_and_rows(rig: Rig) -> None:
    rig.send("t", b"before", partition=1)
    future = rig.path.send_arrow("t", pa.table({"value": numbered(5), "p": [1, 0, 1, 2, 1]}), partition="p")
    rig.send("t", b"between", partition=1)
    later = rig.path.send_many("t", numbered(2), partition=1)
    rig.answer_all()
    metadata = future.get(0)
    assert (metadata.topic, metadata.count) == ("t", 5)
    assert metadata.ranges == [(0, 0, 1), (1, 1, 3), (2, 0, 1)]
    rows = metadata.rows()
    assert len(rows) == 5
    assert (list(rows.partitions), list(rows.offsets)) == ([1, 0, 1, 2, 1], [1, 0, 2, 0, 3])
    assert later.get(0).ranges == [(1, 5, 2)]
    assert pickle.loads(pickle.dumps(metadata)).ranges == metadata.ranges
    assert list(pickle.loads(pickle.dumps(metadata)).rows().offsets) == [1, 0, 2, 0, 3]


def test_no_rows_are_acknowledged_at_once(rig: Rig) -> None:
    for future in (
        rig.path.send_many("t", []),
        rig.path.send_arrow("t", pa.table({"value": pa.array([], pa.binary())})),
    ):
        assert future.succeeded()
        assert (future.get(0).count, future.get(0).ranges, len(future.get(0).rows())) == (0, [], 0)
        assert bool(future)


# Sequences


def test_sequences_may_hold_bytes_buffers_and_none(rig: Rig) -> None:
    values = [b"bytes", bytearray(b"array"), memoryview(b"view"), None]
    rig.path.send_many("t", values, (None, b"k", None, bytearray(b"key")), partition=0, timestamp_ms=7)
    rig.answer_all()
    assert [(r.key, r.value, r.timestamp) for r in rig.log["t", 0]] == [
        (None, b"bytes", 7),
        (b"k", b"array", 7),
        (None, b"view", 7),
        (b"key", None, 7),
    ]


@pytest.mark.parametrize(
    ("values", "keys", "error", "said"),
    [
        (
            [b"x", "y"],
            None,
            TypeError,
            r"values\[1\]: must be bytes, another contiguous buffer or None, not str",
        ),
        ([b"x"], [3], TypeError, r"keys\[0\]: must be bytes"),
        ([b"x", None], None, ValueError, r"values\[1\]: is null, and so is the key"),
        ([b"x"], [b"k", b"k"], ValueError, "keys: has 2 items, values 1"),
        (b"bytes", None, TypeError, "values: must be a sequence of bytes, not bytes"),
        (7, None, TypeError, "values: must be a sequence of bytes, not int"),
        ([b"x", memoryview(b"abc")[::2]], None, TypeError, r"values\[1\]"),
        ([b"x", b"y" * 2_000_000], None, errors.RecordTooLargeError, r"values\[1\]: the record takes"),
    ],
)
def test_the_error_names_the_invalid_item_and_no_item_is_sent(
    rig: Rig, values: Any, keys: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        rig.path.send_many("t", values, keys)
    assert rig.accumulator.counters()["records_appended"] == 0


# The future


def test_the_future_is_done_when_the_last_batch_is(rig: Rig) -> None:
    future = rig.path.send_many("t", numbered(100), partition=0)
    seen = 0
    while requests := rig.requests():
        for request in requests:
            seen += len(request.values())
            assert not future.is_done
            assert future.value is None
            assert future.exception is None
            rig.answer(request)
    assert seen == 100
    assert rig.accumulator.counters()["batches_sent"] > 2
    assert future.is_done
    assert future.done()
    assert future.is_complete()
    assert future.succeeded()
    assert not future.failed()
    assert not future.retriable()
    assert future.exception is None
    assert future.value is future.get(0)
    assert len(future) == 100
    assert repr(future) == "<BulkFuture topic='t' rows=100 acknowledged>"


def test_a_wait_ends_at_its_timeout_or_with_the_last_batch(rig: Rig) -> None:
    future = rig.path.send_many("t", numbered(100))
    with pytest.raises(errors.KafkaTimeoutError, match=r"all of 100 rows for topic 't' .* within 0\.01 s"):
        future.get(0.01)
    waiting = Running(future.get, 20)
    until_blocked(waiting.thread)
    rig.answer_all()
    assert waiting.outcome().count == 100


def test_callbacks_are_called_once_all_have_an_outcome() -> None:
    queue = CompletionQueue()
    with Rig({"t": [1, 2, 3]}, batch_size=200, completions=queue) as rig:
        future = rig.path.send_many("t", numbered(100))
        called: list[Any] = []
        assert future.add_callback(called.append) is future
        future.add_errback(lambda error: called.append("never"))
        future.add_both(lambda word, outcome: called.append((word, outcome.count)), "both")  # type: ignore[union-attr]
        concurrent = future.as_concurrent()
        while requests := rig.requests():
            for request in requests:
                rig.run_callbacks()
                assert called == []
                rig.answer(request)
        rig.run_callbacks()
        assert [each if isinstance(each, tuple) else each.count for each in called] == [100, ("both", 100)]
        assert concurrent.result(0) is future.value
        future.add_callback(called.append)
        assert called[2] is future.value


def test_a_callback_that_raises_does_not_stop_the_others(rig: Rig) -> None:
    future = rig.path.send_many("t", numbered(3))
    called: list[Any] = []
    future.add_callback(lambda outcome: 1 // 0).add_callback(called.append)
    rig.answer_all()
    rig.run_callbacks()
    assert called == [future.value]
    with pytest.raises(TypeError, match="a callback must be callable"):
        future.add_callback(7)  # type: ignore[call-overload]


def test_waiting_in_a_callback_for_pending_rows_is_refused(rig: Rig) -> None:
    first = rig.send("t", b"first", partition=0)
    rows = rig.path.send_many("t", numbered(100), partition=0)
    concurrent = rows.as_concurrent()
    refused: list[BaseException] = []

    def wait(outcome: object) -> None:
        waits: list[Callable[[float], object]] = [rows.get, concurrent.result]
        for what in waits:
            try:
                what(1)
            except errors.IllegalStateError as error:
                refused.append(error)

    first.add_callback(wait)
    rig.answer(rig.requests()[0])
    rig.run_callbacks()
    assert len(refused) == 2
    assert "in a callback, for 100 rows for topic 't' that is pending" in str(refused[0])


def test_the_future_can_be_awaited(rig: Rig) -> None:
    future = rig.path.send_many("t", numbered(100))
    bad = rig.path.send_many("t", [b"x"], partition=2)

    async def wait() -> tuple[BulkMetadata, object]:
        task = asyncio.ensure_future(gather(future))
        await asyncio.sleep(0)
        while not task.done():
            for request in rig.requests():
                rig.answer(request, errors={("t", 2): 0})
            rig.run_callbacks()
            await asyncio.sleep(0)
        return await task, await bad

    async def gather(future: BulkFuture) -> BulkMetadata:
        return await future

    first, second = asyncio.run(wait())
    assert (first.count, second) == (100, bad.value)


# Failures


def test_the_error_reports_failed_rows_with_causes_and_the_others_with_offsets(rig: Rig) -> None:
    places = [i % 3 for i in range(9)]
    future = rig.path.send_arrow("t", pa.table({"value": numbered(9), "p": places}), partition="p")
    called: list[Any] = []
    future.add_errback(called.append)
    future.add_callback(lambda outcome: called.append("never"))
    for request in rig.requests():
        rig.answer(request, errors={("t", 1): 29})
    rig.run_callbacks()
    assert future.failed()
    assert not future.succeeded()
    assert future.value is None
    with pytest.raises(
        errors.BulkSendError, match="3 of 9 rows for topic 't' were not acknowledged"
    ) as raised:
        future.get(0)
    error = raised.value
    assert called == [error]
    assert [(each.partition, list(each.rows)) for each in error.failures] == [(1, [1, 4, 7])]
    assert isinstance(error.failures[0].error, errors.TopicAuthorizationFailedError)
    assert error.metadata is not None
    assert (error.metadata.count, error.metadata.ranges) == (6, [(0, 0, 3), (2, 0, 3)])
    offsets = pa.record_batch(error.metadata.rows())["offset"].to_pylist()
    assert offsets == [0, None, 0, 1, None, 1, 2, None, 2]
    assert list(error.metadata.rows().offsets)[1] == -1
    each = future._each(sizes(numbered(9)), 5)
    assert [metadata and (metadata.partition, metadata.offset) for metadata in each] == [
        None if p == 1 else (p, offset) for p, offset in zip(places, offsets, strict=True)
    ]
    twin = pickle.loads(pickle.dumps(error))
    assert list(twin.failures[0].rows) == [1, 4, 7]
    assert twin.metadata.ranges == error.metadata.ranges
    assert twin.retriable is error.retriable is future.retriable() is False
    # Each raise has its own traceback.
    assert future.exception is not error


@pytest.mark.parametrize(
    ("known", "together"),
    [([True, False], True), ([False, False], False), ([False, None], None), ([None, True], True)],
)
def test_maybe_written_combines_the_causes_of_all_rows(
    known: list[bool | None], together: bool | None
) -> None:
    causes = []
    for one in known:
        cause = errors.KafkaTimeoutError("x")
        cause.maybe_written = one
        causes.append(FailedRows(0, cause, array("q", [0])))
    assert errors.BulkSendError("text", failures=causes).maybe_written is together
    assert errors.BulkSendError("text", failures=causes).retriable is True
    assert errors.BulkSendError.retriable is False


def test_rows_that_are_not_delivered_in_time_fail() -> None:
    with Rig({"t": [1]}, delivery_timeout_ms=1000, batch_size=500) as rig:
        future = rig.path.send_many("t", numbered(100))
        rig.requests()
        rig.advance_ms(1001)
        error = future.exception
        assert isinstance(error, errors.BulkSendError)
        assert sorted(row for each in error.failures for row in each.rows) == list(range(100))
        assert {type(each.error) for each in error.failures} == {errors.DeliveryTimeoutError}
        assert error.retriable


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("ask_between", [False, True])
def test_rows_follow_the_parts_of_batches_that_were_too_large(codec: str | None, ask_between: bool) -> None:
    with Rig({"t": [1, 1]}, batch_size=1 << 20, compressor=codec, ordered=True) as rig:
        values = numbered(50, size=400)
        places = [i % 2 for i in range(50)]
        rig.send("t", b"another's", partition=0)
        future = rig.path.send_arrow("t", pa.table({"value": values, "p": places}), partition="p")
        called: list[Any] = []
        future.add_callback(called.append)
        refused = 0
        for _ in range(100):
            for request in rig.requests():
                large = {place: 10 for place, batch in request.batches.items() if len(batch.records) > 7}
                refused += len(large)
                rig.answer(request, errors=large)
                assert ask_between is False or future.is_done in (True, False)
        rig.run_callbacks()
        assert refused >= 4
        assert called == [future.get(0)]
        assert [metadata_range.records for metadata_range in future.get(0).ranges] == [25, 25]
        where = future.get(0).rows()
        assert list(where.partitions) == places
        each = [(m.partition, m.offset) for m in future._each(sizes(values), 5) if m]
        assert each == list(zip(where.partitions, where.offsets, strict=True))
        for i in range(50):
            assert rig.log["t", places[i]][where.offsets[i]].value == values[i]


def sizes(values: list[Any], keys: list[Any] | None = None) -> bytes:
    pairs = zip(keys or [None] * len(values), values, strict=True)
    return b"".join(
        struct.pack("=2i", *(-1 if each is None else len(each) for each in pair)) for pair in pairs
    )


@pytest.mark.parametrize(
    ("acks", "answer"),
    [(-1, {}), (-1, {"log_append_time_ms": 777}), (0, None)],
    ids=["own", "log", "no acks"],
)
def test_each_row_has_the_metadata_that_send_would_give(acks: int, answer: dict[str, Any] | None) -> None:
    values = [None if i % 7 == 1 and i % 5 else b"v" * (i % 400) for i in range(200)]
    keys = [None if i % 5 == 0 else bytearray(b"%d" % i) for i in range(200)]
    given: dict[str, Any] = {"batch_size": 1000, "seed": 5, "acks": acks}
    for these in (keys, None):
        sent = values if these else [value or b"" for value in values]
        with Rig({"t": [1, 1, 1]}, **given) as rig, Rig({"t": [1, 1, 1]}, **given) as singly:
            future = rig.path.send_many("t", sent, these, timestamp_ms=5)
            futures = [
                singly.send("t", value, these and these[i], timestamp_ms=5) for i, value in enumerate(sent)
            ]
            for each in (rig, singly):
                while seen := each.requests():
                    if answer is not None:
                        for request in seen:
                            each.answer(request, **answer)
            each_row = future._each(sizes(sent, these), 5)
            assert each_row == [one.get(0) for one in futures]
            # Python 3.14 stores a tuple's hash in the tuple.
            assert all(metadata and hash(metadata) == hash(tuple(metadata)) for metadata in each_row)


def test_metadata_of_rows_needs_all_outcomes_and_matching_sizes(rig: Rig) -> None:
    future = rig.path.send_many("t", [b"1", b"2"])
    with pytest.raises(ValueError, match="not all of 2 rows for topic 't' have an outcome"):
        future._each(sizes([b"1", b"2"]), 5)
    rig.answer_all()
    for others in (numbered(1), numbered(3)):
        with pytest.raises(ValueError, match="sizes: must have one entry for each of 2 rows"):
            future._each(sizes(others), 5)


# Memory, metadata and closing


def test_a_call_waits_for_free_memory_and_keeps_the_order() -> None:
    with Rig({"t": [1]}, buffer_memory=4096, batch_size=1000, max_block_ms=20_000) as rig:
        values = numbered(1000)
        sending = Running(rig.path.send_many, "t", values)
        while sending.running:
            rig.answer_all()
        rig.answer_all()
        assert sending.outcome().get(0).ranges == [(0, 0, 1000)]
        assert rig.values("t") == values
        assert rig.pool.used_bytes == 0


@pytest.mark.slow
def test_a_call_that_makes_progress_may_take_longer_than_max_block_ms() -> None:
    """max_block_ms limits one wait for memory. The broker answers often enough; the whole call takes
    longer."""
    max_block_s = 4.0
    with Rig({"t": [1]}, buffer_memory=4096, batch_size=1000, max_block_ms=1000 * max_block_s) as rig:
        values = numbered(10_000)
        sending = Running(rig.path.send_many, "t", values)
        until_blocked(sending.thread)
        begun = time.monotonic()
        for _ in looks(1.5 * max_block_s, 0.1 * max_block_s):
            rig.requests()
            rig.answer(rig.pending[0])
        assert time.monotonic() - begun > max_block_s
        assert sending.running
        while sending.running:
            rig.answer_all()
        rig.answer_all()
        assert rig.values("t") == values
        assert sending.outcome().succeeded()


def test_rows_accepted_before_memory_ran_out_are_sent_and_reported() -> None:
    with Rig({"t": [1]}, buffer_memory=4096, batch_size=1000, max_block_ms=10) as rig:
        with pytest.raises(errors.BufferExhaustedError, match="max_block_ms=10") as raised:
            rig.path.send_many("t", numbered(1000))
        error = raised.value
        assert error.accepted is not None
        assert error.future is not None
        assert 0 < error.accepted < 1000
        assert len(error.future) == error.accepted
        rig.answer_all()
        assert rig.values("t") == numbered(error.accepted)
        assert error.future.get(0).ranges == [(0, 0, error.accepted)]
        assert len(error.future.get(0).rows()) == error.accepted
        assert rig.pool.used_bytes == 0
        twin = pickle.loads(pickle.dumps(error))
        assert (twin.accepted, twin.future) == (error.accepted, None)


def test_rows_that_never_fit_into_memory_are_refused_before_any_is_sent() -> None:
    with Rig({"t": [1]}, buffer_memory=4096) as rig:
        with pytest.raises(errors.BufferExhaustedError, match="buffer_memory is 4096"):
            rig.path.send_many("t", [b"x", b"y" * 10_000])
        assert rig.accumulator.counters()["records_appended"] == 0


def test_a_call_waits_for_the_metadata_of_its_topic() -> None:
    with Rig(max_block_ms=20_000) as rig:
        asked: list[str] = []
        rig.accumulator.on_topic_needed = asked.append
        parked = rig.send("t", b"parked")
        sending = Running(rig.path.send_many, "t", [b"a", b"b"])
        until(lambda: len(asked) > 1, "the topic is asked for")
        rig.sender.apply_topic("t", b"", [1])
        future = sending.outcome()
        rig.answer_all()
        assert rig.values("t") == [b"parked", b"a", b"b"]
        assert parked.succeeded()
        assert future.get(0).ranges == [(0, 1, 2)]
    with (
        Rig(max_block_ms=10) as rig,
        pytest.raises(errors.KafkaTimeoutError, match="no metadata of topic 't'"),
    ):
        rig.path.send_many("t", [b"a"])


def test_more_partitions_in_the_middle_of_a_call_are_used() -> None:
    with Rig({"t": [1]}, buffer_memory=8192, batch_size=1000, max_block_ms=20_000) as rig:
        keys = [b"%d" % i for i in range(1000)]
        sending = Running(rig.path.send_many, "t", numbered(1000), keys)
        until(lambda: rig.pool.waiting_threads, "the call waits for memory")
        rig.sender.apply_topic("t", b"", [1, 1, 1])
        while sending.running:
            rig.answer_all()
        rig.answer_all()
        metadata = sending.outcome().get(0)
        assert metadata.count == 1000
        assert {each.partition for each in metadata.ranges} == {0, 1, 2}
        rows = metadata.rows()
        for i in range(1000):
            assert rig.log["t", rows.partitions[i]][rows.offsets[i]].key == keys[i]


def test_after_a_close_during_a_call_a_future_reports_the_accepted_rows() -> None:
    with Rig({"t": [1]}, buffer_memory=4096, batch_size=1000, max_block_ms=20_000) as rig:
        sending = Running(rig.path.send_many, "t", numbered(1000))
        until(lambda: rig.pool.waiting_threads, "the call waits for memory")
        rig.accumulator.close()
        rig.answer_all()
        with pytest.raises(errors.ProducerClosedError) as raised:
            sending.outcome()
        rig.answer_all()
        error = raised.value
        assert error.future is not None
        assert error.future.get(0).count == error.accepted == len(rig.values("t"))
        assert rig.pool.used_bytes == 0
    with pytest.raises(errors.ProducerClosedError) as at_once:
        rig.path.send_many("t", [b"x"])
    assert at_once.value.accepted == 0


def test_calls_and_sends_of_several_threads_share_batches() -> None:
    with Rig({"t": [1, 1]}, buffer_memory=1 << 16, batch_size=2000, max_block_ms=20_000) as rig:
        futures: dict[str, list[Any]] = {"a": [], "b": [], "c": []}

        def many(name: str) -> None:
            for i in range(20):
                values = [b"%s %06d" % (name.encode(), 100 * i + k) for k in range(100)]
                keys = [b"%d" % (k % 5) for k in range(100)]
                futures[name].append(rig.path.send_many("t", values, keys))

        def single() -> None:
            for i in range(2000):
                futures["c"].append(rig.send("t", b"c %06d" % i, b"%d" % (i % 5)))

        calls = [Running(many, "a"), Running(many, "b"), Running(single)]
        while any(call.running for call in calls):
            rig.answer_all()
        rig.answer_all()
        values = [value or b"" for partition in range(2) for value in rig.values("t", partition)]
        assert sorted(values) == sorted(b"%s %06d" % (n, i) for n in (b"a", b"b", b"c") for i in range(2000))
        for name in "ab":
            for call, future in enumerate(futures[name]):
                rows = future.get(0).rows()
                for k in range(100):
                    record = rig.log["t", rows.partitions[k]][rows.offsets[k]]
                    assert record.value == b"%s %06d" % (name.encode(), 100 * call + k)
        assert rig.pool.used_bytes == 0


# ``RowOffsets`` made of bytes, as unpickling does it


@pytest.mark.parametrize(("rows", "bitmap"), [(1, 1), (8, 1), (9, 2), (16, 2), (17, 3)])
def test_a_bitmap_has_a_bit_for_each_row(rows: int, bitmap: int) -> None:
    made = RowOffsets(bytes(4 * rows), bytes(8 * rows), bytes(bitmap), rows)
    assert len(made) == rows
    with pytest.raises(ValueError, match="does not match the bitmap"):
        RowOffsets(bytes(4 * rows), bytes(8 * rows), bytes(bitmap - 1), rows)


@pytest.mark.parametrize(("partitions", "offsets"), [(4, 16), (8, 8), (3, 6), (0, 8)])
def test_each_row_has_a_partition_and_an_offset(partitions: int, offsets: int) -> None:
    with pytest.raises(ValueError, match=f"{partitions} bytes of partitions, {offsets} bytes of offsets"):
        RowOffsets(bytes(partitions), bytes(offsets), None, 0)


@pytest.mark.parametrize(("bitmap", "nulls"), [(None, 1), (b"\xff", 0)])
def test_a_bitmap_comes_with_missing_offsets_alone(bitmap: bytes | None, nulls: int) -> None:
    with pytest.raises(ValueError, match=f"{nulls} offsets are missing"):
        RowOffsets(bytes(4), bytes(8), bitmap, nulls)


RETRIABLE = errors.NotLeaderForPartitionError("moved")
FINAL = errors.RecordTooLargeError("large")


@pytest.mark.parametrize(
    ("causes", "retriable"),
    [([RETRIABLE], True), ([FINAL], False), ([RETRIABLE, FINAL], False), ([FINAL, RETRIABLE], False)],
)
def test_it_is_retriable_only_if_all_causes_are(causes: list[errors.KafkaError], retriable: bool) -> None:
    failures = [FailedRows(0, cause, array("q", [row])) for row, cause in enumerate(causes)]
    assert errors.BulkSendError("rows failed", failures=failures).retriable is retriable


def test_rows_of_several_batches_without_acks_are_one_range_for_each_partition() -> None:
    with Rig({"t": [1, 1]}, acks=0, batch_size=0) as rig:
        futures = [rig.path.send_many("t", [b"1", b"2", b"3"], partition=i) for i in range(2)]
        rig.requests()
        for partition, future in enumerate(futures):
            assert future.get(0).ranges == [(partition, -1, 3)]
            assert future.get(0).count == 3
            rows = pa.record_batch(future.get(0).rows()).to_pydict()
            assert rows == {"partition": [partition] * 3, "offset": [-1] * 3}


DUPLICATE = 46


def test_rows_without_an_offset_are_no_neighbours_of_those_that_begin_the_log() -> None:
    """An unknown offset is -1, one below the first of a partition."""
    with Rig({"t": [1]}, idempotent=True, batch_size=0) as rig:
        grant(rig)
        rig.send("t", b"hello")
        rig.step()
        rig.clock.advance_ms(1)
        rig.answer_all()
        rig.log.clear()
        future = rig.path.send_many("t", [b"1", b"2", b"3"])
        codes = [DUPLICATE, 0, 0]
        while rig.requests() or rig.pending:
            for seen in list(rig.pending):
                rig.answer(seen, codes.pop(0))
        assert not codes
        ranges = future.get(0).ranges
        assert ranges == [(0, -1, 1), (0, 0, 2)]
        assert list(future.get(0).rows().offsets) == [-1, 0, 1]
