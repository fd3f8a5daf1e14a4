import asyncio
from typing import Any, Self

from cyproducer.futures.delivery import RecordFuture

def deliver(loop: asyncio.AbstractEventLoop) -> None:
    """Sets the futures of the running ``loop`` whose batches have completed, without waiting for its next
    turn.
    """

def disown() -> None:
    """Forgets the parent's loops in a forked child."""

class Group: ...

class LoopInbox:
    def __new__(cls, loop: asyncio.AbstractEventLoop) -> Self: ...

class LoopOutcomes:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        kind: type[tuple[Any, ...]] | None = None,
        without_metadata: bool = False,
    ) -> None: ...
    def due(self) -> bool:
        """Whether the loop should have a turn before another record is sent.

        Otherwise, a task that only sends would keep the loop from running other tasks, and all outcomes would
        stay in memory.
        """
    def had_a_turn(self) -> None:
        """Notes that the loop has run since the last record."""
    def serves(self, loop: asyncio.AbstractEventLoop) -> bool: ...
    def follow(self, record: RecordFuture) -> asyncio.Future[Any]: ...
