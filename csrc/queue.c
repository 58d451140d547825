/* Questions about a whole queue, answered without opening it. */
#include "control.h"
#include "cq4_reader.h"
#include "crc32.h"
#include "error.h"
#include "os.h"
#include "position_seq.h"
#include "queue_view.h"
#include "reader.h"
#include "record.h"
#include "recovery.h"
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *ac_version(void) {
    return "0.1.0";
}

uint32_t ac_checksum(const void *data, size_t length) {
    return ac_crc32(data, length);
}

const char *ac_checksum_implementation(void) {
    return ac_crc32_implementation();
}

/* What cannot be read counts as none: opening it reports why. */
int ac_queue_format(const char *path) {
    char control[1200];
    struct stat info;
    snprintf(control, sizeof control, "%s/control.meta", path);
    if (ac_os_stat_path(control, &info) == 0) return AC_FORMAT_NATIVE;
    return ac_cq4_is_queue(path) == 1 ? AC_FORMAT_CQ4 : AC_FORMAT_NONE;
}

/* Of the first message, from the header of its record alone. */
static uint64_t find_oldest(const ac_view_t *view) {
    char name[AC_NAME_MAX];
    struct stat info;
    for (size_t i = 0; i < view->count; i++) {
        ac_record_t record = {0};
        ac_segment_name(name, view->ids[i], ".q");
        int fd = ac_file_open(&view->dir, view->dir_fd, name, O_RDONLY, &info, NULL);
        if (fd < 0) return 0;
        int got = ac_os_read_at(fd, &record, sizeof record, AC_SEGMENT_DATA);
        ac_os_close(fd);
        if (got < 0) return 0;
        if (record.commit_len != 0 && record.type_id != AC_TYPE_PADDING) return record.timestamp_ns;
    }
    return 0;
}

static uint64_t measure_disk(const ac_view_t *view) {
    char name[AC_NAME_MAX];
    struct stat info;
    uint64_t bytes = 0;
    for (size_t i = 0; i < view->count; i++) {
        ac_segment_name(name, view->ids[i], ".q");
        if (ac_os_stat_at(view->dir_fd, name, &info) == 0) bytes += (uint64_t)info.st_blocks * 512;
    }
    return bytes;
}

int ac_queue_info(const char *path, ac_queue_info_t *out, ac_error_t *err) {
    ac_view_t view;
    uint32_t segment;
    memset(out, 0, sizeof *out);
    int rc = ac_view_open(&view, path, err);
    if (rc == AC_E_NOT_FOUND && ac_view_is_java(path)) return ac_cq4_info(path, out, err);
    if (rc != AC_OK) return rc;
    const ac_control_t *control = ac_control_of(view.control);
    out->segment_size = view.segment_size;
    out->writer_epoch = ac_load_relaxed_u64(&control->writer_epoch);
    out->queue_id = ac_load_relaxed_u64(&control->queue_id);
    out->segments = view.count;
    out->first_segment = view.count ? view.ids[0] : 0;
    out->last_segment = view.count ? view.ids[view.count - 1] : 0;
    ac_end_at(&view.dir, view.dir_fd, control, view.segment_size, &out->next_seq,
              &out->last_timestamp_ns);
    out->watermark_ns = ac_load_relaxed_u64(&control->watermark_ns);
    ac_control_position(control, &segment, &out->write_offset);
    out->current_segment = segment;
    out->format = AC_FORMAT_NATIVE;
    out->oldest_ns = find_oldest(&view);
    out->disk_bytes = measure_disk(&view);
    ac_view_close(&view);
    return AC_OK;
}

int ac_queue_forget_reader(const char *path, const char *name, ac_error_t *err) {
    ac_view_t view;
    int rc = ac_reader_name_check(name, path, err);
    if (rc == AC_OK) rc = ac_view_open(&view, path, err);
    if (rc == AC_E_NOT_FOUND && ac_view_is_java(path))
        return ac_fail(err, AC_E_UNSUPPORTED, 0, path, 0,
                       "a Java queue never loses the name of a tailer; to have it start over, open "
                       "it, go to the first message and commit");
    if (rc != AC_OK) return rc;
    rc = ac_position_remove(&view.dir, view.dir_fd, name, err);
    ac_view_close(&view);
    return rc;
}

int64_t ac_queue_verify(const char *path, uint64_t *records, ac_error_t *err) {
    ac_reader_config_t config;
    ac_reader_t *reader;
    ac_message_t message;
    ac_error_t first = {0}, current;
    ac_reader_stats_t stats;
    int64_t corrupt = 0;
    int rc;
    *records = 0;
    ac_reader_defaults(&config);
    config.start = AC_START_FIRST;
    rc = ac_reader_open(path, &config, &reader, err);
    if (rc != AC_OK) return rc;
    /* First as a reader that stops at damage, then skipping each damaged place. */
    while ((rc = ac_reader_next(reader, &message, &current)) != 0) {
        if (rc == 1) continue;
        if (rc != AC_E_CORRUPT) break;
        if (corrupt++ == 0) first = current;
        reader->skip_corrupt = 1;
        uint64_t skipped = reader->skipped_records;
        rc = ac_reader_next(reader, &message, &current);
        if (rc == 1) corrupt += (int64_t)(reader->skipped_records - skipped) - 1;
        reader->skip_corrupt = 0;
        if (rc <= 0) break;
    }
    ac_reader_stats(reader, &stats);
    *records = stats.messages;
    ac_reader_free(reader);
    if (rc < 0 && rc != AC_E_CORRUPT) {
        if (err) *err = current;
        return rc;
    }
    if (corrupt && err) *err = first;
    return corrupt;
}

static int fail_in(const ac_view_t *view, const ac_map_t *map, int code, uint64_t offset,
                   const char *why, ac_error_t *err) {
    char path[1200];
    snprintf(path, sizeof path, "%s/%09u.q", view->dir.path, map->segment);
    return ac_fail(err, code, 0, path, offset, "%s", why);
}

/* Up to here every record of the segment must exist; 0 = not recorded. */
static uint64_t promised_end(const ac_view_t *view, const ac_map_t *map) {
    uint64_t sealed_end = ac_segment_end(map);
    if (sealed_end != 0 || map->segment != view->durable.segment) return sealed_end;
    return view->durable.offset;
}

/* Passes each message of a segment to `visit`, which returns a negated errno or 0. A record that is damaged
 * or missing is an error, since its contents are unknown. */
static int each_message(const ac_view_t *view, uint32_t id,
                        int (*visit)(void *context, const ac_message_t *message), void *context,
                        ac_error_t *err) {
    ac_map_t *map;
    ac_message_t message;
    const char *why;
    uint64_t offset = AC_SEGMENT_DATA;
    int rc = ac_segment_open(&view->dir, view->dir_fd, id, view->segment_size, 0, &map, err);
    if (rc != AC_OK) return rc;
    uint64_t end = promised_end(view, map); /* before the walk: the writer may be appending */
    int found;
    while ((found = ac_record_inspect(map->base, map->size, offset, id, AC_CHECK_HEADER, &message,
                                      &why)) == AC_RECORD_GOOD) {
        int visited = message.type_id != AC_TYPE_PADDING ? visit(context, &message) : 0;
        if (visited < 0) rc = ac_fail_os(err, visited, view->dir.path, "cannot look for causes");
        if (rc != AC_OK) break;
        offset += ac_record_size(message.length);
    }
    if (ac_map_is_cut(map))
        rc = fail_in(view, map, AC_E_GONE, offset, "the file was cut while it was being read", err);
    else if (found == AC_RECORD_BAD)
        rc = fail_in(view, map, AC_E_CORRUPT, offset, why, err);
    else if (found == AC_RECORD_NONE && map->size < view->segment_size)
        rc = fail_in(view, map, AC_E_CORRUPT, offset, "the segment was cut here", err);
    else if (found == AC_RECORD_NONE && offset < end)
        rc = fail_in(view, map, AC_E_CORRUPT, offset, "a record is missing here", err);
    ac_map_release(map);
    return rc;
}

static ac_cause_t cause_of(const ac_message_t *message) {
    const ac_record_t *record = (const ac_record_t *)(const void *)message->record;
    return (ac_cause_t){message->cause_source, message->cause_seq,
                        ac_load_relaxed_u32(&record->cause_epoch), 0};
}

typedef struct wanted {
    ac_cause_t cause; /* the newest of its source */
    int found;
} wanted_t;

static int note_wanted(void *context, const ac_message_t *message) {
    wanted_t *wanted = context;
    if (!(message->flags & AC_FLAG_CAUSE) || message->cause_source != wanted->cause.source)
        return 0;
    wanted->cause = cause_of(message);
    wanted->found = 1;
    return 0;
}

int ac_queue_last_cause(const char *path, uint64_t source, ac_cause_t *out, ac_error_t *err) {
    ac_view_t view;
    int rc = ac_view_open(&view, path, err);
    if (rc == AC_E_NOT_FOUND && ac_view_is_java(path)) return 0; /* its messages have no causes */
    if (rc != AC_OK) return rc;
    wanted_t wanted = {.cause.source = source};
    for (size_t i = view.count; i-- > 0 && rc == AC_OK && !wanted.found;)
        rc = each_message(&view, view.ids[i], note_wanted, &wanted, err);
    ac_view_close(&view);
    if (rc != AC_OK) return rc;
    if (wanted.found) *out = wanted.cause;
    return wanted.found;
}

/* Sources seen so far, hashed by their id, which is random already. */
typedef struct seen {
    ac_cause_t *causes; /* source 0 = free */
    uint32_t *segments; /* where the newest cause was found */
    size_t count, room; /* room is a power of two, at least twice the count */
    uint64_t begin_ns;  /* of the current segment; UINT64_MAX: it has no message */
} seen_t;

static int seen_grow(seen_t *seen) {
    seen_t grown = {.room = seen->room ? seen->room * 2 : 64, .begin_ns = seen->begin_ns};
    grown.causes = calloc(grown.room, sizeof *grown.causes);
    grown.segments = calloc(grown.room, sizeof *grown.segments);
    if (!grown.causes || !grown.segments) {
        free(grown.causes);
        free(grown.segments);
        return -ENOMEM;
    }
    for (size_t i = 0; i < seen->room; i++) {
        if (seen->causes[i].source == 0) continue;
        size_t at = seen->causes[i].source & (grown.room - 1);
        while (grown.causes[at].source)
            at = (at + 1) & (grown.room - 1);
        grown.causes[at] = seen->causes[i];
        grown.segments[at] = seen->segments[i];
    }
    grown.count = seen->count;
    free(seen->causes);
    free(seen->segments);
    *seen = grown;
    return 0;
}

/* Walks segments backwards, each of them forwards: the newest segment decides, and in it the last record. */
static int seen_note(void *context, const ac_message_t *message) {
    seen_t *seen = context;
    if (seen->begin_ns == UINT64_MAX) seen->begin_ns = message->timestamp_ns;
    if (!(message->flags & AC_FLAG_CAUSE)) return 0;
    if (seen->count * 2 >= seen->room && seen_grow(seen) < 0) return -ENOMEM;
    size_t at = message->cause_source & (seen->room - 1);
    while (seen->causes[at].source && seen->causes[at].source != message->cause_source)
        at = (at + 1) & (seen->room - 1);
    if (seen->causes[at].source == 0)
        seen->count++;
    else if (seen->segments[at] > message->segment)
        return 0;
    seen->causes[at] = cause_of(message);
    seen->segments[at] = message->segment;
    return 0;
}

int64_t ac_queue_last_causes(const char *path, uint64_t since_ns, ac_cause_t *out, size_t room,
                             ac_error_t *err) {
    ac_view_t view;
    seen_t seen = {.begin_ns = UINT64_MAX};
    int rc = ac_view_open(&view, path, err);
    if (rc == AC_E_NOT_FOUND && ac_view_is_java(path)) return 0;
    if (rc != AC_OK) return rc;
    for (size_t i = view.count; i-- > 0 && rc == AC_OK && seen.begin_ns >= since_ns;) {
        seen.begin_ns = UINT64_MAX;
        rc = each_message(&view, view.ids[i], seen_note, &seen, err);
    }
    ac_view_close(&view);
    size_t filled = 0;
    for (size_t i = 0; i < seen.room && filled < room; i++)
        if (seen.causes[i].source) out[filled++] = seen.causes[i];
    free(seen.causes);
    free(seen.segments);
    return rc != AC_OK ? rc : (int64_t)seen.count;
}
