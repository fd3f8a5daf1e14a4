"""Carries out transactions: sends their requests, and makes application threads wait for their calls.

Owns the waiting threads, and applying the state of ``control/transaction_machine`` to the sender: which
records are accepted, under which identity they are sent, and which records fail. Does not decide
(``control/transaction_machine``) or connect (``connector``).

``tick`` and everything named ``on_...`` run with the loop lock held, one call at a time. The methods under
"From application threads" may be called from any thread.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from cyproducer import errors
from cyproducer.base.clock import monotonic_s
from cyproducer.base.log import Log
from cyproducer.base.threads import Condition
from cyproducer.clients.producer_id import COMPRESSING_MS
from cyproducer.config import ProducerConfig
from cyproducer.control.idempotence import Idempotence
from cyproducer.control.retry import ExponentialBackoff
from cyproducer.control.transaction_calls import (
    Call,
    CloseCall,
    Ending,
    Event,
    Offsets,
    OffsetsCall,
    ResumeCall,
    State,
)
from cyproducer.control.transaction_machine import TransactionMachine
from cyproducer.control.transaction_requests import (
    FIRST,
    HIGHEST_PRODUCE,
    SECOND,
    AddOffsets,
    AddPartitions,
    AskLevel,
    AskMarkers,
    CommitOffsets,
    EndTxn,
    FindCoordinator,
    InitProducerId,
    Request,
)
from cyproducer.futures.waiting import refuse_wait_of_sender
from cyproducer.net.connection import Connection
from cyproducer.net.connector import Connector, encode_api_versions
from cyproducer.sender.sender import Sender
from cyproducer.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from cyproducer.wire import transaction_api
from cyproducer.wire.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from cyproducer.wire.protocol import Encode, encode_init_producer_id, framing
from cyproducer.wire.responses import ApiVersionsResponse
from cyproducer.wire.schema import Api

FEATURE = "transaction.version"
OLDEST_BUMP = 3
"""The first version of InitProducerId that bumps an epoch (KIP-360)."""

HIGHEST_OF_FIRST = {END_TXN: 4, TXN_OFFSET_COMMIT: 4}
"""The highest versions that belong to the first protocol."""
NEEDED_BY_SECOND = {PRODUCE: 12, END_TXN: 5, TXN_OFFSET_COMMIT: 5}
"""The lowest versions that belong to the second protocol (KIP-890)."""


class TransactionClient:
    """The transactions of one producer. See the module's docstring."""

    def __init__(
        self,
        config: ProducerConfig,
        sender: Sender,
        idempotence: Idempotence,
        backoff: ExponentialBackoff,
        rng: Callable[[], float],
        connector: Connector,
        nodes: Callable[[], Sequence[int]],
        diagnosis: Callable[[], str],
    ) -> None:
        """
        Args:
            config: the producer's options; it has a ``transactional_id``.
            sender: the loop, to which the transaction's state is applied.
            idempotence: forgets the state of held-back partitions when the next transaction begins.
            backoff: the delay after a failed request.
            rng: returns a float in [0, 1), for jitter.
            connector: sends requests, and connects to coordinators.
            nodes: returns the nodes to connect to if there is no connection.
            diagnosis: returns the reason why requests fail, for error messages.
        """
        assert config.transactional_id is not None
        self._id: str = config.transactional_id
        self._config = config
        self._sender = sender
        self._idempotence = idempotence
        self._connector = connector
        self._nodes = nodes
        self._diagnosis = diagnosis
        self._log = Log("cyproducer", config.client_id)
        #: Makes the decisions.
        self.machine = TransactionMachine(self._id, config.transaction_timeout_ms, backoff, rng)
        self.machine.on_failure = sender.request_control
        # Calls, and the errors of records that were not accepted, in their order of arrival. Filled by
        # application threads, emptied by the sender thread.
        self._submitted: deque[Call | Exception] = deque()
        # The state that was applied to the sender.
        self._identity = (-1, -1)
        self._number = 0
        self._opened = False
        self._refused_as: State | None = None
        self._hurried = False
        self._calls: list[Call] = []
        # Whether the producer has failed for good and a record has no outcome yet.
        self._unsettled = False
        self._closed: Exception | None = None
        # Notifies application threads that a call is done.
        self._changed = Condition()
        # Called before the first step, so that an earlier record also gets this error.
        self._refuse_records()

    # From application threads

    def init(self, timeout_s: float) -> None:
        """``init_transactions()``: takes over the transactional id; waits up to ``timeout_s`` seconds.

        Raises:
            KafkaTimeoutError: no coordinator responded; a repeated call continues the same operation.
            InvalidSetupError: missing rights, an invalid ``transaction_timeout_ms``, or too old brokers.
            IllegalStateError: it was called before.
        """
        self._wait(self._submit(Call(Event.INIT, "init_transactions()")), timeout_s)

    def resume(self, producer_id: int, epoch: int) -> None:
        """Continues with the identity of another producer of this transactional id, instead of ``init``.

        Raises:
            IllegalStateError: this producer already has an identity.
        """
        self._wait(self._submit(ResumeCall(producer_id, epoch)), math.inf)

    @property
    def identity(self) -> tuple[int, int]:
        """The producer id and epoch of the next transaction, while none is open. Any thread."""
        return self.machine.producer_id, self.machine.epoch

    @property
    def end_in_doubt(self) -> bool:
        """Whether the last transaction may have ended although EndTxn was refused. Any thread."""
        return self.machine.end_in_doubt

    @property
    def level(self) -> int:
        """The last level of ``transaction.version`` that a broker reported, 0 if none has. Any thread."""
        return self.machine.level

    def begin(self) -> None:
        """``begin_transaction()``: sends nothing."""
        self._wait(self._submit(Call(Event.BEGIN, "begin_transaction()")), math.inf)

    def send_offsets(
        self,
        group: ConsumerGroupMetadata,
        positions: Mapping[TopicPartition, OffsetAndMetadata],
        timeout_s: float,
    ) -> None:
        """``send_offsets_to_transaction()``."""
        self._wait(self._submit(OffsetsCall(Offsets(group, positions))), timeout_s)

    def begin_end(self, ending: Ending, released: bool) -> Call:
        """Begins to commit, abort or prepare; returns the call, for ``release`` and ``await_end``.

        ``released``: whether the calling thread has no work left to do before the transaction ends.
        """
        event = Event[ending.upper()]
        return self._submit(Call(event, event.value, released))

    def is_accepted(self, call: Call, timeout_s: float) -> bool:
        """Waits until a call is refused or in progress; returns whether it is in progress."""
        self._wait_until(lambda: call.told or call.accepted, call, timeout_s, timeout_s)
        return not call.done

    def release(self, call: Call) -> None:
        """Allows the transaction to end: the calling thread has completed its work before that."""
        call.released = True
        self._sender.request_control()

    def await_end(self, call: Call, left_s: float, timeout_s: float) -> Any:
        """Waits for a call's outcome, for ``left_s`` of ``timeout_s`` seconds; returns or raises it."""
        self._wait_until(lambda: call.told, call, left_s, timeout_s)
        if call.error is not None:
            raise errors.copied(call.error)
        return call.result

    def give_up(self, call: Call) -> None:
        """Notes that the calling thread no longer waits for the call."""
        with self._changed:
            call.abandoned = not call.told

    def begin_close(self) -> Call:
        """Begins to abort an open transaction on close; returns the call, for ``await_close``."""
        return self._submit(CloseCall())

    def await_close(self, call: Call, left_s: float) -> bool:
        """Waits up to ``left_s`` seconds until no transaction is left to end; returns whether that is so."""
        deadline = monotonic_s() + left_s
        with self._changed:
            while not call.told and self._closed is None:
                if not self._changed.wait_until(deadline):
                    return False
        return True

    def report_close(self, call: Call) -> None:
        """Logs a transaction that was not ended, before the producer is closed."""
        if call.error is not None:
            self._log.warning("closing the producer: its transaction was not ended: %s", call.error)
        elif not call.told and self.machine.open:
            self._log.warning(
                "closing the producer: its transaction was not ended in time; the broker aborts it after "
                "transaction_timeout_ms=%.0f: %s; %s",
                self._config.transaction_timeout_ms,
                self.machine.describe(),
                self._diagnosis(),
            )

    def note_refused(self, error: Exception) -> None:
        """Notes a record that ``send()`` refused, an error that the application may have overlooked."""
        if self.machine.drops_refused:
            return
        self._submitted.append(error)
        self._sender.request_control()

    def _submit(self, call: Call) -> Call:
        refuse_wait_of_sender(call.name)
        self._submitted.append(call)
        self._sender.request_control()
        return call

    def _wait(self, call: Call, timeout_s: float) -> Any:
        try:
            return self.await_end(call, timeout_s, timeout_s)
        finally:
            # Also after Ctrl-C.
            self.give_up(call)

    def _wait_until(self, reached: Callable[[], bool], call: Call, left_s: float, timeout_s: float) -> None:
        deadline = monotonic_s() + left_s
        with self._changed:
            while not reached():
                if self._closed is not None:
                    raise errors.copied(self._closed)
                if not self._changed.wait_until(deadline):
                    raise errors.KafkaTimeoutError(
                        f"{call.name} not complete within {timeout_s:g} s: {self.machine.describe()}; "
                        f"{self._diagnosis()}; it goes on: call it again to wait for its outcome"
                    )

    # With the loop lock held

    def note_lost(self, error: BaseException) -> None:
        """Fails the transaction, because records that waited for metadata have failed."""
        self.machine.fail(error)
        self._sender.request_control()

    def tick(self, now_ms: float) -> float:
        """Performs the work that is due; returns the milliseconds until the next work is due."""
        while self._submitted:
            call = self._submitted.popleft()
            if isinstance(call, Exception):
                self.machine.fail(call)
                continue
            self._calls.append(call)
            self.machine.submit(call, now_ms)
            call.accepted = True
        self._apply()
        self.machine.join(self._sender.take_joining())
        wait_ms = self._next(now_ms)
        self._apply()
        self._notify()
        return min(wait_ms, self.machine.wait_ms(now_ms))

    def _notify(self) -> None:
        """Wakes the threads whose calls are done. Must follow ``_apply``: one may send a record immediately.

        After a fatal error, no call waits for ``is_drained``, but all futures must be done first.
        """
        if self._unsettled:
            return
        waiting = [call for call in self._calls if not call.done]
        if len(waiting) < len(self._calls) or any(not call.released for call in waiting):
            with self._changed:
                for call in self._calls:
                    call.told = call.done
                self._changed.notify_all()
            self._calls = waiting

    def _apply(self) -> None:
        """Applies the state of the transactions to the sender."""
        machine, sender = self.machine, self._sender
        identity = machine.producer_id, machine.epoch
        if identity != self._identity:
            self._identity = identity
            sender.set_identity(*identity)
            self._log.info("producer id %d, epoch %d of transactional id %r", *identity, self._id)
        if machine.number != self._number:
            self._number = machine.number
            self._opened = False
            self._refused_as = None
            self._idempotence.start_over()
            sender.reopen_partitions()
            sender.begin_transaction()
        if machine.protocol is not None and not self._opened:
            self._opened = True
            sender.open_transaction(machine.protocol == FIRST, HIGHEST_PRODUCE[machine.protocol])
        if machine.added:
            sender.partitions_added(machine.added)
            machine.added = []
        if not machine.accepts_records and machine.state is not self._refused_as:
            # In this order: once send() is refused because the producer has failed, no record is pending.
            self._give_up_records()
            self._refuse_records()
        hurry = machine.state in (State.PREPARING, State.COMMITTING)
        if hurry is not self._hurried:
            self._hurried = hurry
            sender.set_hurry(hurry)

    def _refuse_records(self) -> None:
        self._refused_as = self.machine.state
        self._sender.refuse_records(self.machine.refusal())

    def _next(self, now_ms: float) -> float:
        """Sends the next request, if there is one; returns the milliseconds until the next attempt."""
        while True:
            if self._sender.has_lost() and not self.machine.failed:
                # Whatever the reason, a transaction is not committed without one of its records.
                error = self._sender.unplaced or errors.KafkaError("a record of the transaction has failed")
                self.machine.fail(error, 0, True)
            compressing = self._give_up_records()
            request = self.machine.next_request(self._sender.is_drained, self._sender.has_written(), now_ms)
            if request is None:
                return COMPRESSING_MS if compressing else math.inf
            # Opening a transaction needs no request if there is nothing to look up.
            self._apply()
            connection, wait_ms = self._connection(request, now_ms)
            if connection is None:
                return wait_ms
            if self._send(request, connection, now_ms):
                return float(self._config.request_timeout_ms)

    def _give_up_records(self) -> bool:
        """Fails records that must not be sent; returns whether a batch remains that a thread is compressing.

        After a fatal error, batches in flight also fail. An abort waits for their responses instead, because
        a late request could become part of the next transaction. After a fatal error, there is no next
        transaction.
        """
        if not self.machine.failed:
            return False
        fatal = self.machine.state is State.FATAL_ERROR
        compressing = self._sender.purge(True, fatal, self.machine.record_error())
        self._unsettled = fatal and compressing
        return compressing

    def _connection(self, request: Request, now_ms: float) -> tuple[Connection | None, float]:
        """Returns a connection for the request, or None and the milliseconds until the next attempt."""
        node_id = self.machine.coordinator(request)
        connection, wait_ms = self._connector.connection_for(node_id, self._nodes(), now_ms)
        if wait_ms is None:
            error = errors.KafkaConnectionError(
                f"broker {node_id}, the coordinator, cannot be reached: {self._diagnosis()}"
            )
            self.machine.unreachable(request, error, now_ms)
            return None, self.machine.wait_ms(now_ms)
        return connection, wait_ms

    def _send(self, request: Request, connection: Connection, now_ms: float) -> bool:
        """Sends a request; returns False if it was not sent, because the broker does not support it."""
        found = self._api_of(request, connection, now_ms)
        if found is None:
            return False
        api, version = found
        encode, on_response = self._encoding(request), partial(self._on_response, request)
        self.machine.sent(request)
        self._connector.request(connection, api, encode, on_response, self._on_broken, version=version)
        return True

    def _api_of(self, request: Request, connection: Connection, now_ms: float) -> tuple[Api, int] | None:
        api, _ = _REQUESTS[type(request)]
        version = connection.handshake.versions.get(api)
        if isinstance(request, AskLevel) and version is None:
            # The broker's versions are assumed, because it does not support ApiVersions.
            self.machine.on_level_unknown(now_ms)
            return None
        if isinstance(request, AskMarkers) and version is None:
            self.machine.skip_markers()
            return None
        too_old = version is None or (api is INIT_PRODUCER_ID and version < OLDEST_BUMP)
        if version is None or too_old:
            self.machine.refuse_init(
                errors.UnsupportedVersionError(
                    f"{connection.where} is too old for transactions, which need Kafka 2.5 or later "
                    f"({api.name} is {'missing' if version is None else f'version {version}'})"
                )
            )
            return None
        if isinstance(request, EndTxn | CommitOffsets) and request.protocol == FIRST:
            version = min(version, HIGHEST_OF_FIRST[api])
        return api, version

    def _encoding(self, request: Request) -> Encode:
        identity = self._id, self.machine.producer_id, self.machine.epoch
        match request:
            case FindCoordinator(kind, key):
                return framing(transaction_api.encode_find_coordinator, kind, key)
            case InitProducerId(producer_id, epoch):
                timeout_ms = int(self._config.transaction_timeout_ms)
                return framing(encode_init_producer_id, self._id, timeout_ms, producer_id, epoch)
            case AddPartitions(places):
                topics: dict[str, list[int]] = {}
                for topic, partition in places:
                    topics.setdefault(topic, []).append(partition)
                return framing(transaction_api.encode_add_partitions_to_txn, *identity, topics)
            case AddOffsets(group_id):
                return framing(transaction_api.encode_add_offsets_to_txn, *identity, group_id)
            case CommitOffsets(group, positions):
                return framing(transaction_api.encode_txn_offset_commit, *identity, group, positions)
            case EndTxn(commit):
                return framing(transaction_api.encode_end_txn, *identity, commit)
            case AskMarkers():
                return framing(transaction_api.encode_describe_transactions, [self._id])
            case AskLevel():
                return encode_api_versions

    # Responses

    def _on_response(
        self, request: Request, connection: Connection, version: int, response: Any, now_ms: float
    ) -> None:
        """Handles a response, and sends the next request immediately, without waiting for the next tick."""
        if isinstance(request, FindCoordinator) and response.error_code == 0:
            self._connector.know(response.node_id, response.host, response.port)
        _, handle = _REQUESTS[type(request)]
        handle(self.machine, response, connection.where, now_ms)
        self._apply()
        self._next(now_ms)
        self._apply()
        self._notify()
        self._sender.request_control()

    def on_features(self, response: ApiVersionsResponse, now_ms: float) -> None:
        """Handles the features that a broker has reported in a new connection's handshake."""
        self.machine.on_features(response.features_epoch, level_of(response), now_ms)

    def _on_broken(self, connection: Connection, cause: BaseException, now_ms: float) -> None:
        """Retries the request in flight, which will get no response."""
        self.machine.on_no_response(cause, now_ms)
        self._sender.request_control()

    def end(self, error: Exception) -> None:
        """Ends all waits, because the loop has ended: no further call gets an outcome."""
        with self._changed:
            self._closed = self._closed or error
            self._changed.notify_all()


def _on_level(machine: TransactionMachine, response: ApiVersionsResponse, where: str, now_ms: float) -> None:
    if response.error_code:
        machine.on_level_unknown(now_ms)
    else:
        machine.on_level(response.features_epoch, level_of(response), now_ms)


_REQUESTS: dict[type, tuple[Api, Callable[[TransactionMachine, Any, str, float], None]]] = {
    FindCoordinator: (FIND_COORDINATOR, TransactionMachine.on_coordinator),
    InitProducerId: (INIT_PRODUCER_ID, TransactionMachine.on_init),
    AddPartitions: (ADD_PARTITIONS_TO_TXN, TransactionMachine.on_partitions),
    AddOffsets: (ADD_OFFSETS_TO_TXN, TransactionMachine.on_offsets_added),
    CommitOffsets: (TXN_OFFSET_COMMIT, TransactionMachine.on_offsets_committed),
    EndTxn: (END_TXN, TransactionMachine.on_ended),
    AskMarkers: (DESCRIBE_TRANSACTIONS, TransactionMachine.on_markers),
    AskLevel: (API_VERSIONS, _on_level),
}
"""The API of each request of the machine, and the method that handles the response."""


def level_of(response: ApiVersionsResponse) -> int:
    """Returns the finalized level of ``transaction.version`` that can be used, 0 if there is none.

    Level 2 needs request versions that a proxy may hide although it passes on the features: a broker treats
    requests of older versions as the first protocol, which requires partitions and groups to be added first.
    """
    level = response.finalized_features.get(FEATURE, (0, 0))[1]
    offered = response.api_versions
    if level >= SECOND and any(
        offered.get(api.key, (0, 0))[1] < lowest for api, lowest in NEEDED_BY_SECOND.items()
    ):
        return FIRST
    return level
