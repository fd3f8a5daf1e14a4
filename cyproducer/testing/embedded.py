"""A Kafka cluster for tests in a process of its own: librdkafka's mock, from the confluent-kafka wheel.

Owns that process and the communication with it; `mock_cluster` runs inside it. All calls run on the calling
thread. The process ends when its stdin pipe closes, so also when its parent is killed.

As a pytest fixture::

    @pytest.fixture(scope="session")
    def broker() -> Iterator[EmbeddedBroker]:
        with EmbeddedBroker() as broker:
            yield broker
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from cyproducer.errors import BrokerResponseError, kafka_errors
from cyproducer.wire.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)

MOCK_CLUSTER = Path(__file__).with_name("mock_cluster.py")
STOP_TIMEOUT_S = 5.0

REQUESTS = {
    api.name: api.key
    for api in (
        PRODUCE,
        INIT_PRODUCER_ID,
        ADD_PARTITIONS_TO_TXN,
        ADD_OFFSETS_TO_TXN,
        TXN_OFFSET_COMMIT,
        END_TXN,
    )
}
"""The requests that can fail by name. The mock cluster ignores errors for Metadata and FindCoordinator, and
its ApiVersions responses with an error are malformed."""

# Where kafka-python's name, which is the class's ``message``, is not the protocol guide's of today.
_NAMES_IN_THE_GUIDE = {
    -1: "UNKNOWN_SERVER_ERROR",
    6: "NOT_LEADER_OR_FOLLOWER",
    10: "MESSAGE_TOO_LARGE",
    17: "INVALID_TOPIC_EXCEPTION",
}
ERRORS = {str(error.message): code for code, error in kafka_errors.items() if code} | {
    name: code for code, name in _NAMES_IN_THE_GUIDE.items()
}
"""The names of error codes: the protocol guide's, and those that this package's errors have."""


class EmbeddedBrokerError(RuntimeError):
    """The embedded broker could not carry out a call; the message says which one and why."""


class EmbeddedBroker:
    """One or more brokers on free ports of 127.0.0.1, with the protocol of a real Kafka and no disk.

    Supports produce, consume, idempotence, transactions and failures on request (`fail`, `fail_next`,
    `take_down`, `delay`, `move_leader`). It is not Kafka: topics are in memory, each partition keeps only its
    last 5 MB, and there is no replication, no TLS, no SASL and no admin API (use `create_topic`). A topic
    that is used without having been created gets four partitions.

    Transactions are those of Kafka before 4.0 (the first protocol). A producer sees no difference, but that
    nothing fences it unless `fail` does. Consumers do: ``read_committed`` hides no record, offsets that a
    transaction commits are not kept, and a consumer that verifies checksums (``check.crcs``) fails where a
    transaction ends.

    Connect with ``security_protocol="PLAINTEXT"``, the default: librdkafka's mock has nothing else. With
    another one the producer's error says that the port has no TLS, or no SASL, and which protocol to set.

    Can be used as a context manager. Thread-safe.

    Args:
        brokers: Number of brokers; their ids are 1, 2, ...
        partitions: Number of partitions that `create_topic` uses by default.
        topics: Topics to create at the start, name to number of partitions.

    Raises:
        ValueError: ``brokers`` or a number of partitions is below one.
    """

    def __init__(
        self, brokers: int = 1, partitions: int = 3, topics: Mapping[str, int] | None = None
    ) -> None:
        self._topics = dict(topics or {})
        for name, number in {"brokers": brokers, "partitions": partitions, **self._topics}.items():
            if number < 1:
                raise ValueError(f"{name} is {number}: must be at least 1")
        self._brokers = brokers
        self._partitions = partitions
        self._lock = threading.Lock()
        """Guards the process and its pipes: one command at a time, each followed by its reply."""
        self._process: subprocess.Popen[str] | None = None
        self._bootstrap_servers = ""

    @property
    def bootstrap_servers(self) -> str:
        """``host:port[,host:port...]``, one for each broker.

        Raises:
            EmbeddedBrokerError: The broker was not started, or was stopped.
        """
        if self._process is None:
            raise EmbeddedBrokerError("the embedded broker is not running: call start() or use `with`")
        return self._bootstrap_servers

    @property
    def pid(self) -> int | None:
        """The id of the broker's process, ``None`` while there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> EmbeddedBroker:
        """Start the brokers. Returns when they respond; does nothing if they are already running.

        Raises:
            ModuleNotFoundError: confluent-kafka is not installed.
            EmbeddedBrokerError: The process ended at once, the installed confluent-kafka has no mock cluster,
                or a topic given to the constructor cannot be created.
        """
        if importlib.util.find_spec("confluent_kafka") is None:
            advice = "pip install 'cyproducer[testing]'"
            if sys.version_info >= (3, 15):
                advice = "it has no wheels for Python 3.15 and later"
            raise ModuleNotFoundError(
                "EmbeddedBroker runs the mock cluster of the package confluent-kafka, which is missing: "
                f"{advice}",
                name="confluent_kafka",
            )
        with self._lock:
            if self._process is not None:
                return self
            # By path and with -P: the child imports nothing of cyproducer or the current directory.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(MOCK_CLUSTER), str(self._brokers)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                # Ctrl-C must reach only the parent, which may still want to drain.
                start_new_session=True,
            )
            try:
                self._bootstrap_servers = str(self._answer(self._process)["bootstrap_servers"])
            except BaseException:
                self._end()
                raise
        try:
            for name, partitions in self._topics.items():
                self.create_topic(name, partitions)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the process and with it all topics; does nothing if it is not running."""
        with self._lock:
            self._end()

    def __enter__(self) -> EmbeddedBroker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def create_topic(self, name: str, partitions: int | None = None) -> None:
        """Create a topic; the default number of partitions is the constructor's.

        Raises:
            EmbeddedBrokerError: The topic already exists, or the broker is not running.
        """
        self._ask("create_topic", name, self._partitions if partitions is None else partitions, self._brokers)

    def fail_next(self, api_key: int, *error_codes: int) -> None:
        """Make the next requests of one kind fail, one per error code, at any of the brokers.

        Args:
            api_key: The kind of request: 0 is Produce, 22 is InitProducerId.
            error_codes: Kafka's error codes; with 0 that request succeeds.

        Source: https://kafka.apache.org/protocol#protocol_api_keys and #protocol_error_codes.

        Raises:
            EmbeddedBrokerError: The broker is not running.
        """
        self._ask("fail_next", api_key, list(error_codes))

    def fail(self, request: str, error: str | type[BrokerResponseError], times: int = 1) -> None:
        """Make the next requests of one kind fail, at any of the brokers; like `fail_next`, by name.

        Args:
            request: ``"Produce"``, ``"InitProducerId"``, ``"AddPartitionsToTxn"``, ``"AddOffsetsToTxn"``,
                ``"TxnOffsetCommit"`` or ``"EndTxn"``.
            error: An error's name in Kafka's protocol (``"NOT_LEADER_OR_FOLLOWER"``), or its class in
                ``cyproducer.errors``.
            times: How many requests fail.

        Raises:
            ValueError: A name is unknown, the class belongs to no error code, or ``times`` is below one.
            EmbeddedBrokerError: The broker is not running.
        """
        if request not in REQUESTS:
            raise ValueError(f"request={request!r}: must be one of {', '.join(REQUESTS)}")
        if times < 1:
            raise ValueError(f"times={times}: must be at least 1")
        self._ask("fail_next", REQUESTS[request], [_error_code(error)] * times)

    def move_leader(self, topic: str, partition: int, broker_id: int) -> None:
        """Make another broker the leader of a partition.

        The old leader refuses records with ``NOT_LEADER_OR_FOLLOWER`` from now on.

        Raises:
            ValueError: There is no such broker.
            EmbeddedBrokerError: There is no such partition, or the broker is not running.
        """
        if not 1 <= broker_id <= self._brokers:
            raise ValueError(f"broker_id={broker_id}: must be 1 to {self._brokers}")
        self._ask("move_leader", topic, partition, broker_id)

    def take_down(self, broker_id: int) -> None:
        """Close one broker's connections and refuse new ones until `bring_up`.

        Raises:
            EmbeddedBrokerError: There is no such broker, or the cluster is not running.
        """
        self._ask("take_down", broker_id)

    def bring_up(self, broker_id: int) -> None:
        """Undo `take_down`."""
        self._ask("bring_up", broker_id)

    def delay(self, broker_id: int, delay_ms: int) -> None:
        """Delay every response of one broker by ``delay_ms`` milliseconds; 0 ends the delay."""
        self._ask("delay", broker_id, delay_ms)

    def _ask(self, command: str, *arguments: object) -> None:
        with self._lock:
            process = self._process
            if process is None:
                raise EmbeddedBrokerError(f"{command} needs a running embedded broker: call start() first")
            try:
                _pipe(process.stdin).write(json.dumps([command, *arguments]) + "\n")
                _pipe(process.stdin).flush()
            except BrokenPipeError:
                raise self._ended(process) from None
            self._answer(process)

    def _answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        line = _pipe(process.stdout).readline()
        if not line:
            raise self._ended(process)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EmbeddedBrokerError(answer["error"])
        return answer

    def _ended(self, process: subprocess.Popen[str]) -> EmbeddedBrokerError:
        status = process.wait(STOP_TIMEOUT_S)
        return EmbeddedBrokerError(
            f"the embedded broker's process ended with status {status}; its stderr says why"
        )

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        # Kill instead of closing stdin: a forked child may hold the pipe open, and nothing needs saving.
        process.kill()
        process.wait(STOP_TIMEOUT_S)
        _pipe(process.stdout).close()
        # Closing writes the buffered rest of a command to a dead process.
        with contextlib.suppress(BrokenPipeError):
            _pipe(process.stdin).close()


def _error_code(error: str | type[BrokerResponseError]) -> int:
    if isinstance(error, str):
        if error in ERRORS:
            return ERRORS[error]
        raise ValueError(f"error={error!r}: must be an error's class or one of {', '.join(ERRORS)}")
    code = getattr(error, "errno", None) if isinstance(error, type) else None
    if code not in kafka_errors or code == 0:
        raise ValueError(
            f"error={error!r}: must be a class of cyproducer.errors with an error code, or the code's name"
        )
    return int(code)


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None, "the process is started with both pipes"
    return stream
