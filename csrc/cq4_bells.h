/* How our own writers on a Java queue wake our own readers: a hint, no more. Java never signals, so a reader of such
 * a queue polls, whatever is here; with it, it looks sooner.
 *
 *   .aiochronicle/          made by a writer of ours, never by a reader; Java ignores names with a dot
 *   .aiochronicle/wake/     how they find each other, as in a queue of ours: doorman.h
 *   .aiochronicle/parked    64 bytes, of which the first 8 are a word: not 0 = somebody sleeps
 *
 * A reader stores 1, looks once more, and sleeps. A writer appends, and gives the write lock back by a compare and
 * swap, which is a full barrier; then it loads the word and, if it is not 0, puts 0 there and rings everybody whom it is
 * connected to. There may be many writers, so a reader keeps a connection to each.
 *
 * Written by every reader and writer; a stale or wrong value costs a system call, or the time until the next poll. */
#ifndef AC_CQ4_BELLS_H
#define AC_CQ4_BELLS_H

#include "atomics.h"
#include "doorman.h"
#include "map.h"

#define AC_CQ4_OWN_DIRECTORY ".aiochronicle"
#define AC_CQ4_PARKED_FILE "parked"

typedef struct ac_cq4_bells {
    ac_map_t *map;        /* of `parked`; NULL: nobody can be reached */
    ac_callers_t callers; /* of a writer */
    int attends;
    uint64_t tried_ns; /* a reader, monotonic */
} ac_cq4_bells_t;

/* For a writer; `dir` is the queue's. A failure is no reason not to write: readers poll. */
int ac_cq4_bells_open(ac_cq4_bells_t *bells, const ac_directory_t *dir, ac_error_t *err);
void ac_cq4_bells_close(ac_cq4_bells_t *bells);
void ac_cq4_bells_forked(ac_cq4_bells_t *bells); /* in the child */

static inline uint64_t *ac_cq4_bells_word(const ac_cq4_bells_t *bells) {
    return (uint64_t *)(void *)bells->map->base;
}

/* After the write lock was given back. Pairs with ac_cq4_bells_park. Returns how many were woken. */
static inline uint32_t ac_cq4_bells_ring(ac_cq4_bells_t *bells) {
    if (!bells->map || AC_LIKELY(ac_load_seq_cst_u64(ac_cq4_bells_word(bells)) == 0)) return 0;
    if (ac_exchange_seq_cst_u64(ac_cq4_bells_word(bells), 0) == 0) return 0;
    return ac_callers_wake(&bells->callers, UINT64_MAX);
}

/* For a reader: announces it if there is somebody to announce it to; looks for that no more than once a second.
 * 1 = announced. */
int ac_cq4_bells_listen(ac_cq4_bells_t *bells, const ac_directory_t *dir, ac_caller_t *caller);
/* Says that the reader is about to sleep; it has to look once more then. */
void ac_cq4_bells_park(ac_cq4_bells_t *bells);
/* After the caller was retracted. */
void ac_cq4_bells_leave(ac_cq4_bells_t *bells);

#endif
