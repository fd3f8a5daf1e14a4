from libc.stdint cimport int16_t, int32_t, int64_t

from cyproducer.net.tls_transport cimport TlsSession
from cyproducer.net.transport cimport Transport


cdef class Connection:
    cdef Transport* transport
    cdef readonly object sock
    cdef readonly int32_t node_id
    cdef readonly str where           # host:port (address), for messages
    cdef readonly TlsSession tls      # None: not encrypted
    # Only the control plane uses these:
    cdef public object handshake      # a connector.Handshake
    cdef readonly dict pending        # correlation id -> PendingRequest

cdef Connection make_connection(object sock, int32_t node_id, str where, int64_t receive_max)
