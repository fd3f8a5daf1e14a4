"""Lets Spark find ``format("cyproducer")`` by itself: Spark looks for ``DefaultSource`` in modules named
``pyspark_*``."""

import pyspark  # noqa: F401

from cyproducer.spark.options import check_pyspark

check_pyspark()
from cyproducer.spark.source import CyproducerDataSource as DefaultSource  # noqa: E402

__all__ = ["DefaultSource"]
