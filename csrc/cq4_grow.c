#include "cq4_grow.h"

#include "error.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define FILE_LOCK_NS (10ull * 1000000000u)

/* -EAGAIN if another process has it locked all the time. */
static int lengthen(int fd, uint64_t length) {
    struct stat info;
    int rc = ac_os_stat(fd, &info);
    if (rc < 0 || (uint64_t)info.st_size >= length) return rc;
    uint64_t deadline_ns = ac_os_monotonic_ns() + FILE_LOCK_NS;
    while ((rc = ac_os_claim_range(fd, 0, 0)) == -EAGAIN && ac_os_monotonic_ns() < deadline_ns)
        ac_os_sleep_ns(100000);
    if (rc < 0) return rc;
    rc = ac_os_stat(fd, &info);
    if (rc == 0 && (uint64_t)info.st_size < length) rc = ac_os_truncate(fd, length);
    ac_os_unclaim_range(fd, 0, 0);
    return rc;
}

static int is_aligned(uint64_t offset) {
    return offset != 0 && offset % sizeof(uint64_t) == 0;
}

int ac_cq4_grow_check(const ac_cq4_cycle_t *cycle, ac_error_t *err) {
    if (cycle->padding && cycle->write_positions >= 2 && is_aligned(cycle->write_position_at) &&
        is_aligned(cycle->index2index_at) && is_aligned(cycle->last_index_at))
        return AC_OK;
    return ac_cq4_cycle_fail(cycle, AC_E_UNSUPPORTED, 0, 0,
                             "was written by a version before 5.19.11, whose records are not "
                             "aligned: it can be read, but not appended to",
                             err);
}

int ac_cq4_grow_open(const ac_cq4_queue_t *queue, int dir_fd, uint32_t number, ac_cq4_cycle_t *out,
                     ac_error_t *err) {
    const ac_directory_t *dir = &queue->dir;
    char name[AC_CQ4_NAME_MAX];
    struct stat info;
    memset(out, 0, sizeof *out);
    if (ac_cq4_roll_file_name(&queue->roll, number, name) != AC_OK)
        return ac_fail(err, AC_E_ARGUMENT, 0, dir->path, 0, "cycle %u has no file name", number);
    int fd = ac_file_open(dir, dir_fd, name, O_RDWR, &info, err);
    if (fd < 0) return fd;
    int rc = ac_cq4_cycle_open_fd(dir, fd, 1, name, number, queue->roll.shift, out, err);
    if (rc != AC_OK) {
        ac_os_close(fd);
        return rc;
    }
    rc = ac_cq4_grow_check(out, err);
    if (rc != AC_OK) ac_cq4_cycle_close(out);
    return rc;
}

int ac_cq4_grow(ac_cq4_cycle_t *cycle, uint64_t offset, ac_error_t *err) {
    int rc = lengthen(cycle->map->fd, ac_cq4_length_for(offset));
    if (rc == -EAGAIN)
        return ac_cq4_cycle_fail(cycle, AC_E_LOCKED, EAGAIN, offset,
                                 "another process has locked the file for 10 s", err);
    if (rc < 0) return ac_fail_os_in(err, rc, cycle->dir->path, cycle->name, "cannot lengthen");
    return ac_cq4_cycle_remap(cycle, err);
}
