"""Handles batches that did not succeed, or whose delivery timeout has expired.

Collects the facts about a batch, calls ``control/batch_fate`` for a decision and carries it out: retry, fail,
split, exclude records, or acknowledge after all. Does not make the decision. Runs with the loop lock and the
GIL held, except ``expire_batches``, which takes the GIL itself.
"""

import heapq

from libc.stdint cimport int32_t, int64_t

from cyproducer.errors.error_code import ErrorCode
from cyproducer.accumulator.sequences cimport note_gap, set_gate, strip_sequences
from cyproducer.accumulator.splitting cimport exclude, split
from cyproducer.accumulator.structures cimport (
    GATE_OPEN,
    GATE_SHUT,
    GATE_UNSETTLED,
    Accumulator,
    Batch,
    Partition,
)
from cyproducer.base.sync cimport cyp_ms_ns, cyp_store32
from cyproducer.wire.produce_codec cimport Request, free_request
from cyproducer.sender.sender cimport Sender

from cyproducer.control.batch_fate import Failure
from cyproducer.control.idempotence import Action, BatchFacts, Fate, Verdict
from cyproducer.structs import TopicPartition
from cyproducer.errors import for_code, told
from cyproducer.base.log import Log

log = Log("cyproducer")


cdef int RETRY = Fate.RETRY
cdef int ACKNOWLEDGE = Fate.ACKNOWLEDGE
cdef int SPLIT = Fate.SPLIT
cdef int EXCLUDE = Fate.EXCLUDE
cdef int REFUSE = Fate.REFUSE
cdef int MEETS_MARKERS = ErrorCode.CONCURRENT_TRANSACTIONS

_GATES = {Action.RELEASE: GATE_OPEN, Action.HOLD_NEW: GATE_UNSETTLED, Action.HOLD_ALL: GATE_SHUT}

cdef str topic_name(const Partition* p):
    return p.topic.name[:p.topic.name_size].decode()


cdef object facts_of(const Batch* b, int culprits=0):
    cdef const Partition* p = b.partition
    return BatchFacts(
        topic_name(p),
        p.index,
        b.first_record,
        b.count,
        b.attempts,
        b.created_ns / 1e6,
        b.base_sequence >= 0,
        p.unsettled_count > 0 and p.unsettled[0] == b,
        bool(b.ambiguous),
        bool(b.abandoned),
        b.size,
        culprits,
    )


cdef int expire_batches(Sender sender, int64_t now) except -1 nogil:
    """Fails the batches whose delivery_timeout_ms has expired, in flight or not."""
    cdef Batch* b
    while True:
        b = sender.accumulator.overdue(now - sender.delivery_timeout_ns)
        if b == NULL:
            # sleep_until() computes when to check again.
            return 0
        if sender.driven:
            # The sender thread finds the batch again. overdue() has closed the batch, which is harmless.
            sender.deferred = True
            return 0
        with gil:
            batch_overdue(sender, b, now)


cdef int batch_overdue(Sender sender, Batch* b, int64_t now) except -1:
    return end_early(sender, b, sender.fates.expire(facts_of(b), bool(b.in_request), now / 1e6))


cdef int batch_purged(Sender sender, Batch* b, object error) except -1:
    """Fails a batch that is queued or in flight, because the application purges it."""
    return end_early(sender, b, sender.fates.purge(facts_of(b), bool(b.in_request), error))


cdef int end_early(Sender sender, Batch* b, object decision) except -1:
    """Fails a batch that is queued or in flight, according to ``decision``."""
    cdef Partition* p = b.partition
    carry_out(sender, p, decision.orders)
    transaction_lost(sender)
    if b.in_request:
        sender.accumulator.abandon(b, decision.verdict.error)
        return 0
    sender.accumulator.fail(b, decision.verdict.error)
    return batch_progress(sender, p, -1)


cdef int batch_removed(Sender sender, Batch* b) except -1:
    """Fails a queued batch whose partition no longer exists."""
    return end_early(
        sender, b, sender.fates.partition_removed(facts_of(b), sender.clock.now_ns() / 1e6)
    )


cdef int batch_failed(
    Sender sender, Batch* b, int error_code, object message, object cause, bint written, dict culprits=None
) except -1:
    """Handles a failed attempt: obtains a decision about the batch, and carries it out.

    ``error_code``: the broker's error code, or 0 if ``cause`` describes the failure instead. ``written``:
    whether the whole request was written, so that the broker may have received it. ``culprits``: the records
    for which the broker rejects the batch: index in the batch -> message or None.
    """
    cdef int64_t now = sender.clock.now_ns()
    cdef Partition* p = b.partition
    cdef int64_t acknowledged = -1
    # If a compacted topic rejects a record, Kafka 2.4 reports the reason only for the whole batch.
    culprits = {place: text or message for place, text in culprits.items()} if culprits else {}
    try:
        verdict, orders = sender.fates.decide(
            facts_of(b, len(culprits)), Failure(error_code, message, cause), bool(written), now / 1e6
        )
    except Exception as problem:
        log.exception("the decision about a failed batch raised an error; the batch fails")
        verdict, orders = Verdict(Fate.FAIL, error=told(problem, True), maybe_written=True), ()
    carry_out(sender, p, orders)
    b.ambiguous = verdict.maybe_written
    fate = verdict.fate
    if sender.accumulator.c.transaction > 0 and fate in (SPLIT, EXCLUDE, REFUSE):
        note_gap(b, fate != SPLIT)
    if fate == ACKNOWLEDGE:
        acknowledged = b.first_record
        sender.accumulator.complete(b, -1, -1)
    elif fate == RETRY:
        # Waiting for the end of the previous transaction does not count as an attempt.
        b.attempts -= error_code == MEETS_MARKERS
        put_back(sender, b, verdict.at_ms, now)
    elif fate == SPLIT:
        try:
            split(sender.accumulator, b)
        except Exception as problem:
            log.exception("splitting a batch of %d records failed; all of them fail", b.count)
            transaction_lost(sender)
            sender.accumulator.fail(b, told(problem, False))
    elif fate == EXCLUDE:
        try:
            exclude(sender.accumulator, b, errors_of(p, error_code, culprits))
            sender.failed_before += len(culprits)
        except Exception as problem:
            log.exception(
                "removing %d rejected records from a batch failed; all of its records fail", len(culprits)
            )
            transaction_lost(sender)
            sender.accumulator.fail(b, told(problem, False))
    elif fate == REFUSE:
        sender.failed_before += b.count
        sender.accumulator.fail(b, verdict.error)
    else:
        transaction_lost(sender)
        sender.accumulator.fail(b, verdict.error)
    return batch_progress(sender, p, acknowledged)


cdef void transaction_lost(Sender sender) noexcept:
    """Notes a failed batch. In a transaction, the control plane fails the others before any more are sent."""
    if sender.accumulator.c.transaction > 0:
        cyp_store32(&sender.attention, 1)


cdef int carry_out(Sender sender, Partition* p, object orders) except -1:
    """Applies the ordered actions to a partition and to the producer's identity."""
    for order in orders:
        action = order.action
        if action is Action.STRIP:
            if strip_sequences(&sender.accumulator.c, p, order.from_id):
                sender.fates.cannot_move(TopicPartition(topic_name(p), p.index))
                transaction_lost(sender)
        elif action is Action.BUMP_EPOCH or action is Action.FORGET_ID:
            producer_id, epoch = sender.fates.identity
            sender.set_identity(producer_id, epoch)
        else:
            set_gate(&sender.accumulator.c, p, _GATES[action])
    return 0


cdef int batch_progress(Sender sender, Partition* p, int64_t acknowledged_id) except -1:
    """Handles the end of a batch: if its partition is held back, decides how the partition continues."""
    cdef const Accumulator* a = &sender.accumulator.c
    while p.gate != GATE_OPEN:
        orders = sender.fates.progress(
            TopicPartition(topic_name(p), p.index),
            p.in_flight,
            p.unsettled_count,
            p.producer_id == a.producer_id and p.producer_epoch == a.producer_epoch,
            acknowledged_id,
            sender.clock.now_ns() / 1e6,
        )
        if not orders:
            return 0
        acknowledged_id = -1
        carry_out(sender, p, orders)
    return 0


cdef dict errors_of(const Partition* p, int error_code, dict culprits):
    """Returns the error of each record that a broker named, keyed by its index in the batch."""
    kind = for_code(error_code)
    where = f"{topic_name(p)}-{p.index}"
    return {
        place: told(kind(f"{where}: {text}" if text else where), False)
        for place, text in culprits.items()
    }


cdef int put_back(Sender sender, Batch* b, double at_ms, int64_t now) except -1:
    """Queues a batch again; its partition backs off until ``at_ms``."""
    cdef Partition* p = b.partition
    sender.accumulator.requeue(b, max(now + 1, cyp_ms_ns(at_ms)))
    sender.backoff_number += 1
    heapq.heappush(sender.backing_off, (p.retry_at_ns, sender.backoff_number, <size_t>p))
    sender.tick_by(p.retry_at_ns)
    return 0


cdef int give_up_request(Sender sender, Request* r, object cause) except -1:
    """Fails the attempt of a Produce request that will get no response, and frees the request."""
    cdef int32_t i
    # If the request was not completely written, no broker can have read it completely.
    cdef bint written = r.unwritten == 0
    for i in range(r.count):
        batch_failed(sender, r.batches[i], 0, None, cause, written)
    free_request(r)
    return 0
