"""The rules between options, and options that are refused because they are not supported yet."""

import logging
from typing import Any

import pytest

from cyproducer import config as config_module
from cyproducer.base.text import line_prefix
from cyproducer.config import ProducerConfig
from tests.config.test_config import problem

# --- idempotence (KIP-679) --------------------------------------------------------------------------

OBSTACLES = [
    ({"acks": 1}, "acks=1 (must be 'all')"),
    ({"acks": 0}, "acks=0 (must be 'all')"),
    ({"retries": 0}, "retries=0 (must be above 0)"),
    (
        {"max_in_flight_requests_per_connection": 6},
        "max_in_flight_requests_per_connection=6 (must be at most 5)",
    ),
]
each_obstacle = pytest.mark.parametrize(("options", "text"), OBSTACLES)


@pytest.mark.parametrize("asked", [{}, {"enable_idempotence": None}])
def test_idempotence_is_on_by_default(asked: dict[str, Any]) -> None:
    assert ProducerConfig(**asked).enable_idempotence is True


def test_idempotence_can_be_switched_on_and_off(caplog: pytest.LogCaptureFixture) -> None:
    assert ProducerConfig(enable_idempotence=True).enable_idempotence is True
    assert ProducerConfig(enable_idempotence=False, acks=1).enable_idempotence is False
    assert ProducerConfig(transactional_id="t").enable_idempotence is True
    limits = ProducerConfig(
        enable_idempotence=True, acks="all", retries=1, max_in_flight_requests_per_connection=5
    )
    assert limits.enable_idempotence is True
    assert not caplog.records


@each_obstacle
def test_a_conflicting_option_switches_default_idempotence_off_with_a_warning(
    caplog: pytest.LogCaptureFixture, options: dict[str, Any], text: str
) -> None:
    assert ProducerConfig(**options).enable_idempotence is False
    assert [(record.name, record.levelno) for record in caplog.records] == [
        ("cyproducer.config", logging.WARNING)
    ]
    assert text in caplog.text


@each_obstacle
def test_an_option_that_conflicts_with_requested_idempotence_is_an_error(
    options: dict[str, Any], text: str
) -> None:
    assert problem(enable_idempotence=True, **options) == f"enable_idempotence=True contradicts {text}"
    assert problem(transactional_id="t", **options) == f"transactional_id='t' contradicts {text}"


def test_transactions_without_idempotence_are_an_error() -> None:
    text = "enable_idempotence=False contradicts transactional_id='t', which needs it"
    assert problem(transactional_id="t", enable_idempotence=False) == text


def test_all_conflicting_options_are_reported_together() -> None:
    text = problem(enable_idempotence=True, acks=0, retries=0, max_in_flight_requests_per_connection=9)
    assert all(part in text for part in ("acks=0", "retries=0", "connection=9"))


# --- other rules between options --------------------------------------------------------------------


def test_given_delivery_timeout_below_one_attempt_is_an_error() -> None:
    assert problem(delivery_timeout_ms=30001, linger_ms=2) == (
        "delivery_timeout_ms=30001: must be at least linger_ms + request_timeout_ms = 2 + 30000 ms, "
        "the time for one attempt; raise it or lower one of these"
    )
    exact = ProducerConfig(delivery_timeout_ms=30002, linger_ms=2)
    assert exact.delivery_timeout_ms == 30002


def test_default_delivery_timeout_is_raised_to_one_attempt_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert ProducerConfig(request_timeout_ms=119_999, linger_ms=1).delivery_timeout_ms == 120_000
    assert not caplog.records
    assert ProducerConfig(request_timeout_ms=200_000, linger_ms=5).delivery_timeout_ms == 200_005
    assert "delivery_timeout_ms is raised from its default 120000 to 200005" in caplog.text


@pytest.mark.parametrize(("first", "longest"), config_module._GROWING)
def test_the_longest_wait_is_raised_to_the_first_unless_it_was_given(first: str, longest: str) -> None:
    config = ProducerConfig({first: 50_000})
    assert config.as_dict()[longest] == 50_000
    assert problem(**{first: 50_000, longest: 40_000}) == f"{longest}=40000: must be at least {first}=50000"
    assert ProducerConfig({first: 50_000, longest: 50_000}).as_dict()[longest] == 50_000


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_the_compression_level_of_the_codec_in_use_applies(codec: Any) -> None:
    assert ProducerConfig(compression_type=codec).effective_compression_level is None
    assert ProducerConfig(compression_type=codec, compression_level=4).effective_compression_level == 4
    levels: dict[str, Any] = {
        "compression_gzip_level": 1,
        "compression_lz4_level": 2,
        "compression_zstd_level": 3,
    }
    config = ProducerConfig(compression_type=codec, **levels)
    assert config.effective_compression_level == levels[f"compression_{codec}_level"]


def test_levels_of_other_codecs_are_ignored() -> None:
    assert (
        ProducerConfig(compression_type="snappy", compression_zstd_level=3).effective_compression_level
        is None
    )
    assert ProducerConfig(compression_zstd_level=3).effective_compression_level is None


@pytest.mark.parametrize(
    ("codec", "level", "text"),
    [
        ("gzip", 10, "must be a whole number from 1 to 9, or -1, or None for compression_type='gzip'"),
        ("gzip", 0, "must be a whole number from 1 to 9"),
        ("lz4", 18, "must be a whole number from 1 to 17"),
        ("lz4", 0, "must be a whole number from 1 to 17"),
        ("zstd", 23, "must be a whole number from -131072 to 22"),
        ("snappy", 1, "compression_type='snappy' has no levels"),
        (None, 1, "compression_type=None has no levels"),
    ],
)
def test_compression_level_outside_the_codecs_range_is_an_error(
    codec: str | None, level: int, text: str
) -> None:
    assert text in problem(compression_type=codec, compression_level=level)


def test_two_different_levels_for_one_codec_are_an_error() -> None:
    assert problem(compression_type="zstd", compression_level=1, compression_zstd_level=2) == (
        "compression_level=1 contradicts compression_zstd_level=2: give one of them"
    )
    same = ProducerConfig(compression_type="zstd", compression_level=2, compression_zstd_level=2)
    assert same.effective_compression_level == 2


def test_the_protocol_before_a_server_must_match_security_protocol() -> None:
    assert ProducerConfig(bootstrap_servers="PLAINTEXT://a:1").bootstrap_addresses == (("a", 1),)
    config = ProducerConfig(bootstrap_servers="a:1,ssl://b:2", security_protocol="SSL")
    assert config.bootstrap_addresses == (("a", 1), ("b", 2))
    assert problem(bootstrap_servers=["a:1", "SSL://b:2"]) == (
        "bootstrap_servers: 'SSL://b:2' contradicts security_protocol='PLAINTEXT': they must agree"
    )


def test_bootstrap_addresses_are_unique_and_in_order() -> None:
    config = ProducerConfig(bootstrap_servers="b,a:9092,b:9092,a:9093")
    assert config.bootstrap_addresses == (("b", 9092), ("a", 9092), ("a", 9093))


# --- SASL -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT"])
def test_sasl_needs_a_mechanism_and_its_credentials(protocol: Any) -> None:
    assert problem(security_protocol=protocol) == f"security_protocol={protocol!r} needs sasl_mechanism"
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        given: dict[str, Any] = {"security_protocol": protocol, "sasl_mechanism": mechanism}
        assert problem(**given) == f"sasl_mechanism={mechanism!r} needs sasl_plain_username"
        given["sasl_plain_username"] = "u"
        assert problem(**given) == f"sasl_mechanism={mechanism!r} needs sasl_plain_password"
        ProducerConfig(**given, sasl_plain_password="p")
    kerberos: dict[str, Any] = {
        "sasl_kerberos_name": "n",
        "sasl_kerberos_service_name": "n",
        "sasl_kerberos_domain_name": "n",
    }
    ProducerConfig(security_protocol=protocol, sasl_mechanism="GSSAPI", **kerberos)


def test_a_password_in_clear_text_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    given: dict[str, Any] = {
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "u",
        "sasl_plain_password": "p",
    }
    ProducerConfig(security_protocol="SASL_SSL", **given)
    assert caplog.text == ""
    ProducerConfig(security_protocol="SASL_PLAINTEXT", **given)
    assert "the password crosses the network in clear text" in caplog.text


@pytest.mark.parametrize(
    ("protocol", "given", "unused"),
    [
        ("PLAINTEXT", {"ssl_cafile": "ca.pem", "ssl_password": "p"}, "ssl_cafile, ssl_password"),
        ("SASL_PLAINTEXT", {"sasl_mechanism": "GSSAPI", "ssl_cafile": "ca.pem"}, "ssl_cafile"),
        ("PLAINTEXT", {"sasl_mechanism": "GSSAPI"}, "sasl_mechanism"),
        ("SSL", {"sasl_mechanism": "GSSAPI", "ssl_cafile": "ca.pem"}, "sasl_mechanism"),
        ("SASL_SSL", {"sasl_mechanism": "GSSAPI", "ssl_cafile": "ca.pem"}, None),
        ("PLAINTEXT", {}, None),
    ],
)
def test_security_options_that_the_protocol_does_not_use_are_warned_of(
    protocol: str, given: dict[str, Any], unused: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    ProducerConfig({"security_protocol": protocol, "client_id": "shop"}, **given)
    text = f"[producer shop] security_protocol={protocol!r} does not use {unused}"
    assert caplog.messages == ([text] if unused else [])


# --- warnings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"net": "asyncio"},
        {"acks": 1},
        {"request_timeout_ms": 200_000},
        {"security_protocol": "PLAINTEXT", "ssl_cafile": "ca.pem"},
        {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": "u",
            "sasl_plain_password": "p",
        },
        {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauthbearer_token_endpoint_url": "http://idp.example/token",
            "sasl_oauthbearer_client_credentials_client_id": "u",
            "sasl_oauthbearer_client_credentials_client_secret": "p",
        },
    ],
    ids=lambda options: next(iter(options.items())),
)
def test_a_warning_names_the_producer(options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    for given in (options, options | {"client_id": "100 % shop"}):
        config = ProducerConfig(given)
        (line,) = caplog.messages
        assert line.startswith(line_prefix(config.client_id))
        caplog.clear()
