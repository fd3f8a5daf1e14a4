"""Writes a stream exactly once while its driver is killed, again and again, and checks the topic afterwards.

    make spark-exactly-once                                       100 kills, about half an hour
    make spark-exactly-once SPARK_ONCE="--kills 20 --nodes 3 --seed 7"

Each life of the driver is killed with SIGKILL, with its JVM, at the n-th step of the protocol that it comes
to, where the process that comes to the step waits; half of them go on from there, and are killed at some
moment within a second. With three nodes, some lives also lose a node at a step before that, which comes back
after the kill. Prints a line for each life, and a table at the end; the exit code is 1 if a check fails.
Needs Java, Maven and pyspark.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from cyproducer.cli.console import table
from cyproducer.transactions import TransactionAdmin
from tests.integration.consume import read_all
from tests.integration.process_table import GONE_S, ProcessInfo, below, of_session
from tests.programs import ROOT, Program
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.until import looks

FILES = 2
"""Files, and so tasks, per micro-batch."""
ROWS = 300
"""Rows per file."""
PATIENCE_S = 240.0

NODE_KILLS = 0.25
"""How many of the campaign's lives lose a node, too."""
BETWEEN_STEPS = 0.5
"""How many are killed at a random moment, and not at a step."""

DRIVER = """
import os, sys
from pathlib import Path

life, root, directory, bootstrap, topic = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), *sys.argv[4:]
# At the end: an installed package comes before the sources.
sys.path += [root, str(life)]
from tools.harness.spark_session import connect_session, spark_session

# For the module that holds processes at steps.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(life), os.environ.get("PYTHONPATH")]))
import holding

with SESSION(life / "spark") as spark:
    spark.dataSource.register(holding.HoldingSource)
    query = (
        spark.readStream.format("text").option("maxFilesPerTrigger", FILES).load(str(directory / "in"))
        .writeStream.format("holding")
        .options(**{"kafka.bootstrap.servers": bootstrap, "topic": topic})
        .option("deliveryGuarantee", "exactly-once").option("transactionalIdPrefix", topic)
        .option("kafka.transaction.timeout.ms", "TIMEOUT_MS")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print("ended well", flush=True)
"""

HOLDING = """
import os
import time
from contextlib import suppress
from pathlib import Path

from cyproducer.spark import source
from cyproducer.spark.exactly_once import each_batch, kafka_cluster, task

HERE = Path(__file__).parent
HELD = HERE / f"held.{os.getpid()}"


def wanted():
    return (HERE / "hold").read_text().split(" ", 1)


def step(name):
    with open(HERE / "steps", "a") as file:
        file.write(name + "\\n")
    number = len((HERE / "steps").read_text().splitlines())
    turn, hold = wanted()
    if hold not in (name, str(number)):
        return
    HELD.write_text(f"{number} {name}")
    # Whole at once, and by the first of several processes. The others that come to the step wait as well: a
    # task that went on would have an open transaction or not, by chance, when the test goes on.
    with suppress(FileExistsError):
        os.link(HELD, HERE / f"held-{turn}")
    while wanted()[0] == turn:
        time.sleep(0.02)


class HoldingCluster(kafka_cluster.KafkaCluster):
    def take_over(self):
        step("before take_over")
        found = super().take_over()
        step("after take_over")
        return found

    def history(self):
        found = super().history()
        step("after history")
        return found

    def not_open(self, transactions):
        step("before not_open")
        return super().not_open(transactions)

    def write(self, identity, decision):
        step("before done" if decision.done else "before the decision")
        found = super().write(identity, decision)
        step("after done" if decision.done else "after the decision")
        return found

    def copy(self, identity, aborted, decision):
        step("before copying")
        found = super().copy(identity, aborted, decision)
        step("after copying")
        return found

    def commit(self, transactions):
        ends = []
        for each in transactions:
            if ends:
                step("between two commits")
            ends += super(HoldingCluster, self).commit([each])
        return ends


write = task._write


def halves(batches):
    for batch in batches:
        half = batch.num_rows // 2
        yield batch.slice(0, half)
        step("while a task writes")
        yield batch.slice(half)


def held_write(*arguments):
    *others, batches = arguments
    step("before a task writes")
    found = write(*others, halves(batches))
    step("after a task has prepared")
    return found


source.KafkaCluster = each_batch.KafkaCluster = HoldingCluster
task._write = held_write


# Spark 4.0 has no Arrow writer for streams.
class HoldingWriter(source._StreamWriter if source._STREAMS_ARROW else source._StreamRowWriter):
    # Of this module, so that workers import it.
    pass


class HoldingSource(source.CyproducerDataSource):
    @classmethod
    def name(cls):
        return "holding"

    def streamWriter(self, schema, overwrite):
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = HoldingWriter
        return writer
"""


class Life:
    """A driver with all its processes. Those that come to the step to wait at wait there. A context manager;
    kills it at the end.

    Args:
        directory: one of its own, for what it and its driver tell each other.
        script: gets ``directory``, the project's root and ``told``.
        hold: the step to wait at: its name, or its number in this life.
    """

    def __init__(self, directory: Path, script: str, hold: str, *told: str) -> None:
        directory.mkdir()
        self._directory = directory
        self._turn = 0
        (directory / "holding.py").write_text(HOLDING)
        (directory / "steps").touch()
        self._hold(hold)
        self._driver = Program(script, str(directory), str(ROOT), *told)
        # All the time: a driver whose output nobody reads stops.
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        with suppress(AssertionError):
            self._driver.hear("\0")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            self._kill_rest()
            self._reading.join()
        finally:
            self._driver.__exit__(*raised)

    def _hold(self, hold: str) -> None:
        new = self._directory / "hold.new"
        new.write_text(f"{self._turn} {hold}")
        new.replace(self._directory / "hold")

    def go_on(self, hold: str = "never") -> None:
        """Lets what waits at a step go on, to another one or to the end."""
        self._turn += 1
        self._hold(hold)

    @property
    def steps(self) -> list[str]:
        """The steps that were reached so far."""
        return (self._directory / "steps").read_text().splitlines()

    def held(self) -> str | None:
        """Waits until the driver is at the step; returns its number and name. None: the driver has ended
        before."""
        held = self._directory / f"held-{self._turn}"
        for _ in looks(PATIENCE_S):
            if held.exists():
                return held.read_text()
            if not self._driver.running:
                return None
        raise AssertionError(f"the driver did not come to the step: {self.steps}")

    def hold_at(self, step: str) -> None:
        """Waits until the driver is at a step, which is the one to wait at."""
        held = self.held()
        assert held is not None, f"ended before {step!r}:\n{self.said()}"
        assert held.endswith(f" {step}"), held

    def ends_well(self) -> None:
        assert "ended well\n" in self.said(), self.said()
        assert self._driver.end() == 0

    def fails(self) -> str:
        """Waits until the driver has ended with an error; returns what it said."""
        assert "ended well\n" not in self.said(), self.said()
        assert self._driver.end() == 1, self.said()
        return self.said()

    def said(self) -> str:
        """Waits for the driver's end; returns what it said."""
        self._reading.join(PATIENCE_S)
        assert not self._reading.is_alive(), f"the driver did not end:\n{self.steps}\n{self._driver.said}"
        return self._driver.said

    def kill(self, *, may_end: bool = False) -> bool:
        """Kills the driver's JVM and Python process at the same time, and then what waits at a step. Returns
        whether the driver was running. ``may_end``: it does not wait at a step."""
        if not self._driver.running:
            return False
        running = below(self._driver.pid)
        jvms = [each for each in running if "org.apache.spark.deploy.SparkSubmit" in each.command]
        assert jvms or may_end, running
        for pid in (*(each.pid for each in jvms), self._driver.pid):
            # A JVM may end just now.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._kill_rest()
        return True

    def _kill_rest(self) -> None:
        self._send(signal.SIGKILL, lambda each: True, "after the driver was killed these still run")

    def stall(self) -> None:
        """Stops all processes, as on a machine that is suspended."""
        self._send(signal.SIGSTOP, lambda each: each.state != "T", "these do not stop")

    def _send(self, number: signal.Signals, affects: Callable[[ProcessInfo], bool], failure: str) -> None:
        """Sends a signal to the session's processes until it affects none any more; new ones may start."""
        left: list[ProcessInfo] = []
        for _ in looks(GONE_S):
            left = [each for each in of_session(self._driver.pid) if affects(each)]
            if not left:
                return
            for each in left:
                with suppress(ProcessLookupError):
                    os.kill(each.pid, number)
        raise AssertionError(f"{GONE_S:.0f} s, {failure}: {left}")

    def wake(self) -> None:
        for each in of_session(self._driver.pid):
            os.kill(each.pid, signal.SIGCONT)


class Stream:
    """A stream and its driver, which is started again after each kill."""

    def __init__(
        self,
        directory: Path,
        kafka: KafkaCluster,
        name: str,
        batches: int,
        script: str = DRIVER,
        *,
        connect: bool = False,
    ) -> None:
        self.directory = directory
        self.connect = connect
        self.kafka = kafka
        self.topic = name
        self.batches = batches
        self.timeout_ms = 60_000
        self._script = script
        self._lives = 0
        (directory / "in").mkdir()
        for number in range(batches * FILES):
            file = directory / "in" / f"{number}.txt"
            file.write_text("".join(f"{number} {row}\n" for row in range(ROWS)))
            # The stream reads the oldest files first.
            os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))

    def start(self, hold: str = "never") -> Life:
        """Starts a driver that waits at a step."""
        self._lives += 1
        script = self._script.replace("FILES", str(FILES)).replace("TIMEOUT_MS", str(self.timeout_ms))
        script = script.replace("SESSION", "connect_session" if self.connect else "spark_session")
        told = (str(self.directory), self.kafka.bootstrap_servers, self.topic)
        return Life(self.directory / f"life-{self._lives}", script, hold, *told)

    def life(self, hold: str) -> str | None:
        """Runs the driver, and kills it at a step; returns the step, or None if it ended before."""
        with self.start(hold) as life:
            if (at := life.held()) is not None:
                assert life.kill()
                return at
            life.ends_well()
            return None

    def check(self, topics: Sequence[str] = ()) -> None:
        """Checks that each row is once in each topic, and that no transaction is open."""
        wanted = Counter(f"{number} {row}" for number in range(self.batches * FILES) for row in range(ROWS))
        for topic in topics or [self.topic]:
            records = read_all(self.kafka.bootstrap_servers, topic, sum(wanted.values()))
            found = Counter((record.value or b"").decode() for record in records)
            assert found == wanted, (
                f"{topic}: {sum((found - wanted).values())} rows too many, "
                f"{sum((wanted - found).values())} missing"
            )
        with TransactionAdmin({"bootstrap_servers": self.kafka.bootstrap_servers}) as admin:
            left = admin.list_transactions(states=("Ongoing",), prefix=f"{self.topic}.")
        assert left == []


def killed(stream: Stream, rng: random.Random) -> str | None:
    """Runs the driver, and kills it at a random step, a node maybe at one before; returns what was killed
    where, or None if the driver ended before."""
    kafka, number = stream.kafka, rng.randrange(1, 25)
    with stream.start(str(number)) as life:
        at, down = life.held(), None
        if at is not None and len(kafka.node_ids) > 2 and rng.random() < NODE_KILLS:
            down = rng.choice(kafka.node_ids)
            print(f"kill of node {down}: step {at}", flush=True)
            kafka.kill(down)
            life.go_on(str(number + rng.randrange(1, 12)))
            at = life.held()
        if between := at is not None and rng.random() < BETWEEN_STEPS:
            life.go_on()
            time.sleep(rng.random())
            at += ", and up to a second more"
        if at is None or not life.kill(may_end=between):
            life.ends_well()
            at = None
    if down is not None:
        kafka.restart(down)
    return at


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 16))
    options = parser.parse_args()
    rng = random.Random(options.seed)
    print(f"seed {options.seed}", flush=True)
    steps: Counter[str] = Counter()
    directory = Path(tempfile.mkdtemp(prefix="spark-once-"))
    failed = False
    with KafkaCluster(options.nodes, directory=directory / "kafka") as kafka:
        kills = stream_number = 0
        while kills < options.kills:
            stream_number += 1
            place = directory / f"stream-{stream_number}"
            place.mkdir()
            name = f"once-{stream_number}"
            in_sync = {"min.insync.replicas": str(min(2, options.nodes))}
            kafka.create_topic(name, 3, configs=in_sync)
            stream = Stream(place, kafka, name, batches=6)
            while (at := killed(stream, rng)) is not None:
                kills += 1
                steps[at.split(" ", 1)[1]] += 1
                print(f"kill {kills} of {options.kills}: stream {stream_number}, step {at}", flush=True)
            try:
                stream.check()
            except AssertionError as error:
                failed = True
                print(f"stream {stream_number}: FAILED: {error}", flush=True)
            else:
                print(f"stream {stream_number}: {6 * FILES * ROWS} rows, each once", flush=True)
    print("killed at:")
    print("\n".join(table([(name, str(count)) for name, count in sorted(steps.items())])))
    if not failed:
        shutil.rmtree(directory, ignore_errors=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
