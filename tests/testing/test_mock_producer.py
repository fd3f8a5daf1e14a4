"""MockProducer: a KafkaProducer whose records have the outcome that the test decides."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cyproducer import KafkaProducer, ProducerRecord, TopicPartition, errors
from cyproducer.testing import MockProducer
from tests.forked import in_child, needs_fork
from tools.harness.until import PATIENCE_S, until_blocked

REFUSED = errors.TopicAuthorizationFailedError("no")


def pending(**options: Any) -> MockProducer:
    return MockProducer(auto_complete=False, **options)


# Outcomes


def test_send_acknowledges_at_once_with_offsets_for_each_partition() -> None:
    with MockProducer(partitions={"t": 2}) as producer:
        futures = [producer.send("t", b"vv", b"k", partition=each) for each in (0, 1, 1)]

        got = [future.get(0) for future in futures]
        assert [(each.topic_partition, each.offset) for each in got] == [
            (TopicPartition("t", 0), 0),
            (TopicPartition("t", 1), 0),
            (TopicPartition("t", 1), 1),
        ]
        assert (got[0].serialized_key_size, got[0].serialized_value_size) == (1, 2)


def test_without_auto_complete_records_are_completed_one_at_a_time_in_order() -> None:
    with pending(partitions={"t": 3}) as producer:
        futures = [producer.send("t", b"v", partition=each) for each in (2, 0, 1)]

        assert [future.is_done for future in futures] == [False] * 3
        assert producer.complete_next()
        assert producer.error_next(REFUSED)
        assert [future.is_done for future in futures] == [True, True, False]
        assert futures[0].get(0).partition == 2
        with pytest.raises(errors.TopicAuthorizationFailedError, match="no"):
            futures[1].get(0)
        assert (producer.complete_next(), producer.complete_next(), producer.error_next(REFUSED)) == (
            True,
            False,
            False,
        )


def test_a_failed_record_takes_no_offset() -> None:
    with pending() as producer:
        futures = [producer.send("t", b"v") for _ in range(3)]
        producer.complete_next()
        producer.error_next(REFUSED)
        producer.complete_next()

        assert (futures[0].get(0).offset, futures[2].get(0).offset) == (0, 1)


def test_callbacks_have_run_when_complete_next_and_error_next_return() -> None:
    with pending() as producer:
        seen: list[Any] = []
        producer.send("t", b"v").add_callback(seen.append)
        producer.send("t", b"v").add_errback(seen.append)

        producer.complete_next()
        assert [each.offset for each in seen] == [0]
        producer.error_next(REFUSED)
        assert seen[1:] == [REFUSED]


def test_a_callback_may_complete_the_next_record() -> None:
    with pending() as producer:
        producer.send("t", b"1").add_callback(lambda _: producer.complete_next())
        second = producer.send("t", b"2")

        producer.complete_next()
        assert second.succeeded()


def test_callbacks_that_do_not_return_are_reported() -> None:
    release = threading.Event()
    with pending(max_block_ms=50) as producer:
        producer.send("t", b"v").add_callback(lambda _: release.wait(PATIENCE_S))
        with pytest.raises(errors.KafkaTimeoutError, match="did not return within max_block_ms=50"):
            producer.complete_next()
        release.set()


def test_error_next_takes_only_exceptions() -> None:
    with pending() as producer, pytest.raises(TypeError, match="error: must be an exception, not 'x'"):
        producer.error_next("x")  # type: ignore[arg-type]


def test_flush_acknowledges_what_is_pending_and_waits_for_callbacks() -> None:
    with pending() as producer:
        seen: list[Any] = []
        futures = [producer.send("t", b"v").add_callback(seen.append) for _ in range(3)]

        producer.flush()
        assert all(future.succeeded() for future in futures)
        assert len(seen) == 3


def test_close_acknowledges_what_is_pending() -> None:
    producer = pending()
    future = producer.send("t", b"v")
    producer.close()

    assert future.get(0).offset == 0


def test_close_without_time_fails_what_is_pending() -> None:
    producer = pending()
    future = producer.send("t", b"v")
    producer.close(0)

    with pytest.raises(errors.ProducerClosedError):
        future.get(0)


def test_a_thread_that_waits_for_a_record_is_woken() -> None:
    with pending() as producer, ThreadPoolExecutor() as threads:
        future = producer.send("t", b"v")
        got = threads.submit(future.get, PATIENCE_S)
        assert producer.complete_next()
        assert got.result(PATIENCE_S).offset == 0


def test_futures_can_be_awaited_and_waited_for_elsewhere() -> None:
    async def program(producer: KafkaProducer) -> int:
        return (await (await producer.send_async("t", b"v", b"k"))).offset

    with MockProducer() as producer:
        assert asyncio.run(program(producer)) == 0
        assert producer.send("t", b"v").as_concurrent().result(PATIENCE_S).offset == 1
        assert producer.history() == [ProducerRecord("t", b"v", b"k"), ProducerRecord("t", b"v")]


# The history


def test_history_has_the_records_as_given_and_as_serialized() -> None:
    with MockProducer(
        value_serializer=lambda value: str(value).encode(), key_serializer=str.encode
    ) as producer:
        future = producer.send("t", 12, "k", [("h", b"1")], partition=0, timestamp_ms=5)
        producer.send("u", None, "gone")

        first, second = producer.history()
        assert first == ProducerRecord("t", 12, "k", [("h", b"1")], 0, 5)
        assert (first.serialized_key, first.serialized_value, first.future) == (b"k", b"12", future)
        # As with KafkaProducer, a serializer is called for None, too.
        assert (second.topic, second.serialized_key, second.serialized_value) == ("u", b"gone", b"None")


def test_history_does_not_follow_later_changes_of_the_programs_objects() -> None:
    with MockProducer() as producer:
        value, headers = bytearray(b"before"), [("h", b"1")]
        producer.send("t", value, headers=headers)
        value[:] = b"after!"
        headers.clear()

        (record,) = producer.history()
        assert (record.serialized_value, record.headers) == (b"before", [("h", b"1")])


def test_clear_empties_the_history_only() -> None:
    with pending() as producer:
        future = producer.send("t", b"v")
        before = producer.history()
        producer.clear()

        assert (producer.history(), len(before), future.is_done) == ([], 1, False)
        assert producer.complete_next()


def test_a_record_that_was_not_accepted_is_not_in_the_history() -> None:
    with MockProducer(max_request_size=1000) as producer:
        with pytest.raises(errors.RecordTooLargeError):
            producer.send("t", b"x" * 2000).get(0)
        with pytest.raises(TypeError):
            producer.send("t", "text")
        assert producer.history() == []


def test_history_has_what_the_interceptors_made_of_the_record_and_they_see_the_outcome() -> None:
    class Interceptor:
        outcomes: list[Any]

        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return record._replace(value=record.value + b"!")

        def on_acknowledgement(self, metadata: Any, error: BaseException | None) -> None:
            self.outcomes.append((metadata.offset, error))

    Interceptor.outcomes = []
    with MockProducer(interceptors=[Interceptor()]) as producer:
        producer.send("t", b"v")

        assert producer.history() == [ProducerRecord("t", b"v!")]
        assert Interceptor.outcomes == [(0, None)]


def test_send_many_keeps_each_row_and_returns_one_future() -> None:
    with pending(partitions={"t": 2}) as producer:
        future = producer.send_many("t", [b"1", None, b"3"], [b"a", b"b", b"c"], partition=1, timestamp_ms=7)
        other = producer.send("t", b"4", partition=1)

        assert producer.history() == [
            ProducerRecord("t", b"1", b"a", None, 1, 7),
            ProducerRecord("t", None, b"b", None, 1, 7),
            ProducerRecord("t", b"3", b"c", None, 1, 7),
            ProducerRecord("t", b"4", partition=1),
        ]
        assert [record.serialized_value for record in producer.history()] == [b"1", None, b"3", b"4"]
        assert all(record.future is future for record in producer.history()[:3])
        assert (producer.complete_next(), producer.complete_next(), future.is_done) == (True, True, False)
        assert (producer.complete_next(), future.get(0).ranges) == (True, [(1, 0, 3)])
        assert not other.is_done


def test_send_many_acknowledges_at_once() -> None:
    with MockProducer() as producer:
        assert producer.send_many("t", [b"1", b"2"]).get(0).ranges == [(0, 0, 2)]


def test_send_all_is_kafka_producers() -> None:
    with MockProducer() as producer:
        good, bad = producer.send_all([("t", b"1"), {"topic": "t"}])
        assert (good.succeeded(), bad.failed()) == (True, True)


def test_send_arrow_says_what_to_use() -> None:
    with MockProducer() as producer, pytest.raises(errors.IllegalStateError, match="with an EmbeddedBroker"):
        producer.send_arrow("t", None)


# Errors on demand


def test_send_exception_is_raised_until_it_is_removed() -> None:
    with MockProducer() as producer:
        producer.send_exception = errors.BufferExhaustedError("full")
        for _ in range(2):
            with pytest.raises(errors.BufferExhaustedError, match="full"):
                producer.send("t", b"v")
        with pytest.raises(errors.BufferExhaustedError, match="full"):
            producer.send_many("t", [b"v"])
        assert producer.history() == []

        producer.send_exception = None
        assert producer.send("t", b"v").get(0).offset == 0


def test_flush_exception_is_raised_and_records_stay_pending() -> None:
    with pending() as producer:
        future = producer.send("t", b"v")
        producer.flush_exception = errors.KafkaTimeoutError("slow")
        with pytest.raises(errors.KafkaTimeoutError, match="slow"):
            producer.flush()
        assert not future.is_done

        producer.flush_exception = None
        producer.flush()
        assert future.succeeded()


# What it shares with KafkaProducer


@pytest.mark.parametrize("name", ["send", "send_async", "send_many", "flush", "metrics"])
def test_it_is_a_kafka_producer_with_the_same_signatures(name: str) -> None:
    def parameters(producer: type[KafkaProducer]) -> list[tuple[object, ...]]:
        found = inspect.signature(getattr(producer, name)).parameters.values()
        return [(each.name, each.kind, each.default) for each in found]

    assert issubclass(MockProducer, KafkaProducer)
    assert parameters(MockProducer) == parameters(KafkaProducer)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"topic": 5, "value": b"v"}, TypeError),
        ({"topic": "no such name!", "value": b"v"}, errors.InvalidTopicError),
        ({"topic": "t"}, ValueError),
        ({"topic": "t", "value": 5}, TypeError),
        ({"topic": "t", "value": b"v", "key": "text"}, TypeError),
        ({"topic": "t", "value": b"v", "headers": [("h", "text")]}, TypeError),
        ({"topic": "t", "value": b"v", "headers": 7}, TypeError),
        ({"topic": "t", "value": b"v", "partition": -1}, ValueError),
        ({"topic": "known", "value": b"v", "partition": 2}, errors.UnknownTopicOrPartitionError),
        ({"topic": "t", "value": b"v", "timestamp_ms": -1}, ValueError),
    ],
)
def test_send_refuses_what_kafka_producer_refuses(arguments: dict[str, Any], error: type[Exception]) -> None:
    with MockProducer(partitions={"known": 2}) as producer:
        with pytest.raises(error):
            producer.send(**arguments)
        assert producer.history() == []


def test_options_are_checked() -> None:
    with pytest.raises(errors.KafkaConfigurationError, match="linger"):
        MockProducer(linger=5)  # type: ignore[call-arg]


def test_a_closed_producer_refuses_records() -> None:
    producer = MockProducer(value_serializer=bytes)
    assert producer.bootstrap_connected()
    producer.close()
    producer.send_exception = ValueError()

    with pytest.raises(errors.ProducerClosedError):
        producer.send("t", b"v")
    with pytest.raises(errors.ProducerClosedError):
        producer.send_many("t", [b"v"])
    assert not producer.bootstrap_connected()
    producer.close()


def test_partitions_are_those_of_the_test() -> None:
    with MockProducer(partitions={"three": 3}) as producer:
        assert (producer.partitions_for("three"), producer.partitions_for("other")) == ({0, 1, 2}, {0})
        producer.set_partitions("three", 4)
        producer.set_partitions("new", 2)
        assert producer.send("three", b"v", partition=3).get(0).partition == 3
        assert (producer.partitions_for("three"), producer.partitions_for("new")) == ({0, 1, 2, 3}, {0, 1})


@pytest.mark.parametrize("number", [0, -1])
def test_a_topic_has_at_least_one_partition(number: int) -> None:
    with pytest.raises(ValueError, match=f"partitions of topic 't': {number}, must be at least 1"):
        MockProducer(partitions={"t": number})
    with MockProducer() as producer, pytest.raises(ValueError, match="must be at least 1"):
        producer.set_partitions("t", number)


def test_the_partitioner_chooses_the_partition() -> None:
    def last(key: bytes | None, partitions: list[int], available: list[int]) -> int:
        return partitions[-1]

    with MockProducer(partitioner=last, partitions={"t": 3}) as producer:
        assert producer.send("t", b"v", b"k").partition == 2
    with MockProducer(partitioner="murmur2", partitions={"t": 100}) as producer:
        # Kafka's murmur2 of b"21" is -973932308.
        assert producer.send("t", b"v", b"21").partition == (-973932308 & 0x7FFFFFFF) % 100


def test_it_is_always_ready_and_has_no_metrics() -> None:
    with MockProducer() as producer:
        producer.wait_ready(0)
        assert producer.bootstrap_connected()
        assert (producer.metrics(), producer.metrics(raw=True)) == ({}, {})


def test_callbacks_that_wait_do_not_block_send() -> None:
    release = threading.Event()
    with pending(max_block_ms=50, max_pending_callbacks=1) as producer:
        for _ in range(2):
            producer.send("t", b"v").add_callback(lambda _: release.wait(PATIENCE_S))
            with pytest.raises(errors.KafkaTimeoutError):
                producer.complete_next()
        producer.send("t", b"v")
        assert len(producer.history()) == 3
        release.set()


def test_compression_does_not_delay_an_outcome() -> None:
    with pending(compression_type="zstd") as producer:
        futures = [producer.send("t", b"v" * 1000) for _ in range(3)]
        producer.complete_next()
        assert [future.is_done for future in futures] == [True, False, False]


def test_no_number_of_pending_records_blocks() -> None:
    with pending(buffer_memory=100_000, max_block_ms=50) as producer:
        for _ in range(200):
            producer.send("t", b"v" * 1000)
        assert len(producer.history()) == 200


def test_threads_may_send_and_complete_at_the_same_time() -> None:
    producer = pending(partitions={"t": 3})
    with ThreadPoolExecutor(8) as threads:
        sent = [threads.submit(lambda: [producer.send("t", b"v") for _ in range(200)]) for _ in range(4)]
        completed = [threads.submit(lambda: [producer.complete_next() for _ in range(300)]) for _ in range(4)]
        futures = [future for each in sent for future in each.result(PATIENCE_S)]
        counted = sum(sum(each.result(PATIENCE_S)) for each in completed)
    assert counted == sum(future.succeeded() for future in futures)
    producer.close()
    offsets = sorted((future.get(0).partition, future.get(0).offset) for future in futures)
    each = [[offset for partition, offset in offsets if partition == number] for number in range(3)]
    assert each == [list(range(len(one))) for one in each]
    assert len(producer.history()) == len(futures) == 800


def test_close_waits_for_an_outcome_that_another_thread_gives() -> None:
    producer = pending()
    future = producer.send("t", b"v")
    closing = threading.Thread(target=producer.close, args=(0,))
    with producer._mock.lock:
        closing.start()
        until_blocked(closing)
        assert not future.is_done
    closing.join(PATIENCE_S)
    assert future.failed()


def test_it_starts_no_thread_and_opens_no_socket() -> None:
    program = """if True:
        import socket, sys, threading
        class Refused:
            def find_spec(self, name, *rest):
                if name.split(".")[0] == "confluent_kafka":
                    raise ImportError(name)
        sys.meta_path.insert(0, Refused())
        events = []
        sys.addaudithook(lambda event, _: events.append(event) if event.startswith("socket.") else None)
        from cyproducer.testing import MockProducer
        with MockProducer() as producer:
            print(producer.send("t", b"v").get(0).offset, threading.active_count(), events)
    """
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    assert done.stdout == "0 1 []\n"


def test_a_pickled_producer_keeps_its_settings() -> None:
    with MockProducer(auto_complete=False, partitions={"t": 2}, acks=1) as producer:
        for twin in (pickle.loads(pickle.dumps(producer)), copy.copy(producer)):
            with twin:
                assert (twin.auto_complete, twin.partitions_for("t"), twin.config.acks) == (False, {0, 1}, 1)


@needs_fork
def test_a_forked_child_sends_on_its_own() -> None:
    with pending() as producer:
        theirs = producer.send("t", b"parent")

        def child() -> None:
            mine = producer.send("t", b"child")
            producer.complete_next()
            assert mine.get(0).offset == 0
            assert len(producer.history()) == 2

        in_child(child)
        assert not theirs.is_done
        assert len(producer.history()) == 1


def test_the_memory_of_records_with_an_outcome_is_free() -> None:
    with pending() as producer:
        pool = producer._mock.accumulator.pool
        for _ in range(3):
            producer.send("t", b"v")
        assert pool.available_bytes < pool.total_bytes
        producer.complete_next()
        producer.error_next(REFUSED)
        producer.complete_next()
        assert pool.available_bytes == pool.total_bytes
