"""No frame of an exception has a password, key or token in clear: trackers of errors record all variables.

A new place is one more function with ``@place``: it raises, with ``SECRET`` in what it was given.
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
PLACES: list[Place] = []


def place(function: Place) -> Place:
    PLACES.append(function)
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


@pytest.mark.parametrize("where", PLACES, ids=lambda where: where.__name__)
def test_no_frame_has_the_secret(where: Place, tmp_path: Path) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        where(tmp_path)
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


@place
def a_producer(_: Path) -> object:
    return KafkaProducer(**SASL, **WRONG)


@place
def a_producer_of_a_mapping(_: Path) -> object:
    return KafkaProducer({**SASL, **WRONG})


@place
def a_misspelt_password(_: Path) -> object:
    return KafkaProducer({"sasl_plain_pasword": SECRET})


@place
def a_password_of_bytes(_: Path) -> object:
    return KafkaProducer({"sasl_plain_password": SECRET.encode()})


@place
def an_option_that_is_given_twice(_: Path) -> object:
    return ProducerConfig({"sasl_plain_password": SECRET}, sasl_plain_password=SECRET)


@place
def a_changed_configuration(_: Path) -> object:
    return ProducerConfig(**SASL).replace(ssl_password=SECRET, **WRONG)


@place
def a_configuration_that_can_not_be_pickled(_: Path) -> object:
    return pickle.dumps(ProducerConfig(**SASL))


@place
def a_pickle_of_another_version(_: Path) -> object:
    return ProducerConfig.from_kwargs({**SASL, "gone": 1})


@place
def jaas(_: Path) -> object:
    return ProducerConfig(**(SASL | {"sasl_plain_password": None}), sasl_jaas_config=JAAS)


@place
def jaas_of_an_unknown_module(_: Path) -> object:
    return ProducerConfig(sasl_jaas_config=f'C.M required password="{SECRET}";')


@place
def jaas_without_a_user(_: Path) -> object:
    return ProducerConfig(sasl_jaas_config=f'C.PlainLoginModule required password="{SECRET}";')


@place
def jaas_with_a_bad_character(_: Path) -> object:
    return ProducerConfig(sasl_jaas_config=f'C.PlainLoginModule required password="{SECRET}" #;')


@place
def a_proxy_without_a_scheme(_: Path) -> object:
    return ProducerConfig(proxy_url=f"u:{SECRET}@proxy")


@place
def a_proxy_with_a_path(_: Path) -> object:
    return ProducerConfig(proxy_url=f"http://u:{SECRET}@proxy/path")


@place
def a_producer_of_aiokafkas_shape(_: Path) -> object:
    return AIOKafkaProducer(**SASL, **WRONG)


@place
def a_producer_of_confluents_shape(_: Path) -> object:
    return Producer({"sasl.password": SECRET, "ssl.key.password": SECRET, "linger.ms": "x"})


@place
def a_key_that_confluents_shape_refuses(_: Path) -> object:
    return Producer({"sasl.oauthbearer.assertion.private.key.pem": SECRET})


@place
def an_unknown_option_of_confluents_shape(_: Path) -> object:
    return Producer(**{"sasl.pasword": SECRET})


@place
def credentials_of_another_type(_: Path) -> None:
    Producer({"bootstrap.servers": "localhost:1"}).set_sasl_credentials("u", SECRET.encode())  # type: ignore[arg-type]


@place
def a_mock_producer(_: Path) -> object:
    return MockProducer(**SASL, **WRONG)


@place
def an_admin(_: Path) -> object:
    return TransactionAdmin({**SASL, **WRONG})


@place
def a_listing(_: Path) -> object:
    return list_transactions({**SASL, **WRONG})


# Spark


@place
def options_of_a_write(_: Path) -> object:
    given = {"kafka." + name.replace("_", "."): value for name, value in SASL.items()}
    return parse_spark({**given, "kafka.bootstrap.servers": "h", "kafka.sasl.password": SECRET}, {})


@place
def options_of_a_session(_: Path) -> object:
    return session_options({"spark.cyproducer.kafka.sasl_plain_password": SECRET}, ())


@place
def a_function_for_partitions(_: Path) -> object:
    return produce_partitions("t", **SASL, **WRONG)


@place
def a_configuration_that_can_not_be_sent(_: Path) -> object:
    return SharedConfig({**SASL, "key_serializer": _Unpicklable()})


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


def authentication(more: dict[str, Any]) -> Authentication:
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


@place
def plain_with_a_zero_byte(_: Path) -> object:
    return authentication({"sasl_mechanism": "PLAIN", "sasl_plain_password": f"{SECRET}\0"})


@place
def a_password_that_a_function_returns_as_bytes(_: Path) -> None:
    authentication({"sasl_mechanism": "PLAIN", "sasl_plain_password": SECRET.encode}).resume()


@place
def scrams_first_message(_: Path) -> object:
    return authentication({}).on_authenticate(reply(0, b"r=other,s=W22Z,i=4096"), 0.0)


@place
def plain_that_is_refused(_: Path) -> object:
    return authentication({"sasl_mechanism": "PLAIN"}).on_authenticate(reply(58), 0.0)


# Tokens


@place
def a_token_of_bytes(_: Path) -> object:
    return fetch(lambda _: SECRET.encode())


@place
def a_token_with_a_blank(_: Path) -> object:
    return fetch(lambda _: f"{SECRET} {SECRET}")


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


@place
def an_endpoint_that_refuses(_: Path) -> object:
    return oidc(b"{}", 401)


@place
def an_answer_without_a_token(_: Path) -> object:
    return oidc(json.dumps({"refresh_token": SECRET}).encode())


@place
def an_answer_that_is_no_object(_: Path) -> object:
    return oidc(json.dumps(SECRET).encode())


@place
def an_answer_that_is_too_long(_: Path) -> object:
    return oidc(SECRET.encode() * 100_000)


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


@place
def a_proxy_of_http_that_refuses(_: Path) -> object:
    return through("http", b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")


@place
def a_socks_proxy_that_refuses(_: Path) -> object:
    return through("socks5", b"\x05\x02", b"\x01\x01")


@place
def a_proxy_that_closes_at_once(_: Path) -> object:
    ours, theirs = socket.socketpair()
    with ours:
        stage = ProxyStage(parse_proxy(SecretUrl(f"http://u:{SECRET}@proxy")), "broker", 9092)
        theirs.close()
        return stage.step(ours)
