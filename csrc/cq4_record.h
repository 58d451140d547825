/* Records of Java Chronicle Queue: a header of four bytes, then the payload.
 *
 *   00000000              nothing here yet; or it is being written (since 5.16 the header comes last)
 *   bit 31 0, bit 30 0    data, the low 30 bits are its length, which is never 0
 *   bit 31 0, bit 30 1    metadata: the file's own header, index pages, documents of users. Has no number
 *   bit 31 1, bit 30 0    being written: by 4.x any record, later the first of a new file only
 *   C0000000              the end of this file
 *
 * The next header follows the payload: at the next multiple of four where records are padded, right there in
 * older files. An unaligned header can lie across two cache lines, and then one load can see half of a store;
 * so it counts only if two loads agree.
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
    AC_CQ4_BEYOND, /* it, or its header, reaches beyond what is mapped */
} ac_cq4_kind_t;

/* Shared words that need not be aligned. */
typedef uint32_t __attribute__((aligned(1), may_alias)) ac_cq4_any_u32_t;
typedef uint64_t __attribute__((aligned(1), may_alias)) ac_cq4_any_u64_t;

static inline uint32_t ac_cq4_load_unaligned(const uint8_t *at) {
    const volatile ac_cq4_any_u32_t *word = (const volatile ac_cq4_any_u32_t *)at;
    uint32_t header = *word;
    if (((uintptr_t)at & 63) > 60) {
        ac_cpu_relax();
        if (*word != header) header = 0; /* look again later */
    }
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return header;
}

static inline uint32_t ac_cq4_load_header(const uint8_t *at) {
    if (AC_LIKELY(((uintptr_t)at & 3) == 0))
        return ac_load_acquire_u32((const uint32_t *)(const void *)at);
    return ac_cq4_load_unaligned(at);
}

/* A number that is changed in place. Java aligns all of them; a file that does not gets a plain load. */
static inline uint64_t ac_cq4_load_u64(const uint8_t *at) {
    if (AC_LIKELY(((uintptr_t)at & 7) == 0))
        return ac_load_acquire_u64((const uint64_t *)(const void *)at);
    return *(const volatile ac_cq4_any_u64_t *)(const void *)at;
}

/* What is at `offset` of a mapping; *length is that of the payload, of data and metadata. */
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
