/* crc32 (polynomial 0xEDB88320 in reflected form): by carry-less products where the processor has them, else by tables. */

#include <pthread.h>
#include <string.h>

#include "internal.h"

#define SLICES 8

static uint32_t table[SLICES][256];
static pthread_once_t made = PTHREAD_ONCE_INIT;

static void make_table(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? 0xEDB88320u : 0);
        table[0][byte] = crc;
    }
    for (int slice = 1; slice < SLICES; slice++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = table[slice - 1][byte];
            table[slice][byte] = (before >> 8) ^ table[0][before & 0xFF];
        }
}

/* The register of the checksum, which is its complement, after some bytes. */
static uint32_t by_tables(uint32_t crc, const unsigned char *at, size_t nbytes) {
    for (; nbytes >= 8; nbytes -= 8, at += 8) {
        uint32_t low, high;
        memcpy(&low, at, 4);
        memcpy(&high, at + 4, 4);
        low ^= crc;
        crc = table[7][low & 0xFF] ^ table[6][(low >> 8) & 0xFF] ^ table[5][(low >> 16) & 0xFF] ^ table[4][low >> 24] ^
              table[3][high & 0xFF] ^ table[2][(high >> 8) & 0xFF] ^ table[1][(high >> 16) & 0xFF] ^ table[0][high >> 24];
    }
    for (; nbytes > 0; nbytes--, at++) crc = (crc >> 8) ^ table[0][(crc ^ *at) & 0xFF];
    return crc;
}

#if defined(__x86_64__) && defined(__GNUC__)

#include <wmmintrin.h>

#define FOLDS __attribute__((target("pclmul,sse2")))

/* What stands in `x` moved on by as many bits as the two powers of x say (modulo the polynomial), plus `next`. */
FOLDS static __m128i folded(__m128i x, __m128i powers, __m128i next) {
    __m128i low = _mm_clmulepi64_si128(x, powers, 0x00), high = _mm_clmulepi64_si128(x, powers, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

FOLDS static __m128i loaded(const unsigned char *at) { return _mm_loadu_si128((const __m128i *)(const void *)at); }

/* The same for 64 bytes and more, in four lanes.  Source: V. Gopal and others, Fast CRC Computation for Generic
   Polynomials Using PCLMULQDQ Instruction, Intel 2009. */
FOLDS static uint32_t by_products(uint32_t crc, const unsigned char *at, size_t nbytes) {
    const __m128i by_512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4), by_128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    __m128i lane[4];
    unsigned char rest[16];
    for (int i = 0; i < 4; i++) lane[i] = loaded(at + 16 * i);
    lane[0] = _mm_xor_si128(lane[0], _mm_cvtsi32_si128((int)crc));
    for (at += 64, nbytes -= 64; nbytes >= 64; at += 64, nbytes -= 64)
        for (int i = 0; i < 4; i++) lane[i] = folded(lane[i], by_512, loaded(at + 16 * i));
    for (int i = 1; i < 4; i++) lane[0] = folded(lane[0], by_128, lane[i]);
    _mm_storeu_si128((__m128i *)(void *)rest, lane[0]);
    return by_tables(by_tables(0, rest, sizeof rest), at, nbytes);
}

static bool has_products(void) { return __builtin_cpu_supports("pclmul") != 0; }

#else

static uint32_t by_products(uint32_t crc, const unsigned char *at, size_t nbytes) { return by_tables(crc, at, nbytes); }

static bool has_products(void) { return false; }

#endif

uint32_t bn_crc32(uint32_t crc, const void *data, size_t nbytes) {
    pthread_once(&made, make_table);
    return ~(nbytes >= 64 && has_products() ? by_products(~crc, data, nbytes) : by_tables(~crc, data, nbytes));
}
