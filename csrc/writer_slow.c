#include "writer_slow.h"

#include <string.h>

/* A minor fault takes about a microsecond, so a few of them explain nothing. */
enum { MANY_FAULTS = 50 };

void ac_slow_begin(ac_slow_t *slow) {
    memset(slow->spent_ns, 0, sizeof slow->spent_ns);
    ac_os_thread_usage(&slow->usage);
    slow->began_ns = slow->part_ns = ac_os_monotonic_ns();
}

void ac_slow_part(ac_slow_t *slow, int cause) {
    uint64_t now_ns = ac_os_monotonic_ns();
    slow->spent_ns[cause] += now_ns - slow->part_ns;
    slow->part_ns = now_ns;
}

/* The time that no part explains. */
static int guess(const ac_usage_t *more) {
    if (more->major_faults > 0) return AC_SLOW_PAGE_FAULT;
    if (more->waits > 0) return AC_SLOW_LOCK;
    if (more->switches > 0) return AC_SLOW_SCHEDULER;
    return more->minor_faults >= MANY_FAULTS ? AC_SLOW_PAGE_FAULT : AC_SLOW_UNKNOWN;
}

static int longest_part(const ac_slow_t *slow) {
    int longest = 0;
    for (int cause = 1; cause < AC_SLOW_CAUSES; cause++)
        if (slow->spent_ns[cause] > slow->spent_ns[longest]) longest = cause;
    return longest;
}

int ac_slow_end(ac_slow_t *slow, uint64_t slow_ns, ac_slow_append_t *out) {
    ac_usage_t now;
    ac_slow_part(slow, AC_SLOW_UNKNOWN);
    uint64_t duration_ns = slow->part_ns - slow->began_ns;
    if (duration_ns < slow_ns) return 0;
    ac_os_thread_usage(&now);
    ac_usage_t more = {.minor_faults = now.minor_faults - slow->usage.minor_faults,
                       .major_faults = now.major_faults - slow->usage.major_faults,
                       .waits = now.waits - slow->usage.waits,
                       .switches = now.switches - slow->usage.switches};
    int cause = longest_part(slow);
    *out = (ac_slow_append_t){.duration_ns = duration_ns,
                              .cause = (uint32_t)(cause == AC_SLOW_UNKNOWN ? guess(&more) : cause),
                              .minor_faults = (uint32_t)more.minor_faults,
                              .major_faults = (uint32_t)more.major_faults,
                              .switches = (uint32_t)more.switches};
    return 1;
}

static void add_total(ac_slow_total_t *total, uint64_t duration_ns) {
    total->count++;
    total->total_ns += duration_ns;
    if (duration_ns > total->longest_ns) total->longest_ns = duration_ns;
}

void ac_slow_note(ac_slow_log_t *log, const ac_slow_append_t *append) {
    log->last[log->count % AC_SLOW_APPENDS] = *append;
    log->count++;
    add_total(&log->total[append->cause], append->duration_ns);
}
