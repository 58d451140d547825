/* Table stores of Java Chronicle Queue: small files of named 64-bit numbers that processes share.
 *
 * The first record is metadata: event "header", type STStore, a block of
 *   wireType: BINARY_LIGHT
 *   metadata: SCQMeta { roll: SCQSRoll { length, format, epoch [, rollTime] [, rollTimeZone] },
 *                       [deltaCheckpointInterval,] sourceId }        metadata.cq4t, since 5.16.9
 *   recovery: TimedStoreRecovery { timeStamp }                       4.x to 5.16
 * Each further record is data: an event, whose name is the key, and an i64 whose eight bytes are the last of
 * the record, at a multiple of eight in the file. Records are padded. Keys are Latin-1, and the same whatever
 * their case. Keys are added at the end and never removed; a key that is there stays where it is.
 *
 *   metadata.cq4t            5.16.9 and later: all of it
 *   directory-listing.cq4t   4.x, 5.16.0 to 5.16.8: listing.highestCycle, .lowestCycle, .modCount
 *   queue-lock.cq4t          5.16.0 to 5.16.8: chronicle.write.lock
 *
 * listing.*: written by the creator of a data file, after the file is complete; modCount grows with each
 * change. Stale values are harmless: they are a hint to look at the directory again.
 * chronicle.write.lock: 0x8000000000000000, or the pid of the process that is appending: see cq4_lock.h.
 * normalisedEOFsTo: data files of cycles up to this one have their end mark.
 * index.<name>: of the next message of a named tailer.
 *
 * Creating one: never in place. Java claims a new file by its first header, and a process that is killed then leaves
 * a queue that no JVM opens again. It is built complete, under another name, and linked to its own.
 *
 * Adding a key: under an fcntl lock of one byte at 0x7FFFFFFFFFFFFFFE, which Java's FileLock takes, too; and under the
 * write lock, because Java adds normalisedEOFsTo under that one alone. The header is stored last. Java cannot use a
 * table of more than 64 KiB: a key that would reach beyond is refused. */
#ifndef AC_CQ4_TABLE_H
#define AC_CQ4_TABLE_H

#include "cq4_roll.h"
#include "directory.h"
#include "segment_map.h"

#define AC_CQ4_METADATA "metadata.cq4t"
#define AC_CQ4_LISTING "directory-listing.cq4t"
#define AC_CQ4_QUEUE_LOCK "queue-lock.cq4t"

#define AC_CQ4_KEY_HIGHEST "listing.highestCycle"
#define AC_CQ4_KEY_LOWEST "listing.lowestCycle"
#define AC_CQ4_KEY_MOD_COUNT "listing.modCount"
#define AC_CQ4_KEY_WRITE_LOCK "chronicle.write.lock"
#define AC_CQ4_KEY_APPEND_LOCK "chronicle.append.lock"

#define AC_CQ4_KEY_LAST_REPLICATED "chronicle.lastIndexReplicated"
#define AC_CQ4_KEY_LAST_ACKNOWLEDGED "chronicle.lastAcknowledgedIndexReplicated"
#define AC_CQ4_KEY_LAST_SYNCED "chronicle.lastIndexMSynced"
#define AC_CQ4_KEY_ENDS_UP_TO "normalisedEOFsTo"

#define AC_CQ4_UNLOCKED 0x8000000000000000ull

enum {
    AC_CQ4_TABLE_BYTES = 128 << 10, /* of a new one */
    AC_CQ4_TABLE_BYTES_MAX = 1 << 20,
    AC_CQ4_KEYS_END = 64 << 10, /* no record extends beyond this */
    AC_CQ4_KEY_MAX = 256,
};

typedef struct ac_cq4_table {
    ac_map_t *map;
    char name[32]; /* of the file */
    dev_t device;
    ino_t inode;
    unsigned mode;
    ac_cq4_roll_t roll; /* length, format and epoch; an empty format: the header has none */
    char roll_time[16], roll_time_zone[48];
    int64_t source_id;
    uint64_t first; /* offset of the first key's record */
} ac_cq4_table_t;

/* Maps a table store. AC_E_NOT_FOUND also if it is not complete yet. */
int ac_cq4_table_open(const ac_directory_t *dir, int dir_fd, const char *name, int writable,
                      ac_cq4_table_t *out, ac_error_t *err);
void ac_cq4_table_close(ac_cq4_table_t *table); /* also for one that is all zeros */

/* The value of a key, in the mapping: 1 and *out, or 0 if there is no such key. Reads every key before it. */
int ac_cq4_table_find(const ac_cq4_table_t *table, const char *key, uint64_t **out);

/* Calls `visit` with each key until it returns non-zero; returns that, or 0. *end is then the offset after
 * the last record, where the next one would be, unless the walk stopped before; `end` may be NULL. */
int ac_cq4_table_each(const ac_cq4_table_t *table,
                      int (*visit)(void *context, const char *key, uint64_t *value), void *context,
                      uint64_t *end);

/* Fills err with the path of a table store; returns the code. */
int ac_cq4_table_fail(const char *directory, const char *name, int code, int sys_errno,
                      uint64_t offset, const char *why, ac_error_t *err);

/* Creates metadata.cq4t with all keys of a queue. AC_OK also if there is one already, whatever it contains.
 * Durable when it returns. */
int ac_cq4_table_create(const ac_directory_t *dir, int dir_fd, const ac_cq4_roll_t *roll,
                        ac_error_t *err);

/* Finds a key, or adds it with an initial value: *value points into the mapping, which must be writable. AC_E_NAME if
 * the key is empty or too long, AC_E_TOO_MANY_READERS if there is no room for it, AC_E_LOCKED if a live process holds
 * one of the two locks for longer than the given time. [any thread] */
int ac_cq4_table_add(const ac_cq4_table_t *table, const ac_directory_t *dir, const char *key,
                     uint64_t initial, uint64_t timeout_ns, uint64_t **value, ac_error_t *err);

#endif
