"""A rejected batch is sent to the leader that the response names (KIP-951), unless that is of no use."""

import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from cyproducer.errors import KafkaProtocolError
from cyproducer.wire import protocol
from cyproducer.wire.responses import BrokerInfo
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import METADATA, PRODUCE, Act, Received, ScriptedCluster
from tests.scripted.scripted_model import Answers
from tools.harness.reference_records import PartitionResponse, encode_produce_response
from tools.harness.rig import Rig

NOT_LEADER, FENCED_LEADER_EPOCH = 6, 74
NEVER_MS = 3_600_000
ENDPOINTS = [(2, "two.example", 9093, None), (7, "2001:db8::7", 1, "räck")]
BROKERS = [BrokerInfo(*endpoint) for endpoint in ENDPOINTS]


def producing_first(cluster: ScriptedCluster, **given: Any) -> Any:
    """A producer that knows only broker 1, and whose backoff does not end during a test."""
    cluster.tells_leader = True
    return producing(
        cluster,
        **{
            "bootstrap_servers": [cluster.nodes[1].address],
            "retry_backoff_ms": NEVER_MS,
            "retry_backoff_max_ms": NEVER_MS,
            **given,
        },
    )


@pytest.mark.parametrize("version", [10, 12, 13])
def test_records_go_at_once_to_a_leader_that_only_the_response_names(version: int) -> None:
    with ScriptedCluster(2) as cluster, producing_first(cluster) as producer:
        cluster.unlisted.add(2)
        for node in cluster.nodes.values():
            node.versions[PRODUCE] = (3, version)
        topic = cluster.create_topic("orders", 2, [1, 1])
        producer.send("orders", b"1", partition=0).get(WAIT_S)
        cluster.move_leader("orders", 0, 2)
        before = len(cluster.received(METADATA))
        assert producer.send("orders", b"2", partition=0).get(WAIT_S).offset == 1
        assert producer.send("orders", b"3", partition=0).get(WAIT_S).offset == 2
        producer.send("orders", b"4", partition=1).get(WAIT_S)
        assert topic.partitions[0].values == [b"1", b"2", b"3"]
        # The second record was rejected once, the third was not, and partition 1 kept its leader.
        assert [r.connection.node.id for r in cluster.received(PRODUCE)] == [1, 1, 2, 2, 1]
        assert len(cluster.received(METADATA)) == before


def test_metadata_without_the_new_leader_does_not_remove_it() -> None:
    with ScriptedCluster(2) as cluster:
        cluster.unlisted.add(2)
        topic = cluster.create_topic("orders", 1, [1])
        given = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 1, "metadata_max_age_ms": 20}
        with producing_first(cluster, **given) as producer:
            producer.send("orders", b"1").get(WAIT_S)

            def move(received: Received) -> None:
                # Not before: an update before the request would name a leader without an address.
                if received.api_key == PRODUCE and topic.partitions[0].leader == 1:
                    cluster.move_leader("orders", 0, 2)

            cluster.script = move
            producer.send("orders", b"2").get(WAIT_S)
            cluster.wait_for_requests(METADATA, len(cluster.received(METADATA)) + 2)
            assert producer.send("orders", b"3").get(WAIT_S).offset == 2
            assert len(cluster.nodes[2].connections) == 1
            assert topic.values == [b"1", b"2", b"3"]


def test_a_known_broker_needs_no_endpoint() -> None:
    with ScriptedCluster(2) as cluster, producing_first(cluster) as producer:
        cluster.create_topic("orders", 1, [1])
        producer.send("orders", b"1").get(WAIT_S)
        cluster.move_leader("orders", 0, 2)

        def without_endpoints(response: bytes) -> bytes:
            # The response's only tagged field is at its end.
            size = len(encode_produce_response(13, 0, [], 0, [(2, "127.0.0.1", cluster.nodes[2].port, None)]))
            tags = size - len(encode_produce_response(13, 0, [])) + 1
            return struct.pack(">i", len(response) - 4 - tags + 1) + response[4:-tags] + b"\x00"

        cluster.act(PRODUCE, Act(rewrite=without_endpoints))
        assert producer.send("orders", b"2").get(WAIT_S).offset == 1


def refuse_naming(node_id: int, epoch: int) -> Act:
    def name(answers: Answers) -> Answers:
        return [
            (topic, [p._replace(current_leader=(node_id, epoch)) for p in parts]) for topic, parts in answers
        ]

    return Act(error=NOT_LEADER, append=False, edit=name)


@pytest.mark.parametrize(
    ("node_id", "epoch"),
    [
        pytest.param(1, 99, id="the broker that rejects"),
        pytest.param(2, -1, id="no epoch"),
        pytest.param(9, 99, id="an unknown broker"),
    ],
)
def test_a_response_without_a_usable_leader_causes_a_backoff(node_id: int, epoch: int) -> None:
    times: list[float] = []

    def script(received: Received) -> Act | None:
        if received.api_key != PRODUCE:
            return None
        times.append(time.monotonic())
        return refuse_naming(node_id, epoch) if len(times) == 1 else None

    with ScriptedCluster(2) as cluster:
        cluster.create_topic("orders", 1, [1])
        cluster.script = script
        with producing_first(cluster, retry_backoff_ms=400, retry_backoff_max_ms=400) as producer:
            producer.send("orders", b"1").get(WAIT_S)
    refused, taken = times
    assert taken - refused >= 0.3


@pytest.mark.parametrize("code", [NOT_LEADER, FENCED_LEADER_EPOCH])
def test_leaders_are_reported_before_the_fate_of_their_batches_is_decided(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Rig({"t": [1, 1, 1]}, produce_version=12, linger_ms=1) as rig:
        order: list[str] = []
        tell, decide = rig.control.on_leaders, rig.fates.decide

        def told(*args: Any) -> None:
            order.append("leaders")
            tell(*args)

        def came_back(*args: Any) -> Any:
            order.append("batch")
            return decide(*args)

        monkeypatch.setattr(rig.control, "on_leaders", told)
        monkeypatch.setattr(rig.fates, "decide", came_back)
        futures = [rig.send("t", b"%d" % i, partition=i) for i in range(3)]
        rig.clock.advance_ms(1)
        respond(
            rig,
            lambda p: p._replace(error_code=code, current_leader=(p.partition, 5)) if p.partition else p,
        )
        assert futures[0].succeeded()
        assert order == ["leaders", "batch", "batch"]
        ((node, leaders, endpoints),) = rig.control.leaders
        assert (node, leaders) == (1, [("t", 1, 1, 5), ("t", 2, 2, 5)])
        assert endpoints is not None
        assert protocol.decode_node_endpoints(endpoints) == BROKERS


def test_a_leader_with_another_error_or_with_success_is_ignored() -> None:
    with Rig({"t": [1, 1]}, produce_version=12, linger_ms=1) as rig:
        for i in range(2):
            rig.send("t", b"%d" % i, partition=i)
        rig.clock.advance_ms(1)
        respond(rig, lambda p: p._replace(error_code=7 * p.partition, current_leader=(2, 5)))
        assert [place for place, _, _ in rig.fates.failures] == [("t", 1)]
        assert rig.control.leaders == []


def respond(rig: Rig, change: Callable[[PartitionResponse], PartitionResponse]) -> None:
    (seen,) = rig.requests()
    answers: Answers = [
        (topic, [change(PartitionResponse(index, base_offset=0)) for index, _ in partitions])
        for topic, partitions in seen.request.topics
    ]
    rig.respond(seen, answers, endpoints=ENDPOINTS)


def test_an_invalid_endpoint_does_no_harm() -> None:
    with ScriptedCluster(2) as cluster:
        topic = cluster.create_topic("orders", 1, [1])
        port = struct.pack(">i", cluster.nodes[2].port)
        with producing_first(cluster, retry_backoff_ms=10, retry_backoff_max_ms=10) as producer:
            producer.send("orders", b"1").get(WAIT_S)
            cluster.move_leader("orders", 0, 2)
            cluster.act(PRODUCE, Act(rewrite=lambda response: response.replace(port, bytes(4))))
            assert producer.send("orders", b"2").get(WAIT_S).offset == 1
            assert topic.values == [b"1", b"2"]
            assert len(cluster.nodes[1].connections) <= 2


# The field itself


def field_of(endpoints: list[tuple[int, str, int, str | None]]) -> bytes:
    """Returns the bytes of the tagged field, taken from a response without topics."""
    response = encode_produce_response(13, 1, [], 0, endpoints)
    # Length, correlation id, header tags, topics, throttle time; then one tag, 0, of less than 128 bytes.
    start = 4 + 4 + 1 + 1 + 4
    assert response[start : start + 3] == bytes([1, 0, len(response) - start - 3])
    return response[start + 3 :]


def test_endpoints_are_read() -> None:
    assert protocol.decode_node_endpoints(field_of(ENDPOINTS)) == BROKERS
    # Encoded by hand: count, node 3, "h", port 9092, no rack, one unknown tag.
    golden = bytes.fromhex("02 00000003 0268 00002384 00 01 05 01 ff")
    assert protocol.decode_node_endpoints(golden) == [BrokerInfo(3, "h", 9092, None)]


@pytest.mark.parametrize("cut", range(len(field_of(ENDPOINTS))))
def test_truncated_endpoints_are_rejected(cut: int) -> None:
    with pytest.raises(KafkaProtocolError):
        protocol.decode_node_endpoints(field_of(ENDPOINTS)[:cut])


def test_endpoints_with_trailing_bytes_are_rejected() -> None:
    with pytest.raises(KafkaProtocolError, match="end was expected"):
        protocol.decode_node_endpoints(field_of(ENDPOINTS) + b"\x00")


@pytest.mark.parametrize(("host", "port"), [("", 9092), ("h", 0), ("h", -1), ("h", 65536)])
def test_invalid_addresses_are_rejected(host: str, port: int) -> None:
    with pytest.raises(KafkaProtocolError, match=r"of node 3 is not an address: it must be a host and"):
        protocol.decode_node_endpoints(field_of([(3, host, port, None)]))


def test_a_node_id_below_zero_is_rejected() -> None:
    with pytest.raises(KafkaProtocolError, match="node -1 at 'h':9092 is no broker: node ids are 0 or more"):
        protocol.decode_node_endpoints(field_of([(2, "h", 9092, None), (-1, "h", 9092, None)]))
