"""Records without a key, and the racks of the brokers (KIP-1123), on the embedded broker."""

from collections import Counter
from collections.abc import Iterator

import pytest

from cyproducer import KafkaProducer
from cyproducer.confluent import Producer
from cyproducer.testing import EmbeddedBroker
from tests.scripted.producing import WAIT_S

RACKS = ["a", "b", "c"]
PARTITIONS = 6


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """Broker 2 is in rack b, and leads two of six partitions."""
    with EmbeddedBroker(brokers=3, racks=RACKS, topics={"t": PARTITIONS}) as broker:
        for partition in range(PARTITIONS):
            broker.move_leader("t", partition, 1 + partition % 3)
        yield broker


def shares(producer: KafkaProducer, count: int = 200) -> Counter[int]:
    """Sends records, and returns how many went to each partition. Each record fills a batch."""
    futures = [producer.send("t", b"v") for _ in range(count)]
    return Counter(future.get(timeout=WAIT_S).partition for future in futures)


def near_b(broker: EmbeddedBroker, **options: object) -> KafkaProducer:
    return KafkaProducer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "partitioner.rack.aware": "true",
            "client.rack": "b",
            "batch.size": 0,
            "metadata.max.age.ms": 100,
            **options,
        }
    )


def test_records_go_to_the_clients_rack_while_its_broker_is_up(broker: EmbeddedBroker) -> None:
    with near_b(broker) as producer:
        assert set(shares(producer)) == {1, 4}
        # A key decides by itself.
        keyed = [producer.send("t", b"v", key=b"%d" % number) for number in range(60)]
        assert len({future.get(timeout=WAIT_S).partition for future in keyed}) == PARTITIONS
        broker.take_down(2)
        while set(shares(producer)) != set(range(PARTITIONS)):
            pass
        broker.bring_up(2)
        broker.move_leader("t", 3, 2)
        while set(shares(producer)) != {3}:
            pass


@pytest.mark.parametrize(
    "options", [{"partitioner.rack.aware": False}, {"client.rack": "elsewhere"}], ids=["off", "elsewhere"]
)
def test_without_brokers_in_the_rack_records_go_everywhere(
    broker: EmbeddedBroker, options: dict[str, object]
) -> None:
    with near_b(broker, **options) as producer:
        assert set(shares(producer, 400)) == set(range(PARTITIONS))


def test_a_leader_that_moves_out_of_the_rack_gets_no_more(broker: EmbeddedBroker) -> None:
    """The response to Produce names the new leader and its rack (KIP-951), before any metadata does."""
    with near_b(broker, **{"metadata.max.age.ms": 300_000}) as producer:
        assert set(shares(producer)) == {1, 4}
        broker.move_leader("t", 4, 3)
        producer.send("t", b"v", partition=4).get(timeout=WAIT_S)
        assert set(shares(producer)) == {1}


def test_confluents_shape_takes_the_options(broker: EmbeddedBroker) -> None:
    partitions = set()
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "partitioner.rack.aware": True,
            "client.rack": "b",
            "partitioner": "consistent_random",
            "batch.size": 1,
        }
    )
    for _ in range(100):
        producer.produce("t", b"v", on_delivery=lambda error, message: partitions.add(message.partition()))
    assert producer.flush(WAIT_S) == 0
    producer.close()
    assert partitions == {1, 4}


def test_racks_are_one_per_broker() -> None:
    for racks in (["a"], "abc"):
        with pytest.raises(ValueError, match=r"racks=.*: must have one rack per broker, and brokers=3"):
            EmbeddedBroker(brokers=3, racks=racks)
