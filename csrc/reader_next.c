/* The next message: what ac_reader_try_next leaves to be done.
 *
 * From one segment into the next, over padding and corrupt places and around another writer's habits, to the decision
 * what is missing, removed, truncated, or only yet to come. */
#include "cq4_reader.h"
#include "error.h"
#include "os.h"
#include "reader.h"
#include "trailer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { WINDOW = 256 << 10 };

static int fail_at(ac_reader_t *reader, int code, uint64_t offset, const char *why,
                   ac_error_t *err) {
    char path[1200];
    snprintf(path, sizeof path, "%s/%09u.q", reader->dir.path, reader->segment);
    return ac_fail(err, code, 0, path, offset, "%s", why);
}

int ac_reader_may_skip(ac_reader_t *reader) {
    if (reader->skip_corrupt) return 1;
    int once = reader->skip_once;
    reader->skip_once = 0;
    return once;
}

/* ---- moving between segments ---- */

/* A position after the end of a truncated file becomes the place of the cut, where at_gap reports it. */
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
    reader->whole_end = reader->last_offset = 0;
    reader->skip_once = 0; /* it described another position */
    reader->ahead = 0;
    reader->window_end = reader->prefetch_end = 0;
    reader->ours = AC_FLAG_OURS; /* until the first record of another program was checked */
    reader->continued = 0;
    reader->expected_seq = 0; /* unknown: the next record is neither a gap nor a restart */
    reader->last_timestamp_ns = 0;
}

static int is_beyond_start(uint64_t segment, uint64_t offset, uint32_t of) {
    return segment > of || (segment == of && offset > AC_SEGMENT_DATA);
}

int ac_segment_awaited(const ac_directory_t *dir, int dir_fd, uint32_t newest,
                       const ac_control_t *control, const ac_durable_t *durable) {
    uint32_t segment;
    uint64_t offset;
    if (is_beyond_start(durable->segment, durable->offset, newest)) return 0;
    if (ac_control_position(control, &segment, &offset) && is_beyond_start(segment, offset, newest))
        return 0;
    return ac_segment_lacks_header(dir, dir_fd, newest);
}

static int is_awaited(const ac_reader_t *reader, int dir_fd, uint32_t segment) {
    uint32_t first, last;
    size_t count = 0;
    return ac_segment_bounds(&reader->dir, dir_fd, &first, &last, &count, NULL) == AC_OK &&
           count > 0 && last == segment &&
           ac_segment_awaited(&reader->dir, dir_fd, segment, reader->control, &reader->durable);
}

/* 1 = the queue now has another segment size. */
static int has_new_size(ac_reader_t *reader) {
    uint64_t size = ac_load_acquire_u64(&reader->control->segment_size);
    if (reader->map || size == reader->segment_size || !ac_segment_size_valid(size)) return 0;
    reader->segment_size = size;
    return 1;
}

int ac_reader_open_segment(ac_reader_t *reader, int dir_fd, uint32_t segment, ac_map_t **map,
                           ac_error_t *err) {
    int rc = ac_segment_open(&reader->dir, dir_fd, segment, reader->segment_size, 0, map, err);
    if (rc != AC_OK || !has_new_size(reader)) return rc;
    ac_map_release(*map);
    return ac_segment_open(&reader->dir, dir_fd, segment, reader->segment_size, 0, map, err);
}

static int open_segment(ac_reader_t *reader, uint32_t segment, ac_map_t **map, ac_error_t *err) {
    int dir_fd = ac_directory_open(&reader->dir, err);
    if (dir_fd < 0) return dir_fd;
    int rc = ac_reader_open_segment(reader, dir_fd, segment, map, err);
    if (rc == AC_E_CORRUPT || rc == AC_E_VERSION) {
        if (is_awaited(reader, dir_fd, segment))
            rc = ac_fail(err, AC_E_NOT_FOUND, EAGAIN, reader->dir.path, 0,
                         "segment %u has no header yet", segment);
        else /* unless it got its header between the two looks, this reports the same again */
            rc = ac_reader_open_segment(reader, dir_fd, segment, map, err);
    }
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

void ac_reader_await(ac_reader_t *reader, uint32_t segment) {
    ac_map_release(reader->map);
    reader->map = NULL;
    reader->base = NULL;
    reader->size = reader->window_end = reader->prefetch_end = reader->ahead = 0;
    reader->segment = segment;
    reader->offset = AC_SEGMENT_DATA;
    reader->continued = 0;
    reader->expected_seq = reader->last_timestamp_ns = 0;
}

int ac_reader_position_lost(ac_reader_t *reader, uint64_t segment, uint64_t offset,
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

int ac_reader_first_segment_after(ac_reader_t *reader, uint64_t id, uint32_t *found,
                                  ac_error_t *err) {
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

/* Prepared in advance, and no writer has entered it: its file may be removed when the writer ends, and
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
    /* Before the name is looked up: a later seal says nothing about the file found. */
    int certain = !reader->map || ac_segment_sealed(reader->map);
    int rc = open_segment(reader, next, &map, &local);
    while (rc == AC_E_CORRUPT && next < ac_load_acquire_u32(&reader->control->current_segment) &&
           ac_reader_may_skip(reader)) {
        reader
            ->skipped_records++; /* not even its header can be read: the whole segment is damaged */
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

/* A reader that waits for the first segment of a queue checks often. There was no later one, and no writer
 * has entered any since: the directory need not be listed again. */
static int is_known_to_come(const ac_reader_t *reader, uint32_t segment, uint32_t generation) {
    return reader->none_after == segment + 1ull && reader->none_generation == generation;
}

/* The segment after the finished one: 1 entered, 0 not there yet. */
static int advance(ac_reader_t *reader, ac_error_t *err) {
    uint32_t next = reader->map ? reader->segment + 1 : reader->segment;
    int rc = ac_reader_enter_next(reader, err);
    if (rc != AC_NEXT_MISSING) return rc == AC_NEXT_SPARE ? 0 : rc;
    /* Not there: still to come, or removed? Only later segments can tell. */
    uint32_t generation = ac_load_acquire_u32(&reader->control->segment_gen);
    if (ac_load_acquire_u32(&reader->control->current_segment) <= next &&
        (reader->map || is_known_to_come(reader, next, generation)))
        return 0;
    uint32_t later;
    int removed = ac_reader_first_segment_after(reader, next, &later, err);
    if (removed == 0) {
        reader->none_after = next + 1ull;
        reader->none_generation = generation;
    }
    if (removed <= 0) return removed;
    /* Later ones exist, so by now this one did too, unless it is gone. */
    rc = ac_reader_enter_next(reader, err);
    if (rc != AC_NEXT_MISSING) return rc == AC_NEXT_SPARE ? 0 : rc;
    return ac_reader_position_lost(reader, next, AC_SEGMENT_DATA, later, AC_SEGMENT_DATA,
                                   "the segment to be read next was removed", err);
}

/* The handler's zero page in the place of the unreadable one stays in this mapping; through a new mapping
 * the page is read again. */
static void map_again(ac_reader_t *reader) {
    ac_map_t *map;
    ac_mark_t mark = ac_reader_mark(reader);
    if (open_segment(reader, reader->segment, &map, NULL) != AC_OK) return;
    ac_reader_place(reader, map, reader->offset);
    reader->segments_entered--;
    reader->expected_seq = mark.expected_seq;
    reader->last_timestamp_ns = mark.last_timestamp_ns;
    reader->continued = mark.continued;
}

int ac_reader_fail_cut(ac_reader_t *reader, ac_error_t *err) {
    char name[AC_NAME_MAX], path[1200];
    struct stat info;
    if (reader->java) return ac_cq4_reader_fail_cut(reader, err);
    uint64_t at =
        ac_map_is_cut(reader->map) ? ac_load_relaxed_u64(&reader->map->cut_at) : reader->offset;
    ac_segment_name(name, reader->segment, ".q");
    snprintf(path, sizeof path, "%s/%s", reader->dir.path, name);
    int dir_fd = ac_directory_open(&reader->dir, err);
    if (dir_fd < 0) return dir_fd;
    int is_whole =
        ac_os_stat_at(dir_fd, name, &info) == 0 && (uint64_t)info.st_size >= reader->size;
    ac_os_close(dir_fd);
    if (!is_whole)
        return ac_fail(err, AC_E_GONE, 0, path, at, "the file was cut while it was being read");
    map_again(reader);
    return ac_fail(err, AC_E_SYSTEM, EIO, path, at,
                   "a page cannot be read from disk; reading again may help");
}

/* ---- the slow path of next ---- */

uint64_t ac_reader_sound_limit(ac_reader_t *reader) {
    uint64_t limit = ac_reader_limit(reader);
    if (AC_LIKELY(reader->unrepaired_epoch == 0)) return limit;
    if (ac_load_acquire_u64(&reader->control->writer_epoch) != reader->unrepaired_epoch) {
        reader->unrepaired_epoch = 0;
        return limit;
    }
    if (reader->segment != reader->durable.segment)
        return reader->segment < reader->durable.segment ? limit : 0;
    return reader->durable.offset < limit ? reader->durable.offset : limit;
}

/* After the sound part, records must be verified, and batches checked. Other programs' records are in no
 * batch; one of ours among them is left to the slow path. */
uint64_t ac_reader_fast_limit(ac_reader_t *reader) {
    uint64_t limit = ac_reader_sound_limit(reader);
    return reader->check == AC_CHECK_PAYLOAD && !reader->ours ? ac_reader_limit(reader) : limit;
}

int ac_reader_is_whole_batch(ac_reader_t *reader, uint64_t offset, const ac_message_t *first) {
    offset += ac_record_size(first->length);
    for (uint32_t left = first->batch_left; left > 0; left--) {
        ac_message_t message;
        const char *why;
        if (ac_record_inspect(reader->base, reader->size, offset, reader->segment, AC_CHECK_PAYLOAD,
                              &message, &why) != AC_RECORD_GOOD ||
            message.batch_left != left - 1 || !(message.flags & AC_FLAG_OURS))
            return 0;
        offset += ac_record_size(message.length);
    }
    reader->whole_end = offset;
    return 1;
}

/* Where the writer is, or the end of a segment that it has left. A wrong answer costs time only. */
static uint64_t find_prefetch_end(const ac_reader_t *reader) {
    enum { REACH = AC_PREFETCH_BYTES + 3 * AC_PREFETCH_LINE };
    uint32_t segment;
    uint64_t offset;
    if (!ac_control_position(reader->control, &segment, &offset) || segment < reader->segment)
        return 0;
    uint64_t end = segment > reader->segment || offset > reader->size ? reader->size : offset;
    return end > REACH ? end - REACH : 0;
}

/* A verifying reader touches every byte before it returns it, so the SIGBUS handler notices a page that
 * cannot be read, and plain faults, which map sixteen pages at a time, cost a third of populating them.
 * Without verification the pages are populated here, where a failure is an errno. */
static int widen_window(ac_reader_t *reader, ac_error_t *err) {
    uint64_t end = ac_reader_fast_limit(reader);
    reader->prefetch_end = find_prefetch_end(reader);
    if (end <= reader->offset) { /* no fast path */
        reader->window_end = 1;  /* not 0, by which a fan-in recognises a reader that was moved */
        return AC_OK;
    }
    if (reader->check == AC_CHECK_PAYLOAD) {
        reader->window_end = end;
        return AC_OK;
    }
    if (reader->offset + WINDOW < end) end = reader->offset + WINDOW;
    int rc = ac_os_populate(reader->map->base, reader->offset, end - reader->offset, 0);
    if (rc < 0) return ac_reader_fail_cut(reader, err);
    reader->window_end = end;
    return AC_OK;
}

/* How far valid records may extend: the writer's own position in the active segment. */
static uint64_t resync_limit(const ac_reader_t *reader) {
    uint32_t segment;
    uint64_t offset;
    ac_control_position(reader->control, &segment, &offset);
    return segment == reader->segment && offset < reader->size ? offset : reader->size;
}

/* Whether a valid record can be one of the queue's, this many bytes after the damage, and not part of a
 * payload. */
static int can_follow(const ac_reader_t *reader, const ac_message_t *message, uint64_t bytes) {
    if (ac_load_relaxed_u64(&reader->control->queue_id) == 0) return 1;
    if (!(message->flags & AC_FLAG_OURS)) return !reader->continued && reader->expected_seq != 0;
    return !reader->continued || message->type_id == AC_TYPE_PADDING ||
           (message->seq >= reader->expected_seq &&
            message->seq - reader->expected_seq <= bytes / AC_ALIGNMENT);
}

/* Skips a corrupt place: by its length if the header is sound, else to the next valid record. */
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
                 (ac_record_inspect(reader->base, reader->size, offset, reader->segment,
                                    AC_CHECK_PAYLOAD, &message, &why) != AC_RECORD_GOOD ||
                  !can_follow(reader, &message, offset - reader->offset)));
    }
    reader->skipped_records++;
    reader->skipped_bytes += offset - reader->offset;
    reader->offset = offset;
    reader->continued = 0;
}

/* A valid record that is not simply the next one. 1 = deliver, otherwise an error code. */
static int judge_order(ac_reader_t *reader, const ac_message_t *message, ac_error_t *err) {
    int ours = (message->flags & AC_FLAG_OURS) != 0;
    int jumped = reader->expected_seq != message->seq;
    if (jumped && reader->continued && ours) {
        int missing = message->seq > reader->expected_seq;
        if (!missing || !ac_reader_may_skip(reader))
            return fail_at(reader, AC_E_CORRUPT, reader->offset,
                           "seq does not continue: records are missing", err);
        reader->skipped_records++; /* those before this one, which is sound itself */
    }
    if (message->seq < reader->expected_seq) reader->seq_restarts++;
    if (message->timestamp_ns < reader->last_timestamp_ns) reader->timestamp_returns++;
    return 1;
}

/* Records of other programs take the fast path where all records are theirs: in a queue with an id, one
 * that looks like theirs may be one of ours that is damaged, and its payload is checked even without
 * verification. */
static void deliver(ac_reader_t *reader, const ac_message_t *message) {
    int has_id = ac_load_relaxed_u64(&reader->control->queue_id) != 0;
    uint32_t ours = has_id ? AC_FLAG_OURS : message->flags & AC_FLAG_OURS;
    if (ours != reader->ours && reader->unrepaired_epoch)
        reader->window_end = 1; /* whose limit depends on it */
    reader->ours = ours;
    reader->last_offset = reader->offset;
    reader->offset += ac_record_size(message->length);
    reader->expected_seq = message->seq + 1;
    reader->last_timestamp_ns = message->timestamp_ns;
    reader->continued = (message->flags & AC_FLAG_OURS) != 0;
    reader->messages++;
    reader->payload_bytes += message->length;
}

/* No record can start here any more. The position may even be beyond a truncated segment. */
static int is_full(const ac_reader_t *reader) {
    return reader->offset + AC_HEADER_SIZE > reader->size;
}

/* How far records are known to exist in the current, unfinished segment: what is durable; and what a writer
 * of ours has published, unless a power cut or a copy may have brought back its control block without the
 * pages. Every record was committed before write_offset was moved over it, pairs with ac_writer_publish; if
 * the newest record is recorded as well, and lies at or after the position, then the writer is one that
 * does this. */
static uint64_t known_end(const ac_reader_t *reader) {
    uint64_t end = reader->segment == reader->durable.segment ? reader->durable.offset : 0;
    uint64_t offset, last = ac_load_acquire_u64(&reader->control->last_record);
    uint32_t segment;
    if (reader->unrepaired_epoch == 0 && last >= reader->offset && last > end &&
        ac_control_position(reader->control, &segment, &offset) && segment == reader->segment &&
        last < offset)
        return offset;
    return end;
}

/* Nothing is committed at the position. 1 = look again (in this or the next segment), 0 = wait. */
static int at_gap(ac_reader_t *reader, ac_error_t *err) {
    ac_message_t message;
    const char *why;
    if (reader->gone) {
        int fd = ac_directory_open(&reader->dir, err);
        if (fd < 0) return fd;
        ac_os_close(fd);
        reader->gone = 0; /* it was moved away and back */
    }
    if (reader->map && ac_map_is_cut(reader->map)) return ac_reader_fail_cut(reader, err);
    if (ac_map_is_cut(reader->control_map))
        return ac_fail(err, AC_E_GONE, 0, reader->dir.path, 0,
                       "control.meta was cut by another program");
    if (reader->map && reader->size < reader->segment_size && is_full(reader) &&
        !ac_reader_may_skip(reader))
        return fail_at(reader, AC_E_CORRUPT, reader->size, "the segment was cut here", err);
    if (reader->map) {
        /* A writer that was killed, or a power cut, may have left a finished segment unsealed. */
        int finished = is_full(reader) || ac_segment_sealed(reader->map) ||
                       reader->segment < reader->durable.segment;
        uint64_t end = finished ? ac_segment_end(reader->map) : known_end(reader);
        if (!finished && reader->offset >= end) return 0;
        /* Committed between our look at the record and our look at the seal? */
        if (ac_record_inspect(reader->base, reader->size, reader->offset, reader->segment,
                              AC_CHECK_HEADER, &message, &why) != AC_RECORD_NONE)
            return 1;
        if (reader->offset < end) {
            if (!ac_reader_may_skip(reader))
                return fail_at(reader, AC_E_CORRUPT, reader->offset, "a record is missing here",
                               err);
            skip_corrupt(reader);
            return 1;
        }
    }
    return advance(reader, err);
}

/* Nothing more is read; but if the end was found by walking over the records, it may be the place of the
 * first corrupt one, which must be reported. */
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

int ac_reader_find_trailer(const ac_reader_t *reader, ac_message_t *out) {
    if (!(out->flags & AC_FLAG_OURS)) return 0;
    out->trailer = 0;
    if (reader->ignores_trailers) return 1;
    out->trailer = ac_trailer_find(out->record + AC_HEADER_SIZE, out->length);
    return out->trailer > 0;
}

static __attribute__((noinline)) int next_slow(ac_reader_t *reader, ac_message_t *out,
                                               ac_error_t *err) {
    int rc = ac_reader_usable(reader, err);
    if (rc == AC_E_NOT_FOUND && reader->pending) return 0;
    if (rc == AC_OK) rc = ac_reader_check_revoked(reader, err);
    while (rc == AC_OK || rc == 1) {
        const char *why = NULL;
        if (ac_reader_is_behind_end(reader)) return at_end(reader, err);
        if (reader->map && reader->offset >= reader->window_end && reader->offset < reader->size) {
            rc = widen_window(reader, err);
            if (rc != AC_OK) break;
        }
        int found = ac_record_inspect(reader->base, reader->size, reader->offset, reader->segment,
                                      reader->check, out, &why);
        /* Other programs' headers have no checksum of their own, and one of ours that contains zeros looks
         * like theirs: in a queue of ours, the payload's checksum must do. Theirs have no id. */
        if (found == AC_RECORD_GOOD && !(out->flags & AC_FLAG_OURS) &&
            ac_load_relaxed_u64(&reader->control->queue_id) != 0)
            found = ac_record_inspect(reader->base, reader->size, reader->offset, reader->segment,
                                      AC_CHECK_PAYLOAD, out, &why);
        int is_unrepaired = reader->map && reader->offset >= ac_reader_sound_limit(reader);
        if (found == AC_RECORD_GOOD && is_unrepaired) /* pages may be missing, verified or not */
            found = ac_record_inspect(reader->base, reader->size, reader->offset, reader->segment,
                                      AC_CHECK_PAYLOAD, out, &why);
        if (found == AC_RECORD_GOOD && out->flags & AC_FLAG_TRAILER &&
            out->type_id != AC_TYPE_PADDING && !ac_reader_find_trailer(reader, out)) {
            found = AC_RECORD_BAD;
            why = "key and headers are malformed";
        } else if (found == AC_RECORD_BAD && is_unrepaired && !ac_map_is_cut(reader->map))
            return 0; /* torn: the queue ends before it, as the next writer will see */
        if (found == AC_RECORD_NONE) {
            rc = at_gap(reader, err);
            if (rc == 0) return 0;
        } else if (found == AC_RECORD_GOOD && out->type_id == AC_TYPE_PADDING) {
            reader->offset += ac_record_size(out->length);
            rc = 1;
        } else if (found == AC_RECORD_GOOD && out->batch_left > 0 && is_unrepaired &&
                   reader->offset >= reader->whole_end &&
                   !ac_reader_is_whole_batch(reader, reader->offset, out)) {
            return 0; /* the queue ends before it, as the next writer will see */
        } else {
            if (found == AC_RECORD_GOOD) {
                rc = judge_order(reader, out, err);
                if (rc == 1) {
                    deliver(reader, out);
                    return 1;
                }
            } else if (ac_map_is_cut(reader->map)) {
                return ac_reader_fail_cut(reader, err);
            } else {
                rc = fail_at(reader, AC_E_CORRUPT, reader->offset, why, err);
            }
            if (rc != AC_E_CORRUPT || !ac_reader_may_skip(reader)) break;
            if (found == AC_RECORD_GOOD) { /* its seq goes back: accepted by the next round */
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
    if (AC_LIKELY(rc == 1)) return 1;
    return reader->java ? ac_cq4_reader_next(reader, out, err) : next_slow(reader, out, err);
}

/* A record is committed at the position: next returns it, or reports what is wrong with it. A wake-up asks
 * this, and its task reads the record at once, so only the header's cache line is touched here. Padding,
 * and what a skipping reader would skip, may have nothing after it, and a record torn by a power cut is the
 * end; only reading finds that out. */
static int is_certain(const ac_reader_t *reader) {
    uint64_t offset = reader->offset;
    if (offset >= reader->window_end || reader->size - offset < AC_HEADER_SIZE ||
        reader->skip_corrupt || reader->skip_once || reader->unrepaired_epoch != 0)
        return 0;
    const uint8_t *at = reader->base + offset;
    return ac_record_load_commit(at) != 0 && ac_record_load_type(at) != AC_TYPE_PADDING;
}

int ac_reader_ready(ac_reader_t *reader, ac_error_t *err) {
    if (reader->java) return ac_cq4_reader_ready(reader, err);
    if (is_certain(reader)) return 1;
    ac_message_t message;
    ac_mark_t mark = ac_reader_mark(reader);
    int rc = ac_reader_next(reader, &message, err);
    if (rc < 0 && rc != AC_E_CLOSED && rc != AC_E_FORKED) return 1; /* next will report it */
    if (rc != 1) return rc;
    ac_reader_return(reader, &mark, &message);
    return 1;
}

/* At once, and not with the next read: the position is then after the damage, and can be committed. */
int ac_reader_step_over(ac_reader_t *reader, ac_error_t *err) {
    ac_error_t later; /* reading reports what is wrong after it */
    int rc = ac_reader_usable(reader, err);
    if (rc != AC_OK) return rc;
    if (reader->java) return ac_cq4_reader_step_over(reader, err);
    reader->skip_once = 1;
    ac_reader_ready(reader, &later);
    reader->skip_once = 0;
    return AC_OK;
}

void ac_reader_report_corrupt(ac_reader_t *reader) {
    reader->skip_corrupt = 0;
}

uint64_t ac_reader_offset_of(const ac_reader_t *reader, const ac_message_t *message,
                             const uint8_t *base) {
    uint64_t record = (uint64_t)(message->record - base);
    return reader->java ? record + AC_HEADER_SIZE - AC_CQ4_HEADER_BYTES : record;
}

uint64_t ac_reader_bytes_of(const ac_reader_t *reader, const ac_message_t *message) {
    return reader->java ? ac_cq4_after(0, message->length, reader->java->tail.padding)
                        : ac_record_size(message->length);
}

void ac_reader_unread(ac_reader_t *reader, const ac_message_t *message) {
    if (reader->java) {
        ac_cq4_reader_unread(reader, message);
        return;
    }
    reader->offset -= ac_record_size(message->length);
    reader->expected_seq = message->seq;
    reader->messages--;
    reader->payload_bytes -= message->length;
}

void ac_reader_return(ac_reader_t *reader, const ac_mark_t *mark, const ac_message_t *message) {
    ac_reader_unread(reader, message);
    reader->last_timestamp_ns = mark->last_timestamp_ns;
    reader->timestamp_returns = mark->timestamp_returns;
    if (reader->java) return;
    reader->expected_seq = mark->expected_seq;
    reader->continued = reader->skipped_records == mark->skipped_records ? mark->continued : 0;
    reader->seq_restarts = mark->seq_restarts;
}
