"""Lets ``except kafka.errors.KafkaTimeoutError`` catch this package's error of that name; same for aiokafka.

A program that migrates from kafka-python or aiokafka may still have ``except`` clauses for its errors. So
each class gets the other client's class of the same name, or the same error code, as an additional base (a
few get two), as soon as the program has imported the other client. Classes cannot be matched in any other
way, since ``except`` ignores ``__subclasscheck__``. This package never imports the other client. The program
can import either package first: an ``except`` clause can name the other client's class only after its import,
and the first error that is made after that import adds the bases.

Any thread may call ``adopt``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

MODULES: Final = ("kafka.errors", "aiokafka.errors")

_RENAMED: Final[Mapping[str, str]] = {
    "ProducerClosedError": "ProducerClosed",
    "ProducerFencedError": "ProducerFenced",
}
"""aiokafka's names of classes that match neither by name nor by code."""

_ALSO: Final[Mapping[str, str]] = {
    "IllegalStateError": "IllegalOperation",
    "InvalidProducerEpochError": "ProducerFenced",
}
"""Further classes that aiokafka raises in transactions, where this package has one error."""


def adopt(root: type[Exception], module: str) -> bool:
    """Gives ``root`` and its subclasses their additional bases, if ``module`` has been imported.

    Returns whether it has been.
    """
    theirs = sys.modules.get(module)
    # Another thread may be in the middle of the import.
    if theirs is None or getattr(getattr(theirs, "__spec__", None), "_initializing", False):
        return False
    # Bases before their subclasses. Two threads may do this at once: both set the same bases.
    for ours in sorted(_tree(root), key=lambda each: len(each.__mro__)):
        for twin in (_twin(ours, theirs), getattr(theirs, _ALSO.get(ours.__name__, ""), None)):
            if not isinstance(twin, type) or not issubclass(twin, Exception) or issubclass(ours, twin):
                continue
            # An old version may have an incompatible class tree. Then only the counterparts of the bases
            # match.
            with suppress(TypeError):
                ours.__bases__ = (*ours.__bases__, twin)
    return True


def _twin(ours: type[Exception], theirs: Any) -> Any:
    """The other client's class for ``ours``, or None."""
    same = getattr(theirs, ours.__name__, None) or getattr(theirs, _RENAMED.get(ours.__name__, ""), None)
    # A subclass of a class with a code inherits the code, but the code does not stand for it.
    code = vars(ours).get("errno")
    by_code = getattr(theirs, "kafka_errors", None)
    return by_code.get(code) if same is None and code is not None and isinstance(by_code, dict) else same


def _tree(root: type[Exception]) -> set[type[Exception]]:
    """``root`` and its subclasses in this package."""
    below = (each for each in root.__subclasses__() if each.__module__.startswith("cyproducer."))
    return {root}.union(*map(_tree, below))
