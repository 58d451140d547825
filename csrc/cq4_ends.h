/* End marks of the data files of a Java queue.
 *
 * A Java tailer leaves a file only at its end mark, C0000000 and the text "EOF", where the next message would be. It is
 * written, under the write lock, by the writer that goes on to a later cycle. Files without one are left by processes
 * that were killed, or skipped by a writer that did not know of them: a file that was linked and not yet listed.
 * So all files before the one that is entered are checked, when a queue is opened and at each roll, from
 * normalisedEOFsTo on: up to there it was done before.
 *
 * The looking is done without the lock. An end mark that is there stays; one that is missing is looked for again
 * when the lock is held. */
#ifndef AC_CQ4_ENDS_H
#define AC_CQ4_ENDS_H

#include "cq4_queue.h"

typedef struct ac_cq4_ends {
    uint32_t *missing; /* the cycles whose files lack an end mark; to be freed */
    size_t count;
    int64_t before; /* the newest cycle that was checked; -1: there is none */
    int64_t newest; /* that has a file at all; -1: none */
    int64_t oldest;
} ac_cq4_ends_t;

/* Looks at the files of cycles below `limit`. Those that are not newer than `up_to` are checked only as long as there are
 * end marks missing after them. What cannot be read is passed over. */
int ac_cq4_ends_find(ac_cq4_queue_t *queue, uint32_t limit, uint64_t up_to, ac_cq4_ends_t *out,
                     ac_error_t *err);

/* Under the write lock: 1 = written, 0 = it was there, or the file is one that cannot be written to. */
int ac_cq4_ends_write(const ac_cq4_queue_t *queue, int dir_fd, uint32_t number, ac_error_t *err);

#endif
