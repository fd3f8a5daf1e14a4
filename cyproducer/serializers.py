"""Adapts confluent-kafka's serializers to ``key_serializer`` and ``value_serializer`` of ``KafkaProducer``.

Owns ``ConfluentSerializer`` and the context it passes on, with confluent-kafka's names. Does not need
confluent-kafka. Does not own serializers. Thread-safe if the serializer is.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any


class MessageField(enum.StrEnum):
    """Which part of a record is serialized; equal to confluent-kafka's members of the same names."""

    NONE = "none"
    KEY = "key"
    VALUE = "value"


class SerializationContext:
    """What a serializer of confluent-kafka gets in addition to the object.

    ``headers`` is the record's list of (name, value) pairs, to which the serializer may add.
    """

    def __init__(self, topic: str, field: MessageField, headers: Any = None) -> None:
        self.topic = topic
        self.field = field
        self.headers = headers


class ConfluentSerializer:
    """Makes a ``key_serializer`` or ``value_serializer`` from a serializer of confluent-kafka.

    Accepts ``AvroSerializer``, ``JSONSerializer``, ``ProtobufSerializer`` and any other callable that takes
    an object and a ``SerializationContext``. Headers that the serializer adds are sent.
    """

    def __init__(self, serializer: Callable[[Any, Any], bytes | None], field: str) -> None:
        """
        Args:
            serializer: the callable.
            field: "key" or "value", or a ``MessageField``: which option of the producer gets this.

        Raises:
            TypeError: ``serializer`` is not callable.
            ValueError: ``field`` is neither.
        """
        if not callable(serializer):
            raise TypeError(f"serializer: must be callable, not {type(serializer).__name__}")
        if field not in ("key", "value"):
            raise ValueError(f"field={field!r}: must be 'key' or 'value'")
        #: confluent-kafka's serializer.
        self.serializer = serializer
        #: Which part of a record it serializes.
        self.field = MessageField(field)

    def serialize(self, topic: str, headers: Any, data: Any) -> bytes | None:
        """Returns the serializer's result for ``data``."""
        return self.serializer(data, SerializationContext(topic, self.field, headers))
