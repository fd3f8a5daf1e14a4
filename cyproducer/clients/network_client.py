"""Requests metadata, applies it to the accumulator, and handles failures of connections and topics.

Does not own connections (``connector``), decisions about batches (``control/batch_fate``), the producer id
(``producer_id``) or the loop (``sender``).

``tick`` and everything named ``on_...`` run with the loop lock held, one call at a time. Application threads
call the methods under "From application threads", which queue requests and wake up the sender; they read
``view``, an immutable snapshot that is replaced as a whole.
"""

import logging
import math
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from cyproducer import errors
from cyproducer.base import fork_lock
from cyproducer.base.clock import Clock, monotonic_ns, monotonic_s
from cyproducer.base.greenlets import Event
from cyproducer.base.log import Log
from cyproducer.base.text import counted
from cyproducer.base.threads import Condition
from cyproducer.clients.application_requests import ApplicationRequest, ApplicationRequests, Attempts
from cyproducer.clients.producer_id import COMPRESSING_MS, ProducerIdClient
from cyproducer.config import ProducerConfig
from cyproducer.control.batch_fate import FatePolicy
from cyproducer.control.cluster_view import BrokerMetadata, ClusterView
from cyproducer.control.idempotence import Idempotence
from cyproducer.control.log_limit import LogLimit
from cyproducer.control.metadata import FINAL_TOPIC_ERRORS, ClusterMetadata, MetadataChange
from cyproducer.control.node_states import Address
from cyproducer.control.retry import ExponentialBackoff, RetryPolicy
from cyproducer.errors.error_code import ErrorCode
from cyproducer.futures.waiting import refuse_wait_of_sender
from cyproducer.net.blocking_tasks import Background, Task
from cyproducer.net.connection import Connection
from cyproducer.net.connector import Connector, refuses_credentials, was_accepted
from cyproducer.net.dns import Resolver
from cyproducer.records.topic_names import legal_topic
from cyproducer.sender.sender import Sender
from cyproducer.wire import protocol
from cyproducer.wire.messages import GET_TELEMETRY_SUBSCRIPTIONS, METADATA
from cyproducer.wire.responses import ApiVersionsResponse, MetadataResponse

if TYPE_CHECKING:
    from cyproducer.clients.telemetry_client import TelemetryClient
    from cyproducer.clients.transaction_client import TransactionClient

CREATION_MS = 500
"""A broker that creates topics automatically first reports them as unknown, for less than this time."""
MOST_MISSING = 3
"""The most missing topics that a diagnosis names."""
AT_ONCE = 500
"""How many topics and partitions of a metadata response are processed without a look at the clock."""
SLICE_MS = 2.0
"""For how long a metadata response is processed before the sender sends again."""
PAUSE_MS = 2.0
"""The least time between two such slices, in which other Python threads get the GIL.

A thread that waits for the GIL asks for it only if nobody released it for 5 ms (``sys.setswitchinterval``).
The sender releases it after each slice, but takes it again before the other thread has woken up.
"""
MOST_ANSWERS = 1000
"""The most topics whose response times are remembered."""


class _TopicRefresh:
    """A request for a topic's metadata that only the response to a later metadata request can complete."""

    def __init__(self, topic: str, partitions: int) -> None:
        self.topic = topic
        # The number of partitions known before.
        self.partitions = partitions
        self.asked = False
        self.answered = False


class _Purge(NamedTuple):
    """Records that the caller abandons; ``done`` is set once they have failed."""

    queued: bool
    in_flight: bool
    error: Exception
    done: Event


class NetworkClient:
    """Keeps the sender supplied with leaders and connections, and owns the ``FatePolicy`` for batches."""

    def __init__(
        self,
        config: ProducerConfig,
        sender: Sender,
        clock: Clock,
        *,
        rng: Callable[[], float] | None = None,
        open_socket: Callable[[Address], socket.socket] | None = None,
        resolver: Resolver | None = None,
        background: Background | None = None,
    ) -> None:
        """
        Args:
            config: the producer's options.
            sender: the loop that this client serves.
            clock: the loop's clock.
            rng: returns a float in [0, 1), for jitter and the choice among brokers; None: ``random.random``.
            open_socket: creates a non-blocking, connecting socket; for tests and simulators.
            resolver: for tests and simulators.
            background: for simulators.
        """
        if rng is None:
            # Imported here because only an actual producer needs it: programs that only import this package
            # pay for each imported module. Other modules do the same.
            import random

            rng = random.random
        self._config = config
        self._sender = sender
        self._clock = clock
        self._log = Log("cyproducer", config.client_id)
        #: The rack whose partitions records without a key prefer; None: they prefer no rack.
        self._rack: str | None = config.client_rack if config.partitioner_rack_aware else None
        self._metadata = ClusterMetadata(
            config.bootstrap_addresses,
            rng,
            metadata_max_age_ms=config.metadata_max_age_ms,
            metadata_max_idle_ms=config.metadata_max_idle_ms,
            retry_backoff_ms=config.retry_backoff_ms,
            retry_backoff_max_ms=config.retry_backoff_max_ms,
            rebootstrap=config.metadata_recovery_strategy == "rebootstrap",
            rebootstrap_trigger_ms=config.metadata_recovery_rebootstrap_trigger_ms,
        )
        self._connector = Connector(
            config,
            sender,
            clock,
            rng,
            self._on_node_failure,
            on_features=self._on_features,
            on_authenticated=self._on_authenticated,
            cluster_id=self._expected_cluster,
            open_socket=open_socket,
            resolver=resolver,
            background=background,
        )
        # Kept even after a rebootstrap, which forgets the broker that failed.
        self._last_failure: tuple[BaseException, float] | None = None
        self._log_limit = LogLimit(self._log.log, sender.request_control)
        self._giving_back: Task[None] | None = None
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        idempotence = Idempotence(config.transactional_id is not None)
        #: Decides about batches that did not succeed.
        self.fates = FatePolicy(
            RetryPolicy(config.retries, config.delivery_timeout_ms, self._backoff),
            idempotence,
            self._metadata,
            self._log_limit,
            rng,
            self.diagnosis,
        )
        #: The transactions; None without a transactional id.
        self.transaction_client: TransactionClient | None = None
        # Obtains the producer id.
        self._identity: ProducerIdClient | TransactionClient
        if config.transactional_id is None:
            self._identity = ProducerIdClient(
                config, sender, idempotence, self._backoff, self._log_limit, rng, self._connector
            )
        else:
            with fork_lock.import_lock:
                from cyproducer.clients import transaction_client

            self._identity = self.transaction_client = transaction_client.TransactionClient(
                config,
                sender,
                idempotence,
                self._backoff,
                rng,
                self._connector,
                self._nodes,
                self.diagnosis,
            )
            self.fates.transaction_machine = self.transaction_client.machine
        #: The requests of the application, beyond those of a producer.
        self.application_requests = ApplicationRequests(
            config, sender, self._connector, self._nodes, self.diagnosis, self._backoff
        )
        #: Called after the view of the cluster has changed, on the sender thread or the thread in close().
        self.on_change: Callable[[], object] = lambda: None
        #: Pushes metrics to a broker that wants them; None if ``enable_metrics_push`` is False.
        self.telemetry: TelemetryClient | None = None
        if config.enable_metrics_push and config.metrics_enabled:
            # Not on the sender's thread: after a fork during an import, no thread of the child would finish
            # importing the module.
            with fork_lock.import_lock:
                from cyproducer.clients import telemetry_client

            self.telemetry = telemetry_client.TelemetryClient(config, sender, self._connector, rng)
        # The metadata response that is being processed, and topics to apply to the accumulator.
        self._intake: tuple[Iterator[MetadataChange], Connection, bool] | None = None
        self._next_slice_ms = -math.inf
        self._unapplied: dict[str, None] = {}
        # Topics that were recreated with fewer partitions, while batches for removed ones are still queued.
        self._shrunk: set[str] = set()
        self._topic_errors: dict[str, Exception] = {}
        # Topics that a log line has reported as missing.
        self._told_missing: set[str] = set()
        self._fatal: Exception | None = None
        #: The error with which the brokers refuse this client's credentials; None if the last broker did not.
        self._denied: Exception | None = None
        # Filled by application threads, emptied by the sender thread.
        self._wanted: deque[str] = deque()
        self._asked: set[str] = set()
        self._refreshes: deque[_TopicRefresh] = deque()
        # Taken from _refreshes: contained in the metadata request in flight, or in the next one.
        self._open_refreshes: list[_TopicRefresh] = []
        self._purges: deque[_Purge] = deque()
        # Topic -> the time of its last refresh whose response had no new partitions.
        self._answered_ms: dict[str, float] = {}
        #: The current view of the cluster; replaced as a whole, so that any thread may read it.
        self.view: ClusterView = self._metadata.view()
        # Notifies application threads that the view or a topic's error has changed.
        self._changed = Condition()

    # From application threads

    def want_topic(self, name: str) -> None:
        """Requests a topic's metadata, because a record waits for it."""
        if name in self._asked:
            return
        try:
            self._asked.add(name)
            self._wanted.append(name)
            self._sender.request_control()
        except BaseException:
            # Ctrl-C may occur between any two of these calls. Calling them twice is harmless.
            self._wanted.append(name)
            self._sender.request_control()
            raise

    def wait_for_topic(self, name: str, timeout_s: float) -> ClusterView:
        """Waits up to ``timeout_s`` seconds until the view has the topic's partitions, and returns the view.

        Raises:
            KafkaTimeoutError: the timeout expired; the message contains the errors of the attempts so far.
            BrokerResponseError: the broker rejected the topic with a final error.
            ProducerClosedError: the producer was closed, before or during the wait.
            TypeError, InvalidTopicError: the name is not a legal topic name.
        """
        # A name that can't be encoded would stop the control plane for all topics.
        name = legal_topic(name)
        view = self.view
        if view.knows(name):
            return view
        began_ns = monotonic_ns()
        try:
            return self._wait_for_topic(name, timeout_s)
        finally:
            self._sender.accumulator.add_metadata_wait_time(monotonic_ns() - began_ns)

    def _wait_for_topic(self, name: str, timeout_s: float) -> ClusterView:
        refuse_wait_of_sender(f"waiting for metadata of topic {name!r}")
        deadline = monotonic_s() + timeout_s
        with self._changed:
            self._topic_errors.pop(name, None)
        while True:
            view = self.view
            if view.knows(name):
                return view
            with self._changed:
                error = self._fatal or self._topic_errors.get(name) or self._denied
                if error is not None:
                    raise error
                self.want_topic(name)
                self._await_change(name, deadline, timeout_s)

    def refresh_topic(self, name: str, timeout_s: float) -> None:
        """Requests a topic's metadata again, and waits until the accumulator has it.

        A response without new partitions is trusted for ``retry_backoff_ms``: during that time, this method
        returns immediately.

        Raises:
            KafkaTimeoutError: no broker answered within ``timeout_s`` seconds.
            ProducerClosedError: the producer was closed, before or during the wait.
        """
        # Otherwise, sending repeatedly to a missing partition would request metadata once per record.
        if self._now_ms() - self._answered_ms.get(name, -math.inf) < self._config.retry_backoff_ms:
            return
        refuse_wait_of_sender(f"asking for metadata of topic {name!r}")
        deadline = monotonic_s() + timeout_s
        refresh = _TopicRefresh(name, len(self.view.partitions_for_topic(name) or ()))
        self._refreshes.append(refresh)
        self._sender.request_control()
        with self._changed:
            while not refresh.answered:
                if self._fatal is not None:
                    raise self._fatal
                self._await_change(name, deadline, timeout_s)

    def _await_change(self, name: str, deadline: float, timeout_s: float) -> None:
        """Waits for a change; raises at the deadline. The caller holds the lock."""
        if not self._changed.wait_until(deadline):
            raise self._no_metadata(name, f"{timeout_s:g} s")

    def why_no_metadata(self, name: str, within: str) -> str:
        """Returns the message of the error that ends a wait for a topic's metadata. Any thread."""
        return str(self._no_metadata(name, within).args[0])

    def _no_metadata(self, name: str, within: str, diagnosis: str | None = None) -> errors.KafkaTimeoutError:
        """Creates the error that ends a wait for a topic; its cause is the broker's error, if any."""
        code = self._metadata.topic_error(name)
        answered = errors.for_code(code) if code else None
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            # Brokers have responded. Other failures may explain why a later response is missing.
            why = "; ".join(filter(None, (self._missing(name, self._now_ms()), self._failures())))
        else:
            said = f"the broker says {answered.__name__}; " if answered else ""
            why = said + (diagnosis or self.diagnosis())
        error = errors.KafkaTimeoutError(f"no metadata of topic {name!r} within {within}: {why}")
        error.__cause__ = answered(f"topic {name!r}") if answered else None
        return error

    def wait_ready(self, timeout_s: float) -> None:
        """Waits until a broker has sent metadata.

        Raises:
            NoBrokersAvailable: no broker did within ``timeout_s`` seconds; the message contains the failure
                of each address.
        """
        if not self.view.brokers():
            refuse_wait_of_sender("wait_ready()")
        deadline = monotonic_s() + timeout_s
        with self._changed:
            while not self.view.brokers():
                if self._denied is not None:
                    raise errors.copied(self._denied)
                if self._fatal is not None or not self._changed.wait_until(deadline):
                    raise errors.NoBrokersAvailable(f"no broker within {timeout_s:g} s: {self.diagnosis()}")

    def list_topics(self, topics: list[str] | None, timeout_s: float) -> ApplicationRequest:
        """Requests topics (None: all) from a broker; waits up to ``timeout_s`` seconds. Creates no topic.

        Returns the request, with its response.

        Raises:
            KafkaTimeoutError: no broker responded in time; the message contains the failures.
            ProducerClosedError: the producer was closed, before or during the wait.
        """
        refuse_wait_of_sender("list_topics()")
        deadline = monotonic_s() + timeout_s
        attempts = Attempts(self.application_requests, "list_topics()", deadline, timeout_s)

        def encode(version: int, number: int, client_id: str) -> bytes:
            # Up to version 3, a request can't prevent the creation of topics.
            return protocol.encode_metadata(version, number, client_id, topics, version < 4)

        while True:
            request = ApplicationRequest(METADATA, encode, decode=protocol.decode_listing)
            if attempts.send(request):
                return request

    def purge(self, queued: bool, in_flight: bool, error: Exception) -> Event:
        """Fails the records that wait to be sent, or those in flight, or both, with copies of ``error``.

        Returns an event that is set once they have failed.
        """
        purge = _Purge(queued, in_flight, error, Event())
        self._purges.append(purge)
        self._sender.request_control()
        return purge.done

    @property
    def last_failure(self) -> tuple[BaseException, float] | None:
        """The last failure of a connection, and its time (ms); the same tuple until the next failure."""
        return self._last_failure

    def throttling(self) -> list[tuple[str, int, float]]:
        """Returns (address, node id, seconds left) for each broker that throttles this client."""
        now_ms = self._now_ms()
        return [
            (connection.where, connection.node_id, left_ms / 1000)
            for connection in list(self._connector.connections.values())
            if (left_ms := connection.throttled_ms(now_ms)) > 0
        ]

    def bootstrap_connected(self) -> bool:
        """Whether any connection to a broker has completed its handshake."""
        return self._connector.any_ready()

    def diagnosis(self, known: str = "") -> str:
        """Describes why there is no progress: ``known``, each address's failure, the last metadata error."""
        servers = ", ".join(f"{host}:{port}" for host, port in self._config.bootstrap_addresses)
        missing = [self._missing(name, self._now_ms()) for name in list(self._told_missing)[:MOST_MISSING]]
        found = "; ".join(filter(None, (self._failures(known), *missing)))
        if found:
            return found
        if self._last_failure is None:
            doing = "connected to" if self._connector.any_ready() else "still trying"
            return f"no failure so far, {doing} {servers}"
        cause, at_ms = self._last_failure
        return f"trying {servers} again since {cause}, {(self._now_ms() - at_ms) / 1000:.1f} s ago"

    def _failures(self, known: str = "") -> str:
        parts = (known, self._connector.diagnosis(), self._metadata.describe_last_error(self._now_ms()))
        return "; ".join(filter(None, parts))

    def metadata_age_s(self) -> float:
        """Returns the seconds since the last full metadata update; NaN if there was none."""
        return self._metadata.age_ms(self._now_ms()) / 1000

    # With the loop lock held

    def tick(self, now_ms: float) -> float:
        """Performs the work that is due; returns the milliseconds until the next work is due."""
        connections_ms = self._connector.tick(now_ms)
        self._track_topics(now_ms)
        while self._purges:
            purge = self._purges[0]
            if self._sender.purge(purge.queued, purge.in_flight, purge.error):
                break
            del self._purges[0]
            purge.done.set()
        for name in list(self._shrunk):
            self._apply(name)
        intake_ms = self._continue_intake(now_ms)
        overdue_ms = self._sender.close_overdue(now_ms)
        self._rebootstrap(now_ms)
        for node_id in self._sender.nodes_without_connection():
            self._connector.connect_to(node_id, now_ms)
        identity_ms = self._identity.tick(now_ms)
        requests_ms = self.application_requests.tick(now_ms, self._denied)
        telemetry_ms = math.inf
        if self.telemetry is not None and self.telemetry.is_offered:
            telemetry_ms = self.telemetry.tick(now_ms)
        metadata_ms = self._update_metadata(now_ms)
        self._fail_parked(now_ms)
        if self._denied is not None:
            # Fails the records sent since the refusal: the next attempt may be half a minute away.
            self._fail_denied(self._denied)
        # The steps above may have set a timeout after the connector's tick.
        connections_ms = min(connections_ms, self._connector.states.next_event_ms(now_ms))
        if self._shrunk or self._purges:
            connections_ms = min(connections_ms, COMPRESSING_MS)
        lines_ms = self._log_limit.flush(now_ms)
        memory_ms = self._give_back_memory(now_ms)
        clients_ms = min(identity_ms, requests_ms, telemetry_ms, metadata_ms)
        return max(0.0, min(clients_ms, intake_ms, overdue_ms, connections_ms, lines_ms, memory_ms))

    def _give_back_memory(self, now_ms: float) -> float:
        """Begins to free memory after a backlog; returns the milliseconds until the next check."""
        pool = self._sender.accumulator.pool
        if self._giving_back is not None and not self._giving_back.done:
            return math.inf
        if pool.turn(int(now_ms * 1e6)):
            # On another thread, because this one could not send in the meantime.
            self._giving_back = self._connector.background.start(pool.give_back)
            return math.inf
        next_ns = pool.next_turn_ns()
        return math.inf if next_ns is None else next_ns / 1e6 - now_ms

    def _nodes(self) -> list[int]:
        """Returns the nodes to connect to if any broker will do."""
        return list(self._metadata.broker_ids()) or self._connector.bootstrap

    def _now_ms(self) -> float:
        return self._clock.monotonic_ns() / 1e6

    def _announce(self) -> None:
        with self._changed:
            self.view = self._metadata.view()
            self._changed.notify_all()
        self.on_change()

    # Connections

    def on_socket_ready(self, connection: Connection, now_ms: float) -> None:
        """Handles a connect that succeeded or failed; see ``Connector.on_socket_ready``."""
        self._connector.on_socket_ready(connection, now_ms)

    def on_frame(self, connection: Connection, number: int, frame: bytes, now_ms: float) -> None:
        """Handles the response to a request other than Produce; see ``Connector.on_frame``."""
        self._connector.on_frame(connection, number, frame, now_ms)

    def _on_features(self, response: ApiVersionsResponse, now_ms: float) -> None:
        if self.transaction_client is not None:
            self.transaction_client.on_features(response, now_ms)
        if self.telemetry is not None and GET_TELEMETRY_SUBSCRIPTIONS.key in response.api_versions:
            self.telemetry.is_offered = True

    def _expected_cluster(self) -> str | None:
        """Returns the id of the cluster that the brokers must belong to; None if they are not checked."""
        config = self._config
        if config.metadata_cluster_check_enable and config.metadata_recovery_strategy == "rebootstrap":
            return self._metadata.cluster_id
        return None

    def _on_authenticated(self) -> None:
        self._denied = None

    def on_broken(self, connection: Connection, cause: Exception | None, now_ms: float) -> None:
        """Handles a closed connection: closed on purpose (``cause`` is None), or because of a failure."""
        cause = self._connector.on_broken(connection, cause, now_ms)
        if (
            type(cause) is errors.KafkaConnectionError
            and not self._metadata.broker_ids()
            and any(request.api is METADATA for request in connection.pending.values())
        ):
            cause = self._no_answer(connection)
        told = cause or errors.KafkaConnectionError(f"{connection.where}: closed by this client")
        self._connector.fail_pending(connection, told, now_ms)
        if cause is None:
            return
        if (
            refuses_credentials(connection, cause)
            # With newer credentials, a new connection may be accepted although a renewal was not.
            and not was_accepted(connection)
            and not self._connector.any_ready()
        ):
            self._refuse_waits(cause)
        self._on_node_failure(cause, now_ms)

    def _no_answer(self, connection: Connection) -> Exception:
        """Returns the error if the first broker closed the connection on the request after the handshake."""
        protocol = self._config.security_protocol
        if protocol.startswith("SASL"):
            return errors.KafkaConnectionError(
                f"{connection.where} closed the connection on the first request"
            )
        return errors.KafkaConnectionError(
            f"{connection.where} closed the connection on the first request: if it is a listener with SASL, "
            f"set security_protocol={'SASL_' + protocol!r} and sasl_mechanism"
        )

    def _refuse_waits(self, error: Exception) -> None:
        """Fails all waits for metadata immediately, because no broker accepts this client's credentials."""
        with self._changed:
            self._denied = error
            self._changed.notify_all()
        self._fail_denied(error)

    def _fail_denied(self, error: Exception) -> None:
        for name in self._sender.parked_topics():
            self._asked.discard(name)
            failed = self._sender.fail_parked(name, errors.told(error, False))
            if failed:
                self._failed(failed, error, "%s failed: %s", counted(failed, "record"), error)

    def _on_node_failure(self, cause: BaseException, now_ms: float) -> None:
        """Requests metadata after a broker can't be reached, because its partitions may have new leaders."""
        if self._metadata.broker_ids():
            self._metadata.request_update(f"a connection failed: {cause}")
        self._last_failure = cause, now_ms
        self._warn(now_ms, "%s", cause)

    def _rebootstrap(self, now_ms: float) -> None:
        reason = self._metadata.rebootstrap_reason(
            now_ms, self._connector.states.all_failing(self._metadata.broker_ids())
        )
        if reason is None:
            return
        self._start_over(reason, self._metadata.rebootstrap(), now_ms)

    def _start_over(self, reason: str, brokers: set[int], now_ms: float) -> None:
        self._warn(now_ms, "starting over from bootstrap_servers: %s", reason)
        for node_id in brokers:
            self._connector.drop(node_id, "is given up: starting over from bootstrap_servers", retire=True)

    # Metadata

    def _track_topics(self, now_ms: float) -> None:
        while self._wanted:
            name = self._wanted.popleft()
            known = self._metadata.partition_count(name)
            due = self._metadata.track(name, now_ms)
            if known:
                # Forgotten by the accumulator but not here, or requested twice: applies it again.
                self._apply(name)
            elif not due and (code := self._metadata.topic_error(name)) in FINAL_TOPIC_ERRORS:
                # Rejected recently, and too early for another request: no response would end the wait.
                self._refuse_topic(name, errors.for_code(code)(f"topic {name!r}"))
        while self._refreshes:
            refresh = self._refreshes.popleft()
            self._metadata.ask_anew(refresh.topic, now_ms)
            self._open_refreshes.append(refresh)

    def _end_refreshes(self) -> None:
        """Ends the refreshes that were contained in the request of the last metadata response."""
        now_ms = self._now_ms()
        if len(self._answered_ms) > MOST_ANSWERS:
            self._answered_ms.clear()
        for refresh in self._open_refreshes:
            refresh.answered = refresh.asked
            count = self._metadata.partition_count(refresh.topic) or 0
            if refresh.asked and refresh.partitions == count:
                self._answered_ms[refresh.topic] = now_ms
        self._open_refreshes = [each for each in self._open_refreshes if not each.answered]

    def _update_metadata(self, now_ms: float) -> float:
        """Sends a metadata request if one is due and a connection is ready; without a connection, connects.

        Returns the milliseconds until the next attempt.
        """
        delay_ms = self._metadata.next_update_ms(now_ms)
        if delay_ms > 0:
            return delay_ms
        connection, wait_ms = self._connector.connection_for(None, self._nodes(), now_ms)
        if connection is None:
            assert wait_ms is not None
            return wait_ms
        if self._metadata.is_full_due(now_ms):
            # Only a full update expires topics. The accumulator knows whether they were used after all.
            since_ms = now_ms - self._config.metadata_max_idle_ms
            used = [
                n for n in self._metadata.unused_topics(now_ms) if self._sender.topic_used_ms(n) > since_ms
            ]
            self._metadata.touch(used, now_ms)
            # Records wait for these topics: no request could be sent for that long.
            self._metadata.touch(self._sender.parked_topics(), now_ms)
        request = self._metadata.begin_request(now_ms)
        for refresh in self._open_refreshes:
            refresh.asked = True
        for name in request.expired:
            self._sender.forget_topic(name)
            self._asked.discard(name)
            self._topic_errors.pop(name, None)
            self._told_missing.discard(name)
        auto_create = self._config.allow_auto_create_topics
        encode = protocol.framing(protocol.encode_metadata, request.topics, auto_create)
        self._connector.request(connection, METADATA, encode, self._on_metadata, self._on_no_metadata)
        return self._config.request_timeout_ms

    def _on_no_metadata(self, connection: Connection, cause: Exception, now_ms: float) -> None:
        """Handles a metadata request that will get no response."""
        self._metadata.on_failure(cause, now_ms)

    def _on_metadata(
        self, connection: Connection, version: int, response: MetadataResponse, now_ms: float
    ) -> None:
        if response.left_out:
            self._warn(
                now_ms,
                "%s lists %s that cannot be used, without which this client goes on: %s",
                connection.where,
                counted(len(response.left_out), "broker"),
                response.left_out[0],
            )
        # Without the response, which has 200,000 objects if there are many topics, to be freed part by part.
        failed = response.error_code != 0
        self._intake = self._metadata.take(response, now_ms, AT_ONCE), connection, failed
        if self._continue_intake(now_ms) < math.inf:
            self._sender.request_control()

    def _continue_intake(self, now_ms: float) -> float:
        """Processes the metadata response for ``SLICE_MS``; returns the milliseconds until the next slice.

        A response with 100,000 partitions takes hundreds of milliseconds. If it were processed at once, no
        record would be sent in this time.
        """
        if now_ms < self._next_slice_ms:
            return self._next_slice_ms - now_ms
        until_ms = self._now_ms() + SLICE_MS
        while self._intake is not None or self._unapplied or self._metadata.replaced:
            if self._unapplied:
                self._apply(self._unapplied.popitem()[0])
            elif self._intake is not None:
                parts, connection, failed = self._intake
                change = next(parts, None)
                if change is None:
                    self._intake = None
                    self._end_intake(now_ms)
                else:
                    self._take_change(change, connection, failed, now_ms)
            else:
                del self._metadata.replaced[-AT_ONCE:]
            if self._now_ms() > until_ms:
                self._next_slice_ms = self._now_ms() + PAUSE_MS
                return PAUSE_MS
        return math.inf

    def _take_change(
        self, change: MetadataChange, connection: Connection, failed: bool, now_ms: float
    ) -> None:
        if failed and change.brokers_removed:
            self._start_over("a broker asked for it", change.brokers_removed, now_ms)
            change.brokers_removed.clear()
        for node_id in change.brokers_removed | change.brokers_moved:
            self._connector.drop(node_id)
        for node_id in change.brokers_added | change.brokers_moved:
            broker = self._metadata.broker(node_id)
            if broker is not None:
                self._connector.know(node_id, broker.host, broker.port)
        names = [*change.topics_changed, *(name for name, _ in change.leaders_moved)]
        if change.brokers_added or change.brokers_removed:
            # A leader is only valid while its broker is listed: topics whose leader ids are unchanged are
            # also affected.
            names.extend(self._metadata.tracked_topics())
        elif change.racks_changed and self._rack is not None:
            names.extend(self._metadata.tracked_topics())
        self._unapplied.update(dict.fromkeys(names))
        for name, code in change.topic_errors.items():
            if code in FINAL_TOPIC_ERRORS:
                self._refuse_topic(name, errors.for_code(code)(f"topic {name!r}"))
            elif code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._tell_missing(name, connection, now_ms)

    def _end_intake(self, now_ms: float) -> None:
        for name in list(self._told_missing):
            if self._metadata.missing_ms(name, now_ms) is None:
                self._told_missing.discard(name)
        if self._metadata.last_error is None:
            self._end_refreshes()
        self._announce()
        self._sender.request_control()

    def _tell_missing(self, name: str, connection: Connection, now_ms: float) -> None:
        """Logs once that a topic does not exist, once a broker has had enough time to create it."""
        missing_ms = self._metadata.missing_ms(name, now_ms) or 0.0
        if name in self._told_missing or (self._config.allow_auto_create_topics and missing_ms < CREATION_MS):
            return
        self._told_missing.add(name)
        self._warn(
            now_ms,
            "%s: %s; trying again for max_block_ms=%.0f",
            connection.where,
            self._missing(name, now_ms),
            self._config.max_block_ms,
        )

    def _missing(self, name: str, now_ms: float) -> str:
        """Returns a message that a topic does not exist, with advice."""
        code = errors.UnknownTopicOrPartitionError.__name__
        if not self._config.allow_auto_create_topics:
            return f"topic {name!r} does not exist ({code}), and allow_auto_create_topics is False: create it"
        missing_s = (self._metadata.missing_ms(name, now_ms) or 0.0) / 1000
        return (
            f"topic {name!r} does not exist ({code}), and the broker has not created it in {missing_s:.1f} "
            "s: create it, or set auto.create.topics.enable=true on the brokers"
        )

    def _apply(self, name: str) -> None:
        """Applies a topic's partitions and leaders to the accumulator."""
        count = self._metadata.partition_count(name)
        if not count:
            return
        known = [self._metadata.leader(name, index) for index in range(count)]
        leaders = [-1 if node is None else node for node in known]
        topic_id = self._metadata.topic_id(name)
        self._sender.apply_topic(name, topic_id or b"", leaders, self._in_rack(leaders))
        self._asked.discard(name)
        self._shrunk.discard(name)
        # Without topic ids, a smaller topic looks the same as a broker that has not yet learned about new
        # partitions. Then queued batches wait for their partition to reappear, or for delivery_timeout_ms.
        if topic_id is not None and self._sender.fail_beyond(name, count):
            self._shrunk.add(name)

    def _in_rack(self, leaders: Iterable[int]) -> frozenset[int]:
        """Returns those of the brokers that are in the client's rack; none unless that matters."""
        if self._rack is None:
            return frozenset()
        brokers = map(self._metadata.broker, set(leaders))
        return frozenset(each.nodeId for each in brokers if each is not None and each.rack == self._rack)

    def _refuse_topic(self, name: str, error: Exception) -> None:
        """Handles a final error of a topic: fails its records and the waits for its metadata."""
        self._asked.discard(name)
        with self._changed:
            self._topic_errors[name] = error
            self._changed.notify_all()
        failed = self._sender.fail_parked(name, errors.told(error, False))
        if failed:
            self._failed(failed, error, "%s failed: %s", counted(failed, "record"), error)

    def _fail_parked(self, now_ms: float) -> None:
        """Fails the records whose topic's metadata did not arrive within max_block_ms."""
        diagnosis = ""

        def error_of(name: str) -> BaseException:
            nonlocal diagnosis
            # Computed once for all topics of a tick, because it inspects every address.
            diagnosis = diagnosis or self.diagnosis()
            within = f"max_block_ms={self._config.max_block_ms:g}"
            return errors.told(self._no_metadata(name, within, diagnosis), False)

        failed = self._sender.fail_overdue(error_of, now_ms)
        for name, _, _ in failed:
            self._asked.discard(name)
        if failed:
            records = sum(count for _, count, _ in failed)
            others = f" ({len(failed) - 1} more topics have none)" if len(failed) > 1 else ""
            error = failed[0][2]
            self._failed(records, error, "%s failed: %s%s", counted(records, "record"), error, others)

    def on_leaders(
        self, connection: Connection, leaders: list[tuple[str, int, int, int]], endpoints: bytes | None
    ) -> None:
        """Handles a Produce response that rejects batches and names their partitions' leaders (KIP-951).

        Called before ``FatePolicy.decide`` for each of these batches, so that they are resent to the new
        leader without backoff.

        Args:
            connection: the connection on which the response arrived.
            leaders: the topic, partition, node id and leader epoch of each.
            endpoints: the encoded addresses of these nodes; None if the response has none.
        """
        self.fates.new_leaders.clear()
        nodes: dict[int, BrokerMetadata] = {}
        try:
            if endpoints is not None:
                told = protocol.decode_node_endpoints(endpoints)
                nodes = {info.node_id: BrokerMetadata(*info) for info in told}
        except errors.KafkaProtocolError as error:
            # A metadata request follows in any case, and its response contains the addresses.
            self._log.warning(
                "%s names new leaders, but their addresses are invalid: %s", connection.where, error
            )
        changed: dict[str, None] = {}
        for topic, partition, node_id, epoch in leaders:
            if node_id == connection.node_id:
                continue
            if self._metadata.update_leader(topic, partition, node_id, epoch, nodes.get(node_id)):
                changed[topic] = None
                broker = self._metadata.broker(node_id)
                assert broker is not None
                self._connector.know(node_id, broker.host, broker.port)
            # If several batches of a partition are rejected, only the first response changes the leader.
            if self._metadata.leader(topic, partition) == node_id:
                self.fates.new_leaders.add((topic, partition))
        for topic in changed:
            self._apply(topic)
        if changed:
            self._announce()

    def _warn(self, now_ms: float, text: str, *args: Any) -> None:
        """Logs a warning, at most one per second and kind: a broker restart is one event, not thousands."""
        self._log_limit.add(logging.WARNING, 0, text, args, now_ms)

    def _failed(self, records: int, error: BaseException, text: str, *args: Any) -> None:
        """Logs failed records, at most one line per second and kind. Their transaction also fails."""
        if self.transaction_client is not None:
            self.transaction_client.note_lost(error)
        self._log_limit.add(logging.ERROR, records, text, args, self._now_ms())

    def close(self) -> None:
        """Ends name resolution and all waits for metadata. Must be called after the loop has ended."""
        self._log_limit.flush(math.inf)
        self._connector.close()
        self._fatal = errors.ProducerClosedError("the producer was closed")
        if self.transaction_client is not None:
            self.transaction_client.end(self._fatal)
        self.application_requests.end(self._fatal)
        if self.telemetry is not None:
            self.telemetry.close(self._fatal)
        self._announce()
