"""The part of ``AIOKafkaProducer.send()`` that runs for every record. Runs on the loops' threads."""

import asyncio

cimport cython

from cyproducer.send.extensions cimport Extensions
from cyproducer.futures.delivery cimport FAILED, RecordFuture
from cyproducer.futures.asyncio_bridge cimport LoopOutcomes

from cyproducer.send.send_path import WouldBlock

cdef object running_loop = asyncio._get_running_loop


@cython.final
cdef class Sends:
    """Sends records that can be sent at once. For one ``AIOKafkaProducer``, which handles all other cases.

    ``path``: its ``KafkaProducer`` while it runs. ``ending``: not empty while a transaction is being ended.
    ``outcomes``: the outcomes of the loop that sent last.
    """

    def __init__(self, set ending not None):
        self.ending = ending

    def usual(self, topic, value, key, partition, timestamp_ms, headers):
        """Calls ``attempt()`` if nothing about this call is unusual. Otherwise sends nothing and returns
        None.

        These are unusual: no producer, a transaction that is being ended, interceptors, another loop, headers
        that are not a list, outcomes that are due. Raises the ``WouldBlock`` that ``attempt()`` returns,
        which saves the caller one check per record.
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

        Returns a ``WouldBlock`` if sending it would block. Raises errors of the record that are known
        immediately.
        """
        cdef object sent = self.path._at_once(topic, value, key, headers, partition, timestamp_ms)
        return followed(self.outcomes, sent) if type(sent) is RecordFuture else sent


def follow(LoopOutcomes outcomes not None, RecordFuture record not None):
    """Returns the asyncio future that follows a record. Raises the error of a record that was refused."""
    return followed(outcomes, record)


cdef object followed(LoopOutcomes outcomes, RecordFuture record):
    # A failed record without a partition was refused by this client. A broker may also have refused a record
    # by now: that error is set on the future, as if it had arrived later.
    if record._state() == FAILED and (record.delivery == NULL or record.delivery.partition < 0):
        raise record.exception
    return outcomes._follow(record)
