"""The pool: every byte is accounted for, waiters are served in FIFO order, and waits time out."""

import gc
import os
import queue
import random
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

import pytest

from cyproducer.accumulator.buffer_pool import BufferPool, Lease, Ticket
from tools.harness.until import PATIENCE_S, Running, until


class Borrower(threading.Thread):
    """Acquires a buffer on a thread of its own, and puts itself into a queue when the call returns."""

    def __init__(
        self, pool: BufferPool, size: int, answered: "queue.Queue[Borrower]", timeout_s: float = PATIENCE_S
    ) -> None:
        super().__init__(daemon=True)
        self.pool, self.size, self.timeout_s, self.answered = pool, size, timeout_s, answered
        self.lease: Lease | None = None
        waiting = pool.waiting_threads
        self.start()
        until(lambda: pool.waiting_threads > waiting or not self.is_alive(), "the borrower in the queue")

    def run(self) -> None:
        self.lease = self.pool.acquire(self.size, self.timeout_s)
        self.answered.put(self)


def borrow(pool: BufferPool, size: int) -> Lease:
    lease = pool.acquire(size)
    assert lease is not None
    return lease


@pytest.mark.parametrize(
    ("size", "capacity"),
    [
        (0, 512),
        (1, 512),
        (512, 512),
        (513, 1024),
        (16_384, 16_384),
        (65_536, 65_536),
        (65_537, 131_072),
        (131_073, 196_608),
        (1_000_000, 1_048_576),
    ],
)
def test_buffers_have_class_sizes_and_count_in_full(size: int, capacity: int) -> None:
    pool = BufferPool(1 << 21)
    lease = borrow(pool, size)
    assert lease.capacity == capacity
    assert pool.used_bytes == capacity
    assert pool.available_bytes == (1 << 21) - capacity
    lease.release()
    assert pool.used_bytes == 0
    assert pool.peak_bytes == capacity


def test_a_negative_total_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="total_bytes=-1"):
        BufferPool(-1)


def test_a_buffer_can_be_released_only_once() -> None:
    pool = BufferPool(4096)
    lease = borrow(pool, 512)
    lease.release()
    with pytest.raises(ValueError, match="already been released"):
        lease.release()
    assert pool.used_bytes == 0


def test_a_dropped_lease_releases_its_bytes() -> None:
    pool = BufferPool(4096)
    lease = borrow(pool, 512)
    del lease
    gc.collect()
    assert pool.used_bytes == 0


def test_the_pool_lends_its_last_byte_and_no_more() -> None:
    pool = BufferPool(1024)
    leases = [borrow(pool, 512), borrow(pool, 512)]
    assert pool.available_bytes == 0
    assert pool.acquire(1) is None
    leases[0].release()
    assert borrow(pool, 1).capacity == 512


def test_a_released_buffer_is_reused_for_its_size() -> None:
    pool = BufferPool(1 << 20)
    borrow(pool, 4096).release()
    assert pool.cached_bytes == 4096
    other = borrow(pool, 512)
    assert pool.cached_bytes == 4096
    same = borrow(pool, 4000)
    assert pool.cached_bytes == 0
    same.release()
    other.release()
    assert pool.cached_bytes == 4608
    assert pool.used_bytes == 0


def test_small_buffers_are_kept_up_to_two_mebibytes_in_total() -> None:
    pool = BufferPool(1 << 26)
    for size, kept in ((512, 2 << 20), (8192, 2 << 20), (16384, (2 << 20) + 300 * 16384)):
        leases = [pool.acquire(size) for _ in range(300 if size > 512 else 5000)]
        for lease in leases:
            assert lease is not None
            lease.release()
        assert pool.cached_bytes == kept
        assert pool.used_bytes == 0


@pytest.mark.parametrize("large", [32_768, 131_072, 196_608, 262_144])
def test_cached_buffers_are_freed_to_make_room(large: int) -> None:
    """Cached and lent buffers together stay below the total, since both are memory of the process."""
    pool = BufferPool(262_144)
    leases = [borrow(pool, 512) for _ in range(512)]
    for lease in leases:
        lease.release()
    assert pool.cached_bytes == 262_144
    lease = borrow(pool, large)
    assert pool.used_bytes == large
    assert pool.used_bytes + pool.cached_bytes <= pool.total_bytes
    # No more buffers than needed are freed.
    assert pool.cached_bytes == 262_144 - large
    lease.release()


def test_a_buffer_without_a_size_class_is_not_kept() -> None:
    pool = BufferPool(1 << 20)
    borrow(pool, 196_608).release()
    assert pool.cached_bytes == 0


def test_waiters_are_served_in_fifo_order() -> None:
    pool = BufferPool(8 * 512)
    held = [borrow(pool, 512) for _ in range(8)]
    answered: queue.Queue[Borrower] = queue.Queue()
    line = [Borrower(pool, 512, answered) for _ in range(8)]
    for lease, waiter in zip(held, line, strict=True):
        lease.release()
        assert answered.get(timeout=PATIENCE_S) is waiter
        # One buffer was released, so one waiter was served.
        assert pool.used_bytes == pool.total_bytes
    assert pool.waiting_threads == 0
    for waiter in line:
        assert waiter.lease is not None
        waiter.lease.release()
        waiter.join()
    assert pool.used_bytes == 0


def test_a_small_request_does_not_overtake_a_large_one() -> None:
    pool = BufferPool(4 * 512)
    held = [borrow(pool, 512) for _ in range(4)]
    answered: queue.Queue[Borrower] = queue.Queue()
    large = Borrower(pool, 2048, answered)
    small = Borrower(pool, 512, answered)
    for lease in held[:3]:
        lease.release()
        # Neither the second waiter nor a new one gets the bytes that the first waits for.
        assert pool.acquire(1) is None
        assert (pool.waiting_threads, answered.empty()) == (2, True)
    held[3].release()
    assert answered.get(timeout=PATIENCE_S) is large
    assert answered.empty()
    assert large.lease is not None
    large.lease.release()
    assert answered.get(timeout=PATIENCE_S) is small


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_waiter_that_gives_up_does_not_change_the_order_of_the_others(place: int) -> None:
    pool = BufferPool(4 * 512)
    held = [borrow(pool, 512) for _ in range(4)]
    answered: queue.Queue[Borrower] = queue.Queue()
    line = []
    for i in range(3):
        line.append(Borrower(pool, 1024 if i == place else 512, answered, 0.3 if i == place else PATIENCE_S))
    assert answered.get(timeout=PATIENCE_S) is line[place]
    assert line[place].lease is None
    assert pool.exhausted_total == 1
    remaining = [waiter for waiter in line if waiter is not line[place]]
    late = Borrower(pool, 512, answered)
    for lease, waiter in zip(held, [*remaining, late], strict=False):
        lease.release()
        assert answered.get(timeout=PATIENCE_S) is waiter
    assert pool.waiting_threads == 0


def test_a_waiter_that_gives_up_lets_the_next_one_have_the_available_memory() -> None:
    """The first waits for more than was released. When it times out, the second is served at once."""
    pool = BufferPool(4 * 512)
    held = [borrow(pool, 512) for _ in range(4)]
    answered: queue.Queue[Borrower] = queue.Queue()
    first = Borrower(pool, 2048, answered, 0.3)
    second = Borrower(pool, 512, answered)
    held[0].release()
    served = [answered.get(timeout=PATIENCE_S), answered.get(timeout=PATIENCE_S)]
    assert sorted(served, key=id) == sorted([first, second], key=id)
    assert first.lease is None
    assert second.lease is not None
    assert pool.used_bytes == 4 * 512


def test_a_wait_times_out() -> None:
    pool = BufferPool(512)
    lease = borrow(pool, 512)
    began = time.monotonic()
    assert pool.acquire(512, 0.12) is None
    took = time.monotonic() - began
    assert 0.12 <= took < 5
    assert 0.12e9 <= pool.wait_time_ns < 5e9
    assert (pool.exhausted_total, pool.waiting_threads, pool.used_bytes) == (1, 0, 512)
    lease.release()


def test_a_request_larger_than_the_pool_times_out() -> None:
    pool = BufferPool(1024)
    assert pool.acquire(1025, 0.01) is None
    assert (pool.used_bytes, pool.waiting_threads) == (0, 0)
    assert borrow(pool, 1024).capacity == 1024


class InterruptedWaitError(Exception):
    pass


@pytest.mark.parametrize("granting", [False, True])
def test_a_signal_ends_the_wait_and_leaks_no_memory(granting: bool) -> None:
    """``granting``: the handler also releases the memory, so the wait is both granted and interrupted."""
    pool = BufferPool(1024)
    held = [borrow(pool, 1024)]

    def handler(number: int, frame: FrameType | None) -> None:
        if granting:
            held.pop().release()
        raise InterruptedWaitError

    before = signal.signal(signal.SIGUSR1, handler)
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        until(lambda: pool.waiting_threads == 1, "the wait")
        signal.pthread_kill(main, signal.SIGUSR1)

    interrupting = Running(interrupt)
    try:
        began = time.monotonic()
        with pytest.raises(InterruptedWaitError):
            pool.acquire(512, PATIENCE_S)
        assert time.monotonic() - began < PATIENCE_S / 2
    finally:
        interrupting.outcome()
        signal.signal(signal.SIGUSR1, before)
    assert (pool.waiting_threads, pool.exhausted_total) == (0, 0)
    assert pool.used_bytes == (0 if granting else 1024)


def test_thousands_of_random_operations_leak_no_memory() -> None:
    pool = BufferPool(64 * 1024)

    def work(seed: int) -> int:
        """Returns how often it got memory."""
        rng = random.Random(seed)
        mine: list[Lease] = []
        done = 0
        for _ in range(3000):
            if mine and rng.random() < 0.5:
                mine.pop(rng.randrange(len(mine))).release()
            elif (lease := pool.acquire(int(2 ** rng.uniform(0, 16)), rng.choice([0, 0, 0.002]))) is not None:
                mine.append(lease)
                done += 1
            assert 0 <= pool.used_bytes <= pool.total_bytes
        for lease in mine:
            lease.release()
        return done

    workers = [Running(work, seed) for seed in range(4)]
    assert sum(worker.outcome() for worker in workers) > 2000
    assert pool.exhausted_total > 100
    assert (pool.used_bytes, pool.waiting_threads, pool.available_bytes) == (0, 0, 64 * 1024)
    assert 0 < pool.cached_bytes <= pool.total_bytes
    assert pool.peak_bytes <= pool.total_bytes
    # The whole pool can still be lent at once.
    assert borrow(pool, 64 * 1024).capacity == 64 * 1024


# Giving memory back

MIB = 1 << 20
SECOND_NS = 1_000_000_000


def use(pool: BufferPool, mib: int) -> None:
    """Has buffers of 128 KiB in use at once, and releases them."""
    for lease in [borrow(pool, 131_072) for _ in range(8 * mib)]:
        lease.release()


def test_what_a_backlog_has_left_is_given_back_after_a_window_without_it() -> None:
    pool = BufferPool(256 * MIB)
    assert not pool.turn(10 * SECOND_NS)
    assert pool.next_turn_ns() is None
    use(pool, 64)
    assert pool.next_turn_ns() == 12 * SECOND_NS
    assert not pool.turn(11 * SECOND_NS)
    # The window that has ended had the backlog in it.
    assert not pool.turn(12 * SECOND_NS)
    assert not pool.turn(13 * SECOND_NS)
    assert pool.cached_bytes == 64 * MIB
    assert pool.turn(14 * SECOND_NS)
    pool.give_back()
    assert pool.cached_bytes == 4 * MIB
    assert not pool.turn(16 * SECOND_NS)
    assert pool.next_turn_ns() is None
    assert pool.peak_bytes == 64 * MIB


def test_what_is_in_use_counts_as_needed() -> None:
    pool = BufferPool(256 * MIB)
    leases = [borrow(pool, 131_072) for _ in range(8 * 16)]
    use(pool, 32)
    for second in (10, 12, 14):
        due = pool.turn(second * SECOND_NS)
    assert due
    pool.give_back()
    assert (pool.used_bytes, pool.cached_bytes) == (16 * MIB, 0)
    assert pool.next_turn_ns() == 16 * SECOND_NS
    for lease in leases:
        lease.release()


def test_what_every_window_needs_is_kept() -> None:
    pool = BufferPool(256 * MIB)
    for second in range(10, 40):
        if second % 2 == 0:
            use(pool, 32)
        assert not pool.turn(second * SECOND_NS)
    assert pool.cached_bytes == 32 * MIB


def test_a_pool_that_never_had_much_keeps_it() -> None:
    pool = BufferPool(256 * MIB)
    use(pool, 7)
    for second in range(10, 20):
        assert not pool.turn(second * SECOND_NS)
        assert pool.next_turn_ns() is None
    assert pool.cached_bytes == 7 * MIB


def test_a_backlog_that_fits_no_free_list_is_given_back_too() -> None:
    """glibc keeps what is freed below a block that is in use."""
    pool = BufferPool(256 * MIB)
    leases = [borrow(pool, 200_000) for _ in range(100)]
    for lease in leases:
        lease.release()
    assert [pool.turn(second * SECOND_NS) for second in (10, 12)] == [False, True]
    pool.give_back()
    assert not pool.turn(16 * SECOND_NS)


def test_a_closed_producers_pool_keeps_nothing() -> None:
    pool = BufferPool(256 * MIB)
    use(pool, 64)
    pool.give_back(everything=True)
    assert pool.cached_bytes == 0
    assert borrow(pool, 131_072).capacity == 131_072


@pytest.fixture
def notify_fd() -> Iterator[int]:
    reader, writer = os.pipe()
    yield writer
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("leaving", [0, 1, 2])
def test_whoever_joins_after_one_has_left_is_served(leaving: int, notify_fd: int) -> None:
    """Had the line kept a pointer to who left its end, the next to join would be in no line."""
    pool = BufferPool(2048)
    lease = pool.acquire(2048)
    assert lease is not None
    tickets = [Ticket(pool, 512, notify_fd) for _ in range(3)]
    left = tickets.pop(leaving)
    left.cancel()
    tickets.append(Ticket(pool, 512, notify_fd))
    lease.release()
    assert [ticket.granted for ticket in tickets] == [True, True, True]
    assert (pool.used_bytes, pool.waiting_threads) == (1536, 3)
    for ticket in tickets:
        ticket.cancel()
    assert (pool.used_bytes, pool.waiting_threads) == (0, 0)
