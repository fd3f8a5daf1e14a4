"""Implements ``cyproducer spark-recover``: shows and ends what exactly-once writes from Spark left behind.

Owns options, output and exit codes. ``cyproducer.spark.exactly_once.recovery`` does the work.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from cyproducer.base.clock import unix_ms
from cyproducer.cli import log
from cyproducer.cli.console import columns, complain, one_line, say
from cyproducer.cli.settings import add_connection_options, producer_settings, seconds
from cyproducer.errors import KafkaError

if TYPE_CHECKING:
    from cyproducer.spark.exactly_once.recovery import PrefixState, Recovery, SinkState
    from cyproducer.transactions import DescribedTransaction

LEFT = 3
"""Exit code; see EPILOG."""
TIMEOUT_S = 60.0

DESCRIPTION = """\
Show the sinks that have written with deliveryGuarantee=exactly-once under a prefix: what each has decided
last, and which transactions are open. With --end, complete what was decided and abort the rest, as the next
batch of each sink would.

A driver that still runs is fenced by --end: its query stops with an error, and can be started again.

examples:
  cyproducer spark-recover -b localhost:9092 --prefix orders
  cyproducer spark-recover -b localhost:9092 --prefix orders --end
  cyproducer spark-recover -b localhost:9092 --prefix orders --accept stream:/checkpoints/orders
"""

EPILOG = """\
exit status: 0 nothing is left; 1 it could not be done: run it again; 2 wrong usage; 3 something is left, and
--end was not given.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds ``spark-recover`` to the subcommands; returns its parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "spark-recover",
        help="show and end what exactly-once writes from Spark have left",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--prefix", required=True, metavar="P", help="the sinks' option transactionalIdPrefix")
    add("--decision-log", metavar="TOPIC", help="their option decisionLogTopic (default: P.decisions)")
    add("--end", action="store_true", help="complete what was decided, and abort the rest")
    add(
        "--accept",
        metavar="SINK",
        help="complete the last batch of this sink without transactions that can't be completed any more; "
        "then compare the output with the source",
    )
    add(
        "--timeout",
        type=seconds,
        default=TIMEOUT_S,
        metavar="S",
        help="how long a sink's recovery may take (default: %(default)g)",
    )
    add_connection_options(parser, sends=False)
    return parser


def spark_recover(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run ``spark-recover`` with the given options; returns the exit code."""
    from cyproducer.spark.exactly_once.kafka_cluster import close_admins
    from cyproducer.spark.exactly_once.names import is_prefix
    from cyproducer.spark.exactly_once.recovery import Recovery
    from cyproducer.spark.sharing import SharedConfig

    if not is_prefix(options.prefix):
        parser.error(f"--prefix {options.prefix}: is no transactionalIdPrefix")
    config = SharedConfig(producer_settings(options))
    with log.shown():
        try:
            recovery = Recovery(config, options.prefix, options.decision_log, options.timeout)
            recovery.wait_ready(options.connect_timeout)
            state = recovery.state()
            if options.accept is not None:
                return _accept(recovery, state, options.accept, parser)
            _show(state)
            left = bool(state.others) or any(each.open or not each.last.done for each in state.sinks)
            if not options.end:
                return LEFT if left else 0
            return _end(recovery, state)
        finally:
            close_admins()


def _show(state: PrefixState) -> None:
    head = ("SINK", "LAST BATCH", "ROWS", "STATE", "OPEN", "UNDECIDED", "OPEN FOR")
    rows = [_row(each) for each in state.sinks]
    if state.others:
        rows.append(("(never decided)", "-", "-", "-", *_counts(state.others, state.others)))
    for line in columns(head, rows):
        say(sys.stdout, line)


def _row(state: SinkState) -> tuple[str, ...]:
    last = state.last
    decided = "complete" if last.done else f"decided, {len(last.tasks)} transactions"
    counts = _counts(state.open, state.undecided)
    return (state.sink.key, str(last.batch), str(last.rows), decided, *counts)


def _counts(
    found: tuple[DescribedTransaction, ...], undecided: tuple[DescribedTransaction, ...]
) -> tuple[str, str, str]:
    began_ms = [each.start_time_ms for each in found if each.start_time_ms is not None]
    age = f"{max(0.0, unix_ms() / 1000 - min(began_ms) / 1000):.0f} s" if began_ms else "-"
    return str(len(found)), str(len(undecided)), age


def _end(recovery: Recovery, state: PrefixState) -> int:
    status = 0
    for each in state.sinks:
        try:
            recovery.end(each.sink)
        except KafkaError as error:
            status = complain(f"{each.sink.key}: {one_line(error)}")
        else:
            say(sys.stdout, f"{each.sink.key}: nothing is left")
    aborted = recovery.abort(state.others)
    if aborted:
        say(sys.stdout, f"{len(aborted)} transactions of sinks that never decided anything were aborted")
    return status


def _accept(recovery: Recovery, state: PrefixState, key: str, parser: argparse.ArgumentParser) -> int:
    sinks = {each.sink.key: each.sink for each in state.sinks}
    if key not in sinks:
        parser.error(f"--accept {key}: must be one of {', '.join(sinks) or 'none'}")
    accepted = recovery.accept(sinks[key])
    for each in accepted.left_out:
        say(sys.stdout, f"left out: {each}")
    batch = accepted.decision
    say(
        sys.stdout,
        f"{key}: batch {batch.batch} of {batch.rows} rows counts as complete, without "
        f"{len(accepted.left_out)} of its {len(batch.tasks)} transactions",
    )
    return 0
