"""Fixtures for a real Kafka: `kafka`, one node for the whole run, `kafka_cluster`, three nodes per module,
and `transactional_kafka`, three nodes for all tests of transactions.

Each starts when a test first needs it. If Java or Maven is missing, tests marked ``kafka`` are skipped, and
the summary says so. With ``CI=true`` in the environment they fail instead, so that CI does not skip them
silently.

A test marked ``either_broker`` runs twice: as ``[embedded]`` on the embedded broker, and as ``[kafka]`` on a
real Kafka. Only the second run is marked ``kafka``, so that ``-m "not kafka"`` needs no Java. The fixtures
are the same; a module's own cluster asks `broker` which one to start. A test that is marked ``kafka_only``,
too, says in one line why the embedded broker can't run it.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tools.harness.kafka_install import missing_tools

if TYPE_CHECKING:
    from tests.integration.cluster_faults import ClusterFaults
    from tests.integration.fault_log import FaultLog
    from tests.integration.old_kafka import OldKafka
    from tests.integration.transaction_rig import TransactionRig
    from tools.harness.kafka_cluster import KafkaCluster

EMBEDDED, REAL = "embedded", "kafka"
SKIPPED = pytest.StashKey[list[str]]()

missing = functools.cache(missing_tools)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "smoke: a test of the kafka kind that every Python version runs")
    for line in (
        "either_broker(slow): runs on the embedded broker, and on a real Kafka; slow: the latter is slow",
        "kafka_only(reason): what the embedded broker lacks for this test",
    ):
        config.addinivalue_line("markers", line)
    config.stash[SKIPPED] = []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    either = metafunc.definition.get_closest_marker("either_broker")
    if either is None:
        return
    slow = [pytest.mark.slow] if either.kwargs.get("slow") else []
    runs = [EMBEDDED, pytest.param(REAL, marks=[pytest.mark.kafka, *slow])]
    metafunc.parametrize("broker", runs, indirect=True, scope="session")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("kafka") is None:
        only = item.get_closest_marker("kafka_only")
        if only is not None:
            pytest.skip(f"not on the embedded broker: {only.args[0]}")
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
def broker(request: pytest.FixtureRequest) -> str:
    """The broker that the test runs on: ``"embedded"`` or ``"kafka"``."""
    return str(getattr(request, "param", REAL))


Shared = Callable[[str, Callable[[], "KafkaCluster"]], "KafkaCluster"]


@pytest.fixture(scope="session")
def shared() -> Iterator[Shared]:
    """A function that starts a cluster when it is first asked for by a name. All run until the end, so that
    tests on the two brokers may alternate."""
    started: dict[str, KafkaCluster] = {}
    with ExitStack() as stack:

        def get(name: str, make: Callable[[], KafkaCluster]) -> KafkaCluster:
            if name not in started:
                started[name] = stack.enter_context(make())
            return started[name]

        yield get


@pytest.fixture(scope="session")
def kafka(broker: str, shared: Shared, tmp_path_factory: pytest.TempPathFactory) -> KafkaCluster:
    """One node, shared by the whole run. Tests must use unique topic names."""
    if broker == EMBEDDED:
        return shared("embedded", lambda: _embedded(1))
    return shared("kafka", lambda: _cluster(1, tmp_path_factory.mktemp("kafka")))


@pytest.fixture(scope="module")
def kafka_cluster(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three nodes, shared by a module. A test that kills or pauses a node must bring it back."""
    directory = tmp_path_factory.mktemp("kafka-cluster")
    with _embedded(3) if broker == EMBEDDED else _cluster(3, directory) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def transactional_kafka(
    broker: str, shared: Shared, tmp_path_factory: pytest.TempPathFactory
) -> KafkaCluster:
    """Three nodes whose transactions time out soon, shared by the modules that test transactions. A test that
    kills a node must bring it back."""
    from tools.harness.transactions import TRANSACTION_PROPERTIES

    if broker == EMBEDDED:
        return shared("transactional-embedded", lambda: _embedded(3))
    directory = tmp_path_factory.mktemp("transactional-kafka")
    return shared("transactional-kafka", lambda: _cluster(3, directory, TRANSACTION_PROPERTIES))


@pytest.fixture
def log(request: pytest.FixtureRequest) -> Iterator[FaultLog]:
    from tests.integration.delivery_rig import SEED
    from tests.integration.fault_log import FaultLog

    with FaultLog(f"{SEED}/{request.node.name}") as log:
        yield log


@pytest.fixture
def faults(kafka_cluster: KafkaCluster, log: FaultLog) -> Iterator[ClusterFaults]:
    """Faults of `kafka_cluster`; all nodes are back for the next test."""
    from tests.integration.cluster_faults import ClusterFaults

    with ClusterFaults(kafka_cluster, log) as faults:
        yield faults


@pytest.fixture
def rig(transactional_kafka: KafkaCluster, request: pytest.FixtureRequest) -> Iterator[TransactionRig]:
    """Topics and transactional ids that no other test uses."""
    from tests.integration.transaction_rig import TransactionRig

    name = re.sub("[^a-zA-Z0-9]", "-", f"{request.path.stem}-{request.node.name}")
    with TransactionRig(transactional_kafka, name[-150:]) as rig:
        yield rig


@pytest.fixture(scope="module")
def old(
    broker: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OldKafka]:
    """A broker of the version that the module asks for by ``parametrize``."""
    from tests.integration.old_kafka import embedded_old_kafka, old_kafka, pom_of

    if broker == EMBEDDED:
        with embedded_old_kafka(request.param) as embedded:
            yield embedded
        return
    # Java is installed, but Maven is needed too if only the newest Kafka is in the cache.
    if (reason := missing_tools(pom_of(request.param))) is not None:
        pytest.skip(f"no Kafka {request.param}: {reason}")
    with old_kafka(request.param, tmp_path_factory.mktemp("old-kafka")) as kafka:
        yield kafka


def _cluster(nodes: int, directory: Path, properties: Mapping[str, Any] | None = None) -> KafkaCluster:
    # Not at the top: confluent-kafka has no wheel for some Pythons, and a conftest that skips ends the run.
    from tools.harness.kafka_cluster import KafkaCluster

    return KafkaCluster(nodes, properties, directory=directory)


def _embedded(nodes: int) -> KafkaCluster:
    from tools.harness.embedded_kafka import EmbeddedKafka

    return EmbeddedKafka(nodes)
