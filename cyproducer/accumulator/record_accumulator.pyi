from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self, final

from cyproducer.accumulator.batch_outcomes import Incomplete
from cyproducer.accumulator.buffer_pool import BufferPool
from cyproducer.base.clock import Clock
from cyproducer.futures.completion import CompletionQueue

class _Compressor(Protocol):
    @property
    def codec_id(self) -> int: ...
    def compress(self, data: memoryview, /) -> bytes: ...
    # And `native`, a NativeCodec or None, if it has one.

class _Spec(Protocol):
    @property
    def key_hash(self) -> str: ...
    @property
    def keyless(self) -> str: ...

@final
class RecordAccumulator(Incomplete):
    on_topic_needed: Callable[[str], object] | None
    refusal: BaseException | None
    def __new__(
        cls,
        options: Any,
        pool: BufferPool,
        clock: Clock,
        completions: CompletionQueue,
        *,
        ordered: bool = True,
        stream_linger_ms: float = 0,
        compressor: _Compressor | None = None,
        topics: Sequence[tuple[float, int, _Compressor | None]] = (),
        place_of: Callable[[str], int] | None = None,
        compression_thread: bool = True,
        spec: _Spec | None = None,
        seed: int | None = None,
    ) -> Self: ...
    @property
    def compressor(self) -> Any: ...
    def why_refused(self, closed_text: str) -> BaseException: ...
    def opens_batch(self, name: str, partition: int, bound: int) -> bool: ...
    def add_flush_time(self, ns: int) -> None: ...
    def add_transaction_time(self, step: str, ns: int) -> None: ...
    def add_metadata_wait_time(self, ns: int) -> None: ...
    def unfinished(self) -> dict[str, int]: ...
    def counters(self) -> dict[str, int]: ...
