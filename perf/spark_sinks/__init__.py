"""The runs that ``perf/spark.py`` compares."""
