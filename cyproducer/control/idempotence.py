"""Idempotence: the producer's identity, and what a partition may send after an error.

Owns the transition table, the rules behind it, and the state of each partition in trouble. Does not own
sequences and batches (the accumulator assigns a batch its sequences when it drains the batch), requests,
clocks or backoff. Does no I/O. Only the thread that holds the loop lock calls it.

The guarantee: an accepted record is in its partition's log exactly once and in order, or its future fails
with an error. If the error's ``maybe_written`` is True, the record is there once or not at all, and it is not
known which. If it is False, the record is certainly not there.

The rules
---------

**Identity.** InitProducerId returns a producer id and an epoch. Until then no batch that needs a sequence is
sent. An epoch ends with a bump: same id, epoch + 1, and the sequences of every partition restart at 0. A bump
needs no request, because brokers keep epochs per partition and accept a higher one with its first batch.
After epoch 32767 the producer requests a new id. If a broker rejects the epoch as stale
(INVALID_PRODUCER_EPOCH, PRODUCER_FENCED), another producer has used this id, so a new id is requested as
well. Unlike a new epoch, a new id does not fence in-flight requests of the old id: batches that failed with
``maybe_written`` may then arrive behind younger records. If the cluster refuses to assign ids, every record
fails.

**Sequences.** A batch gets the next sequences of its partition when it is first drained, and is *unsettled*
until its outcome is known. A partition has up to five unsettled batches, the number that a broker remembers
for duplicate detection. A partition switches to a new epoch only when it has no unsettled batch, so batches
of two epochs are never in flight together. Partitions that were idle during the bump switch with their next
batch. A broker that does not know the producer id accepts any first sequence. So until it has acknowledged a
batch, or after a long pause in which it may have forgotten the id, one batch is sent alone.

**What is certain.** An attempt is *ambiguous* if its request was written completely and no response came, or
if the response is an error that brokers also return after appending. One ambiguous attempt makes the batch
ambiguous until it is acknowledged, no matter what later attempts return: the earlier request may still wait
in a broker's queue. Two things are certain. A batch whose attempts were all rejected before appending is
absent. Everything of the same epoch behind an absent batch is absent as well, since brokers that know the
producer append without gaps.

**Never again.** Sequences with an unknown outcome are not reassigned to other records, and an ambiguous batch
is not sent under other sequences. The first would lose records, the second would duplicate them.

**Partitions.** SENDING is the normal state, in which this table is not consulted. A batch that is resent
keeps its sequences and changes nothing. When a batch fails that may be in the log, the partition becomes
UNRESOLVED: only unsettled batches are sent. If a batch behind the lost one is acknowledged, the lost one was
written after all, and the sequences fit. If the last one is settled otherwise, the epoch is bumped: the lost
batches can no longer be appended once the new epoch has its first batch. When a batch is known to be absent
(it failed, was split, or was rejected as out of order although nothing unsettled precedes it), the partition
has a GAP. Nothing is sent until nothing is on the wire. Then the absent batches lose their sequences, and the
epoch is bumped once the batches before the gap are settled. A batch that is rejected as out of order behind
unsettled ones only waits for them.

**In a transaction** the identity is that of ``transaction_machine``, and no epoch is bumped while it is open.
A batch that fails makes the transaction fail, and its partition sends nothing until the next transaction.
Only a batch that is split leaves no gap: its records, and those behind it, get the same sequences again, so
that a late request of the old batches is a duplicate. A transaction can also continue without records that a
broker has rejected for their content. The records behind them then get other sequences, which is allowed
unless one of their requests may still arrive late: the broker would mistake it for the records that now have
its sequences.

Sources: KIP-98, KIP-360, KIP-679; Kafka protocol guide, "Produce" and "InitProducerId".
"""

import enum
from collections.abc import Mapping
from typing import NamedTuple

from cyproducer.errors.error_code import ErrorCode
from cyproducer.structs import TopicPartition

LAST_EPOCH = 32767


FENCING_ERRORS = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
"""Codes that mean that another producer uses this producer's id with a newer epoch."""

SEQUENCE_ERRORS = FENCING_ERRORS | {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID}
"""Codes that mean that the sequences don't fit, not that the records are invalid."""

RECORD_ERRORS = frozenset({ErrorCode.INVALID_TIMESTAMP, ErrorCode.INVALID_RECORD})
"""Codes for which brokers may report which records caused them (KIP-467)."""

TOO_LARGE_ERRORS = frozenset({ErrorCode.MESSAGE_SIZE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
"""Codes after which half the batch may fit."""

CONTENT_ERRORS = RECORD_ERRORS | TOO_LARGE_ERRORS
"""Codes with which brokers reject records for their content."""

CERTAIN_REFUSALS = frozenset(
    {
        2,  # CORRUPT_MESSAGE
        10,  # MESSAGE_TOO_LARGE
        17,  # INVALID_TOPIC_EXCEPTION
        18,  # RECORD_LIST_TOO_LARGE
        19,  # NOT_ENOUGH_REPLICAS: counted before appending, unlike _AFTER_APPEND
        21,  # INVALID_REQUIRED_ACKS
        29,  # TOPIC_AUTHORIZATION_FAILED
        31,  # CLUSTER_AUTHORIZATION_FAILED
        32,  # INVALID_TIMESTAMP
        35,  # UNSUPPORTED_VERSION
        42,  # INVALID_REQUEST
        43,  # UNSUPPORTED_FOR_MESSAGE_FORMAT
        44,  # POLICY_VIOLATION
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        48,  # INVALID_TXN_STATE
        49,  # INVALID_PRODUCER_ID_MAPPING
        51,  # CONCURRENT_TRANSACTIONS
        53,  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        ErrorCode.UNKNOWN_PRODUCER_ID,
        76,  # UNSUPPORTED_COMPRESSION_TYPE
        87,  # INVALID_RECORD
        89,  # THROTTLING_QUOTA_EXCEEDED
        ErrorCode.PRODUCER_FENCED,
        100,  # UNKNOWN_TOPIC_ID
        120,  # TRANSACTION_ABORTABLE
    }
)
"""Codes that brokers return for Produce before they append. After any other code the batch may be in the log:
even NOT_LEADER_OR_FOLLOWER can end a wait for followers if the leader changes meanwhile."""


class State(enum.Enum):
    """The states of the producer's identity, then those of a partition."""

    NO_ID = "no id"
    ASKING = "asking"
    HOLDING = "holding"
    REFUSED = "refused"
    SENDING = "sending"
    UNRESOLVED = "unresolved"
    GAP = "gap"


class Event(enum.Enum):
    """The events of the identity, then those of a partition."""

    WANTED = "an id is wanted"
    GRANTED = "InitProducerId succeeded"
    NOT_GRANTED = "InitProducerId failed, for now"
    DENIED = "InitProducerId was refused"
    BUMP = "a partition needs a new epoch"
    WORN_OUT = "a bump at epoch 32767"
    FENCED = "INVALID_PRODUCER_EPOCH or PRODUCER_FENCED"
    LOST = "a batch was given up, maybe written"
    ABSENT = "a batch is certainly not in the log"
    LATER_ACKNOWLEDGED = "a batch behind the lost one is acknowledged"
    SETTLED = "no batch is unsettled"
    QUIET = "nothing is on the wire"
    QUIET_IN_TRANSACTION = "nothing is on the wire, in a transaction"


class Action(enum.Enum):
    """What to do on a transition."""

    ASK = "send InitProducerId"
    TAKE = "use the id"
    NEXT_EPOCH = "epoch + 1"
    FORGET_ID = "give the id up"
    FAIL_ALL = "fail every record"
    HOLD_NEW = "send unsettled batches only"
    HOLD_ALL = "send nothing"
    STRIP = "absent batches lose their sequences"
    BUMP_EPOCH = "bump"
    RELEASE = "send everything"


_S, _E, _A = State, Event, Action

TABLE: Mapping[tuple[State, Event], tuple[State, tuple[Action, ...]]] = {
    # The identity
    (_S.NO_ID, _E.WANTED): (_S.ASKING, (_A.ASK,)),
    (_S.ASKING, _E.GRANTED): (_S.HOLDING, (_A.TAKE,)),
    (_S.ASKING, _E.NOT_GRANTED): (_S.NO_ID, ()),
    (_S.ASKING, _E.DENIED): (_S.REFUSED, (_A.FAIL_ALL,)),
    (_S.HOLDING, _E.BUMP): (_S.HOLDING, (_A.NEXT_EPOCH,)),
    (_S.HOLDING, _E.WORN_OUT): (_S.NO_ID, (_A.FORGET_ID,)),
    (_S.HOLDING, _E.FENCED): (_S.NO_ID, (_A.FORGET_ID,)),
    # A new id will follow, which works as a bump.
    (_S.NO_ID, _E.BUMP): (_S.NO_ID, ()),
    (_S.ASKING, _E.BUMP): (_S.ASKING, ()),
    (_S.NO_ID, _E.FENCED): (_S.NO_ID, ()),
    (_S.ASKING, _E.FENCED): (_S.ASKING, ()),
    # A partition
    (_S.SENDING, _E.LOST): (_S.UNRESOLVED, (_A.HOLD_NEW,)),
    (_S.SENDING, _E.ABSENT): (_S.GAP, (_A.HOLD_ALL,)),
    (_S.UNRESOLVED, _E.LOST): (_S.UNRESOLVED, ()),
    (_S.UNRESOLVED, _E.ABSENT): (_S.GAP, (_A.HOLD_ALL,)),
    (_S.UNRESOLVED, _E.LATER_ACKNOWLEDGED): (_S.SENDING, (_A.RELEASE,)),
    (_S.UNRESOLVED, _E.SETTLED): (_S.SENDING, (_A.BUMP_EPOCH, _A.RELEASE)),
    (_S.GAP, _E.LOST): (_S.GAP, ()),
    (_S.GAP, _E.ABSENT): (_S.GAP, ()),
    # The batches before the gap must be settled first; usually there are none, and SETTLED follows at once.
    (_S.GAP, _E.QUIET): (_S.UNRESOLVED, (_A.STRIP, _A.HOLD_NEW)),
    (_S.GAP, _E.QUIET_IN_TRANSACTION): (_S.SENDING, (_A.STRIP, _A.RELEASE)),
}
"""Every possible transition; a pair that is not listed is impossible and raises KeyError."""


_OF_IDENTITY = (State.NO_ID, State.ASKING, State.HOLDING, State.REFUSED)


def diagrams() -> tuple[str, str]:
    """Returns the table as two Mermaid diagrams, for the identity and for a partition, without transitions
    that change nothing."""
    texts = {True: "stateDiagram-v2\n", False: "stateDiagram-v2\n"}
    for (state, event), (to, actions) in TABLE.items():
        if state is to and not actions:
            continue
        done = f" / {', '.join(action.value for action in actions)}" if actions else ""
        texts[state in _OF_IDENTITY] += f"    {state.name} --> {to.name}: {event.value}{done}\n"
    return texts[True], texts[False]


class BatchFacts(NamedTuple):
    """The facts on which the decision about a batch is based."""

    topic: str
    partition: int
    #: Increases in the order of the partition's records.
    id: int
    records: int
    #: Number of requests that contained it, including the last one.
    attempts: int
    created_ms: float
    #: Whether it has a producer id and sequences.
    sequenced: bool
    #: Whether no unsettled batch of its partition precedes it.
    first: bool
    #: Whether an attempt before the last one was ambiguous.
    ambiguous: bool
    #: Whether its records have already failed, at their deadline.
    abandoned: bool
    #: Bytes, as sent.
    size: int = 0
    #: Number of records that the broker reported as the cause of the rejection (KIP-467).
    culprits: int = 0


class Fate(enum.IntEnum):
    """What to do with a batch that failed."""

    RETRY = 0
    FAIL = 1
    ACKNOWLEDGE = 2
    SPLIT = 3
    EXCLUDE = 4
    """The records that the broker reported fail; the others are resent in a separate batch."""
    REFUSE = 5
    """All its records fail, and the transaction continues without them."""


_WITHOUT_LOSS = (Fate.SPLIT, Fate.EXCLUDE, Fate.REFUSE)
"""Fates after which a transaction may still be committed."""


class Judgement(NamedTuple):
    """The judgement of the idempotence rules about a batch that failed."""

    #: None for an ordinary error, which is left to the retry policy.
    fate: Fate | None
    #: Whether the batch may be in the log, counting all its attempts.
    maybe_written: bool


class _Trouble:
    """The state of a partition that is not SENDING."""

    __slots__ = ("gap_id", "lost_id", "state")

    def __init__(self) -> None:
        self.state = State.SENDING
        #: The youngest batch that failed with an unknown outcome; -1 if there is none.
        self.lost_id = -1
        #: The oldest batch that is certainly absent, like all batches behind it; -1 if there is none.
        self.gap_id = -1


class Order(NamedTuple):
    """An action and its argument: for STRIP, the first batch that loses its sequences."""

    action: Action
    from_id: int = -1


class Idempotence:
    """The identity, and the partitions in trouble. See the rules in the module's docstring."""

    def __init__(self, transactional: bool = False) -> None:
        """
        Args:
            transactional: whether the identity is that of transactions, see above; then it is not used here.
        """
        self.transactional = transactional
        self.state = State.NO_ID
        #: -1 until an id is assigned.
        self.producer_id = -1
        self.epoch = -1
        self._troubles: dict[TopicPartition, _Trouble] = {}

    # The identity

    def _identity(self, event: Event) -> tuple[Action, ...]:
        self.state, actions = TABLE[self.state, event]
        return actions

    def want(self) -> bool:
        """Returns whether to send InitProducerId now; then call one of the three methods below."""
        return self.state is State.NO_ID and Action.ASK in self._identity(Event.WANTED)

    def granted(self, producer_id: int, epoch: int) -> None:
        """The broker assigned an id."""
        self._identity(Event.GRANTED)
        self.producer_id, self.epoch = producer_id, epoch

    def not_granted(self) -> None:
        """The request failed and must be retried."""
        self._identity(Event.NOT_GRANTED)

    def denied(self) -> None:
        """The cluster refuses to assign an id."""
        self._identity(Event.DENIED)

    def _forget_id(self) -> None:
        self.producer_id = self.epoch = -1

    def _bump(self) -> None:
        worn_out = self.state is State.HOLDING and self.epoch == LAST_EPOCH
        for action in self._identity(Event.WORN_OUT if worn_out else Event.BUMP):
            if action is Action.NEXT_EPOCH:
                self.epoch += 1
            else:
                self._forget_id()

    # A batch

    def judge(self, batch: BatchFacts, error_code: int, written: bool) -> Judgement:
        """Returns what the end of an attempt means.

        Args:
            batch: the batch.
            error_code: the broker's; 0 if there was no response.
            written: whether the request was written completely.
        """
        ambiguous = written and error_code not in CERTAIN_REFUSALS
        maybe = batch.ambiguous or ambiguous
        if not batch.sequenced:
            return Judgement(None, maybe)
        if error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            return Judgement(Fate.ACKNOWLEDGE, True)
        if error_code in SEQUENCE_ERRORS and self.transactional:
            # Behind an unsettled batch, or behind one that has since been split.
            split = TopicPartition(batch.topic, batch.partition) in self._troubles
            behind = error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and (split or not batch.first)
            return Judgement(Fate.RETRY if behind else Fate.FAIL, maybe)
        if error_code in SEQUENCE_ERRORS:
            # If it is the first unsettled batch and maybe written, it must not get other sequences.
            return Judgement(Fate.FAIL if batch.first and maybe else Fate.RETRY, maybe)
        return Judgement(None, maybe)

    def on_fate(
        self, batch: BatchFacts, error_code: int, fate: Fate, maybe_written: bool
    ) -> tuple[Action, ...]:
        """Records the decision about a batch; returns the actions for its partition."""
        if not batch.sequenced or fate is Fate.ACKNOWLEDGE:
            return ()
        if self.transactional and fate not in _WITHOUT_LOSS:
            if fate is Fate.RETRY:
                return ()
            # Nothing is released, not even at the end of a gap.
            self._troubles.pop(TopicPartition(batch.topic, batch.partition), None)
            return (Action.HOLD_ALL,)
        if error_code in FENCING_ERRORS and batch.first:
            for _ in self._identity(Event.FENCED):
                self._forget_id()
        if fate is Fate.RETRY and not (error_code in SEQUENCE_ERRORS and batch.first):
            return ()
        place = TopicPartition(batch.topic, batch.partition)
        trouble = self._troubles.setdefault(place, _Trouble())
        if maybe_written:
            trouble.lost_id = max(trouble.lost_id, batch.id)
            event = Event.LOST
        else:
            trouble.gap_id = batch.id if trouble.gap_id < 0 else min(trouble.gap_id, batch.id)
            event = Event.ABSENT
        trouble.state, actions = TABLE[trouble.state, event]
        return actions

    # A partition

    def on_progress(
        self, place: TopicPartition, on_wire: int, unsettled: int, current: bool, acknowledged_id: int = -1
    ) -> list[Order]:
        """Called when a batch of a held-back partition ended; returns the orders, in sequence.

        Args:
            place: the partition.
            on_wire: number of its batches in requests without a response.
            unsettled: number of its batches with sequences and without an outcome.
            current: whether the partition's epoch is the newest, so that only a bump ends it.
            acknowledged_id: the batch that was acknowledged; -1 if none was.
        """
        trouble = self._troubles.get(place)
        if trouble is None:
            return []
        if trouble.state is State.GAP:
            if on_wire:
                return []
            event = Event.QUIET_IN_TRANSACTION if self.transactional else Event.QUIET
        elif acknowledged_id > trouble.lost_id:
            event = Event.LATER_ACKNOWLEDGED
        elif unsettled == 0:
            event = Event.SETTLED
        else:
            return []
        trouble.state, actions = TABLE[trouble.state, event]
        orders = [Order(action, trouble.gap_id) for action in actions]
        if event is Event.QUIET:
            # An acknowledged batch before the gap proves nothing about the batches behind the gap.
            trouble.lost_id, trouble.gap_id = max(trouble.lost_id, trouble.gap_id), -1
        if trouble.state is State.SENDING:
            del self._troubles[place]
        if Action.BUMP_EPOCH in actions and current:
            self._bump()
        return orders

    def start_over(self) -> None:
        """A new transaction begins: no partition is in trouble any more."""
        self._troubles.clear()

    def partition_state(self, place: TopicPartition) -> State:
        """Returns the state of a partition."""
        trouble = self._troubles.get(place)
        return State.SENDING if trouble is None else trouble.state


class Verdict(NamedTuple):
    """The fate of a batch, see ``Fate``; ``at_ms`` for RETRY, ``error`` for FAIL."""

    fate: Fate
    at_ms: float = 0.0
    error: BaseException | None = None
    maybe_written: bool = False


if __name__ == "__main__":
    print(*diagrams(), sep="\n", end="")
