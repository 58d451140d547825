/* Which sealed segments may be removed, and what keeps each of the others. These are the rules alone:
 * retention.c removes by them, and retention_kept.c explains by them what is kept. */
#ifndef AC_RETENTION_RULES_H
#define AC_RETENTION_RULES_H

#include "retention.h"
#include "segment_seekindex.h"

/* What a reader demands of the segments it has not committed past. */
enum ac_stance {
    AC_STANCE_NOWHERE,    /* its position is not in the queue */
    AC_STANCE_SILENT,     /* beyond reader_ttl: nothing */
    AC_STANCE_TOO_FAR,    /* beyond max_reader_lag: nothing */
    AC_STANCE_WAITED_FOR, /* away: they stay until a limit of age or size is reached */
    AC_STANCE_NEEDS       /* open, or away for less than reader_ttl: they stay */
};

typedef void (*ac_survey_visit_t)(void *context, const char *name, const ac_slot_t *slot, int held,
                                  enum ac_stance stance);

/* One look at all positions. */
typedef struct ac_survey {
    const ac_directory_t *dir;
    int dir_fd;
    const ac_writer_config_t *config;
    ac_liveness_t *liveness;
    uint64_t segment_size, head_segment, head_offset;
    ac_survey_visit_t visit; /* called for each, unless NULL */
    void *context;
    int strict; /* a position that cannot be decoded is an error: AC_E_POSITION_CORRUPT */
} ac_survey_t;

int ac_survey(const ac_survey_t *survey, ac_slowest_t *out, ac_error_t *err);
enum ac_stance ac_survey_stance(const ac_survey_t *survey, const char *name, const ac_slot_t *slot,
                                int held);

/* What retention must know about a sealed segment. */
typedef struct ac_content {
    ac_index_t index;   /* largest seq and newest timestamp; count 0: it has no record */
    const char *damage; /* NULL, or why these may be incomplete */
} ac_content_t;

/* What all decisions are based on. */
typedef struct ac_round {
    ac_survey_t survey;
    ac_slowest_t slowest;
    uint64_t now_ns, total; /* total: size of all segments; 0 = not asked for */
    int saves_index;        /* keeps one that had to be built */
} ac_round_t;

/* Reads the readers' positions and these segments, which must be all there are. */
int ac_round_begin(ac_round_t *round, const uint32_t *ids, size_t count, ac_error_t *err);

/* AC_KEPT_GOES, or the first reason why it stays; or AC_E_*. Fills in the content if it was needed; the
 * caller frees it by ac_index_free in any case. *limit is the limit of age or size that allows its removal,
 * or NULL. */
int ac_round_judge(const ac_round_t *round, uint32_t id, ac_content_t *content, const char **limit,
                   ac_error_t *err);
/* The same for readers alone, and for a segment that a limit allows to go: 1 = no reader keeps it. */
int ac_round_allows(const ac_round_t *round, uint32_t id, const char *limit);
/* It is removed, or would be. */
void ac_round_deduct(ac_round_t *round, uint64_t room);

#endif
