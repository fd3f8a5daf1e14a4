"""The messages against an independent broker implementation: librdkafka's mock cluster."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, TypeVar

import pytest

from cyproducer.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from cyproducer.testing import EmbeddedBroker
from cyproducer.wire import protocol
from cyproducer.wire.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from cyproducer.wire.responses import ApiVersionsResponse
from cyproducer.wire.schema import Api
from cyproducer.wire.versions import negotiate

TIMEOUT_S = 10.0
T = TypeVar("T")


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(brokers=2) as broker:
        broker.create_topic("orders", 4)
        yield broker


@pytest.fixture
def connection(broker: EmbeddedBroker) -> Iterator[socket.socket]:
    host, port = broker.bootstrap_servers.split(",")[0].rsplit(":", 1)
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        yield connection


def exchange(connection: socket.socket, request: bytes, version: int, decode: Callable[[int, bytes], T]) -> T:
    connection.sendall(request)
    with connection.makefile("rb") as stream:
        frame = stream.read(int.from_bytes(stream.read(4), "big"))
    assert frame[:4] == request[8:12]
    return decode(version, frame)


def api_versions(connection: socket.socket, version: int) -> ApiVersionsResponse:
    request = protocol.encode_api_versions(version, 7, "test", "cyproducer", "0.1.0")
    return exchange(connection, request, version, protocol.decode_api_versions)


def common_versions(connection: socket.socket, api: Api) -> range:
    lowest, highest = api_versions(connection, 0).api_versions[api.key]
    return range(max(lowest, api.lowest), min(highest, api.highest) + 1)


@pytest.mark.parametrize("version", range(5))
def test_api_versions_lead_to_a_choice(connection: socket.socket, version: int) -> None:
    answer = api_versions(connection, version)
    if answer.error_code == 35:
        assert version > 0
        answer = api_versions(connection, answer.api_versions.get(API_VERSIONS.key, (0, 0))[1])
    assert answer.error_code == 0
    chosen = negotiate(answer.api_versions)
    assert chosen[PRODUCE] >= 7
    assert chosen[METADATA] >= 9


def test_metadata_names_brokers_and_leaders(connection: socket.socket, broker: EmbeddedBroker) -> None:
    versions = common_versions(connection, METADATA)
    assert len(versions) > 5
    for version in versions:
        request = protocol.encode_metadata(version, version, "test", ["orders"], True)
        answer = exchange(connection, request, version, protocol.decode_metadata)
        assert ",".join(f"{info.host}:{info.port}" for info in answer.brokers) == broker.bootstrap_servers
        (topic,) = answer.topics
        assert (topic.error_code, topic.name) == (0, "orders")
        assert [partition.partition for partition in topic.partitions] == [0, 1, 2, 3]
        assert {partition.leader for partition in topic.partitions} <= {1, 2}


def test_no_topics_requests_only_brokers_and_none_all_topics(connection: socket.socket) -> None:
    version = common_versions(connection, METADATA)[-1]
    request = protocol.encode_metadata(version, 1, "test", [], True)
    assert exchange(connection, request, version, protocol.decode_metadata).topics == []
    request = protocol.encode_metadata(version, 1, "test", None, True)
    answer = exchange(connection, request, version, protocol.decode_metadata)
    assert [topic.name for topic in answer.topics] == ["orders"]


def test_the_broker_assigns_producer_ids(connection: socket.socket) -> None:
    versions = common_versions(connection, INIT_PRODUCER_ID)
    assert len(versions) > 3
    for version in versions:
        request = protocol.encode_init_producer_id(version, 3, None, None, 60_000)
        answer = exchange(connection, request, version, protocol.decode_init_producer_id)
        assert answer.error_code == 0
        assert answer.producer_id >= 0
        assert answer.producer_epoch == 0


def test_transactions_have_a_coordinator(connection: socket.socket, broker: EmbeddedBroker) -> None:
    versions = common_versions(connection, FIND_COORDINATOR)
    assert len(versions) > 2
    for version in versions:
        for key_type in (0, 1):
            request = protocol.encode_find_coordinator(version, 1, "test", key_type, "some")
            answer = exchange(connection, request, version, protocol.decode_find_coordinator)
            assert answer.error_code == 0
            assert f"{answer.host}:{answer.port}" in broker.bootstrap_servers.split(",")


@pytest.mark.parametrize("committed", [True, False])
def test_the_broker_takes_part_in_transactions(connection: socket.socket, committed: bool) -> None:
    with ExitStack() as stack:

        def coordinator(key_type: int) -> socket.socket:
            request = protocol.encode_find_coordinator(2, 1, "test", key_type, "some")
            answer = exchange(connection, request, 2, protocol.decode_find_coordinator)
            return stack.enter_context(socket.create_connection((answer.host, answer.port), TIMEOUT_S))

        of_group, of_transactions = coordinator(0), coordinator(1)
        request = protocol.encode_init_producer_id(2, 1, "test", "some", 60_000)
        identity = exchange(of_transactions, request, 2, protocol.decode_init_producer_id)
        assert identity.error_code == 0
        ours = ("some", identity.producer_id, identity.producer_epoch)
        group = ConsumerGroupMetadata("some")
        places = {("orders", 1): 0, ("orders", 3): 0}
        offsets = {TopicPartition(*place): OffsetAndMetadata(5) for place in places}
        steps: tuple[tuple[Api, socket.socket, Any, Any, Any, Any], ...] = (
            (
                ADD_PARTITIONS_TO_TXN,
                of_transactions,
                protocol.encode_add_partitions_to_txn,
                [{"orders": [1, 3]}],
                protocol.decode_add_partitions_to_txn,
                (0, places),
            ),
            (
                ADD_OFFSETS_TO_TXN,
                of_transactions,
                protocol.encode_add_offsets_to_txn,
                ["some"],
                protocol.decode_add_offsets_to_txn,
                (0, 0),
            ),
            (
                TXN_OFFSET_COMMIT,
                of_group,
                protocol.encode_txn_offset_commit,
                [group, offsets],
                protocol.decode_txn_offset_commit,
                (0, places),
            ),
            (
                END_TXN,
                of_transactions,
                protocol.encode_end_txn,
                [committed],
                protocol.decode_end_txn,
                (0, 0, -1, -1),
            ),
        )
        for api, place, encode, asked, decode, answer in steps:
            versions = common_versions(connection, api)
            assert len(versions) > 1
            for version in versions:
                assert exchange(place, encode(version, 1, "test", *ours, *asked), version, decode) == answer
