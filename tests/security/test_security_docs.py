"""The programs in ``docs/security.md`` run as they are printed, but for addresses and paths."""

import re
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.network.scripted_broker import ScriptedCluster
from tests.network.scripted_sasl import Exchange, SaslServer
from tools.harness.tls import Authority, chain_pem, key_pem
from tools.harness.token_server import TokenServer

DOCS = Path(__file__).parents[2] / "docs" / "security.md"
#: Those with Kerberos run in ``tests/integration/test_gssapi.py``.
PROGRAMS = [
    each for each in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL) if "GSSAPI" not in each
]


def token_exchange(mechanism: str) -> Exchange:
    assert mechanism == "OAUTHBEARER"
    parts = (yield b"").decode().split("\1")
    assert parts[:1] == ["n,,"]
    # A token from the file, from the endpoint, or from AWS's signer.
    assert re.fullmatch(r"auth=Bearer (a\.token|\S+\.\S+\.\S+|[\w-]{400,})", parts[1])


@pytest.fixture(scope="module")
def issuer() -> Iterator[TokenServer]:
    with TokenServer() as running:
        yield running


def test_there_are_programs() -> None:
    assert len(PROGRAMS) == 9


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_sends_its_record(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, issuer: TokenServer
) -> None:
    for name, value in (("REGION", "eu-west-1"), ("ACCESS_KEY_ID", "A"), ("SECRET_ACCESS_KEY", "S")):
        monkeypatch.setenv(f"AWS_{name}", value)
    authority = Authority()
    authority.file(tmp_path)
    mine = authority.issue("client")
    (tmp_path / "client.pem").write_text(chain_pem(mine))
    (tmp_path / "client.key").write_text(key_pem(mine, "a secret"))
    (tmp_path / "client.password").write_text("a secret\n")
    (tmp_path / "alice.password").write_text("a secret\n")
    (tmp_path / "client.secret").write_text("a secret\n")
    (tmp_path / "token").write_text("a.token\n")
    server = authority.server()
    if "ssl_certfile" in program:
        server.verify_mode = ssl.CERT_REQUIRED
        authority.ca.configure_trust(server)
    sasl = None
    if "SASL_SSL" in program:
        sasl = SaslServer({"alice": "a secret"}, ("SCRAM-SHA-512", "OAUTHBEARER"))
        sasl.own = token_exchange if "OAUTHBEARER" in program or "AWS_MSK" in program else None
    with ScriptedCluster(tls=server, sasl=sasl, orders=1) as cluster:
        address = cluster.nodes[1].address
        names: dict[str, object] = {}
        for printed, actual in (
            ("broker.example:9093", address),
            ("/etc/kafka", str(tmp_path)),
            ("https://issuer.example/token", issuer.url),
        ):
            program = program.replace(printed, actual)
        exec(program, names)
        names["producer"].close()  # type: ignore[attr-defined]
        (value,) = re.findall(r'send\("orders", b"(.*)"\)', program)
        (record,) = cluster.topics["orders"].partitions[0].records
        assert record.value == value.encode()
