"""Implements ``send()``, ``send_many()`` and ``send_arrow()``, which run on the calling thread."""
