/* The readers of a queue, and what is kept for them: asked from outside, by retention's own rules. */
#include "cq4_reader.h"
#include "error.h"
#include "lock_holder.h"
#include "os.h"
#include "position.h"
#include "queue_view.h"
#include "retention_rules.h"
#include "segment.h"
#include "writer_settings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rules, either the last writer's or hypothetical ones, and how they apply now. */
typedef struct outlook {
    ac_view_t view;
    ac_queue_writer_t writer;
    ac_writer_config_t config;
    ac_liveness_t liveness; /* empty, so signs of life are judged by the wall clock */
    ac_round_t round;
    int known;        /* what the rules are */
    uint64_t current; /* this segment, and what is after it, is not finished */
} outlook_t;

static void outlook_close(outlook_t *outlook) {
    ac_view_close(&outlook->view);
    free(outlook->liveness.entries);
    pthread_mutex_destroy(&outlook->liveness.mutex);
    free(outlook);
}

static void take_rules(outlook_t *outlook, const ac_settings_t *rules) {
    ac_settings_t *settings = &outlook->writer.settings;
    uint64_t opened_ns = settings->opened_ns;
    outlook->known = rules || outlook->writer.published;
    if (rules) *settings = *rules;
    settings->opened_ns = opened_ns;
    ac_settings_apply(settings, &outlook->config);
}

static int outlook_open(outlook_t **out, const char *path, const ac_settings_t *rules,
                        ac_error_t *err) {
    uint32_t segment;
    uint64_t offset;
    outlook_t *outlook = calloc(1, sizeof *outlook);
    if (!outlook) return ac_fail(err, AC_E_SYSTEM, ENOMEM, path, 0, "no memory to look at it");
    int rc = ac_view_open(&outlook->view, path, err);
    if (rc != AC_OK) {
        free(outlook);
        return rc;
    }
    const ac_view_t *view = &outlook->view;
    pthread_mutex_init(&outlook->liveness.mutex, NULL);
    rc = ac_view_writer(view, &outlook->writer, err);
    if (rc != AC_OK) {
        outlook_close(outlook);
        return rc;
    }
    take_rules(outlook, rules);
    ac_control_position(ac_control_of(view->control), &segment, &offset);
    outlook->current = segment;
    outlook->round.survey = (ac_survey_t){.dir = &view->dir,
                                          .dir_fd = view->dir_fd,
                                          .config = &outlook->config,
                                          .liveness = &outlook->liveness,
                                          .segment_size = view->segment_size,
                                          .head_segment = segment,
                                          .head_offset = offset};
    *out = outlook;
    return AC_OK;
}

static int has_limits(const outlook_t *outlook) {
    return outlook->config.retain_ns != 0 || outlook->config.retain_bytes != 0;
}

static int is_awaited(const outlook_t *outlook, const char *name) {
    return outlook->config.wait_for && strcmp(outlook->config.wait_for, name) == 0;
}

/* Whether what it has not committed past is kept for it. */
static int has_a_say(const outlook_t *outlook, const char *name, enum ac_stance stance) {
    if (!outlook->config.retention) return 0;
    if (is_awaited(outlook, name) || stance == AC_STANCE_NEEDS) return 1;
    return stance == AC_STANCE_WAITED_FOR && !has_limits(outlook);
}

/* ---- readers ---- */

typedef struct entries {
    const outlook_t *outlook;
    ac_reader_entry_t *out;
    size_t count, room;
} entries_t;

static uint64_t finished_from(const outlook_t *outlook, uint64_t segment) {
    uint64_t count = 0;
    for (size_t i = 0; i < outlook->view.count; i++)
        count += outlook->view.ids[i] >= segment && outlook->view.ids[i] < outlook->current;
    return count;
}

/* The kernel knows; the process may have ended meanwhile, or live in another container. */
static void name_process(const outlook_t *outlook, ac_reader_entry_t *entry) {
    char file[128];
    struct stat info;
    snprintf(file, sizeof file, "readers/%s.meta", entry->name);
    if (ac_os_stat_at(outlook->view.dir_fd, file, &info) < 0) return;
    entry->pid = ac_holder_pid(&info);
    if (entry->pid <= 0) return;
    ac_os_process_command(entry->pid, entry->command, sizeof entry->command);
    entry->stopped = ac_os_process_stopped(entry->pid);
}

static void note_reader(void *context, const char *name, const ac_slot_t *slot, int held,
                        enum ac_stance stance) {
    entries_t *entries = context;
    const outlook_t *outlook = entries->outlook;
    if (entries->count++ >= entries->room) return;
    ac_reader_entry_t *entry = &entries->out[entries->count - 1];
    *entry = (ac_reader_entry_t){.segment = slot->segment,
                                 .offset = slot->offset,
                                 .heartbeat_ns = slot->heartbeat_ns,
                                 .open = held};
    snprintf(entry->name, sizeof entry->name, "%s", name);
    if (has_a_say(outlook, name, stance)) entry->keeps = finished_from(outlook, slot->segment);
    if (held) name_process(outlook, entry);
}

int64_t ac_queue_readers(const char *path, ac_reader_entry_t *out, size_t room, ac_error_t *err) {
    outlook_t *outlook;
    int rc = outlook_open(&outlook, path, NULL, err);
    if (rc == AC_E_NOT_FOUND && ac_view_is_java(path)) return ac_cq4_readers(path, out, room, err);
    if (rc != AC_OK) return rc;
    entries_t entries = {outlook, out, 0, room};
    outlook->round.survey.visit = note_reader;
    outlook->round.survey.context = &entries;
    rc = ac_survey(&outlook->round.survey, &outlook->round.slowest, err);
    outlook_close(outlook);
    return rc != AC_OK ? rc : (int64_t)entries.count;
}

/* ---- segments ---- */

typedef struct claim {
    char name[AC_READER_NAME_MAX + 1];
    uint64_t segment, offset;
} claim_t;

/* Of the readers that keep it. */
typedef struct claims {
    const outlook_t *outlook;
    claim_t *claims;
    size_t count, room;
    int failed; /* for lack of memory */
} claims_t;

static void note_claim(void *context, const char *name, const ac_slot_t *slot, int held,
                       enum ac_stance stance) {
    claims_t *claims = context;
    (void)held;
    if (!has_a_say(claims->outlook, name, stance)) return;
    if (claims->count == claims->room) {
        size_t room = claims->room ? claims->room * 2 : 16;
        claim_t *grown = realloc(claims->claims, room * sizeof *grown);
        claims->failed |= !grown;
        if (!grown) return;
        claims->claims = grown;
        claims->room = room;
    }
    claim_t *claim = &claims->claims[claims->count++];
    *claim = (claim_t){.segment = slot->segment, .offset = slot->offset};
    snprintf(claim->name, sizeof claim->name, "%s", name);
}

static void name_readers(const claims_t *claims, ac_kept_segment_t *out) {
    const claim_t *last = NULL;
    for (size_t i = 0; i < claims->count; i++) {
        const claim_t *claim = &claims->claims[i];
        if (claim->segment > out->segment) continue;
        out->readers++;
        if (!last || claim->segment < last->segment ||
            (claim->segment == last->segment && claim->offset < last->offset))
            last = claim;
    }
    if (last) snprintf(out->reader, sizeof out->reader, "%s", last->name);
    if (out->why == AC_KEPT_AWAITED)
        snprintf(out->reader, sizeof out->reader, "%s", claims->outlook->config.wait_for);
}

/* Whether something other than readers and limits prevents all removals. */
typedef struct obstacle {
    int why; /* AC_KEPT_GOES = nothing */
    char position[72];
} obstacle_t;

static void see_position(void *context, const char *name, const ac_slot_t *slot, int held) {
    (void)context, (void)name, (void)slot, (void)held;
}

static obstacle_t find_obstacle(const outlook_t *outlook) {
    obstacle_t found = {.why = AC_KEPT_GOES};
    ac_error_t err;
    int rc =
        ac_position_each_sound(&outlook->view.dir, outlook->view.dir_fd, see_position, NULL, &err);
    if (outlook->writer.state != AC_WRITER_OPEN) found.why = AC_KEPT_NO_WRITER;
    if (rc == AC_OK) return found;
    const char *slash = strrchr(err.path, '/');
    found.why = AC_KEPT_POSITION;
    snprintf(found.position, sizeof found.position, "%.71s", slash ? slash + 1 : err.path);
    return found;
}

static int judge(outlook_t *outlook, const obstacle_t *obstacle, int is_behind,
                 ac_kept_segment_t *out, ac_error_t *err) {
    const char *limit;
    ac_content_t content = {.damage = NULL};
    if (out->segment >= outlook->current) return out->why = AC_KEPT_ACTIVE;
    if (!outlook->known) return out->why = AC_KEPT_UNKNOWN;
    if (!outlook->config.retention) return out->why = AC_KEPT_NO_RETENTION;
    int rc = ac_round_judge(&outlook->round, out->segment, &content, &limit, err);
    out->newest_ns = content.index.count > 0 ? content.index.max_ts_ns : 0;
    if (content.damage || limit)
        snprintf(out->detail, sizeof out->detail, "%s", content.damage ? content.damage : limit);
    ac_index_free(&content.index);
    if (rc < 0) return rc;
    out->why = rc;
    if (rc != AC_KEPT_GOES) return rc;
    ac_round_deduct(&outlook->round, out->bytes);
    out->why = is_behind ? AC_KEPT_BEHIND : obstacle->why;
    if (out->why == AC_KEPT_POSITION)
        snprintf(out->reader, sizeof out->reader, "%s", obstacle->position);
    return out->why;
}

/* Retention may remove one meanwhile. */
static int64_t explain(outlook_t *outlook, const claims_t *claims, ac_kept_segment_t *out,
                       size_t room, ac_error_t *err) {
    const ac_view_t *view = &outlook->view;
    obstacle_t obstacle = find_obstacle(outlook);
    size_t filled = 0, gone = 0;
    int is_behind = 0;
    for (size_t i = 0; i < view->count; i++) {
        ac_kept_segment_t kept = {.segment = view->ids[i]};
        ac_segment_name(kept.file, kept.segment, ".q");
        kept.bytes = ac_segment_room(&view->dir, view->dir_fd, kept.segment, view->segment_size);
        int why = judge(outlook, &obstacle, is_behind, &kept, err);
        if (why == AC_E_NOT_FOUND) gone++;
        if (why == AC_E_NOT_FOUND) continue;
        if (why < 0) return why;
        if (why == AC_KEPT_AWAITED || why == AC_KEPT_READER || why == AC_KEPT_AWAY)
            name_readers(claims, &kept);
        is_behind |= why != AC_KEPT_GOES && why != AC_KEPT_NO_WRITER;
        if (filled < room) out[filled++] = kept;
    }
    return (int64_t)(view->count - gone);
}

static int64_t explain_java(const char *path, const ac_settings_t *rules, ac_kept_segment_t *out,
                            size_t room, ac_error_t *err) {
    if (!rules) return ac_cq4_why_kept(path, out, room, err);
    return ac_fail(err, AC_E_UNSUPPORTED, 0, path, 0,
                   "retention: only the operator of a Java queue removes its files");
}

int64_t ac_queue_why_kept(const char *path, const ac_settings_t *rules, ac_kept_segment_t *out,
                          size_t room, ac_error_t *err) {
    outlook_t *outlook;
    int64_t rc = rules ? ac_settings_check(path, rules, err) : AC_OK;
    if (rc != AC_OK) return rc;
    rc = outlook_open(&outlook, path, rules, err);
    if (rc == AC_E_NOT_FOUND && ac_view_is_java(path))
        return explain_java(path, rules, out, room, err);
    if (rc != AC_OK) return rc;
    claims_t claims = {.outlook = outlook};
    outlook->round.survey.visit = note_claim;
    outlook->round.survey.context = &claims;
    rc = ac_round_begin(&outlook->round, outlook->view.ids, outlook->view.count, err);
    if (rc == AC_OK && claims.failed)
        rc = ac_fail(err, AC_E_SYSTEM, ENOMEM, path, 0, "no memory for its readers");
    if (rc == AC_OK) rc = explain(outlook, &claims, out, room, err);
    free(claims.claims);
    outlook_close(outlook);
    return rc;
}
