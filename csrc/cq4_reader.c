#include "cq4_reader.h"

#include "error.h"
#include "os.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening and closing ---- */

int ac_cq4_reader_recognises(const ac_directory_t *dir, ac_error_t *err) {
    int dir_fd = ac_directory_open(dir, err);
    if (dir_fd < 0) return dir_fd;
    int rc = ac_cq4_is_queue_in(dir_fd);
    ac_os_close(dir_fd);
    return rc < 0 ? ac_fail_os(err, rc, dir->path, "cannot list") : rc;
}

static int open_java(ac_reader_t *reader, const ac_reader_config_t *config, ac_error_t *err) {
    ac_cq4_reader_t *java = reader->java;
    int rc = ac_cq4_stamp_init(&java->stamp, config, reader->dir.path, err);
    if (rc == AC_OK) rc = ac_cq4_tail_open_in(&java->tail, &reader->dir, err);
    if (rc == AC_OK && config->name)
        rc = ac_cq4_named_open(&java->named, &java->tail.queue.dir, config->name, err);
    reader->named = rc == AC_OK && config->name != NULL;
    java->tail.skips_damage = config->skip_corrupt;
    return rc;
}

int ac_cq4_reader_open(ac_reader_t *reader, const ac_reader_config_t *config, ac_error_t *err) {
    reader->java = ac_os_alloc(sizeof *reader->java);
    if (!reader->java) return ac_fail_os(err, -ENOMEM, reader->dir.path, "cannot open");
    int rc = open_java(reader, config, err);
    if (rc != AC_OK) ac_cq4_reader_close(reader);
    return rc;
}

/* The mapping is the tail's. The counters of a closed reader can still be read. */
void ac_cq4_reader_close(ac_reader_t *reader) {
    ac_cq4_reader_t *java = reader->java;
    if (!java) return;
    reader->messages = java->tail.messages;
    reader->payload_bytes = java->tail.payload_bytes;
    reader->segments_entered = java->tail.cycles_entered;
    reader->map = NULL;
    reader->base = NULL;
    reader->java = NULL;
    reader->named = 0;
    ac_cq4_watch_stop(&java->watch);
    ac_cq4_wake_leave(&java->wake);
    ac_cq4_named_close(&java->named);
    ac_cq4_tail_close(&java->tail);
    free(java);
}

/* ---- reading ---- */

/* The fields that other modules read in the reader. */
static void show(ac_reader_t *reader, uint64_t window_end) {
    const ac_cq4_tail_t *tail = &reader->java->tail;
    reader->map = ac_cq4_tail_map(tail);
    reader->base = tail->base;
    reader->segment = tail->segment;
    reader->window_end = window_end;
}

static int next_in_file(ac_reader_t *reader, ac_message_t *out, ac_error_t *err) {
    ac_cq4_tail_t *tail = &reader->java->tail;
    for (;;) {
        int rc = ac_cq4_tail_next(tail, out, err);
        show(reader, 1);
        if (rc != AC_E_CORRUPT || !ac_reader_may_skip(reader)) return rc;
        reader->skipped_records++;
        reader->skipped_bytes += ac_cq4_tail_pass_damage(tail);
    }
}

/* The function may let other threads run, or read, seek or close the reader. So it is called before the
 * message is taken; and the message is taken if it is still the next one afterwards. 1, 0 = look again, or
 * an error. */
static int ask_function(ac_reader_t *reader, ac_message_t *message, ac_error_t *err) {
    ac_cq4_reader_t *java = reader->java;
    ac_map_t *map = reader->map;
    uint64_t timestamp_ns;
    ac_cq4_tail_unread(&java->tail, message);
    ac_map_retain(map);
    int rc =
        ac_cq4_stamp_find(&java->stamp, &java->tail.cycle, message->seq,
                          message->record + AC_HEADER_SIZE, message->length, &timestamp_ns, err);
    ac_map_release(map);
    int usable = ac_reader_check_open(reader, err);
    if (usable != AC_OK) return usable;
    if (rc != AC_OK && !(rc == AC_E_STAMP && reader->skip_once)) return rc;
    ac_message_t again;
    if (reader->map != map || ac_cq4_tail_try_next(&java->tail, &again) != 1) return 0;
    if (again.record != message->record) {
        ac_cq4_tail_unread(&java->tail, &again);
        return 0;
    }
    message->timestamp_ns = timestamp_ns;
    if (rc == AC_OK) return 1;
    reader->skipped_records++;
    reader->skip_once = 0;
    return 0;
}

static int ask_field(ac_reader_t *reader, ac_message_t *message, ac_error_t *err) {
    ac_cq4_reader_t *java = reader->java;
    int rc = ac_cq4_stamp_find(&java->stamp, &java->tail.cycle, message->seq,
                               message->record + AC_HEADER_SIZE, message->length,
                               &message->timestamp_ns, err);
    if (rc == AC_OK) return 1;
    if (reader->skip_once) {
        reader->skipped_records++;
        reader->skip_once = 0;
        return 0;
    }
    ac_cq4_tail_unread(&java->tail, message);
    return rc;
}

int ac_cq4_reader_next(ac_reader_t *reader, ac_message_t *out, ac_error_t *err) {
    int rc = ac_reader_check_open(reader, err);
    if (rc != AC_OK) return rc;
    do {
        rc = next_in_file(reader, out, err);
        if (rc != 1) return rc;
        int how = reader->java->stamp.how;
        if (how == AC_CQ4_BY_FIELD) rc = ask_field(reader, out, err);
        if (how == AC_CQ4_BY_FUNCTION) rc = ask_function(reader, out, err);
    } while (rc == 0);
    if (rc != 1) return rc;
    reader->timestamp_returns += out->timestamp_ns < reader->last_timestamp_ns;
    reader->last_timestamp_ns = out->timestamp_ns;
    return 1;
}

int ac_cq4_reader_ready(ac_reader_t *reader, ac_error_t *err) {
    int rc = ac_reader_check_open(reader, err);
    if (rc != AC_OK) return rc;
    rc = ac_cq4_tail_ready(&reader->java->tail, err);
    show(reader, 1);
    return rc;
}

void ac_cq4_reader_unread(ac_reader_t *reader, const ac_message_t *message) {
    ac_cq4_tail_unread(&reader->java->tail, message);
}

int ac_cq4_reader_fail_cut(ac_reader_t *reader, ac_error_t *err) {
    int rc = ac_cq4_tail_fail_cut(&reader->java->tail, err);
    show(reader, 1);
    return rc;
}

int ac_cq4_reader_step_over(ac_reader_t *reader, ac_error_t *err) {
    ac_error_t later; /* reading reports what is wrong after it */
    ac_message_t message;
    (void)err;
    ac_mark_t mark = ac_reader_mark(reader);
    reader->skip_once = 1;
    int rc = ac_cq4_reader_next(reader, &message, &later);
    reader->skip_once = 0;
    if (rc == 1) ac_reader_return(reader, &mark, &message);
    return AC_OK;
}

/* ---- seeking ---- */

static int moved(ac_reader_t *reader, int rc) {
    reader->ahead = 0;
    reader->last_timestamp_ns = 0;
    reader->skip_once = 0;
    show(reader, 0);
    return rc;
}

int ac_cq4_reader_seek(ac_reader_t *reader, ac_bound_t bound, ac_error_t *err) {
    ac_cq4_tail_t *tail = &reader->java->tail;
    return moved(reader, bound.kind == AC_BOUND_TIME
                             ? ac_cq4_seek_time(tail, &reader->java->stamp, bound.value, err)
                             : ac_cq4_tail_seek_index(tail, bound.value, err));
}

int ac_cq4_reader_seek_first(ac_reader_t *reader, ac_error_t *err) {
    return moved(reader, ac_cq4_tail_seek_first(&reader->java->tail, err));
}

int ac_cq4_reader_seek_last(ac_reader_t *reader, ac_error_t *err) {
    return moved(reader, ac_cq4_tail_seek_last(&reader->java->tail, err));
}

static int check_position(const ac_reader_t *reader, uint64_t segment, uint64_t offset,
                          ac_error_t *err) {
    if (segment <= AC_CQ4_CYCLE_MAX && offset <= INT64_MAX) return AC_OK;
    return ac_fail(err, AC_E_ARGUMENT, 0, reader->dir.path, offset,
                   "cycle %llu, offset %llu is not a position", (unsigned long long)segment,
                   (unsigned long long)offset);
}

int ac_cq4_reader_seek_position(ac_reader_t *reader, uint64_t segment, uint64_t offset,
                                ac_error_t *err) {
    int rc = check_position(reader, segment, offset, err);
    if (rc != AC_OK) return rc;
    return moved(reader, ac_cq4_tail_seek_position(&reader->java->tail, segment, offset, err));
}

int ac_cq4_reader_end_at(ac_reader_t *reader, uint64_t segment, uint64_t offset, ac_error_t *err) {
    int rc = check_position(reader, segment, offset, err);
    if (rc == AC_OK) ac_cq4_tail_end_at(&reader->java->tail, segment, offset);
    return rc;
}

int ac_cq4_reader_ended(const ac_reader_t *reader) {
    return ac_cq4_tail_ended(&reader->java->tail);
}

void ac_cq4_reader_position(const ac_reader_t *reader, uint64_t *segment, uint64_t *offset) {
    ac_cq4_tail_position(&reader->java->tail, segment, offset);
    *offset -= reader->ahead;
}

/* ---- indexes and positions ---- */

/* The index of the next message at a position: 1; or 0 = no record begins there, or its file does not
 * exist. */
static int index_at(ac_reader_t *reader, uint64_t segment, uint64_t offset, uint64_t *index,
                    ac_error_t *err) {
    ac_cq4_tail_t *tail = &reader->java->tail;
    ac_cq4_cycle_t cycle;
    if (segment == tail->segment && offset == tail->offset && tail->cycle.map) {
        *index = tail->index;
        return 1;
    }
    if (segment == tail->segment && reader->ahead && offset == tail->offset - reader->ahead) {
        *index = tail->index - 1;
        return 1;
    }
    int rc = ac_cq4_queue_learn(&tail->queue, err);
    if (rc <= 0 || segment > AC_CQ4_CYCLE_MAX) return rc < 0 ? rc : 0;
    rc = ac_cq4_queue_open_cycle(&tail->queue, (uint32_t)segment, &cycle, err);
    if (rc != AC_OK) return rc == AC_E_NOT_FOUND ? 0 : rc;
    ac_cq4_place_t place = {offset, 0, AC_CQ4_NONE};
    if (offset != 0) place = ac_cq4_cycle_place_at(&cycle, offset);
    ac_cq4_cycle_close(&cycle);
    *index = ac_cq4_index(&tail->queue.roll, (uint32_t)segment, place.seq);
    return place.offset == offset;
}

/* Where a new name begins. */
static int first_position(ac_cq4_tail_t *tail, uint64_t *segment, uint64_t *offset,
                          ac_error_t *err) {
    ac_cq4_cycle_t cycle;
    int rc = ac_cq4_tail_open_first(tail, &cycle, err);
    if (rc < 0) return rc;
    if (rc == 1) {
        *segment = cycle.number;
        *offset = cycle.first;
        ac_cq4_cycle_close(&cycle);
    }
    return 1;
}

/* The position of an index: 1; 0 = the queue does not reach that far, and *offset is where the messages of
 * the cycle end; AC_E_NOT_FOUND if the cycle has no file. */
static int position_of(ac_reader_t *reader, uint64_t index, uint64_t *segment, uint64_t *offset,
                       ac_error_t *err) {
    ac_cq4_tail_t *tail = &reader->java->tail;
    ac_cq4_cycle_t cycle;
    *segment = *offset = 0;
    if (index == 0) return first_position(tail, segment, offset, err);
    int rc = ac_cq4_queue_learn(&tail->queue, err);
    if (rc <= 0) return rc < 0 ? rc : AC_E_NOT_FOUND;
    *segment = ac_cq4_cycle_of_index(&tail->queue.roll, index);
    if (*segment > AC_CQ4_CYCLE_MAX) return AC_E_NOT_FOUND;
    rc = ac_cq4_queue_open_cycle(&tail->queue, (uint32_t)*segment, &cycle, err);
    if (rc != AC_OK) return rc;
    uint64_t seq = index & ac_cq4_seq_mask(&tail->queue.roll);
    ac_cq4_place_t place = ac_cq4_cycle_find(&cycle, seq);
    ac_cq4_cycle_close(&cycle);
    *offset = place.offset;
    return place.seq == seq;
}

static int lost(ac_reader_t *reader, uint64_t segment, uint64_t offset, const char *why,
                ac_error_t *err) {
    uint64_t near_segment, near_offset;
    ac_cq4_tail_t *tail = &reader->java->tail;
    int rc = ac_cq4_tail_seek_index(
        tail,
        segment > AC_CQ4_CYCLE_MAX ? 0 : ac_cq4_index(&tail->queue.roll, (uint32_t)segment, 0),
        err);
    if (rc < 0) return rc;
    ac_cq4_tail_position(tail, &near_segment, &near_offset);
    return ac_reader_position_lost(reader, segment, offset, near_segment, near_offset, why, err);
}

int ac_cq4_reader_resume(ac_reader_t *reader, ac_error_t *err) {
    uint64_t segment, offset, index = ac_load_acquire_u64(reader->java->named.index);
    if (index == 0) return ac_cq4_reader_seek_first(reader, err);
    int rc = position_of(reader, index, &segment, &offset, err);
    if (rc == AC_E_NOT_FOUND)
        return lost(reader, segment, offset, "the file of the position's cycle was removed", err);
    if (rc == 0)
        return lost(reader, segment, offset, "the position lies after the end of its cycle", err);
    return rc < 0 ? rc : moved(reader, ac_cq4_tail_seek_index(&reader->java->tail, index, err));
}

int ac_cq4_reader_commit_seq(ac_reader_t *reader, uint64_t seq, int sync, ac_error_t *err) {
    int rc = ac_reader_usable(reader, err);
    if (rc == AC_OK && !reader->named)
        rc = ac_fail(err, AC_E_ARGUMENT, 0, reader->dir.path, 0,
                     "an anonymous reader has no position to commit; give it a name");
    if (rc == AC_OK) rc = ac_cq4_named_store(&reader->java->named, &reader->dir, seq, sync, err);
    if (rc == AC_OK) reader->commits++;
    return rc;
}

int ac_cq4_reader_commit(ac_reader_t *reader, uint64_t segment, uint64_t offset, int sync,
                         ac_error_t *err) {
    uint64_t index = 0;
    int rc = check_position(reader, segment, offset, err);
    if (rc != AC_OK) return rc;
    int is_start = segment == 0 && offset == 0;
    rc = is_start ? 1 : index_at(reader, segment, offset, &index, err);
    if (rc == 0)
        return ac_fail(err, AC_E_ARGUMENT, 0, reader->dir.path, offset,
                       "cycle %llu, offset %llu is not where a message begins or ends, or lies "
                       "after the end of the queue; commit a position that a message or a reader "
                       "gave",
                       (unsigned long long)segment, (unsigned long long)offset);
    return rc < 0 ? rc : ac_cq4_reader_commit_seq(reader, index, sync, err);
}

int ac_cq4_reader_committed(ac_reader_t *reader, uint64_t *segment, uint64_t *offset,
                            ac_error_t *err) {
    uint64_t index = ac_load_acquire_u64(reader->java->named.index);
    int rc = position_of(reader, index, segment, offset, err);
    return rc < 0 && rc != AC_E_NOT_FOUND ? rc : AC_OK;
}

/* After the last message of a cycle, it is the first message of the next cycle that has any. */
int ac_cq4_reader_seq_at(ac_reader_t *reader, uint64_t segment, uint64_t offset, uint64_t *seq,
                         ac_error_t *err) {
    ac_cq4_tail_t scout;
    ac_message_t message;
    int rc = ac_cq4_tail_open_in(&scout, &reader->dir, err);
    if (rc != AC_OK) return rc;
    rc = ac_cq4_tail_seek_position(&scout, segment, offset, err);
    if (rc == AC_OK) {
        *seq = scout.index;
        rc = ac_cq4_tail_next(&scout, &message, err);
        if (rc == 1) *seq = message.seq;
        rc = rc == 0 ? scout.cycle.map != NULL : rc;
    }
    ac_cq4_tail_close(&scout);
    return rc == AC_E_POSITION_LOST || rc == AC_E_CORRUPT ? 0 : rc;
}

int ac_cq4_reader_durable_seq(ac_reader_t *reader, uint64_t *seq) {
    const ac_cq4_table_t *table = &reader->java->tail.queue.table;
    uint64_t *synced;
    if (!table->map || !ac_cq4_table_find(table, AC_CQ4_KEY_LAST_SYNCED, &synced)) return 0;
    uint64_t index = ac_load_acquire_u64(synced);
    *seq = index + 1;
    return index < INT64_MAX;
}

/* ---- lag, counting, statistics ---- */

int ac_cq4_reader_begin_lag(ac_reader_t *reader, ac_lag_t *out, ac_way_t *way, ac_error_t *err) {
    ac_cq4_tail_t *tail = &reader->java->tail;
    memset(out, 0, sizeof *out);
    int rc = reader->ahead ? 1 : ac_cq4_reader_ready(reader, err);
    if (rc <= 0) return rc;
    ac_message_t message;
    ac_mark_t mark = ac_reader_mark(reader);
    uint64_t timestamp_ns = reader->last_timestamp_ns;
    if (!reader->ahead) {
        rc = ac_cq4_reader_next(reader, &message, err);
        if (rc != 1) return AC_OK; /* reading will report what is wrong */
        timestamp_ns = message.timestamp_ns;
        ac_reader_return(reader, &mark, &message);
    }
    way->dir = tail->queue.dir;
    way->roll = tail->queue.roll;
    ac_cq4_reader_position(reader, &way->from_segment, &way->from_offset);
    way->to_segment = way->from_segment + 1; /* wherever that is */
    uint64_t now = ac_os_now_ns();
    out->age_ns = now > timestamp_ns ? now - timestamp_ns : 0;
    return AC_OK;
}

/* The contents of a range: the total, and cycle by cycle while there is room. */
typedef struct content {
    ac_lag_t total;
    ac_span_t *spans;
    size_t count, room;
} content_t;

static void add_span(content_t *content, uint64_t first_index, uint64_t messages, uint64_t bytes) {
    if (content->count < content->room)
        content->spans[content->count] = (ac_span_t){first_index, first_index + messages, bytes};
    content->count++;
    content->total.messages += messages;
    content->total.bytes += bytes;
}

/* For one file, from an offset on. */
static int add_cycle(ac_cq4_queue_t *queue, uint32_t number, uint64_t from, uint64_t to,
                     content_t *content, ac_error_t *err) {
    ac_cq4_cycle_t cycle;
    ac_cq4_place_t first = {0, 0, AC_CQ4_NONE}, end;
    int rc = ac_cq4_queue_open_cycle(queue, number, &cycle, err);
    if (rc != AC_OK) return rc == AC_E_NOT_FOUND ? AC_OK : rc;
    if (from) first = ac_cq4_cycle_place_at(&cycle, from);
    if (!from) first.offset = cycle.first;
    end = to == UINT64_MAX ? ac_cq4_cycle_end(&cycle) : ac_cq4_cycle_place_at(&cycle, to);
    if (end.seq > first.seq)
        add_span(content, ac_cq4_index(&queue->roll, number, first.seq), end.seq - first.seq,
                 end.offset - first.offset);
    ac_cq4_cycle_close(&cycle);
    return AC_OK;
}

/* For all files from one position to another. */
static int add_cycles(ac_cq4_queue_t *queue, const ac_range_t *range, int skip_corrupt,
                      content_t *content, ac_error_t *err) {
    uint32_t *cycles;
    size_t count;
    int rc = ac_cq4_queue_cycles(queue, &cycles, &count, err);
    for (size_t i = 0; rc == AC_OK && i < count; i++) {
        if (cycles[i] < range->first_segment || cycles[i] > range->end_segment) continue;
        rc = add_cycle(
            queue, cycles[i], cycles[i] == range->first_segment ? range->first_offset : 0,
            cycles[i] == range->end_segment ? range->end_offset : UINT64_MAX, content, err);
        if (rc == AC_E_CORRUPT && skip_corrupt) rc = AC_OK;
    }
    free(cycles);
    return rc;
}

int ac_cq4_reader_lag_bytes(const ac_way_t *way, ac_lag_t *out, ac_error_t *err) {
    ac_cq4_queue_t queue = {.dir = way->dir, .roll = way->roll};
    ac_range_t range = {way->from_segment, way->from_offset, UINT64_MAX, UINT64_MAX};
    content_t content = {0};
    int rc = add_cycles(&queue, &range, 1, &content, err);
    out->messages += content.total.messages;
    out->bytes += content.total.bytes;
    return rc;
}

int64_t ac_cq4_reader_count(ac_reader_t *reader, const ac_range_t *range, ac_error_t *err) {
    content_t content = {0};
    int rc = add_cycles(&reader->java->tail.queue, range, reader->skip_corrupt, &content, err);
    return rc < 0 ? rc : (int64_t)content.total.messages;
}

int64_t ac_cq4_reader_spans(ac_reader_t *reader, const ac_range_t *range, ac_span_t *out,
                            size_t room, ac_error_t *err) {
    content_t content = {.spans = out, .room = room};
    int rc = add_cycles(&reader->java->tail.queue, range, reader->skip_corrupt, &content, err);
    return rc < 0 ? rc : (int64_t)content.count;
}

void ac_cq4_reader_stats(const ac_reader_t *reader, ac_reader_stats_t *out) {
    const ac_cq4_tail_t *tail = &reader->java->tail;
    out->messages = tail->messages;
    out->payload_bytes = tail->payload_bytes;
    out->segments_entered = tail->cycles_entered;
    out->segment = tail->segment;
    out->offset = tail->offset;
    out->next_seq = tail->index;
}
