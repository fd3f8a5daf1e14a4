"""A Kafka producer with kafka-python's API whose per-record path runs in C.

Most programs need only ``from cyproducer import KafkaProducer``. ``cyproducer.errors`` has the exceptions,
``cyproducer.types`` has types for annotations, ``cyproducer.testing`` helps to test programs that use this
package.
"""

from cyproducer.version import VERSION as __version__

try:
    from cyproducer import errors
    from cyproducer.config import ProducerConfig
    from cyproducer.control.cluster_view import ClusterView
    from cyproducer.control.partitioners import Partitioner
    from cyproducer.futures.bulk_future import BulkFuture, BulkMetadata, RowOffsets
    from cyproducer.futures.delivery import RecordFuture
    from cyproducer.producer import KafkaProducer, ProducerRecord
    from cyproducer.structs import (
        ConsumerGroupMetadata,
        FailedRows,
        OffsetAndMetadata,
        OffsetRange,
        RecordMetadata,
        TopicPartition,
    )
except ImportError as error:
    import os
    from importlib.util import find_spec

    if find_spec("cyproducer.base.clock") is not None:
        raise
    if not os.path.isdir(__path__[0]):
        raise ImportError(
            f"{__path__[0]} is in a zip file, from which Python can't load extensions ({error}). With Spark: "
            "not --py-files or addPyFile(), but install cyproducer on every machine, or send an environment "
            "that has it with --archives (docs/spark.md)"
        ) from None
    raise ImportError(
        f"{__path__[0]} contains the sources of cyproducer, and its extensions are not built ({error}). To "
        "work on them: make dev. To use an installed cyproducer: start Python elsewhere, or as python -P"
    ) from None

__all__ = [
    "BulkFuture",
    "BulkMetadata",
    "ClusterView",
    "ConsumerGroupMetadata",
    "FailedRows",
    "KafkaProducer",
    "OffsetAndMetadata",
    "OffsetRange",
    "Partitioner",
    "ProducerConfig",
    "ProducerRecord",
    "RecordFuture",
    "RecordMetadata",
    "RowOffsets",
    "TopicPartition",
    "__version__",
    "errors",
]
