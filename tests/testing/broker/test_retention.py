"""Retention of the embedded broker: old batches, and batches in excess."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from cyproducer.records.record_batch import encode_batch
from cyproducer.testing.broker.partitions import Entry
from cyproducer.testing.broker.retention import LOG_CHECK_MS
from cyproducer.testing.broker.world import NS_PER_MS
from cyproducer.wire.messages import (
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FETCH,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    PRODUCE,
)
from tests.testing.broker.group_bench import Bench
from tests.testing.broker.peer import Peer

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
EARLIEST: Final = -2
TRANSACTIONAL: Final = 0x10
OUT_OF_RANGE: Final = 1


class Log:
    """The partition t-0 of a cluster."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.peer = bench.peer(1)

    @property
    def now_ms(self) -> int:
        """The broker's time."""
        return self.bench.call(lambda cluster: cluster.world.now_ns // NS_PER_MS)

    def write(
        self, *stamps_ms: int, size: int = 1, transactional_id: str | None = None, **fields: int
    ) -> Any:
        """Appends a batch with records of these timestamps, and returns what the broker says."""
        data = encode_batch([(stamp_ms, None, bytes(size), b"") for stamp_ms in stamps_ms], **fields)
        request = PRODUCE.request
        topics = [request.TopicProduceData("t", bytes(16), [request.PartitionProduceData(0, data)])]
        response = self.peer.ask(
            PRODUCE, 11, transactional_id=transactional_id, acks=-1, timeout_ms=1000, topic_data=topics
        )
        part = response.responses[0].partition_responses[0]
        assert part.error_code == 0
        return part

    @property
    def start(self) -> int:
        """The log start offset."""
        part = LIST_OFFSETS.request.ListOffsetsPartition(0, -1, EARLIEST)
        topics = [LIST_OFFSETS.request.ListOffsetsTopic("t", [part])]
        response = self.peer.ask(LIST_OFFSETS, 5, replica_id=-1, topics=topics)
        offset: int = response.topics[0].partitions[0].offset
        return offset

    def code_at(self, offset: int) -> int:
        """Returns the error code of Fetch at an offset."""
        request = FETCH.request
        part = request.FetchPartition(0, -1, offset, -1, -1, 1 << 20, bytes(16), -1)
        topics = [request.FetchTopic("t", bytes(16), [part])]
        response = self.peer.ask(FETCH, 11, max_bytes=1 << 20, session_epoch=-1, topics=topics)
        code: int = response.responses[0].partitions[0].error_code
        return code

    def configure(self, configs: Mapping[str, str]) -> None:
        request = INCREMENTAL_ALTER_CONFIGS.request
        changes = [request.AlterableConfig(name, 0, value) for name, value in configs.items()]
        resources = [request.AlterConfigsResource(2, "t", changes)]
        response = self.peer.ask(INCREMENTAL_ALTER_CONFIGS, 1, resources=resources)
        assert response.responses[0].error_code == 0

    def entries(self) -> list[Entry]:
        return self.bench.call(lambda cluster: list(cluster.topics.topics["t"].partitions[0].entries))


@pytest.fixture
def log() -> Iterator[Log]:
    with Bench() as bench:
        yield Log(bench)


def test_old_batches_are_deleted(log: Log) -> None:
    now_ms = log.now_ms
    log.write(now_ms, now_ms)
    log.bench.advance(DAY_MS)
    log.write(log.now_ms)
    log.bench.advance(6 * DAY_MS - LOG_CHECK_MS)
    assert log.start == 0
    # retention.ms is 7 days, and the check comes every five minutes.
    log.bench.advance(2 * LOG_CHECK_MS)
    assert log.start == 2
    assert log.code_at(1) == OUT_OF_RANGE
    assert log.code_at(2) == 0
    log.bench.advance(DAY_MS)
    assert log.start == 3
    assert log.code_at(3) == 0
    assert log.write(log.now_ms).base_offset == 3
    assert log.bench.call(lambda cluster: cluster.bytes) == log.entries()[0].size


def test_the_largest_timestamp_of_a_batch_counts(log: Log) -> None:
    log.configure({"retention.ms": str(HOUR_MS)})
    now_ms = log.now_ms
    log.write(now_ms - DAY_MS, now_ms)
    log.write(now_ms - DAY_MS)
    log.bench.advance(LOG_CHECK_MS)
    # The second batch is old, but only the first batches of a log are deleted.
    assert log.start == 0
    log.bench.advance(HOUR_MS)
    assert log.start == 3


def test_records_with_old_timestamps_stay_until_the_next_check(log: Log) -> None:
    log.write(0)
    log.bench.advance(LOG_CHECK_MS / 2)
    assert log.start == 0
    log.bench.advance(LOG_CHECK_MS / 2)
    assert log.start == 1


def test_without_timestamps_the_time_of_the_append_counts(log: Log) -> None:
    log.configure({"retention.ms": str(HOUR_MS)})
    log.write(-1)
    log.bench.advance(HOUR_MS - LOG_CHECK_MS)
    assert log.start == 0
    log.bench.advance(2 * LOG_CHECK_MS)
    assert log.start == 1


@pytest.mark.parametrize(
    "configs", [{"retention.ms": "-1"}, {"cleanup.policy": "compact"}], ids=["no limit", "compacted"]
)
def test_records_can_be_kept(log: Log, configs: dict[str, str]) -> None:
    # Before: a compacted topic refuses records without a key.
    log.write(0)
    log.configure(configs)
    log.bench.advance(100 * DAY_MS)
    assert log.start == 0
    assert len(log.entries()) == 1


def test_at_least_retention_bytes_are_kept(log: Log) -> None:
    now_ms = log.now_ms
    log.write(now_ms, size=1000)
    size = log.entries()[0].size
    log.configure({"retention.bytes": str(2 * size)})
    for start in range(4):
        log.write(now_ms, size=1000)
        assert log.start == start
    # One byte more: the oldest batch is not wholly in excess.
    log.configure({"retention.bytes": str(2 * size + 1)})
    log.write(now_ms, size=1000)
    assert log.start == 3
    log.configure({"retention.bytes": "0"})
    assert log.start == 6


def begun(peer: Peer, transactional_id: str) -> dict[str, Any]:
    """Begins a transaction on t-0, and returns who writes."""
    made = peer.ask(INIT_PRODUCER_ID, 2, transactional_id=transactional_id, transaction_timeout_ms=900_000)
    request = ADD_PARTITIONS_TO_TXN.request
    who = (transactional_id, made.producer_id, made.producer_epoch)
    response = peer.ask(
        ADD_PARTITIONS_TO_TXN,
        3,
        v3_and_below_transactional_id=who[0],
        v3_and_below_producer_id=who[1],
        v3_and_below_producer_epoch=who[2],
        v3_and_below_topics=[request.AddPartitionsToTxnTopic("t", [0])],
    )
    assert response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
    return dict(zip(("transactional_id", "producer_id", "producer_epoch"), who, strict=True))


def end(peer: Peer, who: dict[str, Any], commits: bool) -> None:
    assert peer.ask(END_TXN, 3, committed=commits, **who).error_code == 0


def test_open_transactions_are_kept(log: Log) -> None:
    log.write(0)
    who = begun(log.peer, "x")
    log.write(0, base_sequence=0, attributes=TRANSACTIONAL, **who)
    log.write(0)
    log.bench.advance(LOG_CHECK_MS)
    assert log.start == 1
    log.configure({"retention.bytes": "0"})
    assert log.start == 1
    end(log.peer, who, False)
    log.bench.advance(LOG_CHECK_MS)
    assert log.start == 4
    assert log.bench.call(lambda cluster: cluster.topics.topics["t"].partitions[0].aborted) == []


def test_a_marker_is_as_old_as_its_append(log: Log) -> None:
    log.configure({"retention.ms": str(HOUR_MS)})
    who = begun(log.peer, "x")
    log.write(log.now_ms, base_sequence=0, attributes=TRANSACTIONAL, **who)
    log.bench.advance(HOUR_MS / 6)
    end(log.peer, who, True)
    log.bench.advance(HOUR_MS * 11 / 12)
    assert log.start == 1
    log.bench.advance(HOUR_MS / 6)
    assert log.start == 2
