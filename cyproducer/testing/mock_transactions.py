"""The transactions of a ``MockProducer``: ``KafkaProducer``'s own, with a coordinator that agrees at once.

Owns the coordinator's answers. Does not own what is allowed when, or which error comes of it
(``control/transaction_machine``), or what becomes of the records (``clients/transaction_client``).

There is no sender thread: each call is carried out by the thread that makes it, under the runtime's lock.
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
from cyproducer.wire.responses import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    FindCoordinatorResponse,
    InitProducerIdResponse,
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
    """The calls of one producer, which are complete when they return. Thread-safe."""

    def __init__(self, config: ProducerConfig, sender: Sender, lock: threading.RLock) -> None:
        """
        Args:
            config: the producer's options.
            sender: accepts and refuses records; its thread does not run.
            lock: guards everything, in place of the loop lock.
        """
        # Nothing is sent, so nothing is retried and no broker is looked for.
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
        """Carries out what the calls ask for."""
        with self._lock:
            # The time makes no difference: nothing is late, and nothing is tried again.
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
        """A record was accepted, which the transaction writes. The lock is held."""
        if self._wrote_in != self.machine.number:
            self._wrote_in = self.machine.number
            # Which partition it is makes no difference to this coordinator.
            self.machine.join([(topic, 0)])

    def fail(self, error: BaseException) -> None:
        """A record has failed, or the producer has, if the error is that of a code that is fatal."""
        with self._lock:
            self.machine.fail(error, getattr(error, "errno", None) or 0)
            self._run()

    # The coordinator

    def _connection(self, request: Request, now_ms: float) -> tuple[Connection | None, float]:
        # Any object: nothing is sent on it.
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
                # Then it is that of the first protocol.
                assert isinstance(request, AskLevel)
                machine.on_level_unknown(now_ms)
