"""Names that programs look for in vain: the ``AttributeError`` says what to use instead."""

from collections.abc import Iterator
from typing import Any

import pytest

from cyproducer import BulkFuture, BulkMetadata, KafkaProducer, RecordFuture, RecordMetadata
from cyproducer.aio import AIOKafkaProducer
from cyproducer.base.removed_attribute import Missing
from cyproducer.confluent import Producer
from cyproducer.testing import MockProducer

OTHER_CLIENTS = {
    "cyproducer.confluent.Producer": Producer,
    "cyproducer.aio.AIOKafkaProducer": AIOKafkaProducer,
}
OF_METADATA = [
    *((RecordFuture, name) for name in RecordMetadata._fields if name not in ("topic", "partition")),
    *((BulkFuture, name) for name in dir(BulkMetadata) if not name.startswith("_") and name != "topic"),
]
OF_FUTURES = [(kind, name) for kind in (RecordFuture, BulkFuture) for name in ("result", "add_done_callback")]
MISSING = [
    (kind, name)
    for kind in (KafkaProducer, RecordFuture, BulkFuture)
    for name, each in vars(kind).items()
    if isinstance(each, Missing)
]


@pytest.fixture
def objects() -> Iterator[dict[type, Any]]:
    with MockProducer() as producer:
        record, rows = producer.send("t", b"v"), producer.send_many("t", [b"v"])
        yield {KafkaProducer: producer, RecordFuture: record, BulkFuture: rows}


def error_of(owner: object, name: str) -> str:
    with pytest.raises(AttributeError) as caught:
        getattr(owner, name)
    return str(caught.value)


@pytest.mark.parametrize(("client", "kind"), OTHER_CLIENTS.items(), ids=OTHER_CLIENTS)
def test_a_method_of_another_client_leads_to_its_class(
    client: str, kind: type, objects: dict[type, Any]
) -> None:
    producer = objects[KafkaProducer]
    ours = {"produce", "poll", "produce_batch", "list_topics", "purge"}
    names = ours if kind is Producer else {"start", "stop", "send_and_wait", "create_batch", "send_batch"}
    for name in names:
        text = error_of(producer, name)
        assert text.startswith(f"KafkaProducer has no {name}(): ")
        assert f"; or use {client}, " in text
        assert callable(getattr(kind, name))


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("produce", "call send(), which returns a future"),
        ("poll", "callbacks run on a thread of their own"),
        ("purge", "close(0)"),
        ("start", "wait_ready()"),
    ],
)
def test_a_method_of_another_client_leads_to_what_the_producer_has(
    name: str, advice: str, objects: dict[type, Any]
) -> None:
    assert advice in error_of(objects[KafkaProducer], name)


@pytest.mark.parametrize(("kind", "name"), OF_METADATA)
def test_a_future_leads_to_its_metadata(kind: type, name: str, objects: dict[type, Any]) -> None:
    future = objects[kind]
    assert error_of(future, name).endswith(f" has no {name}, its metadata has: future.get().{name}")
    assert hasattr(future.get(), name)


def test_the_future_of_rows_leads_to_their_offsets(objects: dict[type, Any]) -> None:
    assert "future.get().ranges has the offsets" in error_of(objects[BulkFuture], "offset")
    assert [each.offset for each in objects[BulkFuture].get().ranges] == [1]
    assert objects[BulkFuture].topic == "t"


@pytest.mark.parametrize(("kind", "name"), OF_FUTURES)
def test_a_future_leads_to_its_method_for_a_name_of_asyncios(
    kind: type, name: str, objects: dict[type, Any]
) -> None:
    text = error_of(objects[kind], name)
    assert f"as_concurrent().{name}()" in text
    assert callable(getattr(objects[kind].as_concurrent(), name))


@pytest.mark.parametrize(("kind", "name"), MISSING)
def test_a_missing_name_is_not_there(kind: type, name: str, objects: dict[type, Any]) -> None:
    for owner in (objects[kind], kind):
        assert not hasattr(owner, name)
        assert name in error_of(owner, name)
    shown = dir(objects[kind])
    assert name not in shown
    assert {"send", "get"} & set(shown)


class Own(MockProducer):
    def __init__(self) -> None:
        self.start = 5
        super().__init__()

    def produce(self) -> str:
        return "produced"


def test_a_subclass_may_have_such_names() -> None:
    with Own() as producer:
        assert (producer.start, producer.produce()) == (5, "produced")
        assert {"start", "produce"} < set(dir(producer))
        assert "poll" not in dir(producer)
