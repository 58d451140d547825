/* An independent check of the segments of a queue at rest, in C because a campaign runs it a million times.
 *
 * It uses no code of the engine, not even its checksums: it reads the files and checks each rule of the format.
 * tests/reference/format.py is the complete check and covers some of the same queues; this one covers what a recovery
 * can get wrong in a segment, and beside.h the files beside the segments. */
#ifndef AC_TEST_WALK_H
#define AC_TEST_WALK_H

#include "chart.h"
#include "ledger.h"

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    WALK_SEGMENT_MAX = 65536,
    WALK_DATA = 64,
    WALK_MAGIC = 0x53454730,
    WALK_VERSION = 2,
    WALK_PADDING = 0xFFFF,
    WALK_HEADER = 64,
    WALK_CHECKED = 60 /* bytes of the header that its own checksum covers */
};

typedef struct walk {
    uint64_t records;
    uint64_t first_seq; /* of records > 0, as are the next three */
    uint64_t next_seq;
    uint64_t timestamp_ns;
    uint32_t batch_left;
    uint64_t end_segment; /* where a reader stops */
    uint64_t end_offset;
    int ended;
    uint64_t digest;  /* of the requested segments */
    chart_t *chart;   /* to be filled in; NULL = not wanted */
    char broken[200]; /* the first rule that is broken; empty = none */
} walk_t;

__attribute__((format(printf, 2, 3))) static inline int walk_fails(walk_t *walk, const char *text,
                                                                   ...) {
    va_list values;
    va_start(values, text);
    vsnprintf(walk->broken, sizeof walk->broken, text, values);
    va_end(values);
    return -1;
}

/* A reflected CRC of 32 bits, byte by byte from a table made for its polynomial. */
static inline uint32_t walk_crc(uint32_t polynomial, const uint8_t *bytes, size_t length) {
    static uint32_t tables[2][256], made[2];
    int which = polynomial == 0xEDB88320u;
    if (made[which] != polynomial) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t value = i;
            for (int bit = 0; bit < 8; bit++)
                value = value >> 1 ^ (value & 1 ? polynomial : 0);
            tables[which][i] = value;
        }
        made[which] = polynomial;
    }
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < length; i++)
        crc = crc >> 8 ^ tables[which][(crc ^ bytes[i]) & 0xFF];
    return ~crc;
}

static inline uint64_t walk_number(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

static inline int walk_header_check(const uint8_t *at, uint64_t segment) {
    uint8_t seeded[16 + WALK_CHECKED];
    uint64_t epoch = walk_number(at + 52, 4);
    memcpy(seeded, &segment, 8);
    memcpy(seeded + 8, &epoch, 8);
    memcpy(seeded + 16, at, WALK_CHECKED);
    return walk_crc(0x82F63B78u, seeded, sizeof seeded) == walk_number(at + WALK_CHECKED, 4);
}

static inline int walk_record(walk_t *walk, const uint8_t *at, uint64_t salt, uint64_t length) {
    uint8_t expected[PAYLOAD_MAX];
    uint64_t seq = walk_number(at + 8, 8), timestamp_ns = walk_number(at + 16, 8);
    uint32_t batch_left = (uint32_t)walk_number(at + 48, 4);
    if (walk->records && seq != walk->next_seq)
        return walk_fails(walk, "seq %" PRIu64 " follows %" PRIu64, seq, walk->next_seq - 1);
    if (timestamp_ns < walk->timestamp_ns)
        return walk_fails(walk, "the timestamp of seq %" PRIu64 " goes back", seq);
    if (walk->batch_left && batch_left != walk->batch_left - 1)
        return walk_fails(walk, "the batch before seq %" PRIu64 " is broken off", seq);
    if (length != payload_length(salt, seq))
        return walk_fails(walk, "seq %" PRIu64 " has %" PRIu64 " bytes", seq, length);
    payload_fill(salt, seq, expected);
    if (memcmp(at + WALK_HEADER, expected, length) != 0)
        return walk_fails(walk, "not the payload of seq %" PRIu64, seq);
    if (walk_crc(0xEDB88320u, at + WALK_HEADER, length) != walk_number(at + 28, 4))
        return walk_fails(walk, "the checksum of seq %" PRIu64 " is wrong", seq);
    if (walk->records++ == 0) walk->first_seq = seq;
    walk->next_seq = seq + 1;
    walk->timestamp_ns = timestamp_ns;
    walk->batch_left = batch_left;
    return 0;
}

static inline int walk_chart_segment(walk_t *walk, uint64_t id) {
    chart_t *chart = walk->chart;
    if (!chart) return 0;
    if (chart->segments == 0) chart->first_segment = id;
    if (chart->segments == CHART_SEGMENTS_MAX || id != chart->first_segment + chart->segments)
        return walk_fails(walk, "segment %" PRIu64 " has no place in the chart", id);
    chart->segment[chart->segments++] = (chart_segment_t){WALK_DATA, chart->records, 0, 0};
    return 0;
}

static inline int walk_chart_record(walk_t *walk, const uint8_t *at, uint64_t offset,
                                    uint64_t length) {
    chart_t *chart = walk->chart;
    if (!chart) return 0;
    if (chart->records == CHART_RECORDS_MAX) return walk_fails(walk, "more records than expected");
    int padding = walk_number(at + 24, 2) == WALK_PADDING;
    chart->record[chart->records++] =
        (chart_record_t){.offset = offset,
                         .seq = padding ? walk->next_seq : walk_number(at + 8, 8),
                         .timestamp_ns = walk_number(at + 16, 8),
                         .length = (uint32_t)length,
                         .type_id = (uint32_t)walk_number(at + 24, 2)};
    chart->segment[chart->segments - 1].count++;
    return 0;
}

static inline int walk_zeros(walk_t *walk, const uint8_t *bytes, uint64_t from, uint64_t to,
                             uint64_t segment) {
    int zeros =
        from == to || (bytes[from] == 0 && !memcmp(bytes + from, bytes + from + 1, to - from - 1));
    return zeros
               ? 0
               : walk_fails(walk, "segment %" PRIu64 " is not zero behind %" PRIu64, segment, from);
}

static inline int walk_records(walk_t *walk, const uint8_t *bytes, uint64_t size, uint64_t salt,
                               uint64_t segment) {
    uint64_t offset = WALK_DATA;
    while (size - offset >= WALK_HEADER) {
        const uint8_t *at = bytes + offset;
        uint64_t commit_word = walk_number(at, 4);
        if (commit_word == 0) break;
        uint64_t length = commit_word - 1, taken = (WALK_HEADER + length + 63) & ~(uint64_t)63;
        if (taken > size - offset || walk_number(at + 4, 4) != 1 || walk_number(at + 56, 4) != 0 ||
            (walk_number(at + 26, 2) | 4) != 5 || !walk_header_check(at, segment))
            return walk_fails(walk, "segment %" PRIu64 " offset %" PRIu64 ": bad header", segment,
                              offset);
        if (walk_number(at + 24, 2) != WALK_PADDING && walk_record(walk, at, salt, length) < 0)
            return -1;
        if (walk_chart_record(walk, at, offset, length) < 0) return -1;
        offset += taken;
    }
    walk->end_segment = segment;
    walk->end_offset = offset;
    return 0;
}

/* Checks that only zeros follow the end of a queue that was just recovered, in later segments, too. */
static inline int walk_segment(walk_t *walk, const uint8_t *bytes, uint64_t size, uint64_t salt,
                               uint64_t segment) {
    if (walk_number(bytes, 4) != WALK_MAGIC || walk_number(bytes + 4, 4) != WALK_VERSION ||
        walk_number(bytes + 8, 4) != segment)
        return walk_fails(walk, "segment %" PRIu64 ": bad header", segment);
    if (walk_chart_segment(walk, segment) < 0) return -1;
    if (walk->ended) return walk_zeros(walk, bytes, WALK_DATA, size, segment);
    if (walk_records(walk, bytes, size, salt, segment) < 0) return -1;
    int sealed = (int)(walk_number(bytes + 12, 4) & 1);
    uint64_t sealed_end = walk_number(bytes + 16, 8);
    if (sealed && sealed_end != 0 && sealed_end != walk->end_offset)
        return walk_fails(walk, "segment %" PRIu64 " says it ends at %" PRIu64 ", not %" PRIu64,
                          segment, sealed_end, walk->end_offset);
    if (walk->chart) {
        walk->chart->segment[walk->chart->segments - 1].end = walk->end_offset;
        walk->chart->segment[walk->chart->segments - 1].sealed = sealed;
    }
    if (sealed || size - walk->end_offset < WALK_HEADER) return 0;
    walk->ended = 1;
    return walk_zeros(walk, bytes, walk->end_offset, size, segment);
}

static inline uint64_t walk_digest(uint64_t sum, const uint8_t *bytes, uint64_t size) {
    for (uint64_t offset = 0; offset < size; offset += 8)
        sum = (sum ^ walk_number(bytes + offset, 8)) * 0x9E3779B97F4A7C15u, sum ^= sum >> 32;
    return sum;
}

/* Bytes of the unfinished record may be there, but no whole segments. */
static inline int walk_has_set_aside(const char *path) {
    char pattern[1100];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/recovered/*.q", path);
    if (glob(pattern, 0, NULL, &found) != 0) return 0;
    globfree(&found);
    return 1;
}

static inline int walk_list(walk_t *walk, const char *path, uint64_t *first, uint64_t *last) {
    DIR *directory = opendir(path);
    if (!directory) return walk_fails(walk, "no directory");
    *first = UINT64_MAX;
    *last = 0;
    for (struct dirent *entry; (entry = readdir(directory));) {
        char *suffix;
        uint64_t segment = strtoull(entry->d_name, &suffix, 10);
        if (strcmp(suffix, ".q") != 0 || suffix == entry->d_name) continue;
        if (segment < *first) *first = segment;
        if (segment > *last) *last = segment;
    }
    closedir(directory);
    if (walk_has_set_aside(path)) walk_fails(walk, "something was set aside");
    if (*first == UINT64_MAX && !walk->broken[0]) walk_fails(walk, "no segment");
    return walk->broken[0] ? -1 : 0;
}

static inline int walk_file(walk_t *walk, const char *name, uint64_t size, uint64_t salt,
                            uint64_t segment, int digested) {
    static uint8_t bytes[WALK_SEGMENT_MAX + 1];
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return walk_fails(walk, "segment %" PRIu64 " is missing", segment);
    ssize_t got = read(fd, bytes, sizeof bytes);
    close(fd);
    if (got != (ssize_t)size)
        return walk_fails(walk, "segment %" PRIu64 " has %zd bytes", segment, got);
    if (digested) walk->digest = walk_digest(walk->digest ^ segment, bytes, size);
    return walk_segment(walk, bytes, size, salt, segment);
}

static inline void walk_begin(walk_t *walk, chart_t *chart) {
    *walk = (walk_t){.chart = chart};
    if (chart) chart->segments = chart->records = 0;
}

/* Reads and checks all segments of a queue that was just recovered or closed; the digest covers those up to
 * `digest_last`. */
static inline void walk_queue(const char *path, uint64_t size, uint64_t salt, uint64_t digest_last,
                              walk_t *walk, chart_t *chart) {
    char name[1100];
    uint64_t first = 0, last = 0;
    walk_begin(walk, chart);
    if (walk_list(walk, path, &first, &last) < 0) return;
    for (uint64_t segment = first; segment <= last; segment++) {
        snprintf(name, sizeof name, "%s/%09" PRIu64 ".q", path, segment);
        if (walk_file(walk, name, size, salt, segment, segment <= digest_last) < 0) return;
    }
    if (walk->batch_left) walk_fails(walk, "the last batch is broken off");
    if (chart) chart->next_seq = walk->next_seq;
}

/* The same for an archive, whose days sort in the order of their segments. */
static inline void walk_archive(const char *path, uint64_t size, uint64_t salt, walk_t *walk) {
    char pattern[1100];
    glob_t found;
    walk_begin(walk, NULL);
    snprintf(pattern, sizeof pattern, "%s/*/*/*/*.q", path);
    if (glob(pattern, 0, NULL, &found) != 0) return;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        const char *name = strrchr(found.gl_pathv[i], '/') + 1;
        uint64_t segment = strtoull(name, NULL, 10);
        if (walk_file(walk, found.gl_pathv[i], size, salt, segment, 0) < 0) break;
        if (walk->ended) {
            walk_fails(walk, "segment %" PRIu64 " was archived, but not finished", segment);
            break;
        }
    }
    globfree(&found);
}

#endif
