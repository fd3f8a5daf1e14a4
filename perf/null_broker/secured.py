"""Runs a null broker that clients reach with SASL_SSL only: PLAIN in the broker, and TLS in front of it.

Owns the certificates and the process that terminates TLS. Needs trustme in addition. For any one thread.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from perf.null_broker import PASSWORD, USER, NullBroker
from tools.harness.tls import Authority, chain_pem, key_pem

FRONT = Path(__file__).parent / "tls_front.py"


class SecuredBroker(NullBroker):
    """A null broker behind TLS. Arguments as for ``NullBroker``."""

    def __init__(self, brokers: int = 1, *, session_ms: int = 0, **options: Any) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="null-broker-")
        directory = Path(self._directory.name)
        authority = Authority()
        certificate = authority.issue("127.0.0.1")
        (directory / "server.pem").write_text(key_pem(certificate) + chain_pem(certificate))
        self._front = subprocess.Popen(
            [sys.executable, str(FRONT), str(directory / "server.pem"), str(brokers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._front.stdin is not None
        assert self._front.stdout is not None
        #: A client's options for this broker.
        self.client_options: dict[str, Any] = {
            "security_protocol": "SASL_SSL",
            "ssl_cafile": str(authority.file(directory)),
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": USER,
            "sasl_plain_password": PASSWORD,
        }
        try:
            self.front_ports: list[int] = json.loads(self._front.stdout.readline())
            super().__init__(brokers, advertised=self.front_ports, session_ms=session_ms, **options)
            self._front.stdin.write(json.dumps(self.ports) + "\n")
            self._front.stdin.flush()
        except BaseException:
            self._end_front()
            raise

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.front_ports)

    def close(self) -> None:
        """Ends both processes. Idempotent."""
        self._end_front()
        super().close()

    def _end_front(self) -> None:
        if self._front.stdin is not None:
            self._front.stdin.close()
        try:
            self._front.wait(5)
        except subprocess.TimeoutExpired:
            self._front.kill()
            self._front.wait()
        if self._front.stdout is not None:
            self._front.stdout.close()
        self._directory.cleanup()
