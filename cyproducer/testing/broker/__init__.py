"""An in-memory Kafka cluster in Python, which ``EmbeddedBroker`` starts. Private.

``partitions``, ``homes``, ``transactions``, ``group_offsets`` and ``groups`` implement the rules of a
cluster, without I/O and in the time of a ``World``. The tests' simulator runs the same rules, except
``groups``, in simulated time.
"""
