"""Encrypts and decrypts the bytes of a connection, without the GIL if possible.

Owns moving bytes between the requests, an established TLS session and the socket. Does not own the handshake
(``tls_handshake``), which Python's ``ssl`` module performs, or the search for OpenSSL (``openssl``).

A session is an ``ssl.SSLObject`` over two memory BIOs. After the handshake, C code calls ``SSL_write_ex`` and
``SSL_read_ex`` on the same session, and moves the encrypted bytes between the BIOs and the socket. Python can
use the object again at any time, as ``close()`` does. If OpenSSL can't be called from C,
``SSLObject.write()`` and ``read()`` do the same, with the GIL.

Used by one thread at a time: the one that holds the loop lock. This module relies on these properties of
OpenSSL:

- A memory BIO accepts any number of bytes, so a write is never incomplete, and no write has to be repeated
  with the same bytes.
- A read returns bytes of one TLS record at most. OpenSSL may hold more decrypted bytes, for which the socket
  does not become readable. So reading continues until OpenSSL needs more bytes and the socket has none.
- A read can write: an alert, or the response to a KeyUpdate.
- OpenSSL's error queue is per thread. It is emptied before each call, and read after it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport ENOMEM
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from cyproducer.base.sync cimport cyp_store_pointer
from cyproducer.net.openssl cimport find_pointers, openssl
from cyproducer.wire.produce_codec cimport iovec
from cyproducer.net.transport cimport (
    IO_AGAIN,
    IO_CLOSED,
    IO_ERROR,
    IO_TLS,
    Transport,
    receive_plain,
    send_plain,
)

cdef enum:
    MOST_UNSENT = 65536       # encrypting stops at this many unsent bytes: they are not part of buffer_memory
    SLOW_CHUNK = 1048576      # large, because each call of Python's ssl module may wait for the GIL
    RECEIVED = 16384
    SSL_ERROR_WANT_READ = 2
    SSL_ERROR_WANT_WRITE = 3
    SSL_ERROR_ZERO_RETURN = 6
    BIO_CTRL_RESET = 1
    BIO_CTRL_INFO = 3


cdef class TlsSession:
    """An established TLS session. ``connection``: an ``ssl.SSLObject`` whose handshake is complete, over the
    two ``ssl.MemoryBIO``; ``in_c``: False makes Python's ``ssl`` module move the bytes."""

    def __init__(self, connection, incoming, outgoing, in_c=True):
        self.connection = connection
        self.incoming = incoming
        self.outgoing = outgoing
        self.pending = b""
        self.c.session = <void*>self
        self.slow_because = "it was asked for"
        if in_c:
            self.slow_because = find_pointers(connection, incoming, outgoing, &self.c.at)
        if not self.slow_because:
            self.c.library = openssl()

    def release(self):
        """Frees the session's objects; only ``reason`` may be used afterwards."""
        self.connection = self.incoming = self.outgoing = None

    def reason(self):
        """Returns OpenSSL's description of the error that ended the session; None if there was none."""
        cdef const char* text = NULL
        if self.error is not None:
            return getattr(self.error, "reason", None) or str(self.error)
        if self.c.failure and self.c.library != NULL:
            text = self.c.library.ERR_reason_error_string(self.c.failure)
            return text.decode("ascii", "replace") if text != NULL else f"error {self.c.failure:#x}"
        return None


cdef int attach_tls(Transport* transport, TlsSession session) except -1:
    """Makes a connection send and receive through the session, which the caller must keep alive."""
    cyp_store_pointer(&transport.tls, <void*>&session.c)
    if session.slow_because:
        transport.send, transport.receive, transport.push = send_slowly, receive_slowly, push_slowly
    else:
        transport.send, transport.receive, transport.push = send_tls, receive_tls, push_tls
    return 0


# In C


cdef int64_t push_tls(Transport* transport) noexcept nogil:
    """Sends the encrypted bytes; returns 0 when all are sent, else an Io."""
    cdef Tls* tls = <Tls*>transport.tls
    cdef const OpenSsl* library = tls.library
    cdef char* data = NULL
    cdef long size = library.BIO_ctrl(tls.at.write_bio, BIO_CTRL_INFO, 0, &data)
    cdef iovec part
    cdef int64_t n
    while tls.sent < size:
        part.iov_base = data + tls.sent
        part.iov_len = size - tls.sent
        n = send_plain(transport, &part, 1)
        if n < 0:
            transport.unsent = size - tls.sent
            return n
        tls.sent += n
    if size > 0:
        library.BIO_ctrl(tls.at.write_bio, BIO_CTRL_RESET, 0, NULL)
    tls.sent = 0
    transport.unsent = 0
    return 0


cdef int64_t failed(Tls* tls, int result) noexcept nogil:
    """Returns the Io for an OpenSSL call that did not succeed."""
    cdef int kind = tls.library.SSL_get_error(tls.at.ssl, result)
    if kind == SSL_ERROR_WANT_READ or kind == SSL_ERROR_WANT_WRITE:
        return IO_AGAIN
    if kind == SSL_ERROR_ZERO_RETURN:
        return IO_CLOSED
    # The first error is the reason; a later call on the same session reports another error or none.
    if tls.failure == 0:
        tls.failure = tls.library.ERR_peek_last_error()
    tls.library.ERR_clear_error()
    # Without an error, the peer closed the connection without TLS's close_notify.
    return IO_TLS if tls.failure else IO_CLOSED


cdef int64_t encrypt(Transport* transport, const void* data, size_t size) noexcept nogil:
    """Encrypts bytes into the write BIO; returns 0 or an Io.

    After a failure, the encrypted bytes are not sent: requests that do not count as written must not arrive.
    """
    cdef Tls* tls = <Tls*>transport.tls
    cdef size_t written = 0
    cdef int result
    tls.library.ERR_clear_error()
    result = tls.library.SSL_write_ex(tls.at.ssl, data, size, &written)
    if result == 1:
        return 0
    result = <int>failed(tls, result)
    note_unsent(transport)
    # A memory BIO always has room. With TLS 1.2, a renegotiation could make a write wait for a read, but
    # Kafka does not renegotiate.
    return IO_TLS if result == IO_AGAIN else result


cdef int64_t send_tls(Transport* transport, const iovec* parts, int count) noexcept nogil:
    """Encrypts and sends bytes; returns how many were encrypted, or an Io."""
    cdef Tls* tls = <Tls*>transport.tls
    cdef int64_t taken = 0
    cdef int64_t rc
    cdef size_t used = 0
    cdef size_t offset = 0
    cdef size_t n
    cdef int i = 0
    rc = push_tls(transport) if transport.unsent else 0
    if rc < 0:
        return rc
    while i < count and taken < MOST_UNSENT:
        n = parts[i].iov_len - offset
        if used == 0 and n >= TLS_RECORD:
            # Encrypts whole TLS records directly from the batch.
            n = min(n // TLS_RECORD * TLS_RECORD, <size_t>MOST_UNSENT)
            rc = encrypt(transport, <const uint8_t*>parts[i].iov_base + offset, n)
            if rc < 0:
                return rc
            taken += n
        else:
            n = min(n, TLS_RECORD - used)
            memcpy(tls.joined + used, <const uint8_t*>parts[i].iov_base + offset, n)
            used += n
            if used == TLS_RECORD:
                rc = encrypt(transport, tls.joined, used)
                if rc < 0:
                    return rc
                taken += used
                used = 0
        offset += n
        if offset == parts[i].iov_len:
            offset = 0
            i += 1
    if used > 0:
        rc = encrypt(transport, tls.joined, used)
        if rc < 0:
            return rc
        taken += used
    rc = push_tls(transport)
    return taken if rc == 0 or rc == IO_AGAIN else rc


cdef int64_t receive_tls(Transport* transport, uint8_t* into, int64_t room) noexcept nogil:
    """Receives and decrypts bytes; returns how many, or an Io."""
    cdef Tls* tls = <Tls*>transport.tls
    cdef const OpenSsl* library = tls.library
    cdef uint8_t received[RECEIVED]
    cdef size_t n = 0
    cdef int64_t got
    cdef int64_t rc
    cdef int result
    while True:
        library.ERR_clear_error()
        result = library.SSL_read_ex(tls.at.ssl, into, room, &n)
        if result == 1:
            rc = <int64_t>n
            break
        rc = failed(tls, result)
        if rc != IO_AGAIN:
            break
        got = receive_plain(transport, received, RECEIVED)
        if got < 0:
            # A peer that closes without TLS's close_notify is treated the same: frames have their own length.
            rc = got
            break
        if library.BIO_write(tls.at.read_bio, received, <int>got) != got:
            transport.sys_errno = ENOMEM
            rc = IO_ERROR
            break
    note_unsent(transport)
    return rc


cdef void note_unsent(Transport* transport) noexcept nogil:
    """Sets ``unsent`` to the number of encrypted bytes that the socket has not accepted.

    A read may have produced bytes: ``unsent`` then makes the sender write them.
    """
    cdef Tls* tls = <Tls*>transport.tls
    cdef char* data = NULL
    transport.unsent = tls.library.BIO_ctrl(tls.at.write_bio, BIO_CTRL_INFO, 0, &data) - tls.sent


cdef int64_t reason_of_failure(Transport* transport, int64_t failure) noexcept nogil:
    """Looks for the alert behind a failed write; returns the Io to report.

    A peer that rejects this client, for example its certificate, sends an alert and closes the connection. In
    TLS 1.3, the client can already write at that time. If the write fails first, its error hides the alert,
    which has not been read yet.
    """
    cdef uint8_t ignored[512]
    cdef int64_t n = 1
    if transport.tls == NULL or failure != IO_ERROR:
        return failure
    while n > 0:
        n = transport.receive(transport, ignored, sizeof(ignored))
    return IO_TLS if n == IO_TLS else failure


# Through Python's ssl module


cdef int64_t push_slowly(Transport* transport) noexcept nogil:
    cdef int64_t rc
    with gil:
        rc = push_pending(transport, <TlsSession>(<Tls*>transport.tls).session)
    return rc


cdef int64_t push_pending(Transport* transport, TlsSession session) noexcept:
    cdef iovec part
    cdef int64_t n
    while True:
        if session.c.sent == PyBytes_GET_SIZE(session.pending):
            try:
                session.pending = session.outgoing.read()
            except BaseException as error:
                session.error = error
                return IO_TLS
            session.c.sent = 0
        transport.unsent = PyBytes_GET_SIZE(session.pending) - session.c.sent
        if transport.unsent == 0:
            return 0
        part.iov_base = PyBytes_AS_STRING(session.pending) + session.c.sent
        part.iov_len = transport.unsent
        with nogil:
            n = send_plain(transport, &part, 1)
        if n < 0:
            return n
        session.c.sent += n


cdef int64_t send_slowly(Transport* transport, const iovec* parts, int count) noexcept nogil:
    cdef int64_t rc = push_slowly(transport) if transport.unsent else 0
    if rc < 0:
        return rc
    with gil:
        return write_chunk(transport, <TlsSession>(<Tls*>transport.tls).session, parts, count)


cdef int64_t write_chunk(Transport* transport, TlsSession session, const iovec* parts, int count) noexcept:
    cdef int64_t taken = 0
    cdef int64_t rc
    cdef int i
    pieces = []
    for i in range(count):
        if taken == SLOW_CHUNK:
            break
        n = min(<int64_t>parts[i].iov_len, SLOW_CHUNK - taken)
        pieces.append(PyBytes_FromStringAndSize(<char*>parts[i].iov_base, n))
        taken += n
    try:
        session.connection.write(b"".join(pieces))
    except BaseException as error:
        session.error = error
        return IO_TLS
    rc = push_pending(transport, session)
    return taken if rc == 0 or rc == IO_AGAIN else rc


cdef int64_t receive_slowly(Transport* transport, uint8_t* into, int64_t room) noexcept nogil:
    with gil:
        return read_chunk(transport, <TlsSession>(<Tls*>transport.tls).session, into, room)


cdef int64_t read_chunk(Transport* transport, TlsSession session, uint8_t* into, int64_t room) noexcept:
    cdef uint8_t received[RECEIVED]
    cdef int64_t got
    import ssl  # here: it takes longer to import than the rest of this package

    while True:
        try:
            data = session.connection.read(room)
        except ssl.SSLWantReadError:
            data = None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return IO_CLOSED
        except BaseException as error:
            session.error = error
            return IO_TLS
        finally:
            transport.unsent = (
                PyBytes_GET_SIZE(session.pending) - session.c.sent + <int64_t>session.outgoing.pending
            )
        if data is not None:
            if not data:
                return IO_CLOSED
            memcpy(into, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
            return PyBytes_GET_SIZE(data)
        with nogil:
            got = receive_plain(transport, received, RECEIVED)
        if got < 0:
            return got
        try:
            session.incoming.write(PyBytes_FromStringAndSize(<char*>received, got))
        except BaseException as error:
            session.error = error
            return IO_TLS
