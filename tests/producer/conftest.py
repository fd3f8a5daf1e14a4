"""A cluster with one topic of one partition, and a producer of it, for most tests of the public API."""

from collections.abc import Iterator

import pytest

from cyproducer.producer import KafkaProducer
from tests.scripted.producing import producing
from tests.scripted.scripted_broker import ScriptedCluster


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(orders=1) as running:
        yield running


@pytest.fixture
def producer(cluster: ScriptedCluster) -> Iterator[KafkaProducer]:
    with producing(cluster) as made:
        yield made
