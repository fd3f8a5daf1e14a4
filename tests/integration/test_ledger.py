"""Tests that the reckoning of the fault tests detects every broken guarantee."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from cyproducer import KafkaProducer, errors
from tests.integration.consume import Fetched
from tests.integration.delivery_rig import sequence_complaints
from tests.integration.fault_log import FaultLog
from tests.integration.ledger import Entry, Reckoning, Writer
from tests.integration.log_dump import DumpedBatch, DumpedPartition

UNCLEAR, NOT_WRITTEN, MAYBE_WRITTEN = (errors.KafkaError(word) for word in ("?", "no", "perhaps"))
NOT_WRITTEN.maybe_written = False
MAYBE_WRITTEN.maybe_written = True


def writer_of(*outcomes: int | errors.KafkaError | None) -> Writer:
    """Returns a writer that has sent a record per outcome to partition 0: an offset, an error, or none
    yet."""
    writer = Writer(cast("KafkaProducer", None), "topic", 1, FaultLog("the seed"))
    for number, outcome in enumerate(outcomes):
        entry = Entry(0, number, b"key", b"0/%d/value" % number, sent_s=float(number))
        if outcome is not None:
            entry.done_s = number + 0.5
        if isinstance(outcome, int):
            entry.told, entry.offset = 0, outcome
        elif outcome is not None:
            entry.error = outcome
            entry.maybe_written = outcome.maybe_written
        writer.entries[0].append(entry)
    return writer


def log_of(*numbers: int, key: bytes = b"key", value: bytes = b"value", partition: int = 0) -> list[Fetched]:
    """Returns a log with these records at the offsets 0, 1, ..."""
    return [
        Fetched(partition, offset, "CreateTime", 0, key, b"0/%d/" % number + value, [])
        for offset, number in enumerate(numbers)
    ]


def complaints(writer: Writer, found: list[Fetched], **allowed: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        Reckoning(writer, found, **allowed).check()
    text = str(caught.value)
    assert "seed 'the seed'" in text
    return text


def test_correct_records_pass() -> None:
    reckoning = Reckoning(writer_of(0, 1, 2), log_of(0, 1, 2))
    reckoning.check()
    assert reckoning.acknowledged() == 3


def test_a_lost_record() -> None:
    assert "1 records lost:\n  record 1 of" in complaints(writer_of(0, 1, 1), log_of(0, 2))
    Reckoning(writer_of(0, 1, 1), log_of(0, 2), lost=True).check()


def test_a_record_from_before_the_topic_was_recreated_may_be_missing() -> None:
    Reckoning(writer_of(0, 1, 0), log_of(2), since_s=2).check()
    assert "1 records lost:\n  record 1 of" in complaints(writer_of(0, 1, 0), log_of(2), since_s=1)


def test_a_record_written_twice() -> None:
    text = complaints(writer_of(0, 1), log_of(0, 1, 0))
    assert "1 records written more than once:\n  record 0 of" in text
    assert "read at [0, 2]" in text
    Reckoning(writer_of(0, 1), log_of(0, 1, 0), twice=True).check()


def test_records_out_of_order() -> None:
    for allowed in ({}, {"twice": True}):
        text = complaints(writer_of(1, 0), log_of(1, 0), **allowed)
        assert "1 records out of order:\n  record 0 of" in text


def test_a_failed_record_out_of_order() -> None:
    writer, found = writer_of(MAYBE_WRITTEN, 0), log_of(1, 0)
    assert "1 records out of order:\n  record 0 of" in complaints(writer, found, failed_until_s=9)
    # Without idempotence this can't be prevented.
    Reckoning(writer, found, failed_until_s=9, twice=True).check()


def test_a_record_at_another_offset_than_acknowledged() -> None:
    for offset in (1, -1):
        assert "1 records not at their acknowledged" in complaints(writer_of(offset), log_of(0))
    assert "1 records not at their acknowledged" in complaints(writer_of(2), log_of(0, 0), twice=True)
    Reckoning(writer_of(1), log_of(0, 0), twice=True).check()
    # The acknowledged copy was lost with its leader; another copy exists.
    Reckoning(writer_of(2), log_of(0), twice=True, lost=True).check()


def test_a_record_in_another_partition_than_acknowledged() -> None:
    writer = writer_of(0)
    writer.entries[0][0].told = 3
    assert "1 records acknowledged in partition 3" in complaints(writer, log_of(0))


@pytest.mark.parametrize("changed", [{"key": b"other"}, {"value": b"other"}, {"partition": 1}])
def test_a_record_that_differs_from_the_sent_one(changed: dict[str, Any]) -> None:
    assert "1 records that were never sent" in complaints(writer_of(0), log_of(0, **changed))


def test_a_record_beyond_those_sent() -> None:
    assert "1 records that were never sent" in complaints(writer_of(0), log_of(0, 1))


def test_a_failure_where_none_is_allowed() -> None:
    assert "1 records failed" in complaints(writer_of(0, NOT_WRITTEN), log_of(0))
    assert "1 records failed" in complaints(writer_of(0, NOT_WRITTEN), log_of(0), failed_until_s=1)
    Reckoning(writer_of(0, NOT_WRITTEN), log_of(0), failed_until_s=1.1).check()


def test_a_record_that_failed_as_not_written_and_is_there() -> None:
    text = complaints(writer_of(0, NOT_WRITTEN), log_of(0, 1), failed_until_s=9)
    assert "1 records written that failed as not written:\n  record 1 of" in text


def test_a_record_that_failed_as_maybe_written_may_be_there_once() -> None:
    writer = writer_of(0, MAYBE_WRITTEN)
    for found in (log_of(0), log_of(0, 1)):
        reckoning = Reckoning(writer, found, failed_until_s=9)
        reckoning.check()
        assert reckoning.failures() == {True: 1, False: 0}
    assert "1 records written more than once" in complaints(writer, log_of(0, 1, 1), failed_until_s=9)


def test_a_record_that_a_restarted_broker_has_and_refuses_again() -> None:
    refused = errors.OutOfOrderSequenceNumberError("refused")
    refused.maybe_written = True
    Reckoning(writer_of(0, refused), log_of(0, 1), restarts=True).check()
    assert "1 records failed" in complaints(writer_of(0, refused), log_of(0, 1))
    assert "1 records failed" in complaints(writer_of(0, refused), log_of(0), restarts=True)
    assert "1 records failed" in complaints(writer_of(0, MAYBE_WRITTEN), log_of(0, 1), restarts=True)
    certain = errors.OutOfOrderSequenceNumberError("refused")
    certain.maybe_written = False
    assert "1 records failed" in complaints(writer_of(0, certain), log_of(0, 1), restarts=True)


def test_a_failure_that_does_not_say_whether_the_record_was_written() -> None:
    text = complaints(writer_of(0, UNCLEAR), log_of(0), failed_until_s=9)
    assert "1 failed records whose maybe_written is unknown" in text


def test_a_record_whose_future_never_completed() -> None:
    assert "1 records without an outcome" in complaints(writer_of(0, None), log_of(0, 1))


def test_the_log_has_the_faults_and_cyproducers_messages() -> None:
    with FaultLog("s") as log:
        log.add("node 1: SIGKILL")
        logging.getLogger("cyproducer").info("no response from %s", "node 1")
    logging.getLogger("cyproducer").warning("later")

    assert "node 1: SIGKILL" in str(log)
    assert "INFO no response from node 1" in str(log)
    assert "later" not in str(log)


def batch(base: int, count: int, epoch: int = 0, producer: int = 5, **other: Any) -> DumpedBatch:
    last = (base + count - 1) % 2**31
    return DumpedBatch(0, count, "none", 100, True, producer, epoch, base, last, [])._replace(**other)


@pytest.mark.parametrize(
    "batches",
    [
        [batch(0, 3), batch(3, 1)],
        [batch(0, 3), batch(0, 1, epoch=1), batch(1, 1, epoch=1)],
        [batch(0, 3), batch(0, 1, producer=6)],
        [batch(0, 2**31 - 2), batch(2**31 - 2, 4), batch(2, 1)],
    ],
)
def test_sequences_that_follow(batches: list[DumpedBatch]) -> None:
    assert sequence_complaints(DumpedPartition(batches, [])) == []


@pytest.mark.parametrize(
    ("batches", "part"),
    [
        ([batch(1, 3)], "does not follow None"),
        ([batch(0, 3), batch(4, 1)], "does not follow"),
        ([batch(0, 3), batch(0, 3)], "does not follow"),
        ([batch(0, 3), batch(1, 1, epoch=1)], "does not follow"),
        ([batch(0, 1, epoch=1), batch(0, 1)], "does not follow"),
        ([batch(0, 3, is_valid=False)], "CRC"),
        ([batch(0, 3, last_sequence=3)], "does not fit the count"),
        ([batch(0, 3, producer_id=-1)], "not idempotent"),
    ],
)
def test_sequences_that_do_not_follow(batches: list[DumpedBatch], part: str) -> None:
    (complaint,) = sequence_complaints(DumpedPartition(batches, []))
    assert part in complaint


def test_a_recreated_topic_may_start_at_any_sequence() -> None:
    assert sequence_complaints(DumpedPartition([batch(7, 3), batch(10, 1)], []), fresh=False) == []
