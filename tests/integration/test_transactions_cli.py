"""The commands that send in transactions, against a real Kafka: what readers of committed records see."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.integration.transaction_rig import TransactionRig
from tests.programs import program_environment
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.transactions import LEVELS, Transactions

pytestmark = pytest.mark.either_broker(slow=True)

WAIT_S = 60


@pytest.fixture
def rig(transactional_kafka: KafkaCluster, request: pytest.FixtureRequest) -> Iterator[TransactionRig]:
    Transactions(transactional_kafka).set_level(max(LEVELS))
    with TransactionRig(transactional_kafka, f"cli-{request.node.originalname}") as rig:
        yield rig


def command(rig: TransactionRig, name: str, topic: str, *more: str) -> subprocess.Popen[bytes]:
    servers = rig.cluster.bootstrap_servers
    return subprocess.Popen(
        [sys.executable, "-m", "cyproducer", name, "-b", servers, "-t", topic, *more],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=program_environment(),
    )  # fmt: skip


@pytest.mark.slow
def test_produce_commits_all_lines_or_none(rig: TransactionRig) -> None:
    topic = rig.topic(partitions=1)
    transactional = ["-X", f"transactional.id={rig.id()}"]
    with command(rig, "produce", topic, *transactional) as committing:
        _, told = committing.communicate(b"".join(b"%d\n" % number for number in range(1000)), WAIT_S)
    assert committing.returncode == 0, told
    assert told.startswith(b"1,000 records committed in ")
    committed = [b"%d" % number for number in range(1000)]
    assert rig.committed(topic, 1000) == [committed]

    with command(rig, "produce", topic, *transactional) as aborting:
        _, told = aborting.communicate(b"first\n" + b"x" * 2_000_000 + b"\n", WAIT_S)
    assert aborting.returncode == 1
    assert b"the transaction was aborted: none of its " in told

    with command(rig, "produce", topic, *transactional) as interrupted:
        assert interrupted.stdin is not None
        try:
            interrupted.stdin.write(b"written\n")
            interrupted.stdin.flush()
            # Until then nothing is to be aborted.
            rig.transactions.await_state(rig.id(), "Ongoing")
            interrupted.send_signal(signal.SIGTERM)
            _, told = interrupted.communicate(timeout=WAIT_S)
        finally:
            interrupted.kill()
    assert interrupted.returncode == 143, told
    assert b"the transaction was aborted: none of its 1 records is committed" in told
    assert rig.committed(topic) == [committed]
    assert rig.read(topic, 1001, "read_uncommitted")[0][-1] == b"written"


@pytest.mark.slow
def test_perf_commits_all_it_sends(rig: TransactionRig) -> None:
    topic = rig.topic()
    arguments = ["--num-records", "5000", "--record-size", "100", "--throughput", "10000"]
    transactional = ["--transactional-id", rig.id(), "--transaction-duration-ms", "100"]
    with command(rig, "perf", topic, *arguments, *transactional) as measured:
        out, told = measured.communicate(timeout=WAIT_S)
    assert (measured.returncode, told) == (0, b"")
    summary, commits = out.decode().splitlines()
    assert summary.startswith("5000 records sent, ")
    # Half a second of records, and a tenth for each transaction: fewer if the machine is slow.
    assert 2 <= int(commits.partition(" transactions committed, ")[0]) <= 6
    assert sum(map(len, rig.committed(topic, 5000))) == 5000
