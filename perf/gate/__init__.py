"""Instructions per record, counted, beside stored bounds: the part of performance a test can hold still.

``python perf/gate/check.py`` compares, and ends with 1 where something got 10 % dearer; ``--update`` stores
what it counts. ``workloads`` says what is counted, ``counting`` how, ``bounds`` what is compared.
"""
