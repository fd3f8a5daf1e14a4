import asyncio
from typing import Any, final

from cyproducer.futures.asyncio_bridge import LoopOutcomes
from cyproducer.futures.delivery import RecordFuture
from cyproducer.send.send_path import SendPath, WouldBlock

@final
class Sends:
    """Sends records that can be sent at once. For one ``AIOKafkaProducer``, which handles all other cases.

    ``path``: its ``KafkaProducer`` while it runs. ``ending``: not empty while a transaction is being ended.
    ``outcomes``: the outcomes of the loop that sent last.
    """

    path: SendPath | None
    outcomes: LoopOutcomes | None
    def __init__(self, ending: set[object]) -> None: ...
    def usual(
        self, topic: Any, value: Any, key: Any, partition: Any, timestamp_ms: Any, headers: Any
    ) -> asyncio.Future[Any] | None:
        """Calls ``attempt()`` if nothing about this call is unusual. Otherwise sends nothing and returns
        None.

        These are unusual: no producer, a transaction that is being ended, interceptors, another loop, headers
        that are not a list, outcomes that are due. Raises the ``WouldBlock`` that ``attempt()`` returns,
        which saves the caller one check per record.
        """
    def attempt(
        self, topic: Any, value: Any, key: Any, partition: Any, timestamp_ms: Any, headers: Any
    ) -> asyncio.Future[Any] | WouldBlock:
        """Sends a record of a producer without interceptors. Returns the asyncio future that follows it.

        Returns a ``WouldBlock`` if sending it would block. Raises errors of the record that are known
        immediately.
        """

def follow(outcomes: LoopOutcomes, record: RecordFuture) -> asyncio.Future[Any]:
    """Returns the asyncio future that follows a record. Raises the error of a record that was refused."""
