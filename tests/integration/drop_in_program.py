"""A kafka-python program that is run twice: unchanged, and with its imports changed to cyproducer's.

Prints all results, for `test_drop_in` to compare: ``drop_in_program.py BOOTSTRAP TOPIC``. The topic must be
empty and have three partitions.
"""

# mypy: ignore-errors

import json
import sys

from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError

bootstrap, topic = sys.argv[1:]
# A fixed timestamp, so that both runs have the same one.
THEN_MS = 1_700_000_000_000
told = []


def on_success(number, metadata, unit):
    told.append((number, metadata.partition, metadata.offset, unit))


def on_failure(error):
    print("failed", error)


producer = KafkaProducer(
    bootstrap_servers=[bootstrap],
    client_id="drop-in",
    acks="all",
    retries=5,
    linger_ms=5,
    batch_size=4096,
    compression_type="gzip",
    max_block_ms=20_000,
    request_timeout_ms=20_000,
    key_serializer=str.encode,
    value_serializer=lambda value: json.dumps(value).encode(),
)
print("partitions", sorted(producer.partitions_for(topic)))

for i in range(300):
    future = producer.send(
        topic,
        {"number": i},
        key=f"key-{i}",
        headers=[("n", b"%d" % i), ("n", b"")],
        timestamp_ms=THEN_MS + i,
    )
    future.add_callback(on_success, i, unit="x")
    future.add_errback(on_failure)
producer.flush(timeout=30)
print("told", sorted(told))

future = producer.send(topic, value=[1, "zwei", None], key="k", partition=1, timestamp_ms=THEN_MS)
metadata = future.get(timeout=30)
print("metadata", tuple(metadata), metadata.topic_partition.partition, metadata._fields)
print("asked", future.succeeded(), future.failed(), future.retriable(), future.is_done, future.exception)
print("value", future.value == metadata)
nothing = producer.send(topic, key="a serializer makes null of None", timestamp_ms=THEN_MS).get(timeout=30)
print("nothing", nothing.partition, nothing.serialized_value_size)

for what, arguments in {
    "a value that is no JSON": {"value": object()},
    "a key that is no str": {"value": 1, "key": 5},
    "a header whose value is no bytes": {"value": 1, "headers": [("a", "str")]},
    "a timestamp that is no int": {"value": 1, "timestamp_ms": "now"},
}.items():
    try:
        producer.send(topic, **arguments).get(timeout=30)
    except (TypeError, ValueError, AttributeError, AssertionError):
        print("refused", what)
try:
    producer.send(topic)
except ValueError:
    print("neither a key nor a value")

producer.close(timeout=30)
try:
    producer.send(topic, 1)
except KafkaError:
    print("closed")

with KafkaProducer(bootstrap_servers=bootstrap, max_block_ms=20_000) as plain:
    raw = plain.send(topic, b"raw", b"key", [("h", b"1")], 0, THEN_MS).get(30)
    print("raw", tuple(raw))
    tombstone = plain.send(topic, key=b"key", partition=2, timestamp_ms=THEN_MS).get(30)
    print("tombstone", tuple(tombstone))
    try:
        plain.send(topic)
    except ValueError:
        print("neither, without serializers")

# A separate producer: on a busy machine even an existing topic's metadata may take this long, and
# kafka-python's send() then raises before it has written anything.
with KafkaProducer(bootstrap_servers=bootstrap, max_block_ms=300, allow_auto_create_topics=False) as hasty:
    try:
        hasty.send("nobody-made-this", b"x").get(30)
    except KafkaTimeoutError:
        print("timeout")
