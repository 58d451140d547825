/* What the walk of a recovery found, for the repair to act on. */
#ifndef AC_RECOVERY_PLAN_H
#define AC_RECOVERY_PLAN_H

#include "recovery.h"
#include "segment_seekindex.h"

/* A segment after which the queue continues: it must be on disk, and then sealed there. */
typedef struct ac_finish {
    uint32_t segment;
    uint64_t sealed_end;  /* 0 = unknown */
    uint64_t durable_end; /* everything before it is known to be on disk */
} ac_finish_t;

typedef struct ac_plan {
    const ac_directory_t *dir;
    int dir_fd;
    uint64_t segment_size;
    const ac_recovery_options_t *options;
    uint32_t *ids; /* all segments, ascending */
    size_t count;
    int has_headerless; /* after them: one that another program published before its header */
    size_t used;        /* how many of them the queue keeps; the others are set aside */
    uint32_t epoch;     /* highest epoch a record may have */
    ac_durable_t durable;
    int is_ours;      /* the queue has an id; only other programs' records lack one */
    int was_closed;   /* closed by its last writer */
    int is_torn_copy; /* made while the files changed: index.meta counts what was not copied */

    uint32_t end_segment; /* where the queue ends … */
    uint64_t end_offset;
    uint64_t records_end; /* … and after its last record in there */
    uint64_t end_durable; /* what of that segment is known to be on disk */
    uint64_t tail_end;    /* the last non-zero byte of the segment is before it */
    uint64_t next_seq;
    uint64_t last_timestamp_ns;
    uint64_t last_record;
    int torn; /* a committed but invalid record, or half a batch, ended the queue */

    ac_finish_t *finish;
    size_t finish_count;
    ac_index_t *indexes; /* built on the way, to be saved */
    size_t index_count;
    uint64_t
        lost_segment; /* the last one in which a reader has committed beyond the end; 0 = none */
    int lost;
    ac_recovery_t *report;
} ac_plan_t;

/* recovery_walk.c: fills in what is not zero yet from `used` on. Reads only. */
int ac_plan_make(ac_plan_t *plan, ac_error_t *err);
/* 1 = the segment is marked as finished. */
int ac_plan_is_sealed(const ac_plan_t *plan, uint32_t id, ac_error_t *err);
void ac_plan_free(ac_plan_t *plan);

/* The end of the last non-zero byte in [from, size) of a segment, or `from`. */
int ac_plan_find_tail_end(const ac_plan_t *plan, const ac_map_t *map, uint64_t from,
                          uint64_t *tail_end, ac_error_t *err);

#endif
