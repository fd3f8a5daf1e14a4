"""The part of ``AIOKafkaProducer.send()`` that every record takes. Runs on the loops' threads."""

import asyncio

cimport cython

from cyproducer.send.extensions cimport Extensions
from cyproducer.futures.delivery cimport FAILED, RecordFuture
from cyproducer.futures.asyncio_bridge cimport LoopOutcomes

from cyproducer.send.send_path import WouldBlock

cdef object running_loop = asyncio._get_running_loop


@cython.final
cdef class Sends:
    """Sends records that nothing is in the way of. For one ``AIOKafkaProducer``, which does the rest.

    ``path``: its ``KafkaProducer`` while it runs. ``ending``: not empty while a transaction is being ended.
    ``outcomes``: those of the loop that sent last.
    """

    def __init__(self, set ending not None):
        self.ending = ending

    def usual(self, topic, value, key, partition, timestamp_ms, headers):
        """``attempt()``, if nothing about this call is unusual. Else returns None, and nothing was sent.

        Unusual are: no producer, interceptors, another loop, headers that are no list, outcomes that are due.
        Raises the ``WouldBlock`` that ``attempt()`` returns: a caller then has one check less to make for
        each record.
        """
        cdef object sent
        if (
            self.path is None
            or self.ending
            or self.outcomes is None
            or (headers is not None and type(headers) is not list)
            or (self.path.extensions is not None and (<Extensions>self.path.extensions).interceptors)
            or not self.outcomes._serves(running_loop())
            or self.outcomes.due()
        ):
            return None
        sent = self.attempt(topic, value, key, partition, timestamp_ms, headers)
        if type(sent) is WouldBlock:
            raise sent
        return sent

    cpdef object attempt(self, topic, value, key, partition, timestamp_ms, headers):
        """Sends a record of a producer without interceptors. Returns the asyncio future that follows it.

        Returns a ``WouldBlock`` if sending it would block. Raises at once what is known to be wrong with the
        record.
        """
        cdef object sent = self.path._at_once(topic, value, key, headers, partition, timestamp_ms)
        return followed(self.outcomes, sent) if type(sent) is RecordFuture else sent


def follow(LoopOutcomes outcomes not None, RecordFuture record not None):
    """Returns the asyncio future that follows a record. Raises the error of a record that was refused."""
    return followed(outcomes, record)


cdef object followed(LoopOutcomes outcomes, RecordFuture record):
    # Without a partition, it was refused here. A broker may have refused it by now, too: that is for the
    # future, as if it came later.
    if record._state() == FAILED and (record.delivery == NULL or record.delivery.partition < 0):
        raise record.exception
    return outcomes._follow(record)
