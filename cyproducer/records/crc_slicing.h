/* Table-driven reflected CRC-32 for any polynomial, eight bytes per step ("slicing by 8", Kounavis and
 * Berry 2005). Shared by crc32c (its portable fallback) and hashing (the IEEE CRC of keys). Owns no
 * state: the caller keeps the tables and fills them once, before a second thread can see them.
 *
 * All functions work on the raw register; the caller inverts it before and after.
 */
#ifndef CYPRODUCER_CRC_SLICING_H
#define CYPRODUCER_CRC_SLICING_H

#include <stddef.h>
#include <stdint.h>

/* table[k][b] is the register after byte b and k zero bytes. */
typedef uint32_t crc_slices_t[8][256];

static void crc_slices_fill(crc_slices_t table, uint32_t reflected_polynomial)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (reflected_polynomial & (0u - (crc & 1u)));
        table[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int k = 1; k < 8; k++)
            table[k][byte] = (table[k - 1][byte] >> 8) ^ table[0][table[k - 1][byte] & 0xff];
}

/* Assembled byte by byte, so that it is correct for either endianness and any alignment; compilers turn it
 * into one load if possible. */
static inline uint32_t crc_load_le32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint32_t crc_slices_update(const crc_slices_t table, uint32_t crc, const uint8_t *data, size_t n)
{
    for (; n >= 8; data += 8, n -= 8) {
        uint32_t low = crc ^ crc_load_le32(data);
        uint32_t high = crc_load_le32(data + 4);
        crc = table[7][low & 0xff] ^ table[6][(low >> 8) & 0xff] ^ table[5][(low >> 16) & 0xff] ^
              table[4][low >> 24] ^ table[3][high & 0xff] ^ table[2][(high >> 8) & 0xff] ^
              table[1][(high >> 16) & 0xff] ^ table[0][high >> 24];
    }
    for (; n > 0; data++, n--)
        crc = (crc >> 8) ^ table[0][(crc ^ *data) & 0xff];
    return crc;
}

#endif
