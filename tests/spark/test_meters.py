"""Tests the percentile of what was counted between two histograms, and a producer without metrics."""

import pytest

from cyproducer.producer import KafkaProducer
from cyproducer.spark.meters import SinceThen, percentile
from cyproducer.testing import EmbeddedBroker

BEFORE = {1.0: 5, 900.0: 1}


@pytest.mark.parametrize(
    ("after", "share", "found"),
    [
        # Nothing was counted since.
        (BEFORE, 0.99, 0.0),
        ({}, 0.99, 0.0),
        # The slow one was counted before.
        ({**BEFORE, 2.0: 1}, 0.99, 2.0),
        # Nearest rank: of 100, the 99th.
        ({**BEFORE, 2.0: 98, 4.0: 1, 3.0: 1}, 0.99, 3.0),
        ({**BEFORE, 2.0: 98, 4.0: 1, 3.0: 1}, 1.0, 4.0),
        ({**BEFORE, 2.0: 98, 900.0: 3}, 0.99, 900.0),
        ({2.0: 1}, 0.0, 2.0),
    ],
)
def test_a_percentile_is_that_of_the_difference(after: dict[float, int], share: float, found: float) -> None:
    before = BEFORE if after.keys() >= BEFORE.keys() else {}
    assert percentile(before, after, share) == found


def test_a_producer_without_metrics_has_no_counters(broker: EmbeddedBroker) -> None:
    broker.create_topic("unmeasured", 1)
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, metrics_enabled=False) as producer:
        counted = SinceThen(producer)
        producer.send("unmeasured", b"v").get(10)
        producer.flush(10)
        assert counted.retries_and_p99_ms() == (0, 0.0)
