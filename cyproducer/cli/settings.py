"""Options of the commands that connect to a cluster, and the producer's options that follow from them.

Owns their names on the command line, properties files, and the order in which options override each other.
Does not own their meaning (``config``). Pure, except for reading the files.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from typing import Any

from cyproducer.cli.console import say
from cyproducer.cli.line_format import unescaped
from cyproducer.cli.line_producer import CONNECT_TIMEOUT_S
from cyproducer.config import hide_value, option_name
from cyproducer.config.option_kinds import SECURITY_PROTOCOLS, Secret
from cyproducer.config.properties import parse as parse_properties
from cyproducer.config.spelling import as_given, java_spelling
from cyproducer.errors import KafkaConfigurationError
from cyproducer.records.codecs import CODECS

COMPRESSIONS = tuple(codec.name for codec in CODECS)
_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
"""The units of a duration, in seconds."""


def add_connection_options(parser: argparse.ArgumentParser, sends: bool = True) -> None:
    """Adds the options that `producer_settings` reads; those about records only if the command ``sends``."""
    group = parser.add_argument_group("connection", "Later ones of this list override earlier ones.")
    add = group.add_argument
    add(
        "-F",
        "--config-file",
        metavar="FILE",
        help="lines of NAME=VALUE, as kcat's: librdkafka's names that cyproducer also has, or Java's",
    )
    add(
        "--command-config",
        "--producer.config",
        dest="command_config",
        metavar="FILE",
        help="a properties file as Kafka's own tools take, with Java's names and escapes: "
        "security.protocol, sasl.jaas.config, ...",
    )
    add("-b", "--bootstrap-server", dest="bootstrap_servers", metavar="HOST:PORT[,...]")
    add(
        "--security-protocol",
        choices=SECURITY_PROTOCOLS,
        type=str.upper,
        help="PLAINTEXT (default), SSL, SASL_PLAINTEXT or SASL_SSL",
    )
    if sends:
        add("-z", "--compression", "--compression-codec", dest="compression", choices=COMPRESSIONS)
        add("--acks", type=acks, help="0, 1 or all (default)")
        add("--linger-ms", type=at_least(0), metavar="MS", help="wait this long for a batch to fill")
    else:
        parser.set_defaults(compression=None, acks=None, linger_ms=None)
    add(
        "-X",
        "--command-property",
        "--producer-property",
        dest="properties",
        type=name_and_text,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other option of the producer, with the names and values of the files above; may be "
        "repeated. `python -m cyproducer.config` lists them. Other users of this machine can see the command "
        "line: keep passwords in a file",
    )
    add(
        "-o",
        "--option",
        type=name_and_json,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="the same, but a VALUE that is JSON is decoded, as for an option that takes a list",
    )
    add(
        "--connect-timeout",
        type=at_least(1),
        default=CONNECT_TIMEOUT_S,
        metavar="S",
        help="give up if no broker responds within S seconds (default: %(default)s)",
    )


def producer_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `KafkaProducer`.

    Raises:
        KafkaConfigurationError: A file can't be read, or no broker is named.
    """
    settings: dict[str, Any] = {}
    if options.config_file is not None:
        settings |= _file_settings("-F/--config-file", options.config_file, _plain_properties)
    if options.command_config is not None:
        settings |= _file_settings("--command-config", options.command_config, parse_properties)
    if options.bootstrap_servers is not None:
        settings["bootstrap_servers"] = options.bootstrap_servers
    if options.security_protocol is not None:
        settings["security_protocol"] = options.security_protocol
    if options.compression is not None:
        settings["compression_type"] = None if options.compression == "none" else options.compression
    if options.acks is not None:
        settings["acks"] = options.acks
    if options.linger_ms is not None:
        settings["linger_ms"] = options.linger_ms
    for name, value in (*options.properties, *options.option):
        # Keep an unknown name: the producer's own error suggests what was meant.
        settings[_own_name(name) or name] = value
    if isinstance(protocol := settings.get("security_protocol"), str):
        # librdkafka also accepts it in lower case.
        settings["security_protocol"] = protocol.upper()
    if "bootstrap_servers" not in settings:
        raise KafkaConfigurationError("-b/--bootstrap-server is required, or bootstrap.servers in a file")
    return settings


def spelling(options: argparse.Namespace) -> Callable[[str], str]:
    """Returns the function that names an option of `KafkaProducer` in errors: as the command line does,
    otherwise as a properties file does."""
    names = (name for name, _ in (*options.properties, *options.option))
    return as_given(names, _own_name, java_spelling)


def _own_name(name: str) -> str | None:
    """The kafka-python name of an option, given that name, the Java name, or the name of a librdkafka option
    with the same values."""
    name = name.removeprefix("topic.")
    if (own := option_name(name)) is not None:
        return own
    from cyproducer.config.other_clients import OTHER_NAMES

    other = OTHER_NAMES.get(name)
    # A note says that the values differ.
    return other.option if other is not None and not other.note else None


def _hidden(name: str, value: str) -> Any:
    """The value of an option: a ``Secret`` if it may be a password or key, as in ``hide``."""
    return hide_value(_own_name(name) or name, value)


def _file_settings(option: str, path: str, parse: Callable[[bytes], dict[str, str]]) -> dict[str, Any]:
    """The options in a file, by their kafka-python names. Reports those that are not producer options."""
    try:
        with open(path, "rb") as file:
            found = {key: _hidden(key, value) for key, value in parse(file.read()).items()}
    except OSError as error:
        raise KafkaConfigurationError(f"{option} {path}: {error.strerror}") from error
    except ValueError as error:
        raise KafkaConfigurationError(f"{option} {path}: {error}") from error
    # Files are shared with consumers and administration tools, which have options of their own.
    ignored = [key for key in found if _own_name(key) is None]
    if ignored:
        say(sys.stderr, f"{path}: ignoring {', '.join(ignored)}: no options of a producer")
    return {name: value for key, value in found.items() if (name := _own_name(key)) is not None}


def _plain_properties(data: bytes) -> dict[str, str]:
    """Parses kcat's format, which has no escapes and no continuation lines."""
    found: dict[str, str] = {}
    for number, line in enumerate(data.decode("utf-8-sig", "surrogateescape").split("\n"), 1):
        name, separator, value = line.strip().partition("=")
        if not name or name.startswith("#"):
            continue
        if not separator:
            # Neither show the line nor keep it in this frame: it may be a password.
            del data, line, name, found
            raise ValueError(f"line {number} is not NAME=VALUE")
        found[name.rstrip()] = value.lstrip()
    return found


# Types of arguments


def name_and_text(text: str) -> tuple[str, Any]:
    """Parses ``NAME=VALUE``."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError("must be NAME=VALUE")
    return name, _hidden(name, value)


def name_and_json(text: str) -> tuple[str, Any]:
    """Parses ``NAME=VALUE``. A value that is JSON (a number, true, "text", a list) is decoded."""
    name, value = name_and_text(text)
    if isinstance(value, Secret) and option_name(name) is not None:
        return name, value
    try:
        return name, json.loads(value.reveal() if isinstance(value, Secret) else value)
    except ValueError:
        return name, value


def separator(text: str) -> bytes:
    """Parses a separator with escapes."""
    try:
        return unescaped(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def at_least(lowest: int) -> Callable[[str], int]:
    """Parses a whole number that is not below ``lowest``."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = lowest - 1
        if value < lowest:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number >= {lowest}")
        return value

    return number


def seconds(text: str) -> float:
    """Parses a duration: a number of seconds, or a number with the unit ms, s, m, h or d."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = _UNITS.get(text[len(number) :])
    try:
        value = float(number)
    except ValueError:
        value = -1
    if unit is None or not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 90, 60s, 500ms, 5m, 2h or 1d")
    return value * unit


def rate(text: str) -> float:
    """Parses records per second; -1 is unlimited."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if value == -1:
        return math.inf
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number above 0 nor -1, for no limit")
    return value


def acks(text: str) -> int | str:
    """Parses ``acks``."""
    if text in ("0", "1", "-1"):
        return int(text)
    if text == "all":
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is not one of 0, 1, all")
