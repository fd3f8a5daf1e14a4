"""The parts of ``compare.py``.

``cases`` defines the comparisons and the goals, ``bench`` runs them and collects the results, ``figures``
does the arithmetic, ``brokers`` starts brokers, ``report`` and ``plots`` write the report.
"""
