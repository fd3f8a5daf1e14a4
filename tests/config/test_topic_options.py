"""``topic_options``: settings of single topics."""

import json
import pickle
from typing import Any

import pytest

from cyproducer.config import ProducerConfig
from cyproducer.config.topic_options import TopicSettings, finder, settings_of
from cyproducer.errors import KafkaConfigurationError


def config(entries: Any, **options: Any) -> ProducerConfig:
    return ProducerConfig({"topic_options": entries, **options})


def settings(made: ProducerConfig, topic: str) -> TopicSettings:
    """What a topic has: its entry's settings, or the producer's."""
    number = finder(made.topic_options)(topic)
    return settings_of(made, [{}, *made.topic_options.values()][number])


def test_the_names_and_values_of_an_entry_are_read_as_the_producers_are() -> None:
    java = config({"audit": {"linger.ms": "5", "acks": "all", "compression.type": "ZSTD"}})
    assert java.topic_options == {"audit": {"linger_ms": 5, "acks": -1, "compression_type": "zstd"}}
    assert java == config({"audit": {"linger_ms": 5, "acks": -1, "compression_type": "zstd"}})
    assert java == config(json.dumps({"audit": {"linger.ms": 5, "acks": "all", "compression_type": "zstd"}}))
    assert java == ProducerConfig(java.as_dict() | {"client_id": None})
    assert pickle.loads(pickle.dumps(java)) == java
    assert java.replace(topic_options={}).topic_options == {}


def test_a_name_wins_over_patterns_and_of_these_the_first() -> None:
    find = finder({"audit.*": {}, "audit.eu.*": {}, "*": {}, "audit.eu.x": {}, "a?c[12]": {}, "audit": {}})
    assert [find(topic) for topic in ("audit.eu.x", "audit.eu.y", "audit", "orders", "abc1")] == [
        4,
        1,
        6,
        3,
        3,
    ]
    find = finder({"a?c[12]": {}, "audit.*": {}})
    assert [find(topic) for topic in ("abc1", "abc3", "abbc1", "audit.")] == [1, 0, 0, 2]
    assert [find(topic) for topic in ("auditx", "xaudit.y", "AUDIT.x")] == [0, 0, 0]


def test_what_an_entry_leaves_out_is_as_for_all_topics() -> None:
    made = config(
        {
            "audit": {"linger_ms": 3},
            "logs.*": {"compression_type": "zstd"},
            "raw": {"compression_type": "none"},
        },
        linger_ms=7,
        compression_type="gzip",
        compression_level=2,
        compression_zstd_level=9,
    )
    assert settings(made, "orders") == TopicSettings(7, -1, "gzip", 2)
    assert settings(made, "audit") == TopicSettings(3, -1, "gzip", 2)
    # The producer's level is for gzip.
    assert settings(made, "logs.x") == TopicSettings(7, -1, "zstd", 9)
    assert settings(made, "raw") == TopicSettings(7, -1, None, None)


def test_a_topic_has_a_level_of_its_own() -> None:
    made = config(
        {"a": {"compression_level": 4}, "b": {"compression.type": "zstd", "compression.level": "-3"}},
        compression_type="gzip",
        compression_level=2,
        compression_zstd_level=9,
    )
    assert settings(made, "a").compression_level == 4
    assert settings(made, "b").compression_level == -3


REFUSED: list[tuple[Any, str]] = [
    ({"audit.*": {"linger_ms": -1}}, "['audit.*']['linger_ms']=-1: must be a number of milliseconds >= 0"),
    ({"audit.*": {"linger.ms": "x"}}, "['audit.*']['linger.ms']='x': must be a number of milliseconds"),
    ({"a": {"acks": 2}}, "topic_options['a']['acks']=2: must be 0, 1, -1 or 'all'"),
    ({"a": {"compression_type": "zip"}}, "['a']['compression_type']='zip': must be one of 'gzip'"),
    ({"a": {"lingerms": 1}}, "['a']: unknown option 'lingerms': did you mean 'linger_ms'?; must be one of"),
    ({"a": {"batch_size": 1}}, "['a']: 'batch_size' is an option of all topics together; must be one of"),
    ({"a": {"sasl.login.callback.handler.class": "x"}}, "is an option of all topics together"),
    (
        {"a": {"linger_ms": 1, "linger.ms": 1}},
        "topic_options['a']: 'linger_ms' and 'linger.ms' are the same option: give only one",
    ),
    ({"a b": {}}, "topic_options['a b']: topic 'a b': a name must have"),
    ({"a": {"compression_level": 3}}, "['a']['compression_level']=3: compression_type=None has no levels"),
    (
        {"a": {"compression_type": "gzip", "compression_level": 12}},
        "topic_options['a']['compression_level']=12: must be a whole number from 1 to 9, or -1, or None for "
        "compression_type='gzip'",
    ),
    ({"a": {"acks": 1}}, "topic_options['a']['acks']=1: must be 'all' with idempotence"),
    ({"a": 5}, "'a' has 5; must be a mapping of topics' names or patterns to mappings of options"),
    ({1: {}}, "1 is not a string; must be a mapping"),
    ("{", "it is not JSON"),
    (["a"], "topic_options=['a']: must be a mapping of topics' names or patterns"),
]


@pytest.mark.parametrize(("entries", "message"), REFUSED, ids=str)
def test_an_error_names_the_topic_the_option_the_value_and_what_is_allowed(
    entries: Any, message: str
) -> None:
    with pytest.raises(KafkaConfigurationError) as refused:
        config(entries)
    assert message in str(refused.value)


def test_acks_of_a_topic_need_a_producer_without_idempotence() -> None:
    assert settings(config({"a": {"acks": 1}}, enable_idempotence=False), "a").acks == 1
    assert settings(config({"a": {"acks": "all"}}, acks=1, enable_idempotence=False), "a").acks == -1
    # The same acks need no other producer.
    config({"a": {"acks": "all"}})
    with pytest.raises(KafkaConfigurationError, match="set enable_idempotence=False"):
        config({"a": {"acks": 0}}, transactional_id="x")


def test_the_longest_linger_is_within_the_delivery_timeout(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KafkaConfigurationError) as refused:
        config({"a": {"linger_ms": 10_000}}, delivery_timeout_ms=35_000)
    assert str(refused.value).startswith(
        "KafkaConfigurationError: delivery_timeout_ms=35000: must be at least "
        "topic_options['a']['linger_ms'] + request_timeout_ms = 10000 + 30000 ms"
    )
    assert config({"a": {"linger_ms": 200_000}}).delivery_timeout_ms == 230_000
    assert "topic_options['a']['linger_ms']=200000" in caplog.text
