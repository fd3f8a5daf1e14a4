"""Memory that a backlog has left behind goes back to the system."""

import threading
from pathlib import Path

import pytest

from tests.programs import Program
from tests.scripted.scripted_broker import PRODUCE, Act, ScriptedCluster

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to measure memory"),
]

BACKLOG = """
import os, sys, time
from cyproducer import KafkaProducer

def resident():
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

producer = KafkaProducer(
    bootstrap_servers=sys.argv[1], buffer_memory=300 << 20, batch_size=1 << 20, request_timeout_ms=60_000,
    acks=1, enable_idempotence=False,
)
producer.send("orders", b"first").get(30)
before = resident()
value = os.urandom(100_000)
for _ in range(2100):
    producer.send("orders", value)
peak = resident()
print("full", flush=True)
producer.flush(60)
if sys.argv[2] == "open":
    end = time.monotonic() + 10
    while resident() > before + 20 and time.monotonic() < end:
        time.sleep(0.1)
else:
    producer.close()
print("left", peak - before, resident() - before, flush=True)
"""


@pytest.mark.parametrize("how", ["open", "closed"])
def test_a_backlog_of_200_mb_leaves_nothing(how: str) -> None:
    release = threading.Event()
    with ScriptedCluster(orders=1) as cluster:
        # The first record is not part of the backlog.
        cluster.act(PRODUCE, Act(), Act(hold=release))
        with Program(BACKLOG, *cluster.bootstrap_servers, how) as program:
            program.hear("full")
            release.set()
            peak, left = map(int, program.hear("left ").split())
    assert peak > 200
    assert left <= 20
