#include "reader.h"

#include "error.h"
#include "lock.h"
#include "os.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WINDOW = 256 << 10, BEATS_PER_TTL = 4 };

void ac_reader_defaults(ac_reader_config_t *config) {
    memset(config, 0, sizeof *config);
    config->start = AC_START_COMMITTED;
    config->verify = 1;
    config->mode = 0600;
}

static int attach(ac_reader_t *reader, ac_error_t *err);

int ac_reader_check_open(ac_reader_t *reader, ac_error_t *err) {
    uint32_t state = ac_load_relaxed_u32(&reader->state);
    if (AC_LIKELY(state == 0)) return AC_OK;
    if (state == 2)
        return ac_fail(err, AC_E_FORKED, 0, reader->dir.path, 0,
                       "opened before fork; open it again here");
    return ac_fail(err, AC_E_CLOSED, 0, reader->dir.path, 0, "reader is closed");
}

int ac_reader_usable(ac_reader_t *reader, ac_error_t *err) {
    int rc = ac_reader_check_open(reader, err);
    return AC_UNLIKELY(rc == AC_OK && reader->pending) ? attach(reader, err) : rc;
}
static const char CUT[] = "the file was cut while it was being read, or its disk failed";

static int fail_at(ac_reader_t *reader, int code, uint64_t offset, const char *why,
                   ac_error_t *err) {
    char path[1200];
    snprintf(path, sizeof path, "%s/%09u.q", reader->dir.path, reader->segment);
    return ac_fail(err, code, 0, path, offset, "%s", why);
}

/* ---- moving between segments ---- */

/* A position behind what is left of a file that was cut becomes the place of the cut, where at_gap says so. */
void ac_reader_place(ac_reader_t *reader, ac_map_t *map, uint64_t offset) {
    if (reader->map != map) {
        ac_map_release(reader->map);
        reader->map = map;
        reader->base = map->base;
        reader->size = map->size;
        reader->segment = map->segment;
        reader->segments_entered++;
    }
    reader->offset = offset < map->size ? offset : map->size;
    reader->ahead = 0;
    reader->window_end = 0;
    reader->continued = 0;
    reader->expected_seq = 0; /* not known: whatever comes is neither a gap nor a restart */
    reader->last_timestamp_ns = 0;
}

static int open_segment(ac_reader_t *reader, uint32_t segment, ac_map_t **map, ac_error_t *err) {
    int dir_fd = ac_directory_open(&reader->dir, err);
    if (dir_fd < 0) return dir_fd;
    int rc = ac_segment_open(&reader->dir, dir_fd, segment, reader->segment_size, 0, map, err);
    ac_os_close(dir_fd);
    return rc;
}

int ac_reader_enter(ac_reader_t *reader, uint32_t segment, uint64_t offset, ac_error_t *err) {
    ac_map_t *map;
    if (reader->map && reader->map->segment == segment) {
        ac_reader_place(reader, reader->map, offset);
        return AC_OK;
    }
    int rc = open_segment(reader, segment, &map, err);
    if (rc == AC_OK) ac_reader_place(reader, map, offset);
    return rc;
}

/* Says that `segment` is gone, and which position is the nearest that is left. */
static int position_lost(ac_reader_t *reader, uint64_t segment, uint64_t offset,
                         uint64_t near_segment, uint64_t near_offset, const char *why,
                         ac_error_t *err) {
    int rc = ac_fail(err, AC_E_POSITION_LOST, 0, reader->dir.path, offset, "%s", why);
    if (err) {
        err->wanted_segment = segment;
        err->wanted_offset = offset;
        err->first_segment = near_segment;
        err->first_offset = near_offset;
    }
    return rc;
}

/* The oldest segment behind `id`: 1 = found, 0 = there is none; *found is then the newest of all, or
 * `id` itself in an empty queue. */
static int first_segment_after(ac_reader_t *reader, uint64_t id, uint32_t *found, ac_error_t *err) {
    uint32_t *ids = NULL;
    size_t count = 0, i = 0;
    int dir_fd = ac_directory_open(&reader->dir, err);
    if (dir_fd < 0) return dir_fd;
    int rc = ac_segment_list(&reader->dir, dir_fd, &ids, &count, err);
    ac_os_close(dir_fd);
    if (rc != AC_OK) return rc;
    while (i < count && ids[i] <= id)
        i++;
    *found = i < count ? ids[i] : count > 0 ? ids[count - 1] : (uint32_t)id;
    free(ids);
    return i < count;
}

/* Prepared in advance, and nobody has entered it: its file may be removed again when the writer ends, and
 * another one appear under its name. */
static int is_spare(const ac_map_t *map) {
    return map->size >= AC_SEGMENT_DATA + AC_HEADER_SIZE && !ac_segment_sealed(map) &&
           ac_record_load_commit(map->base + AC_SEGMENT_DATA) == 0;
}

int ac_reader_enter_next(ac_reader_t *reader, ac_error_t *err) {
    uint32_t next = reader->map ? reader->segment + 1 : reader->segment;
    uint32_t continued = reader->continued;
    uint64_t expected_seq = reader->expected_seq, last_timestamp_ns = reader->last_timestamp_ns;
    ac_error_t local;
    ac_map_t *map;
    /* Before the name is looked up: a seal that came later says nothing about the file found. */
    int certain = !reader->map || ac_segment_sealed(reader->map);
    int rc = open_segment(reader, next, &map, &local);
    while (rc == AC_E_CORRUPT && reader->skip_corrupt &&
           next < ac_load_acquire_u32(&reader->control->current_segment)) {
        reader->skipped_records++; /* not even its header can be read: the whole segment */
        reader->skipped_bytes += reader->segment_size;
        continued = 0;
        rc = open_segment(reader, ++next, &map, &local);
    }
    if (rc == AC_E_NOT_FOUND) return AC_NEXT_MISSING;
    if (rc != AC_OK) {
        if (err) *err = local;
        return rc;
    }
    /* Judged by the very file that would be entered: the name may stand for another one by now. */
    if (!certain && is_spare(map)) {
        ac_map_release(map);
        return AC_NEXT_SPARE;
    }
    ac_reader_place(reader, map, AC_SEGMENT_DATA);
    reader->continued = continued;
    reader->expected_seq = expected_seq;
    reader->last_timestamp_ns = last_timestamp_ns;
    return AC_NEXT_ENTERED;
}

/* The segment after the finished one: 1 entered, 0 not there yet. */
static int advance(ac_reader_t *reader, ac_error_t *err) {
    uint32_t next = reader->map ? reader->segment + 1 : reader->segment;
    int rc = ac_reader_enter_next(reader, err);
    if (rc != AC_NEXT_MISSING) return rc == AC_NEXT_SPARE ? 0 : rc;
    /* Not there: still to come, or removed? Only later segments can tell. */
    if (ac_load_acquire_u32(&reader->control->current_segment) <= next && reader->map) return 0;
    uint32_t later;
    int removed = first_segment_after(reader, next, &later, err);
    if (removed <= 0) return removed;
    /* Later ones are there, so by now it was too, unless it is gone. */
    rc = ac_reader_enter_next(reader, err);
    if (rc != AC_NEXT_MISSING) return rc == AC_NEXT_SPARE ? 0 : rc;
    return position_lost(reader, next, AC_SEGMENT_DATA, later, AC_SEGMENT_DATA,
                         "the segment to be read next was removed", err);
}

/* ---- the slow path of next ---- */

/* A verifying reader touches every byte before it hands it out, so a page that cannot be had is noticed
 * through the SIGBUS handler, and plain faults, which map sixteen pages at a time, cost a third of populating
 * them. Without verification the pages are asked for here, where a failure is an errno. */
static int widen_window(ac_reader_t *reader, ac_error_t *err) {
    uint64_t end = ac_reader_limit(reader);
    if (reader->check == AC_CHECK_PAYLOAD) {
        reader->window_end = end;
        return AC_OK;
    }
    if (reader->offset + WINDOW < end) end = reader->offset + WINDOW;
    int rc = ac_os_populate(reader->map->base, reader->offset, end - reader->offset, 0);
    if (rc < 0)
        return fail_at(reader, AC_E_GONE, reader->offset,
                       rc == -EFAULT ? "the file was cut while it was being read"
                                     : "its pages cannot be read from disk",
                       err);
    reader->window_end = end;
    return AC_OK;
}

/* How far valid records may lie: the writer's own position in the active segment. */
static uint64_t resync_limit(const ac_reader_t *reader) {
    uint32_t segment;
    uint64_t offset;
    ac_control_position(reader->control, &segment, &offset);
    return segment == reader->segment && offset < reader->size ? offset : reader->size;
}

/* Steps over a corrupt place: by its length if the header is sound, else to the next valid record. */
static void skip_corrupt(ac_reader_t *reader) {
    ac_message_t message;
    const char *why;
    uint64_t offset = reader->offset;
    if (ac_record_inspect(reader->base, reader->size, offset, reader->segment, AC_CHECK_HEADER,
                          &message, &why) == AC_RECORD_GOOD) {
        offset += ac_record_size(message.length);
    } else {
        uint64_t limit = resync_limit(reader);
        do {
            offset += AC_ALIGNMENT;
        } while (offset < limit &&
                 ac_record_inspect(reader->base, reader->size, offset, reader->segment,
                                   AC_CHECK_PAYLOAD, &message, &why) != AC_RECORD_GOOD);
    }
    reader->skipped_records++;
    reader->skipped_bytes += offset - reader->offset;
    reader->offset = offset;
    reader->continued = 0;
}

/* A valid record that is not simply the next one. 1 = deliver, else an error code. */
static int judge_order(ac_reader_t *reader, const ac_message_t *message, ac_error_t *err) {
    int ours = (message->flags & AC_FLAG_OURS) != 0;
    int jumped = reader->expected_seq != message->seq;
    if (jumped && reader->continued && ours) {
        int missing = message->seq > reader->expected_seq;
        if (!missing || !reader->skip_corrupt)
            return fail_at(reader, AC_E_CORRUPT, reader->offset,
                           "seq does not continue: records are missing", err);
        reader->skipped_records++; /* those before this one, which is sound itself */
    }
    if (message->seq < reader->expected_seq) reader->seq_restarts++;
    if (message->timestamp_ns < reader->last_timestamp_ns) reader->timestamp_returns++;
    return 1;
}

static void deliver(ac_reader_t *reader, const ac_message_t *message) {
    reader->offset += ac_record_size(message->length);
    reader->expected_seq = message->seq + 1;
    reader->last_timestamp_ns = message->timestamp_ns;
    reader->continued = (message->flags & AC_FLAG_OURS) != 0;
    reader->messages++;
    reader->payload_bytes += message->length;
}

/* No record can start here any more. The position may even lie behind a segment that was cut. */
static int is_full(const ac_reader_t *reader) {
    return reader->offset + AC_HEADER_SIZE > reader->size;
}

/* Nothing committed at the position. 1 = look again (in this or the next segment), 0 = wait. */
static int at_gap(ac_reader_t *reader, ac_error_t *err) {
    ac_message_t message;
    const char *why;
    if (reader->gone) {
        int fd = ac_directory_open(&reader->dir, err);
        if (fd < 0) return fd;
        ac_os_close(fd);
        reader->gone = 0; /* somebody moved it away and back */
    }
    if (reader->map && ac_map_is_cut(reader->map))
        return fail_at(reader, AC_E_GONE, reader->offset, CUT, err);
    if (ac_map_is_cut(reader->control_map))
        return ac_fail(err, AC_E_GONE, 0, reader->dir.path, 0,
                       "control.meta was cut by another program");
    if (reader->map && reader->size < reader->segment_size && is_full(reader) &&
        !reader->skip_corrupt)
        return fail_at(reader, AC_E_CORRUPT, reader->size, "the segment was cut here", err);
    if (reader->map) {
        /* A writer that was killed, or a power cut, may have left a finished segment unsealed. */
        int finished = is_full(reader) || ac_segment_sealed(reader->map) ||
                       reader->segment < reader->durable.segment;
        uint64_t end = finished                                     ? ac_segment_end(reader->map)
                       : reader->segment == reader->durable.segment ? reader->durable.offset
                                                                    : 0;
        if (!finished && reader->offset >= end) return 0;
        /* Committed between our look at the record and our look at the seal? */
        if (ac_record_inspect(reader->base, reader->size, reader->offset, reader->segment,
                              AC_CHECK_HEADER, &message, &why) != AC_RECORD_NONE)
            return 1;
        if (reader->offset < end) {
            if (!reader->skip_corrupt)
                return fail_at(reader, AC_E_CORRUPT, reader->offset, "a record is missing here",
                               err);
            skip_corrupt(reader);
            return 1;
        }
    }
    return advance(reader, err);
}

/* Nothing more is read; but an end that was found by walking over the records may be where the first
 * corrupt one stands, and that has to be said. */
static int at_end(ac_reader_t *reader, ac_error_t *err) {
    ac_message_t message;
    const char *why;
    if (!reader->map || reader->segment != reader->end_segment ||
        reader->offset != reader->end_offset)
        return 0;
    int found = ac_record_inspect(reader->base, reader->size, reader->offset, reader->segment,
                                  AC_CHECK_HEADER, &message, &why);
    if (found == AC_RECORD_GOOD) return 0;
    if (found == AC_RECORD_BAD) return fail_at(reader, AC_E_CORRUPT, reader->offset, why, err);
    int rc = at_gap(reader, err);
    return rc < 0 ? rc : 0;
}

static int next_slow(ac_reader_t *reader, ac_message_t *out, ac_error_t *err) {
    int rc = ac_reader_usable(reader, err);
    if (rc == AC_E_NOT_FOUND && reader->pending) return 0;
    while (rc == AC_OK || rc == 1) {
        const char *why = NULL;
        if (ac_reader_is_behind_end(reader)) return at_end(reader, err);
        if (reader->map && reader->offset >= reader->window_end && reader->offset < reader->size) {
            rc = widen_window(reader, err);
            if (rc != AC_OK) break;
        }
        int found = ac_record_inspect(reader->base, reader->size, reader->offset, reader->segment,
                                      reader->check, out, &why);
        if (found == AC_RECORD_NONE) {
            rc = at_gap(reader, err);
            if (rc == 0) return 0;
        } else if (found == AC_RECORD_GOOD && out->type_id == AC_TYPE_PADDING) {
            reader->offset += ac_record_size(out->length);
            rc = 1;
        } else {
            if (found == AC_RECORD_GOOD) {
                rc = judge_order(reader, out, err);
                if (rc == 1) {
                    deliver(reader, out);
                    return 1;
                }
            } else if (ac_map_is_cut(reader->map)) {
                return fail_at(reader, AC_E_GONE, reader->offset, CUT, err);
            } else {
                rc = fail_at(reader, AC_E_CORRUPT, reader->offset, why, err);
            }
            if (rc != AC_E_CORRUPT || !reader->skip_corrupt) break;
            if (found == AC_RECORD_GOOD) { /* what is missing is before it: it is delivered */
                reader->skipped_records++;
                reader->continued = 0;
            } else {
                skip_corrupt(reader);
            }
            rc = 1;
        }
    }
    return rc;
}

int ac_reader_next(ac_reader_t *reader, ac_message_t *out, ac_error_t *err) {
    int rc = ac_reader_try_next(reader, out);
    return AC_LIKELY(rc == 1) ? 1 : next_slow(reader, out, err);
}

int ac_reader_ready(ac_reader_t *reader, ac_error_t *err) {
    ac_message_t message;
    ac_mark_t mark = ac_reader_mark(reader);
    int rc = ac_reader_next(reader, &message, err);
    if (rc < 0 && rc != AC_E_CLOSED && rc != AC_E_FORKED) return 1; /* next will raise it */
    if (rc != 1) return rc;
    ac_reader_return(reader, &mark, &message);
    return 1;
}

void ac_reader_unread(ac_reader_t *reader, const ac_message_t *message) {
    reader->offset -= ac_record_size(message->length);
    reader->expected_seq = message->seq;
    reader->messages--;
    reader->payload_bytes -= message->length;
}

void ac_reader_return(ac_reader_t *reader, const ac_mark_t *mark, const ac_message_t *message) {
    ac_reader_unread(reader, message);
    reader->expected_seq = mark->expected_seq;
    reader->last_timestamp_ns = mark->last_timestamp_ns;
    reader->continued = reader->skipped_records == mark->skipped_records ? mark->continued : 0;
    reader->seq_restarts = mark->seq_restarts;
    reader->timestamp_returns = mark->timestamp_returns;
}

/* ---- positions ---- */

void ac_reader_position(ac_reader_t *reader, uint64_t *segment, uint64_t *offset) {
    *segment = reader->segment;
    *offset = reader->offset - reader->ahead;
}

static int check_position(ac_reader_t *reader, uint64_t segment, uint64_t offset, ac_error_t *err) {
    if (segment <= AC_SEGMENT_ID_MAX && offset >= AC_SEGMENT_DATA && offset % AC_ALIGNMENT == 0 &&
        offset <= reader->segment_size)
        return AC_OK;
    return ac_fail(err, AC_E_ARGUMENT, 0, reader->dir.path, offset,
                   "segment %llu, offset %llu is not a position", (unsigned long long)segment,
                   (unsigned long long)offset);
}

/* There is nothing at this position: is it at least inside what the segment holds? */
static int within_segment(ac_reader_t *reader, uint64_t offset, uint64_t *end, ac_error_t *err) {
    ac_index_t index;
    ac_message_t message;
    const char *why;
    int built;
    int dir_fd = ac_directory_open(&reader->dir, err);
    if (dir_fd < 0) return dir_fd;
    int rc = ac_index_obtain(&index, &reader->dir, dir_fd, reader->map, reader->segment_size,
                             &built, err);
    ac_os_close(dir_fd);
    if (rc != AC_OK) return rc;
    *end = index.end;
    ac_index_free(&index);
    /* Behind a corrupt record nobody can say. */
    int stopped = ac_record_inspect(reader->base, reader->size, *end, reader->segment,
                                    AC_CHECK_HEADER, &message, &why);
    return offset <= *end || stopped == AC_RECORD_BAD;
}

static int lost_segment(ac_reader_t *reader, uint64_t segment, uint64_t offset, ac_error_t *err) {
    uint32_t nearest;
    uint64_t end;
    int removed = first_segment_after(reader, segment, &nearest, err);
    if (removed < 0) return removed;
    if (removed)
        return position_lost(reader, segment, offset, nearest, AC_SEGMENT_DATA,
                             "the segment of the position was removed", err);
    if (nearest == segment && segment == 0 && offset == AC_SEGMENT_DATA)
        return AC_OK; /* nothing yet */
    int rc = ac_reader_enter(reader, nearest, AC_SEGMENT_DATA, err);
    if (rc == AC_OK) {
        rc = within_segment(reader, AC_SEGMENT_DATA, &end, err);
    } else if (rc == AC_E_NOT_FOUND) { /* the queue has become empty */
        nearest = 0;
        end = AC_SEGMENT_DATA;
        rc = AC_OK;
    }
    if (rc < 0) return rc;
    return position_lost(reader, segment, offset, nearest, end,
                         "the position lies behind the end of the queue", err);
}

int ac_reader_seek_position(ac_reader_t *reader, uint64_t segment, uint64_t offset,
                            ac_error_t *err) {
    ac_error_t local;
    ac_message_t message;
    const char *why;
    uint32_t head_segment;
    uint64_t head_offset, end;
    int rc = ac_reader_usable(reader, err);
    if (rc == AC_OK) rc = check_position(reader, segment, offset, err);
    if (rc != AC_OK) return rc;
    rc = ac_reader_enter(reader, (uint32_t)segment, offset, &local);
    if (rc == AC_E_NOT_FOUND) return lost_segment(reader, segment, offset, err);
    if (rc != AC_OK) {
        if (err) *err = local;
        return rc;
    }
    ac_control_position(reader->control, &head_segment, &head_offset);
    if (segment == head_segment && offset == head_offset) return AC_OK;
    if (ac_record_inspect(reader->base, reader->size, offset, reader->segment, AC_CHECK_HEADER,
                          &message, &why) != AC_RECORD_NONE)
        return AC_OK;
    rc = within_segment(reader, offset, &end, err);
    if (rc != 0) return rc < 0 ? rc : AC_OK;
    return position_lost(reader, segment, offset, segment, end,
                         "the position lies behind the end of the queue", err);
}

int ac_reader_end_at(ac_reader_t *reader, uint64_t segment, uint64_t offset, ac_error_t *err) {
    int rc = ac_reader_usable(reader, err);
    if (rc == AC_OK) rc = check_position(reader, segment, offset, err);
    if (rc != AC_OK) return rc;
    reader->end_segment = segment;
    reader->end_offset = offset;
    reader->window_end = 0; /* to be measured anew */
    return AC_OK;
}

int ac_reader_ended(const ac_reader_t *reader) {
    if (ac_reader_is_behind_end(reader)) return 1;
    /* The end is where a segment begins, which may have nothing in it and then is not entered. */
    return reader->base && reader->segment + 1ull == reader->end_segment &&
           reader->end_offset == AC_SEGMENT_DATA &&
           (reader->size - reader->offset < AC_HEADER_SIZE ||
            ac_record_load_commit(reader->base + reader->offset) == 0);
}

int ac_reader_commit(ac_reader_t *reader, uint64_t segment, uint64_t offset, int sync,
                     ac_error_t *err) {
    int rc = ac_reader_usable(reader, err);
    if (rc == AC_OK && !reader->named)
        rc = ac_fail(err, AC_E_ARGUMENT, 0, reader->dir.path, 0,
                     "an anonymous reader has no position to commit; give it a name");
    if (rc == AC_OK) rc = check_position(reader, segment, offset, err);
    if (rc == AC_OK && ac_map_is_cut(reader->position.map))
        rc = ac_fail(err, AC_E_GONE, 0, reader->dir.path, 0, "the position file was cut");
    if (rc != AC_OK) return rc;
    ac_position_store(&reader->position, segment, offset, ac_os_now_ns());
    reader->commits++;
    int synced = sync ? ac_position_sync(&reader->position) : 0;
    return synced < 0 ? ac_fail_os(err, synced, reader->dir.path, "cannot sync the position")
                      : AC_OK;
}

int ac_reader_committed(ac_reader_t *reader, uint64_t *segment, uint64_t *offset, ac_error_t *err) {
    int rc = ac_reader_usable(reader, err);
    if (rc == AC_OK && !reader->named)
        rc = ac_fail(err, AC_E_ARGUMENT, 0, reader->dir.path, 0,
                     "an anonymous reader has no committed position");
    if (rc != AC_OK) return rc;
    ac_position_get(&reader->position, segment, offset);
    return AC_OK;
}

/* ---- opening and closing ---- */

/* As rarely as the writer's reader_ttl allows; other programs' writers do not say what theirs is. */
static uint64_t heartbeat_interval_ns(const ac_control_t *control) {
    uint64_t epoch = ac_load_relaxed_u64(&control->writer_epoch);
    uint64_t interval_ns = ac_load_relaxed_u64(&control->reader_ttl_ns) / BEATS_PER_TTL;
    if (epoch != ac_load_relaxed_u64(&control->signalling_epoch)) return AC_HEARTBEAT_FOREIGN_NS;
    if (interval_ns == 0 || interval_ns > AC_HEARTBEAT_MAX_NS) return AC_HEARTBEAT_MAX_NS;
    return interval_ns < AC_HEARTBEAT_MIN_NS ? AC_HEARTBEAT_MIN_NS : interval_ns;
}

/* All readers of a process beat at the same moments, so that an idle one wakes up once for all of them. */
static uint64_t heartbeat(ac_task_t *task, uint64_t now_ns) {
    ac_reader_t *reader = (ac_reader_t *)(void *)((char *)task - offsetof(ac_reader_t, task));
    uint64_t interval_ns = heartbeat_interval_ns(reader->control);
    ac_position_heartbeat(&reader->position, ac_os_now_ns());
    return (now_ns / interval_ns + 1) * interval_ns;
}

static void on_fork(ac_task_t *task) {
    ac_reader_t *reader = (ac_reader_t *)(void *)((char *)task - offsetof(ac_reader_t, task));
    ac_store_relaxed_u32(&reader->state, 2);
    reader->window_end = 0;
    reader->position.lock.mapping = NULL; /* not inherited … */
    reader->position.map = NULL;          /* … and neither is this */
    reader->announced = 0;
}

/* A new name starts at the first record that is there. */
/* A new name does not begin in a segment that retention is about to remove. Its file is there by now, so
 * later surveys find it; earlier ones have said what they are after (announce_removal). */
static void register_name(ac_reader_t *reader, uint32_t last) {
    uint64_t removing = ac_load_seq_cst_u64(&reader->control->removing);
    if (reader->position.current.segment < removing && removing <= last)
        ac_position_store(&reader->position, removing, AC_SEGMENT_DATA, ac_os_now_ns());
}

static int open_position(ac_reader_t *reader, const char *name, ac_error_t *err) {
    uint32_t first = 0, last = 0;
    size_t count = 0;
    int created = 0;
    int dir_fd = ac_directory_open(&reader->dir, err);
    if (dir_fd < 0) return dir_fd;
    int rc = ac_segment_bounds(&reader->dir, dir_fd, &first, &last, &count, err);
    if (rc == AC_OK)
        rc = ac_position_open(&reader->position, &reader->dir, dir_fd, name, first, AC_SEGMENT_DATA,
                              &created, err);
    if (rc == AC_OK && created) register_name(reader, last);
    ac_os_close(dir_fd);
    reader->named = rc == AC_OK;
    return rc;
}

/* To the committed position. A name that never lived (nothing but its creation was stored yet) has
 * nothing to lose: if retention was quicker than its registration, it starts at what is first now. */
static int resume(ac_reader_t *reader, ac_error_t *err) {
    ac_slot_t slot = reader->position.current;
    int rc = ac_reader_seek_position(reader, slot.segment, slot.offset, err);
    if (rc != AC_E_POSITION_LOST || slot.generation > 1) return rc;
    rc = ac_reader_seek_first(reader, err);
    if (rc != AC_OK) return rc;
    ac_position_store(&reader->position, reader->segment, reader->offset, ac_os_now_ns());
    return AC_OK;
}

static int go_to_start(ac_reader_t *reader, const ac_reader_config_t *config, ac_error_t *err) {
    switch (config->start) {
    case AC_START_COMMITTED:
        return reader->named ? resume(reader, err) : ac_reader_seek_first(reader, err);
    case AC_START_FIRST:
        return ac_reader_seek_first(reader, err);
    case AC_START_LAST:
        return ac_reader_seek_last(reader, err);
    case AC_START_SEQ:
        return ac_reader_seek_seq(reader, config->start_value, err);
    case AC_START_TIME:
        return ac_reader_seek_time(reader, config->start_value, err);
    default:
        return ac_fail(err, AC_E_ARGUMENT, 0, reader->dir.path, 0, "unknown start %d",
                       config->start);
    }
}

static int open_control(ac_reader_t *reader, ac_error_t *err) {
    int dir_fd = ac_directory_open(&reader->dir, err);
    if (dir_fd < 0) return dir_fd;
    int rc = ac_control_open(&reader->dir, dir_fd, 2, !reader->pending, &reader->control_map, err);
    ac_durable_read(&reader->dir, dir_fd, &reader->durable);
    ac_os_close(dir_fd);
    reader->half_made = rc == AC_E_NOT_FOUND && err && err->sys_errno == EAGAIN;
    if (rc == AC_E_NOT_FOUND)
        return ac_fail(err, AC_E_NOT_FOUND, ENOENT, reader->dir.path, 0,
                       "the directory has no control.meta, so it is not a queue (yet)");
    if (rc != AC_OK) return rc;
    reader->control = ac_control_of(reader->control_map);
    reader->segment_size = ac_load_relaxed_u64(&reader->control->segment_size);
    if (!ac_segment_size_valid(reader->segment_size))
        return ac_fail(err, AC_E_CORRUPT, 0, reader->dir.path, 24, "segment size is impossible");
    return AC_OK;
}

/* Lets go of the queue. */
static void detach(ac_reader_t *reader) {
    ac_position_close(&reader->position);
    ac_map_release(reader->map);
    ac_map_release(reader->control_map);
    for (size_t i = 0; i < reader->catalogue_count; i++)
        ac_index_free(&reader->catalogue[i]);
    free(reader->catalogue);
    reader->catalogue = NULL;
    reader->catalogue_count = reader->catalogue_room = 0;
    reader->map = reader->control_map = NULL;
    reader->base = NULL;
    reader->size = reader->window_end = 0;
}

static void release_everything(ac_reader_t *reader) {
    if (reader->announced) ac_doorman_retract(&reader->caller);
    reader->announced = 0;
    ac_doorman_stop_expecting(&reader->caller);
    if (reader->bell) { /* whoever sleeps on it looks again */
        if (!reader->shares_bell) ac_store_release_u32(&reader->bell->closing, 1);
        ac_os_eventfd_signal(reader->bell->fd);
    }
    ac_bell_release(reader->bell);
    reader->bell = NULL;
    reader->tried_to_announce = 0;
    detach(reader);
}

/* Opens the queue and goes to where reading starts. */
static int open_queue(ac_reader_t *reader, const char *path, const ac_reader_config_t *config,
                      ac_error_t *err) {
    int rc = ac_directory_init(&reader->dir, path, config->mode, 0, err);
    if (rc == AC_OK) rc = open_control(reader, err);
    if (rc == AC_OK && config->name) rc = open_position(reader, config->name, err);
    if (rc == AC_OK) {
        int waited = reader->pending;
        reader->pending = 0; /* seeking needs a usable reader */
        rc = go_to_start(reader, config, err);
        reader->pending = rc == AC_OK ? 0 : waited;
    }
    if (rc != AC_OK) detach(reader);
    return rc;
}

static void begin_heartbeat(ac_reader_t *reader) {
    if (!reader->named) return;
    reader->task.run = heartbeat;
    ac_housekeeper_nudge(&reader->task);
}

/* Is the queue there now? */
static int attach(ac_reader_t *reader, ac_error_t *err) {
    char path[sizeof reader->dir.path];
    ac_error_t local;
    snprintf(path, sizeof path, "%s", reader->dir.path);
    int rc = open_queue(reader, path, &reader->wanted, &local);
    if (rc != AC_OK) {
        if (err) *err = local;
        return rc;
    }
    ac_doorman_stop_expecting(&reader->caller);
    if (reader->tried_to_announce) ac_reader_announce(reader);
    begin_heartbeat(reader);
    return AC_OK;
}

/* All of a queue that comes later is new to whoever waited for it. */
static int wait_for_queue(ac_reader_t *reader, const char *path, const ac_reader_config_t *config,
                          ac_error_t *err) {
    int rc = config->name ? ac_reader_name_check(config->name, path, err) : AC_OK;
    if (rc != AC_OK) return rc;
    snprintf(reader->dir.path, sizeof reader->dir.path, "%s", path);
    reader->wanted = *config;
    reader->wanted.name = config->name ? reader->name : NULL;
    if (config->start == AC_START_LAST) reader->wanted.start = AC_START_FIRST;
    reader->pending = 1;
    return AC_OK;
}

int ac_reader_open(const char *path, const ac_reader_config_t *config, ac_reader_t **out,
                   ac_error_t *err) {
    ac_reader_t *reader = ac_os_alloc(sizeof *reader);
    if (!reader) return ac_fail_os(err, -ENOMEM, path, "cannot open");
    reader->offset = AC_SEGMENT_DATA;
    reader->end_segment = UINT64_MAX;
    reader->check = config->verify ? AC_CHECK_PAYLOAD : AC_CHECK_HEADER;
    reader->skip_corrupt = config->skip_corrupt;
    reader->pending = config->wait_for_queue;
    int rc = open_queue(reader, path, config, err);
    if (rc == AC_E_NOT_FOUND && config->wait_for_queue)
        rc = wait_for_queue(reader, path, config, err);
    if (rc == AC_OK && config->name)
        snprintf(reader->name, sizeof reader->name, "%s", config->name);
    if (rc == AC_OK) {
        reader->task.forked = on_fork;
        reader->task.lane = AC_LANE_MEMORY;
        rc = ac_housekeeper_add(&reader->task);
        if (rc < 0) rc = ac_fail_os(err, rc, path, "cannot start the housekeeping thread");
    }
    if (rc != AC_OK) {
        release_everything(reader);
        free(reader);
        return rc;
    }
    begin_heartbeat(reader);
    *out = reader;
    return AC_OK;
}

void ac_reader_close(ac_reader_t *reader) {
    if (ac_load_relaxed_u32(&reader->state) != 0) return;
    ac_housekeeper_remove(&reader->task);
    ac_store_relaxed_u32(&reader->state, 1);
    release_everything(reader);
}

void ac_reader_free(ac_reader_t *reader) {
    if (!reader) return;
    if (ac_load_relaxed_u32(&reader->state) == 2)
        release_everything(reader);
    else
        ac_reader_close(reader);
    free(reader);
}

void ac_reader_stats(ac_reader_t *reader, ac_reader_stats_t *out) {
    memset(out, 0, sizeof *out);
    out->messages = reader->messages;
    out->payload_bytes = reader->payload_bytes;
    out->skipped_records = reader->skipped_records;
    out->skipped_bytes = reader->skipped_bytes;
    out->seq_restarts = reader->seq_restarts;
    out->timestamp_returns = reader->timestamp_returns;
    out->segments_entered = reader->segments_entered;
    out->commits = reader->commits;
    out->waits = reader->waits;
    out->segment = reader->segment;
    out->offset = reader->offset;
    out->next_seq = reader->expected_seq;
    out->segment_size = reader->segment_size;
    out->queue_id = reader->control_map ? ac_load_relaxed_u64(&reader->control->queue_id) : 0;
    out->parks = reader->parks;
    out->announced = reader->announced;
    out->attended = ac_reader_attended(reader);
}

const char *ac_reader_path(ac_reader_t *reader) {
    return reader->dir.path;
}
