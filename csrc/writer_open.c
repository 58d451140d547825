/* Opening a queue for writing: its format, the control block, the lock, then the place where it continues
 * (writer_resume.c), and last what makes the writer visible to other processes. */
#include "error.h"
#include "recovery.h"
#include "segment.h"
#include "writer.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        /* Checked again in any case: another process may have created all of it just now. */
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
    /* Again, because other processes can write to it: only checked values are used. */
    if (!ac_segment_size_valid(writer->segment_size))
        return ac_fail(err, AC_E_CORRUPT, 0, writer->dir.path, 24, "segment size is impossible");
    return AC_OK;
}

/* A temporary name of one of the queue's files: other names that end in .tmp are not ours. */
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

static int has_second_name(const ac_writer_t *writer, const char *name) {
    struct stat info;
    return ac_os_stat_at(writer->dir_fd, name, &info) == 0 && info.st_nlink > 1;
}

/* A directory that shares its files with another one (cp -al) is no queue of its own: appended messages
 * would appear there, too, half of each. The same holds for the original, with which other directories
 * share files. */
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

/* With a mode that lets other users read, they may also store positions; but they cannot write into the
 * queue's directory. Without such a mode this is left to the first named reader: see docs/guide/format.md. */
static int make_readers(const ac_writer_t *writer, ac_error_t *err) {
    ac_directory_t readers;
    if ((writer->config.mode & 0044) == 0) return AC_OK;
    int fd = ac_directory_readers(&writer->dir, writer->dir_fd, 1, &readers, err);
    if (fd < 0) return fd;
    ac_os_close(fd);
    return AC_OK;
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
    if (rc == AC_OK) rc = ac_writer_find_place(writer, &end, is_copy, err);
    if (rc == AC_OK) rc = ac_writer_take_segment_size(writer, &end, err);
    if (rc == AC_OK)
        rc = writer->index_fd =
            ac_file_open(&writer->dir, writer->dir_fd, "index.meta", O_RDWR | O_CREAT, &info, err);
    uint64_t epoch = ac_control_next_epoch(writer->control, is_copy);
    writer->epoch = (uint32_t)epoch;
    if (rc >= 0) rc = ac_writer_lock_note_epoch(&writer->dir, writer->dir_fd, epoch, err);
    if (rc == AC_OK) rc = ac_writer_enter_end(writer, &end, err);
    ac_map_release(end.map);
    if (rc != AC_OK) return rc;
    announce(writer, epoch);
    ac_writer_adopt_settings(writer);
    ac_writer_begin_report(writer);
    /* Without it (for example, no inotify instances left) readers poll, as they do for other programs. */
    if (!writer->config.inline_housekeeping)
        writer->attended = ac_wake_targets_open(&writer->targets, &writer->dir, NULL) ==
                           AC_OK; /* not visible to others yet */
    ac_store_release_u64(&writer->control->signalling_epoch, writer->attended ? epoch : 0);
    /* The epoch must never be used twice, so it is on disk before the first record that carries it. */
    rc = ac_os_map_sync(writer->control_map->base, -1, 0, AC_CONTROL_SIZE);
    if (rc == 0) rc = ac_os_sync_dir(writer->dir_fd);
    return rc < 0 ? ac_fail_os_in(err, rc, writer->dir.path, "control.meta", "cannot sync") : AC_OK;
}

/* The format of the existing queue, or the requested one; an error if they differ. */
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
    if (rc == AC_OK) rc = ac_writer_start_housekeeping(writer, err);
    return rc;
}

int ac_writer_open(const char *path, const ac_writer_config_t *config, ac_writer_t **out,
                   ac_error_t *err) {
    int format = choose_format(path, config, err);
    if (format < 0) return format;
    int is_java = format == AC_FORMAT_CQ4;
    int rc = is_java ? AC_OK : check_config(path, config, err);
    if (rc != AC_OK) return rc;
    ac_writer_t *writer = ac_writer_allocate(config);
    if (!writer) return ac_fail_os(err, -ENOMEM, path, "cannot open");
    struct stat info;
    int made = ac_os_stat_path(path, &info) == -ENOENT;
    rc = is_java ? ac_java_open(writer, path, err) : open_native(writer, path, err);
    if (rc != AC_OK) {
        ac_java_free(writer);
        ac_writer_close_report(writer);
        ac_writer_release(writer);
        free(writer);
        if (made) ac_os_rmdir(path); /* unless it is not empty */
        return rc;
    }
    *out = writer;
    if (is_java) return AC_OK;
    ac_writer_set_limits(writer);
    if (!config->inline_housekeeping) ac_writer_nudge_housekeeping(writer);
    return AC_OK;
}
