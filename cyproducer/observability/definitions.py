"""Defines all metrics: name, group, unit, kind, meaning, and how to compute each from the C counters.

Owns one ``Definition`` per metric. ``metrics()``, what exporters expose (``exports``) and the tables of
``docs/metrics.md`` are generated from these, and tests compare them. Does not count (``base/meters``) or read
counters (``accumulator/metric_snapshot``).

A metric has Kafka's name if Kafka has that metric. *Recent* means the latest ``metrics_num_samples`` windows
of ``metrics_sample_window_ms`` each, the current one included.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from cyproducer.accumulator.metric_snapshot import Reading
from cyproducer.accumulator.record_accumulator import RecordAccumulator
from cyproducer.records.record_batch import HEADER_BYTES

PRODUCER = "producer-metrics"
NODE = "producer-node-metrics.node-{id}"
TOPIC = "producer-topic-metrics.{topic}"
COUNT = "kafka-metrics-count"

_MS = 1e-6
"""Nanoseconds to milliseconds."""

AVERAGE_RECENT = ", average, recent"
"""The end of an average's meaning."""

_UNCOMPRESSED = "Bytes of acknowledged batches before compression"


class Kind(Enum):
    """The kind of a metric's value. Exporters choose the form by it."""

    TOTAL = "only grows"
    RATE = "the recent increase of totals, per second"
    AVERAGE = "the recent increase of one sum, divided by that of another"
    MAXIMUM = "the greatest recent value"
    PERCENTILE = "a percentile of recent times"
    NOW = "a value that goes up and down"


class Host(Protocol):
    """Provides the metrics that are not counters."""

    @property
    def accumulator(self) -> RecordAccumulator: ...
    @property
    def sender(self) -> Any: ...
    def metadata_age_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric. ``group`` contains ``{id}`` or ``{topic}`` if there is one per broker or per topic."""

    group: str
    name: str
    unit: str
    kind: Kind
    meaning: str
    value: Callable[[Reading, Host], float]
    kafkas: bool = True
    """Whether Kafka has a metric of this name. If not, only cyproducer has it."""
    counters: tuple[str, ...] = ()
    """The counters of ``base/meters`` that it is computed from. For an average: the sum, then the count."""
    scale: float = 1
    """The factor from the unit of the first of these to ``unit``."""
    exported: str = ""
    """The name that exporters use instead of ``name``, if ``name`` breaks their conventions."""


def _total(group: str, name: str, sum: str, unit: str, meaning: str, kafkas: bool = True) -> Definition:
    return Definition(
        group,
        name,
        unit,
        Kind.TOTAL,
        f"{meaning}, since the start",
        lambda r, h: r.total(sum),
        kafkas,
        (sum,),
    )


def _rated(
    group: str, name: str, sum: str, unit: str, meaning: str, kafkas: bool = True
) -> Iterator[Definition]:
    yield Definition(
        group, f"{name}-rate", f"{unit}/s", Kind.RATE, f"{meaning}, per second, recent",
        lambda r, h: r.rate(sum), kafkas, (sum,),
    )  # fmt: skip
    yield _total(group, f"{name}-total", sum, unit, meaning, kafkas)


def _average(
    group: str,
    name: str,
    sum: str,
    count: str,
    unit: str,
    meaning: str,
    scale: float = 1,
    kafkas: bool = True,
) -> Definition:
    return Definition(
        group, name, unit, Kind.AVERAGE, f"{meaning}{AVERAGE_RECENT}",
        lambda r, h: r.average(sum, count) * scale, kafkas, (sum, count), scale,
    )  # fmt: skip


def _greatest(
    group: str, name: str, peak: str, unit: str, meaning: str, scale: float = 1, kafkas: bool = True
) -> Definition:
    return Definition(
        group, name, unit, Kind.MAXIMUM, f"{meaning}, maximum, recent",
        lambda r, h: r.peak(peak) * scale, kafkas, (peak,), scale,
    )  # fmt: skip


def _percentiles(name: str, timed: str, meaning: str) -> Iterator[Definition]:
    for suffix, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999)):
        yield Definition(
            PRODUCER,
            f"{name}-{suffix}",
            "ms",
            Kind.PERCENTILE,
            f"{meaning}, {share * 100:g}th percentile, within 1.6 %, recent",
            lambda r, h, share=share: r.percentile(timed, share) * _MS,  # type: ignore[misc]
            False,
            (timed,),
            _MS,
        )


def _now(
    name: str,
    unit: str,
    meaning: str,
    value: Callable[[Host], float],
    kafkas: bool = True,
    exported: str = "",
) -> Definition:
    read: Callable[[Reading, Host], float] = lambda r, h: value(h)  # noqa: E731
    return Definition(PRODUCER, name, unit, Kind.NOW, meaning, read, kafkas, exported=exported)


def _record_size(r: Reading, h: Host) -> float:
    records = r.recent("records_sent")
    size = r.recent("raw_bytes") - HEADER_BYTES * r.recent("batches_sent")
    return size / records if records else math.nan


def _producer() -> Iterator[Definition]:
    yield from _rated(PRODUCER, "record-send", "records_sent", "records", "Records acknowledged")
    yield from _rated(
        PRODUCER, "record-error", "records_failed", "records", "Records that were accepted and then failed"
    )
    yield from _rated(
        PRODUCER, "record-retry", "records_retried", "records", "Records requeued to be sent again, each time"
    )
    yield Definition(
        PRODUCER, "record-size-avg", "bytes", Kind.AVERAGE,
        f"Record size in its batch before compression{AVERAGE_RECENT}", _record_size,
        counters=("raw_bytes", "records_sent", "batches_sent"),
    )  # fmt: skip
    yield _greatest(
        PRODUCER, "record-size-max", "record_bytes", "bytes", "Record size in its batch before compression"
    )
    yield _average(
        PRODUCER, "records-per-request-avg", "records_requested", "produce_requests", "records",
        "Records per Produce request",
    )  # fmt: skip
    queue = "Time from a batch's creation to its first request"
    yield _average(
        PRODUCER, "record-queue-time-avg", "queue_ns", "batches_queued", "ms", queue, _MS
    )  # fmt: skip
    yield _greatest(PRODUCER, "record-queue-time-max", "queue_ns", "ms", queue, _MS)
    yield from _percentiles("record-queue-time", "queue_ns", queue)
    acknowledgement = "Time from a batch's creation to its acknowledgement"
    yield _average(
        PRODUCER, "acknowledgement-latency-avg", "acknowledged_ns", "batches_sent", "ms", acknowledgement,
        _MS, False,
    )  # fmt: skip
    yield _greatest(
        PRODUCER, "acknowledgement-latency-max", "acknowledged_ns", "ms", acknowledgement, _MS, False
    )
    yield from _percentiles("acknowledgement-latency", "acknowledged_ns", acknowledgement)

    yield _average(
        PRODUCER, "batch-size-avg", "batch_bytes", "batches_sent", "bytes", "Acknowledged batch size as sent"
    )
    yield _greatest(PRODUCER, "batch-size-max", "batch_bytes", "bytes", "Acknowledged batch size as sent")
    yield from _rated(
        PRODUCER, "batch-split", "batches_split", "batches", "Batches that were too large and were split"
    )
    yield _total(PRODUCER, "batch-total", "batches_sent", "batches", "Batches acknowledged", False)
    yield _average(
        PRODUCER, "records-per-batch-avg", "records_sent", "batches_sent", "records",
        "Records per acknowledged batch", kafkas=False,
    )  # fmt: skip
    yield from _rated(PRODUCER, "byte", "batch_bytes", "bytes", "Bytes of acknowledged batches as sent")
    yield _total(PRODUCER, "uncompressed-byte-total", "raw_bytes", "bytes", _UNCOMPRESSED, False)
    yield _average(
        PRODUCER, "compression-rate-avg", "batch_bytes", "raw_bytes", "",
        "Bytes of acknowledged batches as sent, divided by their bytes before compression",
    )  # fmt: skip

    yield from _rated(
        PRODUCER, "request", "requests", "requests", "Requests of every kind, completely written"
    )
    yield from _rated(
        PRODUCER, "produce-request", "produce_requests", "requests", "Produce requests created", False
    )
    yield from _rated(PRODUCER, "response", "responses", "responses", "Responses of every kind")
    yield _average(PRODUCER, "request-size-avg", "request_bytes", "requests", "bytes", "Size of a request")
    yield _greatest(PRODUCER, "request-size-max", "request_bytes", "bytes", "Size of a request")
    latency = "Time from a Produce request's creation to its response"
    yield _average(PRODUCER, "request-latency-avg", "latency_ns", "produce_responses", "ms", latency, _MS)
    yield _greatest(PRODUCER, "request-latency-max", "latency_ns", "ms", latency, _MS)
    yield from _percentiles("request-latency", "latency_ns", latency)
    yield _now(
        "requests-in-flight", "requests", "Produce requests without a response, now",
        lambda h: h.sender.counters()["in_flight"],
    )  # fmt: skip
    throttle = "Throttle time in the brokers' responses to Produce requests"
    yield _average(PRODUCER, "produce-throttle-time-avg", "throttle_ms", "produce_responses", "ms", throttle)
    yield _greatest(PRODUCER, "produce-throttle-time-max", "throttle_ms", "ms", throttle)
    # The same under kafka-python's names.
    yield _average(
        PRODUCER, "throttle-time-avg", "throttle_ms", "produce_responses", "ms", throttle, kafkas=False
    )
    yield _greatest(PRODUCER, "throttle-time-max", "throttle_ms", "ms", throttle, kafkas=False)
    yield from _rated(PRODUCER, "outgoing-byte", "out_bytes", "bytes", "Bytes written to sockets")
    yield from _rated(PRODUCER, "incoming-byte", "in_bytes", "bytes", "Bytes read from sockets")
    yield Definition(
        PRODUCER, "network-io-rate", "messages/s", Kind.RATE, "Requests and responses, per second, recent",
        lambda r, h: r.rate("requests") + r.rate("responses"), counters=("requests", "responses"),
    )  # fmt: skip
    yield Definition(
        PRODUCER, "network-io-total", "messages", Kind.TOTAL, "Requests and responses, since the start",
        lambda r, h: r.total("requests") + r.total("responses"), counters=("requests", "responses"),
    )  # fmt: skip

    yield _now(
        "connection-count", "connections", "Connections, including those being established, now",
        lambda h: h.sender.counters()["connections"], exported="connections",
    )  # fmt: skip
    yield _now(
        "tls-connection-count", "connections", "Connections that are encrypted, now",
        lambda h: h.sender.counters()["tls_connections"], exported="tls-connections",
    )  # fmt: skip
    yield _now(
        "tls-connection-slow-count", "connections",
        "Connections that are encrypted by Python's ssl module, with the GIL; the log says why, now",
        lambda h: h.sender.counters()["tls_connections_slow"], exported="tls-connections-slow",
    )  # fmt: skip
    yield from _rated(PRODUCER, "connection-creation", "connected", "connections", "Connections established")
    yield from _rated(
        PRODUCER, "connection-close", "disconnected", "connections", "Established connections that ended"
    )
    yield from _rated(
        PRODUCER, "failed-authentication", "failed_authentications", "connections",
        "Connections whose TLS handshake or SASL authentication failed",
    )  # fmt: skip
    yield _now(
        "metadata-age", "s", "Time since all metadata in use was last fetched, now",
        lambda h: h.metadata_age_s(),
    )  # fmt: skip
    yield Definition(
        PRODUCER, "wakeup-total", "", Kind.TOTAL,
        "Times that the waiting sender was woken up, since the start",
        lambda r, h: h.sender.counters()["wakeups"], False,
    )  # fmt: skip

    yield _now(
        "buffer-total-bytes", "bytes", "The option buffer_memory",
        lambda h: h.accumulator.pool.total_bytes,
    )  # fmt: skip
    yield _now(
        "buffer-available-bytes", "bytes", "Unused buffer memory, now",
        lambda h: h.accumulator.pool.available_bytes,
    )  # fmt: skip
    yield from _rated(
        PRODUCER,
        "buffer-exhausted",
        "exhausted",
        "records",
        "Records for which no buffer memory became free in time",
    )
    yield _now(
        "waiting-threads", "threads", "Threads that wait for buffer memory, now",
        lambda h: h.accumulator.pool.waiting_threads,
    )  # fmt: skip
    yield Definition(
        PRODUCER, "bufferpool-wait-ratio", "", Kind.RATE,
        "Time that threads waited for buffer memory, divided by elapsed time, recent",
        lambda r, h: r.rate("memory_wait_ns") / 1e9, counters=("memory_wait_ns",),
    )  # fmt: skip
    yield _total(
        PRODUCER,
        "bufferpool-wait-time-ns-total",
        "memory_wait_ns",
        "ns",
        "Time that threads waited for buffer memory",
    )
    yield _now(
        "callback-queue-size", "records", "Records whose callbacks are due but have not run, now",
        lambda h: h.accumulator.completions.backlog, False,
    )  # fmt: skip
    yield _now(
        "callback-queue-lag", "ms", "Time since the oldest of these callbacks became due, now",
        lambda h: h.accumulator.completions.lag_ns * _MS, False,
    )  # fmt: skip
    yield Definition(
        PRODUCER, "callback-wait-time-ns-total", "ns", Kind.TOTAL,
        "Time that threads waited in send() for slow callbacks, since the start",
        lambda r, h: h.accumulator.completions.wait_time_ns, False,
    )  # fmt: skip
    yield _total(PRODUCER, "flush-time-ns-total", "flush_ns", "ns", "Time that threads spent in flush()")
    yield _total(
        PRODUCER, "metadata-wait-time-ns-total", "metadata_wait_ns", "ns",
        "Time that threads waited for a topic's metadata",
    )  # fmt: skip
    for step, counter, call in (
        ("init", "txn_init_ns", "init_transactions()"),
        ("begin", "txn_begin_ns", "begin_transaction()"),
        ("send-offsets", "txn_send_offsets_ns", "send_offsets_to_transaction()"),
        ("commit", "txn_commit_ns", "commit_transaction() and prepare_transaction()"),
        ("abort", "txn_abort_ns", "abort_transaction()"),
    ):
        yield _total(
            PRODUCER, f"txn-{step}-time-ns-total", counter, "ns", f"Time that threads spent in {call}"
        )


def _node() -> Iterator[Definition]:
    yield from _rated(NODE, "request", "requests", "requests", "Requests of every kind, completely written")
    yield from _rated(NODE, "response", "responses", "responses", "Responses of every kind")
    yield _average(NODE, "request-size-avg", "request_bytes", "requests", "bytes", "Size of a request")
    yield _greatest(NODE, "request-size-max", "request_bytes", "bytes", "Size of a request")
    latency = "Time from a Produce request's creation to its response"
    yield _average(NODE, "request-latency-avg", "latency_ns", "produce_responses", "ms", latency, _MS)
    yield _greatest(NODE, "request-latency-max", "latency_ns", "ms", latency, _MS)
    throttle = "Throttle time in the broker's responses to Produce requests"
    yield _average(NODE, "throttle-time-avg", "throttle_ms", "produce_responses", "ms", throttle)
    yield _greatest(NODE, "throttle-time-max", "throttle_ms", "ms", throttle)
    yield from _rated(NODE, "outgoing-byte", "out_bytes", "bytes", "Bytes written to its sockets")
    yield from _rated(NODE, "incoming-byte", "in_bytes", "bytes", "Bytes read from its sockets")


def _topic() -> Iterator[Definition]:
    yield from _rated(TOPIC, "record-send", "records_sent", "records", "Records acknowledged")
    yield from _rated(
        TOPIC, "record-error", "records_failed", "records", "Records that were accepted and then failed"
    )
    yield from _rated(
        TOPIC, "record-retry", "records_retried", "records", "Records requeued to be sent again, each time"
    )
    yield _average(
        TOPIC, "records-per-batch-avg", "records_sent", "batches_sent", "records",
        "Records per acknowledged batch", kafkas=False,
    )  # fmt: skip
    yield from _rated(TOPIC, "byte", "batch_bytes", "bytes", "Bytes of acknowledged batches as sent")
    yield _total(TOPIC, "uncompressed-byte-total", "raw_bytes", "bytes", _UNCOMPRESSED, False)
    yield _average(
        TOPIC, "compression-rate", "batch_bytes", "raw_bytes", "",
        "Bytes of acknowledged batches as sent, divided by their bytes before compression",
    )  # fmt: skip


OF_PRODUCER = tuple(_producer())
OF_NODE = tuple(_node())
OF_TOPIC = tuple(_topic())
COUNT_NAME, COUNT_MEANING = "count", "Number of metrics, including this one"


def metrics_as_markdown() -> str:
    """One markdown table per group: name, unit, meaning, and whether Kafka has the metric."""
    text = ""
    for definitions in (OF_PRODUCER, OF_NODE, OF_TOPIC):
        text += f"### `{definitions[0].group}`\n\n| Metric | Unit | Meaning |\n| --- | --- | --- |\n"
        for metric in definitions:
            ours = "" if metric.kafkas else " (not Kafka's)"
            text += f"| `{metric.name}`{ours} | {metric.unit} | {metric.meaning} |\n"
        text += "\n"
    text += f"### `{COUNT}`\n\n| Metric | Unit | Meaning |\n| --- | --- | --- |\n"
    return text + f"| `{COUNT_NAME}` | metrics | {COUNT_MEANING} |\n"
