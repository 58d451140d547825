/* Writes Java's files for tests: what a JVM leaves, byte for byte by the rules of cq4_cycle.h and cq4_table.h, and
 * what it would not leave. It is neither fast nor safe beside other writers. */
#ifndef AC_TESTS_CQ4_FILES_H
#define AC_TESTS_CQ4_FILES_H

#include "cq4_queue.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- wire ---- */

typedef struct cq4_out {
    uint8_t *base; /* of the file */
    uint64_t at, size;
} cq4_out_t;

static inline void cq4_put(cq4_out_t *out, const void *bytes, size_t length) {
    assert(out->at + length <= out->size);
    memcpy(out->base + out->at, bytes, length);
    out->at += length;
}

static inline void cq4_byte(cq4_out_t *out, unsigned byte) {
    cq4_put(out, &(uint8_t){(uint8_t)byte}, 1);
}

static inline void cq4_field(cq4_out_t *out, const char *name) {
    cq4_byte(out, 0xC0 + (unsigned)strlen(name));
    cq4_put(out, name, strlen(name));
}

static inline void cq4_coded(cq4_out_t *out, unsigned code, const char *text) {
    cq4_byte(out, code);
    cq4_byte(out, (unsigned)strlen(text));
    cq4_put(out, text, strlen(text));
}

static inline void cq4_int(cq4_out_t *out, int64_t value) {
    int is_small = value >= 0 && value < 256;
    cq4_byte(out, is_small ? 0xA1 : 0xA7);
    cq4_put(out, &value, is_small ? 1 : 8);
}

/* Pads, so that what follows the next byte is aligned. */
static inline void cq4_pad(cq4_out_t *out, uint64_t align) {
    uint32_t n = (uint32_t)((align - (out->at + 1) % align) % align);
    if (n < 5) {
        while (n-- > 0)
            cq4_byte(out, 0x8F);
        return;
    }
    cq4_byte(out, 0x8E);
    cq4_put(out, &(uint32_t){n - 5}, 4);
    out->at += n - 5;
}

static inline uint64_t cq4_bound(cq4_out_t *out, uint64_t value) {
    cq4_pad(out, 8);
    cq4_byte(out, 0xA7);
    cq4_put(out, &value, 8);
    return out->at - 8;
}

static inline uint64_t cq4_begin_block(cq4_out_t *out, const char *type) {
    cq4_coded(out, 0xB6, type);
    cq4_byte(out, 0x82);
    out->at += 4;
    return out->at;
}

static inline void cq4_end_block(cq4_out_t *out, uint64_t from) {
    uint32_t length = (uint32_t)(out->at - from);
    memcpy(out->base + from - 4, &length, 4);
}

/* Returns the offset of the first value. */
static inline uint64_t cq4_array(cq4_out_t *out, uint64_t capacity, uint64_t align) {
    cq4_pad(out, align);
    cq4_byte(out, 0x8D);
    cq4_put(out, &capacity, 8);
    cq4_put(out, &(uint64_t){0}, 8);
    out->at += capacity * 8;
    assert(out->at <= out->size);
    return out->at - capacity * 8;
}

static inline void cq4_store_header(cq4_out_t *out, uint64_t offset, uint32_t header) {
    if (offset % 4 == 0)
        ac_store_release_u32((uint32_t *)(void *)(out->base + offset), header);
    else
        memcpy(out->base + offset, &header, 4); /* no reader is active */
}

/* ---- files ---- */

static inline cq4_out_t cq4_create_file(const char *directory, const char *name, uint64_t size) {
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    assert(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
    cq4_out_t out = {mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), 0, size};
    assert(out.base != MAP_FAILED);
    close(fd);
    return out;
}

static inline void cq4_close_file(cq4_out_t *out) {
    munmap(out->base, out->size);
    out->base = NULL;
}

typedef struct cq4_table {
    cq4_out_t out;
    uint64_t highest, lowest, mod_count, write_lock; /* offsets of the values */
} cq4_table_t;

static inline uint64_t cq4_add_key(cq4_out_t *out, const char *key, uint64_t value) {
    uint64_t from = out->at;
    out->at += 4;
    cq4_coded(out, 0xB9, key);
    uint64_t where = cq4_bound(out, value);
    cq4_store_header(out, from, (uint32_t)(out->at - from - 4));
    return where;
}

static inline void cq4_put_roll(cq4_out_t *out, const ac_cq4_roll_t *roll) {
    cq4_field(out, "roll");
    uint64_t block = cq4_begin_block(out, "SCQSRoll");
    cq4_field(out, "length");
    cq4_int(out, (int64_t)roll->length_ms);
    cq4_field(out, "format");
    cq4_coded(out, 0xB8, roll->format);
    cq4_field(out, "epoch");
    cq4_int(out, roll->epoch_ms);
    if (roll->epoch_ms > 0) { /* as if it were a roll time */
        cq4_field(out, "rollTime");
        cq4_coded(out, 0xB2, "17:00");
        cq4_field(out, "rollTimeZone");
        cq4_coded(out, 0xB8, "UTC");
    }
    cq4_end_block(out, block);
}

static inline cq4_table_t cq4_create_table(const char *directory, const ac_cq4_roll_t *roll) {
    cq4_table_t table = {.out = cq4_create_file(directory, AC_CQ4_METADATA, 131072)};
    cq4_out_t *out = &table.out;
    out->at = 4;
    cq4_coded(out, 0xB9, "header");
    uint64_t store = cq4_begin_block(out, "STStore");
    cq4_field(out, "wireType");
    cq4_coded(out, 0xB6, "WireType");
    cq4_byte(out, 0xE0 + 12);
    cq4_put(out, "BINARY_LIGHT", 12);
    cq4_field(out, "metadata");
    uint64_t metadata = cq4_begin_block(out, "SCQMeta");
    cq4_put_roll(out, roll);
    cq4_field(out, "sourceId");
    cq4_int(out, 0);
    cq4_end_block(out, metadata);
    while (out->at % 4)
        cq4_byte(out, 0x8F);
    cq4_end_block(out, store);
    cq4_store_header(out, 0, AC_CQ4_META_BIT | (uint32_t)(out->at - 4));
    table.highest = cq4_add_key(out, AC_CQ4_KEY_HIGHEST, 1ull << 63);
    table.lowest = cq4_add_key(out, AC_CQ4_KEY_LOWEST, INT32_MAX);
    table.mod_count = cq4_add_key(out, AC_CQ4_KEY_MOD_COUNT, 0);
    table.write_lock = cq4_add_key(out, AC_CQ4_KEY_WRITE_LOCK, AC_CQ4_UNLOCKED);
    return table;
}

static inline void cq4_set(cq4_out_t *out, uint64_t where, uint64_t value) {
    ac_store_release_u64((uint64_t *)(void *)(out->base + where), value);
}

static inline uint64_t cq4_get(const cq4_out_t *out, uint64_t where) {
    return ac_load_acquire_u64((const uint64_t *)(const void *)(out->base + where));
}

static inline void cq4_add_to_listing(cq4_table_t *table, uint32_t cycle) {
    cq4_set(&table->out, table->highest, cycle);
    cq4_set(&table->out, table->mod_count, cq4_get(&table->out, table->mod_count) + 1);
}

/* ---- data files ---- */

typedef struct cq4_file {
    cq4_out_t out;
    ac_cq4_roll_t roll; /* with the index count and spacing of the file */
    uint64_t padding, seq;
    uint64_t write_position, index2index, last_index; /* offsets of the values */
    uint64_t pages, page;                             /* of the arrays' first values */
} cq4_file_t;

static inline void cq4_align(cq4_file_t *file) {
    file->out.at = (file->out.at + file->padding) & ~file->padding;
}

static inline uint64_t cq4_put_array(cq4_file_t *file, const char *event, uint64_t *values) {
    uint64_t from = file->out.at;
    file->out.at += 4;
    cq4_coded(&file->out, 0xB9, event);
    *values = cq4_array(&file->out, file->roll.index_count, 8);
    cq4_store_header(&file->out, from, AC_CQ4_META_BIT | (uint32_t)(file->out.at - from - 4));
    cq4_align(file);
    return from;
}

static inline void cq4_put_cycle_header(cq4_file_t *file, int is_old) {
    cq4_out_t *out = &file->out;
    out->at = 4;
    cq4_coded(out, 0xB9, "header");
    uint64_t store = cq4_begin_block(out, "SCQStore");
    cq4_field(out, "writePosition");
    file->write_position = cq4_array(out, 2, 16);
    cq4_field(out, "indexing");
    uint64_t indexing = cq4_begin_block(out, "SCQSIndexing");
    cq4_field(out, "indexCount");
    cq4_int(out, file->roll.index_count);
    cq4_field(out, "indexSpacing");
    cq4_int(out, file->roll.index_spacing);
    cq4_field(out, "index2Index");
    file->index2index = cq4_bound(out, 0);
    cq4_field(out, "lastIndex");
    file->last_index = cq4_bound(out, 0);
    cq4_end_block(out, indexing);
    if (is_old) cq4_put_roll(out, &file->roll);
    if (file->padding) {
        cq4_field(out, "dataFormat");
        cq4_int(out, 1);
    }
    cq4_end_block(out, store);
}

/* With a roll in its header if `is_old`, which unpadded files are. */
static inline cq4_file_t cq4_create_cycle(const char *directory, const ac_cq4_roll_t *roll,
                                          uint32_t cycle, uint64_t size, int is_old) {
    char name[AC_CQ4_NAME_MAX];
    cq4_file_t file = {.roll = *roll, .padding = is_old ? 0 : 3};
    int rc = ac_cq4_roll_file_name(roll, cycle, name);
    assert(rc == AC_OK);
    (void)rc;
    file.out = cq4_create_file(directory, name, size);
    cq4_put_cycle_header(&file, is_old);
    uint32_t header = AC_CQ4_META_BIT | (uint32_t)(file.out.at - 4);
    cq4_align(&file);
    uint64_t offset = cq4_put_array(&file, "index2index", &file.pages);
    cq4_set(&file.out, file.index2index, offset);
    cq4_store_header(&file.out, 0, header);
    return file;
}

static inline void cq4_add_to_index(cq4_file_t *file, uint64_t position) {
    uint64_t slot = file->seq / file->roll.index_spacing, count = file->roll.index_count;
    if (file->seq % file->roll.index_spacing) return;
    if (slot % count == 0) {
        uint64_t offset = cq4_put_array(file, "index", &file->page);
        cq4_set(&file->out, file->pages + slot / count * 8, offset);
    }
    cq4_set(&file->out, file->page + slot % count * 8, position);
    cq4_set(&file->out, file->last_index, file->seq + file->roll.index_spacing);
}

/* Returns the offset of the header. */
static inline uint64_t cq4_append(cq4_file_t *file, const void *payload, uint32_t length) {
    uint64_t position = file->out.at;
    file->out.at += 4;
    cq4_put(&file->out, payload, length);
    cq4_align(file);
    cq4_store_header(&file->out, position, length);
    cq4_set(&file->out, file->write_position, position);
    cq4_set(&file->out, file->write_position + 8, (position << file->roll.shift) + file->seq);
    cq4_add_to_index(file, position);
    file->seq++;
    return position;
}

static inline void cq4_finish(cq4_file_t *file) {
    cq4_store_header(&file->out, file->out.at, AC_CQ4_END_OF_FILE);
}

static inline ac_cq4_roll_t cq4_known_roll(const char *name) {
    const ac_cq4_known_roll_t *known = ac_cq4_roll_by_name(name);
    ac_cq4_roll_t roll = {.length_ms = known->length_ms,
                          .index_count = known->index_count,
                          .index_spacing = known->index_spacing,
                          .shift = ac_cq4_shift(known->index_count, known->index_spacing)};
    snprintf(roll.format, sizeof roll.format, "%s", known->format);
    return roll;
}

#endif
