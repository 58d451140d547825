/* How long ago the readers of a queue last gave a sign of life, by the writer's own monotonic clock.
 *
 * A heartbeat is a wall-clock time. When a writer sees a reader for the first time it has nothing else to go by; but the
 * clock may be set, or the machine may sleep, and a live reader must not look dead because of that. So from then on, what
 * counts is when the writer saw a new heartbeat. */
#ifndef AC_READER_LIVENESS_H
#define AC_READER_LIVENESS_H

#include "position.h"

#include <pthread.h>

typedef struct ac_liveness_entry {
    char name[AC_READER_NAME_MAX + 1];
    uint64_t generation;
    uint64_t heartbeat_ns;
    uint64_t age_ns;  /* how old it was … */
    uint64_t seen_ns; /* … when it was first seen */
    enum ac_sync_state {
        AC_SYNC_UNKNOWN,
        AC_SYNC_DONE,
        AC_SYNC_FAILED
    } sync;     /* of exactly this state */
    int warned; /* that it loses what it has not read, from this position on */
    uint64_t warned_segment, warned_offset;
} ac_liveness_entry_t;

typedef struct ac_liveness {
    pthread_mutex_t mutex;
    ac_liveness_entry_t *entries;
    size_t count, room;
    size_t
        turn; /* where the next one probably is: a directory is listed in the same order each time */
    uint64_t unreadable; /* id + 1 of the segment that retention last logged as unreadable */
} ac_liveness_t;

/* [any thread] */
uint64_t ac_liveness_age_ns(ac_liveness_t *liveness, const char *name, const ac_slot_t *slot);

/* [any thread] Whether we synced the state that ac_liveness_age_ns saw last, and with what result. A state
 * whose sync failed is not tried again: the kernel would report its pages as clean. The reader's next store
 * is a new state. */
enum ac_sync_state ac_liveness_sync(ac_liveness_t *liveness, const char *name,
                                    const ac_slot_t *slot);
void ac_liveness_note_sync(ac_liveness_t *liveness, const char *name, const ac_slot_t *slot,
                           enum ac_sync_state sync);

/* [any thread] 1 = no log entry yet about what this reader loses at its present position. */
int ac_liveness_warn(ac_liveness_t *liveness, const char *name, const ac_slot_t *slot);

#endif
