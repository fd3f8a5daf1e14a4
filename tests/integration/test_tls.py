"""TLS: without the GIL and through Python, client certificates, key updates."""

import gc
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cyproducer import KafkaProducer
from cyproducer.errors import KafkaTimeoutError
from tests.integration.consume import read_all
from tools.harness.embedded_kafka import EmbeddedKafka
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.tls import Authority, broker_properties, chain_pem, embedded_options, key_pem

pytestmark = pytest.mark.either_broker(slow=True)

AUTHORITY = Authority()
#: The broker changes its keys after this many bytes, and asks this client to do the same (RFC 8446, 4.6.3).
KEY_LIMIT = "jdk.tls.keyLimits=AES/GCM/NoPadding KeyUpdate 2^16, ChaCha20-Poly1305 KeyUpdate 2^16\n"


@pytest.fixture(scope="module")
def cluster(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    directory = tmp_path_factory.mktemp("kafka-tls")
    if broker == "embedded":
        listeners = {
            "TLS": embedded_options(AUTHORITY, directory, "TLS"),
            "MUTUAL": embedded_options(AUTHORITY, directory, "MUTUAL", client_auth=True),
        }
        reading = {"security.protocol": "SSL", "ssl.ca.pem": AUTHORITY.pem}
        with EmbeddedKafka(listeners=listeners, clients={"TLS": reading}) as embedded:
            yield embedded
        return
    security = directory / "java.security"
    security.write_text(KEY_LIMIT)
    nodes = KafkaCluster(
        properties={
            **broker_properties("TLS", AUTHORITY, directory),
            **broker_properties("MUTUAL", AUTHORITY, directory, "required"),
        },
        listeners={"TLS": "SSL", "MUTUAL": "SSL"},
        jvm_options=[f"-Djava.security.properties={security}"],
        directory=directory / "nodes",
    )
    with nodes:
        yield nodes


def producer(cluster: KafkaCluster, listener: str = "TLS", **options: Any) -> KafkaProducer:
    return KafkaProducer(
        bootstrap_servers=cluster.bootstrap(listener),
        security_protocol="SSL",
        **{"ssl_context": AUTHORITY.client(), **options},
    )


@pytest.mark.slow
@pytest.mark.parametrize("without_gil", [True, False])
@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_records_arrive_once_and_in_order(
    cluster: KafkaCluster, without_gil: bool, version: str, tmp_path: Path
) -> None:
    topic = f"order-{version}-{without_gil}"
    cluster.create_topic(topic, 2)
    options: dict[str, Any] = {
        "ssl_context": None,
        "ssl_cafile": AUTHORITY.file(tmp_path),
        "ssl_enabled_protocols": version,
        "ssl_without_gil": without_gil,
    }
    with producer(cluster, **options) as ours:
        futures = [ours.send(topic, b"%d" % i + bytes(200), partition=i % 2) for i in range(20_000)]
        ours.flush(60)
        assert [future.get(0).offset for future in futures] == [i // 2 for i in range(20_000)]
        for i in range(300):
            assert ours.send(topic, b"alone", partition=0).get(10).offset == 10_000 + i
        assert in_c(ours) is without_gil
    fetched = read_all(cluster.reading("TLS"), topic, 20_300)
    assert len(fetched) == 20_300
    values = [record.value for record in fetched if record.partition == 1]
    assert values == [b"%d" % i + bytes(200) for i in range(1, 20_000, 2)]


def in_c(ours: KafkaProducer) -> bool:
    counters = ours._runtime.sender.counters()
    return counters["tls_connections"] > 0 and counters["tls_connections_slow"] == 0


@pytest.mark.kafka_only("Python's ssl can't ask for new keys")
def test_keys_that_the_broker_changes(cluster: KafkaCluster) -> None:
    """More acknowledgements than fit one set of keys. A key update is read, and answered by a write."""
    cluster.create_topic("keys", 1)
    with producer(cluster) as ours:
        ours.send("keys", b"first").get(10)
        for i in range(3_000):
            assert ours.send("keys", b"v").get(10).offset == 1 + i
        assert in_c(ours)


@pytest.mark.slow
def test_a_client_certificate(cluster: KafkaCluster, tmp_path: Path) -> None:
    cluster.create_topic("mutual", 1)
    with (
        producer(cluster, "MUTUAL", max_block_ms=3_000) as ours,
        pytest.raises(KafkaTimeoutError, match="asks for a client certificate that it trusts, and got"),
    ):
        ours.send("mutual", b"v").get(20)
    mine = AUTHORITY.issue("client")
    path = tmp_path / "mine.pem"
    path.write_text(key_pem(mine, "a secret") + chain_pem(mine))
    options = {"ssl_context": None, "ssl_cafile": AUTHORITY.file(tmp_path), "ssl_certfile": path}
    with producer(cluster, "MUTUAL", **options, ssl_password="a secret") as ours:
        assert ours.send("mutual", b"v").get(20).offset == 0


def test_records_are_acknowledged_over_tls_while_python_code_holds_the_gil(cluster: KafkaCluster) -> None:
    cluster.create_topic("gil", 4)
    before = sys.getswitchinterval()
    with producer(cluster, batch_size=4096) as ours:
        for partition in range(4):
            ours.send("gil", b"first", partition=partition).get(20)
        gc.collect()
        sys.setswitchinterval(1000)
        try:
            futures = [ours.send("gil", bytes(100), partition=i % 4) for i in range(20_000)]
            # No call here blocks, which would release the GIL.
            deadline = time.monotonic() + 30
            while not all(future.is_done for future in futures) and time.monotonic() < deadline:
                pass
        finally:
            sys.setswitchinterval(before)
        assert all(future.succeeded() for future in futures)
