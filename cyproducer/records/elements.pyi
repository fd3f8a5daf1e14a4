from typing import Any

def plain_columns(
    elements: list[Any],
) -> (
    tuple[tuple[bytes | bytearray | None, ...], tuple[bytes | bytearray | None, ...] | None, bytes, int]
    | None
): ...
