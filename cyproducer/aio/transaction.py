"""``async with producer.transaction():``, as in aiokafka.

Owns how a block ends: what is committed, aborted, and raised. Does not own the calls (``producer``). Use it
on the thread of a running loop.
"""

from types import TracebackType
from typing import TYPE_CHECKING, Self

from cyproducer.errors import AbortableError, ApplicationRecoverableError, KafkaError

if TYPE_CHECKING:
    from cyproducer.aio.producer import AIOKafkaProducer


class TransactionContext:
    """One transaction as a block. ``AIOKafkaProducer.transaction()`` makes it."""

    def __init__(self, producer: "AIOKafkaProducer") -> None:
        self._producer = producer

    async def __aenter__(self) -> Self:
        await self._producer.begin_transaction()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self._abort(error)
            return
        try:
            await self._producer.commit_transaction()
        except AbortableError as failed:
            await self._abort(failed)
            raise

    async def _abort(self, error: BaseException) -> None:
        """Aborts because of ``error``, which is raised after this.

        What the abort raises does not hide an error of the program itself. It replaces the error of a record
        if the abort reports that the producer was fenced, because aiokafka's records fail with that error.
        """
        try:
            await self._producer.abort_transaction()
        except KafkaError as second:
            if isinstance(error, KafkaError) and isinstance(second, ApplicationRecoverableError):
                raise second from error
            error.add_note(f"aborting the transaction failed, too: {second}")
