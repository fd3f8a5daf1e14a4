"""Writes to Kafka from PySpark: a sink for DataFrames and streams, and functions for partitions.

Call ``register(spark)``, then ``df.write.format("cyproducer")``. ``docs/spark.md`` is the full documentation.
Needs pyspark 4.0 or later and pyarrow: ``pip install 'cyproducer[spark]'``.
"""

from typing import TYPE_CHECKING, Any

from cyproducer.errors import KafkaConfigurationError
from cyproducer.spark.columns import SchemaError
from cyproducer.spark.exactly_once.cluster import NotDecidedError
from cyproducer.spark.exactly_once.decisions import DecisionLogError
from cyproducer.spark.exactly_once.driver import DecidedError
from cyproducer.spark.exactly_once.rules import BatchOrderError
from cyproducer.spark.foreach import foreach_writer
from cyproducer.spark.mapping import PRODUCED_SCHEMA, foreach_batch, produce_arrow
from cyproducer.spark.options import SESSION_PREFIX, options_of_session
from cyproducer.spark.rows import produce_partitions
from cyproducer.spark.schemas import avro_schema, json_schema
from cyproducer.spark.sending import RowsFailedError
from cyproducer.spark.sharing import SharedConfig, close_all, shared_producer
from cyproducer.spark.summary import WriteSummary, WrittenRange, WrittenTransaction
from cyproducer.spark.wire import confluent_wire

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "PRODUCED_SCHEMA",
    "BatchOrderError",
    "DecidedError",
    "DecisionLogError",
    "NotDecidedError",
    "RowsFailedError",
    "SchemaError",
    "SharedConfig",
    "WriteSummary",
    "WrittenRange",
    "WrittenTransaction",
    "avro_schema",
    "close_all",
    "confluent_wire",
    "foreach_batch",
    "foreach_writer",
    "json_schema",
    "produce_arrow",
    "produce_partitions",
    "register",
    "shared_producer",
]


def register(spark: "SparkSession") -> None:
    """Registers ``format("cyproducer")`` with a session.

    The session's settings ``spark.cyproducer.kafka.NAME`` become the defaults of the format's options. Call
    this function again if they have changed. Without this call, Spark finds the format by itself, through the
    module ``pyspark_cyproducer``, if it was installed before the session started. The settings then have no
    effect.

    Raises:
        ImportError: PySpark is older than 4.0.
        KafkaConfigurationError: a setting is not an option of the sink, or contains a secret that Spark would
            show; or the session has settings, but Spark 4.0 has already found the format by itself.
    """
    # Called first because it checks the version of PySpark.
    settings = options_of_session(spark)
    from pyspark.errors import AnalysisException

    from cyproducer.spark.source import of_session

    sources: Any = spark.dataSource
    try:
        sources.register(of_session(settings))
    except AnalysisException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
        # Spark 4.0 raises this if it has already found the format by itself.
        if settings:
            raise KafkaConfigurationError(
                f"settings {SESSION_PREFIX}kafka.* ({', '.join(settings)}): Spark 4.0 can't give them to a "
                "format that it has found by itself: give options to the write, or use Spark 4.1"
            ) from error
    # Spark looks up formats in the calling thread's session. This call sets the thread's session.
    spark.createDataFrame([], "nothing int")
