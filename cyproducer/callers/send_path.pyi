from collections.abc import Callable, Sequence
from typing import Any

from typing_extensions import disjoint_base

from cyproducer.accumulator.buffer_pool import Ticket
from cyproducer.accumulator.record_accumulator import RecordAccumulator
from cyproducer.futures.delivery import RecordFuture

class WouldBlock(Exception):
    what: str
    size: int
    def __init__(self, what: str, size: int = 0) -> None: ...

@disjoint_base
class SendPath:
    may_be_empty: bool
    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Sequence[tuple[str, Any]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture: ...
    def _open_path(
        self,
        accumulator: RecordAccumulator,
        max_request_size: int,
        max_block_ms: float,
        extension: Callable[..., RecordFuture] | None,
    ) -> None: ...
    def _refresh_topic(self, name: str, timeout_s: float) -> object: ...
    def _forget_path(self) -> None: ...
    def _reopen(self) -> None: ...
    def _send_serialized(
        self, topic: Any, value: Any, key: Any, headers: Any, partition: Any, timestamp_ms: Any
    ) -> RecordFuture: ...
    def _send_at_once(
        self,
        topic: Any,
        value: Any,
        key: Any,
        headers: Any,
        partition: Any,
        timestamp_ms: Any,
        ticket: Ticket | None,
    ) -> RecordFuture: ...
    def _no_partition(self, topic: str, partition: int) -> BaseException: ...
    def _exhausted(self, size: int, topic: str) -> BaseException: ...
    def _wait_for_parking(self, topic: str, size: int, timeout_s: float) -> None: ...
    def _why_no_metadata(self, topic: str, within: str) -> str: ...
    def _wait_for_callbacks(self, topic: str, timeout_s: float) -> None: ...
    def _opens_batch(self, topic: str, value: Any, headers: Any, partition: int) -> bool: ...
