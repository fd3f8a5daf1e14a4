import asyncio
from typing import Any

from cyproducer.futures.delivery import RecordFuture

class Group:
    def __call__(self, outcome: object) -> None: ...

class LoopOutcomes:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        kind: type[tuple[Any, ...]] | None = None,
        without_metadata: bool = False,
    ) -> None: ...
    def serves(self, loop: asyncio.AbstractEventLoop) -> bool: ...
    def follow(self, record: RecordFuture) -> asyncio.Future[Any]: ...
    def _deliver(self) -> None: ...
