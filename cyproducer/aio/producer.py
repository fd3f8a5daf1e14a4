"""``AIOKafkaProducer``: aiokafka's producer, over a ``KafkaProducer``.

Owns aiokafka's names and meanings of options, methods and results, and the producer's lifecycle from
``start()`` to ``stop()``. Does not own sending (``cyproducer.producer``), waiting for memory (``send_async``)
or passing outcomes of a completed batch to the loop (``futures/asyncio_bridge``). It has no queue of its own.

Call methods on the thread of a running loop. Several loops can use one producer.
"""

import asyncio
import math
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from cyproducer._asyncio_thread import in_thread
from cyproducer._send_async import accepted, waited
from cyproducer.aio.batch import BatchBuilder
from cyproducer.aio.sends import Sends, follow
from cyproducer.aio.structs import RecordMetadata
from cyproducer.aio.transaction import TransactionContext
from cyproducer.base.user_thread import start_thread
from cyproducer.config import ProducerConfig, hide
from cyproducer.config.option_kinds import Refused
from cyproducer.config.options import OptionTable
from cyproducer.errors import (
    IllegalStateError,
    InvalidProducerEpochError,
    KafkaConfigurationError,
    KafkaError,
    ProducerClosedError,
    ProducerFencedError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from cyproducer.futures.asyncio_bridge import LoopOutcomes, deliver
from cyproducer.futures.delivery import RecordFuture
from cyproducer.producer import KafkaProducer, ProducerRecord
from cyproducer.records.record_batch import HEADER_BYTES
from cyproducer.send.send_path import WouldBlock

_UNSET: Final[Any] = object()
Headers = Iterable[tuple[str, bytes | None]]


class AIOKafkaProducer:
    """Sends records to Kafka from asyncio, with the API of aiokafka's ``AIOKafkaProducer``.

    Options are keyword arguments with aiokafka's names. Every option of ``KafkaProducer`` is also accepted
    (``python -m cyproducer.config`` lists them). The constructor checks them. ``start()``, or ``async with``,
    makes the producer and connects it. These options have a different meaning than in ``KafkaProducer``:

    Args:
        max_batch_size: the maximum size of a batch in bytes, ``batch_size``. Default: 131072.
        request_timeout_ms: in milliseconds. Also limits how long ``start()`` waits for a broker, ``send()``
            for memory, and ``partitions_for()`` for metadata (``max_block_ms``). A record fails if it is not
            acknowledged within twice that time plus ``linger_ms`` (``delivery_timeout_ms``). Default: 40000.
        connections_max_idle_ms: None: idle connections are not closed.
        api_version: has no effect, and causes a ``DeprecationWarning``. ``KafkaProducer`` has an option of
            that name.
        loop: not needed. It is ignored, with a ``DeprecationWarning``: futures belong to the loop that calls
            ``send()``.

    ``transactional_id`` enables transactions; ``start()`` takes the id over. ``acks`` and
    ``enable_idempotence`` must not have values that transactions do not allow.

    With ``acks=0`` the result of a record is None. If only its topic has that, by ``topic_options``, the
    result is a ``RecordMetadata`` whose offset is -1.

    Unlike in aiokafka, the default is ``acks="all"`` with idempotence, as in ``KafkaProducer``. As in
    aiokafka, the default of ``sasl_mechanism`` is "PLAIN" if ``security_protocol`` uses SASL.

    Raises ``KafkaConfigurationError``, a ``ValueError``, if an option is unknown, has a value that is not
    allowed, or contradicts another one.
    """

    #: None before start() and after stop().
    _producer: KafkaProducer | None = None
    _source_traceback: traceback.StackSummary | None = None

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        api_version: Any = None,
        request_timeout_ms: float = 40000,
        max_batch_size: int = _UNSET,
        max_block_ms: float | None = None,
        delivery_timeout_ms: float = _UNSET,
        connections_max_idle_ms: float | None = 540000,
        **options: Any,
    ) -> None:
        options = hide(options)
        for name, value, reason in (
            ("loop", loop, "futures belong to the running loop"),
            ("api_version", api_version, "brokers report their versions"),
        ):
            if value is not None:
                warnings.warn(f"{name} has no effect: {reason}", DeprecationWarning, stacklevel=2)
        if max_batch_size is not _UNSET:
            if "batch_size" in options:
                raise KafkaConfigurationError("max_batch_size and batch_size are the same option: give one")
            options["batch_size"] = max_batch_size
        if str(options.get("security_protocol", "")).upper().startswith("SASL"):
            options.setdefault("sasl_mechanism", "PLAIN")
        transactional = options.get("transactional_id") is not None
        if str(options.get("acks", "all")).lower() not in ("-1", "all") and not transactional:
            # aiokafka's default: without this, there would be a warning that idempotence is switched off.
            options.setdefault("enable_idempotence", False)
        options["request_timeout_ms"] = request_timeout_ms
        options["max_block_ms"] = request_timeout_ms if max_block_ms is None else max_block_ms
        options["connections_max_idle_ms"] = (
            -1 if connections_max_idle_ms is None else connections_max_idle_ms
        )
        if delivery_timeout_ms is _UNSET:
            delivery_timeout_ms = _delivery_timeout_ms(options)
        self._config = ProducerConfig(delivery_timeout_ms=delivery_timeout_ms, **options)
        #: Set by stop(), so that a second stop() waits for the first.
        self._stopping: KafkaProducer | None = None
        self._closed = False
        #: A token for each call that ends a transaction, until it has returned: meanwhile no record is
        #: accepted.
        self._ending: set[object] = set()
        #: The futures of each loop. They are dropped together with the loop.
        self._outcomes: weakref.WeakKeyDictionary[Any, LoopOutcomes] = weakref.WeakKeyDictionary()
        self._sends = Sends(self._ending)
        running = asyncio._get_running_loop()
        if running is not None and running.get_debug():
            self._source_traceback = traceback.extract_stack(sys._getframe(1))
        self._loop = running

    @property
    def client_id(self) -> str:
        """The name that the producer reports to brokers."""
        return self._config.client_id

    # The producer's life

    async def start(self) -> None:
        """Creates the producer and waits until a broker has answered, up to ``request_timeout_ms``.

        Raises ``KafkaConnectionError`` if no broker answers, with the failure of each address, or the
        authentication error. With a ``transactional_id``, ``start()`` takes over the id, which fences older
        producers, and raises ``KafkaTimeoutError`` if no coordinator has answered within another
        ``request_timeout_ms``. After an error, or if the task is cancelled, nothing is left running, and
        ``start()`` can be called again. Raises ``ProducerClosedError`` after ``stop()``.
        """
        if self._closed:
            raise ProducerClosedError("start() after stop(): make another producer")
        if self._producer is None:
            self._loop = asyncio.get_running_loop()
            # The numbered client id stays the same if the producer is started again.
            self._producer = KafkaProducer(self._config.given() | {"client_id": self._config.client_id})
            self._sends.path = self._producer
        producer = self._producer
        try:
            await in_thread(self._named("start"), _begin, producer)
        except BaseException:
            # Unless stop() is closing it.
            if self._producer is producer:
                self._producer = self._sends.path = None
                # Not awaited: the task may be cancelled.
                start_thread(self._named("stop"), producer.close, 0)
            raise

    async def stop(self) -> None:
        """Waits until all accepted records are acknowledged or failed, then closes the producer.

        Takes at most twice ``request_timeout_ms`` plus ``linger_ms``; remaining records then fail with
        ``ProducerClosedError``. Aborts an open transaction. Can be called several times. If the task is
        cancelled, the producer continues to close in the background, and at exit the process waits for it up
        to ``close_timeout_ms``.
        """
        self._closed = True
        if self._producer is not None:
            self._stopping, self._producer = self._producer, None
            self._sends.path = None
        if self._stopping is not None:
            await in_thread(self._named("stop"), self._stopping.close)
            await _delivered()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def __del__(self, _warnings: Any = warnings) -> None:
        if self._producer is None:
            return
        # The KafkaProducer closes itself, in the background.
        _warnings.warn(f"Unclosed AIOKafkaProducer {self!r}", ResourceWarning, source=self)
        context = {"producer": self, "message": "Unclosed AIOKafkaProducer"}
        if self._source_traceback is not None:
            context["source_traceback"] = self._source_traceback
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_exception_handler(context)

    def _named(self, method: str) -> str:
        """Returns the name of a thread."""
        return f"cyproducer-aio-{method} | {self.client_id}"

    def _not_running(self, method: str) -> IllegalStateError:
        if self._closed:
            return ProducerClosedError(f"{method}() after stop(): nothing was accepted")
        return IllegalStateError(f"{method}() before start(): await start() first, or use `async with`")

    def _is_ending(self, method: str) -> IllegalStateError:
        return IllegalStateError(f"{method}() while the transaction is being ended: nothing was accepted")

    # Sending

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> "asyncio.Future[RecordMetadata | None]":
        """Accepts a record and returns its asyncio future, whose result is a ``RecordMetadata``.

        The result is None with ``acks=0``. Waits while the buffer memory is exhausted (``buffer_memory``), up
        to ``request_timeout_ms``, and lets the loop run other tasks after a few hundred records. If the task
        is cancelled while it waits, the record is not sent. Cancelling the future has no effect on the
        record, which was already accepted.

        Raises what ``KafkaProducer.send()`` raises, and errors of the record that are known immediately, such
        as ``MessageSizeTooLargeError``. Later errors are set on the future.
        """
        blocked = None
        try:
            found = self._sends.usual(topic, value, key, partition, timestamp_ms, headers)
        except WouldBlock as reason:
            # Nothing is raised inside this block: the reason would be the context of the exception.
            found, blocked = None, reason
        if found is None:
            return await self._sent(blocked, topic, value, key, partition, timestamp_ms, headers)
        return found

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> RecordMetadata | None:
        """Calls ``send()`` and awaits the outcome. If the task is cancelled meanwhile, the record may have
        been sent."""
        blocked = None
        try:
            found = self._sends.usual(topic, value, key, partition, timestamp_ms, headers)
        except WouldBlock as reason:
            found, blocked = None, reason
        if found is None:
            found = await self._sent(blocked, topic, value, key, partition, timestamp_ms, headers)
        outcome: RecordMetadata | None = await found
        return outcome

    async def _sent(
        self,
        blocked: WouldBlock | None,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Any,
    ) -> "asyncio.Future[RecordMetadata | None]":
        """The rest of ``send()``, if ``Sends.usual`` has not sent the record. ``blocked``: what
        ``Sends.usual`` raised."""
        latest = self._sends.outcomes
        if blocked is None and latest is not None and latest.due():
            await asyncio.sleep(0)
            latest.had_a_turn()
        producer = self._producer
        if producer is None:
            raise self._not_running("send")
        if self._ending:
            raise self._is_ending("send")
        if isinstance(headers, Iterable) and not isinstance(headers, list | Mapping):
            # It may be an iterator, which can be read only once.
            headers = list(headers)
        outcomes = self._outcomes_here()
        if producer._extensions is not None and producer._extensions.interceptors:
            sent = await producer.send_async(topic, value, key, headers, partition, timestamp_ms)
            return follow(outcomes, sent)
        # send_async() would do the same, through three more coroutines.
        found = blocked or self._sends.attempt(topic, value, key, partition, timestamp_ms, headers)
        if not isinstance(found, WouldBlock):
            return found
        record = ProducerRecord(topic, value, key, headers, partition, timestamp_ms)
        return follow(outcomes, await waited(producer, record, found))

    def _outcomes_here(self) -> LoopOutcomes:
        """Returns the outcomes for the running loop."""
        loop = asyncio.get_running_loop()
        outcomes = self._sends.outcomes
        if outcomes is None or not outcomes.serves(loop):
            outcomes = self._outcomes.get(loop)
            if outcomes is None:
                outcomes = LoopOutcomes(loop, RecordMetadata, self._config.acks == 0)
                self._outcomes[loop] = outcomes
            self._sends.outcomes = outcomes
        return outcomes

    async def flush(self) -> None:
        """Waits until every record accepted before the call is acknowledged or failed, and its future is set.

        Does not wait for ``linger_ms``. If the task is cancelled, the records are still sent.
        """
        if self._producer is None:
            raise self._not_running("flush")
        await in_thread(self._named("flush"), self._producer.flush)
        await _delivered()

    async def partitions_for(self, topic: str) -> set[int]:
        """Returns the topic's partitions; waits for its metadata up to ``request_timeout_ms``.

        Raises ``KafkaTimeoutError``, the broker's error for the topic, or TypeError if the topic is not a
        string.
        """
        producer = self._producer
        if producer is None:
            raise self._not_running("partitions_for")
        view = producer._runtime.client.view
        if isinstance(topic, str) and view.knows(topic):
            return set(view.partitions_for_topic(topic) or ())
        return await in_thread(self._named("metadata"), producer.partitions_for, topic)

    # Batches

    def create_batch(self) -> BatchBuilder:
        """Returns an empty batch, which accepts records up to ``max_batch_size`` bytes."""
        return BatchBuilder(
            self._config.batch_size,
            key_serializer=_function(self._config.key_serializer),
            value_serializer=_function(self._config.value_serializer),
        )

    async def send_batch(
        self, batch: BatchBuilder, topic: str, *, partition: int
    ) -> "asyncio.Future[RecordMetadata | None]":
        """Sends the records of a batch to one partition, in order; closes the batch.

        Returns an asyncio future for all of them. Its result is the ``RecordMetadata`` of the first record,
        None with ``acks=0`` or for an empty batch; its error is that of the first record that failed. Waits
        for the topic's metadata, and for memory, like ``send()``. The producer divides records into batches
        on the wire as for ``send()``: no batch exceeds ``max_batch_size``. With ``linger_ms`` above 0, the
        records are in one batch unless the partition's open batch already contains other records.

        Raises ``MessageSizeTooLargeError`` if a record exceeds ``max_request_size``, and
        ``UnknownTopicOrPartitionError`` if the topic has no such partition; then nothing was accepted. If an
        error or a cancellation occurs while the batch waits for memory, its first records are sent. A
        ``KafkaError`` then has their number as ``accepted``.
        """
        producer = self._producer
        if producer is None:
            raise self._not_running("send_batch")
        if self._ending:
            raise self._is_ending("send_batch")
        if not isinstance(batch, BatchBuilder):
            raise TypeError(f"batch: must come from create_batch(), not {type(batch).__name__}")
        batch.close()
        records: list[RecordFuture] = []
        try:
            await self._check_batch(batch, topic, partition)
            for key, value, timestamp_ms, headers in batch._records:
                record = ProducerRecord(topic, value, key, headers, partition, timestamp_ms)
                try:
                    records.append(producer._send_at_once(*record, None))
                except WouldBlock:
                    records.append(await accepted(producer, record, extended=False))
        except Exception as error:
            if isinstance(error, KafkaError):
                error.accepted = len(records)
            producer._note_refused(error)
            raise
        except asyncio.CancelledError:
            if records:
                whole = len(batch._records)
                text = f"send_batch() was cancelled after {len(records)} of {whole} records"
                producer._note_refused(KafkaError(text))
            raise
        # The future that the task awaits keeps the task alive.
        return asyncio.get_running_loop().create_task(self._whole(records))

    async def _check_batch(self, batch: BatchBuilder, topic: str, partition: int) -> None:
        largest, limit = batch._largest + HEADER_BYTES, self._config.max_request_size
        if largest > limit:
            raise RecordTooLargeError(record_size=largest, limit=limit)
        partitions = await self.partitions_for(topic)
        if partition not in partitions:
            raise UnknownTopicOrPartitionError(
                f"partition={partition}: topic {topic!r} has the partitions {sorted(partitions)}"
            )

    async def _whole(self, records: list[RecordFuture]) -> RecordMetadata | None:
        """Returns the outcome of a batch."""
        outcomes = self._outcomes_here()
        for record in records:
            if not record.done():
                # Raised below, so that the others are waited for first.
                with suppress(Exception):
                    await outcomes.follow(record)
        for record in records:
            if record.failed():
                await outcomes.follow(record)
        return await outcomes.follow(records[0]) if records else None

    # Transactions

    async def begin_transaction(self) -> None:
        """Begins a transaction, to which all records belong until it is ended. Sends nothing.

        Raises ``IllegalStateError`` (``IllegalOperation``) if a transaction is open, or without a
        ``transactional_id``, and ``ProducerFencedError`` (``ProducerFenced``) if a newer producer has taken
        over the id.
        """
        producer = self._transactional("begin_transaction")
        try:
            # This does not wait for the network, only for the sender's next step.
            producer.begin_transaction()
        except InvalidProducerEpochError as error:
            raise _fenced(error) from error

    async def commit_transaction(self) -> None:
        """Waits until all records are acknowledged, and commits them and the offsets as one.

        If the task is cancelled, the commit continues. Raises ``AbortableError`` if a record has failed, or
        was not accepted: call ``abort_transaction()``. Raises ``KafkaTimeoutError`` if the outcome is not
        known yet: call ``commit_transaction()`` again. Other errors are those of ``begin_transaction()``.
        """
        await self._end("commit", self._transactional("commit_transaction").commit_transaction)

    async def abort_transaction(self) -> None:
        """Aborts the transaction: readers with ``read_committed`` never see its records.

        Records that were not sent yet fail with ``TransactionAbortedError``; all futures are done when this
        returns. If the task is cancelled, the abort continues. Errors are those of ``begin_transaction()``,
        and ``KafkaTimeoutError``: call ``abort_transaction()`` again.
        """
        await self._end("abort", self._transactional("abort_transaction").abort_transaction)

    async def send_offsets_to_transaction(self, offsets: Any, group_id: Any) -> None:
        """Adds positions of a consumer group to the transaction: they are committed with its records.

        ``offsets``: {TopicPartition: offset, (offset, metadata) or OffsetAndMetadata}, the next offset to
        read of each partition. ``group_id``: the group's id, with which the broker refuses no member, or a
        ``ConsumerGroupMetadata``, with which the broker refuses a member that has lost its partitions
        (KIP-447).

        Raises ``AbortableError`` if the group or a partition is refused: call ``abort_transaction()``. Raises
        ValueError or TypeError if an argument is invalid; then nothing was sent.
        """
        producer = self._transactional("send_offsets_to_transaction")
        if not group_id:
            raise ValueError(f"group_id={group_id!r}: must be the id of a group")
        # A copy: other tasks may change it meanwhile.
        given = dict(offsets) if isinstance(offsets, Mapping) else offsets
        await self._call("offsets", producer.send_offsets_to_transaction, given, group_id)

    def transaction(self) -> TransactionContext:
        """Returns a context manager for one transaction: ``async with producer.transaction():``.

        Begins the transaction at the start of the block and commits it at the end. If the block raises, or
        its task is cancelled, or if the commit raises, the transaction is aborted, and the exception
        propagates.
        """
        self._transactional("transaction")
        return TransactionContext(self)

    def _transactional(self, method: str) -> KafkaProducer:
        if self._producer is None:
            raise self._not_running(method)
        if self._config.transactional_id is None:
            raise IllegalStateError(
                f"{method}() needs a transactional_id, and this producer has none: "
                "AIOKafkaProducer(transactional_id=...)"
            )
        return self._producer

    async def _end(self, name: str, function: Callable[[], None]) -> None:
        # As in aiokafka, other tasks can send nothing more once this is called.
        token = object()
        self._ending.add(token)

        def run() -> None:
            try:
                function()
            finally:
                self._ending.discard(token)

        try:
            await self._call(name, run)
        except Exception:
            # The thread could not be started, or has already discarded the token.
            self._ending.discard(token)
            raise

    async def _call(self, name: str, function: Callable[..., None], *arguments: Any) -> None:
        try:
            await in_thread(self._named(name), function, *arguments)
        except InvalidProducerEpochError as error:
            raise _fenced(error) from error
        finally:
            # The outcomes of the transaction's records are known.
            await _delivered()

    def __repr__(self) -> str:
        state = "open" if self._producer is not None else "stopped" if self._closed else "not started"
        return f"<{type(self).__name__} {self.client_id!r} {state}>"


async def _delivered() -> None:
    """Sets the futures whose outcome is known, and lets the tasks that await them run."""
    deliver(asyncio.get_running_loop())
    # The task of send_batch() sets another future.
    await asyncio.sleep(0)


def _begin(producer: KafkaProducer) -> None:
    producer.wait_ready()
    if producer.config.transactional_id is not None:
        producer.init_transactions()


def _fenced(error: InvalidProducerEpochError) -> ProducerFencedError:
    """Returns the error as ``ProducerFencedError``. Brokers before 2.7 report fencing with another code, and
    aiokafka does not distinguish the two."""
    return ProducerFencedError(*error.args)


def _delivery_timeout_ms(options: Mapping[str, Any]) -> float:
    """Returns aiokafka's maximum time from ``send()`` to an outcome."""
    linger_ms = options.get("linger_ms", OptionTable.linger_ms.default)
    try:
        linger_ms = OptionTable.linger_ms.kind(linger_ms)
        return linger_ms + 2 * OptionTable.request_timeout_ms.kind(options["request_timeout_ms"])
    except Refused:
        # The value is not allowed: ProducerConfig raises an error about it.
        return math.inf


def _function(serializer: Any) -> Callable[[Any], Any] | None:
    """Returns the serializer as a function. A batch needs a function because it has no topic."""
    if serializer is None or not hasattr(serializer, "serialize"):
        function: Callable[[Any], Any] | None = serializer
        return function
    raise KafkaConfigurationError(
        f"create_batch(): {type(serializer).__name__}.serialize() takes the topic, which a batch only learns "
        "in send_batch(): give a function as serializer"
    )
