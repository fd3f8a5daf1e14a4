"""What the tests of ``AIOKafkaProducer`` share: coroutine tests, a cluster, and responses that are held."""

import threading
from collections.abc import Iterator

import pytest

from tests.aio.running import pytest_pyfunc_call as pytest_pyfunc_call
from tests.scripted.scripted_broker import ScriptedCluster


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(orders=2) as running:
        yield running


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    """Holds responses until it is set: by the test, or when the test has failed."""
    event = threading.Event()
    yield event
    event.set()
