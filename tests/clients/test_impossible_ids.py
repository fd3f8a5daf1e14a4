"""Responses with ids, counts and addresses that no broker has: the producer works as soon as they are right.

Ids of nodes below 0 are those of this client's bootstrap addresses.
"""

import struct
from collections.abc import Callable

import pytest

from cyproducer import errors
from tests.scripted import scripted_wire as wire
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import (
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    Act,
    ScriptedCluster,
)
from tests.scripted.scripted_model import Answers
from tests.scripted.transacting import begun, sent
from tools.harness.until import until

pytestmark = pytest.mark.timeout(60)

NOWHERE = 1
"""A port on which nothing listens."""
NOT_LEADER = 6


def listing(*brokers: tuple[int, str, int]) -> Callable[[bytes], bytes]:
    """Makes a Metadata v8 response with these brokers, and without topics, of any response."""

    def rewrite(response: bytes) -> bytes:
        (number,) = struct.unpack_from(">i", response, 4)
        return wire.write_metadata(8, number, brokers, [], "cluster")

    return rewrite


@pytest.mark.parametrize(
    ("broker", "problem"),
    [
        ((-1, "127.0.0.1", NOWHERE), "node -1 at '127.0.0.1':1 is no broker: node ids are 0 or more"),
        ((-(2**31), "h", 9092), "node -2147483648 at 'h':9092 is no broker"),
        ((1, "", 9092), "'':9092 of node 1 is not an address: it must be a host and a port from 1 to 65535"),
        ((1, "127.0.0.1", 0), "'127.0.0.1':0 of node 1 is not an address"),
        ((1, "127.0.0.1", -1), "'127.0.0.1':-1 of node 1 is not an address"),
        ((1, "127.0.0.1", 65536), "'127.0.0.1':65536 of node 1 is not an address"),
    ],
)
def test_metadata_with_no_other_brokers_counts_as_a_failure(
    broker: tuple[int, str, int], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedCluster(orders=1) as cluster:
        cluster.nodes[1].versions[METADATA] = (0, 8)
        cluster.act(METADATA, Act(rewrite=listing(broker)))
        with producing(cluster, max_block_ms=5000) as producer:
            assert producer.send("orders", b"1").get(WAIT_S).offset == 0
            until(lambda: problem in caplog.text, "the warning")
        assert "lists 1 broker that cannot be used, without which this client goes on" in caplog.text


def test_the_error_of_a_wait_for_metadata_says_what_is_wrong_with_it() -> None:
    with ScriptedCluster(orders=1) as cluster:
        cluster.nodes[1].versions[METADATA] = (0, 8)
        cluster.act(METADATA, *[Act(rewrite=listing((-1, "127.0.0.1", NOWHERE)))] * 1000)
        with (
            producing(cluster, max_block_ms=200) as producer,
            pytest.raises(
                errors.KafkaTimeoutError,
                match="metadata response without brokers that can be used: node -1 at '127",
            ),
        ):
            producer.send("orders", b"1").get(WAIT_S)


def test_one_broker_that_cannot_be_does_not_keep_the_client_from_the_others() -> None:
    with ScriptedCluster(2, orders=2) as cluster:
        cluster.nodes[1].versions[METADATA] = cluster.nodes[2].versions[METADATA] = (0, 8)
        host = cluster.nodes[1].host.encode()
        where = struct.pack(">i", 1) + struct.pack(">h", len(host)) + host

        def rewrite(response: bytes) -> bytes:
            assert where in response
            return response.replace(where, struct.pack(">i", -7) + where[4:])

        cluster.script = lambda received: Act(rewrite=rewrite) if received.api_key == METADATA else None
        with producing(cluster, max_block_ms=5000) as producer:
            led = [each.leader for each in cluster.topics["orders"].partitions].index(2)
            assert producer.send("orders", b"1", partition=led).get(WAIT_S).offset == 0


@pytest.mark.parametrize("node_id", [-1, -(2**31)])
def test_a_coordinator_below_zero_is_looked_up_again(node_id: int) -> None:
    with ScriptedCluster(t=1) as cluster:
        changed = 0

        def rewrite(response: bytes) -> bytes:
            nonlocal changed
            host = cluster.nodes[1].host.encode()
            where = struct.pack(">i", 1) + bytes([len(host) + 1]) + host
            changed += where in response
            return response.replace(where, struct.pack(">i", node_id) + where[4:])

        cluster.act(FIND_COORDINATOR, Act(rewrite=rewrite))
        with begun(cluster) as producer:
            producer.send("t", b"1")
            producer.commit_transaction()
        assert changed == 1
        assert len(sent(cluster, "find id")) == 2
        assert cluster.topics["t"].values == [b"1"]


@pytest.mark.parametrize("identity", [(-1, -1), (-1, 0), (7, -1), (-(2**63), 5)])
def test_no_record_is_sent_with_a_producer_id_below_zero(identity: tuple[int, int]) -> None:
    """It would be written without any check for duplicates."""
    with ScriptedCluster(orders=1) as cluster:
        cluster.act(INIT_PRODUCER_ID, Act(identity=identity))
        with producing(cluster) as producer:
            assert producer.send("orders", b"1").get(WAIT_S).offset == 0
        (batch,) = [batch for received in cluster.received(PRODUCE) for batch in received.batches.values()]
        assert batch.producer_id >= 0
        assert batch.producer_epoch >= 0
        assert len(cluster.received(INIT_PRODUCER_ID)) == 2


@pytest.mark.parametrize("leader", [-1, -2, -(2**31)])
def test_a_refusal_that_names_no_leader_is_an_ordinary_one(leader: int) -> None:
    def edit(answers: Answers) -> Answers:
        return [
            (topic, [each._replace(error_code=NOT_LEADER, current_leader=(leader, 9)) for each in parts])
            for topic, parts in answers
        ]

    with ScriptedCluster(orders=1) as cluster:
        cluster.act(PRODUCE, Act(edit=edit, append=False))
        with producing(cluster) as producer:
            assert producer.send("orders", b"1").get(WAIT_S).offset == 0
            assert all(broker.nodeId >= 0 for broker in producer._runtime.client.view.brokers())


def test_offsets_beyond_64_bits_are_malformed() -> None:
    def edit(answers: Answers) -> Answers:
        return [(topic, [each._replace(base_offset=2**63 - 1) for each in parts]) for topic, parts in answers]

    with ScriptedCluster(orders=1) as cluster:
        cluster.act(PRODUCE, Act(edit=edit, append=False))
        with producing(cluster) as producer:
            assert producer.send("orders", b"1").get(WAIT_S).offset == 0
        assert len(cluster.received(PRODUCE)) == 2
