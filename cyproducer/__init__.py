"""A Kafka producer with kafka-python's API whose work per record is done in C.

``from cyproducer import KafkaProducer`` is all that most programs need; ``cyproducer.errors`` has the
exceptions, ``cyproducer.testing`` an embedded broker for tests.
"""

from cyproducer import errors
from cyproducer.config import ProducerConfig
from cyproducer.control.partitioners import Partitioner
from cyproducer.producer import KafkaProducer, ProducerRecord
from cyproducer.structs import RecordMetadata, TopicPartition

__all__ = [
    "KafkaProducer",
    "Partitioner",
    "ProducerConfig",
    "ProducerRecord",
    "RecordMetadata",
    "TopicPartition",
    "errors",
]
