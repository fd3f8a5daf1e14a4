"""A Kafka producer with kafka-python's API that does its work per record in C.

Most programs need only ``from cyproducer import KafkaProducer``. ``cyproducer.errors`` has the exceptions,
``cyproducer.testing`` an embedded broker for tests.
"""

from cyproducer import errors
from cyproducer.config import ProducerConfig
from cyproducer.control.partitioners import Partitioner
from cyproducer.producer import KafkaProducer, ProducerRecord
from cyproducer.structs import RecordMetadata, TopicPartition
from cyproducer.version import VERSION as __version__

__all__ = [
    "KafkaProducer",
    "Partitioner",
    "ProducerConfig",
    "ProducerRecord",
    "RecordMetadata",
    "TopicPartition",
    "__version__",
    "errors",
]
