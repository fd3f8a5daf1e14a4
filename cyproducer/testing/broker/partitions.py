"""The true state of a cluster: partitions with their logs, producer states and leaders.

Owns the logs, how far they are replicated, the records that a leader change loses, the rules for sequence
numbers (KIP-98, as in brokers from 2.5 on; with ``old_rules``, as in older brokers), and which transactions
are open in a log. Does not own requests and connections, the decisions about transactions (``transactions``)
or the schedule of events.

Replication is one number per partition: records below ``synced`` are on every replica and are never lost.
With acks=all, only they are acknowledged. Records at or above ``synced`` may be lost when the leader crashes.
"""

import bisect
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker.world import World

SEQUENCES = 2**31

Waiter = Callable[[int], None]
"""Called with the outcome of an append: an error code."""


class Header(NamedTuple):
    """The header fields of a batch that a broker checks."""

    records: int
    producer_id: int
    epoch: int
    first_sequence: int
    transactional: bool = False

    @property
    def last_sequence(self) -> int:
        return (self.first_sequence + self.records - 1) % SEQUENCES


class Entry(NamedTuple):
    """A batch in a log, or the marker that ends a transaction."""

    offset: int
    header: Header
    data: bytes
    #: For a marker: whether it commits; None for a batch of records.
    commits: bool | None = None
    #: For a marker: the term of the coordinator that sent it.
    term: int = -1
    #: When it was appended.
    written_ns: int = 0

    @property
    def end(self) -> int:
        return self.offset + self.header.records

    @property
    def size(self) -> int:
        """The bytes of a batch; markers are not counted."""
        return 0 if self.commits is not None else len(self.data)


class Written(NamedTuple):
    """One of the last batches of a producer."""

    first: int
    last: int
    entry: Entry


class ProducerState:
    __slots__ = ("batches", "epoch", "last_ns", "started", "term")

    def __init__(self, epoch: int, last_ns: int, started: int | None = None, term: int = -1) -> None:
        self.epoch = epoch
        self.last_ns = last_ns
        self.batches: deque[Written] = deque(maxlen=5)
        #: The first offset of the open transaction.
        self.started = started
        #: The term of the newest coordinator that has ended a transaction.
        self.term = term


class Guard:
    """A verification of a producer's batch that a leader has requested from the coordinator. A marker that
    arrives in the meantime revokes it."""

    __slots__ = ("epoch", "lowest_sequence")

    def __init__(self, epoch: int, lowest_sequence: int) -> None:
        self.epoch = epoch
        self.lowest_sequence = lowest_sequence


class Aborted(NamedTuple):
    """A transaction whose records consumers of committed records must skip."""

    producer_id: int
    first: int
    #: The marker's offset.
    last: int


class Partition:
    """The true state of a partition, which brokers' views may lag behind."""

    __slots__ = (
        "aborted",
        "entries",
        "epoch",
        "guards",
        "index",
        "leader",
        "log_start",
        "lost",
        "on_sync",
        "producers",
        "synced",
        "topic",
        "waiting",
    )

    def __init__(self, topic: str, index: int, leader: int) -> None:
        self.topic = topic
        self.index = index
        self.leader = leader
        self.epoch = 0
        self.entries: list[Entry] = []
        self.synced = 0
        self.producers: dict[int, ProducerState] = {}
        #: Batches that were appended, and then lost in a leader change.
        self.lost: list[Entry] = []
        self.waiting: list[tuple[int, Waiter]] = []
        #: By producer id.
        self.guards: dict[int, Guard] = {}
        #: The first remaining offset.
        self.log_start = 0
        #: Transactions that were aborted, in the order of their markers.
        self.aborted: list[Aborted] = []
        #: Called when more records are on all replicas.
        self.on_sync: Callable[[Partition], object] | None = None

    @property
    def end(self) -> int:
        return self.entries[-1].end if self.entries else self.log_start

    @property
    def last_stable(self) -> int:
        """The first offset of the oldest open transaction; without one, the end of the replicated records.
        At least ``log_start``: the first records of an open transaction may be deleted."""
        started = [state.started for state in self.producers.values() if state.started is not None]
        return max(self.log_start, min([self.synced, *started]))

    def at(self, offset: int) -> int:
        """Returns the index of the entry that contains an offset, or of the first entry after it."""
        return bisect.bisect_right(self.entries, offset, key=lambda entry: entry.end)

    @property
    def place(self) -> tuple[str, int]:
        return self.topic, self.index

    def check(self, batch: Header, old_rules: bool, tells_duplicates: bool) -> tuple[int, Entry | None]:
        """Checks the sequence numbers. Returns an error, the batch if it is already in the log, or neither.

        With ``tells_duplicates``, behaves like Kafka 0.11, which recognized only the very last batch, and
        returned DUPLICATE_SEQUENCE_NUMBER for earlier batches.
        """
        if batch.producer_id < 0:
            return ErrorCode.NO_ERROR, None
        state = self.producers.get(batch.producer_id)
        if state is None:
            if old_rules and batch.first_sequence != 0:
                return ErrorCode.UNKNOWN_PRODUCER_ID, None
            return ErrorCode.NO_ERROR, None
        if batch.epoch < state.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, None
        if batch.epoch > state.epoch:
            return (
                ErrorCode.NO_ERROR if batch.first_sequence == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            ), None
        for written in list(state.batches)[-1 if tells_duplicates else 0 :]:
            if (written.first, written.last) == (batch.first_sequence, batch.last_sequence):
                return ErrorCode.NO_ERROR, written.entry
        last = state.batches[-1].last if state.batches else -1
        if batch.first_sequence == (last + 1) % SEQUENCES:
            return ErrorCode.NO_ERROR, None
        if tells_duplicates:
            for entry in self.entries:
                if entry.header == batch:
                    return ErrorCode.DUPLICATE_SEQUENCE_NUMBER, entry
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, None

    def has_open(self, producer_id: int, epoch: int) -> bool:
        """Whether the log has an open transaction of this producer id and epoch."""
        state = self.producers.get(producer_id)
        return state is not None and state.started is not None and state.epoch == epoch

    def guard(self, batch: Header, begins: bool) -> Guard:
        """Begins the verification of a batch with the coordinator. ``begins``: an epoch must start with
        sequence 0 in this log, even if the log has no state of the producer."""
        state = self.producers.get(batch.producer_id)
        is_new = state is None or state.epoch != batch.epoch or not state.batches
        lowest = 0 if begins and is_new else batch.first_sequence
        guard = self.guards.get(batch.producer_id)
        if guard is None or guard.epoch != batch.epoch:
            guard = self.guards[batch.producer_id] = Guard(batch.epoch, lowest)
        guard.lowest_sequence = min(guard.lowest_sequence, lowest)
        return guard

    def check_transactional(self, batch: Header, guard: Guard | None) -> tuple[int, Entry | None]:
        """Like ``check``, for a transactional batch. ``guard``: the guard of its verification with the
        coordinator; None if there was no verification."""
        state = self.producers.get(batch.producer_id)
        if state is not None and state.epoch == batch.epoch:
            for written in state.batches:
                if (written.first, written.last) == (batch.first_sequence, batch.last_sequence):
                    return ErrorCode.NO_ERROR, written.entry
        held = self.guards.get(batch.producer_id)
        if not self.has_open(batch.producer_id, batch.epoch) and (guard is None or held is not guard):
            return ErrorCode.INVALID_TXN_STATE, None
        if state is not None and batch.epoch < state.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, None
        if held is not None and batch.first_sequence > held.lowest_sequence:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, None
        return self.check(batch, False, False)

    def append(self, batch: Header, data: bytes, now_ns: int) -> Entry:
        """Appends a batch to the log; the caller has checked it."""
        entry = Entry(self.end, batch, data, written_ns=now_ns)
        self.entries.append(entry)
        self._remember(entry, now_ns)
        self.guards.pop(batch.producer_id, None)
        return entry

    def append_marker(
        self, producer_id: int, epoch: int, commits: bool, term: int, now_ns: int
    ) -> Entry | None:
        """Ends a producer's transaction, if one is open here. Returns None if the coordinator is older than
        the last one that has ended a transaction, or if the log has a newer epoch: Kafka's coordinator then
        never completes the transaction."""
        state = self.producers.get(producer_id)
        if state is not None and (term < state.term or epoch < state.epoch):
            return None
        entry = Entry(self.end, Header(1, producer_id, epoch, -1, True), b"", commits, term, now_ns)
        self.entries.append(entry)
        if state is not None and state.started is not None and not commits:
            self.aborted.append(Aborted(producer_id, state.started, entry.offset))
        self._remember(entry, now_ns)
        self.guards.pop(producer_id, None)
        return entry

    def _remember(self, entry: Entry, now_ns: int) -> None:
        header = entry.header
        if header.producer_id < 0:
            return
        state = self.producers.get(header.producer_id)
        if state is None or state.epoch != header.epoch:
            started, term = (None, -1) if state is None else (state.started, state.term)
            state = ProducerState(header.epoch, now_ns, started=started, term=term)
            self.producers[header.producer_id] = state
        state.last_ns = now_ns
        if entry.commits is not None:
            state.started, state.term = None, entry.term
            return
        if header.transactional and state.started is None:
            state.started = entry.offset
        state.batches.append(Written(header.first_sequence, header.last_sequence, entry))

    @property
    def can_wind(self) -> bool:
        """Whether the newest batch's producer is known."""
        return bool(self.entries) and self.entries[-1].header.producer_id in self.producers

    def wind(self, last: int) -> None:
        """Changes the sequences of the newest batch so that it ends with ``last``."""
        entry = self.entries[-1]
        first = last - entry.header.records + 1
        entry = self.entries[-1] = entry._replace(header=entry.header._replace(first_sequence=first))
        self.producers[entry.header.producer_id].batches[-1] = Written(first, last, entry)

    def wait_synced(self, end: int, waiter: Waiter) -> None:
        """Calls ``waiter`` when all records below ``end`` are replicated, or will never be."""
        if end <= self.synced:
            waiter(ErrorCode.NO_ERROR)
        else:
            self.waiting.append((end, waiter))

    def sync(self, epoch: int, end: int) -> None:
        """Notes that the followers of the leader of ``epoch`` have all records below ``end``."""
        if epoch != self.epoch or end <= self.synced:
            return
        self.synced = end
        done = [waiter for until, waiter in self.waiting if until <= end]
        self.waiting = [(until, waiter) for until, waiter in self.waiting if until > end]
        for waiter in done:
            waiter(ErrorCode.NO_ERROR)
        if self.on_sync is not None:
            self.on_sync(self)

    def elect(self, leader: int, keep: int, now_ns: int) -> int:
        """Elects a leader whose log ends at ``keep`` or at the batch end below; returns how many batches are
        lost."""
        kept = [entry for entry in self.entries if entry.end <= max(keep, self.synced)]
        gone = self.entries[len(kept) :]
        if gone:
            self.lost.extend(gone)
            self.entries = kept
            # A follower restores its producer states from its log.
            self.producers = {}
            for entry in kept:
                self._remember(entry, now_ns)
        self.leader = leader
        self.epoch += 1
        self.guards.clear()
        waiting, self.waiting = self.waiting, []
        self.synced = self.end
        for _, waiter in waiting:
            # The leader changed during the wait. The batch may be in the log anyway.
            waiter(ErrorCode.NOT_LEADER_FOR_PARTITION)
        return len(gone)


class Topic:
    __slots__ = ("exists_from_ns", "id", "name", "partitions")

    def __init__(self, name: str, id: bytes, partitions: list[Partition], exists_from_ns: int = 0) -> None:
        self.name = name
        #: The 16 bytes of the UUID.
        self.id = id
        self.partitions = partitions
        #: Not in the metadata before this time.
        self.exists_from_ns = exists_from_ns


class Cluster:
    """All topics, and each broker's view of the leaders."""

    def __init__(self, world: World, nodes: int) -> None:
        self.world = world
        self.nodes = list(range(1, nodes + 1))
        self.topics: dict[str, Topic] = {}
        self.by_id: dict[bytes, Topic] = {}
        #: The partitions of deleted topics.
        self.deleted: list[Partition] = []
        self.next_producer_id = 1000
        #: A broker's view of a partition: leader and epoch.
        self.views: dict[tuple[int, Partition], tuple[int, int]] = {}

    def create_topic(self, name: str, partitions: int, exists_from_ms: float = 0) -> Topic:
        topic_id = (self.world.random.getrandbits(120) | 1 << 100).to_bytes(16, "big")
        topic = Topic(name, topic_id, [], self.world.now_ns + int(exists_from_ms * 1e6))
        self.topics[name] = self.by_id[topic_id] = topic
        self.add_partitions(name, partitions)
        return topic

    def delete_topic(self, name: str) -> None:
        topic = self.topics.pop(name)
        del self.by_id[topic.id]
        self.deleted += topic.partitions
        for partition in topic.partitions:
            waiting, partition.waiting = partition.waiting, []
            for _, waiter in waiting:
                waiter(ErrorCode.NOT_LEADER_FOR_PARTITION)

    def existing(self, key: str | bytes) -> Topic | None:
        """Returns the topic with a name or an id, if brokers already know it."""
        topic = self.by_id.get(key) if isinstance(key, bytes) else self.topics.get(key)
        return None if topic is None or self.world.now_ns < topic.exists_from_ns else topic

    def add_partitions(self, name: str, count: int) -> None:
        topic = self.topics[name]
        for _ in range(count):
            index = len(topic.partitions)
            topic.partitions.append(Partition(name, index, self.world.random.choice(self.nodes)))
            self.learn(topic.partitions[index], self.nodes)

    def partitions(self) -> list[Partition]:
        return [partition for topic in self.topics.values() for partition in topic.partitions]

    def learn(self, partition: Partition, nodes: list[int]) -> None:
        """Updates the leader of the partition in the views of these brokers."""
        for node in nodes:
            self.views[node, partition] = (partition.leader, partition.epoch)

    def view(self, node: int, partition: Partition) -> tuple[int, int]:
        return self.views[node, partition]

    def move(self, partition: Partition, leader: int, clean: bool, lag_ms: tuple[float, float]) -> None:
        """Moves a partition to another leader (or to the same one in a new epoch). Brokers learn of the
        leader one by one."""
        world = self.world
        keep = partition.end
        if clean:
            partition.sync(partition.epoch, partition.end)
        else:
            keep = world.random.randint(partition.synced, partition.end)
        lost = partition.elect(leader, keep, world.now_ns)
        if world.tracing:
            how = f"{'' if clean else 'un'}cleanly, {lost} batches lost, end {partition.end}"
            world.say(f"leader of {partition.topic}-{partition.index}: {leader} {how}")
        for node in self.nodes:
            delay_ms = world.between(lag_ms)
            if node == leader:
                delay_ms /= 4
            world.after(delay_ms, self.learn, partition, [node])

    def new_producer_id(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id

    def expire_producers(self, before_ns: int) -> None:
        """Forgets producers that have written nothing since ``before_ns``."""
        for partition in self.partitions():
            for producer_id, state in list(partition.producers.items()):
                if state.last_ns < before_ns and state.started is None:
                    del partition.producers[producer_id]
                    self.world.say(f"producer {producer_id} expired in {partition.topic}-{partition.index}")
