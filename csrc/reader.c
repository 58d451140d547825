/* A reader from opening to closing: the queue it is attached to, and its position there. */
#include "reader.h"

#include "cq4_reader.h"
#include "error.h"
#include "lock.h"
#include "log.h"
#include "os.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BEATS_PER_TTL = 4 };

void ac_reader_defaults(ac_reader_config_t *config) {
    memset(config, 0, sizeof *config);
    config->start = AC_START_COMMITTED;
    config->verify = 1;
    config->mode = 0600;
}

int ac_reader_check_open(ac_reader_t *reader, ac_error_t *err) {
    uint32_t state = ac_load_relaxed_u32(&reader->state);
    if (AC_LIKELY(state == AC_STATE_OPEN)) return AC_OK;
    if (state == AC_STATE_FORKED)
        return ac_fail(err, AC_E_FORKED, 0, reader->dir.path, 0,
                       "opened before fork; open it again here");
    return ac_fail(err, AC_E_CLOSED, 0, reader->dir.path, 0, "reader is closed");
}

int ac_reader_usable(ac_reader_t *reader, ac_error_t *err) {
    int rc = ac_reader_check_open(reader, err);
    return AC_UNLIKELY(rc == AC_OK && reader->pending) ? ac_reader_attach(reader, err) : rc;
}

int ac_reader_check_revoked(ac_reader_t *reader, ac_error_t *err) {
    if (AC_LIKELY(!reader->named || !ac_position_is_revoked(&reader->position))) return AC_OK;
    return ac_fail(err, AC_E_REVOKED, 0, reader->dir.path, 0,
                   "an operator has moved or forgotten reader '%s' while it was open here",
                   reader->name);
}

/* ---- positions ---- */

void ac_reader_position(ac_reader_t *reader, uint64_t *segment, uint64_t *offset) {
    if (reader->java) {
        ac_cq4_reader_position(reader, segment, offset);
        return;
    }
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

/* There is nothing at this position: is it at least inside the used part of the segment? */
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
    /* Unknown after a corrupt record. */
    int stopped = ac_record_inspect(reader->base, reader->size, *end, reader->segment,
                                    AC_CHECK_HEADER, &message, &why);
    return offset <= *end || stopped == AC_RECORD_BAD;
}

static int lost_segment(ac_reader_t *reader, uint64_t segment, uint64_t offset, ac_error_t *err) {
    uint32_t nearest;
    uint64_t end;
    int removed = ac_reader_first_segment_after(reader, segment, &nearest, err);
    if (removed < 0) return removed;
    if (removed)
        return ac_reader_position_lost(reader, segment, offset, nearest, AC_SEGMENT_DATA,
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
    return ac_reader_position_lost(reader, segment, offset, nearest, end,
                                   "the position lies after the end of the queue", err);
}

static int go_to_position(ac_reader_t *reader, uint64_t segment, uint64_t offset, ac_error_t *err) {
    ac_error_t local;
    ac_message_t message;
    const char *why;
    uint32_t head_segment;
    uint64_t head_offset, end;
    int rc = ac_reader_enter(reader, (uint32_t)segment, offset, &local);
    if (rc == AC_E_NOT_FOUND && local.sys_errno == EAGAIN && offset == AC_SEGMENT_DATA) {
        ac_reader_await(reader, (uint32_t)segment);
        return AC_OK;
    }
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
    return ac_reader_position_lost(reader, segment, offset, segment, end,
                                   "the position lies after the end of the queue", err);
}

/* Back to where it was before a seek that failed, so that no invalid place can be committed. */
static void go_back(ac_reader_t *reader, ac_map_t *map, uint64_t offset, const ac_mark_t *mark) {
    if (reader->map != map) ac_map_retain(map);
    ac_reader_place(reader, map, offset);
    reader->expected_seq = mark->expected_seq;
    reader->last_timestamp_ns = mark->last_timestamp_ns;
    reader->continued = mark->continued;
}

int ac_reader_seek_position(ac_reader_t *reader, uint64_t segment, uint64_t offset,
                            ac_error_t *err) {
    int rc = ac_reader_usable(reader, err);
    if (rc == AC_OK && reader->java)
        return ac_cq4_reader_seek_position(reader, segment, offset, err);
    if (rc == AC_OK) rc = check_position(reader, segment, offset, err);
    if (rc != AC_OK) return rc;
    ac_map_t *map = reader->map;
    ac_mark_t mark = ac_reader_mark(reader);
    uint64_t from = reader->offset;
    if (map) ac_map_retain(map);
    rc = go_to_position(reader, segment, offset, err);
    if (rc < 0 && map) go_back(reader, map, from, &mark);
    ac_map_release(map);
    return rc;
}

int ac_reader_end_at(ac_reader_t *reader, uint64_t segment, uint64_t offset, ac_error_t *err) {
    int rc = ac_reader_usable(reader, err);
    if (rc == AC_OK && reader->java) return ac_cq4_reader_end_at(reader, segment, offset, err);
    if (rc == AC_OK) rc = check_position(reader, segment, offset, err);
    if (rc != AC_OK) return rc;
    reader->end_segment = segment;
    reader->end_offset = offset;
    reader->window_end = 0; /* to be determined again */
    return AC_OK;
}

int ac_reader_ended(const ac_reader_t *reader) {
    if (reader->java) return ac_cq4_reader_ended(reader);
    if (ac_reader_is_behind_end(reader)) return 1;
    /* The end is where a segment begins, which may be empty and then is not entered. */
    return reader->base && reader->segment + 1ull == reader->end_segment &&
           reader->end_offset == AC_SEGMENT_DATA &&
           (reader->size - reader->offset < AC_HEADER_SIZE ||
            ac_record_load_commit(reader->base + reader->offset) == 0);
}

/* There are records between these offsets of a segment, or some that cannot be read. */
static int is_filled(const ac_map_t *map, uint64_t from, uint64_t to) {
    ac_message_t message;
    const char *why;
    while (from < to) {
        int found = ac_record_inspect(map->base, map->size, from, map->segment, AC_CHECK_HEADER,
                                      &message, &why);
        if (found != AC_RECORD_GOOD) return found == AC_RECORD_BAD;
        from += ac_record_size(message.length);
    }
    return 1;
}

/* Whether the records up to a position after the control block's end exist nevertheless: the control block
 * learns of each after readers can see it, and a power cut can leave it far behind. */
static int is_behind_records(ac_reader_t *reader, uint64_t segment, uint64_t offset, uint64_t from,
                             ac_error_t *err) {
    ac_map_t *map;
    ac_error_t local;
    int dir_fd = ac_directory_open(&reader->dir, err);
    if (dir_fd < 0) return dir_fd;
    int rc = ac_segment_open(&reader->dir, dir_fd, (uint32_t)segment, reader->segment_size, 0, &map,
                             &local);
    ac_os_close(dir_fd);
    if (rc == AC_E_NOT_FOUND) return 0;
    if (rc != AC_OK) {
        if (err) *err = local;
        return rc;
    }
    /* A segment that was prepared ahead does not count, not even its beginning. */
    uint64_t to = offset > AC_SEGMENT_DATA ? offset : AC_SEGMENT_DATA + 1;
    int there = is_filled(map, from, to);
    ac_map_release(map);
    return there;
}

/* A position that no reader can have reached would make recovery create room for everything before it. */
static int check_reached(ac_reader_t *reader, uint64_t segment, uint64_t offset, ac_error_t *err) {
    uint32_t head_segment;
    uint64_t head_offset;
    if (segment < reader->segment || (segment == reader->segment && offset <= reader->offset))
        return AC_OK;
    ac_control_position(reader->control, &head_segment, &head_offset);
    if (segment < head_segment || (segment == head_segment && offset <= head_offset)) return AC_OK;
    uint64_t from =
        segment == head_segment && head_offset >= AC_SEGMENT_DATA && head_offset % AC_ALIGNMENT == 0
            ? head_offset
            : AC_SEGMENT_DATA;
    int there = is_behind_records(reader, segment, offset, from, err);
    if (there != 0) return there < 0 ? there : AC_OK;
    return ac_fail(err, AC_E_ARGUMENT, 0, reader->dir.path, 0,
                   "segment %llu, offset %llu lies after the end of the queue; commit a position "
                   "that a message or a reader gave",
                   (unsigned long long)segment, (unsigned long long)offset);
}

/* How long commits rely on the last check of the file's name: a check takes some 2 us. */
enum { LOOK_NS = 1000000 };

/* Whether a stored position can be found by its name. */
static int check_stored(ac_reader_t *reader, uint64_t now_ns, int sync, ac_error_t *err) {
    ac_position_t *position = &reader->position;
    char path[1300];
    /* A clock that is set back causes one more check. */
    if (!sync && now_ns - position->looked_ns < LOOK_NS) return AC_OK;
    if (ac_position_has_name(position, &reader->dir, reader->name)) {
        position->looked_ns = now_ns;
        return AC_OK;
    }
    position->looked_ns =
        0; /* the next commit checks again: it may have been moved away and back */
    int dir_fd = ac_directory_open(&reader->dir, err);
    if (dir_fd < 0) return dir_fd;
    ac_os_close(dir_fd);
    snprintf(path, sizeof path, "%s/readers/%s.meta", reader->dir.path, reader->name);
    return ac_fail(err, AC_E_GONE, ENOENT, path, 0,
                   "was removed or replaced, so nothing is committed; to remove a reader, close "
                   "it and use forget_reader");
}

int ac_reader_commit(ac_reader_t *reader, uint64_t segment, uint64_t offset, int sync,
                     ac_error_t *err) {
    return ac_reader_commit_epoch(reader, segment, offset,
                                  ac_reader_epoch_beside(reader, segment, offset), sync, err);
}

int ac_reader_commit_epoch(ac_reader_t *reader, uint64_t segment, uint64_t offset, uint32_t epoch,
                           int sync, ac_error_t *err) {
    int rc = ac_reader_usable(reader, err);
    if (rc == AC_OK && !reader->named)
        rc = ac_fail(err, AC_E_ARGUMENT, 0, reader->dir.path, 0,
                     "an anonymous reader has no position to commit; give it a name");
    if (rc == AC_OK && reader->java)
        return ac_cq4_reader_commit(reader, segment, offset, sync, err);
    if (rc == AC_OK) rc = ac_reader_check_revoked(reader, err);
    if (rc == AC_OK) rc = check_position(reader, segment, offset, err);
    if (rc == AC_OK) rc = check_reached(reader, segment, offset, err);
    if (rc == AC_OK && ac_map_is_cut(reader->position.map))
        rc = ac_fail(err, AC_E_GONE, 0, reader->dir.path, 0, "the position file was cut");
    if (rc != AC_OK) return rc;
    uint64_t now_ns = ac_os_now_ns();
    ac_position_store(&reader->position, segment, offset, epoch, now_ns);
    int synced = sync ? ac_position_sync(&reader->position) : 0;
    if (synced < 0) return ac_fail_os(err, synced, reader->dir.path, "cannot sync the position");
    rc = ac_reader_check_revoked(reader, err); /* removed meanwhile: then what was stored cannot be
                                                  found */
    if (rc == AC_OK) rc = check_stored(reader, now_ns, sync, err);
    if (rc == AC_OK) reader->commits++;
    return rc;
}

int ac_reader_committed(ac_reader_t *reader, uint64_t *segment, uint64_t *offset, ac_error_t *err) {
    int rc = ac_reader_usable(reader, err);
    if (rc == AC_OK && !reader->named)
        rc = ac_fail(err, AC_E_ARGUMENT, 0, reader->dir.path, 0,
                     "an anonymous reader has no committed position");
    if (rc == AC_OK && reader->java) return ac_cq4_reader_committed(reader, segment, offset, err);
    if (rc != AC_OK) return rc;
    ac_position_get(&reader->position, segment, offset);
    return AC_OK;
}

/* ---- opening and closing ---- */

/* As rarely as the writer's reader_ttl allows; other programs' writers do not publish theirs. */
uint64_t ac_reader_heartbeat_ns(const ac_control_t *control) {
    uint64_t epoch = ac_load_relaxed_u64(&control->writer_epoch);
    uint64_t interval_ns = ac_load_relaxed_u64(&control->reader_ttl_ns) / BEATS_PER_TTL;
    if (epoch != ac_load_relaxed_u64(&control->signalling_epoch)) return AC_HEARTBEAT_FOREIGN_NS;
    if (interval_ns == 0 || interval_ns > AC_HEARTBEAT_MAX_NS) return AC_HEARTBEAT_MAX_NS;
    return interval_ns < AC_HEARTBEAT_MIN_NS ? AC_HEARTBEAT_MIN_NS : interval_ns;
}

/* All readers of a process beat at the same moments, so that an idle one wakes up once for all of them. */
static uint64_t heartbeat(ac_task_t *task, uint64_t now_ns) {
    ac_reader_t *reader = (ac_reader_t *)(void *)((char *)task - offsetof(ac_reader_t, task));
    uint64_t interval_ns = ac_reader_heartbeat_ns(reader->control);
    ac_position_heartbeat(&reader->position, ac_os_now_ns());
    if (ac_map_is_cut(reader->position.map) && !reader->heartbeat_failed) {
        reader->heartbeat_failed = 1;
        ac_log(
            AC_LOG_ERROR, reader->dir.path,
            "the position file of reader %s was cut: the writer takes it for dead; open it again",
            reader->name);
    }
    return (now_ns / interval_ns + 1) * interval_ns;
}

static void on_fork(ac_task_t *task) {
    ac_reader_t *reader = (ac_reader_t *)(void *)((char *)task - offsetof(ac_reader_t, task));
    ac_store_relaxed_u32(&reader->state, AC_STATE_FORKED);
    reader->window_end = 0;
    ac_position_forked(&reader->position);
    ac_futex_watch_forget(&reader->futex_watch);
    reader->announced = reader->retracting = 0;
}

/* A new name does not begin in a segment that retention is about to remove. Its file exists by now, so
 * later surveys find it; earlier ones have announced what they are about to remove (announce_removal). */
static void register_name(ac_reader_t *reader, uint32_t last) {
    uint64_t removing = ac_load_seq_cst_u64(&reader->control->removing);
    if (reader->position.current.segment < removing && removing <= last)
        ac_position_store(&reader->position, removing, AC_SEGMENT_DATA, 0, ac_os_now_ns());
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

/* To the committed position. A name that never lived (nothing but its creation was stored yet) has nothing
 * to lose: if retention was quicker than its registration, it starts at the first message that is left. */
static int resume(ac_reader_t *reader, ac_error_t *err) {
    if (reader->java) return ac_cq4_reader_resume(reader, err);
    ac_slot_t slot = reader->position.current;
    int rc = ac_reader_seek_position(reader, slot.segment, slot.offset, err);
    if (rc == AC_OK) return ac_reader_confirm_epoch(reader, slot.epoch, err);
    if (rc != AC_E_POSITION_LOST || slot.generation > 1) return rc;
    rc = ac_reader_seek_first(reader, err);
    if (rc != AC_OK) return rc;
    ac_position_store(&reader->position, reader->segment, reader->offset, 0, ac_os_now_ns());
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

/* The epoch of a writer that has not closed the queue and is dead: its end may be what a power cut left,
 * until the next writer has repaired it. 0 = there is no such writer. */
static uint64_t find_unrepaired(const ac_reader_t *reader, int dir_fd) {
    uint64_t home, epoch = ac_load_acquire_u64(&reader->control->writer_epoch);
    if (ac_control_is_clean(reader->control)) return 0;
    int is_copy = ac_control_home(&reader->dir, dir_fd, &home, NULL) == AC_OK &&
                  ac_control_is_copy(reader->control, home);
    /* The lock file of a copy names the writer of the original. */
    return !is_copy && ac_writer_lives(&reader->dir, reader->control) ? 0 : epoch;
}

static int open_control(ac_reader_t *reader, ac_error_t *err) {
    int dir_fd = ac_directory_open(&reader->dir, err);
    if (dir_fd < 0) return dir_fd;
    int rc = ac_control_open(&reader->dir, dir_fd, AC_CONTROL_WRITABLE_IF_PERMITTED,
                             !reader->pending, &reader->control_map, err);
    if (rc == AC_OK) {
        reader->control = ac_control_of(reader->control_map);
        ac_durable_believe(&reader->dir, dir_fd, reader->control, &reader->durable);
        reader->unrepaired_epoch = find_unrepaired(reader, dir_fd);
    }
    ac_os_close(dir_fd);
    reader->half_made = rc == AC_E_NOT_FOUND && err && err->sys_errno == EAGAIN;
    if (rc == AC_E_NOT_FOUND)
        return ac_fail(
            err, AC_E_NOT_FOUND, ENOENT, reader->dir.path, 0,
            "the directory has neither control.meta nor metadata.cq4t, so it is not a queue "
            "(yet)");
    if (rc != AC_OK) return rc;
    reader->segment_size = ac_load_relaxed_u64(&reader->control->segment_size);
    if (!ac_segment_size_valid(reader->segment_size))
        return ac_fail(err, AC_E_CORRUPT, 0, reader->dir.path, 24, "segment size is impossible");
    return AC_OK;
}

void ac_reader_detach(ac_reader_t *reader) {
    ac_futex_watch_end(&reader->futex_watch);
    ac_cq4_reader_close(reader);
    ac_position_close(&reader->position);
    ac_map_release(reader->map);
    ac_map_release(reader->control_map);
    for (size_t i = 0; i < reader->catalogue_count; i++)
        ac_index_free(&reader->catalogue[i]);
    free(reader->catalogue);
    reader->catalogue = NULL;
    reader->catalogue_count = reader->catalogue_room = 0;
    reader->map = reader->control_map = NULL;
    reader->control = &ac_control_of_nobody;
    reader->base = NULL;
    reader->size = reader->window_end = 0;
}

static void release_everything(ac_reader_t *reader) {
    ac_reader_retract(reader);
    ac_wake_stop_expecting(&reader->endpoint);
    if (reader->eventfd) { /* sleepers check again */
        if (!reader->shares_eventfd) ac_store_release_u32(&reader->eventfd->closing, 1);
        ac_os_eventfd_signal(reader->eventfd->fd);
    }
    ac_eventfd_release(reader->eventfd);
    reader->eventfd = NULL;
    reader->tried_to_announce = 0;
    ac_opening_free(ac_reader_take_opening(reader));
    ac_reader_detach(reader);
}

int ac_reader_find(ac_directory_t *dir, const char *path, const ac_reader_config_t *config,
                   ac_error_t *err) {
    return config->expected.given
               ? ac_directory_init_expected(dir, path, config->mode, &config->expected, err)
               : ac_directory_init(dir, path, config->mode, 0, err);
}

static int open_native(ac_reader_t *reader, const ac_reader_config_t *config, ac_error_t *err) {
    int rc = open_control(reader, err);
    if (rc == AC_OK && (config->timestamp_field || config->timestamp_function))
        rc = ac_fail(err, AC_E_UNSUPPORTED, 0, reader->dir.path, 0,
                     "its messages have their times; only for a Java queue can it be set where "
                     "the time of a message is");
    if (rc == AC_OK && config->name) rc = open_position(reader, config->name, err);
    return rc;
}

/* A queue of ours has a control block; only without one is a Java queue looked for. */
static int open_either(ac_reader_t *reader, const ac_reader_config_t *config, ac_error_t *err) {
    ac_error_t local;
    int rc = open_native(reader, config, err);
    if (rc != AC_E_NOT_FOUND || reader->half_made) return rc;
    int java = ac_cq4_reader_recognises(&reader->dir, &local);
    if (java == 1)
        java = ac_cq4_reader_open(reader, config, &local);
    else if (java == 0)
        return rc;
    reader->half_made = java == AC_E_NOT_FOUND && local.sys_errno == EAGAIN;
    if (java < 0 && err) *err = local;
    return java;
}

int ac_reader_open_queue(ac_reader_t *reader, const char *path, const ac_reader_config_t *config,
                         ac_error_t *err) {
    int rc = ac_reader_find(&reader->dir, path, config, err);
    if (rc == AC_OK) rc = open_either(reader, config, err);
    if (rc == AC_OK) {
        int waited = reader->pending;
        reader->pending = 0; /* seeking needs a usable reader */
        rc = go_to_start(reader, config, err);
        reader->pending = rc == AC_OK ? 0 : waited;
    }
    if (rc != AC_OK) ac_reader_detach(reader);
    return rc;
}

void ac_reader_begin_heartbeat(ac_reader_t *reader) {
    if (!reader->named || reader->java) return;
    reader->task.run = heartbeat;
    ac_housekeeper_nudge(&reader->task);
}

/* Everything in a queue that appears later is new to a reader that waited for it. */
static int wait_for_queue(ac_reader_t *reader, const char *path, const ac_reader_config_t *config,
                          ac_error_t *err) {
    int rc = config->name ? ac_reader_name_check(config->name, path, err) : AC_OK;
    if (rc != AC_OK) return rc;
    snprintf(reader->dir.path, sizeof reader->dir.path, "%s", path);
    reader->wanted = *config;
    reader->wanted.name = config->name ? reader->name : NULL;
    if (config->timestamp_field) {
        snprintf(reader->timestamp_field, sizeof reader->timestamp_field, "%s",
                 config->timestamp_field);
        reader->wanted.timestamp_field = reader->timestamp_field;
    }
    if (config->start == AC_START_LAST) reader->wanted.start = AC_START_FIRST;
    reader->pending = 1;
    return AC_OK;
}

void ac_reader_init(ac_reader_t *reader, const ac_reader_config_t *config) {
    reader->control = &ac_control_of_nobody;
    reader->offset = AC_SEGMENT_DATA;
    reader->end_segment = UINT64_MAX;
    reader->check = config->verify ? AC_CHECK_PAYLOAD : AC_CHECK_HEADER;
    reader->skip_corrupt = config->skip_corrupt;
    reader->pending = config->wait_for_queue;
}

int ac_reader_open(const char *path, const ac_reader_config_t *config, ac_reader_t **out,
                   ac_error_t *err) {
    ac_reader_t *reader = ac_os_alloc(sizeof *reader);
    if (!reader) return ac_fail_os(err, -ENOMEM, path, "cannot open");
    ac_reader_init(reader, config);
    int rc = ac_reader_open_queue(reader, path, config, err);
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
    ac_reader_begin_heartbeat(reader);
    *out = reader;
    return AC_OK;
}

void ac_reader_close(ac_reader_t *reader) {
    if (ac_load_relaxed_u32(&reader->state) != AC_STATE_OPEN) return;
    ac_housekeeper_remove(&reader->task);
    ac_store_relaxed_u32(&reader->state, AC_STATE_CLOSED);
    release_everything(reader);
}

void ac_reader_free(ac_reader_t *reader) {
    if (!reader) return;
    if (ac_load_relaxed_u32(&reader->state) == AC_STATE_FORKED)
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
    /* Seqs of other programs may start again: their seqs elsewhere say nothing about the next one. */
    if (reader->expected_seq == 0 && ac_load_relaxed_u64(&reader->control->queue_id) != 0)
        ac_reader_seq_at(reader, reader->segment, reader->offset, &out->next_seq, NULL);
    out->segment_size = reader->segment_size;
    out->queue_id = ac_load_relaxed_u64(&reader->control->queue_id);
    if (reader->java) ac_cq4_reader_stats(reader, out);
    out->parks = reader->parks;
    out->announced = reader->announced;
    out->attended = ac_reader_attended(reader);
}

const char *ac_reader_path(ac_reader_t *reader) {
    return reader->dir.path;
}
