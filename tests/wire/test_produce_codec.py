"""Produce requests that the sender writes, and responses that it reads, in all versions."""

import struct
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from cyproducer import errors
from cyproducer.futures.delivery import RecordFuture
from tools.harness.reference_records import (
    PartitionResponse,
    ProduceRequest,
    Topic,
    decode_batches,
    encode_produce_response,
)
from tools.harness.rig import HookResult, Rig, Seen

VERSIONS = range(3, 14)
FLEXIBLE = range(9, 14)
IDS = {name: uuid.UUID(int=number << 64 | number) for number, name in enumerate(("aa", "b", "ccc"), 7)}
Answers = list[tuple[Topic, list[PartitionResponse]]]


@contextmanager
def rig_at(version: int, acks: int = -1) -> Iterator[Rig]:
    """Three topics with three partitions each, all on broker 1; failed batches are retried after 100 ms."""

    def retry(topic: str, partition: int, attempts: int, error: BaseException, now_ms: float) -> HookResult:
        return now_ms + 100, None

    with Rig(produce_version=version, acks=acks, linger_ms=1, seed=version) as rig:
        rig.fates.hook = retry
        for name, topic_id in IDS.items():
            rig.sender.apply_topic(name, topic_id.bytes, [1, 1, 1])
        yield rig


def send_to_all(rig: Rig) -> dict[tuple[str, int], RecordFuture]:
    """Sends one record to each partition, in another order than that of the request."""
    futures = {}
    for name, partition in [(n, p) for p in (1, 2, 0) for n in ("b", "aa", "ccc")]:
        futures[name, partition] = rig.send(name, f"{name} {partition}".encode(), partition=partition)
    rig.clock.advance_ms(1)
    return futures


def only(rig: Rig) -> Seen:
    (seen,) = rig.requests()
    return seen


def topic_of(request: ProduceRequest, name: str) -> Topic:
    return IDS[name] if request.api_version >= 13 else name


def answers_to(request: ProduceRequest) -> Answers:
    """Success for all partitions, each with its own offset."""
    return [
        (topic, [PartitionResponse(index, base_offset=100 * place + index) for index, _ in partitions])
        for place, (topic, partitions) in enumerate(request.topics, 1)
    ]


def respond(rig: Rig, seen: Seen, response: bytes) -> None:
    rig.pending.remove(seen)
    rig.peers[1].sock.sendall(response)
    rig.step()


def encode(request: ProduceRequest, answers: Answers, throttle_ms: int = 0) -> bytes:
    return encode_produce_response(request.api_version, request.correlation_id, answers, throttle_ms)


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


# Requests


@pytest.mark.parametrize("acks", [-1, 0, 1])
@pytest.mark.parametrize("version", VERSIONS)
def test_the_reference_decodes_a_request(version: int, acks: int) -> None:
    with rig_at(version, acks) as rig:
        send_to_all(rig)
        seen = only(rig)
        request = seen.request
        assert (request.api_version, request.client_id, request.transactional_id) == (version, "rig", None)
        assert (request.acks, request.timeout_ms) == (acks, 29_000)
        found = {
            (topic, index): [
                record.value for batch in decode_batches(data or b"") for record in batch.records
            ]
            for topic, partitions in request.topics
            for index, data in partitions
        }
        assert found == {
            (topic_of(request, name), partition): [f"{name} {partition}".encode()]
            for name in IDS
            for partition in range(3)
        }
        # Each topic occurs once.
        assert len(request.topics) == len(IDS)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_reference_decodes_a_request_for_one_partition(version: int) -> None:
    with rig_at(version) as rig:
        rig.send("ccc", b"x" * 200, partition=2)
        rig.clock.advance_ms(1)
        ((topic, ((index, data),)),) = only(rig).request.topics
        assert (topic, index) == (IDS["ccc"] if version >= 13 else "ccc", 2)
        (batch,) = decode_batches(data or b"")
        assert batch.records[0].value == b"x" * 200


# Responses


def shuffled(answers: Answers) -> Answers:
    return [(topic, partitions[::-1]) for topic, partitions in answers[::-1]]


def scattered(answers: Answers) -> Answers:
    """Each topic's partitions one by one, the last one first, with other topics between them."""
    return [(topic, [partitions[at]]) for at in (2, 0, 1) for topic, partitions in answers[::-1]]


def one_by_one(answers: Answers) -> Answers:
    return [(topic, [answer]) for topic, partitions in answers for answer in partitions[::-1]]


@pytest.mark.parametrize("order", [list, shuffled, scattered, one_by_one])
@pytest.mark.parametrize("version", VERSIONS)
def test_each_partition_gets_its_own_outcome(version: int, order: Callable[[Answers], Answers]) -> None:
    with rig_at(version) as rig:
        futures = send_to_all(rig)
        seen = only(rig)
        answers = answers_to(seen.request)
        respond(rig, seen, encode(seen.request, order(answers), throttle_ms=17))
        expected = {(topic, a.partition): a.base_offset for topic, parts in answers for a in parts}
        for (name, partition), future in futures.items():
            assert future.get(0).offset == expected[topic_of(seen.request, name), partition]
        assert rig.control.broken == []


def test_a_response_has_the_topic_id_of_its_request_even_if_the_topic_was_recreated() -> None:
    with rig_at(13) as rig:
        futures = send_to_all(rig)
        seen = only(rig)
        rig.sender.apply_topic("b", uuid.UUID(int=99).bytes, [1, 1, 1])
        respond(rig, seen, encode(seen.request, answers_to(seen.request)))
        assert all(future.succeeded() for future in futures.values())
        assert rig.control.broken == []

        futures = send_to_all(rig)
        again = only(rig)
        assert {topic for topic, _ in again.request.topics} == {IDS["aa"], IDS["ccc"], uuid.UUID(int=99)}
        respond(rig, again, encode(again.request, answers_to(again.request)))
        assert all(future.succeeded() for future in futures.values())


@pytest.mark.parametrize("version", VERSIONS)
def test_all_fields_of_a_partition_response_are_read(version: int) -> None:
    refused: list[tuple[str, int, str]] = []

    def fail(topic: str, partition: int, attempts: int, error: BaseException, now_ms: float) -> HookResult:
        refused.append((topic, partition, str(error.args[0])))
        return None, error

    with rig_at(version) as rig:
        rig.fates.hook = fail
        futures = send_to_all(rig)
        seen = only(rig)
        full = PartitionResponse(0, 0, 2**40, 1_700_000_000_123, log_start_offset=2**41)
        bad = PartitionResponse(1, error_code=87, log_start_offset=5)
        if version >= 8:
            bad = bad._replace(
                record_errors=[(0, "too long: ä"), (1, None), (2, "")], error_message="no such thing: ß"
            )
        if version >= 10:
            bad = bad._replace(current_leader=(3, 17))
        answers: Answers = [
            (topic, [bad if index == 1 else full._replace(partition=index) for index, _ in partitions])
            for topic, partitions in seen.request.topics
        ]
        endpoints = [(3, "broker-3", 9092, None), (4, "broker-4", 9093, "rack")] if version >= 10 else []
        respond(
            rig,
            seen,
            encode_produce_response(version, seen.request.correlation_id, answers, 5, endpoints),
        )
        for (_, partition), future in futures.items():
            if partition == 1:
                assert isinstance(future.exception, errors.InvalidRecordError)
            else:
                assert (future.get(0).offset, future.get(0).timestamp) == (2**40, 1_700_000_000_123)
        expected = ["no such thing: ß"] * 3 if version >= 8 else [f"{name}-1" for name in IDS]
        assert sorted(text for _, _, text in refused) == expected
        assert sorted((topic, partition) for topic, partition, _ in refused) == [(name, 1) for name in IDS]


@pytest.mark.parametrize("version", FLEXIBLE)
@pytest.mark.parametrize("size", [32767, 32768])
def test_a_message_is_no_longer_than_kafka_allows(version: int, size: int) -> None:
    """What becomes an exception's text would otherwise have the size of the response."""
    with rig_at(version) as rig:
        futures = send_to_all(rig)
        seen = only(rig)
        answers = answers_to(seen.request)
        answers[0][1][0] = answers[0][1][0]._replace(error_code=87, error_message="x" * size)
        respond(rig, seen, encode(seen.request, answers))
        assert bool(rig.control.broken) is (size > 32767)
        assert sum(future.succeeded() for future in futures.values()) == (8 if size == 32767 else 0)


@pytest.mark.parametrize("version", FLEXIBLE)
def test_unknown_tags_are_skipped_everywhere(version: int) -> None:
    """Encoded by hand, since the reference lacks them: tags in header, partition, topic and response."""
    tags = bytes([2, 9, 3, 1, 2, 3, 0x85, 0x01, 0])
    with rig_at(version) as rig:
        future = rig.send("aa", b"1", partition=1)
        rig.clock.advance_ms(1)
        seen = only(rig)
        name = IDS["aa"].bytes if version >= 13 else b"\x03aa"
        record_errors = bytes([2]) + struct.pack(">i", 0) + b"\x02x" + tags
        body = struct.pack(">i", seen.request.correlation_id) + tags + b"\x02" + name + b"\x02"
        body += struct.pack(">ihqqq", 1, 0, 77, -1, 0) + record_errors + b"\x00" + tags + tags
        body += struct.pack(">i", 0) + tags
        respond(rig, seen, framed(body))
        assert future.get(0).offset == 77


# Invalid responses


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_truncated_at_any_byte_closes_the_connection_and_batches_are_resent(
    version: int,
) -> None:
    with rig_at(version) as rig:
        futures = send_to_all(rig)
        seen = only(rig)
        whole = encode(seen.request, answers_to(seen.request))[4:]
        for size in range(4, len(whole)):
            respond(rig, seen, framed(struct.pack(">i", seen.request.correlation_id) + whole[4:size]))
            ((node, cause),) = rig.control.broken
            rig.control.broken.clear()
            assert (node, type(cause)) == (1, errors.KafkaProtocolError)
            assert f"Produce v{version} response of broker-1, {size} bytes, is malformed" in str(cause)
            assert not any(future.is_done for future in futures.values())
            rig.clock.advance_ms(100)
            seen = only(rig)
            assert len(seen.batches) == 9
        respond(rig, seen, encode(seen.request, answers_to(seen.request)))
        assert all(future.succeeded() for future in futures.values())


def without_a_partition(answers: Answers) -> Answers:
    return [(answers[0][0], answers[0][1][:-1]), *answers[1:]]


def without_a_topic(answers: Answers) -> Answers:
    return answers[1:]


def with_a_partition_twice(answers: Answers) -> Answers:
    return [(answers[0][0], [*answers[0][1][:-1], answers[0][1][0]]), *answers[1:]]


def with_a_partition_too_many(answers: Answers) -> Answers:
    return [(answers[0][0], [*answers[0][1], answers[0][1][0]]), *answers[1:]]


def with_another_partition(answers: Answers) -> Answers:
    return [(answers[0][0], [*answers[0][1][:-1], PartitionResponse(9)]), *answers[1:]]


def with_a_topic_twice(answers: Answers) -> Answers:
    return [*answers, answers[0]]


def with_more_topics_than_batches(answers: Answers) -> Answers:
    return [*answers, *[(answers[0][0], [])] * 7]


def with_offsets_beyond_64_bits(answers: Answers) -> Answers:
    last = answers[0][1][0]._replace(base_offset=2**63 - 1)
    return [(answers[0][0], [last, *answers[0][1][1:]]), *answers[1:]]


def with_another_topic(answers: Answers) -> Answers:
    other: Topic = "zz" if isinstance(answers[0][0], str) else uuid.UUID(int=1)
    return [(other, answers[0][1]), *answers[1:]]


def with_nothing(answers: Answers) -> Answers:
    return []


WRONG = [
    without_a_partition,
    without_a_topic,
    with_a_partition_twice,
    with_a_partition_too_many,
    with_another_partition,
    with_a_topic_twice,
    with_more_topics_than_batches,
    with_offsets_beyond_64_bits,
    with_another_topic,
    with_nothing,
]


@pytest.mark.parametrize("change", WRONG)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_that_does_not_fit_the_request_closes_the_connection(
    version: int, change: Callable[[Answers], Answers]
) -> None:
    with rig_at(version) as rig:
        futures = send_to_all(rig)
        seen = only(rig)
        respond(rig, seen, encode(seen.request, change(answers_to(seen.request))))
        ((node, cause),) = rig.control.broken
        assert (node, type(cause)) == (1, errors.KafkaProtocolError)
        assert not any(future.is_done for future in futures.values())
        rig.clock.advance_ms(100)
        seen = only(rig)
        respond(rig, seen, encode(seen.request, answers_to(seen.request)))
        assert all(future.succeeded() for future in futures.values())


@pytest.mark.parametrize("version", VERSIONS)
def test_trailing_bytes_close_the_connection(version: int) -> None:
    with rig_at(version) as rig:
        send_to_all(rig)
        seen = only(rig)
        respond(rig, seen, framed(encode(seen.request, answers_to(seen.request))[4:] + b"\x00"))
        ((_, cause),) = rig.control.broken
        assert type(cause) is errors.KafkaProtocolError


@pytest.mark.slow
@pytest.mark.parametrize("version", [3, 5, 8, 9, 10, 13])
@pytest.mark.parametrize("byte", [0x00, 0x01, 0x7F, 0x80, 0xFF])
def test_one_wrong_byte_anywhere_gives_an_outcome_or_closes_the_connection(version: int, byte: int) -> None:
    with rig_at(version) as rig:
        futures = list(send_to_all(rig).values())
        seen = only(rig)
        size = len(encode(seen.request, answers_to(seen.request)))
        survived = 0
        for at in range(8, size):
            wrong = bytearray(encode(seen.request, answers_to(seen.request)))
            wrong[at] = byte
            respond(rig, seen, bytes(wrong))
            done = [future for future in futures if future.is_done]
            # A response is accepted or rejected as a whole. Batches with an error are retried here, so their
            # futures stay pending.
            assert not (rig.control.broken and done)
            rig.control.broken.clear()
            survived += bool(done)
            if done:
                throttled_ms = rig.peers[1].connection.throttled_ms(rig.clock.monotonic_ns() / 1e6)
                rig.clock.advance_ms(100 + throttled_ms)
                for left in rig.requests():
                    respond(rig, left, encode(left.request, answers_to(left.request)))
                assert all(future.succeeded() for future in futures)
                futures = list(send_to_all(rig).values())
            else:
                rig.clock.advance_ms(100)
            seen = only(rig)
        # Offsets, timestamps, error codes and the throttle time may have any value.
        assert 0 < survived < size
