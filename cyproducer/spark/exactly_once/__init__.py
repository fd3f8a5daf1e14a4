"""Exactly-once from Spark to Kafka: each batch's rows are written once, even if parts fail and run again.

``names`` makes transactional ids, ``decisions`` has the records of the decision log, ``rules`` decides what a
batch may do, ``driver`` runs the protocol, ``cluster`` is the interface to Kafka that the protocol needs, and
``task`` writes one task's rows in a transaction. ``docs/spark-exactly-once.md`` describes the protocol.
"""
