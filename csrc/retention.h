/* Which sealed segments may go, and how far behind the slowest live reader is. */
#ifndef AC_RETENTION_H
#define AC_RETENTION_H

#include "directory.h"
#include "signs.h"

typedef struct ac_slowest {
    uint64_t live;       /* number of live readers */
    uint64_t registered; /* number of readers that have a position, live or not */
    uint64_t segment;    /* smallest committed position among the live */
    uint64_t offset;
    uint64_t awaited_segment; /* where the reader of config.wait_for is; 0 if there is none yet */
} ac_slowest_t;

/* Position of the slowest live reader as seen from the head of the queue. */
int ac_slowest_reader(const ac_directory_t *dir, int dir_fd, const ac_writer_config_t *config,
                      ac_signs_t *signs, uint64_t segment_size, uint64_t head_segment,
                      uint64_t head_offset, ac_slowest_t *out, ac_error_t *err);

/* Deletes or archives what the configuration allows among the segments before `stop`.
 * A segment that a live reader, or the one of config.wait_for, still needs stays, whatever age or size say.
 * Once `*closing` is set it stops, within a piece of a copy, with AC_E_CLOSED; what it has not moved stays. */
int ac_retain(const ac_directory_t *dir, int dir_fd, const ac_writer_config_t *config,
              ac_signs_t *signs, uint64_t segment_size, uint64_t head_segment, uint64_t head_offset,
              uint64_t stop, const uint32_t *closing, uint64_t *deleted, uint64_t *archived,
              ac_error_t *err);

#endif
