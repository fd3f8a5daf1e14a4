"""A broker of the model answers requests of transactions: leaders, authorization, what versions can say."""

import uuid
from collections.abc import Callable
from typing import Any, cast

import pytest

from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker.group_offsets import Offsets
from cyproducer.testing.broker.homes import GROUP, ID, Homes
from cyproducer.testing.broker.partitions import Cluster
from cyproducer.testing.broker.transactions import Place, TransactionManners, Transactions, read_committed
from tests.scripted.scripted_wire import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from tests.simulation.kio_requests import frame_of, read
from tests.simulation.model_broker import Broker, Conversation, Manners
from tests.simulation.model_produce import MESSAGE_TOO_LARGE, NOT_LEADER, UNKNOWN_TOPIC
from tests.simulation.model_transaction_requests import (
    GROUP_DENIED,
    ID_DENIED,
    OPERATION_NOT_ATTEMPTED,
    TOPIC_DENIED,
)
from tests.simulation.network import Network, Wire
from tests.simulation.transaction_wire import VERSIONS
from tests.simulation.world import NS_PER_MS, World
from tests.wire.kio_oracle import make, milliseconds, schema
from tools.harness.reference_records import Record, batch_of, encode_batch

T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)
OUT_OF_ORDER = 45


class FakeWire:
    """A connection that collects what the broker sends."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.answers: list[bytes] = []

    def send(self, data: bytes, then: Callable[[], object] | None = None) -> None:
        self.answers.append(data)


class Bench:
    """Broker 1 leads and coordinates everything, broker 2 nothing. Markers take a second, anything else no
    time."""

    def __init__(self, level: int = 2, between_ms: float = 0.0) -> None:
        world = self.world = World(1)
        self.cluster = Cluster(world, 2)
        self.cluster.create_topic("t", 2)
        self.cluster.create_topic("u", 1)
        for partition in self.cluster.partitions():
            self.cluster.move(partition, 1, True, (0.0, 0.0))
        self.homes = Homes(world, [1, 2])
        manners = TransactionManners(
            level=level, marker_ms=(1000, 1000), between_ms=(between_ms, between_ms), check_ms=0.0
        )
        self.transactions = Transactions(world, self.cluster, self.homes, manners)
        self.offsets = Offsets(world, self.homes, self.transactions)
        for kind, name in ((ID, "x"), (GROUP, "g")):
            home = self.homes.home(kind, name)
            home.leader, home.views = 1, {1: 1, 2: 1}
        versions = {PRODUCE: (3, 13), METADATA: (1, 13), INIT_PRODUCER_ID: (0, 5), **VERSIONS}
        network = Network(world)
        self.brokers = {
            node: Broker(node, self.cluster, network, Manners(versions), transactions=self.transactions)
            for node in (1, 2)
        }
        world.run_out()
        self.conversations = {node: self.connected(node) for node in (1, 2)}

    def connected(self, node: int) -> tuple[FakeWire, Conversation]:
        wire = FakeWire(self.world)
        return wire, Conversation(self.brokers[node], cast(Wire, wire))

    def send(self, frame: bytes, node: int = 1) -> None:
        self.conversations[node][1].receive(frame)

    def asked(self, api: int, version: int, /, node: int = 1, **values: Any) -> Any:
        """Returns the broker's response."""
        wire, conversation = self.conversations[node]
        wire.answers.clear()
        conversation.receive(frame_of(api, version, **values))
        self.world.run_until(wire.answers)
        return read(api, version, wire.answers.pop())

    def init(self, version: int = 5, producer_id: int = -1, epoch: int = -1) -> Any:
        return self.asked(
            INIT_PRODUCER_ID,
            version,
            transactional_id="x",
            transaction_timeout=milliseconds(60_000),
            producer_id=producer_id,
            producer_epoch=epoch,
        )

    def started(self) -> tuple[int, int]:
        body = self.init()
        assert body.error_code == 0
        return body.producer_id, body.producer_epoch

    def end(self, identity: tuple[int, int], version: int, commits: bool = True) -> Any:
        return self.asked(
            END_TXN,
            version,
            transactional_id="x",
            producer_id=identity[0],
            producer_epoch=identity[1],
            committed=commits,
        )

    def produce_values(
        self,
        version: int,
        batches: dict[Place, bytes],
        transactional_id: str | None = "x",
        acks: int = -1,
    ) -> dict[str, Any]:
        module = schema("produce", version, "request")
        topics: dict[str, list[Any]] = {}
        for (name, index), data in batches.items():
            topics.setdefault(name, []).append(module.PartitionProduceData(index=index, records=data))
        made = []
        for name, partitions in topics.items():
            topic = self.cluster.topics.get(name)
            topic_id = uuid.UUID(int=9) if topic is None else uuid.UUID(bytes=topic.id)
            made.append(
                make(module.TopicProduceData, name=name, topic_id=topic_id, partition_data=tuple(partitions))
            )
        return {
            "transactional_id": transactional_id,
            "acks": acks,
            "timeout": milliseconds(30_000),
            "topic_data": tuple(made),
        }

    def produce(self, version: int, batches: dict[Place, bytes], node: int = 1, **values: Any) -> list[int]:
        """Returns the partitions' error codes."""
        body = self.asked(PRODUCE, version, node=node, **self.produce_values(version, batches, **values))
        return [int(told.error_code) for topic in body.responses for told in topic.partition_responses]

    def add(self, identity: tuple[int, int], *places: Place, version: int = 3) -> list[int]:
        topic = schema("add_partitions_to_txn", version, "request").AddPartitionsToTxnTopic
        topics: dict[str, list[int]] = {}
        for name, index in places:
            topics.setdefault(name, []).append(index)
        body = self.asked(
            ADD_PARTITIONS_TO_TXN,
            version,
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=identity[0],
            v3_and_below_producer_epoch=identity[1],
            v3_and_below_topics=tuple(
                topic(name=name, partitions=tuple(indexes)) for name, indexes in topics.items()
            ),
        )
        return [
            int(told.partition_error_code)
            for topic in body.results_by_topic_v3_and_below
            for told in topic.results_by_partition
        ]

    def commit_offsets(self, identity: tuple[int, int], version: int, *names: str) -> list[int]:
        module = schema("txn_offset_commit", version, "request")
        partition = make(
            module.TxnOffsetCommitRequestPartition,
            partition_index=0,
            committed_offset=5,
            committed_leader_epoch=-1,
            committed_metadata=None,
        )
        body = self.asked(
            TXN_OFFSET_COMMIT,
            version,
            transactional_id="x",
            group_id="g",
            producer_id=identity[0],
            producer_epoch=identity[1],
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=tuple(
                module.TxnOffsetCommitRequestTopic(name=name, partitions=(partition,)) for name in names
            ),
        )
        return [int(told.error_code) for topic in body.topics for told in topic.partitions]

    def places(self) -> set[Place]:
        """Returns the partitions that are in the transaction."""
        state = self.transactions.of("x").state
        assert state is not None
        return set(state.places)

    def visible(self, place: Place) -> int:
        """Returns how many batches readers of committed records see."""
        return len(read_committed(self.cluster.topics[place[0]].partitions[place[1]]).entries)


def batch(identity: tuple[int, int], sequence: int = 0, transactional: bool = True, size: int = 1) -> bytes:
    return encode_batch(
        batch_of(
            [Record(0, 1, None, b"0:" + b"v" * size)],
            transactional=transactional,
            producer_id=identity[0],
            producer_epoch=identity[1],
            base_sequence=sequence,
        )
    )


@pytest.fixture
def bench() -> Bench:
    return Bench()


# Produce


@pytest.mark.parametrize("version", [12, 13])
def test_produce_12_adds_its_partitions(bench: Bench, version: int) -> None:
    identity = bench.started()
    assert bench.produce(version, {T0: batch(identity), U0: batch(identity)}) == [0, 0]
    assert bench.places() == {T0, U0}
    assert bench.end(identity, 5).error_code == 0
    bench.world.pass_ms(1000)
    assert (bench.visible(T0), bench.visible(U0)) == (1, 1)


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (11, ErrorCode.TRANSACTION_ABORTABLE),
        (10, ErrorCode.INVALID_TXN_STATE),
        (9, ErrorCode.INVALID_TXN_STATE),
    ],
)
def test_up_to_produce_11_partitions_must_be_added_before(bench: Bench, version: int, code: int) -> None:
    identity = bench.started()
    assert bench.add(identity, U0) == [0]
    assert bench.produce(version, {T0: batch(identity), U0: batch(identity)}) == [code, 0]
    assert bench.places() == {U0}


def test_the_first_batch_of_an_epoch_has_sequence_0_and_adds_its_partition_all_the_same(bench: Bench) -> None:
    identity = bench.started()
    assert bench.produce(12, {T0: batch(identity, 5)}) == [OUT_OF_ORDER]
    assert bench.places() == {T0}


def test_a_batch_that_is_refused_has_added_its_partition(bench: Bench) -> None:
    identity = bench.started()
    for broker in bench.brokers.values():
        broker.manners.message_max_bytes = 100
    assert bench.produce(12, {T0: batch(identity, size=200)}) == [MESSAGE_TOO_LARGE]
    assert bench.places() == {T0}


def test_unknown_topics_and_topics_without_rights_are_not_added(bench: Bench) -> None:
    identity = bench.started()
    bench.transactions.denied.add(("topic", "u"))
    codes = bench.produce(12, {("v", 0): batch(identity), T0: batch(identity), U0: batch(identity)})
    assert codes == [UNKNOWN_TOPIC, 0, TOPIC_DENIED]
    assert bench.places() == {T0}


def test_a_broker_that_does_not_lead_adds_nothing(bench: Bench) -> None:
    identity = bench.started()
    assert bench.produce(12, {T0: batch(identity)}, node=2) == [NOT_LEADER]
    assert bench.places() == set()


def test_an_id_without_rights_writes_nothing(bench: Bench) -> None:
    identity = bench.started()
    bench.transactions.denied.add((ID, "x"))
    assert bench.produce(12, {T0: batch(identity), U0: batch(identity)}) == [ID_DENIED, ID_DENIED]
    # After the grant the same epoch works.
    bench.transactions.denied.clear()
    assert bench.produce(12, {T0: batch(identity)}) == [0]


@pytest.mark.parametrize("version", [9, 11, 12])
def test_a_fenced_producer_has_an_invalid_epoch(bench: Bench, version: int) -> None:
    identity = bench.started()
    bench.started()
    assert bench.produce(version, {T0: batch(identity)}) == [ErrorCode.INVALID_PRODUCER_EPOCH]


def test_an_unknown_producer_id_has_no_mapping(bench: Bench) -> None:
    bench.started()
    assert bench.produce(12, {T0: batch((99, 0))}) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


@pytest.mark.parametrize(
    ("version", "code"), [(12, ErrorCode.CONCURRENT_TRANSACTIONS), (11, ErrorCode.NOT_ENOUGH_REPLICAS)]
)
def test_while_markers_are_under_way(bench: Bench, version: int, code: int) -> None:
    identity = bench.started()
    assert bench.add(identity, U0) == [0]
    assert bench.end(identity, 4).error_code == 0
    began_ms = bench.world.now_ms
    assert bench.produce(version, {T0: batch(identity)}) == [code]
    # A leader of the second version tries again for 100 ms before.
    assert bench.world.now_ms - began_ms == (100 if version == 12 else 0)


def test_a_connections_next_request_waits_for_the_adding(bench: Bench) -> None:
    identity = bench.started()
    following = bench.end(identity, 5, commits=False)
    assert following.error_code == 0
    identity = (following.producer_id, following.producer_epoch)
    bench.world.pass_ms(1)
    assert bench.produce(12, {U0: batch(identity)}) == [0]
    following = bench.end(identity, 5)
    identity = (following.producer_id, following.producer_epoch)
    wire, conversation = bench.conversations[1]
    conversation.receive(frame_of(PRODUCE, 12, **bench.produce_values(12, {T0: batch(identity)})))
    conversation.receive(frame_of(DESCRIBE_TRANSACTIONS, 0, transactional_ids=("x",)))
    bench.world.pass_ms(99)
    assert wire.answers == []
    bench.world.pass_ms(1)
    assert len(wire.answers) == 2


def test_a_late_batch_belongs_to_the_ended_transaction(bench: Bench) -> None:
    identity = bench.started()
    assert bench.produce(12, {T0: batch(identity)}) == [0]
    assert bench.end(identity, 5).error_code == 0
    assert bench.produce(12, {T0: batch(identity, 1)}) == [0]
    bench.world.pass_ms(1000)
    assert bench.visible(T0) == 2
    assert bench.produce(12, {T0: batch(identity, 2)}) == [ErrorCode.INVALID_PRODUCER_EPOCH]


def test_without_a_bump_the_next_transactions_batch_may_go_into_the_ended_one(bench: Bench) -> None:
    identity = bench.started()
    assert bench.add(identity, T0) == [0]
    assert bench.produce(11, {T0: batch(identity)}) == [0]
    assert bench.end(identity, 4).error_code == 0
    # The client has changed to the second version, with the epoch of the first one.
    assert bench.produce(12, {T0: batch(identity, 1)}) == [0]
    bench.world.pass_ms(1000)
    assert bench.visible(T0) == 2
    assert bench.places() == set()


def test_a_marker_between_adding_and_appending_refuses_the_batch() -> None:
    bench = Bench(between_ms=5)
    identity = bench.started()
    bench.send(frame_of(PRODUCE, 12, **bench.produce_values(12, {T0: batch(identity)})))
    bench.world.pass_ms(1)
    partition = bench.cluster.topics["t"].partitions[0]
    partition.append_marker(*identity, False, 1, bench.world.now_ns)
    bench.world.pass_ms(10)
    wire, _ = bench.conversations[1]
    (answer,) = wire.answers
    assert (
        read(PRODUCE, 12, answer).responses[0].partition_responses[0].error_code
        == ErrorCode.INVALID_TXN_STATE
    )
    assert len(partition.entries) == 1


def test_a_batch_waits_for_the_last_transactions_marker_and_is_appended_behind_it(bench: Bench) -> None:
    bench.transactions.manners.marker_ms = (50, 50)
    identity = bench.started()
    assert bench.produce(12, {T0: batch(identity)}) == [0]
    following = bench.end(identity, 5)
    assert bench.produce(12, {T0: batch((following.producer_id, following.producer_epoch))}) == [0]
    entries = bench.cluster.topics["t"].partitions[0].entries
    assert [entry.commits for entry in entries] == [None, True, None]


def test_a_leader_that_loses_its_place_meanwhile_appends_nothing() -> None:
    bench = Bench(between_ms=5)
    identity = bench.started()
    bench.send(frame_of(PRODUCE, 12, **bench.produce_values(12, {T0: batch(identity)})))
    bench.world.pass_ms(1)
    partition = bench.cluster.topics["t"].partitions[0]
    bench.cluster.move(partition, 2, True, (0.0, 0.0))
    bench.world.pass_ms(10)
    (answer,) = bench.conversations[1][0].answers
    assert read(PRODUCE, 12, answer).responses[0].partition_responses[0].error_code == NOT_LEADER
    assert partition.entries == []


def test_a_crash_meanwhile_appends_nothing() -> None:
    bench = Bench(between_ms=5)
    identity = bench.started()
    bench.send(frame_of(PRODUCE, 12, **bench.produce_values(12, {T0: batch(identity)})))
    bench.world.pass_ms(1)
    bench.brokers[1].crash()
    bench.world.pass_ms(10)
    assert bench.conversations[1][0].answers == []
    assert bench.cluster.topics["t"].partitions[0].entries == []


def test_a_paused_coordinator_lets_leaders_wait() -> None:
    bench = Bench(between_ms=5)
    identity = bench.started()
    partition = bench.cluster.topics["t"].partitions[0]
    bench.cluster.move(partition, 2, True, (0.0, 0.0))
    bench.world.pass_ms(0)
    bench.brokers[1].paused_until_ns = bench.world.now_ns + 500 * NS_PER_MS
    bench.send(frame_of(PRODUCE, 12, **bench.produce_values(12, {T0: batch(identity)})), node=2)
    bench.world.pass_ms(499)
    assert bench.conversations[2][0].answers == []
    bench.world.pass_ms(1)
    assert len(bench.conversations[2][0].answers) == 1
    assert len(partition.entries) == 1


def test_a_paused_coordinator_aborts_nothing() -> None:
    bench = Bench()
    assert bench.add(bench.started(), T0) == [0]
    bench.world.pass_ms(59_000)
    bench.brokers[1].paused_until_ns = bench.world.now_ns + 5000 * NS_PER_MS
    bench.world.pass_ms(4999)
    assert bench.places() == {T0}
    bench.world.pass_ms(10_000)
    assert bench.places() == set()


@pytest.mark.parametrize("trouble", ["paused", "down"])
def test_markers_wait_for_a_leader(bench: Bench, trouble: str) -> None:
    identity = bench.started()
    partition = bench.cluster.topics["t"].partitions[0]
    bench.cluster.move(partition, 2, True, (0.0, 0.0))
    bench.world.pass_ms(0)
    assert bench.produce(12, {T0: batch(identity)}, node=2) == [0]
    if trouble == "paused":
        bench.brokers[2].paused_until_ns = bench.world.now_ns + 5000 * NS_PER_MS
    else:
        bench.brokers[2].crash()
        bench.world.after(5000, bench.brokers[2].start)
    assert bench.end(identity, 5).error_code == 0
    bench.world.pass_ms(4999)
    assert len(partition.entries) == 1
    bench.world.pass_ms(1001)
    assert bench.visible(T0) == 1


def test_the_requests_of_closed_connections_that_act_on_any_transaction_are_dropped(bench: Bench) -> None:
    """They would act on the next transaction, which is the hole in the protocol's first version."""
    identity = bench.started()
    assert bench.add(identity, T0) == [0]
    for broker in bench.brokers.values():
        broker.manners.zombies = 1.0
        broker.manners.handling_ms = (10, 10)
    for version in (4, 5):
        _, conversation = bench.connected(1)
        values = {"transactional_id": "x", "producer_id": identity[0], "producer_epoch": identity[1]}
        conversation.receive(frame_of(END_TXN, version, **values, committed=True))
        conversation.gone()
        bench.world.pass_ms(20)
        state = bench.transactions.of("x").state
        assert state is not None
        assert state.name == ("Ongoing" if version == 4 else "PrepareCommit")


def test_at_level_0_a_produce_that_adds_wedges_the_id() -> None:
    bench = Bench(level=0)
    identity = bench.started()
    assert bench.produce(12, {T0: batch(identity)}) == [ErrorCode.UNSUPPORTED_VERSION]
    assert bench.init().error_code == ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize(
    ("values", "transactional", "why"),
    [
        ({}, False, "a batch for t-0 lacks the bit"),
        ({"transactional_id": None}, True, "a batch for t-0 comes without a transactional id"),
        ({"acks": 1}, True, "a batch for t-0 comes with acks=1"),
    ],
)
def test_what_a_transactional_producer_must_not_send(
    bench: Bench, values: dict[str, Any], transactional: bool, why: str
) -> None:
    identity = bench.started()
    data = batch(identity, transactional=transactional)
    assert bench.produce(12, {T0: data}, **values) == [ErrorCode.INVALID_TXN_STATE]
    (violation,) = bench.transactions.violations
    assert violation.startswith(why)
    assert bench.places() == set()


def test_identities_are_not_mixed_in_a_request(bench: Bench) -> None:
    producer_id, epoch = bench.started()
    data = {T0: batch((producer_id, epoch)), U0: batch((producer_id, epoch + 1))}
    assert bench.produce(12, data) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
    assert len(bench.transactions.violations) == 1


# Requests to coordinators


@pytest.mark.parametrize("version", range(7))
def test_a_coordinator_is_found_once_its_topic_is_made(bench: Bench, version: int) -> None:
    bench.transactions.manners.makes_topics = True

    def found(kind: int, key: str) -> Any:
        body = bench.asked(FIND_COORDINATOR, version, node=2, key=key, key_type=kind, coordinator_keys=(key,))
        return body.coordinators[0] if version >= 4 else body

    kind, key = (1, "x") if version >= 1 else (0, "g")
    assert found(kind, key).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    told = found(kind, key)
    assert (told.error_code, told.node_id, told.host, told.port) == (0, 1, "b1", 9092)
    bench.homes.crash(1)
    bench.homes.home(ID if kind else GROUP, key).views[2] = -1
    assert found(kind, key).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.transactions.denied |= {(ID, "x"), (GROUP, "g")}
    assert found(kind, key).error_code == (ID_DENIED if kind else GROUP_DENIED)


@pytest.mark.parametrize("version", range(6))
def test_init_producer_id_says_fenced_from_version_4_on(bench: Bench, version: int) -> None:
    producer_id, epoch = bench.started()
    assert bench.init(version).error_code == 0
    bench.init()
    if version >= 3:
        fenced = bench.init(version, producer_id, epoch)
        assert fenced.error_code == (
            ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH
        )
        assert (fenced.producer_id, fenced.producer_epoch) == (-1, -1)


@pytest.mark.parametrize("version", range(4))
def test_add_partitions_says_fenced_from_version_2_on(bench: Bench, version: int) -> None:
    identity = bench.started()
    bench.started()
    code = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert bench.add(identity, T0, U0, version=version) == [code, code]


@pytest.mark.parametrize("version", range(6))
def test_end_txn_says_fenced_from_version_2_on_and_no_identity_with_an_error(
    bench: Bench, version: int
) -> None:
    identity = bench.started()
    bench.started()
    body = bench.end(identity, version)
    assert body.error_code == (
        ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    )
    if version >= 5:
        assert (body.producer_id, body.producer_epoch) == (-1, -1)


def added_offsets(bench: Bench, identity: tuple[int, int], version: int) -> int:
    body = bench.asked(
        ADD_OFFSETS_TO_TXN,
        version,
        transactional_id="x",
        producer_id=identity[0],
        producer_epoch=identity[1],
        group_id="g",
    )
    return int(body.error_code)


@pytest.mark.parametrize("version", range(5))
def test_add_offsets_adds_the_group(bench: Bench, version: int) -> None:
    former, identity = bench.started(), bench.started()
    assert added_offsets(bench, former, version) == (
        ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    )
    assert added_offsets(bench, identity, version) == 0
    assert bench.places() == {bench.offsets.group("g").place}
    assert bench.commit_offsets(identity, min(version, 4), "t") == [0]
    bench.transactions.denied.add((GROUP, "g"))
    assert added_offsets(bench, identity, version) == GROUP_DENIED


def test_one_bad_partition_and_none_is_added(bench: Bench) -> None:
    identity = bench.started()
    assert bench.add(identity, T0) == [0]
    bench.transactions.denied.add(("topic", "u"))
    assert bench.add(identity, T1, ("t", 7), U0) == [OPERATION_NOT_ATTEMPTED, UNKNOWN_TOPIC, TOPIC_DENIED]
    assert bench.places() == {T0}


def test_requests_without_rights(bench: Bench) -> None:
    identity = bench.started()
    bench.transactions.denied.add((ID, "x"))
    assert bench.init().error_code == ID_DENIED
    assert bench.add(identity, T0) == [ID_DENIED]
    assert added_offsets(bench, identity, 4) == ID_DENIED
    assert bench.end(identity, 5).error_code == ID_DENIED
    assert bench.commit_offsets(identity, 5, "t", "u") == [ID_DENIED, ID_DENIED]
    # After the grant everything works in the same epoch.
    bench.transactions.denied.clear()
    assert bench.add(identity, T0) == [0]
    assert bench.end(identity, 5).error_code == 0


def test_offsets_are_refused_by_partition_and_group(bench: Bench) -> None:
    identity = bench.started()
    bench.transactions.denied.add(("topic", "u"))
    assert bench.commit_offsets(identity, 5, "t", "u", "v") == [0, TOPIC_DENIED, UNKNOWN_TOPIC]
    assert set(bench.offsets.group("g").pending[identity[0]]) == {T0}
    bench.transactions.denied.add((GROUP, "g"))
    assert bench.commit_offsets(identity, 5, "t") == [GROUP_DENIED]


def test_empty_offsets_add_nothing(bench: Bench) -> None:
    identity = bench.started()
    assert bench.commit_offsets(identity, 5) == []
    assert bench.places() == set()


def test_other_brokers_are_no_coordinators(bench: Bench) -> None:
    identity = bench.started()
    for kind, name in ((ID, "x"), (GROUP, "g")):
        bench.homes.move(bench.homes.home(kind, name), 2)
    assert bench.init().error_code == ErrorCode.NOT_COORDINATOR
    assert bench.add(identity, T0) == [ErrorCode.NOT_COORDINATOR]
    assert added_offsets(bench, identity, 4) == ErrorCode.NOT_COORDINATOR
    assert bench.end(identity, 5).error_code == ErrorCode.NOT_COORDINATOR
    assert bench.commit_offsets(identity, 5, "t") == [ErrorCode.NOT_COORDINATOR]


def test_a_transaction_is_described(bench: Bench) -> None:
    identity = bench.started()
    bench.add(identity, T0, T1)
    bench.commit_offsets(identity, 5, "t")
    (told,) = bench.asked(DESCRIBE_TRANSACTIONS, 0, transactional_ids=("x",)).transaction_states
    assert (told.transaction_state, told.producer_id, told.producer_epoch) == ("Ongoing", *identity)
    assert told.transaction_timeout == milliseconds(60_000)
    assert {topic.topic: topic.partitions for topic in told.topics} == {
        "t": (0, 1),
        "__consumer_offsets": (0,),
    }


@pytest.mark.parametrize("version", [3, 4])
def test_faults_are_those_that_a_version_knows(bench: Bench, version: int) -> None:
    identity = bench.started()
    bench.transactions.manners.faults = [ErrorCode.TRANSACTION_ABORTABLE]
    bench.transactions.manners.fault_rate = 1.0
    code = ErrorCode.TRANSACTION_ABORTABLE if version >= 4 else ErrorCode.CONCURRENT_TRANSACTIONS
    assert bench.end(identity, version).error_code == code
    assert added_offsets(bench, identity, version) == code
