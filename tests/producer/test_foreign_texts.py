"""Texts of brokers, other servers and files: printable wherever they are shown.

A new place is one more function with ``@place``, or an entry of ``PLACES``. It lets the text through the
product and returns what it has got to see beside the log, stdout and stderr: exceptions and texts.
"""

import json
import logging
import struct
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cyproducer import KafkaProducer, errors
from cyproducer.base.log import Log
from cyproducer.base.text import MOST_TEXT, printable
from cyproducer.base.user_thread import user_thread
from cyproducer.cli.main import main
from cyproducer.config import ProducerConfig
from cyproducer.config.option_kinds import Secret
from cyproducer.config.proxy import Proxy
from cyproducer.control.coordinator import refusal
from cyproducer.net.authentication import Authentication
from cyproducer.net.proxy import ProxyStage
from cyproducer.security import tls_errors
from cyproducer.security.oidc import OidcTokens
from cyproducer.security.scram import Scram
from cyproducer.spark.exactly_once.driver import _some
from cyproducer.spark.summary import WriteSummary, WrittenRange, WrittenTransaction
from cyproducer.wire import protocol
from cyproducer.wire.messages import CLIENT
from cyproducer.wire.schema import Struct
from tests.scripted.odd_servers import odd_server
from tests.scripted.scripted_broker import FIND_COORDINATOR, LIST_TRANSACTIONS, PRODUCE, ScriptedCluster
from tests.scripted.scripted_model import Act, Answers
from tests.scripted.scripted_sasl import SaslServer
from tools.harness.reference_records import PartitionResponse
from tools.harness.rig import Rig
from tools.harness.token_server import Answer, TokenServer

pytestmark = pytest.mark.timeout(60)

HOSTILE = "gr\u00fcn\x1b[2J\x1b]0;title\x07\r\nforged\x85line\u202e\u2028\x7f"
ESCAPED = "gr\u00fcn" r"\x1b[2J\x1b]0;title\x07\r\nforged\x85line\u202e\u2028\x7f"
INVALID_RECORD, NOT_AUTHORIZED = 87, 53
QUICK: dict[str, Any] = {
    "max_block_ms": 300,
    "request_timeout_ms": 200,
    "delivery_timeout_ms": 300,
    "bootstrap_timeout_ms": 300,
    "linger_ms": 0,
    "reconnect_backoff_ms": 10,
    "enable_idempotence": False,
}
TRANSACTIONAL = {"transactional_id": "tx", "enable_idempotence": True, "transaction_timeout_ms": 200}

Shown = list[object]
Place = Callable[[Path], Shown]
PLACES: dict[str, Place] = {}


def place(function: Place) -> Place:
    PLACES[function.__name__] = function
    return function


def caught(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("where", PLACES)
def test_what_is_shown_is_printable(
    where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    found = PLACES[where](tmp_path)
    user_thread.drain(5)
    output = capsys.readouterr()
    shown = [record.getMessage() for record in caplog.records]
    for each in found:
        shown += _texts_of(each) if isinstance(each, BaseException) else [str(each)]
    # The lines of both streams, as a terminal finds them; a message is one line.
    lines = [*f"{output.out}{output.err}".split("\n"), *shown]
    for line in lines:
        assert line.isprintable(), ascii(line)
        assert not line.startswith(("forged", "line")), line
    # In full, or its beginning where a text is cut.
    assert any(ESCAPED in line for line in lines), lines


def _texts_of(error: BaseException) -> list[str]:
    """The text of an exception, and the lines of its traceback: without the frames' lines of code."""
    return [str(error), *"".join(traceback.format_exception_only(error)).removesuffix("\n").split("\n")] + [
        text
        for cause in (error.__cause__, error.__context__)
        if cause is not None
        for text in _texts_of(cause)
    ]


# Brokers


def producer(cluster: ScriptedCluster, **more: Any) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **(QUICK | more))


@place
def the_host_in_metadata(_: Path) -> Shown:
    with ScriptedCluster(t=1) as cluster:
        cluster.advertised[1] = (HOSTILE, 9092)
        with producer(cluster) as ours:
            return [caught(lambda: ours.send("t", b"v").get(20))]


@place
def the_host_of_a_leader(_: Path) -> Shown:
    host = HOSTILE.encode()
    field = b"\x02" + struct.pack(">i", 1) + bytes([len(host) + 1]) + host + struct.pack(">i", 9092) + b"\0\0"
    return list(protocol.decode_node_endpoints(field)[0])


def refused(**answer: Any) -> Shown:
    """What a record's future has got."""

    def edit(_: Answers) -> Answers:
        return [(key, [PartitionResponse(0, INVALID_RECORD, -1, **answer)]) for key, _ in _]

    with ScriptedCluster(t=1) as cluster:
        cluster.act(PRODUCE, Act(edit=edit, append=False))
        with producer(cluster) as ours:
            return [caught(lambda: ours.send("t", b"v").get(20))]


PLACES.update(
    the_message_for_a_batch=lambda _: refused(error_message=HOSTILE),
    the_message_for_a_record=lambda _: refused(record_errors=[(0, HOSTILE)]),
)


@place
def the_message_with_which_a_batch_is_sent_again(_: Path) -> Shown:
    with ScriptedCluster(t=1) as cluster:
        cluster.act(PRODUCE, Act(error=7, message=HOSTILE, append=False))
        with producer(cluster, retries=5, retry_backoff_ms=1, delivery_timeout_ms=5000) as ours:
            return [ours.send("t", b"v").get(20)]


@place
def the_message_of_find_coordinator(_: Path) -> Shown:
    with ScriptedCluster(t=1) as cluster:
        cluster.act(FIND_COORDINATOR, Act(error=NOT_AUTHORIZED, message=HOSTILE))
        with producer(cluster, **TRANSACTIONAL) as ours:
            return [caught(ours.init_transactions)]


@place
def the_host_of_a_coordinator(_: Path) -> Shown:
    with ScriptedCluster(2, t=1) as cluster:
        cluster.advertised = {1: (HOSTILE, 9092), 2: (HOSTILE, 9092)}
        with producer(cluster, **TRANSACTIONAL) as ours:
            return [caught(ours.init_transactions)]


@place
def the_message_of_an_answer_to_a_question(_: Path) -> Shown:
    return [refusal(NOT_AUTHORIZED, "CreateTopics", HOSTILE)]


@place
def the_mechanisms_of_a_broker(_: Path) -> Shown:
    given = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
    credentials = {"sasl_plain_username": "alice", "sasl_plain_password": "secret"}
    with ScriptedCluster(sasl=SaslServer(mechanisms=(HOSTILE,)), t=1) as cluster:
        ours = producer(cluster, **given, **credentials)
        error = caught(lambda: ours.wait_ready(5))
        ours.close(0)
        return [error]


@place
def the_message_of_a_refused_user(_: Path) -> Shown:
    config = ProducerConfig(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username="a",
        sasl_plain_password="p",
    )
    nothing: Any = None
    of = Authentication(config, "broker", nothing, nothing, nothing, nothing, nothing)
    return [of._refused(SimpleNamespace(error_code=58, error_message=HOSTILE))]  # type: ignore[arg-type]


@place
def the_error_of_scram(_: Path) -> Shown:
    return [caught(lambda: Scram("SCRAM-SHA-256", "u", Secret("p")).read_first(f"e={HOSTILE}".encode()))]


# Other servers


@place
def the_status_of_a_proxy(_: Path) -> Shown:
    import socket

    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        stage = ProxyStage(Proxy("http", "proxy", 8080, None, Secret("")), "broker", 9092)
        stage.step(ours)
        theirs.sendall(
            f"HTTP/1.1 503 {HOSTILE}".replace("\r\n", "\n").encode("latin-1", "ignore") + b"\r\n\r\n"
        )
        error = caught(lambda: stage.step(ours))
    kept = HOSTILE.replace("\r\n", "\n").encode("latin-1", "ignore").decode("latin-1")
    assert printable(kept) in str(error)
    return [error, ESCAPED]


def tokens(url: str) -> OidcTokens:
    return OidcTokens(
        ProducerConfig(
            security_protocol="SASL_SSL",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauthbearer_token_endpoint_url=url,
            sasl_oauthbearer_client_credentials_client_id="i",
            sasl_oauthbearer_client_credentials_client_secret="s",
        ),
        sleep=lambda _: None,
    )


@place
def the_answer_of_a_token_endpoint(_: Path) -> Shown:
    body = {"error": "invalid_client", "error_description": HOSTILE}
    with TokenServer() as server:
        server.answer = lambda _: Answer(401, json.dumps(body).encode())
        return [caught(tokens(server.url).token)]


@place
def the_status_line_of_a_token_endpoint(_: Path) -> Shown:
    def answer(peer: Any) -> None:
        peer.recv(10000)
        peer.sendall(b"\x1b[2J\x07 forged\r\n\r\n")

    monotonic = iter(range(0, 10000, 9))
    with odd_server(answer) as address, pytest.MonkeyPatch.context() as patch:
        patch.setattr("cyproducer.security.oidc.monotonic_s", lambda: float(next(monotonic)))
        error = caught(tokens(f"http://{address}/token").token)
    assert r"\x1b[2J\x07 forged" in str(error)
    assert error.__cause__ is None
    assert error.__suppress_context__
    error.__context__ = None
    return [error, ESCAPED]


@place
def the_names_of_a_certificate(_: Path) -> Shown:
    import ssl

    names = {
        "issuer": ((("commonName", HOSTILE),),),
        "subjectAltName": (("DNS", HOSTILE),),
    }
    chain = SimpleNamespace(get_unverified_chain=lambda: [SimpleNamespace(get_info=lambda: names)])
    texts: Shown = []
    for code in (10, 18, 19, 20, 23, 3, 62, 99):
        error = ssl.SSLCertVerificationError()
        error.verify_code, error.verify_message = code, "no"
        connection = SimpleNamespace(_sslobj=chain)
        texts.append(tls_errors.explain(error, "broker", "broker", ProducerConfig(), connection))
    return texts


# The command line


def command(*arguments: str) -> Shown:
    try:
        return [main(arguments)]
    except SystemExit as ended:
        return [ended.code]


@place
def the_error_of_a_record_of_a_command(path: Path) -> Shown:
    file = path / "lines"
    file.write_bytes(b"line\n")

    def edit(answers: Answers) -> Answers:
        answer = PartitionResponse(0, INVALID_RECORD, -1, error_message=HOSTILE)
        return [(key, [answer]) for key, _ in answers]

    with ScriptedCluster(t=1) as cluster:
        cluster.act(PRODUCE, Act(edit=edit, append=False))
        return command("produce", "-b", cluster.bootstrap_servers[0], "-t", "t", str(file))


@place
def the_host_of_a_broker_of_a_command(path: Path) -> Shown:
    file = path / "lines"
    file.write_bytes(b"line\n")
    with ScriptedCluster(t=1) as cluster:
        cluster.advertised[1] = (HOSTILE, 9092)
        given = [f"-X{name}={value}" for name, value in QUICK.items()]
        return command("produce", "-b", cluster.bootstrap_servers[0], *given, "-t", "t", str(file))


def transactions(action: str, *more: str) -> Shown:
    with ScriptedCluster(t=1) as cluster:
        with cluster.changed:
            known = cluster.coordinator.of(HOSTILE)
            known.state, known.start_time_ms, known.partitions = "Ongoing", 1, [(HOSTILE, 0)]
        # Without patterns, in which a dot is no line break.
        cluster.nodes[1].versions[LIST_TRANSACTIONS] = (0, 1)
        return command("transactions", action, "-b", cluster.bootstrap_servers[0], *more)


PLACES.update(
    the_ids_of_a_list=lambda _: transactions("list"),
    a_described_transaction=lambda _: transactions("describe", HOSTILE),
    the_ids_of_transactions_to_abort=lambda _: transactions(
        "abort", "--prefix", "g", "--older-than", "0", "--dry-run"
    ),
)


def test_an_id_in_json_is_still_json(capsys: pytest.CaptureFixture[str]) -> None:
    transactions("list", "--json")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.isprintable()
    assert json.loads(line)["transactional_id"] == HOSTILE


def with_properties(path: Path, lines: str) -> Shown:
    file = path / "properties"
    java = "".join(f"\\u{ord(each):04x}" for each in HOSTILE)
    file.write_text(lines.format(java), encoding="ascii")
    return command("produce", "--command-config", str(file), "-b", "localhost:1", "-t", "t")


PLACES.update(
    an_unknown_name_of_a_properties_file=lambda path: with_properties(path, "{0}=1\nlinger.ms=x\n"),
    a_value_of_a_properties_file=lambda path: with_properties(path, "client.id={0}\nlinger.ms={0}\n"),
)


@place
def the_client_id_of_a_configuration(_: Path) -> Shown:
    config = ProducerConfig(client_id=HOSTILE, enable_idempotence=False)
    Log("cyproducer", config.client_id).error("text")
    return [caught(lambda: ProducerConfig({"client_id": HOSTILE, "linger_ms": HOSTILE}))]


@place
def a_file_of_prepared_transactions(path: Path) -> Shown:
    file = path / "prepared"
    file.write_text(json.dumps({HOSTILE: 1}))
    return command("transactions", "commit", "-b", "localhost:1", str(file))


# Spark


@place
def the_names_of_a_summary(_: Path) -> Shown:
    written = WrittenRange(HOSTILE, 0, 1, 2, 2)
    return [WriteSummary(ranges=(written,)), WriteSummary(transactions=(WrittenTransaction(HOSTILE, 1, 2),))]


@place
def the_ids_of_open_transactions(_: Path) -> Shown:
    return [_some([HOSTILE, "tx"])]


# Everything


@place
def any_error_of_this_package(_: Path) -> Shown:
    return [
        errors.KafkaError(HOSTILE),
        errors.for_code(NOT_AUTHORIZED)(HOSTILE),
        errors.for_code(12345)(HOSTILE),
        errors.RecordTooLargeError(HOSTILE),
    ]


@place
def any_log_line_of_the_sender(_: Path) -> Shown:
    log = Log("cyproducer")
    log.warning("%s", HOSTILE)
    log.info(HOSTILE)
    with Rig({"t": [1]}):
        pass
    return []


def test_letters_of_all_languages_stay() -> None:
    text = "Grüße, 東京, Ω, «да», 🎉"
    assert printable(text) is text
    assert str(errors.KafkaError(text)) == f"KafkaError: {text}"


def test_a_text_is_escaped_once_and_cut_before() -> None:
    assert printable(HOSTILE) == ESCAPED
    assert printable(ESCAPED) == ESCAPED
    assert printable("\n" * 1000, MOST_TEXT) == r"\n" * MOST_TEXT
    assert printable("\ud800") == r"\ud800"


IDENTIFIERS = {
    "finalized_features.name",
    "supported_features.name",
    "results_by_topic_v3_and_below.name",
    "topics.name",
    "coordinators.key",
    "transaction_states.transactional_id",
    "transaction_states.topics.topic",
    "responses.topic",
    "topics.configs.name",
    "topics.configs.value",
    "results.configs.name",
    "results.configs.value",
    "requested_metrics",
    "results.configs.synonyms.name",
    "results.configs.synonyms.value",
    "results.configs.documentation",
    "results.resource_name",
}
"""What responses have as names that are compared and sent back, as numbers, or for nothing."""


def _strings(struct: Struct, limits: tuple[int, int], path: str = "") -> Iterator[tuple[str, str]]:
    for field in struct.fields:
        if field.versions.first > limits[1] or field.versions.last < limits[0]:
            continue
        if isinstance(field.kind, Struct):
            yield from _strings(field.kind, limits, f"{path}{field.name}.")
        elif field.kind in ("string", "text"):
            yield f"{path}{field.name}", field.kind


def test_decoders_return_printable_texts_but_for_identifiers() -> None:
    # A field that people see is declared as text.
    responses = [(api.response.root, api.versions) for api in CLIENT if api.name != "Produce"]
    found = {each for root, versions in responses for each in _strings(root, versions)}
    assert {name for name, kind in found if kind == "string"} == IDENTIFIERS
    assert not IDENTIFIERS & {name for name, kind in found if kind == "text"}
