"""``SerializingProducer``, and the context that confluent-kafka's serializers get.

Owns ``SerializationContext``, ``MessageField`` and calling the serializers. Does not own serializers: any
callable that takes an object and a context will do. Thread-safe as far as the serializers are.
"""

from collections.abc import Callable, Mapping
from typing import Any

from cyproducer.confluent.errors import KafkaError, KeySerializationError, ValueSerializationError
from cyproducer.confluent.producer import Producer
from cyproducer.serializers import MessageField, SerializationContext

Serializer = Callable[[Any, SerializationContext], bytes | None]


class SerializingProducer(Producer):
    """confluent-kafka's ``SerializingProducer``: ``produce`` takes objects, and ``key`` before ``value``.

    ``conf`` also has ``key.serializer`` and ``value.serializer``: callables that get the object and a
    ``SerializationContext``.
    """

    def __init__(self, conf: Mapping[str, Any]) -> None:
        rest = dict(conf)
        self._key_serializer: Serializer | None = rest.pop("key.serializer", None)
        self._value_serializer: Serializer | None = rest.pop("value.serializer", None)
        super().__init__(rest)

    def produce(  # type: ignore[override]
        self,
        topic: str,
        key: Any = None,
        value: Any = None,
        partition: int = -1,
        on_delivery: Callable[[KafkaError | None, Any], object] | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """``Producer.produce`` after the serializers.

        Raises ``KeySerializationError`` or ``ValueSerializationError`` if one of them raises. A serializer
        may add to the list of headers that it gets, which is sent.
        """
        if isinstance(headers, list):
            # A copy: what a serializer adds must not stay for the next record.
            headers = list(headers)
        elif isinstance(headers, dict):
            headers = dict(headers)
        elif headers is None and (self._key_serializer or self._value_serializer):
            headers = []
        context = SerializationContext(topic, MessageField.KEY, headers)
        if self._key_serializer is not None:
            try:
                key = self._key_serializer(key, context)
            except Exception as error:
                raise KeySerializationError(error) from error
        context.field = MessageField.VALUE
        if self._value_serializer is not None:
            try:
                value = self._value_serializer(value, context)
            except Exception as error:
                raise ValueSerializationError(error) from error
        super().produce(
            topic,
            value,
            key,
            partition,
            on_delivery=on_delivery,
            timestamp=timestamp,
            headers=headers or None,
        )
