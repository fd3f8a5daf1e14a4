from collections.abc import Iterable
from typing import Any, Self, final

@final
class PlainElements:
    def __new__(cls, elements: Iterable[Any], most: int, most_bytes: int, most_ns: int) -> Self: ...
    def take(self) -> tuple[list[bytes | None], list[bytes | None] | None, bytes, list[Any]]: ...

@final
class Shape: ...
