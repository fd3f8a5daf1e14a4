"""The embedded broker in the shape of a `KafkaCluster`, so that a test can run on either.

Owns the translation of the cluster's calls. What the embedded broker does not have raises
``NotImplementedError``: a test that needs it is marked ``kafka_only`` (``tests/integration/conftest.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cyproducer.testing import EmbeddedBroker
from tools.harness.kafka_cluster import KafkaCluster

PLAINTEXT = "PLAINTEXT"


class EmbeddedKafka(KafkaCluster):
    """Embedded brokers with the ids 1, 2, ..., in a process of their own. A context manager.

    Args:
        nodes: Number of brokers.
        listeners: Options of `EmbeddedBroker` by name of a listener, in addition to PLAINTEXT. Each listener
            is a cluster of its own: a topic is created in all of them, and has the records that came through
            its listener. See `reading`.
        clients: Options of librdkafka by name of a listener, with which a test reads back.
        options: Options of `EmbeddedBroker`, for PLAINTEXT.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        listeners: Mapping[str, Mapping[str, Any]] | None = None,
        clients: Mapping[str, Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(nodes)
        self._down: set[int] = set()
        self._clients = dict(clients or {})
        self._stack = ExitStack()
        self.brokers = {
            name: EmbeddedBroker(nodes, **{"process": True, **given})
            for name, given in {PLAINTEXT: options, **(listeners or {})}.items()
        }
        """The clusters, by name of their listener."""

    @property
    def _main(self) -> EmbeddedBroker:
        return self.brokers[PLAINTEXT]

    def start(self, timeout_s: float = 90) -> EmbeddedKafka:
        for broker in self.brokers.values():
            self._stack.enter_context(broker)
        return self

    def stop(self, grace_s: float = 2) -> None:
        self._stack.close()

    @property
    def node_ids(self) -> list[int]:
        return list(range(1, self._node_count + 1))

    def bootstrap(self, listener: str) -> str:
        return self.brokers[listener].bootstrap_servers

    def reading(self, listener: str) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap(listener), **self._clients.get(listener, {})}

    def port(self, node_id: int, listener: str = PLAINTEXT) -> int:
        return int(self.bootstrap(listener).split(",")[node_id - 1].rpartition(":")[2])

    def pid(self, node_id: int) -> int | None:
        return None if node_id in self._down else self._main.pid

    def kill(self, node_id: int) -> None:
        """Closes a broker's connections, and refuses new ones."""
        self._down.add(node_id)
        self._main.take_down(node_id)

    def restart(self, node_id: int, timeout_s: float = 60) -> None:
        self._main.bring_up(node_id)
        self._down.discard(node_id)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int | None = None,
        configs: Mapping[str, str] | None = None,
        timeout_s: float = 30,
    ) -> None:
        super().create_topic(name, partitions, replication, configs, timeout_s)
        for listener, broker in self.brokers.items():
            if listener != PLAINTEXT:
                broker.create_topic(name, partitions)

    def pause(self, node_id: int) -> None:
        raise NotImplementedError("embedded brokers share a process, which can't be paused in part")

    def resume(self, node_id: int) -> None:
        raise NotImplementedError("embedded brokers share a process")

    def broker_log(self, node_id: int) -> Path:
        raise NotImplementedError("embedded brokers write no log file")

    def log_dir(self, node_id: int) -> Path:
        raise NotImplementedError("embedded brokers have no files")
