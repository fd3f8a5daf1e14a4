from collections.abc import Iterable
from typing import Any, final

@final
class PlainElements:
    def __init__(self, elements: Iterable[Any], most: int, most_bytes: int, most_ns: int) -> None: ...
    def take(self) -> tuple[list[bytes | None], list[bytes | None] | None, bytes, list[Any]]: ...
