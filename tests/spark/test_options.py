"""Tests the sink's options and the errors about wrong ones. Needs no Spark."""

import pickle
from typing import Any

import pytest

from cyproducer.config import ProducerConfig
from cyproducer.config.option_kinds import Secret
from cyproducer.errors import KafkaConfigurationError
from cyproducer.spark import foreach_batch
from cyproducer.spark.exactly_once.names import Sink
from cyproducer.spark.options import options_of_session, parse, producer_config, session_options
from cyproducer.spark.sharing import SharedConfig
from tests.spark.fake_pyspark import SparkSession, fake_pyspark

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


def test_without_any_option_the_error_is_about_tables() -> None:
    about_tables = r"servers' is missing.* hands no options of a table .* INSERT INTO \.\.\. WITH \("
    with pytest.raises(KafkaConfigurationError, match=about_tables):
        parse({})
    with pytest.raises(KafkaConfigurationError, match=r"must be the addresses of the brokers$"):
        parse({"topic": "t"})


ONCE = {"deliveryGuarantee": "exactly-once", "transactionalIdPrefix": "app"}


def test_a_stream_is_named_by_its_checkpoint_or_its_app() -> None:
    once = parse({**SERVERS, **ONCE, "checkpointLocation": "/c"}).exactly_once
    assert once is not None
    assert once.sink(stream=True) == Sink("app", "stream", "/c")
    once = parse({**SERVERS, **ONCE, "checkpointLocation": "file:///c/"}).exactly_once
    assert once is not None
    assert once.sink(stream=True) == Sink("app", "stream", "file:/c")
    assert (once.decision_topic, once.timeout_ms) == ("app.decisions", 900_000)
    once = parse(
        {
            **SERVERS,
            **ONCE,
            "txnAppId": "a",
            "checkpointLocation": "/c",
            "decisionLogTopic": "d",
            "kafka.transaction.timeout.ms": "5000",
        }
    ).exactly_once
    assert once is not None
    assert once.sink(stream=True) == Sink("app", "stream", "a")
    assert (once.decision_topic, once.timeout_ms) == ("d", 5000)


def test_a_job_is_named_by_its_app() -> None:
    once = parse({**SERVERS, **ONCE, "txnAppId": "a", "txnVersion": "7"}).exactly_once
    assert once is not None
    assert (once.sink(stream=False), once.version) == (Sink("app", "job", "a"), 7)


@pytest.mark.parametrize(
    ("given", "stream", "says"),
    [
        ({}, True, "needs option 'checkpointLocation' at the write"),
        ({"txnAppId": "a", "txnVersion": "1"}, True, "'txnVersion' is for batch writes"),
        ({}, False, "needs options 'txnAppId'"),
        ({"txnAppId": "a"}, False, "needs options 'txnAppId'"),
        ({"txnVersion": "1"}, False, "needs options 'txnAppId'"),
        ({"txnAppId": "a", "txnVersion": "1", "startingBatchId": "1"}, False, "is for streams"),
    ],
)
def test_exactly_once_needs_a_name_for_the_sink(given: dict[str, str], stream: bool, says: str) -> None:
    once = parse({**SERVERS, **ONCE, **given}).exactly_once
    assert once is not None
    with pytest.raises(KafkaConfigurationError, match=says):
        once.sink(stream=stream)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kafka.bootstrap.servers": None}, "'kafka.bootstrap.servers' is missing"),
        ({"deadLeterTopic": "d"}, "did you mean 'deadLetterTopic'?"),
        ({"completely": "other"}, "must be one of topic, includeHeaders"),
        ({"includeHeaders": "yes"}, "'includeHeaders'='yes': must be 'true' or 'false'"),
        ({"deliveryGuarantee": "exactly-once"}, "'exactly-once' needs option 'transactionalIdPrefix'"),
        ({**ONCE, "transactionalIdPrefix": "a b"}, "'transactionalIdPrefix'='a b': must be 1 to 100"),
        ({**ONCE, "txnVersion": "-1"}, "'txnVersion'='-1': must be a whole number"),
        ({**ONCE, "txnAppId": ""}, "'txnAppId' is empty"),
        ({**ONCE, "kafka.acks": "1"}, "needs an idempotent producer"),
        ({"txnAppId": "a"}, "'txnAppId' has no effect with deliveryGuarantee='at-least-once'"),
        ({"startingBatchId": "3"}, "'startingBatchId' has no effect"),
        ({"deliveryGuarantee": "at-most-once"}, "must be 'at-least-once'"),
        ({"topic": ""}, "'topic' is empty"),
        ({"topic": "or ders"}, "option 'topic': topic 'or ders': a name must have 1 to 249 of"),
        ({"deadLetterTopic": "d/1"}, "option 'deadLetterTopic': topic 'd/1'"),
        ({"createTopic.partitions": "many"}, "'createTopic.partitions'='many': must be a whole number"),
        ({"createTopic.replication": "3"}, "has no effect without 'createTopic.partitions'"),
        ({"summaryCallback": "module"}, "must be 'module:function'"),
        ({"kafka.key.serializer": "S"}, "can't be given"),
        ({"kafka.transactional.id": "t"}, "exactly-once"),
        ({"kafka.linger.msec": "1"}, "'kafka.linger.msec': did you mean 'kafka.linger.ms'?"),
        ({"kafka.message.timeout.ms": "1"}, "librdkafka's name for 'kafka.delivery.timeout.ms'"),
        ({"kafka.acks": "2"}, "kafka.acks='2': must be"),
        ({"kafka.linger.ms": "5ms"}, "kafka.linger.ms='5ms': must be a number of milliseconds"),
        ({"kafka.delivery_timeout_ms": "1"}, "must be at least kafka.linger.ms + kafka.request.timeout.ms"),
        ({"bootstrap.servers": "b"}, "did you mean 'kafka.bootstrap.servers'?"),
        ({"compresion.type": "lz4"}, "did you mean 'kafka.compression.type'?"),
        ({"value.serializer": "S"}, "'value.serializer' can't be given: values are bytes or strings"),
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
        ({"transactional_id": "t"}, "transactional_id='t': can't be given"),
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


PASSWORD = "Zq7-hidden"
JAAS = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="{PASSWORD}";'
SECURE = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.ssl.truststore.location": "/ca.pem",
    "kafka.ssl.truststore.type": "PEM",
    "kafka.ssl.endpoint.identification.algorithm": "",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.sasl.jaas.config": JAAS,
}


def test_security_options_have_the_names_of_sparks_own_sink() -> None:
    config = ProducerConfig(**parse({**SERVERS, **SECURE}).config.config)
    assert (config.security_protocol, config.ssl_cafile, config.ssl_check_hostname) == (
        "SASL_SSL",
        "/ca.pem",
        False,
    )
    assert (config.sasl_mechanism, config.sasl_plain_username) == ("SCRAM-SHA-512", "u")
    assert config.sasl_plain_password == Secret(PASSWORD)


@pytest.mark.parametrize(
    "given",
    [
        {"ssl.keystore.key": PASSWORD},
        {"ssl_keystore_key": PASSWORD},
        {"sasl.oauthbearer.assertion.private.key.passphrase": PASSWORD},
        {"socks5.proxy": f"socks5://u:{PASSWORD}@h:1"},
    ],
)
def test_secrets_that_spark_would_show_are_refused(given: dict[str, str]) -> None:
    ((name, value),) = given.items()
    instead = "proxy.url"
    if "key" in name:
        instead = "assertion.private.key.file" if "oauth" in name else "ssl.keystore.location"
    with pytest.raises(KafkaConfigurationError, match=rf"option 'kafka.{name}' can't .*{instead}'") as raised:
        parse({**SERVERS, f"kafka.{name}": value})
    assert PASSWORD not in str(raised.value)
    with pytest.raises(KafkaConfigurationError, match=f"'spark.cyproducer.kafka.{name}' can't") as raised:
        session_options({f"spark.cyproducer.kafka.{name}": value}, ())
    assert PASSWORD not in str(raised.value)


def test_a_proxy_has_its_password_in_an_option_and_not_in_a_setting() -> None:
    url = f"socks5://u:{PASSWORD}@h:1"
    assert ProducerConfig(**parse({**SERVERS, "kafka.proxy.url": url}).config.config).proxy == url
    assert session_options({"spark.cyproducer.kafka.proxy.url": "http://h:1"}, ()) == {
        "proxy_url": "http://h:1"
    }
    with pytest.raises(KafkaConfigurationError, match=r"can't have a password.* option 'kafka.proxy.url'"):
        session_options({"spark.cyproducer.kafka.proxy.url": url}, ())


def test_a_sessions_settings_are_defaults() -> None:
    session = session_options(
        {
            "spark.cyproducer.kafka.linger.ms": "7",
            "spark.cyproducer.kafka.batch.size": "1000",
            "spark.cyproducer.kafka.bootstrap.servers": "a:1",
            "spark.kafka.clusters.c": "of Spark's own sink",
            "spark.app.name": "n",
        },
        (),
    )
    assert session == {"linger_ms": "7", "batch_size": "1000", "bootstrap_servers": "a:1"}
    found = parse({"kafka.linger_ms": "3"}, session).config.config
    assert (found["linger_ms"], found["batch_size"], found["bootstrap_servers"]) == ("3", "1000", "a:1")
    with pytest.raises(
        KafkaConfigurationError, match=r"'spark.cyproducer.topic' is unknown: .* as spark.cyprod"
    ):
        session_options({"spark.cyproducer.topic": "t"}, ())
    with pytest.raises(KafkaConfigurationError, match=r"'spark.cyproducer.kafka.value.serializer' can't"):
        session_options({"spark.cyproducer.kafka.value.serializer": "S"}, ())


@pytest.mark.parametrize(
    ("setting", "given"),
    [
        ({"sasl_jaas_config": JAAS}, {"sasl_plain_username": "v", "sasl_plain_password": "other"}),
        ({"sasl_plain_username": "v", "sasl_plain_password": "other"}, {"sasl_jaas_config": JAAS}),
        ({"ssl_cafile": "/ca.pem"}, {"ssl_truststore_certificates": "-----BEGIN CERTIFICATE-----"}),
        ({"proxy_url": "http://h:1"}, {"socks5_proxy": "socks5://h:1"}),
        (
            {"ssl_keystore_certificate_chain": "-----BEGIN CERTIFICATE-----"},
            {"ssl_certfile": "/client.pem"},
        ),
    ],
)
def test_an_option_replaces_a_setting_of_another_form(setting: dict[str, str], given: dict[str, str]) -> None:
    servers = {"bootstrap_servers": "127.0.0.1:1"}
    found = producer_config({**servers, **given}, columns=True, session=setting)
    assert found == producer_config({**servers, **given}, columns=True, session={})


def test_an_option_completes_settings() -> None:
    setting = {"sasl_plain_username": "u", "ssl_cafile": "/ca.p12"}
    given = {"sasl_plain_password": PASSWORD, "ssl_truststore_password": PASSWORD}
    servers = {"bootstrap_servers": "127.0.0.1:1"}
    found = producer_config({**servers, **given}, columns=True, session=setting)
    assert found == producer_config({**servers, **given, **setting}, columns=True, session={})


@pytest.mark.parametrize("name", ["sasl.jaas.config", "sasl.plain.password", "ssl.key.password"])
def test_a_password_is_a_setting_only_if_it_was_made_when_the_application_started(name: str) -> None:
    """Spark redacts others in one of the places where its event logs have them."""
    setting = {f"spark.cyproducer.kafka.{name}": PASSWORD}
    assert list(session_options(setting, setting).values()) == [PASSWORD]
    with pytest.raises(
        KafkaConfigurationError, match=f"'spark.cyproducer.kafka.{name}' was made after"
    ) as raised:
        session_options(setting, {"spark.app.name"})
    assert PASSWORD not in str(raised.value)
    session = SparkSession(setting)
    assert list(options_of_session(session).values()) == [PASSWORD]
    # Spark Connect does not tell.
    del session.sparkContext
    with pytest.raises(KafkaConfigurationError, match="was made after the application started"):
        options_of_session(session)


def test_functions_have_the_settings_of_the_processs_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a thread without an active session."""
    given = {"bootstrap_servers": "127.0.0.1:1", "linger_ms": 3}
    with fake_pyspark():
        assert producer_config(given, columns=True).config["batch_size"] == 524_288
        settings = {"spark.cyproducer.kafka.batch.size": "1000", "spark.cyproducer.kafka.linger.ms": "7"}
        monkeypatch.setattr(SparkSession, "_instantiatedSession", SparkSession(settings))
        found = producer_config(given, columns=True).config
        assert (found["batch_size"], found["linger_ms"]) == ("1000", 3)
        active = SparkSession({"spark.cyproducer.kafka.batch.size": "2000"})
        monkeypatch.setattr(SparkSession, "getActiveSession", lambda: active)
        assert producer_config(given, columns=True).config["batch_size"] == "2000"


@pytest.mark.parametrize(
    "given",
    [
        {"sasl_plain_password": PASSWORD},
        {"sasl.jaas.config": JAAS, "sasl.mechanism": "SCRAM-SHA-512"},
        {"ssl.key.password": PASSWORD},
        {"proxy_url": f"socks5://u:{PASSWORD}@h:1"},
        {"socks5.proxy": f"socks5://u:{PASSWORD}@h:1"},
    ],
)
def test_a_configuration_has_its_passwords_in_its_pickle_only(given: dict[str, str]) -> None:
    """In its pickle whatever ``pickle_secrets`` says: the workers need them."""
    one = shared(**given)
    made = [one, parse(SERVERS).config, pickle.loads(pickle.dumps(one)), SharedConfig(given)]
    for each in (*made, [each.config for each in made], [vars(each) for each in made]):
        assert PASSWORD not in repr(each)
    assert "***" in repr(one)
    assert PASSWORD.encode() in pickle.dumps(one)
    assert made[2] == one
    assert ProducerConfig(**made[2].config) == ProducerConfig(**one.config)
    with pytest.raises(TypeError, match="pickle_secrets=True"):
        pickle.dumps(ProducerConfig(**one.config))
    others = {name: value.replace(PASSWORD, "other") for name, value in given.items()}
    assert shared(**others) != one


def password_of_the_worker() -> str:
    return PASSWORD


def test_a_callable_is_pickled_without_what_it_returns() -> None:
    one = shared(sasl_plain_password=password_of_the_worker)
    pickled = pickle.dumps(one)
    assert PASSWORD.encode() not in pickled
    assert pickle.loads(pickled) == one
    assert pickle.loads(pickled).config["sasl_plain_password"]() == PASSWORD
