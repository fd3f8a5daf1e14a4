"""What the accumulator and the sender know of transactions: what is accepted, what may be sent, what is left.

Stepped by hand with a ``Rig``. The decisions about the transaction are those of the test.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from cyproducer import errors
from cyproducer.control.transaction_calls import Event, State
from cyproducer.errors import told
from tests.accumulator.small_topic import assert_nothing_left
from tests.control.coordinator_play import PRODUCER, Play
from tests.scripted.compressors import SlowCompressor
from tests.scripted.sender_steps import grant
from tools.harness.rig import Rig, Seen
from tools.harness.until import PATIENCE_S, Running, until_blocked

TOO_LARGE, NOT_ENOUGH_REPLICAS, UNAUTHORIZED = 10, 19, 29
OUT_OF_ORDER, CONCURRENT, INVALID = 45, 51, 87
FIRST_HIGHEST, NO_CAP = 11, 32767
ENDED = errors.IllegalStateError("no transaction is open")
GIVEN_UP = errors.TransactionAbortedError("given up")


class TransactionRig(Rig):
    """A rig with a transactional id, and an identity that ``end`` bumps."""

    epoch = 0
    play: Play
    """Has the machine that decides, in some tests."""

    def begin(self, *, first: bool = False) -> None:
        self.sender.set_identity(PRODUCER, self.epoch)
        self.fates.idempotence.start_over()
        self.sender.reopen_partitions()
        self.sender.begin_transaction()
        self.first = first

    def open(self) -> None:
        self.sender.open_transaction(self.first, FIRST_HIGHEST if self.first else NO_CAP)

    def end(self) -> None:
        self.sender.refuse_records(ENDED)
        self.epoch += not self.first

    def next(self) -> None:
        """Ends the transaction, and opens one of the same protocol."""
        self.end()
        self.begin(first=self.first)
        self.open()


def rigged(*leaders: int, begin: bool = True, first: bool = False, **options: object) -> TransactionRig:
    options = {"batch_size": 0, **options}
    rig = TransactionRig({"t": list(leaders or (1, 1, 1))}, transactional_id="tx", **options)  # type: ignore[arg-type]
    if begin:
        rig.begin(first=first)
        rig.open()
    return rig


@pytest.fixture
def rig() -> Iterator[TransactionRig]:
    """One record per batch, three partitions on broker 1, in a transaction of the second protocol."""
    with rigged() as made:
        yield made


@pytest.fixture
def first() -> Iterator[TransactionRig]:
    """The same with the first protocol."""
    with rigged(first=True) as made:
        yield made


def places(found: list[Seen]) -> list[tuple[str, int]]:
    return [place for seen in found for place in seen.places]


def sequences(found: list[Seen]) -> list[tuple[int, int]]:
    """Epoch and base sequence of each batch."""
    return [(batch.producer_epoch, batch.base_sequence) for seen in found for batch in seen.batches.values()]


# Which records are accepted


def test_records_are_accepted_between_begin_and_the_end_only() -> None:
    with rigged(begin=False) as rig:
        for _ in range(2):
            with pytest.raises(errors.IllegalStateError):
                rig.send("t", b"v", partition=0)
            rig.begin()
            rig.send("t", b"v", partition=0)
            rig.end()
        with pytest.raises(errors.IllegalStateError, match="no transaction is open") as caught:
            rig.send("t", b"v", partition=0)
        assert caught.value is not ENDED, "a copy: it gets a traceback"
        rig.open()
        rig.answer_all()
        assert len(rig.values("t")) == 2
        assert_nothing_left(rig)


@pytest.mark.parametrize("topic", ["t", "unknown"])
@pytest.mark.parametrize("way", ["send", "send_many"])
def test_every_way_to_send_is_refused_without_a_transaction(topic: str, way: str) -> None:
    with rigged(begin=False) as rig:
        rig.begin()
        rig.end()
        send: Any = rig.path.send if way == "send" else rig.path.send_many
        with pytest.raises(errors.IllegalStateError, match="no transaction is open"):
            send(topic, b"v" if way == "send" else [b"v"] * 100)
        assert_nothing_left(rig)
        assert rig.accumulator.parked_records == 0


def test_a_record_is_refused_although_the_buffer_is_full() -> None:
    with rigged(buffer_memory=4096, max_block_ms=0) as rig:
        with suppress(errors.BufferExhaustedError):
            while True:
                rig.send("t", bytes(500), partition=0)
        rig.end()
        with pytest.raises(errors.IllegalStateError, match="no transaction is open"):
            rig.send("t", bytes(500), partition=0)


def test_a_refusal_that_is_gone_says_that_no_transaction_was_open() -> None:
    """Another thread begins one after this record was refused, and before its error is made."""
    with rigged(begin=False) as rig:
        rig.begin()
        error = rig.accumulator.why_refused("closed")
        assert type(error) is errors.IllegalStateError
        assert "no transaction was open" in str(error)
        rig.accumulator.close()
        assert rig.accumulator.why_refused("closed") == errors.ProducerClosedError("closed")


@pytest.mark.parametrize("then", [TransactionRig.begin, TransactionRig.end])
def test_a_closed_producer_says_so_although_a_transaction_begins_or_ends(
    rig: TransactionRig, then: Callable[[TransactionRig], None]
) -> None:
    rig.accumulator.close()
    then(rig)
    with pytest.raises(errors.ProducerClosedError):
        rig.send("t", b"v")


def test_a_thread_that_waits_to_park_a_record_gives_up_when_the_transaction_ends() -> None:
    with rigged(buffer_memory=65536) as rig:

        def send() -> None:
            while True:
                rig.send("unknown", bytes(1000))

        sending = Running(send)
        until_blocked(sending.thread)
        rig.end()
        with pytest.raises(errors.IllegalStateError):
            sending.outcome()


# The first protocol: partitions are added before they are written to


def test_a_partition_is_not_written_to_before_it_was_added(first: TransactionRig) -> None:
    for partition in (2, 0):
        first.send("t", b"v", partition=partition)
        first.send("t", b"w", partition=partition)
    assert first.requests() == []
    assert sorted(first.sender.take_joining()) == [("t", 0), ("t", 2)]
    assert first.sender.take_joining() == [], "once"
    assert first.requests() == []
    assert not first.sender.has_written()
    first.sender.partitions_added([("t", 2)])
    assert set(places(first.requests())) == {("t", 2)}
    assert first.sender.has_written()
    first.sender.partitions_added([("t", 0)])
    assert set(places(first.requests())) == {("t", 0)}
    first.answer_all()
    assert_nothing_left(first)


def test_a_partition_is_added_once_per_transaction(first: TransactionRig) -> None:
    for number in range(3):
        first.send("t", b"v", partition=1)
        assert first.sender.take_joining() == [("t", 1)], number
        first.send("t", b"w", partition=1)
        assert first.sender.take_joining() == []
        first.sender.partitions_added([("t", 1)])
        first.send("t", b"x", partition=1)
        first.answer_all()
        assert first.sender.take_joining() == []
        first.next()
    assert len(first.values("t", 1)) == 9


def test_what_was_added_to_the_last_transaction_says_nothing_about_this_one(first: TransactionRig) -> None:
    first.send("t", b"v", partition=1)
    first.sender.take_joining()
    first.sender.partitions_added([("t", 1)])
    first.answer_all()
    first.next()
    first.send("t", b"w", partition=1)
    assert first.requests() == []
    first.sender.partitions_added([("t", 1)])
    assert places(first.requests()) == [("t", 1)]


def test_a_partition_without_a_leader_waits_for_one_before_it_is_added() -> None:
    with rigged(-1, first=True) as rig:
        rig.send("t", b"v", partition=0)
        assert rig.sender.take_joining() == []
        rig.sender.apply_topic("t", b"", [1])
        rig.sender.apply_topic("t", b"", [-1])
        assert rig.sender.take_joining() == [], "it has lost it again"
        rig.sender.apply_topic("t", b"", [2])
        assert rig.sender.take_joining() == [("t", 0)]
        rig.sender.partitions_added([("t", 0)])
        assert [seen.node for seen in rig.requests()] == [2]


def test_a_partition_that_was_added_keeps_that_when_its_leader_moves(first: TransactionRig) -> None:
    first.send("t", b"v", partition=0)
    first.sender.take_joining()
    first.sender.apply_topic("t", b"", [2, 1, 1])
    assert first.sender.take_joining() == []
    first.sender.partitions_added([("t", 0)])
    assert [seen.node for seen in first.requests()] == [2]


def test_records_that_were_parked_join_too(first: TransactionRig) -> None:
    first.send("u", b"v")
    assert first.sender.take_joining() == []
    first.sender.apply_topic("u", b"", [1])
    assert first.sender.take_joining() == [("u", 0)]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_partitions_that_wait_to_be_added_may_be_given_up_in_any_order(
    first: TransactionRig, order: tuple[int, ...]
) -> None:
    for partition in range(3):
        first.send("t", b"v", partition=partition)
    leaders = [1, 1, 1]
    left = [0, 1, 2]
    for partition in order:
        leaders[partition] = -1
        left.remove(partition)
        first.sender.apply_topic("t", b"", leaders)
    first.sender.apply_topic("t", b"", [1, 1, 1])
    assert sorted(first.sender.take_joining()) == [("t", 0), ("t", 1), ("t", 2)]


def test_a_partition_that_wants_to_be_added_calls_the_control_plane_once(first: TransactionRig) -> None:
    first.control.delay_ms = 1e6
    first.step()
    first.step()
    before = first.control.ticks
    first.send("t", b"v", partition=0)
    first.step()
    first.step()
    assert first.control.ticks > before
    first.sender.take_joining()
    # One more for the last step's attention, and then none.
    first.step()
    before = first.control.ticks
    for _ in range(3):
        first.step()
    assert first.control.ticks == before


def test_a_partition_that_wants_to_be_added_wakes_a_sleeping_sender() -> None:
    """Although its broker takes no more requests."""
    with rigged(first=True, max_in_flight=1) as rig:
        rig.send("t", b"v", partition=0)
        rig.sender.take_joining()
        rig.sender.partitions_added([("t", 0)])
        assert len(rig.requests()) == 1
        rig.control.delay_ms = 1e6
        rig.step()
        stepping = Running(rig.step, 1000 * PATIENCE_S)
        until_blocked(stepping.thread)
        rig.send("t", b"w", partition=1)
        stepping.outcome(PATIENCE_S / 2)


@pytest.mark.parametrize("linger_ms", [0, 50])
def test_a_partition_that_was_added_lingers_like_any_other(linger_ms: float) -> None:
    with rigged(first=True, batch_size=1 << 20, linger_ms=linger_ms) as rig:
        rig.send("t", b"v", partition=0)
        rig.sender.take_joining()
        rig.sender.partitions_added([("t", 0)])
        assert len(rig.requests()) == (linger_ms == 0)
        rig.clock.advance_ms(linger_ms)
        rig.requests()
        assert rig.pending


# The second protocol


def test_nothing_of_the_second_protocol_is_sent_before_the_transaction_is_open() -> None:
    with rigged(begin=False) as rig:
        rig.begin()
        for partition in range(3):
            rig.send("t", b"v", partition=partition)
        assert rig.requests() == []
        assert len(rig.sender.take_joining()) == 3
        assert rig.requests() == []
        rig.open()
        assert set(places(rig.requests())) == {("t", 0), ("t", 1), ("t", 2)}


def test_partitions_of_the_second_protocol_do_not_join_once_it_is_open(rig: TransactionRig) -> None:
    rig.send("t", b"v", partition=0)
    assert rig.sender.take_joining() == []
    assert places(rig.requests()) == [("t", 0)]


@pytest.mark.parametrize(("first_protocol", "highest"), [(True, 11), (False, 12)])
def test_produce_requests_have_a_version_of_their_protocol(first_protocol: bool, highest: int) -> None:
    with rigged(first=first_protocol, produce_version=12) as rig:
        rig.send("t", b"v", partition=0)
        rig.sender.take_joining()
        rig.sender.partitions_added([("t", 0)])
        (seen,) = rig.requests()
        assert seen.request.api_version == highest
        # A protocol counts for its transaction.
        rig.answer(seen)
        rig.end()
        rig.begin(first=not first_protocol)
        rig.open()
        rig.send("t", b"v", partition=0)
        rig.sender.partitions_added([("t", 0)])
        (seen,) = rig.requests()
        assert seen.request.api_version == 23 - highest


def test_requests_and_batches_say_that_they_belong_to_a_transaction(rig: TransactionRig) -> None:
    rig.send("t", b"v", partition=0)
    (seen,) = rig.requests()
    assert seen.request.transactional_id == "tx"
    assert seen.batches["t", 0].is_transactional
    with Rig({"t": [1]}) as plain:
        plain.send("t", b"v")
        (seen,) = plain.requests()
        assert seen.request.transactional_id is None
        assert not seen.batches["t", 0].is_transactional


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_compressed_batches_say_so_too(codec: str) -> None:

    with rigged(compressor=codec, batch_size=1 << 16) as rig:
        rig.send("t", bytes(1000), partition=0)
        (seen,) = rig.requests()
        batch = seen.batches["t", 0]
        assert batch.is_transactional
        assert batch.codec != 0


# Sequences


def test_each_epoch_starts_with_sequence_0_in_each_partition(rig: TransactionRig) -> None:
    for epoch in range(3):
        for partition in (0, 1):
            for _ in range(2 + partition):
                rig.send("t", b"v", partition=partition)
        found: list[Seen] = []
        while new := rig.requests():
            found += new
            for seen in list(rig.pending):
                rig.answer(seen)
        of = {p: [b for s in found for (_, i), b in s.batches.items() if i == p] for p in (0, 1)}
        for partition, batches in of.items():
            assert [(b.producer_epoch, b.base_sequence) for b in batches] == [
                (epoch, number) for number in range(2 + partition)
            ]
        rig.next()


def test_the_first_protocol_goes_on_counting_in_the_same_epoch(first: TransactionRig) -> None:
    for number in range(3):
        first.send("t", b"v", partition=0)
        first.sender.partitions_added([("t", 0)])
        assert sequences(first.requests()) == [(0, number)]
        first.answer_all()
        first.next()


def pipelined(rig: TransactionRig, count: int, start: int = 0) -> list[Seen]:
    """Sends batches of two records, after one that makes the broker known; returns their requests."""
    rig.send("t", b"hello", partition=0)
    rig.advance_ms(1)
    rig.answer_all()
    rig.sender.set_next_sequence("t", 0, start)
    for number in range(count):
        for part in b"ab":
            rig.send("t", b"%d%c" % (number, part), partition=0)
        rig.advance_ms(1)
    return rig.requests()


@pytest.mark.parametrize("start", [0, 7, 2**31 - 1, 2**31 - 2, 2**31 - 3, 2**31 - 5])
def test_a_split_gives_the_same_sequences_again_also_where_they_start_over(start: int) -> None:
    with rigged(batch_size=1 << 16, linger_ms=1) as rig:
        sent = pipelined(rig, 3, start)
        before = [seen.batches["t", 0].base_sequence for seen in sent]
        assert before == [(start + 2 * number) % 2**31 for number in range(3)]
        rig.answer(sent[0], TOO_LARGE)
        for seen in sent[1:]:
            rig.answer(seen, OUT_OF_ORDER)
        rig.clock.advance_ms(200)
        again: list[tuple[int, list[bytes | None]]] = []
        while rig.requests():
            for seen in list(rig.pending):
                batch = seen.batches["t", 0]
                assert batch.producer_epoch == 0
                again.append((batch.base_sequence, [record.value for record in batch.records]))
                rig.answer(seen)
        assert again == [
            (start, [b"0a"]),
            ((start + 1) % 2**31, [b"0b"]),
            (before[1], [b"1a", b"1b"]),
            (before[2], [b"2a", b"2b"]),
        ]
        # What comes next continues there.
        rig.send("t", b"next", partition=0)
        rig.advance_ms(1)
        assert sequences(rig.requests()) == [(0, (start + 6) % 2**31)]
        rig.answer_all()
        assert_nothing_left(rig)


def test_a_split_waits_for_the_batches_behind_it_and_keeps_those_before_it() -> None:
    with rigged(batch_size=1 << 16, linger_ms=1) as rig:
        first, second, third = pipelined(rig, 3)
        rig.answer(first, NOT_ENOUGH_REPLICAS)
        rig.answer(second, TOO_LARGE)
        rig.clock.advance_ms(200)
        assert rig.requests() == [], "the third is on the wire"
        rig.answer(third, OUT_OF_ORDER)
        rig.clock.advance_ms(200)
        found = rig.requests()
        assert sequences(found) == [(0, 0), (0, 2), (0, 3), (0, 4)]
        assert [seen.values()[0] for seen in found] == [b"0a", b"1a", b"1b", b"2a"]
        rig.answer_all()
        assert rig.values("t") == [b"hello", b"0a", b"0b", b"1a", b"1b", b"2a", b"2b"]


def test_a_part_that_is_split_again_keeps_the_sequences_too() -> None:
    with rigged(batch_size=1 << 16, linger_ms=1) as rig:
        for number in range(8):
            rig.send("t", b"%d" % number, partition=0)
        rig.advance_ms(1)
        (whole,) = rig.requests()
        rig.answer(whole, TOO_LARGE)
        (half,) = rig.requests()
        assert sequences([half]) == [(0, 0)]
        rig.answer(half, TOO_LARGE)
        came: list[tuple[int, int]] = []
        while rig.requests():
            for seen in list(rig.pending):
                batch = seen.batches["t", 0]
                came.append((batch.base_sequence, len(batch.records)))
                rig.answer(seen)
        assert [sequence for sequence, _ in came] == [0, 2, 4]
        assert [count for _, count in came] == [2, 2, 4]


# Records that are refused, and dropped


def dropping() -> TransactionRig:
    rig = rigged(batch_size=1 << 16, linger_ms=1)
    rig.play = Play().written()
    rig.play.machine.drops_refused = True
    rig.fates.transaction_machine = rig.play.machine
    return rig


def rest(rig: TransactionRig) -> list[tuple[int, list[bytes | None]]]:
    """Answers all requests; returns the sequence and the values of each batch, in the order of requests."""
    came: list[tuple[int, list[bytes | None]]] = []
    rig.clock.advance_ms(200)
    while rig.requests():
        for seen in list(rig.pending):
            came += [(batch.base_sequence, seen.values()) for batch in seen.batches.values()]
            rig.answer(seen)
    return came


@pytest.mark.parametrize("start", [0, 7, 2**31 - 1, 2**31 - 2, 2**31 - 3])
def test_what_is_behind_refused_records_gets_their_sequences(start: int) -> None:
    with dropping() as rig:
        first, second, third = pipelined(rig, 3, start)
        rig.answer(first, INVALID)
        assert rig.requests() == []
        for seen in (second, third):
            rig.answer(seen, OUT_OF_ORDER)
        assert rest(rig) == [(start, [b"1a", b"1b"]), ((start + 2) % 2**31, [b"2a", b"2b"])]
        assert rig.play.machine.state is State.IN_TRANSACTION
        assert not rig.sender.has_lost()
        rig.send("t", b"next", partition=0)
        rig.advance_ms(1)
        assert sequences(rig.requests()) == [(0, (start + 4) % 2**31)]
        rig.answer_all()
        assert rig.sender.is_drained()
        assert_nothing_left(rig)


def test_what_is_behind_records_that_the_broker_names_moves_by_their_number() -> None:
    with dropping() as rig:
        first, second = pipelined(rig, 2)
        rig.answer(first, INVALID, record_errors={("t", 0): [(0, "bad")]})
        rig.answer(second, OUT_OF_ORDER)
        rig.clock.advance_ms(200)
        again = rig.requests()
        assert [(sequences([seen]), seen.values()) for seen in again] == [
            ([(0, 0)], [b"0b"]),
            ([(0, 1)], [b"1a", b"1b"]),
        ]
        # Once more, where numbers of records and sequences no longer match.
        rig.answer(again[0], INVALID, record_errors={("t", 0): [(0, "bad")]})
        rig.answer(again[1], OUT_OF_ORDER)
        assert rest(rig) == [(0, [b"1a", b"1b"])]
        assert not rig.sender.has_lost()
        assert rig.play.machine.state is State.IN_TRANSACTION
        assert_nothing_left(rig)


def refused_behind_a_retry(rig: TransactionRig) -> list[Seen]:
    """Of three batches the first is sent again and the second is refused; returns the next requests."""
    first, second, third = pipelined(rig, 3)
    rig.answer(first, NOT_ENOUGH_REPLICAS)
    rig.answer(second, INVALID)
    rig.answer(third, OUT_OF_ORDER)
    rig.clock.advance_ms(200)
    return rig.requests()


def test_a_batch_before_the_refused_one_keeps_its_sequences_until_it_is_refused_too() -> None:
    with dropping() as rig:
        again = refused_behind_a_retry(rig)
        assert [(sequences([seen]), seen.values()) for seen in again] == [
            ([(0, 0)], [b"0a", b"0b"]),
            ([(0, 2)], [b"2a", b"2b"]),
        ]
        rig.answer(again[0], INVALID)
        rig.answer(again[1], OUT_OF_ORDER)
        assert rest(rig) == [(0, [b"2a", b"2b"])]
        assert rig.play.machine.state is State.IN_TRANSACTION
        assert_nothing_left(rig)


def test_an_older_batch_that_is_refused_too_gives_its_sequences() -> None:
    with dropping() as rig:
        before, behind = refused_behind_a_retry(rig)
        rig.answer(before, INVALID)
        rig.answer(behind, INVALID)
        rig.send("t", b"next", partition=0)
        assert rest(rig) == [(0, [b"next"])]
        assert rig.play.machine.state is State.IN_TRANSACTION
        assert_nothing_left(rig)


@pytest.mark.parametrize("refusal", [INVALID, TOO_LARGE])
def test_records_whose_request_may_come_late_do_not_get_the_sequences_of_refused_ones(refusal: int) -> None:
    """The late request would be taken for the records that have its sequences since, and write its own."""
    with dropping() as rig:
        first, _second = pipelined(rig, 2)
        rig.answer(first, refusal)
        rig.cut(1)
        rig.clock.advance_ms(200)
        moved = refusal == INVALID
        assert (rig.play.machine.state is State.ABORTABLE_ERROR) is moved
        if moved:
            assert "records were refused" in str(rig.play.machine.cause)


def test_a_request_that_may_come_late_is_not_forgotten_in_a_split() -> None:
    """The records keep their sequences first, and would get others then."""
    with dropping() as rig:
        first, _second = pipelined(rig, 2)
        rig.answer(first, TOO_LARGE)
        rig.cut(1)
        rig.connect(1)
        rig.clock.advance_ms(200)
        part, *behind = rig.requests()
        assert part.values() == [b"0a"]
        rig.answer(part, INVALID)
        assert rig.play.is_in(State.IN_TRANSACTION)
        for seen in behind:
            rig.answer(seen, OUT_OF_ORDER)
        assert rig.play.is_in(State.ABORTABLE_ERROR)


def test_a_gap_of_an_aborted_transaction_is_forgotten() -> None:
    with dropping() as rig:
        first, second = pipelined(rig, 2)
        rig.answer(first, INVALID)
        # The gap is not closed any more.
        rig.play.machine.fail(GIVEN_UP)
        rig.answer(second, OUT_OF_ORDER)
        rig.next()
        rig.fates.transaction_machine = Play().written().machine
        rig.fates.transaction_machine.drops_refused = True
        for value in (b"a", b"b", b"c"):
            rig.send("t", value, partition=0)
            rig.advance_ms(1)
            (seen,) = rig.requests()
            rig.answer(seen, INVALID if value == b"b" else 0)
        assert rig.values("t") == [b"hello", b"a", b"c"]
        assert sequences([seen]) == [(1, 1)]
        assert_nothing_left(rig)


def test_without_a_transaction_a_split_still_takes_a_new_epoch() -> None:
    with Rig({"t": [1]}, idempotent=True, batch_size=1 << 16, linger_ms=1) as rig:
        grant(rig)
        for number in range(2):
            rig.send("t", b"%d" % number, partition=0)
        rig.advance_ms(1)
        (whole,) = rig.requests()
        rig.answer(whole, TOO_LARGE)
        assert sequences(rig.requests()) == [(1, 0)]


# A batch that fails


def failing(rig: TransactionRig) -> Play:
    """Gives the rig's decisions a real machine."""
    play = Play(2).written()
    rig.fates.transaction_machine = play.machine
    return play


def test_a_partition_with_a_failed_batch_sends_nothing_until_the_next_transaction(
    rig: TransactionRig,
) -> None:
    failing(rig)
    sent = [rig.send("t", b"%d" % number, partition=0) for number in range(2)]
    (seen,) = rig.requests()
    rig.answer(seen, UNAUTHORIZED)
    assert sent[0].failed()
    rig.clock.advance_ms(1000)
    assert rig.requests() == []
    rig.sender.purge(True, True, GIVEN_UP)
    assert sent[1].failed()
    assert rig.sender.is_drained()
    rig.next()
    rig.send("t", b"again", partition=0)
    assert sequences(rig.requests()) == [(1, 0)]


def test_a_failed_batch_calls_the_control_plane_at_once(rig: TransactionRig) -> None:
    """Which gives up what is not sent yet, and lets no more records in."""
    failing(rig)
    rig.control.delay_ms = 1e6
    rig.send("t", b"v", partition=0)
    (seen,) = rig.requests()
    before = rig.control.ticks
    rig.answer(seen, UNAUTHORIZED)
    rig.step()
    assert rig.control.ticks == before + 1


@pytest.mark.parametrize("kind", ["overdue", "overdue on the wire", "partition removed"])
def test_a_batch_that_is_given_up_calls_the_control_plane_at_once(kind: str) -> None:
    with rigged(delivery_timeout_ms=1000) as rig:
        failing(rig)
        rig.control.delay_ms = 1e6
        rig.auto_connect = kind == "overdue on the wire"
        rig.send("t", b"v", partition=2)
        rig.requests()
        before = rig.control.ticks
        if kind == "partition removed":
            rig.sender.apply_topic("t", b"", [1, 1])
            rig.sender.fail_beyond("t", 2)
        else:
            rig.advance_ms(1001)
        rig.step()
        assert rig.control.ticks == before + 1


def test_meeting_the_markers_of_the_last_transaction_is_no_failed_attempt(rig: TransactionRig) -> None:
    """It does not use up ``retries``, and does not make later pauses longer."""
    failing(rig)
    future = rig.send("t", b"v", partition=0)
    queued = rig.accumulator.counters()
    for code in (CONCURRENT, CONCURRENT, NOT_ENOUGH_REPLICAS, CONCURRENT, NOT_ENOUGH_REPLICAS, 0):
        (seen,) = rig.requests()
        assert sequences([seen]) == [(0, 0)]
        rig.answer(seen, code)
        rig.clock.advance_ms(200)
    assert [attempts for _, code, attempts in rig.fates.failures if code == NOT_ENOUGH_REPLICAS] == [1, 2]
    assert future.succeeded()
    assert rig.accumulator.counters()["records_retried"] - queued["records_retried"] == 5


def test_has_lost_is_about_this_transaction(rig: TransactionRig) -> None:
    failing(rig)
    assert not rig.sender.has_lost()
    rig.send("t", b"v", partition=0)
    (seen,) = rig.requests()
    rig.answer(seen, NOT_ENOUGH_REPLICAS)
    assert not rig.sender.has_lost(), "it is sent again"
    rig.sender.purge(True, True, GIVEN_UP)
    assert rig.sender.has_lost()
    rig.end()
    assert rig.sender.has_lost()
    rig.begin()
    assert not rig.sender.has_lost()


def test_a_parked_record_that_fails_is_lost(rig: TransactionRig) -> None:
    rig.send("unknown", b"v")
    rig.sender.fail_parked("unknown", told(GIVEN_UP, False))
    assert rig.sender.has_lost()


# What is left


def test_drained_is_when_nothing_is_queued_or_parked_or_on_the_wire(rig: TransactionRig) -> None:
    assert rig.sender.is_drained()
    rig.send("t", b"v", partition=0)
    assert not rig.sender.is_drained()
    (seen,) = rig.requests()
    assert not rig.sender.is_drained()
    rig.answer(seen)
    assert rig.sender.is_drained()
    parked = rig.send("unknown", b"v")
    assert not rig.sender.is_drained()
    rig.sender.fail_parked("unknown", told(GIVEN_UP, False))
    assert parked.failed()
    assert rig.sender.is_drained()


def test_a_batch_whose_records_have_failed_is_still_on_the_wire() -> None:
    with rigged(delivery_timeout_ms=1000) as rig:
        failing(rig)
        future = rig.send("t", b"v", partition=0)
        (seen,) = rig.requests()
        rig.advance_ms(1001)
        assert future.failed()
        assert rig.accumulator.incomplete_batches == 0
        assert not rig.sender.is_drained()
        rig.answer(seen)
        assert rig.sender.is_drained()


@pytest.mark.parametrize("end", ["answered", "refused", "cut"])
def test_a_request_is_on_the_wire_until_its_end(rig: TransactionRig, end: str) -> None:
    failing(rig)
    futures = [rig.send("t", b"v", partition=partition) for partition in range(3)]
    rig.requests()
    if end == "cut":
        rig.cut(1)
        rig.sender.purge(True, True, GIVEN_UP)
    else:
        while rig.pending:
            assert not rig.sender.is_drained()
            rig.answer(rig.pending[0], UNAUTHORIZED if end == "refused" else 0)
    assert all(future.is_done for future in futures)
    assert rig.sender.is_drained()


def test_the_control_plane_is_called_once_everything_is_drained(rig: TransactionRig) -> None:
    rig.control.delay_ms = 1e6
    rig.send("t", b"v", partition=0)
    (seen,) = rig.requests()
    before = rig.control.ticks
    rig.answer(seen)
    rig.step()
    assert rig.control.ticks == before, "nobody asked"
    rig.send("t", b"v", partition=0)
    (seen,) = rig.requests()
    assert not rig.sender.is_drained()
    rig.step()
    before = rig.control.ticks
    rig.step()
    assert rig.control.ticks == before
    rig.answer(seen)
    rig.step()
    rig.step()
    assert rig.control.ticks == before + 1
    assert rig.sender.is_drained()
    for _ in range(3):
        rig.step()
    assert rig.control.ticks == before + 1


def test_an_abandoned_batch_that_is_answered_lets_the_transaction_end() -> None:
    with rigged(delivery_timeout_ms=1000) as rig:
        failing(rig)
        rig.send("t", b"v", partition=0)
        (seen,) = rig.requests()
        rig.advance_ms(1001)
        rig.control.delay_ms = 1e6
        rig.step()
        assert not rig.sender.is_drained()
        rig.step()
        before = rig.control.ticks
        rig.answer(seen)
        rig.step()
        rig.step()
        assert rig.control.ticks == before + 1


def test_purging_says_whether_a_batch_is_left_because_it_is_being_compressed() -> None:
    slow = SlowCompressor()
    with rigged(compressor=slow, batch_size=1, linger_ms=1000) as rig:
        failing(rig)
        sending = Running(lambda: [rig.send("t", bytes(100), partition=0) for _ in range(2)])
        assert slow.begun.wait(PATIENCE_S)
        assert rig.sender.purge(True, False, GIVEN_UP) is True
        slow.go_on.set()
        sending.outcome()
        assert rig.sender.purge(True, False, GIVEN_UP) is False
        assert rig.sender.is_drained()


def test_purging_has_nothing_to_come_back_for_while_batches_are_on_the_wire(rig: TransactionRig) -> None:
    failing(rig)
    rig.send("t", b"v", partition=0)
    rig.requests()
    assert rig.sender.purge(True, False, GIVEN_UP) is False
    assert not rig.sender.is_drained()


def test_without_lingering_for_a_commit_and_with_it_afterwards() -> None:
    with rigged(linger_ms=100, batch_size=1 << 16) as rig:
        rig.send("t", b"0", partition=0)
        assert rig.requests() == []
        rig.sender.set_hurry(True)
        assert len(rig.requests()) == 1
        rig.answer_all()
        rig.send("t", b"1", partition=1)
        assert len(rig.requests()) == 1, "also what comes meanwhile"
        rig.answer_all()
        rig.sender.set_hurry(False)
        rig.send("t", b"2", partition=2)
        assert rig.requests() == []
        rig.clock.advance_ms(100)
        assert len(rig.requests()) == 1


# Where it has written


def test_the_offsets_that_the_transaction_has_written(rig: TransactionRig) -> None:
    assert rig.sender.written_offsets() == {}
    for number in range(3):
        rig.send("t", b"%d" % number, partition=0)
        rig.answer_all()
    rig.send("t", b"v", partition=2)
    rig.answer_all()
    assert rig.sender.written_offsets() == {("t", 0): (0, 2), ("t", 2): (0, 0)}
    rig.end()
    rig.begin()
    assert rig.sender.written_offsets() == {}
    rig.open()
    for _ in range(2):
        rig.send("t", b"v", partition=0)
        rig.answer_all()
    assert rig.sender.written_offsets() == {("t", 0): (3, 4)}


def test_the_offsets_of_a_batch_are_those_of_all_of_its_records() -> None:
    with rigged(batch_size=1 << 16, linger_ms=1) as rig:
        for number in range(5):
            rig.send("t", b"%d" % number, partition=1)
        rig.advance_ms(1)
        rig.answer_all()
        assert rig.sender.written_offsets() == {("t", 1): (0, 4)}


def test_a_topic_of_the_open_transaction_is_not_forgotten() -> None:
    """What it has written would be, and which partitions were added."""
    with rigged() as rig:
        rig.send("t", b"v", partition=0)
        rig.answer_all()
        rig.sender.forget_topic("t")
        assert rig.sender.written_offsets() == {("t", 0): (0, 0)}
        rig.end()
        rig.begin()
        rig.sender.forget_topic("t")
        rig.sender.apply_topic("t", b"", [1])
        assert rig.sender.written_offsets() == {}


def test_a_batch_without_an_offset_has_none_to_note(rig: TransactionRig) -> None:
    rig.send("t", b"v", partition=0)
    (seen,) = rig.requests()
    rig.answer(seen, 46)
    assert rig.sender.written_offsets() == {}


def test_nothing_is_noted_without_transactions() -> None:
    with Rig({"t": [1]}) as rig:
        rig.send("t", b"v")
        rig.answer_all()
        assert rig.sender.written_offsets() == {}


def test_an_abort_gives_up_what_is_queued_and_parked_and_lets_the_wire_finish(rig: TransactionRig) -> None:
    play = failing(rig)
    flying = rig.send("t", b"v", partition=0)
    rig.requests()
    waiting = [rig.send("t", b"%d" % number, partition=number % 3) for number in range(300)]
    parked = [rig.send("unknown", b"v") for _ in range(3)]
    play.drained = False
    play.call(Event.ABORT)
    rig.sender.purge(True, False, play.machine.record_error())
    for future in waiting + parked:
        assert type(future.exception) is errors.TransactionAbortedError
        assert future.exception.maybe_written is False
    assert not flying.is_done
    rig.answer_all()
    assert flying.succeeded()
    assert rig.values("t") == [b"v"]
    assert rig.sender.is_drained()
