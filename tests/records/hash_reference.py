"""A slow reference of the checksums, key hashes and partitioning rules in plain Python, to check the C
code."""

MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    m = 0x5BD1E995
    h = 0x9747B28C ^ (len(data) & MASK)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & MASK
        k = (k ^ (k >> 24)) * m & MASK
        h = (h * m & MASK) ^ k
    if data[whole:]:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & MASK
    h = (h ^ (h >> 13)) * m & MASK
    return h ^ (h >> 15)


def crc32(data: bytes) -> int:
    crc = MASK
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0xEDB88320 if crc & 1 else 0)
    return crc ^ MASK


def crc32c(data: bytes, crc: int = 0) -> int:
    crc ^= MASK
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ MASK


def fnv1a(data: bytes) -> int:
    h = 2166136261
    for byte in data:
        h = (h ^ byte) * 16777619 & MASK
    return h


def murmur3(data: bytes) -> int:
    def rotated(value: int, bits: int) -> int:
        return (value << bits | value >> (32 - bits)) & MASK

    def mixed(k: int) -> int:
        return rotated(k * 0xCC9E2D51 & MASK, 15) * 0x1B873593 & MASK

    h = 0
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        h = (rotated(h ^ mixed(int.from_bytes(data[at : at + 4], "little")), 13) * 5 + 0xE6546B64) & MASK
    h ^= mixed(int.from_bytes(data[whole:], "little")) ^ (len(data) & MASK)
    h = (h ^ (h >> 16)) * 0x85EBCA6B & MASK
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & MASK
    return h ^ (h >> 16)


def signed(h: int) -> int:
    return h - (1 << 32) if h >> 31 else h


def partition_for_key(kind: str, key: bytes | None, partitions: int) -> int:
    """Returns -1 if the record counts as keyless."""
    if kind in ("consistent", "murmur2", "fnv1a"):
        key = key or b""
    elif kind == "consistent_random":
        key = key or None
    if key is None or kind == "none":
        return -1
    if kind in ("java", "murmur2", "murmur2_random"):
        return (murmur2(key) & 0x7FFFFFFF) % partitions
    if kind in ("consistent", "consistent_random"):
        return crc32(key) % partitions
    if kind in ("fnv1a", "fnv1a_random"):
        return abs(signed(fnv1a(key))) % partitions
    if kind == "sarama":
        # Go's remainder takes the sign of the dividend.
        h = signed(fnv1a(key))
        remainder = abs(h) % partitions * (-1 if h < 0 else 1)
        return -remainder if remainder < 0 else remainder
    if kind == "sarama_reference":
        return (fnv1a(key) & 0x7FFFFFFF) % partitions
    assert kind == "murmur3"
    return (murmur3(key) & 0x7FFFFFFF) % partitions
