"""The scripted broker's coordinator, asked over a socket by the package's codecs, in every version."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from cyproducer.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from cyproducer.wire import messages as apis
from cyproducer.wire import protocol, transaction_api
from cyproducer.wire.schema import Api
from cyproducer.wire.transaction_api import (
    TransactionListing,
)
from tests.scripted.producing import producing
from tests.scripted.scripted_broker import (
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    Node,
    ScriptedCluster,
)
from tests.scripted.scripted_model import Act
from tests.scripted.scripted_transactions import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    DescribeTransactions,
    EndTxn,
    FindCoordinator,
    InitProducerId,
    ListTransactions,
)

TIMEOUT_S = 10.0
FENCED, NOT_COORDINATOR, CONCURRENT, NOT_ATTEMPTED, NOT_FOUND = 90, 16, 51, 55, 105
IDENTITY = ("tx", 7, 0)
PLACES = {("orders", 0): 0, ("orders", 1): 0, ("refunds", 0): 0}
MEMBER = ConsumerGroupMetadata("g", 9, "m", "i")
OFFSETS = {
    TopicPartition("orders", 0): OffsetAndMetadata(5, "text", 6),
    TopicPartition("orders", 1): OffsetAndMetadata(7),
}


class Asker:
    """A client of one broker, which asks one thing at a time."""

    def __init__(self, node: Node) -> None:
        self._socket = socket.create_connection((node.host, node.port), TIMEOUT_S)
        self._stream = self._socket.makefile("rb")

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def __call__(self, name: str, version: int, *asked: Any) -> Any:
        """Sends the request of this name; returns its response."""
        module: Any = transaction_api if hasattr(transaction_api, f"encode_{name}") else protocol
        self._socket.sendall(getattr(module, f"encode_{name}")(version, 7, "test", *asked))
        frame = self._stream.read(int.from_bytes(self._stream.read(4), "big"))
        return getattr(module, f"decode_{name}")(version, frame)

    def send(self, request: bytes) -> None:
        self._socket.sendall(len(request).to_bytes(4, "big") + request)

    def versions(self, version: int) -> Any:
        return self("api_versions", version, "n", "1")

    def find(self, version: int, key_type: int, key: str) -> Any:
        return self("find_coordinator", version, key_type, key)

    def init(self, version: int, *asked: Any) -> Any:
        return self("init_producer_id", version, *asked)

    def add(self, version: int, partitions: dict[str, list[int]]) -> Any:
        return self("add_partitions_to_txn", version, *IDENTITY, partitions).errors

    def add_offsets(self, version: int, group: str) -> Any:
        return self("add_offsets_to_txn", version, *IDENTITY, group).error_code

    def commit(self, version: int, group: ConsumerGroupMetadata) -> Any:
        return self("txn_offset_commit", version, *IDENTITY, group, OFFSETS).errors

    def end(self, version: int, committed: bool) -> Any:
        return self("end_txn", version, *IDENTITY, committed)

    def describe(self, *transactional_ids: str) -> Any:
        return self("describe_transactions", 0, transactional_ids).transactions

    def list(self, version: int, *filters: Any) -> Any:
        return self("list_transactions", version, *filters)


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(2, orders=2, refunds=1) as cluster:
        yield cluster


@pytest.fixture
def ask(cluster: ScriptedCluster) -> Iterator[Asker]:
    with closing(Asker(cluster.nodes[1])) as ask:
        yield ask


def every_version(api: Api) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("version", range(api.lowest, api.highest + 1))


def last_asked(cluster: ScriptedCluster) -> Any:
    return cluster.requests[-1].transaction


@every_version(apis.FIND_COORDINATOR)
def test_each_broker_is_the_coordinator_unless_the_test_names_one(
    cluster: ScriptedCluster, ask: Asker, version: int
) -> None:
    one, two = cluster.nodes[1], cluster.nodes[2]
    assert ask.find(version, 1, "tx") == (0, 0, None, 1, one.host, one.port)
    assert last_asked(cluster) == FindCoordinator(1, "tx")
    cluster.coordinator.nodes["g"] = 2
    assert ask.find(version, 0, "g") == (0, 0, None, 2, two.host, two.port)
    assert last_asked(cluster) == FindCoordinator(0, "g")
    cluster.act(FIND_COORDINATOR, Act(error=15, message="later", throttle_ms=3))
    assert ask.find(version, 0, "g") == (3, 15, "later", -1, "", -1)


def test_the_coordinator_has_the_address_of_the_metadata(cluster: ScriptedCluster, ask: Asker) -> None:
    cluster.advertised[1] = ("elsewhere", 5)
    assert ask.find(4, 1, "tx")[3:] == (1, "elsewhere", 5)


@every_version(apis.INIT_PRODUCER_ID)
def test_each_init_gives_the_next_epoch(cluster: ScriptedCluster, ask: Asker, version: int) -> None:
    assert ask.init(version, "tx", 1000) == (0, 0, 7, 0)
    assert last_asked(cluster) == InitProducerId("tx", 1000, -1, -1)
    assert ask.init(version, "tx", 1000)[2:] == (7, 1)
    assert ask.init(version, "other", 1000)[2:] == (8, 0)
    assert ask.init(version, None, 1000)[2:] == (4711, 0)
    cluster.act(INIT_PRODUCER_ID, Act(error=CONCURRENT, throttle_ms=3), Act(identity=(9, 5)))
    assert ask.init(version, "tx", 1000) == (3, CONCURRENT, -1, -1)
    assert ask.init(version, "tx", 1000)[2:] == (9, 5)
    assert ask.init(version, "tx", 1000)[2:] == (9, 6)


def test_an_identity_is_bumped(cluster: ScriptedCluster, ask: Asker) -> None:
    assert ask.init(4, "tx", 1000, 7, 41)[2:] == (7, 42)
    assert last_asked(cluster) == InitProducerId("tx", 1000, 7, 41)


@every_version(apis.ADD_PARTITIONS_TO_TXN)
def test_partitions_are_added(cluster: ScriptedCluster, ask: Asker, version: int) -> None:
    assert ask.add(version, {"orders": [0, 1], "refunds": [0]}) == PLACES
    assert last_asked(cluster) == AddPartitions(*IDENTITY, list(PLACES))
    assert cluster.coordinator.transactions["tx"].partitions == list(PLACES)
    assert cluster.coordinator.transactions["tx"].state == "Ongoing"


@every_version(apis.ADD_PARTITIONS_TO_TXN)
def test_one_bad_partition_and_none_is_added(cluster: ScriptedCluster, ask: Asker, version: int) -> None:
    bad = ("orders", 1)
    cluster.act(ADD_PARTITIONS_TO_TXN, Act(error={bad: 29}), Act(error={bad: 29, ("refunds", 0): 0}))
    partitions = {"orders": [0, 1], "refunds": [0]}
    assert ask.add(version, partitions) == dict.fromkeys(PLACES, NOT_ATTEMPTED) | {bad: 29}
    assert ask.add(version, partitions)["refunds", 0] == 0
    cluster.act(ADD_PARTITIONS_TO_TXN, Act(error=CONCURRENT))
    assert ask.add(version, partitions) == dict.fromkeys(PLACES, CONCURRENT)
    assert cluster.coordinator.transactions == {}


@every_version(apis.ADD_OFFSETS_TO_TXN)
def test_a_group_is_added(cluster: ScriptedCluster, ask: Asker, version: int) -> None:
    assert ask.add_offsets(version, "g") == 0
    assert last_asked(cluster) == AddOffsets(*IDENTITY, "g")
    assert cluster.coordinator.transactions["tx"].state == "Ongoing"
    cluster.act(apis.ADD_OFFSETS_TO_TXN.key, Act(error=FENCED))
    assert ask.add_offsets(version, "g") == FENCED


@every_version(apis.TXN_OFFSET_COMMIT)
@pytest.mark.parametrize("committed", [True, False])
def test_offsets_are_committed_with_the_transaction(
    cluster: ScriptedCluster, ask: Asker, version: int, committed: bool
) -> None:
    group = MEMBER if version >= 3 else ConsumerGroupMetadata("g")
    assert ask.commit(version, group) == dict.fromkeys(OFFSETS, 0)
    sent: dict[tuple[str, int], OffsetAndMetadata] = {
        place: offset if version >= 2 else offset._replace(leader_epoch=-1)
        for place, offset in OFFSETS.items()
    }
    assert last_asked(cluster) == CommitOffsets(*IDENTITY, group, sent)
    assert cluster.coordinator.committed == {}
    ask.end(3, committed)
    assert cluster.coordinator.committed == ({"g": sent} if committed else {})


def test_a_test_can_refuse_offsets(cluster: ScriptedCluster, ask: Asker) -> None:
    bad, good = OFFSETS
    cluster.act(TXN_OFFSET_COMMIT, Act(error=CONCURRENT), Act(error={bad: 12}))
    assert ask.commit(5, MEMBER) == dict.fromkeys(OFFSETS, CONCURRENT)
    assert cluster.coordinator.transactions == {}
    assert ask.commit(5, MEMBER) == {bad: 12, good: 0}
    assert cluster.coordinator.transactions["tx"].state == "Ongoing"
    ask.end(5, True)
    assert cluster.coordinator.committed == {"g": {good: OFFSETS[good]}}


@every_version(apis.END_TXN)
@pytest.mark.parametrize(("committed", "state"), [(True, "CompleteCommit"), (False, "CompleteAbort")])
def test_the_end_gives_the_next_identity(
    cluster: ScriptedCluster, ask: Asker, version: int, committed: bool, state: str
) -> None:
    ask.init(4, "tx", 1000)
    ask.add(3, {"orders": [0]})
    following = (7, 1) if version >= 5 else (-1, -1)
    for _ in range(2):
        # One that is repeated is answered as before.
        assert ask.end(version, committed) == (0, 0, *following)
        assert last_asked(cluster) == EndTxn(*IDENTITY, committed)
    assert ask.describe("tx")[0][1:3] == ("tx", state)
    assert ask.init(4, "tx", 1000)[2:] == (7, 2 if version >= 5 else 1)
    cluster.act(END_TXN, Act(error=FENCED, throttle_ms=3), Act(identity=(8, 0)))
    assert ask.end(version, committed) == (3, FENCED, -1, -1)
    assert ask.end(version, committed)[2:] == ((8, 0) if version >= 5 else (-1, -1))


def test_a_transaction_is_described(cluster: ScriptedCluster, ask: Asker) -> None:
    ask.init(4, "tx", 1000)
    ask.add(3, {"orders": [0, 1], "refunds": [0]})
    cluster.coordinator.transactions["tx"].start_time_ms = 5
    known, unknown = ask.describe("tx", "other")
    assert last_asked(cluster) == DescribeTransactions(["tx", "other"])
    assert known == (0, "tx", "Ongoing", 1000, 5, 7, 0, {"orders": [0, 1], "refunds": [0]})
    assert (unknown.error_code, unknown.transactional_id) == (NOT_FOUND, "other")


@every_version(apis.LIST_TRANSACTIONS)
def test_transactions_are_listed(cluster: ScriptedCluster, ask: Asker, version: int) -> None:
    for transactional_id in ("tx", "ty", "z"):
        ask.init(4, transactional_id, 1000)
    ask.add(3, {"orders": [0]})
    tx, ty, z = TransactionListing("tx", 7, "Ongoing"), ("ty", 8, "Empty"), ("z", 9, "Empty")
    assert ask.list(version) == (0, 0, [], [tx, ty, z])
    assert last_asked(cluster) == ListTransactions([], [], -1, None)
    assert ask.list(version, ["Ongoing", "Idle"]) == (0, 0, ["Idle"], [tx])
    assert ask.list(version, (), [8]).transactions == [ty]
    if version >= 1:
        ask.list(version, (), (), 500)
        assert last_asked(cluster) == ListTransactions([], [], 500, None)
    if version >= 2:
        assert ask.list(version, (), (), -1, "t.").transactions == [tx, ty]
        assert ask.list(version, (), (), -1, "t").transactions == []
    cluster.act(apis.LIST_TRANSACTIONS.key, Act(error=14))
    assert ask.list(version) == (0, 14, [], [])


def test_other_brokers_are_not_the_coordinator(cluster: ScriptedCluster, ask: Asker) -> None:
    cluster.coordinator.nodes["tx"] = 2
    assert ask.init(4, "tx", 1000) == (0, NOT_COORDINATOR, -1, -1)
    assert set(ask.add(3, {"orders": [0]}).values()) == {NOT_COORDINATOR}
    assert ask.add_offsets(3, "g") == NOT_COORDINATOR
    assert ask.end(5, True).error_code == NOT_COORDINATOR
    assert ask.describe("tx")[0].error_code == NOT_COORDINATOR
    # The group's coordinator is another question.
    assert ask.commit(3, MEMBER) == dict.fromkeys(OFFSETS, 0)
    assert ask.list(2).transactions == []
    cluster.coordinator.nodes["g"] = 2
    assert set(ask.commit(3, MEMBER).values()) == {NOT_COORDINATOR}


@pytest.mark.parametrize("version", range(5))
def test_brokers_tell_features(cluster: ScriptedCluster, ask: Asker, version: int) -> None:
    assert ask.versions(version)[3:] == ({}, -1)
    cluster.set_transaction_version(2, 41)
    expected = ({"transaction.version": (2, 2)}, 41) if version >= 3 else ({}, -1)
    assert ask.versions(version)[3:] == expected
    cluster.nodes[2].features_epoch = 40
    with closing(Asker(cluster.nodes[2])) as another:
        assert another.versions(4).features_epoch == 40
    cluster.set_transaction_version(None, 42)
    assert ask.versions(version)[3:] == ({}, 42 if version >= 3 else -1)


def test_versions_for_brokers_fail_the_test() -> None:
    # Version 4: no transaction, in the layout for brokers.
    body = bytes.fromhex("0018 0004 00000007 ffff 00  01 00")
    with ExitStack() as stack:
        cluster = ScriptedCluster()
        stack.callback(cluster.stop)
        ask = stack.enter_context(closing(Asker(cluster.nodes[1])))
        ask.send(body)
        cluster.wait_for(lambda: cluster.failures != [])
    assert "version 4 is for brokers" in str(cluster.failures)


@pytest.mark.parametrize(
    "request_bytes",
    [
        transaction_api.encode_add_partitions_to_txn(3, 7, None, *IDENTITY, {"orders": [0, 1, 0]}),
        # The encoder cannot name a partition twice.
        bytes.fromhex(
            "00000000 001c 0002 00000007 ffff  0002 7478 0001 67 0000000000000007 0000"
            "00000001 0001 74 00000002" + 2 * "00000003 0000000000000005 ffffffff 0000"
        ),
    ],
)
def test_a_partition_named_twice_fails_the_test(request_bytes: bytes) -> None:
    with ExitStack() as stack:
        cluster = ScriptedCluster()
        stack.callback(cluster.stop)
        stack.enter_context(closing(Asker(cluster.nodes[1]))).send(request_bytes[4:])
        cluster.wait_for(lambda: cluster.failures != [])
    assert "a partition is named twice" in str(cluster.failures)


@pytest.mark.parametrize(
    ("version", "partitions"), [(11, []), (12, [("refunds", 0)]), (13, [("refunds", 0)])]
)
def test_newer_produce_requests_add_their_partitions(
    cluster: ScriptedCluster, version: int, partitions: list[tuple[str, int]]
) -> None:
    for node in cluster.nodes.values():
        node.versions[PRODUCE] = (3, version)
    with producing(cluster) as producer:
        producer.send("refunds", b"1").get(TIMEOUT_S)
    (received,) = cluster.received(PRODUCE)
    assert received.header.client_id is not None
    # After the lengths, the header and its tags: no transactional id.
    at = 4 + 8 + 2 + len(received.header.client_id) + 1
    assert received.frame[at] == 0
    with closing(Asker(received.connection.node)) as ask:
        ask.send(received.frame[4:at] + b"\x03tx" + received.frame[at + 1 :])
        cluster.wait_for_requests(PRODUCE, 2)
    known = cluster.coordinator.transactions.get("tx")
    assert (known.partitions if known else []) == partitions


def test_a_batch_of_no_transaction_adds_nothing(cluster: ScriptedCluster) -> None:
    with producing(cluster) as producer:
        producer.send("orders", b"1").get(TIMEOUT_S)
    assert cluster.coordinator.transactions == {}
    assert cluster.received(INIT_PRODUCER_ID)[0].transaction == InitProducerId(None, 0x7FFFFFFF, -1, -1)
