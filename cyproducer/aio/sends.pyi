import asyncio
from typing import Any

from cyproducer.callers.send_path import SendPath, WouldBlock
from cyproducer.futures.delivery import RecordFuture
from cyproducer.futures.loop_outcomes import LoopOutcomes

def send_at_once(
    path: SendPath,
    outcomes: LoopOutcomes,
    topic: Any,
    value: Any,
    key: Any,
    headers: Any,
    partition: Any,
    timestamp_ms: Any,
) -> asyncio.Future[Any] | WouldBlock:
    """Sends a record of a producer without interceptors, and returns the asyncio future that follows it.

    Returns a ``WouldBlock`` if sending it would block. The arguments after ``outcomes`` are those of
    ``_send_at_once``. Raises what is known to be wrong with the record at once.
    """

def follow(outcomes: LoopOutcomes, record: RecordFuture) -> asyncio.Future[Any]:
    """Returns the asyncio future that follows a record. Raises the error of a record that was refused."""
