/* Space for the next record: limits, rolling, populating pages ahead, capacity. */
#include "error.h"
#include "log.h"
#include "retention.h"
#include "segment.h"
#include "writer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How far the housekeeper keeps pages populated ahead of a busy writer. */
enum { POPULATE_AHEAD_MAX = 64 << 20 };

/* How much of the next segment an appender that waits for pages populates at a time. If a step of the
 * housekeeper takes this long, it is waiting for the disk, and another thread would wait for it, too. */
enum { HELP_STEP = 256 << 10, SLOW_STEP_NS = 8000000 };

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* "No limit" is often expressed as the largest number. */
static uint64_t add_up(uint64_t a, uint64_t b) {
    return a <= UINT64_MAX - b ? a + b : UINT64_MAX;
}

/* Where the configuration says that the segment is full. */
static uint64_t segment_end(const ac_writer_t *writer) {
    uint64_t by_roll = writer->config.roll_bytes
                           ? add_up(AC_SEGMENT_DATA, writer->config.roll_bytes)
                           : writer->segment_size;
    return least(by_roll, writer->segment_size);
}

void ac_writer_roll_after(ac_writer_t *writer, uint64_t first_timestamp_ns) {
    if (writer->config.roll_ns)
        writer->roll_limit_ns = add_up(first_timestamp_ns, writer->config.roll_ns);
}

void ac_writer_set_limits(ac_writer_t *writer) {
    const ac_writer_config_t *config = &writer->config;
    uint64_t limit = segment_end(writer);
    pthread_mutex_lock(&writer->mutex);
    uint64_t populated = writer->populated;
    /* Each time half of it is used up the distance doubles, so that an idle queue costs little memory and a
     * busy one never waits for pages. */
    uint64_t left = populated > writer->offset ? populated - writer->offset : 0;
    if (left <= writer->ahead / 2 && writer->ahead < POPULATE_AHEAD_MAX) writer->ahead *= 2;
    /* The next segment is created when half of this one is used; for a writer that was faster than that, at
     * once. */
    int half_way = writer->is_fast || writer->offset >= writer->segment_size / 2;
    if (half_way) writer->want_next = writer->next == NULL;
    if (!half_way) limit = least(limit, writer->segment_size / 2);
    pthread_mutex_unlock(&writer->mutex);
    /* Returns while half of the populated pages are still ahead. */
    if (populated < writer->segment_size) limit = least(limit, writer->offset + left / 2);
    if (config->flush_mode == AC_FLUSH_BATCH) {
        uint64_t unsynced = ac_writer_unsynced(writer);
        uint64_t left = config->batch_bytes > unsynced ? config->batch_bytes - unsynced : 0;
        limit = least(limit, writer->offset + left);
    }
    if (config->capacity_bytes) limit = least(limit, writer->capacity_end);
    int closed = ac_load_relaxed_u32(&writer->state) != AC_STATE_OPEN;
    if (closed || writer->reserved || config->flush_mode == AC_FLUSH_SYNC) limit = 0;
    ac_exchange_seq_cst_u64(&writer->limit, limit);
    if (ac_load_seq_cst_u32(&writer->poisoned) ||
        __atomic_load_n(&writer->gone, __ATOMIC_SEQ_CST) ||
        ac_load_seq_cst_u32(&writer->settings_changed))
        ac_store_relaxed_u64(&writer->limit, 0);
    writer->seq_limit = config->roll_messages
                            ? add_up(writer->segment_first_seq, config->roll_messages)
                            : UINT64_MAX;
    ac_writer_limit_time(writer);
}

/* With the mutex held. Small until it is clear that no caller syncs every few records: the first pages are
 * filled before there can have been a flush. */
static uint64_t piece_to_fill(ac_writer_t *writer) {
    if (ac_load_relaxed_u64(&writer->offset) - writer->synced >= AC_FEW_BYTES)
        writer->piece = AC_PIECE;
    return writer->piece;
}

/* Adds to `rc` which segment is concerned. */
static void note_segment(ac_writer_t *writer, ac_failures_t *failures, uint32_t segment, int rc,
                         const char *what) {
    char name[AC_NAME_MAX];
    ac_error_t err;
    if (rc >= 0) {
        ac_writer_note_success(writer, failures);
        return;
    }
    ac_segment_name(name, segment, ".q");
    ac_fail_os_in(&err, rc == -EFAULT ? -EIO : rc, writer->dir.path, name, what);
    ac_writer_note_error(writer, failures, &err);
}

static const char no_pages[] = "cannot bring pages into memory";
static const char not_locked[] = "cannot lock it into memory (raise RLIMIT_MEMLOCK)";

/* A flag says which thread is populating the pages of a segment, one for the active segment and one for the
 * next, and the flag moves along when the next becomes the active one: pages are filled with zeros, so no
 * other thread may store into them, or fill them, until that thread reports them as populated. With the
 * mutex held. */
static void end_step(ac_writer_t *writer, const ac_map_t *map, int rc, uint64_t to) {
    if (map == writer->map) {
        writer->populating = 0;
        if (rc >= 0) writer->populated = to;
    } else if (map == writer->next) {
        writer->populating_next = 0;
        if (rc >= 0) writer->next_populated = to;
    }
    pthread_cond_broadcast(&writer->stepped);
}

/* Fills [from, to) of a segment whose flag is up. Called with the mutex held, which it releases in between. */
static int populate_step(ac_writer_t *writer, ac_map_t *map, uint64_t from, uint64_t to) {
    uint64_t piece = piece_to_fill(writer);
    ac_map_retain(map);
    pthread_mutex_unlock(&writer->mutex);
    uint64_t started_ns = ac_os_monotonic_ns(), cpu_ns = ac_os_thread_cpu_ns();
    int rc = ac_segment_populate(map, from, to, piece);
    uint64_t step_ns = ac_os_monotonic_ns() - started_ns;
    cpu_ns = ac_os_thread_cpu_ns() - cpu_ns;
    pthread_mutex_lock(&writer->mutex);
    writer->step_ns = step_ns;
    ac_writer_note_fill(writer, to - from, cpu_ns);
    end_step(writer, map, rc, to);
    int failed_before = writer->populate_errors.since_success > 0;
    if (rc < 0 || failed_before) {
        pthread_mutex_unlock(&writer->mutex);
        note_segment(writer, &writer->populate_errors, map->segment, rc, no_pages);
        pthread_mutex_lock(&writer->mutex);
    }
    ac_map_release(map);
    return rc < 0 ? rc : 1;
}

/* Populates some pages of the next segment, up to `target`: 1 = it has done something. With the mutex held. */
static int populate_next(ac_writer_t *writer, uint64_t target, uint64_t step) {
    ac_map_t *next = writer->next;
    if (!next || writer->populating_next) return 0;
    uint64_t from = writer->next_populated;
    if (from >= least(target, next->size)) return 0;
    writer->populating_next = 1;
    return populate_step(writer, next, from, least((from / step + 1) * step, next->size));
}

/* The appender must wait for pages that the housekeeper is populating. Fresh pages cost it more than the
 * records in them, so a writer that never pauses would run at the speed of one populating thread. The
 * appender's own thread is free until then: it populates some of the next segment, which is another file,
 * because the kernel lets one thread write to a file at a time. Called with the mutex held; 1 = it has done
 * something. */
static int help(ac_writer_t *writer) {
    if (!writer->next) {
        /* A segment takes its whole size on disk: none for the first records of a queue that may stay
         * small. */
        writer->want_next |= writer->offset >= 4 * AC_POPULATE_STEP;
        return 0;
    }
    return writer->step_ns < SLOW_STEP_NS && populate_next(writer, UINT64_MAX, HELP_STEP) == 1;
}

/* Populates the active segment up to `need` (relative to the start, or ahead of the writer when 0). One
 * thread at a time, because it fills with zeros: the second one must see what is done already. A thread
 * that waits for pages continues as soon as they are there, however much more the other has to do. */
static int populate(ac_writer_t *writer, uint64_t need) {
    int rc, waited = 0;
    pthread_mutex_lock(&writer->mutex);
    for (;; waited = 1) {
        ac_map_t *map = writer->map;
        uint64_t from = writer->populated;
        uint64_t target = need ? need : ac_load_relaxed_u64(&writer->offset) + writer->ahead;
        if (from >= least(target, map->size)) {
            rc = waited;
            break;
        }
        if (!writer->populating) {
            writer->populating = 1;
            rc = populate_step(writer, map, from,
                               least(ac_populate_step_end(need ? need : from), map->size));
            break;
        }
        if (!need || !help(writer)) pthread_cond_wait(&writer->stepped, &writer->mutex);
    }
    pthread_mutex_unlock(&writer->mutex);
    return rc;
}

/* Once the active segment has its pages: those that the appender will need first in the next one. With only
 * a step of it populated, an appender that rolled beside a busy disk caught up with the housekeeper and
 * waited for it. */
static int populate_beyond(ac_writer_t *writer) {
    pthread_mutex_lock(&writer->mutex);
    uint64_t target = least(writer->ahead, writer->segment_size / 2);
    int rc = populate_next(writer, target, AC_POPULATE_STEP);
    pthread_mutex_unlock(&writer->mutex);
    return rc;
}

int ac_writer_populate_ahead(ac_writer_t *writer) {
    int rc = populate(writer, 0);
    return rc == 0 ? populate_beyond(writer) : rc;
}

/* Pages for `size` more bytes. A failure to populate is an error of the disk, reported before a store could
 * turn into a signal. */
static int populate_now(ac_writer_t *writer, uint64_t size, ac_error_t *err) {
    int rc = populate(writer, writer->offset + size);
    ac_slow_part(&writer->slow, rc == 0 ? AC_SLOW_UNKNOWN : AC_SLOW_PAGE_FAULT);
    if (rc >= 0) return AC_OK;
    return ac_fail_os_in(err, rc == -EFAULT ? -EIO : rc, writer->dir.path, "(active segment)",
                         no_pages);
}

/* With pages for its first records. A failure to populate these does not prevent its use: an appender that
 * needs them tries again, and reports it. */
static int create_next(ac_writer_t *writer, uint32_t id, uint64_t piece, ac_map_t **next,
                       uint64_t *populated, ac_error_t *err) {
    ac_error_t why;
    *populated = AC_SEGMENT_DATA;
    int rc = ac_segment_create(&writer->dir, writer->dir_fd, id, writer->segment_size, next, &why);
    if (rc != AC_OK) {
        ac_writer_note_error(writer, &writer->prealloc_errors, &why);
        if (err) *err = why;
        return rc;
    }
    ac_writer_note_success(writer, &writer->prealloc_errors);
    uint64_t to = least(AC_POPULATE_STEP, writer->segment_size);
    int pages = ac_segment_populate(*next, AC_SEGMENT_DATA, to, piece);
    if (pages >= 0) *populated = to;
    note_segment(writer, &writer->populate_errors, id, pages, no_pages);
    int locked = writer->config.memlock ? ac_os_memlock((*next)->base, (*next)->size) : 0;
    note_segment(writer, &writer->memlock_errors, id, locked, not_locked);
    return AC_OK;
}

int ac_writer_prepare_next(ac_writer_t *writer, ac_error_t *err) {
    ac_map_t *next = NULL;
    uint64_t populated;
    pthread_mutex_lock(&writer->mutex);
    /* The appender and the housekeeper may both find it missing, but only one may create the file. */
    while (writer->preparing)
        pthread_cond_wait(&writer->prepared, &writer->mutex);
    uint32_t id = writer->map->segment + 1;
    int needed = writer->next == NULL;
    uint64_t piece = piece_to_fill(writer);
    writer->preparing = needed;
    pthread_mutex_unlock(&writer->mutex);
    if (!needed) return AC_OK;
    int rc = create_next(writer, id, piece, &next, &populated, err);
    pthread_mutex_lock(&writer->mutex);
    writer->next = next;
    writer->next_populated = populated;
    writer->preparing = 0;
    writer->want_next = 0;
    pthread_cond_broadcast(&writer->prepared);
    pthread_mutex_unlock(&writer->mutex);
    return rc;
}

/* Waits for the housekeeper if it is creating the segment, otherwise creates it here. */
static int obtain_next(ac_writer_t *writer, ac_error_t *err) {
    pthread_mutex_lock(&writer->mutex);
    int ready = writer->next != NULL;
    pthread_mutex_unlock(&writer->mutex);
    if (ready) return AC_OK;
    ac_count_u64(&writer->rolls_unprepared, 1);
    writer->is_fast = 1;
    return ac_writer_prepare_next(writer, err);
}

void ac_writer_enter(ac_writer_t *writer, ac_map_t *map, uint64_t offset) {
    writer->base = map->base;
    writer->seed = ac_crc32c_seed(map->segment, writer->epoch);
    writer->segment_first_seq = writer->seq;
    writer->roll_limit_ns = UINT64_MAX;
    writer->last_record = 0;
    /* It refers to a place in the old segment. */
    ac_store_release_u64(&writer->control->last_record, 0);
    writer->soiled = 0;
    ac_store_release_u64(&writer->offset, offset);
    ac_control_set_position(writer->control, map->segment, offset);
}

static uint64_t behind_last_record(const ac_writer_t *writer) {
    if (writer->last_record < AC_SEGMENT_DATA) return AC_SEGMENT_DATA;
    uint32_t commit_len = ac_record_load_commit(writer->base + writer->last_record);
    return commit_len ? writer->last_record + ac_record_size(commit_len - 1) : AC_SEGMENT_DATA;
}

/* Leaves the active segment: the next one exists before this one is marked as finished. */
static int roll(ac_writer_t *writer, ac_error_t *err) {
    ac_sealing_t *sealing = ac_os_alloc(sizeof *sealing);
    if (!sealing) return ac_fail_os(err, -ENOMEM, writer->dir.path, "cannot roll");
    int rc = obtain_next(writer, err);
    if (rc != AC_OK) {
        free(sealing);
        return rc;
    }
    pthread_mutex_lock(&writer->mutex);
    ac_map_t *old = writer->map;
    sealing->map = old;
    sealing->end = writer->offset;
    sealing->soiled = writer->soiled;
    sealing->sealed_end = behind_last_record(writer);
    sealing->synced = writer->synced;
    sealing->next_seq = writer->seq;
    uint64_t now_ns = ac_os_monotonic_ns();
    sealing->filled_ns = now_ns - writer->entered_ns;
    writer->entered_ns = now_ns;
    /* What the capacity still allows starts over after the header. */
    uint64_t left =
        writer->capacity_end > writer->offset ? writer->capacity_end - writer->offset : 0;
    writer->capacity_end = add_up(AC_SEGMENT_DATA, left);
    *writer->sealing_tail = sealing;
    writer->sealing_tail = &sealing->next;
    writer->map = writer->next;
    writer->populated = writer->next_populated;
    writer->populating = writer->populating_next;
    writer->populating_next = 0;
    writer->next = NULL;
    writer->want_next = 0;
    writer->synced = AC_SEGMENT_DATA;
    /* Before any reader can see the new segment. If the writer were killed in between, it would leave an
     * empty segment after one that is not finished: recovery removes it, and a reader that went there for
     * the end would stay in the removed file. And under the mutex: a flush that finds the new segment may
     * record it as durable, and recovery starts there, so the way to it has to be open. */
    ac_segment_seal(old, sealing->sealed_end);
    ac_writer_enter(writer, writer->map, AC_SEGMENT_DATA); /* map and offset change together */
    /* It is that of the old segment. If there will be no room in the new one, no other is set. */
    ac_store_relaxed_u64(&writer->limit, 0);
    pthread_mutex_unlock(&writer->mutex);
    ac_count_u64(&writer->rolls, 1);
    ac_log(AC_LOG_DEBUG, writer->dir.path, "rolled to segment %u", (unsigned)writer->map->segment);
    if (writer->config.inline_housekeeping == 1) return ac_writer_seal_pending(writer, err);
    if (!writer->config.inline_housekeeping) ac_housekeeper_nudge(&writer->disk);
    return AC_OK;
}

/* Names the reader in the way. */
typedef struct laggard {
    char name[AC_READER_NAME_MAX + 1];
    uint64_t lag;
} laggard_t;

static int room_in_capacity(ac_writer_t *writer, uint64_t size, laggard_t *laggard,
                            ac_error_t *err) {
    ac_slowest_t slowest;
    uint64_t segment = writer->map->segment, end = writer->offset + size;
    if (end <= writer->capacity_end) return 1;
    int rc = ac_slowest_reader(&writer->dir, writer->dir_fd, &writer->config, &writer->liveness,
                               writer->segment_size, segment, writer->offset, &slowest, err);
    if (rc != AC_OK) return rc;
    uint64_t lag =
        slowest.live ? ac_segment_distance(&writer->dir, writer->dir_fd, writer->segment_size,
                                           slowest.segment, slowest.offset, segment, writer->offset)
                     : 0;
    uint64_t capacity = writer->config.capacity_bytes;
    writer->capacity_end = lag < capacity ? add_up(writer->offset, capacity - lag) : 0;
    laggard->lag = lag;
    memcpy(laggard->name, slowest.name, sizeof laggard->name);
    return end <= writer->capacity_end;
}

typedef struct size_text {
    char text[24];
} size_text_t;

static size_text_t readable(uint64_t bytes) {
    static const char units[][4] = {"KiB", "MiB", "GiB", "TiB"};
    size_text_t out;
    double value = (double)bytes / 1024;
    size_t unit = 0;
    for (; value >= 1024 && unit + 1 < sizeof units / sizeof *units; unit++)
        value /= 1024;
    if (bytes < 1024)
        snprintf(out.text, sizeof out.text, "%u bytes", (unsigned)bytes);
    else
        snprintf(out.text, sizeof out.text, "%.1f %s", value, units[unit]);
    return out;
}

static int fail_full(ac_writer_t *writer, const laggard_t *laggard, uint64_t size, int code,
                     ac_error_t *err) {
    char who[128];
    if (!err) return code;
    ac_position_describe(&writer->dir, writer->dir_fd, laggard->name, who, sizeof who);
    return ac_fail(err, code, 0, writer->dir.path, 0,
                   "reader '%s' (%s) lags by %s; the capacity is %s, and the append needs %s",
                   laggard->name, who, readable(laggard->lag).text,
                   readable(writer->config.capacity_bytes).text, readable(size).text);
}

/* SETTINGS_CHANGED: meanwhile, so the capacity may be another one. */
enum { SETTINGS_CHANGED = 1 };

static int wait_for_capacity(ac_writer_t *writer, uint64_t size, ac_error_t *err) {
    uint64_t started = ac_os_monotonic_ns();
    uint64_t pause = 50000;
    laggard_t laggard = {.lag = 0};
    for (;;) {
        int room = room_in_capacity(writer, size, &laggard, err);
        if (room != 0) {
            ac_store_relaxed_u64(&writer->refused_bytes, 0);
            return room < 0 ? room : AC_OK;
        }
        ac_store_relaxed_u64(&writer->refused_bytes, size);
        if (writer->config.capacity_policy == AC_CAPACITY_FAIL)
            return fail_full(writer, &laggard, size, AC_E_FULL, err);
        uint64_t waited = ac_os_monotonic_ns() - started;
        if (writer->config.capacity_timeout_ns && waited >= writer->config.capacity_timeout_ns)
            return fail_full(writer, &laggard, size, AC_E_TIMEOUT, err);
        if (ac_load_relaxed_u32(&writer->closing))
            return ac_fail(err, AC_E_CLOSED, 0, writer->dir.path, 0,
                           "the writer was closed before there was room");
        ac_count_u64(&writer->capacity_waits, 1);
        ac_os_sleep_ns(pause);
        if (writer->interrupted && writer->interrupted())
            return ac_fail(err, AC_E_INTERRUPTED, 0, writer->dir.path, 0, "interrupted");
        /* It may have closed the writer, or forked. */
        if (ac_load_relaxed_u32(&writer->state) != AC_STATE_OPEN)
            return ac_writer_usable(writer, err);
        if (pause < 2000000) pause *= 2;
        if (ac_load_relaxed_u32(&writer->settings_changed)) return SETTINGS_CHANGED;
    }
}

static int must_roll(const ac_writer_t *writer, uint64_t size, uint64_t timestamp_ns) {
    if (writer->offset + size > writer->segment_size) return 1;
    if (writer->offset == AC_SEGMENT_DATA) return 0; /* an empty segment has nothing to roll for */
    return writer->offset + size > segment_end(writer) || writer->seq >= writer->seq_limit ||
           timestamp_ns >= writer->roll_limit_ns;
}

static int may_append(ac_writer_t *writer, uint64_t size, uint64_t timestamp_ns, ac_error_t *err) {
    const char *path = writer->dir.path;
    int rc = ac_writer_usable(writer, err);
    if (rc != AC_OK) return rc;
    if (writer->reserved)
        return ac_fail(err, AC_E_RESERVED, 0, path, 0, "a reservation is open; finish it first");
    int poisoned = (int)ac_load_acquire_u32(&writer->poisoned);
    if (poisoned)
        return ac_fail(err, AC_E_POISONED, poisoned, path, 0,
                       "an earlier sync failed; close the writer and open it again");
    if (size > writer->segment_size - AC_SEGMENT_DATA)
        return ac_fail(err, AC_E_TOO_LARGE, 0, path, 0,
                       "needs %llu bytes, a segment holds %llu; use a larger segment_size",
                       (unsigned long long)size,
                       (unsigned long long)(writer->segment_size - AC_SEGMENT_DATA));
    if (writer->config.capacity_bytes && size > writer->config.capacity_bytes)
        return ac_fail(err, AC_E_TOO_LARGE, 0, path, 0,
                       "needs %llu bytes, the capacity is %llu; no reader could make room",
                       (unsigned long long)size, (unsigned long long)writer->config.capacity_bytes);
    if (timestamp_ns < writer->last_timestamp_ns)
        return ac_fail(
            err, AC_E_TIMESTAMP, 0, path, 0, "%llu is before the last record or heartbeat, %llu",
            (unsigned long long)timestamp_ns, (unsigned long long)writer->last_timestamp_ns);
    if (ac_map_is_cut(writer->map)) return ac_writer_fail_cut(writer, err);
    if (ac_map_is_cut(writer->control_map))
        return ac_fail(err, AC_E_GONE, 0, path, 0, "control.meta was cut by another program");
    return AC_OK;
}

/* Checks that the message may be appended at all, and that no reader is in the way. */
static int await_turn(ac_writer_t *writer, uint64_t size, uint64_t timestamp_ns, ac_error_t *err) {
    int rc = SETTINGS_CHANGED;
    while (rc == SETTINGS_CHANGED) {
        if (ac_load_relaxed_u32(&writer->settings_changed)) ac_writer_adopt_settings(writer);
        rc = may_append(writer, size, timestamp_ns, err);
        if (rc != AC_OK || !writer->config.capacity_bytes) return rc;
        rc = wait_for_capacity(writer, size, err);
        ac_slow_part(&writer->slow, AC_SLOW_CAPACITY);
    }
    return rc;
}

/* Readers follow by id, so the space found here must be in the segment that `timestamp_ns` belongs to. */
static int make_room(ac_writer_t *writer, uint64_t size, uint64_t timestamp_ns, ac_error_t *err) {
    int rc = await_turn(writer, size, timestamp_ns, err);
    if (rc == AC_OK && must_roll(writer, size, timestamp_ns)) {
        rc = roll(writer, err);
        ac_slow_part(&writer->slow, AC_SLOW_ROLL);
    }
    if (rc == AC_OK && writer->config.flush_mode == AC_FLUSH_BATCH &&
        ac_writer_unsynced(writer) + size > writer->config.batch_bytes) {
        int64_t flushed = ac_writer_sync_data(writer, err);
        if (flushed < 0) rc = (int)flushed;
        ac_slow_part(&writer->slow, AC_SLOW_SYNC);
    }
    if (rc == AC_OK) rc = populate_now(writer, size, err);
    if (rc != AC_OK) return rc;
    if (writer->offset == AC_SEGMENT_DATA) ac_writer_roll_after(writer, timestamp_ns);
    ac_writer_set_limits(writer);
    pthread_mutex_lock(&writer->mutex);
    int work = writer->want_next || writer->populated < writer->segment_size;
    pthread_mutex_unlock(&writer->mutex);
    if (work && !writer->config.inline_housekeeping) ac_housekeeper_nudge(&writer->pages);
    return AC_OK;
}

int ac_writer_make_room(ac_writer_t *writer, uint64_t size, uint64_t timestamp_ns,
                        ac_error_t *err) {
    ac_slow_begin(&writer->slow);
    int rc = make_room(writer, size, timestamp_ns, err);
    ac_writer_note_slow(writer, writer->seq);
    return rc;
}
