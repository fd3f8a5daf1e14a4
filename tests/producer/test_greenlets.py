"""A producer in processes that gevent or eventlet has patched: other greenlets run while one waits.

In each wait here, another greenlet has to run before the broker answers: a wait that stopped the hub would
never end. Nothing depends on how fast that is.
"""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forked import needs_fork, needs_module
from tests.programs import Program
from tests.scripted.scripted_broker import METADATA, PRODUCE, Act, Received, ScriptedCluster
from tools.harness.tls import Authority

LIBRARIES = [
    pytest.param(
        name, marks=[needs_module(name), pytest.mark.filterwarnings("ignore::DeprecationWarning")], id=name
    )
    for name in ("gevent", "eventlet")
]
ORDERS = ["patched first", "imported first", "threads not patched"]

BEGIN = """
import sys, warnings
warnings.simplefilter("ignore")
library, order, *servers = sys.argv[1:]
if order == "imported first":
    import logging
    from cyproducer.producer import KafkaProducer
threads = order != "threads not patched"
if library == "gevent":
    import gevent.monkey
    gevent.monkey.patch_all(thread=threads)
    from gevent import Timeout, sleep, spawn
    from gevent.threadpool import ThreadPool
    in_thread = lambda function: ThreadPool(1).spawn(function).get()
    ended = lambda greenlet: greenlet.get()
else:
    import eventlet, eventlet.tpool
    eventlet.monkey_patch(**({} if threads else {"os": True, "select": True, "socket": True, "time": True}))
    from eventlet import Timeout, sleep, spawn
    in_thread = lambda function: eventlet.tpool.execute(function)
    ended = lambda greenlet: greenlet.wait()
import logging, os, signal, threading
from cyproducer import errors
from cyproducer.producer import KafkaProducer

def producing(**options):
    return KafkaProducer(bootstrap_servers=servers, retry_backoff_ms=10, max_block_ms=30_000, **options)

waits = False
def tick():
    # Nothing but the wait itself can let this run: the caller sets `waits` and waits at once.
    while not waits:
        sleep(0)
    for _ in range(3):
        sleep(0)
    print("ticked", flush=True)

def waiting(name, wait):
    global waits
    waits = False
    ticker = spawn(tick)
    sleep(0)
    waits = True
    outcome = wait()
    ended(ticker)
    print("ended", name, outcome, flush=True)
"""

WAITS = """
import asyncio
producer = producing(buffer_memory=200_000)
waiting("wait_ready", producer.wait_ready)
waiting("partitions_for", lambda: sorted(producer.partitions_for("orders")))
waiting("get", lambda: producer.send("orders", b"get").get(30).offset)

future = producer.send("orders", b"timeouts")
try:
    with Timeout(0.05):
        future.get()
except Timeout:
    print("ended", "Timeout")
try:
    future.get(0.05)
except errors.KafkaTimeoutError:
    print("ended", "timeout")
waiting("flush", lambda: producer.flush(30))

shared = producer.send("orders", b"shared")
before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
greenlets = [spawn(shared.get, 30) for _ in range(500)]
def all_of_them():
    outcomes = [ended(greenlet) for greenlet in greenlets]
    return len(outcomes)
def descriptors():
    sleep(0)
    return len(os.listdir("/proc/self/fd")) - before if before else 0
sleep(0.01)
print("ended", "descriptors", descriptors() < 50)
waiting("500 greenlets", all_of_them)

bulk = producer.send_many("orders", [b"1", b"2", b"3"])
waiting("rows", lambda: bulk.get(30).count)
late = producer.send("orders", b"as_concurrent")
waiting("as_concurrent", lambda: late.as_concurrent().result(30).offset)
late = producer.send("orders", b"thread")
waiting("a real thread", lambda: in_thread(lambda: late.get(30)).topic)
late = producer.send("orders", b"callback")
late.add_callback(lambda metadata: None)
waiting("flush with a callback", lambda: producer.flush(30))

# A record takes more than half of the memory, so the next one waits.
producer.send("orders", bytes(120_000))
waiting("memory", lambda: producer.send("orders", bytes(120_000)).partition)
waiting("flush of that", lambda: producer.flush(30))
producer.send("orders", bytes(120_000))
waiting("memory for rows", lambda: producer.send_many("orders", [bytes(120_000)]).is_done)
waiting("flush of rows", lambda: producer.flush(30))
waiting("metadata for rows", lambda: producer.send_many("rows", [b"1"]).is_done)
waiting("flush of these rows", lambda: producer.flush(30))
async def awaiting():
    return (await late).topic
late = producer.send("orders", b"await")
waiting("await", lambda: asyncio.run(awaiting()))
producer.send("orders", b"closing")
waiting("close", lambda: producer.close(30))

# Records without metadata may take an eighth of the memory per topic.
producer = producing(buffer_memory=200_000)
waiting("a second producer", producer.wait_ready)
producer.send("parked", bytes(20_000))
waiting("parking", lambda: producer.send("parked", bytes(20_000)).topic)
print("open", flush=True)
producer.close(30)
print("ended all", flush=True)
"""
ENDED = """\
wait_ready None
partitions_for [0]
get 0
Timeout
timeout
flush None
descriptors True
500 greenlets 500
rows 3
as_concurrent 6
a real thread orders
flush with a callback None
memory 0
flush of that None
memory for rows False
flush of rows None
metadata for rows False
flush of these rows None
await orders
close None
a second producer None
parking parked
all""".splitlines()


class Held:
    """Holds the responses with metadata and to produce requests until the program has said that it ticked."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self._cluster = cluster
        self._now = threading.Event()
        self._holds = False
        cluster.script = self._act

    def _act(self, received: Received) -> Act | None:
        if received.api_key not in (PRODUCE, METADATA):
            return None
        self._holds = True
        return Act(hold=self._now)

    def follow(self, program: Program) -> None:
        """Reads the program's lines to the last one."""
        while program.hear("") != "ended all":
            if program.said.endswith("open\n"):
                self._cluster.script = lambda received: None
                self._now.set()
            elif program.said.endswith("ticked\n"):
                # The request may not be here yet.
                self._cluster.wait_for(lambda: self._holds)
                with self._cluster.changed:
                    before, self._now, self._holds = self._now, threading.Event(), False
                before.set()


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(orders=1, rows=1, parked=1) as cluster:
        yield cluster


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.slow
def test_other_greenlets_run_while_one_waits(cluster: ScriptedCluster, library: str, order: str) -> None:
    held = Held(cluster)
    with Program(BEGIN + WAITS, library, order, *cluster.bootstrap_servers) as program:
        held.follow(program)
        assert program.end() == 0, program.said
    ended = [line.removeprefix("ended ") for line in program.said.splitlines() if line.startswith("ended ")]
    assert ended == ENDED


EXIT = """
producer = producing(linger_ms=300_000, delivery_timeout_ms=600_000, close_timeout_ms=30_000)
producer.send("orders", b"1").add_callback(lambda metadata: print("called back", flush=True))
"""


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.slow
def test_the_exit_of_a_patched_process_drains(cluster: ScriptedCluster, library: str, order: str) -> None:
    with Program(BEGIN + EXIT, library, order, *cluster.bootstrap_servers) as program:
        assert program.end() == 0, program.said
    assert program.said == "called back\n"
    assert cluster.topics["orders"].values == [b"1"]


INTERRUPTS = """
closed_by = []
def close(number, frame):
    producer.close(30)
    closed_by.append(number)
signal.signal(signal.SIGTERM, close)
producer = producing(linger_ms=300_000, delivery_timeout_ms=600_000)
future = producer.send("orders", b"1")

def signalled(wait):
    global waits
    waits = False
    spawn(tick)
    sleep(0)
    waits = True
    return wait()

try:
    signalled(future.get)
except KeyboardInterrupt:
    print("interrupted", future.is_done, flush=True)
print("offset", signalled(lambda: future.get(30)).offset)
# The handler may run in a greenlet that goes on later.
while not closed_by:
    sleep(0.01)
"""


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.slow
def test_signals_end_a_greenlets_wait_and_may_close(cluster: ScriptedCluster, library: str) -> None:
    with Program(BEGIN + INTERRUPTS, library, "patched first", *cluster.bootstrap_servers) as program:
        for number in (signal.SIGINT, signal.SIGTERM):
            program.hear("ticked")
            # Nothing runs in the program any more: its hub waits.
            os.kill(program.pid, number)
        assert program.end() == 0, program.said
    # gevent prints the interrupt, too.
    assert [line for line in program.said.splitlines() if line.startswith(("interrupted", "offset"))] == [
        "interrupted False",
        "offset 0",
    ]


CLOSES = """
from cyproducer._runtime import on_end
told, closing = [], []
on_end.append(told.append)
class Lines(logging.Handler):
    def emit(self, record):
        line = record.getMessage()
        if "close(" in line:
            print("lost", "1 record not acknowledged in time and failed: 1 of 'orders'" in line)
logging.getLogger("cyproducer").addHandler(Lines())
logging.getLogger("cyproducer").propagate = False
producer = producing()
timeouts = [float(servers.pop()), float(servers.pop())]
producer.wait_ready(30)
future = producer.send("orders", b"1")
future.add_callback(lambda metadata: print("called back"))
def close(timeout):
    closing.append(timeout)
    producer.close(timeout)
    return future.is_done
greenlets = [spawn(close, timeout) for timeout in timeouts]
while len(closing) < 2:
    sleep(0)
print("closing", flush=True)
print([ended(greenlet) for greenlet in greenlets], len(told))
"""


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("timeouts", [("30", "30"), ("30", "0.1")])
@pytest.mark.slow
def test_greenlets_may_close_one_producer_at_the_same_time(
    cluster: ScriptedCluster, library: str, order: str, timeouts: tuple[str, str]
) -> None:
    answer = threading.Event()
    cluster.script = lambda received: Act(hold=answer) if received.api_key == PRODUCE else None
    with Program(BEGIN + CLOSES, library, order, *cluster.bootstrap_servers, *timeouts) as program:
        program.hear("closing")
        in_time = timeouts == ("30", "30")
        if in_time:
            answer.set()
        assert program.end() == 0, program.said
    answer.set()
    # What is lost is told once, and so is the end.
    first, *rest = program.said.splitlines()
    assert (first, rest) == ("closing", ["called back" if in_time else "lost True", "[True, True] 1"])


FORK = """
producer = producing(linger_ms=300_000, delivery_timeout_ms=600_000)
future = producer.send("orders", b"parent's")
parent = os.getpid()
def get():
    try:
        return os.getpid() == parent, future.get(30).offset
    except errors.IllegalStateError as error:
        return os.getpid() == parent, type(error).__name__
waiter = spawn(get)
sleep(0)
if os.fork() == 0:
    own = producer.send("orders", b"child's")
    flushing = spawn(producer.flush, 30)
    outcome = own.get(30)
    print("child", ended(waiter), flush=True)
    ended(flushing)
    producer.close()
    os._exit(0)
os.wait()
producer.flush(30)
print("parent", ended(waiter), flush=True)
"""


@needs_fork
@needs_module("gevent")
@pytest.mark.slow
def test_a_forked_child_of_gevent_goes_on_with_copies_of_the_greenlets(cluster: ScriptedCluster) -> None:
    with Program(BEGIN + FORK, "gevent", "patched first", *cluster.bootstrap_servers) as program:
        assert program.end() == 0, program.said
    assert program.said == "child (False, 'IllegalStateError')\nparent (True, 1)\n"
    assert cluster.topics["orders"].values == [b"child's", b"parent's"]


LOGGING = """
from cyproducer.base.unpatched import get_ident
from cyproducer.base.log import Log
from cyproducer.base.user_thread import user_thread
emitted = []
threads = set()
class Handler(logging.Handler):
    def emit(self, record):
        emitted.append(record.getMessage())
        threads.add(get_ident())
        sleep(0.001)
logger = logging.getLogger("cyproducer")
logger.addHandler(Handler())
logger.propagate = False
logger.setLevel(logging.INFO)
producer = producing()
log = Log("cyproducer", "x")
def application():
    for _ in range(50):
        logger.info("application")
greenlets = [spawn(application) for _ in range(3)]
for _ in range(50):
    log.info("sender")
    sleep(0.001)
for greenlet in greenlets:
    ended(greenlet)
print(user_thread.drain(30), sum("sender" in line for line in emitted), emitted.count("application"))
# A second thread would hold a handler's lock while this hub has nothing else to wait for, and gives up.
print(threads == {get_ident()})
producer.close()
"""


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.slow
def test_log_handlers_locks_are_shared_with_the_applications_greenlets(
    cluster: ScriptedCluster, library: str
) -> None:
    with Program(BEGIN + LOGGING, library, "patched first", *cluster.bootstrap_servers) as program:
        assert program.end() == 0, program.said
    assert program.said == "True 50 150\nTrue\n"


LATE = """
producer = producing(linger_ms=300_000, delivery_timeout_ms=600_000)
future = producer.send("orders", b"1")
if library == "gevent":
    gevent.monkey.patch_all()
else:
    eventlet.monkey_patch()
def flush():
    while not waits:
        sleep(0)
    producer.flush(30)
waits = False
flushing = spawn(flush)
sleep(0)
waits = True
print(future.get(30).offset, flush=True)
ended(flushing)
producer.close(30)
"""


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.slow
def test_a_process_may_be_patched_after_its_producer_was_made(cluster: ScriptedCluster, library: str) -> None:
    late = BEGIN.replace("gevent.monkey.patch_all(thread=threads)", "").replace(
        "eventlet.monkey_patch(**", "dict(**"
    )
    assert late.count("patch") < BEGIN.count("patch")
    with Program(late + LATE, library, "imported first", *cluster.bootstrap_servers) as program:
        assert program.end() == 0, program.said
    # The rest is what threading says at the end of a thread that was started before the patches.
    assert program.said.startswith("0\n")


OVER_TLS = """
options = {"security_protocol": "SSL", "ssl_cafile": servers.pop()}
producer = producing(**options)
producer.wait_ready(30)
print("fast", producer.metrics()["producer-metrics"]["tls-connection-slow-count"], flush=True)
futures = [producer.send("orders", b"%d" % number) for number in range(100)]
producer.flush(30)
print("ended", [future.get(30).offset for future in futures] == list(range(100)), flush=True)
producer.close(30)
"""


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.slow
def test_records_go_over_tls_in_a_patched_process(library: str, order: str, tmp_path: Path) -> None:
    authority = Authority()
    with ScriptedCluster(tls=authority.server(), orders=1) as cluster:
        server = cluster.nodes[1].address.replace("127.0.0.1", "localhost")
        trusted = str(authority.file(tmp_path))
        with Program(BEGIN + OVER_TLS, library, order, server, trusted) as program:
            # Encrypted without the GIL, as in any other process.
            assert program.hear("fast ") == "0"
            assert program.hear("ended ") == "True"
            assert program.end() == 0
