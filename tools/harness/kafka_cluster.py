"""Runs a real Kafka cluster for tests: KRaft nodes on 127.0.0.1, each a broker and a controller, without
Docker.

Owns the nodes' ports, data and lifetime. `kafka_install` provides the jars, `kafka_node` runs one process.
All processes end with `KafkaCluster.stop`, or with the process that started them.
"""

from __future__ import annotations

import base64
import contextlib
import random
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka import admin as untyped_admin
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tools.harness.kafka_install import classpath
from tools.harness.kafka_node import KafkaNode, KafkaStartError, java
from tools.harness.until import looks

PORTS = range(20_000, 32_000)
"""Below the ephemeral ports of Linux and macOS: an outgoing connection could otherwise take a node's port
between a kill and a restart."""


class KafkaCluster:
    """Kafka nodes with the ids 1, 2, ... A context manager. Not thread-safe.

    Args:
        nodes: Number of nodes. Killing a minority leaves a working quorum.
        properties: Broker properties that override the defaults below.
        racks: The nodes' racks (``broker.rack``), in the order of their ids.
        listeners: Listeners in addition to PLAINTEXT, name to security protocol; see `bootstrap`.
        advertised: Advertised ports of further listeners, if a proxy is in front of them: listener to node id
            to port.
        jvm_options: Further options of the brokers' JVMs.
        directory: Directory of data and logs. Default: a temporary directory, removed by `stop`.
        classes: A directory of compiled classes for the brokers, such as plugins.
        pom: The Kafka to run, 3.0 or later, as for `kafka_install`. Default: that of ``pom.xml``.
    """

    def __init__(
        self,
        nodes: int = 1,
        properties: Mapping[str, object] | None = None,
        *,
        racks: Sequence[str] = (),
        listeners: Mapping[str, str] | None = None,
        advertised: Mapping[str, Mapping[int, int]] | None = None,
        jvm_options: Sequence[str] = (),
        classes: Path | None = None,
        directory: Path | None = None,
        pom: Path | None = None,
    ) -> None:
        self._classes = classes
        self._pom = pom
        self._properties = dict(properties or {})
        self._racks = dict(enumerate(racks, 1))
        self._listeners = {"PLAINTEXT": "PLAINTEXT", **(listeners or {})}
        self._advertised = dict(advertised or {})
        self._jvm_options = jvm_options
        self._own_directory = directory is None
        self._directory = directory
        self._node_count = nodes
        self._nodes: dict[int, KafkaNode] = {}
        self._classpath = ""

    def start(self, timeout_s: float = 90) -> KafkaCluster:
        """Starts all nodes and waits until they respond.

        Raises:
            KafkaUnavailableError: Java or Maven is missing.
            KafkaStartError: A node exited, or did not respond within ``timeout_s``. Has the ends of its logs.
        """
        self._classpath = classpath(self._pom)
        if self._classes is not None:
            self._classpath += f":{self._classes}"
        deadline = time.monotonic() + timeout_s
        for attempt in range(3):
            if self._directory is None:
                self._directory = Path(tempfile.mkdtemp(prefix="kafka-"))
            try:
                self._start_nodes(self._directory, deadline)
            except BaseException as error:
                lost_a_port = any(node.lost_its_port() for node in self._nodes.values())
                self._stop_nodes(grace_s=0)
                retry = attempt < 2 and lost_a_port and isinstance(error, KafkaStartError)
                if self._own_directory:
                    self._remove_directory()
                elif retry:
                    shutil.rmtree(self._directory)
                if not retry:
                    raise
            else:
                return self
        raise AssertionError("unreachable")

    def stop(self, grace_s: float = 2) -> None:
        """Stops all nodes: SIGTERM, then SIGKILL after ``grace_s``. Returns when all have exited.

        A single node exits in half a second. The last of three can't exit in order, because its quorum is
        gone, so there is no point in waiting longer.
        """
        self._stop_nodes(grace_s)
        if self._own_directory:
            self._remove_directory()

    def __enter__(self) -> KafkaCluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def node_ids(self) -> list[int]:
        return list(self._nodes)

    @property
    def bootstrap_servers(self) -> str:
        """``host:port[,host:port...]`` of all nodes' PLAINTEXT listeners."""
        return self.bootstrap("PLAINTEXT")

    def bootstrap(self, listener: str) -> str:
        """Returns ``host:port[,host:port...]`` of all nodes' ``listener``."""
        return ",".join(f"127.0.0.1:{node.ports[listener]}" for node in self._nodes.values())

    def reading(self, listener: str) -> dict[str, Any]:
        """Returns the options of librdkafka with which a test reads what came through ``listener``."""
        return {"bootstrap.servers": self.bootstrap_servers}

    def port(self, node_id: int, listener: str = "PLAINTEXT") -> int:
        return self._nodes[node_id].ports[listener]

    def pid(self, node_id: int) -> int | None:
        """Returns the JVM's pid, or ``None`` while the node is down."""
        node = self._nodes[node_id]
        return node.pid if node.running else None

    def kill(self, node_id: int) -> None:
        """Kills a node with SIGKILL, like a power failure. Keeps its data for `restart`."""
        node = self._nodes[node_id]
        node.signal("SIGKILL")
        if not node.wait(10):
            raise KafkaStartError(f"node {node_id} (pid {node.pid}) still runs 10 s after SIGKILL")

    def restart(self, node_id: int, timeout_s: float = 60) -> None:
        """Restarts a killed node with its ports and data, and waits until it has rejoined the cluster."""
        self._nodes[node_id].start()
        self._wait_ready(time.monotonic() + timeout_s)

    def pause(self, node_id: int) -> None:
        """Pauses a node (SIGSTOP): its connections stay open, but it does not respond."""
        self._nodes[node_id].signal("SIGSTOP")

    def resume(self, node_id: int) -> None:
        self._nodes[node_id].signal("SIGCONT")

    def broker_log(self, node_id: int) -> Path:
        """Returns the broker's log file. `stop` deletes it unless a directory was given."""
        return self._nodes[node_id].directory / "broker.log"

    def log_dir(self, node_id: int) -> Path:
        """Returns the node's data directory, which has a directory ``TOPIC-PARTITION`` per partition."""
        return self._nodes[node_id].data

    def leader(self, topic: str, partition: int, timeout_s: float = 10) -> int:
        """Returns the id of a partition's leader, or -1 if it has none."""
        admin = self._admin()
        for _ in looks(timeout_s):
            found = admin.list_topics(topic, timeout=timeout_s).topics[topic].partitions
            # The node that responds may not know a new topic yet.
            if partition in found:
                return found[partition].leader
        raise TimeoutError(f"no node knows {topic}-{partition} after {timeout_s} s")

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int | None = None,
        configs: Mapping[str, str] | None = None,
        timeout_s: float = 60,
    ) -> None:
        """Creates a topic and waits until each of its partitions has a leader, which knows it, and all its
        replicas.

        ``replication``: default three, or the number of nodes if there are fewer.

        Raises KafkaStartError at once if there is such a topic with another number of partitions: two tests
        of one cluster use its name.
        """
        replicas = min(3, len(self.node_ids)) if replication is None else replication
        topic = NewTopic(name, partitions, replicas, config=dict(configs or {}))
        admin = self._admin()
        created = admin.create_topics([topic], operation_timeout=timeout_s, request_timeout=timeout_s)
        existed = False
        try:
            created[name].result()
        except KafkaException as error:
            # librdkafka repeats a request whose response was lost.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            existed = True
        # Its types lack OffsetSpec.
        specs: Any = untyped_admin
        latest = specs.OffsetSpec.latest()
        for _ in looks(timeout_s):
            with contextlib.suppress(KafkaException):
                found = admin.list_topics(name, timeout=1).topics[name].partitions.values()
                if existed and found and len(found) != partitions:
                    raise KafkaStartError(
                        f"topic {name!r} exists with {len(found)} partitions, not with {partitions}"
                    )
                if len(found) == partitions and all(p.leader > 0 and len(p.isrs) == replicas for p in found):
                    # Only a leader that knows that it is one answers this.
                    asked = {TopicPartition(name, number): latest for number in range(partitions)}
                    for answer in admin.list_offsets(asked, request_timeout=timeout_s).values():
                        answer.result()
                    return
        raise KafkaStartError(f"topic {name!r} was created but is not complete after {timeout_s} s")

    def dump_log(self, topic: str, partition: int, node_id: int | None = None) -> str:
        """Returns the output of Kafka's DumpLogSegments for a partition's files: all batches and records.

        Reads the files of ``node_id``, or of the first node that has the partition.
        """
        candidates = self.node_ids if node_id is None else [node_id]
        for candidate in candidates:
            files = sorted((self.log_dir(candidate) / f"{topic}-{partition}").glob("*.log"))
            if files:
                return self._dump(files)
        raise FileNotFoundError(f"none of the nodes {candidates} has data of {topic}-{partition}")

    def _dump(self, files: list[Path]) -> str:
        command = java(
            self._classpath,
            "kafka.tools.DumpLogSegments",
            *("--deep-iteration", "--print-data-log", "--files", ",".join(map(str, files))),
            options=["-Dlog4j2.level=ERROR"],
        )
        dump = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if dump.returncode != 0:
            raise KafkaStartError(f"DumpLogSegments failed ({dump.returncode}):\n{dump.stdout}{dump.stderr}")
        return dump.stdout

    def _start_nodes(self, directory: Path, deadline: float) -> None:
        self._nodes = {
            node_id: KafkaNode(node_id, directory / f"node-{node_id}", self._classpath, self._jvm_options)
            for node_id in range(1, self._node_count + 1)
        }
        names = [*self._listeners, "CONTROLLER"]
        with free_ports(len(names) * len(self._nodes)) as ports:
            for node in self._nodes.values():
                node.ports = {name: ports.pop() for name in names}
        cluster_id = "-"
        # Must not start with "-": it would be parsed as an option.
        while cluster_id.startswith("-"):
            cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        for node in self._nodes.values():
            node.configure(self._properties_of(node))
        # Each formatting starts a JVM, so they run in parallel.
        formatting = [(node, node.formatting(cluster_id)) for node in self._nodes.values()]
        for node, process in formatting:
            node.formatted(process)
        for node in self._nodes.values():
            node.start()
        self._wait_ready(deadline)

    def _stop_nodes(self, grace_s: float) -> None:
        for node in self._nodes.values():
            if grace_s > 0:
                node.signal("SIGTERM")
            # A paused process handles SIGTERM only after SIGCONT.
            node.signal("SIGCONT" if grace_s > 0 else "SIGKILL")
        deadline = time.monotonic() + grace_s
        for node in self._nodes.values():
            if not node.wait(max(0, deadline - time.monotonic())):
                self.kill(node.node_id)

    def _remove_directory(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory)
            self._directory = None

    def _properties_of(self, node: KafkaNode) -> dict[str, object]:
        replicas = min(3, self._node_count)
        in_sync = min(2, self._node_count)
        protocols = {**self._listeners, "CONTROLLER": "PLAINTEXT"}
        addresses = {name: f"{name}://127.0.0.1:{port}" for name, port in node.ports.items()}
        told = {name: node.ports[name] for name in self._listeners}
        told |= {name: ports[node.node_id] for name, ports in self._advertised.items()}
        return {
            "process.roles": "broker,controller",
            "node.id": node.node_id,
            "controller.quorum.voters": ",".join(
                f"{peer.node_id}@127.0.0.1:{peer.ports['CONTROLLER']}" for peer in self._nodes.values()
            ),
            "listeners": ",".join(addresses.values()),
            "advertised.listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in told.items()),
            "listener.security.protocol.map": ",".join(f"{name}:{protocols[name]}" for name in addresses),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": node.data,
            "num.partitions": 3,
            # Tests write records of the past, which the broker would delete 30 seconds after its start.
            "log.retention.ms": -1,
            "default.replication.factor": replicas,
            "auto.create.topics.enable": "true",
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync,
            "transaction.state.log.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": in_sync,
            "group.initial.rebalance.delay.ms": 0,
            # When a killed node's session ends, it leaves the in-sync replicas, and acks=all works again.
            "broker.session.timeout.ms": 4_000,
            "broker.heartbeat.interval.ms": 500,
            "controlled.shutdown.enable": "false",
            # The default of 128 MiB would be a quarter of the heap.
            "log.cleaner.dedupe.buffer.size": 2 * 1024 * 1024,
            **({"broker.rack": self._racks[node.node_id]} if self._racks else {}),
            **self._properties,
        }

    def _wait_ready(self, deadline: float) -> None:
        """Waits until all running nodes are live brokers in the cluster's metadata."""
        expected = {node.node_id for node in self._nodes.values() if node.running and not node.paused}
        down = set(self._nodes) - expected
        admin = self._admin()
        for _ in looks(deadline - time.monotonic()):
            for node in self._nodes.values():
                if not node.running and node.node_id not in down:
                    raise KafkaStartError(f"node {node.node_id} exited while starting:\n{node.logs()}")
            with contextlib.suppress(KafkaException):
                if expected <= set(admin.list_topics(timeout=1).brokers):
                    return
        logs = "\n".join(f"node {node.node_id}:\n{node.logs()}" for node in self._nodes.values())
        raise KafkaStartError(f"not all of the nodes {sorted(expected)} responded in time:\n{logs}")

    def _admin(self) -> AdminClient:
        """Returns an admin client. Keep a reference until its futures are done: they are lost with the
        client."""
        return AdminClient(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                # A starting broker refuses connections, which should not be logged.
                "log_level": 0,
            }
        )


@contextlib.contextmanager
def free_ports(count: int) -> Iterator[list[int]]:
    """Yields free ports of 127.0.0.1. They stay bound until the end of the block, so that all are
    different."""
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        for port in random.sample(PORTS, len(PORTS)):
            bound = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                bound.bind(("127.0.0.1", port))
                ports.append(port)
            if len(ports) == count:
                break
        yield ports
