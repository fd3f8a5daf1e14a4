import asyncio
from typing import Any, final

from cyproducer.futures.asyncio_bridge import LoopOutcomes
from cyproducer.futures.delivery import RecordFuture
from cyproducer.send.send_path import SendPath, WouldBlock

@final
class Sends:
    """Sends records that nothing is in the way of. For one ``AIOKafkaProducer``, which does the rest.

    ``path``: its ``KafkaProducer`` while it runs. ``ending``: not empty while a transaction is being ended.
    ``outcomes``: those of the loop that sent last.
    """

    path: SendPath | None
    outcomes: LoopOutcomes | None
    def __init__(self, ending: set[object]) -> None: ...
    def usual(
        self, topic: Any, value: Any, key: Any, partition: Any, timestamp_ms: Any, headers: Any
    ) -> asyncio.Future[Any] | None:
        """``attempt()``, if nothing about this call is unusual. Else returns None, and nothing was sent.

        Unusual are: no producer, interceptors, another loop, headers that are no list, outcomes that are due.
        Raises the ``WouldBlock`` that ``attempt()`` returns: a caller then has one check less to make for
        each record.
        """
    def attempt(
        self, topic: Any, value: Any, key: Any, partition: Any, timestamp_ms: Any, headers: Any
    ) -> asyncio.Future[Any] | WouldBlock:
        """Sends a record of a producer without interceptors. Returns the asyncio future that follows it.

        Returns a ``WouldBlock`` if sending it would block. Raises at once what is known to be wrong with the
        record.
        """

def follow(outcomes: LoopOutcomes, record: RecordFuture) -> asyncio.Future[Any]:
    """Returns the asyncio future that follows a record. Raises the error of a record that was refused."""
