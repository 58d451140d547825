/* End marks of the data files of a Java queue.
 *
 * A Java tailer leaves a file only at its end mark, C0000000 and the text "EOF", where the next message would be.
 * The writer that moves on to a later cycle writes the mark, under the write lock. Files without one were left by
 * processes that were killed, or skipped by a writer that did not know of them: a file that was linked and not yet
 * listed. So when a queue is opened, and at each roll, all files before the current one are checked, from
 * normalisedEOFsTo on: up to there it was done before.
 *
 * The check takes no lock. End marks are never removed; a missing one is looked for again under the lock. */
#ifndef AC_CQ4_ENDS_H
#define AC_CQ4_ENDS_H

#include "cq4_queue.h"

typedef struct ac_cq4_ends {
    uint32_t *missing; /* the cycles whose files lack an end mark; to be freed */
    size_t count;
    int64_t before; /* the newest cycle that was checked; -1: there is none */
    int64_t newest; /* the newest cycle that has a file; -1: none */
    int64_t oldest;
} ac_cq4_ends_t;

/* Checks the files of cycles below `limit`. Those not newer than `up_to` are checked only while end marks
 * are missing after them. Skips what cannot be read. */
int ac_cq4_ends_find(ac_cq4_queue_t *queue, uint32_t limit, uint64_t up_to, ac_cq4_ends_t *out,
                     ac_error_t *err);

/* Under the write lock: 1 = written, 0 = it was there, or the file cannot be written to. */
int ac_cq4_ends_write(const ac_cq4_queue_t *queue, int dir_fd, uint32_t number, ac_error_t *err);

#endif
