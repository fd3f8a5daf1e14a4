"""A pure machine of transactions, and a coordinator that answers as a test says. No network, no clock.

``Play`` steps ``TransactionMachine`` by hand: a request is what the machine asks for next, and each answer is
given with a call.
"""

from typing import Any

from cyproducer.control.retry import ExponentialBackoff
from cyproducer.control.transaction_calls import Call, CloseCall, Event, Offsets, OffsetsCall, State
from cyproducer.control.transaction_machine import TransactionMachine
from cyproducer.control.transaction_requests import (
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
from cyproducer.errors import KafkaConnectionError
from cyproducer.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from cyproducer.wire.responses import InitProducerIdResponse
from cyproducer.wire.transaction_api import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    DescribeTransactionsResponse,
    EndTxnResponse,
    FindCoordinatorResponse,
    TransactionDescription,
    TxnOffsetCommitResponse,
)

GROUP = ConsumerGroupMetadata("g", 3, "m")
POSITIONS = {
    TopicPartition("in", 0): OffsetAndMetadata(5),
    TopicPartition("in", 1): OffsetAndMetadata(7),
}
BACKOFF_MS = 100.0
PRODUCER = 4711
WHERE = "broker-1"
CUT = KafkaConnectionError("the connection broke")


class Play:
    """A machine at ``now_ms``; ``level``: of transaction.version, as the brokers tell it."""

    def __init__(self, level: int = 2, timeout_ms: float = 60_000) -> None:
        self.machine = TransactionMachine(
            "tx", timeout_ms, ExponentialBackoff(BACKOFF_MS, 1000, jitter=0), lambda: 0.5
        )
        self.now_ms = 1_000_000.0
        self.level = level
        self.features_epoch = 1
        self.drained = True
        self.wrote = False
        #: How often the machine asked whether the producer is drained.
        self.asked_drained = 0
        #: The states that DescribeTransactions answers, one after the other; then CompleteCommit.
        self.markers: list[str] = []
        self.epoch = -1
        self.machine.on_features(1, level, self.now_ms)

    # The application

    def call(self, event: Event, released: bool = True) -> Call:
        call = Call(event, event.value, released)
        self.machine.submit(call, self.now_ms)
        return call

    def close(self) -> CloseCall:
        call = CloseCall()
        self.machine.submit(call, self.now_ms)
        return call

    def offsets(self, positions: Any = None, group: ConsumerGroupMetadata = GROUP) -> OffsetsCall:
        call = OffsetsCall(Offsets(group, dict(POSITIONS) if positions is None else positions))
        self.machine.submit(call, self.now_ms)
        return call

    def write(self, *places: tuple[str, int]) -> None:
        """Records are sent to the partitions, and drained as soon as that is allowed."""
        self.machine.join(places or [("t", 0)])

    # The coordinator

    def is_drained(self) -> bool:
        self.asked_drained += 1
        return self.drained

    def next(self) -> Request | None:
        """The request that is due, without sending it."""
        return self.machine.next_request(self.is_drained, self.wrote, self.now_ms)

    def send(self, kind: type | None = None) -> Any:
        """Sends the request that is due; it must be of this kind."""
        request = self.next()
        assert request is not None, f"nothing is due: {self.machine.describe()}"
        assert kind is None or isinstance(request, kind), request
        self.machine.sent(request)
        return request

    def answer(self, code: int = 0, **given: Any) -> None:
        """Answers the request in flight; ``given``: fields of the answer that differ from the usual ones."""
        machine, request, at = self.machine, self.machine.in_flight, (WHERE, self.now_ms)
        match request:
            case FindCoordinator():
                node = given.get("node", 1) if code == 0 else -1
                machine.on_coordinator(FindCoordinatorResponse(0, code, None, node, "h", 9), *at)
            case InitProducerId(_, epoch):
                if code == 0:
                    self.epoch = max(self.epoch, epoch) + 1
                identity = given.get("identity", (PRODUCER, self.epoch) if code == 0 else (-1, -1))
                machine.on_init(InitProducerIdResponse(0, code, *identity), *at)
            case AddPartitions(places):
                codes = dict.fromkeys(places, code) | given.get("codes", {})
                machine.on_partitions(AddPartitionsToTxnResponse(0, codes), *at)
            case AddOffsets():
                machine.on_offsets_added(AddOffsetsToTxnResponse(0, code), *at)
            case CommitOffsets(_, positions):
                codes = {(place.topic, place.partition): code for place in positions} | given.get("codes", {})
                machine.on_offsets_committed(TxnOffsetCommitResponse(0, codes), *at)
            case EndTxn(_, protocol):
                identity = (-1, -1)
                if code == 0 and protocol == SECOND:
                    self.epoch += 1
                    identity = PRODUCER, self.epoch
                machine.on_ended(EndTxnResponse(0, code, *given.get("identity", identity)), *at)
            case AskMarkers():
                state = self.markers.pop(0) if self.markers else "CompleteCommit"
                told = TransactionDescription(code, "tx", state, 0, -1, PRODUCER, 0, {})
                machine.on_markers(DescribeTransactionsResponse(0, [told]), *at)
            case AskLevel():
                machine.on_level(self.features_epoch, self.level, self.now_ms)
            case _:
                raise AssertionError(f"nothing is in flight: {request}")

    def lose(self) -> None:
        """The request in flight gets no response."""
        self.machine.on_no_response(CUT, self.now_ms)

    def answer_next(self, kind: type, code: int = 0, **given: Any) -> None:
        """``send`` and ``answer``."""
        self.send(kind)
        self.answer(code, **given)

    def answer_to(self, kind: type, code: int = 0, **given: Any) -> None:
        """``reach`` and ``answer``."""
        self.reach(kind)
        self.answer(code, **given)

    def serve(self, limit: int = 50) -> list[Request]:
        """Sends and answers requests until none is due at this moment; returns them."""
        served: list[Request] = []
        while len(served) < limit and self.next() is not None:
            served.append(self.send())
            self.answer()
        return served

    def kinds(self) -> list[str]:
        """``serve``, by the names of the requests' types, without the look-ups of coordinators."""
        return [name for name in map(kind_of, self.serve()) if name != "FindCoordinator"]

    def pass_ms(self, ms: float) -> None:
        self.now_ms += ms

    def reach(self, kind: type, limit: int = 20) -> Any:
        """Answers what comes before a request of this kind, and sends that."""
        for _ in range(limit):
            request = self.send()
            if isinstance(request, kind):
                return request
            self.answer()
        raise AssertionError(f"no {kind.__name__}")

    # States

    def is_in(self, state: State) -> bool:
        return self.machine.state is state

    def ready(self) -> "Play":
        self.call(Event.INIT)
        self.serve()
        assert self.machine.state is State.READY
        return self

    def begun(self) -> "Play":
        if self.machine.state is State.UNINITIALIZED:
            self.ready()
        assert self.call(Event.BEGIN).error is None
        self.wrote = False
        return self

    def written(self, *places: tuple[str, int]) -> "Play":
        """In a transaction that has something."""
        self.begun().write(*places)
        self.serve()
        self.wrote = True
        return self


def kind_of(request: Request) -> str:
    return type(request).__name__
