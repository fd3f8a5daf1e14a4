"""``make demo-spark``: source code from files through a local Spark into a real Kafka, and compared there.

Beside the package and not in it, as it runs the tests' Kafka. `run` is the program.
"""
