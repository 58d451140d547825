/* Creating a table store, and adding keys to it: see cq4_table.h. */
#include "cq4_encode.h"
#include "cq4_lock.h"
#include "cq4_record.h"
#include "cq4_temporary.h"
#include "error.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

/* ---- creating ---- */

enum { CONTENT_MAX = 4096, TRIES = 10 };

static size_t begin_typed(ac_cq4_builder_t *out, const char *type) {
    ac_cq4_put_type(out, type);
    return ac_cq4_begin_block(out);
}

static void put_metadata(ac_cq4_builder_t *out, const ac_cq4_roll_t *roll) {
    ac_cq4_put_field(out, "metadata");
    size_t metadata = begin_typed(out, "SCQMeta");
    ac_cq4_put_field(out, "roll");
    size_t block = begin_typed(out, "SCQSRoll");
    ac_cq4_put_field(out, "length");
    ac_cq4_put_number(out, (int64_t)roll->length_ms);
    ac_cq4_put_field(out, "format");
    ac_cq4_put_text(out, roll->format);
    ac_cq4_put_field(out, "epoch");
    ac_cq4_put_number(out, roll->epoch_ms);
    ac_cq4_end_block(out, block);
    /* Not needed, but a JVM up to 5.26 opens a queue without it for reading only. */
    ac_cq4_put_field(out, "deltaCheckpointInterval");
    ac_cq4_put_number(out, 64);
    ac_cq4_put_field(out, "sourceId");
    ac_cq4_put_number(out, 0);
    ac_cq4_end_block(out, metadata);
}

/* The header of a record that began at `from`; padding to the next record is zeros. */
static void end_record(ac_cq4_builder_t *out, size_t from, uint32_t bits) {
    static const uint8_t zeros[4];
    uint32_t header = bits | (uint32_t)(out->at - from - sizeof header);
    if (!ac_cq4_builder_is_full(out)) memcpy(out->base + from, &header, sizeof header);
    ac_cq4_put(out, zeros, -out->at & 3);
}

static void put_header(ac_cq4_builder_t *out, const ac_cq4_roll_t *roll) {
    ac_cq4_put(out, &(uint32_t){0}, sizeof(uint32_t));
    ac_cq4_put_event(out, "header");
    size_t store = begin_typed(out, "STStore");
    ac_cq4_put_field(out, "wireType");
    ac_cq4_put_type(out, "WireType");
    ac_cq4_put_text(out, "BINARY_LIGHT");
    put_metadata(out, roll);
    while (out->at % 4)
        ac_cq4_put_byte(out, 0x8F);
    ac_cq4_end_block(out, store);
    end_record(out, 0, AC_CQ4_META_BIT);
}

static void put_key(ac_cq4_builder_t *out, const char *key, uint64_t value) {
    size_t from = out->at;
    ac_cq4_put(out, &(uint32_t){0}, sizeof(uint32_t));
    ac_cq4_put_event(out, key);
    ac_cq4_put_bound(out, value);
    end_record(out, from, 0);
}

static void put_table(ac_cq4_builder_t *out, const ac_cq4_roll_t *roll) {
    put_header(out, roll);
    put_key(out, AC_CQ4_KEY_HIGHEST, AC_CQ4_UNLOCKED); /* Java's value for "none" */
    put_key(out, AC_CQ4_KEY_LOWEST, INT32_MAX);
    put_key(out, AC_CQ4_KEY_MOD_COUNT, 0);
    put_key(out, AC_CQ4_KEY_WRITE_LOCK, AC_CQ4_UNLOCKED);
    put_key(out, AC_CQ4_KEY_APPEND_LOCK, AC_CQ4_UNLOCKED);
    put_key(out, AC_CQ4_KEY_LAST_REPLICATED, UINT64_MAX);
    put_key(out, AC_CQ4_KEY_LAST_ACKNOWLEDGED, UINT64_MAX);
    put_key(out, AC_CQ4_KEY_LAST_SYNCED, UINT64_MAX);
    put_key(out, AC_CQ4_KEY_ENDS_UP_TO, 0);
}

/* 1 = created, 0 = another process was first, or removed our temporary file as a leftover; or a negated
 * errno. */
static int link_table(int dir_fd, int fd, const char *temporary, const ac_cq4_builder_t *content) {
    int rc = ac_os_write_at(fd, content->base, content->at, 0);
    if (rc == 0) rc = ac_os_sync(fd);
    if (rc == 0) rc = ac_os_link(dir_fd, temporary, dir_fd, AC_CQ4_METADATA);
    ac_os_unlink(dir_fd, temporary);
    if (rc == 0) rc = ac_os_sync_dir(dir_fd);
    if (rc == -EEXIST || rc == -ENOENT) return 0;
    return rc == 0 ? 1 : rc;
}

int ac_cq4_table_create(const ac_directory_t *dir, int dir_fd, const ac_cq4_roll_t *roll,
                        ac_error_t *err) {
    uint8_t bytes[CONTENT_MAX];
    char temporary[AC_CQ4_TEMPORARY_MAX];
    ac_cq4_builder_t content = {.base = bytes, .size = sizeof bytes};
    struct stat info;
    put_table(&content, roll);
    if (ac_cq4_builder_is_full(&content))
        return ac_fail(err, AC_E_ARGUMENT, 0, dir->path, 0, "the format of file names is too long");
    for (int tries = 0; tries < TRIES; tries++) {
        int rc = ac_os_stat_at(dir_fd, AC_CQ4_METADATA, &info);
        if (rc != -ENOENT)
            return rc == 0 ? AC_OK
                           : ac_fail_os_in(err, rc, dir->path, AC_CQ4_METADATA, "cannot examine");
        int fd =
            ac_cq4_temporary_create(dir, dir_fd, "metadata", AC_CQ4_TABLE_BYTES, temporary, err);
        if (fd < 0) return fd;
        rc = link_table(dir_fd, fd, temporary, &content);
        ac_os_close(fd);
        if (rc == 1) return AC_OK;
        if (rc < 0) return ac_fail_os_in(err, rc, dir->path, AC_CQ4_METADATA, "cannot create");
    }
    return ac_fail(err, AC_E_SYSTEM, EBUSY, dir->path, 0,
                   AC_CQ4_METADATA " cannot be created: others remove what is needed for it");
}

/* ---- adding a key ---- */

#define FILE_LOCK_AT 0x7FFFFFFFFFFFFFFEull

/* An fd of the mapped table, with Java's file lock. */
static int open_locked(const ac_cq4_table_t *table, const ac_directory_t *dir, uint64_t timeout_ns,
                       ac_error_t *err) {
    struct stat info;
    int dir_fd = ac_directory_open(dir, err);
    if (dir_fd < 0) return dir_fd;
    int fd = ac_file_open(dir, dir_fd, table->name, O_RDWR, &info, err);
    ac_os_close(dir_fd);
    if (fd < 0) return fd;
    int rc = 0;
    if (info.st_dev != table->device || info.st_ino != table->inode) rc = -ESTALE;
    uint64_t deadline_ns = ac_os_monotonic_ns() + timeout_ns;
    while (rc == 0 && (rc = ac_os_claim_range(fd, FILE_LOCK_AT, 1)) == -EAGAIN &&
           ac_os_monotonic_ns() < deadline_ns) {
        ac_os_sleep_ns(1000000);
        rc = 0;
    }
    if (rc == 0) return fd;
    ac_os_close(fd);
    if (rc == -ESTALE)
        return ac_fail(err, AC_E_GONE, 0, dir->path, 0, "%s was replaced", table->name);
    if (rc == -EAGAIN)
        return ac_fail(err, AC_E_LOCKED, EAGAIN, dir->path, 0,
                       "another process has locked %s for %.1f s", table->name,
                       (double)timeout_ns / 1e9);
    return ac_fail_os_in(err, rc, dir->path, table->name, "cannot lock");
}

static int ignore(void *context, const char *key, uint64_t *value) {
    (void)context, (void)key, (void)value;
    return 0;
}

static int append_key(const ac_cq4_table_t *table, const ac_directory_t *dir, const char *key,
                      uint64_t initial, ac_error_t *err) {
    uint8_t bytes[AC_CQ4_KEY_MAX + 64], *base = table->map->base;
    uint64_t offset;
    uint32_t header;
    ac_cq4_table_each(table, ignore, NULL, &offset);
    ac_cq4_builder_t record = {.base = bytes, .size = sizeof bytes, .offset = offset};
    put_key(&record, key, initial);
    uint64_t end = offset + record.at + 8; /* with the zeros that follow it */
    if (end > table->map->size && table->map->size < AC_CQ4_KEYS_END)
        return ac_cq4_table_fail(dir->path, table->name, AC_E_CORRUPT, 0, offset,
                                 "was cut: keys are missing, and there is no room for them", err);
    if (ac_cq4_builder_is_full(&record) || end > AC_CQ4_KEYS_END || end > table->map->size)
        return ac_fail(err, AC_E_TOO_MANY_READERS, 0, dir->path, offset,
                       "%s is full: Java can use no more than 64 KiB of it", table->name);
    if (ac_cq4_load_header(base + offset) != 0)
        return ac_fail(err, AC_E_CORRUPT, 0, dir->path, offset,
                       "%s has a record that was never finished", table->name);
    int rc = ac_os_populate(base, offset, end - offset, 1);
    if (rc < 0)
        return ac_fail_os_in(err, rc == -EFAULT ? -ENOSPC : rc, dir->path, table->name,
                             "cannot add a key to");
    memcpy(&header, bytes, sizeof header);
    memcpy(base + offset + sizeof header, bytes + sizeof header, record.at - sizeof header);
    memset(base + offset + record.at, 0, 8);
    if (ac_map_is_cut(table->map))
        return ac_fail(err, AC_E_GONE, 0, dir->path, offset, "%s was cut", table->name);
    ac_store_release_u32((uint32_t *)(void *)(base + offset), header);
    return AC_OK;
}

/* The file lock is taken first, so that the write lock is held no longer than necessary. */
static int add_key(const ac_cq4_table_t *table, const ac_directory_t *dir, const char *key,
                   uint64_t initial, uint64_t timeout_ns, ac_error_t *err) {
    ac_cq4_lock_t lock;
    uint64_t *value;
    if (!ac_cq4_table_find(table, AC_CQ4_KEY_WRITE_LOCK, &value)) /* and so nobody can append */
        return append_key(table, dir, key, initial, err);
    int rc = ac_cq4_lock_open(&lock, table, dir->path, timeout_ns, err);
    if (rc != AC_OK) return rc;
    lock.append_word = NULL; /* a tailer of a replicated queue may have a name */
    rc = ac_cq4_mutex_lock(&lock, err);
    if (rc == AC_OK) {
        rc = ac_cq4_lock_take(&lock, err);
        if (rc == AC_OK) {
            if (!ac_cq4_table_find(table, key, &value))
                rc = append_key(table, dir, key, initial, err);
            ac_cq4_lock_release(&lock);
        }
        ac_cq4_mutex_unlock(lock.mutex);
    }
    ac_cq4_lock_close(&lock);
    return rc;
}

int ac_cq4_table_add(const ac_cq4_table_t *table, const ac_directory_t *dir, const char *key,
                     uint64_t initial, uint64_t timeout_ns, uint64_t **value, ac_error_t *err) {
    size_t length = strlen(key);
    if (length == 0 || length >= AC_CQ4_KEY_MAX)
        return ac_fail(err, AC_E_NAME, 0, dir->path, 0, "a key has 1 to %d bytes",
                       AC_CQ4_KEY_MAX - 1);
    if (ac_cq4_table_find(table, key, value)) return AC_OK;
    int fd = open_locked(table, dir, timeout_ns, err);
    if (fd < 0) return fd;
    int rc = add_key(table, dir, key, initial, timeout_ns, err);
    ac_os_unclaim_range(fd, FILE_LOCK_AT, 1);
    ac_os_close(fd);
    if (rc != AC_OK) return rc;
    if (!ac_cq4_table_find(table, key, value))
        return ac_fail(err, AC_E_CORRUPT, 0, dir->path, 0, "%s lost the key that was added",
                       table->name);
    return AC_OK;
}
