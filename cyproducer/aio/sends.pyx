"""The part of ``AIOKafkaProducer.send()`` that every record takes. Runs on the loop's thread."""

from cyproducer.callers.send_path cimport SendPath
from cyproducer.futures.delivery cimport FAILED, RecordFuture
from cyproducer.futures.loop_outcomes cimport LoopOutcomes

from cyproducer.callers.send_path import WouldBlock


def send_at_once(
    SendPath path not None, LoopOutcomes outcomes not None,
    topic, value, key, headers, partition, timestamp_ms,
):
    """Sends a record, and returns the asyncio future that follows it; None if sending it would block.

    The arguments after ``outcomes`` are those of ``_send_at_once``. Raises what is known to be wrong with the
    record at once.
    """
    cdef RecordFuture record
    try:
        record = path._send(topic, value, key, headers, partition, timestamp_ms, None, False)
    except WouldBlock:
        return None
    except Exception as error:
        path._note_refused(error)
        raise
    return follow(outcomes, record)


def follow(LoopOutcomes outcomes not None, RecordFuture record not None):
    """Returns the asyncio future that follows a record. Raises the error of a record that was refused."""
    # Without a partition, it was refused here. A broker may have refused it by now, too: that is for the
    # future, as if it came later.
    if record._state() == FAILED and (record.delivery == NULL or record.delivery.partition < 0):
        raise record.exception
    return outcomes._follow(record)
