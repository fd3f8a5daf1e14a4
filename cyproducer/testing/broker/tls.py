"""Certificates for an embedded cluster, and its TLS contexts.

Owns generating a certificate for 127.0.0.1 and localhost if none is given: with the package trustme, or
otherwise with the command ``openssl``.
"""

import importlib
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any, Final, NamedTuple

SECONDS: Final = 30
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
