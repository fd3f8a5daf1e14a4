"""Metrics of a ``Rig``, by their short names."""

from collections.abc import Callable

from cyproducer.observability.registry import Registry
from tests.rig import Rig, Seen

WINDOW_MS = 30_000.0
"""As long as a window is by default; two are kept."""


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
    """Sends values as one batch, does ``then`` while they are at the broker, and has them acknowledged."""
    for value in values:
        rig.send(name, value, partition=0)
    seen = one(rig)
    then()
    rig.answer(seen)
