/* How long ago the readers of a queue last gave a sign of life, by the writer's own monotonic clock.
 *
 * A heartbeat is a time of day. That is all there is to go by when a writer sees a reader for the first time;
 * but the clock may be set, or the machine sleep, and a reader that lives must not look dead for that. So from
 * then on what counts is when the writer saw a heartbeat that was not there before. */
#ifndef AC_READER_LIVENESS_H
#define AC_READER_LIVENESS_H

#include "position.h"

#include <pthread.h>

typedef struct ac_liveness_entry {
    char name[AC_READER_NAME_MAX + 1];
    uint64_t generation;
    uint64_t heartbeat_ns;
    uint64_t age_ns;  /* how old it was … */
    uint64_t seen_ns; /* … when it was seen first */
    enum ac_sync_state {
        AC_SYNC_UNKNOWN,
        AC_SYNC_DONE,
        AC_SYNC_FAILED
    } sync;     /* of this very state */
    int warned; /* that it loses what it has not read, being at … */
    uint64_t warned_segment, warned_offset;
} ac_liveness_entry_t;

typedef struct ac_liveness {
    pthread_mutex_t mutex;
    ac_liveness_entry_t *entries;
    size_t count, room;
    size_t
        turn; /* where the next one probably is: a directory is listed in the same order each time */
    uint64_t unreadable; /* the segment that retention last logged as unreadable, + 1 */
} ac_liveness_t;

/* [any thread] */
uint64_t ac_liveness_age_ns(ac_liveness_t *liveness, const char *name, const ac_slot_t *slot);

/* [any thread] Whether the state that ac_liveness_age_ns saw last was synced by us, and what came of it. A state whose
 * sync has failed is not tried again: the kernel would call its pages clean. The reader's next store is a new one. */
enum ac_sync_state ac_liveness_sync(ac_liveness_t *liveness, const char *name,
                                    const ac_slot_t *slot);
void ac_liveness_note_sync(ac_liveness_t *liveness, const char *name, const ac_slot_t *slot,
                           enum ac_sync_state sync);

/* [any thread] 1 = nobody was warned yet of what this reader loses, being where it is. */
int ac_liveness_warn(ac_liveness_t *liveness, const char *name, const ac_slot_t *slot);

#endif
