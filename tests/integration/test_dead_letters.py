"""Tests rows that a real broker refuses: only the bad row becomes a dead letter, not the others of its
batch."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cyproducer.producer import KafkaProducer
from cyproducer.spark.columns import Columns
from cyproducer.spark.dead_letters import CUT_BYTES, DeadLetters
from cyproducer.spark.sending import TaskWriter, write_all
from cyproducer.spark.summary import WriteSummary
from tests.integration.consume import Fetched, read_all
from tools.harness.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]

COLUMNS = Columns(value="value", key="key")


def write(kafka: KafkaCluster, topic: str, rows: list[tuple[bytes | None, bytes]]) -> WriteSummary:
    batch = pa.record_batch(
        {
            "key": pa.array([key for key, _ in rows], pa.binary()),
            "value": pa.array([value for _, value in rows]),
        }
    )
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, allow_auto_create_topics=False) as producer:
        dead = DeadLetters(producer, f"{topic}-dead")
        return write_all(TaskWriter(producer, COLUMNS, topic, dead), [batch])


def letters(kafka: KafkaCluster, topic: str, count: int) -> list[Fetched]:
    return read_all(kafka.bootstrap_servers, f"{topic}-dead", count)


def test_a_record_that_is_too_large_for_its_topic_becomes_a_dead_letter(kafka: KafkaCluster) -> None:
    kafka.create_topic("letters-small", 2, configs={"max.message.bytes": "500"})
    kafka.create_topic("letters-small-dead", 1)
    rows: list[tuple[bytes | None, bytes]] = [(b"%d" % n, b"v") for n in range(200)]
    rows[70] = (b"70", b"x" * 1000)
    summary = write(kafka, "letters-small", rows)
    assert (summary.rows, summary.dead_letters) == (199, 1)
    found = {r.key for r in read_all(kafka.bootstrap_servers, "letters-small", 199)}
    assert found == {b"%d" % n for n in range(200) if n != 70}
    (letter,) = letters(kafka, "letters-small", 1)
    assert (letter.key, letter.value) == (b"70", b"x" * 1000)
    about = dict(letter.headers)
    assert about["cyproducer.error.class"] == b"MessageSizeTooLargeError"
    assert about["cyproducer.error.partition"] in (b"0", b"1")


def test_only_the_invalid_record_of_a_batch_becomes_a_dead_letter(kafka: KafkaCluster) -> None:
    kafka.create_topic("letters-compacted", 1, configs={"cleanup.policy": "compact"})
    kafka.create_topic("letters-compacted-dead", 1)
    rows: list[tuple[bytes | None, bytes]] = [(b"%d" % n, b"%d" % n) for n in range(100)]
    rows[33] = (None, b"33")
    summary = write(kafka, "letters-compacted", rows)
    assert (summary.rows, summary.dead_letters) == (99, 1)
    assert summary.bytes == sum(2 * len(str(n)) for n in range(100) if n != 33)
    (letter,) = letters(kafka, "letters-compacted", 1)
    assert letter.value == b"33"
    assert dict(letter.headers)["cyproducer.error.class"] == b"InvalidRecordError"


def test_a_dead_letter_is_cut_to_fit_its_topic(kafka: KafkaCluster) -> None:
    kafka.create_topic("letters-tiny", 1, configs={"max.message.bytes": "500"})
    kafka.create_topic("letters-tiny-dead", 1, configs={"max.message.bytes": "100000"})
    summary = write(kafka, "letters-tiny", [(b"k", b"x" * 300_000), (b"l", b"v")])
    assert (summary.rows, summary.dead_letters) == (1, 1)
    (letter,) = letters(kafka, "letters-tiny", 1)
    assert CUT_BYTES // 2 < len(letter.value or b"") < CUT_BYTES
    assert dict(letter.headers)["cyproducer.error.bytes"] == b"300001"
