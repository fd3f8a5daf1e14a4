"""The operations of a test on an embedded cluster: ``EmbeddedBroker``'s calls, on the thread of its loop.

Owns carrying out the calls. Does not own their transport from another thread or process
(``runner``), for which arguments and results can be pickled.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cyproducer.records.topic_names import legal_topic
from cyproducer.testing.broker import faults, fetch
from cyproducer.testing.broker.access import Right
from cyproducer.testing.broker.faults import Rule
from cyproducer.testing.broker.homes import GROUP, ID
from cyproducer.testing.broker.partitions import Entry, Partition, Topic
from cyproducer.testing.broker.telemetry import Subscription
from cyproducer.testing.pushed_metrics import PushedMetrics
from cyproducer.testing.stored_record import StoredRecord

if TYPE_CHECKING:
    from cyproducer.testing.broker.cluster import EmbeddedCluster
    from cyproducer.testing.broker.server import Node

KINDS: Final = {"group": GROUP, "transactional_id": ID}


class Refused(Exception):
    """A call that cannot be carried out; the message gives the reason."""


def log_requests(cluster: "EmbeddedCluster", write: Callable[[str], object]) -> None:
    """Registers ``write``, which is called with a line for each response. Not from another process."""
    # Imported here: it takes long, and few tests want it.
    from cyproducer.testing.broker import request_log

    cluster.on_response.append(lambda call, response: write(request_log.line(call, response)))


def addresses(cluster: "EmbeddedCluster") -> str:
    return ",".join(node.address for node in cluster.nodes.values())


def create_topic(cluster: "EmbeddedCluster", name: str, partitions: int | None) -> None:
    number = cluster.default_partitions if partitions is None else partitions
    what = f"creating topic {name!r} with {number} partitions failed"
    try:
        legal_topic(name)
    except (TypeError, ValueError) as error:
        raise Refused(f"{what}: {error}") from None
    if cluster.topic(name) is not None:
        raise Refused(f"{what}: it exists")
    cluster.create_topic(name, number)


def topics(cluster: "EmbeddedCluster") -> dict[str, int]:
    """Returns topic -> number of partitions."""
    return {name: len(topic.partitions) for name, topic in cluster.topics.topics.items()}


def end_offsets(cluster: "EmbeddedCluster", topic: str) -> list[int]:
    """Returns the offset after the last record of each partition."""
    return [partition.synced for partition in _topic(cluster, topic).partitions]


def _topic(cluster: "EmbeddedCluster", name: str) -> Topic:
    found = cluster.topic(name)
    if found is None:
        raise Refused(f"reading topic {name!r} failed: there is none")
    return found


def records(
    cluster: "EmbeddedCluster", topic: str, partition: int | None, committed: bool, offset: int
) -> list[StoredRecord]:
    """Returns a topic's records from ``offset`` on, partition by partition."""
    found = _topic(cluster, topic)
    if partition is not None and not 0 <= partition < len(found.partitions):
        raise Refused(f"reading {topic}-{partition} failed: the topic has {len(found.partitions)} partitions")
    chosen = found.partitions if partition is None else [found.partitions[partition]]
    return [
        record for each in chosen for record in _records(each, committed, offset) if record.offset >= offset
    ]


def _records(partition: Partition, committed: bool, offset: int) -> list[StoredRecord]:
    # Imported here: it takes long, and a broker starts without it.
    from cyproducer.wire.record_decoder import batches as decoded

    found = []
    upper = partition.last_stable if committed else partition.end
    for index in range(partition.at(offset), len(partition.entries)):
        entry = partition.entries[index]
        if entry.commits is not None or entry.end > upper:
            continue
        if committed and entry.header.transactional and _is_aborted(partition, entry):
            continue
        for batch in decoded(fetch.bytes_of(partition, index)):
            found += [StoredRecord(partition.topic, partition.index, *record) for record in batch.records()]
    return found


def _is_aborted(partition: Partition, entry: Entry) -> bool:
    return any(
        one.producer_id == entry.header.producer_id and one.first <= entry.offset < one.last
        for one in partition.aborted
    )


def move_leader(cluster: "EmbeddedCluster", topic: str, partition: int, node: int) -> None:
    found = cluster.topic(topic)
    if found is None or not 0 <= partition < len(found.partitions):
        what = f"moving the leader of {topic}-{partition} to broker {node} failed"
        raise Refused(f"{what}: there is no such partition")
    cluster.topics.move(found.partitions[partition], node, True, (0.0, 0.0))
    # Brokers learn of the new leader at once, because the test continues after this call.
    cluster.topics.learn(found.partitions[partition], list(cluster.nodes))


def move_coordinator(cluster: "EmbeddedCluster", kind: str, name: str, node: int) -> None:
    cluster.homes.move(cluster.homes.home(KINDS[kind], name), node)


def take_down(cluster: "EmbeddedCluster", node: int) -> None:
    _node(cluster, node, "taking broker {} down failed").stop()
    up = [each.id for each in cluster.nodes.values() if each.is_up]
    if not up:
        return
    # Every broker has a replica of everything.
    for topic in cluster.topics.topics.values():
        for partition in topic.partitions:
            if partition.leader == node:
                move_leader(cluster, topic.name, partition.index, cluster.world.random.choice(up))
    for home in list(cluster.homes.homes.values()):
        if home.leader == node:
            cluster.homes.move(home, cluster.world.random.choice(up))


def bring_up(cluster: "EmbeddedCluster", node: int) -> None:
    found = _node(cluster, node, "bringing broker {} up failed")
    if not found.is_up:
        found.start(cluster.tls)


def delay(cluster: "EmbeddedCluster", node: int, delay_ms: float) -> None:
    _node(cluster, node, "delaying broker {} failed").delay_ms = delay_ms


def _node(cluster: "EmbeddedCluster", number: int, what: str) -> "Node":
    node = cluster.nodes.get(number)
    if node is None:
        raise Refused(f"{what.format(number)}: the brokers are 1 to {len(cluster.nodes)}")
    return node


def add_fault(
    cluster: "EmbeddedCluster",
    kind: str,
    api_key: int,
    value: int,
    times: int,
    node: int | None = None,
    topic: str | None = None,
    partition: int | None = None,
) -> None:
    assert kind in (faults.FAIL, faults.CUT_BEFORE, faults.CUT_AFTER, faults.THROTTLE)
    api = cluster.apis.get(api_key)
    if api is None:
        raise Refused(f"requests with API key {api_key} cannot fail: the embedded broker has no such request")
    cluster.faults.add(Rule(kind, api, value, times, node, topic, partition))


def clear_faults(cluster: "EmbeddedCluster") -> None:
    cluster.faults.clear()
    for node in cluster.nodes.values():
        node.delay_ms = 0.0


def subscribe(
    cluster: "EmbeddedCluster",
    metrics: tuple[str, ...],
    push_interval_ms: int,
    delta: bool,
    codec_ids: tuple[int, ...],
    max_bytes: int,
) -> None:
    for key, versions in cluster.unoffered.items():
        if versions is None:
            raise Refused(
                "subscribing to metrics failed: kafka_version is older than 3.7, the first with KIP-714"
            )
        cluster.versions[key] = versions
    before = cluster.telemetry.subscription
    number = 1 if before is None else before.subscription_id + 1
    cluster.telemetry.subscription = Subscription(
        metrics, push_interval_ms, delta, codec_ids, max_bytes, number
    )


def pushes(cluster: "EmbeddedCluster") -> list[PushedMetrics]:
    return list(cluster.telemetry.pushes)


def add_right(
    cluster: "EmbeddedCluster", allows: bool, principal: str, operation: str, kind: str, name: str
) -> None:
    cluster.access.rights.append(Right(allows, principal, operation, kind, name))


def clear_rights(cluster: "EmbeddedCluster") -> None:
    cluster.access.rights.clear()


def set_user(cluster: "EmbeddedCluster", name: str, password: str | None) -> None:
    if password is None:
        cluster.access.users.pop(name, None)
    else:
        cluster.access.users[name] = password


def advance(cluster: "EmbeddedCluster", delay_ms: float) -> None:
    cluster.world.advance(delay_ms)
