"""aiokafka's producer, as a thin layer over ``KafkaProducer``: for programs that are written for aiokafka.

``from cyproducer.aio import AIOKafkaProducer``; ``cyproducer.aio.errors`` has the exceptions, under
aiokafka's names. ``docs/asyncio.md`` shows their use, and ``docs/migration.md`` the differences. New programs
don't need this: ``KafkaProducer.send_async()`` works from asyncio.
"""

from cyproducer.aio import errors
from cyproducer.aio.batch import BatchBuilder
from cyproducer.aio.producer import AIOKafkaProducer
from cyproducer.aio.structs import AppendedRecord, RecordMetadata
from cyproducer.structs import TopicPartition

__all__ = [
    "AIOKafkaProducer",
    "AppendedRecord",
    "BatchBuilder",
    "RecordMetadata",
    "TopicPartition",
    "errors",
]
