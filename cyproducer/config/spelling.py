"""Names options in error messages as the user names them.

Every part of the package writes messages with kafka-python's names (``linger_ms``). An API whose users know
options by other names (``linger.ms``, ``kafka.linger.ms``, ``message.timeout.ms``) renames them in an error
that passes through it: ``rename(error, name_of)``. Does not own the names (``config.options``,
``config.other_clients``). Pure functions, apart from ``rename``; any thread may call them.
"""

import re
from collections.abc import Callable, Iterable
from functools import cache

from cyproducer.config import option_name
from cyproducer.config.options import OPTIONS, OPTIONS_BY_NAME


def java_spelling(name: str) -> str:
    """Returns ``Option.java_spelling``, given kafka-python's name."""
    return OPTIONS_BY_NAME[name].java_spelling


def as_given(
    keys: Iterable[str],
    known: Callable[[str], str | None] = option_name,
    otherwise: Callable[[str], str] | None = None,
) -> Callable[[str], str]:
    """Returns a spelling that keeps the given keys.

    Args:
        keys: the names of the options that the user has given.
        known: returns kafka-python's name of a key; None: it is no option of ``KafkaProducer``.
        otherwise: the spelling of other options. None: Java's if a key is in it, else kafka-python's.
    """
    keys = frozenset(keys)
    given = {name: key for key in keys if (name := known(key)) is not None}
    if otherwise is None:
        otherwise = java_spelling if any("." in key for key in given.values()) else str
    return lambda name: name if name in keys else given.get(name) or otherwise(name)


def rename(error: Exception, name_of: Callable[[str], str]) -> None:
    """Replaces the options' names in the text of an error, which is its only argument.

    ``name_of``: returns the user's name of an option, given kafka-python's. A text that was renamed before
    stays as it is.
    """
    if len(error.args) == 1 and isinstance(error.args[0], str):
        error.args = (renamed(error.args[0], name_of),)


def renamed(text: str, name_of: Callable[[str], str]) -> str:
    """Returns the text with the names of options replaced."""
    return _names().sub(lambda found: name_of(found[0]), text)


@cache
def _names() -> re.Pattern[str]:
    """Matches names of options. A name without an underscore is also a word (``acks``, ``retries``): it is
    an option's name in front of its value or of what is wrong with it."""
    several = sorted((option.name for option in OPTIONS if "_" in option.name), key=len, reverse=True)
    single = [option.name for option in OPTIONS if "_" not in option.name]
    return re.compile(rf"(?<![\w.'])(?:(?:{'|'.join(several)})(?!\w)|(?:{'|'.join(single)})(?=[=:]))")
