"""No frame of an exception has a password, key or token in clear: trackers of errors record all variables.

A new place is one more entry of ``PLACES``, or a function with ``@place``: it raises, with ``SECRET`` in what
it was given.
"""

import asyncio
import base64
import dataclasses
import json
import pickle
import socket
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import cyproducer
from cyproducer import KafkaProducer
from cyproducer.aio import AIOKafkaProducer
from cyproducer.base.clock import ManualClock
from cyproducer.cli.settings import _file_settings, _plain_properties, name_and_text
from cyproducer.config import ProducerConfig
from cyproducer.config.option_kinds import SecretUrl
from cyproducer.config.properties import parse as parse_properties
from cyproducer.config.proxy import parse_proxy
from cyproducer.confluent import Producer
from cyproducer.net.authentication import Authentication
from cyproducer.net.blocking_tasks import Background
from cyproducer.net.proxy import ProxyStage
from cyproducer.security.oidc import OidcTokens
from cyproducer.security.sasl import SharedCredentials, converse
from cyproducer.security.tls_context import make_context
from cyproducer.security.tokens import fetch
from cyproducer.spark.options import parse as parse_spark
from cyproducer.spark.options import session_options
from cyproducer.spark.rows import produce_partitions
from cyproducer.spark.sharing import SharedConfig
from cyproducer.testing import MockProducer
from cyproducer.transactions import TransactionAdmin, list_transactions
from tools.harness.token_server import Answer, TokenServer

pytestmark = pytest.mark.timeout(60)

SECRET = "s3cr3tPassw0rd"
HIDDEN = (
    SECRET,
    base64.b64encode(SECRET.encode()).decode()[:16],
    base64.b64encode(f":{SECRET}".encode()).decode()[4:16],
)
PACKAGE = str(Path(cyproducer.__file__).parent)

Place = Callable[[Path], object]
PLACES: dict[str, Place] = {}


def place(function: Place) -> Place:
    PLACES[function.__name__] = function
    return function


def chain(error: BaseException | None, seen: set[int]) -> Iterator[BaseException]:
    """The exception with all its causes and contexts, suppressed ones too."""
    if error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        yield from chain(error.__cause__, seen)
        yield from chain(error.__context__, seen)


def frames(error: BaseException) -> Iterator[types.FrameType]:
    for each in chain(error, set()):
        trace = each.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename.startswith(PACKAGE):
                yield trace.tb_frame
            trace = trace.tb_next


def shown(value: object, depth: int = 0) -> Iterator[str]:
    """What trackers show of a variable, and more: the members of this package's objects."""
    try:
        yield repr(value)
    except Exception:
        return
    if depth > 4:
        return
    inner: list[object] = []
    if isinstance(value, Mapping):
        inner = [each for item in value.items() for each in item]
    elif isinstance(value, list | tuple | set | frozenset):
        inner = list(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif type(value).__module__.startswith("cyproducer") and not isinstance(value, type):
        inner = list(getattr(value, "__dict__", {}).values())
    for each in inner:
        yield from shown(each, depth + 1)


@pytest.mark.parametrize("where", PLACES)
def test_no_frame_has_the_secret(where: str, tmp_path: Path) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        PLACES[where](tmp_path)
    found = list(frames(caught.value))
    assert found, "no frame of this package"
    for frame in found:
        for name, value in frame.f_locals.items():
            for text in shown(value):
                assert not any(each in text for each in HIDDEN), (
                    f"{name} in {frame.f_code.co_qualname}: {text}"
                )


SASL: dict[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "SCRAM-SHA-256",
    "sasl_plain_username": "alice",
    "sasl_plain_password": SECRET,
}
WRONG: dict[str, Any] = {"linger_ms": "x"}
JAAS = f'C.ScramLoginModule required username="alice" password="{SECRET}"'


# Options


PLACES.update(
    a_producer=lambda _: KafkaProducer(**SASL, **WRONG),
    a_producer_of_a_mapping=lambda _: KafkaProducer({**SASL, **WRONG}),
    a_misspelt_password=lambda _: KafkaProducer({"sasl_plain_pasword": SECRET}),
    a_password_of_bytes=lambda _: KafkaProducer({"sasl_plain_password": SECRET.encode()}),
    an_option_that_is_given_twice=lambda _: ProducerConfig(
        {"sasl_plain_password": SECRET}, sasl_plain_password=SECRET
    ),
    a_changed_configuration=lambda _: ProducerConfig(**SASL).replace(ssl_password=SECRET, **WRONG),
    a_configuration_that_can_not_be_pickled=lambda _: pickle.dumps(ProducerConfig(**SASL)),
    a_pickle_of_another_version=lambda _: ProducerConfig.from_kwargs({**SASL, "gone": 1}),
    jaas=lambda _: ProducerConfig(**(SASL | {"sasl_plain_password": None}), sasl_jaas_config=JAAS),
    jaas_of_an_unknown_module=lambda _: ProducerConfig(sasl_jaas_config=f'C.M required password="{SECRET}";'),
    jaas_without_a_user=lambda _: ProducerConfig(
        sasl_jaas_config=f'C.PlainLoginModule required password="{SECRET}";'
    ),
    jaas_with_a_bad_character=lambda _: ProducerConfig(
        sasl_jaas_config=f'C.PlainLoginModule required password="{SECRET}" #;'
    ),
    a_proxy_without_a_scheme=lambda _: ProducerConfig(proxy_url=f"u:{SECRET}@proxy"),
    a_proxy_with_a_path=lambda _: ProducerConfig(proxy_url=f"http://u:{SECRET}@proxy/path"),
    a_producer_of_aiokafkas_shape=lambda _: AIOKafkaProducer(**SASL, **WRONG),
    a_producer_of_confluents_shape=lambda _: Producer(
        {"sasl.password": SECRET, "ssl.key.password": SECRET, "linger.ms": "x"}
    ),
    a_key_that_confluents_shape_refuses=lambda _: Producer(
        {"sasl.oauthbearer.assertion.private.key.pem": SECRET}
    ),
    an_unknown_option_of_confluents_shape=lambda _: Producer(**{"sasl.pasword": SECRET}),
    a_mock_producer=lambda _: MockProducer(**SASL, **WRONG),
    an_admin=lambda _: TransactionAdmin({**SASL, **WRONG}),
    a_listing=lambda _: list_transactions({**SASL, **WRONG}),
)


@place
def credentials_of_another_type(_: Path) -> None:
    Producer({"bootstrap.servers": "localhost:1"}).set_sasl_credentials("u", SECRET.encode())  # type: ignore[arg-type]


# Spark


@place
def options_of_a_write(_: Path) -> object:
    given = {"kafka." + name.replace("_", "."): value for name, value in SASL.items()}
    return parse_spark({**given, "kafka.bootstrap.servers": "h", "kafka.sasl.password": SECRET}, {})


PLACES.update(
    options_of_a_session=lambda _: session_options(
        {"spark.cyproducer.kafka.sasl_plain_password": SECRET}, ()
    ),
    a_function_for_partitions=lambda _: produce_partitions("t", **SASL, **WRONG),
    a_configuration_that_can_not_be_sent=lambda _: SharedConfig({**SASL, "key_serializer": _Unpicklable()}),
)


class _Unpicklable:
    def __reduce__(self) -> str:
        raise TypeError("no")


# The command line


@place
def a_file_of_properties(path: Path) -> object:
    (path / "p").write_text(f"sasl.password={SECRET}\n{SECRET}\n")
    return _file_settings("-F", str(path / "p"), _plain_properties)


@place
def a_producer_of_a_properties_file(path: Path) -> object:
    (path / "p").write_text(
        f"sasl.jaas.config=C.PlainLoginModule required password\\={SECRET};\nlinger.ms=x\n"
    )
    return KafkaProducer(**_file_settings("-F", str(path / "p"), parse_properties))


@place
def an_option_of_the_command_line(_: Path) -> object:
    return KafkaProducer(**dict([name_and_text(f"sasl.password={SECRET}"), ("linger_ms", "x")]))


# TLS


@place
def the_password_of_a_key_store(path: Path) -> object:
    (path / "p12").write_bytes(b"\x30\x82" + bytes(20))
    file = str(path / "p12")
    return make_context(ProducerConfig(security_protocol="SSL", ssl_certfile=file, ssl_password=SECRET))


@place
def the_password_of_a_trust_store_as_a_function(path: Path) -> object:
    (path / "p12").write_bytes(b"\x30\x82" + bytes(20))
    given: dict[str, Any] = {"ssl_truststore_password": lambda: SECRET.encode()}
    return make_context(ProducerConfig(security_protocol="SSL", ssl_cafile=str(path / "p12"), **given))


@place
def a_key_as_text(_: Path) -> object:
    chain_of = "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----"
    given: dict[str, Any] = {"ssl_keystore_key": SECRET, "ssl_keystore_certificate_chain": chain_of}
    return make_context(ProducerConfig(security_protocol="SSL", **given))


@place
def a_key_in_the_file_of_the_certificate(path: Path) -> object:
    text = f"-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n{SECRET}\n"
    (path / "pem").write_text(text)
    return make_context(ProducerConfig(security_protocol="SSL", ssl_certfile=str(path / "pem")))


# Authentication


def authentication(**more: Any) -> Authentication:
    """An authentication that has begun."""
    config = ProducerConfig(**(SASL | more))
    shared = SharedCredentials(config, ManualClock(), lambda: 0.5)
    woken = threading.Event()
    of = Authentication(
        config,
        "b",
        lambda: converse(config, shared, "b"),
        Background(woken.set),
        lambda: 0.5,
        lambda _: None,
        lambda _: None,
    )
    of.begin()
    if of.waits_for:
        assert woken.wait(10)
    return of


def reply(error_code: int, auth_bytes: bytes = b"") -> Any:
    return types.SimpleNamespace(
        error_code=error_code, error_message="no", auth_bytes=auth_bytes, session_lifetime_ms=0
    )


PLACES.update(
    plain_with_a_zero_byte=lambda _: authentication(
        sasl_mechanism="PLAIN", sasl_plain_password=f"{SECRET}\0"
    ),
    a_password_that_a_function_returns_as_bytes=lambda _: authentication(
        sasl_mechanism="PLAIN", sasl_plain_password=SECRET.encode
    ).resume(),
    scrams_first_message=lambda _: authentication().on_authenticate(reply(0, b"r=other,s=W22Z,i=4096"), 0.0),
    plain_that_is_refused=lambda _: authentication(sasl_mechanism="PLAIN").on_authenticate(reply(58), 0.0),
)


# Tokens


PLACES.update(
    a_token_of_bytes=lambda _: fetch(lambda _: SECRET.encode()),
    a_token_with_a_blank=lambda _: fetch(lambda _: f"{SECRET} {SECRET}"),
)


@place
def a_token_of_a_coroutine(_: Path) -> object:
    async def token(_: object) -> object:
        await asyncio.sleep(0)
        return (SECRET.encode(), 1)

    return fetch(token)


@place
def extensions_that_are_invalid(_: Path) -> object:
    return fetch(lambda _: (SECRET, 1, "", {"a b": "c"}))


def oidc(answer: bytes | None, status: int = 200, **more: Any) -> object:
    with TokenServer() as server:
        server.answer = lambda _: Answer(status, answer or b"")
        given: dict[str, Any] = {
            "sasl_oauthbearer_token_endpoint_url": server.url,
            "sasl_oauthbearer_client_credentials_client_id": "id",
            "sasl_oauthbearer_client_credentials_client_secret": SECRET,
            **more,
        }
        config = ProducerConfig(security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", **given)
        return OidcTokens(config, sleep=lambda _: None).token()


PLACES.update(
    an_endpoint_that_refuses=lambda _: oidc(b"{}", 401),
    an_answer_without_a_token=lambda _: oidc(json.dumps({"refresh_token": SECRET}).encode()),
    an_answer_that_is_no_object=lambda _: oidc(json.dumps(SECRET).encode()),
    an_answer_that_is_too_long=lambda _: oidc(SECRET.encode() * 100_000),
)


@place
def a_key_for_tokens(path: Path) -> object:
    (path / "key").write_text(f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n")
    return oidc(
        b"",
        sasl_oauthbearer_assertion_private_key_file=str(path / "key"),
        sasl_oauthbearer_assertion_private_key_passphrase=SECRET,
    )


# Proxies


def through(scheme: str, *answers: bytes) -> object:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        stage = ProxyStage(parse_proxy(SecretUrl(f"{scheme}://u:{SECRET}@proxy")), "broker", 9092)
        for answer in answers:
            stage.step(ours)
            theirs.sendall(answer)
        return stage.step(ours)


PLACES.update(
    a_proxy_of_http_that_refuses=lambda _: through(
        "http", b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"
    ),
    a_socks_proxy_that_refuses=lambda _: through("socks5", b"\x05\x02", b"\x01\x01"),
)


@place
def a_proxy_that_closes_at_once(_: Path) -> object:
    ours, theirs = socket.socketpair()
    with ours:
        stage = ProxyStage(parse_proxy(SecretUrl(f"http://u:{SECRET}@proxy")), "broker", 9092)
        theirs.close()
        return stage.step(ours)
