/* Failures of a writer's background work: in its statistics, and in the log. */
#include "log.h"
#include "writer.h"

#include <stdio.h>
#include <string.h>

#define LOG_AGAIN_NS 60000000000u

void ac_writer_init_failures(ac_writer_t *writer) {
    writer->sync_errors = (ac_failures_t){.what = "syncing", .level = AC_LOG_ERROR};
    writer->seal_errors = (ac_failures_t){.what = "indexing a full segment"};
    writer->prealloc_errors = (ac_failures_t){.what = "creating the next segment"};
    writer->populate_errors = (ac_failures_t){.what = "bringing pages into memory"};
    writer->memlock_errors = (ac_failures_t){.what = "locking a segment into memory"};
    writer->retention_errors = (ac_failures_t){.what = "retention"};
}

/* A file of the queue, without the queue's own path. */
static const char *short_name(const ac_writer_t *writer, const char *path) {
    size_t length = strlen(writer->dir.path);
    return strncmp(path, writer->dir.path, length) == 0 && path[length] == '/' ? path + length + 1
                                                                               : path;
}

static void keep_recent(ac_writer_t *writer, int sys_errno, const char *path, const char *detail) {
    ac_recent_error_t error = {.count = 1, .sys_errno = sys_errno};
    error.first_ns = error.last_ns = ac_os_now_ns();
    snprintf(error.text, sizeof error.text, "%s: %s", short_name(writer, path), detail);
    for (size_t i = 0; i < AC_RECENT_ERRORS; i++) {
        ac_recent_error_t *known = &writer->recent[i];
        if (known->count == 0 || strcmp(known->text, error.text) != 0) continue;
        known->count++;
        known->last_ns = error.last_ns;
        return;
    }
    writer->recent[writer->recent_count++ % AC_RECENT_ERRORS] = error;
}

void ac_writer_keep_error(ac_writer_t *writer, int sys_errno, const char *path, const char *text) {
    writer->last_errno = sys_errno;
    snprintf(writer->last_error, sizeof writer->last_error, "%s: %s", path, text);
    keep_recent(writer, sys_errno, path, text);
}

/* An obstacle may last for days, and be met once a second. */
static int is_to_log(ac_failures_t *failures, uint32_t checksum) {
    uint64_t now_ns = ac_os_monotonic_ns();
    int again = failures->since_success > 0 && failures->logged == checksum;
    if (again && now_ns - failures->logged_ns < LOG_AGAIN_NS) return 0;
    failures->logged = checksum;
    failures->logged_ns = now_ns;
    return 1;
}

void ac_writer_note_error(ac_writer_t *writer, ac_failures_t *failures, const ac_error_t *err) {
    pthread_mutex_lock(&writer->mutex);
    ac_writer_keep_error(writer, err->sys_errno, err->path, err->detail);
    uint32_t checksum = ac_crc32(writer->last_error, strlen(writer->last_error));
    int log = is_to_log(failures, checksum);
    failures->count++;
    failures->since_success++;
    pthread_mutex_unlock(&writer->mutex);
    if (log)
        ac_log(failures->level ? failures->level : AC_LOG_WARNING, err->path, "%s failed: %s",
               failures->what, err->detail);
}

void ac_writer_note_success(ac_writer_t *writer, ac_failures_t *failures) {
    pthread_mutex_lock(&writer->mutex);
    uint64_t failed = failures->since_success;
    failures->since_success = 0;
    pthread_mutex_unlock(&writer->mutex);
    if (failed > 0)
        ac_log(AC_LOG_INFO, writer->dir.path, "%s works again (failed %llu times)", failures->what,
               (unsigned long long)failed);
}
