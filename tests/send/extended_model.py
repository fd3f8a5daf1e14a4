"""The model of what a program adds to ``send()``: in plain Python, one step after the other.

Owns the order of the calls, what an exception does, and what interceptors learn. ``test_extensions_by_model``
compares the C path with it. Deliberately slow and obvious.
"""

import operator
from typing import Any

from cyproducer.control.cluster_view import ClusterView
from cyproducer.errors import ProducerClosedError
from cyproducer.futures.delivery import RecordFuture
from cyproducer.records.topic_names import legal_topic
from cyproducer.send.bulk_path import BulkPath
from cyproducer.serializers import ConfluentSerializer, MessageField, SerializationContext
from cyproducer.structs import ProducerRecord, RecordMetadata, TopicPartition
from tools.harness.rig import Rig


class Model:
    """Sends through a rig whose path has no extensions."""

    def __init__(
        self,
        rig: Rig,
        view: ClusterView,
        key_serializer: Any,
        value_serializer: Any,
        interceptors: list[Any],
        partitioner: Any,
    ) -> None:
        self._rig = rig
        self._view = view
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._interceptors = interceptors
        self._partitioner = partitioner

    def send(self, *arguments: Any) -> RecordFuture:
        record = ProducerRecord(*arguments)
        for interceptor in self._interceptors:
            if hasattr(interceptor, "on_send"):
                try:
                    changed = interceptor.on_send(record)
                except Exception:
                    continue
                if isinstance(changed, ProducerRecord):
                    record = changed
        try:
            future = self._send_intercepted(record)
        except Exception as error:
            self._acknowledge(record, error)
            raise
        if self._interceptors:
            future.add_both(lambda outcome: self._acknowledge(record, outcome))
        return future

    def _send_intercepted(self, record: ProducerRecord) -> RecordFuture:
        if self._rig.accumulator.closed:
            raise ProducerClosedError("send() on a closed producer: the record was not accepted")
        if record.value is None and record.key is None:
            raise ValueError("a record needs a value or a key: a tombstone is a key with value=None")
        headers: Any = record.headers
        if headers is None or isinstance(headers, list | tuple):
            headers = list(headers or ())
        key = self._serialized(self._key_serializer, record.topic, headers, record.key, "key")
        value = self._serialized(self._value_serializer, record.topic, headers, record.value, "value")
        partition = record.partition
        if partition is None and self._partitioner is not None:
            legal_topic(record.topic)
            partition = self._choose(record, key, value)
            hook = getattr(self._partitioner, "on_new_batch", None)
            if hook and key is None and self._opens_batch(record.topic, partition, value, headers):
                hook(record.topic, self._view, partition)
                partition = self._choose(record, key, value)
        path: BulkPath = self._rig.path
        return path._send_serialized(record.topic, value, key, headers, partition, record.timestamp_ms)

    def _opens_batch(self, topic: str, partition: int, value: Any, headers: Any) -> bool:
        # What cannot be sent opens none.
        with Rig({topic: [1]}) as other:
            other.path._send_serialized(topic, value, b"k", headers, 0, None)
        return self._rig.accumulator.opens_batch(topic, partition, 1000)

    def _serialized(self, serializer: Any, topic: str, headers: Any, data: Any, what: str) -> Any:
        if serializer is None:
            return data
        try:
            if isinstance(serializer, ConfluentSerializer):
                return serializer.serializer(data, SerializationContext(topic, MessageField(what), headers))
            if hasattr(serializer, "serialize"):
                return serializer.serialize(topic, headers, data)
            return serializer(data)
        except Exception as error:
            error.add_note(
                f"raised by {what}_serializer, for a {what} of type {type(data).__name__} for topic {topic!r}"
            )
            raise

    def _choose(self, record: ProducerRecord, key: Any, value: Any) -> int:
        every = sorted(self._view.partitions_for_topic(record.topic) or ())
        led = sorted(self._view.available_partitions_for_topic(record.topic))
        if hasattr(self._partitioner, "partition"):
            answer = self._partitioner.partition(
                record.topic, record.key, key, record.value, value, self._view
            )
        else:
            answer = self._partitioner(key, every, led)
        allowed = not isinstance(answer, bool) and hasattr(answer, "__index__")
        if not allowed or operator.index(answer) not in every:
            raise ValueError(f"returned {answer!r} for topic {record.topic!r}")
        return operator.index(answer)

    def _acknowledge(self, record: ProducerRecord, outcome: Any) -> None:
        error = outcome if isinstance(outcome, BaseException) else None
        metadata = outcome
        if error is not None:
            number = -1 if record.partition is None else record.partition
            place = TopicPartition(record.topic, number)
            metadata = RecordMetadata(record.topic, number, place, -1, -1, None, -1, -1, -1)
        for interceptor in self._interceptors:
            if hasattr(interceptor, "on_acknowledgement"):
                try:
                    interceptor.on_acknowledgement(metadata, error)
                except Exception:
                    continue
