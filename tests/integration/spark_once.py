"""Writes a stream exactly once while its driver is killed, again and again, and checks the topic afterwards.

    make spark-exactly-once                                       100 kills, about half an hour
    make spark-exactly-once SPARK_ONCE="--kills 20 --nodes 3 --seed 7"

Each life of the driver is killed with SIGKILL, with its JVM, at the n-th step of the protocol that it comes
to; the process that comes to the step waits there. Prints a line for each life, and a table at the end; the
exit code is 1 if a check fails. Needs Java, Maven and pyspark.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from cyproducer.cli.console import table
from cyproducer.transactions import TransactionAdmin
from tests.integration.consume import read_all
from tests.integration.process_table import GONE_S, below, of_session
from tests.programs import ROOT, Program
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.until import looks

FILES = 2
"""Files, and so tasks, per micro-batch."""
ROWS = 300
"""Rows per file."""
PATIENCE_S = 240.0

STEPS = (
    "before take_over",
    "after take_over",
    "after history",
    "before a task writes",
    "after a task has prepared",
    "before not_open",
    "before the decision",
    "after the decision",
    "between two commits",
    "before done",
    "after done",
)

DRIVER = """
import os, sys
from pathlib import Path

directory, root, bootstrap, topic, prefix = Path(sys.argv[1]), *sys.argv[2:]
# At the end: an installed package comes before the sources.
sys.path += [root, str(directory)]
from tools.harness.spark_session import connect_session, spark_session

# For the module that holds processes at steps.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(directory), os.environ.get("PYTHONPATH")]))
import holding

with SESSION(directory / "spark") as spark:
    spark.dataSource.register(holding.HoldingSource)
    query = (
        spark.readStream.format("text").option("maxFilesPerTrigger", FILES).load(str(directory / "in"))
        .writeStream.format("holding")
        .options(**{"kafka.bootstrap.servers": bootstrap, "topic": topic})
        .option("deliveryGuarantee", "exactly-once").option("transactionalIdPrefix", prefix)
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
from pathlib import Path

from cyproducer.spark import source
from cyproducer.spark.exactly_once import kafka_cluster, task

HERE = Path(DIRECTORY)


def step(name):
    with open(HERE / "steps", "a") as file:
        file.write(name + "\\n")
    number = len((HERE / "steps").read_text().splitlines())
    wanted = (HERE / "hold").read_text()
    if wanted in (name, str(number)) and not (HERE / "held").exists():
        (HERE / "held").write_text(f"{number} {name}")
        while True:
            time.sleep(60)


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


def held_write(*arguments):
    step("before a task writes")
    found = write(*arguments)
    step("after a task has prepared")
    return found


source.KafkaCluster = HoldingCluster
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


def kill_driver(driver: Program) -> None:
    """Kills the driver's JVM and Python process at the same time, and then what waits at a step."""
    (jvm,) = (each for each in below(driver.pid) if "org.apache.spark.deploy.SparkSubmit" in each.command)
    for pid in (jvm.pid, driver.pid):
        os.kill(pid, signal.SIGKILL)
    for _ in looks(GONE_S):
        left = of_session(driver.pid)
        for each in left:
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)
        if not left:
            return
    raise AssertionError(f"{GONE_S:.0f} s after the driver was killed these still run: {left}")


class Stream:
    """A stream and its driver, which is started again after each kill."""

    def __init__(
        self, directory: Path, kafka: KafkaCluster, name: str, batches: int, *, connect: bool = False
    ) -> None:
        self.directory = directory
        self.connect = connect
        self.kafka = kafka
        self.topic = name
        self.batches = batches
        self.timeout_ms = 60_000
        (directory / "in").mkdir()
        (directory / "holding.py").write_text(HOLDING.replace("DIRECTORY", repr(str(directory))))
        for number in range(batches * FILES):
            file = directory / "in" / f"{number}.txt"
            file.write_text("".join(f"{number} {row}\n" for row in range(ROWS)))
            # The stream reads the oldest files first.
            os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))

    def life(self, hold: str) -> str | None:
        """Runs the driver, and kills it at a step; returns the step, or None if it ended before."""
        for name in ("steps", "held"):
            (self.directory / name).unlink(missing_ok=True)
        (self.directory / "steps").touch()
        (self.directory / "hold").write_text(hold)
        script = DRIVER.replace("FILES", str(FILES)).replace("TIMEOUT_MS", str(self.timeout_ms))
        script = script.replace("SESSION", "connect_session" if self.connect else "spark_session")
        told = (str(self.directory), str(ROOT), self.kafka.bootstrap_servers, self.topic, self.topic)
        with Program(script, *told) as driver:
            for _ in looks(PATIENCE_S):
                if (self.directory / "held").exists():
                    kill_driver(driver)
                    return (self.directory / "held").read_text()
                if not driver.running:
                    driver.hear("ended well")
                    assert driver.end() == 0
                    return None
        raise AssertionError(f"the driver neither came to step {hold!r} nor ended in {PATIENCE_S:.0f} s")

    def check(self) -> None:
        """Checks that each row is there once, and that no transaction is open."""
        wanted = Counter(f"{number} {row}" for number in range(self.batches * FILES) for row in range(ROWS))
        records = read_all(self.kafka.bootstrap_servers, self.topic, sum(wanted.values()))
        found = Counter((record.value or b"").decode() for record in records)
        assert found == wanted, (
            f"{sum((found - wanted).values())} rows too many, {sum((wanted - found).values())} missing"
        )
        with TransactionAdmin({"bootstrap_servers": self.kafka.bootstrap_servers}) as admin:
            left = admin.list_transactions(states=("Ongoing",), prefix=f"{self.topic}.")
        assert left == []


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
            kafka.create_topic(name, 3)
            stream = Stream(place, kafka, name, batches=6)
            while (at := stream.life(str(rng.randrange(1, 25)))) is not None:
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
    print(table([(name, str(count)) for name, count in sorted(steps.items())]))
    if not failed:
        shutil.rmtree(directory, ignore_errors=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
