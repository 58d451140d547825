/* Where the queue ends, found when opening for writing, and the repair of what lies after it.
 *
 *  1. A clean marker of the current epoch that fits index.meta, the last record and an empty word after
 *     it is believed; nothing is walked.
 *  2. Otherwise records are walked from the segment that was last known durable (recovery_walk.c). After the
 *     durable position the first record that is uncommitted, invalid, out of sequence, from a later epoch than
 *     the queue's or part of an unfinished batch ends the queue. Before it such a record is corruption:
 *     counted, stepped over, left where it is. The walk only reads. A page that cannot be read ends recovery
 *     with an error, and nothing was changed.
 *  3. Then the repair (recovery.c). What is not known to be durable is written again and synced: after a
 *     failed sync the page cache is not what is on disk. After the end everything is zeroed and synced before the
 *     writer may append; segments after it and all bytes that are not zero are kept in recovered/ first. If a
 *     reader had committed beyond the end, the queue goes on in the segment after its position's, which so
 *     stays recognisably lost; segments between are made empty and sealed.
 *
 * To set aside what was durable, or segments with records after a missing one, takes the caller's consent.
 * Running it again after a crash in the middle gives the same result. */
#ifndef AC_RECOVERY_H
#define AC_RECOVERY_H

#include "control.h"
#include "directory.h"
#include "segment_map.h"

typedef struct ac_end {
    ac_map_t *map; /* the segment that holds the end, writable; NULL: the queue has no segment */
    uint64_t offset;
    uint64_t next_seq;
    uint64_t last_timestamp_ns;
    uint64_t last_record;
    int sealed;       /* appending continues in the next segment */
    int torn;         /* something was cut off or set aside */
    uint32_t next_id; /* lowest free id */
} ac_end_t;

/* index.meta */
typedef struct ac_durable {
    uint64_t segment;
    uint64_t offset;
} ac_durable_t;

typedef struct ac_recovery_options {
    int verify;  /* walk the whole queue */
    int salvage; /* consent: see above */
    int is_copy; /* its files were copied from elsewhere, perhaps while they changed */
} ac_recovery_options_t;

/* Zeros if there is none. An error only if it exists and cannot be read. */
int ac_durable_read(const ac_directory_t *dir, int dir_fd, ac_durable_t *out, ac_error_t *err);

/* For callers that do not write: zeros if it cannot be read, and in a copy, whose segments it may be ahead
 * of. */
void ac_durable_believe(const ac_directory_t *dir, int dir_fd, const ac_control_t *control,
                        ac_durable_t *out);

int ac_recover(const ac_directory_t *dir, int dir_fd, ac_control_t *control, uint64_t segment_size,
               const ac_recovery_options_t *options, ac_end_t *end, ac_recovery_t *report,
               ac_error_t *err);

int ac_clean_valid(const ac_clean_t *clean);
void ac_clean_store(ac_control_t *control, const ac_clean_t *clean);
/* The last writer closed the queue, and no other has opened it since. */
int ac_control_is_clean(const ac_control_t *control);

#endif
