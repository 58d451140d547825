/* A reference-counted mapping of one file. Code that hands out pointers into it retains it. */
#ifndef AC_SEGMENT_MAP_H
#define AC_SEGMENT_MAP_H

#include "aiochronicle.h"
#include "atomics.h"

typedef struct ac_map {
    uint8_t *base;
    uint64_t size;
    uint32_t segment; /* id, for segments */
    uint32_t writable;
    uint32_t refs;
    uint32_t
        cut; /* set by the SIGBUS handler: a page could not be read or written, or does not exist */
    uint64_t cut_at; /* offset of the first such page */
    int sigbus_slot;
    int fd;              /* writers keep it to fill pages ahead; -1 otherwise */
    struct ac_map *next; /* in a list of maps to unmap */
} ac_map_t;

/* Maps `size` bytes of fd. The caller has checked that the file is at least that long. NULL on failure,
 * with -errno in *error. */
ac_map_t *ac_map_new(int fd, uint64_t size, int writable, int *error);
void ac_map_retain(ac_map_t *map);
void ac_map_release(ac_map_t *map); /* NULL is allowed */

/* Unmapping a segment can take some milliseconds. A thread that releases maps while it holds a lock that
 * others wait for collects them, and unmaps them after it has released the lock. Returns the previous
 * setting, which the caller restores: NULL is "unmap at once". */
ac_map_t **ac_map_collect(ac_map_t **unused);
void ac_map_unmap(ac_map_t *unused);

static inline int ac_map_is_cut(const ac_map_t *map) {
    return ac_load_relaxed_u32(&map->cut) != 0;
}

#endif
