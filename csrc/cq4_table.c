#include "cq4_table.h"

#include "cq4_record.h"
#include "cq4_wire.h"
#include "error.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

enum { HEADER_MAX = 4096, PADDING = 3 };

int ac_cq4_table_fail(const char *directory, const char *name, int code, int sys_errno,
                      uint64_t offset, const char *why, ac_error_t *err) {
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return ac_fail(err, code, sys_errno, path, offset, "%s", why);
}

/* ---- the header ---- */

static int parse_roll(ac_cq4_wire_t *wire, ac_cq4_table_t *table) {
    char name[AC_CQ4_WIRE_NAME_MAX];
    ac_cq4_roll_t *roll = &table->roll;
    int64_t number = 0;
    uint32_t where;
    int rc;
    while ((rc = ac_cq4_wire_name(wire, name, sizeof name)) == 1) {
        if (strcmp(name, "length") == 0) {
            rc = ac_cq4_wire_i64(wire, &number, &where);
            if (rc == 1 && number > 0) roll->length_ms = (uint64_t)number;
        } else if (strcmp(name, "format") == 0) {
            rc = ac_cq4_wire_text(wire, roll->format, sizeof roll->format);
        } else if (strcmp(name, "epoch") == 0) {
            rc = ac_cq4_wire_i64(wire, &roll->epoch_ms, &where);
        } else if (strcmp(name, "rollTime") == 0) {
            rc = ac_cq4_wire_text(wire, table->roll_time, sizeof table->roll_time);
        } else if (strcmp(name, "rollTimeZone") == 0) {
            rc = ac_cq4_wire_text(wire, table->roll_time_zone, sizeof table->roll_time_zone);
        } else {
            rc = 0;
        }
        if (rc < 0 || (rc == 0 && ac_cq4_wire_skip(wire) != 1)) return -1;
    }
    return rc;
}

/* Of what a store says about itself, only the roll cycle and the source matter. */
static int parse_store(ac_cq4_wire_t *wire, ac_cq4_table_t *table) {
    char name[AC_CQ4_WIRE_NAME_MAX];
    ac_cq4_wire_t metadata, roll;
    uint32_t where;
    int rc;
    while ((rc = ac_cq4_wire_name(wire, name, sizeof name)) == 1) {
        if (strcmp(name, "metadata") != 0) {
            if (ac_cq4_wire_skip(wire) != 1) return -1;
            continue;
        }
        if (ac_cq4_wire_block(wire, &metadata) != 1) return -1;
        while ((rc = ac_cq4_wire_name(&metadata, name, sizeof name)) == 1) {
            if (strcmp(name, "roll") == 0)
                rc = ac_cq4_wire_block(&metadata, &roll) == 1 ? parse_roll(&roll, table) : -1;
            else if (strcmp(name, "sourceId") == 0)
                rc = ac_cq4_wire_i64(&metadata, &table->source_id, &where) == 1 ? 0 : -1;
            else
                rc = ac_cq4_wire_skip(&metadata) == 1 ? 0 : -1;
            if (rc < 0) return -1;
        }
        if (rc < 0) return -1;
    }
    return rc;
}

/* NULL, or what is wrong with the header. */
static const char *parse_header(ac_cq4_table_t *table, uint32_t length) {
    uint8_t copy[HEADER_MAX];
    char name[AC_CQ4_WIRE_NAME_MAX];
    ac_cq4_wire_t wire = {copy, 0, length}, inside;
    if (length > sizeof copy) return "the header of the table store is too long";
    memcpy(copy, table->map->base + AC_CQ4_HEADER_BYTES, length);
    if (ac_cq4_wire_name(&wire, name, sizeof name) != 1 || strcmp(name, "header") != 0 ||
        ac_cq4_wire_type(&wire, name, sizeof name) != 1 || strcmp(name, "STStore") != 0)
        return "is not a table store";
    if (ac_cq4_wire_block(&wire, &inside) != 1 || parse_store(&inside, table) < 0)
        return "the header of the table store is malformed";
    return NULL;
}

static int map_table(const ac_directory_t *dir, int dir_fd, int writable, ac_cq4_table_t *table,
                     ac_error_t *err) {
    struct stat info;
    int error;
    int fd = ac_file_open(dir, dir_fd, table->name, writable ? O_RDWR : O_RDONLY, &info, err);
    if (fd < 0) return fd;
    uint64_t size = (uint64_t)info.st_size;
    table->device = info.st_dev;
    table->inode = info.st_ino;
    table->mode = info.st_mode & 0666;
    if (size > AC_CQ4_TABLE_BYTES_MAX) size = AC_CQ4_TABLE_BYTES_MAX;
    if (size >= AC_CQ4_HEADER_BYTES) table->map = ac_map_new(fd, size, writable, &error);
    ac_os_close(fd);
    if (size < AC_CQ4_HEADER_BYTES)
        return ac_cq4_table_fail(dir->path, table->name, AC_E_NOT_FOUND, EAGAIN, 0,
                                 "is empty: its creator has not finished it, or was killed", err);
    if (!table->map) return ac_fail_os_in(err, error, dir->path, table->name, "cannot map");
    return AC_OK;
}

/* The tables of 4.x have a thread number there; it may be any number. */
static int may_be_begun(const ac_cq4_table_t *table) {
    return strcmp(table->name, AC_CQ4_METADATA) != 0 ||
           ac_cq4_load_header(table->map->base) == AC_CQ4_NOT_COMPLETE;
}

int ac_cq4_table_open(const ac_directory_t *dir, int dir_fd, const char *name, int writable,
                      ac_cq4_table_t *out, ac_error_t *err) {
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%s", name);
    int rc = map_table(dir, dir_fd, writable, out, err);
    if (rc != AC_OK) return rc;
    uint32_t length;
    const char *why = NULL;
    ac_cq4_kind_t kind = ac_cq4_inspect(out->map->base, out->map->size, 0, &length);
    if (kind == AC_CQ4_NONE || (kind == AC_CQ4_BUSY && may_be_begun(out)))
        rc = ac_cq4_table_fail(dir->path, name, AC_E_NOT_FOUND, EAGAIN, 0,
                               "its creator has not finished it, or was killed", err);
    else if (kind != AC_CQ4_META)
        why = "is not a table store";
    else
        why = parse_header(out, length);
    if (why) rc = ac_cq4_table_fail(dir->path, name, AC_E_CORRUPT, 0, 0, why, err);
    out->first = ac_cq4_after(0, length, PADDING);
    if (rc != AC_OK) ac_cq4_table_close(out);
    return rc;
}

void ac_cq4_table_close(ac_cq4_table_t *table) {
    ac_map_release(table->map);
    table->map = NULL;
}

/* ---- keys ---- */

/* The record at `offset`: 1 with its key and value, 0 if it holds something else. */
static int read_entry(const ac_cq4_table_t *table, uint64_t offset, uint32_t length,
                      char key[AC_CQ4_KEY_MAX], uint64_t **value) {
    uint8_t copy[AC_CQ4_KEY_MAX + 64];
    uint64_t payload = offset + AC_CQ4_HEADER_BYTES;
    uint64_t value_at = payload + length - sizeof **value;
    if (length < sizeof **value + 2 || length > sizeof copy || value_at % sizeof **value != 0)
        return 0;
    memcpy(copy, table->map->base + payload, length);
    ac_cq4_wire_t wire = {copy, 0, length};
    int64_t number;
    uint32_t where;
    if (copy[0] != 0xB9 || ac_cq4_wire_name(&wire, key, AC_CQ4_KEY_MAX) != 1 ||
        ac_cq4_wire_i64(&wire, &number, &where) != 1 || where != length - sizeof **value)
        return 0;
    *value = (uint64_t *)(void *)(table->map->base + value_at);
    return 1;
}

int ac_cq4_table_each(const ac_cq4_table_t *table,
                      int (*visit)(void *context, const char *key, uint64_t *value), void *context,
                      uint64_t *end) {
    char key[AC_CQ4_KEY_MAX];
    uint64_t offset = table->first;
    uint32_t length;
    ac_cq4_kind_t kind;
    while ((kind = ac_cq4_inspect(table->map->base, table->map->size, offset, &length)),
           kind == AC_CQ4_DATA || kind == AC_CQ4_META) {
        uint64_t *value;
        if (kind == AC_CQ4_DATA && read_entry(table, offset, length, key, &value)) {
            int rc = visit(context, key, value);
            if (rc != 0) return rc;
        }
        offset = ac_cq4_after(offset, length, PADDING);
    }
    if (end) *end = offset;
    return 0;
}

typedef struct wanted {
    const char *key;
    uint64_t *value;
} wanted_t;

static char lower(char c) {
    uint8_t byte = (uint8_t)c;
    int is_upper = (byte >= 'A' && byte <= 'Z') || (byte >= 0xC0 && byte <= 0xDE && byte != 0xD7);
    return (char)(is_upper ? byte + 32 : byte);
}

static int is_wanted(void *context, const char *key, uint64_t *value) {
    wanted_t *wanted = context;
    size_t i = 0;
    while (key[i] && lower(key[i]) == lower(wanted->key[i]))
        i++;
    if (lower(key[i]) != lower(wanted->key[i])) return 0;
    wanted->value = value;
    return 1;
}

int ac_cq4_table_find(const ac_cq4_table_t *table, const char *key, uint64_t **out) {
    wanted_t wanted = {key, NULL};
    int found = ac_cq4_table_each(table, is_wanted, &wanted, NULL);
    *out = wanted.value;
    return found;
}
