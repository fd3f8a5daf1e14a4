"""Correct programs, about which checkers have no complaint. ``test_typing.py`` also runs them.

Each takes the address of a broker.
"""

import asyncio
import json
import logging
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, assert_type

import cyproducer
from cyproducer import (
    BulkFuture,
    BulkMetadata,
    ClusterView,
    KafkaProducer,
    Partitioner,
    ProducerConfig,
    ProducerRecord,
    RecordFuture,
    RecordMetadata,
    TopicPartition,
)
from cyproducer.errors import BulkSendError, KafkaError
from cyproducer.testing import MockProducer

if TYPE_CHECKING:
    from cyproducer.types import Headers, ProducerOptions, Serializer

log = logging.getLogger(__name__)


def json_bytes(value: dict[str, int]) -> bytes:
    return json.dumps(value).encode()


class Lines:
    def serialize(self, topic: str, headers: object, data: list[str] | None) -> bytes | None:
        return None if data is None else "\n".join(data).encode()


def no_type_parameters(address: str) -> None:
    def send(producer: KafkaProducer) -> RecordFuture:
        return producer.send("t", {"id": 1})

    with KafkaProducer(
        bootstrap_servers=address, value_serializer=lambda value: json.dumps(value).encode(), acks="all"
    ) as producer:
        metadata = send(producer).get(30)
        assert_type(metadata, RecordMetadata)
        assert metadata.topic_partition == TopicPartition("t", metadata.partition)
        producer.flush(30)


def serializers_give_the_types(address: str) -> None:
    def send(producer: "KafkaProducer[str, dict[str, int]]") -> None:
        producer.send("t", {"id": 1}, "key").get(30)

    producer = KafkaProducer(
        bootstrap_servers=[address], key_serializer=str.encode, value_serializer=json_bytes
    )
    assert_type(producer, KafkaProducer[str, dict[str, int]])
    send(producer)
    producer.close(30)
    serializer: Serializer[list[str]] = Lines()
    with KafkaProducer(bootstrap_servers=address, value_serializer=serializer) as lines:
        lines.send("t", ["a", "b"]).get(30)
        lines.send("t", key=b"tombstone").get(30)


def parameters_at_run_time(address: str) -> None:
    class Repository:
        def __init__(self, producer: KafkaProducer[bytes, bytes]) -> None:
            self.producer = producer

    class Mine(KafkaProducer[bytes, bytes]):
        def __init__(self) -> None:
            super().__init__(bootstrap_servers=address)

    with KafkaProducer[bytes, bytes](bootstrap_servers=address) as producer:
        Repository(producer).producer.send("t", b"v", b"k").get(30)
    with Mine() as mine:
        mine.send("t", b"v").get(30)


def options_in_a_dict(address: str) -> None:
    options: ProducerOptions = {"bootstrap_servers": address, "linger_ms": 0.5, "compression_type": "gzip"}
    anything: dict[str, Any] = {"max_block_ms": 30_000}
    java: dict[str, str] = {"bootstrap.servers": address, "linger.ms": "5"}
    KafkaProducer(**options, **anything).close()
    KafkaProducer(java, client_id="mine").close()
    config = ProducerConfig(options, retries=float("inf"), client_id=None)
    assert_type(config.linger_ms, float)
    KafkaProducer(config).close()


def callbacks(address: str) -> None:
    seen: list[RecordMetadata] = []
    other: Future[RecordMetadata] = Future()

    def named(name: str, metadata: RecordMetadata) -> None:
        log.info("%s: %d", name, metadata.offset)

    def keyword(metadata: RecordMetadata, *, name: str) -> None: ...
    def failed(error: KafkaError) -> None: ...
    def failed_somehow(error: Exception) -> None: ...

    class Counter:
        count = 0

        def __call__(self, outcome: object) -> None:
            self.count += 1

    with KafkaProducer(bootstrap_servers=address) as producer:
        future = producer.send("t", b"v")
        for i in range(2):
            future.add_callback(lambda metadata: print(metadata.offset))
            future.add_callback(lambda metadata, i=i: print(i, metadata.offset))
            future.add_errback(lambda error: print(error.maybe_written))
            future.add_errback(lambda error, i=i: print(i))
            future.add_callback(lambda name, metadata: print(name.upper(), metadata.offset), "name")
            future.add_callback(named, "name").add_callback(partial(keyword, name="name"))
            future.add_callback(seen.append).add_callback(print, 1, 2)
            future.add_errback(failed).add_errback(failed_somehow).add_both(Counter())
            future.add_errback(log.error, "%s for %s failed: %s", "a record", "t")
            future.add_errback(log.error, "failed: %s")
        assert_type(future.value, RecordMetadata | None)
        future.add_callback(other.set_result).add_errback(other.set_exception)
        producer.flush(30)
        assert_type(future.as_concurrent(), Future[RecordMetadata])
    assert len(seen) == 2


def many_records(address: str) -> None:
    def failed(error: BulkSendError) -> None: ...
    def done(metadata: BulkMetadata) -> None: ...

    headers: Headers = [("trace", b"1"), ("empty", None), ("view", memoryview(b"1"))]
    with KafkaProducer(bootstrap_servers=address) as producer:
        future = producer.send_many("t", [b"v", bytearray(b"w"), None], [b"k", b"k", b"k"])
        assert_type(future, BulkFuture)
        assert_type(future.get(30), BulkMetadata)
        future.add_callback(done).add_errback(failed)
        producer.send("t", memoryview(b"v"), bytearray(b"k"), headers, timestamp_ms=1).get(30)
        futures = producer.send_all(
            [ProducerRecord("t", b"v", headers=[("a", b"1")]), ("t", b"v"), {"topic": "t"}]
        )
        assert_type(futures, list[RecordFuture])
        producer.flush(30)


def from_asyncio(address: str) -> None:
    async def main() -> RecordMetadata:
        future = await producer.send_async("t", b"v", headers=iter([("trace", b"1")]))
        assert_type(await future, RecordMetadata)
        return await future

    with KafkaProducer(bootstrap_servers=address) as producer:
        assert asyncio.run(main()).topic == "t"


def plugins(address: str) -> None:
    class First(Partitioner):
        def partition(
            self,
            topic: str,
            key: object,
            serialized_key: bytes | None,
            value: object,
            serialized_value: bytes | None,
            cluster: ClusterView,
        ) -> int:
            return min(cluster.partitions_for_topic(topic) or ())

    class OldPartitioner:
        def partition(self, topic: str, serialized_key: bytes | None, cluster: ClusterView) -> int:
            return 0

    class Tracing:
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return record._replace(headers=[*(record.headers or ()), ("trace", b"1")])

    class Counting:
        def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None: ...

    class Reporter:
        def init(self, metrics: list[object]) -> None: ...
        def metric_change(self, metric: object) -> None: ...
        def on_shutdown(self) -> None: ...

    def function(key: bytes | None, every: list[int], available: list[int]) -> int:
        return every[0]

    KafkaProducer(bootstrap_servers=address, partitioner=lambda key, every, available: every[0]).close()
    for partitioner in (First, First(), OldPartitioner(), function, "murmur2"):
        with KafkaProducer(
            bootstrap_servers=address,
            partitioner=partitioner,
            interceptors=[Tracing, Counting()],
            metric_reporters=[Reporter],
        ) as producer:
            producer.send("t", b"v").get(30)


def credentials(address: str) -> None:
    class Provider:
        def token(self) -> str:
            return "token"

    class Async:
        async def token(self) -> tuple[str, float]:
            return "token", 5.0

    def oauth_cb(given: str) -> tuple[str, float]:
        return "token", 5.0

    for provider in (Provider(), Async(), oauth_cb):
        ProducerConfig(
            bootstrap_servers=address,
            security_protocol="SASL_SSL",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=provider,
        )
    ProducerConfig(
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username="user",
        sasl_plain_password=lambda: "secret",
        ssl_enabled_protocols=["TLSv1.3"],
        broker_address=lambda host, port: (host, port),
    )


def in_tests(address: str) -> None:
    producer = MockProducer(auto_complete=False, key_serializer=str.encode)
    assert_type(producer, MockProducer[str, Any])
    producer.send("t", b"v", "key")
    assert producer.history()[0].serialized_key == b"key"
    producer.error_next(cyproducer.errors.KafkaTimeoutError())
