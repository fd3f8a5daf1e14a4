"""Runs old brokers, one node each: Kafka 3.7 with KRaft, Kafka 2.5 and Kafka 2.1, the oldest supported, with
ZooKeeper.

Owns their start and their request logs. `kafka_install` provides the jars, by the POMs in ``old/``.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tools.harness.kafka_cluster import KafkaCluster, free_ports
from tools.harness.kafka_install import classpath
from tools.harness.kafka_node import KafkaNode, KafkaStartError
from tools.harness.until import looks

POMS = Path(__file__).with_name("old")
LOG4J1 = """\
log4j.rootLogger=WARN, file
log4j.logger.kafka.request.logger=DEBUG
log4j.appender.file=org.apache.log4j.FileAppender
log4j.appender.file.File={file}
log4j.appender.file.layout=org.apache.log4j.PatternLayout
log4j.appender.file.layout.ConversionPattern=%m%n
"""
_HEADER_AS_TEXT = re.compile(
    r"RequestHeader\(apiKey=(?P<api>\w+), apiVersion=(?P<version>\d+), clientId=(?P<client>[^,]*),"
)
HEADERS = {
    "3.7.2": re.compile(
        r'"requestApiVersion":(?P<version>\d+),.*"clientId":"(?P<client>[^"]*)",.*"requestApiKeyName":"(?P<api>\w+)"'
    ),
    "2.5.1": _HEADER_AS_TEXT,
    "2.1.1": _HEADER_AS_TEXT,
}


class OldKafka(NamedTuple):
    """A running broker."""

    version: str
    bootstrap_servers: str
    log: Path

    def requests(self, client_id: str, until: str) -> set[tuple[str, int]]:
        """Returns API and version of a client's logged requests, up to the first request of API ``until``."""
        found: set[tuple[str, int]] = set()
        for _ in looks(15):
            for line in self.log.read_text().splitlines():
                header = HEADERS[self.version].search(line)
                if header is not None and header["client"] == client_id:
                    found.add((header["api"], int(header["version"])))
                    if header["api"] == until:
                        return found
        raise TimeoutError(f"Kafka {self.version} logged no {until} of {client_id!r}, only {found}")


class _ZooKeeper(KafkaNode):
    MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


@contextlib.contextmanager
def old_kafka(version: str, directory: Path) -> Iterator[OldKafka]:
    """Runs one of the versions in ``HEADERS``, with data and logs in ``directory``."""
    # The path at which `KafkaNode` expects the broker's log.
    log = directory / "broker" / "node-1" / "broker.log"
    config = directory / "log4j1.properties"
    config.write_text(LOG4J1.format(file=log))
    options = [f"-Dlog4j.configuration=file:{config}"]
    pom = POMS / f"pom-{version}.xml"
    if HEADERS[version] is _HEADER_AS_TEXT:
        with _with_zookeeper(directory, classpath(pom), options) as bootstrap:
            yield OldKafka(version, bootstrap, log)
    else:
        with KafkaCluster(1, directory=directory / "broker", jvm_options=options, pom=pom) as cluster:
            yield OldKafka(version, cluster.bootstrap_servers, log)


@contextlib.contextmanager
def _with_zookeeper(directory: Path, jars: str, options: list[str]) -> Iterator[str]:
    with free_ports(2) as (zookeeper_port, broker_port):
        pass
    zookeeper = _ZooKeeper(0, directory / "zookeeper", jars)
    zookeeper.configure(
        {
            "dataDir": zookeeper.data,
            "clientPort": zookeeper_port,
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
        }
    )
    broker = KafkaNode(1, directory / "broker" / "node-1", jars, options)
    broker.configure(
        {
            "broker.id": 1,
            "zookeeper.connect": f"127.0.0.1:{zookeeper_port}",
            # ZooKeeper starts at the same time, and the broker retries until it is up.
            "zookeeper.connection.timeout.ms": 30_000,
            "listeners": f"PLAINTEXT://127.0.0.1:{broker_port}",
            "log.dirs": broker.data,
            "num.partitions": 3,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 4,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
            "group.initial.rebalance.delay.ms": 0,
            "controlled.shutdown.enable": "false",
            "log.cleaner.dedupe.buffer.size": 2 * 1024 * 1024,
        }
    )
    nodes = [broker, zookeeper]
    try:
        for node in reversed(nodes):
            node.start()
        bootstrap = f"127.0.0.1:{broker_port}"
        _await_broker(bootstrap, nodes)
        yield bootstrap
    finally:
        for node in nodes:
            node.signal("SIGKILL")
            node.wait(10)


def _await_broker(bootstrap: str, nodes: list[KafkaNode]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 100, "log_level": 0})
    for _ in looks(60):
        if not all(node.running for node in nodes):
            break
        with contextlib.suppress(KafkaException):
            if admin.list_topics(timeout=1).brokers:
                return
    raise KafkaStartError("\n".join(node.logs() for node in nodes))
