"""Reads and checks the values of options.

Owns the kinds of values (a number in a range, a list of servers, ...). Each kind accepts values as a Python
program passes them and as a Java properties file contains them (strings: ``"5"``, ``"true"``), and returns
one normal form. Does not assign kinds to options (``config.options``) or own the rules between options
(``config``). Pure functions; any thread may call them.
"""

from __future__ import annotations

import math
import operator
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NoReturn, TypeVar

T = TypeVar("T")

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
# About 292 years: the maximum that fits an int64 after conversion to nanoseconds.
FOREVER_MS = INT64_MAX // 1_000_000

Address = tuple[str, int]
DEFAULT_PORT = 9092
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class Refused(Exception):
    """A value is not allowed. The text, if there is one, gives a reason in addition to ``Kind.allowed``."""


class Kind(Generic[T]):
    """A kind of value. Called with a value, it returns the normal form or raises ``Refused``.

    ``allowed`` completes the sentence "must be ...". A normal form is itself an accepted value.
    ``annotation`` is the type that type checkers use for the values that a Python program passes, with the
    names of ``cyproducer.types``. It does not include a string instead of a number or a bool, as in a
    properties file.
    """

    __slots__ = ("_read", "allowed", "annotation")

    def __init__(self, allowed: str, read: Callable[[Any], T], annotation: str = "Any") -> None:
        self.allowed = allowed
        self._read = read
        self.annotation = annotation

    def __call__(self, value: Any) -> T:
        return self._read(value)


def boolean(also: Mapping[str, bool] | None = None) -> Kind[bool]:
    """True or False, also as text; ``also`` adds other texts."""
    texts = {"true": True, "false": False, **(also or {})}

    def read(value: Any) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().lower() in texts:
            return texts[value.strip().lower()]
        raise Refused

    return Kind(" or ".join(["True or False", *(f"{text!r}" for text in also or ())]), read, "bool")


def number(value: Any) -> int | float:
    """Converts a number or its text to a number; an ``int`` if it is whole. Refuses NaN."""
    if isinstance(value, bool | bytes | bytearray):
        raise Refused
    if isinstance(value, str):
        text = value.strip()
        # Python also accepts "1_000" and digits of other scripts, which are a mistake in a properties file.
        if not text.isascii() or "_" in text:
            raise Refused
        try:
            return int(text)
        except ValueError:
            pass
    try:
        return operator.index(value)
    except TypeError:
        pass
    try:
        real = float(value)
    except (TypeError, ValueError, OverflowError):
        raise Refused from None
    if math.isnan(real):
        raise Refused
    return int(real) if real.is_integer() else real


def whole(minimum: int, maximum: int, unit: str = "", *, also: int | None = None) -> Kind[int]:
    """A whole number from ``minimum`` to ``maximum``, or ``also``."""
    bounds = f">= {minimum}" if maximum >= INT32_MAX else f"from {minimum} to {maximum}"
    allowed = f"a whole number{unit and f' of {unit}'} {bounds}"

    def read(value: Any) -> int:
        found = number(value)
        if isinstance(found, int) and (minimum <= found <= maximum or found == also):
            return found
        if found > maximum >= INT32_MAX:
            raise Refused(f"it is above {maximum}")
        raise Refused

    return Kind(allowed if also is None else f"{allowed}, or {also}", read, "int")


def milliseconds(minimum: int = 0, *, never: int | None = None) -> Kind[float]:
    """A duration. ``inf``, ``never`` and durations above 292 years become ``FOREVER_MS``."""
    allowed = f"a number of milliseconds >= {minimum}"

    def read(value: Any) -> float:
        found = number(value)
        if found == never:
            return FOREVER_MS
        if found < minimum:
            raise Refused
        return min(found, FOREVER_MS)

    return Kind(allowed if never is None else f"{allowed}, or {never} for never", read, "float")


def whole_milliseconds() -> Kind[int]:
    """A duration that requests carry as an int32: 1 ms to 24 days, in whole ms; more becomes 24 days."""

    def read(value: Any) -> int:
        found = number(value)
        if found < 1 or (isinstance(found, float) and not math.isinf(found)):
            raise Refused
        return INT32_MAX if found > INT32_MAX else int(found)

    return Kind("a whole number of milliseconds >= 1, or inf", read, "float")


def count_or_endless() -> Kind[float]:
    """A whole number >= 0, or ``float('inf')``."""

    def read(value: Any) -> float:
        found = number(value)
        if found < 0 or (isinstance(found, float) and not math.isinf(found)):
            raise Refused
        return found

    return Kind("a whole number >= 0, or float('inf')", read, "float")


def optional(kind: Kind[T], *nothing: Any) -> Kind[T | None]:
    """The kind, or None. The values in ``nothing`` also mean None."""

    def read(value: Any) -> T | None:
        if value is None:
            return None
        plain = value.strip().lower() if isinstance(value, str) else value
        if any(type(plain) is type(none) and plain == none for none in nothing):
            return None
        return kind(value)

    annotation = kind.annotation
    if annotation.startswith("Literal["):
        words = [word for word in nothing if is_text(word) and word]
        annotation = ", ".join([annotation.removesuffix("]"), *map(_quoted, words)]) + "]"
    if annotation != "Any":
        annotation += " | None"
    return Kind(f"{kind.allowed}, or None", read, annotation)


def choice(*names: str, also: Mapping[str, str] | None = None) -> Kind[str]:
    """One of the names, in any case; ``also`` maps other spellings to them."""
    spellings = {name.lower(): name for name in names} | dict(also or {})

    def read(value: Any) -> str:
        if isinstance(value, str) and value.strip().lower() in spellings:
            return spellings[value.strip().lower()]
        raise Refused

    return Kind("one of " + ", ".join(map(repr, names)), read, _literal(names))


def _literal(names: Iterable[str]) -> str:
    return f"Literal[{', '.join(map(_quoted, names))}]"


def _quoted(name: str) -> str:
    return f'"{name}"'


def acks() -> Kind[int]:
    """0, 1, -1 or 'all', as numbers or as text."""
    known = {"0": 0, "1": 1, "-1": -1, "all": -1}

    def read(value: Any) -> int:
        text = value.strip().lower() if isinstance(value, str) else str(number(value))
        if text in known:
            return known[text]
        raise Refused

    return Kind("0, 1, -1 or 'all'", read, 'int | Literal["all"]')


def text() -> Kind[str]:
    """A non-empty string within Kafka's limit: 32767 bytes of UTF-8."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise Refused
        size = len(value.encode(errors="surrogatepass"))
        if not 0 < size <= 32767:
            raise Refused(f"it has {size} bytes")
        return value

    return Kind("a string of 1 to 32767 bytes", read, "str")


class Hidden(Generic[T]):
    """A value whose ``repr()`` is ``***``; ``reveal()`` returns it.

    Error trackers record the local variables of every frame of an exception. So a secret is hidden as soon as
    it is known, is revealed only in the expression that needs it, and is never assigned to a variable.

    Immutable. Pickling raises TypeError: ``ProducerConfig.to_pickle`` decides whether to pickle secrets.
    """

    __slots__ = ("_text",)
    _text: T

    def __init__(self, text: T) -> None:
        object.__setattr__(self, "_text", text)

    def reveal(self) -> T:
        """Returns the value."""
        return self._text

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a secret cannot be changed")

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hidden) and self._text == other._text

    def __hash__(self) -> int:
        return hash(Hidden)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a password or key is not pickled by itself")


class Secret(Hidden[str]):
    """A password, key or token."""

    __slots__ = ()


class SecretUrl(Secret):
    """A URL that may have a user and password, which its ``repr()`` omits."""

    __slots__ = ()

    def __repr__(self) -> str:
        if "@" not in self._text:
            return repr(self._text)
        scheme, mark, _ = self._text.partition("://")
        return repr(f"{scheme if mark else ''}{mark}***@{self._text.rpartition('@')[2]}")

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)

    __hash__ = Secret.__hash__


def url() -> Kind[Any]:
    """A URL, which becomes a ``SecretUrl`` if it contains a user."""
    string = text()

    def read(value: Any) -> Any:
        if isinstance(value, str) and "@" in value:
            value = SecretUrl(value)
        if not isinstance(value, SecretUrl):
            string(value)
        if "://" not in (value.reveal() if isinstance(value, SecretUrl) else value):
            raise Refused("it has no scheme such as socks5://")
        return value

    return Kind("a URL", read, "str")


def endpoint() -> Kind[str]:
    """An http:, https: or file: URL without a user and password."""
    string = text()

    def read(value: Any) -> str:
        found = string(value)
        scheme, mark, rest = found.partition(":")
        if not mark or scheme.lower() not in ("http", "https", "file"):
            raise Refused
        if "@" in rest.removeprefix("//").partition("/")[0]:
            raise Refused("a user and password cannot be in it")
        if scheme.lower() != "file":
            if not rest.startswith("//") or rest[2:3] in ("", "/", "?", "#", ":"):
                raise Refused("it has no host")
            if not (rest.isascii() and rest.isprintable()) or " " in rest:
                raise Refused("it has letters that must be percent-encoded")
        return found

    return Kind("a URL that begins with https://, http:// or file:", read, "str")


def pairs() -> Kind[dict[str, str]]:
    """A mapping of names to values, or one string: ``name=value,name=value``."""

    def read(value: Any) -> dict[str, str]:
        if is_text(value):
            value = dict(tuple(part.strip().partition("=")[::2]) for part in value.split(","))
        if not isinstance(value, Mapping):
            raise Refused
        for name, each in value.items():
            if not (is_text(name) and is_text(each) and name and each):
                raise Refused(f"{name!r} has no value")
        return dict(value)

    return Kind("a mapping, or a string such as 'name=value,name=value'", read, "Mapping[str, str] | str")


def mappings() -> Kind[dict[str, dict[str, Any]]]:
    """A mapping of names to mappings of options, or JSON of one. The options are not checked here."""

    def read(value: Any) -> dict[str, dict[str, Any]]:
        if is_text(value):
            import json  # here, because few configurations have one

            try:
                value = json.loads(value)
            except ValueError as error:
                raise Refused(f"it is not JSON: {error}") from None
        if not isinstance(value, Mapping):
            raise Refused
        for name, each in value.items():
            if not is_text(name):
                raise Refused(f"{name!r} is not a string")
            if not isinstance(each, Mapping) or not all(is_text(key) for key in each):
                raise Refused(f"{name!r} has {each!r}")
        return {name: dict(each) for name, each in value.items()}

    return Kind(
        "a mapping of topics' names or patterns to mappings of options, or JSON of one",
        read,
        "Mapping[str, Mapping[str, Any]] | str",
    )


def hidden(secret: Secret | Callable[[], str] | None) -> Secret | None:
    """Returns a secret; calls it if it is callable."""
    return secret if secret is None or isinstance(secret, Secret) else Secret(called(secret))


def called(supplier: Callable[[], str]) -> str:
    """Calls a user's function for a name or password. Raises TypeError if it does not return a string."""
    found: object = supplier()
    if isinstance(found, str):
        return found
    kind = type(found).__name__
    # It may be a password as bytes.
    del found
    raise TypeError(f"it returned {kind}: it must return a string")


def secret() -> Kind[Any]:
    """A string, which becomes a ``Secret``, or a callable that returns one."""

    def read(value: Any) -> Any:
        if callable(value) and not isinstance(value, type):
            return value
        value = value if isinstance(value, Secret) else Secret(value)
        if not is_text(value.reveal()) or not value.reveal():
            raise Refused
        return value

    return Kind("a string, or a callable that returns one", read, "str | Callable[[], str]")


def text_or_callable() -> Kind[Any]:
    """A non-empty string, or a callable that returns one."""
    string = text()

    def read(value: Any) -> Any:
        return value if callable(value) and not isinstance(value, type) else string(value)

    return Kind(f"{string.allowed}, or a callable that returns one", read, "str | Callable[[], str]")


def pem() -> Kind[str]:
    """Certificates as PEM text."""

    def read(value: Any) -> str:
        if not is_text(value) or "-----BEGIN CERTIFICATE-----" not in value:
            raise Refused
        text: str = value
        return text

    return Kind("certificates as PEM text", read, "str")


def some_of(*names: str) -> Kind[tuple[str, ...]]:
    """A list of names, or one string with commas."""

    def read(value: Any) -> tuple[str, ...]:
        entries = value.split(",") if is_text(value) else value
        if not isinstance(entries, list | tuple) or not entries:
            raise Refused
        one = choice(*names)
        return tuple(dict.fromkeys(one(entry) for entry in entries))

    return Kind("some of " + ", ".join(map(repr, names)), read, f"Sequence[{_literal(names)}] | str")


def path() -> Kind[str]:
    """A file's path, as a string or a ``pathlib.Path``."""

    def read(value: Any) -> str:
        try:
            found = os.fspath(value)
        except TypeError:
            raise Refused from None
        if not isinstance(found, str) or not found:
            raise Refused
        return found

    return Kind("the path of a file", read, "str | PathLike[str]")


def anything(allowed: str) -> Kind[Any]:
    """A value that is not checked here."""
    return Kind(allowed, lambda value: value)


def callable_or_with(method: str, annotation: str, *, names: bool = False) -> Kind[Any]:
    """A callable or an object with the method. With ``names``, also a non-empty string."""

    def read(value: Any) -> Any:
        if callable(value) or callable(getattr(value, method, None)) or (names and value and is_text(value)):
            return value
        if is_text(value) and "." in value:
            raise Refused("names of Java classes are not supported")
        raise Refused

    allowed = f"{'a name, ' if names else ''}a callable, an object with a {method}() method"
    return Kind(allowed, read, f"str | {annotation}" if names else annotation)


def is_text(value: Any) -> bool:
    """Whether the value is a string, which is iterable but never means a list of characters."""
    return isinstance(value, str)


def plugins(what: str, annotation: str, *methods: str) -> Kind[tuple[Any, ...]]:
    """A list of objects or classes with at least one of the methods. None and '' mean the empty list."""
    hooks = all(method.startswith("on_") for method in methods)

    def read(value: Any) -> tuple[Any, ...]:
        if value is None or value == "":
            return ()
        found = value if isinstance(value, Iterable) and not is_text(value) else (value,)
        items = tuple(found)
        if any(is_text(item) for item in items):
            raise Refused("names of Java classes are not supported")
        for item in items:
            name = item.__name__ if isinstance(item, type) else type(item).__name__
            missing = [method for method in methods if not callable(getattr(item, method, None))]
            if len(missing) == len(methods):
                raise Refused(f"{name} has none of these methods")
            if hooks and missing:
                # A misspelt method would never be called, and no error would be reported.
                names = {each for each in dir(item) if each.startswith("on_")} - {*methods}
                if others := [each for each in sorted(names) if callable(getattr(item, each, None))]:
                    raise Refused(f"{name} has {others[0]}() and no {missing[0]}(): nothing would call it")
        return items

    allowed = f"a list of {what} with {' or '.join(f'{method}()' for method in methods)}"
    return Kind(allowed, read, f"Iterable[{annotation}] | {annotation} | None")


def api_version() -> Kind[tuple[int, ...]]:
    """``(2, 8)`` or ``"2.8.0"``."""

    def read(value: Any) -> tuple[int, ...]:
        parts = value.strip().split(".") if is_text(value) else value
        if not isinstance(parts, list | tuple) or not parts:
            raise Refused
        numbers = tuple(number(part) for part in parts)
        whole_numbers = tuple(found for found in numbers if isinstance(found, int) and found >= 0)
        if len(whole_numbers) != len(numbers):
            raise Refused
        return whole_numbers

    return Kind("a version such as (2, 8) or '2.8.0'", read, "Sequence[int] | str")


def socket_options() -> Kind[tuple[tuple[Any, ...], ...]]:
    """Argument tuples for ``socket.setsockopt``."""

    def read(value: Any) -> tuple[tuple[Any, ...], ...]:
        if not isinstance(value, Iterable) or isinstance(value, str | bytes):
            raise Refused
        options = []
        for entry in value:
            if not isinstance(entry, list | tuple) or not _fits_setsockopt(tuple(entry)):
                raise Refused(f"{entry!r} is not such a tuple")
            options.append(tuple(entry))
        return tuple(options)

    entry = "tuple[int, int, int | bytes] | tuple[int, int, None, int]"
    return Kind("a list of (level, option, value) tuples for socket.setsockopt()", read, f"Iterable[{entry}]")


def _fits_setsockopt(entry: tuple[Any, ...]) -> bool:
    match entry:
        case (int(), int(), int() | bytes()) | (int(), int(), None, int()):
            return True
    return False


def ssl_context() -> Kind[Any]:
    """An ``ssl.SSLContext``."""

    def read(value: Any) -> Any:
        import ssl  # here, because it takes longer to import than the rest of this package

        if not isinstance(value, ssl.SSLContext):
            raise Refused
        return value

    return Kind("an ssl.SSLContext", read, "SSLContext")


def servers() -> Kind[tuple[str, ...]]:
    """Bootstrap servers: a list, or one string with commas. The entries are kept as written."""

    def read(value: Any) -> tuple[str, ...]:
        entries = value.split(",") if is_text(value) else value
        if not isinstance(entries, Iterable) or isinstance(entries, bytes):
            raise Refused
        found = []
        for entry in entries:
            if not is_text(entry):
                raise Refused(f"{entry!r} is not a string")
            for part in entry.split(","):
                if part.strip():
                    split_server(part)
                    found.append(part.strip())
        if not found:
            raise Refused("it contains no server")
        return tuple(found)

    allowed = "'host[:port]', several of them separated by commas, or a list of them"
    return Kind(allowed, read, "str | Iterable[str]")


def split_server(entry: str) -> tuple[str | None, Address]:
    """Splits ``[PROTOCOL://]host[:port]`` into protocol and address.

    An IPv6 address with a port must be in brackets. The default port is 9092. Raises ``Refused`` with the
    entry in its text.
    """
    entry = entry.strip()
    prefix, mark, rest = entry.rpartition("://")
    if mark and prefix.upper() not in SECURITY_PROTOCOLS:
        raise Refused(f"{entry!r} has the prefix {prefix!r}; allowed are only {'/'.join(SECURITY_PROTOCOLS)}")
    if rest.startswith("["):
        host, _, port_part = rest[1:].partition("]")
        if "]" not in rest or (port_part and not port_part.startswith(":")) or not _is_ipv6(host):
            raise Refused(f"{entry!r} has no IPv6 address in its brackets")
        port = port_part.removeprefix(":") if port_part else str(DEFAULT_PORT)
    elif rest.count(":") > 1:
        if not _is_ipv6(rest):
            raise Refused(f"{entry!r} has too many colons for host:port and is not an IPv6 address")
        host, port = rest, str(DEFAULT_PORT)
    else:
        host, colon, port_part = rest.partition(":")
        port = port_part if colon else str(DEFAULT_PORT)
    if not host or len(host) > 255 or any(letter.isspace() or letter in "/@[]#?" for letter in host):
        raise Refused(f"{entry!r} has no valid host name")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise Refused(f"{entry!r} has no valid port: a port is a number from 1 to 65535")
    return (prefix.upper() if mark else None), (host, int(port))


def _is_ipv6(host: str) -> bool:
    address, _, zone = host.partition("%")
    if "%" in host and not zone:
        return False
    try:
        socket.inet_pton(socket.AF_INET6, address)
    # ValueError: it has a null character.
    except (OSError, ValueError):
        return False
    return True
