"""Kerberos with a real KDC and a real Kafka.

The library reads its configuration from the environment, so each producer is in a program of its own.
"""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pages import programs
from tests.programs import run_to_exit
from tools.harness import sasl, tls
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.kdc import REALM, Kdc
from tools.harness.kerberos_install import KerberosUnavailableError

# The first test may have to compile gssapi.
pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(1200)]

PROGRAMS = [each for each in programs("docs/security.md") if "GSSAPI" in each]

AUTHORITY = tls.Authority()
BROKER = "kafka/127.0.0.1"
REAUTH_MS = 3000
BRIEF_S = 5
"""The life of tickets that expire within a test: longer than a session."""

KERBEROS = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI"}
SEND = """
import json, sys
from cyproducer import KafkaProducer
with KafkaProducer(**json.loads(sys.argv[1])) as ours:
    try:
        print("offset", ours.send(sys.argv[2], b"v").get(30).offset)
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    try:
        realm = Kdc(tmp_path_factory.mktemp("kdc"))
    except KerberosUnavailableError as error:
        pytest.skip(str(error))
    with realm:
        yield realm


@pytest.fixture(scope="module")
def keytab(kdc: Kdc) -> Path:
    """That of alice. Her tickets are in the credential cache, too."""
    keytab = kdc.add("alice")
    kdc.log_in("alice", keytab)
    return keytab


@pytest.fixture(scope="module")
def cluster(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    directory = tmp_path_factory.mktemp("kafka-gssapi")
    service = (kdc.add(BROKER), f"{BROKER}@{REALM}")
    nodes = KafkaCluster(
        properties={
            **sasl.kerberos_properties("KERBEROS", *service, REAUTH_MS),
            **sasl.kerberos_properties("SECURE", *service),
            **tls.broker_properties("SECURE", AUTHORITY, directory),
        },
        listeners={"KERBEROS": "SASL_PLAINTEXT", "SECURE": "SASL_SSL"},
        jvm_options=[kdc.jvm_option],
        directory=directory / "nodes",
    )
    with nodes:
        yield nodes


def send(kdc: Kdc, cluster: KafkaCluster, topic: str, cache: Path | None = None, **options: Any) -> str:
    """Sends a record; returns the program's line: the offset, or the error."""
    given = KERBEROS | {"bootstrap_servers": cluster.bootstrap("KERBEROS"), **options}
    environment = kdc.environment | ({} if cache is None else {"KRB5CCNAME": f"FILE:{cache}"})
    done = run_to_exit(SEND, json.dumps(given, default=str), topic, environment=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


# Records arrive


@pytest.mark.usefixtures("keytab")
def test_with_the_credential_cache(kdc: Kdc, cluster: KafkaCluster) -> None:
    assert send(kdc, cluster, "cache").startswith("offset ")
    assert send(kdc, cluster, "cache", sasl_kerberos_principal="alice").startswith("offset ")


def test_with_a_keytab_as_in_java(kdc: Kdc, cluster: KafkaCluster, keytab: Path, tmp_path: Path) -> None:
    options = f'useKeyTab=true storeKey=true keyTab="{keytab}" principal="alice@{REALM}" serviceName="kafka"'
    jaas = {"sasl.jaas.config": f"{sasl.KRB5_MODULE} required {options};"}
    assert send(kdc, cluster, "java", tmp_path / "none", **jaas).startswith("offset ")


@pytest.mark.usefixtures("keytab")
@pytest.mark.parametrize(
    "option",
    [{"sasl_kerberos_domain_name": "127.0.0.1"}, {"sasl_kerberos_name": f"{BROKER}@{REALM}"}],
    ids=["domain name", "name"],
)
def test_a_broker_that_has_another_name_than_its_address(
    kdc: Kdc, cluster: KafkaCluster, option: dict[str, Any]
) -> None:
    by_name = cluster.bootstrap("KERBEROS").replace("127.0.0.1", "localhost")
    assert send(kdc, cluster, "named", bootstrap_servers=by_name, **option).startswith("offset ")


RENEW = """
import json, sys, time
from cyproducer import KafkaProducer
with KafkaProducer(**json.loads(sys.argv[1])) as ours:
    made = lambda: ours.metrics()["producer-metrics"]["connection-creation-total"]
    ours.send("renewed", b"first").get(30)
    before, count, end = made(), 1, time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        futures = [ours.send("renewed", bytes(100)) for _ in range(100)]
        assert [future.get(30).offset for future in futures] == list(range(count, count + 100))
        count += 100
    print("connections", made() - before)
"""


def test_sessions_and_tickets_are_renewed_under_load(kdc: Kdc, cluster: KafkaCluster) -> None:
    keytab = kdc.add("brief", f"{BRIEF_S} seconds")
    cluster.create_topic("renewed", 1)
    given = {
        **KERBEROS,
        "bootstrap_servers": cluster.bootstrap("KERBEROS"),
        "sasl_kerberos_keytab": str(keytab),
    }
    done = run_to_exit(RENEW, json.dumps(given), str(2 * BRIEF_S), environment=kdc.environment)
    assert done.stdout == "connections 0\n", done.stderr
    logins = re.findall(f"AS_REQ .*ISSUE: .*brief@{REALM} for krbtgt/", kdc.log)
    assert len(logins) >= 2


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_the_programs_in_the_documentation(
    kdc: Kdc, cluster: KafkaCluster, keytab: Path, tmp_path: Path, program: str
) -> None:
    AUTHORITY.file(tmp_path)
    (tmp_path / "alice.keytab").write_bytes(keytab.read_bytes())
    program = program.replace("broker.example:9093", cluster.bootstrap("SECURE"))
    program = program.replace("/etc/kafka", str(tmp_path)).replace("EXAMPLE.COM", REALM)
    done = run_to_exit(f"{program}\nproducer.close()\nprint('sent')", environment=kdc.environment)
    assert done.stdout == "sent\n", done.stderr


def test_there_are_programs() -> None:
    assert len(PROGRAMS) == 2


# Errors


def refused(line: str) -> str:
    """The text of an error that fails what waits, at once, and names the broker."""
    found = re.fullmatch(
        r"SaslAuthenticationFailedError .*(?:127\.0\.0\.1|localhost):\d+[^:]*(?::\d+\))?: GSSAPI: (.*)\n",
        line,
    )
    assert found is not None, line
    return found[1]


@pytest.mark.usefixtures("keytab")
def test_a_wrong_service_name(kdc: Kdc, cluster: KafkaCluster) -> None:
    text = refused(send(kdc, cluster, "t", sasl_kerberos_service_name="events"))
    assert "no ticket for 'events@127.0.0.1'" in text
    assert f"Server events/127.0.0.1@{REALM} not found in Kerberos database" in text
    assert "sasl_kerberos_service_name" in text


@pytest.mark.usefixtures("keytab")
def test_a_host_that_is_not_the_principal_s(kdc: Kdc, cluster: KafkaCluster) -> None:
    by_name = cluster.bootstrap("KERBEROS").replace("127.0.0.1", "localhost")
    text = refused(send(kdc, cluster, "t", bootstrap_servers=by_name))
    assert f"Server kafka/localhost@{REALM} not found in Kerberos database" in text
    assert "sasl_kerberos_domain_name replaces the host" in text


def test_no_tickets(kdc: Kdc, cluster: KafkaCluster, tmp_path: Path) -> None:
    text = refused(send(kdc, cluster, "t", tmp_path / "none"))
    assert f"(default cache: FILE:{tmp_path}/none); run kinit, or give sasl_kerberos_keytab" in text


def test_expired_tickets(kdc: Kdc, cluster: KafkaCluster, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    kdc.log_in("expired", kdc.add("expired", "1 second"), cache)
    # Whole seconds count.
    time.sleep(2.1)
    assert "Ticket expired; run kinit" in refused(send(kdc, cluster, "t", cache))


def test_a_keytab_that_is_not_there(kdc: Kdc, cluster: KafkaCluster) -> None:
    text = refused(send(kdc, cluster, "t", sasl_kerberos_keytab="/no/keytab"))
    assert "sasl_kerberos_keytab='/no/keytab' cannot be read: No such file or directory" in text


def test_a_keytab_of_another_principal(kdc: Kdc, cluster: KafkaCluster, keytab: Path) -> None:
    text = refused(send(kdc, cluster, "t", sasl_kerberos_keytab=keytab, sasl_kerberos_principal="bob"))
    assert f"has sasl_kerberos_keytab='{keytab}' the key of sasl_kerberos_principal='bob'?" in text


def test_a_keytab_with_an_old_key(kdc: Kdc, cluster: KafkaCluster, tmp_path: Path) -> None:
    old = tmp_path / "old.keytab"
    old.write_bytes(kdc.add("carol").read_bytes())
    # Another key.
    kdc.add("carol")
    assert "export the keytab again" in refused(send(kdc, cluster, "t", sasl_kerberos_keytab=old))


@pytest.mark.usefixtures("keytab")
def test_a_broker_without_the_key_of_its_principal(kdc: Kdc, cluster: KafkaCluster) -> None:
    kdc.add("other/127.0.0.1")
    line = send(kdc, cluster, "t", sasl_kerberos_service_name="other")
    assert re.match(r"SaslAuthenticationFailedError .*127\.0\.0\.1:\d+ refused this client by GSSAPI: ", line)
    assert line.endswith("; has its keytab the current key of 'other@127.0.0.1'?\n")


SILENT = """
import json, os, socket, sys, threading
from pathlib import Path

silent = socket.create_server(("127.0.0.1", 0))
text = Path(os.environ["KRB5_CONFIG"]).read_text()
Path(sys.argv[3]).write_text(text.replace(sys.argv[2], str(silent.getsockname()[1])))
os.environ["KRB5_CONFIG"] = sys.argv[3]

from cyproducer import KafkaProducer
options = json.loads(sys.argv[1])
plain = KafkaProducer(bootstrap_servers=options.pop("plain"))
ours = KafkaProducer(
    max_block_ms=5000,
    socket_connection_setup_timeout_ms=1000,
    socket_connection_setup_timeout_max_ms=1000,
    **options,
)
failed = []

def send():
    try:
        ours.send("t", b"v").get(40)
    except Exception as error:
        failed.append(f"{type(error).__name__} {error}")

sending = threading.Thread(target=send)
sending.start()
waiting, _ = silent.accept()
waiting.recv(1)
# The library waits for its answer now.
print("offset", [plain.send("plain", b"v", partition=0) for _ in range(100)][-1].get(40).offset)
sending.join()
print(*failed)
plain.close()
ours.close()
"""


def test_a_silent_kdc_holds_nothing_up(kdc: Kdc, cluster: KafkaCluster, keytab: Path, tmp_path: Path) -> None:
    given = {
        **KERBEROS,
        "plain": cluster.bootstrap_servers,
        "bootstrap_servers": cluster.bootstrap("KERBEROS"),
        "sasl_kerberos_keytab": str(keytab),
    }
    done = run_to_exit(
        SILENT, json.dumps(given), str(kdc.port), str(tmp_path / "krb5.conf"), environment=kdc.environment
    )
    offset, error = done.stdout.splitlines()
    assert offset == "offset 99"
    # The sender went on while the library waited: else this timeout would not have been noticed.
    assert re.match(
        r"KafkaTimeoutError .*127\.0\.0\.1:\d+: .*no completed handshake within \d+ ms, waiting for a "
        r"Kerberos ticket for 'kafka@127\.0\.0\.1' from the KDC",
        error,
    )


def test_a_kdc_that_is_gone(kdc: Kdc, cluster: KafkaCluster, keytab: Path) -> None:
    kdc.stop()
    try:
        line = send(kdc, cluster, "t", sasl_kerberos_keytab=keytab, max_block_ms=5000)
    finally:
        kdc.start()
    assert line.startswith("KafkaTimeoutError")
    assert f"Cannot contact any KDC for realm '{REALM}'; is the KDC of krb5.conf reachable?" in line
