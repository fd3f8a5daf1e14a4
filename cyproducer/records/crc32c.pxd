"""CRC-32C for record batches (Kafka protocol guide, record batch v2), callable without the GIL."""
from libc.stdint cimport uint8_t, uint32_t

# Continues `crc` (0 to start): crc32c(crc32c(0, a), b) == crc32c(0, a + b). `data` may be NULL if n is 0.
cdef uint32_t crc32c(uint32_t crc, const uint8_t* data, Py_ssize_t n) noexcept nogil
