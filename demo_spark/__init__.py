"""``make demo-spark``: sends source code through a local Spark to a real Kafka, and verifies the result.

Outside the package, because it runs the Kafka of the tests. `run` is the program.
"""
