"""The result of ``list_topics()``, with confluent-kafka's classes and attributes.

Owns these classes and their construction from a Metadata response. Any thread may call; the objects belong
to the caller.
"""

from typing import Any

from cyproducer.clients.application_requests import ApplicationRequest
from cyproducer.confluent.errors import KafkaError


class BrokerMetadata:
    """One broker, at the address it advertises."""

    def __init__(self, id: int = -1, host: str | None = None, port: int = -1) -> None:
        self.id = id
        self.host = host
        self.port = port

    def __repr__(self) -> str:
        return f"BrokerMetadata({self.id}, {self.host}:{self.port})"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}/{self.id}"


class PartitionMetadata:
    """One partition: the ids of its leader (-1: none), of its replicas and of those in sync."""

    def __init__(self) -> None:
        self.id = -1
        self.leader = -1
        self.replicas: list[int] = []
        self.isrs: list[int] = []
        self.error: KafkaError | None = None

    def __repr__(self) -> str:
        return f"PartitionMetadata({self.id}{f', {self.error}' if self.error else ''})"

    def __str__(self) -> str:
        return str(self.id)


class TopicMetadata:
    """One topic: its partitions by number, and its error."""

    def __init__(self) -> None:
        self.topic: str | None = None
        self.partitions: dict[int, PartitionMetadata] = {}
        self.error: KafkaError | None = None

    def __repr__(self) -> str:
        error = f", {self.error}" if self.error else ""
        return f"TopicMetadata({self.topic}, {len(self.partitions)} partitions{error})"

    def __str__(self) -> str:
        return str(self.topic)


class ClusterMetadata:
    """The brokers by id and the topics by name; ``orig_broker_...`` is the broker that answered."""

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.brokers: dict[int, BrokerMetadata] = {}
        self.topics: dict[str, TopicMetadata] = {}
        self.orig_broker_id = -1
        self.orig_broker_name: str | None = None

    def __repr__(self) -> str:
        return f"ClusterMetadata({self.cluster_id})"

    def __str__(self) -> str:
        return str(self.cluster_id)


def cluster_metadata(listing: ApplicationRequest) -> ClusterMetadata:
    """Returns the contents of a Metadata response."""
    response = listing.response
    found = ClusterMetadata()
    found.cluster_id = response.cluster_id
    found.controller_id = response.controller_id
    for node_id, host, port, _ in response.brokers:
        found.brokers[node_id] = BrokerMetadata(node_id, host, port)
    # A bootstrap connection does not know the id of its broker.
    found.orig_broker_id = max(-1, listing.node_id)
    found.orig_broker_name = listing.where
    for info in response.topics:
        topic = TopicMetadata()
        topic.topic = info.name
        topic.error = _error(info.error_code)
        each: Any
        for each in info.partitions:
            partition = PartitionMetadata()
            partition.id, partition.leader = each.partition, each.leader
            partition.replicas, partition.isrs = each.replicas, each.in_sync
            partition.error = _error(each.error_code)
            topic.partitions[partition.id] = partition
        found.topics[str(info.name)] = topic
    return found


def _error(code: int) -> KafkaError | None:
    return KafkaError(code) if code else None
