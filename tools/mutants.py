"""Mutation testing: breaks single lines of the product, and reports the mutants that no test detects.

``python tools/mutants.py [NAME ...]``: copies the tree to a temporary directory and runs the table's tests
there on the unchanged product. Then, for one mutant after the other: applies it, builds the changed file
(with ccache if it is installed) and runs the tests that should fail. A mutant survives if they pass; then the
exit status is 1. Needs the dependencies of the build and of the unit tests, and the extensions built in
place. A mutant takes some 15 seconds.

Owns mutants that unit tests detect. Mutants that only histories of many events detect are in
``tests/simulation/mutate.py``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PARTS = (
    "cyproducer", "pyspark_cyproducer", "pytest_cyproducer", "tests", "perf", "tools", "demo_spark", "build",
    "setup.py", "pyproject.toml", "README.md", "LICENSE",
)  # fmt: skip
PERTURB = "glibc.malloc.tcache_count=0:glibc.malloc.perturb=165"
"""For ``GLIBC_TUNABLES``: overwrites freed memory at once, so that reading it fails a test."""
BUILT = (".pyx", ".h")
"""Sources of the extensions."""
LIMIT_S = 180.0
"""If the tests take longer, the mutant hangs, which counts as detected."""


class Mutant(NamedTuple):
    """``old`` occurs once in ``path``. ``tests`` fail if it is replaced with ``new``."""

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]
    perturbed: bool = False
    """Only detected if freed memory is overwritten."""


MUTANTS = [
    # Forks
    Mutant(
        "fork-by-c-code-unnoticed",
        "cyproducer/base/forks.pyx",
        "if pthread_atfork(NULL, NULL, note_fork) != 0:",
        "if pthread_atfork(NULL, NULL, NULL) != 0:",
        ("tests/base/test_forks.py",),
    ),
    Mutant(
        "interrupted-renewal-forgotten",
        "cyproducer/base/forks.pyx",
        "                fork_noted = NOTED\n                raise\n",
        "                fork_noted = 0\n                raise\n",
        ("tests/base/test_forks.py::test_an_interrupted_renewal_begins_again",),
    ),
    Mutant(
        "renewed-by-two-threads",
        "cyproducer/base/forks.pyx",
        "        mine = fork_noted == NOTED\n",
        "        mine = True\n",
        ("tests/base/test_forks.py::test_other_threads_wait_until_everything_is_renewed",),
    ),
    Mutant(
        "renewal-that-waits-for-itself",
        "cyproducer/base/forks.pyx",
        "        elif renewer == PyThread_get_thread_ident():\n",
        "        elif False:\n",
        ("tests/base/test_forks.py::test_a_function_may_use_what_looks_for_a_fork",),
    ),
    Mutant(
        "waits-for-the-parents-record",
        "cyproducer/futures/delivery.pyx",
        "    own_process()\n    if d.queue.foreign:\n",
        "    if d.queue.foreign:\n",
        ("tests/producer/test_fork_by_c_code.py",),
    ),
    Mutant(
        "topic-of-the-parent",
        "cyproducer/base/forks.pyx",
        "    borrowing += 1\n",
        "",
        ("tests/producer/test_fork_by_c_code.py",),
    ),
    # Buffers
    Mutant(
        "memory-kept-for-ever",
        "cyproducer/accumulator/buffer_pool.pyx",
        "            self.before = self.recent\n",
        "            self.before = max(self.before, self.recent)\n",
        (
            "tests/accumulator/test_buffer_pool.py::"
            "test_what_a_backlog_has_left_is_given_back_after_a_window_without_it",
        ),
    ),
    Mutant(
        "memory-in-use-not-counted-as-needed",
        "cyproducer/accumulator/buffer_pool.pyx",
        "            self.recent = self.in_use\n        self.held",
        "            self.recent = 0\n        self.held",
        ("tests/accumulator/test_buffer_pool.py::test_what_is_in_use_counts_as_needed",),
    ),
    Mutant(
        "no-look-after-a-backlog",
        "cyproducer/sender/sender.pyx",
        "            if cyp_load64(&self.accumulator.pool.in_use) >= MOST_KEPT:\n",
        "            if False:\n",
        ("tests/producer/test_memory.py",),
    ),
    Mutant(
        "once-decided-without-a-check",
        "cyproducer/spark/exactly_once/driver.py",
        "        if problems := self._cluster.not_open(written):",
        "        if problems := []:",
        (
            "tests/spark/exactly_once/test_protocol.py::test_a_batch_whose_transactions_are_not_all_open_is_not_decided",
        ),
    ),
    Mutant(
        "once-decided-is-not-completed",
        "cyproducer/spark/exactly_once/driver.py",
        "        elif not last.done:",
        "        elif False:",
        ("tests/spark/exactly_once/test_protocol.py::test_the_process_dies_at_every_step",),
    ),
    Mutant(
        "once-aborted-without-the-lock",
        "cyproducer/spark/exactly_once/driver.py",
        "        if not self._cluster.give_up(plan.identity):",
        "        if not tasks:",
        ("tests/spark/exactly_once/test_protocol.py::test_what_was_decided_is_not_aborted",),
    ),
    Mutant(
        "once-unknown-is-committed",
        "cyproducer/spark/exactly_once/driver.py",
        "found = self._cluster.outcome(transaction) if end is End.UNKNOWN else end",
        "found = End.COMMITTED if end is End.UNKNOWN else end",
        (
            "tests/spark/exactly_once/test_protocol.py::test_a_task_that_outlives_its_batch_takes_over_its_id_at_every_step",
        ),
    ),
    Mutant(
        "once-aborted-is-not-copied",
        "cyproducer/spark/exactly_once/driver.py",
        "        if not aborted:\n",
        "        if True:\n",
        ("tests/spark/exactly_once/test_protocol.py::test_the_brokers_time_out_what_is_open_at_every_step",),
    ),
    Mutant(
        "once-rows-are-not-compared",
        "cyproducer/spark/exactly_once/driver.py",
        "            plan.standing.check_rows(rows)\n",
        "",
        ("tests/spark/exactly_once/test_protocol.py::test_a_batch_that_is_skipped_must_have_as_many_rows",),
    ),
    Mutant(
        "once-lost-log-unseen",
        "cyproducer/spark/exactly_once/driver.py",
        "            self._check_is_new()\n",
        "            pass\n",
        ("tests/spark/exactly_once/test_protocol.py::test_a_log_that_was_lost_is_noticed",),
    ),
    Mutant(
        "once-losers-left-open",
        "cyproducer/spark/exactly_once/driver.py",
        "            self._abort_open(_AFTERWARDS_S)\n",
        "            pass\n",
        ("tests/spark/exactly_once/test_sink.py::test_an_attempt_that_runs_again_has_an_id_of_its_own",),
    ),
    Mutant(
        "once-gap-allowed",
        "cyproducer/spark/exactly_once/rules.py",
        "        if batch == before + 1:",
        "        if batch >= before + 1:",
        ("tests/spark/exactly_once/test_rules.py::test_a_batch_that_cannot_be_the_next_one_is_an_error",),
    ),
    Mutant(
        "once-attempts-share-an-id",
        "cyproducer/spark/exactly_once/names.py",
        "attempt % _ATTEMPTS + _ATTEMPTS",
        "_ATTEMPTS",
        ("tests/spark/exactly_once/test_rules.py::test_attempts_that_may_meet_have_ids_of_their_own",),
    ),
    Mutant(
        "once-version-of-another-topic-skipped",
        "cyproducer/spark/exactly_once/rules.py",
        "            if self.topic != self.last.topic:\n",
        "            if False:\n",
        (
            "tests/spark/exactly_once/test_rules.py::test_a_jobs_version_is_skipped_only_for_the_same_topic_and_query",
        ),
    ),
    Mutant(
        "once-second-call-skipped",
        "cyproducer/spark/exactly_once/each_batch.py",
        "            if last == this and taken:\n",
        "            if False:\n",
        (
            "tests/spark/exactly_once/test_each_batch.py::test_a_second_call_in_a_batch_is_refused_after_the_first_has_succeeded",
        ),
    ),
    Mutant(
        "once-accepted-without-committing",
        "cyproducer/spark/exactly_once/driver.py",
        "            aborted, left_out = self._outcomes(last.tasks)\n",
        "            aborted, left_out = [], []\n",
        (
            "tests/spark/exactly_once/test_protocol.py::test_accepting_what_could_still_be_committed_commits_it",
        ),
    ),
    Mutant(
        "once-tidying-up-for-ever",
        "cyproducer/spark/exactly_once/driver.py",
        "            self._abort_open(_AFTERWARDS_S)\n",
        "            self._abort_open()\n",
        (
            "tests/spark/exactly_once/test_protocol.py::test_a_batch_that_is_done_does_not_fail_because_brokers_list_no_transactions",
        ),
    ),
    Mutant(
        "once-rights-of-rows-topics-unchecked",
        "cyproducer/spark/exactly_once/driver.py",
        "        if unchecked := sorted(topics - self._known_topics):\n",
        "        if unchecked := ():\n",
        (
            "tests/spark/exactly_once/test_protocol.py::test_rights_on_a_topic_that_only_rows_name_are_checked_before_the_decision",
        ),
    ),
    Mutant(
        "compressed-buffer-kept",
        "cyproducer/accumulator/record_accumulator.pyx",
        "        PyBuffer_Release(&packed)\n",
        "",
        ("tests/accumulator/test_delivery_order.py::test_the_buffer_that_a_compressor_returns_is_released",),
    ),
    Mutant(
        "sealed-without-wake-up",
        "cyproducer/accumulator/record_accumulator.pyx",
        "            if wake:\n                self.wake()\n        return 0\n",
        "        return 0\n",
        ("tests/accumulator/test_wakeups.py::test_a_full_batch_wakes_a_sleeping_sender",),
    ),
    Mutant(
        "accounted-before-failed",
        "cyproducer/accumulator/batch_outcomes.pyx",
        """\
        if not b.abandoned:
            delivery_fail(b.delivery, error)
        pthread_mutex_lock(&a.lock)
        if b.in_request:
            take_off_wire(a, b)
        else:
            withdraw(a, b.partition)
            dequeue(b.partition, b)
        settle(b)
        refresh(a, b.partition)
        if not b.abandoned:
            self._count(b, RECORDS_FAILED)
            self._forget(b)
        pthread_mutex_unlock(&a.lock)
""",
        """\
        pthread_mutex_lock(&a.lock)
        if b.in_request:
            take_off_wire(a, b)
        else:
            withdraw(a, b.partition)
            dequeue(b.partition, b)
        settle(b)
        refresh(a, b.partition)
        if not b.abandoned:
            self._count(b, RECORDS_FAILED)
            self._forget(b)
        pthread_mutex_unlock(&a.lock)
        if not b.abandoned:
            delivery_fail(b.delivery, error)
""",
        ("tests/accumulator/test_wakeups.py::test_futures_have_failed_when_no_batch_is_incomplete",),
    ),
    Mutant(
        "interest-before-state",
        "cyproducer/futures/delivery.pyx",
        "    cyp_store32(&d.state, state)\n    if cyp_load32(&d.interested) == 0:\n        return\n",
        "    listed = cyp_load32(&d.interested) == 0\n    cyp_store32(&d.state, state)\n"
        "    if listed:\n        return\n",
        ("tests/futures/test_delivery_callbacks.py::test_an_outcome_is_stored_before_interest_is_checked",),
    ),
    Mutant(
        "last-parked-deadline",
        "cyproducer/accumulator/partition_table.pyx",
        "        before = before.prev_waiting\n",
        "        break\n",
        (
            "tests/accumulator/test_parked_records.py::"
            "test_overdue_records_fail_in_deadline_order_with_one_error_per_topic",
        ),
    ),
    Mutant(
        "stripped-and-ambiguous",
        "cyproducer/accumulator/sequences.pyx",
        "            b.ambiguous &= p.has_gap\n",
        "",
        ("tests/network/test_idempotent_sender.py::test_a_batch_behind_a_gap_is_certainly_not_in_the_log",),
    ),
    Mutant(
        "parked-for-no-time",
        "cyproducer/send/send_path.pyx",
        "                    expiry = cyp_after(acc.clock.now_ns(), self.max_block_ns)\n",
        "                    expiry = acc.clock.now_ns()\n",
        ("tests/accumulator/test_parked_records.py::test_a_parked_record_expires_after_max_block_ms",),
    ),
    Mutant(
        "header-values-uncounted",
        "cyproducer/records/borrowed.pyx",
        "payload += name_size + max(value.size, 0)",
        "payload += name_size",
        ("tests/accumulator/test_parked_records.py::test_parked_records_keep_all_their_fields",),
    ),
    Mutant(
        "value-kept-where-key-is-wrong",
        "cyproducer/send/send_path.pyx",
        "            let_go(&held_value)\n            let_go(&held_key)\n",
        "            let_go(&held_key)\n",
        ("tests/send/test_send_path.py::test_a_buffer_is_released_if_another_argument_is_invalid",),
    ),
    Mutant(
        "lingers-end-one-by-one",
        "cyproducer/accumulator/ready_partitions.pyx",
        "    until += a.stream_linger_ns // LINGER_PARTS\n",
        "",
        (
            "tests/accumulator/test_record_accumulator.py::"
            "test_a_batch_at_the_end_of_its_linger_is_sent_along_with_another",
        ),
    ),
    Mutant(
        "requests-of-any-size",
        "cyproducer/accumulator/ready_partitions.pyx",
        "        if count > 0 and total + b.size > max_bytes:\n            break\n",
        "",
        ("tests/network/test_sender.py::test_a_request_stays_below_max_request_size",),
    ),
    Mutant(
        "hint-never-learned",
        "cyproducer/accumulator/ready_partitions.pyx",
        "    b.partition.hint = b.size\n",
        "",
        ("tests/accumulator/test_record_accumulator.py::test_the_next_batch_starts_at_the_size_of_the_last",),
    ),
    Mutant(
        "round-robin-skips",
        "cyproducer/accumulator/builtin_partitioner.pyx",
        "        t.turn += 1\n",
        "        t.turn += 2\n",
        ("tests/accumulator/test_builtin_partitioner.py::test_round_robin_uses_the_partitions_in_turn",),
    ),
    Mutant(
        "sticky-bytes-go-on",
        "cyproducer/accumulator/builtin_partitioner.pyx",
        "    t.sticky_bytes = 0\n",
        "",
        ("tests/accumulator/test_builtin_partitioner.py",),
    ),
    Mutant(
        "overtakes-the-old-leader",
        "cyproducer/accumulator/partition_table.pyx",
        "    p.recovering = p.in_flight > 0\n",
        "",
        ("tests/accumulator/test_delivery_order.py::test_batches_in_flight_to_the_old_leader_come_first",),
    ),
    Mutant(
        "known-to-the-new-topic",
        "cyproducer/accumulator/partition_table.pyx",
        "        t.partitions[i].known = 0\n",
        "",
        ("tests/network/test_idempotent_sender.py::test_a_recreated_topic_does_not_know_the_producer",),
    ),
    Mutant(
        "accepted-rows-untold",
        "cyproducer/send/bulk_path.pyx",
        "error.accepted = segments.rows",
        "error.accepted = 0",
        (
            "tests/futures/test_bulk_future.py::test_rows_accepted_before_memory_ran_out_are_sent_and_reported",
        ),
    ),
    Mutant(
        "granted-memory-lost",
        "cyproducer/send/bulk_path.pyx",
        "            s.grant = s.out.need\n",
        "",
        ("tests/futures/test_bulk_future.py::test_a_call_waits_for_free_memory_and_keeps_the_order",),
    ),
    Mutant(
        "one-partition-too-many",
        "cyproducer/send/bulk_path.pyx",
        "        if source.partition >= partitions:\n",
        "        if source.partition > partitions:\n",
        (
            "tests/network/test_refreshed_topics.py::test_metadata_is_requested_once_before_a_partition_is_rejected",
        ),
    ),
    Mutant(
        "placed-record-kept",
        "cyproducer/accumulator/parked_records.pyx",
        "    delivery_unref(k.delivery)\n    free(k)\n    return 0\n",
        "    delivery_unref(k.delivery)\n    return 0\n",
        ("tests/accumulator/test_memory_by_path.py",),
    ),
    Mutant(
        "buffer-kept-with-its-batch",
        "cyproducer/accumulator/batch_outcomes.pyx",
        "        self.pool.release(b.data, b.capacity)\n        delivery_release",
        "        self.pool.unreserve(b.capacity)\n        delivery_release",
        ("tests/accumulator/test_memory_by_path.py",),
    ),
    Mutant(
        "headers-kept",
        "cyproducer/send/send_path.pyx",
        "            if encoded.start != NULL:\n                free(encoded.start)\n",
        "",
        ("tests/accumulator/test_memory_by_path.py",),
    ),
    Mutant(
        "forgotten-with-a-queue",
        "cyproducer/accumulator/partition_table.pyx",
        "        p.first == NULL and p.in_flight == 0",
        "        p.in_flight == 0",
        ("tests/accumulator/test_forgotten_topics.py::test_a_topic_with_batches_under_way_is_not_forgotten",),
    ),
    Mutant(
        "forgotten-while-backing-off",
        "cyproducer/accumulator/partition_table.pyx",
        " and p.retry_at_ns == 0 and p.gate == GATE_OPEN",
        " and p.gate == GATE_OPEN",
        ("tests/accumulator/test_forgotten_topics.py::test_a_topic_with_batches_under_way_is_not_forgotten",),
    ),
    Mutant(
        "forgotten-while-held-back",
        "cyproducer/accumulator/partition_table.pyx",
        " and p.gate == GATE_OPEN",
        "",
        (
            "tests/accumulator/test_forgotten_topics.py::"
            "test_a_topic_is_not_forgotten_while_the_control_plane_holds_a_partition_back",
        ),
    ),
    Mutant(
        "sequences-restored-again",
        "cyproducer/accumulator/parked_records.pyx",
        "        del acc.sequences[state.name]\n",
        "        pass\n",
        (
            "tests/accumulator/test_forgotten_topics.py::"
            "test_sequences_continue_where_a_forgotten_topic_ended",
        ),
    ),
    Mutant(
        "one-deadline-for-all-rows",
        "cyproducer/send/bulk_path.pyx",
        "if s.row > before or deadline == 0:",
        "if deadline == 0:",
        (
            "tests/futures/test_bulk_future.py::test_a_call_that_makes_progress_may_take_longer_than_max_block_ms",
        ),
    ),
    # Records
    Mutant(
        "last-offset-delta",
        "cyproducer/records/record_batch.pyx",
        "put_u32(data + AT_LAST_OFFSET_DELTA, count - 1)",
        "put_u32(data + AT_LAST_OFFSET_DELTA, count)",
        ("tests/records/test_record_batch.py",),
    ),
    Mutant(
        "epoch-unwritten",
        "cyproducer/records/record_batch.pyx",
        "    put_u16(data + AT_PRODUCER_EPOCH, producer_epoch)\n",
        "",
        ("tests/records/test_record_batch.py",),
    ),
    Mutant(
        "stream-kept",
        "cyproducer/records/arrow.pyx",
        "            if stream.release != NULL:\n                stream.release(&stream)\n",
        "            pass\n",
        ("tests/records/test_arrow.py::test_a_stream_is_released_once_whether_it_ends_or_fails",),
    ),
    # Network
    Mutant(
        "read-after-free",
        "cyproducer/sender/produce_response.pyx",
        """\
    cdef int64_t first_record = b.first_record
    sender.accumulator.complete(b, o.base_offset, o.log_append_ms)
""",
        """\
    cdef int64_t first_record
    sender.accumulator.complete(b, o.base_offset, o.log_append_ms)
    first_record = b.first_record
""",
        ("tests/network/test_idempotent_sender.py::test_a_later_acknowledgement_resolves_an_expired_batch",),
        perturbed=True,
    ),
    Mutant(
        "partly-is-written",
        "cyproducer/sender/batch_errors.pyx",
        "cdef bint written = r.unwritten == 0",
        "cdef bint written = True",
        (
            "tests/network/test_idempotent_sender.py::"
            "test_a_batch_of_a_partly_written_request_is_not_in_the_log",
        ),
    ),
    Mutant(
        "hint-for-ever",
        "cyproducer/control/batch_fate.py",
        "        self.new_leaders.discard(place)\n",
        "",
        ("tests/network/test_idempotent_sender.py::test_a_named_leader_is_tried_once_without_backoff",),
    ),
    Mutant(
        "renewal-fails-batches",
        "cyproducer/control/batch_fate.py",
        "            retriable |= isinstance(failure.cause, errors.BrokerResponseError)\n",
        "",
        (
            "tests/control/test_batch_fate.py::"
            "test_a_refused_authentication_that_ended_the_connection_does_not_fail_its_batches",
        ),
    ),
    Mutant(
        "renewal-fails-parked-records",
        "cyproducer/clients/network_client.py",
        "            and not was_accepted(connection)\n",
        "",
        (
            "tests/network/test_authentication.py::"
            "test_a_renewal_that_is_refused_does_not_fail_records_without_metadata",
        ),
    ),
    Mutant(
        "credentials-late-before-they-are-due",
        "cyproducer/net/connector.py",
        "max(authentication.ends_at_ms, authentication.may_begin_ms())",
        "authentication.ends_at_ms",
        (
            "tests/network/test_authentication.py::"
            "test_credentials_of_a_short_session_get_the_request_timeout_too",
        ),
    ),
    Mutant(
        "refused-as-another-node",
        "cyproducer/control/node_states.py",
        "            self._refused[node.host, node.port] = now_ms + delay_ms\n",
        "            pass\n",
        (
            "tests/control/test_connections.py::"
            "test_a_refusal_counts_for_all_nodes_with_the_same_host_and_port",
        ),
    ),
    Mutant(
        "refused-and-tried-again-soon",
        "cyproducer/control/node_states.py",
        "            delay_ms = max(delay_ms, self._refused_backoff.delay_ms(1, self._random))\n",
        "            pass\n",
        (
            "tests/control/test_connections.py::"
            "test_a_refusal_waits_for_its_own_backoff_and_no_less_than_any_failure",
        ),
    ),
    Mutant(
        "accepted-and-still-refused",
        "cyproducer/control/node_states.py",
        "        self._refused.pop((node.host, node.port), None)\n",
        "",
        (
            "tests/control/test_connections.py::"
            "test_an_accepted_connection_ends_the_refusal_for_the_other_nodes",
        ),
    ),
    Mutant(
        "forgotten-while-waited-for",
        "cyproducer/clients/network_client.py",
        "            self._metadata.touch(self._sender.parked_topics(), now_ms)\n",
        "",
        ("tests/network/test_missing_topics.py::test_a_topic_that_a_record_waits_for_is_not_forgotten",),
    ),
    Mutant(
        "gap-untold",
        "cyproducer/control/batch_fate.py",
        "orders = () if on_wire else self._orders(batch, 0, Fate.FAIL, maybe)",
        "orders = ()",
        (
            "tests/network/test_idempotent_sender.py::"
            "test_a_batch_that_expires_in_its_queue_leaves_a_known_gap",
        ),
    ),
    Mutant(
        "asked-for-ever",
        "cyproducer/clients/network_client.py",
        "            self._sender.forget_topic(name)\n            self._asked.discard(name)\n",
        "            self._sender.forget_topic(name)\n",
        (
            "tests/network/test_refreshed_topics.py::"
            "test_a_missing_topic_that_was_forgotten_is_requested_again",
        ),
    ),
    Mutant(
        "sleeps-through-lingers",
        "cyproducer/sender/sender.pyx",
        "            until = min(until, cyp_after(a.lingering.first.first.created_ns, a.stream_linger_ns))\n",
        "            pass\n",
        (
            "tests/accumulator/test_wakeups.py::"
            "test_the_sender_sleeps_no_longer_than_the_oldest_batch_lingers",
        ),
    ),
    Mutant(
        "gathers-for-the-dead",
        "cyproducer/sender/sender.pyx",
        "            transport.node.answered = transport.node.sent\n",
        "",
        ("tests/accumulator/test_record_accumulator.py::test_gathering_ends_when_the_connection_breaks",),
    ),
    Mutant(
        "writes-for-ever",
        "cyproducer/sender/sender.pyx",
        "                r = connection.transport.first_out\n",
        "                continue\n",
        ("tests/network/test_sender_outcomes.py::test_a_write_that_does_not_finish_times_out_with_acks_0",),
    ),
    Mutant(
        "leaves-without-a-word",
        "cyproducer/sender/loop_ownership.pyx",
        "        if not idle:\n            wake_sender(&sender.waker)\n",
        "",
        ("tests/network/test_loop_ownership.py",),
    ),
    Mutant(
        "held-back-for-good",
        "cyproducer/sender/batch_errors.pyx",
        "        return 0\n    sender.accumulator.fail(b, decision.verdict.error)\n"
        "    return batch_progress(sender, p, -1)\n",
        "        return 0\n    sender.accumulator.fail(b, decision.verdict.error)\n    return 0\n",
        (
            "tests/network/test_idempotent_sender.py::"
            "test_batches_behind_one_that_expired_in_its_queue_are_sent",
        ),
    ),
    Mutant(
        "older-epochs-never-believed",
        "cyproducer/control/topic_state.py",
        "        believed = self._older_answers >= OLDER_ANSWERS\n",
        "        believed = False\n",
        ("tests/control/test_topic_state.py::test_without_ids_older_epochs_are_accepted_when_they_persist",),
    ),
    # Spark
    Mutant(
        "halves-swapped",
        "cyproducer/spark/sending.py",
        "for part in (rows.slice(half), rows.slice(0, half))",
        "for part in (rows.slice(0, half), rows.slice(half))",
        ("tests/spark/test_sending.py::test_refused_batches_are_halved_repeatedly",),
    ),
    Mutant(
        "closed-when-taken",
        "cyproducer/spark/sharing.py",
        "        if shared.users:\n            return\n",
        "",
        (
            "tests/spark/test_sharing.py::"
            "test_a_timer_that_fires_while_a_task_takes_the_producer_closes_nothing",
        ),
    ),
    Mutant(
        "spark-secrets-not-sent",
        "cyproducer/spark/sharing.py",
        "        return self.key, {name: _revealed(value) for name, value in self.config.items()}\n",
        "        return self.key, {name: value for name, value in self.config.items()}\n",
        ("tests/spark/test_options.py",),
    ),
    Mutant(
        "spark-shows-private-key",
        "cyproducer/spark/options.py",
        "    if known in _SHOWN:\n",
        '    if known == "":\n',
        ("tests/spark/test_options.py",),
    ),
    Mutant(
        "spark-shows-late-password",
        "cyproducer/spark/options.py",
        "Secret) and name not in at_start:\n",
        "Secret) and False:\n",
        ("tests/spark/test_options.py",),
    ),
    Mutant(
        "spark-retries-refused-password",
        "cyproducer/spark/source.py",
        "                producer.wait_ready()\n",
        "                pass\n",
        ("tests/spark/test_source.py",),
    ),
    Mutant(
        "numbers-of-one-round",
        "cyproducer/spark/mapping.py",
        "numbers = [numbers[number] for number in kept]",
        "numbers = kept",
        ("tests/spark/test_mapping.py::test_rows_keep_their_numbers_over_several_rounds_of_refusals",),
    ),
    Mutant(
        "told-past-the-failure",
        "cyproducer/spark/rows.py",
        "    yield from sent.outcomes()[: first.rows[0]]\n",
        "    yield from sent.outcomes()\n",
        ("tests/spark/test_rows.py::test_records_before_a_refused_one_are_yielded",),
    ),
    Mutant(
        "one-place-two-sinks",
        "cyproducer/spark/options.py",
        "return Sink(self.prefix, STREAM, location(self.checkpoint))",
        "return Sink(self.prefix, STREAM, self.checkpoint)",
        ("tests/spark/test_options.py::test_a_stream_is_named_by_its_checkpoint_or_its_app",),
    ),
    Mutant(
        "commits-under-another-name",
        "cyproducer/spark/exactly_once/driver.py",
        "        plan, batch, query = first.plan, first.batch, first.query\n"
        "        self._act_for(plan.standing.sink)\n",
        "        plan, batch, query = first.plan, first.batch, first.query\n",
        (
            "tests/spark/exactly_once/test_protocol.py::"
            "test_a_log_that_spells_the_place_otherwise_is_gone_on_with_at_every_step",
        ),
    ),
    Mutant(
        "results-for-nobody-under-connect",
        "cyproducer/spark/rows.py",
        '"_lazy": self._results and not is_connect()',
        '"_lazy": self._results',
        (
            "tests/spark/test_rows.py::test_a_function_sent_by_spark_connect_writes_all_though_nobody_iterates",
        ),
    ),
    Mutant(
        "a-row-is-a-partition",
        "cyproducer/spark/rows.py",
        "    if not isinstance(given, Iterator):\n",
        "    if given is None:\n",
        ("tests/spark/test_rows.py::test_a_row_in_place_of_a_partition_is_an_error_in_the_call",),
    ),
    Mutant(
        "continuous-writes-nothing",
        "cyproducer/spark/source.py",
        "        missing = messages.count(None)\n",
        "        missing = 0\n",
        ("tests/spark/test_source.py::test_a_commit_without_the_tasks_messages_is_an_error",),
    ),
    Mutant(
        "sent-twice-after-a-part",
        "cyproducer/spark/rows.py",
        ' or getattr(error, "accepted", None) is not None:',
        ":",
        ("tests/spark/test_rows.py::test_rows_of_which_some_were_accepted_are_not_sent_again",),
    ),
    Mutant(
        "varints-one-bit-too-long",
        "cyproducer/spark/batches.py",
        "for bits in (6, 13, 20, 27, 34)",
        "for bits in (7, 14, 21, 28, 35)",
        ("tests/spark/test_bad_rows.py",),
    ),
    Mutant(
        "the-epoch-itself-is-bad",
        "cyproducer/spark/batches.py",
        "for number in _numbers(pc.less(column, 0)):",
        "for number in _numbers(pc.less_equal(column, 0)):",
        ("tests/spark/test_bad_rows.py",),
    ),
    Mutant(
        "text-is-binary",
        "cyproducer/spark/source.py",
        "    text = pa.string() if isinstance(of, StringType) else pa.binary()\n",
        "    text = pa.binary()\n",
        ("tests/spark/test_source.py",),
    ),
    Mutant(
        "zones-lost",
        "cyproducer/spark/source.py",
        "return value.astimezone(UTC).replace(tzinfo=None)",
        "return value.replace(tzinfo=None)",
        ("tests/spark/test_source.py",),
    ),
    Mutant(
        "topic-column-beside-the-option",
        "cyproducer/spark/columns.py",
        '        found.pop("topic", None)\n',
        "        pass\n",
        ("tests/spark/test_columns.py",),
    ),
    Mutant(
        "p99-of-earlier-tasks",
        "cyproducer/spark/meters.py",
        "self._buckets = {} if before is None else dict(before.buckets(_LATENCY))",
        "self._buckets: dict[float, int] = {}",
        ("tests/spark/test_sending.py::test_the_p99_is_that_of_the_task",),
    ),
    Mutant(
        "every-range-logged",
        "cyproducer/spark/summary.py",
        "            for r in self.ranges[:SHOWN_RANGES]\n",
        "            for r in self.ranges\n",
        ("tests/spark/test_sending.py",),
    ),
    Mutant(
        "results-of-refused-unwanted",
        "cyproducer/spark/rows.py",
        "    if results:\n        yield from sent.outcomes()",
        "    if True:\n        yield from sent.outcomes()",
        ("tests/spark/test_rows.py::test_records_before_a_refused_one_are_yielded",),
    ),
    Mutant(
        "table-options-unmentioned",
        "cyproducer/spark/options.py",
        'of_table = "" if given else _NO_TABLE_OPTIONS',
        'of_table = ""',
        ("tests/spark/test_options.py::test_without_any_option_the_error_is_about_tables",),
    ),
    Mutant(
        "options-of-others",
        "cyproducer/spark/topics.py",
        "if value is None or name not in known:",
        "if value is None:",
        ("tests/spark/test_topics.py",),
    ),
    Mutant(
        "error-beside-another-row",
        "cyproducer/spark/mapping.py",
        "errors[sent.numbers[row]] = text",
        "errors[row] = text",
        (
            "tests/spark/test_mapping.py::"
            "test_a_row_that_failed_at_the_broker_has_its_error_after_others_were_refused",
        ),
    ),
    # Metrics
    Mutant(
        "record-size-as-sent",
        "cyproducer/observability/definitions.py",
        'size = r.recent("raw_bytes") - HEADER_BYTES',
        'size = r.recent("batch_bytes") - HEADER_BYTES',
        (
            "tests/observability/test_values.py::test_the_compression_rate_is_bytes_sent_divided_by_uncompressed_bytes",
        ),
    ),
    Mutant(
        "async-seals-no-batch",
        "cyproducer/send/send_path.pyx",
        "                if out.sealing != NULL:\n"
        "                    acc.seal(out.sealing)\n"
        "                if result == NEED_MEMORY:\n",
        "                if out.sealing != NULL and blocks:\n"
        "                    acc.seal(out.sealing)\n"
        "                if result == NEED_MEMORY:\n",
        (
            "tests/send/test_batch_boundaries.py::test_a_batch_that_is_closed_for_lack_of_memory_is_compressed_and_sent",
        ),
    ),
    Mutant(
        "joined-rows-raise-no-timestamp",
        "cyproducer/send/bulk_append.pyx",
        "    if timestamp_ms > b.max_timestamp:\n"
        "        b.max_timestamp = timestamp_ms\n"
        "    b.size = p - b.data\n",
        "    b.size = p - b.data\n",
        (
            "tests/send/test_batch_boundaries.py::test_rows_that_join_an_earlier_batch_raise_its_max_timestamp",
        ),
    ),
    Mutant(
        "error-text-decoded-strictly",
        "cyproducer/sender/produce_response.pyx",
        '        message = printable(o.message[:o.message_size].decode("utf-8", "replace"))\n',
        '        message = printable(o.message[:o.message_size].decode("utf-8"))\n',
        ("tests/network/test_error_texts.py::test_an_error_message_that_is_not_utf_8_reaches_the_future",),
    ),
    Mutant(
        "writing-is-no-use",
        "cyproducer/net/transport.pyx",
        "        transport.last_used_ns = now\n        transport.traffic.out_bytes += n\n",
        "        transport.traffic.out_bytes += n\n",
        ("tests/network/test_connection_use.py::test_writing_is_use_of_a_connection_that_gets_no_responses",),
    ),
    Mutant(
        "deleted-partition-not-held-back",
        "cyproducer/control/batch_fate.py",
        "        return Decision(Verdict(Fate.FAIL, 0, error, maybe), "
        "self._orders(batch, 0, Fate.FAIL, maybe))",
        "        return Decision(Verdict(Fate.FAIL, 0, error, maybe))",
        (
            "tests/control/test_rare_decisions.py::test_a_sequenced_batch_of_a_deleted_partition_holds_the_partition_back",
        ),
    ),
    Mutant(
        "last-kind-s-report-time",
        "cyproducer/control/log_limit.py",
        "                    due_ms = min(due_ms, kind.until_ms - now_ms)",
        "                    due_ms = kind.until_ms - now_ms",
        ("tests/control/test_rare_decisions.py::test_the_next_report_is_that_of_the_kind_held_back_first",),
    ),
    Mutant(
        "second-of-long-ago",
        "cyproducer/control/log_limit.py",
        "        kind.until_ms = now_ms + INTERVAL_MS\n        kind.held",
        "        kind.until_ms += INTERVAL_MS\n        kind.held",
        ("tests/control/test_rare_decisions.py::test_a_line_after_a_long_pause_starts_a_second_of_its_own",),
    ),
    Mutant(
        "gap-moved-forward",
        "cyproducer/control/idempotence.py",
        "batch.id if trouble.gap_id < 0 else min(trouble.gap_id, batch.id)",
        "batch.id",
        ("tests/control/test_rare_decisions.py::test_a_younger_absent_batch_does_not_move_the_gap",),
    ),
    Mutant(
        "lost-batch-hidden",
        "cyproducer/control/idempotence.py",
        "            trouble.lost_id = max(trouble.lost_id, batch.id)",
        "            trouble.lost_id = batch.id",
        ("tests/control/test_rare_decisions.py::test_an_older_lost_batch_does_not_hide_a_younger_one",),
    ),
    Mutant(
        "broker-0-leads-nothing",
        "cyproducer/control/cluster_view.py",
        "if leader >= 0)",
        "if leader > 0)",
        ("tests/control/test_rare_decisions.py::test_broker_0_leads_partitions_like_any_other",),
    ),
    Mutant(
        "shared-list-repeated",
        "cyproducer/control/cluster_view.py",
        " = __iadd__ = __imul__ = _refuse",
        " = __iadd__ = _refuse",
        ("tests/control/test_rare_decisions.py::test_no_method_of_a_list_changes_a_shared_one",),
    ),
    Mutant(
        "one-error-for-all-batches",
        "cyproducer/errors/base.py",
        '    twin = copied(error)\n    twin.__dict__["maybe',
        '    twin = error\n    twin.__dict__["maybe',
        (
            "tests/control/test_error_copies.py::test_each_batch_has_an_error_of_its_own_that_says_what_is_known_of_it",
        ),
    ),
    Mutant(
        "falsy-plugin-dropped",
        "cyproducer/config/option_kinds.py",
        '        if value is None or value == "":\n            return ()',
        "        if not value:\n            return ()",
        ("tests/config/test_falsy_plugins.py::test_an_empty_collection_of_methods_is_a_plugin",),
    ),
    Mutant(
        "misspelt-hook-of-an-interceptor-kept",
        "cyproducer/config/option_kinds.py",
        "            if hooks and missing:\n",
        "            if False:\n",
        ("tests/project/test_typing.py::test_a_mistake_raises_at_run_time",),
    ),
    Mutant(
        "ctrl-c-handler-lost",
        "cyproducer/cli/interrupts.py",
        "            signal.signal(number, handler)\n",
        "            signal.signal(number, signal.default_int_handler)\n",
        ("tests/cli/test_rare_endings.py::test_a_handler_of_the_calling_program_is_there_again_afterwards",),
    ),
    Mutant(
        "reporters-end-backwards",
        "cyproducer/observability/registry.py",
        '_call(self._reporters.pop(0), "close")',
        '_call(self._reporters.pop(), "close")',
        (
            "tests/observability/test_reporter_order.py::test_reporters_end_in_the_order_in_which_they_were_given",
        ),
    ),
    Mutant(
        "number-of-a-closed-producer-kept",
        "cyproducer/_open_producers.py",
        "other == name and not (isinstance(holder, Runtime) and holder.closed)",
        "other == name",
        (
            "tests/observability/test_prometheus.py::"
            "test_producers_with_one_client_id_have_numbers_and_keep_them",
        ),
    ),
    Mutant(
        "mock-producers-exposed",
        "cyproducer/_runtime.py",
        " and one.thread.ident is not None",
        "",
        ("tests/observability/test_prometheus.py::test_a_mock_producer_is_not_exposed",),
    ),
    Mutant(
        "number-of-a-closed-producer-given-away",
        "cyproducer/opentelemetry/metrics.py",
        "            hold_number(runtime, values)\n",
        "",
        (
            "tests/observability/test_opentelemetry_metrics.py::"
            "test_a_closed_producer_and_its_successor_are_told_apart",
        ),
    ),
    Mutant(
        "times-recorded-twice",
        "cyproducer/opentelemetry/metrics.py",
        "            recorded.update(buckets)\n",
        "",
        ("tests/observability/test_opentelemetry_metrics.py::test_a_histogram_gets_each_value_once",),
    ),
    Mutant(
        "refresh-asked-for-in-vain",
        "cyproducer/observability/registry.py",
        "        self._due = False\n        self.refresh()",
        "        self.refresh()\n        self._due = False",
        (
            "tests/observability/test_reporter_order.py::test_what_comes_up_while_reporters_are_told_is_told_next",
        ),
    ),
    Mutant(
        "forgotten-topic-counts-0",
        "cyproducer/observability/registry.py",
        "            except KeyError:\n"
        "                # The topic was forgotten.\n"
        "                return math.nan\n",
        "            except KeyError:\n"
        "                # The topic was forgotten.\n"
        "                return 0.0\n",
        (
            "tests/observability/test_reporter_order.py::test_a_metric_of_a_forgotten_topic_has_no_value_any_more",
        ),
    ),
    Mutant(
        "reporters-share-a-list",
        "cyproducer/observability/registry.py",
        '_call(reporter, "init", list(metrics))',
        '_call(reporter, "init", metrics)',
        ("tests/observability/test_reporter_order.py::test_a_reporter_may_change_the_list_that_it_is_given",),
    ),
    Mutant(
        "ended-thread-still-current",
        "cyproducer/base/user_thread.py",
        "            self._ident = 0\n            running.release()",
        "            running.release()",
        (
            "tests/producer/test_user_thread_records.py::test_a_new_thread_with_the_ended_one_s_identifier_is_another_thread",
        ),
    ),
    Mutant(
        "relative-time-of-emitting",
        "cyproducer/base/log.py",
        "    record.relativeCreated -= (record.created - created) * 1000\n",
        "",
        (
            "tests/producer/test_user_thread_records.py::test_the_times_of_a_line_are_those_at_which_it_was_logged",
        ),
    ),
    Mutant(
        "extensions-end-backwards",
        "cyproducer/producer.py",
        "(*reversed(extras), self._custom)",
        "(*extras, self._custom)",
        (
            "tests/producer/test_order_of_closing.py::test_interceptors_end_in_their_order_and_serializers_after_them",
        ),
    ),
    Mutant(
        "refused-record-without-topic",
        "cyproducer/send/send_path.pyx",
        "future = refused_future(str(topic), error, -1)",
        'future = refused_future("", error, -1)',
        ("tests/producer/test_rare_arguments.py::test_a_record_that_send_all_refuses_fails_with_its_topic",),
    ),
    Mutant(
        "one-lost-record-untold",
        "cyproducer/producer.py",
        "        if lost:\n            log.warning",
        "        if lost > 1:\n            log.warning",
        ("tests/producer/test_rare_arguments.py::test_a_single_record_that_is_lost_at_the_end_is_told",),
    ),
    Mutant(
        "failed-close-keeps-others-open",
        "cyproducer/producer.py",
        '                log.exception("%r raised in close", extra)',
        '                log.exception("%r raised in close", extra)\n                break',
        ("tests/producer/test_rare_arguments.py::test_an_extension_that_fails_to_close_keeps_no_other_open",),
    ),
    Mutant(
        "partitions-shared",
        "cyproducer/producer.py",
        "        return set(view.partitions_for_topic(topic) or ())",
        "        return view.partitions_for_topic(topic) or set()",
        ("tests/producer/test_rare_arguments.py::test_partitions_for_gives_each_caller_a_set_of_its_own",),
    ),
    Mutant(
        "keyed-before-serializing",
        "cyproducer/send/send_path.pyx",
        "                and key_bytes is None\n",
        "                and key is None\n",
        (
            "tests/producer/test_rare_arguments.py::test_a_key_that_is_serialized_to_nothing_is_none_for_the_partitioner",
        ),
    ),
    Mutant(
        "no-position-is-a-position",
        "cyproducer/_consumer_offsets.py",
        "        if not isinstance(offset, int) or offset != _OFFSET_INVALID:\n",
        "        if True:\n",
        ("tests/producer/test_offsets.py::test_entries_without_a_position_are_left_out_of_a_list",),
    ),
    Mutant(
        "position-of-another-partition",
        "cyproducer/_consumer_offsets.py",
        ' and not hasattr(value, "partition")',
        "",
        ("tests/producer/test_offsets.py::test_a_wrong_value_is_refused_with_its_partition",),
    ),
    Mutant(
        "record-as-position",
        "cyproducer/_consumer_offsets.py",
        '"offset", "metadata")\n        topic, partition, offset, metadata = fields = '
        "[getattr(value, name, _MISSING)",
        '"offset", "metadata")\n        topic, partition, offset, metadata = fields = '
        "[getattr(value, name, None)",
        ("tests/producer/test_offsets.py::test_a_wrong_entry_of_a_list_is_refused_with_its_place",),
    ),
    Mutant(
        "first-generation-is-not-fenced",
        "cyproducer/_consumer_offsets.py",
        "    return group.generation_id >= 0 or",
        "    return group.generation_id > 0 or",
        ("tests/producer/test_offsets.py::test_only_a_member_can_be_fenced",),
    ),
    Mutant(
        "idle-timer-runs-on",
        "cyproducer/spark/sharing.py",
        "            shared.timer.cancel()\n            shared.timer = None\n        return shared",
        "            shared.timer = None\n        return shared",
        (
            "tests/spark/test_rare_endings.py::test_a_task_that_takes_an_idle_producer_stops_the_timer_that_would_close_it",
        ),
    ),
    Mutant(
        "first-failed-close-ends-closing",
        "cyproducer/spark/sharing.py",
        "        except KafkaError as error:\n            errors.append(error)\n    if errors:",
        "        except KafkaError as error:\n            errors = [error]\n            break\n"
        "    if errors:",
        ("tests/spark/test_rare_endings.py::test_one_producer_that_fails_to_close_keeps_no_other_open",),
    ),
    Mutant(
        "refused-bytes-counted-twice",
        "cyproducer/spark/sending.py",
        "        self._bytes -= self._payload(rows)\n",
        "",
        (
            "tests/spark/test_rare_endings.py::test_bytes_of_a_refused_batch_are_counted_with_its_halves_alone",
        ),
    ),
    Mutant(
        "latency-of-nothing-is-nan",
        "cyproducer/spark/meters.py",
        "    return 0.0\n",
        '    return float("nan")\n',
        ("tests/spark/test_rare_endings.py::test_a_task_without_rows_has_a_latency_that_compares",),
    ),
    Mutant(
        "merged-range-dropped",
        "cyproducer/spark/sending.py",
        "            self._ranges = list(merge_ranges(self._ranges))",
        "            self._ranges = list(merge_ranges(self._ranges[:-1]))",
        (
            "tests/spark/test_windows_of_tasks.py::test_no_record_is_forgotten_where_ranges_of_many_partitions_are_merged",
        ),
    ),
    Mutant(
        "unknown-is-not-written",
        "cyproducer/spark/sending.py",
        "cause.maybe_written is not False:",
        "cause.maybe_written:",
        ("tests/spark/test_windows_of_tasks.py::test_a_refused_row_that_may_be_written_is_no_dead_letter",),
    ),
    Mutant(
        "window-never-reopens",
        "cyproducer/spark/rows.py",
        "                        under_way -= count\n",
        "",
        ("tests/spark/test_windows_of_tasks.py::test_a_window_of_records_stays_under_way",),
    ),
    Mutant(
        "left-records-linger",
        "cyproducer/spark/rows.py",
        "                # The caller closed the generator early. Records already sent "
        "were accepted: await them too.\n"
        "                await_outcomes(producer)\n",
        "",
        (
            "tests/spark/test_windows_of_tasks.py::test_who_takes_a_few_outcomes_has_the_others_awaited_at_once",
        ),
    ),
    Mutant(
        "callback-error-escapes",
        "cyproducer/spark/summary.py",
        '    except Exception:\n        log.exception("summaryCallback %s failed',
        '    except ValueError:\n        log.exception("summaryCallback %s failed',
        ("tests/spark/test_summary_callback.py::test_whatever_a_callback_raises_is_logged_alone",),
    ),
    Mutant(
        "any-number-of-batches-kept",
        "cyproducer/spark/mapping.py",
        "                while len(sent) > _UNDER_WAY or",
        "                while len(sent) >= 10**9 or",
        ("tests/spark/test_batches_under_way.py::test_a_long_task_keeps_few_batches",),
    ),
    Mutant(
        "true-in-capitals-is-false",
        "cyproducer/spark/options.py",
        '    return value.lower() == "true"',
        '    return value == "true"',
        ("tests/spark/test_batches_under_way.py::test_truth_values_are_read_in_any_letters",),
    ),
    Mutant(
        "any-number-of-letters-kept",
        "cyproducer/spark/dead_letters.py",
        "            if len(self._letters) >= _UNDER_WAY:\n                self._settle()\n",
        "",
        ("tests/spark/test_refused_dead_letters.py::test_letters_are_settled_while_others_are_sent",),
    ),
    Mutant(
        "cut-letter-again-and-again",
        "cyproducer/spark/dead_letters.py",
        "            if letter.most <= CUT_BYTES:\n                raise",
        "            if letter.most < CUT_BYTES:\n                raise",
        (
            "tests/spark/test_refused_dead_letters.py::test_a_letter_that_is_refused_when_it_was_cut_is_an_error",
        ),
    ),
    Mutant(
        "cut-value-beside-cut-key",
        "cyproducer/spark/dead_letters.py",
        'cut_value = value[: room - len(cut_key or b"")] if value is not None else None',
        "cut_value = value[:room] if value is not None else None",
        ("tests/spark/test_refused_dead_letters.py::test_key_and_value_are_cut_to_what_one_request_takes",),
    ),
    Mutant(
        "last-waiter-left",
        "cyproducer/accumulator/buffer_pool.pyx",
        "            if self.last_waiter == me:\n                self.last_waiter = at\n",
        "",
        ("tests/accumulator/test_waiting_and_backoff.py::test_whoever_joins_after_one_has_left_is_served",),
    ),
    Mutant(
        "backoff-cut-short",
        "cyproducer/accumulator/batch_outcomes.pyx",
        "        if retry_at_ns > p.retry_at_ns:\n            p.retry_at_ns = retry_at_ns\n",
        "        p.retry_at_ns = retry_at_ns\n",
        (
            "tests/accumulator/test_waiting_and_backoff.py::test_a_shorter_backoff_of_a_later_batch_does_not_end_that_of_an_earlier_one",
        ),
    ),
    Mutant(
        "flush-forgets-parked",
        "cyproducer/accumulator/batch_outcomes.pyx",
        "                            placed = True\n                            target = a.next_id",
        "                            placed = True",
        (
            "tests/accumulator/test_waiting_and_backoff.py::test_a_flush_waits_for_the_batch_that_a_parked_record_went_into",
        ),
    ),
    Mutant(
        "probe-wait-without-bound",
        "cyproducer/accumulator/batch_limit.pyx",
        "    t.probe_wait_ns = min(2 * t.probe_wait_ns, LONGEST_WAIT_NS)\n",
        "    t.probe_wait_ns = 2 * t.probe_wait_ns\n",
        (
            "tests/accumulator/test_choices_and_probes.py::test_probes_of_a_limit_that_stays_come_every_twenty_seconds",
        ),
    ),
    Mutant(
        "probe-wait-kept-after-success",
        "cyproducer/accumulator/batch_limit.pyx",
        "    t.probe_wait_ns = FIRST_WAIT_NS\n    t.probe_at_ns = 0\n",
        "    t.probe_at_ns = 0\n",
        (
            "tests/accumulator/test_probes_after_a_success.py::test_a_probe_that_is_acknowledged_makes_the_next_wait_a_short_one",
        ),
    ),
    Mutant(
        "batches-on-the-wire-unweighed",
        "cyproducer/accumulator/builtin_partitioner.pyx",
        "queued[n] = p.queued + p.in_flight",
        "queued[n] = p.queued",
        (
            "tests/accumulator/test_choices_and_probes.py::test_batches_at_a_broker_count_for_its_partitions_as_queued_ones_do",
        ),
    ),
    Mutant(
        "older-than-its-batch",
        "cyproducer/accumulator/record_accumulator.pyx",
        "                b.clock_ms = timestamp\n",
        "",
        (
            "tests/accumulator/test_lagging_clock.py::test_a_record_is_not_older_than_the_one_its_batch_began_with",
        ),
    ),
    Mutant(
        "parked-topic-unused",
        "cyproducer/accumulator/parked_records.pyx",
        "        t.last_used_ns = acc.clock.now_ns()\n        delivery_ref",
        "        delivery_ref",
        (
            "tests/accumulator/test_topics_in_use.py::test_each_parked_record_and_each_batch_counts_as_use_of_its_topic",
        ),
    ),
    Mutant(
        "forgotten-with-batches-under-way",
        "cyproducer/accumulator/ready_partitions.pyx",
        "(p.unsettled_count == 0 and now - p.sequenced_ns > FORGOTTEN_NS)",
        "(now - p.sequenced_ns > FORGOTTEN_NS)",
        ("tests/network/test_pauses_of_a_partition.py::test_a_slow_answer_is_no_pause",),
    ),
    Mutant(
        "sequences-of-an-older-epoch-kept",
        "cyproducer/accumulator/partition_table.pyx",
        "        if p.producer_id == a.producer_id and p.producer_epoch == "
        "a.producer_epoch:\n            out.next",
        "        if p.producer_id == a.producer_id:\n            out.next",
        (
            "tests/accumulator/test_sequences_of_old_epochs.py::test_only_sequences_of_the_epoch_of_now_are_kept",
        ),
    ),
    Mutant(
        "failed-schema-released",
        "cyproducer/records/arrow.pyx",
        "    if code:\n        table.schema.release = NULL\n",
        "    if code:\n",
        ("tests/records/test_failed_schema.py::test_a_schema_that_came_with_an_error_is_not_released",),
    ),
    Mutant(
        "view-behind-its-buffer",
        "cyproducer/records/columnar.pyx",
        "if load32(view + 12) + size > c.sizes[buffer] or",
        "if size > c.sizes[buffer] or",
        ("tests/records/test_views_beyond_buffers.py::test_a_view_ends_within_its_buffer",),
    ),
    Mutant(
        "length-of-a-dictionary",
        "cyproducer/records/columnar.pyx",
        "        check_counts(a.dictionary, of)\n",
        "",
        ("tests/records/test_arrow.py::test_impossible_sizes_and_missing_pointers_are_refused",),
    ),
    Mutant(
        "offset-behind-the-last-one",
        "cyproducer/records/columnar.pyx",
        "if bad or load32(c.rows + 4 * end) > c.data_size or (",
        "if bad or (",
        ("tests/records/test_arrow.py::test_impossible_sizes_and_missing_pointers_are_refused",),
    ),
    Mutant(
        "released-array",
        "cyproducer/records/columnar.pyx",
        "if a.release == NULL:",
        "if False:",
        ("tests/records/test_arrow.py::test_impossible_sizes_and_missing_pointers_are_refused",),
    ),
    Mutant(
        "children-of-another-type",
        "cyproducer/records/columnar.pyx",
        "if a.n_children != children:",
        "if False:",
        ("tests/records/test_arrow.py::test_impossible_sizes_and_missing_pointers_are_refused",),
    ),
    Mutant(
        "timestamp-row-of-its-batch",
        "cyproducer/records/row_source.pyx",
        '                    f"{self.place(self.timestamp_name, before + row)}: {said} is not',
        '                    f"{self.place(self.timestamp_name, row)}: {said} is not',
        ("tests/records/test_rows_of_later_batches.py::test_a_bad_row_is_named_by_its_place_in_all_batches",),
    ),
    Mutant(
        "null-row-of-its-batch",
        "cyproducer/records/row_source.pyx",
        "data: row {self.count + whole} is null",
        "data: row {whole} is null",
        (
            "tests/records/test_rows_of_later_batches.py::test_a_row_that_is_null_as_a_whole_is_named_by_its_place_in_all_batches",
        ),
    ),
    Mutant(
        "refused-scalar-kept",
        "cyproducer/records/borrowed.pyx",
        "    except BaseException:\n        PyBuffer_Release(view)\n        raise\n    return 0",
        "    except BaseException:\n        raise\n    return 0",
        ("tests/records/test_rows_of_later_batches.py::test_a_scalar_that_is_refused_is_let_go_of",),
    ),
    Mutant(
        "futures-kept-while-reading",
        "cyproducer/cli/line_producer.py",
        "                self._send_lines(name, first, block)\n                self._settle()\n",
        "                self._send_lines(name, first, block)\n",
        ("tests/cli/test_line_producer.py::test_futures_are_let_go_of_while_lines_are_read",),
    ),
    Mutant(
        "a-thousand-kilobytes",
        "cyproducer/cli/console.py",
        ">= 1000 and len(units) > 1:",
        "> 1000 and len(units) > 1:",
        ("tests/cli/test_rare_endings.py::test_an_amount_that_is_rounded_up_to_the_next_unit_has_that_unit",),
    ),
    Mutant(
        "letter-tells-its-size-twice",
        "cyproducer/spark/dead_letters.py",
        '            told = [*about, (f"{PREFIX}bytes", b"%d" % size)]',
        '            told = about = [*about, (f"{PREFIX}bytes", b"%d" % size)]',
        ("tests/spark/test_rare_endings.py::test_a_dead_letter_that_is_cut_twice_tells_its_size_once",),
    ),
    Mutant(
        "shared-list-without-copies",
        "cyproducer/control/cluster_view.py",
        "        return list, (list(self),)",
        "        return type(self), (), None, iter(self)",
        ("tests/control/test_rare_decisions.py::test_a_copy_of_a_shared_list_is_a_list_of_its_own",),
    ),
    Mutant(
        "rows-counted-from-the-batch-before",
        "cyproducer/records/row_source.pyx",
        "        before += source.batches[i].count\n",
        "        before = source.batches[i].count\n",
        ("tests/records/test_rows_of_later_batches.py::test_a_bad_row_is_named_by_its_place_in_all_batches",),
    ),
    Mutant(
        "delimiter-cut-in-two",
        "cyproducer/cli/line_reader.py",
        "            begin = max(0, len(rest) - len(delimiter) + 1)",
        "            begin = len(rest)",
        ("tests/cli/test_line_reader.py::test_it_does_not_matter_where_reading_cuts",),
    ),
    Mutant(
        "future-lost-to-a-signal",
        "cyproducer/cli/interrupts.py",
        "            futures.extend(map(send, *columns))",
        "            for row in zip(*columns):\n                futures.append(send(*row))",
        (
            "tests/cli/test_line_producer.py::test_a_signal_after_a_call_has_returned_does_not_lose_its_future",
        ),
    ),
    Mutant(
        "interrupt-makes-time-longer",
        "cyproducer/cli/line_producer.py",
        "deadline_s = min(deadline_s, monotonic_s() + interrupted_timeout_s)",
        "deadline_s = monotonic_s() + interrupted_timeout_s",
        ("tests/cli/test_line_producer.py::test_an_interrupt_makes_no_time_longer",),
    ),
    Mutant(
        "asks-the-same-version-again",
        "cyproducer/net/connector.py",
        "min(highest, version - 1)",
        "highest",
        ("tests/network/test_handshake_versions.py::test_a_rejected_version_is_not_asked_for_again",),
    ),
    Mutant(
        "socket-kept-when-connect-fails",
        "cyproducer/net/connector.py",
        "        except BaseException:\n            sock.close()\n            raise\n        return sock",
        "        except BaseException:\n            raise\n        return sock",
        ("tests/network/test_socket_setup.py::test_a_socket_whose_connect_fails_at_once_is_closed",),
    ),
    Mutant(
        "buffers-swapped",
        "cyproducer/net/connector.py",
        "(self._config.send_buffer_bytes, socket.SO_SNDBUF),\n"
        "                (self._config.receive_buffer_bytes, socket.SO_RCVBUF)",
        "(self._config.send_buffer_bytes, socket.SO_RCVBUF),\n"
        "                (self._config.receive_buffer_bytes, socket.SO_SNDBUF)",
        ("tests/network/test_socket_setup.py::test_each_buffer_size_goes_to_its_own_socket_option",),
    ),
    Mutant(
        "lines-held-back-lost-at-close",
        "cyproducer/clients/network_client.py",
        "        self._log_limit.flush(math.inf)\n",
        "",
        ("tests/network/test_waits_and_the_end.py::test_closing_logs_what_the_limit_of_log_lines_held_back",),
    ),
    Mutant(
        "wait-ready-past-close",
        "cyproducer/clients/network_client.py",
        "if left <= 0 or self._fatal is not None:",
        "if left <= 0:",
        ("tests/network/test_waits_and_the_end.py::test_closing_ends_a_wait_for_the_first_broker",),
    ),
    Mutant(
        "stale-topic-error",
        "cyproducer/clients/network_client.py",
        "        with self._changed:\n            self._topic_errors.pop(name, None)\n",
        "",
        (
            "tests/network/test_waits_and_the_end.py::test_a_topic_that_was_refused_is_asked_for_again_once_it_is_allowed",
        ),
    ),
    Mutant(
        "id-backoff-never-reset",
        "cyproducer/clients/producer_id.py",
        "            self._refusals = 0\n            self._idem",
        "            self._idem",
        ("tests/network/test_producer_id_retries.py::test_the_backoff_begins_anew_after_an_id_was_granted",),
    ),
    Mutant(
        "lacking-broker-kept",
        "cyproducer/clients/producer_id.py",
        "        self._ask_again(error, now_ms)\n        self._sender.close_connection(connection, error)",
        "        self._ask_again(error, now_ms)",
        ("tests/network/test_producer_id_retries.py::test_a_connection_to_a_broker_without_ids_is_closed",),
    ),
    Mutant(
        "each-wait-its-own-time",
        "cyproducer/_send_async.py",
        "left_s = max(0.0, deadline - monotonic_s())",
        "left_s = producer.config.max_block_ms / 1000",
        ("tests/producer/test_send_async_waits.py::test_all_waits_of_one_call_share_max_block_ms",),
    ),
    Mutant(
        "refused-topic-raises",
        "cyproducer/_send_async.py",
        "        except BrokerResponseError as error:\n            producer._note_refused(error)",
        "        except KeyError as error:\n            producer._note_refused(error)",
        (
            "tests/producer/test_send_async_waits.py::test_a_topic_that_a_partitioner_waits_for_in_vain_fails_through_the_future",
        ),
    ),
    Mutant(
        "pipe-blocks",
        "cyproducer/base/wakeup_fd.py",
        "    for fd in fds:\n        os.set_blocking(fd, False)\n    return fds",
        "    return fds",
        (
            "tests/producer/test_send_async_waits.py::test_without_eventfd_a_pipe_that_never_blocks_announces_memory",
        ),
    ),
    Mutant(
        "one-failing-close-ends-all",
        "cyproducer/_runtime.py",
        "        except Exception:\n            # The next producer",
        "        except KeyError:\n            # The next producer",
        (
            "tests/producer/test_runtime_failures.py::test_a_producer_that_cannot_be_closed_at_the_exit_keeps_no_other_from_it",
        ),
    ),
    Mutant(
        "start-fails-halfway",
        "cyproducer/_runtime.py",
        "        except BaseException:\n            self.close(0)\n            raise",
        "        except BaseException:\n            raise",
        (
            "tests/producer/test_runtime_failures.py::test_a_producer_whose_thread_cannot_be_started_leaves_nothing_open",
        ),
    ),
    Mutant(
        "flush-time-spent-twice",
        "cyproducer/_runtime.py",
        "left = max(0.0, deadline - monotonic_s())\n        patience",
        "left = timeout_s\n        patience",
        (
            "tests/producer/test_runtime_failures.py::test_callbacks_have_what_the_records_left_of_the_time_of_a_flush",
        ),
    ),
    Mutant(
        "end-awaited-once",
        "cyproducer/_runtime.py",
        "            waits = waits + 1 if left == before else 1\n",
        "            waits += 1\n",
        (
            "tests/producer/test_producer_closing.py::test_close_gives_up_only_if_the_sender_makes_no_progress",
        ),
    ),
    Mutant(
        "second-close-awaits-once",
        "cyproducer/_runtime.py",
        "            if not acquire(timeout_s) and not self._await_end(acquire):\n",
        "            if not acquire(timeout_s):\n",
        (
            "tests/producer/test_producer_closing.py::test_a_second_close_0_counts_its_waits_for_the_first_one",
        ),
    ),
    Mutant(
        "failure-releases-the-gil",
        "cyproducer/futures/delivery.pyx",
        "    settled(d, FAILED)\n",
        "    with nogil:\n        settled(d, FAILED)\n",
        ("tests/producer/test_producer_closing.py::test_records_fail_without_a_release_of_the_gil_for_each",),
    ),
    Mutant(
        "sender-error-unnamed",
        "cyproducer/_runtime.py",
        '            self._end_error = errors.KafkaError(f"the sender thread failed: {error!r}")\n',
        "            pass\n",
        ("tests/producer/test_sender_failure.py::test_records_of_a_sender_that_failed_name_its_error",),
    ),
    Mutant(
        "control-error-keeps-connection",
        "cyproducer/sender/sender.pyx",
        "            self.close_connection(connection, KafkaConnectionError(\n"
        '                f"{connection.where}: {type(error).__name__}: {error}"\n'
        "            ))\n",
        "            pass\n",
        (
            "tests/network/test_failing_control_plane.py::test_a_response_that_the_control_plane_fails_on_closes_its_connection",
        ),
    ),
    Mutant(
        "control-plane-retries-in-an-hour",
        "cyproducer/sender/sender.pyx",
        "            delay_ms = 1000.0\n",
        "            delay_ms = 3.6e6\n",
        ("tests/network/test_failing_control_plane.py::test_a_tick_that_fails_is_repeated_after_a_second",),
    ),
    Mutant(
        "abort-forgets-ambiguous",
        "cyproducer/sender/sender.pyx",
        "self.accumulator.fail(b, unknown if b.ambiguous else absent)",
        "self.accumulator.fail(b, absent)",
        (
            "tests/network/test_maybe_written.py::test_a_batch_that_waits_for_a_retry_after_a_lost_connection_may_be_written",
        ),
    ),
    Mutant(
        "abandon-says-absent",
        "cyproducer/sender/sender.pyx",
        "self.accumulator.abandon(b, unknown)",
        "self.accumulator.abandon(b, absent)",
        (
            "tests/network/test_maybe_written.py::test_a_batch_in_flight_may_be_written_when_the_cluster_refuses_the_producer",
        ),
    ),
    Mutant(
        "decision-error-says-absent",
        "cyproducer/sender/batch_errors.pyx",
        "error=told(problem, True), maybe_written=True)",
        "error=told(problem, False), maybe_written=True)",
        (
            "tests/network/test_maybe_written.py::test_a_batch_about_which_no_decision_can_be_made_may_be_written",
        ),
    ),
    Mutant(
        "refused-record-without-a-text",
        "cyproducer/sender/batch_errors.pyx",
        "{place: text or message for place",
        "{place: text for place",
        ("tests/network/test_error_texts.py::test_a_refused_record_without_a_text_has_that_of_its_batch",),
    ),
    Mutant(
        "backoff-without-timer",
        "cyproducer/sender/batch_errors.pyx",
        "    sender.next_control_ns = min(sender.next_control_ns, p.retry_at_ns)\n",
        "",
        ("tests/network/test_retry_timers.py::test_a_backoff_ends_in_time_though_nothing_else_is_due",),
    ),
    Mutant(
        "leaders-error-ends-the-sender",
        "cyproducer/sender/produce_response.pyx",
        '    except Exception:\n        log.exception("applying the leaders',
        '    except KeyError:\n        log.exception("applying the leaders',
        (
            "tests/network/test_retry_timers.py::test_a_failing_look_at_the_new_leaders_leaves_the_batch_to_the_backoff",
        ),
    ),
    Mutant(
        "peak-is-last",
        "cyproducer/net/transport.pyx",
        "max(transport.traffic.request_peak, r.size)",
        "r.size",
        (
            "tests/observability/test_request_peaks.py::test_the_largest_request_is_not_the_last_one_of_a_step",
        ),
    ),
    Mutant(
        "eintr-ends-exact-waits",
        "cyproducer/net/polling.h",
        "if (n >= 0 || errno == EINTR || errno == EBADF",
        "if (n >= 0 || errno == EBADF",
        ("tests/network/test_interrupted_waits.py::test_a_signal_during_a_wait_leaves_later_waits_exact",),
    ),
    Mutant(
        "waits-round-down",
        "cyproducer/net/polling.h",
        "(int)((ns + 999999) / 1000000)",
        "(int)(ns / 1000000)",
        ("tests/network/test_wait_lengths.py::test_a_wait_counted_in_milliseconds_is_rounded_up",),
    ),
    Mutant(
        "endless-timeouts-overflow",
        "cyproducer/futures/concurrent_future.py",
        'seconds = waitable(duration("timeout", timeout))\n'
        "        if self._record.is_done:\n"
        "            return self._record.exception",
        'seconds = duration("timeout", timeout)\n'
        "        if self._record.is_done:\n"
        "            return self._record.exception",
        ("tests/futures/test_concurrent_timeouts.py::test_a_timeout_may_be_longer_than_a_lock_can_wait",),
    ),
    Mutant(
        "given-up-look-up-still-named",
        "cyproducer/net/connector.py",
        "        self._forget_look_ups(node_id)\n        error = errors.Name",
        "        error = errors.Name",
        (
            "tests/producer/test_producer_connections.py::test_errors_name_a_look_up_once_however_often_it_was_given_up",
        ),
    ),
    Mutant(
        "stale-questions-after-drop",
        "cyproducer/net/connector.py",
        "        self._forget_look_ups(node_id)\n        for connection in [each",
        "        for connection in [each",
        (
            "tests/network/test_dropped_look_ups.py::test_the_look_up_of_a_broker_that_is_dropped_is_no_longer_named_nor_used",
        ),
    ),
    Mutant(
        "fork-in-a-signal-waits-on",
        "cyproducer/futures/delivery.pyx",
        "                # A signal handler may have forked.\n                self._refuse_foreign()\n",
        "                pass\n",
        (
            "tests/producer/test_fork_in_a_wait.py::test_a_child_forked_in_the_middle_of_a_wait_does_not_go_on_with_it",
        ),
    ),
    Mutant(
        "bitmap-too-short",
        "cyproducer/futures/bulk_future.pyx",
        "len(valid) * 64 < len(offsets)",
        "len(valid) * 512 < len(offsets)",
        ("tests/futures/test_row_offsets.py::test_a_bitmap_has_a_bit_for_each_row",),
    ),
    Mutant(
        "unknown-joined-to-known",
        "cyproducer/futures/bulk_segments.pyx",
        "0 <= last[1] == offset - last[2]",
        "last[1] == offset - last[2]",
        (
            "tests/futures/test_unknown_offsets.py::test_rows_without_an_offset_are_no_neighbours_of_those_that_begin_the_log",
        ),
    ),
    Mutant(
        "disowned-queue-never-idle",
        "cyproducer/futures/completion.pyx",
        "        self.entries.handled = self.entries.handed_in\n",
        "",
        ("tests/futures/test_disowned_queue.py::test_a_disowned_queue_is_idle_and_runs_nothing",),
    ),
    Mutant(
        "unknown-not-joined",
        "cyproducer/futures/bulk_segments.pyx",
        "if unknown or 0 <= last[1]",
        "if 0 <= last[1]",
        (
            "tests/futures/test_ranges_without_acks.py::test_rows_of_several_batches_without_acks_are_one_range_for_each_partition",
        ),
    ),
    Mutant(
        "bulk-callback-in-child",
        "cyproducer/futures/bulk_future.pyx",
        "            try:\n"
        "                refuse_foreign(d, self)\n"
        "            finally:\n"
        "                delivery_unref(d)",
        "            delivery_unref(d)",
        (
            "tests/producer/test_forked_rows.py::test_rows_of_the_parents_are_refused_in_the_child_while_they_are_pending",
        ),
    ),
    Mutant(
        "topic-by-prefix",
        "cyproducer/wire/produce_codec.pyx",
        "return size == t.name_size and memcmp(t.name, name, size) == 0",
        "return size >= t.name_size and memcmp(t.name, name, t.name_size) == 0",
        (
            "tests/network/test_similar_topics.py::test_a_topic_whose_name_begins_another_name_is_not_taken_for_it",
        ),
    ),
    Mutant(
        "async-blocked-in-callback",
        "cyproducer/send/send_path.pyx",
        "if not blocks and not acc.completions.in_callback():",
        "if not blocks:",
        ("tests/send/test_send_at_once.py::test_a_callback_does_not_wait_for_callbacks",),
    ),
    Mutant(
        "histograms-of-idle-windows",
        "cyproducer/base/meters.pyx",
        "window = max(ms.all.window + 1, ms.window - ms.samples + 1)",
        "window = ms.window",
        ("tests/observability/test_windows.py::test_percentiles_after_windows_in_which_nothing_happened",),
    ),
    Mutant(
        "interest-after-state",
        "cyproducer/futures/delivery.pyx",
        "    cyp_add32(&d.interested, 1)\n"
        "    pthread_mutex_lock(lock)\n"
        "    pending = cyp_load32(&d.state) == PENDING\n"
        "    if pending and future.listed == NULL:\n",
        "    pthread_mutex_lock(lock)\n"
        "    pending = cyp_load32(&d.state) == PENDING\n"
        "    if pending and future.listed == NULL:\n"
        "        cyp_add32(&d.interested, 1)\n",
        ("tests/futures/test_delivery_callbacks.py::test_interest_is_registered_before_the_state_is_read",),
    ),
    Mutant(
        "no-time-after-callbacks",
        "cyproducer/send/send_path.pyx",
        "                deadline = cyp_after(cyp_monotonic_ns(), self.max_block_ns)\n"
        "                expiry = cyp_after(acc.clock.now_ns(), self.max_block_ns)\n"
        "                self._await_callbacks(deadline, state.name)",
        "                deadline = cyp_after(cyp_monotonic_ns(), self.max_block_ns)\n"
        "                self._await_callbacks(deadline, state.name)",
        (
            "tests/futures/test_callback_backlog.py::test_a_record_that_waited_for_callbacks_may_still_wait_for_metadata",
        ),
    ),
    Mutant(
        "no-notice-of-new-work",
        "cyproducer/sender/sender.pyx",
        "            if not has_work(n):\n"
        "                if n.transport == NULL:\n"
        "                    n.takes = 1\n"
        "            else:\n"
        "                if n.takes and n.transport == NULL:",
        "            if has_work(n):\n                if n.takes and n.transport == NULL:",
        (
            "tests/accumulator/test_wakeups.py::test_the_first_record_after_a_broker_had_no_work_has_it_connected",
        ),
    ),
    Mutant(
        "unanswered-after-break",
        "cyproducer/sender/sender.pyx",
        "transport.node.answered = transport.node.sent",
        "transport.node.answered += transport.in_flight",
        (
            "tests/network/test_sender_outcomes.py::test_a_connection_that_broke_within_a_request_without_acknowledgement_delays_no_later_record",
        ),
    ),
    Mutant(
        "exactly-the-limit-refused",
        "cyproducer/send/send_path.pyx",
        "        if size > self.max_request_size:\n            return record_too_large",
        "        if size >= self.max_request_size:\n            return record_too_large",
        (
            "tests/send/test_largest_record.py::test_a_record_of_exactly_the_limit_is_accepted_and_the_next_byte_is_not",
        ),
    ),
    # Transactions
    Mutant(
        "outcome-after-timeout-lost",
        "cyproducer/control/transactions.py",
        "        self._last = (event, result, calls) if calls else None\n",
        "        self._last = None\n",
        ("tests/control/test_transactions.py::test_an_init_that_succeeded_unseen_is_told_to_the_next_call",),
    ),
    Mutant(
        "outcome-told-to-nobody",
        "cyproducer/control/transactions.py",
        "        if self._last is not None and all(caller.abandoned for caller in self._last[2]):\n",
        "        if False:\n",
        ("tests/control/test_transactions.py::test_an_init_that_succeeded_unseen_is_told_to_the_next_call",),
    ),
    Mutant(
        "last-error-of-a-transaction",
        "cyproducer/control/transactions.py",
        "        if not self.failed:\n            self.cause = error\n        self._go(Event.ABORTABLE)\n",
        "        self.cause = error\n        self._go(Event.ABORTABLE)\n",
        ("tests/control/test_transactions.py::test_a_record_that_fails_fails_the_transaction",),
    ),
    Mutant(
        "moved-coordinator-asked-again",
        "cyproducer/control/transactions.py",
        "        if code in _MOVED:\n"
        "            self._coordinators.pop(self._whose(request), None)\n"
        "        elif not (error",
        "        if code in _MOVED:\n            pass\n        elif not (error",
        ("tests/control/test_transactions.py::test_the_groups_coordinator_is_another_question",),
    ),
    Mutant(
        "markers-asked-for-ever",
        "cyproducer/control/transactions.py",
        " and now_ms - self._ended_ms < MARKERS_LAST_MS:",
        ":",
        ("tests/control/test_transactions.py::test_markers_are_waited_for_no_longer_than_the_broker_would",),
    ),
    Mutant(
        "prepared-epoch-used-again",
        "cyproducer/control/transactions.py",
        "        if changed or handed_out or self.epoch",
        "        if changed or self.epoch",
        (
            "tests/producer/test_prepared_transactions.py::test_an_identity_that_was_handed_out_has_no_other_transaction",
        ),
    ),
    Mutant(
        "commit-before-callbacks",
        "cyproducer/control/transactions.py",
        "        if (commit and not self._released()) or not drained():\n",
        "        if not drained():\n",
        (
            "tests/control/test_transactions.py::test_a_commit_waits_until_a_caller_has_seen_its_callbacks_run",
        ),
    ),
    Mutant(
        "prepared-before-callbacks",
        "cyproducer/control/transactions.py",
        "        if self.state is State.PREPARING and self._released() and drained():\n",
        "        if self.state is State.PREPARING and drained():\n",
        ("tests/control/test_transactions.py::test_prepare_waits_for_records_and_gives_the_identity",),
    ),
    Mutant(
        "other-offsets-joined",
        "cyproducer/control/transactions.py",
        "        elif self._offsets and self._offsets[0].offsets != call.offsets:\n",
        "        elif False:\n",
        (
            "tests/control/test_transactions.py::test_offsets_that_time_out_go_on_and_the_same_call_joins_them",
        ),
    ),
    Mutant(
        "older-features-count",
        "cyproducer/control/transactions.py",
        "        if epoch >= self._features_epoch:\n",
        "        if True:\n",
        ("tests/control/test_transactions.py::test_the_newest_features_count_whoever_tells_them",),
    ),
    Mutant(
        "uncertain-partitions-not-aborted",
        "cyproducer/control/transactions.py",
        "self._something(wrote) or (not commit and self._may_have_parts)",
        "self._something(wrote)",
        (
            "tests/control/test_transactions.py::test_an_add_without_an_answer_may_have_added_and_may_still_be_under_way",
        ),
    ),
    Mutant(
        "close-aborts-a-commit",
        "cyproducer/control/transactions.py",
        "        if self.state not in (State.COMMITTING, State.ABORTING):\n",
        "        if self.state is not State.ABORTING:\n",
        (
            "tests/control/test_transactions.py::test_calls_out_of_order_are_refused_at_once_and_change_nothing",
        ),
    ),
    Mutant(
        "next-transaction-ended",
        "cyproducer/control/transaction_ending.py",
        "            if self._start_time_ms not in (None, found.start_time_ms):\n",
        "            if False:\n",
        ("tests/control/test_ending.py::test_the_next_transaction_of_an_epoch_is_told_by_its_start",),
    ),
    Mutant(
        "ended-before-counts-as-own",
        "cyproducer/control/transaction_ending.py",
        "by_this_call=self._end_sent and self._was_open)",
        "by_this_call=True)",
        ("tests/control/test_ending.py::test_what_the_first_protocol_has_ended_is_not_ended_again",),
    ),
    Mutant(
        "moved-coordinator-described",
        "cyproducer/control/transaction_ending.py",
        "        if code in _MOVED:\n            self.coordinator = None\n        elif",
        "        if code in _MOVED:\n            pass\n        elif",
        ("tests/control/test_ending.py::test_every_attempt_begins_with_a_new_look",),
    ),
    Mutant(
        "markers-with-the-long-backoff",
        "cyproducer/control/transaction_ending.py",
        "        soon = isinstance(error, errors.ConcurrentTransactionsError)\n",
        "        soon = False\n",
        (
            "tests/control/test_ending.py::test_markers_are_waited_for_in_milliseconds_and_everything_else_for_longer",
        ),
    ),
    Mutant(
        "new-owner-fenced",
        "cyproducer/control/transaction_ending.py",
        "            if not own:\n                # The epoch",
        "            if False:\n                # The epoch",
        ("tests/control/test_ending.py::test_a_new_owner_of_the_id_is_left_alone",),
    ),
    Mutant(
        "another-identity-taken-for-own",
        "cyproducer/control/transaction_ending.py",
        "        return (found.producer_id, found.producer_epoch) == identity\n",
        "        return found.producer_id == identity[0]\n",
        ("tests/control/test_ending.py::test_with_another_identity_the_coordinators_answer_counts",),
    ),
    Mutant(
        "level-of-before",
        "cyproducer/control/transaction_ending.py",
        "        return self.transaction.protocol if self._level >= SECOND else FIRST\n",
        "        return self.transaction.protocol\n",
        (
            "tests/control/test_ending.py::test_an_open_transaction_is_ended_by_the_protocol_that_the_level_allows",
        ),
    ),
    Mutant(
        "commit-that-is-probed-for",
        "cyproducer/control/transaction_ending.py",
        "        return EndTxn(self.commit and not self._probing, self._protocol())\n",
        "        return EndTxn(self.commit, self._protocol())\n",
        (
            "tests/control/test_ending.py::test_a_commit_that_is_fenced_after_the_brokers_timeout_is_told_by_an_abort",
        ),
    ),
    Mutant(
        "told-before-applied",
        "cyproducer/clients/transaction_client.py",
        "            call.accepted = True\n        self._apply()\n",
        "            call.accepted = True\n        self._notify()\n        self._apply()\n",
        (
            "tests/network/test_transaction_calls.py::test_the_sender_accepts_records_before_the_program_is_told_that_it_does",
        ),
    ),
    Mutant(
        "first-protocol-with-versions-of-the-second",
        "cyproducer/clients/transaction_client.py",
        "            version = min(version, HIGHEST_OF_FIRST[api])\n",
        "            pass\n",
        ("tests/network/test_transaction_client.py::test_a_transaction_of_the_first_protocol",),
    ),
    Mutant(
        "commit-that-lingers",
        "cyproducer/clients/transaction_client.py",
        "            sender.set_hurry(hurry)\n",
        "            pass\n",
        ("tests/network/test_transaction_calls.py::test_a_commit_does_not_linger_and_lingering_comes_back",),
    ),
    Mutant(
        "caller-of-a-timeout-kept",
        "cyproducer/clients/transaction_client.py",
        "            call.abandoned = not call.told\n",
        "            pass\n",
        ("tests/network/test_transaction_calls.py::test_a_commit_that_times_out_has_one_outcome",),
    ),
    Mutant(
        "unreachable-coordinator-kept",
        "cyproducer/clients/transaction_client.py",
        "            self.machine.unreachable(request, error, now_ms)\n"
        "            return None, self.machine.wait_ms(now_ms)\n",
        "            return None, 100.0\n",
        ("tests/network/test_transaction_client.py::test_a_coordinator_that_dies",),
    ),
    Mutant(
        "broken-connection-waited-for",
        "cyproducer/clients/transaction_client.py",
        "        self.machine.on_no_response(cause, now_ms)\n",
        "",
        ("tests/network/test_transaction_client.py::test_a_connection_that_is_cut_at_a_request",),
    ),
    Mutant(
        "waits-after-the-end",
        "cyproducer/clients/transaction_client.py",
        "            self._closed = self._closed or error\n            self._changed.notify_all()\n",
        "            pass\n",
        ("tests/network/test_transaction_calls.py::test_a_call_that_waits_ends_with_the_producer",),
    ),
    Mutant(
        "in-flight-pending-after-the-end",
        "cyproducer/clients/transaction_client.py",
        "self._sender.purge(True, fatal, ",
        "self._sender.purge(True, False, ",
        (
            "tests/network/test_transaction_client.py::test_a_call_of_a_fenced_producer_leaves_no_record_pending",
        ),
    ),
    Mutant(
        "compressed-pending-after-the-end",
        "cyproducer/clients/transaction_client.py",
        "        self._unsettled = fatal and compressing\n",
        "",
        (
            "tests/network/test_transaction_client.py::test_a_call_of_a_fenced_producer_waits_for_a_batch_that_is_being_compressed",
        ),
    ),
    Mutant(
        "purged-without-the-compressed-one",
        "cyproducer/clients/network_client.py",
        "in_flight, purge.error):\n                break\n",
        "in_flight, purge.error):\n                pass\n",
        ("tests/confluent/test_producer.py::test_a_purge_waits_for_a_batch_that_is_being_compressed",),
    ),
    Mutant(
        "level-kept-for-all-calls",
        "cyproducer/clients/transaction_admin.py",
        "                if now_s - asked_s <= LEVEL_AGE_S and sent.error is None:\n",
        "                if sent.error is None:\n",
        ("tests/producer/test_transaction_admin.py::test_the_level_is_that_of_the_moment",),
    ),
    Mutant(
        "level-asked-for-each",
        "cyproducer/clients/transaction_admin.py",
        "                levels[call.coordinator] = pending.sent, now_s\n",
        "                pass\n",
        ("tests/producer/test_transaction_admin.py::test_the_level_is_asked_for_once_for_many",),
    ),
    Mutant(
        "no-room-for-waiting-calls",
        "cyproducer/clients/transaction_admin.py",
        "                if left and len(running) < AT_ONCE:\n                    continue\n",
        "",
        ("tests/network/test_coordinators.py::test_calls_that_end_together_make_room_for_the_others",),
    ),
    Mutant(
        "closed-state-listed",
        "cyproducer/clients/transaction_admin.py",
        "            if each.transactional_id not in listed or each.state in OPEN_STATES:\n",
        "            if each.transactional_id not in listed:\n",
        ("tests/producer/test_transaction_admin.py::test_of_two_states_the_open_one_is_listed",),
    ),
    Mutant(
        "part-of-a-list",
        "cyproducer/clients/transaction_admin.py",
        "                failure = error\n        if failure is not None:\n            # What",
        "                pass\n        if failure is not None:\n            # What",
        ("tests/producer/test_transaction_admin.py::test_a_broker_that_does_not_list_is_no_empty_list",),
    ),
    Mutant(
        "prefix-left-to-the-brokers",
        "cyproducer/clients/transaction_admin.py",
        ' if name.startswith(prefix or "")]',
        "]",
        ("tests/producer/test_transaction_admin.py::test_older_brokers_have_fewer_filters",),
    ),
    Mutant(
        "broker-without-an-answer-left-out",
        "cyproducer/clients/transaction_admin.py",
        'failure = errors.KafkaTimeoutError(f"{request.api.name} is not answered by {asked}")\n',
        "pass\n",
        ("tests/producer/test_transaction_admin.py::test_a_broker_that_does_not_list_is_no_empty_list",),
    ),
    Mutant(
        "refused-renewal-counted",
        "cyproducer/net/connector.py",
        "        if setting_up and (isinstance(cause, errors.TlsError)",
        "        if (isinstance(cause, errors.TlsError)",
        (
            "tests/observability/test_failed_authentications.py::test_a_session_whose_renewal_is_refused_is_not_counted",
        ),
    ),
    Mutant(
        "tls-failures-not-counted",
        "cyproducer/net/connector.py",
        "(isinstance(cause, errors.TlsError) or refuses_credentials(connection, cause))",
        "refuses_credentials(connection, cause)",
        ("tests/observability/test_failed_authentications.py::test_tls_handshakes_that_fail_are_counted",),
    ),
    Mutant(
        "summary-of-an-aborted-transaction",
        "cyproducer/cli/produce.py",
        "committed = lines.delivered if state is State.COMMITTED else 0",
        "committed = lines.delivered",
        (
            "tests/cli/test_produce_transaction.py::test_a_line_that_is_refused_aborts_and_nothing_more_is_read",
        ),
    ),
    Mutant(
        "commit-after-a-signal",
        "cyproducer/cli/produce.py",
        "    if _incomplete(lines, failures) or interrupts.requested:\n        lines.let_go()",
        "    if _incomplete(lines, failures):\n        lines.let_go()",
        ("tests/cli/test_produce_transaction.py::test_a_signal_after_the_input_has_ended_aborts",),
    ),
    Mutant(
        "commit-of-a-part",
        "cyproducer/cli/line_producer.py",
        "        self._stop_on_error = stop_on_error or self._transactional\n",
        "        self._stop_on_error = stop_on_error\n",
        (
            "tests/cli/test_produce_transaction.py::test_a_line_that_is_refused_aborts_and_nothing_more_is_read",
        ),
    ),
    Mutant(
        "abort-that-failed-is-certain",
        "cyproducer/cli/run_transaction.py",
        "        except KafkaError as error:\n"
        "            self.error = self.error or error\n"
        "        else:\n"
        "            self.state = State.ABORTED\n",
        "        except KafkaError as error:\n"
        "            self.error = self.error or error\n"
        "        self.state = State.ABORTED\n",
        ("tests/cli/test_produce_transaction.py::test_an_abort_that_times_out_commits_nothing",),
    ),
    Mutant(
        "calls-kept-for-ever",
        "cyproducer/clients/transaction_client.py",
        "                self._changed.notify_all()\n            self._calls = waiting\n",
        "                self._changed.notify_all()\n",
        ("tests/network/test_transaction_calls.py::test_calls_that_are_done_are_let_go_of",),
    ),
    # Help for users' tests
    Mutant(
        "mock-record-kept",
        "cyproducer/testing/outcomes.pyx",
        "    a._forget(b)\n    pthread_mutex_unlock(&a.c.lock)\n    a._free(b)\n",
        "    a._forget(b)\n    pthread_mutex_unlock(&a.c.lock)\n",
        ("tests/testing/test_mock_producer.py::test_the_memory_of_records_with_an_outcome_is_free",),
    ),
    Mutant(
        "mock-topic-not-applied",
        "cyproducer/testing/mock_producer.py",
        "            self._mock.apply(topic)\n",
        "",
        ("tests/testing/test_mock_producer.py::test_partitions_are_those_of_the_test",),
    ),
    Mutant(
        "mock-closed-while-completing",
        "cyproducer/testing/mock_producer.py",
        "        with self.lock:\n            super()._end()\n",
        "        super()._end()\n",
        ("tests/testing/test_mock_producer.py::test_close_waits_for_an_outcome_that_another_thread_gives",),
    ),
    # Asyncio
    Mutant(
        "wake-up-per-batch",
        "cyproducer/futures/asyncio_bridge.pyx",
        "        if self.woken:\n",
        "        if False:\n",
        (
            "tests/futures/test_loop_outcomes.py::test_a_batch_has_one_callback_and_many_batches_share_one_wake_up",
        ),
    ),
    Mutant(
        "one-wake-up-only",
        "cyproducer/futures/asyncio_bridge.pyx",
        "        self.woken = False\n        self.followed",
        "        self.followed",
        (
            "tests/futures/test_loop_outcomes.py::test_a_batch_has_one_callback_and_many_batches_share_one_wake_up",
        ),
    ),
    Mutant(
        "callback-per-record",
        "cyproducer/futures/asyncio_bridge.pyx",
        "        if group is not None:\n",
        "        if False:\n",
        (
            "tests/futures/test_loop_outcomes.py::test_a_batch_has_one_callback_and_many_batches_share_one_wake_up",
        ),
    ),
    Mutant(
        "loop-gets-no-turn",
        "cyproducer/aio/sends.pyx",
        "            or self.outcomes.due()\n",
        "",
        (
            "tests/aio/test_producer.py::test_a_task_that_only_sends_lets_others_run",
            "tests/aio/test_producer.py::test_futures_are_set_while_a_task_only_sends",
        ),
    ),
    Mutant(
        "rows-share-headers",
        "cyproducer/send/extended_rows.pyx",
        "                own = list(own)\n",
        "                pass\n",
        ("tests/producer/test_send_many_extended.py::test_headers_that_an_interceptor_adds_are_for_one_row",),
    ),
    Mutant(
        "accepted-rows-not-followed",
        "cyproducer/send/extended_rows.pyx",
        "        if accepted:\n",
        "        if False:\n",
        ("tests/producer/test_send_many_extended.py::test_interceptors_learn_of_rows_that_found_no_memory",),
    ),
    Mutant(
        "cancelled-future-set",
        "cyproducer/futures/asyncio_bridge.pyx",
        "                except asyncio.InvalidStateError:\n",
        "                except ZeroDivisionError:\n",
        ("tests/futures/test_loop_outcomes.py::test_a_cancelled_future_disturbs_no_other",),
    ),
    Mutant(
        "line-keeps-its-loop",
        "cyproducer/_send_async.py",
        "            del producer._lines[loop]\n",
        "            pass\n",
        ("tests/aio/test_producer.py::test_one_producer_serves_several_loops",),
    ),
    Mutant(
        "start-leaves-a-producer",
        "cyproducer/aio/producer.py",
        '                start_thread(self._named("stop"), producer.close, 0)\n',
        "                pass\n",
        ("tests/aio/test_producer.py::test_a_cancelled_start_leaves_nothing",),
    ),
    Mutant(
        "a-brokers-error-from-send",
        "cyproducer/aio/sends.pyx",
        "    if record._state() == FAILED and (record.delivery == NULL or record.delivery.partition < 0):\n",
        "    if record._state() == FAILED:\n",
        ("tests/aio/test_producer.py::test_the_future_has_the_errors_of_brokers_however_fast_they_are",),
    ),
    Mutant(
        "error-of-another-client",
        "cyproducer/errors/base.py",
        "        Exception.__init__(self, *args)\n",
        "        super().__init__(*args)\n",
        ("tests/aio/test_errors.py::test_aiokafkas_classes_catch_ours",),
    ),
    # Transactions
    Mutant(
        "versions-hidden-by-a-proxy",
        "cyproducer/clients/transaction_client.py",
        "    if level >= SECOND and any(",
        "    if False and any(",
        (
            "tests/network/test_transaction_client.py::"
            "test_level_2_without_the_versions_of_its_requests_is_the_first_protocol",
        ),
    ),
    Mutant(
        "expired-id-bumped",
        "cyproducer/control/transactions.py",
        "            and 0 <= request.producer_id != response.producer_id\n",
        "            and False\n",
        ("tests/control/test_transactions.py::test_a_bump_of_an_id_that_has_expired_takes_no_new_identity",),
    ),
    Mutant(
        "nearly-exhausted-taken-for-expired",
        "cyproducer/control/transactions.py",
        "            and request.epoch <= NEARLY_EXHAUSTED_EPOCH\n",
        "",
        ("tests/control/test_transactions.py::test_an_exhausted_epoch_comes_with_a_new_producer_id",),
    ),
    Mutant(
        "identity-of-an-error",
        "cyproducer/control/transactions.py",
        "                if response.producer_id >= 0:\n",
        "                if True:\n",
        ("tests/control/test_transactions.py::test_an_end_that_gives_no_identity_leaves_the_old_one",),
    ),
    Mutant(
        "group-warned-of-each-time",
        "cyproducer/_producer_transactions.py",
        "            self._warned_of_group = True\n",
        "",
        ("tests/network/test_transaction_calls.py::test_a_group_without_its_metadata_is_warned_of_once",),
    ),
    Mutant(
        "transaction-left-at-exit",
        "cyproducer/_runtime.py",
        "            self._close_transaction(self.client.transactions)\n",
        "",
        ("tests/network/test_transaction_calls.py::test_the_end_of_the_program_ends_its_transaction",),
    ),
    # Reading
    Mutant(
        "compacted-records-counted-as-offsets",
        "cyproducer/clients/topic_admin.py",
        "                offset = batch.last_offset + 1\n",
        "                offset = batch.base_offset + batch.count\n",
        ("tests/network/test_reading.py::test_gaps_of_compacted_logs_are_passed",),
    ),
    Mutant(
        "batch-behind-the-end-read",
        "cyproducer/clients/topic_admin.py",
        "                if batch.base_offset >= end:\n                    return\n",
        "",
        ("tests/network/test_reading.py::test_batches_that_have_offsets_of_the_range_are_read",),
    ),
    Mutant(
        "batch-before-the-first-offset-read",
        "cyproducer/clients/topic_admin.py",
        "                if batch.last_offset < offset:\n",
        "                if False:\n",
        ("tests/network/test_reading.py::test_a_batch_before_the_first_offset_is_left_out",),
    ),
    Mutant(
        "topic-created-by-looking",
        "cyproducer/clients/topic_admin.py",
        "framing(protocol.encode_metadata, names, False, rights)",
        "framing(protocol.encode_metadata, names, True, rights)",
        ("tests/network/test_reading.py::test_no_topic_is_created_by_looking",),
    ),
    Mutant(
        "late-creation-not-withdrawn",
        "cyproducer/clients/application_requests.py",
        "                request.withdraw()\n",
        "                pass\n",
        ("tests/network/test_reading.py::test_what_was_not_sent_before_the_deadline_is_not_sent_later",),
    ),
    Mutant(
        "batch-checksum-ignored",
        "cyproducer/wire/record_decoder.py",
        "        if checksum != computed:\n",
        "        if False:\n",
        ("tests/control/test_record_decoder.py::test_a_wrong_checksum_is_named",),
    ),
    Mutant(
        "surplus-after-records-ignored",
        "cyproducer/wire/record_decoder.py",
        "        if at != len(data):\n",
        "        if False:\n",
        ("tests/control/test_record_decoder.py::test_the_count_must_be_that_of_the_records",),
    ),
    Mutant(
        "refused-although-maybe-written",
        "cyproducer/control/batch_fate.py",
        "failure.code in CONTENT_ERRORS and not maybe and self.transactions",
        "failure.code in CONTENT_ERRORS and self.transactions",
        (
            "tests/control/test_batch_fate.py::"
            "test_it_fails_with_records_that_may_be_written_or_that_are_not_refused_for_their_content",
        ),
    ),
    Mutant(
        "transaction-without-a-record",
        "cyproducer/control/batch_fate.py",
        "        return self.transactions is None or self.transactions.drops_refused\n",
        "        return True\n",
        ("tests/control/test_batch_fate.py::test_a_failed_batch_fails_the_transaction_and_says_why",),
    ),
    Mutant(
        "gap-of-refused-not-closed",
        "cyproducer/control/idempotence.py",
        "_WITHOUT_LOSS = (Fate.SPLIT, Fate.EXCLUDE, Fate.REFUSE)",
        "_WITHOUT_LOSS = (Fate.SPLIT, Fate.EXCLUDE)",
        ("tests/control/test_batch_fate.py::test_a_transaction_that_drops_refused_records_goes_on",),
    ),
    Mutant(
        "sequences-of-late-requests-given-away",
        "cyproducer/accumulator/sequences.pyx",
        "            late |= b.ambiguous and p.gap_moves\n",
        "            pass\n",
        (
            "tests/accumulator/test_transactions.py::"
            "test_records_whose_request_may_come_late_do_not_get_the_sequences_of_refused_ones",
        ),
    ),
    Mutant(
        "late-request-forgotten-in-a-split",
        "cyproducer/accumulator/sequences.pyx",
        "            b.ambiguous &= p.has_gap\n",
        "            b.ambiguous = 0\n",
        (
            "tests/accumulator/test_transactions.py::"
            "test_a_request_that_may_come_late_is_not_forgotten_in_a_split",
        ),
    ),
    Mutant(
        "split-taken-for-a-refusal",
        "cyproducer/sender/batch_errors.pyx",
        "        note_gap(b, fate != SPLIT)\n",
        "        note_gap(b, True)\n",
        (
            "tests/accumulator/test_transactions.py::"
            "test_records_whose_request_may_come_late_do_not_get_the_sequences_of_refused_ones",
        ),
    ),
    Mutant(
        "younger-gap-replaces-the-older-one",
        "cyproducer/accumulator/sequences.pyx",
        "    if not p.has_gap or b.first_record < p.gap_record:\n",
        "    if True:\n",
        (
            "tests/accumulator/test_transactions.py::test_an_older_batch_that_is_refused_too_gives_its_sequences",
        ),
    ),
    Mutant(
        "refused-batch-counts-as-lost",
        "cyproducer/sender/batch_errors.pyx",
        "        sender.failed_before += b.count\n",
        "",
        ("tests/accumulator/test_transactions.py::test_what_is_behind_refused_records_gets_their_sequences",),
    ),
    Mutant(
        "named-records-count-as-lost",
        "cyproducer/sender/batch_errors.pyx",
        "            sender.failed_before += len(culprits)\n",
        "",
        (
            "tests/accumulator/test_transactions.py::test_what_is_behind_records_that_the_broker_names_moves_by_their_number",
        ),
    ),
    Mutant(
        "gap-of-an-aborted-transaction-kept",
        "cyproducer/sender/sender.pyx",
        "                forget_gap(t.partitions[i])\n",
        "",
        ("tests/accumulator/test_transactions.py::test_a_gap_of_an_aborted_transaction_is_forgotten",),
    ),
    Mutant(
        "right-not-told-is-missing",
        "cyproducer/clients/topic_admin.py",
        "each.error_code == UNKNOWN_TOPIC_OR_PARTITION or may == NOT_ASKED:",
        "each.error_code == UNKNOWN_TOPIC_OR_PARTITION:",
        ("tests/network/test_reading.py::test_a_broker_that_tells_no_operations_denies_none",),
    ),
    # Ids and bounds of responses
    Mutant(
        "node-id-below-zero",
        "cyproducer/wire/protocol.py",
        "    if node_id < 0:",
        "    if False:",
        (
            "tests/network/test_impossible_ids.py::test_a_coordinator_below_zero_is_looked_up_again",
            "tests/network/test_leader_hints.py::test_a_node_id_below_zero_is_rejected",
        ),
    ),
    Mutant(
        "producer-id-below-zero",
        "cyproducer/wire/protocol.py",
        "    if found.error_code == 0 and (found.producer_id < 0 or found.producer_epoch < 0):",
        "    if found.error_code == 0 and found.producer_id < 0:",
        ("tests/network/test_impossible_ids.py::test_no_record_is_sent_with_a_producer_id_below_zero",),
    ),
    Mutant(
        "partition-index-unchecked",
        "cyproducer/wire/primitives.pyx",
        "        if not 0 <= index < ELEMENTS:",
        "        if index < 0:",
        ("tests/network/test_protocol_malformed.py::test_the_error_names_the_field_and_the_problem",),
    ),
    Mutant(
        "elements-unbounded",
        "cyproducer/wire/primitives.pyx",
        "        self.elements += elements\n",
        "        self.elements = elements\n",
        ("tests/network/test_protocol_bounds.py::test_more_elements_than_any_cluster_has_are_refused",),
    ),
    Mutant(
        "partitions-read-without-a-break",
        "cyproducer/wire/primitives.pyx",
        '    for i in range(reader.count("partitions", least_size)):\n        if i % SLICE == SLICE - 1:',
        '    for i in range(reader.count("partitions", least_size)):\n        if False:',
        ("tests/network/test_protocol_bounds.py::test_other_threads_run_while_partitions_are_read",),
    ),
    Mutant(
        "topics-of-a-response-unbounded",
        "cyproducer/wire/produce_codec.pyx",
        "    if topics > r.count:",
        "    if False:",
        (
            "tests/network/test_produce_codec.py::test_a_response_that_does_not_fit_the_request_closes_the_connection",
        ),
    ),
    Mutant(
        "offsets-beyond-64-bits",
        "cyproducer/wire/produce_codec.pyx",
        "            if o.base_offset > INT64_MAX - r.batches[i].count:",
        "            if False:",
        (
            "tests/network/test_produce_codec.py::test_a_response_that_does_not_fit_the_request_closes_the_connection",
        ),
    ),
    Mutant(
        "inbox-larger-than-its-frame",
        "cyproducer/net/transport.pyx",
        "            if transport.inbox_used < whole < n:",
        "            if False:",
        ("tests/fuzz/test_sizes_from_the_wire.py::test_memory_for_a_frame_is_not_more_than_its_length",),
    ),
    Mutant(
        "lz4-bomb",
        "cyproducer/records/compression.pyx",
        "            lz4_frame_size(source, max_size)\n",
        "            pass\n",
        ("tests/control/test_record_decoder.py::test_an_lz4_bomb_is_refused_before_memory_is_allocated",),
    ),
    Mutant(
        "stated-size-allocated",
        "cyproducer/records/compression.pyx",
        "    if stated > size * most:",
        "    if False:",
        (
            "tests/control/test_record_decoder.py::test_no_memory_is_allocated_for_a_size_that_data_only_state",
        ),
    ),
]


class Tree:
    """A copy of the sources and of the build's output."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for part in PARTS:
            source = ROOT / part
            if source.is_dir():
                skipped = shutil.ignore_patterns("__pycache__", "lib.*")
                shutil.copytree(source, root / part, ignore=skipped, dirs_exist_ok=True)
            elif source.exists():
                shutil.copy2(source, root / part)

    def build(self) -> str:
        """Builds the tree. Returns the error, or an empty string."""
        environ = dict(os.environ)
        if "CC" not in environ and shutil.which("ccache"):
            environ["CC"] = "ccache cc"
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        done = subprocess.run(command, cwd=self.root, env=environ, capture_output=True, text=True)
        return f"does not build: {done.stderr[-500:]}" if done.returncode else ""

    def test(self, tests: tuple[str, ...], perturbed: bool = False) -> tuple[bool | None, str]:
        """Runs tests. Returns whether they pass (None if none was run), and the end of their output."""
        environ = {**os.environ, "PYTHONPATH": str(self.root), "PYTHONSAFEPATH": "1"}
        if perturbed:
            environ["GLIBC_TUNABLES"] = PERTURB
        command = [
            sys.executable, "-m", "pytest", "-c", "pyproject.toml", "--rootdir", str(self.root),
            "--import-mode", "importlib", "-q", "-x", "-p", "no:cacheprovider", *tests,
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, cwd=self.root, env=environ, capture_output=True, text=True, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired:
            return False, f"still running after {LIMIT_S:g} s"
        said = (done.stdout.strip() or done.stderr.strip() or f"status {done.returncode}").splitlines()
        words = "; ".join(
            [line for line in said if line.startswith(("FAILED tests", "ERROR tests"))][:1] + said[-1:]
        )
        # 1: a test failed. 2 to 5: pytest had nothing to run, or could not run. A crash ends with a signal.
        return None if done.returncode in (2, 3, 4, 5) else done.returncode == 0, words

    def run(self, mutant: Mutant) -> tuple[bool, str]:
        """Runs a mutant's tests. Returns whether the mutant is detected, and the reason."""
        path = self.root / mutant.path
        # Restored below with their old modification times, so that they are not built again: the extension in
        # place, the one below build/ that a later build would copy there, and their C and object files.
        kept = [path]
        if path.suffix in BUILT:
            # Any extension may include a header.
            stem = "*" if path.suffix == ".h" else path.stem
            for pattern in (f"{stem}.*.so", f"{stem}.[co]"):
                kept += [*(self.root / "cyproducer").rglob(pattern), *(self.root / "build").rglob(pattern)]
        with tempfile.TemporaryDirectory() as store:
            saved = [(each, Path(store) / str(number)) for number, each in enumerate(kept)]
            for each, copy in saved:
                shutil.copy2(each, copy)
            try:
                return self._run(mutant, path)
            finally:
                for each, copy in saved:
                    shutil.copy2(copy, each)

    def _run(self, mutant: Mutant, path: Path) -> tuple[bool, str]:
        text = path.read_text()
        if text.count(mutant.old) != 1:
            return False, f"does not apply: its old text is {text.count(mutant.old)} times in {mutant.path}"
        path.write_text(text.replace(mutant.old, mutant.new))
        if path.suffix in BUILT and (problem := self.build()):
            return False, problem
        passed, words = self.test(mutant.tests, mutant.perturbed)
        if passed is None:
            return False, f"no test was run: {words}"
        return not passed, words


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants; all of them by default")
    parser.add_argument("--tree", type=Path, help="a directory for the copy, kept for the next run")
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - {mutant.name for mutant in MUTANTS}:
        parser.error(f"no mutant is called {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in MUTANTS if not given.names or mutant.name in given.names]
    with tempfile.TemporaryDirectory(prefix="mutants") as temporary:
        tree = Tree(given.tree or Path(temporary))
        problem = tree.build()
        tests = tuple(dict.fromkeys(test for mutant in chosen for test in mutant.tests))
        passed, words = (None, problem) if problem else tree.test(tests)
        print(f"without a mutant: {words}", flush=True)
        if not passed:
            return 2
        survivors = []
        for mutant in chosen:
            noticed, words = tree.run(mutant)
            print(f"{mutant.name:32} {'detected' if noticed else 'SURVIVES'}: {words[:150]}", flush=True)
            if not noticed:
                survivors.append(mutant.name)
    print(
        f"{len(chosen) - len(survivors)} of {len(chosen)} detected" + "".join(f", not {s}" for s in survivors)
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
