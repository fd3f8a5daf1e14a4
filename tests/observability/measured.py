"""Reads the metrics of a ``Rig`` by their short names."""

from collections.abc import Callable

from cyproducer.observability.exports import EXPORTS, Form
from cyproducer.observability.registry import Registry
from tools.harness.rig import Rig, Seen

WINDOW_MS = 30_000.0
"""The default length of a window. Two windows are kept."""


SUFFIXES = {
    Form.COUNTER: ("_total",),
    Form.GAUGE: ("",),
    Form.SUMMARY: ("_sum", "_count"),
    Form.HISTOGRAM: ("_sum", "_count", "_bucket"),
}


def sample_names() -> set[str]:
    """The names of all samples for Prometheus; ``test_prometheus`` compares them with those of a scrape."""
    return {
        export.prometheus + suffix
        for exports in EXPORTS.values()
        for export in exports
        for suffix in SUFFIXES[export.form]
    }


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
