#ifndef AC_CRC32_H
#define AC_CRC32_H

#include <stddef.h>
#include <stdint.h>

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
 * inverted and is not itself a CRC-32C value.
 */
uint32_t ac_crc32c_seed(uint64_t a, uint64_t b);

/* Continues from seed over exactly 60 bytes and returns the finished (inverted) CRC-32C. */
uint32_t ac_crc32c_header(uint32_t seed, const void *header60);

/* "pclmul" or "portable": what ac_crc32 runs on at present. */
const char *ac_crc32_implementation(void);

/* For tests: non-zero turns all CPU-specific code off, zero returns to what the CPU offers. */
void ac_crc32_force_portable(int on);

#endif
