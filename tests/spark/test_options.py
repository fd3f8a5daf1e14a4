"""Tests the sink's options and the errors about wrong ones. Needs no Spark."""

import pickle
from typing import Any

import pytest

from cyproducer.errors import KafkaConfigurationError
from cyproducer.spark import foreach_batch
from cyproducer.spark.options import parse, producer_config
from cyproducer.spark.sharing import SharedConfig

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:1"}


def test_producer_options_have_their_java_names() -> None:
    found = parse({**SERVERS, "kafka.linger.ms": "7", "KAFKA.Batch.Size": "100000", "topic": "t"})
    assert found.config.config == {
        "bootstrap_servers": "127.0.0.1:1",
        "linger_ms": "7",
        "batch_size": "100000",
        "allow_auto_create_topics": False,
    }
    assert (found.topic, found.headers, found.dead_letter_topic) == ("t", True, None)


def test_defaults_are_those_for_bulk() -> None:
    found = parse({**SERVERS, "topic": "t"}).config.config
    assert (found["linger_ms"], found["batch_size"]) == (20, 524_288)


def test_option_names_are_case_insensitive() -> None:
    found = parse(
        {**SERVERS, "includeheaders": "FALSE", "DEADLETTERTOPIC": "d", "createtopic.partitions": "3"}
    )
    assert (found.headers, found.dead_letter_topic, found.create_partitions) == (False, "d", 3)


def test_options_that_spark_adds_are_accepted() -> None:
    parse({**SERVERS, "checkpointLocation": "/tmp/c", "path": "p", "queryName": "q"})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kafka.bootstrap.servers": None}, "'kafka.bootstrap.servers' is missing"),
        ({"deadLeterTopic": "d"}, "did you mean 'deadLetterTopic'?"),
        ({"completely": "other"}, "must be one of topic, includeHeaders"),
        ({"includeHeaders": "yes"}, "'includeHeaders'='yes': must be 'true' or 'false'"),
        ({"deliveryGuarantee": "exactly-once"}, "not supported yet"),
        ({"deliveryGuarantee": "at-most-once"}, "must be 'at-least-once'"),
        ({"topic": ""}, "'topic' is empty"),
        ({"createTopic.partitions": "many"}, "'createTopic.partitions'='many': must be a whole number"),
        ({"createTopic.replication": "3"}, "has no effect without 'createTopic.partitions'"),
        ({"summaryCallback": "module"}, "must be 'module:function'"),
        ({"kafka.key.serializer": "S"}, "can't be given"),
        ({"kafka.transactional.id": "t"}, "exactly-once"),
        ({"kafka.linger.msec": "1"}, "linger.msec"),
        ({"kafka.acks": "2"}, "acks"),
    ],
)
def test_wrong_options_are_refused_and_named(given: dict[str, str | None], says: str) -> None:
    options = {name: value for name, value in {**SERVERS, **given}.items() if value is not None}
    with pytest.raises(KafkaConfigurationError) as raised:
        parse(options)
    assert says in str(raised.value)


def shared(**given: object) -> SharedConfig:
    return producer_config({"bootstrap_servers": "127.0.0.1:1", **given}, columns=False)


def test_a_configuration_is_equal_after_pickling() -> None:
    one = shared(linger_ms=3)
    other: SharedConfig = pickle.loads(pickle.dumps(one))
    assert other == one
    assert hash(other) == hash(one)
    assert producer_config({"linger.ms": 3, "bootstrap.servers": "127.0.0.1:1"}, columns=False) == one
    # Equal, but not the same objects.
    assert shared(client_id="".join(["a", "b"]), acks="".join(["a", "ll"])) == shared(
        client_id="ab", acks="all"
    )
    assert shared(linger_ms=4) != one


def serialize(value: object) -> bytes:
    return b""


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"value_serializer": serialize}, "value_serializer: can't be given, as whole columns are sent"),
        ({"partitioner": lambda key, everywhere, available: 0}, "give a column 'partition'"),
        ({"partitioner": "nobody.Knows"}, "nobody.Knows"),
        ({"transactional_id": "t"}, "not supported by this version"),
        ({"linger_ms": 1, "linger.ms": 2}, "linger"),
    ],
)
def test_options_that_columns_do_not_support_are_refused_on_the_driver(
    given: dict[str, object], says: str
) -> None:
    with pytest.raises(KafkaConfigurationError) as raised:
        producer_config({"bootstrap_servers": "127.0.0.1:1", **given}, columns=True)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    "option", [{"acks": "1"}, {"acks": "0"}, {"retries": "0"}, {"enable.idempotence": "false"}]
)
def test_options_with_a_weaker_guarantee_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(KafkaConfigurationError, match="needs an idempotent producer"):
        parse({**SERVERS, **{f"kafka.{name}": value for name, value in option.items()}})
    with pytest.raises(KafkaConfigurationError, match="needs an idempotent producer"):
        foreach_batch("t", bootstrap_servers="127.0.0.1:1", **option)


def test_automatic_topic_creation_can_be_enabled() -> None:
    found = parse({**SERVERS, "kafka.allow.auto.create.topics": "true"})
    assert found.config.config["allow_auto_create_topics"] == "true"
