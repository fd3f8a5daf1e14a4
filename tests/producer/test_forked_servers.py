"""A producer made before the fork, in gunicorn's workers: the application is loaded before they are forked.

Nothing here flushes, and records linger for longer than a test may take: the records in the broker were
drained by the end of the process that sent them.
"""

import json
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cyproducer.testing import EmbeddedBroker
from tests.forked import needs_fork, needs_module
from tests.programs import Program
from tests.reading import PARTITIONS, read_back

pytestmark = [needs_fork, needs_module("gunicorn")]

SERVER = """
import json, os, sys
from gunicorn.app.base import BaseApplication
from cyproducer.producer import KafkaProducer

producer = KafkaProducer(
    bootstrap_servers=sys.argv[1], linger_ms=300_000, delivery_timeout_ms=600_000, close_timeout_ms=30_000
)
# Every part of the producer is in use when the workers are forked, and a record waits in it.
producer.send("requests", b"parent's, sent")
producer.flush()
producer.send("requests", b"parent's, waiting")

def application(environ, start_response):
    path = environ["PATH_INFO"][1:]
    future = producer.send("requests", path.encode())
    if path == "get":
        future.get(30)
    elif path == "flush":
        producer.flush(30)
    elif path == "hang":
        os.write(1, b"hangs\\n")
        while True:
            pass
    said = b"%d" % os.getpid()
    start_response("200 OK", [("Content-Length", str(len(said)))])
    return [said]

class Server(BaseApplication):
    def load_config(self):
        for name, value in json.loads(sys.argv[2]).items():
            self.cfg.set(name, value)
    def load(self):
        return application

Server().run()
"""
PARENTS = [b"parent's, sent", b"parent's, waiting"]


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(brokers=2) as broker:
        broker.create_topic("requests", PARTITIONS)
        yield broker


@contextmanager
def serving(broker: EmbeddedBroker, **settings: object) -> Iterator[tuple[Program, tuple[str, int]]]:
    """Runs gunicorn on a socket that is open before it starts, so that no test has to wait for it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        given = {
            "bind": f"fd://{listening.fileno()}",
            "preload_app": True,
            "workers": 2,
            "control_socket_disable": True,
            **settings,
        }
        with Program(
            SERVER, broker.bootstrap_servers, json.dumps(given), pass_fds=(listening.fileno(),)
        ) as program:
            yield program, listening.getsockname()


class Request:
    """A request in progress: the worker that accepted it serves no other until ``finish``."""

    def __init__(self, address: tuple[str, int], path: str) -> None:
        self._socket = socket.create_connection(address, 30)
        self._socket.sendall(f"GET /{path} HTTP/1.1\r\nHost: localhost\r\n".encode())

        self._sent = False

    def send(self) -> None:
        """Ends the request, so that the application gets it."""
        if not self._sent:
            self._sent = True
            self._socket.sendall(b"Connection: close\r\n\r\n")

    def finish(self) -> str:
        """Returns the pid of the worker that responded."""
        self.send()
        with self._socket:
            answer = b""
            while data := self._socket.recv(4096):
                answer += data
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        return answer.partition(b"\r\n\r\n")[2].decode()


def compare(broker: EmbeddedBroker, program: Program, values: list[bytes]) -> None:
    """Checks that each record is in the broker once, and that no loss was logged."""
    assert "were lost" not in program.said
    values = [*PARENTS, *values]
    assert read_back(broker, "requests", len(values)) == Counter(values)


@pytest.mark.slow
def test_a_graceful_stop_of_gunicorn_drains_both_workers(broker: EmbeddedBroker) -> None:
    values = []
    with serving(broker) as (program, address):
        for number in range(10):
            # The worker with the first request is busy, so the other one accepts the second.
            first = Request(address, f"first-{number}")
            second = Request(address, f"second-{number}")
            pids = {second.finish(), first.finish()}
            assert len(pids) == 2
            values += [b"first-%d" % number, b"second-%d" % number]
        assert program.end(signal.SIGTERM) == 0, program.said
    compare(broker, program, values)


@pytest.mark.slow
def test_gunicorn_workers_with_threads_drain(broker: EmbeddedBroker) -> None:
    with serving(broker, worker_class="gthread", threads=4) as (program, address):
        requests = [Request(address, str(number)) for number in range(12)]
        assert all(request.finish() for request in requests)
        assert program.end(signal.SIGTERM) == 0, program.said
    compare(broker, program, [b"%d" % number for number in range(12)])


@pytest.mark.slow
@needs_module("gevent")
@pytest.mark.parametrize("preload", [False, True], ids=["loaded after the patches", "loaded before"])
def test_a_request_to_a_worker_of_gevent_waits_while_others_are_served(
    broker: EmbeddedBroker, preload: bool
) -> None:
    with serving(broker, workers=1, worker_class="gevent", preload_app=preload) as (program, address):
        # Its record lingers for minutes, unless the same worker serves the second request meanwhile.
        first = Request(address, "get")
        first.send()
        second = Request(address, "flush")
        assert second.finish() == first.finish()
        assert Request(address, "last").finish()
        assert program.end(signal.SIGTERM) == 0, program.said
    compare(broker, program, [b"get", b"flush", b"last"])


@pytest.mark.slow
@pytest.mark.parametrize("worker_class", ["sync", "gthread"])
def test_a_gunicorn_worker_with_a_request_limit_drains_and_is_replaced(
    broker: EmbeddedBroker, worker_class: str
) -> None:
    with serving(broker, workers=1, max_requests=2, worker_class=worker_class) as (program, address):
        pids = {Request(address, str(number)).finish() for number in range(8)}
        assert len(pids) >= 3
        assert program.end(signal.SIGTERM) == 0, program.said
    compare(broker, program, [b"%d" % number for number in range(8)])


@pytest.mark.slow
def test_a_quick_stop_of_gunicorn_drains(broker: EmbeddedBroker) -> None:
    with serving(broker) as (program, address):
        assert Request(address, "one").finish()
        assert program.end(signal.SIGQUIT) == 0, program.said
    compare(broker, program, [b"one"])


@pytest.mark.slow
def test_a_worker_that_gunicorn_aborts_after_its_timeout_drains(broker: EmbeddedBroker) -> None:
    with serving(broker, workers=1, timeout=1) as (program, address):
        request = Request(address, "hang")
        with pytest.raises((AssertionError, ConnectionError)):
            request.finish()
        assert "hangs" in program.hear("hangs") + "hangs"
        assert program.end(signal.SIGTERM) == 0, program.said
    assert "WORKER TIMEOUT" in program.said, program.said
    compare(broker, program, [b"hang"])
