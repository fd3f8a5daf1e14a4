"""Reads partitions, and looks at topics and creates them, on threads of the program.

Owns which broker is asked, repeating what may be repeated, and deadlines. Does not own the form of batches
(``records/decoder``), or requests and connections (``questions``). Any thread may call it.

For the few records that the package reads itself; it is no consumer.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cyproducer import errors
from cyproducer.control.apis import (
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    Api,
    MetadataResponse,
    TopicInfo,
)
from cyproducer.control.ending import refusal
from cyproducer.control.retry import ExponentialBackoff
from cyproducer.network import admin_protocol, protocol
from cyproducer.network.questions import Encode, Question, Questions
from cyproducer.records.decoder import Batch, batches

_UNKNOWN_TOPIC = 3
_TOPIC_EXISTS = 36


class Reading:
    """Reads one cluster's topics. See the module's docstring.

    ``deadline`` of each call is by ``time.monotonic()``; ``seconds`` is the whole time until then, for
    messages. Every call raises KafkaTimeoutError if there is no answer by then.
    """

    def __init__(
        self, questions: Questions, backoff: ExponentialBackoff, diagnosis: Callable[[], str]
    ) -> None:
        """
        Args:
            questions: sends requests.
            backoff: the delay between two attempts.
            diagnosis: says for errors why nothing gets through.
        """
        self._questions = questions
        self._backoff = backoff
        self._diagnosis = diagnosis
        # (topic, partition) -> node id of the leader, as known last.
        self._leaders: dict[tuple[str, int], int] = {}

    def topic(self, name: str, deadline: float, seconds: float) -> TopicInfo | None:
        """Returns what the brokers know of a topic; None: it does not exist."""
        found = self._metadata([name], deadline, seconds).topics[0]
        if found.error_code == _UNKNOWN_TOPIC:
            return None
        for partition in found.partitions:
            self._leaders[name, partition.partition] = partition.leader
        return found

    def broker_count(self, deadline: float, seconds: float) -> int:
        """Returns how many brokers are up."""
        return len(self._metadata([], deadline, seconds).brokers)

    def offsets(self, topic: str, partition: int, deadline: float, seconds: float) -> tuple[int, int]:
        """Returns a partition's first offset and its high watermark: every record that was acknowledged
        before this call is below it (KIP-207)."""
        found = []
        for timestamp in (admin_protocol.EARLIEST, admin_protocol.LATEST):

            def encode(version: int, number: int, client_id: str, timestamp: int = timestamp) -> bytes:
                return admin_protocol.encode_list_offsets(
                    version, number, client_id, topic, partition, timestamp
                )

            response = self._from_leader(LIST_OFFSETS, encode, topic, partition, deadline, seconds)
            found.append(response.offset)
        return found[0], found[1]

    def batches(
        self, topic: str, partition: int, first: int, end: int, deadline: float, seconds: float
    ) -> Iterator[Batch]:
        """Yields the batches that have offsets from ``first`` on and below ``end``, which must not be above
        the high watermark. Those of open and aborted transactions, and markers, are among them."""
        at = first
        while at < end:

            def encode(version: int, number: int, client_id: str, at: int = at) -> bytes:
                return admin_protocol.encode_fetch(version, number, client_id, topic, partition, at)

            response = self._from_leader(FETCH, encode, topic, partition, deadline, seconds)
            before = at
            for batch in batches(response.records):
                if batch.base_offset >= end:
                    return
                if batch.last_offset >= at:
                    at = batch.last_offset + 1
                    yield batch
            if at == before:
                # A new leader may not have learnt the high watermark yet.
                self._pause(deadline, 1)
                if time.monotonic() >= deadline:
                    raise errors.KafkaTimeoutError(
                        f"{topic}-{partition} was read up to offset {at} of {end} within {seconds:g} s; "
                        f"{self._diagnosis()}"
                    )

    def topic_configs(self, topic: str, deadline: float, seconds: float) -> dict[str, str]:
        """Returns a topic's configuration."""

        def encode(version: int, number: int, client_id: str) -> bytes:
            return admin_protocol.encode_describe_configs(version, number, client_id, topic)

        response = self._until(DESCRIBE_CONFIGS, encode, lambda: None, f"topic {topic!r}", deadline, seconds)
        values: dict[str, str] = response.values
        return values

    def create_topic(
        self,
        topic: str,
        partitions: int,
        replication: int,
        configs: Mapping[str, str],
        deadline: float,
        seconds: float,
    ) -> bool:
        """Creates a topic; returns whether it did not exist. ``replication`` -1: the brokers' default."""

        def encode(version: int, number: int, client_id: str) -> bytes:
            timeout_ms = int(max(0.0, deadline - time.monotonic()) * 1000)
            return admin_protocol.encode_create_topic(
                version, number, client_id, topic, partitions, replication, configs, timeout_ms
            )

        def accept(code: int) -> bool:
            return code == _TOPIC_EXISTS

        response = self._until(
            CREATE_TOPICS, encode, lambda: None, f"topic {topic!r}", deadline, seconds, accept
        )
        return bool(response.error_code != _TOPIC_EXISTS)

    # Asking

    def _metadata(self, topics: list[str], deadline: float, seconds: float) -> MetadataResponse:
        def encode(version: int, number: int, client_id: str) -> bytes:
            return protocol.encode_metadata(version, number, client_id, topics, False)

        def code_of(response: MetadataResponse) -> int:
            code = response.error_code or (response.topics[0].error_code if response.topics else 0)
            return 0 if code == _UNKNOWN_TOPIC else code

        response: MetadataResponse = self._until(
            METADATA, encode, lambda: None, f"topics {topics}", deadline, seconds, code_of=code_of
        )
        return response

    def _from_leader(
        self, api: Api, encode: Encode, topic: str, partition: int, deadline: float, seconds: float
    ) -> Any:
        def leader() -> int:
            node_id = self._leaders.get((topic, partition), -1)
            if node_id < 0:
                found = self.topic(topic, deadline, seconds)
                if found is None:
                    raise errors.UnknownTopicOrPartitionError(f"topic {topic!r} does not exist")
                node_id = self._leaders.get((topic, partition), -1)
                if node_id < 0:
                    raise errors.LeaderNotAvailableError(f"{topic}-{partition} has no leader")
            return node_id

        def forget() -> None:
            self._leaders.pop((topic, partition), None)

        what = f"{topic}-{partition}"
        return self._until(api, encode, leader, what, deadline, seconds, on_failure=forget)

    def _until(
        self,
        api: Api,
        encode: Encode,
        node: Callable[[], int | None],
        what: str,
        deadline: float,
        seconds: float,
        accept: Callable[[int], bool] = lambda code: False,
        code_of: Callable[[Any], int] = lambda response: response.error_code,
        on_failure: Callable[[], None] = lambda: None,
    ) -> Any:
        """Asks until there is an answer that is no error, or one that would be the same again."""
        failures = 0
        while True:
            error = self._once(api, encode, node, what, deadline, accept, code_of)
            if not isinstance(error, BaseException):
                return error
            if not getattr(error, "retriable", False) and not isinstance(error, errors.KafkaTimeoutError):
                raise error
            on_failure()
            failures += 1
            if time.monotonic() >= deadline:
                raise errors.KafkaTimeoutError(
                    f"{api.name} for {what} not answered within {seconds:g} s, after {failures} failed: "
                    f"{error}; {self._diagnosis()}"
                ) from error
            self._pause(deadline, failures)

    def _once(
        self,
        api: Api,
        encode: Encode,
        node: Callable[[], int | None],
        what: str,
        deadline: float,
        accept: Callable[[int], bool],
        code_of: Callable[[Any], int],
    ) -> Any:
        """Returns the response, or an error."""
        try:
            question = Question(api, encode, node_id=node())
        except errors.LeaderNotAvailableError as error:
            return error
        try:
            self._questions.ask(question)
            while not question.done and (left := deadline - time.monotonic()) > 0:
                self._questions.wait([question], left)
        finally:
            question.withdraw()
        if not question.done:
            return errors.KafkaTimeoutError(f"{api.name} for {what} is not answered")
        if question.error is not None:
            if question.final:
                raise question.error
            return question.error
        code = code_of(question.response)
        if code and not accept(code):
            message = getattr(question.response, "error_message", None)
            return refusal(code, f"{api.name} for {what} at {question.where}", message)
        return question.response

    def _pause(self, deadline: float, failures: int) -> None:
        left = max(0.0, deadline - time.monotonic())
        self._questions.wait((), min(left, self._backoff.delay_ms(failures, random.random) / 1000))
