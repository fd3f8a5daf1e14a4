"""The events that ``poll()`` reports besides deliveries: errors, throttling, statistics and log lines.

Owns when each callback is due, and its arguments. Does not own calling ``poll()``, or the counters. Nothing
here runs on the sender's thread: ``poll()`` compares the producer's state with what was reported before. Of
several failures between two calls it reports the last. Thread-safe: each event is reported once.
"""

import json
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from cyproducer._runtime import Runtime
from cyproducer.base.clock import monotonic_s, unix_ms
from cyproducer.base.durations import waitable
from cyproducer.base.text import line_prefix
from cyproducer.confluent.configuration import Settings
from cyproducer.confluent.errors import KafkaError, KafkaException, error_of, transaction_error_of
from cyproducer.control.transaction_calls import State

_MOST_LINES: Final = 1000
"""The number of log lines kept for ``poll()``; beyond it, the oldest are dropped."""


class ThrottleEvent:
    """A broker's throttling notice; ``throttle_time`` is in seconds."""

    def __init__(self, broker_name: str, broker_id: int, throttle_time: float) -> None:
        self.broker_name = broker_name
        self.broker_id = broker_id
        self.throttle_time = throttle_time

    def __str__(self) -> str:
        return f"{self.broker_name}/{self.broker_id} throttled for {self.throttle_time * 1000:.0f} ms"


class _Lines(logging.Handler):
    """Keeps a producer's log lines for ``poll()``."""

    def __init__(self, client_id: str) -> None:
        super().__init__()
        self.kept: deque[logging.LogRecord] = deque(maxlen=_MOST_LINES)
        self._prefix = line_prefix(client_id)

    def emit(self, record: logging.LogRecord) -> None:
        if str(record.msg).startswith(self._prefix):
            self.kept.append(record)


class Events:
    """The events of one producer."""

    def __init__(self, settings: Settings, client_id: str) -> None:
        self._settings = settings
        self._client_id = client_id
        self._began = monotonic_s()
        self._stats_due = self._began + settings.stats_every_s
        self._told_failure: Any = None
        self._all_down = False
        #: Broker -> the end of its throttling as last reported.
        self._throttled: dict[str, float] = {}
        self._lines: _Lines | None = None
        self.renew()
        self._calls: deque[Callable[[], object]] = deque()
        if settings.logger is not None:
            self._lines = _Lines(client_id)
            logging.getLogger("cyproducer").addHandler(self._lines)
            # A producer that is not closed is freed without a call of close().
            weakref.finalize(self, logging.getLogger("cyproducer").removeHandler, self._lines).atexit = False
        #: Whether any event needs to be checked for.
        self.wanted = (
            settings.error_cb is not None
            or settings.throttle_cb is not None
            or settings.logger is not None
            or (settings.stats_cb is not None and settings.stats_every_s > 0)
        )

    def renew(self) -> None:
        """Resets the state, also in a forked child, where no thread would release the lock."""
        # Held while an event is chosen, not while it is reported.
        self._lock = threading.Lock()
        #: Whether a call has raised the error that ends transactions for good.
        self.told_fatal = False

    def raise_fatal(self, runtime: Runtime) -> None:
        """Raises the fatal error of the transactions, unless a call has already raised it.

        ``error_cb`` does not get this error, as with confluent-kafka.
        """
        transactions = runtime.client.transaction_client
        if transactions is None or transactions.machine.state is not State.FATAL_ERROR:
            return
        with self._lock:
            told, self.told_fatal = self.told_fatal, True
        if not told:
            raise KafkaException(transaction_error_of(transactions.machine.refusal(), State.FATAL_ERROR))

    def close(self) -> None:
        """Stops forwarding log lines."""
        if self._lines is not None:
            logging.getLogger("cyproducer").removeHandler(self._lines)

    def due_s(self) -> float:
        """Returns the seconds until statistics are due; infinity if there are none."""
        if self._settings.stats_cb is None or not self._settings.stats_every_s:
            return waitable(float("inf"))
        return max(0.0, self._stats_due - monotonic_s())

    def serve(self, runtime: Runtime, outstanding: int) -> int:
        """Runs the callbacks that are due; returns how many. If one raises, the later ones stay due."""
        with self._lock:
            self._look_for_errors(runtime)
            self._look_for_throttling(runtime)
            self._look_for_statistics(runtime, outstanding)
        served = 0
        while True:
            try:
                call = self._calls.popleft()
            except IndexError:
                break
            call()
            served += 1
        if self._lines is not None and self._settings.logger is not None:
            self._forward(self._lines.kept, self._settings.logger)
        return served

    def _look_for_errors(self, runtime: Runtime) -> None:
        call = self._settings.error_cb
        if call is None:
            return
        up = runtime.client.bootstrap_connected()
        failure = runtime.client.last_failure
        if failure is not self._told_failure and failure is not None:
            self._told_failure = failure
            error = error_of(failure[0])
            self._calls.append(lambda: call(error))
            if not up and not self._all_down:
                self._all_down = True
                down = KafkaError(KafkaError._ALL_BROKERS_DOWN, f"no broker is connected: {failure[0]}")
                self._calls.append(lambda: call(down))
        if up:
            self._all_down = False

    def _look_for_throttling(self, runtime: Runtime) -> None:
        call = self._settings.throttle_cb
        if call is None:
            return
        now = monotonic_s()
        throttling = runtime.client.throttling()
        for name, node_id, left_s in throttling:
            # The same throttling, seen again: its end has not moved.
            if now + left_s > self._throttled.get(name, 0.0) + 0.01:
                self._throttled[name] = now + left_s
                event = ThrottleEvent(name, node_id, left_s)
                self._calls.append(lambda event=event: call(event))  # type: ignore[misc]

    def _look_for_statistics(self, runtime: Runtime, outstanding: int) -> None:
        call, every_s = self._settings.stats_cb, self._settings.stats_every_s
        now = monotonic_s()
        if call is None or not every_s or now < self._stats_due:
            return
        # Only one report, not one for each interval that passed without a call.
        self._stats_due = now + every_s
        text = json.dumps(self._statistics(runtime, outstanding, now))
        self._calls.append(lambda: call(text))

    def _statistics(self, runtime: Runtime, outstanding: int, now: float) -> dict[str, Any]:
        """Returns the fields of librdkafka's statistics that have a value here."""
        view = runtime.client.view
        counted = runtime.registry().snapshot() if runtime.config.metrics_enabled else {}
        producer = counted.get("producer-metrics", {})
        found: dict[str, Any] = {
            "name": f"{self._client_id}#producer",
            "client_id": self._client_id,
            "type": "producer",
            "ts": int(now * 1e6),
            "time": unix_ms() // 1000,
            "age": int((now - self._began) * 1e6),
            "msg_cnt": outstanding,
            "msg_max": self._settings.most_messages,
            "msg_size": runtime.accumulator.pool.used_bytes,
            "msg_size_max": self._settings.most_bytes,
            "brokers": {
                f"{each.host}:{each.port}/{each.node_id}": {
                    "name": f"{each.host}:{each.port}/{each.node_id}",
                    "nodeid": each.node_id,
                    "nodename": f"{each.host}:{each.port}",
                    "source": "learned",
                }
                for each in view.brokers()
            },
            "topics": {
                name: {"topic": name, "partitions": {str(n): {"partition": n} for n in partitions}}
                for name in view.topics()
                if (partitions := sorted(view.partitions_for_topic(name) or ()))
            },
        }
        for field, metric in (
            ("txmsgs", "record-send-total"),
            ("tx", "request-total"),
            ("tx_bytes", "outgoing-byte-total"),
            ("rx", "response-total"),
            ("rx_bytes", "incoming-byte-total"),
        ):
            if metric in producer:
                found[field] = int(producer[metric])
        return found

    def _forward(self, kept: deque[logging.LogRecord], logger: logging.Logger) -> None:
        while True:
            try:
                record = kept.popleft()
            except IndexError:
                return
            logger.log(record.levelno, "%s", record.getMessage())
