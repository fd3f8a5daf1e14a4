"""Runs the producer's main promises against several versions of Kafka, one broker after the other.

    python tests/integration/broker_versions.py                          those of `VERSIONS`, some minutes
    python tests/integration/broker_versions.py --versions 3.9.1 4.3.1   others; Maven fetches them

Prints a line per check, and at the end a table with a row for each version. The exit code is 1 if a check
fails. Needs Java and Maven.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from cyproducer import KafkaProducer, errors
from cyproducer.cli.console import columns
from tests.integration.consume import read_all
from tests.integration.old_kafka import OldKafka, numbers, old_kafka
from tests.integration.transaction_rig import group_offsets, producer
from tools.harness.until import until

VERSIONS = ("2.8.2", "3.9.2", "4.0.2", "4.4.0")
RECORDS = 100_000
PARTITIONS = 3
PATIENCE_S = 120.0
CODECS: tuple[Literal["gzip", "snappy", "lz4", "zstd"] | None, ...] = (None, "gzip", "snappy", "lz4", "zstd")
FIRST_WITH_TRANSACTIONS = (2, 5)
"""Before, a broker can't tell a producer that was fenced from one whose id expired (KIP-360)."""


class Run(NamedTuple):
    """A broker, and what the checks share."""

    broker: OldKafka
    records: int

    @property
    def servers(self) -> str:
        return self.broker.bootstrap_servers

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def create(self, topic: str) -> str:
        new = NewTopic(topic, PARTITIONS, 1)
        # Its futures are lost with it.
        admin = self.admin()
        admin.create_topics([new], operation_timeout=30)[topic].result(30)
        return topic

    def send(self, sender: KafkaProducer, topic: str, first: int, last: int) -> list[Any]:
        """Sends numbers up to ``last``, which is excluded, to the partitions in turn. Returns the futures."""
        return [
            sender.send(topic, b"%d" % number, partition=number % PARTITIONS) for number in range(first, last)
        ]

    def assert_each_once(self, topic: str, count: int, futures: Sequence[Any] = ()) -> None:
        """Checks that the topic has the first ``count`` numbers, each once, in the order of sending, at the
        offset of its future."""
        found = read_all(self.servers, topic, count, PATIENCE_S)
        assert len(found) == count, f"{len(found)} records, not {count}"
        for partition in range(PARTITIONS):
            values = [record.value for record in found if record.partition == partition]
            assert values == [b"%d" % number for number in range(partition, count, PARTITIONS)], (
                f"partition {partition} has other records, or another order"
            )
        offsets = {record.value: record.offset for record in found}
        for number, future in enumerate(futures):
            assert future.get(0).offset == offsets[b"%d" % number], f"the future of record {number} is wrong"


def raised(expected: type[Exception], call: Callable[[], object]) -> Exception:
    """Calls, and returns the error of the expected class."""
    try:
        call()
    except expected as error:
        return error
    raise AssertionError(f"{expected.__name__} was not raised")


def each_once(run: Run) -> str:
    topic = run.create("each-once")
    with KafkaProducer(bootstrap_servers=run.servers) as sender:
        futures = run.send(sender, topic, 0, run.records)
        sender.flush(PATIENCE_S)
    run.assert_each_once(topic, run.records, futures)
    return f"{run.records:,} records"


def codecs(run: Run) -> str:
    for codec in CODECS:
        topic = run.create(f"codec-{codec}")
        with KafkaProducer(bootstrap_servers=run.servers, compression_type=codec, linger_ms=5) as sender:
            futures = run.send(sender, topic, 0, run.records // 10)
            sender.flush(PATIENCE_S)
        run.assert_each_once(topic, run.records // 10, futures)
    return "all five"


def acks(run: Run) -> str:
    modes: tuple[Literal[0, 1, "all"], ...] = (0, 1, "all")
    for mode in modes:
        topic = run.create(f"acks-{mode}")
        with KafkaProducer(bootstrap_servers=run.servers, acks=mode) as sender:
            futures = run.send(sender, topic, 0, run.records // 10)
            sender.flush(PATIENCE_S)
        # Without an acknowledgement the offset is not known.
        run.assert_each_once(topic, run.records // 10, futures if mode else ())
    return "0, 1, all"


def killed(run: Run) -> str:
    """Kills the broker while records are sent to it, and starts it again."""
    topic = run.create("killed")
    with KafkaProducer(
        bootstrap_servers=run.servers,
        # Larger than all records, so that sending goes on while the broker is away.
        buffer_memory=256 * 1024 * 1024,
        reconnect_backoff_max_ms=500,
    ) as sender:
        futures = run.send(sender, topic, 0, run.records // 4)
        until(lambda: any(future.succeeded() for future in futures), "an acknowledgement")
        killer = threading.Thread(target=run.broker.kill)
        killer.start()
        futures += run.send(sender, topic, len(futures), run.records // 2)
        killer.join()
        futures += run.send(sender, topic, len(futures), run.records)
        pending = sum(not future.is_done for future in futures)
        assert pending > 0, "nothing was under way"
        run.broker.restart()
        sender.flush(PATIENCE_S)
    run.assert_each_once(topic, run.records, futures)
    return f"{pending:,} under way"


def transactions(run: Run) -> str:
    """Commits, aborts, commits offsets and fences; or is refused, by a version that is too old."""
    name = "transactions"
    topic = run.create(name)
    with producer(run.servers, name) as first:
        if numbers(run.broker.version) < FIRST_WITH_TRANSACTIONS:
            refusal = raised(errors.InvalidSetupError, first.init_transactions)
            assert "2.5" in str(refusal), refusal
            return "refused"
        count = run.records // 10
        first.init_transactions()
        with first.transaction():
            run.send(first, topic, 0, count)
            first.send_offsets_to_transaction([TopicPartition(topic, 0, 7)], name)
        first.begin_transaction()
        run.send(first, topic, 0, count)
        first.flush(PATIENCE_S)
        first.send_offsets_to_transaction([TopicPartition(topic, 0, 8)], name)
        first.abort_transaction()
        first.begin_transaction()
        run.send(first, topic, 0, count)
        first.flush(PATIENCE_S)
        with producer(run.servers, name) as second:
            second.init_transactions()
            # In newer versions, only the abort tells whether it was fenced or the broker had aborted.
            raised(errors.KafkaError, first.commit_transaction)
            raised(errors.ApplicationRecoverableError, first.abort_transaction)
            with second.transaction():
                run.send(second, topic, count, 2 * count)
        assert group_offsets(run.admin(), name, topic, 1) == [7]
    run.assert_each_once(topic, 2 * count)
    return "ended, fenced"


CHECKS: dict[str, Callable[[Run], str]] = {
    "each once": each_once,
    "codecs": codecs,
    "acks": acks,
    "kill -9": killed,
    "transactions": transactions,
}


def try_version(version: str, directory: Path, records: int) -> dict[str, str | None]:
    """Runs all checks, and returns what each found; ``None``: it failed."""
    found: dict[str, str | None] = dict.fromkeys(CHECKS)
    try:
        with old_kafka(version, directory) as broker:
            for name, check in CHECKS.items():
                began_s = time.monotonic()
                try:
                    found[name] = check(Run(broker, records))
                except Exception:
                    traceback.print_exc()
                said = found[name] or "FAILED"
                print(f"Kafka {version}: {name}: {said} ({time.monotonic() - began_s:.1f} s)", flush=True)
    except Exception:
        traceback.print_exc()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--versions", nargs="+", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--records", type=int, default=RECORDS, help="default %(default)s")
    arguments = parser.parse_args()
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="broker-versions-") as scratch:
        for version in arguments.versions:
            directory = Path(scratch, version)
            directory.mkdir()
            found = try_version(version, directory, arguments.records)
            rows.append([version, *(said or "FAILED" for said in found.values())])
    print("\n".join(columns(["Kafka", *CHECKS], rows)), flush=True)
    return int(any("FAILED" in row for row in rows))


if __name__ == "__main__":
    # What it warns of is meant here: acks, and a broker that is away.
    logging.getLogger("cyproducer").setLevel(logging.ERROR)
    # As an exception, which ends the brokers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
