"""Obtains the producer id: sends InitProducerId requests and handles the responses.

Owns the backoff between requests, and failing all records if the cluster refuses a producer id. Does not own
the identity and its states (``control/idempotence``), or connections (``connector``). Runs with the loop lock
held, one call at a time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from cyproducer import errors
from cyproducer.base.log import Log
from cyproducer.config import ProducerConfig
from cyproducer.control.idempotence import Idempotence, State
from cyproducer.control.log_limit import LogLimit
from cyproducer.control.retry import ExponentialBackoff
from cyproducer.errors.error_code import ErrorCode
from cyproducer.net.connection import Connection
from cyproducer.net.connector import Connector
from cyproducer.sender.sender import Sender
from cyproducer.wire import protocol
from cyproducer.wire.messages import INIT_PRODUCER_ID
from cyproducer.wire.responses import InitProducerIdResponse

COMPRESSING_MS = 5
"""The delay before the next check of a batch that a thread is compressing."""
MOST_LACKING = 3
"""After this many connections to brokers without InitProducerId, the cluster counts as not supporting it."""


class ProducerIdClient:
    """Obtains the producer id of one producer. See the module docstring."""

    def __init__(
        self,
        config: ProducerConfig,
        sender: Sender,
        idempotence: Idempotence,
        backoff: ExponentialBackoff,
        log_limit: LogLimit,
        rng: Callable[[], float],
        connector: Connector,
    ) -> None:
        """
        Args:
            config: the producer's options.
            sender: receives the identity for new batches.
            idempotence: knows whether an id is needed, and stores the id.
            backoff: the delay between two requests.
            log_limit: logs failures at a bounded rate.
            rng: returns a float in [0, 1), for jitter and for the choice among brokers.
            connector: sends the request.
        """
        self._config = config
        self._sender = sender
        self._idempotence = idempotence
        self._backoff = backoff
        self._log = log_limit
        self._direct_log = Log("cyproducer", config.client_id)
        self._rng = rng
        self._connector = connector
        self._refusals = 0
        self._lacking = 0
        #: The error for a refused producer id, until all records have failed with it.
        self._denial: BaseException | None = None
        #: Whether later records are also refused: rights may be granted later, but brokers do not begin to
        #: support a request.
        self._for_good = False
        self._not_before_ms = -math.inf

    def tick(self, now_ms: float) -> float:
        """Requests a producer id if one is needed; returns the milliseconds until the next attempt."""
        if self._denial is not None:
            fail = self._sender.refuse_all if self._for_good else self._sender.fail_waiting
            if fail(self._denial):
                return COMPRESSING_MS
            self._denial = None
        if not self._config.enable_idempotence or self._idempotence.state is not State.NO_ID:
            return math.inf
        if now_ms < self._not_before_ms:
            return self._not_before_ms - now_ms
        connections = self._connector.free(now_ms)
        if not connections:
            # All brokers may be throttling.
            return self._connector.throttled_ms(now_ms)
        connection = min(connections, key=lambda c: (c.in_flight, self._rng()))
        self._idempotence.want()
        if INIT_PRODUCER_ID not in connection.handshake.versions:
            self._lack(connection, now_ms)
            return math.inf
        encode = protocol.framing(protocol.encode_init_producer_id, None, 0x7FFFFFFF)
        self._connector.request(connection, INIT_PRODUCER_ID, encode, self.on_producer_id, self.on_broken)
        return self._config.request_timeout_ms

    def on_producer_id(
        self, connection: Connection, version: int, response: InitProducerIdResponse, now_ms: float
    ) -> None:
        """Handles the InitProducerId response."""
        if response.error_code == 0:
            self._refusals = 0
            self._idempotence.granted(response.producer_id, response.producer_epoch)
            self._direct_log.info("producer id %d, epoch %d", response.producer_id, response.producer_epoch)
            self._sender.set_identity(response.producer_id, response.producer_epoch)
            return
        error = errors.for_code(response.error_code)(f"InitProducerId at {connection.where}")
        if error.retriable or response.error_code == ErrorCode.UNKNOWN:
            self._ask_again(error, now_ms)
            return
        if isinstance(error, errors.AuthorizationError):
            error = type(error)(
                "the cluster refuses a producer id: grant this principal IdempotentWrite on the cluster, or "
                "Write on a topic, or set enable_idempotence=False"
            )
            # The next request notices rights that are granted later.
            self._denial = errors.told(error, False)
            self._ask_again(error, now_ms)
            return
        self._deny(error)

    def on_broken(self, connection: Connection, cause: BaseException, now_ms: float) -> None:
        """Retries a request that will get no response."""
        self._ask_again(cause, now_ms)

    def _ask_again(self, cause: BaseException, now_ms: float) -> None:
        self._refusals += 1
        self._not_before_ms = now_ms + self._backoff.delay_ms(self._refusals, self._rng)
        self._idempotence.not_granted()
        self._log.add(logging.WARNING, 0, "no producer id yet: %s", (cause,), now_ms)
        self._sender.request_control()

    def _lack(self, connection: Connection, now_ms: float) -> None:
        """Handles a broker without InitProducerId: tries another. After three, fails all records."""
        error = errors.UnsupportedVersionError(
            f"{connection.where} does not support InitProducerId (Kafka does since 0.11): "
            "set enable_idempotence=False"
        )
        self._lacking += 1
        if self._lacking == MOST_LACKING:
            self._deny(error)
            return
        self._ask_again(error, now_ms)
        self._sender.close_connection(connection, error)

    def _deny(self, error: BaseException) -> None:
        self._for_good = True
        self._idempotence.denied()
        self._direct_log.error("no record can be sent: %s", error)
        self._denial = errors.told(error, False)
        # The next tick, which follows immediately, fails the records.
        self._sender.request_control()
