/* CRC-32 (IEEE 802.3, reflected polynomial EDB88320), as zlib's crc32(), and CRC-32C (Castagnoli,
 * 82F63B78).
 *
 * Uses carry-less multiplication if the processor has it (V. Gopal et al., "Fast CRC Computation
 * for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009; folding by T bits needs
 * x^(T+32) and x^(T-32) modulo the polynomial, reflected), four at a time with AVX-512 and two with
 * AVX2 (both need VPCLMULQDQ), the ARMv8 instructions if the compiler may use them, and slicing by
 * 8 otherwise and for short inputs.
 */
#ifndef KOPGATE_CRC32_H
#define KOPGATE_CRC32_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if (defined(__x86_64__) || defined(__i386__)) && (defined(__GNUC__) || defined(__clang__))
#define KOPGATE_CLMUL 1
#include <immintrin.h>
#if defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 8 : __GNUC__ >= 10)
#define KOPGATE_WIDE 1
#endif
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#define KOPGATE_ARM 1
#include <arm_acle.h>
#endif

/* A polynomial: constants to fold by n bytes (upper and lower half), constants for the final
 * reduction, and the slicing tables. kopgate_crc32_init computes `by_256` to `by_128` and the
 * tables. */
struct kopgate_polynomial {
    uint32_t reflected;
    uint64_t by_64[2], by_48[2], by_32[2], by_16[2], by_8, barrett[2];
    uint64_t by_256[2], by_192[2], by_128[2];
    uint32_t table[8][256];
};

static struct kopgate_polynomial kopgate_ieee = {
    .reflected = 0xEDB88320u,
    .by_64 = {0x01c6e41596, 0x0154442bd4},
    .by_48 = {0x0174359406, 0x003db1ecdc},
    .by_32 = {0x015a546366, 0x00f1da05aa},
    .by_16 = {0x00ccaa009e, 0x01751997d0},
    .by_8 = 0x0163cd6124,
    .barrett = {0x01f7011641, 0x01db710641},
};

static struct kopgate_polynomial kopgate_castagnoli = {
    .reflected = 0x82F63B78u,
    .by_64 = {0x009e4addf8, 0x00740eef02},
    .by_48 = {0x01d82c63da, 0x001c291d04},
    .by_32 = {0x00ba4fc28e, 0x01384aa63a},
    .by_16 = {0x014cd00bd6, 0x00f20c0dfe},
    .by_8 = 0x00dd45aab8,
    .barrett = {0x00dea713f1, 0x0105ec76f1},
};

static int kopgate_has_clmul = 0, kopgate_has_double = 0, kopgate_has_wide = 0;

static void kopgate_slice(struct kopgate_polynomial *by)
{
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t crc = n;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ by->reflected : crc >> 1;
        by->table[0][n] = crc;
    }
    for (uint32_t n = 0; n < 256; n++)
        for (int slice = 1; slice < 8; slice++) {
            uint32_t before = by->table[slice - 1][n];
            by->table[slice][n] = before >> 8 ^ by->table[0][before & 0xFF];
        }
}

#ifdef KOPGATE_WIDE
/* x^power modulo the polynomial, reflected in 33 bits. */
static uint64_t kopgate_power(const struct kopgate_polynomial *by, int power)
{
    uint32_t value = 0x80000000u;
    while (power--)
        value = value & 1 ? value >> 1 ^ by->reflected : value >> 1;
    return (uint64_t)value << 1;
}

static void kopgate_widen(struct kopgate_polynomial *by)
{
    uint64_t *constants[] = {by->by_256, by->by_192, by->by_128};
    for (int n = 0; n < 3; n++) {
        int bits = 8 * (256 - 64 * n);
        constants[n][0] = kopgate_power(by, bits - 32);
        constants[n][1] = kopgate_power(by, bits + 32);
    }
}
#endif

/* Must be called once, before any other function is used in any thread. */
static void kopgate_crc32_init(void)
{
    kopgate_slice(&kopgate_ieee);
    kopgate_slice(&kopgate_castagnoli);
#ifdef KOPGATE_CLMUL
    __builtin_cpu_init();
    kopgate_has_clmul = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
#ifdef KOPGATE_WIDE
    kopgate_widen(&kopgate_ieee);
    kopgate_widen(&kopgate_castagnoli);
    kopgate_has_double = kopgate_has_clmul && __builtin_cpu_supports("avx2") &&
                         __builtin_cpu_supports("vpclmulqdq");
    kopgate_has_wide = kopgate_has_double && __builtin_cpu_supports("avx512f");
#endif
}

/* The functions below use the inverted register, as in the definition of the CRC. */

static inline uint32_t kopgate_crc_bytes(const struct kopgate_polynomial *by, uint32_t crc,
                                         const uint8_t *at, size_t size)
{
#ifdef KOPGATE_ARM
    for (; size >= 8; at += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        crc = by == &kopgate_ieee ? __crc32d(crc, word) : __crc32cd(crc, word);
    }
#else
    for (; size >= 8; at += 8, size -= 8) {
        uint32_t low = crc ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
                              (uint32_t)at[3] << 24);
        crc = by->table[7][low & 0xFF] ^ by->table[6][low >> 8 & 0xFF] ^
              by->table[5][low >> 16 & 0xFF] ^ by->table[4][low >> 24] ^ by->table[3][at[4]] ^
              by->table[2][at[5]] ^ by->table[1][at[6]] ^ by->table[0][at[7]];
    }
#endif
    while (size--)
        crc = crc >> 8 ^ by->table[0][(crc ^ *at++) & 0xFF];
    return crc;
}

#ifdef KOPGATE_CLMUL
/* Shuffles by n bytes: the mask at n moves the first n bytes to the end; the mask at 16 + n moves
 * the others to the front. 0x80 clears a byte and marks it as cleared. */
static const uint8_t kopgate_shuffles[48] = {
    0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
    0,    1,    2,    3,    4,    5,    6,    7,    8,    9,    10,   11,   12,   13,   14,   15,
    0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
};

#define KOPGATE_LOAD(at) _mm_loadu_si128((const __m128i *)(at))

/* One folding step: move `lane` forward by the distance of `by` and add the data there. */
__attribute__((target("pclmul,sse4.1,ssse3"))) static inline __m128i
kopgate_fold(__m128i lane, __m128i by, __m128i next)
{
    return _mm_xor_si128(
        _mm_xor_si128(_mm_clmulepi64_si128(lane, by, 0x00), _mm_clmulepi64_si128(lane, by, 0x11)),
        next);
}

#define KOPGATE_CONSTANTS(pair) _mm_set_epi64x((int64_t)(pair)[0], (int64_t)(pair)[1])

/* Four lanes, each 16 bytes behind the one before, as one. */
__attribute__((target("pclmul,sse4.1,ssse3"))) static inline __m128i
kopgate_join(const struct kopgate_polynomial *by, __m128i first, __m128i second, __m128i third,
             __m128i fourth)
{
    first = kopgate_fold(first, KOPGATE_CONSTANTS(by->by_48), fourth);
    second = kopgate_fold(second, KOPGATE_CONSTANTS(by->by_32), first);
    return kopgate_fold(third, KOPGATE_CONSTANTS(by->by_16), second);
}

/* The CRC of `lane`, which is behind all before it, and the bytes at `at`. */
__attribute__((target("pclmul,sse4.1,ssse3"))) static inline uint32_t kopgate_crc_of_lane(
    const struct kopgate_polynomial *by, __m128i lane, const uint8_t *at, size_t size)
{
    const __m128i by_16 = KOPGATE_CONSTANTS(by->by_16);
    const __m128i by_8 = _mm_set_epi64x(0, (int64_t)by->by_8);
    const __m128i barrett = KOPGATE_CONSTANTS(by->barrett);
    const __m128i low_words = _mm_setr_epi32(~0, 0, ~0, 0);
    for (; size >= 16; at += 16, size -= 16)
        lane = kopgate_fold(lane, by_16, KOPGATE_LOAD(at));

    if (size) {
        /* Fewer than 16 bytes are left: fold the first `size` bytes of the lane, moved to its end,
         * into the rest of the lane followed by the remaining bytes. */
        __m128i to_end = KOPGATE_LOAD(kopgate_shuffles + size),
                to_front = KOPGATE_LOAD(kopgate_shuffles + 16 + size);
        __m128i last = _mm_blendv_epi8(_mm_shuffle_epi8(lane, to_front),
                                       KOPGATE_LOAD(at + size - 16), to_front);
        lane = kopgate_fold(_mm_shuffle_epi8(lane, to_end), by_16, last);
    }

    /* 128 bits to 64, to 32, then Barrett's reduction. */
    lane = _mm_xor_si128(_mm_srli_si128(lane, 8), _mm_clmulepi64_si128(lane, by_16, 0x10));
    lane = _mm_xor_si128(_mm_srli_si128(lane, 4),
                         _mm_clmulepi64_si128(_mm_and_si128(lane, low_words), by_8, 0x00));
    __m128i quotient = _mm_and_si128(
        _mm_clmulepi64_si128(_mm_and_si128(lane, low_words), barrett, 0x10), low_words);
    lane = _mm_xor_si128(lane, _mm_clmulepi64_si128(quotient, barrett, 0x00));
    return (uint32_t)_mm_extract_epi32(lane, 1);
}

/* `size` is at least 16. */
__attribute__((target("pclmul,sse4.1,ssse3"))) static uint32_t kopgate_crc_folded(
    const struct kopgate_polynomial *by, uint32_t crc, const uint8_t *at, size_t size)
{
    const __m128i by_64 = KOPGATE_CONSTANTS(by->by_64);
    __m128i lane = _mm_xor_si128(KOPGATE_LOAD(at), _mm_cvtsi32_si128((int)crc));

    if (size < 64)
        return kopgate_crc_of_lane(by, lane, at + 16, size - 16);
    __m128i second = KOPGATE_LOAD(at + 16), third = KOPGATE_LOAD(at + 32),
            fourth = KOPGATE_LOAD(at + 48);
    for (at += 64, size -= 64; size >= 64; at += 64, size -= 64) {
        lane = kopgate_fold(lane, by_64, KOPGATE_LOAD(at));
        second = kopgate_fold(second, by_64, KOPGATE_LOAD(at + 16));
        third = kopgate_fold(third, by_64, KOPGATE_LOAD(at + 32));
        fourth = kopgate_fold(fourth, by_64, KOPGATE_LOAD(at + 48));
    }
    return kopgate_crc_of_lane(by, kopgate_join(by, lane, second, third, fourth), at, size);
}
#endif

#ifdef KOPGATE_WIDE
#define KOPGATE_WIDE_TARGET __attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.1,ssse3")))
#define KOPGATE_WIDE_LOAD(at) _mm512_loadu_si512((const void *)(at))
#define KOPGATE_WIDE_CONSTANTS(pair) _mm512_broadcast_i32x4(KOPGATE_CONSTANTS(pair))

/* As kopgate_fold, for each of four lanes. */
KOPGATE_WIDE_TARGET static inline __m512i kopgate_wide_fold(__m512i lanes, __m512i by, __m512i next)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(lanes, by, 0x00),
                                     _mm512_clmulepi64_epi128(lanes, by, 0x11), next, 0x96);
}

/* `size` is at least 256. */
KOPGATE_WIDE_TARGET static uint32_t kopgate_crc_wide(const struct kopgate_polynomial *by,
                                                     uint32_t crc, const uint8_t *at, size_t size)
{
    const __m512i by_256 = KOPGATE_WIDE_CONSTANTS(by->by_256);
    const __m512i by_64 = KOPGATE_WIDE_CONSTANTS(by->by_64);
    __m512i lanes = _mm512_xor_si512(KOPGATE_WIDE_LOAD(at),
                                     _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    __m512i second = KOPGATE_WIDE_LOAD(at + 64), third = KOPGATE_WIDE_LOAD(at + 128),
            fourth = KOPGATE_WIDE_LOAD(at + 192);
    for (at += 256, size -= 256; size >= 256; at += 256, size -= 256) {
        lanes = kopgate_wide_fold(lanes, by_256, KOPGATE_WIDE_LOAD(at));
        second = kopgate_wide_fold(second, by_256, KOPGATE_WIDE_LOAD(at + 64));
        third = kopgate_wide_fold(third, by_256, KOPGATE_WIDE_LOAD(at + 128));
        fourth = kopgate_wide_fold(fourth, by_256, KOPGATE_WIDE_LOAD(at + 192));
    }
    lanes = kopgate_wide_fold(lanes, KOPGATE_WIDE_CONSTANTS(by->by_192), fourth);
    lanes = kopgate_wide_fold(second, KOPGATE_WIDE_CONSTANTS(by->by_128), lanes);
    lanes = kopgate_wide_fold(third, by_64, lanes);
    for (; size >= 64; at += 64, size -= 64)
        lanes = kopgate_wide_fold(lanes, by_64, KOPGATE_WIDE_LOAD(at));
    return kopgate_crc_of_lane(by,
                               kopgate_join(by, _mm512_extracti32x4_epi32(lanes, 0),
                                            _mm512_extracti32x4_epi32(lanes, 1),
                                            _mm512_extracti32x4_epi32(lanes, 2),
                                            _mm512_extracti32x4_epi32(lanes, 3)),
                               at, size);
}

#define KOPGATE_DOUBLE_TARGET __attribute__((target("avx2,vpclmulqdq,pclmul,sse4.1,ssse3")))
#define KOPGATE_DOUBLE_LOAD(at) _mm256_loadu_si256((const __m256i *)(at))
#define KOPGATE_DOUBLE_CONSTANTS(pair) _mm256_broadcastsi128_si256(KOPGATE_CONSTANTS(pair))

/* As kopgate_fold, for each of two lanes. */
KOPGATE_DOUBLE_TARGET static inline __m256i kopgate_double_fold(__m256i lanes, __m256i by,
                                                                __m256i next)
{
    return _mm256_xor_si256(_mm256_xor_si256(_mm256_clmulepi64_epi128(lanes, by, 0x00),
                                             _mm256_clmulepi64_epi128(lanes, by, 0x11)),
                            next);
}

/* `size` is at least 256. Processors without AVX-512 may have this. */
KOPGATE_DOUBLE_TARGET static uint32_t kopgate_crc_double(const struct kopgate_polynomial *by,
                                                         uint32_t crc, const uint8_t *at,
                                                         size_t size)
{
    const __m256i by_128 = KOPGATE_DOUBLE_CONSTANTS(by->by_128);
    __m256i lanes = _mm256_xor_si256(KOPGATE_DOUBLE_LOAD(at),
                                     _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)crc)));
    __m256i second = KOPGATE_DOUBLE_LOAD(at + 32), third = KOPGATE_DOUBLE_LOAD(at + 64),
            fourth = KOPGATE_DOUBLE_LOAD(at + 96);
    for (at += 128, size -= 128; size >= 128; at += 128, size -= 128) {
        lanes = kopgate_double_fold(lanes, by_128, KOPGATE_DOUBLE_LOAD(at));
        second = kopgate_double_fold(second, by_128, KOPGATE_DOUBLE_LOAD(at + 32));
        third = kopgate_double_fold(third, by_128, KOPGATE_DOUBLE_LOAD(at + 64));
        fourth = kopgate_double_fold(fourth, by_128, KOPGATE_DOUBLE_LOAD(at + 96));
    }
    /* Fold the first 64 of the last 128 bytes into the other 64: two registers, four lanes. */
    lanes = kopgate_double_fold(lanes, KOPGATE_DOUBLE_CONSTANTS(by->by_64), third);
    second = kopgate_double_fold(second, KOPGATE_DOUBLE_CONSTANTS(by->by_64), fourth);
    return kopgate_crc_of_lane(
        by,
        kopgate_join(by, _mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1),
                     _mm256_castsi256_si128(second), _mm256_extracti128_si256(second, 1)),
        at, size);
}
#endif

static inline uint32_t kopgate_crc(const struct kopgate_polynomial *by, const uint8_t *at,
                                   size_t size)
{
    uint32_t crc = 0xFFFFFFFFu;
#ifdef KOPGATE_WIDE
    if (kopgate_has_wide && size >= 256)
        return ~kopgate_crc_wide(by, crc, at, size);
    if (kopgate_has_double && size >= 256)
        return ~kopgate_crc_double(by, crc, at, size);
#endif
#ifdef KOPGATE_CLMUL
    if (kopgate_has_clmul && size >= 16)
        return ~kopgate_crc_folded(by, crc, at, size);
#endif
    return ~kopgate_crc_bytes(by, crc, at, size);
}

static inline uint32_t kopgate_crc32(const uint8_t *at, size_t size)
{
    return kopgate_crc(&kopgate_ieee, at, size);
}

static inline uint32_t kopgate_crc32c(const uint8_t *at, size_t size)
{
    return kopgate_crc(&kopgate_castagnoli, at, size);
}

#endif
