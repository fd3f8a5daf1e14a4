"""Creates the errors that end a connection.

Owns the messages and classes of these errors. Does not detect the faults (``transport``,
``produce_response``). Runs with the GIL.
"""

import os

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t

from cyproducer.net.connection cimport Connection
from cyproducer.net.transport cimport IO_CLOSED, IO_TLS, READY
from cyproducer.records.big_endian cimport get_u32

from cyproducer.errors import BrokerProtocolError, CorrelationIdError, KafkaConnectionError, TlsError
from cyproducer.wire.protocol import frame_looks_like


cdef object socket_error(Transport* transport, int64_t why):
    """Returns the error for a failed read or write, or a connection closed by the peer. ``why``: an Io."""
    where = (<Connection>transport.owner).where
    if why == IO_CLOSED:
        return KafkaConnectionError(f"{where} closed the connection")
    if why == IO_TLS:
        return TlsError(f"TLS with {where} failed: {(<Connection>transport.owner).tls.reason()}")
    return KafkaConnectionError(f"the connection to {where} failed: {os.strerror(transport.sys_errno)}")


cdef object unmatched(Transport* transport, const uint8_t* frame, int64_t size):
    """Returns the error for a response that does not match the oldest request."""
    where = (<Connection>transport.owner).where
    got = <int32_t>get_u32(frame)
    if transport.first_awaiting == NULL:
        return CorrelationIdError(
            f"{where} sent a response of {size} bytes with correlation id {got}, but no request is in flight"
        )
    if transport.first_awaiting.unwritten:
        return CorrelationIdError(f"{where} responded before the whole request was sent")
    return CorrelationIdError(
        f"{where} responded with correlation id {got}, expected {transport.first_awaiting.correlation_id}"
    )


cdef object wrong_length(Transport* transport, int64_t at):
    """Returns the error for a frame with an invalid length: probably, the server speaks another protocol."""
    where = (<Connection>transport.owner).where
    start = PyBytes_FromStringAndSize(<char*>transport.inbox + at, min(transport.inbox_used - at, 64))
    other = frame_looks_like(start)
    length = int.from_bytes(start[:4], "big", signed=True)
    if other is not None:
        return BrokerProtocolError(
            f"{where} is not a Kafka broker (or not on this port): it responds like {other}"
        )
    allowed = f"receive_message_max_bytes={transport.receive_max}"
    if transport.state != READY:
        allowed = f"{transport.receive_max} before the handshake is complete"
    return BrokerProtocolError(
        f"{where} announced a response of {length} bytes; allowed are 4 to {allowed}"
    )
