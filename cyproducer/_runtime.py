"""Wires up a producer's accumulator, sender and threads, and shuts them down.

Owns making these parts, flush, close, the end of a process, and what a forked child releases. Does not own
the public API (``producer``), whose object may be collected while this still closes, or the thread that runs
users' code (``user_thread``).

A collected producer is closed on a thread of its own, because the garbage collector may run anywhere:
- on a thread that waits, with a timeout, for the last future of this producer;
- on the sender thread of another producer, whose records would wait meanwhile;
- in the middle of ``threading.Thread.start``.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cyproducer import _process_hooks, errors
from cyproducer.accumulator.buffer_pool import BufferPool
from cyproducer.accumulator.record_accumulator import RecordAccumulator
from cyproducer.base import fork_lock
from cyproducer.base.clock import Clock, monotonic_ns, monotonic_s
from cyproducer.base.forks import ensure_own_process
from cyproducer.base.greenlets import RLock
from cyproducer.base.log import Log
from cyproducer.base.text import counted
from cyproducer.base.threads import new_thread
from cyproducer.base.unpatched import DefaultSelector
from cyproducer.base.user_thread import DRAIN_S, start_thread, user_thread
from cyproducer.clients.network_client import NetworkClient
from cyproducer.config import ProducerConfig
from cyproducer.control.partitioners import CustomPartitioner, PartitionerSpec
from cyproducer.futures.callback_thread import CallbackThread
from cyproducer.futures.completion import CompletionQueue
from cyproducer.futures.waiting import begin_sending
from cyproducer.sender.sender import Sender
from cyproducer.version import VERSION

if TYPE_CHECKING:
    import selectors

    from cyproducer.clients.telemetry_client import Collected
    from cyproducer.clients.transaction_client import TransactionClient
    from cyproducer.control.transaction_calls import Ending
    from cyproducer.observability.registry import Registry
    from cyproducer.observability.telemetry import Collector
    from cyproducer.wire.telemetry_api import GetTelemetrySubscriptionsResponse

log = Log("cyproducer")

#: How long the sender may take to end after the timeout of close(). It takes a millisecond, unless the
#: machine is overloaded. Futures without an outcome would be worse than a close() that returns late.
_END_S = 1.0
#: How long close() waits until a broker has taken the last metrics, if it has subscribed to them.
_LAST_PUSH_S = 1.0
#: Into how many waits a closing thread divides this time; see ``Runtime._await_end``.
_END_WAITS = 20
#: How long the callbacks of the records that close() has failed may take after that.
_CALLBACKS_S = 0.05
#: After this time, a close() logs what it still waits for.
_PATIENCE_S = 1.0
#: How many topics a log line names.
_NAMED_TOPICS = 5
#: How often a draining close() checks whether another thread closes with an earlier deadline.
_SLICE_S = 0.05

#: How long a batch waits for more records if records stream in and linger_ms is 0: enough for 100 kB at two
#: million records per second, and less than a broker under that load takes to respond.
STREAM_LINGER_MS = 0.75

#: Includes runtimes whose producer is being collected.
_runtimes: weakref.WeakSet[Runtime] = weakref.WeakSet()

#: Called with each runtime that was started or closed, on the thread that did so. For exporters, which would
#: miss a producer that is opened and closed between two collections. Must neither raise nor wait.
on_start: list[Callable[[Runtime], None]] = []
on_end: list[Callable[[Runtime], None]] = []


def wire(
    config: ProducerConfig,
    clock: Clock,
    selector: selectors.BaseSelector,
    completions: CompletionQueue,
    spec: PartitionerSpec | None,
    seed: int | None = None,
    *,
    compression_thread: bool = True,
) -> tuple[RecordAccumulator, Sender]:
    """Makes the accumulator and the sender from the options.

    ``seed`` determines the partitions of records without a key. ``compression_thread``: whether a thread of
    its own compresses large batches; without it, one thread can run everything, in simulated time.
    """
    compressor = _compressor(config.compression_type, config.effective_compression_level)
    topics: list[tuple[float, int, Any]] = []
    place_of = None
    if config.topic_options:
        from cyproducer.config import topic_options

        place_of = topic_options.finder(config.topic_options)
        for entry in config.topic_options.values():
            linger_ms, acks, codec, level = topic_options.settings_of(config, entry)
            topics.append((linger_ms, acks, _compressor(codec, level)))
    accumulator = RecordAccumulator(
        config,
        BufferPool(config.buffer_memory),
        clock,
        completions,
        # Without acknowledgements nothing is resent.
        ordered=any((config.acks, *(acks for _, acks, _ in topics))),
        stream_linger_ms=STREAM_LINGER_MS,
        compressor=compressor,
        topics=topics,
        place_of=place_of,
        compression_thread=compression_thread,
        spec=spec,
        seed=seed,
    )
    sender = Sender(config, accumulator, selector, clock)
    return accumulator, sender


def _compressor(codec: str | None, level: int | None) -> Any:
    """Returns a ``Compressor``; None without a codec."""
    if not codec:
        return None
    # Imported here: the codecs' libraries take as long to import as everything else.
    from cyproducer.records.compression import compressor_for

    return compressor_for(codec, level)


class Runtime:
    """Everything a producer runs on. Has no reference to the producer, which may be collected at any time."""

    def __init__(
        self,
        config: ProducerConfig,
        partitioner: PartitionerSpec | CustomPartitioner,
        callbacks: CallbackThread | None = None,
    ) -> None:
        """
        Args:
            config: the producer's options.
            partitioner: the option ``partitioner``, resolved.
            callbacks: runs the callbacks; None: a thread of this producer's own.
        """
        self.config = config
        self.log = Log("cyproducer", config.client_id)
        self.clock = Clock()
        self.callbacks = callbacks or CallbackThread(
            f"cyproducer-callbacks | {config.client_id}", config.max_pending_callbacks
        )
        self.selector = (config.selector or DefaultSelector)()
        spec = partitioner if isinstance(partitioner, PartitionerSpec) else None
        self.accumulator, self.sender = wire(config, self.clock, self.selector, self.callbacks.queue, spec)
        self.client = NetworkClient(config, self.sender, self.clock)
        self.sender.attach_control(self.client, self.client.fates)
        if self.client.telemetry is not None:
            self._made_ns = self.clock.unix_ms() * 1_000_000
            self.client.telemetry.collect = self._collect
            self._collector: Collector | None = None
        # A future keeps the queue alive, but not the producer.
        self.callbacks.queue.diagnosis = weakref.WeakMethod(self.client.diagnosis)
        self.accumulator.on_topic_needed = self.client.want_topic
        #: None if metrics are disabled, or were never requested.
        self._registry: Registry | None = None
        # Reentrant: a signal handler may call close() in the middle of a close().
        self._close_lock = RLock()
        self._deadlines: list[float] = []
        self._end_error: Exception | None = None
        #: The records that were left when close() ended the sender, by topic, and the reason; empty if none.
        self.lost = ""
        #: The records that had failed when close() began.
        self._failed_before: int | None = None
        self.closed = False
        user_thread.use_greenlet()
        self.thread = new_thread(self._run, f"cyproducer-sender | {config.client_id}")
        # Last: the exit of the process closes the runtimes in this set.
        _runtimes.add(self)

    def start(self) -> None:
        """Starts the sender thread."""
        try:
            if self.config.metric_reporters and self.config.metrics_enabled:
                registry = self.registry()
                # Before the sender thread can report a change.
                registry.report_to(
                    self.config.metric_reporters, self.config.as_dict() | {"client_id": self.config.client_id}
                )
                self.client.on_change = registry.refresh_soon
            self.thread.start()
            for tell in list(on_start):
                tell(self)
        except BaseException:
            self.close(0)
            raise

    def registry(self) -> Registry:
        """Returns the registry that ``metrics()`` reads; makes it on first use."""
        # Imported here: most programs never call metrics(), and should not pay for the import.
        from cyproducer.observability.registry import Registry

        if self._registry is None:
            # If two threads get here at once, either registry will do: both read the same counters.
            self._registry = Registry(
                self.accumulator,
                self.sender,
                client_id=self.config.client_id,
                metadata_age_s=self.client.metadata_age_s,
            )
        return self._registry

    def _collect(self, asked: GetTelemetrySubscriptionsResponse) -> Collected:
        """Reads and encodes the metrics that a broker wants. On a thread of its own, one call at a time."""
        if self._collector is None:
            # Imported here: most brokers never ask for metrics.
            with fork_lock.import_lock:
                from cyproducer.observability.telemetry import Collector

                registry = self.registry()
            name = self.config.transactional_id
            resource = {} if name is None else {"transactional_id": name}
            self._collector = Collector(registry, resource, VERSION, self._made_ns)
        return self._collector.collect(
            asked.wants, asked.delta_temporality, asked.accepted_compression_types, asked.telemetry_max_bytes
        )

    def _run(self) -> None:
        begin_sending()
        try:
            self.sender.run()
        except BaseException as error:
            # A bug in cyproducer, but no thread may wait for it forever.
            self.log.exception("the sender failed: every record that is not acknowledged fails")
            self.accumulator.close()
            self._end_error = errors.KafkaError(f"the sender thread failed: {error!r}")
        self._end()

    def _end(self) -> None:
        """Fails the remaining records and closes every descriptor.

        Runs on the sender thread, which Ctrl-C does not interrupt: half done, it would leave futures pending.
        """
        try:
            while self.sender.abort(self._end_error or errors.ProducerClosedError("the producer was closed")):
                # A thread in send() is still compressing a batch; it finishes soon.
                self.accumulator.flush(0.01)
        finally:
            if self.client.transaction_client is not None:
                # Nothing answers calls any more.
                self.client.transaction_client.end(
                    self._end_error or errors.ProducerClosedError("the producer was closed")
                )
            self.sender.release()
            self.selector.close()
            self.accumulator.pool.give_back(everything=True)

    def flush(self, timeout_s: float) -> str | None:
        """Waits for everything accepted so far, callbacks included; on timeout returns what is left."""
        began_ns = monotonic_ns()
        try:
            return self._flush(timeout_s)
        finally:
            self.accumulator.add_flush_time(monotonic_ns() - began_ns)

    def _flush(self, timeout_s: float) -> str | None:
        deadline = monotonic_s() + timeout_s
        if not self.accumulator.flush(timeout_s):
            return (
                f"not complete: {counted(self.accumulator.incomplete_batches, 'batch')}, "
                f"{counted(self.accumulator.parked_records, 'record')} without metadata: "
                f"{self.client.diagnosis()}"
            )
        left = max(0.0, deadline - monotonic_s())
        patience = min(left, DRAIN_S) if user_thread.is_current() else left
        if self.callbacks.wait_idle(patience):
            return None
        text = "every record is acknowledged or failed, but some of their callbacks have not returned"
        if patience < left:
            raise errors.IllegalStateError(
                f"flush() in a log handler or metric reporter: {text}. A callback may be logging and waiting "
                "for this very handler: call flush() from another thread"
            )
        return text

    def end_transaction(self, ending: Ending, timeout_s: float) -> Any:
        """Commits, aborts or prepares the open transaction; waits up to ``timeout_s`` seconds.

        The records' callbacks run before the transaction ends, except for an abort.
        """
        client = self.client.transaction_client
        assert client is not None
        deadline = monotonic_s() + timeout_s
        awaits_callbacks = ending != "abort" and self.callbacks.started
        call = client.begin_end(ending, not awaits_callbacks)
        try:
            if awaits_callbacks and client.is_accepted(call, timeout_s):
                left = self._flush(max(0.0, deadline - monotonic_s()))
                if left is not None and not call.done:
                    raise errors.KafkaTimeoutError(
                        f"{call.name} not complete within {timeout_s:g} s: {left}; call it again to go on"
                    )
                client.release(call)
            return client.await_end(call, max(0.0, deadline - monotonic_s()), timeout_s)
        finally:
            client.give_up(call)

    def close(self, timeout_s: float, unasked: bool = False) -> int:
        """Drains for up to ``timeout_s`` seconds, fails the rest, ends the threads; returns the number lost.

        If several threads close, the earliest deadline applies to all. ``unasked``: the program did not call
        the producer's ``close()``, so losses are logged here.
        """
        deadline = monotonic_s() + timeout_s
        try:
            self._deadlines.append(deadline)
            acquire = self._close_lock.acquire_patiently
            if not acquire(timeout_s) and not self._await_end(acquire):
                self.log.error("another thread is closing the producer and has not finished in time")
                return 0
            return 0 if self.closed else self._close(timeout_s, unasked)
        finally:
            # Ctrl-C may come between any two steps, so neither step above is certain to have happened.
            with suppress(ValueError):
                self._deadlines.remove(deadline)
            with suppress(RuntimeError):
                self._close_lock.release()

    def _close(self, timeout_s: float, unasked: bool) -> int:
        if self.client.transaction_client is not None:
            self._close_transaction(self.client.transaction_client)
            self.accumulator.refusal = None
        self.accumulator.close()
        # Greenlets of one thread, and signal handlers, may be in here at the same time. Whichever reaches a
        # step first does it for all.
        if self._failed_before is None:
            self._failed_before = self.accumulator.counters()["records_failed"]
        done = told = False
        began = monotonic_s()
        # If the sender has ended, for example in an interrupted close(), nothing drains.
        while self.thread.is_alive() and not done:
            left = min(self._deadlines) - monotonic_s()
            done = self.accumulator.flush(max(0.0, min(left, _SLICE_S)))
            user_thread.run_stranded()
            if left <= 0:
                break
            if not done and not told and monotonic_s() - began >= _PATIENCE_S:
                told = True
                self.log.log(
                    logging.WARNING if unasked else logging.INFO,
                    "closing: waiting for up to %.0f s more (%s) for records to be acknowledged: %s; Ctrl-C "
                    "ends the wait and loses them; %s",
                    left,
                    "close_timeout_ms" if unasked else "the timeout of close()",
                    self._unfinished(),
                    self.client.diagnosis(),
                )
        lost = 0
        why = "" if done else self.client.diagnosis()
        if not self._end_error:
            if not done:
                self.lost = f"{self._unfinished()}; {why}"
            self._end_error = errors.ProducerClosedError(
                f"the producer was closed before the record was acknowledged (timeout {timeout_s:g} s): {why}"
            )
        if self.client.telemetry is not None and self.thread.is_alive():
            left = min(self._deadlines) - monotonic_s()
            self.client.telemetry.end(max(0.0, min(left, _LAST_PUSH_S)))
        self.sender.stop()
        if self.thread.ident is None:
            self._end()
        elif not self._await_end(self._has_ended):
            self.log.error("the sender thread did not end; its sockets stay open until the process exits")
        if self.lost and not self.thread.is_alive():
            lost = self.accumulator.counters()["records_failed"] - self._failed_before
        self.client.close()
        patience = max(_CALLBACKS_S, min(self._deadlines) - monotonic_s())
        if user_thread.is_current():
            # A callback may be logging, and waiting for the log handler that closes here.
            patience = min(patience, DRAIN_S)
        self.callbacks.close(patience)
        if self._registry is not None:
            left = min(min(self._deadlines) - monotonic_s(), self.config.close_timeout_ms / 1000)
            self._registry.close(max(DRAIN_S, left))
        # Last: if Ctrl-C ends a wait above, another close() or the exit of the process continues.
        if self.closed:
            return 0
        self.closed = True
        for tell in list(on_end):
            tell(self)
        if unasked and lost:
            self.log.error(
                "lost %s: the program did not close the producer, and no broker acknowledged them within "
                "close_timeout_ms=%.0f at its end: %s",
                counted(lost, "record"),
                self.config.close_timeout_ms,
                self.lost,
            )
        return lost

    def _has_ended(self, timeout_s: float) -> bool:
        """Waits for the end of the sender thread; returns whether it has ended."""
        self.thread.join(timeout_s)
        return not self.thread.is_alive()

    def _await_end(self, wait: Callable[[float], bool]) -> bool:
        """Calls ``wait`` with a short timeout until it returns True. Returns False if the sender makes no
        progress.

        Counts waits, not time. The sender needs the GIL to end, and other threads may hold it for any time.
        This thread also needs the GIL after each wait, so the sender gets about as many turns.
        """
        waits, before = 0, None
        while waits < _END_WAITS:
            if wait(_END_S / _END_WAITS):
                return True
            left = (
                self.accumulator.incomplete_batches,
                self.accumulator.parked_records,
                self.sender.counters()["connections"],
            )
            waits = waits + 1 if left == before else 1
            before = left
        return False

    def _close_transaction(self, transactions: TransactionClient) -> None:
        """Aborts an open transaction, and waits for one that is already ending."""
        if not self.thread.is_alive():
            return
        # At most as long as records have: requests to a coordinator that is gone are retried without limit.
        latest = monotonic_s() + self.config.delivery_timeout_ms / 1000
        call = transactions.begin_close()
        while True:
            left = min(latest, *self._deadlines) - monotonic_s()
            if transactions.await_close(call, max(0.0, min(left, _SLICE_S))) or left <= 0:
                break
            user_thread.run_stranded()
        transactions.report_close(call)

    def _unfinished(self) -> str:
        """Describes how many records of which topics have no outcome yet; the largest topics first."""
        counts = sorted(self.accumulator.unfinished().items(), key=lambda item: -item[1])
        named = ", ".join(f"{count} of {name!r}" for name, count in counts[:_NAMED_TOPICS])
        more = sum(count for _, count in counts[_NAMED_TOPICS:])
        return named + (f", {more} of {len(counts) - _NAMED_TOPICS} more topics" if more else "")

    def disown(self) -> None:
        """In a forked child: see ``sender/after_fork``."""
        _process_hooks.disown(self.sender)
        self.closed = True


def open_runtimes() -> list[Runtime]:
    """Returns the runtimes that have started and are not closed, in any order."""
    ensure_own_process()
    # The set's own iteration fails if another thread makes a producer meanwhile. This copies in one step.
    references = list(_runtimes.data)  # type: ignore[attr-defined]
    found = [reference() for reference in references]
    return [one for one in found if one is not None and one.thread.ident is not None and not one.closed]


def finish(runtime: Runtime) -> None:
    """Starts closing a collected producer that was not closed. Does not wait: see the module's docstring."""
    ensure_own_process()
    if runtime.closed:
        return
    # If no thread can be started, the producer's own sender keeps sending until the exit closes it.
    with suppress(RuntimeError):
        start_thread("cyproducer-close", drain, runtime, monotonic_s())


def drain(runtime: Runtime, began: float) -> None:
    """Closes within close_timeout_ms, counted from ``began``, and logs how many records were lost."""
    left = began + runtime.config.close_timeout_ms / 1000 - monotonic_s()
    runtime.close(max(0.0, left), unasked=True)


def close_all() -> None:
    """Closes every open producer when the process ends, all at the same time."""
    ensure_own_process()
    began = monotonic_s()
    left = [runtime for runtime in list(_runtimes) if not runtime.closed]
    for runtime in left:
        runtime.accumulator.close()
    for runtime in left:
        try:
            try:
                drain(runtime, began)
            except KeyboardInterrupt:
                # Nothing waits any more, but losses are still logged. Python would only print the traceback.
                began = -math.inf
                drain(runtime, began)
        except Exception:
            # The next producer's records must not be lost because of this one.
            log.exception("closing the producer %r at exit failed", runtime.config.client_id)
    user_thread.drain(DRAIN_S)


def disown_all() -> None:
    """In a forked child: every runtime releases its copies of the parent's resources."""
    for runtime in list(_runtimes):
        runtime.disown()
        _runtimes.discard(runtime)
