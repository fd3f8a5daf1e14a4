"""Records that a broker refuses individually (KIP-467): only they fail, not the others of their batch."""

from typing import Any

import pytest

from cyproducer.errors import BulkSendError, InvalidRecordError, InvalidTimestampError
from cyproducer.futures.completion import CompletionQueue
from tests.accumulator.small_topic import assert_nothing_left
from tests.observability.measured import registry
from tests.scripted.sender_steps import grant
from tools.harness.rig import Rig, Seen

INVALID_TIMESTAMP, INVALID_RECORD, TIMED_OUT, OUT_OF_ORDER = 32, 87, 7, 45
CODECS = [None, "gzip", "snappy", "lz4", "zstd"]
BAD = b"bad"


def rigged(codec: str | None = None, **options: Any) -> Rig:
    return Rig({"t": [1, 1]}, compressor=codec, **{"linger_ms": 1, "ordered": True, **options})


def refuse_bad(rig: Rig, seen: Seen, code: int = INVALID_RECORD) -> int:
    """Answers a request like a broker that refuses values that start with BAD; returns their number."""
    named = {
        place: [
            (number, f"{record.value!r} is refused")
            for number, record in enumerate(batch.records)
            if record.value is not None and record.value.startswith(BAD)
        ]
        for place, batch in seen.batches.items()
    }
    rig.answer(seen, errors={place: code for place in named if named[place]}, record_errors=named)
    return sum(map(len, named.values()))


def serve(rig: Rig) -> int:
    requests = 0
    while rig.requests() or rig.pending:
        for seen in list(rig.pending):
            requests += 1
            refuse_bad(rig, seen)
    return requests


def send(rig: Rig, values: list[bytes], partition: int = 0) -> list[Any]:
    futures = [rig.send("t", value, partition=partition, key=b"k") for value in values]
    rig.advance_ms(1)
    return futures


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("bad", [{0}, {5}, {2}, {0, 5}, {1, 2, 4}])
def test_refused_records_fail_with_their_own_message_and_the_others_arrive_in_order(
    bad: set[int], idempotent: bool, codec: str | None
) -> None:
    values = [(BAD if i in bad else b"good") + b"-%d" % i for i in range(6)]
    with rigged(codec, idempotent=idempotent, ordered=not idempotent) as rig:
        if idempotent:
            grant(rig)
        futures = send(rig, values)
        later = send(rig, [b"later"])
        assert serve(rig) <= 3
        assert rig.values("t") == [value for value in values if not value.startswith(BAD)] + [b"later"]
        offsets = iter(range(6))
        for number, future in enumerate(futures):
            if number not in bad:
                assert future.get(0).offset == next(offsets)
                continue
            error = future.exception
            assert isinstance(error, InvalidRecordError)
            assert f"t-0: {values[number]!r} is refused" in str(error)
            assert error.maybe_written is False
        assert later[0].get(0).offset == next(offsets)
        metrics = registry(rig).snapshot()["producer-metrics"]
        assert metrics["record-error-total"] == len(bad)
        assert metrics["record-send-total"] == 7 - len(bad)
        assert_nothing_left(rig)


@pytest.mark.parametrize("values", [[b"bad"], [b"bad-0", b"bad-1"]])
def test_nothing_is_sent_again_if_all_records_are_refused(values: list[bytes]) -> None:
    with rigged() as rig:
        futures = send(rig, values)
        assert serve(rig) == 1
        for future, value in zip(futures, values, strict=True):
            assert f"{value!r} is refused" in str(future.exception)
        assert_nothing_left(rig)


def test_a_broker_that_names_one_record_at_a_time_gets_one_request_for_each() -> None:
    values = [b"bad-0", b"good-1", b"bad-2", b"bad-3"]
    with rigged() as rig:
        futures = send(rig, values)
        for left in (4, 3, 2):
            (seen,) = rig.requests()
            assert len(seen.values()) == left
            first = next(n for n, value in enumerate(seen.values()) if value and value.startswith(BAD))
            rig.answer(seen, INVALID_RECORD, record_errors={("t", 0): [(first, None)]})
        rig.answer_all()
        assert rig.values("t") == [b"good-1"]
        assert [future.failed() for future in futures] == [True, False, True, True]


@pytest.mark.parametrize("named", [[], [(-1, "x")], [(3, "x"), (2**31 - 1, "y")]])
def test_all_records_fail_if_the_broker_names_none_of_them(named: list[tuple[int, str]]) -> None:
    with rigged(idempotent=True, ordered=False) as rig:
        grant(rig)
        futures = send(rig, [b"1", b"2", b"3"])
        (seen,) = rig.requests()
        rig.answer(seen, INVALID_RECORD, record_errors={("t", 0): named})
        assert [type(future.exception) for future in futures] == [InvalidRecordError] * 3
        assert_nothing_left(rig)


def test_a_refused_timestamp_fails_only_its_record() -> None:
    with rigged() as rig:
        futures = send(rig, [b"good", b"bad"])
        (seen,) = rig.requests()
        refuse_bad(rig, seen, INVALID_TIMESTAMP)
        rig.answer_all()
        assert futures[0].succeeded()
        assert isinstance(futures[1].exception, InvalidTimestampError)


def test_a_batch_that_may_be_in_the_log_is_not_sent_with_other_sequences() -> None:
    """1. A request times out.
    2. The batch is sent again and refused.

    The first request may still be appended to the log.
    """
    with rigged(idempotent=True, ordered=False) as rig:
        grant(rig)
        futures = send(rig, [b"good", b"bad"])
        (seen,) = rig.requests()
        rig.answer(seen, TIMED_OUT)
        rig.advance_ms(200)
        (seen,) = rig.requests()
        refuse_bad(rig, seen)
        assert rig.requests() == []
        assert [future.exception.maybe_written for future in futures] == [True, True]


def test_sequences_have_no_gap_behind_a_refused_record() -> None:
    with rigged(idempotent=True, ordered=False) as rig:
        grant(rig)
        send(rig, [b"first"])
        rig.answer_all()
        send(rig, [b"good", b"bad", b"good"])
        send(rig, [b"behind"])
        refused, behind = rig.requests()
        refuse_bad(rig, refused)
        assert rig.requests() == []
        rig.answer(behind, OUT_OF_ORDER)
        rig.advance_ms(200)
        first, second = rig.requests()
        # A new epoch, whose sequences start at 0.
        sequences = [
            (seen.batches["t", 0].producer_epoch, seen.batches["t", 0].base_sequence, seen.values())
            for seen in (first, second)
        ]
        assert sequences == [(1, 0, [b"good", b"good"]), (1, 2, [b"behind"])]
        rig.answer_all()
        assert rig.values("t") == [b"first", b"good", b"good", b"behind"]


def test_a_bulk_future_names_the_refused_rows() -> None:
    with rigged() as rig:
        future = rig.path.send_many("t", [b"good-0", b"bad-1", b"good-2"], partition=0)
        rig.advance_ms(1)
        serve(rig)
        with pytest.raises(BulkSendError, match="1 of 3 rows") as caught:
            future.get(0)
        (failed,) = caught.value.failures
        assert list(failed.rows) == [1]
        assert "b'bad-1' is refused" in str(failed.error)
        assert rig.values("t") == [b"good-0", b"good-2"]
        assert caught.value.metadata is not None
        assert caught.value.metadata.rows().offsets.tolist() == [0, -1, 1]


def test_callbacks_of_refused_and_other_records_run() -> None:
    queue = CompletionQueue()
    called: list[tuple[int, bool]] = []
    with rigged(completions=queue) as rig:
        for number, future in enumerate(send(rig, [b"good", b"bad", b"good"])):
            future.add_callback(lambda _, number=number: called.append((number, True)))
            future.add_errback(lambda _, number=number: called.append((number, False)))
        serve(rig)
        rig.run_callbacks()
    assert sorted(called) == [(0, True), (1, False), (2, True)]


def test_refused_records_have_failed_when_a_flush_returns() -> None:
    with rigged() as rig:
        futures = send(rig, [b"bad", b"bad"])
        done: list[bool] = []
        (seen,) = rig.requests()
        futures[1].add_both(lambda _: done.append(rig.accumulator.incomplete_batches == 0))
        refuse_bad(rig, seen)
        rig.run_callbacks()
        assert done
        assert rig.accumulator.flush(0)
        assert all(future.is_done for future in futures)
