"""What is measured: each run is one client at one task, in a process of its own (``perf/client.py``).

``measuring`` has what all share, ``own`` and ``own_sweeps`` this producer's runs, ``peers`` the others',
``raw`` the sockets without a client, which are the floor.
"""
