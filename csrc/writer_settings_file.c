/* settings.toml: how another process changes the settings of an open writer. The engine notices, reads and
 * replaces the file, and checks its owner; the binding parses its content. */
#include "crc32.h"
#include "error.h"
#include "log.h"
#include "queue_view.h"
#include "writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char FILE_NAME[] = "settings.toml";
static const char no_settings[] =
    "settings.toml: retention, capacity and batches are not for a Java queue";

static uint64_t nanoseconds(const struct timespec *time) {
    return (uint64_t)time->tv_sec * 1000000000u + (uint64_t)time->tv_nsec;
}

/* Identity and state of the file, as one number. */
static uint64_t identity(const struct stat *info) {
    uint64_t words[4] = {info->st_ino, (uint64_t)info->st_size, nanoseconds(&info->st_mtim),
                         nanoseconds(&info->st_ctim)};
    return (uint64_t)ac_crc32(words, sizeof words) << 32 | ac_crc32(words, 24) | 1u;
}

/* What cannot be checked now is checked next time. */
void ac_writer_notice_settings(ac_writer_t *writer) {
    struct stat info;
    int rc = ac_os_stat_at(writer->dir_fd, FILE_NAME, &info);
    if (rc < 0 && rc != -ENOENT) return;
    uint64_t now = rc == 0 ? identity(&info) : 0;
    if (now == ac_load_relaxed_u64(&writer->settings_file)) return;
    if (ac_log(AC_LOG_SETTINGS, writer->dir.path, "%s", FILE_NAME))
        ac_store_relaxed_u64(&writer->settings_file, now);
}

/* Any user who may write to it counts like its owner. */
static const char *find_fault(const struct stat *info) {
    if (info->st_mode & S_IWOTH) return "everybody may write to it; chmod 644";
    int is_ours = info->st_uid == geteuid() || info->st_uid == 0;
    return !is_ours && info->st_mode & S_IWGRP ? "a group may write to it; chmod 644" : NULL;
}

static int read_open(int fd, const struct stat *info, const char *path, char *out,
                     ac_error_t *err) {
    const char *fault = find_fault(info);
    if (fault) return ac_fail(err, AC_E_ACCESS, 0, path, 0, "is not obeyed: %s", fault);
    if (info->st_size > AC_SETTINGS_FILE_MAX)
        return ac_fail(err, AC_E_ARGUMENT, 0, path, 0, "is larger than %d bytes",
                       AC_SETTINGS_FILE_MAX);
    int got = ac_os_read_at(fd, out, AC_SETTINGS_FILE_MAX, 0);
    if (got < 0) return ac_fail_os(err, got, path, "cannot read");
    out[got] = 0;
    return got;
}

static int read_file(const ac_directory_t *dir, int dir_fd, char *out, uint64_t *which,
                     ac_error_t *err) {
    struct stat info;
    char path[1200];
    *which = 0;
    out[0] = 0;
    int fd = ac_file_open(dir, dir_fd, FILE_NAME, O_RDONLY | O_NONBLOCK, &info, err);
    if (fd == AC_E_NOT_FOUND) return 0;
    if (fd == AC_E_NOT_A_QUEUE) { /* its owner, or its type */
        if (err) err->code = AC_E_ACCESS;
        return AC_E_ACCESS;
    }
    if (fd < 0) return fd;
    *which = identity(&info);
    snprintf(path, sizeof path, "%s/%s", dir->path, FILE_NAME);
    int rc = read_open(fd, &info, path, out, err);
    ac_os_close(fd);
    return rc;
}

int ac_writer_read_settings(ac_writer_t *writer, char *out, ac_error_t *err) {
    uint64_t which;
    int rc = ac_writer_usable(writer, err);
    if (rc != AC_OK) return rc;
    int dir_fd = ac_directory_open(&writer->dir, err);
    if (dir_fd < 0) return dir_fd;
    rc = read_file(&writer->dir, dir_fd, out, &which, err);
    ac_os_close(dir_fd);
    if (which != 0) ac_store_relaxed_u64(&writer->settings_file, which);
    return rc;
}

int ac_queue_read_settings(const char *path, char *out, ac_error_t *err) {
    ac_view_t view;
    uint64_t which;
    int rc = ac_view_refuse_java(ac_view_open(&view, path, err), path, no_settings, err);
    if (rc != AC_OK) return rc;
    rc = read_file(&view.dir, view.dir_fd, out, &which, err);
    ac_view_close(&view);
    return rc;
}

static int remove_file(const ac_view_t *view, ac_error_t *err) {
    int rc = ac_os_unlink(view->dir_fd, FILE_NAME);
    if (rc == 0) rc = ac_os_sync_dir(view->dir_fd);
    return rc < 0 && rc != -ENOENT
               ? ac_fail_os_in(err, rc, view->dir.path, FILE_NAME, "cannot remove")
               : AC_OK;
}

/* The writer, perhaps another user, must be able to read it; the directory decides who may see it. */
int ac_queue_write_settings(const char *path, const char *text, ac_error_t *err) {
    ac_view_t view;
    int rc = ac_view_refuse_java(ac_view_open(&view, path, err), path, no_settings, err);
    if (rc != AC_OK) return rc;
    view.dir.mode = 0644;
    rc = text ? ac_file_publish(&view.dir, view.dir_fd, FILE_NAME, text, strlen(text), err)
              : remove_file(&view, err);
    ac_view_close(&view);
    return rc;
}
