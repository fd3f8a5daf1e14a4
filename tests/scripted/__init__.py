"""What the tests of several folders share: scripted brokers, and the producers and senders that they answer.

- ``scripted_broker``: ``ScriptedCluster``, whole brokers whose responses a test can script. Its parts:
  ``scripted_model`` (topics, logs, reactions), ``scripted_wire`` (the codec), ``scripted_sasl``,
  ``scripted_reading``, ``scripted_transactions`` and ``scripted_coordinator``.
- ``odd_servers``: servers that are no brokers, and addresses that refuse connections.
- ``producing``: producers with short timeouts, always closed; ``transacting``: transactional ones.
- ``sender_steps``: the sender loop step by step; ``tls_pair``: TLS for it.
"""
