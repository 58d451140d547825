#include "crc32.h"

#include <string.h>

#if AC_CRC32_X86
#include <immintrin.h>
#endif

enum { AC_HEADER_BYTES = 60 };

/*
 * A CRC table is linear in its index, so the entries for the eight single bits determine the
 * other 248. Letting the compiler expand them keeps the tables constant: they are right even for
 * a caller that runs before any constructor, and cost nothing when the CPU path is taken.
 */
#define AC_X2(v, a) (v), (v) ^ (a)
#define AC_X4(v, a, b) AC_X2(v, a), AC_X2((v) ^ (b), a)
#define AC_X8(v, a, b, c) AC_X4(v, a, b), AC_X4((v) ^ (c), a, b)
#define AC_X16(v, a, b, c, d) AC_X8(v, a, b, c), AC_X8((v) ^ (d), a, b, c)
#define AC_X32(v, a, b, c, d, e) AC_X16(v, a, b, c, d), AC_X16((v) ^ (e), a, b, c, d)
#define AC_X64(v, a, b, c, d, e, f) AC_X32(v, a, b, c, d, e), AC_X32((v) ^ (f), a, b, c, d, e)
#define AC_X128(v, a, b, c, d, e, f, g)                                                            \
    AC_X64(v, a, b, c, d, e, f), AC_X64((v) ^ (g), a, b, c, d, e, f)
#define AC_SLICE(a, b, c, d, e, f, g, h)                                                           \
    {AC_X128(0u, a, b, c, d, e, f, g), AC_X128(0u ^ (h), a, b, c, d, e, f, g)}

/* Slice s holds the effect of one byte that is followed by s more bytes. */
static const uint32_t ac_ieee_table[8][256] = {
    AC_SLICE(0x77073096, 0xEE0E612C, 0x076DC419, 0x0EDB8832, 0x1DB71064, 0x3B6E20C8, 0x76DC4190,
             0xEDB88320),
    AC_SLICE(0x191B3141, 0x32366282, 0x646CC504, 0xC8D98A08, 0x4AC21251, 0x958424A2, 0xF0794F05,
             0x3B83984B),
    AC_SLICE(0x01C26A37, 0x0384D46E, 0x0709A8DC, 0x0E1351B8, 0x1C26A370, 0x384D46E0, 0x709A8DC0,
             0xE1351B80),
    AC_SLICE(0xB8BC6765, 0xAA09C88B, 0x8F629757, 0xC5B428EF, 0x5019579F, 0xA032AF3E, 0x9B14583D,
             0xED59B63B),
    AC_SLICE(0x3D6029B0, 0x7AC05360, 0xF580A6C0, 0x30704BC1, 0x60E09782, 0xC1C12F04, 0x58F35849,
             0xB1E6B092),
    AC_SLICE(0xCB5CD3A5, 0x4DC8A10B, 0x9B914216, 0xEC53826D, 0x03D6029B, 0x07AC0536, 0x0F580A6C,
             0x1EB014D8),
    AC_SLICE(0xA6770BB4, 0x979F1129, 0xF44F2413, 0x33EF4E67, 0x67DE9CCE, 0xCFBD399C, 0x440B7579,
             0x8816EAF2),
    AC_SLICE(0xCCAA009E, 0x4225077D, 0x844A0EFA, 0xD3E51BB5, 0x7CBB312B, 0xF9766256, 0x299DC2ED,
             0x533B85DA),
};

static const uint32_t ac_castagnoli_table[8][256] = {
    AC_SLICE(0xF26B8303, 0xE13B70F7, 0xC79A971F, 0x8AD958CF, 0x105EC76F, 0x20BD8EDE, 0x417B1DBC,
             0x82F63B78),
    AC_SLICE(0x13A29877, 0x274530EE, 0x4E8A61DC, 0x9D14C3B8, 0x3FC5F181, 0x7F8BE302, 0xFF17C604,
             0xFBC3FAF9),
    AC_SLICE(0xA541927E, 0x4F6F520D, 0x9EDEA41A, 0x38513EC5, 0x70A27D8A, 0xE144FB14, 0xC76580D9,
             0x8B277743),
    AC_SLICE(0xDD45AAB8, 0xBF672381, 0x7B2231F3, 0xF64463E6, 0xE964B13D, 0xD725148B, 0xABA65FE7,
             0x52A0C93F),
    AC_SLICE(0x38116FAC, 0x7022DF58, 0xE045BEB0, 0xC5670B91, 0x8F2261D3, 0x1BA8B557, 0x37516AAE,
             0x6EA2D55C),
    AC_SLICE(0xEF306B19, 0xDB8CA0C3, 0xB2F53777, 0x6006181F, 0xC00C303E, 0x85F4168D, 0x0E045BEB,
             0x1C08B7D6),
    AC_SLICE(0x68032CC8, 0xD0065990, 0xA5E0C5D1, 0x4E2DFD53, 0x9C5BFAA6, 0x3D5B83BD, 0x7AB7077A,
             0xF56E0EF4),
    AC_SLICE(0x493C7D27, 0x9278FA4E, 0x211D826D, 0x423B04DA, 0x847609B4, 0x0D006599, 0x1A00CB32,
             0x34019664),
};

/* Assembled from bytes so that it holds on big-endian machines; compilers emit a single load. */
static inline uint32_t ac_load_le32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint32_t ac_slice_word(const uint32_t (*t)[256], uint32_t word) {
    return t[3][word & 0xFF] ^ t[2][word >> 8 & 0xFF] ^ t[1][word >> 16 & 0xFF] ^ t[0][word >> 24];
}

static uint32_t ac_table_update(const uint32_t (*t)[256], uint32_t reg, const uint8_t *p,
                                size_t len) {
    for (; len >= 8; p += 8, len -= 8) {
        reg = ac_slice_word(t + 4, reg ^ ac_load_le32(p)) ^ ac_slice_word(t, ac_load_le32(p + 4));
    }
    if (len >= 4) {
        reg = ac_slice_word(t, reg ^ ac_load_le32(p));
        p += 4;
        len -= 4;
    }
    for (; len > 0; p++, len--) {
        reg = reg >> 8 ^ t[0][(reg ^ *p) & 0xFF];
    }
    return reg;
}

static uint32_t ac_crc32_portable(const uint8_t *p, size_t len) {
    return ~ac_table_update(ac_ieee_table, 0xFFFFFFFFu, p, len);
}

uint32_t ac_crc32c_seed_portable(uint64_t a, uint64_t b) {
    uint8_t bytes[16];

    for (int i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)(a >> 8 * i);
        bytes[8 + i] = (uint8_t)(b >> 8 * i);
    }
    return ac_table_update(ac_castagnoli_table, 0xFFFFFFFFu, bytes, sizeof bytes);
}

uint32_t ac_crc32c_header_portable(uint32_t seed, const uint64_t words[8]) {
    uint8_t bytes[64];

    for (int i = 0; i < 64; i++) {
        bytes[i] = (uint8_t)(words[i / 8] >> 8 * (i % 8));
    }
    return ~ac_table_update(ac_castagnoli_table, seed, bytes, AC_HEADER_BYTES);
}

int ac_cpu_features;

#if AC_CRC32_X86

#define AC_CLMUL __attribute__((target("pclmul,sse4.1")))
#define AC_CLMUL_INLINE static inline __attribute__((always_inline, target("pclmul,sse4.1")))

/*
 * How the carry-less path works. Bits are reflected throughout: the lowest bit of a register is
 * the coefficient of the highest power. The CRC of a message M is M * x^32 mod P, with the first
 * four bytes of M inverted to stand for the initial register.
 *
 * Each 64-bit half of a block, times a 32-bit constant x^n mod P, is a 96-bit number congruent
 * to that half at its place in M * x^32. All halves can thus be multiplied independently of each
 * other and summed, and one Barrett reduction of the 96-bit sum gives the CRC. A fold from block
 * to block, the usual way, would instead form a chain as long as the message.
 *
 * Leading zeros do not change such a product, so a message whose length is not a multiple of 16
 * is padded at its front: only the first block is odd, and nothing waits for that one.
 */

/*
 * Entry j is for a block with j blocks after it: x^(128j+96) and x^(128j+32), mod P. Bit 0 stands
 * for x^32 here, though no remainder has it: that puts the products where the reduction needs them.
 */
enum { AC_DIRECT_BLOCKS = 8 };
static const uint64_t ac_place[AC_DIRECT_BLOCKS][2] __attribute__((aligned(16))) = {
    {0x0CCAA009E, 0x1DB710640}, {0x15A546366, 0x1751997D0}, {0x174359406, 0x0F1DA05AA},
    {0x1C6E41596, 0x03DB1ECDC}, {0x0AE0B5394, 0x154442BD4}, {0x18CB44E58, 0x1C7569E54},
    {0x1D7CFC6AC, 0x0DF068DC2}, {0x14A7FE880, 0x1EA89367E},
};

/* x^(512+32) and x^(512-32) mod P: moves a block four blocks on and leaves it 128 bits wide. */
static const uint64_t ac_four_on[2] __attribute__((aligned(16))) = {0x154442BD4, 0x1C6E41596};

/* x^95 / P, and P itself. */
static const uint64_t ac_barrett[2] __attribute__((aligned(16))) = {
    0xB4E5B025F7011641,
    0x1DB710641,
};

/* Read at offset n: a shuffle that moves the first n bytes to the end and zeroes the rest. */
static const uint8_t ac_to_end[32] = {
    0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
    0,    1,    2,    3,    4,    5,    6,    7,    8,    9,    10,   11,   12,   13,   14,   15,
};

/* Read at offset n: what remains of the initial register for the bytes from the n-th on. */
static const uint8_t ac_initial[20] = {0xFF, 0xFF, 0xFF, 0xFF};

static inline uint64_t ac_load64(const uint8_t *p) {
    uint64_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint32_t ac_load32(const uint8_t *p) {
    uint32_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

AC_CLMUL_INLINE __m128i ac_load128(const void *p) {
    return _mm_loadu_si128((const __m128i *)p);
}

AC_CLMUL_INLINE __m128i ac_initial_from(size_t n) {
    return _mm_cvtsi32_si128((int)ac_load32(ac_initial + n));
}

/* dst is a constant NULL in the variant that does not copy, so that the store is optimised away. */
AC_CLMUL_INLINE __m128i ac_take(uint8_t *dst, const uint8_t *src, size_t at) {
    __m128i block = ac_load128(src + at);

    if (dst) {
        _mm_storeu_si128((__m128i *)(dst + at), block);
    }
    return block;
}

AC_CLMUL_INLINE __m128i ac_multiply(__m128i block, const uint64_t *constants) {
    __m128i k = _mm_load_si128((const __m128i *)constants);

    return _mm_xor_si128(_mm_clmulepi64_si128(block, k, 0x00),
                         _mm_clmulepi64_si128(block, k, 0x11));
}

AC_CLMUL_INLINE uint32_t ac_reduce(__m128i sum96) {
    __m128i k = _mm_load_si128((const __m128i *)ac_barrett);
    __m128i quotient = _mm_clmulepi64_si128(sum96, k, 0x00);
    __m128i product = _mm_clmulepi64_si128(quotient, k, 0x10);

    return ~(uint32_t)_mm_extract_epi32(_mm_xor_si128(sum96, product), 2);
}

/* The second half of the last block already is at its place, which saves a multiplication. */
AC_CLMUL_INLINE __m128i ac_place_last(__m128i block) {
    __m128i k = _mm_load_si128((const __m128i *)ac_place[0]);

    return _mm_xor_si128(_mm_clmulepi64_si128(block, k, 0x00), _mm_srli_si128(block, 8));
}

AC_CLMUL_INLINE uint32_t ac_crc32_under4(uint8_t *dst, const uint8_t *src, size_t len) {
    uint32_t reg = 0xFFFFFFFFu;

    for (size_t i = 0; i < len; i++) {
        uint8_t byte = src[i];
        if (dst) {
            dst[i] = byte;
        }
        reg = reg >> 8 ^ ac_ieee_table[0][(reg ^ byte) & 0xFF];
    }
    return ~reg;
}

/* The two loads overlap, but the bytes they share end up in the same place, so OR is enough. */
AC_CLMUL_INLINE uint32_t ac_crc32_4to7(uint8_t *dst, const uint8_t *src, size_t len) {
    unsigned shift = 8 * (unsigned)(8 - len);
    uint32_t first = ac_load32(src);
    uint32_t last = ac_load32(src + len - 4);
    uint64_t bits = ((uint64_t)last << 32 | (uint64_t)first << shift) ^ 0xFFFFFFFFull << shift;

    if (dst) {
        memcpy(dst, &first, sizeof first);
        memcpy(dst + len - 4, &last, sizeof last);
    }
    return ac_reduce(_mm_cvtsi64_si128((long long)bits));
}

/* Built in general registers: a block assembled in memory would stall on its own stores. */
AC_CLMUL_INLINE uint32_t ac_crc32_8to15(uint8_t *dst, const uint8_t *src, size_t len) {
    unsigned extra = 8 * (unsigned)(len - 8);
    uint64_t first = ac_load64(src);
    uint64_t last = ac_load64(src + len - 8);
    /* Shifted in two steps because a length of 8 would need a shift by 64, which C does not define. */
    uint64_t head = (first ^ 0xFFFFFFFFu) << (56 - extra) << 8;
    uint64_t tail = last ^ 0xFFFFFFFFull >> extra;
    __m128i k = _mm_load_si128((const __m128i *)ac_place[0]);
    __m128i placed = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)head), k, 0x00);

    if (dst) {
        memcpy(dst, &first, sizeof first);
        memcpy(dst + len - 8, &last, sizeof last);
    }
    return ac_reduce(_mm_xor_si128(placed, _mm_cvtsi64_si128((long long)tail)));
}

/* Sums the current block, which has `after` blocks after it, and those blocks. `initial` is what the first
 * of them takes over from the initial register, so the loop need not care. */
AC_CLMUL_INLINE __m128i ac_sum(__m128i sum, __m128i block, size_t after, __m128i initial,
                               uint8_t *dst, const uint8_t *src, size_t at) {
    if (after > 0) {
        sum = _mm_xor_si128(sum, ac_multiply(block, ac_place[after]));
        block = _mm_xor_si128(ac_take(dst, src, at), initial);
        for (after--, at += 16; after > 0; after--, at += 16) {
            sum = _mm_xor_si128(sum, ac_multiply(block, ac_place[after]));
            block = ac_take(dst, src, at);
        }
    }
    return _mm_xor_si128(sum, ac_place_last(block));
}

/*
 * Long inputs run out of place constants, so four lanes are folded forward until fewer than four
 * blocks remain. Four lanes hide the latency: the multiplier is then the limit.
 */
AC_CLMUL_INLINE __m128i ac_sum_long(__m128i x0, size_t after, __m128i initial, uint8_t *dst,
                                    const uint8_t *src, size_t at) {
    __m128i x1 = _mm_xor_si128(ac_take(dst, src, at), initial);
    __m128i x2 = ac_take(dst, src, at + 16);
    __m128i x3 = ac_take(dst, src, at + 32);
    __m128i sum;

    at += 48;
    after -= 3;
    for (; after >= 4; after -= 4, at += 64) {
        x0 = _mm_xor_si128(ac_multiply(x0, ac_four_on), ac_take(dst, src, at));
        x1 = _mm_xor_si128(ac_multiply(x1, ac_four_on), ac_take(dst, src, at + 16));
        x2 = _mm_xor_si128(ac_multiply(x2, ac_four_on), ac_take(dst, src, at + 32));
        x3 = _mm_xor_si128(ac_multiply(x3, ac_four_on), ac_take(dst, src, at + 48));
    }
    sum = ac_multiply(x0, ac_place[after + 3]);
    sum = _mm_xor_si128(sum, ac_multiply(x1, ac_place[after + 2]));
    sum = _mm_xor_si128(sum, ac_multiply(x2, ac_place[after + 1]));
    return ac_sum(sum, x3, after, _mm_setzero_si128(), dst, src, at);
}

/*
 * The first block takes 1 to 16 bytes, so that whole blocks follow. Where it takes fewer than
 * four, the initial register reaches into the second block.
 */
AC_CLMUL_INLINE uint32_t ac_crc32_from16(uint8_t *dst, const uint8_t *src, size_t len) {
    size_t after = (len - 1) / 16;
    size_t first = len - 16 * after;
    __m128i initial = ac_initial_from(first);
    __m128i block = _mm_xor_si128(ac_take(dst, src, 0), ac_initial_from(0));
    __m128i sum;

    block = _mm_shuffle_epi8(block, ac_load128(ac_to_end + first));
    if (after < AC_DIRECT_BLOCKS) {
        sum = ac_sum(_mm_setzero_si128(), block, after, initial, dst, src, first);
    } else {
        sum = ac_sum_long(block, after, initial, dst, src, first);
    }
    return ac_reduce(sum);
}

AC_CLMUL_INLINE uint32_t ac_crc32_any(uint8_t *dst, const uint8_t *src, size_t len) {
    if (len >= 16) {
        return ac_crc32_from16(dst, src, len);
    }
    if (len >= 8) {
        return ac_crc32_8to15(dst, src, len);
    }
    if (len >= 4) {
        return ac_crc32_4to7(dst, src, len);
    }
    return ac_crc32_under4(dst, src, len);
}

AC_CLMUL static uint32_t ac_crc32_clmul(const uint8_t *src, size_t len) {
    return ac_crc32_any(NULL, src, len);
}

AC_CLMUL static uint32_t ac_crc32_copy_clmul(uint8_t *dst, const uint8_t *src, size_t len) {
    if (!dst) {
        __builtin_unreachable(); /* else every block would test dst before it is stored */
    }
    return ac_crc32_any(dst, src, len);
}

#define AC_WIDE_TARGET target("avx512f,avx512bw,avx512vl,avx512vbmi,vpclmulqdq,avx2,pclmul,sse4.1")
#define AC_WIDE __attribute__((AC_WIDE_TARGET))
#define AC_WIDE_INLINE static inline __attribute__((always_inline, AC_WIDE_TARGET))

/* The same with four blocks in one register. The part before a multiple of 64 bytes comes first, padded at
 * its front; each step moves the sum four blocks on, and at the end each of its lanes goes to its place. */
AC_WIDE_INLINE __m512i ac_multiply_wide(__m512i blocks, __m512i constants) {
    return _mm512_xor_si512(_mm512_clmulepi64_epi128(blocks, constants, 0x00),
                            _mm512_clmulepi64_epi128(blocks, constants, 0x11));
}

/* Reads only the bytes in `mask`: the others may not be ours, or not be mapped. */
AC_WIDE_INLINE __m512i ac_take_wide(uint8_t *dst, const uint8_t *src, __mmask64 mask) {
    __m512i blocks = _mm512_maskz_loadu_epi8(mask, src);

    if (dst) {
        _mm512_mask_storeu_epi8(dst, mask, blocks);
    }
    return blocks;
}

AC_WIDE_INLINE uint32_t ac_crc32_wide_any(uint8_t *dst, const uint8_t *src, size_t len) {
    static const uint8_t counted[64] __attribute__((aligned(64))) = {
        0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
        22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
        44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
    size_t front = (len - 1) % 64 + 1;
    __m512i shift = _mm512_set1_epi8((char)(64 - front));
    __m512i from = _mm512_sub_epi8(_mm512_load_si512(counted), shift);
    __m512i sum = ac_take_wide(dst, src, ~0ull >> (64 - front));
    __m512i places = _mm512_setr_epi64((long long)ac_place[3][0], (long long)ac_place[3][1],
                                       (long long)ac_place[2][0], (long long)ac_place[2][1],
                                       (long long)ac_place[1][0], (long long)ac_place[1][1],
                                       (long long)ac_place[0][0], (long long)ac_place[0][1]);

    sum = _mm512_xor_si512(sum, _mm512_zextsi128_si512(ac_initial_from(0)));
    sum = _mm512_maskz_permutexvar_epi8(~0ull << (64 - front), from, sum);
    if (len > 64) {
        __m512i four_on = _mm512_broadcast_i32x4(ac_load128(ac_four_on));
        __m512i initial = _mm512_zextsi128_si512(ac_initial_from(front < 4 ? front : 4));

        for (size_t at = front; at < len; at += 64) {
            __m512i blocks = ac_take_wide(dst ? dst + at : NULL, src + at, ~0ull);

            blocks = _mm512_xor_si512(blocks, initial);
            initial = _mm512_setzero_si512();
            sum = _mm512_xor_si512(ac_multiply_wide(sum, four_on), blocks);
        }
    }
    sum = ac_multiply_wide(sum, places);

    __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
    return ac_reduce(
        _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));
}

AC_WIDE static uint32_t ac_crc32_wide(const uint8_t *src, size_t len) {
    return ac_crc32_wide_any(NULL, src, len);
}

AC_WIDE static uint32_t ac_crc32_copy_wide(uint8_t *dst, const uint8_t *src, size_t len) {
    if (!dst) {
        __builtin_unreachable(); /* as below */
    }
    return ac_crc32_wide_any(dst, src, len);
}

static int ac_detect_cpu(void) {
    int cpu = 0;

    __builtin_cpu_init();
    if (__builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1")) {
        cpu |= AC_CPU_CLMUL;
    }
    if (__builtin_cpu_supports("sse4.2")) {
        cpu |= AC_CPU_CRC32C;
    }
    if (cpu & AC_CPU_CLMUL && __builtin_cpu_supports("vpclmulqdq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vbmi")) {
        cpu |= AC_CPU_WIDE;
    }
    return cpu;
}

__attribute__((constructor)) static void ac_crc32_resolve(void) {
    __atomic_store_n(&ac_cpu_features, ac_detect_cpu(), __ATOMIC_RELAXED);
}

void ac_crc32_allow(int features) {
    __atomic_store_n(&ac_cpu_features, ac_detect_cpu() & features, __ATOMIC_RELAXED);
}

const char *ac_crc32_implementation(void) {
    int has = __atomic_load_n(&ac_cpu_features, __ATOMIC_RELAXED);
    return has & AC_CPU_WIDE ? "vpclmul" : has & AC_CPU_CLMUL ? "pclmul" : "portable";
}

#else

void ac_crc32_allow(int features) {
    (void)features;
}

const char *ac_crc32_implementation(void) {
    return "portable";
}

#endif

/* For fewer blocks its longer final reduction costs more than it gains. */
enum { AC_WIDE_MIN = 65 };

uint32_t ac_crc32(const void *data, size_t len) {
#if AC_CRC32_X86
    int has = __atomic_load_n(&ac_cpu_features, __ATOMIC_RELAXED);
    if (has & AC_CPU_WIDE && len >= AC_WIDE_MIN) {
        return ac_crc32_wide(data, len);
    }
    if (has & AC_CPU_CLMUL) {
        return ac_crc32_clmul(data, len);
    }
#endif
    return ac_crc32_portable(data, len);
}

uint32_t ac_crc32_copy(void *dst, const void *src, size_t len) {
    /* Callers may pass NULL for an empty payload, which neither memcpy nor the code below accepts. */
    if (len == 0) {
        return 0;
    }
#if AC_CRC32_X86
    int has = __atomic_load_n(&ac_cpu_features, __ATOMIC_RELAXED);
    if (has & AC_CPU_WIDE && len >= AC_WIDE_MIN) {
        return ac_crc32_copy_wide(dst, src, len);
    }
    if (has & AC_CPU_CLMUL) {
        return ac_crc32_copy_clmul(dst, src, len);
    }
#endif
    memcpy(dst, src, len);
    return ac_crc32_portable(dst, len);
}
