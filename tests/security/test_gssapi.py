"""GSSAPI with a library that does as the test says. ``tests/integration/test_gssapi.py`` has the real one."""

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cyproducer import KafkaProducer
from cyproducer.config import ProducerConfig
from cyproducer.errors import KafkaConfigurationError, KafkaTimeoutError, SaslAuthenticationFailedError
from cyproducer.security.sasl import Compute, Conversation, Send
from tests.scripted.scripted_broker import ScriptedCluster
from tests.scripted.scripted_sasl import Exchange, SaslServer

BASE = 2**32 - 1765328384
NO_LAYER, INTEGRITY = b"\1\0\0\0", b"\2\0\0\0"


class GSSError(Exception):
    """As the package has it: two codes, and the texts of each."""

    def __init__(self, code: int, text: str = "what Kerberos says") -> None:
        self.maj_code, self.min_code, self.text = 1, BASE + code if code else 0, text

    def get_all_statuses(self, code: int, is_maj: bool) -> list[str]:
        assert code == (self.maj_code if is_maj else self.min_code)
        return [self.text]


class MissingCredentialsError(GSSError):
    pass


class ExpiredCredentialsError(GSSError):
    pass


class Name(SimpleNamespace):
    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text=text, kind=kind)

    def __str__(self) -> str:
        return str(self.text)


class Library(ModuleType):
    """The package, which notes what it was asked for."""

    def __init__(self) -> None:
        super().__init__("gssapi")
        self.exceptions = SimpleNamespace(
            GSSError=GSSError,
            MissingCredentialsError=MissingCredentialsError,
            ExpiredCredentialsError=ExpiredCredentialsError,
        )
        self.NameType = SimpleNamespace(hostbased_service="hostbased", kerberos_principal="principal")
        self.MechType = SimpleNamespace(kerberos="kerberos")
        self.RequirementFlag = SimpleNamespace(mutual_authentication="mutual", integrity="integrity")
        self.Name = Name
        self.credentials: list[dict[str, Any]] = []
        self.contexts: list[dict[str, Any]] = []
        self.threads: set[str] = set()
        #: Raised instead of returning credentials, each once.
        self.failures: list[GSSError] = []
        self.hangs: threading.Event | None = None

    def Credentials(self, **asked: Any) -> object:
        self.threads.add(threading.current_thread().name)
        if self.hangs is not None:
            self.hangs.wait(30)
        self.credentials.append(asked)
        if self.failures:
            raise self.failures.pop(0)
        return "credentials"

    def SecurityContext(self, **asked: Any) -> object:
        self.contexts.append(asked)
        return Context(self)


class Context:
    """Completes with the broker's answer to the first message."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.complete = False

    def step(self, token: bytes | None = None) -> bytes | None:
        self.library.threads.add(threading.current_thread().name)
        if token is None:
            return b"AP-REQ"
        if token != b"AP-REP":
            raise GSSError(41)
        self.complete = True
        return None

    def unwrap(self, message: bytes) -> SimpleNamespace:
        if not message.startswith(b"wrapped "):
            raise GSSError(0, "not wrapped")
        return SimpleNamespace(message=message.removeprefix(b"wrapped "))

    def wrap(self, message: bytes, encrypt: bool) -> SimpleNamespace:
        assert not encrypt
        return SimpleNamespace(message=b"wrapped " + message)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    found = Library()
    monkeypatch.setitem(sys.modules, "gssapi", found)
    monkeypatch.delitem(sys.modules, "cyproducer.security.gssapi", raising=False)
    ours = importlib.import_module("cyproducer.security.gssapi")
    monkeypatch.setattr(ours, "_PAUSES_S", (0.0, 0.0))
    yield found
    # It has the library above.
    sys.modules.pop("cyproducer.security.gssapi", None)


def conversation(host: str = "broker", **options: Any) -> Conversation:
    config = ProducerConfig(security_protocol="SASL_SSL", sasl_mechanism="GSSAPI", **options)
    found: Conversation = sys.modules["cyproducer.security.gssapi"].converse(config, host)
    return found


def begin(host: str = "broker", **options: Any) -> Any:
    """Makes the first call of the library; returns the first message."""
    asked = conversation(host, **options).send(None)
    assert isinstance(asked, Compute)
    return asked.function()


def talk(talking: Conversation, *replies: bytes) -> list[bytes]:
    """Answers each message with the next reply; returns the messages."""
    sent: list[bytes] = []
    left, reply = iter(replies), None
    while True:
        try:
            asked = talking.send(reply)
        except StopIteration:
            return sent
        if isinstance(asked, Compute):
            reply = asked.function()
        else:
            assert isinstance(asked, Send)
            sent.append(asked.message)
            reply = next(left)


# The messages


def test_the_messages_of_an_exchange(library: Library) -> None:
    offered = b"wrapped " + NO_LAYER
    assert talk(conversation(), b"AP-REP", offered, b"") == [b"AP-REQ", b"", b"wrapped " + NO_LAYER]
    (context,) = library.contexts
    assert context["flags"] == ["mutual", "integrity"]
    assert (context["mech"], context["creds"], context["usage"]) == ("kerberos", "credentials", "initiate")


@pytest.mark.parametrize("offered", [b"\7\0\xff\xff", b"\1\1\0\0"])
def test_a_broker_may_offer_more_than_no_security_layer(library: Library, offered: bytes) -> None:
    assert talk(conversation(), b"AP-REP", b"wrapped " + offered, b"")[2] == b"wrapped " + NO_LAYER


@pytest.mark.parametrize("offered", [INTEGRITY, b"\6\0\xff\xff", b"\1\0\0", b"\1\0\0\0\0", b""])
def test_a_broker_that_insists_on_a_security_layer(library: Library, offered: bytes) -> None:
    with pytest.raises(SaslAuthenticationFailedError, match="'kafka@broker' asks for a security layer"):
        talk(conversation(), b"AP-REP", b"wrapped " + offered)


def test_a_broker_that_ends_before_the_security_layers(library: Library) -> None:
    with pytest.raises(SaslAuthenticationFailedError, match="security layers is not valid: not wrapped"):
        talk(conversation(), b"AP-REP", b"")


@pytest.mark.parametrize("reply", [b"", b"another's"])
def test_a_broker_that_does_not_prove_who_it_is(library: Library, reply: bytes) -> None:
    with pytest.raises(
        SaslAuthenticationFailedError, match="did not prove that it is 'kafka@broker': what Kerb"
    ):
        talk(conversation(), reply)


# Names


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({}, "hostbased", "kafka@broker"),
        ({"sasl_kerberos_service_name": "events"}, "hostbased", "events@broker"),
        ({"sasl_kerberos_domain_name": "other"}, "hostbased", "kafka@other"),
        ({"sasl_kerberos_name": "a/b@R", "sasl_kerberos_domain_name": "other"}, "principal", "a/b@R"),
        ({"sasl_kerberos_name": "events@other"}, "hostbased", "events@other"),
        ({"sasl_kerberos_name": Name("a/b@R", "own")}, "own", "a/b@R"),
    ],
)
def test_the_name_of_the_broker(library: Library, options: dict[str, Any], kind: str, text: str) -> None:
    asked = conversation(**options).send(None)
    assert isinstance(asked, Compute)
    assert asked.waits_for == f"a Kerberos ticket for {text!r} from the KDC of krb5.conf"
    asked.function()
    assert library.contexts[0]["name"] == Name(text, kind)


def test_the_default_cache(library: Library) -> None:
    begin()
    (asked,) = library.credentials
    assert asked == {"name": None, "usage": "initiate", "mechs": ["kerberos"], "store": None}


def test_a_keytab_has_a_cache_in_memory_of_its_own(library: Library) -> None:
    options = {"sasl_kerberos_keytab": "/k", "sasl_kerberos_principal": "alice"}
    for given in (options, options, options | {"sasl_kerberos_principal": "bob"}):
        begin(**given)
    first, again, bobs = library.credentials
    assert first["name"] == Name("alice", "principal")
    assert first["store"]["client_keytab"] == "/k"
    assert first["store"]["ccache"].startswith("MEMORY:")
    assert first == again
    assert first["store"]["ccache"] != bobs["store"]["ccache"]


# Errors


@pytest.mark.parametrize("code", [21, 33, 34, 141, 195])
def test_what_passes_is_tried_again(library: Library, code: int) -> None:
    library.failures = [MissingCredentialsError(code), GSSError(code)]
    assert begin() == b"AP-REQ"
    library.failures = [GSSError(code)] * 3
    with pytest.raises(SaslAuthenticationFailedError, match="what Kerberos says"):
        begin()
    assert library.failures == []


@pytest.mark.parametrize(
    ("error", "options", "says"),
    [
        (
            MissingCredentialsError(141),
            {},
            "; run kinit, or give sasl_kerberos_keytab and sasl_kerberos_princ",
        ),
        (ExpiredCredentialsError(0), {}, "; run kinit, or give sasl_kerberos_keytab"),
        (GSSError(32), {}, "; run kinit, or give sasl_kerberos_keytab"),
        (GSSError(7), {}, "; the broker's principal is sasl_kerberos_service_name and its host in bootstrap"),
        (
            GSSError(7),
            {"sasl_kerberos_keytab": "/k"},
            "; the broker's principal is sasl_kerberos_service_name",
        ),
        (GSSError(6), {"sasl_kerberos_principal": "bob"}, " as 'bob': what Kerberos says; change sasl_kerb"),
        (GSSError(24), {"sasl_kerberos_keytab": "/k"}, "; its key is not the current one: export the keytab"),
        (GSSError(37), {}, "; set the clock"),
        (MissingCredentialsError(195), {"sasl_kerberos_keytab": "/no"}, "'/no' cannot be read: No such file"),
        (MissingCredentialsError(195), {"sasl_kerberos_keytab": f"FILE:{__file__}"}, "is not a keytab"),
        (MissingCredentialsError(195), {"sasl_kerberos_keytab": __file__}, "test_gssapi.py' is not a keytab"),
        (GSSError(99), {}, "'kafka@broker': what Kerberos says"),
    ],
)
def test_errors_say_what_to_change(
    library: Library, error: GSSError, options: dict[str, Any], says: str
) -> None:
    library.failures = [error] * 3
    with pytest.raises(SaslAuthenticationFailedError) as caught:
        begin(**options)
    text = str(caught.value)
    assert "no ticket for 'kafka@broker'" in text
    assert says in text


def test_a_keytab_without_the_key(library: Library, tmp_path: Path) -> None:
    keytab = tmp_path / "a.keytab"
    keytab.write_bytes(b"\5\2")
    library.failures = [MissingCredentialsError(195)] * 3
    given: dict[str, Any] = {"sasl_kerberos_keytab": keytab, "sasl_kerberos_principal": "bob"}
    with pytest.raises(SaslAuthenticationFailedError, match="the key of sasl_kerberos_principal='bob'"):
        begin(**given)


@pytest.mark.parametrize("code", [156, 220])
def test_a_kdc_that_does_not_answer_is_tried_again_by_the_next_connection(
    library: Library, code: int
) -> None:
    library.failures = [MissingCredentialsError(code)]
    with pytest.raises(KafkaTimeoutError, match=r"what Kerberos says; is the KDC of krb5\.conf reachable"):
        begin()


@pytest.mark.parametrize("missing", [ModuleNotFoundError, ImportError, OSError])
def test_without_the_package(monkeypatch: pytest.MonkeyPatch, missing: type[Exception]) -> None:
    class Absent:
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            if name == "gssapi":
                raise missing("libgssapi_krb5.so.2")

    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "gssapi", raising=False)
    with pytest.raises(KafkaConfigurationError) as caught:
        KafkaProducer(bootstrap_servers="127.0.0.1:1", security_protocol="SASL_SSL", sasl_mechanism="GSSAPI")
    text = str(caught.value)
    for part in ("pip install 'cyproducer[gssapi]'", "libkrb5-dev", f"{missing.__name__}: libgssapi_krb5"):
        assert part in text


# Whole producers


def accept(mechanism: str) -> Exchange:
    assert (yield b"") == b"AP-REQ"
    assert (yield b"AP-REP") == b""
    assert (yield b"wrapped " + NO_LAYER) == b"wrapped " + NO_LAYER


@pytest.fixture
def producer(library: Library) -> Iterator[Callable[..., KafkaProducer]]:
    """Makes producers of a scripted cluster with GSSAPI."""
    server = SaslServer(mechanisms=("GSSAPI",), own=accept)
    made: list[KafkaProducer] = []
    with ScriptedCluster(sasl=server, t=1) as cluster:
        options: dict[str, Any] = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "GSSAPI",
            "reconnect_backoff_ms": 10,
        }

        def make(**more: Any) -> KafkaProducer:
            made.append(KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **options, **more))
            return made[-1]

        yield make
        for each in made:
            each.close()


def test_no_call_of_the_library_is_on_the_senders_thread(
    library: Library, producer: Callable[..., KafkaProducer]
) -> None:
    assert producer().send("t", b"v").get(20).offset == 0
    assert library.threads == {"cyproducer-background"}


def test_the_broker_is_known_by_its_name_from_before_the_mapping(
    library: Library, producer: Callable[..., KafkaProducer]
) -> None:
    mapped: list[tuple[str, int]] = []

    def mapping(host: str, port: int) -> tuple[str, int]:
        mapped.append((host, port))
        return "localhost", port

    ours = producer(broker_address=mapping)
    assert ours.send("t", b"v").get(20).offset == 0
    assert {host for host, _ in mapped} == {"127.0.0.1"}
    assert {context["name"].text for context in library.contexts} == {"kafka@127.0.0.1"}


def test_an_error_names_the_broker(library: Library, producer: Callable[..., KafkaProducer]) -> None:
    library.failures = [GSSError(7)]
    with pytest.raises(
        SaslAuthenticationFailedError, match=r"127.0.0.1:\d+: GSSAPI: no ticket for 'kafka@127.0.0.1': what"
    ):
        producer().send("t", b"v").get(20)


def test_a_kdc_that_is_not_there_is_no_refusal(
    library: Library, producer: Callable[..., KafkaProducer]
) -> None:
    library.failures = [MissingCredentialsError(156)] * 3
    assert producer().send("t", b"v").get(20).offset == 0
    assert library.failures == []


@pytest.mark.slow
def test_a_kdc_that_is_silent_is_named(library: Library, producer: Callable[..., KafkaProducer]) -> None:
    library.hangs = threading.Event()
    ours = producer(
        max_block_ms=1500,
        socket_connection_setup_timeout_ms=200,
        socket_connection_setup_timeout_max_ms=200,
    )
    with pytest.raises(
        KafkaTimeoutError, match=r"within \d+ ms, waiting for a Kerberos ticket for 'kafka@127.0.0.1' from"
    ):
        ours.send("t", b"v").get(20)
    library.hangs.set()
