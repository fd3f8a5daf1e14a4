"""Checks topic names, before any other code uses them. Pure functions; any thread may call them."""

from __future__ import annotations

import re
from typing import Any

from cyproducer.errors import InvalidTopicError

_LEGAL = re.compile(r"[A-Za-z0-9._-]{1,249}")


def legal_topic(name: Any) -> str:
    """Returns the name as a plain ``str``, because a subclass may override ``__eq__`` or ``__hash__``, as
    enums do.

    Raises:
        TypeError: the name is not a string.
        InvalidTopicError: no broker would accept the name.
    """
    # Not isinstance(), which trusts the object's own __class__.
    if not issubclass(type(name), str):
        raise TypeError(f"topic: must be a str, not {type(name).__name__}")
    plain = str.__str__(name)
    if not _LEGAL.fullmatch(plain) or plain in (".", ".."):
        raise InvalidTopicError(
            f"topic {plain!r}: a name must have 1 to 249 of the characters a-z A-Z 0-9 . _ -, "
            "and must not be '.' or '..'"
        )
    return plain
