/* CRC-32C (Castagnoli): the kernels and the choice between them. Written in C, not in Cython, because the
 * kernels need intrinsics, a per-function target attribute and inline assembly. Only crc32c.pyx includes this
 * file.
 *
 * crc32c_setup() runs once, when the extension is imported; after that everything here is read-only.
 */
#ifndef CYPRODUCER_CRC32C_IMPL_H
#define CYPRODUCER_CRC32C_IMPL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "crc_slicing.h"

#define CRC32C_POLYNOMIAL 0x82F63B78u /* 0x1EDC6F41, reflected */

/* The CRC instruction has a latency of 3 cycles and one can start every cycle, so three independent lanes
 * keep it busy. Joining lanes costs about twenty table reads, which is negligible for long lanes. Short lanes
 * handle most of the remainder. Both lengths are multiples of 8. */
#define CRC32C_LONG_LANE 4096
#define CRC32C_SHORT_LANE 256

typedef uint32_t (*crc32c_kernel_t)(uint32_t crc, const uint8_t *data, size_t n);
typedef uint32_t crc32c_shift_t[4][256];

static crc_slices_t crc32c_slices;
static crc32c_shift_t crc32c_shift_long;  /* appends CRC32C_LONG_LANE zero bytes to a register */
static crc32c_shift_t crc32c_shift_short; /* the same for CRC32C_SHORT_LANE */

static uint32_t crc32c_table(uint32_t crc, const uint8_t *data, size_t n)
{
    return ~crc_slices_update(crc32c_slices, ~crc, data, n);
}

static crc32c_kernel_t crc32c_kernel = crc32c_table;
static const char *crc32c_kernel_name = "table";

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <nmmintrin.h>
#define CRC32C_HARDWARE "sse4.2"
#if defined(__clang__) /* separates the CRC instructions from SSE4.2; older GCCs don't know that name */
#define CRC32C_TARGET __attribute__((target("sse4.2,crc32")))
#else
#define CRC32C_TARGET __attribute__((target("sse4.2")))
#endif
#define CRC32C_STEP8(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define CRC32C_STEP1(crc, byte) _mm_crc32_u8((crc), (byte))

/* CPUID instead of __builtin_cpu_supports, which needs symbols that not every clang runtime has. */
static int crc32c_hardware_present(void)
{
    unsigned int eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & (1u << 20)) != 0;
}

#elif defined(__aarch64__) && defined(__GNUC__) && (defined(__ARM_FEATURE_CRC32) || defined(__linux__))
/* Assembly, because a Linux wheel is built for plain ARMv8.0, where the CRC instructions are optional. For
 * that target, not every compiler's arm_acle.h declares the intrinsics, and only the operating system knows
 * whether the processor has the instructions. */
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#define CRC32C_HARDWARE "armv8-crc"
#define CRC32C_TARGET

static inline uint32_t crc32c_step8(uint32_t crc, uint64_t word)
{
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    return crc;
}

static inline uint32_t crc32c_step1(uint32_t crc, uint8_t byte)
{
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)byte));
    return crc;
}

#define CRC32C_STEP8(crc, word) crc32c_step8((crc), (word))
#define CRC32C_STEP1(crc, byte) crc32c_step1((crc), (byte))

static int crc32c_hardware_present(void)
{
#if defined(__ARM_FEATURE_CRC32)
    return 1;
#else
    return (getauxval(AT_HWCAP) & (1ul << 7)) != 0; /* HWCAP_CRC32 */
#endif
}
#endif

#if defined(CRC32C_HARDWARE)

static inline uint64_t crc32c_load64(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static inline uint32_t crc32c_shift(const crc32c_shift_t table, uint32_t crc)
{
    return table[0][crc & 0xff] ^ table[1][(crc >> 8) & 0xff] ^ table[2][(crc >> 16) & 0xff] ^
           table[3][crc >> 24];
}

/* Three adjacent lanes of `lane` bytes each. The first continues `crc`; the others start from a zero
 * register, so that shifting the register of the preceding bytes and XORing gives the register of all
 * bytes. */
CRC32C_TARGET static inline uint32_t crc32c_three_lanes(uint32_t crc, const uint8_t *data, size_t lane,
                                                        const crc32c_shift_t shift)
{
    uint32_t second = 0, third = 0;
    for (const uint8_t *end = data + lane; data < end; data += 8) {
        crc = CRC32C_STEP8(crc, crc32c_load64(data));
        second = CRC32C_STEP8(second, crc32c_load64(data + lane));
        third = CRC32C_STEP8(third, crc32c_load64(data + 2 * lane));
    }
    return crc32c_shift(shift, crc32c_shift(shift, crc) ^ second) ^ third;
}

CRC32C_TARGET static uint32_t crc32c_hardware(uint32_t crc, const uint8_t *data, size_t n)
{
    crc = ~crc;
    for (; n > 0 && ((uintptr_t)data & 7) != 0; data++, n--)
        crc = CRC32C_STEP1(crc, *data);
    for (; n >= 3 * CRC32C_LONG_LANE; data += 3 * CRC32C_LONG_LANE, n -= 3 * CRC32C_LONG_LANE)
        crc = crc32c_three_lanes(crc, data, CRC32C_LONG_LANE, crc32c_shift_long);
    for (; n >= 3 * CRC32C_SHORT_LANE; data += 3 * CRC32C_SHORT_LANE, n -= 3 * CRC32C_SHORT_LANE)
        crc = crc32c_three_lanes(crc, data, CRC32C_SHORT_LANE, crc32c_shift_short);
    for (; n >= 8; data += 8, n -= 8)
        crc = CRC32C_STEP8(crc, crc32c_load64(data));
    for (; n > 0; data++, n--)
        crc = CRC32C_STEP1(crc, *data);
    return ~crc;
}

#endif

/* a * b modulo the polynomial. Reflected: the top bit is x^0. */
static uint32_t crc32c_multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
        product ^= b & (0u - (uint32_t)((a & bit) != 0));
        b = (b >> 1) ^ (CRC32C_POLYNOMIAL & (0u - (b & 1u)));
    }
    return product;
}

/* Appending n zero bytes is multiplying by x^(8n); a register is the sum of its four bytes. */
static void crc32c_fill_shift(crc32c_shift_t table, size_t zero_bytes)
{
    uint32_t power = 0x80000000u;  /* x^0 */
    uint32_t square = 0x00800000u; /* x^8 */
    for (; zero_bytes > 0; zero_bytes >>= 1) {
        if (zero_bytes & 1)
            power = crc32c_multiply(power, square);
        square = crc32c_multiply(square, square);
    }
    for (int k = 0; k < 4; k++)
        for (uint32_t byte = 0; byte < 256; byte++)
            table[k][byte] = crc32c_multiply(byte << (8 * k), power);
}

static void crc32c_setup(void)
{
    crc_slices_fill(crc32c_slices, CRC32C_POLYNOMIAL);
    crc32c_fill_shift(crc32c_shift_long, CRC32C_LONG_LANE);
    crc32c_fill_shift(crc32c_shift_short, CRC32C_SHORT_LANE);
#if defined(CRC32C_HARDWARE)
    if (crc32c_hardware_present()) {
        crc32c_kernel = crc32c_hardware;
        crc32c_kernel_name = CRC32C_HARDWARE;
    }
#endif
}

#endif
