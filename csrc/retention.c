#include "retention_rules.h"

#include "control.h"
#include "error.h"
#include "log.h"
#include "os.h"
#include "position.h"
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A power cut may remove records that were appended after the segment that is about to be removed. The
 * queue would then have no record left that says where seq continued, so this is made durable first. A seq
 * that the writer itself has not reached cannot be a record's, whatever a damaged one says. */
static int note_removal(const ac_directory_t *dir, int dir_fd, const ac_index_t *index,
                        ac_error_t *err) {
    ac_map_t *map;
    if (index->count == 0) return AC_OK;
    int rc = ac_control_open(dir, dir_fd, AC_CONTROL_WRITABLE, 1, &map, err);
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
    /* A link to it is the operator's; directories created here are not links. */
    int fd = rc == 0 ? ac_os_open_dir_at(AT_FDCWD, root) : ac_os_open_dir(root);
    if (rc == 0 && fd >= 0) ac_directory_set_mode(fd, mode);
    for (int i = 0; i < 3 && fd >= 0; i++) {
        rc = ac_directory_create(fd, parts[i], mode);
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

/* Set by a writer that is closed meanwhile, which must not have to wait. */
static int is_stopped(const uint32_t *closing) {
    return ac_load_relaxed_u32(closing) != 0;
}

/* 1 = the archive has this very file: the move was complete but for the removal of the original. */
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

/* Each piece is on its way to the disk before the next one is read, so that little is left for the sync,
 * which cannot be stopped. */
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

/* Renames where possible; across file systems copies, syncs, and only then removes. Never replaces what is
 * in the archive. */
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

/* An existing one describes the same segment: it was moved before a crash, and rebuilt after it. */
static int move_index(const ac_directory_t *dir, int from_dir, const char *name, int to_dir,
                      const uint32_t *closing) {
    int rc = move_file(dir, from_dir, name, to_dir, closing);
    if (rc == -EEXIST) rc = ac_os_unlink(from_dir, name);
    return rc == -ENOENT ? 0 : rc;
}

/* How far the archive extends with a segment. An empty one adds nothing to what was removed before it, and
 * belongs to the same day, which would otherwise have a hole; with nothing before it, it may as well count
 * as of today. */
static int find_archived(const ac_directory_t *dir, int dir_fd, const ac_index_t *index,
                         uint64_t *next_seq, uint64_t *newest_ns, ac_error_t *err) {
    ac_map_t *map;
    *next_seq = index->max_seq + 1;
    *newest_ns = index->max_ts_ns;
    if (index->count > 0) return AC_OK;
    int rc = ac_control_open(dir, dir_fd, AC_CONTROL_READ_ONLY, 1, &map, err);
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
    int rc = ac_control_open(dir, dir_fd, AC_CONTROL_READ_ONLY, 1, &map, err);
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
    /* The index first: the index of a segment that is gone would never be removed. */
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

/* Announces that the segments before `id` are about to be removed, ahead of the survey that decides it.
 * Pairs with the check of a new name (register_name in reader.c): either the survey finds the name, or the
 * name finds this. */
static int announce_removal(const ac_directory_t *dir, int dir_fd, uint64_t id, ac_error_t *err) {
    ac_map_t *map;
    int rc = ac_control_open(dir, dir_fd, AC_CONTROL_WRITABLE, 1, &map, err);
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
    /* Otherwise a new name would avoid a segment that was announced but is still there. */
    if (rc != AC_OK) announce_removal(dir, dir_fd, id, NULL);
    return rc;
}

/* One call of ac_retain. */
typedef struct retaining {
    ac_round_t round;
    const uint32_t *closing;
    int names_synced;
    /* The removal in progress: */
    uint32_t removed;  /* this segment, so positions beyond it are relied on, and synced */
    const char *limit; /* the limit that allows it, if it is one of age or size */
    int synced;        /* how many positions were synced for it */
    int failed;        /* AC_E_* of the first that could not be */
    ac_error_t *err;
} retaining_t;

static void sync_position(void *context, const char *name, const ac_slot_t *slot, int held,
                          enum ac_stance stance) {
    retaining_t *retaining = context;
    const ac_survey_t *survey = &retaining->round.survey;
    (void)held;
    if (stance == AC_STANCE_NOWHERE || slot->segment <= retaining->removed) return;
    enum ac_sync_state state = ac_liveness_sync(survey->liveness, name, slot);
    if (retaining->failed || state == AC_SYNC_DONE) return;
    if (state == AC_SYNC_FAILED) {
        char path[1200];
        snprintf(path, sizeof path, "%s/readers/%s.meta", survey->dir->path, name);
        retaining->failed = ac_fail(retaining->err, AC_E_SYSTEM, EIO, path, 0,
                                    "could not be synced; segments stay until this reader commits "
                                    "again or is removed");
        return;
    }
    int rc = ac_position_sync_file(survey->dir, survey->dir_fd, name, retaining->err);
    if (rc == AC_E_NOT_FOUND) return; /* removed just now */
    ac_liveness_note_sync(survey->liveness, name, slot,
                          rc == AC_OK ? AC_SYNC_DONE : AC_SYNC_FAILED);
    retaining->synced++;
    retaining->failed = rc;
}

/* Logs which reader loses messages by a limit, once for each place at which it stays. */
static void warn_reader(void *context, const char *name, const ac_slot_t *slot, int held) {
    const retaining_t *retaining = context;
    const ac_survey_t *survey = &retaining->round.survey;
    enum ac_stance stance = ac_survey_stance(survey, name, slot, held);
    if (stance == AC_STANCE_NOWHERE || slot->segment > retaining->removed) return;
    const char *limit = stance == AC_STANCE_SILENT    ? "reader_ttl"
                        : stance == AC_STANCE_TOO_FAR ? "max_reader_lag"
                                                      : retaining->limit;
    if (!limit || !ac_liveness_warn(survey->liveness, name, slot)) return;
    ac_log(AC_LOG_WARNING, survey->dir->path,
           "%s is reached: segment %u goes, though reader '%s' (%s) has not read on from segment "
           "%llu, offset %llu",
           limit, retaining->removed, name, held ? "open" : "away",
           (unsigned long long)slot->segment, (unsigned long long)slot->offset);
}

/* Logs once that the limits would remove it, and that what is after it stays as well. */
static void report_unreadable(const ac_survey_t *survey, uint32_t id, const char *damage) {
    ac_liveness_t *liveness = survey->liveness;
    char path[1200];
    if (liveness->unreadable == id + 1ull) return;
    liveness->unreadable = id + 1ull;
    snprintf(path, sizeof path, "%s/%09u.q", survey->dir->path, id);
    ac_log(AC_LOG_WARNING, path,
           "cannot be read (%s), so retention leaves it and what is after it; verify the queue, "
           "copy what you need, and move the file away",
           damage);
}

/* The last check before a segment is removed: a reader may have come since the first one, and the positions
 * that allow its removal must survive a power cut, otherwise a reader would come back at a place that no
 * longer exists. 1 = it may be removed, 0 = not, or AC_E_*. */
static int confirm(retaining_t *retaining, ac_error_t *err) {
    ac_round_t *round = &retaining->round;
    ac_survey_t survey = round->survey;
    survey.strict = 1;
    survey.visit = sync_position;
    survey.context = retaining;
    retaining->synced = retaining->failed = 0;
    retaining->err = err;
    int rc = ac_survey(&survey, &round->slowest, err);
    if (rc == AC_OK) rc = retaining->failed;
    if (rc != AC_OK) return rc;
    if (!ac_round_allows(round, retaining->removed, retaining->limit)) return 0;
    if (retaining->synced > 0 || !retaining->names_synced)
        rc = ac_position_sync_names(survey.dir, survey.dir_fd, err);
    if (rc != AC_OK) return rc;
    retaining->names_synced = 1;
    if (round->slowest.farthest_behind <= retaining->removed)
        rc = ac_position_each(survey.dir, survey.dir_fd, warn_reader, retaining, err);
    return rc == AC_OK ? 1 : rc;
}

/* 1 = it is gone. */
static int remove_next(retaining_t *retaining, const ac_index_t *index, ac_error_t *err) {
    const ac_survey_t *survey = &retaining->round.survey;
    const ac_directory_t *dir = survey->dir;
    uint32_t id = retaining->removed;
    int rc = note_removal(dir, survey->dir_fd, index, err);
    if (rc == AC_OK) rc = announce_removal(dir, survey->dir_fd, (uint64_t)id + 1, err);
    if (rc != AC_OK) return rc;
    rc = confirm(retaining, err);
    if (rc != 1) {
        int back = announce_removal(dir, survey->dir_fd, id, rc < 0 ? NULL : err);
        return rc < 0 ? rc : back;
    }
    uint64_t room = ac_segment_room(dir, survey->dir_fd, id, survey->segment_size);
    rc = remove_segment(dir, survey->dir_fd, survey->config, index, id, retaining->closing, err);
    ac_round_deduct(&retaining->round, room);
    return rc == AC_OK ? 1 : rc;
}

/* 1 = the oldest segment is gone, and the next may be checked. */
static int retain_oldest(retaining_t *retaining, uint32_t id, ac_error_t *err) {
    ac_content_t content;
    retaining->removed = id;
    int rc = ac_round_judge(&retaining->round, id, &content, &retaining->limit, err);
    if (rc == AC_KEPT_DAMAGED)
        report_unreadable(&retaining->round.survey, id, content.damage);
    else if (rc == AC_KEPT_GOES)
        rc = remove_next(retaining, &content.index, err);
    else if (rc > 0)
        rc = 0;
    ac_index_free(&content.index);
    return rc == AC_KEPT_DAMAGED ? 0 : rc;
}

int ac_retain(const ac_directory_t *dir, int dir_fd, const ac_writer_config_t *config,
              ac_liveness_t *liveness, uint64_t segment_size, uint64_t head_segment,
              uint64_t head_offset, uint64_t stop, const uint32_t *closing, uint64_t *deleted,
              uint64_t *archived, ac_error_t *err) {
    uint32_t *ids = NULL;
    size_t count = 0;
    retaining_t retaining = {.closing = closing,
                             .round = {.saves_index = 1,
                                       .survey = {.dir = dir,
                                                  .dir_fd = dir_fd,
                                                  .config = config,
                                                  .liveness = liveness,
                                                  .segment_size = segment_size,
                                                  .head_segment = head_segment,
                                                  .head_offset = head_offset}}};
    int rc = ac_segment_list(dir, dir_fd, &ids, &count, err);
    if (rc == AC_OK) rc = ac_round_begin(&retaining.round, ids, count, err);
    for (size_t i = 0; i < count && rc == AC_OK; i++) {
        if (ids[i] >= stop || ids[i] >= head_segment) break;
        int gone = is_stopped(closing) ? stopped(dir, err) : retain_oldest(&retaining, ids[i], err);
        if (gone < 0) rc = gone;
        if (gone != 1) break;
        ++*(config->archive ? archived : deleted);
    }
    free(ids);
    return rc;
}
