#ifndef AC_CRC32_H
#define AC_CRC32_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define AC_CRC32_X86 1
#else
#define AC_CRC32_X86 0
#endif

/* CRC-32 (IEEE 802.3), equal to zlib's crc32(0, data, len). data may be NULL when len is 0. */
uint32_t ac_crc32(const void *data, size_t len);

/*
 * Copies len bytes and returns their CRC-32, so that a payload crosses the cache only once.
 * The regions must not overlap, and src must not change during the call.
 */
uint32_t ac_crc32_copy(void *dst, const void *src, size_t len);

/*
 * CRC-32C (Castagnoli) of a record header in two steps, so that the 16 bytes which are the same
 * for many headers are digested once. The seed is the raw running register: it has not been
 * inverted and is not itself a CRC-32C value. The header is its eight little-endian words, of which
 * the upper half of the last is left out: exactly 60 bytes count, and the result is inverted.
 *
 * Both are inline, with the instruction as assembler text, because an intrinsic can only be inlined
 * into functions compiled for that CPU; like this the words never leave the caller's registers.
 */
uint32_t ac_crc32c_seed_portable(uint64_t a, uint64_t b);
uint32_t ac_crc32c_header_portable(uint32_t seed, const uint64_t words[8]);

/* What the CPU offers. Zero until the constructor has run, which is safe: it selects the portable code. A
 * flag and a predicted branch cost less than an indirect call. Accessed atomically because tests may change
 * it while threads run; a relaxed load is a plain load. */
enum { AC_CPU_CLMUL = 1, AC_CPU_CRC32C = 2, AC_CPU_WIDE = 4 };
extern int ac_cpu_features;

static inline int ac_cpu_has(int feature) {
    return __builtin_expect((__atomic_load_n(&ac_cpu_features, __ATOMIC_RELAXED) & feature) != 0,
                            1);
}

#if AC_CRC32_X86
static inline uint64_t ac_crc32c_word(uint64_t reg, uint64_t word) {
    __asm__("crc32q %1, %0" : "+r"(reg) : "r"(word));
    return reg;
}
#endif

#if AC_CRC32_X86
static inline uint32_t ac_crc32c_seed_cpu(uint64_t a, uint64_t b) {
    return (uint32_t)ac_crc32c_word(ac_crc32c_word(0xFFFFFFFFu, a), b);
}

static inline uint32_t ac_crc32c_header_cpu(uint32_t seed, const uint64_t words[8]) {
    uint64_t reg = seed;
    uint32_t half = (uint32_t)words[7];
    reg = ac_crc32c_word(reg, words[0]);
    reg = ac_crc32c_word(reg, words[1]);
    reg = ac_crc32c_word(reg, words[2]);
    reg = ac_crc32c_word(reg, words[3]);
    reg = ac_crc32c_word(reg, words[4]);
    reg = ac_crc32c_word(reg, words[5]);
    reg = ac_crc32c_word(reg, words[6]);
    __asm__("crc32l %1, %k0" : "+r"(reg) : "r"(half));
    return ~(uint32_t)reg;
}
#endif

static inline uint32_t ac_crc32c_seed(uint64_t a, uint64_t b) {
#if AC_CRC32_X86
    if (ac_cpu_has(AC_CPU_CRC32C)) return ac_crc32c_seed_cpu(a, b);
#endif
    return ac_crc32c_seed_portable(a, b);
}

static inline uint32_t ac_crc32c_header(uint32_t seed, const uint64_t words[8]) {
#if AC_CRC32_X86
    if (ac_cpu_has(AC_CPU_CRC32C)) return ac_crc32c_header_cpu(seed, words);
#endif
    uint64_t copy[8];
    memcpy(copy, words, sizeof copy); /* keeps the caller's in registers */
    return ac_crc32c_header_portable(seed, copy);
}

/* Both steps, for headers with their own seeds: the CPU is checked only once. */
static inline uint32_t ac_crc32c_whole(uint64_t a, uint64_t b, const uint64_t words[8]) {
#if AC_CRC32_X86
    if (ac_cpu_has(AC_CPU_CRC32C)) return ac_crc32c_header_cpu(ac_crc32c_seed_cpu(a, b), words);
#endif
    return ac_crc32c_header(ac_crc32c_seed_portable(a, b), words);
}

/* "vpclmul", "pclmul" or "portable": what ac_crc32 currently uses. */
const char *ac_crc32_implementation(void);

/* For tests: uses only this much of what the CPU offers; -1 = all of it, 0 = portable code only. */
void ac_crc32_allow(int features);

#endif
