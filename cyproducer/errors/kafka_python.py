"""Lets ``except kafka.errors.KafkaTimeoutError`` catch this package's error of the same name.

A program that moves here from kafka-python may still have its ``except`` clauses. So each class gets
kafka-python's class of the same name as a further base, as soon as the program has imported that: classes
cannot be matched in any other way, since ``except`` ignores ``__subclasscheck__``. kafka-python is never
imported here. The program may import either package first: an ``except`` clause can only name kafka-python's
class after its import, and an error that is made after that finds it.

``cyproducer.confluent`` does the same with confluent-kafka's classes. Any thread may call ``adopt``.
"""

import sys
from contextlib import suppress


def adopt(root: type[Exception], module: str = "kafka.errors") -> bool:
    """Gives ``root`` and its subclasses their further bases, if ``module`` has been imported.

    ``module`` is the one that has the other client's classes. Returns whether it has been imported.
    """
    theirs = sys.modules.get(module)
    # Another thread may be in the middle of the import.
    if theirs is None or getattr(getattr(theirs, "__spec__", None), "_initializing", False):
        return False
    # Bases before their subclasses. Two threads may do the same at once: both set the same.
    for ours in sorted(_tree(root), key=lambda each: len(each.__mro__)):
        twin = getattr(theirs, ours.__name__, None)
        if not isinstance(twin, type) or not issubclass(twin, Exception) or issubclass(ours, twin):
            continue
        # An old version may have a tree that does not fit: then only the bases' twins match.
        with suppress(TypeError):
            ours.__bases__ = (*ours.__bases__, twin)
    return True


def _tree(root: type[Exception]) -> set[type[Exception]]:
    """``root`` and its subclasses in this package."""
    below = (each for each in root.__subclasses__() if each.__module__.startswith("cyproducer."))
    return {root}.union(*map(_tree, below))
