"""Where Spark finds ``format("cyproducer")`` by itself: it looks into modules named ``pyspark_*`` for this
name."""

from cyproducer.spark.source import CyproducerDataSource as DefaultSource

__all__ = ["DefaultSource"]
