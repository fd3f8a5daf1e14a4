"""Tests transactions on three nodes, at each level of ``transaction.version``: what
readers of committed records see, and that nothing is left open, whatever happened before.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import statistics
import time

import pytest
from confluent_kafka import Consumer, TopicPartition

from cyproducer import KafkaProducer, errors
from cyproducer.control.transaction_machine import LEVEL_AGE_MS
from tests.integration.transaction_rig import SETTLING_S, TransactionRig, await_assignment, member
from tests.programs import Program
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.transactions import LEVELS, Transactions
from tools.harness.until import looks

pytestmark = pytest.mark.either_broker(slow=True)

PARTITIONS = 2
SHORT_TIMEOUT_MS = 1_000
NOT_COMMITTED = [-1001, -1001]
"""The offsets of a group that has none."""
FORMER_MEMBER = (errors.UnknownMemberIdError, errors.IllegalGenerationError)
"""What a group says to a member that has lost its partitions."""


@pytest.fixture(scope="module", params=LEVELS, ids="level{}".format)
def level(request: pytest.FixtureRequest, transactional_kafka: KafkaCluster) -> int:
    """The level of ``transaction.version``: 2 is the protocol's second version, 1 and 0 are the first."""
    Transactions(transactional_kafka).set_level(request.param)
    return int(request.param)


def values(name: str, count: int) -> list[bytes]:
    return [b"%s %d" % (name.encode(), number) for number in range(count)]


def send(producer: KafkaProducer, topic: str, what: list[bytes], partition: int) -> None:
    for value in what:
        producer.send(topic, value, partition=partition)


def test_committed_records_are_seen_and_aborted_ones_are_not(rig: TransactionRig, level: int) -> None:
    topic = rig.topic()
    with rig.ready() as producer:
        for name, commit in (("first", True), ("second", False), ("third", True)):
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                send(producer, topic, values(name, 10), partition)
            if commit:
                producer.commit_transaction()
            else:
                # Otherwise abort drops them.
                producer.flush()
                producer.abort_transaction()

    assert rig.committed(topic, 40) == [values("first", 10) + values("third", 10)] * PARTITIONS
    written = values("first", 10) + values("second", 10) + values("third", 10)
    assert rig.read(topic, 60, "read_uncommitted") == [written] * PARTITIONS


def test_nothing_is_seen_before_the_commit(rig: TransactionRig, level: int) -> None:
    topic = rig.topic()
    with rig.ready() as producer, producer.transaction():
        send(producer, topic, values("early", 10), 0)
        producer.flush()
        assert rig.read(topic) == [[], []]
        assert rig.read(topic, 10, "read_uncommitted") == [values("early", 10), []]

    assert rig.committed(topic, 10) == [values("early", 10), []]


def test_what_the_program_raises_in_a_transaction_aborts_it(rig: TransactionRig, level: int) -> None:
    topic = rig.topic()
    with rig.ready() as producer:
        with contextlib.suppress(ZeroDivisionError), producer.transaction():
            send(producer, topic, values("aborted", 10), 0)
            producer.flush()
            raise ZeroDivisionError
        with producer.transaction():
            send(producer, topic, values("committed", 10), 0)

    assert rig.committed(topic, 10) == [values("committed", 10), []]


def test_offsets_are_committed_with_the_transaction_only(rig: TransactionRig, level: int) -> None:
    source, topic, group = rig.topic("source"), rig.topic(), rig.id("group")
    with rig.ready() as producer:
        with producer.transaction():
            for partition in range(PARTITIONS):
                send(producer, source, values("source", 10), partition)
        consumer = member(rig.cluster.bootstrap_servers, group, source)
        try:
            taken = take(consumer, 20)
            assert len(taken) == 20
            producer.begin_transaction()
            send(producer, topic, taken, 0)
            producer.send_offsets_to_transaction(ten_each(source), consumer.consumer_group_metadata())
            producer.flush()
            producer.abort_transaction()
            assert rig.offsets(group, source) == NOT_COMMITTED

            producer.begin_transaction()
            send(producer, topic, taken, 0)
            producer.send_offsets_to_transaction(ten_each(source), consumer.consumer_group_metadata())
            producer.commit_transaction()
            assert rig.offsets(group, source) == [10, 10]
        finally:
            consumer.close()

    assert rig.committed(topic, 20) == [taken, []]


def test_a_transaction_of_offsets_alone(rig: TransactionRig, level: int) -> None:
    source, group = rig.topic("source"), rig.id("group")
    with rig.ready() as producer:
        with producer.transaction():
            send(producer, source, values("source", 10), 0)
        consumer = member(rig.cluster.bootstrap_servers, group, source)
        try:
            take(consumer, 10)
            with producer.transaction():
                producer.send_offsets_to_transaction(ten_each(source), consumer.consumer_group_metadata())
        finally:
            consumer.close()

    assert rig.offsets(group, source) == [10, 10]


def take(consumer: Consumer, count: int) -> list[bytes]:
    """Returns the next values that a consumer gets."""
    found: list[bytes] = []
    while len(found) < count and (messages := consumer.consume(count - len(found), 30)):
        found += [message.value() or b"" for message in messages if message.error() is None]
    return found


def ten_each(topic: str) -> list[TopicPartition]:
    """The offsets behind the first ten records of each partition; a position may be behind a marker."""
    return [TopicPartition(topic, partition, 10) for partition in range(PARTITIONS)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "protocol",
    ["classic", pytest.param("consumer", marks=pytest.mark.kafka_only("it has no groups of KIP-848"))],
)
def test_offsets_of_a_zombie_member_are_refused(rig: TransactionRig, level: int, protocol: str) -> None:
    source, group = rig.topic("source"), rig.id("group")
    servers = rig.cluster.bootstrap_servers
    with rig.ready() as producer:
        with producer.transaction():
            for partition in range(PARTITIONS):
                send(producer, source, values("source", 10), partition)
        zombie = member(servers, group, source, protocol)
        await_assignment(zombie, partitions=PARTITIONS)
        alone = zombie.consumer_group_metadata()
        other = member(servers, group, source, protocol)
        await_assignment(zombie, other, partitions=PARTITIONS)
        # The member is known, its generation is over.
        refuse(producer, ten_each(source), alone)
        shared = zombie.consumer_group_metadata()
        zombie.close()
        # The member is unknown.
        refuse(producer, ten_each(source), shared)
        assert rig.offsets(group, source) == NOT_COMMITTED

        await_assignment(other, partitions=PARTITIONS)
        with producer.transaction():
            producer.send_offsets_to_transaction(ten_each(source), other.consumer_group_metadata())
        other.close()

    assert rig.offsets(group, source) == [10, 10]


def refuse(producer: KafkaProducer, offsets: list[TopicPartition], metadata: object) -> None:
    """Checks that a transaction with these offsets fails, and aborts it."""
    producer.begin_transaction()
    with pytest.raises(errors.AbortableError) as raised:
        producer.send_offsets_to_transaction(offsets, metadata)
    assert isinstance(raised.value.__cause__, FORMER_MEMBER), raised.value.__cause__
    with pytest.raises(errors.AbortableError):
        producer.commit_transaction()
    producer.abort_transaction()


@pytest.mark.parametrize("when", ["idle", "open", "buffered"])
def test_a_second_producer_with_the_same_id_fences_the_first(
    rig: TransactionRig, level: int, when: str
) -> None:
    topic = rig.topic()
    with rig.ready() as first, rig.producer() as second:
        with first.transaction():
            send(first, topic, values("before", 5), 0)
        if when != "idle":
            first.begin_transaction()
            send(first, topic, values("zombie", 5), 0)
            if when == "open":
                first.flush()
        second.init_transactions()
        if when == "idle":
            first.begin_transaction()
        # What was buffered may have been sent meanwhile, and have met the new epoch: its Produce makes an
        # abortable error, its AddPartitionsToTxn a fatal one.
        with contextlib.suppress(errors.TransactionFailedError, errors.ProducerFencedError):
            send(first, topic, values("zombie", 5), 1)
        with pytest.raises(errors.KafkaError):
            first.commit_transaction()
        with second.transaction():
            send(second, topic, values("after", 5), 0)
        with pytest.raises(errors.ProducerFencedError):
            first.abort_transaction()
        with pytest.raises(errors.KafkaError):
            first.begin_transaction()
        with second.transaction():
            send(second, topic, values("last", 5), 1)

    assert rig.committed(topic, 15) == [values("before", 5) + values("after", 5), values("last", 5)]


ZOMBIE = """
import signal
import sys

# Before there are other threads, which inherit it.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})

from cyproducer import KafkaProducer, errors
from cyproducer.control.transaction_machine import LEVEL_AGE_MS

servers, transactional_id, timeout_ms, topic = sys.argv[1:]
producer = KafkaProducer(
    bootstrap_servers=servers,
    transactional_id=transactional_id,
    transaction_timeout_ms=int(timeout_ms),
    linger_ms=60_000,
)
producer.init_transactions()
producer.begin_transaction()
for number in range(5):
    producer.send(topic, b"zombie", partition=0)
producer.flush()
for number in range(5):
    producer.send(topic, b"buffered zombie", partition=0)
print("open", flush=True)
signal.sigwait({signal.SIGUSR1})


def outcome(call):
    try:
        call()
    except errors.KafkaError as error:
        return type(error).__name__
    return "succeeded"


def send_more():
    for partition in (0, 1):
        producer.send(topic, b"woken zombie", partition=partition)
    producer.flush()


for call in (send_more, producer.commit_transaction, producer.abort_transaction, producer.close):
    print(call.__name__, outcome(call), flush=True)
"""


@pytest.mark.slow
def test_a_zombie_writes_nothing_that_readers_see(rig: TransactionRig, level: int) -> None:
    topic = rig.topic()
    arguments = (rig.cluster.bootstrap_servers, rig.id(), str(SHORT_TIMEOUT_MS), topic)
    with Program(ZOMBIE, *arguments) as zombie:
        zombie.hear("open")
        os.kill(zombie.pid, signal.SIGSTOP)
        rig.transactions.await_state(rig.id(), "CompleteAbort")
        with rig.ready() as successor:
            with successor.transaction():
                send(successor, topic, values("successor", 5), 0)
            successor.begin_transaction()
            send(successor, topic, values("open", 5), 1)
            successor.flush()

            os.kill(zombie.pid, signal.SIGUSR1)
            os.kill(zombie.pid, signal.SIGCONT)
            assert zombie.hear("commit_transaction") != "succeeded", zombie.said
            assert zombie.hear("abort_transaction") == "ProducerFencedError", zombie.said
            zombie.hear("close")
            assert zombie.end() == 0, zombie.said
            successor.commit_transaction()

    assert rig.committed(topic, 10) == [values("successor", 5), values("open", 5)]
    # What it wrote before its pause was aborted, and it wrote nothing after it.
    assert rig.read(topic, 15, "read_uncommitted")[0] == [b"zombie"] * 5 + values("successor", 5)


@pytest.mark.slow
def test_a_broker_aborts_a_transaction_after_its_timeout(rig: TransactionRig, level: int) -> None:
    topic = rig.topic()
    with rig.ready(transaction_timeout_ms=SHORT_TIMEOUT_MS) as producer:
        producer.begin_transaction()
        # Until a partition is added, no time runs.
        time.sleep(1.5 * SHORT_TIMEOUT_MS / 1_000)
        send(producer, topic, values("in time", 5), 0)
        producer.commit_transaction()

        producer.begin_transaction()
        send(producer, topic, values("late", 5), 0)
        producer.flush()
        for _ in looks(SETTLING_S, 0.01):
            if rig.transactions.describe(rig.id()).state == "CompleteAbort":
                break
            # More records do not extend it.
            with contextlib.suppress(errors.AbortableError):
                producer.send(topic, b"busy", partition=0)
        else:
            raise AssertionError("the broker does not abort a busy transaction")
        with contextlib.suppress(errors.AbortableError):
            send(producer, topic, values("too late", 5), 0)
        with pytest.raises(errors.KafkaError):
            producer.commit_transaction()
        if level == 2:
            producer.abort_transaction()
            with producer.transaction():
                send(producer, topic, values("next", 5), 0)
        else:
            with pytest.raises(errors.ProducerFencedError):
                producer.abort_transaction()
    with rig.ready() as successor, successor.transaction():
        send(successor, topic, values("successor", 5), 0)

    next_ones = values("next", 5) if level == 2 else []
    expected = values("in time", 5) + next_ones + values("successor", 5)
    assert rig.committed(topic, len(expected)) == [expected, []]


@pytest.mark.slow
@pytest.mark.parametrize("its_level", [2, 0])
def test_a_thousand_transactions_in_a_row(kafka: KafkaCluster, its_level: int) -> None:
    took_s = []
    with TransactionRig(kafka, f"row-{its_level}") as rig:
        rig.transactions.set_level(its_level)
        topic = rig.topic()
        with rig.ready() as producer:
            for value in values("row", 1_000):
                began = time.perf_counter()
                producer.begin_transaction()
                producer.send(topic, value, partition=0)
                producer.commit_transaction()
                took_s.append(time.perf_counter() - began)

        assert rig.committed(topic, 1_000) == [values("row", 1_000), []]
        rig.transactions.set_level(2)
    # No wait for retry_backoff_ms, or for a tenth of a second, in more than a few.
    assert statistics.quantiles(took_s, n=20)[-1] < 0.1


def test_one_record_of_a_thousand_is_refused(rig: TransactionRig, level: int) -> None:
    topic = rig.topic(configs={"max.message.bytes": "20000"})
    with rig.ready() as producer:
        producer.begin_transaction()
        for number, value in enumerate(values("refused", 1_000)):
            # Its future, like all others, is dropped.
            producer.send(topic, bytes(50_000) if number == 500 else value, partition=number % PARTITIONS)
        with pytest.raises(errors.AbortableError) as raised:
            producer.commit_transaction()
        assert isinstance(raised.value.__cause__, errors.MessageSizeTooLargeError)
        producer.abort_transaction()
        assert rig.committed(topic) == [[], []]
        with producer.transaction():
            send(producer, topic, values("next", 10), 0)

    assert rig.committed(topic, 10) == [values("next", 10), []]


def test_a_record_that_the_producer_refuses_fails_the_transaction(rig: TransactionRig, level: int) -> None:
    topic = rig.topic()
    with rig.ready(max_request_size=20_000) as producer:
        producer.begin_transaction()
        send(producer, topic, values("refused", 10), 0)
        # It goes to no broker.
        producer.send(topic, bytes(50_000), partition=1)
        with pytest.raises(errors.AbortableError) as raised:
            producer.commit_transaction()
        assert isinstance(raised.value.__cause__, errors.RecordTooLargeError)
        producer.abort_transaction()
        with producer.transaction():
            send(producer, topic, values("next", 10), 0)

    assert rig.committed(topic, 10) == [values("next", 10), []]


@pytest.mark.parametrize("refused", ["too-large", "without-key"])
def test_transactions_after_a_refused_batch_are_whole(rig: TransactionRig, level: int, refused: str) -> None:
    too_large = refused == "too-large"
    # A compacted topic refuses records without a key.
    configs = {"max.message.bytes": "20000"} if too_large else {"cleanup.policy": "compact"}
    topic = rig.topic(configs=configs)
    expected: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    with rig.ready(batch_size=500) as producer:
        for turn in range(10):
            producer.begin_transaction()
            for number, value in enumerate(values(f"aborted {turn}", 60)):
                bad = number == 30
                key = None if bad and not too_large else b"key %d" % number
                content = bytes(50_000) if bad and too_large else value
                producer.send(topic, content, key=key, partition=number % PARTITIONS)
            # The abort meets batches that are buffered, in flight, or refused.
            if turn % 3 == 0:
                producer.flush()
            elif turn % 3 == 1:
                with pytest.raises(errors.KafkaError):
                    producer.commit_transaction()
            producer.abort_transaction()

            with producer.transaction():
                for number, value in enumerate(values(f"committed {turn}", 60)):
                    producer.send(topic, value, key=b"key", partition=number % PARTITIONS)
                    expected[number % PARTITIONS].append(value)

    assert rig.committed(topic, 600) == expected


def change_level(rig: TransactionRig, level: int, *, at_once: bool = False) -> None:
    """Changes the level, and waits until producers no longer rely on the one that they know.

    ``at_once``: do not wait, but for level 0: there a request of the second protocol makes its transactional
    id unusable.
    """
    rig.transactions.set_level(level)
    if level == 0 or not at_once:
        time.sleep(1.1 * LEVEL_AGE_MS / 1_000)


@pytest.mark.slow
def test_the_level_changes_between_transactions(rig: TransactionRig) -> None:
    topic = rig.topic()
    rig.transactions.set_level(2)
    expected = []
    with rig.ready() as producer:
        # Each change, in both directions, and two transactions at each level.
        for turn, new in enumerate((1, 2, 0, 1, 0, 2)):
            for half in range(2):
                name = f"turn {turn} {half}"
                with producer.transaction():
                    for partition in range(PARTITIONS):
                        send(producer, topic, values(name, 5), partition)
                expected += values(name, 5)
            change_level(rig, new)
        producer.begin_transaction()
        send(producer, topic, values("aborted", 5), 0)
        producer.flush()
        producer.abort_transaction()
        with producer.transaction():
            for partition in range(PARTITIONS):
                send(producer, topic, values("last", 5), partition)
        expected += values("last", 5)

    assert rig.committed(topic, 2 * len(expected)) == [expected] * PARTITIONS


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(LEVELS, 2)))
def test_the_level_changes_in_mid_transaction(rig: TransactionRig, before: int, after: int) -> None:
    topic = rig.topic(partitions=3)
    # A new partition would need a request that level 0 refuses: see the next test.
    lowered = before == 2 and after == 0
    rig.transactions.set_level(before)
    with rig.ready() as producer:
        with producer.transaction():
            send(producer, topic, values("first", 5), 0)
        for commit in (True, False):
            producer.begin_transaction()
            for partition in (0, 1):
                send(producer, topic, values(f"early {commit}", 5), partition)
            producer.flush()
            change_level(rig, after, at_once=not commit)
            # Batches for a partition that is in the transaction, and for another.
            for partition in (1,) if lowered else (1, 2):
                send(producer, topic, values(f"late {commit}", 5), partition)
            if commit:
                producer.commit_transaction()
            else:
                producer.flush()
                producer.abort_transaction()
            change_level(rig, before, at_once=True)
        with producer.transaction():
            for partition in range(3):
                send(producer, topic, values("next", 5), partition)

    early, late, next_ones = values("early True", 5), values("late True", 5), values("next", 5)
    expected = [
        values("first", 5) + early + next_ones,
        early + late + next_ones,
        next_ones if lowered else late + next_ones,
    ]
    assert rig.committed(topic, sum(map(len, expected))) == expected


@pytest.mark.slow
def test_after_the_level_was_raised_a_transaction_does_not_become_a_part_of_the_last_one(
    rig: TransactionRig,
) -> None:
    count = 10
    topic = rig.topic(partitions=count)
    rig.transactions.set_level(1)
    producers = [rig.ready(str(number)) for number in range(count)]
    try:
        for partition, producer in enumerate(producers):
            producer.begin_transaction()
            producer.send(topic, b"committed", partition=partition)
            producer.flush()
        change_level(rig, 2)
        for partition, producer in enumerate(producers):
            producer.commit_transaction()
            producer.begin_transaction()
            # At once, before the markers of the commit.
            producer.send(topic, b"aborted", partition=partition)
            producer.flush()
            producer.abort_transaction()
    finally:
        for producer in producers:
            producer.close()

    assert rig.committed(topic, count) == [[b"committed"]] * count


@pytest.mark.slow
def test_an_id_used_while_the_level_is_lowered_to_0_works_after_its_coordinators_restart(
    rig: TransactionRig,
) -> None:
    topic = rig.topic()
    rig.transactions.set_level(2)
    with rig.ready(transaction_timeout_ms=5_000) as producer:
        producer.begin_transaction()
        send(producer, topic, values("early", 5), 0)
        producer.flush()
        change_level(rig, 0)
        send(producer, topic, values("late", 5), 1)
        with pytest.raises(errors.UnsupportedVersionError):
            producer.commit_transaction()
    coordinator = rig.transactions.coordinator(rig.id())
    rig.cluster.kill(coordinator)
    rig.cluster.restart(coordinator)
    with rig.ready() as successor, successor.transaction():
        send(successor, topic, values("next", 5), 0)

    assert rig.committed(topic, 5) == [values("next", 5), []]


@pytest.mark.parametrize("its_level", [2, 0])
def test_the_coordinator_dies_while_transactions_are_open(rig: TransactionRig, its_level: int) -> None:
    rig.transactions.set_level(its_level)
    topic = rig.topic(partitions=6)
    names = [f"open {number}" for number in range(6)]
    producers = {name: rig.ready(name) for name in names}
    try:
        for partition, (name, producer) in enumerate(producers.items()):
            producer.begin_transaction()
            send(producer, topic, values(name, 5), partition)
            producer.flush()
        taken_over = names[0]
        victim = rig.transactions.coordinator(rig.id(taken_over))
        rig.cluster.kill(victim)
        # One is taken over by a producer that starts meanwhile. The others are committed.
        producers[taken_over].close()
        successor = producers[taken_over] = rig.producer(taken_over)
        successor.init_transactions()
        successor.begin_transaction()
        send(successor, topic, values("successor", 5), 0)
        for producer in producers.values():
            producer.commit_transaction()
    finally:
        for producer in producers.values():
            producer.close()
        for node in rig.cluster.node_ids:
            if rig.cluster.pid(node) is None:
                rig.cluster.restart(node)

    expected = [values("successor", 5), *(values(name, 5) for name in names[1:])]
    assert rig.committed(topic, 30) == expected
