"""``EmbeddedBroker``: an in-memory Kafka cluster in Python, for tests, demos and laptops.

Owns its public API, and the names of requests and errors in it. Does not own the cluster
(``testing/broker``), which runs on a separate thread or in a separate process.

As a pytest fixture::

    @pytest.fixture(scope="session")
    def broker() -> Iterator[EmbeddedBroker]:
        with EmbeddedBroker() as broker:
            yield broker
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from cyproducer.base.greenlet_hubs import is_patched
from cyproducer.errors import BrokerResponseError, kafka_errors
from cyproducer.records.codecs import BY_NAME
from cyproducer.records.topic_names import legal_topic
from cyproducer.testing.broker import releases
from cyproducer.testing.pushed_metrics import PushedMetrics
from cyproducer.testing.stored_record import StoredRecord

if TYPE_CHECKING:
    import tempfile

    from cyproducer.testing.broker.runner import ClusterProcess, ClusterThread

# Error codes whose kafka-python name, which is the class's ``message``, differs from the name in the current
# protocol guide.
_NAMES_IN_THE_GUIDE: Final = {
    -1: "UNKNOWN_SERVER_ERROR",
    6: "NOT_LEADER_OR_FOLLOWER",
    10: "MESSAGE_TOO_LARGE",
    17: "INVALID_TOPIC_EXCEPTION",
}
ERRORS: Final = {str(error.message): code for code, error in kafka_errors.items() if code} | {
    name: code for code, name in _NAMES_IN_THE_GUIDE.items()
}
"""Name -> error code. Has the names in the protocol guide and the names of this package's errors."""
_ALWAYS: Final = -1
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PASSWORDS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class EmbeddedBrokerError(RuntimeError):
    """The embedded broker could not carry out a call; the message names the call and the reason."""


class EmbeddedBroker:
    """One or more brokers on free ports of 127.0.0.1, with Kafka's protocol and no disk.

    Kafka clients connect to it as to Kafka 4.1: producers with idempotence and transactions of both protocol
    versions, consumers of committed records, and admin clients. ``docs/testing.md`` has a table of the
    supported features and of the differences from Kafka: topics are in memory, and there is no replication.

    Records are kept until ``stop()``, or until they are older than the topic's ``retention.ms``.
    ``max_bytes`` limits their size. ``records()`` returns the records that were written. ``fail``, ``cut``,
    ``throttle``, ``delay``, ``take_down``, ``move_leader`` and ``move_coordinator`` inject faults.

    Can be used as a context manager. Thread-safe.

    Args:
        brokers: Number of brokers; their ids are 1, 2, ...
        partitions: Number of partitions of a topic that is created without a number, or on demand.
        topics: Topics to create at the start: topic name -> number of partitions.
        racks: The brokers' racks (``broker.rack``), in the order of their ids. None: they have none.
        port: The first broker's port; the other brokers use the following ports. 0: free ports.
        auto_create: Whether a topic is created when a client requests it (``auto.create.topics.enable``).
        max_bytes: The maximum total size of all logs in bytes. A full broker refuses records with
            POLICY_VIOLATION and a message with the reason. None: no limit.
        kafka_version: The Kafka release whose request versions and transaction protocol the brokers support:
            "2.1" to "4.4".
        security_protocol: "PLAINTEXT", "SSL", "SASL_PLAINTEXT" or "SASL_SSL", for the clients' option of that
            name.
        ssl_certfile: A PEM file with the brokers' certificate, for "127.0.0.1". None: the package trustme or
            the command openssl generates a certificate. `ssl_cafile` is for clients.
        ssl_keyfile: The certificate's private key, without a password.
        ssl_client_cafile: Clients must have a certificate that this authority has signed. The subject of a
            client's certificate is its principal, unless SASL is used.
        users: With SASL: user -> password, for PLAIN and SCRAM.
        sasl_mechanisms: "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER". None: the first three if
            there are ``users``, and the last one if there is an ``oauth_validator``.
        oauth_validator: Receives a token and returns the user; raises ``ValueError`` if the token is invalid.
            It is called on the broker's thread. With ``process=True``, it must be a module-level function.
        session_lifetime_ms: The time in milliseconds after which a client must authenticate again (KIP-368).
            0: never.
        process: Whether the cluster runs in a separate process instead of on a thread of this process. A
            process starts in about 0.2 s instead of a few milliseconds, and does not share this process's
            GIL. None: only if gevent or eventlet has patched this process.

    Raises:
        ValueError: A number is below one, a topic name is not allowed, ``kafka_version`` is not a release,
            there is not one of the ``racks`` per broker, or the security options contradict each other.
    """

    def __init__(
        self,
        brokers: int = 1,
        partitions: int = 3,
        topics: Mapping[str, int] | None = None,
        *,
        racks: Sequence[str] | None = None,
        port: int = 0,
        auto_create: bool = True,
        max_bytes: int | None = None,
        kafka_version: str = "4.1",
        security_protocol: str = "PLAINTEXT",
        ssl_certfile: str | os.PathLike[str] | None = None,
        ssl_keyfile: str | os.PathLike[str] | None = None,
        ssl_client_cafile: str | os.PathLike[str] | None = None,
        users: Mapping[str, str] | None = None,
        sasl_mechanisms: Sequence[str] | None = None,
        oauth_validator: Callable[[str], str] | None = None,
        session_lifetime_ms: int = 0,
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
        if racks is not None and (isinstance(racks, str) or len(racks) != brokers):
            raise ValueError(f"racks={racks!r}: must have one rack per broker, and brokers={brokers}")
        self._brokers = brokers
        self._process = process
        self._options: dict[str, Any] = {
            "nodes": brokers,
            "racks": racks if racks is None else list(racks),
            "port": port,
            "partitions": partitions,
            "topics": named,
            "auto_create": auto_create,
            "max_bytes": max_bytes,
            "release": releases.parsed(kafka_version),
            "authentication": _authentication(
                security_protocol, users, sasl_mechanisms, oauth_validator, session_lifetime_ms
            ),
        }
        self._has_tls = security_protocol in ("SSL", "SASL_SSL")
        if (ssl_certfile is None) != (ssl_keyfile is None):
            raise ValueError("ssl_certfile and ssl_keyfile go together: give both or neither")
        if not self._has_tls and (ssl_certfile or ssl_client_cafile):
            raise ValueError(f"security_protocol={security_protocol!r} has no TLS: use 'SSL' or 'SASL_SSL'")
        self._certificate: tuple[str, str] | None = None
        if ssl_certfile is not None and ssl_keyfile is not None:
            self._certificate = os.fspath(ssl_certfile), os.fspath(ssl_keyfile)
        self._client_cafile = None if ssl_client_cafile is None else os.fspath(ssl_client_cafile)
        self._made: tempfile.TemporaryDirectory[str] | None = None
        self._files = ("", "")
        self._ssl_cafile: str | None = None
        self._running: ClusterThread | ClusterProcess | None = None
        self._bootstrap_servers = ""

    # Lifecycle

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
        """The id of the process that the cluster runs in; ``None`` while it is not running."""
        return None if self._running is None else self._running.pid

    @property
    def ssl_cafile(self) -> str | None:
        """The file for the clients' ``ssl_cafile``; None unless the cluster has generated a certificate."""
        return self._ssl_cafile

    def start(self) -> EmbeddedBroker:
        """Start the brokers. Returns when they listen; does nothing if they are already running.

        Raises:
            EmbeddedBrokerError: The process ended immediately, or no certificate can be generated.
            OSError: A port cannot be opened.
        """
        if self._running is not None:
            return self
        # Imported here: it takes long, and a program may use only MockProducer.
        from cyproducer.testing.broker import runner

        if self._has_tls:
            self._options["tls"] = (*self._server_certificate(), self._client_cafile)
        in_process = is_patched() if self._process is None else self._process
        running = runner.ClusterProcess(self._options) if in_process else runner.ClusterThread(self._options)
        try:
            running.start()
        except runner.Ended as error:
            raise EmbeddedBrokerError(f"the embedded broker did not start: {error}") from None
        self._running = running
        self._bootstrap_servers = str(self._call("addresses"))
        return self

    def _server_certificate(self) -> tuple[str, str]:
        if self._certificate is not None:
            return self._certificate
        if self._made is None:
            # Imported here: tempfile takes long, and most brokers have no TLS.
            import tempfile

            from cyproducer.testing.broker import tls

            self._made = tempfile.TemporaryDirectory(prefix="cyproducer-embedded-")
            try:
                made = tls.make(Path(self._made.name))
            except tls.NoCertificate as error:
                raise EmbeddedBrokerError(str(error)) from None
            self._ssl_cafile = made.authority
            self._files = made.certificate, made.key
        return self._files

    def stop(self) -> None:
        """Stop the brokers and discard all topics; does nothing if they are not running."""
        running, self._running = self._running, None
        if running is not None:
            running.stop()

    def __enter__(self) -> EmbeddedBroker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _log_requests(self, write: Callable[[str], object]) -> None:
        """Call ``write`` with a line for each request, on the broker's thread.

        Not available with ``process=True``.
        """
        self._call("log_requests", write)

    # Topics and records

    def create_topic(self, name: str, partitions: int | None = None) -> None:
        """Create a topic; the default number of partitions is that of the constructor.

        Raises:
            EmbeddedBrokerError: The topic already exists, or the broker is not running.
        """
        self._call("create_topic", name, partitions)

    @property
    def topics(self) -> dict[str, int]:
        """The topics: name -> number of partitions."""
        found: dict[str, int] = self._call("topics")
        return found

    def records(
        self, topic: str, partition: int | None = None, *, committed: bool = True, offset: int = 0
    ) -> list[StoredRecord]:
        """Return the records of a topic, or of one partition, ordered by partition and offset.

        Args:
            topic: The topic's name.
            partition: The partition; None for all partitions.
            committed: Leave out records of open or aborted transactions, as consumers with
                ``isolation.level=read_committed`` do.
            offset: The first offset to return from each partition.

        Returns:
            Named tuples: ``topic``, ``partition``, ``offset``, ``timestamp`` (ms), ``key``, ``value``,
            ``headers``.

        Raises:
            EmbeddedBrokerError: There is no such topic or partition, or the broker is not running.
        """
        found: list[StoredRecord] = self._call("records", topic, partition, committed, offset)
        return found

    def end_offsets(self, topic: str) -> list[int]:
        """Return the offset after the last record of each partition of a topic.

        Raises:
            EmbeddedBrokerError: There is no such topic, or the broker is not running.
        """
        found: list[int] = self._call("end_offsets", topic)
        return found

    # Faults

    def fail_next(self, api_key: int, *error_codes: int) -> None:
        """Make the next requests of one kind fail, one per error code, on any broker.

        Args:
            api_key: The kind of request: 0 is Produce, 22 is InitProducerId.
            error_codes: Kafka's error codes; with 0 that request succeeds.

        Source: https://kafka.apache.org/protocol#protocol_api_keys and #protocol_error_codes.

        Raises:
            EmbeddedBrokerError: There is no such request, or the broker is not running.
        """
        for code in error_codes:
            self._call("add_fault", "fail", api_key, code, 1)

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
        """Make the next requests of one kind fail; like `fail_next`, but with names.

        Args:
            request: A request's name in Kafka's protocol: ``"Produce"``, ``"Fetch"``, ``"EndTxn"``, ...
            error: An error's name in Kafka's protocol (``"NOT_LEADER_OR_FOLLOWER"``), or its class in
                ``cyproducer.errors``.
            times: How many requests fail; -1: all until `clear_faults`.
            topic: Fail only this topic's part of a request.
            partition: Fail only this partition's part.
            broker_id: Fail only on this broker.

        Raises:
            ValueError: A name is unknown, the class has no error code, or ``times`` is 0.
            EmbeddedBrokerError: The broker is not running.
        """
        self._fault("fail", request, times, _error_code(error), broker_id, topic, partition)

    def cut(
        self, request: str, times: int = 1, *, handled: bool = False, broker_id: int | None = None
    ) -> None:
        """Close the connection instead of responding to the next requests of one kind.

        Args:
            request: As for `fail`.
            times: As for `fail`.
            handled: Whether the request is handled first: the records of a Produce request are then written,
                and only the response is lost.
            broker_id: As for `fail`.

        Raises:
            ValueError: The name is unknown, or ``times`` is 0.
            EmbeddedBrokerError: The broker is not running.
        """
        self._fault("cut after" if handled else "cut before", request, times, 1, broker_id)

    def throttle(self, request: str, throttle_ms: int, times: int = 1) -> None:
        """Throttle a client's next requests of one kind, each for ``throttle_ms`` milliseconds (KIP-219).

        Raises:
            ValueError: The name is unknown, or a number is not positive.
            EmbeddedBrokerError: The broker is not running.
        """
        if throttle_ms < 1:
            raise ValueError(f"throttle_ms={throttle_ms}: must be at least 1")
        self._fault("throttle", request, times, throttle_ms)

    def clear_faults(self) -> None:
        """Undo `fail_next`, `fail`, `cut`, `throttle` and `delay`, if they still apply."""
        self._call("clear_faults")

    def move_leader(self, topic: str, partition: int, broker_id: int) -> None:
        """Make another broker the leader of a partition.

        From then on, the old leader refuses records with ``NOT_LEADER_OR_FOLLOWER``.

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
            name: The group id or the transactional id.
            broker_id: The new coordinator.

        Raises:
            ValueError: ``kind`` has another value, or there is no such broker.
            EmbeddedBrokerError: The broker is not running.
        """
        if kind not in ("group", "transactional_id"):
            raise ValueError(f"kind={kind!r}: must be 'group' or 'transactional_id'")
        self._check_broker(broker_id)
        self._call("move_coordinator", kind, name, broker_id)

    def take_down(self, broker_id: int) -> None:
        """Close one broker's connections and refuse new ones until `bring_up`.

        Other brokers take over its partitions, groups and transactional ids. No records are lost.

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

    # Rights

    def allow(self, principal: str, operation: str, **resource: str) -> None:
        """Allow a principal an operation, as a Kafka ACL does.

        A topic, group, transactional id or the cluster without any right is open to all principals, as with
        ``allow.everyone.if.no.acl.found=true``. Once it has a right, only principals with a right can use it.
        "READ", "WRITE", "DELETE" and "ALTER" include "DESCRIBE".

        Args:
            principal: ``"User:alice"``; ``"User:ANONYMOUS"`` without authentication; ``"User:*"`` for all.
            operation: ``"READ"``, ``"WRITE"``, ``"CREATE"``, ``"DESCRIBE"``, ... or ``"ALL"``.
            resource: One of ``topic="orders"``, ``group="..."``, ``transactional_id="..."``, or
                ``cluster="kafka-cluster"``. A name can end with ``*``.

        Raises:
            ValueError: The operation or the kind of resource is unknown.
            EmbeddedBrokerError: The broker is not running.
        """
        self._right(True, principal, operation, resource)

    def deny(self, principal: str, operation: str, **resource: str) -> None:
        """Deny a principal an operation, even if the principal is also allowed it; see `allow`."""
        self._right(False, principal, operation, resource)

    def clear_rights(self) -> None:
        """Undo `allow` and `deny`."""
        self._call("clear_rights")

    def set_user(self, name: str, password: str | None) -> None:
        """Add a user, change its password, or remove it (None). Open connections stay open."""
        self._call("set_user", name, password)

    def _right(self, allows: bool, principal: str, operation: str, resource: dict[str, str]) -> None:
        from cyproducer.testing.broker import access

        if operation != "ALL" and operation not in access.OPERATIONS:
            raise ValueError(f"operation={operation!r}: must be ALL or one of {', '.join(access.OPERATIONS)}")
        if len(resource) != 1 or not set(resource) <= set(access.OF):
            raise ValueError(f"resource: must be one of {', '.join(f'{kind}=...' for kind in access.OF)}")
        ((kind, name),) = resource.items()
        self._call("add_right", allows, principal, operation, kind, name)

    # Telemetry

    def subscribe_telemetry(
        self,
        *metrics: str,
        push_interval_ms: int = 300_000,
        delta: bool = False,
        compression: Sequence[str] = ("zstd", "lz4", "gzip", "snappy"),
        max_bytes: int = 1 << 20,
    ) -> None:
        """Have clients push their metrics (KIP-714); replaces an earlier subscription.

        Clients notice that a broker takes metrics only on connections that they make after the first call of
        this: call it before, without ``metrics`` if they are to be chosen later. A client that has metrics to
        push notices a new subscription with its next push, any other asks again after ``push_interval_ms``.

        Args:
            metrics: Prefixes of metrics' names; none: no metrics are pushed, ``"*"``: all are.
            push_interval_ms: The time between two pushes of a client, in milliseconds.
            delta: Whether sums are pushed as the increase since the last push, not since the start.
            compression: The codecs that clients may use, the preferred one first.
            max_bytes: The largest push in bytes, compressed.

        Raises:
            ValueError: A codec is unknown, or a number is below one.
            EmbeddedBrokerError: The broker is not running, or ``kafka_version`` is older than 3.7.
        """
        for name, number in (("push_interval_ms", push_interval_ms), ("max_bytes", max_bytes)):
            if number < 1:
                raise ValueError(f"{name}={number}: must be at least 1")
        for codec in compression:
            if codec not in BY_NAME:
                raise ValueError(f"compression={codec!r}: must be one of {', '.join(BY_NAME)}")
        codec_ids = tuple(BY_NAME[codec].codec_id for codec in compression)
        self._call("subscribe", metrics, push_interval_ms, delta, codec_ids, max_bytes)

    def telemetry(self) -> list[PushedMetrics]:
        """Return what clients have pushed so far, in the order of arrival.

        Raises:
            EmbeddedBrokerError: The broker is not running.
        """
        pushed: list[PushedMetrics] = self._call("pushes")
        return pushed

    # Time

    def advance(self, milliseconds: float) -> None:
        """Move the brokers' time forward, so that transactions and sessions time out, and retention ends.

        The brokers look for old records every 5 minutes, and for old offsets every 10 minutes, as in Kafka.

        Raises:
            EmbeddedBrokerError: The broker is not running.
        """
        self._call("advance", milliseconds)

    def _check_broker(self, broker_id: int) -> None:
        if not 1 <= broker_id <= self._brokers:
            raise ValueError(f"broker_id={broker_id}: must be 1 to {self._brokers}")

    def _fault(self, kind: str, request: str, times: int, value: int, *where: int | str | None) -> None:
        """Sets a fault. ``where``: broker, topic and partition; all of them if they are missing."""
        from cyproducer.testing.broker.cluster import HANDLERS

        keys = {api.name: api.key for api in HANDLERS}
        if request not in keys:
            raise ValueError(f"request={request!r}: must be one of {', '.join(keys)}")
        if times < 1 and times != _ALWAYS:
            raise ValueError(f"times={times}: must be at least 1, or -1 for all")
        self._call("add_fault", kind, keys[request], value, times, *where)

    def _call(self, name: str, *arguments: Any) -> Any:
        """Calls a function of ``control`` on the thread or in the process where the cluster runs."""
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


def _authentication(
    security_protocol: str,
    users: Mapping[str, str] | None,
    mechanisms: Sequence[str] | None,
    validator: Callable[[str], str] | None,
    session_ms: int,
) -> dict[str, Any]:
    """Checks the SASL options, and returns the arguments of ``Access``."""
    if security_protocol not in _PROTOCOLS:
        raise ValueError(f"security_protocol={security_protocol!r}: must be one of {', '.join(_PROTOCOLS)}")
    if "SASL" not in security_protocol:
        if users or mechanisms or validator:
            raise ValueError(
                f"security_protocol={security_protocol!r} has no SASL: use 'SASL_PLAINTEXT' or 'SASL_SSL'"
            )
        return {}
    if mechanisms is None:
        mechanisms = [*(_PASSWORDS if users else ()), *(("OAUTHBEARER",) if validator else ())]
    for name in mechanisms:
        if name not in (*_PASSWORDS, "OAUTHBEARER"):
            raise ValueError(f"sasl_mechanisms: {name!r} must be one of {', '.join(_PASSWORDS)}, OAUTHBEARER")
    if not mechanisms:
        raise ValueError(f"security_protocol={security_protocol!r} needs users or an oauth_validator")
    if "OAUTHBEARER" in mechanisms and validator is None:
        raise ValueError("sasl_mechanisms: OAUTHBEARER needs an oauth_validator")
    if session_ms < 0:
        raise ValueError(f"session_lifetime_ms={session_ms}: must be at least 0")
    return {
        "users": dict(users or {}),
        "mechanisms": list(mechanisms),
        "validator": validator,
        "session_ms": session_ms,
    }


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
