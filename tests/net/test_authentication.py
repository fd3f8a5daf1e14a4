"""Whole producers that authenticate by SASL against the scripted broker."""

import asyncio
import functools
import logging
import math
import pickle
import socket
import struct
import threading
import time
import traceback
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cyproducer import KafkaProducer
from cyproducer.base.clock import ManualClock
from cyproducer.base.log import Log
from cyproducer.config import ProducerConfig
from cyproducer.config.option_kinds import Hidden
from cyproducer.config.proxy import parse_proxy
from cyproducer.control.node_states import Address, Connections
from cyproducer.errors import (
    IllegalSaslStateError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from cyproducer.futures.delivery import RecordFuture
from cyproducer.net.authentication import Authentication
from cyproducer.net.blocking_tasks import Background, Task
from cyproducer.net.connection import Connection
from cyproducer.net.connector import RETRY_CREDENTIALS_MS, Connector
from cyproducer.net.loop import Loop
from cyproducer.security.sasl import Compute, Conversation, Send
from cyproducer.security.scram import Scram
from cyproducer.security.tokens import Tokens
from tests.scripted.scripted_broker import (
    API_VERSIONS,
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    ScriptedCluster,
)
from tests.scripted.scripted_model import Act
from tests.scripted.scripted_sasl import Exchange, RefusedError, SaslServer
from tools.harness.tls import Authority
from tools.harness.token_server import Answer, Asked, TokenServer
from tools.harness.until import until

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORD = "secret"


def options(cluster: ScriptedCluster, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": cluster.bootstrap_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "alice",
        "sasl_plain_password": PASSWORD,
        "reconnect_backoff_ms": 10,
        **more,
    }


def refused(server: SaslServer | None, kind: type[KafkaError], text: str, **given: Any) -> KafkaError:
    """The error of a record of a producer with these options: one of this kind, with this text in it."""
    with (
        ScriptedCluster(sasl=server, t=1) as cluster,
        KafkaProducer(**options(cluster, **given)) as ours,
        pytest.raises(kind, match=text) as caught,
    ):
        ours.send("t", b"v").get(20)
    return caught.value


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("version", [0, 1, 2])
def test_records_are_sent_after_the_authentication(mechanism: str, version: int) -> None:
    with ScriptedCluster(2, sasl=SaslServer(), t=2) as cluster:
        for node in cluster.nodes.values():
            node.versions[SASL_AUTHENTICATE] = (0, version)
        with KafkaProducer(**options(cluster, sasl_mechanism=mechanism)) as ours:
            futures = [ours.send("t", b"%d" % i, partition=i % 2) for i in range(20)]
            assert [future.get(20).offset for future in futures] == [i // 2 for i in range(20)]
            assert ours.send("t", b"v", partition=0).get(20).offset == 10
    assert set(cluster.sasl.tries) == {mechanism}  # type: ignore[union-attr]


def test_names_and_passwords_of_any_letters() -> None:
    server = SaslServer(users={"n,a=m ü": "pä ﬁ"})
    for mechanism in MECHANISMS:
        with ScriptedCluster(sasl=server, t=1) as cluster:
            given = {"sasl_plain_username": "n,a=m ü", "sasl_plain_password": "pä ﬁ"}
            with KafkaProducer(**options(cluster, sasl_mechanism=mechanism, **given)) as ours:
                assert ours.send("t", b"v").get(20).offset == 0


def test_sasl_over_tls() -> None:
    authority = Authority()
    with ScriptedCluster(sasl=SaslServer(), tls=authority.server(), t=1) as cluster:
        given = {"security_protocol": "SASL_SSL", "ssl_context": authority.client()}
        with KafkaProducer(**options(cluster, **given)) as ours:
            assert ours.send("t", b"v").get(20).offset == 0


# Refusals


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_fails_at_once_and_is_not_tried_again(mechanism: str) -> None:
    server = SaslServer()
    given = {"sasl_mechanism": mechanism, "sasl_plain_password": "wrong"}
    with ScriptedCluster(sasl=server, t=1) as cluster, KafkaProducer(**options(cluster, **given)) as ours:
        began = time.monotonic()
        with pytest.raises(SaslAuthenticationFailedError, match=f"refused user 'alice' by {mechanism}: Auth"):
            ours.send("t", b"v").get(20)
        with pytest.raises(SaslAuthenticationFailedError):
            ours.wait_ready(20)
        with pytest.raises(SaslAuthenticationFailedError):
            ours.partitions_for("t")
        assert time.monotonic() - began < 5
        # Accounts lock after some attempts.
        assert server.tries == [mechanism]


def test_an_unknown_scram_user_gets_a_hint() -> None:
    hint = "is there such a user, and has it a SCRAM"
    refused(SaslServer(), SaslAuthenticationFailedError, hint, sasl_plain_username="bob")


def test_a_mechanism_that_the_broker_does_not_have() -> None:
    server = SaslServer(mechanisms=("PLAIN", "OAUTHBEARER"))
    text = "has no sasl_mechanism='SCRAM-SHA-256'; it has PLAIN, OAUTH"
    refused(server, UnsupportedSaslMechanismError, text)


def test_sasl_at_a_listener_without() -> None:
    refused(None, IllegalSaslStateError, "has no SASL: set security_protocol='PLAINTEXT'")


@pytest.mark.slow
def test_a_broker_with_another_version_of_sasl_is_not_one_without() -> None:
    with ScriptedCluster(sasl=SaslServer(), t=1) as cluster:
        cluster.nodes[1].versions[SASL_HANDSHAKE] = (0, 0)
        with (
            KafkaProducer(**options(cluster, max_block_ms=1000)) as ours,
            pytest.raises(KafkaTimeoutError, match="of SaslHandshake: the broker speaks 0 to 0"),
        ):
            ours.send("t", b"v").get(20)


@pytest.mark.slow
def test_no_sasl_at_a_listener_with() -> None:
    with (
        ScriptedCluster(sasl=SaslServer(), t=1) as cluster,
        KafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, max_block_ms=3000, reconnect_backoff_ms=10
        ) as ours,
        pytest.raises(KafkaTimeoutError, match="set security_protocol='SASL_PLAINTEXT' and sasl_mechanism"),
    ):
        ours.send("t", b"v").get(20)


def test_a_server_that_does_not_know_the_password() -> None:
    def liar(mechanism: str) -> Exchange:
        first = (yield b"").decode()
        nonce = first.partition("r=")[2]
        yield f"r={nonce}server,s=c2FsdA==,i=4096".encode()
        yield b"v=" + b"A" * 43 + b"="

    with (
        ScriptedCluster(sasl=SaslServer(own=liar), t=1) as cluster,
        KafkaProducer(**options(cluster)) as ours,
        pytest.raises(SaslAuthenticationFailedError, match="it does not know the password of this user"),
    ):
        ours.send("t", b"v").get(20)
    assert cluster.received(METADATA) == []


def test_records_sent_after_a_refusal_fail_at_once_too() -> None:
    server = SaslServer({"alice": "another"})
    with ScriptedCluster(sasl=server, t=1) as cluster, KafkaProducer(**options(cluster)) as ours:
        for _ in range(3):
            with pytest.raises(SaslAuthenticationFailedError, match="refused user 'alice'"):
                ours.send("t", b"v").get(20)
        assert len(server.tries) == 1


def test_what_a_broker_says_is_cut_and_printable() -> None:
    def rude(mechanism: str) -> Exchange:
        yield b""
        raise RefusedError("no\n\x1b[31m" + "x" * 10_000)

    server = SaslServer(own=rude)
    text = str(refused(server, SaslAuthenticationFailedError, "refused", sasl_mechanism="PLAIN"))
    assert text.isprintable()
    assert 500 < len(text) < 700


def test_rights_that_are_given_later_are_noticed() -> None:
    server = SaslServer(users={})
    with ScriptedCluster(sasl=server, t=1) as cluster:
        given = {"authentication_backoff_ms": 200}
        with KafkaProducer(**options(cluster, **given)) as ours:
            with pytest.raises(SaslAuthenticationFailedError):
                ours.send("t", b"v").get(20)
            server.users["alice"] = PASSWORD
            until(lambda: ours.bootstrap_connected(), "the connection")
            assert ours.send("t", b"v").get(20).offset == 0


# Credentials


def test_callables_are_called_for_each_connection_and_not_on_the_senders_thread() -> None:
    called: list[str] = []
    passwords = iter(["wrong", PASSWORD, PASSWORD])

    def password() -> str:
        called.append(threading.current_thread().name)
        return next(passwords)

    given = {
        "sasl_plain_username": lambda: "alice",
        "sasl_plain_password": password,
        "authentication_backoff_ms": 100,
    }
    with (
        ScriptedCluster(sasl=SaslServer(), t=1) as cluster,
        KafkaProducer(**options(cluster, **given)) as ours,
    ):
        with pytest.raises(SaslAuthenticationFailedError, match="refused this client by"):
            ours.send("t", b"v").get(20)
        until(lambda: ours.bootstrap_connected(), "the connection")
        assert ours.send("t", b"v").get(20).offset == 0
    assert len(called) >= 2
    assert all(name == "cyproducer-background" for name in called)


def test_a_callable_that_fails_says_so() -> None:
    def password() -> str:
        raise OSError("the vault is closed")

    text = "getting the credentials failed: .*the vault is"
    refused(SaslServer(), SaslAuthenticationFailedError, text, sasl_plain_password=password)


class OwnError(KafkaTimeoutError):
    """An error of users, whose constructor takes other arguments."""

    def __init__(self, *, closed: bool) -> None:
        super().__init__("the vault is closed" if closed else "the vault is open")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KafkaTimeoutError(), "KafkaTimeoutError"),
        (OwnError(closed=True), "the vault is closed"),
        (KafkaConnectionError("the vault is closed"), "the vault is closed"),
    ],
)
def test_a_callable_that_raises_an_error_of_this_client_is_called_again(error: Exception, said: str) -> None:
    is_closed = True

    def password() -> str:
        if is_closed:
            raise error
        return PASSWORD

    with (
        ScriptedCluster(sasl=SaslServer(), t=1) as cluster,
        KafkaProducer(**options(cluster, sasl_plain_password=password)) as ours,
    ):
        future = ours.send("t", b"v")
        until(lambda: f"SCRAM-SHA-256: {said}" in ours._runtime.client.diagnosis(), "the failure")
        is_closed = False
        assert future.get(20).offset == 0


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize(
    ("password", "problem"),
    [
        (lambda: None, "TypeError: it returned NoneType: it must return a string"),
        (lambda: b"geheim", "TypeError: it returned bytes: it must return a string"),
        (lambda: b"gehe\xe9im".decode(), "UnicodeDecodeError: 'utf-8' codec can't decode"),
        # As os.environ has bytes that are no UTF-8.
        (lambda: "gehe\udce9im", "UnicodeEncodeError: 'utf-8' codec can't encode"),
        ("gehe\udce9im", "UnicodeEncodeError: 'utf-8' codec can't encode"),
    ],
)
def test_passwords_that_are_no_text_are_not_sent_and_not_shown(
    password: Any, problem: str, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = SaslServer()
    given = {"sasl_plain_password": password, "sasl_mechanism": mechanism}
    error = refused(server, SaslAuthenticationFailedError, problem, **given)
    assert server.tries == []
    assert "gehe" not in "".join(traceback.format_exception(error)) + caplog.text


def test_credentials_in_arguments_and_fields_are_not_shown() -> None:
    supply = functools.partial(str, "geheim")
    config = ProducerConfig(
        sasl_plain_username=supply, sasl_plain_password=supply, sasl_oauth_token_provider=supply
    )
    assert "geheim" not in repr(config)

    class Unpicklable(Provider):
        def __repr__(self) -> str:
            return "geheim"

        def __reduce__(self) -> str:
            raise TypeError("no")

    with (
        KafkaProducer(bootstrap_servers="127.0.0.1:1", sasl_oauth_token_provider=Unpicklable()) as ours,
        pytest.raises(pickle.PicklingError) as caught,
    ):
        pickle.dumps(ours)
    assert "geheim" not in str(caught.value)


@pytest.mark.slow
def test_renewing_its_session_does_not_keep_an_idle_connection() -> None:
    server = SaslServer(lifetime_ms=1300)
    given = {"connections_max_idle_ms": 3000}
    with ScriptedCluster(sasl=server, t=1) as cluster, KafkaProducer(**options(cluster, **given)) as ours:
        ours.send("t", b"v").get(20)
        until(lambda: ours.metrics()["producer-metrics"]["connection-count"] == 0, "the end")
        # The bootstrap connection's, the broker's, and at least one renewal.
        assert len(server.tries) >= 3


@pytest.mark.slow
def test_a_callable_that_hangs_costs_the_connections_timeout() -> None:
    stop = threading.Event()
    given = {
        "sasl_plain_password": lambda: stop.wait(30) and "",
        "max_block_ms": 1500,
        "socket_connection_setup_timeout_ms": 200,
        "socket_connection_setup_timeout_max_ms": 200,
    }
    text = r"no completed handshake within \d+ ms, waiting for the credentials"
    refused(SaslServer(), KafkaTimeoutError, text, **given)
    stop.set()


@pytest.mark.slow
def test_an_endpoint_for_tokens_that_does_not_answer_is_named() -> None:
    stop = threading.Event()

    def answer(asked: Asked) -> Answer:
        stop.wait(30)
        return Answer(503)

    server = SaslServer(mechanisms=("OAUTHBEARER",))
    with TokenServer() as tokens, ScriptedCluster(sasl=server, t=1) as cluster:
        tokens.answer = answer
        given = {
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauthbearer_token_endpoint_url": tokens.url,
            "sasl_oauthbearer_client_credentials_client_id": "c",
            "sasl_oauthbearer_client_credentials_client_secret": "s",
            "max_block_ms": 1500,
            "socket_connection_setup_timeout_ms": 200,
            "socket_connection_setup_timeout_max_ms": 200,
        }
        with (
            KafkaProducer(**options(cluster, **given)) as ours,
            pytest.raises(KafkaTimeoutError, match=f"waiting for a token from {tokens.url}"),
        ):
            ours.send("t", b"v").get(20)
        stop.set()


def test_a_high_iteration_count_is_hashed_once_and_not_on_the_senders_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[str] = []
    hashing = Scram.salted_password

    def noting(scram: Scram) -> Hidden[bytes]:
        threads.append(threading.current_thread().name)
        return hashing(scram)

    monkeypatch.setattr(Scram, "salted_password", noting)
    server = SaslServer(iterations=200_000)
    with ScriptedCluster(2, sasl=server, t=2) as cluster, KafkaProducer(**options(cluster)) as ours:
        futures = [ours.send("t", b"v", partition=i) for i in range(2)]
        assert [future.get(40).offset for future in futures] == [0, 0]
        count = len(threads)
        # The result is used again.
        cluster.nodes[1].drop_connections()
        assert ours.send("t", b"v", partition=0).get(40).offset == 1
    assert len(threads) == count
    assert set(threads) == {"cyproducer-background"}


def test_no_secret_is_in_what_failing_runs_print(caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    caplog.set_level(logging.DEBUG)
    secret, printed = "gEheim-4711", []
    for mechanism in MECHANISMS:
        given = {"sasl_mechanism": mechanism, "sasl_plain_password": secret}
        with (
            ScriptedCluster(sasl=SaslServer(), t=1) as cluster,
            KafkaProducer(**options(cluster, **given)) as p,
        ):
            try:
                p.send("t", b"v").get(20)
            except SaslAuthenticationFailedError as error:
                printed += traceback.format_exception(error)
                printed.append(repr(error.__dict__))
            printed += [repr(p), repr(p.config), repr(p.config.as_dict()), repr(p.metrics())]
            printed.append(repr(vars(p.config)) if hasattr(p.config, "__dict__") else "")
            with pytest.raises(TypeError, match="sasl_plain_password would be in the pickle"):
                pickle.dumps(p)
    out, err = capfd.readouterr()
    everything = "\n".join([*printed, caplog.text, out, err])
    assert "refused user 'alice'" in everything
    assert secret not in everything
    assert secret.encode().hex() not in everything


# Tokens


class Provider:
    """kafka-python's shape."""

    def __init__(self, token: str = "a.token-_~+/.1==", **extensions: str) -> None:
        self._token, self._extensions = token, extensions
        self.threads: list[str] = []

    def token(self) -> str:
        self.threads.append(threading.current_thread().name)
        return self._token

    def extensions(self) -> dict[str, str]:
        return self._extensions


class AsyncProvider:
    """aiokafka's shape."""

    async def token(self) -> str:
        return "a.token-_~+/.1=="


def bearer(seen: list[bytes], valid: bool = True) -> Any:
    """The broker's side of OAUTHBEARER."""

    def exchange(mechanism: str) -> Exchange:
        assert mechanism == "OAUTHBEARER"
        seen.append((yield b""))
        if not valid:
            seen.append((yield b'{"status":"invalid_token","scope":"kafka"}'))
            raise RefusedError("Authentication failed due to an invalid token")

    return exchange


@pytest.mark.parametrize(
    ("provider", "more"),
    [
        (Provider(), ""),
        (Provider(" a.token-_~+/.1==\n"), ""),
        (
            Provider(logicalCluster="lkc-1", identityPoolId="pool"),
            "\1logicalCluster=lkc-1\1identityPoolId=pool",
        ),
        (AsyncProvider(), ""),
        (lambda config: ("a.token-_~+/.1==", 1e12), ""),
        (lambda config: ("a.token-_~+/.1==", 1e12, "alice", {"a": "b"}), "\1a=b"),
    ],
)
def test_tokens_of_the_providers_that_other_clients_have(provider: Any, more: str) -> None:
    seen: list[bytes] = []
    server = SaslServer(mechanisms=("OAUTHBEARER",), own=bearer(seen))
    given = {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": provider}
    with ScriptedCluster(sasl=server, t=1) as cluster, KafkaProducer(**options(cluster, **given)) as ours:
        assert ours.send("t", b"v").get(20).offset == 0
    assert set(seen) == {f"n,,\1auth=Bearer a.token-_~+/.1=={more}\1\1".encode()}
    if isinstance(provider, Provider):
        assert set(provider.threads) == {"cyproducer-background"}


@pytest.mark.slow
def test_a_token_is_kept_by_all_connections_and_fetched_again_ahead_of_its_end() -> None:
    seen: list[bytes] = []
    calls: list[str] = []

    def provider(config: str) -> tuple[str, float]:
        calls.append(threading.current_thread().name)
        return f"token{len(calls)}", time.time() + (6 if len(calls) == 1 else 1000)

    server = SaslServer(mechanisms=("OAUTHBEARER",), own=bearer(seen))
    given = {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": provider}
    with (
        ScriptedCluster(2, sasl=server, t=2) as cluster,
        KafkaProducer(**options(cluster, **given)) as ours,
    ):
        for partition in (0, 1):
            ours.send("t", b"v", partition=partition).get(20)
        # The bootstrap connection and those to both leaders.
        assert len(seen) >= 2
        assert all(b"token1" in each for each in seen)
        assert len(calls) == 1
        # Nothing is sent: the loop itself does it.
        until(lambda: len(calls) == 2, "the next token")
        for node in cluster.nodes.values():
            node.drop_connections()
        ours.send("t", b"v", partition=0).get(20)
        assert b"token2" in seen[-1]
    assert len(calls) == 2
    assert set(calls) == {"cyproducer-background"}


@pytest.mark.parametrize("says_why", [True, False])
def test_a_refused_token_is_not_used_for_the_next_connection(says_why: bool) -> None:
    calls: list[str] = []

    def provider(config: str) -> tuple[str, float]:
        calls.append(config)
        return f"token{len(calls)}", time.time() + 1000

    def exchange(mechanism: str) -> Exchange:
        if b"token1" in (yield b""):
            # RFC 7628's error, or Kafka's at once.
            if says_why:
                yield b'{"status":"invalid_token"}'
            raise RefusedError("invalid_token")

    server = SaslServer(mechanisms=("OAUTHBEARER",), own=exchange)
    given = {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": provider}
    with (
        ScriptedCluster(sasl=server, t=1) as cluster,
        KafkaProducer(**options(cluster, authentication_backoff_ms=50, **given)) as ours,
    ):
        with pytest.raises(SaslAuthenticationFailedError, match="invalid_token"):
            ours.send("t", b"v").get(20)
        until(lambda: ours.bootstrap_connected(), "the connection")
    assert len(calls) == 2


def test_a_token_that_the_broker_refuses() -> None:
    seen: list[bytes] = []
    server = SaslServer(mechanisms=("OAUTHBEARER",), own=bearer(seen, valid=False))
    given = {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Provider("geheim")}
    problem = "by OAUTHBEARER: Authentication failed due to an invalid token"
    text = str(refused(server, SaslAuthenticationFailedError, problem, **given))
    assert seen[1] == b"\1"
    assert "the broker's reason is status 'invalid_token', scope 'kafka'" in text
    assert "geheim" not in text


@pytest.mark.parametrize(
    ("provider", "problem"),
    [
        (Provider(""), "no bearer token"),
        (Provider("geheim geheim"), "no bearer token"),
        (Provider("geheim\1auth=Bearer x"), "no bearer token"),
        (Provider(auth="x"), "invalid extension 'auth'"),
        (Provider(**{"a b": "x"}), "invalid extension 'a b'"),
        (Provider(a="x\1y"), "invalid extension 'a'"),
        (lambda config: None, "returned NoneType: it must return a string"),
        (lambda config: (), "returned NoneType: it must return a string"),
        (lambda config: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda config: b"gehe\xe9im".decode(), "UnicodeDecodeError"),
    ],
)
def test_providers_that_have_no_token(provider: Any, problem: str) -> None:
    server = SaslServer(mechanisms=("OAUTHBEARER",), own=bearer([]))
    given = {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": provider}
    error = refused(server, SaslAuthenticationFailedError, problem, **given)
    assert "geheim" not in str(error)
    assert server.tries == []


# Renewal


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_session_is_renewed_while_records_flow(mechanism: str) -> None:
    """The scripted broker refuses every other request between handshake and authentication."""
    server = SaslServer(lifetime_ms=1200)
    with ScriptedCluster(sasl=server, t=1) as cluster:
        with KafkaProducer(**options(cluster, sasl_mechanism=mechanism)) as ours:
            futures: list[RecordFuture] = []
            while len(server.tries) < 5:
                futures.append(ours.send("t", b"%d" % len(futures)))
                if len(futures) % 100 == 0:
                    futures[-1].get(20)
            assert [future.get(20).offset for future in futures] == list(range(len(futures)))
        connections = cluster.nodes[1].connections
        # The bootstrap connection, and the one that carried the records.
        assert len(connections) <= 2


@pytest.mark.slow
def test_requests_before_the_renewal_are_answered_first() -> None:
    server = SaslServer(lifetime_ms=1200)
    with ScriptedCluster(sasl=server, t=1) as cluster, KafkaProducer(**options(cluster)) as ours:
        ours.send("t", b"first").get(20)
        hold = threading.Event()
        cluster.act(PRODUCE, Act(hold=hold))
        before = len(cluster.received(SASL_HANDSHAKE))
        future = ours.send("t", b"held")
        cluster.wait_for(lambda: len(cluster.received(SASL_HANDSHAKE)) > before)
        later = ours.send("t", b"later")
        hold.set()
        assert (future.get(20).offset, later.get(20).offset) == (1, 2)


@pytest.mark.slow
def test_a_renewal_that_is_refused_loses_no_record() -> None:
    server = SaslServer(lifetime_ms=1200)
    with (
        ScriptedCluster(sasl=server, t=1) as cluster,
        KafkaProducer(**options(cluster, authentication_backoff_ms=100)) as ours,
    ):
        ours.send("t", b"0").get(20)
        server.users.clear()
        tries = len(server.tries)
        until(lambda: len(server.tries) > tries, "the renewal")
        future = ours.send("t", b"1")
        server.users["alice"] = PASSWORD
        assert future.get(20).offset == 1


@pytest.mark.slow
def test_a_renewal_that_is_refused_does_not_fail_records_without_metadata() -> None:
    server = SaslServer(lifetime_ms=1200)
    with (
        ScriptedCluster(sasl=server, t=1, u=1) as cluster,
        KafkaProducer(**options(cluster, authentication_backoff_ms=100)) as ours,
    ):
        ours.send("t", b"0").get(20)
        server.users.clear()
        hold = threading.Event()
        before = len(cluster.received(SASL_AUTHENTICATE))
        cluster.act(SASL_AUTHENTICATE, Act(hold=hold))
        cluster.wait_for_requests(SASL_AUTHENTICATE, before + 1)
        future = ours.send("u", b"1")
        until(lambda: ours._runtime.accumulator.parked_records, "the record without metadata")
        server.users["alice"] = PASSWORD
        hold.set()
        assert future.get(20).offset == 0


class Renewal:
    """A session of 10 s that is renewed by ``Connector._renew``, with tasks that the test ends."""

    def __init__(self) -> None:
        self.held: list[bool] = []
        self.sent: list[str] = []
        self.tasks: list[Task[Any]] = []
        self.authentication = Authentication(
            ProducerConfig(sasl_mechanism="PLAIN"),
            "broker:9092",
            self._converse,
            cast(Background, SimpleNamespace(start=self._start)),
            lambda: 0.5,
            self.sent.append,
            lambda message: None,
        )
        self.authentication.renew_at_ms, self.authentication.ends_at_ms = 9_000.0, 10_000.0
        self._connector = Connector.__new__(Connector)
        self._connector._config = ProducerConfig(request_timeout_ms=500)
        self._connector._log = Log("cyproducer")
        hold = lambda connection, on: self.held.append(on)  # noqa: E731
        self._connector._loop = cast(Loop, SimpleNamespace(hold=hold))

    def _converse(self) -> Conversation:
        yield Compute(lambda: None)
        yield Send(b"a token")

    def _start(self, function: object) -> Task[Any]:
        self.tasks.append(Task())
        return self.tasks[-1]

    def at(self, now_ms: float) -> float:
        """Returns when the next step is due."""
        connection = cast(Connection, SimpleNamespace(ready=True, where="broker:9092"))
        return self._connector._renew(connection, self.authentication, now_ms)


def test_fetching_credentials_holds_nothing_up_before_the_session_ends() -> None:
    renewal = Renewal()
    assert renewal.at(8_999) == 9_000
    assert renewal.tasks == []
    # The task runs; the end of the session is the next event.
    assert renewal.at(9_000) == 10_000
    assert (len(renewal.tasks), renewal.held, renewal.sent) == (1, [], [])
    renewal.tasks[0].done = True
    renewal.at(9_500)
    # The request itself holds the connection.
    assert (renewal.held, renewal.sent) == ([], ["PLAIN"])


def test_credentials_that_fail_are_fetched_again_while_the_session_lasts() -> None:
    renewal = Renewal()
    renewal.at(9_000)
    renewal.tasks[0].error, renewal.tasks[0].done = OSError("the vault is closed"), True
    assert renewal.at(9_100) == 9_325
    assert renewal.at(9_325) == 10_000
    assert (len(renewal.tasks), renewal.held) == (2, [])
    renewal.tasks[1].error, renewal.tasks[1].done = OSError("the vault is closed"), True
    with pytest.raises(SaslAuthenticationFailedError, match="the vault is closed"):
        renewal.at(10_000)


@pytest.mark.parametrize("refuses", [False, True])
def test_a_token_that_is_still_due_after_fetching_is_not_fetched_at_once(refuses: bool) -> None:
    """A connection's thread calls the provider, which takes long; or it raises what is no ``Exception``."""
    clock = ManualClock(unix_ms=1_700_000_000_000)
    calls, goes_on = threading.Semaphore(0), threading.Event()

    def provider(config: str) -> tuple[str, float]:
        if clock.unix_ms() > 1_700_000_000_000:
            calls.release()
            if refuses:
                raise asyncio.CancelledError
            assert goes_on.wait(30)
        return "a", 1_700_000_100

    tokens = Tokens(provider, clock, lambda: 0.0)
    tokens.current()
    clock.advance_ms(85_000)
    clock.set_unix_ms(1_700_000_085_000)
    connector = Connector.__new__(Connector)
    connector._tokens, connector._fetch, connector._fetch_from_ms = tokens, None, -math.inf
    connector.background = Background(lambda: None)
    connector.any_ready = lambda: True  # type: ignore[method-assign]
    began_ms = clock.monotonic_ns() / 1e6
    connection = threading.Thread(target=tokens.current)
    if not refuses:
        connection.start()
        assert calls.acquire(timeout=30)
    assert connector._fetch_token(began_ms) == math.inf
    fetch = connector._fetch
    assert fetch is not None
    until(lambda: fetch.done, "the call")
    assert fetch.error is None
    assert connector._fetch_token(began_ms) >= began_ms + RETRY_CREDENTIALS_MS
    assert connector._fetch is None
    if not refuses:
        assert connector._fetch_token(began_ms + RETRY_CREDENTIALS_MS) == math.inf
        goes_on.set()
        connection.join(30)


def test_a_session_that_ended_holds_the_connection_for_the_request_timeout() -> None:
    renewal = Renewal()
    renewal.at(9_000)
    assert renewal.at(10_000) == 10_500
    assert renewal.held == [True]
    assert renewal.at(10_499) == 10_500
    with pytest.raises(
        KafkaTimeoutError,
        match="its SASL session expired 500 ms ago, and it still waits for the credentials for",
    ):
        renewal.at(10_500)


def test_credentials_of_a_short_session_get_the_request_timeout_too() -> None:
    """A session that ends before it may be renewed, as a broker refuses that within a second."""
    renewal = Renewal()
    renewal.authentication._done_ms = 10_000 - 300
    renewal.authentication._first = Hidden(b"the first token")
    assert renewal.at(10_000) == 10_750
    assert renewal.at(10_600) == 10_750
    assert renewal.at(10_750) == 11_250
    assert (len(renewal.tasks), set(renewal.held)) == (1, {True})
    with pytest.raises(KafkaTimeoutError, match="its SASL session expired 1250 ms ago"):
        renewal.at(11_250)


@pytest.mark.slow
def test_credentials_that_do_not_come_end_the_connection_after_the_request_timeout() -> None:
    calls: list[int] = []
    go_on = threading.Event()

    def password() -> str:
        calls.append(1)
        # Both connections have authenticated: the bootstrap one, and the broker's.
        if len(calls) == 3:
            go_on.wait(30)
        return PASSWORD

    server = SaslServer(lifetime_ms=1500)
    with (
        ScriptedCluster(sasl=server, t=1) as cluster,
        KafkaProducer(**options(cluster, sasl_plain_password=password, request_timeout_ms=500)) as ours,
    ):
        ours.send("t", b"0").get(20)
        until(lambda: len(calls) >= 3, "the renewal")
        until(lambda: cluster.nodes[1].connections[-2].closed, "the end of the connection")
        assert ours.send("t", b"1").get(20).offset == 1
        go_on.set()


@pytest.mark.slow
@pytest.mark.parametrize("key", [API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE])
def test_a_response_before_the_authentication_is_short(key: int) -> None:
    """Not yet authenticated servers cannot make this client keep megabytes."""
    with ScriptedCluster(sasl=SaslServer(), t=1) as cluster:
        cluster.script = lambda received: (
            Act(raw=struct.pack(">i", 65_537) + bytes(1000)) if received.api_key == key else None
        )
        with (
            KafkaProducer(**options(cluster, max_block_ms=3000, reconnect_backoff_max_ms=50)) as ours,
            pytest.raises(KafkaTimeoutError, match="response of 65537 bytes; allowed are 4 to 65536 before"),
        ):
            ours.send("t", b"v").get(20)


@pytest.mark.parametrize(
    ("node_id", "proxy", "name"),
    [
        # The canonical name, if client_dns_lookup asks for it: else both names are the same.
        (-1, None, "looked.up"),
        (-1, "socks5://proxy:1080", "configured"),
        # What was looked up is what broker_address returned.
        (1, None, "advertised"),
        (1, "socks5://proxy:1080", "advertised"),
    ],
)
def test_the_name_by_which_a_mechanism_knows_the_broker(node_id: int, proxy: str | None, name: str) -> None:
    connector = Connector.__new__(Connector)
    connector._proxy = parse_proxy(proxy) if proxy else None
    connector.states = Connections(lambda: 0.5)
    connector.states.add(-1, "configured", 9092, bootstrap=True)
    connector.states.add(1, "advertised", 9092)
    address = Address("looked.up", socket.AF_INET, ("127.0.0.1", 9092))
    connection = SimpleNamespace(node_id=node_id, handshake=SimpleNamespace(address=address))
    assert connector._broker_name(cast(Connection, connection)) == name
