"""Scripted brokers for tests of transactions. Topic t has two partitions, one on each of two brokers."""

from collections.abc import Iterator

import pytest

from tests.scripted.scripted_broker import ScriptedCluster


@pytest.fixture(params=[1, 2], ids=["first", "second"])
def level(request: pytest.FixtureRequest) -> int:
    """The level of ``transaction.version``: both protocols, one after the other."""
    return int(request.param)


@pytest.fixture
def cluster(level: int) -> Iterator[ScriptedCluster]:
    """Brokers at the level."""
    with ScriptedCluster(2, t=2) as cluster:
        cluster.set_transaction_version(level, 1)
        yield cluster


@pytest.fixture
def second() -> Iterator[ScriptedCluster]:
    """The same, for the second protocol only."""
    with ScriptedCluster(2, t=2) as cluster:
        cluster.set_transaction_version(2, 1)
        yield cluster
