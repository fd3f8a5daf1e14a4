"""``send()`` up to the accumulator: arguments, buffers of every kind, sizes, and waiting for memory."""

import array
import ctypes
import mmap
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from cyproducer.errors import (
    BufferExhaustedError,
    InvalidTopicError,
    KafkaTimeoutError,
    ProducerClosedError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from cyproducer.futures.completion import CompletionQueue
from cyproducer.futures.delivery import RecordFuture
from cyproducer.send.extensions import Extensions
from cyproducer.send.send_path import SendPath, WouldBlock
from cyproducer.structs import ProducerRecord
from tools.harness.reference_records import Record, batch_of, encode_batch
from tools.harness.rig import Rig
from tools.harness.until import Running, interrupted, until

TYPE, VALUE = TypeError, ValueError


def sent(rig: Rig) -> Record:
    """Acknowledges the only record in flight, and returns it as the broker reads it."""
    (seen,) = rig.requests()
    ((record,),) = [batch.records for batch in seen.batches.values()]
    rig.answer(seen)
    return record


# Arguments


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"topic": None}, TYPE, "topic: must be a str, not NoneType"),
        ({"topic": b"t"}, TYPE, "topic: must be a str, not bytes"),
        ({"topic": ["t"]}, TYPE, "topic: must be a str, not list"),
        ({"value": "text"}, TYPE, "value: must be bytes.*not str.*value_serializer"),
        ({"value": 5}, TYPE, "value: must be bytes.*not int.*value_serializer"),
        ({"key": "text"}, TYPE, "key: must be bytes.*not str.*key_serializer"),
        ({"value": None}, VALUE, "a record needs a value or a key"),
        ({"partition": "0"}, TYPE, "partition: must be an int or None, not str"),
        ({"partition": 0.0}, TYPE, "partition: must be an int or None, not float"),
        ({"partition": -1}, VALUE, "partition=-1: must be >= 0"),
        ({"partition": 2**31}, VALUE, "partition=2147483648: must be .*below 2147483648"),
        ({"partition": 10**30}, VALUE, "partition=1000000000000000000000000000000"),
        ({"timestamp_ms": "now"}, TYPE, "timestamp_ms: must be an int or None, not str"),
        ({"timestamp_ms": 1.5}, TYPE, "timestamp_ms: must be an int or None, not float"),
        ({"timestamp_ms": -1}, VALUE, "timestamp_ms=-1: must be"),
        ({"timestamp_ms": 2**63}, VALUE, "timestamp_ms=9223372036854775808: must be"),
        ({"headers": 5}, TYPE, "headers: must be a list of .* pairs, not int"),
        (
            {"headers": {"a": b"1"}},
            TYPE,
            r"headers: must be a list of .* pairs, not dict: give its items\(\)",
        ),
        ({"headers": [("a",)]}, TYPE, "headers: each must be"),
        ({"headers": [("a", b"1", b"2")]}, TYPE, "headers: each must be"),
        ({"headers": [(b"a", b"1")]}, TYPE, "headers: each must be"),
        ({"headers": ["ab"]}, TYPE, "headers: each must be"),
        ({"headers": [("a", "1")]}, TYPE, "value of a header: must be bytes.*not str$"),
    ],
)
def test_an_invalid_argument_is_named_and_takes_no_memory(
    arguments: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with Rig({"t": [1]}) as rig:
        with pytest.raises(kind, match=text):
            rig.path.send(**{"topic": "t", "value": b"v"} | arguments)
        assert rig.requests() == []
        assert (rig.pool.used_bytes, rig.accumulator.counters()["records_appended"]) == (0, 0)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "a\n", "x" * 250, "a:b", "\x00"])
def test_an_illegal_topic_name_is_refused(name: str) -> None:
    with Rig() as rig:
        with pytest.raises(InvalidTopicError, match=re.escape(repr(name))):
            rig.send(name, b"v")
        assert rig.accumulator.parked_records == 0


@pytest.mark.parametrize("name", ["a", "...", "a.b_c-D9", "x" * 249, "_", "-"])
def test_a_legal_topic_name_is_accepted(name: str) -> None:
    with Rig({name: [1]}) as rig:
        rig.send(name, b"v")
        (seen,) = rig.requests()
        assert seen.places == [(name, 0)]


def test_topic_names_are_compared_by_their_text() -> None:
    class Name(str):
        pass

    with Rig({"topic": [1]}) as rig:
        for name in ("topic", "".join(["to", "pic"]), Name("topic")):
            future = rig.send(name, b"v")
            rig.answer_all()
            assert future.get(0).topic == "topic"
            assert type(future.get(0).topic) is str
        assert len(rig.values("topic")) == 3


def test_a_partition_that_the_topic_does_not_have_is_refused_at_once() -> None:
    with Rig({"t": [1, 1]}) as rig:
        with pytest.raises(UnknownTopicOrPartitionError, match=r"partition=2.*'t' has 2 partitions, 0 to 1"):
            rig.send("t", b"v", partition=2)
        assert rig.pool.used_bytes == 0


def test_the_callers_partition_and_timestamp_are_used() -> None:
    with Rig({"t": [1, 1, 1]}) as rig:
        for partition in (0, 2, 1):
            future = rig.send("t", b"v", b"k", partition=partition, timestamp_ms=partition)
            assert sent(rig).timestamp == partition
            assert future.get(0)[1] == partition


def test_a_record_without_a_timestamp_gets_the_wall_clock_time() -> None:
    with Rig({"t": [1]}) as rig:
        rig.clock.set_unix_ms(1_234_567)
        rig.send("t", b"v")
        assert sent(rig).timestamp == 1_234_567


def test_a_tombstone_is_a_key_without_a_value() -> None:
    with Rig({"t": [1]}) as rig:
        rig.send("t", None, b"k")
        record = sent(rig)
        assert (record.key, record.value) == (b"k", None)


def test_headers_of_every_form_arrive() -> None:
    with Rig({"t": [1]}) as rig:
        rig.send("t", b"v", headers=[("a", b"1"), ["a", bytearray(b"2")], ("", None), ("ü", memoryview(b""))])
        assert sent(rig).headers == (("a", b"1"), ("a", b"2"), ("", None), ("ü", b""))
        rig.send("t", b"v", headers=(("a", b"x" * 100_000), ("b", None)))
        assert sent(rig).headers == (("a", b"x" * 100_000), ("b", None))
        rig.send("t", b"v", headers=[(str(i), b"1") for i in range(1000)])
        assert [name for name, _ in sent(rig).headers] == [str(i) for i in range(1000)]
        nothing: list[Any] = [None, [], ()]
        for none in nothing:
            rig.send("t", b"v", headers=none)
            assert sent(rig).headers == ()


def test_the_header_count_is_that_of_the_written_headers() -> None:
    """A header's value may change the list while it is read: the record stays valid."""

    class Growing(list[Any]):
        def __len__(self) -> int:
            return 7

    with Rig({"t": [1]}) as rig:
        rig.send("t", b"v", headers=Growing([("a", b"1"), ("b", b"2")]))
        assert sent(rig).headers == (("a", b"1"), ("b", b"2"))


# Buffers


def mapped(data: bytes) -> mmap.mmap:
    memory = mmap.mmap(-1, len(data))
    memory[:] = data
    return memory


BUFFERS: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "bytearray": bytearray,
    "memoryview": memoryview,
    "slice": lambda data: memoryview(b"<" + data + b">")[1:-1],
    "array": lambda data: array.array("B", data),
    "words": lambda data: array.array("I", data),
    "mmap": mapped,
    "ctypes": lambda data: (ctypes.c_char * len(data)).from_buffer_copy(data),
    "matrix": lambda data: memoryview(data).cast("B", (2, len(data) // 2)),
}


@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize("place", ["value", "key", "header"])
def test_any_contiguous_buffer_is_accepted(kind: str, place: str) -> None:
    data = bytes(range(256))
    buffer = BUFFERS[kind](data)
    with Rig({"t": [1]}) as rig:
        if place == "header":
            rig.send("t", b"v", headers=[("h", buffer)])
            assert sent(rig).headers == (("h", data),)
        else:
            rig.send("t", **{place: buffer})
            assert getattr(sent(rig), place) == data
    if isinstance(buffer, mmap.mmap):
        buffer.close()


@pytest.mark.parametrize("place", ["value", "key", "header"])
def test_a_non_contiguous_buffer_is_refused(place: str) -> None:
    buffer = memoryview(b"abcdef")[::2]
    with Rig({"t": [1]}) as rig:
        arguments = {"headers": [("h", buffer)]} if place == "header" else {place: buffer}
        with pytest.raises(TypeError, match=f"{place}.*contiguous.*memoryview"):
            rig.path.send(**{"topic": "t", "value": b"v"} | arguments)  # type: ignore[arg-type]
        assert rig.pool.used_bytes == 0


def test_a_mutable_buffer_is_copied_and_released_before_send_returns() -> None:
    value, key, header = bytearray(b"value"), bytearray(b"key"), bytearray(b"header")
    for topics in ({"t": [1]}, {}):
        with Rig(topics) as rig:
            value[:], key[:], header[:] = b"value", b"key", b"header"
            rig.send("t", value, key, headers=[("h", header)])
            for buffer in (value, key, header):
                buffer[:] = bytes(len(buffer))
                # Raises BufferError if the buffer is still borrowed.
                buffer.append(0)
                buffer.pop()
            rig.sender.apply_topic("t", b"", [1])
            assert sent(rig) == Record(0, 1_700_000_000_000, b"key", b"value", (("h", b"header"),))


@pytest.mark.parametrize("bad", [{"key": 5}, {"headers": [("h", 5)]}, {"partition": "x"}, {"partition": 9}])
def test_a_buffer_is_released_if_another_argument_is_invalid(bad: dict[str, Any]) -> None:
    value = bytearray(b"value")
    with Rig({"t": [1]}) as rig:
        with pytest.raises((TypeError, UnknownTopicOrPartitionError)):
            rig.send("t", value, **bad)
        value.append(0)


# Sizes


def whole_size(value: bytes, **options: Any) -> int:
    return len(encode_batch(batch_of([Record(0, 0, None, value, **options)])))


def test_a_record_that_is_too_large_fails_its_future_and_the_error_has_both_sizes() -> None:
    with Rig({"t": [1]}, max_request_size=1000) as rig:
        future = rig.send("t", bytes(2000))
        error = future.exception
        assert isinstance(error, RecordTooLargeError)
        assert error.maybe_written is False
        assert (error.record_size, error.limit) == (whole_size(bytes(2000)), 1000)
        assert str(whole_size(bytes(2000))) in str(error)
        assert "max_request_size is 1000" in str(error)
        assert future.failed()
        assert (rig.pool.used_bytes, rig.requests()) == (0, [])
        # The next record is sent.
        assert rig.send("t", b"small").is_done is False


@pytest.mark.parametrize("topics", [{"t": [1]}, {}])
def test_a_record_larger_than_all_memory_is_refused_without_waiting(topics: dict[str, list[int]]) -> None:
    with Rig(topics, buffer_memory=10_000, max_request_size=100_000) as rig:
        began = time.monotonic()
        with pytest.raises(BufferExhaustedError, match=r"needs \d+ bytes and buffer_memory is 10000"):
            rig.send("t", bytes(20_000))
        assert time.monotonic() - began < 5
        assert rig.pool.used_bytes == 0


# Closed


@pytest.mark.parametrize("topics", [{"t": [1]}, {}])
def test_a_closed_producer_accepts_nothing(topics: dict[str, list[int]]) -> None:
    with Rig(topics) as rig:
        rig.accumulator.close()
        with pytest.raises(ProducerClosedError, match="was not accepted"):
            rig.send("t", b"v")
        assert rig.pool.used_bytes == 0
        assert rig.accumulator.incomplete_batches + rig.accumulator.parked_records == 0


def test_send_without_a_constructor_raises_an_error_that_says_so() -> None:
    class Unmade(SendPath):
        def __init__(self) -> None:
            self.touched = True

    with pytest.raises(ProducerClosedError, match="constructor"):
        Unmade().send("t", b"v")


def test_a_serializer_makes_the_bytes_that_are_sent() -> None:
    with Rig({"t": [1]}, extensions=Extensions(value_serializer=str.encode)) as rig:
        rig.send("t", "text", b"k", timestamp_ms=9)
        assert sent(rig) == Record(0, 9, b"k", b"text")


def test_send_all_takes_tuples_of_any_length() -> None:
    whole = ("t", b"v", b"k", [("h", b"1")], 1, 9)
    with Rig({"t": [1, 1]}) as rig:
        rig.connect(1)
        futures = rig.path.send_all(
            [whole[:size] for size in range(8)] + [(*whole, 5), ProducerRecord(*whole)]
        )
        errors = [type(future.exception) for future in futures if future.failed()]
        # Without a topic, without a value, too long.
        assert errors == [TypeError, ValueError, TypeError]
        rig.accumulator.flush(0)
        rig.answer_all()
        records = [record for found in rig.log.values() for record in found]
        assert len(records) == 7
        assert [record.headers for record in records].count((("h", b"1"),)) == 5
        assert rig.log["t", 1][-1].timestamp == 9


# Waiting for memory

KIB = 1024


def full(rig: Rig) -> list[RecordFuture]:
    """Sends records until another one would have to wait."""
    futures = []
    while rig.pool.available_bytes >= KIB:
        futures.append(rig.send("t", bytes(900)))
    return futures


@pytest.mark.parametrize("unknown", [False, True])
def test_the_wait_for_memory_times_out_after_max_block_ms_with_its_own_error(unknown: bool) -> None:
    with Rig({"t": [1]}, buffer_memory=8 * KIB, batch_size=KIB, max_block_ms=150) as rig:
        full(rig)
        used = rig.pool.used_bytes
        began = time.monotonic()
        with pytest.raises(
            BufferExhaustedError, match=r"max_block_ms=150: buffer_memory=8192 is held by"
        ) as caught:
            rig.send("other" if unknown else "t", bytes(900))
        assert 0.15 <= time.monotonic() - began < 5
        assert isinstance(caught.value, KafkaTimeoutError)
        assert (rig.pool.used_bytes, rig.pool.waiting_threads, rig.pool.exhausted_total) == (used, 0, 1)
        rig.answer_all()
        assert rig.pool.used_bytes == 0


def test_released_memory_ends_the_wait() -> None:
    with Rig({"t": [1]}, buffer_memory=8 * KIB, batch_size=KIB) as rig:
        before = full(rig)
        sending = Running(rig.send, "t", bytes(901))
        until(lambda: rig.pool.waiting_threads == 1, "the wait for memory")
        assert sending.running
        rig.answer_all()
        future = sending.outcome()
        rig.answer_all()
        assert [f.get(0).offset for f in [*before, future]] == list(range(len(before) + 1))
        assert rig.pool.used_bytes == 0


def test_a_signal_ends_the_wait_for_memory() -> None:
    with Rig({"t": [1]}, buffer_memory=8 * KIB, batch_size=KIB) as rig:
        full(rig)
        used = rig.pool.used_bytes
        with interrupted():
            rig.send("t", bytes(900))
        assert (rig.pool.used_bytes, rig.pool.waiting_threads) == (used, 0)


@pytest.mark.parametrize("topic", ["t", "unknown"])
def test_closing_ends_the_wait_for_memory(topic: str) -> None:
    with Rig({"t": [1]}, buffer_memory=8 * KIB, batch_size=KIB) as rig:
        full(rig)
        sending = Running(rig.send, topic, bytes(900))
        until(lambda: rig.pool.waiting_threads == 1, "the wait for memory")
        rig.accumulator.close()
        rig.sender.abort(ProducerClosedError("closed"))
        with pytest.raises(ProducerClosedError, match="was not accepted"):
            sending.outcome()
        assert rig.pool.used_bytes == 0


def test_a_callback_does_not_wait_for_callbacks() -> None:
    """It would wait for itself: ``send()`` does not either."""
    accepted: list[RecordFuture] = []

    with Rig({"t": [1]}, completions=CompletionQueue(None, 1)) as rig:

        def send() -> RecordFuture:
            return rig.path._send_at_once("t", b"more", None, None, None, None, None)

        rig.send("t", b"v").add_callback(lambda metadata: accepted.append(send()))
        rig.answer_all()
        assert rig.completions.backlog == 1
        with pytest.raises(WouldBlock) as blocked:
            send()
        assert blocked.value.what == "callbacks"
        rig.run_callbacks()
        (future,) = accepted
        rig.answer_all()
        assert future.get(0).offset == 1
