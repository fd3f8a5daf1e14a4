"""Implements ``cyproducer produce``: its options, messages and exit codes. `line_producer` does the work.

All messages go to stderr. Exit codes: see `main`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO

from cyproducer.base.clock import monotonic_s
from cyproducer.cli import log
from cyproducer.cli.console import Progress, amount, complain, say
from cyproducer.cli.failures import Failures
from cyproducer.cli.interrupts import Interrupts
from cyproducer.cli.line_format import Format, Header, HeaderSeparators, JsonFormat, TextFormat
from cyproducer.cli.line_producer import Defaults, LineProducer, Source, connect
from cyproducer.cli.run_transaction import ENDED, RunTransaction, State
from cyproducer.cli.settings import add_connection_options, at_least, producer_settings, separator

if TYPE_CHECKING:
    from cyproducer import KafkaProducer

INTERRUPTED_DRAIN_TIMEOUT_S = 10.0
"""How long to wait for records after a signal."""
CLOSE_TIMEOUT_S = 5.0

DESCRIPTION = """\
Send each line of the files, or of standard input, as a record.

examples:
  cyproducer produce -b localhost:9092 -t orders orders.txt
  tail -f app.log | cyproducer produce -b localhost:9092 -t logs -z lz4 -H host=web1
  cyproducer produce -b localhost:9092 -t users -K : <<< 'ada:Ada Lovelace'
  cyproducer produce -b localhost:9092 -t events --json events.jsonl
  cyproducer produce -F kcat.conf -t pictures --whole-file *.png
  cyproducer produce -b localhost:9092 -t orders -X transactional.id=import-1 orders.txt
"""

EPILOG = """\
exit status: 0 all records were delivered; 1 some were not; 2 wrong usage; 130 after SIGINT (Ctrl-C) and 143
after SIGTERM: what was accepted is delivered first, for at most 10 seconds; a second signal stops at once.
The summary on stderr says what was delivered, failed and not sent. docs/command-line.md has the details.

With -X transactional.id=ID, all records are one transaction. It is committed at the end of the input, and
aborted at the first record that fails, and after a signal.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds ``produce`` to the subcommands; returns its parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "produce",
        help="send the lines of files, or of standard input, to a topic",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "files", nargs="*", default=["-"], metavar="FILE", help="files to read; - is standard input (default)"
    )
    parser.add_argument("-t", "--topic", required=True)
    _add_input_options(parser.add_argument_group("input"))
    _add_record_options(parser.add_argument_group("records"))
    group = parser.add_argument_group("output")
    group.add_argument("-q", "--quiet", action="store_true", help="print errors only")
    group.add_argument(
        "--progress", action="store_true", help="print progress, also if stderr is not a terminal"
    )
    add_connection_options(parser)
    return parser


def _add_input_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "-K",
        "--key-separator",
        type=separator,
        metavar="SEP",
        help=r"the text before the first SEP of a line is the key. Here and below: \n \t \r \0 \\ \xNN",
    )
    formats = group.add_mutually_exclusive_group()
    formats.add_argument(
        "--json",
        action="store_true",
        help='each line is {"key": ..., "value": ..., "headers": {...}, "partition": N, "timestamp_ms": N}; '
        'strings are sent as UTF-8, other JSON as compact JSON, a null value is a tombstone. "key_base64", '
        '"value_base64" and "headers_base64" are for bytes; headers may be a list of [name, value]',
    )
    formats.add_argument("--whole-file", action="store_true", help="send each file as one record")
    add(
        "-D",
        "--delimiter",
        type=separator,
        metavar="DELIM",
        help=r"ends a record, instead of a line's end (\n or \r\n)",
    )
    add(
        "--parse-headers",
        action="store_true",
        help="lines begin with headers, as NAME:VALUE,NAME:VALUE and a tab",
    )
    separators = HeaderSeparators()
    add(
        "--headers-delimiter", type=separator, metavar="SEP", default=separators.delimiter, help="for the tab"
    )
    add("--headers-separator", type=separator, metavar="SEP", default=separators.separator, help="for the ,")
    add(
        "--headers-key-separator",
        type=separator,
        metavar="SEP",
        default=separators.key_separator,
        help="for the :",
    )
    add("--null-marker", metavar="TEXT", help="keys, values and values of headers that are TEXT are null")
    add(
        "-Z", "--empty-as-null", action="store_true", help="the same for empty ones; a null value needs a key"
    )
    add("-c", "--count", type=at_least(1), metavar="N", help="stop after N records")
    add("--stop-on-error", action="store_true", help="stop reading at the first record that fails")


def _add_record_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-k", "--key", help="for records without a key")
    add("-p", "--partition", type=at_least(0), help="for records without a partition (default: by key)")
    add(
        "-H",
        "--header",
        type=header,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a header for every record, before its own; may be repeated. NAME alone: its value is null",
    )
    add(
        "--timestamp-ms",
        type=at_least(0),
        metavar="MS",
        help="for records without one, since the epoch (default: now)",
    )


def produce(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run ``produce`` with the given options; returns the exit code."""
    for name in options.files:
        if name != "-" and not (
            os.path.exists(name) and os.access(name, os.R_OK) and not os.path.isdir(name)
        ):
            parser.error(f"{name}: not a readable file")
    if "-" in options.files and sys.stdin is None:
        parser.error("standard input is closed: name a file")
    format = line_format(options, parser)
    settings = producer_settings(options)
    with log.shown(options.quiet), Interrupts() as interrupts:
        try:
            with interrupts.breaking():
                producer = connect(settings, options.connect_timeout)
        except KeyboardInterrupt:
            return complain(f"{interrupts.name}: nothing was sent", interrupts.exit_status)
        return _produce(options, producer, format, interrupts)


def _produce(
    options: argparse.Namespace, producer: KafkaProducer, format: Format, interrupts: Interrupts
) -> int:
    progress = Progress(sys.stderr, _total_size(options.files), asked=options.progress, silent=options.quiet)
    failures = Failures(lambda line: say(sys.stderr, line))
    lines = LineProducer(
        producer,
        options.topic,
        format,
        defaults=Defaults(
            None if options.key is None else os.fsencode(options.key),
            tuple(options.header),
            options.partition,
            options.timestamp_ms,
        ),
        failures=failures,
        progress=progress,
        interrupts=interrupts,
        delimiter=options.delimiter,
        count=options.count,
        stop_on_error=options.stop_on_error,
    )
    transaction = None
    if producer.config.transactional_id is not None:
        transaction = RunTransaction(producer, interrupts, INTERRUPTED_DRAIN_TIMEOUT_S)
    began_s = monotonic_s()
    try:
        if transaction is not None:
            transaction.begin()
        run = lines.run_whole if options.whole_file else lines.run
        run(_sources(options.files))
        if transaction is None:
            _drain(producer, lines)
            producer.close(0 if lines.unknown else CLOSE_TIMEOUT_S)
        else:
            _end(transaction, producer, lines, failures, interrupts)
            producer.close(CLOSE_TIMEOUT_S if transaction.state in ENDED else 0)
    except KeyboardInterrupt:
        lines.give_up()
        producer.close(0)
    except BaseException:
        producer.close(0)
        raise
    elapsed_s = monotonic_s() - began_s

    if lines.stopped_by is not None:
        complain("stopped: the next records would have failed the same way")
    if interrupts.requested and transaction is not None and transaction.state is State.COMMITTED:
        complain(f"{interrupts.name}: too late: the transaction is committed")
    elif interrupts.requested and not options.quiet:
        where = f" reading at {lines.stopped_at}" if lines.stopped_at else ""
        after = "; what was accepted before was sent" if transaction is None else ""
        complain(f"{interrupts.name}: stopped{where}{after}")
    if transaction is not None and (ended := transaction.ended(lines.accepted)) is not None:
        complain(ended)
    if not options.quiet:
        if transaction is None:
            told = _summary(lines, failures, elapsed_s)
        else:
            told = _transaction_summary(transaction.state, lines, failures, elapsed_s)
        for line in told:
            say(sys.stderr, line)
    if interrupts.requested:
        return interrupts.exit_status
    if transaction is not None:
        return 0 if transaction.state is State.COMMITTED else 1
    return 1 if _incomplete(lines, failures) else 0


def _drain(producer: KafkaProducer, lines: LineProducer) -> None:
    # By the end of this time, every record has its outcome.
    longest_s = producer.config.delivery_timeout_ms / 1000 + 30
    lines.drain(longest_s, INTERRUPTED_DRAIN_TIMEOUT_S)


def _incomplete(lines: LineProducer, failures: Failures) -> bool:
    return bool(failures.count or lines.unknown or lines.unsent or lines.stopped_at)


def _end(
    transaction: RunTransaction,
    producer: KafkaProducer,
    lines: LineProducer,
    failures: Failures,
    interrupts: Interrupts,
) -> None:
    """Commits if everything was read and delivered; otherwise aborts."""
    if not (_incomplete(lines, failures) or interrupts.requested):
        _drain(producer, lines)
    if _incomplete(lines, failures) or interrupts.requested:
        lines.let_go()
        transaction.abort()
    else:
        transaction.commit()


def _summary(lines: LineProducer, failures: Failures, elapsed_s: float) -> Iterator[str]:
    rate = lines.delivered / elapsed_s if elapsed_s > 0 else 0.0
    text = (
        f"{lines.delivered:,} records delivered in {elapsed_s:.2f} s, {rate:,.0f} records/s "
        f"({amount(lines.bytes_accepted)} of keys and values); {failures.count:,} failed"
    )
    if lines.unknown:
        text += f"; {lines.unknown:,} accepted, but without an outcome in time: they may have been written"
    if lines.unsent:
        text += f"; {lines.unsent:,} read, but not sent"
    if lines.stopped_at:
        text += f"; the first that was not sent is at {lines.stopped_at}"
    yield text
    for cause in failures.summary():
        yield f"  {cause}"


def _transaction_summary(
    state: State, lines: LineProducer, failures: Failures, elapsed_s: float
) -> Iterator[str]:
    # Without a commit, the summary does not count delivered records: no reader will see them.
    if state is not State.COMMITTING:
        committed = lines.delivered if state is State.COMMITTED else 0
        rate = committed / elapsed_s if elapsed_s > 0 else 0.0
        yield (
            f"{committed:,} records committed in {elapsed_s:.2f} s, {rate:,.0f} records/s "
            f"({amount(lines.bytes_accepted if committed else 0)} of keys and values); "
            f"{failures.count:,} failed"
        )
    for cause in failures.summary():
        yield f"  {cause}"


def line_format(options: argparse.Namespace, parser: argparse.ArgumentParser) -> Format:
    """The format that the options select. Options that contradict each other are wrong usage."""
    text_only = {
        "-K/--key-separator": options.key_separator is not None,
        "--parse-headers": options.parse_headers,
        "--null-marker": options.null_marker is not None,
        "-Z/--empty-as-null": options.empty_as_null,
    }
    other = "--json" if options.json else "--whole-file"
    for name, given in text_only.items():
        if given and (options.json or options.whole_file):
            parser.error(f"{name} is for lines of text, not for {other}")
    if options.whole_file and options.delimiter is not None:
        parser.error("-D/--delimiter divides files into records, which --whole-file does not")
    if options.json:
        return JsonFormat()
    nulls = set() if options.null_marker is None else {os.fsencode(options.null_marker)}
    if options.empty_as_null:
        nulls.add(b"")
    separators = HeaderSeparators(
        options.headers_delimiter, options.headers_separator, options.headers_key_separator
    )
    if options.parse_headers and len(set(separators)) < len(separators):
        parser.error("the separators of --parse-headers must differ from each other")
    return TextFormat(options.key_separator, separators if options.parse_headers else None, frozenset(nulls))


def header(text: str) -> Header:
    """Parses ``NAME=VALUE``, or ``NAME`` alone for a null value."""
    name, found, value = text.partition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} is neither NAME=VALUE nor NAME")
    return name, os.fsencode(value) if found else None


def _sources(names: Sequence[str]) -> Iterator[Source]:
    for name in names:
        if name == "-":
            yield "stdin", contextlib.nullcontext(sys.stdin.buffer)
        else:
            yield name, _opened(name)


@contextlib.contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    with open(name, "rb") as file:
        yield file


def _total_size(names: Sequence[str]) -> int:
    """The size in bytes; 0 if the sources include stdin or anything else of unknown size."""
    if "-" in names or not all(os.path.isfile(name) for name in names):
        return 0
    return sum(os.path.getsize(name) for name in names)
