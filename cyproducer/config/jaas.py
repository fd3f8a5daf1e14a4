"""Reads ``sasl.jaas.config``, the form in which Java's clients take credentials.

Owns the grammar: one login module, as in ``org.apache.kafka.common.security.plain.PlainLoginModule required
username="alice" password="secret";``. Does not own which module belongs to which mechanism (``config``).
Pure functions; any thread may call them.

The grammar is what Java's parser accepts (tested with Kafka 4.1): values in single or double quotes with C's
escapes, or words of letters, digits, ``.``, ``-``, ``_`` and ``$``. A slash begins a comment. If a name
occurs more than once, the last value counts.
"""

import re
from typing import NamedTuple

from cyproducer.config.option_kinds import Refused, Secret

_TOKEN = re.compile(
    r"""
      (?P<space>\s+|/\*.*?\*/|/[^\n]*)
    | "(?P<double>(?:[^"\\\n]|\\.)*)"
    | '(?P<single>(?:[^'\\\n]|\\.)*)'
    | (?P<word>[A-Za-z_$\x80-\U0010ffff][\w.$\-]*)
    | (?P<sign>[=;])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}
_FLAGS = ("required", "requisite", "sufficient", "optional")


class LoginModule(NamedTuple):
    """A login module: the last part of its class name, and its options, any of which may be a credential."""

    name: str
    options: dict[str, Secret]


def _unescaped(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        code = found[1]
        return chr(int(code, 8)) if code[0] in "01234567" else _LETTERS.get(code, code)

    return _ESCAPE.sub(one, text)


def _tokens(text: str) -> list[tuple[str, str]] | str:
    """Returns (kind, text) of each token, or what is wrong; kinds are word, value (in quotes) and sign."""
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            # Not the text itself: it may be a part of a password.
            return f"character {at + 1} is neither a name, a value in quotes, '=' nor ';'"
        at = match.end()
        kind = str(match.lastgroup)
        if kind in ("double", "single"):
            found.append(("value", _unescaped(match[kind])))
        elif kind != "space":
            found.append((kind, match[kind]))
    return found


def parse(text: Secret) -> LoginModule:
    """Returns the login module. Raises ``Refused``, whose text contains none of the values."""
    found = _parsed(text.reveal())
    if isinstance(found, str):
        raise Refused(found)
    return found


def _parsed(text: str) -> LoginModule | str:
    """The login module, or what is wrong. Never raises, because its local variables contain the password."""
    tokens = _tokens(text)
    if isinstance(tokens, str):
        return tokens
    if len(tokens) < 2 or tokens[0][0] != "word" or tokens[1][0] != "word":
        return "it must begin with a login module's class and 'required'"
    if tokens[1][1].lower() not in _FLAGS:
        return f"behind the login module's class there must be one of {', '.join(_FLAGS)}"
    options: dict[str, Secret] = {}
    at = 2
    while at < len(tokens) and tokens[at] != ("sign", ";"):
        name = tokens[at]
        if name[0] != "word":
            return f"entry {len(options) + 1} does not begin with a name"
        if at + 2 >= len(tokens) or tokens[at + 1] != ("sign", "=") or tokens[at + 2][0] == "sign":
            # Not the name: after an unquoted password that contains a space, it is the rest of the password.
            return f'entry {len(options) + 1} has no value: write NAME="VALUE"'
        options[name[1]] = Secret(tokens[at + 2][1])
        at += 3
    if at == len(tokens):
        return "it must end with ';'"
    if at != len(tokens) - 1:
        return "there is something behind the ';': give one login module only"
    return LoginModule(tokens[0][1].rpartition(".")[2], options)
