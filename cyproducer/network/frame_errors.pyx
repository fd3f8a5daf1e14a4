"""What went wrong on a connection, in words: the errors that end one.

Owns: the texts and classes of these errors. Does not own: finding the faults
(``transport``, ``send_loop``). With the GIL.
"""

import os

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t

from cyproducer.network.connection cimport Connection
from cyproducer.network.transport cimport IO_CLOSED
from cyproducer.records.big_endian cimport get_u32

from cyproducer.errors import BrokerProtocolError, CorrelationIdError, KafkaConnectionError
from cyproducer.network.protocol import frame_looks_like


cdef object socket_error(Transport* transport, int64_t why):
    """A read or write failed, or the peer closed; ``why``: an ``Io``."""
    where = (<Connection>transport.owner).where
    if why == IO_CLOSED:
        return KafkaConnectionError(f"{where} closed the connection")
    return KafkaConnectionError(f"the connection to {where} broke: {os.strerror(transport.sys_errno)}")


cdef object unmatched(Transport* transport, const uint8_t* frame, int64_t size):
    """A frame that answers nothing that was asked."""
    where = (<Connection>transport.owner).where
    got = <int32_t>get_u32(frame)
    if transport.first_awaiting == NULL:
        return CorrelationIdError(
            f"{where} sent {size} bytes with correlation id {got}, and nothing was asked"
        )
    if transport.first_awaiting.unwritten:
        return CorrelationIdError(f"{where} answered before the whole request was sent")
    return CorrelationIdError(
        f"{where} answered with correlation id {got} where {transport.first_awaiting.correlation_id} was next"
    )


cdef object wrong_length(Transport* transport, int64_t at, int64_t receive_max):
    """A frame whose length can't be: another protocol, most likely."""
    where = (<Connection>transport.owner).where
    start = PyBytes_FromStringAndSize(<char*>transport.inbox + at, min(transport.inbox_used - at, 64))
    other = frame_looks_like(start)
    length = int.from_bytes(start[:4], "big", signed=True)
    if other is not None:
        return BrokerProtocolError(
            f"{where} is no Kafka broker (or not on this port): it answers like {other}"
        )
    return BrokerProtocolError(
        f"{where} announced a response of {length} bytes; allowed are 4 to "
        f"receive_message_max_bytes={receive_max}"
    )
