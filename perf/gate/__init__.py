"""Compares instructions per record with stored bounds: a measure of performance that is stable enough for a
test.

``python perf/gate/check.py`` compares, and exits with 1 if a workload needs at least 10% more instructions;
``--update`` stores the counts. ``workloads`` defines what is counted, ``counting`` counts, ``bounds``
compares.
"""
