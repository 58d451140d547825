#include "retention.h"

#include "control.h"
#include "error.h"
#include "log.h"
#include "os.h"
#include "position.h"
#include "seekindex.h"
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* One look at all positions. */
typedef struct survey {
    const ac_directory_t *dir;
    int dir_fd;
    const ac_writer_config_t *config;
    ac_signs_t *signs;
    uint64_t segment_size, head_segment, head_offset;
    ac_slowest_t *out;
    /* When something is to be removed: */
    int removes;
    uint64_t removed;  /* this segment, so what lies beyond it is relied on, and synced */
    const char *limit; /* the limit that allows it, if it is one of age or size */
    int synced;        /* how many positions had to be */
    int failed;        /* AC_E_* of the first that could not be */
    ac_error_t *err;
} survey_t;

/* By its heartbeat; but readers beat as often as the writer wants, and learn that from one beat to the next.
 * Until each of them must have beaten once since this writer came, that it has its position open will do.
 * Not just for those who gave no sign since: a commit is one too, and changes nothing about the next beat. */
static int is_silent_too_long(const survey_t *survey, const char *name, const ac_slot_t *slot,
                              int held) {
    const ac_writer_config_t *config = survey->config;
    uint64_t age_ns = ac_sign_age_ns(survey->signs, name, slot);
    if (config->reader_ttl_ns == 0 || age_ns <= config->reader_ttl_ns) return 0;
    return !held || ac_os_monotonic_ns() >= config->opened_ns + 2 * AC_HEARTBEAT_MAX_NS;
}

/* By what its segments take up to here; those that were left empty take nothing. */
static int is_too_far_behind(const survey_t *survey, const ac_slot_t *slot) {
    uint64_t max_lag = survey->config->max_reader_lag, size = survey->segment_size;
    uint64_t lag =
        (survey->head_segment - slot->segment) * size + survey->head_offset - slot->offset;
    if (slot->segment == survey->head_segment && slot->offset > survey->head_offset) lag = 0;
    if (max_lag == 0) return 0;
    for (uint64_t id = slot->segment; id < survey->head_segment && lag > max_lag; id++)
        lag -= size - ac_segment_room(survey->dir, survey->dir_fd, (uint32_t)id, size);
    return lag > max_lag;
}

/* Whether it is anywhere in the queue. */
static int is_position(const survey_t *survey, const ac_slot_t *slot) {
    return slot->segment <= survey->head_segment && slot->offset <= survey->segment_size;
}

static int is_before(const ac_slot_t *slot, uint64_t segment, uint64_t offset) {
    return slot->segment < segment || (slot->segment == segment && slot->offset < offset);
}

static void survey_open(ac_slowest_t *out, const char *name, const ac_slot_t *slot) {
    if (out->live++ > 0 && !is_before(slot, out->segment, out->offset)) return;
    out->segment = slot->segment;
    out->offset = slot->offset;
    snprintf(out->name, sizeof out->name, "%s", name);
}

static void sync_position(survey_t *survey, const char *name, const ac_slot_t *slot) {
    enum ac_sync_state state = ac_sign_sync(survey->signs, name, slot);
    if (survey->failed || state == AC_SYNC_DONE) return;
    if (state == AC_SYNC_FAILED) {
        char path[1200];
        snprintf(path, sizeof path, "%s/readers/%s.meta", survey->dir->path, name);
        survey->failed = ac_fail(survey->err, AC_E_SYSTEM, EIO, path, 0,
                                 "could not be synced; segments stay until this reader commits "
                                 "again or is removed");
        return;
    }
    int rc = ac_position_sync_file(survey->dir, survey->dir_fd, name, survey->err);
    if (rc == AC_E_NOT_FOUND) return; /* removed at this moment */
    ac_sign_note_sync(survey->signs, name, slot, rc == AC_OK ? AC_SYNC_DONE : AC_SYNC_FAILED);
    survey->synced++;
    survey->failed = rc;
}

static void survey_reader(void *context, const char *name, const ac_slot_t *slot, int held) {
    survey_t *survey = context;
    ac_slowest_t *out = survey->out;
    const char *awaited = survey->config->wait_for;
    int silent = is_silent_too_long(survey, name, slot, held);
    out->registered++;
    if (awaited && strcmp(name, awaited) == 0 && slot->segment <= survey->head_segment)
        out->awaited_segment = slot->segment;
    if (!is_position(survey, slot)) return;
    if (slot->segment < out->farthest_behind) out->farthest_behind = slot->segment;
    if (survey->removes && slot->segment > survey->removed) sync_position(survey, name, slot);
    if (silent || is_too_far_behind(survey, slot)) return;
    /* Within a reader_ttl that somebody chose, one that is away counts like one that is open. */
    int present = held || survey->config->reader_ttl_ns != 0;
    if (slot->segment < out->waited_for) out->waited_for = slot->segment;
    if (present && slot->segment < out->needed) out->needed = slot->segment;
    if (held) survey_open(out, name, slot);
}

static int look(survey_t *survey, ac_error_t *err) {
    memset(survey->out, 0, sizeof *survey->out);
    survey->out->needed = survey->out->waited_for = survey->out->farthest_behind = UINT64_MAX;
    return (survey->removes ? ac_position_each_sound : ac_position_each)(
        survey->dir, survey->dir_fd, survey_reader, survey, err);
}

int ac_slowest_reader(const ac_directory_t *dir, int dir_fd, const ac_writer_config_t *config,
                      ac_signs_t *signs, uint64_t segment_size, uint64_t head_segment,
                      uint64_t head_offset, ac_slowest_t *out, ac_error_t *err) {
    survey_t survey = {.dir = dir,
                       .dir_fd = dir_fd,
                       .config = config,
                       .signs = signs,
                       .segment_size = segment_size,
                       .head_segment = head_segment,
                       .head_offset = head_offset,
                       .out = out};
    return look(&survey, err);
}

/* Says who loses by a limit, once for each place that a reader stays at. */
static void warn_reader(void *context, const char *name, const ac_slot_t *slot, int held) {
    const survey_t *survey = context;
    if (!is_position(survey, slot) || slot->segment > survey->removed) return;
    const char *limit = is_silent_too_long(survey, name, slot, held) ? "reader_ttl"
                        : is_too_far_behind(survey, slot)            ? "max_reader_lag"
                                                                     : survey->limit;
    if (!limit || !ac_sign_warn(survey->signs, name, slot)) return;
    ac_log(AC_LOG_WARNING, survey->dir->path,
           "%s is reached: segment %llu goes, though reader '%s' (%s) has not read on from segment "
           "%llu, offset %llu",
           limit, (unsigned long long)survey->removed, name, held ? "open" : "away",
           (unsigned long long)slot->segment, (unsigned long long)slot->offset);
}

/* What retention has to know of a sealed segment. */
typedef struct content {
    ac_index_t index;   /* largest seq and newest timestamp; count 0: it has no record */
    const char *damage; /* NULL, or why that may not be all of it */
} content_t;

/* Records that cannot be seen may be of today, whatever those say that can. */
static const char *find_damage(const ac_index_t *index, const ac_map_t *map, uint64_t size) {
    uint64_t sealed_end = ac_segment_end(map);
    if (ac_map_is_cut(map)) return "a page of it could not be read";
    if (map->size < size) return "it was cut";
    if (index->broken) return "a record is damaged or missing";
    if (index->records == 0 && index->end == AC_SEGMENT_DATA && sealed_end != AC_SEGMENT_DATA)
        return "its first record is missing";
    return NULL;
}

static int examine(const ac_directory_t *dir, int dir_fd, uint32_t id, uint64_t segment_size,
                   content_t *out, ac_error_t *err) {
    ac_map_t *map;
    int built;
    memset(out, 0, sizeof *out);
    int rc = ac_segment_open(dir, dir_fd, id, segment_size, 0, &map, err);
    if (rc == AC_E_CORRUPT) out->damage = "its header is damaged";
    if (rc != AC_OK) return rc == AC_E_CORRUPT ? AC_OK : rc;
    rc = ac_index_obtain(&out->index, dir, dir_fd, map, segment_size, &built, err);
    if (rc == AC_OK) out->damage = find_damage(&out->index, map, segment_size);
    /* Or it would be walked at each look. */
    if (rc == AC_OK && built && !out->damage && out->index.count > 0 && ac_segment_sealed(map))
        ac_index_save(&out->index, dir, dir_fd, segment_size, NULL);
    ac_map_release(map);
    return rc;
}

/* A power cut may take what was appended behind the segment that is about to go. The queue then has no
 * record left that says where seq went on, so that is on disk first. What the writer itself has not come to
 * yet is no record's, whatever a damaged one says. */
static int note_removal(const ac_directory_t *dir, int dir_fd, const ac_index_t *index,
                        ac_error_t *err) {
    ac_map_t *map;
    if (index->count == 0) return AC_OK;
    int rc = ac_control_open(dir, dir_fd, 1, 1, &map, err);
    if (rc != AC_OK) return rc;
    ac_control_t *control = ac_control_of(map);
    uint64_t next_seq = ac_load_acquire_u64(&control->next_seq);
    uint64_t last_ns = ac_load_acquire_u64(&control->last_timestamp_ns);
    ac_control_note_removed(control, index->max_seq < next_seq ? index->max_seq + 1 : next_seq,
                            index->max_ts_ns < last_ns ? index->max_ts_ns : last_ns);
    rc = ac_os_map_sync(map->base, -1, 0, AC_CONTROL_SIZE);
    ac_map_release(map);
    return rc < 0 ? ac_fail_os_in(err, rc, dir->path, "control.meta", "cannot sync") : AC_OK;
}

/* Opens (creating) ROOT/YYYY/MM/DD. */
static int open_archive_day(const char *root, uint64_t timestamp_ns, unsigned mode) {
    struct tm day;
    time_t seconds = (time_t)(timestamp_ns / 1000000000u);
    char parts[3][16];
    if (!gmtime_r(&seconds, &day)) return -EINVAL;
    snprintf(parts[0], sizeof parts[0], "%04d", day.tm_year + 1900);
    snprintf(parts[1], sizeof parts[1], "%02d", day.tm_mon + 1);
    snprintf(parts[2], sizeof parts[2], "%02d", day.tm_mday);
    int rc = ac_os_mkdir(root, mode);
    if (rc < 0 && rc != -EEXIST) return rc;
    /* A link to it is the operator's; what was made here is none. */
    int fd = rc == 0 ? ac_os_open_dir_at(AT_FDCWD, root) : ac_os_open_dir(root);
    if (rc == 0 && fd >= 0) ac_directory_set_mode(fd, mode);
    for (int i = 0; i < 3 && fd >= 0; i++) {
        rc = ac_os_mkdir_at(fd, parts[i], mode);
        int sub = rc < 0 && rc != -EEXIST ? rc : ac_os_open_dir_at(fd, parts[i]);
        if (rc == 0 && sub >= 0) {
            ac_directory_set_mode(sub, mode);
            ac_os_sync_dir(fd);
        }
        ac_os_close(fd);
        fd = sub;
    }
    return fd;
}

/* Set by a writer that is closed meanwhile, and must not have to wait. */
static int is_stopped(const uint32_t *closing) {
    return ac_load_relaxed_u32(closing) != 0;
}

/* 1 = the archive has this very file: a move that came to its end, but for the removal of the original. */
static int is_copied(int from, int to_dir, const char *name, const uint32_t *closing) {
    uint8_t original[16384], copy[16384];
    int to = ac_os_open_at(to_dir, name, O_RDONLY, 0);
    if (to < 0) return to == -ENOENT ? 0 : to;
    int rc, expected;
    uint64_t offset = 0;
    do {
        expected = ac_os_read_at(from, original, sizeof original, offset);
        rc = expected < 0 ? expected : ac_os_read_at(to, copy, sizeof copy, offset);
        if (rc >= 0 && (rc != expected || memcmp(original, copy, (size_t)rc) != 0)) rc = -EEXIST;
        if (rc >= 0 && is_stopped(closing)) rc = -ECANCELED;
        offset += sizeof original;
    } while (rc == (int)sizeof original);
    ac_os_close(to);
    return rc < 0 ? rc : 1;
}

enum { COPY_PIECE = 1 << 20 };

/* Each piece is on its way to the disk before the next one is read, so that little is left for the sync, which
 * cannot be stopped. */
static int copy_bytes(int from, int to, uint64_t size, const uint32_t *closing) {
    int rc = 0;
    for (uint64_t at = 0; at < size && rc == 0; at += COPY_PIECE) {
        uint64_t length = size - at < COPY_PIECE ? size - at : COPY_PIECE;
        rc = is_stopped(closing) ? -ECANCELED : ac_os_copy(from, to, at, length);
        if (rc == 0) rc = ac_os_start_writing(to, at, length);
    }
    return rc == 0 && is_stopped(closing) ? -ECANCELED : rc;
}

static int copy_file(int from, uint64_t size, int to_dir, const char *name, unsigned mode,
                     const uint32_t *closing) {
    char temporary[AC_NAME_MAX + 8];
    snprintf(temporary, sizeof temporary, "%s.tmp", name);
    int to = ac_file_create(to_dir, temporary, mode);
    int rc = to < 0 ? to : copy_bytes(from, to, size, closing);
    if (rc == 0) rc = ac_os_sync(to);
    ac_os_close(to);
    if (rc == 0) rc = ac_os_move_new(to_dir, temporary, to_dir, name);
    if (rc < 0) ac_os_unlink(to_dir, temporary);
    return rc;
}

/* Renames where possible; across file systems copies, syncs, and only then removes. What is in the
 * archive already is never replaced. */
static int move_file(const ac_directory_t *dir, int from_dir, const char *name, int to_dir,
                     const uint32_t *closing) {
    struct stat info;
    ac_error_t err;
    int rc = ac_os_move_new(from_dir, name, to_dir, name);
    if (rc != -EXDEV) return rc;
    int from = ac_file_open(dir, from_dir, name, O_RDONLY, &info, &err);
    if (from < 0) return err.sys_errno ? -err.sys_errno : -EPERM;
    rc = is_copied(from, to_dir, name, closing);
    if (rc == 0) rc = copy_file(from, (uint64_t)info.st_size, to_dir, name, dir->mode, closing);
    ac_os_close(from);
    if (rc >= 0) rc = ac_os_sync_dir(to_dir);
    return rc < 0 ? rc : ac_os_unlink(from_dir, name);
}

/* One that is there describes the same segment: it came before a crash, and was made again after it. */
static int move_index(const ac_directory_t *dir, int from_dir, const char *name, int to_dir,
                      const uint32_t *closing) {
    int rc = move_file(dir, from_dir, name, to_dir, closing);
    if (rc == -EEXIST) rc = ac_os_unlink(from_dir, name);
    return rc == -ENOENT ? 0 : rc;
}

/* How far the archive goes with a segment. An empty one adds nothing to what was removed before it, and belongs
 * to the same day, or that would have a hole; with nothing before it, it may as well be of today. */
static int find_archived(const ac_directory_t *dir, int dir_fd, const ac_index_t *index,
                         uint64_t *next_seq, uint64_t *newest_ns, ac_error_t *err) {
    ac_map_t *map;
    *next_seq = index->max_seq + 1;
    *newest_ns = index->max_ts_ns;
    if (index->count > 0) return AC_OK;
    int rc = ac_control_open(dir, dir_fd, 0, 1, &map, err);
    if (rc != AC_OK) return rc;
    ac_control_removed(ac_control_of(map), next_seq, newest_ns);
    ac_map_release(map);
    if (*newest_ns == 0) *newest_ns = ac_os_now_ns();
    return AC_OK;
}

/* Each day of an archive can be read like a queue: it gets a control block before its first segment. */
static int describe_day(const ac_directory_t *dir, int dir_fd, const char *archive, int day_fd,
                        uint32_t id, uint64_t next_seq, uint64_t newest_ns, ac_error_t *err) {
    ac_map_t *map;
    ac_directory_t day = *dir;
    snprintf(day.path, sizeof day.path, "%s", archive);
    int rc = ac_control_open(dir, dir_fd, 0, 1, &map, err);
    if (rc != AC_OK) return rc;
    rc = ac_control_copy(ac_control_of(map), &day, day_fd, id, next_seq, newest_ns, err);
    ac_map_release(map);
    return rc;
}

static int stopped(const ac_directory_t *dir, ac_error_t *err) {
    return ac_fail(err, AC_E_CLOSED, 0, dir->path, 0,
                   "the writer was closed before retention was done; the next one goes on with it");
}

static int archive_segment(const ac_directory_t *dir, int dir_fd, const ac_writer_config_t *config,
                           uint32_t id, const ac_index_t *records, const uint32_t *closing,
                           ac_error_t *err) {
    char segment[AC_NAME_MAX], index[AC_NAME_MAX];
    uint64_t next_seq, newest_ns;
    ac_segment_name(segment, id, ".q");
    ac_segment_name(index, id, ".idx");
    int rc = find_archived(dir, dir_fd, records, &next_seq, &newest_ns, err);
    if (rc != AC_OK) return rc;
    int day = open_archive_day(config->archive, newest_ns, ac_directory_mode(dir->mode));
    if (day < 0) return ac_fail_os(err, day, config->archive, "cannot open the archive");
    rc = describe_day(dir, dir_fd, config->archive, day, id, next_seq, newest_ns, err);
    if (rc != AC_OK) {
        ac_os_close(day);
        return rc;
    }
    /* The index first: nobody comes back for that of a segment that is gone. */
    rc = move_index(dir, dir_fd, index, day, closing);
    if (rc == 0) rc = move_file(dir, dir_fd, segment, day, closing);
    if (rc == 0) rc = ac_os_sync_dir(day);
    if (rc == 0) rc = ac_os_sync_dir(dir_fd);
    ac_os_close(day);
    if (rc == -ECANCELED) return stopped(dir, err);
    if (rc == -EEXIST)
        return ac_fail(err, AC_E_SYSTEM, EEXIST, config->archive, 0,
                       "has a %s of that day already; give each queue an archive of its own",
                       segment);
    return rc < 0 ? ac_fail_os_in(err, rc, dir->path, segment, "cannot archive") : AC_OK;
}

static int delete_segment(const ac_directory_t *dir, int dir_fd, uint32_t id, ac_error_t *err) {
    char name[AC_NAME_MAX];
    ac_segment_name(name, id, ".idx");
    int rc = ac_os_unlink(dir_fd, name);
    ac_segment_name(name, id, ".q");
    if (rc == 0 || rc == -ENOENT) rc = ac_os_unlink(dir_fd, name);
    /* Removals reach the disk in order, so that a power cut never leaves a hole between segments. */
    if (rc == 0) rc = ac_os_sync_dir(dir_fd);
    return rc < 0 ? ac_fail_os_in(err, rc, dir->path, name, "cannot delete") : AC_OK;
}

/* Says that the segments before `id` are about to go, ahead of the survey that decides it. Pairs with the
 * look of a new name at it (register_name in reader.c): either the survey finds the name, or the name finds
 * this. */
static int announce_removal(const ac_directory_t *dir, int dir_fd, uint64_t id, ac_error_t *err) {
    ac_map_t *map;
    int rc = ac_control_open(dir, dir_fd, 1, 1, &map, err);
    if (rc != AC_OK) return rc;
    ac_exchange_seq_cst_u64(&ac_control_of(map)->removing, id);
    ac_map_release(map);
    return AC_OK;
}

static int remove_segment(const ac_directory_t *dir, int dir_fd, const ac_writer_config_t *config,
                          const ac_index_t *index, uint32_t id, const uint32_t *closing,
                          ac_error_t *err) {
    int rc = config->archive ? archive_segment(dir, dir_fd, config, id, index, closing, err)
                             : delete_segment(dir, dir_fd, id, err);
    /* A new name would not begin in a segment that is said to go, although it is still there. */
    if (rc != AC_OK) announce_removal(dir, dir_fd, id, NULL);
    return rc;
}

/* What the segments take together; a larger number will do if that is not too much either. */
static uint64_t total_room(const ac_directory_t *dir, int dir_fd, uint64_t segment_size,
                           uint64_t retain_bytes, const uint32_t *ids, size_t count) {
    uint64_t total = (uint64_t)count * segment_size;
    if (total <= retain_bytes) return total;
    total = 0;
    for (size_t i = 0; i < count; i++)
        total += ac_segment_room(dir, dir_fd, ids[i], segment_size);
    return total;
}

/* What one call of ac_retain goes by. */
typedef struct round {
    survey_t survey;
    ac_slowest_t slowest;
    int names_synced;
    const uint32_t *closing;
    uint64_t now_ns, total; /* total: what all segments take; 0 = nobody asked */
} round_t;

/* Whether somebody has not committed past this segment whom no limit concerns. */
static int is_held(const round_t *round, uint32_t id) {
    const ac_slowest_t *slowest = &round->slowest;
    if (round->survey.config->wait_for && id >= slowest->awaited_segment) return 1;
    return id >= slowest->needed;
}

static int is_read_by_all(const round_t *round, uint32_t id) {
    return round->survey.config->retain_for_readers && round->slowest.registered > 0 &&
           id < round->slowest.waited_for;
}

/* The limit of age or size that the segment is beyond, or NULL. Nothing is removed by what cannot be read. One
 * without a record has no age of its own: nothing before it is left, so it may go, too. */
static const char *find_limit(const round_t *round, const content_t *content) {
    const ac_writer_config_t *config = round->survey.config;
    uint64_t newest_ns = content->index.max_ts_ns;
    uint64_t age_ns = newest_ns < round->now_ns ? round->now_ns - newest_ns : 0;
    if (content->damage) return NULL;
    if (config->retain_ns && age_ns > config->retain_ns) return "max_age";
    return config->retain_bytes && round->total > config->retain_bytes ? "max_bytes" : NULL;
}

/* That the limits would have it otherwise, and what is behind it stays as well, is told once. */
static void report_unreadable(const round_t *round, uint32_t id, const char *damage) {
    const ac_writer_config_t *config = round->survey.config;
    ac_signs_t *signs = round->survey.signs;
    char path[1200];
    if ((!config->retain_ns && !config->retain_bytes) || signs->unreadable == id + 1ull) return;
    signs->unreadable = id + 1ull;
    snprintf(path, sizeof path, "%s/%09u.q", round->survey.dir->path, id);
    ac_log(AC_LOG_WARNING, path,
           "cannot be read (%s), so retention leaves it and what is after it; verify the queue, "
           "copy what you need, and move the file away",
           damage);
}

/* The last look before a segment goes: a reader may have come since the first, and what lets it go must outlive
 * a power cut, or the reader would come back at a place that is not there. 1 = it may go, 0 = not, or AC_E_*. */
static int confirm(round_t *round, uint32_t id, const char *limit, ac_error_t *err) {
    survey_t survey = round->survey;
    survey.removes = 1;
    survey.removed = id;
    survey.limit = limit;
    survey.err = err;
    int rc = look(&survey, err);
    if (rc == AC_OK) rc = survey.failed;
    if (rc != AC_OK) return rc;
    if (is_held(round, id) || (!limit && !is_read_by_all(round, id))) return 0;
    if (survey.synced > 0 || !round->names_synced)
        rc = ac_position_sync_names(survey.dir, survey.dir_fd, err);
    if (rc != AC_OK) return rc;
    round->names_synced = 1;
    if (round->slowest.farthest_behind <= id)
        rc = ac_position_each(survey.dir, survey.dir_fd, warn_reader, &survey, err);
    return rc == AC_OK ? 1 : rc;
}

/* 1 = it is gone. */
static int remove_next(round_t *round, uint32_t id, const content_t *content, const char *limit,
                       ac_error_t *err) {
    const survey_t *survey = &round->survey;
    const ac_directory_t *dir = survey->dir;
    int rc = note_removal(dir, survey->dir_fd, &content->index, err);
    if (rc == AC_OK) rc = announce_removal(dir, survey->dir_fd, (uint64_t)id + 1, err);
    if (rc != AC_OK) return rc;
    rc = confirm(round, id, limit, err);
    if (rc != 1) {
        int back = announce_removal(dir, survey->dir_fd, id, rc < 0 ? NULL : err);
        return rc < 0 ? rc : back;
    }
    uint64_t room = ac_segment_room(dir, survey->dir_fd, id, survey->segment_size);
    rc = remove_segment(dir, survey->dir_fd, survey->config, &content->index, id, round->closing,
                        err);
    round->total -= room < round->total ? room : round->total;
    return rc == AC_OK ? 1 : rc;
}

/* 1 = the oldest segment is gone, and the next may be looked at. */
static int retain_oldest(round_t *round, uint32_t id, ac_error_t *err) {
    const survey_t *survey = &round->survey;
    const ac_writer_config_t *config = survey->config;
    content_t content;
    int read = is_read_by_all(round, id);
    int too_large = config->retain_bytes && round->total > config->retain_bytes;
    if (is_held(round, id) || (!read && !config->retain_ns && !too_large)) return 0;
    int rc = examine(survey->dir, survey->dir_fd, id, survey->segment_size, &content, err);
    if (rc != AC_OK) return rc;
    const char *limit = read ? NULL : find_limit(round, &content);
    if (read || limit)
        rc = remove_next(round, id, &content, limit, err);
    else if (content.damage)
        report_unreadable(round, id, content.damage);
    ac_index_free(&content.index);
    return rc;
}

int ac_retain(const ac_directory_t *dir, int dir_fd, const ac_writer_config_t *config,
              ac_signs_t *signs, uint64_t segment_size, uint64_t head_segment, uint64_t head_offset,
              uint64_t stop, const uint32_t *closing, uint64_t *deleted, uint64_t *archived,
              ac_error_t *err) {
    uint32_t *ids = NULL;
    size_t count = 0;
    round_t round = {.survey = {.dir = dir,
                                .dir_fd = dir_fd,
                                .config = config,
                                .signs = signs,
                                .segment_size = segment_size,
                                .head_segment = head_segment,
                                .head_offset = head_offset},
                     .closing = closing,
                     .now_ns = ac_os_now_ns()};
    round.survey.out = &round.slowest;
    int rc = look(&round.survey, err);
    if (rc == AC_OK) rc = ac_segment_list(dir, dir_fd, &ids, &count, err);
    if (rc != AC_OK) return rc;
    if (config->retain_bytes && count > 0)
        round.total = total_room(dir, dir_fd, segment_size, config->retain_bytes, ids, count);
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= stop || ids[i] >= head_segment) break;
        rc = is_stopped(closing) ? stopped(dir, err) : retain_oldest(&round, ids[i], err);
        if (rc != 1) break;
        ++*(config->archive ? archived : deleted);
    }
    free(ids);
    return rc < 0 ? rc : AC_OK;
}
