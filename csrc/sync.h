/* Syncs many ranges of mapped files together.
 *
 * One after another, each sync waits for the disk alone. Concurrent ones share the file system's journal commits and the
 * disk's cache flushes: a hundred take hardly longer than a few. */
#ifndef AC_SYNC_H
#define AC_SYNC_H

#include <stddef.h>
#include <stdint.h>

typedef struct ac_sync {
    void *base; /* of the mapping; NULL = a file that is not mapped */
    int fd;     /* that was mapped */
    uint64_t offset;
    uint64_t length; /* 0 = nothing to do; `result` does not change */
    int result;      /* 0 or a negated errno, as from ac_os_map_sync */
    int reported;    /* `synced` was called for it */
} ac_sync_t;

/* Returns when all of them have their result. Calls `synced` for each as soon as it has one, and for those
 * with nothing to do: in this thread and in any order, mostly while the disk is busy with the others. */
void ac_sync_ranges(ac_sync_t *ranges, size_t count, void (*synced)(void *context, size_t number),
                    void *context);

#endif
