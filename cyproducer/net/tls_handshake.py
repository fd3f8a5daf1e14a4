"""Sets up TLS on a connected socket, one step whenever the socket is ready.

Owns the handshake of one connection. Does not own the context (``security/tls_context``), the messages about
failures (``security/tls_errors``), or the encrypted connection (``tls_transport``).

Python's ``ssl`` module does the handshake: names, SNI, callbacks and subclasses of ``SSLContext`` work as its
users expect. It runs on the sender's thread with the loop lock held.
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
    """Sends close_notify (RFC 8446, 6.1) as far as ``sock`` takes it, and frees the session's objects.

    ``sock``: None if encrypted bytes are unsent: the peer may have a part of a record.
    """
    with fork_lock.openssl_lock:
        if sock is not None:
            # After a failure there may be no session to end; and the peer's own close_notify is not awaited.
            with suppress(OSError):
                session.connection.unwrap()
            with suppress(OSError):
                send_some(sock, session.outgoing.read())
        session.release()


class TlsHandshake:
    """A ``Stage``: the TLS handshake with the server ``host``. Raises TlsError if TLS cannot be set up."""

    def __init__(self, config: ProducerConfig, context: ssl.SSLContext, where: str, host: str) -> None:
        self._config = config
        self._where = where
        # Certificates have neither the root's dot, nor a zone.
        self._host = host.removesuffix(".").partition("%")[0]
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._unsent = b""
        self._received = 0
        self._complete = False
        try:
            with fork_lock.openssl_lock:
                # Never without a name: some Pythons then check none, although check_hostname is on.
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
            # A server without TLS may not even read all that it does not understand.
            end = ssl.SSLEOFError(ssl.SSL_ERROR_EOF, str(error))
            raise errors.TlsError(explain(end, self._where, self._host, self._config)) from error

    def _step(self, sock: socket.socket) -> bool | None:
        while True:
            if not self._complete:
                try:
                    self._shake_hands()
                except (ssl.SSLError, ValueError) as error:
                    # OpenSSL has written an alert, which says what this side does not accept.
                    with suppress(OSError):
                        self._send(sock)
                    raise self._explained(error, self._connection) from error
            sent = self._send(sock)
            if self._complete:
                # What the server sends next is for the session.
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
        # Its frames refer to OpenSSL's objects, and they to it: only the garbage collector would free them.
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
        """Sends what OpenSSL has written; returns whether the socket took all of it."""
        self._unsent = send_some(sock, self._unsent + self._outgoing.read())
        return not self._unsent

    def release(self) -> None:
        """Frees OpenSSL's objects. Errors refer to this object by their tracebacks, in cycles."""
        with fork_lock.openssl_lock:
            del self._connection, self._incoming, self._outgoing

    def session(self, in_c: bool) -> TlsSession:
        """Returns the established session; call it when ``step`` has returned None."""
        return TlsSession(self._connection, self._incoming, self._outgoing, in_c)
