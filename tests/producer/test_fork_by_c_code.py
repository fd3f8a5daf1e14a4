"""``fork()`` called by C code: none of Python's fork hooks runs in the child, which uses a producer."""

import pytest

from tests.forked import needs_fork
from tests.programs import run_to_exit
from tests.scripted.scripted_broker import PRODUCE, ScriptedCluster

pytestmark = [pytest.mark.timeout(60), needs_fork]

#: Each child makes ``first`` its first use of this package. It prints its outcome, and leaves by ``_exit``.
PROGRAM = """
import ctypes, os, sys
from cyproducer import KafkaProducer, confluent
from cyproducer._open_producers import Watched

servers, holds_gil, first = sys.argv[1], sys.argv[2] == "PyDLL", sys.argv[3]
options = dict(bootstrap_servers=servers, request_timeout_ms=5000, delivery_timeout_ms=8000)
producer = KafkaProducer(linger_ms=0, **options)
other = confluent.Producer({"bootstrap.servers": servers})
collected = KafkaProducer(**options)

def send():
    return producer.send("orders", b"child", partition=0).get(10).offset >= 0

def wait():
    try:
        waiting.get(10)
    except Exception as error:
        return "belongs to the parent process" in str(error) and send()

def call_back():
    try:
        waiting.add_callback(print)
    except Exception as error:
        return "belongs to the parent process" in str(error) and send()

def make():
    with KafkaProducer(**options) as fresh:
        return fresh.send("orders", b"child", partition=0).get(10).offset >= 0

def produce():
    other.produce("orders", b"child", partition=0)
    return other.flush(10) == 0 and send()

def collect():
    global collected
    del collected
    return send()

uses = {
    "send": send, "wait": wait, "call_back": call_back, "make": make, "produce": produce, "collect": collect,
    "flush": lambda: producer.flush(10) is None and send(),
    "close": lambda: producer.close(10) is None,
    "poll": lambda: other.poll(0) == 0 and produce(),
    "metrics": lambda: producer.metrics()["producer-metrics"]["record-send-total"] == 0 and send(),
    "watch": lambda: Watched().runtimes() == [] and send(),
    "send_many": lambda: producer.send_many("orders", [b"child"], partition=0).get(10) and send(),
}
collected.send("orders", b"parent", partition=0).get(10)
other.produce("orders", b"parent", partition=0)
other.flush(10)
# So that the sender thread stands by: a child that waits for a record would send it itself.
for _ in range(30):
    producer.send("orders", b"parent", partition=0).get(10)
waiting = producer.send("orders", b"waiting", partition=0) if first in ("wait", "call_back") else None
fork = getattr(ctypes, sys.argv[2])(None).fork
child = fork()
if not child:
    try:
        print("child", uses[first](), flush=True)
    except BaseException as error:
        print("child", repr(error), flush=True)
    os._exit(0)
for _ in range(30):
    producer.send("orders", b"parent", partition=0).get(10)
os.waitpid(child, 0)
producer.send("orders", b"parent", partition=0).get(10)
if waiting:
    waiting.get(10)
for each in (producer, collected, other):
    each.close()
print("parent True", os.getpid(), flush=True)
"""
USES = (
    "send", "wait", "call_back", "make", "produce", "collect", "flush", "close", "poll", "metrics", "watch",
    "send_many",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("first", USES)
def test_a_child_that_c_code_forked_is_a_producer_of_its_own(first: str) -> None:
    with ScriptedCluster(orders=1) as cluster:
        done = run_to_exit(PROGRAM, *cluster.bootstrap_servers, "PyDLL", first)
        assert done.stderr == ""
        lines = done.stdout.splitlines()
        assert lines[0] == "child True"
        assert lines[1].startswith("parent True")
        _no_connection_is_shared(cluster)


@pytest.mark.slow
def test_a_fork_without_the_gil() -> None:
    with ScriptedCluster(orders=1) as cluster:
        done = run_to_exit(PROGRAM, *cluster.bootstrap_servers, "CDLL", "send")
        assert done.stdout.splitlines()[0] == "child True"
        assert done.stderr == ""
        _no_connection_is_shared(cluster)


def _no_connection_is_shared(cluster: ScriptedCluster) -> None:
    # The parent's records have other values.
    children = {id(each.connection) for each in cluster.received(PRODUCE) if b"child" in each.frame}
    parents = {id(each.connection) for each in cluster.received(PRODUCE) if b"child" not in each.frame}
    assert not children & parents
