"""What ``compare.py`` is made of.

``cases`` says what is compared and what the goals are, ``bench`` runs it and keeps the results, ``figures``
does the arithmetic, ``brokers`` starts brokers, ``report`` and ``plots`` write down what was found.
"""
