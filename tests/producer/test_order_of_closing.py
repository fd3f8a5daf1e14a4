"""In which order close() ends what a user has given."""

from typing import Any

from cyproducer.producer import ProducerRecord
from tests.scripted.producing import producing


class Part:
    """An interceptor, a serializer and a partitioner, that notes its end."""

    def __init__(self, name: str, ended: list[str]) -> None:
        self.name = name
        self.ended = ended

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return record

    def serialize(self, topic: str, headers: Any, data: Any) -> bytes:
        return bytes(data)

    def partition(self, topic: str, serialized_key: bytes | None, cluster: Any) -> int:
        return 0

    def close(self) -> None:
        self.ended.append(self.name)


def test_interceptors_end_in_their_order_and_serializers_after_them() -> None:
    ended: list[str] = []
    given: dict[str, Any] = {
        "interceptors": [Part("first", ended), Part("second", ended)],
        "key_serializer": Part("key", ended),
        "value_serializer": Part("value", ended),
        "partitioner": Part("partitioner", ended),
    }
    with producing(bootstrap_servers=["127.0.0.1:1"], **given) as producer:
        producer.close(0)
        assert ended == ["partitioner", "first", "second", "key", "value"]
        producer.close(0)
        assert len(ended) == 5
