"""What the tests of ``cyproducer.confluent`` share: a cluster, and producers that are always closed."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cyproducer._runtime import open_runtimes
from cyproducer.confluent import Producer
from tests.aio.running import pytest_pyfunc_call as pytest_pyfunc_call
from tests.scripted.odd_servers import refusing_address
from tests.scripted.scripted_broker import PRODUCE, Act, ScriptedCluster

Make = Callable[..., Producer]


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(orders=1) as running:
        yield running


@pytest.fixture
def held(cluster: ScriptedCluster) -> Iterator[threading.Event]:
    """The response to the first Produce request is held until this is set."""
    event = threading.Event()
    cluster.act(PRODUCE, Act(hold=event))
    yield event
    event.set()


@pytest.fixture
def make(cluster: ScriptedCluster) -> Iterator[Make]:
    """Makes a producer of the cluster; with ``alone=True`` one that reaches no broker."""
    made: list[Producer] = []

    def made_with(conf: dict[str, Any] | None = None, *, alone: bool = False) -> Producer:
        servers = refusing_address() if alone else cluster.bootstrap_servers
        short = {"bootstrap.servers": servers, "linger.ms": 0, "retry.backoff.ms": 10}
        made.append(Producer(short | (conf or {})))
        return made[-1]

    yield made_with
    for producer in made:
        # Records without a report would keep close() waiting.
        if producer._path() is not None:
            producer.purge()
            producer.close()


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    """Ends the producers that a test leaves to the garbage collector, as programs of confluent-kafka do. They
    would go on closing beside later tests, which look for threads and producers."""
    yield
    for runtime in open_runtimes():
        runtime.close(0)
