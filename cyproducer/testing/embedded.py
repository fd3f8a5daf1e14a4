"""``EmbeddedBroker``: a Kafka cluster for tests, demos and laptops, in Python and in memory.

Owns its public API, and the names of requests and errors in it. Does not own the cluster
(``testing/broker``), which runs on a thread or in a process of its own.

As a pytest fixture::

    @pytest.fixture(scope="session")
    def broker() -> Iterator[EmbeddedBroker]:
        with EmbeddedBroker() as broker:
            yield broker
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from cyproducer.base.greenlet_hubs import is_patched
from cyproducer.errors import BrokerResponseError, kafka_errors
from cyproducer.records.topic_names import legal_topic
from cyproducer.testing.broker import releases

if TYPE_CHECKING:
    from cyproducer.testing.broker.control import StoredRecord
    from cyproducer.testing.broker.runner import ClusterProcess, ClusterThread

# Where kafka-python's name, which is the class's ``message``, is not the protocol guide's of today.
_NAMES_IN_THE_GUIDE: Final = {
    -1: "UNKNOWN_SERVER_ERROR",
    6: "NOT_LEADER_OR_FOLLOWER",
    10: "MESSAGE_TOO_LARGE",
    17: "INVALID_TOPIC_EXCEPTION",
}
ERRORS: Final = {str(error.message): code for code, error in kafka_errors.items() if code} | {
    name: code for code, name in _NAMES_IN_THE_GUIDE.items()
}
"""The names of error codes: the protocol guide's, and those that this package's errors have."""
_ALWAYS: Final = -1


class EmbeddedBrokerError(RuntimeError):
    """The embedded broker could not carry out a call; the message says which one and why."""


class EmbeddedBroker:
    """One or more brokers on free ports of 127.0.0.1, with Kafka's protocol and no disk.

    Clients of Kafka connect to it as to a Kafka 4.1: producers with idempotence and transactions of both
    protocols, readers of committed records, and administration. ``docs/testing.md`` has a table of what it
    does, and of what is not as in Kafka: topics are in memory, and there is no replication.

    Everything is kept until ``stop()``, unless ``max_bytes`` bounds it. ``records()`` returns what was
    written. ``fail``, ``cut``, ``throttle``, ``delay``, ``take_down``, ``move_leader`` and
    ``move_coordinator`` cause trouble.

    Can be used as a context manager. Thread-safe.

    Args:
        brokers: Number of brokers; their ids are 1, 2, ...
        partitions: Number of partitions of a topic that is created without a number, or on demand.
        topics: Topics to create at the start, name to number of partitions.
        auto_create: Whether a topic that a client asks for is created (``auto.create.topics.enable``).
        max_bytes: How many bytes all logs together may hold. A broker that is full refuses records with
            POLICY_VIOLATION and says why. None: no limit.
        kafka_version: The release whose versions of requests, and protocol of transactions, the brokers have:
            "2.1" to "4.1".
        process: Whether it runs in a process of its own instead of a thread of this one. It starts in about
            0.3 s then instead of 5 ms, and takes no part in this process's GIL. None: only if gevent or
            eventlet has patched this process.

    Raises:
        ValueError: a number is below one, a topic's name is not allowed, or ``kafka_version`` is no release.
    """

    def __init__(
        self,
        brokers: int = 1,
        partitions: int = 3,
        topics: Mapping[str, int] | None = None,
        *,
        auto_create: bool = True,
        max_bytes: int | None = None,
        kafka_version: str = "4.1",
        process: bool | None = None,
    ) -> None:
        named = dict(topics or {})
        numbers: dict[str, int] = {"brokers": brokers, "partitions": partitions, **named}
        if max_bytes is not None:
            numbers["max_bytes"] = max_bytes
        for name, number in numbers.items():
            if number < 1:
                raise ValueError(f"{name} is {number}: must be at least 1")
        for name in named:
            legal_topic(name)
        self._brokers = brokers
        self._process = process
        self._options = {
            "nodes": brokers,
            "partitions": partitions,
            "topics": named,
            "auto_create": auto_create,
            "max_bytes": max_bytes,
            "release": releases.parsed(kafka_version),
        }
        self._running: ClusterThread | ClusterProcess | None = None
        self._bootstrap_servers = ""

    # Its life

    @property
    def bootstrap_servers(self) -> str:
        """``host:port[,host:port...]``, one for each broker.

        Raises:
            EmbeddedBrokerError: The broker was not started, or was stopped.
        """
        if self._running is None:
            raise EmbeddedBrokerError("the embedded broker is not running: call start() or use `with`")
        return self._bootstrap_servers

    @property
    def pid(self) -> int | None:
        """The id of the process that it runs in, ``None`` while it does not run."""
        return None if self._running is None else self._running.pid

    def start(self) -> EmbeddedBroker:
        """Start the brokers. Returns when they listen; does nothing if they are already running.

        Raises:
            EmbeddedBrokerError: The process ended at once.
            OSError: A port cannot be opened.
        """
        if self._running is not None:
            return self
        # Imported here: asyncio takes long, and a program may use only MockProducer.
        from cyproducer.testing.broker import runner

        in_process = is_patched() if self._process is None else self._process
        running = runner.ClusterProcess(self._options) if in_process else runner.ClusterThread(self._options)
        try:
            running.start()
        except runner.Ended as error:
            raise EmbeddedBrokerError(f"the embedded broker did not start: {error}") from None
        self._running = running
        self._bootstrap_servers = str(self._call("addresses"))
        return self

    def stop(self) -> None:
        """End the brokers and with them all topics; does nothing if they are not running."""
        running, self._running = self._running, None
        if running is not None:
            running.stop()

    def __enter__(self) -> EmbeddedBroker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # Topics and records

    def create_topic(self, name: str, partitions: int | None = None) -> None:
        """Create a topic; the default number of partitions is the constructor's.

        Raises:
            EmbeddedBrokerError: The topic already exists, or the broker is not running.
        """
        self._call("create_topic", name, partitions)

    @property
    def topics(self) -> dict[str, int]:
        """The topics, name to number of partitions."""
        found: dict[str, int] = self._call("topics")
        return found

    def records(
        self, topic: str, partition: int | None = None, *, committed: bool = True, offset: int = 0
    ) -> list[StoredRecord]:
        """Return the records of a topic, or of one partition, partition by partition, in order.

        Args:
            topic: Its name.
            partition: None for all.
            committed: Leave out records of transactions that are open or were aborted, as readers with
                ``isolation.level=read_committed`` do.
            offset: The first offset, of each partition.

        Returns:
            Named tuples: ``topic``, ``partition``, ``offset``, ``timestamp`` (ms), ``key``, ``value``,
            ``headers``.

        Raises:
            EmbeddedBrokerError: There is no such topic or partition, or the broker is not running.
        """
        found: list[StoredRecord] = self._call("records", topic, partition, committed, offset)
        return found

    def end_offsets(self, topic: str) -> list[int]:
        """Return the offset behind the last record of each partition of a topic.

        Raises:
            EmbeddedBrokerError: There is no such topic, or the broker is not running.
        """
        found: list[int] = self._call("end_offsets", topic)
        return found

    # Trouble

    def fail_next(self, api_key: int, *error_codes: int) -> None:
        """Make the next requests of one kind fail, one per error code, at any of the brokers.

        Args:
            api_key: The kind of request: 0 is Produce, 22 is InitProducerId.
            error_codes: Kafka's error codes; with 0 that request succeeds.

        Source: https://kafka.apache.org/protocol#protocol_api_keys and #protocol_error_codes.

        Raises:
            EmbeddedBrokerError: There is no such request, or the broker is not running.
        """
        for code in error_codes:
            self._fault("fail", api_key, code, 1)

    def fail(
        self,
        request: str,
        error: str | type[BrokerResponseError],
        times: int = 1,
        *,
        topic: str | None = None,
        partition: int | None = None,
        broker_id: int | None = None,
    ) -> None:
        """Make the next requests of one kind fail; like `fail_next`, by name.

        Args:
            request: A request's name in Kafka's protocol: ``"Produce"``, ``"Fetch"``, ``"EndTxn"``, ...
            error: An error's name in Kafka's protocol (``"NOT_LEADER_OR_FOLLOWER"``), or its class in
                ``cyproducer.errors``.
            times: How many requests fail; -1: all until `clear_faults`.
            topic: Fail only this topic's part of a request.
            partition: Fail only this partition's part.
            broker_id: Fail only at this broker.

        Raises:
            ValueError: A name is unknown, the class belongs to no error code, or ``times`` is 0.
            EmbeddedBrokerError: The broker is not running.
        """
        key = _api_key(request)
        _check_times(times)
        code = _error_code(error)
        self._fault("fail", key, code, times, broker_id, topic, partition)

    def cut(
        self, request: str, times: int = 1, *, handled: bool = False, broker_id: int | None = None
    ) -> None:
        """Close the connection at the next requests of one kind, instead of responding.

        Args:
            request: As for `fail`.
            times: As for `fail`.
            handled: Whether the request is carried out before: the records of a Produce are written then,
                and only the response is lost.
            broker_id: As for `fail`.

        Raises:
            ValueError: The name is unknown, or ``times`` is 0.
            EmbeddedBrokerError: The broker is not running.
        """
        key = _api_key(request)
        _check_times(times)
        self._fault("cut after" if handled else "cut before", key, 1, times, broker_id)

    def throttle(self, request: str, throttle_ms: int, times: int = 1) -> None:
        """Throttle the client at its next requests of one kind, for ``throttle_ms`` milliseconds (KIP-219).

        Raises:
            ValueError: The name is unknown, or a number is not positive.
            EmbeddedBrokerError: The broker is not running.
        """
        key = _api_key(request)
        _check_times(times)
        if throttle_ms < 1:
            raise ValueError(f"throttle_ms={throttle_ms}: must be at least 1")
        self._fault("throttle", key, throttle_ms, times)

    def clear_faults(self) -> None:
        """Undo `fail_next`, `fail`, `cut`, `throttle` and `delay`, as far as they still apply."""
        self._call("clear_faults")

    def move_leader(self, topic: str, partition: int, broker_id: int) -> None:
        """Make another broker the leader of a partition.

        The old leader refuses records with ``NOT_LEADER_OR_FOLLOWER`` from now on.

        Raises:
            ValueError: There is no such broker.
            EmbeddedBrokerError: There is no such partition, or the broker is not running.
        """
        self._check_broker(broker_id)
        self._call("move_leader", topic, partition, broker_id)

    def move_coordinator(self, kind: str, name: str, broker_id: int) -> None:
        """Make another broker the coordinator of a group or a transactional id.

        Args:
            kind: ``"group"`` or ``"transactional_id"``.
            name: The group's or transactional id's.
            broker_id: The new coordinator.

        Raises:
            ValueError: ``kind`` is another word, or there is no such broker.
            EmbeddedBrokerError: The broker is not running.
        """
        if kind not in ("group", "transactional_id"):
            raise ValueError(f"kind={kind!r}: must be 'group' or 'transactional_id'")
        self._check_broker(broker_id)
        self._call("move_coordinator", kind, name, broker_id)

    def take_down(self, broker_id: int) -> None:
        """Close one broker's connections and refuse new ones until `bring_up`.

        Raises:
            EmbeddedBrokerError: There is no such broker, or the cluster is not running.
        """
        self._call("take_down", broker_id)

    def bring_up(self, broker_id: int) -> None:
        """Undo `take_down`."""
        self._call("bring_up", broker_id)

    def delay(self, broker_id: int, delay_ms: float) -> None:
        """Delay every response of one broker by ``delay_ms`` milliseconds; 0 ends the delay."""
        self._call("delay", broker_id, delay_ms)

    def advance(self, milliseconds: float) -> None:
        """Move the brokers' time forward, so that timeouts of transactions and sessions are over.

        Raises:
            EmbeddedBrokerError: The broker is not running.
        """
        self._call("advance", milliseconds)

    def _check_broker(self, broker_id: int) -> None:
        if not 1 <= broker_id <= self._brokers:
            raise ValueError(f"broker_id={broker_id}: must be 1 to {self._brokers}")

    def _fault(
        self,
        kind: str,
        api_key: int,
        value: int,
        times: int,
        broker_id: int | None = None,
        topic: str | None = None,
        partition: int | None = None,
    ) -> None:
        self._call("add_fault", kind, api_key, value, times, broker_id, topic, partition)

    def _call(self, name: str, *arguments: Any) -> Any:
        """Calls a function of ``control`` where the cluster runs."""
        running = self._running
        if running is None:
            raise EmbeddedBrokerError(f"{name} needs a running embedded broker: call start() first")
        from cyproducer.testing.broker import control, runner

        try:
            return running.call(getattr(control, name), *arguments)
        except control.Refused as error:
            raise EmbeddedBrokerError(str(error)) from None
        except runner.Ended as error:
            raise EmbeddedBrokerError(f"{name} failed: the embedded broker is gone, {error}") from None


def _api_key(request: str) -> int:
    from cyproducer.testing.broker.cluster import HANDLERS

    keys = {api.name: api.key for api in HANDLERS}
    if request not in keys:
        raise ValueError(f"request={request!r}: must be one of {', '.join(keys)}")
    return keys[request]


def _check_times(times: int) -> None:
    if times < 1 and times != _ALWAYS:
        raise ValueError(f"times={times}: must be at least 1, or -1 for all")


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
