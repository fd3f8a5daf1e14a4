"""A Kafka cluster in Python, in memory: what ``EmbeddedBroker`` starts. Private.

``partitions``, ``homes``, ``transactions``, ``group_offsets`` and ``groups`` are the rules of a cluster,
without I/O and in the time of a ``World``. The tests' simulator runs the same rules in simulated time, except
``groups``.
"""
