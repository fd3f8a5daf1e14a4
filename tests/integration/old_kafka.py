"""Runs one broker of another version than the usual one: with ZooKeeper before Kafka 3.3, then with KRaft.

Owns its start, its request log, and its POM. `kafka_install` provides the jars.
"""

from __future__ import annotations

import contextlib
import os
import re
import string
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from cyproducer.testing import EmbeddedBroker
from cyproducer.testing.broker.server import Call
from tools.harness.kafka_cluster import KafkaCluster, free_ports
from tools.harness.kafka_install import CACHE, POM, classpath, kafka_version
from tools.harness.kafka_node import KafkaNode, KafkaStartError
from tools.harness.until import looks

LOG4J1 = """\
log4j.rootLogger=WARN, file
log4j.logger.kafka.request.logger=DEBUG
log4j.appender.file=org.apache.log4j.FileAppender
log4j.appender.file.File={file}
log4j.appender.file.layout=org.apache.log4j.PatternLayout
log4j.appender.file.layout.ConversionPattern=%m%n
"""
POM_TEXT = string.Template("""\
<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>cyproducer.tests</groupId>
  <artifactId>kafka-$version</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <properties><kafka.version>$version</kafka.version></properties>
  <dependencies>$dependencies
  </dependencies>
</project>
""")
DEPENDENCY = string.Template("""
    <dependency><groupId>$group</groupId><artifactId>$artifact</artifactId><version>$version</version></dependency>\
""")
FIRST_WITH_KRAFT = (3, 3)
"""KRaft is ready for production from here on."""
HEADERS = (
    re.compile(
        r"RequestHeader\(apiKey=(?P<api>\w+), apiVersion=(?P<version>\d+), clientId=(?P<client>[^,]*),"
    ),
    re.compile(
        r'"requestApiVersion":(?P<version>\d+),.*"clientId":"(?P<client>[^"]*)",'
        r'.*"requestApiKeyName":"(?P<api>\w+)"'
    ),
)
"""How brokers log the header of a request: as text up to Kafka 2.6, and as JSON."""


Logged = tuple[str, str, int]
"""A request's client id, API and version. Embedded brokers log no request whose version they refuse."""


class OldKafka(NamedTuple):
    """A running broker."""

    version: str
    bootstrap_servers: str
    logged: Callable[[], Iterable[Logged]]
    """Returns the requests that the broker has logged."""
    kill: Callable[[], None]
    """Kills the broker with SIGKILL."""
    restart: Callable[[], None]
    """Starts a killed broker again, and returns when it responds."""

    def requests(self, client_id: str, until: str) -> set[tuple[str, int]]:
        """Returns API and version of a client's logged requests, up to the first request of API ``until``."""
        return requests_of(client_id, self.logged, until)


def requests_of(client_id: str, logged: Callable[[], Iterable[Logged]], until: str) -> set[tuple[str, int]]:
    """Does what `OldKafka.requests` does. A broker logs a request some time after it has responded."""
    found: set[tuple[str, int]] = set()
    for _ in looks(15):
        for client, api, version in logged():
            if client == client_id:
                found.add((api, version))
                if api == until:
                    return found
    raise TimeoutError(f"the broker logged no {until} of {client_id!r}, only {found}")


def in_file(log: Path) -> Iterator[Logged]:
    """Yields the requests in a broker's log."""
    for line in log.read_text().splitlines():
        for header in filter(None, (pattern.search(line) for pattern in HEADERS)):
            yield header["client"], header["api"], int(header["version"])


@contextlib.contextmanager
def embedded_old_kafka(version: str) -> Iterator[OldKafka]:
    """Runs the embedded broker as a version."""
    seen: list[Logged] = []

    def note(call: Call, response: object) -> None:
        # Of "InitProducerId" Kafka's log says INIT_PRODUCER_ID.
        api = re.sub(r"(?<!^)(?=[A-Z])", "_", call.api.name).upper()
        seen.append((call.header.client_id or "", api, call.version))

    with EmbeddedBroker(kafka_version=version) as broker:
        assert broker._running is not None
        broker._running.call(lambda cluster: cluster.on_response.append(note))
        kill, restart = partial(broker.take_down, 1), partial(broker.bring_up, 1)
        yield OldKafka(version, broker.bootstrap_servers, lambda: list(seen), kill, restart)


class _ZooKeeper(KafkaNode):
    MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


def numbers(version: str) -> tuple[int, ...]:
    """Returns a version's numbers, to compare them."""
    return tuple(int(each) for each in version.split("."))


def pom_of(version: str) -> Path:
    """Returns the POM of a version, written to the cache unless it is that of the repository."""
    if version == kafka_version():
        return POM
    found = numbers(version)
    # Brokers log by log4j 2 since 4.0. Kafka's own ZooKeeper can't connect to anything on Java 17 before 2.6.
    named = [("org.apache.kafka", "kafka_2.13" if found >= (2, 4) else "kafka_2.12", version)]
    if found >= (4,):
        named += [("org.apache.logging.log4j", name, "2.24.3") for name in ("log4j-core", "log4j-slf4j-impl")]
    elif found >= FIRST_WITH_KRAFT:
        named.append(("org.slf4j", "slf4j-reload4j", "1.7.36"))
    elif found < (3,):
        named.append(("org.apache.zookeeper", "zookeeper", "3.5.9"))
    dependencies = (DEPENDENCY.substitute(group=g, artifact=a, version=v) for g, a, v in named)
    CACHE.mkdir(parents=True, exist_ok=True)
    # Whole at once: another test process may read it.
    new = CACHE / f"pom-{version}.{os.getpid()}"
    new.write_text(POM_TEXT.substitute(version=version, dependencies="".join(dependencies)))
    return new.replace(CACHE / f"pom-{version}.xml")


@contextlib.contextmanager
def old_kafka(version: str, directory: Path) -> Iterator[OldKafka]:
    """Runs a version, with data and logs in ``directory``."""
    # The path at which `KafkaNode` expects the broker's log.
    log = directory / "broker" / "node-1" / "broker.log"
    config = directory / "log4j1.properties"
    config.write_text(LOG4J1.format(file=log))
    options = [f"-Dlog4j.configuration=file:{config}"]
    pom = pom_of(version)
    if numbers(version) < FIRST_WITH_KRAFT:
        with _with_zookeeper(directory, classpath(pom), options) as (bootstrap, nodes):
            broker = nodes[0]

            def kill() -> None:
                broker.signal("SIGKILL")
                broker.wait(10)

            def restart() -> None:
                for _ in looks(60):
                    broker.start()
                    try:
                        return _await_broker(bootstrap, nodes)
                    except KafkaStartError:
                        # It exits while ZooKeeper still has the session of the one that was killed.
                        if broker.running or "NodeExists" not in broker.logs():
                            raise
                        broker.wait(10)
                raise KafkaStartError(broker.logs())

            yield OldKafka(version, bootstrap, partial(in_file, log), kill, restart)
    else:
        with KafkaCluster(1, directory=directory / "broker", jvm_options=options, pom=pom) as cluster:
            kill, restart = partial(cluster.kill, 1), partial(cluster.restart, 1)
            logged = partial(in_file, log)
            yield OldKafka(version, cluster.bootstrap_servers, logged, kill, restart)


@contextlib.contextmanager
def _with_zookeeper(directory: Path, jars: str, options: list[str]) -> Iterator[tuple[str, list[KafkaNode]]]:
    """Yields the broker's address, and the broker and its ZooKeeper."""
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
            # A killed broker's session ends soon, so that it can register again.
            "zookeeper.session.timeout.ms": 6_000,
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
        yield bootstrap, nodes
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
