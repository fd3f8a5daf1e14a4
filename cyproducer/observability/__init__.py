"""Metrics for ``metrics()`` and ``metric_reporters``: names, units, meanings. C code does the counting."""
