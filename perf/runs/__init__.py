"""The measured runs: each is one client with one task, in a separate process (``perf/client.py``).

``measuring`` has the shared parts, ``own`` and ``own_sweeps`` this producer's runs, ``peers`` those of other
clients, ``raw`` sockets without a client, which are the lower bound.
"""
