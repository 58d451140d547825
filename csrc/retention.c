#include "retention.h"

#include "control.h"
#include "error.h"
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

typedef struct survey {
    const ac_directory_t *dir;
    int dir_fd;
    const ac_writer_config_t *config;
    ac_signs_t *signs;
    uint64_t segment_size, head_segment, head_offset;
    ac_slowest_t *out;
} survey_t;

/* By its heartbeat; but readers beat as often as the writer wants, and learn that from one beat to the next.
 * Until each of them must have beaten once since this writer came, that it has its position open will do.
 * Not just for those who gave no sign since: a commit is one too, and changes nothing about the next beat. */
static int is_live(const survey_t *survey, const char *name, const ac_slot_t *slot, int held) {
    const ac_writer_config_t *config = survey->config;
    if (ac_sign_age_ns(survey->signs, name, slot) <= config->reader_ttl_ns) return 1;
    return held && ac_os_monotonic_ns() < config->opened_ns + 2 * AC_HEARTBEAT_MAX_NS;
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

static void survey_reader(void *context, const char *name, const ac_slot_t *slot, int held) {
    survey_t *survey = context;
    ac_slowest_t *out = survey->out;
    const char *awaited = survey->config->wait_for;
    out->registered++;
    if (awaited && strcmp(name, awaited) == 0 && slot->segment <= survey->head_segment)
        out->awaited_segment = slot->segment;
    if (!is_live(survey, name, slot, held) || slot->segment > survey->head_segment) return;
    if (slot->offset > survey->segment_size) return; /* not a position */
    if (is_too_far_behind(survey, slot)) return;
    int slower = slot->segment < out->segment ||
                 (slot->segment == out->segment && slot->offset < out->offset);
    if (out->live == 0 || slower) {
        out->segment = slot->segment;
        out->offset = slot->offset;
    }
    out->live++;
}

int ac_slowest_reader(const ac_directory_t *dir, int dir_fd, const ac_writer_config_t *config,
                      ac_signs_t *signs, uint64_t segment_size, uint64_t head_segment,
                      uint64_t head_offset, ac_slowest_t *out, ac_error_t *err) {
    survey_t survey = {dir, dir_fd, config, signs, segment_size, head_segment, head_offset, out};
    memset(out, 0, sizeof *out);
    return ac_position_each(dir, dir_fd, survey_reader, &survey, err);
}

/* Largest seq and newest timestamp of a sealed segment; count 0: it has no record. */
static int examine(const ac_directory_t *dir, int dir_fd, uint32_t id, uint64_t segment_size,
                   ac_index_t *out, ac_error_t *err) {
    ac_map_t *map;
    int built;
    int rc = ac_segment_open(dir, dir_fd, id, segment_size, 0, &map, err);
    if (rc != AC_OK) return rc;
    rc = ac_index_obtain(out, dir, dir_fd, map, segment_size, &built, err);
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
    int fd = ac_os_open_dir(root);
    if (rc == 0 && fd >= 0) ac_os_chmod(fd, mode); /* whatever the umask says */
    for (int i = 0; i < 3 && fd >= 0; i++) {
        rc = ac_os_mkdir_at(fd, parts[i], mode);
        int sub = rc < 0 && rc != -EEXIST ? rc : ac_os_open_dir_at(fd, parts[i]);
        if (rc == 0 && sub >= 0) {
            ac_os_chmod(sub, mode);
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

static int copy_file(int from, int to_dir, const char *name, unsigned mode,
                     const uint32_t *closing) {
    char temporary[AC_NAME_MAX + 8];
    struct stat info;
    snprintf(temporary, sizeof temporary, "%s.tmp", name);
    int to = ac_os_open_at(to_dir, temporary, O_RDWR | O_CREAT | O_TRUNC, mode);
    int rc = to < 0 ? to : ac_os_chmod(to, mode);
    if (rc >= 0) rc = ac_os_stat(from, &info);
    if (rc >= 0) rc = copy_bytes(from, to, (uint64_t)info.st_size, closing);
    if (rc == 0) rc = ac_os_sync(to);
    ac_os_close(to);
    if (rc == 0) rc = ac_os_move_new(to_dir, temporary, to_dir, name);
    if (rc < 0) ac_os_unlink(to_dir, temporary);
    return rc;
}

/* Renames where possible; across file systems copies, syncs, and only then removes. What is in the
 * archive already is never replaced. */
static int move_file(int from_dir, const char *name, int to_dir, unsigned mode,
                     const uint32_t *closing) {
    int rc = ac_os_move_new(from_dir, name, to_dir, name);
    if (rc != -EXDEV) return rc;
    int from = ac_os_open_at(from_dir, name, O_RDONLY, 0);
    if (from < 0) return from;
    rc = is_copied(from, to_dir, name, closing);
    if (rc == 0) rc = copy_file(from, to_dir, name, mode, closing);
    ac_os_close(from);
    if (rc >= 0) rc = ac_os_sync_dir(to_dir);
    return rc < 0 ? rc : ac_os_unlink(from_dir, name);
}

/* One that is there describes the same segment: it came before a crash, and was made again after it. */
static int move_index(int from_dir, const char *name, int to_dir, unsigned mode,
                      const uint32_t *closing) {
    int rc = move_file(from_dir, name, to_dir, mode, closing);
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
    rc = move_index(dir_fd, index, day, dir->mode, closing);
    if (rc == 0) rc = move_file(dir_fd, segment, day, dir->mode, closing);
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

/* Whether somebody has not committed past this segment who is waited for. */
static int is_needed(const ac_writer_config_t *config, const ac_slowest_t *slowest, uint32_t id) {
    if (config->wait_for && id >= slowest->awaited_segment) return 1;
    return slowest->live && id >= slowest->segment;
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

int ac_retain(const ac_directory_t *dir, int dir_fd, const ac_writer_config_t *config,
              ac_signs_t *signs, uint64_t segment_size, uint64_t head_segment, uint64_t head_offset,
              uint64_t stop, const uint32_t *closing, uint64_t *deleted, uint64_t *archived,
              ac_error_t *err) {
    ac_slowest_t slowest;
    uint32_t *ids = NULL;
    size_t count = 0;
    int rc = ac_slowest_reader(dir, dir_fd, config, signs, segment_size, head_segment, head_offset,
                               &slowest, err);
    if (rc == AC_OK) rc = ac_segment_list(dir, dir_fd, &ids, &count, err);
    if (rc != AC_OK) return rc;
    int by_readers = config->retain_for_readers && slowest.registered > 0;
    uint64_t total = 0;
    uint64_t now_ns = ac_os_now_ns();
    for (size_t i = 0; i < count && rc == AC_OK; i++) {
        ac_index_t index;
        if (ids[i] >= stop || ids[i] >= head_segment || is_needed(config, &slowest, ids[i])) break;
        if (is_stopped(closing)) {
            rc = stopped(dir, err);
            break;
        }
        if (config->retain_bytes && i == 0)
            total = total_room(dir, dir_fd, segment_size, config->retain_bytes, ids, count);
        int too_many = config->retain_bytes && total > config->retain_bytes;
        if (!by_readers && !too_many && !config->retain_ns) break;
        rc = examine(dir, dir_fd, ids[i], segment_size, &index, err);
        if (rc != AC_OK) break;
        uint64_t age_ns = index.max_ts_ns < now_ns ? now_ns - index.max_ts_ns : 0;
        int too_old = config->retain_ns && age_ns > config->retain_ns;
        int goes = by_readers || too_old || too_many;
        if (goes) rc = note_removal(dir, dir_fd, &index, err);
        if (goes && rc == AC_OK) rc = announce_removal(dir, dir_fd, (uint64_t)ids[i] + 1, err);
        /* A reader may have come since the first survey. */
        if (goes && rc == AC_OK) {
            rc = ac_slowest_reader(dir, dir_fd, config, signs, segment_size, head_segment,
                                   head_offset, &slowest, err);
            goes = rc == AC_OK && !is_needed(config, &slowest, ids[i]);
            if (rc == AC_OK && !goes) rc = announce_removal(dir, dir_fd, ids[i], err);
        }
        uint64_t room = goes ? ac_segment_room(dir, dir_fd, ids[i], segment_size) : 0;
        if (goes && rc == AC_OK)
            rc = remove_segment(dir, dir_fd, config, &index, ids[i], closing, err);
        ac_index_free(&index);
        if (!goes) break;
        if (rc == AC_OK) ++*(config->archive ? archived : deleted);
        total -= room < total ? room : total;
    }
    free(ids);
    return rc;
}
