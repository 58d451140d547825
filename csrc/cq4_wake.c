#include "cq4_wake.h"

#include "error.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

enum { PARKED_BYTES = 128 };
#define TRY_AGAIN_NS 1000000000ull

/* .aiochronicle/ as a directory like a queue's, for the wake thread. It has the mode of the queue's own
 * directory, so that every process that may write there may signal. */
static int open_own(const ac_directory_t *dir, int create, ac_directory_t *own, ac_error_t *err) {
    struct stat info;
    int dir_fd = ac_directory_open(dir, err);
    if (dir_fd < 0) return dir_fd;
    int rc = ac_os_stat(dir_fd, &info);
    ac_directory_t with_mode = *dir;
    with_mode.mode = rc < 0 ? 0600 : info.st_mode & 0666;
    int own_fd = ac_directory_sub(&with_mode, dir_fd, AC_CQ4_OWN_DIRECTORY, create, err);
    ac_os_close(dir_fd);
    if (own_fd < 0) return own_fd;
    rc = ac_os_stat(own_fd, &info);
    if (rc < 0) {
        ac_os_close(own_fd);
        return ac_fail_os_in(err, rc, dir->path, AC_CQ4_OWN_DIRECTORY, "cannot examine directory");
    }
    memset(own, 0, sizeof *own);
    snprintf(own->path, sizeof own->path, "%.*s/%s", (int)sizeof own->path - 64, dir->path,
             AC_CQ4_OWN_DIRECTORY);
    own->device = info.st_dev;
    own->inode = info.st_ino;
    own->owner = info.st_uid;
    own->mode = with_mode.mode;
    own->shared = (info.st_mode & 0022) != 0;
    return own_fd;
}

static int map_parked(const ac_directory_t *own, int own_fd, int create, ac_map_t **out,
                      ac_error_t *err) {
    struct stat info;
    int error;
    int fd =
        ac_file_open(own, own_fd, AC_CQ4_PARKED_FILE, O_RDWR | (create ? O_CREAT : 0), &info, err);
    if (fd < 0) return fd;
    int rc = 0;
    if (info.st_size < PARKED_BYTES)
        rc = create ? ac_os_truncate(fd, PARKED_BYTES) : -EAGAIN; /* its creator is completing it */
    *out = rc < 0 ? NULL : ac_map_new(fd, PARKED_BYTES, 1, &error);
    ac_os_close(fd);
    if (*out) return AC_OK;
    return ac_fail_os_in(err, rc < 0 ? rc : error, own->path, AC_CQ4_PARKED_FILE, "cannot map");
}

/* ---- writers ---- */

int ac_cq4_wake_open(ac_cq4_wake_t *wake, const ac_directory_t *dir, ac_error_t *err) {
    ac_directory_t own;
    memset(wake, 0, sizeof *wake);
    int own_fd = open_own(dir, 1, &own, err);
    if (own_fd < 0) return own_fd;
    int rc = map_parked(&own, own_fd, 1, &wake->map, err);
    ac_os_close(own_fd);
    if (rc == AC_OK) rc = ac_wake_targets_open(&wake->targets, &own, err);
    wake->attends = rc == AC_OK;
    if (rc != AC_OK) ac_cq4_wake_close(wake);
    return rc;
}

void ac_cq4_wake_close(ac_cq4_wake_t *wake) {
    if (wake->attends) ac_wake_targets_close(&wake->targets);
    wake->attends = 0;
    ac_map_release(wake->map);
    wake->map = NULL;
}

void ac_cq4_wake_forked(ac_cq4_wake_t *wake) {
    wake->attends = 0;
    wake->targets.count = 0;
}

/* ---- readers ---- */

int ac_cq4_wake_listen(ac_cq4_wake_t *wake, const ac_directory_t *dir,
                       ac_wake_endpoint_t *endpoint) {
    ac_directory_t own;
    uint64_t now_ns = ac_os_monotonic_ns();
    if (wake->tried_ns && now_ns - wake->tried_ns < TRY_AGAIN_NS) return 0;
    wake->tried_ns = now_ns;
    int own_fd = open_own(dir, 0, &own, NULL);
    if (own_fd < 0) return 0;
    int rc = wake->map ? AC_OK : map_parked(&own, own_fd, 0, &wake->map, NULL);
    ac_os_close(own_fd);
    endpoint->many = 1;
    return rc == AC_OK && ac_wake_announce(endpoint, &own, NULL) == AC_OK;
}

void ac_cq4_wake_park(ac_cq4_wake_t *wake) {
    if (!wake->map) return;
    /* The full barrier between it and the look that follows; pairs with the load in ac_cq4_wake_signal. */
    ac_exchange_seq_cst_u64(ac_cq4_wake_word(wake), 1);
}

void ac_cq4_wake_leave(ac_cq4_wake_t *wake) {
    ac_map_release(wake->map);
    wake->map = NULL;
}
