from libc.stdint cimport int64_t, uint8_t

from cyproducer.net.openssl cimport OpenSsl, TlsPointers
from cyproducer.net.transport cimport Transport

cdef enum:
    TLS_RECORD = 16384        # most bytes of plain text in one TLS record (RFC 8446, section 5.1)

# The state needed to encrypt and decrypt without the GIL.
cdef struct Tls:
    TlsPointers at
    const OpenSsl* library
    int64_t sent              # how many of the first encrypted bytes in the BIO the socket has accepted
    unsigned long failure     # OpenSSL's error code that ended the session; 0: none
    void* session             # the TlsSession that contains this struct
    uint8_t joined[TLS_RECORD]    # short parts, joined into one TLS record


cdef class TlsSession:
    cdef Tls c
    cdef readonly object connection   # the ssl.SSLObject
    cdef readonly object incoming     # the ssl.MemoryBIO of received bytes
    cdef readonly object outgoing     # the ssl.MemoryBIO of bytes to send
    cdef readonly str slow_because    # why Python's ssl module moves the bytes; empty: C does
    # Only when Python's ssl module moves the bytes:
    cdef readonly object error        # the exception that ended the session
    cdef bytes pending                # encrypted bytes, the first `c.sent` of them sent

cdef int64_t reason_of_failure(Transport* transport, int64_t failure) noexcept nogil
cdef int attach_tls(Transport* transport, TlsSession session) except -1
