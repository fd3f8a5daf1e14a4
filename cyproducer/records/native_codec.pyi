from typing import Self

from typing_extensions import Buffer, disjoint_base

def native_codec(name: str, level: int | None) -> NativeCodec | None:
    """Returns a codec that calls its library's C functions, at one of its levels; None if the library is not
    found."""

@disjoint_base
class NativeCodec:
    def __new__(cls, name: str, level: int, functions: dict[str, int]) -> Self: ...
    def compressed(self, data: Buffer) -> bytes: ...
