"""Checks the promises that must hold after a history of transactions.

Each promise is a function that returns its violations as sentences. Does not own the history.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cyproducer.testing.broker.transactions import COMPLETE_ABORT, COMPLETE_COMMIT, EMPTY, read_committed
from tests.simulation.check import numbers_in, wrong_outcome
from tests.simulation.transaction_program import Attempt, Outcome, is_refusal
from tools.harness.reference_records import MalformedError

if TYPE_CHECKING:
    from tests.simulation.transaction_simulate import TransactionSimulation

Place = tuple[str, int]


def check_transactions(simulation: "TransactionSimulation") -> list[str]:
    """Returns all violations; empty if there are none."""
    wrong = list(simulation.transactions.violations)
    wrong += simulation.complaints.found
    for program in simulation.programs:
        wrong += program.wrong
    wrong += _end(simulation)
    wrong += _outcomes(simulation)
    wrong += _resources(simulation)
    try:
        visible = _read(simulation)
    except (MalformedError, AssertionError, IndexError) as error:
        return [*wrong, f"the log cannot be read: {error}"]
    wrong += _all_or_nothing(simulation, visible)
    wrong += _order(simulation, visible)
    wrong += _offsets(simulation, visible)
    return wrong


def _attempts(simulation: "TransactionSimulation") -> list[Attempt]:
    return [attempt for program in simulation.programs for attempt in program.attempts]


def _end(simulation: "TransactionSimulation") -> Iterator[str]:
    """All trouble has ended: the program is done, and its last transaction is committed."""
    if simulation.too_long:
        yield "the programs do not end"
    elif simulation.history.must_commit and not simulation.program.finished:
        yield "the last transaction is not committed although all trouble had ended"
    for txn in simulation.transactions.ids.values():
        if txn.state is not None and txn.state.name not in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT):
            yield f"id {txn.id} is {txn.state.name} with epoch {txn.state.epoch} at the end"


def _outcomes(simulation: "TransactionSimulation") -> Iterator[str]:
    """Every record has one outcome, in time."""
    for program in simulation.programs:
        for client in program.clients:
            if client.open:
                yield f"{len(client.open)} records of {client.config.client_id} have no outcome"
    for attempt in _attempts(simulation):
        its_client = simulation.client(attempt.client_id)
        assert its_client is not None, attempt.client_id
        for sent in attempt.records:
            yield from wrong_outcome(sent, its_client.config, simulation.history)


def _resources(simulation: "TransactionSimulation") -> Iterator[str]:
    for program in simulation.programs:
        for client in program.clients:
            left = (
                client.pool.used_bytes,
                client.accumulator.incomplete_batches,
                client.accumulator.parked_records,
            )
            if any(left):
                yield f"{client.config.client_id} leaves bytes, batches and parked records: {left}"


def _read(simulation: "TransactionSimulation") -> dict[Place, list[int]]:
    """Returns the record numbers that a reader of committed records sees, in the order of the logs."""
    visible: dict[Place, list[int]] = {}
    for partition in simulation.cluster.partitions():
        entries, last_stable = read_committed(partition)
        assert last_stable == partition.end, (
            f"readers of {partition.place} stop at {last_stable}, the log ends at {partition.end}"
        )
        visible[partition.place] = [
            number for entry in entries for number in numbers_in(entry.data, simulation.records)
        ]
    return visible


def _all_or_nothing(simulation: "TransactionSimulation", visible: dict[Place, list[int]]) -> Iterator[str]:
    seen = {number for numbers in visible.values() for number in numbers}
    for attempt in _attempts(simulation):
        dropped = dropped_of(simulation, attempt)
        if wrong := sorted(dropped & seen):
            yield f"{attempt}: readers see its records {wrong}, which were refused"
        numbers = {sent.number for sent in attempt.records} - dropped
        found = sorted(numbers & seen)
        missing = sorted(numbers - seen)
        if attempt.outcome is Outcome.COMMITTED:
            if missing:
                yield f"{attempt} was committed, and its records {missing} are not there: LOST"
        elif attempt.outcome is Outcome.ABORTED or not attempt.asked_commit:
            if found:
                yield f"{attempt} {attempt.outcome.value}, and readers see its records {found}: DIRTY"
        elif found and missing:
            yield f"{attempt}: readers see its records {found}, and not {missing}: TORN"


def dropped_of(simulation: "TransactionSimulation", attempt: Attempt) -> set[int]:
    """Returns the records without which the transaction could go on."""
    if not simulation.history.drops_refused:
        return set()
    return {sent.number for sent in attempt.records if is_refusal(sent.future.exception)}


def _order(simulation: "TransactionSimulation", visible: dict[Place, list[int]]) -> Iterator[str]:
    """Each record is there once, in the order of sending, and no transaction is within another one."""
    owner = {sent.number: attempt for attempt in _attempts(simulation) for sent in attempt.records}
    for place, numbers in visible.items():
        for number in {number for number in numbers if numbers.count(number) > 1}:
            yield f"record {number} is in {place} {numbers.count(number)} times: DUPLICATE"
        newest: dict[str, int] = {}
        ended: set[Attempt] = set()
        last: Attempt | None = None
        for number in numbers:
            attempt = owner[number]
            if number < newest.get(attempt.client_id, -1):
                yield f"record {number} is in {place} behind {newest[attempt.client_id]}: ORDER"
                break
            newest[attempt.client_id] = number
            if attempt is not last:
                if attempt in ended:
                    yield f"{attempt} goes on in {place} after another one: MIXED"
                if last is not None:
                    ended.add(last)
                last = attempt


def _offsets(simulation: "TransactionSimulation", visible: dict[Place, list[int]]) -> Iterator[str]:
    """Offsets are committed with the records of their transaction, or not at all."""
    committed: dict[tuple[str, Place], list[int]] = {}
    for group in simulation.offsets.groups.values():
        for offsets in group.history:
            for place, offset in offsets.items():
                committed.setdefault((group.name, place), []).append(offset.offset)
        if group.pending:
            yield f"group {group.name} has pending offsets at the end"
    members = {member for program in simulation.programs for member in program.memberships}
    for client_id, view in simulation.watch.views.items():
        for membership in view.memberships:
            if (client_id, *membership) not in members:
                yield f"{client_id} sends offsets as {membership}, which it is not"
    seen = {number for numbers in visible.values() for number in numbers}
    for attempt in _attempts(simulation):
        # A broker may handle an earlier request of the same transaction late: any of its offsets counts.
        there = {
            key: any(offset in committed.get(key, ()) for offset in offsets)
            for key, offsets in attempt.offsets.items()
        }
        if not there:
            continue
        if attempt.outcome is Outcome.COMMITTED:
            if not all(there.values()):
                yield f"{attempt} was committed, and not its offsets {there}"
        elif attempt.outcome is Outcome.ABORTED or not attempt.asked_commit:
            if any(there.values()):
                yield f"{attempt} {attempt.outcome.value}, and its offsets are committed: {there}"
        else:
            dropped = dropped_of(simulation, attempt)
            is_visible = [sent.number in seen for sent in attempt.records if sent.number not in dropped]
            both = {*is_visible, *there.values()}
            if len(both) > 1:
                yield f"{attempt}: records {is_visible} and offsets {there} do not agree: TORN"
