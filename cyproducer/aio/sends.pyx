"""The part of ``AIOKafkaProducer.send()`` that every record takes. Runs on the loop's thread."""

from cyproducer.callers.send_path cimport SendPath
from cyproducer.futures.delivery cimport FAILED, RecordFuture
from cyproducer.futures.loop_outcomes cimport LoopOutcomes


def send_at_once(
    SendPath path not None, LoopOutcomes outcomes not None,
    topic, value, key, headers, partition, timestamp_ms,
):
    """Sends a record of a producer without interceptors, and returns the asyncio future that follows it.

    Returns a ``WouldBlock`` if sending it would block. The arguments after ``outcomes`` are those of
    ``_send_at_once``. Raises what is known to be wrong with the record at once.
    """
    cdef object sent = path._at_once(topic, value, key, headers, partition, timestamp_ms)
    return follow(outcomes, sent) if type(sent) is RecordFuture else sent


def follow(LoopOutcomes outcomes not None, RecordFuture record not None):
    """Returns the asyncio future that follows a record. Raises the error of a record that was refused."""
    # Without a partition, it was refused here. A broker may have refused it by now, too: that is for the
    # future, as if it came later.
    if record._state() == FAILED and (record.delivery == NULL or record.delivery.partition < 0):
        raise record.exception
    return outcomes._follow(record)
