"""Producers for tests: made with short times, and always closed, with a look at what they leave behind.

No test should wait out a default: every time here is short, and each test gives those it is about.
"""

import gc
import selectors
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cyproducer.producer import KafkaProducer
from cyproducer.user_thread import NAME
from tests.network.scripted_broker import TIMEOUT_S, ScriptedCluster

WAIT_S = TIMEOUT_S
"""How long a test waits for what should come at once."""


def options(cluster: ScriptedCluster | None = None, **given: Any) -> dict[str, Any]:
    """The options most tests want."""
    short: dict[str, Any] = {
        "retry_backoff_ms": 10,
        "retry_backoff_max_ms": 50,
        "reconnect_backoff_ms": 10,
        "reconnect_backoff_max_ms": 50,
        "request_timeout_ms": 5000,
        "max_block_ms": 10_000,
        "close_timeout_ms": 1000,
    }
    if cluster is not None:
        short["bootstrap_servers"] = cluster.bootstrap_servers
    return short | given


@contextmanager
def producing(cluster: ScriptedCluster | None = None, **given: Any) -> Iterator[KafkaProducer]:
    """A producer that is closed at the end, and whose threads must be gone then."""
    before = set(threading.enumerate())
    producer = KafkaProducer(**options(cluster, **given))
    try:
        yield producer
    finally:
        producer.close(0)
    for thread in threading.enumerate():
        # Name resolution can't be interrupted: its thread ends when it does.
        # That for users' code is the process's, and may be held up.
        if thread not in before and thread.name.startswith("cyproducer") and thread.name != NAME:
            thread.join(WAIT_S)
            assert not thread.is_alive(), f"{thread.name} is left behind"


class CollectingSelector(selectors.SelectSelector):
    """Runs the cycle collector on the sender's thread, once it is asked to."""

    collect = threading.Event()
    collected = threading.Event()

    def select(self, timeout: float | None = None) -> Any:
        if self.collect.is_set() and not self.collected.is_set():
            gc.collect()
            self.collected.set()
        return super().select(timeout)
