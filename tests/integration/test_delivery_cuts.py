"""Tests connections that are cut, stall and lose responses while records flow through a proxy to three
nodes: without TLS, and with TLS and SCRAM."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.cluster_faults import ClusterFaults
from tests.integration.delivery_rig import (
    PARTITIONS,
    PATIENCE,
    Way,
    idempotent,
    repeating,
    settle,
    writing,
)
from tests.integration.fault_log import FaultLog
from tests.integration.ledger import Writer
from tests.integration.mischief import Fault, Mischief
from tests.integration.proxy import Proxy
from tools.harness import sasl, tls
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.until import looks

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    # kafka-python reads its message definitions this way.
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),
]

NODES = (1, 2, 3)
AUTHORITY = tls.Authority()
MECHANISM, USER, PASSWORD = "SCRAM-SHA-256", "alice", "secret"
REAUTH_MS = 4000
"""Sessions are renewed while connections break."""


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with Proxy(NODES) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def tls_proxy() -> Iterator[Proxy]:
    with Proxy(NODES, encrypted=True) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def cluster(
    proxy: Proxy, tls_proxy: Proxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaCluster]:
    """Three nodes whose listeners PROXIED and SECURE advertise the proxies. Nodes and tests connect
    directly."""
    directory = tmp_path_factory.mktemp("kafka-behind-proxy")
    proxies = {"PROXIED": proxy, "SECURE": tls_proxy}
    nodes = KafkaCluster(
        len(NODES),
        properties={
            **tls.broker_properties("SECURE", AUTHORITY, directory),
            **sasl.broker_properties("SECURE", {}, REAUTH_MS),
        },
        listeners={"PROXIED": "PLAINTEXT", "SECURE": "SASL_SSL"},
        advertised={listener: each.ports for listener, each in proxies.items()},
        directory=directory / "nodes",
    )
    with nodes:
        sasl.create_scram_user(nodes, USER, PASSWORD, MECHANISM)
        for listener, each in proxies.items():
            each.forward_to({node: nodes.port(node, listener) for node in NODES})
        yield nodes


def secured() -> dict[str, Any]:
    """The options of a producer at the listener SECURE."""
    return {
        "security_protocol": "SASL_SSL",
        "ssl_context": AUTHORITY.client(),
        "sasl_mechanism": MECHANISM,
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
    }


@pytest.fixture
def faults(cluster: KafkaCluster, log: FaultLog) -> Iterator[ClusterFaults]:
    with ClusterFaults(cluster, log) as faults:
        yield faults


@pytest.mark.parametrize(
    "way",
    [
        *(idempotent(codec) for codec in (None, "gzip", "snappy", "lz4", "zstd")),
        repeating("all"),
        repeating(1, "lz4"),
    ],
    ids=lambda way: way.name,
)
def test_cut_and_stalled_connections(
    cluster: KafkaCluster, proxy: Proxy, faults: ClusterFaults, log: FaultLog, way: Way
) -> None:
    topic = f"cut-{way.name}"
    faults.create(topic, PARTITIONS)
    with contextlib.ExitStack() as trouble:
        # The faults also affect the producer's first requests.
        trouble.enter_context(proxy.misbehaving(Mischief(log.seed), log))
        with writing(proxy.bootstrap_servers, way, topic, log) as writer:
            time.sleep(6 * PATIENCE)
            trouble.close()
            writer.pass_by()

    settle(cluster, faults, writer, way, deaths=False)


@pytest.mark.parametrize(
    ("in_c", "deaths"), [(True, True), (False, False)], ids=["in-c-and-a-killed-leader", "in-python"]
)
def test_cut_and_stalled_connections_over_tls_with_scram(
    cluster: KafkaCluster, tls_proxy: Proxy, faults: ClusterFaults, log: FaultLog, in_c: bool, deaths: bool
) -> None:
    topic = f"secured-{in_c}"
    faults.create(topic, PARTITIONS)
    way = idempotent("lz4")
    with contextlib.ExitStack() as trouble:
        # The faults also affect TLS's handshakes, and the authentications.
        trouble.enter_context(tls_proxy.misbehaving(Mischief(log.seed), log))
        with writing(
            tls_proxy.bootstrap_servers, way, topic, log, **secured(), ssl_without_gil=in_c
        ) as writer:
            time.sleep(6 * PATIENCE)
            victim = faults.leaders(topic, PARTITIONS)[0]
            if deaths:
                faults.kill(victim)
            trouble.close()
            writer.pass_by()
            if deaths:
                faults.restart(victim)

    settle(cluster, faults, writer, way, deaths=deaths, restarts=deaths)
    assert log.count("of the broker was lost") > 0
    # The proxy changes no byte. A request that is encrypted twice has two responses: idempotence hides all
    # but the correlation id of the second.
    for error in ("KafkaProtocolError", "CorrelationIdError", "bad record mac", "BAD_RECORD_MAC"):
        assert log.count(error) == 0, f"{error}:\n{log}"


def test_answers_lost_in_a_row(
    cluster: KafkaCluster, proxy: Proxy, faults: ClusterFaults, log: FaultLog
) -> None:
    faults.create("lost-answers", PARTITIONS)
    way = idempotent("lz4")
    kinds = {Fault.LOSE_ANSWER: 1.0, Fault.LATE_REQUEST: 1.0}
    with contextlib.ExitStack() as trouble:
        trouble.enter_context(proxy.misbehaving(Mischief(log.seed, kinds), log))
        with writing(proxy.bootstrap_servers, way, "lost-answers", log) as writer:
            time.sleep(6 * PATIENCE)
            trouble.close()
            writer.pass_by()

    settle(cluster, faults, writer, way, deaths=False)
    assert log.count("was lost") > 20


def all_get_through(writer: Writer) -> bool:
    """Returns whether the next 20 records to each partition are all acknowledged."""
    begin = [len(entries) for entries in writer.entries]
    writer.pass_by([first + 20 for first in begin])
    places = zip(writer.entries, begin, strict=True)
    return all(entry.error is None for entries, first in places for entry in entries[first : first + 20])


@pytest.mark.parametrize("way", [idempotent("lz4"), repeating("all")], ids=lambda way: way.name)
def test_records_that_ran_out_of_time(
    cluster: KafkaCluster, proxy: Proxy, faults: ClusterFaults, log: FaultLog, way: Way
) -> None:
    topic = f"late-{way.name}"
    faults.create(topic, PARTITIONS)
    times = {"delivery_timeout_ms": 600, "request_timeout_ms": 500}
    with writing(proxy.bootstrap_servers, way, topic, log, **times) as writer:
        with proxy.misbehaving(Mischief(log.seed), log):
            time.sleep(8 * PATIENCE)
        # Failed records must not affect later ones. Some of those may still time out: 600 ms is short for
        # brokers on a busy machine.
        assert any(all_get_through(writer) for _ in looks(30))

    reckoning = settle(cluster, faults, writer, way, deaths=False, failed_until_s=log.now_s())
    assert sum(reckoning.failures().values()) > 100


def test_everything_at_once(
    cluster: KafkaCluster, proxy: Proxy, faults: ClusterFaults, log: FaultLog
) -> None:
    rng = random.Random(log.seed)
    way = idempotent("zstd")
    faults.create("everything", PARTITIONS)
    ends_s = log.now_s() + 25 * PATIENCE
    with writing(proxy.bootstrap_servers, way, "everything", log) as writer:
        with proxy.misbehaving(Mischief(log.seed), log):
            while log.now_s() < ends_s:
                victim = rng.choice(NODES)
                deed = rng.choice(("kill", "pause", "move", "move", "elect", "elect"))
                if deed == "kill":
                    faults.kill(victim)
                    time.sleep(rng.uniform(0, 6))
                    faults.restart(victim)
                elif deed == "pause":
                    faults.pause(victim)
                    time.sleep(rng.uniform(0.5, 6))
                    faults.resume(victim)
                elif deed == "move":
                    faults.move("everything", [rng.sample(NODES, 3) for _ in range(PARTITIONS)])
                else:
                    faults.elect("everything", PARTITIONS)
                faults.await_in_sync("everything")
                time.sleep(rng.uniform(0, 2))
        writer.pass_by()

    settle(cluster, faults, writer, way, restarts=True)
