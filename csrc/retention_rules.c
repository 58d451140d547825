#include "retention_rules.h"

#include "os.h"
#include "position.h"
#include "segment.h"

#include <stdio.h>
#include <string.h>

/* By its heartbeat; but readers send heartbeats as often as the writer wants, and learn that interval from
 * one to the next. Until each of them must have sent one since this writer opened the queue, an open
 * position is enough. Not only for those without a sign of life since: a commit is one too, and does not
 * change the next heartbeat. */
static int is_silent_too_long(const ac_survey_t *survey, const char *name, const ac_slot_t *slot,
                              int held) {
    const ac_writer_config_t *config = survey->config;
    uint64_t age_ns = ac_liveness_age_ns(survey->liveness, name, slot);
    if (config->reader_ttl_ns == 0 || age_ns <= config->reader_ttl_ns) return 0;
    return !held || ac_os_monotonic_ns() >= config->opened_ns + 2 * AC_HEARTBEAT_MAX_NS;
}

/* By the size of its segments up to here; those that were left empty have none. */
static int is_too_far_behind(const ac_survey_t *survey, const ac_slot_t *slot) {
    uint64_t max_lag = survey->config->max_reader_lag, size = survey->segment_size;
    uint64_t lag =
        (survey->head_segment - slot->segment) * size + survey->head_offset - slot->offset;
    if (slot->segment == survey->head_segment && slot->offset > survey->head_offset) lag = 0;
    if (max_lag == 0) return 0;
    for (uint64_t id = slot->segment; id < survey->head_segment && lag > max_lag; id++)
        lag -= size - ac_segment_room(survey->dir, survey->dir_fd, (uint32_t)id, size);
    return lag > max_lag;
}

/* Within reader_ttl, if set, a reader that is away counts like an open one. */
enum ac_stance ac_survey_stance(const ac_survey_t *survey, const char *name, const ac_slot_t *slot,
                                int held) {
    int silent = is_silent_too_long(survey, name, slot, held);
    if (slot->segment > survey->head_segment || slot->offset > survey->segment_size)
        return AC_STANCE_NOWHERE;
    if (silent) return AC_STANCE_SILENT;
    if (is_too_far_behind(survey, slot)) return AC_STANCE_TOO_FAR;
    return held || survey->config->reader_ttl_ns != 0 ? AC_STANCE_NEEDS : AC_STANCE_WAITED_FOR;
}

static int is_before(const ac_slot_t *slot, uint64_t segment, uint64_t offset) {
    return slot->segment < segment || (slot->segment == segment && slot->offset < offset);
}

static void note_open(ac_slowest_t *out, const char *name, const ac_slot_t *slot) {
    if (out->live++ > 0 && !is_before(slot, out->segment, out->offset)) return;
    out->segment = slot->segment;
    out->offset = slot->offset;
    snprintf(out->name, sizeof out->name, "%s", name);
}

typedef struct surveying {
    const ac_survey_t *survey;
    ac_slowest_t *out;
} surveying_t;

static void survey_reader(void *context, const char *name, const ac_slot_t *slot, int held) {
    const ac_survey_t *survey = ((surveying_t *)context)->survey;
    ac_slowest_t *out = ((surveying_t *)context)->out;
    const char *awaited = survey->config->wait_for;
    enum ac_stance stance = ac_survey_stance(survey, name, slot, held);
    out->registered++;
    if (awaited && strcmp(name, awaited) == 0 && slot->segment <= survey->head_segment)
        out->awaited_segment = slot->segment;
    if (survey->visit) survey->visit(survey->context, name, slot, held, stance);
    if (stance == AC_STANCE_NOWHERE) return;
    if (slot->segment < out->farthest_behind) out->farthest_behind = slot->segment;
    if (stance < AC_STANCE_WAITED_FOR) return;
    if (slot->segment < out->waited_for) out->waited_for = slot->segment;
    if (stance == AC_STANCE_NEEDS && slot->segment < out->needed) out->needed = slot->segment;
    if (held) note_open(out, name, slot);
}

int ac_survey(const ac_survey_t *survey, ac_slowest_t *out, ac_error_t *err) {
    surveying_t surveying = {survey, out};
    memset(out, 0, sizeof *out);
    out->needed = out->waited_for = out->farthest_behind = UINT64_MAX;
    return (survey->strict ? ac_position_each_sound : ac_position_each)(
        survey->dir, survey->dir_fd, survey_reader, &surveying, err);
}

int ac_slowest_reader(const ac_directory_t *dir, int dir_fd, const ac_writer_config_t *config,
                      ac_liveness_t *liveness, uint64_t segment_size, uint64_t head_segment,
                      uint64_t head_offset, ac_slowest_t *out, ac_error_t *err) {
    ac_survey_t survey = {.dir = dir,
                          .dir_fd = dir_fd,
                          .config = config,
                          .liveness = liveness,
                          .segment_size = segment_size,
                          .head_segment = head_segment,
                          .head_offset = head_offset};
    return ac_survey(&survey, out, err);
}

/* Records that cannot be read may be of today, whatever the readable ones say. */
static const char *find_damage(const ac_index_t *index, const ac_map_t *map, uint64_t size) {
    uint64_t sealed_end = ac_segment_end(map);
    if (ac_map_is_cut(map)) return "a page of it could not be read";
    if (map->size < size) return "it was cut";
    if (index->broken) return "a record is damaged or missing";
    if (index->records == 0 && index->end == AC_SEGMENT_DATA && sealed_end != AC_SEGMENT_DATA)
        return "its first record is missing";
    return NULL;
}

static int examine(const ac_round_t *round, uint32_t id, ac_content_t *out, ac_error_t *err) {
    const ac_directory_t *dir = round->survey.dir;
    int dir_fd = round->survey.dir_fd, built;
    uint64_t segment_size = round->survey.segment_size;
    ac_map_t *map;
    int rc = ac_segment_open(dir, dir_fd, id, segment_size, 0, &map, err);
    if (rc == AC_E_CORRUPT) out->damage = "its header is damaged";
    if (rc != AC_OK) return rc == AC_E_CORRUPT ? AC_OK : rc;
    rc = ac_index_obtain(&out->index, dir, dir_fd, map, segment_size, &built, err);
    if (rc == AC_OK) out->damage = find_damage(&out->index, map, segment_size);
    /* Otherwise it would be walked at each check. */
    if (rc == AC_OK && round->saves_index && built && !out->damage && out->index.count > 0 &&
        ac_segment_sealed(map))
        ac_index_save(&out->index, dir, dir_fd, segment_size, NULL);
    ac_map_release(map);
    return rc;
}

/* The total size of the segments; an upper bound will do if that is within the limit, too. */
static uint64_t total_room(const ac_survey_t *survey, const uint32_t *ids, size_t count) {
    uint64_t total = (uint64_t)count * survey->segment_size;
    if (total <= survey->config->retain_bytes) return total;
    total = 0;
    for (size_t i = 0; i < count; i++)
        total += ac_segment_room(survey->dir, survey->dir_fd, ids[i], survey->segment_size);
    return total;
}

int ac_round_begin(ac_round_t *round, const uint32_t *ids, size_t count, ac_error_t *err) {
    round->now_ns = ac_os_now_ns();
    round->total = round->survey.config->retain_bytes ? total_room(&round->survey, ids, count) : 0;
    return ac_survey(&round->survey, &round->slowest, err);
}

void ac_round_deduct(ac_round_t *round, uint64_t room) {
    round->total -= room < round->total ? room : round->total;
}

/* Whether a reader to which no limit applies has not committed past this segment. */
static int held_by(const ac_round_t *round, uint32_t id) {
    const ac_slowest_t *slowest = &round->slowest;
    if (round->survey.config->wait_for && id >= slowest->awaited_segment) return AC_KEPT_AWAITED;
    return id >= slowest->needed ? AC_KEPT_READER : AC_KEPT_GOES;
}

static int is_read_by_all(const ac_round_t *round, uint32_t id) {
    return round->survey.config->retain_for_readers && round->slowest.registered > 0 &&
           id < round->slowest.waited_for;
}

int ac_round_allows(const ac_round_t *round, uint32_t id, const char *limit) {
    return held_by(round, id) == AC_KEPT_GOES && (limit || is_read_by_all(round, id));
}

/* The limit of age or size that the segment exceeds, or NULL. A segment without a record has no age of its
 * own: nothing before it is left, so it may be removed, too. */
static const char *find_limit(const ac_round_t *round, const ac_content_t *content) {
    const ac_writer_config_t *config = round->survey.config;
    uint64_t newest_ns = content->index.max_ts_ns;
    uint64_t age_ns = newest_ns < round->now_ns ? round->now_ns - newest_ns : 0;
    if (config->retain_ns && age_ns > config->retain_ns) return "max_age";
    return config->retain_bytes && round->total > config->retain_bytes ? "max_bytes" : NULL;
}

int ac_round_judge(const ac_round_t *round, uint32_t id, ac_content_t *content, const char **limit,
                   ac_error_t *err) {
    const ac_writer_config_t *config = round->survey.config;
    int too_large = config->retain_bytes && round->total > config->retain_bytes;
    int kept = held_by(round, id), read = is_read_by_all(round, id);
    *limit = NULL;
    memset(content, 0, sizeof *content);
    if (kept != AC_KEPT_GOES) return kept;
    if (!read && !config->retain_ns && !config->retain_bytes)
        return round->slowest.registered > 0 ? AC_KEPT_AWAY : AC_KEPT_NO_READER;
    if (!read && !config->retain_ns && !too_large) return AC_KEPT_LIMITS;
    int rc = examine(round, id, content, err);
    if (rc != AC_OK || read) return rc < 0 ? rc : AC_KEPT_GOES;
    /* What cannot be read permits no removal. */
    if (content->damage) return AC_KEPT_DAMAGED;
    *limit = find_limit(round, content);
    return *limit ? AC_KEPT_GOES : AC_KEPT_LIMITS;
}
