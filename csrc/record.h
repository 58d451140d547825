/* The record: a 64-byte header, the payload, perhaps a trailer, padding to the next multiple of 64.
 *
 *   0  u32 commit_len    0 = not committed, else length of payload and trailer + 1; stored last
 *   4  u8  version 1, then three zero bytes
 *   8  u64 seq           16 u64 timestamp_ns
 *  24  u16 type_id       26 u16 flags        28 u32 CRC-32 of payload and trailer
 *  32  u64 cause_source  40 u64 cause_seq    (AC_FLAG_CAUSE)
 *  32  u64 expires_ns                        (AC_FLAG_EXPIRES, never together with AC_FLAG_CAUSE)
 *  48  u32 batch_left    52 u32 epoch        (AC_FLAG_OURS)
 *  56  u32 cause_epoch   (AC_FLAG_CAUSE)      60 u32 header_check (AC_FLAG_OURS)
 *
 * Everything from 32 on is spare in the format and zero in other programs' records, and so are flags.
 * batch_left is the number of records of the same batch that follow: recovery never keeps part of a
 * batch. cause_epoch is the epoch of the record that is the cause, 0 if it is not known: a power cut can
 * cause a seq to be assigned twice, but never with the same epoch. expires_ns is when the message is of no use any more,
 * in Unix nanoseconds; readers deliver it anyway. With AC_FLAG_TRAILER the last bytes of what commit_len
 * counts are not payload: trailer.h describes them. header_check is the CRC-32C of the first 60 bytes,
 * seeded with segment id and epoch, so a stale or torn header cannot pass, wherever it was copied from.
 *
 * Written by the one writer; read by everybody. commit_len is stored with release after all else and
 * loaded with acquire before all else; a reader that sees 0 looks again later, so stale is harmless. */
#ifndef AC_RECORD_H
#define AC_RECORD_H

#include "aiochronicle.h"
#include "atomics.h"
#include "crc32.h"

#include <stddef.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the format is little-endian, and so must the machine be"
#endif

#define AC_HEADER_SIZE 64u
#define AC_ALIGNMENT 64u
#define AC_RECORD_VERSION 1u
#define AC_TYPE_PADDING 0xFFFFu

/* SYNCED: everything before this record was on disk when it was appended. Any fault before it is damage,
 * not the trace of a power cut. In sync mode every record carries it, at the cost of no extra sync. */
enum {
    AC_FLAG_OURS = 1,
    AC_FLAG_CAUSE = 2,
    AC_FLAG_SYNCED = 4,
    AC_FLAG_EXPIRES = 8,
    AC_FLAG_TRAILER = 16
};

typedef struct ac_record {
    uint32_t commit_len;
    uint8_t version;
    uint8_t zero[3];
    uint64_t seq;
    uint64_t timestamp_ns;
    uint16_t type_id;
    uint16_t flags;
    uint32_t checksum;
    uint64_t cause_source;
    uint64_t cause_seq;
    uint32_t batch_left;
    uint32_t epoch;
    uint32_t cause_epoch;
    uint32_t header_check;
} ac_record_t;

_Static_assert(sizeof(ac_record_t) == AC_HEADER_SIZE, "record header");
_Static_assert(offsetof(ac_record_t, seq) == 8, "record seq");
_Static_assert(offsetof(ac_record_t, type_id) == 24, "record type");
_Static_assert(offsetof(ac_record_t, cause_source) == 32, "record spare");
_Static_assert(offsetof(ac_record_t, header_check) == 60, "record check");

/* Bytes that a payload and its trailer, `length` together, occupy in a segment. `length` < 2^32, so this
 * cannot overflow. */
static inline uint64_t ac_record_size(uint64_t length) {
    return (AC_HEADER_SIZE + length + (AC_ALIGNMENT - 1)) & ~(uint64_t)(AC_ALIGNMENT - 1);
}

/* For a message that a reader returned. */
static inline uint32_t ac_payload_length(const ac_message_t *message) {
    if (AC_UNLIKELY(message->flags & AC_FLAG_TRAILER)) return message->length - message->trailer;
    return message->length;
}

/* What the writer decides about a record. */
typedef struct ac_stamp {
    uint64_t seq;
    uint64_t timestamp_ns;
    const ac_cause_t *cause; /* NULL = none */
    uint32_t batch_left;
    uint32_t epoch;
    uint16_t type_id;
    uint16_t flags; /* AC_FLAG_SYNCED, AC_FLAG_TRAILER */
} ac_stamp_t;

/* Writes the header except its commit word, which the caller stores with release as length + 1. `at` is
 * zeroed memory inside the segment, with the payload in place. The header is built in 8-byte words, because
 * the check reads it back that way: narrower stores would stall it. */
static inline void ac_record_write_header(uint8_t *at, uint32_t length, uint32_t checksum,
                                          const ac_stamp_t *stamp, uint32_t seed) {
    uint64_t words[8];
    ac_cause_t cause = {0};
    unsigned flags = AC_FLAG_OURS | stamp->flags;
    if (stamp->cause) {
        cause = *stamp->cause;
        flags |= cause.is_expiry ? AC_FLAG_EXPIRES : AC_FLAG_CAUSE;
    }
    words[0] = ((uint64_t)AC_RECORD_VERSION << 32) | (uint64_t)(length + 1);
    words[1] = stamp->seq;
    words[2] = stamp->timestamp_ns;
    words[3] = (uint64_t)checksum << 32 | (uint64_t)flags << 16 | (uint64_t)stamp->type_id;
    words[4] = cause.source;
    words[5] = cause.seq;
    words[6] = (uint64_t)stamp->epoch << 32 | (uint64_t)stamp->batch_left;
    words[7] = cause.epoch;
    words[7] |= (uint64_t)ac_crc32c_header(seed, words) << 32;
    uint64_t *target = (uint64_t *)(void *)at;
    ac_store_relaxed_u32((uint32_t *)(void *)(at + 4), AC_RECORD_VERSION);
#pragma GCC unroll 8
    for (int i = 1; i < 8; i++)
        ac_store_relaxed_u64(target + i, words[i]);
}

static inline uint32_t *ac_record_commit_word(uint8_t *at) {
    return (uint32_t *)(void *)at;
}

static inline uint32_t ac_record_load_commit(const uint8_t *at) {
    return ac_load_acquire_u32((const uint32_t *)(const void *)at);
}

/* For a committed record. */
static inline uint16_t ac_record_load_type(const uint8_t *at) {
    return (uint16_t)ac_load_relaxed_u64((const uint64_t *)(const void *)(at + 24));
}

static inline uint32_t ac_record_load_checksum(const uint8_t *at) {
    return (uint32_t)(ac_load_relaxed_u64((const uint64_t *)(const void *)(at + 24)) >> 32);
}

/* How much of a record to check. */
enum ac_check { AC_CHECK_HEADER, AC_CHECK_PAYLOAD };

enum { AC_RECORD_NONE = 0, AC_RECORD_GOOD = 1, AC_RECORD_BAD = -1 };

/* Reads the record at `offset` of a segment mapping of `size` bytes, trusting nothing: the header is copied
 * once and only the copy is used. The copy is made of 8-byte words, the first of them together with the
 * commit word, because the check reads it in 8-byte words: other widths would stall it. GOOD fills *out
 * (before any check, so that nothing must be kept across the checks) and *checksum, that of a payload that
 * has yet to be checked; NONE: not committed, or no room for a header; BAD: *why names the broken rule, and
 * *out is undefined. */
static inline int ac_record_inspect_header(const uint8_t *base, uint64_t size, uint64_t offset,
                                           uint32_t segment, ac_message_t *out, uint32_t *checksum,
                                           const char **why) {
    uint64_t words[8];
    if (AC_UNLIKELY(offset > size || size - offset < AC_HEADER_SIZE)) return AC_RECORD_NONE;
    const uint8_t *at = base + offset;
    const uint64_t *source = (const uint64_t *)(const void *)at;
    words[0] = ac_load_acquire_u64(source);
    if ((uint32_t)words[0] == 0) return AC_RECORD_NONE;
#pragma GCC unroll 8
    for (int i = 1; i < 8; i++)
        words[i] = ac_load_relaxed_u64(source + i);
    out->record = at;
    out->seq = words[1];
    out->timestamp_ns = words[2];
    out->cause_source = words[4];
    out->cause_seq = words[5];
    uint32_t length = (uint32_t)words[0] - 1;
    uint16_t type_id = (uint16_t)words[3], flags = (uint16_t)(words[3] >> 16);
    uint32_t epoch = (uint32_t)(words[6] >> 32);
    *checksum = (uint32_t)(words[3] >> 32);
    if (AC_UNLIKELY(length > size - offset - AC_HEADER_SIZE)) {
        *why = "length reaches beyond the segment";
        return AC_RECORD_BAD;
    }
    if (AC_UNLIKELY((uint8_t)(words[0] >> 32) != AC_RECORD_VERSION)) {
        *why = "unknown record version";
        return AC_RECORD_BAD;
    }
    if (AC_UNLIKELY(!(flags & AC_FLAG_OURS)) && (flags | epoch | (uint32_t)(words[7] >> 32))) {
        *why = "bytes of ours without the flag that announces them";
        return AC_RECORD_BAD;
    }
    if (AC_LIKELY(flags & AC_FLAG_OURS) &&
        AC_UNLIKELY(ac_crc32c_whole(segment, epoch, words) != (uint32_t)(words[7] >> 32))) {
        *why = "header check fails";
        return AC_RECORD_BAD;
    }
    out->segment = segment;
    out->length = length;
    out->type_id = type_id;
    out->flags = flags & 0x7FFF; /* the top bit is for marks that are never stored */
    out->batch_left = flags & AC_FLAG_OURS ? (uint32_t)words[6] : 0;
    return AC_RECORD_GOOD;
}

/* The same with the payload, if `check` asks for it; padding has none. */
static inline int ac_record_inspect(const uint8_t *base, uint64_t size, uint64_t offset,
                                    uint32_t segment, enum ac_check check, ac_message_t *out,
                                    const char **why) {
    uint32_t checksum;
    int found = ac_record_inspect_header(base, size, offset, segment, out, &checksum, why);
    if (found == AC_RECORD_GOOD && check == AC_CHECK_PAYLOAD &&
        AC_LIKELY(out->type_id != AC_TYPE_PADDING) &&
        AC_UNLIKELY(ac_crc32(out->record + AC_HEADER_SIZE, out->length) != checksum)) {
        *why = "payload checksum fails";
        return AC_RECORD_BAD;
    }
    return found;
}

#endif
