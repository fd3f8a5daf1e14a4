"""TLS of an embedded cluster: certificates, contexts, and the layer under its connections.

After a failed handshake the layer sends the alert before it closes the connection: clients learn that they
need a certificate.

Owns generating a certificate for 127.0.0.1 and localhost if none is given: with the package trustme, or
otherwise with the command ``openssl``.
"""

import contextlib
import importlib
import shutil
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from cyproducer.testing.broker.loop import Protocol, Transport

SECONDS: Final = 30
_CHUNK: Final = 1 << 16
_REQUEST: Final = """\
[req]
distinguished_name = name
x509_extensions = extensions
prompt = no
[name]
CN = localhost
O = cyproducer embedded broker
[extensions]
subjectAltName = DNS:localhost, IP:127.0.0.1
basicConstraints = critical, CA:TRUE
"""


class Files(NamedTuple):
    """Paths of PEM files."""

    certificate: str
    key: str
    #: Clients verify the certificate with this file.
    authority: str


class NoCertificate(RuntimeError):
    """A certificate cannot be generated on this machine; the message says what to do."""


def make(folder: Path) -> Files:
    """Generates a certificate in ``folder``. Raises ``NoCertificate``."""
    files = Files(*(str(folder / name) for name in ("server.pem", "server.key", "ca.pem")))
    try:
        trustme: Any = importlib.import_module("trustme")
    except ImportError:
        _with_openssl(folder, files)
        return files
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1", common_name="localhost")
    authority.cert_pem.write_to_path(files.authority)
    issued.private_key_pem.write_to_path(files.key)
    for blob in issued.cert_chain_pems:
        blob.write_to_path(files.certificate, append=True)
    return files


def _with_openssl(folder: Path, files: Files) -> None:
    command = shutil.which("openssl")
    if command is None:
        raise NoCertificate(
            "making a certificate needs the package trustme (pip install trustme) or the command openssl: "
            "install one, or give ssl_certfile and ssl_keyfile"
        )
    request = folder / "request.cnf"
    request.write_text(_REQUEST)
    made = subprocess.run(
        [
            command, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650",
            "-config", str(request), "-keyout", files.key, "-out", files.certificate,
        ],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )  # fmt: skip
    if made.returncode:
        raise NoCertificate(f"openssl could not make a certificate: {made.stderr.strip()[-200:]}")
    shutil.copyfile(files.certificate, files.authority)


def context(certificate: str, key: str, client_authority: str | None) -> ssl.SSLContext:
    """Returns a listener's context. With ``client_authority``, clients need a certificate that it signed."""
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.load_cert_chain(certificate, key)
    if client_authority is not None:
        made.load_verify_locations(client_authority)
        made.verify_mode = ssl.CERT_REQUIRED
    return made


class TlsConnection(Protocol, Transport):
    """The server's end of a TLS connection: the protocol of the socket below, and the transport of ``inner``,
    which is connected once the handshake is done."""

    def __init__(self, context: ssl.SSLContext, inner: Protocol) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._inner = inner
        self._below = Transport()
        self._is_open = False

    def connection_made(self, transport: Transport) -> None:
        self._below, self.peer = transport, transport.peer

    def data_received(self, data: bytes) -> None:
        self._incoming.write(data)
        try:
            if not self._is_open:
                self._tls.do_handshake()
                self._is_open = True
                self._inner.connection_made(self)
            while plain := self._tls.read(_CHUNK):
                self._inner.data_received(plain)
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError:
            # Also the alert that says why.
            self._flush()
            self._below.close()
        else:
            # The client has ended the session.
            self._below.close()

    def connection_lost(self) -> None:
        if self._is_open:
            self._inner.connection_lost()

    def write(self, data: bytes) -> None:
        if not self._below.is_closing:
            self._tls.write(data)
            self._flush()

    def _flush(self) -> None:
        if data := self._outgoing.read():
            self._below.write(data)

    def close(self) -> None:
        """Ends the session, and closes the connection once everything is sent."""
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        self._flush()
        self._below.close()

    def abort(self) -> None:
        self._below.abort()

    def peer_certificate(self) -> Mapping[str, Any] | None:
        return self._tls.getpeercert()
