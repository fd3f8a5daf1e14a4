"""Breaks the product on purpose, and counts the histories until the simulator notices.

``python -m tests.simulation.mutate [NAME ...] --most N``: copies the tree to a temporary directory, changes
one line of it, rebuilds the affected modules, and runs histories there until one fails. A mutation that is
not found is a gap in the simulator. Needs the build requirements; all mutations together take some minutes.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("cyproducer", "tests", "tools", "build", "setup.py", "pyproject.toml", "README.md", "LICENSE")


class Mutation(NamedTuple):
    """``old`` occurs once in the file; ``why`` says what breaks when ``new`` replaces it."""

    name: str
    why: str
    path: str
    old: str
    new: str
    #: Whether histories of transactions look for it.
    transactions: bool = False


TRANSACTIONS = "cyproducer/control/transactions.py"
CLIENT = "cyproducer/clients/transaction_client.py"

MUTATIONS = [
    Mutation(
        "wrong-culprit",
        "the record after the one that a broker named fails instead of it",
        "cyproducer/wire/produce_codec.pyx",
        "found[place] = printable(",
        "found[(place + 1) % records] = printable(",
    ),
    Mutation(
        "lost-answer",
        "a request without a response counts as not written",
        "cyproducer/sender/batch_errors.pyx",
        "cdef bint written = r.unwritten == 0",
        "cdef bint written = False",
    ),
    Mutation(
        "half-is-whole",
        "a partly written request counts as written",
        "cyproducer/sender/batch_errors.pyx",
        "cdef bint written = r.unwritten == 0",
        "cdef bint written = True",
    ),
    Mutation(
        "certain-not-leader",
        "NOT_LEADER_OR_FOLLOWER counts as certainly not written",
        "cyproducer/control/idempotence.py",
        "        2,  # CORRUPT_MESSAGE\n",
        "        2,  # CORRUPT_MESSAGE\n        6,\n",
    ),
    Mutation(
        "forgotten-attempt",
        "only the last attempt counts, even if an earlier one was ambiguous",
        "cyproducer/control/idempotence.py",
        "maybe = batch.ambiguous or ambiguous",
        "maybe = ambiguous",
    ),
    Mutation(
        "duplicate-fails",
        "DUPLICATE_SEQUENCE_NUMBER counts as a failure",
        "cyproducer/control/idempotence.py",
        "return Judgement(Fate.ACKNOWLEDGE, True)",
        "return Judgement(Fate.FAIL, False)",
    ),
    Mutation(
        "unknown-producer",
        "the first batches of a producer are pipelined",
        "cyproducer/accumulator/ready_partitions.pyx",
        "p.known and p.producer_id == a.producer_id",
        "p.producer_id == a.producer_id",
    ),
    Mutation(
        "epochs-together",
        "a partition uses a new epoch while batches of the old one are unsettled",
        "cyproducer/accumulator/ready_partitions.pyx",
        "    return p.unsettled_count == 0 or (\n"
        "        p.known and p.producer_id == a.producer_id and p.producer_epoch == a.producer_epoch\n"
        "    )\n",
        "    return p.unsettled_count == 0 or p.known\n",
    ),
    Mutation(
        "sequences-go-on",
        "an epoch continues with the sequences of the previous one",
        "cyproducer/accumulator/ready_partitions.pyx",
        "        p.next_sequence = 0\n",
        "",
    ),
    Mutation(
        "count-batches",
        "a sequence counts batches instead of records",
        "cyproducer/accumulator/ready_partitions.pyx",
        "<uint32_t>p.next_sequence + <uint32_t>b.count",
        "<uint32_t>p.next_sequence + 1",
    ),
    Mutation(
        "no-wrap",
        "sequences do not wrap to 0 after 2147483647",
        "cyproducer/accumulator/ready_partitions.pyx",
        "<uint32_t>b.count) & 0x7FFFFFFF)",
        "<uint32_t>b.count))",
    ),
    Mutation(
        "no-bump",
        "a partition continues in the old epoch after a gap",
        "cyproducer/control/idempotence.py",
        "(_S.UNRESOLVED, _E.SETTLED): Transition(_S.SENDING, (_A.BUMP_EPOCH, _A.RELEASE))",
        "(_S.UNRESOLVED, _E.SETTLED): Transition(_S.SENDING, (_A.RELEASE,))",
    ),
    Mutation(
        "strip-ambiguous",
        "batches before the gap also get new sequences",
        "cyproducer/accumulator/sequences.pyx",
        "        if b.first_record >= from_record:",
        "        if True:",
    ),
    Mutation(
        "resend-ambiguous",
        "a batch with out-of-order sequences gets new ones although it may be in the log",
        "cyproducer/control/idempotence.py",
        "Judgement(Fate.FAIL if batch.first and maybe else Fate.RETRY, maybe)",
        "Judgement(Fate.RETRY, False)",
    ),
    Mutation(
        "new-sequences",
        "a retried batch gets new sequences",
        "cyproducer/accumulator/batch_outcomes.pyx",
        "        p.recovering = 1\n        take_off_wire(a, b)\n",
        "        p.recovering = 1\n        take_off_wire(a, b)\n"
        "        settle(b)\n        b.base_sequence = -1\n",
    ),
    Mutation(
        "behind-the-next",
        "a retried batch is queued behind the next one",
        "cyproducer/accumulator/ready_partitions.pyx",
        "if at == NULL or at.first_record > b.first_record:",
        "if at == NULL:",
    ),
    Mutation(
        "split-backwards",
        "the parts of a too large batch are sent in the wrong order",
        "cyproducer/accumulator/splitting.pyx",
        "part.first_record = b.first_record + done",
        "part.first_record = b.first_record + b.count - done",
    ),
    Mutation(
        "several-without-ids",
        "without idempotence a partition has several batches in flight",
        "cyproducer/accumulator/record_accumulator.pyx",
        "self.c.one_in_flight = ordered and not options.enable_idempotence",
        "self.c.one_in_flight = 0",
    ),
    Mutation(
        "late-deadline",
        "the check for overdue batches is 200 ms late",
        "cyproducer/sender/sender.pyx",
        "a.oldest.created_ns + self.delivery_timeout_ns",
        "a.oldest.created_ns + self.delivery_timeout_ns + 200_000_000",
    ),
    Mutation(
        "wire-deadline",
        "the check for overdue batches skips batches in flight",
        "cyproducer/accumulator/batch_outcomes.pyx",
        "            if b.state != SEALING:\n",
        "            if b.state != SEALING and not b.in_request:\n",
    ),
    Mutation(
        "long-sleep",
        "the sender sleeps past the timeout of the oldest batch",
        "cyproducer/sender/sender.pyx",
        "        until = min(until, self.next_expiry_ns)\n",
        "",
    ),
    Mutation(
        "leak",
        "a batch that fails after its delivery timeout is not freed",
        "cyproducer/accumulator/batch_outcomes.pyx",
        "            self._forget(b)\n        pthread_mutex_unlock(&a.lock)\n"
        "        self._free(b)\n        return 0\n",
        "            self._forget(b)\n        pthread_mutex_unlock(&a.lock)\n"
        "        if not b.abandoned:\n            self._free(b)\n        return 0\n",
    ),
    Mutation(
        "deaf-to-leaders",
        "metadata with a new leader is not applied",
        "cyproducer/clients/network_client.py",
        "names = [*change.topics_changed, *(name for name, _ in change.leaders_moved)]",
        "names = [*change.topics_changed]",
    ),
    Mutation(
        "unheld-renewal",
        "a connection that renews its session takes Produce requests",
        "cyproducer/net/connector.py",
        "            self._sender.hold(connection, True)\n            self.request",
        "            self.request",
    ),
    Mutation(
        "metadata-in-renewal",
        "a connection that renews its session takes other requests",
        "cyproducer/net/connector.py",
        "if c.ready and not c.held and",
        "if c.ready and",
    ),
    Mutation(
        "held-for-ever",
        "a connection that has renewed its session takes no Produce requests",
        "cyproducer/net/connector.py",
        "self._sender.hold(connection, False)",
        "pass",
    ),
    Mutation(
        "late-renewal",
        "a session is renewed after its end",
        "cyproducer/net/authentication.py",
        "lifetime * (0.85 + 0.1 * self._rng())",
        "lifetime * (1.05 + 0.1 * self._rng())",
    ),
    Mutation(
        "early-renewal",
        "a session is renewed in its first half",
        "cyproducer/net/authentication.py",
        "lifetime * (0.85 + 0.1 * self._rng())",
        "lifetime * (0.35 + 0.1 * self._rng())",
    ),
    Mutation(
        "hasty-renewal",
        "a short session is renewed within a second",
        "cyproducer/net/authentication.py",
        "LEAST_INTERVAL_MS = 1050.0",
        "LEAST_INTERVAL_MS = 0.0",
    ),
    Mutation(
        "endless-session",
        "a connection takes requests after the end of its session",
        "cyproducer/net/connector.py",
        "        self._sender.hold(connection, True)\n        if not",
        "        if not",
    ),
    Mutation(
        "hammering",
        "a broker that has refused the client is tried again soon",
        "cyproducer/net/connector.py",
        "try_next_address=not refuses_credentials(connection, cause)",
        "try_next_address=True",
    ),
    Mutation(
        "refused-once-each",
        "a bootstrap server that has refused the client is tried again as a broker",
        "cyproducer/control/node_states.py",
        "        if refused:\n            # Trying",
        "        if False:\n            # Trying",
    ),
    Mutation(
        "fatal-renewal",
        "a renewal that fails with requests in flight fails their records",
        "cyproducer/control/batch_fate.py",
        "retriable |= isinstance(failure.cause, errors.BrokerResponseError)",
        "pass",
    ),
    Mutation(
        "plain-batches",
        "the batches of a transaction lack the bit that says so",
        "cyproducer/sender/sender.pyx",
        "b.data, b.size, b.codec | self.attributes, b.count",
        "b.data, b.size, b.codec, b.count",
        True,
    ),
    Mutation(
        "not-added",
        "with the first protocol, a partition is written to before it is added",
        "cyproducer/accumulator/ready_partitions.pyx",
        "    if a.adds_partitions and p.joined != a.transaction:\n        return False\n",
        "",
        True,
    ),
    Mutation(
        "early-end",
        "EndTxn goes out while a Produce request is unanswered",
        "cyproducer/sender/sender.pyx",
        "drained = a.incomplete == 0 and a.parked == 0 and a.on_wire == 0",
        "drained = a.incomplete == 0 and a.parked == 0",
        True,
    ),
    Mutation(
        "half-commit",
        "a transaction is committed although a record has failed",
        TRANSACTIONS,
        "        elif (self.state, Event.ABORTABLE) in TABLE:\n"
        "            self._abortable(error)\n        if",
        "        if",
        True,
    ),
    Mutation(
        "forgotten-refusal",
        "a record that send() refused does not fail the transaction",
        CLIENT,
        "        self._submitted.append(error)\n",
        "",
        True,
    ),
    Mutation(
        "no-bump-between-protocols",
        "the first transaction with the second protocol has the epoch of the last one with the first",
        TRANSACTIONS,
        "changed = protocol == SECOND and self._last_protocol == FIRST and self.epoch >= 0",
        "changed = False",
        True,
    ),
    Mutation(
        "last-epoch",
        "a transaction begins in the epoch that only coordinators may use",
        TRANSACTIONS,
        "if changed or handed_out or self.epoch == FENCING_EPOCH:",
        "if changed or handed_out:",
        True,
    ),
    Mutation(
        "no-bump-after-abort",
        "with the first protocol, sequences of an aborted transaction are used again",
        TRANSACTIONS,
        "        self._must_bump |= sequenced\n",
        "",
        True,
    ),
    Mutation(
        "bump-before-end",
        "InitProducerId goes out before EndTxn",
        TRANSACTIONS,
        "        if something:\n            protocol = min",
        "        if self._must_bump:\n"
        "            return InitProducerId(self.producer_id, self.epoch)\n"
        "        if something:\n            protocol = min",
        True,
    ),
    Mutation(
        "epoch-stays",
        "the identity that EndTxn answers is ignored",
        TRANSACTIONS,
        "                if response.producer_id >= 0:\n",
        "                if False:\n",
        True,
    ),
    Mutation(
        "any-level",
        "the second protocol is used at every level",
        TRANSACTIONS,
        "return SECOND if self._level >= SECOND else FIRST",
        "return SECOND",
        True,
    ),
    Mutation(
        "old-level",
        "the level is never looked up again",
        TRANSACTIONS,
        "return now_ms - self._level_ms <= LEVEL_AGE_MS",
        "return True",
        True,
    ),
    Mutation(
        "ends-as-begun",
        "EndTxn has the protocol of the beginning, although the level has sunk",
        TRANSACTIONS,
        "protocol = min(self.protocol or FIRST, self._protocol_now())",
        "protocol = self.protocol or FIRST",
        True,
    ),
    Mutation(
        "change-of-mind",
        "a transaction is aborted although EndTxn(commit) may be out",
        TRANSACTIONS,
        "        if call.event is Event.ABORT and self._end_sent:\n            may = False\n",
        "",
        True,
    ),
    Mutation(
        "end-of-nothing",
        "a transaction without anything is ended by a request",
        TRANSACTIONS,
        "        return self._has_parts or (self.protocol == SECOND and wrote)",
        "        return True",
        True,
    ),
    Mutation(
        "unwritten-is-nothing",
        "a Produce request of the second protocol does not count as adding",
        TRANSACTIONS,
        "        return self._has_parts or (self.protocol == SECOND and wrote)",
        "        return self._has_parts",
        True,
    ),
    Mutation(
        "no-answer-is-success",
        "EndTxn without a response counts as successful",
        TRANSACTIONS,
        "        request = self._answered()\n        if not isinstance(request, FindCoordinator):\n",
        "        request = self._answered()\n        if isinstance(request, EndTxn):\n"
        "            self._end_sent = False\n            self._ended()\n            return\n"
        "        if not isinstance(request, FindCoordinator):\n",
        True,
    ),
    Mutation(
        "fenced-once",
        "a producer that was fenced goes on",
        TRANSACTIONS,
        "_FATAL_TO_PRODUCE = frozenset({UNSUPPORTED_VERSION, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED})",
        "_FATAL_TO_PRODUCE = frozenset[int]()",
        True,
    ),
    Mutation(
        "pending-after-the-end",
        "what is in flight when a producer fails for good stays pending",
        CLIENT,
        "self._sender.purge(True, fatal, ",
        "self._sender.purge(True, False, ",
        True,
    ),
    Mutation(
        "lost-offsets",
        "offsets with a retriable error count as committed",
        TRANSACTIONS,
        "            self._again(retried_code, retried, request, now_ms)\n            return\n        calls",
        "            pass\n        calls",
        True,
    ),
    Mutation(
        "offsets-of-nobody",
        "offsets are committed without the member of the group",
        CLIENT,
        "                    version, number, client_id, *identity, group, positions\n",
        "                    version, number, client_id, *identity, type(group)(group.group_id), positions\n",
        True,
    ),
    Mutation(
        "group-stays",
        "a group that was added counts as added to the next transaction",
        TRANSACTIONS,
        "        self._groups = set()\n        self._end_sent = False\n",
        "        self._end_sent = False\n",
        True,
    ),
    Mutation(
        "old-coordinator",
        "a coordinator that does not answer is asked for ever",
        TRANSACTIONS,
        "            self._coordinators.pop(self._whose(request), None)\n        if isinstance(request, AddP",
        "            pass\n        if isinstance(request, AddP",
        True,
    ),
    Mutation(
        "late-failure",
        "the sender is not told that a record has failed",
        TRANSACTIONS,
        "            self.on_failure()\n",
        "            pass\n",
        True,
    ),
    Mutation(
        "epoch-of-last-one",
        "sequences are given again to other records of the same epoch",
        "cyproducer/accumulator/sequences.pyx",
        "        p.next_sequence = p.gap_sequence\n",
        "        p.next_sequence = 0\n",
        True,
    ),
]


def build(mutation: Mutation, tree: Path) -> str:
    """Makes a broken copy in the directory ``tree``; returns the problem, or an empty string."""
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy2(source, tree / part)
    path = tree / mutation.path
    text = path.read_text()
    if text.count(mutation.old) != 1:
        return f"does not apply: {mutation.old!r} occurs {text.count(mutation.old)} times in {mutation.path}"
    path.write_text(text.replace(mutation.old, mutation.new))
    if path.suffix == ".py":
        return ""
    built = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=tree, capture_output=True, text=True
    )
    return f"does not build: {built.stderr[-500:]}" if built.returncode else ""


def run(tree: Path, most: int, first: int, transactions: bool) -> str:
    """Runs histories in a broken copy, and describes the result."""
    command = [sys.executable, "-m", "tests.simulation", str(first), "--count", str(most), "--most", "1"]
    command += ["--transactions"] * transactions
    try:
        ran = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        return "hangs"
    lines = ran.stdout.splitlines()
    if ran.returncode == 0:
        return f"NOT FOUND in {most} histories"
    if not lines or "histories" not in lines[-1]:
        return f"ends the run: {ran.stderr[-300:]}"
    return f"found by history {lines[0]}"


def break_and_run(mutation: Mutation, most: int, first: int) -> str:
    """Builds and runs a mutation, and describes the result."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as name:
        return build(mutation, Path(name)) or run(Path(name), most, first, mutation.transactions)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutate", description=__doc__)
    parser.add_argument("names", nargs="*", help="which mutations; default: all")
    parser.add_argument("--most", type=int, default=2000, help="the maximum number of histories")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    given = parser.parse_args()
    missed = 0
    for mutation in MUTATIONS:
        if not given.names or mutation.name in given.names:
            fate = break_and_run(mutation, given.most, given.first)
            missed += not fate.startswith(("found", "ends", "hangs"))
            print(f"{mutation.name}: {mutation.why}\n    {fate[:300]}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
