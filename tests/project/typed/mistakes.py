"""Mistakes that users make, one in each function. ``type: ignore`` marks the line where checkers must see it.

mypy reports an ignore that it does not need, so that its usual run over the tests checks this file.
``test_typing.py`` does the same with pyright, and checks which of these also raise at run time.
"""

from datetime import datetime

from cyproducer import KafkaProducer, ProducerRecord, RecordFuture, RecordMetadata
from cyproducer.errors import KafkaError
from cyproducer.testing import MockProducer


def misspelt_option() -> None:
    KafkaProducer(lingerms=5)  # type: ignore[call-arg]


def option_of_a_wrong_type() -> None:
    KafkaProducer(linger_ms="soon")  # type: ignore[arg-type]


def unknown_codec() -> None:
    KafkaProducer(compression_type="lz5")  # type: ignore[arg-type]


def unknown_acks() -> None:
    KafkaProducer(acks="every")  # type: ignore[arg-type]


def unknown_protocol() -> None:
    KafkaProducer(security_protocol="TLS")  # type: ignore[arg-type]


def misspelt_method(producer: KafkaProducer) -> None:
    producer.produce("t", b"v")  # type: ignore[attr-defined]


def text_without_a_serializer(producer: KafkaProducer[bytes, bytes]) -> None:
    producer.send("t", "v")  # type: ignore[arg-type]


def value_that_the_serializer_does_not_take() -> None:
    producer = MockProducer(value_serializer=str.encode)
    producer.send("t", 5)  # type: ignore[arg-type]


def key_and_value_swapped() -> None:
    def number(value: int) -> bytes:
        return value.to_bytes(8, "big")

    producer = MockProducer(key_serializer=str.encode, value_serializer=number)
    producer.send("t", "key", 5)  # type: ignore[arg-type]


def serializer_that_returns_text() -> None:
    producer = MockProducer(value_serializer=lambda value: f"{value}")  # type: ignore[arg-type, return-value]
    producer.send("t", 5)


def headers_in_a_dict(producer: KafkaProducer) -> None:
    producer.send("t", b"v", headers={"trace": b"1"})  # type: ignore[dict-item]


def number_in_a_header(producer: KafkaProducer) -> None:
    producer.send("t", b"v", headers=[("trace", 1)])  # type: ignore[list-item]


def text_as_partition(producer: KafkaProducer) -> None:
    producer.send("t", b"v", partition="1")  # type: ignore[arg-type]


def float_as_timestamp(producer: KafkaProducer) -> None:
    producer.send("t", b"v", timestamp_ms=1.5)  # type: ignore[arg-type]


def datetime_as_timestamp(producer: KafkaProducer) -> None:
    producer.send("t", b"v", timestamp_ms=datetime(2026, 1, 1))  # type: ignore[arg-type]


def text_as_timeout_of_flush(producer: KafkaProducer) -> None:
    producer.flush("1")  # type: ignore[arg-type]


def text_as_timeout_of_get(producer: KafkaProducer) -> None:
    producer.send("t", b"v").get("1")  # type: ignore[arg-type]


def offset_of_a_future(producer: KafkaProducer) -> None:
    print(producer.send("t", b"v").offset)  # type: ignore[attr-defined]


async def awaited_get(producer: KafkaProducer) -> None:
    await producer.send("t", b"v").get()  # type: ignore[misc]


async def send_async_without_await(producer: KafkaProducer) -> None:
    producer.send_async("t", b"v")  # type: ignore[unused-coroutine]


async def future_of_send_async_without_await(producer: KafkaProducer) -> None:
    producer.send_async("t", b"v").get()  # type: ignore[attr-defined]


def callback_without_a_parameter(future: RecordFuture) -> None:
    def done() -> None: ...

    future.add_callback(done)  # type: ignore[arg-type]


def callback_with_a_parameter_too_many(future: RecordFuture) -> None:
    def done(name: str, metadata: RecordMetadata) -> None: ...

    future.add_callback(done)  # type: ignore[arg-type]


def callback_with_the_metadata_first(future: RecordFuture) -> None:
    def done(metadata: RecordMetadata, name: str) -> None: ...

    future.add_callback(done, "name")  # type: ignore[arg-type]


def callback_for_errors_that_wants_metadata(future: RecordFuture) -> None:
    def failed(metadata: RecordMetadata) -> None: ...

    future.add_errback(failed)  # type: ignore[arg-type]


def callback_for_metadata_that_wants_an_error(future: RecordFuture) -> None:
    def done(error: KafkaError) -> None: ...

    future.add_callback(done)  # type: ignore[arg-type]


def interceptor_with_a_misspelt_method() -> None:
    class Counting:
        def on_ack(self, metadata: RecordMetadata, error: Exception | None) -> None: ...

    KafkaProducer(interceptors=[Counting()])  # type: ignore[list-item]


def interceptor_with_one_misspelt_method() -> None:
    """Checkers do not see this one: either method is enough."""

    class Counting:
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return record

        def on_ack(self, metadata: RecordMetadata, error: Exception | None) -> None: ...

    KafkaProducer(interceptors=[Counting()])


def partitioner_with_a_wrong_signature() -> None:
    def choose(key: bytes | None, partitions: list[int]) -> int:
        return partitions[0]

    KafkaProducer(partitioner=choose)  # type: ignore[arg-type]


def token_provider_without_token() -> None:
    class Provider:
        def get_token(self) -> str:
            return "token"

    KafkaProducer(sasl_oauth_token_provider=Provider())  # type: ignore[arg-type]
