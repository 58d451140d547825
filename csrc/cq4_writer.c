#include "cq4_writer.h"

#include "cq4_grow.h"
#include "cq4_temporary.h"
#include "cq4_writer_state.h"
#include "error.h"
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAIT_NS 1000000u /* between two checks of a queue that is being created */
enum { LOOK_APPENDS = 1 << 16 };

/* ---- whether all is still there ---- */

int ac_cq4_writer_give_up(ac_cq4_writer_t *writer, const char *name, const char *why,
                          ac_error_t *err) {
    ac_fail(&writer->gone, AC_E_GONE, ENOENT, writer->queue.dir.path, 0,
            "%s%s; what was appended since is not in the queue", name, why);
    writer->is_gone = 1;
    writer->is_fast = 0;
    if (err) *err = writer->gone;
    return AC_E_GONE;
}

int ac_cq4_writer_check_file(ac_cq4_writer_t *writer, ac_error_t *err) {
    const ac_map_t *map = writer->cycle.map;
    struct stat info;
    if (!map || ac_os_stat(map->fd, &info) < 0) return AC_OK;
    if (info.st_nlink == 0)
        return ac_cq4_writer_give_up(writer, writer->cycle.name, " was removed", err);
    if ((uint64_t)info.st_size < map->size)
        return ac_cq4_writer_give_up(writer, writer->cycle.name, " was cut", err);
    return AC_OK;
}

/* A mapping outlives the name of its file: without a check nobody would notice. */
int ac_cq4_writer_check_files(ac_cq4_writer_t *writer, ac_error_t *err) {
    struct stat info;
    writer->look_appends = writer->stats.messages + LOOK_APPENDS;
    int dir_fd = ac_directory_open(&writer->queue.dir, err);
    if (dir_fd == AC_E_GONE)
        return ac_cq4_writer_give_up(writer, "", "the queue's directory was removed", err);
    if (dir_fd < 0) return dir_fd;
    int rc = ac_os_stat_at(dir_fd, writer->table.name, &info);
    ac_os_close(dir_fd);
    if (rc == -ENOENT ||
        (rc == 0 && (info.st_dev != writer->table.device || info.st_ino != writer->table.inode)))
        return ac_cq4_writer_give_up(writer, writer->table.name, " was removed or replaced", err);
    if (ac_map_is_cut(writer->table.map) ||
        (rc == 0 && (uint64_t)info.st_size < writer->table.map->size))
        return ac_cq4_writer_give_up(writer, writer->table.name, " was cut", err);
    /* The file of a finished cycle may be removed: the next append goes to another file. */
    if (ac_cq4_writer_now_ns(writer) >= writer->end_ns) return AC_OK;
    return ac_cq4_writer_check_file(writer, err);
}

static int check_open(const ac_cq4_writer_t *writer, ac_error_t *err) {
    const char *path = writer->queue.dir.path;
    if (writer->is_closed) return ac_fail(err, AC_E_CLOSED, 0, path, 0, "the writer is closed");
    if (writer->is_gone) {
        if (err) *err = writer->gone;
        return AC_E_GONE;
    }
    if (writer->poisoned)
        return ac_fail(err, AC_E_POISONED, 0, path, 0,
                       "an earlier sync failed: what is on disk is not known");
    return AC_OK;
}

static int enter(ac_cq4_writer_t *writer, ac_error_t *err) {
    if (writer->is_closed)
        return ac_fail(err, AC_E_CLOSED, 0, writer->queue.dir.path, 0, "the writer is closed");
    int rc = ac_cq4_mutex_lock(&writer->lock, err);
    if (rc != AC_OK) return rc;
    rc = check_open(writer, err);
    if (rc != AC_OK) ac_cq4_mutex_unlock(writer->lock.mutex);
    return rc;
}

/* ---- on disk ---- */

/* Of a cycle that is no longer open. */
static int sync_cycle(ac_cq4_writer_t *writer, int dir_fd, uint32_t number, ac_error_t *err) {
    char name[AC_CQ4_NAME_MAX];
    struct stat info;
    if (ac_cq4_roll_file_name(&writer->queue.roll, number, name) != AC_OK) return AC_OK;
    int fd = ac_file_open(&writer->queue.dir, dir_fd, name, O_RDONLY, &info, err);
    if (fd == AC_E_NOT_FOUND) return AC_OK; /* removed since */
    if (fd < 0) return fd;
    int rc = ac_os_sync(fd);
    ac_os_close(fd);
    return rc < 0 ? ac_fail_os_in(err, rc, writer->queue.dir.path, name, "cannot sync") : AC_OK;
}

/* What a flush must sync. Recorded with the mutex held, and synced without it: that takes milliseconds, in
 * which others append. */
typedef struct syncing {
    ac_map_t *map;   /* of the open file; NULL: there is none yet */
    uint32_t number; /* of its cycle */
    char name[AC_CQ4_NAME_MAX];
    ac_cq4_unsynced_t what;
} syncing_t;

static syncing_t begin_sync(ac_cq4_writer_t *writer) {
    syncing_t syncing = {
        .map = writer->cycle.map, .number = writer->cycle.number, .what = writer->unsynced};
    memcpy(syncing.name, writer->cycle.name, sizeof syncing.name);
    if (syncing.map) ac_map_retain(syncing.map);
    return syncing;
}

/* The files of the cycles that were left since the last time, and the names of new ones. */
static int sync_others(ac_cq4_writer_t *writer, const syncing_t *syncing, ac_error_t *err) {
    const ac_cq4_unsynced_t *what = &syncing->what;
    uint32_t *cycles;
    size_t count;
    if (what->first == what->last && !what->is_dir) return AC_OK;
    int dir_fd = ac_directory_open(&writer->queue.dir, err);
    if (dir_fd < 0) return dir_fd;
    int rc = ac_cq4_queue_cycles(&writer->queue, &cycles, &count, err);
    for (size_t i = 0; rc == AC_OK && i < count; i++)
        if (cycles[i] >= what->first && cycles[i] <= what->last && cycles[i] != syncing->number)
            rc = sync_cycle(writer, dir_fd, cycles[i], err);
    free(cycles);
    if (rc == AC_OK && what->is_dir) {
        rc = ac_os_sync_dir(dir_fd);
        if (rc < 0) rc = ac_fail_os(err, rc, writer->queue.dir.path, "cannot sync the directory");
    }
    ac_os_close(dir_fd);
    return rc;
}

static int run_sync(ac_cq4_writer_t *writer, const syncing_t *syncing, ac_error_t *err) {
    if (!syncing->map) return AC_OK;
    int rc = sync_others(writer, syncing, err);
    if (rc != AC_OK) return rc;
    rc = ac_os_sync(syncing->map->fd);
    return rc < 0 ? ac_fail_os_in(err, rc, writer->queue.dir.path, syncing->name, "cannot sync")
                  : AC_OK;
}

/* A failed sync is not tried again: the system may have dropped what it could not write. After a roll
 * meanwhile, the next sync does more than necessary. */
static void end_sync(ac_cq4_writer_t *writer, syncing_t *syncing, int rc) {
    ac_cq4_unsynced_t *left = &writer->unsynced;
    if (rc != AC_OK) {
        writer->poisoned = 1;
        writer->is_fast = 0;
    } else if (left->entered == syncing->what.entered) {
        left->first = left->last = syncing->number;
        left->is_dir = 0;
    }
    ac_map_release(syncing->map);
}

/* With the mutex held; it is unlocked in between. */
static int sync_all(ac_cq4_writer_t *writer, ac_error_t *err) {
    syncing_t syncing = begin_sync(writer);
    ac_cq4_mutex_unlock(writer->lock.mutex);
    int rc = run_sync(writer, &syncing, err);
    ac_cq4_mutex_relock(writer->lock.mutex);
    end_sync(writer, &syncing, rc);
    return rc;
}

int ac_cq4_writer_flush(ac_cq4_writer_t *writer, ac_error_t *err) {
    int rc = enter(writer, err);
    if (rc != AC_OK) return rc;
    rc = ac_cq4_writer_check_files(writer, err);
    if (rc == AC_OK) rc = sync_all(writer, err);
    ac_cq4_mutex_unlock(writer->lock.mutex);
    if (rc != AC_OK) return rc;
    const ac_map_t *map = writer->table.map;
    rc = ac_os_map_sync(map->base, -1, 0, map->size);
    return rc < 0
               ? ac_fail_os_in(err, rc, writer->queue.dir.path, writer->table.name, "cannot sync")
               : AC_OK;
}

/* ---- the public append ---- */

static int check_length(const ac_cq4_writer_t *writer, size_t length, ac_error_t *err) {
    if (length <= AC_CQ4_PAYLOAD_MAX) return AC_OK;
    return ac_fail(err, AC_E_TOO_LARGE, 0, writer->queue.dir.path, 0,
                   "%zu bytes; Java can read no more than %u", length, AC_CQ4_PAYLOAD_MAX);
}

int64_t ac_cq4_writer_append(ac_cq4_writer_t *writer, const void *payload, size_t length,
                             ac_error_t *err) {
    ac_error_t unused;
    if (!err) err = &unused;
    int64_t index = check_length(writer, length, err);
    if (index == AC_OK) index = enter(writer, err);
    if (index != AC_OK) return index;
    index = ac_cq4_writer_append_with_mutex(writer, payload, length, err);
    int rc = AC_OK;
    if (index >= 0) ac_cq4_wake_signal(&writer->wake);
    if (index >= 0 && writer->config.sync) rc = sync_all(writer, err);
    ac_cq4_mutex_unlock(writer->lock.mutex);
    if (rc == AC_OK) return index;
    err->code = AC_E_NOT_DURABLE;
    err->seq = (uint64_t)index;
    return AC_E_NOT_DURABLE;
}

int64_t ac_cq4_writer_append_run(ac_cq4_writer_t *writer, const ac_slice_t *items, size_t count,
                                 ac_cq4_run_t *run, ac_error_t *err) {
    ac_error_t unused;
    if (!err) err = &unused;
    int64_t index = check_length(writer, items->length, err);
    if (index == AC_OK) index = enter(writer, err);
    if (index != AC_OK) return index;
    index = ac_cq4_writer_append_run_with_mutex(writer, items, count, run, err);
    if (index >= 0) ac_cq4_wake_signal(&writer->wake);
    ac_cq4_mutex_unlock(writer->lock.mutex);
    return index;
}

int64_t ac_cq4_writer_try_append(ac_cq4_writer_t *writer, const void *payload, size_t length) {
    ac_cq4_lock_t *lock = &writer->lock;
    int64_t rc = AC_E_SLOW;
    if (AC_UNLIKELY(length - 1 >= AC_CQ4_PAYLOAD_MAX || ac_cq4_lock_is_forked(lock)))
        return AC_E_SLOW;
    if (AC_UNLIKELY(!ac_cq4_mutex_try_lock(lock->mutex))) return AC_E_SLOW;
    if (AC_LIKELY(writer->is_fast && writer->stats.messages < writer->look_appends &&
                  ac_cq4_turns_is_free(&writer->turns, ac_cq4_writer_has_foreign(writer)) &&
                  !ac_cq4_lock_is_append_locked(lock) && ac_cq4_lock_try(lock))) {
        rc = ac_cq4_writer_append_locked(writer, payload, length);
        ac_cq4_lock_release(lock);
        if (AC_LIKELY(rc >= 0)) ac_cq4_wake_signal(&writer->wake);
    }
    ac_cq4_mutex_unlock(lock->mutex);
    return AC_LIKELY(rc >= 0) ? rc : AC_E_SLOW;
}

int ac_cq4_writer_may_wait(ac_cq4_writer_t *writer) {
    ac_cq4_lock_t *lock = &writer->lock;
    if (ac_cq4_lock_is_forked(lock)) return 0; /* which is refused */
    if (!ac_cq4_mutex_try_lock(lock->mutex)) return 1;
    int is_quick = writer->is_fast && ac_cq4_lock_is_free(lock);
    if (is_quick) {
        uint64_t now = ac_cq4_writer_now_ns(writer);
        is_quick = now >= writer->begin_ns && now < writer->end_ns;
    }
    ac_cq4_mutex_unlock(lock->mutex);
    return !is_quick;
}

/* ---- opening ---- */

void ac_cq4_writer_defaults(ac_cq4_writer_config_t *config) {
    memset(config, 0, sizeof *config);
    config->mode = 0600;
    config->lock_timeout_ns = AC_CQ4_LOCK_TIMEOUT_NS;
}

static int wanted_roll(const char *path, const ac_cq4_writer_config_t *config, ac_cq4_roll_t *out,
                       ac_error_t *err) {
    const char *name = config->roll_cycle ? config->roll_cycle : "FAST_DAILY";
    const ac_cq4_known_roll_t *known = ac_cq4_roll_by_name(name);
    if (!known)
        return ac_fail(err, AC_E_ARGUMENT, 0, path, 0,
                       "there is no roll cycle '%.40s', or it is not supported", name);
    *out = (ac_cq4_roll_t){.length_ms = known->length_ms, .epoch_ms = config->epoch_ms};
    snprintf(out->format, sizeof out->format, "%s", known->format);
    const char *problem = ac_cq4_roll_problem(out);
    return problem ? ac_fail(err, AC_E_ARGUMENT, 0, path, 0, "%s", problem) : AC_OK;
}

/* A queue of our own format, or anything else that is not meant to become a Java queue. */
static int refuse_other(void *context, const char *name) {
    (void)context;
    return strcmp(name, "control.meta") == 0;
}

static int create_queue(const char *path, const ac_cq4_writer_config_t *config, ac_error_t *err) {
    ac_cq4_roll_t roll;
    ac_directory_t dir;
    int rc = wanted_roll(path, config, &roll, err);
    if (rc != AC_OK) return rc;
    rc = ac_directory_init(&dir, path, config->mode, 1, err);
    if (rc != AC_OK) return rc;
    int dir_fd = ac_directory_open(&dir, err);
    if (dir_fd < 0) return dir_fd;
    rc = ac_os_list(dir_fd, refuse_other, NULL);
    if (rc == 1)
        rc = ac_fail(err, AC_E_NOT_A_QUEUE, 0, path, 0,
                     "is a queue already, of another format than Java's");
    else
        rc = rc < 0 ? ac_fail_os(err, rc, path, "cannot list")
                    : ac_cq4_table_create(&dir, dir_fd, &roll, err);
    ac_os_close(dir_fd);
    return rc;
}

/* Opens the queue; waits for one that another process is creating. */
static int open_queue(const char *path, const ac_cq4_writer_config_t *config, ac_cq4_queue_t *out,
                      ac_error_t *err) {
    uint64_t deadline_ns = ac_os_monotonic_ns() + config->lock_timeout_ns;
    for (;;) {
        int rc = ac_cq4_is_queue(path);
        if (rc < 0) return ac_fail_os(err, rc, path, "cannot list");
        if (rc == 0) rc = create_queue(path, config, err);
        if (rc < 0) return rc;
        rc = ac_cq4_queue_open(path, out, err);
        if (rc != AC_E_NOT_FOUND || err->sys_errno != EAGAIN || ac_os_monotonic_ns() >= deadline_ns)
            return rc;
        ac_os_sleep_ns(WAIT_NS);
    }
}

/* Days in another time zone have 23 or 25 hours at times. */
static int has_utc_days(const ac_cq4_table_t *table) {
    static const char *const utc[] = {"", "UTC", "Z", "GMT", "Etc/UTC"};
    for (size_t i = 0; i < sizeof utc / sizeof *utc; i++)
        if (strcmp(table->roll_time_zone, utc[i]) == 0) return 1;
    return 0;
}

static int check_settings(const ac_cq4_writer_t *writer, ac_error_t *err) {
    const ac_cq4_roll_t *roll = &writer->queue.roll;
    const char *path = writer->queue.dir.path, *name = writer->config.roll_cycle;
    const ac_cq4_known_roll_t *is = ac_cq4_roll_by_format(roll->format);
    if (writer->queue.dialect != AC_CQ4_DIALECT_V5)
        return ac_fail(err, AC_E_UNSUPPORTED, 0, path, 0,
                       "was written by a version before 5.16.9: it can be read, but not appended "
                       "to");
    if (!has_utc_days(&writer->queue.table))
        return ac_fail(
            err, AC_E_UNSUPPORTED, 0, path, 0,
            "rolls by the time of %s, which only Chronicle Queue Enterprise does: it can "
            "be read, but not appended to",
            writer->queue.table.roll_time_zone);
    if (name && (!is || strcmp(is->name, name) != 0))
        return ac_fail(err, AC_E_ARGUMENT, 0, path, 0, "the queue's roll cycle is %s, not %.40s",
                       is ? is->name : roll->format, name);
    if (writer->config.epoch_given && writer->config.epoch_ms != roll->epoch_ms)
        return ac_fail(err, AC_E_ARGUMENT, 0, path, 0, "the queue's epoch is %lld ms, not %lld",
                       (long long)roll->epoch_ms, (long long)writer->config.epoch_ms);
    if (!roll->shift)
        return ac_fail(err, AC_E_UNSUPPORTED, 0, path, 0,
                       "its roll cycle is not one of Java's own, and it has no data file yet that "
                       "would tell its index");
    return AC_OK;
}

/* A queue has all of them, unless its creator was killed. */
static int find_keys(ac_cq4_writer_t *writer, ac_error_t *err) {
    const ac_directory_t *dir = &writer->queue.dir;
    const ac_cq4_table_t *table = &writer->table;
    uint64_t *lock, wait_ns = writer->config.lock_timeout_ns;
    int rc = ac_cq4_table_add(table, dir, AC_CQ4_KEY_HIGHEST, AC_CQ4_UNLOCKED, wait_ns,
                              &writer->highest, err);
    if (rc == AC_OK)
        rc = ac_cq4_table_add(table, dir, AC_CQ4_KEY_LOWEST, INT32_MAX, wait_ns, &writer->lowest,
                              err);
    if (rc == AC_OK)
        rc =
            ac_cq4_table_add(table, dir, AC_CQ4_KEY_MOD_COUNT, 0, wait_ns, &writer->mod_count, err);
    if (rc == AC_OK)
        rc = ac_cq4_table_add(table, dir, AC_CQ4_KEY_WRITE_LOCK, AC_CQ4_UNLOCKED, wait_ns, &lock,
                              err);
    if (rc == AC_OK) ac_cq4_table_find(table, AC_CQ4_KEY_ENDS_UP_TO, &writer->ends_up_to);
    return rc;
}

/* Refuses a queue of unaligned records before anything is done to it. */
static int check_newest(ac_cq4_writer_t *writer, ac_error_t *err) {
    ac_cq4_cycle_t cycle;
    uint32_t *cycles;
    size_t count;
    int rc = ac_cq4_queue_cycles(&writer->queue, &cycles, &count, err);
    if (rc == AC_OK && count > 0) {
        rc = ac_cq4_queue_open_cycle(&writer->queue, cycles[count - 1], &cycle, err);
        if (rc == AC_OK) {
            rc = ac_cq4_grow_check(&cycle, err);
            ac_cq4_cycle_close(&cycle);
        } else if (rc == AC_E_NOT_FOUND) {
            rc = AC_OK; /* not completed yet */
        }
    }
    free(cycles);
    return rc;
}

static int open_parts(ac_cq4_writer_t *writer, int dir_fd, ac_error_t *err) {
    const char *path = writer->queue.dir.path;
    int rc = check_settings(writer, err);
    if (rc == AC_OK) rc = check_newest(writer, err);
    if (rc == AC_OK)
        rc = ac_cq4_table_open(&writer->queue.dir, dir_fd, AC_CQ4_METADATA, 1, &writer->table, err);
    if (rc != AC_OK) return rc;
    writer->queue.dir.mode = writer->table.mode;
    rc = find_keys(writer, err);
    if (rc == AC_OK)
        rc = ac_cq4_lock_open(&writer->lock, &writer->table, path, writer->config.lock_timeout_ns,
                              err);
    writer->lock.interrupted = writer->config.interrupted;
    writer->lock.interrupted_context = writer->config.interrupted_context;
    if (rc == AC_OK) rc = ac_cq4_mutex_lock(&writer->lock, err);
    if (rc != AC_OK) return rc;
    ac_cq4_temporary_clean(dir_fd);
    rc = ac_cq4_writer_repair(writer, dir_fd, err);
    ac_cq4_mutex_unlock(writer->lock.mutex);
    return rc;
}

int ac_cq4_writer_open(const char *path, const ac_cq4_writer_config_t *config,
                       ac_cq4_writer_t **out, ac_error_t *err) {
    ac_error_t unused;
    if (!err) err = &unused;
    *out = NULL;
    ac_cq4_writer_t *writer = ac_os_alloc(sizeof *writer);
    if (!writer) return ac_fail_os(err, -ENOMEM, path, "cannot allocate");
    if (config)
        writer->config = *config;
    else
        ac_cq4_writer_defaults(&writer->config);
    writer->stats.last_index = UINT64_MAX;
    int rc = open_queue(path, &writer->config, &writer->queue, err);
    int dir_fd = rc == AC_OK ? ac_directory_open(&writer->queue.dir, err) : rc;
    if (dir_fd >= 0) {
        rc = open_parts(writer, dir_fd, err);
        ac_os_close(dir_fd);
    } else {
        rc = dir_fd;
    }
    writer->config.roll_cycle = NULL; /* the caller's */
    if (rc == AC_OK && ac_cq4_wake_open(&writer->wake, &writer->queue.dir, err) != AC_OK)
        ac_log_error(AC_LOG_WARNING, err, "readers will not be woken, and poll instead");
    writer->turns.shared = ac_cq4_bells_appended(&writer->wake);
    if (rc == AC_OK)
        *out = writer;
    else
        ac_cq4_writer_free(writer);
    return rc;
}

void ac_cq4_writer_close(ac_cq4_writer_t *writer) {
    if (!writer || writer->is_closed) return;
    writer->is_closed = 1;
    writer->is_fast = 0;
    if (ac_cq4_lock_is_forked(&writer->lock)) ac_cq4_wake_forked(&writer->wake);
    writer->turns.shared = NULL;
    ac_cq4_wake_close(&writer->wake);
    ac_cq4_cycle_close(&writer->cycle);
    ac_cq4_lock_close(&writer->lock);
    ac_cq4_table_close(&writer->table);
    ac_cq4_queue_close(&writer->queue);
}

void ac_cq4_writer_free(ac_cq4_writer_t *writer) {
    ac_cq4_writer_close(writer);
    free(writer);
}

/* ---- what others ask ---- */

void ac_cq4_writer_position(ac_cq4_writer_t *writer, uint64_t *cycle, uint64_t *offset) {
    int is_inside = !writer->is_closed && ac_cq4_mutex_lock(&writer->lock, NULL) == AC_OK;
    int64_t now = ac_cq4_roll_cycle_at(&writer->queue.roll,
                                       (int64_t)(ac_cq4_writer_now_ns(writer) / 1000000));
    int is_placed = is_inside && writer->cycle.map;
    *cycle = is_placed ? writer->cycle.number : now < 0 ? 0 : (uint64_t)now;
    *offset = is_placed ? writer->place.offset : 0;
    if (is_inside) ac_cq4_mutex_unlock(writer->lock.mutex);
}

void ac_cq4_writer_stats(ac_cq4_writer_t *writer, ac_cq4_writer_stats_t *out) {
    const ac_cq4_writer_stats_t *stats = &writer->stats;
    *out = (ac_cq4_writer_stats_t){
        .messages = ac_load_relaxed_u64(&stats->messages),
        .payload_bytes = ac_load_relaxed_u64(&stats->payload_bytes),
        .last_index = ac_load_relaxed_u64(&stats->last_index),
        .cycles_created = ac_load_relaxed_u64(&stats->cycles_created),
        .cycles_entered = ac_load_relaxed_u64(&stats->cycles_entered),
        .ends_written = ac_load_relaxed_u64(&stats->ends_written),
        .pages_added = ac_load_relaxed_u64(&stats->pages_added),
        .lock_waits = ac_load_relaxed_u64(&writer->lock.waits),
        .locks_freed = ac_load_relaxed_u64(&writer->lock.freed),
        .locks_stolen = ac_load_relaxed_u64(&writer->lock.stolen),
    };
}

const ac_cq4_queue_t *ac_cq4_writer_queue(const ac_cq4_writer_t *writer) {
    return &writer->queue;
}
