"""Batches that came back without success, or ran out of time: what the control plane decides is done here.

Owns: putting the facts before the control plane (``deliveries``) and carrying out its verdict: again, failed,
split, or good after all. Does not own: the decision (``control/idempotence``, ``control/retry``), nor the
connections (``sender``). In the sender's turn, with the GIL.
"""

import heapq

from libc.stdint cimport int16_t, int32_t, int64_t

from cyproducer.accumulator.sequences cimport set_gate, set_identity, strip_sequences
from cyproducer.accumulator.splitting cimport exclude, split
from cyproducer.accumulator.structures cimport GATE_OPEN, GATE_SHUT, GATE_UNSETTLED
from cyproducer.base.sync cimport cyp_ms_ns
from cyproducer.accumulator.topology cimport TopicInfo
from cyproducer.network.produce_codec cimport Request, free_request

from cyproducer.control.idempotence import Action, BatchFacts, Fate, Verdict
from cyproducer.errors import for_code, told
from cyproducer.user_thread import Log

log = Log("cyproducer")


cdef int RETRY = Fate.RETRY
cdef int ACKNOWLEDGE = Fate.ACKNOWLEDGE
cdef int SPLIT = Fate.SPLIT
cdef int EXCLUDE = Fate.EXCLUDE

_GATES = {Action.RELEASE: GATE_OPEN, Action.HOLD_NEW: GATE_UNSETTLED, Action.HOLD_ALL: GATE_SHUT}


cdef str topic_name(const Partition* p):
    return p.topic.name[:p.topic.name_size].decode()


cdef class Outcomes(Answers):
    """The loop, and what it does with batches that did not simply succeed. See ``SendLoop``."""

    cdef object _facts(self, const Batch* b, int culprits=0):
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

    cdef int _expire(self, int64_t now) except -1 nogil:
        """Fails the batches whose delivery_timeout_ms has run out, on the wire or not."""
        cdef Batch* b
        while True:
            b = self.accumulator.overdue(now - self.delivery_timeout_ns)
            if b == NULL:
                # When to look again is seen to before the sender sleeps.
                return 0
            if self.driven:
                # Found again there: it is closed now, which does no harm.
                self.left_over = True
                return 0
            with gil:
                self._overdue(b, now)

    cdef int _overdue(self, Batch* b, int64_t now) except -1:
        cdef Partition* p = b.partition
        error = self.control.on_batch_overdue(self._facts(b), bool(b.in_request), now / 1e6)
        if b.in_request:
            self.accumulator.abandon(b, error)
            return 0
        self.accumulator.fail(b, error)
        if p.gate != GATE_OPEN:
            self._progress(p, -1)
        return 0

    cdef int _resolve(
        self, Batch* b, int error_code, object message, object cause, bint written, object named=()
    ) except -1:
        """See ``SendLoop``."""
        cdef int64_t now = self.clock.now_ns()
        cdef Partition* p = b.partition
        cdef int64_t acknowledged = -1
        # A broker that names a record twice, or one that is not there, has named no other one by that.
        culprits = {place: text for place, text in named if 0 <= place < b.count}
        try:
            verdict = self.control.on_batch_error(
                self._facts(b, len(culprits)), error_code, message, cause, bool(written), now / 1e6
            )
        except Exception as problem:
            log.exception("deciding about a failed batch failed")
            verdict = Verdict(Fate.FAIL, error=told(problem, True), maybe_written=True)
        b.ambiguous = verdict.maybe_written
        fate = verdict.fate
        if fate == ACKNOWLEDGE:
            acknowledged = b.first_record
            self.accumulator.complete(b, -1, -1)
        elif fate == RETRY:
            self._put_back(b, verdict.at_ms, now)
        elif fate == SPLIT:
            try:
                split(self.accumulator, b)
            except Exception as problem:
                log.exception("splitting a batch of %d records failed; they fail", b.count)
                self.accumulator.fail(b, told(problem, False))
        elif fate == EXCLUDE:
            try:
                exclude(self.accumulator, b, self._errors_of(p, error_code, culprits))
            except Exception as problem:
                log.exception("sending the others of %d refused records failed; all fail", len(culprits))
                self.accumulator.fail(b, told(problem, False))
        else:
            self.accumulator.fail(b, verdict.error)
        if p.gate != GATE_OPEN:
            self._progress(p, acknowledged)
        return 0

    cdef dict _errors_of(self, const Partition* p, int error_code, dict culprits):
        """The error of each record that a broker named, by its place in the batch."""
        kind = for_code(error_code)
        where = f"{topic_name(p)}-{p.index}"
        return {
            place: told(kind(f"{where}: {text}" if text else where), False)
            for place, text in culprits.items()
        }

    cdef int _put_back(self, Batch* b, double at_ms, int64_t now) except -1:
        """Queues a batch again, its partition backing off until ``at_ms``."""
        cdef Partition* p = b.partition
        self.accumulator.requeue(b, max(now + 1, cyp_ms_ns(at_ms)))
        self.backoff_number += 1
        heapq.heappush(self.backing_off, (p.retry_at_ns, self.backoff_number, <size_t>p))
        self.next_control_ns = min(self.next_control_ns, p.retry_at_ns)
        return 0

    cdef int _give_up(self, Request* r, object cause) except -1:
        """See ``SendLoop``."""
        cdef int32_t i
        # What was not written whole, no broker can have read whole.
        cdef bint written = r.unwritten == 0
        for i in range(r.count):
            self._resolve(r.batches[i], 0, None, cause, written)
        free_request(r)
        return 0

    cdef int _progress(self, Partition* p, int64_t acknowledged_id) except -1:
        """See ``SendLoop``."""
        self.control.on_progress(
            topic_name(p),
            p.index,
            p.in_flight,
            p.unsettled_count,
            p.producer_id == self.accumulator.c.producer_id
            and p.producer_epoch == self.accumulator.c.producer_epoch,
            acknowledged_id,
        )
        return 0

    # What the control plane orders

    cdef Partition* _find(self, str topic, int partition) except NULL:
        cdef TopicInfo state = self.accumulator.topic(topic)
        if not 0 <= partition < state.c.partition_room:
            raise IndexError(f"{topic}-{partition}: no such partition")
        return state.c.partitions[partition]

    def set_gate(self, str topic, int partition, action):
        """Carries out RELEASE, HOLD_NEW or HOLD_ALL for a partition."""
        set_gate(&self.accumulator.c, self._find(topic, partition), _GATES[action])

    def strip_sequences(self, str topic, int partition, int64_t from_id):
        """Takes their sequences from a partition's absent batches; returns how many unsettled ones remain."""
        return strip_sequences(&self.accumulator.c, self._find(topic, partition), from_id)

    def set_identity(self, int64_t producer_id, int epoch):
        """Says what producer id and epoch new batches get; -1: none, they wait for one."""
        set_identity(&self.accumulator.c, producer_id, <int16_t>epoch)

    def set_next_sequence(self, str topic, int partition, int32_t sequence):
        """Makes a partition that has no batch under way go on from this sequence; for tests of the wrap."""
        self._find(topic, partition).next_sequence = sequence
