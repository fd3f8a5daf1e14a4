"""Mutation testing: breaks single lines of the product, and reports the mutants that no test detects.

``python tools/mutants.py [NAME ...]``: copies the tree to a temporary directory and runs the table's tests
there on the unchanged product. Then, for one mutant after the other: applies it, builds the changed file
(with ccache if it is installed) and runs the tests that should fail. A mutant survives if they pass; then the
exit status is 1. Needs the dependencies of the build and of the unit tests, and the extensions built in
place. All mutants take about a quarter of an hour.

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
    "cyproducer", "pyspark_cyproducer", "tests", "perf", "tools", "demo_spark", "build",
    "setup.py", "pyproject.toml", "README.md", "LICENSE",
)  # fmt: skip
PERTURB = "glibc.malloc.tcache_count=0:glibc.malloc.perturb=165"
"""For ``GLIBC_TUNABLES``: overwrites freed memory at once, so that reading it fails a test."""
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
    # Buffers
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
        "cyproducer/accumulator/incomplete_batches.pyx",
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
        "cyproducer/accumulator/topology.pyx",
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
        "            b.ambiguous = 0\n",
        "",
        ("tests/network/test_idempotent_sender.py::test_a_batch_behind_a_gap_is_certainly_not_in_the_log",),
    ),
    Mutant(
        "parked-for-no-time",
        "cyproducer/callers/send_path.pyx",
        "                    expiry = cyp_after(acc.clock.now_ns(), self.max_block_ns)\n",
        "                    expiry = acc.clock.now_ns()\n",
        ("tests/accumulator/test_parked_records.py::test_a_parked_record_expires_after_max_block_ms",),
    ),
    Mutant(
        "header-values-uncounted",
        "cyproducer/callers/send_path.pyx",
        "payload[0] += name_size + max(value.size, 0)",
        "payload[0] += name_size",
        ("tests/accumulator/test_parked_records.py::test_parked_records_keep_all_their_fields",),
    ),
    Mutant(
        "value-kept-where-key-is-wrong",
        "cyproducer/callers/send_path.pyx",
        "            let_go(&held_value)\n            let_go(&held_key)\n",
        "            let_go(&held_key)\n",
        ("tests/callers/test_send_path.py::test_a_buffer_is_released_if_another_argument_is_invalid",),
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
        "cyproducer/accumulator/topology.pyx",
        "    p.recovering = p.in_flight > 0\n",
        "",
        ("tests/accumulator/test_delivery_order.py::test_batches_in_flight_to_the_old_leader_come_first",),
    ),
    Mutant(
        "known-to-the-new-topic",
        "cyproducer/accumulator/topology.pyx",
        "        t.partitions[i].known = 0\n",
        "",
        ("tests/network/test_idempotent_sender.py::test_a_recreated_topic_does_not_know_the_producer",),
    ),
    Mutant(
        "accepted-rows-untold",
        "cyproducer/callers/bulk_path.pyx",
        "error.accepted = segments.rows",
        "error.accepted = 0",
        (
            "tests/futures/test_bulk_future.py::test_rows_accepted_before_memory_ran_out_are_sent_and_reported",
        ),
    ),
    Mutant(
        "granted-memory-lost",
        "cyproducer/callers/bulk_path.pyx",
        "            s.grant = s.out.need\n",
        "",
        ("tests/futures/test_bulk_future.py::test_a_call_waits_for_free_memory_and_keeps_the_order",),
    ),
    Mutant(
        "one-partition-too-many",
        "cyproducer/callers/bulk_path.pyx",
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
        "cyproducer/accumulator/incomplete_batches.pyx",
        "        self.pool.release(b.data, b.capacity)\n        delivery_release",
        "        self.pool.unreserve(b.capacity)\n        delivery_release",
        ("tests/accumulator/test_memory_by_path.py",),
    ),
    Mutant(
        "headers-kept",
        "cyproducer/callers/send_path.pyx",
        "    except BaseException:\n        free(start)\n        raise\n",
        "    except BaseException:\n        raise\n",
        ("tests/accumulator/test_memory_by_path.py",),
    ),
    Mutant(
        "forgotten-with-a-queue",
        "cyproducer/accumulator/topology.pyx",
        "    return p.first == NULL and p.in_flight == 0",
        "    return p.in_flight == 0",
        ("tests/accumulator/test_forgotten_topics.py::test_a_topic_with_batches_under_way_is_not_forgotten",),
    ),
    Mutant(
        "forgotten-while-backing-off",
        "cyproducer/accumulator/topology.pyx",
        " and p.retry_at_ns == 0 and p.gate == GATE_OPEN",
        " and p.gate == GATE_OPEN",
        ("tests/accumulator/test_forgotten_topics.py::test_a_topic_with_batches_under_way_is_not_forgotten",),
    ),
    Mutant(
        "forgotten-while-held-back",
        "cyproducer/accumulator/topology.pyx",
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
        "cyproducer/callers/bulk_path.pyx",
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
        "cyproducer/network/produce_response.pyx",
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
        "cyproducer/network/batch_errors.pyx",
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
        "cyproducer/network/network_client.py",
        "            self._sender.forget_topic(name)\n            self._asked.discard(name)\n",
        "            self._sender.forget_topic(name)\n",
        (
            "tests/network/test_refreshed_topics.py::"
            "test_a_missing_topic_that_was_forgotten_is_requested_again",
        ),
    ),
    Mutant(
        "sleeps-through-lingers",
        "cyproducer/network/sender.pyx",
        "            until = min(until, cyp_after(a.lingering.first.first.created_ns, a.stream_linger_ns))\n",
        "            pass\n",
        (
            "tests/accumulator/test_wakeups.py::"
            "test_the_sender_sleeps_no_longer_than_the_oldest_batch_lingers",
        ),
    ),
    Mutant(
        "gathers-for-the-dead",
        "cyproducer/network/sender.pyx",
        "            transport.node.answered = transport.node.sent\n",
        "",
        ("tests/accumulator/test_record_accumulator.py::test_gathering_ends_when_the_connection_breaks",),
    ),
    Mutant(
        "writes-for-ever",
        "cyproducer/network/sender.pyx",
        "                r = connection.transport.first_out\n",
        "                continue\n",
        ("tests/network/test_sender_outcomes.py::test_a_write_that_does_not_finish_times_out_with_acks_0",),
    ),
    Mutant(
        "leaves-without-a-word",
        "cyproducer/network/loop_ownership.pyx",
        "        if not idle:\n            wake_sender(&sender.waker)\n",
        "",
        ("tests/network/test_loop_ownership.py",),
    ),
    Mutant(
        "held-back-for-good",
        "cyproducer/network/batch_errors.pyx",
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
        "options-of-others",
        "cyproducer/spark/topics.py",
        "if value is not None and name in known:",
        "if value is not None:",
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
        "cyproducer/callers/send_path.pyx",
        "                if out.sealing != NULL:\n"
        "                    acc.seal(out.sealing)\n"
        "                if result == NEED_MEMORY:\n",
        "                if out.sealing != NULL and blocks:\n"
        "                    acc.seal(out.sealing)\n"
        "                if result == NEED_MEMORY:\n",
        (
            "tests/callers/test_batch_boundaries.py::test_a_batch_that_is_closed_for_lack_of_memory_is_compressed_and_sent",
        ),
    ),
    Mutant(
        "joined-rows-raise-no-timestamp",
        "cyproducer/callers/bulk_append.pyx",
        "    if timestamp_ms > b.max_timestamp:\n"
        "        b.max_timestamp = timestamp_ms\n"
        "    b.size = p - b.data\n",
        "    b.size = p - b.data\n",
        (
            "tests/callers/test_batch_boundaries.py::test_rows_that_join_an_earlier_batch_raise_its_max_timestamp",
        ),
    ),
    Mutant(
        "error-text-decoded-strictly",
        "cyproducer/network/produce_response.pyx",
        '        message = o.message[:o.message_size].decode("utf-8", "replace")\n',
        '        message = o.message[:o.message_size].decode("utf-8")\n',
        ("tests/network/test_error_texts.py::test_an_error_message_that_is_not_utf_8_reaches_the_future",),
    ),
    Mutant(
        "writing-is-no-use",
        "cyproducer/network/transport.pyx",
        "        transport.last_used_ns = now\n        transport.traffic.out_bytes += n\n",
        "        transport.traffic.out_bytes += n\n",
        ("tests/network/test_connection_use.py::test_writing_is_use_of_a_connection_that_gets_no_responses",),
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
        if path.suffix == ".pyx":
            for pattern in (f"{path.stem}.*.so", f"{path.stem}.[co]"):
                kept += [*path.parent.glob(pattern), *(self.root / "build").rglob(pattern)]
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
        if path.suffix == ".pyx" and (problem := self.build()):
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
