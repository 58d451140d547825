/* Roll cycles of Java Chronicle Queue: which file a moment belongs to, and which number a message gets.
 *
 *   cycle      = (time - epoch) / length, both in milliseconds; 0 to INT32_MAX
 *   index      = (cycle << shift) + seq, seq = 0 for the first message of the cycle
 *   shift      = max(32, 2*log2(index count) + log2(index spacing))
 *   file name  = format(cycle * length + E) in UTC + ".cq4", where E is the epoch rounded down to whole
 *                days: an epoch below one day (a roll time) does not show in the names
 *   moment     = cycle * length + epoch: when the cycle begins
 *
 * A format is a pattern of Java's DateTimeFormatter. Of its letters the following are known, in any order:
 * yyyy (or uuuu), MM, dd, HH, mm, ss, and text in quotes, '' being one quote. A format with other letters is
 * refused: WEEKLY (YYYY'W'ww) among them, whose files Java itself cannot read again.
 *
 * A queue of Java 5.16.9 and later names its format and length in metadata.cq4t, and the format names the
 * roll cycle: so the shift is that of the table, whatever index count a data file has. Older queues, and roll
 * cycles that are not in the table, have the shift that follows from the header of a data file. */
#ifndef AC_CQ4_ROLL_H
#define AC_CQ4_ROLL_H

#include "aiochronicle.h"

#define AC_CQ4_CYCLE_MAX INT32_MAX
#define AC_CQ4_DAY_MS 86400000
#define AC_CQ4_SUFFIX ".cq4"

enum { AC_CQ4_FORMAT_MAX = 64, AC_CQ4_NAME_MAX = 96 };

typedef struct ac_cq4_roll {
    char format[AC_CQ4_FORMAT_MAX]; /* empty: not known yet */
    uint64_t length_ms;
    int64_t epoch_ms;
    uint32_t index_count, index_spacing; /* of a new data file; 0 = not known */
    uint32_t shift;                      /* 0 = unknown: there is no data file yet */
} ac_cq4_roll_t;

/* One of Java's own. */
typedef struct ac_cq4_known_roll {
    const char *name, *format;
    uint32_t length_ms, index_count, index_spacing;
} ac_cq4_known_roll_t;

extern const ac_cq4_known_roll_t ac_cq4_known_rolls[];
extern const int ac_cq4_known_roll_count;

/* By format, as a queue names it, or by name, as a user does; NULL if there is none. */
const ac_cq4_known_roll_t *ac_cq4_roll_by_format(const char *format);
const ac_cq4_known_roll_t *ac_cq4_roll_by_name(const char *name);

/* Rounded down; 0 for 0. */
uint32_t ac_cq4_log2(uint64_t value);
uint32_t ac_cq4_shift(uint32_t index_count, uint32_t index_spacing);

/* Returns NULL, or why files of this format and length cannot be found. */
const char *ac_cq4_roll_problem(const ac_cq4_roll_t *roll);

/* With the suffix. AC_OK, or AC_E_ARGUMENT: the cycle has no name (a year beyond 9999, or an invalid
 * format). */
int ac_cq4_roll_file_name(const ac_cq4_roll_t *roll, uint32_t cycle, char out[AC_CQ4_NAME_MAX]);

/* The cycle of a file; -1 if the name, with its suffix, is not exactly that of a cycle. */
int64_t ac_cq4_roll_cycle_of_name(const ac_cq4_roll_t *roll, const char *name);

/* -1 before the epoch or beyond the last cycle. */
int64_t ac_cq4_roll_cycle_at(const ac_cq4_roll_t *roll, int64_t time_ms);

/* When the cycle begins, for timestamps; 0 if that is before 1970, UINT64_MAX if it is too late to be
 * represented. */
uint64_t ac_cq4_roll_moment_ns(const ac_cq4_roll_t *roll, uint32_t cycle);

static inline uint64_t ac_cq4_index(const ac_cq4_roll_t *roll, uint32_t cycle, uint64_t seq) {
    return ((uint64_t)cycle << roll->shift) + seq;
}

static inline uint64_t ac_cq4_seq_mask(const ac_cq4_roll_t *roll) {
    return ((uint64_t)1 << roll->shift) - 1;
}

/* The cycle part of an index may exceed every valid cycle. */
static inline uint64_t ac_cq4_cycle_of_index(const ac_cq4_roll_t *roll, uint64_t index) {
    return index >> roll->shift;
}

#endif
