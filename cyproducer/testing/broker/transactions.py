"""The transaction coordinators of the model: identities, states of transactions, timeouts and markers.

Owns the transactions of all ids, the feature ``transaction.version``, the denied rights, and the responses of
a coordinator, as measured on Kafka 4.1 and read in its sources (KIP-98, KIP-360, KIP-447, KIP-890). Does not
own logs (``partitions``), offsets (``group_offsets``), the assignment of coordinators (``homes``) or
requests.

``bumps`` stands for the second version of the protocol, in which each end of a transaction bumps the epoch.
For a client, the version of its request determines whether this version is used. For a transaction that a
coordinator ends by itself, level 2 of the feature determines it.

Responses are passed to callbacks, because a coordinator first writes each change to its log. During the
write, and until all markers of an ended transaction are written, the id is *busy*: requests get
CONCURRENT_TRANSACTIONS.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker.homes import ID, NOBODY, Home, Homes, Told
from cyproducer.testing.broker.partitions import Cluster, Entry, Partition
from cyproducer.testing.broker.world import NS_PER_MS, World

if TYPE_CHECKING:
    from cyproducer.testing.broker.group_offsets import Offsets


class Broker(Protocol):
    """The state of a broker that transactions need."""

    is_up: bool
    paused_until_ns: int


FEATURE = "transaction.version"
TRANSACTION_LEVELS = range(3)
"""Levels of that feature; 0 is written as its absence."""

EMPTY, ONGOING = "Empty", "Ongoing"
PREPARE_COMMIT, PREPARE_ABORT = "PrepareCommit", "PrepareAbort"
COMPLETE_COMMIT, COMPLETE_ABORT = "CompleteCommit", "CompleteAbort"
PREPARED = (PREPARE_COMMIT, PREPARE_ABORT)

EXHAUSTED = 32766
"""No transaction continues after this epoch: the next transaction has another producer id."""
FENCING = 32767
"""The epoch in which only a coordinator ends a transaction. A transaction that begins in it never ends
(KAFKA-20090)."""
ADD_AGAIN_MS, ADD_LIMIT_MS = 20.0, 100.0
"""How often and for how long a leader tries to add a partition while the id is busy."""

ADDS_PARTITIONS = 12
"""From this version on, Produce adds its partitions, and can return CONCURRENT_TRANSACTIONS."""
HAS_ABORTABLE = 11
"""From this version on, Produce can return TRANSACTION_ABORTABLE."""
UNREACHED = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
"""What a broker notices that does not reach the coordinator."""

Place = tuple[str, int]
"""Topic and partition."""
Identified = Callable[[int, int, int], None]
"""Called with an error code, a producer id and an epoch; -1, -1 with an error."""


def produce_code(code: int, version: int) -> int:
    """Returns the error code that a version of Produce uses for the coordinator's error code."""
    if code in UNREACHED or (code == ErrorCode.CONCURRENT_TRANSACTIONS and version < ADDS_PARTITIONS):
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if code == ErrorCode.TRANSACTION_ABORTABLE and version < HAS_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    return code


class TransactionManners:
    """How brokers handle transactions in a history; times in milliseconds."""

    def __init__(
        self,
        *,
        level: int = 2,
        log_ms: tuple[float, float] = (0.0, 0.0),
        marker_ms: tuple[float, float] = (0.0, 0.0),
        between_ms: tuple[float, float] = (0.0, 0.0),
        load_ms: tuple[float, float] = (0.0, 0.0),
        lag_ms: tuple[float, float] = (0.0, 0.0),
        check_ms: float = 1000.0,
        max_timeout_ms: int = 900_000,
        fences_late_commits: bool = False,
        first_epoch: int = 0,
        makes_topics: bool = False,
        collides: float = 0.2,
        faults: Iterable[int] = (),
        fault_rate: float = 0.0,
    ) -> None:
        #: The level of ``transaction.version`` at the start.
        self.level = level
        #: The time until a write to a coordinator's log is durable.
        self.log_ms = log_ms
        #: The time until a marker reaches its partition's leader.
        self.marker_ms = marker_ms
        #: The time from a leader to the coordinator and back.
        self.between_ms = between_ms
        #: How long a new coordinator takes to load its log.
        self.load_ms = load_ms
        #: How long brokers take to learn of a new coordinator, or of a new level.
        self.lag_ms = lag_ms
        #: How often coordinators check for transactions that have timed out.
        self.check_ms = check_ms
        #: ``transaction.max.timeout.ms``
        self.max_timeout_ms = max_timeout_ms
        #: Whether EndTxn(commit) after the broker's timeout returns PRODUCER_FENCED, as after KAFKA-20785.
        self.fences_late_commits = fences_late_commits
        #: The epoch of a new producer id.
        self.first_epoch = first_epoch
        #: Whether the first lookup of a coordinator fails because the topic of its log is being created.
        self.makes_topics = makes_topics
        #: The probability that a Produce request fails to add its partitions because another connection of
        #: the producer also adds partitions.
        self.collides = collides
        #: Error codes that requests to coordinators get at random, and their probability.
        self.faults = list(faults)
        self.fault_rate = fault_rate


class State(NamedTuple):
    """The state of an id in a coordinator's log."""

    name: str
    producer_id: int
    epoch: int
    timeout_ms: int
    updated_ns: int
    #: The epoch before the last bump that its owner is allowed to repeat; -1: there is none.
    last_epoch: int = -1
    #: The producer id before the last one.
    previous_id: int = -1
    #: The producer id that follows when the markers are written; -1: the same.
    next_id: int = -1
    #: Partitions without a marker, including those of the offsets of groups.
    places: frozenset[Place] = frozenset()
    started_ns: int = -1
    #: Whether the transaction was ended with a bump of the epoch.
    bumps: bool = False
    #: Whether a coordinator ended the transaction: it timed out, or another producer took over.
    fenced: bool = False


class Transaction:
    """A transactional id, as its coordinator knows it."""

    __slots__ = ("changing", "home", "id", "state", "unmarked", "wedged")

    def __init__(self, id: str, home: Home) -> None:
        self.id = id
        self.home = home
        #: None: the coordinator does not know the id.
        self.state: State | None = None
        #: A change is being written.
        self.changing = False
        #: A change can't be written: the id is blocked until another coordinator reads the log.
        self.wedged = False
        #: Partitions whose markers are in flight.
        self.unmarked: set[Place] = set()

    @property
    def busy(self) -> bool:
        """Whether a change is in progress, until the last marker is written."""
        return self.changing or self.wedged or (self.state is not None and self.state.name in PREPARED)


class Features:
    """``transaction.version``, and each broker's view of it (KIP-584)."""

    def __init__(self, world: World, nodes: list[int], level: int) -> None:
        self.world = world
        self.level = level
        self.epoch = 18
        #: Each broker's features epoch and level.
        self.views = dict.fromkeys(nodes, (self.epoch, level))

    def set(self, level: int, lag_ms: tuple[float, float]) -> None:
        """Finalizes a level; brokers learn of it one by one."""
        self.world.say(f"transaction.version {self.level} becomes {level}")
        self.level = level
        self.epoch += self.world.random.randint(1, 200)
        for node in self.views:
            self.world.after(self.world.between(lag_ms), self._learn, node, self.epoch, level)

    def set_at_once(self, level: int) -> None:
        """Finalizes a level; all brokers know it when this returns."""
        self.set(level, (0.0, 0.0))
        for node in self.views:
            self._learn(node, self.epoch, level)

    def _learn(self, node: int, epoch: int, level: int) -> None:
        if epoch > self.views[node][0]:
            self.views[node] = (epoch, level)

    def level_at(self, node: int) -> int:
        return self.views[node][1]


class Transactions:
    """All transactional ids. See the module docstring."""

    def __init__(
        self,
        world: World,
        cluster: Cluster,
        homes: Homes,
        manners: TransactionManners,
        replication_ms: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self.world = world
        self.cluster = cluster
        self.homes = homes
        self.manners = manners
        self.replication_ms = replication_ms
        self.features = Features(world, cluster.nodes, manners.level)
        self.ids: dict[str, Transaction] = {}
        #: Actions of clients that are never allowed.
        self.violations: list[str] = []
        #: ("topic" or "group" or "id", name) for which the client has no rights.
        self.denied: set[tuple[str, str]] = set()
        self.brokers: dict[int, Broker] = {}
        self.offsets: Offsets | None = None
        #: Called with each change of an id, once it is durable: the id, the state before, and the new one.
        self.on_change: list[Callable[[str, State | None, State], object]] = []
        self._adding: dict[tuple[int, str], Told] = {}
        homes.on_resigned[ID] = self._resigned
        homes.on_loaded[ID] = self._loaded

    def of(self, transactional_id: str) -> Transaction:
        found = self.ids.get(transactional_id)
        if found is None:
            found = Transaction(transactional_id, self.homes.home(ID, transactional_id))
            self.ids[transactional_id] = found
        return found

    def accuse(self, what: str) -> None:
        """Records an action of a client that is never allowed."""
        self.world.say(f"VIOLATION: {what}")
        self.violations.append(what)

    # Identities

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, producer_id: int, epoch: int, told: Identified
    ) -> None:
        """Handles InitProducerId. A request with -1, -1 takes over the id; a request with the producer's own
        producer id and epoch bumps the epoch (KIP-360)."""
        if transactional_id == "" or (producer_id < 0) != (epoch < 0):
            told(ErrorCode.INVALID_REQUEST, -1, -1)
        elif not 0 < timeout_ms <= self.manners.max_timeout_ms:
            told(ErrorCode.INVALID_TRANSACTION_TIMEOUT, -1, -1)
        else:
            txn = self.of(transactional_id)
            expected = None if producer_id < 0 else (producer_id, epoch)
            change = self._initialised(txn, timeout_ms, expected)
            if isinstance(change, int):
                told(change, -1, -1)
            elif change.name == PREPARE_ABORT:
                # The client retries, and gets the epoch after the one in which the transaction was ended.
                self._end(
                    txn, change, lambda code, *_: told(code or ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1)
                )
            else:
                self._initialise(txn, change, told)

    def _initialise(self, txn: Transaction, new: State, told: Identified) -> None:
        def written(code: int) -> None:
            told(code, *((-1, -1) if code else (new.producer_id, new.epoch)))

        self._write(txn, new, written)

    def _initialised(
        self, txn: Transaction, timeout_ms: int, expected: tuple[int, int] | None
    ) -> State | int:
        """Returns the state that follows from InitProducerId, or an error code."""
        now_ns, state = self.world.now_ns, txn.state
        if txn.busy:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if state is None:
            new_id = self.cluster.new_producer_id()
            return State(EMPTY, new_id, self.manners.first_epoch, timeout_ms, now_ns, previous_id=new_id)
        if expected is not None and not (
            expected[0] == state.producer_id
            or (expected[0] == state.previous_id and expected[1] >= EXHAUSTED)
        ):
            return ErrorCode.PRODUCER_FENCED
        if state.name == ONGOING:
            return self._fenced(txn, state)
        fresh = state._replace(
            name=EMPTY,
            timeout_ms=timeout_ms,
            updated_ns=now_ns,
            previous_id=state.producer_id,
            next_id=-1,
            started_ns=-1,
            fenced=False,
        )
        exhausted = state.epoch >= EXHAUSTED
        if exhausted and (expected is None or expected[1] == state.epoch):
            last = -1 if expected is None else state.epoch
            return fresh._replace(producer_id=self.cluster.new_producer_id(), epoch=0, last_epoch=last)
        if exhausted:
            return ErrorCode.UNKNOWN
        if expected is None:
            return fresh._replace(epoch=state.epoch + 1, last_epoch=-1)
        if expected[1] == state.epoch:
            return fresh._replace(epoch=state.epoch + 1, last_epoch=state.epoch)
        if expected[1] == state.last_epoch:
            # A repeated request, whose first response may be lost.
            return fresh
        return ErrorCode.PRODUCER_FENCED

    def _fenced(self, txn: Transaction, state: State) -> State | int:
        """Returns the state in which a coordinator aborts an open transaction by itself."""
        if state.epoch >= FENCING:
            return ErrorCode.UNKNOWN
        bumps = self.features.level_at(txn.home.leader) >= 2
        return state._replace(
            name=PREPARE_ABORT,
            epoch=state.epoch + 1,
            last_epoch=state.epoch if bumps else -1,
            next_id=-1,
            bumps=bumps,
            fenced=True,
            updated_ns=self.world.now_ns,
        )

    # Partitions

    def add(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        places: Iterable[Place],
        bumps: bool,
        told: Told,
    ) -> None:
        """Adds all partitions, or none. ``bumps``: the client uses the second version of the protocol."""
        wanted = frozenset(places)
        txn = self.ids.get(transactional_id)
        if txn is None or (txn.state is None and not txn.busy):
            told(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            return
        state = txn.state
        if txn.busy or state is None:
            told(ErrorCode.CONCURRENT_TRANSACTIONS)
        elif state.producer_id != producer_id:
            told(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        elif state.epoch != epoch:
            told(ErrorCode.PRODUCER_FENCED)
        elif state.name == ONGOING and wanted <= state.places:
            told(ErrorCode.NO_ERROR)
        else:
            now_ns = self.world.now_ns
            started_ns = state.started_ns if state.name == ONGOING else now_ns
            new = state._replace(
                name=ONGOING,
                places=state.places | wanted,
                started_ns=started_ns,
                updated_ns=now_ns,
                fenced=False,
            )
            self._write(txn, new, told, second_version=bumps)

    def verify(
        self, transactional_id: str, producer_id: int, epoch: int, places: Iterable[Place]
    ) -> dict[Place, int]:
        """Returns an error code for each partition: NO_ERROR if it is in the open transaction."""
        wanted = list(places)
        txn = self.ids.get(transactional_id)
        state = None if txn is None else txn.state
        if state is None or state.producer_id != producer_id:
            return dict.fromkeys(wanted, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if state.epoch != epoch:
            return dict.fromkeys(wanted, ErrorCode.PRODUCER_FENCED)
        if state.name in PREPARED:
            return dict.fromkeys(wanted, ErrorCode.CONCURRENT_TRANSACTIONS)
        return {
            place: ErrorCode.NO_ERROR if place in state.places else ErrorCode.TRANSACTION_ABORTABLE
            for place in wanted
        }

    def ask(
        self,
        node: int,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        places: list[Place],
        adds: bool,
        patient: bool,
        told: Callable[[dict[Place, int]], object],
        begin: Callable[[], object] = lambda: None,
    ) -> None:
        """Sends a leader's request to the coordinator that it knows: to add partitions, or to verify them.

        Args:
            node: the leader.
            transactional_id: the producer's transactional id.
            producer_id: the producer's id.
            epoch: the producer's epoch.
            places: the partitions.
            adds: whether to add the partitions (KIP-890's second part); otherwise, they are only looked up.
            patient: retries for ``ADD_LIMIT_MS`` while the id is busy.
            told: gets an error code for each partition, with the codes of a leader's responses:
                INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED.
            begin: called each time a request is sent to the coordinator.
        """
        world = self.world
        until_ns = world.now_ns + int(ADD_LIMIT_MS * NS_PER_MS)
        key = (node, transactional_id)
        is_over = False

        def end(codes: dict[Place, int]) -> None:
            if self._adding.get(key) is overtaken:
                del self._adding[key]
            fenced = {
                place: ErrorCode.INVALID_PRODUCER_EPOCH
                for place, code in codes.items()
                if code == ErrorCode.PRODUCER_FENCED
            }
            told(codes | fenced)

        def overtaken(code: int) -> None:
            nonlocal is_over
            is_over = True
            told(dict.fromkeys(places, code))

        def go() -> None:
            if is_over:
                return
            begin()
            delay_ms = world.between(self.manners.between_ms)
            if delay_ms:
                world.after(delay_ms, arrive)
            else:
                arrive()

        def arrive() -> None:
            if is_over:
                return
            home = self.of(transactional_id).home
            coordinator = home.views[node]
            paused_ns = self._paused_until_ns(coordinator)
            if paused_ns > world.now_ns:
                world.at(paused_ns, arrive)
                return
            code = self.homes.code(coordinator, home)
            if code:
                end(dict.fromkeys(places, ErrorCode.NETWORK_EXCEPTION if home.leader == NOBODY else code))
            elif adds:
                self.add(transactional_id, producer_id, epoch, places, True, added)
            else:
                end(self.verify(transactional_id, producer_id, epoch, places))

        def added(code: int) -> None:
            if is_over:
                return
            if code == ErrorCode.CONCURRENT_TRANSACTIONS and patient and world.now_ns < until_ns:
                world.after(ADD_AGAIN_MS, go)
            else:
                end(dict.fromkeys(places, code))

        former = self._adding.get(key)
        if former is not None and world.chance(self.manners.collides):
            del self._adding[key]
            former(ErrorCode.NETWORK_EXCEPTION)
        self._adding.setdefault(key, overtaken)
        go()

    def _paused_until_ns(self, node: int) -> int:
        broker = self.brokers.get(node)
        return 0 if broker is None else broker.paused_until_ns

    # The end

    def end(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        commits: bool,
        bumps: bool,
        told: Identified,
    ) -> None:
        """Handles EndTxn. ``bumps``: the request has version 5 or newer, whose response has the next producer
        id and epoch."""
        txn = self.ids.get(transactional_id)
        if txn is None or (txn.state is None and not txn.busy):
            told(ErrorCode.INVALID_PRODUCER_ID_MAPPING, -1, -1)
            return
        state = txn.state
        if state is None:
            told(ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1)
            return
        result = (self._ended_with_bump if bumps else self._ended)(txn, state, producer_id, epoch, commits)
        if isinstance(result, State):
            self._end(txn, result, told, second_version=bumps)
        elif result:
            told(result, -1, -1)
        else:
            told(ErrorCode.NO_ERROR, state.producer_id, state.epoch)

    def _busy_code(self, state: State, commits: bool) -> int:
        opposite = state.name == (PREPARE_ABORT if commits else PREPARE_COMMIT)
        return (
            ErrorCode.INVALID_TXN_STATE
            if opposite and self.world.chance(0.2)
            else ErrorCode.CONCURRENT_TRANSACTIONS
        )

    def _ended(
        self, txn: Transaction, state: State, producer_id: int, epoch: int, commits: bool
    ) -> State | int:
        """EndTxn up to version 4: the epoch does not identify the transaction."""
        if state.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if state.epoch != epoch:
            return ErrorCode.PRODUCER_FENCED
        if txn.busy:
            return self._busy_code(state, commits)
        if state.name == ONGOING:
            name = PREPARE_COMMIT if commits else PREPARE_ABORT
            return state._replace(name=name, bumps=False, next_id=-1, updated_ns=self.world.now_ns)
        return (
            ErrorCode.NO_ERROR
            if state.name == (COMPLETE_COMMIT if commits else COMPLETE_ABORT)
            else ErrorCode.INVALID_TXN_STATE
        )

    def _ended_with_bump(
        self, txn: Transaction, state: State, producer_id: int, epoch: int, commits: bool
    ) -> State | int:
        """EndTxn from version 5 on: a repeated request has the epoch before the bump."""
        if txn.busy:
            if (state.producer_id, state.epoch) not in ((producer_id, epoch), (producer_id, epoch + 1)):
                # Kafka compares the identity only while no write to its log is pending.
                return ErrorCode.CONCURRENT_TRANSACTIONS
            return self._busy_code(state, commits)
        is_complete = state.name in (COMPLETE_COMMIT, COMPLETE_ABORT)
        overflowed = (producer_id, epoch, state.epoch) == (state.previous_id, EXHAUSTED, 0)
        if state.producer_id != producer_id and not overflowed:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        repeated = is_complete and (
            overflowed or (state.producer_id == producer_id and state.epoch == epoch + 1)
        )
        if not repeated and (overflowed or state.epoch != epoch):
            return ErrorCode.PRODUCER_FENCED
        if repeated:
            if commits and state.fenced and self.manners.fences_late_commits:
                return ErrorCode.PRODUCER_FENCED
            return (
                ErrorCode.NO_ERROR
                if commits == (state.name == COMPLETE_COMMIT)
                else ErrorCode.INVALID_TXN_STATE
            )
        if commits and state.name != ONGOING:
            return ErrorCode.INVALID_TXN_STATE
        if epoch >= FENCING:
            return ErrorCode.UNKNOWN
        next_id = self.cluster.new_producer_id() if epoch >= EXHAUSTED else -1
        return state._replace(
            name=PREPARE_COMMIT if commits else PREPARE_ABORT,
            epoch=epoch + 1,
            last_epoch=epoch,
            next_id=next_id,
            bumps=True,
            fenced=False,
            updated_ns=self.world.now_ns,
        )

    def _end(self, txn: Transaction, prepared: State, told: Identified, second_version: bool = False) -> None:
        """Writes the decision, responds, and sends the markers."""

        def written(code: int) -> None:
            if code:
                told(code, -1, -1)
                return
            after = self._completed(prepared)
            told(ErrorCode.NO_ERROR, after.producer_id, after.epoch)
            self._send_markers(txn)

        self._write(txn, prepared, written, second_version)

    def _completed(self, state: State) -> State:
        rotates = state.next_id >= 0
        return state._replace(
            name=COMPLETE_COMMIT if state.name == PREPARE_COMMIT else COMPLETE_ABORT,
            producer_id=state.next_id if rotates else state.producer_id,
            epoch=0 if rotates else state.epoch,
            previous_id=state.producer_id,
            next_id=-1,
            places=frozenset(),
            updated_ns=self.world.now_ns,
        )

    def describe(self, transactional_id: str) -> State | int:
        """Returns the state of an id for DescribeTransactions, or an error code."""
        txn = self.ids.get(transactional_id)
        return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if txn is None or txn.state is None else txn.state

    # The coordinator's log

    def _write(self, txn: Transaction, new: State, told: Told, second_version: bool = False) -> None:
        if second_version and self.features.level_at(txn.home.leader) == 0:
            # The log's records have no field for the second version. The coordinator waits forever for this
            # write to complete.
            self.world.say(f"id {txn.id} is wedged")
            self.world.count("wedged ids")
            txn.wedged = True
            told(ErrorCode.UNSUPPORTED_VERSION)
            return

        def apply() -> int:
            old, txn.state, txn.changing = txn.state, new, False
            if self.world.tracing:
                self.world.say(
                    f"id {txn.id} is {new.name}: producer id {new.producer_id}, epoch {new.epoch}, "
                    f"{sorted(new.places)}"
                )
            for seen in self.on_change:
                seen(txn.id, old, new)
            if new.name == ONGOING and (old is None or old.name != ONGOING):
                self._watch(txn)
            return ErrorCode.NO_ERROR

        txn.changing = True
        self.homes.write(txn.home, apply, told)

    def _resigned(self, home: Home) -> None:
        txn = self.ids.get(home.name)
        if txn is not None:
            txn.changing = txn.wedged = False
            txn.unmarked.clear()

    def _loaded(self, home: Home) -> None:
        txn = self.ids.get(home.name)
        if txn is None or txn.state is None:
            return
        if txn.state.name in PREPARED:
            self._send_markers(txn)
        elif txn.state.name == ONGOING:
            self._watch(txn)

    # Timeouts

    def _watch(self, txn: Transaction) -> None:
        """Aborts an open transaction when its timeout expires. Requests do not extend the timeout."""
        assert txn.state is not None
        due_ns = txn.state.started_ns + txn.state.timeout_ms * NS_PER_MS
        late_ms = self.world.between((0.0, self.manners.check_ms))
        self.world.at(
            due_ns + int(late_ms * NS_PER_MS), self._check, txn, txn.state.started_ns, txn.home.term
        )

    def _check(self, txn: Transaction, started_ns: int, term: int) -> None:
        state, world = txn.state, self.world
        if (
            state is None
            or state.name != ONGOING
            or state.started_ns != started_ns
            or txn.home.term != term
            or txn.wedged
        ):
            return
        if txn.busy or self._paused_until_ns(txn.home.leader) > world.now_ns:
            world.after(max(self.manners.check_ms, 1.0), self._check, txn, started_ns, term)
            return
        fenced = self._fenced(txn, state)
        if isinstance(fenced, State):
            world.say(f"the transaction of id {txn.id} has timed out")
            world.count("transactions timed out")
            self._end(txn, fenced, lambda *answer: None)

    def expire(self, before_ns: int) -> None:
        """Forgets the ids that were not used since ``before_ns``, unless they are busy or have an open
        transaction."""
        for txn in self.ids.values():
            state = txn.state
            if state is None or txn.busy or state.name == ONGOING or state.updated_ns >= before_ns:
                continue
            self.world.say(f"id {txn.id} expires")
            txn.state = None

    # Markers

    def _send_markers(self, txn: Transaction) -> None:
        state = txn.state
        assert state is not None
        assert state.name in PREPARED
        txn.unmarked = set(state.places)
        if not txn.unmarked:
            self._complete(txn)
        for place in sorted(state.places):
            delay_ms = self.world.between(self.manners.marker_ms)
            self.world.after(delay_ms, self._mark, txn, state, txn.home.term, place)

    def _mark(self, txn: Transaction, state: State, term: int, place: Place) -> None:
        """Writes a marker at a partition's leader. The request arrives even if its coordinator has lost its
        role in the meantime."""

        def written(code: int) -> None:
            if txn.home.term != term:
                return
            if code:
                delay_ms = max(1.0, self.world.between(self.manners.marker_ms))
                self.world.after(delay_ms, self._mark_again, txn, state, term, place)
                return
            txn.unmarked.discard(place)
            if not txn.unmarked:
                self._complete(txn)

        commits = state.name == PREPARE_COMMIT
        if self.offsets is not None and self.offsets.owns(place):
            self.offsets.mark(place, state.producer_id, state.epoch, commits, term, written)
        else:
            self._mark_partition(place, state.producer_id, state.epoch, commits, term, written)

    def _mark_again(self, txn: Transaction, state: State, term: int, place: Place) -> None:
        if txn.home.term == term:
            self._mark(txn, state, term, place)

    def _mark_partition(
        self, place: Place, producer_id: int, epoch: int, commits: bool, term: int, written: Told
    ) -> None:
        world = self.world
        topic = self.cluster.topics.get(place[0])
        if topic is None or place[1] >= len(topic.partitions):
            # The topic was deleted during the transaction. As in Kafka, the coordinator drops the marker.
            written(ErrorCode.NO_ERROR)
            return
        partition = topic.partitions[place[1]]
        broker = self.brokers.get(partition.leader)
        if broker is not None and not broker.is_up:
            written(ErrorCode.NETWORK_EXCEPTION)
            return
        paused_ns = self._paused_until_ns(partition.leader)
        if paused_ns > world.now_ns:
            world.at(paused_ns, self._mark_partition, place, producer_id, epoch, commits, term, written)
            return
        entry = partition.append_marker(producer_id, epoch, commits, term, world.now_ns)
        if entry is None:
            return
        if world.tracing:
            end = "commit" if commits else "abort"
            world.say(f"{place[0]}-{place[1]}: {end} of producer id {producer_id}, epoch {epoch}")
        world.after(world.between(self.replication_ms), partition.sync, partition.epoch, entry.end)
        partition.wait_synced(entry.end, written)

    def _complete(self, txn: Transaction) -> None:
        assert txn.state is not None
        self._write(txn, self._completed(txn.state), lambda code: None)


# What readers see


class Committed(NamedTuple):
    """A partition as a consumer with ``isolation.level=read_committed`` sees it."""

    entries: list[Entry]
    last_stable: int
    """The offset of the oldest open transaction, or of the first record that is not replicated."""


def read_committed(partition: Partition) -> Committed:
    """Returns a partition's records of committed transactions and its non-transactional records, up to the
    last stable offset."""
    ends: dict[int, bool] = {}
    visible: list[Entry] = []
    for entry in reversed(partition.entries):
        if entry.commits is not None:
            ends[entry.header.producer_id] = entry.commits
        elif not entry.header.transactional or ends.get(entry.header.producer_id, False):
            visible.append(entry)
    last_stable = _last_stable(partition)
    return Committed([entry for entry in reversed(visible) if entry.offset < last_stable], last_stable)


def _last_stable(partition: Partition) -> int:
    opened: dict[int, int] = {}
    last_stable = partition.synced
    for entry in partition.entries:
        producer_id = entry.header.producer_id
        if entry.commits is None and entry.header.transactional:
            opened.setdefault(producer_id, entry.offset)
        elif entry.commits is not None and producer_id in opened:
            started = opened.pop(producer_id)
            if entry.offset >= partition.synced:
                # Consumers do not see the end of a transaction before all replicas have it.
                last_stable = min(last_stable, started)
    return min([last_stable, *opened.values()])
