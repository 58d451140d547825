/* Finding a position by seq or time: a catalogue of the segments' indexes, then a short walk. */
#include "cq4_reader.h"
#include "error.h"
#include "os.h"
#include "reader.h"
#include "segment_tail.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { ATTEMPTS = 10 };

/* ---- the catalogue ---- */

static const ac_index_t *find_index(const ac_reader_t *reader, uint32_t segment) {
    for (size_t i = 0; i < reader->catalogue_count; i++)
        if (reader->catalogue[i].segment == segment) return &reader->catalogue[i];
    return NULL;
}

/* The index of an unsealed segment stays empty until the answer may lie in it. */
static int build_index(ac_reader_t *reader, int dir_fd, uint32_t segment, ac_index_t *index,
                       ac_error_t *err) {
    ac_map_t *map;
    int built;
    int rc = ac_reader_open_segment(reader, dir_fd, segment, &map, err);
    if (rc != AC_OK) return rc;
    if (ac_segment_sealed(map)) {
        rc = ac_index_obtain(index, &reader->dir, dir_fd, map, reader->segment_size, &built, err);
        index->complete = rc == AC_OK;
    }
    ac_map_release(map);
    return rc;
}

static int catalogue_add(ac_reader_t *reader, int dir_fd, uint32_t segment, ac_error_t *err) {
    if (reader->catalogue_count == reader->catalogue_room) {
        size_t room = reader->catalogue_room ? reader->catalogue_room * 2 : 16;
        ac_index_t *grown = realloc(reader->catalogue, room * sizeof *grown);
        if (!grown) return ac_fail_os(err, -ENOMEM, reader->dir.path, "index");
        reader->catalogue = grown;
        reader->catalogue_room = room;
    }
    ac_index_t *slot = &reader->catalogue[reader->catalogue_count];
    memset(slot, 0, sizeof *slot);
    int rc = build_index(reader, dir_fd, segment, slot, err);
    slot->segment = segment;
    if (rc == AC_E_CORRUPT && reader->skip_corrupt) rc = AC_OK; /* an empty index: nothing in it */
    if (rc == AC_OK) reader->catalogue_count++;
    return rc;
}

static void catalogue_drop(ac_reader_t *reader, size_t position) {
    ac_index_free(&reader->catalogue[position]);
    memmove(&reader->catalogue[position], &reader->catalogue[position + 1],
            (reader->catalogue_count - position - 1) * sizeof *reader->catalogue);
    reader->catalogue_count--;
}

static int by_id(const void *a, const void *b) {
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return left < right ? -1 : left > right;
}

static int by_segment(const void *a, const void *b) {
    uint32_t left = ((const ac_index_t *)a)->segment, right = ((const ac_index_t *)b)->segment;
    return left < right ? -1 : left > right;
}

/* The segments that can be read: without the newest, if it has no header yet. If that is the only one, a
 * reader waits for it. */
static int list_readable(ac_reader_t *reader, int dir_fd, uint32_t **ids, size_t *count,
                         ac_error_t *err) {
    int rc = ac_segment_list(&reader->dir, dir_fd, ids, count, err);
    if (rc != AC_OK || *count == 0) return rc;
    uint32_t newest = (*ids)[*count - 1];
    if (!ac_segment_awaited(&reader->dir, dir_fd, newest, reader->control, &reader->durable))
        return AC_OK;
    --*count;
    if (*count == 0) ac_reader_await(reader, newest);
    return AC_OK;
}

/* Brings the catalogue in line with the directory. */
static int catalogue_refresh(ac_reader_t *reader, ac_error_t *err) {
    uint32_t *ids = NULL;
    size_t count = 0;
    int dir_fd = ac_directory_open(&reader->dir, err);
    if (dir_fd < 0) return dir_fd;
    int rc = list_readable(reader, dir_fd, &ids, &count, err);
    for (size_t i = reader->catalogue_count; rc == AC_OK && i-- > 0;)
        if (!bsearch(&reader->catalogue[i].segment, ids, count, sizeof *ids, by_id))
            catalogue_drop(reader, i);
    for (size_t i = 0; i < count && rc == AC_OK; i++)
        if (!find_index(reader, ids[i])) rc = catalogue_add(reader, dir_fd, ids[i], err);
    ac_os_close(dir_fd);
    free(ids);
    if (rc == AC_OK && reader->catalogue_count > 1)
        qsort(reader->catalogue, reader->catalogue_count, sizeof *reader->catalogue, by_segment);
    return rc;
}

/* The newest segments may have grown since they were indexed. */
static int catalogue_extend_tail(ac_reader_t *reader, ac_error_t *err) {
    for (size_t i = reader->catalogue_count; i-- > 0;) {
        ac_index_t *index = &reader->catalogue[i];
        if (index->complete) continue;
        int rc = ac_reader_enter(reader, index->segment, AC_SEGMENT_DATA, err);
        if (rc == AC_E_CORRUPT && reader->skip_corrupt) continue;
        if (rc != AC_OK) return rc;
        int sealed = ac_segment_sealed(reader->map);
        uint64_t queue_id = ac_load_relaxed_u64(&reader->control->queue_id);
        if (index->count == 0) ac_tail_recall(reader->dir.path, queue_id, reader->map, index);
        rc = ac_index_extend(index, reader->map);
        if (rc < 0) return ac_fail_os(err, rc, reader->dir.path, "index");
        index->complete = sealed;
        if (!sealed) ac_tail_keep(reader->dir.path, queue_id, index);
    }
    return AC_OK;
}

int ac_reader_index(ac_reader_t *reader, uint32_t segment, const ac_index_t **out,
                    ac_error_t *err) {
    *out = find_index(reader, segment);
    if (*out && (*out)->complete) return AC_OK;
    int rc = catalogue_refresh(reader, err);
    if (rc == AC_OK) rc = catalogue_extend_tail(reader, err);
    *out = find_index(reader, segment);
    return rc;
}

/* ---- seeking ---- */

/* The contents of a damaged segment are unknown: if the value may be in it, it is the answer, so that the
 * reader meets the damage instead of passing it by. */
static const ac_index_t *first_reaching(const ac_reader_t *reader, int by_time, uint64_t value) {
    const ac_index_t *broken = NULL;
    for (size_t i = 0; i < reader->catalogue_count; i++) {
        const ac_index_t *index = &reader->catalogue[i];
        if (index->count > 0 && (by_time ? index->max_ts_ns : index->max_seq) >= value) {
            int starts_later = (by_time ? index->min_ts_ns : index->min_seq) > value;
            return broken && starts_later ? broken : index;
        }
        if (index->broken)
            broken = index;
        else if (index->count > 0)
            broken = NULL; /* the value lies after this one */
    }
    return broken;
}

/* Whether records that no index covers yet cannot change the choice. */
static int is_certain(const ac_reader_t *reader, const ac_index_t *chosen) {
    if (!chosen || chosen->broken) return 0;
    for (const ac_index_t *index = reader->catalogue; index < chosen; index++)
        if (!index->complete) return 0;
    return 1;
}

/* Walks from the index's hint to the first record at or after the value. */
static int walk_to(ac_reader_t *reader, const ac_index_t *index, int by_time, uint64_t value,
                   ac_error_t *err) {
    int rc = ac_reader_enter(reader, index->segment, AC_SEGMENT_DATA, err);
    if (rc != AC_OK) return rc;
    uint64_t offset = ac_index_lookup(index, reader->map, by_time, value);
    ac_message_t message;
    const char *why;
    while (ac_record_inspect(reader->base, reader->size, offset, reader->segment, AC_CHECK_HEADER,
                             &message, &why) == AC_RECORD_GOOD) {
        if (message.type_id != AC_TYPE_PADDING &&
            (by_time ? message.timestamp_ns : message.seq) >= value)
            break;
        offset += ac_record_size(message.length);
    }
    ac_reader_place(reader, reader->map, offset);
    return AC_OK;
}

/* Whether there is no record at the position although there should be a valid one. */
static int is_damaged(const ac_reader_t *reader) {
    ac_message_t message;
    const char *why;
    if (!reader->map) return 0;
    int found = ac_record_inspect(reader->base, reader->size, reader->offset, reader->segment,
                                  AC_CHECK_HEADER, &message, &why);
    return found == AC_RECORD_BAD ||
           (found == AC_RECORD_NONE && reader->offset < ac_segment_end(reader->map));
}

int ac_reader_pass_damage(ac_reader_t *reader, ac_bound_t bound, ac_error_t *err) {
    if (reader->java || !is_damaged(reader)) return AC_OK;
    ac_message_t message;
    enum ac_check check = reader->check;
    int skip = reader->skip_corrupt, rc;
    reader->check = AC_CHECK_HEADER;
    reader->skip_corrupt = 1;
    for (;;) {
        ac_mark_t mark = ac_reader_mark(reader);
        rc = ac_reader_next(reader, &message, err);
        if (rc != 1) break;
        if (bound.kind == AC_BOUND_NONE) continue;
        if ((bound.kind == AC_BOUND_TIME ? message.timestamp_ns : message.seq) < bound.value)
            continue;
        ac_reader_return(reader, &mark, &message);
        rc = AC_OK;
        break;
    }
    reader->check = check;
    reader->skip_corrupt = skip;
    reader->window_end = 0;
    return rc;
}

static int too_fast(const ac_reader_t *reader, ac_error_t *err) {
    return ac_fail(err, AC_E_GONE, 0, reader->dir.path, 0,
                   "segments disappear faster than they can be opened");
}

static int seek(ac_reader_t *reader, int by_time, uint64_t value, ac_error_t *err) {
    int rc = AC_OK;
    for (int attempt = 0; rc == AC_OK && attempt < ATTEMPTS; attempt++) {
        const ac_index_t *index = first_reaching(reader, by_time, value);
        if (!index || attempt > 0) {
            rc = catalogue_refresh(reader, err);
            index = first_reaching(reader, by_time, value);
        }
        if (rc == AC_OK && !is_certain(reader, index)) {
            rc = catalogue_extend_tail(reader, err);
            index = first_reaching(reader, by_time, value);
        }
        if (rc != AC_OK) return rc;
        if (!index) return ac_reader_seek_last(reader, err);
        rc = walk_to(reader, index, by_time, value, err);
        if (rc != AC_E_NOT_FOUND) return rc;
        rc = AC_OK; /* removed by retention between the listing and now: look again */
    }
    return rc != AC_OK ? rc : too_fast(reader, err);
}

/* A walk ends at a corrupt record. The reader stays there, so that it meets the damage, unless it skips
 * damage. */
static int seek_bound(ac_reader_t *reader, ac_bound_t bound, ac_error_t *err) {
    int rc = ac_reader_usable(reader, err);
    if (rc == AC_OK && reader->java) return ac_cq4_reader_seek(reader, bound, err);
    if (rc == AC_OK) rc = seek(reader, bound.kind == AC_BOUND_TIME, bound.value, err);
    if (rc == AC_OK && reader->skip_corrupt) rc = ac_reader_pass_damage(reader, bound, err);
    return rc < 0 ? rc : AC_OK;
}

int ac_reader_seek_seq(ac_reader_t *reader, uint64_t seq, ac_error_t *err) {
    return seek_bound(reader, (ac_bound_t){.kind = AC_BOUND_SEQ, .value = seq}, err);
}

int ac_reader_seek_time(ac_reader_t *reader, uint64_t timestamp_ns, ac_error_t *err) {
    return seek_bound(reader, (ac_bound_t){.kind = AC_BOUND_TIME, .value = timestamp_ns}, err);
}

static int list(ac_reader_t *reader, uint32_t **ids, size_t *count, ac_error_t *err) {
    int dir_fd = ac_directory_open(&reader->dir, err);
    if (dir_fd < 0) return dir_fd;
    int rc = list_readable(reader, dir_fd, ids, count, err);
    ac_os_close(dir_fd);
    return rc;
}

/* Between the listing and the opening, retention may remove a segment, or a writer that ends may remove the
 * one it had prepared: then the directory is read again. */
static int until_found(ac_reader_t *reader, int (*attempt)(ac_reader_t *, ac_error_t *),
                       ac_error_t *err) {
    int rc = ac_reader_usable(reader, err);
    if (rc != AC_OK) return rc;
    for (int i = 0; i < ATTEMPTS; i++) {
        rc = attempt(reader, err);
        if (rc != AC_E_NOT_FOUND) return rc;
    }
    return too_fast(reader, err);
}

static int enter_first(ac_reader_t *reader, ac_error_t *err) {
    uint32_t *ids = NULL;
    size_t count = 0;
    if (reader->java) return ac_cq4_reader_seek_first(reader, err);
    int rc = list(reader, &ids, &count, err);
    for (size_t i = 0; i < count && rc == AC_OK; i++) {
        rc = ac_reader_enter(reader, ids[i], AC_SEGMENT_DATA, err);
        int skipped = rc == AC_E_NOT_FOUND || (rc == AC_E_CORRUPT && reader->skip_corrupt);
        if (!skipped) break;
        if (i + 1 < count) rc = AC_OK;
    }
    free(ids);
    return rc;
}

int ac_reader_seek_first(ac_reader_t *reader, ac_error_t *err) {
    return until_found(reader, enter_first, err);
}

/* The writer's own note of its newest record, if it can be verified. It refers to this segment only if the
 * writer was in it before and after: elsewhere the same offset may be in the middle of a payload that is
 * being written. */
static uint64_t proven_record(ac_reader_t *reader) {
    ac_message_t message;
    const char *why;
    uint32_t before, after;
    uint64_t offset, ignored;
    if (!ac_control_position(reader->control, &before, &ignored)) return AC_SEGMENT_DATA;
    offset = ac_load_acquire_u64(&reader->control->last_record);
    if (!ac_control_position(reader->control, &after, &ignored)) return AC_SEGMENT_DATA;
    if (before != reader->segment || after != reader->segment) return AC_SEGMENT_DATA;
    if (offset < AC_SEGMENT_DATA || offset % AC_ALIGNMENT != 0) return AC_SEGMENT_DATA;
    if (ac_record_inspect(reader->base, reader->size, offset, reader->segment, AC_CHECK_PAYLOAD,
                          &message, &why) != AC_RECORD_GOOD ||
        !(message.flags & AC_FLAG_OURS))
        return AC_SEGMENT_DATA;
    return offset;
}

static int enter_last(ac_reader_t *reader, ac_error_t *err) {
    uint32_t *ids = NULL, head;
    uint64_t head_offset;
    size_t count = 0;
    if (reader->java) return ac_cq4_reader_seek_last(reader, err);
    int rc = list(reader, &ids, &count, err);
    if (rc != AC_OK || count == 0) {
        free(ids);
        return rc;
    }
    ac_control_position(reader->control, &head, &head_offset);
    uint32_t start = ids[0], last = ids[count - 1];
    for (size_t i = 0; i < count && ids[i] <= head && head <= last; i++)
        start = ids[i];
    free(ids);
    rc = ac_reader_enter(reader, start, AC_SEGMENT_DATA, err);
    if (rc != AC_OK) return rc;
    for (;;) {
        ac_message_t message;
        const char *why;
        int unrepaired = reader->unrepaired_epoch != 0;
        uint64_t offset = unrepaired ? AC_SEGMENT_DATA : proven_record(reader), next_seq = 0;
        int ours = 0;
        while (ac_record_inspect(reader->base, reader->size, offset, reader->segment,
                                 AC_CHECK_HEADER, &message, &why) == AC_RECORD_GOOD) {
            if (unrepaired && message.batch_left > 0 && offset >= reader->whole_end &&
                !ac_reader_is_whole_batch(reader, offset, &message))
                break; /* the queue ends before it */
            offset += ac_record_size(message.length);
            ours = message.type_id != AC_TYPE_PADDING && (message.flags & AC_FLAG_OURS);
            next_seq = ours ? message.seq + 1 : 0;
        }
        ac_reader_place(reader, reader->map, offset);
        reader->expected_seq = next_seq;
        reader->continued = (uint32_t)ours;
        int finished = ac_segment_sealed(reader->map) || reader->size - offset < AC_HEADER_SIZE;
        if (!finished || reader->segment >= last) return AC_OK;
        rc = ac_reader_enter_next(reader, err);
        if (rc != AC_NEXT_ENTERED) return rc < 0 ? rc : AC_OK;
    }
}

int ac_reader_seek_last(ac_reader_t *reader, ac_error_t *err) {
    return until_found(reader, enter_last, err);
}

/* ---- lag ---- */

/* Records from here to the end, counted: for queues whose writer does not count them. */
static uint64_t count_ahead(ac_reader_t *reader) {
    uint64_t counted = 0, offset = reader->offset;
    ac_map_t *map = reader->map;
    int dir_fd = ac_directory_open(&reader->dir, NULL);
    if (map) ac_map_retain(map);
    while (map) {
        ac_message_t message;
        const char *why;
        while (ac_record_inspect(map->base, map->size, offset, map->segment, AC_CHECK_HEADER,
                                 &message, &why) == AC_RECORD_GOOD) {
            counted += message.type_id != AC_TYPE_PADDING;
            offset += ac_record_size(message.length);
        }
        ac_map_t *next = NULL;
        if (dir_fd >= 0)
            ac_segment_open(&reader->dir, dir_fd, map->segment + 1, reader->segment_size, 0, &next,
                            NULL);
        ac_map_release(map);
        map = next;
        offset = AC_SEGMENT_DATA;
    }
    ac_os_close(dir_fd);
    return counted;
}

static int lag_from_here(ac_reader_t *reader, ac_lag_t *out, ac_way_t *way, ac_error_t *err) {
    ac_message_t message;
    const char *why;
    uint32_t segment;
    memset(out, 0, sizeof *out);
    int rc = ac_reader_ready(reader, err); /* also moves over the end of a finished segment */
    if (rc <= 0) return rc;
    if (ac_record_inspect(reader->base, reader->size, reader->offset, reader->segment,
                          AC_CHECK_HEADER, &message, &why) != AC_RECORD_GOOD)
        return AC_OK;
    uint64_t next_seq = ac_control_next_seq(reader->control);
    int counted = (message.flags & AC_FLAG_OURS) && next_seq > message.seq;
    out->messages = counted ? next_seq - message.seq : count_ahead(reader);
    way->dir = reader->dir;
    way->segment_size = reader->segment_size;
    way->from_segment = reader->segment;
    way->from_offset = reader->offset;
    ac_control_position(reader->control, &segment, &way->to_offset);
    way->to_segment = segment;
    uint64_t now = ac_os_now_ns();
    out->age_ns = now > message.timestamp_ns ? now - message.timestamp_ns : 0;
    return AC_OK;
}

int ac_reader_lag_bytes(const ac_way_t *way, ac_lag_t *out, ac_error_t *err) {
    int dir_fd = -1;
    if (way->roll.shift) return ac_cq4_reader_lag_bytes(way, out, err);
    if (way->from_segment != way->to_segment) {
        dir_fd = ac_directory_open(&way->dir, err);
        if (dir_fd < 0) return dir_fd;
    }
    out->bytes = ac_segment_distance(&way->dir, dir_fd, way->segment_size, way->from_segment,
                                     way->from_offset, way->to_segment, way->to_offset);
    ac_os_close(dir_fd);
    return AC_OK;
}

int ac_reader_lag(ac_reader_t *reader, ac_lag_t *out, ac_error_t *err) {
    ac_way_t way;
    int rc = ac_reader_begin_lag(reader, out, &way, err);
    return rc < 0 ? rc : ac_reader_lag_bytes(&way, out, err);
}

/* A reader at the end of a removed queue would otherwise seem up to date. */
static int check_directory(ac_reader_t *reader, ac_error_t *err) {
    struct stat info;
    if (reader->pending || ac_load_relaxed_u32(&reader->state) != 0) return AC_OK;
    int rc = ac_os_stat_path(reader->dir.path, &info);
    if (rc == 0 && info.st_dev == reader->dir.device && info.st_ino == reader->dir.inode)
        return AC_OK;
    int dir_fd = ac_directory_open(&reader->dir, err);
    if (dir_fd < 0) return dir_fd;
    ac_os_close(dir_fd);
    return AC_OK;
}

/* What a fan-in has read ahead counts as unread; and from before it, nothing leads to the next segment. */
int ac_reader_begin_lag(ac_reader_t *reader, ac_lag_t *out, ac_way_t *way, ac_error_t *err) {
    int there = check_directory(reader, err);
    if (there < 0) return there;
    way->from_segment = way->to_segment = way->from_offset = way->to_offset = 0;
    way->roll.shift = 0;
    if (reader->java) return ac_cq4_reader_begin_lag(reader, out, way, err);
    uint64_t offset = reader->offset, expected_seq = reader->expected_seq;
    if (reader->ahead == 0) return lag_from_here(reader, out, way, err);
    reader->offset -= reader->ahead;
    reader->expected_seq--;
    int rc = lag_from_here(reader, out, way, err);
    if (reader->ahead) { /* always, unless the record was damaged meanwhile and skipped */
        reader->offset = offset;
        reader->expected_seq = expected_seq;
    }
    return rc;
}
