/* Which sealed segments may be removed, and the lag of the slowest open reader. */
#ifndef AC_RETENTION_H
#define AC_RETENTION_H

#include "directory.h"
#include "reader_liveness.h"

typedef struct ac_slowest {
    uint64_t registered; /* number of readers that have a position, open or not */
    uint64_t live;       /* number of those that are open and beyond no limit … */
    uint64_t segment;    /* … and the smallest committed position among them */
    uint64_t offset;
    char name[AC_READER_NAME_MAX + 1];
    /* Oldest segments with committed positions; UINT64_MAX: there is none. */
    uint64_t needed;          /* … of readers that are open, or away for less than reader_ttl */
    uint64_t waited_for;      /* … of all that are beyond neither reader_ttl nor max_reader_lag */
    uint64_t farthest_behind; /* … of all */
    uint64_t
        awaited_segment; /* position of the reader of config.wait_for; 0 if there is none yet */
} ac_slowest_t;

/* Position of the slowest open reader as seen from the head of the queue. */
int ac_slowest_reader(const ac_directory_t *dir, int dir_fd, const ac_writer_config_t *config,
                      ac_liveness_t *liveness, uint64_t segment_size, uint64_t head_segment,
                      uint64_t head_offset, ac_slowest_t *out, ac_error_t *err);

/* Deletes or archives what the configuration allows among the segments before `stop`.
 *
 * An open reader, one that is away for less than reader_ttl, and that of config.wait_for keep what they have not committed
 * past, regardless of age or size. Without a reader_ttl, one that is away keeps it until a limit of age or size is
 * reached. A reader beyond reader_ttl or max_reader_lag keeps nothing. The log names each reader that loses messages by
 * one of these limits. Before a segment is removed, the positions that allow it are synced; if one cannot be synced,
 * nothing is removed.
 *
 * Once `*closing` is set it stops with AC_E_CLOSED, within a copy after the current piece; what it has not moved stays. */
int ac_retain(const ac_directory_t *dir, int dir_fd, const ac_writer_config_t *config,
              ac_liveness_t *liveness, uint64_t segment_size, uint64_t head_segment,
              uint64_t head_offset, uint64_t stop, const uint32_t *closing, uint64_t *deleted,
              uint64_t *archived, ac_error_t *err);

#endif
