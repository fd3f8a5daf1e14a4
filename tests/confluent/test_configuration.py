"""librdkafka's options: each is translated, has no effect for a reason, or is an error that names it."""

import logging
import socket
import ssl
from typing import Any

import pytest

from cyproducer.config import ProducerConfig
from cyproducer.config.option_kinds import FOREVER_MS, Secret
from cyproducer.config.other_clients import FOR_CONSUMERS, OTHER_NAMES, Taken
from cyproducer.confluent import KafkaError, KafkaException, Producer
from cyproducer.confluent.configuration import Settings, translated
from tests.confluent.conftest import Make
from tests.scripted.odd_servers import refusing_address


def read(**given: Any) -> tuple[ProducerConfig, Settings]:
    """Underscores stand for dots."""
    options, settings = translated({name.replace("_", "."): value for name, value in given.items()})
    return ProducerConfig(options), settings


def problem(conf: dict[str, Any]) -> str:
    with pytest.raises(KafkaException) as caught:
        translated(conf)
    error = caught.value.args[0]
    assert error.code() == KafkaError._INVALID_ARG
    return str(error.str())


def test_the_defaults_are_librdkafka_s_where_a_program_would_notice() -> None:
    config, settings = read()
    assert (config.delivery_timeout_ms, config.max_block_ms, config.linger_ms) == (300_000, 300_000, 5)
    assert (config.batch_size, config.max_request_size, config.buffer_memory) == (1_000_000, 1_000_000, 2**30)
    assert config.partitioner == "consistent_random"
    assert config.enable_idempotence is True
    assert (settings.most_messages, settings.only_errors, settings.stats_every_s) == (100_000, False, 0)


@pytest.mark.parametrize(
    ("name", "value", "option", "becomes"),
    [
        ("request.required.acks", "1", "acks", 1),
        ("queue.buffering.max.ms", "20", "linger_ms", 20),
        ("queue.buffering.max.kbytes", "64", "buffer_memory", 65536),
        ("message.timeout.ms", 60000, "delivery_timeout_ms", 60000),
        ("delivery.timeout.ms", 60000, "delivery_timeout_ms", 60000),
        ("message.timeout.ms", 0, "delivery_timeout_ms", FOREVER_MS),
        ("compression.codec", "snappy", "compression_type", "snappy"),
        ("compression.codec", "inherit", "compression_type", None),
        ("compression.level", -1, "compression_level", None),
        ("compression.level", 3, "compression_level", None),
        ("max.in.flight", "1", "max_in_flight_requests_per_connection", 1),
        ("ssl.ca.location", "probe", "ssl_cafile", None),
        ("ssl.ca.location", "/ca.pem", "ssl_cafile", "/ca.pem"),
        ("ssl.endpoint.identification.algorithm", "none", "ssl_check_hostname", False),
        ("security.protocol", "sasl_ssl", "security_protocol", "SASL_SSL"),
        ("sasl.mechanisms", "PLAIN", "sasl_mechanism", "PLAIN"),
        ("connections.max.idle.ms", 0, "connections_max_idle_ms", FOREVER_MS),
        ("topic.metadata.refresh.interval.ms", -1, "metadata_max_age_ms", FOREVER_MS),
        ("topic.metadata.refresh.interval.ms", 1000, "metadata_max_age_ms", 1000),
        ("socket.send.buffer.bytes", 0, "send_buffer_bytes", None),
        ("socket.timeout.ms", 2000, "request_timeout_ms", 2000),
        ("partitioner", "murmur2_random", "partitioner", "murmur2_random"),
        ("bootstrap.servers", None, "bootstrap_servers", ("localhost",)),
    ],
)
def test_a_translated_option(name: str, value: Any, option: str, becomes: Any) -> None:
    more = (
        {"sasl.username": "u", "sasl.password": "p", "sasl.mechanism": "PLAIN"} if value == "sasl_ssl" else {}
    )
    if name == "sasl.mechanisms":
        more = {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "u", "sasl.password": "p"}
    options, _ = translated({name: value, **more})
    assert ProducerConfig(options)[option] == becomes


def test_one_request_may_not_take_longer_than_a_record() -> None:
    config, _ = read(message_timeout_ms=10)
    assert (config.delivery_timeout_ms, config.max_block_ms) == (10, 10)
    assert config.linger_ms + config.request_timeout_ms <= 10
    config, _ = read(message_timeout_ms=60_000, request_timeout_ms=1000, socket_timeout_ms=5000)
    assert config.request_timeout_ms == 1000
    assert "must be greater than linger.ms=100" in problem({"message.timeout.ms": 100, "linger.ms": 100})


def test_a_record_of_a_transaction_has_the_time_of_the_transaction() -> None:
    config, _ = read(transactional_id="mine")
    assert (config.delivery_timeout_ms, config.transaction_timeout_ms) == (60_000, 60_000)
    config, _ = read(transactional_id="mine", transaction_timeout_ms="5000")
    assert (config.delivery_timeout_ms, config.max_block_ms) == (5000, 5000)
    config, _ = read(transactional_id="mine", message_timeout_ms=2000)
    assert config.delivery_timeout_ms == 2000
    config, _ = read(transactional_id="mine", message_timeout_ms=0)
    assert config.delivery_timeout_ms == FOREVER_MS
    longer = problem({"transactional.id": "mine", "message.timeout.ms": 60_001})
    assert "message.timeout.ms: 60001: must be at most transaction.timeout.ms=60000" in longer
    config, _ = read(transaction_timeout_ms=5000)
    assert config.delivery_timeout_ms == 300_000


def test_options_of_topics_may_be_in_a_dictionary() -> None:
    config, _ = read(default_topic_config={"message.timeout.ms": 1000, "acks": 1}, message_timeout_ms=5000)
    assert (config.delivery_timeout_ms, config.acks) == (1000, 1)


def test_keepalive_is_added_to_the_socket_options() -> None:
    config, _ = read(socket_keepalive_enable="true")
    assert (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1) in config.socket_options
    assert (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1) in config.socket_options


def test_certificates_are_not_verified_if_the_program_says_so() -> None:
    config, _ = read(enable_ssl_certificate_verification="false", security_protocol="ssl")
    assert config.ssl_context is not None
    assert config.ssl_context.verify_mode == ssl.CERT_NONE
    assert config.ssl_context.check_hostname is False
    assert "/none.pem" in problem(
        {"enable.ssl.certificate.verification": False, "ssl.certificate.location": "/none.pem"}
    )


def test_credentials_are_read_anew_and_not_shown() -> None:
    options, settings = translated(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "me",
            "sasl.password": "hush",
        }
    )
    assert "hush" not in repr(options) + repr(settings) + repr(ProducerConfig(options))
    assert (options["sasl_plain_username"](), options["sasl_plain_password"]()) == ("me", "hush")
    settings.credentials.pair = ("you", Secret("still"))
    assert (options["sasl_plain_username"](), options["sasl_plain_password"]()) == ("you", "still")


def test_the_token_callback_gets_its_configuration() -> None:
    options, _ = translated(
        {"sasl.oauthbearer.config": "scope=mine", "oauth_cb": lambda text: (f"token for {text}", 1.0)}
    )
    assert options["sasl_oauth_token_provider"]("ignored") == ("token for scope=mine", 1.0)


@pytest.mark.parametrize(
    ("conf", "text"),
    [
        ({"should.fail": False}, 'No such configuration property: "should.fail"'),
        ({"message.timeout": 1}, "did you mean 'message.timeout.ms'?"),
        ({"value.serializer": str}, 'No such configuration property: "value.serializer"'),
        ({"interceptors": []}, 'No such configuration property: "interceptors"'),
        ({"buffer.memory": 1}, 'No such configuration property: "buffer.memory"'),
        ({"partitioner": "murmur"}, 'Invalid value for configuration property "partitioner": murmur'),
        ({"queuing.strategy": "lifo"}, "'lifo' can't be translated: records stay in order; allowed: fifo"),
        ({"plugin.library.paths": "x"}, "there are no plugins"),
        ({"ssl.curves.list": "X25519"}, "ssl_context, give an ssl_context"),
        ({"message.timeout.ms": "soon"}, "'soon': must be from 0 to 2147483647"),
        ({"queue.buffering.max.messages": -1}, "-1: must be from 0 to"),
        ({"socket.keepalive.enable": "perhaps"}, "'perhaps': must be true or false"),
        ({"sasl.oauthbearer.method": "magic"}, "must be 'default' or 'oidc'"),
        ({"compression.type": "gzip", "compression.codec": "lz4"}, "the same option: give only one"),
    ],
)
def test_what_can_t_be_translated_is_named(conf: dict[str, Any], text: str) -> None:
    said = problem(conf)
    assert text in said
    assert any(name in said for name in conf)


def test_the_same_option_twice_with_the_same_value_is_one() -> None:
    options, _ = translated({"compression.type": "gzip", "compression.codec": "gzip"})
    assert options["compression_type"] == "gzip"


@pytest.mark.parametrize("name", ["on_delivery", "dr_cb", "error_cb", "stats_cb", "throttle_cb", "oauth_cb"])
def test_a_callback_must_be_callable(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name}: must be callable, not int"):
        translated({name: 1})


def test_a_logger_must_log() -> None:
    with pytest.raises(TypeError, match=r"logger: must be a logging\.Logger, not str"):
        translated({"logger": "mine"})


def test_options_of_consumers_are_ignored_with_a_warning(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"group.id": "g", "auto.offset.reset": "earliest"}
    options, _ = translated(given)
    assert "group_id" not in options
    logger = logging.getLogger("tests.confluent.consumers")
    with caplog.at_level(logging.WARNING, "cyproducer"):
        make(given | {"client.id": "shop", "logger": logger}).poll(0)
    lines = [
        "[producer shop] option 'group.id' is for consumers: a producer ignores it",
        "[producer shop] option 'auto.offset.reset' is for consumers: a producer ignores it",
    ]
    logged = [r.getMessage() for r in caplog.records if "consumers:" in r.getMessage()]
    # By the package, and in poll() by the option logger, here to the same handler.
    assert logged == lines * 2


def test_every_option_of_the_table_is_handled() -> None:
    before, _ = translated({})
    for name, other in OTHER_NAMES.items():
        if name in FOR_CONSUMERS:
            options, _ = translated({name: "x"})
            assert options == before, name
        elif other.client != "librdkafka":
            assert "No such configuration property" in problem({name: "x"})
        elif other.taken is Taken.NO_EFFECT:
            options, _ = translated({name: "x"})
            assert options == before, name
        elif other.taken is Taken.REFUSED:
            assert name in problem({name: "no such value"})
            for value in other.but:
                options, _ = translated({name: value})
                assert options == before, name
        elif other.taken is Taken.SAME:
            options, _ = translated({name: "7"})
            assert other.option is not None
            assert options[other.option] in ("7", 7, Secret("7")), name


def test_every_producer_option_of_librdkafka_is_known() -> None:
    kafka = pytest.importorskip("confluent_kafka")
    for name in (
        "client.id", "message.max.bytes", "receive.message.max.bytes", "metadata.max.age.ms",
        "reconnect.backoff.ms", "reconnect.backoff.max.ms", "socket.connection.setup.timeout.ms",
        "ssl.key.password", "ssl.keystore.location", "ssl.keystore.password", "ssl.cipher.suites",
        "sasl.kerberos.service.name", "sasl.kerberos.principal", "sasl.kerberos.keytab",
        "sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.scope", "sasl.oauthbearer.extensions",
        "enable.idempotence", "transaction.timeout.ms", "retries", "retry.backoff.ms",
        "retry.backoff.max.ms", "batch.size", "linger.ms", "acks", "request.timeout.ms",
        "allow.auto.create.topics", "metadata.recovery.strategy", "client.dns.lookup", "https.ca.location",
    ):  # fmt: skip
        try:
            kafka.Producer({name: "no such value", "bootstrap.servers": refusing_address()})
        except (kafka.KafkaException, TypeError) as error:
            if "No such configuration property" in str(error):
                continue
        said = ""
        try:
            translated({name: "no such value"})
        except KafkaException as error:
            said = str(error)
        assert "No such configuration property" not in said, name


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ({"acks": 1, "enable.idempotence": True}, "enable.idempotence=True contradicts acks=1"),
        ({"request.required.acks": 1, "enable.idempotence": True}, "contradicts request.required.acks=1"),
        (
            {"security.protocol": "ssl", "ssl.ca.location": "/no/ca.pem"},
            "ssl.ca.location='/no/ca.pem': No",
        ),
        ({"security.protocol": "ssl", "ssl.key.location": "/k"}, "without ssl.certificate.location"),
        ({"security.protocol": "sasl_ssl", "sasl.mechanisms": "PLAIN"}, "sasl.username"),
        ({"compression.type": "lz5"}, "compression.type='lz5': must be"),
    ],
)
def test_errors_name_options_as_librdkafka_does(conf: dict[str, Any], says: str) -> None:
    with pytest.raises(KafkaException) as raised:
        Producer({"bootstrap.servers": "127.0.0.1:1", **conf})
    assert says in raised.value.args[0].str()
