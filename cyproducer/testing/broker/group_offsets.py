"""The part of the model's group coordinators that transactions use: offsets that are pending until a marker.

Owns the table of a group's members and the committed and pending offsets. Does not own how members join and
leave (``groups``), which broker coordinates a group (``homes``) or the transactions (``transactions``).

Each group has its own partition of ``__consumer_offsets``. The writes of a coordinator are not lost when
another one takes over. The rules of a data partition apply: offsets are accepted if the log has an open
transaction of the producer id and epoch, or if the transaction coordinator has confirmed that the group is in
the transaction and no marker has been written since.
"""

from typing import NamedTuple

from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker.homes import GROUP, NOBODY, Home, Homes, Told
from cyproducer.testing.broker.transactions import UNREACHED, Place, Transactions
from cyproducer.testing.broker.world import World

CONSUMER_OFFSETS = "__consumer_offsets"
ADDS_GROUP = 5
"""From this version on, TxnOffsetCommit adds the group to the transaction (KIP-890)."""
TELLS_ABORTABLE = 4
"""From this version on, TxnOffsetCommit can return TRANSACTION_ABORTABLE."""


class Offset(NamedTuple):
    """``leader_epoch`` is -1 if it is unknown."""

    offset: int
    leader_epoch: int
    metadata: str | None
    #: When it was committed.
    committed_ns: int = 0
    #: The retention that the client has requested, up to OffsetCommit 4; None: that of the brokers.
    retention_ms: int | None = None


class TxnOffsetCommit(NamedTuple):
    """Without a member, ``generation`` is -1 and ``member`` is empty."""

    transactional_id: str
    group: str
    producer_id: int
    epoch: int
    generation: int
    member: str
    instance: str | None
    offsets: dict[Place, Offset]


class Member:
    """A member of a group, and its static instance id, if it has one."""

    def __init__(self, generation: int, instance: str | None = None) -> None:
        self.generation = generation
        self.instance = instance


class Group:
    """A group, and its offsets in the log."""

    def __init__(self, name: str, place: Place, home: Home) -> None:
        self.name = name
        self.place = place
        self.home = home
        self.members: dict[str, Member] = {}
        self.committed: dict[Place, Offset] = {}
        #: The offsets of each committed transaction.
        self.history: list[dict[Place, Offset]] = []
        #: By producer id: offsets of open transactions, and the epoch that wrote them.
        self.pending: dict[int, dict[Place, Offset]] = {}
        self.epochs: dict[int, int] = {}
        #: By producer id: the term of the newest transaction coordinator that has ended one of its
        #: transactions.
        self.terms: dict[int, int] = {}
        #: Producer ids and epochs whose transaction is being verified; a marker revokes the verification.
        self.guards: set[tuple[int, int]] = set()

    def has_open(self, producer_id: int, epoch: int) -> bool:
        return producer_id in self.pending and self.epochs[producer_id] == epoch

    @property
    def has_offsets(self) -> bool:
        """Whether there are committed or pending offsets."""
        return bool(self.committed) or any(self.pending.values())

    def is_unstable(self, place: Place) -> bool:
        """Whether an open transaction has written an offset of a partition (KIP-447)."""
        return any(place in offsets for offsets in self.pending.values())

    def forget(self, place: Place) -> None:
        """Deletes the committed and pending offsets of a partition. The transactions stay open."""
        self.committed.pop(place, None)
        for offsets in self.pending.values():
            offsets.pop(place, None)

    def refusal(self, request: TxnOffsetCommit) -> int:
        """Returns the error code for a member's offsets. A request with only a group id is accepted."""
        if request.generation < 0 and not request.member:
            return ErrorCode.NO_ERROR
        return self.stranger(request.generation, request.member, request.instance)

    def stranger(self, generation: int, member: str, instance: str | None) -> int:
        """Returns the error code if a client is not the member of this generation, or NO_ERROR."""
        if instance is not None:
            holder = self.holder(instance)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != member:
                return ErrorCode.FENCED_INSTANCE_ID
        known = self.members.get(member)
        if known is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NO_ERROR if known.generation == generation else ErrorCode.ILLEGAL_GENERATION

    def holder(self, instance: str) -> str | None:
        """Returns the id of the member with a static instance id (KIP-345)."""
        return next((name for name, member in self.members.items() if member.instance == instance), None)


class Offsets:
    """The offsets of all groups."""

    def __init__(self, world: World, homes: Homes, transactions: Transactions) -> None:
        self.world = world
        self.homes = homes
        self.transactions = transactions
        transactions.offsets = self
        self.groups: dict[str, Group] = {}
        self._by_place: dict[Place, Group] = {}

    def group(self, name: str) -> Group:
        found = self.groups.get(name)
        if found is None:
            place = (CONSUMER_OFFSETS, len(self.groups))
            found = self.groups[name] = Group(name, place, self.homes.home(GROUP, name))
            self._by_place[place] = found
        return found

    def owns(self, place: Place) -> bool:
        return place in self._by_place

    def commit(self, node: int, version: int, request: TxnOffsetCommit, told: Told) -> None:
        """Handles TxnOffsetCommit for the partitions that the client is allowed to commit; ``told`` gets
        their error code."""
        group = self.group(request.group)
        code = self.homes.code(node, group.home)
        if code:
            told(code)
            return
        identity = (request.producer_id, request.epoch)
        if group.has_open(*identity):
            self._append(group, request, told)
            return
        group.guards.add(identity)
        adds = version >= ADDS_GROUP

        def answered(codes: dict[Place, int]) -> None:
            code = codes[group.place]
            if code in UNREACHED or (code == ErrorCode.CONCURRENT_TRANSACTIONS and not adds):
                told(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            elif code == ErrorCode.TRANSACTION_ABORTABLE and version < TELLS_ABORTABLE:
                told(ErrorCode.INVALID_TXN_STATE)
            elif code:
                told(code)
            elif gone := self.homes.code(node, group.home):
                told(gone)
            else:
                self._append(group, request, told)

        # Not patient: the client gets the error of a busy id at once.
        self.transactions.ask(node, request.transactional_id, *identity, [group.place], adds, False, answered)

    def _append(self, group: Group, request: TxnOffsetCommit, told: Told) -> None:
        refusal = group.refusal(request)
        if refusal:
            told(refusal)
            return
        producer_id, epoch = request.producer_id, request.epoch

        def apply() -> int:
            if epoch < group.epochs.get(producer_id, -1):
                return ErrorCode.INVALID_PRODUCER_EPOCH
            if not group.has_open(producer_id, epoch) and (producer_id, epoch) not in group.guards:
                return ErrorCode.INVALID_TXN_STATE
            group.guards.discard((producer_id, epoch))
            group.epochs[producer_id] = epoch
            group.pending.setdefault(producer_id, {}).update(request.offsets)
            if self.world.tracing:
                told = {f"{name}-{index}": offset.offset for (name, index), offset in request.offsets.items()}
                self.world.say(f"{group.name} has pending offsets of {producer_id}, epoch {epoch}: {told}")
            return ErrorCode.NO_ERROR

        self.homes.write(group.home, apply, told)

    def mark(
        self,
        place: Place,
        producer_id: int,
        epoch: int,
        commits: bool,
        term: int,
        told: Told,
    ) -> None:
        """Ends a producer's transaction in the log of a group; an older coordinator's marker is ignored.

        ``told`` always gets a code, so that the transaction coordinator sends the marker again in this case:

            1. The transaction coordinator sends the marker, and the group coordinator begins to write it.
            2. The group coordinator crashes. The marker may or may not be durable, and no broker responds.
            3. The connection ends. Only another marker completes the transaction.
        """
        group = self._by_place[place]
        if group.home.leader == NOBODY or not self.homes.is_loaded(group.home):
            told(ErrorCode.NETWORK_EXCEPTION)
            return

        def apply() -> int:
            if term < group.terms.get(producer_id, -1):
                return ErrorCode.NO_ERROR
            group.terms[producer_id] = term
            group.epochs[producer_id] = epoch
            group.guards = {guard for guard in group.guards if guard[0] != producer_id}
            offsets = group.pending.pop(producer_id, {})
            if commits:
                group.committed.update(offsets)
                group.history.append(offsets)
            if self.world.tracing:
                end = "commits" if commits else "aborts"
                self.world.say(f"{group.name} {end} {len(offsets)} offsets of {producer_id}, epoch {epoch}")
            return ErrorCode.NO_ERROR

        self.homes.write(group.home, apply, told, from_broker=True)
