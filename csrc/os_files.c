/* Files and directories by name, and their owners. */
#include "os.h"

#include "os_call.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* O_NONBLOCK means nothing for a file, but opening a pipe in its place would wait without limit. */
int ac_os_open_at(int dir, const char *name, int flags, unsigned mode) {
    int fd;
    /* O_NONBLOCK: a pipe in the place of a file is refused later, instead of waiting for its other end. */
    CALL_VALUE(fd, AC_CALL_OPEN, name, dir, 0, 0,
               openat(dir, name, flags | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK, mode));
    return fd;
}

int ac_os_open_dir(const char *path) {
    int fd;
    CALL_VALUE(fd, AC_CALL_OPEN, path, AT_FDCWD, 0, 0,
               open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return fd;
}

int ac_os_open_dir_at(int dir, const char *name) {
    return ac_os_open_at(dir, name, O_RDONLY | O_DIRECTORY, 0);
}

void ac_os_close(int fd) {
    if (fd >= 0) close(fd);
}

int ac_os_stat(int fd, struct stat *out) {
    int rc;
    CALL(rc, AC_CALL_STAT, NULL, fd, 0, 0, fstat(fd, out));
    return rc;
}

int ac_os_stat_at(int dir, const char *name, struct stat *out) {
    int rc;
    CALL(rc, AC_CALL_STAT, name, dir, 0, 0, fstatat(dir, name, out, AT_SYMLINK_NOFOLLOW));
    return rc;
}

int ac_os_stat_path(const char *path, struct stat *out) {
    int rc;
    CALL(rc, AC_CALL_STAT, path, AT_FDCWD, 0, 0, stat(path, out));
    return rc;
}

int ac_os_birth(int dir, const char *name, uint64_t out[2]) {
    struct statx info = {0};
    int rc;
    CALL(rc, AC_CALL_STAT, name, dir, 0, 0,
         statx(dir, name, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, STATX_INO | STATX_BTIME, &info));
    int has_birth = (info.stx_mask & STATX_BTIME) != 0;
    out[0] = info.stx_ino;
    out[1] = has_birth ? (uint64_t)info.stx_btime.tv_sec * 1000000000u + info.stx_btime.tv_nsec : 0;
    return rc;
}

int ac_os_extent(int fd, ac_extent_t *out) {
    struct statx info = {0};
    int rc;
    CALL(rc, AC_CALL_STAT, NULL, fd, 0, 0,
         statx(fd, "", AT_EMPTY_PATH | AT_NO_AUTOMOUNT, STATX_NLINK | STATX_SIZE, &info));
    if (rc == 0) *out = (ac_extent_t){.size = info.stx_size, .links = info.stx_nlink};
    return rc;
}

int ac_os_mkdir(const char *path, unsigned mode) {
    return ac_os_mkdir_at(AT_FDCWD, path, mode);
}

int ac_os_mkdir_at(int dir, const char *name, unsigned mode) {
    int rc;
    CALL(rc, AC_CALL_MKDIR, name, dir, 0, 0, mkdirat(dir, name, mode));
    return rc;
}

int ac_os_chmod(int fd, unsigned mode) {
    int rc;
    CALL(rc, AC_CALL_CHMOD, NULL, fd, 0, 0, fchmod(fd, mode));
    return rc;
}

int ac_os_become_owner(int dir) {
    struct stat info;
    if (geteuid() != 0 || fstat(dir, &info) < 0 || info.st_uid == 0) return 0;
    setfsgid(info.st_gid);
    setfsuid(info.st_uid);
    return 1;
}

void ac_os_become_root(void) {
    setfsuid(0);
    setfsgid(getegid());
}

int ac_os_rename(int dir, const char *from, const char *to) {
    return ac_os_move(dir, from, dir, to);
}

int ac_os_rename_new(int dir, const char *from, const char *to) {
    return ac_os_move_new(dir, from, dir, to);
}

static int is_one_file(int left_dir, const char *left, int right_dir, const char *right) {
    struct stat a, b;
    return ac_os_stat_at(left_dir, left, &a) == 0 && ac_os_stat_at(right_dir, right, &b) == 0 &&
           a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* A link replaces nothing either. A kill may leave both names: the next attempt recognises the file by its
 * inode. */
static int move_by_link(int from_dir, const char *from, int to_dir, const char *to) {
    int rc;
    CALL(rc, AC_CALL_RENAME, to, to_dir, 0, 0, linkat(from_dir, from, to_dir, to, 0));
    if (rc == -EEXIST && is_one_file(from_dir, from, to_dir, to)) rc = 0;
    return rc < 0 ? rc : ac_os_unlink(from_dir, from);
}

int ac_os_move_new(int from_dir, const char *from, int to_dir, const char *to) {
    int rc;
    CALL(rc, AC_CALL_RENAME, to, to_dir, 0, 0,
         (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, 1 /* RENAME_NOREPLACE */));
    /* NFS and older versions of ZFS do not know the flag. */
    return rc == -EINVAL || rc == -ENOSYS ? move_by_link(from_dir, from, to_dir, to) : rc;
}

int ac_os_move(int from_dir, const char *from, int to_dir, const char *to) {
    int rc;
    CALL(rc, AC_CALL_RENAME, to, to_dir, 0, 0, renameat(from_dir, from, to_dir, to));
    return rc;
}

int ac_os_unlink(int dir, const char *name) {
    int rc;
    CALL(rc, AC_CALL_UNLINK, name, dir, 0, 0, unlinkat(dir, name, 0));
    return rc;
}

int ac_os_rmdir(const char *path) {
    int rc;
    CALL(rc, AC_CALL_UNLINK, path, AT_FDCWD, 0, 0, unlinkat(AT_FDCWD, path, AT_REMOVEDIR));
    return rc;
}

int ac_os_link(int from_dir, const char *from, int to_dir, const char *to) {
    int rc;
    CALL(rc, AC_CALL_RENAME, to, to_dir, 0, 0, linkat(from_dir, from, to_dir, to, 0));
    return rc;
}

int ac_os_list(int dir, int (*visit)(void *context, const char *name), void *context) {
    int rc;
    /* A fresh open, so that the caller's directory offset is not shared. */
    int fd = ac_os_open_at(dir, ".", O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) return fd;
    rc = -fault(AC_CALL_LIST, NULL, dir, 0, 0);
    DIR *stream = rc < 0 ? NULL : fdopendir(fd);
    if (!stream) {
        rc = rc < 0 ? rc : -errno;
        close(fd);
        return rc;
    }
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(stream);
        if (!entry) {
            rc = -errno;
            break;
        }
        if (entry->d_name[0] == '.' &&
            (!entry->d_name[1] || (entry->d_name[1] == '.' && !entry->d_name[2])))
            continue;
        rc = visit(context, entry->d_name);
        if (rc != 0) break;
    }
    closedir(stream);
    return rc;
}
