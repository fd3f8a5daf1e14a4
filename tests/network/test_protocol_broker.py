"""The messages against an independent broker implementation: librdkafka's mock cluster."""

import socket
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from cyproducer.control.apis import (
    API_VERSIONS,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    Api,
    ApiVersionsResponse,
    negotiate,
)
from cyproducer.network import protocol
from cyproducer.testing import EmbeddedBroker

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
