"""Options and arguments of the wrong kind are refused at once, with what is allowed, and harm no record."""

import asyncio
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cyproducer import KafkaProducer
from cyproducer.config import ProducerConfig
from cyproducer.errors import InvalidTopicError, KafkaConfigurationError
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import ScriptedCluster
from tools.harness.until import NewThreads


class Misspelt:
    def on_ack(self, metadata: Any, error: Any) -> None: ...


class HalfMisspelt(Misspelt):
    def on_send(self, record: Any) -> Any: ...


@pytest.fixture(scope="module")
def producer() -> Iterator[KafkaProducer]:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as made:
        yield made


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interceptors": [5]}, r"interceptors=\[5\]: int has none of these methods; must be a list of"),
        (
            {"interceptors": [Misspelt()]},
            r"Misspelt has none of .* with on_send\(\) or on_acknowledgement\(\)",
        ),
        (
            {"interceptors": [HalfMisspelt]},
            r"HalfMisspelt has on_ack\(\) and no on_acknowledgement\(\): nothing would call it",
        ),
        ({"interceptors": [Misspelt]}, r"Misspelt has none of .* with on_send\(\) or on_acknowledgement\(\)"),
        (
            {"metric_reporters": [5]},
            r"int has none of .* with init\(\) or metric_change\(\) or metric_removal",
        ),
        ({"partitioner": "foo"}, r"partitioner='foo': must be one of default, .* or a callable"),
        ({"partitioner": dict}, r"partitioner=\{\}: must be one of default"),
    ],
)
def test_a_wrong_plugin_is_refused_by_the_constructor(options: dict[str, Any], message: str) -> None:
    new = NewThreads()
    with pytest.raises(KafkaConfigurationError, match=message):
        KafkaProducer(**options)
    assert not new


HEADERS = "headers: must be a list of .* pairs, not"
TIMEOUT = "must be a number of seconds >= 0"


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda p: p.flush("x"), TypeError, f"timeout='x': {TIMEOUT}"),
        (lambda p: p.close("x"), TypeError, f"timeout='x': {TIMEOUT}"),
        (lambda p: p.send("orders", b"1").get(math.nan), ValueError, f"timeout=nan: {TIMEOUT}"),
        (lambda p: p.wait_ready(-1), ValueError, f"timeout=-1: {TIMEOUT}"),
        (
            lambda p: p.send("orders", b"1", headers={"a": b"1"}),
            TypeError,
            rf"{HEADERS} dict: give its items",
        ),
        (lambda p: p.send("orders", b"1", headers=5), TypeError, f"{HEADERS} int"),
        (
            lambda p: asyncio.run(p.send_async("orders", b"1", headers={"a": b"1"})),
            TypeError,
            f"{HEADERS} dict",
        ),
        (lambda p: asyncio.run(p.send_async("orders", b"1", headers=5)), TypeError, f"{HEADERS} int"),
        (lambda p: p.partitions_for(5), TypeError, "topic: must be a str, not int"),
        (lambda p: p.partitions_for(["orders"]), TypeError, "topic: must be a str, not list"),
        (lambda p: p.partitions_for("\ud800"), InvalidTopicError, "a name must have 1 to 249 of"),
    ],
)
def test_a_wrong_argument_is_refused(
    producer: KafkaProducer, call: Callable[[KafkaProducer], object], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        call(producer)
    assert producer.send("orders", b"2").get(WAIT_S).topic == "orders"


@pytest.mark.parametrize("topic", [5, b"orders", "no such name!"])
def test_a_wrong_topic_does_not_reach_the_metadata_requests_of_others(topic: Any) -> None:
    """A custom partitioner needs the topic's metadata: the request for it would fail again and again."""
    with (
        ScriptedCluster(orders=1) as cluster,
        producing(cluster, partitioner=lambda key, everyone, available: 0) as producer,
    ):
        with pytest.raises((TypeError, InvalidTopicError), match="topic"):
            producer.send(topic, b"1")
        assert producer.send("orders", b"2").get(WAIT_S).offset == 0


class Odd(str):
    """A string that finds no entry of a dictionary."""

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return False


def test_a_topic_may_be_of_a_subclass_of_str(producer: KafkaProducer) -> None:
    assert producer.partitions_for(Odd("orders")) == {0}


# kafka-python's further attributes


def test_the_constructor_takes_a_mapping() -> None:
    with ScriptedCluster(orders=1) as cluster:
        options = {"bootstrap.servers": ",".join(cluster.bootstrap_servers), "linger.ms": "1"}
        with KafkaProducer(options, acks=1) as producer:
            assert producer.send("orders", b"1").get(WAIT_S).offset == 0
            assert (producer.config["linger_ms"], producer.config["acks"]) == (1, 1)
        with KafkaProducer(producer.config, client_id="again") as again:
            assert again.config == producer.config.replace(client_id="again")


def test_default_config_is_that_of_a_producer_without_options() -> None:
    assert ProducerConfig(KafkaProducer.DEFAULT_CONFIG) == ProducerConfig()
    copy = KafkaProducer.DEFAULT_CONFIG | {"linger_ms": 5}  # type: ignore[operator]
    assert {name for name in copy if copy[name] != KafkaProducer.DEFAULT_CONFIG[name]} == {"linger_ms"}


def test_the_record_format_is_the_only_one_that_is_written(producer: KafkaProducer) -> None:
    assert KafkaProducer.max_usable_produce_magic((4, 1)) == 2
    assert producer.max_usable_produce_magic(producer.config["api_version"]) == 2
