"""Attributes that users of other clients expect but that do not exist here.

Access raises an ``AttributeError`` that names the replacement. The attributes are descriptors, because a
``__getattr__`` would slow down the lookup of every attribute of its class. They have no ``__set__``: a
subclass or an instance can use the name for something else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn


class Missing:
    """An attribute that a class does not have: access raises ``AttributeError`` with ``advice``, also access
    on the class.

    So ``hasattr()`` is False. Immutable and therefore thread-safe.
    """

    __slots__ = ("_advice",)

    def __init__(self, advice: str) -> None:
        self._advice = advice

    def __get__(self, instance: object, owner: type | None = None) -> NoReturn:
        raise AttributeError(self._advice)


def without_missing(instance: Any, names: Iterable[str]) -> list[str]:
    """Returns ``names``, as found by ``object.__dir__``, without the ``Missing`` ones; for a ``__dir__``."""
    own = getattr(instance, "__dict__", ())
    found: dict[str, object] = {}
    for kind in reversed(type(instance).__mro__):
        found.update(vars(kind))
    return [name for name in names if name in own or not isinstance(found.get(name), Missing)]
