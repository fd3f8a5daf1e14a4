"""The state of an embedded cluster, and the handler of each request.

Owns the composition of the parts: topics, coordinators, nodes, faults, versions. Everything runs on the
thread of the loop.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker import (
    access,
    admin,
    fetch,
    group_requests,
    metadata,
    modern_group_requests,
    produce,
    releases,
    retention,
    telemetry,
    transaction_requests,
)
from cyproducer.testing.broker.access import Access
from cyproducer.testing.broker.configs import Configs
from cyproducer.testing.broker.faults import Faults
from cyproducer.testing.broker.group_offsets import Offsets
from cyproducer.testing.broker.groups import Groups
from cyproducer.testing.broker.homes import GROUP, ID, Homes
from cyproducer.testing.broker.loop import Loop
from cyproducer.testing.broker.partitions import Cluster, Partition, Topic
from cyproducer.testing.broker.server import Call, Handler, LoopWorld, Node
from cyproducer.testing.broker.transactions import (
    FEATURE,
    TRANSACTION_LEVELS,
    TransactionManners,
    Transactions,
)
from cyproducer.wire.messages import API_VERSIONS, SASL_HANDSHAKE
from cyproducer.wire.schema import Api

if TYPE_CHECKING:
    import ssl

HANDLERS: Final[Mapping[Api, Handler]] = {
    **metadata.HANDLERS,
    **produce.HANDLERS,
    **fetch.HANDLERS,
    **transaction_requests.HANDLERS,
    **admin.HANDLERS,
    **access.HANDLERS,
    **group_requests.HANDLERS,
    **modern_group_requests.HANDLERS,
    **telemetry.HANDLERS,
}


def _context(certificate: str, key: str, client_authority: str | None) -> "ssl.SSLContext":
    # Imported here: most clusters have no TLS, and importing ssl takes long.
    from cyproducer.testing.broker import tls

    return tls.context(certificate, key, client_authority)


class EmbeddedCluster:
    """Brokers 1 to ``nodes``; see ``EmbeddedBroker`` for the arguments."""

    def __init__(
        self,
        loop: Loop,
        nodes: int = 1,
        port: int = 0,
        partitions: int = 3,
        auto_create: bool = True,
        authentication: Mapping[str, Any] | None = None,
        max_bytes: int | None = None,
        tls: tuple[str, str, str | None] | None = None,
        topics: Mapping[str, int] | None = None,
        release: tuple[int, int] = releases.DEFAULT,
        world: LoopWorld | None = None,
        racks: Sequence[str] | None = None,
    ) -> None:
        """``world``: the time; None: real time, on the loop."""
        self.max_bytes = max_bytes
        #: The sum of the sizes of all batches.
        self.bytes = 0
        self.loop = loop
        self.tls = None if tls is None else _context(*tls)
        self.world = LoopWorld(loop) if world is None else world
        self.cluster_id = f"{self.world.random.getrandbits(128):032x}"[:22]
        self.default_partitions = partitions
        self.auto_create = auto_create
        self.access: Access = Access(**(authentication or {}))
        self.faults = Faults()
        self.configs = Configs(release)
        self.nodes = {
            number: Node(self, number, port and port + number - 1, racks[number - 1] if racks else None)
            for number in range(1, nodes + 1)
        }
        self.topics = Cluster(self.world, nodes)
        self.homes = Homes(self.world, list(self.nodes))
        manners = TransactionManners(level=releases.transaction_level(release))
        self.transactions = Transactions(self.world, self.topics, self.homes, manners)
        self.transactions.brokers.update(self.nodes)
        self.offsets = Offsets(self.world, self.homes, self.transactions)
        self.groups = Groups(self.offsets)
        self.handlers = dict(HANDLERS)
        self.apis = {api.key: api for api in self.handlers}
        #: API key -> the lowest and the highest version.
        self.versions = releases.versions(self.handlers, release)
        self.telemetry = telemetry.Telemetry()
        #: The versions of telemetry, which are not offered without a subscription.
        self.unoffered = {api.key: self.versions.pop(api.key, None) for api in telemetry.APIS}
        # With version 0, clients send the mechanism's messages without a request header.
        self.versions[SASL_HANDSHAKE.key] = (1, 1)
        #: The APIs that a refusal of ApiVersions names (KIP-511).
        self.named_in_refusals = [API_VERSIONS.key] if release >= (2, 4) else []
        #: Called with each response, for a log of requests.
        self.on_response: list[Callable[[Call, Any], object]] = []
        #: Called when a partition has new records, or when the end that consumers see changes.
        self.on_append: list[Callable[[Partition], object]] = []
        for name, number in (topics or {}).items():
            self.create_topic(name, number)
        retention.begin(self)

    def note(self, call: Call, response: Any) -> None:
        for seen in self.on_response:
            seen(call, response)

    def _synced(self, partition: Partition) -> None:
        for seen in list(self.on_append):
            seen(partition)

    def has_room(self, partition: Partition, size: int) -> bool:
        """Reserves ``size`` bytes that are about to be appended; returns False if the cluster is full."""
        if self.max_bytes is not None and self.bytes + size > self.max_bytes:
            return False
        self.bytes += size
        return True

    def why_full(self) -> str:
        return f"the embedded broker is full: it holds {self.bytes} bytes, and max_bytes={self.max_bytes}"

    def config(self, topic: str, name: str) -> Any:
        """Returns the value of a topic's configuration."""
        return self.configs.value(topic, name)

    def reconfigured(self, topic: str) -> None:
        """Applies the new configuration of a topic."""
        for partition in self.topics.topics[topic].partitions:
            retention.by_size(self, partition)

    def create_topic(self, name: str, partitions: int | None = None) -> Topic:
        """Creates a topic; the caller has checked the arguments."""
        topic = self.topics.create_topic(name, partitions or self.default_partitions)
        self.watch(topic)
        return topic

    def watch(self, topic: Topic) -> None:
        """Subscribes to appends to a topic's partitions. Some of the partitions may be new."""
        for partition in topic.partitions:
            partition.on_sync = self._synced

    def add_partitions(self, name: str, count: int) -> None:
        """Adds partitions to a topic."""
        self.topics.add_partitions(name, count)
        self.watch(self.topics.topics[name])

    def delete_topic(self, name: str) -> None:
        """Deletes a topic, its configuration, and the offsets that groups have committed for it."""
        for partition in self.topics.topics[name].partitions:
            self.bytes -= sum(entry.size for entry in partition.entries)
        self.topics.delete_topic(name)
        self.configs.topics.pop(name, None)
        for group in self.offsets.groups.values():
            group.committed = {place: each for place, each in group.committed.items() if place[0] != name}

    def delete_before(self, partition: Partition, offset: int) -> int:
        """Deletes records below ``offset``, in whole batches; returns the first remaining offset."""
        if offset > partition.log_start:
            kept = partition.at(offset)
            self.bytes -= sum(entry.size for entry in partition.entries[:kept])
            partition.log_start = offset
            del partition.entries[:kept]
            partition.aborted = [one for one in partition.aborted if one.last >= offset]
        return partition.log_start

    def topic(self, key: str | bytes) -> Topic | None:
        """Returns a topic by its name or the 16 bytes of its id."""
        return self.topics.existing(key)

    def api_versions(self, error: int = ErrorCode.NO_ERROR) -> Any:
        """Returns the response to ApiVersions."""
        features_epoch, level = self.transactions.features.views[1]
        response = API_VERSIONS.response
        keys = [] if error else sorted(self.versions)
        if error == ErrorCode.UNSUPPORTED_VERSION:
            keys = self.named_in_refusals
        return response(
            error_code=error,
            api_keys=[response.ApiVersion(key, *self.versions[key]) for key in keys],
            throttle_time_ms=0,
            supported_features=[
                response.SupportedFeatureKey(FEATURE, TRANSACTION_LEVELS[0], TRANSACTION_LEVELS[-1])
            ],
            finalized_features_epoch=features_epoch,
            finalized_features=[response.FinalizedFeatureKey(FEATURE, level, level)] if level else [],
        )

    def coordinator(self, kind: str, name: str) -> Node | None:
        """Returns the node that coordinates a transactional id (``ID``) or a group (``GROUP``)."""
        assert kind in (ID, GROUP)
        node = self.nodes.get(self.homes.home(kind, name).leader)
        return node if node is not None and node.is_up else None
