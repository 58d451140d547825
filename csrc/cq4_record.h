/* Records of Java Chronicle Queue: a header of four bytes, then the payload.
 *
 *   00000000              nothing here yet; or it is being written (since 5.16 the header comes last)
 *   bit 31 0, bit 30 0    data, the low 30 bits are its length, which is never 0
 *   bit 31 0, bit 30 1    metadata: the file's own header, index pages, documents of users. Has no number
 *   bit 31 1, bit 30 0    being written: by 4.x any record, later the first of a new file only
 *   C0000000              the end of this file
 *
 * The next header follows the payload: at the next multiple of four where records are padded, right there in
 * older files. There a header can lie across two words; it is put together from both, and counts only if the first
 * is then still the same.
 *
 * Written by the process that holds the write lock, with release; read by everybody, with acquire. */
#ifndef AC_CQ4_RECORD_H
#define AC_CQ4_RECORD_H

#include "atomics.h"

#define AC_CQ4_NOT_COMPLETE 0x80000000u
#define AC_CQ4_META_BIT 0x40000000u
#define AC_CQ4_END_OF_FILE 0xC0000000u
#define AC_CQ4_LENGTH_MASK 0x3FFFFFFFu
#define AC_CQ4_HEADER_BYTES 4u

typedef enum ac_cq4_kind {
    AC_CQ4_NONE,   /* nothing yet */
    AC_CQ4_DATA,   /* a message */
    AC_CQ4_META,   /* metadata */
    AC_CQ4_BUSY,   /* being written */
    AC_CQ4_END,    /* the end of the file */
    AC_CQ4_BEYOND, /* it, or its header, reaches beyond the mapping */
} ac_cq4_kind_t;

/* Read from the aligned words that contain it: a mapping consists of whole words. */
static inline uint32_t ac_cq4_load_unaligned(const uint8_t *at) {
    unsigned bits = (unsigned)((uintptr_t)at & 7) * 8;
    const uint64_t *words = (const uint64_t *)(const void *)(at - bits / 8);
    uint64_t low = ac_load_acquire_u64(words);
    if (bits <= 32) return (uint32_t)(low >> bits);
    uint64_t high = ac_load_acquire_u64(words + 1);
    if (ac_load_acquire_u64(words) != low)
        return 0; /* it is changing at this moment: look again
                                                        later */
    return (uint32_t)(low >> bits | high << (64 - bits));
}

static inline uint32_t ac_cq4_load_header(const uint8_t *at) {
    if (AC_LIKELY(((uintptr_t)at & 3) == 0))
        return ac_load_acquire_u32((const uint32_t *)(const void *)at);
    return ac_cq4_load_unaligned(at);
}

/* A number that is changed in place. Java aligns all of them; one that is not aligned may be seen half
 * changed. */
static inline uint64_t ac_cq4_load_u64(const uint8_t *at) {
    if (AC_LIKELY(((uintptr_t)at & 7) == 0))
        return ac_load_acquire_u64((const uint64_t *)(const void *)at);
    return ac_cq4_load_unaligned(at) | (uint64_t)ac_cq4_load_unaligned(at + 4) << 32;
}

/* What is at `offset` of a mapping; *length is that of the payload, for data and metadata. */
static inline ac_cq4_kind_t ac_cq4_inspect(const uint8_t *base, uint64_t size, uint64_t offset,
                                           uint32_t *length) {
    *length = 0;
    if (size < AC_CQ4_HEADER_BYTES || offset > size - AC_CQ4_HEADER_BYTES) return AC_CQ4_BEYOND;
    uint32_t header = ac_cq4_load_header(base + offset);
    if (header == 0) return AC_CQ4_NONE;
    if (header == AC_CQ4_END_OF_FILE) return AC_CQ4_END;
    if (header & AC_CQ4_NOT_COMPLETE) return AC_CQ4_BUSY;
    *length = header & AC_CQ4_LENGTH_MASK;
    if (*length > size - AC_CQ4_HEADER_BYTES - offset) return AC_CQ4_BEYOND;
    return header & AC_CQ4_META_BIT ? AC_CQ4_META : AC_CQ4_DATA;
}

/* `padding` is 3 where records are padded, else 0. */
static inline uint64_t ac_cq4_after(uint64_t offset, uint32_t length, uint64_t padding) {
    return (offset + AC_CQ4_HEADER_BYTES + length + padding) & ~padding;
}

#endif
