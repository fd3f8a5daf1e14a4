"""Fixtures for a real Kafka: `kafka`, one node for the whole run, `kafka_cluster`, three nodes per module,
and `transactional_kafka`, three nodes for all tests of transactions.

Each starts when a test first needs it. If Java or Maven is missing, tests marked ``kafka`` are skipped, and
the summary says so. With ``CI=true`` in the environment they fail instead, so that CI does not skip them
silently.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tools.harness.kafka_install import missing_tools

if TYPE_CHECKING:
    from tools.harness.kafka_cluster import KafkaCluster

SKIPPED = pytest.StashKey[list[str]]()

missing = functools.cache(missing_tools)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "smoke: a test of the kafka kind that every Python version runs")
    config.stash[SKIPPED] = []


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("kafka") is None:
        return
    if (reason := missing()) is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must run the tests against a real Kafka, but {reason}", pytrace=False)
        item.config.stash[SKIPPED].append(item.nodeid)
        pytest.skip(f"no real Kafka: {reason}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if skipped := config.stash[SKIPPED]:
        terminalreporter.section("real Kafka")
        terminalreporter.line(
            f"{len(skipped)} tests did NOT run against a real Kafka: {missing()}", yellow=True
        )


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One node, shared by the whole run. Tests must use unique topic names."""
    yield from _running(_cluster(1, tmp_path_factory.mktemp("kafka")))


@pytest.fixture(scope="module")
def kafka_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three nodes, shared by a module. A test that kills or pauses a node must bring it back."""
    yield from _running(_cluster(3, tmp_path_factory.mktemp("kafka-cluster")))


@pytest.fixture(scope="session")
def transactional_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three nodes whose transactions time out soon, shared by the modules that test transactions. A test that
    kills a node must bring it back."""
    from tools.harness.transactions import TRANSACTION_PROPERTIES

    directory = tmp_path_factory.mktemp("transactional-kafka")
    yield from _running(_cluster(3, directory, TRANSACTION_PROPERTIES))


def _cluster(nodes: int, directory: Path, properties: Mapping[str, Any] | None = None) -> KafkaCluster:
    # Not at the top: confluent-kafka has no wheel for some Pythons, and a conftest that skips ends the run.
    from tools.harness.kafka_cluster import KafkaCluster

    return KafkaCluster(nodes, properties, directory=directory)


def _running(cluster: KafkaCluster) -> Iterator[KafkaCluster]:
    with cluster:
        yield cluster
