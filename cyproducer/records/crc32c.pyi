from typing import Final

from typing_extensions import Buffer

IMPLEMENTATION: Final[str]

def crc32c(data: Buffer, crc: int = 0) -> int: ...
def _crc32c_table(data: Buffer, crc: int = 0) -> int: ...
