"""Fetch, ListOffsets and OffsetForLeaderEpoch of an embedded cluster.

Owns the selection of the bytes that a consumer gets, the wait for them, and the lookup of offsets by time.
Does not own the logs (``partitions``) or the set of partitions of a request (``fetch_sessions``).
"""

from collections.abc import Iterator
from typing import Any, Final

from cyproducer.errors import KafkaError
from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker import batches
from cyproducer.testing.broker.fetch_sessions import FIRST_EPOCH, NONE, Key
from cyproducer.testing.broker.metadata import located
from cyproducer.testing.broker.partitions import Entry, Partition
from cyproducer.testing.broker.server import LATER, Call
from cyproducer.testing.broker.world import NS_PER_MS
from cyproducer.wire.messages import FETCH, LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH
from cyproducer.wire.schema import NO_UUID

READ_COMMITTED: Final = 1
LATEST, EARLIEST, LARGEST_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5


# Fetch


class _Fetch:
    """A request that waits until enough bytes are available."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.is_done = False
        self.session, self.refusal = call.node.fetch_sessions.take(call.request, call.version)
        #: Whether the response contains only the partitions that have changed.
        self.is_incremental = self.session is not None and call.request.session_epoch != FIRST_EPOCH
        self._places = {partition for _, _, partition in self._parts() if isinstance(partition, Partition)}

    def _parts(self) -> Iterator[tuple[Key, Any, Partition | int]]:
        call = self.call
        if self.session is None:
            named = {
                (topic.topic_id if call.version >= 13 else topic.topic, each.partition): each
                for topic in call.request.topics
                for each in topic.partitions
            }
        else:
            named = dict(self.session.partitions)
        for (name, index), each in named.items():
            yield (name, index), each, located(call, name, index, epoch=each.current_leader_epoch)

    def begin(self) -> None:
        if self.refusal:
            self.call.answer(FETCH.response(0, self.refusal, NONE, [], []))
            return
        if self._try(at_once=self.call.request.max_wait_ms <= 0):
            return
        self.call.cluster.on_append.append(self.appended)
        self.call.world.after(self.call.request.max_wait_ms, self._try, True)

    def appended(self, partition: Partition) -> None:
        if partition in self._places:
            self._try(at_once=False)

    def _try(self, at_once: bool) -> bool:
        """Responds if there are enough bytes, or an error, or ``at_once``. Returns whether the request is
        done."""
        if self.is_done:
            return True
        call = self.call
        if call.connection.is_gone:
            self._end()
            return True
        request, response = call.request, FETCH.response
        left, size, failed = request.max_bytes, 0, False
        parts: list[tuple[Key, Any]] = []
        for key, each, partition in self._parts():
            data, part = self._read(each, partition, left, first=size == 0)
            size += len(data)
            left = max(0, left - len(data))
            failed = failed or part.error_code != 0
            parts.append((key, part))
        if not (at_once or failed or size >= request.min_bytes):
            return False
        self._end()
        session = self.session
        if session is not None:
            changed = [(key, part) for key, part in parts if session.takes(key, part)]
            parts = changed if self.is_incremental else parts
        topics: dict[str | bytes, list[Any]] = {}
        for (name, _), part in parts:
            topics.setdefault(name, []).append(part)
        by_id = call.version >= 13
        answers = [
            response.FetchableTopicResponse("" if by_id else name, name if by_id else NO_UUID, found)
            for name, found in topics.items()
        ]
        session_id = NONE if session is None else session.id
        call.answer(response(0, ErrorCode.NO_ERROR, session_id, answers, []))
        return True

    def _end(self) -> None:
        self.is_done = True
        if self.appended in self.call.cluster.on_append:
            self.call.cluster.on_append.remove(self.appended)

    def _read(self, each: Any, partition: Partition | int, left: int, first: bool) -> tuple[bytes, Any]:
        response = FETCH.response
        make, nothing = response.PartitionData, response.EpochEndOffset()
        leader, snapshot = response.LeaderIdAndEpoch(), response.SnapshotId()

        def failed(code: int, high: int = -1, start: int = -1) -> tuple[bytes, Any]:
            return b"", make(each.partition, code, high, -1, start, nothing, leader, snapshot, None, -1, b"")

        if isinstance(partition, int):
            return failed(partition)
        committed = self.call.request.isolation_level == READ_COMMITTED
        end, stable = partition.synced, partition.last_stable
        offset = each.fetch_offset
        if not partition.log_start <= offset <= partition.end:
            return failed(ErrorCode.OFFSET_OUT_OF_RANGE, end, partition.log_start)
        upper = stable if committed else end
        data, last = _bytes(partition, offset, upper, min(left, each.partition_max_bytes), first)
        aborted = None
        if committed:
            aborted = [
                response.AbortedTransaction(one.producer_id, one.first)
                for one in partition.aborted
                if one.last >= offset and one.first < last
            ]
        part = make(
            each.partition, ErrorCode.NO_ERROR, end, stable, partition.log_start, nothing, leader, snapshot,
            aborted, -1, data,
        )  # fmt: skip
        return data, part


def _bytes(partition: Partition, offset: int, upper: int, most: int, first: bool) -> tuple[bytes, int]:
    """Returns whole batches below ``upper``, starting with the one that contains ``offset``, and their end.

    The first batch of a response is returned even if it is larger than ``most`` bytes: otherwise, the
    consumer would make no progress.
    """
    chosen: list[bytes] = []
    size, end = 0, offset
    for index in range(partition.at(offset), len(partition.entries)):
        entry = partition.entries[index]
        if entry.end > upper:
            break
        data = bytes_of(partition, index)
        if size + len(data) > most and not (first and not chosen):
            break
        chosen.append(data)
        size += len(data)
        end = entry.end
    return b"".join(chosen), end


def bytes_of(partition: Partition, index: int) -> bytes:
    """Returns the batch of an entry. The batch of a marker is created when it is first read."""
    entry = partition.entries[index]
    if entry.commits is not None and not entry.data:
        now_ms = entry.written_ns // NS_PER_MS
        data = batches.marker(entry.offset, partition.epoch, entry.header, entry.commits, entry.term, now_ms)
        entry = partition.entries[index] = entry._replace(data=data)
    return entry.data


def fetch(call: Call) -> Any:
    _Fetch(call).begin()
    return LATER


# Offsets


def list_offsets(call: Call) -> Any:
    request, response = call.request, LIST_OFFSETS.response
    committed = call.version >= 2 and request.isolation_level == READ_COMMITTED
    topics = []
    for topic in request.topics:
        parts = []
        for each in topic.partitions:
            partition = located(call, topic.name, each.partition_index, epoch=each.current_leader_epoch)
            if isinstance(partition, int):
                parts.append(response.ListOffsetsPartitionResponse(each.partition_index, partition))
                continue
            timestamp, offset = _offset_at(partition, each.timestamp, committed)
            parts.append(
                response.ListOffsetsPartitionResponse(
                    each.partition_index, ErrorCode.NO_ERROR, timestamp, offset, partition.epoch
                )
            )
        topics.append(response.ListOffsetsTopicResponse(topic.name, parts))
    return response(0, topics)


def _offset_at(partition: Partition, timestamp: int, committed: bool) -> tuple[int, int]:
    """Returns a timestamp (-1 if it does not matter) and an offset (-1 if there is none)."""
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, partition.log_start
    if timestamp == LATEST:
        return -1, partition.last_stable if committed else partition.synced
    if timestamp == LATEST_TIERED:
        return -1, -1
    if timestamp == LARGEST_TIMESTAMP:
        stamped = [(batches.read(entry.data).max_ms, entry) for entry in partition.entries if entry.data]
        if not stamped:
            return -1, -1
        largest = max(ms for ms, _ in stamped)
        entry = next(entry for ms, entry in stamped if ms == largest)
        return _first_record(entry, largest) or (-1, -1)
    for entry in partition.entries:
        if entry.data and batches.read(entry.data).max_ms >= timestamp and entry.end <= partition.synced:
            found = _first_record(entry, timestamp)
            if found is not None:
                return found
    return -1, -1


def _first_record(entry: Entry, timestamp: int) -> tuple[int, int] | None:
    """Returns the timestamp and the offset of a batch's first record at or after a time."""
    # Imported here: it takes long, and few clients search for a time.
    from cyproducer.wire.record_decoder import batches as decoded

    try:
        for batch in decoded(entry.data):
            for record in batch.records():
                # A timestamp that does not fit into 64 bits overflows, as in Java.
                found = (record.timestamp + (1 << 63)) % (1 << 64) - (1 << 63)
                if found >= timestamp:
                    return found, record.offset
    except KafkaError:
        # The batch's codec is not installed: the beginning of the batch is good enough.
        return batches.read(entry.data).max_ms, entry.offset
    return None


def offset_for_leader_epoch(call: Call) -> Any:
    response = OFFSET_FOR_LEADER_EPOCH.response
    topics = []
    for topic in call.request.topics:
        parts = []
        for each in topic.partitions:
            partition = located(call, topic.topic, each.partition, epoch=each.current_leader_epoch)
            if isinstance(partition, int):
                parts.append(response.EpochEndOffset(partition, each.partition))
                continue
            epoch, end = _end_of_epoch(partition, each.leader_epoch)
            parts.append(response.EpochEndOffset(ErrorCode.NO_ERROR, each.partition, epoch, end))
        topics.append(response.OffsetForLeaderTopicResult(topic.topic, parts))
    return response(0, topics)


def _end_of_epoch(partition: Partition, epoch: int) -> tuple[int, int]:
    """Returns the largest epoch up to ``epoch`` that has records, and the offset after its last record."""
    if epoch == partition.epoch:
        return epoch, partition.end
    found = (-1, -1)
    for index, entry in enumerate(partition.entries):
        written = batches.read(bytes_of(partition, index)).leader_epoch
        if written <= epoch:
            found = written, entry.end
    return found


HANDLERS: Final = {
    FETCH: fetch,
    LIST_OFFSETS: list_offsets,
    OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
}
