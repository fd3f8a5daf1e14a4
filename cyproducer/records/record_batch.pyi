from collections.abc import Sequence
from typing import Final

HEADER_BYTES: Final[int]
"""Bytes of a batch before its first record."""

def encode_batch(
    records: Sequence[tuple[int, bytes | None, bytes | None, bytes]],
    *,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes: ...
