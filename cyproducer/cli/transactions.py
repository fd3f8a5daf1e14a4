"""Implements ``cyproducer transactions``: lists, describes, commits and aborts transactions.

Owns options, output and exit codes. ``cyproducer.transactions`` does the work. Results are written to stdout,
messages to stderr. For exit codes in addition to those of `main`, see EPILOG.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from cyproducer.cli import log
from cyproducer.cli.console import columns, complain, say, table
from cyproducer.cli.settings import add_connection_options, at_least, producer_settings, seconds
from cyproducer.control.transaction_ending import STATES, Ended, Outcome
from cyproducer.structs import PreparedTransaction

if TYPE_CHECKING:
    from cyproducer.transactions import DescribedTransaction, TransactionAdmin

OTHER_WAY, NOT_KNOWN = 3, 4
"""Exit codes; see EPILOG."""

DESCRIPTION = """\
List, describe, commit or abort transactions, of whatever producer.

examples:
  cyproducer transactions list -b localhost:9092 --older-than 10m
  cyproducer transactions describe -b localhost:9092 billing-1
  cyproducer transactions commit -b localhost:9092 prepared.json
  cyproducer transactions abort -b localhost:9092 --prefix billing- --older-than 60s --dry-run
"""

EPILOG = """\
exit status: 0 it is as was asked for, by this command or before; 1 it could not be done, or is not certain:
run it again; 2 wrong usage; 3 a transaction to be committed is aborted, or the other way round; 4 what became
of a transaction is not known any more, or there is no such transactional id.
"""

IDENTITY = ("transactional_id", "producer_id", "epoch")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds ``transactions`` to the subcommands; returns its parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "transactions",
        help="list, describe, commit or abort transactions",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)

    def action(name: str, help: str) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = actions.add_parser(
            name,
            help=help,
            description=f"{help[0].upper()}{help[1:]}.",
            epilog=EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.add_argument("--json", action="store_true", help="print a line of JSON for each transaction")
        added.add_argument(
            "--timeout",
            type=seconds,
            metavar="S",
            help="how long to wait for brokers (default: max_block_ms, a minute)",
        )
        return added

    _add_list(action("list", "list transactional ids and their states"))
    described = action("describe", "show what the coordinators know of transactional ids")
    described.add_argument("ids", nargs="+", metavar="TRANSACTIONAL_ID")
    add_connection_options(described, sends=False)
    _add_end(action("commit", "commit prepared transactions"), "commit")
    _add_end(action("abort", "abort transactions, prepared or open"), "abort")
    return parser


def _add_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prefix", metavar="P", help="ids that begin with P")
    parser.add_argument(
        "--state", action="append", default=[], choices=STATES, dest="states", help="may be repeated"
    )
    parser.add_argument(
        "--producer-id",
        type=at_least(0),
        action="append",
        default=[],
        dest="producer_ids",
        metavar="N",
        help="may be repeated",
    )
    parser.add_argument(
        "--older-than",
        type=seconds,
        metavar="D",
        help="transactions that are open for longer, such as 60s, 5m or 2h; 0: all open ones",
    )
    add_connection_options(parser, sends=False)


def _add_end(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help=f"prepared transactions to {what}, one in each line, as PreparedTransaction.to_json() writes "
        "them; - is standard input, the default",
    )
    group = parser.add_argument_group("one transaction, in place of FILE")
    group.add_argument("--id", dest="transactional_id", metavar="ID")
    group.add_argument("--producer-id", type=at_least(0), metavar="N")
    group.add_argument("--epoch", type=at_least(0), metavar="N")
    if what == "abort":
        group = parser.add_argument_group("all open transactions of some ids, in place of FILE")
        group.add_argument("--prefix", metavar="P", help="of ids that begin with P")
        group.add_argument(
            "--older-than", type=seconds, metavar="D", help="that are open for longer: 60s, 5m"
        )
        group.add_argument("--dry-run", action="store_true", help="only show which ones")
    add_connection_options(parser, sends=False)


def transactions(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run ``transactions`` with the given options; returns the exit code."""
    # Before connecting, so that wrong usage is reported at once.
    prepared = _prepared(options, parser) if options.action in ("commit", "abort") else []
    settings = producer_settings(options)
    # Imported here: it takes longer than parsing the command line.
    from cyproducer.transactions import TransactionAdmin

    with log.shown(quiet=True), TransactionAdmin(settings) as admin:
        admin.wait_ready(options.connect_timeout)
        if options.action == "list":
            return _list(options, admin)
        if options.action == "describe":
            return _describe(options, admin)
        if options.action == "abort" and options.prefix is not None:
            return _abort_open(options, admin)
        if options.action == "commit":
            ended = admin.commit_all(prepared, options.timeout)
        else:
            # A producer that is named by its identity may still be writing.
            fence = options.transactional_id is not None
            ended = admin.abort_all(prepared, options.timeout, fence=fence)
        _print(options, ENDED_HEAD, [_ended_row(each) for each in ended], map(_ended_json, ended))
        return _status(ended, committed=options.action == "commit")


def _prepared(options: argparse.Namespace, parser: argparse.ArgumentParser) -> list[PreparedTransaction]:
    """The transactions that the options name; none if the options select all transactions with a prefix."""
    identity = [getattr(options, name) for name in IDENTITY]
    if (prefix := getattr(options, "prefix", None)) is not None:
        if options.file is not None or identity != [None] * 3:
            parser.error("--prefix is for all open transactions of some ids: give no FILE and no --id")
        if not prefix:
            parser.error("--prefix is empty: that would abort every open transaction of the cluster")
        return []
    if getattr(options, "older_than", None) is not None or getattr(options, "dry_run", False):
        parser.error("--older-than and --dry-run are for --prefix")
    if identity != [None] * 3:
        if options.file is not None or None in identity:
            parser.error("--id, --producer-id and --epoch belong together, without FILE")
        return [_read(parser, "the command line", json.dumps(dict(zip(IDENTITY, identity, strict=True))))]
    where, text = _input(options.file or "-", parser)
    try:
        # A single transaction may be written over several lines.
        json.loads(text)
        lines = [text]
    except ValueError:
        lines = text.splitlines()
    found = [_read(parser, f"{where}:{n}", line) for n, line in enumerate(lines, 1) if line.strip()]
    if not found:
        parser.error(f"{where}: no prepared transaction")
    return found


def _input(name: str, parser: argparse.ArgumentParser) -> tuple[str, str]:
    """The name for messages, and the text."""
    try:
        if name != "-":
            with open(name, encoding="utf-8") as file:
                return name, file.read()
        if sys.stdin is None:
            parser.error("standard input is closed: name a file")
        return "stdin", sys.stdin.read()
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"{name}: {getattr(error, 'strerror', None) or error}")


def _read(parser: argparse.ArgumentParser, where: str, text: str) -> PreparedTransaction:
    try:
        return PreparedTransaction.from_json(text)
    except ValueError as error:
        parser.error(f"{where}: {error}")


def _status(ended: Iterable[Ended], committed: bool) -> int:
    outcomes = {each.outcome for each in ended}
    if any(outcome.committed is (not committed) for outcome in outcomes):
        return OTHER_WAY
    return NOT_KNOWN if outcomes & {Outcome.FENCED, Outcome.UNKNOWN_ID} else 0


def _list(options: argparse.Namespace, admin: TransactionAdmin) -> int:
    try:
        found = admin.list_transactions(
            states=options.states,
            producer_ids=options.producer_ids,
            prefix=options.prefix,
            older_than_s=options.older_than,
            timeout=options.timeout,
        )
    except ValueError as error:
        return complain(str(error), 2)
    rows = [(each.transactional_id, str(each.producer_id), each.state) for each in found]
    head = ("TRANSACTIONAL ID", "PRODUCER ID", "STATE")
    _print(options, head, rows, (each._asdict() for each in found))
    return 0


def _describe(options: argparse.Namespace, admin: TransactionAdmin) -> int:
    from cyproducer.errors import TransactionalIdNotFoundError

    status = 0
    for number, transactional_id in enumerate(options.ids):
        try:
            found = admin.describe_transaction(transactional_id, options.timeout)
        except TransactionalIdNotFoundError:
            status = complain(f"there is no transactional id {transactional_id!r}", NOT_KNOWN)
            continue
        fields = _described_json(found)
        if options.json:
            say(sys.stdout, _json_line(fields))
            continue
        fields["partitions"] = ", ".join(f"{topic}-{partition}" for topic, partition in found.partitions)
        rows = [(name, "" if value is None else str(value)) for name, value in fields.items()]
        say(sys.stdout, *([""] if number else []), *table(rows))
    return status


def _abort_open(options: argparse.Namespace, admin: TransactionAdmin) -> int:
    found = admin.abort_open(
        options.prefix,
        older_than_s=options.older_than or 0,
        dry_run=options.dry_run,
        timeout=options.timeout,
    )
    rows = []
    lines = []
    for transaction, ended in found:
        outcome = "open" if ended is None else _shown(ended.outcome)
        identity = transaction.transactional_id, str(transaction.producer_id), str(transaction.epoch)
        rows.append((*identity, outcome))
        done = {"outcome": "open" if ended is None else ended.outcome.value}
        lines.append(_described_json(transaction) | done)
    _print(options, ("TRANSACTIONAL ID", "PRODUCER ID", "EPOCH", "OUTCOME"), rows, lines)
    # A transaction that its producer has ended in the meantime is not open any more, whatever its outcome.
    return 0


ENDED_HEAD = ("TRANSACTIONAL ID", "OUTCOME", "NEXT PRODUCER ID", "NEXT EPOCH")


def _ended_row(ended: Ended) -> tuple[str, ...]:
    following = ["" if each is None else str(each) for each in (ended.next_producer_id, ended.next_epoch)]
    return ended.transactional_id, _shown(ended.outcome), *following


def _ended_json(ended: Ended) -> dict[str, Any]:
    return {
        "transactional_id": ended.transactional_id,
        "outcome": ended.outcome.value,
        "committed": ended.outcome.committed,
        "next_producer_id": ended.next_producer_id,
        "next_epoch": ended.next_epoch,
    }


def _described_json(found: DescribedTransaction) -> dict[str, Any]:
    return found._asdict() | {"partitions": [list(each) for each in found.partitions]}


def _json_line(fields: dict[str, Any]) -> str:
    # This is the only control character that JSON does not escape. If say() escaped it, the line would not be
    # valid JSON.
    return json.dumps(fields).replace("\x7f", r"\u007f")


def _shown(outcome: Outcome) -> str:
    return outcome.value.replace("_", " ")


def _print(
    options: argparse.Namespace,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    lines: Iterable[dict[str, Any]],
) -> None:
    for line in map(_json_line, lines) if options.json else columns(head, rows):
        say(sys.stdout, line)
