"""Administration of an embedded cluster: topics, partitions, records, configurations, brokers.

Owns the checks and the responses. Does not own the topics (``cluster``) or configurations (``configs``).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from cyproducer.errors.error_code import ErrorCode
from cyproducer.records.topic_names import legal_topic
from cyproducer.testing.broker import configs
from cyproducer.testing.broker.configs import Wrong
from cyproducer.testing.broker.metadata import NO_OPERATIONS, located
from cyproducer.testing.broker.server import Call
from cyproducer.testing.broker.transactions import FEATURE, TRANSACTION_LEVELS
from cyproducer.wire.messages import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    UPDATE_FEATURES,
)
from cyproducer.wire.schema import NO_UUID

CLUSTER: Final = "kafka-cluster"
TOPIC, BROKER = 2, 4
"""Resource types."""
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
"""Operations of IncrementalAlterConfigs."""
UPGRADE: Final = 1
"""The only type of UpdateFeatures that cannot lower a level."""
MOST_PARTITIONS: Final = 100_000
"""Of a topic, and of all topics that a request creates."""


class Refused(Exception):
    """An error code and its text."""

    def __init__(self, code: int, text: str | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


# Topics


def create_topics(call: Call) -> Any:
    request, response = call.request, CREATE_TOPICS.response
    names = [topic.name for topic in request.topics]
    results, total = [], 0
    for topic in request.topics:
        topic_id, count, described = NO_UUID, -1, None
        code, text = ErrorCode.NO_ERROR, None
        try:
            if names.count(topic.name) > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, "the topic is in the request more than once")
            count, given = _creatable(call, topic)
            total += count
            if total > MOST_PARTITIONS:
                text = "Excessively large number of partitions per request."
                raise Refused(ErrorCode.POLICY_VIOLATION, text)
            if not request.validate_only:
                made = call.cluster.create_topic(topic.name, count)
                topic_id = made.id
                call.cluster.configs.topics[topic.name] = given
            described = [
                response.CreatableTopicConfigs(
                    name,
                    given.get(name, config.default),
                    False,
                    configs.DYNAMIC_TOPIC if name in given else configs.DEFAULT,
                    False,
                )
                for name, config in call.cluster.configs.table.items()
            ]
        except Refused as error:
            code, text = ErrorCode(error.code), error.text
        results.append(
            response.CreatableTopicResult(
                topic.name, topic_id, code, text, 0, count, -1 if code else 1, described
            )
        )
    return response(0, results)


def _creatable(call: Call, topic: Any) -> tuple[int, dict[str, str]]:
    """Returns the number of partitions and the configuration of a topic that can be created."""
    cluster = call.cluster
    if not (call.allowed("CREATE", "cluster", CLUSTER) or call.allowed("CREATE", "topic", topic.name)):
        raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
    if code := call.fault(topic.name):
        raise Refused(code)
    try:
        legal_topic(topic.name)
    except (TypeError, ValueError) as error:
        raise Refused(ErrorCode.INVALID_TOPIC, str(error)) from None
    if cluster.topic(topic.name) is not None:
        raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
    nodes = len(cluster.nodes)
    if topic.assignments:
        if topic.num_partitions != -1 or topic.replication_factor != -1:
            text = "with an assignment, num_partitions and replication_factor must be -1"
            raise Refused(ErrorCode.INVALID_REQUEST, text)
        if sorted(each.partition_index for each in topic.assignments) != list(range(len(topic.assignments))):
            raise Refused(ErrorCode.INVALID_REPLICATION_ASSIGNMENT, "partitions must be numbered from 0")
        count = len(topic.assignments)
    else:
        count = cluster.default_partitions if topic.num_partitions == -1 else topic.num_partitions
        if not 1 <= count <= MOST_PARTITIONS:
            text = f"Number of partitions was {count}: must be 1 to {MOST_PARTITIONS}."
            raise Refused(ErrorCode.INVALID_PARTITIONS, text)
        factor = topic.replication_factor
        if factor != -1 and not 1 <= factor <= nodes:
            text = f"Unable to replicate the partition {factor} time(s): there are {nodes} broker(s)."
            raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    given: dict[str, str] = {}
    for config in topic.configs:
        _check(cluster.configs.table, config.name, config.value)
        given[config.name] = config.value
    return count, given


def _check(table: Mapping[str, configs.Config], name: str, value: str | None) -> None:
    try:
        configs.parsed(table, name, value)
    except Wrong as error:
        raise Refused(ErrorCode.INVALID_CONFIG, str(error)) from None


def delete_topics(call: Call) -> Any:
    request, response = call.request, DELETE_TOPICS.response
    if call.version >= 6:
        wanted = [(each.name, each.topic_id) for each in request.topics]
    else:
        wanted = [(name, NO_UUID) for name in request.topic_names]
    results = []
    for name, topic_id in wanted:
        topic = call.cluster.topic(topic_id if name is None else name)
        shown, code, text = name, ErrorCode.NO_ERROR, None
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif not call.allowed("DELETE", "topic", topic.name):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif fault := call.fault(topic.name):
            code = ErrorCode(fault)
        else:
            shown, topic_id = topic.name, topic.id
            call.cluster.delete_topic(topic.name)
        results.append(response.DeletableTopicResult(shown, topic_id, code, text))
    return response(0, results)


def create_partitions(call: Call) -> Any:
    request, response = call.request, CREATE_PARTITIONS.response
    results = []
    for wanted in request.topics:
        code, text = ErrorCode.NO_ERROR, None
        topic = call.cluster.topic(wanted.name)
        if not call.allowed("ALTER", "topic", wanted.name):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif fault := call.fault(wanted.name):
            code = ErrorCode(fault)
        elif topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif not len(topic.partitions) < wanted.count <= MOST_PARTITIONS:
            code = ErrorCode.INVALID_PARTITIONS
            text = f"Topic currently has {len(topic.partitions)} partitions, {wanted.count} is not more."
        elif not request.validate_only:
            call.cluster.add_partitions(wanted.name, wanted.count - len(topic.partitions))
        results.append(response.CreatePartitionsTopicResult(wanted.name, code, text))
    return response(0, results)


def delete_records(call: Call) -> Any:
    request, response = call.request, DELETE_RECORDS.response
    topics = []
    for topic in request.topics:
        parts = []
        for each in topic.partitions:
            code, low = 0, -1
            partition = located(call, topic.name, each.partition_index, "DELETE")
            if isinstance(partition, int):
                code = partition
            elif not -1 <= each.offset <= partition.synced:
                code = ErrorCode.OFFSET_OUT_OF_RANGE
            else:
                offset = partition.synced if each.offset == -1 else each.offset
                low = call.cluster.delete_before(partition, offset)
            parts.append(response.DeleteRecordsPartitionResult(each.partition_index, low, code))
        topics.append(response.DeleteRecordsTopicResult(topic.name, parts))
    return response(0, topics)


# Configurations


def describe_configs(call: Call) -> Any:
    request, response = call.request, DESCRIBE_CONFIGS.response
    results = []
    for resource in request.resources:
        kind, name = resource.resource_type, resource.resource_name
        try:
            table, given = _configured(call, kind, name, "DESCRIBE_CONFIGS")
        except Refused as error:
            results.append(response.DescribeConfigsResult(error.code, error.text, kind, name, []))
            continue
        keys = resource.configuration_keys
        shown = []
        for key, config in table.items():
            if keys is not None and key not in keys:
                continue
            source = configs.DYNAMIC_TOPIC if kind == TOPIC else configs.STATIC_BROKER
            value = given.get(key, config.default)
            synonyms = []
            if request.include_synonyms and key in given:
                synonyms.append(response.DescribeConfigsSynonym(key, value, source))
            shown.append(
                response.DescribeConfigsResourceResult(
                    key, value, kind == BROKER, source if key in given else configs.DEFAULT, False, synonyms,
                    config.kind, None,
                )
            )  # fmt: skip
        results.append(response.DescribeConfigsResult(ErrorCode.NO_ERROR, None, kind, name, shown))
    return response(0, results)


def _configured(
    call: Call, kind: int, name: str, operation: str
) -> tuple[Mapping[str, configs.Config], dict[str, str]]:
    """Returns the configurations that a resource can have, and the values that were set for it, as text."""
    cluster = call.cluster
    if kind == TOPIC:
        if not call.allowed(operation, "topic", name):
            raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if code := call.fault(name):
            raise Refused(code)
        if cluster.topic(name) is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name!r} does not exist.")
        return cluster.configs.table, cluster.configs.topics.setdefault(name, {})
    if kind == BROKER:
        if not call.allowed(operation, "cluster", CLUSTER):
            raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if name and name not in map(str, cluster.nodes):
            raise Refused(ErrorCode.INVALID_REQUEST, f"Unexpected broker id {name!r}")
        return configs.BROKER, {
            "auto.create.topics.enable": str(cluster.auto_create).lower(),
            "num.partitions": str(cluster.default_partitions),
        }
    raise Refused(ErrorCode.INVALID_REQUEST, f"resources of type {kind} have no configuration here")


def incremental_alter_configs(call: Call) -> Any:
    request, response = call.request, INCREMENTAL_ALTER_CONFIGS.response
    results = []
    for resource in request.resources:
        code, text = int(ErrorCode.NO_ERROR), None
        try:
            table, given = _configured(call, resource.resource_type, resource.resource_name, "ALTER_CONFIGS")
            if resource.resource_type != TOPIC:
                raise Refused(ErrorCode.INVALID_REQUEST, "only configurations of topics can be changed here")
            changed = dict(given)
            for config in resource.configs:
                _alter(table, changed, config)
            if not request.validate_only:
                given.clear()
                given.update(changed)
                call.cluster.reconfigured(resource.resource_name)
        except Refused as error:
            code, text = error.code, error.text
        results.append(
            response.AlterConfigsResourceResponse(code, text, resource.resource_type, resource.resource_name)
        )
    return response(0, results)


def _alter(table: Mapping[str, configs.Config], given: dict[str, str], change: Any) -> None:
    name, operation = change.name, change.config_operation
    if name not in table:
        raise Refused(ErrorCode.INVALID_CONFIG, f"Unknown configuration {name!r}")
    if operation == DELETE:
        given.pop(name, None)
        return
    value = change.value
    if operation in (APPEND, SUBTRACT):
        if table[name].kind != configs.LIST:
            raise Refused(ErrorCode.INVALID_CONFIG, f"{name} is no list: it can be set or deleted")
        now = configs.parsed(table, name, given.get(name, table[name].default))
        named = configs.parsed(table, name, value)
        rest = [each for each in now if each not in named]
        value = ",".join(rest + named if operation == APPEND else rest)
    elif operation != SET:
        raise Refused(ErrorCode.INVALID_REQUEST, f"operation {operation} is unknown")
    _check(table, name, value)
    given[name] = value


# Brokers


def describe_cluster(call: Call) -> Any:
    cluster, response = call.cluster, DESCRIBE_CLUSTER.response
    operations = NO_OPERATIONS
    if call.request.include_cluster_authorized_operations:
        operations = cluster.access.operations(call.principal, "cluster", CLUSTER)
    brokers = [
        response.DescribeClusterBroker(node.id, node.host, node.port, node.rack, False)
        for node in cluster.nodes.values()
        if node.is_up
    ]
    return response(0, call.fault(), None, 1, cluster.cluster_id, brokers[0].broker_id, brokers, operations)


def update_features(call: Call) -> Any:
    """Changes the level of ``transaction.version`` on all brokers at once."""
    request, response = call.request, UPDATE_FEATURES.response
    names = [each.feature for each in request.feature_updates]
    features = call.cluster.transactions.features
    try:
        if not call.allowed("ALTER", "cluster", CLUSTER):
            raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if code := call.fault():
            raise Refused(code)
        for each in request.feature_updates:
            _check_level(each, features.level, is_upgrade=_is_upgrade(call.version, each))
    except Refused as error:
        return response(0, error.code, error.text, [])
    if not request.validate_only:
        for each in request.feature_updates:
            features.set_at_once(each.max_version_level)
    results = [response.UpdatableFeatureResult(name, ErrorCode.NO_ERROR, None) for name in names]
    return response(0, ErrorCode.NO_ERROR, None, results)


def _is_upgrade(version: int, update: Any) -> bool:
    return not update.allow_downgrade if version == 0 else update.upgrade_type == UPGRADE


def _check_level(update: Any, now: int, is_upgrade: bool) -> None:
    level = update.max_version_level
    why = None
    if update.feature != FEATURE:
        why = "the controller does not support this feature"
    elif level not in TRANSACTION_LEVELS:
        why = f"levels are {TRANSACTION_LEVELS[0]} to {TRANSACTION_LEVELS[-1]}"
    elif level < now and is_upgrade:
        why = "a downgrade needs another upgrade type"
    elif level > now and not is_upgrade:
        why = "the new level is no downgrade"
    if why is not None:
        text = f"Invalid update version {level} for feature {update.feature}: {why}."
        raise Refused(ErrorCode.INVALID_UPDATE_VERSION, text)


HANDLERS: Final[Mapping[Any, Callable[[Call], Any]]] = {
    CREATE_TOPICS: create_topics,
    DELETE_TOPICS: delete_topics,
    CREATE_PARTITIONS: create_partitions,
    DELETE_RECORDS: delete_records,
    DESCRIBE_CONFIGS: describe_configs,
    INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
    DESCRIBE_CLUSTER: describe_cluster,
    UPDATE_FEATURES: update_features,
}
