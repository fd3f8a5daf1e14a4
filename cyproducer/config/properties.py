"""Reads Java's properties files, the configuration format of Kafka's own tools.

Owns the file format (``java.util.Properties``): comments, three separators, continuation lines, escapes. Does
not own the options in it. Pure functions; any thread may call them.

Java reads ISO-8859-1. A file that is valid UTF-8 is read as UTF-8, because today's editors write nothing
else.
"""

import re

#: A name, up to the first separator that is not escaped with a backslash, and a value. Matches every line.
_ENTRY = re.compile(r"((?:\\.?|[^\\=: \t\f])*)[ \t\f]*(?:[=:][ \t\f]*)?(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.?))", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse(data: bytes) -> dict[str, str]:
    """Returns the entries of a file. If a name occurs more than once, the last value counts."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    found = {}
    for line in _logical_lines(text):
        name, value = _ENTRY.findall(line)[0]
        found[_unescaped(name)] = _unescaped(value)
    return found


def _logical_lines(text: str) -> list[str]:
    """Joins lines that end with a backslash that is not escaped; drops comments and empty lines."""
    found: list[str] = []
    continued = False
    for line in re.split(r"\r\n|\r|\n", text):
        stripped = line.lstrip(" \t\f")
        if not continued and (not stripped or stripped[0] in "#!"):
            continue
        if continued:
            found[-1] += stripped
        else:
            found.append(stripped)
        continued = (len(found[-1]) - len(found[-1].rstrip("\\"))) % 2 == 1
        if continued:
            found[-1] = found[-1][:-1]
    return found


def _unescaped(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        if found[1] is not None:
            return chr(int(found[1], 16))
        return _LETTERS.get(found[2], found[2])

    # Java escapes UTF-16 code units: a character above U+FFFF is a pair of surrogates.
    return _ESCAPE.sub(one, text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
