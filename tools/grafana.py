"""Makes the dashboard ``docs/grafana/cyproducer.json``: ``python -m tools.grafana`` writes it.

Owns the panels. Metrics are named as in ``metrics()``; their names in Prometheus come from
``observability/exports``. A name that does not exist, or is not exposed in that form, raises ``KeyError``.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cyproducer.observability.definitions import NODE, PRODUCER, TOPIC
from cyproducer.observability.exports import EXPORTS, Form

FILE = Path(__file__).parents[1] / "docs" / "grafana" / "cyproducer.json"

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3
_NAMES = {
    (group, one.definition.name, one.form): one for group, exports in EXPORTS.items() for one in exports
}
_CHOSEN = 'job=~"$job", instance=~"$instance", client_id=~"$client_id"'
_TOPICS = f'{_CHOSEN}, topic=~"$topic"'

Query = tuple[str, str]
"""An expression, and the legend of its series."""


def _series(group: str, name: str, form: Form, suffix: str = "") -> str:
    return f"{_NAMES[group, name, form].prometheus}{suffix}{{{_TOPICS if group == TOPIC else _CHOSEN}}}"


def _by(how: str, labels: str, expression: str) -> str:
    return f"{how} by ({labels}) ({expression})"


def rate(group: str, name: str, labels: str = "client_id") -> str:
    """The sum of counters' increases per second, for each value of ``labels``."""
    series = _series(group, name, Form.COUNTER, "_total")
    return _by("sum", labels, f"rate({series}[$__rate_interval])")


def gauge(name: str, how: str) -> str:
    return _by(how, "client_id", _series(PRODUCER, name, Form.GAUGE))


def average(group: str, name: str, labels: str = "client_id") -> str:
    """The average of a summary or a histogram over the interval."""
    form = next(form for form in (Form.SUMMARY, Form.HISTOGRAM) if (group, name, form) in _NAMES)
    total, count = (
        _by("sum", labels, f"rate({_series(group, name, form, suffix)}[$__rate_interval])")
        for suffix in ("_sum", "_count")
    )
    return f"{total} / {count}"


def quantile(share: float, name: str) -> str:
    series = _series(PRODUCER, name, Form.HISTOGRAM, "_bucket")
    return f"histogram_quantile({share}, {_by('sum', 'client_id, le', f'rate({series}[$__rate_interval])')})"


def quantiles(name: str) -> list[Query]:
    return [(quantile(share, name), f"{{{{client_id}}}} p{share * 100:g}") for share in (0.5, 0.99)]


def _rows() -> Iterable[tuple[str, list[tuple[str, str, str, list[Query]]]]]:
    """Each row as (title, panels), each panel as (title, unit, description, queries)."""
    one, topic, node = "{{client_id}}", "{{topic}}", "{{client_id}} node {{node}}"
    yield "Records", [
        ("Records acknowledged", "rps", "By producer.", [(rate(PRODUCER, "record-send-total"), one)]),
        ("Records acknowledged, by topic", "rps", "The ten topics with most.",
         [(f"topk(10, {rate(TOPIC, 'record-send-total', 'topic')})", topic)]),
        ("Records failed, by topic", "rps", "Accepted, then failed. Only the program can send them again.",
         [(f"topk(10, {rate(TOPIC, 'record-error-total', 'topic')})", topic)]),
        ("Records sent again, by topic", "rps", "Retries after errors that pass, such as a leader change.",
         [(f"topk(10, {rate(TOPIC, 'record-retry-total', 'topic')})", topic)]),
        ("Bytes acknowledged", "Bps", "As sent, that is, compressed.", [(rate(PRODUCER, "byte-total"), one)]),
        ("Compression", "percentunit", "Bytes as sent, divided by bytes before compression.",
         [(f"{rate(PRODUCER, 'byte-total')} / {rate(PRODUCER, 'uncompressed-byte-total')}", one)]),
    ]  # fmt: skip
    yield "Latency", [
        ("Acknowledgement", "s", "From a batch's creation to its acknowledgement.",
         quantiles("acknowledgement-latency-avg")),
        ("In the queue", "s", "From a batch's creation to its first request.",
         quantiles("record-queue-time-avg")),
        ("Produce requests", "s", "From a Produce request's creation to its response.",
         quantiles("request-latency-avg")),
        ("Slowest acknowledgement", "s", "The maximum of the last 30 to 60 seconds.",
         [(gauge("acknowledgement-latency-max", "max"), one)]),
        ("Produce requests, by broker", "s", "The average.",
         [(average(NODE, "request-latency-avg", "client_id, node"), node)]),
        ("Throttling, by broker", "s", "What the brokers' quotas delayed Produce requests by, on average.",
         [(average(NODE, "throttle-time-avg", "client_id, node"), node)]),
    ]  # fmt: skip
    yield "Batches", [
        ("Records per batch", "short", "",
         [(f"{rate(PRODUCER, 'record-send-total')} / {rate(PRODUCER, 'batch-total')}", one)]),
        ("Batch size", "bytes", "The average, as sent.",
         [(f"{rate(PRODUCER, 'byte-total')} / {rate(PRODUCER, 'batch-total')}", one)]),
        ("Batches split", "ops", "Batches that a broker found too large.",
         [(rate(PRODUCER, "batch-split-total"), one)]),
    ]  # fmt: skip
    used = f"1 - {gauge('buffer-available-bytes', 'sum')} / {gauge('buffer-total-bytes', 'sum')}"
    yield "Waiting", [
        ("Buffer in use", "percentunit", "Of buffer_memory. At 100 % send() waits.", [(used, one)]),
        ("Threads that wait for memory", "short", "The average: seconds of waiting per second.",
         [(rate(PRODUCER, "bufferpool-wait-time-ns-total"), one)]),
        ("Records without memory", "rps", "send() waited for max_block_ms and raised an error.",
         [(rate(PRODUCER, "buffer-exhausted-total"), one)]),
        ("Callbacks that are due", "short", "Records whose callbacks have not run.",
         [(gauge("callback-queue-size", "sum"), one)]),
        ("Oldest callback that is due", "s", "How long ago it became due.",
         [(gauge("callback-queue-lag", "max"), one)]),
        ("Threads that wait for callbacks", "short", "In send(). The average: seconds of waiting per second.",
         [(rate(PRODUCER, "callback-wait-time-ns-total"), one)]),
    ]  # fmt: skip
    yield "Transactions", [
        (title, "short", f"{call}. The average: seconds per second.",
         [(rate(PRODUCER, f"txn-{step}-time-ns-total"), one)])
        for title, step, call in (
            ("Threads that commit", "commit",
             "In commit_transaction() and prepare_transaction(), which wait for the records, too"),
            ("Threads that abort", "abort", "In abort_transaction()"),
            ("Threads that send offsets", "send-offsets", "In send_offsets_to_transaction()"),
            ("Threads that begin", "begin", "In begin_transaction(), which sends nothing"),
        )
    ]  # fmt: skip
    yield "Connections", [
        ("Requests, by broker", "reqps", "Of every kind.",
         [(rate(NODE, "request-total", "client_id, node"), node)]),
        ("Bytes written, by broker", "Bps", "",
         [(rate(NODE, "outgoing-byte-total", "client_id, node"), node)]),
        ("Produce requests in flight", "short", "", [(gauge("requests-in-flight", "sum"), one)]),
        ("Connections", "short", "", [(gauge("connection-count", "sum"), one)]),
        ("Connections lost", "ops", "Including idle ones, which are closed on purpose.",
         [(rate(PRODUCER, "connection-close-total"), one)]),
        ("Authentications failed", "ops", "TLS handshakes, too.",
         [(rate(PRODUCER, "failed-authentication-total"), one)]),
        ("Age of metadata", "s", "Exceeds metadata_max_age_ms if no broker answers. No value: there is none.",
         [(gauge("metadata-age", "max"), one)]),
    ]  # fmt: skip


def _panel(
    number: int, x: int, y: int, title: str, unit: str, text: str, queries: list[Query]
) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "description": text,
        "datasource": _SOURCE,
        "gridPos": {"h": _HEIGHT, "w": _WIDTH, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
            for i, (expression, legend) in enumerate(queries)
        ],
    }


def _variable(name: str, label: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, {name})"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in _rows():
        place = {"h": 1, "w": _WIDTH * _COLUMNS, "x": 0, "y": y}
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": place,
                "panels": [],
            }
        )
        y += 1
        for i, (name, unit, text, queries) in enumerate(row):
            x = i % _COLUMNS * _WIDTH
            panels.append(_panel(len(panels) + 1, x, y + i // _COLUMNS * _HEIGHT, name, unit, text, queries))
        y += -(-len(row) // _COLUMNS) * _HEIGHT
    sent = _NAMES[PRODUCER, "record-send-total", Form.COUNTER].sample
    of_topics = _NAMES[TOPIC, "record-send-total", Form.COUNTER].sample
    return {
        "uid": "cyproducer",
        "title": "Kafka producers (cyproducer)",
        "tags": ["kafka", "cyproducer"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                _variable("job", "Job", sent),
                _variable("instance", "Instance", sent),
                _variable("client_id", "Producer", sent),
                _variable("topic", "Topic", of_topics),
            ]
        },
        "panels": panels,
    }


def text() -> str:
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
