"""Each kind of value: the values it accepts, their normal form, and the values it refuses."""

import ipaddress
import math
import pathlib
import re
import ssl
import string
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cyproducer.config import ProducerConfig
from cyproducer.config.option_kinds import FOREVER_MS, Refused, number, split_server
from cyproducer.errors import KafkaConfigurationError


class Method:
    """An object with every method that options look for, but not callable."""

    def partition(self) -> None: ...
    def serialize(self) -> None: ...
    def token(self) -> None: ...


class Plugin:
    """An interceptor and a metric reporter."""

    def on_acknowledgement(self) -> None: ...
    def metric_change(self) -> None: ...


THING = Method()
PLUGIN = Plugin()
CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

READ = [
    ("acks", 0, 0),
    ("acks", "0", 0),
    ("acks", 1, 1),
    ("acks", "1", 1),
    ("acks", -1, -1),
    ("acks", "-1", -1),
    ("acks", " ALL ", -1),
    ("allow_auto_create_topics", "False", False),
    ("allow_auto_create_topics", False, False),
    ("partitioner_ignore_keys", True, True),
    ("client_rack", "use1-az1", "use1-az1"),
    ("client_rack", "", None),
    ("client_rack", "  ", None),
    ("ssl_check_hostname", "https", True),
    ("ssl_check_hostname", "", False),
    ("linger_ms", 0.5, 0.5),
    ("linger_ms", " 0.5 ", 0.5),
    ("linger_ms", 5.0, 5),
    ("linger_ms", "5.0", 5),
    ("linger_ms", Decimal("5"), 5),
    ("linger_ms", float("inf"), FOREVER_MS),
    ("linger_ms", "inf", FOREVER_MS),
    ("max_block_ms", 2**63 - 1, FOREVER_MS),
    ("connections_max_idle_ms", -1, FOREVER_MS),
    ("metadata_max_idle_ms", 1, 1),
    ("request_timeout_ms", 60000.0, 60000),
    ("transaction_timeout_ms", 2**31 - 1, 2**31 - 1),
    ("transaction_timeout_ms", float("inf"), 2**31 - 1),
    ("request_timeout_ms", 2**31, 2**31 - 1),
    ("batch_size", 0, 0),
    ("buffer_memory", 2**63 - 1, 2**63 - 1),
    ("buffer_memory", "9007199254740993", 2**53 + 1),
    ("retries", float("inf"), float("inf")),
    ("retries", "inf", float("inf")),
    ("retries", "3", 3),
    ("compression_type", "NONE", None),
    ("compression_type", None, None),
    ("compression_type", "ZStd", "zstd"),
    ("compression_gzip_level", "-1", -1),
    ("compression_gzip_level", 9, 9),
    ("compression_lz4_level", 17, 17),
    ("compression_zstd_level", -131072, -131072),
    ("receive_buffer_bytes", -1, None),
    ("receive_buffer_bytes", "-1", None),
    ("send_buffer_bytes", "4096", 4096),
    ("metadata_recovery_strategy", "NONE", "none"),
    ("client_dns_lookup", "default", "use_all_dns_ips"),
    ("security_protocol", "plaintext", "PLAINTEXT"),
    ("client_id", "é" * 16383, "é" * 16383),
    ("ssl_cafile", pathlib.PurePosixPath("a/ca.pem"), "a/ca.pem"),
    ("ssl_cafile", "", None),
    ("ssl_context", CONTEXT, CONTEXT),
    ("partitioner", "random", "random"),
    ("partitioner", "", None),
    ("receive_buffer_bytes", " -1 ", None),
    ("partitioner", THING, THING),
    ("partitioner", max, max),
    ("key_serializer", str.encode, str.encode),
    ("value_serializer", THING, THING),
    ("sasl_oauth_token_provider", THING, THING),
    ("interceptors", None, ()),
    ("interceptors", [PLUGIN], (PLUGIN,)),
    ("interceptors", PLUGIN, (PLUGIN,)),
    ("metric_reporters", (Plugin,), (Plugin,)),
    ("api_version", (2, 8), (2, 8)),
    ("api_version", [2, 8, 1], (2, 8, 1)),
    ("api_version", "0.10.2", (0, 10, 2)),
    ("api_version", "auto", None),
    (
        "socket_options",
        [(6, 1, 1), [1, 9, b"x"], (1, 2, None, 3)],
        ((6, 1, 1), (1, 9, b"x"), (1, 2, None, 3)),
    ),
    ("socket_options", [], ()),
    ("kafka_client", THING, THING),
    ("bootstrap_servers", " a , b:1 ,, ", ("a", "b:1")),
    ("bootstrap_servers", ["a,b", "c"], ("a", "b", "c")),
]

NUMBER_MS = "must be a number of milliseconds >= 0"
REFUSED = [
    ("acks", 2, "must be 0, 1, -1 or 'all'"),
    ("acks", "most", "must be 0, 1, -1 or 'all'"),
    ("acks", None, "must be 0, 1, -1 or 'all'"),
    ("acks", True, "must be 0, 1, -1 or 'all'"),
    ("allow_auto_create_topics", 1, "must be True or False"),
    ("allow_auto_create_topics", "yes", "must be True or False"),
    ("ssl_check_hostname", "http", "must be True or False or 'https' or ''"),
    ("linger_ms", None, NUMBER_MS),
    ("linger_ms", True, NUMBER_MS),
    ("linger_ms", b"5", NUMBER_MS),
    ("linger_ms", "", NUMBER_MS),
    ("linger_ms", "1_000", NUMBER_MS),
    ("linger_ms", "\u0665", NUMBER_MS),
    ("linger_ms", "nan", NUMBER_MS),
    ("linger_ms", float("nan"), NUMBER_MS),
    ("linger_ms", 1j, NUMBER_MS),
    ("linger_ms", [1], NUMBER_MS),
    ("max_block_ms", -0.5, NUMBER_MS),
    ("connections_max_idle_ms", -2, "must be a number of milliseconds >= 0, or -1 for never"),
    ("metadata_max_idle_ms", 0, "must be a number of milliseconds >= 1"),
    ("request_timeout_ms", 0, "must be a whole number of milliseconds >= 1"),
    ("request_timeout_ms", 0.5, "must be a whole number of milliseconds >= 1"),
    ("batch_size", -1, "must be a whole number of bytes >= 0"),
    ("batch_size", 1.5, "must be a whole number of bytes >= 0"),
    ("buffer_memory", 0, "must be a whole number of bytes >= 1"),
    ("buffer_memory", 2**63, "it is above 9223372036854775807"),
    ("max_in_flight_requests_per_connection", 0, "must be a whole number >= 1"),
    ("retries", -1, "must be a whole number >= 0, or float('inf')"),
    ("retries", 1.5, "must be a whole number >= 0, or float('inf')"),
    ("compression_type", "brotli", "must be one of 'gzip', 'snappy', 'lz4', 'zstd', or None"),
    ("compression_type", 1, "must be one of 'gzip', 'snappy', 'lz4', 'zstd', or None"),
    ("compression_gzip_level", 0, "must be a whole number from 1 to 9, or -1, or None"),
    ("compression_gzip_level", 10, "must be a whole number from 1 to 9, or -1, or None"),
    ("compression_lz4_level", 0, "must be a whole number from 1 to 17, or None"),
    ("compression_zstd_level", 23, "must be a whole number from -131072 to 22, or None"),
    ("compression_zstd_level", -131073, "must be a whole number from -131072 to 22, or None"),
    ("receive_buffer_bytes", 0, "must be a whole number of bytes >= 1, or None"),
    ("receive_buffer_bytes", -1.0, "must be a whole number of bytes >= 1, or None"),
    ("client_id", "", "it has 0 bytes; must be a string of 1 to 32767 bytes"),
    ("client_id", "é" * 16384, "it has 32768 bytes; must be"),
    ("client_id", b"a", "must be a string of 1 to 32767 bytes"),
    ("client_id", "\ud800" * 20000, "it has 60000 bytes"),
    ("transactional_id", "", "it has 0 bytes"),
    ("ssl_cafile", 5, "must be the path of a file, or None"),
    ("ssl_cafile", b"ca.pem", "must be the path of a file, or None"),
    ("ssl_context", "context", "must be an ssl.SSLContext, or None"),
    ("partitioner", 5, "must be a name, a callable, an object with a partition() method, or None"),
    ("key_serializer", "json", "must be a callable, an object with a serialize() method, or None"),
    ("key_serializer", "org.apache.StringSerializer", "names of Java classes are not supported; must be"),
    ("interceptors", "org.example.Interceptor", "names of Java classes are not supported; must be a list"),
    ("interceptors", ["x"], "names of Java classes are not supported"),
    (
        "interceptors",
        [5],
        "int has none of these methods; must be a list of interceptor objects or classes with ",
    ),
    ("interceptors", [PLUGIN, THING], "Method has none of these methods"),
    ("interceptors", Method, "Method has none of these methods"),
    (
        "metric_reporters",
        [5],
        "int has none of these methods; must be a list of reporter classes or objects with ",
    ),
    ("metric_reporters", [None], "NoneType has none of these methods"),
    ("api_version", 2, "must be a version such as (2, 8) or '2.8.0', or None"),
    ("api_version", (), "must be a version such as (2, 8) or '2.8.0', or None"),
    ("api_version", "2.x", "must be a version such as (2, 8) or '2.8.0', or None"),
    ("api_version", (2, -1), "must be a version such as (2, 8) or '2.8.0', or None"),
    ("api_version", (2, 0.5), "must be a version such as (2, 8) or '2.8.0', or None"),
    ("socket_options", 5, "must be a list of (level, option, value) tuples"),
    ("socket_options", "abc", "must be a list of (level, option, value) tuples"),
    ("socket_options", [(1, 2)], "(1, 2) is not such a tuple; must be a list"),
    ("socket_options", [(1, 2, "x")], "(1, 2, 'x') is not such a tuple; must be a list"),
    ("bootstrap_servers", "", "it contains no server; must be 'host[:port]'"),
    ("bootstrap_servers", [], "it contains no server"),
    ("bootstrap_servers", None, "must be 'host[:port]'"),
    ("bootstrap_servers", b"a:1", "must be 'host[:port]'"),
    ("bootstrap_servers", 9092, "must be 'host[:port]'"),
    ("bootstrap_servers", ["a", ("b", 1)], "('b', 1) is not a string; must be"),
    ("bootstrap_servers", "a:1,b:x", "'b:x' has no valid port: a port is a number from 1 to 65535; must be"),
]


@pytest.mark.parametrize(("name", "value", "normal"), READ)
def test_value_is_read_into_its_normal_form(name: str, value: Any, normal: Any) -> None:
    found = ProducerConfig(**{name: value}).as_dict()[name]
    assert found == normal
    assert type(found) is type(normal)


@pytest.mark.parametrize(("name", "value", "text"), REFUSED)
def test_value_that_is_not_allowed_is_refused_with_the_reason(name: str, value: Any, text: str) -> None:
    with pytest.raises(KafkaConfigurationError) as caught:
        ProducerConfig(**{name: value})
    message = str(caught.value)
    assert message.startswith(f"KafkaConfigurationError: {name}={repr(value)[:50]}")
    assert text in message


@pytest.mark.parametrize(
    ("entry", "protocol", "address"),
    [
        ("host", None, ("host", 9092)),
        (" host:1 ", None, ("host", 1)),
        ("my_broker-1.example.com.:65535", None, ("my_broker-1.example.com.", 65535)),
        ("bücher.example:9093", None, ("bücher.example", 9093)),
        ("10.0.0.1:9093", None, ("10.0.0.1", 9093)),
        ("::1", None, ("::1", 9092)),
        ("[::1]", None, ("::1", 9092)),
        ("[::1]:9093", None, ("::1", 9093)),
        ("[fe80::1%eth0]:9093", None, ("fe80::1%eth0", 9093)),
        ("PLAINTEXT://host:1", "PLAINTEXT", ("host", 1)),
        ("sasl_ssl://[::1]:1", "SASL_SSL", ("::1", 1)),
    ],
)
def test_a_server_is_split_into_protocol_and_address(
    entry: str, protocol: str | None, address: tuple[str, int]
) -> None:
    assert split_server(entry) == (protocol, address)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("host:", "no valid port"),
        ("host:0", "no valid port"),
        ("host:65536", "no valid port"),
        ("host:-1", "no valid port"),
        ("host:\u0669", "no valid port"),
        ("host:" + "9" * 5000, "no valid port"),
        ("host:9092/topic", "no valid port"),
        (":9092", "no valid host name"),
        ("a b:9092", "no valid host name"),
        ("user@host:9092", "no valid host name"),
        ("x" * 256, "no valid host name"),
        ("a:b:9092", "too many colons"),
        ("::1::9092", "too many colons"),
        ("[::1", "no IPv6 address in its brackets"),
        ("[host]:9092", "no IPv6 address in its brackets"),
        ("[::1]9092", "no IPv6 address in its brackets"),
        ("[fe80::1%]:9092", "no IPv6 address in its brackets"),
        ("[::1]:", "no valid port"),
        (
            "http://host:9092",
            "has the prefix 'http'; allowed are only PLAINTEXT/SSL/SASL_PLAINTEXT/SASL_SSL",
        ),
        ("://host:9092", "has the prefix ''"),
    ],
)
def test_an_invalid_server_is_refused_by_name(entry: str, reason: str) -> None:
    with pytest.raises(Refused, match=f"^{re.escape(repr(entry))} has .*") as caught:
        split_server(entry)
    assert reason in str(caught.value)


NAMES = st.text(string.ascii_lowercase + string.digits + "-._", min_size=1, max_size=60)
ADDRESSES = st.tuples(
    st.one_of(NAMES, st.ip_addresses().map(str)),
    st.integers(1, 65535),
)


def written(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@given(st.lists(ADDRESSES, min_size=1, max_size=5, unique=True))
def test_any_list_of_servers_yields_its_addresses(addresses: list[tuple[str, int]]) -> None:
    entries = [written(address) for address in addresses]
    for given_as in (entries, ",".join(entries), tuple(entries)):
        config = ProducerConfig(bootstrap_servers=given_as)
        assert config.bootstrap_addresses == tuple(addresses)
        assert ProducerConfig.from_kwargs(config.as_dict()).bootstrap_addresses == tuple(addresses)


@example("::\x00")
@given(st.text(max_size=30))
def test_any_text_is_an_address_or_is_refused(entry: str) -> None:
    try:
        _, (host, port) = split_server(entry)
    except Refused:
        return
    assert 1 <= port <= 65535
    assert host
    assert not any(letter.isspace() for letter in host)
    if ":" in host:
        ipaddress.ip_address(host)


@given(st.one_of(st.integers(), st.floats(allow_nan=False)))
def test_a_number_and_its_text_give_the_same_value(value: float) -> None:
    assert number(repr(value)) == number(value) == value
    whole = math.isfinite(value) and value == int(value)
    assert isinstance(number(value), int) is whole


@given(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.integers())
    )
)
@pytest.mark.slow
def test_any_value_is_refused_or_has_a_normal_form_that_is_accepted(value: Any) -> None:
    for name in ProducerConfig().as_dict():
        if name in ("compression_level", "transactional_id", "enable_idempotence"):
            continue  # these depend on other options
        try:
            config = ProducerConfig(**{name: value})
        except KafkaConfigurationError as refused:
            assert name in str(refused)  # noqa: PT017  not raising is as good an outcome here
            continue
        assert ProducerConfig.from_kwargs(config.as_dict()) == config
