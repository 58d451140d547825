/* Parts of a queue: finding their ends, counting their messages, and viewing them as arrays in the map. */
#include "cq4_reader.h"
#include "error.h"
#include "os.h"
#include "reader.h"

#include <stdio.h>

/* Nothing, or nothing more, is in it. An empty range is all zero: every position is after its end. */
static int is_over(const ac_range_t *range) {
    return range->first_segment > range->end_segment ||
           (range->first_segment == range->end_segment && range->first_offset >= range->end_offset);
}

static int go_to(ac_reader_t *reader, ac_bound_t bound, int is_end, ac_error_t *err) {
    switch (bound.kind) {
    case AC_BOUND_NONE:
        return is_end ? ac_reader_seek_last(reader, err) : ac_reader_seek_first(reader, err);
    case AC_BOUND_SEQ:
        return ac_reader_seek_seq(reader, bound.value, err);
    case AC_BOUND_TIME:
        return ac_reader_seek_time(reader, bound.value, err);
    default:
        return ac_fail(err, AC_E_ARGUMENT, 0, reader->dir.path, 0, "unknown bound %d", bound.kind);
    }
}

/* The end comes first: if both lie after the newest record and one is appended in between, the start would
 * otherwise be before it and the end after it. A start at a corrupt place stays there, so that the reader
 * meets the damage, unless it skips damage anyway. */
int ac_reader_range(ac_reader_t *reader, ac_bound_t start, ac_bound_t end, ac_range_t *out,
                    ac_error_t *err) {
    int rc = go_to(reader, end, 1, err);
    if (rc == AC_OK) rc = ac_reader_pass_damage(reader, end, err);
    if (rc < 0) return rc;
    ac_reader_position(reader, &out->end_segment, &out->end_offset);
    rc = go_to(reader, start, 0, err);
    if (rc < 0) return rc;
    ac_reader_position(reader, &out->first_segment, &out->first_offset);
    if (is_over(out)) *out = (ac_range_t){0};
    return AC_OK;
}

int ac_reader_read_range(ac_reader_t *reader, const ac_range_t *range, ac_error_t *err) {
    int rc = ac_reader_usable(reader, err);
    if (rc != AC_OK) return rc;
    reader->end_segment = range->end_segment;
    reader->end_offset = range->end_offset;
    reader->window_end = 0;
    if (reader->java)
        ac_cq4_tail_end_at(&reader->java->tail, range->end_segment, range->end_offset);
    if (is_over(range)) return AC_OK;
    return ac_reader_seek_position(reader, range->first_segment, range->first_offset, err);
}

/* ---- counting ---- */

/* Seqs are consecutive according to the first, the last and every 4096th record. */
static int is_gapless(const ac_index_t *index) {
    return index->records > 0 && !index->broken && !index->seq_unordered &&
           index->max_seq - index->min_seq == index->records - 1;
}

static uint64_t count_by_walking(const ac_map_t *map, uint64_t offset, uint64_t end) {
    ac_message_t message;
    const char *why;
    uint64_t count = 0;
    while (offset < end && ac_record_inspect(map->base, map->size, offset, map->segment,
                                             AC_CHECK_HEADER, &message, &why) == AC_RECORD_GOOD) {
        count += message.type_id != AC_TYPE_PADDING;
        offset += ac_record_size(message.length);
    }
    return count;
}

/* The seq of the record at `offset`: 1 = known. At the end of the segment it is the seq after the last one. */
static int seq_at(const ac_map_t *map, const ac_index_t *index, uint64_t offset, uint64_t *seq) {
    ac_message_t message;
    const char *why;
    if (offset >= index->end) {
        *seq = index->max_seq + 1;
        return 1;
    }
    if (ac_record_inspect(map->base, map->size, offset, map->segment, AC_CHECK_HEADER, &message,
                          &why) != AC_RECORD_GOOD ||
        message.type_id == AC_TYPE_PADDING)
        return 0;
    *seq = message.seq;
    return 1;
}

static uint64_t count_in(const ac_map_t *map, const ac_index_t *index, uint64_t offset,
                         uint64_t end) {
    uint64_t first, after;
    if (is_gapless(index) && seq_at(map, index, offset, &first) &&
        seq_at(map, index, end, &after) && after >= first)
        return after - first;
    return count_by_walking(map, offset, end);
}

/* The part of the range in this segment. */
static void clip(const ac_range_t *range, uint32_t segment, uint64_t *from, uint64_t *to) {
    *from = segment == range->first_segment ? range->first_offset : AC_SEGMENT_DATA;
    *to = segment == range->end_segment ? range->end_offset : UINT64_MAX;
}

int64_t ac_reader_count(ac_reader_t *reader, const ac_range_t *range, ac_error_t *err) {
    uint64_t count = 0;
    int rc = ac_reader_usable(reader, err);
    if (rc != AC_OK || is_over(range)) return rc;
    if (reader->java) return ac_cq4_reader_count(reader, range, err);
    for (uint64_t id = range->first_segment; id <= range->end_segment; id++) {
        const ac_index_t *index;
        uint64_t from, to;
        clip(range, (uint32_t)id, &from, &to);
        if (from >= to) break; /* the end is where the last segment begins */
        rc = ac_reader_index(reader, (uint32_t)id, &index, err);
        if (rc == AC_OK) rc = ac_reader_seek_position(reader, id, from, err);
        if (rc == AC_OK && !index)
            rc = ac_fail(err, AC_E_GONE, 0, reader->dir.path, 0, "segments come and go");
        if (rc == AC_E_CORRUPT && reader->skip_corrupt) continue;
        if (rc != AC_OK) return rc;
        count += count_in(reader->map, index, from, to < index->end ? to : index->end);
    }
    return (int64_t)count;
}

int64_t ac_reader_spans(ac_reader_t *reader, const ac_range_t *range, ac_span_t *out, size_t room,
                        ac_error_t *err) {
    int rc = ac_reader_usable(reader, err);
    if (rc != AC_OK || is_over(range) || !reader->java) return rc;
    return ac_cq4_reader_spans(reader, range, out, room, err);
}

/* ---- arrays ---- */

static int fail_stretch(ac_reader_t *reader, int code, uint32_t segment, uint64_t offset,
                        const char *why, ac_error_t *err) {
    char name[AC_NAME_MAX], path[1200];
    ac_segment_name(name, segment, ".q");
    snprintf(path, sizeof path, "%s/%s", reader->dir.path, name);
    return ac_fail(err, code, 0, path, offset, "%s", why);
}

int ac_reader_stretch(ac_reader_t *reader, ac_range_t *range, ac_stretch_t *out, ac_error_t *err) {
    const ac_index_t *index;
    int rc = ac_reader_usable(reader, err);
    if (rc != AC_OK) return rc;
    if (reader->java)
        return ac_fail(err, AC_E_UNSUPPORTED, 0, reader->dir.path, 0,
                       "the records of a Java queue are no array: index pages stand among them");
    for (; !is_over(range); range->first_segment++, range->first_offset = AC_SEGMENT_DATA) {
        uint32_t segment = (uint32_t)range->first_segment;
        uint64_t from, to;
        rc = ac_reader_index(reader, segment, &index, err);
        if (rc == AC_OK) rc = ac_reader_enter(reader, segment, range->first_offset, err);
        if (rc == AC_E_NOT_FOUND) /* which reports what is left */
            rc = ac_reader_seek_position(reader, segment, range->first_offset, err);
        if (rc == AC_OK && !index)
            rc = ac_fail(err, AC_E_GONE, 0, reader->dir.path, 0, "segments come and go");
        if (rc != AC_OK) return rc;
        clip(range, segment, &from, &to);
        if (index->end > reader->size) /* the index is older than that */
            return fail_stretch(reader, AC_E_CORRUPT, segment, reader->size,
                                "the segment was cut here", err);
        if (index->broken || (to != UINT64_MAX && to > index->end))
            return fail_stretch(reader, AC_E_CORRUPT, segment, index->end,
                                "a record is missing or invalid here", err);
        if (to > index->end) to = index->end;
        if (from >= to) continue; /* nothing of it in this segment */
        uint64_t stride = ac_record_size(index->length);
        if (index->mixed || (from - AC_SEGMENT_DATA) % stride || (to - from) % stride)
            return fail_stretch(reader, AC_E_ARGUMENT, segment, from,
                                "its records are not all of one type and length", err);
        ac_map_retain(reader->map);
        *out = (ac_stretch_t){.map = reader->map,
                              .payload = reader->base + from + AC_HEADER_SIZE,
                              .count = (to - from) / stride,
                              .stride = stride,
                              .length = index->length,
                              .type_id = index->type_id};
        range->first_offset = to;
        if (segment < range->end_segment) {
            range->first_segment++;
            range->first_offset = AC_SEGMENT_DATA;
        }
        return 1;
    }
    return 0;
}

void ac_stretch_release(ac_stretch_t *stretch) {
    ac_map_release(stretch->map);
    stretch->map = NULL;
}
