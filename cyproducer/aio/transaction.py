"""``async with producer.transaction():``, as aiokafka has it.

Owns how a block ends: what is committed, aborted, and raised. Does not own the calls (``producer``). For the
thread of a running loop.
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

        An error of the program's own is not hidden by what the abort raises. One of a record is, if the abort
        says that the producer was fenced: aiokafka's records fail with that.
        """
        try:
            await self._producer.abort_transaction()
        except KafkaError as second:
            if isinstance(error, KafkaError) and isinstance(second, ApplicationRecoverableError):
                raise second from error
            error.add_note(f"aborting the transaction failed, too: {second}")
