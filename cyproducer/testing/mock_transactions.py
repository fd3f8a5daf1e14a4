"""The transactions of a ``MockProducer``: those of ``KafkaProducer``, with a coordinator that always agrees.

Owns the coordinator's responses, which are immediate. Does not own which calls are allowed in which state, or
the resulting errors (``control/transaction_machine``), or the outcome of the records
(``clients/transaction_client``).

There is no sender thread: the calling thread carries out each call, under the runtime's lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from cyproducer import errors
from cyproducer.clients.transaction_client import TransactionClient
from cyproducer.config import ProducerConfig
from cyproducer.control.idempotence import Idempotence
from cyproducer.control.retry import ExponentialBackoff
from cyproducer.control.transaction_calls import Call
from cyproducer.control.transaction_requests import (
    AddOffsets,
    AddPartitions,
    AskLevel,
    CommitOffsets,
    EndTxn,
    FindCoordinator,
    InitProducerId,
    Request,
)
from cyproducer.sender.sender import Sender
from cyproducer.wire.responses import InitProducerIdResponse
from cyproducer.wire.transaction_api import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    FindCoordinatorResponse,
    TxnOffsetCommitResponse,
)

if TYPE_CHECKING:
    import threading

    from cyproducer.net.connection import Connection
    from cyproducer.net.connector import Connector

NODE = 0
"""The id of the only broker."""
PRODUCER_ID = 0
WHERE = "the mock's coordinator"


class MockTransactions(TransactionClient):
    """The transaction calls of one producer. Each call is complete when it returns. Thread-safe."""

    def __init__(self, config: ProducerConfig, sender: Sender, lock: threading.RLock) -> None:
        """
        Args:
            config: the producer's options.
            sender: accepts and refuses records; its thread does not run.
            lock: guards everything, instead of the loop lock.
        """
        # Nothing is sent, so there are no retries and no lookups of brokers.
        no_connector, no_nodes = cast("Connector", None), list[int]
        super().__init__(
            config,
            sender,
            Idempotence(transactional=True),
            ExponentialBackoff(0, 0),
            lambda: 0.0,
            no_connector,
            no_nodes,
            lambda: "a MockProducer has no broker",
        )
        self._lock = lock
        self._wrote_in = 0

    def _run(self) -> None:
        """Carries out the pending requests of the calls."""
        with self._lock:
            # The time does not matter: no request times out, and none is retried.
            self.tick(0.0)

    def _submit(self, call: Call) -> Call:
        if self._closed is not None:
            raise errors.copied(self._closed)
        super()._submit(call)
        self._run()
        return call

    def release(self, call: Call) -> None:
        super().release(call)
        self._run()

    def note_refused(self, error: Exception) -> None:
        super().note_refused(error)
        self._run()

    def note_accepted(self, topic: str) -> None:
        """Notes that a record was accepted into the transaction. The caller holds the lock."""
        if self._wrote_in != self.machine.number:
            self._wrote_in = self.machine.number
            # The partition does not matter to this coordinator.
            self.machine.join([(topic, 0)])

    def fail(self, error: BaseException) -> None:
        """Notes that a record has failed, or that the producer has failed if the error's code is fatal."""
        with self._lock:
            self.machine.fail(error, getattr(error, "errno", None) or 0)
            self._run()

    # The coordinator

    def _connection(self, request: Request, now_ms: float) -> tuple[Connection | None, float]:
        # Any object will do: nothing is sent on it.
        return cast("Connection", self), 0

    def _send(self, request: Request, connection: Connection, now_ms: float) -> bool:
        self.machine.sent(request)
        self._answer(request, now_ms)
        # The next request is due.
        return False

    def _answer(self, request: Request, now_ms: float) -> None:
        machine = self.machine
        match request:
            case FindCoordinator():
                machine.on_coordinator(FindCoordinatorResponse(0, 0, None, NODE, "mock", 0), WHERE, now_ms)
            case InitProducerId():
                granted = InitProducerIdResponse(0, 0, PRODUCER_ID, machine.epoch + 1)
                machine.on_init(granted, WHERE, now_ms)
            case AddPartitions(places):
                machine.on_partitions(AddPartitionsToTxnResponse(0, dict.fromkeys(places, 0)), WHERE, now_ms)
            case AddOffsets():
                machine.on_offsets_added(AddOffsetsToTxnResponse(0, 0), WHERE, now_ms)
            case CommitOffsets():
                codes = {(place.topic, place.partition): 0 for place in request.positions}
                machine.on_offsets_committed(TxnOffsetCommitResponse(0, codes), WHERE, now_ms)
            case EndTxn():
                machine.on_ended(EndTxnResponse(0, 0), WHERE, now_ms)
            case _:
                # An unknown level means the first version of the transaction protocol.
                assert isinstance(request, AskLevel)
                machine.on_level_unknown(now_ms)
