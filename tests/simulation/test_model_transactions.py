"""The model's coordinators, one test per fact: otherwise histories would test the client against fiction."""

import pytest

from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker.group_offsets import Member, Offset, Offsets, TxnOffsetCommit
from cyproducer.testing.broker.homes import GROUP, ID, Homes
from cyproducer.testing.broker.partitions import Cluster, Header, Partition
from cyproducer.testing.broker.transactions import (
    COMPLETE_ABORT,
    EMPTY,
    EXHAUSTED,
    ONGOING,
    PREPARE_COMMIT,
    Place,
    State,
    TransactionManners,
    Transactions,
    read_committed,
)
from tests.simulation.world import World

T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)
V1, V2 = False, True
COMMIT, ABORT = True, False
FENCED = (ErrorCode.PRODUCER_FENCED, -1, -1)
WRONG_STATE = (ErrorCode.INVALID_TXN_STATE, -1, -1)
BUSY = (ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1)
TIMEOUT_MS = 1000


class Bench:
    """Two brokers, of which 1 coordinates the id "x" and the group "g". Nothing takes time but markers, which
    take a second; ``world.run_out()`` waits for them."""

    def __init__(self, level: int = 2, log_ms: float = 0.0, first_epoch: int = 0) -> None:
        self.world = World(1)
        self.cluster = Cluster(self.world, 2)
        self.cluster.create_topic("t", 2)
        self.cluster.create_topic("u", 1)
        self.homes = Homes(self.world, [1, 2], (log_ms, log_ms))
        self.manners = TransactionManners(
            level=level,
            marker_ms=(1000, 1000),
            check_ms=0.0,
            max_timeout_ms=60_000,
            first_epoch=first_epoch,
        )
        self.transactions = Transactions(self.world, self.cluster, self.homes, self.manners)
        self.offsets = Offsets(self.world, self.homes, self.transactions)
        self.homes.home(ID, "x").leader = 1
        self.homes.home(ID, "x").views = {1: 1, 2: 1}
        self.homes.home(GROUP, "g").leader = 1

    def init(self, producer_id: int = -1, epoch: int = -1, timeout_ms: int = TIMEOUT_MS) -> tuple[int, ...]:
        told: list[tuple[int, ...]] = []
        self.transactions.init_producer_id(
            "x", timeout_ms, producer_id, epoch, lambda *answer: told.append(answer)
        )
        self.world.run_until(told)
        return told[0]

    def started(self) -> tuple[int, int]:
        """Returns a new identity."""
        code, producer_id, epoch = self.init()
        assert code == ErrorCode.NO_ERROR
        return producer_id, epoch

    def add(self, identity: tuple[int, int], *places: Place, bumps: bool = V2) -> int:
        told: list[int] = []
        self.transactions.add("x", *identity, places, bumps, told.append)
        self.world.run_until(told)
        return told[0]

    def end(self, identity: tuple[int, int], commits: bool, bumps: bool = V2) -> tuple[int, ...]:
        told: list[tuple[int, ...]] = []
        self.transactions.end("x", *identity, commits, bumps, lambda *answer: told.append(answer))
        self.world.run_until(told)
        return told[0]

    @property
    def state(self) -> State:
        state = self.transactions.of("x").state
        assert state is not None
        return state

    def partition(self, place: Place) -> Partition:
        return self.cluster.topics[place[0]].partitions[place[1]]

    def append(self, place: Place, identity: tuple[int, int], sequence: int = 0) -> None:
        """A leader that knows that the partition is in the transaction appends one record."""
        batch = Header(1, *identity, sequence, True)
        partition = self.partition(place)
        guard = partition.guard(batch, True)
        assert partition.check_transactional(batch, guard) == (ErrorCode.NO_ERROR, None)
        partition.append(batch, b"", self.world.now_ns)
        partition.sync(partition.epoch, partition.end)

    def visible(self, place: Place) -> list[int]:
        """Returns the offsets that readers of committed records see."""
        return [entry.offset for entry in read_committed(self.partition(place)).entries]

    def commit_offsets(
        self,
        identity: tuple[int, int],
        offset: int = 5,
        version: int = 5,
        generation: int = -1,
        member: str = "",
        instance: str | None = None,
    ) -> int:
        told: list[int] = []
        request = TxnOffsetCommit(
            "x", "g", *identity, generation, member, instance, {T0: Offset(offset, -1, None)}
        )
        self.offsets.commit(1, version, request, told.append)
        self.world.run_until(told)
        return told[0]

    def committed(self) -> int | None:
        offset = self.offsets.group("g").committed.get(T0)
        return None if offset is None else offset.offset


@pytest.fixture
def bench() -> Bench:
    return Bench()


both = pytest.mark.parametrize("bumps", [pytest.param(V2, id="v2"), pytest.param(V1, id="v1")])


def committed(bench: Bench, bumps: bool) -> tuple[tuple[int, int], tuple[int, ...]]:
    """Commits a transaction; returns its identity and the answer."""
    identity = bench.started()
    assert bench.add(identity, T0, bumps=bumps) == ErrorCode.NO_ERROR
    return identity, bench.end(identity, COMMIT, bumps)


# The table of EndTxn


@both
def test_while_the_last_end_is_pending_a_repeated_one_is_concurrent(bench: Bench, bumps: bool) -> None:
    identity, answer = committed(bench, bumps)
    assert answer[0] == ErrorCode.NO_ERROR
    assert bench.end(identity, COMMIT, bumps) == BUSY


@both
def test_while_the_last_end_is_pending_the_opposite_is_concurrent_or_a_wrong_state(
    bench: Bench, bumps: bool
) -> None:
    identity, _ = committed(bench, bumps)
    assert {bench.end(identity, ABORT, bumps) for _ in range(50)} == {BUSY, WRONG_STATE}


def test_a_repeated_end_with_a_bump_has_the_same_next_identity(bench: Bench) -> None:
    (producer_id, epoch), answer = committed(bench, V2)
    assert answer == (ErrorCode.NO_ERROR, producer_id, epoch + 1)
    bench.world.run_out()
    # Also if another coordinator has read the log meanwhile.
    bench.homes.move(bench.homes.home(ID, "x"), 2)
    bench.world.run_out()
    assert bench.end((producer_id, epoch), COMMIT) == answer


def test_a_repeated_abort_with_a_bump_has_the_same_next_identity(bench: Bench) -> None:
    producer_id, epoch = identity = bench.started()
    bench.add(identity, T0)
    assert bench.end(identity, ABORT) == (ErrorCode.NO_ERROR, producer_id, epoch + 1)
    bench.world.run_out()
    assert bench.end(identity, ABORT) == (ErrorCode.NO_ERROR, producer_id, epoch + 1)


@pytest.mark.parametrize("commits", [COMMIT, ABORT])
def test_a_repeated_end_without_a_bump_is_accepted(bench: Bench, commits: bool) -> None:
    identity = bench.started()
    bench.add(identity, T0, bumps=V1)
    assert bench.end(identity, commits, V1)[0] == ErrorCode.NO_ERROR
    bench.world.run_out()
    assert bench.end(identity, commits, V1)[0] == ErrorCode.NO_ERROR
    assert bench.state.epoch == identity[1]


@both
@pytest.mark.parametrize("commits", [COMMIT, ABORT])
def test_the_opposite_end_afterwards_is_a_wrong_state(bench: Bench, bumps: bool, commits: bool) -> None:
    identity = bench.started()
    bench.add(identity, T0, bumps=bumps)
    bench.end(identity, commits, bumps)
    bench.world.run_out()
    assert bench.end(identity, not commits, bumps) == WRONG_STATE


@both
def test_a_commit_of_nothing_is_a_wrong_state(bench: Bench, bumps: bool) -> None:
    assert bench.end(bench.started(), COMMIT, bumps) == WRONG_STATE


def test_an_abort_of_nothing_bumps_the_epoch(bench: Bench) -> None:
    producer_id, epoch = bench.started()
    assert bench.end((producer_id, epoch), ABORT) == (ErrorCode.NO_ERROR, producer_id, epoch + 1)
    bench.world.run_out()
    # After a complete transaction too.
    assert bench.end((producer_id, epoch + 1), ABORT) == (ErrorCode.NO_ERROR, producer_id, epoch + 2)


def test_an_abort_of_nothing_is_a_wrong_state_without_a_bump(bench: Bench) -> None:
    assert bench.end(bench.started(), ABORT, V1) == WRONG_STATE


def test_after_the_timeout_a_commit_with_a_bump_is_a_wrong_state(bench: Bench) -> None:
    identity = timed_out(bench)
    assert bench.end(identity, COMMIT) == WRONG_STATE


def test_newer_brokers_do_not_fence_a_commit_after_an_abort(bench: Bench) -> None:
    bench.manners.fences_late_commits = True
    identity = bench.started()
    bench.add(identity, T0)
    bench.end(identity, ABORT)
    bench.world.run_out()
    assert bench.end(identity, COMMIT) == WRONG_STATE


def test_newer_brokers_fence_a_commit_after_the_timeout(bench: Bench) -> None:
    bench.manners.fences_late_commits = True
    identity = timed_out(bench)
    assert bench.end(identity, COMMIT) == FENCED
    assert bench.end(identity, ABORT)[0] == ErrorCode.NO_ERROR


def test_after_the_timeout_an_abort_with_a_bump_makes_the_producer_fit_again(bench: Bench) -> None:
    producer_id, epoch = timed_out(bench)
    assert bench.end((producer_id, epoch), ABORT) == (ErrorCode.NO_ERROR, producer_id, epoch + 1)
    assert bench.add((producer_id, epoch + 1), T0) == ErrorCode.NO_ERROR


@pytest.mark.parametrize("commits", [COMMIT, ABORT])
def test_after_the_timeout_an_end_without_a_bump_is_fenced(bench: Bench, commits: bool) -> None:
    assert bench.end(timed_out(bench), commits, V1) == FENCED


def test_a_repeated_end_with_a_bump_does_not_end_the_next_transaction(bench: Bench) -> None:
    identity, (_, *following) = committed(bench, V2)
    bench.world.run_out()
    assert bench.add((following[0], following[1]), T0) == ErrorCode.NO_ERROR
    assert bench.end(identity, COMMIT) == FENCED
    assert bench.state.name == ONGOING


def test_a_repeated_end_without_a_bump_ends_the_next_transaction(bench: Bench) -> None:
    identity, _ = committed(bench, V1)
    bench.world.run_out()
    assert bench.add(identity, T0, bumps=V1) == ErrorCode.NO_ERROR
    assert bench.end(identity, COMMIT, V1)[0] == ErrorCode.NO_ERROR
    assert bench.state.name == PREPARE_COMMIT


@both
def test_after_another_producer_every_end_is_fenced(bench: Bench, bumps: bool) -> None:
    identity, _ = committed(bench, bumps)
    bench.world.run_out()
    bench.started()
    assert bench.end(identity, COMMIT, bumps) == FENCED
    assert bench.end(identity, ABORT, bumps) == FENCED


@both
@pytest.mark.parametrize("difference", [-1, 1, 2])
def test_any_other_epoch_is_fenced(bench: Bench, bumps: bool, difference: int) -> None:
    bench.init()
    bench.world.run_out()
    producer_id, epoch = bench.started()
    bench.add((producer_id, epoch), T0)
    assert bench.end((producer_id, epoch + difference), COMMIT, bumps) == FENCED


@both
def test_another_producer_id_is_no_mapping(bench: Bench, bumps: bool) -> None:
    producer_id, epoch = bench.started()
    assert bench.end((producer_id + 1, epoch), COMMIT, bumps)[0] == ErrorCode.INVALID_PRODUCER_ID_MAPPING


@both
def test_an_unknown_or_expired_id_is_no_mapping(bench: Bench, bumps: bool) -> None:
    assert bench.end((9, 0), COMMIT, bumps)[0] == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    identity = bench.started()
    bench.transactions.expire(bench.world.now_ns + 1)
    assert bench.end(identity, ABORT, bumps)[0] == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert bench.add(identity, T0) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert bench.transactions.describe("x") == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


# InitProducerId


def test_a_new_id_gets_a_producer_id_and_the_first_epoch(bench: Bench) -> None:
    assert bench.init() == (ErrorCode.NO_ERROR, 1001, 0)
    assert bench.state.name == EMPTY


def test_taking_over_bumps_the_epoch(bench: Bench) -> None:
    bench.init()
    assert bench.init() == (ErrorCode.NO_ERROR, 1001, 1)


def test_a_bump_with_ones_own_identity_may_be_repeated(bench: Bench) -> None:
    producer_id, epoch = bench.started()
    assert bench.init(producer_id, epoch) == (ErrorCode.NO_ERROR, producer_id, epoch + 1)
    assert bench.init(producer_id, epoch) == (ErrorCode.NO_ERROR, producer_id, epoch + 1)
    assert bench.init(producer_id, epoch + 1) == (ErrorCode.NO_ERROR, producer_id, epoch + 2)


def test_a_bump_with_an_old_identity_is_fenced(bench: Bench) -> None:
    producer_id, epoch = bench.started()
    # Another producer takes over, which can't be repeated with the former identity.
    bench.init()
    assert bench.init(producer_id, epoch) == FENCED
    assert bench.init(producer_id + 7, epoch) == FENCED


def test_half_an_identity_is_an_invalid_request(bench: Bench) -> None:
    producer_id, epoch = bench.started()
    assert bench.init(producer_id, -1)[0] == ErrorCode.INVALID_REQUEST
    assert bench.init(-1, epoch)[0] == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("timeout_ms", [0, -1, 60_001])
def test_timeouts_that_the_broker_does_not_allow(bench: Bench, timeout_ms: int) -> None:
    assert bench.init(timeout_ms=timeout_ms)[0] == ErrorCode.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("level", [0, 1, 2])
def test_taking_over_an_open_transaction_aborts_it_and_bumps_twice(level: int) -> None:
    bench = Bench(level)
    producer_id, epoch = identity = bench.started()
    bench.add(identity, T0, bumps=level == 2)
    bench.append(T0, identity)
    assert bench.init() == BUSY
    # Until the markers are written.
    assert bench.init() == BUSY
    bench.world.run_out()
    assert bench.visible(T0) == []
    assert bench.init() == (ErrorCode.NO_ERROR, producer_id, epoch + 2)


def test_a_bump_over_ones_own_open_transaction_aborts_it_silently(bench: Bench) -> None:
    producer_id, epoch = identity = bench.started()
    bench.add(identity, T0)
    assert bench.init(*identity) == BUSY
    bench.world.run_out()
    assert bench.init(*identity) == (ErrorCode.NO_ERROR, producer_id, epoch + 1)
    assert bench.state.name == EMPTY


@pytest.mark.parametrize(("level", "answer"), [(2, (ErrorCode.NO_ERROR, 1001, 1)), (1, FENCED), (0, FENCED)])
def test_after_the_timeout_the_former_identity_is_known_only_at_level_2(
    level: int, answer: tuple[int, ...]
) -> None:
    bench = Bench(level)
    assert bench.init(*timed_out(bench, bumps=level == 2)) == answer


def test_an_init_while_another_one_is_written_is_concurrent() -> None:
    bench = Bench(log_ms=5)
    told: list[tuple[int, ...]] = []
    for _ in range(2):
        bench.transactions.init_producer_id("x", TIMEOUT_MS, -1, -1, lambda *answer: told.append(answer))
    bench.world.run_out()
    assert sorted(told) == [(ErrorCode.NO_ERROR, 1001, 0), BUSY]


def test_an_expired_id_gets_another_producer_id_but_only_once(bench: Bench) -> None:
    identity = bench.started()
    bench.transactions.expire(bench.world.now_ns + 1)
    assert bench.init(*identity) == (ErrorCode.NO_ERROR, 1002, 0)
    assert bench.init(*identity) == FENCED


def test_what_is_open_or_used_does_not_expire(bench: Bench) -> None:
    bench.started()
    bench.transactions.expire(bench.world.now_ns)
    bench.add((1001, 0), T0)
    bench.transactions.expire(bench.world.now_ns + 1)
    assert bench.state.name == ONGOING


def test_an_empty_id_is_an_invalid_request(bench: Bench) -> None:
    told: list[tuple[int, ...]] = []
    bench.transactions.init_producer_id("", TIMEOUT_MS, -1, -1, lambda *answer: told.append(answer))
    assert told == [(ErrorCode.INVALID_REQUEST, -1, -1)]


def test_while_the_first_init_is_written_everything_is_concurrent() -> None:
    bench = Bench(log_ms=5)
    bench.transactions.init_producer_id("x", TIMEOUT_MS, -1, -1, lambda *answer: None)
    assert bench.end((1001, 0), ABORT) == BUSY
    bench.transactions.init_producer_id("x", TIMEOUT_MS, -1, -1, lambda *answer: None)
    assert bench.add((1001, 0), T0) == ErrorCode.CONCURRENT_TRANSACTIONS


def test_an_init_whose_coordinator_loses_its_place_has_no_identity() -> None:
    bench = Bench(log_ms=5)
    told: list[tuple[int, ...]] = []
    bench.transactions.init_producer_id("x", TIMEOUT_MS, -1, -1, lambda *answer: told.append(answer))
    bench.homes.move(bench.homes.home(ID, "x"), 2)
    assert told == [(ErrorCode.NOT_COORDINATOR, -1, -1)]


def test_an_end_whose_coordinator_loses_its_place_has_no_identity() -> None:
    bench = Bench(log_ms=5)
    identity = bench.started()
    bench.add(identity, T0)
    told: list[tuple[int, ...]] = []
    bench.transactions.end("x", *identity, COMMIT, V2, lambda *answer: told.append(answer))
    bench.homes.move(bench.homes.home(ID, "x"), 2)
    assert told == [(ErrorCode.NOT_COORDINATOR, -1, -1)]


def test_coordinators_that_move_need_no_transactions(bench: Bench) -> None:
    bench.homes.move(bench.homes.home(ID, "never used"), 2)
    bench.started()
    bench.transactions.expire(bench.world.now_ns + 1)
    bench.homes.move(bench.homes.home(ID, "x"), 2)
    bench.world.run_out()
    assert bench.transactions.describe("x") == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


# The end of the epochs


def test_the_last_epoch_ends_with_another_producer_id() -> None:
    bench = Bench(first_epoch=EXHAUSTED)
    identity = bench.started()
    bench.add(identity, T0)
    bench.append(T0, identity)
    answer = bench.end(identity, COMMIT)
    assert answer == (ErrorCode.NO_ERROR, 1002, 0)
    # The markers have the former producer id.
    bench.world.run_out()
    assert bench.visible(T0) == [0]
    assert bench.partition(T0).producers[1001].epoch == EXHAUSTED + 1
    assert bench.end(identity, COMMIT) == answer
    assert bench.end(identity, ABORT) == WRONG_STATE
    assert bench.add(identity, T0) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert bench.add((1002, 0), T0) == ErrorCode.NO_ERROR


def test_the_last_epoch_but_one_is_followed_by_the_last() -> None:
    bench = Bench(first_epoch=EXHAUSTED - 1)
    identity = bench.started()
    bench.add(identity, T0)
    assert bench.end(identity, COMMIT) == (ErrorCode.NO_ERROR, 1001, EXHAUSTED)


def test_after_the_last_epoch_the_former_identity_may_ask_for_the_new_one() -> None:
    bench = Bench(first_epoch=EXHAUSTED)
    identity = bench.started()
    bench.add(identity, T0)
    bench.end(identity, COMMIT)
    bench.world.run_out()
    assert bench.init(*identity) == (ErrorCode.NO_ERROR, 1002, 0)


def test_a_bump_of_the_last_epoch_has_another_producer_id() -> None:
    bench = Bench(first_epoch=EXHAUSTED)
    assert bench.init(*bench.started()) == (ErrorCode.NO_ERROR, 1002, 0)
    # Repeated.
    assert bench.init(1001, EXHAUSTED) == (ErrorCode.NO_ERROR, 1002, 0)


def test_taking_over_the_last_epoch_has_another_producer_id() -> None:
    bench = Bench(first_epoch=EXHAUSTED)
    bench.started()
    assert bench.init() == (ErrorCode.NO_ERROR, 1002, 0)


def test_taking_over_the_last_epoch_can_not_be_repeated_with_the_former_identity() -> None:
    bench = Bench(first_epoch=EXHAUSTED)
    identity = bench.started()
    bench.init()
    assert bench.init(*identity) == FENCED


def test_a_former_producer_id_is_known_only_with_the_last_epoch() -> None:
    bench = Bench(first_epoch=EXHAUSTED)
    producer_id, epoch = bench.started()
    bench.init(producer_id, epoch)
    assert bench.init(producer_id, epoch - 1) == FENCED


def test_a_bump_to_the_last_epoch_can_not_be_repeated() -> None:
    bench = Bench(first_epoch=EXHAUSTED - 1)
    identity = bench.started()
    assert bench.init(*identity) == (ErrorCode.NO_ERROR, 1001, EXHAUSTED)
    assert bench.init(*identity)[0] == ErrorCode.UNKNOWN
    assert bench.init() == (ErrorCode.NO_ERROR, 1002, 0)


def test_a_transaction_in_the_fencing_epoch_never_ends() -> None:
    bench = Bench(first_epoch=EXHAUSTED)
    identity = bench.started()
    bench.add(identity, T0)
    bench.world.run_out()
    # The transaction has timed out, and the client asks whether it may go on.
    assert bench.end(identity, ABORT) == (ErrorCode.NO_ERROR, 1001, EXHAUSTED + 1)
    fencing = (1001, EXHAUSTED + 1)
    assert bench.add(fencing, T0) == ErrorCode.NO_ERROR
    bench.world.run_out()
    assert bench.state.name == ONGOING
    assert bench.end(fencing, COMMIT)[0] == ErrorCode.UNKNOWN
    assert bench.init()[0] == ErrorCode.UNKNOWN


# Adding and verifying


def test_partitions_are_added_with_the_current_identity_only(bench: Bench) -> None:
    bench.init()
    producer_id, epoch = bench.started()
    assert bench.add((producer_id, epoch - 1), T0) == ErrorCode.PRODUCER_FENCED
    assert bench.add((producer_id, epoch + 1), T0) == ErrorCode.PRODUCER_FENCED
    assert bench.add((producer_id + 1, epoch), T0) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert bench.add((producer_id, epoch), T0, U0) == ErrorCode.NO_ERROR
    assert bench.state.places == {T0, U0}


def test_until_all_markers_are_written_adding_is_concurrent(bench: Bench) -> None:
    _, (_, producer_id, epoch) = committed(bench, V2)
    assert bench.add((producer_id, epoch), T0) == ErrorCode.CONCURRENT_TRANSACTIONS
    bench.world.pass_ms(999)
    assert bench.add((producer_id, epoch), T0) == ErrorCode.CONCURRENT_TRANSACTIONS
    bench.world.pass_ms(1)
    assert bench.add((producer_id, epoch), T0) == ErrorCode.NO_ERROR


def test_an_added_partition_is_confirmed_others_are_abortable(bench: Bench) -> None:
    producer_id, epoch = identity = bench.started()
    bench.add(identity, T0, bumps=V1)
    verify = bench.transactions.verify
    assert verify("x", *identity, [T0, U0]) == {T0: ErrorCode.NO_ERROR, U0: ErrorCode.TRANSACTION_ABORTABLE}
    assert verify("x", producer_id, epoch + 1, [T0]) == {T0: ErrorCode.PRODUCER_FENCED}
    assert verify("x", producer_id + 1, epoch, [T0]) == {T0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert verify("y", *identity, [T0]) == {T0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    bench.end(identity, COMMIT, V1)
    assert verify("x", *identity, [T0]) == {T0: ErrorCode.CONCURRENT_TRANSACTIONS}
    bench.world.run_out()
    assert verify("x", *identity, [T0]) == {T0: ErrorCode.TRANSACTION_ABORTABLE}


def ask(bench: Bench, identity: tuple[int, int], patient: bool = True, adds: bool = True) -> list[int]:
    told: list[int] = []
    bench.transactions.ask(2, "x", *identity, [T0], adds, patient, lambda codes: told.append(codes[T0]))
    return told


def test_a_leader_adds_again_while_the_id_is_busy(bench: Bench) -> None:
    bench.manners.marker_ms = (50, 50)
    _, (_, producer_id, epoch) = committed(bench, V2)
    told = ask(bench, (producer_id, epoch))
    bench.world.pass_ms(59)
    assert told == []
    # 20, 40 and 60 ms after the first attempt.
    bench.world.pass_ms(1)
    assert told == [ErrorCode.NO_ERROR]


def test_a_leader_gives_up_after_100_ms(bench: Bench) -> None:
    _, (_, producer_id, epoch) = committed(bench, V2)
    told = ask(bench, (producer_id, epoch))
    bench.world.pass_ms(99)
    assert told == []
    bench.world.pass_ms(1)
    assert told == [ErrorCode.CONCURRENT_TRANSACTIONS]


def test_a_groups_coordinator_does_not_wait(bench: Bench) -> None:
    _, (_, producer_id, epoch) = committed(bench, V2)
    assert ask(bench, (producer_id, epoch), patient=False) == [ErrorCode.CONCURRENT_TRANSACTIONS]


def test_leaders_tell_an_invalid_epoch_in_place_of_fenced(bench: Bench) -> None:
    identity = bench.started()
    bench.started()
    assert ask(bench, identity) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert ask(bench, identity, adds=False) == [ErrorCode.INVALID_PRODUCER_EPOCH]


def test_a_leader_that_does_not_reach_the_coordinator(bench: Bench) -> None:
    identity = bench.started()
    home = bench.homes.home(ID, "x")
    bench.homes.lag_ms = (10, 10)
    bench.homes.load_ms = (20, 20)
    bench.homes.crash(1)
    assert ask(bench, identity) == [ErrorCode.NETWORK_EXCEPTION]
    bench.homes.fail_over([2])
    # It does not know the new coordinator yet, which then loads its log.
    assert ask(bench, identity) == [ErrorCode.NOT_COORDINATOR]
    bench.world.pass_ms(10)
    assert ask(bench, identity) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    bench.world.pass_ms(10)
    assert home.leader == 2
    assert ask(bench, identity) == [ErrorCode.NO_ERROR]


def test_of_two_connections_that_add_the_former_may_fail(bench: Bench) -> None:
    identity = bench.started()
    bench.manners.between_ms = (5, 5)
    bench.manners.collides = 1.0
    first, second = ask(bench, identity), ask(bench, identity)
    bench.world.run_out()
    assert (first, second) == ([ErrorCode.NETWORK_EXCEPTION], [ErrorCode.NO_ERROR])


def test_a_connections_adding_that_fails_for_another_one_adds_nothing(bench: Bench) -> None:
    identity = bench.started()
    bench.manners.between_ms, bench.manners.collides = (5, 5), 1.0
    told: list[int] = []
    bench.transactions.ask(2, "x", *identity, [U0], True, True, lambda codes: told.append(codes[U0]))
    ask(bench, identity)
    bench.world.pass_ms(6)
    assert told == [ErrorCode.NETWORK_EXCEPTION]
    assert bench.state.places == {T0}


def test_a_connections_adding_may_fail_while_it_is_written() -> None:
    bench = Bench(log_ms=5)
    identity = bench.started()
    bench.manners.collides = 1.0
    first = ask(bench, identity)
    ask(bench, identity)
    bench.world.pass_ms(6)
    assert first == [ErrorCode.NETWORK_EXCEPTION]


def test_mostly_connections_that_add_do_not_disturb_each_other(bench: Bench) -> None:
    identity = bench.started()
    bench.manners.between_ms, bench.manners.collides = (5, 5), 0.0
    first, second = ask(bench, identity), ask(bench, identity)
    bench.world.pass_ms(6)
    assert (first, second) == ([ErrorCode.NO_ERROR], [ErrorCode.NO_ERROR])
    # Nor does one disturb the next.
    bench.manners.collides = 1.0
    third = ask(bench, identity)
    bench.world.pass_ms(6)
    assert third == [ErrorCode.NO_ERROR]


# Timeouts


def timed_out(bench: Bench, bumps: bool = V2) -> tuple[int, int]:
    """Opens a transaction and waits until its coordinator has aborted it; returns its identity."""
    identity = bench.started()
    assert bench.add(identity, T0, bumps=bumps) == ErrorCode.NO_ERROR
    bench.world.run_out()
    assert bench.state.name == COMPLETE_ABORT
    return identity


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_timeout_bumps_the_epoch_once(level: int) -> None:
    bench = Bench(level)
    producer_id, epoch = timed_out(bench, bumps=level == 2)
    assert (bench.state.producer_id, bench.state.epoch) == (producer_id, epoch + 1)


def test_the_timeout_runs_from_the_first_added_partition_and_nothing_extends_it(bench: Bench) -> None:
    identity = bench.started()
    bench.world.pass_ms(3000)
    assert bench.add(identity, T0) == ErrorCode.NO_ERROR
    bench.world.pass_ms(900)
    assert bench.add(identity, T1) == ErrorCode.NO_ERROR
    bench.append(T0, identity)
    bench.world.pass_ms(99)
    assert bench.state.name == ONGOING
    bench.world.pass_ms(1)
    assert bench.state.name == "PrepareAbort"


def test_each_transaction_has_its_own_time(bench: Bench) -> None:
    bench.manners.marker_ms = (1, 1)
    identity = bench.started()
    bench.add(identity, T0)
    bench.world.pass_ms(600)
    _, producer_id, epoch = bench.end(identity, COMMIT)
    bench.world.pass_ms(10)
    bench.add((producer_id, epoch), T0)
    bench.world.pass_ms(TIMEOUT_MS - 1)
    assert bench.state.name == ONGOING
    bench.world.run_out()
    assert bench.state.name == COMPLETE_ABORT


def test_an_end_by_an_older_identity_says_nothing_about_the_state_of_a_busy_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    monkeypatch.setattr(bench.world, "chance", lambda probability: probability > 0)
    producer_id, epoch = bench.started()
    bench.add((producer_id, epoch), T0)
    assert bench.end((producer_id, epoch), COMMIT)[0] == ErrorCode.NO_ERROR
    # The markers are not written yet.
    assert bench.end((producer_id, epoch), not COMMIT) == WRONG_STATE
    assert bench.end((producer_id, epoch - 1), not COMMIT) == BUSY
    assert bench.end((producer_id + 1, epoch), not COMMIT) == BUSY


def test_a_timeout_waits_for_a_change_that_is_being_written() -> None:
    bench = Bench(log_ms=50)
    bench.manners.check_ms = 0.0
    identity = bench.started()
    bench.add(identity, T0)
    bench.world.pass_ms(TIMEOUT_MS - 60)
    told: list[int] = []
    bench.transactions.add("x", *identity, [T1], True, told.append)
    bench.world.pass_ms(20)
    bench.transactions.add("x", *identity, [U0], True, told.append)
    bench.world.run_out()
    assert told == [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NO_ERROR]
    assert bench.state.name == COMPLETE_ABORT


def test_timeouts_are_looked_for_now_and_then() -> None:
    bench = Bench()
    bench.manners.check_ms = 10_000
    bench.add(bench.started(), T0)
    bench.world.pass_ms(TIMEOUT_MS + 1)
    assert bench.state.name == ONGOING
    bench.world.run_out()
    assert bench.state.name == COMPLETE_ABORT


def test_what_a_coordinator_aborts_after_the_timeout_is_not_visible(bench: Bench) -> None:
    identity = bench.started()
    bench.add(identity, T0)
    bench.append(T0, identity)
    bench.world.run_out()
    assert bench.visible(T0) == []
    assert read_committed(bench.partition(T0)).last_stable == 2


def test_a_new_coordinator_ends_transactions_too(bench: Bench) -> None:
    bench.add(bench.started(), T0)
    bench.homes.move(bench.homes.home(ID, "x"), 2)
    bench.world.run_out()
    assert bench.state.name == COMPLETE_ABORT


# Levels


def test_a_v2_request_at_level_0_wedges_the_id() -> None:
    bench = Bench(level=0)
    identity = bench.started()
    assert bench.add(identity, T0, bumps=V2) == ErrorCode.UNSUPPORTED_VERSION
    assert bench.init() == BUSY
    # Not even an upgrade and time help.
    bench.transactions.features.set(2, (0.0, 0.0))
    bench.world.run_out()
    assert bench.init() == BUSY
    assert bench.add(identity, T0) == ErrorCode.CONCURRENT_TRANSACTIONS
    bench.homes.move(bench.homes.home(ID, "x"), 1)
    bench.world.run_out()
    assert bench.add(identity, T0) == ErrorCode.NO_ERROR


def test_a_wedged_transaction_does_not_time_out() -> None:
    bench = Bench(level=0)
    identity = bench.started()
    bench.add(identity, T0, bumps=V1)
    assert bench.end(identity, COMMIT, V2)[0] == ErrorCode.UNSUPPORTED_VERSION
    bench.world.run_out()
    assert bench.state.name == ONGOING
    assert bench.end(identity, COMMIT, V1) == BUSY
    bench.homes.move(bench.homes.home(ID, "x"), 1)
    assert bench.end(identity, COMMIT, V1)[0] == ErrorCode.NO_ERROR


@pytest.mark.parametrize(
    ("level", "bumps", "code"),
    [
        (0, V2, ErrorCode.UNSUPPORTED_VERSION),
        (0, V1, ErrorCode.NO_ERROR),
        (1, V2, ErrorCode.NO_ERROR),
        (1, V1, ErrorCode.NO_ERROR),
    ],
)
def test_a_transaction_that_was_opened_before_the_level_was_lowered(
    level: int, bumps: bool, code: int
) -> None:
    bench = Bench(level=2)
    identity = bench.started()
    bench.add(identity, T0, bumps=V2)
    bench.transactions.features.set(level, (0.0, 0.0))
    bench.world.pass_ms(0)
    # Known partitions need no write.
    assert bench.add(identity, T0, bumps=V2) == ErrorCode.NO_ERROR
    assert bench.end(identity, COMMIT, bumps)[0] == code


def test_brokers_learn_a_level_one_by_one_and_keep_the_newest() -> None:
    bench = Bench(level=0)
    features = bench.transactions.features
    features.set(2, (5, 5))
    features.set(1, (1, 1))
    bench.world.pass_ms(2)
    assert [features.level_at(node) for node in (1, 2)] == [1, 1]
    # The news of level 2 come late, with an older epoch.
    bench.world.pass_ms(5)
    assert [features.level_at(node) for node in (1, 2)] == [1, 1]


# Coordinators


def test_a_write_that_the_coordinator_did_not_finish_is_durable_or_not() -> None:
    outcomes: set[str] = set()
    for seed in range(20):
        bench = Bench(log_ms=5)
        bench.world.random.seed(seed)
        identity = bench.started()
        told: list[int] = []
        bench.transactions.add("x", *identity, [T0], True, told.append)
        bench.homes.move(bench.homes.home(ID, "x"), 2)
        assert told == [ErrorCode.NOT_COORDINATOR]
        outcomes.add(bench.state.name)
    assert outcomes == {EMPTY, ONGOING}


def test_a_broker_that_crashes_answers_nothing() -> None:
    bench = Bench(log_ms=5)
    identity = bench.started()
    told: list[int] = []
    bench.transactions.add("x", *identity, [T0], True, told.append)
    bench.homes.crash(1)
    bench.world.pass_ms(100)
    assert told == []


def test_a_new_coordinator_sends_the_markers_that_are_missing(bench: Bench) -> None:
    identity, (_, producer_id, epoch) = committed(bench, V2)
    bench.append(T0, identity)
    bench.homes.crash(1)
    bench.homes.load_ms = (5000, 5000)
    bench.homes.fail_over([2])
    bench.world.pass_ms(4999)
    # The former coordinator's marker was under way.
    assert bench.visible(T0) == [0]
    assert bench.state.name == PREPARE_COMMIT
    bench.world.run_out()
    assert bench.add((producer_id, epoch), T0) == ErrorCode.NO_ERROR


def test_a_transaction_is_complete_when_the_last_marker_is_written(bench: Bench) -> None:
    bench.manners.marker_ms = (0, 1000)
    identity = bench.started()
    bench.add(identity, T0, T1, U0)
    bench.end(identity, COMMIT)
    steps = 0
    while bench.state.name == PREPARE_COMMIT:
        assert bench.world.next_ns is not None
        bench.world.move_to(bench.world.next_ns)
        bench.world.run_due()
        steps += 1
        marked = all(bench.partition(place).entries for place in (T0, T1, U0))
        assert (bench.state.name == "CompleteCommit") == marked
    assert steps >= 3


def test_a_former_coordinators_marker_that_comes_last_changes_nothing(bench: Bench) -> None:
    identity, (_, producer_id, epoch) = committed(bench, V2)
    bench.append(T0, identity)
    bench.manners.marker_ms = (10, 10)
    bench.homes.move(bench.homes.home(ID, "x"), 2)
    bench.world.pass_ms(20)
    assert bench.add((producer_id, epoch), T0) == ErrorCode.NO_ERROR
    bench.append(T0, (producer_id, epoch))
    # The former coordinator's marker arrives in the next transaction.
    bench.world.pass_ms(985)
    assert len(bench.partition(T0).entries) == 3
    assert bench.partition(T0).has_open(producer_id, epoch)


def test_readers_pass_a_marker_without_records(bench: Bench) -> None:
    bench.append(T0, (7, 0))
    partition = bench.partition(T0)
    partition.append_marker(8, 0, True, 1, 0)
    partition.append_marker(7, 0, True, 1, 0)
    partition.sync(partition.epoch, partition.end)
    assert read_committed(partition).last_stable == 3


def test_a_marker_of_a_former_coordinator_is_ignored_after_the_new_ones(bench: Bench) -> None:
    identity = bench.started()
    partition = bench.partition(T0)
    assert partition.append_marker(*identity, True, term=3, now_ns=0) is not None
    assert partition.append_marker(*identity, True, term=2, now_ns=0) is None
    assert len(partition.entries) == 1


def test_homes_have_one_coordinator_that_others_learn_of(bench: Bench) -> None:
    home = bench.homes.home(ID, "x")
    bench.homes.lag_ms, bench.homes.load_ms = (10, 10), (20, 20)
    assert [bench.homes.code(node, home) for node in (1, 2)] == [
        ErrorCode.NO_ERROR,
        ErrorCode.NOT_COORDINATOR,
    ]
    bench.homes.move(home, 2)
    assert [bench.homes.code(node, home) for node in (1, 2)] == [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ]
    assert home.views == {1: 1, 2: 1}
    bench.world.pass_ms(10)
    assert home.views == {1: 2, 2: 2}
    bench.world.pass_ms(10)
    assert bench.homes.code(2, home) == ErrorCode.NO_ERROR


# What readers see


def test_readers_see_a_transaction_after_its_commit(bench: Bench) -> None:
    identity = bench.started()
    bench.add(identity, T0)
    bench.append(T0, identity)
    assert read_committed(bench.partition(T0)) == ([], 0)
    bench.end(identity, COMMIT)
    assert bench.visible(T0) == []
    bench.world.run_out()
    assert bench.visible(T0) == [0]
    assert read_committed(bench.partition(T0)).last_stable == 2


def test_readers_never_see_an_aborted_transaction(bench: Bench) -> None:
    identity = bench.started()
    bench.add(identity, T0)
    bench.append(T0, identity)
    _, *following = bench.end(identity, ABORT)
    bench.world.run_out()
    bench.add((following[0], following[1]), T0)
    bench.append(T0, (following[0], following[1]))
    bench.end((following[0], following[1]), COMMIT)
    bench.world.run_out()
    assert bench.visible(T0) == [2]


def test_readers_stop_at_the_oldest_open_transaction(bench: Bench) -> None:
    identity = bench.started()
    bench.add(identity, T0)
    partition = bench.partition(T0)
    partition.append(Header(1, -1, -1, -1), b"", 0)
    bench.append(T0, identity)
    partition.append(Header(1, -1, -1, -1), b"", 0)
    partition.sync(partition.epoch, partition.end)
    assert bench.visible(T0) == [0]
    bench.world.run_out()
    # The coordinator has aborted it.
    assert bench.visible(T0) == [0, 2]


def test_readers_wait_for_the_replicas_of_a_marker(bench: Bench) -> None:
    identity = bench.started()
    bench.append(T0, identity)
    partition = bench.partition(T0)
    partition.append_marker(*identity, True, 1, 0)
    assert read_committed(partition) == ([], 0)
    partition.sync(partition.epoch, partition.end)
    assert bench.visible(T0) == [0]


# A leader's log


def guarded(partition: Partition, batch: Header, begins: bool = True) -> int:
    return partition.check_transactional(batch, partition.guard(batch, begins))[0]


def test_a_log_takes_a_batch_only_if_the_coordinator_has_confirmed_it(bench: Bench) -> None:
    partition, batch = bench.partition(T0), Header(1, 7, 0, 0, True)
    assert partition.check_transactional(batch, None) == (ErrorCode.INVALID_TXN_STATE, None)
    guard = partition.guard(batch, True)
    assert partition.check_transactional(batch, guard) == (ErrorCode.NO_ERROR, None)
    partition.append(batch, b"", 0)
    # The next ones belong to the open transaction.
    assert partition.check_transactional(Header(1, 7, 0, 1, True), None) == (ErrorCode.NO_ERROR, None)


def test_a_marker_meanwhile_revokes_the_confirmation(bench: Bench) -> None:
    partition, batch = bench.partition(T0), Header(1, 7, 0, 0, True)
    guard = partition.guard(batch, True)
    partition.append_marker(7, 0, False, 1, 0)
    assert partition.check_transactional(batch, guard) == (ErrorCode.INVALID_TXN_STATE, None)


def test_a_new_leader_has_no_confirmations(bench: Bench) -> None:
    partition, batch = bench.partition(T0), Header(1, 7, 0, 0, True)
    guard = partition.guard(batch, True)
    partition.elect(2, 0, 0)
    assert partition.check_transactional(batch, guard) == (ErrorCode.INVALID_TXN_STATE, None)


def test_a_late_batch_is_taken_until_the_marker_comes(bench: Bench) -> None:
    producer_id, epoch = identity = bench.started()
    bench.add(identity, T0)
    bench.append(T0, identity)
    assert bench.end(identity, COMMIT)[0] == ErrorCode.NO_ERROR
    bench.append(T0, identity, sequence=1)
    bench.world.run_out()
    assert bench.visible(T0) == [0, 1]
    late = Header(1, producer_id, epoch, 2, True)
    assert guarded(bench.partition(T0), late) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_an_epoch_begins_with_sequence_0() -> None:
    partition = Bench().partition(T0)
    assert guarded(partition, Header(1, 7, 0, 4, True)) == 45
    # Up to version 11 of Produce, where brokers had forgotten the producer.
    partition = Bench().partition(T0)
    assert guarded(partition, Header(1, 7, 0, 4, True), begins=False) == ErrorCode.NO_ERROR


def test_after_a_marker_with_a_bump_the_epoch_begins_with_sequence_0(bench: Bench) -> None:
    bench.append(T0, (7, 0))
    partition = bench.partition(T0)
    partition.append_marker(7, 1, True, 1, 0)
    assert guarded(partition, Header(1, 7, 1, 1, True)) == 45
    assert guarded(partition, Header(1, 7, 1, 0, True)) == ErrorCode.NO_ERROR


def test_after_a_marker_without_a_bump_the_sequences_go_on(bench: Bench) -> None:
    bench.append(T0, (7, 0))
    partition = bench.partition(T0)
    partition.append_marker(7, 0, True, 1, 0)
    assert guarded(partition, Header(1, 7, 0, 2, True), begins=False) == 45
    partition.guards.clear()
    assert guarded(partition, Header(1, 7, 0, 1, True), begins=False) == ErrorCode.NO_ERROR


def test_a_batch_that_is_in_the_log_is_recognised(bench: Bench) -> None:
    bench.append(T0, (7, 0))
    code, entry = bench.partition(T0).check_transactional(Header(1, 7, 0, 0, True), None)
    assert code == ErrorCode.NO_ERROR
    assert entry is not None
    assert entry.offset == 0


def test_a_marker_with_a_higher_epoch_fences(bench: Bench) -> None:
    partition = bench.partition(T0)
    partition.append_marker(7, 3, False, 1, 0)
    assert guarded(partition, Header(1, 7, 2, 0, True)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_new_leader_knows_open_transactions_and_markers_from_its_log(bench: Bench) -> None:
    bench.append(T0, (7, 0))
    bench.append(T0, (8, 0))
    partition = bench.partition(T0)
    partition.append_marker(8, 1, True, 4, 0)
    partition.append(Header(1, 9, 0, 0, True), b"", 0)
    partition.sync(partition.epoch, 3)
    assert partition.elect(2, 3, 0) == 1
    assert partition.has_open(7, 0)
    assert not partition.has_open(8, 0)
    assert not partition.has_open(9, 0)
    assert partition.append_marker(8, 1, True, 3, 0) is None


def test_open_producers_are_not_forgotten(bench: Bench) -> None:
    bench.append(T0, (7, 0))
    bench.append(T1, (8, 0))
    bench.partition(T1).append_marker(8, 0, True, 1, 0)
    bench.cluster.expire_producers(bench.world.now_ns + 1)
    assert list(bench.partition(T0).producers) == [7]
    assert list(bench.partition(T1).producers) == []


# Offsets


def test_offsets_are_pending_until_the_marker(bench: Bench) -> None:
    identity = bench.started()
    assert bench.commit_offsets(identity) == ErrorCode.NO_ERROR
    assert bench.committed() is None
    bench.end(identity, COMMIT)
    assert bench.committed() is None
    bench.world.run_out()
    assert bench.committed() == 5


def test_aborted_offsets_are_dropped(bench: Bench) -> None:
    identity = bench.started()
    bench.commit_offsets(identity)
    bench.end(identity, ABORT)
    bench.world.run_out()
    assert bench.committed() is None


def test_version_5_adds_the_group_and_version_4_wants_it_added(bench: Bench) -> None:
    identity = bench.started()
    assert bench.commit_offsets(identity, version=4) == ErrorCode.TRANSACTION_ABORTABLE
    assert bench.commit_offsets(identity, version=3) == ErrorCode.INVALID_TXN_STATE
    place = bench.offsets.group("g").place
    assert bench.add(identity, place, bumps=V1) == ErrorCode.NO_ERROR
    assert bench.commit_offsets(identity, version=3) == ErrorCode.NO_ERROR


def test_offsets_of_a_busy_id_are_concurrent_at_once(bench: Bench) -> None:
    _, (_, producer_id, epoch) = committed(bench, V2)
    assert bench.commit_offsets((producer_id, epoch)) == ErrorCode.CONCURRENT_TRANSACTIONS
    # Up to version 4 brokers retry it as any coordinator that is not available.
    assert bench.commit_offsets((producer_id, epoch), version=4) == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_offsets_of_a_fenced_producer_have_an_invalid_epoch(bench: Bench) -> None:
    identity = bench.started()
    bench.started()
    assert bench.commit_offsets(identity) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert bench.commit_offsets(identity, version=4) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_offsets_of_an_older_epoch_are_not_taken_after_the_marker(bench: Bench) -> None:
    identity = bench.started()
    bench.commit_offsets(identity)
    bench.end(identity, COMMIT)
    # The marker has not come yet.
    assert bench.commit_offsets(identity, offset=6) == ErrorCode.NO_ERROR
    bench.world.run_out()
    assert bench.committed() == 6
    assert bench.commit_offsets(identity, offset=7) == ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize(
    ("generation", "member", "instance", "code"),
    [
        (3, "m", None, ErrorCode.NO_ERROR),
        (3, "s", "i", ErrorCode.NO_ERROR),
        (2, "m", None, ErrorCode.ILLEGAL_GENERATION),
        (4, "m", None, ErrorCode.ILLEGAL_GENERATION),
        (3, "n", None, ErrorCode.UNKNOWN_MEMBER_ID),
        (3, "former", "i", ErrorCode.FENCED_INSTANCE_ID),
        # A bare group id is accepted beside live members.
        (-1, "", None, ErrorCode.NO_ERROR),
        (-1, "m", None, ErrorCode.ILLEGAL_GENERATION),
        (3, "", None, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_members(bench: Bench, generation: int, member: str, instance: str | None, code: int) -> None:
    bench.offsets.group("g").members = {"m": Member(3), "s": Member(3, "i")}
    identity = bench.started()
    told = bench.commit_offsets(identity, generation=generation, member=member, instance=instance)
    assert told == code
    # What is refused has added the group all the same.
    assert bench.state.places == {bench.offsets.group("g").place}


def test_a_groups_coordinator_answers_only_for_its_groups(bench: Bench) -> None:
    identity = bench.started()
    home = bench.homes.home(GROUP, "g")
    bench.homes.load_ms = (20, 20)
    bench.homes.move(home, 2)
    assert bench.commit_offsets(identity) == ErrorCode.NOT_COORDINATOR
    bench.homes.move(home, 1)
    assert bench.commit_offsets(identity) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    bench.world.pass_ms(20)
    assert bench.commit_offsets(identity) == ErrorCode.NO_ERROR
    assert bench.homes.home(ID, "x").leader == 1


def test_pending_offsets_survive_their_coordinator(bench: Bench) -> None:
    identity = bench.started()
    bench.commit_offsets(identity)
    bench.homes.load_ms = (3000, 3000)
    bench.homes.move(bench.homes.home(GROUP, "g"), 2)
    bench.end(identity, COMMIT)
    bench.world.run_out()
    assert bench.committed() == 5


def test_a_marker_waits_until_the_groups_coordinator_has_loaded_its_log(bench: Bench) -> None:
    identity = bench.started()
    bench.commit_offsets(identity)
    bench.homes.load_ms = (3000, 3000)
    bench.homes.move(bench.homes.home(GROUP, "g"), 2)
    bench.end(identity, COMMIT)
    bench.world.pass_ms(2999)
    assert bench.committed() is None
    bench.world.run_out()
    assert bench.committed() == 5


def test_a_marker_is_sent_again_if_the_groups_coordinator_crashes_while_it_writes_it() -> None:
    former: set[int | None] = set()
    for seed in range(20):
        bench = Bench(log_ms=5)
        bench.world.random.seed(seed)
        # Another broker than that of the id.
        bench.homes.home(GROUP, "g").leader = 2
        identity = bench.started()
        told: list[int] = []
        request = TxnOffsetCommit("x", "g", *identity, -1, "", None, {T0: Offset(5, -1, None)})
        bench.offsets.commit(2, 5, request, told.append)
        bench.world.run_until(told)
        bench.end(identity, COMMIT)
        bench.world.pass_ms(1003)
        assert bench.committed() is None
        bench.homes.crash(2)
        former.add(bench.committed())
        bench.world.pass_ms(5000)
        assert bench.state.name == PREPARE_COMMIT
        bench.homes.fail_over([1])
        bench.world.run_out()
        assert bench.state.name == "CompleteCommit"
        assert bench.committed() == 5
    # The marker that nobody has answered may have been written.
    assert former == {None, 5}


def test_a_former_coordinators_marker_commits_no_offsets_of_the_next_transaction(bench: Bench) -> None:
    place = bench.offsets.group("g").place
    told: list[int] = []
    bench.offsets.mark(place, 7, 1, True, 3, told.append)
    bench.offsets.group("g").pending[7] = {T0: Offset(5, -1, None)}
    bench.offsets.mark(place, 7, 1, True, 2, told.append)
    assert bench.committed() is None
    bench.offsets.mark(place, 7, 1, True, 3, told.append)
    assert bench.committed() == 5
    assert told == [ErrorCode.NO_ERROR] * 3


def test_offsets_that_a_marker_overtakes_are_refused(bench: Bench) -> None:
    producer_id, epoch = identity = bench.started()
    bench.manners.between_ms = (5, 5)
    place = bench.offsets.group("g").place
    for marker_epoch, code in (
        (epoch, ErrorCode.INVALID_TXN_STATE),
        (epoch + 1, ErrorCode.INVALID_PRODUCER_EPOCH),
    ):
        told: list[int] = []
        request = TxnOffsetCommit("x", "g", *identity, -1, "", None, {T0: Offset(5, -1, None)})
        bench.offsets.commit(1, 5, request, told.append)
        bench.world.pass_ms(1)
        bench.offsets.mark(place, producer_id, marker_epoch, False, 1, lambda code: None)
        bench.world.pass_ms(9)
        assert told == [code]
    assert bench.offsets.group("g").pending == {}
