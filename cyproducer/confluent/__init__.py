"""confluent-kafka's producer API on top of this package: only the import of an application changes.

``Producer``, ``SerializingProducer`` and the types that they use, under confluent-kafka's names.
``docs/migration.md`` lists the differences. confluent-kafka itself is not needed.
"""

from cyproducer.confluent.cluster_metadata import (
    BrokerMetadata,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from cyproducer.confluent.errors import (
    KafkaError,
    KafkaException,
    KeySerializationError,
    ProduceError,
    SerializationError,
    ValueSerializationError,
)
from cyproducer.confluent.events import ThrottleEvent
from cyproducer.confluent.producer import Producer
from cyproducer.confluent.reports import Message
from cyproducer.confluent.serializing import SerializingProducer
from cyproducer.serializers import MessageField, SerializationContext

TIMESTAMP_NOT_AVAILABLE = 0
TIMESTAMP_CREATE_TIME = 1
TIMESTAMP_LOG_APPEND_TIME = 2

__all__ = [
    "TIMESTAMP_CREATE_TIME",
    "TIMESTAMP_LOG_APPEND_TIME",
    "TIMESTAMP_NOT_AVAILABLE",
    "BrokerMetadata",
    "ClusterMetadata",
    "KafkaError",
    "KafkaException",
    "KeySerializationError",
    "Message",
    "MessageField",
    "PartitionMetadata",
    "ProduceError",
    "Producer",
    "SerializationContext",
    "SerializationError",
    "SerializingProducer",
    "ThrottleEvent",
    "TopicMetadata",
    "ValueSerializationError",
]
