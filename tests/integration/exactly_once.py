"""Copies a topic with `transactional_copy` while copiers and brokers are killed at random moments, and checks
that the copy has each record once and in order.

    python tests/integration/exactly_once.py                      200 kills, about half an hour
    python tests/integration/exactly_once.py --kills 20 --level 0 --seed 7

All faults of a run follow from its seed, their moments from the machine too. Prints a table of faults and
outcomes at the end; the exit code is 1 if a check fails. Needs Java and Maven.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from confluent_kafka import IsolationLevel, Producer
from confluent_kafka.admin import AdminClient

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from cyproducer.cli.console import table
from tests.integration.consume import Fetched, read_all
from tests.integration.fault_log import FaultLog
from tests.integration.transaction_rig import end_offsets, group_offsets
from tests.integration.transactional_copy import FATAL, PHASES, audit, transform
from tests.programs import program_environment
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.transactions import LEVELS, TRANSACTION_PROPERTIES, Transactions
from tools.harness.until import looks

COPIER = Path(__file__).with_name("transactional_copy.py")
PARTITIONS = 4
COPIERS = 2
PATIENCE_S = 120.0
"""The longest time without a committed transaction. A broker's death takes some ten seconds."""
FEED_EVERY_S = 0.1
FEED_RECORDS = 10
"""Records per partition and time of feeding."""
LINE_EVERY_S = 10.0
KINDS: Mapping[str, int] = {
    "copier": 10,
    "copier at a phase": 6,
    "copier, paused": 2,
    "coordinator's node": 2,
    "group coordinator's node": 1,
    "leader's node": 2,
}
"""The kinds of faults, with their weights."""
BROKER_KINDS = tuple(kind for kind in KINDS if kind.endswith("node"))


class StalledError(AssertionError):
    """No transaction was committed for `PATIENCE_S` seconds."""


class Copier:
    """A copier's process, and those that replace it. One thread reads what they print."""

    def __init__(self, number: int, command: list[str], log: FaultLog, seed: str) -> None:
        self.number = number
        self.counts: Counter[str] = Counter()
        """Outcomes: ``committed``, ``aborted REASON``, ``fatal REASON``, ``died STATUS``."""
        self.committed = 0
        self.joined = False
        """Whether the process runs its loop."""
        self._command = command
        self._log = log
        self._rng = random.Random(f"{seed}/copier {number}")
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._expected = False
        """Whether the process was killed, or asked to end."""

    def start(self, die: str | None = None) -> None:
        """Starts a process. ``die``: see `transactional_copy`."""
        command = [*self._command, "--seed", str(self._rng.random())]
        if die is not None:
            command += ["--die", die]
        self._expected = die is not None
        self.joined = False
        self._process = subprocess.Popen(
            [sys.executable, "-P", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=program_environment(),
        )
        name = f"copier {self.number}"
        self._thread = threading.Thread(target=self._read, args=(self._process,), name=name)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        self._expected = True
        self.signal(signal.SIGKILL)
        self.join()

    def signal(self, which: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(which)

    def end(self) -> None:
        """Asks the process to end."""
        self._expected = True
        self.signal(signal.SIGTERM)

    def join(self, timeout_s: float = PATIENCE_S) -> int:
        """Waits for the process's end, and returns its exit status."""
        assert self._process is not None
        assert self._thread is not None
        status = self._process.wait(timeout_s)
        self._thread.join(timeout_s)
        return status

    def crashed(self) -> int | None:
        """Returns the exit status of a process that has ended although nobody wanted it to, else None."""
        if self._process is None or self.running or self._expected:
            return None
        return self.join()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                word, _, rest = line.strip().partition(" ")
                if word == "committed":
                    self.counts["committed"] += 1
                    self.committed += 1
                    continue
                if rest == "by choice":
                    self.counts["aborted by choice"] += 1
                    continue
                if word == "joined":
                    self.joined = True
                self._log.add(f"copier {self.number} ({process.pid}): {line.rstrip()}")
                if word in ("aborted", "fatal", "timeout"):
                    self.counts[f"{word} {rest.partition(':')[0]}"] += 1
                elif word == "record":
                    self.counts["records read again by the consumer"] += 1


class Feeder:
    """Writes numbered records to the source, within ``with``, in a thread."""

    def __init__(self, servers: str, topic: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        self._topic = topic
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._feed, name="feeder")

    def _feed(self) -> None:
        number = 0
        while not self._end.wait(FEED_EVERY_S):
            for _ in range(FEED_RECORDS):
                for partition in range(PARTITIONS):
                    value = b"%d %d" % (partition, number)
                    # The queue is full while too many partitions have no leader.
                    with contextlib.suppress(BufferError):
                        self._producer.produce(self._topic, value, partition=partition)
                number += 1
            self._producer.poll(0)

    def __enter__(self) -> Feeder:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._end.set()
        self._thread.join()
        self._producer.flush(PATIENCE_S)


class Campaign:
    """One run: kills, and the check of the copy. For one thread.

    Args:
        cluster: Three nodes with `TRANSACTION_PROPERTIES`.
        name: The prefix of topics, group and transactional ids.
        level: The level of ``transaction.version``.
        seed: Of the faults.
        protocol: The group's: ``classic`` or ``consumer``.
        progress: Gets a line each `LINE_EVERY_S` seconds.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        name: str,
        level: int,
        seed: str,
        protocol: str = "classic",
        progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.log = FaultLog(seed)
        self.faults: Counter[str] = Counter()
        self.records = 0
        """In the source at the end."""
        self._cluster = cluster
        self._transactions = Transactions(cluster)
        self._transactions.set_level(level)
        self._rng = random.Random(f"{seed}/{level}/{protocol}")
        self._progress = progress
        self._next_line_s = LINE_EVERY_S
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        self.source, self.target, self.audit = (f"{name}.{part}" for part in ("source", "target", "audit"))
        self.group = f"{name}.group"
        in_sync = {"min.insync.replicas": "2"}
        for topic, partitions in ((self.source, PARTITIONS), (self.target, PARTITIONS), (self.audit, 1)):
            cluster.create_topic(topic, partitions, 3, in_sync)
        self._ids = [f"{name}.copier-{number}" for number in range(COPIERS)]
        self.copiers = [self._copier(number, protocol, seed) for number in range(COPIERS)]

    def _copier(self, number: int, protocol: str, seed: str) -> Copier:
        command = [
            *(str(COPIER), self._cluster.bootstrap_servers, self.source, self.target, self.audit),
            *(self.group, self._ids[number], "--protocol", protocol),
        ]
        # One member is static, and replaces itself at once; the others wait for the end of their sessions. In
        # the newer protocol a static member that was killed is in its own way until then (KIP-848).
        if number == 0 and protocol == "classic":
            command += ["--instance", self._ids[number]]
        return Copier(number, command, self.log, seed)

    def run(self, kills: int, kinds: Mapping[str, int] = KINDS) -> None:
        """Injects that many faults, lets the copiers finish, and checks the copy.

        Raises:
            AssertionError: A check failed, or nothing goes on. The message has the log.
        """
        try:
            with Feeder(self._cluster.bootstrap_servers, self.source):
                for copier in self.copiers:
                    copier.start()
                self.await_commits(COPIERS)
                self._kill_many(kills, kinds)
                self.await_commits(COPIERS)
            self._drain()
            self._end()
        except BaseException:
            self._abandon()
            raise
        self._check()

    def _kill_many(self, kills: int, kinds: Mapping[str, int]) -> None:
        plan = self._rng.choices(list(kinds), list(kinds.values()), k=kills)
        # Each kind that was asked for comes once at least, if there is room.
        plan[: len(kinds)] = list(kinds)[:kills]
        self._rng.shuffle(plan)
        while plan:
            kind = plan.pop()
            if kind not in BROKER_KINDS:
                self._break_copier(kind)
                continue
            node = self._node(kind)
            self._note(kind, f"node {node}: SIGKILL")
            self._cluster.kill(node)
            for _ in range(self._rng.randint(0, 2)):
                if plan and plan[-1] not in BROKER_KINDS:
                    self._break_copier(plan.pop())
            time.sleep(self._rng.uniform(0, 2))
            self.log.add(f"node {node}: start")
            self._cluster.restart(node)
            self.log.add(f"node {node}: is back")
            self._await_in_sync()
            self.await_commits(1)

    def _node(self, kind: str) -> int:
        if kind == "coordinator's node":
            return self._transactions.coordinator(self._rng.choice(self._ids))
        if kind == "group coordinator's node":
            return self._transactions.group_coordinator(self.group)
        return self._cluster.leader(self.target, self._rng.randrange(PARTITIONS))

    def _break_copier(self, kind: str) -> None:
        copier = self._rng.choice(self.copiers)
        # Mostly with transactions under way, sometimes while it starts.
        if self._rng.random() < 0.8:
            self.await_commits(1)
        time.sleep(self._rng.uniform(0, 0.3))
        die = None
        if kind == "copier at a phase":
            die = self._rng.choice(PHASES)
            self._note(kind, f"copier {copier.number}: to die when {die}")
            copier.kill()
            copier.start(die)
            self._await(lambda: not copier.running, f"copier {copier.number} dies when {die}")
        elif kind == "copier, paused":
            # Shorter than its session, longer than it, longer than its transaction may take.
            pause_s = self._rng.choice((0.5, 3.0, 8.0))
            self._note(kind, f"copier {copier.number}: SIGSTOP for {pause_s} s")
            copier.signal(signal.SIGSTOP)
            time.sleep(pause_s)
            copier.signal(signal.SIGCONT)
            return
        else:
            self._note(kind, f"copier {copier.number}: SIGKILL")
            copier.kill()
        time.sleep(self._rng.choice((0, 0, self._rng.uniform(0, 3))))
        copier.start()

    def _note(self, kind: str, what: str) -> None:
        self.faults[kind] += 1
        self.log.add(what)

    def committed(self) -> int:
        return sum(copier.committed for copier in self.copiers)

    def await_commits(self, more: int) -> None:
        """Waits until that many more transactions are committed."""
        goal = self.committed() + more
        self._await(lambda: self.committed() >= goal, f"{more} more committed transactions")

    def _await(self, condition: Callable[[], object], what: str) -> None:
        """Waits, and replaces copiers whose producer failed.

        Raises:
            StalledError: It takes longer than `PATIENCE_S` seconds.
        """
        for _ in looks(PATIENCE_S, 0.02):
            if condition():
                return
            self._replace()
            self._line()
        states = {name: self._transactions.describe(name) for name in self._ids}
        raise StalledError(f"{what}: not within {PATIENCE_S} s; {states}\n{self.log}")

    def _replace(self) -> None:
        for copier in self.copiers:
            status = copier.crashed()
            if status is None:
                continue
            if status != FATAL:
                raise AssertionError(f"copier {copier.number} ended with status {status}:\n{self.log}")
            copier.start()

    def _line(self) -> None:
        if self.log.now_s() >= self._next_line_s:
            self._next_line_s = self.log.now_s() + LINE_EVERY_S
            faults, committed = sum(self.faults.values()), self.committed()
            self._progress(f"{self.log.now_s():6.0f} s  {faults} faults, {committed} transactions committed")

    def _await_in_sync(self) -> None:
        """Waits until all replicas of all partitions are in sync: the next node may die then."""

        def in_sync() -> bool:
            topics = self._admin.list_topics(timeout=10).topics.values()
            parts = [part for topic in topics for part in topic.partitions.values()]
            return all(part.leader > 0 and set(part.isrs) == set(part.replicas) for part in parts)

        self._await(in_sync, "all replicas in sync")

    def _drain(self) -> None:
        """Waits until everything is copied."""
        ends = end_offsets(self._admin, self.source, PARTITIONS, IsolationLevel.READ_COMMITTED)
        # Commits are progress; the whole may take longer than one step.
        while (now := self._offsets()) != ends:
            self._await(functools.partial(self._moved, now), "further offsets")
        self.log.add(f"everything is copied, up to {ends}")

    def _moved(self, offsets: list[int]) -> bool:
        return self._offsets() != offsets

    def _offsets(self) -> list[int]:
        return group_offsets(self._admin, self.group, self.source, PARTITIONS)

    def _end(self) -> None:
        # Before that, SIGTERM would not end them in order.
        self._await(lambda: all(copier.joined for copier in self.copiers), "all copiers in the group")
        for copier in self.copiers:
            copier.end()
        statuses = [copier.join() for copier in self.copiers]
        if any(statuses):
            raise AssertionError(f"the copiers ended with {statuses}:\n{self.log}")

    def _abandon(self) -> None:
        """Ends all processes, whatever happened."""
        for copier in self.copiers:
            if copier.running:
                copier.signal(signal.SIGCONT)
                copier.kill()

    def _open_ones(self) -> dict[str, str]:
        return {name: state for name, state in self._transactions.open().items() if name in self._ids}

    def _check(self) -> None:
        servers = self._cluster.bootstrap_servers
        complaints = []
        # A coordinator answers EndTxn when its decision is in its log (PrepareCommit), and writes the markers
        # to the partitions afterwards.
        for _ in looks(PATIENCE_S):
            if not (open_ones := self._open_ones()):
                break
        else:
            complaints.append(f"transactions are open: {open_ones}")
        for topic, partitions in ((self.target, PARTITIONS), (self.audit, 1)):
            stable, ends = (
                end_offsets(self._admin, topic, partitions, level)
                for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
            )
            if stable != ends:
                complaints.append(f"readers of {topic} stop at {stable}, and the ends are {ends}")
        source = read_all(servers, self.source, 1, PATIENCE_S)
        target = read_all(servers, self.target, 1, PATIENCE_S)
        self.records = len(source)
        for partition in range(PARTITIONS):
            wanted = [record for record in source if record.partition == partition]
            found = [record for record in target if record.partition == partition]
            complaints += differences(wanted, found)
        complaints += gaps(read_all(servers, self.audit, 1, PATIENCE_S), self._offsets())
        if complaints:
            raise AssertionError("\n".join([*complaints, str(self.log)]))


def differences(wanted: list[Fetched], found: list[Fetched]) -> list[str]:
    """Returns how the copy of a partition differs from its source: lost records, doubles, order."""
    complaints = []
    counts = Counter(record.value for record in found)
    copies = [transform(record.value or b"") for record in wanted]
    lost = [record for record, copy in zip(wanted, copies, strict=True) if not counts[copy]]
    twice = [record for record in found if counts[record.value] > 1]
    if lost:
        complaints.append(f"{len(lost)} records are lost, the first: {lost[:3]}")
    if twice:
        complaints.append(f"{len(twice)} records are there more than once: {twice[:6]}")
    if not complaints and [record.value for record in found] != copies:
        complaints.append(f"{len(found)} copies of {len(copies)} records are out of order, or are others")
    return complaints


def gaps(audits: list[Fetched], ends: list[int]) -> list[str]:
    """Returns how the ranges of offsets that transactions copied fail to follow each other up to the ends."""
    complaints = []
    upto = [0] * PARTITIONS
    for record in audits:
        partition, first, last = map(int, (record.value or b"").split())
        if first != upto[partition] or record.value != audit(partition, first, last):
            complaints.append(f"a transaction copied {record.value!r}, and {upto[partition]} was next")
        upto[partition] = last + 1
    if upto != ends:
        complaints.append(f"transactions copied up to {upto}, and the group's offsets are {ends}")
    return complaints[:20]


def summary(campaign: Campaign) -> str:
    """Returns a table of faults and outcomes."""
    outcomes: Counter[str] = Counter()
    for copier in campaign.copiers:
        outcomes += copier.counts
    rows = [("faults", str(sum(campaign.faults.values())))]
    rows += [(f"  {kind}", str(count)) for kind, count in sorted(campaign.faults.items())]
    rows += [("transactions", "")]
    rows += [(f"  {outcome}", str(count)) for outcome, count in sorted(outcomes.items())]
    rows += [("records, each copied once", str(campaign.records))]
    rows += [("seconds", f"{campaign.log.now_s():.0f}")]
    return "\n".join(table(rows))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument(
        "--level", type=int, choices=LEVELS, action="append", help="default 2; may be repeated"
    )
    parser.add_argument("--protocol", choices=("classic", "consumer"), default="classic")
    parser.add_argument("--seed", default=str(random.randrange(10**6)))
    arguments = parser.parse_args()
    # As an exception, which ends the copiers and the cluster.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    failed = 0
    with (
        tempfile.TemporaryDirectory(prefix="exactly-once-") as scratch,
        KafkaCluster(3, TRANSACTION_PROPERTIES, directory=Path(scratch) / "kafka") as cluster,
    ):
        for level in arguments.level or [2]:
            title = f"level {level}, seed {arguments.seed}, group protocol {arguments.protocol}"
            print(f"{title}: {arguments.kills} kills", flush=True)
            campaign = Campaign(
                cluster,
                f"level-{level}",
                level,
                arguments.seed,
                arguments.protocol,
                lambda line: print(line, file=sys.stderr, flush=True),
            )
            try:
                campaign.run(arguments.kills)
            except AssertionError as error:
                failed = 1
                print(f"FAILED: {error}", flush=True)
            print(f"{title}\n{summary(campaign)}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
