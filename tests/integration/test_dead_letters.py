"""Tests rows that a real broker refuses: only the bad row becomes a dead letter, not the others of its
batch."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from cyproducer import transactions
from cyproducer.producer import KafkaProducer
from cyproducer.spark import sending
from cyproducer.spark.columns import Columns
from cyproducer.spark.dead_letters import CUT_BYTES, DeadLetters
from cyproducer.spark.exactly_once import task
from cyproducer.spark.sending import TaskWriter, write_all
from cyproducer.spark.sharing import SharedConfig
from cyproducer.spark.summary import WriteSummary, WrittenRange
from cyproducer.structs import TopicPartition
from tests.integration.consume import Fetched, read_all
from tools.harness.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.either_broker, pytest.mark.timeout(120)]

COLUMNS = Columns(value="value", key="key")

Rows = list[tuple[bytes | None, bytes]]


class Target:
    """A topic and its dead letter topic, written as tasks do with one of the delivery guarantees."""

    def __init__(self, kafka: KafkaCluster, guarantee: str) -> None:
        self.kafka = kafka
        self.guarantee = guarantee
        self.topic = ""

    def create(self, name: str, partitions: int, dead: dict[str, str] | None = None, **configs: str) -> None:
        self.topic = f"letters-{name}-{self.guarantee}"
        named = {option.replace("_", "."): value for option, value in configs.items()}
        self.kafka.create_topic(self.topic, partitions, configs=named)
        self.kafka.create_topic(f"{self.topic}-dead", 1, configs=dead)

    def write(self, *batches: Rows) -> WriteSummary:
        arrow = [
            pa.record_batch(
                {
                    "key": pa.array([key for key, _ in rows], pa.binary()),
                    "value": pa.array([value for _, value in rows]),
                }
            )
            for rows in batches
        ]
        dead = f"{self.topic}-dead"
        config: dict[str, Any] = {
            "bootstrap_servers": self.kafka.bootstrap_servers,
            "allow_auto_create_topics": False,
        }
        if self.guarantee == "exactly-once":
            name = f"id.{self.topic}"
            target = sending.Target(SharedConfig(config), COLUMNS, self.topic, dead)
            summary, prepared = task._write(target, name, 30_000, arrow)
            # A decision has these places, and copies their records if it must.
            ranges = (*summary.ranges, *summary.dead_letter_ranges)
            places = {TopicPartition(r.topic, r.partition): (r.first_offset, r.last_offset) for r in ranges}
            assert places == prepared.offsets
            assert self.read(0) == [], "nothing is committed"
            assert transactions.commit(prepared, config).outcome is transactions.Outcome.COMMITTED
        else:
            with KafkaProducer(**config) as producer:
                letters = DeadLetters(producer, dead)
                summary = write_all(TaskWriter(producer, COLUMNS, self.topic, letters), arrow)
        count = summary.dead_letters
        assert summary.dead_letter_ranges == (WrittenRange(dead, 0, 0, count - 1, count),)
        return summary

    def read(self, count: int) -> list[Fetched]:
        return read_all(self.kafka.bootstrap_servers, self.topic, count)

    def letters(self, count: int) -> list[Fetched]:
        return read_all(self.kafka.bootstrap_servers, f"{self.topic}-dead", count)


@pytest.fixture(params=["at-least-once", "exactly-once"])
def target(kafka: KafkaCluster, request: pytest.FixtureRequest) -> Target:
    return Target(kafka, request.param)


def test_a_record_that_is_too_large_for_its_topic_becomes_a_dead_letter(target: Target) -> None:
    target.create("small", 2, max_message_bytes="500")
    rows: Rows = [(b"%d" % n, b"v") for n in range(200)]
    rows[70] = (b"70", b"x" * 1000)
    summary = target.write(rows)
    assert (summary.rows, summary.dead_letters) == (199, 1)
    assert {r.key for r in target.read(199)} == {b"%d" % n for n in range(200) if n != 70}
    (letter,) = target.letters(1)
    assert (letter.key, letter.value) == (b"70", b"x" * 1000)
    about = dict(letter.headers)
    assert about["cyproducer.error.class"] == b"MessageSizeTooLargeError"
    assert about["cyproducer.error.partition"] in (b"0", b"1")


def test_only_the_invalid_record_of_a_batch_becomes_a_dead_letter(target: Target) -> None:
    target.create("compacted", 1, cleanup_policy="compact")
    rows: Rows = [(b"%d" % n, b"%d" % n) for n in range(100)]
    rows[33] = (None, b"33")
    summary = target.write(rows)
    assert (summary.rows, summary.dead_letters) == (99, 1)
    assert summary.bytes == sum(2 * len(str(n)) for n in range(100) if n != 33)
    (letter,) = target.letters(1)
    assert letter.value == b"33"
    assert dict(letter.headers)["cyproducer.error.class"] == b"InvalidRecordError"


def test_bad_rows_among_many_leave_the_others_in_order(target: Target) -> None:
    """Invalid rows, rows too large for the topic, and rows too large for any request, in batches under way
    together."""
    target.create("mixed", 3, cleanup_policy="compact", max_message_bytes="20000")
    bad: dict[int, tuple[bytes | None, bytes]] = {}
    for n in range(400, 12_000, 1_000):
        bad[n] = (None, b"%d" % n)
        bad[n + 7] = (b"%d" % (n + 7), b"x" * 30_000)
    bad[3_000] = (b"3000", bytes(2 << 20))
    rows: Rows = [bad.get(n, (b"%d" % (n % 50), b"%d" % n)) for n in range(12_000)]
    summary = target.write(*(rows[first : first + 1_000] for first in range(0, 12_000, 1_000)))
    good = sorted(set(range(12_000)) - bad.keys())
    assert (summary.rows, summary.dead_letters) == (len(good), len(bad))
    read = target.read(len(good))
    assert sorted(int(r.value or b"") for r in read) == good
    of_key: dict[bytes | None, list[int]] = {}
    for r in read:
        of_key.setdefault(r.key, []).append(int(r.value or b""))
    assert all(numbers == sorted(numbers) for numbers in of_key.values())


def test_a_dead_letter_is_cut_to_fit_its_topic(target: Target) -> None:
    target.create("tiny", 1, {"max.message.bytes": "100000"}, max_message_bytes="500")
    summary = target.write([(b"k", b"x" * 300_000), (b"l", b"v")])
    assert (summary.rows, summary.dead_letters) == (1, 1)
    (letter,) = target.letters(1)
    assert CUT_BYTES // 2 < len(letter.value or b"") < CUT_BYTES
    assert dict(letter.headers)["cyproducer.error.bytes"] == b"300001"
