"""Reading topics, looking them up and creating them, against scripted brokers."""

import re
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cyproducer import errors
from cyproducer.clients import topic_admin
from cyproducer.clients.topic_admin import Reading, Topic
from cyproducer.control.retry import ExponentialBackoff
from cyproducer.transactions import TransactionAdmin
from cyproducer.wire import messages as apis
from tests.forked import in_child, needs_fork
from tests.scripted.producing import WAIT_S, options
from tests.scripted.scripted_broker import (
    API_VERSIONS,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    NO_LEADER,
    ScriptedCluster,
)
from tests.scripted.scripted_model import Act
from tests.scripted.scripted_reading import CreateTopic, DescribeConfigs, Described, Fetch, Log
from tools.harness import reference_records as reference

OUT_OF_RANGE, CORRUPT, UNKNOWN_TOPIC, NO_LEADER_NOW, NOT_LEADER, TIMED_OUT = 1, 2, 3, 5, 6, 7
INVALID_TOPIC, DENIED, NOT_CONTROLLER, POLICY, NOT_AVAILABLE, QUOTA = 17, 29, 41, 44, 78, 89
CLUSTER_DENIED, INVALID_REPLICATION, INVALID_CONFIG = 31, 38, 40


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(2, t=2) as cluster:
        yield cluster


@pytest.fixture
def reader(cluster: ScriptedCluster) -> Iterator[Reading]:
    with TransactionAdmin(options(cluster)) as admin:
        yield admin._reading


def soon(seconds: float = WAIT_S) -> tuple[float, float]:
    return time.monotonic() + seconds, seconds


def batch(base_offset: int, count: int = 2, last_delta: int | None = None) -> tuple[int, bytes]:
    """A batch of records, and its last offset; compaction may have left fewer than there were."""
    made = reference.batch_of(
        [reference.Record(i, 5, None, b"%d" % (base_offset + i)) for i in range(max(count, 1))],
        base_offset=base_offset,
    )
    last = made.last_offset_delta if last_delta is None else last_delta
    written = reference.Batch(
        made.records[:count],
        base_offset,
        last_offset_delta=last,
        base_timestamp=5,
        max_timestamp=5,
    )
    return base_offset + last, reference.encode_batch(written)


def fill(cluster: ScriptedCluster, *batches: tuple[int, bytes], mark: int | None = None) -> Log:
    with cluster.changed:
        log = cluster.logs.of("t", 0)
        log.batches = list(batches)
        log.high_watermark = batches[-1][0] + 1 if mark is None else mark
    return log


def test_operations_that_are_denied_are_named_by_topic(cluster: ScriptedCluster, reader: Reading) -> None:
    asked = topic_admin.READ, topic_admin.WRITE
    with cluster.changed:
        for name, operations in (("all", 0xDF8), ("read", 1 << 3), ("none", 0), ("other", 1 << 8)):
            cluster.create_topic(name, 1).operations = operations
        cluster.create_topic("hidden", 1).error = DENIED
        # No leader yet, for a moment.
        cluster.create_topic("new", 1).first_errors.append(NO_LEADER_NOW)
    names = ["all", "read", "none", "other", "hidden", "new", "missing"]
    assert reader.denied(names, asked, *soon()) == {
        "read": [topic_admin.WRITE],
        "none": [topic_admin.READ, topic_admin.WRITE],
        "other": [topic_admin.READ, topic_admin.WRITE],
        "hidden": [topic_admin.READ, topic_admin.WRITE],
    }
    assert "missing" not in cluster.topics, "looking does not create"


def test_a_broker_that_tells_no_operations_denies_none(
    cluster: ScriptedCluster, request: pytest.FixtureRequest
) -> None:
    for node in cluster.nodes.values():
        node.versions[METADATA] = (0, 7)
    # Made only now: it connects at once, and asks for the versions.
    reader: Reading = request.getfixturevalue("reader")
    assert reader.denied(["t"], (topic_admin.READ,), *soon()) == {}


def test_an_invalid_name_has_no_operations(cluster: ScriptedCluster, reader: Reading) -> None:
    cluster.create_topic("bad", 1).error = INVALID_TOPIC
    with pytest.raises(errors.InvalidTopicError, match="Metadata of topic 'bad'"):
        reader.denied(["bad"], (topic_admin.READ,), *soon())


def values(reader: Reading, first: int, end: int, seconds: float = WAIT_S) -> list[bytes | None]:
    return [
        record.value
        for found in reader.batches("t", 0, first, end, *soon(seconds))
        for record in found.records()
    ]


def fetched(cluster: ScriptedCluster) -> list[tuple[int, int]]:
    """Node and offset of each Fetch."""
    found = []
    for received in cluster.received(FETCH):
        assert isinstance(received.asked, Fetch)
        found.append((received.connection.node.id, received.asked.offset))
    return found


def after_fetch(cluster: ScriptedCluster, count: int, change: Callable[[], object]) -> None:
    """Changes the cluster when the request number ``count`` arrives, before it is answered."""
    seen = [0]

    def script(received: Any) -> Act | None:
        if received.api_key == FETCH:
            seen[0] += 1
            if seen[0] == count:
                change()
        return None

    cluster.script = script


# Topics


def test_a_topic_has_its_id_and_leaders(cluster: ScriptedCluster, reader: Reading) -> None:
    found = reader.topic("t", *soon())
    assert found == Topic("t", cluster.topics["t"].id.bytes, {0: 1, 1: 2})
    assert found.partitions == [0, 1]


@pytest.mark.slow
def test_no_topic_is_created_by_looking(cluster: ScriptedCluster, reader: Reading) -> None:
    cluster.auto_create = 1
    assert reader.topic("missing", *soon()) is None
    with pytest.raises(errors.KafkaTimeoutError, match="UnknownTopicOrPartitionError"):
        reader.offsets("missing", 0, *soon(1))
    with pytest.raises(errors.KafkaTimeoutError, match="UnknownTopicOrPartitionError"):
        list(reader.batches("missing", 0, 0, 1, *soon(1)))
    assert set(cluster.topics) == {"t"}


@pytest.mark.parametrize("version", [4, 8, 9, 12])
def test_topics_are_found_in_every_layout(version: int) -> None:
    with ScriptedCluster(1, t=1) as cluster:
        cluster.nodes[1].versions[METADATA] = (0, version)
        with TransactionAdmin(options(cluster)) as admin:
            found = admin._reading.topic("t", *soon())
            assert found is not None
            assert found.topic_id == (cluster.topics["t"].id.bytes if version >= 10 else bytes(16))


def test_a_look_up_is_repeated(cluster: ScriptedCluster, reader: Reading) -> None:
    cluster.topics["t"].first_errors.append(NO_LEADER_NOW)
    cluster.act(METADATA, Act(drop=True))
    assert reader.topic("t", *soon()) is not None


@pytest.mark.parametrize(
    ("code", "kind"),
    [(DENIED, errors.TopicAuthorizationFailedError), (INVALID_TOPIC, errors.InvalidTopicError)],
)
def test_a_topic_that_is_refused_is_an_error(
    cluster: ScriptedCluster, reader: Reading, code: int, kind: type[errors.KafkaError]
) -> None:
    cluster.topics["t"].error = code
    with pytest.raises(kind, match="Metadata of topic 't'"):
        reader.topic("t", *soon())
    with pytest.raises(kind, match="Metadata of topic 't'"):
        reader.offsets("t", 0, *soon())


def test_metadata_that_is_refused_as_a_whole_is_an_error_or_repeated(
    cluster: ScriptedCluster, reader: Reading
) -> None:
    assert reader.topic("t", *soon()) is not None
    cluster.act(METADATA, Act(error=TIMED_OUT), Act(error=CLUSTER_DENIED))
    with pytest.raises(errors.ClusterAuthorizationFailedError, match=r"Metadata at 127\.0\.0\.1"):
        reader.topic("t", *soon())


@pytest.mark.slow
def test_a_partition_without_a_leader_is_told_or_waited_for(
    cluster: ScriptedCluster, reader: Reading
) -> None:
    cluster.move_leader("t", 1, NO_LEADER)
    found = reader.topic("t", *soon())
    assert found is not None
    assert found.leaders == {0: 1, 1: -1}
    with pytest.raises(errors.KafkaTimeoutError, match="a partition of 't' has no leader"):
        reader.topic("t", *soon(1), wait=True)
    with pytest.raises(errors.KafkaTimeoutError, match="partition 1 of topic 't' has no leader"):
        reader.offsets("t", 1, *soon(1))
    with pytest.raises(errors.KafkaTimeoutError, match="partition 2 of topic 't' is not one of 2"):
        reader.offsets("t", 2, *soon(1))
    outcome: list[Topic | None] = []
    thread = threading.Thread(target=lambda: outcome.append(reader.topic("t", *soon(), wait=True)))
    before = len(cluster.received(METADATA))
    thread.start()
    cluster.wait_for_requests(METADATA, before + 2)
    cluster.move_leader("t", 1, 1)
    thread.join(WAIT_S)
    assert [each and each.leaders for each in outcome] == [{0: 1, 1: 1}]


def test_a_new_topic_is_waited_for(cluster: ScriptedCluster, reader: Reading) -> None:
    cluster.topics["t"].first_errors.extend([UNKNOWN_TOPIC, UNKNOWN_TOPIC])
    assert reader.topic("t", *soon(), wait=True) is not None
    cluster.topics["t"].first_errors.append(UNKNOWN_TOPIC)
    assert reader.topic("t", *soon()) is None


# Offsets


@pytest.mark.parametrize("version", range(1, 8))
def test_offsets_are_the_first_and_the_high_watermark(version: int) -> None:
    with ScriptedCluster(1, t=1) as cluster:
        cluster.nodes[1].versions[LIST_OFFSETS] = (0, version)
        log = cluster.logs.of("t", 0)
        log.start, log.high_watermark, log.end = 3, 9, 12
        with TransactionAdmin(options(cluster)) as admin:
            assert admin._reading.offsets("t", 0, *soon()) == (3, 9)
        assert {each.header.version for each in cluster.received(LIST_OFFSETS)} == {version}


@pytest.mark.parametrize("code", [NOT_AVAILABLE, NO_LEADER_NOW, NOT_LEADER, TIMED_OUT, UNKNOWN_TOPIC])
def test_offsets_that_are_not_available_yet_are_asked_for_again(
    cluster: ScriptedCluster, reader: Reading, code: int
) -> None:
    cluster.logs.of("t", 0).high_watermark = 9
    # Each attempt asks for both ends.
    cluster.act(LIST_OFFSETS, Act(), Act(error=code), Act(error=code), Act())
    assert reader.offsets("t", 0, *soon()) == (0, 9)
    assert len(cluster.received(LIST_OFFSETS)) == 6


def test_offsets_are_asked_of_the_leader_that_moved(cluster: ScriptedCluster, reader: Reading) -> None:
    reader.offsets("t", 0, *soon())
    cluster.move_leader("t", 0, 2)
    cluster.logs.of("t", 0).high_watermark = 9
    assert reader.offsets("t", 0, *soon()) == (0, 9)
    nodes = [each.connection.node.id for each in cluster.received(LIST_OFFSETS)]
    assert nodes[:2] == [1, 1]
    assert nodes[-2:] == [2, 2]


def test_a_known_leader_is_not_looked_up_again(cluster: ScriptedCluster, reader: Reading) -> None:
    reader.topic("t", *soon())
    for partition in (0, 1, 0):
        reader.offsets("t", partition, *soon())
    # The client's own look at the cluster, which names no topic, may be later than the reader's.
    assert [each.topics for each in cluster.received(METADATA) if each.topics] == [["t"]]


def test_offsets_that_are_refused_are_an_error(cluster: ScriptedCluster, reader: Reading) -> None:
    cluster.act(LIST_OFFSETS, Act(), Act(error=DENIED))
    with pytest.raises(errors.TopicAuthorizationFailedError, match=r"ListOffsets of t-0 at 127\.0\.0\.1"):
        reader.offsets("t", 0, *soon())


def test_a_lost_connection_is_made_again(cluster: ScriptedCluster, reader: Reading) -> None:
    cluster.act(LIST_OFFSETS, Act(drop=True))
    assert reader.offsets("t", 0, *soon()) == (0, 0)


def test_a_leader_that_is_down_is_looked_up_again(cluster: ScriptedCluster, reader: Reading) -> None:
    assert reader.offsets("t", 1, *soon()) == (0, 0)
    cluster.nodes[2].stop()
    cluster.move_leader("t", 1, 1)
    assert reader.offsets("t", 1, *soon()) == (0, 0)


def test_a_response_must_have_the_partition_that_was_asked_for(
    cluster: ScriptedCluster, reader: Reading
) -> None:
    reader.topic("t", *soon())
    cluster.act(LIST_OFFSETS, *[Act(rewrite=lambda frame: frame.replace(b"\x02t\x02", b"\x02u\x02"))] * 2)
    with pytest.raises(errors.KafkaProtocolError, match=r"ListOffsets response .* once, not 0 times"):
        reader.offsets("t", 0, *soon())


@pytest.mark.parametrize(("start", "end"), [(-1, 0), (0, -1), (5, 4), (-(2**63), 2)])
def test_a_partition_begins_at_zero_or_later_and_not_behind_its_end(
    cluster: ScriptedCluster, reader: Reading, start: int, end: int
) -> None:
    def at(offset: int) -> Act:
        # Behind the lengths, the ids, the throttle time, the topic, the partition and the timestamp.
        return Act(rewrite=lambda frame: frame[:31] + struct.pack(">q", offset) + frame[39:])

    reader.topic("t", *soon())
    cluster.act(LIST_OFFSETS, at(start), at(end))
    with pytest.raises(errors.KafkaProtocolError, match=f"t-0 begins at offset {start} and ends at {end}"):
        reader.offsets("t", 0, *soon())


# Batches


@pytest.mark.parametrize("version", range(4, 13))
def test_all_batches_up_to_the_end_are_read(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedCluster(1, t=1) as cluster:
        cluster.nodes[1].versions[FETCH] = (0, version)
        log = fill(cluster, batch(0), batch(2, 3), batch(5), batch(7))
        # A batch, and a part of the next one.
        monkeypatch.setattr(topic_admin, "FETCH_BYTES", len(log.batches[0][1]) + 30)
        with TransactionAdmin(options(cluster)) as admin:
            found = [each.base_offset for each in admin._reading.batches("t", 0, 0, 9, *soon())]
            assert found == [0, 2, 5, 7]
        assert fetched(cluster) == [(1, 0), (1, 2), (1, 5), (1, 7)]
        assert {each.header.version for each in cluster.received(FETCH)} == {version}


@pytest.mark.parametrize(
    ("first", "end", "bases"),
    [
        (0, 0, []),
        (5, 3, []),
        (0, 1, [0]),
        (1, 2, [0]),
        (1, 3, [0, 2]),
        (2, 5, [2]),
        (4, 6, [2, 5]),
        (5, 7, [5]),
    ],
)
def test_batches_that_have_offsets_of_the_range_are_read(
    cluster: ScriptedCluster, reader: Reading, first: int, end: int, bases: list[int]
) -> None:
    fill(cluster, batch(0), batch(2, 3), batch(5), batch(7))
    assert [each.base_offset for each in reader.batches("t", 0, first, end, *soon())] == bases
    assert len(cluster.received(FETCH)) == (1 if bases else 0)


def test_a_batch_before_the_first_offset_is_left_out(
    cluster: ScriptedCluster, reader: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fill(cluster, batch(0), batch(2), batch(4))
    monkeypatch.setattr(log, "fetch", lambda offset, size: (0, b"".join(data for _, data in log.batches)))
    assert [each.base_offset for each in reader.batches("t", 0, 3, 6, *soon())] == [2, 4]


@pytest.mark.parametrize("size", [1, topic_admin.FETCH_BYTES], ids=["a batch at a time", "all at once"])
def test_gaps_of_compacted_logs_are_passed(
    cluster: ScriptedCluster, reader: Reading, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(topic_admin, "FETCH_BYTES", size)
    fill(cluster, batch(0, 1, 4), batch(9, 1, 3), batch(20, 0, 9), batch(40))
    assert values(reader, 0, 30) == [b"0", b"9"]
    assert values(reader, 0, 42) == [b"0", b"9", b"40", b"41"]
    # Nothing is left between 13 and 20.
    assert values(reader, 14, 18) == []
    assert values(reader, 30, 40) == []


def test_the_end_is_waited_for(cluster: ScriptedCluster, reader: Reading) -> None:
    log = fill(cluster, batch(0), batch(2), mark=2)
    log.end = 4

    def grow() -> None:
        log.high_watermark = 4

    after_fetch(cluster, 4, grow)
    assert values(reader, 0, 4) == [b"0", b"1", b"2", b"3"]
    assert fetched(cluster) == [(1, 0), (1, 2), (1, 2), (1, 2)]


@pytest.mark.slow
def test_an_end_that_never_comes_is_told_at_the_deadline(cluster: ScriptedCluster, reader: Reading) -> None:
    log = fill(cluster, batch(0), mark=7)
    with pytest.raises(errors.KafkaTimeoutError) as caught:
        values(reader, 0, 7, 1)
    text = str(caught.value)
    assert "reading offsets 0 to 7 of t-0 not complete within 1 s" in text
    assert re.search(r"has nothing from offset 2 on, below its high watermark 7", text)
    assert isinstance(caught.value.__cause__, errors.OffsetNotAvailableError)
    # It was not asked without a pause.
    assert len(fetched(cluster)) < 60
    assert log.high_watermark == 7


class Noting(ExponentialBackoff):
    """Notes how many attempts have failed in a row, and hardly waits."""

    __slots__ = ("failures",)

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.failures: list[int] = []

    def delay_ms(self, attempts: int, random: Callable[[], float]) -> float:
        self.failures.append(attempts)
        return 1.0


def test_progress_makes_the_next_pause_short(cluster: ScriptedCluster, reader: Reading) -> None:
    log = fill(cluster, batch(0), batch(2), batch(4), mark=0)
    log.end = 6
    marks = iter([0, 0, 2, 2, 2, 6])

    def script(received: Any) -> None:
        if received.api_key == FETCH:
            log.high_watermark = next(marks)

    cluster.script = script
    reader._requests.backoff = noting = Noting()
    assert len(values(reader, 0, 6)) == 6
    assert noting.failures == [1, 2, 1, 2]


def test_a_leader_that_moves_is_followed(cluster: ScriptedCluster, reader: Reading) -> None:
    log = fill(cluster, batch(0), batch(2), batch(4), mark=2)
    log.end = 6

    def move() -> None:
        log.high_watermark = 6
        cluster.move_leader("t", 0, 2)

    after_fetch(cluster, 2, move)
    assert values(reader, 0, 6) == [b"%d" % i for i in range(6)]
    assert fetched(cluster) == [(1, 0), (1, 2), (2, 2)]


@pytest.mark.parametrize(
    "act",
    [
        Act(drop=True),
        Act(cut=20),
        Act(error=NOT_AVAILABLE),
        Act(error=NOT_LEADER),
        Act(error=UNKNOWN_TOPIC),
        Act(error=CORRUPT),
        # The error of the whole response.
        Act(rewrite=lambda frame: frame[:13] + b"\0\x46" + frame[15:]),
    ],
    ids=["dropped", "cut", "not available", "not leader", "unknown topic", "corrupt", "whole response"],
)
def test_what_may_go_away_is_asked_again(cluster: ScriptedCluster, reader: Reading, act: Act) -> None:
    fill(cluster, batch(0))
    cluster.act(FETCH, act)
    assert values(reader, 0, 2) == [b"0", b"1"]
    assert fetched(cluster) == [(1, 0), (1, 0)]


@pytest.mark.parametrize(("first", "start"), [(0, 1), (8, 0)])
def test_offsets_that_are_not_in_the_log_are_an_error(
    cluster: ScriptedCluster, reader: Reading, first: int, start: int
) -> None:
    fill(cluster, batch(0), batch(2)).start = start
    with pytest.raises(
        errors.OffsetOutOfRangeError, match=rf"Fetch of offset {first} of t-0 at 127\.0\.0\.1"
    ):
        values(reader, first, 9)


def test_what_is_refused_is_an_error(cluster: ScriptedCluster, reader: Reading) -> None:
    fill(cluster, batch(0))
    cluster.act(FETCH, Act(error=DENIED))
    with pytest.raises(errors.TopicAuthorizationFailedError, match="Fetch of offset 0 of t-0"):
        values(reader, 0, 2)


def test_a_damaged_batch_is_an_error(cluster: ScriptedCluster, reader: Reading) -> None:
    last, data = batch(0)
    fill(cluster, (last, data[:-1] + b"x"))
    with pytest.raises(errors.CorruptRecordError, match="has the checksum"):
        values(reader, 0, 2)


def test_a_broker_without_the_request_is_an_error() -> None:
    with ScriptedCluster(1, t=1) as cluster:
        del cluster.nodes[1].versions[FETCH]
        with (
            TransactionAdmin(options(cluster)) as admin,
            pytest.raises(errors.UnsupportedVersionError, match="no Fetch"),
        ):
            values(admin._reading, 0, 2)


@pytest.mark.slow
def test_a_broker_that_does_not_answer_is_named(cluster: ScriptedCluster, reader: Reading) -> None:
    fill(cluster, batch(0))
    cluster.act(FETCH, Act(drop=True), Act(silent=True))
    with pytest.raises(
        errors.KafkaTimeoutError, match=r"Fetch is not answered by broker 1, after [12] failed: "
    ):
        values(reader, 0, 2, 3)
    cluster.act(METADATA, Act(silent=True))
    with pytest.raises(errors.KafkaTimeoutError, match="Metadata is not answered by any broker; "):
        reader.topic("t", *soon(1))


def test_a_fetch_does_not_wait_at_the_broker(cluster: ScriptedCluster, reader: Reading) -> None:
    fill(cluster, batch(0))
    assert len(values(reader, 0, 2)) == 2
    (received,) = cluster.received(FETCH)
    assert received.asked == Fetch("t", 0, 0, topic_admin.FETCH_BYTES, 0)


# Options


TOPICS = {
    "t": Described({"cleanup.policy": "compact", "secret": None, "retention.ms": "5"}),
    "u": Described({}),
}


@pytest.mark.parametrize("version", range(1, 5))
def test_options_of_topics_are_described(version: int) -> None:
    with ScriptedCluster(1) as cluster:
        cluster.nodes[1].versions[DESCRIBE_CONFIGS] = (0, version)
        cluster.logs.topics.update(TOPICS)
        with TransactionAdmin(options(cluster)) as admin:
            assert admin._reading.topic_configs(["t", "missing", "u"], *soon()) == {
                "t": {"cleanup.policy": "compact", "retention.ms": "5"},
                "u": {},
            }
        (received,) = cluster.received(DESCRIBE_CONFIGS)
        assert received.asked == DescribeConfigs(["t", "missing", "u"])


def test_a_description_is_repeated_or_refused(cluster: ScriptedCluster, reader: Reading) -> None:
    cluster.logs.topics.update(TOPICS)
    cluster.act(DESCRIBE_CONFIGS, Act(drop=True), Act(error=TIMED_OUT))
    assert reader.topic_configs(["u"], *soon()) == {"u": {}}
    cluster.act(DESCRIBE_CONFIGS, Act(error=DENIED, message="not you"))
    with pytest.raises(
        errors.TopicAuthorizationFailedError, match=r"DescribeConfigs of topic 't' at .*not you"
    ):
        reader.topic_configs(["t"], *soon())


# Creation


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_created_once(version: int) -> None:
    with ScriptedCluster(1) as cluster:
        cluster.nodes[1].versions[CREATE_TOPICS] = (0, version)
        with TransactionAdmin(options(cluster)) as admin:
            reader = admin._reading
            assert reader.create_topic("new", 3, 2, {"cleanup.policy": "compact"}, *soon()) is True
            assert reader.create_topic("new", 3, 2, {}, *soon()) is False
        (created,) = cluster.logs.created
        assert created == CreateTopic("new", 3, 2, {"cleanup.policy": "compact"}, created.timeout_ms)
        assert created.timeout_ms == topic_admin.CREATE_WAIT_S * 1000


def test_the_broker_is_not_to_wait_beyond_the_deadline(cluster: ScriptedCluster, reader: Reading) -> None:
    assert reader.create_topic("new", -1, -1, {}, *soon(5))
    assert 3000 < cluster.logs.created[0].timeout_ms <= 5000


def test_old_brokers_have_no_defaults(reader: Reading, cluster: ScriptedCluster) -> None:
    for node in cluster.nodes.values():
        node.versions[CREATE_TOPICS] = (0, 3)
        node.drop_connections()
    with pytest.raises(ValueError, match="needs version 4"):
        reader.create_topic("new", 1, -1, {}, *soon())


@pytest.mark.parametrize("act", [Act(error=TIMED_OUT), Act(error=QUOTA), Act(drop=True)], ids=str)
def test_a_creation_is_repeated(cluster: ScriptedCluster, reader: Reading, act: Act) -> None:
    cluster.act(CREATE_TOPICS, act)
    created = reader.create_topic("new", 1, 1, {}, *soon())
    # The first attempt may have done it.
    assert created is not act.drop
    assert len(cluster.received(CREATE_TOPICS)) == 2


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (POLICY, errors.PolicyViolationError),
        (INVALID_REPLICATION, errors.InvalidReplicationFactorError),
        (INVALID_CONFIG, errors.InvalidConfigurationError),
        (DENIED, errors.TopicAuthorizationFailedError),
    ],
)
def test_a_creation_that_is_refused_has_the_brokers_words(
    cluster: ScriptedCluster, reader: Reading, code: int, kind: type[errors.KafkaError]
) -> None:
    cluster.act(CREATE_TOPICS, Act(error=code, message="our own rule"))
    with pytest.raises(kind, match=r"CreateTopics of 'new' at 127\.0\.0\.1:\d+.*: our own rule"):
        reader.create_topic("new", 1, 1, {}, *soon())


@pytest.mark.parametrize("controller", [1, 2])
def test_before_kraft_the_controller_is_asked(
    cluster: ScriptedCluster, reader: Reading, controller: int
) -> None:
    cluster.controller = controller

    def script(received: Any) -> Act | None:
        elsewhere = received.connection.node.id != controller
        return Act(error=NOT_CONTROLLER) if received.api_key == CREATE_TOPICS and elsewhere else None

    cluster.script = script
    for number in range(4):
        assert reader.create_topic(f"new-{number}", 1, 1, {}, *soon())
    nodes = [each.connection.node.id for each in cluster.received(CREATE_TOPICS)]
    assert nodes.count(controller) == 4


def test_a_controller_that_is_none_any_more_is_looked_up_again(
    cluster: ScriptedCluster, reader: Reading
) -> None:
    cluster.act(CREATE_TOPICS, *[Act(error=NOT_CONTROLLER)] * 3)
    assert reader.create_topic("new", 1, 1, {}, *soon())
    assert len(cluster.received(CREATE_TOPICS)) == 4


def test_what_was_not_sent_before_the_deadline_is_not_sent_later(cluster: ScriptedCluster) -> None:
    hold = threading.Event()
    cluster.act(API_VERSIONS, *[Act(hold=hold)] * 2)
    with TransactionAdmin(options(cluster)) as admin:
        cluster.wait_for_requests(API_VERSIONS, 1)
        with pytest.raises(errors.KafkaTimeoutError, match="CreateTopics is not answered by any broker; "):
            admin._reading.create_topic("late", 1, 1, {}, *soon(0.2))
        hold.set()
        assert admin._reading.topic("late", *soon()) is None
    assert cluster.received(CREATE_TOPICS) == []


# The admin


def test_a_wait_ends_with_the_admin(cluster: ScriptedCluster) -> None:
    admin = TransactionAdmin(options(cluster))
    reader, outcome = admin._reading, []
    reader.topic("t", *soon())

    def look() -> None:
        with pytest.raises(errors.ProducerClosedError) as caught:
            reader.topic("t", *soon())
        outcome.append(caught.value)

    cluster.act(METADATA, Act(hold=threading.Event()))
    before = len(cluster.received(METADATA))
    thread = threading.Thread(target=look)
    thread.start()
    cluster.wait_for_requests(METADATA, before + 1)
    admin.close()
    thread.join(WAIT_S)
    assert len(outcome) == 1


@needs_fork
def test_a_child_makes_its_own(cluster: ScriptedCluster) -> None:
    with TransactionAdmin(options(cluster)) as admin:
        admin.wait_ready()

        def child() -> bool:
            with pytest.raises(errors.IllegalStateError, match="before a fork: make another one"):
                admin._reading.topic("t", *soon())
            return True

        assert in_child(child)


def test_the_versions_are_those_of_the_scripted_broker(cluster: ScriptedCluster) -> None:
    for api in (apis.FETCH, apis.LIST_OFFSETS, apis.CREATE_TOPICS, apis.DESCRIBE_CONFIGS):
        assert cluster.nodes[1].versions[api.key] == api.versions
