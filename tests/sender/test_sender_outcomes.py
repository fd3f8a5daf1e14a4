"""The sender loop after requests are written: outcomes, timeouts, and sleeping."""

import socket

import pytest

from cyproducer import errors
from tests.scripted.sender_steps import cause_of_the_end, narrow, one
from tools.harness.rig import Rig
from tools.harness.until import Running

# With batch_size 1000, a batch has room for one record of 600 bytes: the next record closes it.


# Outcomes of batches


def test_with_acks_0_a_record_is_done_once_written_and_has_no_offset() -> None:
    with Rig({"t": [1]}, acks=0, batch_size=1000, max_in_flight=1) as rig:
        futures = [rig.send("t", b"%d" % i + bytes(600)) for i in range(4)]
        requests = rig.requests()
        # No request awaits a response, so the number of requests in flight is not limited.
        assert [(seen.request.acks, len(seen.batches)) for seen in requests] == [(0, 1)] * 4
        assert [future.get(0).offset for future in futures] == [-1] * 4


def test_with_acks_0_a_record_is_not_done_before_all_is_written() -> None:
    with Rig({"t": [1]}, acks=0, batch_size=500_000) as rig:
        peer = rig.connect(1)
        narrow(peer)
        future = rig.send("t", bytes(400_000))
        rig.step()
        peer.received += peer.sock.recv(1000)
        rig.step()
        assert not future.is_done
        one(rig)
        assert future.get(0).offset == -1


@pytest.mark.parametrize("acks", [-1, 1])
def test_with_acks_1_and_all_a_record_is_done_once_answered(acks: int) -> None:
    with Rig({"t": [1]}, acks=acks) as rig:
        future = rig.send("t", b"x")
        seen = one(rig)
        assert seen.request.acks == acks
        assert not future.is_done
        rig.answer(seen)
        assert future.get(0).offset == 0


def test_an_error_of_one_partition_does_not_affect_another() -> None:
    with Rig({"t": [1, 1]}) as rig:
        bad, good = rig.send("t", b"0", partition=0), rig.send("t", b"1", partition=1)
        rig.answer(one(rig), errors={("t", 0): 7})
        assert good.succeeded()
        assert not bad.is_done
        assert rig.requests() == []
        rig.clock.advance_ms(100)
        again = one(rig)
        assert again.places == [("t", 0)]
        rig.answer(again, error=10)
        assert isinstance(bad.exception, errors.MessageSizeTooLargeError)


# Timeouts


def test_a_request_without_a_response_times_out_even_if_nothing_else_calls_the_control_plane() -> None:
    with Rig({"t": [1]}, request_timeout_ms=1000) as rig:
        rig.control.delay_ms = 1e9
        future = rig.send("t", b"x")
        one(rig)
        rig.advance_ms(999)
        assert rig.control.broken == []
        rig.advance_ms(1)
        cause = cause_of_the_end(rig)
        assert isinstance(cause, errors.KafkaTimeoutError)
        assert "request_timeout_ms=1000" in str(cause)
        rig.pending.clear()
        rig.control.delay_ms = 0
        rig.clock.advance_ms(100)
        rig.answer(one(rig))
        assert future.succeeded()


def test_each_request_has_its_own_timeout() -> None:
    with Rig({"t": [1]}, request_timeout_ms=1000, batch_size=1000) as rig:
        rig.send("t", bytes(600))
        first = one(rig)
        rig.advance_ms(900)
        for _ in range(2):
            rig.send("t", bytes(600))
        second = one(rig)
        rig.answer(first)
        rig.advance_ms(999)
        assert rig.control.broken == []
        rig.advance_ms(1)
        assert isinstance(cause_of_the_end(rig), errors.KafkaTimeoutError)
        rig.pending.remove(second)


def test_a_write_that_does_not_finish_times_out_with_acks_0() -> None:
    with Rig({"t": [1]}, acks=0, request_timeout_ms=1000, batch_size=500_000) as rig:
        narrow(rig.connect(1))
        rig.fates.hook = lambda *args: (None, args[3])
        future = rig.send("t", bytes(400_000))
        rig.step()
        rig.advance_ms(1000)
        assert isinstance(cause_of_the_end(rig), errors.KafkaTimeoutError)
        assert isinstance(future.exception, errors.KafkaTimeoutError)


# Sleeping


def test_an_idle_sender_sleeps_until_a_send_wakes_it() -> None:
    with Rig({"t": [1]}) as rig:
        rig.connect(1)
        rig.control.delay_ms = 1e9
        rig.step()
        sleeping = Running(rig.step, 1e6)
        sleeping.thread.join(0.2)
        assert sleeping.running
        woken = rig.sender.counters()["wakeups"]
        rig.send("t", b"x")
        sleeping.outcome()
        assert rig.sender.counters()["wakeups"] == woken + 1
        rig.answer(one(rig))


@pytest.mark.parametrize("call", ["wake", "request_control", "stop"])
def test_any_thread_can_wake_up_the_sender(call: str) -> None:
    with Rig({"t": [1]}) as rig:
        rig.control.delay_ms = 1e9
        rig.step()
        sleeping = Running(rig.sender.run) if call == "stop" else Running(rig.step, 1e6)
        sleeping.thread.join(0.2)
        assert sleeping.running
        getattr(rig.sender, call)()
        sleeping.outcome()


def test_a_connection_that_broke_within_a_request_without_acknowledgement_delays_no_later_record() -> None:
    """The request counts as answered: otherwise open batches would wait for its response for ever."""
    with Rig({"t": [1]}, acks=0) as rig:
        peer = rig.connect(1)
        peer.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        rig.send("t", b"large" * 100_000)
        rig.step()
        rig.cut(1)
        rig.clock.advance_ms(200)
        rig.requests()
        rig.send("t", b"small")
        (seen,) = rig.requests()
        assert seen.values() == [b"small"]
