from collections.abc import Callable
from typing import Any, Protocol, Self, final

from cyproducer.accumulator.buffer_pool import BufferPool
from cyproducer.accumulator.incomplete_batches import Incomplete
from cyproducer.base.clock import Clock
from cyproducer.futures.completion import CompletionQueue

class _Compressor(Protocol):
    @property
    def codec_id(self) -> int: ...
    def compress(self, data: memoryview, /) -> bytes: ...

class _Spec(Protocol):
    @property
    def key_hash(self) -> int: ...
    @property
    def keyless(self) -> int: ...

@final
class RecordAccumulator(Incomplete):
    on_topic_needed: Callable[[str], object] | None
    refusal: BaseException | None
    def __new__(
        cls,
        pool: BufferPool,
        clock: Clock,
        completions: CompletionQueue,
        *,
        batch_size: int = 16384,
        linger_ms: float = 0,
        stream_linger_ms: float = 0,
        compressor: _Compressor | None = None,
        spec: _Spec | None = None,
        idempotent: bool = False,
        ordered: bool = True,
        adaptive: bool = True,
        availability_timeout_ms: float = 0,
        single_broker_ms: float = 30_000,
        seed: int | None = None,
        samples: int = 2,
        sample_window_ms: float = 30_000,
    ) -> Self: ...
    @property
    def compressor(self) -> Any: ...
    def opens_batch(self, name: str, partition: int, bound: int) -> bool: ...
    def counters(self) -> dict[str, int]: ...
