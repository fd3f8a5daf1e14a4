"""Reads the metrics of a ``Rig`` by their short names."""

from collections.abc import Callable

from cyproducer.observability.registry import Registry
from tools.harness.rig import Rig, Seen

WINDOW_MS = 30_000.0
"""The default length of a window. Two windows are kept."""


def registry(rig: Rig) -> Registry:
    return Registry(rig.accumulator, rig.sender)


def producer(rig: Rig) -> dict[str, float]:
    return registry(rig).snapshot()["producer-metrics"]


def node(rig: Rig, node_id: int) -> dict[str, float]:
    return registry(rig).snapshot()[f"producer-node-metrics.node-{node_id}"]


def topic(rig: Rig, name: str = "t") -> dict[str, float]:
    return registry(rig).snapshot()[f"producer-topic-metrics.{name}"]


def one(rig: Rig) -> Seen:
    (seen,) = rig.requests()
    return seen


def sent(rig: Rig, values: list[bytes], name: str = "t", then: Callable[[], object] = lambda: None) -> None:
    """Sends values as one batch, calls ``then`` while the batch is in flight, and acknowledges it."""
    for value in values:
        rig.send(name, value, partition=0)
    seen = one(rig)
    then()
    rig.answer(seen)
