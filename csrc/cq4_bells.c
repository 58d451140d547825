#include "cq4_bells.h"

#include "error.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

enum { PARKED_BYTES = 64 };
#define TRY_AGAIN_NS 1000000000ull

/* .aiochronicle/ as a directory like a queue's, for the doorman. It has the mode of the queue's own directory, so that
 * whoever may write there may ring. */
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
        rc = create ? ac_os_truncate(fd, PARKED_BYTES) : -EAGAIN; /* its maker is at it */
    *out = rc < 0 ? NULL : ac_map_new(fd, PARKED_BYTES, 1, &error);
    ac_os_close(fd);
    if (*out) return AC_OK;
    return ac_fail_os_in(err, rc < 0 ? rc : error, own->path, AC_CQ4_PARKED_FILE, "cannot map");
}

/* ---- writers ---- */

int ac_cq4_bells_open(ac_cq4_bells_t *bells, const ac_directory_t *dir, ac_error_t *err) {
    ac_directory_t own;
    memset(bells, 0, sizeof *bells);
    int own_fd = open_own(dir, 1, &own, err);
    if (own_fd < 0) return own_fd;
    int rc = map_parked(&own, own_fd, 1, &bells->map, err);
    ac_os_close(own_fd);
    if (rc == AC_OK) rc = ac_doorman_attend(&bells->callers, &own, err);
    bells->attends = rc == AC_OK;
    if (rc != AC_OK) ac_cq4_bells_close(bells);
    return rc;
}

void ac_cq4_bells_close(ac_cq4_bells_t *bells) {
    if (bells->attends) ac_doorman_leave(&bells->callers);
    bells->attends = 0;
    ac_map_release(bells->map);
    bells->map = NULL;
}

void ac_cq4_bells_forked(ac_cq4_bells_t *bells) {
    bells->attends = 0;
    bells->callers.count = 0;
}

/* ---- readers ---- */

int ac_cq4_bells_listen(ac_cq4_bells_t *bells, const ac_directory_t *dir, ac_caller_t *caller) {
    ac_directory_t own;
    uint64_t now_ns = ac_os_monotonic_ns();
    if (bells->tried_ns && now_ns - bells->tried_ns < TRY_AGAIN_NS) return 0;
    bells->tried_ns = now_ns;
    int own_fd = open_own(dir, 0, &own, NULL);
    if (own_fd < 0) return 0;
    int rc = bells->map ? AC_OK : map_parked(&own, own_fd, 0, &bells->map, NULL);
    ac_os_close(own_fd);
    caller->many = 1;
    return rc == AC_OK && ac_doorman_announce(caller, &own, NULL) == AC_OK;
}

void ac_cq4_bells_park(ac_cq4_bells_t *bells) {
    if (!bells->map) return;
    /* The full barrier between it and the look that follows; pairs with the load in ac_cq4_bells_ring. */
    ac_exchange_seq_cst_u64(ac_cq4_bells_word(bells), 1);
}

void ac_cq4_bells_leave(ac_cq4_bells_t *bells) {
    ac_map_release(bells->map);
    bells->map = NULL;
}
