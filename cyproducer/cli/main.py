"""``python -m cyproducer``, also installed as ``cyproducer``: sends lines, measures performance, ends
transactions, or runs a demo.

Owns the subcommands, the exit codes, and the messages about errors that prevent a command from running. Exit
codes of all subcommands: 0 if all records were delivered, 1 if some were not or no broker could be reached, 2
for wrong usage, 130 after SIGINT, 143 after SIGTERM. ``transactions`` has two more, for the outcome of a
transaction.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from cyproducer.base.text import printable
from cyproducer.cli import broker, perf, produce, spark_recover, transactions
from cyproducer.cli.console import complain, discard, one_line
from cyproducer.cli.settings import COMPRESSIONS, at_least, spelling
from cyproducer.config.spelling import rename
from cyproducer.errors import KafkaConfigurationError, KafkaError
from cyproducer.version import VERSION

_COMMANDS = {
    "produce": (produce.add_parser, produce.produce),
    "perf": (perf.add_parser, perf.perf),
    "transactions": (transactions.add_parser, transactions.transactions),
    "spark-recover": (spark_recover.add_parser, spark_recover.spark_recover),
    "broker": (broker.add_parser, broker.broker),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Wrong usage raises SystemExit, as in argparse."""
    try:
        return _run(arguments)
    finally:
        # Flush what argparse has written. Discard it if the reader of the stream has exited.
        for stream in (sys.stdout, sys.stderr):
            try:
                if stream is not None:
                    stream.flush()
            except OSError:
                discard(stream)


class _Parser(argparse.ArgumentParser):
    """The parser of the command line. The parsers of the subcommands are also of this class."""

    def error(self, message: str) -> NoReturn:
        """Exits with a message about wrong usage, which may quote a file."""
        super().error(printable(message))


def parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Returns the parser of the command line, and those of the subcommands by name."""
    parser: argparse.ArgumentParser = _Parser(
        prog="cyproducer",
        description="Sends records to Kafka. The per-record path runs in C.",
        epilog="cyproducer COMMAND --help has the options of a command, with examples.",
    )
    parser.add_argument("--version", action="version", version=f"cyproducer {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    of = {name: add_parser(commands) for name, (add_parser, _) in _COMMANDS.items()}
    _add_demo(commands)
    return parser, of


def _run(arguments: Sequence[str] | None) -> int:
    parser, of = parsers()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        if options.command == "demo":
            from cyproducer.cli.demo import demo

            return demo(options)
        _, command = _COMMANDS[options.command]
        return command(options, of[options.command])
    except KafkaConfigurationError as error:
        if hasattr(options, "properties"):
            rename(error, spelling(options))
        of[options.command].error(str(error))
    except KafkaError as error:
        return complain(one_line(error))
    except KeyboardInterrupt:
        return complain("interrupted", 130)


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "demo",
        help="send Python's standard library to an embedded broker",
        description="Start a broker in memory, send it every line of Python's standard library and print "
        "statistics.",
    )
    parser.add_argument("-z", "--compression", choices=COMPRESSIONS, default="lz4")
    parser.add_argument("--partitions", type=at_least(1), default=3)
    parser.add_argument("--linger-ms", type=at_least(0), default=5, metavar="MS")
