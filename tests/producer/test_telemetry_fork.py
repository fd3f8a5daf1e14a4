"""A process that forks while its producer imports what the first push of metrics needs."""

import sys
import threading
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

import pytest

from cyproducer import KafkaProducer
from cyproducer.testing import EmbeddedBroker
from tests.forked import in_child, needs_fork
from tools.harness.until import PATIENCE_S, until_blocked

pytestmark = needs_fork

MODULE = "cyproducer.observability.telemetry"


class Stopped(MetaPathFinder):
    """Stops the import of ``MODULE`` until ``go`` is set. The importing thread holds the module's lock."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go = threading.Event()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == MODULE:
            self.reached.set()
            assert self.go.wait(PATIENCE_S)


def test_a_child_of_a_process_that_imports_pushes_metrics_too(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = Stopped()
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.setattr(sys, "meta_path", [stopped, *sys.meta_path])
    forking = threading.current_thread()

    def go_on() -> None:
        until_blocked(forking)
        stopped.go.set()

    with EmbeddedBroker(topics={"t": 1}) as broker:
        broker.subscribe_telemetry("*", push_interval_ms=1)
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)

        def push() -> bytes:
            found = producer.client_instance_id(PATIENCE_S).bytes
            producer.close()
            return found

        assert stopped.reached.wait(PATIENCE_S)
        thread = threading.Thread(target=go_on)
        thread.start()
        child = in_child(push)
        thread.join(PATIENCE_S)
        producer.close()
        assert (child, True) in [(each.client_instance_id, each.terminating) for each in broker.telemetry()]
