"""Provides the brokers of a comparison: starts each when a run first needs it, and stops all in
``__exit__``."""

import contextlib
import importlib.util
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from perf import null_broker
from perf.null_broker import NullBroker

if TYPE_CHECKING:
    from tools.harness.kafka_cluster import KafkaCluster

CREATE_S = 60

AS_INSTALLED = (
    "-Xmx1G",
    "-XX:-UseSerialGC",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:TieredStopAtLevel=4",
)
"""JVM options of Kafka's start script. The tests' brokers use options that start faster but compile worse;
they would take more CPU from the measured client."""


class NoBrokerError(Exception):
    """This kind of broker is not available on this machine. The message has the reason."""


class Brokers:
    """
    Args:
        given: the address of a real broker to use instead of starting a Kafka (which needs Java and Maven).
        without_real: do not use a real broker.
    """

    def __init__(self, given: str | None = None, *, without_real: bool = False) -> None:
        self._given = given
        self._without_real = without_real
        self._stack = contextlib.ExitStack()
        self._null: NullBroker | None = None
        self._real: KafkaCluster | None = None
        #: What options may refer to as ``{name}``.
        self.files: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        self._topics: dict[tuple[str, str], int] = {}

    def bootstrap(self, kind: str, topics: Mapping[str, int]) -> str:
        """Returns the address of a broker that has these topics, with the given numbers of partitions.

        Raises:
            NoBrokerError: the kind of broker is not available. Later calls for the kind raise it again.
        """
        if kind == "none":
            return ""
        if kind in self._refused:
            raise NoBrokerError(self._refused[kind])
        try:
            address = self._null_address() if kind == "null" else self._real_address(kind)
        except NoBrokerError as error:
            self._refused[kind] = str(error)
            raise
        # Topics are made through the listener that needs no settings.
        where = self._real.bootstrap_servers if kind == "tls" and self._real is not None else address
        made = "real" if kind == "tls" else kind
        for name, partitions in topics.items():
            if (made, name) not in self._topics:
                self._make_topic(made, where, name, partitions)
                self._topics[made, name] = partitions
        return address

    def _null_address(self) -> str:
        if problem := null_broker.unavailable():
            raise NoBrokerError(problem)
        if self._null is None:
            self._null = self._stack.enter_context(NullBroker(partitions=3))
        return self._null.bootstrap_servers

    def _real_address(self, kind: str) -> str:
        if self._without_real:
            raise NoBrokerError("the real broker is disabled")
        if self._given is not None:
            if kind == "tls":
                raise NoBrokerError("the given broker's TLS listener is not known")
            return self._given
        if self._real is None:
            self._real = self._start_real()
        return self._real.bootstrap("TLS" if kind == "tls" else "PLAINTEXT")

    def _start_real(self) -> "KafkaCluster":
        for module in ("confluent_kafka", "trustme"):
            if importlib.util.find_spec(module) is None:
                raise NoBrokerError(f"starting a Kafka needs {module}")
        from tools.harness.kafka_cluster import KafkaCluster
        from tools.harness.kafka_install import KafkaUnavailableError
        from tools.harness.tls import Authority, broker_properties

        authority = Authority()
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="perf-tls-")))
        self.files["ca"] = str(authority.file(directory))
        cluster = KafkaCluster(
            nodes=1,
            properties=broker_properties("TLS", authority, directory),
            listeners={"TLS": "SSL"},
            jvm_options=AS_INSTALLED,
        )
        try:
            return self._stack.enter_context(cluster)
        except KafkaUnavailableError as error:
            raise NoBrokerError(f"Kafka can't be started: {error}") from error

    def _make_topic(self, kind: str, address: str, name: str, partitions: int) -> None:
        if kind == "null":
            assert self._null is not None
            self._null.topic(name, partitions)
            return
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        admin: Any = AdminClient({"bootstrap.servers": address, "log_level": 0})
        try:
            admin.create_topics([NewTopic(name, partitions)], operation_timeout=CREATE_S)[name].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
