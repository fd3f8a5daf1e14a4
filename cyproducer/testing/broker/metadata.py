"""ApiVersions, Metadata and FindCoordinator of an embedded cluster.

Owns the information that clients get about brokers, topics, leaders and coordinators, and creating topics on
demand. Also finds the partitions that other requests name. Does not own the topics (``cluster``).
"""

from typing import TYPE_CHECKING, Any, Final

from cyproducer.errors.error_code import ErrorCode
from cyproducer.records.topic_names import legal_topic
from cyproducer.testing.broker.homes import GROUP, ID
from cyproducer.testing.broker.server import Call
from cyproducer.wire.messages import API_VERSIONS, FIND_COORDINATOR, METADATA
from cyproducer.wire.schema import NO_UUID

if TYPE_CHECKING:
    from cyproducer.testing.broker.partitions import Partition, Topic

NO_NODE: Final = -1
NO_OPERATIONS: Final = -(2**31)
KINDS: Final = {0: GROUP, 1: ID}
RESOURCES: Final = {GROUP: "group", ID: "transactional_id"}


def api_versions(call: Call) -> Any:
    request, error = call.request, call.fault()
    if request.cluster_id is not None and call.connection.principal is not None:
        # The client states which broker it expects, since version 5 (KIP-1242). As in Kafka, that is not
        # compared before the authentication.
        expected = request.cluster_id, request.node_id
        if expected != (call.cluster.cluster_id, call.node.id):
            error = error or ErrorCode.REBOOTSTRAP_REQUIRED
    return call.cluster.api_versions(error)


def metadata(call: Call) -> Any:
    cluster, request, response = call.cluster, call.request, METADATA.response
    if request.topics is None or (call.version == 0 and not request.topics):
        topics = [_described(call, topic) for topic in cluster.topics.topics.values()]
        topics = [topic for topic in topics if topic.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    else:
        topics = [_wanted(call, wanted) for wanted in request.topics]
    brokers = [
        response.MetadataResponseBroker(node.id, node.host, node.port, node.rack)
        for node in cluster.nodes.values()
        if node.is_up
    ]
    operations = NO_OPERATIONS
    if call.version >= 8 and getattr(request, "include_cluster_authorized_operations", False):
        operations = cluster.access.operations(call.principal, "cluster", "kafka-cluster")
    return response(0, brokers, cluster.cluster_id, brokers[0].node_id, topics, operations)


def _wanted(call: Call, wanted: Any) -> Any:
    cluster = call.cluster
    # Java's consumers send an empty name with an id.
    if wanted.name is None or (call.version >= 12 and wanted.topic_id != NO_UUID):
        topic = cluster.topic(wanted.topic_id)
        if topic is None:
            # Up to version 11, a response must contain a name.
            name = None if call.version >= 12 else ""
            return _nothing(ErrorCode.UNKNOWN_TOPIC_ID, name, wanted.topic_id)
        return _described(call, topic)
    topic = cluster.topic(wanted.name)
    if topic is not None:
        return _described(call, topic)
    if not call.allowed("DESCRIBE", "topic", wanted.name):
        return _nothing(ErrorCode.TOPIC_AUTHORIZATION_FAILED, wanted.name)
    if code := call.fault(wanted.name):
        return _nothing(code, wanted.name)
    try:
        legal_topic(wanted.name)
    except (TypeError, ValueError):
        return _nothing(ErrorCode.INVALID_TOPIC, wanted.name)
    # Before version 4, every request for a topic creates it.
    if not cluster.auto_create or not (call.version < 4 or call.request.allow_auto_topic_creation):
        return _nothing(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, wanted.name)
    if not (
        call.allowed("CREATE", "topic", wanted.name) or call.allowed("CREATE", "cluster", "kafka-cluster")
    ):
        return _nothing(ErrorCode.TOPIC_AUTHORIZATION_FAILED, wanted.name)
    return _described(call, cluster.create_topic(wanted.name))


def _nothing(code: int, name: str | None, topic_id: bytes = NO_UUID) -> Any:
    return METADATA.response.MetadataResponseTopic(code, name, topic_id, False, [], NO_OPERATIONS)


def _described(call: Call, topic: "Topic") -> Any:
    cluster, response = call.cluster, METADATA.response
    if not call.allowed("DESCRIBE", "topic", topic.name):
        return _nothing(ErrorCode.TOPIC_AUTHORIZATION_FAILED, topic.name)
    if code := call.fault(topic.name):
        return _nothing(code, topic.name, topic.id)
    partitions = []
    everywhere = list(cluster.nodes)
    up = [node.id for node in cluster.nodes.values() if node.is_up]
    for partition in topic.partitions:
        leader, epoch = cluster.topics.view(call.node.id, partition)
        is_up = leader in up
        partitions.append(
            response.MetadataResponsePartition(
                ErrorCode.NO_ERROR if is_up else ErrorCode.LEADER_NOT_AVAILABLE,
                partition.index,
                leader if is_up else NO_NODE,
                epoch,
                everywhere,
                up,
                [node for node in everywhere if node not in up],
            )
        )
    operations = NO_OPERATIONS
    if call.version >= 8 and call.request.include_topic_authorized_operations:
        operations = cluster.access.operations(call.principal, "topic", topic.name)
    return response.MetadataResponseTopic(
        ErrorCode.NO_ERROR, topic.name, topic.id, topic.name.startswith("__"), partitions, operations
    )


def find_coordinator(call: Call) -> Any:
    request, response = call.request, FIND_COORDINATOR.response
    keys = request.coordinator_keys if call.version >= 4 else [request.key]
    found = [_coordinator(call, key) for key in keys]
    if call.version >= 4:
        return response(0, ErrorCode.NO_ERROR, None, 0, "", 0, found)
    _, node_id, host, port, code, text = found[0]
    return response(0, code, text, node_id, host, port, [])


def _coordinator(call: Call, key: str) -> Any:
    make = FIND_COORDINATOR.response.Coordinator
    kind = KINDS.get(call.request.key_type)
    if kind is None:
        return make(key, NO_NODE, "", -1, ErrorCode.INVALID_REQUEST, f"key type {call.request.key_type}")
    if not call.allowed("DESCRIBE", RESOURCES[kind], key):
        denied = {
            GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
            ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        }
        return make(key, NO_NODE, "", -1, denied[kind], None)
    if code := call.fault():
        return make(key, NO_NODE, "", -1, code, None)
    node = call.cluster.coordinator(kind, key)
    if node is None:
        return make(key, NO_NODE, "", -1, ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
    return make(key, node.id, node.host, node.port, ErrorCode.NO_ERROR, None)


# Partitions that other requests name


def place_refusal(call: Call, operation: str, name: str, index: int) -> int:
    """Returns the error code if the client may not do this with a partition, or there is none, or the test
    wants an error; otherwise NO_ERROR."""
    if not call.allowed(operation, "topic", name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if code := call.fault(name, index):
        return code
    topic = call.cluster.topic(name)
    known = topic is not None and 0 <= index < len(topic.partitions)
    return ErrorCode.NO_ERROR if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def located(
    call: Call, key: str | bytes, index: int, operation: str = "READ", epoch: int = -1
) -> "Partition | int":
    """Returns a partition that this node leads and the client may use, or an error code.

    ``key``: the topic's name or id. ``epoch``: the client's leader epoch (KIP-320); -1 if it sends none.
    """
    topic = call.cluster.topic(key)
    if topic is None and isinstance(key, bytes):
        return ErrorCode.UNKNOWN_TOPIC_ID
    if code := place_refusal(call, operation, str(key) if topic is None else topic.name, index):
        return code
    assert topic is not None
    partition = topic.partitions[index]
    if partition.leader != call.node.id:
        return ErrorCode.NOT_LEADER_FOR_PARTITION
    if epoch < 0 or epoch == partition.epoch:
        return partition
    return ErrorCode.FENCED_LEADER_EPOCH if epoch < partition.epoch else ErrorCode.UNKNOWN_LEADER_EPOCH


HANDLERS: Final = {API_VERSIONS: api_versions, METADATA: metadata, FIND_COORDINATOR: find_coordinator}
