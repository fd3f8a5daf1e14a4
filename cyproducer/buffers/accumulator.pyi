from collections.abc import Callable
from typing import Any, Protocol, Self

from typing_extensions import disjoint_base

from cyproducer.buffers.buffer_pool import BufferPool
from cyproducer.buffers.clock import Clock
from cyproducer.buffers.completion import CompletionQueue

class _Compressor(Protocol):
    @property
    def codec_id(self) -> int: ...
    def compress(self, data: memoryview, /) -> bytes: ...

class _Spec(Protocol):
    @property
    def key_hash(self) -> int: ...
    @property
    def keyless(self) -> int: ...

@disjoint_base
class RecordAccumulator:
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
        compressor: _Compressor | None = None,
        spec: _Spec | None = None,
        idempotent: bool = False,
        ordered: bool = True,
        adaptive: bool = True,
        availability_timeout_ms: float = 0,
        single_broker_ms: float = 30_000,
        seed: int | None = None,
    ) -> Self: ...
    @property
    def pool(self) -> BufferPool: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def completions(self) -> CompletionQueue: ...
    @property
    def compressor(self) -> Any: ...
    @property
    def closed(self) -> bool: ...
    def opens_batch(self, name: str, partition: int, bound: int) -> bool: ...
    @property
    def incomplete_batches(self) -> int: ...
    @property
    def parked_records(self) -> int: ...
    def counters(self) -> dict[str, int]: ...
    def flush(self, timeout_s: float) -> bool: ...
    def close(self) -> None: ...
