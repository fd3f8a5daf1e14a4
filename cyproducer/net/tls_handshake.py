"""Sets up TLS on a connected socket, one step whenever the socket is ready.

Owns the handshake of one connection. Does not own the context (``security/tls_context``), the messages about
failures (``security/tls_errors``), or the encrypted connection (``tls_transport``).

Python's ``ssl`` module performs the handshake: host names, SNI, callbacks and subclasses of ``SSLContext``
work as its users expect. Runs on the sender's thread with the loop lock held.
"""

import socket
import ssl
from contextlib import suppress

from cyproducer import errors
from cyproducer.base import fork_lock
from cyproducer.config import ProducerConfig
from cyproducer.net.handshake_stage import send_some
from cyproducer.net.tls_transport import TlsSession
from cyproducer.security.tls_errors import explain

#: More bytes than any handshake needs; certificates are a few kilobytes each.
MOST_BYTES = 65536


def end_session(session: TlsSession, sock: socket.socket | None) -> None:
    """Sends close_notify (RFC 8446, 6.1) if ``sock`` accepts it, and frees the session's objects.

    ``sock``: None if encrypted bytes are unsent, as the peer may have received only a part of a TLS record.
    """
    with fork_lock.openssl_lock:
        if sock is not None:
            # unwrap() raises if a failure has already ended the session, or because it does not wait for the
            # peer's close_notify.
            with suppress(OSError):
                session.connection.unwrap()
            with suppress(OSError):
                send_some(sock, session.outgoing.read())
        session.release()


class TlsHandshake:
    """A ``Stage``: the TLS handshake with the server ``host``. Raises TlsError if TLS can't be set up."""

    def __init__(self, config: ProducerConfig, context: ssl.SSLContext, where: str, host: str) -> None:
        self._config = config
        self._where = where
        # Names in certificates have neither a trailing dot nor an IPv6 zone.
        self._host = host.removesuffix(".").partition("%")[0]
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._unsent = b""
        self._received = 0
        self._complete = False
        try:
            with fork_lock.openssl_lock:
                # Always with a name: without one, some Python versions check none, despite check_hostname.
                self._connection = context.wrap_bio(
                    self._incoming, self._outgoing, server_side=False, server_hostname=self._host
                )
        except (ssl.SSLError, ValueError) as error:
            raise self._explained(error, None) from error

    def step(self, sock: socket.socket) -> bool | None:
        """See ``Stage.step``."""
        try:
            return self._step(sock)
        except ConnectionError as error:
            # A server without TLS may close the connection without reading the bytes that it can't parse.
            end = ssl.SSLEOFError(ssl.SSL_ERROR_EOF, str(error))
            raise errors.TlsError(explain(end, self._where, self._host, self._config)) from error

    def _step(self, sock: socket.socket) -> bool | None:
        while True:
            if not self._complete:
                try:
                    self._shake_hands()
                except (ssl.SSLError, ValueError) as error:
                    # OpenSSL has written an alert, which reports to the server what this client rejects.
                    with suppress(OSError):
                        self._send(sock)
                    raise self._explained(error, self._connection) from error
            sent = self._send(sock)
            if self._complete:
                # The server's next bytes belong to the session.
                return None if sent else True
            try:
                data = sock.recv(16384)
            except BlockingIOError:
                return not sent
            if not data:
                self._incoming.write_eof()
                continue
            self._received += len(data)
            if self._received > MOST_BYTES:
                raise errors.KafkaConnectionError(f"it sent more than {MOST_BYTES} bytes for a TLS handshake")
            self._incoming.write(data)

    def _explained(self, error: Exception, connection: ssl.SSLObject | None) -> errors.TlsError:
        # The traceback's frames and OpenSSL's objects refer to each other: only the garbage collector would
        # free them.
        error.__traceback__ = None
        return errors.TlsError(explain(error, self._where, self._host, self._config, connection))

    def _shake_hands(self) -> None:
        try:
            with fork_lock.openssl_lock:
                self._connection.do_handshake()
            self._complete = True
        except ssl.SSLWantReadError:
            pass

    def _send(self, sock: socket.socket) -> bool:
        """Sends the bytes that OpenSSL has written; returns whether the socket accepted all of them."""
        self._unsent = send_some(sock, self._unsent + self._outgoing.read())
        return not self._unsent

    def release(self) -> None:
        """Frees OpenSSL's objects, which tracebacks of errors would otherwise keep alive in cycles."""
        with fork_lock.openssl_lock:
            del self._connection, self._incoming, self._outgoing

    def session(self, in_c: bool) -> TlsSession:
        """Returns the established session. Must be called only after ``step`` has returned None."""
        return TlsSession(self._connection, self._incoming, self._outgoing, in_c)
