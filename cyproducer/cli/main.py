"""``python -m cyproducer``, also installed as ``cyproducer``: sends lines to Kafka, or runs a demo.

Owns options, exit codes and messages. `line_producer` and `demo` do the work. Exit codes: 0 all records were
delivered, 1 some were not or no broker could be reached, 2 wrong usage, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from cyproducer.cli.console import Progress, amount, one_line
from cyproducer.cli.line_format import Format, Header, json_line, keyed_line, whole_line
from cyproducer.cli.line_producer import CONNECT_TIMEOUT_S, Interrupts, LineProducer, connect
from cyproducer.config import option_name
from cyproducer.config.properties import parse as parse_properties
from cyproducer.config.values import SECURITY_PROTOCOLS
from cyproducer.errors import KafkaConfigurationError, KafkaError
from cyproducer.records.codecs import CODECS
from cyproducer.version import VERSION

if TYPE_CHECKING:
    from cyproducer import KafkaProducer

COMPRESSIONS = tuple(codec.name for codec in CODECS)
DRAIN_TIMEOUT_S = 150.0
"""Longer than the default delivery_timeout_ms, within which every record has its outcome."""
INTERRUPTED_DRAIN_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Wrong usage raises SystemExit, as in argparse."""
    parser, produce_parser = _parsers()
    options = parser.parse_args(arguments)
    try:
        if options.command == "demo":
            from cyproducer.cli.demo import demo

            return demo(options)
        return produce(options, produce_parser)
    except KafkaConfigurationError as error:
        produce_parser.error(str(error))
    except ModuleNotFoundError as error:
        # The demo needs an extra. The message says how to install it.
        return _complain(str(error))
    except KafkaError as error:
        return _complain(one_line(error))
    except KeyboardInterrupt:
        return _complain("interrupted", 130)


def produce(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run ``produce`` with the given options; returns the exit code."""
    for name in options.files:
        if name != "-" and not (
            os.path.exists(name) and os.access(name, os.R_OK) and not os.path.isdir(name)
        ):
            parser.error(f"{name}: not a readable file")
    settings = producer_settings(options)
    with Interrupts() as interrupts:
        with interrupts.breaking():
            producer = connect(settings, options.connect_timeout)
        try:
            status = _produce(options, producer, interrupts)
        except KeyboardInterrupt:
            producer.close(0)
            raise
        producer.close(CLOSE_TIMEOUT_S)
        return status


def _produce(options: argparse.Namespace, producer: KafkaProducer, interrupts: Interrupts) -> int:
    lines = LineProducer(
        producer,
        options.topic,
        line_format(options),
        headers=options.header,
        partition=options.partition,
        progress=Progress(sys.stderr, _total_size(options.files)),
    )
    began_s = time.perf_counter()
    stopped = False
    try:
        lines.run(_sources(options.files), interrupts)
    except KafkaError:
        stopped = True
    lines.drain(DRAIN_TIMEOUT_S, INTERRUPTED_DRAIN_TIMEOUT_S, interrupts)
    elapsed_s = time.perf_counter() - began_s

    for error in lines.errors:
        print(error, file=sys.stderr)
    if lines.failed > len(lines.errors):
        print(f"... and {lines.failed - len(lines.errors):,} more", file=sys.stderr)
    if stopped:
        _complain("stopped reading at this line: the next records would have failed the same way")
    if interrupts.requested:
        _complain("interrupted: the lines read so far were sent, the others were not")
    rate = lines.delivered / elapsed_s if elapsed_s > 0 else 0.0
    unknown = f", {lines.unknown:,} unknown" if lines.unknown else ""
    print(
        f"{lines.delivered:,} records delivered ({amount(lines.bytes_sent)}) in {elapsed_s:.2f} s, "
        f"{rate:,.0f} records/s; {lines.failed:,} failed{unknown}"
    )
    if interrupts.requested:
        return 130
    return 1 if lines.failed or lines.unknown else 0


def producer_settings(options: argparse.Namespace) -> dict[str, Any]:
    """`KafkaProducer`'s arguments. The command line overrides the file, and ``-o`` the other options."""
    settings: dict[str, Any] = {}
    if options.command_config is not None:
        settings = _file_settings(options.command_config)
    if options.bootstrap_servers is not None:
        settings["bootstrap_servers"] = options.bootstrap_servers
    elif "bootstrap_servers" not in settings:
        raise KafkaConfigurationError("-b/--bootstrap-server is required, or bootstrap.servers in a file")
    if options.security_protocol is not None:
        settings["security_protocol"] = options.security_protocol
    if options.compression not in (None, "none"):
        settings["compression_type"] = options.compression
    if options.acks is not None:
        settings["acks"] = options.acks
    if options.linger_ms is not None:
        settings["linger_ms"] = options.linger_ms
    settings.update((option_name(name) or name, value) for name, value in options.option)
    return settings


def _file_settings(path: str) -> dict[str, Any]:
    """The options in a properties file, by kafka-python's names. Reports those that no producer has."""
    try:
        with open(path, "rb") as file:
            found = parse_properties(file.read())
    except OSError as error:
        raise KafkaConfigurationError(f"--command-config {path}: {error.strerror}") from error
    # Files are shared with consumers and administration tools, which have options of their own.
    ignored = [key for key in found if option_name(key) is None]
    if ignored:
        print(f"{path}: ignoring {', '.join(ignored)}: no options of a producer", file=sys.stderr)
    return {name: value for key, value in found.items() if (name := option_name(key)) is not None}


def line_format(options: argparse.Namespace) -> Format:
    if options.json:
        return json_line
    if options.key_separator is not None:
        return keyed_line(options.key_separator)
    return whole_line


def _sources(names: Sequence[str]) -> Iterator[tuple[str, BinaryIO]]:
    for name in names:
        if name == "-":
            yield "stdin", sys.stdin.buffer
        else:
            with open(name, "rb") as file:
                yield name, file


def _total_size(names: Sequence[str]) -> int:
    """The size in bytes; 0 if the sources include stdin or anything else of unknown size."""
    if "-" in names or not all(os.path.isfile(name) for name in names):
        return 0
    return sum(os.path.getsize(name) for name in names)


def _complain(text: str, status: int = 1) -> int:
    print(f"cyproducer: {text}", file=sys.stderr)
    return status


def _option(text: str) -> tuple[str, Any]:
    """Parses ``NAME=VALUE``. A value that is JSON (a number, true, "text", a list) is decoded."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _header(text: str) -> Header:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value.encode()


def _separator(text: str) -> str:
    # Allows a tab to be written in any shell.
    separator = text.replace("\\t", "\t")
    if not separator or "\n" in separator:
        raise argparse.ArgumentTypeError("must be text without line breaks, such as ':' or '\\t'")
    return separator


def _at_least(lowest: int) -> Any:
    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = lowest - 1
        if value < lowest:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number >= {lowest}")
        return value

    return number


def _acks(text: str) -> int | str:
    if text in ("0", "1", "-1"):
        return int(text)
    if text == "all":
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is not one of 0, 1, all")


def _parsers() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    parser = argparse.ArgumentParser(
        prog="cyproducer", description="A Kafka producer that does all work per record in C."
    )
    parser.add_argument("--version", action="version", version=f"cyproducer {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    produce = commands.add_parser(
        "produce",
        help="send the lines of files to a topic",
        description="Send each line of the files, or of standard input, as a record.",
        epilog="Exit status: 0 all delivered, 1 some not, 2 wrong usage, 130 interrupted (the lines read so "
        "far are sent first, for at most 10 seconds; a second Ctrl-C stops at once).",
    )
    add = produce.add_argument
    add(
        "files", nargs="*", default=["-"], metavar="FILE", help="files to read; - is standard input (default)"
    )
    add("-b", "--bootstrap-server", dest="bootstrap_servers", metavar="HOST:PORT[,...]")
    add("-t", "--topic", required=True)
    add(
        "--command-config",
        metavar="FILE",
        help="a properties file as Kafka's own tools take, with Java's names: security.protocol, "
        "sasl.jaas.config, ...",
    )
    add(
        "--security-protocol",
        choices=SECURITY_PROTOCOLS,
        type=str.upper,
        help="PLAINTEXT (default), SSL, SASL_PLAINTEXT or SASL_SSL",
    )
    formats = produce.add_mutually_exclusive_group()
    formats.add_argument(
        "-K",
        "--key-separator",
        type=_separator,
        metavar="SEP",
        help="the text before the first SEP of a line is the key (\\t is a tab)",
    )
    formats.add_argument(
        "--json",
        action="store_true",
        help='each line is {"key": ..., "value": ..., "headers": {...}, "partition": N, "timestamp_ms": N}; '
        "strings are sent as UTF-8, other JSON as compact JSON, a null value is a tombstone",
    )
    add("-z", "--compression", choices=COMPRESSIONS)
    add("--acks", type=_acks, help="0, 1 or all (default)")
    add("--linger-ms", type=_at_least(0), metavar="MS", help="wait this long for a batch to fill")
    add("-p", "--partition", type=_at_least(0), help="for lines without a partition (default: by key)")
    add(
        "-H",
        "--header",
        type=_header,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a header for every record; may be repeated",
    )
    add(
        "-o",
        "--option",
        type=_option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other option of KafkaProducer, e.g. batch_size=65536; may be repeated. A VALUE that is "
        "JSON is decoded: write '\"1234\"' for a password of digits",
    )
    add(
        "--connect-timeout",
        type=_at_least(1),
        default=CONNECT_TIMEOUT_S,
        metavar="S",
        help="give up if no broker responds within S seconds (default: %(default)s)",
    )
    demonstration = commands.add_parser(
        "demo",
        help="send Python's standard library to an embedded broker",
        description="Start a broker in memory, send it every line of Python's standard library and print "
        "statistics. Needs the extra: pip install 'cyproducer[testing]'.",
    )
    demonstration.add_argument("-z", "--compression", choices=COMPRESSIONS, default="lz4")
    demonstration.add_argument("--partitions", type=_at_least(1), default=3)
    demonstration.add_argument("--linger-ms", type=_at_least(0), default=5, metavar="MS")
    return parser, produce
