#include "writer.h"

#include "error.h"
#include "log.h"
#include "recovery.h"
#include "retention.h"
#include "segment.h"
#include "trailer.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { READY_MAX = 65536, SCHEMA_MAX = 1 << 20 };

void ac_writer_defaults(ac_writer_config_t *config) {
    memset(config, 0, sizeof *config);
    config->segment_size = 128ull << 20;
    config->flush_mode = AC_FLUSH_ASYNC;
    config->retain_for_readers = 1;
    config->retention_check_ns = 1000000000u;
    config->mode = 0600;
    config->write_back_ns = 15ull * 1000000000u;
    config->takeover_ns = 3000000000u;
    config->now_ns = AC_NOW;
}

static int check_config(const char *path, const ac_writer_config_t *config, ac_error_t *err) {
    if (!ac_segment_size_valid(config->segment_size))
        return ac_fail(err, AC_E_ARGUMENT, 0, path, 0,
                       "segment_size %llu: must be a multiple of 64 from 4096 to 4294967296",
                       (unsigned long long)config->segment_size);
    if (config->archive && strlen(config->archive) >= AC_ARCHIVE_MAX)
        return ac_fail(err, AC_E_ARGUMENT, 0, path, 0, "archive path is too long");
    if (config->wait_for && !ac_reader_name_valid(config->wait_for))
        return ac_fail(err, AC_E_NAME, 0, path, 0, "no reader can be called '%s'",
                       config->wait_for);
    ac_settings_t settings;
    ac_settings_of(config, &settings);
    return ac_settings_check(path, &settings, err);
}

static void on_fork(ac_task_t *task) {
    ac_writer_t *writer = (ac_writer_t *)(void *)((char *)task - offsetof(ac_writer_t, pages));
    ac_store_relaxed_u32(&writer->state, AC_STATE_FORKED);
    ac_store_relaxed_u64(&writer->limit, 0);
    ac_writer_lock_forked(&writer->lock);
    ac_store_relaxed_u32(&writer->attended, 0); /* the connections are not inherited either */
    /* Perhaps held by a thread that does not exist here. */
    pthread_mutex_init(&writer->mutex, NULL);
    pthread_mutex_init(&writer->sync_mutex, NULL);
    pthread_mutex_init(&writer->report_mutex, NULL);
}

/* Opens the control block, creating an empty queue if there is none. */
static int open_control(ac_writer_t *writer, ac_error_t *err) {
    uint32_t first, last;
    size_t segments = 0;
    struct stat info;
    int rc =
        ac_control_open_file(&writer->dir, writer->dir_fd, 1, 1, &writer->control_map, &info, err);
    if (rc == AC_E_NOT_FOUND) {
        rc = ac_segment_bounds(&writer->dir, writer->dir_fd, &first, &last, &segments, err);
        if (rc == AC_OK && segments == 0)
            rc = ac_segment_check_room(&writer->dir, writer->dir_fd, writer->config.segment_size,
                                       err);
        if (rc == AC_OK && segments == 0)
            rc = ac_control_create(&writer->dir, writer->dir_fd, writer->config.segment_size, err);
        /* Looked at again in any case: another process may have made all of it just now. */
        if (rc == AC_OK)
            rc = ac_control_open_file(&writer->dir, writer->dir_fd, 1, 1, &writer->control_map,
                                      &info, err);
        if (rc == AC_E_NOT_FOUND) {
            char path[1200];
            snprintf(path, sizeof path, "%s/control.meta", writer->dir.path);
            return ac_fail(err, AC_E_CORRUPT, 0, path, 0, "is missing, though there are segments");
        }
    }
    if (rc != AC_OK) return rc;
    writer->lock.control_inode = info.st_ino;
    writer->lock.takeover_ns = writer->config.takeover_ns;
    writer->control = ac_control_of(writer->control_map);
    writer->segment_size = ac_load_relaxed_u64(&writer->control->segment_size);
    /* Again, because other processes can write to it: what is used is what was checked. */
    if (!ac_segment_size_valid(writer->segment_size))
        return ac_fail(err, AC_E_CORRUPT, 0, writer->dir.path, 24, "segment size is impossible");
    return AC_OK;
}

/* A name under which a file of the queue is made before it gets its own: whatever else ends in .tmp belongs to
 * others. */
static int is_leftover(const char *name) {
    static const char *const names[] = {"control.meta.tmp", "READY.tmp", "schema.json.tmp"};
    static const char control[] = "control.meta.";
    size_t digits = strspn(name, "0123456789");
    if (digits == 9 || digits == 10)
        return strcmp(name + digits, ".q.tmp") == 0 || strcmp(name + digits, ".idx.tmp") == 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return 1;
    if (strncmp(name, control, sizeof control - 1) != 0) return 0;
    name += sizeof control - 1;
    return strspn(name, "0123456789abcdef") == 16 && strcmp(name + 16, ".tmp") == 0;
}

static int remove_leftover(void *context, const char *name) {
    const ac_writer_t *writer = context;
    if (is_leftover(name)) ac_os_unlink(writer->dir_fd, name);
    return 0;
}

/* The first record tells since when, and from which seq, this segment is being filled. */
static void resume_roll_limits(ac_writer_t *writer) {
    ac_message_t first;
    const char *why;
    if (ac_record_inspect(writer->base, writer->segment_size, AC_SEGMENT_DATA, writer->map->segment,
                          AC_CHECK_HEADER, &first, &why) != AC_RECORD_GOOD)
        return;
    writer->segment_first_seq = first.seq;
    ac_writer_roll_after(writer, first.timestamp_ns);
}

static int enter_end(ac_writer_t *writer, ac_end_t *end, ac_error_t *err) {
    uint64_t offset = end->offset;
    writer->seq = writer->first_seq = end->next_seq;
    writer->last_timestamp_ns = ac_writer_first_timestamp(writer, end->last_timestamp_ns);
    writer->durable_seq = end->next_seq;
    if (end->map && !end->sealed) {
        writer->map = end->map;
        end->map = NULL;
    } else {
        int rc = ac_segment_create(&writer->dir, writer->dir_fd, end->next_id, writer->segment_size,
                                   &writer->map, err);
        if (rc != AC_OK) return rc;
        offset = AC_SEGMENT_DATA;
    }
    writer->synced = offset;
    writer->populated = offset;
    ac_writer_enter(writer, writer->map, offset);
    writer->entered_ns = ac_os_monotonic_ns();
    writer->cached_from = writer->map->segment;
    if (offset > AC_SEGMENT_DATA) {
        writer->last_record = end->last_record;
        resume_roll_limits(writer);
    }
    if (writer->config.memlock) {
        int rc = ac_os_memlock(writer->map->base, writer->map->size);
        if (rc < 0)
            return ac_fail_os(err, rc, writer->dir.path,
                              "cannot lock the segment into memory (raise RLIMIT_MEMLOCK)");
    }
    int rc = ac_writer_write_durable(writer, writer->map->segment, offset);
    if (rc == 0) rc = ac_os_sync(writer->index_fd);
    if (rc == 0) ac_store_relaxed_u32(&writer->mark_unsynced, 0);
    return rc < 0 ? ac_fail_os_in(err, rc, writer->dir.path, "index.meta", "cannot write") : AC_OK;
}

static void announce(ac_writer_t *writer, uint64_t epoch) {
    ac_control_t *control = writer->control;
    ac_store_relaxed_u64(&control->writer_epoch, epoch);
    ac_store_relaxed_u64(&control->next_seq, writer->seq);
    ac_store_relaxed_u64(&control->last_timestamp_ns, writer->last_timestamp_ns);
    ac_store_relaxed_u64(&control->last_record, writer->last_record);
    ac_store_release_u64(&control->counting_epoch, epoch);
    ac_store_relaxed_u64(&control->writer_heartbeat_ns, ac_os_now_ns());
    ac_store_relaxed_u64(&control->recovered_boot, ac_os_boot_id());
    ac_writer_announce_ttl(writer);
    ac_store_relaxed_u64(&control->parked,
                         0); /* the sleepers of a dead writer; they will be woken */
    for (size_t i = 0; i < AC_MEMBER_BITS / 64; i++)
        ac_store_relaxed_u64(&control->parked_members[i], 0);
    ac_fetch_add_seq_cst_u32(&control->notify_seq, 1);
    ac_os_futex_wake(&control->notify_seq, INT_MAX);
}

static int has_second_name(const ac_writer_t *writer, const char *name) {
    struct stat info;
    return ac_os_stat_at(writer->dir_fd, name, &info) == 0 && info.st_nlink > 1;
}

/* A directory that shares its files with another one (cp -al) is no queue of its own: what is appended here would
 * appear there, half of it. The original, which other directories share files with, is. */
static int check_links(const ac_writer_t *writer, ac_error_t *err) {
    char name[AC_NAME_MAX];
    uint32_t first, last = 0;
    size_t count = 0;
    int rc = ac_segment_bounds(&writer->dir, writer->dir_fd, &first, &last, &count, err);
    if (rc != AC_OK) return rc;
    ac_segment_name(name, last, ".q");
    if (!has_second_name(writer, "control.meta") && !has_second_name(writer, name)) return AC_OK;
    return ac_fail(
        err, AC_E_NOT_A_QUEUE, 0, writer->dir.path, 0,
        "shares its files with another directory by hard links; make a real copy (cp -a)");
}

/* Whether the queue goes on in a segment of its own. Positions that were kept elsewhere must not come to lie
 * inside of what is written next, so it does after anything was cut off, and after what may have been a power
 * cut. Nor may a segment hold messages of two identities. */
static int needs_new_segment(const ac_writer_t *writer, const ac_end_t *end, int is_copy) {
    uint64_t boot = ac_load_relaxed_u64(&writer->control->recovered_boot);
    int is_empty = end->offset == AC_SEGMENT_DATA;
    if (!end->map || end->sealed || (is_empty && boot == 0)) return 0;
    if (is_copy) return !is_empty;
    return !writer->recovery.clean && (end->torn || boot != ac_os_boot_id());
}

/* Seals the segment with the end; readers that wait there go on. What it will not use gives its blocks back. */
static int leave_segment(ac_writer_t *writer, ac_end_t *end, ac_error_t *err) {
    char name[AC_NAME_MAX];
    ac_map_t *map = end->map;
    ac_segment_name(name, map->segment, ".q");
    ac_segment_seal(map, end->offset);
    int rc = ac_os_map_sync(map->base, map->fd, 0, AC_SEGMENT_DATA);
    uint64_t inside = ac_os_page_size() - 1, unused = (end->offset + inside) & ~inside;
    if (rc == 0 && unused < map->size) rc = ac_os_punch(map->fd, unused, map->size - unused);
    return rc < 0 ? ac_fail_os_in(err, rc, writer->dir.path, name, "cannot seal") : AC_OK;
}

/* The end of the queue, in the segment where it goes on, and an identity of its own for a copy. */
static int find_place(ac_writer_t *writer, ac_end_t *end, int is_copy, ac_error_t *err) {
    ac_control_t *control = writer->control;
    ac_recovery_options_t options = {
        .verify = writer->config.verify, .salvage = writer->config.salvage, .is_copy = is_copy};
    int rc = ac_recover(&writer->dir, writer->dir_fd, control, writer->segment_size, &options, end,
                        &writer->recovery, err);
    if (rc == AC_OK && needs_new_segment(writer, end, is_copy)) {
        rc = leave_segment(writer, end, err);
        end->sealed = 1;
    }
    if (rc != AC_OK) return rc;
    writer->recovery.is_copy = is_copy;
    uint64_t first = end->map && !end->sealed ? end->map->segment : end->next_id;
    if (!is_copy) {
        ac_store_relaxed_u64(&control->home, writer->home);
        return AC_OK;
    }
    ac_log(AC_LOG_WARNING, writer->dir.path,
           "is a copy, or was restored from one, and gets an identity of its own; its messages "
           "from segment "
           "%llu on have it",
           (unsigned long long)first);
    rc = ac_control_adopt(control, writer->home, first);
    return rc < 0 ? ac_fail_os(err, rc, writer->dir.path, "cannot get random bytes") : AC_OK;
}

/* A queue that nobody has ever had open, since its first segment could not be made, is as good as new. Readers
 * may be waiting at it: see ac_reader_open_segment. */
static int take_segment_size(ac_writer_t *writer, const ac_end_t *end, ac_error_t *err) {
    uint64_t size = writer->config.segment_size;
    if (end->map || ac_load_relaxed_u64(&writer->control->writer_epoch) != 0 ||
        size == writer->segment_size)
        return AC_OK;
    writer->segment_size = size;
    ac_store_release_u64(&writer->control->segment_size, size);
    int rc = ac_os_map_sync(writer->control_map->base, -1, 0, AC_CONTROL_SIZE);
    return rc < 0 ? ac_fail_os_in(err, rc, writer->dir.path, "control.meta", "cannot sync") : AC_OK;
}

/* With a mode that lets other users read, they may also keep positions; but into the queue's directory they cannot
 * write. Without such a mode it is left to the first named reader: see docs/guide/format.md. */
static int make_readers(const ac_writer_t *writer, ac_error_t *err) {
    ac_directory_t readers;
    if ((writer->config.mode & 0044) == 0) return AC_OK;
    int fd = ac_directory_readers(&writer->dir, writer->dir_fd, 1, &readers, err);
    if (fd < 0) return fd;
    ac_os_close(fd);
    return AC_OK;
}

/* Everything that needs the lock. */
static int open_locked(ac_writer_t *writer, ac_error_t *err) {
    struct stat info;
    ac_end_t end = {0};
    int rc = ac_control_home(&writer->dir, writer->dir_fd, &writer->home, err);
    if (rc == AC_OK && ac_control_is_copy(writer->control, writer->home))
        rc = check_links(writer, err);
    if (rc == AC_OK)
        rc = ac_writer_lock(&writer->lock, &writer->dir, writer->dir_fd, writer->control, err);
    if (rc != AC_OK) return rc;
    int is_copy = ac_control_is_copy(writer->control, writer->home);
    ac_os_list(writer->dir_fd, remove_leftover, writer);
    rc = make_readers(writer, err);
    if (rc == AC_OK) rc = find_place(writer, &end, is_copy, err);
    if (rc == AC_OK) rc = take_segment_size(writer, &end, err);
    if (rc == AC_OK)
        rc = writer->index_fd =
            ac_file_open(&writer->dir, writer->dir_fd, "index.meta", O_RDWR | O_CREAT, &info, err);
    uint64_t epoch = ac_control_next_epoch(writer->control, is_copy);
    writer->epoch = (uint32_t)epoch;
    if (rc >= 0) rc = ac_writer_lock_note_epoch(&writer->dir, writer->dir_fd, epoch, err);
    if (rc == AC_OK) rc = enter_end(writer, &end, err);
    ac_map_release(end.map);
    if (rc != AC_OK) return rc;
    announce(writer, epoch);
    ac_writer_adopt_settings(writer);
    ac_writer_begin_report(writer);
    /* Without it (no inotify instances left, say) readers poll, as they do for other programs. */
    if (!writer->config.inline_housekeeping)
        writer->attended = ac_wake_targets_open(&writer->targets, &writer->dir, NULL) ==
                           AC_OK; /* nobody sees it yet */
    ac_store_release_u64(&writer->control->signalling_epoch, writer->attended ? epoch : 0);
    /* The epoch must never be used twice, so it is on disk before the first record that carries it. */
    rc = ac_os_map_sync(writer->control_map->base, -1, 0, AC_CONTROL_SIZE);
    if (rc == 0) rc = ac_os_sync_dir(writer->dir_fd);
    return rc < 0 ? ac_fail_os_in(err, rc, writer->dir.path, "control.meta", "cannot sync") : AC_OK;
}

static void release_everything(ac_writer_t *writer) {
    if (writer->attended) ac_wake_targets_close(&writer->targets);
    ac_store_relaxed_u32(&writer->attended, 0);
    while (writer->sealing) {
        ac_sealing_t *sealing = writer->sealing;
        writer->sealing = sealing->next;
        ac_map_release(sealing->map);
        free(sealing);
    }
    writer->sealing_tail = &writer->sealing;
    ac_map_release(writer->next);
    ac_map_release(writer->map);
    ac_map_release(writer->control_map);
    writer->next = writer->map = writer->control_map = NULL;
    ac_os_close(writer->index_fd);
    ac_os_close(writer->dir_fd);
    writer->index_fd = writer->dir_fd = -1;
    ac_writer_unlock(&writer->lock);
}

static ac_writer_t *allocate(const ac_writer_config_t *config) {
    ac_writer_t *writer = ac_os_alloc(sizeof *writer);
    if (!writer) return NULL;
    writer->config = *config;
    writer->config.opened_ns = 0;
    ac_settings_of(&writer->config, &writer->settings);
    writer->dir_fd = writer->index_fd = -1;
    writer->sealing_tail = &writer->sealing;
    ac_writer_init_failures(writer);
    writer->ahead = 4 * AC_POPULATE_STEP;
    writer->piece = AC_POPULATE_PIECE;
    writer->pages.run = ac_writer_housekeep_pages;
    writer->pages.forked = on_fork;
    writer->pages.lane = AC_LANE_MEMORY;
    writer->flush.run = ac_writer_housekeep_flush;
    writer->flush.together = ac_writer_flush_batches;
    writer->flush.lane = AC_LANE_FLUSH;
    writer->disk.run = ac_writer_housekeep_disk;
    writer->disk.lane = AC_LANE_DISK;
    writer->archiving.run = ac_writer_housekeep_archive;
    writer->archiving.lane = AC_LANE_ARCHIVE;
    pthread_mutex_init(&writer->mutex, NULL);
    pthread_mutex_init(&writer->sync_mutex, NULL);
    pthread_mutex_init(&writer->retain_mutex, NULL);
    pthread_mutex_init(&writer->report_mutex, NULL);
    pthread_mutex_init(&writer->lock_mutex, NULL);
    pthread_mutex_init(&writer->liveness.mutex, NULL);
    pthread_cond_init(&writer->prepared, NULL);
    pthread_cond_init(&writer->stepped, NULL);
    return writer;
}

enum { TASKS = 4 };

/* Returns how many are to be started: the last one only with retention. */
static int tasks_of(ac_writer_t *writer, ac_task_t *tasks[TASKS]) {
    tasks[0] = &writer->pages;
    tasks[1] = &writer->flush;
    tasks[2] = &writer->disk;
    tasks[3] = &writer->archiving;
    return writer->settings.retention ? TASKS : TASKS - 1;
}

static int start_housekeeping(ac_writer_t *writer, ac_error_t *err) {
    ac_task_t *tasks[TASKS];
    int count = tasks_of(writer, tasks), added = 0, rc = 0;
    while (added < count && (rc = ac_housekeeper_add(tasks[added])) == 0)
        added++;
    while (rc < 0 && added > 0)
        ac_housekeeper_remove(tasks[--added]);
    writer->has_archiving = added == TASKS;
    return rc < 0 ? ac_fail_os(err, rc, writer->dir.path, "cannot start the housekeeping threads")
                  : AC_OK;
}

static void begin_housekeeping(ac_writer_t *writer) {
    ac_task_t *tasks[TASKS];
    int count = tasks_of(writer, tasks);
    for (int i = 0; i < count; i++)
        ac_housekeeper_nudge(tasks[i]);
}

/* Waits for what is running: at most a sync of one segment. Retention stops where it is. */
static void end_housekeeping(ac_writer_t *writer) {
    ac_task_t *tasks[TASKS];
    tasks_of(writer, tasks);
    /* A change of settings checks this before it starts retention, with the mutex held. */
    pthread_mutex_lock(&writer->mutex);
    ac_store_relaxed_u32(&writer->closing, 1);
    pthread_mutex_unlock(&writer->mutex);
    for (int i = 0; i < TASKS; i++)
        ac_housekeeper_remove(tasks[i]); /* one that was not started is not there */
}

/* The format of what is at the path, or that was asked for; an error if these are not the same. */
static int choose_format(const char *path, const ac_writer_config_t *config, ac_error_t *err) {
    int found = ac_queue_format(path), wanted = config->format;
    if (wanted == found || wanted == AC_FORMAT_NONE) return found;
    if (found == AC_FORMAT_NONE) return wanted;
    return ac_fail(err, AC_E_ARGUMENT, 0, path, 0,
                   found == AC_FORMAT_CQ4
                       ? "format is \"native\", but a Java Chronicle Queue is there"
                       : "format is \"cq4\", but a native queue is there");
}

static int open_native(ac_writer_t *writer, const char *path, ac_error_t *err) {
    int rc = ac_directory_init(&writer->dir, path, writer->config.mode, 1, err);
    if (rc == AC_OK) rc = writer->dir_fd = ac_directory_open(&writer->dir, err);
    if (rc >= 0) rc = open_control(writer, err);
    if (rc == AC_OK) rc = open_locked(writer, err);
    if (rc == AC_OK) rc = start_housekeeping(writer, err);
    return rc;
}

int ac_writer_open(const char *path, const ac_writer_config_t *config, ac_writer_t **out,
                   ac_error_t *err) {
    int format = choose_format(path, config, err);
    if (format < 0) return format;
    int is_java = format == AC_FORMAT_CQ4;
    int rc = is_java ? AC_OK : check_config(path, config, err);
    if (rc != AC_OK) return rc;
    ac_writer_t *writer = allocate(config);
    if (!writer) return ac_fail_os(err, -ENOMEM, path, "cannot open");
    struct stat info;
    int made = ac_os_stat_path(path, &info) == -ENOENT;
    rc = is_java ? ac_java_open(writer, path, err) : open_native(writer, path, err);
    if (rc != AC_OK) {
        ac_java_free(writer);
        ac_writer_close_report(writer);
        release_everything(writer);
        free(writer);
        if (made) ac_os_rmdir(path); /* unless there is something in it */
        return rc;
    }
    *out = writer;
    if (is_java) return AC_OK;
    ac_writer_set_limits(writer);
    if (!config->inline_housekeeping) begin_housekeeping(writer);
    return AC_OK;
}

/* waiters_pending counts the sleepers of other programs: each adds one before it sleeps on notify_seq and takes
 * it away afterwards. One that is killed asleep stays in the count, and every append would pay for a system
 * call that wakes nobody. The count cannot be put right: a waiter that was woken and has not run yet still
 * stands in it, and taking away what was cleared would wrap it, after which it reads 0 while that one sleeps.
 * So the word stays as it is. A count that has not changed for a second, in which nobody was woken, is taken
 * for dead ones: from then on only one append in SAMPLE makes the call, and the housekeeper, once a second,
 * for the last of them. Any other count is heard at once. The one who may wait for those is a waiter who was
 * stopped for that second between waking and counting itself out, and came back unseen to the same count. */
enum { WAITER_DIES_NS = 1000000000, SAMPLE = 64 };

static void judge_waiters(ac_writer_t *writer, uint32_t waiters, int woken) {
    uint64_t now = ac_os_monotonic_ns();
    if (woken != 0 || waiters != writer->waiters) {
        writer->waiters = waiters;
        writer->unheard_since_ns = now;
        writer->dead_waiters = 0;
    } else if (now - writer->unheard_since_ns >= WAITER_DIES_NS) {
        writer->dead_waiters = waiters;
    }
}

static void wake_other_programs(ac_writer_t *writer, uint32_t waiters) {
    if (waiters == writer->dead_waiters && ++writer->unheard % SAMPLE != 0) return;
    int woken = ac_os_futex_wake(&writer->control->notify_seq, INT_MAX);
    ac_count_u64(&writer->wakeups, 1);
    judge_waiters(writer, waiters, woken);
}

/* At most one signal per sleeper and sleep: taking the bits is what entitles us to signal. */
void ac_writer_wake(ac_writer_t *writer) {
    ac_control_t *control = writer->control;
    if (ac_load_relaxed_u64(&control->parked)) {
        uint64_t bits = ac_exchange_seq_cst_u64(&control->parked, 0);
        if (bits && writer->attended)
            ac_count_u64(&writer->wakeups, ac_wake_targets_signal(&writer->targets, control, bits,
                                                                  writer->batch + 1));
    }
    uint32_t waiters = ac_load_relaxed_u32(&control->waiters_pending);
    if (waiters) wake_other_programs(writer, waiters);
}

int64_t ac_writer_append(ac_writer_t *writer, const void *payload, size_t length, unsigned type_id,
                         uint64_t timestamp_ns, ac_error_t *err) {
    return ac_writer_append_cause(writer, payload, length, type_id, timestamp_ns, NULL, err);
}

static int check_type(const ac_writer_t *writer, unsigned type_id, ac_error_t *err) {
    if (type_id <= AC_TYPE_MAX) return AC_OK;
    return ac_fail(err, AC_E_ARGUMENT, 0, writer->dir.path, 0, "type_id %u: must be 0 to %u",
                   type_id, AC_TYPE_MAX);
}

static int check_length(const ac_writer_t *writer, size_t length, ac_error_t *err) {
    if (length < UINT32_MAX - AC_HEADER_SIZE) return AC_OK;
    return ac_fail(err, AC_E_TOO_LARGE, 0, writer->dir.path, 0, "%zu bytes are too many", length);
}

static int not_durable(const ac_writer_t *writer, int64_t seq, const ac_error_t *why,
                       ac_error_t *err) {
    int rc = ac_fail(err, AC_E_NOT_DURABLE, why->sys_errno, writer->dir.path, 0,
                     "appended as %lld, but not made durable: %.180s", (long long)seq, why->detail);
    if (err) err->seq = (uint64_t)seq;
    return rc;
}

static int64_t sync_appended(ac_writer_t *writer, int64_t seq, ac_error_t *err) {
    ac_error_t why;
    ac_slow_begin(&writer->slow);
    int64_t durable = ac_writer_sync_data(writer, &why);
    ac_slow_part(&writer->slow, AC_SLOW_SYNC);
    ac_writer_note_slow(writer, (uint64_t)seq);
    if (durable >= 0) return seq;
    if (durable != AC_E_GONE) return not_durable(writer, seq, &why, err);
    if (err) *err = why;
    return durable;
}

/* In sync mode nothing may return before it is durable, in batch mode not more than the agreed bytes. Readers
 * have it by now: an error that says no more than why would have the caller append it again. */
static int64_t flush_if_due(ac_writer_t *writer, int64_t seq, ac_error_t *err) {
    int mode = writer->config.flush_mode;
    if (mode == AC_FLUSH_ASYNC || seq < 0) return seq;
    if (mode == AC_FLUSH_BATCH && ac_writer_unsynced(writer) <= writer->config.batch_bytes)
        return seq;
    return sync_appended(writer, seq, err);
}

int64_t ac_writer_try_append_held(ac_writer_t *writer, const void *payload, size_t payload_length,
                                  const ac_slice_t *trailer, unsigned type_id,
                                  const ac_cause_t *cause) {
    int64_t seq = ac_writer_try_append(writer, payload, payload_length, trailer, type_id,
                                       writer->last_timestamp_ns, cause);
    if (seq != AC_E_SLOW) ac_count_u64(&writer->clock_steps, 1);
    return seq;
}

/* In sync mode, which knows no fast path, each record is the proof for those before it, and so it is after a flush of
 * a single record; unless there is padding in between, for which nobody waited. */
static uint16_t synced_flag(ac_writer_t *writer) {
    if (writer->config.flush_mode != AC_FLUSH_SYNC) {
        if (!ac_load_relaxed_u32(&writer->flushed_single)) return 0;
        ac_store_relaxed_u32(&writer->flushed_single, 0);
    }
    pthread_mutex_lock(&writer->mutex);
    int all = writer->durable_seq == writer->seq && writer->synced == writer->offset;
    pthread_mutex_unlock(&writer->mutex);
    return all ? AC_FLAG_SYNCED : 0;
}

/* A Java queue's documents are what Java reads, and that knows nothing of ours. */
static int refuse_trailer(const ac_writer_t *writer, ac_error_t *err) {
    return ac_java_refuse(writer, "key and headers: its messages are documents of Java's", err);
}

static __attribute__((noinline)) int64_t append_slow(ac_writer_t *writer, const void *payload,
                                                     size_t payload_length,
                                                     const ac_slice_t *trailer, unsigned type_id,
                                                     uint64_t timestamp_ns, const ac_cause_t *cause,
                                                     ac_error_t *err) {
    size_t length = ac_area_length(payload_length, trailer);
    if (writer->java && trailer) return refuse_trailer(writer, err);
    if (writer->java)
        return ac_java_append(writer, payload, length, type_id, timestamp_ns, cause, err);
    int rc = check_type(writer, type_id, err);
    if (rc == AC_OK) rc = check_length(writer, length, err);
    if (rc == AC_OK && timestamp_ns != AC_NOW)
        rc = ac_writer_check_ahead(writer, timestamp_ns, err);
    if (rc != AC_OK) return rc;
    if (timestamp_ns == AC_NOW) timestamp_ns = ac_writer_now(writer, ac_os_now_ns());
    rc = ac_writer_make_room(writer, ac_record_size(length), timestamp_ns, err);
    if (rc != AC_OK) return rc;
    int64_t seq = ac_writer_put(writer, payload, payload_length, trailer, (uint16_t)type_id,
                                timestamp_ns, cause, synced_flag(writer));
    return seq == AC_E_SLOW ? ac_writer_fail_cut(writer, err) : flush_if_due(writer, seq, err);
}

int64_t ac_writer_append_cause(ac_writer_t *writer, const void *payload, size_t length,
                               unsigned type_id, uint64_t timestamp_ns, const ac_cause_t *cause,
                               ac_error_t *err) {
    int64_t seq = ac_writer_try_append(writer, payload, length, NULL, type_id, timestamp_ns, cause);
    return AC_LIKELY(seq != AC_E_SLOW)
               ? seq
               : append_slow(writer, payload, length, NULL, type_id, timestamp_ns, cause, err);
}

int64_t ac_writer_append_trailer(ac_writer_t *writer, const void *payload, size_t length,
                                 const ac_slice_t *trailer, unsigned type_id, uint64_t timestamp_ns,
                                 const ac_cause_t *cause, ac_error_t *err) {
    int64_t seq =
        ac_writer_try_append(writer, payload, length, trailer, type_id, timestamp_ns, cause);
    return seq != AC_E_SLOW
               ? seq
               : append_slow(writer, payload, length, trailer, type_id, timestamp_ns, cause, err);
}

/* Of the batch's message `i`; NULL: it has none. */
static inline const ac_slice_t *trailer_of(const ac_slice_t *trailers, size_t i) {
    return trailers && trailers[i].length > 0 ? &trailers[i] : NULL;
}

/* Total size of a batch, and whether its timestamps are in order. */
static inline int measure(const ac_writer_t *writer, const ac_slice_t *items,
                          const ac_slice_t *trailers, size_t count, const uint64_t *timestamps_ns,
                          uint64_t *size, ac_error_t *err) {
    *size = 0;
    for (size_t i = 0; i < count; i++) {
        size_t length = ac_area_length(items[i].length, trailer_of(trailers, i));
        int rc = check_length(writer, length, err);
        if (rc != AC_OK) return rc;
        *size += ac_record_size(length);
        if (timestamps_ns && i > 0 && timestamps_ns[i] < timestamps_ns[i - 1])
            return ac_fail(err, AC_E_TIMESTAMP, 0, writer->dir.path, 0,
                           "timestamp %zu of the batch is before the one ahead of it", i);
    }
    return AC_OK;
}

int64_t ac_writer_append_many(ac_writer_t *writer, const ac_slice_t *items, size_t count,
                              unsigned type_id, const uint64_t *timestamps_ns, ac_error_t *err) {
    return ac_writer_append_many_cause(writer, items, count, type_id, timestamps_ns, NULL, err);
}

/* Compiled twice: batches without trailers do not look for them. */
static inline __attribute__((always_inline)) int64_t append_batch(
    ac_writer_t *writer, const ac_slice_t *items, const ac_slice_t *trailers, size_t count,
    unsigned type_id, const uint64_t *timestamps_ns, const ac_cause_t *cause, ac_error_t *err) {
    uint64_t size, total_payload = 0;
    if (writer->java && trailers) return refuse_trailer(writer, err);
    if (writer->java)
        return ac_java_append_many(writer, items, count, type_id, timestamps_ns, cause, err);
    if (count == 0) return (int64_t)writer->seq;
    if (count > UINT32_MAX)
        return ac_fail(err, AC_E_TOO_LARGE, 0, writer->dir.path, 0, "batch of %zu records", count);
    int rc = check_type(writer, type_id, err);
    if (rc == AC_OK) rc = measure(writer, items, trailers, count, timestamps_ns, &size, err);
    if (rc != AC_OK) return rc;
    uint64_t now = timestamps_ns ? timestamps_ns[0] : ac_writer_now(writer, ac_os_now_ns());
    uint64_t newest = timestamps_ns ? timestamps_ns[count - 1] : now;
    if (writer->offset + size > ac_load_relaxed_u64(&writer->limit) ||
        writer->seq + count > writer->seq_limit || now < writer->last_timestamp_ns ||
        newest >= writer->timestamp_limit) {
        if (timestamps_ns) rc = ac_writer_check_ahead(writer, newest, err);
        if (rc == AC_OK) rc = ac_writer_make_room(writer, size, now, err);
        if (rc != AC_OK) return rc;
    }
    uint64_t first_seq = writer->seq, offset = writer->offset, last_record = writer->last_record;
    uint16_t first_flags = synced_flag(writer);
    for (size_t i = 0; i < count; i++) {
        uint8_t *at = writer->base + offset;
        const ac_slice_t *trailer = trailer_of(trailers, i);
        uint32_t length = (uint32_t)ac_area_length(items[i].length, trailer);
        ac_stamp_t stamp = {
            .seq = first_seq + i,
            .timestamp_ns = timestamps_ns ? timestamps_ns[i] : now,
            .cause = cause,
            .batch_left = (uint32_t)(count - 1 - i),
            .epoch = writer->epoch,
            .type_id = (uint16_t)type_id,
            .flags = (uint16_t)((i == 0 ? first_flags : 0) | (trailer ? AC_FLAG_TRAILER : 0))};
        uint32_t checksum =
            ac_writer_copy(at + AC_HEADER_SIZE, items[i].data, items[i].length, trailer);
        ac_record_write_header(at, length, checksum, &stamp, writer->seed);
        /* The first record's commit word comes last and lets readers at all of them. */
        if (i > 0) ac_store_relaxed_u32(ac_record_commit_word(at), length + 1);
        last_record = offset;
        offset += ac_record_size(length);
        total_payload += length;
    }
    ac_written_t written = {.first = writer->base + writer->offset,
                            .next_seq = first_seq + count,
                            .end = offset,
                            .last_record = last_record,
                            .newest_ns = newest,
                            .payload_bytes = total_payload,
                            .record_bytes = size,
                            .first_length =
                                (uint32_t)ac_area_length(items[0].length, trailer_of(trailers, 0))};
    writer->batch = (uint32_t)count - 1;
    int committed = ac_writer_commit_written(writer, &written);
    writer->batch = 0;
    if (committed != AC_OK) return ac_writer_fail_cut(writer, err);
    ac_count_u64(&writer->batches, 1);
    return flush_if_due(writer, (int64_t)first_seq, err);
}

int64_t ac_writer_append_many_cause(ac_writer_t *writer, const ac_slice_t *items, size_t count,
                                    unsigned type_id, const uint64_t *timestamps_ns,
                                    const ac_cause_t *cause, ac_error_t *err) {
    return append_batch(writer, items, NULL, count, type_id, timestamps_ns, cause, err);
}

int64_t ac_writer_append_many_trailers(ac_writer_t *writer, const ac_slice_t *items,
                                       const ac_slice_t *trailers, size_t count, unsigned type_id,
                                       const uint64_t *timestamps_ns, const ac_cause_t *cause,
                                       ac_error_t *err) {
    return append_batch(writer, items, trailers, count, type_id, timestamps_ns, cause, err);
}

int ac_writer_reserve(ac_writer_t *writer, size_t length, void **room, ac_error_t *err) {
    if (writer->java)
        return ac_java_refuse(
            writer, "reserve: Java's lock would be held for as long as the room is being filled",
            err);
    int rc = check_length(writer, length, err);
    if (rc == AC_OK)
        rc = ac_writer_make_room(writer, ac_record_size(length), writer->last_timestamp_ns, err);
    if (rc != AC_OK) return rc;
    writer->reserved = length + 1;
    ac_store_relaxed_u64(&writer->limit, 0);
    *room = writer->base + writer->offset + AC_HEADER_SIZE;
    return AC_OK;
}

void ac_writer_abort(ac_writer_t *writer) {
    if (!writer->reserved) return;
    uint64_t length = writer->reserved - 1;
    writer->reserved = 0;
    if (ac_load_relaxed_u32(&writer->state) != AC_STATE_OPEN) return;
    memset(writer->base + writer->offset + AC_HEADER_SIZE, 0, length);
    uint64_t end = writer->offset + ac_record_size(length);
    if (end > writer->soiled) writer->soiled = end;
    ac_writer_set_limits(writer);
}

void ac_writer_abandon(ac_writer_t *writer) {
    if (!writer->reserved) return;
    uint32_t length = (uint32_t)(writer->reserved - 1);
    writer->reserved = 0;
    if (ac_load_relaxed_u32(&writer->state) != AC_STATE_OPEN) return;
    uint8_t *at = writer->base + writer->offset;
    ac_stamp_t stamp = {.epoch = writer->epoch, .type_id = AC_TYPE_PADDING};
    ac_record_write_header(at, length, 0, &stamp, writer->seed);
    ac_store_release_u32(ac_record_commit_word(at), length + 1);
    ac_writer_publish(writer, writer->offset + ac_record_size(length), writer->seq);
    ac_writer_set_limits(writer);
}

int64_t ac_writer_commit(ac_writer_t *writer, unsigned type_id, uint64_t timestamp_ns,
                         const ac_cause_t *cause, ac_error_t *err) {
    return ac_writer_commit_trailer(writer, NULL, type_id, timestamp_ns, cause, err);
}

int64_t ac_writer_commit_trailer(ac_writer_t *writer, const ac_slice_t *trailer, unsigned type_id,
                                 uint64_t timestamp_ns, const ac_cause_t *cause, ac_error_t *err) {
    uint32_t state = ac_load_relaxed_u32(&writer->state);
    if (state != AC_STATE_OPEN)
        return ac_fail(err, state == AC_STATE_FORKED ? AC_E_FORKED : AC_E_CLOSED, 0,
                       writer->dir.path, 0, "the writer was closed during the reservation");
    if (!writer->reserved)
        return ac_fail(err, AC_E_RESERVED, 0, writer->dir.path, 0, "no reservation is open");
    int rc = check_type(writer, type_id, err);
    if (rc == AC_OK && timestamp_ns != AC_NOW)
        rc = ac_writer_check_ahead(writer, timestamp_ns, err);
    if (timestamp_ns == AC_NOW) timestamp_ns = ac_writer_now(writer, ac_os_now_ns());
    if (rc == AC_OK && trailer && trailer->length > writer->reserved - 1)
        rc = ac_fail(err, AC_E_ARGUMENT, 0, writer->dir.path, 0,
                     "the trailer is larger than what was reserved");
    if (rc == AC_OK && timestamp_ns < writer->last_timestamp_ns)
        rc = ac_fail(err, AC_E_TIMESTAMP, 0, writer->dir.path, 0,
                     "%llu is before the last record or heartbeat, %llu",
                     (unsigned long long)timestamp_ns,
                     (unsigned long long)writer->last_timestamp_ns);
    if (rc != AC_OK) {
        ac_writer_abort(writer);
        return rc;
    }
    uint32_t length = (uint32_t)(writer->reserved - 1);
    uint8_t *at = writer->base + writer->offset;
    if (trailer)
        memcpy(at + AC_HEADER_SIZE + length - trailer->length, trailer->data, trailer->length);
    ac_stamp_t stamp = {.seq = writer->seq,
                        .timestamp_ns = timestamp_ns,
                        .cause = cause,
                        .epoch = writer->epoch,
                        .type_id = (uint16_t)type_id,
                        .flags = (uint16_t)(synced_flag(writer) | (trailer ? AC_FLAG_TRAILER : 0))};
    ac_record_write_header(at, length, ac_crc32(at + AC_HEADER_SIZE, length), &stamp, writer->seed);
    uint64_t size = ac_record_size(length);
    ac_written_t written = {.first = at,
                            .next_seq = stamp.seq + 1,
                            .end = writer->offset + size,
                            .last_record = writer->offset,
                            .newest_ns = timestamp_ns,
                            .payload_bytes = length,
                            .record_bytes = size,
                            .first_length = length};
    writer->reserved = 0;
    if (ac_writer_commit_written(writer, &written) != AC_OK) return ac_writer_fail_cut(writer, err);
    if (written.last_record == AC_SEGMENT_DATA) ac_writer_roll_after(writer, timestamp_ns);
    ac_writer_set_limits(writer);
    return flush_if_due(writer, (int64_t)stamp.seq, err);
}

int ac_writer_heartbeat(ac_writer_t *writer, uint64_t timestamp_ns, ac_error_t *err) {
    if (writer->java)
        return ac_java_refuse(
            writer, "heartbeat: nobody can promise what other writers of the queue will append",
            err);
    int rc = ac_writer_usable(writer, err);
    if (rc == AC_OK && timestamp_ns != AC_NOW)
        rc = ac_writer_check_ahead(writer, timestamp_ns, err);
    if (rc != AC_OK) return rc;
    if (timestamp_ns == AC_NOW) timestamp_ns = ac_writer_now(writer, ac_os_now_ns());
    if (timestamp_ns < writer->last_timestamp_ns)
        return ac_fail(err, AC_E_TIMESTAMP, 0, writer->dir.path, 0,
                       "heartbeat %llu is before the last record or heartbeat, %llu",
                       (unsigned long long)timestamp_ns,
                       (unsigned long long)writer->last_timestamp_ns);
    /* From now on an older record would break the promise. */
    ac_store_relaxed_u64(&writer->last_timestamp_ns, timestamp_ns);
    ac_store_release_u64(&writer->control->watermark_ns, timestamp_ns);
    ac_fetch_add_seq_cst_u32(&writer->control->notify_seq, 1);
    ac_writer_wake(writer);
    return AC_OK;
}

static int publish(ac_writer_t *writer, const char *name, const char *json, size_t max,
                   ac_error_t *err) {
    size_t length = strlen(json);
    if (length > max)
        return ac_fail(err, AC_E_ARGUMENT, 0, writer->dir.path, 0, "%s of %zu bytes", name, length);
    int rc = ac_writer_usable(writer, err);
    if (rc != AC_OK) return rc;
    int dir_fd = ac_directory_open(&writer->dir, err); /* another thread may close ours */
    if (dir_fd < 0) return dir_fd;
    rc = ac_file_publish(&writer->dir, dir_fd, name, json, length, err);
    ac_os_close(dir_fd);
    return rc;
}

int ac_writer_mark_ready(ac_writer_t *writer, const char *json, ac_error_t *err) {
    return publish(writer, "READY", json, READY_MAX, err);
}

int ac_writer_publish_schema(ac_writer_t *writer, const char *json, ac_error_t *err) {
    return publish(writer, "schema.json", json, SCHEMA_MAX, err);
}

int ac_writer_usable(const ac_writer_t *writer, ac_error_t *err) {
    uint32_t state = ac_load_relaxed_u32(&writer->state);
    if (state == AC_STATE_OPEN) return ac_writer_check_removed(writer, err);
    if (state == AC_STATE_FORKED)
        return ac_fail(err, AC_E_FORKED, 0, writer->dir.path, 0,
                       "opened before fork; open it again here");
    return ac_fail(err, AC_E_CLOSED, 0, writer->dir.path, 0, "writer is closed");
}

int ac_writer_visit(ac_writer_t *writer, uint64_t *segment, uint64_t *offset, uint64_t *sealing,
                    ac_error_t *err) {
    int rc = ac_writer_usable(writer, err);
    if (rc != AC_OK) return rc;
    pthread_mutex_lock(&writer->mutex);
    int open = writer->map != NULL;
    *segment = open ? writer->map->segment : 0;
    *offset = ac_load_relaxed_u64(&writer->offset);
    *sealing = writer->sealing ? writer->sealing->map->segment : *segment;
    pthread_mutex_unlock(&writer->mutex);
    if (!open) return ac_fail(err, AC_E_CLOSED, 0, writer->dir.path, 0, "writer is closed");
    return ac_directory_open(&writer->dir, err);
}

int ac_writer_reader_lag(ac_writer_t *writer, uint64_t *lag_bytes, uint64_t *live_readers,
                         ac_error_t *err) {
    ac_slowest_t slowest;
    uint64_t segment = 0, offset = 0, sealing;
    ac_settings_t settings;
    ac_writer_config_t config;
    if (writer->java)
        return ac_java_refuse(writer, "reader_lag: a Java queue does not know its readers", err);
    int dir_fd = ac_writer_visit(writer, &segment, &offset, &sealing, err);
    if (dir_fd < 0) return dir_fd;
    ac_writer_settings(writer, &settings);
    ac_settings_apply(&settings, &config);
    int rc = ac_slowest_reader(&writer->dir, dir_fd, &config, &writer->liveness,
                               writer->segment_size, segment, offset, &slowest, err);
    *lag_bytes = *live_readers = 0;
    if (rc == AC_OK && slowest.live) {
        *live_readers = slowest.live;
        *lag_bytes = ac_segment_distance(&writer->dir, dir_fd, writer->segment_size,
                                         slowest.segment, slowest.offset, segment, offset);
    }
    ac_os_close(dir_fd);
    return rc;
}

void ac_writer_stats(ac_writer_t *writer, ac_writer_stats_t *out) {
    memset(out, 0, sizeof *out);
    if (writer->java) {
        ac_java_stats(writer, out);
        return;
    }
    pthread_mutex_lock(&writer->mutex);
    out->syncs = writer->syncs;
    out->sync_errors = writer->sync_errors.count;
    out->seals = writer->seals;
    out->seal_errors = writer->seal_errors.count;
    out->prealloc_errors = writer->prealloc_errors.count;
    out->populate_errors = writer->populate_errors.count;
    out->retention_errors = writer->retention_errors.count;
    out->segments_deleted = writer->segments_deleted;
    out->segments_archived = writer->segments_archived;
    out->durable_seq = writer->durable_seq;
    out->segment = writer->map ? writer->map->segment : writer->recovery.end_segment;
    out->slow_appends = writer->slow_log.count;
    out->last_error_errno = writer->last_errno;
    memcpy(out->last_error, writer->last_error, sizeof out->last_error);
    out->queue_id = writer->control_map ? ac_load_relaxed_u64(&writer->control->queue_id) : 0;
    pthread_mutex_unlock(&writer->mutex);
    out->next_seq = ac_load_acquire_u64(&writer->seq);
    out->messages = out->next_seq - writer->first_seq;
    out->offset = ac_load_relaxed_u64(&writer->offset);
    out->payload_bytes = ac_load_relaxed_u64(&writer->payload_bytes);
    out->record_bytes = ac_load_relaxed_u64(&writer->record_bytes);
    out->batches = ac_load_relaxed_u64(&writer->batches);
    out->rolls = ac_load_relaxed_u64(&writer->rolls);
    out->rolls_unprepared = ac_load_relaxed_u64(&writer->rolls_unprepared);
    out->wakeups = ac_load_relaxed_u64(&writer->wakeups);
    out->clock_steps = ac_load_relaxed_u64(&writer->clock_steps);
    out->capacity_waits = ac_load_relaxed_u64(&writer->capacity_waits);
    out->refused_bytes = ac_load_relaxed_u64(&writer->refused_bytes);
    out->last_timestamp_ns = ac_load_relaxed_u64(&writer->last_timestamp_ns);
    out->epoch = writer->epoch;
    out->segment_size = writer->segment_size;
    if (!ac_load_relaxed_u32(&writer->attended)) return;
    pthread_mutex_lock(&writer->targets.mutex);
    out->readers_connected = writer->targets.count;
    pthread_mutex_unlock(&writer->targets.mutex);
}

void ac_writer_recovery(ac_writer_t *writer, ac_recovery_t *out) {
    *out = writer->recovery;
}

const char *ac_writer_path(ac_writer_t *writer) {
    return writer->dir.path;
}

void ac_writer_identity(ac_writer_t *writer, ac_identity_t *out) {
    *out = (ac_identity_t){.device = writer->dir.device, .inode = writer->lock.control_inode};
    if (writer->java) ac_java_identity(writer, out);
}

/* A prepared segment that was never entered. */
static void discard_next(ac_writer_t *writer) {
    char name[AC_NAME_MAX];
    /* If the queue was lost to another writer, the name may be that one's by now. */
    if (!writer->next || ac_writer_check_removed(writer, NULL) != AC_OK) return;
    ac_segment_name(name, writer->next->segment, ".q");
    ac_os_unlink(writer->dir_fd, name);
}

static int leave_clean(ac_writer_t *writer, ac_error_t *err) {
    ac_clean_t clean = {.epoch = ac_load_relaxed_u64(&writer->control->writer_epoch),
                        .segment = writer->map->segment,
                        .offset = writer->offset,
                        .next_seq = writer->seq,
                        .last_timestamp_ns = ac_writer_last_record_ns(writer),
                        .last_record = writer->last_record};
    /* What a flush for the sake of the last seq does not reach: padding after it, without which there would
     * be a gap; and zeros that replaced the bytes of an aborted reservation, which may be on disk: a writer that
     * believes the clean marker would append in front of them. */
    uint64_t end = writer->soiled > writer->offset ? writer->soiled : writer->offset;
    int rc = 0;
    if (end > writer->synced)
        rc = ac_os_map_sync(writer->map->base, writer->map->fd, writer->synced,
                            end - writer->synced);
    if (rc == 0) rc = ac_writer_write_durable(writer, clean.segment, clean.offset);
    if (rc == 0) rc = ac_os_sync(writer->index_fd);
    if (rc == 0) {
        ac_clean_store(writer->control, &clean);
        rc = ac_os_map_sync(writer->control_map->base, -1, 0, AC_CONTROL_SIZE);
    }
    return rc < 0 ? ac_fail_os(err, rc, writer->dir.path, "cannot mark the queue as closed")
                  : AC_OK;
}

int ac_writer_close(ac_writer_t *writer, ac_error_t *err) {
    uint32_t state = ac_load_relaxed_u32(&writer->state);
    if (state != AC_STATE_OPEN) return AC_OK;
    if (writer->java) return ac_java_close(writer, err);
    if (writer->reserved) ac_writer_abandon(writer);
    end_housekeeping(writer);
    int64_t flushed = ac_writer_flush(writer, err);
    int rc = flushed < 0 ? (int)flushed : ac_writer_seal_pending(writer, err);
    discard_next(writer);
    if (rc == AC_OK) rc = leave_clean(writer, err);
    /* A caller that removed it need not know; one that goes on appending gets an error before. */
    if (rc == AC_E_GONE && !ac_writer_was_cut(writer)) rc = AC_OK;
    if (writer->attended) ac_wake_targets_close(&writer->targets);
    ac_store_relaxed_u32(&writer->attended, 0);
    ac_writer_end_report(writer);
    ac_writer_close_report(writer);
    pthread_mutex_lock(&writer->sync_mutex);
    pthread_mutex_lock(&writer->mutex);
    ac_store_relaxed_u32(&writer->state, AC_STATE_CLOSED);
    ac_store_relaxed_u64(&writer->limit, 0);
    release_everything(writer);
    pthread_mutex_unlock(&writer->mutex);
    pthread_mutex_unlock(&writer->sync_mutex);
    return rc;
}

void ac_writer_free(ac_writer_t *writer) {
    if (!writer) return;
    /* In a forked child the locks may be held by a thread that does not exist here. */
    if (ac_load_relaxed_u32(&writer->state) == AC_STATE_FORKED) {
        ac_writer_close_report(writer);
        release_everything(writer);
    } else
        ac_writer_close(writer, NULL);
    ac_java_free(writer);
    free(writer->liveness.entries);
    free(writer);
}
