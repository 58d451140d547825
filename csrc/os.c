#include "os.h"

#include "aiochronicle.h"
#include "atomics.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* Old headers lack it; the engine then does without, as it does on old kernels. */
#if __has_include(<linux/io_uring.h>) && defined(SYS_io_uring_setup)
#include <linux/io_uring.h>
#define HAVE_IO_URING 1
#else
#define HAVE_IO_URING 0
#endif

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

static struct {
    ac_os_hook_t hook;
    void *context;
} injected;

void ac_os_set_hook(ac_os_hook_t hook, void *context) {
    __atomic_store_n(&injected.hook, NULL, __ATOMIC_SEQ_CST);
    __atomic_store_n(&injected.context, context, __ATOMIC_SEQ_CST);
    __atomic_store_n(&injected.hook, hook, __ATOMIC_SEQ_CST);
}

int ac_os_inject(void *context, int call, const char *path, int fd, uint64_t offset,
                 uint64_t length) {
    ac_injection_t *injection = context;
    (void)path, (void)fd, (void)offset, (void)length;
    /* Taken back since the caller found the hook. */
    if (!injection) return 0;
    if (injection->call >= 0 && injection->call != call) return 0;
    uint64_t number = __atomic_add_fetch(&injection->seen, 1, __ATOMIC_RELAXED);
    int chosen = number >= injection->first && number - injection->first < injection->times;
    return chosen ? injection->answer : 0;
}

static const char *const call_names[AC_CALL_COUNT] = {
    [AC_CALL_OPEN] = "open",
    [AC_CALL_STAT] = "stat",
    [AC_CALL_MKDIR] = "mkdir",
    [AC_CALL_RENAME] = "rename",
    [AC_CALL_UNLINK] = "unlink",
    [AC_CALL_ALLOCATE] = "allocate",
    [AC_CALL_TRUNCATE] = "truncate",
    [AC_CALL_ZERO] = "zero",
    [AC_CALL_READ] = "read",
    [AC_CALL_WRITE] = "write",
    [AC_CALL_SYNC] = "sync",
    [AC_CALL_SYNC_DIR] = "sync_dir",
    [AC_CALL_SYNC_MAP] = "sync_map",
    [AC_CALL_MAP] = "map",
    [AC_CALL_POPULATE] = "populate",
    [AC_CALL_MEMLOCK] = "memlock",
    [AC_CALL_LOCK] = "lock",
    [AC_CALL_LIST] = "list",
    [AC_CALL_CHMOD] = "chmod",
    [AC_CALL_COPY] = "copy",
    [AC_CALL_WAKE] = "wake",
    [AC_CALL_WAIT] = "wait",
    [AC_CALL_EVENTFD] = "eventfd",
    [AC_CALL_SIGNAL] = "signal",
    [AC_CALL_THREAD] = "thread",
    [AC_CALL_ALLOC] = "alloc",
    [AC_CALL_SOCKET] = "socket",
    [AC_CALL_SEND] = "send",
    [AC_CALL_RECEIVE] = "receive",
    [AC_CALL_WATCH] = "watch",
    [AC_CALL_POLL] = "poll",
    [AC_CALL_RING] = "ring",
    [AC_CALL_START_WRITING] = "start_writing",
};

const char *ac_os_call_name(int call) {
    return call >= 0 && call < AC_CALL_COUNT ? call_names[call] : "unknown";
}

int ac_os_call_count(void) {
    return AC_CALL_COUNT;
}

/* The errno to fail this call with, or 0. */
static int fault(enum ac_call call, const char *path, int fd, uint64_t offset, uint64_t length) {
    ac_os_hook_t hook = __atomic_load_n(&injected.hook, __ATOMIC_ACQUIRE);
    if (AC_LIKELY(hook == NULL)) return 0;
    void *context = __atomic_load_n(&injected.context, __ATOMIC_ACQUIRE);
    return hook(context, (int)call, path, fd, offset, length);
}

/* For calls that transfer bytes: the same, and *length is what may be transferred. */
static int fault_transfer(enum ac_call call, int fd, uint64_t offset, size_t *length) {
    int injected_errno = fault(call, NULL, fd, offset, *length);
    if (AC_LIKELY(injected_errno >= 0)) return injected_errno;
    size_t most = (size_t)-(int64_t)injected_errno;
    if (most < *length) *length = most;
    return 0;
}

/* Runs `expression` as the given call: consults the hook first, retries EINTR from either. */
#define CALL(result, call, path, fd, offset, length, expression)                                   \
    do {                                                                                           \
        int injected_errno = fault(call, path, fd, offset, length);                                \
        if (injected_errno == 0)                                                                   \
            (result) = (expression) < 0 ? -errno : 0;                                              \
        else                                                                                       \
            (result) = -injected_errno;                                                            \
    } while ((result) == -EINTR)

/* The same for calls whose non-negative result matters. */
#define CALL_VALUE(result, call, path, fd, offset, length, expression)                             \
    do {                                                                                           \
        int injected_errno = fault(call, path, fd, offset, length);                                \
        if (injected_errno == 0) {                                                                 \
            (result) = (expression);                                                               \
            if ((result) < 0) (result) = -errno;                                                   \
        } else {                                                                                   \
            (result) = -injected_errno;                                                            \
        }                                                                                          \
    } while ((result) == -EINTR)

/* O_NONBLOCK means nothing for a file, but opening a pipe in its place would wait forever. */
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

/* A link replaces nothing either. A kill may leave both names: the next attempt recognises the file by its inode. */
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

int ac_os_free_bytes(int fd, uint64_t *out) {
    struct statvfs info;
    int rc;
    CALL(rc, AC_CALL_STAT, NULL, fd, 0, 0, fstatvfs(fd, &info));
    if (rc < 0) return rc;
    if (info.f_blocks == 0) return -ENOSYS;
    *out = (uint64_t)info.f_bavail * info.f_frsize;
    return 0;
}

int ac_os_truncate(int fd, uint64_t size) {
    int rc;
    CALL(rc, AC_CALL_TRUNCATE, NULL, fd, 0, size, ftruncate(fd, (off_t)size));
    return rc;
}

int ac_os_allocate(int fd, uint64_t size) {
    int rc;
    do {
        int injected_errno = fault(AC_CALL_ALLOCATE, NULL, fd, 0, size);
        rc = injected_errno ? injected_errno : posix_fallocate(fd, 0, (off_t)size);
    } while (rc == EINTR);
    return -rc;
}

int ac_os_reserve(int fd, uint64_t offset, uint64_t length) {
    int rc;
    CALL(rc, AC_CALL_ALLOCATE, NULL, fd, offset, length,
         fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)length));
    return rc == -EOPNOTSUPP || rc == -ENOSYS ? 0 : rc;
}

int ac_os_zero_range(int fd, uint64_t offset, uint64_t length) {
    static const char zeros[65536];
    int rc;
    CALL(rc, AC_CALL_ZERO, NULL, fd, offset, length,
         fallocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)length));
    if (rc != -EOPNOTSUPP && rc != -ENOSYS) return rc;
    while (length > 0) { /* tmpfs and others: write the zeros */
        size_t step = length < sizeof zeros ? (size_t)length : sizeof zeros;
        rc = ac_os_write_at(fd, zeros, step, offset);
        if (rc < 0) return rc;
        offset += step;
        length -= step;
    }
    return 0;
}

int ac_os_punch(int fd, uint64_t offset, uint64_t length) {
    int rc;
    CALL(rc, AC_CALL_ZERO, NULL, fd, offset, length,
         fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)length));
    return rc == -EOPNOTSUPP || rc == -ENOSYS ? 0 : rc;
}

int ac_os_copy(int from_fd, int to_fd, uint64_t offset, uint64_t length) {
    char buffer[65536];
    uint64_t done = 0;
    int injected_errno = fault(AC_CALL_COPY, NULL, from_fd, offset, length);
    if (injected_errno) return -injected_errno;
    while (done < length) {
        size_t step = length - done < sizeof buffer ? (size_t)(length - done) : sizeof buffer;
        int got = ac_os_read_at(from_fd, buffer, step, offset + done);
        if (got <= 0) return got < 0 ? got : -EIO;
        int rc = ac_os_write_at(to_fd, buffer, (size_t)got, offset + done);
        if (rc < 0) return rc;
        done += (uint64_t)got;
    }
    return 0;
}

int ac_os_read_at(int fd, void *buffer, size_t length, uint64_t offset) {
    size_t done = 0;
    while (done < length) {
        size_t step = length - done;
        int injected_errno = fault_transfer(AC_CALL_READ, fd, offset + done, &step);
        if (injected_errno == EINTR) continue;
        if (injected_errno) return -injected_errno;
        ssize_t got = pread(fd, (char *)buffer + done, step, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -errno;
        if (got == 0) break;
        done += (size_t)got;
    }
    return (int)done;
}

int ac_os_next_data(int fd, uint64_t from, uint64_t to, uint64_t *start, uint64_t *end) {
    int rc;
    CALL(rc, AC_CALL_READ, NULL, fd, from, 0, 0);
    if (rc < 0) return rc;
    *start = from;
    *end = to;
    off_t data = lseek(fd, (off_t)from, SEEK_DATA);
    if (data < 0 && errno == ENXIO) return 0;
    if (data < 0) return errno == EINVAL ? 1 : -errno; /* a file system that cannot tell */
    if ((uint64_t)data >= to) return 0;
    off_t hole = lseek(fd, data, SEEK_HOLE);
    *start = (uint64_t)data;
    if (hole >= 0 && (uint64_t)hole < to) *end = (uint64_t)hole;
    return 1;
}

/* Blocks that were allocated ahead count as zeros until the file system notes that they were written. ext4 does
 * that when a page is written for the first time; if that write fails, the page is written to its blocks the next
 * time, but nobody notes it, and after a restart they are zeros. */
int ac_os_has_unwritten(int fd, uint64_t from, uint64_t to) {
    enum { EXTENTS = 32 };
    union {
        struct fiemap map;
        uint8_t room[sizeof(struct fiemap) + EXTENTS * sizeof(struct fiemap_extent)];
    } query;
    while (from < to) {
        int rc;
        memset(&query, 0, sizeof query);
        query.map.fm_start = from;
        query.map.fm_length = to - from;
        query.map.fm_extent_count = EXTENTS;
        CALL(rc, AC_CALL_STAT, NULL, fd, from, to - from, ioctl(fd, FS_IOC_FIEMAP, &query.map));
        if (rc == -EOPNOTSUPP || rc == -ENOTTY) return 0;
        if (rc < 0) return rc;
        if (query.map.fm_mapped_extents == 0) return 1;
        for (uint32_t i = 0; i < query.map.fm_mapped_extents; i++) {
            const struct fiemap_extent *extent = &query.map.fm_extents[i];
            uint32_t bad = FIEMAP_EXTENT_UNWRITTEN | FIEMAP_EXTENT_DELALLOC;
            if (extent->fe_logical > from || extent->fe_flags & bad) return 1;
            from = extent->fe_logical + extent->fe_length;
        }
    }
    return 0;
}

int ac_os_write_at(int fd, const void *buffer, size_t length, uint64_t offset) {
    size_t done = 0;
    while (done < length) {
        size_t step = length - done;
        int injected_errno = fault_transfer(AC_CALL_WRITE, fd, offset + done, &step);
        if (injected_errno == EINTR) continue;
        if (injected_errno) return -injected_errno;
        ssize_t put = pwrite(fd, (const char *)buffer + done, step, (off_t)(offset + done));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return -errno;
        if (put == 0) return -EIO;
        done += (size_t)put;
    }
    return 0;
}

int ac_os_sync(int fd) {
    int rc;
    CALL(rc, AC_CALL_SYNC, NULL, fd, 0, 0, fdatasync(fd));
    return rc;
}

int ac_os_sync_dir(int dir) {
    int rc;
    CALL(rc, AC_CALL_SYNC_DIR, NULL, dir, 0, 0, fsync(dir));
    return rc;
}

uint64_t ac_os_page_size(void) {
    static uint64_t size;
    uint64_t known = __atomic_load_n(&size, __ATOMIC_RELAXED);
    if (known == 0) {
        known = (uint64_t)sysconf(_SC_PAGESIZE);
        __atomic_store_n(&size, known, __ATOMIC_RELAXED);
    }
    return known;
}

void *ac_os_map(int fd, uint64_t length, int writable, int *error) {
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    *error = fault(AC_CALL_MAP, NULL, fd, 0, length);
    if (*error) return NULL;
    void *base = mmap(NULL, length, protection, MAP_SHARED, fd, 0);
    if (base != MAP_FAILED) return base;
    *error = errno;
    return NULL;
}

void ac_os_unmap(void *base, uint64_t length) {
    if (base) munmap(base, length);
}

int ac_os_map_sync(void *base, int fd, uint64_t offset, uint64_t length) {
    uint64_t page = ac_os_page_size();
    uint64_t from = offset & ~(page - 1);
    int rc;
    CALL(rc, AC_CALL_SYNC_MAP, NULL, fd, from, length + (offset - from),
         msync((char *)base + from, length + (offset - from), MS_SYNC));
    return rc;
}

int ac_os_start_writing(int fd, uint64_t offset, uint64_t length) {
    int rc;
    CALL(rc, AC_CALL_START_WRITING, NULL, fd, offset, length,
         sync_file_range(fd, (off64_t)offset, (off64_t)length, SYNC_FILE_RANGE_WRITE));
    return rc == -ESPIPE || rc == -ENOSYS ? 0 : rc; /* nothing was begun: the sync will do it all */
}

int ac_os_map_dontfork(void *base, uint64_t length) {
    int rc;
    CALL(rc, AC_CALL_MAP, NULL, -1, 0, length, madvise(base, length, MADV_DONTFORK));
    return rc;
}

int ac_os_populate(void *base, uint64_t offset, uint64_t length, int writable) {
    uint64_t page = ac_os_page_size();
    uint64_t from = offset & ~(page - 1);
    int advice = writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
    int rc;
    do {
        CALL(rc, AC_CALL_POPULATE, NULL, -1, from, length + (offset - from),
             madvise((char *)base + from, length + (offset - from), advice));
    } while (rc == -EAGAIN);
    return rc == -EINVAL ? 0 : rc; /* a kernel before 5.14: pages fault in one by one, as ever */
}

void ac_os_unpopulate(void *base, uint64_t from, uint64_t to) {
    if (from >= to) return;
    char *start = (char *)base + from;
    if (madvise(start, to - from, MADV_DONTNEED) < 0) /* locked into memory? */
        madvise(start, to - from, MADV_DONTNEED_LOCKED);
}

void ac_os_drop_cache(int fd) {
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
}

int ac_os_memlock(void *base, uint64_t length) {
    int rc;
    CALL(rc, AC_CALL_MEMLOCK, NULL, -1, 0, length, mlock(base, length));
    return rc;
}

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

int ac_os_futex_wake(uint32_t *word, int count) {
    int rc;
    CALL_VALUE(rc, AC_CALL_WAKE, NULL, -1, 0, 0,
               (int)syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0));
    return rc;
}

static struct timespec timespec_of(uint64_t ns) {
    uint64_t seconds = ns / 1000000000u;
    struct timespec t = {.tv_sec = (time_t)(seconds > INT_MAX ? INT_MAX : seconds),
                         .tv_nsec = (long)(ns % 1000000000u)};
    return t;
}

int ac_os_futex_wait(const uint32_t *word, uint32_t expected, uint64_t timeout_ns) {
    struct timespec limit = timespec_of(timeout_ns);
    int injected_errno = fault(AC_CALL_WAIT, NULL, -1, 0, 0);
    if (injected_errno) return -injected_errno;
    long rc = syscall(SYS_futex, word, FUTEX_WAIT, expected, &limit, NULL, 0);
    return rc < 0 ? -errno : 0;
}

int ac_os_futex_wake_private(uint32_t *word) {
    return syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0) < 0 ? -errno : 0;
}

int ac_os_futex_wait_any(const ac_futex_t *futexes, uint32_t count, uint64_t until_ns) {
#if defined(SYS_futex_waitv) && defined(FUTEX_32)
    struct futex_waitv list[AC_FUTEX_MAX] = {0};
    struct timespec limit = timespec_of(until_ns);
    int injected_errno = fault(AC_CALL_WAIT, NULL, -1, 0, 0);
    if (injected_errno) return -injected_errno;
    if (count > AC_FUTEX_MAX) return -EINVAL;
    for (uint32_t i = 0; i < count; i++)
        list[i] = (struct futex_waitv){.val = futexes[i].expected,
                                       .uaddr = (uintptr_t)futexes[i].word,
                                       .flags = FUTEX_32 |
                                                (futexes[i].is_private ? FUTEX_PRIVATE_FLAG : 0)};
    long rc = syscall(SYS_futex_waitv, list, count, 0, &limit, CLOCK_MONOTONIC);
    return rc < 0 ? -errno : 0;
#else
    (void)futexes, (void)count, (void)until_ns;
    return -ENOSYS;
#endif
}

int ac_os_eventfd(void) {
    int fd;
    CALL_VALUE(fd, AC_CALL_EVENTFD, NULL, -1, 0, 0, eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    return fd;
}

int ac_os_eventfd_signal(int fd) {
    uint64_t one = 1;
    int rc;
    CALL(rc, AC_CALL_SIGNAL, NULL, fd, 0, 0, (int)write(fd, &one, sizeof one));
    return rc == -EAGAIN ? 0 : rc; /* the counter is full: it is signalled already */
}

/* Another holder of the descriptor can make it blocking; this call does not wait even then. Kernels
 * before 5.8 do not know that of an eventfd. */
static int drain_eventfd(int fd) {
    uint64_t drained;
    struct iovec into = {&drained, sizeof drained};
    ssize_t got = preadv2(fd, &into, 1, -1, RWF_NOWAIT);
    if (got < 0 && errno == EOPNOTSUPP) got = read(fd, &drained, sizeof drained);
    return got == (ssize_t)sizeof drained;
}

int ac_os_eventfd_wait(int fd, uint64_t timeout_ns) {
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    struct timespec limit = timespec_of(timeout_ns);
    if (timeout_ns == 0) return drain_eventfd(fd);
    int rc = ppoll(&poll_fd, 1, timeout_ns == UINT64_MAX ? NULL : &limit, NULL);
    if (rc <= 0) return rc < 0 && errno != EINTR ? -errno : 0;
    return drain_eventfd(fd);
}

int ac_os_thread(void *(*run)(void *), void *argument) {
    pthread_t thread;
    sigset_t all, old;
    int injected_errno = fault(AC_CALL_THREAD, NULL, -1, 0, 0);
    if (injected_errno) return -injected_errno;
    /* Signals belong to the application's threads; only faults may be delivered here. */
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSEGV);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc == 0) pthread_detach(thread);
    return -rc;
}

#if HAVE_IO_URING

/* Maps what the kernel laid out: one area with both rings (kernels before 5.4, which have two, are refused),
 * and the submission entries. */
static int map_ring(ac_ring_t *ring, const struct io_uring_params *params) {
    if (!(params->features & IORING_FEAT_SINGLE_MMAP)) return -ENOSYS;
    uint64_t submitting = params->sq_off.array + params->sq_entries * sizeof(uint32_t);
    uint64_t completing = params->cq_off.cqes + params->cq_entries * sizeof(struct io_uring_cqe);
    ring->rings_size = submitting > completing ? submitting : completing;
    ring->entries_size = params->sq_entries * sizeof(struct io_uring_sqe);
    int protection = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_POPULATE;
    char *rings = mmap(NULL, ring->rings_size, protection, flags, ring->fd, IORING_OFF_SQ_RING);
    if (rings == MAP_FAILED) return -errno;
    ring->rings = rings;
    ring->entries = mmap(NULL, ring->entries_size, protection, flags, ring->fd, IORING_OFF_SQES);
    if (ring->entries == MAP_FAILED) {
        int error = errno;
        ring->entries = NULL;
        return -error;
    }
    ring->tail = (uint32_t *)(void *)(rings + params->sq_off.tail);
    ring->slots = (uint32_t *)(void *)(rings + params->sq_off.array);
    ring->mask = params->sq_entries - 1;
    ring->completed_head = (uint32_t *)(void *)(rings + params->cq_off.head);
    ring->completed_tail = (uint32_t *)(void *)(rings + params->cq_off.tail);
    ring->completed_mask = params->cq_entries - 1;
    ring->completions = rings + params->cq_off.cqes;
    return 0;
}

int ac_os_ring_open(ac_ring_t *ring, unsigned entries, unsigned workers) {
    struct io_uring_params params = {0};
    unsigned most[2] = {workers, workers}; /* for files, and for everything else */
    int fd;
    memset(ring, 0, sizeof *ring);
    CALL_VALUE(fd, AC_CALL_RING, NULL, -1, 0, entries,
               (int)syscall(SYS_io_uring_setup, entries, &params));
    ring->fd = fd;
    if (fd < 0) return fd;
    int rc = map_ring(ring, &params);
    if (rc < 0) {
        ac_os_ring_close(ring);
        return rc;
    }
    enum {
        MAX_WORKERS = 19
    }; /* IORING_REGISTER_IOWQ_MAX_WORKERS; before Linux 5.15 nothing happens */
    syscall(SYS_io_uring_register, fd, MAX_WORKERS, most, 2);
    return 0;
}

int ac_os_ring_sync(ac_ring_t *ring, int fd, uint64_t offset, uint64_t length, uint64_t tag) {
    int injected_errno;
    do {
        injected_errno = fault(AC_CALL_SYNC_MAP, NULL, fd, offset, length);
    } while (injected_errno == EINTR);
    if (injected_errno) return -injected_errno;
    uint32_t tail = *ring->tail, slot = tail & ring->mask;
    struct io_uring_sqe *entry = (struct io_uring_sqe *)ring->entries + slot;
    memset(entry, 0, sizeof *entry);
    entry->opcode = IORING_OP_FSYNC;
    entry->fsync_flags = IORING_FSYNC_DATASYNC;
    entry->fd = fd;
    entry->user_data = tag;
    if (length <= UINT32_MAX) { /* else all of the file: offset and length 0 */
        entry->off = offset;
        entry->len = (uint32_t)length;
    }
    ring->slots[slot] = slot;
    ac_store_release_u32(ring->tail, tail + 1); /* pairs with the kernel's load of the tail */
    return 0;
}

size_t ac_os_ring_submit(ac_ring_t *ring, size_t queued) {
    size_t taken = 0;
    while (taken < queued) {
        long some = syscall(SYS_io_uring_enter, ring->fd, queued - taken, 0, 0, NULL, 0);
        if (some < 0 && errno == EINTR) continue;
        if (some <= 0) break;
        taken += (size_t)some;
    }
    return taken;
}

int ac_os_ring_wait(ac_ring_t *ring, size_t expected, uint64_t *tag, int *result) {
    uint32_t head = *ring->completed_head;
    while (head == ac_load_acquire_u32(ring->completed_tail)) { /* pairs with the kernel's store */
        long rc =
            syscall(SYS_io_uring_enter, ring->fd, 0, expected, IORING_ENTER_GETEVENTS, NULL, 0);
        if (rc < 0 && errno != EINTR) return -errno;
    }
    const struct io_uring_cqe *completion =
        (const struct io_uring_cqe *)ring->completions + (head & ring->completed_mask);
    *tag = completion->user_data;
    *result = completion->res;
    ac_store_release_u32(ring->completed_head, head + 1); /* the kernel may use its place again */
    return 0;
}

void ac_os_ring_close(ac_ring_t *ring) {
    if (ring->entries) munmap(ring->entries, ring->entries_size);
    if (ring->rings) munmap(ring->rings, ring->rings_size);
    ac_os_close(ring->fd);
}

#else

int ac_os_ring_open(ac_ring_t *ring, unsigned entries, unsigned workers) {
    (void)ring, (void)entries, (void)workers;
    return -ENOSYS;
}

int ac_os_ring_sync(ac_ring_t *ring, int fd, uint64_t offset, uint64_t length, uint64_t tag) {
    (void)ring, (void)fd, (void)offset, (void)length, (void)tag;
    return -ENOSYS;
}

size_t ac_os_ring_submit(ac_ring_t *ring, size_t queued) {
    (void)ring, (void)queued;
    return 0;
}

int ac_os_ring_wait(ac_ring_t *ring, size_t expected, uint64_t *tag, int *result) {
    (void)ring, (void)expected, (void)tag, (void)result;
    return -ENOSYS;
}

void ac_os_ring_close(ac_ring_t *ring) {
    (void)ring;
}

#endif

/* The address of NAME in an open directory: through /proc, so that its own path may be of any length. */
static int socket_address(struct sockaddr_un *address, int dir, const char *name) {
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    int length =
        snprintf(address->sun_path, sizeof address->sun_path, "/proc/self/fd/%d/%s", dir, name);
    return length < (int)sizeof address->sun_path ? 0 : -ENAMETOOLONG;
}

static int open_socket(void) {
    int fd;
    CALL_VALUE(fd, AC_CALL_SOCKET, NULL, -1, 0, 0,
               socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    return fd;
}

/* bind takes the mode of the new file from the socket, less the umask: nobody finds it with more rights. */
int ac_os_socket_listen(int dir, const char *name) {
    struct sockaddr_un address;
    int rc = socket_address(&address, dir, name);
    int fd = rc < 0 ? rc : open_socket();
    if (fd < 0) return fd;
    rc = ac_os_chmod(fd, 0600);
    if (rc == 0)
        CALL(rc, AC_CALL_SOCKET, name, fd, 0, 0,
             bind(fd, (struct sockaddr *)(void *)&address, sizeof address));
    if (rc == 0) CALL(rc, AC_CALL_SOCKET, name, fd, 0, 0, listen(fd, 4096));
    if (rc == 0) return fd;
    close(fd);
    return rc;
}

/* An fd of a socket's file, not to be read from, if it is one of ours. */
static int find_own_socket(int dir, const char *name) {
    struct stat info;
    int fd = ac_os_open_at(dir, name, O_PATH, 0);
    int rc = fd < 0 ? fd : ac_os_stat(fd, &info);
    if (rc == 0 && (!S_ISSOCK(info.st_mode) || info.st_uid != geteuid())) rc = -EACCES;
    if (rc == 0) return fd;
    ac_os_close(fd);
    return rc;
}

/* By the file that was examined, not by its name: connect would follow a link. */
int ac_os_socket_connect(int dir, const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int file = find_own_socket(dir, name);
    int fd = file < 0 ? file : open_socket(), rc;
    if (fd < 0) {
        ac_os_close(file);
        return fd;
    }
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d", file);
    CALL(rc, AC_CALL_SOCKET, name, fd, 0, 0,
         connect(fd, (struct sockaddr *)(void *)&address, sizeof address));
    close(file);
    if (rc == 0) return fd;
    close(fd);
    return rc;
}

int ac_os_socket_pair(int ends[2]) {
    int rc;
    CALL(rc, AC_CALL_SOCKET, NULL, -1, 0, 0,
         socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends));
    return rc;
}

int ac_os_socket_accept(int fd) {
    int accepted;
    CALL_VALUE(accepted, AC_CALL_SOCKET, NULL, fd, 0, 0,
               accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    return accepted;
}

int ac_os_socket_peer(int fd, uid_t *user) {
    struct ucred peer;
    socklen_t length = sizeof peer;
    int rc;
    CALL(rc, AC_CALL_SOCKET, NULL, fd, 0, 0,
         getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length));
    if (rc == 0) *user = peer.uid;
    return rc;
}

int ac_os_link(int from_dir, const char *from, int to_dir, const char *to) {
    int rc;
    CALL(rc, AC_CALL_RENAME, to, to_dir, 0, 0, linkat(from_dir, from, to_dir, to, 0));
    return rc;
}

enum { PASSED_FDS_MAX = 16 };

int ac_os_send(int fd, const void *packet, size_t length, int passed_fd) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec vector = {.iov_base = (void *)(uintptr_t)packet, .iov_len = length};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    if (passed_fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &passed_fd, sizeof passed_fd);
    }
    int rc;
    CALL(rc, AC_CALL_SEND, NULL, fd, 0, length, (int)sendmsg(fd, &message, MSG_NOSIGNAL));
    return rc;
}

/* Takes the first fd of the ancillary data and closes all others, however many were sent. */
static int take_fd(struct msghdr *message) {
    int taken = -1;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header;
         header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
            if (taken < 0)
                taken = fd;
            else
                close(fd);
        }
    }
    return taken;
}

int ac_os_receive(int fd, void *packet, size_t length, int *passed_fd) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(PASSED_FDS_MAX * sizeof(int))];
    } control;
    struct iovec vector = {.iov_base = packet, .iov_len = length};
    struct msghdr message = {.msg_iov = &vector,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t got;
    *passed_fd = -1;
    CALL_VALUE(got, AC_CALL_RECEIVE, NULL, fd, 0, length,
               recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT));
    if (got >= 0) *passed_fd = take_fd(&message);
    return (int)got;
}

int ac_os_is_eventfd(int fd) {
    char path[64], target[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length < 0) return 0;
    target[length] = 0;
    if (strcmp(target, "anon_inode:[eventfd]") != 0) return 0;
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

int ac_os_epoll(void) {
    int fd;
    CALL_VALUE(fd, AC_CALL_POLL, NULL, -1, 0, 0, epoll_create1(EPOLL_CLOEXEC));
    return fd;
}

int ac_os_epoll_add(int epoll, int fd, void *tag) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = tag};
    int rc;
    CALL(rc, AC_CALL_POLL, NULL, fd, 0, 0, epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
    return rc;
}

void ac_os_epoll_remove(int epoll, int fd) {
    epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL);
}

int ac_os_epoll_wait(int epoll, void **tags, int room, uint64_t timeout_ns) {
    struct epoll_event events[64];
    int timeout_ms = timeout_ns == UINT64_MAX ? -1 : (int)((timeout_ns + 999999) / 1000000);
    int count = epoll_wait(epoll, events, room < 64 ? room : 64, timeout_ms);
    if (count < 0) return errno == EINTR ? 0 : -errno;
    for (int i = 0; i < count; i++)
        tags[i] = events[i].data.ptr;
    return count;
}

int ac_os_inotify(void) {
    int fd;
    CALL_VALUE(fd, AC_CALL_WATCH, NULL, -1, 0, 0, inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
    return fd;
}

int ac_os_inotify_add(int inotify, int dir, uint32_t mask) {
    char path[64];
    int watch;
    snprintf(path, sizeof path, "/proc/self/fd/%d", dir);
    CALL_VALUE(watch, AC_CALL_WATCH, NULL, dir, 0, 0, inotify_add_watch(inotify, path, mask));
    return watch;
}

void ac_os_inotify_remove(int inotify, int watch) {
    inotify_rm_watch(inotify, watch);
}

void ac_os_inotify_read(int inotify, void (*visit)(void *context, int watch, const char *name),
                        void *context) {
    char buffer[4096] __attribute__((aligned(8)));
    int waiting = 0;
    if (ioctl(inotify, FIONREAD, &waiting) < 0) return;
    while (waiting > 0) {
        ssize_t got = read(inotify, buffer, sizeof buffer);
        if (got <= 0) return;
        waiting -= (int)got;
        for (ssize_t at = 0; at + (ssize_t)sizeof(struct inotify_event) <= got;) {
            struct inotify_event event;
            memcpy(&event, buffer + at, sizeof event);
            visit(context, event.wd, event.len ? buffer + at + sizeof event : "");
            at += (ssize_t)(sizeof event + event.len);
        }
    }
}

void *ac_os_alloc(size_t size) {
    return fault(AC_CALL_ALLOC, NULL, -1, 0, size) ? NULL : calloc(1, size);
}

void ac_os_sleep_ns(uint64_t ns) {
    struct timespec pause = timespec_of(ns);
    nanosleep(&pause, NULL);
}

void ac_os_yield(void) {
    sched_yield();
}

static uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t ac_os_coarse_ns(void) {
    return clock_ns(CLOCK_MONOTONIC_COARSE);
}

uint64_t ac_os_now_ns(void) {
    return clock_ns(CLOCK_REALTIME);
}

uint64_t ac_clock_ns(void) {
    return clock_ns(CLOCK_REALTIME);
}

uint64_t ac_os_monotonic_ns(void) {
    return clock_ns(CLOCK_MONOTONIC);
}

uint64_t ac_os_thread_cpu_ns(void) {
    return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

void ac_os_thread_usage(ac_usage_t *out) {
    struct rusage usage;
    memset(out, 0, sizeof *out);
    if (getrusage(RUSAGE_THREAD, &usage) < 0) return;
    *out = (ac_usage_t){.minor_faults = (uint64_t)usage.ru_minflt,
                        .major_faults = (uint64_t)usage.ru_majflt,
                        .waits = (uint64_t)usage.ru_nvcsw,
                        .switches = (uint64_t)usage.ru_nivcsw};
}

static int read_text(const char *path, char *buffer, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -errno;
    ssize_t got = read(fd, buffer, size - 1);
    close(fd);
    if (got < 0) return -EIO;
    buffer[got] = 0;
    return (int)got;
}

uint64_t ac_os_process_start(int pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (read_text(path, text, sizeof text) <= 0) return 0;
    /* Field 22, counted after the command name, which may itself contain blanks and brackets. */
    char *field = strrchr(text, ')');
    for (int skip = 0; field && skip < 20; skip++)
        field = strchr(field + 1, ' ');
    return field ? strtoull(field + 1, NULL, 10) : 0;
}

/* Not by /proc, which may hide the processes of others. */
int ac_os_process_exists(int pid) {
    return pid > 0 && (kill(pid, 0) == 0 || errno != ESRCH);
}

/* Bit 8 of a signal mask is SIGKILL. A killed process has it pending from the moment of the kill until each of
 * its threads has seen it; then its first thread is a zombie as long as anything is left of it. */
int ac_os_process_ends(int pid) {
    static const char *const masks[] = {"\nSigPnd:", "\nShdPnd:"};
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    if (read_text(path, text, sizeof text) <= 0) return 1;
    const char *state = strstr(text, "\nState:\t");
    if (state && (state[8] == 'Z' || state[8] == 'X')) return 1;
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        const char *mask = strstr(text, masks[i]);
        if (mask && strtoull(mask + 8, NULL, 16) & (1u << (SIGKILL - 1))) return 1;
    }
    return 0;
}

/* When the machine was started, by the wall clock. */
static uint64_t boot_ns(void) {
    uint64_t now_ns = clock_ns(CLOCK_REALTIME), since_boot_ns = clock_ns(CLOCK_BOOTTIME);
    return now_ns > since_boot_ns ? now_ns - since_boot_ns : 0;
}

uint64_t ac_os_process_started_ns(int pid) {
    uint64_t ticks = ac_os_process_start(pid);
    long per_second = sysconf(_SC_CLK_TCK);
    if (ticks == 0 || per_second <= 0) return 0;
    return boot_ns() + ticks * (1000000000u / (uint64_t)per_second);
}

void ac_os_process_command(int pid, char *out, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    int got = read_text(path, out, size);
    out[got > 0 ? got : 0] = 0;
    /* Arguments end in a NUL each; whatever else a terminal might act on is not shown. */
    for (int i = 0; i < got; i++)
        if (out[i] < ' ' || out[i] > '~') out[i] = out[i] ? '?' : ' ';
    for (int i = got; i > 0 && out[i - 1] == ' '; i--)
        out[i - 1] = 0;
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

/* FNV-1a: only to compare identities for equality. */
static uint64_t fingerprint(const char *text) {
    uint64_t hash = 14695981039346656037u;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    return hash;
}

uint64_t ac_os_boot_id(void) {
    char text[64];
    return read_text("/proc/sys/kernel/random/boot_id", text, sizeof text) > 0 ? fingerprint(text)
                                                                               : 0;
}

uint64_t ac_os_clock_namespace(void) {
    struct stat info;
    return stat("/proc/self/ns/time", &info) == 0 ? (uint64_t)info.st_ino : 0;
}

uint64_t ac_os_pid_namespace(void) {
    struct stat info;
    return stat("/proc/self/ns/pid", &info) == 0 ? (uint64_t)info.st_ino : 0;
}

int ac_os_random(void *buffer, size_t length) {
    return getrandom(buffer, length, 0) == (ssize_t)length ? 0 : -errno;
}
