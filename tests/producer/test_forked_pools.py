"""A producer made before the fork, in the workers of Celery and of billiard, Celery's multiprocessing.

Nothing here flushes, and records linger for longer than a test may take: the records in the broker were
drained by the end of the process that sent them.
"""

import re
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from cyproducer.testing import EmbeddedBroker
from tests.forked import needs_fork, needs_module
from tests.programs import Program, run_to_exit
from tests.reading import PARTITIONS, read_back

pytestmark = [needs_fork, needs_module("celery")]

OPTIONS = {"linger_ms": 300_000, "delivery_timeout_ms": 600_000, "close_timeout_ms": 30_000}

PARENT = f"""
import os, sys
from cyproducer.producer import KafkaProducer
producer = KafkaProducer(bootstrap_servers=sys.argv[1], **{OPTIONS})
# Every part of the producer is in use when the workers are forked, and a record waits in it.
producer.send("tasks", b"parent's, sent")
producer.flush()
producer.send("tasks", b"parent's, waiting")
"""
PARENTS = [b"parent's, sent", b"parent's, waiting"]


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(brokers=2) as broker:
        broker.create_topic("tasks", PARTITIONS)
        yield broker


BILLIARD = """
import billiard, billiard.pool
context = billiard.get_context("fork")
meeting = context.Barrier(2)
def send(number):
    if number < 2:
        # So that each worker sends something.
        meeting.wait(20)
    producer.send("tasks", b"task %d" % number)
    return os.getpid()
def last(pid, exitcode):
    producer.send("tasks", b"last of %d" % pid)
"""

POOL = """
hooks = {"on_process_exit": last} if sys.argv[2] == "hooked" else {}
pool = billiard.pool.Pool(2, maxtasksperchild=int(sys.argv[3]) or None, context=context, **hooks)
results = [pool.apply_async(send, (number,)) for number in range(8)]
print(*sorted({result.get(20) for result in results}))
pool.close()
pool.join()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("hooks", "tasks_per_child"), [("plain", 0), ("hooked", 0), ("hooked", 2)])
def test_workers_of_a_billiard_pool_drain_when_they_end(
    broker: EmbeddedBroker, hooks: str, tasks_per_child: int
) -> None:
    done = run_to_exit(PARENT + BILLIARD + POOL, broker.bootstrap_servers, hooks, str(tasks_per_child))
    assert done.returncode == 0, done.stderr
    pids = done.stdout.split()
    assert len(pids) == (4 if tasks_per_child else 2)
    values = [*PARENTS, *(b"task %d" % number for number in range(8))]
    if hooks == "hooked":
        values += [b"last of %s" % pid.encode() for pid in pids]
    found = read_back(broker, "tasks", len(values))
    # A worker that was started at the last moment also sends its last record.
    assert {value: n for value, n in found.items() if value in values} == Counter(values)
    assert all(value.startswith(b"last of ") for value in found if value not in values)


IDLE = """
pool = billiard.pool.Pool(1, context=context, on_process_exit=last)
print(pool._pool[0].pid)
pool.close()
pool.join()
"""


@pytest.mark.slow
def test_a_worker_drains_records_that_it_sends_at_its_exit(broker: EmbeddedBroker) -> None:
    done = run_to_exit(PARENT + BILLIARD + IDLE, broker.bootstrap_servers)
    assert done.returncode == 0, done.stderr
    values = [*PARENTS, b"last of " + done.stdout.strip().encode()]
    assert read_back(broker, "tasks", 3) == Counter(values)


PROCESS = """
import sys
child = context.Process(target=send, args=(7,))
child.start()
child.join()
print(child.exitcode)
"""


@pytest.mark.slow
def test_the_end_of_a_billiard_process_drains(broker: EmbeddedBroker) -> None:
    done = run_to_exit(PARENT + BILLIARD + PROCESS, broker.bootstrap_servers)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
    values = [*PARENTS, b"task 7"]
    assert read_back(broker, "tasks", 3) == Counter(values)


CELERY = """
import time
from contextlib import suppress
from socket import timeout
import billiard, celery, celery.signals
from celery.worker.state import active_requests
from kombu.transport import memory

class Transport(memory.Transport):
    "Celery's usual pool is the one of its event loop, which goes with transports that know it."
    implements = memory.Transport.implements.extend(asynchronous=True)
    def register_with_event_loop(self, connection, loop):
        def look():
            with suppress(timeout):
                while True:
                    self.drain_events(connection, 0.001)
        loop.on_tick.add(look)
        loop.on_tick.add(say_when_all_are_accepted)
        loop.call_repeatedly(0.02, look)

app = celery.Celery("orders", broker="memory://")
app.conf.broker_transport = __name__ + ":Transport"
app.conf.worker_hijack_root_logger = False
app.conf.worker_redirect_stdouts = False
meeting = billiard.get_context("fork").Barrier(2)
what, count = sys.argv[2], int(sys.argv[3])

def say(*words):
    # In one write: several processes print.
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def say_when_all_are_accepted():
    # A cold shutdown interrupts only the tasks that the worker knows to be started. It may learn of the start
    # a tick after the task's own output; a task that is not interrupted would sleep to its end.
    if what == "stay" and len(active_requests) == count:
        say("accepted", count)

@app.task
def send(number):
    if number < 2:
        meeting.wait(20)
    producer.send("tasks", b"task %d" % number)
    say("sent by", os.getpid())
    if what == "stay":
        time.sleep(100)

@celery.signals.worker_process_shutdown.connect
def last(pid, **rest):
    producer.send("tasks", b"last of %d" % pid)
    say("ends", pid)

@celery.signals.worker_ready.connect
def begin(sender, **rest):
    say("pool", type(sender.pool._pool).__name__)
    for number in range(count):
        send.delay(number)

app.worker_main([
    *"worker --pool prefork --concurrency 2 --without-gossip --without-mingle --without-heartbeat".split(),
    *sys.argv[4:],
])
"""


def run_worker(
    broker: EmbeddedBroker, what: str, count: int, with_signal: signal.Signals, *options: str
) -> Counter[str]:
    """Runs tasks in Celery's worker, ends it by a signal, and compares the records in the broker.

    Returns the number of tasks per process, by pid.
    """
    with Program(PARENT + CELERY, broker.bootstrap_servers, what, str(count), *options) as program:
        assert program.hear("pool ") == "AsynPool"
        done = Counter(program.hear("sent by ") for _ in range(count))
        if what == "stay":
            program.hear("accepted ")
        assert program.end(with_signal) == 0, program.said
    assert "were lost" not in program.said
    ended = re.findall(r"ends (\d+)\n", program.said)
    assert set(ended) >= set(done)
    values = [*PARENTS, *(b"task %d" % number for number in range(count))]
    values += [b"last of %s" % pid.encode() for pid in ended]
    assert read_back(broker, "tasks", len(values)) == Counter(values)
    return done


@pytest.mark.slow
def test_a_warm_shutdown_of_celery_drains_its_workers(broker: EmbeddedBroker) -> None:
    assert len(run_worker(broker, "return", 20, signal.SIGTERM)) == 2


@pytest.mark.slow
def test_a_celery_worker_with_a_task_limit_drains_and_is_replaced(
    broker: EmbeddedBroker,
) -> None:
    done = run_worker(broker, "return", 8, signal.SIGTERM, "--max-tasks-per-child", "2")
    assert max(done.values()) == 2


@pytest.mark.slow
def test_a_cold_shutdown_of_celery_drains_the_records_of_interrupted_tasks(broker: EmbeddedBroker) -> None:
    assert len(run_worker(broker, "stay", 2, signal.SIGQUIT)) == 2
