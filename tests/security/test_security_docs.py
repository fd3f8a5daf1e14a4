"""The programs in ``docs/security.md`` run as they are printed, but for addresses and paths."""

import re
import ssl
from pathlib import Path

import pytest

from tests.network.scripted_broker import ScriptedCluster
from tests.network.scripted_sasl import Exchange, SaslServer
from tools.harness.tls import Authority, chain_pem, key_pem

DOCS = Path(__file__).parents[2] / "docs" / "security.md"
#: Those with Kerberos run in ``tests/integration/test_gssapi.py``.
PROGRAMS = [
    each for each in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL) if "GSSAPI" not in each
]


def token_exchange(mechanism: str) -> Exchange:
    assert (yield b"") == b"n,,\1auth=Bearer a.token\1\1"


def test_there_are_programs() -> None:
    assert len(PROGRAMS) == 7


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_sends_its_record(program: str, tmp_path: Path) -> None:
    authority = Authority()
    authority.file(tmp_path)
    mine = authority.issue("client")
    (tmp_path / "client.pem").write_text(chain_pem(mine))
    (tmp_path / "client.key").write_text(key_pem(mine, "a secret"))
    (tmp_path / "client.password").write_text("a secret\n")
    (tmp_path / "alice.password").write_text("a secret\n")
    (tmp_path / "token").write_text("a.token\n")
    server = authority.server()
    if "ssl_certfile" in program:
        server.verify_mode = ssl.CERT_REQUIRED
        authority.ca.configure_trust(server)
    sasl = None
    if "SASL_SSL" in program:
        sasl = SaslServer({"alice": "a secret"}, ("SCRAM-SHA-512", "OAUTHBEARER"))
        sasl.own = token_exchange if "OAUTHBEARER" in program else None
    with ScriptedCluster(tls=server, sasl=sasl, orders=1) as cluster:
        address = cluster.nodes[1].address
        names: dict[str, object] = {}
        exec(program.replace("broker.example:9093", address).replace("/etc/kafka", str(tmp_path)), names)
        names["producer"].close()  # type: ignore[attr-defined]
        (value,) = re.findall(r'send\("orders", b"(.*)"\)', program)
        (record,) = cluster.topics["orders"].partitions[0].records
        assert record.value == value.encode()
