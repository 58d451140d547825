/* How our own writers on a Java queue wake our own readers. This is a hint only: Java never signals, so a
 * reader of such a queue polls in any case, and this makes it look sooner.
 *
 *   .aiochronicle/          created by a writer of ours, never by a reader; Java ignores names with a dot
 *   .aiochronicle/wake/     how they find each other, as in a queue of ours: wake_connection.h
 *   .aiochronicle/parked    two words, at 0 and 64: not 0 = a reader sleeps; how many messages our writers have appended
 *                           (cq4_turns.h)
 *
 * A reader stores 1, looks once more, and sleeps. A writer appends, and releases the write lock by a compare-and-swap,
 * which is a full barrier; then it loads the word and, if it is not 0, stores 0 and signals every reader that it is
 * connected to. There may be many writers, so a reader keeps a connection to each.
 *
 * Written by every reader and writer; a stale or wrong value costs a system call, or the time until the next poll. */
#ifndef AC_CQ4_WAKE_H
#define AC_CQ4_WAKE_H

#include "atomics.h"
#include "segment_map.h"
#include "wake_connection.h"

#define AC_CQ4_OWN_DIRECTORY ".aiochronicle"
#define AC_CQ4_PARKED_FILE "parked"

typedef struct ac_cq4_wake {
    ac_map_t *map;             /* of `parked`; NULL: no reader can be woken */
    ac_wake_targets_t targets; /* of a writer */
    int attends;
    uint64_t tried_ns; /* of a reader, monotonic */
} ac_cq4_wake_t;

/* For a writer; `dir` is the queue's. A failure does not prevent writing: readers poll. */
int ac_cq4_wake_open(ac_cq4_wake_t *wake, const ac_directory_t *dir, ac_error_t *err);
void ac_cq4_wake_close(ac_cq4_wake_t *wake);
void ac_cq4_wake_forked(ac_cq4_wake_t *wake); /* in the child */

static inline uint64_t *ac_cq4_wake_word(const ac_cq4_wake_t *wake) {
    return (uint64_t *)(void *)wake->map->base;
}

/* The word of cq4_turns.h, or NULL. */
static inline uint64_t *ac_cq4_bells_appended(const ac_cq4_wake_t *wake) {
    return wake->map ? (uint64_t *)(void *)(wake->map->base + 64) : NULL;
}

/* After the write lock was released. Pairs with ac_cq4_wake_park. Returns how many readers were woken. */
static inline uint32_t ac_cq4_wake_signal(ac_cq4_wake_t *wake) {
    if (!wake->map || AC_LIKELY(ac_load_seq_cst_u64(ac_cq4_wake_word(wake)) == 0)) return 0;
    if (ac_exchange_seq_cst_u64(ac_cq4_wake_word(wake), 0) == 0) return 0;
    return ac_wake_targets_signal(&wake->targets, NULL, UINT64_MAX, UINT32_MAX);
}

/* For a reader: announces it if there is a writer; checks for one at most once a second. 1 = announced. */
int ac_cq4_wake_listen(ac_cq4_wake_t *wake, const ac_directory_t *dir,
                       ac_wake_endpoint_t *endpoint);
/* Announces that the reader is about to sleep; it must look once more after this call. */
void ac_cq4_wake_park(ac_cq4_wake_t *wake);
/* After the endpoint was retracted. */
void ac_cq4_wake_leave(ac_cq4_wake_t *wake);

#endif
