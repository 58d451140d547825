/* Slow appends: how long they took, and why.
 *
 * Only work off the fast path is measured. There the appender records the time at which each part ends; what no part
 * explains is explained by what the kernel counted meanwhile: page faults, and whether the thread waited or lost the
 * processor. This costs an append that turns out to be quick some clock reads and one system call, and nothing on the
 * fast path. */
#ifndef AC_WRITER_SLOW_H
#define AC_WRITER_SLOW_H

#include "aiochronicle.h"
#include "os.h"

#define AC_SLOW_NS 100000u
/* Where every append waits for the disk, a shorter duration is not worth reporting. */
#define AC_SLOW_SYNCED_NS 10000000u

/* The append in progress. Appender only. */
typedef struct ac_slow {
    uint64_t began_ns, part_ns;
    uint64_t spent_ns[AC_SLOW_CAUSES];
    ac_usage_t usage;
} ac_slow_t;

/* The last slow appends, and the totals of each cause. Users that share it lock it. */
typedef struct ac_slow_log {
    uint64_t count;
    ac_slow_append_t last[AC_SLOW_APPENDS]; /* number N is at N modulo the size */
    ac_slow_total_t total[AC_SLOW_CAUSES];
} ac_slow_log_t;

void ac_slow_begin(ac_slow_t *slow);
/* A part ends here, and this is what the time was spent on: AC_SLOW_*. */
void ac_slow_part(ac_slow_t *slow, int cause);
/* 1 = it took at least that long, and *out says why, except seq and time. */
int ac_slow_end(ac_slow_t *slow, uint64_t slow_ns, ac_slow_append_t *out);
/* Adds one. An append that was slow for another reason and then waits for its sync is listed twice. */
void ac_slow_note(ac_slow_log_t *log, const ac_slow_append_t *append);

#endif
