#include "cq4_named.h"

#include "atomics.h"
#include "cq4_lock.h"
#include "error.h"
#include "os.h"
#include "position.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define LOOK_NS 1000000ull

/* ---- opening ---- */

/* The lock's error text is about an append. */
static void say_not_added(const char *name, ac_error_t *err) {
    char why[sizeof err->detail];
    if (!err) return;
    snprintf(why, sizeof why, "%s", err->detail);
    snprintf(err->detail, sizeof err->detail,
             "the tailer %s could not be added to " AC_CQ4_METADATA ": %.150s", name, why);
    err->sys_errno = EBUSY;
}

static int open_in(ac_cq4_named_t *named, const ac_directory_t *dir, int dir_fd, const char *name,
                   ac_error_t *err) {
    char key[AC_CQ4_KEY_MAX];
    struct stat info;
    int rc = ac_reader_name_check(name, dir->path, err);
    if (rc != AC_OK) return rc;
    snprintf(key, sizeof key, "%s%s", AC_CQ4_KEY_NAMED, name);
    if (ac_os_stat_at(dir_fd, AC_CQ4_METADATA, &info) == -ENOENT)
        return ac_fail(err, AC_E_UNSUPPORTED, 0, dir->path, 0,
                       "Java before 5.16.9 kept no named tailers in its queues: read it without "
                       "a name");
    rc = ac_cq4_table_open(dir, dir_fd, AC_CQ4_METADATA, 1, &named->table, err);
    if (rc == AC_OK)
        rc =
            ac_cq4_table_add(&named->table, dir, key, 0, AC_CQ4_KEY_TIMEOUT_NS, &named->index, err);
    if (rc == AC_E_LOCKED) say_not_added(name, err);
    return rc < 0 ? rc : AC_OK;
}

int ac_cq4_named_open(ac_cq4_named_t *named, const ac_directory_t *dir, const char *name,
                      ac_error_t *err) {
    memset(named, 0, sizeof *named);
    int dir_fd = ac_directory_open(dir, err);
    if (dir_fd < 0) return dir_fd;
    int rc = open_in(named, dir, dir_fd, name, err);
    ac_os_close(dir_fd);
    if (rc != AC_OK) ac_cq4_named_close(named);
    return rc;
}

void ac_cq4_named_close(ac_cq4_named_t *named) {
    ac_cq4_table_close(&named->table);
    named->index = NULL;
}

/* ---- storing ---- */

/* Whether the file still has its name. */
static int check_name(ac_cq4_named_t *named, const ac_directory_t *dir, int sync, ac_error_t *err) {
    struct stat info;
    uint64_t now_ns = ac_os_monotonic_ns();
    if (!sync && named->looked_ns && now_ns - named->looked_ns < LOOK_NS) return AC_OK;
    int dir_fd = ac_directory_open(dir, err);
    if (dir_fd < 0) return dir_fd;
    int rc = ac_os_stat_at(dir_fd, AC_CQ4_METADATA, &info);
    ac_os_close(dir_fd);
    if (rc < 0 && rc != -ENOENT)
        return ac_fail_os_in(err, rc, dir->path, AC_CQ4_METADATA, "cannot examine");
    int is_same =
        rc == 0 && info.st_dev == named->table.device && info.st_ino == named->table.inode;
    named->looked_ns = is_same ? now_ns : 0; /* it may have been moved away and back */
    if (is_same && !ac_map_is_cut(named->table.map)) return AC_OK;
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", dir->path, AC_CQ4_METADATA);
    return ac_fail(err, AC_E_GONE, ENOENT, path, 0,
                   "was removed, replaced or cut, so nothing is committed");
}

int ac_cq4_named_store(ac_cq4_named_t *named, const ac_directory_t *dir, uint64_t index, int sync,
                       ac_error_t *err) {
    ac_store_release_u64(named->index, index);
    if (sync) {
        uint64_t page = ac_os_page_size();
        uint64_t at = (uint64_t)((uint8_t *)named->index - named->table.map->base) & ~(page - 1);
        int rc = ac_os_map_sync(named->table.map->base, -1, at, page);
        if (rc < 0) return ac_fail_os(err, rc, dir->path, "cannot sync the position");
    }
    return check_name(named, dir, sync, err);
}
