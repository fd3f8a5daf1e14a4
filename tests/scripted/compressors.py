"""Compressors that do as a test says, in place of those of ``compressor_for``."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from cyproducer.records.compression import compressor_for
from tools.harness.until import PATIENCE_S

Packed = bytes | bytearray


@dataclass(frozen=True)
class ScriptedCompressor:
    """Compresses by a function of the test. ``codec_id``: what batches say; by default that of gzip."""

    compress: Callable[[memoryview], Packed]
    codec_id: int = 1


class SlowCompressor:
    """Compresses with gzip, but not before the test sets ``go_on``; ``begun`` is set by then."""

    codec_id = 1

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def compress(self, data: memoryview) -> bytes:
        self.begun.set()
        assert self.go_on.wait(PATIENCE_S)
        return bytes(compressor_for("gzip").compress(data))
