"""Creates producers for tests: with short timeouts, always closed, and checked for leftover threads.

No test should wait for a default timeout: all times here are short, and each test sets those it tests.
"""

import gc
import selectors
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cyproducer.base.user_thread import NAME
from cyproducer.producer import KafkaProducer
from tests.scripted.scripted_broker import PRODUCE, TIMEOUT_S, Act, Received, ScriptedCluster
from tools.harness.until import until

WAIT_S = TIMEOUT_S
"""How long a test waits for something that should happen at once."""


def options(cluster: ScriptedCluster | None = None, **given: Any) -> dict[str, Any]:
    """Returns the options that most tests need."""
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
    """Yields a producer, closes it at the end and checks that its threads have ended."""
    before = set(threading.enumerate())
    producer = KafkaProducer(**options(cluster, **given))
    try:
        yield producer
    finally:
        producer.close(0)
    await_end_of_threads(before)


def await_end_of_threads(before: set[threading.Thread]) -> None:
    """Waits for the end of the producers' threads that are not in ``before``; fails if one goes on."""

    def left() -> list[threading.Thread]:
        # A look-up cannot be interrupted: its thread ends when the look-up does.
        # The thread for users' code belongs to the process, and may be busy.
        return [
            thread
            for thread in threading.enumerate()
            if thread not in before and thread.name.startswith("cyproducer") and thread.name != NAME
        ]

    # Not by join(): a sender that ends may be about to start a thread, and one that starts cannot be joined.
    until(lambda: not left(), lambda: f"the end of {left()}")


def no_produce(received: Received) -> Act | None:
    """A script of brokers that answer no Produce request."""
    return Act(silent=True) if received.api_key == PRODUCE else None


class FailingSelector(selectors.SelectSelector):
    """Fails in the next wait, once it is asked to."""

    fail = threading.Event()

    def select(self, timeout: float | None = None) -> Any:
        if self.fail.is_set():
            raise LookupError("an unforeseen descriptor")
        return super().select(timeout)


class CollectingSelector(selectors.SelectSelector):
    """Runs the cycle collector once on the sender thread, after ``collect`` is set."""

    collect = threading.Event()
    collected = threading.Event()

    def select(self, timeout: float | None = None) -> Any:
        if self.collect.is_set() and not self.collected.is_set():
            gc.collect()
            self.collected.set()
        return super().select(timeout)
