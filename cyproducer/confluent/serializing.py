"""``SerializingProducer``, and the context that is passed to confluent-kafka's serializers.

Owns ``SerializationContext``, ``MessageField`` and calling the serializers. Does not own serializers: any
callable that takes an object and a context works. As thread-safe as the serializers.
"""

from collections.abc import Callable, Mapping
from typing import Any

from cyproducer.confluent.errors import KafkaError, KeySerializationError, ValueSerializationError
from cyproducer.confluent.producer import Producer
from cyproducer.serializers import MessageField, SerializationContext

Serializer = Callable[[Any, SerializationContext], bytes | None]


class SerializingProducer(Producer):
    """confluent-kafka's ``SerializingProducer``: ``produce`` takes objects, and ``key`` before ``value``.

    ``conf`` may also contain ``key.serializer`` and ``value.serializer``: callables that take the object and
    a ``SerializationContext``.
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
        """Serializes the key and the value, then calls ``Producer.produce``.

        Raises ``KeySerializationError`` or ``ValueSerializationError`` if a serializer raises. A serializer
        may append to the list of headers in its context; the record is sent with them.
        """
        if isinstance(headers, list):
            # A copy: headers added by a serializer must not carry over to the next record.
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
