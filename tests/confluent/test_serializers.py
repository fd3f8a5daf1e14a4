"""Serializers of confluent-kafka's shape, with ``SerializingProducer`` and with ``KafkaProducer``."""

import json
from typing import Any

import pytest

from cyproducer import KafkaProducer
from cyproducer.confluent import (
    KeySerializationError,
    MessageField,
    SerializationContext,
    SerializingProducer,
    ValueSerializationError,
)
from cyproducer.serializers import ConfluentSerializer
from tests.scripted.producing import WAIT_S
from tests.scripted.scripted_broker import ScriptedCluster


class Serializer:
    """Serializes as JSON, and adds a header, as those with the schema's id in the headers do."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, MessageField]] = []

    def __call__(self, obj: Any, context: SerializationContext) -> bytes | None:
        self.seen.append((context.topic, context.field))
        context.headers.append((f"__{context.field}", b"id"))
        return None if obj is None else json.dumps(obj).encode()


def test_a_serializing_producer(cluster: ScriptedCluster) -> None:
    key, value, mine = Serializer(), Serializer(), [("mine", b"1")]
    reports: list[Any] = []
    conf = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "key.serializer": key,
        "value.serializer": value,
    }
    with SerializingProducer(conf) as producer:
        producer.produce("orders", 7, {"paid": True}, headers=mine, on_delivery=lambda *r: reports.append(r))
        producer.produce("orders", "k", None, 0, timestamp=5)
    first, second = cluster.topics["orders"].partitions[0].records
    assert (first.key, first.value) == (b"7", b'{"paid": true}')
    assert first.headers == (("mine", b"1"), ("__key", b"id"), ("__value", b"id"))
    assert (second.key, second.value, second.timestamp) == (b'"k"', None, 5)
    assert second.headers == (("__key", b"id"), ("__value", b"id"))
    assert key.seen == [("orders", MessageField.KEY)] * 2
    assert value.seen == [("orders", MessageField.VALUE)] * 2
    assert mine == [("mine", b"1")]
    ((error, message),) = reports
    assert (error, message.value()) == (None, b'{"paid": true}')


def test_without_serializers_a_serializing_producer_sends_bytes(cluster: ScriptedCluster) -> None:
    with SerializingProducer({"bootstrap.servers": cluster.bootstrap_servers}) as producer:
        producer.produce("orders", "k", b"v", headers={"a": "b"})
    (record,) = cluster.topics["orders"].partitions[0].records
    assert (record.key, record.value, record.headers) == (b"k", b"v", (("a", b"b"),))


def test_a_serializer_that_raises(cluster: ScriptedCluster) -> None:
    def raising(obj: Any, context: SerializationContext) -> bytes:
        raise LookupError("no schema")

    servers = {"bootstrap.servers": cluster.bootstrap_servers}
    for name, kind in (("key", KeySerializationError), ("value", ValueSerializationError)):
        with SerializingProducer({**servers, f"{name}.serializer": raising}) as producer:
            with pytest.raises(kind, match="no schema") as caught:
                producer.produce("orders", "k", "v")
            assert isinstance(caught.value.exception, LookupError)
            assert len(producer) == 0


def test_they_serialize_for_kafka_producer_and_add_headers(cluster: ScriptedCluster) -> None:
    key, value, mine = Serializer(), Serializer(), [("mine", b"1")]
    with KafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers,
        key_serializer=ConfluentSerializer(key, "key"),
        value_serializer=ConfluentSerializer(value, MessageField.VALUE),
    ) as producer:
        producer.send("orders", {"paid": True}, key=7, headers=mine).get(WAIT_S)
        producer.send("orders", 1, headers=(("mine", b"1"),)).get(WAIT_S)
        producer.send("orders", 1).get(WAIT_S)
    first, second, third = cluster.topics["orders"].partitions[0].records
    assert (first.key, first.value) == (b"7", b'{"paid": true}')
    assert first.headers == second.headers == (("mine", b"1"), ("__key", b"id"), ("__value", b"id"))
    assert third.headers == (("__key", b"id"), ("__value", b"id"))
    assert mine == [("mine", b"1")]
    assert (key.seen[0], value.seen[0]) == (("orders", MessageField.KEY), ("orders", MessageField.VALUE))


def test_headers_of_a_wrong_type_are_still_refused(cluster: ScriptedCluster) -> None:
    with (
        KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, value_serializer=str.encode) as producer,
        pytest.raises(TypeError, match="not dict"),
    ):
        producer.send("orders", "x", headers={"a": b"b"})  # type: ignore[dict-item]


def test_what_is_no_serializer_or_field_is_refused() -> None:
    with pytest.raises(TypeError, match="serializer: must be callable, not int"):
        ConfluentSerializer(1, "key")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="field='header': must be 'key' or 'value'"):
        ConfluentSerializer(Serializer(), "header")


def test_the_fields_equal_confluent_kafka_s() -> None:
    theirs = pytest.importorskip("confluent_kafka.serialization").MessageField
    assert [MessageField.KEY, MessageField.VALUE] == [theirs.KEY, theirs.VALUE]
    assert f"orders-{MessageField.KEY}" == "orders-key"


AVRO = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]})
JSON = json.dumps({"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}})


def serializers() -> dict[str, tuple[Any, Any]]:
    """Serializers of confluent-kafka with a registry in memory, each with an object for it."""
    why = "needs confluent-kafka[avro,json,protobuf,schemaregistry]"
    registry, avro, json_schema, protobuf = (
        pytest.importorskip(f"confluent_kafka.schema_registry{module}", reason=why)
        for module in ("", ".avro", ".json_schema", ".protobuf")
    )
    wrappers = pytest.importorskip("google.protobuf.wrappers_pb2", reason=why)
    client = registry.SchemaRegistryClient.new_client({"url": "mock://"})
    return {
        "avro": (avro.AvroSerializer(client, AVRO), {"id": 7}),
        "json": (json_schema.JSONSerializer(JSON, client), {"id": 7}),
        "protobuf": (
            protobuf.ProtobufSerializer(wrappers.Int32Value, client, {"use.deprecated.format": False}),
            wrappers.Int32Value(value=7),
        ),
        "headers": (
            avro.AvroSerializer(
                client, AVRO, conf={"schema.id.serializer": registry.header_schema_id_serializer}
            ),
            {"id": 7},
        ),
    }


@pytest.mark.parametrize("name", ["avro", "json", "protobuf", "headers"])
@pytest.mark.slow
def test_serializers_with_a_schema_registry(cluster: ScriptedCluster, name: str) -> None:
    serializer, obj = serializers()[name]
    servers = cluster.bootstrap_servers
    with SerializingProducer({"bootstrap.servers": servers, "value.serializer": serializer}) as producer:
        producer.produce("orders", value=obj)
    with KafkaProducer(
        bootstrap_servers=servers, value_serializer=ConfluentSerializer(serializer, "value")
    ) as other:
        other.send("orders", obj).get(WAIT_S)
    first, second = cluster.topics["orders"].partitions[0].records
    assert first.value == second.value
    assert first.headers == second.headers
    # The schema's id is in the headers, or in five bytes before the data.
    assert [header for header, _ in first.headers] == (["__value_schema_id"] if name == "headers" else [])
    assert first.value is not None
    assert first.value.startswith(b"\0") is (name != "headers")
