"""Spark's sinks side by side: see ``spark.py``, the command."""
