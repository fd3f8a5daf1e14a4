"""Attributes that users of other clients expect: the ``AttributeError`` names the replacement.

Descriptors, because a ``__getattr__`` would slow down the look-up of every attribute of its class. They have
no ``__set__``: a subclass or an instance may use the name for something of its own.
"""

from collections.abc import Iterable
from typing import Any, NoReturn


class Missing:
    """An attribute that a class does not have: access raises ``AttributeError`` with ``advice``, also on the
    class.

    So ``hasattr()`` is False. Immutable and therefore thread-safe.
    """

    __slots__ = ("_advice",)

    def __init__(self, advice: str) -> None:
        self._advice = advice

    def __get__(self, instance: object, owner: type | None = None) -> NoReturn:
        raise AttributeError(self._advice)


def without_missing(instance: Any, names: Iterable[str]) -> list[str]:
    """Returns the ``names`` that ``object.__dir__`` found without the ``Missing`` ones; for a ``__dir__``."""
    own = getattr(instance, "__dict__", ())
    found: dict[str, object] = {}
    for kind in reversed(type(instance).__mro__):
        found.update(vars(kind))
    return [name for name in names if name in own or not isinstance(found.get(name), Missing)]
