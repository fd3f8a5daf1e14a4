"""What a configuration accepts, what it refuses, and its messages."""

import inspect
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import cyproducer
from cyproducer import config as config_module
from cyproducer.config import DEFAULTS, ProducerConfig, options_as_markdown, other_clients
from cyproducer.config.options import OPTIONS
from cyproducer.config.other_clients import OTHER_NAMES
from cyproducer.errors import KafkaConfigurationError

# The defaults of options that kafka-python does not have, or that are not its own.
OWN_DEFAULTS = {
    "bootstrap_servers": ("localhost",),
    "reconnect_backoff_max_ms": 1000,
    "authentication_backoff_ms": 30000,
    "metrics_recording_level": "INFO",
    "enable_metrics_push": True,
    # kafka-python's is 16384: half the throughput, and it would save no memory for an idle partition here.
    "batch_size": 131072,
    "buffer_memory": 33554432,
    "max_pending_callbacks": 100000,
    "partitioner": None,
    "partitioner_ignore_keys": False,
    "partitioner_adaptive_partitioning_enable": True,
    "partitioner_availability_timeout_ms": 0,
    "partitioner_rack_aware": False,
    "client_rack": None,
    "partitioner_single_broker_ms": 30000,
    "topic_options": {},
    "interceptors": (),
    "compression_level": None,
    "compression_gzip_level": None,
    "compression_lz4_level": None,
    "compression_zstd_level": None,
    "retry_backoff_max_ms": 1000,
    "metadata_max_idle_ms": 300000,
    "socket_connection_setup_timeout_ms": 10000,
    "socket_connection_setup_timeout_max_ms": 30000,
    "metadata_recovery_strategy": "rebootstrap",
    "metadata_recovery_rebootstrap_trigger_ms": 300000,
    "metadata_cluster_check_enable": True,
    "close_timeout_ms": 30000,
    "selector": None,
    "kafka_client": None,
    "api_version_auto_timeout_ms": None,
    "default_api_timeout_ms": None,
    "net": None,
    "ssl_truststore_certificates": None,
    "ssl_truststore_type": None,
    "ssl_truststore_password": None,
    "ssl_keystore_certificate_chain": None,
    "ssl_keystore_key": None,
    "ssl_keystore_type": None,
    "ssl_keystore_password": None,
    "ssl_enabled_protocols": ("TLSv1.2", "TLSv1.3"),
    "ssl_protocol": None,
    "ssl_without_gil": True,
    "pickle_secrets": False,
    "sasl_jaas_config": None,
    "sasl_oauthbearer_token_endpoint_url": None,
    "sasl_oauthbearer_grant_type": "client_credentials",
    "sasl_oauthbearer_client_credentials_client_id": None,
    "sasl_oauthbearer_client_credentials_client_secret": None,
    "sasl_oauthbearer_scope": None,
    "sasl_oauthbearer_extensions": None,
    "sasl_oauthbearer_header_urlencode": False,
    "sasl_oauthbearer_assertion_file": None,
    "sasl_oauthbearer_assertion_private_key_file": None,
    "sasl_oauthbearer_assertion_private_key_passphrase": None,
    "sasl_oauthbearer_assertion_algorithm": "RS256",
    "sasl_oauthbearer_assertion_template_file": None,
    "sasl_oauthbearer_assertion_claim_iss": None,
    "sasl_oauthbearer_assertion_claim_sub": None,
    "sasl_oauthbearer_assertion_claim_aud": None,
    "sasl_oauthbearer_assertion_claim_exp_seconds": 300,
    "sasl_oauthbearer_assertion_claim_nbf_seconds": 60,
    "sasl_oauthbearer_assertion_claim_jti_include": False,
    "https_ca_location": None,
    "sasl_kerberos_principal": None,
    "sasl_kerberos_keytab": None,
    "broker_address": None,
}


def problem(**configs: Any) -> str:
    with pytest.raises(KafkaConfigurationError) as caught:
        ProducerConfig.from_kwargs(configs)
    return str(caught.value).removeprefix("KafkaConfigurationError: ")


def test_defaults_are_kafka_pythons_and_javas() -> None:
    kafka = pytest.importorskip("kafka")
    given = kafka.KafkaProducer.DEFAULT_CONFIG
    theirs = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    expected = theirs | OWN_DEFAULTS
    values = ProducerConfig().as_dict()
    # In kafka-python, a constant decides about idempotence.
    del expected["enable_idempotence"], values["enable_idempotence"]
    del expected["client_id"], values["client_id"]
    assert values == expected


def test_every_default_is_in_the_normal_form_of_its_kind() -> None:
    for option in OPTIONS:
        if not option.none_is_unset:
            assert option.kind(option.default) == option.default, option.name


def test_no_key_names_two_options() -> None:
    for option in OPTIONS:
        for key in (option.name, option.dotted_name, option.java_name):
            assert key is None or config_module._BY_KEY[key] is option


def test_java_names_and_textual_values_give_the_same_configuration() -> None:
    python = ProducerConfig(
        bootstrap_servers=["host1:9092", "host2:9092"],
        acks=-1,
        linger_ms=5,
        compression_type="zstd",
        compression_zstd_level=-5,
        buffer_memory=1 << 40,
        max_in_flight_requests_per_connection=3,
        retries=2147483647,
        partitioner_ignore_keys=True,
        interceptors=[],
        metadata_max_idle_ms=6000,
        client_id="a",
        partitioner="random",
        receive_buffer_bytes=None,
        ssl_check_hostname=False,
        ssl_cafile="ca.pem",
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_plain_username="u",
        sasl_plain_password="p",
    )
    java = ProducerConfig.from_kwargs(
        {
            "bootstrap.servers": "host1:9092, host2:9092,",
            "acks": "all",
            "linger.ms": "5",
            "compression.type": "zstd",
            "compression.zstd.level": "-5",
            "buffer.memory": str(1 << 40),
            "max.in.flight.requests.per.connection": " 3 ",
            "retries": "2147483647",
            "partitioner.ignore.keys": "TRUE",
            "interceptor.classes": "",
            "metadata.max.idle.ms": "6000",
            "client.id": "a",
            "partitioner.class": "random",
            "receive.buffer.bytes": "-1",
            "ssl.endpoint.identification.algorithm": "",
            "ssl.truststore.location": "ca.pem",
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": "scram-sha-256",
            "sasl.jaas.config": 'a.b.ScramLoginModule required username="u" password="p";',
        }
    )
    assert java.as_dict().pop("sasl_jaas_config") is not None
    assert java.as_dict() | {"sasl_jaas_config": None} == python.as_dict()


def test_an_option_that_java_lacks_may_be_spelled_with_dots() -> None:
    assert ProducerConfig.from_kwargs({"close.timeout.ms": "7"}).close_timeout_ms == 7


def test_one_option_under_two_spellings_is_an_error_that_names_both() -> None:
    assert problem(**{"linger_ms": 5, "linger.ms": 5}) == (
        "linger_ms and linger.ms are the same option: give only one of them"
    )


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("linger_mss", "linger_ms"),
        ("LINGER_MS", "linger_ms"),
        ("linger-ms", "linger_ms"),
        ("bootstrap_server", "bootstrap_servers"),
        ("max.in.flight.requests", "max.in.flight.requests.per.connection"),
        ("closed.timeout.ms", "close.timeout.ms"),
    ],
)
def test_the_nearest_name_is_suggested_for_an_unknown_option(key: str, near: str) -> None:
    assert problem(**{key: 1}) == f"unknown option {key!r}: did you mean {near!r}?"


def test_all_unknown_options_are_reported_together() -> None:
    assert problem(zzzz=1, yyyy=2) == "unknown option 'zzzz'; unknown option 'yyyy'"


@pytest.mark.parametrize("key", config_module._JAVA_ONLY)
def test_javas_own_option_is_refused_with_what_to_do_instead(key: str) -> None:
    assert problem(**{key: "x"}) == f"option {key!r} is for Java only: {config_module._JAVA_ONLY[key]}"


def test_an_option_name_that_is_not_a_string_is_refused() -> None:
    with pytest.raises(KafkaConfigurationError, match="option 5: must be a string"):
        ProducerConfig.from_kwargs({5: 1})  # type: ignore[dict-item]


def test_a_refused_value_is_reported_with_the_key_as_spelled_and_the_allowed_values() -> None:
    assert problem(linger_ms=-1) == "linger_ms=-1: must be a number of milliseconds >= 0"
    assert problem(**{"linger.ms": "soon"}) == "linger.ms='soon': must be a number of milliseconds >= 0"
    assert problem(batch_size=1 << 40).startswith(f"batch_size={1 << 40}: it is above 2147483647; must be")


def test_long_value_is_cut_in_the_message() -> None:
    assert len(problem(compression_type="x" * 5000)) < 300


# --- immutability, copies, text ---------------------------------------------------------------------


def test_options_cannot_be_changed_deleted_or_added() -> None:
    config = ProducerConfig(linger_ms=1)
    with pytest.raises(AttributeError, match=r"use replace\(linger_ms=\.\.\.\)"):
        config.linger_ms = 2  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        del config.linger_ms
    with pytest.raises(AttributeError):
        config.lingerms = 2  # type: ignore[attr-defined]
    assert config.linger_ms == 1


def test_the_class_attribute_of_an_option_is_its_row_of_the_table() -> None:
    assert ProducerConfig.linger_ms in OPTIONS
    assert ProducerConfig.linger_ms.name == "linger_ms"


def test_given_and_as_dict_are_copies() -> None:
    config = ProducerConfig(linger_ms=1)
    config.given()["linger_ms"] = 2
    config.as_dict()["linger_ms"] = 2
    assert config.linger_ms == 1
    assert config.replace().linger_ms == 1


def test_replace_keeps_given_options_and_resolves_the_others_again() -> None:
    config = ProducerConfig(acks=1, retry_backoff_ms=5000, client_id="a")
    assert config.retry_backoff_max_ms == 5000
    other = config.replace(**{"retry.backoff.ms": 100, "linger_ms": 7})
    assert (other.acks, other.linger_ms, other.retry_backoff_max_ms) == (1, 7, 1000)
    assert config.linger_ms == 0
    assert other.replace(client_id=None).client_id.startswith("cyproducer-")
    assert other.replace(**{"client.id": None}).client_id.startswith("cyproducer-")
    with pytest.raises(KafkaConfigurationError, match="linger_ms=-1"):
        config.replace(linger_ms=-1)


def test_as_dict_and_given_make_an_equal_configuration() -> None:
    config = ProducerConfig(
        bootstrap_servers="a,[::1]:9093",
        compression_type="lz4",
        compression_level=3,
        delivery_timeout_ms=float("inf"),
        api_version="2.8",
        linger_ms=float("inf"),
        connections_max_idle_ms=-1,
    )
    assert ProducerConfig.from_kwargs(config.as_dict()) == config
    assert ProducerConfig.from_kwargs(config.given()) == config
    assert config != ProducerConfig()
    assert config != "config"
    assert set(config.as_dict()) == {option.name for option in OPTIONS}


def test_an_unpickled_configuration_is_equal_and_gets_a_new_client_id_number() -> None:
    config = ProducerConfig(linger_ms=5, key_serializer=str.encode)
    again = pickle.loads(pickle.dumps(config))
    assert again == config
    assert type(again) is ProducerConfig
    assert again.client_id != config.client_id
    named = ProducerConfig(client_id="a")
    assert pickle.loads(pickle.dumps(named)).client_id == "a"


def test_repr_shows_the_given_options_without_secrets() -> None:
    config = ProducerConfig(
        client_id="a",
        linger_ms=5,
        sasl_plain_password="geheim-1",
        ssl_password="geheim-2",
        proxy_url="socks5://user:ge%40he%2Fim-3@proxy:1080",
    )
    text = repr(config)
    assert "geheim" not in text
    assert "im-3" not in text
    assert text == (
        "ProducerConfig(client_id='a', linger_ms=5, sasl_plain_password='***', ssl_password='***', "
        "proxy_url='socks5://***@proxy:1080')"
    )
    assert "geheim" not in str(config.as_dict()) + str(config.given()) + str(vars(type(config)))
    assert config.as_dict()["sasl_plain_password"].reveal() == "geheim-1"
    assert repr(ProducerConfig()).startswith("ProducerConfig(client_id='cyproducer-")


@pytest.mark.parametrize("option", ["ssl_password", "ssl_keystore_key", "sasl_plain_password"])
def test_a_pickle_has_secrets_only_if_that_was_asked_for(option: str) -> None:
    options: dict[str, Any] = {option: "geheim"}
    if option == "ssl_keystore_key":
        options["ssl_keystore_certificate_chain"] = "-----BEGIN CERTIFICATE-----"
    config = ProducerConfig(**options)
    with pytest.raises(
        TypeError, match=r"would be in the pickle: give a callable .* or set pickle_secrets=True"
    ):
        pickle.dumps(config)
    allowed = config.replace(pickle_secrets=True)
    again = pickle.loads(pickle.dumps(allowed))
    assert again == allowed
    assert getattr(again, option).reveal() == "geheim"


def test_a_secret_that_is_a_callable_is_not_called_for_a_pickle() -> None:
    config = ProducerConfig(ssl_password=os.getcwd)
    assert pickle.loads(pickle.dumps(config)).ssl_password is os.getcwd


def test_a_secret_is_equal_to_the_same_secret_only() -> None:
    one, same, other = (ProducerConfig(ssl_password=text) for text in ("a", "a", "b"))
    assert one.replace(client_id="c") == same.replace(client_id="c")
    assert one.replace(client_id="c") != other.replace(client_id="c")
    assert one.ssl_password != "a"
    with pytest.raises(AttributeError):
        one.ssl_password._text = "b"  # type: ignore[union-attr]


def test_refused_secret_is_not_in_the_message() -> None:
    assert problem(sasl_plain_password=48151623) == (
        "sasl_plain_password='***': must be a string, or a callable that returns one, or None"
    )


# --- client id --------------------------------------------------------------------------------------


def test_client_id_numbers_are_unique_across_threads() -> None:
    names: list[str] = []

    def make() -> None:
        names.extend(ProducerConfig(client_id=None).client_id for _ in range(50))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(names)) == 200
    numbers = sorted(int(name.removeprefix("cyproducer-")) for name in names)
    assert numbers == list(range(numbers[0], numbers[0] + 200))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_not_blocked_by_a_lock_of_its_parent() -> None:
    with config_module._client_numbers_lock:
        pid = os.fork()
        if pid == 0:
            signal.alarm(10)
            ok = ProducerConfig().client_id.startswith("cyproducer-")
            os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# --- documentation ----------------------------------------------------------------------------------


def test_module_prints_a_markdown_table_with_a_row_for_each_option() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cyproducer.config"], capture_output=True, check=True, text=True
    )
    lines = done.stdout.splitlines()
    assert done.stdout == options_as_markdown()
    assert lines[0] == "| Option | Java's name | Default | Allowed | Meaning |"
    assert lines[1] == "| --- | --- | --- | --- | --- |"
    assert [line.split(" | ")[0] for line in lines[2:]] == [f"| `{option.name}`" for option in OPTIONS]
    assert {line.replace("\\|", "").count("|") for line in lines} == {6}
    assert "| `linger_ms` | `linger.ms` | `0` | a number of milliseconds >= 0 |" in done.stdout
    assert "| `close_timeout_ms` |  | `30000` |" in done.stdout


def test_table_shows_that_idempotence_is_on() -> None:
    assert "| `enable_idempotence` | `enable.idempotence` | `True` |" in options_as_markdown()


def test_importing_the_package_imports_no_slow_module() -> None:
    # What logging imports in any case: Python 3.14's imports dataclasses, which imports inspect.
    program = (
        "import sys; import logging; before = set(sys.modules); import cyproducer;"
        "slow = 'inspect dataclasses ssl hashlib hmac asyncio difflib concurrent.futures lz4 backports';"
        "slow += ' cramjam';"
        "print([name for name in slow.split() if name in set(sys.modules) - before])"
    )
    # -S excludes site-packages, and with it this package.
    environment = {**os.environ, "PYTHONPATH": str(Path(cyproducer.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, check=True, env=environment
    )
    assert done.stdout.decode().strip() == "[]"


def test_importing_the_package_imports_nothing_that_only_transactions_need_and_compiles_nothing() -> None:
    program = (
        "import sys; compiled = [];"
        "ours = lambda event, args: event == 'compile' and args[1] == '<string>';"
        "sys.addaudithook(lambda *event: ours(*event) and compiled.append(event[1][0]));"
        "import cyproducer;"
        "names = [name for name in sys.modules if name.startswith('cyproducer.')];"
        "rare = 'clients.transaction', 'control.transaction_', 'wire.transaction', 'wire.admin', 'telemetry',"
        "       'errors.other_codes', 'serializers', '_consumer_offsets';"
        # A named tuple evaluates a lambda, which creates no types of the syntax tree.
        "strings = [each for each in compiled if not each.startswith(b'lambda')];"
        "print([name for name in names if any(part in name for part in rare)], strings)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.decode().strip() == "[] []"


# --- as a mapping -----------------------------------------------------------------------------------


def test_a_configuration_is_a_mapping_of_kafka_pythons_names() -> None:
    config = ProducerConfig(acks="all", linger_ms=5, client_id="a", ssl_password="geheim")
    assert isinstance(config, Mapping)
    assert (config["acks"], config["linger_ms"], config["client_id"]) == (-1, 5, "a")
    assert config["enable_idempotence"] is True
    assert list(config) == [option.name for option in OPTIONS]
    assert len(config) == len(OPTIONS)
    assert "acks" in config
    assert "linger.ms" not in config
    assert config.get("no_such_option") is None
    with pytest.raises(KeyError, match="no_such_option"):
        config["no_such_option"]
    with pytest.raises(TypeError):
        config["acks"] = 1  # type: ignore[index]
    assert all(config[name] == getattr(config, name) for name in config)
    assert dict(config)["ssl_password"].reveal() == "geheim"
    assert "geheim" not in f"{dict(config)}{config['ssl_password']}{list(config.values())}"


def test_a_configuration_can_be_given_as_options() -> None:
    config = ProducerConfig(acks=1, sasl_plain_password="geheim", security_protocol="SASL_SSL",
                            sasl_mechanism="PLAIN", sasl_plain_username="u")  # fmt: skip
    assert ProducerConfig(config) == config
    assert ProducerConfig(config, linger_ms=7) == config.replace(linger_ms=7)
    assert ProducerConfig(**config)["sasl_plain_password"] == config["sasl_plain_password"]


def test_options_may_be_a_mapping_and_keyword_arguments_together() -> None:
    config = ProducerConfig({"linger.ms": "5"}, acks=1)
    assert (config.linger_ms, config.acks) == (5, 1)
    with pytest.raises(
        KafkaConfigurationError, match="linger_ms is both in the mapping and a keyword argument"
    ):
        ProducerConfig({"linger_ms": 5}, linger_ms=5)
    with pytest.raises(KafkaConfigurationError, match=r"linger\.ms and linger_ms are the same option"):
        ProducerConfig({"linger.ms": 5}, linger_ms=5)


def test_options_that_are_no_mapping_are_refused_without_showing_them() -> None:
    with pytest.raises(TypeError, match=r"^options: must be a mapping or keyword .*, not str$") as caught:
        ProducerConfig("SASL_SSL://user:geheim@host")  # type: ignore[arg-type]
    assert "geheim" not in str(caught.value)


def test_the_defaults_are_a_read_only_mapping_that_makes_the_default_configuration() -> None:
    assert list(DEFAULTS) == [option.name for option in OPTIONS]
    assert DEFAULTS["client_id"] is None
    assert ProducerConfig(DEFAULTS) == ProducerConfig()
    with pytest.raises(TypeError):
        DEFAULTS["acks"] = 1  # type: ignore[index]


# --- moving from other clients ----------------------------------------------------------------------


def test_rack_awareness_needs_a_rack() -> None:
    config = ProducerConfig({"partitioner.rack.aware": "true", "client.rack": "a"})
    assert (config.partitioner_rack_aware, config.client_rack) == (True, "a")
    assert ProducerConfig(client_rack="a").partitioner_rack_aware is False
    for rack in (None, "", " "):
        assert problem(partitioner_rack_aware=True, client_rack=rack) == (
            "partitioner_rack_aware=True: needs client_rack, the rack of this client as in the brokers' "
            "broker.rack"
        )


def test_kafka_pythons_default_api_timeout_is_checked_as_there() -> None:
    assert ProducerConfig(default_api_timeout_ms=60000).default_api_timeout_ms == 60000
    assert problem(default_api_timeout_ms=60000, request_timeout_ms=70000) == (
        "default_api_timeout_ms=60000: must be at least request_timeout_ms=70000"
    )


@pytest.mark.parametrize("name", ["kafka_client", "net"])
def test_a_part_that_cannot_be_replaced_is_reported(name: str, caplog: pytest.LogCaptureFixture) -> None:
    ProducerConfig()
    assert not caplog.records
    ProducerConfig.from_kwargs({name: "asyncio", "client_id": "shop"})
    text = f"{name}='asyncio' has no effect: cyproducer has no such part to replace"
    assert caplog.messages == [f"[producer shop] {text}"]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            "message.timeout.ms",
            "unknown option 'message.timeout.ms': librdkafka's name for 'delivery.timeout.ms'",
        ),
        (
            "message_timeout_ms",
            "unknown option 'message_timeout_ms': librdkafka's name for 'delivery_timeout_ms'",
        ),
        (
            "ssl.ca.location",
            "unknown option 'ssl.ca.location': librdkafka's name for 'ssl.truststore.location'",
        ),
        (
            "queue.buffering.max.kbytes",
            "unknown option 'queue.buffering.max.kbytes': librdkafka's name for 'buffer.memory', in bytes",
        ),
        ("max_batch_size", "unknown option 'max_batch_size': aiokafka's name for 'batch_size'"),
        ("group.id", "option 'group.id' is a consumer's: a producer has no use for it, leave it out"),
        ("debug", "option 'debug' is librdkafka's: configure the logger 'cyproducer' of Python's logging"),
    ],
)
def test_an_option_of_another_client_is_refused_with_what_to_give_instead(key: str, message: str) -> None:
    assert problem(**{key: "x"}) == message


def test_each_option_of_another_client_leads_to_one_that_exists() -> None:
    for name, other in OTHER_NAMES.items():
        assert config_module.option_name(name) is None, f"{name} is an option here"
        assert other.option is not None or other.note, name
        text = other_clients.about(name)
        assert text is not None
        if other.option is not None:
            (shown,) = re.findall(r"name for '([^']+)'", text)
            assert config_module.option_name(shown) == other.option


#: Options of confluent-kafka's Python, which librdkafka does not know.
OF_ITS_WRAPPER = ("logger", "on_delivery", "dr_cb", "default.topic.config")


def test_librdkafka_has_the_options_that_are_called_its() -> None:
    kafka = pytest.importorskip("confluent_kafka")
    for name, other in OTHER_NAMES.items():
        if other.client == "librdkafka" and name not in OF_ITS_WRAPPER:
            # Most refuse this value, which is enough: a name that does not exist has another error.
            said = ""
            try:
                kafka.Producer({name: "no such value"})
            except (kafka.KafkaException, TypeError, ValueError) as error:
                said = str(error)
            assert "No such configuration property" not in said, name


def test_each_option_of_aiokafka_is_known_or_explained() -> None:
    aiokafka = pytest.importorskip("aiokafka")
    for name in list(inspect.signature(aiokafka.AIOKafkaProducer).parameters):
        assert config_module.option_name(name) or other_clients.about(name), name


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 4 << 20),
        ({"buffer_memory": 80 << 20}, 10 << 20),
        ({"buffer_memory": 1 << 20}, 1 << 20),
        ({"max_request_size": 1 << 20}, 1 << 20),
        ({"max_request_size": 9 << 20}, 9 << 20),
    ],
)
def test_requests_to_far_brokers_are_larger_unless_max_request_size_is_given(
    options: dict[str, int], expected: int
) -> None:
    assert ProducerConfig(**options).far_request_size == expected  # type: ignore[arg-type]
