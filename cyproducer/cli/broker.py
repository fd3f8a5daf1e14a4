"""Implements ``cyproducer broker``: an in-memory Kafka cluster, for a laptop and for tests.

Owns options and output. ``EmbeddedBroker`` does the work. Exit codes: 0 after Ctrl-C or SIGTERM, 1 if the
broker could not be started, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import signal
import sys

from cyproducer.cli.console import complain, say, table
from cyproducer.cli.settings import at_least

DESCRIPTION = """\
Run a Kafka cluster in memory on 127.0.0.1, for development and tests. It keeps nothing on disk: everything is
gone when it ends. It is no production broker: there is no replication.

examples:
  cyproducer broker
  cyproducer broker --port 19092 --topics orders:6,users:3 --log requests
  cyproducer broker --tls --sasl alice:secret
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds ``broker`` to the subcommands; returns its parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "broker",
        help="run a Kafka in memory, for development and tests",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--port",
        type=at_least(0),
        default=9092,
        help="the first broker's port; the others have the next ones; 0: free ports (default: 9092)",
    )
    parser.add_argument("--brokers", type=at_least(1), default=1, metavar="N", help="brokers (default: 1)")
    parser.add_argument(
        "--topics",
        type=_topics,
        default={},
        metavar="NAME[:PARTITIONS],...",
        help="topics to create; others are created when a client asks for them",
    )
    parser.add_argument(
        "--partitions",
        type=at_least(1),
        default=3,
        metavar="N",
        help="partitions of a topic without a number (default: 3)",
    )
    parser.add_argument(
        "--no-auto-create", action="store_true", help="do not create topics that clients ask for"
    )
    parser.add_argument("--kafka-version", default="4.1", metavar="X.Y", help="the release to stand for")
    parser.add_argument(
        "--tls", action="store_true", help="TLS, with a certificate that it makes for 127.0.0.1 and localhost"
    )
    parser.add_argument(
        "--sasl",
        type=_user,
        action="append",
        default=[],
        metavar="USER:PASSWORD",
        help="SASL with PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512; may be repeated",
    )
    parser.add_argument("--max-bytes", type=at_least(1), metavar="N", help="how much it may hold")
    parser.add_argument("--log", choices=["requests"], help="print a line for each request")
    return parser


def broker(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Runs the command; returns the exit code."""
    from cyproducer.testing import EmbeddedBroker, EmbeddedBrokerError

    protocol = ("SASL_" if options.sasl else "") + ("SSL" if options.tls else "PLAINTEXT")
    try:
        made = EmbeddedBroker(
            brokers=options.brokers,
            partitions=options.partitions,
            topics={name: number or options.partitions for name, number in options.topics.items()},
            port=options.port,
            auto_create=not options.no_auto_create,
            max_bytes=options.max_bytes,
            kafka_version=options.kafka_version,
            security_protocol=protocol,
            users=dict(options.sasl) or None,
            process=False,
        )
    except ValueError as error:
        parser.error(str(error))
    try:
        made.start()
    except (OSError, EmbeddedBrokerError) as error:
        return complain(f"the broker could not start: {error}")
    with made:
        if options.log:
            made._log_requests(lambda line: say(sys.stdout, line))
        say(sys.stdout, *_hello(made.bootstrap_servers, protocol, made.ssl_cafile, options))
        _wait()
    return 0


def _hello(address: str, protocol: str, cafile: str | None, options: argparse.Namespace) -> list[str]:
    rows = [("bootstrap.servers", address), ("security.protocol", protocol)]
    if cafile is not None:
        rows.append(("ssl.ca.location, ssl_cafile", cafile))
    if options.sasl:
        rows.append(("sasl.mechanism", "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"))
        rows.append(("users", ", ".join(name for name, _ in options.sasl)))
    shown = ", ".join(f"{name}:{number or options.partitions}" for name, number in options.topics.items())
    rows.append(("topics", shown or "created when a client asks for them"))
    return [
        f"A Kafka {options.kafka_version} in memory, for development and tests. Ctrl-C ends it; then all "
        "records are gone.",
        *table(rows),
    ]


def _wait() -> None:
    """Returns after SIGINT or SIGTERM."""
    previous = {}

    def ended(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        previous[number] = signal.signal(number, ended)
    try:
        while True:
            signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _topics(text: str) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for each in filter(None, (part.strip() for part in text.split(","))):
        name, colon, number = each.partition(":")
        if not name or (colon and (not number.isdecimal() or int(number) < 1)):
            raise argparse.ArgumentTypeError(f"{each!r}: must be NAME or NAME:PARTITIONS, as in orders:6")
        found[name] = int(number) if colon else None
    return found


def _user(text: str) -> tuple[str, str]:
    name, colon, password = text.partition(":")
    if not name or not colon or not password:
        raise argparse.ArgumentTypeError("must be USER:PASSWORD")
    return name, password
