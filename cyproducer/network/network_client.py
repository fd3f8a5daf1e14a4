"""The client's side of the cluster: metadata, and what to do about errors.

Owns: asking for metadata and telling the accumulator what it says. Does not own: connections (``connector``),
the fate of batches (``control/batch_fate``), the producer id (``producer_id``), the loop (``sender``).

Everything named ``on_...`` and ``tick`` runs in the sender's turn, one call at a time. Application threads
call the methods under "From application threads", which hand over and wake the sender; what they read is
``view``, a frozen picture that is replaced as a whole.
"""

import logging
import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from cyproducer import errors
from cyproducer.base.clock import Clock
from cyproducer.config import ProducerConfig
from cyproducer.control.apis import (
    API_VERSIONS,
    INIT_PRODUCER_ID,
    METADATA,
    Api,
    ApiVersionsResponse,
    MetadataResponse,
)
from cyproducer.control.batch_fate import FatePolicy
from cyproducer.control.cluster_view import BrokerMetadata, ClusterView
from cyproducer.control.connections import Address
from cyproducer.control.idempotence import Idempotence
from cyproducer.control.log_limit import LogLimit
from cyproducer.control.metadata import FINAL_TOPIC_ERRORS, ClusterMetadata
from cyproducer.control.retry import ExponentialBackoff, RetryPolicy
from cyproducer.futures.waiting import refuse_wait_of_sender
from cyproducer.network import protocol
from cyproducer.network.connection import Connection
from cyproducer.network.connector import Connector
from cyproducer.network.dns import Resolver
from cyproducer.network.producer_id import COMPRESSING_MS, ProducerIdClient
from cyproducer.network.sender import Sender
from cyproducer.user_thread import Log

log = Log("cyproducer")


MOST_ANSWERS = 1000
"""Topics of which it is remembered when they were asked about."""


class _Question:
    """About a topic of which an answer is wanted that was asked for after this was made."""

    def __init__(self, topic: str, partitions: int) -> None:
        self.topic = topic
        # That were known before.
        self.partitions = partitions
        self.asked = False
        self.answered = False


class NetworkClient:
    """Keeps the sender supplied with leaders and connections, and decides what failed batches do."""

    def __init__(
        self,
        config: ProducerConfig,
        sender: Sender,
        clock: Clock,
        *,
        rng: Callable[[], float] | None = None,
        open_socket: Callable[[Address], socket.socket] | None = None,
        resolver: Resolver | None = None,
    ) -> None:
        """
        Args:
            config: the producer's options.
            sender: the loop this serves.
            clock: the loop's clock.
            rng: a float in [0, 1), for jitter and the choice among brokers; by default ``random.random``.
            open_socket: makes a non-blocking, connecting socket; for tests and simulators.
            resolver: for tests and simulators.
        """
        if rng is None:
            # Imported here, as in other places what only a producer needs that is made: programs that import
            # this package just in case pay for each module.
            import random

            rng = random.random
        self._config = config
        self._sender = sender
        self._clock = clock
        self._rng = rng
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
            open_socket=open_socket,
            resolver=resolver,
        )
        # Outlives the broker it was met at, which is forgotten when all starts over.
        self._last_failure: tuple[BaseException, float] | None = None
        self._log_limit = LogLimit(log.log, sender.request_control)
        backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        idempotence = Idempotence()
        #: Decides about batches that did not succeed.
        self.fates = FatePolicy(
            RetryPolicy(config.retries, config.delivery_timeout_ms, backoff),
            idempotence,
            self._metadata,
            self._log_limit,
            rng,
            self.diagnosis,
        )
        self._producer_id = ProducerIdClient(
            config, sender, idempotence, backoff, self._log_limit, rng, self._connector
        )
        # API key -> the API, what reads its response, and what handles it.
        self._handlers: dict[int, tuple[Api, Callable[..., Any], Callable[..., None]]] = {
            api.key: (api, decode, handle)
            for api, decode, handle in (
                (API_VERSIONS, protocol.decode_api_versions, self._on_versions),
                (METADATA, protocol.decode_metadata, self._on_metadata),
                (INIT_PRODUCER_ID, protocol.decode_init_producer_id, self._producer_id.on_producer_id),
            )
        }
        #: Called where what is known of the cluster has changed; on the sender's thread, or close()'s.
        self.on_change: Callable[[], object] = lambda: None
        self._metadata_on: Connection | None = None
        # Topics that were created anew with fewer partitions, while batches for the others are there.
        self._shrunk: set[str] = set()
        self._topic_errors: dict[str, Exception] = {}
        self._fatal: Exception | None = None
        # Filled by application threads, emptied by the sender's.
        self._wanted: deque[str] = deque()
        self._asked: set[str] = set()
        self._questions: deque[_Question] = deque()
        # Those of them that a request has, or the next one will.
        self._open_questions: list[_Question] = []
        # When a question about a topic was answered last, and the answer had nothing new.
        self._answered_ms: dict[str, float] = {}
        #: What is known of the cluster; replaced as a whole, so that any thread may read it.
        self.view: ClusterView = self._metadata.view()
        # Tells application threads that the view or a topic's error changed.
        self._changed = threading.Condition()

    # From application threads

    def want_topic(self, name: str) -> None:
        """A record waits for this topic's metadata."""
        if name in self._asked:
            return
        try:
            self._asked.add(name)
            self._wanted.append(name)
            self._sender.request_control()
        except BaseException:
            # Ctrl-C, which may come between any two of these; twice does no harm.
            self._wanted.append(name)
            self._sender.request_control()
            raise

    def wait_for_topic(self, name: str, timeout_s: float) -> ClusterView:
        """The view once it has the topic's partitions, waiting up to ``timeout_s`` seconds.

        Raises:
            KafkaTimeoutError: the time ran out; says what was tried and what came of it.
            BrokerResponseError: the broker's final word on the topic.
            ProducerClosedError: the producer was closed, before or meanwhile.
        """
        view = self.view
        if view.knows(name):
            return view
        began_ns = time.monotonic_ns()
        try:
            return self._wait_for_topic(name, timeout_s)
        finally:
            self._sender.accumulator.add_metadata_wait_time(time.monotonic_ns() - began_ns)

    def _wait_for_topic(self, name: str, timeout_s: float) -> ClusterView:
        refuse_wait_of_sender(f"waiting for metadata of topic {name!r}")
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._topic_errors.pop(name, None)
        while True:
            view = self.view
            if view.knows(name):
                return view
            with self._changed:
                error = self._fatal or self._topic_errors.get(name)
                if error is not None:
                    raise error
                self.want_topic(name)
                self._await_change(name, deadline, timeout_s)

    def refresh_topic(self, name: str, timeout_s: float) -> None:
        """Asks for a topic's metadata anew, and waits until the accumulator has them.

        An answer without new partitions is believed for ``retry_backoff_ms``: for that long this returns at
        once.

        Raises:
            KafkaTimeoutError: no broker answered within ``timeout_s`` seconds.
            ProducerClosedError: the producer was closed, before or meanwhile.
        """
        # Else a program that goes on sending to a partition that is not there asks once for each record.
        if self._now_ms() - self._answered_ms.get(name, -math.inf) < self._config.retry_backoff_ms:
            return
        refuse_wait_of_sender(f"asking for metadata of topic {name!r}")
        deadline = time.monotonic() + timeout_s
        question = _Question(name, len(self.view.partitions_for_topic(name) or ()))
        self._questions.append(question)
        self._sender.request_control()
        with self._changed:
            while not question.answered:
                if self._fatal is not None:
                    raise self._fatal
                self._await_change(name, deadline, timeout_s)

    def _await_change(self, name: str, deadline: float, timeout_s: float) -> None:
        """Sleeps, for half a second at most, until something changes; raises at the deadline. Its lock is
        held."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise self._no_metadata(name, f"{timeout_s:g} s")
        self._changed.wait(min(left, 0.5))

    def why_no_metadata(self, name: str, within: str) -> str:
        """What ends a wait for a topic, in words. Any thread."""
        return str(self._no_metadata(name, within).args[0])

    def _no_metadata(self, name: str, within: str, diagnosis: str | None = None) -> errors.KafkaTimeoutError:
        """What ends a wait for a topic; its cause is what brokers answered, if they did."""
        code = self._metadata.topic_error(name)
        answered = errors.for_code(code) if code else None
        said = f"the broker says {answered.__name__}; " if answered else ""
        error = errors.KafkaTimeoutError(
            f"no metadata of topic {name!r} within {within}: {said}{diagnosis or self.diagnosis()}"
        )
        error.__cause__ = answered(f"topic {name!r}") if answered else None
        return error

    def wait_ready(self, timeout_s: float) -> None:
        """Waits until a broker has answered with metadata.

        Raises:
            NoBrokersAvailable: none did within ``timeout_s`` seconds; says for each address what failed.
        """
        if not self.view.brokers():
            refuse_wait_of_sender("wait_ready()")
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not self.view.brokers():
                left = deadline - time.monotonic()
                if left <= 0 or self._fatal is not None:
                    raise errors.NoBrokersAvailable(f"no broker within {timeout_s:g} s: {self.diagnosis()}")
                self._changed.wait(min(left, 0.5))

    def bootstrap_connected(self) -> bool:
        """Whether a connection to a broker is up, handshake included."""
        return self._connector.any_ready()

    def diagnosis(self, known: str = "") -> str:
        """Why nothing comes forward: what is ``known``, what each address met, the last metadata error."""
        servers = ", ".join(f"{host}:{port}" for host, port in self._config.bootstrap_addresses)
        parts = (known, self._connector.diagnosis(), self._metadata.describe_last_error(self._now_ms()))
        if any(parts):
            return "; ".join(filter(None, parts))
        if self._last_failure is None:
            return f"no failure so far, still trying {servers}"
        cause, at_ms = self._last_failure
        return f"trying {servers} again since {cause}, {(self._now_ms() - at_ms) / 1000:.1f} s ago"

    def metadata_age_s(self) -> float:
        """Seconds since all metadata in use were fetched; NaN: they never were."""
        return self._metadata.age_ms(self._now_ms()) / 1000

    # In the sender's turn

    def tick(self, now_ms: float) -> float:
        """Does what is due; returns the milliseconds until something is due again."""
        connections_ms = self._connector.tick(now_ms, (self._metadata_on, self._producer_id.asked_on))
        self._track_topics(now_ms)
        for name in list(self._shrunk):
            self._apply(name)
        overdue_ms = self._sender.close_overdue(now_ms)
        self._rebootstrap(now_ms)
        for node_id in self._sender.nodes_without_connection():
            self._connector.connect_to(node_id, now_ms)
        identity_ms = self._producer_id.tick(now_ms)
        metadata_ms = self._update_metadata(now_ms)
        self._fail_parked(now_ms)
        # What was just done may have set a timeout that the first call could not know of.
        connections_ms = min(connections_ms, self._connector.states.next_event_ms(now_ms))
        if self._shrunk:
            connections_ms = min(connections_ms, COMPRESSING_MS)
        lines_ms = self._log_limit.flush(now_ms)
        return max(0.0, min(overdue_ms, identity_ms, metadata_ms, connections_ms, lines_ms))

    def _now_ms(self) -> float:
        return self._clock.monotonic_ns() / 1e6

    def _announce(self) -> None:
        with self._changed:
            self.view = self._metadata.view()
            self._changed.notify_all()
        self.on_change()

    # Connections

    def on_socket_ready(self, connection: Connection, now_ms: float) -> None:
        """A connecting socket has an outcome."""
        self._connector.on_socket_ready(connection, now_ms)

    def on_frame(
        self, connection: Connection, api_key: int, version: int, frame: bytes, now_ms: float
    ) -> None:
        """The answer to a request that is not Produce."""
        api, decode, handle = self._handlers[api_key]
        try:
            response = decode(version, frame)
            if version >= api.client_throttles:
                connection.throttle(response.throttle_time_ms, now_ms)
            handle(connection, version, response, now_ms)
        except errors.KafkaError as error:
            # on_broken() then says what becomes of the request.
            self._sender.close_connection(connection, error)

    def _on_versions(
        self, connection: Connection, version: int, response: ApiVersionsResponse, now_ms: float
    ) -> None:
        self._connector.on_versions(connection, version, response, now_ms)
        if connection.ready and connection.node_id >= 0:
            self._connector.close_bootstrap((self._metadata_on, self._producer_id.asked_on))

    def on_broken(self, connection: Connection, cause: Exception | None, now_ms: float) -> None:
        """A connection was closed: by this side on purpose (``cause`` None), or because of a failure."""
        cause = self._connector.on_broken(connection, cause, now_ms)
        self._producer_id.on_broken(connection, cause or ConnectionError("closed by this client"), now_ms)
        if cause is None:
            return
        if connection is self._metadata_on:
            self._metadata_on = None
            self._metadata.on_failure(cause, now_ms)
        self._on_node_failure(cause, now_ms)

    def _on_node_failure(self, cause: BaseException, now_ms: float) -> None:
        """A broker can't be reached: its partitions may have another leader by now."""
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
        self._start_over(reason, self._metadata.rebootstrap())

    def _start_over(self, reason: str, brokers: set[int]) -> None:
        log.warning("starting over from bootstrap_servers: %s", reason)
        for node_id in brokers:
            self._connector.drop(node_id, "is given up: starting over from bootstrap_servers", retire=True)

    # Metadata

    def _track_topics(self, now_ms: float) -> None:
        while self._wanted:
            name = self._wanted.popleft()
            known = self._metadata.partition_count(name)
            due = self._metadata.track(name, now_ms)
            if known:
                # Dropped by the accumulator but not here, or asked for twice: tell it again.
                self._apply(name)
            elif not due and (code := self._metadata.topic_error(name)) in FINAL_TOPIC_ERRORS:
                # Refused a moment ago, and too early to ask again: no answer will come that ends the wait.
                self._refuse_topic(name, errors.for_code(code)(f"topic {name!r}"))
        while self._questions:
            question = self._questions.popleft()
            self._metadata.ask_anew(question.topic, now_ms)
            self._open_questions.append(question)

    def _answer_questions(self) -> None:
        """An answer has come: those that its request had are no longer open."""
        now_ms = self._now_ms()
        if len(self._answered_ms) > MOST_ANSWERS:
            self._answered_ms.clear()
        for question in self._open_questions:
            question.answered = question.asked
            count = self._metadata.partition_count(question.topic) or 0
            if question.asked and question.partitions == count:
                self._answered_ms[question.topic] = now_ms
        self._open_questions = [each for each in self._open_questions if not each.answered]

    def _update_metadata(self, now_ms: float) -> float:
        """Sends a metadata request if one is due and a connection is there; else sees to one.

        Returns the milliseconds until the next try.
        """
        delay_ms = self._metadata.next_update_ms(now_ms)
        if delay_ms > 0:
            return delay_ms
        ready = self._connector.free(now_ms)
        if not ready:
            # Where all that are connected throttle, another broker may be asked.
            candidates = list(self._metadata.broker_ids()) or self._connector.bootstrap
            return min(self._connector.seek(candidates, now_ms), self._connector.throttled_ms(now_ms))
        connection = min(ready, key=lambda c: (c.in_flight, self._rng()))
        if self._metadata.is_full_due(now_ms):
            # Only a full update forgets topics, and may cost by how many there are.
            self._metadata.touch(self._used_since(now_ms - self._config.metadata_max_idle_ms), now_ms)
        request = self._metadata.begin_request(now_ms)
        for question in self._open_questions:
            question.asked = True
        for name in request.expired:
            self._sender.forget_topic(name)
            self._asked.discard(name)
            self._topic_errors.pop(name, None)
        self._metadata_on = connection
        version = connection.handshake.versions[METADATA]
        correlation_id = connection.next_correlation_id()
        frame = protocol.encode_metadata(
            version,
            correlation_id,
            self._config.client_id,
            request.topics,
            self._config.allow_auto_create_topics,
        )
        self._connector.request(connection, METADATA, correlation_id, frame)
        return self._config.request_timeout_ms

    def _used_since(self, since_ms: float) -> list[str]:
        return [n for n in self._metadata.tracked_topics() if self._sender.topic_used_ms(n) > since_ms]

    def _on_metadata(
        self, connection: Connection, version: int, response: MetadataResponse, now_ms: float
    ) -> None:
        self._metadata_on = None
        change = self._metadata.on_response(response, now_ms)
        if response.error_code and change.brokers_removed:
            self._start_over("a broker asked for it", change.brokers_removed)
            change.brokers_removed.clear()
        for node_id in change.brokers_removed | change.brokers_moved:
            self._connector.drop(node_id)
        for node_id in self._metadata.broker_ids():
            broker = self._metadata.broker(node_id)
            if broker is not None:
                self._connector.know(node_id, broker.host, broker.port)
        names = [*change.topics_changed, *(name for name, _ in change.leaders_moved)]
        if change.brokers_added or change.brokers_removed:
            # A leader counts only while its broker is listed, and may be the same before and after.
            names.extend(self._metadata.tracked_topics())
        for name in dict.fromkeys(names):
            self._apply(name)
        for name, code in change.topic_errors.items():
            if code in FINAL_TOPIC_ERRORS:
                self._refuse_topic(name, errors.for_code(code)(f"topic {name!r}"))
        if self._metadata.last_error is None:
            self._answer_questions()
        self._announce()
        self._sender.request_control()

    def _apply(self, name: str) -> None:
        """Tells the accumulator a topic's partitions and leaders."""
        count = self._metadata.partition_count(name)
        if not count:
            return
        leaders = [self._metadata.leader(name, index) for index in range(count)]
        topic_id = self._metadata.topic_id(name)
        self._sender.apply_topic(name, topic_id or b"", [-1 if node is None else node for node in leaders])
        self._asked.discard(name)
        self._shrunk.discard(name)
        # Without ids nobody can tell a smaller topic from a broker that has not heard of the growth: what
        # is queued then waits for its partition to show again, or for its delivery_timeout_ms.
        if topic_id is not None and self._sender.fail_beyond(name, count):
            self._shrunk.add(name)

    def _refuse_topic(self, name: str, error: Exception) -> None:
        """The broker's final word on a topic: nothing will be written to it."""
        self._asked.discard(name)
        with self._changed:
            self._topic_errors[name] = error
            self._changed.notify_all()
        failed = self._sender.fail_parked(name, errors.told(error, False))
        if failed:
            self._failed(failed, "%d records failed: %s", failed, error)

    def _fail_parked(self, now_ms: float) -> None:
        """Fails the records whose topic's metadata did not come within max_block_ms."""
        diagnosis = ""

        def error_of(name: str) -> BaseException:
            nonlocal diagnosis
            # Once for all topics of a tick: it looks at every address.
            diagnosis = diagnosis or self.diagnosis()
            within = f"max_block_ms={self._config.max_block_ms:g}"
            return errors.told(self._no_metadata(name, within, diagnosis), False)

        failed = self._sender.fail_overdue(error_of, now_ms)
        for name, _, _ in failed:
            self._asked.discard(name)
        if failed:
            records = sum(count for _, count, _ in failed)
            others = f" ({len(failed) - 1} more topics have none)" if len(failed) > 1 else ""
            self._failed(records, "%d records failed: %s%s", records, failed[0][2], others)

    def on_leaders(
        self, connection: Connection, leaders: list[tuple[str, int, int, int]], endpoints: bytes | None
    ) -> None:
        """A Produce response refuses batches and names who leads their partitions (KIP-951).

        Comes before ``FatePolicy.decide`` for each of them, which then sends it there at once.

        Args:
            connection: the broker that answered.
            leaders: topic, partition, node id and leader epoch.
            endpoints: where these nodes are, as the response has it; None where it does not say.
        """
        self.fates.new_leaders.clear()
        nodes: dict[int, BrokerMetadata] = {}
        try:
            if endpoints is not None:
                told = protocol.decode_node_endpoints(endpoints)
                nodes = {info.node_id: BrokerMetadata(*info) for info in told}
        except errors.KafkaProtocolError as error:
            # The metadata, which are asked for in any case, will tell.
            log.warning("%s names new leaders, but not where they are: %s", connection.where, error)
        changed: dict[str, None] = {}
        for topic, partition, node_id, epoch in leaders:
            if node_id == connection.node_id:
                continue
            if self._metadata.update_leader(topic, partition, node_id, epoch, nodes.get(node_id)):
                changed[topic] = None
                broker = self._metadata.broker(node_id)
                assert broker is not None
                self._connector.know(node_id, broker.host, broker.port)
            # Of several batches that come back, only the first brings news.
            if self._metadata.leader(topic, partition) == node_id:
                self.fates.new_leaders.add((topic, partition))
        for topic in changed:
            self._apply(topic)
        if changed:
            self._announce()

    def _warn(self, now_ms: float, text: str, *args: Any) -> None:
        """Logs a warning, one a second of its kind: a broker's restart is one event, not thousands."""
        self._log_limit.add(logging.WARNING, 0, text, args, now_ms)

    def _failed(self, records: int, text: str, *args: Any) -> None:
        """Logs that records have failed, one line a second of its kind."""
        self._log_limit.add(logging.ERROR, records, text, args, self._now_ms())

    def close(self) -> None:
        """Ends name resolution and whoever waits. The loop has ended."""
        self._log_limit.flush(math.inf)
        self._connector.close()
        self._fatal = errors.ProducerClosedError("the producer was closed")
        self._announce()
