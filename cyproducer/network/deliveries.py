"""What becomes of batches: retry policy and idempotence put to work.

Owns: asking for a producer id, judging batches that came back or ran out of time, and having the sender carry
out what the idempotence table orders. Does not own: the table and its rules (``control/idempotence``),
backoff (``control/retry``), metadata or connections. Everything runs in the sender's turn.
"""

import math
from collections.abc import Callable

from cyproducer import errors
from cyproducer.config import ProducerConfig
from cyproducer.control.api_versions import INIT_PRODUCER_ID, client_throttles
from cyproducer.control.idempotence import (
    RECORD_ERRORS,
    TOO_LARGE_ERRORS,
    Action,
    BatchFacts,
    Fate,
    Idempotence,
    Place,
    State,
    Verdict,
)
from cyproducer.control.metadata import ClusterMetadata
from cyproducer.control.retry import ExponentialBackoff, LastErrors, RetryPolicy
from cyproducer.network import protocol
from cyproducer.network.connection import Connection
from cyproducer.network.connector import Connector
from cyproducer.network.sender import Sender
from cyproducer.user_thread import Log

log = Log("cyproducer")

COMPRESSING_MS = 5
"""When to look again for a batch that a thread is compressing."""
MOST_LACKING = 3
"""Connections to brokers without InitProducerId after which the cluster counts as one without."""


class Deliveries:
    """The sender's counsel on batches, and the keeper of the producer's identity."""

    def __init__(
        self,
        config: ProducerConfig,
        sender: Sender,
        metadata: ClusterMetadata,
        rng: Callable[[], float],
        *,
        connector: Connector,
        diagnosis: Callable[[str], str],
        warn: Callable[..., None],
        failed: Callable[..., None],
    ) -> None:
        """
        Args:
            config: the producer's options.
            sender: what carries the decisions out.
            metadata: asked for leaders, and told when it is out of date.
            rng: a float in [0, 1), for jitter.
            connector: what a producer id is asked for with.
            diagnosis: why nothing comes forward, given what is known already, for errors.
            warn: given the time, logs a warning, unless one of its kind was logged a moment ago.
            failed: given how many records have failed, logs an error, unless as above.
        """
        self._config = config
        self._sender = sender
        self._metadata = metadata
        self._rng = rng
        self._connector = connector
        self._diagnosis = diagnosis
        self._warn = warn
        self._failed = failed
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self._policy = RetryPolicy(config.retries, config.delivery_timeout_ms, self._backoff)
        self._idempotence = Idempotence()
        self._last_errors = LastErrors(config.delivery_timeout_ms)
        #: The connection on which a producer id was asked for and no answer came yet.
        self.asked_on: Connection | None = None
        #: Partitions whose new leader the response at hand named: there is nothing to wait for (KIP-951).
        self.led: set[tuple[str, int]] = set()
        self._refusals = 0
        self._lacking = 0
        #: Why there is no producer id, until all records have been told.
        self._denial: BaseException | None = None
        self._not_before_ms = -math.inf

    # The producer id

    def tick(self, now_ms: float) -> float:
        """Asks for a producer id where one is needed; returns the milliseconds until the next try."""
        if self._denial is not None:
            if self._sender.refuse_all(self._denial):
                return COMPRESSING_MS
            self._denial = None
        if not self._config.enable_idempotence or self._idempotence.state is not State.NO_ID:
            return math.inf
        if now_ms < self._not_before_ms:
            return self._not_before_ms - now_ms
        connections = self._connector.free(now_ms)
        if not connections:
            # Perhaps because every broker throttles.
            return self._connector.throttled_ms(now_ms)
        connection = min(connections, key=lambda c: (c.in_flight, self._rng()))
        self._idempotence.want()
        version = connection.handshake.init_producer_id_version
        if version is None:
            self._lack(connection, now_ms)
            return math.inf
        self.asked_on = connection
        correlation_id = connection.next_correlation_id()
        frame = protocol.encode_init_producer_id(
            version, correlation_id, self._config.client_id, None, 0x7FFFFFFF
        )
        self._connector.request(connection, INIT_PRODUCER_ID, version, correlation_id, frame)
        return self._config.request_timeout_ms

    def on_producer_id(self, connection: Connection, version: int, frame: bytes, now_ms: float) -> None:
        """The answer to InitProducerId."""
        response = protocol.decode_init_producer_id(version, frame)
        # Not before: whoever sent nonsense loses the connection, and that asks again.
        self.asked_on = None
        if client_throttles(INIT_PRODUCER_ID, version):
            connection.throttle(response.throttle_time_ms, now_ms)
        if response.error_code == 0:
            self._refusals = 0
            self._idempotence.granted(response.producer_id, response.producer_epoch)
            log.info("producer id %d, epoch %d", response.producer_id, response.producer_epoch)
            self._tell_identity()
            return
        error = errors.for_code(response.error_code)(f"InitProducerId at {connection.where}")
        if error.retriable or response.error_code == -1:
            self._ask_again(error, now_ms)
            return
        if isinstance(error, errors.AuthorizationError):
            error = type(error)(
                "the cluster refuses a producer id: grant this principal IdempotentWrite on the cluster, or "
                "Write on a topic, or set enable_idempotence=False"
            )
        self._deny(error)

    def on_broken(self, connection: Connection, cause: BaseException, now_ms: float) -> None:
        """A connection is gone, and with it perhaps the request for a producer id."""
        if connection is self.asked_on:
            self._ask_again(cause, now_ms)

    def _ask_again(self, cause: BaseException, now_ms: float) -> None:
        self.asked_on = None
        self._refusals += 1
        self._not_before_ms = now_ms + self._backoff.delay_ms(self._refusals, self._rng)
        self._idempotence.not_granted()
        self._warn(now_ms, "no producer id yet: %s", cause)
        self._sender.request_control()

    def _lack(self, connection: Connection, now_ms: float) -> None:
        """A broker has no InitProducerId. One such answer may be a fault of this broker's, three are none."""
        error = errors.UnsupportedVersionError(
            f"{connection.where} does not offer InitProducerId (Kafka does since 0.11): "
            "set enable_idempotence=False"
        )
        self._lacking += 1
        if self._lacking == MOST_LACKING:
            self._deny(error)
            return
        self._ask_again(error, now_ms)
        self._sender.close_connection(connection, error)

    def _deny(self, error: BaseException) -> None:
        self._idempotence.denied()
        log.error("no record can be sent: %s", error)
        self._denial = errors.told(error, False)
        # In the next tick, which follows at once.
        self._sender.request_control()

    def _tell_identity(self) -> None:
        self._sender.set_identity(self._idempotence.producer_id, self._idempotence.epoch)
        if self._idempotence.state is State.NO_ID:
            self._sender.request_control()

    # Batches

    def on_batch_error(
        self,
        batch: BatchFacts,
        error_code: int,
        message: str | None,
        cause: Exception | None,
        written: bool,
        now_ms: float,
    ) -> Verdict:
        """What becomes of a batch that came back without success.

        ``error_code`` and ``message`` are the broker's; 0 where ``cause`` says what happened instead.
        ``written``: the request was written whole.
        """
        where = f"{batch.topic}-{batch.partition}"
        what = where
        if error_code in TOO_LARGE_ERRORS:
            # The only one that knows how large, and the likeliest question.
            what += f": {batch.records} records in a batch of {batch.size} bytes"
        error: Exception = cause or errors.for_code(error_code)(f"{what}: {message}" if message else what)
        self._last_errors.note(batch.topic, batch.partition, error, now_ms)
        if getattr(error, "invalid_metadata", False):
            self._metadata.request_update(f"{where}: {type(error).__name__}")
        fate, maybe = self._idempotence.judge(batch, error_code, written)
        verdict = None
        if fate is Fate.ACKNOWLEDGE:
            verdict = Verdict(fate, maybe_written=maybe)
        elif batch.abandoned:
            verdict = Verdict(Fate.FAIL, 0, error, maybe)
        elif error_code in TOO_LARGE_ERRORS and batch.records > 1 and not maybe:
            log.info("%s: %d records are too large together: %s", where, batch.records, error)
            verdict = Verdict(Fate.SPLIT)
        elif error_code in RECORD_ERRORS and batch.culprits and not maybe:
            log.error("%s: %d of %d records fail: %s", where, batch.culprits, batch.records, error)
            verdict = Verdict(Fate.EXCLUDE)
        elif self._metadata.is_gone(batch.topic, batch.partition):
            error = self._gone(batch)
        elif fate is not Fate.FAIL:
            retriable = fate is Fate.RETRY or isinstance(error, errors.KafkaProtocolError)
            retriable |= bool(getattr(error, "retriable", False))
            verdict = self._retry(batch, where, error, retriable, maybe, now_ms)
        if verdict is None:
            verdict = Verdict(Fate.FAIL, 0, self._final(batch, where, error, maybe), maybe)
        id_before = self._idempotence.producer_id
        self._decided(batch, error_code, verdict.fate, maybe)
        if self._idempotence.producer_id != id_before:
            self._failed(0, "%s: %s; taking a new producer id", where, error)
            self._tell_identity()
        return verdict

    def _decided(self, batch: BatchFacts, error_code: int, fate: Fate, maybe: bool) -> None:
        """Tells the table what becomes of a batch, and has the sender hold back what follows it."""
        for action in self._idempotence.on_fate(batch, error_code, fate, maybe):
            self._sender.set_gate(batch.topic, batch.partition, action)

    def _retry(
        self, batch: BatchFacts, where: str, error: Exception, retriable: bool, maybe: bool, now_ms: float
    ) -> Verdict | None:
        """The verdict of the retry policy; None where the batch fails with ``error`` itself."""
        place = batch.topic, batch.partition
        decision = self._policy.decide(
            retriable, batch.attempts, batch.created_ms, now_ms, self._rng, at_once=place in self.led
        )
        self.led.discard(place)
        if decision.at_ms is not None:
            self._warn(now_ms, "%d records for %s: %s; %s", batch.records, where, error, decision.reason)
            return Verdict(Fate.RETRY, decision.at_ms, None, maybe)
        if not retriable or batch.attempts > self._policy.retries:
            return None
        return Verdict(Fate.FAIL, 0, self._overdue(batch, maybe, now_ms), maybe)

    def _final(self, batch: BatchFacts, where: str, error: Exception, maybe: bool) -> BaseException:
        """The error of records that fail for good; logged here."""
        text = "%d records for %s failed: %s; %s"
        self._failed(batch.records, text, batch.records, where, error, _outcome(maybe))
        return errors.told(error, maybe)

    def on_batch_gone(self, batch: BatchFacts) -> BaseException:
        """The error of a queued batch whose partition is no more."""
        self._decided(batch, 0, Fate.FAIL, batch.ambiguous)
        return self._final(batch, f"{batch.topic}-{batch.partition}", self._gone(batch), batch.ambiguous)

    def _gone(self, batch: BatchFacts) -> Exception:
        count = self._metadata.partition_count(batch.topic)
        return errors.UnknownTopicOrPartitionError(
            f"{batch.topic}-{batch.partition} is no more: the topic was created anew with {count} partitions"
        )

    def on_batch_overdue(self, batch: BatchFacts, on_wire: bool, now_ms: float) -> BaseException:
        """The error of a batch whose delivery_timeout_ms has run out, on the wire or in its queue."""
        maybe = batch.ambiguous or on_wire
        if not on_wire:
            # What is on the wire keeps its sequences until the answer tells.
            self._decided(batch, 0, Fate.FAIL, maybe)
        return self._overdue(batch, maybe, now_ms)

    def _overdue(self, batch: BatchFacts, maybe: bool, now_ms: float) -> BaseException:
        """Its cause is the partition's last error, where there was one since the batch was begun."""
        cause = self._last_errors.since(batch.topic, batch.partition, batch.created_ms)
        known = "" if cause is None else f"the partition's last request failed with {cause}"
        leader = self._metadata.leader(batch.topic, batch.partition)
        whom = "it has no leader that is known" if leader is None else f"its leader is broker {leader}"
        error = errors.DeliveryTimeoutError(
            f"{batch.records} records for {batch.topic}-{batch.partition} were not delivered within "
            f"delivery_timeout_ms={self._config.delivery_timeout_ms:g} ({now_ms - batch.created_ms:.0f} ms "
            f"old, {batch.attempts} requests tried, {whom}; {_outcome(maybe)}): {self._diagnosis(known)}"
        )
        error.__cause__ = cause
        error.maybe_written = maybe
        self._failed(batch.records, "%s", error)
        return error

    def on_progress(
        self, topic: str, partition: int, on_wire: int, unsettled: int, current: bool, acknowledged_id: int
    ) -> None:
        """A batch of a partition that is held back came to its end."""
        place = Place(topic, partition)
        while orders := self._idempotence.on_progress(place, on_wire, unsettled, current, acknowledged_id):
            acknowledged_id = -1
            for action, from_id in orders:
                if action is Action.STRIP:
                    unsettled = self._sender.strip_sequences(topic, partition, from_id)
                elif action is Action.BUMP_EPOCH:
                    log.info("%s-%d: sequences start over, epoch %d", *place, self._idempotence.epoch)
                    self._tell_identity()
                else:
                    self._sender.set_gate(topic, partition, action)


def _outcome(maybe_written: bool) -> str:
    return "they may have been written" if maybe_written else "they were not written"
