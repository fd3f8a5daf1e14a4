"""Asks for a telemetry subscription and pushes this client's metrics to a broker (KIP-714).

Owns the two requests, the choice of a broker for them, and the threads that wait for the client's instance
id. Does not own when a request is due (``control/telemetry``), or the metrics: ``collect`` returns them.
Opens no connections: it uses those that records and metadata need, and does nothing until one of their
brokers offers telemetry.

``tick``, ``is_offered`` and everything named ``on_...`` run with the loop lock held, one call at a time.
``instance_id`` and ``end`` may be called from any thread.
"""

import logging
import math
from collections.abc import Callable
from functools import partial

from cyproducer import errors
from cyproducer.base.clock import monotonic_s
from cyproducer.base.greenlets import Event
from cyproducer.base.log import Log
from cyproducer.base.threads import Condition
from cyproducer.config import ProducerConfig
from cyproducer.control.telemetry import State, TelemetryMachine
from cyproducer.futures.waiting import refuse_wait_of_sender
from cyproducer.net.blocking_tasks import Task
from cyproducer.net.connection import Connection
from cyproducer.net.connector import Connector
from cyproducer.sender.sender import Sender
from cyproducer.wire import telemetry_api
from cyproducer.wire.messages import GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY
from cyproducer.wire.protocol import framing
from cyproducer.wire.schema import NO_UUID
from cyproducer.wire.telemetry_api import GetTelemetrySubscriptionsResponse, PushTelemetryResponse

Collected = tuple[int, bytes, Callable[[], object]]
"""The id of a codec, the metrics compressed with it, and a function to call if the broker has taken them."""
Collect = Callable[[GetTelemetrySubscriptionsResponse], Collected]
"""Reads the metrics and encodes them; called on a thread of its own, one call at a time."""


class TelemetryClient:
    """The telemetry of one producer. See the module's docstring."""

    def __init__(
        self, config: ProducerConfig, sender: Sender, connector: Connector, rng: Callable[[], float]
    ) -> None:
        """
        Args:
            config: the producer's options.
            sender: the loop, which the end wakes up.
            connector: sends requests.
            rng: returns a float in [0, 1), for the time of the first push and the choice among brokers.
        """
        self._config = config
        self._sender = sender
        self._connector = connector
        self._rng = rng
        self._log = Log("cyproducer", config.client_id)
        self._machine = TelemetryMachine(rng)
        #: Set before the first connection is made.
        self.collect: Collect | None = None
        #: Whether a broker has offered telemetry: until then, ``tick`` need not be called.
        self.is_offered = False
        # Collects the metrics of the push in progress.
        self._collecting: Task[Collected] | None = None
        # Took the last request.
        self._latest: Connection | None = None
        self._ending = False
        self._ended = Event()
        self._closed: BaseException | None = None
        # Notifies application threads that there is an instance id, or that there will be none.
        self._changed = Condition()

    # Any thread

    def instance_id(self, timeout_s: float) -> bytes:
        """Waits up to ``timeout_s`` seconds for the id that a broker gives this client; 16 bytes.

        Raises:
            KafkaTimeoutError: no broker did; the message says whether one offers telemetry.
            ProducerClosedError: the producer was closed, before or during the wait.
            UnsupportedVersionError: the broker has refused this client's telemetry.
        """
        deadline = monotonic_s() + timeout_s
        with self._changed:
            while self._machine.instance_id == NO_UUID:
                if self._closed is not None:
                    raise errors.copied(self._closed)
                if self._machine.state is State.OFF:
                    raise errors.UnsupportedVersionError("the broker refuses this client's telemetry")
                refuse_wait_of_sender("client_instance_id()")
                if not self._changed.wait_until(deadline):
                    why = (
                        "no broker has answered GetTelemetrySubscriptions"
                        if self.is_offered
                        else "no connected broker offers telemetry, which needs Kafka 3.7 and a plugin with "
                        "ClientTelemetry in the brokers' metric.reporters"
                    )
                    raise errors.KafkaTimeoutError(f"no client instance id within {timeout_s:g} s: {why}")
        return self._machine.instance_id

    def end(self, timeout_s: float) -> None:
        """Pushes the last metrics, if any are wanted; waits for that up to ``timeout_s`` seconds."""
        if self.is_offered:
            self._ending = True
            self._sender.request_control()
            self._ended.wait(timeout_s)

    def close(self, error: BaseException) -> None:
        """Ends all waits, because the loop has ended."""
        with self._changed:
            self._closed = error
            self._changed.notify_all()

    # With the loop lock held

    def tick(self, now_ms: float) -> float:
        """Sends the request that is due; returns the milliseconds until the next one."""
        machine = self._machine
        if self._ending:
            machine.end()
            if machine.state is State.OFF:
                self._ended.set()
        if self._collecting is None:
            wait_ms = machine.wait_ms(now_ms)
            if wait_ms > 0:
                return wait_ms
        elif not self._collecting.done:
            return math.inf
        connection = self._connection(now_ms)
        if connection is None:
            # A new connection calls this again.
            wait_ms = self._connector.throttled_ms(now_ms)
            if self._ending and wait_ms == math.inf:
                # close() must not wait for brokers that are gone.
                self._ended.set()
            return wait_ms
        if self._collecting is not None:
            task, self._collecting = self._collecting, None
            self._push(connection, task, now_ms)
        elif machine.state is State.ASK:
            machine.begin()
            self._ask(connection)
        else:
            machine.begin()
            assert self.collect is not None
            assert machine.subscription is not None
            # On another thread: with a thousand topics it takes longer than a record may wait.
            collect = partial(self.collect, machine.subscription)
            self._collecting = self._connector.background.start(collect)
        return math.inf

    def _connection(self, now_ms: float) -> Connection | None:
        """Returns a connection that can take a request; None if there is none now.

        It stays with one broker while that is possible: each broker remembers the clients that it has met.
        """
        free = self._connector.free(now_ms)
        offering = [each for each in free if PUSH_TELEMETRY in each.handshake.versions]
        if self._latest not in offering:
            self._latest = min(offering, key=lambda c: (c.in_flight, self._rng()), default=None)
        return self._latest

    def _ask(self, connection: Connection) -> None:
        encode = framing(telemetry_api.encode_get_telemetry_subscriptions, self._machine.instance_id)
        self._connector.request(
            connection, GET_TELEMETRY_SUBSCRIPTIONS, encode, self.on_subscription, self.on_broken
        )

    def _push(self, connection: Connection, task: Task[Collected], now_ms: float) -> None:
        machine = self._machine
        subscription, collected = machine.subscription, task.result
        if collected is None or subscription is None:
            self._log.warning("the metrics for the broker could not be collected: %r", task.error)
            machine.on_broken(now_ms)
            self._sender.request_control()
            return
        codec_id, metrics, accepted = collected
        encode = framing(
            telemetry_api.encode_push_telemetry,
            subscription.client_instance_id,
            subscription.subscription_id,
            machine.terminating,
            codec_id,
            metrics,
        )
        on_response = partial(self.on_push, accepted)
        self._connector.request(connection, PUSH_TELEMETRY, encode, on_response, self.on_broken)

    def on_subscription(
        self, connection: Connection, version: int, response: GetTelemetrySubscriptionsResponse, now_ms: float
    ) -> None:
        """Handles the GetTelemetrySubscriptions response."""
        with self._changed:
            self._machine.on_subscription(response, now_ms)
            self._changed.notify_all()
        self._log.debug("telemetry subscription of %s: %s", connection.where, response)
        self._refused("GetTelemetrySubscriptions", connection, response.error_code)

    def on_push(
        self,
        accepted: Callable[[], object],
        connection: Connection,
        version: int,
        response: PushTelemetryResponse,
        now_ms: float,
    ) -> None:
        """Handles the PushTelemetry response. ``accepted`` is called if the broker has taken the metrics."""
        if response.error_code == 0:
            accepted()
        self._machine.on_push(response.error_code, now_ms)
        self._refused("PushTelemetry", connection, response.error_code)

    def on_broken(self, connection: Connection, cause: BaseException, now_ms: float) -> None:
        """The connection was closed before the response."""
        self._machine.on_broken(now_ms)
        self._sender.request_control()

    def _refused(self, request: str, connection: Connection, code: int) -> None:
        if code:
            # At the end of the producer nothing is pushed again, whatever the error.
            off = self._machine.state is State.OFF and not self._ending
            level = logging.WARNING if off else logging.DEBUG
            told = "no more metrics are pushed" if off else "this push is lost"
            name = errors.for_code(code).__name__
            self._log.log(level, "%s at %s: %s; %s", request, connection.where, name, told)
        # The next request may be due.
        self._sender.request_control()
