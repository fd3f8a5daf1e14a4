"""Checks the promises that must hold after a history.

Each promise is a function that returns its violations as sentences. Does not own the history.

Without idempotence, a retry may write a record twice, and a record that failed while a broker still held a
request with it may be written late, behind newer records: the order is checked for acknowledged records only.
With idempotence the same holds if the epochs run out, since a new producer id does not fence batches that
were sent with the old one.
"""

import struct
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cyproducer.config import ProducerConfig
from cyproducer.config.topic_options import finder, settings_of
from cyproducer.errors import DeliveryTimeoutError, InvalidRecordError, KafkaError
from tests.scripted.scripted_wire import PRODUCE
from tests.simulation.check_sasl import check_sasl
from tests.simulation.client import Sent
from tests.simulation.history import PROBE, Circumstances
from tests.simulation.model_produce import INVALID_RECORD, REJECTED
from tests.simulation.world import NS_PER_MS, START_NS
from tools.harness.reference_produce import decode_produce_request
from tools.harness.reference_records import CODEC_MASK, MalformedError, decompress
from tools.harness.reference_wire import Reader

if TYPE_CHECKING:
    from tests.simulation.simulate import Simulation

TOPIC_ID_VERSION = 13
"""From this version on, Produce identifies topics by id (KIP-516)."""

SLACK_MS = 5.0
"""How late a record may fail: the sender sleeps in whole milliseconds."""

Place = tuple[str, int]
Log = dict[Place, list[tuple[int, int]]]
"""(offset, record number) in the order of offsets."""


def check(simulation: "Simulation") -> list[str]:
    """Returns all violations; empty if there are none."""
    wrong = list(_outcomes(simulation))
    wrong += _resources(simulation)
    wrong += simulation.client.complaints.found
    try:
        log = _read_log(simulation)
    except (MalformedError, AssertionError, IndexError) as error:
        return [*wrong, f"the log cannot be read: {error}"]
    wrong += _acknowledged(simulation, log)
    wrong += _failed(simulation, log)
    wrong += _doubtful(simulation, log)
    wrong += _repeated(simulation, log)
    wrong += _order(simulation, log)
    wrong += _probe(simulation)
    wrong += _rejected(simulation)
    wrong += check_sasl(simulation)
    return wrong


_HEADER = struct.Struct(">qiibIhiqqqhii")


def numbers_in(data: bytes, records: list[Sent]) -> list[int]:
    """Returns the record numbers of a batch, and checks that the values are those that were sent.

    The checksum was checked when the batch was appended. Of the timestamps only the largest is checked: the
    base timestamp of a split batch need not be that of its first record.
    """
    _, length, _, magic, _, attributes, last_delta, base_ms, most_ms, *_, count = _HEADER.unpack_from(data)
    assert (magic, length, last_delta) == (2, len(data) - 12, count - 1), "a batch's header is wrong"
    reader = Reader(decompress(attributes & CODEC_MASK, data[_HEADER.size :]))
    numbers, latest = [], -(2**63)
    for delta in range(count):
        record = Reader(reader.take(reader.varint()))
        assert record.int8() == 0, "a record has attributes"
        latest = max(latest, base_ms + record.varint(64))
        assert record.varint() == delta, "offset deltas have a gap"
        record.varint_bytes("key")
        value = record.varint_bytes("value")
        assert record.varint() == 0, "a record has headers"
        record.expect_end("header")
        assert value is not None
        number = int(value.split(b":", 1)[0])
        assert value == records[number].value, f"the value of record {number} is not what was sent"
        numbers.append(number)
    reader.expect_end("record")
    assert most_ms == latest, f"max timestamp {most_ms} is not {latest}"
    return numbers


def _read_log(simulation: "Simulation") -> Log:
    log: Log = {}
    for partition in simulation.cluster.partitions():
        found: list[tuple[int, int]] = []
        for entry in partition.entries:
            assert entry.offset == len(found)
            for number in numbers_in(entry.data, simulation.client.records):
                sent = simulation.client.records[number]
                assert sent.topic == partition.topic, f"record {number} is in topic {partition.topic}"
                assert sent.partition in (None, partition.index), (
                    f"record {number} for partition {sent.partition} is in {partition.index}"
                )
                found.append((len(found), number))
        log[partition.place] = found
    return log


def _outcomes(simulation: "Simulation") -> Iterator[str]:
    for sent in simulation.client.records:
        yield from wrong_outcome(sent, simulation.client.config, simulation.history)


def wrong_outcome(sent: Sent, options: ProducerConfig, history: Circumstances) -> Iterator[str]:
    """Every record has one outcome, in time."""
    if not sent.future.is_done:
        yield f"record {sent.number} has no outcome"
        return
    if sent.calls != 1:
        yield f"the callback of record {sent.number} was called {sent.calls} times"
    if sent.error is not None and not isinstance(sent.error, KafkaError):
        yield f"record {sent.number} failed with {sent.error!r}"
    if sent.error is not None and not isinstance(getattr(sent.error, "maybe_written", None), bool):
        yield f"record {sent.number} failed with {sent.error!r}, which has no maybe_written"
    if sent.by_close:
        return
    limit_ms = options.delivery_timeout_ms + SLACK_MS + 2 * history.step_ms
    if sent.parked:
        limit_ms += options.max_block_ms
    took_ms = (sent.done_ns - sent.sent_ns) / NS_PER_MS
    begun_ms, done_ms = (sent.sent_ns - START_NS) / NS_PER_MS, (sent.done_ns - START_NS) / NS_PER_MS
    for start, end in history.frozen:
        limit_ms += max(0.0, min(end, done_ms) - max(start, begun_ms))
    if took_ms > limit_ms:
        yield (
            f"record {sent.number} took {took_ms:.3f} ms; delivery_timeout_ms="
            f"{options.delivery_timeout_ms}, {limit_ms:.3f} ms with all allowances"
        )


def _resources(simulation: "Simulation") -> Iterator[str]:
    client = simulation.client
    if client.pool.used_bytes:
        yield f"{client.pool.used_bytes} bytes of the pool are used after close"
    if client.accumulator.incomplete_batches:
        yield f"{client.accumulator.incomplete_batches} batches are incomplete after close"
    if client.accumulator.parked_records:
        yield f"{client.accumulator.parked_records} records are parked after close"
    counters = client.accumulator.counters()
    failed = sum(1 for sent in client.records if sent.error is not None)
    told = {"records_failed": failed, "records_sent": len(client.records) - failed}
    for name, expected in told.items():
        if counters[name] < expected:
            yield f"{name} is {counters[name]}, expected at least {expected}"


def _acknowledged(simulation: "Simulation", log: Log) -> Iterator[str]:
    idempotent = simulation.client.config.enable_idempotence
    lost = _in_deleted(simulation)
    for partition in simulation.cluster.partitions():
        if _acks_of(simulation, partition.topic) != -1:
            for entry in partition.lost:
                lost.update(numbers_in(entry.data, simulation.client.records))
    in_log = {place: {number for _, number in found} for place, found in log.items()}
    for sent in simulation.client.records:
        if sent.metadata is None or _acks_of(simulation, sent.topic) == 0:
            continue
        place, offset = (sent.topic, sent.metadata.partition), sent.metadata.offset
        if sent.number in lost:
            continue
        if sent.number not in in_log[place]:
            yield f"record {sent.number} was acknowledged, but is not in {place}: LOST"
        elif offset == -1:
            if not (idempotent and simulation.history.manners.tells_duplicates):
                yield f"record {sent.number} was acknowledged without an offset"
        elif offset >= len(log[place]) or log[place][offset][1] != sent.number:
            at = [where for where, number in log[place] if number == sent.number]
            yield f"record {sent.number} was acknowledged at {place} {offset}, but is at {at}"


def _acks_of(simulation: "Simulation", topic: str) -> int:
    config = simulation.client.config
    if not config.topic_options:
        return config.acks
    number = finder(config.topic_options)(topic)
    return settings_of(config, [{}, *config.topic_options.values()][number]).acks


def _in_deleted(simulation: "Simulation") -> set[int]:
    """Returns the record numbers of deleted topics, including records lost before if that is allowed."""
    numbers: set[int] = set()
    for partition in simulation.cluster.deleted:
        may_lose = _acks_of(simulation, partition.topic) != -1
        for entry in partition.entries + partition.lost * may_lose:
            numbers.update(numbers_in(entry.data, simulation.client.records))
    return numbers


def _failed(simulation: "Simulation", log: Log) -> Iterator[str]:
    in_log = {number for found in log.values() for _, number in found} | _in_deleted(simulation)
    for sent in simulation.client.records:
        if sent.error is not None and not sent.maybe_written and sent.number in in_log:
            yield f"record {sent.number} is in the log, but its error says that it is not: {sent.error!r}"


def _doubtful(simulation: "Simulation", log: Log) -> Iterator[str]:
    """An error with ``maybe_written=True`` needs a reason: a request with the record was written whole, or
    was begun if the delivery timeout expired while the record was in flight."""
    in_log = {number for found in log.values() for _, number in found}
    doubtful = {
        sent.number: sent.error
        for sent in simulation.client.records
        if sent.error is not None and sent.maybe_written and sent.number not in in_log
    }
    if not doubtful:
        return
    written: set[int] = set()
    for frame in simulation.network.written:
        for _, partitions in decode_produce_request(frame).topics:
            for _, data in partitions:
                written.update(numbers_in(data or b"", simulation.client.records))
    for number, error in doubtful.items():
        begun = isinstance(error, DeliveryTimeoutError) and ", 0 requests tried" not in str(error)
        if number not in written and not begun:
            yield f"record {number} was in no request, but its error says that it may be written: {error!r}"


def _repeated(simulation: "Simulation", log: Log) -> Iterator[str]:
    config = simulation.client.config
    if not config.enable_idempotence and config.retries:
        return
    places: dict[int, list[tuple[Place, int]]] = defaultdict(list)
    for place, found in log.items():
        for offset, number in found:
            places[number].append((place, offset))
    for number, where in places.items():
        if len(where) > 1:
            yield f"record {number} is in the log {len(where)} times: {where}: DUPLICATE"


def _order(simulation: "Simulation", log: Log) -> Iterator[str]:
    config = simulation.client.config
    named = simulation.history.manners.versions[PRODUCE][1] < TOPIC_ID_VERSION
    if named and simulation.cluster.deleted:
        # With topic names instead of ids, this can happen:
        # 1. Batches 0 and 1 are in flight.
        # 2. The topic is deleted and recreated.
        # 3. Batch 0 is rejected with a retriable error.
        # 4. The new topic does not know the producer, and accepts batch 1.
        return
    records = simulation.client.records
    only_told = not config.enable_idempotence or simulation.history.manners.first_epoch > 0
    for place, found in log.items():
        if _acks_of(simulation, place[0]) == 0:
            continue
        newest, seen = -1, set()
        for offset, number in found:
            if number in seen:
                continue
            seen.add(number)
            if only_told and records[number].metadata is None:
                continue
            if number < newest:
                yield f"record {number} is at {place} {offset}, behind {newest}: ORDER"
                break
            newest = number


def _probe(simulation: "Simulation") -> Iterator[str]:
    if any(value.endswith(b":" + PROBE) for value in simulation.client.turned_away):
        yield "there was no memory for a record although all trouble had ended long before"
    for sent in simulation.client.records:
        if sent.error is not None and sent.value.endswith(b":" + PROBE):
            yield f"record {sent.number} failed although all trouble had ended long before: {sent.error!r}"


def _rejected(simulation: "Simulation") -> Iterator[str]:
    manners = simulation.history.manners
    if not manners.rejects or any(code == INVALID_RECORD for code, *_ in manners.faults):
        return
    for sent in simulation.client.records:
        culprit = sent.value.partition(b":")[2].startswith(REJECTED)
        if culprit and sent.metadata is not None and _acks_of(simulation, sent.topic) != 0:
            yield f"record {sent.number} must be rejected by brokers, but was acknowledged"
        # A record that may be in the log fails with its batch: it must not be resent with other sequences.
        innocent = manners.names_rejected and not culprit and not sent.maybe_written
        if innocent and isinstance(sent.error, InvalidRecordError):
            yield f"record {sent.number} failed because of another record of its batch: {sent.error!r}"
