from enum import IntEnum

from typing_extensions import Buffer

class KeyHashKind(IntEnum):
    NONE = 0
    JAVA = 1
    CONSISTENT = 2
    CONSISTENT_RANDOM = 3
    MURMUR2 = 4
    MURMUR2_RANDOM = 5
    FNV1A = 6
    FNV1A_RANDOM = 7
    SARAMA = 8
    SARAMA_REFERENCE = 9
    MURMUR3 = 10

def murmur2(data: Buffer) -> int: ...
def crc32(data: Buffer) -> int: ...
def fnv1a(data: Buffer) -> int: ...
def murmur3(data: Buffer, seed: int = 0) -> int: ...
def partition_for_key(kind: KeyHashKind | int | str, key: Buffer | None, partitions: int) -> int: ...
