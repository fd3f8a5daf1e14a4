"""Compares ``docs/metrics.md`` with the result of ``metrics()`` and with the definitions."""

import re
from pathlib import Path

from cyproducer.observability.definitions import COUNT, OF_NODE, OF_PRODUCER, OF_TOPIC, metrics_as_markdown
from tests.observability.measured import registry, sent
from tools.harness.rig import Rig

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def documented() -> dict[str, dict[str, tuple[str, str]]]:
    """Group -> metric -> (unit, meaning), parsed from the page."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    # The names in other systems come before, in a table of their own.
    for line in DOCS.read_text().partition("## The metrics\n")[2].splitlines():
        if heading := re.fullmatch(r"### `(.+)`", line):
            group = found.setdefault(heading[1], {})
        elif row := re.fullmatch(r"\| `([a-z0-9-]+)`(?: \(not Kafka's\))? \| (.*) \| (.+) \|", line):
            assert row[1] not in group, f"{row[1]} is documented twice"
            group[row[1]] = row[2], row[3]
    return found


def test_the_page_documents_exactly_the_metrics_that_metrics_returns() -> None:
    with Rig({"orders": [7]}) as rig:
        sent(rig, [b"x"], "orders")
        snapshot = registry(rig).snapshot()
    given = {group: set(values) for group, values in snapshot.items()}
    page = {group.format(id=7, topic="orders"): set(metrics) for group, metrics in documented().items()}
    assert page == given
    assert len(page) == 4


def test_each_metric_has_a_meaning_and_a_unit_if_it_can_have_one() -> None:
    without_unit = set()
    for metrics in documented().values():
        for name, (unit, meaning) in metrics.items():
            assert len(meaning) > 10, name
            if not unit:
                without_unit.add(name)
    assert without_unit == {
        "compression-rate-avg",
        "compression-rate",
        "bufferpool-wait-ratio",
        "wakeup-total",
    }


def test_the_page_s_tables_match_the_definitions() -> None:
    assert DOCS.read_text().endswith(metrics_as_markdown())


def test_no_metric_is_defined_twice() -> None:
    for definitions in (OF_PRODUCER, OF_NODE, OF_TOPIC):
        names = [metric.name for metric in definitions]
        assert len(names) == len(set(names))
        assert len({metric.group for metric in definitions} | {COUNT}) == 2
