"""Transactions as the application sees them: the states, the calls, and which call is allowed in which state.

Owns the table of transitions, and the outcome of a call. Does not own requests (``transaction_requests``) or
the handling of their responses (``transaction_machine``). Does no I/O. Only the thread that holds the loop
lock calls it.
"""

import enum
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from cyproducer.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

Ending = Literal["commit", "abort", "prepare"]
"""The calls that end a transaction, or prepare it: events, in lower case."""


class State(enum.Enum):
    """The states of a transactional producer."""

    UNINITIALIZED = "not initialized"
    INITIALIZING = "initializing"
    READY = "no transaction is open"
    IN_TRANSACTION = "in a transaction"
    PREPARING = "preparing"
    PREPARED = "prepared"
    COMMITTING = "committing"
    ABORTABLE_ERROR = "the transaction must be aborted"
    ABORTING = "aborting"
    FATAL_ERROR = "failed for good"


class Event(enum.Enum):
    """The events that change the state: calls, then the ends of operations."""

    INIT = "init_transactions()"
    RESUME = "an identity was handed over"
    BEGIN = "begin_transaction()"
    PREPARE = "prepare_transaction()"
    COMMIT = "commit_transaction()"
    ABORT = "abort_transaction()"
    INITIALIZED = "InitProducerId succeeded"
    NOT_INITIALIZED = "InitProducerId was refused"
    FLUSHED = "every record is acknowledged"
    ENDED = "EndTxn succeeded, or there was nothing to end"
    NOT_ENDED = "EndTxn(abort) is not allowed"
    ABORTABLE = "an abortable error"
    FATAL = "a fatal error"


_S, _E = State, Event

TABLE: Mapping[tuple[State, Event], State] = {
    (_S.UNINITIALIZED, _E.INIT): _S.INITIALIZING,
    (_S.UNINITIALIZED, _E.RESUME): _S.READY,
    (_S.INITIALIZING, _E.INITIALIZED): _S.READY,
    (_S.INITIALIZING, _E.NOT_INITIALIZED): _S.UNINITIALIZED,
    (_S.READY, _E.BEGIN): _S.IN_TRANSACTION,
    (_S.IN_TRANSACTION, _E.PREPARE): _S.PREPARING,
    (_S.IN_TRANSACTION, _E.COMMIT): _S.COMMITTING,
    (_S.IN_TRANSACTION, _E.ABORT): _S.ABORTING,
    (_S.IN_TRANSACTION, _E.ABORTABLE): _S.ABORTABLE_ERROR,
    (_S.PREPARING, _E.FLUSHED): _S.PREPARED,
    (_S.PREPARING, _E.ABORT): _S.ABORTING,
    (_S.PREPARING, _E.ABORTABLE): _S.ABORTABLE_ERROR,
    (_S.PREPARED, _E.COMMIT): _S.COMMITTING,
    (_S.PREPARED, _E.ABORT): _S.ABORTING,
    (_S.COMMITTING, _E.ABORT): _S.ABORTING,
    (_S.COMMITTING, _E.ABORTABLE): _S.ABORTABLE_ERROR,
    (_S.COMMITTING, _E.ENDED): _S.READY,
    (_S.ABORTABLE_ERROR, _E.ABORT): _S.ABORTING,
    (_S.ABORTABLE_ERROR, _E.ABORTABLE): _S.ABORTABLE_ERROR,
    # A failure during an abort changes nothing.
    (_S.ABORTING, _E.ABORTABLE): _S.ABORTING,
    (_S.ABORTING, _E.ENDED): _S.READY,
    # Rights may be granted later: then the same call succeeds.
    (_S.ABORTING, _E.NOT_ENDED): _S.ABORTABLE_ERROR,
    **{(state, _E.FATAL): _S.FATAL_ERROR for state in State if state is not _S.UNINITIALIZED},
    (_S.FATAL_ERROR, _E.ABORTABLE): _S.FATAL_ERROR,
}
"""Every possible transition. A call whose (state, event) is missing is refused and changes nothing."""

OPEN = (State.IN_TRANSACTION, State.PREPARING, State.COMMITTING)
JOINED = {
    Event.INIT: State.INITIALIZING,
    Event.PREPARE: State.PREPARING,
    Event.COMMIT: State.COMMITTING,
    Event.ABORT: State.ABORTING,
}
"""Call -> the state in which that call is in progress, so that a repeated call joins it."""


def diagram() -> str:
    """Returns the table as a Mermaid diagram, without events that leave the state unchanged."""
    text = "stateDiagram-v2\n"
    for (state, event), to in TABLE.items():
        if state is not to:
            text += f"    {state.name} --> {to.name}: {event.value}\n"
    return text


class Offsets(NamedTuple):
    """Positions of a consumer group to commit with the transaction."""

    group: ConsumerGroupMetadata
    positions: Mapping[TopicPartition, OffsetAndMetadata]


class Call:
    """A call of the application, and its outcome.

    ``accepted``: the call was processed. ``told``: the call is done and its effects are applied, so that its
    thread can continue. ``released``: that thread waits for nothing else, so the transaction can end.
    ``abandoned``: the thread has stopped waiting, and has not seen the outcome.
    """

    def __init__(self, event: Event | None, name: str, released: bool = True) -> None:
        self.event = event
        self.name = name
        self.released = released
        self.accepted = False
        self.done = False
        self.told = False
        self.abandoned = False
        self.error: BaseException | None = None
        self.result: Any = None

    def finish(self, error: BaseException | None = None, result: Any = None) -> None:
        """Sets the outcome."""
        self.error, self.result, self.done = error, result, True


class OffsetsCall(Call):
    """A call of ``send_offsets_to_transaction``."""

    def __init__(self, offsets: Offsets) -> None:
        super().__init__(None, "send_offsets_to_transaction()")
        self.offsets = offsets


class ResumeCall(Call):
    """Continues with the identity of another producer of this transactional id. Does not send InitProducerId,
    which would fence a producer that has taken over in the meantime. Only for the second protocol, whose
    epochs last for one transaction."""

    def __init__(self, producer_id: int, epoch: int) -> None:
        super().__init__(Event.RESUME, "resume()")
        self.identity = producer_id, epoch


class CloseCall(Call):
    """Closes the producer: aborts an open transaction, or waits for a transaction that is being ended."""

    def __init__(self) -> None:
        super().__init__(None, "close()")


class Prepared(NamedTuple):
    """The identity of a transaction that any client can end now, and whether the transaction is empty."""

    producer_id: int
    epoch: int
    protocol: int
    empty: bool


if __name__ == "__main__":
    print(diagram(), end="")
