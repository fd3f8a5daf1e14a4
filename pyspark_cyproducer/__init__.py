"""Lets Spark find ``format("cyproducer")`` by itself: Spark looks for ``DefaultSource`` in modules named
``pyspark_*``."""

from cyproducer.spark.source import CyproducerDataSource as DefaultSource

__all__ = ["DefaultSource"]
