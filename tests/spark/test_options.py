"""What the sink's options mean, and what is said about wrong ones. No Spark is needed for it."""

import pickle

import pytest

from cyproducer.errors import KafkaConfigurationError
from cyproducer.spark.options import parse, producer_config
from cyproducer.spark.sharing import SharedConfig

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:1"}


def test_the_producers_options_come_by_their_java_names() -> None:
    found = parse({**SERVERS, "kafka.linger.ms": "20", "KAFKA.Batch.Size": "262144", "topic": "t"})
    assert found.config.config == {
        "bootstrap.servers": "127.0.0.1:1",
        "linger.ms": "20",
        "batch.size": "262144",
        "allow_auto_create_topics": False,
    }
    assert (found.topic, found.headers, found.dead_letter_topic) == ("t", True, None)


def test_names_are_of_any_case_as_spark_passes_them() -> None:
    found = parse(
        {**SERVERS, "includeheaders": "FALSE", "DEADLETTERTOPIC": "d", "createtopic.partitions": "3"}
    )
    assert (found.headers, found.dead_letter_topic, found.create_partitions) == (False, "d", 3)


def test_what_spark_adds_is_let_pass() -> None:
    parse({**SERVERS, "checkpointLocation": "/tmp/c", "path": "p", "queryName": "q"})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kafka.bootstrap.servers": None}, "'kafka.bootstrap.servers' is missing"),
        ({"deadLeterTopic": "d"}, "is 'deadLetterTopic' meant?"),
        ({"completely": "other"}, "must be one of topic, includeHeaders"),
        ({"includeHeaders": "yes"}, "'includeHeaders'='yes': must be 'true' or 'false'"),
        ({"deliveryGuarantee": "exactly-once"}, "not there yet"),
        ({"deliveryGuarantee": "at-most-once"}, "must be 'at-least-once'"),
        ({"topic": ""}, "'topic' is empty"),
        ({"createTopic.partitions": "many"}, "'createTopic.partitions'='many': must be a whole number"),
        ({"createTopic.replication": "3"}, "of no use without 'createTopic.partitions'"),
        ({"summaryCallback": "module"}, "must be 'module:function'"),
        ({"kafka.key.serializer": "S"}, "can't be given"),
        ({"kafka.transactional.id": "t"}, "exactly-once"),
        ({"kafka.linger.msec": "1"}, "linger.msec"),
        ({"kafka.acks": "2"}, "acks"),
    ],
)
def test_wrong_ones_are_refused_and_named(given: dict[str, str | None], says: str) -> None:
    options = {name: value for name, value in {**SERVERS, **given}.items() if value is not None}
    with pytest.raises(KafkaConfigurationError) as raised:
        parse(options)
    assert says in str(raised.value)


def test_a_configuration_is_the_same_one_when_it_has_travelled() -> None:
    pytest.importorskip("cloudpickle")
    one = producer_config({"bootstrap_servers": "127.0.0.1:1", "linger_ms": 3})
    other: SharedConfig = pickle.loads(pickle.dumps(one))
    assert other == one
    assert hash(other) == hash(one)
    assert producer_config({"linger_ms": 3, "bootstrap_servers": "127.0.0.1:1"}) == one
    assert producer_config({"bootstrap_servers": "127.0.0.1:1", "linger_ms": 4}) != one
