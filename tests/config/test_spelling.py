"""Error messages name options as the user does."""

from pathlib import Path
from typing import Any

import pytest

from cyproducer.config import ProducerConfig
from cyproducer.config.spelling import as_given, java_spelling, renamed
from cyproducer.errors import KafkaConfigurationError
from cyproducer.producer import KafkaProducer


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"delivery.timeout.ms": 1},
            "delivery.timeout.ms=1: must be at least linger.ms + request.time",
        ),
        (
            {"delivery_timeout_ms": 1},
            "delivery_timeout_ms=1: must be at least linger_ms + request_time",
        ),
        (
            {"delivery_timeout_ms": 1, "linger.ms": 3},
            "delivery_timeout_ms=1: must be at least linger.ms + ",
        ),
        ({"enable.idempotence": True, "acks": 1}, "enable.idempotence=True contradicts acks=1"),
        ({"ssl.keystore.key": "k"}, "ssl.keystore.key is given without ssl.keystore.certificate.chain"),
        ({"linger.ms": 1, "linger_ms": 2}, "linger.ms and linger_ms are the same option"),
    ],
)
def test_rules_name_options_as_they_were_given(given: dict[str, Any], says: str) -> None:
    with pytest.raises(KafkaConfigurationError) as raised:
        ProducerConfig(given)
    assert says in str(raised.value)


def test_a_file_that_cannot_be_read_is_named_by_the_given_option(tmp_path: Path) -> None:
    given = {"security.protocol": "SSL", "ssl.truststore.location": str(tmp_path / "none.pem")}
    with pytest.raises(KafkaConfigurationError, match=r"ssl\.truststore\.location='.*': No such file"):
        KafkaProducer(given)


def test_only_names_of_options_are_replaced() -> None:
    text = "linger_ms=1 my_linger_ms linger_ms_2 'linger_ms' x.linger_ms acks=1, no acks; retries: 2"
    renamed_text = renamed(text, lambda name: f"kafka.{java_spelling(name)}")
    assert renamed_text == (
        "kafka.linger.ms=1 my_linger_ms linger_ms_2 'linger_ms' x.linger_ms kafka.acks=1, no acks; "
        "kafka.retries: 2"
    )
    assert renamed(renamed_text, lambda name: f"kafka.{java_spelling(name)}") == renamed_text


def test_other_options_are_in_the_style_of_the_given_ones() -> None:
    assert as_given(["linger_ms"])("batch_size") == "batch_size"
    assert as_given(["linger.ms"])("ssl_cafile") == "ssl.truststore.location"
    # Java's client does not have it.
    assert as_given(["linger.ms"])("ssl_keyfile") == "ssl.keyfile"
