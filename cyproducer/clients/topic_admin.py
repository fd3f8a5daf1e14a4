"""Reads topics, describes them and creates them, on application threads.

Owns the choice of the broker for each request, the known leaders, and the retries until the deadline. Does
not own the contents of batches (``wire/record_decoder``) or sending requests (``application_requests``).
Any thread may call it.

Reads return all batches below the high watermark, committed or not, including transaction markers: the caller
decides which of them count. Looking up a topic never creates it.

Every call takes ``deadline``, in the time of ``monotonic_s()``, and ``seconds``, the total time until the
deadline, for the message of the ``KafkaTimeoutError`` that it raises. Until then, it retries after errors
that may be temporary: lost connections, moved leaders, and every error code whose class is retriable. Other
errors are raised, with the broker's own text.

Sources: Kafka protocol guide; KIP-4, KIP-79, KIP-98, KIP-133, KIP-207 (``OFFSET_NOT_AVAILABLE``), KIP-590.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cyproducer import errors
from cyproducer.base.clock import monotonic_s
from cyproducer.clients.application_requests import ApplicationRequest, ApplicationRequests, Attempts
from cyproducer.errors.error_code import ErrorCode
from cyproducer.wire import admin_api, protocol
from cyproducer.wire.admin_api import DescribedConfigs, FetchedPartition
from cyproducer.wire.messages import CREATE_TOPICS, DESCRIBE_CONFIGS, FETCH, LIST_OFFSETS, METADATA
from cyproducer.wire.protocol import framing
from cyproducer.wire.record_decoder import Batch, batches
from cyproducer.wire.responses import NOT_ASKED, MetadataResponse, TopicInfo

FETCH_BYTES = 4 * 1024 * 1024
"""The most bytes in one response, unless its first batch is larger."""
CREATE_WAIT_S = 15.0
"""The timeout for a broker to create a topic, before the request is retried."""
READ, WRITE = 3, 4
"""Numbers of Kafka's ``AclOperation``."""


class Topic(NamedTuple):
    """An existing topic. ``topic_id`` has 16 bytes, zeros before Kafka 2.8; a recreated topic has another id.

    ``leaders``: partition -> the node id of its leader, -1 if it has none at present.
    """

    name: str
    topic_id: bytes
    leaders: dict[int, int]

    @property
    def partitions(self) -> list[int]:
        """The partitions, in order."""
        return sorted(self.leaders)


class Reading:
    """Reads from one cluster. See the module's docstring. Thread-safe."""

    def __init__(self, requests: ApplicationRequests) -> None:
        """``requests`` sends requests."""
        self._requests = requests
        # Each access is a single dict operation; a stale leader is detected by its response.
        self._leaders: dict[tuple[str, int], int] = {}

    def topic(self, name: str, deadline: float, seconds: float, *, wait: bool = False) -> Topic | None:
        """Looks up a topic; returns None if it does not exist.

        Brokers learn of a new topic one after another. With ``wait``, does not return None, but waits until a
        broker knows the topic, with a leader for each partition.

        Raises:
            InvalidTopicError: the name is not a legal topic name.
            TopicAuthorizationFailedError: the principal is not authorized to Describe the topic.
            KafkaTimeoutError: no broker responded in time.
        """
        attempts = self._attempts(f"look-up of topic {name!r}", deadline, seconds)
        while True:
            found = self._look_up(name, attempts)
            if found is None:
                continue
            if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not wait:
                return None
            if found.error_code:
                attempts.refused(found.error_code, f"Metadata of topic {name!r}")
                continue
            topic = Topic(name, found.topic_id, {each.partition: each.leader for each in found.partitions})
            if wait and any(leader < 0 for leader in topic.leaders.values()):
                attempts.failed(errors.LeaderNotAvailableError(f"a partition of {name!r} has no leader"))
                continue
            return topic

    def denied(
        self, names: Sequence[str], operations: Sequence[int], deadline: float, seconds: float
    ) -> dict[str, list[int]]:
        """Returns the operations that the principal is not authorized to perform, by topic (KIP-430).

        Omits topics that do not exist, and topics on which the principal is authorized for all operations.

        Raises:
            InvalidTopicError: one of the names is not a legal topic name.
            KafkaTimeoutError: no broker responded in time.
        """
        attempts = self._attempts(f"look-up of the rights on {', '.join(names)}", deadline, seconds)
        while True:
            metadata = self._metadata(names, attempts, True)
            if metadata is None:
                continue
            found = {}
            failed = False
            for each in metadata.topics:
                may = each.authorized_operations
                if each.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    may = 0
                elif each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or may == NOT_ASKED:
                    continue
                elif each.error_code:
                    attempts.refused(each.error_code, f"Metadata of topic {each.name!r}")
                    failed = True
                if each.name is not None and (less := [op for op in operations if not may >> op & 1]):
                    found[each.name] = less
            if not failed:
                return found

    def offsets(self, topic: str, partition: int, deadline: float, seconds: float) -> tuple[int, int]:
        """Returns the partition's first offset and its high watermark, the offset after its last record.

        The records of open transactions are also below the high watermark.

        Raises:
            TopicAuthorizationFailedError: the principal is not authorized to Describe the topic.
            KafkaTimeoutError: no leader responded in time, or the partition does not exist.
        """
        name = f"{topic}-{partition}"
        attempts = self._attempts(f"look-up of the offsets of {name}", deadline, seconds)
        # The first offset is requested first, so that the end, which is newer, can't be below it.
        timestamps = (admin_api.EARLIEST, admin_api.LATEST)
        while True:
            node_id = self._leader(topic, partition, attempts)
            if node_id is None:
                continue
            requests = [
                ApplicationRequest(
                    LIST_OFFSETS,
                    framing(admin_api.encode_list_offsets, topic, partition, timestamp),
                    node_id=node_id,
                )
                for timestamp in timestamps
            ]
            if not attempts.send(*requests):
                self._forget(topic, partition)
                continue
            found = [_part(request.response.offsets, topic, partition, request) for request in requests]
            code = next((each.error_code for each in found if each.error_code), 0)
            if code:
                self._forget(topic, partition)
                attempts.refused(code, f"ListOffsets of {name} at {requests[0].where}")
                continue
            start, end = (int(each.offset) for each in found)
            if not 0 <= start <= end:
                raise errors.KafkaProtocolError(
                    f"ListOffsets response of {requests[0].where}: {name} begins at offset {start} and ends "
                    f"at {end}; it must be 0 or more, and end not before its beginning"
                )
            return start, end

    def batches(
        self, topic: str, partition: int, first: int, end: int, deadline: float, seconds: float
    ) -> Iterator[Batch]:
        """Yields the batches that contain offsets from ``first`` to before ``end``, in order.

        The first and the last batch may also contain other offsets. Offsets have gaps where a topic was
        compacted. ``end`` must not exceed the end that ``offsets`` has returned, because this method waits
        for records up to it. The caller's time between two batches counts towards the deadline.

        Raises:
            OffsetOutOfRangeError: ``first`` is before the partition's first offset, or after its end.
            CorruptRecordError: a batch is damaged.
            UnsupportedForMessageFormatError: the records were written before Kafka 0.11.
            TopicAuthorizationFailedError: the principal is not authorized to Read the topic.
            KafkaTimeoutError: not everything was read in time; the message contains the offset reached.
        """
        name = f"{topic}-{partition}"
        attempts = self._attempts(f"reading offsets {first} to {end} of {name}", deadline, seconds)
        offset = first
        while offset < end:
            node_id = self._leader(topic, partition, attempts)
            if node_id is None:
                continue
            encode = framing(admin_api.encode_fetch, topic, partition, offset, FETCH_BYTES)
            request = ApplicationRequest(FETCH, encode, node_id=node_id)
            if not attempts.send(request):
                self._forget(topic, partition)
                continue
            response = request.response
            if response.error_code:
                attempts.refused(response.error_code, f"Fetch at {request.where}")
                continue
            found: FetchedPartition = _part(response.partitions, topic, partition, request)
            if found.error_code:
                self._forget(topic, partition)
                attempts.refused(found.error_code, f"Fetch of offset {offset} of {name} at {request.where}")
                continue
            before = offset
            for batch in batches(found.records):
                if batch.last_offset < offset:
                    # The broker searches from an earlier position in the log, and may return earlier batches.
                    continue
                if batch.base_offset >= end:
                    return
                offset = batch.last_offset + 1
                yield batch
            if offset > before:
                attempts.succeeded()
            else:
                # A new leader learns the high watermark late. Otherwise, there is a batch: compaction keeps
                # the last batch of a log, even if no record remains in it.
                attempts.failed(
                    errors.OffsetNotAvailableError(
                        f"{request.where} has nothing from offset {offset} on, below its high watermark "
                        f"{found.high_watermark}"
                    )
                )

    def topic_configs(
        self, names: Sequence[str], deadline: float, seconds: float
    ) -> dict[str, dict[str, str]]:
        """Returns the options of topics, with defaults; topics that do not exist are left out.

        Options without a value, and secret ones, are left out as well.

        Raises:
            TopicAuthorizationFailedError: the principal is not authorized to DescribeConfigs on a topic.
            KafkaTimeoutError: no broker responded in time.
        """
        attempts = self._attempts(f"description of topics {', '.join(names)}", deadline, seconds)
        while True:
            encode = framing(admin_api.encode_describe_configs, names)
            request = ApplicationRequest(DESCRIBE_CONFIGS, encode)
            if not attempts.send(request):
                continue
            results: list[DescribedConfigs] = request.response.results
            refused = [
                each for each in results if each.error_code not in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            ]
            if refused:
                what = f"DescribeConfigs of topic {refused[0].name!r} at {request.where}"
                attempts.refused(refused[0].error_code, what, refused[0].error_message)
                continue
            return {
                each.name: {key: value for key, value in each.configs.items() if value is not None}
                for each in results
                if not each.error_code
            }

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication: int,
        configs: Mapping[str, str],
        deadline: float,
        seconds: float,
    ) -> bool:
        """Creates a topic; returns False if it already exists.

        An earlier attempt, whose response was lost, may have created it. Brokers learn of a new topic one
        after another: see ``topic``.

        Args:
            name: the name of the topic.
            partitions: the number of partitions; -1: the brokers' default, from Kafka 2.4 on.
            replication: the number of replicas per partition; -1: the brokers' default, from Kafka 2.4 on.
            configs: the options of the topic.
            deadline: see the module's docstring.
            seconds: see the module's docstring.

        Raises:
            TopicAuthorizationFailedError: the principal is not authorized to Create the topic, or topics of
                the cluster.
            PolicyViolationError, InvalidConfigurationError, InvalidReplicationFactorError,
                InvalidPartitionsError, InvalidTopicError: the cluster refuses the topic.
            ValueError: -1 was given, and the broker is older than Kafka 2.4.
            KafkaTimeoutError: the deadline has passed; the topic may have been created.
        """
        attempts = self._attempts(f"creation of topic {name!r}", deadline, seconds)
        # With KRaft, every broker forwards the request to the controller.
        controller: int | None = None
        while True:
            timeout_s = min(CREATE_WAIT_S, max(0.0, deadline - monotonic_s()))
            encode = framing(
                admin_api.encode_create_topics,
                name,
                partitions,
                replication,
                configs,
                int(timeout_s * 1000),
            )
            request = ApplicationRequest(CREATE_TOPICS, encode, node_id=controller)
            if not attempts.send(request):
                controller = None
                continue
            created = _only(request.response.topics, request)
            if not created.error_code:
                return True
            if created.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
                return False
            what = f"CreateTopics of {name!r} at {request.where}"
            if created.error_code == ErrorCode.NOT_CONTROLLER and controller is None:
                metadata = self._metadata([], attempts)
                if metadata is not None and metadata.controller_id >= 0:
                    controller = metadata.controller_id
                    continue
            controller = None
            attempts.refused(created.error_code, what, created.error_message)

    # Leaders

    def _metadata(
        self, names: Sequence[str], attempts: Attempts, rights: bool = False
    ) -> MetadataResponse | None:
        request = ApplicationRequest(METADATA, framing(protocol.encode_metadata, names, False, rights))
        if not attempts.send(request):
            return None
        response: MetadataResponse = request.response
        if response.error_code:
            attempts.refused(response.error_code, f"Metadata at {request.where}")
            return None
        return response

    def _look_up(self, name: str, attempts: Attempts) -> TopicInfo | None:
        """Requests a topic from any broker, and stores its leaders; None: no response, so retry."""
        metadata = self._metadata([name], attempts)
        if metadata is None:
            return None
        found = next((each for each in metadata.topics if each.name == name), None)
        if found is None:
            raise errors.KafkaProtocolError(f"a Metadata response lacks the topic {name!r}")
        for each in found.partitions:
            if each.leader >= 0:
                self._leaders[name, each.partition] = each.leader
        return found

    def _leader(self, topic: str, partition: int, attempts: Attempts) -> int | None:
        """Returns the node id of the leader; None: retry."""
        known = self._leaders.get((topic, partition))
        if known is not None:
            return known
        found = self._look_up(topic, attempts)
        if found is None:
            return None
        if found.error_code:
            attempts.refused(found.error_code, f"Metadata of topic {topic!r}")
            return None
        known = self._leaders.get((topic, partition))
        if known is None:
            numbers = [each.partition for each in found.partitions]
            problem = "has no leader" if partition in numbers else f"is not one of {len(numbers)}"
            attempts.failed(
                errors.LeaderNotAvailableError(f"partition {partition} of topic {topic!r} {problem}")
            )
        return known

    def _forget(self, topic: str, partition: int) -> None:
        self._leaders.pop((topic, partition), None)

    def _attempts(self, what: str, deadline: float, seconds: float) -> Attempts:
        return Attempts(self._requests, what, deadline, seconds)


def _part(parts: Sequence[Any], topic: str, partition: int, request: ApplicationRequest) -> Any:
    """Returns the requested partition from a response."""
    return _only([each for each in parts if (each.topic, each.partition) == (topic, partition)], request)


def _only(found: Sequence[Any], request: ApplicationRequest) -> Any:
    if len(found) != 1:
        raise errors.KafkaProtocolError(
            f"{request.api.name} response of {request.where}: it must have what was asked for once, not "
            f"{len(found)} times"
        )
    return found[0]
