"""What ``metrics()`` returns, made from the counters of the accumulator and the sender.

Owns: names and units (Kafka's). Does not own: counting. Any thread.
"""

from cyproducer.buffers.accumulator import RecordAccumulator
from cyproducer.network.sender import Sender


def snapshot(accumulator: RecordAccumulator, sender: Sender) -> dict[str, dict[str, float]]:
    """Totals and averages since the producer began, by Kafka's names; times in ms, sizes in bytes."""
    batches = accumulator.counters()
    requests = sender.counters()
    pool = accumulator.pool

    def average(total: float, count: float) -> float:
        return total / count if count else 0.0

    return {
        "producer-metrics": {
            "record-send-total": batches["records_sent"],
            "record-error-total": batches["records_failed"],
            "record-retry-total": batches["records_retried"],
            "batch-total": batches["batches_sent"],
            "batch-split-total": batches["batches_split"],
            "byte-total": batches["batch_bytes"],
            "batch-size-avg": average(batches["batch_bytes"], batches["batches_sent"]),
            "batch-size-max": batches["batch_bytes_max"],
            "records-per-batch-avg": average(batches["records_sent"], batches["batches_sent"]),
            "compression-rate-avg": average(batches["batch_bytes"], batches["raw_bytes"]),
            "record-queue-time-avg": average(batches["queue_ns"] / 1e6, batches["batches_sent"]),
            "record-queue-time-max": batches["queue_ns_max"] / 1e6,
            "request-total": requests["requests"],
            "requests-in-flight": requests["in_flight"],
            "request-latency-avg": average(requests["latency_ns"] / 1e6, requests["responses"]),
            "request-latency-max": requests["latency_max_ns"] / 1e6,
            "produce-throttle-time-avg": average(requests["throttle_ms"], requests["responses"]),
            "produce-throttle-time-max": requests["throttle_max_ms"],
            "connection-count": requests["connections"],
            "wakeup-total": requests["wakeups"],
            "buffer-total-bytes": pool.total_bytes,
            "buffer-available-bytes": pool.available_bytes,
            "buffer-exhausted-total": pool.exhausted_total,
            "bufferpool-wait-time-ns-total": pool.wait_time_ns,
            "waiting-threads": pool.waiting_threads,
        }
    }
