/* readers/NAME.meta: where a named reader has committed to, in two slots of 40 bytes.
 *
 *   0 u64 segment   8 u64 offset   16 u64 heartbeat_ns   24 u64 generation   32 u32 CRC-32   36 u32 epoch
 *
 * Written by the reader (one live one per name: the file is locked) and by its process's housekeeper,
 * under a mutex; read by the writer for retention and capacity. A store goes into the older slot, so a
 * process killed half-way leaves the other one intact. A stale position only means that a message is
 * delivered again or a segment is kept longer.
 *
 *   80 u64 AC_POSITION_REVOKED: written by a process that replaced or removed this file, while its
 *   reader has it open (aiochronicle/_core/revoking.py). By then the file has no name any more: whatever the reader stores,
 *   nobody finds. The reader looks at it when it commits, and before it would wait. */
#ifndef AC_POSITION_H
#define AC_POSITION_H

#include "directory.h"
#include "lock.h"
#include "segment_map.h"

#include <pthread.h>

#define AC_POSITION_REVOKED 0x44454b4f564552ull /* "REVOKED" */

enum {
    AC_POSITION_SIZE = 80,
    AC_POSITION_MAPPED = 88,
    AC_READER_NAME_MAX = 64,
    AC_READERS_MAX = 4096
};

typedef struct ac_slot {
    uint64_t segment;
    uint64_t offset;
    uint64_t heartbeat_ns;
    uint64_t generation;
    uint32_t checksum;
    uint32_t epoch; /* ours: epoch of a record beside the position, 0 = unknown; not covered by the
                  checksum */
} ac_slot_t;

_Static_assert(sizeof(ac_slot_t) == 40, "reader slot");

/* The interval between two heartbeats of a reader: its minimum, its maximum, and its value if the writer
 * does not say what it expects. */
#define AC_HEARTBEAT_MIN_NS 10000000ull
#define AC_HEARTBEAT_MAX_NS 10000000000ull
#define AC_HEARTBEAT_FOREIGN_NS 1000000000ull

typedef struct ac_position {
    ac_map_t *map;
    ac_lock_t lock;
    pthread_mutex_t mutex;
    ac_slot_t current;
    int slot; /* the slot of `current` */
    dev_t device;
    ino_t inode;
    uint64_t looked_ns; /* when the file was last seen to have its name */
} ac_position_t;

/* [A-Za-z0-9][A-Za-z0-9._-]{0,63} */
int ac_reader_name_valid(const char *name);
int ac_reader_name_check(const char *name, const char *path, ac_error_t *err);

/* Which slot is valid and newer (0 or 1), with its content; -1 if neither is valid. */
int ac_position_decode(const uint8_t bytes[AC_POSITION_SIZE], ac_slot_t *out);

/* Opens and locks it; creates a missing one at the given position (*created = 1), unless there are
 * AC_READERS_MAX: AC_E_TOO_MANY_READERS. */
int ac_position_open(ac_position_t *position, const ac_directory_t *dir, int dir_fd,
                     const char *name, uint64_t segment, uint64_t offset, int *created,
                     ac_error_t *err);
void ac_position_store(ac_position_t *position, uint64_t segment, uint64_t offset, uint32_t epoch,
                       uint64_t now_ns);
void ac_position_get(ac_position_t *position, uint64_t *segment, uint64_t *offset);
void ac_position_heartbeat(ac_position_t *position, uint64_t now_ns);
/* For the members of a group, which share the file and ensure that only one of them stores at a time:
 * `base` is its mapping. A position that is not farther than the stored one only renews the heartbeat. 0 =
 * nothing in the file is valid, and it stays so. */
int ac_position_store_shared(uint8_t *base, uint64_t segment, uint64_t offset, uint32_t epoch,
                             uint64_t now_ns);
int ac_position_sync(ac_position_t *position);
int ac_position_is_revoked(const ac_position_t *position);
void ac_position_close(ac_position_t *position);
/* In a forked child, which inherited neither lock nor mapping. */
void ac_position_forked(ac_position_t *position);

/* Whether its name still leads to the file that is stored to; one system call. If that cannot be checked,
 * yes. */
int ac_position_has_name(const ac_position_t *position, const ac_directory_t *dir,
                         const char *name);

/* Removes the position of a reader that is not open: AC_E_READER_BUSY, AC_E_READER_NOT_FOUND. */
int ac_position_remove(const ac_directory_t *dir, int dir_fd, const char *name, ac_error_t *err);

/* [any thread] Makes the content of a reader's file durable; and which files there are. */
int ac_position_sync_file(const ac_directory_t *dir, int dir_fd, const char *name, ac_error_t *err);
int ac_position_sync_names(const ac_directory_t *dir, int dir_fd, ac_error_t *err);

/* [any thread] In which process a reader is open, in words: see ac_holder_describe. */
void ac_position_describe(const ac_directory_t *dir, int dir_fd, const char *name, char *out,
                          size_t size);

/* Calls `visit` for every reader of the queue whose file can be decoded; `held`: a live process has it
 * open. */
typedef void (*ac_position_visit_t)(void *context, const char *name, const ac_slot_t *slot,
                                    int held);
int ac_position_each(const ac_directory_t *dir, int dir_fd, ac_position_visit_t visit,
                     void *context, ac_error_t *err);

/* The same for callers that remove something by the result: AC_E_POSITION_CORRUPT if one cannot be decoded. */
int ac_position_each_sound(const ac_directory_t *dir, int dir_fd, ac_position_visit_t visit,
                           void *context, ac_error_t *err);

/* Moves every position beyond (segment, offset) back to it, durably. For a queue that has no readers yet:
 * those that are open stay as they are. */
int ac_position_pull_back(const ac_directory_t *dir, int dir_fd, uint64_t segment, uint64_t offset,
                          ac_error_t *err);

#endif
