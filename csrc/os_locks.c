/* Locks on files, and their holders. */
#include "os.h"

#include "os_call.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/sysmacros.h>

int ac_os_flock(int fd) {
    int rc;
    CALL(rc, AC_CALL_LOCK, NULL, fd, 0, 0, flock(fd, LOCK_EX | LOCK_NB));
    return rc;
}

int ac_os_claim(int fd) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int rc;
    CALL(rc, AC_CALL_LOCK, NULL, fd, 0, 0, fcntl(fd, F_OFD_SETLK, &whole));
    return rc;
}

int ac_os_claimed(int fd) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int rc;
    CALL(rc, AC_CALL_LOCK, NULL, fd, 0, 0, fcntl(fd, F_OFD_GETLK, &whole));
    return rc < 0 ? rc : whole.l_type != F_UNLCK;
}

int ac_os_claim_range(int fd, uint64_t offset, uint64_t length) {
    struct flock range = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)offset, .l_len = (off_t)length};
    int rc;
    CALL(rc, AC_CALL_LOCK, NULL, fd, offset, length, fcntl(fd, F_OFD_SETLK, &range));
    return rc == -EACCES ? -EAGAIN : rc;
}

int ac_os_range_claimed(int fd, uint64_t offset, uint64_t length) {
    struct flock range = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)offset, .l_len = (off_t)length};
    int rc;
    CALL(rc, AC_CALL_LOCK, NULL, fd, offset, length, fcntl(fd, F_OFD_GETLK, &range));
    return rc < 0 ? rc : range.l_type != F_UNLCK;
}

int ac_os_flock_shared(int fd) {
    int rc;
    CALL(rc, AC_CALL_LOCK, NULL, fd, 0, 0, flock(fd, LOCK_SH | LOCK_NB));
    return rc;
}

int ac_os_claim_shared(int fd) {
    struct flock whole = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    int rc;
    CALL(rc, AC_CALL_LOCK, NULL, fd, 0, 0, fcntl(fd, F_OFD_SETLK, &whole));
    return rc == -EACCES ? -EAGAIN : rc;
}

void ac_os_unclaim_range(int fd, uint64_t offset, uint64_t length) {
    struct flock range = {
        .l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = (off_t)offset, .l_len = (off_t)length};
    fcntl(fd, F_OFD_SETLK, &range);
}

/* "12: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF"; a shared lock, READ, keeps others out as well. */
static int parse_flock(const char *line, ac_flock_t *out) {
    unsigned major_number, minor_number;
    unsigned long long inode;
    if (sscanf(line, "%*u: FLOCK %*s %*s %d %x:%x:%llu", &out->pid, &major_number, &minor_number,
               &inode) != 4)
        return 0;
    out->device = makedev(major_number, minor_number);
    out->inode = (ino_t)inode;
    return out->pid > 0;
}

void ac_os_each_flock(void (*visit)(void *context, const ac_flock_t *lock), void *context) {
    char line[256];
    ac_flock_t lock;
    FILE *locks = fopen("/proc/locks", "re");
    while (locks && fgets(line, sizeof line, locks))
        if (parse_flock(line, &lock)) visit(context, &lock);
    if (locks) fclose(locks);
}

static void match_flock(void *context, const ac_flock_t *lock) {
    ac_flock_t *wanted = context;
    if (wanted->pid == 0 && lock->inode == wanted->inode && lock->device == wanted->device)
        wanted->pid = lock->pid;
}

int ac_os_flock_holder(const struct stat *file) {
    ac_flock_t wanted = {.device = file->st_dev, .inode = file->st_ino};
    ac_os_each_flock(match_flock, &wanted);
    return wanted.pid;
}

int ac_os_flock_owner(int fd) {
    struct stat info;
    return fstat(fd, &info) < 0 ? 0 : ac_os_flock_holder(&info);
}
