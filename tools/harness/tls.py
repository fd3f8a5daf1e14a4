"""TLS servers for tests: certificates, and the server's end of a connection.

Owns a certificate authority per `Authority`, and `TlsEnd`, an independent TLS server over any socket. Uses
Python's ``ssl`` module only.
"""

import contextlib
import io
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trustme
from cryptography.hazmat.primitives import serialization


class Authority:
    """A certificate authority, and the contexts and files of those who have certificates from it."""

    def __init__(self, name: str = "Test Authority") -> None:
        self.ca = trustme.CA(organization_name=name)

    @property
    def pem(self) -> str:
        return self.ca.cert_pem.bytes().decode()

    def issue(self, *names: str, days: int = 30, before_days: int = 1) -> trustme.LeafCert:
        """Issues a certificate for these host names; it ended if ``days`` is negative."""
        now = datetime.now(UTC)
        return self.ca.issue_cert(
            *names, not_before=now - timedelta(days=before_days), not_after=now + timedelta(days=days)
        )

    def server(self, *names: str, **validity: int) -> ssl.SSLContext:
        """A server's context, with a certificate for these names; by default the loopback addresses."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.issue(*(names or ("localhost", "127.0.0.1", "::1")), **validity).configure_cert(context)
        return context

    def client(self) -> ssl.SSLContext:
        """A client's context that trusts this authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.ca.configure_trust(context)
        return context

    def file(self, directory: Path, name: str = "ca.pem") -> Path:
        """Writes the authority's certificate to a file."""
        path = directory / name
        path.write_text(self.pem)
        return path


def key_pem(certificate: trustme.LeafCert, password: str | None = None) -> str:
    """A certificate's private key as PKCS#8, as Kafka's brokers and Java read it."""
    key: Any = serialization.load_pem_private_key(certificate.private_key_pem.bytes(), None)
    encryption: Any = serialization.NoEncryption()
    if password is not None:
        encryption = serialization.BestAvailableEncryption(password.encode())
    pem: bytes = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    return pem.decode()


def chain_pem(certificate: trustme.LeafCert) -> str:
    return "".join(each.bytes().decode() for each in certificate.cert_chain_pems)


def embedded_options(
    authority: Authority, directory: Path, name: str, *, client_auth: bool = False
) -> dict[str, Any]:
    """The TLS options of an `EmbeddedBroker`, as `broker_properties` has them for Kafka."""
    certificate = authority.issue("localhost", "127.0.0.1")
    chain, key = directory / f"{name}-chain.pem", directory / f"{name}-key.pem"
    chain.write_text(chain_pem(certificate))
    key.write_text(key_pem(certificate))
    given: dict[str, Any] = {"security_protocol": "SSL", "ssl_certfile": chain, "ssl_keyfile": key}
    return given | ({"ssl_client_cafile": authority.file(directory)} if client_auth else {})


def broker_properties(
    listener: str, authority: Authority, directory: Path, client_auth: str = "none"
) -> dict[str, object]:
    """The properties of a `KafkaCluster` whose ``listener`` speaks TLS. Writes its files to ``directory``.

    ``client_auth``: whether clients need a certificate of the same authority: none, requested or required.
    """
    certificate = authority.issue("localhost", "127.0.0.1")
    store = directory / f"{listener}.pem"
    store.write_text(key_pem(certificate) + chain_pem(certificate))
    prefix = f"listener.name.{listener.lower()}.ssl."
    return {
        f"{prefix}keystore.type": "PEM",
        f"{prefix}keystore.location": store,
        f"{prefix}truststore.type": "PEM",
        f"{prefix}truststore.location": authority.file(directory),
        f"{prefix}client.auth": client_auth,
    }


class TlsEnd:
    """The server's end of a TLS connection: the methods of a socket that test brokers use.

    One thread may read while another writes. The handshake happens within the first read.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self.sock = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.connection = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._lock = threading.Lock()
        #: The exception that ended the session.
        self.failure: Exception | None = None

    def recv(self, size: int) -> bytes:
        """Returns decrypted bytes, or b"" at the end. Raises what the socket's ``recv`` raises."""
        while True:
            with self._lock:
                try:
                    data = self.connection.read(size)
                except ssl.SSLWantReadError:
                    data = None
                except ssl.SSLError as error:
                    self.failure = error
                    data = b""
                self._flush()
            if data is not None:
                return data
            received = self.sock.recv(65536)
            with self._lock:
                if received:
                    self._incoming.write(received)
                else:
                    self._incoming.write_eof()

    def sendall(self, data: bytes) -> None:
        with self._lock:
            self.connection.write(data)
            self._flush()

    def encrypted(self, data: bytes) -> bytes:
        """Returns the encrypted bytes instead of sending them."""
        with self._lock:
            self.connection.write(data)
            return self._outgoing.read()

    def end(self) -> None:
        """Sends close_notify."""
        with self._lock:
            with contextlib.suppress(ssl.SSLWantReadError):
                self.connection.unwrap()
            self._flush()

    def _flush(self) -> None:
        if data := self._outgoing.read():
            self.sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb"
        return io.BufferedReader(_Reader(self))

    def shutdown(self, how: int) -> None:
        self.sock.shutdown(how)

    def close(self) -> None:
        self.sock.close()


class _Reader(io.RawIOBase):
    def __init__(self, end: TlsEnd) -> None:
        self._end = end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._end.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)
