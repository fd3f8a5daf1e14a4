"""The sender loop, step by step: the batches of a request, and partial writes and reads."""

import contextlib
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cyproducer import errors
from tests.scripted.sender_steps import cause_of_the_end, give, narrow, one, response_to
from tools.harness.reference_records import PartitionResponse, decode_produce_request, encode_produce_response
from tools.harness.rig import Rig

WAIT_S = 60.0
# With batch_size 1000, a batch has room for one record of 600 bytes: the next record closes it.


# The batches of a request


@pytest.mark.parametrize("most", [1, 2, 5])
def test_no_more_requests_are_in_flight_than_allowed(most: int) -> None:
    with Rig({"t": [1]}, max_in_flight=most, batch_size=1000) as rig:
        futures = [rig.send("t", b"%d" % i + bytes(600)) for i in range(8)]
        first = rig.requests()
        assert [len(seen.batches) for seen in first] == [1] * most
        assert rig.requests() == []
        # Each response makes room for one request.
        rig.answer(first[0])
        assert len(rig.requests()) == 1
        rig.answer_all()
        assert [future.get(0).offset for future in futures] == list(range(8))


def test_all_ready_partitions_of_a_broker_share_a_request() -> None:
    with Rig({"t": [1, 1, 2, 1], "u": [2, 1]}) as rig:
        places = [("t", 3), ("u", 1), ("t", 0), ("u", 0), ("t", 2), ("t", 1)]
        for topic, partition in places:
            rig.send(topic, b"x", partition=partition)
        # In this order in the request, whose topics must not be named twice.
        seen = {request.node: request.places for request in rig.requests()}
        assert seen == {1: [("t", 0), ("t", 1), ("t", 3), ("u", 1)], 2: [("t", 2), ("u", 0)]}


def test_a_request_takes_the_oldest_batch_of_each_partition() -> None:
    with Rig({"t": [1, 1]}, batch_size=1000) as rig:
        for i in range(3):
            for partition in (0, 1):
                rig.send("t", b"%d" % i + bytes(600), partition=partition)
        # The last batch of each partition is open, and gathers records until a response arrives.
        values = [[seen.values(partition) for partition in (0, 1)] for seen in rig.requests()]
        assert values == [[[b"%d" % i + bytes(600)]] * 2 for i in range(2)]
        rig.answer_all()
        assert rig.values("t", 0) == rig.values("t", 1) == [b"%d" % i + bytes(600) for i in range(3)]


def test_1500_partitions_are_sent_in_requests_of_at_most_1024_batches() -> None:
    with Rig({"t": [1] * 1500}) as rig:
        futures = [rig.send("t", b"%d" % partition, partition=partition) for partition in range(1500)]
        requests = rig.requests()
        assert sorted(len(seen.batches) for seen in requests) == [476, 1024]
        assert {seen.values(p)[0] for seen in requests for _, p in seen.places} == {
            b"%d" % i for i in range(1500)
        }
        rig.answer_all()
        assert all(future.succeeded() for future in futures)


def test_correlation_ids_count_up_per_connection() -> None:
    with Rig({"t": [1, 2]}, batch_size=1000) as rig:
        for partition in (0, 1):
            for _ in range(4):
                rig.send("t", bytes(600), partition=partition)
        requests = rig.requests()
        for node in (1, 2):
            assert [s.request.correlation_id for s in requests if s.node == node] == [1, 2, 3]


# Writing


def test_a_request_written_in_pieces_arrives_whole() -> None:
    with Rig({"t": [1] * 40}, max_request_size=1 << 20, batch_size=20_000) as rig:
        peer = rig.connect(1)
        narrow(peer)
        values = [bytes([i]) * (500 * i) for i in range(1, 41)]
        futures = [rig.send("t", value, partition=i) for i, value in enumerate(values)]
        got, steps = bytearray(), 0
        while len(got) < 4 or len(got) < 4 + int.from_bytes(got[:4], "big"):
            rig.step()
            try:
                got += peer.sock.recv(3001)
            except BlockingIOError:
                pytest.fail("the sender stopped writing")
            steps += 1
        assert steps > 20
        request = decode_produce_request(bytes(got))
        peer.received += got
        # The rig reads the received bytes and finds all batches in them.
        seen = one(rig)
        assert seen.request == request
        assert [seen.values(i) for i in range(40)] == [[value] for value in values]
        rig.answer(seen)
        assert all(future.succeeded() for future in futures)


def test_other_requests_wait_behind_a_partly_written_one() -> None:
    with Rig({"t": [1]}, batch_size=500_000) as rig:
        peer = rig.connect(1)
        narrow(peer)
        rig.send("t", bytes(400_000))
        rig.step()
        others = [struct.pack(">i", 8) + struct.pack(">hhi", 3, 1, i) for i in (70, 71)]
        for other in others:
            peer.connection.send(3, 1, 70, other, 0)
            rig.sender.flush_connection(peer.connection)
        got = bytearray()
        with contextlib.suppress(BlockingIOError):
            while data := peer.sock.recv(100_000):
                got += data
                rig.step()
        size = 4 + int.from_bytes(got[:4], "big")
        assert size > 400_000
        assert got[size:] == b"".join(others)


def test_a_response_before_the_whole_request_is_written_closes_the_connection() -> None:
    with Rig({"t": [1]}, batch_size=500_000) as rig:
        peer = rig.connect(1)
        narrow(peer)
        future = rig.send("t", bytes(400_000))
        rig.step()
        got = peer.sock.recv(1000)
        correlation_id = int.from_bytes(got[8:12], "big")
        give(rig, encode_produce_response(9, correlation_id, [("t", [PartitionResponse(0, base_offset=5)])]))
        cause = cause_of_the_end(rig)
        assert isinstance(cause, errors.CorrelationIdError)
        assert "responded before the whole request was sent" in str(cause)
        # The response is not trusted: the batch is sent again.
        assert not future.is_done
        rig.clock.advance_ms(100)
        rig.answer(one(rig))
        assert future.get(0).offset == 0


@pytest.mark.parametrize("written", [0, 1000])
def test_batches_are_retried_after_the_connection_fails_during_a_write(written: int) -> None:
    with Rig({"t": [1]}, batch_size=500_000) as rig:
        peer = rig.connect(1)
        narrow(peer)
        future = rig.send("t", bytes(400_000))
        rig.step()
        if written:
            peer.sock.recv(written)
        rig.cut(1)
        assert isinstance(cause_of_the_end(rig), errors.KafkaConnectionError)
        rig.clock.advance_ms(100)
        rig.answer(one(rig))
        assert future.get(0).offset == 0


# Reading


def test_a_response_that_arrives_byte_by_byte_is_read() -> None:
    with Rig({"t": [1, 1]}) as rig:
        futures = [rig.send("t", b"x", partition=partition) for partition in (0, 1)]
        response = response_to(one(rig), offset=33)
        for at in range(len(response)):
            assert not any(future.is_done for future in futures)
            give(rig, response[at : at + 1])
        assert [future.get(0).offset for future in futures] == [33, 33]


def test_responses_that_arrive_together_and_split_anywhere_are_read() -> None:
    with Rig({"t": [1]}, batch_size=1000) as rig:
        for cut in range(1, 100):
            futures = [rig.send("t", bytes(600)) for _ in range(4)]
            requests = rig.requests()
            assert len(requests) == 3
            data = b"".join(response_to(seen, offset=i) for i, seen in enumerate(requests))
            assert cut < len(data)
            give(rig, data[:cut])
            give(rig, data[cut:])
            assert [future.get(0).offset for future in futures[:3]] == [0, 1, 2]
            give(rig, response_to(one(rig), offset=3))
            assert futures[3].get(0).offset == 3


def test_a_long_response_is_read() -> None:
    """Longer than the initial receive buffer, 8 kB."""
    with Rig({"t": [1] * 1000}) as rig:
        futures = [rig.send("t", b"x", partition=partition) for partition in range(1000)]
        response = response_to(one(rig), offset=9)
        assert len(response) > 20_000
        give(rig, response)
        rig.step()
        assert all(future.get(0).offset == 9 for future in futures)


@pytest.mark.parametrize("shift", [-1, 1, 1000])
def test_a_response_to_another_request_closes_the_connection(shift: int) -> None:
    with Rig({"t": [1]}) as rig:
        future = rig.send("t", b"x")
        seen = one(rig)
        number = seen.request.correlation_id
        give(rig, response_to(seen, correlation_id=number + shift))
        cause = cause_of_the_end(rig)
        assert isinstance(cause, errors.CorrelationIdError)
        assert f"correlation id {number + shift}, expected {number}" in str(cause)
        rig.pending.clear()
        rig.clock.advance_ms(100)
        rig.answer(one(rig))
        assert future.succeeded()


def test_responses_in_another_order_close_the_connection() -> None:
    with Rig({"t": [1]}, batch_size=1000) as rig:
        futures = [rig.send("t", bytes(600)) for _ in range(3)]
        _, second = rig.requests()
        give(rig, response_to(second))
        assert isinstance(cause_of_the_end(rig), errors.CorrelationIdError)
        assert not any(future.is_done for future in futures)


def test_a_response_without_a_request_closes_the_connection() -> None:
    with Rig({"t": [1]}) as rig:
        rig.connect(1)
        give(rig, struct.pack(">ii", 4, 1))
        cause = cause_of_the_end(rig)
        assert isinstance(cause, errors.CorrelationIdError)
        assert "no request is in flight" in str(cause)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 3, (1 << 20) + 1, 2**31 - 1])
def test_an_invalid_length_closes_the_connection_before_memory_is_allocated(length: int) -> None:
    with Rig({"t": [1]}) as rig:
        future = rig.send("t", b"x")
        one(rig)
        give(rig, struct.pack(">i", length))
        cause = cause_of_the_end(rig)
        assert isinstance(cause, errors.BrokerProtocolError)
        assert f"announced a response of {length} bytes" in str(cause)
        assert not future.is_done


def test_a_response_of_the_maximum_length_is_waited_for() -> None:
    with Rig({"t": [1]}) as rig:
        rig.send("t", b"x")
        seen = one(rig)
        give(rig, struct.pack(">ii", 1 << 20, seen.request.correlation_id))
        assert rig.control.broken == []


# What other threads read


def test_counters_are_read_while_connections_open_and_close() -> None:
    """Only a Python without a GIL can read a list beyond the end that another thread gave it meanwhile."""
    ended = threading.Event()
    with Rig({"t": [1]}, auto_connect=False) as rig, ThreadPoolExecutor(1) as threads:

        def read() -> set[int]:
            seen = set()
            while not ended.is_set():
                seen.add(rig.sender.counters()["in_flight"])
            return seen

        reader = threads.submit(read)
        try:
            for _ in range(3000):
                rig.sender.close_connection(rig.connect(1).connection, None)
        finally:
            ended.set()
        assert reader.result(WAIT_S) == {0}
